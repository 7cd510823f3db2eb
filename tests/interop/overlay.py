#!/usr/bin/python3
"""qemu-io, qemu-img and nbdcopy on overlays: they see one disk, and its base stays as it was."""

import filecmp
import hashlib
import os
import shutil

from captive import MIB, Gmblock, main, make_random_file, require_program, run

SIZE = 24 * MIB


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Overlay:
    """A base with a hole behind 16 MiB, and how it is exported with an overlay on it."""

    def __init__(self, folder):
        self.base = make_random_file(os.path.join(folder, "base"), 16 * MIB)
        os.truncate(self.base, SIZE)
        self.before = digest(self.base)
        self.file = os.path.join(folder, "overlay")
        self.export = "%s,overlay=%s" % (self.base, self.file)

    def check_base(self):
        assert digest(self.base) == self.before, "the base was written"


def qemu_io(uri, *commands):
    words = ["qemu-io", "-f", "raw", "-d", "unmap"]
    for command in commands:
        words += ["-c", command]
    text = run(*words, uri)
    assert "failed" not in text.lower(), text


def test_qemu_io_reads_back_what_it_changed(folder):
    require_program("qemu-io")
    overlay = Overlay(folder)
    changes = ["write -P 0x5a 0 1M", "write -P 0xa5 4097 12345", "write -z 3M 1M",
               "discard 5M 1M", "write -f -P 0x31 20971521 70000", "flush"]
    reads = ["read -P 0xa5 4097 12345", "read -P 0x5a 0 4097", "read -P 0x5a 16442 64k",
             "read -P 0 3M 1M", "read -P 0 5M 1M", "read -P 0x31 20971521 70000",
             "read -P 0 20M 1", "read -P 0 21041521 1000"]
    with Gmblock(folder, {"": overlay.export}) as server:
        qemu_io(server.uri(), *changes, *reads)
    with Gmblock(folder, {"": overlay.export}) as server:
        qemu_io(server.uri(), *reads)
    overlay.check_base()


def test_many_writes_of_qemu_io_at_once(folder):
    """Most of them share blocks that nobody has written before."""
    require_program("qemu-io")
    overlay = Overlay(folder)
    writes = ["aio_write -P %d %d 3000" % (i % 255 + 1, 3000 * i) for i in range(400)]
    reads = ["aio_read -P %d %d 3000" % (i % 255 + 1, 3000 * i) for i in range(400)]
    with Gmblock(folder, {"": overlay.export}) as server:
        qemu_io(server.uri(), *writes, "aio_flush", *reads, "aio_flush")
    overlay.check_base()


def test_nbdcopy_out_of_it_and_into_it(folder):
    require_program("nbdcopy")
    overlay = Overlay(folder)
    source = make_random_file(os.path.join(folder, "source"), 8 * MIB)
    os.truncate(source, SIZE)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": overlay.export}, listen="tcp") as server:
        run("nbdcopy", server.uri(), copy)
        assert filecmp.cmp(overlay.base, copy, shallow=False)
        run("nbdcopy", "--connections=4", "--flush", source, server.uri())
        run("nbdcopy", server.uri(), copy)
        assert filecmp.cmp(source, copy, shallow=False)
    overlay.check_base()


def test_qemu_img_converts_and_compares(folder):
    require_program("qemu-img")
    overlay = Overlay(folder)
    expected = os.path.join(folder, "expected")
    shutil.copy(overlay.base, expected)
    with open(expected, "r+b") as file:
        file.seek(7 * MIB + 100)
        file.write(b"\x77" * 5000)
    with Gmblock(folder, {"": overlay.export}) as server:
        qemu_io(server.uri(), "write -P 0x77 7340132 5000")
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", expected, server.uri())
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", server.uri(),
            os.path.join(folder, "copy.qcow2"))
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", expected,
            os.path.join(folder, "copy.qcow2"))
    overlay.check_base()


if __name__ == "__main__":
    main()
