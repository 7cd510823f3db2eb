#!/usr/bin/python3
"""`gmblock copy` keeps holes, makes holes of zeroes, and never lets old data shine through."""
import os
import subprocess

import support
from copy_tool import MIB, CopyCase, allocated
from fake_export import STATUS, ExportServer, content

SIZE = 32 * MIB + 12345
SLACK = 256 * 1024  # what a filesystem may allocate beside the data


class Sparse(CopyCase):
    def setUp(self):
        super().setUp()
        self.source = self.path("source")
        with open(self.source, "wb") as out:
            out.truncate(SIZE)
            for offset in range(0, 32, 4):
                out.seek(offset * MIB)
                out.write(os.urandom(MIB))
        if allocated(self.source) > 8 * MIB + SLACK:
            self.skipTest("no holes on this filesystem")

    def holed(self, target):
        self.same(self.source, target)
        self.assertLessEqual(allocated(target), 8 * MIB + SLACK)

    def zeroed_file(self, name):
        """The same bytes, all of them allocated."""
        with open(self.source, "rb") as file:
            return self.make_file(name, file.read())

    def test_file_to_file(self):
        summary = self.copy_ok(self.source, self.path("target"))
        self.holed(self.path("target"))
        self.assertLess(summary["bytes_read"], 9 * MIB)
        self.assertEqual(summary["bytes_zeroed"], 0)

    def test_remote_to_file(self):
        summary = self.copy_ok(self.serve(self.source), self.path("target"))
        self.holed(self.path("target"))
        self.assertLess(summary["bytes_read"], 9 * MIB)

    def test_file_to_remote_full_of_old_data(self):
        disk = self.image("disk", SIZE, holes=False)
        summary = self.copy_ok("--verify", self.source, self.serve(disk))
        self.holed(disk)
        self.assertLess(summary["bytes_written"], 9 * MIB)
        self.assertGreater(summary["bytes_zeroed"], 23 * MIB)

    def test_zeroes_in_data_become_holes(self):
        summary = self.copy_ok(self.zeroed_file("full"), self.path("target"))
        self.holed(self.path("target"))
        self.assertGreaterEqual(summary["bytes_read"], SIZE - MIB)

    def test_zeroes_in_a_pipe_become_holes(self):
        with open(self.source, "rb") as file:
            subprocess.run([support.program(), "copy", "-", self.path("target")],
                           stdin=file, check=True)
        self.holed(self.path("target"))

    def test_zeroes_in_data_become_holes_of_a_remote(self):
        disk = self.image("disk", SIZE, holes=False)
        self.copy_ok(self.zeroed_file("full"), self.serve(disk))
        self.holed(disk)

    def test_no_sparse_keeps_zeroes_in_data(self):
        summary = self.copy_ok("--no-sparse", self.zeroed_file("full"), self.path("target"))
        self.same(self.source, self.path("target"))
        self.assertEqual(summary["bytes_written"], SIZE)
        self.assertGreaterEqual(allocated(self.path("target")), SIZE)

    def test_no_sparse_still_takes_the_holes_that_the_source_tells(self):
        self.copy_ok("--no-sparse", self.source, self.path("target"))
        self.holed(self.path("target"))

    def test_allocate_a_file(self):
        self.copy_ok("--allocate", self.source, self.path("target"))
        self.same(self.source, self.path("target"))
        self.assertGreaterEqual(allocated(self.path("target")), SIZE)

    def test_allocate_a_remote(self):
        disk = self.path("disk")
        with open(disk, "wb") as out:
            out.truncate(SIZE)
        self.copy_ok("--allocate", self.source, self.serve(disk))
        self.same(self.source, disk)
        self.assertGreaterEqual(allocated(disk), SIZE)

    def test_destination_is_zero(self):
        disk = self.path("disk")
        with open(disk, "wb") as out:
            out.truncate(SIZE)
        summary = self.copy_ok("--destination-is-zero", self.source, self.serve(disk))
        self.holed(disk)
        self.assertEqual(summary["bytes_zeroed"], 0)
        self.assertGreater(summary["bytes_skipped"], 23 * MIB)

    def test_destination_is_zero_is_believed_and_verify_is_not(self):
        disk = self.image("disk", SIZE, holes=False)
        self.copy_fails(["--destination-is-zero", "--verify", self.source, self.serve(disk)],
                        "verification failed", "differ at byte", "differs from the source")

    def test_a_server_that_tells_of_less_than_a_block(self):
        def server(export):
            while True:
                request = export.request()
                export.send(export.extents(request, [(512, 0)]) if request.kind == STATUS
                            else export.honest(request))

        with ExportServer(server, size=MIB, sizes=(4096, 4096, MIB)) as source:
            self.copy_ok("--connections", "1", source.uri(), self.path("target"))
        self.assertEqual(source.failures, [])
        with open(self.path("target"), "rb") as target:
            self.assertTrue(target.read() == content(0, MIB))

    def test_small_holes(self):
        """Many small holes: equal bytes, and the zeroes are still found."""
        source, target = self.path("small"), self.path("target")
        with open(source, "wb") as out:
            for _ in range(512):
                out.write(os.urandom(4096))
                out.seek(4096, os.SEEK_CUR)
            out.truncate(8192 * 512)
        self.copy_ok("--verify", source, target)
        self.same(source, target)
        self.assertLessEqual(allocated(target), 4096 * 512 + SLACK)

    def test_all_zeroes(self):
        source, disk = self.path("empty"), self.image("disk", MIB, holes=False)
        with open(source, "wb") as out:
            out.truncate(MIB)
        summary = self.copy_ok(source, self.serve(disk))
        self.same(source, disk)
        self.assertEqual((summary["bytes_read"], summary["bytes_written"]), (0, 0))
        self.assertEqual(summary["bytes_per_second"], 0)  # a hole is not moved

    def test_a_rate_is_of_data(self):
        source = self.path("source")
        with open(source, "wb") as out:
            out.write(b"x" * MIB)
            out.truncate(1 << 40)
        summary = self.copy_ok(source, self.path("target"))
        self.assertEqual((summary["bytes"], summary["bytes_read"]), (1 << 40, MIB))
        self.assertLessEqual(summary["bytes_per_second"] * summary["seconds"], 1.01 * MIB)


if __name__ == "__main__":
    support.main()
