#!/usr/bin/python3
"""The control socket of a server, byte by byte: what it answers, and that nobody who asks keeps it
from others or from stopping."""
import json
import os
import socket
import threading

import nbdmini
import support


class Control(support.Case):
    def serve(self, *arguments, **options):
        self.control = self.path("control")
        return self.start_unix("--control", self.control, *arguments, **options)

    def connect(self, question=b""):
        sock = socket.socket(socket.AF_UNIX)
        self.addCleanup(sock.close)
        sock.settimeout(nbdmini.TIMEOUT_S)
        sock.connect(self.control)
        sock.sendall(question)
        return sock

    def rest(self, sock):
        """What it tells until it closes."""
        parts = []
        try:
            while part := sock.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass  # it closed before it had read all of ours
        return b"".join(parts)

    def ask(self, question):
        return json.loads(self.rest(self.connect(question)))

    def arm(self, question=b'{"count": 1}'):
        sock = self.connect(b"trace " + question + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            byte = sock.recv(1)
            self.assertNotEqual(byte, b"", line)
            line += byte
        self.assertEqual(json.loads(line), {"armed": True})
        return sock

    def test_the_ways_to_ask_for_statistics(self):
        server = self.serve("memory:1M")
        silent = self.connect()
        ended = self.connect()
        ended.shutdown(socket.SHUT_WR)
        for sock in (silent, ended, self.connect(b"\n"), self.connect(b"stats\n"),
                     self.connect(b"stats\nand more")):
            self.assertEqual(json.loads(self.rest(sock))["pid"], server.process.pid)
        unfinished = self.connect(b"stats")
        unfinished.shutdown(socket.SHUT_WR)
        self.assertEqual(json.loads(self.rest(unfinished))["pid"], server.process.pid)

    def test_a_question_in_pieces(self):
        server = self.serve("memory:1M")
        sock = self.connect()
        for byte in b"stats\n":
            sock.sendall(bytes([byte]))
        self.assertEqual(json.loads(self.rest(sock))["pid"], server.process.pid)

    def test_wrong_questions(self):
        self.serve("memory:1M")
        for question in (b"traces\n", b"STATS\n", b"trace\n", b"\xff\xfe\n", b"trace\x00\n"):
            self.assertIn("error", self.ask(question), question)
        for question in (b"", b"{", b"[]", b"{}", b"null", b'{"count": 0}', b'{"count": 1001}',
                         b'{"count": "1"}', b'{"count": 1.5}', b'{"count": 1, "count": 2}',
                         b'{"count": 1, "speed": 2}', b'{"count": 1, "min_size": -1}',
                         b'{"count": 1, "min_size": "x"}', b'{"count": 1, "operations": []}',
                         b'{"count": 1, "operations": ["raed"]}',
                         b'{"count": 1, "operations": [7]}',
                         b'{"count": 1, "operations": "read"}', b'{"count": 1, "export": 7}',
                         b'{"count": 1, "export": "other"}', b'{"min_size": 1}',
                         b"[" * 5000):
            answer = self.ask(b"trace " + question + b"\n")
            self.assertEqual(list(answer), ["error"], question)
        told = self.ask(b'trace {"count": 1, "a\\\\b\\u001b": 2}\n')
        self.assertEqual(told["error"], 'this server does not know what "a\\x5cb\\x1b" is')
        self.arm()

    def test_more_than_a_question(self):
        """A line that never ends is cut off; others are answered meanwhile and afterwards."""
        server = self.serve("memory:1M")
        endless = self.connect()
        try:
            while True:
                endless.sendall(b"x" * 4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.assertEqual(self.rest(endless), b"")
        self.assertEqual(self.ask(b"stats\n")["pid"], server.process.pid)

    def test_many_at_a_time(self):
        """More than the server looks at together, one waiting, and all are answered."""
        server = self.serve("memory:1M")
        tracer = self.arm()
        socks = [self.connect() for _ in range(50)]
        socks += [self.connect(b"stats\n") for _ in range(50)]
        for sock in socks:
            self.assertEqual(json.loads(self.rest(sock))["pid"], server.process.pid)
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
        self.assertEqual(json.loads(self.rest(tracer))["ended"], "count")

    def test_a_second_trace_is_refused_while_one_waits(self):
        self.serve("memory:1M")
        first = self.arm()
        self.assertIn("one at a time", self.ask(b'trace {"count": 1}\n')["error"])
        first.close()
        second = self.arm()
        second.shutdown(socket.SHUT_WR)
        self.assertEqual(json.loads(self.rest(second))["ended"], "left")
        self.arm()

    def test_what_one_says_while_it_waits_is_nothing(self):
        server = self.serve("memory:1M")
        sock = self.arm()
        sock.sendall(b"x" * 100000 + b"\nstats\n")
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
        self.assertEqual(json.loads(self.rest(sock))["ended"], "count")

    def test_who_does_not_read_keeps_nobody_waiting(self):
        """The answer with a thousand requests does not fit into a socket: it waits there while
        others are served, and the server can be stopped."""
        server = self.serve("memory:16M")
        sock = self.arm(b'{"count": 1000, "operations": ["read"]}')
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with nbdmini.open_export(server.uri) as client:
            for _ in range(1000):
                client.read(0, 512)
            client.flush()  # and so the last read has ended for the server, too
            self.arm().close()
            self.assertEqual(self.ask(b"stats\n")["pid"], server.process.pid)
        self.assertEqual(len(json.loads(self.rest(sock))["requests"]), 1000)

    def test_who_reads_slowly_keeps_nobody_waiting(self):
        """Statistics that do not fit into a socket, and one who takes a little of them now and
        then, for ever: others get theirs, clients are served, and the server stops."""
        names = [f"{index:03}{'x' * 4000}" for index in range(100)]
        arguments = [f"--export={name}=memory:1M" for name in names]
        arguments += [f"--listen={self.socket_uri(str(index))}" for index in range(19)]
        server = self.serve(*arguments, uri_count=20 * len(names))
        slow = self.connect(b"stats\n")
        ended = threading.Event()
        taken = []

        def read_slowly():
            while not ended.wait(0.5):
                taken.append(slow.recv(65536))

        reader = threading.Thread(target=read_slowly)
        reader.start()
        self.addCleanup(reader.join)
        self.addCleanup(ended.set)
        whole = self.rest(self.connect(b"stats\n"))
        self.assertEqual(json.loads(whole)["pid"], server.process.pid)
        with nbdmini.open_export(server.uri, names[0].encode()) as client:
            client.read(0, 512)
        self.assertEqual(server.stop(), (0, ""))
        ended.set()
        reader.join()
        self.assertLess(sum(map(len, taken)), len(whole) / 2)

    def test_a_stop_tells_who_waits(self):
        server = self.serve("memory:1M")
        sock = self.arm(b'{"count": 7}')
        asking = self.connect(b"sta")
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
            client.flush()
        server.signal()
        told = json.loads(self.rest(sock))
        self.assertEqual((told["ended"], told["wanted"]), ("stop", 7))
        self.assertIn(len(told["requests"]), (1, 2))  # the flush may not have ended for it
        self.assertEqual(self.rest(asking), b"")
        self.assertEqual(server.wait(), (0, ""))
        self.assertFalse(os.path.exists(self.control))


if __name__ == "__main__":
    support.main()
