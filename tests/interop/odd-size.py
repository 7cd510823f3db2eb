#!/usr/bin/python3
"""An image of any size in bytes is served exactly, down to its last byte."""

import os

from captive import MIB, ODD_BYTES, Gmblock, connect, expect_errno, main, make_file, pattern, \
    require_libnbd

SIZES = (1, 511, 513, 4095, 4097, MIB + 1, ODD_BYTES)


def check(folder, mode):
    require_libnbd()
    for size in SIZES:
        tail = min(size, 70001)
        image = make_file(os.path.join(folder, "disk"), size, pattern(size - tail, tail),
                          size - tail)
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            handle = connect(server.uri(), strict=False)
            assert handle.get_size() == size, handle.get_size()
            assert handle.pread(tail, size - tail) == pattern(size - tail, tail), size
            assert handle.pread(1, size - 1) == pattern(size - 1, 1), size
            expect_errno("EINVAL", handle.pread, 1, size)
            expect_errno("EINVAL", handle.pread, 2, size - 1)
            handle.pwrite(b"Z", size - 1)
            count = min(size, 1000)
            handle.pwrite(b"Y" * count, size - count)
            assert handle.pread(count, size - count) == b"Y" * count, size
            expect_errno("ENOSPC", handle.pwrite, b"xx", size - 1)
            handle.zero(min(size, 3), size - min(size, 3))
            handle.flush()
            handle.shutdown()
        assert os.path.getsize(image) == size, ("the file changed its size", size)
        with open(image, "rb") as data:
            data.seek(size - count)
            wanted = (b"Y" * count)[:-min(size, 3)] + bytes(min(size, 3))
            assert data.read() == wanted, size


def test_cached(folder):
    check(folder, "cached")


def test_ram(folder):
    check(folder, "direct")


def test_cached_reads_with_ram_writes(folder):
    check(folder, "cached,write-mode=direct")


if __name__ == "__main__":
    main()
