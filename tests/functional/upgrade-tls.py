#!/usr/bin/python3
"""Connections with TLS over upgrades of the server. Where the kernel makes the records they go on, with
the keys that come after those of now; where the server makes them they end in order.

    upgrade-tls.py GMBLOCK
"""
import ctypes
from ctypes import byref, c_char_p, c_uint, c_void_p
import json
import os
import re
import shutil
import signal
import ssl
import struct
import subprocess
import tempfile
import unittest

import nbdmini
import support
import tls_peers
import tls_tool
from fake_server import STARTTLS

TLS = ""
ACCESS = ["--access", "cert-cn=host-a rights=rw", "--access", "psk=alice rights=rw"]


def setUpModule():
    global TLS
    TLS = tempfile.mkdtemp(prefix="gmblock-pki-")
    unittest.addModuleCleanup(shutil.rmtree, TLS)
    for name in ("ours", "others"):
        tls_tool.both(tls_tool.Authority(os.path.join(TLS, name + "-authority"), "Example CA"),
                      os.path.join(TLS, name))
    tls_tool.write_psk(os.path.join(TLS, "alice.psk"), tls_tool.PSK)
    tls_tool.write_psk(os.path.join(TLS, "other-alice.psk"), tls_tool.OTHER_PSK)
    tls_tool.write_psk(os.path.join(TLS, "bob.psk"), {"bob": tls_tool.PSK["bob"]})


def file(name):
    return os.path.join(TLS, name)


def has_kernel_tls():
    with open("/proc/sys/net/ipv4/tcp_available_ulp", encoding="ascii") as ulp:
        return "tls" in ulp.read().split()


def can_rekey():
    """Since Linux 6.14, of which the statistics tell."""
    with open("/proc/net/tls_stat", encoding="ascii") as counters:
        return "TlsTxRekeyOk" in counters.read()


class Psk(tls_peers.GnuTls):
    """alice."""

    CREDENTIALS_PSK, KEY_HEX = 4, 1

    class Datum(ctypes.Structure):
        _fields_ = [("data", c_char_p), ("size", c_uint)]

    def call(self, name, *arguments):
        result = super().call(name, *arguments)
        if name == "gnutls_set_default_priority":
            key = tls_tool.PSK["alice"].encode()
            self.psk = c_void_p()
            super().call("gnutls_psk_allocate_client_credentials", byref(self.psk))
            super().call("gnutls_psk_set_client_credentials", self.psk, b"alice",
                         byref(self.Datum(key, len(key))), self.KEY_HEX)
            super().call("gnutls_credentials_set", self.session, self.CREDENTIALS_PSK, self.psk)
            super().call("gnutls_priority_set_direct", self.session,
                         b"NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK", None)
        return result


def certificate(version):
    """Python's TLS, with the certificate of host-a."""
    def wrap(sock):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(file("ours/client-cert.pem"), file("ours/client-key.pem"))
        context.minimum_version = context.maximum_version = version
        return context.wrap_socket(sock)
    return wrap


