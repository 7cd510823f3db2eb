#!/usr/bin/python3
"""Disks with a lease, attached as files: the second one is refused, and gets the disk when the first one is detached,
dead or robbed."""
import errno
import json
import os
import signal
import threading

import attach_tool

BLOCK = 4096
NAME = ""


class Lease(attach_tool.Case):
    def setUp(self):
        super().setUp()
        self.control = self.path("control")
        self.addCleanup(self.detach_all)

    def begin(self, *arguments):
        self.serve("--control", self.control, "--threads", "2", "--export",
                   f"{NAME}={self.image()}{''.join(arguments)}")

    def disk(self, name, *arguments):
        code, output, errors = self.gmblock("attach", "--fuse", self.path(name), *arguments, self.socket_uri())
        self.assertEqual((code, output), (0, self.path(name) + "\n"), errors)
        fd = os.open(self.path(name), os.O_RDWR | os.O_DSYNC)
        self.addCleanup(self.close, fd)
        return fd

    @staticmethod
    def close(fd):
        try:
            os.close(fd)
        except OSError:
            pass  # closed by the test, or its daemon is dead

    def stats(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0, errors)
        return json.loads(output)

    def leases(self):
        code, output, errors = self.run_gmblock("lease", "list", "--json", "--server", self.control)
        self.assertEqual(code, 0, errors)
        return [(lease["mode"], lease["state"]) for lease in json.loads(output)]

    def check_refused(self, *arguments):
        """One connection asks, and the answer is final: no second attempt, no disk."""
        before = self.stats()["counters"]["connections_accepted"]
        code, output, errors = self.gmblock("attach", "--fuse", self.path("refused"), *arguments, self.socket_uri())
        self.assertEqual((code, output), (1, ""))
        self.assertEqual(self.stats()["counters"]["connections_accepted"], before + 1)
        self.assertFalse(os.path.exists(self.path("refused")))
        return errors

    def check_dead(self, fd):
        with self.assertRaises(OSError) as failed:
            os.pwrite(fd, b"!" * BLOCK, 0)
        self.assertIn(failed.exception.errno, (errno.EIO, errno.ENOTCONN))

    def block(self):
        with open(self.path("image"), "rb") as file:
            return file.read(BLOCK)

    def test_exclusive(self):
        self.begin()
        fd = self.disk("a", "--exclusive")
        self.assertEqual(self.leases(), [("exclusive", "holds")])
        errors = self.check_refused("--exclusive")
        self.assertIn(f"uid {os.geteuid()}", errors)
        self.assertIn("has the exclusive lease", errors)
        os.pwrite(fd, b"a" * BLOCK, 0)
        os.close(fd)
        self.detach(self.path("a"))
        self.wait_for(lambda: self.leases() == [])
        os.pwrite(self.disk("b", "--exclusive"), b"b" * BLOCK, 0)
        self.assertEqual(self.block(), b"b" * BLOCK)

    def test_the_only_writer(self):
        """The export is not read-only: the message gives the reason of the server."""
        self.begin(",writers=one")
        self.disk("first", "--exclusive")
        code, _, errors = self.gmblock("copy", self.make_file("source", b"s" * BLOCK), self.socket_uri())
        self.assertEqual(code, 1)
        self.assertIn(": the server does not permit it (server message: "
                      "\"leased: another client is the writer of the export\")", errors)

    def test_shared(self):
        self.begin()
        first, second = self.disk("a", "--shared"), self.disk("b", "--shared")
        self.assertIn("has a shared lease", self.check_refused("--exclusive"))
        third = self.disk("c", "--exclusive", "--preempt")
        for fd in (first, second):
            self.check_dead(fd)
            os.close(fd)
        code, _, errors = self.gmblock("detach", self.path("a"))
        self.assertEqual(code, 1)
        self.assertRegex(errors, "the last flush failed .* may be lost; .*lease")
        os.pwrite(third, b"c" * BLOCK, 0)
        self.assertEqual(self.leases(), [("exclusive", "holds")])
        self.assertEqual(self.block(), b"c" * BLOCK)

    def test_a_killed_holder(self):
        self.begin()
        self.disk("a", "--exclusive", "--lease-timeout", "6s")
        entry, = self.attachments()
        os.kill(entry["pid"], signal.SIGKILL)
        self.wait_for(lambda: "not connected" in self.run_gmblock("lease", "list", "--server", self.control)[1])
        self.wait_for(lambda: self.leases() == [])
        os.pwrite(self.disk("b", "--exclusive"), b"b" * BLOCK, 0)
        self.assertEqual(self.block(), b"b" * BLOCK)

    def test_preempt_during_a_write(self):
        self.begin(",delay=write:3s")
        old = self.disk("a", "--exclusive")
        found = []

        def write():
            try:
                found.append(os.pwrite(old, b"o" * BLOCK, 0))
            except OSError as error:
                found.append(error.errno)
        writer = threading.Thread(target=write)
        writer.start()
        self.wait_for(lambda: self.stats()["counters"]["inflight"] > 0)
        new = self.disk("b", "--exclusive", "--preempt")
        self.assertEqual(self.stats()["counters"]["inflight"], 0)
        self.assertEqual(self.block(), b"o" * BLOCK)
        os.pwrite(new, b"n" * BLOCK, 0)
        writer.join()
        self.assertIn(found, ([BLOCK], [errno.EIO], [errno.ENOTCONN]))
        self.check_dead(old)
        self.assertEqual(self.block(), b"n" * BLOCK)
        os.close(new)
        self.detach(self.path("b"))
        self.wait_for(lambda: self.leases() == [])
        self.check_dead(old)
        self.assertEqual(self.leases(), [])


class OverGmb(Lease):
    SCHEME = "gmb+unix"
    test_shared = test_a_killed_holder = None  # the carrier makes no difference


if __name__ == "__main__":
    attach_tool.main()
