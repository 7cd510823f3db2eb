#!/usr/bin/python3
"""A server that was taken over does not choose what `gmblock upgrade` runs, nor with whose rights: who is
replaced is what the kernel says, and what is run is what was recorded when the server was started."""
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

import nbdmini
import support
import upgrade_process

NOBODY = pwd.getpwnam("nobody")
AS_NOBODY = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": []}
HELLO = upgrade_process.message(upgrade_process.HELLO)
PREPARE = upgrade_process.message(upgrade_process.PREPARE)
ADDED = upgrade_process.message(10)
RECORDS = "/run/gmblock-serve"


def user_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"^Uid:\s+\d+\s+(\d+)", file.read(), re.M).group(1))


def overwrite_arguments(pid, *arguments):
    """As a server can do with its own memory."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(argument.encode() + b"\0" for argument in arguments)
    assert len(text) <= end - start, (len(text), end - start)
    # What is left over is one argument more, an empty description of nothing.
    text = text[:-1].ljust(end - start - 1, b" ") + b"\0"
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text)


def stand_in(path, pid, said, has_ended):
    """The protocol of a server that is upgraded, by a process of nobody with root's listening socket; has_ended: by
    another one, to which it has left all."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.setgroups([])
        os.setgid(NOBODY.pw_gid)
        os.setuid(NOBODY.pw_uid)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if has_ended and os.fork() != 0:
            os._exit(0)
        print("ready", flush=True)
        client = listener.accept()[0]
    hello = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": pid}
    client.sendall(json.dumps(hello).encode() + b"\n")
    client.recv(65536)
    folder = os.open("/", os.O_PATH)
    socket.send_fds(client, [b'{"note": {"offer": "upgrade"}}\n'], [theirs.fileno(), 2, folder])
    theirs.close()
    with open(said, "wb") as file:
        file.write(ours.recv(65536))


