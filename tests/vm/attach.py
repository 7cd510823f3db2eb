#!/usr/bin/python3
"""attach.py GMBLOCK KERNEL KIND: gmblock attach makes a disk in the guest's kernel (KIND is ublk or
nbd, or ublk-gmb: ublk over gmb and vhost-user-blk). A file system on it survives a server that is killed and started
again, with no error in the guest, and is whole after another attachment."""
import os
import sys

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
PYTHON = "/usr/lib/python3.11"
KIND, _, GMB = sys.argv[3].partition("-")
SCHEME = "gmb+unix" if GMB else "nbd+unix"
MODULE = {"ublk": "ublk_drv", "nbd": "nbd"}[KIND]

# ublk has UPDATE_SIZE since Linux 6.16.
GROWS = "yes" if KIND == "nbd" or KERNEL != "6.12" else "no"

COMMON = r"""
kind=KIND
uri='SCHEME:///?socket=/tmp/s'
serve()
{
	rm -f /tmp/s /tmp/uri
	gmblock serve $what --listen "$uri" >/tmp/uri 2>>/results/server &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
sums()
{
	(cd "$1" && find . -type f | sort | xargs sha256sum)
}
refused() # WORDS COMMAND...
{
	words=$1
	shift
	! "$@" 2>/tmp/refusal
	grep -q "$words" /tmp/refusal || { cat /tmp/refusal; exit 1; }
}
pid_of()
{
	gmblock attach --list --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'
}
what=/dev/shm/disk.img
truncate -s 192M $what
serve
"""

FILE_SYSTEM = COMMON + r"""
disk=$(gmblock attach --$kind --request-timeout 3s --slow-timeout 3s "$uri")
test "$(blockdev --getsize64 $disk)" = 201326592
queue=/sys/block/${disk#/dev/}/queue
test "$(cat $queue/write_cache)" = "write back"
test "$(cat $queue/discard_max_bytes)" -gt 1000000000
test "$(cat $queue/write_zeroes_max_bytes)" -gt 1000000000
mkfs.ext4 -q $disk
mount -t ext4 $disk /mnt
refused "is mounted on /mnt" gmblock detach $disk
cp -a /usr/. /mnt/usr

# The server dies in the middle, twice.
(for i in 1 2 3 4; do dd if=/dev/urandom of=/mnt/noise$i bs=64k count=160 conv=fsync; done) &
writer=$!
until [ -s /mnt/noise1 ]; do sleep 0.05; done
kill -9 $server
sleep 0.3
serve
until [ -s /mnt/noise3 ]; do sleep 0.05; done
kill -9 $server
serve
wait $writer
sums /mnt >/results/before
umount /mnt
e2fsck -fn $disk
gmblock detach $disk
test "$(gmblock attach --list --json)" = "[]"
test -z "$(ls -A /run/gmblock-attach)"

disk=$(gmblock attach --$kind --read-only "$uri")
e2fsck -fn $disk
mount -t ext4 -o ro,noload $disk /mnt
sums /mnt >/results/after
umount /mnt
! dd if=/dev/zero of=$disk count=1
gmblock detach "$uri"

# What was discarded is given back by the server.
disk=$(gmblock attach "$uri")
blkdiscard $disk
gmblock detach $disk
test "$(du -k /dev/shm/disk.img | cut -f1)" -lt 1000
dmesg >/results/dmesg
"""

