#!/usr/bin/python3
"""gmblock push of a flash store that is written meanwhile: what arrives is what it had at one moment, and no
snapshot stays, whoever is killed.

    push-snapshot.py GMBLOCK ROUNDS
"""
import json
import os
import random
import signal
import struct
import sys
import threading
import time

import nbdmini
import push_tool
import support
from push_tool import MIB

BLOCK = 4096


class Writer(threading.Thread):
    """Writes numbers to a disk, one write after the other is answered: first all blocks in order, then any, at most
    2,000 a second: without that limit it takes most of the processor time of the test."""
    BLOCKS = 24 * MIB // BLOCK
    PAUSE_SECONDS = 1 / 2000

    def __init__(self, uri):
        super().__init__()
        self.client = nbdmini.open_export(uri, b"disk")
        self.blocks = []  # where each number was written
        self.answered = 0
        self.ends = threading.Event()

    def run(self):
        order = random.Random(5)
        while not self.ends.is_set():
            number = len(self.blocks) + 1
            self.blocks.append(number - 1 if number <= self.BLOCKS else order.randrange(self.BLOCKS))
            try:
                self.client.write(self.blocks[-1] * BLOCK, struct.pack("<Q", number) + bytes(BLOCK - 8))
            except (OSError, AssertionError):
                return  # the server was killed
            self.answered = number
            if number > self.BLOCKS:
                self.ends.wait(self.PAUSE_SECONDS)

    def count(self):
        return self.answered

    def wait_for(self, count):
        while self.answered < count and self.is_alive():
            time.sleep(0.01)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.ends.set()
        self.join()
        self.client.close()


