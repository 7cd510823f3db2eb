#!/usr/bin/python3
"""libgmblock when connections break: the requests in flight are done all the same, once each, or
fail in time. Through the Python example, which is tried with it.

    client-reconnect.py GMBLOCK LIBRARY PYTHON
"""
import contextlib
import errno
import os
import random
import socket
import sys
import time

import relay
import support

BYTES = 8 << 20


class Proxy(relay.Relay):
    """For each connection in turn, limits says after how many bytes of the server's what happens; later connections
    are left alone."""

    def __init__(self, path, target, *limits):
        self.limits = dict(enumerate(limits))  # (bytes, "cut", "freeze" or "half-close")
        super().__init__(target, path)

    def passed(self, number):
        return self.links[number].passed[relay.DOWN]

    def room(self, link, direction):
        limit, _ = self.limits.get(link.number, (None, ""))
        if direction == relay.UP or limit is None:
            return relay.PIECE
        return min(limit - link.passed[relay.DOWN], relay.PIECE)

    def ended(self, link, direction):
        what = "cut" if self.room(link, direction) > 0 else self.limits[link.number][1]
        if what == "half-close":
            with contextlib.suppress(OSError):  # it has ended
                link.ends[0].shutdown(socket.SHUT_WR)
        elif what == "cut":
            link.cut()


