#!/usr/bin/python3
"""qemu-io reads back what it wrote, zeroed or discarded, at any alignment."""

import os

from captive import MIB, Gmblock, main, make_file, make_random_file, require_program, run


def qemu_io(uri, *commands, options=()):
    words = ["qemu-io", "-f", "raw", *options]
    for command in commands:
        words += ["-c", command]
    text = run(*words, uri)
    assert "failed" not in text.lower(), text
    return text


def test_pattern_reads_back(folder):
    require_program("qemu-io")
    image = make_file(os.path.join(folder, "disk"), 16 * MIB)
    for mode in ("cached", "direct"):
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            qemu_io(server.uri(), "write -P 0x5a 0 1M", "write -P 0xa5 4097 12345",
                    "read -P 0xa5 4097 12345", "read -P 0x5a 0 4097",
                    "read -P 0x5a 16442 64k", "read -P 0 1M 1M")


def test_write_zeroes_reads_as_zero_and_leaves_neighbours(folder):
    require_program("qemu-io")
    image = make_file(os.path.join(folder, "disk"), 16 * MIB)
    for mode in ("cached", "direct"):
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            for flags in ("", "-u "):
                qemu_io(server.uri(), "write -P 0x77 0 4M", "write -z %s1000 1000000" % flags,
                        "read -P 0 1000 1000000", "read -P 0x77 0 1000",
                        "read -P 0x77 1001000 1M")


def test_write_zeroes_keeps_or_gives_back_space_as_asked(folder):
    require_program("qemu-io")
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    full = os.stat(image).st_blocks
    with Gmblock(folder, {"": image}) as server:
        qemu_io(server.uri(), "write -z 0 8M", "flush")
        assert os.stat(image).st_blocks >= full - 64, "NO_HOLE gave space back"
        qemu_io(server.uri(), "write -z -u 8M 8M", "flush")
        assert os.stat(image).st_blocks < full * 3 // 4, "no hole was punched"
        qemu_io(server.uri(), "read -P 0 0 16M")


def test_discard_gives_space_back(folder):
    require_program("qemu-io")
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    full = os.stat(image).st_blocks
    with Gmblock(folder, {"": image}) as server:
        qemu_io(server.uri(), "write -P 0x31 8M 4M", "discard 0 8M", "flush",
                "read -P 0x31 8M 4M", options=("-d", "unmap"))
    assert os.stat(image).st_blocks < full * 3 // 4, "nothing was discarded"


def test_fua_and_flush_reach_the_file(folder):
    require_program("qemu-io")
    image = make_file(os.path.join(folder, "disk"), 4 * MIB)
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        qemu_io(server.uri(), "write -f -P 0x42 64k 64k", "flush", "write -z -f 96k 4k",
                options=("-t", "none"))
    with open(image, "rb") as data:
        contents = data.read()
    assert contents[64 << 10:96 << 10] == b"\x42" * (32 << 10)
    assert contents[96 << 10:100 << 10] == bytes(4 << 10)
    assert contents[100 << 10:128 << 10] == b"\x42" * (28 << 10)


def test_requests_at_once(folder):
    require_program("qemu-io")
    image = make_file(os.path.join(folder, "disk"), 64 * MIB)
    with Gmblock(folder, {"": image}) as server:
        writes = ["aio_write -P %d %dM 1M" % (number + 1, number) for number in range(48)]
        reads = ["aio_read -P %d %dM 1M" % (number + 1, number) for number in range(48)]
        text = qemu_io(server.uri(), *writes, "aio_flush", *reads, "aio_flush")
    assert text.count("wrote 1048576/1048576") == 48, text
    assert text.count("read 1048576/1048576") == 48, text


if __name__ == "__main__":
    main()
