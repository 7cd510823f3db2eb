#!/usr/bin/python3
"""Several connections see each other's writes once they are flushed."""

import os

from captive import MIB, Gmblock, connect, main, make_file, pattern, require_libnbd


def check(folder, mode, listen):
    require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 16 * MIB)
    with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}, listen=listen) as server:
        handles = [connect(server.uri()) for _ in range(8)]
        assert all(handle.can_multi_conn() for handle in handles)
        for turn, writer in enumerate(handles):
            writer.pwrite(pattern(turn * MIB, MIB, seed=turn), turn * MIB)
            handles[(turn + 1) % 8].flush()
            for reader in handles:
                data = reader.pread(MIB, turn * MIB)
                assert data == pattern(turn * MIB, MIB, seed=turn), turn
        for handle in handles:
            handle.shutdown()
    with open(image, "rb") as data:
        for turn in range(8):
            assert data.read(MIB) == pattern(turn * MIB, MIB, seed=turn), turn


def test_cached(folder):
    check(folder, "cached", "tcp")


def test_ram(folder):
    check(folder, "direct", "unix")


def test_one_connection_going_away_disturbs_no_other(folder):
    require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 16 * MIB, pattern(0, MIB))
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        staying = connect(server.uri())
        for _ in range(50):
            leaving = connect(server.uri())
            leaving.aio_pread(bytearray_buffer(4 * MIB), 0)
            del leaving
            assert staying.pread(MIB, 0) == pattern(0, MIB)
        staying.shutdown()


def bytearray_buffer(count):
    return require_libnbd().Buffer(count)


if __name__ == "__main__":
    main()
