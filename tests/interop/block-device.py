#!/usr/bin/python3
"""A block device is served with its exact size, in every mode, coherent with itself."""

import os

from captive import MIB, Gmblock, connect, main, make_random_file, pattern, require_libnbd, \
    require_program, require_root, run

SIZE = 16 * MIB


def with_device(folder, check):
    require_libnbd()
    require_root("a loop device is made")
    require_program("losetup")
    image = make_random_file(os.path.join(folder, "disk"), SIZE)
    device = run("losetup", "--find", "--show", image).strip()
    try:
        check(device)
    finally:
        run("losetup", "--detach", device)


def test_each_mode(folder):
    def check(device):
        for mode in ("cached", "direct"):
            with Gmblock(folder, {"": "%s,mode=%s" % (device, mode)}, listen="tcp") as server:
                handle = connect(server.uri())
                assert handle.get_size() == SIZE
                for offset, count in ((0, MIB), (513, 1025), (SIZE - 3, 3), (MIB - 7, 2 * MIB + 9)):
                    data = pattern(offset, count, seed=len(mode))
                    handle.pwrite(data, offset)
                    assert handle.pread(count, offset) == data, (mode, offset)
                handle.zero(MIB, 4 * MIB + 100)
                assert handle.pread(MIB, 4 * MIB + 100) == bytes(MIB)
                handle.flush()
                handle.trim(MIB, 8 * MIB)
                handle.shutdown()

    with_device(folder, check)


def test_modes_see_each_other(folder):
    def check(device):
        exports = {"cached": device + ",mode=cached", "direct": device + ",mode=direct"}
        with Gmblock(folder, exports) as server:
            cached, direct = connect(server.uri("cached")), connect(server.uri("direct"))
            for turn, (writer, reader) in enumerate([(cached, direct), (direct, cached)] * 20):
                offset = turn * 300001 % (SIZE - 70000)
                data = pattern(offset, 70000, seed=turn)
                writer.pwrite(data, offset)
                assert reader.pread(70000, offset) == data, turn
            cached.shutdown()
            direct.shutdown()

    with_device(folder, check)


if __name__ == "__main__":
    main()
