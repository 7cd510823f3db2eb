#!/usr/bin/python3
"""URIs that name several servers of one disk: the first one that answers is used, and the client
continues at another one when it is gone, if that has the same disk.

    client-hosts.py GMBLOCK LIBRARY PYTHON
"""
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import ports
import relay
import support
import tls_tool

BYTES = 4 << 20
BLOCK = 4096


class Full(relay.Relay):
    """A host that accepts no further connections at some time, but serves those that it has."""

    full = False

    def passes(self, client):
        if self.full:
            client.close()
        return not self.full


# A client with a lease, which writes when a file exists: FOLDER-OF-MODULE URI FILE MILLISECONDS.
HOLDER = """
import os
import sys
sys.path.insert(0, sys.argv[1])
import gmblock
queue = gmblock.Queue()
client = queue.open(sys.argv[2], lease=gmblock.LEASE_EXCLUSIVE, lease_ms=int(sys.argv[4]), connections=1,
                    request_timeout_ms=5000, connect_timeout_ms=2700, event=lambda event, text: print(event, text, flush=True))
client.pwrite(b"first", 0)
print("ready", flush=True)
while not os.path.exists(sys.argv[3]):
    queue.wait(50)
client.pwrite(b"late!", 0)
"""


class SlowRelay(relay.Relay):
    """The message with which the first client asks for its lease arrives only when the test allows it. The server does not notice
    the end of this connection."""

    def __init__(self, server, message):
        self.message = message
        self.allowed = threading.Event()
        super().__init__(server)

    def seen(self, link, direction, data):
        if link.number == 0 and direction == relay.UP and self.message in data:
            self.allowed.wait()
        return super().seen(link, direction, data)

    def ended(self, link, direction):
        if link.number != 0:
            super().ended(link, direction)

    def close(self):
        self.allowed.set()
        super().close()


