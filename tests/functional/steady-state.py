#!/usr/bin/python3
"""In steady state a request costs no allocation, no lock and no clock system call, and fewer system
calls than requests when they come in numbers."""
import collections
import mmap
import os
import re
import shutil
import struct
import sys
import unittest

import nbdmini
import support

COUNTER = os.path.realpath(sys.argv.pop(2))
DEPTH = 32
ROUNDS_WARM = 20
ROUNDS = 200
# What accepts and starts may still end in other threads on a busy machine; what a request does is in every try.
TRIES = 5


def traffic(client, rounds):
    """Reads and writes of 4 KiB, DEPTH at a time, each at a place of its own."""
    payload = b"w" * 4096
    for turn in range(rounds):
        write = turn % 2 == 1
        batch = b""
        for i in range(DEPTH):
            kind = nbdmini.CMD_WRITE if write else nbdmini.CMD_READ
            batch += struct.pack(">LHHQQL", nbdmini.REQUEST_MAGIC, 0, kind, i, i * 4096, 4096)
            batch += payload if write else b""
        client.sock.sendall(batch)
        client.receive(DEPTH * (16 if write else 16 + 4096))


class SteadyState(support.Case):
    def exports(self):
        disk = self.make_file("disk.img", os.urandom(DEPTH * 4096))
        return ["--export", f"cached={disk}", "--export", f"memory=memory:{DEPTH * 4096}"]

    def serve(self, **options):
        """Without a control socket: commands that look for a server ask all that they find."""
        return self.start("--threads", "1", "--control", "none", *self.exports(), "--listen",
                          f"nbd+unix:///?socket={self.path('sock')}", uri_count=2, **options)

    def test_no_allocation_and_no_lock(self):
        path = self.make_file("counters", bytes(24))
        environment = dict(os.environ, LD_PRELOAD=COUNTER, CALL_COUNTER_FILE=path)
        server = self.serve(env=environment)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 24) as counters:
            started = struct.unpack("=QQQ", counters[:])
            self.assertGreater(started[0], 0, "the counter is not in the program")
            for name in (b"cached", b"memory"):
                with nbdmini.open_export(server.uri, name) as client:
                    traffic(client, ROUNDS_WARM)
                    for _ in range(TRIES):
                        before = struct.unpack("=QQQ", counters[:])
                        traffic(client, ROUNDS)
                        after = struct.unpack("=QQQ", counters[:])
                        if after == before:
                            break
                    self.assertEqual(after, before, f"allocations and locks: {name}")

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_system_calls(self):
        log = self.path("strace")
        wrapper = self.path("traced")
        with open(wrapper, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec strace -D -f -o {log} {support.program()} "$@"\n')
        os.chmod(wrapper, 0o755)
        real, support.GMBLOCK = support.GMBLOCK, wrapper
        try:
            server = self.serve()
        finally:
            support.GMBLOCK = real
        with nbdmini.open_export(server.uri, b"cached") as client:
            traffic(client, ROUNDS_WARM)
            for _ in range(TRIES):
                before = self.calls(log)
                traffic(client, ROUNDS)
                done = self.calls(log) - before
                others = set(done) - {"io_uring_enter", "pwrite64", "sendmsg", "clock_gettime", "sched_yield"}
                if not others:
                    break
        requests = ROUNDS * DEPTH
        self.assertEqual(others, set(), f"system calls of {requests} requests: {done}")
        self.assertGreater(done["io_uring_enter"], 0, "nothing was traced")
        self.assertLess(done["io_uring_enter"], requests / 2, f"{done}")
        self.assertLessEqual(done["pwrite64"], requests / 2, "one a write")
        self.assertLessEqual(done["clock_gettime"], requests / 4, "two in a window of at least eight requests")
        self.assertLessEqual(done["sendmsg"], ROUNDS, "only where one request is in flight")
        self.assertLessEqual(done["sched_yield"], requests / 100, "now and then, to see whether the machine is busy")

    @staticmethod
    def calls(log):
        """How often each system call has been made, by the trace so far."""
        with open(log, encoding="utf-8", errors="replace") as file:
            names = re.findall(r"^\d+ +(\w+)\(", file.read(), re.MULTILINE)
        return collections.Counter(names)


if __name__ == "__main__":
    support.main()
