#!/usr/bin/python3
"""served-disk.py GMBLOCK SERVER-KERNEL CLIENT-KERNEL: gmblock serves a file in one guest; in the
other the kernel's own nbd client makes it a disk, and a file system on it keeps what it is given,
over a server that is stopped and started again."""
import sys

import testing

GMBLOCK, SERVER_KERNEL, CLIENT_KERNEL = sys.argv[1:4]

SERVER = """
truncate -s 256M /dev/shm/disk.img
for round in first second; do
	# The warning about an open port goes to the error stream: the file has only the address.
	gmblock serve /dev/shm/disk.img --listen nbd://0.0.0.0:10809 >uri.$round 2>>/results/errors &
	server=$!
	until [ -s uri.$round ]; do kill -0 $server; sleep 0.1; done
	lab-signal served-$round
	lab-wait done-$round >/dev/null
	kill $server
	wait $server
done
gmblock info --local >/results/local
"""

CLIENT = r"""
attach()
{
	lab-wait served-$1 >/dev/null
	nbd-client -N '' server 10809 /dev/nbd0 -C 2
}
detach()
{
	nbd-client -d /dev/nbd0
	lab-signal done-$1
}
sums()
{
	(cd "$1" && find . -type f | sort | xargs sha256sum)
}

attach first
test "$(blockdev --getsize64 /dev/nbd0)" = 268435456
mkfs.ext4 -q /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt
cp -a /usr/. /mnt/usr
mkdir /mnt/many
for i in $(seq 300); do echo "file $i" >/mnt/many/$i; done
head -c 20000000 /dev/urandom >/mnt/noise
rm /mnt/many/1??
sums /mnt >/results/before
umount /mnt
e2fsck -fn /dev/nbd0
detach first

attach second
e2fsck -fn /dev/nbd0
mount -t ext4 -o ro /dev/nbd0 /mnt
sums /mnt >/results/after
umount /mnt
detach second
"""


def test_file_system_on_a_served_disk_survives_a_new_server():
    with testing.laboratory() as lab:
        server = lab.guest("server", SERVER_KERNEL, SERVER, files=[(GMBLOCK, "/lab/gmblock")])
        client = lab.guest("client", CLIENT_KERNEL, CLIENT, load=["nbd"], modules=["ext4"],
                           programs=["nbd-client", "mkfs.ext4", "e2fsck"])
        lab.start()
        testing.finish(lab)
        with open(f"{client.results}/before", encoding="utf-8") as file:
            before = file.read()
        with open(f"{client.results}/after", encoding="utf-8") as file:
            assert file.read() == before, lab.story()
        assert before.count("./many/") == 200 and "./noise" in before, before
        with open(f"{server.results}/local", encoding="utf-8") as file:
            print(file.read())


testing.main(test_file_system_on_a_served_disk_survives_a_new_server)
