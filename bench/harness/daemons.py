"""Programs that run during a benchmark and print a line when they are ready.

What: Daemon(command, lines) starts a program and waits for that many lines; stop() ends it.
Ownership: its creator stops it (context manager); it gets SIGTERM from the kernel when the
benchmark dies, and its standard input, a pipe of ours, ends then.
Errors: ServerFailed with what the program said if it ends or keeps silent instead.
"""

import os
import select
import signal
import subprocess
import tempfile
import time

from . import servers

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0


class Daemon:
    def __init__(self, command, lines=1, what=None):
        self.command = command
        self.what = what or command[0]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            preexec_fn=servers.child_setup, start_new_session=True)
        self.pid = self._process.pid
        try:
            self.said = self._read_lines(lines)
        except BaseException:
            self.stop()
            raise

    def _read_lines(self, count):
        deadline = time.monotonic() + START_TIMEOUT_S
        fd = self._process.stdout.fileno()
        text = b""
        while text.count(b"\n") < count:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([fd], [], [], left)[0]
            piece = os.read(fd, 4096) if ready else b""
            if not piece:
                raise servers.ServerFailed("%s did not start: %s\n%s" % (
                    self.what, " ".join(self.command), self.errors()))
            text += piece
        return text.decode().splitlines()

    def pids(self):
        """As harness.measure looks at a server."""
        return [self.pid]

    def errors(self):
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
