#!/usr/bin/python3
"""`gmblock copy` between every kind of source and every kind of target: equal bytes, exact sizes."""
import os
import subprocess
import threading

import support
from copy_tool import MIB, ODD_BYTES, CopyCase

HUGE_ODD_BYTES = 123456789


class Endpoints(CopyCase):
    def test_file_to_file(self):
        source, target = self.image("source"), self.path("target")
        summary = self.copy_ok(source, target)
        self.same(source, target)
        self.assertEqual((summary["source"]["kind"], summary["target"]["kind"]), ("file", "file"))
        self.assertEqual((summary["bytes"], summary["bytes_done"]), (ODD_BYTES, ODD_BYTES))

    def test_a_file_that_is_more_than_a_disk(self):
        source, target = self.image("source"), self.path("target")
        with open(source, "r+b") as file:
            file.write(b"QFI\xfb")
        code, _, errors = self.copy(source, target)
        self.assertEqual(code, 0, errors)
        self.assertIn(f"gmblock: warning: '{source}' looks like a qcow2 image", errors)
        self.same(source, target)

    def test_file_to_remote(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        self.copy_ok(source, self.serve(disk))
        self.same(source, disk)

    def test_remote_to_file(self):
        source, target = self.image("source"), self.path("target")
        self.copy_ok(self.serve(source), target)
        self.same(source, target)

    def test_remote_to_remote(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        summary = self.copy_ok(self.serve(source, "a"), self.serve(disk, "b"))
        self.same(source, disk)
        self.assertEqual((summary["source"]["kind"], summary["target"]["kind"]),
                         ("remote", "remote"))

    def test_over_tcp(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        first = self.start("--export", f"a={source}", "--listen", "nbd://127.0.0.1:0")
        second = self.start("--export", f"b={disk}", "--listen", "nbd://127.0.0.1:0")
        self.copy_ok(first.uri, second.uri)
        self.same(source, disk)

    def test_between_exports_of_one_server(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        server = self.start_unix("--export", f"a={source}", "--export", f"b={disk}", uri_count=2)
        self.copy_ok(*server.uris)
        self.same(source, disk)

    def test_a_huge_odd_size(self):
        source = self.image("source", HUGE_ODD_BYTES, holes=False)
        disk = self.image("disk", HUGE_ODD_BYTES, seed=2)
        self.copy_ok("--verify", self.serve(source, "a"), self.serve(disk, "b"))
        self.same(source, disk)

    def test_sizes_around_blocks_and_requests(self):
        for size in (0, 1, 511, 512, 513, 4095, 4097, 65537, 262143, 262144, 262145):
            source, target = self.image("source", size), self.path("target")
            self.copy_ok(source, target)
            self.same(source, target)
            os.unlink(target)

    def test_small_exports(self):
        for size in (1, 511, 4097, 262145):
            with self.subTest(size=size):
                source, disk = self.image("source", size), self.image(f"d{size}", size, seed=2)
                self.copy_ok(source, self.serve(disk, f"up{size}"))
                self.same(source, disk)
                self.copy_ok(self.serve_source(source, f"down{size}"), self.path("target"))
                self.same(source, self.path("target"))

    def test_an_empty_export(self):
        source = self.image("source", 0)
        self.copy_ok(self.serve(source), self.path("target"))
        self.assertEqual(os.path.getsize(self.path("target")), 0)

    def test_a_larger_target_keeps_its_rest(self):
        source, disk = self.image("source"), self.image("disk", ODD_BYTES + MIB, seed=2)
        before = self.image("before", ODD_BYTES + MIB, seed=2)
        self.copy_ok(source, self.serve(disk))
        self.same(source, disk, ODD_BYTES)
        with open(disk, "rb") as now, open(before, "rb") as then:
            now.seek(ODD_BYTES)
            then.seek(ODD_BYTES)
            self.assertTrue(now.read() == then.read())

    def test_a_larger_file_is_made_smaller(self):
        source, target = self.image("source"), self.image("target", 2 * ODD_BYTES, seed=2)
        self.copy_ok(source, target)
        self.same(source, target)

    def test_request_settings(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        first, second = self.serve(source, "a"), self.serve(disk, "b")
        for options in (["--requests", "1"], ["--request-size", "4K", "--requests", "1024"],
                        ["--request-size", "32M", "--requests", "2"], ["--connections", "1"],
                        ["--connections", "4"], ["--sparse", "64K"]):
            with self.subTest(options=options):
                self.copy_ok("--verify", *options, first, second)
                self.same(source, disk)

    def test_direct(self):
        source, target = self.image("source"), self.path("target")
        status, _, errors = self.copy("--direct", source, target)
        if status != 0 and "does not support direct I/O" in errors:
            self.skipTest("no direct I/O on this filesystem")
        self.assertEqual((status, errors), (0, ""))
        self.same(source, target)

    def test_block_devices(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for loop devices")
        size = 8 * MIB
        source, disk = self.image("source", size), self.image("disk", size, seed=2)
        devices = [self.loop(source), self.loop(disk)]
        self.copy_ok("--verify", *devices)
        self.copy_ok(devices[1], self.path("target"))
        self.same(source, self.path("target"))
        self.copy_ok("--verify", self.serve(self.image("third", size, seed=3)), devices[0])
        self.copy_ok(devices[0], self.path("target"))
        self.same(self.path("third"), self.path("target"))


class Streams(CopyCase):
    def pipe_in(self, source, *arguments):
        with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as cat:
            done = subprocess.run([support.program(), "copy", *arguments], stdin=cat.stdout,
                                  capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def content(self, path):
        with open(path, "rb") as file:
            return file.read()

    def test_pipe_to_file(self):
        source, target = self.image("source"), self.image("target", 2 * ODD_BYTES, seed=2)
        self.pipe_in(source, "-", target)
        self.same(source, target)

    def test_zeroes_at_the_end_of_a_pipe_count(self):
        source, target = self.make_file("source", b"x" * 5000 + bytes(700000)), self.path("target")
        self.pipe_in(source, "-", target)
        self.same(source, target)

    def test_pipe_to_remote(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        self.pipe_in(source, "-", self.serve(disk))
        self.same(source, disk)

    def test_empty_pipe(self):
        target = self.image("target")
        self.copy_ok("-", target)  # standard input is /dev/null here
        self.assertEqual(os.path.getsize(target), 0)

    def test_file_to_pipe(self):
        source = self.image("source")
        self.assertTrue(self.pipe_in("/dev/null", source, "-") == self.content(source))

    def test_remote_to_pipe(self):
        source = self.image("source")
        uri = self.serve(source)
        self.assertTrue(self.pipe_in("/dev/null", uri, "-") == self.content(source))

    def test_pipe_to_pipe(self):
        source = self.image("source")
        self.assertTrue(self.pipe_in(source, "-", "-") == self.content(source))

    def test_redirected_files(self):
        source, target = self.image("source"), self.path("target")
        with open(source, "rb") as stdin, open(target, "wb") as stdout:
            subprocess.run([support.program(), "copy", "-", "-"], stdin=stdin, stdout=stdout,
                           check=True)
        self.same(source, target)

    def test_named_pipes(self):
        source = self.image("source")
        os.mkfifo(self.path("fifo"))
        process = self.spawn(source, self.path("fifo"))
        with open(self.path("fifo"), "rb") as reader:
            self.assertTrue(reader.read() == self.content(source))
        self.assertEqual(process.communicate(), ("", ""))
        self.assertEqual(process.returncode, 0)

    def test_a_writer_that_is_slow_and_uneven(self):
        reader, writer = os.pipe()
        content = self.content(self.image("source", 300001))

        def write():
            for start in range(0, len(content), 7777):
                os.write(writer, content[start:start + 7777])
            os.close(writer)

        thread = threading.Thread(target=write)
        thread.start()
        done = subprocess.run([support.program(), "copy", "-", self.path("target")], stdin=reader,
                              check=False)
        thread.join()
        os.close(reader)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(self.content(self.path("target")) == content)


if __name__ == "__main__":
    support.main()
