#!/usr/bin/python3
"""nbdcopy moves whole images in both directions without changing a byte."""

import filecmp
import os

from captive import MIB, ODD_BYTES, Gmblock, main, make_file, make_random_file, pattern, \
    require_program, run


def test_download(folder):
    require_program("nbdcopy")
    image = make_random_file(os.path.join(folder, "disk"), 32 * MIB)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": image}) as server:
        run("nbdcopy", server.uri(), copy)
    assert filecmp.cmp(image, copy, shallow=False)


def test_download_of_odd_image_over_tcp(folder):
    require_program("nbdcopy")
    image = make_random_file(os.path.join(folder, "disk"), ODD_BYTES)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        run("nbdcopy", server.uri(), copy)
    assert os.path.getsize(copy) == ODD_BYTES
    assert filecmp.cmp(image, copy, shallow=False)


def test_upload(folder):
    require_program("nbdcopy")
    source = make_random_file(os.path.join(folder, "source"), 32 * MIB)
    image = make_file(os.path.join(folder, "disk"), 32 * MIB)
    with Gmblock(folder, {"": image}) as server:
        run("nbdcopy", "--flush", source, server.uri())
    assert filecmp.cmp(image, source, shallow=False)


def test_sparse_image_stays_sparse_both_ways(folder):
    require_program("nbdcopy")
    source = make_file(os.path.join(folder, "source"), 256 * MIB, pattern(0, MIB), offset=100 * MIB)
    image = make_file(os.path.join(folder, "disk"), 256 * MIB)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": image}) as server:
        run("nbdcopy", "--flush", source, server.uri())
        run("nbdcopy", server.uri(), copy)
    assert filecmp.cmp(image, source, shallow=False)
    assert filecmp.cmp(copy, source, shallow=False)
    for path in (image, copy):
        used = os.stat(path).st_blocks * 512
        assert used < 8 * MIB, (path, used)


def test_upload_over_old_data_zeroes_what_the_source_has_not(folder):
    require_program("nbdcopy")
    source = make_file(os.path.join(folder, "source"), 16 * MIB, pattern(0, MIB), offset=5 * MIB)
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    with Gmblock(folder, {"": image}) as server:
        run("nbdcopy", "--flush", source, server.uri())
    assert filecmp.cmp(image, source, shallow=False)


def test_from_export_to_export_of_one_server(folder):
    require_program("nbdcopy")
    source = make_random_file(os.path.join(folder, "source"), 24 * MIB)
    target = make_file(os.path.join(folder, "target"), 24 * MIB)
    exports = {"from": source + ",readonly", "to": target}
    with Gmblock(folder, exports, listen="tcp") as server:
        run("nbdcopy", "--connections=4", "--requests=32", "--flush",
            server.uri("from"), server.uri("to"))
    assert filecmp.cmp(source, target, shallow=False)


if __name__ == "__main__":
    main()
