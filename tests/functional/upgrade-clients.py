#!/usr/bin/python3
"""Stock clients with several connections each, over many upgrades: SCRIPT GMBLOCK UPGRADES.

A client whose one thread waits for the answer on one connection, with a request half sent or an answer half
received on another one, sees no error: the old process waits for none of them longer than for its disks."""
import concurrent.futures
import contextlib
import ctypes
import glob
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

import nbdmini
import support

PR_SET_CHILD_SUBREAPER = 36
UPGRADES = int(sys.argv.pop(2))
DISKS, DISK_BYTES = 4, 64 << 20

# One thread, four connections: each turn leaves a write of 4 MiB half sent and an answer half received
# while it waits for short reads on another connection.
LIBNBD = """
import os, sys, nbd
disks = [nbd.NBD() for _ in range(4)]
for disk in disks:
    disk.connect_uri(sys.argv[1])
size, turn = 4 << 20, 0
while not os.path.exists(sys.argv[2]):
    busy, other = disks[turn % 4], disks[(turn + 1) % 4]
    data = bytes([turn % 251]) * size
    offset = turn % 4 * size
    cookie = busy.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset)
    for _ in range(3):
        other.pread(4096, 0)
    while not busy.aio_command_completed(cookie):
        busy.poll(-1)
    got = nbd.Buffer(size)
    cookie = busy.aio_pread(got, offset)
    while busy.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
        busy.aio_notify_write()
    for _ in range(3):
        other.pread(4096, 0)
    while not busy.aio_command_completed(cookie):
        busy.poll(-1)
    assert got.to_bytearray() == data, turn
    turn += 1
print(turn, "turns of libnbd")
"""
# A new process that says it is there,
HELLO = f"""
import os, select, socket, struct, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import upgrade_process
channel = socket.socket(fileno=int(os.environ["GMBLOCK_UPGRADE_FD"]))
channel.send(upgrade_process.hello())
"""
# and then receives nothing.
STOPPED = HELLO + """
poll = select.poll()
poll.register(channel, 0)
poll.poll()
"""
# One that says it is ready, and ends.
ENDED = HELLO + """
while channel.recv(65536)[6:8] != bytes([0, 4]):
    pass
channel.send(upgrade_process.message(upgrade_process.READY))
"""
FIO = ["fio", "--name=upgrade", "--ioengine=nbd", "--rw=randrw", "--bsrange=4k-1m", "--iodepth=8", "--size=4M",
       "--numjobs=4", "--offset_increment=4M", "--verify=crc32c", "--verify_fatal=1"]


# One that says it is ready when it is told so, and ends when it is told so.
TOLD = HELLO + """
while channel.recv(65536)[6:8] != bytes([0, 4]):
    pass
with open(sys.argv[1], "wb", buffering=0) as told, open(sys.argv[2], "rb", buffering=0) as told_by:
    told.write(struct.pack("i", os.getpid()))
    told_by.read(1)
    channel.send(upgrade_process.message(upgrade_process.READY))
    told.write(b"r")
    told_by.read(1)
"""


def read_text(path):
    with open(path, encoding="ascii") as file:
        return file.read()


