#!/usr/bin/python3
"""The rules of docs/protocol/vhost.md, with a front end in Python: the well-formed ones with qemu-storage-daemon and
`gmblock serve`. Each test names the rules that it covers in its first words, as do those of OTHERS.

    vhost-conformance.py GMBLOCK
"""
import ast
import os
import re
import shutil
import struct
import subprocess
import unittest

import support
import vhost_tool as tool

MIB = 1 << 20
QSD = "qemu-storage-daemon"
HERE = os.path.dirname(os.path.realpath(__file__))
OTHERS = ("vhost.py", "vhost-hostile.py", "vhost-client.py")


class Rules:
    """With a server, whose URI is in serve()."""

    def serve(self, *options, queues=1):
        raise NotImplementedError

    def setUp(self):
        super().setUp()
        self.image = self.make_file("disk.img", os.urandom(MIB))

    def device(self, **options):
        device = tool.Device(self.uri, **options)
        self.addCleanup(device.close)
        return device

    def content(self, offset, size):
        with open(self.image, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def need(self, present, what):
        if not present:
            self.skipTest(f"the server does not offer {what}")

    def protocol(self):
        with tool.Device(self.uri, start=False) as device:
            device.number(tool.GET_FEATURES)
            return device.number(tool.GET_PROTOCOL_FEATURES)

    def test_features_and_acknowledgements(self):
        """V2, V3, V6: what is offered can be accepted"""
        self.serve()
        device = self.device()
        for feature in (tool.F_VERSION_1, tool.F_PROTOCOL, tool.F_INDIRECT, tool.F_EVENT_IDX, tool.F_FLUSH):
            self.assertTrue(device.offered & feature)
        self.assertTrue(device.acknowledged(tool.SET_FEATURES, struct.pack("=Q", device.features)))
        self.assertEqual(device.number(tool.GET_FEATURES), device.offered)

    def test_configuration(self):
        """V7: the configuration describes the disk"""
        self.serve(queues=2)
        config = self.device().config()
        self.assertEqual(config["capacity"], MIB // 512)
        self.assertEqual(config["blk_size"], 512)
        self.assertGreaterEqual(config["num_queues"], 2)
        self.assertGreaterEqual(config["seg_max"], 1)
        self.assertGreaterEqual(min(config["discard_max"], config["zero_max"]), 8)

    def test_status(self):
        """V8: FEATURES_OK stays"""
        self.serve()
        self.need(self.protocol() & tool.STATUS, "STATUS")
        device = self.device(protocol=tool.MQ | tool.REPLY_ACK | tool.CONFIG | tool.STATUS, start=False)
        device.negotiate()
        device.check(tool.SET_STATUS, struct.pack("=Q", 11))
        self.assertEqual(device.number(tool.GET_STATUS) & 11, 11)
        device.share_memory()
        device.queue.setup()
        device.check(tool.SET_STATUS, struct.pack("=Q", 15))
        self.assertEqual(device.read(0, 512), self.content(0, 512))

    def test_queues(self):
        """V9: each queue serves requests"""
        self.serve(queues=4)
        device = self.device(queues=4)
        self.assertGreaterEqual(device.number(tool.GET_QUEUE_NUM), 4)
        for slot, queue in enumerate(device.queues):
            self.assertEqual(device.read(slot, 512, queue=queue), self.content(512 * slot, 512))

    def check_second_half(self, device):
        """Reads into the second half of the memory."""
        device.submit(tool.READ, 8, size=4096, slot=600)
        self.assertEqual(device.queue.next_used(), (0, 4097))
        self.assertEqual((device.status(600), device.data(4096, 600)), (tool.OK, self.content(4096, 4096)))

    def test_memory_tables(self):
        """V10: another table replaces the first one"""
        self.serve()
        device = self.device()
        self.assertEqual(device.read(0, 512), self.content(0, 512))
        half = device.size // 2
        device.check(tool.SET_MEM_TABLE, struct.pack("=II", 2, 0) +
                     struct.pack("=QQQQ", tool.GUEST, half, tool.USER, 0) +
                     struct.pack("=QQQQ", tool.GUEST + half, half, tool.USER + half, half), [device.memory_fd] * 2)
        self.check_second_half(device)

    def test_memory_slots(self):
        """V11: a region comes and goes"""
        self.serve()
        self.need(self.protocol() & tool.SLOTS, "CONFIGURE_MEM_SLOTS")
        device = self.device(protocol=tool.MQ | tool.REPLY_ACK | tool.CONFIG | tool.SLOTS, start=False)
        device.negotiate()
        self.assertGreaterEqual(device.number(tool.GET_MAX_MEM_SLOTS), 2)
        half = device.size // 2
        first = bytes(8) + struct.pack("=QQQQ", tool.GUEST, half, tool.USER, 0)
        second = bytes(8) + struct.pack("=QQQQ", tool.GUEST + half, half, tool.USER + half, half)
        device.check(tool.ADD_MEM_REG, first, [device.memory_fd])
        device.queue.setup()
        for _ in range(3):
            self.assertEqual(device.read(0, 512), self.content(0, 512))
            device.check(tool.ADD_MEM_REG, second, [device.memory_fd])
            self.check_second_half(device)
            device.check(tool.REM_MEM_REG, second, [device.memory_fd])

    def test_sizes_of_rings(self):
        """V12: powers of two"""
        self.serve()
        for entries in (4, 16, 128, 1024):
            with self.device(entries=entries) as device:
                for _ in range(entries + 3):
                    self.assertEqual(device.read(1, 512), self.content(512, 512))

    def test_index_of_a_ring(self):
        """V14: a ring starts at any index, wraps, and is continued at the index where it stopped"""
        self.serve()
        for base in (0, 65530):
            device = self.device(start=False)
            device.negotiate()
            device.share_memory()
            device.memory[device.queue.avail + 2:device.queue.avail + 4] = struct.pack("=H", base)
            device.memory[device.queue.used + 2:device.queue.used + 4] = struct.pack("=H", base)
            device.queue.used_index = base
            device.queue.setup(base)
            for _ in range(10):
                self.assertEqual(device.read(0, 512), self.content(0, 512))
            self.assertEqual(device.stop(), (base + 10) & 0xffff)
            device.queue.setup((base + 10) & 0xffff)
            self.assertEqual(device.read(1, 512), self.content(512, 512))
            device.close()

    def test_disabled_rings(self):
        """V15: a ring that is disabled is not served"""
        self.serve(queues=2)
        device = self.device(queues=2)
        device.check(tool.SET_VRING_ENABLE, struct.pack("=II", 1, 0))
        device.submit(tool.READ, size=512, queue=device.queues[1], slot=1)
        self.assertEqual(device.read(0, 512), self.content(0, 512))
        self.assertEqual(device.queues[1].read_used_index(), 0)
        device.check(tool.SET_VRING_ENABLE, struct.pack("=II", 1, 1))
        device.queues[1].kick()
        self.assertEqual(device.queues[1].next_used(), (0, 513))

    def test_reset(self):
        """V17: the device starts again after a reset"""
        self.serve()
        self.need(self.protocol() & tool.RESET, "RESET_DEVICE")
        device = self.device(protocol=tool.MQ | tool.REPLY_ACK | tool.CONFIG | tool.RESET)
        self.assertEqual(device.read(0, 512), self.content(0, 512))
        device.check(tool.RESET_DEVICE)
        device.queue.set_avail_index(0)
        device.memory[device.queue.used:device.queue.used + 4] = bytes(4)
        device.queue.used_index = 0
        device.check(tool.SET_FEATURES, struct.pack("=Q", device.features))
        device.queue.setup()
        self.assertEqual(device.read(1, 512), self.content(512, 512))

    def test_many_requests(self):
        """V20: all requests of a ring are answered once"""
        self.serve()
        device = self.device(entries=256)
        for slot in range(60):
            device.submit(tool.READ, slot, size=512, first=4 * slot, slot=slot, kick=False)
            device.queue.chain([(device.HEAD + 32 * slot, 16, False), (device.DATA + 4096 * slot, 512, True),
                                (device.STATUS_AT + slot, 1, True)], 4 * slot)
        device.queue.kick()
        self.assertEqual(sorted(device.queue.next_used()[0] for _ in range(60)), [4 * slot for slot in range(60)])
        for slot in range(60):
            self.assertEqual((device.status(slot), device.data(512, slot)), (tool.OK, self.content(512 * slot, 512)))

    def test_indirect_descriptors(self):
        """V21: a table has a chain"""
        self.serve()
        device = self.device()
        device.write(5, b"i" * 8192, indirect=True, first=7)
        self.assertEqual(device.read(5, 8192, indirect=True), b"i" * 8192)

    def test_notifications(self):
        """V22: none is lost, with and without the event index"""
        self.serve()
        for without in (0, tool.F_EVENT_IDX):
            with self.device(start=False) as device:
                device.start(device.number(tool.GET_FEATURES) & ~without & ~tool.F_LOG_ALL)
                for i in range(300):
                    self.assertEqual(device.read(i, 512), self.content(512 * i, 512))

    def test_pieces_of_memory(self):
        """V30: pieces of any length"""
        self.serve()
        device = self.device()
        data = bytes(range(256)) * 16
        for kind, writable in ((tool.WRITE, False), (tool.READ, True)):
            device.memory[0x8000:0x8010] = struct.pack("=IIQ", kind, 0, 2)
            if kind == tool.READ:
                device.memory[0x20000:0x28000] = bytes(0x8000)
            else:
                device.memory[0x20001:0x20001 + 1000] = data[:1000]
                device.memory[0x24003:0x24003 + 3096] = data[1000:]
            device.queue.chain([(0x8000, 16, False), (0x20001, 1000, writable), (0x24003, 3096, writable),
                                (0xa000, 1, True)])
            device.queue.make_available(0)
            self.assertEqual(device.queue.next_used()[0], 0)
            self.assertEqual(device.memory[0xa000], tool.OK)
            self.assertEqual(device.memory[0x20001:0x20001 + 1000], data[:1000])
            self.assertEqual(device.memory[0x24003:0x24003 + 3096], data[1000:])
        self.assertEqual(self.content(1024, 4096), data)

    def failed(self, device, kind, sector, data=b"", size=0):
        device.submit(kind, sector, data, size)
        self.assertEqual(device.queue.next_used()[0], 0)
        return device.status()

    def test_requests_outside_of_the_disk(self):
        """V31: they fail"""
        self.serve()
        device = self.device()
        before = self.content(0, MIB)
        for sector in (2048, 2047, 1 << 55, (1 << 64) - 1):
            self.assertEqual(self.failed(device, tool.READ, sector, size=1024), tool.IO_ERROR)
            self.assertEqual(self.failed(device, tool.WRITE, sector, data=b"x" * 1024), tool.IO_ERROR)
        for kind in (tool.DISCARD, tool.ZEROES):
            for sector in (2048, 2047, 1 << 55):
                self.assertEqual(self.failed(device, kind, 0, struct.pack("=QII", sector, 2, 0)), tool.IO_ERROR)
        self.assertEqual(self.content(0, MIB), before)

    def test_changes(self):
        """V32, V34, V35: FLUSH, DISCARD and WRITE_ZEROES"""
        self.serve()
        device = self.device()
        self.assertEqual(self.failed(device, tool.FLUSH, 0), tool.OK)
        self.assertEqual(self.failed(device, tool.DISCARD, 0, struct.pack("=QII", 8, 8, 0)), tool.OK)
        for sector, flags in ((16, 0), (64, 1)):
            self.assertEqual(self.failed(device, tool.ZEROES, 0, struct.pack("=QII", sector, 8, flags)), tool.OK)
            self.assertEqual(device.read(sector, 4096), bytes(4096))
            self.assertEqual(self.content(512 * sector, 4096), bytes(4096))
        self.assertEqual(self.failed(device, tool.ZEROES, 0, struct.pack("=QII", 8, 8, 2)), tool.UNSUPPORTED)

    def test_a_read_only_disk(self):
        """V33: no changes"""
        self.serve(readonly=True)
        device = self.device()
        self.assertTrue(device.offered & tool.F_RO)
        before = self.content(0, MIB)
        self.assertEqual(device.read(0, 512), before[:512])
        self.assertNotEqual(self.failed(device, tool.WRITE, 0, b"x" * 512), tool.OK)
        self.assertEqual(self.content(0, MIB), before)

    def test_other_requests(self):
        """V36, V37: the identity, and unknown types"""
        self.serve()
        device = self.device()
        self.assertEqual(self.failed(device, tool.GET_ID, 0, size=20), tool.OK)
        self.assertEqual(self.failed(device, 99, 0), tool.UNSUPPORTED)


@unittest.skipUnless(shutil.which(QSD), "qemu-storage-daemon is not installed (Debian package qemu-system-common)")
class Qemu(Rules, support.Case):
    def serve(self, readonly=False, queues=1):
        path, pid_file = self.path("s"), self.path("pid")
        process = subprocess.Popen(
            [QSD, "--blockdev", f"driver=file,node-name=disk,filename={self.image},discard=unmap"
             f",read-only={'on' if readonly else 'off'}", "--export",
             f"type=vhost-user-blk,id=e,node-name=disk,addr.type=unix,addr.path={path},num-queues={queues},"
             f"writable={'off' if readonly else 'on'}", "--pidfile", pid_file], stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for(lambda: os.path.exists(pid_file) and os.path.getsize(pid_file) > 0)
        self.uri = f"vhost-user-blk+unix:///?socket={path}"

    def test_disabled_rings(self):
        self.skipTest("qemu-storage-daemon 7.2 serves rings that are disabled")


class Gmblock(Rules, support.Case):
    def serve(self, readonly=False, queues=1):
        keys = ",readonly" if readonly else ""
        self.uri = self.start("--export", f"disk={self.image}{keys}", "--listen",
                              f"vhost-user-blk+unix:///disk?socket={self.path('s')}").uri
        with tool.Device(self.uri, start=False) as device:
            device.number(tool.GET_FEATURES)
            device.number(tool.GET_PROTOCOL_FEATURES)
            device.send(tool.SET_PROTOCOL_FEATURES, struct.pack("=Q", tool.MQ))
            self.assertGreaterEqual(device.number(tool.GET_QUEUE_NUM), queues)

    def need(self, present, what):
        self.assertTrue(present, what)


class Bookkeeping(unittest.TestCase):
    def test_every_rule_has_a_test(self):
        with open(os.path.join(HERE, "..", "..", "docs", "protocol", "vhost.md"), encoding="utf-8") as page:
            rules = set(re.findall(r"^\| (V\d+) \|", page.read(), re.M))
        covered = set()
        for name in (__file__, *(os.path.join(HERE, name) for name in OTHERS)):
            with open(name, encoding="utf-8") as file:
                tests = [node for node in ast.walk(ast.parse(file.read()))
                         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
            for test in tests:
                head = re.match(r"(V\d+(, V\d+)*): ", ast.get_docstring(test) or "")
                covered |= set(head[1].split(", ") if head else ())
        self.assertEqual(rules, covered)


if __name__ == "__main__":
    support.main()
