#!/usr/bin/python3
"""Requests the export cannot serve get the right error and harm nothing."""

import os

from captive import MIB, Gmblock, connect, expect_errno, main, make_random_file, require_libnbd

SIZE = 8 * MIB


def with_handle(folder, check, export=""):
    require_libnbd()
    image = make_random_file(os.path.join(folder, "disk"), SIZE)
    with open(image, "rb") as data:
        contents = data.read()
    with Gmblock(folder, {"": image + export}) as server:
        handle = connect(server.uri(), strict=False)
        check(handle)
        assert handle.pread(SIZE, 0) == contents
        handle.shutdown()
        server.assert_alive()
    with open(image, "rb") as data:
        assert data.read() == contents, "the disk was changed"


def test_past_the_end(folder):
    def check(handle):
        for offset in (SIZE, SIZE - 1, 1 << 40, (1 << 63) - 1):
            expect_errno("EINVAL", handle.pread, 512, offset)
            expect_errno("ENOSPC", handle.pwrite, b"x" * 512, offset)
            expect_errno("ENOSPC", handle.zero, 512, offset)
            expect_errno("EINVAL", handle.trim, 512, offset)
            expect_errno("EINVAL", handle.cache, 512, offset)

    with_handle(folder, check)


def test_large_write_is_refused_only_once_it_was_sent(folder):
    # libnbd does not know a request yet that it is still sending: an early answer kills it.
    def check(handle):
        for _ in range(3):
            expect_errno("ENOSPC", handle.pwrite, bytes(24 * MIB), SIZE - MIB)

    with_handle(folder, check)


def test_large_write_to_a_read_only_export(folder):
    def check(handle):
        for _ in range(3):
            expect_errno("EPERM", handle.pwrite, bytes(SIZE), 0)

    with_handle(folder, check, ",readonly")


def test_offset_plus_length_overflows(folder):
    def check(handle):
        for offset in ((1 << 64) - 1, (1 << 64) - 512, (1 << 64) - 256):
            expect_errno("EINVAL", handle.pread, 512, offset)
            expect_errno("ENOSPC", handle.pwrite, b"x" * 512, offset)
            expect_errno("EINVAL", handle.trim, 512, offset)

    with_handle(folder, check)


def test_flags_that_do_not_belong(folder):
    nbd = require_libnbd()

    def check(handle):
        expect_errno("EINVAL", handle.pread, 512, 0, nbd.CMD_FLAG_NO_HOLE)
        expect_errno("EINVAL", handle.pwrite, b"x" * 512, 0, nbd.CMD_FLAG_FAST_ZERO)
        expect_errno("EINVAL", handle.trim, 512, 0, nbd.CMD_FLAG_NO_HOLE)
        expect_errno("EINVAL", handle.pwrite, b"x" * 512, 0, 1 << 14)

    with_handle(folder, check)


def test_writes_to_a_read_only_export(folder):
    def check(handle):
        assert handle.is_read_only()
        expect_errno("EPERM", handle.pwrite, b"x" * 65536, 0)
        expect_errno("EPERM", handle.zero, 65536, 0)
        expect_errno("EPERM", handle.trim, 65536, 0)

    with_handle(folder, check, ",readonly")


if __name__ == "__main__":
    main()
