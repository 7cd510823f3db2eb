#!/usr/bin/python3
"""Read-only exports and unwritable files are offered as such and never written."""

import filecmp
import json
import os

from captive import MIB, Gmblock, main, make_random_file, refused, require_program, \
    require_root, run


def check_offered_read_only(folder, server, image):
    require_program("nbdinfo", "nbdcopy", "qemu-io")
    told = json.loads(run("nbdinfo", "--json", server.uri()))["exports"][0]
    assert told["is_read_only"] is True, told
    copy = os.path.join(folder, "copy")
    run("nbdcopy", server.uri(), copy)
    assert filecmp.cmp(image, copy, shallow=False)
    refused("nbdcopy", copy, server.uri())
    refused("qemu-io", "-f", "raw", "-c", "write 0 4k", server.uri())


def test_readonly_export(folder):
    image = make_random_file(os.path.join(folder, "disk"), 4 * MIB)
    before = os.stat(image).st_mtime_ns
    with Gmblock(folder, {"": image + ",readonly"}) as server:
        check_offered_read_only(folder, server, image)
    assert os.stat(image).st_mtime_ns == before


def test_same_disk_read_only_and_writable(folder):
    require_program("qemu-io")
    image = make_random_file(os.path.join(folder, "disk"), 4 * MIB)
    with Gmblock(folder, {"ro": image + ",readonly", "rw": image}) as server:
        refused("qemu-io", "-f", "raw", "-c", "write 0 4k", server.uri("ro"))
        run("qemu-io", "-f", "raw", "-c", "write -P 0x11 0 4k", server.uri("rw"))
        text = run("qemu-io", "-r", "-f", "raw", "-c", "read -P 0x11 0 4k", server.uri("ro"))
        assert "failed" not in text, text


def test_file_on_a_read_only_device(folder):
    require_program("losetup", "nbdinfo")
    require_root("a read-only loop device is made")
    image = make_random_file(os.path.join(folder, "disk"), 4 * MIB)
    device = run("losetup", "--read-only", "--find", "--show", image).strip()
    try:
        with Gmblock(folder, {"": device + ",readonly"}) as server:
            check_offered_read_only(folder, server, image)
    finally:
        run("losetup", "--detach", device)


if __name__ == "__main__":
    main()
