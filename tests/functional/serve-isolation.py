#!/usr/bin/python3
"""No client holds up another. Each attack stands while a good client reads and a new one comes; none
of their reads may take as long as a hang."""
import contextlib
import resource
import socket
import struct
import threading

import nbdmini
import support

READS = 200
READ_BYTES = 4096
LARGE = 64 << 20
COSTLY_IN_FLIGHT = 128
OPT_EXPORT_NAME = 1
HANDSHAKES = 64  # places


def read_request(cookie, length, offset=0, command=nbdmini.CMD_READ):
    return struct.pack(">IHHQQI", nbdmini.REQUEST_MAGIC, 0, command, cookie, offset, length)


def connect(uri, name=b"", option=None):
    """A connection in transmission with simple replies, without a word more than needed."""
    if option is None:
        sock = nbdmini.connect_socket(uri)
    else:
        host, port = uri.split("/")[2].split(":")
        sock = socket.socket()
        sock.setsockopt(*option)
        sock.settimeout(nbdmini.TIMEOUT_S)
        sock.connect((host, int(port)))
    sock.sendall(struct.pack(">IQII", 3, nbdmini.IHAVEOPT, OPT_EXPORT_NAME, len(name)) + name)
    got = b""
    while len(got) < 28:
        piece = sock.recv(28 - len(got))
        if not piece:
            raise ConnectionError("the server has closed")
        got += piece
    return sock


class Flood(threading.Thread):
    """A connection that always has so many requests of one kind in flight, and takes the replies."""

    def __init__(self, uri, command, length):
        super().__init__()
        self.command = command
        self.length = length
        self.client = open_with_status(uri)
        self.answers = 0
        self.error = None
        self.stopping = False
        for _ in range(COSTLY_IN_FLIGHT):
            self.send()
        self.start()

    def send(self):
        self.client.send_request(self.command, 1, 0, self.length)

    def run(self):
        try:
            while not self.stopping:
                take_answer(self.client, self.command)
                self.answers += 1
                self.send()
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def end(self):
        self.stopping = True
        self.join()
        self.client.close()


def take_answer(client, command):
    """Waits for the answer to the next request: chunks, or a simple reply where that is all."""
    if command != nbdmini.CMD_BLOCK_STATUS:
        assert client.reply() == (1, 0)
        return
    done = False
    while not done:
        chunk = client.chunk()
        assert not chunk.error, chunk
        done = chunk.done


def open_with_status(uri):
    """A client with structured replies that may ask for block status."""
    client = nbdmini.Client(uri)
    client.hello()
    client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
    client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
    query = b"base:allocation"
    client.send_option(nbdmini.OPT_SET_META_CONTEXT,
                       struct.pack(">III", 0, 1, len(query)) + query)
    client.option_replies(nbdmini.OPT_SET_META_CONTEXT)
    return client.go()


