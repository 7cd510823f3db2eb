#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gmblock info against other people's servers and our own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import ports
from info_tool import GMBLOCK, InfoCase, row

SIZE = 123456789
PATIENCE_S = 60


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"{program} is not installed")


class PeerCase(InfoCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-test-")
        # A server that is just ending removes its own socket: what is gone is gone.
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.image = os.path.join(self.folder, "disk.img")
        with open(self.image, "wb") as image:
            image.truncate(SIZE)

    def shown(self, *args):
        done = self.run_info(*args)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def document(self, *args):
        return json.loads(self.shown("--json", *args))

    def export(self, *args):
        exports = self.document(*args)["exports"]
        self.assertEqual(len(exports), 1)
        return exports[0]


@needs("nbdkit")
class Nbdkit(PeerCase):
    def nbdkit(self, *args, command):
        """What the command printed while the server ran; uri is set for it."""
        done = subprocess.run(["nbdkit", "-U", os.path.join(self.folder, "socket"), *args,
                               "--run", command], capture_output=True, timeout=PATIENCE_S,
                              stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, "GMBLOCK": GMBLOCK})
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode()

    def test_facts(self):
        text = self.nbdkit("-r", "-e", "disk", "file", self.image,
                           command='"$GMBLOCK" info --json "$uri"')
        document = json.loads(text)
        self.assertEqual(document["protocol"]["replies"], "structured")
        export = document["exports"][0]
        self.assertEqual((export["name"], export["size"]), ("disk", SIZE))
        self.assertIs(export["capabilities"]["read_only"], True)
        self.assertEqual(export["contexts"], ["base:allocation"])

    def test_every_export_of_a_directory(self):
        second = os.path.join(self.folder, "images")
        os.mkdir(second)
        for name, size in (("a", 1000), ("b", 2000)):
            with open(os.path.join(second, name), "wb") as image:
                image.truncate(size)
        text = self.nbdkit("file", f"dir={second}", command='"$GMBLOCK" info --list --json "$uri"')
        exports = json.loads(text)["exports"]
        self.assertEqual(sorted((e["name"], e["size"]) for e in exports),
                         [("a", 1000), ("b", 2000)])

    def test_without_structured_replies(self):
        text = self.nbdkit("--no-sr", "memory", "1M", command='"$GMBLOCK" info "$uri"')
        self.assertEqual(row(text, "Protocol"), "fixed newstyle, simple replies, no TLS")
        self.assertEqual(row(text, "Size"), "1.0 MiB (1048576 bytes)")

    def test_oldstyle(self):
        text = self.nbdkit("--oldstyle", "memory", "1M",
                           command='"$GMBLOCK" info "$uri" 2>&1; echo "status $?"')
        self.assertIn("oldstyle", text)
        self.assertTrue(text.endswith("status 1\n"), text)


@needs("qemu-nbd")
class QemuNbd(PeerCase):
    def setUp(self):
        super().setUp()
        path = os.path.join(self.folder, "socket")
        pid_file = os.path.join(self.folder, "pid")
        # --fork returns when the socket listens.
        subprocess.run(["qemu-nbd", "--fork", "--persistent", "-f", "raw", "-k", path, "-x", "disk",
                        "-D", 'a "disk"', "--pid-file", pid_file, self.image],
                       check=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        with open(pid_file, encoding="ascii") as pid:
            self.addCleanup(os.kill, int(pid.read()), signal.SIGTERM)
        self.uri = f"nbd+unix:///disk?socket={path}"
        self.other_uri = f"nbd+unix:///?socket={path}"

    def test_facts(self):
        export = self.export(self.uri)
        # It serves whole sectors.
        self.assertEqual(export["size"], (SIZE + 511) // 512 * 512)
        self.assertEqual(export["description"], 'a "disk"')
        self.assertEqual(export["contexts"], ["base:allocation"])
        self.assertEqual(export["block_sizes"]["maximum_payload"], 32 << 20)
        self.assertIs(export["capabilities"]["df"], True)

    def test_the_longest_abstract_name(self):
        # 108 bytes in all: an abstract name uses the byte that ends a path.
        name = f"gmblock-test-{os.getpid()}".ljust(107, "x")
        done = subprocess.run([GMBLOCK, "serve", "memory:1M", "--listen",
                               f"nbd+unix:///?socket=%00{name}", "--run",
                               '"$GMBLOCK" info "$uri"'], capture_output=True, check=False,
                              timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "GMBLOCK": GMBLOCK})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"1.0 MiB", done.stdout)

    def test_a_missing_default_export(self):
        done = self.run_info(self.other_uri)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('export "": no such export', done.stderr)
        self.assertIn('  "disk"\n', done.stderr)

    def test_list(self):
        self.assertEqual([e["name"] for e in self.document("--list", self.other_uri)["exports"]],
                         ["disk"])


