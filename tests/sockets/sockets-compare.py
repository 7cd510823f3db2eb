#!/usr/bin/python3
"""libclan-sockets returns a connection to TCP if that is faster, and keeps the others.

    sockets-compare.py CLAN_RUN [TEST]
"""
import sys
import unittest

import sockets_tool
from sockets_tool import ports

# Both ends. A process knows from its statistics in shared memory (struct stats of src/sockets/sockets.h) whether its
# only connection is carried.
PROGRAM = """
import mmap, os, socket, struct, sys, time
def counters():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("/memfd:clan-sockets"):
                return mmap.mmap(int(fd), 4096, prot=mmap.PROT_READ)
        except OSError:
            pass
def returns_and_carried(memory):
    _, _, carried, _, _, back = struct.unpack("=6Q", memory[:48])
    return back, carried > back
role, slow_place, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    conn, _ = listener.accept()
    memory = counters()
    while data := conn.recv(1):
        if returns_and_carried(memory)[1] == (slow_place == "ring"):
            time.sleep(0.02)
        conn.sendall(data)
else:
    conn = socket.create_connection(("127.0.0.1", port))
    memory = counters()
    def exchange():
        conn.sendall(b"x")
        assert conn.recv(1) == b"x"
        return returns_and_carried(memory)
    if slow_place == "ring":
        while exchange()[0] < 2:
            pass
    else:
        while exchange()[0] < 1:
            pass
        while not exchange()[1]:
            pass
        for i in range(500):
            exchange()
"""


class Compare(sockets_tool.Case):
    def exchange(self, slow_place, program=PROGRAM, statement="spin off"):
        """What both ends have counted. The server answers late by rings, or by TCP."""
        port = ports.free()
        both = [sys.executable, "-c", program]
        server = self.start(*self.carried(f"listen *:{port}; spin off", *both, "server", slow_place, str(port)),
                            stdout=-1, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        client = self.start(*self.carried(f"connect *:{port}; {statement}", *both, "client", slow_place, str(port)))
        self.assertEqual(client.wait(timeout=sockets_tool.DEADLINE_S), 0)
        self.assertEqual(server.wait(timeout=sockets_tool.DEADLINE_S), 0)
        return self.stats()

    def test_a_connection_that_is_faster_by_tcp_returns_to_it(self):
        stats = self.exchange("ring")
        self.assertEqual((stats["compare"], stats["slow"]), (1, 1), stats)

    def test_a_connection_that_is_faster_by_rings_stays(self):
        stats = self.exchange("tcp")
        self.assertEqual((stats["compare"], stats["slow"]), (1, 0), stats)

    def test_with_compare_off_it_stays_whatever_is_faster(self):
        program = PROGRAM.replace("while exchange()[0] < 2:\n            pass",
                                  "for i in range(300):\n            exchange()")
        stats = self.exchange("ring", program, "compare off")
        self.assertEqual((stats["compare"], stats["slow"]), (0, 0), stats)
        self.assertGreater(stats["out_bytes"], 500)


if __name__ == "__main__":
    sockets_tool.RUN = sys.argv.pop(1)
    unittest.main(verbosity=2)
