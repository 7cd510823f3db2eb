"""Servers with push, and what gmblock push says about them."""
import hashlib
import json
import os
import random
import shutil
import subprocess

import ports
import support

MIB = 1 << 20


def digest(path, offset=0, length=None):
    with open(path, "rb") as file:
        file.seek(offset)
        return hashlib.sha256(file.read() if length is None else file.read(length)).hexdigest()


class Case(support.Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(11)
        self.count = 0

    def image(self, name, size, *pieces):
        """A sparse file with random bytes at (offset, length)."""
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
            for offset, length in pieces:
                file.seek(offset)
                file.write(self.random.randbytes(length))
        return path

    def serve(self, *exports, network=False, arguments=()):
        """A server of those exports; server.push("disk") is the URI of one."""
        self.count += 1
        provider = f"?provider={network}" if isinstance(network, str) else ""
        port = ports.free() if network else 0  # which no other program has when the server is started again
        listen = f"push://127.0.0.1:{port}{provider}" if network else f"push+unix:///?socket={self.path(f's{self.count}')}"
        server = self.start("--listen", listen, "--threads", "2",
                            "--control", self.path(f"control{self.count}"), *arguments,
                            *[word for export in exports for word in ("--export", export)],
                            uri_count=len(exports))
        server.control = self.path(f"control{self.count}")
        names = [export.split("=")[0] for export in exports]
        server.push = lambda name: server.uris[names.index(name)]
        return server

    def background(self, ready, *arguments):
        """A program for the life of a test, once the file is there."""
        if shutil.which(arguments[0]) is None:
            self.skipTest(f"{arguments[0]} is not installed")
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_for(lambda: os.path.exists(ready) or process.poll() is not None)
        if process.poll() is not None:
            self.fail(process.stderr.read())
        return process

    def push(self, source, target, *options):
        """What a push says that must succeed."""
        code, output, errors = self.run_gmblock("push", "--json", *options, source, target)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)

    def counters(self, server):
        code, output, errors = self.run_gmblock("stats", "--json", server.control)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)["counters"]

    def jobs(self, uri, *options):
        code, output, errors = self.run_gmblock("push", "--json", *(options or ["--list"]), uri)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)

    def start_push(self, *arguments):
        process = subprocess.Popen([support.program(), "push", *arguments], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def wait_for_bytes(self, uri, count):
        """Until a job there has done so many bytes."""
        self.wait_for(lambda: any(job["state"] == "moves" and job["bytes_done"] >= count
                                  for job in self.jobs(uri)))
