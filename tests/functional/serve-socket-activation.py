#!/usr/bin/python3
"""Sockets handed over by the service manager are served, and then nothing listens on the default
address."""
import json
import os
import shutil
import socket
import subprocess
import sys

import nbdmini
import ports
import support

# Becomes the server in the same process, as the service manager does: LISTEN_PID must be its own.
# $OVERRIDES are other values for the variables, null for none.
LAUNCHER = """
import fcntl, json, os, sys
count = int(sys.argv[1])
fds = [int(fd) for fd in sys.argv[2:2 + count]]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
os.closerange(3 + count, 100)
os.environ.update(LISTEN_FDS=str(count), LISTEN_PID=str(os.getpid()))
for name, value in json.loads(os.environ.pop("OVERRIDES", "{}")).items():
    if value is None:
        os.environ.pop(name)
    else:
        os.environ[name] = value
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


class SocketActivation(support.Case):
    def launch(self, sockets, *arguments, cwd=None, **variables):
        fds = [sock.fileno() for sock in sockets]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(len(fds)), *map(str, fds), support.program(),
             "serve", *arguments],
            pass_fds=fds, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "OVERRIDES": json.dumps(variables)})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def addresses(self, process, count=1):
        """The addresses that the server prints, or a failure with the reason if it has ended."""
        lines = [process.stdout.readline().rstrip("\n") for _ in range(count)]
        if "" in lines:
            process.kill()
            self.fail(f"the server printed {lines}: {process.communicate()[1]}")
        return lines

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
        uris = self.addresses(process, 2)
        self.assertEqual(uris, [f"nbd://127.0.0.1:{tcp.getsockname()[1]}", self.socket_uri("a")])
        for uri in uris:
            with nbdmini.open_export(uri) as client:
                self.assertEqual(client.size, 1 << 20)
        process.terminate()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(process.stdout.read(), "", "no default address was printed")
        # The socket file belongs to the service manager.
        self.assertEqual(os.listdir(self.folder), ["a"])

    def test_more_sockets_than_a_configuration_can_have(self):
        """The limits of lines in the log are by address, and some share them."""
        process = self.launch([self.listen_unix(f"s{i}") for i in range(80)], "null:1M",
                              "--max-connections", "1", "--log-level", "debug")
        self.assertEqual(self.addresses(process, 80), [self.socket_uri(f"s{i}") for i in range(80)])
        with nbdmini.open_export(self.socket_uri("s79")) as client:
            client.read(0, 512)
            with nbdmini.Client(self.socket_uri("s64")) as other:
                self.assertTrue(other.at_end())
            client.sock.sendall(bytes(28))
            self.assertTrue(client.at_end())
        process.terminate()
        errors = process.communicate()[1]
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("broke NBD rule P120", errors)
        self.assertIn("rejected: limit of", errors)

    def test_added_to_the_addresses_asked_for(self):
        process = self.launch([self.listen_unix("a")], "null:1M", "--listen", self.socket_uri("b"))
        self.assertEqual(self.addresses(process, 2), [self.socket_uri("a"), self.socket_uri("b")])

    def check_not_opened_again(self, sock, uri, *addresses):
        """The socket is served at uri, and these addresses are the same one."""
        for address in addresses:
            config = self.make_file("test.conf", f"listen: ['{address}']\n"
                                    "exports: [{name: '', path: 'null:1M'}]\n")
            for arguments in (["--config", config], ["null:1M", "--listen", address]):
                process = self.launch([sock], *arguments, cwd=self.folder)
                self.assertEqual(self.addresses(process), [uri], f"{address} beside {uri}")
                with nbdmini.open_export(uri) as client:
                    self.assertEqual(client.size, 1 << 20)
                process.terminate()
                self.assertEqual(process.communicate()[0], "", f"{address} beside {uri}")
                self.assertEqual(process.returncode, 0)

    def test_an_address_that_is_handed_over_is_not_opened_again(self):
        self.check_not_opened_again(self.listen_unix("a"), self.socket_uri("a"),
                                    self.socket_uri("a"), "nbd+unix:///?socket=a",
                                    f"nbd+unix:///?socket={self.folder}/./a")
        with socket.create_server(("127.0.0.1", 0)) as tcp:
            uri = f"nbd://127.0.0.1:{tcp.getsockname()[1]}"
            self.check_not_opened_again(tcp, uri, uri)
        with socket.create_server(("0.0.0.0", 0)) as tcp:
            port = tcp.getsockname()[1]
            self.check_not_opened_again(tcp, f"nbd://127.0.0.1:{port}", f"nbd://0.0.0.0:{port}",
                                        f"nbd://127.0.0.1:{port}", f"nbd://127.0.0.2:{port}")
        name = f"gmblock-test-{os.getpid()}-{id(self)}"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("\0" + name)
            sock.listen()
            uri = f"nbd+unix:///?socket=%00{name}"
            self.check_not_opened_again(sock, uri, uri)

    @support.unittest.skipUnless(socket.has_dualstack_ipv6(), "no IPv6")
    def test_a_socket_for_both_families_is_not_opened_again(self):
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as tcp:
            port = tcp.getsockname()[1]
            self.check_not_opened_again(tcp, f"nbd://[::1]:{port}", f"nbd://[::]:{port}",
                                        f"nbd://[::1]:{port}", f"nbd://0.0.0.0:{port}",
                                        f"nbd://127.0.0.1:{port}", f"nbd://localhost:{port}")

    def test_another_address_on_the_same_port_is_opened(self):
        # A client of a parallel test can have a port that the kernel chose, on the other address.
        port = ports.free()
        with socket.create_server(("127.0.0.1", port)) as tcp:
            process = self.launch([tcp], "null:1M", "--listen", f"nbd://127.0.0.2:{port}",
                                  "--listen", "nbd://127.0.0.1:0")
            uris = self.addresses(process, 3)
            self.assertEqual(uris[:2], [f"nbd://127.0.0.1:{port}", f"nbd://127.0.0.2:{port}"])
            self.assertRegex(uris[2], r"^nbd://127\.0\.0\.1:[1-9]\d*$")
            for uri in uris:
                with nbdmini.open_export(uri) as client:
                    self.assertEqual(client.size, 1 << 20)

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
                self.assertEqual(self.addresses(process), [f"nbd://{shown}:{tcp.getsockname()[1]}"])
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

    def check_only_served(self, sockets, uri, **variables):
        process = self.launch(sockets, "null:1M", "--listen", self.socket_uri("own"), **variables)
        self.assertEqual(self.addresses(process), [uri], variables)
        process.terminate()
        output, errors = process.communicate()
        self.assertEqual((process.returncode, output), (0, ""), f"{variables} {errors}")

    def test_sockets_of_another_process_are_left_alone(self):
        sock = self.listen_unix("a")
        for variables in ({"LISTEN_PID": str(os.getpid())}, {"LISTEN_PID": "1"},
                          {"LISTEN_PID": None}, {"LISTEN_FDS": None},
                          {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "garbage"},
                          {"LISTEN_PID": None, "LISTEN_FDS": "-1"}):
            self.check_only_served([sock], self.socket_uri("own"), **variables)

    def test_variables_that_make_no_sense_are_refused(self):
        sock = self.listen_unix("a")
        wrong = ["", "0", "-1", "1x", "x", "1 ", "0x1", "1.0", "2147483645", "2147483647",
                 "4294967297", "18446744073709551617"]
        for variables in ([{"LISTEN_FDS": value} for value in wrong] +
                          [{"LISTEN_PID": value} for value in ("", "0", "-1", "x", "1x",
                                                               "18446744073709551617")]):
            process = self.launch([sock], "null:1M", **variables)
            output, errors = process.communicate()
            self.assertEqual((process.returncode, output), (1, ""), f"{variables} {errors}")
            self.assertIn("cannot read the sockets of the service manager: Invalid argument",
                          errors, variables)

    def test_descriptors_that_are_not_open_are_refused(self):
        sock = self.listen_unix("a")
        for count in ("90", "2147483644"):
            process = self.launch([sock], "null:1M", LISTEN_FDS=count)
            output, errors = process.communicate()
            self.assertEqual((process.returncode, output), (1, ""), errors)
            self.assertIn("cannot read the sockets of the service manager: Bad file descriptor",
                          errors, count)

    def test_names_change_nothing(self):
        for names in ("nbd", "", "a:b:c", ":" * 500):
            self.check_only_served([self.listen_unix(f"n{len(names)}")],
                                   self.socket_uri(f"n{len(names)}"), LISTEN_FDNAMES=names)

    def test_what_the_server_runs_gets_neither_sockets_nor_variables(self):
        sock = self.listen_unix("a")
        for others in ({}, {"LISTEN_PID": str(os.getpid())}):
            process = self.launch(
                [sock], "null:1M", "--listen", self.socket_uri("own"), "--run",
                "env | grep ^LISTEN_ >&2; readlink /proc/self/fd/* >&2", LISTEN_FDNAMES="nbd",
                LISTEN_PIDFDID="1", **others)
            _, errors = process.communicate()
            self.assertNotIn("LISTEN_", errors, others)
            if not others:
                self.assertNotIn(f"socket:[{os.fstat(sock.fileno()).st_ino}]", errors)

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
