#!/usr/bin/python3
"""Sockets handed over by the service manager are served, and then nothing listens on the default
address."""
import os
import shutil
import socket
import subprocess
import sys

import nbdmini
import support

# Becomes the server in the same process, as the service manager does: LISTEN_PID must be its own.
LAUNCHER = """
import fcntl, os, sys
count = int(sys.argv[1])
fds = [int(fd) for fd in sys.argv[2:2 + count]]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
os.closerange(3 + count, 100)
os.environ.update(LISTEN_FDS=str(count), LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


class SocketActivation(support.Case):
    def launch(self, sockets, *arguments):
        fds = [sock.fileno() for sock in sockets]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(len(fds)), *map(str, fds), support.program(),
             "serve", *arguments],
            pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def listen_unix(self, name, backlog=8):
        sock = socket.socket(socket.AF_UNIX)
        self.addCleanup(sock.close)
        sock.bind(self.path(name))
        sock.listen(backlog)
        return sock

    def test_tcp_and_unix_sockets(self):
        tcp = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(tcp.close)
        # Service managers hand sockets over non-blocking.
        tcp.setblocking(False)
        process = self.launch([tcp, self.listen_unix("a")], "null:1M")
        uris = [process.stdout.readline().rstrip("\n") for _ in range(2)]
        self.assertEqual(uris, [f"nbd://127.0.0.1:{tcp.getsockname()[1]}", self.socket_uri("a")])
        for uri in uris:
            with nbdmini.open_export(uri) as client:
                self.assertEqual(client.size, 1 << 20)
        process.terminate()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(process.stdout.read(), "", "no default address was printed")
        # The socket file belongs to the service manager.
        self.assertEqual(os.listdir(self.folder), ["a"])

    def test_added_to_the_addresses_asked_for(self):
        process = self.launch([self.listen_unix("a")], "null:1M", "--listen", self.socket_uri("b"))
        self.assertEqual([process.stdout.readline().rstrip("\n") for _ in range(2)],
                         [self.socket_uri("a"), self.socket_uri("b")])

    def test_a_connection_made_before_the_start_is_served(self):
        with self.listen_unix("a") as listener, socket.socket(socket.AF_UNIX) as early:
            early.settimeout(nbdmini.TIMEOUT_S)
            early.connect(self.path("a"))
            self.launch([listener], "null:1M")
            self.assertEqual(early.recv(8, socket.MSG_WAITALL), b"NBDMAGIC")

    def test_a_wildcard_address_is_printed_usable(self):
        for family, host, shown in ((socket.AF_INET, "0.0.0.0", "127.0.0.1"),
                                    (socket.AF_INET6, "::", "[::1]")):
            with socket.create_server((host, 0), family=family) as tcp:
                process = self.launch([tcp], "null:1M")
                self.assertEqual(process.stdout.readline(),
                                 f"nbd://{shown}:{tcp.getsockname()[1]}\n")
                process.terminate()
                self.assertEqual(process.wait(), 0)

    def test_what_cannot_be_served_is_refused(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram, \
                socket.socket(socket.AF_INET) as silent, open("/dev/null", "rb") as file:
            datagram.bind(("127.0.0.1", 0))
            silent.bind(("127.0.0.1", 0))
            for wrong in (datagram, silent, file):
                process = self.launch([self.listen_unix(f"s{wrong.fileno()}"), wrong], "null:1M")
                output, errors = process.communicate()
                self.assertEqual((process.returncode, output), (1, ""), errors)
                self.assertIn("descriptor 4", errors)
                self.assertIn("not a listening stream socket", errors)

    @support.unittest.skipUnless(shutil.which("systemd-socket-activate"),
                                 "systemd-socket-activate is not installed")
    def test_with_the_real_thing(self):
        process = subprocess.Popen(
            ["systemd-socket-activate", "--listen", self.path("a"), support.program(), "serve",
             "memory:1M"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        for line in process.stderr:
            if line.startswith("Listening on"):
                break
        with nbdmini.open_export(self.socket_uri("a")) as client:
            self.assertEqual(client.size, 1 << 20)


if __name__ == "__main__":
    support.main()
