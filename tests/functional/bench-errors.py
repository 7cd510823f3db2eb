#!/usr/bin/python3
"""gmblock bench says why it cannot measure, ends with the right status, and never hangs."""
import json
import os
import shutil
import signal
import socket
import subprocess
import unittest

import nbdmini
import support

LONG = "1000"


class Usage(support.Case):
    def refuse(self, *arguments):
        *options, fragment = arguments
        return self.check_refused(["bench", *options, self.socket_uri()], 2, fragment,
                                  "gmblock bench --help")

    def test_wrong_values(self):
        self.refuse("--rw", "erase", "unknown pattern 'erase'")
        self.refuse("--rw", "rw\x1b[2J", r"rw\x1b[2J")
        self.refuse("--bs", "0", "--bs")
        self.refuse("--bs", "4X", "4X")
        self.refuse("--bs", "257M", "at most 256M")
        self.refuse("--depth", "0", "--depth")
        self.refuse("--depth", "1025", "--depth")
        self.refuse("--connections", "0", "--connections")
        self.refuse("--connections", "automatic", "automatic")
        self.refuse("--threads", "65", "--threads")
        self.refuse("--size", "0", "--size")
        self.refuse("--offset", "-1", "--offset")
        self.refuse("--requests", "0", "--requests")
        self.refuse("--seed", "1e3", "1e3")
        self.refuse("--seed", "9223372036854775808", "2^63")
        self.refuse("--read-percent", "101", "--read-percent")
        self.refuse("--timeout", "0", "--timeout")
        for text in ("0", "-1", "", ".", "1x", "0s", "1.5s", "1000h", "999ns", "1e9", "nan", "inf",
                     "0x10", "1.2.3", " 1", "9999999999"):
            self.refuse("--seconds", text, "--seconds")
        self.refuse("--warmup", "soon", "'soon'")
        for text in ("0", "2T", "fast", "requests=0", "requests=", "requests=1e9", "-1",
                     "100M:requests=5"):
            self.refuse("--rate", text, "--rate")

    def test_options_that_do_not_go_together(self):
        self.refuse("--read-percent", "30", "--read-percent needs")
        self.refuse("--rw", "write", "--read-percent", "30", "--read-percent needs")
        self.refuse("--fua", "--fua needs a pattern with writes")
        self.refuse("--force", "--force needs a pattern with writes, unlike --rw randread")
        self.refuse("--threads", "3", "--connections", "2", "only 2")
        self.refuse("--bs", "64M", "--depth", "1024", "more than 4G of buffers")

    def test_uris(self):
        self.check_refused(["bench"], 2, "give the URI of an export")
        self.check_refused(["bench", "nbd://a", "nbd://b"], 2, "only one URI can be given")
        self.check_refused(["bench", "http://localhost/"], 2, "http")
        self.check_refused(["bench", "disk.img"], 2, "scheme")


class Refused(support.Case):
    """The export does not allow what was asked for."""

    def refuse(self, uri, *arguments):
        *options, fragment = arguments
        code, output, errors = self.run_gmblock("bench", "--json", *options, uri)
        self.assertEqual((code, output), (1, ""), errors)
        self.assertIn(fragment, errors)

    def test_nobody_there(self):
        self.refuse(self.socket_uri("nobody"), "gmblock bench: ")
        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0")
        server.stop()
        self.refuse(server.uri, "gmblock bench: ")

    def test_no_such_export(self):
        server = self.start_unix("--export", "disk=memory:1M")
        self.refuse(server.uri.replace("disk", "dusk"), "dusk")

    def test_read_only(self):
        uri = self.start_unix("--export", "=memory:1M,readonly").uri
        for pattern in ("write", "randwrite", "rw", "randrw"):
            self.refuse(uri, "--rw", pattern, f"read-only: --rw {pattern} cannot write")
        code, _, errors = self.run_gmblock("bench", "--requests", "5", "--seconds", LONG, uri)
        self.assertEqual((code, errors), (0, ""))

    def test_read_only_by_an_option_for_the_path(self):
        self.refuse(self.start_unix("memory:1M", "--read-only").uri, "--rw", "write",
                    "read-only: --rw write cannot write")

    def test_ranges_that_are_not_there(self):
        uri = self.start_unix("memory:1M").uri
        self.refuse(uri, "--size", "2M", "past the end of the export, which has 1048576 bytes")
        self.refuse(uri, "--offset", "2M", "the offset 2097152 is outside the export")
        self.refuse(uri, "--offset", "1M", "the offset 1048576 is outside the export")
        self.refuse(uri, "--offset", "1M", "--size", "1", "outside the export")
        self.refuse(uri, "--offset", "15E", "--size", "4K", "outside the export")
        self.refuse(uri, "--size", "4095", "smaller than one block of 4096 bytes")
        self.refuse(uri, "--bs", "2M", "smaller than one block of 2097152 bytes")

    def test_an_empty_export(self):
        path = self.make_file("empty.img", b"")
        self.refuse(self.start_unix(path).uri, "the export is empty")

    @unittest.skipUnless(shutil.which("nbdkit"), "nbdkit is not installed")
    def test_blocks_that_the_server_does_not_take(self):
        done = subprocess.run(
            ["nbdkit", "-U", "-", "--filter=blocksize-policy", "memory", "1M",
             "blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=1M",
             "blocksize-error-policy=error", "--run",
             '"$GMBLOCK" bench --bs 2K "$uri"; echo "status $?";'
             '"$GMBLOCK" bench --offset 2K "$uri"; echo "status $?";'
             '"$GMBLOCK" bench --bs 8K --requests 5 --seconds 60 --json "$uri" >/dev/null; echo "status $?"'],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "GMBLOCK": support.program()})
        if "blocksize-policy" in done.stderr and "open" in done.stderr:
            self.skipTest("this nbdkit has no blocksize-policy filter")
        self.assertEqual(done.stdout, "status 1\nstatus 1\nstatus 0\n", done.stderr)
        self.assertEqual(done.stderr.count("minimum block size of the server, 4096 bytes"), 2, done.stderr)


