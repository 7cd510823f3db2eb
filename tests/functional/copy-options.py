#!/usr/bin/python3
"""The command line of `gmblock copy`, its progress bar, and its summary."""
import os
import pty
import subprocess
import time

import support
from copy_tool import MIB, ODD_BYTES, CopyCase


class Options(CopyCase):
    def test_wrong_usage(self):
        for arguments, fragment in (
                ([], "SOURCE"), (["a"], "TARGET"), (["--resume", "a", "b"], "after --resume FILE"), (["a", "b", "c"], "only one SOURCE"),
                (["--nothing", "a", "b"], "unknown option --nothing"), (["--requests", "0", "a", "b"], "--requests"),
                (["--requests", "1025", "a", "b"], "1024"),
                (["--connections", "17", "a", "b"], "--connections: '17' is neither a number from 1 to 16 nor auto"),
                (["--request-size", "3000", "a", "b"], "power of two"),
                (["--request-size", "2K", "a", "b"], "4K"),
                (["--request-size", "x", "a", "b"], "--request-size"),
                (["--sparse", "100", "a", "b"], "--sparse"),
                (["--resume", "j", "--checkpoint", "0", "a", "b"], "--checkpoint"),
                (["--checkpoint", "1M", "a", "b"], "--checkpoint needs --resume"),
                (["--requests", "1024", "--request-size", "32M", "a", "b"], "at most 4G"),
                (["--json", "a", "-"], "standard output"), (["--resume"], "needs a value")):
            with self.subTest(arguments=arguments):
                errors = self.copy_fails(arguments, fragment, status=2)
                self.assertIn("gmblock copy --help", errors)

    def test_contradictions_are_refused_by_both_names(self):
        for arguments, first, second in (
                (["--progress", "--no-progress", "a", "b"], "--progress", "--no-progress"),
                (["--no-sparse", "--sparse", "4K", "a", "b"], "--sparse", "--no-sparse"),
                (["--allocate", "--sparse", "4K", "a", "b"], "--allocate", "--sparse"),
                (["--allocate", "--destination-is-zero", "a", "b"], "--allocate",
                 "--destination-is-zero"),
                (["--sparse", "1M", "a", "b"], "--sparse 1M", "--request-size"),
                (["--sparse", "8K", "--request-size", "4K", "a", "b"], "--sparse 8K", "not 4K"),
                (["--verify", "a", "-"], "--verify", "unlike '-'"),
                (["--resume", "j", "/dev/zero", "b"], "--resume", "unlike '/dev/zero'"),
                (["--skip-errors", "m", "--verify", "a", "b"], "--skip-errors", "--verify"),
                (["--skip-errors", "m", "--resume", "j", "a", "b"], "--skip-errors", "--resume"),
                (["--skip-errors", "b", "a", "b"], "--skip-errors", "the target"),
                (["--resume", "b", "a", "b"], "--resume", "the target"),
                (["--skip-errors", "m", "/dev/zero", "b"], "--skip-errors", "unlike '/dev/zero'"),
                (["--connections", "2", "a", "-"], "--connections", "URI"),
                (["--direct", "nbd://h", "-"], "--direct", "file or device")):
            with self.subTest(arguments):
                self.assertIn(second, self.copy_fails(arguments, first, status=2))
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_does_not_contradict(self):
        source = self.image("source")
        for arguments in (["--allocate", "--no-sparse"], ["--sparse", "512K"],
                          ["--no-sparse", "--destination-is-zero", "--no-progress"],
                          ["--sparse", "64K", "--request-size", "64K"]):
            with self.subTest(arguments):
                self.copy_ok(*arguments, source, self.path("target"))
                os.unlink(self.path("target"))

    def test_silent_without_a_terminal(self):
        self.assertEqual(self.copy(self.image("source"), self.path("target")), (0, "", ""))

    def test_progress_in_lines(self):
        status, output, errors = self.copy("--progress", self.image("source"),
                                           self.path("target"))
        self.assertEqual((status, output), (0, ""))
        self.assertIn("copied 12 MiB", errors)

    def test_the_end_says_what_was_read_and_written(self):
        source = self.make_file("source", b"")
        with open(source, "r+b") as file:
            file.truncate(16 * MIB)
            file.write(b"x" * 3 * MIB + bytes(MIB))
        status, _, errors = self.copy("--progress", source, self.path("target"))
        self.assertEqual(status, 0)
        self.assertRegex(errors, r"copied 16 MiB in 0:\d\d, .*iB/s: 4\.0 MiB read, "
                                 r"3\.0 MiB written, 12 MiB of holes skipped\n")
        status, _, errors = self.copy("--progress", self.make_file("empty", b""),
                                      self.path("target"))
        self.assertEqual(status, 0)
        self.assertRegex(errors, r"copied 0 bytes in 0:\d\d, 0 bytes/s\n")

    def test_nearly_all_is_not_all(self):
        source = self.image("source", 16 * MIB, holes=False)
        last = 16 * MIB - 65536
        small = ["--requests", "1", "--request-size", "64K", source]
        uri = self.serve(f"memory:16M,fault=write:EIO:range={last}+1", "failing")
        self.copy_fails([*small, uri], f"holds a partial copy: {last} of {16 * MIB} bytes; ")
        uri = self.serve(f"memory:16M,delay=write:3s:range={last}+1", "slow")
        status, _, errors = self.copy("--progress", *small, uri)
        self.assertEqual(status, 0)
        self.assertIn(f" 99% copying {last} of {16 * MIB} bytes", errors)

    def on_terminal(self, *arguments, kind="xterm"):
        """Standard error is a terminal: the status and what it showed."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([support.program(), "copy", *arguments], stderr=follower,
                                   stdin=subprocess.DEVNULL, env={**os.environ, "TERM": kind})
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(leader)
        return process.wait(), shown.decode()

    def test_bar_on_a_terminal(self):
        source = self.image("source", holes=False)
        uri = self.serve(f"{source},delay=read:30ms")
        status, shown = self.on_terminal("--requests", "1", uri, self.path("target"))
        self.assertEqual(status, 0)
        self.assertRegex(shown, r"\r +\d+% \[#*\.+\] copying [\d.]+ .*iB of 12 MiB")
        self.assertRegex(shown, r"iB/s, \d+:\d\d left")
        self.assertIn("copied 12 MiB", shown)

    def test_lines_on_a_terminal_that_cannot_erase_any(self):
        uri = self.serve("memory:16M,delay=write:3s:range=0+1")
        status, shown = self.on_terminal(self.image("source", holes=False), uri, kind="dumb")
        self.assertEqual(status, 0)
        self.assertRegex(shown, r"^ *\d+% copying")
        self.assertNotIn("\033", shown)
        self.assertNotRegex(shown, "\r[^\n]")

    def test_a_terminal_is_no_target_and_no_source(self):
        source = self.image("source", MIB)
        leader, follower = os.openpty()
        for arguments, way in (([source, "-"], "stdout"), (["-", self.path("target")], "stdin")):
            done = subprocess.run([support.program(), "copy", *arguments], check=False, text=True,
                                  **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
                                     way: follower}, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("which is a terminal; redirect standard", done.stderr)
        os.close(follower)
        os.close(leader)
        self.assertFalse(os.path.exists(self.path("target")))

    def test_no_bar_on_a_terminal(self):
        status, shown = self.on_terminal("--no-progress", self.image("source"),
                                         self.path("target"))
        self.assertEqual((status, shown), (0, ""))

    def test_summary(self):
        source = self.image("source", holes=False)
        summary = self.copy_ok(source, self.path("target"))
        self.assertEqual(summary["source"], {"name": source, "kind": "file", "bytes": ODD_BYTES})
        self.assertEqual(summary["bytes_read"], ODD_BYTES)
        self.assertEqual(summary["bytes_written"], ODD_BYTES)
        for key in ("bytes_zeroed", "bytes_skipped", "bytes_resumed", "bytes_verified"):
            self.assertEqual(summary[key], 0)
        self.assertGreater(summary["bytes_per_second"], 0)
        self.assertIsNone(summary["durable_bytes"])

    def test_rate(self):
        """A lower bound of the time, which no load can break."""
        source = self.make_file("slow", os.urandom(8 * MIB))
        for arguments, least_s in (([], 0.4), (["--request-size", "1M"], 0.4), (["--verify"], 1)):
            begun = time.monotonic()
            self.copy_ok("--rate", "8M", *arguments, source, self.path("limited"))
            self.assertGreater(time.monotonic() - begun, least_s, arguments)
            with open(source, "rb") as first, open(self.path("limited"), "rb") as second:
                self.assertTrue(first.read() == second.read())
        self.copy_fails(["--rate", "0", "a", "b"], "--rate", status=2)

    def test_summary_of_a_pipe(self):
        with open(self.image("source", MIB), "rb") as stdin:
            done = subprocess.run([support.program(), "copy", "--json", "-", self.path("target")],
                                  stdin=stdin, capture_output=True, text=True, check=True)
        self.assertIn('"kind": "stream"', done.stdout)
        self.assertIn(f'"bytes": {MIB}', done.stdout)

    def test_names_are_escaped(self):
        self.copy_fails([self.path("a\x1b[31m\n"), self.path("target")], "\\x1b[31m\\x0a")

    def test_memory_is_bounded(self):
        """A disk far larger than the memory that may be had."""
        import resource

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (256 * MIB, 256 * MIB))

        if self.run_gmblock("--version", preexec_fn=limit)[0] != 0:
            self.skipTest("this build cannot run in so little address space (a sanitizer's)")
        source = self.path("source")
        with open(source, "wb") as out:
            out.truncate(1 << 40)
            out.seek(1 << 39)
            out.write(b"x" * MIB)
        status, output, errors = self.copy("--verify", source, self.path("target"),
                                           preexec_fn=limit)
        self.assertEqual((status, output, errors), (0, "", ""))
        self.assertEqual(os.path.getsize(self.path("target")), 1 << 40)
        with open(self.path("target"), "rb") as file:
            file.seek(1 << 39)
            self.assertEqual(file.read(MIB), b"x" * MIB)


if __name__ == "__main__":
    support.main()
