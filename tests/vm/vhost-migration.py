#!/usr/bin/python3
"""vhost-migration.py GMBLOCK KERNEL ROUNDS: a guest whose root file system is a vhost-user-blk disk. It moves ROUNDS times
from one QEMU to the next (live migration) while fio writes and verifies the raw part of the disk, and after each move the
server is upgraded. Programs stay in the page cache: an emulated processor does not notice that another process replaces
code in a page, and would go on with the old code. Only the serial console tells what the guest does, as the laboratory
talks with one QEMU."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import testing
from vmlab.monitor import connect

GMBLOCK, KERNEL = sys.argv[1:3]
ROUNDS = int(sys.argv[3])
MIB = 1 << 20
DISK_BYTES = 192 * MIB
MEMORY_MIB = 512
WAIT_SECONDS = 120

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


class Machine:
    """One QEMU process of the guest."""

    def __init__(self, place, number, *arguments):
        self.place, self.monitor = place, None
        self.console = place.path(f"console{number}")
        monitor = place.path(f"monitor{number}")
        with open(place.path("qemu.log"), "ab") as log:
            self.process = subprocess.Popen(
                [*place.command(self.console), "-qmp", f"unix:{monitor},server=on,wait=off", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        place.machines.append(self)
        self.monitor = connect(monitor, self.process)

    def text(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.console, encoding="utf-8", errors="replace") as file:
                return file.read()
        return ""

    def passes(self):
        text = self.text()
        assert not re.search(r"FAILED|I/O error|EXT4-fs error|Kernel panic|BUG:", text), self.place.story()
        assert self.process.poll() is None, self.place.story()
        found = re.findall(r"PASS (\d+)", text)
        return int(found[-1]) if found else 0

    def go_on(self):
        """Until a pass has ended that began after now."""
        goal = self.passes() + 2
        first = not self.passes()
        self.place.wait_for(lambda: self.passes() >= (1 if first else goal) and
                            len(re.findall(r"PASS \d+", self.text())) >= 2)

    def end(self):
        if self.monitor:
            self.monitor.close()
        self.process.kill()
        self.process.wait()


class Place:
    """An image, the server that has it, and the machines."""

    def __init__(self, folder, guest):
        self.folder, self.guest, self.machines = folder, guest, []
        with open(self.path("disk.img"), "wb") as image:
            image.truncate(DISK_BYTES)
        os.mkdir(self.path("sockets"))
        with open(self.path("log"), "ab") as log:
            server = subprocess.Popen(
                [GMBLOCK, "serve", "--export", f"vm={self.path('disk.img')}", "--control", self.path("control"),
                 "--listen", f"vhost-user-blk+unix:///?folder={self.path('sockets')}"], stdout=subprocess.PIPE,
                stderr=log)
        assert server.stdout.readline(), self.story()

    def path(self, name):
        return os.path.join(self.folder, name)

    def wait_for(self, condition):
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < end, self.story()
            time.sleep(0.1)

    def story(self):
        lines = []
        for name in ("log", "qemu.log", *(os.path.basename(machine.console) for machine in self.machines[-2:])):
            with contextlib.suppress(FileNotFoundError):
                with open(self.path(name), encoding="utf-8", errors="replace") as file:
                    lines += [f"--- {name}", *file.read().splitlines()[-40:]]
        return "\n".join(lines)

    def command(self, console):
        """That of the guest, but without the channels to the laboratory."""
        command = self.guest.command()
        for i, word in enumerate(command):
            found = re.match(r"(?:file|socket),id=(\w+),path=", word)
            if found:
                command[i] = f"file,id=console,path={console}" if found[1] == "console" else f"null,id={found[1]}"
            elif word.startswith("stream,id=net,"):
                command[i] = "hubport,id=net,hubid=0"
        return [*command, "-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on",
                "-chardev", f"socket,id=disk,path={self.path('sockets')}/vm,reconnect=1",
                "-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"]

    def stats(self):
        return json.loads(subprocess.run([GMBLOCK, "stats", "--json", self.path("control")], check=True,
                                         stdout=subprocess.PIPE).stdout)

    def upgrade(self):
        subprocess.run([GMBLOCK, "upgrade", "--all-or-nothing", self.path("control")], check=True,
                       stdout=subprocess.DEVNULL)
        counters = self.stats()["counters"]
        assert (counters["connections_accepted"], counters["connections_taken_over"]) == (1, 1), counters

    def migrate(self, machine, number):
        channel = self.path(f"migration{number}")
        target = Machine(self, number, "-incoming", f"unix:{channel}")
        machine.monitor.migrate(channel)
        machine.end()
        return target

    def end(self):
        for machine in self.machines:
            machine.end()
        with contextlib.suppress(subprocess.CalledProcessError):
            os.kill(self.stats()["pid"], signal.SIGKILL)


def test_a_guest_moves():
    with tempfile.TemporaryDirectory(prefix="gmblock-vhost-") as folder, testing.laboratory() as lab:
        guest = lab.guest("guest", KERNEL, SCRIPT, load=["virtio_blk"], modules=["ext4"], memory=MEMORY_MIB, cpus=2,
                          machine="q35,memory-backend=memory", programs=["fio", "mkfs.ext4"])
        guest.build()
        place = Place(folder, guest)
        try:
            machine = Machine(place, 0)
            machine.go_on()
            for number in range(1, ROUNDS + 1):
                machine = place.migrate(machine, number)
                machine.go_on()
                place.upgrade()
                machine.go_on()
                errors = place.stats()["counters"]["errors"]
                assert errors == 0, errors
            print("passes:", machine.passes())
        except Exception:
            print(place.story())
            raise
        finally:
            place.end()


testing.main(test_a_guest_moves)
