#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgmblock against servers that break the protocol, stall or go away: the connection ends with the
rule named, requests end once, other clients of the same queue go on.

    client-hostile.py DRIVER [unittest argument]...
"""

import fcntl
import itertools
import os
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import unittest
import zlib

from fake_export import (ALIVE, BLOCK_STATUS, CACHE, DATA, DONE, ERROR, ERROR_OFFSET, EXTENDED_STYLE, FLAGS,
                         HOLE, MULTI_CONN, NONE, READ, SIMPLE_STYLE, SIZE, SIZE_CONTEXT, STATUS,
                         STRUCTURED_STYLE, TRIM, ZERO, Export,
                         ExportServer, content, greeting_bytes, open_export, opening)
from fake_server import GO, INFO_REPLY, ClientGone, FakeServer

DRIVER = ""
# A driver that hangs is killed after this long; no run that behaves comes near.
PATIENCE_S = 100

NO_RECONNECT = 2
CAN_FAST_ZERO = 1 << 11
STYLES = (SIMPLE_STYLE, STRUCTURED_STYLE, EXTENDED_STYLE)
CHUNKS = (STRUCTURED_STYLE, EXTENDED_STYLE)

NOTCONN, PROTO, TIMEDOUT, IO = -107, -71, -110, -5


def unread(conn):
    """How much of what was sent over a Unix socket still waits to be received."""
    return struct.unpack("i", fcntl.ioctl(conn, termios.TIOCOUTQ, bytes(4)))[0]


def crc(offset, length):
    return str(zlib.crc32(content(offset, length)))


class Case(unittest.TestCase):
    maxDiff = None

    def drive(self, *lines):
        """The driver's answers as lists of words, at most six a line."""
        done = subprocess.run([DRIVER], input="".join(line + "\n" for line in lines).encode(),
                              capture_output=True, timeout=PATIENCE_S, check=False)
        if done.returncode == 77:
            self.skipTest(done.stderr.decode())
        self.assertEqual((done.returncode, done.stderr), (0, b""), done.stdout)
        for byte in set(done.stdout):
            self.assertTrue(32 <= byte < 127 or byte == 10, done.stdout)
        return [line.split(" ", 6) for line in done.stdout.decode().splitlines()]

    @staticmethod
    def of(answers, word, key):
        return [" ".join(answer[2:]) for answer in answers if answer[:2] == [word, key]]

    def results(self, answers, key):
        """(result, answer, text) of the requests of a client, in the order of submits."""
        done = sorted((answer for answer in answers if answer[:2] == ["done", key]),
                      key=lambda answer: int(answer[2]))
        return [(int(answer[4]), *answer[5:]) for answer in done]


