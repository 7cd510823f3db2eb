#!/usr/bin/python3
"""fio finds every block it wrote, under load, with its checksums right."""

import os

from captive import MIB, Gmblock, main, make_file, require_fio, run


def fio(folder, uri, *options):
    os.makedirs(os.path.join(folder, "fio"), exist_ok=True)
    return run("fio", "--name=verify", "--ioengine=nbd", "--uri=" + uri, "--thread=1",
               "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0",
               "--aux-path=" + os.path.join(folder, "fio"), *options)


def check(folder, export, listen, *options):
    require_fio()
    image = make_file(os.path.join(folder, "disk"), 64 * MIB)
    with Gmblock(folder, {"": image + export}, listen=listen) as server:
        text = fio(folder, server.uri(), "--size=64M", *options)
        server.assert_alive()
    assert "err= 0" in text, text


def test_small_blocks_depth_32_cached(folder):
    check(folder, ",mode=cached", "tcp", "--rw=randwrite", "--bs=4k", "--iodepth=32")


def test_small_blocks_depth_32_ram(folder):
    check(folder, ",mode=direct", "unix", "--rw=randwrite", "--bs=4k", "--iodepth=32")


def test_mixed_reads_and_writes(folder):
    check(folder, ",mode=cached,write-mode=direct", "tcp", "--rw=randrw", "--bs=4k", "--iodepth=32")


def test_mixed_sizes_and_alignments(folder):
    check(folder, ",mode=direct", "tcp", "--rw=randwrite", "--bsrange=512-256k",
          "--bs_unaligned=1", "--iodepth=32")


def test_large_blocks_cached(folder):
    check(folder, ",mode=cached", "unix", "--rw=write", "--bs=8M", "--iodepth=8")


def test_large_blocks_ram(folder):
    check(folder, ",mode=direct", "tcp", "--rw=write", "--bs=8M", "--iodepth=8")


def test_four_connections_each_with_its_part(folder):
    check(folder, ",mode=cached", "tcp", "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=16M",
          "--numjobs=4", "--offset_increment=16M", "--group_reporting=1")


if __name__ == "__main__":
    main()