class Base(support.Case):
    SCHEME = "nbd"

    def setUp(self):
        super().setUp()
        self.events = []
        self.story = ""  # of a client that is another process
        self.image = self.path("image")
        self.content = bytearray(random.Random(5).randbytes(BYTES))
        with open(self.image, "wb") as file:
            file.write(self.content)
        self.queue = gmblock.Queue()
        self.addCleanup(self.queue.destroy)

    def serve(self, name, *arguments, scheme=None):
        """A server on a port that stays free after its end; it has an export "spare", so that it can be started without the
        disk."""
        server = self.start("--export", "spare=memory:1M", *arguments, "--control", self.path(name + ".control"),
                            "--export-folder", self.folder,
                            "--listen", f"{scheme or self.SCHEME}://127.0.0.1:{ports.free()}")
        server.name = name
        server.host = server.uri.split("//")[1].split("/")[0]
        return server

    def with_disk(self, name, *keys, **options):
        return self.serve(name, "--export", ",".join([f"disk={self.image}", *keys]), **options)

    def control(self, server, *arguments):
        code, _, errors = self.run_gmblock(*arguments, "--server", self.path(server.name + ".control"))
        self.assertEqual(code, 0, errors)

    def leases(self, server):
        """The leases of a server, none of which is only kept for a client that might return."""
        code, output, errors = self.run_gmblock("lease", "list", "--json", "--server", self.path(server.name + ".control"))
        self.assertEqual(code, 0, errors)
        leases = json.loads(output)
        self.assertEqual([lease for lease in leases if lease["connections"] == 0], [])
        return leases

    def give_disk(self, server, path=None):
        """What a cluster manager does when the other server is dead."""
        arguments = ["export", "add", "disk", path or self.image, "--server", self.path(server.name + ".control")]
        # The kernel ends the operations of a killed server somewhat later.
        self.wait_for(lambda: self.run_gmblock(*arguments)[0] == 0)

    def uri(self, *hosts, query=""):
        names = ",".join(host if isinstance(host, str) else host.host for host in hosts)
        return f"{self.SCHEME}://{names}/disk{query}"

    def open(self, *hosts, query="", **options):
        client = self.queue.open(self.uri(*hosts, query=query), event=lambda event, text: self.events.append((event, text)),
                                 **options)
        self.addCleanup(client.close)
        return client

    def texts(self, name):
        return [text for event, text in self.events if event == name]

    def until_text(self, name, part):
        def has_come():
            self.queue.wait(50)
            return any(part in text for text in self.texts(name))
        self.wait_for(has_come)

    def behind_relay(self, server, kind=relay.Relay, *arguments):
        """The relay of a server, which looks like a host of its own."""
        made = kind(int(server.host.rpartition(":")[2]), *arguments)
        made.host = f"127.0.0.1:{made.place}"
        self.addCleanup(made.close)
        return made

    @contextlib.contextmanager
    def deaf(self, full=False):
        """A host that refuses connections or, if it is full, does not answer."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            if full:
                listener.listen(0)
                for _ in range(2):
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(listener.getsockname())
            yield f"127.0.0.1:{listener.getsockname()[1]}"


class HostsNbd(Base):
    ASKS = b"IHAVEOPT\0\0\0\7"  # GO

    # --- the servers change

    def write_all(self, client, done, count, seed):
        """Submits writes of random blocks; each block once, because their order is not known."""
        rest = random.Random(seed)
        for block in rest.sample(range(BYTES // BLOCK), count):
            data = rest.randbytes(BLOCK)
            self.content[block * BLOCK:(block + 1) * BLOCK] = data
            client.submit(client.new_write(data, block * BLOCK), done.append)

    def check_change(self, connections):
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, connections=connections)
        self.assertEqual(client.server(), first.host)
        done = []
        self.write_all(client, done, 100, 1)
        while len(done) < 100:
            self.queue.wait(-1)  # answered, and not flushed
        self.write_all(client, done, 300, 2)
        while len(done) < 150:
            self.queue.wait(-1)
        first.kill()
        client.submit(client.new(gmblock.FLUSH), done.append)
        self.give_disk(second)
        while len(done) < 401:
            self.queue.wait(-1)
        self.assertEqual({request.result for request in done}, {0})
        self.assertEqual(client.server(), second.host)
        self.assertEqual(client.pread(BYTES, 0), self.content)
        self.assertEqual(self.texts("reconnected"), [f"{self.uri(first, second)} (now at {second.host})"])
        client.flush()
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(), self.content)

    def test_the_server_is_killed(self):
        self.check_change(1)

    def test_the_server_of_several_connections_is_killed(self):
        self.check_change(4)

    def test_to_and_fro(self):
        servers = [self.with_disk("a"), self.serve("b"), self.serve("c")]
        client = self.open(*servers)
        for i in range(5):
            self.control(servers[i % 3], "export", "remove", "disk")
            self.give_disk(servers[(i + 1) % 3])
            client.pwrite(b"%4d" % i, 4 * i)
            self.assertEqual(client.server(), servers[(i + 1) % 3].host)
        self.assertEqual(client.pread(20, 0), b"   0   1   2   3   4")
        self.assertNotIn("gave-up", [event for event, _ in self.events])

    def test_a_frozen_server(self):
        """Nothing tells that it is gone but its silence, and only the connection with a request can notice."""
        first, second = self.with_disk("a", "readonly"), self.with_disk("b", "readonly")
        client = self.open(first, second, connections=4, request_timeout_ms=300)
        first.freeze()
        self.addCleanup(first.signal, signal.SIGCONT)
        self.assertEqual(client.pread(5000, 10), self.content[10:5010])
        self.assertEqual(client.server(), second.host)

    def test_a_silent_server_is_reported(self):
        """Once, with the time limit that applies, while a request waits and while the export is opened."""
        server = self.with_disk("a", "readonly")
        client = self.open(server, connections=4)
        server.freeze()
        self.addCleanup(server.signal, signal.SIGCONT)
        done = []
        for place in range(8):
            client.submit(client.new_read(10, place * BLOCK), done.append)
        self.until_text("silent", "")
        text = f"{server.host}: no response for 3 s; waiting for up to {{}} s in total"
        self.assertEqual(self.texts("silent"), [text.format(30)])
        for command in ["bench", "--threads", "2", "--connections", "2"], ["info"], ["list"]:
            code, _, errors = self.run_gmblock(*command, "--timeout", "4s", self.uri(server))
            self.assertEqual(code, 1)
            self.assertEqual(errors.splitlines()[0], "gmblock: warning: " + text.format(4))
            self.assertEqual(len(errors.splitlines()), 2, errors)
        server.signal(signal.SIGCONT)
        while len(done) < 8:
            self.queue.wait(-1)
        self.assertEqual({request.result for request in done}, {0})

    def test_a_copy_ends_if_all_hosts_refuse(self):
        """It does not try for ten minutes, and reports each reason once."""
        first, second = self.with_disk("a"), self.serve("b")
        target = self.path("target")
        with subprocess.Popen([support.program(), "copy", "--connections", "1", "--rate", "100K",
                               self.uri(first, second), target],
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            self.wait_for(lambda: os.path.exists(target) and os.path.getsize(target) > 0)
            self.control(first, "export", "remove", "disk", "--now")
            errors = process.stderr.read()
            self.assertEqual(process.wait(), 1, errors)
        refused = "{}: .*no export named 'disk'.*"
        self.assertRegex(errors, "gmblock copy: the source: .*gave up after .*" +
                         refused.format(first.host) + "; " + refused.format(second.host))
        self.assertIn("holds a partial copy", errors)
        self.assertLessEqual(errors.count("warning: "), 4, errors)

    def test_a_dead_host_and_connections_that_cannot_notice(self):
        """One connection is lost and finds nobody at its host, and the other ones have nothing to send."""
        first, second = self.with_disk("a"), self.serve("b")
        host = self.behind_relay(first)
        client = self.open(host, second, connections=3)
        client.pwrite(b"here", 0)
        for number in range(3):
            host.hold(number, relay.UP, relay.DOWN)
        first.kill()
        host.refuse()
        host.cut(0)
        self.until_text("lost", host.host)
        self.give_disk(second)
        self.until_text("reconnected", second.host)
        self.assertEqual(client.pread(4, 0), b"here")

    def test_a_host_that_accepts_no_more_connections(self):
        """The connections that it has go on, unless another host has the disk."""
        first, second = self.with_disk("a"), self.serve("b")
        host = self.behind_relay(first)
        client = self.open(host, second, connections=2)
        host.refuse()
        host.cut(0)
        self.until_text("lost", host.host)
        for i in range(200):
            client.pwrite(b"%4d" % i, 4 * i)
        self.assertEqual((client.server(), client.info().connections), (host.host, 1))
        self.control(first, "export", "remove", "disk")
        self.give_disk(second)
        self.until_text("reconnected", second.host)
        self.assertEqual(client.pread(800, 0), b"".join(b"%4d" % i for i in range(200)))

    def refused_at(self, client, first, second, part):
        """A read waits while no host has the disk; the reason names both hosts."""
        request = client.new_read(10, 0)
        self.until_text("lost", "")
        client.submit(request)
        self.until_text("retrying", part)
        text = next(text for text in self.texts("retrying") if part in text)
        self.assertIn(first.host, text)
        self.assertIn(second.host, text)
        self.assertTrue(client.cancel(request))

    def test_another_disk(self):
        other = self.make_file("other", bytes(BYTES))
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second)
        done = []
        first.kill()
        client.submit(client.new_write(b"x" * BLOCK, 0), done.append)
        self.give_disk(second, other)
        self.refused_at(client, first, second, "different disks under the name \"disk\"")
        self.assertEqual([request for request in done if request.operation == gmblock.WRITE], [])
        self.control(second, "export", "remove", "disk")
        with open(other, "rb") as file:
            self.assertEqual(file.read(), bytes(BYTES))
        # The same disk is accepted there, even later.
        self.give_disk(second)
        while not done:
            self.queue.wait(-1)
        self.assertEqual(done[0].result, 0)
        self.assertEqual(client.pread(BLOCK, 0), b"x" * BLOCK)

    def test_a_copy_is_another_disk(self):
        """Also a hard link is the same disk, and what has its path afterwards is not."""
        link = self.path("link")
        os.link(self.image, link)
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second)
        first.kill()
        shutil.copy(self.image, self.path("copy"))
        os.rename(self.path("copy"), self.image)
        self.give_disk(second)
        self.refused_at(client, first, second, "different disks")
        self.control(second, "export", "remove", "disk")
        self.give_disk(second, link)
        self.until_text("reconnected", second.host)

    def test_an_unknown_disk(self):
        first, second = self.with_disk("a"), self.serve("b", "--export", f"disk=memory:{BYTES}")
        client = self.open(first, second)
        first.kill()
        self.refused_at(client, first, second, f"{second.host} does not report the identity of its disk")

    def test_a_smaller_disk(self):
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second)
        first.kill()
        os.truncate(self.image, BYTES // 2)
        self.give_disk(second)
        self.refused_at(client, first, second, f"the disk has {BYTES // 2} bytes at {second.host}, but {BYTES} bytes")

    def test_it_gives_up_with_the_reasons_of_all(self):
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, reconnect_timeout_ms=3000)
        first.kill()
        with self.assertRaises(gmblock.Error) as caught:
            client.pread(10, 0)
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)
        text, = self.texts("gave-up")
        self.assertRegex(text, f"{first.host}: .*; {second.host}: .*disk")

    # --- the first server

    def test_hosts_that_do_not_answer(self):
        server = self.with_disk("a")
        with self.deaf() as refuses, self.deaf(full=True) as hangs:
            self.assertEqual(self.open(refuses, hangs, server).server(), server.host)
            self.assertEqual(self.events, [])
            code, output, errors = self.run_gmblock("info", "--json", self.uri(refuses, server))
            self.assertEqual(code, 0, errors)
            self.assertEqual(json.loads(output)["host"], server.host)
            code, output, errors = self.run_gmblock("info", self.uri(refuses, hangs, server))
            self.assertEqual(code, 0, errors)
            self.assertRegex(output, f"\nHost in use +{server.host}\n")
            code, output, errors = self.run_gmblock("list", self.uri(refuses, server))
            self.assertEqual(code, 0, errors)
            self.assertEqual(output, "spare\ndisk\n")
            code, output, errors = self.run_gmblock("bench", "--rw", "read", "--requests", "1", self.uri(refuses, server))
            self.assertEqual(code, 0, errors)
            self.assertRegex(output, f"\nHost in use +{server.host}\n")
            target = self.path("target")
            code, _, errors = self.run_gmblock("copy", self.uri(refuses, server), target)
            self.assertEqual(code, 0, errors)
            with open(target, "rb") as file:
                self.assertEqual(file.read(), self.content)

    def test_a_server_without_the_export(self):
        first, second = self.serve("a"), self.with_disk("b")
        self.assertEqual(self.open(first, second).server(), second.host)

    def test_no_host_answers(self):
        with self.deaf() as one, self.deaf() as other:
            with self.assertRaises(gmblock.Error) as caught:
                self.open(one, other)
            self.assertEqual(caught.exception.errno, errno.ECONNREFUSED)
            self.assertRegex(str(caught.exception), f"{one}: cannot connect.*; {other}: cannot connect")
            for command in ("info", "list"):
                code, _, errors = self.run_gmblock(command, self.uri(one, other))
                self.assertEqual(code, 1)
                self.assertRegex(errors, f"{one}: cannot connect.*; {other}: cannot connect")

    def test_an_idle_connection_is_checked(self):
        """By the kernel: otherwise the client would not notice for long that the host was switched off."""
        server = self.with_disk("a")
        self.open(server, connections=1)
        port = int(server.host.rpartition(":")[2])

        def has_timer():
            with open("/proc/self/net/tcp", encoding="ascii") as file:
                sockets = [line.split() for line in file]
            # to the server, established, with the timer of keep-alive probes
            return any(entry[2].endswith(f":{port:04X}") and entry[3] == "01" and entry[5].startswith("02:")
                       for entry in sockets)
        self.wait_for(has_timer)

    def test_where_one_host_is_meant(self):
        self.check_refused(["serve", "memory:1M", "--listen", f"{self.SCHEME}://127.0.0.1:0,127.0.0.2:0"], 2,
                           "a listening URI has one host")

    # --- fences and leases

    def with_nodes(self, name, *arguments):
        """A server that knows the clients of the test as a node."""
        os.mkdir(self.path(name + ".state"))
        config = self.make_file(name + ".conf", "nodes: [{name: me, address: 127.0.0.1}]\n"
                                                "access: [{node: me, rights: rw}]\n")
        return self.serve(name, "--config", config, "--state-folder", self.path(name + ".state"), *arguments)

    def fence(self, server):
        code, _, errors = self.run_gmblock("fence", "me", "--server", self.path(server.name + ".control"))
        self.assertEqual(code, 0, errors)

    def test_fenced_at_one_host(self):
        """Another host might know the client as another node."""
        first, second = self.with_nodes("a"), self.with_disk("b")
        self.fence(first)
        client = self.open(first, second, reconnect_timeout_ms=600000)
        self.assertEqual(client.server(), second.host)
        self.control(second, "export", "remove", "disk")
        self.until_text("gave-up", first.host)
        self.assertIn("fenced: ", self.texts("gave-up")[0])

    def test_fenced_at_all_hosts(self):
        servers = self.with_nodes("a", "--export", f"disk={self.image}"), self.with_nodes("b")
        client = self.open(*servers, reconnect_timeout_ms=600000)
        for server in servers:
            self.fence(server)
        self.until_text("gave-up", "fenced")
        with self.assertRaises(gmblock.Error) as caught:
            self.open(*servers)
        for server in servers:
            self.assertRegex(str(caught.exception), f"{server.host}: .*fenced: ")

    def test_a_lease_is_taken_along(self):
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=3600000)
        client.pwrite(b"lease", 0)
        first.kill()
        self.give_disk(second)
        self.assertEqual(client.pread(5, 0), b"lease")
        with self.assertRaises(gmblock.Error) as caught:
            self.open(second, lease=gmblock.LEASE_EXCLUSIVE)
        self.assertIn("leased: ", str(caught.exception))

    def test_a_lease_that_somebody_else_has(self):
        self.check_stolen_lease(gives_back=False)

    def test_a_lease_that_somebody_else_has_had(self):
        self.check_stolen_lease(gives_back=True)

    def check_stolen_lease(self, gives_back):
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, lease=gmblock.LEASE_EXCLUSIVE)
        first.kill()
        self.queue.wait(0)
        self.give_disk(second)
        queue = gmblock.Queue()
        thief = queue.open(self.uri(second), lease=gmblock.LEASE_EXCLUSIVE)
        thief.pwrite(b"other", 0)
        if gives_back:
            thief.close()
        with self.assertRaises(gmblock.Error):
            client.pread(5, 0)
        self.assertIn("leased: ", self.texts("gave-up")[0])
        if not gives_back:
            thief.close()
        queue.destroy()

    def wait_for_seconds(self, seconds):
        """The time of a lease passes. The client looks at its clocks meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.queue.wait(50)

    def move_late(self, first, second, host):
        """The client asks the host of the second server, but this server gets the disk and the question after the time of the lease."""
        first.kill()
        self.until_text("lost", first.host)
        while not host.links:
            self.queue.wait(10)
        self.wait_for_seconds(1)
        self.give_disk(second)
        host.release(0)

    def test_an_answer_that_comes_too_late(self):
        """The next server accepts a client whose time has ended since it has asked. The client gives the lease back."""
        first, second = self.with_disk("a"), self.serve("b")
        host = self.behind_relay(second)
        host.hold(0, relay.UP)
        self.open(first, host, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=1000, connect_timeout_ms=60000, connections=1)
        self.move_late(first, second, host)
        self.until_text("gave-up", "leased: this client has lost its lease")
        self.wait_for(lambda: self.leases(second) == [])

    def test_an_answer_that_is_lost(self):
        """The next server has accepted a client whose time has ended, and the client does not know this when it asks again."""
        first, second = self.with_disk("a"), self.serve("b", "--handshake-timeout", "1h")
        host = self.behind_relay(second, SlowRelay, self.ASKS)
        host.hold(0, relay.UP)
        host.hold(1, relay.UP)
        self.open(first, host, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=1000, connect_timeout_ms=8000, connections=1)
        self.move_late(first, second, host)
        while len(host.links) < 2:  # the first attempt has ended
            self.queue.wait(50)
        answers = host.links[0].passed[relay.DOWN]
        host.allowed.set()
        self.wait_for(lambda: host.links[0].passed[relay.DOWN] > answers)
        host.release(1)
        self.until_text("retrying", "only the last server can confirm the lease")
        self.assertEqual(self.texts("reconnected"), [])

    def test_two_addresses_of_one_server(self):
        """After a long outage, the client continues although the other address has answered first."""
        def serve(place):
            server = self.start("--export", f"disk={self.image}", "--state-folder", self.path("state"),
                                "--listen", f"{self.SCHEME}://{place}")
            server.host = server.uri.split("//")[1].split("/")[0]
            return server
        os.mkdir(self.path("state"))
        server = serve(f"127.0.0.1:{ports.free()}")
        home, other = self.behind_relay(server, Full), self.behind_relay(server)
        client = self.open(home, other, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=5000, connect_timeout_ms=2000, connections=1)
        home.full = True
        server.kill()
        self.until_text("lost", home.host)
        self.wait_for_seconds(5)
        serve(server.host)
        self.until_text("retrying", "only the last server can confirm the lease")
        home.full = False
        self.until_text("reconnected", home.host)
        self.assertEqual(client.pread(BLOCK, 0), self.content[:BLOCK])

    def test_a_client_that_does_not_reconnect(self):
        """Its connections survive a long time without calls, because it never goes to another server."""
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=1000, connect_timeout_ms=1000,
                           flags=gmblock.OPEN_NO_RECONNECT)
        client.pwrite(b"here", 0)
        time.sleep(1.2)
        self.queue.wait(50)
        self.assertEqual(client.pread(4, 0), b"here")
        self.assertEqual(self.events, [])

    def test_a_client_that_waits_longer_than_its_server(self):
        """The time of the lease begins at the server after 30 s without progress, 60 s before the client notices the loss."""
        first, second = self.with_disk("a"), self.serve("b")
        client = self.open(first, second, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=60000, request_timeout_ms=90000)
        first.kill()
        self.give_disk(second)
        with self.assertRaises(gmblock.Error):
            client.pread(5, 0)
        self.assertIn("leased: this client has lost its lease", self.texts("gave-up")[0])

    def test_the_home_is_asked_first_after_a_stop(self):
        """Only the home can confirm the lease, and another host would cost time."""
        server = self.with_disk("a")
        with self.deaf() as other:
            client = self.open(server, other, lease=gmblock.LEASE_EXCLUSIVE, lease_ms=4000, connect_timeout_ms=1000)
            time.sleep(2.2)
            self.until_text("reconnected", server.host)
            self.assertEqual(client.pread(4, 0), self.content[:4])
        self.assertIn("the client was stopped or paused", self.texts("lost")[0])
        self.assertEqual(self.texts("retrying"), [])

    @contextlib.contextmanager
    def stopped_client(self, lease_ms, silent=False):
        """A client is stopped and cut off; silent: without a sign to the client, as if its host was switched off. Afterwards the
        disk moves, and the client continues; yields the first server."""
        first, second = self.with_disk("a"), self.serve("b")
        host = self.behind_relay(first)
        child = subprocess.Popen([sys.executable, "-B", "-c", HOLDER, os.path.dirname(gmblock.__file__),
                                  self.uri(host, second), self.path("continue"), str(lease_ms)], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, encoding="utf-8")
        self.addCleanup(child.kill)
        self.assertIn("ready\n", iter(child.stdout.readline, ""))
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        if silent:
            host.refuse()
            host.hold(host.links[-1].number, relay.UP, relay.DOWN)
            host.links[-1].ends[relay.UP].shutdown(socket.SHUT_RDWR)
        else:
            host.cut_all()
        yield first
        self.control(first, "export", "remove", "disk")
        self.give_disk(second)
        self.make_file("continue", b"")
        child.send_signal(signal.SIGCONT)
        self.story = child.communicate()[0]

    def test_a_stopped_client(self):
        self.check_stopped(silent=False)

    def test_a_stopped_client_that_does_not_notice_its_loss(self):
        self.check_stopped(silent=True)

    def check_stopped(self, silent):
        """Its lease has expired at its server, and another client has had it there. The next server does not know this."""
        queue = gmblock.Queue()
        self.addCleanup(queue.destroy)
        others = []

        def has_lease():
            with contextlib.suppress(gmblock.Error):
                others.append(queue.open(self.uri(first), lease=gmblock.LEASE_EXCLUSIVE))
            return others

        with self.stopped_client(3000, silent) as first:
            self.wait_for(has_lease)
            others[0].pwrite(b"other", 0)
            others[0].close()
        self.assertRegex(self.story, "gave-up .*leased: this client has lost its lease")
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(5), b"other")

    def test_a_client_that_was_stopped_for_less_than_its_lease(self):
        with self.stopped_client(3600000):
            pass
        self.assertNotIn("gave-up", self.story)
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(5), b"late!")


