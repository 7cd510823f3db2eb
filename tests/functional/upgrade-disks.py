#!/usr/bin/python3
"""What a disk holds, whether it has been flushed or not, goes with it to the new process of an upgrade: files,
memory, overlays, flash stores with their caches and snapshots, and exports that were added."""
import json
import os
import re
import signal

import nbdmini
import support
import upgrades


class UpgradeDisks(upgrades.Case):
    def upgrade_after_a_kill(self, *command):
        """The answer when the kernel has ended the operations of the killed process, which is a reason to refuse."""
        answers = []

        def is_over():
            answers.append(self.upgrade(*command))
            return "still waits for disk operations" not in answers[-1][2]

        self.wait_for(is_over)
        return answers[-1]

    def test_what_cannot_be_passed(self):
        cases = {
            "has reported a failed flush": ["--export", f"={self.disk},fault=flush:EIO"],
        }
        for reason, arguments in cases.items():
            server = self.start(*arguments, "--listen", self.socket_uri("x"), "--control",
                                self.path("control"))
            with nbdmini.open_export(server.uri) as client:
                if "flush" in reason:
                    with self.assertRaises(AssertionError):
                        client.flush()
                for option in ([], ["--dry-run"]):
                    self.check_refused(["upgrade", *option, self.path("control")], 1, reason)
                self.assertEqual(len(client.read(0, 512)), 512)
            self.assertEqual(server.stop()[0], 0)

    def test_memory(self):
        """What was written stays, sparse as it was; another disk of that name begins empty."""
        uri, control = self.socket_uri("m"), self.path("control")
        arguments = ["--export", "a=memory:16M", "--export", "b=memory:16M", "--listen", uri,
                     "--control", control]
        self.start(*arguments, uri_count=2)
        self.addCleanup(self.kill_children)
        contents = {name: os.urandom(1 << 20) for name in (b"a", b"b")}
        clients = {name: nbdmini.open_export(uri, name) for name in contents}
        for name, client in clients.items():
            self.addCleanup(client.sock.close)
            client.write(8 << 20, contents[name])
        for _ in range(2):
            self.assertEqual(self.must_upgrade()[:2], (2, 0))
            for name, client in clients.items():
                self.assertEqual(client.read(8 << 20, 1 << 20), contents[name])
                self.assertEqual(client.read(0, 4096), bytes(4096))
        _, extents, _ = self.run_gmblock("info", "--map", f"nbd+unix:///a?socket={self.path('m')}")
        self.assertRegex(extents, r"8388608 +1048576  data\n")
        other = [support.program(), "serve", "--export", "a=memory:16M", "--export",
                 "b=memory:8M", "--listen", uri, "--control", control]
        self.assertRegex(self.upgrade(*other)[2], r'export "b" has connections \(1\), .* another disk')
        clients[b"b"].sock.close()
        self.wait_for(lambda: self.upgrade(*other)[0] == 0)
        self.assertEqual(clients[b"a"].read(8 << 20, 1 << 20), contents[b"a"])
        with nbdmini.open_export(uri, b"b") as client:
            self.assertEqual(client.read(0, 4096), bytes(4096))
        with open(f"/proc/{self.children[-1]}/status", encoding="ascii") as status:
            self.assertLess(int(re.search(r"RssShmem:\s+(\d+) kB", status.read())[1]), 8 << 10)

    def test_overlays(self):
        """What was written is there, flushed or not, and so is the base; also when the new process fails
        after the old one has settled."""
        for where in (self.path("changes"), "discard"):
            server = self.serve(filters=f",overlay={where}")
            with open(self.disk, "rb") as disk:
                base = disk.read()
            expected = bytearray(base)
            with nbdmini.open_export(server.uri) as client:
                for turn, how in enumerate(("dies-with-all", None, "fails-with-all", None, None)):
                    at = turn * 100000 + 3000 * turn
                    expected[at:at + 5000] = bytes([turn + 1]) * 5000
                    client.write(at, bytes([turn + 1]) * 5000)
                    if how:
                        code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", how)
                        self.assertEqual(code, 1, errors)
                    else:
                        self.assertEqual(self.must_upgrade()[:2], (1, 0))
                    for offset in range(0, len(expected), 4 << 20):
                        self.assertTrue(client.read(offset, 4 << 20) == expected[offset:offset + (4 << 20)])
                client.flush()
            with open(self.disk, "rb") as disk:
                self.assertTrue(disk.read() == base)
            self.stop_newest()
            self.children.clear()
            if where != "discard":
                self.assertEqual(self.run_gmblock("check", where)[0], 0)
            server = self.serve(filters=f",overlay={where}")
            with nbdmini.open_export(server.uri) as client:
                self.assertTrue(client.read(0, 1 << 20) ==
                                (base if where == "discard" else expected)[:1 << 20])
            self.assertEqual(server.stop()[0], 0)

    def test_flash(self):
        """The log goes on in the new process, also behind new processes that fail when it has settled."""
        log = self.make_log("log")
        server = self.serve("--export", f"log=flash:{log}")
        expected = bytearray(8 << 20)
        with nbdmini.open_export(server.uri, b"log") as client:
            for turn, how in enumerate(("dies-with-all", None, "fails-with-all", None, None, None) * 2):
                for at, length in ((turn * 300000, 5000), (turn * 12345, 1 << 20), (4 << 20, 64 << 10)):
                    expected[at:at + length] = os.urandom(length)
                    client.write(at, expected[at:at + length])
                if how:
                    code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", how)
                    self.assertEqual(code, 1, errors)
                else:
                    self.assertEqual(self.must_upgrade()[:2], (1, 0))
                if turn % 3 == 2:  # twice in a row, the first of which does nothing to the disk
                    self.must_upgrade()
                for offset in range(0, len(expected), 1 << 20):
                    self.assertTrue(client.read(offset, 1 << 20) == expected[offset:offset + (1 << 20)])
        self.stop_newest()
        self.children.clear()
        code, output, errors = self.run_gmblock("check", log)
        self.assertEqual(code, 0, output + errors)
        server = self.serve("--export", f"log=flash:{log}")
        with nbdmini.open_export(server.uri, b"log") as client:
            self.assertTrue(client.read(0, 8 << 20) == expected)
        self.assertEqual(server.stop()[0], 0)

    def test_a_write_cache(self):
        """It is written before the new process reads the disk, whatever that one is told of a cache."""
        log = self.make_log("log")
        server = self.serve("--export", f"log=flash:{log}")
        new = [support.program(), "serve", "--export", f"={self.disk}", "--listen", self.socket_uri(),
               "--control", self.path("control"), "--export"]
        with nbdmini.open_export(server.uri, b"log") as client:
            for turn, keys in enumerate(("cache-dir=/nonexistent", "", "cache=0", "")):
                for at in range(0, 1 << 20, 65536):
                    client.write(at + turn, bytes([turn + 1]) * 5000)
                self.assertEqual(self.must_upgrade(*new, f"log=flash:{log}" + (keys and "," + keys))[:2], (1, 0))
                for at in range(0, 1 << 20, 65536):
                    self.assertEqual(client.read(at + turn, 5000), bytes([turn + 1]) * 5000)
        self.stop_newest()
        self.assertNotIn("lost", server.wait()[1])

    def writes_to_cache(self, client, pieces):
        """Whether some of the pieces, as they are written now, are in the cache of the process that serves."""
        for at, piece in pieces.items():
            client.write(at, piece)
        code, output, _ = self.run_gmblock("stats", "--json", self.path("control"))
        if code != 0:
            return False
        self.children.append(json.loads(output)["pid"])
        return int(re.search(r'"dirty_pages": (\d+)', output)[1]) > 0

    def test_a_write_cache_goes_on(self):
        """Each process has one at once. Who is killed at whatever step loses nothing of it, nor leaves a file."""
        log = self.make_log("log")
        uuid = json.loads(self.run_gmblock("check", "--json", log)[1])["uuid"]
        export = ["--export", f"log=flash:{log},cache=1M"]
        server = self.serve(*export)
        command = [support.program(), "serve", "--export", f"={self.disk}", "--listen", self.socket_uri(),
                   "--control", self.path("control"), *export]
        expected = bytearray(2 << 20)
        with nbdmini.open_export(server.uri, b"log") as client:
            for turn, killed in enumerate(("ready", "started", None, None, None, "old", None, "newest")):
                pieces = {at: os.urandom(5000) for at in range(turn * 10000, 1 << 20, 65536)}
                for at, piece in pieces.items():
                    expected[at:at + 5000] = piece
                # Who goes on after an upgrade that failed writes to the log until a checkpoint has recorded the cache.
                self.wait_for(lambda: self.writes_to_cache(client, pieces))
                if killed == "newest":
                    self.kill_children()
                elif killed:
                    self.assertEqual(self.upgrade(*upgrades.PROCESS, "--killed", killed, *command)[0], 1)
                else:
                    self.assertEqual(self.must_upgrade()[:2], (1, 0))
                if killed != "newest":
                    self.assertTrue(client.read(0, len(expected)) == expected, turn)
        self.assertNotIn("cache", server.wait()[1])
        server = self.serve(*export)
        with nbdmini.open_export(server.uri, b"log") as client:
            self.assertTrue(client.read(0, len(expected)) == expected)
            client.flush()
        readonly = ["--export", export[1] + ",readonly"]
        self.assertRegex(self.upgrade_after_a_kill(*command[:-2], *readonly)[2],
                         "for writing .* a flash store that is served read-only")
        server.signal(signal.SIGKILL)
        server.wait()
        server = self.serve(*readonly)
        self.assertEqual(self.upgrade_after_a_kill()[2], "")
        self.stop_newest()
        self.assertEqual(self.serve(*export).stop()[0], 0)
        self.assertEqual([name for name in os.listdir("/dev/shm") if uuid in name], [])

    def test_snapshots(self):
        """They are served by the new process, and who reads one goes on with it, or nobody does."""
        log, other = self.make_log("log"), self.make_log("other")
        for path in (other, log):
            server = self.serve("--export", f"log=flash:{path}")
            with nbdmini.open_export(server.uri, b"log") as client:
                expected = os.urandom(1 << 20)
                client.write(0, expected)
                code, _, errors = self.run_gmblock("snapshot", "create", "log", "a", "--server", self.path("control"))
                self.assertEqual(code, 0, errors)
                client.write(0, bytes(1 << 20))
            if path == other:
                self.assertEqual(server.stop()[0], 0)
        new = [support.program(), "serve", "--export", f"={self.disk}", "--listen", self.socket_uri(),
               "--control", self.path("control"), "--export"]
        with nbdmini.open_export(server.uri, b"log@a") as reader:
            for disks in ([f"log=flash:{other}"], [f"log=flash:{log}", "--export", "log@a=memory:1M"]):
                self.assertRegex(self.upgrade(*new, *disks)[2],
                                 r'"log@a" has connections \(1\), .* serves another disk')
            self.assertRegex(self.upgrade(*new, "more=null:1M")[2],
                             r'"log@a" has connections \(1\), .* does not serve it')
            for _ in range(2):
                self.assertTrue(reader.read(0, 1 << 20) == expected)
                self.assertEqual(self.must_upgrade()[:2], (1, 0))
            with nbdmini.open_export(server.uri, b"log") as client:
                self.assertEqual(client.read(0, 4096), bytes(4096))
                code, _, errors = self.run_gmblock(
                    "snapshot", "delete", "log", "a", "--now", "--server", self.path("control"))
                self.assertEqual(code, 0, errors)
                client.write(0, b"more")
        self.stop_newest()
        code, output, errors = self.run_gmblock("check", log)
        self.assertEqual(code, 0, output + errors)

    def test_added_exports(self):
        """They stay with their keys, over an upgrade and a reload after it; a new configuration that has the
        name wins, and what was removed from the file is there again."""
        more, conf = self.make_file("more", os.urandom(1 << 20)), self.path("conf")
        third = self.make_file("third", bytes(1 << 20))

        def configure(*exports):
            self.make_file("conf", "exports:\n" + "".join(f"- {{{text}}}\n" for text in exports))

        def export(*arguments):
            code, output, errors = self.run_gmblock("export", *arguments, "--server", self.path("control"))
            self.assertEqual((code, errors), (0, ""))
            return output

        def served():
            return {entry["name"]: (entry["path"], entry["from"], dict(entry["settings"]))
                    for entry in json.loads(export("list", "--json"))["exports"]}

        configure(f"name: a, path: {self.disk}")
        server = self.start("--config", conf, "--listen", self.socket_uri(), "--control",
                            self.path("control"), "--export-folder", self.folder)
        self.addCleanup(self.kill_children)
        export("add", "m", "memory:1M", "description=of = all, kinds", "rate=100M")
        export("add", "f", more, "readonly", "overlay=discard")
        export("add", "s", "memory:1M")
        export("set", "m", "description=changed")
        export("remove", "a")
        before = served()
        with nbdmini.open_export(self.socket_uri(), b"m") as memory, \
                nbdmini.open_export(self.socket_uri(), b"f") as file:
            memory.write(4096, b"kept")
            for _ in range(2):
                self.assertEqual(self.must_upgrade()[:2], (2, 0))
                after = served()
                self.assertEqual(after.pop("a")[1], "configuration")
                self.assertEqual(after, before)
                self.assertEqual(memory.read(4096, 4), b"kept")
                with open(more, "rb") as content:
                    self.assertEqual(file.read(0, 4096), content.read(4096))
            self.assertEqual(self.run_gmblock("reload", self.path("control"))[0], 0)
            self.assertEqual(set(served()), {"a", "m", "f", "s"})
            configure(f"name: a, path: {self.disk}", "name: m, path: 'memory:1M', description: filed",
                      f"name: s, path: {third}")
            self.assertEqual(self.must_upgrade()[:2], (2, 0))
            self.assertEqual(memory.read(4096, 4), b"kept")
            self.assertEqual(served()["m"][1:], ("configuration", {"description": "filed"}))
            self.assertEqual(served()["s"][0], third)
            # A thread opens the disk anew, so the sandbox knows of it.
            export("set", "f", "rate=1M")
            configure(f"name: a, path: {self.disk}", f"name: m, path: {third}")
            self.assertRegex(self.upgrade()[2], r'the export "m" has connections \(1\), .* another disk')
        self.assertEqual(server.process.wait(), 0)

    def test_an_added_export_with_much_to_tell(self):
        server = self.serve()
        name, at = "n" * 4000, ["--server", self.path("control")]
        self.assertEqual(self.run_gmblock("export", "add", name, "null:1M", "description=" + "d" * 4000,
                                          f"max-connections={'0' * 7000}99", *at)[0::2], (0, ""))
        self.must_upgrade()
        self.assertEqual(self.run_gmblock("export", "set", name, f"max-connections={'0' * 11000}98",
                                           *at)[0::2], (0, ""))
        code, _, errors = self.upgrade()
        self.assertEqual(code, 1)
        self.assertRegex(errors, 'keys of export "n+.*", .* too long')
        with nbdmini.open_export(server.uri, name.encode()) as client:
            self.assertEqual(client.read(0, 512), bytes(512))
        self.stop_newest()

    def test_an_overlay_on_another_base(self):
        """Changes are not put on another disk."""
        server = self.serve(filters=",overlay=discard")
        other = self.make_file("other", os.urandom(16 << 20))
        arguments = [support.program(), "serve", "--export", f"={other},overlay=discard", "--listen",
                     self.socket_uri(), "--control", self.path("control")]
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"changed")
            self.assertRegex(self.upgrade(*arguments)[2], "serves another disk under this name")
            self.assertEqual(client.read(0, 7), b"changed")
        self.wait_for(lambda: self.upgrade(*arguments)[0] == 0)
        with nbdmini.open_export(server.uri) as client, open(other, "rb") as disk:
            self.assertEqual(client.read(0, 4096), disk.read(4096))

    def test_a_disk_that_cannot_settle(self):
        server = self.serve(filters=f",overlay={self.path('changes')},fault=flush:EIO")
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"changed")
            self.assertRegex(self.upgrade()[2], 'cannot flush the disk of export "": Input/output error')
            self.assertEqual(client.read(0, 7), b"changed")
            self.assertRegex(self.upgrade()[2], "has reported a failed flush, which another process")
        self.assertEqual(server.stop()[0], 0)

    def test_claim(self):
        """The disk is in nobody's hands at no time, and free at the end."""
        server = self.serve()
        self.must_upgrade()
        self.assertEqual(server.process.wait(), 0)
        arguments = ["serve", self.disk, "--listen", self.socket_uri("other")]
        self.check_refused(arguments, 1, "is already served for writing")
        self.check_refused(["serve", "null:1M", "--listen", self.socket_uri()], 1,
                           "another program listens")
        self.stop_newest()
        self.assertEqual(self.start(*arguments[1:]).stop()[0], 0)


if __name__ == "__main__":
    upgrades.main()
