#!/usr/bin/python3
"""A new process takes over from a running server, and clients notice nothing; whatever is wrong with
the new one, the old one goes on."""
import concurrent.futures
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import unittest
import urllib.parse

import nbdmini
import support
import upgrade_process
import upgrades

FIO = ["fio", "--name=upgrade", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=16M",
       "--time_based", "--runtime=2", "--verify=crc32c", "--verify_fatal=1"]
# What is wrong with a new process (upgrade_process.py --new), and what is said of it.
WRONG = {
    "dies-at-once": "the new process exited before it could serve",
    "hello-with-descriptors": "descriptors|too long",
    "no-magic": "invalid magic number",
    "older-version": "has version 2 of the upgrade protocol, this one has version 3",
    "newer-version": "has version 4 of the upgrade protocol, this one has version 3",
    "unknown-type": "unknown upgrade message type 99",
    "short-hello": "invalid upgrade message .* bytes",
    "long-hello": "invalid upgrade message .* bytes",
    "pid-zero": "invalid upgrade message .* bytes",
    "started-first": "unexpected upgrade message from the new process",
    "ready-first": "unexpected upgrade message from the new process",
    "session-first": "descriptors",
    "dies-after-hello": "exited before|cannot pass",
    "dies-prepared": "the new process exited before it could serve",
    "fails-prepared": r"no \\x1b\[31mdisk",
    "started-without-ready": "unexpected upgrade message from the new process",
    "dies-after-ready": "exited before|cannot send",
    "dies-with-a-session": "exited before|cannot send",
    "dies-with-all": "the new process exited before it could serve",
    "ready-again": "unexpected upgrade message from the new process",
    "fails-with-all": "too late",
}
# And those that only a time limit ends.
HANGING = {
    "hangs": "did not connect within 10 seconds",
    "hangs-prepared": "was not ready within 10 seconds",
    "hangs-with-all": "did not start serving within 5 seconds",
}


