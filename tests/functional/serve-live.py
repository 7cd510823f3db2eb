#!/usr/bin/python3
"""What a running server serves changes, while its clients stay."""
import contextlib
import ctypes
import grp
import json
import os
import pwd
import shutil
import signal
import struct
import subprocess
import sys
import threading
import unittest.mock

import nbdmini
import support

EINVAL, ESHUTDOWN = 22, 108
OPT_LIST_META = 9
CMD_BLOCK_STATUS = 7
SIZE_CONTEXT = (1 << 32) - 2
ERR_UNKNOWN = 0x80000006


class Live(support.Case):
    def setUp(self):
        super().setUp()
        self.control = self.path("control")

    def image(self, name, mib=1):
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(mib << 20)
        return path

    def configure(self, *exports, more=""):
        """A file with these exports, each the text of a mapping."""
        return self.make_file("conf", more + "exports:\n" + "".join(f"- {{{text}}}\n" for text in exports))

    def export(self, *arguments, status=0):
        code, output, errors = self.run_gmblock("export", *arguments, "--server", self.control)
        self.assertEqual(code, status, errors)
        return output if status == 0 else errors

    def reload(self, *options, status=0):
        code, output, errors = self.run_gmblock("reload", *options, self.control)
        self.assertEqual(code, status, errors)
        return output if status == 0 else errors

    def changes(self):
        """The lines of a reload, without the connections that it ends."""
        return [line for line in self.reload().splitlines() if not line.startswith("connections ended: ")]

    def served(self):
        """Name -> path and keys."""
        found = json.loads(self.export("list", "--json"))["exports"]
        return {entry["name"]: (entry["path"], dict(entry["settings"])) for entry in found}

    def refused(self, server, name):
        with nbdmini.Client(server.uri) as client:
            client.hello()
            with self.assertRaises(nbdmini.OptionRefused) as refusal:
                client.go(name)
        self.assertEqual(refusal.exception.code, ERR_UNKNOWN)


