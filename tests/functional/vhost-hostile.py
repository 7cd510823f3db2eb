#!/usr/bin/python3
"""vhost-user-blk against front ends and guests that break rules: messages, descriptors, rings, and memory that changes
or vanishes while the server uses it. Whatever they do, the server serves others."""
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import unittest

import lingering_socket
import nbdmini
import support
import trace_tool
import vhost_tool as tool

ROUNDS = int(os.environ.get("SOAK_VHOST_ROUNDS", "300").rstrip("%"))
SECTOR = b"s" * 512


@contextlib.contextmanager
def sleeping_epoll(case, event):
    """A thread waits for the event and sleeps when it stores it, until userfaultfd(2) provides the memory."""
    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long
    faults = call.syscall(ctypes.c_long({"x86_64": 323, "aarch64": 282}[os.uname().machine]),
                          os.O_CLOEXEC | os.O_NONBLOCK)
    if faults < 0:
        case.skipTest("no userfaultfd here")
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    with open(faults, "rb", buffering=0) as file, select.epoll() as epoll:
        fcntl.ioctl(file, 0xc018aa3f, struct.pack("=QQQ", 0xaa, 0, 0))  # UFFDIO_API
        fcntl.ioctl(file, 0xc020aa00, struct.pack("=QQQQ", address, mmap.PAGESIZE, 1, 0))  # UFFDIO_REGISTER
        epoll.register(event, select.EPOLLIN)
        os.eventfd_write(event, 1)
        thread = threading.Thread(target=call.epoll_wait, args=(epoll.fileno(), ctypes.c_void_p(address), 1, -1))
        thread.start()
        try:
            case.assertTrue(select.select([file], [], [], support.WAIT_SECONDS)[0])
            yield
        finally:
            file.close()  # the kernel provides the memory then
            thread.join()


class Hostile(support.Case):
    def setUp(self):
        super().setUp()
        self.logged = ""
        socket_path = self.path("socket")
        self.make_file("disk", SECTOR * 2048)
        self.server = self.start("--export", f"disk={self.path('disk')}", "--threads", "1",
                                 "--listen", f"vhost-user-blk+unix:///disk?socket={socket_path}")

    def tearDown(self):
        """The server must still work."""
        with tool.Device(self.server.uri) as device:
            self.assertEqual(device.read(5, 512), SECTOR)
        status, errors = self.server.stop()
        self.assertEqual(status, 0, errors)
        self.assertIn(self.logged, errors)

    def device(self, **options):
        device = tool.Device(self.server.uri, **options)
        self.addCleanup(device.close)
        return device

    def connection(self):
        connection = tool.Connection(self.server.uri)
        self.addCleanup(connection.close)
        return connection


class Messages(Hostile):
    def test_heads(self):
        """V1, V4, V12, V19: messages that break rules end the connection"""
        for head in (struct.pack("=III", tool.GET_FEATURES, 2, 0),  # version
                     struct.pack("=III", tool.GET_FEATURES, 1, 2**31),
                     struct.pack("=III", tool.SET_FEATURES, 1, 4) + bytes(4),
                     struct.pack("=III", 0, 1, 0), struct.pack("=III", 41, 1, 0), struct.pack("=III", 2**32 - 1, 1, 0),
                     struct.pack("=III", tool.SET_VRING_NUM, 1, 8) + struct.pack("=II", 64, 64),
                     struct.pack("=III", tool.SET_VRING_NUM, 1, 8) + struct.pack("=II", 0, 3),
                     struct.pack("=III", tool.SET_VRING_NUM, 1, 8) + struct.pack("=II", 0, 65536),
                     struct.pack("=III", tool.SET_FEATURES, 1, 8) + b"\xff" * 8,
                     struct.pack("=III", tool.SET_PROTOCOL_FEATURES, 1, 8) + b"\xff" * 8,
                     struct.pack("=III", tool.SET_MEM_TABLE, 1, 8) + struct.pack("=II", 9, 0),
                     struct.pack("=III", tool.SET_MEM_TABLE, 1, 40) + struct.pack("=II", 1, 0) + bytes(32),
                     struct.pack("=III", tool.GET_CONFIG, 1, 12) + struct.pack("=III", 0, 2**32 - 1, 0),
                     struct.pack("=III", tool.GET_CONFIG, 1, 12) + struct.pack("=III", 2**32 - 1, 0, 0),
                     struct.pack("=III", tool.SET_VRING_KICK, 1, 8) + struct.pack("=Q", tool.NO_FD),
                     struct.pack("=III", tool.GET_INFLIGHT_FD, 1, 24) + struct.pack("=QQHH4x", 0, 0, 65535, 65535)):
            connection = self.connection()
            connection.socket.sendall(head)
            connection.gone()

    def test_messages_in_pieces_and_their_end(self):
        connection = self.connection()
        for byte in struct.pack("=III", tool.GET_FEATURES, 1, 0):
            connection.socket.send(bytes([byte]))
        self.assertEqual(connection.receive()[0], tool.GET_FEATURES)
        connection.socket.send(b"\1\0")
        connection.socket.shutdown(socket.SHUT_WR)
        connection.gone()

    def test_answers_that_are_not_read(self):
        connection = self.connection()
        connection.socket.settimeout(0.5)
        with self.assertRaises(TimeoutError):
            while True:
                connection.send(tool.GET_FEATURES)
        self.assertEqual(self.device().read(0, 512), SECTOR)

    def test_too_many_descriptors(self):
        connection = self.connection()
        with open("/dev/null", "rb") as null:
            connection.number(tool.GET_FEATURES)  # from now on, descriptors are permitted
            connection.send(tool.GET_FEATURES, fds=[null.fileno()] * 3)
            self.assertEqual(connection.receive()[0], tool.GET_FEATURES)
            connection.send(tool.GET_FEATURES, fds=[null.fileno()] * 9)
        connection.gone()


