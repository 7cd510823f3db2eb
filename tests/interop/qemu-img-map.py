#!/usr/bin/python3
"""qemu-img map and info show holes and size of an export."""

import json
import os

from captive import MIB, Gmblock, main, make_file, pattern, require_program, run


def test_map_shows_data_where_it_is(folder):
    require_program("qemu-img")
    image = make_file(os.path.join(folder, "disk"), 64 * MIB, pattern(0, 2 * MIB), offset=8 * MIB)
    with Gmblock(folder, {"": image}) as server:
        extents = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", server.uri()))
    end = 0
    data = []
    for extent in extents:
        assert extent["start"] == end, extents
        end += extent["length"]
        if extent["data"]:
            data.append((extent["start"], extent["length"]))
        else:
            assert extent["zero"], extent
    assert end == 64 * MIB, extents
    assert data == [(8 * MIB, 2 * MIB)], data


def test_info_shows_size(folder):
    require_program("qemu-img")
    image = make_file(os.path.join(folder, "disk"), 48 * MIB)
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        told = json.loads(run("qemu-img", "info", "--output=json", "-f", "raw", server.uri()))
    assert told["virtual-size"] == 48 * MIB, told


def test_measure_counts_only_data(folder):
    require_program("qemu-img")
    image = make_file(os.path.join(folder, "disk"), 64 * MIB, pattern(0, 2 * MIB), offset=8 * MIB)
    with Gmblock(folder, {"": image}) as server:
        told = json.loads(run("qemu-img", "measure", "--output=json", "-O", "qcow2", "-f", "raw",
                              server.uri()))
    assert told["required"] < 4 * MIB, told


if __name__ == "__main__":
    main()
