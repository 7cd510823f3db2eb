#!/usr/bin/python3
"""The examples do what they say.

    check.py GMBLOCK FOLDER_OF_PROGRAMS LIBRARY
"""
import os
import random
import subprocess
import sys
import tempfile
import unittest

GMBLOCK = ""
PROGRAMS = ""
LIBRARY = ""
HERE = os.path.dirname(os.path.realpath(__file__))
IMAGE_BYTES = (9 << 20) + 1234


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gmblock-examples-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.image = os.path.join(self.folder, "image")
        self.content = bytearray(IMAGE_BYTES)
        numbers = random.Random(1)
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES)
            for start, length in ((0, 65536), (5 << 20, (2 << 20) + 77), (IMAGE_BYTES - 1000, 1000)):
                self.content[start:start + length] = numbers.randbytes(length)
                file.seek(start)
                file.write(self.content[start:start + length])

    def serve(self, command, *exports, status=0, **options):
        """What a command prints that runs beside a server; $uri is the first export."""
        socket = os.path.join(self.folder, "s")
        done = subprocess.run(
            [GMBLOCK, "serve", *exports, "--listen", f"nbd+unix:///?socket={socket}", "--run",
             command], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "PROGRAMS": PROGRAMS, "FOLDER": self.folder,
                 "GMBLOCK_LIBRARY": LIBRARY, "HERE": HERE, "PYTHON": sys.executable,
                 "PYTHONPATH": os.path.join(HERE, "../python")}, **options)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def line(self, offset):
        return f"{offset}: {self.content[offset:offset + 16].hex(' ')}"

    def copy_out(self, program, depth):
        done = self.serve(f'exec "$PROGRAMS/{program}" "$uri" "$FOLDER/copy" {depth}', self.image)
        self.assertIn(f"{IMAGE_BYTES} bytes", done.stdout)
        with open(os.path.join(self.folder, "copy"), "rb") as file:
            self.assertEqual(file.read(), self.content)

    def test_clan_echo(self):
        program = os.path.join(PROGRAMS, "clan-echo")
        if not os.path.exists(program):
            self.skipTest("libclan is not built for this processor")
        address = "shm:" + os.path.join(self.folder, "clan")
        with subprocess.Popen([program, address], stdout=subprocess.PIPE, text=True) as server:
            try:
                self.assertEqual(server.stdout.readline(), "ready\n")
                for text in ("hello", "again"):
                    done = subprocess.run([program, address, text], capture_output=True,
                                          text=True, check=False, timeout=60)
                    self.assertEqual((done.stdout, done.stderr, done.returncode),
                                     (f"{text}\nput by the server\n", "", 0))
                server.terminate()
                self.assertEqual(server.wait(timeout=60), 0)
                self.assertFalse(os.path.exists(os.path.join(self.folder, "clan")))
            finally:
                server.kill()

    def test_guest_memory(self):
        for scheme in ("nbd+unix", "gmb+unix"):
            uri = f"{scheme}:///?socket={self.folder}/guest-{scheme}"
            done = self.serve(f'exec "$PROGRAMS/guest-memory" "{uri}" >"$FOLDER/copy"', self.image,
                              "--listen", uri)
            with open(os.path.join(self.folder, "copy"), "rb") as file:
                self.assertEqual(file.read(), self.content[:65536])
        self.assertRegex(done.stderr, "(?m)^0 bytes were copied on the way$")

    def test_clan_mesh(self):
        program = os.path.join(PROGRAMS, "clan-mesh")
        if not os.path.exists(program):
            self.skipTest("libclan is not built for this processor")
        count = 4
        addresses = ["shm:" + os.path.join(self.folder, "mesh%d" % i) for i in range(count)]
        nodes = [subprocess.Popen([program, str(i), *addresses], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for i in range(count)]
        try:
            for i, node in enumerate(nodes):
                out, err = node.communicate(timeout=60)
                self.assertEqual((err, node.returncode), ("", 0))
                self.assertEqual(sorted(out.splitlines()), [
                    "hello node %d, from %d" % (i, j) for j in range(count) if j != i])
        finally:
            for node in nodes:
                node.kill()
                node.wait()

    def test_read_async(self):
        for depth in ("1", "7", "200", ""):
            with self.subTest(depth=depth):
                self.copy_out("read-async", depth)

    def test_read_async_linked_statically(self):
        self.copy_out("read-async-static", "16")
        needed = subprocess.run(["ldd", os.path.join(PROGRAMS, "read-async-static")],
                                capture_output=True, text=True, check=True)
        self.assertNotIn("gmblock", needed.stdout)

    def test_read_async_says_what_failed(self):
        done = self.serve('exec "$PROGRAMS/read-async" "$uri" "$FOLDER/copy"',
                          "--export", f"={self.image},fault=read:EIO:range=4194304+1", status=1)
        self.assertIn("at 4194304: Input/output error", done.stderr)
        self.assertNotIn("bytes\n", done.stdout)

    def event_loop(self, program):
        offsets = [0, 5 << 20, 12345, IMAGE_BYTES - 16, 65530]
        text = "".join(f"{offset}\n" for offset in offsets)
        done = self.serve(f'printf "{text}" | "$PROGRAMS/{program}" "$uri"', self.image)
        for offset in offsets:
            self.assertIn(self.line(offset), done.stdout.splitlines())
        done = self.serve(f'printf "7\\n99999999\\n" | "$PROGRAMS/{program}" "$uri"', self.image,
                          status=1)
        self.assertIn(self.line(7), done.stdout.splitlines())
        self.assertIn("read of 16 bytes at 99999999", done.stderr)

    def test_event_loop(self):
        self.event_loop("event-loop")

    def test_event_loop_answers_while_it_is_typed_to(self):
        process = subprocess.Popen(
            [GMBLOCK, "serve", self.image, "--listen",
             f"nbd+unix:///?socket={os.path.join(self.folder, 's')}", "--run",
             'exec "$PROGRAMS/event-loop" "$uri"'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PROGRAMS": PROGRAMS})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        for offset in (4096, 5 << 20, 0):
            process.stdin.write(f"{offset}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            while line.startswith("nbd"):
                line = process.stdout.readline()
            self.assertEqual(line.rstrip(), self.line(offset))
        process.stdin.close()
        self.assertEqual(process.wait(timeout=60), 0)

    def test_event_loop_as_cpp(self):
        if not os.path.exists(os.path.join(PROGRAMS, "event-loop-cpp")):
            self.skipTest("no C++ compiler")
        self.event_loop("event-loop-cpp")

    def test_copy_extents(self):
        target = os.path.join(self.folder, "target")
        with open(target, "wb") as file:
            file.write(b"\xaa" * IMAGE_BYTES)
        done = self.serve('exec "$PROGRAMS/copy-extents" "$uri" "${uri%%\\?*}target?${uri#*\\?}"',
                          "--export", f"={self.image}", "--export", f"target={target}")
        with open(target, "rb") as file:
            self.assertEqual(file.read(), self.content)
        words = done.stdout.splitlines()[-1].split()
        copied, zeroed = int(words[0]), int(words[3])
        self.assertEqual(copied + zeroed, IMAGE_BYTES)
        self.assertGreater(zeroed, 6 << 20)

    def test_send_file(self):
        """All of it or an error; over gmb without a copy; with the checksum of what was sent."""
        checksums = set()
        for scheme in ("nbd+unix", "gmb+unix"):
            uri = f"{scheme}:///target?socket={self.folder}/send-{scheme}"
            target = os.path.join(self.folder, f"target-{scheme}")
            with open(target, "wb") as file:
                file.write(b"\xaa" * (IMAGE_BYTES + 4096))
            command = 'exec "$PROGRAMS/send-file" "%s" "$FOLDER/image"' % uri
            options = ["--export", f"target={target}", "--listen", uri.replace("///target", "///")]
            done = self.serve(command, *options)
            with open(target, "rb") as file:
                self.assertEqual(file.read(), self.content + b"\xaa" * 4096)
            words = done.stdout.splitlines()[-1].split()
            self.assertEqual(words[0], str(IMAGE_BYTES))
            checksums.add(words[3])
            if scheme == "gmb+unix":
                self.assertEqual(words[4], "0")
            done = self.serve(f"{command} {IMAGE_BYTES + 1}", *options, status=1)
            self.assertIn("No data available", done.stderr)
            self.assertNotIn("bytes,", done.stdout)
        self.assertEqual(len(checksums), 1)
        done = self.serve('exec "$PROGRAMS/send-file" "$uri" "$FOLDER/image"',
                          "--export", f"={self.image},fault=flush:EIO", status=1)
        self.assertIn("Input/output error", done.stderr)

    def test_copy_extents_to_a_read_only_target(self):
        done = self.serve('exec "$PROGRAMS/copy-extents" "$uri" "$uri"',
                          "--export", f"={self.image},readonly", status=1)
        self.assertIn("read-only", done.stderr)

    @unittest.skipUnless(os.environ.get("SANITIZE", "none") == "none",
                         "Python is not built with the sanitizer that the library needs")
    def test_python(self):
        done = self.serve('exec "$PYTHON" "$HERE/read-async.py" "$uri" 0 0x500000 70000', self.image)
        self.assertIn(f"{IMAGE_BYTES} bytes", done.stdout)
        for offset in (0, 5 << 20, 70000):
            self.assertIn(self.line(offset), done.stdout.splitlines())
        done = self.serve('exec "$PYTHON" "$HERE/read-async.py" "${uri%%\\?*}none?${uri#*\\?}"',
                          self.image, status=1)
        self.assertIn("none", done.stderr)

    def test_usage(self):
        for name in ("read-async", "event-loop", "copy-extents", "guest-memory", "send-file"):
            done = subprocess.run([os.path.join(PROGRAMS, name)], capture_output=True, text=True,
                                  check=False, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"usage: {name} ", done.stderr)


if __name__ == "__main__":
    GMBLOCK, PROGRAMS, LIBRARY = (os.path.realpath(path) for path in sys.argv[1:4])
    del sys.argv[1:4]
    unittest.main(verbosity=2)