class Descriptors(Hostile):
    def test_memory_that_is_not_memory(self):
        """V19: other descriptors are rejected, and have no effect"""
        disk = os.open(self.path("disk"), os.O_RDWR)
        reader, writer = os.pipe()
        small = os.memfd_create("small")
        os.ftruncate(small, 4096)
        for fd in (disk, reader, writer, small):
            self.addCleanup(os.close, fd)
        with socket.socket() as tcp, open("/dev/zero", "r+b", buffering=0) as zero:
            for fd in (disk, reader, writer, small, tcp.fileno(), zero.fileno()):
                device = self.device(start=False)
                device.negotiate()
                self.assertFalse(device.acknowledged(
                    tool.SET_MEM_TABLE, struct.pack("=II", 1, 0) + device.region(), [fd]), fd)
                self.assertTrue(device.acknowledged(
                    tool.SET_MEM_TABLE, struct.pack("=II", 1, 0) + device.region(), [device.memory_fd]))

    def test_a_record_that_is_rejected(self):
        """V16: the one before stays. With the counts of the other one, the record of queue 63 would be behind its end."""
        device = self.device(protocol=tool.REPLY_ACK | tool.INFLIGHT, start=False)
        device.negotiate()
        fd = os.memfd_create("inflight")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 4096)
        device.check(tool.SET_INFLIGHT_FD, struct.pack("=QQHH4x", 2048, 0, 1, 64), [fd])
        self.assertFalse(device.acknowledged(tool.SET_INFLIGHT_FD, struct.pack("=QQHH4x", 2 << 20, 0, 64, 1024)))
        device.share_memory()
        for number, slot in ((63, 1), (0, 2)):
            queue = tool.Queue(device, number, 64, 0x4000 + 0x1000 * slot)
            for event in (queue.kick_fd, queue.call_fd, queue.error_fd):
                self.addCleanup(os.close, event)
            queue.setup()
            self.assertEqual(device.read(3, 512, queue=queue), SECTOR)
        self.assertEqual(struct.unpack("=H", os.pread(fd, 2, 8)), (1,))  # the version: queue 0 has used it

    def test_regions(self):
        device = self.device(start=False)
        device.negotiate()
        for region in ((2**64 - 4096, device.size, tool.USER, 0), (tool.GUEST, device.size, 2**64 - 1, 0),
                       (tool.GUEST, 0, tool.USER, 0), (tool.GUEST, 2**63, tool.USER, 0),
                       (tool.GUEST, 4096, tool.USER, 2**64 - 4096), (tool.GUEST, device.size, tool.USER, 1)):
            self.assertFalse(device.acknowledged(
                tool.SET_MEM_TABLE, struct.pack("=IIQQQQ", 1, 0, *region), [device.memory_fd]), region)
        self.assertFalse(device.acknowledged(
            tool.SET_MEM_TABLE, struct.pack("=II", 2, 0) + 2 * device.region(), [device.memory_fd]))

    def test_more_memory_than_the_process_can_map(self):
        """Sparse files of many front ends together; one of them alone has less."""
        with open(support.GMBLOCK, "rb") as program:
            if b"__tsan_init" in program.read():
                self.skipTest("ThreadSanitizer ends a process with such mappings")
        huge = os.memfd_create("huge")
        self.addCleanup(os.close, huge)
        os.ftruncate(huge, 8 << 40)
        devices, accepted = [], True
        while accepted:
            devices.append(self.device(start=False))
            devices[-1].negotiate()
            accepted = devices[-1].acknowledged(
                tool.SET_MEM_TABLE, struct.pack("=IIQQQQ", 1, 0, 0, 8 << 40, tool.USER, 0), [huge])
        self.assertEqual(len(devices), 9)
        devices[0].check(tool.SET_MEM_TABLE, bytes(8))
        devices[-1].start()
        self.assertEqual(devices[-1].read(3, 512), SECTOR)
        self.logged = "64 TiB"

    def test_events_that_are_not_eventfds(self):
        reader, writer = os.pipe()
        pidfd = os.pidfd_open(os.getpid())
        epoll = select.epoll()
        for fd in (reader, writer, pidfd):
            self.addCleanup(os.close, fd)
        self.addCleanup(epoll.close)
        device = self.device()
        for request in (tool.SET_VRING_KICK, tool.SET_VRING_CALL, tool.SET_VRING_ERR):
            for fd in (reader, writer, pidfd, epoll.fileno(), device.memory_fd, device.socket.fileno()):
                self.assertFalse(device.acknowledged(request, struct.pack("=Q", 0), [fd]))
        self.assertFalse(device.acknowledged(tool.SET_VRING_KICK, struct.pack("=Q", 99), [device.queue.kick_fd]))
        self.assertFalse(device.acknowledged(tool.SET_VRING_KICK, struct.pack("=Q", tool.NO_FD)))

    def test_a_call_eventfd_that_would_block(self):
        device = self.device()
        full = os.eventfd(0, os.EFD_CLOEXEC)  # without O_NONBLOCK
        self.addCleanup(os.close, full)
        os.eventfd_write(full, 2**64 - 2)
        device.check(tool.SET_VRING_CALL, struct.pack("=Q", 0), [full])
        for count in range(1, 4):
            device.submit(tool.READ, 0, size=512)
            self.wait_for(lambda: device.queue.read_used_index() == count)  # pylint: disable=cell-var-from-loop
        self.assertEqual(self.device().read(0, 512), SECTOR)
        os.eventfd_read(full)
        select.select([full], [], [], support.WAIT_SECONDS)

    def test_full_eventfds_at_the_end(self):
        """Neither front ends that leave nor those that exchange the eventfd leave anything behind."""
        full = os.eventfd(0, os.EFD_CLOEXEC)
        self.addCleanup(os.close, full)
        os.eventfd_write(full, 2**64 - 2)
        folder = f"/proc/{self.server.process.pid}/fd"
        self.device().read(0, 512)
        before = len(os.listdir(folder))
        for _ in range(3):
            device = tool.Device(self.server.uri)
            for _ in range(10):
                device.check(tool.SET_VRING_CALL, struct.pack("=Q", 0), [full])
            device.submit(tool.READ, 0, size=512)
            self.wait_for(lambda: device.queue.read_used_index() == 1)  # pylint: disable=cell-var-from-loop
            device.stop()
            device.close()
        self.wait_for(lambda: len(os.listdir(folder)) <= before)

    def test_an_eventfd_whose_end_sleeps(self):
        """It is in an epoll, whose lock is held by a thread that waits for memory, and only the server has it open."""
        device = self.device()
        event = tool.eventfd()
        with sleeping_epoll(self, event):
            device.check(tool.SET_VRING_ERR, struct.pack("=Q", 0), [event])
            os.close(event)
            device.check(tool.SET_VRING_ERR, struct.pack("=Q", 0), [device.queue.error_fd])
            for one in device, self.device():
                self.assertEqual(one.read(0, 512), SECTOR)

    def test_memory_whose_descriptors_are_closed_slowly(self):
        """Rejected ones count towards the limit of their user, who could otherwise use up all descriptors."""
        device = self.device(protocol=tool.REPLY_ACK | tool.SLOTS, start=False)
        device.negotiate()
        message, peers = bytes(8) + device.region(), []
        self.server.freeze()  # otherwise the last descriptor may be ours
        for _ in range(2):
            outer, inner = socket.socketpair()
            with outer, inner:
                slow = lingering_socket.make(peers)
                self.addCleanup(peers[-1].close)
                socket.send_fds(inner, [b"x"], [slow.fileno()])
                slow.close()
                device.send(tool.ADD_MEM_REG, message, [outer.fileno()], tool.NEED_REPLY)
        self.server.signal(signal.SIGCONT)
        for _ in range(2):
            self.assertEqual(device.receive()[:2], (tool.ADD_MEM_REG, struct.pack("=Q", 1)))
        with open("/dev/null", "rb") as null, self.assertRaises(tool.Gone):
            for _ in range(2000):
                self.assertFalse(device.acknowledged(tool.ADD_MEM_REG, message, [null.fileno()]))
        for peer in peers:
            peer.close()

        def is_served():
            with contextlib.suppress(tool.Gone), tool.Device(self.server.uri):
                return True
            return False
        self.wait_for(is_served)

    def test_eventfds_of_queues_that_do_not_exist(self):
        device = self.device()
        for request in (tool.SET_VRING_KICK, tool.SET_VRING_CALL, tool.SET_VRING_ERR):
            for number in (64, 64 | tool.NO_FD, 255 | tool.NO_FD):
                self.assertFalse(device.acknowledged(request, struct.pack("=Q", number)), number)
        self.assertEqual(device.read(0, 512), SECTOR)

    def test_kicks_that_never_end(self):
        device = self.device()
        semaphore = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self.addCleanup(os.close, semaphore)
        os.eventfd_write(semaphore, 2**63)
        device.check(tool.SET_VRING_KICK, struct.pack("=Q", 0), [semaphore])
        other = self.device()
        for _ in range(50):
            self.assertEqual(other.read(0, 512), SECTOR)