class UpgradeClients(support.Case):
    def setUp(self):
        super().setUp()
        self.children = []
        exports = []
        for name in ("", "fio", *(f"qemu{i}" for i in range(DISKS))):
            disk = self.make_file(f"disk-{name}", b"")
            os.truncate(disk, DISK_BYTES)
            exports += ["--export", f"{name}={disk}"]
        self.server = self.start(*exports, "--listen", self.socket_uri(), "--control", self.path("control"))
        # First, as they have the standard error of the server, too.
        self.addCleanup(self.kill_children)

    def kill_children(self):
        """New processes: those of failed tests, too, of which nobody has heard."""
        for path in glob.glob("/proc/[0-9]*/stat"):
            pid = int(path.split("/")[2])
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
                if int(read_text(path).rpartition(") ")[2].split()[1]) == os.getpid() != pid != self.server.process.pid:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def upgrade(self):
        """How many connections were passed and ended, and the pause in ms."""
        code, output, errors = self.run_gmblock("upgrade", self.path("control"))
        self.assertEqual((code, errors), (0, ""))
        found = re.match(r"process (\d+) .* passed to it: (\d+), ended: (\d+); pause: ([0-9.]+) ms", output)
        self.assertTrue(found, output)
        for pid in self.children:  # it has let go, and ends
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.children = [int(found[1])]
        return int(found[2]), int(found[3]), float(found[4])

    @contextlib.contextmanager
    def upgrade_begun(self):
        """In a thread, the end of which is awaited; if it fails, the test does."""
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            yield thread.submit(self.upgrade)

    def test_a_half_sent_write(self):
        """The thread that sends it reads on another connection, for as long as the upgrade takes."""
        data = os.urandom(4 << 20)
        request = struct.pack(">IHHQQI", 0x25609513, 1, 1, 7, 12345, len(data)) + data
        with nbdmini.open_export(self.server.uri) as a, nbdmini.open_export(self.server.uri) as b:
            sent = 0
            for end in (1 << 20, (1 << 20) + 1, 3 << 20, len(request)):
                b.sock.sendall(request[sent:end])
                sent = end
                with self.upgrade_begun() as upgrade:
                    while not upgrade.done():
                        a.read(0, 4096)
                self.assertEqual(upgrade.result()[:2], (2, 0))
            self.assertEqual(b.reply(), (7, 0))
            self.assertTrue(a.read(12345, len(data)) == data)

    def test_a_half_received_answer(self):
        """Its thread receives no more of it before another connection was served for longer than a pause lasts."""
        data = os.urandom(4 << 20)
        with nbdmini.open_export(self.server.uri) as a, nbdmini.open_export(self.server.uri) as b:
            for at in range(0, len(data), 1 << 20):
                b.write(at, data[at:at + (1 << 20)])
            b.send_request(nbdmini.CMD_READ, 9, 0, len(data))
            with self.upgrade_begun() as upgrade:
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    a.read(0, 4096)
                self.assertEqual(b.reply(), (9, 0))
                self.assertTrue(b.receive(len(data)) == data)
            self.assertEqual(upgrade.result()[:2], (2, 0))
            self.assertTrue(a.read(0, len(data)) == data)

    def test_nobody_is_ended_for_not_receiving(self):
        with nbdmini.open_export(self.server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 9, 0, 4 << 20)
            code, _, errors = self.run_gmblock("upgrade", "--all-or-nothing", self.path("control"))
            self.assertEqual(code, 1)
            self.assertIn("has not received its replies within 20 seconds", errors)
            self.assertEqual(client.reply(), (9, 0))
            client.receive(4 << 20)
            self.assertEqual(self.upgrade()[:2], (1, 0))

    def test_a_new_process_that_is_stopped(self):
        """The old one does not wait for it in a call, whatever there is to tell: it ends the step, and goes on."""
        exports = [word for i in range(600) for word in ("--export", f"{i}=null:1M")]
        server = self.start(*exports, "--listen", self.socket_uri("other"), "--control", self.path("control2"))
        code, _, errors = self.run_gmblock(
            "upgrade", self.path("control2"), "--", sys.executable, "-c", STOPPED)
        self.assertEqual(code, 1)
        self.assertIn("the new process does not read the messages of this process", errors)
        self.assertEqual(self.run_gmblock("stats", self.path("control2"))[0], 0)
        self.assertEqual(server.stop()[0], 0)

    def test_a_new_process_that_ends_while_clients_do_not_receive(self):
        """The old one takes connections again, and does not wait for the clients first."""
        length = 16 << 20
        with nbdmini.open_export(self.server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 9, 0, length)
            code, _, errors = self.run_gmblock(
                "upgrade", self.path("control"), "--", sys.executable, "-c", ENDED)
            self.assertEqual(code, 1)
            self.assertIn("the new process exited before it could serve", errors)
            self.assertEqual(client.reply(), (9, 0))
            self.assertEqual(client.receive(length), bytes(length))
            nbdmini.open_export(self.server.uri).close()

    def test_a_new_connection_while_one_is_waited_for(self):
        """One thread waits for the first answer on it, and receives nothing on the other one before."""
        data = os.urandom(4 << 20)
        with nbdmini.open_export(self.server.uri) as client:
            for at in range(0, len(data), 1 << 20):
                client.write(at, data[at:at + (1 << 20)])
            client.send_request(nbdmini.CMD_READ, 9, 0, len(data))
            with self.upgrade_begun() as upgrade:
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    with nbdmini.open_export(self.server.uri) as late:
                        self.assertTrue(late.read(4096, 512) == data[4096:4608])
                self.assertEqual(client.reply(), (9, 0))
                self.assertTrue(client.receive(len(data)) == data)
            self.assertEqual(upgrade.result()[1], 0)
            self.assertTrue(client.read(0, len(data)) == data)

    def wait_for_turns(self, pid, upgrade):
        """Until the main thread has looked at everything again, or the upgrade is over."""
        def switches():
            text = read_text(f"/proc/{pid}/task/{pid}/status")
            return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)[1])
        begun = switches()
        self.wait_for(lambda: switches() > begun + 20 or not upgrade.is_alive())

    def test_a_new_process_that_ends_before_the_last_connection_is_taken(self):
        """The thread that takes connections is told to stop, and to go on, in this order."""
        told, tell = self.path("told"), self.path("tell")
        os.mkfifo(told)
        os.mkfifo(tell)
        pid = self.server.process.pid
        result = []
        upgrade = threading.Thread(target=lambda: result.append(self.run_gmblock(
            "upgrade", self.path("control"), "--", sys.executable, "-c", TOLD, told, tell)))
        upgrade.start()

        def hear(count):
            self.wait_for(lambda: select.select([said], [], [], 0)[0] or not upgrade.is_alive())
            return os.read(said.fileno(), count) if upgrade.is_alive() else b""

        # With both ends of each, nobody is waited for who has ended.
        with open(told, "r+b", buffering=0) as said, open(tell, "r+b", buffering=0) as say:
            (new,) = struct.unpack("i", hear(4))
            with self.stopped_thread(pid, "gmblock/0"):
                say.write(b"x")
                self.assertEqual(hear(1), b"r")
                self.wait_for_turns(pid, upgrade)
                say.write(b"x")
                os.waitpid(new, 0)
                self.wait_for_turns(pid, upgrade)
        upgrade.join()
        self.assertEqual(result[0][0], 1)
        self.assertIn("the new process exited before it could serve", result[0][2])
        with nbdmini.open_export(self.server.uri) as client:
            self.assertEqual(self.upgrade()[:2], (1, 0))
            client.read(0, 512)

    def repeat(self, command, stop, failures, **options):
        """In a thread, until then: each run must succeed."""
        def run():
            while not os.path.exists(stop):
                done = subprocess.run(command, stdin=options.get("stdin", subprocess.DEVNULL), cwd=self.folder,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0 or re.search(options.get("errors", "error"), done.stdout):
                    failures.append(f"{command[0]}: status {done.returncode}: {done.stdout}")
                    return
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_clients_with_four_connections(self):
        """libnbd, fio, and QEMU with four disks that have to agree."""
        stop, failures = self.path("stop"), []
        uri = self.server.uri
        quorum = {"driver": "quorum", "vote-threshold": DISKS, "children": [
            {"driver": "nbd", "export": f"qemu{i}", "server": {"type": "unix", "path": self.path("s")}}
            for i in range(DISKS)]}
        steps = [step for i in range(8) for step in
                 (f"aio_write -q -P {i + 1} {i}M 1M", f"aio_write -q -P {i + 1} {i + 20}M 64k")]
        steps += ["aio_flush"] + [f"aio_read -q -P {i + 1} {i}M 1M" for i in range(8)] + ["aio_flush"]
        commands = [([sys.executable, "-c", LIBNBD, uri, stop], "Error|Traceback"),
                    ([*FIO, f"--uri={self.path_uri('fio')}"], "err=(?! 0)|error"),
                    (["qemu-io", *(word for step in steps for word in ("-c", step)), "json:" + json.dumps(quorum)],
                     "rror|ailed")]
        missing = [command[0] for command, _ in commands if shutil.which(command[0]) is None]
        if missing:
            self.skipTest(f"not installed: {' and '.join(missing)}")
        clients = [self.repeat(command, stop, failures, errors=errors) for command, errors in commands]
        try:
            pauses, passed, turn = [], 0, 0
            while turn < UPGRADES and not failures:
                count, ended, pause = self.upgrade()
                passed += count
                pauses.append(pause)
                self.assertEqual(ended, 0)
                turn += 1
        finally:
            self.make_file("stop", b"")
            for client in clients:
                client.join()
        self.assertEqual(failures, [])
        self.assertGreater(passed, 0)
        print(f"{turn} upgrades, {passed} connections passed, longest pause {max(pauses)} ms", file=sys.stderr)

    def path_uri(self, name):
        return f"nbd+unix:///{name}?socket={self.path('s')}"


if __name__ == "__main__":
    # New processes are nobody's children but ours.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    support.main()