DAEMON = COMMON + r"""
disk=$(gmblock attach --$kind --device 9 "$uri")
refused "9" gmblock attach --$kind --device 9 "$uri"
if [ $kind = nbd ]; then
	# An attachment that fails after the handshake returns its lease.
	refused "already connected" gmblock attach --nbd --device 9 --exclusive --lease-timeout 1h "$uri"
	until other=$(gmblock attach --nbd --exclusive "$uri"); do sleep 0.05; done
	gmblock detach $other
fi
refused "nothing" gmblock attach --$kind "SCHEME:///nothing?socket=/tmp/s"
refused "cannot connect" gmblock attach --$kind "SCHEME:///?socket=/tmp/nobody"
sleep 1000 <$disk &
reader=$!
refused "is open in process" gmblock detach $disk
kill $reader
wait $reader || true

# The daemon dies, and somebody else removes what it left.
kill -9 $(pid_of)
until gmblock attach --list | grep -q "has died"; do sleep 0.05; done
gmblock detach $disk
test "$(gmblock attach --list --json)" = "[]"

# A disk grows with its export, under those who use it. Where the driver cannot do that, the daemon
# says so, and a new attachment has the new size.
disk=$(gmblock attach --$kind "$uri")
queue=/sys/block/${disk#/dev/}/queue
cat $queue/max_sectors_kb >/tmp/limit
sleep 1000 <$disk &
reader=$!
truncate -s 256M $what
gmblock export set "" size=auto --server $server
if [ "GROWS" = yes ]; then
	until [ "$(blockdev --getsize64 $disk)" = 268435456 ]; do sleep 0.05; done
	until gmblock attach --list --json | grep '"size": 268435456'; do sleep 0.05; done
	cmp $queue/max_sectors_kb /tmp/limit
else
	until dmesg | grep "but the disk still has"; do sleep 0.05; done
	test "$(blockdev --getsize64 $disk)" = 201326592
fi
kill $reader
wait $reader || true
if [ $kind-GROWS = ublk-no ]; then # also the next daemon does not lose it
	kill -9 $(pid_of)
	until gmblock attach --list | grep -q "has died"; do sleep 0.05; done
	test "$(gmblock attach --ublk "$uri")" = $disk
	test "$(blockdev --getsize64 $disk)" = 201326592
fi
gmblock detach $disk
disk=$(gmblock attach --$kind "$uri")
test "$(blockdev --getsize64 $disk)" = 268435456
dd if=/dev/urandom of=/tmp/end bs=64k count=1
dd if=/tmp/end of=$disk bs=64k seek=4095 oflag=direct
tail -c 65536 $what | cmp - /tmp/end

# It grows while the server is away, and when its daemon is.
kill -9 $server
wait $server || true
truncate -s 272M $what
serve
if [ "GROWS" = yes ]; then
	until [ "$(blockdev --getsize64 $disk)" = 285212672 ]; do sleep 0.05; done
fi
gmblock detach $disk

# SIGTERM detaches.
disk=$(gmblock attach --$kind "$uri")
daemon=$(pid_of)
test "$(head -c 1 /proc/$daemon/cmdline)" = @
test "$(cat /proc/$daemon/oom_score_adj)" = -1000
! grep -q "VmLck:[^0-9]* 0 kB" /proc/$daemon/status
kill $daemon
while kill -0 $daemon 2>/dev/null; do sleep 0.05; done
test "$(gmblock attach --list --json)" = "[]"

# The server is gone for good: force does not wait for it.
disk=$(gmblock attach --$kind "$uri")
kill -9 $server
until gmblock attach --list | grep -q "not connected"; do sleep 0.05; done
gmblock detach --force $disk
test "$(gmblock attach --list --json)" = "[]"

# Requests of a fenced node fail, and do not wait for the end of the fence.
cat >/tmp/conf <<END
state-folder: /tmp/fences
nodes: [ { name: n, uid: 0 } ]
exports: [ { name: "", path: $what } ]
END
mkdir /tmp/fences
what="--config /tmp/conf --control /tmp/control"
serve
disk=$(gmblock attach --$kind --reconnect-timeout 36000s "$uri")
dd if=/dev/zero of=$disk bs=64k count=1 oflag=direct
gmblock fence n --server /tmp/control
if dd if=/dev/zero of=$disk bs=64k count=1 oflag=direct conv=notrunc; then exit 1; fi
until gmblock attach --list | grep "fenced: "; do sleep 0.05; done
gmblock detach --force $disk
test "$(gmblock attach --list --json)" = "[]"
"""

