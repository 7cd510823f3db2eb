#!/usr/bin/python3
"""flash-log-writes.py GMBLOCK KERNEL: ext4 on a flash store on dm-log-writes, which records all that
the store writes to its disk. The disk is made anew as it was at each flush, alone and with any part
of what came before the next one: gmblock check finds nothing wrong, and the file system has all
files that had been made durable.

The guest records; the machine of the test plays."""
import collections
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import testing
from vmlab import Unavailable

GMBLOCK, KERNEL = sys.argv[1:3]
DISK_BYTES, LOG_BYTES = 48 << 20, 512 << 20
FILES = 40
SECTOR = 512
MAGIC, FLUSH, FUA, DISCARD, MARK = 0x6A736677736872, 1, 2, 4, 8

# A file says its number; each fourth one is removed again.
SCRIPT = f"""
sectors=$(blockdev --getsz /dev/vda)
dmsetup create --noudevsync logged --table "0 $sectors log-writes /dev/vda /dev/vdb"
mark() {{ dmsetup message logged 0 mark "$1"; }}
gmblock create --segment=256K flash:/dev/dm-0
gmblock serve flash:/dev/dm-0 --listen 'nbd+unix:///?socket=/tmp/s' >uri &
server=$!
until [ -s uri ]; do kill -0 $server; sleep 0.1; done
nbd-client -N '' -unix /tmp/s /dev/nbd0
mkfs.ext4 -q -b 4096 -J size=4 /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt
sync
mark mounted
for i in $(seq {FILES}); do
	yes "file $i" | head -n $((i * 700)) >/mnt/$i
	sync
	mark "$i"
	if [ $((i % 4)) = 0 ]; then rm /mnt/$((i - 1)); fi
done
umount /mnt
nbd-client -d /dev/nbd0
kill $server
wait $server
dmsetup remove --noudevsync logged
"""

Entry = collections.namedtuple("Entry", "flags offset length data mark")


def entries(path):
    """What dm-log-writes has recorded; data: where it is in the log."""
    with open(path, "rb") as log:
        magic, version, count, sector = struct.unpack("<QQQI", log.read(28))
        assert (magic, version, sector) == (MAGIC, 1, SECTOR), (magic, version, sector)
        at = SECTOR
        for _ in range(count):
            log.seek(at)
            first, sectors, flags, length = struct.unpack("<QQQQ", log.read(32))
            yield Entry(flags, first * SECTOR, sectors * SECTOR, at + SECTOR,
                        log.read(length).rstrip(b"\0").decode() if flags & MARK else None)
            at += SECTOR + (0 if flags & (DISCARD | MARK) else sectors * SECTOR)


def play(entry, log, disk):
    """Do it to the disk."""
    disk.seek(entry.offset)
    if entry.flags & DISCARD:
        disk.write(bytes(entry.length))
    elif not entry.flags & MARK and entry.length:
        log.seek(entry.data)
        disk.write(log.read(entry.length))
    disk.flush()


def call(*words, status=(0,)):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    assert done.returncode in status, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout


def look(disk, folder, durable, formatted):
    """Recover a copy of the disk and see what is there."""
    copy, contents = os.path.join(folder, "copy"), os.path.join(folder, "contents")
    shutil.copyfile(disk, copy)
    assert json.loads(call(GMBLOCK, "check", "--json", copy))["faults"] == []
    call(GMBLOCK, "serve", "flash:" + copy, "--listen",
         f"nbd+unix:///?socket={folder}/s", "--run",
         f'"{GMBLOCK}" copy --no-progress "$uri" "{contents}"')
    if formatted:
        call("e2fsck", "-fy", contents, status=(0, 1))
        call("e2fsck", "-fn", contents)
    for number in range(1, durable + 1):
        # One that has been removed again may be there as a whole.
        text = call("debugfs", "-R", f"cat /{number}", contents)
        gone = number % 4 == 3 and durable > number
        assert text == f"file {number}\n" * (number * 700) or (gone and text == ""), \
            f"after file {durable}: file {number} is {text[:40]!r}, {len(text)} bytes"
    os.unlink(contents)


def test_all_that_was_durable_is_there_at_each_flush():
    for program in ("e2fsck", "debugfs"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed (Debian package e2fsprogs)")
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        guest = lab.guest("one", KERNEL, SCRIPT, memory=768, files=[(GMBLOCK, "/lab/gmblock")],
                          packages=["libdevmapper1.02.1", "dmsetup"],
                          programs=["nbd-client", "mkfs.ext4"], load=["nbd"],
                          modules=["ext4", "dm_mod", "dm_log_writes"],
                          disks=[DISK_BYTES, LOG_BYTES])
        lab.start()
        testing.finish(lab)
        recorded = list(entries(guest.path("disk1")))
        flushes = [at for at, entry in enumerate(recorded) if entry.flags & (FLUSH | FUA)]
        chosen = random.Random(1)
        durable, formatted, looks = 0, False, 0
        disk = os.path.join(folder, "disk")
        with open(guest.path("disk1"), "rb") as log, open(disk, "w+b") as target:
            target.truncate(DISK_BYTES)
            for at, entry in enumerate(recorded):
                play(entry, log, target)
                if entry.mark:
                    formatted = formatted or entry.mark == "mounted"
                    durable = int(entry.mark) if re.fullmatch(r"\d+", entry.mark) else durable
                if not entry.flags & (FLUSH | FUA) or at < flushes[2]:
                    continue  # the store is not made yet
                looks += 1
                look(disk, folder, durable, formatted)
                end = next((later for later in flushes if later > at), len(recorded))
                part = os.path.join(folder, "part")
                shutil.copyfile(disk, part)
                with open(part, "r+b") as some:
                    for later in recorded[at + 1:end]:
                        if chosen.random() < 0.5:
                            play(later, log, some)
                look(part, folder, durable, formatted)
        assert durable == FILES, f"the last mark that was found is {durable}"
        print(f"{len(recorded)} writes, {looks} flushes")


testing.main(test_all_that_was_durable_is_there_at_each_flush)
