#!/usr/bin/python3
"""gmb when either side goes: requests in flight are done all the same, once each, and what a
dead peer's operations still write is not found in memory that was given back (rules G16, G17).

    gmb-reconnect.py GMBLOCK PROGRAM DRIVER [unix]

unix: not over gmb://.
"""
import os
import signal
import subprocess
import sys

import ports
import support

PROGRAM = DRIVER = ""
NO_RECONNECT = 2
IMAGE_BYTES = 64 << 20


class Storm:
    """The case of that name in the background: it ends with status 0 if everything it has written
    can be read."""

    def __init__(self, uri, steps, case="storm"):
        self.process = subprocess.Popen([PROGRAM, case, uri, str(steps)], text=True,
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


class UnixReconnect(support.Case):
    def setUp(self):
        super().setUp()
        self.listen = "gmb+unix:///?socket=" + self.path("s")
        self.image = self.path("image")
        with open(self.image, "wb") as file:
            file.truncate(IMAGE_BYTES)

    def serve(self, *keys):
        return self.start("--listen", self.listen, "--export", "=" + ",".join([self.image, *keys]),
                          "--export", "other=memory:64M", uri_count=2)

    def check_deaths(self, count, kill, *keys, case="storm"):
        """The server goes count times under load."""
        server = self.serve(*keys)
        storm = Storm(server.uri, 400, case)
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

    def test_imported_memory_of_killed_servers(self):
        self.check_deaths(4, support.Server.kill, "mode=direct", case="storm-imported")

    def test_a_buffer_is_freed_when_the_loss_is_told(self):
        server = self.serve("delay=read:3600s")
        lost = Storm(server.uri, 0, "free-in-done")
        server.kill()
        self.assertEqual(lost.end(), 0)

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

    def drive(self, server, options, *lines, meanwhile=lambda: None):
        """What the driver prints for these lines with a client that was opened so."""
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as driver:
            driver.stdin.write(f"open c {server.uri} {options}\n")
            driver.stdin.flush()
            self.assertRegex(driver.stdout.readline(), "^opened c ")
            meanwhile()
            output, _ = driver.communicate("\n".join([*lines, "wait", "stats c", "close c", ""]))
            self.assertEqual(driver.returncode, 0)
            return output

    def test_a_frozen_server_is_noticed(self):
        """In the middle of a flush, too, which may take long."""
        server = self.serve()
        for operation in ("read c 0 4096 0", "flush c 0 0 0"):
            output = self.drive(server, f"flags={NO_RECONNECT} request_timeout_ms=300", operation,
                                meanwhile=server.freeze)
            self.assertIn("the server did not respond in time", output)
            self.assertIn("\nstats c 1 ", output)
            server.signal(signal.SIGCONT)

    def test_what_takes_long_is_not_silence(self):
        def check(factor):
            server = self.serve(*(f"delay={kind}:{factor * 3}s" for kind in ("read", "flush", "zero")))
            try:
                output = self.drive(server, f"flags={NO_RECONNECT} request_timeout_ms={factor * 1200}",
                                    "read c 0 4096 0", "flush c 0 0 0", "zero c 0 1048576 0")
            finally:
                server.kill()
            self.assertEqual(output.count("done c "), 3, output)
            self.assertIn("\nstats c 0 0 ", output)

        self.at_some_pace(check)

    def test_a_server_that_never_answers(self):
        server = self.serve("delay=read:3600s")

        def check(factor):
            output = self.drive(server, f"flags={NO_RECONNECT} request_timeout_ms={factor * 1200} "
                                f"slow_timeout_ms={factor * 1500}", "read c 0 4096 0")
            self.assertIn("is alive, but did not complete any request in time", output)

        self.at_some_pace(check)
        server.kill()  # it would wait for its disk

    def test_answers_count_while_others_wait(self):
        """A request waits all the time, for longer than a server may answer nothing."""
        def check(factor):
            server = self.serve(*(f"delay=read:{factor * ms}ms:range={place}+4K"
                                  for ms, place in ((1500, "1M"), (2900, "2M"), (3200, "0"))))
            try:
                output = self.drive(server, f"flags={NO_RECONNECT} request_timeout_ms={factor * 1200} "
                                    f"slow_timeout_ms={factor * 2500}",
                                    *[f"read c {at << 20} 4096 0" for at in range(3)])
            finally:
                server.kill()
            self.assertEqual(output.count("done c "), 3, output)
            self.assertIn("\nstats c 0 0 ", output)

        self.at_some_pace(check)

    def test_rules_of_access_are_read_again(self):
        config, control = self.path("conf"), self.path("control")

        def write(rights):
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"exports:\n- {{name: '', path: {self.image}, access: [{rights}]}}\n")

        def reload(rights, ended):
            write(rights)
            code, output, errors = self.run_gmblock("reload", control)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual("connections ended: 1\n" in output, ended == 1, output)

        for rights, ended, read in (("ro", 0, r"0 [0-9a-f]+ "), ("none", 1, "-[0-9]+ ")):
            write("rw")
            server = self.start("--listen", self.listen, "--config", config, "--control", control)
            output = self.drive(server, f"flags={NO_RECONNECT}", "write c 0 4096 0", "wait",
                                "read c 0 4096 0", meanwhile=lambda: reload(rights, ended))
            self.assertRegex(output, r"done c 0 write -[0-9]+ ")
            self.assertRegex(output, "done c 1 read " + read)
            self.assertEqual(server.stop()[0], 0)

    def test_memory_is_given_back(self):
        """The server's descriptors and mappings do not grow with clients that came and went."""
        # Each thread makes what it needs with its first client, and keeps it.
        server = self.start("--listen", self.listen, "--export", "=" + self.image,
                            "--export", "other=memory:64M", "--threads", "1", uri_count=2)

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
        # The ends of some clients may still be on their way. What leaks never comes back.
        self.wait_for(lambda: all(now <= limit for now, limit in zip(held(), before)))


class NetworkReconnect(UnixReconnect):
    """The same over gmb://; a server takes the port of the one before."""

    def setUp(self):
        super().setUp()
        self.listen = f"gmb://127.0.0.1:{ports.free()}"


if __name__ == "__main__":
    if sys.argv[4:] == ["unix"]:
        del NetworkReconnect
    PROGRAM, DRIVER = (os.path.realpath(path) for path in sys.argv[2:4])
    del sys.argv[2:]
    support.main()
