#!/usr/bin/python3
"""Block status covers what was asked and changes as the disk changes."""

import os

from captive import MIB, Gmblock, connect, expect_errno, main, make_file, pattern, require_libnbd

SIZE = 64 * MIB


def extents(handle, count, offset, flags=0):
    nbd = require_libnbd()
    found = []

    def extent(context, at, entries, _error):
        assert context == nbd.CONTEXT_BASE_ALLOCATION, context
        assert at == offset, (at, offset)
        assert not found, "two answers for one context"
        found.extend(zip(entries[0::2], entries[1::2]))

    handle.block_status(count, offset, extent, flags)
    assert found, "no extent at all"
    assert all(length > 0 for length, _flags in found), found
    return found


def status_at(handle, offset):
    return extents(handle, 512, offset)[0][1]


def with_handle(folder, check, contents=b"", offset=0):
    nbd = require_libnbd()
    image = make_file(os.path.join(folder, "disk"), SIZE, contents, offset)
    with Gmblock(folder, {"": image}) as server:
        handle = connect(server.uri(), [nbd.CONTEXT_BASE_ALLOCATION], strict=False)
        assert handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        check(handle)
        handle.shutdown()


def test_whole_disk_is_covered_with_progress(folder):
    def check(handle):
        at = 0
        data = 0
        while at < SIZE:
            found = extents(handle, SIZE - at, at)
            for length, flags in found:
                data += length if flags == 0 else 0
                at += length
            assert at <= SIZE, "an extent runs past the end of the export"
        assert data == 2 * MIB, data

    with_handle(folder, check, pattern(0, 2 * MIB), 10 * MIB)


def test_req_one_gives_one_extent_within_the_request(folder):
    nbd = require_libnbd()

    def check(handle):
        for offset, count in ((0, SIZE), (10 * MIB, 4096), (9 * MIB, 2 * MIB), (0, 4096)):
            found = extents(handle, count, offset, nbd.CMD_FLAG_REQ_ONE)
            assert len(found) == 1 and found[0][0] <= count, (offset, count, found)

    with_handle(folder, check, pattern(0, 2 * MIB), 10 * MIB)


def test_status_follows_writes_and_trims(folder):
    nbd = require_libnbd()
    hole = nbd.STATE_HOLE | nbd.STATE_ZERO

    def check(handle):
        assert status_at(handle, 20 * MIB) == hole
        handle.pwrite(pattern(0, MIB), 20 * MIB)
        assert status_at(handle, 20 * MIB) == 0
        assert status_at(handle, 22 * MIB) == hole
        handle.trim(MIB, 20 * MIB)
        assert status_at(handle, 20 * MIB) == hole

    with_handle(folder, check)


def test_past_the_end_is_refused(folder):
    def check(handle):
        expect_errno("EINVAL", handle.block_status, 4096, SIZE, lambda *_: None)
        expect_errno("EINVAL", handle.block_status, 8192, SIZE - 4096, lambda *_: None)
        assert extents(handle, 4096, SIZE - 4096)

    with_handle(folder, check)


def test_without_the_context_it_is_refused(folder):
    require_libnbd()
    image = make_file(os.path.join(folder, "disk"), SIZE)
    with Gmblock(folder, {"": image}) as server:
        handle = connect(server.uri(), strict=False)
        expect_errno("EINVAL", handle.block_status, 4096, 0, lambda *_: None)
        assert handle.pread(512, 0) == bytes(512)
        handle.shutdown()


if __name__ == "__main__":
    main()