# A server that is away for a while, and one that does not answer.
AWAY = COMMON + r"""
away()
{
	kill -9 $server
	wait $server || true
}
detach_waits() # in the background; what an earlier one has said is removed before it starts
{
	: >/tmp/note
	gmblock detach $disk 2>>/tmp/note &
	detach=$!
	until grep -q "waiting for the server" /tmp/note; do kill -0 $detach; sleep 0.05; done
}
patient="--request-timeout 5s --reconnect-timeout 3600s"

# A disk that is read-only by the user's wish, of an export that is not, comes back.
disk=$(gmblock attach --$kind $patient --read-only "$uri")
away
serve
dd if=$disk of=/dev/null bs=64k count=1 iflag=direct
gmblock detach $disk

# The flush before the end waits for the server, and the connections are made again for it.
disk=$(gmblock attach --$kind $patient "$uri")
dd if=/dev/zero of=$disk bs=64k count=1
away
detach_waits
serve
wait $detach
test "$(gmblock attach --list --json)" = "[]"

# One by force does not wait, and the one that waits already ends with it.
disk=$(gmblock attach --$kind --request-timeout 3600s --reconnect-timeout 3600s "$uri")
dd if=/dev/zero of=$disk bs=64k count=1
away
detach_waits
gmblock attach --list --json | grep '"being detached, '
gmblock detach --force $disk
if wait $detach; then exit 1; fi
grep "was removed by another gmblock detach --force" /tmp/note
test "$(gmblock attach --list --json)" = "[]"
serve

# With force nobody waits for a server that is there and says nothing.
disk=$(gmblock attach --$kind --request-timeout 3600s --reconnect-timeout 3600s "$uri")
kill -STOP $server
gmblock detach --force $disk || true
kill -CONT $server
test "$(gmblock attach --list --json)" = "[]"

# A disk continues at another host, but only with the same disk.
away
scheme=SCHEME
hosts=${scheme%+unix}://127.0.0.1
serve_at() # PORT FILE
{
	rm -f /tmp/uri
	gmblock serve $2 --listen $hosts:$1 >/tmp/uri 2>>/results/server &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
truncate -s 192M /dev/shm/other.img
serve_at 10801 $what
disk=$(gmblock attach --$kind $hosts:10801,127.0.0.1:10802/)
if [ $kind = nbd ]; then
	queue=/sys/block/${disk#/dev/}/queue
	test "$(cat $queue/io_timeout)" = 60000
	test "$(cat $queue/write_zeroes_max_bytes)" = 0
	test "$(cat $queue/discard_max_bytes)" = 33554432
	# The driver does not reset the limit of an earlier disk of a device.
	gmblock attach --nbd --device 5 $hosts:10801
	gmblock detach /dev/nbd5
	test "$(cat /sys/block/nbd5/queue/write_zeroes_max_bytes)" -gt 0
	refused "nbd5 was used before" gmblock attach --nbd --device 5 $hosts:10801,127.0.0.1:10802/
	gmblock detach $(gmblock attach --nbd --device 6 $hosts:10801,127.0.0.1:10802/)
fi
gmblock detach $disk
# nbd replays a request that was lost with a connection only after --slow-timeout.
disk=$(gmblock attach --$kind $patient --slow-timeout 5s $hosts:10801,127.0.0.1:10802/)
gmblock attach --list | grep "connected to 127.0.0.1:10801"
dd if=/dev/urandom of=/tmp/data bs=64k count=64
dd if=/tmp/data of=$disk bs=64k count=32 oflag=direct
away
dd if=/tmp/data of=$disk bs=64k skip=32 seek=32 oflag=direct &
writer=$!
serve_at 10802 "--control /tmp/control /dev/shm/other.img"
until gmblock attach --list | grep -e "another disk" -e "different disks"; do kill -0 $writer; sleep 0.05; done
# The client asks again and again, and logs the refusal once.
if [ $kind = nbd ]; then
	until gmblock stats --json --server /tmp/control | tr -d ' \n' | grep -qE '"connections_accepted":([5-9]|[1-9][0-9])'; do sleep 0.05; done
	test "$(dmesg | grep -c "$disk: .*different disks")" = 1
fi
away
serve_at 10802 $what
wait $writer
gmblock attach --list | grep "connected to 127.0.0.1:10802"
dd if=$disk bs=64k count=64 iflag=direct | cmp - /tmp/data
test "$(du -k /dev/shm/other.img | cut -f1)" = 0

# The disk of the host in use is the one that counts, also if it was replaced there.
away
dd if=$what of=/dev/shm/new.img bs=64k count=64
truncate -s 192M /dev/shm/new.img
mv /dev/shm/new.img $what
serve_at 10802 $what
dd if=/tmp/data of=$disk bs=64k count=1 oflag=direct
away
dd if=/tmp/data of=$disk bs=64k count=1 oflag=direct &
writer=$!
serve_at 10801 $what
wait $writer
gmblock attach --list | grep "connected to 127.0.0.1:10801"
gmblock detach $disk
head -c 4194304 $what | cmp - /tmp/data

# After a stop, the connections are replaced, so that the server confirms the lease.
if [ $kind = nbd ]; then
	disk=$(gmblock attach --nbd --exclusive --lease-timeout 10s --connect-timeout 1s $hosts:10801,127.0.0.1:10802/)
	daemon=$(pid_of)
	kill -STOP $daemon
	sleep 6
	kill -CONT $daemon
	until dmesg | sed -n '/was stopped or paused/,$p' | grep "$disk: reconnected"; do kill -0 $daemon; sleep 0.05; done
	dd if=/tmp/data of=$disk bs=64k count=1 oflag=direct
	gmblock detach $disk
fi

# A range whose zeroing takes longer than the time limit of a request.
away
serve_at 10801 "--export =$what,pace=4M"
disk=$(gmblock attach --$kind $patient --slow-timeout 5s $hosts:10801,127.0.0.1:10802/)
timeout 120 /usr/bin/fallocate --zero-range --length 32M $disk
gmblock detach $disk

# What a server had in its memory only is gone with it, and is not read as zeroes.
away
what=memory:16M
serve
disk=$(gmblock attach --$kind --request-timeout 2s --reconnect-timeout 8s "$uri")
dd if=/dev/urandom of=$disk bs=64k count=1 oflag=direct
away
serve
! dd if=$disk of=/dev/null bs=64k count=1 iflag=direct
until gmblock attach --list | grep "in memory only"; do sleep 0.05; done
gmblock detach --force $disk || true
test "$(gmblock attach --list --json)" = "[]"
"""

