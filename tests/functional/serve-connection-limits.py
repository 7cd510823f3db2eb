#!/usr/bin/python3
"""Limits on connections: of the server, of one export, of those that only negotiate, and the time
they have for it. The others are never disturbed."""
import shutil
import subprocess
import unittest
from urllib.parse import urlsplit

import nbdmini
import support


class ConnectionLimits(support.Case):
    def test_of_the_server(self):
        for threads in ("1", "2"):
            disk = self.make_file("disk.img", bytes(1 << 20))
            server = self.start_unix(disk, "--max-connections", "2", "--threads", threads)
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
        server = self.start_unix("null:1M", "--max-handshakes", "2", "--threads", "1")
        with nbdmini.open_export(server.uri) as chosen, nbdmini.Client(server.uri) as oldest:
            oldest.greeting()
            with nbdmini.Client(server.uri) as second:
                second.hello()
                with nbdmini.open_export(server.uri):
                    self.assertTrue(oldest.at_end())
                    self.assertEqual(second.go().size, 1 << 20)
                    self.assertEqual(chosen.read(0, 1), b"\0")

    def test_handshake_deadline(self):
        server = self.start_unix("null:1M", "--handshake-timeout", "200ms")
        with nbdmini.open_export(server.uri) as chosen, nbdmini.Client(server.uri) as silent, \
                nbdmini.Client(server.uri) as haggling:
            silent.greeting()
            haggling.hello()
            haggling.list()
            self.assertTrue(silent.at_end())
            self.assertTrue(haggling.at_end())
            # Who has chosen an export may be silent as long as it likes.
            self.assertEqual(chosen.read(0, 1), b"\0")

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
