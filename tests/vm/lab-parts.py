#!/usr/bin/python3
"""The parts of the laboratory that need no guest: which packages make up a kernel, what gets into
an initramfs, what the switch forwards, and how it skips where something is missing."""
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile

import testing
from vmlab import Tree, Unavailable
from vmlab.archive import mirror
from vmlab.kernel import choose, modinfo
from vmlab.network import Switch

NAMES = [
    "linux-image-6.12.9+deb12-amd64", "linux-image-6.12.95+deb12-amd64",
    "linux-image-6.12.95+deb12-amd64-unsigned", "linux-image-6.12.95+deb12-rt-amd64",
    "linux-image-6.12.99+deb12-cloud-amd64", "linux-image-6.1.0-47-amd64",
    "linux-image-7.2.12+deb13-amd64", "linux-modules-7.2.12+deb13-amd64",
    "linux-binary-7.2.12+deb13-amd64", "linux-base-7.2.12+deb13-amd64",
    "linux-binary-unsigned-7.2.12+deb13-amd64", "linux-modules-7.3.4+deb13-amd64",
    "linux-binary-unsigned-7.3.4+deb13-amd64", "linux-modules-7.4.1+deb13-amd64",
]


def test_newest_kernel_of_a_version_is_chosen():
    assert choose(NAMES, "6.12") == ["linux-image-6.12.95+deb12-amd64"]
    assert choose(NAMES, "6.12.9") == ["linux-image-6.12.9+deb12-amd64"]
    assert choose(NAMES, "7.2") == ["linux-modules-7.2.12+deb13-amd64",
                                    "linux-binary-7.2.12+deb13-amd64",
                                    "linux-base-7.2.12+deb13-amd64"]
    assert choose(NAMES, "7.3") == ["linux-modules-7.3.4+deb13-amd64",
                                    "linux-binary-unsigned-7.3.4+deb13-amd64"]
    for missing in ("6", "6.1", "7.4", "8.0"):
        try:
            found = choose(NAMES, missing)
        except Unavailable:
            continue
        assert missing == "6" and found == ["linux-image-6.12.95+deb12-amd64"], (missing, found)


def test_module_tells_its_needs():
    module = (b"\x7fELF\0alias=fs-ext4\0alias=pci:v*\0softdep=pre: crc32c sha1 post: late\0"
              b"depends=jbd2,mbcache\0name=ext4\0")
    assert modinfo(module) == {"depends": ["jbd2", "mbcache"], "before": ["crc32c", "sha1"],
                               "aliases": ["fs-ext4", "pci:v*"]}


def read_cpio(path):
    """{name: (mode, content)} of an archive, read by the format's description."""
    found = {}
    with open(path, "rb") as file:
        data = file.read()
    place = 0
    while True:
        assert data[place:place + 6] == b"070701", place
        fields = [int(data[place + 6 + 8 * i:place + 14 + 8 * i], 16) for i in range(13)]
        name = data[place + 110:place + 110 + fields[11] - 1].decode()
        start = (place + 110 + fields[11] + 3) & ~3
        content = data[start:start + fields[6]]
        place = (start + fields[6] + 3) & ~3
        if name == "TRAILER!!!":
            assert place == len(data)
            return found
        assert name not in found, name
        found[name] = (fields[1], content)


def test_initramfs_holds_files_links_and_libraries():
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree()
        tree.text("/lab/script", "echo\n", 0o755)
        tree.link("etc/mtab", "/proc/self/mounts")
        tree.file(sys.executable, "/bin/interpreter")
        tree.file("/etc/passwd", "odd/names here/a=b")
        tree.write(os.path.join(folder, "image"))
        found = read_cpio(os.path.join(folder, "image"))
    assert found["lab/script"] == (stat.S_IFREG | 0o755, b"echo\n")
    assert found["etc/mtab"] == (stat.S_IFLNK | 0o777, b"/proc/self/mounts")
    assert found["bin"] == (stat.S_IFLNK | 0o777, b"usr/bin")
    assert stat.S_ISDIR(found["odd/names here"][0])
    with open("/etc/passwd", "rb") as file:
        assert found["odd/names here/a=b"][1] == file.read()
    assert found["usr/bin/interpreter"][0] & 0o111
    assert any(re.fullmatch(r"usr/lib.*/libc\.so\.6", name) for name in found), sorted(found)
    assert any(re.fullmatch(r"usr/lib.*/ld-linux.*", name) for name in found), sorted(found)
    assert any(re.fullmatch(r"usr/lib.*/libgcc_s\.so\.1", name) for name in found), sorted(found)
    for name in found:
        assert os.path.dirname(name) in ("", *found), f"{name} comes without its folder"
    order = list(found)
    assert all(order.index(os.path.dirname(n)) < order.index(n) for n in order if "/" in n)