# A flush that takes longer than silence may last is done once, on a connection that stays.
SLOW = COMMON + r"""
kill -9 $server
wait $server || true
what="--export =$what,delay=flush:12s"
serve
disk=$(gmblock attach --$kind --request-timeout 4s --reconnect-timeout 10s "$uri")
dd if=/dev/zero of=$disk bs=64k count=1 conv=fsync
! dmesg | grep -e "timed out" -e "was lost" -e "lost a connection"
gmblock attach --list --json | grep '"state": "connected"'
gmblock detach $disk
"""

# A server that closes each connection after the handshake gets connections at growing intervals.
SHORT = r"""#!/usr/bin/python3
import subprocess
import threading
import time

from fake_server import GO, UNSUP, FakeServer

times = []
closing = threading.Event()


def script(dialogue):
    times.append(time.monotonic())
    dialogue.greet()
    while dialogue.option()[0] != GO:
        dialogue.reply(dialogue.asked, UNSUP)
    dialogue.info_export()
    dialogue.ack()
    closing.wait()


with FakeServer(script) as server:
    disk = subprocess.run(["/lab/gmblock", "attach", "--nbd", server.uri()], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.strip()
    closing.set()
    while len(times) < 8:
        time.sleep(0.05)
    subprocess.run(["/lab/gmblock", "detach", "--force", disk], check=True)
assert not server.failures, server.failures
expected = 0.05
for before, after in zip(times[1:], times[2:]):
    assert after - before >= expected, times
    # A connection that has lasted for 2 s, on a busy machine, is a success.
    expected = 0.05 if after - before >= 2 else min(2 * expected, 2)
"""

