#!/usr/bin/python3
"""Replies that begin before the disk has finished hold the right bytes, in whatever pieces."""

import errno
import os

from captive import MIB, Gmblock, connect, main, make_file, pattern, require_libnbd

KIB = 1024
SIZE = 4 * MIB
READS = ((0, MIB), (0, 4 * MIB), (12345, 700001), (SIZE - 65537, 65537), (64 * KIB - 1, 2),
         (3 * KIB, 130 * KIB), (1, 8 * KIB))


def read_pieces(handle, count, offset, flags=0):
    """Reads; returns the pieces as (offset, data, is an error) in order of arrival, and whether the
    read succeeded. No byte comes twice."""
    nbd = require_libnbd()
    seen = bytearray(count)
    pieces = []

    def chunk(data, at, status, _error):
        if status == nbd.READ_ERROR:
            pieces.append((at, b"", True))
            return
        length = len(data)
        assert offset <= at and at + length <= offset + count, (at, length)
        assert not any(seen[at - offset:at - offset + length]), ("twice", at, length)
        seen[at - offset:at - offset + length] = b"\1" * length
        pieces.append((at, bytes(data), False))

    try:
        handle.pread_structured(count, offset, chunk, flags)
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error
        return pieces, False
    assert all(seen), "some bytes never came"
    return pieces, True


def check_reads(folder, keys, flags=0):
    """Every read gives what is on the disk; returns the numbers of pieces of the first."""
    content = pattern(0, SIZE)
    image = make_file(os.path.join(folder, "disk"), SIZE, content)
    counts = []
    with Gmblock(folder, {"": image + keys}) as server:
        handle = connect(server.uri())
        for offset, count in READS:
            pieces, good = read_pieces(handle, count, offset, flags)
            assert good, (offset, count)
            for at, data, _ in pieces:
                assert data == content[at:at + len(data)], (offset, count, at, len(data))
            counts.append([at for at, _, _ in pieces])
        # The same with many at a time.
        buffers = [(require_libnbd().Buffer(count), offset, count) for offset, count in READS]
        cookies = [handle.aio_pread(buffer, offset) for buffer, offset, _ in buffers * 4]
        for cookie in cookies:
            while not handle.aio_command_completed(cookie):
                handle.poll(-1)
        for buffer, offset, count in buffers:
            assert bytes(buffer.to_bytearray()) == content[offset:offset + count]
        handle.shutdown()
    return counts


def test_a_disk_that_tells_progress(folder):
    check_reads(folder, ",pace=100M:latency=1ms")


def test_a_stripe_that_tells_progress(folder):
    check_reads(folder, ",pace=50M:members=4:chunk=64K")


def test_a_stripe_in_parts(folder):
    counts = check_reads(folder, ",mode=direct,stripe=64K:4,parts=16K")
    # A piece for each part; in the first row three of the four members begin with a shorter one.
    assert len(counts[0]) == 64 + 3, len(counts[0])


def test_parts_of_a_fixed_size(folder):
    counts = check_reads(folder, ",parts=64K")
    assert len(counts[0]) == 16, len(counts[0])


def test_off_is_one_piece(folder):
    counts = check_reads(folder, ",pace=100M:members=2,overlap=off")
    assert len(counts[0]) == 1, counts[0]


def test_df_is_one_piece_of_content(folder):
    nbd = require_libnbd()
    counts = check_reads(folder, ",pace=100M:members=2,parts=16K", nbd.CMD_FLAG_DF)
    assert [len(count) for count in counts] == [1] * len(READS), counts


def check_failure(folder, keys, flags=0):
    """A read that fails in the middle: the client learns of it, and nothing it got is wrong."""
    content = pattern(0, SIZE)
    image = make_file(os.path.join(folder, "disk"), SIZE, content)
    bad = range(700 * KIB, 704 * KIB)
    with Gmblock(folder, {"": "%s,fault=read:EIO:range=700K+4K%s" % (image, keys)}) as server:
        handle = connect(server.uri())
        for offset, count in ((0, MIB), (640 * KIB, 128 * KIB), (703 * KIB, 16 * KIB)):
            pieces, good = read_pieces(handle, count, offset, flags)
            assert not good, (offset, count)
            for at, data, _ in pieces:
                if flags == 0:
                    assert data == content[at:at + len(data)], (offset, count, at, len(data))
                    assert not data or at + len(data) <= bad.start or at >= bad.stop, at
            assert handle.pread(4096, 0) == content[:4096]  # the connection goes on
        handle.shutdown()


def test_an_error_in_the_middle(folder):
    check_failure(folder, ",pace=100M:members=2,parts=16K")


def test_an_error_in_the_middle_of_what_tells_progress(folder):
    check_failure(folder, ",pace=100M")


def test_an_error_in_the_middle_with_df(folder):
    check_failure(folder, ",pace=100M:members=2,parts=16K", require_libnbd().CMD_FLAG_DF)


def test_writes_in_parts(folder):
    content = bytearray(pattern(0, SIZE))
    image = make_file(os.path.join(folder, "disk"), SIZE, bytes(content))
    with Gmblock(folder, {"": image + ",pace=100M:members=3:chunk=32K,parts=16K"}) as server:
        handle = connect(server.uri())
        for offset, count in READS:
            data = pattern(offset + 99, count)
            handle.pwrite(data, offset)
            content[offset:offset + count] = data
            assert handle.pread(count, offset) == data
        handle.flush()
        handle.shutdown()
    with open(image, "rb") as disk:
        assert disk.read() == content


if __name__ == "__main__":
    main()
