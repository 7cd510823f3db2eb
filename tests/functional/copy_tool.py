"""What the tests of `gmblock copy` share: images, running it, and a relay that acts at a byte.

A Relay stands between the program and a server and counts the bytes that pass. At a chosen byte it
does something (kills a process, closes the connections, flips a bit), so that a test needs no
clock to hit the middle of a copy.
"""
import json
import os
import random
import select
import socket
import subprocess
import threading

import support

ODD_BYTES = 12345679
MIB = 1 << 20
PIECE = 64 * 1024


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
        relay = Relay(self.path(name), self.path(upstream))
        self.addCleanup(relay.close)
        return relay

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


class Relay:
    """Passes bytes between clients at one Unix socket and a server at another."""

    def __init__(self, path, upstream):
        self.path = path
        self.uri = f"nbd+unix:///?socket={path}"
        self.upstream = upstream
        self.lock = threading.Lock()
        self.triggers = {"up": None, "down": None}
        self.passed = {"up": 0, "down": 0}
        self.sockets = set()
        self.threads = []
        self.closing = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.wake, self.woken = socket.socketpair()
        self.acceptor = threading.Thread(target=self._accept, daemon=True)
        self.acceptor.start()

    def at(self, direction, count, action):
        """When count more bytes have gone "up" (to the server) or "down", action(chunk, index) is
        called once, before the chunk that holds that byte is passed on; what it returns is passed
        on in its place, None: the chunk as it is."""
        with self.lock:
            self.triggers[direction] = (self.passed[direction] + count, action)

    def drop(self):
        """Closes all connections; new ones are accepted."""
        for one in list(self.sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.closing = True
        self.wake.send(b"x")
        self.acceptor.join()
        self.drop()
        for thread in self.threads:
            thread.join()
        for one in (self.listener, self.wake, self.woken):
            one.close()

    def _accept(self):
        while True:
            ready, _, _ = select.select([self.listener, self.woken], [], [])
            if self.closing or self.woken in ready:
                return
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.upstream)
            except OSError:
                client.close()
                server.close()
                continue
            thread = threading.Thread(target=self._pass, args=(client, server), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _pass(self, client, server):
        pair = {client: (server, "up"), server: (client, "down")}
        self.sockets.update(pair)
        try:
            while True:
                ready, _, _ = select.select(list(pair), [], [])
                for one in ready:
                    chunk = one.recv(PIECE)
                    if not chunk:
                        return
                    other, direction = pair[one]
                    other.sendall(self._look(direction, chunk))
        except OSError:
            pass
        finally:
            self.sockets.difference_update(pair)
            client.close()
            server.close()

    def _look(self, direction, chunk):
        with self.lock:
            start = self.passed[direction]
            self.passed[direction] += len(chunk)
            trigger = self.triggers[direction]
            if trigger is None or trigger[0] >= start + len(chunk):
                return chunk
            self.triggers[direction] = None
        changed = trigger[1](chunk, max(trigger[0] - start, 0))
        return chunk if changed is None else changed


def flip(chunk, index):
    """For Relay.at(): one bit of this byte is wrong."""
    return chunk[:index] + bytes([chunk[index] ^ 1]) + chunk[index + 1:]
