#!/usr/bin/python3
"""Every command with every flag it may carry does what the protocol says."""

import os

from captive import MIB, Gmblock, connect, main, make_file, make_random_file, pattern, \
    require_libnbd


def file_bytes(path, count, offset):
    with open(path, "rb") as data:
        data.seek(offset)
        return data.read(count)


def each_mode(folder, check):
    require_libnbd()
    for mode in ("cached", "direct"):
        image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            handle = connect(server.uri())
            check(handle, image)
            handle.shutdown()


def test_write_with_fua(folder):
    nbd = require_libnbd()

    def check(handle, image):
        assert handle.can_fua()
        for offset, count in ((0, 4096), (4099, 513), (MIB - 1, 2), (16 * MIB - 7, 7)):
            data = pattern(offset, count, seed=7)
            handle.pwrite(data, offset, nbd.CMD_FLAG_FUA)
            assert handle.pread(count, offset) == data
            assert file_bytes(image, count, offset) == data

    each_mode(folder, check)


def test_flush_makes_writes_visible_in_the_file(folder):
    def check(handle, image):
        data = pattern(0, 3 * MIB, seed=8)
        handle.pwrite(data, MIB + 1)
        handle.flush()
        assert file_bytes(image, 3 * MIB, MIB + 1) == data

    each_mode(folder, check)


def test_zero_with_each_flag(folder):
    nbd = require_libnbd()

    def check(handle, image):
        assert handle.can_zero()
        for flags in (0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA,
                      nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA):
            for offset, count in ((0, 4096), (511, 3), (8000, 123456), (5 * MIB, 2 * MIB),
                                  (16 * MIB - 100, 100)):
                around = max(0, offset - 700)
                span = min(16 * MIB, offset + count + 700) - around
                handle.pwrite(pattern(around, span, seed=9), around)
                handle.zero(count, offset, flags)
                wanted = bytearray(pattern(around, span, seed=9))
                wanted[offset - around:offset - around + count] = bytes(count)
                assert handle.pread(span, around) == wanted, (flags, offset, count)
        handle.flush()

    each_mode(folder, check)


def test_fast_zero_is_fast_or_refused_and_then_harmless(folder):
    nbd = require_libnbd()

    def check(handle, image):
        assert handle.can_fast_zero()
        before = handle.pread(MIB, 2 * MIB)
        try:
            handle.zero(MIB, 2 * MIB, nbd.CMD_FLAG_FAST_ZERO)
            assert handle.pread(MIB, 2 * MIB) == bytes(MIB)
        except nbd.Error as error:
            assert error.errno == "ENOTSUP", error.string
            assert handle.pread(MIB, 2 * MIB) == before

    each_mode(folder, check)


def test_trim_keeps_neighbours(folder):
    nbd = require_libnbd()

    def check(handle, image):
        assert handle.can_trim()
        for flags in (0, nbd.CMD_FLAG_FUA):
            left, right = handle.pread(MIB, 2 * MIB), handle.pread(MIB, 6 * MIB)
            handle.trim(3 * MIB, 3 * MIB, flags)
            assert handle.pread(MIB, 2 * MIB) == left
            assert handle.pread(MIB, 6 * MIB) == right

    each_mode(folder, check)


def test_cache_changes_nothing(folder):
    def check(handle, image):
        assert handle.can_cache()
        before = handle.pread(MIB, 12345)
        handle.cache(16 * MIB, 0)
        handle.cache(1, 16 * MIB - 1)
        assert handle.pread(MIB, 12345) == before

    each_mode(folder, check)


def test_zero_and_trim_longer_than_any_payload(folder):
    nbd = require_libnbd()
    size = 6 << 30
    image = make_file(os.path.join(folder, "disk"), size, pattern(0, MIB), offset=5 << 30)
    with Gmblock(folder, {"": image}) as server:
        handle = connect(server.uri())
        handle.pwrite(pattern(0, 4096), 1 << 30)
        handle.zero((4 << 30) - 512, 0)
        assert handle.pread(4096, 1 << 30) == bytes(4096)
        handle.trim((4 << 30) - 512, 0)
        handle.cache((4 << 30) - 512, 0)
        assert handle.pread(MIB, 5 << 30) == pattern(0, MIB)
        assert handle.is_read_only() is False and nbd is not None
        handle.shutdown()


if __name__ == "__main__":
    main()
