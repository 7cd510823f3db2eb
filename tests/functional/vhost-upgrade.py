#!/usr/bin/python3
"""A virtual machine whose server is upgraded or reloaded: the front end keeps its connection, and no request is lost,
done twice or overtaken."""
import json
import os
import socket
import struct
import subprocess
import threading
import unittest

import support
import upgrades
import vhost
import vhost_tool as tool

MIB = 1 << 20
PAIRS = 8


class Load(threading.Thread):
    """A guest that writes blocks and reads them again, until it is told to stop."""

    def __init__(self, device):
        super().__init__()
        self.device, self.rounds, self.stopping, self.error = device, 0, False, None
        self.start()

    def run(self):
        try:
            while not self.stopping:
                for slot in range(PAIRS):
                    data = bytes([(self.rounds + slot) % 251]) * 4096
                    self.device.submit(tool.WRITE, 8 * slot, data, first=3 * slot, slot=slot, kick=slot == PAIRS - 1)
                self.finish()
                for slot in range(PAIRS):
                    self.device.submit(tool.READ, 8 * slot, size=4096, first=3 * slot, slot=slot, indirect=False)
                self.finish()
                for slot in range(PAIRS):
                    assert self.device.data(4096, slot) == bytes([(self.rounds + slot) % 251]) * 4096, self.rounds
                self.rounds += 1
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error

    def finish(self):
        heads = sorted(self.device.queue.next_used()[0] for _ in range(PAIRS))
        assert heads == [3 * slot for slot in range(PAIRS)], heads
        assert all(self.device.status(slot) == tool.OK for slot in range(PAIRS))

    def stop(self):
        self.stopping = True
        self.join()
        if self.error is not None:
            raise self.error


