#!/usr/bin/python3
"""kill -9 of the server under load loses no byte that a FLUSH or FUA had acknowledged."""

import os
import random

from captive import MIB, Gmblock, connect, main, make_file, require_libnbd

BLOCK = 4096
BLOCKS = 2048
DEPTH = 32


def block_bytes(index, version):
    return (index.to_bytes(8, "big") + version.to_bytes(8, "big")) * (BLOCK // 16)


def version_in(data, index):
    """The version a block holds; None if it is not one whole block that the writer made."""
    version = int.from_bytes(data[8:16], "big")
    if data == bytes(BLOCK):
        return 0
    return version if data == block_bytes(index, version) else None


class Writer:
    """Keeps many writes in flight and remembers what the server promised about each block."""

    def __init__(self, uri, seed):
        self.nbd = require_libnbd()
        self.handle = connect(uri)
        self.chance = random.Random(seed)
        self.sent = [0] * BLOCKS         # newest version sent
        self.acknowledged = [0] * BLOCKS  # newest version the server replied to
        self.durable = [0] * BLOCKS      # newest version promised to survive
        self.busy = set()
        self.in_flight = 0
        self.buffers = {}
        self.flushes = 0

    def write(self):
        index = self.chance.randrange(BLOCKS)
        if index in self.busy:
            return
        fua = self.chance.random() < 0.1
        version = self.sent[index] + 1
        data = self.nbd.Buffer.from_bytearray(bytearray(block_bytes(index, version)))

        def done(error):
            self.in_flight -= 1
            self.busy.discard(index)
            self.buffers.pop(index, None)
            # libnbd hands the error over as an object with a value, zero if all went well.
            if getattr(error, "value", error) == 0:
                self.acknowledged[index] = version
                if fua:
                    self.durable[index] = version
            return 1

        self.sent[index] = version
        self.busy.add(index)
        self.buffers[index] = data
        self.in_flight += 1
        self.handle.aio_pwrite(data, index * BLOCK, done, self.nbd.CMD_FLAG_FUA if fua else 0)

    def flush(self):
        covered = list(self.acknowledged)

        def done(error):
            self.in_flight -= 1
            if getattr(error, "value", error) == 0:
                self.flushes += 1
                self.durable = [max(old, new) for old, new in zip(self.durable, covered)]
            return 1

        self.in_flight += 1
        self.handle.aio_flush(done)

    def work(self, until):
        """Keeps the server busy until it answered so many flushes, with requests in flight."""
        while self.flushes < until:
            while self.in_flight < DEPTH:
                if self.chance.random() < 0.03:
                    self.flush()
                else:
                    self.write()
            self.handle.poll(-1)

    def drain(self):
        """Takes the replies that were still on their way when the server died."""
        try:
            while self.in_flight:
                self.handle.poll(-1)
        except self.nbd.Error:
            pass


def check_contents(image, writers):
    """Each block is whole, no older than promised and no newer than sent."""
    with open(image, "rb") as contents:
        for part, writer in enumerate(writers):
            contents.seek(part * BLOCKS * BLOCK)
            for index in range(BLOCKS):
                found = version_in(contents.read(BLOCK), index)
                assert found is not None, ("torn block", part, index)
                assert writer.durable[index] <= found <= writer.sent[index], \
                    ("block %d of writer %d: version %d is there, %d was promised, %d was sent"
                     % (index, part, found, writer.durable[index], writer.sent[index]))


def check(folder, mode):
    require_libnbd()
    for seed in range(5):
        image = make_file(os.path.join(folder, "disk"), BLOCKS * BLOCK)
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            writer = Writer(server.uri(), seed)
            writer.work(until=5 + 3 * seed)
            assert writer.in_flight > 0
            server.kill()
            writer.drain()
        assert any(writer.durable), "nothing was promised, so nothing was tested"
        check_contents(image, [writer])
        # The next server sees the same bytes.
        os.unlink(os.path.join(folder, "gmblock.sock"))
        with Gmblock(folder, {"": "%s,mode=%s" % (image, mode)}) as server:
            handle = connect(server.uri())
            with open(image, "rb") as contents:
                assert handle.pread(BLOCKS * BLOCK, 0) == contents.read()
            handle.shutdown()
        assert BLOCKS * BLOCK == 8 * MIB


def test_cached(folder):
    check(folder, "cached")


def test_ram(folder):
    check(folder, "direct")


def test_ram_reads_with_cached_writes(folder):
    check(folder, "direct,write-mode=cached")


if __name__ == "__main__":
    main()
