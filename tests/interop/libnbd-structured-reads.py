#!/usr/bin/python3
"""Structured reads give data and holes exactly once for every byte."""

import os

from captive import MIB, Gmblock, connect, main, make_file, pattern, require_libnbd

DATA_AT, DATA_BYTES = 3 * MIB, 2 * MIB


def read_chunks(handle, count, offset, flags=0):
    """The bytes that chunks delivered and how many were holes; every byte exactly once."""
    nbd = require_libnbd()
    seen = bytearray(count)
    result = bytearray(b"\xee" * count)
    holes = 0
    pieces = []

    def chunk(data, at, status, _error):
        nonlocal holes
        start = at - offset
        length = len(data)
        assert 0 <= start and start + length <= count, (at, length)
        assert not any(seen[start:start + length]), ("bytes sent twice", at, length)
        seen[start:start + length] = b"\1" * length
        assert status in (nbd.READ_DATA, nbd.READ_HOLE), status
        result[start:start + length] = data
        holes += length if status == nbd.READ_HOLE else 0
        pieces.append(status)

    whole = handle.pread_structured(count, offset, chunk, flags)
    assert all(seen), "some bytes were never sent"
    assert bytes(result) == bytes(whole)
    return bytes(result), holes, pieces


def expected(offset, count):
    data = pattern(0, DATA_BYTES)
    whole = bytes(DATA_AT) + data + bytes(16 * MIB - DATA_AT - DATA_BYTES)
    return whole[offset:offset + count]


def with_image(folder, mode, check):
    require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 16 * MIB, pattern(0, DATA_BYTES), DATA_AT)
    with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
        handle = connect(server.uri())
        assert handle.get_structured_replies_negotiated()
        check(handle)
        handle.shutdown()


def read_everywhere(handle):
    for offset, count in ((0, 16 * MIB), (DATA_AT - 5, 1000), (DATA_AT + 1, MIB),
                          (DATA_AT + DATA_BYTES - 777, 5000), (16 * MIB - 1, 1), (1, 8 * MIB - 3)):
        data, _holes, _pieces = read_chunks(handle, count, offset)
        assert data == expected(offset, count), (offset, count)


def test_every_byte_once_cached(folder):
    with_image(folder, "cached", read_everywhere)


def test_every_byte_once_ram(folder):
    with_image(folder, "direct", read_everywhere)


def test_df_gives_one_piece_of_content(folder):
    nbd = require_libnbd()

    def check(handle):
        assert handle.can_df()
        for offset, count in ((0, 65536), (DATA_AT - 5, 65536), (DATA_AT - 4096, 8192)):
            data, _holes, pieces = read_chunks(handle, count, offset, nbd.CMD_FLAG_DF)
            assert len(pieces) == 1, (offset, count, pieces)
            assert data == expected(offset, count), (offset, count)

    with_image(folder, "cached", check)


def test_simple_replies_for_clients_that_ask_for_nothing(folder):
    nbd = require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 16 * MIB, pattern(0, DATA_BYTES), DATA_AT)
    with Gmblock(folder, {"": image}) as server:
        handle = nbd.NBD()
        handle.set_request_structured_replies(False)
        handle.connect_uri(server.uri())
        assert not handle.get_structured_replies_negotiated()
        for offset, count in ((0, 16 * MIB), (DATA_AT - 5, 1000)):
            assert handle.pread(count, offset) == expected(offset, count)
        handle.shutdown()


if __name__ == "__main__":
    main()