@needs("nbd-server")
class NbdServer(PeerCase):
    def setUp(self):
        super().setUp()
        # It cannot take a port from the kernel and tell which, and its Unix socket does not work (3.24).
        port = ports.free()
        self.uri = f"nbd://127.0.0.1:{port}/"
        config = os.path.join(self.folder, "config")
        pid_path = os.path.join(self.folder, "pid")
        with open(config, "w", encoding="ascii") as out:
            out.write(f"[generic]\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n"
                      f"[rw]\nexportname = {self.image}\nflush = true\nfua = true\n"
                      f"[ro]\nexportname = {self.image}\nreadonly = true\n")
        done = subprocess.run(["nbd-server", "-C", config, "-p", pid_path], check=False,
                              timeout=PATIENCE_S, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        # The daemon writes its pid, listens, and then looks for a prime number, which takes up to seconds of CPU time.
        self.wait_until_done(lambda: self.addCleanup(os.kill, self.read_number(pid_path), signal.SIGTERM))
        self.wait_until_done(lambda: self.greeting(port))

    def wait_until_done(self, attempt):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                attempt()
                return
            except (OSError, ValueError) as error:
                self.assertLess(time.monotonic(), end, error)
                time.sleep(0.01)

    @staticmethod
    def read_number(path):
        with open(path, encoding="ascii") as file:
            return int(file.read())

    @staticmethod
    def greeting(port):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as probe:
            return probe.recv(8)

    def test_facts(self):
        document = self.document(self.uri + "rw")
        self.assertEqual(document["protocol"]["replies"], "simple")
        export = document["exports"][0]
        self.assertEqual((export["name"], export["size"]), ("rw", SIZE))
        self.assertIs(export["capabilities"]["flush"], True)
        self.assertIs(self.export(self.uri + "ro")["capabilities"]["read_only"], True)

    def test_list(self):
        exports = self.document("--list", self.uri)["exports"]
        self.assertEqual(sorted(e["name"] for e in exports), ["ro", "rw"])

    def test_a_missing_export(self):
        done = self.run_info(self.uri + "nope")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('export "nope"', done.stderr)


class Gmblock(PeerCase):
    def serve(self, *args, command):
        path = os.path.join(self.folder, "socket")
        done = subprocess.run([GMBLOCK, "serve", "--listen", f"nbd+unix:///?socket={path}", *args,
                               "--run", command], capture_output=True, timeout=PATIENCE_S,
                              stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, "GMBLOCK": GMBLOCK})
        self.assertEqual(done.returncode, 0, done.stderr)
        # Its own lines, the URIs it serves, come before the command's.
        return done.stdout.decode()

    def test_facts(self):
        text = self.serve("--export", f"disk={self.image},description=a disk",
                          command='"$GMBLOCK" info --json "$uri"')
        document = json.loads(text[text.index("{"):])
        self.assertEqual(document["protocol"]["replies"], "extended")
        self.assertEqual(document["notes"], [])
        export = document["exports"][0]
        self.assertEqual((export["name"], export["size"], export["description"]),
                         ("disk", SIZE, "a disk"))
        self.assertEqual(export["contexts"], ["base:allocation"])
        wanted = ("flush", "fua", "trim", "write_zeroes", "df", "multi_conn", "cache")
        self.assertEqual([key for key in wanted if not export["capabilities"][key]], [])
        self.assertGreaterEqual(export["block_sizes"]["maximum_payload"], 1 << 20)

    def test_list(self):
        text = self.serve("--export", f"={self.image},readonly", "--export", "m=memory:1M",
                          command='"$GMBLOCK" info --list --json "$uri"')
        exports = json.loads(text[text.index("{"):])["exports"]
        facts = {e["name"]: (e["size"], e["capabilities"]["read_only"]) for e in exports}
        self.assertEqual(facts, {"": (SIZE, True), "m": (1 << 20, False)})

    def test_a_missing_default_export(self):
        text = self.serve("--export", "m=memory:1M",
                          command='uri="${uri%%m[?]*}?${uri#*[?]}"; '
                                  '"$GMBLOCK" info "$uri" 2>&1; echo "status $?"')
        self.assertIn('export "": no such export', text)
        self.assertIn('  "m"\n', text)
        self.assertTrue(text.endswith("status 1\n"), text)


if __name__ == "__main__":
    unittest.main()
