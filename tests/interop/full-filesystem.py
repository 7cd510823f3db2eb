#!/usr/bin/python3
"""A write that finds the filesystem full gets ENOSPC, and the rest still works."""

import os
import subprocess

from captive import MIB, Gmblock, Skip, connect, expect_errno, main, make_file, pattern, \
    require_libnbd, require_root


class SmallFilesystem:
    """A tmpfs with room for little; unmounted when left."""

    def __init__(self, folder, size):
        self.path = os.path.join(folder, "small")
        self.size = size

    def __enter__(self):
        os.mkdir(self.path)
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % self.size, "none",
                                 self.path], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Skip("cannot mount a tmpfs: " + result.stderr.strip())
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], check=True)


def test_write_gets_enospc(folder):
    require_libnbd()
    require_root("a small tmpfs is mounted")
    with SmallFilesystem(folder, 8 * MIB) as small:
        image = make_file(os.path.join(small, "disk"), 64 * MIB)
        with Gmblock(folder, {"": image}) as server:
            handle, other = connect(server.uri()), connect(server.uri())
            handle.pwrite(pattern(0, 4 * MIB), 0)
            expect_errno("ENOSPC", handle.pwrite, pattern(0, 8 * MIB), 16 * MIB)
            expect_errno("ENOSPC", handle.pwrite, pattern(0, 8 * MIB), 32 * MIB)
            assert handle.pread(4 * MIB, 0) == pattern(0, 4 * MIB)
            assert other.pread(4 * MIB, 0) == pattern(0, 4 * MIB)
            # Room made by a trim can be written again.
            handle.trim(64 * MIB - 4 * MIB, 4 * MIB)
            other.pwrite(pattern(0, MIB, seed=2), 48 * MIB)
            assert handle.pread(MIB, 48 * MIB) == pattern(0, MIB, seed=2)
            handle.shutdown()
            other.shutdown()


if __name__ == "__main__":
    main()
