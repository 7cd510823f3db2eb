#!/usr/bin/python3
"""Whatever goes wrong ends `gmblock copy` with the side, the range, the reason and the target's
state."""
import fcntl
import json
import os
import signal
import struct
import subprocess
import threading

import support
from copy_tool import MIB, ODD_BYTES, CopyCase
from fake_export import ExportServer

UNCHANGED = "was not changed"
PARTIAL = "holds a partial copy"


class Refusals(CopyCase):
    """Nothing is touched."""

    def refused(self, source, target, *fragments):
        errors = self.copy_fails([source, target], *fragments)
        self.assertIn(UNCHANGED, errors)

    def test_source_is_missing(self):
        self.refused(self.path("nothing"), self.path("target"), "the source", "No such file")
        self.assertFalse(os.path.exists(self.path("target")))

    def test_a_folder_is_missing(self):
        """What is to be made there is named, and what to do."""
        source = self.image("source", MIB)
        for kind, options in ("flash", ["--size=64M"]), ("overlay", ["--base", source]):
            self.check_refused(["create", *options, f"{kind}:{self.path('no/disk')}"], 1, "cannot create", "no/disk",
                               "create its folder first")
        self.check_refused(["serve", "null:1M", "--tls-certificates", self.path("no"), "--listen",
                            f"nbds+unix:///?socket={self.path('s')}"], 1, self.path("no"), "No such file",
                           "name the folder with server-cert.pem")

    def test_a_server_that_is_not_written_as_a_uri(self):
        source = self.image("source")
        for server, uri in (("127.0.0.1:10901", "nbd://127.0.0.1:10901"),
                            ("[::1]:10901", "nbd://[::1]:10901"),
                            ("nbd:storage:10901", "nbd://storage:10901"),
                            ("nbd:storage", "nbd://storage"), ("nbds:storage/disk", "nbds://storage/disk"),
                            ("gmb:storage", "gmb://storage"), ("nbd+unix:/run/s", "nbd+unix:///?socket=/run/s"),
                            ("nbd:unix:/run/s", "nbd+unix:///?socket=/run/s")):
            for ends in ((source, server), (server, source)):
                code, output, errors = self.run_gmblock("copy", *ends, cwd=self.folder)
                self.assertEqual((code, output), (2, ""), errors)
                self.assertIn(f"write {uri}", errors)
                self.assertIn(f"if it is a file, write ./{server}\n", errors)
        self.assertEqual(os.listdir(self.folder), ["source"])

    def test_a_disk_that_only_a_server_knows(self):
        source = self.image("source")
        for disk in ("flash:disk.flash", "memory:1M", "null:1"):
            for ends in ((source, disk), (disk, source), (disk, "-")):
                code, output, errors = self.run_gmblock("copy", *ends, cwd=self.folder)
                self.assertEqual((code, output), (2, ""), errors)
                self.assertIn(f"run 'gmblock serve {disk}'", errors)
                self.assertIn(f"if it is a file, write ./{disk}\n", errors)
        self.assertEqual(os.listdir(self.folder), ["source"])

    def test_file_before_a_path(self):
        source = self.image("source")
        for ends in (("source", "file:target"), ("file:source", "target")):
            code, output, errors = self.run_gmblock("copy", *ends, cwd=self.folder)
            self.assertEqual((code, output), (2, ""), errors)
            self.assertIn("leave out 'file:' for a file; if that is its name, write ./file:", errors)
        self.assertEqual(os.listdir(self.folder), ["source"])
        code, _, errors = self.run_gmblock("copy", source, "./file:target", cwd=self.folder)
        self.assertEqual(code, 0, errors)
        self.same(source, self.path("file:target"))

    def test_a_device_that_is_not_there(self):
        """No file takes its place, which would fill the memory."""
        name = f"/dev/gmblock-no-such-device-{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(name) and os.remove(name))
        source = self.image("source", MIB)
        self.refused(source, name, "cannot open the target", name, "there is no such device")
        self.check_refused(["create", f"overlay:{name}", "--base", source], 1, name, "there is no such device")
        self.check_refused(["create", f"flash:{name}", "--size=64M"], 1, name, "there is no such device")
        self.assertFalse(os.path.exists(name))
        errors = self.check_refused(["create", "overlay:/dev/null", "--base", source], 1, "'/dev/null'")
        self.assertNotIn("no such device", errors)

    def test_files_with_the_name_of_a_server(self):
        source = self.image("source")
        for name in ("./127.0.0.1:10901", "127.0.0.1:10901", "disk:copy", "./nbd:disk", "./flash:a", "flash:a"):
            code, _, errors = self.run_gmblock("copy", source, name, cwd=self.folder)
            self.assertEqual(code, 0, errors)
            self.same(source, self.path(name))

    def test_source_is_a_folder(self):
        self.refused(self.folder, self.path("target"), "the source", "directory")

    def test_target_is_a_folder(self):
        self.refused(self.image("source"), self.folder, "the target", "directory")

    def test_target_folder_is_missing(self):
        self.refused(self.image("source"), self.path("no/target"), "cannot create the target",
                     "create its folder first")

    def test_target_is_a_host(self):
        """The scheme of a URI is missing, so it is a path."""
        self.refused(self.image("source"), "host:10809/disk", "for an export of a server, write nbd://host:10809/disk")

    def test_same_file(self):
        source = self.image("source")
        os.link(source, self.path("link"))
        before = os.stat(source)
        for other in (source, self.path("link"), os.path.join(self.folder, ".", "source")):
            self.refused(source, other, "are the same")
        self.assertEqual(os.stat(source).st_size, before.st_size)

    def test_a_loop_device_and_its_file(self):
        source = self.image("disk", MIB)
        device = self.loop(source)
        with open(source, "rb") as disk:
            before = disk.read()
        for ends in ((device, source), (source, device)):
            self.copy_fails(ends, "are the same", "was not changed")
        with open(source, "rb") as disk:
            self.assertTrue(disk.read() == before)

    def test_loop_devices_of_one_file(self):
        disk = self.image("disk", MIB)
        whole, other = self.loop(disk), self.loop(disk)
        self.copy_fails((whole, other), "are the same", "was not changed")
        # Two partitions of an image are two disks.
        first = self.loop(disk, "--sizelimit", str(MIB // 2))
        second = self.loop(disk, "--offset", str(MIB // 2))
        self.copy_ok(first, second)
        with open(disk, "rb") as image:
            self.assertTrue(image.read(MIB // 2) == image.read())

    def test_a_size_that_no_file_has(self):
        old = self.image("old", MIB)
        with ExportServer(lambda export: export.serve(), size=(1 << 63) - 1) as source:
            for target in (old, self.path("new")):
                self.copy_fails(["--connections", "1", source.uri(), target], "File too large",
                                "was not changed")
        self.assertEqual(os.path.getsize(old), MIB)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_same_export(self):
        uri = self.serve(self.image("source"))
        self.refused(uri, uri, "are the same")

    def test_target_is_read_only(self):
        disk = self.image("disk", seed=2)
        self.refused(self.image("source"), self.serve(f"{disk},readonly"), "the target",
                     "read-only")
        self.same(disk, self.image("before", seed=2))

    def test_target_is_too_small(self):
        disk = self.image("disk", ODD_BYTES - 1, seed=2)
        self.refused(self.image("source"), self.serve(disk), "the target", "too small",
                     str(ODD_BYTES - 1), str(ODD_BYTES))
        self.same(disk, self.image("before", ODD_BYTES - 1, seed=2))

    def test_target_is_served_for_writing(self):
        disk = self.image("disk", seed=2)
        self.serve(disk)
        self.refused(self.image("source"), disk, "the target", "in use")
        self.same(disk, self.image("before", seed=2))

    def check_target_is_read(self, target, other):
        server = self.start("--export", f"={target},readonly", "--listen", self.socket_uri("r"))
        before = self.path("before")
        with open(target, "rb") as disk, open(before, "wb") as copy:
            copy.write(disk.read())
        for source in (server.uri, self.image("source", MIB), "-"):
            self.refused(source, target, "the target", target, "served read-only",
                         "gmblock server", "stop that server, or copy to another " + other)
        self.assertEqual(os.path.getsize(before), MIB)
        self.same(before, target, MIB)
        self.assertEqual(server.stop()[0], 0)
        self.copy_ok(self.image("source", MIB), target)
        self.same(self.path("source"), target, MIB)

    def test_target_is_served_for_reading(self):
        """It would be emptied, and the source of the copy with it."""
        self.check_target_is_read(self.image("disk", MIB, seed=2), "file")

    def test_target_device_is_served_for_reading(self):
        self.check_target_is_read(self.loop(self.image("disk", MIB, seed=2)), "device")

    def test_target_is_served_under_another_name(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},readonly")
        os.link(disk, self.path("hard"))
        os.symlink(disk, self.path("soft"))
        for other in ("hard", "soft"):
            self.refused(uri, self.path(other), "the target", other, "served read-only")
        self.same(disk, self.image("before", seed=2))

    def test_target_of_a_copy_that_was_begun_is_served_for_reading(self):
        source, disk, journal = self.image("source", holes=False), self.path("disk"), \
            self.path("journal")
        uri = self.serve(f"{source},fault=read:EIO:range=5000000+1", "s")
        begin = ["--resume", journal, "--checkpoint", "1M", "--request-size", "64K", uri, disk]
        self.copy_fails(begin, "Input/output error")
        server = self.start("--export", f"={disk},readonly", "--listen", self.socket_uri("r"))
        with open(journal, "rb") as file:
            before = file.read()
        self.copy_fails(begin, "served read-only")
        with open(journal, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(server.stop()[0], 0)
        self.copy_fails(begin, "Input/output error")

    def mark(self, disk):
        """What operations of a killed server leave on a disk for as long as they are under way."""
        operations = os.open(disk, os.O_RDWR)
        support.ask_writer_mark(operations, support.F_OFD_SETLK, fcntl.F_RDLCK)
        return operations

    def test_a_killed_server_still_writes_the_target(self):
        disk = self.image("disk", MIB, seed=2)
        for target in (disk, self.loop(disk)):
            self.addCleanup(os.close, self.mark(target))
            self.refused(self.image("source", MIB), target, "could overwrite the copy",
                         "try again")
        self.same(disk, self.image("before", MIB, seed=2))

    def test_the_last_write_of_a_killed_server_is_waited_for(self):
        disk = self.image("disk", MIB, seed=2)
        operations = self.mark(disk)
        process = self.spawn(self.image("source", MIB), disk)
        self.assertIn("waiting for them to complete", process.stderr.readline())
        self.same(disk, self.image("before", MIB, seed=2))
        os.close(operations)
        self.assertEqual(process.communicate()[1], "")
        self.assertEqual(process.returncode, 0)
        self.same(self.path("source"), disk)

    def test_the_target_is_marked_as_written(self):
        """So the server that is started when a copy was killed waits, too."""
        disk, source = self.image("disk", MIB, seed=2), self.path("source")
        os.mkfifo(source)
        for options in ([], ["--direct"]):
            process = self.spawn(*options, source, disk)
            with open(source, "wb") as pipe, open(disk, "rb+") as file:
                pipe.write(bytes(4 * MIB))  # more than a pipe holds: the copy is under way
                pipe.flush()
                mark = support.ask_writer_mark(file, support.F_OFD_GETLK, fcntl.F_WRLCK)
                self.assertEqual(mark, fcntl.F_RDLCK)
            self.assertEqual(process.communicate()[1], "")
            self.assertEqual(process.returncode, 0)

    def test_absent_export(self):
        server = self.start("--export", f"a={self.image('disk')}", "--listen", self.socket_uri())
        wrong = server.uri.replace("///a", "///b")
        self.refused(wrong, self.path("target"), "the source")
        self.refused(self.image("source"), wrong, "the target")
        self.assertFalse(os.path.exists(self.path("target")))

    def test_nobody_answers(self):
        self.refused(self.socket_uri("nobody"), self.path("target"), "the source")

    def test_wrong_uris(self):
        for uri in ("http://localhost/", "nbd://", "nbd://host:99999/", "nbd+unix:///x"):
            with self.subTest(uri=uri):
                self.refused(uri, self.path("target"), "the source")

    def test_no_permission(self):
        if os.geteuid() == 0:
            self.skipTest("root may do everything")
        source = self.image("source")
        os.chmod(source, 0)
        self.refused(source, self.path("target"), "Permission denied")

    def test_read_only_device(self):
        device = self.loop(self.image("disk"), "--read-only")
        self.refused(self.image("source", MIB), device, "the target", device)


class Failures(CopyCase):
    """The disk of one side fails in the middle."""

    def test_read(self):
        source = self.image("source", holes=False)
        uri = self.serve(f"{source},fault=read:EIO:range=5000000+1")
        errors = self.copy_fails([uri, self.path("target")], "the source", "Input/output error",
                                 PARTIAL, "starts from the beginning")
        self.assertRegex(errors, r"\b4718592\b")  # the request that holds byte 5000000

    def test_write(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=write:EIO:range=5000000+1")
        errors = self.copy_fails([self.image("source", holes=False), uri], "the target",
                                 "Input/output error", PARTIAL)
        self.assertRegex(errors, r"\b4718592\b")

    def test_no_space_at_the_server(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=write:ENOSPC:nth=3")
        self.copy_fails([self.image("source", holes=False), uri], "the target",
                        "No space left on device", PARTIAL)

    def test_zero(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=zero:EIO:nth=1")
        self.copy_fails([self.image("source"), uri], "the target", "Input/output error", PARTIAL)

    def test_map(self):
        uri = self.serve(f"{self.image('source')},fault=extents:EIO")
        self.copy_fails([uri, self.path("target")], "the source", "Input/output error", PARTIAL)

    def test_flush(self):
        """Everything was written, and still it is no copy."""
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=flush:EIO")
        self.copy_fails([self.image("source"), uri], "the target", "Input/output error",
                        "holds the whole copy", "stable storage")

    def test_flush_for_the_journal(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=flush:EIO:nth=2")
        self.copy_fails(["--resume", self.path("journal"), "--checkpoint", "1M",
                         "--request-size", "64K", self.image("source", holes=False), uri],
                        "the target", "Input/output error", "--resume")

    def test_every_read_that_fails_is_found(self):
        """Wherever it is, and however much is in flight."""
        source = self.image("source", 3 * MIB, holes=False)
        for offset in (0, 262143, 262144, 3 * MIB - 1):
            uri = self.serve(f"{source},readonly,fault=read:EIO:range={offset}+1",
                             f"s{offset}")
            self.copy_fails([uri, self.path("target")], "the source", "Input/output error")

    def test_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to mount a small tmpfs")
        small = self.path("small")
        os.mkdir(small)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "none", small],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest("cannot mount a tmpfs: " + done.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        self.copy_fails([self.image("source", holes=False), os.path.join(small, "target")],
                        "cannot write the target", "No space left on device", PARTIAL)

    def test_full_device(self):
        self.copy_fails([self.image("source"), "/dev/full"], "cannot write the target",
                        "No space left on device")

    def test_file_too_large(self):
        """The target's size cannot be had."""
        def limit():
            import resource
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python's own is to ignore it
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

        status, _, errors = self.copy(self.image("source"), self.path("target"),
                                      preexec_fn=limit)
        self.assertEqual(status, 1)
        self.assertIn("File too large", errors)

    def test_stream_longer_than_the_target(self):
        disk = self.image("disk", MIB, seed=2)
        uri = self.serve(disk)
        with open(self.image("source", 2 * MIB, holes=False), "rb") as stdin:
            done = subprocess.run([support.program(), "copy", "-", uri], stdin=stdin,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("too small", done.stderr)
        self.assertIn(PARTIAL, done.stderr)

    def test_closed_standard_streams(self):
        """What was written nowhere is not a copy, and nothing is not an empty disk."""
        source = self.image("source")
        for closed, arguments, words in (
                (">&-", [source, "-"], "the target standard output"),
                ("<&-", ["-", self.path("target")], "the source standard input")):
            with self.subTest(arguments):
                done = subprocess.run(
                    ["/bin/sh", "-c", f'exec "$0" copy "$@" {closed}', support.program(),
                     *arguments], check=False, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertIn("Bad file descriptor", done.stderr)

    def test_reader_goes_away(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([support.program(), "copy", self.image("source"), "-"],
                              stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write the target standard output", done.stderr)
        self.assertIn("Broken pipe", done.stderr)

    def test_source_becomes_smaller(self):
        disk = self.image("disk", seed=2)
        self.serve(disk, "up")
        relay = self.relay("up")
        for options in ([], ["--skip-errors", self.path("map")]):
            source = self.image("source", holes=False)
            relay.at("up", MIB, lambda _chunk, _index, file=source: os.truncate(file, 2 * MIB))
            self.copy_fails(["--requests", "2", "--request-size", "64K", *options, source, relay.uri],
                            "the source", "shrank", PARTIAL)

    def test_source_grows(self):
        """What was there when the copy began is copied."""
        source = self.image("source", 8 * MIB, seed=5, holes=False)
        with open(source, "rb") as file:
            begun = file.read()
        server = self.start("--export", f"={source},readonly", "--listen", self.socket_uri("s"))
        with subprocess.Popen([support.program(), "copy", server.uri, "-"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self.addCleanup(process.kill)
            copied = process.stdout.read(MIB)  # the rest waits for its reader
            os.truncate(source, 9 * MIB)
            code, _, errors = self.run_gmblock("export", "set", "", "size=auto",
                                               "--server", str(server.process.pid))
            self.assertEqual(code, 0, errors)
            self.assertIn(b"the export now has", process.stderr.readline())
            copied += process.stdout.read()
            self.assertEqual(process.wait(), 0, process.stderr.read())
        self.assertEqual(copied, begun)

    def test_a_lost_connection_is_made_again(self):
        for direction in ("up", "down"):
            with self.subTest(direction=direction):
                source = self.image("source", holes=False)
                disk = self.image(direction + "-disk", seed=2)
                self.serve_source(source, direction + "-source")
                self.serve(disk, direction + "-target")
                one = self.relay(direction + "-source", direction + "-a")
                two = self.relay(direction + "-target", direction + "-b")
                lossy = two if direction == "up" else one
                lossy.at(direction, 3 * MIB, lambda _chunk, _index, lossy=lossy: lossy.cut_all())
                status, _, errors = self.copy("--verify", one.uri, two.uri)
                self.assertEqual(status, 0, errors)
                self.assertIn("the target" if direction == "up" else "the source", errors)
                self.same(source, disk)

    def test_json_of_a_failure(self):
        uri = self.serve(f"{self.image('source')},fault=read:EIO")
        status, output, errors = self.copy("--json", uri, self.path("target"))
        self.assertEqual(status, 1)
        summary = json.loads(output)
        self.assertEqual((summary["result"], summary["target_state"], summary["verified"]),
                         ("failed", "partial", False))
        self.assertIn("Input/output error", summary["error"])
        self.assertIn(summary["error"], errors)


class SkippedErrors(CopyCase):
    """With --skip-errors a copy goes on after what cannot be read, and says where that is."""

    def skip(self, source, target, *options, status=3):
        """The summary, what was said, and the map: (start, end, status) of each range."""
        code, output, errors = self.copy("--json", "--skip-errors", self.path("map"), *options,
                                         source, target)
        self.assertEqual(code, status, errors)
        return json.loads(output), errors, self.read_map()

    def read_map(self):
        ranges, at = [], 0
        with open(self.path("map"), encoding="ascii") as file:
            lines = [line.split() for line in file if not line.startswith("#")]
        self.assertEqual(lines.pop(0)[2:], ["1"])
        for start, length, status in lines:
            self.assertEqual(int(start, 16), at)  # ddrescue demands it
            at += int(length, 16)
            ranges.append((int(start, 16), at, status))
        return ranges

    def check_zeroed(self, source, target, bad):
        with open(source, "rb") as file:
            expected = bytearray(file.read())
        for start, end in bad:
            expected[start:end] = bytes(end - start)
        with open(target, "rb") as file:
            self.assertTrue(file.read(len(expected)) == expected)

    def drop_log(self, server):
        """It says each error, and would wait for a reader."""
        reader = threading.Thread(target=server.process.stderr.read)
        reader.start()
        self.addCleanup(reader.join)
        self.addCleanup(server.process.kill)

    def faulty(self, source, *ranges, name="s"):
        faults = "".join(f",fault=read:EIO:range={start}+{end - start}" for start, end in ranges)
        return self.serve(f"{source},readonly{faults}", name)

    def test_what_cannot_be_read_is_zero_and_listed(self):
        """Alone, in several blocks, on both sides of a piece, and in a last block that is short."""
        source, old = self.image("source", holes=False), self.image("old", seed=2, holes=False)
        last = ODD_BYTES // 4096 * 4096
        bad = [(0, 4096), (4997120, 5001216), (1048576 * 6 - 8192, 1048576 * 6 + 4096),
               (last, ODD_BYTES)]
        # The faults are smaller than the blocks that are lost.
        uri = self.faulty(source, (1, 2), (5000000, 5000001), (bad[2][0] + 5, bad[2][1] - 5),
                          (ODD_BYTES - 1, ODD_BYTES))
        lost = sum(end - start for start, end in bad)
        for options in ([], ["--no-sparse"], ["--allocate"], ["--request-size", "64K"],
                        ["--requests", "1"], ["--direct"]):
            for target in (self.path("new"), old):
                summary, errors, ranges = self.skip(uri, target, *options)
                self.assertEqual(
                    (summary["result"], summary["target_state"], summary["bytes_bad"],
                     summary["first_bad"], summary["bytes_read"], summary["bytes_done"]),
                    ("incomplete", "gaps", lost, 0, ODD_BYTES - lost, ODD_BYTES))
                self.assertIn(summary["error"], errors)
                self.assertIn(f"{lost} bytes of the source cannot be read, in 4 ranges, the first at byte 0: "
                              "the source", errors)
                self.assertIn(f"the map '{self.path('map')}' lists these ranges", errors)
                self.assertIn(f"the target '{target}' holds zeroes in the unreadable ranges", errors)
                self.check_zeroed(source, target, bad)
                self.assertEqual(os.path.getsize(target), ODD_BYTES)
                self.assertEqual([(start, end) for start, end, status in ranges if status == "-"],
                                 bad)
                self.assertEqual(sorted(ranges), ranges)
                self.assertEqual({status for _, _, status in ranges}, {"-", "+"})
                self.assertEqual(ranges[-1][1], ODD_BYTES)
                os.unlink(self.path("map"))
            os.unlink(self.path("new"))

    def test_over_the_data_of_a_disk(self):
        """The target is a server's, and holds something else where the source cannot be read."""
        source, disk = self.image("source", MIB, holes=False), self.image("disk", MIB, seed=2, holes=False)
        target = self.serve(disk, "t")
        self.skip(self.faulty(source, (70000, 70001)), target)
        self.check_zeroed(source, disk, [(69632, 73728)])

    def test_to_standard_output(self):
        source = self.image("source", holes=False)
        uri = self.faulty(source, (70000, 70001))
        with open(self.path("out"), "wb") as out:
            done = subprocess.run([support.program(), "copy", "--skip-errors", self.path("map"),
                                   uri, "-"], stdout=out, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.check_zeroed(source, self.path("out"), [(69632, 73728)])

    def test_a_damaged_flash_store(self):
        """Blocks of data whose checksums are wrong."""
        store, source = self.flash_store("16M", 4 * MIB)
        with open(source, "rb") as file:
            image = file.read()
        with open(store, "r+b") as file:
            contents = file.read()
            for offset in (69632, 3 * MIB):
                file.seek(contents.index(image[offset:offset + 4096]) + 100)
                file.write(bytes(8))
        uri = self.serve(f"flash:{store},readonly", "u")
        self.copy_fails([uri, self.path("target")], "Input/output error", PARTIAL)
        summary, _, ranges = self.skip(uri, self.path("target"))
        self.assertEqual((summary["bytes_bad"], summary["first_bad"]), (8192, 69632))
        self.check_zeroed(source, self.path("target"), [(69632, 73728), (3 * MIB, 3 * MIB + 4096)])
        self.assertEqual([one for one in ranges if one[2] == "-"],
                         [(69632, 73728, "-"), (3 * MIB, 3 * MIB + 4096, "-")])

    def flash_store(self, size, source_bytes):
        """A store, and the file whose bytes were written to it."""
        store, source = self.path("disk.flash"), self.image("source", source_bytes, holes=False)
        code, _, errors = self.run_gmblock("create", "--size=" + size, "--segment=64K", "flash:" + store)
        self.assertEqual(code, 0, errors)
        server = self.start("--export", f"=flash:{store},cache=0", "--listen", self.socket_uri("s"))
        self.copy_ok(source, server.uri)
        self.assertEqual(server.stop()[0], 0)
        return store, source

    def test_a_flash_store_without_its_map(self):
        """Neither its data nor its holes can be had."""
        store, _ = self.flash_store("4M", MIB)
        with open(store, "r+b") as file:
            top, = struct.unpack("<I", os.pread(file.fileno(), 4, 512))
            for copy in range(2):
                os.pwrite(file.fileno(), b"damage", (top + copy) * 4096 + 8)
        server = self.start("--export", f"=flash:{store},readonly", "--listen", self.socket_uri("u"))
        self.drop_log(server)
        summary, _, ranges = self.skip(server.uri, self.path("target"))
        self.assertEqual((summary["bytes_bad"], summary["first_bad"]), (summary["bytes"], 0))
        self.assertEqual(ranges, [(0, summary["bytes"], "-")])
        self.check_zeroed(self.path("target"), self.path("target"), [(0, summary["bytes"])])

    def test_nothing_is_wrong(self):
        source = self.image("source")
        summary = self.copy_ok("--skip-errors", self.path("map"), source, self.path("target"))
        self.assertEqual((summary["bytes_bad"], summary["first_bad"]), (0, None))
        self.assertEqual(self.read_map(), [(0, ODD_BYTES, "+")])
        self.same(source, self.path("target"))

    def test_where_the_holes_are_cannot_be_told(self):
        source = self.image("source")
        uri = self.serve(f"{source},readonly,fault=extents:EIO")
        self.copy_ok("--skip-errors", self.path("map"), uri, self.path("target"))
        self.same(source, self.path("target"))

    def test_other_errors_end_the_copy(self):
        """They are not of the data: that may be had later."""
        source = self.image("source", holes=False)
        uri = self.serve(f"{source},readonly,fault=read:EPERM:range=5000000+1")
        summary, errors, ranges = self.skip(uri, self.path("target"), "--request-size", "64K",
                                            "--requests", "1", status=1)
        self.assertEqual((summary["target_state"], summary["bytes_bad"]), ("partial", 0))
        self.assertIn(PARTIAL, errors)
        self.assertEqual(ranges, [(0, 4980736, "+"), (4980736, ODD_BYTES, "?")])

    def test_the_target_fails(self):
        """What was found until then is told; where nothing was written, nothing is promised."""
        source = self.image("source", holes=False)
        uri = self.faulty(source, (70000, 70001))
        target = self.serve(f"{self.image('disk', seed=2)},fault=write:EIO:range=5000000+1", "t")
        summary, errors, ranges = self.skip(uri, target, "--request-size", "64K", "--requests", "1",
                                            status=1)
        self.assertEqual((summary["result"], summary["bytes_bad"]), ("failed", 4096))
        self.assertIn("the first at byte 69632", errors)
        self.assertEqual(ranges, [(0, 69632, "+"), (69632, 73728, "-"), (73728, 4980736, "+"),
                                  (4980736, ODD_BYTES, "?")])

    def test_nothing_is_durable(self):
        uri = self.faulty(self.image("source", holes=False), (70000, 70001))
        target = self.serve(f"{self.image('disk', seed=2)},fault=flush:EIO", "t")
        self.assertEqual(self.skip(uri, target, status=1)[2], [(0, ODD_BYTES, "?")])

    def test_stopped_among_bad_blocks(self):
        """Each of them is a request; the signal comes long before the last one."""
        source = self.image("source", holes=False)
        self.drop_log(self.start("--export", f"={source},readonly,fault=read:EIO",
                                 "--listen", self.socket_uri("up")))
        relay = self.relay("up")
        process = self.spawn("--connections", "1", "--skip-errors", self.path("map"), relay.uri,
                             self.path("target"))
        relay.at("up", 3000, lambda _chunk, _index: process.send_signal(signal.SIGINT))
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 128 + signal.SIGINT, errors)
        self.assertIn("bytes of the source cannot be read", errors)
        self.assertEqual(self.read_map()[-1][1:], (ODD_BYTES, "?"))

    def test_a_map_that_cannot_be_written(self):
        source, old = self.image("source", MIB), self.image("old", MIB, seed=2)
        absent, empty = self.path("absent"), self.make_file("empty", b"")
        for path, target, words in (
                (old, absent, "already exists and is not overwritten"),
                (self.folder, absent, "Is a directory"),
                (self.path("no/map"), absent, "No such file"),
                (self.path("./empty"), empty, "must be a different file from the source and the target"),
                (source, absent, "must be a different file from the source and the target"),
                (self.path("./absent"), absent, "cannot create the target")):
            with self.subTest(path=path, target=target):
                self.copy_fails(["--skip-errors", path, source, target], words, UNCHANGED)
                self.assertFalse(os.path.exists(absent))
        self.same(old, self.image("before", MIB, seed=2))

    def test_a_map_is_not_left_where_nothing_was_copied(self):
        self.copy_fails(["--skip-errors", self.path("map"), self.image("source"), self.folder],
                        "it is a directory; name a file in it", UNCHANGED)
        self.copy_fails(["--skip-errors", self.path("map"), self.image("source"),
                         self.serve(self.image("small", MIB))], "too small", UNCHANGED)
        self.assertFalse(os.path.exists(self.path("map")))


if __name__ == "__main__":
    support.main()
