#!/usr/bin/python3
"""gmb+unix when either side goes: requests in flight are done all the same, once each, and what a
dead peer's operations still write is not found in memory that was given back (rules G16, G17).

    gmb-reconnect.py GMBLOCK PROGRAM
"""
import os
import signal
import subprocess
import sys

import support

PROGRAM = ""
IMAGE_BYTES = 64 << 20


class Storm:
    """The case of that name in the background: it ends with status 0 if everything it has written
    can be read."""

    def __init__(self, uri, steps):
        self.process = subprocess.Popen([PROGRAM, "storm", uri, str(steps)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begun = self.process.stdout.readline()
        if begun != "begun\n":
            raise AssertionError(self.process.communicate())

    def end(self):
        """How many connections were lost."""
        output, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise AssertionError((self.process.returncode, errors))
        return int(output.split()[0])


class Reconnect(support.Case):
    def setUp(self):
        super().setUp()
        self.image = self.path("image")
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES)

    def serve(self, *keys):
        return self.start("--listen", "gmb+unix:///?socket=" + self.path("s"),
                          "--export", "=" + ",".join([self.image, *keys]),
                          "--export", "other=memory:64M", uri_count=2)

    def check_deaths(self, count, kill, *keys):
        """The server goes count times under load."""
        server = self.serve(*keys)
        storm = Storm(server.uri, 400)
        kills = 0
        while kills < count:
            # Not before it works again: something must be in flight.
            with subprocess.Popen([PROGRAM, "placed", server.uris[1], "placed"],
                                  stderr=subprocess.DEVNULL) as placed:
                kill(server)
                placed.kill()
            kills += 1
            server = self.serve(*keys)
        lost = storm.end()
        self.assertGreaterEqual(lost, 1)

    def test_servers_that_are_killed(self):
        self.check_deaths(6, support.Server.kill)

    def test_servers_that_are_killed_with_slow_disks(self):
        self.check_deaths(3, support.Server.kill, "delay=any:5ms")

    def test_servers_that_stop(self):
        self.check_deaths(4, support.Server.stop)

    def test_a_server_outlives_killed_clients(self):
        server = self.serve("delay=any:2ms")
        steady = Storm(server.uri, 100)
        for _ in range(10):
            client = Storm(server.uris[1], 100000)
            client.process.kill()
            client.process.communicate()
        self.assertEqual(steady.end(), 0)
        self.assertEqual(server.stop()[0], 0)

    def test_a_frozen_client_harms_nobody(self):
        server = self.serve()
        frozen = Storm(server.uris[1], 100000)
        frozen.process.send_signal(signal.SIGSTOP)
        self.assertEqual(Storm(server.uri, 50).end(), 0)
        frozen.process.kill()
        frozen.process.communicate()
        self.assertEqual(server.stop()[0], 0)

    def test_memory_is_given_back(self):
        """The server's descriptors and mappings do not grow with clients that came and went."""
        server = self.serve()

        def held():
            pid = server.process.pid
            with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
                return len(os.listdir(f"/proc/{pid}/fd")), maps.read().count("memfd:")

        def client():
            self.assertEqual(subprocess.run([PROGRAM, "placed", server.uri, "placed"],
                                            check=False).returncode, 0)

        client()
        before = held()
        for _ in range(10):
            client()
        fds, mappings = held()
        # The last client's end may still be on its way.
        self.assertLessEqual(fds, before[0] + 4)
        self.assertLessEqual(mappings, before[1] + 8)


if __name__ == "__main__":
    PROGRAM = os.path.realpath(sys.argv.pop(2))
    support.main()
