#!/usr/bin/python3
"""vhost-user-blk as a front end sees it: requests, the configuration, memory, queues, the record of requests in flight,
the log of dirty pages, rights, and the end."""
import json
import os
import random
import signal
import socket
import struct
import subprocess

import support
import vhost_tool as tool

MIB = 1 << 20
INFLIGHT_ENTRY = 16
WORKERS = 16  # that close descriptors and unmap memory


class Vhost(support.Case):
    maxDiff = 1000

    def serve(self, *arguments, name="disk", content=None, keys="", socket_name="socket"):
        """A server of one export; its image is self.disk."""
        self.disk = self.path("disk.img")
        if content is not None or not os.path.exists(self.disk):
            self.make_file("disk.img", random.Random(33).randbytes(MIB) if content is None else content)
        self.control = self.path("control")
        self.socket_path = self.path(socket_name)
        return self.start("--export", f"{name}={self.disk}{keys}", "--control", self.control,
                          "--listen", f"vhost-user-blk+unix:///{name}?socket={self.socket_path}", *arguments)

    def device(self, server, **options):
        device = tool.Device(server.uri, **options)
        self.addCleanup(device.close)
        return device

    def stats(self):
        return json.loads(subprocess.run([support.program(), "stats", "--json", self.control], check=True,
                                         stdout=subprocess.PIPE).stdout)

    def counters(self):
        return self.stats()["counters"]

    def wait_until_taken(self, device):
        """Until the server has taken the first request, and perhaps finished it already."""
        self.wait_for(lambda: self.counters()["inflight"] == 1 or device.queue.read_used_index() == 1)

    def content(self, offset, size):
        with open(self.disk, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def inflight(self, device):
        """The record of requests in flight, given to the server; returns its descriptor."""
        ask = struct.pack("=QQHH4x", 0, 0, 1, device.queue.entries)
        answer, fd = device.ask(tool.GET_INFLIGHT_FD, ask)
        self.addCleanup(os.close, fd)
        size, offset = struct.unpack("=QQ", answer[:16])
        self.assertGreaterEqual(size, device.queue.entries * INFLIGHT_ENTRY + 16)
        self.assertEqual(offset, 0)
        return answer, fd

    def recorded(self, server):
        """A front end that has a record of requests in flight, and the record."""
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.INFLIGHT | tool.STATUS, start=False)
        device.negotiate()
        answer, fd = self.inflight(device)
        self.assertTrue(device.acknowledged(tool.SET_INFLIGHT_FD, answer, [fd]))
        device.share_memory()
        device.queue.setup()
        return device, (answer, fd)

    def reconnected(self, server, device, record, when_accepted=lambda: None):
        """The same front end after its server was killed. when_accepted is called before any request is repeated."""
        again = self.device(server, protocol=device.protocol, memory_fd=device.memory_fd, start=False)
        queue = device.queue
        again.queues = [queue]
        queue.device = again
        index = queue.avail_index
        again.negotiate()
        self.assertTrue(again.acknowledged(tool.SET_INFLIGHT_FD, record[0], [record[1]]))
        when_accepted()
        again.share_memory()
        queue.setup(base=queue.used_index)
        queue.avail_index = index
        return again


