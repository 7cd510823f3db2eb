#!/usr/bin/python3
"""A copy that was stopped ends, whatever its servers do. The clock of the command is moved."""
import os
import signal
import struct
import subprocess
import sys
import threading

import fake_export
import support

LATE_CLOCK = os.path.realpath(sys.argv.pop(2))


class Stopped(support.Case):
    def test_ten_minutes_after_the_signal(self):
        """The server takes every connection again, and answers nothing."""
        clock = self.make_file("clock", struct.pack("=Q", 0))
        asked = threading.Event()
        ended = threading.Event()

        def script(export):
            export.request()
            asked.set()
            ended.wait()

        with fake_export.ExportServer(script) as server, subprocess.Popen(
                [support.program(), "copy", server.uri(), self.path("target")], text=True, stderr=subprocess.PIPE,
                env=dict(os.environ, GMBLOCK_LOG="info", LD_PRELOAD=LATE_CLOCK, LATE_CLOCK=clock)) as copy:
            try:
                self.assertTrue(asked.wait(support.WAIT_SECONDS))
                copy.send_signal(signal.SIGTERM)
                while "stopping the copy as soon as the requests in flight" not in (line := copy.stderr.readline()):
                    self.assertNotEqual(line, "")
                with open(clock, "r+b") as file:
                    file.write(struct.pack("=Q", 601 * 10**9))
                self.assertEqual(copy.wait(support.WAIT_SECONDS), -signal.SIGTERM)
                self.assertIn("in flight when SIGTERM arrived did not complete within ten minutes", copy.stderr.read())
            finally:
                copy.kill()
                ended.set()


if __name__ == "__main__":
    support.main()
