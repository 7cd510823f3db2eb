#!/usr/bin/python3
"""vhost-migration.py GMBLOCK KERNEL ROUNDS: a guest whose root file system is a vhost-user-blk disk. It moves ROUNDS times
from one QEMU to the next (live migration) while fio writes and verifies the raw part of the disk, and after each move the
server is upgraded. Programs stay in the page cache: an emulated processor does not notice that another process replaces
code in a page, and would go on with the old code."""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile

import moving
import testing

GMBLOCK, KERNEL = sys.argv[1:3]
ROUNDS = int(sys.argv[3])
MIB = 1 << 20
DISK_BYTES = 192 * MIB
MEMORY_MIB = 512

SCRIPT = r"""
disk=/dev/vda
mkfs.ext4 -q $disk 128M
mount -t ext4 $disk /mnt
tar -C / -cf - bin sbin lib lib64 usr etc lab root tmp 2>/dev/null | tar -C /mnt -xf -
mkdir -p /mnt/proc /mnt/sys /mnt/dev /mnt/tmp
mount -t proc proc /mnt/proc
mount -t sysfs sysfs /mnt/sys
mount -t devtmpfs devtmpfs /mnt/dev
head -c 8000000 /dev/urandom >/mnt/noise
cat >/mnt/work <<'END'
fail() { echo "FAILED: $1"; exit 1; }
exec >/dev/ttyS0 2>&1
grep -q ' / / .* - ext4 /dev/vda' /proc/self/mountinfo || fail "the root is not the disk"
sha256sum </noise >/sum
sync
pass=0
while :; do
	fio --name=verify --filename=/dev/vda --offset=144M --size=24M --direct=1 --ioengine=libaio --iodepth=16 \
		--rw=randwrite --bssplit=4k/70:64k/30 --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$pass \
		--allow_mounted_write=1 --output=/tmp/fio || { cat /tmp/fio; fail fio; }
	grep -q "READ:" /tmp/fio || { cat /tmp/fio; fail "fio has not verified"; }
	test "$(dd if=/noise bs=1M iflag=direct 2>/dev/null | sha256sum)" = "$(cat /sum)" || fail "the root file system"
	pass=$((pass + 1))
	echo "PASS $pass"
done
END
cd /mnt
mount --move . /
exec chroot . /bin/sh /work
"""


class Host(moving.Host):
    """An image, the server that has it, and the machines."""

    def __init__(self, folder, guest):
        super().__init__(folder, guest, GMBLOCK)
        with open(self.path("disk.img"), "wb") as image:
            image.truncate(DISK_BYTES)
        os.mkdir(self.path("sockets"))
        with open(self.path("log"), "ab") as log:
            server = subprocess.Popen(
                [GMBLOCK, "serve", "--export", f"vm={self.path('disk.img')}", "--control", self.path("control"),
                 "--listen", f"vhost-user-blk+unix:///?folder={self.path('sockets')}"], stdout=subprocess.PIPE,
                stderr=log)
        assert server.stdout.readline(), self.story()

    def disk(self, number):
        return ["-object", f"memory-backend-memfd,id=memory,size={moving.memory_kib(MEMORY_MIB)}K,share=on",
                "-chardev", f"socket,id=disk,path={self.path('sockets')}/vm,reconnect=1",
                "-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"]

    def upgrade(self):
        subprocess.run([GMBLOCK, "upgrade", "--all-or-nothing", self.path("control")], check=True,
                       stdout=subprocess.DEVNULL)
        counters = self.stats()["counters"]
        assert (counters["connections_accepted"], counters["connections_taken_over"]) == (1, 1), counters

    def end(self):
        super().end()
        with contextlib.suppress(subprocess.CalledProcessError):
            os.kill(self.stats()["pid"], signal.SIGKILL)


def test_a_guest_moves():
    with tempfile.TemporaryDirectory(prefix="gmblock-vhost-") as folder, testing.laboratory() as lab:
        guest = lab.guest("guest", KERNEL, SCRIPT, load=["virtio_blk"], modules=["ext4"], memory=MEMORY_MIB, cpus=2,
                          machine="q35,memory-backend=memory", programs=["fio", "mkfs.ext4"])
        guest.build()
        with Host(folder, guest) as host:
            machine = moving.Machine(host, 0)
            machine.go_on()
            for number in range(1, ROUNDS + 1):
                machine = host.migrate(machine, number)
                machine.go_on()
                host.upgrade()
                machine.go_on()
                errors = host.stats()["counters"]["errors"]
                assert errors == 0, errors
            print("passes:", machine.passes())


testing.main(test_a_guest_moves)
