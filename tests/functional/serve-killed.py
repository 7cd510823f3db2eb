#!/usr/bin/python3
"""serve-killed.py GMBLOCK KILLS [SEED]: a server is killed under write load, again and again, with
direct writes on its disk, and the next one is already there when it dies. Nothing that was answered
is lost, and nothing that the next server has answered is overtaken by what the killed one left.

The disk is a loop device over a file that another server makes slow (FUSE). Several connections
write whole blocks, some with FUA, and flush in between. A block ends with a slow page, so when the
next server lets them in, they can write another page of it that would be done before a write that
the killed server has left. When the disk has no write under way, every block is read. Who opens the
export over gmb is let in when there is none, too.
"""
import os
import platform
import random
import selectors
import struct
import subprocess
import sys

import attach_tool
import nbdmini
import support
import vhost
import vhost_tool as tool

KILLS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 8
SEED = int(sys.argv.pop(2)) if len(sys.argv) > 2 else random.randrange(1 << 32)
PAGE = 4096
BLOCK = 256 << 10
BLOCKS = 16  # as many as there can be delays
SLOW = "300ms"
CONNECTIONS = 4
DEPTH = 3
REPLIES_MAX = 2 * CONNECTIONS * DEPTH
COOKIE_FLUSH = BLOCKS
CMD_FLAG_FUA = 1
HAVE_GMB = platform.machine() == "x86_64"


