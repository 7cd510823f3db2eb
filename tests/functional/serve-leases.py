#!/usr/bin/python3
"""Leases: at most one exclusive holder of an export, over NBD and gmb, whatever happens to it or to the server; exports
with one writer; disks that are offered to another node.

    serve-leases.py GMBLOCK LIBRARY PYTHON
"""
import contextlib
import errno
import json
import os
import struct
import subprocess
import sys
import threading

import nbdmini
import support

BLOCK = 4096
EPERM = 1
OPT_LIST_META_CONTEXT = 9
ERR_POLICY = 0x80000002
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
NODES = """
nodes:
  - {{ name: a, address: 127.0.0.2 }}
  - {{ name: b, address: 127.0.0.3 }}
exports:
  - {{ name: disk, path: '{path}'{keys} }}
"""
# A program that opens an export with a lease, says so, and writes a block for each line of its standard input.
HOLDER = """
import sys, gmblock
client = gmblock.open(sys.argv[1], lease=int(sys.argv[2]), lease_ms=int(sys.argv[3]), reconnect_timeout_ms=60000)
print("open", flush=True)
for line in sys.stdin:
    client.pwrite(line.encode()[:1] * 4096, 0)
    print("written", flush=True)
client.close()
"""


class Leases(support.Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("state"))
        self.control = self.path("control")
        self.image = self.make_file("disk.img", bytes(1 << 20))

    def serve(self, *arguments, listen=(), state=True):
        words = [word for uri in listen for word in ("--listen", uri)]
        return self.start("--control", self.control, *(("--state-folder", self.path("state")) if state else ()), *words,
                          *arguments, uri_count=len(listen))

    def lease(self, *arguments):
        return self.run_gmblock("lease", *arguments, "--server", self.control)

    def listed(self):
        code, output, errors = self.lease("list", "--json")
        self.assertEqual(code, 0, errors)
        return [(entry["mode"], entry["state"]) for entry in json.loads(output)]

    def in_flight(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0, errors)
        return json.loads(output)["counters"]["inflight"]

    def export(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0, errors)
        return json.loads(output)["exports"][0]

    def stop_new(self, server):
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0, errors)
        os.kill(json.loads(output)["pid"], 15)
        server.process.communicate()
        self.wait_for(lambda: self.run_gmblock("stats", self.control)[0] != 0)

    def block(self):
        with open(self.image, "rb") as file:
            return file.read(1)


