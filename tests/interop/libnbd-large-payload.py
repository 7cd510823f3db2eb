#!/usr/bin/python3
"""One request of up to 64 MiB is served whole, both ways."""

import os

from captive import MIB, Gmblock, connect, main, make_file, require_libnbd


def check(folder, mode, listen, options=()):
    require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 160 * MIB)
    export = "%s,mode=%s" % (image, mode)
    with Gmblock(folder, {"": export}, *options, listen=listen) as server:
        handle = connect(server.uri(), strict=False)
        for count, offset in ((32 * MIB, 0), (64 * MIB, 64 * MIB), (64 * MIB, 12345),
                              (33 * MIB + 1, 511)):
            data = os.urandom(count)
            handle.pwrite(data, offset)
            assert handle.pread(count, offset) == data, (count, offset)
            with open(image, "rb") as contents:
                contents.seek(offset)
                assert contents.read(count) == data, (count, offset)
        handle.shutdown()


def test_cached_over_tcp(folder):
    check(folder, "cached", "tcp")


def test_ram_over_unix(folder):
    check(folder, "direct", "unix")


def test_within_a_memory_limit_smaller_than_the_request(folder):
    check(folder, "direct", "tcp", ("--memory", "16M"))


def test_two_clients_at_once_within_a_small_memory_limit(folder):
    nbd = require_libnbd()
    image = make_file(os.path.join(folder, "disk"), 128 * MIB)
    with Gmblock(folder, {"": image}, "--memory", "16M", listen="tcp") as server:
        handles = [connect(server.uri(), strict=False) for _ in range(2)]
        sent = [os.urandom(64 * MIB) for _ in handles]
        buffers = [nbd.Buffer.from_bytearray(bytearray(data)) for data in sent]
        cookies = [handle.aio_pwrite(buffers[index], index * 64 * MIB)
                   for index, handle in enumerate(handles)]
        while not all(handle.aio_command_completed(cookie)
                      for handle, cookie in zip(handles, cookies) if cookie):
            for index, handle in enumerate(handles):
                handle.poll(1)
                if cookies[index] and handle.aio_command_completed(cookies[index]):
                    cookies[index] = 0
        for index, handle in enumerate(handles):
            assert handle.pread(64 * MIB, index * 64 * MIB) == sent[index]
            handle.shutdown()


if __name__ == "__main__":
    main()
