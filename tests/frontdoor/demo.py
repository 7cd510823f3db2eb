#!/usr/bin/python3
"""`make run` as a user sees it: it serves a sample disk, says where, and Ctrl-C leaves nothing.

    demo.py SOURCE_ROOT GMBLOCK
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = ""
GMBLOCK = ""


class Demo(unittest.TestCase):
    """scripts/run-demo with the real program."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-demo-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    @staticmethod
    def heed_signals():
        """A shell cannot trap what was ignored when it began, as under nohup."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def start(self, **environment):
        process = subprocess.Popen(
            [f"{ROOT}/scripts/run-demo", GMBLOCK], stdout=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=self.heed_signals,
            env={**os.environ, "TMPDIR": self.folder, "PORT": "0", **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.end, process)
        output = ""
        for line in process.stdout:
            output += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"is served at +nbd://127\.0\.0\.1:(\d+)", output)
        self.assertIsNotNone(found, output)
        return process, int(found.group(1)), output

    @staticmethod
    def end(process):
        """SIGTERM first: a killed script could not end its server."""
        process.terminate()
        try:
            process.wait(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def greeting(self, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            return client.recv(8, socket.MSG_WAITALL)

    def test_serves_and_ends_without_a_trace(self):
        for send in (lambda p: os.killpg(p.pid, signal.SIGINT), lambda p: p.terminate()):
            process, port, output = self.start()
            self.assertEqual(self.greeting(port), b"NBDMAGIC")
            self.assertIn("nbdcopy", output)
            self.assertEqual(len(os.listdir(self.folder)), 1)
            send(process)
            rest = process.stdout.read()
            self.assertEqual(process.wait(), 0, rest)
            self.assertEqual(os.listdir(self.folder), [])
            with self.assertRaises(ConnectionRefusedError):
                self.greeting(port)

    def test_serves_the_disk_it_is_given_and_keeps_it(self):
        disk = os.path.join(self.folder, "own.img")
        with open(disk, "wb") as file:
            file.write(b"x" * 1000)
        process, port, output = self.start(DISK=disk)
        self.assertIn(disk, output)
        self.assertEqual(self.greeting(port), b"NBDMAGIC")
        process.terminate()
        process.stdout.read()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(os.path.getsize(disk), 1000)

    def test_it_goes_on_when_the_server_is_replaced(self):
        process, port, _ = self.start()
        for _ in range(2):
            done = subprocess.run([GMBLOCK, "upgrade", f"nbd://127.0.0.1:{port}"], check=True,
                                  capture_output=True, text=True)
            server = int(done.stdout.split()[1])
            self.assertEqual(self.greeting(port), b"NBDMAGIC")
        # The second one knows nothing of the first: the demo follows.
        self.assertIsNone(process.poll())
        self.assertEqual(len(os.listdir(self.folder)), 1)
        process.terminate()
        process.stdout.read()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(os.listdir(self.folder), [])
        with self.assertRaises(ProcessLookupError):
            os.kill(server, 0)

    def test_a_disk_that_is_not_there_is_an_error(self):
        done = subprocess.run(
            [f"{ROOT}/scripts/run-demo", GMBLOCK], capture_output=True, text=True, check=False,
            env={**os.environ, "PORT": "0", "DISK": f"{self.folder}/none.img"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("none.img", done.stderr)
        self.assertNotIn("is served", done.stdout)

    def test_a_wrong_port_is_named(self):
        for port in ("abc", "65536", "-1", "1 2"):
            done = subprocess.run(
                [f"{ROOT}/scripts/run-demo", GMBLOCK], capture_output=True, text=True, check=False,
                env={**os.environ, "TMPDIR": self.folder, "PORT": port})
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"PORT={port} is not a port", done.stderr)
            self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    GMBLOCK = os.path.realpath(sys.argv.pop(2))
    ROOT = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