class Violations(Case):
    """The server misbehaves in its answer to the first request of client "bad"; client "good" has
    an honest server and requests in flight at the same time."""

    def break_rule(self, misbehave, rule, *texts, styles=CHUNKS, ask=("read bad 4096 1000 0",)):
        for style in styles:
            with self.subTest(style=style):
                self.break_rule_in(style, misbehave, rule, texts, ask)

    def break_rule_in(self, style, misbehave, rule, texts, ask):
        def script(export):
            export.send(misbehave(export, export.request()))
            export.dialogue.wait_for_close()
        with ExportServer(script, style=style) as bad, \
                ExportServer(lambda export: export.serve(), style=style) as good:
            answers = self.drive(
                f"open good {good.uri()}",
                f"open bad {bad.uri()} flags={NO_RECONNECT}",
                "read good 0 5000 0", *ask, "write good 512 512 0", "wait",
                "read bad 0 512 0", "read good 77 3000 0", "wait", "close bad", "close good")
        self.assertEqual((bad.failures, good.failures), ([], []))
        lost, gave_up = self.of(answers, "event", "bad")
        self.assertTrue(lost.startswith("lost ") and gave_up.startswith("gave-up "), answers)
        results = self.results(answers, "bad")
        self.assertEqual(len(results), len(ask) + 1, answers)
        for text in (rule, *texts):
            self.assertIn(text, lost)
            for code, answer, explained in results:
                self.assertEqual((code, answer), (NOTCONN, "-"))
                self.assertIn(text, explained)
        self.assertEqual([result[:2] for result in self.results(answers, "good")],
                         [(0, crc(0, 5000)), (0, "-"), (0, crc(77, 3000))])
        self.assertEqual(self.of(answers, "event", "good"), [])

    def test_garbage(self):
        self.break_rule(lambda e, r: b"HTTP/1.1 400 Bad Request\r\n\r\n", "rule P120",
                        styles=STYLES)

    def test_a_cookie_nobody_gave(self):
        self.break_rule(lambda e, r: e.chunk(r, NONE, cookie=b"whocares"), "rule P70")

    def test_a_simple_cookie_nobody_gave(self):
        self.break_rule(lambda e, r: e.simple(r, cookie=b"whocares"), "rule P70",
                        styles=(SIMPLE_STYLE, STRUCTURED_STYLE))

    def test_the_same_answer_twice(self):
        """As one piece: the second comes before the client can ask again."""
        def script(export):
            answer = export.error(export.request(), 5)
            export.send(answer + answer)
            export.dialogue.wait_for_close()
        for style in CHUNKS:
            with ExportServer(script, style=style) as server:
                answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                     "read c 0 512 0", "wait", "turn 0", "read c 0 512 0", "wait")
            self.assertEqual(server.failures, [])
            self.assertEqual([result[0] for result in self.results(answers, "c")], [IO, NOTCONN])
            self.assertIn("rule P70", self.of(answers, "event", "c")[0])

    def test_a_simple_answer_to_a_read(self):
        self.break_rule(lambda e, r: e.simple(r, 0, content(r.offset, r.length)), "rule P88",
                        styles=(STRUCTURED_STYLE,))

    def test_another_offset(self):
        self.break_rule(lambda e, r: e.chunk(r, NONE, offset=r.offset + 1), "rule P110",
                        styles=(EXTENDED_STYLE,))

    def test_data_past_the_buffer(self):
        self.break_rule(lambda e, r: e.data(r, 0, 1001), "rule P90", "outside")
        self.break_rule(lambda e, r: e.data(r, -1, 1000), "rule P90", "outside")
        self.break_rule(lambda e, r: e.data(r, 1000, 1), "rule P90", "outside")

    def test_data_of_absurd_lengths(self):
        for length in (0xFFFFFFFF, 0x80000000):
            self.break_rule(lambda e, r, n=length: e.chunk(
                r, DATA, struct.pack(">Q", r.offset), length=n), "rule P90", "outside")
        self.break_rule(lambda e, r: e.chunk(r, DATA, struct.pack(">Q", r.offset),
                                             length=(1 << 64) - 1), "rule P90", "outside",
                        styles=(EXTENDED_STYLE,))

    def test_data_twice_and_too_little(self):
        self.break_rule(lambda e, r: e.data(r, 0, 600, 0) + e.data(r, 599, 401), "rule P90",
                        "twice")
        self.break_rule(lambda e, r: e.data(r, 0, 999), "rule P90", "but some of its data is missing")
        self.break_rule(lambda e, r: e.chunk(r, NONE), "rule P90", "but some of its data is missing")

    def test_a_split_answer_to_df(self):
        self.break_rule(lambda e, r: e.data(r, 0, 500, 0) + e.data(r, 500), "rule P93",
                        ask=("read bad 4096 1000 4",))

    def test_holes(self):
        self.break_rule(lambda e, r: e.hole(r, 0, 0xFFFFFFFF), "rule P90")
        self.break_rule(lambda e, r: e.hole(r, 0, 0), "rule P90", "empty")
        self.break_rule(lambda e, r: e.chunk(r, HOLE, bytes(11)), "rule P97", "11 bytes")

    def test_data_for_a_write(self):
        self.break_rule(lambda e, r: e.data(r), "rule P97", "WRITE",
                        ask=("write bad 4096 1000 0",))

    def test_errors(self):
        self.break_rule(lambda e, r: e.error(r, 0), "rule P92")
        self.break_rule(lambda e, r: e.error(r, 5, b"x" * 4097), "rule P97", "4103 bytes")
        self.break_rule(lambda e, r: e.chunk(r, ERROR, struct.pack(">IH", 5, 9) + b"short"),
                        "rule P92")
        self.break_rule(lambda e, r: e.chunk(r, ERROR_OFFSET,
                                             struct.pack(">IHQ", 5, 0, r.offset + 1000)),
                        "rule P92", "outside")

    def test_errors_without_end(self):
        def script(export):
            chunk = export.error(export.request(), 5, b"and again", flags=0)
            while True:
                export.send(chunk * 100)
        with ExportServer(script) as server:
            answers = self.drive(f"open bad {server.uri()} flags={NO_RECONNECT}",
                                 "read bad 0 4096 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertIn("rule P92", self.of(answers, "event", "bad")[0])
        self.assertEqual(self.results(answers, "bad")[0][0], NOTCONN)

    def test_unknown_chunks(self):
        self.break_rule(lambda e, r: e.chunk(r, 3), "rule P97", "unknown type 3")
        self.break_rule(lambda e, r: e.chunk(r, 0x8003, length=(1 << 20) + 1), "rule P97")

    def test_block_status(self):
        ask = ("status bad 0 65536 0",)
        for misbehave, rule in (
                (lambda e, r: e.extents(r, [(512, 0)], context=7), "rule P100"),
                (lambda e, r: e.extents(r, []), "rule P97"),
                (lambda e, r: e.extents(r, [(512, 0), (0, 0)]), "P100"),
                (lambda e, r: e.extents(r, [(65536, 0), (512, 0)]), "P101"),
                (lambda e, r: e.chunk(r, NONE), "rule P100"),
                (lambda e, r: e.data(r, 0, 512), "rule P97")):
            self.break_rule(misbehave, rule, ask=ask)
        self.break_rule(lambda e, r: e.extents(r, [(512, 0)], count=2), "P114", ask=ask,
                        styles=(EXTENDED_STYLE,))
        self.break_rule(lambda e, r: e.chunk(r, BLOCK_STATUS, bytes(12)), "rule P97", ask=ask,
                        styles=(EXTENDED_STYLE,))
        self.break_rule(lambda e, r: e.extents(r, [(512, 0), (512, 1)]), "rule P102",
                        ask=("status bad 0 65536 8",))
        self.break_rule(lambda e, r: e.extents(r, [(512, 0)]), "rule P97")

    def test_signs_of_life(self):
        def sign(extents, flags=0, context=ALIVE):
            return lambda export, request: export.extents(request, extents, context, flags)

        for style in CHUNKS:
            for alive, answer, text in ((True, sign([(1, 0)], DONE), "sent a keep-alive chunk"),
                                        (True, sign([(1, 0)] * 2), "sent a keep-alive chunk"),
                                        (True, sign([(1, 0)], 0, ALIVE - 1), "(rule P97)"),
                                        (False, sign([(1, 0)]), "(rule P97)")):
                def script(export, answer=answer):
                    export.send(answer(export, export.request(READ)))
                    export.dialogue.wait_for_close()
                with ExportServer(script, style=style, alive=alive) as server:
                    answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                         "read c 0 4096 0", "wait")
                self.assertEqual(server.failures, [])
                self.assertEqual(self.results(answers, "c")[0][0], NOTCONN)
                self.assertIn(text, self.of(answers, "event", "c")[0])

    def test_sizes(self):
        """x-gmblock:size: what cannot be its answer ends the connection."""
        for style in CHUNKS:
            for answer, text in (
                    (lambda e, r: e.size(r, 1 << 63), "(rule P68)"),
                    (lambda e, r: e.size(r, SIZE, flags=0), "sent the export size with"),
                    (lambda e, r: e.extents(r, [(1, 0)] * 3, SIZE_CONTEXT), "sent the export size with"),
                    (lambda e, r: e.extents(r, [(1, 0)]), "(rule P97)"),
                    (lambda e, r: e.chunk(r, NONE), "(rule P100)"),
                    (lambda e, r: e.data(r, 0, 512), "(rule P97)"),
                    (lambda e, r: e.simple(r), "(rule P120)" if style == EXTENDED_STYLE else "(rule P88)"),
                    (lambda e, r: e.size(r, 2 * SIZE) * 2, "(rule P70)")):
                def script(export, answer=answer):
                    request, _ = sorted((export.request(), export.request()), key=lambda r: -r.kind)
                    assert (request.offset, request.length, request.flags) == (SIZE, 0, 0)
                    export.send(answer(export, request))
                    export.dialogue.wait_for_close()
                with ExportServer(script, style=style, says_size=True) as server:
                    answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                         "read c 0 4096 0", "wait")
                self.assertEqual(server.failures, [])
                self.assertEqual(self.results(answers, "c")[0][0], NOTCONN)
                lost = [event for event in self.of(answers, "event", "c") if event.startswith("lost ")]
                self.assertIn(text, lost[0])

    def test_bytes_after_the_last_answer(self):
        """The first answer counts; the connection is gone."""
        def script(export):
            export.send(export.honest(export.request()) + b"?" * 100)
            export.dialogue.wait_for_close()
        for style in STYLES:
            with ExportServer(script, style=style) as server:
                answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                     "read c 9 4000 0", "wait", "read c 0 512 0", "wait")
            first, second = self.results(answers, "c")
            self.assertEqual(first[:2], (0, crc(9, 4000)))
            self.assertEqual(second[0], NOTCONN)
            self.assertIn("rule P120", second[2])

    def test_an_answer_to_nothing(self):
        def script(export):
            request = export.request()
            export.send(export.honest(request))
            export.send(export.error(request, 5))
            export.dialogue.wait_for_close()
        with ExportServer(script) as server:
            answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}", "read c 0 512 0",
                                 "wait", "read c 0 512 0", "wait")
        self.assertIn("rule P70", self.of(answers, "event", "c")[0])


