#!/usr/bin/python3
"""A folder with a vhost-user-blk socket for each export, which comes and goes with the export."""
import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import threading

import support
import upgrades
import vhost_tool as tool

MIB = 1 << 20


class Folder(upgrades.Case):
    def setUp(self):
        super().setUp()
        self.sockets = self.path("sockets")
        os.mkdir(self.sockets)
        self.control = self.path("control")

    def uri(self, **parameters):
        return f"vhost-user-blk+unix:///?folder={self.sockets}" + "".join(f"&{k}={v}" for k, v in parameters.items())

    def image(self, name):
        """A disk whose bytes are the first letter of its name."""
        return self.make_file(name + ".img", name[0].encode() * MIB)

    def serve(self, *names, arguments=(), folder=None):
        exports = [word for name in names for word in ("--export", f"{name}={self.image(name)}")]
        server = self.start(*exports, "--listen", folder or self.uri(), "--control", self.control, "--export-folder",
                            self.folder, *arguments, uri_count=len(names))
        self.addCleanup(self.kill_children)  # first, as they have the standard error of the server, too
        return server

    def files(self):
        return sorted(os.listdir(self.sockets))

    def command(self, *arguments):
        run = subprocess.run([support.program(), *arguments], check=False, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def export(self, *arguments):
        return self.command("export", *arguments, "--server", self.control)

    def check(self, name):
        """A front end at the socket of the export gets this export."""
        with tool.Device(f"vhost-user-blk+unix:///?socket={self.sockets}/{name}") as device:
            self.assertEqual(device.read(0, 512), name[0].encode() * 512)
            self.assertEqual(device.do(tool.GET_ID, size=20)[1].rstrip(b"\0").decode(), name[:20])

    def test_sockets_of_exports(self):
        names = ["a", "b.c", "d e", "é", "x" * 30]
        server = self.serve(*names)
        self.assertEqual(len(server.uris), 5)
        self.assertEqual(server.uri, f"vhost-user-blk+unix:///a?socket={self.sockets}/a")
        self.assertEqual(self.files(), sorted(names))
        for name in ("a", "b.c", "d e", "x" * 30):
            self.check(name)
        uris = json.loads(self.command("stats", "--json", self.control))["uris"]
        self.assertEqual(sorted(uris), sorted(server.uris))
        self.assertEqual(server.stop(), (0, ""))
        self.assertEqual(self.files(), [])

    def test_an_export_that_comes_and_goes(self):
        server = self.serve("a", "b", arguments=["--sandbox=on"])
        for _ in range(3):
            self.export("add", "new", self.image("new"))
            self.assertEqual(self.files(), ["a", "b", "new"])
            self.check("new")
            device = tool.Device(f"vhost-user-blk+unix:///?socket={self.sockets}/new")
            self.export("remove", "new")
            device.gone()
            device.close()
            self.assertEqual(self.files(), ["a", "b"])
        self.export("remove", "a")
        self.assertEqual(self.files(), ["b"])
        self.check("b")
        self.assertEqual(server.stop(), (0, ""))
        self.assertEqual(self.files(), [])

    def test_connections_while_the_export_goes(self):
        """They reach their thread after the socket was closed. Only sanitizers notice if that uses freed memory."""
        server = self.serve("a", arguments=["--threads=4"])
        image, path, is_done = self.image("new"), self.sockets + "/new", threading.Event()

        def connect():
            while not is_done.is_set():
                with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                    for _ in range(32):
                        held.enter_context(socket.socket(socket.AF_UNIX)).connect(path)

        threads = [threading.Thread(target=connect) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                self.export("add", "new", image)
                self.export("remove", "new")
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
        self.check("a")
        self.assertEqual(server.stop()[0], 0)

    def test_a_reload(self):
        config = self.path("gmblock.conf")

        def write(*names):
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"exports": [{"name": name, "path": self.path(name + ".img")} for name in names]}, file)

        for name in "abc":
            self.image(name)
        write("a", "b")
        self.start("--config", config, "--listen", self.uri(), "--control", self.control, uri_count=2)
        write("b", "c")
        self.command("reload", self.control)
        self.assertEqual(self.files(), ["b", "c"])
        self.check("b")
        self.check("c")

    def test_a_snapshot_has_a_socket(self):
        self.command("create", "--size=64M", "flash:" + self.path("flash"))
        self.start("--export", f"f=flash:{self.path('flash')}", "--listen", self.uri(), "--control", self.control)
        self.command("snapshot", "create", "f", "s", "--server", self.control)
        self.assertEqual(self.files(), ["f", "f@s"])
        self.command("snapshot", "delete", "f", "s", "--server", self.control)
        self.assertEqual(self.files(), ["f"])

    def test_names_that_are_no_file_names(self):
        server = self.serve("a", arguments=["--export", f"x/y={self.image('x')}", "--export", f"..={self.image('y')}",
                                            "--export", f"={self.image('z')}",
                                            "--export", "n" * 120 + f"={self.image('n')}"])
        self.assertEqual(self.files(), ["a"])
        self.check("a")
        output = self.export("add", "p/q", self.image("p"))
        self.assertIn("no socket", output)
        self.assertIn("its name contains a slash", output)
        self.check("a")
        errors = server.stop()[1]
        for text in ('"x/y": no socket in .*slash', '"..": no socket in .*folder', '"": no socket in .*empty',
                     'no socket in .*has .* bytes, the limit is 107'):
            self.assertRegex(errors, text)

    def test_access_rules_of_each_export(self):
        self.serve("a", "b", arguments=["--access", f"a: uid={os.geteuid()} rights=ro",
                                        "--access", "b: uid=65534 rights=rw"])
        with tool.Device(f"vhost-user-blk+unix:///?socket={self.sockets}/a") as device:
            self.assertTrue(device.offered & tool.F_RO)
        with tool.Connection(f"vhost-user-blk+unix:///?socket={self.sockets}/b") as connection:
            connection.gone()

    def test_the_mode_of_sockets(self):
        self.serve("a", folder=self.uri(**{"socket-mode": "0662"}), arguments=["--sandbox=on"])
        self.export("add", "b", self.image("b"))
        for name in ("a", "b"):
            self.assertEqual(stat.S_IMODE(os.stat(f"{self.sockets}/{name}").st_mode), 0o662)

    def test_a_killed_server(self):
        """The next one replaces its sockets, and removes those of exports that it does not have."""
        server = self.serve("a")
        self.export("add", "b", self.image("b"))
        server.kill()
        self.assertEqual(self.files(), ["a", "b"])
        self.make_file("sockets/other", b"not a socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.sockets + "/living")
            listening.listen()
            self.serve("a")
            self.assertEqual(self.files(), ["a", "living", "other"])
        self.check("a")
        self.export("add", "b", self.image("b"))
        self.check("b")

    def test_a_server_that_starts_in_the_same_folder(self):
        """Its socket does not listen yet, and is not taken for that of a killed server."""
        folder = os.open(self.sockets, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as starting:
            starting.bind(self.sockets + "/starting")
            self.serve("a")
            self.assertEqual(self.files(), ["a", "starting"])

    def test_a_folder_that_another_process_locks(self):
        """It delays the server once, not once for each socket."""
        names = [f"e{number}" for number in range(120)]
        folder = os.open(self.sockets, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_SH)
        exports = [word for name in names for word in ("--export", f"{name}=null:1M")]
        server = self.start(*exports, "--listen", self.uri(), uri_count=len(names))
        self.assertEqual(self.files(), sorted(names))
        self.assertEqual(server.stop(), (0, ""))
        self.assertEqual(self.files(), [])

    def test_a_path_that_is_in_use(self):
        self.make_file("sockets/b", b"not a socket")
        with self.assertRaisesRegex(AssertionError, r"sockets/b: the path exists and is not a socket"):
            self.serve("a", "b")
        self.serve("a")
        output = self.export("add", "b", self.image("b"))
        self.assertRegex(output, r'export "b": no socket in .*the path exists and is not a socket')
        self.check("a")
        self.export("remove", "b")
        os.unlink(self.sockets + "/b")
        self.export("add", "b", self.image("b"))
        self.check("b")

    def listen(self, *names):
        """Sockets of another program in the folder."""
        listeners = []
        for name in names:
            listener = socket.socket(socket.AF_UNIX)
            self.addCleanup(listener.close)
            listener.bind(f"{self.sockets}/{name}")
            listener.listen(200)
            listener.setblocking(False)
            listeners.append(listener)
        return listeners

    def tries(self, listener):
        """How often a server has found that a program listens there: it connects each time that it tries to bind."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                count += 1
        return count

    def test_sockets_in_use_at_the_start(self):
        """The server waits for those of a server that was just killed, but once, not for each socket."""
        listeners = self.listen("a", "b", "c", "d")
        exports = [word for name in "abcd" for word in ("--export", f"{name}=null:1M")]
        code, _, errors = self.run_gmblock("serve", *exports, "--listen", self.uri(), "--control", "none")
        self.assertEqual(code, 1)
        self.assertIn("sockets/a: another program listens on this socket", errors)
        self.assertEqual([self.tries(listener) for listener in listeners], [40, 1, 1, 1])

    def test_a_socket_in_use_while_the_server_runs(self):
        """Nothing else would go on in the main thread while it waits."""
        self.serve("a", arguments=["--sandbox=off"])
        listener, = self.listen("b")
        output = self.export("add", "b", self.image("b"))
        self.assertRegex(output, r'export "b": no socket in .*another program listens on this socket')
        self.assertEqual(self.tries(listener), 1)
        self.check("a")

    def test_a_socket_in_use_and_a_sandbox(self):
        self.serve("a", arguments=["--sandbox=on"])
        listener, = self.listen("b")
        output = self.export("add", "b", self.image("b"))
        self.assertRegex(output, "the sandbox does not allow the server to check whether a program listens there")
        self.assertEqual(self.tries(listener), 0)

    def test_a_reload_tries_again(self):
        config = self.path("gmblock.conf")
        exports = [{"name": "a", "path": self.image("a")}, {"name": "x/y", "path": self.image("x")}]
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"exports": exports}, file)
        server = self.start("--config", config, "--listen", self.uri(), "--control", self.control, "--export-folder",
                            self.folder, uri_count=1)
        self.addCleanup(server.stop)
        self.make_file("sockets/b", b"not a socket")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"exports": [*exports, {"name": "b", "path": self.image("b")}]}, file)
        for _ in range(2):
            output = self.command("reload", self.control)
            self.assertRegex(output, r'export "b": no socket in .*the path exists and is not a socket')
            self.assertNotIn("slash", output)
        os.unlink(self.sockets + "/b")
        self.assertNotIn("no socket", self.command("reload", self.control))
        self.check("b")

    def test_an_upgrade_passes_the_sockets(self):
        self.serve("a", "b")
        self.export("add", "c", self.image("c"))
        before = {name: os.stat(f"{self.sockets}/{name}").st_ino for name in self.files()}
        self.must_upgrade()
        self.assertEqual({name: os.stat(f"{self.sockets}/{name}").st_ino for name in self.files()}, before)
        for name in ("a", "b", "c"):
            self.check(name)
        self.export("remove", "c")
        self.export("add", "d", self.image("d"))
        self.assertEqual(self.files(), ["a", "b", "d"])
        self.check("d")
        self.stop_newest()
        self.assertEqual(self.files(), [])

    def test_uris(self):
        for uri, message in ((f"vhost-user-blk+unix:///a?folder={self.sockets}", "remove the name"),
                             (self.uri(**{"socket-group": "root"}), "setgid"),
                             (self.uri(queues=4), "'queues' is only for clients"),
                             (f"vhost-user-blk+unix:///a?socket={self.path('s')}&queues=4", "only for clients"),
                             (f"nbd+unix:///?folder={self.sockets}", "only for vhost-user-blk"),
                             (self.uri(socket="/x"), "both 'socket' and 'folder'"),
                             (self.uri(folder="/x"), "'folder' is given twice")):
            self.check_refused(["serve", "null:1M", "--listen", uri], 2, message)
        self.check_refused(["info", self.uri()], 2, "write ?socket=FOLDER/EXPORT")
        self.check_refused(["serve", "null:1M", "--listen", f"vhost-user-blk+unix:///?folder={self.image('a')}"], 1,
                           f"{self.image('a')}: not a folder")
        errors = self.check_refused(["serve", "--listen", f"vhost-user-blk+unix:///?folder={self.path('none')}", "--export",
                                     f"a={self.image('a')}", "--export", f"b={self.image('b')}"], 1,
                                    f"{self.path('none')}: no such folder; create it")
        self.assertEqual(len(errors.splitlines()), 1, errors)


if __name__ == "__main__":
    upgrades.main()
