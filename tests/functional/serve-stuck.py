#!/usr/bin/python3
"""A disk that hangs takes the thread that waits for it; the rest of the server still answers."""
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys

import nbdmini
import support
import upgrades

STUCK = os.path.realpath(sys.argv.pop(2))
OFFSET = 8192


class Stuck(support.Case):
    def make_disk(self):
        return self.make_file("disk.img", bytes(1 << 16))

    def start_stuck(self, pass_fds=(), config=None, hangs=True, **variables):
        """A server of one thread, which hangs; or begins to with stick()."""
        told, tells = os.pipe()
        self.addCleanup(os.close, told)
        environment = dict(os.environ, LD_PRELOAD=STUCK, STUCK_OFFSET=str(OFFSET),
                           STUCK_FD=str(tells), **variables)
        server = self.start_unix("--threads", "1", "--control", self.path("control"),
                                 *(("--config", config) if config else (self.make_disk(),)),
                                 env=environment, pass_fds=[tells, *pass_fds])
        os.close(tells)
        client = nbdmini.open_export(server.uri)
        self.addCleanup(client.close)
        self.client, self.told = client, told
        if hangs:
            self.stick()
        return server

    def hangs(self):
        """Writes. After slow writes, the server leaves further ones to the kernel's threads for a while: these do not hang."""
        self.client.send_request(nbdmini.CMD_WRITE, 1, OFFSET, 512, bytes(512))
        if self.told in select.select([self.told, self.client.sock], [], [])[0]:
            self.assertEqual(os.read(self.told, 1), b"\0")
            return True
        self.client.receive(16)
        return False

    def stick(self):
        self.assertTrue(self.hangs())

    def ask(self, question):
        """The last line of the answer."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(nbdmini.TIMEOUT_S)
            sock.connect(self.path("control"))
            sock.sendall(question + b"\n")
            with sock.makefile("rb") as answer:
                return json.loads(answer.read().splitlines()[-1])

    def test_questions_are_answered_and_signals_heeded(self):
        server = self.start_stuck()
        for question in (b'{"command": "stats"}',
                         b'{"command": "trace", "arguments": {"count": 1}}'):
            answer = self.ask(question)
            self.assertEqual(answer["error"]["code"], "ETIMEDOUT")
            self.assertIn("does not respond", answer["error"]["text"])
        # Signals close to the first one are taken for the same wish: repeat it.
        while server.process.poll() is None:
            server.signal()
            select.select([], [], [], 0.1)
        code, errors = server.wait()
        self.assertEqual(code, 1)
        self.assertIn("stopped immediately", errors)

    def memory(self, server):
        """KiB that the server has written to."""
        with open(f"/proc/{server.process.pid}/smaps_rollup", encoding="ascii") as sums:
            return int(re.search(r"^Anonymous:\s+(\d+) kB$", sums.read(), re.MULTILINE)[1])

    def test_a_trace_is_freed_when_the_thread_goes_on(self):
        until, go_on = os.pipe()
        self.addCleanup(os.close, until)
        self.addCleanup(os.close, go_on)
        # Memory that is given back is no longer the server's.
        server = self.start_stuck([until], hangs=False, STUCK_UNTIL_FD=str(until), MALLOC_MMAP_THRESHOLD_="65536")
        after = []
        while len(after) < 6:
            with socket.socket(socket.AF_UNIX) as trace, trace.makefile("rb") as notes:
                trace.connect(self.path("control"))
                trace.sendall(b'{"command": "trace", "arguments": {"count": 1000}}\n')
                self.assertIn("service", json.loads(notes.readline()))
                self.assertIn("note", json.loads(notes.readline()))
                during = self.memory(server)
                hangs = self.hangs()
                trace.shutdown(socket.SHUT_WR)
                answer = json.loads(notes.readline())
            if not hangs:
                continue
            self.assertIn("result", answer)
            # Its answer comes before the thread is told. The next command is answered after that.
            self.assertEqual(self.ask(b'{"command": "stats"}')["error"]["code"], "ETIMEDOUT")
            os.write(go_on, b"x")
            self.client.receive(16) # that the bytes were written
            self.assertIn("result", self.ask(b'{"command": "stats"}'))
            after.append(self.memory(server))
        self.assertLess(after[-1] - after[0], during - after[-2])

    def test_a_reload_ends_after_the_threads(self):
        """It does not ask them then; also without a control socket."""
        config = self.path("conf")
        disk = self.make_disk()

        def write(rights):
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"exports:\n- name: ''\n  path: {disk}\n  access: [{rights}]\n")

        told, tells = os.pipe()
        until, go_on = os.pipe()
        for fd in told, tells, until, go_on:
            self.addCleanup(os.close, fd)
        write("rw")
        os.write(go_on, b"x")  # the start reads the file, too
        server = self.start_unix(
            "--threads", "1", "--control", "none", "--config", config, pass_fds=[tells, until],
            env=dict(os.environ, LD_PRELOAD=STUCK, STUCK_FD=str(tells), STUCK_OPEN=config, STUCK_UNTIL_FD=str(until)))
        self.assertEqual(os.read(told, 1), b"\0")
        write("none")
        server.signal(signal.SIGHUP)
        self.assertEqual(os.read(told, 1), b"\0")
        server.signal()
        self.assertEqual(os.read(told, 1), b"\0")  # all other threads have ended
        os.write(go_on, b"x")
        self.assertEqual(server.wait(), (0, ""))

    def test_a_thread_that_goes_on_withdraws_rights(self):
        config = self.path("conf")

        def write(rights):
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"exports:\n- name: ''\n  path: {self.make_disk()}\n  access: [{rights}]\n")

        write("rw")
        until, go_on = os.pipe()
        self.addCleanup(os.close, until)
        self.start_stuck([until], config, STUCK_UNTIL_FD=str(until))
        write("none")
        code, _, errors = self.run_gmblock("reload", self.path("control"))
        self.assertEqual(code, 1)
        self.assertIn("1 of 1 server threads have not yet checked", errors)
        os.close(go_on)
        self.client.receive(16) # that the bytes were written
        self.assertTrue(self.client.at_end())
        code, output, errors = self.run_gmblock("reload", self.path("control"))
        self.assertEqual((code, errors), (0, ""))

    def test_an_upgrade_does_not_wait_for_a_thread_that_hangs(self):
        """Also not for one that hangs while the new process starts: the upgrade is given up, and clients can
        connect when the thread goes on."""
        until, go_on = os.pipe()
        self.addCleanup(os.close, until)
        server = self.start_stuck([until], hangs=False, STUCK_UNTIL_FD=str(until))
        os.mkfifo(self.path("begun"))
        os.mkfifo(self.path("begin"))
        wrapper = 'echo >"$1"; read -r line <"$2"; shift 2; exec "$@"'
        upgrade = subprocess.Popen(
            [support.program(), "upgrade", self.path("control"), "--", "/bin/sh", "-c", wrapper, "sh",
             self.path("begun"), self.path("begin"), support.program(), "serve", "--threads", "1", "--control",
             self.path("control"), "--listen", self.socket_uri(), self.path("disk.img")],
            stderr=subprocess.PIPE, text=True)
        with open(self.path("begun"), encoding="ascii") as begun:
            begun.read()
        self.stick()
        with open(self.path("begin"), "r+b", buffering=0) as begin:  # does not wait for a reader
            begin.write(b"\n")
            errors = upgrade.communicate()[1]
        self.assertEqual(upgrade.returncode, 1)
        self.assertIn("the first thread of the server does not respond: a disk may hang", errors)
        code, _, errors = self.run_gmblock("upgrade", self.path("control"))
        self.assertEqual(code, 1)
        self.assertIn("has not responded since the previous upgrade", errors)
        os.close(go_on)
        self.client.receive(16) # that the bytes were written
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.read(OFFSET, 512), bytes(512))

    def test_a_new_process_is_heard_while_a_thread_hangs(self):
        """The reason that it sends while the old one waits for the thread is that of the failure."""
        until, go_on = os.pipe()
        self.addCleanup(os.close, until)
        server = self.start_stuck([until], hangs=False, STUCK_UNTIL_FD=str(until))
        for name in "prepared", "ready":
            os.mkfifo(self.path(name))
        upgrade = subprocess.Popen(
            [support.program(), "upgrade", self.path("control"), "--", *upgrades.PROCESS, "--new", "fails-settling",
             self.path("prepared"), self.path("ready"), str(server.process.pid)], stderr=subprocess.PIPE, text=True)
        with open(self.path("prepared"), encoding="ascii") as prepared:
            prepared.read()
        self.stick()
        with open(self.path("ready"), "w", encoding="ascii"):
            pass
        errors = upgrade.communicate()[1]
        os.close(go_on)
        self.assertEqual(upgrade.returncode, 1)
        self.assertIn("this server keeps running: no disk", errors)

    def test_a_stop_takes_ten_seconds_at_most(self):
        """The time that the manual gives. No wait is seen through: its limit is what counts."""
        limits, limit = os.pipe()
        self.addCleanup(os.close, limits)
        server = self.start_stuck(pass_fds=[limit], STUCK_POLL_FD=str(limit))
        os.close(limit)
        server.signal()
        code, errors = server.wait()
        self.assertEqual(code, 1)
        self.assertIn("the requests did not finish in time", errors)
        with os.fdopen(os.dup(limits), encoding="ascii") as lines:
            waits = [int(line) for line in lines]
        self.assertNotEqual(waits, [])
        # A millisecond is added against rounding.
        self.assertLessEqual(max(waits), 10001)
        self.assertGreater(max(waits), 9000)


if __name__ == "__main__":
    support.main()
