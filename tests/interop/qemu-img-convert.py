#!/usr/bin/python3
"""qemu-img convert reads from and writes to an export."""

import filecmp
import os

from captive import MIB, Gmblock, main, make_file, make_random_file, pattern, require_program, run


def test_raw_to_export_and_back(folder):
    require_program("qemu-img")
    source = make_random_file(os.path.join(folder, "source"), 24 * MIB)
    image = make_file(os.path.join(folder, "disk"), 24 * MIB)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": image}) as server:
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, server.uri())
        run("qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri(), copy)
    assert filecmp.cmp(source, image, shallow=False)
    assert filecmp.cmp(source, copy, shallow=False)


def test_export_to_qcow2_out_of_order_writes(folder):
    require_program("qemu-img")
    image = make_file(os.path.join(folder, "disk"), 64 * MIB, pattern(0, 5 * MIB), offset=30 * MIB)
    copy = os.path.join(folder, "copy.qcow2")
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        run("qemu-img", "convert", "-m", "16", "-W", "-f", "raw", "-O", "qcow2", server.uri(), copy)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, copy)
    assert os.path.getsize(copy) < 8 * MIB, "the holes were copied as data"


def test_qcow2_lives_on_an_export(folder):
    require_program("qemu-img")
    source = make_random_file(os.path.join(folder, "source"), 4 * MIB)
    image = make_file(os.path.join(folder, "disk"), 16 * MIB)
    with Gmblock(folder, {"": image}) as server:
        run("qemu-img", "create", "-f", "qcow2", server.uri(), "4M")
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "qcow2", source, server.uri())
        run("qemu-img", "check", "-f", "qcow2", server.uri())
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, server.uri())


if __name__ == "__main__":
    main()
