#!/usr/bin/python3
"""Limits on connections: of the server, of one export, of those that only negotiate, and the time
they have for it. The others are never disturbed."""
import contextlib
import json
import shutil
import struct
import subprocess
import unittest
from urllib.parse import urlsplit

import nbdmini
import support

HANDSHAKES = 16  # places; the server has fewer than 8 times as many for connections


class ConnectionLimits(support.Case):
    def test_of_the_server(self):
        for threads in ("1", "2"):
            disk = self.make_file("disk.img", bytes(1 << 20))
            server = self.start_unix(disk, "--max-connections", "2",
                                     "--max-connections-per-peer", "2", "--threads", threads)
            with nbdmini.open_export(server.uri) as first, nbdmini.open_export(server.uri) as second:
                with nbdmini.Client(server.uri) as third:
                    self.assertTrue(third.at_end())
                first.write(0, b"first")
                self.assertEqual(second.read(0, 5), b"first")
                second.send_request(nbdmini.CMD_DISC, 0)
                self.assertTrue(second.at_end())
                # The place is free again, some moment after the server has closed.
                self.assertEqual(self.open_when_free(server.uri).size, 1 << 20)
            code, errors = server.stop()
            self.assertEqual(code, 0)
            self.assertIn("limit of 2 connections", errors)

    def connections_from(self, address, server, count):
        """That many connections with a greeting each, and none that is refused."""
        clients = []
        for _ in range(count):
            client = nbdmini.Client(server.uri, source=address)
            self.addCleanup(client.close)
            clients.append(client)
            client.greeting()
        return clients

    def is_refused(self, uri, source=None):
        with nbdmini.Client(uri, source=source) as client:
            return client.at_end()

    def test_of_one_peer(self):
        for threads in ("1", "2"):
            server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", "--threads", threads,
                                "--max-connections", "8", "--max-connections-per-peer", "3")
            first, *_ = self.connections_from("127.0.0.1", server, 3)
            self.assertTrue(self.is_refused(server.uri, "127.0.0.1"))
            self.connections_from("127.0.0.2", server, 3)
            self.assertTrue(self.is_refused(server.uri, "127.0.0.2"))
            # The established ones go on, and their places come back.
            first.sock.sendall((3).to_bytes(4, "big"))
            self.assertEqual(first.go().size, 1 << 20)
            first.send_request(nbdmini.CMD_DISC, 0)
            self.assertTrue(first.at_end())
            self.assertEqual(self.open_when_free(server.uri).size, 1 << 20)
            code, errors = server.stop()
            self.assertEqual(code, 0)
            self.assertIn("limit of 3 connections per address or user", errors)

    def test_of_one_user(self):
        server = self.start_unix("memory:1M", "--max-connections", "4")
        self.connections_from(None, server, 2)  # half, by default
        self.assertTrue(self.is_refused(server.uri))

    def test_nobody_locks_the_others_out(self):
        """By default: 1,000 connections of one peer are served, 2,048 do not take every place."""
        for listen in ("nbd://127.0.0.1:0", self.socket_uri()):
            server = self.start("memory:1M", "--listen", listen, "--threads", "2")
            idle = [nbdmini.open_export(server.uri) for _ in range(1000)]
            for client in idle:
                self.addCleanup(client.close)
            self.assertEqual([client.read(0, 1) for client in idle], [b"\0"] * 1000)
            if listen == self.socket_uri():
                continue  # another user is needed for more
            refused = 0
            for _ in range(1048):  # as many as the server has places
                try:
                    idle.append(nbdmini.open_export(server.uri))
                    self.addCleanup(idle[-1].close)
                except ConnectionError:
                    refused += 1
            self.assertEqual(refused, 1024)
            with nbdmini.open_export(server.uri, source="127.0.0.2") as newcomer:
                self.assertEqual(newcomer.read(0, 3), bytes(3))
            self.assertEqual(idle[0].read(0, 3), bytes(3))

    def open_when_free(self, uri, name=b""):
        while True:
            client = nbdmini.Client(uri)
            self.addCleanup(client.close)
            try:
                client.hello()
                return client.go(name)
            except (ConnectionError, nbdmini.OptionRefused):
                client.close()

    def test_of_one_export(self):
        server = self.start_unix("--export", "one=memory:1M,max-connections=1", "--export",
                                 "any=memory:1M", "--threads", "2", uri_count=2)
        with nbdmini.open_export(server.uri, b"one") as first:
            with nbdmini.Client(server.uri) as second:
                second.hello()
                with self.assertRaises(nbdmini.OptionRefused):
                    second.go(b"one")
                # The negotiation goes on: another export is still to be had.
                self.assertEqual(second.go(b"any").size, 1 << 20)
            self.assertEqual(first.read(0, 3), bytes(3))
        self.assertEqual(self.open_when_free(server.uri, b"one").size, 1 << 20)

    def test_of_handshakes_the_oldest_goes(self):
        server = self.start_unix("null:1M", "--max-connections", "100", "--max-connections-per-peer",
                                 "100", "--threads", "1")
        with contextlib.ExitStack() as stack:
            chosen = stack.enter_context(nbdmini.open_export(server.uri))
            oldest, *others = [stack.enter_context(nbdmini.Client(server.uri))
                               for _ in range(HANDSHAKES)]
            oldest.greeting()
            for client in others:
                client.hello()
            stack.enter_context(nbdmini.open_export(server.uri))
            self.assertTrue(oldest.at_end())
            for client in others:
                self.assertEqual(client.go().size, 1 << 20)
            self.assertEqual(chosen.read(0, 1), b"\0")

    def open_in_time(self, uri):
        """A client in transmission, also where the machine is too busy for the deadline at first."""
        while True:
            try:
                client = nbdmini.open_export(uri)
            except ConnectionError:
                continue
            self.addCleanup(client.close)
            return client

    def test_handshake_deadline(self):
        server = self.start_unix("null:1M", "--handshake-timeout", "200ms")
        chosen = self.open_in_time(server.uri)
        with nbdmini.Client(server.uri) as silent, nbdmini.Client(server.uri) as haggling:
            with contextlib.suppress(ConnectionError):  # its time may be over before it has spoken
                silent.greeting()
            with contextlib.suppress(ConnectionError):
                haggling.hello()
                haggling.list()
            self.assertTrue(silent.at_end())
            self.assertTrue(haggling.at_end())
            # Who has chosen an export may be silent as long as it likes.
            self.assertEqual(chosen.read(0, 1), b"\0")

    def test_idle_timeout(self):
        server = self.start_unix("--export", "slow=memory:1M,delay=read:9s",
                                 "--export", "any=memory:1M", "--idle-timeout", "4s",
                                 "--handshake-timeout", "60s", "--log-level", "info",
                                 "--control", self.path("control"), uri_count=2)
        with nbdmini.Client(server.uri) as waiting, nbdmini.Client(server.uri) as haggling, \
                nbdmini.open_export(server.uri, b"any") as silent:
            waiting.hello()
            # With the choice of the export, so that this one is never idle.
            waiting.send_option(nbdmini.OPT_GO, struct.pack(">I4sH", 4, b"slow", 0))
            waiting.send_request(nbdmini.CMD_READ, 7, 0, 512)
            haggling.hello()
            self.assertTrue(silent.at_end())
            list(waiting.option_replies(nbdmini.OPT_GO))
            self.assertEqual(waiting.reply(), (7, 0))
            self.assertEqual(waiting.receive(512), bytes(512))
            self.assertTrue(waiting.at_end())
            _, stats, _ = self.run_gmblock("stats", "--json", self.path("control"))
            counters = json.loads(stats)["counters"]
            self.assertEqual((counters["connections_idle"], counters["connections_failed"]), (2, 0))
            # Who has not chosen an export yet has the time limit of the handshake.
            self.assertEqual(haggling.go(b"any").size, 1 << 20)
        code, errors = server.stop()
        self.assertEqual(code, 0)
        self.assertIn('reached the idle timeout and is disconnected from export "any"', errors)

    @unittest.skipUnless(shutil.which("ss"), "ss is not installed")
    def test_the_place_of_a_machine_that_died(self):
        """It says no goodbye: the kernel asks for it within minutes, not hours."""
        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0")
        port = urlsplit(server.uri).port
        with nbdmini.open_export(server.uri):
            shown = "timer:(on"
            while "timer:(on" in shown:  # the last bytes have not been acknowledged yet
                shown = subprocess.run(["ss", "-Htno", f"sport = :{port}"], check=True,
                                       capture_output=True, text=True).stdout
            self.assertRegex(shown, r"timer:\(keepalive,(\d\dsec|1min),0\)")


if __name__ == "__main__":
    support.main()
