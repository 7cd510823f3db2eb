#!/usr/bin/python3
"""gmblock list, bench and info --map against nbdkit, qemu-nbd and nbd-server."""
import importlib
import json
import os
import shutil
import subprocess
import unittest

import bench_tool
import support

# Starts the servers, and says which are not installed.
info_peers = importlib.import_module("info-peers")

SIZE = info_peers.SIZE
MIB = 1 << 20


class PeerCase(bench_tool.BenchCase):
    def peer(self, kind):
        """A server of info-peers that runs until the test ends."""
        fixture = kind()
        self.addCleanup(fixture.doCleanups)
        fixture.setUp()
        return fixture

    def shown(self, *arguments):
        code, output, errors = self.run_gmblock(*arguments)
        self.assertEqual((code, errors), (0, ""))
        return output

    def check_bench(self, uri, writes=True):
        """Each pattern does all its requests, one after the other and many at a time."""
        for pattern in ("read", "randread", "write", "randwrite", "rw") if writes else ("read",):
            for options in (["--depth", "1"], ["--depth", "32", "--bs", "64K"],
                            ["--connections", "3", "--threads", "2", "--depth", "5"]):
                force = [] if "read" in pattern else ["--force"]
                result = self.measured("--rw", pattern, "--requests", "200", "--seconds", "1000",
                                       *force, *options, uri)
                self.assertEqual(result["requests"], 200)

    def check_write_is_stored(self, uri, path):
        self.measured("--rw", "write", "--bs", "1M", "--offset", "1M", "--size", "2M", "--requests",
                      "2", "--seconds", "1000", uri)
        with open(path, "rb") as file:
            data = file.read(4 * MIB)
        self.assertEqual(data[:MIB], bytes(MIB))
        self.assertEqual(data[3 * MIB:], bytes(MIB))
        for at in range(MIB, 3 * MIB, 4096):
            self.assertNotEqual(data[at:at + 4096], bytes(4096))


@unittest.skipUnless(shutil.which("qemu-nbd"), "qemu-nbd is not installed")
class QemuNbd(PeerCase):
    def test_list(self):
        peer = self.peer(info_peers.QemuNbd)
        self.assertEqual(self.shown("list", peer.other_uri), "disk\n")
        self.assertEqual(self.shown("list", "--uri", peer.other_uri), peer.uri + "\n")

    def test_bench(self):
        peer = self.peer(info_peers.QemuNbd)
        self.check_write_is_stored(peer.uri, peer.image)
        # It takes one client at a time.
        self.assertEqual(self.measured("--requests", "500", "--seconds", "1000", "--rw", "randrw",
                                       "--force", peer.uri)["requests"], 500)

    def test_map(self):
        peer = self.peer(info_peers.QemuNbd)
        self.measured("--rw", "write", "--bs", "1M", "--offset", "1M", "--size", "2M", "--requests",
                      "2", "--seconds", "1000", peer.uri)
        document = json.loads(self.shown("info", "--map", "--json", peer.uri))
        self.assertEqual([(extent["offset"], extent["length"]) for extent in document["extents"]
                          if extent["type"] == "data"], [(MIB, 2 * MIB)])
        self.assertEqual(sum(extent["length"] for extent in document["extents"]),
                         document["size"])


@unittest.skipUnless(shutil.which("nbd-server"), "nbd-server is not installed")
class NbdServer(PeerCase):
    def test_list(self):
        peer = self.peer(info_peers.NbdServer)
        self.assertEqual(sorted(self.shown("list", peer.uri).splitlines()), ["ro", "rw"])

    def test_bench(self):
        peer = self.peer(info_peers.NbdServer)
        self.check_bench(peer.uri + "rw")
        self.check_bench(peer.uri + "ro", writes=False)

    def test_writes_are_stored(self):
        peer = self.peer(info_peers.NbdServer)
        self.check_write_is_stored(peer.uri + "rw", peer.image)

    def test_its_read_only_export_is_not_written(self):
        peer = self.peer(info_peers.NbdServer)
        self.check_refused(["bench", "--rw", "write", peer.uri + "ro"], 1, "read-only")

    def test_no_map(self):
        peer = self.peer(info_peers.NbdServer)
        self.check_refused(["info", "--map", peer.uri + "rw"], 1, "base:allocation")


@unittest.skipUnless(shutil.which("nbdkit"), "nbdkit is not installed")
class Nbdkit(PeerCase):
    def nbdkit(self, *arguments, command):
        """What the command printed; $GMBLOCK and $uri are set for it."""
        done = subprocess.run(
            ["nbdkit", "-U", "-", *arguments, "--run", command],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "GMBLOCK": support.program()})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_list(self):
        os.mkdir(self.path("images"))
        for name in ("a", "b b"):
            with open(self.path(f"images/{name}"), "wb") as image:
                image.truncate(MIB)
        output = self.nbdkit("file", f"dir={self.path('images')}",
                             command='"$GMBLOCK" list "$uri"')
        self.assertEqual(sorted(output.splitlines()), ["a", "b b"])

    def test_bench(self):
        for style in ([], ["--no-sr"]):
            output = self.nbdkit(*style, "memory", "8M", command=(
                'for rw in randwrite randread "rw --force"; do '
                '"$GMBLOCK" bench --json --rw $rw --requests 400 --seconds 1000 "$uri" '
                '|| exit 1; done'))
            decoder = json.JSONDecoder()
            for _ in range(3):
                result, end = decoder.raw_decode(output)
                output = output[end:].lstrip()
                self.check_figures(result)
                self.assertEqual(result["requests"], 400)
                self.assertEqual(result["server"]["replies"], "simple" if style else "structured")
            self.assertEqual(output, "")

    def test_map(self):
        with open(self.path("disk.img"), "wb") as image:
            image.truncate(SIZE)
            image.seek(5 * MIB)
            image.write(b"d" * MIB)
        document = json.loads(self.nbdkit("file", self.path("disk.img"), command=(
            '"$GMBLOCK" info --map --json "$uri"')))
        self.assertEqual(document["size"], SIZE)
        self.assertEqual([(extent["offset"], extent["length"]) for extent in document["extents"]
                          if extent["type"] == "data"], [(5 * MIB, MIB)])
        self.assertEqual(sum(extent["length"] for extent in document["extents"]), SIZE)

    def test_a_map_beyond_32_bits(self):
        document = json.loads(self.nbdkit("null", "100T", command=(
            '"$GMBLOCK" info --map --json "$uri"')))
        self.assertEqual(document["size"], 100 << 40)
        self.assertEqual([extent["length"] for extent in document["extents"]], [100 << 40])

    def test_no_map_without_structured_replies(self):
        output = self.nbdkit("--no-sr", "memory", "1M", command=(
            '"$GMBLOCK" info --map "$uri" 2>&1; echo "status $?"'))
        self.assertIn("structured replies", output)
        self.assertTrue(output.endswith("status 1\n"), output)


if __name__ == "__main__":
    support.main()
