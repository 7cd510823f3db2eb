#!/usr/bin/python3
"""nbdinfo --map shows the holes of a sparse image where they are."""

import json
import os

from captive import MIB, Gmblock, main, make_file, pattern, require_program, run


def data_ranges(uri):
    """The merged ranges that are neither hole nor zero, and the end of the map."""
    found, end = [], 0
    for extent in json.loads(run("nbdinfo", "--json", "--map", uri)):
        assert extent["offset"] == end, ("a gap in the map", extent, end)
        assert extent["length"] > 0, extent
        end += extent["length"]
        if extent["type"] == 0:
            if found and found[-1][1] == extent["offset"]:
                found[-1][1] = end
            else:
                found.append([extent["offset"], end])
    return found, end


def check_map(folder, mode):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 64 * MIB, pattern(0, MIB), offset=16 * MIB)
    with open(image, "r+b") as out:
        out.seek(48 * MIB)
        out.write(pattern(0, 2 * MIB))
        os.fsync(out.fileno())
    with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
        found, end = data_ranges(server.uri())
    assert end == 64 * MIB, end
    assert found == [[16 * MIB, 17 * MIB], [48 * MIB, 50 * MIB]], found


def test_map_of_sparse_file_cached(folder):
    check_map(folder, "cached")


def test_map_of_sparse_file_ram(folder):
    check_map(folder, "direct")


def test_map_of_empty_file_is_all_hole(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 8 * MIB)
    with Gmblock(folder, {"": image}) as server:
        totals = run("nbdinfo", "--map", "--totals", server.uri())
    assert "hole,zero" in totals and "100.0%" in totals, totals


if __name__ == "__main__":
    main()
