"""A block device that is as slow as a disk with heads, and a limit for the page cache above it.

What: SeekDisk() is a loop device over the file of bench/seek_disk.c: all servers can use it, with the
page cache or without. CacheLimit() is a memory control group, for servers.
Ownership: the file is mounted over by the program and detached at once, and the device is removed at its last
close: the kernel removes everything when this process ends, however it ends, and the program with it. The
control group is removed by close(); it stays behind after kill -9.
Errors: rig.Unavailable if the machine cannot do it; OSError otherwise.
"""

import contextlib
import errno
import fcntl
import os
import subprocess
import tempfile
import time

from . import rig

READ_AHEAD_KIB = 512  # the papers' servers
PAPERS_RATE, PAPERS_SEEK_US = 150 * 10 ** 6, 8000  # the disk on which the papers' patterns run
NICE = -15  # a disk does not wait for processors
CGROUPS = "/sys/fs/cgroup"
PATIENCE_S = 120


class SeekDisk:
    def __init__(self, program, size_bytes, rate, seek_us):
        if os.geteuid() != 0:
            raise rig.Unavailable("needs root: a loop device has to be created (losetup)")
        if not os.path.exists("/dev/fuse"):
            raise rig.Unavailable("needs /dev/fuse")
        with tempfile.NamedTemporaryFile(prefix="gmblock-bench-") as file:
            self._program = subprocess.Popen(
                [program, file.name, str(size_bytes), str(rate), str(seek_us)], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            if not self._program.stdout.readline():
                raise rig.Unavailable(self._program.communicate()[1].strip())
            try:
                if os.getpriority(os.PRIO_PROCESS, 0) > NICE:
                    os.setpriority(os.PRIO_PROCESS, self._program.pid, NICE)
                self._attach(file.name)
            finally:
                rig.umount_lazy(file.name)

    def _attach(self, path):
        done = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", path], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise rig.Unavailable("losetup failed: %s" % done.stderr.strip())
        self.path = done.stdout.strip()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        rig.remove_at_last_close(self.path)
        for key, value in (("rotational", 1), ("read_ahead_kb", READ_AHEAD_KIB)):
            with open("/sys/block/%s/queue/%s" % (os.path.basename(self.path), key), "w", encoding="ascii") as file:
                file.write("%d" % value)

    def cold(self):
        """No block of the device in the page cache."""
        fcntl.ioctl(self._fd, rig.BLKFLSBUF, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._fd)
        self._program.wait()
        self._program.stdout.close()
        self._program.stderr.close()


class CacheLimit:
    """Of both versions of control groups."""

    def __init__(self, limit_bytes):
        legacy = os.path.isdir(os.path.join(CGROUPS, "memory"))
        self._folder = os.path.join(CGROUPS, "memory" if legacy else "", "gmblock-bench-%d" % os.getpid())
        try:
            os.mkdir(self._folder)
            self._write("memory.limit_in_bytes" if legacy else "memory.max", limit_bytes)
        except OSError as error:
            self.close()
            raise rig.Unavailable("needs a memory control group: %s" % error) from error

    def _write(self, name, value):
        with open(os.path.join(self._folder, name), "w", encoding="ascii") as file:
            file.write("%d" % value)

    def add(self, pids):
        """What they have in memory already does not count. Some servers have processes that are about to end."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._write("cgroup.procs", pid)

    def close(self):
        """A server that was killed has threads for a moment longer."""
        deadline = time.monotonic() + PATIENCE_S
        while os.path.isdir(self._folder):
            try:
                os.rmdir(self._folder)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
