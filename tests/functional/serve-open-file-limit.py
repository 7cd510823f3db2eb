#!/usr/bin/python3
"""Without descriptors left, connections wait in the kernel and are served when others go; those that
exist are not disturbed. Nor does a client fail because the kernel passes no more of them."""
import json
import resource
import socket
import subprocess

import nbdmini
import support


class OpenFileLimit(support.Case):
    def test_waiting_connections_are_served_later(self):
        # Enough for the server itself and a few connections.
        server = self.start_unix(
            "memory:1M", "--threads", "1",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
        served = []
        waiting = []
        self.addCleanup(lambda: [client.close() for client in served + waiting])
        for _ in range(40):
            waiting.append(nbdmini.Client(server.uri))
        # Sockets are served in the order in which they connected, until one is not.
        line = server.process.stderr.readline()
        self.assertIn("Too many open files", line)
        self.assertIn("LimitNOFILE", line)
        first = waiting.pop(0)
        first.hello()
        first.go().write(0, b"alive")
        served.append(first)
        # Each one that goes makes room for one that waits: all get their turn.
        while waiting:
            client = waiting.pop(0)
            client.hello()
            self.assertEqual(client.go().read(0, 5), b"alive")
            client.close()
        self.assertEqual(first.read(0, 5), b"alive")
        self.assertEqual(server.stop()[0], 0)

    def test_the_soft_limit_is_raised(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        low = min(soft, hard, 64)
        server = self.start_unix(
            "null:1M", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard)))
        with open(f"/proc/{server.process.pid}/limits", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("Max open files"))
        self.assertEqual(line.split()[3:5], [str(hard), str(hard)])

    def serve_in_flight(self, *arguments):
        """A gmb server that may have fewer descriptors than are in flight for its user, and the
        socket that they are in."""
        sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(sender.close)
        self.addCleanup(receiver.close)
        socket.send_fds(sender, [b"x"], [2] * 253)
        server = self.start(
            "memory:1M", "--threads", "1", "--control", self.path("control"), "--listen",
            "gmb+unix:///?socket=" + self.path("g"), *arguments,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
        # pylint: disable-next=consider-using-with
        client = subprocess.Popen([support.program(), "info", server.uri], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(client.kill)
        return server, client, (sender, receiver)

    def test_descriptors_in_flight(self):
        """A client of gmb waits until there are fewer, and then is served."""
        server, client, sockets = self.serve_in_flight()

        def connecting():
            code, output, errors = self.run_gmblock("stats", "--json", self.path("control"))
            self.assertEqual(code, 0, errors)
            return json.loads(output)["counters"]["handshakes"] == 1
        self.wait_for(connecting)
        self.assertIsNone(client.poll())
        for sock in sockets:
            sock.close()
        output, errors = client.communicate()
        self.assertEqual(client.returncode, 0, errors)
        self.assertIn("1.0 MiB", output)
        self.assertEqual(server.stop()[0], 0)

    def test_descriptors_that_stay_in_flight(self):
        """The client is told why it cannot be served."""
        _, client, _ = self.serve_in_flight("--handshake-timeout", "1s")
        _, errors = client.communicate()
        self.assertNotEqual(client.returncode, 0)
        self.assertIn("RLIMIT_NOFILE", errors)


if __name__ == "__main__":
    support.main()