class Trust(support.Case):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        super().setUp()
        os.chmod(self.folder, 0o755)
        self.pwned = self.path("pwned")
        self.children = []

    def kill_children(self):
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.children.clear()

    def upgrade(self, *arguments, **options):
        code, output, errors = self.run_gmblock("upgrade", *arguments, **options)
        found = re.match(r"process (\d+) is now serving", output)
        if found:
            self.children.append(int(found[1]))
            # Before the server's end is waited for, whose standard error the new process has.
            self.addCleanup(self.kill_children)
        return code, errors

    def must_upgrade(self, *arguments, **options):
        self.assertEqual(self.upgrade(*arguments, **options), (0, ""))
        return self.children[-1]

    def serve(self, *arguments, **options):
        server = self.start_unix("memory:1M", *arguments, **options)
        return server, server.process.pid

    def test_arguments_that_the_server_has_overwritten(self):
        for user in ((), ("--user", "nobody")):
            for control in ((), ("--control", self.path("control"))):
                server, pid = self.serve(*user, *control, "--max-connections=" + "0" * 400 + "64")
                overwrite_arguments(pid, support.program(), "serve", "memory:1M", "--sandbox=off", "--listen",
                                    self.socket_uri(), "--run", f"echo > {self.pwned}; cat")
                with nbdmini.open_export(server.uri) as client:
                    client.write(0, b"kept")
                    for asked in (pid, None):
                        new = self.must_upgrade(control[1] if control else str(asked or self.children[-1]))
                        self.assertEqual(client.read(0, 4), b"kept")
                        self.assertEqual(user_of(new), NOBODY.pw_uid if user else 0)
                self.assertFalse(os.path.exists(self.pwned))
                self.assertEqual(server.process.wait(), 0)
                self.kill_children()
                os.unlink(self.path("s"))

    def test_another_process_in_its_place(self):
        """It says the process id of a program of root's that does what its arguments say."""
        for recorded in (False, True):
            if recorded:
                victim = self.serve()[0].process
            else:
                script = f'test -z "$GMBLOCK_UPGRADE_FD" || : > {self.pwned}; read line'
                victim = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE)
                self.addCleanup(victim.communicate)
            control, said = self.path(f"c{recorded}"), self.path("said")
            with subprocess.Popen([sys.executable, __file__, "--stand-in", control, str(victim.pid), said],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as fake:
                os.chmod(self.folder, 0o777)
                self.assertEqual(fake.stdout.readline(), "ready\n")
                code, errors = self.upgrade(control)
                self.assertEqual(code, 1)
                self.assertRegex(errors, rf"process {fake.pid} belongs to another user \({NOBODY.pw_uid}\)")
                fake.kill()
            self.assertFalse(os.path.exists(self.pwned))
            self.assertFalse(os.path.exists(said) and os.path.getsize(said) > 0)

    def test_a_process_that_has_ended(self):
        """Another one, which has its sockets, answers: its number may be anybody's meanwhile."""
        control, said = self.path("control"), self.path("said")
        fake = subprocess.Popen([sys.executable, __file__, "--stand-in", control, "1", said, "has ended"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(fake.stdout.close)
        os.chmod(self.folder, 0o777)
        self.assertEqual(fake.stdout.readline(), "ready\n")
        self.assertEqual(fake.wait(), 0)
        code, errors = self.upgrade(control)
        self.assertEqual(code, 1)
        self.assertIn(f"process {fake.pid} has ended", errors)
        fake.stdout.read()  # the other one has ended, too

    def test_nobody_reads_what_the_server_writes(self):
        """What the new process says is passed on there, but not waited for."""
        reads, writes = os.pipe()
        with open(reads, "rb", buffering=0) as reader, open(writes, "wb", buffering=0) as errors:
            server = subprocess.Popen([support.program(), "serve", "memory:1M", "--listen", self.socket_uri()],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
            self.addCleanup(server.stdout.close)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            server.stdout.readline()
            os.set_blocking(writes, False)
            while errors.write(bytes(4096)):
                pass
            os.set_blocking(writes, True)
            reader.read(4096)  # room for what the server says itself
            code, said = self.upgrade(str(server.pid), "--", "/bin/sh", "-c", "printf %04000d 0 >&2; exit 1")
            self.assertEqual(code, 1)
            self.assertIn("output of the new process: 0000", said)

    def test_a_socket_that_another_process_answers(self):
        """The listening socket is of one process, and another one offers the connection."""
        server = self.serve("--control", self.path("control"))[0]
        os.chmod(self.folder, 0o777)
        with subprocess.Popen([sys.executable, __file__, "--relay", self.path("relay"), self.path("control")],
                              stdout=subprocess.PIPE, text=True) as relay:
            self.assertEqual(relay.stdout.readline(), "ready\n")
            code, errors = self.upgrade(self.path("relay"))
            self.assertEqual(code, 1)
            self.assertIn(f"process {relay.pid} listens on the control socket, but process {server.process.pid} ",
                          errors)
            relay.kill()

    def test_the_user_is_changed_before_anything_is_read(self):
        # Its credentials are those of who makes it.
        os.seteuid(NOBODY.pw_uid)
        try:
            old, new = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        finally:
            os.seteuid(0)
        with old, new:
            environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(new.fileno()))
            command = [support.program(), "serve", "memory:1M", "--listen", self.socket_uri(), "--control", "none"]
            with subprocess.Popen([*command, "--user", "nobody"], env=environment, pass_fds=[new.fileno()],
                                  stdout=subprocess.DEVNULL) as process:
                self.assertTrue(old.recv(65536).startswith(HELLO))
                self.assertEqual(user_of(process.pid), NOBODY.pw_uid)
                old.send(PREPARE)
                process.kill()
            done = subprocess.run(command, env=environment, pass_fds=[new.fileno()], stderr=subprocess.PIPE,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"the server runs as user {NOBODY.pw_uid}, but the new process would run as user 0",
                          done.stderr)

    def take_added(self, path, *arguments):
        """What a new process says that is told of an added export: the type of the message, and its sentence."""
        old, new = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with old, new:
            environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(new.fileno()))
            command = [support.program(), "serve", "memory:1M", "--listen", self.socket_uri(), "--control", "none",
                       *arguments]
            with subprocess.Popen(command, env=environment, pass_fds=[new.fileno()], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as process:
                self.assertTrue(old.recv(65536).startswith(HELLO))
                old.send(ADDED + b"added\0" + path.encode() + b"\0")
                old.send(PREPARE)
                answer = old.recv(65536)
                process.kill()
        return struct.unpack(">IHH", answer[:8])[2], answer[8:].decode()

    def test_an_added_disk_that_the_sandbox_kept_from_the_server(self):
        folder = tempfile.mkdtemp(prefix="gmblock-upgrade-")
        self.addCleanup(shutil.rmtree, folder)
        disk = f"{folder}/disk"
        with open(disk, "wb") as file:
            file.truncate(1 << 20)
        self.assertEqual(self.take_added(disk, "--export-folder", folder)[0], upgrade_process.READY)
        self.assertEqual(self.take_added(disk, "--sandbox=off")[0], upgrade_process.READY)
        if json.loads(self.run_gmblock("info", "--local", "--json")[1])["features"]["landlock"]["available"]:
            said, sentence = self.take_added(disk)
            self.assertEqual(said, upgrade_process.FAILED)
            self.assertRegex(sentence, f'export "added".*{disk}.*the sandbox allows only files in use')

    def test_a_configuration_that_others_can_write(self):
        config = self.make_file("conf", "exports:\n- {name: a, path: 'memory:1M'}\n")
        server = self.start("--config", config, "--listen", self.socket_uri(), "--user", "nobody")
        link = self.path("link")
        os.symlink(self.folder, link)
        for change, mode, words in ((config, 0o666, "can be written by others .mode 0666."),
                                    (self.folder, 0o777, "can be written by others .mode 0777.")):
            before = os.stat(change).st_mode & 0o7777
            os.chmod(change, mode)
            code, errors = self.upgrade(str(server.process.pid))
            self.assertEqual(code, 1)
            self.assertRegex(errors, re.escape(change) + " " + words)
            os.chmod(change, before)
        os.chown(config, NOBODY.pw_uid, -1)
        self.assertRegex(self.upgrade(str(server.process.pid))[1], f"{config} belongs to user {NOBODY.pw_uid}")
        os.chown(config, 0, -1)
        os.lchown(link, NOBODY.pw_uid, -1)
        code, errors = self.upgrade(str(server.process.pid), "--", support.program(), "serve", "--config",
                                    f"{link}/conf", "--listen", self.socket_uri(), "--user", "nobody")
        self.assertRegex(errors, f"{link} belongs to user {NOBODY.pw_uid}")
        self.must_upgrade(str(server.process.pid))

    def test_records(self):
        """They are gone when the server is, and one that somebody else could have made is not used."""
        server, pid = self.serve("--control", self.path("control"))
        record = f"{RECORDS}/{pid}.start"
        with open(record, "rb") as file:
            self.assertEqual(file.read().split(b"\0")[3:5], [support.program().encode(), b"serve"])
        self.assertEqual(os.stat(record).st_mode & 0o777, 0o600)
        os.chmod(record, 0o622)
        self.assertIn("not recorded: " + record, self.upgrade(self.path("control"))[1])
        os.chmod(record, 0o600)
        with open(record, "rb") as file:
            right = file.read()
        for wrong, words in ((right.replace(right.split(b"\0")[1], b"12", 1), "belongs to an earlier process"),
                             (right[:-1], "Protocol error"), (b"", "Protocol error"),
                             (b"\0".join(right.split(b"\0")[:3]) + b"\0", "Protocol error")):
            with open(record, "wb") as file:
                file.write(wrong)
            self.assertRegex(self.upgrade(self.path("control"))[1], f"not recorded: {record}.*{words}.*after --")
        os.unlink(record)
        self.assertIn("not recorded: " + record, self.upgrade(self.path("control"))[1])
        new = self.must_upgrade(self.path("control"), "--", support.program(), "serve", "memory:1M", "--listen",
                                self.socket_uri(), "--control", self.path("control"))
        self.must_upgrade(self.path("control"))
        self.wait_for(lambda: not os.path.exists(f"{RECORDS}/{new}.start"))
        os.kill(self.children[-1], signal.SIGTERM)
        self.wait_for(lambda: not os.path.exists(f"{RECORDS}/{self.children[-1]}.start"))
        self.children.clear()
        self.assertEqual(server.process.wait(), 0)

    def test_a_user_and_his_own_server(self):
        folder = tempfile.mkdtemp(prefix="gmblock-upgrade-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
        program = shutil.copy(support.program(), f"{folder}/program")
        uri = f"nbd+unix:///?socket={folder}/s"
        options = {"env": dict(os.environ, XDG_RUNTIME_DIR=folder), "text": True, **AS_NOBODY}
        server = subprocess.Popen([program, "serve", "memory:1M", "--listen", uri], cwd=folder,
                                  stdout=subprocess.PIPE, **options)
        self.addCleanup(server.communicate)
        self.addCleanup(self.kill_children)
        self.children.append(server.pid)
        server.stdout.readline()
        with nbdmini.open_export(uri) as client:
            client.write(0, b"kept")
            for _ in range(2):
                done = subprocess.run([program, "upgrade"], capture_output=True, check=False, **options)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.children[-1] = int(done.stdout.split()[1])
                self.assertEqual(os.readlink(f"/proc/{self.children[-1]}/cwd"), folder)
            self.assertEqual(client.read(0, 4), b"kept")
        self.assertEqual(server.wait(), 0)


def relay(path, target):
    """Passes on all between a client and a server, descriptors included."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as server:
        listener.bind(path)
        listener.listen()
        server.connect(target)
        print("ready", flush=True)
        client = listener.accept()[0]
        with client.makefile("rb") as lines, server.makefile("rb", buffering=0) as hello:
            client.sendall(hello.readline())
            server.sendall(lines.readline())
        while True:
            data, fds, _, _ = socket.recv_fds(server, 65536, 8)
            socket.send_fds(client, [data], fds)


if __name__ == "__main__":
    if sys.argv[1] == "--stand-in":
        stand_in(sys.argv[2], int(sys.argv[3]), sys.argv[4], len(sys.argv) > 5)
    elif sys.argv[1] == "--relay":
        relay(*sys.argv[2:])
    else:
        support.main()
