"""flash-load.py DISK KILLS FAILURES BOOT: runs in a guest of flash-crash.py or zoned.py. Checks what a flash store has
kept over a power failure, and writes until the power is gone; after the last one, kills its server
again and again. Before that, another process takes over now and then, the connection included.

The load is a sequence of batches. What a batch writes follows from its number, and a block says its
place and the batch, so a guest knows what to expect without a memory of its own. A batch begins
when all requests of the one before are answered. What a crash leaves is then one batch whole, with
all before it, and any part of the next one.

With OLD in the environment, what the zones on that disk have is first written to those of DISK.

Signals: "past" has the batches that were answered and durable when the power went; "load-BOOT" is
sent when it may go. Each line of output says which batches are answered and durable."""
import fcntl
import json
import mmap
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys

import nbdmini

DISK = sys.argv[1]
KILLS, FAILURES, BOOT = map(int, sys.argv[2:])
SEGMENT = os.environ.get("SEGMENT", "256K")
BLOCK = 4096
REQUESTS = 16
CMD_TRIM, FLAG_FUA = 4, 1
FINISH_ZONE = 0x40101288  # ioctl BLKFINISHZONE
PIECE = 63  # blocks of the greatest request: one record, which a segment of 64 has room for


def quiet(boot):
    """Whether nothing was made durable in this boot once the power could go."""
    return boot % 2 == 0