class Rings(Hostile):
    def check_fails(self, device):
        """The queue stops with an error, and works again when it was set up again."""
        self.assertTrue(device.queue.wait(device.queue.error_fd))
        used = device.queue.read_used_index()
        device.stop()
        device.memory[:device.HEAD] = bytes(device.HEAD)
        device.queue.used_index = 0
        device.queue.setup()
        self.assertEqual(device.read(3, 512), SECTOR)
        device.stop()
        device.memory[:device.HEAD] = bytes(device.HEAD)
        device.queue.used_index = 0
        device.queue.setup()
        self.assertEqual(used, 0)

    def test_chains(self):
        """V23: a wrong chain stops its ring"""
        device = self.device()
        queue, head = device.queue, tool.GUEST + device.HEAD
        device.memory[device.HEAD:device.HEAD + 16] = struct.pack("=IIQ", tool.READ, 0, 0)
        status = tool.GUEST + device.STATUS_AT
        chains = {
            "loop of one": [(head, 16, tool.NEXT, 0)],
            "loop of two": [(head, 16, tool.NEXT, 1), (head, 16, tool.NEXT, 0)],
            "leaves the table": [(head, 16, tool.NEXT, 64)],
            "far away": [(head, 16, tool.NEXT, 65535)],
            "no status": [(head, 16, 0, 0)],
            "empty status": [(head, 16, tool.NEXT, 1), (status, 0, tool.WRITABLE, 0)],
            "short head": [(head, 15, tool.NEXT, 1), (status, 1, tool.WRITABLE, 0)],
            "no head": [(status, 1, tool.WRITABLE, 0)],
            "empty": [(head, 0, 0, 0)],
            "readable after writable": [(head, 16, tool.NEXT, 1), (status, 1, tool.NEXT | tool.WRITABLE, 2),
                                        (head, 1, 0, 0)],
            "outside": [(tool.GUEST + device.size - 8, 16, tool.NEXT, 1), (status, 1, tool.WRITABLE, 0)],
            "address overflow": [(2**64 - 8, 16, tool.NEXT, 1), (status, 1, tool.WRITABLE, 0)],
            "long": [(head, 2**32 - 1, tool.NEXT, 1), (status, 1, tool.WRITABLE, 0)],
            "status outside": [(head, 16, tool.NEXT, 1), (0, 1, tool.WRITABLE, 0)],
            "indirect and next": [(head, 16, tool.INDIRECT | tool.NEXT, 1)],
            "indirect of no bytes": [(head, 0, tool.INDIRECT, 0)],
            "indirect of odd size": [(head, 17, tool.INDIRECT, 0)],
            "indirect too long": [(head, 2**32 - 16, tool.INDIRECT, 0)],
            "indirect outside": [(tool.GUEST + device.size - 16, 32, tool.INDIRECT, 0)],
            "indirect in itself": [(tool.GUEST + queue.desc, 16, tool.INDIRECT, 0)],
        }
        for name, chain in chains.items():
            with self.subTest(name):
                for number, (address, size, flags, following) in enumerate(chain):
                    queue.describe(number, address, size, flags, following)
                queue.make_available(0)
                self.check_fails(device)
                device.memory[device.HEAD:device.HEAD + 16] = struct.pack("=IIQ", tool.READ, 0, 0)

    def test_indices(self):
        """V23: wrong heads and indices stop the ring"""
        device = self.device()
        device.queue.make_available(64)
        self.check_fails(device)
        device.queue.set_avail_index(device.queue.avail_index + 65)
        device.queue.kick()
        self.check_fails(device)

    def test_chains_with_many_descriptors(self):
        device = self.device(entries=1024)
        parts = [(device.HEAD, 16, False)] + [(device.DATA, 1, True)] * 900
        device.queue.chain(parts)
        device.queue.make_available(0)
        self.assertTrue(device.queue.wait(device.queue.error_fd))

    def test_the_same_chain_many_times(self):
        device = self.device()
        device.submit(tool.READ, 0, size=512, kick=False)
        for _ in range(200):
            device.queue.make_available(0)
        other = self.device()
        self.assertEqual(other.read(0, 512), SECTOR)

    def test_a_ring_that_fills_itself(self):
        """The avail ring is the used ring, so each request that ends adds another one, which ends at once."""
        self.fill_itself(self.device(start=False))
        other = self.device()
        for _ in range(10):
            self.assertEqual(other.read(0, 512), SECTOR)

    def fill_itself(self, device):
        device.negotiate(tool.F_PROTOCOL | tool.F_VERSION_1)
        device.share_memory()
        queue = device.queue
        queue.avail = queue.used
        device.memory[device.HEAD:device.HEAD + 16] = struct.pack("=IIQ", 99, 0, 0)  # an unknown type
        # elements of the used ring have the heads 0 and 1 when they are read as elements of the avail ring
        queue.describe(0, tool.GUEST + device.HEAD, 16, tool.NEXT, 2)
        queue.describe(1, tool.GUEST + device.HEAD, 16, tool.NEXT, 2)
        queue.describe(2, tool.GUEST + device.STATUS_AT, 1, tool.WRITABLE)
        queue.set_avail_index(1)
        queue.setup()
        self.wait_for(lambda: queue.read_used_index() > 200)

    def test_a_session_that_ends_late(self):
        """It leaves the kicks to the next session of the front end. With EVENT_IDX, the guest would not kick again if it
        found an earlier index there."""
        control = self.path("control")
        server = self.start("--export", "disk=memory:1M,delay=read:2s", "--threads", "1", "--control", control, "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('slow')}")
        awake, device, again = [tool.Device(server.uri, protocol=tool.REPLY_ACK | tool.CONFIG | tool.INFLIGHT, start=False)
                                for _ in range(3)]
        for each in (awake, device, again):
            self.addCleanup(each.close)
        self.fill_itself(awake)  # so that the server asks nobody to kick
        record = os.memfd_create("inflight")
        self.addCleanup(os.close, record)
        os.ftruncate(record, 4096)
        device.negotiate()
        device.check(tool.SET_INFLIGHT_FD, struct.pack("=QQHH4x", 4096, 0, 1, 64), [record])
        device.share_memory()
        queue = device.queue
        queue.setup()
        device.submit(tool.READ, 0, size=512)
        self.wait_for(lambda: os.pread(record, 1, 16) == b"\1")  # the request is in flight
        device.socket.close()
        again.queues, again.memory, again.memory_fd = [queue], device.memory, device.memory_fd
        queue.device = again
        again.start(base=1)
        again.write(8, b"x" * 512)
        awake.socket.close()
        at, wanted = queue.used + 4 + 8 * queue.entries, struct.pack("=H", 2)
        self.wait_for(lambda: again.memory[at:at + 2] == wanted)
        self.wait_for(lambda: json.loads(self.run_gmblock("stats", "--json", control)[1])["counters"]["connections"] == 1)
        self.assertEqual(again.memory[at:at + 2], wanted)

    def test_rings_outside_of_memory(self):
        """V13: rings that are misaligned or leave the memory are rejected"""
        device = self.device(start=False)
        device.negotiate()
        device.share_memory()
        device.check(tool.SET_VRING_NUM, struct.pack("=II", 0, 64))
        end = tool.USER + device.size
        ok = (tool.USER, tool.USER + 0x2000, tool.USER + 0x1000)
        for desc, used, avail in ((end - 512, *ok[1:]), (ok[0], end - 16, ok[2]), (*ok[:2], end - 2),
                                  (ok[0] + 8, *ok[1:]), (ok[0], ok[1] + 2, ok[2]), (*ok[:2], ok[2] + 1), (0, 0, 0)):
            self.assertFalse(device.acknowledged(
                tool.SET_VRING_ADDR, struct.pack("=IIQQQQ", 0, 0, desc, used, avail, 0)))

    def test_a_record_of_requests_that_lies(self):
        for version, count, last, used, desc in ((1, 64, 65535, 9, b"\1" * 16), (1, 64, 3, 65530, b"\xff" * 16),
                                                 (1, 9, 1, 1000, bytes(16)), (9, 64, 0, 0, b"\1" * 16)):
            fd = os.memfd_create("inflight")
            self.addCleanup(os.close, fd)
            os.ftruncate(fd, 4096)
            os.pwrite(fd, struct.pack("=QHHHH", 0, version, count, last, used) + 64 * desc, 0)
            device = self.device(protocol=tool.REPLY_ACK | tool.INFLIGHT, start=False)
            device.negotiate()
            device.check(tool.SET_INFLIGHT_FD, struct.pack("=QQHH4x", 4096, 0, 1, 64), [fd])
            device.share_memory()
            device.queue.setup()
            device.submit(tool.READ, 0, size=512)
            device.stop()