class HostsGmb(HostsNbd):
    SCHEME = "gmb"
    ASKS = b",moves"  # LEASE


class HostsRefuse(Base):
    """Over NBD, where each connection is one link of the relay."""

    def test_one_connection_is_refused_for_longer_than_the_lease(self):
        """The time of the lease begins with the last answer, because the server has served the client until then."""
        first, second = self.with_disk("a", "readonly"), self.with_disk("b", "readonly")
        host = self.behind_relay(first, Full)
        client = self.open(host, second, lease=gmblock.LEASE_SHARED, lease_ms=3000, connections=2)
        while client.info().connections < 2:
            self.queue.wait(50)
        host.hold(1, relay.DOWN)
        done = []
        for _ in range(2):
            client.submit(client.new_read(BLOCK, 0), done.append)
        while not done:
            self.queue.wait(-1)
        host.full = True
        host.cut(1)
        self.until_text("lost", host.host)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            self.assertEqual(client.pread(BLOCK, 0), self.content[:BLOCK])
            self.queue.wait(20)
        self.assertEqual(len(done), 1)
        first.kill()
        self.assertEqual(client.pread(BLOCK, 0), self.content[:BLOCK])
        self.assertEqual(client.server(), second.host)
        self.assertEqual(self.texts("gave-up"), [])


