#!/usr/bin/python3
"""A new process takes over from a running server, and clients notice nothing; whatever is wrong with
the new one, the old one goes on."""
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import urllib.parse

import nbdmini
import support

PR_SET_CHILD_SUBREAPER, MAGIC, VERSION = 36, 0x676D6255, 1
HELLO, LISTENER, EXPORT, PREPARE, READY, SESSION, SESSIONS_END, STARTED, FAILED = range(1, 10)
FIO = ["fio", "--name=upgrade", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=16M",
       "--time_based", "--runtime=2", "--verify=crc32c", "--verify_fatal=1"]


# --- a new process as it should not be ---------------------------------------------------------


def message(kind, payload=b"", version=VERSION, magic=MAGIC):
    return struct.pack(">IHH", magic, version, kind) + payload


def hello():
    return message(HELLO, struct.pack(">I", os.getpid()))


def receive(channel):
    """The type of the next message, whose descriptors are closed when it ends."""
    data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 8)
    if not data:
        sys.exit(3)
    return struct.unpack(">IHH", data[:8])[2], fds


def until(channel, kind):
    while receive(channel)[0] != kind:
        pass


def be_wrong(channel, how):
    """Each of these is one entry of the table WRONG."""
    if how == "dies-at-once":
        return
    if how == "hangs":
        while receive(channel):
            pass
    if how == "hello-with-descriptors":
        socket.send_fds(channel, [hello()], [0, 1, 2])
        receive(channel)
    first = {"no-magic": message(HELLO, struct.pack(">I", 1), magic=1),
             "older-version": message(HELLO, struct.pack(">I", 1), version=0),
             "newer-version": message(HELLO, struct.pack(">I", 1), version=2),
             "unknown-type": message(99),
             "short-hello": message(HELLO, b"\0"),
             "long-hello": message(HELLO, bytes(30000)),
             "pid-zero": message(HELLO, bytes(4)),
             "started-first": message(STARTED),
             "ready-first": message(READY),
             "session-first": message(SESSION, bytes(16))}
    channel.send(first.get(how, hello()))
    if how in first:
        receive(channel)
    if how == "dies-after-hello":
        return
    until(channel, PREPARE)
    if how == "hangs-prepared":
        receive(channel)
    if how == "dies-prepared":
        return
    if how == "fails-prepared":
        channel.send(message(FAILED, b"no \x1b[31mdisk"))
        receive(channel)
    if how == "started-without-ready":
        channel.send(message(STARTED))
        receive(channel)
    if how == "waits":
        with open(sys.argv[3], "w", encoding="utf-8"):
            receive(channel)
    channel.send(message(READY))
    if how == "dies-after-ready":
        return
    if how == "dies-with-a-session":
        until(channel, SESSION)
        return
    until(channel, SESSIONS_END)
    if how == "dies-with-all":
        return
    if how == "hangs-with-all":
        receive(channel)
    if how == "ready-again":
        channel.send(message(READY))
        receive(channel)
    if how == "fails-with-all":
        channel.send(message(FAILED, b"too late"))
        receive(channel)
    sys.exit(4)


WRONG = {
    "dies-at-once": "the new process has ended before it could serve",
    "hello-with-descriptors": "descriptors|too long",
    "no-magic": "without the magic number",
    "older-version": "speaks version 0 of the upgrade protocol, this one version 1",
    "newer-version": "speaks version 2 of the upgrade protocol, this one version 1",
    "unknown-type": "unknown type 99",
    "short-hello": "makes no sense",
    "long-hello": "makes no sense",
    "pid-zero": "makes no sense",
    "started-first": "does not speak in turn",
    "ready-first": "does not speak in turn",
    "session-first": "descriptors",
    "dies-after-hello": "has ended|cannot be passed",
    "dies-prepared": "the new process has ended before it could serve",
    "fails-prepared": r"no \\x1b\[31mdisk",
    "started-without-ready": "does not speak in turn",
    "dies-after-ready": "has ended|cannot be sent",
    "dies-with-a-session": "has ended|cannot be sent",
    "dies-with-all": "the new process has ended before it could serve",
    "ready-again": "does not speak in turn",
    "fails-with-all": "too late",
}