class Lawful(Case):
    """What is odd, and right."""

    def test_errors_that_are_answers(self):
        def script(export):
            request = export.request()
            export.send(export.data(request, 0, 500, 0) +
                        export.error(request, 5, b"\x1b[31mred\n"))
            request = export.request()
            export.send(export.chunk(request, 0x80FF, struct.pack(">IH", 28, 3) + b"new, and more"))
            request = export.request()
            export.send(export.chunk(request, ERROR, struct.pack(">IH", 12345, 0)))
            export.serve()
        for style in CHUNKS:
            with ExportServer(script, style=style) as server:
                answers = self.drive(f"open c {server.uri()}",
                                     "read c 0 1000 0", "wait", "write c 0 512 0", "wait",
                                     "flush c 0 0 0", "wait", "read c 5 600 0", "wait")
            self.assertEqual(server.failures, [])
            results = self.results(answers, "c")
            self.assertEqual([result[0] for result in results], [IO, -28, -22, 0])
            self.assertIn('"\\x1b[31mred\\x0a"', results[0][2])
            self.assertEqual(results[3][1], crc(5, 600))
            self.assertEqual(self.of(answers, "event", "c"), [])

    def test_answers_byte_by_byte_and_interleaved(self):
        def script(export):
            first, second = export.request(READ), export.request(READ)
            answer = b"".join(
                export.data(second, place, 100, 0) + export.data(first, place, 100, 0)
                for place in (900, 0, 400, 500, 100, 200, 300, 600, 700, 800))
            answer += export.chunk(first, NONE) + export.chunk(second, NONE, flags=0xFFFF)
            export.dialogue.conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            for at in range(len(answer)):
                export.send(answer[at:at + 1])
            export.serve()
        for style in CHUNKS:
            with ExportServer(script, style=style) as server:
                answers = self.drive(f"open c {server.uri()}",
                                     "read c 0 1000 0", "read c 5000 1000 0", "wait")
            self.assertEqual(server.failures, [])
            self.assertEqual([result[:2] for result in self.results(answers, "c")],
                             [(0, crc(0, 1000)), (0, crc(5000, 1000))])

    def test_answers_before_the_request_was_sent(self):
        """A refusal of a large write while its payload is still on the way."""
        def script(export):
            head = export.dialogue.receive(32)
            cookie = head[8:16]
            answer = struct.pack(">IHH8sQQIH", 0x6E8A278C, DONE, ERROR, cookie, 0, 6, 28, 0)
            export.send(answer)
            export.dialogue.receive(8 << 20)
            export.serve()
        with ExportServer(script, size=16 << 20) as server:
            answers = self.drive(f"open c {server.uri()}", f"write c 0 {8 << 20} 0",
                                 "read c 0 512 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertEqual([result[0] for result in self.results(answers, "c")], [-28, 0])


    def test_signs_of_life(self):
        """Anywhere between the chunks of any reply; and silence is silence all the same."""
        def script(export):
            requests = [export.request() for _ in range(4)]
            sign = [export.extents(request, [(1, 0)], ALIVE, flags=0) for request in requests]
            for request in requests:
                export.send(b"".join(sign))
                if request.kind == READ:
                    export.send(export.data(request, 0, 1000, flags=0) + b"".join(sign) +
                                export.data(request, 1000))
                else:
                    export.send(export.honest(request))
                sign.pop(0)
            export.request()
            export.dialogue.wait_for_close()
        for style in CHUNKS:
            with ExportServer(script, style=style, alive=True) as server:
                answers = self.drive(
                    f"open c {server.uri()} flags={NO_RECONNECT} request_timeout_ms=3000",
                    "read c 0 4096 0", "flush c 0 0 0", "status c 0 4096 0", "read c 8192 4096 0",
                    "wait", "flush c 0 0 0", "wait")
            self.assertEqual(server.failures, [])
            results = self.results(answers, "c")
            self.assertEqual([result[0] for result in results], [0, 0, 0, 0, NOTCONN])
            self.assertEqual([results[0][1], results[3][1]], [crc(0, 4096), crc(8192, 4096)])
            self.assertIn("the server did not respond in time", self.of(answers, "event", "c")[0])

    def test_sizes(self):
        """Anywhere between other replies; an error, or nothing new again and again, ends the
        questions, not the connection."""
        def grows(export):
            size, read = sorted((export.request(), export.request()), key=lambda r: -r.kind)
            export.send(export.data(read, 0, 1000, flags=0) + export.size(size, SIZE + (3 << 32)) +
                        export.data(read, 1000))
            size, read = sorted((export.request(), export.request()), key=lambda r: -r.kind)
            assert (size.kind, size.offset) == (STATUS, SIZE + (3 << 32))
            export.send(export.error(size, 108) + export.honest(read))
            export.send(export.honest(export.request(READ)))
            export.request()

        def repeats(export):
            kinds = []
            while READ not in kinds[2:]:
                request = export.request()
                kinds.append(request.kind)
                export.send(export.size(request, SIZE) if request.kind == STATUS else
                            export.honest(request))
            assert kinds.count(STATUS) <= 1024
            export.request()

        for style in CHUNKS:
            with ExportServer(grows, style=style, says_size=True) as server:
                answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                     "read c 0 4096 0", "wait", "read c 4096 4096 0", "wait",
                                     "read c 0 512 0", "wait", "close c")
            self.assertEqual(server.failures, [])
            self.assertEqual([result[:2] for result in self.results(answers, "c")],
                             [(0, crc(0, 4096)), (0, crc(4096, 4096)), (0, crc(0, 512))])
            self.assertEqual([event.split()[0] for event in self.of(answers, "event", "c")], ["resized"])
            with ExportServer(repeats, style=style, says_size=True) as server:
                answers = self.drive(f"open c {server.uri()} flags={NO_RECONNECT}",
                                     "read c 0 512 0", "wait", "read c 0 512 0", "wait", "close c")
            self.assertEqual(server.failures, [])
            self.assertEqual(self.of(answers, "event", "c"), [])

    def test_sizes_that_overtake_each_other(self):
        """The answer on one connection is older than the one on the other."""
        asked, grown = threading.Event(), threading.Event()
        lock, reads, done = threading.Lock(), [], []

        def end_reads():
            while done and reads:
                export, request = reads.pop()
                export.send(export.honest(request))

        def serve(export, steps):
            while True:
                request = export.request()
                if request.kind == READ:
                    reads.append((export, request))
                else:
                    for size, event in steps(request):
                        event.wait()
                        export.send(export.size(request, size))
                with lock:
                    end_reads()

        def first(request):
            if request.offset == SIZE:
                return [(SIZE + 8192, asked)]
            grown.set()
            return []

        def second(request):
            if request.offset == SIZE:
                asked.set()
                return [(SIZE + 4096, grown)]
            done.append(request)
            return []

        with ExportServer(lambda e: serve(e, first), lambda e: serve(e, second), says_size=True,
                          flags=FLAGS | MULTI_CONN, epoch=1) as server:
            answers = self.drive(f"open c {server.uri()} connections=2 flags={NO_RECONNECT}",
                                 "read c 0 512 0", "wait", f"read c {SIZE + 4096} 512 0", "wait",
                                 "close c")
        self.assertEqual(server.failures, [])
        self.assertEqual([result[0] for result in self.results(answers, "c")], [0, 0])
        self.assertEqual([event.split()[0] for event in self.of(answers, "event", "c")], ["resized"])

    def test_long_ranges_are_cut(self):
        """At multiples of a power of two, each with the flags of the whole."""
        begin, length = 3 << 20 | 4096, 700 << 20
        kinds = {"zero": (ZERO, 3), "trim": (TRIM, 1), "cache": (CACHE, 0), "fast": (ZERO, 16)}
        for name, (kind, flags) in kinds.items():
            pieces = []

            def script(export):
                while True:
                    request = export.request(kind)
                    pieces.append(request)
                    export.send(export.honest(request))
            command = "zero" if name == "fast" else name
            with ExportServer(script, size=1 << 40, flags=FLAGS | CAN_FAST_ZERO) as server:
                answers = self.drive(f"open c {server.uri()}",
                                     f"{command} c {begin} {length} {flags}", "wait")
            self.assertEqual(server.failures, [])
            self.assertEqual(self.results(answers, "c")[0][0], 0)
            pieces.sort(key=lambda piece: piece.offset)
            self.assertEqual({piece.flags for piece in pieces}, {flags})
            self.assertEqual(pieces[0].offset, begin)
            self.assertEqual(sum(piece.length for piece in pieces), length)
            for piece, after in zip(pieces, pieces[1:]):
                self.assertEqual(piece.offset + piece.length, after.offset)
                self.assertEqual(after.offset % (1 << 20), 0)
            self.assertTrue(len(pieces) == 1 if name == "fast" else 4 <= len(pieces) <= 12, pieces)