class HostsTls(Base):
    """Each host proves its own name."""

    SCHEME = "nbds"

    def setUp(self):
        super().setUp()
        self.pki = self.path("pki")
        authority = tls_tool.Authority(os.path.join(self.pki, "authority"), "CA")
        for name, subject in (("by-name", 'dns_name = "localhost"'), ("by-address", 'ip_address = "127.0.0.1"')):
            authority.give(os.path.join(self.pki, name), "server", ['cn = "server"', subject])

    def serve(self, name, *arguments, **options):
        return super().serve(name, *arguments, "--tls=require", "--tls-certificates",
                             os.path.join(self.pki, options.pop("names")), scheme="nbd")

    def open(self, *hosts, **options):
        return super().open(*hosts, flags=gmblock.OPEN_URI_FILES, query=f"?tls-certificates={self.pki}/by-name",
                            **options)

    @staticmethod
    def by_name(server):
        return server.host.replace("127.0.0.1", "localhost")

    def test_the_name_of_the_host_in_use_is_checked(self):
        first, second = self.with_disk("a", names="by-name"), self.serve("b", names="by-address")
        client = self.open(self.by_name(first), second)
        client.pwrite(b"tls", 0)
        first.kill()
        self.give_disk(second)
        self.assertEqual(client.pread(3, 0), b"tls")
        self.assertEqual(client.server(), second.host)

    def test_a_name_of_another_host(self):
        first, second = self.with_disk("a", names="by-name"), self.serve("b", names="by-name")
        client = self.open(self.by_name(first), second)
        first.kill()
        self.give_disk(second)
        request = client.new_read(3, 0)
        self.until_text("lost", "")
        client.submit(request)
        self.until_text("retrying", "set tls-hostname to the name in its certificate")
        self.assertTrue(client.cancel(request))


if __name__ == "__main__":
    os.environ["GMBLOCK_LIBRARY"] = os.path.realpath(sys.argv.pop(2))
    sys.path.insert(0, os.path.realpath(sys.argv.pop(2)))
    import gmblock
    support.main()
