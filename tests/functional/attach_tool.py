"""What the tests of `gmblock attach` share: an attachment that is surely gone at the end, a server
that can be killed and started again, and the reasons to skip."""
import json
import os
import subprocess
import sys
import unittest

import support

SIZE = 64 << 20


def main():
    """Skips the script (77) where there is no FUSE, or the user may not use it."""
    reason = missing()
    if reason:
        print(f"SKIP: {reason}")
        sys.exit(77)
    support.main()


def missing():
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    if os.geteuid() != 0:
        return "mounting and looking at mounts needs root here"
    return None


class Case(support.Case):
    """Attachments have a state folder of the test's own."""

    SCHEME = "nbd+unix"

    def socket_uri(self, name="s"):
        return f"{self.SCHEME}:///?socket={self.path(name)}"

    def setUp(self):
        super().setUp()
        self.environment = {**os.environ, "GMBLOCK_ATTACH_DIR": self.path("state")}
        self.server = None

    def serve(self, *arguments):
        """(Re)starts the server of the test, on the same socket; it is killed, not stopped."""
        if self.server is not None:
            self.server.kill()
            os.unlink(self.path("s"))
        self.server = self.start_unix(*arguments)
        return self.server

    def image(self, size=SIZE):
        path = self.path("image")
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def attach(self, *arguments, uri=None):
        """Attaches as a file; returns its path. It is detached before the server ends."""
        self.addCleanup(self.detach_all)
        code, output, errors = self.gmblock(
            "attach", "--fuse", self.path("disk"), *arguments, uri or self.socket_uri())
        self.assertEqual((code, output), (0, self.path("disk") + "\n"), errors)
        return self.path("disk")

    def detach(self, name=None):
        code, output, errors = self.gmblock("detach", name or self.path("disk"))
        self.assertEqual((code, output), (0, ""), errors)

    def gmblock(self, *arguments):
        return self.run_gmblock(*arguments, env=self.environment, errors="surrogateescape")

    def attachments(self):
        code, output, errors = self.gmblock("attach", "--list", "--json")
        self.assertEqual(code, 0, errors)
        return json.loads(output)

    def detach_all(self):
        for entry in self.attachments():
            self.gmblock("detach", "--force", entry["device"])

    def call(self, *command):
        """Another program, which must succeed; its output."""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def loop_device(self, path):
        try:
            device = subprocess.run(["losetup", "--find", "--show", path], check=True,
                                    capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise unittest.SkipTest(f"no loop device: {error}")
        self.addCleanup(subprocess.run, ["losetup", "--detach", device], check=False,
                        stderr=subprocess.DEVNULL)
        return device