class Fewer(Case):
    def test_a_server_that_comes_back_for_one_connection_only(self):
        """Three connections are lost at once and made again at once, to a server that does not
        promise any more that they see the same data: just one of them may be used."""
        lock, used, gone = threading.Condition(), [], []
        handshakes = threading.Barrier(3)

        def before(dialogue):
            open_export(dialogue, flags=FLAGS | MULTI_CONN).request()
            for conn in server.connections[:3]:
                try:
                    conn.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already

        def after(dialogue):
            handshakes.wait()
            try:
                export = open_export(dialogue)
                request = export.request()
            except ClientGone:
                with lock:
                    gone.append(dialogue)
                    lock.notify_all()
                raise
            with lock:
                used.append(dialogue)
                lock.notify_all()
                lock.wait_for(lambda: len(used) + len(gone) == 3)
            export.send(export.honest(request))
            export.serve()

        connections = itertools.count()
        with FakeServer(lambda dialogue: (before if next(connections) < 3 else after)(dialogue)) \
                as server:
            answers = self.drive(f"open c {server.uri()} connections=3 depth=1",
                                 *(f"read c {at << 12} 4096 0" for at in range(6)), "wait",
                                 "close c")
        self.assertEqual(server.failures, [])
        self.assertEqual([result[:2] for result in self.results(answers, "c")],
                         [(0, crc(at << 12, 4096)) for at in range(6)])
        self.assertEqual((len(used), len(gone)), (1, 2))

    def test_a_connection_that_is_needed_to_end_a_lost_one(self):
        """While one is made again by a server that will have one connection only, another one is
        lost; its requests may be carried out until the server was told to end it."""
        lock, opened, begun = threading.Condition(), [], []
        first_lost, last_begun, only_ready = (threading.Event() for _ in range(3))

        def before(dialogue, number):
            open_export(dialogue, flags=FLAGS | MULTI_CONN, epoch=1).request()
            with lock:
                opened.append(number)
                lock.notify_all()
                lock.wait_for(lambda: len(opened) == 2)
            if number == 1:
                first_lost.wait()

        def only(dialogue):
            dialogue.greet()
            *replies, end = opening(EXTENDED_STYLE, epoch=1)
            for reply in replies:
                dialogue.option()
                dialogue.send(reply)
            first_lost.set()
            last_begun.wait()
            dialogue.option()
            dialogue.send(end)
            while unread(dialogue.conn) > 0:
                select.select([dialogue.conn], [], [], 0.01)
            only_ready.set()
            Export(dialogue, EXTENDED_STYLE).serve()

        def last(dialogue):
            last_begun.set()
            only_ready.wait()
            open_export(dialogue, epoch=1).serve()

        def script(dialogue):
            with lock:
                begun.append(dialogue)
                number = len(begun) - 1
            if number < 2:
                before(dialogue, number)
            else:
                (only if number == 2 else last)(dialogue)

        with FakeServer(script) as server:
            answers = self.drive(f"open c {server.uri()} connections=2 depth=1",
                                 *(f"read c {at << 12} 4096 0" for at in range(4)), "wait",
                                 "close c")
        self.assertEqual(server.failures, [])
        self.assertEqual([result[:2] for result in self.results(answers, "c")],
                         [(0, crc(at << 12, 4096)) for at in range(4)])