class Calm:
    """A loop for a switch whose sockets this test looks after itself."""

    def watch(self, *_, **__):
        pass

    def forget(self, _):
        pass


def test_switch_learns_floods_and_breaks_links():
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(Calm())
        guests = {}
        for name in "abc":
            path = os.path.join(folder, name)
            switch.add(name, path)
            guests[name] = socket.socket(socket.AF_UNIX)
            guests[name].connect(path)
            guests[name].setblocking(False)
            switch.ports[name].accept()

        def sent(source, target, text):
            """Who receives a frame; it comes in two pieces."""
            frame = target.encode() * 6 + source.encode() * 6 + b"\x08\x00" + text.encode()
            data = struct.pack(">I", len(frame)) + frame
            for piece in (data[:7], data[7:]):
                guests[source].send(piece)
                switch.ports[source].ready()
            heard = ""
            for name, guest in guests.items():
                try:
                    assert guest.recv(4096) == data
                    heard += name
                except BlockingIOError:
                    pass
            return heard

        # "b" has the bit of a single address, "a" and "c" that of a group.
        assert sent("b", "f", "nobody has said yet who is f") == "ac"
        assert sent("c", "b", "b has been heard") == "b"
        assert sent("a", "c", "to a group") == "bc"
        switch.ports["b"].up = False
        assert sent("c", "b", "lost") == ""
        assert sent("b", "a", "lost as well") == ""
        switch.ports["b"].up = True
        assert sent("c", "b", "there again") == "b"
        guests["c"].send(struct.pack(">I", 1 << 30))
        switch.ports["c"].ready()
        assert guests["c"].recv(1) == b"", "an absurd length has not ended the connection"
        for guest in guests.values():
            guest.close()
        switch.close()


def skipping(environment):
    run = subprocess.run([sys.executable, testing.LAB, "run", "--script", "/dev/null"],
                         env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, check=False)
    assert run.returncode == 77, (run.returncode, run.stdout, run.stderr)
    return run.stderr


def test_what_is_missing_is_named():
    with tempfile.TemporaryDirectory() as folder:
        cache = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
        tools = os.path.join(folder, "tools")
        os.mkdir(tools)
        assert "qemu-system-x86_64 is not installed" in skipping({**cache, "PATH": tools})
        with open(os.path.join(tools, "qemu-system-x86_64"), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o755)
        assert "there is no apt-get" in skipping({**cache, "PATH": tools})
        # An apt whose mirror does not answer.
        sources = os.path.join(folder, "sources.list")
        with open("/etc/os-release", encoding="utf-8") as file:
            release = re.search(r"^VERSION_CODENAME=(\w+)", file.read(), re.M).group(1)
        with open(sources, "w", encoding="ascii") as file:
            file.write(f"deb file:{folder}/no-mirror {release} main\n")
        config = os.path.join(folder, "apt.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "/dev/null";\n')
        path = {"PATH": tools + ":" + os.environ["PATH"], "APT_CONFIG": config}
        assert "no-mirror" in skipping({**cache, **path})
        os.environ["APT_CONFIG"] = config
        try:
            assert mirror(release) == f"file:{folder}/no-mirror/"
        finally:
            del os.environ["APT_CONFIG"]


testing.main(test_newest_kernel_of_a_version_is_chosen,
             test_module_tells_its_needs,
             test_initramfs_holds_files_links_and_libraries,
             test_switch_learns_floods_and_breaks_links,
             test_what_is_missing_is_named)
