"""What the tests of libclan-sockets share."""
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "functional"))
import ports  # noqa: E402, F401 (for the tests)

RUN = ""  # clan-run
DEADLINE_S = 60


def wait_for(what, message):
    """Until it is true: asks again, for programs that do not tell when they are ready."""
    end = time.monotonic() + DEADLINE_S
    while not what():
        if time.monotonic() > end:
            raise AssertionError(message)
        time.sleep(0.01)


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)
        self.stats_file = os.path.join(self.folder, "stats")

    def path(self, name):
        return os.path.join(self.folder, name)

    def carried(self, rules, *command):
        """The command that runs it with these rules."""
        return [RUN, "--stats", self.stats_file, "--rules", rules, "--", *command]

    def start(self, *command, **keys):
        process = subprocess.Popen(command, **keys)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()

    def stats(self, program=None):
        """The sums of what the processes (of that name) have counted at their ends."""
        sums = {}
        if not os.path.exists(self.stats_file):
            return sums
        with open(self.stats_file, encoding="utf-8") as file:
            for line in map(json.loads, file):
                if program in (None, line["program"]):
                    for key, value in line.items():
                        if key not in ("pid", "program"):
                            sums[key] = sums.get(key, 0) + value
        return sums
