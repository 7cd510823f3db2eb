#!/usr/bin/python3
"""A server that shakes hands, and then answers too slowly for any use, holds no command: each has a limit
for the whole."""
import subprocess
import threading

import fake_export
import support


class Pace(support.Case):
    def setUp(self):
        super().setUp()
        self.ended = threading.Event()

    def run_against(self, script, *command, **facts):
        """Only what never ends takes longer than the limit here."""
        with fake_export.ExportServer(script, **facts) as server:
            try:
                return subprocess.run(
                    [support.program(), *command, server.uri()], stdin=subprocess.DEVNULL, capture_output=True,
                    text=True, check=False, timeout=support.WAIT_SECONDS)
            finally:
                self.ended.set()

    def drip(self, export, data):
        """A byte now and then: never silent, never done."""
        for byte in data:
            export.send(bytes([byte]))
            if self.ended.wait(0.02):
                break

    def test_bench(self):
        def script(export):
            while True:
                request = export.request()
                self.drip(export, export.honest(request))

        done = self.run_against(script, "bench", "--seconds", "0.2", "--warmup", "0", "--depth", "4", "--timeout", "5s",
                                "--bs", "128K")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "[1-4] requests did not complete within 5 s after the run")

    def test_map(self):
        """Extents of one block each, one an answer."""
        def script(export):
            while not self.ended.is_set():
                request = export.request()
                export.send(export.extents(request, [(512, request.offset // 512 % 2)]))

        done = self.run_against(script, "info", "--map", "--timeout", "5s", size=1 << 60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the map was not complete in time and ends at offset [0-9]+; increase --timeout")

    def test_map_one_byte_at_a_time(self):
        def script(export):
            while True:
                request = export.request()
                self.drip(export, export.extents(request, [(512, i % 2) for i in range(2000)]))

        done = self.run_against(script, "info", "--map", "--json", "--timeout", "5s")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the map was not complete in time and ends at offset 0;", done.stderr)


if __name__ == "__main__":
    support.main()
