#!/usr/bin/python3
"""What a hostile server says, whatever command shows it, never steers the terminal, nor hides there: every
string of an answer has each character that could. One that pretends to be another server is not believed,
and one that never ends its answer is left.

    hostile-text.py GMBLOCK [NO_PASSRIGHTS] [unittest argument]...

NO_PASSRIGHTS: what is preloaded into the commands that are sent files, so that they find no SO_PASSRIGHTS,
as before Linux 6.16.
"""
import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import fake_server as fake
import lingering_socket
import nbdmini
import support
from support import EVIL, FORBIDDEN

NO_PASSRIGHTS = os.path.realpath(sys.argv.pop(2)) if sys.argv[2:] and sys.argv[2].endswith(".so") else None
# What decides how an answer is read.
KEPT = {"service", "version", "kind"}
# Values that the poison keeps at their beginning, as a command looks at them.
PREFIX = {"code"}


def poison(value, key=None):
    """The same value with EVIL behind every string, also behind the names of what is counted."""
    if isinstance(value, dict):
        evil_keys = key == "store" or key in ("layer",)
        return {name + EVIL if evil_keys else name: poison(entry, "layer" if key == "store" else name)
                for name, entry in value.items()}
    if isinstance(value, list):
        return [poison(entry, key) for entry in value]
    return value + EVIL if isinstance(value, str) and key not in KEPT | PREFIX else value


class Between:
    """Passes on commands to a real server, and poisons what it answers."""

    def __init__(self, path, target):
        self.target = target
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self.target)
            with client.makefile("rb") as lines, server.makefile("rb") as answers:
                client.sendall(answers.readline())
                server.sendall(lines.readline())
                for line in answers:
                    client.sendall(json.dumps(poison(json.loads(line)), ensure_ascii=False).encode() + b"\n")

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


