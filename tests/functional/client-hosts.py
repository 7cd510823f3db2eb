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
import sys

import relay
import support
import tls_tool

BYTES = 4 << 20
BLOCK = 4096


class Base(support.Case):
    SCHEME = "nbd"

    def setUp(self):
        super().setUp()
        self.events = []
        self.image = self.path("image")
        self.content = bytearray(random.Random(5).randbytes(BYTES))
        with open(self.image, "wb") as file:
            file.write(self.content)
        self.queue = gmblock.Queue()
        self.addCleanup(self.queue.destroy)

    def serve(self, name, *arguments, scheme=None):
        """A server on a free port; it has an export "spare", so that it can be started without the disk."""
        server = self.start("--export", "spare=memory:1M", *arguments, "--control", self.path(name + ".control"),
                            "--export-folder", self.folder,
                            "--listen", f"{scheme or self.SCHEME}://127.0.0.1:0")
        server.name = name
        server.host = server.uri.split("//")[1].split("/")[0]
        return server

    def with_disk(self, name, *keys, **options):
        return self.serve(name, "--export", ",".join([f"disk={self.image}", *keys]), **options)

    def control(self, server, *arguments):
        code, _, errors = self.run_gmblock(*arguments, "--server", self.path(server.name + ".control"))
        self.assertEqual(code, 0, errors)

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

    def behind_relay(self, server):
        """The relay of a server, which looks like a host of its own."""
        made = relay.Relay(int(server.host.rpartition(":")[2]))
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
        client = self.open(first, second, reconnect_timeout_ms=300)
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
        client = self.open(first, second, lease=gmblock.LEASE_EXCLUSIVE)
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


class HostsGmb(HostsNbd):
    SCHEME = "gmb"


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