class Upgrade(upgrades.Case):
    def test_a_new_process_that_fails_removes_its_files(self):
        """Sockets that the old process does not have."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                new = subprocess.Popen(
                    [support.program(), "serve", "null:1M", "--listen", self.socket_uri(), "--control",
                     self.path("control"), "--metrics", f"http+unix:///?socket={self.path('metrics')}"],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True,
                    env=dict(os.environ, GMBLOCK_UPGRADE_FD=str(theirs.fileno())))
                self.addCleanup(new.kill)
            ours.recv(65536)
            ours.send(upgrade_process.message(upgrade_process.PREPARE))
            self.assertEqual(upgrade_process.receive(ours)[0], upgrade_process.READY)
            self.assertEqual({name for name in os.listdir(self.folder) if name != "disk"}, {"s", "control", "metrics"})
            ours.send(upgrade_process.message(upgrade_process.FAILED, b"for the test"))
            errors = new.communicate()[1]
        self.assertEqual(new.returncode, 1)
        self.assertIn("did not complete the handover: for the test", errors)
        self.assertEqual(os.listdir(self.folder), ["disk"])

    def test_a_reload_that_waits_for_the_upgrade(self):
        """The old process does not do it any more, and says so."""
        server = self.serve()
        for name in "begun", "begin":
            os.mkfifo(self.path(name))
        wrapper = 'echo >"$1"; read -r line <"$2"; shift 2; exec "$@"'
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            upgrade = thread.submit(
                self.must_upgrade, "/bin/sh", "-c", wrapper, "sh", self.path("begun"), self.path("begin"),
                support.program(), "serve", "--export", f"={self.disk}", "--listen", self.socket_uri(), "--control",
                self.path("control"))
            with open(self.path("begun"), encoding="ascii") as begun:
                begun.read()
            server.signal(signal.SIGHUP)
            with open(self.path("begin"), "w", encoding="ascii") as begin:
                begin.write("\n")
        upgrade.result()
        self.stop_newest()
        code, errors = server.wait()
        self.assertEqual(code, 0)
        self.assertIn("the configuration was not reloaded", errors)

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

    def is_served(self):
        """A request of a client was completed by the newest process."""
        code, output, errors = self.run_gmblock("stats", "--json", self.path("control"))
        self.assertEqual(code, 0, errors)
        return json.loads(output)["exports"][0]["operations"] != []

    def bench(self, uri):
        """How many connections a run over three upgrades has lost, and how many were ended."""
        bench = subprocess.Popen(
            [support.program(), "bench", "--json", "--seconds", "1000", uri], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(bench.communicate)
        self.addCleanup(bench.kill)
        ended = 0
        for _ in range(3):
            self.wait_for(self.is_served)
            ended += self.must_upgrade()[1]
        self.wait_for(self.is_served)
        bench.send_signal(signal.SIGINT)
        output, errors = bench.communicate()
        self.assertEqual(errors.splitlines()[-1:], ["gmblock bench: the measurement was interrupted before its end"], errors)
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
                    code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", how)
                    self.assertEqual(code, 1)
                    self.assertRegex(errors, "the upgrade failed, and this server keeps running: ")
                    self.assertRegex(errors, reason)
                    self.assertEqual(client.read(0, 6), b"before")
                    with nbdmini.open_export(server.uri) as other:
                        self.assertEqual(other.read(0, 6), b"before")
            # And then it works all the same.
            self.assertEqual(self.must_upgrade()[:2], (1, 0))
            self.assertEqual(client.read(0, 6), b"before")

    def test_a_process_that_fails_among_connections(self):
        """More than there is room for are on their way when it says why it ends: that is the reason."""
        server = self.serve("--max-connections-per-peer", "1000", "--max-connections", "1000")
        clients = [nbdmini.open_export(server.uri) for _ in range(400)]
        for client in clients:
            self.addCleanup(client.sock.close)
        code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", "fails-with-a-session")
        self.assertEqual(code, 1)
        self.assertRegex(errors, "this server keeps running: not one more")
        self.assertEqual(len(clients[0].read(0, 512)), 512)

    def test_hanging_processes(self):
        # Both flushes of this one take long: the first one need not be quick, the second one must.
        slow = self.start("--export", f"={self.disk},overlay=discard,delay=flush:9s", "--control",
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
                [support.program(), "upgrade", self.path(f"control-{how}"), "--", *upgrades.PROCESS,
                 "--new", how], stderr=subprocess.PIPE, text=True)))
        for how, client, upgrade in started:
            with self.subTest(how):
                self.assertRegex(upgrade.communicate()[1], HANGING[how])
                self.assertEqual(upgrade.returncode, 1)
                self.assertEqual(len(client.read(0, 512)), 512)
        with nbdmini.open_export(slow.uri) as client:
            self.assertRegex(slow_upgrade.communicate()[1], "disks were not flushed within 5 seconds")
            self.assertEqual(len(client.read(0, 512)), 512)
            self.assertRegex(self.run_gmblock("upgrade", self.path("control-slow"))[2],
                             "are still being flushed for the previous upgrade")
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
                        self.assertRegex(errors, "exited before|cannot (send|pass)")
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
            r"exited before(?s:.*)output of the new process: .*unknown option --no-such-option":
                [program, "serve", "--no-such-option"],
            r"output of the new process: .*broken.conf:2:1: ": [program, "serve", "--config", broken],
            r"output of the new process: a \\x1b\[31m b\n(?s:.*) process: line 9\n$": [
                "sh", "-c", "printf 'a \\033[31m b\\n\\n' >&2; seq -f 'line %.0f' 99 >&2"],
            r"output of the new process: x{2000}[^\n]*\n": [
                "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2"],
            "cannot start": [self.path("missing")],
            "cannot start serve: .*; the first word after -- is the program": ["serve", self.disk],
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
                    *upgrades.PROCESS, "--between", server.uri, "m", *new, disk)
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

    def test_two_at_a_time_and_stop(self):
        """One waits; a second one is refused, and the end of the server ends both."""
        server = self.serve()
        first = subprocess.Popen(
            [support.program(), "upgrade", self.path("control"), "--", *upgrades.PROCESS,
             "--new", "waits", self.path("waits")], stderr=subprocess.PIPE, text=True)
        self.wait_for(lambda: os.path.exists(self.path("waits")))
        self.assertIn("already in progress", self.upgrade()[2])
        server.signal()
        self.assertEqual(server.process.wait(), 0)
        self.assertRegex(first.communicate()[1], "the server is stopping")
        self.assertEqual(first.returncode, 1)

    def test_a_client_that_was_handed_over_has_not_left(self):
        server = self.serve("--log-level=info")
        with nbdmini.open_export(server.uri) as client:
            self.must_upgrade()
            client.read(0, 512)
        self.stop_newest()
        code, errors = server.wait()
        self.assertEqual((code, errors.count("has left")), (0, 1), errors)  # that of the new process

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
    upgrades.main()
