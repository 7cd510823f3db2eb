#!/usr/bin/python3
"""The suite passes when whoever starts it ignores signals, as nohup and background jobs do: a sample
of the tests that depend on signals, started that way.

    ignored-signals.py SOURCE_ROOT GMBLOCK TEST_TRACE_RUN
"""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = ""
GMBLOCK = ""
TRACE_RUN = ""


def ignore_signals():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


class IgnoredSignals(unittest.TestCase):
    """Each ends well, and ends: what waits for a signal that never comes hangs."""

    def check(self, *command):
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True,
                                       preexec_fn=ignore_signals)
            try:
                status = process.wait(timeout=100)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = "it hangs"
                process.wait()
            output.seek(0)
            self.assertEqual(status, 0, output.read())

    def check_functional(self, name, *tests):
        self.check(sys.executable, f"{ROOT}/tests/functional/{name}.py", GMBLOCK, *tests)

    def test_what_the_server_runs(self):
        self.check_functional("serve-run-environment",
                              "RunEnvironment.test_signals_are_as_they_were")

    def test_the_server_stops(self):
        self.check_functional("serve-stop", "Stop.test_idle")

    def test_a_copy_stops(self):
        self.check_functional("copy-resume", "Kills.test_stopped_by_a_signal")

    def test_a_trace_stops(self):
        self.check_functional("trace-errors")

    def test_make_run_stops(self):
        self.check(sys.executable, f"{ROOT}/tests/frontdoor/demo.py", ROOT, GMBLOCK)

    def test_a_unit_test(self):
        self.check(TRACE_RUN)


if __name__ == "__main__":
    TRACE_RUN = os.path.realpath(sys.argv.pop(3))
    GMBLOCK = os.path.realpath(sys.argv.pop(2))
    ROOT = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