class Carriers:
    """What clients of libgmblock do, over each of its protocols."""

    SCHEME = None
    LISTEN = ()

    def uri(self):
        return f"{self.SCHEME}:///?socket={self.path('s')}"

    def begin(self, *arguments, **options):
        return self.serve(*arguments, self.image, listen=(self.uri(),), **options)

    def open(self, lease=None, **options):
        options = {"reconnect_timeout_ms": 60000, "connections": 1, **options}
        client = gmblock.open(self.uri(), lease=gmblock.LEASE_EXCLUSIVE if lease is None else lease, **options)
        self.addCleanup(client.close)
        return client

    def check_no(self, code, *fragments, **options):
        with self.assertRaises(gmblock.Error) as refused:
            self.open(**options)
        self.assertEqual(refused.exception.errno, code, refused.exception)
        for fragment in ("leased: ", *fragments):
            self.assertIn(fragment, str(refused.exception))

    def refused(self):
        return errno.EPERM if self.SCHEME == "gmb+unix" else errno.EACCES

    def spawn(self, ms=60000):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, self.uri(), "2", str(ms)], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "PYTHONPATH": PYTHON})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "open\n")
        return process

    def write(self, process, byte):
        process.stdin.write(byte + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def test_one_exclusive_holder(self):
        self.begin()
        first = self.open()
        self.assertEqual(self.listed(), [("exclusive", "holds")])
        self.check_no(self.refused(), "has the exclusive lease", f"uid {os.geteuid()}")
        self.check_no(self.refused(), lease=gmblock.LEASE_SHARED)
        first.pwrite(b"x" * BLOCK, 0)
        with gmblock.open(self.uri()) as other:  # a client without a lease
            self.assertEqual(other.pread(1, 0), b"x")
        first.close()
        self.wait_for(lambda: self.listed() == [])
        self.open().pwrite(b"y" * BLOCK, 0)

    def test_several_shared_holders(self):
        self.begin()
        clients = [self.open(lease=gmblock.LEASE_SHARED) for _ in range(3)]
        self.assertEqual(self.listed(), 3 * [("shared", "holds")])
        self.check_no(self.refused(), "has a shared lease")
        for client in clients:
            client.close()
        self.wait_for(lambda: self.listed() == [])
        self.open()

    def test_a_race_has_one_winner(self):
        self.begin("--threads", "2")
        for _ in range(5):
            found = []
            barrier = threading.Barrier(6)

            def race(found=found, barrier=barrier):
                barrier.wait()
                try:
                    with gmblock.open(self.uri(), lease=gmblock.LEASE_EXCLUSIVE, connections=1):
                        found.append("won")
                        barrier.wait()
                except gmblock.Error as error:
                    found.append(str(error))
                    barrier.wait()

            threads = [threading.Thread(target=race) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found.count("won"), 1, found)
            self.wait_for(lambda: self.listed() == [])

    def test_a_killed_holder(self):
        """Its lease lasts for its time, and no longer."""
        self.begin()
        holder = self.spawn(ms=6000)
        holder.kill()
        self.wait_for(lambda: "not connected" in self.lease("list")[1])
        self.check_no(self.refused(), "it is not connected, and its lease ends in")
        self.wait_for(lambda: self.listed() == [])
        self.open()

    def test_preempt(self):
        """The old holder cannot write any more, not even when the export is free again."""
        self.begin()
        holder = self.spawn()
        self.assertEqual(self.write(holder, "a"), "written\n")
        thief = self.open(flags=gmblock.OPEN_PREEMPT)
        self.assertEqual(self.write(holder, "b"), "")
        thief.pwrite(b"c" * BLOCK, 0)
        self.assertEqual(holder.wait(), 1)
        self.assertEqual(self.block(), b"c")
        self.check_no(self.refused())
        thief.close()
        self.wait_for(lambda: self.listed() == [])

    def test_preempt_waits_for_the_last_write(self):
        """Slow writes of the old holder are done before the new one gets the disk."""
        self.begin("--threads", "2", "--export", f"slow={self.image},delay=write:3s")
        uri = f"{self.SCHEME}:///slow?socket={self.path('s')}"
        queue = gmblock.Queue()
        old = queue.open(uri, lease=gmblock.LEASE_EXCLUSIVE, connections=1)
        self.addCleanup(queue.destroy)
        self.addCleanup(old.close)
        writes = [old.new_write(b"o" * BLOCK, index * BLOCK) for index in range(8)]
        for write in writes:
            old.submit(write)
        self.wait_for(lambda: queue.wait(0) >= 0 and self.in_flight() > 0)
        with gmblock.open(uri, lease=gmblock.LEASE_EXCLUSIVE, flags=gmblock.OPEN_PREEMPT, connections=1) as new:
            self.assertEqual(self.in_flight(), 0)
            new.pwrite(b"n" * 8 * BLOCK, 0)
            while any(write.result == 0 and id(write) in old.pending for write in writes):
                queue.wait(1000)
            self.assertEqual(new.pread(8 * BLOCK, 0), b"n" * 8 * BLOCK)

    def test_a_restart(self):
        """Only the holder comes back, and a client that lost its lease before does not."""
        for signal in ("KILL", "TERM"):
            with self.subTest(signal):
                server = self.begin()
                lost = self.spawn()
                self.assertEqual(self.write(lost, "1"), "written\n")
                holder = self.open(flags=gmblock.OPEN_PREEMPT)
                if signal == "KILL":
                    server.kill()
                else:
                    server.stop()
                server = self.begin()
                self.check_no(self.refused(), "it is not connected")
                self.assertEqual(self.write(lost, "2"), "")
                holder.pwrite(b"3" * BLOCK, 0)
                self.assertEqual(self.block(), b"3")
                self.check_no(self.refused(), "has the exclusive lease")
                holder.close()
                self.wait_for(lambda: self.listed() == [])
                server.stop()

    def test_without_a_state_folder(self):
        """A restarted server gives nobody a lease that it cannot know of."""
        server = self.begin(state=False)
        holder = self.open()
        server.kill()
        self.begin(state=False)
        with self.assertRaises(gmblock.Error):
            holder.pwrite(b"x" * BLOCK, 0)
        self.open()

    def test_an_upgrade(self):
        for state in (True, False):
            with self.subTest(state):
                server = self.begin(state=state)
                holder = self.open()
                holder.pwrite(b"1" * BLOCK, 0)
                killed = self.listed()
                code, _, errors = self.run_gmblock("upgrade", self.control)
                self.assertEqual(code, 0, errors)
                self.assertEqual(self.listed(), killed)
                self.check_no(self.refused(), "has the exclusive lease")
                holder.pwrite(b"2" * BLOCK, 0)
                self.assertEqual(self.block(), b"2")
                holder.close()
                self.wait_for(lambda: self.listed() == [])
                self.stop_new(server)

    def test_release(self):
        self.begin()
        holder = self.open(reconnect_timeout_ms=60000)
        self.assertEqual(self.lease("release", ""), (0, "", ""))
        with self.assertRaises(gmblock.Error):
            holder.pwrite(b"x" * BLOCK, 0)
        self.assertEqual(self.listed(), [])
        code, _, errors = self.lease("release", "")
        self.assertEqual(code, 1)
        self.assertIn("no client has a lease of export", errors)
        self.open()


    def test_offer(self):
        """Both clients belong to one node, because they have one user."""
        self.serve("--config", self.make_file("conf", f"nodes: [{{ name: n, uid: {os.geteuid()} }}]\n"
                                              f"exports: [{{ name: '', path: '{self.image}' }}]\n"), listen=(self.uri(),))
        old = self.open()
        old.pwrite(b"1" * BLOCK, 0)
        self.check_no(self.refused(), " of node 'n' has the exclusive lease")
        self.assertEqual(self.lease("offer", "", "n"), (0, "", ""))
        new = self.open()
        self.assertEqual(self.listed(), [("exclusive", "holds"), ("exclusive", "pending")])
        self.assertEqual(new.pread(1, 0), b"1")
        old.pwrite(b"2" * BLOCK, 0)
        self.assertEqual(new.pread(1, 0), b"2")
        new.pwrite(b"3" * BLOCK, 0)
        self.assertEqual(self.listed(), [("exclusive", "holds")])
        with self.assertRaises(gmblock.Error):
            old.pwrite(b"!" * BLOCK, 0)
        self.assertEqual(self.block(), b"3")


class Nbd(Carriers, Leases):
    SCHEME = "nbd+unix"


class Gmb(Carriers, Leases):
    SCHEME = "gmb+unix"


class Raw(Leases):
    """The NBD dialogue itself, and clients that know nothing of leases."""

    def begin(self, *arguments, keys=""):
        file = self.make_file("conf", NODES.format(path=self.image, keys=keys))
        return self.serve("--config", file, *arguments, listen=("nbd://127.0.0.1:0",)).uri

    def ask(self, client, text, name=b"disk", kind=b"x-gmblock:lease="):
        query = kind + text
        client.send_option(OPT_LIST_META_CONTEXT, struct.pack(">I", len(name)) + name + struct.pack(">II", 1, len(query))
                           + query)
        return [payload[4:] for _, payload in client.option_replies(OPT_LIST_META_CONTEXT)]

    def open(self, uri, number, source=A, extra=b"", name=b"disk", mode=b"exclusive", ms=60000):
        client = nbdmini.Client(uri, source)
        self.addCleanup(client.close)
        client.hello()
        text = b"%s,id=%032x,ms=%d%s" % (mode, number, ms, extra)
        self.assertEqual(self.ask(client, text, name), [b"x-gmblock:lease"])
        return client.go(name)

    def stock(self, uri, source):
        client = nbdmini.open_export(uri, b"disk", source=source)
        self.addCleanup(client.close)
        return client

    def check_no_write(self, client):
        with self.assertRaises(OSError) as refused:
            client.write(0, b"!" * BLOCK)
        self.assertEqual(refused.exception.errno, EPERM)

    def test_texts(self):
        uri = self.begin()
        good = b"exclusive,id=" + 32 * b"a" + b",ms=1000"
        with nbdmini.Client(uri) as client:
            client.hello()
            for text in (b"", b"exclusive", b"exclusive,id=0,ms=1", good[:-4], good + b"0000000000", good + b",",
                         good + b",renew,preempt", good + b",moves,preempt", b"x" + good, b"exclusive,id=" + 32 * b"0" + b",ms=1000",
                         b"exclusive,id=" + 32 * b"g" + b",ms=1000", good + b" "):
                self.assertEqual(self.ask(client, text), [], text)
            for text in (good, good + b",renew", good + b",moves", good + b",preempt", b"shared" + good[9:]):
                self.assertEqual(self.ask(client, text), [b"x-gmblock:lease"], text)

    def test_a_client_that_moves_from_another_server(self):
        uri = self.begin()
        first = self.open(uri, 1, extra=b",moves")  # nobody has had the lease here
        first.send_request(nbdmini.CMD_DISC, 1, 0, 0)
        self.wait_for(lambda: self.listed() == [])
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 2, extra=b",moves")  # somebody can have changed the disk here
        self.open(uri, 2)

    def test_refused_in_one_round_trip(self):
        uri = self.begin()
        self.open(uri, 1)
        with self.assertRaises(nbdmini.OptionRefused) as refused:
            self.open(uri, 2, B)
        self.assertEqual(refused.exception.code, ERR_POLICY)
        self.assertIn("leased: 127.0.0.2:", str(refused.exception))
        self.assertIn(" of node 'a' has the exclusive lease", str(refused.exception))
        with self.assertRaises(nbdmini.OptionRefused) as refused:  # a number is valid for one peer only
            self.open(uri, 1, B)
        self.open(uri, 1)  # another connection of the holder
        with self.assertRaises(nbdmini.OptionRefused) as refused:
            self.open(uri, 3, extra=b",renew")
        self.assertIn("leased: this client has lost its lease", str(refused.exception))

    def test_connections_of_one_lease(self):
        """Their number is limited, so that an upgrade can describe them in one message."""
        file = self.make_file("conf", NODES.format(path=self.image, keys=""))
        server = self.serve("--config", file, "--max-connections", "4096", listen=("nbd://127.0.0.1:0",))
        for _ in range(1024):
            self.open(server.uri, 1)
        with self.assertRaises(nbdmini.OptionRefused) as refused:
            self.open(server.uri, 1)
        self.assertIn("leased: a lease has at most 1024 connections", str(refused.exception))
        code, _, errors = self.run_gmblock("upgrade", self.control)
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.listed(), [("exclusive", "holds")])
        self.stop_new(server)

    def test_one_writer(self):
        uri = self.begin("--threads", "2", keys=", writers: one")
        first, second, third = self.stock(uri, A), self.stock(uri, B), self.stock(uri, A)
        first.write(0, b"1" * BLOCK)
        for _ in range(3):
            self.check_no_write(second)
            self.assertEqual(second.read(0, 1), b"1")
        third.write(0, b"3" * BLOCK)  # the same client
        second.flush()
        self.assertEqual(self.listed(), [("exclusive", "holds")])
        first.close()
        self.check_no_write(second)
        third.close()
        self.wait_for(lambda: self.listed() == [])
        second.write(0, b"2" * BLOCK)
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 1)
        second.close()
        self.wait_for(lambda: self.listed() == [])
        holder = self.open(uri, 1)
        fourth = self.stock(uri, B)
        self.check_no_write(fourth)
        holder.write(0, b"h" * BLOCK)

    def test_one_writer_wins_a_race(self):
        uri = self.begin("--threads", "2", keys=", writers: one")
        sources = [f"127.0.0.{number}" for number in range(2, 10)]
        for _ in range(5):
            clients = [self.stock(uri, source) for source in sources]
            for client in clients:
                client.send_request(nbdmini.CMD_WRITE, 7, 0, BLOCK, b"w" * BLOCK)
            replies = [client.reply() for client in clients]
            self.assertEqual(sorted(error for _, error in replies), [0] + 7 * [EPERM])
            for client in clients:
                client.close()
            self.wait_for(lambda: self.listed() == [])

    def test_a_lease_that_is_lost_before_it_begins(self):
        """A client waits with its first write for the one before it, and loses the lease: it is refused, and keeps
        nobody waiting."""
        uri = self.begin("--threads", "2", keys=", writers: one, delay: [ 'write:4s:range=0+4K' ]")
        first, second, third = self.stock(uri, A), self.stock(uri, B), self.stock(uri, C)
        first.send_request(nbdmini.CMD_WRITE, 1, 0, BLOCK, b"1" * BLOCK)
        self.wait_for(lambda: self.in_flight() == 1)
        self.assertEqual(self.lease("release", "disk"), (0, "", ""))
        second.send_request(nbdmini.CMD_WRITE, 2, BLOCK, BLOCK, b"2" * BLOCK)
        self.wait_for(lambda: ("exclusive", "holds") in self.listed())
        self.assertEqual(self.lease("release", "disk"), (0, "", ""))
        third.write(BLOCK, b"3" * BLOCK)
        self.assertEqual(second.reply(), (2, EPERM))
        self.check_no_write(second)
        self.assertEqual(third.read(BLOCK, 1), b"3")

    def test_readers_exclude_nobody(self):
        """A client that may only read can neither take a lease from a writer nor keep writers out."""
        keys = ", access: [{ address: 127.0.0.2, rights: rw }, { address: 127.0.0.3, rights: ro }]"
        for more in ("", ", writers: one"):
            with self.subTest(more):
                server = self.serve("--config", self.make_file("conf", NODES.format(path=self.image, keys=keys + more)),
                                    listen=("nbd://127.0.0.1:0",))
                for extra in (b"", b",preempt"):
                    with self.assertRaises(nbdmini.OptionRefused) as refused:
                        self.open(server.uri, 1, B, extra)
                    self.assertIn("leased: the client has no right to write", str(refused.exception))
                holder = self.open(server.uri, 2)
                with self.assertRaises(nbdmini.OptionRefused):
                    self.open(server.uri, 3, B, b",preempt")
                holder.write(0, b"h" * BLOCK)
                holder.close()
                server.stop()
                os.unlink(self.path("state/leases"))

    def test_readers_that_have_gone_exclude_nobody(self):
        """A client that may only read comes back to its shared lease, unless a writer wanted the export meanwhile."""
        keys = ", access: [{ address: 127.0.0.2, rights: rw }, { address: 127.0.0.3, rights: ro }]"
        file = self.make_file("conf", NODES.format(path=self.image, keys=keys))
        server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
        shared = {"mode": b"shared", "ms": 3600000}
        for restarts in (False, True):
            with self.subTest(restarts):
                reader = self.open(server.uri, 1, B, **shared)
                with self.assertRaises(nbdmini.OptionRefused) as refused:
                    self.open(server.uri, 2)
                self.assertIn("has a shared lease", str(refused.exception))
                reader.close()
                self.wait_for(lambda: "not connected" in self.lease("list")[1])
                if restarts:
                    server.kill()
                    server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
                else:
                    self.open(server.uri, 1, B, b",renew", **shared).close()
                    self.wait_for(lambda: "not connected" in self.lease("list")[1])
                writer = self.open(server.uri, 2)
                self.assertEqual(self.listed(), [("exclusive", "holds")])
                with self.assertRaises(nbdmini.OptionRefused):
                    self.open(server.uri, 1, B, b",renew", **shared)
                writer.send_request(nbdmini.CMD_DISC, 1, 0, 0)
                self.wait_for(lambda: self.listed() == [])
                with self.assertRaises(nbdmini.OptionRefused) as refused:
                    self.open(server.uri, 1, B, b",renew", **shared)
                self.assertIn("has lost its lease", str(refused.exception))

    def test_preempt_of_the_largest_number(self):
        """Clients that have gone occupy all places of an export."""
        uri = self.begin()
        for number in range(1, 65):
            self.open(uri, number, mode=b"shared").close()
        with self.assertRaises(nbdmini.OptionRefused) as refused:
            self.open(uri, 65, mode=b"shared")
        self.assertIn("more than 63 leases", str(refused.exception))
        self.open(uri, 66, extra=b",preempt")
        self.assertEqual(self.listed(), [("exclusive", "holds")])

    def test_a_refused_client_has_no_lease(self):
        """The export has no room for a further connection, so the client has no lease, and has taken it from nobody."""
        uri = self.begin(keys=", max-connections: 1")
        stock = self.stock(uri, B)
        with self.assertRaises(nbdmini.OptionRefused) as refused:
            self.open(uri, 1)
        self.assertIn("the export has reached its connection limit", str(refused.exception))
        self.assertEqual(self.listed(), [])
        stock.close()
        self.wait_for(lambda: self.export()["connections"] == 0)
        holder = self.open(uri, 2)
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 3, B, b",preempt")
        holder.write(0, b"h" * BLOCK)

    def test_a_stock_client_after_a_lease(self):
        """The end of a lease is recorded before the next client writes: a killed server does not give the lease back."""
        file = self.make_file("conf", NODES.format(path=self.image, keys=", writers: one"))
        for offered in (False, True):
            with self.subTest(offered):
                server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
                self.open(server.uri, 1, ms=60000 if offered else 100).close()
                if offered:
                    self.wait_for(lambda: "not connected" in self.lease("list")[1])
                    self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
                else:
                    self.wait_for(lambda: self.listed() == [])
                self.stock(server.uri, B).write(0, b"z" * BLOCK)
                server.kill()
                server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
                with self.assertRaises(nbdmini.OptionRefused) as refused:
                    self.open(server.uri, 1, extra=b",renew")
                self.assertIn("has lost its lease", str(refused.exception))
                server.stop()

    def test_an_export_that_vanishes(self):
        """A client waits for the lease of an export, which is then removed, and takes another one: it has the lease of
        this one only, and the removed one is closed."""
        uri = self.begin("--threads", "2")
        self.make_file("disk2.img", bytes(1 << 20))
        code, _, errors = self.run_gmblock("export", "add", "slow", self.path("disk2.img"), "delay=write:4s", "--server",
                                           self.control)
        self.assertEqual(code, 0, errors)
        old = self.open(uri, 1, name=b"slow")
        old.send_request(nbdmini.CMD_WRITE, 7, 0, BLOCK, b"o" * BLOCK)
        self.wait_for(lambda: self.in_flight() == 1)
        new = nbdmini.Client(uri, B)
        self.addCleanup(new.close)
        new.hello()
        self.ask(new, b"exclusive,id=%032x,ms=60000,preempt" % 2)
        new.send_option(nbdmini.OPT_GO, struct.pack(">I4sH", 4, b"slow", 0))
        self.wait_for(lambda: ("exclusive", "lost") in self.listed())
        remover = subprocess.Popen([support.program(), "export", "remove", "slow", "--server", self.control])
        self.addCleanup(remover.wait)
        self.addCleanup(remover.kill)
        with self.assertRaises(nbdmini.OptionRefused):
            new.option_replies(nbdmini.OPT_GO)
        self.assertEqual(remover.wait(support.WAIT_SECONDS), 0)  # it does not wait for this client
        self.ask(new, b"exclusive,id=%032x,ms=60000" % 2)
        new.go(b"disk")
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 3, C)

    def test_a_refused_client_that_uses_another_export(self):
        """It does not keep the first one open."""
        uri = self.begin()
        self.make_file("disk2.img", bytes(1 << 20))
        code, _, errors = self.run_gmblock("export", "add", "other", self.path("disk2.img"), "--server", self.control)
        self.assertEqual(code, 0, errors)
        holder = self.open(uri, 1, name=b"other")
        new = nbdmini.Client(uri, B)
        self.addCleanup(new.close)
        new.hello()
        for query in b"connection=abc", b"lease=exclusive,id=%032x,ms=1000" % 2:
            self.ask(new, query, b"other", b"x-gmblock:")
        with self.assertRaises(nbdmini.OptionRefused):
            new.go(b"other")
        new.go(b"disk")
        holder.close()
        remover = subprocess.Popen([support.program(), "export", "remove", "other", "--server", self.control])
        self.addCleanup(remover.wait)
        self.addCleanup(remover.kill)
        self.assertEqual(remover.wait(support.WAIT_SECONDS), 0)
        new.write(0, b"n" * BLOCK)

    def test_one_writer_and_changes_of_the_server(self):
        file = self.make_file("conf", NODES.format(path=self.image, keys=", writers: one"))
        server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
        first, second = self.stock(server.uri, A), self.stock(server.uri, B)
        first.write(0, b"1" * BLOCK)
        for change in ("upgrade", "reload"):
            code, _, errors = self.run_gmblock(change, self.control)
            self.assertEqual(code, 0, errors)
            self.check_no_write(second)
            first.write(0, b"2" * BLOCK)
        self.stop_new(server)

    def test_an_upgrade_after_other_connections(self):
        """The new process numbers its connections anew, so a number alone makes no client the writer."""
        file = self.make_file("conf", NODES.format(path=self.image, keys=", writers: one"))
        server = self.serve("--config", file, "--threads", "1", listen=("nbd://127.0.0.1:0",))
        for _ in range(3):
            self.stock(server.uri, C).close()
        second, first = self.stock(server.uri, B), self.stock(server.uri, A)
        first.write(0, b"1" * BLOCK)
        for _ in range(2):
            code, _, errors = self.run_gmblock("upgrade", self.control)
            self.assertEqual(code, 0, errors)
            for client in second, *[self.stock(server.uri, B) for _ in range(5)]:
                self.check_no_write(client)
            first.write(0, b"2" * BLOCK)
            self.assertEqual([entry["connections"] for entry in json.loads(self.lease("list", "--json")[1])], [1])
        self.stop_new(server)

    def test_offer(self):
        uri = self.begin("--threads", "2")
        old = self.open(uri, 1)
        old.write(0, b"1" * BLOCK)
        for arguments, text in ((("offer", "disk", "x"), "there is no node 'x'"),
                                (("offer", "other", "b"), 'there is no export "other"'),
                                (("list", "other"), "there is no export \"other\"; 'gmblock export list' shows"),
                                (("release", "disk", "b"), "no client of node 'b' has a lease")):
            code, _, errors = self.lease(*arguments)
            self.assertEqual(code, 1)
            self.assertIn(text, errors)
        self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 3, C)
        new, also_new = self.open(uri, 2, B), self.open(uri, 2, B)
        self.assertEqual(self.listed(), [("exclusive", "holds"), ("exclusive", "pending")])
        self.assertEqual(new.read(0, 1), b"1")
        old.write(0, b"2" * BLOCK)
        self.assertEqual(also_new.read(0, 1), b"2")
        new.write(0, b"3" * BLOCK)
        self.assertEqual(self.listed(), [("exclusive", "holds")])
        with self.assertRaises(OSError):
            old.read(0, 1)
        also_new.write(0, b"4" * BLOCK)
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 1, A, b",renew")
        self.assertEqual(self.block(), b"4")

    def test_an_offer_waits_for_the_last_write(self):
        uri = self.begin("--threads", "2", keys=", delay: [ 'write:2s' ]")
        old = self.open(uri, 1)
        self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
        new = self.open(uri, 2, B)
        old.send_request(nbdmini.CMD_WRITE, 7, 0, BLOCK, b"o" * BLOCK)
        self.wait_for(lambda: self.in_flight() == 1)
        new.write(0, b"n" * BLOCK)
        self.assertEqual(self.block(), b"n")
        with contextlib.suppress(OSError):
            old.reply()
        self.assertEqual(new.read(0, 1), b"n")

    def test_an_offer_is_withdrawn(self):
        uri = self.begin()
        old = self.open(uri, 1)
        self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
        new = self.open(uri, 2, B)
        self.assertEqual(self.lease("release", "disk", "b"), (0, "", ""))
        self.assertTrue(new.at_end())
        old.write(0, b"1" * BLOCK)
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(uri, 2, B)

    def test_a_killed_server_knows_the_offer(self):
        """The node that was about to get the disk still gets it with its first write."""
        file = self.make_file("conf", NODES.format(path=self.image, keys=""))
        server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
        self.open(server.uri, 1)
        self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
        self.open(server.uri, 2, B)
        server.kill()
        server = self.serve("--config", file, listen=("nbd://127.0.0.1:0",))
        self.assertEqual(self.listed(), [("exclusive", "holds"), ("exclusive", "pending")])
        old = self.open(server.uri, 1, A, b",renew")
        old.write(0, b"1" * BLOCK)
        self.open(server.uri, 2, B, b",renew").write(0, b"2" * BLOCK)
        self.assertTrue(old.at_end())

    def test_the_state_folder_of_a_unit(self):
        """It is not needed, but one server has it, and keeps it in an upgrade."""
        file = self.make_file("conf", f"exports: [{{ name: disk, path: '{self.image}' }}]")
        unit = {**os.environ, "STATE_DIRECTORY": self.path("state")}
        server = self.start("--config", file, "--control", self.control, "--listen", "nbd://127.0.0.1:0", env=unit)
        other = self.start("--control", "none", "--listen", "nbd://127.0.0.1:0", "memory:1M", env=unit)
        self.assertIn("leases will not outlast this process: another server uses the state folder", other.stop()[1])
        self.check_refused(["serve", "--control", "none", "--state-folder", self.path("state"), "memory:1M"], 1,
                           "another server uses the state folder")
        self.open(server.uri, 1).write(0, b"1" * BLOCK)
        code, _, errors = self.run_gmblock("upgrade", self.control)  # an environment without the folder
        self.assertEqual(code, 1)
        self.assertIn("the running server has a state folder, which contains its fenced nodes and leases; name it with "
                      "--state-folder", errors)
        os.unlink(self.path("state/leases"))  # the new process writes it even if no lease changes
        code, _, errors = self.run_gmblock("upgrade", self.control, env=unit)
        self.assertEqual(code, 0, errors)
        self.wait_for(lambda: os.path.exists(self.path("state/leases")))
        self.check_refused(["serve", "--control", "none", "--state-folder", self.path("state"), "memory:1M"], 1,
                           "another server uses the state folder")
        self.stop_new(server)
        server = self.start("--config", file, "--control", self.control, "--listen", "nbd://127.0.0.1:0", env=unit)
        with self.assertRaises(nbdmini.OptionRefused):
            self.open(server.uri, 2)
        self.open(server.uri, 1, extra=b",renew").write(0, b"2" * BLOCK)

    def test_statistics(self):
        uri = self.begin()
        self.open(uri, 1)
        self.assertEqual(self.lease("offer", "disk", "b"), (0, "", ""))
        new = self.open(uri, 2, B)
        code, output, errors = self.run_gmblock("stats", self.control)
        self.assertEqual(code, 0, errors)
        self.assertRegex(output, r"  exclusive lease: 127.0.0.2:\d+ of node a, offered to node b\n"
                                 r"  exclusive lease: 127.0.0.3:\d+ of node b, gets the lease when it writes\n")
        new.close()

        def counted():
            export, = json.loads(self.run_gmblock("stats", "--json", self.control)[1])["exports"]
            states = [holder["state"] for holder in export["lease_holders"]]
            return export["leases"], export["leases_disconnected"], states
        self.wait_for(lambda: counted() == (2, 1, ["holds", "pending"]))

    def test_a_damaged_record(self):
        self.make_file("state/leases", "{")
        code, output, errors = self.run_gmblock("serve", "--state-folder", self.path("state"), self.image)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("state/leases: the file is damaged", errors)


if __name__ == "__main__":
    os.environ["GMBLOCK_LIBRARY"] = os.path.realpath(sys.argv.pop(2))
    PYTHON = os.path.realpath(sys.argv.pop(2))
    sys.path.insert(0, PYTHON)
    import gmblock
    support.main()
