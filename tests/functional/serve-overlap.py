#!/usr/bin/python3
"""Synchronized sends, as a client sees them: parts of a read come as the disk has them, in any
order, and never before; an error in the middle reaches the client by the rules of its replies."""
import errno
import json
import os
import re
import socket
import struct
import time
from urllib.parse import urlsplit

import nbdmini
import relay
import support

KIB = 1024
SIZE = 1024 * KIB
LATE = 512 * KIB  # the part here is held up, or fails
PART = 64 * KIB
# Long for a disk, and nothing waits for it but what must: it shows the order, not the time. Long enough to cut
# the file meanwhile, too: then the disk fails in the middle of a reply.
HOLD_UP = "delay=read:4s:range=512K+64K"
FAILURE = "fault=read:EIO:range=512K+64K"


class SlowLink(relay.Relay):
    """Passes on this many bytes per second to the client, and holds few, so that the server's socket has the rest."""

    RATE = 40 << 20

    def room(self, link, direction):
        if direction == relay.DOWN:
            link.ends[relay.UP].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * KIB)
        return relay.PIECE

    def seen(self, link, direction, data):
        if direction == relay.DOWN:
            time.sleep(len(data) / self.RATE)
        return super().seen(link, direction, data)


class Synchro(support.Case):
    def setUp(self):
        super().setUp()
        self.content = os.urandom(SIZE)
        self.image = self.make_file("disk", self.content)
        self.server = None

    def open(self, *keys, structured=True, options=()):
        if self.server is not None:
            code, errors = self.server.stop()
            self.assertEqual(code, 0)
            for line in errors.splitlines():
                self.assertIn("failed: Input/output error", line)  # the fault that was asked for
        self.server = self.start_unix(*options, "--export", ",".join([f"={self.image}", *keys]))
        client = nbdmini.open_export(self.server.uri, b"", structured)
        self.addCleanup(client.close)
        return client

    def told(self, control):
        code, output, errors = self.run_gmblock("stats", "--json", control)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)

    def read_until_parts(self, uri, name, control, index):
        """The first requests are whole, so that parts can be compared with them."""
        with nbdmini.open_export(uri, name, structured=True) as client:
            while self.told(control)["exports"][index]["reads"]["part_size"] is None:
                for cookie in range(8):
                    client.send_request(nbdmini.CMD_READ, cookie, 0, SIZE)
                    self.check_whole(client.chunks(cookie))

    def check_whole(self, chunks):
        """All bytes once, all of them right, and nothing said to be done before."""
        self.assertTrue(all(not chunk.done for chunk in chunks[:-1]))
        self.assertTrue(chunks[-1].done)
        pieces = sorted((chunk for chunk in chunks if chunk.data), key=lambda chunk: chunk.offset)
        position = 0
        for piece in pieces:
            self.assertEqual(piece.offset, position)
            position += len(piece.data)
        self.assertEqual(b"".join(piece.data for piece in pieces), self.content)

    def test_a_late_part_comes_last(self):
        client = self.open("parts=64K", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 7, 0, SIZE)
        chunks = client.chunks(7)
        self.check_whole(chunks)
        self.assertEqual((chunks[-1].offset, len(chunks[-1].data)), (LATE, PART))
        self.assertGreaterEqual(len(chunks), 3)

    def test_a_late_part_does_not_hold_up_others(self):
        client = self.open("parts=64K", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE)
        while client.chunk().offset != SIZE - PART:
            pass  # what is before the late part and behind it is there
        client.send_request(nbdmini.CMD_READ, 2, 0, 4096)
        between = client.chunk()
        self.assertEqual((between.cookie, between.data), (2, self.content[:4096]))
        last = client.chunk()
        self.assertEqual((last.cookie, last.offset, last.done), (1, LATE, True))

    def test_holes_tell_nothing_of_the_network(self):
        server = self.start("--export", "=memory:64M,pace=100M", "--listen", "nbd://127.0.0.1:0")
        code, _, errors = self.run_gmblock("bench", "--rw", "read", "--bs", "1M", "--depth", "1",
                                           "--connections", "1", "--requests", "64", server.uri)
        self.assertEqual((code, errors), (0, ""))
        reads = self.told(server.uri)["exports"][0]["reads"]
        self.assertGreater(reads["disk_bytes_per_second"], 0)
        self.assertIsNone(reads["network_bytes_per_second"])

    def test_what_the_network_still_has_counts(self):
        """The socket takes a whole reply long before the client has it, so whole requests look as fast as the disk
        unless these bytes count."""
        for scheme in ("nbd", "gmb"):
            with self.subTest(scheme):
                control = self.path("control-" + scheme)
                server = self.start("--control", control, "--listen", scheme + "://127.0.0.1:0",
                                    "--export", f"={self.image},mode=direct,pace=400M,readonly")
                link = SlowLink(urlsplit(server.uri).port)
                self.addCleanup(link.close)
                for _ in range(20):
                    code, _, errors = self.run_gmblock(
                        "bench", "--rw", "read", "--bs", "1M", "--depth", "1", "--connections", "1",
                        "--requests", "32", f"{scheme}://127.0.0.1:{link.place}")
                    self.assertEqual((code, errors), (0, ""))
                    reads = self.told(control)["exports"][0]["reads"]
                    if reads["network_bytes_per_second"] and reads["whole_bytes_per_second"] < 200e6:
                        break
                self.assertIsNotNone(reads["network_bytes_per_second"])
                self.assertLess(reads["whole_bytes_per_second"], 200e6)
                self.assertIsNotNone(reads["parts_bytes_per_second"])
                self.assertEqual(server.stop(), (0, ""))

    def test_off_waits_for_everything(self):
        client = self.open("overlap=off", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE)
        client.send_request(nbdmini.CMD_READ, 2, 0, 4096)
        first = client.chunk()
        self.assertEqual((first.cookie, first.done), (2, True))
        self.check_whole(client.chunks(1))

    def test_a_late_error_ends_the_reply(self):
        client = self.open("parts=64K", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 3, 0, SIZE)
        chunks = [client.chunk()]
        os.truncate(self.image, LATE)
        chunks += client.chunks(3)
        self.assertEqual((chunks[-1].kind, chunks[-1].error), (nbdmini.CHUNK_ERROR, errno.EIO))
        for chunk in chunks[:-1]:
            self.assertFalse(chunk.done)
            self.assertEqual(chunk.data, self.content[chunk.offset:chunk.offset + len(chunk.data)])
            self.assertFalse(chunk.offset <= LATE < chunk.offset + len(chunk.data))
        # The connection goes on.
        client.send_request(nbdmini.CMD_READ, 4, 0, 4096)
        self.assertEqual(client.chunks(4)[0].data, self.content[:4096])

    def test_off_tells_the_error_alone(self):
        client = self.open("overlap=off", FAILURE)
        client.send_request(nbdmini.CMD_READ, 3, 0, SIZE)
        chunks = client.chunks(3)
        self.assertEqual([chunk.kind for chunk in chunks], [nbdmini.CHUNK_ERROR])

    def test_one_piece_begins_early_with_a_fixed_grain(self):
        """DF: one chunk, in order; padded and followed by the error when the disk fails late."""
        client = self.open("parts=64K", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE, flags=nbdmini.CMD_FLAG_DF)
        chunks = client.chunks(1)
        self.assertEqual(sum(chunk.data is not None for chunk in chunks), 1)
        self.check_whole(chunks)

    def test_one_piece_is_padded_when_the_disk_fails_late(self):
        client = self.open("parts=64K", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE, flags=nbdmini.CMD_FLAG_DF)
        head = client.sock.recv(64, socket.MSG_PEEK)
        self.assertTrue(head)
        os.truncate(self.image, LATE)
        chunks = client.chunks(1)
        self.assertEqual([chunk.kind for chunk in chunks],
                         [nbdmini.CHUNK_DATA, nbdmini.CHUNK_ERROR])
        self.assertEqual((chunks[0].offset, len(chunks[0].data)), (0, SIZE))
        self.assertEqual(chunks[0].data[:LATE], self.content[:LATE])
        self.assertEqual(chunks[0].data[LATE:LATE + PART], bytes(PART))
        self.assertEqual(chunks[1].error, errno.EIO)

    def test_one_piece_that_has_begun_is_not_starved_by_small_parts(self):
        """What waits behind it has many, and cannot be sent before its end."""
        length = 65 * 4 * KIB
        client = self.open("parts=4K", f"delay=read:300ms:range=0+{length}",
                           options=["--threads", "1", "--memory", "4M"])
        client.sock.settimeout(100)
        client.send_request(nbdmini.CMD_READ, 1, 0, length)
        client.send_request(nbdmini.CMD_READ, 2, LATE, 8 * KIB, flags=nbdmini.CMD_FLAG_DF)
        got = {1: 0, 2: 0}
        while got != {1: length, 2: 8 * KIB}:
            chunk = client.chunk()
            got[chunk.cookie] += len(chunk.data or b"")

    def test_a_limit_far_above_what_the_machine_has(self):
        """It is one, and nothing that is taken."""
        client = self.open("parts=4K", options=["--threads", "1", "--memory", "1T"])
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE)
        self.check_whole(client.chunks(1))

    def test_one_piece_waits_with_auto(self):
        client = self.open("mode=direct", HOLD_UP)
        client.send_request(nbdmini.CMD_READ, 1, 0, SIZE, flags=nbdmini.CMD_FLAG_DF)
        client.send_request(nbdmini.CMD_READ, 2, 0, 4096)
        self.assertEqual(client.chunk().cookie, 2)
        self.check_whole(client.chunks(1))

    def test_simple_replies_never_begin_with_bytes_that_may_fail(self):
        for key in ("overlap=auto", "parts=64K", "overlap=off"):
            client = self.open(key, HOLD_UP, FAILURE, structured=False)
            client.send_request(nbdmini.CMD_READ, 1, 0, SIZE)
            self.assertEqual(client.reply(), (1, errno.EIO))
            client.send_request(nbdmini.CMD_READ, 2, 0, 4096)
            self.assertEqual(client.reply(), (2, 0))
            self.assertEqual(client.receive(4096), self.content[:4096])

    def begin_write(self, client, sent):
        """A write of the whole disk of which only so many bytes have been sent."""
        data = os.urandom(SIZE)
        client.sock.sendall(struct.pack(">IHHQQI", nbdmini.REQUEST_MAGIC, 0, nbdmini.CMD_WRITE, 9,
                                        0, SIZE) + data[:sent])
        return data

    def test_a_write_reaches_the_disk_while_it_arrives(self):
        for mode in ("cached", "direct"):
            client = self.open("parts=64K", f"mode={mode}")
            data = self.begin_write(client, SIZE - 1)
            with nbdmini.open_export(self.server.uri) as other:
                while other.read(0, SIZE - PART) != data[:SIZE - PART]:
                    pass  # each look is a request: nothing else tells when it is there
                self.assertNotEqual(other.read(SIZE - PART, PART), data[SIZE - PART:])
            client.sock.sendall(data[SIZE - 1:])
            self.assertEqual(client.reply(), (9, 0))
            with open(self.image, "rb") as image:
                self.assertEqual(image.read(), data)

    def test_a_write_that_fails_early_is_answered_at_its_end(self):
        client = self.open("parts=64K", "fault=write:ENOSPC:range=0+64K")
        data = self.begin_write(client, SIZE - 1)
        with nbdmini.open_export(self.server.uri) as other:
            for _ in range(10):
                other.read(0, 4096)
        client.sock.setblocking(False)
        self.assertRaises(BlockingIOError, client.sock.recv, 1)
        client.sock.settimeout(nbdmini.TIMEOUT_S)
        client.sock.sendall(data[SIZE - 1:])
        chunks = client.chunks(9)
        self.assertEqual([chunk.error for chunk in chunks], [errno.ENOSPC])

    def test_any_piece_of_a_striped_disk(self):
        """Odd borders, chunks smaller and larger than a part, more rows than one."""
        for stripe, parts in (("4K:3", "64K"), ("64K:3", "64K"), ("128K:2", "4K"),
                                ("256K:5", "64K"), ("96K:4", "32K"), ("1M:2", "128K")):
            client = self.open(f"parts={parts}", f"stripe={stripe}", "mode=direct")
            for offset, length in ((0, SIZE), (1, SIZE - 2), (100000, 500001), (SIZE - 1, 1),
                                   (262143, 262145), (65536, 65536), (131071, 2)):
                client.send_request(nbdmini.CMD_READ, 5, offset, length)
                got = bytearray(length)
                seen = 0
                for chunk in client.chunks(5):
                    at = chunk.offset - offset
                    got[at:at + len(chunk.data)] = chunk.data
                    seen += len(chunk.data)
                self.assertEqual(seen, length)
                self.assertEqual(bytes(got), self.content[offset:offset + length])
                client.send_request(nbdmini.CMD_WRITE, 6, offset, length, bytes(got))
                self.assertEqual(client.reply(), (6, 0))

    def test_what_was_chosen_is_told(self):
        control = self.path("control")
        server = self.start_unix("--control", control, "--export",
                                 f"={self.image},parts=64K,mode=direct", "--export",
                                 f"auto={self.image},mode=direct,readonly", uri_count=2)
        self.assertIsNone(self.told(control)["exports"][1]["reads"]["part_size"])
        self.read_until_parts(server.uri, b"auto", control, 1)
        told = self.told(control)
        self.assertEqual([entry["overlap"] for entry in told["exports"]], [64 * KIB, "auto"])
        reads = told["exports"][1]["reads"]
        self.assertGreater(reads["disk_bytes_per_second"], 0)
        # All powers of two between OVERLAP_BYTES_MIN and OVERLAP_BYTES_MAX.
        self.assertIn(reads["part_size"], [16 * KIB << shift for shift in range(7)])
        self.assertTrue(0 <= reads["early"] <= 1)
        self.assertIsNone(told["exports"][1]["writes"]["part_size"])
        code, output, _ = self.run_gmblock("stats", control)
        self.assertEqual(code, 0)
        self.assertRegex(output, r"  large reads:\n    Size of the parts into which large requests are split: \d")
        self.assertIn("Measured data rate of the disk", output)
        code, metrics, _ = self.run_gmblock("stats", "--prometheus", control)
        self.assertEqual(code, 0)
        early, = re.findall(r'\ngmblock_export_overlap_early_ratio{export="auto",'
                            r'direction="read"} (\S+)\n', metrics)
        self.assertTrue(0 <= float(early) <= 1)

    def test_how_early_parts_come_is_told_only_when_it_was_measured(self):
        """A disk that tells of progress has no parts that could come early."""
        control = self.path("control")
        server = self.start_unix("--control", control, "--export",
                                 f"={self.image},mode=direct,pace=100M,readonly")
        self.read_until_parts(server.uri, b"", control, 0)
        reads = self.told(control)["exports"][0]["reads"]
        self.assertIsNone(reads["early"])
        code, output, _ = self.run_gmblock("stats", control)
        self.assertEqual(code, 0)
        self.assertRegex(output, r"  large reads:\n    Size of the parts into which large requests are split: \d")
        self.assertNotIn("How early", output)


if __name__ == "__main__":
    support.main()