class Commands(Live):
    def serve(self, *arguments):
        return self.start_unix("null:1M", "--control", self.control,
                               *(arguments or ["--export-folder", self.folder]))

    def test_add_and_remove(self):
        server = self.serve()
        one = self.image("one")
        with nbdmini.open_export(server.uri) as other:
            self.assertEqual(self.export("add", "a", one, "description=first", "max-connections=1"),
                             f'export "a": added, {one}\n')
            with nbdmini.open_export(server.uri, b"a") as client:
                client.write(0, b"data")
                with self.assertRaises(nbdmini.OptionRefused): # it has one connection
                    nbdmini.open_export(server.uri, b"a").close()
                self.assertIn('export "a": removed', self.export("remove", "a"))
                self.assertTrue(client.at_end())
            self.refused(server, b"a")
            self.export("add", "a", one, "readonly")
            with nbdmini.open_export(server.uri, b"a") as client:
                self.assertEqual(client.read(0, 4), b"data")
                self.assertTrue(client.flags & nbdmini.FLAG_READ_ONLY)
            other.read(0, 4096)
        self.assertEqual(self.served(), {"": ("null:1M", {}), "a": (one, {
            "readonly": None})})
        self.assertEqual(server.stop()[0], 0)

    def test_the_log_shows_text_escaped(self):
        server = self.serve("--export-folder", self.folder, "--log-level", "info")
        self.export("add", "a", self.path(support.EVIL), status=1)
        code, errors = server.stop()
        self.assertEqual(code, 0)
        self.assertIn("it does not exist; create the file first", errors)
        self.assertIsNone(support.FORBIDDEN.search(errors), errors)

    def test_a_relative_path_is_that_of_the_command(self):
        server = self.serve()
        one, two = self.image("one"), self.image("two")
        here = os.path.join(self.folder, "here")
        os.mkdir(here)
        for command, path in ((("add", "a", "../one"), one), (("set", "a", "path=../two"), two)):
            code, _, errors = self.run_gmblock("export", *command, "--server", self.control, cwd=here)
            self.assertEqual(code, 0, errors)
            self.assertEqual(self.served()["a"][0], path)
        self.assertEqual(server.stop()[0], 0)

    def test_what_is_wrong_changes_nothing(self):
        server = self.serve()
        one = self.image("one")
        self.export("add", "a", one)
        before = self.served()
        for arguments, fragment in ((("add", "a", one), 'there is already an export "a"'),
                                    (("add", "b", self.path("absent")), "create the file first"),
                                    (("add", "b", "file:" + one), "leave out the word before the colon"),
                                    (("add", "b", one, "mode=device"), "start the server with --arena"),
                                    (("set", "a", "mode=device"), "start the server with --arena"),
                                    (("add", "b", one, "write-mode=direct"), "uses the same disk through the page cache"),
                                    (("set", "b", "rate=1M"), 'there is no export "b"'),
                                    (("set", "a", "path=" + self.path("absent")), "create the file first"),
                                    (("remove", "b"), 'there is no export "b"')):
            with self.subTest(arguments=arguments):
                self.assertIn(fragment,
                              self.export(*arguments, status=1))
                self.assertEqual(self.served(), before)
        for arguments, fragment in ((("add", "b", one, "colour=red"), "unknown key 'colour'"),
                                    (("add", "b", one, "mode=fast"), "mode: 'fast' is not a mode"),
                                    (("add", "b", one, "rate=1M", "rate=2M"), "rate: "),
                                    (("set", "a", "rate=much"), "rate: "),
                                    (("set", "a", "colour=default"), "unknown key 'colour'")):
            self.check_refused(["export", *arguments, "--server", self.control], 2, fragment)
        for arguments in ((), ("add", "b"), ("set", "a"), ("remove",), ("remove", "a", "b"),
                          ("list", "a"), ("drop", "a"), ("remove", "a", "--now", "--deadline", "1s"),
                          ("add", "b", one, "--now"), ("list", "--deadline", "1s")):
            self.check_refused(["export", *arguments, "--server", self.control], 2, "gmblock export: ")
        nbdmini.open_export(server.uri, b"a").close()
        self.check_refused(["export", "lst", "--server", self.control], 2, "unknown command 'lst'; did you mean 'list'?")
        self.check_refused(["export", "drop", "--server", self.control], 2, "unknown command 'drop'; write add, set, ")
        # The server has no fault, and the commands have reported theirs.
        self.assertNotIn("error: ", server.stop()[1])

    def test_advice_is_written_as_the_command_was(self):
        used, overlay = self.path("used"), self.path("overlay")
        server = self.serve("--export", "a=null:1M", "--export",
                            f"b={self.image('base')},overlay={used}")
        shutil.copy(used, overlay)
        qcow2 = self.make_file("qcow2", b"QFI\xfb\0\0\0\3" + bytes(65536))
        begin = ["serve", "--listen", self.socket_uri("other")]
        for path, key, yes in ((qcow2, "format=raw", "format: raw"),
                               (overlay, "overlay=FILE", "overlay: FILE"),
                               (self.path("base"), "readonly", "readonly: yes")):
            alone = "--read-only" if key == "readonly" else f"--export =PATH,{key}"
            value = "" if "=" in key else "=yes"
            config = self.configure(f"name: n, path: {path}")
            forms = (
                    ([*begin, path], alone), ([*begin, "--export", f"n={path}"], f"--export NAME=PATH,{key}"),
                    ([*begin, "--export", f"={path}"], f"--export =PATH,{key}"),
                    ([*begin, "--config", config], yes),
                    (["export", "add", "n", path, "--server", self.control],
                     f"gmblock export add NAME PATH {key}"),
                    (["export", "set", "a", f"path={path}", "--server", self.control],
                     f"gmblock export set NAME {key}{value}"))
            # A base that is in use is tried again and again, for a second.
            for arguments, written in forms[::5] if key == "readonly" else forms:
                with self.subTest(arguments):
                    errors = self.check_refused(arguments, 1, f"'{path}'")
                    self.assertTrue(errors.endswith(f" ({written})\n"), errors)
        self.assertIn("(gmblock export set)", errors)
        for arguments, status, fragment in (
                (["n", qcow2 + ",readonly"], 1, "write export keys as separate arguments: NAME PATH KEY[=VALUE]"),
                (["n=" + qcow2], 2, "a NAME and a PATH, as two words")):
            self.check_refused(["export", "add", *arguments, "--server", self.control], status, fragment)
        self.assertEqual(server.stop()[0], 0)

    def test_keys_that_change_under_clients(self):
        server = self.serve("--export", "a=memory:1M,max-connections=1")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(0, b"kept")
            self.assertEqual(
                self.export("set", "a", "max-connections=2", "description=a disk", "rate=100M"),
                'export "a": description=a disk (was default), max-connections=2 (was 1), '
                "rate=100M (was default)\n")
            with nbdmini.open_export(server.uri, b"a") as second:
                self.assertEqual(second.read(0, 4), b"kept")
            self.assertEqual(self.export("set", "a", "rate=100M"), "the command has changed nothing\n")
            self.export("set", "a", "rate=default", "max-memory=4M")
            self.assertEqual(client.read(0, 4), b"kept")
        code, output, _ = self.run_gmblock("info", server.uri.replace("///?", "///a?"))
        self.assertEqual(code, 0, output)
        self.assertIn("a disk", output)
        code, output, _ = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0)
        entry = next(entry for entry in json.loads(output)["exports"] if entry["name"] == "a")
        self.assertIsNone(entry["rate"]["bytes_per_second"])
        self.assertEqual(entry["memory"]["max_bytes"], 4 << 20)

    def remove_beside_a_read(self, server):
        """The answers to a read in flight and to one after the removal; too few if that came too late."""
        answers = {}
        with nbdmini.open_export(server.uri, b"a") as client:
            client.send_request(nbdmini.CMD_READ, 1, 0, 4096)
            self.assertEqual(self.run_gmblock("stats", self.control)[0], 0)  # it has begun
            remover = subprocess.Popen(
                [support.program(), "export", "remove", "a", "--server", self.control],
                stdout=subprocess.PIPE)
            self.addCleanup(remover.communicate)
            self.wait_for(lambda: "a" not in self.served())
            with contextlib.suppress(ConnectionError):
                in_time = remover.poll() is None
                client.send_request(nbdmini.CMD_READ, 2, 0, 4096)
                for _ in range(2):
                    cookie, error = client.reply()
                    answers[cookie] = error
                    if error == 0:
                        client.receive(4096)
                self.assertTrue(in_time)  # it waits for the read
                self.assertTrue(client.at_end())
            self.assertEqual(remover.wait(), 0)
        return answers

    def test_who_has_begun_finishes(self):
        """A request in flight is answered, later ones are refused by their reason, then it ends."""
        server = self.serve("--export", "b=null:1M")
        answers = {}
        for seconds in 1, 10, 100:  # until the removal is faster than the read
            self.export("add", "a", "memory:1M", f"delay=read:{seconds}s")
            answers = self.remove_beside_a_read(server)
            if len(answers) == 2:
                break
        self.assertEqual(answers, {1: 0, 2: ESHUTDOWN})

    def test_a_deadline_holds_up_nobody(self):
        server = self.serve("--export", "a=memory:1M,delay=read:1h")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.send_request(nbdmini.CMD_READ, 1, 0, 4096)
            self.run_gmblock("stats", self.control)  # it has begun
            remover = subprocess.Popen(
                [support.program(), "export", "remove", "a", "--deadline", "1h", "--server",
                 self.control], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(remover.communicate)
            self.wait_for(lambda: "a" not in self.served())
            self.export("add", "b", "null:1M")
            self.assertIn("removed", self.export("remove", "b"))
            self.assertIn('export "a": added', self.reload())
            self.assertIsNone(remover.poll())
            server.signal()
            self.assertNotEqual(remover.wait(), 0)
        server.kill()

    def test_added_where_old_writes_are(self):
        """What was removed, and has not ended, is waited for at its path, by whatever name."""
        one = self.image("one")
        server = self.serve("--export-folder", self.folder, "--handshake-timeout", "10min")
        code = 0
        for seconds in 3, 30, 300:  # until the remove is faster than the write
            self.export("add", "a", one, f"delay=write:{seconds}s")
            with nbdmini.open_export(server.uri, b"a") as client:
                client.send_request(nbdmini.CMD_WRITE, 1, 0, 4, b"late")
                self.run_gmblock("stats", self.control)  # it has begun
                code, output, errors = self.run_gmblock(
                    "export", "remove", "a", "--deadline", "0", "--server", self.control)
            self.assertIn('export "a": removed', output)  # also when it says that it hangs
            self.assertEqual("still open" in errors, code == 1)
            if code == 1:
                break
        self.assertEqual(code, 1)
        self.export("add", "b", one)
        with unittest.mock.patch.object(nbdmini, "TIMEOUT_S", 2 * seconds + nbdmini.TIMEOUT_S), \
                nbdmini.open_export(server.uri, b"b") as newcomer:
            self.assertEqual(newcomer.read(0, 4), b"late")
            newcomer.write(0, b"next")
            self.assertEqual(newcomer.read(0, 4), b"next")

    def test_disks_in_memory_keep_their_contents(self):
        server = self.serve("--export", "a=memory:1M")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(0, b"kept")
            errors = self.export("set", "a", "mode=direct", "rate=1G", status=1)
            self.assertIn("lose the data in memory; remove the export and add it again", errors)
            self.assertEqual(client.read(0, 4), b"kept")
            self.assertEqual(self.served()["a"], ("memory:1M", {}))
            self.export("set", "a", "path=memory:2M") # another disk
        with nbdmini.open_export(server.uri, b"a") as client:
            self.assertEqual((client.size, client.read(0, 4)), (2 << 20, bytes(4)))

    def test_the_server_is_named_alike_everywhere(self):
        self.serve("--export", "a=null:1M,rate=1G", "--export", "b=null:1M")
        for words in (["reload"], ["stats"], ["upgrade", "--if-replaced"]):
            with self.subTest(words=words):
                for server in ["--server", self.control], [self.control]:
                    code, output, errors = self.run_gmblock(*words, *server)
                    self.assertEqual((code, errors), (0, ""), output)
                self.check_refused([*words, "--server", self.control, self.control], 2, "give only one server")
                self.check_refused([*words, self.control, "b"], 2, "only one server")
        self.check_refused(["trace", "--request", "--server", self.control, "--timeout", "1ms"], 1, "no client")
        self.check_refused(["top", "--server", "a", "b"], 2, "give only one server")
        # Words behind two hyphens are not the server's name.
        self.check_refused(["upgrade", "--server", self.path("none"), "--", "gmblock", "serve"], 1, self.path("none"))

    def test_now(self):
        server = self.serve("--export", "a=memory:1M,delay=read:1h")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.send_request(nbdmini.CMD_READ, 1, 0, 4096)
            code, _, _ = self.run_gmblock("export", "remove", "a", "--now", "--server", self.control)
            self.assertIn(code, (0, 1)) # 1: the disk is not closed yet
            self.assertTrue(client.at_end())
        self.refused(server, b"a")
        self.export("add", "b", "null:1M") # which closes no disk
        self.assertIn("the command has changed nothing", self.export("set", "b", "size=auto"))
        server.kill() # the delay does not end

    def test_replaced(self):
        """A newcomer waits for those of the disk before, and gets the new one."""
        one, two = self.image("one"), self.image("two", 2)
        server = self.serve("--export", f"a={one},delay=read:1s", "--export-folder", self.folder)
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(0, b"old ")
            client.send_request(nbdmini.CMD_READ, 1, 0, 4)
            setter = subprocess.Popen(
                [support.program(), "export", "set", "a", f"path={two}", "delay=default", "--server",
                 self.control], stdout=subprocess.PIPE, text=True)
            self.addCleanup(setter.communicate)
            self.wait_for(lambda: self.served()["a"] == (two, {}))
            with nbdmini.open_export(server.uri, b"a") as newcomer:
                self.assertEqual(client.reply(), (1, 0)) # which was there before
                self.assertEqual(client.receive(4), b"old ")
                self.assertEqual(newcomer.read((1 << 20) + 5, 4), bytes(4))
        self.assertEqual(setter.wait(), 0)

    def test_size(self):
        """A disk that has grown is used by clients that are connected, and by new ones."""
        one = self.image("one")
        server = self.serve("--export", f"a={one}")
        with nbdmini.open_export(server.uri, b"a") as client:
            self.assertEqual(self.export("set", "a", "size=auto"), "the command has changed nothing\n")
            os.truncate(one, 2 << 20)
            self.assertIn("has only 2M; make the disk larger", self.export("set", "a", "size=3M", status=1))
            self.assertEqual(self.export("set", "a", "size=2M"), 'export "a": size=2M (was 1M)\n')
            client.write((2 << 20) - 4, b"more")
            with nbdmini.open_export(server.uri, b"a") as other:
                self.assertEqual((other.size, other.read((2 << 20) - 4, 4)), (2 << 20, b"more"))
            self.assertIn("cannot shrink", self.export("set", "a", "size=1M", status=1))
            os.truncate(one, 1 << 20)
            self.assertIn("has shrunk to 1M (was 2M)", self.export("set", "a", "size=auto", status=1))
        for arguments, fragment in ((("b", "size=auto"), 'no export "b"'), (("a", "size=big"), "size: ")):
            self.assertIn(fragment, self.export("set", *arguments, status=1))
        self.check_refused(["export", "set", "a", "size=auto", "rate=1M", "--server", self.control], 2, "unknown key 'size'")

    def test_an_empty_file(self):
        """It is served, but not silently, because a beginner has forgotten to give it a size."""
        empty = self.path("empty")
        with open(empty, "wb"):
            pass
        server = self.serve("--export", f"a={empty}")
        os.truncate(empty, 1 << 20)
        self.assertEqual(self.export("set", "a", "size=auto"), 'export "a": size=1M (was 0)\n')
        _, errors = server.stop()
        self.assertIn(f"export \"a\": '{empty}' is empty, so clients see a disk of 0 bytes; enlarge it", errors)

    def test_asked_for_the_size(self):
        """x-gmblock:size: one request, answered when the export has another size than it says."""
        def listed(client):
            query = b"x-gmblock:size"
            client.send_option(OPT_LIST_META, struct.pack(">III", 0, 1, len(query)) + query)
            return [payload for _, payload in client.option_replies(OPT_LIST_META)]

        def ask(client, cookie, known):
            client.send_request(CMD_BLOCK_STATUS, cookie, known, 0)

        def size_of(chunk):
            context, *extents = struct.unpack(">IIIII", chunk.data)
            self.assertEqual((context, extents[0], extents[2], chunk.done), (SIZE_CONTEXT, 1, 1, True))
            return extents[1] << 32 | extents[3]

        one = self.image("one")
        server = self.serve("--export", f"a={one}")
        with nbdmini.Client(server.uri) as client, nbdmini.open_export(server.uri, b"a", True) as stock:
            client.hello()
            self.assertEqual(listed(client), [])  # simple replies have no chunks
            client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
            self.assertEqual(listed(client), [bytes(4) + b"x-gmblock:size"])
            client.go(b"a")
            ask(client, 1, 0)
            (chunk,) = client.chunks(1)
            self.assertEqual(size_of(chunk), 1 << 20)
            for known, bytes_ in ((1 << 20, 5 << 30), (5 << 30, (5 << 30) + 512)):
                ask(client, 2, known)
                ask(client, 3, known)
                self.assertEqual([chunk.error for chunk in client.chunks(3)], [EINVAL])
                client.send_request(nbdmini.CMD_READ, 4, 0, 4096)
                client.chunks(4)
                os.truncate(one, bytes_)
                self.export("set", "a", "size=auto")
                (chunk,) = client.chunks(2)
                self.assertEqual(size_of(chunk), bytes_)
            # The server notices by itself when somebody asks for what was not there.
            ask(client, 5, (5 << 30) + 512)
            os.truncate(one, 6 << 30)
            stock.send_request(nbdmini.CMD_READ, 6, (6 << 30) - 4096, 4096)
            self.assertEqual(stock.chunks(6)[-1].error, None)
            self.assertEqual(size_of(client.chunks(5)[0]), 6 << 30)
            ask(client, 7, 6 << 30)
            ask(stock, 8, 0)
            self.assertEqual([chunk.error for chunk in stock.chunks(8)], [EINVAL])
            self.export("remove", "a")
            self.assertEqual([chunk.error for chunk in client.chunks(7)], [ESHUTDOWN])
            self.assertTrue(client.at_end())

    def test_names_are_escaped(self):
        """Whoever runs a server must not write to the terminal of who looks at it."""
        self.serve()
        self.export("add", "a\x1b[31m", "memory:1M", "description=b\n\x1b[0m")
        output = self.export("list")
        self.assertIn("a\\x1b[31m\tmemory:1M\tdescription=b\\x0a\\x1b[0m\n", output)
        self.assertEqual(self.served()["a\x1b[31m"], ("memory:1M", {"description": "b\n\x1b[0m"}))

    def test_the_sandbox(self):
        inside, outside = self.path("inside"), self.path("outside")
        for folder in (inside, outside):
            os.mkdir(folder)
            with open(os.path.join(folder, "disk"), "wb") as file:
                file.truncate(1 << 20)
        server = self.serve("--export-folder", inside)
        self.export("add", "in", os.path.join(inside, "disk"))
        features = json.loads(self.run_gmblock("info", "--local", "--json")[1])["features"]
        add = ("add", "out", os.path.join(outside, "disk"))
        if features["landlock"]["available"]:
            self.assertIn("name the folder of this file with --export-folder", self.export(*add, status=1))
        else:
            self.assertIn("added", self.export(*add))
        nbdmini.open_export(server.uri, b"in").close()
        add = ("add", "new", self.image("inside/base"), "overlay=" + os.path.join(inside, "new"))
        if features["landlock"]["available"]:
            errors = self.export(*add, status=1)
            self.assertIn("the sandbox does not allow creating files", errors)
            self.assertIn("an empty file is a new overlay", errors)
        self.check_refused(["serve", "null:1M", "--export-folder", self.path("absent")], 2,
                           "--export-folder: ", "No such file")

    def test_overlays(self):
        """They are added to a running server in its sandbox, and reset."""
        folder = self.path("inside")
        os.mkdir(folder)
        base, empty, made = self.image("inside/base"), os.path.join(folder, "empty"), os.path.join(folder, "made")
        server = self.serve("--export-folder", folder)
        with open(empty, "wb"):
            pass
        # Relative to the folder of the command, not of the server.
        self.assertEqual(self.run_gmblock("export", "add", "r", "base", "overlay=empty", "--server", self.control,
                                          cwd=folder), (0, f'export "r": added, {base}, overlay {empty}\n', ""))
        self.export("remove", "r")
        self.assertEqual(self.export("add", "r", base, "overlay=discard"),
                         f'export "r": added, {base}, overlay discard\n')
        self.export("remove", "r")
        create = ["create", "--base", base, f"overlay:{made}"]
        self.assertEqual(self.run_gmblock(*create), (0, "", ""))
        for name, overlay in ("e", empty), ("m", made):
            for content in bytes(4), b"kept":
                self.export("add", name, base, f"overlay={overlay}")
                with nbdmini.open_export(server.uri, name.encode()) as client:
                    self.assertEqual(client.read(4096, 4), content)
                    client.write(4096, b"kept")
                    if name == "m":
                        self.check_refused([*create, "--force"], 1, "is already served for writing")
                self.export("remove", name)
            code, output, errors = self.run_gmblock("check", overlay)
            self.assertEqual(code, 0, output + errors)
        self.check_refused(create, 1, "is an overlay; --force replaces it with a new one")
        self.assertEqual(self.run_gmblock(*create, "--force"), (0, "", ""))
        with open(empty, "wb"):
            pass
        # As a crash leaves it: the size is there, and the header is not.
        half = os.path.join(folder, "half")
        with open(half, "wb") as file:
            file.truncate(os.stat(made).st_size)
        for name, overlay in ("e", empty), ("m", made), ("h", half):
            self.export("add", name, base, f"overlay={overlay}")
            with nbdmini.open_export(server.uri, name.encode()) as client:
                self.assertEqual(client.read(4096, 4), bytes(4))
        self.assertEqual(server.stop()[0], 0)
        with open(base, "rb") as file:
            self.assertEqual(file.read(), bytes(1 << 20))
        self.check_refused(["create", "--base", base, f"overlay:{base}", "--force"], 1, "is not an overlay")
        for arguments, fragment in ((["--size=1M", *create[1:]], "takes only --base and --force"),
                                    ([create[-1]], "an overlay needs --base"),
                                    (["--base", base, f"flash:{base}"], "omit --base"),
                                    (["--segment=65537", f"flash:{base}"], "whole blocks"),
                                    (["--label", "x" * 64, f"flash:{base}"], "at most 63 bytes"),
                                    (["flash:"], "does not name a file"),
                                    (["fault:x"], "use flash:FILE or overlay:FILE")):
            self.check_refused(["create", *arguments], 2, fragment)

    def test_a_flash_store_is_refused_before_it_is_opened(self):
        server = self.serve("--export-folder", self.folder)
        store = f"flash:{self.path('flash')}"
        self.assertEqual(self.run_gmblock("create", "--size=64M", store)[0], 0)
        self.assertIn("the disk can only be opened when the server starts",
                      self.export("add", "f", store, f"cache-dir={self.folder}/none", status=1))
        status, errors = server.stop()
        self.assertEqual((status, "no write cache" in errors), (0, False), errors)

    def test_other_users(self):
        if os.geteuid() != 0:
            self.skipTest("only root can be somebody else")
        self.serve()
        os.chmod(self.folder, 0o755)
        os.chmod(self.control, 0o777)
        done = subprocess.run([support.program(), "export", "list", "--server", self.control],
                              user=65534, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("only root and the user of this process", done.stderr)


class Configuration(Live):
    def serve(self, *exports, **more):
        file = self.configure(*exports, **more)
        return self.start_unix("--config", file, "--control", self.control, uri_count=len(exports))

    def test_the_difference(self):
        one = self.image("one")
        server = self.serve("name: stays, path: 'null:1M'", "name: goes, path: 'null:1M'",
                            f"name: changes, path: '{one}'", "name: slower, path: 'null:1M', rate: 1G")
        with nbdmini.open_export(server.uri, b"stays") as stays, \
                nbdmini.open_export(server.uri, b"goes") as goes, \
                nbdmini.open_export(server.uri, b"changes") as changes, \
                nbdmini.open_export(server.uri, b"slower") as slower:
            self.export("add", "added", "null:1M")
            self.configure("name: stays, path: 'null:1M'", f"name: changes, path: '{one}', readonly: yes",
                           "name: slower, path: 'null:1M', rate: 500M", "name: comes, path: 'null:1M'",
                           more="limits: {threads: 1}\n")
            lines = ['export "changes": readonly=yes (was default); the clients of the export are disconnected',
                     'export "slower": rate=500M (was 1G)', 'export "comes": added, null:1M',
                     'export "goes": removed; the clients of the export are disconnected',
                     "threads: changed; takes effect at the next restart"]
            self.assertEqual(self.reload("--dry-run").splitlines(), lines)
            for client in (stays, goes, changes, slower):
                client.read(0, 512)
            self.assertEqual(self.changes(), lines)
            self.assertTrue(goes.at_end())
            self.assertTrue(changes.at_end())
            for client in (stays, slower):
                client.read(0, 512)
            self.assertEqual(set(self.served()), {"stays", "changes", "slower", "comes", "added"})
            for name in (b"added", b"comes"):
                nbdmini.open_export(server.uri, name).close()
            with nbdmini.open_export(server.uri, b"changes") as client:
                self.assertTrue(client.flags & nbdmini.FLAG_READ_ONLY)
            self.assertEqual(self.reload("--dry-run").splitlines(), lines[-1:])
        self.configure("name: stays, path: 'null:1M'")
        server.signal(signal.SIGHUP)
        self.wait_for(lambda: set(self.served()) == {"stays", "added"})

    def own_etc(self):
        """What a server calls to have a folder of the test at /etc."""
        os.mkdir(self.path("etc"))
        for file in "passwd", "group", "nsswitch.conf", "ld.so.cache":
            if os.path.exists(f"/etc/{file}"):
                shutil.copy(f"/etc/{file}", self.path("etc"))
        libc, folder = ctypes.CDLL(None, use_errno=True), self.path("etc").encode()

        def enter():
            # CLONE_NEWNS; MS_REC | MS_PRIVATE; MS_BIND
            if (libc.unshare(0x20000) != 0 or libc.mount(b"none", b"/", None, 0x44000, None) != 0
                    or libc.mount(folder, b"/etc", None, 4096, None) != 0):
                os._exit(125)

        return enter

    def test_the_user_is_compared_by_number(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        os.chmod(self.folder, 0o755)
        user = pwd.getpwnam("nobody")
        group = grp.getgrgid(user.pw_gid).gr_name
        self.configure("name: '', path: 'null:1M'", more="user: nobody\n")
        self.start_unix("--config", self.path("conf"), "--control", self.control, preexec_fn=self.own_etc())
        for file in "passwd", "group":  # as useradd and vipw do
            shutil.copy(self.path(f"etc/{file}"), self.path("new"))
            os.rename(self.path("new"), self.path(f"etc/{file}"))
        for text in (str(user.pw_uid), f"nobody:{group}", f"'{user.pw_uid}:{user.pw_gid}'"):
            self.configure("name: '', path: 'null:1M'", more=f"user: {text}\n")
            self.assertEqual(self.reload("--dry-run"), "nothing would change\n")
        self.configure("name: '', path: 'null:1M'", more="user: daemon\n")
        self.assertEqual(self.reload("--dry-run"), "user: changed; takes effect at the next restart\n")

    def test_values_are_compared_and_not_their_text(self):
        """Another spelling changes nothing, nor does a default that is written down."""
        one, base, flash = self.image("one"), self.image("base"), self.path("flash")
        code, _, errors = self.run_gmblock("create", "--size=64M", f"flash:{flash}")
        self.assertEqual(code, 0, errors)
        socket, metrics = self.socket_uri("s"), "http://127.0.0.1:0"
        both = (
            (f"path: '{one}', readonly: yes, mode: auto, stripe: '64K:2', rate: 1024K, max-memory: 4M",
             f"path: '{one}', readonly: true, page-cache-send: auto, stripe: '65536:2', write-mode: cached, "
             "rate: '1M:burst=100ms', max-memory: 4096K, overlap: auto"),
            (f"path: '{base}', overlay: discard, mode: cached", f"path: '{base}', write-mode: cached, mode: cached, "
             "readonly: off, overlay: discard"),
            ("path: 'memory:1M', overlap: 'off', fault: ['read:EIO:nth=1000:range=64K+4K', 'write:EIO:nth=9999'], "
             "delay: ['flush:1000us'], pace: 1G",
             "path: 'memory:1024K', overlap: off, fault: ['read:EIO:range=65536+4096:nth=1000', "
             "'write:EIO:nth=9999'], delay: ['flush:1ms'], pace: '1024M:members=1'"),
            ("path: 'null:1M'", "path: 'null:1048576', rate: off, max-memory: off, description: ''"),
            (f"path: '{self.image('two')}'", f"path: '{self.path('two')}', mode: auto"),
            (f"path: 'flash:{flash}', cache: 1M, on-full: drop",
             f"path: 'flash:{flash}', cache: 1024K, map-memory: 65536K"))
        rules = (("listen: [{uri: '%s&socket-mode=0660'}, {uri: 'nbd://[::1]:0'}]\n"
                  "limits: {memory: 64M, idle-timeout: 60s}\n"
                  "export-folder: [%s, /tmp]\npush-to: [10.0.0.0/8, '::1']\nmetrics: %s\n"
                  "rates: [{rate: 1024K, address: 10.0.0.0/8}]\naccess: [{rights: rw, address: 10.0.0.0/8}, rw]\n"
                  % (socket, self.folder, metrics)),
                 ("listen: [{uri: '%s&socket-mode=660'}, {uri: 'nbd://[0:0::0:1]:0'}]\n"
                  "limits: {idle-timeout: 1min, memory: 65536K}\nsandbox: auto\n"
                  "export-folder: [/tmp, %s/]\npush-to: ['0:0:0:0:0:0:0:1', '10.0.0.0/8,port=10811']\nmetrics: %s/\n"
                  "rates: [{address: '::ffff:10.0.0.0/104', rate: 1M}]\n"
                  "access: [{address: 10.0.0.0/8, rights: rw}, {rights: rw}]\n" % (socket, self.folder, metrics)))
        texts = [[f"name: e{i}, {spellings[n]}" for i, spellings in enumerate(both)] for n in range(2)]
        file = self.configure(*texts[0], more=rules[0])
        server = self.start("--config", file, "--control", self.control, uri_count=2 * len(both))
        clients = [nbdmini.open_export(server.uri, b"e%d" % i) for i in range(len(both))]
        for n in 1, 0:
            self.configure(*texts[n], more=rules[n])
            self.assertEqual(self.reload("--dry-run"), "nothing would change\n")
            self.assertEqual(self.reload(), "the configuration has not changed\n")
        for client in clients:
            client.read(4096, 512)
        for key, value in (("overlap", "'off'"), ("delay", "['flush:2ms']"), ("mode", "direct"),
                           ("pace", "2G"), ("page-cache-send", "off"), ("rate", "2M"), ("max-connections", "7")):
            self.configure(*texts[0][:4], f"name: e4, path: '{self.path('two')}', {key}: {value}", *texts[0][5:],
                           more=rules[0])
            value = value.strip("[']")
            self.assertEqual(self.reload("--dry-run"),
                             f'export "e4": {key}={value} (was default); the clients of the export are disconnected\n'
                             if key not in ("rate", "max-connections") else
                             f'export "e4": {key}={value} (was default)\n')

    def test_long_values_that_differ_at_their_ends(self):
        """They are shown as far as there is room."""
        exports = "name: a, path: 'null:1M', description: '%s'"
        self.serve(exports % ("x" * 300 + "y"))
        self.configure(exports % ("x" * 300 + "z"))
        self.assertRegex(self.reload("--dry-run"), r'^export "a": description=x{50,}\S* \(was x{50,}\S*\)\n$')

    def test_a_dry_run_with_an_error(self):
        """It is the reload that would fail."""
        self.serve("name: a, path: 'null:1M'")
        self.configure("name: a, path: 'null:1M', mode: nonsense")
        self.assertIn("a reload would fail and change nothing: ", self.reload("--dry-run", status=1))
        self.assertIn("the reload failed, and nothing was changed: ", self.reload(status=1))

    def test_rules_of_access_hold_for_what_was_added(self):
        """They are those of exports without rules of their own, as long as it is served."""
        server = self.serve("name: a, path: 'null:1M', access: [rw]", more="access: [rw]\n")
        self.export("add", "added", "null:1M")
        with nbdmini.open_export(server.uri, b"added") as client:
            self.assertFalse(client.flags & nbdmini.FLAG_READ_ONLY)
        for more, is_read_only in (("access: [ro]\n", True), ("access: [rw]\n", False), ("access: [none]\n", None)):
            self.configure("name: a, path: 'null:1M', access: [rw]", more=more)
            self.reload()
            self.assertEqual(set(self.served()), {"a", "added"})
            if is_read_only is None:
                self.refused(server, b"added")
            else:
                with nbdmini.open_export(server.uri, b"added") as client:
                    self.assertEqual(bool(client.flags & nbdmini.FLAG_READ_ONLY), is_read_only)
        self.configure("name: a, path: 'null:1M', access: [rw]")
        self.assertIn('no longer contains access rules for the export "added"', self.reload(status=1))
        self.refused(server, b"added")

    def test_rules_that_change_are_told(self):
        """One line for each export, with the rule and what it does to connections."""
        server = self.serve("name: a, path: 'memory:1M'")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(0, bytes(512))
            self.configure("name: a, path: 'memory:1M', access: [ro]")
            line = 'export "a": access: "rights=ro" added; 1 connection loses write access\n'
            self.assertEqual(self.reload("--dry-run"), line)
            client.write(0, bytes(512))
            self.assertEqual(self.reload(), line)
            with self.assertRaises(OSError):
                client.write(0, bytes(512))
        self.assertEqual(server.stop()[0], 0)
        server = self.serve("name: a, path: 'null:1M', access: [rw]", "name: b, path: 'null:1M'",
                            "name: c, path: 'null:1M', access: [ro]", more="access: [rw]\n")
        self.export("add", "added", "null:1M")
        a, b, c, added = (nbdmini.open_export(server.uri, name) for name in (b"a", b"b", b"c", b"added"))
        with a, b, c, added, nbdmini.open_export(server.uri, b"a") as second:
            self.configure("name: a, path: 'null:1M', access: [{rights: none, tls: true}, ro]",
                           "name: b, path: 'null:1M'", "name: c, path: 'null:1M', access: [{tls: false, rights: ro}]",
                           more="access: [none]\n")
            lines = ['export "a": access: "tls=true rights=none" and 1 more (was "rights=rw"); '
                     "2 connections lose write access",
                     'export "b": access: "rights=none" (was "rights=rw"); 1 connection ends',
                     'export "c": access: "tls=false rights=ro" (was "rights=ro"); no connection loses access',
                     'export "added": access: "rights=none" (was "rights=rw"); 1 connection ends']
            self.assertEqual(self.reload("--dry-run").splitlines(), lines)
            for client in (a, b, c, added, second):
                client.read(0, 512)
            self.assertEqual(self.reload().splitlines(),
                             lines + ["connections ended: 2"])
            self.assertEqual(self.reload("--dry-run"), "nothing would change\n")
            self.assertTrue(b.at_end())
            self.assertTrue(added.at_end())
            for client in (a, c, second):
                client.read(0, 512)
        # An export that is replaced loses its clients anyway.
        self.configure("name: a, path: 'null:2M', access: [rw]", "name: b, path: 'null:1M', access: [rw, ro]",
                       "name: c, path: 'null:1M', access: [ro]", more="access: [none]\n")
        self.assertEqual(self.changes(), [
            'export "a": path=null:2M (was null:1M)',
            'export "a": access: "rights=rw" (was "tls=true rights=none" and 1 more)',
            'export "b": access: "rights=rw" and 1 more (was "rights=none"); no connection loses access',
            'export "c": access: "rights=ro" (was "tls=false rights=ro"); no connection loses access'])

    def test_rates_are_those_of_the_file_again(self):
        """A reload takes back what gmblock export has changed, and says so."""
        rules = "rates: [{rate: 10M, uid: 1, memory: 4M}, {rate: off, uid: 2, connections: 3}]\n"
        exports = "name: a, path: 'null:1M', rate: 1G", "name: b, path: 'null:1M', max-memory: 4M"
        server = self.serve(*exports, more=rules)
        with nbdmini.open_export(server.uri, b"a") as client:
            self.export("set", "a", "rate=2M")
            self.export("set", "b", "rate=3M", "max-memory=8M")
            rules = rules.replace("10M", "30M").replace("4M", "off").replace("off, uid: 2", "5M, uid: 2")
            self.configure(*exports, more=rules)
            lines = ['export "a": rate=1G (was 2M)', 'export "b": max-memory=4M (was 8M), rate=default (was 3M)',
                     "rate rule 1: rate=30M:burst=100ms (was 10M:burst=100ms)",
                     "rate rule 1: memory=off (was 4M)", "rate rule 2: rate=5M:burst=100ms (was off)"]
            self.assertEqual(self.reload("--dry-run").splitlines(), lines)
            self.assertEqual(self.changes(), lines)
            self.assertEqual(self.reload("--dry-run"), "nothing would change\n")
            code, output, _ = self.run_gmblock("stats", "--json", self.control)
            found = json.loads(output)
            self.assertEqual([(entry["rate"]["bytes_per_second"], entry["memory"]["max_bytes"])
                              for entry in found["exports"]], [(1 << 30, None), (None, 4 << 20)])
            self.assertEqual([rule["bytes_per_second"] for rule in found["rates"]], [30 << 20, 5 << 20])
            self.configure(*exports, more=rules.replace("30M", "20M"))
            self.assertEqual(self.reload("--dry-run"),
                             "rate rule 1: rate=20M:burst=100ms (was 30M:burst=100ms)\n")
            self.configure(*exports, more=rules.replace("3}", "4}"))
            self.assertEqual(self.reload("--dry-run"), "rates: changed; takes effect at the next restart\n")
            client.read(0, 512)

    def test_what_is_wrong_changes_nothing(self):
        server = self.serve("name: a, path: 'null:1M'", "name: b, path: 'null:1M'")
        before = self.served()
        for exports, fragment in ((["name: a, path: 'null:1M', mode: fast"], ":2:36: "),
                                  (["name: a, path: 'null:1M'", "name: a, path: 'null:1M'"], "already used"),
                                  (["name: a, path: 'null:1M'", "name: c, path: '/absent'"], "create the file first"),
                                  ([], "nothing to serve")):
            self.configure(*exports)
            if not exports:
                self.make_file("conf", "exports: []\n")
            errors = self.reload(status=1)
            self.assertIn("the reload failed, and nothing was changed", errors)
            self.assertIn(fragment, errors)
            self.assertEqual(self.served(), before)
        nbdmini.open_export(server.uri, b"b").close()

    def test_check(self):
        file = self.configure("name: a, path: '/absent'", more="listen: ['nbd://localhost']\n")
        self.assertEqual(self.run_gmblock("serve", "--check", file),
                         (0, "valid: 1 export, 1 address\n", ""))
        file = self.configure("name: a, path: '/absent'")
        self.assertEqual(self.run_gmblock("serve", "--check", file),
                         (0, "valid: 1 export, the default address\n", ""))
        file = self.configure("name: a, path: x, overlap: some")
        self.check_refused(["serve", "--check", file], 2, f"{file}:2:", "overlap")

    def test_names_of_keys_and_options_are_the_same(self):
        """Each option that the file can have, too, and each limit."""
        _, output, _ = self.run_gmblock("serve", "--help")
        for place, keys in (("limits: {%s}\n", ("memory: x", "threads: x", "max-connections: x",
                                                "max-connections-per-peer: x", "handshake-timeout: x",
                                                "idle-timeout: x", "max-inflight: x", "spin: x")),
                            ("%s\n", ("arena: x", "control: ''", "sandbox: x", "export-folder: [/absent]",
                                     "push-to: [x]"))):
            for text in keys:
                key, value = text.split(": ")
                self.assertIn(f"--{key} ", output)
                file = self.configure("name: '', path: 'null:1M'", more=place % text)
                in_file = self.check_refused(["serve", "--check", file], 2, f"{file}:1:", key)
                word = value.strip("'[]")
                on_line = self.check_refused(["serve", "null:1M", f"--{key}", word], 2, f"--{key}: ")
                self.assertEqual(in_file.rpartition(key + ": ")[2].strip().split("entry 1: ")[-1],
                                 on_line.rpartition(f"--{key}: ")[2].splitlines()[0])

    def test_keys_of_the_top(self):
        file = self.configure("name: '', path: 'null:1M'",
                              more=f"control: {self.control}\nsandbox: off\nexport-folder: [{self.folder}]\n")
        self.start_unix("--config", file)
        self.assertEqual(set(self.served()), {""})
        other = self.path("other")
        self.start("--config", file, "--control", other, "--listen", self.socket_uri("t"))
        self.assertEqual(self.run_gmblock("reload", other)[0], 0)


class UnderLoad(Live):
    CHANGES = int(os.environ.get("SOAK_LIVE_ROUNDS", "15"))

    def test_no_request_fails(self):
        """Clients of exports that stay notice nothing but time."""
        images = [self.image(name, 16) for name in ("one", "two")]
        texts = [f"name: '{name}', path: '{path}'" for name, path in zip("ab", images)]
        file = self.configure(*texts)
        server = self.start_unix("--config", file, "--control", self.control, "--threads", "2",
                                 uri_count=2)
        benches = [subprocess.Popen(
            [support.program(), "bench", "--json", "--rw", "randrw", "--depth", "8", "--connections",
             "2", "--seconds", "600", uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for uri in server.uris]
        for bench in benches:
            self.addCleanup(bench.communicate)
            self.addCleanup(bench.kill)
        self.wait_for(lambda: all(
            entry["connections"] == 2
            for entry in json.loads(self.export("list", "--json"))["exports"]))
        for number in range(self.CHANGES):
            self.configure(*texts[:1], f"{texts[1]}, rate: {1000 + number}M",
                           f"name: c{number}, path: 'memory:1M'")
            self.reload()
            self.export("add", "x", "null:1M", "max-connections=3")
            self.export("set", "x", f"rate={number + 1}M")
            nbdmini.open_export(server.uri, b"x").close()
            self.export("set", "x", "overlap=off")
            self.export("remove", "x")
        stalls = []
        for bench in benches:
            self.assertIsNone(bench.poll())
            bench.send_signal(signal.SIGINT)
            output, errors = bench.communicate()
            self.assertEqual(errors.splitlines()[-1:],
                             ["gmblock bench: the measurement was interrupted before its end"])
            document = json.loads(output)
            self.assertGreater(document["requests"], 0)
            stalls.append(document["latency_us"]["max"] / 1000)
        print(f"{4 * self.CHANGES} changes: longest request {max(stalls):.1f} ms", file=sys.stderr)
        self.assertEqual(server.stop()[0], 0)

    def test_many_at_once(self):
        """Changes are made one after the other, whoever asks."""
        self.start_unix("null:1M", "--control", self.control)
        statuses = []

        def add_and_remove(name):
            for _ in range(5):
                for arguments in (("add", name, "memory:1M"), ("remove", name)):
                    statuses.append(self.run_gmblock(
                        "export", *arguments, "--server", self.control)[0])

        threads = [threading.Thread(target=add_and_remove, args=(str(i),)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(statuses, [0] * 60)
        self.assertEqual(set(self.served()), {""})


if __name__ == "__main__":
    support.main()
