#!/usr/bin/python3
"""A copy that was stopped ends, whatever its servers do."""
import signal
import threading

import fake_export
import ports
import support
from copy_tool import CopyCase


class Stopped(CopyCase):
    def until_line(self, copy, part):
        while part not in (line := copy.stderr.readline()):
            self.assertNotEqual(line, "")

    def finish(self, copy):
        _, errors = copy.communicate(timeout=support.WAIT_SECONDS)
        self.assertEqual(copy.returncode, 128 + signal.SIGTERM, errors)
        self.assertIn("the copy was stopped by SIGTERM", errors)
        return errors

    def test_no_host_has_the_disk(self):
        """The journal has what the server has flushed, and the next run continues from there."""
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        port = ports.free()
        listen = "--export", f"={disk}", "--listen", f"nbd://127.0.0.1:{port}"
        server = self.start(*listen)
        arguments = ("--resume", self.path("journal"), "--checkpoint", "256K", "--request-size", "64K", source,
                     f"nbd://127.0.0.1:{port},127.0.0.1:{ports.free()}")
        copy = self.spawn("--rate", "4M", *arguments)
        self.wait_for(lambda: (self.durable() or 0) > 0)
        server.kill()
        self.until_line(copy, "cannot connect")
        copy.send_signal(signal.SIGTERM)
        self.assertIn(f"continue from byte {self.durable()}", self.finish(copy))
        before = self.durable()
        self.start(*listen)
        self.assertEqual(self.copy_ok("--verify", *arguments)["bytes_resumed"], before)
        self.same(source, disk)

    def test_the_connection_is_lost_afterwards(self):
        """The server takes every connection again, and answers nothing."""
        asked, stopped, ended = threading.Event(), threading.Event(), threading.Event()

        def first(export):
            export.request()
            asked.set()
            stopped.wait()

        with fake_export.ExportServer(first, lambda _export: ended.wait()) as server:
            copy = self.spawn("--log-level", "info", server.uri(), self.path("target"))
            try:
                self.assertTrue(asked.wait(support.WAIT_SECONDS))
                copy.send_signal(signal.SIGTERM)
                self.until_line(copy, "stopping the copy as soon as the requests in flight")
                stopped.set()
                self.assertIn("holds a partial copy", self.finish(copy))
            finally:
                copy.kill()
                ended.set()


if __name__ == "__main__":
    support.main()
