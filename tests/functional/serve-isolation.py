#!/usr/bin/python3
"""No client holds up another. Each attack stands while a good client reads and a new one comes; none
of their reads may take as long as a hang."""
import resource
import socket
import struct
import threading

import nbdmini
import support

HANG_S = 5
READS = 200
READ_BYTES = 4096
LARGE = 64 << 20
OPT_EXPORT_NAME = 1


def read_request(cookie, length, offset=0, command=nbdmini.CMD_READ):
    return struct.pack(">IHHQQI", nbdmini.REQUEST_MAGIC, 0, command, cookie, offset, length)


def connect(uri, name=b"", receive_bytes=None):
    """A connection in transmission with simple replies, without a word more than needed."""
    if receive_bytes is None:
        sock = nbdmini.connect_socket(uri)
    else:
        host, port = uri.split("/")[2].split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
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
        client.sock.settimeout(HANG_S)
        return client

    def attack(self, uri, count, send, name=b"", receive_bytes=None):
        for _ in range(count):
            sock = connect(uri, name, receive_bytes)
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
        self.attack(server.uri, 900, read_request(1, LARGE))
        self.check_served(server.uri, good)

    def test_peers_that_receive_a_drop_now_and_then(self):
        server = self.serve("memory:128M")
        good = self.good_client(server.uri)
        requests = b"".join(read_request(i, LARGE) for i in range(128))
        self.attack(server.uri, 32, requests, receive_bytes=4096)
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