def content(block, version):
    return struct.pack("<QQ", block, version) * (BLOCK // 16)


def versions(data):
    """What is in a page, as (block, version)."""
    return sorted(set(struct.iter_unpack("<QQ", data)))


class Killed(attach_tool.Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.settled = [bytes(BLOCK)] * BLOCKS
        self.pending = {}  # block -> what a write that is not answered puts there
        self.version = 0
        self.flushes = True
        self.killed = None  # the server that is to be killed next
        self.clients = []
        self.flushing = set()
        self.start_count = self.late = self.answered = self.unanswered = 0

    def make_disk(self):
        slow = [f"delay=write:{SLOW}:range={(block + 1) * BLOCK - PAGE}+{PAGE}"
                for block in range(BLOCKS)]
        self.serve("--export", ",".join([f"={self.image(BLOCKS * BLOCK)}", *slow]))
        return self.loop(self.attach(), "--direct-io=on")

    def writes_under_way(self):
        name = os.path.basename(self.disk)
        with open(f"/sys/block/{name}/inflight", encoding="ascii") as file:
            return int(file.read().split()[1])

    # --- load --------------------------------------------------------------------------------

    def chance_of_durable(self):
        """Not in every second round: a flush under way holds up the end of the process, and so the
        next server, until the writes before it have landed."""
        return self.flushes and self.random.randrange(8) == 0

    def write(self, index):
        """A connection writes one of its own blocks."""
        block = self.random.choice([block for block in range(index, BLOCKS, CONNECTIONS)
                                    if block not in self.pending])
        self.version += 1
        self.pending[block] = content(block, self.version)
        self.clients[index].send_request(
            nbdmini.CMD_WRITE, block, block * BLOCK, BLOCK, self.pending[block],
            CMD_FLAG_FUA if self.chance_of_durable() else 0)

    def go_on(self, index):
        """The next request: there are always as many under way."""
        if index in self.flushing or not self.chance_of_durable():
            self.write(index)
        else:
            self.flushing.add(index)
            self.clients[index].send_request(nbdmini.CMD_FLUSH, COOKIE_FLUSH)

    def take_reply(self, index):
        cookie, error = self.clients[index].reply()
        self.assertEqual(error, 0)
        if cookie == COOKIE_FLUSH:
            self.flushing.remove(index)
        else:
            self.settled[cookie] = self.pending.pop(cookie)
            self.answered += 1

    def load(self, replies):
        """Writes until this many replies have come."""
        with selectors.DefaultSelector() as selector:
            for index, client in enumerate(self.clients):
                for _ in range(DEPTH):
                    self.write(index)
                selector.register(client.sock, selectors.EVENT_READ, index)
            while replies > 0:
                for key, _ in selector.select():
                    self.take_reply(key.data)
                    self.go_on(key.data)
                    replies -= 1

    def take_last_replies(self):
        """What the killed server had sent. The kernel ends its connections only when its last
        operation is over: that must not be waited for."""
        for index, client in enumerate(self.clients):
            client.sock.setblocking(False)
            try:
                while True:
                    self.take_reply(index)
            except (BlockingIOError, ConnectionError):
                client.close()
        self.flushing.clear()

    # --- the servers -------------------------------------------------------------------------

    def start_next(self):
        self.start_count += 1
        gmb = ["--listen", f"gmb+unix:///?socket={self.path('gmb')}{self.start_count}"]
        return subprocess.Popen(
            [support.program(), "serve", "--export", f"={self.disk},mode=direct",
             "--handshake-timeout", "60s", "--log-level", "error", "--listen",
             self.socket_uri(f"s{self.start_count}"), *(gmb if HAVE_GMB else [])],
            stdout=subprocess.PIPE, text=True)

    def end(self, server):
        server.kill()
        server.wait()
        server.stdout.close()

    def check_gmb_waits(self):
        """Who opens the export over gmb has to wait, too."""
        uri = self.killed.stdout.readline().rstrip("\n")
        status, _, errors = self.run_gmblock("info", "--map", uri)
        left = self.writes_under_way()
        self.assertEqual((status, left), (0, 0), errors)

    def connect(self):
        uri = self.killed.stdout.readline().rstrip("\n")
        if not uri:  # it waited for the disk for too long; another has nothing to wait for
            self.end(self.killed)
            self.killed = self.start_next()
            uri = self.killed.stdout.readline().rstrip("\n")
        if HAVE_GMB:
            self.check_gmb_waits()
        self.clients = [nbdmini.open_export(uri) for _ in range(CONNECTIONS)]

    def kill(self):
        """In the middle of writes, with the next server waiting for the disk."""
        self.flushes = not self.flushes
        following = self.start_next()
        try:
            self.load(self.random.randrange(REPLIES_MAX))
        finally:
            self.end(self.killed)
            self.killed = following
        self.late += self.writes_under_way() > 0
        self.take_last_replies()
        self.unanswered += len(self.pending)
        self.connect()

    # --- what must hold ------------------------------------------------------------------------

    def write_newer(self):
        """A quick page of every block whose write was not answered: a client that has sent it again
        may go on so."""
        newer = {}
        for block in self.pending:
            self.version += 1
            page = BLOCK // PAGE - self.random.randrange(2, 16)
            newer[block] = (page, content(block, self.version)[:PAGE])
            self.clients[block % CONNECTIONS].send_request(
                nbdmini.CMD_WRITE, block, block * BLOCK + page * PAGE, PAGE, newer[block][1])
        for block in self.pending:
            self.assertEqual(self.clients[block % CONNECTIONS].reply()[1], 0)
        return newer

    def check_block(self, kill, block, data, newer):
        for page in range(BLOCK // PAGE):
            part = slice(page * PAGE, (page + 1) * PAGE)
            allowed = [self.settled[block][part]]
            if newer is not None and newer[0] == page:
                allowed = [newer[1]]
            elif block in self.pending:
                allowed.append(self.pending[block][part])
            self.assertTrue(
                data[part] in allowed,
                f"kill {kill} (seed {SEED}): page {page} of block {block} holds "
                f"{versions(data[part])} instead of {[versions(one) for one in allowed]}")

    def check(self, kill):
        newer = self.write_newer()
        while self.writes_under_way() > 0:
            pass
        for block in range(BLOCKS):
            data = self.clients[block % CONNECTIONS].read(block * BLOCK, BLOCK)
            if block in newer or data != self.settled[block]:
                self.check_block(kill, block, data, newer.get(block))
            self.settled[block] = data
        self.pending.clear()

    def test_nothing_is_lost_or_overtaken(self):
        self.disk = self.make_disk()
        self.killed = self.start_next()
        self.addCleanup(lambda: self.end(self.killed))
        self.connect()
        for kill in range(1, KILLS + 1):
            self.kill()
            self.check(kill)
        for client in self.clients:
            client.close()
        print(f"{KILLS} kills, {self.late} left writes behind; {self.answered} writes were "
              f"answered, {self.unanswered} were not (seed {SEED})")
        self.assertGreater(self.late, 0)


class LateReads(vhost.Vhost, attach_tool.Case):
    """The disk still reads into the memory of a guest when its server is killed, which only reads the disk."""

    def serve_disk(self):
        return self.start("--export", f"disk={self.disk},readonly,mode=direct", "--control", self.control, "--listen",
                          f"vhost-user-blk+unix:///disk?socket={self.path('vm')}", "--handshake-timeout", "60s",
                          "--threads", "2")

    def reads_under_way(self):
        with open(f"/sys/block/{os.path.basename(self.disk)}/inflight", encoding="ascii") as file:
            return int(file.read().split()[0])

    def test_they_do_not_reach_memory_that_the_guest_uses_again(self):
        image = self.image(1 << 20)
        attach_tool.Case.serve(self, "--export", f"={image},delay=read:1h:range=512K+4K")
        self.disk, self.control = self.loop(self.attach(), "--direct-io=on"), self.path("control")
        server = self.serve_disk()
        # The ring of the first thread has the listening socket, so a read there keeps the next server away.
        with tool.Connection(server.uri):
            device, record = self.recorded(server)
        device.submit(tool.READ, 1024, size=PAGE)
        self.wait_for(lambda: self.reads_under_way() > 0)
        server.kill()
        server = self.serve_disk()
        barrier = self.stats()["exports"][0]["barrier"]
        attach_tool.Case.serve(self, "--export", f"={image}")  # the disk goes on
        again = self.reconnected(server, device, record)
        self.assertEqual(again.queue.next_used(), (0, PAGE + 1))
        self.assertEqual(barrier, "closed")
        self.assertEqual(self.reads_under_way(), 0)
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    attach_tool.main()