class Reconnect(support.Case):
    def setUp(self):
        super().setUp()
        self.events = []
        self.image = self.path("image")
        self.content = bytearray(random.Random(3).randbytes(BYTES))
        with open(self.image, "wb") as file:
            file.write(self.content)
        self.queue = gmblock.Queue()
        self.addCleanup(self.queue.destroy)

    def serve(self, *keys, name="s"):
        export = "=" + ",".join([self.image, *keys])
        return self.start("--export", export, "--listen", self.socket_uri(name))

    def open(self, name="s", **options):
        client = self.queue.open(
            self.socket_uri(name), connections=options.pop("connections", 1),
            event=lambda event, text: self.events.append((event, text)), **options)
        self.addCleanup(client.close)
        return client

    def names(self):
        """What has happened; how many attempts fail until then is chance."""
        return [event for event, _ in self.events if event != "retrying"]

    def proxy(self, *limits):
        proxy = Proxy(self.path("p"), self.path("s"), *limits)
        self.addCleanup(proxy.close)
        return proxy

    def until_event(self, name):
        while name not in self.names():
            self.queue.wait(50)

    def submit(self, client, requests):
        """A list that the results come into, in the order in which they are done."""
        done = []
        for request in requests:
            client.submit(request, done.append)
        return done

    def wait_for(self, done, count):
        while len(done) < count:
            self.queue.wait(-1)
        self.queue.wait(0)
        self.assertEqual(len(done), count)

    def reads(self, client, count=40, length=5000):
        return [client.new_read(length, 100 * i) for i in range(count)]

    def check_reads(self, done):
        for request in done:
            self.assertEqual(request.result, 0)
            self.assertEqual(request.buffer.raw[:request.length],
                             self.content[request.offset:request.offset + request.length])

    # --- servers that come back

    def test_an_idle_client_comes_back(self):
        server = self.serve()
        client = self.open()
        self.assertEqual(client.pread(100, 50), self.content[50:150])
        server.kill()
        self.until_event("lost")
        self.serve()
        self.assertEqual(client.pread(100, 60), self.content[60:160])
        self.assertEqual(self.names(), ["lost", "reconnected"])
        self.assertEqual(client.stats().connections_lost, 1)

    def test_requests_in_flight_are_sent_again(self):
        server = self.serve("delay=read:1000s")
        client = self.open()
        client.pwrite(b"before" * 100, 0)
        self.content[:600] = b"before" * 100
        done = self.submit(client, self.reads(client))
        self.queue.wait(0)
        # The server has them: it answers a later write, and none of these.
        client.pwrite(b"x", BYTES - 1)
        self.content[BYTES - 1:] = b"x"
        self.assertEqual(done, [])
        server.kill()
        self.until_event("lost")
        self.assertEqual(done, [])
        self.serve()
        self.wait_for(done, 40)
        self.check_reads(done)
        self.assertEqual(self.names(), ["lost", "reconnected"])
        self.assertEqual(client.stats().commands_replayed, 40)

    def test_requests_made_while_it_is_away(self):
        server = self.serve()
        client = self.open()
        server.kill()
        self.until_event("lost")
        done = self.submit(client, self.reads(client))
        self.queue.wait(10)
        self.assertEqual(done, [])
        self.serve()
        self.wait_for(done, 40)
        self.check_reads(done)
        self.assertEqual(client.stats().commands_replayed, 0)

    def test_why_attempts_fail_is_told_once_for_each_reason(self):
        server = self.serve()
        client = self.open()
        server.kill()
        self.until_event("lost")

        def reasons():
            return [text for event, text in self.events if event == "retrying"]

        def until_reasons(count):
            while len(reasons()) < count:
                self.queue.wait(50)

        until_reasons(1)
        self.assertIn("refused", reasons()[0])
        os.unlink(self.path("s"))
        until_reasons(2)
        self.assertIn("No such file", reasons()[1])
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path("s"))
            listener.listen()
            listener.setblocking(False)
            attempts = 0
            while attempts < 4:
                self.queue.wait(50)
                with contextlib.suppress(BlockingIOError):
                    listener.accept()[0].close()
                    attempts += 1
        os.unlink(self.path("s"))
        self.assertEqual(len(reasons()), 3, reasons())
        self.serve()
        self.until_event("reconnected")

    def test_a_clean_stop_and_start(self):
        server = self.serve()
        client = self.open()
        for _ in range(3):
            done = self.submit(client, self.reads(client, 200))
            self.queue.wait(0)
            server.signal()
            while server.process.poll() is None:
                self.queue.wait(10)  # it stops when its answers are taken
            self.assertEqual(server.wait()[0], 0)
            server = self.serve()
            self.wait_for(done, 200)
            self.check_reads(done)

    def test_another_size(self):
        server = self.serve()
        client = self.open()
        server.kill()
        self.until_event("lost")
        os.truncate(self.image, BYTES // 2)
        self.serve()
        self.until_event("resized")
        self.assertEqual(client.info().bytes, BYTES // 2)
        self.assertEqual(self.names(), ["lost", "reconnected", "resized"])
        with self.assertRaises(gmblock.Error) as caught:
            client.pread(512, BYTES // 2)
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_a_disk_that_grows(self):
        """Clients that are connected learn it, and idle ones, too."""
        control = self.path("control")
        self.start("--export", f"={self.image}", "--listen", self.socket_uri("s"),
                   "--control", control, "--threads", "2")
        clients = [self.open(flags=flags, connections=connections)
                   for flags, connections in ((0, 1), (0, 4), (gmblock.OPEN_NO_EXTENDED, 2))]
        for size in (BYTES + 4096, 5 << 30):
            self.events.clear()
            os.truncate(self.image, size)
            code, _, errors = self.run_gmblock("export", "set", "", "size=auto", "--server", control)
            self.assertEqual(code, 0, errors)
            while len(self.events) < len(clients):
                self.queue.wait(50)
            for client in clients:
                self.assertEqual(client.info().bytes, size)
                client.pwrite(b"new", size - 3)
                self.assertEqual(client.pread(10, size - 10), bytes(7) + b"new")
            self.assertEqual(self.names(), ["resized"] * len(clients))

    # --- connections that break at any byte

    def mixed(self, client):
        """Requests of all kinds that do not touch each other's bytes, and what to check."""
        requests = self.reads(client, 6, 300)
        requests += [client.new_write(bytes([i]) * 200, 100000 + 200 * i) for i in range(4)]
        for i in range(4):
            self.content[100000 + 200 * i:100200 + 200 * i] = bytes([i]) * 200
        requests.append(client.new_status(0, BYTES))
        requests.append(client.new(gmblock.FLUSH))
        requests.append(client.new(gmblock.ZERO, 200000, 5000))
        self.content[200000:205000] = bytes(5000)
        return requests

    def broken_dialogue(self, what, flags, step, **options):
        self.serve()
        proxy = Proxy(self.path("measure"), self.path("s"))
        self.addCleanup(proxy.close)
        client = self.open("measure", flags=flags)
        greeting = proxy.passed(0)
        requests = self.mixed(client)
        self.wait_for(self.submit(client, requests), len(requests))
        whole = proxy.passed(0)
        self.assertGreater(whole, greeting + 2000)
        for at in range(greeting, whole, step):
            with self.subTest(at=at - greeting):
                self.events.clear()
                proxy = Proxy(self.path(f"p{at}"), self.path("s"), (at, what))
                self.addCleanup(proxy.close)
                client = self.open(f"p{at}", flags=flags, **options)
                requests = self.mixed(client)
                done = self.submit(client, requests)
                self.wait_for(done, len(requests))
                self.assertEqual([request.result for request in done], [0] * len(done))
                self.check_reads([one for one in done if one.operation == gmblock.READ])
                for one in done:
                    if one.operation == gmblock.STATUS:
                        self.assertEqual(gmblock.extents(one)[0][0], 0)
                self.assertEqual(client.pread(10000, 98000), self.content[98000:108000])
                self.assertEqual(client.pread(10000, 198000), self.content[198000:208000])
                # A server that a busy machine holds up is silent, too.
                times = max(1, len(self.names()) // 2) if what == "freeze" else 1
                self.assertEqual(self.names(), ["lost", "reconnected"] * times)
                client.close()

    def test_a_connection_is_cut_in_extended_replies(self):
        self.broken_dialogue("cut", 0, 97)

    def test_a_connection_is_cut_in_structured_replies(self):
        self.broken_dialogue("cut", gmblock.OPEN_NO_EXTENDED, 97)

    def test_a_connection_is_half_closed(self):
        self.broken_dialogue("half-close", 0, 301)

    def test_a_connection_falls_silent(self):
        self.broken_dialogue("freeze", 0, 701, request_timeout_ms=50)

    def test_one_of_several_connections(self):
        self.serve()
        self.proxy((None, ""), (2000, "cut"), (70000, "cut"))
        client = self.open("p", connections=4)
        self.assertEqual(client.info().connections, 4)
        done = self.submit(client, self.reads(client, 300))
        self.wait_for(done, 300)
        self.check_reads(done)
        self.assertIn("lost", self.names())
        # The others went on: it was never away.
        self.assertNotIn("reconnected", self.names())

    # --- servers that take their time

    def test_commands_slower_than_the_time_limit(self):
        """The server says that it lives; with simple replies slow commands have longer."""
        def check(factor):
            name = f"slow{factor}"
            server = self.serve(*(f"delay={kind}:{factor * 3}s" for kind in ("flush", "zero", "trim", "cache")), name=name)
            self.events.clear()
            clients = [self.open(name, flags=flags | gmblock.OPEN_NO_RECONNECT, request_timeout_ms=factor * 1200)
                       for flags in (0, gmblock.OPEN_NO_EXTENDED, gmblock.OPEN_SIMPLE)]
            done = []
            try:
                for client in clients:
                    done += [self.submit(client, [client.new(gmblock.FLUSH)])]
                    done += [self.submit(client, [client.new(kind, 4096, 8192)])
                             for kind in (gmblock.ZERO, gmblock.TRIM, gmblock.CACHE)]
                while not all(done):
                    self.queue.wait(-1)
                self.assertEqual({one[0].result for one in done}, {0})
                self.assertEqual(self.events, [])
                self.assertEqual({client.stats().commands_replayed for client in clients}, {0})
            finally:
                for client in clients:
                    client.close()
                server.kill()

        self.at_some_pace(check)

    # --- servers that do not come back

    def test_without_reconnecting(self):
        server = self.serve("delay=read:1000s")
        client = self.open(flags=gmblock.OPEN_NO_RECONNECT)
        done = self.submit(client, self.reads(client))
        self.queue.wait(0)
        client.pwrite(b"x", 0)
        server.kill()
        self.wait_for(done, 40)
        self.assertEqual({request.result for request in done}, {-errno.ENOTCONN})
        self.assertIn("read of 5000 bytes", client.explain(done[0]))
        self.assertEqual(self.names(), ["lost", "gave-up"])
        with self.assertRaises(gmblock.Error) as caught:
            client.flush()
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)

    def test_giving_up(self):
        server = self.serve("delay=read:1000s")
        client = self.open(reconnect_timeout_ms=200)
        done = self.submit(client, self.reads(client))
        self.queue.wait(0)
        client.pwrite(b"x", 0)
        server.kill()
        self.wait_for(done, 40)
        self.assertEqual({request.result for request in done}, {-errno.ENOTCONN})
        self.assertEqual(self.names(), ["lost", "gave-up"])
        self.assertIn("gave up after", self.events[-1][1])
        # It is over, also when the server is there again.
        self.serve()
        with self.assertRaises(gmblock.Error):
            client.pread(1, 0)

    def test_closing_while_it_is_away(self):
        server = self.serve()
        client = self.open(reconnect_timeout_ms=200)
        server.kill()
        self.until_event("lost")
        done = self.submit(client, self.reads(client))
        client.close()
        self.assertEqual({request.result for request in done}, {-errno.ENOTCONN})
        self.assertEqual(len(done), 40)

    def test_closing_while_it_is_silent(self):
        """An attempt to connect does not outlast the time to reconnect."""
        self.serve()
        proxy = self.proxy((None, ""), (0, "freeze"))
        client = self.open("p", reconnect_timeout_ms=200, connect_timeout_ms=60000)
        proxy.hold(0, relay.DOWN)
        done = self.submit(client, self.reads(client))
        self.queue.wait(0)
        proxy.cut(0)
        while len(proxy.links) < 2 and len(done) < 40:
            self.queue.wait(10)
        begun = time.monotonic()
        client.close()
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual({request.result for request in done}, {-errno.ENOTCONN})
        self.assertEqual(len(done), 40)

    def test_the_export_is_gone(self):
        server = self.serve()
        client = self.open(reconnect_timeout_ms=200)
        server.kill()
        self.until_event("lost")
        self.start("--export", f"other={self.image}", "--listen", self.socket_uri())
        with self.assertRaises(gmblock.Error) as caught:
            client.pread(1, 0)
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)

    def test_a_server_that_does_not_finish_the_handshake(self):
        self.serve()
        self.proxy((0, "freeze"), (30, "freeze"), (100, "cut"))
        for _ in range(2):
            with self.assertRaises(gmblock.Error) as caught:
                self.open("p", connect_timeout_ms=100)
            self.assertEqual(caught.exception.errno, errno.ETIMEDOUT)
        with self.assertRaises(gmblock.Error):
            self.open("p")
        self.assertEqual(self.open("p").pread(10, 0), self.content[:10])
        self.assertEqual(self.events, [])


if __name__ == "__main__":
    os.environ["GMBLOCK_LIBRARY"] = os.path.realpath(sys.argv.pop(2))
    sys.path.insert(0, os.path.realpath(sys.argv.pop(2)))
    import gmblock
    support.main()
