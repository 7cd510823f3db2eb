#!/usr/bin/python3
"""vhost.py GMBLOCK KERNEL ROUNDS: a guest with a vhost-user-blk disk. It makes a file system, and fio writes and
verifies data on the raw part of the disk, while the server is killed, restarted and upgraded ROUNDS times each; then it
trims and sees the disk grow."""
import json
import os
import select
import signal
import subprocess
import sys
import tempfile

import testing

sys.path.append(os.path.join(testing.HERE, "..", "functional"))
import support  # noqa: E402

support.GMBLOCK, KERNEL = sys.argv[1:3]
ROUNDS = int(sys.argv[3])
MIB = 1 << 20
DISK_BYTES = 128 * MIB
MEMORY_MIB = 1024
ROUND_SECONDS = 120  # a limit, for a machine that is busy

SCRIPT = r"""
disk=/dev/vda
test "$(blockdev --getsize64 $disk)" = DISK_BYTES
test "$(cat /sys/block/vda/queue/discard_max_bytes)" -gt 0
test "$(cat /sys/block/vda/queue/write_zeroes_max_bytes)" -gt 0
test "$(ls /sys/block/vda/mq | wc -l)" = 2
lab-signal booted
mkfs.ext4 -q $disk 64M
mount -t ext4 $disk /mnt
head -c 20000000 /dev/urandom >/mnt/noise
sha256sum </mnt/noise >/tmp/sum
sync
lab-signal writing
# Requests of two sizes are in flight whenever the server goes; each pass is verified.
pass=0
while ! [ -e /tmp/enough ]; do
	fio --name=verify --filename=$disk --offset=64M --size=32M --direct=1 --ioengine=libaio --iodepth=16 \
		--rw=randwrite --bssplit=4k/70:64k/30 --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$pass \
		--allow_mounted_write=1 --output=/tmp/fio || { cat /tmp/fio; exit 1; }
	grep -q "READ:" /tmp/fio || { cat /tmp/fio; exit 1; } # fio has verified
	pass=$((pass + 1))
	lab-signal pass$pass
	# the last pass began after the last change of the server
	if [ $pass -ge 2 ] && timeout 1 lab-wait enough >/dev/null; then touch /tmp/enough; fi
done
echo $pass >/results/passes
umount /mnt
e2fsck -fn $disk
mount -t ext4 $disk /mnt
sha256sum </mnt/noise | cmp - /tmp/sum
rm /mnt/noise
sync
fstrim -v /mnt >/results/trimmed
lab-signal trimmed
lab-wait grown >/dev/null
until [ "$(blockdev --getsize64 $disk)" = $((2 * DISK_BYTES)) ]; do sleep 0.1; done
dd if=/dev/urandom of=$disk bs=1M count=1 seek=$((2 * DISK_BYTES / 1048576 - 1)) oflag=direct status=none
umount /mnt
# The request queue ends with an error for whatever the server did not complete.
! dmesg | grep -i "I/O error"
""".replace("DISK_BYTES", str(DISK_BYTES))


class Place:
    """An image and the server that has it."""

    def __init__(self, folder):
        self.folder = folder
        self.disk = self.path("disk.img")
        with open(self.disk, "wb") as image:
            image.truncate(DISK_BYTES)
        self.serve()

    def path(self, name):
        return os.path.join(self.folder, name)

    def arguments(self):
        return ["--export", f"vm={self.disk}", "--control", self.path("control"),
                "--listen", f"vhost-user-blk+unix:///vm?socket={self.path('socket')}"]

    def serve(self):
        with open(self.path("log"), "a", encoding="utf-8") as log:
            server = subprocess.Popen([support.GMBLOCK, "serve", *self.arguments()], stdout=subprocess.PIPE, stderr=log)
        assert server.stdout.readline(), self.log()

    def log(self):
        with open(self.path("log"), encoding="utf-8") as log:
            return log.read()

    def end(self, number):
        """Ends the process that serves now, which an upgrade may have started, with a signal."""
        stats = subprocess.run([support.GMBLOCK, "stats", "--json", self.path("control")], check=True,
                               stdout=subprocess.PIPE)
        pid = json.loads(stats.stdout)["pid"]
        process = os.pidfd_open(pid)
        os.kill(pid, number)
        select.select([process], [], [])
        os.close(process)

    def kill_and_serve(self):
        self.end(signal.SIGKILL)
        self.serve()

    def stop_and_serve(self):
        self.end(signal.SIGTERM)
        self.serve()

    def control_command(self, name):
        subprocess.run([support.GMBLOCK, name, self.path("control")], check=True)

    def qemu(self):
        return ["-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on",
                "-chardev", f"socket,id=disk,path={self.path('socket')},reconnect=1",
                "-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"]


def test_a_guest_survives_its_server():
    with tempfile.TemporaryDirectory(prefix="gmblock-vhost-") as folder:
        place = Place(folder)
        try:
            with testing.laboratory(testing.TIME_LIMIT + ROUNDS * ROUND_SECONDS) as lab:
                guest = lab.guest("guest", KERNEL, SCRIPT, load=["virtio_blk"], modules=["ext4"], memory=MEMORY_MIB,
                                  cpus=2, machine="q35,memory-backend=memory", qemu=place.qemu(),
                                  programs=["fio", "mkfs.ext4", "e2fsck", "fstrim"])
                lab.start()
                lab.wait_signal("writing")
                done = 0
                for _ in range(ROUNDS):
                    for change in (place.kill_and_serve, place.stop_and_serve, lambda: place.control_command("reload"),
                                   lambda: place.control_command("upgrade")):
                        change()
                        done += 1
                        lab.wait_signal(f"pass{done}")
                lab.send("enough")
                lab.wait_signal("trimmed")
                blocks = os.stat(place.disk).st_blocks
                os.truncate(place.disk, 2 * DISK_BYTES)
                subprocess.run([support.GMBLOCK, "export", "set", "vm", "size=auto", "--server", place.path("control")],
                               check=True)
                lab.send("grown")
                testing.finish(lab)
                with open(f"{guest.results}/passes", encoding="ascii") as file:
                    print("passes:", file.read().strip())
                assert blocks * 512 < 60 * MIB, blocks  # 32 MiB of fio, metadata, and no 20 MB of noise
        finally:
            place.end(signal.SIGKILL)


testing.main(test_a_guest_survives_its_server)
