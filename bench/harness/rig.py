"""The disk every server exports: a loop device over a file in a tmpfs of its own.

What: Disk() makes the device and fills it with random bytes; cold() and hot() put the page
cache of the device into a known state; device_bytes_read() counts what was really read from it.
Ownership: as soon as the device is attached, the backing file is unlinked, its tmpfs is
detached and the device is marked for removal at its last close.  The kernel thus removes
everything when this process ends, however it ends; close() only does it earlier.
Errors: Unavailable if the machine cannot do it (not root, no loop device); OSError otherwise.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import subprocess
import tempfile

BLKFLSBUF = 0x1261
LOOP_CLR_FD = 0x4C01
SECTOR_BYTES = 512
FILL_CHUNK_BYTES = 16 << 20
MNT_DETACH = 2


class Unavailable(Exception):
    """Something the benchmark needs is not there; the text says what and why."""


def _mount(fs_type, target, options):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(fs_type.encode(), target.encode(), fs_type.encode(), 0, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def umount_lazy(target):
    """Detaches what is mounted there; it ends with its last user."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(target.encode(), MNT_DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def fill(path, size_bytes):
    """Random bytes; one random chunk is rotated per repeat so that no two chunks are equal."""
    source = os.urandom(min(size_bytes, FILL_CHUNK_BYTES))
    done = 0
    with open(path, "wb", buffering=0) as out:
        while done < size_bytes:
            cut = random.randrange(len(source))
            chunk = (source[cut:] + source[:cut])[: size_bytes - done]
            out.write(chunk)
            done += len(chunk)


@contextlib.contextmanager
def memory_file(size_bytes):
    """Random bytes in a tmpfs: every read finds its payload, and none of it is a hole."""
    with tempfile.NamedTemporaryFile(prefix="gmblock-bench-", dir="/dev/shm") as image:
        fill(image.name, size_bytes)
        yield image.name


def remove_at_last_close(loop_device):
    """For a device that this process has open: from a second opener, the request only marks the device."""
    second = os.open(loop_device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(second, LOOP_CLR_FD, 0)
    finally:
        os.close(second)


class Disk:
    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
        self.path = None
        self._fd = -1
        if os.geteuid() != 0:
            raise Unavailable("needs root: a loop device has to be created (losetup)")
        if shutil.which("losetup") is None:
            raise Unavailable("needs losetup (package mount)")
        if not os.path.exists("/dev/loop-control"):
            raise Unavailable("needs /dev/loop-control: there are no loop devices here")
        self._create()

    def _create(self):
        folder = tempfile.mkdtemp(prefix="gmblock-bench-")
        mounted = False
        try:
            try:
                _mount("tmpfs", folder, "size=%d" % (self.size_bytes + (16 << 20)))
            except OSError as error:
                raise Unavailable("cannot mount a tmpfs: %s" % error) from error
            mounted = True
            image = os.path.join(folder, "disk")
            fill(image, self.size_bytes)
            result = subprocess.run(["losetup", "--find", "--show", image],
                                    capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise Unavailable("losetup failed: %s" % result.stderr.strip())
            self.path = result.stdout.strip()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            remove_at_last_close(self.path)
        finally:
            # The device keeps the file, and the file keeps the detached tmpfs.
            if mounted:
                umount_lazy(folder)
            os.rmdir(folder)

    def close(self):
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def settle(self):
        """Writes back what the last run left dirty, so that the next one does not pay for it."""
        os.fsync(self._fd)

    def cold(self):
        """No block of the device in the page cache; the tmpfs below it keeps the contents."""
        self.settle()
        fcntl.ioctl(self._fd, BLKFLSBUF, 0)
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
            control.write("1\n")
        fcntl.ioctl(self._fd, BLKFLSBUF, 0)

    def hot(self):
        """Every block of the device in the page cache (our open descriptor keeps it there)."""
        self.settle()
        buffer = bytearray(1 << 20)
        offset = 0
        while offset < self.size_bytes:
            count = os.preadv(self._fd, [buffer], offset)
            if count <= 0:
                raise OSError("short read of %s at %d" % (self.path, offset))
            offset += count

    def device_bytes_read(self):
        """Bytes read from the device itself since it exists: page cache hits do not count."""
        name = os.path.basename(self.path)
        with open("/sys/block/%s/stat" % name, encoding="ascii") as stat:
            return int(stat.read().split()[2]) * SECTOR_BYTES