class Upgrade(support.Case):
    def setUp(self):
        super().setUp()
        self.disk = self.make_file("disk", bytes(1 << 20))
        self.children = []

    def arguments(self, uri, *arguments):
        return ["--export", f"={self.disk}", "--listen", uri, "--control", self.control,
                "--tls", "require", *arguments]

    def serve(self, *arguments):
        self.control = self.path(f"control{len(self.children)}")
        server = self.start(*self.arguments("nbd://127.0.0.1:0", *arguments))
        # First, as they have the standard error of the server, too.
        self.addCleanup(self.kill_children)
        self.port = server.uri.rsplit(":", 1)[1].strip("/")
        return server.uri

    def kill_children(self):
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def upgrade(self, *arguments):
        """How many connections were passed, and ended. arguments: of another configuration."""
        command = []
        if arguments:
            command = ["--", support.program(), "serve",
                       *self.arguments(f"nbd://127.0.0.1:{self.port}", *arguments)]
        code, output, errors = self.run_gmblock("upgrade", self.control, *command)
        self.assertEqual((code, errors), (0, ""))
        found = re.match(r"process (\d+) .* passed to it: (\d+), ended: (\d+);", output)
        self.children.append(int(found[1]))
        return int(found[2]), int(found[3])

    def connect(self, uri, peer):
        client = nbdmini.Client(uri.replace("nbds", "nbd", 1))
        self.addCleanup(client.close)
        client.hello()
        client.send_option(STARTTLS)
        client.option_replies(STARTTLS)
        client.sock = peer(client.sock)
        return client.go()

    def counters(self):
        code, output, _ = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0)
        return json.loads(output)["counters"]

    def check_goes_on(self, client, at):
        data = os.urandom(3000)
        client.write(at, data)
        self.assertEqual(client.read(at, len(data)), data)

    def check_ends(self, client):
        with self.assertRaises((OSError, AssertionError)):
            client.read(0, 512)

    def identified(self):
        uri = self.serve("--tls-records", "kernel", "--tls-verify-peer", "--tls-certificates",
                         file("ours"), "--tls-psk", file("alice.psk"), *ACCESS)
        peers = [certificate(ssl.TLSVersion.TLSv1_2), certificate(ssl.TLSVersion.TLSv1_3), Psk]
        clients = [self.connect(uri, peer) for peer in peers]
        for at, client in enumerate(clients):
            self.check_goes_on(client, at * 4096)
        return clients

    def ask(self, *arguments):
        """Status, output and errors of an upgrade that is not to happen."""
        return self.run_gmblock("upgrade", "--server", self.control, *arguments)

    def check_refused_as(self, text, *arguments):
        code, output, errors = self.ask("--all-or-nothing", *arguments)
        self.assertEqual((code, output), (1, ""))
        self.assertIn(f"connections would be closed ({text}); close them first", errors)

    def test_told_before(self):
        """--dry-run says which connections would end, --all-or-nothing ends none; all are served on."""
        gmb = f"gmb+unix:///?socket={self.path('gmb')}"
        self.control = self.path("control")
        server = self.start("--export", f"={self.disk}", "--listen", "nbd://127.0.0.1:0", "--listen", gmb,
                            "--control", self.control, "--tls", "on", "--tls-records", "user",
                            "--tls-certificates", file("ours"), uri_count=2)
        self.addCleanup(self.kill_children)
        told = f"process {server.process.pid} can be replaced; connections that would be passed: %d, ended: %d\n"
        self.assertEqual(self.ask("--dry-run"), (0, told % (0, 0), ""))
        plain = nbdmini.open_export(server.uri)
        self.addCleanup(plain.close)
        self.assertEqual(self.ask("--dry-run", "--all-or-nothing"), (0, told % (1, 0), ""))

        others = [self.connect(server.uri, tls_peers.GnuTls) for _ in range(2)]
        with subprocess.Popen([support.program(), "bench", "--seconds", "600", "--rate", "requests=10",
                               "--connections", "3", gmb], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL) as bench:
            self.addCleanup(bench.kill)
            waiting = nbdmini.Client(server.uri)
            self.addCleanup(waiting.close)
            ends = "TLS not handled by the kernel: 2, gmb: 3"
            self.wait_for(lambda: self.ask("--dry-run") == (
                0, told % (1, 5) + f"would end: {ends}\n"
                "connections that have not chosen an export, and would end unless they choose one in time: 1\n", ""))
            self.check_refused_as(ends, "--dry-run")
            self.check_refused_as(ends)
            for client in [plain, *others]:
                self.check_goes_on(client, 0)
            self.assertIsNone(bench.poll())
            bench.kill()
        for client in others:
            client.sock.close()
        self.wait_for(lambda: self.counters()["connections"] == 2)
        self.check_refused_as("no export chosen yet: 1")  # when it has had its second
        waiting.hello()
        waiting.go()
        self.check_goes_on(plain, 0)

        # What the new process does not let in would end, too.
        without = ["--", support.program(), "serve", "--export", f"={self.disk}", "--control", self.control,
                   "--listen", self.socket_uri(), "--access", "uid=4000000000 rights=rw"]
        code, _, errors = self.ask("--all-or-nothing", *without)
        self.assertEqual(code, 1)
        self.assertIn("connections that the new process does not accept would be closed: 2 ", errors)
        self.check_goes_on(waiting, 0)
        code, output, errors = self.ask("--all-or-nothing")
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, "passed to it: 2, ended: 0;")
        self.children.append(int(output.split()[1]))
        self.check_goes_on(waiting, 0)
        self.check_goes_on(plain, 0)

    def test_records_of_the_server_end_in_order(self):
        uri = self.serve("--tls-records", "user", "--tls-certificates", file("ours"))
        client = self.connect(uri, tls_peers.GnuTls)
        self.check_goes_on(client, 0)
        self.assertEqual(self.upgrade(), (0, 1))
        self.assertEqual(client.sock.recv(1), b"")  # close_notify; anything else is an error
        client = self.connect(uri, tls_peers.GnuTls)
        self.check_goes_on(client, 0)