# The second connection of a disk ends while the server answers that it has no such export any more.
LATE_END = r"""#!/usr/bin/python3
import os
import subprocess
import time

from relay import DOWN, Relay


def gmblock(*words):
    return subprocess.run(["/lab/gmblock", *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def serve(port, *words):
    server = subprocess.Popen(["/lab/gmblock", "serve", "--listen", f"nbd://127.0.0.1:{port}", "--control", f"/tmp/{port}",
                               *words], stdout=subprocess.PIPE)
    assert server.stdout.readline()


with open("/dev/shm/disk.img", "wb") as image:
    image.truncate(16 << 20)
serve(10801, "--export", "spare=memory:1M", "--export", "disk=/dev/shm/disk.img")
relay = Relay(10801)
disk = gmblock("attach", "--nbd", "--connections", "2", f"nbd://127.0.0.1:{relay.place},127.0.0.1:10802/disk")
relay.hold(1, DOWN)
gmblock("export", "remove", "disk", "--server", "/tmp/10801")
serve(10802, "--export", "disk=/dev/shm/disk.img")
while "no export named" not in gmblock("attach", "--list"):
    time.sleep(0.05)
relay.release(1)
while "connected to 127.0.0.1:10802" not in gmblock("attach", "--list"):
    time.sleep(0.05)
file = os.open(disk, os.O_RDWR)
os.pwrite(file, b"moved", 4096)
os.fsync(file)
os.close(file)
gmblock("detach", disk)
with open("/dev/shm/disk.img", "rb") as image:
    assert os.pread(image.fileno(), 5, 4096) == b"moved"
subprocess.run(["killall", "gmblock"], check=True)
"""

# Another server accepts the lease of a disk after the time of the lease. If it has another disk, the client does not use it.
# Otherwise requests fail for good, and the client returns the lease.
LATE_LEASE = r"""#!/usr/bin/python3
import json
import subprocess
import time

from relay import UP, Relay


def gmblock(*words):
    return subprocess.run(["/lab/gmblock", *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def serve(port, *words):
    server = subprocess.Popen(["/lab/gmblock", "serve", "--listen", f"nbd://127.0.0.1:{port}", "--control", f"/tmp/{port}",
                               "--handshake-timeout", "1h", "--export", "spare=memory:1M", "--export-folder", "/dev/shm", *words],
                              stdout=subprocess.PIPE)
    assert server.stdout.readline()
    return server


def late(port):
    first = serve(port, "--export", "disk=/dev/shm/disk.img")
    second = serve(port + 1)
    relay = Relay(port + 1)
    for number in range(10):
        relay.hold(number, UP)
    disk = gmblock("attach", "--nbd", "--exclusive", "--lease-timeout", "2s", "--connect-timeout", "1h",
                   f"nbd://127.0.0.1:{port},127.0.0.1:{relay.place}/disk")
    first.kill()
    first.wait()
    while len(relay.links) < 2:  # one of them watches the size
        time.sleep(0.05)
    time.sleep(3)  # longer than the lease
    return disk, second, relay


def release(port, image, relay):
    while subprocess.run(["/lab/gmblock", "export", "add", "disk", image, "--server", f"/tmp/{port}"]).returncode != 0:
        time.sleep(0.05)  # the kernel ends the operations of the killed server somewhat later
    for number in range(10):
        relay.release(number)


for name in ("disk", "other"):
    with open(f"/dev/shm/{name}.img", "wb") as image:
        image.truncate(16 << 20)
disk, server, relay = late(10801)
release(10802, "/dev/shm/other.img", relay)
while "different disks" not in subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True, check=True).stdout:
    time.sleep(0.05)
subprocess.run(["/lab/gmblock", "detach", "--force", disk])
server.kill()

disk, server, relay = late(10803)
release(10804, "/dev/shm/disk.img", relay)
while "this client has lost its lease" not in gmblock("attach", "--list"):
    time.sleep(0.05)
leases = [None]
while leases:
    leases = json.loads(gmblock("lease", "list", "--json", "--server", "/tmp/10804"))
    assert all(lease["connections"] > 0 for lease in leases), leases
subprocess.run(["/lab/gmblock", "detach", "--force", disk])
subprocess.run(["killall", "gmblock"], check=True)
"""

