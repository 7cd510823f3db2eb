#!/usr/bin/python3
"""gmblock push over several connections: what each carries, and what is left when one of them stalls or breaks, or
a server ends or refuses some.

    push-flows.py GMBLOCK DRIVER
"""
import os
import subprocess
import sys
import time

import push_tool
import relay
import support
from push_tool import MIB, digest

DRIVER = ""
# The first connection to the destination is the command's, the second is the one that begins the job.
COMMAND, FIRST, EXTRA = 0, 1, 2


class SlowRelay(relay.Relay):
    """Each connection carries at most this many bytes per second to the server."""

    def __init__(self, server, rate):
        self.rate = rate
        super().__init__(server)

    def seen(self, link, direction, data):
        if direction == relay.UP and self.rate:
            time.sleep(len(data) / self.rate)
        return super().seen(link, direction, data)


class PushFlows(push_tool.Case):
    def pair(self, size=32 * MIB, keys="", arguments=(), pieces=None, rate=None, second=None):
        """A source and a destination with a relay in front of it: self.uris. second: starts the destination."""
        # Servers of an attempt before may still have theirs open.
        self.source = self.image(f"source{self.count}", size, *(pieces or ((0, size),)))
        self.target = self.image(f"target{self.count}", size, (0, size))
        self.first = self.serve(f"disk={self.source}", network=True,
                                arguments=("--push-to", "127.0.0.1,port=any", *arguments))
        self.second = second() if second else self.serve(f"disk={self.target}{keys}", network=True,
                                                         arguments=arguments)
        port = int(self.second.uris[0].split(":")[2].split("/")[0])
        self.relay = SlowRelay(port, rate)
        self.addCleanup(self.relay.close)
        self.uris = self.first.push("disk"), f"push://127.0.0.1:{self.relay.place}/disk"

    def wait_for_flows(self, count):
        """Until each additional connection has carried a piece."""
        self.wait_for(lambda: len(self.relay.links) >= EXTRA + count - 1 and min(self.carried()) > MIB)

    def carried(self):
        """The bytes that each connection of the job has carried to the destination."""
        return [link.passed[relay.UP] for link in self.relay.links[FIRST:]]

    def done_at(self, uri):
        return self.jobs(uri)[-1]["bytes_done"]

    def finish(self, push, status=0):
        output, errors = push.communicate()
        self.assertEqual(push.returncode, status, output + errors)
        return errors

    def check_served(self, errors=""):
        """Both servers end in order, and have said nothing unexpected."""
        for server in self.first, self.second:
            code, said = server.stop()
            self.assertEqual(code, 0, said)
            if not errors:
                self.assertEqual(said, "")

    def test_whole(self):
        size = 40 * MIB + 5 * 512
        self.pair(size, pieces=((0, 12 * MIB), (16 * MIB + 4096, 12 * MIB), (36 * MIB, size - 36 * MIB)))
        job = self.push(*self.uris, "--connections", "4", "--verify=read", "--rate", "20M")
        self.assertEqual(digest(self.source), digest(self.target))
        self.assertEqual((job["state"], job["bytes_done"], job["bytes_durable"]), ("done", size, size))
        self.assertEqual(len(self.relay.links), EXTRA + 3)
        self.assertGreater(min(self.carried()), MIB)
        self.assertEqual({entry["digest"] for uri in self.uris for entry in self.jobs(uri)}, {job["digest"]})
        single = self.push(*self.uris, "--resume")
        self.assertEqual((single["digest"], single["bytes_skipped"] + single["bytes_zeroed"]), (job["digest"], size))
        again = self.push(*self.uris, "--connections", "8", "--resume")
        self.assertEqual(again["digest"], job["digest"])
        self.assertEqual(self.counters(self.second)["push_pieces_resent"], 0)
        self.check_served()

    def test_automatic(self):
        """A connection is added while the network limits each; how many there are at the end depends on the
        machine."""
        self.pair(128 * MIB, rate=64 * MIB)
        self.push(*self.uris, "--connections", "auto", "--verify=read")
        self.assertGreater(len(self.relay.links), EXTRA)
        self.assertEqual(digest(self.source), digest(self.target))
        self.check_served()

    def test_a_connection_that_breaks(self):
        """Its pieces go on the others: those that were not written, and no others."""
        for way in relay.UP, relay.DOWN:  # the pieces are on their way, or only the answers
            with self.subTest(way):
                self.pair()
                push = self.start_push("--connections", "4", "--rate", "8M", "--verify=read", *self.uris)
                self.wait_for_flows(4)
                before = self.carried()[EXTRA]
                self.relay.hold(EXTRA + 1, way)
                done = self.done_at(self.uris[0])
                # The others go on, with at most 8 pieces held up; then some are.
                self.wait_for(lambda: self.done_at(self.uris[0]) >= done + 8 * MIB)
                if way == relay.DOWN:
                    self.wait_for(lambda: self.carried()[EXTRA] > before + MIB)
                self.relay.cut(EXTRA + 1)
                self.assertEqual(self.finish(push), "")
                self.assertEqual(digest(self.source), digest(self.target))
                resent = self.counters(self.first)["push_pieces_resent"]
                if way == relay.UP:
                    self.assertGreaterEqual(resent, 1)
                self.assertLessEqual(resent, 8)
                self.assertEqual(self.counters(self.second)["bytes_written"], 32 * MIB)
                code, said = self.first.stop()
                self.assertEqual(code, 0, said)
                self.assertRegex(said, r"connection [2-4]: .*; the others continue")
                self.second.stop()

    def test_a_silent_connection(self):
        """A connection that is neither alive nor dead is replaced."""
        def check(factor):
            self.pair(arguments=("--handshake-timeout", f"{factor}s"))
            push = self.start_push("--connections", "2", "--rate", "4M", *self.uris)
            self.wait_for_flows(2)
            self.relay.hold(EXTRA, relay.UP, relay.DOWN)
            self.wait_for(lambda: len(self.relay.links) > EXTRA + 1 or push.poll() is not None)
            self.assertEqual(self.finish(push), "")
            self.assertEqual(digest(self.source), digest(self.target))
            self.assertEqual(self.counters(self.second)["bytes_written"], 32 * MIB)
            self.check_served("a connection was replaced")
        self.at_some_pace(check)

    def test_a_connection_that_breaks_at_the_end(self):
        """While the destination reads its disk back, no piece is left that the connection could lose."""
        self.pair(8 * MIB, keys=",delay=read:4s")
        push = self.start_push("--connections", "2", "--rate", "8M", "--verify=read", *self.uris)
        self.wait_for_flows(2)
        uri = self.second.push("disk")
        self.wait_for(lambda: self.jobs(uri)[-1]["state"] not in ("begins", "moves"))
        self.relay.cut(EXTRA)
        self.assertEqual(self.finish(push), "")
        self.assertEqual(digest(self.source), digest(self.target))
        self.check_served("a connection was lost")

    def test_the_first_connection_breaks(self):
        self.pair()
        push = self.start_push("--connections", "4", "--rate", "8M", *self.uris)
        self.wait_for_flows(4)
        self.relay.cut(FIRST)
        self.assertIn("--resume", self.finish(push, 1))
        for uri in self.uris:
            self.wait_for(lambda uri=uri: self.jobs(uri)[-1]["state"] == "failed")
        job = self.push(*self.uris, "--connections", "4", "--resume")
        self.assertGreater(job["bytes_skipped"], 0)
        self.assertEqual(digest(self.source), digest(self.target))

    def test_killed(self):
        self.pair()
        push = self.start_push("--connections", "4", "--rate", "8M", *self.uris)
        self.wait_for_flows(4)
        self.second.kill()
        self.finish(push, 1)
        self.second = self.start("--listen", f"push://127.0.0.1:{self.relay.server}", "--export",
                                 f"disk={self.target}")
        job = self.push(*self.uris, "--connections", "4", "--resume")
        self.assertGreater(job["bytes_skipped"], 0)
        self.assertEqual(digest(self.source), digest(self.target))

    def test_stopped(self):
        """A job ends with the server that executes it, whichever connection learns of that first."""
        self.pair()
        push = self.start_push("--connections", "4", "--rate", "8M", *self.uris)
        self.wait_for_flows(4)
        code, errors = self.second.stop()
        self.assertEqual(code, 0, errors)
        self.assertIn("the destination", self.finish(push, 1))
        self.second = self.start("--listen", f"push://127.0.0.1:{self.relay.server}", "--export",
                                 f"disk={self.target}")
        job = self.push(*self.uris, "--connections", "4", "--resume")
        self.assertGreater(job["bytes_skipped"], 0)
        self.assertEqual(digest(self.source), digest(self.target))

    def test_rights_that_are_withdrawn(self):
        """They are those of each connection, and the job ends with all of them."""
        config, control = self.path("conf"), self.path("rights")

        def write(rights):
            with open(config, "w") as file:
                file.write(f"exports:\n- {{name: disk, path: {self.target}, "
                           f"access: [{{address: 127.0.0.0/8, rights: {rights}}}]}}\n")

        def second():
            write("rw")
            return self.start("--config", config, "--control", control, "--listen", "push://127.0.0.1:0",
                              "--threads", "2")
        self.pair(second=second)
        push = self.start_push("--connections", "4", "--rate", "8M", *self.uris)
        self.wait_for_flows(4)
        write("ro")
        code, _, errors = self.run_gmblock("reload", control)
        self.assertEqual(code, 0, errors)
        self.assertIn("no longer has permission", self.finish(push, 1))
        before = digest(self.target)
        self.check_refused(["push", "--connections", "4", *self.uris], 1, "access rules")
        self.assertEqual(digest(self.target), before)

    def test_fewer_than_wanted(self):
        """A limit of the destination applies to each connection; the push does with those that are admitted."""
        self.pair(arguments=("--max-connections-per-peer", "3"))
        self.push(*self.uris, "--connections", "4", "--rate", "30M")
        self.assertEqual(digest(self.source), digest(self.target))
        self.assertIn("; the others continue", self.first.stop()[1])

    def test_a_disk_that_fails(self):
        """The error of a write on any connection is the job's."""
        self.pair(keys=",fault=write:ENOSPC")
        self.check_refused(["push", "--connections", "4", *self.uris], 1, "cannot write the destination: No space")

    def test_refused(self):
        first, second = self.serve("disk=memory:4M"), self.serve("disk=memory:4M")
        uris = first.push("disk"), second.push("disk")
        for number in "0", "9", "many":
            self.check_refused(["push", "--connections", number, *uris], 2, "neither a number from 1 to 8 nor auto")
        self.check_refused(["push", "--connections", "2", *uris], 1, "a push to a Unix socket has one connection")
        self.push(*uris, "--connections", "auto")

    def test_joining(self):
        """Only the holder of the ticket of a running job adds connections, and they only bring pieces."""
        server = self.serve("disk=memory:4M")
        run = subprocess.run([DRIVER, server.push("disk"), "joins"], stdout=subprocess.PIPE, text=True, check=True)
        lines = dict(line.split(": ", 1) for line in run.stdout.splitlines())
        self.assertEqual(lines["joined"], "slots 8")
        for name in "no job", "forged", "job is over":
            self.assertIn("no job with this ticket", lines[name])
        self.assertIn("another server", lines["foreign instance"])
        self.assertIn("has not ended", lines["joined twice"])
        self.assertIn("the source does not accept staging memory", lines["no memory"])
        self.assertEqual(lines["job"], "runs")
        for name in "zeroes", "no number":
            self.assertEqual(lines[name], "closed")
        self.assertEqual(self.counters(server)["push_tickets_refused"], 5)


def main():
    global DRIVER
    DRIVER = os.path.realpath(sys.argv.pop(2))
    support.main()


if __name__ == "__main__":
    main()
