#!/usr/bin/python3
"""gmb:// over TCP: what listens where, the tools, and limits on connections; and over libfabric's tcp.

    gmb-network.py GMBLOCK
"""
import json
import os
import re
import socket
import subprocess
import unittest
from urllib.parse import urlsplit

import support

CONTENT_BYTES = 32 << 20


class Network(support.Case):
    def serve(self, *arguments, listen="gmb://127.0.0.1:0", **options):
        return self.start("--listen", listen, *arguments, **options)

    def test_the_tools_and_a_stop(self):
        self.check_tools("")

    @unittest.skipUnless(support.has_libfabric(), "no libfabric")
    def test_the_tools_over_libfabric(self):
        self.check_tools("?provider=ofi-tcp")

    def check_tools(self, provider):
        content = os.urandom(CONTENT_BYTES)
        image = self.make_file("image", content)
        server = self.serve("--export", "disk=" + image, "--export", "other=memory:1M",
                            listen="gmb://127.0.0.1:0" + provider, uri_count=2)
        self.assertTrue(re.fullmatch(r"gmb://127\.0\.0\.1:[1-9][0-9]*/disk" + re.escape(provider),
                                     server.uri))
        status, output, _ = self.run_gmblock("info", "--json", server.uri)
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(output)["exports"][0]["size"], CONTENT_BYTES)
        status, output, _ = self.run_gmblock("list", "--uri", server.uri.replace("/disk", ""))
        self.assertEqual((status, output.split()), (0, server.uris))
        target = self.path("target")
        self.assertEqual(self.run_gmblock("copy", "--verify", server.uri, target)[0], 0)
        with open(target, "rb") as file:
            self.assertEqual(file.read(), content)
        changed = self.make_file("changed", content[::-1])
        self.assertEqual(self.run_gmblock("copy", "--verify", changed, server.uri)[0], 0)
        with open(image, "rb") as file:
            self.assertEqual(file.read(), content[::-1])
        for pattern in (["randread"], ["randwrite", "--force"]):
            status, output, _ = self.run_gmblock(
                "bench", "--rw", *pattern, "--requests", "1000", "--json", server.uri)
            self.assertEqual(status, 0)
        with open(f"/proc/{server.process.pid}/maps", encoding="utf-8") as file:
            self.assertEqual("libfabric" in file.read(), provider != "")
        self.assertEqual(server.stop(), (0, ""))
        status, _, errors = self.run_gmblock("info", server.uri)
        self.assertEqual(status, 1)
        self.assertIn("Connection refused; check that the server is running", errors)

    def test_the_port_of_something_else(self):
        server = self.serve("memory:1M", listen="nbd://127.0.0.1:0")
        self.check_refused(["info", server.uri.replace("nbd:", "gmb:")], 1,
                           "uses another protocol")
        self.assertEqual(server.stop()[0], 0)

    @unittest.skipUnless(support.has_libfabric(), "no libfabric")
    def test_providers_that_differ(self):
        ours, theirs = "gmb://127.0.0.1:0", "gmb://127.0.0.1:0?provider=ofi-tcp"
        server = self.serve("memory:1M", "--listen", theirs, listen=ours, uri_count=2)
        self.check_refused(["info", server.uris[0] + "?provider=ofi-tcp"], 1, "another protocol")
        self.check_refused(["info", server.uris[1].split("?")[0]], 1, "another protocol")
        for uri in server.uris:
            self.assertEqual(self.run_gmblock("info", uri)[0], 0, uri)
        self.assertEqual(server.stop()[0], 0)

    def test_it_listens_beside_others(self):
        server = self.serve("--listen", "nbd://127.0.0.1:0", "--listen", "gmb://[::1]:0",
                            "--listen", "gmb://localhost:0?provider=tcp", "--threads", "3",
                            "memory:1M", uri_count=4)
        schemes = [re.match("[a-z]+://[^:]*:", uri.replace("[::1]", "6"))[0]
                   for uri in server.uris]
        self.assertEqual(schemes, ["gmb://127.0.0.1:", "nbd://127.0.0.1:", "gmb://6:",
                                   "gmb://localhost:"])
        for uri in server.uris:
            self.assertEqual(self.run_gmblock("info", uri)[0], 0, uri)
        self.assertEqual(server.stop(), (0, ""))

    def test_a_network_has_to_be_trusted(self):
        for listen in ("gmb://0.0.0.0:0", "gmb://[::]:0",
                       "gmb://0.0.0.0:0?insecure-network=no"):
            self.check_refused(["serve", "--listen", listen, "memory:1M"], 1,
                               "is not encrypted", "insecure-network=yes")
        server = self.serve("memory:1M", listen="gmb://0.0.0.0:0?insecure-network=yes")
        self.assertTrue(server.uri.startswith("gmb://127.0.0.1:"), server.uri)
        self.assertEqual(self.run_gmblock("info", server.uri)[0], 0)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("open to the whole network", errors)

    def test_addresses_that_cannot_be_used(self):
        self.check_refused(["serve", "--listen", "gmb://127.0.0.1:0?colour=red", "memory:1M"], 2,
                           "unknown parameter 'colour'")
        self.check_refused(["serve", "--listen", "gmb://127.0.0.1?provider=udp", "memory:1M"], 2,
                           "'provider' must be tcp, verbs or ofi-tcp")
        self.check_refused(["info", "gmb://127.0.0.1/?provider=udp"], 2,
                           "'provider' must be tcp, verbs or ofi-tcp")
        server = self.serve("memory:1M")
        self.check_refused(["serve", "--listen", server.uri, "memory:1M"], 1,
                           "cannot listen on " + server.uri, "port is in use")
        self.check_refused(["serve", "--listen", "gmb://192.0.2.1:0?insecure-network=yes",
                            "memory:1M"], 1, "does not have the address")
        self.check_refused(["info", "gmb://no-such-host.invalid"], 1, "the host is unknown")
        self.assertEqual(server.stop(), (0, ""))

    def test_idle_connections_do_not_lock_others_out(self):
        """They have the time of a handshake, which is long; the limits are those of NBD."""
        server = self.serve("--handshake-timeout", "1h", "--threads", "1", "memory:1M",
                            "--listen", "push://127.0.0.1:0", uri_count=2)
        for uri in server.uris:
            port = urlsplit(uri).port
            for _ in range(200):  # more than there are places for handshakes
                idle = socket.create_connection(("127.0.0.1", port))
                self.addCleanup(idle.close)
        status, _, errors = self.run_gmblock("info", server.uri)
        self.assertEqual((status, errors), (0, ""))
        push = server.uris[1].rstrip("/") + "/"
        status, _, errors = self.run_gmblock("push", push, push + "none")
        self.assertEqual(status, 1)
        self.assertIn("no such export", errors)
        self.assertEqual(server.stop()[0], 0)

    def test_one_peer_has_its_limit(self):
        server = self.serve("--max-connections", "8", "--max-connections-per-peer", "3",
                            "--handshake-timeout", "1h", "memory:1M")
        port = urlsplit(server.uri).port
        idle = [socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
                for _ in range(20)]
        for sock in idle:
            self.addCleanup(sock.close)
        status, _, errors = self.run_gmblock("info", server.uri)
        self.assertEqual((status, errors), (0, ""))
        code, errors = server.stop()
        self.assertEqual(code, 0)
        self.assertIn("limit of 3 connections per address", errors)

    def test_connections_are_counted(self):
        server = self.serve("--max-connections", "4", "--max-connections-per-peer", "2",
                            "memory:1M")
        held = []

        def hold():
            """Two clients; one that was refused because of info() is replaced."""
            held[:] = [client for client in held if client.poll() is None]
            while len(held) < 2:
                held.append(subprocess.Popen(
                    [support.program(), "bench", "--seconds", "3600", server.uri],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                self.addCleanup(held[-1].wait)
                self.addCleanup(held[-1].kill)

        def info():
            return self.run_gmblock("info", "--timeout", "5s", server.uri)

        def is_full():
            hold()
            status, _, errors = info()
            return status == 1 and "connection limit of the server is reached" in errors

        self.wait_for(is_full)
        for client in held:
            client.kill()
        self.wait_for(lambda: info()[0] == 0)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("limit of 2 connections per address", errors)


if __name__ == "__main__":
    support.main()
