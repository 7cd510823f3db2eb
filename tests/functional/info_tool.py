# SPDX-License-Identifier: Apache-2.0
"""Runs "gmblock info" for a test, against a scripted server or anything else.

GMBLOCK in the environment is the program. What is true of every run is checked here: it ends by
itself, it does not crash, and nothing a server wrote reaches the terminal raw.
"""

import json
import os
import subprocess
import unittest

import fake_server

GMBLOCK = os.environ["GMBLOCK"]

# A client that hangs is killed after this long; no run that behaves comes near.
PATIENCE_S = 120


class InfoCase(unittest.TestCase):
    maxDiff = None

    def run_info(self, *args, env=None):
        """Returns the finished process, with text in stdout and stderr."""
        done = subprocess.run([GMBLOCK, "info", *args], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=PATIENCE_S, check=False,
                              env={**os.environ, **(env or {})})
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        self.assertNotIn(b"Sanitizer", done.stderr)
        self.assertNotIn(b"runtime error", done.stderr)
        for stream in (done.stdout, done.stderr):
            controls = set(stream) & (set(range(32)) - {ord("\n")} | {127})
            self.assertEqual(controls, set(), stream)
        done.stdout = done.stdout.decode()
        done.stderr = done.stderr.decode()
        return done

    def ask(self, script, *args, export=""):
        """Runs the tool against a scripted server; the server's own checks count too."""
        with fake_server.FakeServer(script) as server:
            done = self.run_info(*args, server.uri(export))
        self.assertEqual(server.failures, [])
        return done

    def assert_refused(self, script, *wanted, args=(), export=""):
        """Exit status 1, one line on stderr that holds each wanted text, nothing on stdout."""
        done = self.ask(script, *args, export=export)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        first = done.stderr.split("\n", 1)[0]
        for text in wanted:
            self.assertIn(text, first)
        return done

    def assert_shown(self, script, *wanted, args=(), export=""):
        """Exit status 0, nothing on stderr, and stdout holds each wanted text."""
        done = self.ask(script, *args, export=export)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for text in wanted:
            self.assertIn(text, done.stdout)
        return done.stdout

    def ask_json(self, script, *args, export=""):
        """Exit status 0 and the JSON document."""
        return json.loads(self.assert_shown(script, args=("--json", *args), export=export))


def row(text, label):
    """What the text output shows beside a label."""
    for line in text.split("\n"):
        if line.startswith(label + " "):
            return line[len(label):].strip()
    raise AssertionError(f"no row {label!r} in:\n{text}")