class Contents(support.Case):
    """An export with contents is overwritten only when that is wanted."""
    BYTES = 16 << 20

    def image(self, *places):
        """Zeroes, with a byte at each place."""
        path = self.make_file("disk.img", b"")
        with open(path, "r+b") as file:
            file.truncate(self.BYTES)
            for place in places:
                file.seek(place)
                file.write(b"x")
        return path

    def bench(self, uri, *options):
        return self.run_gmblock("bench", "--rw", "randwrite", "--requests", "4", "--seconds", LONG,
                                *options, uri)

    def check_refused_at(self, place, path, uri, *options):
        with open(path, "rb") as file:
            before = file.read()
        code, output, errors = self.bench(uri, *options)
        self.assertEqual((code, output), (1, ""), errors)
        self.assertIn(f"has contents, for example at byte {place}, which --rw randwrite would "
                      "overwrite", errors)
        self.assertIn("--force", errors)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_contents_are_kept(self):
        for place in (0, 4096, 131071, self.BYTES // 2 + 77, self.BYTES - 1):
            path = self.image(place)
            server = self.start_unix(path)
            self.check_refused_at(place, path, server.uri)
            self.assertEqual(self.bench(server.uri, "--force")[0], 0)
            server.stop()

    def test_only_the_range_counts(self):
        path = self.image(0, 1 << 20, 9 << 20)
        uri = self.start_unix(path).uri
        self.check_refused_at(1 << 20, path, uri, "--offset", "64K", "--size", "2M")
        self.check_refused_at(9 << 20, path, uri, "--offset", "1028K")
        self.assertEqual(self.bench(uri, "--offset", "1028K", "--size", "2M")[0], 0)

    def test_an_empty_export_is_written(self):
        for disk in (self.image(), "memory:1M", "null:1M"):
            server = self.start_unix(disk)
            code, _, errors = self.bench(server.uri, "--threads", "3")
            self.assertEqual((code, errors), (0, ""))
            server.stop()

    @unittest.skipUnless(shutil.which("nbdkit"), "nbdkit is not installed")
    def test_a_server_that_tells_of_no_holes_is_read_at_both_ends(self):
        for place in (70000, self.BYTES - 100000):
            done = subprocess.run(
                ["nbdkit", "-U", "-", "--filter=noextents", "file", self.image(place), "--run",
                 '"$GMBLOCK" bench --rw write --requests 1 "$uri"; echo "status $?"'],
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                env={**os.environ, "GMBLOCK": support.program()})
            self.assertEqual(done.stdout, "status 1\n", done.stderr)
            self.assertIn(f"for example at byte {place}, ", done.stderr)

    def test_what_cannot_be_read_is_not_overwritten(self):
        for fault, words in (("read", "to check whether the export has contents: Input/output error"),
                             ("extents", "cannot get the allocation of the export: Input/output error")):
            server = self.start_unix("--export", f"={self.image(0)},fault={fault}:EIO")
            code, output, errors = self.bench(server.uri)
            self.assertEqual((code, output), (1, ""))
            self.assertIn(words, errors)
            server.stop()


class Failing(support.Case):
    """The server stops doing what it should in the middle."""

    def test_a_failed_request_is_named(self):
        uri = self.start_unix("--export", "=memory:1M,fault=read:EIO:nth=100").uri
        code, output, errors = self.run_gmblock("bench", "--json", "--seconds", LONG, uri)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("read", errors)
        self.assertIn("4096", errors)
        self.assertIn("Input/output error", errors)
        self.assertEqual(errors.count("\n"), 1)

    def test_one_failure_ends_all_threads(self):
        uri = self.start_unix("--export", "=memory:1M,fault=write:ENOSPC:nth=500").uri
        code, output, errors = self.run_gmblock("bench", "--rw", "randwrite", "--threads", "4",
                                                "--seconds", LONG, uri)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("No space left on device", errors)

    def test_nothing_done_in_the_time(self):
        uri = self.start_unix("--export", "=memory:1M,delay=read:1s").uri
        code, output, errors = self.run_gmblock("bench", "--seconds", "0.01", uri)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("no request completed", errors)

    def start_writing(self, server, *options):
        """A run that writes, and has seen requests end: the last block of a range comes after the
        first ones are done."""
        process = subprocess.Popen(
            [support.program(), "bench", "--json", "--rw", "write", "--seconds", LONG, *options,
             server.uri], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        with nbdmini.open_export(server.uri) as client:
            while client.read(client.size - 4096, 4096) == bytes(4096) and process.poll() is None:
                os.sched_yield()
        return process

    def finish(self, process):
        output, errors = process.communicate()
        return process.returncode, output, errors

    def test_a_server_that_dies(self):
        server = self.start_unix("memory:1M")
        process = self.start_writing(server, "--threads", "2", "--timeout", "5s")
        server.kill()
        code, output, errors = self.finish(process)
        self.assertEqual((code, output), (1, ""), errors)
        self.assertRegex(errors, "gmblock bench: .*gave up after 5 s without a connection")

    def test_an_interrupted_run_shows_what_it_measured(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = self.start_unix("memory:1M")
            process = self.start_writing(server, "--threads", "2")
            process.send_signal(number)
            code, output, errors = self.finish(process)
            self.assertEqual(code, 1)
            self.assertIn("the measurement was interrupted before its end", errors)
            result = json.loads(output)
            self.assertIs(result["interrupted"], True)
            self.assertGreater(result["requests"], 0)
            self.assertLess(result["seconds"], float(LONG))
            server.stop()

    def test_interrupted_in_the_warm_up(self):
        process = self.start_writing(self.start_unix("memory:1M"), "--warmup", LONG)
        process.send_signal(signal.SIGINT)
        code, output, errors = self.finish(process)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("the measurement was interrupted before its first request was complete", errors)

    def test_interrupted_between_the_requests_of_a_rate(self):
        process = self.start_writing(self.start_unix("memory:1M"), "--rate", "requests=5", "--depth", "1",
                                     "--offset", "1016K")
        process.send_signal(signal.SIGINT)
        code, output, errors = self.finish(process)
        self.assertEqual(code, 1, errors)
        # The second of two blocks was seen on the disk; its reply may still be on its way.
        self.assertIn(json.loads(output)["requests"], (1, 2))

    def test_progress_on_a_terminal(self):
        for options in ([], ["--once"]):
            server = self.start_unix("memory:256M")
            leader, follower = os.openpty()
            process = subprocess.Popen(
                [support.program(), "bench", "--json", "--seconds", LONG, "--rate", "1M", *options,
                 server.uri], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=follower)
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            os.close(follower)
            shown = b""
            while b" s left" not in shown:
                shown += os.read(leader, 4096)
            process.send_signal(signal.SIGINT)
            process.communicate()
            os.close(leader)
            self.assertRegex(shown, rb"\r\d+ requests, \d+ in the last second, [0-9.]+ (bytes|[KM]iB)/s, ")
            self.assertRegex(shown, rb"/s, at most \d+ s left" if options else rb"/s, \d+ s left")
            server.stop()

    def test_no_progress_before_there_is_a_connection(self):
        leader, follower = os.openpty()
        with socket.create_server(("127.0.0.1", 0)) as mute:
            done = subprocess.run(
                [support.program(), "bench", "--timeout", "3s",
                 f"nbd://127.0.0.1:{mute.getsockname()[1]}"], check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        shown = os.read(leader, 4096)
        os.close(leader)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(shown.startswith(b"gmblock bench: "), shown)

    def test_nothing_left_after_the_warm_up(self):
        self.check_refused(["bench", "--once", "--warmup", LONG, self.start_unix("memory:1M").uri],
                           1, "the warm-up used every block")

    def test_output_that_cannot_be_written_is_a_failure(self):
        uri = self.start_unix("memory:1M").uri
        for form in ([], ["--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run(
                    [support.program(), "bench", *form, "--requests", "9", "--seconds", LONG, uri],
                    stdout=full, check=False, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    support.main()
