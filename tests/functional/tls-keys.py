#!/usr/bin/python3
"""New keys while 64 requests are in flight: our server with clients of GnuTLS and OpenSSL, and our
client with such servers. They change their key after each 1st, 2nd or nth record that they send, and
may ask us for ours. What is read and written is compared.

    tls-keys.py GMBLOCK LIBRARY_DRIVER
"""
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import zlib

import fake_export
import nbdmini
import support
import tls_peers
import tls_tool
from fake_server import STARTTLS, FakeServer

DRIVER = ""
PKI = ""
REQUESTS = 64
# As many as a second may have.
UPDATES = 8
# More in all than the buffers of a Unix socket take: the server has most of it still to send.
READ_BYTES = 100001
WRITE_BYTES = 3001
# A part of one request to write, and of one reply: keys change within.
RECORD_BYTES = 1000
URI_FILES = 1 << 4  # GMB_OPEN_URI_FILES


def setUpModule():
    global PKI
    folder = tempfile.mkdtemp(prefix="gmblock-pki-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    PKI = os.path.join(folder, "pki")
    tls_tool.both(tls_tool.Authority(os.path.join(folder, "authority"), "Example CA"), PKI)


def ways():
    """Who the other side is, after how many records its key changes, and whether it asks for ours."""
    for peer in (tls_peers.GnuTls, tls_peers.OpenSsl):
        for every in (1, 2, 7):
            for ask in (False, True):
                yield peer, every, ask


class Case(support.Case):
    def check_updates(self, peer, ask):
        """All that were planned were made, and the other side has changed keys if it was asked to."""
        self.assertEqual(peer.updates_left, 0)
        if ask:
            self.assertIn(peer.updates_received, range(1, UPDATES + 1))
        else:
            self.assertEqual(peer.updates_received, 0)


class Server(Case):
    def connect(self, uri, peer):
        client = nbdmini.Client(uri.replace("nbds", "nbd", 1))
        self.addCleanup(client.close)
        client.hello()
        client.send_option(STARTTLS)
        client.option_replies(STARTTLS)
        client.sock = peer(client.sock)
        return client.go()

    def read_all(self, client, content, every, ask):
        """No reply is taken before the keys have changed."""
        client.sock.change_keys(UPDATES, every, ask)
        for i in range(REQUESTS):
            client.send_request(nbdmini.CMD_READ, i, i * READ_BYTES, READ_BYTES)
        self.assertEqual(client.sock.updates_left, 0)
        for _ in range(REQUESTS):
            cookie, error = client.reply()
            self.assertEqual(error, 0)
            at = cookie * READ_BYTES
            self.assertTrue(client.receive(READ_BYTES) == content[at:at + READ_BYTES], cookie)
        self.check_updates(client.sock, ask)

    def write_all(self, client, content, every, ask):
        client.sock.change_keys(UPDATES, every, ask, RECORD_BYTES)
        for i in range(REQUESTS):
            at = i * WRITE_BYTES
            client.send_request(nbdmini.CMD_WRITE, i, at, WRITE_BYTES,
                                content[at:at + WRITE_BYTES])
        self.assertEqual({client.reply() for _ in range(REQUESTS)},
                         {(i, 0) for i in range(REQUESTS)})
        self.check_updates(client.sock, ask)

    def check_server(self, address):
        content = random.Random(3).randbytes(REQUESTS * READ_BYTES)
        image = self.make_file("image", content)
        server = self.start(image, "--tls=require", "--tls-certificates", PKI, "--listen", address)
        for peer, every, ask in ways():
            with self.subTest(peer=peer.__name__, every=every, ask=ask):
                with self.connect(server.uri, peer) as client:
                    self.read_all(client, content, every, ask)
                data = random.Random(every).randbytes(REQUESTS * WRITE_BYTES)
                with self.connect(server.uri, peer) as client:
                    self.write_all(client, data, every, ask)
                with open(image, "rb") as file:
                    self.assertTrue(file.read(len(data)) == data)
                content = data + content[len(data):]
        self.assertEqual(server.stop(), (0, ""))

    def test_on_a_unix_socket(self):
        self.check_server(self.socket_uri())

    def test_over_tcp(self):
        self.check_server("nbd://127.0.0.1:0")


class Client(Case):
    """The driver of the library, with a server that answers none of 64 requests before it has all."""

    def serve(self, dialogue, peer, every, ask):
        dialogue.greet()
        dialogue.serve(STARTTLS)
        dialogue.conn = tls = peer(dialogue.conn, PKI)
        try:
            for reply in fake_export.opening(fake_export.EXTENDED_STYLE):
                dialogue.option()
                dialogue.send(reply)
            export = fake_export.Export(dialogue, fake_export.EXTENDED_STYLE)
            requests = [export.request(fake_export.READ) for _ in range(REQUESTS)]
            random.Random(every).shuffle(requests)
            tls.change_keys(UPDATES, every, ask, RECORD_BYTES)
            for request in requests:
                export.send(export.honest(request))
            for _ in range(REQUESTS):
                request = export.request(fake_export.WRITE)
                wanted = bytes(at % 251 for at in range(request.offset, request.offset + WRITE_BYTES))
                self.assertTrue(request.data == wanted, request.offset)
                export.send(export.honest(request))
            self.check_updates(tls, ask)
            export.request()  # DISC
        finally:
            tls.close()

    def drive(self, uri):
        """64 reads, then 64 writes."""
        offsets = [i * WRITE_BYTES for i in range(REQUESTS)]
        lines = [f"open a {uri} flags={URI_FILES} depth={REQUESTS}"]
        for operation in ("read", "write"):
            lines += [f"{operation} a {at} {WRITE_BYTES} 0" for at in offsets] + ["wait"]
        lines += ["stats a", "close a"]
        done = subprocess.run([DRIVER], input="\n".join(lines) + "\n", capture_output=True, text=True,
                              timeout=support.WAIT_SECONDS, check=False)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertRegex(done.stdout, "stats a 0 0 ")
        answers = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("done ")]
        answers = {int(number): (operation, result, answer)
                   for _, _, number, operation, result, answer, *_ in answers}
        wanted = [("read", "0", str(zlib.crc32(fake_export.content(at, WRITE_BYTES))))
                  for at in offsets] + [("write", "0", "-")] * REQUESTS
        self.assertEqual(answers, dict(enumerate(wanted)))

    def check_client(self, uri, listener):
        for peer, every, ask in ways():
            with self.subTest(peer=peer.__name__, every=every, ask=ask):
                with FakeServer(lambda dialogue: self.serve(dialogue, peer, every, ask),
                                listener()) as server:
                    self.drive(f"{uri(server)}tls-certificates={PKI}")
                self.assertEqual(server.failures, [])

    def test_on_a_unix_socket(self):
        self.check_client(
            lambda server: server.uri().replace("nbd", "nbds", 1) + "&tls-hostname=localhost&",
            lambda: None)

    def test_over_tcp(self):
        self.check_client(
            lambda server: "nbds://127.0.0.1:%d/?" % server.listener.getsockname()[1],
            lambda: socket.create_server(("127.0.0.1", 0)))


if __name__ == "__main__":
    DRIVER = sys.argv.pop(2)
    support.main()
