#!/usr/bin/python3
"""gmblock trace says why it cannot, and ends with the right status."""
import json
import os
import signal
import subprocess

import support
from trace_tool import MIB, TraceCase


class Usage(TraceCase):
    def refuse(self, *arguments):
        *options, fragment = arguments
        self.check_refused(["trace", *options, "disk"], 2, fragment, "gmblock trace --help")

    def test_wrong_values(self):
        self.refuse("--size", "0", "--size")
        self.refuse("--size", "1000", "1000 is not a multiple of 512")
        self.refuse("--size", "65M", "at most 64M")
        self.refuse("--size", "x\x1b[2J", r"x\x1b[2J")
        self.refuse(*["--size", "4K"] * 9, "at most 8")
        self.refuse("--count", "0", "--count")
        self.refuse("--count", "1001", "--count")
        self.refuse("--chunk", "100", "--chunk")
        self.refuse("--chunk", "0", "--chunk")
        self.refuse("--offset", "1", "--offset")
        self.refuse("--offset", "-1", "--offset")
        self.refuse("--colour", "--colour")

    def test_what_does_not_go_together(self):
        self.refuse("--size", "64M", "--count", "1000", "too many to record")
        self.refuse("--chunk", "2M", "--chunk: a chunk must not be larger than a read (--size)")
        self.refuse("--size", "1M", "--size", "8K", "--chunk", "16K", "--chunk: a chunk must not be larger")

    def test_options_of_the_other_kind(self):
        """Of a disk, or of --request."""
        self.refuse("--request", "--cached", "--cached is only for a disk")
        for option in ("--size", "--offset", "--chunk"):
            self.refuse("--request", option, "4096", option + " is only for a disk")
        self.refuse("--operation", "read", "--operation needs --request")
        self.refuse("--export", "x", "--export needs --request")
        self.refuse("--min-size", "1", "--min-size needs --request")
        self.refuse("--timeout", "1s", "--timeout needs --request")

    def test_disks(self):
        self.check_refused(["trace"], 2, "no disk given")
        self.check_refused(["trace", "a", "b"], 2, "only one disk can be given")
        for uri in ("nbd://x", "nbds+unix:///disk?socket=/nowhere"):
            self.check_refused(["trace", uri], 2, f"'{uri}' is a URI", "disks of this machine",
                               f"gmblock trace --request {uri}\n", "gmblock trace --help")

    def test_a_process_is_not_a_disk(self):
        self.check_refused(["trace", "8252"], 2, "no disk '8252'",
                           "gmblock trace --request 8252\n")


class Refused(TraceCase):
    def refuse(self, *arguments):
        *options, fragment = arguments
        code, output, errors = self.run_gmblock("trace", *options)
        self.assertEqual((code, output), (1, ""), errors)
        self.assertIn(fragment, errors)
        self.assertEqual(errors.count("\n"), 1, errors)

    def test_absent(self):
        self.refuse(self.path("nothing"), "does not exist")
        self.refuse(self.path("a\x1b[31m\udcff\u00e4/x"), r"a\x1b[31m\xff" + "\u00e4/x")

    def test_unreadable(self):
        path = self.make_file("disk", bytes(MIB))
        os.chmod(path, 0)
        os.chmod(self.folder, 0o755)
        options = {}
        if os.geteuid() == 0:
            options = {"user": 65534, "group": 65534, "extra_groups": []}
            try:
                subprocess.run([support.program(), "--version"], check=True,
                               capture_output=True, **options)
            except (OSError, subprocess.CalledProcessError) as error:
                self.skipTest(f"nobody cannot run the program: {error}")
        code, output, errors = self.run_gmblock("trace", path, **options)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("Permission denied", errors)

    def test_not_a_disk(self):
        self.refuse(self.folder, "directory")
        self.refuse("/dev/null", "character device")

    def test_no_direct_io(self):
        """What is in /proc has no direct I/O anywhere."""
        self.refuse("/proc/version", "--cached")
        self.refuse("--cached", "/proc/version", "extends past the end of the disk, which has 0 bytes")

    def test_too_small(self):
        path = self.disk(size=MIB)
        self.refuse("--size", "2M", path, "extends past the end of the disk, which has 1048576 bytes")
        self.refuse("--offset", "4K", path, "a read of 1048576 bytes at 4096 extends past the end of the disk")
        self.refuse("--offset", "8M", "--size", "4K", path, "extends past the end")
        self.refuse("--size", "4K", "--size", "2M", path, "2097152 bytes at 0 extends past the end")

    def test_not_whole_blocks(self):
        image = self.make_file("image", os.urandom(4 * MIB))
        device = self.loop(image, "--sector-size", "4096")
        self.refuse("--size", "512", device, "--size 512 is not a multiple of 4096")
        self.refuse("--offset", "512", device, "--offset 512 is not a multiple of 4096")
        self.trace("--cached", "--offset", "512", "--size", "512", device)

    def test_a_disk_that_fails(self):
        """A loop device whose file has become shorter behind its back."""
        image = self.make_file("image", os.urandom(4 * MIB))
        device = self.loop(image)
        os.truncate(image, MIB)
        subprocess.run(["blockdev", "--flushbufs", device], check=False, capture_output=True)
        code, output, errors = self.run_gmblock("trace", "--offset", "2M", device)
        if code == 0:
            self.skipTest("this kernel reads zeroes there")
        self.assertEqual((code, output), (1, ""))
        self.assertIn("reading 1048576 bytes at 2097152", errors)

    def test_an_interrupted_run_shows_what_it_measured(self):
        """There is a second thread only while it reads: that read is measured."""
        path = self.make_file("disk", b"")
        os.truncate(path, 64 * MIB)
        long = ["--cached", *["--size", "64M"] * 8, "--count", "1000", "--chunk", "1M", path]
        for number in (signal.SIGINT, signal.SIGTERM):
            for form in (["--json"], []):
                tracer = subprocess.Popen([support.program(), "trace", *form, *long],
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True)
                self.addCleanup(self.end, tracer)
                while len(os.listdir(f"/proc/{tracer.pid}/task")) < 2:
                    self.assertIsNone(tracer.poll())
                tracer.send_signal(number)
                output, errors = tracer.communicate()
                self.assertEqual(tracer.returncode, 1, errors)
                self.assertRegex(
                    errors, r"\Agmblock trace: interrupted after [1-9]\d* of 8000 reads\n\Z")
                if form:
                    told = json.loads(output)
                    self.assertIs(told["interrupted"], True)
                    reads = [read for size in told["sizes"] for read in size["reads"]]
                    self.assertIn(f"after {len(reads)} of", errors)
                    self.assertEqual([len(read["arrivals_us"]) for read in reads],
                                     [64] * len(reads))
                    self.plot(told)
                else:
                    self.assertRegex(output, r"64M, \d+ times?, then interrupted\n")

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_output_that_cannot_be_written(self):
        path = self.disk(size=MIB)
        for form in ([], ["--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([support.program(), "trace", *form, path], stdout=full,
                                      stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    support.main()
