#!/usr/bin/python3
"""`gmblock top` in a real terminal, of 80 and of 120 columns."""
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading

import nbdmini
import support

SKIPPED = 77
LINES = 24


class Terminal(support.Case):
    def setUp(self):
        super().setUp()
        self.control = self.path("control")
        self.server = self.start_unix("--control", self.control, "--export", "=memory:1M",
                                      "--export", "a-name-that-is-longer-than-a-column=memory:1M",
                                      uri_count=2)
        self.stopping = threading.Event()
        worker = threading.Thread(target=self.work)
        worker.start()
        self.addCleanup(worker.join)
        self.addCleanup(self.stopping.set)

    def work(self):
        """Requests without a pause, most of them on the second export."""
        with nbdmini.open_export(self.server.uri, b"") as one, nbdmini.open_export(
                self.server.uri, b"a-name-that-is-longer-than-a-column") as other:
            while not self.stopping.is_set():
                one.read(0, 512)
                for _ in range(4):
                    other.read(0, 65536)
                other.write(0, b"x" * 4096)

    def tmux(self, *arguments):
        done = subprocess.run(["tmux", "-f", "/dev/null", "-S", self.path("tmux"), *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, check=False,
                              env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "screen"})
        return done.stdout.decode()

    def open(self, columns, *command):
        """The command in a terminal, which stays when it has ended."""
        line = shlex.join([support.program(), *command])
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(LINES),
                  f"{line}; echo status $?; read -r _")
        self.addCleanup(self.tmux, "kill-server")

    def screen(self):
        return self.tmux("capture-pane", "-p").splitlines()

    def wait_for_line(self, *fragments):
        """Until a line has all of them; returns the screen."""
        seen = []

        def found():
            seen[:] = self.screen()
            return any(all(at in line for at in fragments) for line in seen)
        self.wait_for(found)
        return list(seen)

    def row(self, begin):
        return next((line.split() for line in self.screen() if line.startswith(begin)), [])

    def check_top(self, columns):
        self.open(columns, "top", "--interval=0.2", self.control)
        screen = self.wait_for_line("EXPORT", "READ/s", "P99", "PATH")
        def is_settled():
            """Sorted by bytes, the busier one comes first; a time without a read of it shows another order."""
            screen[:] = self.screen()
            states = self.row("a-name-that")
            return (("requester" in states or "ram" in states) and screen[2].startswith("a-name-that")
                    and screen[3].startswith('""'))
        self.wait_for(is_settled)
        self.assertLessEqual(max(map(len, screen)), columns)
        self.assertEqual(len(screen), LINES)
        self.assertIn("2 connections", screen[0])
        self.assertTrue(screen[1].startswith("EXPORT"))
        self.assertEqual("a-name-that-is-longer-than-a-column" in screen[2], columns == 120)
        self.assertTrue(any(line.startswith(f"uid {os.getuid()} ") for line in screen), screen)
        self.assertIn("q quit  s sort (bytes)  p pause", screen[-1])
        # In place: nothing has scrolled away.
        self.assertEqual(self.tmux("display-message", "-p", "#{history_size}").strip(), "0")
        for order in ("requests", "p99", "name"):
            self.tmux("send-keys", "s")
            self.wait_for_line(f"sort ({order})")
        self.wait_for(lambda: self.screen()[2].startswith('""'))
        self.tmux("send-keys", "p")
        self.wait_for_line("paused")
        self.tmux("send-keys", "p")
        self.wait_for_line("p pause")
        self.tmux("send-keys", "q")
        # The terminal is as it was.
        screen = self.wait_for_line("status 0")
        self.assertTrue(screen[0].startswith("status 0"), screen)

    def test_80_columns(self):
        self.check_top(80)

    def test_120_columns(self):
        self.check_top(120)

    def test_a_server_with_absurd_numbers(self):
        """What they take is cut like all lines."""
        huge = 1e308
        hello = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": 1}
        result = {"exports": [], "version": 80 * "v", "uptime_seconds": -huge, "counters": {
            name: -huge for name in ("connections", "inflight")} | {
            name: huge for name in ("tls_connections", "tls_connections_kernel")}}
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path("absurd"))
        listener.listen()

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as client:
                        client.sendall(json.dumps(hello).encode() + b"\n")
                        client.recv(4096)
                        client.sendall(json.dumps({"result": result}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)
        self.open(120, "top", "--interval=0.2", self.path("absurd"))
        screen = self.wait_for_line("gmblock vvvv")
        self.assertLessEqual(max(map(len, screen)), 120)
        self.tmux("send-keys", "q")
        self.wait_for_line("status 0")

    def test_narrower_than_the_numbers(self):
        self.open(64, "top", "--interval=0.2", self.control)
        screen = self.wait_for_line("EXPORT", "P99")
        self.assertLessEqual(max(map(len, screen)), 64)
        self.assertFalse(any("PATH" in line for line in screen))
        self.tmux("send-keys", "C-c")
        self.wait_for_line("status 0")

    def test_without_a_terminal(self):
        code, output, errors = self.run_gmblock("top", self.control)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("must be a terminal", errors)
        self.check_refused(["top", "--interval=1ms"], 2, "--interval", "100ms")


if __name__ == "__main__":
    if shutil.which("tmux") is None:
        print("tmux is not installed: nothing to test", file=sys.stderr)
        sys.exit(SKIPPED)
    support.main()
