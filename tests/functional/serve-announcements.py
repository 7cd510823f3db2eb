#!/usr/bin/python3
"""What a stranger announces costs the server no memory: each connection asks for as many bytes of
memory as one that announces nothing, whatever the lengths and counts in it."""
import contextlib
import mmap
import os
import socket
import struct
import sys

import nbdmini
import support

COUNTER = os.path.realpath(sys.argv.pop(2))
OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
OPT_LIST_META, OPT_SET_META, OPT_UNKNOWN = 9, 10, 4711
HUGE = 2**32 - 1
# What it logs, and what a line of text may vary.
SLACK_BYTES = 4096


def option(number, data=b"", length=None):
    size = len(data) if length is None else length
    return struct.pack(">QII", nbdmini.IHAVEOPT, number, size) + data


NBD = [option(number, b"", HUGE) for number in (
    OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO, OPT_LIST_META, OPT_SET_META,
    OPT_UNKNOWN)] + [
    # Names and counts inside of options that are whole, or go on.
    option(OPT_GO, struct.pack(">I", HUGE)),
    option(OPT_GO, struct.pack(">I", HUGE), 1 << 20),
    option(OPT_INFO, struct.pack(">IH", 0, 65535)),
    option(OPT_SET_META, struct.pack(">III", 0, HUGE, 0)),
    option(OPT_LIST_META, struct.pack(">III", 0, 1, HUGE)),
    option(OPT_SET_META, struct.pack(">I", HUGE), 1 << 20),
    # Data that is read past.
    option(OPT_UNKNOWN, bytes(1 << 20)) + option(OPT_ABORT),
]


class Announcements(support.Case):
    def setUp(self):
        super().setUp()
        path = self.make_file("counters", bytes(24))
        environment = dict(os.environ, LD_PRELOAD=COUNTER, CALL_COUNTER_FILE=path)
        self.control = self.path("control")
        self.server = self.start_unix(
            "memory:1M", "--threads", "1", "--control", self.control, env=environment)
        file = open(path, "r+b")  # pylint: disable=consider-using-with
        self.addCleanup(file.close)
        self.counters = mmap.mmap(file.fileno(), 24)
        self.addCleanup(self.counters.close)
        self.assertGreater(self.asked(), 0, "the counter is not in the program")

    def asked(self):
        return struct.unpack("=QQQ", self.counters[:])[2]

    def cost(self, talk):
        """Bytes of memory asked for while one connection came, talked and went."""
        talk()  # what is only made once
        before = self.asked()
        talk()
        return self.asked() - before

    def check(self, talk, messages):
        silent = self.cost(lambda: talk(b""))
        self.assertGreater(silent, 0, "a connection has a state")
        for message in messages:
            with self.subTest(message=message[:64], bytes=len(message)):
                self.assertLessEqual(self.cost(lambda m=message: talk(m)), silent + SLACK_BYTES)

    def drain(self, sock):
        """Until the server has closed: it does when we send no more."""
        with contextlib.suppress(ConnectionError):
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass

    def talk_nbd(self, message):
        with nbdmini.Client(self.server.uri) as client:
            client.hello()
            with contextlib.suppress(ConnectionError):
                client.sock.sendall(message)
            self.drain(client.sock)

    def test_nbd(self):
        self.check(self.talk_nbd, NBD)

    def talk_control(self, message):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(nbdmini.TIMEOUT_S)
            sock.connect(self.control)
            with contextlib.suppress(ConnectionError):
                sock.sendall(message)
            self.drain(sock)

    def test_control(self):
        """A command has a limit, and the buffer grows with what has arrived."""
        self.check(self.talk_control, [b'{"command": "', b"[" * 512])


if __name__ == "__main__":
    support.main()
