"""What the tests of `gmblock copy` share: images, running it, and a relay that acts at a byte.

A Relay stands between the program and a server and counts the bytes that pass. At a chosen byte it
does something (kills a process, closes the connections, flips a bit), so that a test needs no
clock to hit the middle of a copy.
"""
import json
import os
import random
import subprocess
import threading

import relay
import support

ODD_BYTES = 12345679
MIB = 1 << 20


class CopyCase(support.Case):
    """A test with images in its folder."""

    def copy(self, *arguments, **options):
        """Runs the command: status, standard output, standard error."""
        return self.run_gmblock("copy", *arguments, **options)

    def copy_ok(self, *arguments, **options):
        """It has to succeed and to be silent; returns what --json says."""
        status, output, errors = self.copy("--json", *arguments, **options)
        self.assertEqual((status, errors), (0, ""))
        summary = json.loads(output)
        self.assertEqual((summary["result"], summary["target_state"], summary["error"]),
                         ("complete", "complete", None))
        return summary

    def copy_fails(self, arguments, *fragments, status=1):
        """It has to fail with a message that holds each fragment; returns the message."""
        code, output, errors = self.copy(*arguments)
        self.assertEqual((code, output), (status, ""), errors)
        for fragment in fragments:
            self.assertIn(fragment, errors)
        return errors

    def image(self, name, size=ODD_BYTES, seed=1, holes=True):
        """A file of random data with holes of many sizes; the last bytes are data."""
        path = self.path(name)
        make_image(path, size, seed, holes)
        return path

    def same(self, one, other, size=None):
        """The first size bytes of both files are equal (default: all, and the sizes as well)."""
        if size is None:
            self.assertEqual(os.path.getsize(one), os.path.getsize(other))
            size = os.path.getsize(one)
        with open(one, "rb") as left, open(other, "rb") as right:
            for offset in range(0, size, MIB):
                count = min(MIB, size - offset)
                self.assertTrue(left.read(count) == right.read(count),
                                f"{one} and {other} differ after byte {offset}")

    def serve(self, export, name="s"):
        """A server of one export on a Unix socket of this name; its URI."""
        return self.start("--export", f"={export}", "--listen", self.socket_uri(name)).uri

    def serve_source(self, path, name="s"):
        """The same for reading, which may happen any number of times."""
        return self.serve(f"{path},readonly", name)

    def relay(self, upstream, name="relay"):
        made = Relay(self.path(name), self.path(upstream))
        self.addCleanup(made.close)
        return made

    def durable(self):
        """Where the journal says that the next run begins."""
        if not os.path.exists(self.path("journal")):
            return None
        with open(self.path("journal"), encoding="utf-8") as journal:
            lines = [line.split() for line in journal if " durable " in line and line.endswith("\n")]
        return int(lines[-1][2]) if lines else 0

    def spawn(self, *arguments, **options):
        process = subprocess.Popen(
            [support.program(), "copy", *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.communicate()

        self.addCleanup(end)
        return process


def make_image(path, size, seed, holes=True):
    source = random.Random(seed)
    with open(path, "wb") as out:
        out.truncate(size)
        offset = 0
        while offset < size:
            length = min(source.choice([512, 4096, 5000, 65536, 300000, MIB]), size - offset)
            if not holes or source.random() < 0.5 or offset + length == size:
                out.seek(offset)
                out.write(source.randbytes(length))
            offset += length
    return path


def allocated(path):
    return os.stat(path).st_blocks * 512


class Relay(relay.Relay):
    """Acts when a chosen byte passes."""

    def __init__(self, path, upstream):
        self.uri = f"nbd+unix:///?socket={path}"
        self.lock = threading.Lock()
        self.total = {relay.UP: 0, relay.DOWN: 0}
        self.triggers = {}
        super().__init__(upstream, path)

    def at(self, way, count, action):
        """When count more bytes have gone "up" (to the server) or "down", action(chunk, index) is
        called once, before the chunk that holds that byte is passed on; what it returns is passed
        on in its place, None: the chunk as it is."""
        direction = relay.UP if way == "up" else relay.DOWN
        with self.lock:
            self.triggers[direction] = (self.total[direction] + count, action)

    def seen(self, link, direction, data):
        with self.lock:
            start = self.total[direction]
            self.total[direction] += len(data)
            at, action = self.triggers.get(direction, (None, None))
            if at is None or at >= start + len(data):
                return data
            del self.triggers[direction]
        changed = action(data, max(at - start, 0))
        return data if changed is None else changed


def flip(chunk, index):
    """For Relay.at(): one bit of this byte is wrong."""
    return chunk[:index] + bytes([chunk[index] ^ 1]) + chunk[index + 1:]
