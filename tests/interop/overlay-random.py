#!/usr/bin/python3
"""Random requests on an overlay, several at once over two connections of libnbd, beside a model of
what the disk may contain. Between them the server is ended in order, or killed.

SOAK_OVERLAY_RUNS says how many seeds to run. A failure names its seed; OVERLAY_SEED=N runs that one.
"""

import hashlib
import os
import random

from captive import MIB, Gmblock, main, require_libnbd, run

BLOCK = 4096
SIZE = MIB + BLOCK + 512
BURSTS = 40
WRITE, ZERO, TRIM, READ, FLUSH = "write", "zero", "trim", "read", "flush"


class Piece:
    """A request: bytes from start on become data (None: a read or a flush). A trim may also change
    nothing, or parts."""

    def __init__(self, kind, start, end, data=None, fua=False):
        self.kind, self.start, self.end, self.data, self.fua = kind, start, end, data, fua
        self.done = False

    def __str__(self):
        return "%s%s %d-%d" % (self.kind, " fua" if self.fua else "", self.start, self.end)

    def cut(self, block):
        """What it changes in a block: first byte, end, and contents."""
        first = max(self.start - block * BLOCK, 0)
        end = min(self.end - block * BLOCK, BLOCK)
        start = block * BLOCK + first - self.start
        return first, end, self.data[start:start + end - first]

    def apply(self, block, contents):
        first, end, data = self.cut(block)
        return contents[:first] + data + contents[end:]


