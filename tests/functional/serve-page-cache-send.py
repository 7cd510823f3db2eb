#!/usr/bin/python3
"""Large reads that are sent from the page cache itself: the bytes are right wherever they lie, what
is written is seen, zeroes still become holes, and a file that is cut costs nobody but the client
whose reply is on its way. All of it on the file system of temporary files and on ext4, whose page
cache has large pages in new kernels; with what an overlay does to a file, and what XFS would do to a server."""
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import unittest

import nbdmini
import support

KIB = 1024
MIB = 1024 * KIB
SIZE = 8 * MIB + 12345  # the last page is not whole


class PageCacheSend(support.Case):
    def setUp(self):
        super().setUp()
        self.enter()
        self.content = bytearray(os.urandom(SIZE))
        self.image = self.make_file("disk", bytes(self.content))
        self.server = None

    def enter(self):
        """Where the file is to be."""

    def mount(self, folder, *arguments):
        done = subprocess.run(["mount", *arguments, folder], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            self.skipTest("cannot mount it: " + done.stderr.strip())
        # Lazily: the kernel closes the files of a ring a moment after its process has ended.
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)

    def open(self, *keys, structured=True, arguments=()):
        self.server = self.start_unix(
            *arguments, "--export", ",".join([f"={self.image}", *keys]))
        return self.connect(structured)

    def connect(self, structured=True):
        client = nbdmini.open_export(self.server.uri, b"", structured)
        self.addCleanup(client.close)
        return client

    def told(self):
        """What the statistics say of the export."""
        code, output, errors = self.run_gmblock("stats", "--json", str(self.server.process.pid))
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)["exports"][0]

    def sent_bytes(self):
        return self.told()["page_cache_send_bytes"]

    def shown(self):
        """The same, for people."""
        code, output, errors = self.run_gmblock("stats", str(self.server.process.pid))
        self.assertEqual((code, errors), (0, ""))
        return output

    def read(self, client, offset, length):
        """A read by structured replies: the bytes, in whatever pieces."""
        client.send_request(nbdmini.CMD_READ, 9, offset, length)
        got = bytearray(length)
        for chunk in client.chunks(9):
            if chunk.data is not None:
                at = chunk.offset - offset
                got[at:at + len(chunk.data)] = chunk.data
        return bytes(got)

    def test_bytes_are_right_anywhere(self):
        client = self.open()
        generator = random.Random(5)
        expected = 0
        for _ in range(60):
            length = generator.choice((512 * KIB, 512 * KIB + 9, 600_001, MIB, 2 * MIB - 1, 2 * MIB))
            offset = generator.randrange(SIZE - length + 1)
            self.assertEqual(self.read(client, offset, length),
                             self.content[offset:offset + length])
            expected += length
        self.assertEqual(self.read(client, SIZE - 540_000, 540_000), self.content[-540_000:])
        told = self.told()
        self.assertEqual(told["page_cache_send_bytes"], expected + 540_000)
        self.assertEqual(told["page_cache_send_misses"], 0)
        code, output, errors = self.run_gmblock("stats", str(self.server.process.pid))
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, r"  Bytes of reads sent directly from the page cache, without a copy by the server: \d+\.\d{3} MB\n")

    def test_a_trace_shows_what_was_not_copied(self):
        client = self.open()
        for form in (["--json"], []):
            with subprocess.Popen(
                    [support.program(), "trace", "--request", "--count", "2", *form,
                     str(self.server.process.pid)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
                self.assertIn("waiting for 2 requests", tracer.stderr.readline())
                self.read(client, 0, MIB)
                self.read(client, 0, 4 * KIB)
                output, errors = tracer.communicate()
            self.assertEqual((tracer.returncode, errors), (0, ""))
            if form:
                self.assertEqual([[part["placement"] for part in request["parts"]]
                                  for request in json.loads(output)["requests"]], [["page_cache"], ["ram"]])
            else:
                self.assertRegex(output, r"(?s) taken  placement\n.* page_cache *\n.* taken  placement\n.* ram *\n")

    def test_simple_replies_too(self):
        client = self.open(structured=False)
        self.assertEqual(client.read(12_345, MIB), self.content[12_345:12_345 + MIB])
        self.assertEqual(self.sent_bytes(), MIB)

    def test_within_a_machine_tcp_gets_copies(self):
        self.server = self.start("--log-level", "debug", "--listen", "nbd://127.0.0.1:0", "--export", f"={self.image}")
        client = self.connect()
        self.assertEqual(self.read(client, 12_345, MIB), self.content[12_345:12_345 + MIB])
        told = self.told()
        self.assertEqual((told["page_cache_send_bytes"], told["page_cache_send_misses"]), (0, 0))
        self.assertIn("page-cache send off: connection", self.server.stop()[1])

    def test_small_and_very_large_reads_are_copied(self):
        client = self.open()
        self.assertEqual(self.read(client, 1, 512 * KIB - 1), self.content[1:512 * KIB])
        self.assertEqual(self.read(client, 0, 2 * MIB + 1), self.content[:2 * MIB + 1])
        self.assertEqual(self.sent_bytes(), 0)

    def test_off_and_other_modes_copy(self):
        for keys, refusal, sentence in (
                (("page-cache-send=off",), "page-cache-send=off", "page-cache-send=off"),
                (("mode=direct",), "mode=direct", "mode=direct bypasses the page cache"),
                (("write-mode=direct",), "write-mode=direct", "write-mode=direct bypasses"),
                (("delay=read:1us",), "delay", "the export has the key delay"),
                (("fault=write:EIO",), "fault", "the export has the key fault"),
                (("pace=100G",), "pace", "the export has the key pace")):
            with self.subTest(keys):
                client = self.open(*keys)
                self.assertEqual(self.read(client, 4096, 4096), self.content[4096:8192])
                self.assertNotIn("reads:", self.shown())
                self.assertEqual(self.read(client, 4096, MIB), self.content[4096:4096 + MIB])
                told = self.told()
                self.assertEqual(told["page_cache_send_bytes"], 0)
                self.assertEqual(told["page_cache_send_refusal"], refusal)
                self.assertIn(f"  reads: all copied by the server, none sent from the page cache: {sentence}", self.shown())
                self.assertEqual(self.server.stop(), (0, ""))

    def test_why_nothing_can_be_sent_so(self):
        with open(self.path("empty"), "wb"):
            pass
        for path, refusal in ((self.image, None), ("memory:1M", None), ("null:1M", "null"),
                              (self.path("empty"), "empty")):
            with self.subTest(path):
                self.server = self.start_unix("--export", f"={path}")
                told = self.told()
                self.assertEqual(told["page_cache_send_bytes"], 0)
                self.assertEqual(told["page_cache_send_misses"], 0)
                self.assertEqual(told["page_cache_send_refusal"], refusal)
                status, errors = self.server.stop()
                self.assertEqual(status, 0, errors)
                self.assertRegex(errors, "is empty" if refusal == "empty" else "^$")

    def test_a_flash_store_copies(self):
        store = f"flash:{self.path('store')}"
        self.assertEqual(self.run_gmblock("create", "--size=64M", store)[0], 0)
        self.server = self.start_unix("--export", f"={store}")
        self.assertEqual(self.read(self.connect(), 0, MIB), bytes(MIB))
        self.assertIn("none sent from the page cache: the disk is in a flash store", self.shown())

    def test_a_file_of_somebody_else_is_not_told_of(self):
        """The kernel does not tell who may only read it what the page cache has of it."""
        if os.geteuid() != 0:
            self.skipTest("only root can serve as somebody else")
        os.chmod(self.folder, 0o755)
        os.chmod(self.image, 0o644)
        runtime = self.path("runtime")
        os.mkdir(runtime)
        os.chown(runtime, 65534, 65534)
        options = {"user": 65534, "group": 65534, "extra_groups": [],
                   "env": dict(os.environ, XDG_RUNTIME_DIR=runtime)}
        try:
            self.run_gmblock("--version", **options)
        except PermissionError:
            self.skipTest("others may not run the program")
        server = self.start("--listen", "nbd://127.0.0.1:0", "--export",
                            f"={self.image},readonly", **options)
        code, output, errors = self.run_gmblock("stats", "--json", server.uri, **options)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(json.loads(output)["exports"][0]["page_cache_send_refusal"], "foreign")

    def test_memory_is_sent_without_a_copy(self):
        self.server = self.start_unix("--export", "=memory:8M")
        client = self.connect()
        writer = self.connect(structured=False)
        client.send_request(nbdmini.CMD_READ, 1, MIB, MIB)
        self.assertEqual({chunk.kind for chunk in client.chunks(1)}, {nbdmini.CHUNK_HOLE})
        self.assertEqual(self.sent_bytes(), 0)
        writer.write(0, bytes(self.content[:4 * MIB]))
        self.assertEqual(self.read(client, 77, 2 * MIB), self.content[77:2 * MIB + 77])
        self.assertEqual(self.sent_bytes(), 2 * MIB)
        # The end of what was written, and holes.
        self.assertEqual(self.read(client, 3 * MIB, 2 * MIB),
                         self.content[3 * MIB:4 * MIB] + bytes(MIB))
        self.assertEqual(self.sent_bytes(), 2 * MIB)

    def test_auto_is_the_default(self):
        client = self.open("page-cache-send=auto")
        self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
        self.assertEqual(self.sent_bytes(), MIB)

    def test_somebody_who_writes_around_the_cache_ends_it(self):
        other = self.path("other")
        os.link(self.image, other)
        self.server = self.start_unix("--export", f"={self.image},readonly",
                                      "--export", f"direct={other},mode=direct")
        client = self.connect()
        self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
        told = self.told()
        self.assertEqual(told["page_cache_send_bytes"], 0)
        self.assertEqual(told["page_cache_send_refusal"], "shared")
        self.assertIn("another export bypasses the page cache when it writes", self.shown())

    def test_what_is_written_is_read(self):
        client = self.open()
        other = self.connect(structured=False)
        generator = random.Random(6)
        for _ in range(40):
            length = generator.randrange(1, 200_000)
            offset = generator.randrange(SIZE - length)
            data = generator.randbytes(length)
            other.write(offset, data)
            self.content[offset:offset + length] = data
            start = max(0, min(offset - 1000, SIZE - MIB))
            self.assertEqual(self.read(client, start, MIB), self.content[start:start + MIB])
        self.assertGreater(self.sent_bytes(), 30 * MIB)

    def test_zeroes_are_still_holes(self):
        zeroes = bytes(MIB)
        with open(self.image, "r+b") as image:
            image.seek(2 * MIB)
            image.write(zeroes)
        client = self.open()
        client.send_request(nbdmini.CMD_READ, 1, 2 * MIB, MIB)
        self.assertEqual({chunk.kind for chunk in client.chunks(1)}, {nbdmini.CHUNK_HOLE})
        # The second half of this one.
        client.send_request(nbdmini.CMD_READ, 2, MIB + 512 * KIB, MIB)
        kinds = {(chunk.kind, chunk.offset) for chunk in client.chunks(2)}
        self.assertEqual(kinds, {(nbdmini.CHUNK_DATA, MIB + 512 * KIB),
                                 (nbdmini.CHUNK_HOLE, 2 * MIB)})
        self.assertEqual(self.sent_bytes(), 0)

    def test_a_shorter_file_is_an_error(self):
        client = self.open()
        os.truncate(self.image, 2 * MIB)
        client.send_request(nbdmini.CMD_READ, 1, 2 * MIB - 64 * KIB, MIB)
        self.assertEqual(client.chunks(1)[-1].kind, nbdmini.CHUNK_ERROR)
        self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
        self.assertEqual(self.sent_bytes(), MIB)

    def test_a_file_cut_under_a_reply_ends_that_connection_only(self):
        client = self.open(structured=False)
        other = self.connect()
        # More than the socket takes: the last of it waits in the page cache. One read waits in its
        # send; those behind it wait for their turn.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        count = 6
        for cookie in range(count):
            client.send_request(nbdmini.CMD_READ, cookie, 4 * MIB, 4 * MIB)
        while self.sent_bytes() < 4 * MIB:
            pass  # until the first is under way
        os.truncate(self.image, 4 * MIB)
        got = 0
        while True:
            piece = client.sock.recv(MIB)
            if not piece:
                break
            got += len(piece)
        self.assertLess(got, count * 4 * MIB)
        self.assertEqual(self.read(other, 0, MIB), self.content[:MIB])
        code, errors = self.server.stop()
        self.assertEqual(code, 0)
        self.assertIn("the disk failed, shrank", errors)

    def test_a_miss_is_copied_and_counted(self):
        hole = 6 * MIB
        with open(self.image, "r+b") as image:
            image.truncate(hole)
            image.truncate(SIZE)
        self.content[hole:] = bytes(SIZE - hole)
        client = self.open(arguments=("--threads", "1"))
        for _ in range(2):
            self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
            self.assertEqual(self.read(client, hole - MIB, 2 * MIB),
                             self.content[hole - MIB:hole + MIB])
        told = self.told()
        self.assertEqual(tuple(told["page_cache_send_" + what]
                               for what in ("bytes", "misses", "refusal")),
                         (2 * MIB, 2, None))
        self.assertRegex(self.shown(), r"  Large reads that the server copied, because their data was not in the page cache .*: 2\n")

    def test_direct_reads_in_flight_together_are_whole(self):
        with open(self.image, "r+b") as image:
            os.fsync(image.fileno())
            os.posix_fadvise(image.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        client = self.open(structured=False, arguments=("--threads", "1"))
        client.sock.sendall(b"".join(
            struct.pack(">IHHQQI", nbdmini.REQUEST_MAGIC, 0, nbdmini.CMD_READ, cookie, cookie * MIB, MIB)
            for cookie in (1, 2)))
        for _ in range(2):
            cookie, error = client.reply()
            self.assertEqual(error, 0)
            self.assertEqual(client.receive(MIB), self.content[cookie * MIB:(cookie + 1) * MIB])
        told = self.told()["store"]["file"]
        if told["auto_direct_bytes"] == 0:
            self.skipTest("all data stays in the page cache")
        self.assertEqual(told["auto_direct_bytes"], 2 * MIB)
        self.assertEqual(told["direct_transfers"], 3)  # the first read in two parts

    def test_who_does_not_receive_is_lent_little(self):
        client = self.open(arguments=("--memory", "32M", "--threads", "1"))
        other = self.connect()
        for cookie in range(30):
            client.send_request(nbdmini.CMD_READ, cookie, 0, 2 * MIB)
        for _ in range(3):  # by now all that the server wants to take is taken
            self.assertEqual(self.read(other, 0, 4096), self.content[:4096])
        # A quarter of the memory, and what the socket has.
        self.assertLess(self.sent_bytes(), 30 * MIB)

    def test_values(self):
        for value in ("on", "", "OFF"):
            self.check_refused(["serve", "--export", f"={self.image},page-cache-send={value}"], 2,
                               "page-cache-send: ", "is neither auto nor off")

    @unittest.skipUnless(os.geteuid() == 0, "an overlay is mounted, which only root may")
    def test_an_overlays_copy_is_seen(self):
        names = ("lower", "upper", "work", "merged")
        lower, upper, work, merged = (self.path(name) for name in names)
        for path in (lower, upper, work, merged):
            os.mkdir(path)
        os.rename(self.image, os.path.join(lower, "disk"))
        self.image = os.path.join(merged, "disk")
        self.mount(merged, "-t", "overlay", "-o",
                   f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay")
        client = self.open("readonly")
        self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
        self.assertEqual(self.told()["page_cache_send_refusal"], "overlay")
        self.assertIn("the file is in an overlayfs", self.shown())
        with open(self.image, "r+b") as image:  # which makes the copy
            image.seek(4096)
            image.write(b"new" * 100_000)
        self.content[4096:304_096] = b"new" * 100_000
        self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])


@unittest.skipUnless(os.geteuid() == 0, "file systems are mounted, which only root may")
class PageCacheSendOnExt4(PageCacheSend):
    def enter(self):
        mounted = self.mounted("ext4")
        os.chmod(self.folder, 0o755)  # somebody else may serve what is in it
        self.folder = mounted

    def make_file(self, name, content):
        """The end of a file that was written is not complete in the cache: its large page goes beyond the file."""
        path = super().make_file(name, content)
        with open(path, "rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read()
        return path

    def mounted(self, kind):
        """A new file system of this kind."""
        image, mounted = self.path(kind), self.path("mounted-" + kind)
        with open(image, "wb") as file:
            file.truncate(400 * MIB)
        subprocess.run(["mkfs." + kind, "-q", image], check=True)
        os.mkdir(mounted)
        self.mount(mounted, "-o", "loop", "-t", kind, image)
        return mounted

    @unittest.skipUnless(shutil.which("mkfs.xfs"), "xfsprogs is not installed")
    def test_xfs_makes_sends_wait_for_writes(self):
        self.folder = self.mounted("xfs")
        self.image = self.make_file("disk", bytes(self.content))
        for keys, refusal, sent in (((), "filesystem", 0), (("readonly",), None, MIB)):
            with self.subTest(keys):
                client = self.open(*keys)
                self.assertEqual(self.read(client, 0, MIB), self.content[:MIB])
                told = self.told()
                self.assertEqual((told["page_cache_send_refusal"], told["page_cache_send_bytes"]), (refusal, sent))
                client.close()
                self.assertEqual(self.server.stop(), (0, ""))


if __name__ == "__main__":
    support.main()
