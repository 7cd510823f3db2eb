#!/usr/bin/python3
"""flash-crash.py LOAD GMBLOCK KERNEL FAILURES [zones]: a guest that serves a flash store loses its power,
so often, then its server is killed, four times as often. What was answered outlives the server, what
was durable the power, durable writes are whole, nothing is there without all that was before it, and
gmblock check finds nothing wrong (LOAD: flash-load.py).

The disk is qcow2, made new on what the last power failure has left. QEMU keeps the places of new
clusters in memory until a flush, so killing it loses what was written since, as the cache of a disk
does.

With zones it is a zoned NVMe device, and nobody kills the server, which zoned.py does. QEMU forgets
the zones of such a device, but not what is in them: each guest first writes, to empty zones, what the
old ones have up to the first block of zeroes. The store writes none, so that this is a beginning of
each zone that has all that was durable, or all that it had before a reset."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import testing
from vmlab import LabError, Unavailable

LOAD, GMBLOCK, KERNEL = sys.argv[1:4]
FAILURES = int(sys.argv[4])
ZONES = sys.argv[5:] == ["zones"]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
DISK_BYTES = 24 << 20
KILLS = 0 if ZONES else 4 * FAILURES
TIME_LIMIT = 400 + 100 * FAILURES
NAME = "/dev/nvme0n1" if ZONES else "/dev/vda"
SCRIPT = f"{'SEGMENT=384K OLD=/dev/vda ' * ZONES} exec python3 flash-load.py {NAME} {KILLS} {FAILURES} $(lab-wait boot)"


class Disk:
    """base: what is on the medium; path: with what its cache has."""

    def __init__(self, folder):
        if not shutil.which("qemu-img"):
            raise Unavailable("qemu-img is not installed (Debian package qemu-utils)")
        self.base, self.path = os.path.join(folder, "base"), os.path.join(folder, "disk.qcow2")
        with open(self.base, "wb") as file:
            file.truncate(DISK_BYTES)
        self.renew()

    def image(self, *words):
        subprocess.run(["qemu-img", *words], check=True, stdout=subprocess.DEVNULL)

    def renew(self):
        if os.path.exists(self.path):
            self.image("commit", "-q", "-f", "qcow2", self.path)
        self.image("create", "-q", "-f", "qcow2", "-b", self.base, "-F", "raw", self.path)

    def options(self):
        return ["-drive", f"if=virtio,format=qcow2,file={self.path}"]


class Zones(Disk):
    def renew(self):
        if os.path.exists(self.path):
            self.image("convert", "-f", "qcow2", "-O", "raw", self.path, self.base)
        self.image("create", "-q", "-f", "qcow2", self.path, str(DISK_BYTES))

    def options(self):
        return ["-drive", f"if=virtio,format=raw,readonly=on,file={self.base}",
                "-drive", f"if=none,id=zones,format=qcow2,file={self.path}",
                "-device", "nvme,serial=zones,id=nvme0",
                "-device", "nvme-ns,drive=zones,bus=nvme0,zoned=on,"
                "zoned.zone_size=512K,zoned.zone_capacity=384K,zoned.max_open=3,zoned.max_active=3,"
                "logical_block_size=4096,physical_block_size=4096"]


def last(guest, pattern):
    return re.findall(pattern, guest.output)[-1]


def test_kills_and_power_failures_lose_nothing():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory(TIME_LIMIT) as lab:
        disk = Zones(folder) if ZONES else Disk(folder)
        guest = lab.guest("one", KERNEL, SCRIPT, memory=1024, load=["virtio_blk", "nvme"],
                          files=[(GMBLOCK, "/lab/gmblock"),
                                 (LOAD, "/lab/flash-load.py"),
                                 (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py"),
                                 ("/usr/lib/python3.11", "/usr/lib/python3.11")],
                          programs=["python3"],
                          qemu=disk.options())
        lost = 0
        past = "0 0"
        lab.start()
        for boot in range(FAILURES):
            lab.send("past", past)
            lab.send("boot", boot)
            lab.wait_signal(f"load-{boot}")
            guest.kill()
            if guest.failure != "killed":
                raise LabError(lab.story())
            past = " ".join(last(guest, r"answered (\d+) durable (\d+)\n"))
            lost += int(last(guest, r"lost (\d)\n"))
            disk.renew()
            del lab.signals["boot"]
            guest.start()
        lab.send("past", past)
        lab.send("boot", FAILURES)
        testing.finish(lab)
        lost += int(last(guest, r"lost (\d)\n"))
        print(f"{FAILURES} power failures, {lost} of them lost answers; "
              f"{KILLS} kills; {past.split()[0]} batches")
        # A power failure that finds an empty cache loses nothing: one or two of them prove nothing about the disk.
        assert lost > 0 or FAILURES < 5, "no power failure has lost anything: the test has not seen one"


testing.main(test_kills_and_power_failures_lose_nothing)
