#!/usr/bin/python3
"""Calls on TCP sockets do the same, carried and not.

    sockets-semantics.py CLAN_RUN SEMANTICS [LIBRARY_BEFORE]

LIBRARY_BEFORE: what has to come first in LD_PRELOAD, the runtime of a sanitizer.
"""
import functools
import os
import subprocess
import sys
import unittest

import sockets_tool

SEMANTICS = ""
EVERYWHERE = "connect *:*; listen *:*; "
# A connection that comes and goes is put into the kernel's epoll set each time, which tells of what
# is there once more. Programs must expect that of edges, but it is another line here.
EDGES = ("epoll-edge.", "epoll-edge-out.", "epoll-once.")


def run(mode, environment=None):
    done = subprocess.run([SEMANTICS, mode], capture_output=True, text=True, check=False,
                          env=dict(os.environ, **(environment or {})), timeout=300)
    if done.returncode != 0:
        raise AssertionError((mode, done.returncode, done.stdout[-500:], done.stderr[-3000:]))
    return done.stdout.splitlines()


@functools.cache
def run_over_tcp(mode):
    return run(mode)


class Semantics(sockets_tool.Case):
    def check(self, mode, rules, without=()):
        library = os.path.join(os.path.dirname(sockets_tool.RUN), "libclan-sockets.so")
        environment = {"CLAN_SOCKETS": EVERYWHERE + rules, "CLAN_SOCKETS_STATS": self.stats_file,
                       "LD_PRELOAD": " ".join([*PRELOAD, library])}
        expected = [line for line in run_over_tcp(mode) if not line.startswith(without)]
        found = [line for line in run(mode, environment) if not line.startswith(without)]
        self.assertGreater(len(expected), 250)
        self.maxDiff = None
        self.assertEqual(expected, found)
        return self.stats()

    def check_bytes(self, stats):
        # Once a writer gets ahead of a reader in its own thread. On a busy machine a reader may not
        # run for so long that the other writer goes back to TCP as well, after it has filled a ring:
        # the smallest one has 16 KiB.
        self.assertGreaterEqual(stats["full"], 1)
        self.assertGreater(stats["in_bytes"],
                           3000000 if stats["full"] == 1 and stats["bulk"] == 0 else 15000)

    def check_carried(self, stats):
        # Both ends are in one process; some cases make more pairs.
        self.assertGreaterEqual(stats["carried"], 80)
        self.check_bytes(stats)
        self.assertEqual(stats["in_bytes"], stats["out_bytes"])
        self.assertEqual(stats["broken"], 0)
        self.assertGreaterEqual(stats["option"], 6)  # three pairs have theirs before they are connected

    def test_carried(self):
        self.check_carried(self.check("once", "after 2"))

    def test_copies_of_descriptors(self):
        self.check_carried(self.check("dup", "after 2"))

    def test_after_fork(self):
        stats = self.check("fork", "after 2")
        self.assertGreaterEqual(stats["fork"], 40)
        self.check_bytes(stats)

    def test_in_threads(self):
        self.check_carried(self.check("thread", "after 2"))

    def test_given_back_at_every_call(self):
        for every in (1, 2, 5):
            stats = self.check("once", f"after 1; switch-every {every}", EDGES)
            self.assertGreater(stats["asked"], 20)
            self.assertGreater(stats["back"], 20)
            self.assertEqual(stats["broken"], 0)

    def test_small_ring(self):
        stats = self.check("once", "after 2; ring 16384")
        self.check_carried(stats)
        self.assertEqual(stats["bulk"], 0)

    def test_refused(self):
        stats = self.check("once", "refuse")
        self.assertEqual(stats["carried"], 0)
        self.assertGreater(stats["refused"], 40)

    def test_no_rule(self):
        self.assertEqual(self.check("once", "program another"), {})


if __name__ == "__main__":
    sockets_tool.RUN = sys.argv.pop(1)
    SEMANTICS = sys.argv.pop(1)
    PRELOAD = [sys.argv.pop(1)] if len(sys.argv) > 1 and sys.argv[1].startswith("/") else []
    unittest.main()