class Requests(Vhost):
    def check_all(self, device):
        want = self.content(0, MIB)
        self.assertEqual(device.read(0, 4096), want[:4096])
        self.assertEqual(device.read(2047, 512), want[-512:])
        self.assertEqual(device.read(3, 65536, indirect=True), want[1536:1536 + 65536])
        device.write(8, b"x" * 8192)
        device.write(64, b"y" * 4096, indirect=True, first=5)
        self.assertEqual(device.do(tool.FLUSH), (tool.OK, b""))
        self.assertEqual(device.read(7, 1024), want[3584:4096] + b"x" * 512)
        self.assertEqual(self.content(32768, 4096), b"y" * 4096)
        self.assertEqual(device.do(tool.GET_ID, size=20), (tool.OK, b"disk".ljust(20, b"\0")))
        self.assertEqual(device.range(tool.DISCARD, 8, 8), tool.OK)
        self.assertEqual(device.range(tool.ZEROES, 16, 8), tool.OK)
        self.assertEqual(device.range(tool.ZEROES, 64, 8, flags=1), tool.OK)
        self.assertEqual(device.read(16, 4096), bytes(4096))
        self.assertEqual(device.read(64, 4096), bytes(4096))

    def check_refused(self, device):
        self.assertEqual(device.do(tool.READ, 2048, size=512)[0], tool.IO_ERROR)  # behind the end
        self.assertEqual(device.do(tool.READ, 2**55, size=512)[0], tool.IO_ERROR)
        self.assertEqual(device.do(tool.READ, 0, size=500)[0], tool.IO_ERROR)
        self.assertEqual(device.do(tool.WRITE, 2048, b"z" * 512)[0], tool.IO_ERROR)
        self.assertEqual(device.range(tool.DISCARD, 2048, 1), tool.IO_ERROR)
        self.assertEqual(device.range(tool.DISCARD, 0, 1, flags=1), tool.UNSUPPORTED)
        self.assertEqual(device.range(tool.ZEROES, 0, 1, flags=2), tool.UNSUPPORTED)
        self.assertEqual(device.do(tool.DISCARD, 0, b"r" * 32)[0], tool.UNSUPPORTED)  # two ranges
        self.assertEqual(device.do(99)[0], tool.UNSUPPORTED)
        self.assertEqual(device.do(tool.READ, 0)[0], tool.OK)  # no bytes

    def test_every_operation(self):
        for keys in (",mode=cached", ",mode=direct", ",mode=auto"):
            for without in (0, tool.F_EVENT_IDX):
                with self.subTest(keys=keys, without=without):
                    server = self.serve(keys=keys, content=random.Random(keys).randbytes(MIB))
                    with self.device(server, start=False) as device:
                        device.start(device.number(tool.GET_FEATURES) & ~without & ~tool.F_LOG_ALL)
                        self.check_all(device)
                        self.check_refused(device)
                    self.assertEqual(server.stop()[0], 0)

    def test_head_payload_and_status_can_be_cut_anywhere(self):
        server = self.serve(keys=",mode=direct")
        device = self.device(server)
        queue, memory = device.queue, device.memory
        memory[0x8000:0x8010] = struct.pack("=IIQ", tool.WRITE, 0, 2)
        memory[0x20001:0x20001 + 4096] = b"w" * 4096
        queue.chain([(0x8000, 3, False), (0x8003, 13, False), (0x20001, 1000, False), (0x203e9, 3096, False),
                     (0x9000, 1, True)])
        queue.make_available(0)
        self.assertEqual(queue.next_used(), (0, 1))
        self.assertEqual(memory[0x9000], tool.OK)
        self.assertEqual(self.content(1024, 4096), b"w" * 4096)
        memory[0x8000:0x8010] = struct.pack("=IIQ", tool.READ, 0, 2)
        memory[0x30000:0x31002] = b"-" * 4098
        queue.chain([(0x8000, 16, False), (0x30001, 4095, True), (0x31000, 2, True)])
        queue.make_available(0)
        self.assertEqual(queue.next_used(), (0, 4097))
        self.assertEqual(memory[0x30000:0x31002], b"-" + b"w" * 4096 + b"\0")

    def transferred(self):
        """Bytes of requests without a copy, and with one."""
        export, = self.stats()["exports"]
        return export["placed_bytes"], export["ram_bytes"]

    def test_payload_is_not_copied(self):
        for mode in ("direct", "cached"):
            server = self.serve(keys=f",mode={mode}")
            with self.subTest(mode=mode), self.device(server) as device:
                for sector in range(0, 128, 8):
                    device.read(sector, 4096)
                    device.write(sector, b"a" * 4096)
                self.assertEqual(self.transferred(), (2 * 16 * 4096, 0))
            server.stop()

    def test_blocks_in_misaligned_memory_are_copied_and_counted(self):
        device = self.device(self.serve(keys=",mode=direct"))
        copied = 0
        for kind, writable, at in ((tool.WRITE, False, 0x20001), (tool.READ, True, 0x30001)):
            device.memory[0x8000:0x8010] = struct.pack("=IIQ", kind, 0, 8)
            device.queue.chain([(0x8000, 16, False), (at - 1 + 8192, 8192, writable), (at, 4096, writable), (0x9000, 1, True)])
            device.queue.make_available(0)
            self.assertEqual((device.queue.next_used()[0], device.memory[0x9000]), (0, tool.OK))
            copied += 4096
            self.assertEqual(self.transferred(), (2 * copied, copied))

    def test_many_requests_in_flight(self):
        server = self.serve(keys=",delay=read:2ms")
        device = self.device(server)
        want = self.content(0, MIB)
        queue = device.queue
        for slot in range(20):
            device.submit(tool.READ, slot * 8, size=4096, first=3 * slot, slot=slot, kick=False)
        queue.kick()
        heads = sorted(queue.next_used()[0] for _ in range(20))
        self.assertEqual(heads, [3 * slot for slot in range(20)])
        for slot in range(20):
            self.assertEqual((device.status(slot), device.data(4096, slot)),
                             (tool.OK, want[slot * 4096:slot * 4096 + 4096]))

    def test_several_queues(self):
        server = self.serve()
        device = self.device(server, queues=4)
        want = self.content(0, MIB)
        for queue in device.queues:
            self.assertEqual(device.read(queue.index, 512, queue=queue),
                             want[512 * queue.index:512 * queue.index + 512])


