#!/usr/bin/python3
"""`gmblock copy --resume`: killed wherever, it goes on, and the end is an equal copy."""
import os
import random
import re
import signal

import support
from copy_tool import MIB, ODD_BYTES, CopyCase
from fake_export import FLUSH, READ, STATUS, ExportServer, content

KILLS = 20
KILL_BYTES = 24 * MIB + 4321


class Kills(CopyCase):
    def kill_until_done(self, arguments, relay, direction, numbers, seed):
        """Runs the same command until it succeeds; KILLS times it gets a signal at some byte, every second
        time at one that comes after a new mark in the journal. Where flushing is so slow that a run has no
        mark, that is done again."""
        source = random.Random(seed)
        print(f"seed {seed}")
        starts = set()
        for run in range(KILLS):
            number = source.choice(numbers)
            before = self.durable() or 0
            process = self.spawn(*arguments)

            def kill(_chunk, _index, process=process, number=number, before=before, run=run):
                if run % 2 == 0 or (self.durable() or 0) > before:
                    process.send_signal(number)
                else:
                    relay.at(direction, 65536, kill)

            relay.at(direction, source.randrange(1, KILL_BYTES // 8), kill)
            _, errors = process.communicate()
            if process.returncode == 0 and len(starts) > 1:
                break
            if process.returncode != 0:
                self.assertIn(process.returncode, (-number, 128 + number), errors)
                if process.returncode == 128 + number:
                    self.assertIn("--resume", errors)
                starts.add(self.durable() or 0)
        relay.at(direction, 1 << 60, lambda _chunk, _index: None)
        if process.returncode != 0:
            self.copy_ok(*arguments)
        self.assertGreater(len(starts), 1, "no run went on where another had stopped")
        self.assertFalse(os.path.exists(self.path("journal")))

    def arguments(self, *ends):
        return ["--resume", self.path("journal"), "--checkpoint", "256K", "--request-size",
                "64K", "--requests", "8", *ends]

    def one_by_one(self, *ends):
        """What has moved has moved in order: a late answer holds up everything, not the mark alone."""
        return ["--resume", self.path("journal"), "--checkpoint", "256K", "--request-size",
                "64K", "--requests", "1", "--connections", "1", *ends]

    def test_remote_to_remote_killed(self):
        source = self.image("source", KILL_BYTES, seed=11)
        disk = self.image("disk", KILL_BYTES, seed=12)
        self.serve(disk, "up")
        relay = self.relay("up")
        self.kill_until_done(self.arguments(self.serve(source, "a"), relay.uri), relay, "up",
                             [signal.SIGKILL], random.randrange(1 << 32))
        self.same(source, disk)

    def test_remote_to_file_killed_and_stopped(self):
        source = self.image("source", KILL_BYTES, seed=13)
        self.serve(source, "up")
        relay = self.relay("up")
        self.kill_until_done(self.arguments(relay.uri, self.path("target")), relay, "down",
                             [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
                             random.randrange(1 << 32))
        self.same(source, self.path("target"))

    def test_stopped_by_a_signal(self):
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        self.serve(disk, "up")
        relay = self.relay("up")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.spawn("--log-level", "info", *self.one_by_one(source, relay.uri))
            relay.at("up", 2 * MIB, lambda _chunk, _index, process=process, number=number:
                     process.send_signal(number))
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 128 + number, errors)
            self.assertIn("a second signal ends the copy immediately", errors)
            self.assertIn(f"stopped by {number.name}", errors)
            self.assertIn("holds a partial copy", errors)
            self.assertIn(f"continue from byte {self.durable()}", errors)
            self.assertGreater(self.durable(), 0)
        before = self.durable()
        summary = self.copy_ok("--verify", *self.one_by_one(source, relay.uri))
        self.assertEqual(summary["bytes_resumed"], before)
        self.assertEqual(summary["bytes_read"], ODD_BYTES - before)
        self.assertEqual(summary["bytes_verified"], ODD_BYTES)
        self.same(source, disk)

    @staticmethod
    def is_pending(process):
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as status:
            return re.search(r"^ShdPnd:\s*0*$", status.read(), re.MULTILINE) is None

    def test_one_wish_may_come_as_two_signals(self):
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        self.serve(disk, "up")
        relay = self.relay("up")
        process = self.spawn(*self.arguments(source, relay.uri))

        def twice(_chunk, _index):
            process.send_signal(signal.SIGINT)
            while self.is_pending(process):
                pass  # until the first has been taken; it cannot end before this chunk is passed on
            process.send_signal(signal.SIGTERM)

        relay.at("up", 2 * MIB, twice)
        _, errors = process.communicate()
        self.assertIn(process.returncode, (128 + signal.SIGINT, 128 + signal.SIGTERM), errors)
        self.assertIn("holds a partial copy", errors)

    def test_goes_on_after_an_error(self):
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        failing = self.start("--export", f"={disk},fault=write:EIO:range=6000000+1", "--listen",
                             self.socket_uri())
        self.copy_fails(self.one_by_one(source, failing.uri), "the target", "continue from byte")
        self.assertGreater(self.durable(), 0)
        self.assertLessEqual(self.durable(), 6000000)
        failing.stop()
        self.start("--export", f"={disk}", "--listen", self.socket_uri())
        self.copy_ok(*self.one_by_one(source, failing.uri))
        self.same(source, disk)


    def test_a_flush_after_a_failed_one_proves_nothing(self):
        flushes = []

        def server(export):
            while True:
                request = export.request()
                failing = request.kind == FLUSH and len(flushes) == 1
                flushes.extend([request] * (request.kind == FLUSH))
                export.send(export.error(request, 5) if failing else export.honest(request))

        source = self.image("source", 4 * MIB, holes=False)
        with ExportServer(server, size=4 * MIB) as target:
            # The first one is before the journal begins.
            self.copy_fails(["--connections", "1", *self.arguments(source, target.uri())],
                            "flush: Input/output error", "continue from byte 0")
        self.assertEqual(target.failures, [])
        self.assertEqual(len(flushes), 2)
        self.assertEqual(self.durable(), 0)

    def test_goes_on_in_larger_blocks(self):
        def server(export, bad_from):
            while True:
                request = export.request()
                if request.kind == STATUS:
                    # Data and holes by turns, at places of no block.
                    length = 71000 - request.offset % 71000
                    flags = 3 * (request.offset // 71000 % 2)
                    export.send(export.extents(request, [(length, flags)]))
                elif request.kind == READ and request.offset >= bad_from:
                    export.send(export.error(request, 5))
                else:
                    export.send(export.honest(request))

        arguments = ["--connections", "1", "--resume", self.path("journal"), "--checkpoint",
                     "64K", "--request-size", "64K"]
        size = 4 * MIB
        with ExportServer(lambda export: server(export, 2271744), lambda export:
                          server(export, size), size=size) as source:
            ends = [source.uri(), self.path("target")]
            self.copy_fails([*arguments, *ends], "Input/output error", "continue from byte")
            self.assertNotEqual(self.durable() % 4096, 0)
            source.facts["sizes"] = (4096, 4096, MIB)
            before = self.durable()
            summary = self.copy_ok(*arguments, *ends)
        self.assertEqual(source.failures, [])
        self.assertEqual(summary["bytes_resumed"], before - before % 4096)
        with open(self.path("target"), "rb") as target:
            tail = target.read()[-4096:]
        self.assertEqual(tail, content(size - 4096, 4096))


class Journals(CopyCase):
    """A journal that does not fit is refused, and stays as it is."""

    def setUp(self):
        super().setUp()
        self.source = self.image("source", holes=False)
        self.target = self.path("target")
        self.journal = self.path("journal")

    def interrupted(self, target=None):
        """Leaves a journal and a partial copy behind."""
        uri = self.serve_source(f"{self.source},fault=read:EIO:range=9000000+1", "interrupted")
        self.begun = [uri, target or self.target]
        self.copy_fails(["--resume", self.journal, "--checkpoint", "1M", "--request-size", "64K",
                         "--requests", "1", "--connections", "1", *self.begun],
                        "continue from byte")
        with open(self.journal, "rb") as file:
            self.content = file.read()
        self.assertIn(b" durable ", self.content)

    def refused(self, *fragments, arguments=None):
        before = os.stat(self.target).st_mtime_ns if os.path.exists(self.target) else None
        errors = self.copy_fails(["--resume", self.journal, *(arguments or self.begun)],
                                 *fragments)
        after = os.stat(self.target).st_mtime_ns if os.path.exists(self.target) else None
        self.assertIn("was not changed", errors)
        self.assertEqual(before, after)

    def write(self, content):
        with open(self.journal, "wb") as file:
            file.write(content)

    def test_removed_at_the_end(self):
        self.copy_ok("--resume", self.journal, self.source, self.target)
        self.assertFalse(os.path.exists(self.journal))
        self.same(self.source, self.target)

    def test_an_empty_file_is_a_new_journal(self):
        self.write(b"")
        self.copy_ok("--resume", self.journal, self.source, self.target)
        self.assertFalse(os.path.exists(self.journal))

    def test_a_refused_copy_leaves_none(self):
        self.copy_fails(["--resume", self.journal, self.path("nothing"), self.target])
        self.assertFalse(os.path.exists(self.journal))

    def test_foreign_file(self):
        for content in (b"precious\n", b"\0" * 100, b"no line end", b"\xff\xfe" * 50):
            self.write(content)
            self.refused("not a gmblock copy journal", arguments=[self.source, self.target])
            with open(self.journal, "rb") as file:
                self.assertEqual(file.read(), content)

    def test_every_damaged_byte_is_found(self):
        self.interrupted()
        whole = self.content.rstrip(b"\n").rsplit(b"\n", 1)[0] + b"\n"
        last = len(whole.rstrip(b"\n").rsplit(b"\n", 1)[0]) + 1
        # Every byte of all lines but the last: a torn last line is what a crash leaves behind.
        for index in range(0, last - 1, 3):
            damaged = bytearray(self.content)
            damaged[index] ^= 4
            self.write(bytes(damaged))
            self.refused("journal")

    def test_a_torn_last_line_does_not_count(self):
        self.interrupted()
        lines = self.content.splitlines(keepends=True)
        before = int(lines[-2].split()[2])
        for torn in (lines[-1][:7], lines[-1][:-1], b"00000000 durable 99999999\n"):
            self.write(b"".join(lines[:-1]) + torn)
            errors = self.copy_fails(["--resume", self.journal, *self.begun], "the source")
            start = int(re.search(r"continue from byte (\d+)", errors).group(1))
            self.assertGreaterEqual(start, before)
            self.assertLessEqual(start, 9000000)

    def test_another_source(self):
        self.interrupted()
        other = self.image("other", seed=5)
        self.refused("another copy", "the source", arguments=[other, self.target])

    def test_another_export_of_the_same_size(self):
        self.interrupted()
        uri = self.serve_source(self.source, "elsewhere")
        self.refused("another copy", "the source", arguments=[uri, self.target])

    def test_another_target(self):
        self.interrupted()
        other = self.image("other", seed=5)
        self.refused("another copy", "the target", arguments=[self.begun[0], other])
        self.same(other, self.image("before", seed=5))

    def test_target_was_made_again(self):
        """With the size it had, and perhaps, on some filesystems, the same inode number."""
        self.interrupted()
        size = os.path.getsize(self.target)
        os.remove(self.target)
        with open(self.target, "wb") as target:
            target.truncate(size)
        self.refused("is different or has changed since then")

    def test_target_is_gone(self):
        self.interrupted()
        os.unlink(self.target)
        self.refused("the target", arguments=self.begun)
        self.assertFalse(os.path.exists(self.target))

    def test_target_was_made_smaller(self):
        self.interrupted()
        os.truncate(self.target, MIB)
        self.refused("the target")

    def test_source_file_was_written(self):
        """A file tells when it was written; between the runs it must not be."""
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=write:EIO:range=9000000+1", "failing")
        self.begun = [self.source, uri]
        self.copy_fails(["--resume", self.journal, "--checkpoint", "1M", *self.begun])
        status = os.stat(self.source)
        os.utime(self.source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        self.refused("the source", "changed")

    def test_other_allocation(self):
        self.interrupted()
        self.refused("--allocate", arguments=["--allocate", *self.begun])

    def test_in_use(self):
        self.serve_source(self.source, "up")
        relay = self.relay("up")
        outcomes = []

        def second(_chunk, _index):
            outcomes.append(self.copy("--resume", self.journal, self.source, self.path("other")))

        relay.at("down", 4 * MIB, second)
        status, _, errors = self.copy("--resume", self.journal, relay.uri, self.target)
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(outcomes[0][0], 1)
        self.assertIn("in use by another gmblock copy", outcomes[0][2])
        self.same(self.source, self.target)

    def test_journal_is_the_target(self):
        self.write(b"")
        folder, name = os.path.split(self.journal)
        self.copy_fails(["--resume", self.journal, self.source, f"{folder}/./{name}"], "must be a different file")

    def test_journal_cannot_be_written(self):
        self.copy_fails(["--resume", self.path("no/journal"), self.source, self.target],
                        "cannot open the journal", "create its folder first", "was not changed")
        self.assertFalse(os.path.exists(self.target))

    def test_pipes_are_refused(self):
        for ends in (["-", self.target], [self.source, "-"]):
            self.copy_fails(["--resume", self.journal, *ends], "--resume", "needs a seekable source and target", status=2)


if __name__ == "__main__":
    support.main()
