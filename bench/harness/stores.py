"""The disks of bench/overlap: what an export is made of, and what such a disk gives locally.

What: each store has a path (with the bytes that the export must show), keys for the export, and
rate(bytes) where it is known beforehand, for disks made slow on purpose.  open() makes what it
needs.
Ownership: Disks holds what lies below; all of it goes when this process ends, however it ends: loop
devices see rig.py, the file on the machine's disk has no name but that of our descriptor.
Errors: Unavailable with the reason.
"""

import os
import shutil
import tempfile

from . import rig

MIB = 1 << 20
# File systems whose files are memory: not "the machine's disk".
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "rootfs", "devtmpfs")


class DirectStore:
    """A disk of this machine, read around the page cache, as fast as it is."""

    keys = "mode=direct"
    members = 1

    def __init__(self, disks):
        self._disks = disks

    def rate(self, _bytes):
        return None

    def open(self):
        """Makes the disk, if it is not there."""
        assert self.path


class LoopStore(DirectStore):
    """A loop device over a file in memory."""

    name = "loop"
    title = "loop device over tmpfs"

    @property
    def path(self):
        return self._disks.loop().path


class FileStore(DirectStore):
    """A file on the machine's disk."""

    name = "file"
    title = "file on the machine's disk"

    @property
    def path(self):
        return self._disks.file()


class PacedStore:
    """As slow as so many members of a striped disk, by the server's own store filter."""

    def __init__(self, disks, name, members, member_rate, chunk):
        self._disks = disks
        self.name = name
        self.members = members
        self.member_rate = member_rate
        self.chunk = chunk
        self.title = "%d striped members of %g MB/s each, chunk %d KiB" % (
            members, member_rate / 1e6, chunk >> 10) if members > 1 else \
            "one disk of %g MB/s" % (member_rate / 1e6)
        self.keys = "mode=direct,pace=%d" % member_rate
        if members > 1:
            self.keys += ":members=%d:chunk=%d" % (members, chunk)

    @property
    def path(self):
        return self._disks.loop().path

    def rate(self, size):
        """Of requests of that size, one at a time and aligned to it: members it can use."""
        used = size // self.chunk if self.members > 1 else 1
        return self.member_rate * max(1, min(self.members, used))

    def open(self):
        self._disks.loop()


class Disks:
    """What the stores lie on, made when first asked for."""

    def __init__(self, size_bytes, folder):
        self._size_bytes = size_bytes
        self._folder_of_file = folder
        self._loop = None
        self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._loop is not None:
            self._loop.close()
        if self._file is not None:
            self._file.close()

    def loop(self):
        if self._loop is None:
            self._loop = rig.Disk(self._size_bytes)
        return self._loop

    def file(self):
        if self._file is None:
            base = self._folder_of_file
            kind = file_system_of(base)
            if kind in MEMORY_FILE_SYSTEMS:
                raise rig.Unavailable("%s is in memory (%s): name a folder on a disk with --folder"
                                      % (base, kind))
            if shutil.disk_usage(base).free < 2 * self._size_bytes:
                raise rig.Unavailable("there is too little room in %s (--folder)" % base)
            self._file = cold_file(base, self._size_bytes)
        return self._file.name


def cold_file(folder, size_bytes):
    """Random bytes, on the disk and not in the page cache; removed when it is closed."""
    made = tempfile.NamedTemporaryFile(prefix="gmblock-bench-", dir=folder)
    rig.fill(made.name, size_bytes)
    os.fsync(made.fileno())
    os.posix_fadvise(made.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return made


def file_system_of(folder):
    """The type of the file system that the folder lies on, as the mount table has it."""
    device = os.stat(folder).st_dev
    wanted = "%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return "unknown"


def all_stores(disks, rate):
    """rate: bytes per second of the paced ones, all members together."""
    return [
        LoopStore(disks),
        FileStore(disks),
        PacedStore(disks, "single", 1, rate, 0),
        PacedStore(disks, "raid4", 4, rate // 4, 256 << 10),
        PacedStore(disks, "raid8", 8, rate // 8, 128 << 10),
    ]