def call(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def contents(block, batch):
    return struct.pack("<QQ", block, batch) * (BLOCK // 16) if batch else bytes(BLOCK)


class Load:
    def __init__(self):
        self.server = self.client = None
        self.pid = 0
        self.state = []  # the batch that each block is of
        self.whole = 0  # the last batch in it
        self.durable = 0
        self.random = random.Random(BOOT)

    def start(self):
        # What is in the cache when the power goes may be lost in any order.
        keys = ",cache=1M" if BOOT == FAILURES else ",cache=0"
        keys += ",mode=direct" if BOOT % 4 < 2 else ""
        self.server = subprocess.Popen(
            ["gmblock", "serve", "--export", f"=flash:{DISK}{keys}", "--listen",
             "nbd+unix:///?socket=/tmp/s", "--control", "/tmp/control"], stdout=subprocess.PIPE, text=True)
        self.pid = self.server.pid
        self.client = nbdmini.open_export(self.server.stdout.readline().rstrip())
        self.state = self.state or [0] * (self.client.size // BLOCK)

    def upgrade(self):
        said = call("gmblock", "upgrade", "--server", "/tmp/control")
        self.pid = int(re.match(r"process (\d+) is now serving; connections passed to it: 1,", said)[1])
        assert self.server.wait() == 0

    def end(self, how):
        """It is over when this returns."""
        descriptor = os.pidfd_open(self.pid)
        os.kill(self.pid, how)
        select.select([descriptor], [], [])
        os.close(descriptor)
        self.server.poll()

    def batch(self, number):
        """[(first block, blocks, command)] without a block twice; the last one is a write."""
        blocks = len(self.state)
        if number * REQUESTS * PIECE <= blocks:  # the disk is filled first
            return [(((number - 1) * REQUESTS + i) * PIECE, PIECE, nbdmini.CMD_WRITE)
                    for i in range(REQUESTS)]
        chosen = random.Random(number)
        found = []
        while len(found) < REQUESTS:
            count = chosen.choice((1, 1, 1, 2, 8, PIECE))
            first = chosen.randrange(blocks - count)
            command = chosen.choice((nbdmini.CMD_WRITE,) * 6 +
                                    (CMD_TRIM, nbdmini.CMD_WRITE_ZEROES))
            if all(first + count <= f or f + c <= first for f, c, _ in found):
                found.append((first, count, command))
        return found[:-1] + [(*found[-1][:2], nbdmini.CMD_WRITE)]

    def changes(self, number):
        """{block: batch, 0 for zeroes}"""
        return {block: number if command == nbdmini.CMD_WRITE else 0
                for first, count, command in self.batch(number)
                for block in range(first, first + count)}

    def send(self, number, cookie, request, flags):
        first, count, command = request
        data = b"".join(contents(block, number) for block in range(first, first + count)) \
            if command == nbdmini.CMD_WRITE else b""
        self.client.send_request(command, cookie, first * BLOCK, count * BLOCK, data, flags)

    def is_durable(self, number, cookie):
        """Whether a write is sent with FUA: each fourth, and the last one of each fourth batch."""
        return cookie % 4 == 1 or (cookie == REQUESTS - 1 and number % 4 == 2)

    def run(self, number, may_sync=True, kill_after=None):
        """A batch; kill_after: the server is killed after so many replies."""
        requests = self.batch(number)
        for cookie, request in enumerate(requests[:-1]):
            self.send(number, cookie, request, int(may_sync and self.is_durable(number, cookie)))
        for count in range(REQUESTS - 1):
            if count == kill_after:
                self.end(signal.SIGKILL)
                self.client.close()
                return
            assert self.client.reply()[1] == 0
        last = int(may_sync and self.is_durable(number, REQUESTS - 1))
        self.send(number, REQUESTS - 1, requests[-1], last)
        assert self.client.reply() == (REQUESTS - 1, 0)
        self.advance(number)
        if may_sync and number % 4 == 0:
            self.client.flush()
        if may_sync and (last or number % 4 == 0):
            self.durable = number
        print(f"answered {self.whole} durable {self.durable}", flush=True)

    def advance(self, number):
        while self.whole < number:
            self.whole += 1
            for block, batch in self.changes(self.whole).items():
                self.state[block] = batch

    def read(self):
        """The batch that each block is of."""
        found = []
        while len(found) < len(self.state):
            count = min(256, len(self.state) - len(found))
            data = self.client.read(len(found) * BLOCK, count * BLOCK)
            for at in range(0, count * BLOCK, BLOCK):
                batch = struct.unpack_from("<Q", data, at + 8)[0]
                assert data[at:at + BLOCK] == contents(len(found), batch), \
                    f"block {len(found)} is neither its own nor zeroes: {data[at:at + 16]}"
                found.append(batch)
        return found

    def verify(self, least, atomic=True):
        """After a crash; least: the last batch that has to be there. What is, as read() says it."""
        found = self.read()
        newest = max(found)
        self.advance(max(least, newest - 1))
        first, second = self.changes(self.whole + 1), self.changes(self.whole + 2)
        for block, batch in enumerate(found):
            # Of the second one only zeroes: else it would be the newest.
            assert batch in (self.state[block], first.get(block, self.state[block])) or \
                batch == 0 == second.get(block), \
                f"block {block} is of batch {batch}, not {self.state[block]}; " \
                f"{least} had to be there, {newest} is"
        for cookie, (start, count, command) in enumerate(self.batch(self.whole + 1)):
            if atomic and command == nbdmini.CMD_WRITE and \
                    self.is_durable(self.whole + 1, cookie):
                there = {found[block] == self.whole + 1 for block in range(start, start + count)
                         if block not in second}
                assert len(there) <= 1, f"of the write of blocks {start}+{count} a part is there"
        return found

    def has_lost(self, found, answered):
        """Whether some of what was answered is not there."""
        later = {**self.changes(answered + 1), **self.changes(answered + 2)}
        for number in range(self.whole + 1, answered + 1):
            for block, batch in self.changes(number).items():
                if found[block] < batch and block not in later:
                    return True
        return False


def check():
    assert json.loads(call("gmblock", "check", "--json", DISK))["faults"] == []


def restore(old, new):
    """The last zone of the log may have room, which is somewhere; others with less than they can have are
    finished. All that is durable then."""
    with open(f"/sys/block/{os.path.basename(new)}/queue/chunk_sectors", encoding="ascii") as file:
        zone = int(file.read()) * 512
    capacity = int(SEGMENT[:-1]) << 10
    memory = mmap.mmap(-1, capacity)
    source, target = os.open(old, os.O_RDONLY), os.open(new, os.O_RDWR | os.O_DIRECT)
    size = os.lseek(target, 0, os.SEEK_END)
    active = {0, zone, random.Random(BOOT).randrange(size // zone) * zone}
    for start in sorted(range(0, size, zone), key=lambda start: start in active):
        assert os.preadv(source, [memory], start) == capacity
        end = next((at for at in range(0, capacity, BLOCK) if memory[at:at + BLOCK] == bytes(BLOCK)), capacity)
        for at in range(0, end, 65536):
            part = memoryview(memory)[at:min(end, at + 65536)]
            assert os.pwritev(target, [part], start + at) == len(part)
        if 0 < end < capacity and start not in active:
            fcntl.ioctl(target, FINISH_ZONE, struct.pack("<QQ", start // 512, zone // 512))
    os.fsync(target)
    os.close(target)
    os.close(source)


def exercise(load):
    if "OLD" in os.environ:
        restore(os.environ["OLD"], DISK)
    if BOOT == 0:
        call("gmblock", "create", f"--segment={SEGMENT}", "--spare=10", f"flash:{DISK}")
    check()
    load.start()
    answered, load.durable = map(int, call("lab-wait", "past").split())
    found = load.verify(load.durable, atomic=not quiet(BOOT - 1))
    print(f"lost {int(load.has_lost(found, answered))}")
    # Also what a crash has left in part is written again.
    if BOOT < FAILURES:
        for number in range(load.whole + 1, load.whole + load.random.randrange(4, 8)):
            load.run(number)
        load.run(load.whole + 1, not quiet(BOOT))
        call("lab-signal", f"load-{BOOT}")
        while True:
            load.run(load.whole + 1, not quiet(BOOT))
    for kill in range(KILLS):
        for number in range(load.whole + 1, load.whole + load.random.randrange(2, 8)):
            load.run(number)
        if kill % 3 == 0:
            load.upgrade()
            load.verify(load.whole)
        for number in range(load.whole + 1, load.whole + load.random.randrange(1, 4)):
            load.run(number)
        load.run(load.whole + 1, kill_after=load.random.randrange(REQUESTS - 1))
        check()
        load.start()
        load.verify(load.whole)
    load.end(signal.SIGTERM)
    check()


def main():
    load = Load()
    try:
        exercise(load)
    except TimeoutError:
        with open(f"/sys/block/{os.path.basename(DISK)}/inflight", encoding="ascii") as file:
            print("the disk has not completed so many reads and writes:", file.read())
        raise


main()