class Changes(Hostile):
    def test_memory_is_truncated(self):
        for again in range(3):
            device = self.device()
            device.read(0, 512)
            os.ftruncate(device.memory_fd, 0)
            if again:
                device.queue.kick()
            else:
                os.ftruncate(device.memory_fd, device.size)
                device.memory.madvise(mmap.MADV_DONTNEED)
            other = self.device()
            self.assertEqual(other.read(0, 512), SECTOR)
            if again:
                device.gone()

    def test_memory_is_truncated_while_requests_are_in_flight(self):
        for _ in range(ROUNDS // 10):
            device = self.device()
            for slot in range(8):
                device.submit(tool.READ, slot, size=4096, first=3 * slot, slot=slot)
            os.ftruncate(device.memory_fd, 0)
            device.queue.kick()
            device.close()

    def with_other_memory(self, device):
        """Adds a region of 2 MiB in a file of its own; returns its guest address and the file."""
        fd = os.memfd_create("other")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 2 << 20)
        device.check(tool.ADD_MEM_REG, bytes(8) + struct.pack("=QQQQ", 1 << 40, 2 << 20, 1 << 44, 0), [fd])
        return 1 << 40, fd

    def describe(self, device, slot, kind, sector, payload, size=512):
        """A request with its payload at a guest address."""
        at, first = device.HEAD + 32 * slot, 3 * slot
        device.memory[at:at + 16] = struct.pack("=IIQ", kind, 0, sector)
        device.memory[device.STATUS_AT + slot] = 0xff
        device.queue.describe(first, tool.GUEST + at, 16, tool.NEXT, first + 1)
        device.queue.describe(first + 1, payload, size, tool.NEXT | (tool.WRITABLE if kind == tool.READ else 0), first + 2)
        device.queue.describe(first + 2, tool.GUEST + device.STATUS_AT + slot, 1, tool.WRITABLE)
        device.queue.make_available(first, kick=False)

    def test_nothing_is_answered_after_memory_has_vanished(self):
        """If a page of a region cannot be accessed, the server has zeroes in place of the whole region."""
        server = self.start("--export", "ram=memory:1M", "--listen",
                            f"vhost-user-blk+unix:///ram?socket={self.path('ram')}")
        device = tool.Device(server.uri, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        self.addCleanup(device.close)
        other, fd = self.with_other_memory(device)
        os.pwrite(fd, b"w" * 512, 0)
        self.describe(device, 0, tool.READ, 0, other + (512 << 10))
        self.describe(device, 1, tool.WRITE, 8, other)
        os.ftruncate(fd, 4096)
        device.queue.kick()
        device.gone()
        self.assertEqual((device.queue.read_used_index(), device.status(0), device.status(1)), (0, 0xff, 0xff))

    def test_a_session_whose_end_is_found_while_it_answers(self):
        """Its turn is full, and nothing else of it is in flight: it has no eventfds, and its message waits."""
        device = self.device()
        folder = f"/proc/{self.server.process.pid}/fd"
        before = len(os.listdir(folder))
        for request in (tool.SET_VRING_KICK, tool.SET_VRING_CALL, tool.SET_VRING_ERR):
            self.assertEqual(device.acknowledged(request, struct.pack("=Q", tool.NO_FD)), request != tool.SET_VRING_KICK)
        self.wait_for(lambda: len(os.listdir(folder)) <= before - 3)
        device.check(tool.SET_VRING_ENABLE, struct.pack("=II", 0, 0))
        device.memory[device.HEAD:device.HEAD + 16] = struct.pack("=IIQ", 99, 0, 0)  # an unknown type, which ends at once
        device.queue.describe(0, tool.GUEST + device.HEAD, 16, tool.NEXT, 1)
        device.queue.describe(1, tool.GUEST + device.size - 1, 1, tool.WRITABLE)
        for _ in range(64):  # the share of a turn
            device.queue.make_available(0, kick=False)
        os.ftruncate(device.memory_fd, device.size - 4096)
        device.socket.sendall(b"".join(struct.pack("=IIIII", request, tool.VERSION, 8, 0, enabled) for request, enabled in (
            (tool.SET_VRING_ENABLE, 1), (tool.GET_VRING_BASE, 0))))
        device.gone()
        self.assertEqual(self.device().read(0, 512), SECTOR)

    def test_a_record_outlives_the_memory_of_its_rings(self):
        """V16: a request whose end did not reach the used ring is done again"""
        server = self.start("--export", "disk=memory:1M,delay=read:2s", "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('slow')}")
        record = os.memfd_create("inflight")
        self.addCleanup(os.close, record)
        os.ftruncate(record, 4096)
        state = (struct.pack("=QQHH4x", 4096, 0, 1, 64), [record])
        memory = None
        for _ in range(2):
            device = tool.Device(server.uri, protocol=tool.REPLY_ACK | tool.CONFIG | tool.INFLIGHT, start=False)
            self.addCleanup(device.close)
            device.negotiate()
            device.check(tool.SET_INFLIGHT_FD, *state)
            device.share_memory()
            if memory is not None:
                device.memory[:] = memory
                device.queue.setup()
                self.assertEqual(device.queue.next_used(), (0, 513))
                self.assertEqual(device.status(), tool.OK)
                return
            device.queue.setup()
            device.submit(tool.READ, 0, size=512)
            self.wait_for(lambda: os.pread(record, 1, 16) == b"\1")  # the request is in flight
            memory = device.memory[:]
            os.ftruncate(device.memory_fd, 0)
            device.gone()

    def test_a_durable_write_from_memory_that_has_vanished(self):
        """It fails, but neither the disk nor its other clients are at fault."""
        self.check_durable_write(self.make_file("image-1", SECTOR * 64), "direct", 512, 0)
        self.check_durable_write(self.make_file("image-2", SECTOR * 64), "cached", 512, 0)

    def test_a_long_durable_write_from_memory_that_has_vanished(self):
        """To a block device, of which the kernel then reports an error if the write is longer than one of its own."""
        image = self.make_file("image-3", bytes(4 << 20))
        self.check_durable_write(trace_tool.TraceCase.loop(self, image), "direct", 2 << 20, 1536 << 10)

    def check_durable_write(self, image, mode, size, left):
        server = self.start("--export", f"disk={image},mode={mode}", "--control", self.path(mode), "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('s-' + mode)}")
        device = tool.Device(server.uri, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        self.addCleanup(device.close)
        other, fd = self.with_other_memory(device)
        device.check(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\0")  # writes are durable now
        os.ftruncate(fd, left)
        self.describe(device, 0, tool.WRITE, 8, other, size)
        device.queue.kick()
        self.assertEqual(device.queue.next_used(), (0, 1))
        self.assertEqual(device.status(), tool.IO_ERROR)
        with tool.Device(server.uri) as front_end:
            front_end.write(16, b"w" * 512)
            self.assertEqual(front_end.do(tool.FLUSH)[0], tool.OK)
        code, _, errors = self.run_gmblock("upgrade", "--dry-run", self.path(mode))
        self.assertEqual(code, 0, errors)
        self.assertEqual(server.stop()[0], 0)

    def test_memory_is_punched_all_the_time(self):
        """Head, status and payload come and go; zeroes are a read of sector 0. Another front end is served meanwhile."""
        device = self.device()
        other = self.device()
        stop = threading.Event()

        def punch():
            while not stop.is_set():
                tool.punch(device.memory_fd, device.HEAD, 1 << 20)

        thread = threading.Thread(target=punch)
        thread.start()
        try:
            for _ in range(ROUNDS):
                self.assertEqual(device.do(tool.READ, 0, size=65536)[0], tool.OK)
                self.assertEqual(other.read(1, 512), SECTOR)
        finally:
            stop.set()
            thread.join()

    def test_rings_that_are_rewritten(self):
        """While another thread writes to the rings and requests, the guest kicks, and starts again after errors."""
        source = random.Random(os.environ.get("SEED", "33"))
        for _ in range(ROUNDS // 50):
            device = self.device(megabytes=1, protocol=tool.REPLY_ACK | tool.CONFIG)
            stop = threading.Event()

            def rewrite(memory=device.memory, end=device.queue.end, stop=stop, seed=source.random()):
                mine = random.Random(seed)
                while not stop.is_set():
                    at = mine.randrange(end)
                    memory[at:at + 1] = mine.choice((b"\0", b"\1", b"\2", b"\4", b"\x10", b"\xff",
                                                     bytes([mine.randrange(256)])))
                    at = device.HEAD + mine.randrange(16)  # pylint: disable=cell-var-from-loop
                    memory[at:at + 1] = bytes([mine.choice((0, 1, 4, 8, 11, 13, 255))])

            thread = threading.Thread(target=rewrite)
            thread.start()
            try:
                for _ in range(50):
                    for first in range(0, 48, 3):
                        device.submit(tool.READ, source.randrange(64), size=4096, first=first, slot=first // 3)
                    if select.select([device.queue.error_fd], [], [], 0)[0]:
                        os.eventfd_read(device.queue.error_fd)
                        device.stop()
                        device.queue.setup()
            finally:
                stop.set()
                thread.join()
            device.close()


@unittest.skipIf(os.geteuid() != 0, "another user is needed")
class Strangers(support.Case):
    """Front ends of users who are not trusted. They can hold up the threads that access their memory."""

    def serve(self, export, threads):
        server = self.start("--export", export, "--threads", threads, "--access", "rights=rw", "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('vm')}&socket-mode=0666", "--listen",
                            self.socket_uri(), uri_count=2)
        os.chmod(self.folder, 0o711)
        return server

    def stranger(self, server, **options):
        device = tool.stranger(server.uri, **options)
        self.addCleanup(device.close)
        return device

    def check_others(self, server):
        for _ in range(4):
            with tool.Device(server.uri) as device, nbdmini.open_export(server.uris[1], b"disk") as client:
                self.assertEqual(device.read(0, 512), client.read(0, 512))

    def test_they_have_threads_of_their_own(self):
        for threads in 1, 2:
            server = self.serve("disk=memory:1M", str(threads))
            strangers = [self.stranger(server, queues=2) for _ in range(threads)]
            queues = [(device, queue) for device in strangers for queue in device.queues]
            with contextlib.ExitStack() as stopped:
                for number in range(threads, 2 * threads):
                    stopped.enter_context(self.stopped_thread(server.process.pid, f"gmblock/{number}"))
                for device, queue in queues:
                    device.submit(tool.READ, 0, size=512, queue=queue, slot=queue.index)
                self.check_others(server)
                self.assertEqual([queue.read_used_index() for _, queue in queues], [0] * len(queues))
            for _, queue in queues:
                self.assertEqual(queue.next_used(), (0, 513))
            with contextlib.ExitStack() as stopped:
                for number in range(threads):
                    stopped.enter_context(self.stopped_thread(server.process.pid, f"gmblock/{number}"))
                for device, queue in queues:
                    device.read(0, 512, queue=queue)
            self.assertEqual(server.stop()[0], 0)

    def test_the_thread_of_a_flash_store_does_not_access_their_memory(self):
        """Who touches a page that was removed shows in page faults."""
        store = self.path("store")
        self.assertEqual(self.run_gmblock("create", "--size=64M", f"flash:{store}")[0], 0)
        server = self.serve(f"disk=flash:{store}", "1")
        size, count = 128 << 10, 8
        device = self.stranger(server)
        faults = []
        for _ in range(2):  # the first time, also those of the server's own memory
            before = server.faults_of_reactors("gmblock/0")
            for kind in tool.WRITE, tool.READ:
                tool.punch(device.memory_fd, device.DATA, count * size)
                for number in range(count):
                    device.memory[device.HEAD:device.HEAD + 16] = struct.pack("=IIQ", kind, 0, number * size // 512)
                    device.queue.chain([(device.HEAD, 16, False), (device.DATA + number * size, size, kind == tool.READ),
                                        (device.STATUS_AT, 1, True)])
                    device.queue.make_available(0)
                    device.queue.next_used()
                    self.assertEqual(device.status(), tool.OK)
            faults.append(server.faults_of_reactors("gmblock/0") - before)
        self.assertLess(faults[1], count * size // 4096 // 2)
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    support.main()