class Closing(Case):
    """A server that goes away at every byte."""

    def close_in_opening(self, style):
        """Closes after each number of bytes of an opening in turn."""
        parts = [greeting_bytes(), *opening(style)]
        total = sum(len(part) for part in parts)
        cuts = iter(range(total))

        def script(dialogue):
            left = next(cuts)
            for number, part in enumerate(parts):
                dialogue.send(part[:left])
                if left < len(part):
                    return
                left -= len(part)
                if number == 0:
                    dialogue.receive(4)
                dialogue.option()
        with FakeServer(script) as server:
            answers = self.drive(*[f"open c{cut} {server.uri()}" for cut in range(total)])
        self.assertEqual(server.failures, [])
        self.assertEqual([answer[0] for answer in answers], ["refused"] * total)
        for answer in answers:
            # A close with our option unread is a reset.
            self.assertIn(int(answer[2]), (PROTO, -104, -32), answer)

    def test_in_the_handshake(self):
        for style in STYLES:
            with self.subTest(style=style):
                self.close_in_opening(style)

    def test_in_an_answer(self):
        """With a reconnect the request is answered by the next connection, and right."""
        for style in STYLES:
            with self.subTest(style=style):
                self.close_in_answer(style)

    def close_in_answer(self, style):
        total = {SIMPLE_STYLE: 16, STRUCTURED_STYLE: 28, EXTENDED_STYLE: 40}[style] + 40
        cuts = iter(range(0, total))

        def breaks_off(export):
            answer = export.honest(export.request(READ))
            assert len(answer) == total, len(answer)
            export.send(answer[:next(cuts)])

        scripts = []
        for _ in range(total):
            scripts += [breaks_off, lambda export: export.serve()]
        with ExportServer(*scripts, style=style) as server:
            lines = []
            for cut in range(total):
                lines += [f"open c{cut} {server.uri()}",
                          f"read c{cut} {cut * 100} 40 0", "wait", f"close c{cut}"]
            answers = self.drive(*lines)
        self.assertEqual(server.failures, [])
        for cut in range(total):
            self.assertEqual(self.results(answers, f"c{cut}")[0][:2], (0, crc(cut * 100, 40)))
            events = [event.split(" ")[0] for event in self.of(answers, "event", f"c{cut}")]
            self.assertEqual(events, ["lost", "reconnected"])

    def test_half_close(self):
        """The server's sending side ends; its receiving side stays open."""
        def script(export):
            request = export.request(READ)
            export.send(export.honest(request)[:50])
            export.dialogue.conn.shutdown(socket.SHUT_WR)
            export.dialogue.wait_for_close()
        with ExportServer(script, lambda export: export.serve()) as server:
            answers = self.drive(f"open c {server.uri()}", "read c 0 4096 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertEqual(self.results(answers, "c")[0][:2], (0, crc(0, 4096)))
        self.assertIn("the server closed the connection", self.of(answers, "event", "c")[0])

    def test_the_other_half(self):
        """The server stops listening and says nothing."""
        def script(export):
            export.dialogue.conn.shutdown(socket.SHUT_RD)
            export.dialogue.conn.recv(1)
        with ExportServer(script, lambda export: export.serve()) as server:
            answers = self.drive(f"open c {server.uri()} request_timeout_ms=300",
                                 "read c 0 4096 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertEqual(self.results(answers, "c")[0][:2], (0, crc(0, 4096)))

    def test_a_server_that_always_breaks_off(self):
        """No request waits longer for it than the client is allowed to be without a connection."""
        def violates(export):
            export.request()
            export.send(b"nonsense")
            export.dialogue.wait_for_close()

        def closes(export):
            export.request()
        for script, text in ((violates, "rule P120"), (closes, "")):
            with ExportServer(script) as server:
                answers = self.drive(f"open c {server.uri()} reconnect_timeout_ms=300",
                                     "read c 0 4096 0", "write c 0 512 0", "wait")
            self.assertEqual(server.failures, [])
            self.assertEqual([result[0] for result in self.results(answers, "c")],
                             [NOTCONN, NOTCONN])
            # What it was in the end may also be that nothing came of a new connection in time.
            self.assertIn(text, self.of(answers, "event", "c")[0])


class Tokens(Case):
    """The name by which a client ends its lost connections."""

    def test_one_half_does_not_tell_the_other(self):
        """Two numbers of the generator for choices (SplitMix64) did: each gives away its state."""
        mask = (1 << 64) - 1
        tokens = []

        def unshift(value, bits):
            found = value
            for _ in range(64 // bits):
                found = value ^ found >> bits
            return found

        def mix(state):
            state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
            state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
            return state ^ state >> 31

        def unmix(value):
            value = unshift(value, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
            value = unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
            return unshift(value, 30)

        def script(dialogue):
            dialogue.greet()
            for reply in opening(EXTENDED_STYLE):
                _, data = dialogue.option()
                tokens.extend(re.findall(rb"x-gmblock:connection=([0-9a-f]{32})\.", data))
                dialogue.send(reply)
            Export(dialogue, EXTENDED_STYLE).serve()

        self.assertEqual(unmix(mix(0x1234567890ABCDEF)), 0x1234567890ABCDEF)
        with FakeServer(script) as server:
            self.drive(f"open a {server.uri()}", f"open b {server.uri()}")
        self.assertEqual(server.failures, [])
        self.assertEqual(len(set(tokens)), 2, tokens)
        halves = [int(token[at:at + 16], 16) for token in tokens for at in (0, 16)]
        for known in halves:
            following = mix(unmix(known) + 0x9E3779B97F4A7C15 & mask)
            self.assertNotIn(following, halves)


class Silence(Case):
    def test_in_the_handshake(self):
        parts = [greeting_bytes(), *opening(EXTENDED_STYLE)]
        for said in range(len(parts)):
            def script(dialogue, count=said):
                for number, part in enumerate(parts[:count]):
                    dialogue.send(part)
                    if number == 0:
                        dialogue.receive(4)
                    dialogue.option()
                dialogue.wait_for_close()
            with FakeServer(script) as server:
                answers = self.drive(f"open c {server.uri()} connect_timeout_ms=200")
            self.assertEqual(server.failures, [])
            self.assertEqual(answers[0][:3], ["refused", "c", str(TIMEDOUT)])

    def test_after_a_request(self):
        with ExportServer(lambda export: export.dialogue.wait_for_close(),
                          lambda export: export.serve()) as server:
            answers = self.drive(f"open c {server.uri()} request_timeout_ms=200",
                                 "read c 0 4096 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertIn("the server did not respond in time", self.of(answers, "event", "c")[0])
        self.assertEqual(self.results(answers, "c")[0][:2], (0, crc(0, 4096)))

    def test_a_server_that_does_not_listen(self):
        """Its socket is full of what it does not read: the client's time limit counts."""
        def script(export):
            export.dialogue.receive(32)
            export.dialogue.conn.recv(1, socket.MSG_PEEK)
            hang_up = select.poll()
            hang_up.register(export.dialogue.conn, 0)
            hang_up.poll()
        with ExportServer(script, lambda export: export.serve(), size=64 << 20) as server:
            # Long enough for the next connection, whose server listens, on a busy machine.
            answers = self.drive(f"open c {server.uri()} request_timeout_ms=4000",
                                 f"write c 0 {2 << 20} 0", "wait")
        self.assertEqual(server.failures, [])
        self.assertEqual(self.results(answers, "c")[0][0], 0)
        events = self.of(answers, "event", "c")
        self.assertRegex(events[0], "^silent ")
        self.assertIn("the server did not respond in time", events[1])

    def test_information_without_end(self):
        def script(dialogue):
            dialogue.greet()
            for reply in opening(EXTENDED_STYLE)[:-1]:
                dialogue.option()
                dialogue.send(reply)
            dialogue.option(GO)
            while True:
                dialogue.reply(GO, INFO_REPLY, b"\x12\x34on and on")
        with FakeServer(script) as server:
            answers = self.drive(f"open c {server.uri()}")
        self.assertEqual(server.failures, [])
        self.assertEqual(answers[0][:3], ["refused", "c", str(PROTO)])
        self.assertIn("replies with information", " ".join(answers[0]))

    def test_further_connections_that_are_let_wait(self):
        """As by a server that has as many clients as it wants, until one of them goes."""
        connections = itertools.count()

        def script(dialogue):
            if next(connections) > 0:
                dialogue.wait_for_close()
            open_export(dialogue, flags=FLAGS | MULTI_CONN).serve()
        with FakeServer(script) as server:
            answers = self.drive(f"open c {server.uri()} connections=4 connect_timeout_ms=3600000",
                                 "read c 0 4096 0", "wait", "close c")
        self.assertEqual(server.failures, [])
        self.assertEqual(answers[0][:2], ["opened", "c"])
        self.assertEqual(self.results(answers, "c")[0][:2], (0, crc(0, 4096)))

    def test_a_server_that_speaks_first(self):
        """Bytes after the handshake that nobody asked for."""
        def script(dialogue):
            dialogue.greet()
            *replies, last = opening(EXTENDED_STYLE)
            for reply in (*replies, last + b"hello"):
                dialogue.option()
                dialogue.send(reply)
            dialogue.wait_for_close()
        with FakeServer(script) as server:
            answers = self.drive(f"open c {server.uri()}")
        self.assertEqual(server.failures, [])
        self.assertEqual(answers[0][:3], ["refused", "c", str(PROTO)])


if __name__ == "__main__":
    DRIVER = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
