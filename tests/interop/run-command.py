#!/usr/bin/python3
"""--run serves for the life of one client, and hands on its exit status."""

import os

from captive import MIB, main, make_file, require_program, run


def serve(*words, status=0):
    return run(os.environ["GMBLOCK"], "serve", *words, status=status)


def listen(folder):
    return "nbd+unix:///?socket=" + os.path.join(folder, "gmblock.sock")


def test_client_sees_the_uri(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 3 * MIB)
    text = serve(image, "--listen", listen(folder), "--run", 'nbdinfo --size "$uri"')
    assert str(3 * MIB) in text.split(), text


def test_first_export_without_a_default_one(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 3 * MIB)
    text = serve("--export", "first=" + image, "--export", "second=memory:1M",
                 "--listen", listen(folder), "--run", 'nbdinfo --size "$uri"')
    assert str(3 * MIB) in text.split(), text


def test_exit_status_is_the_command_s(folder):
    image = make_file(os.path.join(folder, "disk"), MIB)
    serve(image, "--listen", listen(folder), "--run", "exit 41", status=41)


def test_memory_and_null_disks(folder):
    require_program("nbdinfo", "qemu-io")
    serve("--export", "=memory:8M", "--listen", listen(folder), "--run",
          'qemu-io -f raw -c "write -P 5 1M 1M" -c "read -P 5 1M 1M" -c "read -P 0 3M 1M" "$uri"')
    text = serve("null:5G", "--listen", listen(folder), "--run", 'nbdinfo --size "$uri"')
    assert str(5 << 30) in text.split(), text


if __name__ == "__main__":
    main()