class Configuration(Vhost):
    def test_a_writable_disk(self):
        device = self.device(self.serve())
        config = device.config()
        self.assertEqual((config["capacity"], config["blk_size"], config["wce"], config["discard_seg"]),
                         (2048, 512, 1, 1))
        self.assertGreaterEqual(config["seg_max"], 126)
        self.assertGreaterEqual(config["size_max"], 4096)
        for feature in (tool.F_FLUSH, tool.F_DISCARD, tool.F_WRITE_ZEROES, tool.F_CONFIG_WCE, tool.F_MQ,
                        tool.F_TOPOLOGY, tool.F_SEG_MAX, tool.F_SIZE_MAX, tool.F_BLK_SIZE):
            self.assertTrue(device.offered & feature, hex(feature))
        self.assertFalse(device.offered & tool.F_RO)

    def test_a_read_only_disk(self):
        device = self.device(self.serve(keys=",readonly"))
        self.assertTrue(device.offered & tool.F_RO)
        self.assertFalse(device.offered & (tool.F_DISCARD | tool.F_WRITE_ZEROES))
        self.assertEqual(device.do(tool.WRITE, 0, b"x" * 512)[0], tool.IO_ERROR)
        self.assertEqual(device.do(tool.ZEROES, 0, struct.pack("=QII", 0, 1, 0))[0], tool.IO_ERROR)

    def test_the_guest_sets_the_cache_mode(self):
        device = self.device(self.serve())
        self.assertTrue(device.acknowledged(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\0"))
        self.assertEqual(device.config()["wce"], 0)
        self.assertTrue(device.acknowledged(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\1"))
        self.assertEqual(device.config()["wce"], 1)
        self.assertFalse(device.acknowledged(tool.SET_CONFIG, struct.pack("=III", 0, 1, 0) + b"\1"))

    def test_a_resize_is_announced(self):
        """V18: the back end reports it, and the configuration has the new size"""
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.BACK_REQ)
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        with theirs:
            self.assertTrue(device.acknowledged(tool.SET_BACK_REQ_FD, b"", [theirs.fileno()]))
        os.truncate(self.disk, 3 * MIB)
        subprocess.run([support.program(), "export", "set", "disk", "size=auto", "--server", self.control], check=True)
        ours.settimeout(support.WAIT_SECONDS)
        request, _, size = struct.unpack("=III", ours.recv(12))
        self.assertEqual((request, size), (tool.BACK_CONFIG_CHANGE, 0))
        self.assertEqual(device.config()["capacity"], 6144)
        self.assertEqual(device.read(6143, 512), bytes(512))


class Memory(Vhost):
    def test_slots(self):
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS, start=False)
        device.negotiate()
        slots = device.number(tool.GET_MAX_MEM_SLOTS)
        self.assertGreaterEqual(slots, 8)
        self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + device.region(), [device.memory_fd]))
        device.queue.setup()
        want = self.content(0, 512)
        self.assertEqual(device.read(0, 512), want)
        other = struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        for _ in range(3):
            self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + other, [device.memory_fd]))
            self.assertEqual(device.read(0, 512), want)
            self.assertTrue(device.acknowledged(tool.REM_MEM_REG, bytes(8) + other))
        self.assertFalse(device.acknowledged(tool.REM_MEM_REG, bytes(8) + other))
        self.assertEqual(device.read(0, 512), want)

    def keep_tables(self, device):
        """Replaces tables of 8 regions whose requests never end, until the server refuses one. Returns their number."""
        small = b"".join(struct.pack("=QQQQ", (i + 1) << 40, 4096, (i + 1) << 44, 0) for i in range(7))
        table = (struct.pack("=II", 8, 0) + device.region() + small, 8 * [device.memory_fd])
        count = 0
        while device.acknowledged(tool.SET_MEM_TABLE, *table):
            count += 1
            device.submit(tool.WRITE, 0, bytes(512), first=3 * count, slot=count)
            device.read(0, 512)  # a later request: the server has taken the write
        return count

    def test_a_limit_for_earlier_tables(self):
        """Requests that never end keep the tables with which they were read. There is a limit on their regions, so that
        neither one session nor several can use up those of all sessions."""
        server = self.serve(keys=",delay=write:1h")
        device = self.device(server, entries=128)
        for _ in range(300):  # without requests, nothing is kept
            device.share_memory()
        counts = [self.keep_tables(device)]
        for _ in range(19):
            counts.append(self.keep_tables(self.device(server, entries=128)))
        self.assertEqual((counts[0], counts[-1]), (32, 5))  # of 8 regions
        with self.device(server) as other:
            self.assertEqual(other.read(0, 512), self.content(0, 512))
        server.kill()

    def test_a_limit_for_all_regions(self):
        """Two regions, each half of the limit and a little more."""
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        large = os.memfd_create("large")
        self.addCleanup(os.close, large)
        os.ftruncate(large, 5 << 40)
        regions = [bytes(8) + struct.pack("=QQQQ", at << 44, 5 << 40, at << 44, 0) for at in (1, 2)]
        for _ in range(2):
            self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, regions[0], [large]))
            self.assertFalse(device.acknowledged(tool.ADD_MEM_REG, regions[1], [large]))
            device.read(0, 512)
            self.assertTrue(device.acknowledged(tool.REM_MEM_REG, regions[0]))
        with self.device(server) as other:
            other.send(tool.SET_MEM_TABLE, struct.pack("=II", 2, 0) + regions[0][8:] + regions[1][8:], [large, large])
            other.gone()

    def test_a_payload_in_memory_that_comes_back(self):
        """The queue waits for it, and for an indirect table."""
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        other = struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        fd = os.memfd_create("other")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, MIB)
        self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + other, [fd]))
        queue, memory = device.queue, device.memory
        for sector in (0, 1):
            self.assertTrue(device.acknowledged(tool.REM_MEM_REG, bytes(8) + other))
            memory[0x8000:0x8010] = struct.pack("=IIQ", tool.READ, 0, sector)
            parts = [(tool.GUEST + 0x8000, 16, 0), ((1 << 40) + 8192, 512, tool.WRITABLE),
                     (tool.GUEST + 0x9000, 1, tool.WRITABLE)]
            table = b"".join(struct.pack("=QIHH", at, size, flags | (tool.NEXT if i < 2 else 0), i + 1)
                             for i, (at, size, flags) in enumerate(parts))
            if sector == 0:
                memory[queue.desc:queue.desc + len(table)] = table
            else:
                os.pwrite(fd, table, 0)
                queue.describe(0, 1 << 40, len(table), tool.INDIRECT)
            queue.make_available(0)
            self.assertTrue(queue.wait(queue.error_fd))
            self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + other, [fd]))
            self.assertEqual(queue.next_used(), (0, 513))
            self.assertEqual((memory[0x9000], os.pread(fd, 512, 8192)), (tool.OK, self.content(512 * sector, 512)))
        self.assertEqual(device.stop(), 2)

    def test_requests_before_one_in_missing_memory(self):
        """They are in flight when the queue begins to wait, and are answered."""
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        other = struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        fd = os.memfd_create("other")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, MIB)
        queue, memory = device.queue, device.memory
        device.submit(tool.READ, 1, size=512, kick=False)
        memory[0x8020:0x8030] = struct.pack("=IIQ", tool.READ, 0, 2)
        queue.describe(8, tool.GUEST + 0x8020, 16, tool.NEXT, 9)
        queue.describe(9, 1 << 40, 512, tool.WRITABLE | tool.NEXT, 10)
        queue.describe(10, tool.GUEST + 0x9000, 1, tool.WRITABLE)
        queue.make_available(8)
        self.assertTrue(queue.wait(queue.error_fd))
        self.assertEqual(queue.next_used(), (0, 513))
        self.assertEqual((device.status(), device.data(512)), (tool.OK, self.content(512, 512)))
        self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + other, [fd]))
        self.assertEqual(queue.next_used(), (8, 513))
        self.assertEqual((memory[0x9000], os.pread(fd, 512, 0)), (tool.OK, self.content(1024, 512)))
        self.assertEqual(device.stop(), 2)

    def test_a_flag_of_another_back_end(self):
        """Without it, the guest would not kick."""
        server = self.serve()
        device = self.device(server, start=False)
        device.negotiate(device.number(tool.GET_FEATURES) & ~tool.F_EVENT_IDX & ~tool.F_LOG_ALL)
        device.share_memory()
        used = device.queue.used
        device.memory[used:used + 2] = struct.pack("=H", 1)
        device.queue.setup()
        self.assertEqual(device.read(0, 512), self.content(0, 512))
        self.wait_for(lambda: device.memory[used:used + 2] == bytes(2))

    def test_a_payload_that_crosses_regions(self):
        server = self.serve()
        device = self.device(server, start=False)
        half = device.size // 2
        device.negotiate()
        regions = b"".join(struct.pack("=QQQQ", tool.GUEST + at, half, tool.USER + at, at) for at in (0, half))
        device.check(tool.SET_MEM_TABLE, struct.pack("=II", 2, 0) + regions, [device.memory_fd] * 2)
        device.queue.setup()
        device.memory[0x8000:0x8010] = struct.pack("=IIQ", tool.READ, 0, 0)
        device.queue.chain([(0x8000, 16, False), (half - 1000, 2048, True), (0x9000, 1, True)])
        device.queue.make_available(0)
        self.assertEqual(device.queue.next_used(), (0, 2049))
        self.assertEqual(device.memory[half - 1000:half + 1048], self.content(0, 2048))

    def test_the_log_names_the_pages_that_were_written(self):
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.LOG_SHMFD)
        log_fd = os.memfd_create("log")
        self.addCleanup(os.close, log_fd)
        pages = (tool.GUEST + device.size) // 4096
        os.ftruncate(log_fd, pages // 8 + 1)
        device.ask(tool.SET_LOG_BASE, struct.pack("=QQ", pages // 8 + 1, 0), [log_fd])
        self.assertTrue(device.acknowledged(tool.SET_FEATURES, struct.pack("=Q", device.features | tool.F_LOG_ALL)))
        self.assertTrue(device.acknowledged(tool.SET_VRING_ADDR,
                                            device.queue.addresses(log=tool.GUEST + device.queue.used)))
        device.read(0, 8192)
        device.write(0, b"x" * 4096)
        log = os.pread(log_fd, pages // 8 + 1, 0)
        dirty = {page for page in range(pages) if log[page // 8] >> page % 8 & 1}
        first = tool.GUEST // 4096
        used = {first + (device.queue.used + at) // 4096 for at in (0, 4 + 8 * 2)}
        self.assertEqual(dirty, used | {first + at // 4096 for at in
                                        (device.STATUS_AT, device.DATA, device.DATA + 4096)})


class Lifetime(Vhost):
    def test_stopping_a_queue_waits_for_its_requests(self):
        server = self.serve(keys=",delay=write:200ms")
        device = self.device(server)
        device.submit(tool.WRITE, 0, b"d" * 4096)
        self.wait_until_taken(device)
        self.assertEqual(device.stop(), 1)
        self.assertEqual((device.queue.read_used_index(), device.status()), (1, tool.OK))
        self.assertEqual(self.content(0, 4096), b"d" * 4096)
        device.queue.setup(base=1)
        self.assertEqual(device.queue.next_used(), (0, 1))
        self.assertEqual(device.read(0, 4096), b"d" * 4096)

    def test_another_back_end_gets_kicks(self):
        """Without EVENT_IDX, no ring is left with the flag that suppresses them."""
        for queue_stops in (True, False):
            taken = 0
            while taken == 0:  # the server can see the end before the request
                server = self.serve(keys=",delay=read:100ms")
                device = self.device(server, start=False)
                device.negotiate(device.number(tool.GET_FEATURES) & ~tool.F_EVENT_IDX & ~tool.F_LOG_ALL)
                device.share_memory()
                device.queue.setup()
                server.freeze()
                device.submit(tool.READ, 0, size=512)
                if queue_stops:
                    device.send(tool.GET_VRING_BASE, bytes(8))
                else:
                    server.signal()
                server.signal(signal.SIGCONT)
                if queue_stops:
                    device.receive()
                else:
                    device.gone()
                taken = device.queue.read_used_index()
                flags = device.memory[device.queue.used:device.queue.used + 2]
                server.stop()
            self.assertEqual((taken, flags), (1, bytes(2)))

    def test_other_queues_continue_while_one_stops(self):
        server = self.serve(keys=",delay=write:200ms")
        device = self.device(server, queues=2)
        one, two = device.queues
        device.submit(tool.WRITE, 0, b"d" * 4096, queue=one)
        self.wait_until_taken(device)
        device.send(tool.GET_VRING_BASE, struct.pack("=II", one.index, 0))
        device.submit(tool.READ, 64, size=4096, queue=two, slot=1)
        self.assertEqual(device.receive()[:2], (tool.GET_VRING_BASE, struct.pack("=II", one.index, 1)))
        self.assertEqual(two.next_used(), (0, 4097))
        self.assertEqual(device.read(64, 512, queue=two), self.content(32768, 512))

    def test_requests_end_while_their_ring_is_not_mapped(self):
        server = self.serve(keys=",delay=read:200ms")
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.SLOTS)
        device.submit(tool.READ, 0, size=4096)
        self.wait_until_taken(device)
        self.assertTrue(device.acknowledged(tool.REM_MEM_REG, bytes(8) + device.region()))
        self.wait_for(lambda: self.counters()["bytes_read"] == 4096)
        self.assertTrue(device.acknowledged(tool.ADD_MEM_REG, bytes(8) + device.region(), [device.memory_fd]))
        self.assertEqual(device.queue.next_used(), (0, 4097))
        self.assertEqual(device.read(0, 512), self.content(0, 512))

    def test_resets(self):
        server = self.serve()
        device = self.device(server, protocol=tool.REPLY_ACK | tool.CONFIG | tool.RESET | tool.STATUS)
        for reset in (lambda: device.acknowledged(tool.RESET_DEVICE),
                      lambda: device.acknowledged(tool.SET_STATUS, struct.pack("=Q", 0))):
            self.assertTrue(device.acknowledged(tool.SET_STATUS, struct.pack("=Q", 15)))
            self.assertEqual(device.number(tool.GET_STATUS), 15)
            device.read(0, 512)
            self.assertTrue(reset())
            self.assertEqual(device.number(tool.GET_STATUS), 0)
            self.assertEqual(device.stop(), 1)  # the position is kept, for QEMU 7.2
            device.memory[:device.HEAD] = bytes(device.HEAD)
            device.queue.used_index = 0
            device.queue.setup()

    def test_requests_of_a_killed_server_end_before_a_queue_stops(self):
        """The next front end, at the end of a migration, does not have the record."""
        for stop in (lambda device: device.check(tool.SET_VRING_ENABLE, struct.pack("=II", 0, 0)),
                     lambda device: device.check(tool.SET_STATUS, struct.pack("=Q", 0)),
                     lambda device: None):
            server = self.serve(keys=",delay=write:1h", content=bytes(MIB))
            device, record = self.recorded(server)
            for slot in range(10):
                device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, first=3 * slot, slot=slot)
            self.wait_for(lambda: self.counters()["inflight"] == 10)
            server.kill()
            server = self.serve(keys=",rate=requests=20:burst=50ms")
            again = self.reconnected(server, device, record)
            stop(again)
            self.assertEqual((again.stop(), again.queue.read_used_index()), (10, 10))
            for slot in range(10):
                self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
            server.stop()

    def test_a_killed_server_loses_no_request(self):
        """V16: requests that were in flight are done by the next server, in order, and no other ones again"""
        server = self.serve(keys=",delay=write:1h:range=512K+256K", content=bytes(MIB))
        device, record = self.recorded(server)
        device.write(0, b"1" * 4096, first=60)
        for slot in range(1, 6):  # these never end
            device.submit(tool.WRITE, 1024 + 8 * slot, bytes([slot]) * 4096, first=3 * slot, slot=slot)
        device.write(0, b"2" * 4096, first=60)
        server.kill()
        queue = device.queue
        with open(self.disk, "r+b") as file:
            file.write(b"3" * 4096)  # a request that was answered must not be done again
        again = self.reconnected(self.serve(), device, record)
        heads = [queue.next_used()[0] for _ in range(5)]
        self.assertEqual(sorted(heads), [3, 6, 9, 12, 15])
        for slot in range(1, 6):
            self.assertEqual(again.status(slot), tool.OK)
            self.assertEqual(self.content((1024 + 8 * slot) * 512, 4096), bytes([slot]) * 4096)
        self.assertEqual(self.content(0, 4096), b"3" * 4096)
        self.assertEqual(again.read(0, 4096, first=60), b"3" * 4096)
        self.assertEqual(again.stop(), 8)

    def test_a_front_end_that_connects_again(self):
        """V16: its earlier connection ends. The record is accepted when no request of that connection is left, which could
        write to memory that the guest has used again since."""
        server = self.serve(keys=",delay=read:500ms")
        device, record = self.recorded(server)
        for closes in (True, False):
            device.submit(tool.READ, 0, size=4096)
            self.wait_until_taken(device)
            if closes:
                device.socket.close()
            again = self.reconnected(server, device, record, self.check_that_no_other_is_left)
            if not closes:
                device.gone()
            self.assertEqual(again.queue.next_used(), (0, 4097))
            self.assertEqual(again.data(4096), self.content(0, 4096))
            device = again
        # with another record, the connection is not the earlier one of anybody
        device.stop()
        answer, fd = self.inflight(device)
        self.assertTrue(device.acknowledged(tool.SET_INFLIGHT_FD, answer, [fd]))
        other = self.reconnected(server, device, record)
        self.assertEqual(device.number(tool.GET_STATUS), 0)
        self.assertEqual(other.read(0, 512), self.content(0, 512))

    def check_that_no_other_is_left(self):
        counters = self.counters()
        self.assertEqual((counters["connections"], counters["inflight"]), (1, 0))

    def test_the_end_of_the_server_finishes_requests(self):
        server = self.serve(keys=",delay=write:100ms")
        device = self.device(server)
        device.submit(tool.WRITE, 0, b"e" * 4096)
        self.wait_until_taken(device)
        server.signal()
        device.gone()
        self.assertEqual((device.queue.read_used_index(), device.status()), (1, tool.OK))
        self.assertEqual(server.wait()[0], 0)
        self.assertFalse(os.path.exists(self.socket_path))

    def test_front_ends_that_come_and_go_leave_nothing(self):
        server = self.serve(keys=",delay=read:1ms")

        def resources():
            process = f"/proc/{server.process.pid}"
            with open(process + "/maps", encoding="ascii") as maps:
                guests = sum("guest" in line or "inflight" in line for line in maps)
            return len(os.listdir(process + "/fd")), guests, len(os.listdir(process + "/task"))

        def cycle(number):
            device = tool.Device(server.uri, queues=2, protocol=tool.REPLY_ACK | tool.CONFIG | tool.INFLIGHT)
            answer, fd = device.ask(tool.GET_INFLIGHT_FD, struct.pack("=QQHH4x", 0, 0, 1, 64))
            os.close(fd)
            device.read(0, 512)
            if number % 2:
                device.submit(tool.READ, 8, size=4096)  # and leave
            device.close()

        with self.device(server) as device:
            device.read(0, 512)
        for number in range(4):
            cycle(number)
        self.wait_for(lambda: resources()[1] == 0)
        before = resources()
        for number in range(100):
            cycle(number)
        self.wait_for(lambda: resources()[0] <= before[0] and resources()[1] == 0)
        self.assertLessEqual(resources()[2], before[2] + WORKERS)


class Rights(Vhost):
    def test_an_unknown_export(self):
        server = self.serve("--listen", f"vhost-user-blk+unix:///other?socket={self.path('other')}")
        connection = tool.Connection(f"vhost-user-blk+unix:///other?socket={self.path('other')}")
        self.addCleanup(connection.close)
        connection.gone()
        self.assertRegex(server.stop()[1], r"///other\?.*there is no such export; clients of this address")

    def test_the_uri_of_a_command(self):
        """That of the address, not of the first export."""
        code, output, errors = self.run_gmblock(
            "serve", "--export", "a=null:1M", "--export", "b=null:1M", "--listen",
            f"vhost-user-blk+unix:///b?socket={self.path('b')}", "--run", "echo $uri")
        self.assertEqual((code, output), (0, f"vhost-user-blk+unix:///b?socket={self.path('b')}\n"), errors)

    def test_access_rules(self):
        server = self.serve("--access", f"disk: uid={os.geteuid()} rights=ro")
        device = self.device(server)
        self.assertTrue(device.offered & tool.F_RO)
        self.assertEqual(device.do(tool.WRITE, 0, b"x" * 512)[0], tool.IO_ERROR)

    def test_rights_of_nobody(self):
        server = self.serve("--access", "disk: uid=65534 rights=rw")
        connection = tool.Connection(server.uri)
        self.addCleanup(connection.close)
        connection.gone()
        code, _, errors = self.run_gmblock("info", server.uri)
        self.assertEqual(code, 1)
        self.assertIn("closed the connection without an answer", errors)
        self.assertEqual(self.counters()["connections_failed"], 2)
        errors = server.stop()[1]
        self.assertIn('export "disk" is hidden from the client', errors)
        self.assertIn("or no access rule gives the client rights to it", errors)

    def test_a_rate_limits_requests(self):
        server = self.serve(keys=",rate=requests=50:burst=100ms")
        device = self.device(server)
        for slot in range(20):
            device.submit(tool.READ, slot * 8, size=4096, first=3 * slot, slot=slot, kick=False)
        device.queue.kick()
        self.assertEqual(sorted(device.queue.next_used()[0] for _ in range(20)), [3 * slot for slot in range(20)])
        self.assertTrue(all(device.status(slot) == tool.OK for slot in range(20)))
        self.assertGreater(self.stats()["exports"][0]["rate"]["requests_delayed"], 0)

    def test_uris(self):
        for uri, message in (("vhost-user-blk://host/x", "unknown scheme"),
                             ("nbd+unix:///x?socket=/y", "no export name")):
            run = subprocess.run([support.program(), "serve", "null:1M", "--listen", uri], text=True, check=False,
                                 stderr=subprocess.PIPE)
            self.assertEqual(run.returncode, 2)
            self.assertIn(message, run.stderr)

    def test_clients_of_the_socket_are_counted(self):
        server = self.serve()
        with self.device(server) as one, self.device(server) as two:
            one.read(0, 512)
            two.read(0, 512)
            self.assertEqual(self.counters()["connections"], 2)
            client, = self.stats()["clients"]
            self.assertEqual((client["name"], client["connections"]), (f"uid {os.geteuid()}", 2))


if __name__ == "__main__":
    support.main()
