"""What the tests of upgrades share: the server, the command, and the processes that come of it."""
import ctypes
import os
import re
import signal
import sys

import support

PR_SET_CHILD_SUBREAPER = 36
# The start of a command for `gmblock upgrade -- COMMAND`: a new process as it should not be.
PROCESS = [sys.executable, os.path.join(os.path.dirname(__file__), "upgrade_process.py")]


class Case(support.Case):
    def setUp(self):
        super().setUp()
        self.disk = self.make_file("disk", os.urandom(16 << 20))
        self.children = []

    def kill_children(self):
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass

    def serve(self, *arguments, listen=None, filters="", **options):
        server = self.start("--export", f"={self.disk}{filters}", "--listen", listen or self.socket_uri(),
                            "--control", self.path("control"), *arguments, **options)
        # First, as they have the standard error of the server, too.
        self.addCleanup(self.kill_children)
        return server

    def make_log(self, name):
        path = self.path(name)
        code, _, errors = self.run_gmblock("create", "--size=64M", "--segment=256K", f"flash:{path}")
        self.assertEqual(code, 0, errors)
        return path

    def upgrade(self, *command):
        """Status, output and errors of the command; the pid of the new process is remembered."""
        code, output, errors = self.run_gmblock(
            "upgrade", self.path("control"), *(("--", *command) if command else ()))
        found = re.match(r"process (\d+) is now serving; connections passed to it: (\d+), ended: (\d+); "
                         r"pause: ([0-9.]+) ms\n(the connections that ended .* must reconnect\n)?$", output)
        if found:
            self.assertEqual(found[3] != "0", found[5] is not None, output)
            self.children.append(int(found[1]))
        return code, found, errors

    def must_upgrade(self, *command):
        code, found, errors = self.upgrade(*command)
        self.assertEqual((code, errors), (0, ""))
        return int(found[2]), int(found[3]), float(found[4])

    def stop_newest(self):
        pid = self.children.pop()
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


def main():
    # New processes are nobody's children but ours.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    support.main()