class PushSnapshot(push_tool.Case):
    def serve_flash(self, **options):
        """A server of an export on a new flash store, which speaks NBD as well."""
        disk = self.path("flash")
        if not os.path.exists(disk):
            self.assertEqual(self.run_gmblock("create", "--size=64M", "--segment=256K", "flash:" + disk)[0], 0)
        self.count += 1
        control = self.path(f"control{self.count}")
        server = self.start("--listen", f"push+unix:///?socket={self.path('flash-push')}", "--listen",
                            f"nbd+unix:///?socket={self.path('flash-nbd')}", "--control", control, "--threads", "2",
                            "--export", "disk=flash:" + disk, uri_count=2, **options)
        server.control = control
        server.push = lambda name: server.uris[0].replace("/disk", "/" + name)
        return server

    def snapshots(self, server):
        code, output, errors = self.run_gmblock("snapshot", "list", "--json", "--server", server.control)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)["snapshots"]

    def check_moment(self, path, writer):
        """The disk has what it had at one moment: all writes up to one of them, and none behind it."""
        with open(path, "rb") as file:
            found = [struct.unpack("<Q", file.read(BLOCK)[:8])[0] for _ in range(Writer.BLOCKS)]
        expected, newest = [0] * Writer.BLOCKS, max(found)
        for number in range(1, newest + 1):
            expected[writer.blocks[number - 1]] = number
        self.assertEqual(found, expected)
        return newest

    def test_a_disk_that_is_written(self):
        """What arrives is what the disk had at one moment, and the snapshot for that goes with the push."""
        first, target, other = self.serve_flash(), self.image("target", 64 * MIB), self.image("other", 64 * MIB)
        second, plain = self.serve("disk=" + target), self.start_unix(other)
        with Writer(first.uris[1]) as writer:
            writer.wait_for(Writer.BLOCKS)
            for path, uri, arguments in ((target, second.push("disk"), ()), (other, plain.uri, ()),
                                         (target, second.push("disk"), ("--resume",))):
                before = writer.count()
                push = self.start_push("--rate", "2M", *arguments, first.push("disk"), uri)
                self.wait_for(lambda: self.snapshots(first))
                listed, = self.snapshots(first)
                self.assertRegex(listed["name"], "^push-[0-9a-f]{16}$")
                self.assertEqual((listed["served_as"], listed["connections"]), (None, 1))
                self.check_refused(["snapshot", "delete", "disk", listed["name"], "--server", first.control], 1,
                                   "a push uses", "--now")
                # On a busy machine it may have ended by now.
                self.wait_for(lambda: self.jobs(first.push("disk"))[-1]["state"] != "begins")
                after = writer.count()
                self.assertEqual(push.communicate()[1], "")
                self.wait_for(lambda: not self.snapshots(first))  # it is being deleted
                self.assertTrue(before <= self.check_moment(path, writer) <= after + 1)
        # Two snapshots there are at most.
        for name in "a", "b":
            self.assertEqual(self.run_gmblock("snapshot", "create", "disk", name, "--server", first.control)[0], 0)
        self.check_refused(["push", first.push("disk"), second.push("disk")], 1,
                           'export "disk": the source has 2 snapshots, which is the limit', "--live")
        self.push(first.push("disk"), second.push("disk"), "--live")
        self.assertEqual(self.check_moment(target, writer), writer.count())
        self.push(first.push("disk@b"), second.push("disk"))
        self.assertEqual(self.run_gmblock("snapshot", "delete", "disk", "b", "--server", first.control)[0], 0)
        for _ in range(20):  # the place is free when the command has ended
            self.push(first.push("disk"), second.push("disk"), "--range", "0+4096")
        # Somebody needs the place, or stops the server.
        for end in (lambda name: self.run_gmblock("snapshot", "delete", "--now", "disk", name,
                                                  "--server", first.control), lambda name: first.stop()):
            push = self.start_push("--rate", "2M", first.push("disk"), second.push("disk"))
            self.wait_for(lambda: [job for job in self.jobs(first.push("disk"))
                                   if job["state"] == "moves" and job["bytes_done"] > 0])
            end(self.snapshots(first)[-1]["name"])
            self.assertRegex(push.communicate()[1], "the snapshot of the source was|stopp")
        self.assertEqual(json.loads(self.run_gmblock("check", "--json", self.path("flash"))[1])["snapshots"], ["a"])
        self.assertEqual(second.stop()[0], 0)

    def test_killed(self):
        """No snapshot stays, whoever is killed, and --resume goes by the new one."""
        first, target = self.serve_flash(), self.image("target", 64 * MIB)
        second = self.serve("disk=" + target)
        for number in range(ROUNDS + 1):
            with Writer(first.uris[1]) as writer:
                writer.wait_for(Writer.BLOCKS)
                known = {job["job"] for job in self.jobs(first.push("disk"))}
                push = self.start_push("--rate", "5M", first.push("disk"), second.push("disk"))
                # At any time from the request for the snapshot on.
                at = self.random.randrange(-1, 8 * MIB)
                self.wait_for(lambda: any(job["bytes_done"] > at or job["state"] not in ("begins", "moves")
                                          for job in self.jobs(first.push("disk")) if job["job"] not in known))
                if number % 4 == 0:
                    push.kill()
                elif number % 4 == 1:
                    second.kill()
                    second = self.serve("disk=" + target)
                elif number % 4 == 2:
                    job = self.jobs(first.push("disk"))[-1]["job"]
                    status = self.run_gmblock("push", "--cancel", job, first.push("disk"))[0]
                    # On a busy machine it may have ended before.
                    if status != 0:
                        self.assertNotIn(self.jobs(first.push("disk"))[-1]["state"], ("begins", "moves"))
                else:
                    first.kill()
                push.communicate()
            if number % 4 == 3:
                first = self.serve_flash()
                self.assertEqual(self.snapshots(first), [])
            self.wait_for(lambda: not self.snapshots(first))
            with Writer(first.uris[1]) as writer:
                writer.wait_for(Writer.BLOCKS)
                self.push(first.push("disk"), second.push("disk"), "--resume")
                self.assertGreaterEqual(self.check_moment(target, writer), Writer.BLOCKS)
        self.assertEqual(first.stop()[0], 0)
        self.assertEqual(json.loads(self.run_gmblock("check", "--json", self.path("flash"))[1])["snapshots"], [])

    def test_upgrade(self):
        """Before another process has the disk the snapshot goes; and the address of push is the other's then."""
        first = self.serve_flash()
        second = self.serve("disk=" + self.image("target", 64 * MIB))
        with nbdmini.open_export(first.uris[1], b"disk") as client:
            client.write(0, self.random.randbytes(16 * MIB))
        push = self.start_push("--rate", "1M", first.push("disk"), second.push("disk"))
        self.wait_for_bytes(first.push("disk"), MIB)
        code, output, errors = self.run_gmblock("upgrade", first.control)
        self.assertEqual((code, errors), (0, ""))
        self.addCleanup(os.kill, int(output.split()[1]), signal.SIGKILL)
        self.assertIn("another process is taking over the server", push.communicate()[1])
        self.wait_for(lambda: not self.snapshots(first))
        self.push(first.push("disk"), second.push("disk"))


def main():
    global ROUNDS
    ROUNDS = int(sys.argv.pop(2))
    support.main()


if __name__ == "__main__":
    main()
