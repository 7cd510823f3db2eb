#!/usr/bin/python3
"""A file cut short while served gives EIO to who asks past its end, and to nobody else."""

import os

from captive import MIB, Gmblock, connect, expect_errno, main, make_random_file, require_libnbd

SIZE = 32 * MIB


def check(folder, mode):
    require_libnbd()
    image = make_random_file(os.path.join(folder, "disk"), SIZE)
    other = make_random_file(os.path.join(folder, "other"), SIZE)
    with open(image, "rb") as data:
        contents = data.read()
    with open(other, "rb") as data:
        other_contents = data.read()
    exports = {"cut": "%s,mode=%s" % (image, mode), "other": "%s,mode=%s" % (other, mode)}
    with Gmblock(folder, exports) as server:
        victim, neighbour, elsewhere = (connect(server.uri(name))
                                        for name in ("cut", "cut", "other"))
        assert victim.pread(SIZE, 0) == contents
        os.truncate(image, 16 * MIB)
        expect_errno("EIO", victim.pread, 4096, 24 * MIB)
        expect_errno("EIO", victim.pread, 2 * MIB, 15 * MIB)
        expect_errno("EIO", victim.pread, 8192, 16 * MIB - 4096)
        assert victim.pread(4096, 8 * MIB) == contents[8 * MIB:8 * MIB + 4096]
        assert neighbour.pread(16 * MIB, 0) == contents[:16 * MIB]
        assert elsewhere.pread(SIZE, 0) == other_contents
        elsewhere.pwrite(b"w" * 4096, 24 * MIB)
        elsewhere.flush()
        for handle in (victim, neighbour, elsewhere):
            handle.shutdown()
        server.assert_alive()


def test_cached(folder):
    check(folder, "cached")


def test_ram(folder):
    check(folder, "direct")


if __name__ == "__main__":
    main()
