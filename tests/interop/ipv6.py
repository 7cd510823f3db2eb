#!/usr/bin/python3
"""The server listens on IPv6 and prints a URI that clients understand."""

import filecmp
import os
import socket

from captive import MIB, Gmblock, Skip, main, make_random_file, require_program, run


def test_ipv6_loopback(folder):
    require_program("nbdcopy", "nbdinfo")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        raise Skip("no IPv6 loopback here") from error
    image = make_random_file(os.path.join(folder, "disk"), 4 * MIB)
    copy = os.path.join(folder, "copy")
    with Gmblock(folder, {"six": image}, listen="nbd://[::1]:0") as server:
        uri = server.uri("six")
        assert uri.startswith("nbd://[::1]:") and not uri.startswith("nbd://[::1]:0"), uri
        run("nbdcopy", uri, copy)
        assert run("nbdinfo", "--size", uri).strip() == str(4 * MIB)
    assert filecmp.cmp(image, copy, shallow=False)


if __name__ == "__main__":
    main()