class Upgrade(vhost.Vhost, upgrades.Case):
    def serve(self, *arguments, **options):
        server = vhost.Vhost.serve(self, *arguments, **options)
        self.addCleanup(self.kill_children)  # first, as they have the standard error of the server, too
        return server

    def must_pass(self, count=1):
        """An upgrade to which no front end has to connect again."""
        passed, ended, _ = self.must_upgrade()
        self.assertEqual((passed, ended), (count, 0))
        counters = self.counters()
        self.assertEqual((counters["connections_accepted"], counters["connections_taken_over"]), (count, count))

    def test_under_load(self):
        for protocol in (tool.MQ | tool.REPLY_ACK | tool.CONFIG, tool.MQ | tool.REPLY_ACK | tool.CONFIG | tool.INFLIGHT):
            with self.subTest(protocol=protocol):
                server = self.serve(keys=",mode=direct", content=bytes(MIB))
                device = self.device(server, protocol=protocol)
                load = Load(device)
                for _ in range(5):
                    before = load.rounds
                    self.must_pass()
                    self.wait_for(lambda before=before: load.rounds > before + 1 or not load.is_alive())
                load.stop()
                self.assertEqual(device.stop(), device.queue.avail_index)
                device.close()
                self.stop_newest()

    def test_a_reload_under_load(self):
        config = self.path("gmblock.conf")

        def write(**keys):
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"exports": [{"name": "a", "path": "null:1M"},
                                       {"name": "disk", "path": self.path("disk.img"), **keys}]}, file)

        self.make_file("disk.img", bytes(MIB))
        write()
        self.control = self.path("control")
        server = self.start("--config", config, "--control", self.control,
                            "--listen", f"vhost-user-blk+unix:///disk?socket={self.path('socket')}")
        device = self.device(server)
        load = Load(device)
        for number in range(5):
            before = load.rounds
            write(rate=f"requests={100000 + number}", description=f"number {number}")
            subprocess.run([support.program(), "reload", self.control], check=True, stdout=subprocess.DEVNULL)
            self.wait_for(lambda before=before: load.rounds > before + 1 or not load.is_alive())
        load.stop()
        self.assertEqual(self.counters()["connections_accepted"], 1)

    def test_requests_in_flight(self):
        """They are finished before the other process serves."""
        server = self.serve(keys=",delay=write:3s", content=bytes(MIB))
        device = self.device(server, queues=3)
        for slot, queue in enumerate(device.queues):
            device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, queue=queue, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == 3)
        self.must_pass()
        for slot, queue in enumerate(device.queues):
            self.assertEqual(queue.next_used(), (0, 1))
            self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
            self.assertEqual(device.read(8 * slot, 4096, queue=queue), bytes([slot + 1]) * 4096)

    def test_a_request_that_waits_for_its_rate(self):
        """The other process takes it, once."""
        server = self.serve(keys=",rate=requests=4:burst=250ms", content=bytes(MIB))
        device, _ = self.recorded(server)
        for slot in range(6):
            device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot, kick=False)
        device.queue.kick()
        self.wait_for(lambda: device.queue.read_used_index() >= 1)
        self.must_pass()
        self.assertEqual([device.queue.next_used()[0] for _ in range(6)], [0, 3, 6, 9, 12, 15])
        for slot in range(6):
            self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
        self.assertEqual(device.stop(), 6)

    def test_requests_of_a_killed_server(self):
        """Those that were not repeated when the next server is upgraded."""
        server = self.serve(keys=",delay=write:1h", content=bytes(MIB))
        device, record = self.recorded(server)
        for slot in range(8):
            device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == 8)
        server.kill()
        server = self.serve(keys=",rate=requests=8:burst=125ms")
        again = self.reconnected(server, device, record)
        for _ in range(2):
            self.must_pass()
        self.assertEqual([again.queue.next_used()[0] for _ in range(8)], [3 * slot for slot in range(8)])
        for slot in range(8):
            self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
        self.assertEqual(again.stop(), 8)

    def test_a_kill_after_an_upgrade(self):
        """The record of requests in flight has passed, too."""
        server = self.serve(keys=",delay=write:1h:range=512K+256K", content=bytes(MIB))
        device, record = self.recorded(server)
        device.write(0, b"1" * 4096, first=60)
        self.must_pass()
        for slot in range(4):
            device.submit(tool.WRITE, 1024 + 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == 4)
        self.kill_children()
        again = self.reconnected(self.serve(), device, record)
        self.assertEqual([device.queue.next_used()[0] for _ in range(4)], [0, 3, 6, 9])
        for slot in range(4):
            self.assertEqual(self.content((1024 + 8 * slot) * 512, 4096), bytes([slot + 1]) * 4096)
        self.assertEqual(again.stop(), 5)

    def test_messages(self):
        """A message that has arrived in part, and those that follow."""
        server = self.serve(content=bytes(MIB))
        protocol = tool.REPLY_ACK | tool.CONFIG | tool.SLOTS | tool.BACK_REQ | tool.STATUS
        device = self.device(server, protocol=protocol)
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        with theirs:
            self.assertTrue(device.acknowledged(tool.SET_BACK_REQ_FD, b"", [theirs.fileno()]))
        self.assertTrue(device.acknowledged(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\0"))
        self.assertTrue(device.acknowledged(tool.SET_STATUS, struct.pack("=Q", 15)))
        region = bytes(8) + struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        message = struct.pack("=III", tool.ADD_MEM_REG, tool.VERSION | tool.NEED_REPLY, len(region)) + region
        for cut in (1, 12, 13, len(message) - 1):
            socket.send_fds(device.socket, [message[:cut]], [device.memory_fd])
            device.read(0, 512)  # so that the server has received that
            self.must_pass()
            device.socket.send(message[cut:])
            self.assertEqual(device.receive()[:2], (tool.ADD_MEM_REG, bytes(8)))
            self.assertTrue(device.acknowledged(tool.REM_MEM_REG, region))
        self.assertEqual((device.config()["wce"], device.number(tool.GET_STATUS)), (0, 15))
        while True:  # the first ones are those of the upgrades
            os.truncate(self.disk, os.path.getsize(self.disk) + MIB)
            ours.settimeout(support.WAIT_SECONDS)
            subprocess.run([support.program(), "export", "set", "disk", "size=auto", "--server", self.control],
                           check=True)
            self.assertEqual(struct.unpack("=III", ours.recv(12))[0], tool.BACK_CONFIG_CHANGE)
            if device.config()["capacity"] == os.path.getsize(self.disk) // 512:
                break

    def test_a_stop_that_waits(self):
        """GET_VRING_BASE that is answered by the other process."""
        server = self.serve(keys=",delay=write:1h", content=bytes(MIB))
        device, record = self.recorded(server)
        for slot in range(6):
            device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == 6)
        server.kill()
        again = self.reconnected(self.serve(keys=",rate=requests=4:burst=250ms"), device, record)
        again.send(tool.GET_VRING_BASE, struct.pack("=II", 0, 0))
        self.wait_for(lambda: again.queue.read_used_index() >= 1)
        self.must_pass()
        self.assertEqual(again.receive()[:2], (tool.GET_VRING_BASE, struct.pack("=II", 0, 6)))
        for slot in range(6):
            self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)

    def test_a_queue_that_has_failed(self):
        server = self.serve(content=bytes(MIB))
        device = self.device(server)
        device.queue.set_avail_index(1000)
        device.queue.kick()
        self.assertTrue(device.queue.wait(device.queue.error_fd))
        self.must_pass()
        self.assertTrue(device.queue.wait(device.queue.error_fd))
        device.stop()
        device.queue.set_avail_index(0)
        device.queue.setup()
        self.assertEqual(device.read(0, 512), bytes(512))

    def test_a_queue_that_waits_for_memory(self):
        """The requests of a killed server are repeated when the memory comes back, and those in flight are recorded."""
        server = self.serve(keys=",delay=write:1h", content=bytes(MIB))
        device, record = self.recorded(server)
        for slot in range(2):
            device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == 2)
        server.kill()
        device.queue.describe(1, 1 << 40, 4096, tool.NEXT, 2)
        again = self.reconnected(self.serve(), device, record)
        self.assertTrue(again.queue.wait(again.queue.error_fd))
        self.must_pass()
        fd = os.memfd_create("other")
        self.addCleanup(os.close, fd)
        os.pwrite(fd, b"x" * MIB, 0)
        region = bytes(8) + struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        self.assertTrue(again.acknowledged(tool.ADD_MEM_REG, region, [fd]))
        self.assertEqual([again.queue.next_used()[0] for _ in range(2)], [0, 3])
        self.assertEqual(self.content(0, 8192), b"x" * 4096 + b"\2" * 4096)
        self.assertEqual(again.stop(), 2)

    def test_the_log_of_dirty_pages(self):
        server = self.serve(content=bytes(MIB))
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.LOG_SHMFD)
        log_fd = os.memfd_create("log")
        self.addCleanup(os.close, log_fd)
        pages = (tool.GUEST + device.size) // 4096
        os.ftruncate(log_fd, pages // 8 + 1)
        device.ask(tool.SET_LOG_BASE, struct.pack("=QQ", pages // 8 + 1, 0), [log_fd])
        self.assertTrue(device.acknowledged(tool.SET_FEATURES, struct.pack("=Q", device.features | tool.F_LOG_ALL)))
        self.must_pass()
        os.pwrite(log_fd, bytes(pages // 8 + 1), 0)
        device.read(0, 4096)
        log = os.pread(log_fd, pages // 8 + 1, 0)
        page = (tool.GUEST + device.DATA) // 4096
        self.assertTrue(log[page // 8] >> page % 8 & 1)

    def test_an_upgrade_that_fails(self):
        """The old process continues, also with kicks of the time between."""
        server = self.serve(content=bytes(MIB))
        device = self.device(server)
        load = Load(device)
        for how in ("dies-with-all", "hangs-with-all"):
            code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", how)
            self.assertEqual(code, 1, errors)
            before = load.rounds
            self.wait_for(lambda before=before: load.rounds > before + 1 or not load.is_alive())
        self.must_pass()
        load.stop()

    def test_several_front_ends(self):
        server = self.serve(content=bytes(MIB))
        devices = [self.device(server) for _ in range(3)]
        for _ in range(2):
            self.must_pass(3)
            for number, device in enumerate(devices):
                device.write(8 * number, bytes([number + 1]) * 4096)
        self.assertEqual(self.content(0, 3 * 4096), b"".join(bytes([n]) * 4096 for n in (1, 2, 3)))

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_a_front_end_of_another_user(self):
        """It keeps a thread of its own."""
        server = self.serve("--access", "rights=rw", "--threads", "1")
        device = self.device(server)
        os.chmod(self.folder, 0o711)
        os.chmod(self.socket_path, 0o666)
        with tool.stranger(server.uri) as other:
            self.must_pass(2)
            with self.stopped_thread(self.children[-1], "gmblock/1"):
                other.submit(tool.READ, 0, size=512)
                for _ in range(4):
                    self.assertEqual(device.read(0, 512), self.content(0, 512))
                self.assertEqual(other.queue.read_used_index(), 0)
            self.assertEqual(other.queue.next_used(), (0, 513))

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_access_rules_after_the_start(self):
        """A server whose access rules admit no other user has all of its memory for its other threads. It gets threads for
        front ends of other users when it is upgraded."""
        def write(*rules):
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"exports": [{"name": "disk", "path": self.path("disk.img"), "access": rules}]}, file)

        config = self.path("gmblock.conf")
        self.make_file("disk.img", bytes(MIB))
        write({"uid": os.geteuid(), "rights": "rw"}, {"uid": 65534, "rights": "none"}, {"address": "10.0.0.0/8", "rights": "rw"})
        self.control, self.socket_path = self.path("control"), self.path("socket")
        for memory in ("4M", "8M"):
            server = self.start("--config", config, "--control", self.control, "--threads", "1", "--memory", memory,
                                "--listen", f"vhost-user-blk+unix:///disk?socket={self.socket_path}")
            device = self.device(server)
            device.write(0, b"1" * 512)
            if memory == "4M":
                server.stop()
        self.addCleanup(self.kill_children)
        os.chmod(self.folder, 0o711)
        os.chmod(self.socket_path, 0o666)
        with self.assertRaises(tool.Gone):
            tool.stranger(server.uri)
        write({"rights": "rw"})
        code, _, errors = self.run_gmblock("reload", self.control)
        self.assertEqual(code, 1)
        self.assertIn("the server was started without rules for other users", errors)
        self.assertIn("gmblock upgrade", errors)
        self.must_pass()
        with tool.stranger(server.uri) as other, self.stopped_thread(self.children[-1], "gmblock/0"):
            self.assertEqual(other.read(0, 512), b"1" * 512)
        device.write(0, b"2" * 512)

    def test_the_front_end_of_libgmblock(self):
        """A copy in both directions goes on, over the same connection."""
        size = 64 * MIB
        server = self.serve(keys=",rate=4M", content=os.urandom(size))
        target = self.path("target")
        copy = subprocess.Popen([support.program(), "copy", server.uri, target], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
        self.addCleanup(copy.kill)
        self.wait_for(lambda: self.counters()["bytes_read"] > MIB)
        for _ in range(3):
            self.must_pass()
        subprocess.run([support.program(), "export", "set", "disk", "rate=default", "--server", self.control], check=True,
                       stdout=subprocess.DEVNULL)
        self.assertEqual(copy.communicate()[1], "")
        self.assertEqual(copy.returncode, 0)
        with open(self.disk, "rb") as one, open(target, "rb") as other:
            self.assertEqual(one.read(), other.read())


if __name__ == "__main__":
    upgrades.main()
