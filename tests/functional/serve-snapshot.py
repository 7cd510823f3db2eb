#!/usr/bin/python3
"""Snapshots of flash stores: made under load, read while the disk is written, over kills and restarts."""
import contextlib
import errno
import hashlib
import json
import os
import random
import re
import select
import signal
import subprocess
import threading

import nbdmini
import support

MIB = 1 << 20
FILE = 64 * MIB
BLOCK = 4096


class Snapshot(support.Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(5)
        self.file = self.path("disk.flash")
        self.control = self.path("control")
        status, _, errors = self.run_gmblock("create", f"--size={FILE}", "--segment=256K", f"flash:{self.file}")
        self.assertEqual(status, 0, errors)
        self.size = self.check()["size"]

    def check(self):
        status, out, errors = self.run_gmblock("check", "--json", self.file)
        self.assertEqual(status, 0, out + errors)
        return json.loads(out)

    def serve(self, *keys):
        return self.start_unix("--control", self.control, "--export",
                               ",".join(["disk=flash:" + self.file, *keys]))

    def snapshot(self, *arguments, status=0):
        found, out, errors = self.run_gmblock("snapshot", *arguments, "--server", self.control)
        self.assertEqual(found, status, out + errors)
        return out if status == 0 else errors

    def listed(self, *arguments):
        found = json.loads(self.snapshot("list", "--json", *arguments))["snapshots"]
        return {entry["name"]: entry for entry in found}

    def counter(self, name):
        _, out, _ = self.run_gmblock("stats", "--json", "--server", self.control)
        return self.find(json.loads(out), name)

    def find(self, value, name):
        """The first number of that name in a document."""
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        if isinstance(value, dict) and isinstance(value.get(name), int):
            return value[name]
        return next((found for child in children if (found := self.find(child, name)) is not None), None)

    def digest(self, server, export):
        with nbdmini.open_export(server.uri, export) as client:
            found = hashlib.sha256()
            for offset in range(0, self.size, MIB):
                found.update(client.read(offset, min(MIB, self.size - offset)))
            return found.hexdigest()

    def holes(self, server, export):
        status, out, errors = self.run_gmblock(
            "info", "--map", "--json", server.uri.replace("///disk", "///" + export))
        self.assertEqual(status, 0, errors)
        return sum(extent["length"] for extent in json.loads(out)["extents"] if "hole" in extent["type"])

    def fill(self, server, share=1.0):
        with nbdmini.open_export(server.uri, b"disk") as client:
            for offset in range(0, int(self.size * share) // MIB * MIB, MIB):
                client.write(offset, self.random.randbytes(MIB))

    def test_a_snapshot_is_what_was_there_when_it_was_made(self):
        server = self.serve()
        self.fill(server, 0.5)
        before = self.digest(server, b"disk")
        self.assertIn("disk@monday", self.snapshot("create", "disk", "monday"))
        self.fill(server, 0.5)
        self.assertNotEqual(self.digest(server, b"disk"), before)
        self.assertEqual(self.digest(server, b"disk@monday"), before)
        # Its holes are its own, also where only the disk's cache has a block.
        holes = self.holes(server, "disk@monday")
        with nbdmini.open_export(server.uri, b"disk") as client:
            client.write(self.size - 2 * BLOCK, b"x" * BLOCK)
        self.assertGreater(holes, self.size // 3)
        self.assertEqual(self.holes(server, "disk@monday"), holes)
        copied = self.path("copy.img")
        status, _, errors = self.run_gmblock(
            "copy", "--verify", server.uri.replace("///disk", "///disk@monday"), copied)
        self.assertEqual(status, 0, errors)
        with open(copied, "rb") as file:
            self.assertEqual(hashlib.sha256(file.read()).hexdigest(), before)
        self.assertEqual(self.listed()["monday"]["served_as"], "disk@monday")
        # It outlives the server, however that ends.
        for number in (signal.SIGKILL, signal.SIGTERM):
            server.signal(number)
            server.process.wait()
            self.assertEqual(self.check()["snapshots"], ["monday"])
            server = self.serve()
            self.assertEqual(self.digest(server, b"disk@monday"), before)
        self.assertGreater(self.counter("snapshot_blocks"), self.size // BLOCK // 3)
        self.assertEqual(self.snapshot("delete", "disk", "monday"), 'export "disk@monday": removed\n')
        self.assertEqual(self.counter("snapshot_blocks"), 0)
        self.assertEqual(self.listed(), {})
        self.fill(server)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.check()["snapshots"], [])

    def test_one_that_is_made_under_load_does_not_change(self):
        server = self.serve()
        ends = threading.Event()

        def load():
            order = random.Random(9)
            with nbdmini.open_export(server.uri, b"disk") as client:
                while not ends.is_set():
                    offset = order.randrange(self.size // 3 // BLOCK) * BLOCK
                    client.write(offset, order.randbytes(4 * BLOCK))

        self.fill(server, 0.4)
        thread = threading.Thread(target=load)
        thread.start()
        try:
            self.snapshot("create", "disk", "a")
            first = self.digest(server, b"disk@a")
            self.snapshot("create", "disk", "b")
            second = self.digest(server, b"disk@b")
            self.assertNotEqual(first, second)
            self.assertEqual(self.digest(server, b"disk@a"), first)
        finally:
            ends.set()
            thread.join()
        server.kill()
        server = self.serve()
        self.assertEqual(self.digest(server, b"disk@a"), first)
        self.assertEqual(self.digest(server, b"disk@b"), second)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_what_cannot_be_is_refused(self):
        plain = self.make_file("plain", bytes(MIB))
        server = self.start_unix("--control", self.control, "--export", "disk=flash:" + self.file,
                                 "--export", "plain=" + plain)
        self.snapshot("create", "disk", "a")
        for arguments, fragment in (
                (("create", "plain", "a"), "only flash stores"),
                (("create", "none", "a"), "there is no export"),
                (("create", "disk", "a"), "already"),
                (("create", "disk", "../b"), "name"),
                (("create", "disk", "x" * 64), "at most 63"),
                (("create", "disk@a", "b"), "only flash stores"),
                (("delete", "disk", "b"), "has no snapshot 'b'"),
                (("list", "none"), "there is no export \"none\"; 'gmblock export list' shows the exports\n"),
                (("list", self.control), "; 'gmblock snapshot list' takes the name of an export"),
                (("list", "disk@a"), 'export "disk@a" is a snapshot'),
                (("list", "--json", "disk@b"), 'there is no export "disk@b"')):
            self.assertIn(fragment, self.snapshot(*arguments, status=1))
        self.snapshot("create", "disk", "b")
        self.assertIn("which is the limit", self.snapshot("create", "disk", "c", status=1))
        self.assertEqual(sorted(self.listed("disk")), ["a", "b"])
        self.assertEqual(self.listed("plain"), {})
        with nbdmini.open_export(server.uri, b"disk@a") as client:
            client.read(0, BLOCK)
            client.send_request(nbdmini.CMD_WRITE, 1, 0, BLOCK, bytes(BLOCK))
            self.assertEqual(client.reply()[1], 1)  # EPERM
            self.assertIn("is used by 1 connection", self.snapshot("delete", "disk", "a", status=1))
            self.assertEqual(self.snapshot("delete", "disk", "a", "--now").splitlines()[0],
                             'export "disk@a": removed; the clients of the export are disconnected')
        self.assertEqual(sorted(self.listed()), ["b"])
        # With its export it is not served any more, and still there.
        status, _, errors = self.run_gmblock("export", "remove", "disk", "--server", self.control)
        self.assertEqual(status, 0, errors)
        status, out, _ = self.run_gmblock("export", "list", "--server", self.control)
        self.assertNotIn("disk", out)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.check()["snapshots"], ["b"])
        server = self.serve("readonly")
        self.assertIn("readonly", self.snapshot("create", "disk", "c", status=1))
        self.digest(server, b"disk@b")
        self.assertEqual(server.stop()[0], 0)

    def test_a_copy_ends_when_its_snapshot_is_deleted(self):
        """It comes to no other one; a server that is away may come back with it."""
        server = self.serve()
        self.fill(server, 0.3)
        self.snapshot("create", "disk", "monday")
        uri = server.uri.replace("///disk", "///disk@monday")
        copy = subprocess.Popen([support.program(), "copy", "--rate", "64K", uri, self.path("copy")],
                                stderr=subprocess.PIPE, text=True)
        self.wait_for(lambda: os.path.exists(self.path("copy")) and os.stat(self.path("copy")).st_blocks > 0)
        self.snapshot("delete", "disk", "monday", "--now")
        errors = copy.communicate(timeout=support.WAIT_SECONDS)[1]
        self.assertEqual(copy.returncode, 1, errors)
        self.assertIn("the snapshot was deleted, or dropped", errors)
        self.assertIn("gave up", errors)

    def test_another_disk_in_the_place_of_its_own(self):
        """A reload that gives the export another disk ends its snapshots, and lets go of the store."""
        plain, conf = self.make_file("plain", bytes(MIB)), self.path("conf")

        def reload(*exports, status=0):
            self.make_file("conf", ("exports:\n" + "".join(f"- {{{text}}}\n" for text in exports)).encode())
            found, _, errors = self.run_gmblock("reload", self.control)
            self.assertEqual(found, status, errors)
            return errors

        self.make_file("conf", f"exports:\n- {{name: disk, path: 'flash:{self.file}'}}\n".encode())
        server = self.start_unix("--control", self.control, "--config", conf, "--export-folder", self.folder)
        self.snapshot("create", "disk", "a")
        flash = f"name: disk, path: 'flash:{self.file}'"
        for order in (1, -1):
            self.assertIn("exists as a snapshot", reload(*[flash, f"name: disk@a, path: {plain}"][::order], status=1))
        self.assertIn("restart the server or run", reload(flash + ", cache: 1M", status=1))
        with nbdmini.open_export(server.uri, b"disk@a") as client:
            client.read(0, BLOCK)
            reload(f"name: disk, path: {plain}")
        self.assertIn("restart the server or run",
                      reload(f"name: disk, path: {plain}", f"name: again, path: 'flash:{self.file}'", status=1))
        self.assertEqual(self.listed(), {})
        self.assertEqual(self.check()["snapshots"], ["a"])
        reload(f"name: disk, path: {plain}", f"name: disk@a, path: {plain}")
        self.assertEqual(server.stop()[0], 0)

    def test_its_rules_of_access_are_those_of_its_disk(self):
        config = self.path("config")

        def configure(rules):
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"exports: [{{name: disk, path: 'flash:{self.file}', access: {rules}}}]\n")

        def reload():
            found, out, errors = self.run_gmblock("reload", "--server", self.control)
            self.assertEqual(found, 0, errors)
            return out

        configure("[rw]")
        server = self.start_unix("--control", self.control, "--config", config)
        self.snapshot("create", "disk", "a")
        self.digest(server, b"disk@a")
        reload()
        with nbdmini.open_export(server.uri, b"disk@a") as client:
            client.read(0, BLOCK)
            configure("[none]")
            reload()
            with self.assertRaises(nbdmini.OptionRefused):
                nbdmini.open_export(server.uri, b"disk@a")
        configure("[rw]")
        reload()
        self.digest(server, b"disk@a")
        # What it is cannot be changed; its limits can.
        self.assertIn("is a snapshot", self.run_gmblock(
            "export", "set", "disk@a", "path=/dev/null", "--server", self.control)[2])
        self.assertEqual(self.run_gmblock(
            "export", "set", "disk@a", "rate=1G", "--server", self.control)[0], 0)
        with open(config, "w", encoding="utf-8") as file:
            file.write("exports: [{name: other, path: 'null:1M', access: [rw]}]\n")
        self.assertIn('"disk@a": removed', reload())
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.check()["snapshots"], ["a"])

    def test_small_writes_that_were_answered_have_room_beside_a_snapshot(self):
        """They wait in the cache, and a flush must be able to write them."""
        server = self.serve("on-full=refuse", "cache=16M")
        self.fill(server)
        self.snapshot("create", "disk", "a")
        with nbdmini.open_export(server.uri, b"disk") as client:
            for _ in range(self.size // BLOCK):
                client.send_request(nbdmini.CMD_WRITE, 1, self.random.randrange(self.size // BLOCK) * BLOCK,
                                    BLOCK, self.random.randbytes(BLOCK))
                status = client.reply()[1]
                if status != 0:
                    break
            self.assertEqual(status, errno.ENOSPC)
            client.flush()
            self.snapshot("delete", "disk", "a")
            client.write(0, bytes([1]) * BLOCK)
            client.flush()
            self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_writes_go_on_without_the_snapshot_when_there_is_no_room(self):
        server = self.serve()
        self.fill(server)
        self.snapshot("create", "disk", "a")
        reason = "dropped because writes needed its space (on-full=drop)"
        with nbdmini.open_export(server.uri, b"disk@a", structured=True) as reader:
            self.fill(server)
            with contextlib.suppress(OSError, EOFError):  # perhaps an error, then the end
                while not reader.error_text:
                    reader.send_request(nbdmini.CMD_READ, 1, 0, BLOCK)
                    reader.chunks(1)
            self.assertIn(reason, reader.error_text or reason)
        self.assertEqual(self.listed(), {})
        self.wait_for(lambda: "@" not in self.run_gmblock("export", "list", "--server", self.control)[1])
        with self.assertRaisesRegex(nbdmini.OptionRefused, re.escape(reason)):
            nbdmini.open_export(server.uri, b"disk@a")
        self.assertIn("has no snapshot 'a'", self.snapshot("delete", "disk", "a", status=1))
        self.assertEqual(self.counter("snapshots_dropped"), 1)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("snapshot 'a' is dropped", errors)
        self.check()

    def test_writes_are_refused_to_keep_the_snapshot(self):
        server = self.serve("on-full=refuse")
        self.fill(server)
        before = self.digest(server, b"disk")
        self.snapshot("create", "disk", "a")
        with nbdmini.open_export(server.uri, b"disk") as client:
            error = 0
            for offset in range(0, self.size // MIB * MIB, MIB):
                client.send_request(nbdmini.CMD_WRITE, 1, offset, MIB, self.random.randbytes(MIB))
                error = client.reply()[1]
                if error != 0:
                    break
            self.assertEqual(error, 28)  # ENOSPC
            self.assertEqual(self.digest(server, b"disk@a"), before)
            self.snapshot("delete", "disk", "a")
            client.write(0, self.random.randbytes(MIB))
            client.flush()
        self.fill(server)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def export(self, *arguments):
        code, out, errors = self.run_gmblock("export", *arguments, "--server", self.control)
        self.assertEqual(code, 0, out + errors)
        return out

    def told(self, name):
        return next(entry for entry in json.loads(self.export("list", "--json"))["exports"]
                    if entry["name"] == name)

    def test_keys_of_a_snapshot_stay_over_upgrades(self):
        server = self.serve()
        self.snapshot("create", "disk", "a")
        self.snapshot("create", "disk", "b")
        self.export("set", "disk@a", "rate=7M", "max-connections=3", "description=a, b=c")
        self.assertEqual(dict(self.told("disk@a")["settings"])["max-connections"], "3")
        before = [self.told(name) for name in ("disk", "disk@a", "disk@b")]
        for number in range(2):
            code, out, errors = self.run_gmblock("upgrade", self.control)
            self.assertEqual((code, errors), (0, ""), out)
            process = os.pidfd_open(int(out.split()[1]))
            self.addCleanup(os.close, process)
            self.addCleanup(end_process, process, signal.SIGKILL)
            self.assertEqual([self.told(name) for name in ("disk", "disk@a", "disk@b")], before, number)
        self.assertEqual(server.process.wait(), 0)
        end_process(process, signal.SIGTERM)
        self.check()


def end_process(process, number):
    """One that is not ours to wait for."""
    try:
        signal.pidfd_send_signal(process, number)
        select.select([process], [], [])
    except ProcessLookupError:
        pass


support.main()