class Model:
    """Every block's contents, and those which a killed server may bring back: all that it had since
    it was last made durable."""

    def __init__(self, contents):
        self.blocks = [contents[at:at + BLOCK] for at in range(0, len(contents), BLOCK)]
        self.older = {}
        self.history = {}

    def bytes(self, start, end):
        first = start // BLOCK
        joined = b"".join(self.blocks[first:(end - 1) // BLOCK + 1])
        return joined[start - first * BLOCK:end - first * BLOCK]

    def by_block(self, pieces):
        """Those that change something, of each block."""
        found = {}
        for piece in pieces:
            if piece.data is not None:
                for block in range(piece.start // BLOCK, (piece.end - 1) // BLOCK + 1):
                    found.setdefault(block, []).append(piece)
                    self.history.setdefault(block, []).append(str(piece))
        return found

    def completed(self, pieces, read):
        """All pieces of a burst are answered. What trims have done is read from the disk."""
        for block, changes in self.by_block(pieces).items():
            before = now = self.blocks[block]
            durable = [piece for piece in changes if piece.fua and piece.kind != TRIM]
            for piece in changes:
                if piece.kind != TRIM:
                    now = piece.apply(block, now)
            trims = [piece for piece in changes if piece.kind == TRIM]
            if trims:
                actual = read(block * BLOCK, min(BLOCK, SIZE - block * BLOCK))
                self.check(block, actual, [now], trims)
                now = actual
                durable += [piece for piece in trims if piece.fua and not any(now)]
            older = self.older.get(block, []) + [before]
            for piece in durable:
                older = [piece.apply(block, contents) for contents in older]
            self.older[block] = older
            self.blocks[block] = now

    def flushed(self):
        self.older.clear()

    def killed(self, pieces, contents):
        """The server was killed with these pieces underway, and the disk now has these contents."""
        touched = self.by_block(pieces)
        for block, now in enumerate(self.blocks):
            actual = contents[block * BLOCK:(block + 1) * BLOCK]
            changes = touched.get(block, [])
            durable = [piece for piece in changes
                       if piece.fua and piece.done and piece.kind != TRIM]
            allowed = [now] + self.older.get(block, [])
            for piece in durable:
                allowed = [piece.apply(block, contents) for contents in allowed]
            self.check(block, actual, allowed, [piece for piece in changes if piece not in durable])
            self.blocks[block] = actual
        self.older.clear()

    def check(self, block, actual, allowed, optional):
        """It must be one of the allowed contents, with any of the optional pieces, which do not
        overlap."""
        for contents in allowed:
            for piece in optional:
                first, end, data = piece.cut(block)
                if actual[first:end] == data:
                    contents = contents[:first] + data + contents[end:]
            if contents == actual:
                return
        at = next((at for at in range(len(actual)) if actual[at] != allowed[0][at]), None)
        raise AssertionError("block %d is wrong from byte %s on; its requests: %s; underway: %s" % (
            block, at, ", ".join(self.history.get(block, [])[-12:]),
            ", ".join(str(piece) for piece in optional)))


class Trial:
    def __init__(self, folder, seed, discard=False):
        self.nbd = require_libnbd()
        self.random = random.Random(seed)
        self.folder = folder
        self.discard = discard
        self.centres = []  # where the small changes are
        # A single one also saves what others have changed: the bitmap has one page here.
        self.fua_share = self.random.choice([0.01, 0.2])
        base = self.random.randbytes(SIZE // 2) + bytes(SIZE - SIZE // 2)  # and a hole
        self.base, self.file = os.path.join(folder, "base"), os.path.join(folder, "overlay")
        with open(self.base, "wb") as file:
            file.write(base[:SIZE // 2])
            file.truncate(SIZE)
        self.digest = hashlib.sha256(base).digest()
        self.model = Model(base)

    def make_piece(self, taken, centre):
        """A request that overlaps no other change of the same burst, but shares blocks with some:
        the small ones are near a centre. None if the place is taken."""
        kind = self.random.choices([WRITE, ZERO, TRIM, READ, FLUSH], [8, 2, 2, 4, 1])[0]
        if kind == FLUSH:
            return Piece(kind, 0, 0)
        length = self.random.choice([1, 300, 512, 700, BLOCK, 2 * BLOCK, 5000, 40000])
        if length < BLOCK:
            start = min(centre + self.random.randrange(2 * BLOCK), SIZE - length)
        else:
            start = self.random.choice([0, SIZE - length, self.random.randrange(SIZE - length)])
            start -= self.random.choice([0, start % BLOCK])
        end = start + length
        if any(start < other.end and other.start < end for other in taken):
            return None
        data = {WRITE: self.random.randbytes(length), READ: None}.get(kind, bytes(length))
        return Piece(kind, start, end, data, kind != READ and self.random.random() < self.fua_share)

    def make_burst(self):
        pieces = []
        centre = self.random.choice(self.centres)
        for _ in range(self.random.randrange(1, 30)):
            piece = self.make_piece(pieces, centre)
            if piece is not None:
                pieces.append(piece)
        return pieces

    def send(self, handle, piece):
        nbd = self.nbd
        fua = nbd.CMD_FLAG_FUA if piece.fua else 0
        length = piece.end - piece.start
        if piece.kind == WRITE:
            buffer = nbd.Buffer.from_bytearray(bytearray(piece.data))
            return handle.aio_pwrite(buffer, piece.start, flags=fua), buffer
        if piece.kind == READ:
            buffer = nbd.Buffer(length)
            return handle.aio_pread(buffer, piece.start), buffer
        if piece.kind == FLUSH:
            return handle.aio_flush(), None
        if piece.kind == TRIM:
            return handle.aio_trim(length, piece.start, flags=fua), None
        no_hole = nbd.CMD_FLAG_NO_HOLE if self.random.random() < 0.5 else 0
        return handle.aio_zero(length, piece.start, flags=fua | no_hole), None

    def burst(self, handles, pieces, server=None):
        """Sends them all, and waits; with a server, kills that after some are answered."""
        underway = []
        for number, piece in enumerate(pieces):
            handle = handles[number % len(handles)]
            underway.append((handle, *self.send(handle, piece), piece))
        wanted = self.random.randrange(len(pieces)) if server is not None else -1
        while underway:
            if server is not None and len(pieces) - len(underway) >= wanted:
                server.kill()
                server = None
            handle, cookie, buffer, piece = underway[0]
            try:
                if handle.aio_command_completed(cookie):
                    self.answered(piece, buffer)
                    underway.pop(0)
                else:
                    handle.poll(-1)
            except self.nbd.Error:
                if wanted < 0 or server is not None:
                    raise
                if not (handle.aio_is_dead() or handle.aio_is_closed()):
                    continue
                underway.pop(0)

    def answered(self, piece, buffer):
        piece.done = True
        if piece.kind == READ:
            assert buffer.to_bytearray() == self.model.bytes(piece.start, piece.end), \
                "%s: wrong contents" % piece

    def check_map(self, handle):
        """What is said to read as zeroes does."""
        found = []
        handle.block_status(SIZE, 0, lambda _context, offset, entries, _error:
                            found.extend([(offset, entries)]))
        at = 0
        for _, entries in found:
            for length, flags in zip(entries[::2], entries[1::2]):
                if flags & self.nbd.STATE_ZERO:
                    zeroes = self.model.bytes(at, min(at + length, SIZE))
                    assert not any(zeroes), "%d-%d is said to be zeroes" % (at, at + length)
                at += length

    def connect(self, server):
        handle = self.nbd.NBD()
        handle.add_meta_context("base:allocation")
        handle.connect_uri(server.uri())
        assert handle.can_multi_conn()  # so a flush on one is a flush of all
        return handle

    def serve(self, bursts, may_be_killed):
        """One life of a server. Returns how many bursts it had."""
        keys = "overlay=discard" if self.discard else "overlay=" + self.file
        with Gmblock(self.folder, {"": "%s,%s" % (self.base, keys)}) as server:
            handles = [self.connect(server), self.connect(server)]
            assert handles[0].pread(SIZE, 0) == self.model.bytes(0, SIZE)
            self.centres = [self.random.randrange(SIZE) for _ in range(3)]
            for number in range(bursts):
                pieces = self.make_burst()
                if may_be_killed and number == bursts - 1:
                    self.burst(handles, pieces, server)
                    break
                self.burst(handles, pieces)
                self.model.completed(pieces, lambda start, count: handles[0].pread(count, start))
                if self.random.random() < 0.2:
                    self.random.choice(handles).flush()
                    self.model.flushed()
                self.check_map(handles[0])
        if server.killed:
            self.after_kill(pieces)
        self.model.flushed()  # an end in order loses nothing, flushed or not

    def after_kill(self, pieces):
        run(os.environ["GMBLOCK"], "check", self.file)
        with Gmblock(self.folder, {"": "%s,overlay=%s,readonly" % (self.base, self.file)}) as server:
            self.model.killed(pieces, self.connect(server).pread(SIZE, 0))

    def run(self):
        if self.discard:
            self.serve(BURSTS, False)
        for _ in range(0 if self.discard else 6):
            self.serve(self.random.randrange(1, BURSTS // 3), self.random.random() < 0.7)
        with open(self.base, "rb") as file:
            assert hashlib.sha256(file.read()).digest() == self.digest, "the base was written"


def seeds():
    if "OVERLAY_SEED" in os.environ:
        return [int(os.environ["OVERLAY_SEED"])]
    return range(1, int(os.environ.get("SOAK_OVERLAY_RUNS", "5")) + 1)


def try_all(folder, discard):
    for seed in seeds():
        inside = os.path.join(folder, str(seed))
        os.mkdir(inside)
        try:
            Trial(inside, seed, discard).run()
        except Exception:
            print("OVERLAY_SEED=%d" % seed, flush=True)
            raise


def test_overlay_that_is_restarted_and_killed(folder):
    require_libnbd()
    try_all(folder, discard=False)


def test_overlay_in_memory(folder):
    require_libnbd()
    try_all(folder, discard=True)


if __name__ == "__main__":
    main()
