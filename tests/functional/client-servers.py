#!/usr/bin/python3
"""libgmblock against other people's servers, and against what nbdkit's filters make of one.

    client-servers.py GMBLOCK REQUESTS_PROGRAM QUEUE_PROGRAM
"""
import importlib
import os
import shutil
import subprocess
import sys

import support

# Starts nbd-server, which needs care.
info_peers = importlib.import_module("info-peers")

PROGRAMS = []
BYTES = 64 << 20
SIMPLE, NO_EXTENDED = 8, 4
CASE_SECONDS = 200
FLUSH, FUA = 1 << 1, 1 << 2


class Servers(support.Case):
    def case(self, uri, name, *arguments):
        for program in PROGRAMS:
            names = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            if name in names.split():
                done = subprocess.run([program, name, uri, *map(str, arguments)],
                                      capture_output=True, check=False, timeout=CASE_SECONDS)
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                return done.stdout.decode().split()
        raise AssertionError(f"no such case: {name}")

    def need(self, tool):
        if shutil.which(tool) is None:
            self.skipTest(f"{tool} is not installed")

    def nbdkit(self, *arguments):
        """nbdkit for the life of a test; it answers before this returns."""
        self.need("nbdkit")
        pid = self.path("nbdkit.pid")
        process = subprocess.Popen(
            ["nbdkit", "--foreground", "--unix", self.path("s"), "--pidfile", pid, *arguments],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        while not os.path.exists(pid):  # which is written once it listens
            if process.poll() is not None:
                self.fail(process.stderr.read())
            os.sched_yield()
        return self.socket_uri()

    def styles(self, uri, *expected):
        """Everything works with each kind of reply; returns the capabilities."""
        for flags, style in zip((0, NO_EXTENDED, SIMPLE), expected):
            found, capabilities = self.case(uri, "exercise", flags)
            self.assertEqual(found, style)
        return int(capabilities, 16)

    def test_nbdkit(self):
        uri = self.nbdkit("memory", f"{BYTES}")
        can = self.styles(uri, "structured", "structured", "simple")
        self.assertTrue(can & FUA)
        for name in ("wrong-requests", "nothing-to-do", "tiny-scatter-lists", "scattered-crowd",
                     "resubmit-from-done", "flood", "event-loop", "close-with-requests"):
            with self.subTest(name):
                self.case(uri, name)
        self.case(uri, "four-connections", 4)
        self.case(uri, "fua", 1)

    def test_nbdkit_without_several_connections(self):
        self.case(self.nbdkit("--filter=multi-conn", "memory", f"{BYTES}", "multi-conn-mode=disable"),
                  "four-connections", 1)

    def test_nbdkit_with_nothing_but_reading_and_writing(self):
        uri = self.nbdkit(
            "--no-sr", "--filter=nozero", "--filter=nocache", "--filter=multi-conn",
            "eval", f"get_size=echo {BYTES}",
            f"pread=dd if={self.make_disk()} iflag=skip_bytes,count_bytes skip=$4 count=$3",
            f"pwrite=dd of={self.path('disk')} conv=notrunc oflag=seek_bytes seek=$4",
            "can_write=exit 0", "can_flush=exit 3", "multi-conn-mode=disable", "cachemode=none")
        self.case(uri, "missing-operations")

    def make_disk(self):
        path = self.path("disk")
        with open(path, "wb") as file:
            file.truncate(BYTES)
        return path

    def test_fua_is_a_flush_where_the_server_has_none(self):
        uri = self.nbdkit("--filter=fua", "memory", f"{BYTES}")
        self.case(uri, "fua", 2)

    def test_fua_fails_when_its_flush_does(self):
        uri = self.nbdkit("--filter=fua", "eval", f"get_size=echo {BYTES}",
                          "pread=exit 1", "pwrite=cat > /dev/null", "can_write=exit 0",
                          "can_flush=exit 0", "flush=echo EIO it cannot >&2; exit 1")
        self.case(uri, "fua-flush-fails")

    def test_limits_of_a_server(self):
        uri = self.nbdkit(
            "--filter=blocksize-policy", "memory", f"{BYTES}", "blocksize-minimum=512",
            "blocksize-preferred=4096", "blocksize-maximum=65536", "blocksize-error-policy=error")
        self.case(uri, "split-requests", 65536)

    def test_replies_out_of_order(self):
        uri = self.nbdkit("--filter=delay", "memory", f"{BYTES}", "rdelay=3ms", "--threads=16")
        self.case(uri, "scattered-crowd")

    def test_split_at_the_limit_of_this_server(self):
        server = self.start_unix("memory:128M")
        self.case(server.uri, "split-requests")

    def test_qemu_nbd(self):
        self.need("qemu-nbd")
        done = subprocess.run(
            ["qemu-nbd", "--socket", self.path("s"), "--format", "raw", "--persistent", "--fork",
             "--pid-file", self.path("pid"), "--shared=8", "--discard=unmap",
             self.make_disk()], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("pid"), encoding="utf-8") as file:
            self.addCleanup(os.kill, int(file.read()), 15)
        uri = self.socket_uri()
        self.styles(uri, "structured", "structured", "simple")
        for name in ("wrong-requests", "tiny-scatter-lists", "scattered-crowd",
                     "resubmit-from-done", "event-loop"):
            with self.subTest(name):
                self.case(uri, name)

    def test_vhost_user_blk(self):
        uri = f"vhost-user-blk+unix:///disk?socket={self.path('s')}"
        self.start("--export", "disk=memory:64M", "--listen", uri)
        for name in ("resubmit-from-done", "event-loop"):
            with self.subTest(name):
                self.case(uri, name)

    def test_nbd_server(self):
        self.need("nbd-server")
        peer = info_peers.NbdServer()
        self.addCleanup(peer.doCleanups)
        peer.setUp()
        with open(peer.image, "r+b") as file:
            file.truncate(BYTES)
        self.styles(peer.uri + "rw", "simple", "simple", "simple")
        self.case(peer.uri + "rw", "scattered-crowd")


if __name__ == "__main__":
    PROGRAMS = [os.path.realpath(path) for path in sys.argv[2:]]
    del sys.argv[2:]
    support.main()