# And those that only a time limit ends.
HANGING = {
    "hangs": "has not come within 10 seconds",
    "hangs-prepared": "was not ready within 10 seconds",
    "hangs-with-all": "did not begin to serve within 5 seconds",
}


# --- a new process as it should be, and clients that come late ---------------------------------


def forward(source, target):
    """One message with its descriptors; returns its type, or None at the end."""
    data, fds, _, _ = socket.recv_fds(source, 1 << 16, 8)
    if not data:
        return None
    socket.send_fds(target, [data], fds)
    for fd in fds:
        os.close(fd)
    return struct.unpack(">IHH", data[:8])[2]


def be_between(channel, uri, name, command):
    """The new process is ready, but before the old one hears of that, a client connects to it."""
    own, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(inner.fileno()))
    with subprocess.Popen(command, env=environment, pass_fds=[inner.fileno()]) as process:
        inner.close()
        kind = forward(own, channel)
        while kind != PREPARE:
            kind = forward(channel, own)
        ready = own.recv(1 << 16)
        with nbdmini.open_export(uri, name.encode()) as client:
            channel.send(ready)
            while kind != SESSIONS_END and kind is not None:
                kind = forward(channel, own)
            while forward(own, channel) is not None:
                pass
            channel.close()
            client.read(0, 512)
        return process.wait()


def be_killed(channel, when, command):
    """The new process is killed when it is ready, or when it would serve; or then the old one is."""
    own, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = int(os.environ["GMBLOCK_UPGRADE_STDERR"])
    environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(inner.fileno()))
    with subprocess.Popen(command, env=environment, pass_fds=[inner.fileno(), errors]) as process:
        inner.close()
        forward(own, channel)
        while forward(channel, own) != PREPARE:
            pass
        if when != "ready":
            forward(own, channel)
            while forward(channel, own) != SESSIONS_END:
                pass
        own.recv(1 << 16)
        if when == "old":
            os.kill(struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0],
                    signal.SIGKILL)
            own.close()
            os._exit(0)  # the new one goes on
        process.kill()
    return 0


# --- the tests ---------------------------------------------------------------------------------


