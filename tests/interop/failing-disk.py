#!/usr/bin/python3
"""A disk that fails: the one that asked gets the error it gave, and everything else goes on."""

import os

from captive import MIB, Gmblock, connect, expect_errno, main, make_random_file, require_libnbd, \
    require_program, refused, run

SIZE = 64 * MIB
BAD_AT = 32 * MIB


def with_handles(folder, fault, check):
    require_libnbd()
    image = make_random_file(os.path.join(folder, "disk"), SIZE)
    with open(image, "rb") as data:
        contents = data.read()
    exports = {"bad": image + fault, "good": image}
    with Gmblock(folder, exports, listen="tcp") as server:
        bad, good = connect(server.uri("bad")), connect(server.uri("good"))
        check(bad, good, contents)
        for handle in (bad, good):
            handle.shutdown()
        server.assert_alive()


def test_bad_range_of_reads(folder):
    def check(bad, good, contents):
        for _ in range(3):
            expect_errno("EIO", bad.pread, 4096, BAD_AT)
            expect_errno("EIO", bad.pread, 8 * MIB, BAD_AT - 4 * MIB)
            expect_errno("EIO", bad.pread, SIZE, 0)
        assert bad.pread(BAD_AT, 0) == contents[:BAD_AT]
        assert good.pread(SIZE, 0) == contents

    with_handles(folder, ",fault=read:EIO:range=%d+4096" % BAD_AT, check)


def test_bad_range_of_writes_in_a_large_one(folder):
    def check(bad, good, contents):
        for offset in (0, BAD_AT, BAD_AT - 16 * MIB):
            count = min(32 * MIB + 4096, SIZE - offset)
            expect_errno("ENOSPC", bad.pwrite, contents[offset:offset + count], offset)
        bad.pwrite(contents[:MIB], 0)
        assert good.pread(SIZE, 0) == contents

    with_handles(folder, ",fault=write:ENOSPC:range=%d+4096" % BAD_AT, check)


def test_failed_flush_is_told_and_so_is_fua(folder):
    nbd = require_libnbd()

    def check(bad, good, contents):
        bad.pwrite(contents[:4096], 0)
        expect_errno("EIO", bad.flush)
        expect_errno("EIO", bad.pwrite, contents[:4096], 0, nbd.CMD_FLAG_FUA)
        assert bad.pread(4096, 0) == contents[:4096]
        good.flush()

    with_handles(folder, ",fault=flush:EIO", check)


def test_copy_of_a_bad_disk_fails(folder):
    require_program("nbdcopy", "qemu-img")
    image = make_random_file(os.path.join(folder, "disk"), 8 * MIB)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"": image + ",fault=read:EIO:range=1M+1"}) as server:
        refused("nbdcopy", server.uri(), copy)
        refused("qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri(), copy)
        run("nbdinfo", "--size", server.uri())


if __name__ == "__main__":
    main()