@unittest.skipUnless(has_kernel_tls(), "this kernel has no TLS")
class KernelUpgrade(Upgrade):
    test_records_of_the_server_end_in_order = test_told_before = None

    def test_keys_go_on(self):
        """Halves of requests, of records, and keys that change before, between and after upgrades."""
        uri = self.serve("--tls-records", "kernel", "--tls-certificates", file("ours"))
        data = os.urandom(5000)
        request = struct.pack(">IHHQQI", nbdmini.REQUEST_MAGIC, 0, nbdmini.CMD_WRITE, 7, 8192,
                              len(data)) + data
        clients = [self.connect(uri, peer) for peer in (tls_peers.GnuTls, tls_peers.OpenSsl)]
        self.assertEqual(self.counters()["tls_connections_kernel"], 2)
        asked = 0
        for cut in (1, 27, 28, 29, 2000, len(request) - 1):
            for client in clients:
                if can_rekey():
                    client.sock.update_key(cut % 2 == 1)
                client.sock.sendall(request[:cut])
            asked += cut % 2
            self.assertEqual(self.upgrade(), (2, 0))
            for client in clients:
                if can_rekey():
                    client.sock.update_key(False)
                client.sock.sendall(request[cut:])
                self.assertEqual(client.reply(), (7, 0))
                self.assertEqual(client.read(8192, len(data)), data)
        counters = self.counters()
        self.assertEqual((counters["tls_connections"], counters["tls_connections_kernel"]), (2, 2))
        for client in clients:
            self.assertEqual(client.sock.updates_received, asked if can_rekey() else 0)
            client.sock.close()
        self.wait_for(lambda: self.counters()["tls_connections"] == 0)

    def test_who_they_are(self):
        """Rules of access hold, and the peer is believed by the credentials of the new process."""
        clients = self.identified()
        self.assertEqual(self.upgrade(), (3, 0))
        for at, client in enumerate(clients):
            self.check_goes_on(client, at * 4096)
        self.assertEqual(self.counters()["tls_connections_1_2"], 1)
        # Another key of alice.
        usual = ["--tls-records", "kernel", "--tls-verify-peer", "--tls-certificates"]
        self.assertEqual(self.upgrade(*usual, file("ours"), "--tls-psk", file("other-alice.psk"),
                                      *ACCESS), (3, 0))
        self.check_ends(clients[2])
        for client in clients[:2]:
            self.check_goes_on(client, 0)
        # No rule for host-a.
        self.assertEqual(self.upgrade(*usual, file("ours"), "--tls-psk", file("alice.psk"),
                                      *ACCESS[2:])[0], 2)
        for client in clients[:2]:
            self.check_ends(client)

    def test_refused_by_the_new_process(self):
        usual = ["--tls-verify-peer", "--tls-psk", file("alice.psk"), *ACCESS]
        for rest, remain in ((["--tls-certificates", file("others")], [2]),
                             (["--tls-certificates", file("ours"), "--tls-records", "user"], []),
                             (["--tls-psk", file("bob.psk"), "--tls-certificates", file("ours")],
                              [0, 1])):
            with self.subTest(rest):
                clients = self.identified()
                records = [] if "--tls-records" in rest else ["--tls-records", "kernel"]
                self.assertEqual(self.upgrade(*usual, *records, *rest), (3, 0))
                for number, client in enumerate(clients):
                    if number in remain:
                        self.check_goes_on(client, 0)
                    else:
                        self.check_ends(client)
                self.kill_children()


if __name__ == "__main__":
    support.main()
