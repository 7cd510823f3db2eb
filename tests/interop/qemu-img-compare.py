#!/usr/bin/python3
"""qemu-img compare sees equal images as equal and finds one changed byte."""

import os

from captive import MIB, Gmblock, main, make_random_file, require_program, run


def test_equal_images(folder):
    require_program("qemu-img")
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    for listen in ("unix", "tcp"):
        with Gmblock(folder, {"": image}, listen=listen) as server:
            text = run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, server.uri())
            assert "identical" in text, text


def test_one_changed_byte(folder):
    require_program("qemu-img")
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    other = os.path.join(folder, "other")
    with open(image, "rb") as data:
        contents = bytearray(data.read())
    contents[7 * MIB + 5] ^= 1
    with open(other, "wb") as out:
        out.write(contents)
    with Gmblock(folder, {"": image}) as server:
        text = run("qemu-img", "compare", "-f", "raw", "-F", "raw", other, server.uri(), status=1)
    assert "mismatch" in text, text


def test_two_exports_of_one_server(folder):
    require_program("qemu-img")
    image = make_random_file(os.path.join(folder, "disk"), 16 * MIB)
    exports = {"cached": image + ",mode=cached", "direct": image + ",mode=direct"}
    with Gmblock(folder, exports) as server:
        run("qemu-img", "compare", "-f", "raw", "-F", "raw",
            server.uri("cached"), server.uri("direct"))


if __name__ == "__main__":
    main()