# Only ublk devices wait for another daemon.
TAKE_OVER = COMMON + r"""
disk=$(gmblock attach --ublk "$uri")
mkfs.ext4 -q $disk
mount -t ext4 $disk /mnt
cp -a /usr/. /mnt/usr
sums /mnt/usr >/tmp/before
dd if=/dev/urandom of=/mnt/noise bs=64k count=300 conv=fsync &
writer=$!
until [ -s /mnt/noise ]; do sleep 0.05; done
kill -9 $(pid_of)
until gmblock attach --list | grep -q "has died"; do sleep 0.05; done
test "$(gmblock attach --ublk "$uri")" = $disk
wait $writer
sums /mnt/usr >/tmp/after
cmp /tmp/before /tmp/after
umount /mnt
e2fsck -fn $disk
gmblock detach $disk
"""


def run(script, scheme=SCHEME):
    lab = testing.laboratory()
    with lab:
        script = script.replace("KIND", KIND).replace("SCHEME", scheme).replace("GROWS", GROWS)
        guest = lab.guest("guest", KERNEL, script,
                          files=[(GMBLOCK, "/lab/gmblock"), (PYTHON, PYTHON),
                                 *((f"{FUNCTIONAL}/{name}", f"/lab/{name}") for name in ("fake_server.py", "relay.py"))],
                          load=[MODULE], modules=["ext4"], programs=["mkfs.ext4", "e2fsck", "fallocate", "python3"])
        lab.start()
        testing.finish(lab)
        return lab.story(), {name: read(f"{guest.results}/{name}")
                             for name in ("before", "after", "dmesg")}


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def check_file_system(scheme):
    story, results = run(FILE_SYSTEM, scheme)
    assert results["after"] == results["before"], story
    assert results["before"].count("./noise") == 4, results["before"]
    for line in results["dmesg"].splitlines():
        assert "I/O error" not in line and "EXT4-fs error" not in line, line


def test_a_file_system_survives_a_killed_server():
    check_file_system(SCHEME)


def test_a_file_system_over_vhost():
    check_file_system("vhost-user-blk+unix")


def test_the_daemon_and_its_end():
    run(DAEMON)


def test_a_server_that_is_away():
    run(AWAY)


def test_a_flush_slower_than_the_time_limit():
    run(SLOW)


def test_a_server_that_closes_connections():
    run(SHORT)


def test_a_connection_that_ends_late():
    run(LATE_END)


def test_a_lease_that_is_accepted_late():
    run(LATE_LEASE)


def test_another_daemon_takes_over():
    run(TAKE_OVER)


testing.main(test_a_file_system_survives_a_killed_server, test_the_daemon_and_its_end,
             test_a_server_that_is_away, test_a_flush_slower_than_the_time_limit,
             *([test_another_daemon_takes_over] if KIND == "ublk" else []),
             *([test_a_server_that_closes_connections, test_a_connection_that_ends_late, test_a_lease_that_is_accepted_late]
               if KIND == "nbd" else []),
             *([test_a_file_system_over_vhost] if GMB else []))