class Isolation(support.Case):
    def setUp(self):
        super().setUp()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
        self.attackers = []
        self.addCleanup(lambda: [sock.close() for sock in self.attackers])

    def serve(self, *arguments, uri_count=1):
        return self.start(*arguments, "--listen", "nbd://127.0.0.1:0", uri_count=uri_count)

    def good_client(self, uri, name=b""):
        client = nbdmini.open_export(uri, name)
        self.addCleanup(client.close)
        return client

    def attack(self, uri, count, send, name=b"", option=None):
        for _ in range(count):
            sock = connect(uri, name, option)
            self.attackers.append(sock)
            sock.sendall(send)

    def check_served(self, uri, good, name=b""):
        """The good client reads, a newcomer is served, and so is a larger read."""
        for i in range(READS):
            self.assertEqual(len(good.read(i * READ_BYTES, READ_BYTES)), READ_BYTES)
        newcomer = self.good_client(uri, name)
        for i in range(READS):
            self.assertEqual(len(newcomer.read(i * READ_BYTES, READ_BYTES)), READ_BYTES)
        self.assertEqual(len(newcomer.read(0, 256 << 10)), 256 << 10)
        newcomer.write(0, bytes(16 << 10))
        newcomer.close()

    def test_peers_that_do_not_receive(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        requests = b"".join(read_request(i, LARGE) for i in range(128))
        self.attack(server.uri, 24, requests)
        self.check_served(server.uri, good)

    def test_many_peers_that_do_not_receive(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        # With segments as large as the loopback's the kernel takes megabytes for each of them; when
        # its memory for TCP is used up it resets connections of other programs.
        self.attack(server.uri, 900, read_request(1, LARGE), option=(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400))
        self.check_served(server.uri, good)

    def test_peers_that_receive_a_drop_now_and_then(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        requests = b"".join(read_request(i, LARGE) for i in range(128))
        self.attack(server.uri, 32, requests, option=(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
        stop = threading.Event()

        def drip():
            while not stop.wait(0.5):
                for sock in self.attackers:
                    sock.recv(1024)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            self.check_served(server.uri, good)
        finally:
            stop.set()
            thread.join()

    def test_headers_without_their_payload(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        self.attack(server.uri, 900, read_request(1, LARGE, command=nbdmini.CMD_WRITE))
        self.check_served(server.uri, good)

    def test_payloads_that_begin_and_never_end(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        self.attack(server.uri, 900,
                    read_request(1, LARGE, command=nbdmini.CMD_WRITE) + bytes(100 << 10))
        self.check_served(server.uri, good)

    def make_fragmented(self):
        path = self.path("fragmented")
        with open(path, "wb") as file:
            for offset in range(0, 32 << 20, 8192):
                file.seek(offset)
                file.write(bytes(4096))
            file.truncate(256 << 20)
        return path

    def check_flood(self, command, length):
        """Floods of four connections; also one request of their kind is answered in its turn."""
        server = self.serve(self.make_fragmented())
        good = self.good_client(server.uri)
        floods = []
        try:
            for _ in range(4):
                floods.append(Flood(server.uri, command, length))
            self.check_served(server.uri, good)
            asker = open_with_status(server.uri)
            self.addCleanup(asker.close)
            for _ in range(4):
                asker.send_request(command, 1, 0, length)
                take_answer(asker, command)
            # A connection that breaks with all it has asked for leaves nothing in the way.
            for _ in range(20):
                leaver = open_with_status(server.uri)
                for _ in range(COSTLY_IN_FLIGHT):
                    leaver.send_request(command, 1, 0, length)
                leaver.close()
            self.check_served(server.uri, good)
        finally:
            for flood in floods:
                flood.end()
        for flood in floods:
            self.assertIsNone(flood.error)
            self.assertGreater(flood.answers, 0)
        self.assertEqual(server.stop()[0], 0)

    def test_floods_of_block_status(self):
        self.check_flood(nbdmini.CMD_BLOCK_STATUS, 256 << 20)

    def test_floods_of_cache_hints(self):
        self.check_flood(nbdmini.CMD_CACHE, 64 << 20)

    def test_floods_of_zeroes(self):
        self.check_flood(nbdmini.CMD_WRITE_ZEROES, 256 << 20)

    def flood(self, uri):
        """Silent connections, several times as many as there are places for handshakes. The server
        has accepted each: it greets it, or closes it."""
        for _ in range(4 * HANDSHAKES):
            sock = nbdmini.connect_socket(uri, "127.0.0.1")
            self.attackers.append(sock)
            with contextlib.suppress(ConnectionError):
                sock.recv(1)

    def test_slow_handshakes_in_a_flood(self):
        """All succeed: of another address without a word, of the same one after the first word."""
        server = self.serve("memory:16M", "--max-connections", str(8 * HANDSHAKES),
                            "--max-connections-per-peer", str(8 * HANDSHAKES), "--threads", "2",
                            "--handshake-timeout", "10min")
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(nbdmini.Client(server.uri, source="127.0.0.2"))
                    for _ in range(HANDSHAKES // 8)]
            wordy = [stack.enter_context(nbdmini.Client(server.uri, source="127.0.0.1"))
                     for _ in range(HANDSHAKES // 8)]
            for client in wordy:
                client.hello()
            self.flood(server.uri)
            for client in slow:
                client.hello()
            self.flood(server.uri)
            for client in slow + wordy:
                client.list()
            self.flood(server.uri)
            for client in slow + wordy:
                self.assertEqual(client.go().size, 16 << 20)
                self.assertEqual(client.read(0, 512), bytes(512))

    def test_a_disk_that_hangs(self):
        server = self.serve("--export", "bad=memory:16M,delay=read:1000s", "--export",
                            "good=memory:16M", uri_count=2)
        uri = server.uri.rsplit("/", 1)[0]
        good = self.good_client(uri, b"good")
        requests = b"".join(read_request(i, READ_BYTES) for i in range(128))
        self.attack(uri, 40, requests, b"bad")
        self.check_served(uri, good, b"good")
        # A client that gives up and comes again, and again.
        for _ in range(40):
            sock = connect(uri, b"bad")
            sock.sendall(requests)
            sock.close()
        self.check_served(uri, good, b"good")


if __name__ == "__main__":
    support.main()
