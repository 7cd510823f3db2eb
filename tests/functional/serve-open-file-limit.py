#!/usr/bin/python3
"""Without descriptors left, connections wait in the kernel and are served when others go; those that
exist are not disturbed."""
import resource

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


if __name__ == "__main__":
    support.main()