class Control(support.Case):
    def setUp(self):
        super().setUp()
        self.control, self.evil = self.path("real"), self.path("evil")
        self.server = self.start_unix("--export", "a=memory:1M,fault=read:EIO:every=3,delay=write:1ms,rate=100M",
                                      "--export", "b=null:1M", "--control", self.control, uri_count=2)
        between = Between(self.evil, self.control)
        self.addCleanup(between.close)

    def clean(self, *command, status=0, **options):
        code, output, errors = self.run_gmblock(*command, **options)
        self.assertEqual(code, status, errors)
        self.assertIsNone(FORBIDDEN.search(output + errors), repr(output + errors))
        self.assertRegex(output + errors, r"\\x1b|\\u001B", command)
        return output

    def test_text_of_all_commands(self):
        with nbdmini.open_export(self.server.uri, b"a") as client:
            client.write(0, b"x" * 65536)
            with contextlib.suppress(OSError):
                for _ in range(4):
                    client.read(0, 65536)
        # Counted when the next answer comes.
        with nbdmini.open_export(self.server.uri, b"b") as client:
            client.read(0, 1)
        at = ("--server", self.evil)
        self.check_commands(at)

    def check_commands(self, at):
        for command, status in ((("stats",), 0), (("stats", "--json"), 0), (("stats", "--prometheus"), 0),
                                (("export", "list"), 0), (("export", "list", "--json"), 0),
                                (("export", "add", "c", "memory:1M"), 0), (("export", "set", "a", "rate=1M"), 0),
                                (("export", "remove", "absent"), 1), (("snapshot", "create", "a", "s"), 1),
                                (("snapshot", "list"), None), (("export", "set", "z", "rate=2M"), 1),
                                (("reload",), None)):
            with self.subTest(command):
                if status is None:
                    code, output, errors = self.run_gmblock(*command, *at)
                    self.assertIsNone(FORBIDDEN.search(output + errors), repr(output + errors))
                    continue
                output = self.clean(*command, *at, status=status)
                if "--json" in command:
                    self.assertIn(EVIL, self.all_strings(output))

    @staticmethod
    def all_strings(output):
        found = []

        def look(value):
            if isinstance(value, str):
                found.append(value)
            elif isinstance(value, dict):
                for entry in value.items():
                    look(list(entry))
            elif isinstance(value, list):
                for entry in value:
                    look(entry)

        look(json.loads(output))
        return "".join(found)

    def test_watched(self):
        with subprocess.Popen([support.program(), "stats", "--watch=0.1", "--json", self.evil],
                              stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3):
                line = process.stdout.readline()
                self.assertIsNone(FORBIDDEN.search(line), repr(line))
            process.terminate()

    def test_top(self):
        """Its own sequences are none of those in EVIL."""
        with subprocess.Popen([sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])", support.program(),
                               "top", "--interval=0.1", self.evil], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as watching:
            self.addCleanup(watching.kill)
            output = b""
            while output.count(b"\x1b[H") < 3:
                piece = os.read(watching.stdout.fileno(), 4096)
                self.assertTrue(piece, output)
                output += piece
            self.server.kill()  # ends the command
            output += watching.communicate()[0]
        output = output.decode(errors="surrogateescape")
        self.assertNotIn("\x1b[31m", output)
        output = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r+(?=\n)", "", output)
        self.assertIsNone(FORBIDDEN.search(output), repr(output))
        self.assertIn(r"\x1b", output)

    def test_traced(self):
        for form in ((), ("--json",)):
            process = subprocess.Popen(
                [support.program(), "trace", "--request", *form, "--server", self.evil], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertIn("waiting for 1 request", process.stderr.readline())
            with nbdmini.open_export(self.server.uri, b"a") as client, contextlib.suppress(OSError):
                client.read(0, 65536)
            output, errors = process.communicate()
            self.assertEqual(process.returncode, 0, errors)
            self.assertIsNone(FORBIDDEN.search(output + errors), repr(output))
            self.assertRegex(output, r"\\x1b|\\u001B")

    def test_an_answer_that_never_ends(self):
        """Byte by byte, or note by note: the limit is for the whole. All of them at once."""
        hello = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": 1}
        ended = threading.Event()
        self.addCleanup(ended.set)

        def never(listener, piece):
            client = listener.accept()[0]
            with client, contextlib.suppress(OSError):
                client.sendall(json.dumps(hello).encode() + b"\n")
                while not ended.wait(0.05):
                    client.sendall(piece)

        running = []
        for piece in (b"x", b'{"note": {}}\n'):
            for i, command in enumerate((["stats"], ["stats", "--prometheus"])):
                path = self.path(f"never{len(piece)}{i}")
                listener = socket.socket(socket.AF_UNIX)
                self.addCleanup(listener.close)
                listener.bind(path)
                listener.listen()
                threading.Thread(target=never, args=(listener, piece), daemon=True).start()
                running.append(subprocess.Popen([support.program(), *command, "--server", path],
                                                stderr=subprocess.PIPE, text=True))
        for process in running:
            self.addCleanup(process.kill)
        for process in running:
            # Only what never ends fails here.
            self.assertIn("no response for 10 seconds", process.communicate(timeout=support.WAIT_SECONDS)[1])
            self.assertEqual(process.returncode, 1)


class Files(support.Case):
    """Open files that take an hour to close come with the answer."""

    def answer(self, listener, with_hello, flags, slow):
        """The file comes with the hello or with the answer."""
        hello = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": 1}
        with listener.accept()[0] as client, contextlib.suppress(OSError):
            if with_hello:
                self.give(client, flags, slow)
            client.sendall(json.dumps(hello).encode() + b"\n")
            client.recv(4096)
            if not with_hello:
                self.give(client, flags, slow)
            client.sendall(json.dumps({"result": {"exports": []}}).encode() + b"\n")
            client.recv(4096)

    @staticmethod
    def give(client, flags, slow):
        """If the command ends without having received the file, this close() waits, until the peers are closed."""
        with slow, contextlib.suppress(OSError):
            socket.send_fds(client, [b" "], [slow.fileno()], flags)

    def test_no_command_waits_for_their_end(self):
        environment = {"LD_PRELOAD": NO_PASSRIGHTS} if NO_PASSRIGHTS else {}
        for command in (["stats"], ["export", "list"], ["upgrade"]):
            for with_hello in (False, True):
                for flags in (0, socket.MSG_OOB):
                    with self.subTest(command=command, with_hello=with_hello, flags=flags):
                        path, peers = self.path("files"), []
                        with socket.socket(socket.AF_UNIX) as listener, lingering_socket.make(peers) as slow:
                            listener.bind(path)
                            listener.listen()
                            thread = threading.Thread(target=self.answer, args=(listener, with_hello, flags, slow))
                            thread.start()
                            try:
                                # Only what waits for an hour fails here.
                                subprocess.run([support.program(), *command, "--server", path], capture_output=True,
                                               check=False, timeout=support.WAIT_SECONDS,
                                               env=dict(os.environ, **environment))
                            finally:
                                for peer in peers:
                                    peer.close()
                                thread.join()
                        os.unlink(path)


class Daemon(support.Case):
    """What attach --list and detach show of a daemon, and of what is kept about it."""

    def serve(self, listener):
        hello = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": os.getpid()}
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            with client, client.makefile("rb") as lines, contextlib.suppress(OSError):
                client.sendall(json.dumps(hello).encode() + b"\n")
                if b"detach" in lines.readline():
                    answers = [{"note": {"text": "note" + EVIL}}, {"error": {"text": "no" + EVIL, "code": "EBUSY"}}]
                else:
                    answers = [{"result": {"state": "connected" + EVIL, "last_reason": "lost" + EVIL}}]
                for answer in answers:
                    client.sendall(json.dumps(answer, ensure_ascii=False).encode() + b"\n")

    def test_list_and_detach(self):
        note = {"kind": "fuse", "device": self.path("disk") + r"\x1b[31m\xc2\x9b", "uri": "nbd://h/" + EVIL,
                "number": 0, "pid": os.getpid(), "bytes": 1 << 20, "read_only": False, "made_file": False}
        path = self.make_file("0.json", json.dumps(note, ensure_ascii=False).encode())
        environment = dict(os.environ, GMBLOCK_ATTACH_DIR=self.folder)
        with open(path, "rb") as file, socket.socket(socket.AF_UNIX) as listener:
            fcntl.flock(file, fcntl.LOCK_EX)  # its daemon runs
            listener.bind(self.path("0.sock"))
            listener.listen()
            thread = threading.Thread(target=self.serve, args=(listener,))
            thread.start()
            try:
                for command, status in ((["attach", "--list"], 0), (["attach", "--list", "--json"], 0),
                                        (["detach", "0"], 1)):
                    code, output, errors = self.run_gmblock(*command, env=environment)
                    self.assertEqual(code, status, errors)
                    self.assertIsNone(FORBIDDEN.search(output + errors), repr(output + errors))
                    self.assertRegex(output + errors, r"\\x1b|\\u001B", command)
                    self.assertIn({"attach": "connected", "detach": "note"}[command[0]], output + errors)
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()


class Checked(support.Case):
    def test_an_overlay_names_its_base(self):
        """The name is in the file of the overlay."""
        base, overlay = self.make_file("base" + EVIL, bytes(1 << 20)), "overlay:" + self.path("overlay")
        self.assertEqual(self.run_gmblock("create", "--base", base, overlay)[0], 0)
        os.unlink(base)
        for command in (["check", overlay], ["check", "--json", overlay]):
            _, output, errors = self.run_gmblock(*command)
            self.assertIsNone(FORBIDDEN.search(output + errors), repr(output + errors))
            self.assertRegex(output + errors, r"\\x1b|\\u001B", command)


class Impostor(support.Case):
    """Of another user, or a server that was taken over, before the commands of root."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root asks the servers of others")
        super().setUp()
        os.chmod(self.folder, 0o755)
        self.uid, self.user = self.log_somebody_in()

    def impostor(self, path, uri, uid, listens_as_root=False):
        """Says that it serves uri, or a list of them."""
        code = """
import json, os, socket, sys
path, uris, uid, first = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
listener = socket.socket(socket.AF_UNIX)
if first: listener.bind(path)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
if not first: listener.bind(path)
listener.listen()
print("ready", flush=True)
while True:
  try:
    client = listener.accept()[0]
    client.sendall(json.dumps({"service": "gmblock control", "protocol": 1, "version": "0", "pid": 1}).encode() + b"\\n")
    client.recv(4096)
    client.sendall(json.dumps({"result": {"pid": 1, "uris": uris, "exports": [{"name": "fake", "path": "x"}]}}).encode() + b"\\n")
    client.close()
  except OSError:
    pass
"""
        uris = json.dumps(uri if isinstance(uri, list) else [uri])
        process = subprocess.Popen([sys.executable, "-c", code, path, uris, str(uid), str(int(listens_as_root))],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_another_spelling_of_a_uri(self):
        server = self.start_unix("memory:1M")
        other = server.uri.replace(self.folder, self.folder.replace("/tmp/", "/tmp//"))
        self.impostor(self.user + "/gmblock/serve/1.sock", other, self.uid)
        taken_over = "/run/gmblock-serve/gmblock-test.sock"
        self.addCleanup(lambda: os.path.exists(taken_over) and os.unlink(taken_over))
        self.impostor(taken_over, other, 65534, True)
        for uri in (server.uri, other):
            code, output, errors = self.run_gmblock("stats", "--json", uri)
            self.assertEqual(code, 0, errors)
            self.assertEqual(json.loads(output)["pid"], server.process.pid, uri)

    def silent(self, folder):
        """Mounts a file system there that receives requests and answers none: who waits cannot be killed. Returns
        the names that were looked up."""
        libc, names, over = ctypes.CDLL(None, use_errno=True), [], threading.Event()
        try:
            fuse = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            self.skipTest(f"no FUSE: {error.strerror}")
        self.addCleanup(os.close, fuse)
        os.mkdir(folder)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"silent", folder.encode(), b"fuse", 0, options) != 0:
            self.skipTest(f"no FUSE: {os.strerror(ctypes.get_errno())}")
        self.addCleanup(libc.umount2, folder.encode(), 2)  # MNT_DETACH

        def receive():
            while not over.is_set():
                if select.select([fuse], [], [], 0.05)[0]:
                    request = os.read(fuse, 1 << 18)
                    _, opcode, unique = struct.unpack_from("<IIQ", request)
                    if opcode == 26:  # FUSE_INIT
                        os.write(fuse, struct.pack("<IiQIIIIHHIIHHI28x", 80, 0, unique, 7, 31, 0, 0, 8, 8, 4096, 1,
                                                   1, 0, 0))
                    elif opcode == 1:  # FUSE_LOOKUP
                        names.append(request[40:].rstrip(b"\0").decode())

        thread = threading.Thread(target=receive)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)
        return names

    @staticmethod
    def children(pid):
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if int(parent) == pid:
                    found.append(state)
        return found

    def test_a_file_system_that_never_answers(self):
        """A server names paths of it; another spelling of a URI is looked up meanwhile. Only one is tried, and
        who is left behind there keeps nothing open and nobody waiting."""
        folder, taken_over = self.path("silent"), "/run/gmblock-serve/gmblock-test-silent.sock"
        names = self.silent(folder)
        server = self.start_unix("memory:1M")
        self.addCleanup(lambda: os.path.exists(taken_over) and os.unlink(taken_over))
        absent = [f"nbd+unix:///?socket={self.folder}/absent{i}" for i in range(30)]
        self.impostor(taken_over, absent + [f"nbd+unix:///?socket={folder}/{name}" for name in "stuv"], 65534, True)
        other = server.uri.replace(self.folder, self.folder + "/.")
        with subprocess.Popen([support.program(), "stats", "--json", other], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            # On a very busy machine an absent path may be the one that takes too long.
            self.wait_for(lambda: names or process.poll() is not None)
            children = self.children(process.pid)
            output, errors = process.communicate(timeout=support.WAIT_SECONDS)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(json.loads(output)["pid"], server.process.pid)
        self.assertLessEqual(len(names), 1, names)
        self.assertLessEqual(len(children), 1, children)

    def test_spelling_does_not_decide_among_others(self):
        """A server that has given up root, and one that claims its URI as it is asked for."""
        server = self.start_unix("memory:1M", "--user", "nobody")
        other = server.uri.replace(self.folder, self.folder.replace("/tmp/", "/tmp//"))
        taken_over = "/run/gmblock-serve/gmblock-test-spelling.sock"
        self.addCleanup(lambda: os.path.exists(taken_over) and os.unlink(taken_over))
        self.impostor(taken_over, other, 65534, True)
        code, _, errors = self.run_gmblock("stats", "--json", other)
        self.assertEqual(code, 1)
        self.assertIn("2 servers match", errors)

    def test_a_uri_that_only_a_user_claims(self):
        self.impostor(self.user + "/gmblock/serve/1.sock", "nbd://localhost/nobody-serves-this", self.uid)
        code, _, errors = self.run_gmblock("export", "set", "a", "rate=1M", "--server", "nbd://localhost/nobody-serves-this")
        self.assertEqual(code, 1, errors)

    def test_names_of_sockets(self):
        """In the folder of a user; at one of them somebody else listens."""
        for name, uid in ((EVIL, self.uid), ("\udcff\x1b[31m", self.uid), (EVIL + "x", 65534)):
            self.impostor(f"{self.user}/gmblock/serve/{name}.sock", "nbd://h", uid, True)
        code, output, errors = self.run_gmblock("list", "--local")
        self.assertEqual((code, FORBIDDEN.search(output + errors)), (0, None), repr(output + errors))
        for name in (r"\x1b[31m\xc2\x9b31m\x7f", r"\xff\x1b[31m"):
            self.assertIn(f", {self.user}/gmblock/serve/{name}", output)
        listed = json.loads(self.run_gmblock("list", "--local", "--json")[1])["servers"]
        self.assertEqual([entry.get("uid") for entry in listed if "31m" in entry["socket"]].count(self.uid), 2)

    def test_the_id_of_another_process(self):
        server = self.start_unix("memory:1M", "--control", "none")
        pid = server.process.pid
        fake_process = self.impostor(f"{self.user}/gmblock/serve/{pid}.sock", server.uri, self.uid)
        code, _, errors = self.run_gmblock("stats", str(pid))
        self.assertEqual(code, 1)
        self.assertIn("its process ID does not match the name", errors)
        right = f"{self.user}/gmblock/serve/{fake_process.pid}.sock"
        os.rename(f"{self.user}/gmblock/serve/{pid}.sock", right)
        code, output, _ = self.run_gmblock("stats", "--json", str(fake_process.pid))
        self.assertEqual((code, json.loads(output)["pid"]), (0, fake_process.pid))
        listed = json.loads(self.run_gmblock("list", "--local", "--json")[1])["servers"]
        self.assertIn((fake_process.pid, self.uid, right), [(entry.get("pid"), entry.get("uid"), entry["socket"])
                                                         for entry in listed])


class Local(support.Case):
    def test_servers_that_accept_nobody(self):
        """There is a limit for all of them, and their queues are full, so it is for connecting, too."""
        folder = self.path("gmblock/serve")
        os.makedirs(folder)
        os.chmod(self.folder, 0o755)
        for name in range(7):
            listener = socket.socket(socket.AF_UNIX)
            self.addCleanup(listener.close)
            listener.bind(f"{folder}/{name}.sock")
            listener.listen(0)
            os.chmod(f"{folder}/{name}.sock", 0o777)
            waits = socket.socket(socket.AF_UNIX)
            self.addCleanup(waits.close)
            waits.connect(f"{folder}/{name}.sock")
        options = {"env": dict(os.environ, XDG_RUNTIME_DIR=self.folder)}
        if os.geteuid() == 0:
            options.update(user=65534, group=65534, extra_groups=[])
        try:
            running = [subprocess.Popen([support.program(), *command], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, **options)
                       for command in (["list", "--local"], ["stats"])]
        except PermissionError:
            self.skipTest("others may not run the program")
        for process in running:
            self.addCleanup(process.kill)
        # Only what never ends fails here.
        outputs = [process.communicate(timeout=support.WAIT_SECONDS)[0] for process in running]
        self.assertEqual(outputs[0].count("cannot connect: Connection timed out"), 7, outputs[0])
        self.assertIn("no server matches, but not all servers could be queried", outputs[1])

    def test_the_time_limit_of_a_list(self):
        folder = self.path("gmblock/serve")
        os.makedirs(folder)
        os.chmod(self.folder, 0o755)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(f"{folder}/1.sock")
        listener.listen()
        os.chmod(f"{folder}/1.sock", 0o777)
        options = {"env": dict(os.environ, XDG_RUNTIME_DIR=self.folder)}
        if os.geteuid() == 0:
            options.update(user=65534, group=65534, extra_groups=[])
        for more, told in (((), "no response for 2 seconds"),
                           (("--timeout", "1500ms"), "no response for [01] seconds|cannot connect")):
            try:
                code, output, _ = self.run_gmblock("list", "--local", *more, **options)
            except PermissionError:
                self.skipTest("others may not run the program")
            self.assertEqual(code, 0)
            self.assertRegex(output, told)

    def test_servers_are_listed(self):
        folder = tempfile.mkdtemp(prefix="gmblock-list-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o777)
        options = {"env": dict(os.environ, XDG_RUNTIME_DIR=folder)}
        if os.geteuid() == 0:
            options.update(user=65534, group=65534, extra_groups=[])
        try:
            self.assertEqual(self.run_gmblock("list", "--local", **options), (0, "", ""))
        except PermissionError:
            self.skipTest("others may not run the program")
        servers = [self.start("--export", "a=memory:1M", "--export", "b=null:1M", "--listen",
                              f"nbd+unix:///?socket={folder}/{name}", uri_count=2, **options) for name in ("one", "two")]
        code, output, errors = self.run_gmblock("list", "--local", **options)
        self.assertEqual((code, errors), (0, ""))
        for server in servers:
            pid = server.process.pid
            self.assertRegex(output, rf"(?m)^Server {pid}, user \d+( \(.*\))?, {folder}/gmblock/serve/{pid}.sock\n"
                             + "".join(f"  {re.escape(uri)}\n" for uri in server.uris))
        told = json.loads(self.run_gmblock("list", "--local", "--json", **options)[1])["servers"]
        self.assertEqual({entry["pid"]: entry["uris"] for entry in told},
                         {server.process.pid: server.uris for server in servers})
        self.assertEqual(told[0]["exports"], [{"name": "a", "path": "memory:1M"}, {"name": "b", "path": "null:1M"}])
        code, _, errors = self.run_gmblock("stats", **options)
        self.assertEqual(code, 1)
        for server in servers:
            self.assertIn(f"{server.process.pid} {server.uri}", errors)
        self.assertIn('"gmblock list --local" lists the servers', errors)
        for wrong in (["--local", "nbd://h"], ["--local", "--long"], ["--local", "--uri"]):
            self.check_refused(["list", *wrong], 2, "--local can be combined only with --json and --timeout")


class Nbd(support.Case):
    """Names, descriptions, contexts and the reasons of refusals."""

    def clean(self, *command):
        code, output, errors = self.run_gmblock(*command)
        self.assertIsNone(FORBIDDEN.search(output + errors), repr(output + errors))
        self.assertRegex(output + errors, r"\\x1b|\\u001B", command)
        return code, output

    def test_what_is_offered(self):
        name, words = b"disk" + EVIL.encode(), ("words" + EVIL).encode()

        def answer(dialogue):
            option, _ = dialogue.option()
            if option == fake.LIST:
                dialogue.reply(option, fake.SERVER, struct.pack(">I", len(name)) + name + words)
                dialogue.reply(option, fake.ACK)
            elif option in (fake.INFO, fake.GO):
                dialogue.reply(option, fake.INFO_REPLY, struct.pack(">H", 1) + name)
                dialogue.reply(option, fake.INFO_REPLY, struct.pack(">H", 2) + words)
                dialogue.reply(option, fake.INFO_REPLY, struct.pack(">HQH", 0, 1 << 20, 1))
                dialogue.reply(option, fake.ACK)
            elif option == fake.LIST_META:
                dialogue.reply(option, fake.META, struct.pack(">I", 0) + b"x:" + words)
                dialogue.reply(option, fake.ACK)
            elif option == fake.STRUCTURED_REPLY:
                dialogue.reply(option, fake.ACK)
            else:
                dialogue.reply(option, fake.UNSUP, words)

        def script(dialogue):
            dialogue.greet()
            while True:
                answer(dialogue)

        with fake.FakeServer(script) as server:
            for command in (["list"], ["list", "--long"], ["list", "--json"], ["info"], ["info", "--json"],
                            ["info", "--list"]):
                with self.subTest(command):
                    code, output = self.clean(*command, server.uri())
                    self.assertEqual(code, 0)
                    if "--json" in command:
                        self.assertIn(EVIL, Control.all_strings(output))

    def test_refusals(self):
        def script(dialogue):
            dialogue.greet()
            while True:
                option, _ = dialogue.option()
                dialogue.reply(option, fake.POLICY, ("no" + EVIL).encode())

        with fake.FakeServer(script) as server:
            for command in (["list"], ["info"], ["info", "--map"], ["bench", "--seconds", "0.1"],
                            ["copy", "--to", "x"]):
                with self.subTest(command):
                    if command[0] == "copy":
                        code, _ = self.clean("copy", server.uri(), self.path("target"))
                    else:
                        code, _ = self.clean(*command, server.uri())
                    self.assertEqual(code, 1)


if __name__ == "__main__":
    support.main()