class Upgrade(support.Case):
    def setUp(self):
        super().setUp()
        self.disk = self.make_file("disk", os.urandom(16 << 20))
        self.children = []

    def kill_children(self):
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass

    def serve(self, *arguments, listen=None, filters="", **options):
        server = self.start("--export", f"={self.disk}{filters}", "--listen", listen or self.socket_uri(),
                            "--control", self.path("control"), *arguments, **options)
        # First, as they have the standard error of the server, too.
        self.addCleanup(self.kill_children)
        return server

    def make_log(self, name):
        path = self.path(name)
        code, _, errors = self.run_gmblock("create", "--size=64M", "--segment=256K", f"flash:{path}")
        self.assertEqual(code, 0, errors)
        return path

    def upgrade(self, *command):
        """Status, output and errors of the command; the pid of the new process is remembered."""
        code, output, errors = self.run_gmblock(
            "upgrade", self.path("control"), *(("--", *command) if command else ()))
        found = re.match(r"process (\d+) serves now; connections passed: (\d+), ended: (\d+); "
                         r"pause: ([0-9.]+) ms\n(those that ended .* connect again\n)?$", output)
        if found:
            self.assertEqual(found[3] != "0", found[5] is not None, output)
            self.children.append(int(found[1]))
        return code, found, errors

    def must_upgrade(self, *command):
        code, found, errors = self.upgrade(*command)
        self.assertEqual((code, errors), (0, ""))
        return int(found[2]), int(found[3]), float(found[4])

    def stop_newest(self):
        pid = self.children.pop()
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_fio(self):
        changes = self.path("changes")
        for listen, filters in ((None, f",overlay={changes}"), ("nbd://127.0.0.1:0", "")):
            server = self.serve(listen=listen, filters=filters)
            fio = subprocess.Popen([*FIO, f"--uri={server.uri}"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   cwd=self.folder)
            pauses = []
            while fio.poll() is None and len(pauses) < 5:
                passed, ended, pause = self.must_upgrade()
                self.assertEqual(ended, 0)
                pauses.append(pause)
                self.assertLessEqual(passed, 1)
            output = fio.communicate()[0]
            self.assertEqual(fio.returncode, 0, output)
            self.assertRegex(output, "err= 0")
            print(f"fio at {server.uri}: {len(pauses)} upgrades, longest pause {max(pauses)} ms",
                  file=sys.stderr)
            self.stop_newest()
            self.assertEqual(server.wait()[0], 0)
            self.children.clear()
            self.assertEqual(os.path.exists(self.path("s")), False)
            self.assertEqual(os.path.exists(self.path("control")), False)

    def test_copies(self):
        server = self.serve()
        target = self.path("copy")
        for tool in (["nbdcopy", "--requests=32"], [support.program(), "copy"]):
            before = len(self.children)
            for _ in range(3):
                copy = subprocess.Popen([*tool, server.uri, target], stdin=subprocess.DEVNULL)
                self.must_upgrade()
                self.assertEqual(copy.wait(), 0)
                with open(target, "rb") as copied, open(self.disk, "rb") as disk:
                    self.assertEqual(copied.read() == disk.read(), True)
                os.unlink(target)
            self.assertEqual(len(self.children), before + 3)

    def test_qemu_io(self):
        server = self.serve()
        qemu = subprocess.Popen(["qemu-io", "-f", "raw", server.uri], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        for pattern in range(1, 6):
            qemu.stdin.write(f"write -P {pattern} 0 1M\nread -P {pattern} 0 1M\nflush\n")
            qemu.stdin.flush()
            self.must_upgrade()
        output = qemu.communicate("quit\n")[0]
        self.assertEqual(qemu.returncode, 0)
        self.assertEqual((output.count("wrote "), output.count("read 1048576/")), (5, 5))
        self.assertNotRegex(output, "error|Pattern")

    def test_halves_of_requests(self):
        """What the old process has received of a request goes to the new one."""
        server = self.serve()
        data = os.urandom(4096)
        request = struct.pack(">IHHQQI", 0x25609513, 0, 1, 7, 8192, len(data)) + data
        for cut in (1, 27, 28, 29, 2000, 28 + 4095):
            with nbdmini.open_export(server.uri) as client:
                client.sock.sendall(request[:cut])
                client_passed = self.must_upgrade()[0]
                self.assertEqual(client_passed, 1)
                client.sock.sendall(request[cut:])
                self.assertEqual(client.reply(), (7, 0))
                self.assertEqual(client.read(8192, 4096), data)

    def test_negotiated(self):
        """Structured replies, the context, and the rights as they were agreed on."""
        server = self.serve()
        with nbdmini.open_export(server.uri, structured=True) as client:
            for _ in range(3):
                client.send_request(nbdmini.CMD_READ, 9, 0, 65536)
                chunks = client.chunks(9)
                with open(self.disk, "rb") as disk:
                    self.assertEqual(b"".join(chunk.data for chunk in chunks), disk.read(65536))
                self.must_upgrade()
        query = b"x-gmblock:size"
        with nbdmini.Client(server.uri) as client:
            client.hello()
            client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
            client.send_option(9, struct.pack(">III", 0, 1, len(query)) + query)
            client.option_replies(9)
            client.go()
            for cookie in range(3):  # a question is answered, and the next process takes another
                client.send_request(7, cookie, client.size, 0)
                self.assertEqual(self.must_upgrade()[0], 1)
                (chunk,) = client.chunks(cookie)
                self.assertEqual(chunk.data[-4:], struct.pack(">I", client.size))

    def test_a_question_among_many_requests(self):
        """More was received than one message tells, with a question for the size in it: the next process answers."""
        server = self.serve("--max-inflight", "1", filters=",delay=read:1s")
        query = b"x-gmblock:size"
        with nbdmini.Client(server.uri) as client:
            client.hello()
            client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
            client.send_option(9, struct.pack(">III", 0, 1, len(query)) + query)
            client.option_replies(9)
            client.go()
            flush = struct.pack(">IHHQQI", 0x25609513, 0, 3, 1, 0, 0)
            client.sock.sendall(400 * flush +
                                struct.pack(">IHHQQI", 0x25609513, 0, 0, 2, 0, 512) + flush +
                                struct.pack(">IHHQQI", 0x25609513, 0, 7, 3, client.size, 0) +
                                400 * flush)
            for _ in range(400):
                self.assertEqual(client.reply(), (1, 0))
            self.assertEqual(self.must_upgrade()[0], 1)
            cookies = []
            while len(cookies) < 403:
                if len(cookies) == 402:  # the question is answered when the process changes
                    self.must_upgrade()
                simple = client.sock.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL) == \
                    struct.pack(">I", nbdmini.SIMPLE_REPLY_MAGIC)
                cookies.append(client.reply()[0] if simple else client.chunk().cookie)
            self.assertEqual((cookies.count(1), cookies.count(2), cookies.count(3)), (401, 1, 1))

    def test_nobody_is_refused(self):
        for listen in (None, "nbd://127.0.0.1:0"):
            server = self.serve(listen=listen)
            ended, failures, count = threading.Event(), [], [0]

            def connect():
                while not ended.is_set():
                    try:
                        with nbdmini.open_export(server.uri) as client:
                            client.read(0, 512)
                        count[0] += 1
                    except (OSError, AssertionError, EOFError) as error:
                        failures.append(repr(error))

            threads = [threading.Thread(target=connect) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(5):
                self.must_upgrade()
            ended.set()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            self.assertGreater(count[0], 0)
            self.stop_newest()
            server.wait()

    def bench(self, uri):
        """How many connections a run over upgrades has lost, and how many were ended."""
        bench = subprocess.Popen(
            [support.program(), "bench", "--json", "--seconds", "2", uri], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ended = 0
        while bench.poll() is None:
            ended += self.must_upgrade()[1]
        output, errors = bench.communicate()
        self.assertEqual(bench.returncode, 0, output + errors)
        return json.loads(output)["connections_lost"], ended

    def test_bench(self):
        self.assertEqual(self.bench(self.serve().uri), (0, 0))

    def test_bench_over_gmb(self):
        """It connects again, as our other clients do."""
        uri = f"gmb+unix:///?socket={self.path('g')}"
        self.serve("--listen", uri, uri_count=2)
        lost, ended = self.bench(uri)
        self.assertGreater(lost, 0)
        self.assertGreaterEqual(ended, lost)

    def test_sessions_that_end(self):
        """Those of gmb cannot be passed: they end in order, and our client goes on by itself."""
        uri = f"gmb+unix:///?socket={self.path('g')}"
        self.serve("--listen", uri, uri_count=2)
        ended = 0
        while ended < 2:
            target = self.path("copy")
            copy = subprocess.Popen([support.program(), "copy", uri, target],
                                    stdin=subprocess.DEVNULL)
            while copy.poll() is None:
                ended += self.must_upgrade()[1]
            self.assertEqual(copy.returncode, 0)
            with open(target, "rb") as copied, open(self.disk, "rb") as disk:
                self.assertEqual(copied.read() == disk.read(), True)
            os.unlink(target)

    def test_wrong_processes(self):
        server = self.serve()
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"before")
            for how, reason in WRONG.items():
                with self.subTest(how):
                    code, _, errors = self.upgrade(sys.executable, __file__, "--new", how)
                    self.assertEqual(code, 1)
                    self.assertRegex(errors, "the upgrade failed, and this server goes on: ")
                    self.assertRegex(errors, reason)
                    self.assertEqual(client.read(0, 6), b"before")
                    with nbdmini.open_export(server.uri) as other:
                        self.assertEqual(other.read(0, 6), b"before")
            # And then it works all the same.
            self.assertEqual(self.must_upgrade()[:2], (1, 0))
            self.assertEqual(client.read(0, 6), b"before")

    def test_hanging_processes(self):
        # Both flushes of this one take long: the first one need not be quick, the second one must.
        slow = self.start("--export", f"={self.disk},overlay=discard,delay=flush:6s", "--control",
                          self.path("control-slow"), "--listen", self.socket_uri("s-slow"))
        slow_upgrade = subprocess.Popen([support.program(), "upgrade", self.path("control-slow")],
                                        stderr=subprocess.PIPE, text=True)
        started = []
        for how in HANGING:
            server = self.start(self.make_file(how, bytes(1 << 20)), "--control",
                                self.path(f"control-{how}"), "--listen", self.socket_uri(f"s-{how}"))
            client = nbdmini.open_export(server.uri)
            self.addCleanup(client.sock.close)
            started.append((how, client, subprocess.Popen(
                [support.program(), "upgrade", self.path(f"control-{how}"), "--", sys.executable,
                 __file__, "--new", how], stderr=subprocess.PIPE, text=True)))
        for how, client, upgrade in started:
            with self.subTest(how):
                self.assertRegex(upgrade.communicate()[1], HANGING[how])
                self.assertEqual(upgrade.returncode, 1)
                self.assertEqual(len(client.read(0, 512)), 512)
        with nbdmini.open_export(slow.uri) as client:
            self.assertRegex(slow_upgrade.communicate()[1], "disks were not flushed within 5 seconds")
            self.assertEqual(len(client.read(0, 512)), 512)
            self.assertRegex(self.run_gmblock("upgrade", self.path("control-slow"))[2],
                             "are still being flushed for the upgrade before")
            client.write(0, b"goes on")
            self.assertEqual(client.read(0, 7), b"goes on")
        self.assertEqual(slow.stop()[0], 0)

    def command(self, *arguments):
        """As of serve()."""
        return [support.program(), "serve", "--export", f"={self.disk}", "--listen",
                self.socket_uri(), "--control", self.path("control"), *arguments]

    def injecting(self, what, *arguments):
        """The same with something done to its system calls."""
        return ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=sendmsg,recvmsg",
                "-e", f"inject={what}", *self.command(*arguments)]

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_killed_at_each_step(self):
        """Before it can say STARTED, the old process goes on as if nothing had been."""
        server = self.serve()
        with nbdmini.open_export(server.uri) as client:
            # HELLO, READY, STARTED; two sockets, the disk, PREPARE, the connection, the end.
            for call, times in (("sendmsg", 3), ("recvmsg", 6)):
                for when in range(1, times + 1):
                    with self.subTest(f"{call} {when}"):
                        client.write(0, bytes([when]) * 512)
                        code, _, errors = self.upgrade(
                            *self.injecting(f"{call}:signal=KILL:when={when}"))
                        self.assertEqual(code, 1)
                        self.assertRegex(errors, "has ended|cannot be (sent|passed)")
                        self.assertEqual(client.read(0, 512), bytes([when]) * 512)
            self.assertEqual(self.must_upgrade()[:2], (1, 0))
            self.assertEqual(client.read(0, 512), bytes([6]) * 512)

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_refused_and_then_failed(self):
        """A connection that the new process does not let in is the old one's until the end."""
        server = self.serve()
        refusing = ["--access", ": uid=4711 rights=rw"]
        with nbdmini.open_export(server.uri) as client:
            code, _, errors = self.upgrade(
                *self.injecting("sendmsg:error=EPIPE:when=3", *refusing))
            self.assertEqual(code, 1, errors)
            self.assertEqual(len(client.read(0, 512)), 512)
            self.must_upgrade(*self.command(*refusing))
            self.assertEqual(client.sock.recv(1), b"")

    @staticmethod
    def scrape(url):
        with socket.socket(socket.AF_INET if url.port else socket.AF_UNIX) as connection:
            connection.connect((url.hostname, url.port) if url.port else
                               urllib.parse.parse_qs(url.query)["socket"][0])
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    def test_metrics(self):
        """They are at the same address, without a pause in which it is nobody's."""
        for address in ("http://127.0.0.1:0", f"http+unix:///?socket={self.path('m')}"):
            server = self.serve("--metrics", address, "--log-level", "info")
            line = ""
            while "metrics: " not in line:
                line = server.process.stderr.readline()
            url = urllib.parse.urlsplit(line.split("metrics: ")[1].strip())
            self.assertRegex(self.scrape(url), b"HTTP/1.1 200 ")
            for _ in range(2):
                self.must_upgrade()
                self.assertRegex(self.scrape(url), b"HTTP/1.1 200 ")
            # Only the newest is left.
            self.stop_newest()
            self.assertEqual(server.wait()[0], 0)
            self.children.clear()
            self.assertEqual(os.path.exists(self.path("m")), False)
            with self.assertRaises(OSError):
                self.scrape(url)

    def test_wrong_configurations(self):
        server = self.serve()
        other = self.make_file("other", bytes(1 << 20))
        broken = self.make_file("broken.conf", "exports: []\nnonsense: 1\n")
        program = support.program()
        rest = ["--listen", self.socket_uri(), "--control", self.path("control")]
        commands = {
            "it does not exist": [program, "serve", self.path("missing"), *rest],
            "serves another disk": [program, "serve", other, *rest],
            "does not serve it": [program, "serve", "--export", f"x={self.disk}", *rest],
            r"has ended before(?s:.*)new process said: .*unknown option --no-such-option":
                [program, "serve", "--no-such-option"],
            r"new process said: .*broken.conf:2:1: ": [program, "serve", "--config", broken],
            r"new process said: a \\x1b\[31m b\n(?s:.*) said: line 9\n$": [
                "sh", "-c", "printf 'a \\033[31m b\\n\\n' >&2; seq -f 'line %.0f' 99 >&2"],
            r"new process said: x{2000}[^\n]*\n": [
                "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2"],
            "cannot start": [self.path("missing")],
        }
        with nbdmini.open_export(server.uri) as client:
            for reason, command in commands.items():
                with self.subTest(reason):
                    code, _, errors = self.upgrade(*command)
                    self.assertEqual(code, 1)
                    self.assertRegex(errors, reason)
                    self.assertEqual(len(client.read(0, 512)), 512)
                    self.assertTrue(os.path.exists(self.path("s")))
                    self.assertTrue(os.path.exists(self.path("control")))
            self.must_upgrade()
            self.assertEqual(len(client.read(0, 512)), 512)

    def test_who_listens(self):
        """A socket says who listens, also after a new process that has failed with it."""
        server = self.serve()

        def listens(name):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self.path(name))
                return struct.unpack("3i", client.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]

        os.rename(self.disk, self.disk + "-away")
        self.assertRegex(self.upgrade()[2], "does not exist")
        self.assertEqual({listens("s"), listens("control")}, {server.process.pid})
        os.rename(self.disk + "-away", self.disk)
        self.must_upgrade()
        self.assertEqual({listens("s"), listens("control")}, {self.children[-1]})

    def test_a_late_connection_to_another_disk(self):
        """Who connects while the new process is made goes on with the same disk, or the old process
        does."""
        server = self.serve("--export", "m=memory:1M")
        new = [support.program(), "serve", "--export", f"={self.disk}", "--listen",
               self.socket_uri(), "--control", self.path("control"), "--export"]
        for disk, reason in (("m=memory:2M", r'"m" has connections \(1\), .* serves another disk'),
                             ("n=memory:1M", r'"m" has connections \(1\), .* does not serve it')):
            with nbdmini.open_export(server.uri) as client:
                code, _, errors = self.upgrade(
                    sys.executable, __file__, "--between", server.uri, "m", *new, disk)
                self.assertEqual(code, 1)
                self.assertRegex(errors, reason)
                self.assertEqual(len(client.read(0, 512)), 512)
        self.must_upgrade(*new, "m=memory:2M")

    def test_another_configuration(self):
        """The new process may serve more, fewer addresses, and take rights away."""
        server = self.serve("--listen", self.socket_uri("t"), uri_count=2)
        more = self.make_file("more", bytes(1 << 20))
        with nbdmini.open_export(server.uri) as client:
            self.must_upgrade(
                support.program(), "serve", "--export", f"={self.disk},readonly", "--export",
                f"more={more}", "--listen", self.socket_uri(), "--control", self.path("control"))
            self.assertEqual(len(client.read(0, 512)), 512)
            with self.assertRaises(OSError) as refused:
                client.write(0, b"x")
            self.assertEqual(refused.exception.errno, 1)
        with nbdmini.open_export(self.socket_uri(), b"more") as client:
            client.write(0, b"x")
        with self.assertRaises(OSError):
            nbdmini.open_export(self.socket_uri("t"))

    def test_what_cannot_be_passed(self):
        cases = {
            "has failed to flush": ["--export", f"={self.disk},fault=flush:EIO"],
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
                        code, _, errors = self.upgrade(sys.executable, __file__, "--new", how)
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
                    code, _, errors = self.upgrade(sys.executable, __file__, "--new", how)
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
                for at in range(turn * 10000, 1 << 20, 65536):
                    expected[at:at + 5000] = os.urandom(5000)
                    client.write(at, expected[at:at + 5000])
                self.wait_for(lambda: self.run_gmblock("stats", self.path("control"))[0] == 0)
                stats = self.run_gmblock("stats", "--json", self.path("control"))[1]
                self.assertGreater(int(re.search(r'"dirty_pages": (\d+)', stats)[1]), 0, turn)
                self.children.append(json.loads(stats)["pid"])
                if killed == "newest":
                    self.kill_children()
                elif killed:
                    self.assertEqual(self.upgrade(sys.executable, __file__, "--killed", killed, *command)[0], 1)
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
        self.assertRegex(self.upgrade(*command[:-2], *readonly)[2], "for writing .* a flash store that is only read")
        server.signal(signal.SIGKILL)
        server.wait()
        server = self.serve(*readonly)
        self.must_upgrade()
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
                                          f"fault=read:EIO:nth={'0' * 7000}9999", *at)[0::2], (0, ""))
        self.must_upgrade()
        self.assertEqual(self.run_gmblock("export", "set", name, f"fault=read:EIO:nth={'0' * 11000}9998",
                                           *at)[0::2], (0, ""))
        code, _, errors = self.upgrade()
        self.assertEqual(code, 1)
        self.assertRegex(errors, 'keys of export "n+.*", .* too long')
        with nbdmini.open_export(server.uri, name.encode()) as client:
            self.assertEqual(client.read(0, 512), bytes(512))

    def test_an_overlay_on_another_base(self):
        """Changes are not put on another disk."""
        server = self.serve(filters=",overlay=discard")
        other = self.make_file("other", os.urandom(16 << 20))
        arguments = [support.program(), "serve", "--export", f"={other},overlay=discard", "--listen",
                     self.socket_uri(), "--control", self.path("control")]
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"changed")
            self.assertRegex(self.upgrade(*arguments)[2], "serves another disk by that name")
            self.assertEqual(client.read(0, 7), b"changed")
        self.wait_for(lambda: self.upgrade(*arguments)[0] == 0)
        with nbdmini.open_export(server.uri) as client, open(other, "rb") as disk:
            self.assertEqual(client.read(0, 4096), disk.read(4096))

    def test_a_disk_that_cannot_settle(self):
        server = self.serve(filters=f",overlay={self.path('changes')},fault=flush:EIO")
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"changed")
            self.assertRegex(self.upgrade()[2], 'disk of export "" has failed to flush: Input/output error')
            self.assertEqual(client.read(0, 7), b"changed")
            self.assertRegex(self.upgrade()[2], "has failed to flush, which another process")
        self.assertEqual(server.stop()[0], 0)

    def test_two_at_a_time_and_stop(self):
        """One waits; a second one is refused, and the end of the server ends both."""
        server = self.serve()
        first = subprocess.Popen(
            [support.program(), "upgrade", self.path("control"), "--", sys.executable, __file__,
             "--new", "waits", self.path("waits")], stderr=subprocess.PIPE, text=True)
        self.wait_for(lambda: os.path.exists(self.path("waits")))
        self.assertIn("under way", self.upgrade()[2])
        server.signal()
        self.assertEqual(server.process.wait(), 0)
        self.assertRegex(first.communicate()[1], "the server is stopping")
        self.assertEqual(first.returncode, 1)

    def test_what_the_command_has_open(self):
        """A pipe or a lock of who runs the command does not stay open in the server, nor anything else."""
        server = self.serve()
        open_before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        with open(reader, "rb", buffering=0) as pipe:
            output = subprocess.run([support.program(), "upgrade", self.path("control")], pass_fds=[writer],
                                    stdout=subprocess.PIPE, check=True, text=True).stdout
            os.close(writer)
            self.children.append(int(output.split()[1]))
            self.assertEqual(pipe.read(1), b"")
        self.must_upgrade()
        self.assertEqual(server.process.wait(), 0)
        self.wait_for(lambda: len(os.listdir(f"/proc/{self.children[-1]}/fd")) == open_before)

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

    def test_if_replaced(self):
        program = self.path("gmblock")
        os.link(support.program(), program) if os.stat(support.program()).st_dev == os.stat(
            self.folder).st_dev else subprocess.run(["cp", support.program(), program], check=True)
        process = subprocess.Popen(
            [program, "serve", self.disk, "--listen", self.socket_uri(), "--control",
             self.path("control")], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.addCleanup(self.kill_children)
        process.stdout.readline()
        command = [program, "upgrade", "--if-replaced", self.path("control")]
        done = subprocess.run(command, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        subprocess.run(["cp", support.program(), program + "-new"], check=True)
        os.rename(program + "-new", program)
        done = subprocess.run(command, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        pid = int(done.stdout.split()[1])
        self.children.append(pid)
        self.assertEqual(os.path.samefile(f"/proc/{pid}/exe", program), True)
        self.assertEqual(process.wait(), 0)


if __name__ == "__main__":
    if sys.argv[1] == "--new":
        with socket.socket(fileno=int(os.environ["GMBLOCK_UPGRADE_FD"])) as inherited:
            be_wrong(inherited, sys.argv[2])
    elif sys.argv[1] == "--between":
        with socket.socket(fileno=int(os.environ["GMBLOCK_UPGRADE_FD"])) as inherited:
            sys.exit(be_between(inherited, *sys.argv[2:4], sys.argv[4:]))
    elif sys.argv[1] == "--killed":
        with socket.socket(fileno=int(os.environ["GMBLOCK_UPGRADE_FD"])) as inherited:
            sys.exit(be_killed(inherited, sys.argv[2], sys.argv[3:]))
    else:
        # New processes are nobody's children but ours.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        support.main()
