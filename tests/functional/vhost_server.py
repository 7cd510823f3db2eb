# SPDX-License-Identifier: Apache-2.0
"""A vhost-user-blk server in Python, for a front end under test: it offers what it is told to offer, and breaks
the rules that it is told to break.

    server = Server(path, features=..., protocol=..., answers={GET_FEATURES: lambda payload: b""})
"""
import contextlib
import mmap
import os
import select
import socket
import struct
import threading

GET_FEATURES, SET_FEATURES, SET_OWNER = 1, 2, 3
SET_MEM_TABLE = 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 12, 13, 14
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_VRING_ENABLE = 15, 16, 17, 18
SET_BACK_REQ_FD, GET_CONFIG, SET_CONFIG = 21, 24, 25
GET_INFLIGHT_FD, SET_INFLIGHT_FD = 31, 32
GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG, SET_STATUS, GET_STATUS = 36, 37, 38, 39, 40
BACK_CONFIG_CHANGE = 2

# Bits of features and of protocol features.
SIZE_MAX, SEG_MAX, RO, BLK_SIZE, FLUSH, TOPOLOGY, CONFIG_WCE, MQ, DISCARD, WRITE_ZEROES = \
    1, 2, 5, 6, 9, 10, 11, 12, 13, 14
INDIRECT, EVENT_IDX, PROTOCOL, VERSION_1 = 28, 29, 30, 32
P_MQ, P_REPLY_ACK, P_BACK_REQ, P_CONFIG, P_INFLIGHT, P_SLOTS, P_STATUS = 0, 3, 5, 9, 12, 15, 16

NEED_REPLY, REPLY = 8, 4
NEXT, WRITE, INDIRECT_DESC = 1, 2, 4
CONFIG = struct.Struct("<QIIHBBIBBHIBBHIIIIIB3x")


def bits(*numbers):
    return sum(1 << number for number in numbers)


FEATURES = bits(SEG_MAX, BLK_SIZE, FLUSH, MQ, DISCARD, WRITE_ZEROES, INDIRECT, EVENT_IDX, PROTOCOL, VERSION_1)
PROTOCOL_FEATURES = bits(P_MQ, P_REPLY_ACK, P_BACK_REQ, P_CONFIG, P_INFLIGHT, P_SLOTS, P_STATUS)


def config(sectors, size_max=0, seg_max=0, block=512, queues=1, discard=2048, zeroes=2048):
    return CONFIG.pack(sectors, size_max, seg_max, 0, 0, 0, block, 0, 0, 0, 0, 1, 0, queues, discard, 1, 1,
                       zeroes, 1, 1)


class Ring:
    def __init__(self):
        self.size = self.seen = self.done = 0
        self.desc = self.avail = self.used = 0
        self.kick = self.call = None
        self.enabled = False


class Connection(threading.Thread):
    """One front end, until it or the server closes the connection."""

    def __init__(self, server, peer):
        super().__init__(daemon=True)
        self.server = server
        self.peer = peer
        self.features = self.protocol = self.status = 0
        self.regions = []  # (address, bytes, mapping, offset in it)
        self.rings = {}
        self.back = None
        self.said = []  # requests, in order
        server.connections.append(self)  # before the front end gets an answer
        self.start()

    # -- memory

    def add_region(self, entry, fd):
        address, size, _, offset = struct.unpack("<QQQQ", entry)
        self.regions.append((address, size, mmap.mmap(fd, size + offset), offset))
        os.close(fd)

    def at(self, address, size):
        for start, length, memory, offset in self.regions:
            if start <= address and address + size <= start + length:
                return memory, address - start + offset
        raise AssertionError(f"memory {address:x}+{size} was not shared")

    def read(self, address, size):
        memory, at = self.at(address, size)
        return memory[at:at + size]

    def write(self, address, data):
        memory, at = self.at(address, len(data))
        memory[at:at + len(data)] = data

    def number(self, address, form="<H"):
        return struct.unpack(form, self.read(address, struct.calcsize(form)))[0]

    # -- requests

    def chain(self, ring, head):
        table, index = ring.desc, head
        parts = []
        while True:
            address, size, flags, following = struct.unpack("<QIHH", self.read(table + 16 * index, 16))
            if flags & INDIRECT_DESC:
                table, index = address, 0
                continue
            parts.append((address, size, flags & WRITE))
            if not flags & NEXT:
                return parts
            index = following

    def execute(self, parts):
        """Executes a request. Returns the bytes that were written to memory."""
        disk = self.server.disk
        kind, _, sector = struct.unpack("<IIQ", self.read(*parts[0][:2]))
        at, status, written = sector * 512, 0, 1
        for address, size, _ in parts[1:-1]:
            if kind == 0:
                self.write(address, disk[at:at + size])
                written += size
            elif kind == 1:
                disk[at:at + size] = self.read(address, size)
            elif kind in (11, 13):
                first, count, flags = struct.unpack("<QII", self.read(address, size))
                self.server.ranges.append((kind, first, count, flags))
                if kind == 13:
                    disk[first * 512:(first + count) * 512] = bytes(count * 512)
            at += size
        status = self.server.status(kind, status)
        if status is not None:
            self.write(parts[-1][0], bytes([status]))
        self.server.kinds.append(kind)
        return written

    def serve(self, ring):
        """Executes everything in the ring, then asks for the next kick."""
        event = self.features >> EVENT_IDX & 1
        while True:
            while ring.seen != self.number(ring.avail + 2):
                head = self.number(ring.avail + 4 + 2 * (ring.seen % ring.size))
                ring.seen = (ring.seen + 1) & 0xffff
                written = self.execute(self.chain(ring, head))
                head, added = self.server.used(head)
                self.write(ring.used + 4 + 8 * (ring.done % ring.size), struct.pack("<II", head, written))
                before, ring.done = ring.done, (ring.done + added) & 0xffff
                self.write(ring.used + 2, struct.pack("<H", ring.done))
                wanted = self.number(ring.avail + 4 + 2 * ring.size)
                if not event and not self.number(ring.avail) or \
                        event and (ring.done - wanted - 1) & 0xffff < (ring.done - before) & 0xffff:
                    os.write(ring.call, struct.pack("<Q", 1))
            if event:
                self.write(ring.used + 4 + 8 * ring.size, struct.pack("<H", ring.seen))
            if ring.seen == self.number(ring.avail + 2):
                return

    # -- messages

    def answer(self, request, payload, fds):
        """Returns the reply to a message, or None, and the descriptors that go with it."""
        if request in self.server.answers:
            return self.server.answers[request](payload)
        index, number = struct.unpack_from("<II", payload.ljust(8, b"\0"))
        ring = self.rings.setdefault(index & 0xff, Ring())
        if request == GET_FEATURES:
            return struct.pack("<Q", self.server.features)
        if request == GET_PROTOCOL_FEATURES:
            return struct.pack("<Q", self.server.protocol)
        if request == GET_QUEUE_NUM:
            return struct.pack("<Q", self.server.queues)
        if request == GET_MAX_MEM_SLOTS:
            return struct.pack("<Q", self.server.slots)
        if request == GET_STATUS:
            return struct.pack("<Q", self.status)
        if request == GET_CONFIG:
            return payload[:12] + self.server.config[:60]
        if request == GET_INFLIGHT_FD:
            return struct.pack("<QQHH4x", 4096, 0, 1, 256)
        if request == SET_FEATURES:
            self.features = struct.unpack("<Q", payload)[0]
        elif request == SET_PROTOCOL_FEATURES:
            self.protocol = struct.unpack("<Q", payload)[0]
        elif request == SET_STATUS:
            self.status = struct.unpack("<Q", payload)[0]
        elif request == SET_MEM_TABLE:
            for i in range(index):
                self.add_region(payload[8 + 32 * i:40 + 32 * i], fds[i])
        elif request == ADD_MEM_REG:
            self.add_region(payload[8:], fds[0])
        elif request == REM_MEM_REG:
            address = struct.unpack_from("<Q", payload, 8)[0]
            self.regions = [r for r in self.regions if r[0] != address]
        elif request == SET_VRING_NUM:
            ring.size = number
        elif request == SET_VRING_BASE:
            ring.seen = ring.done = number
        elif request == SET_VRING_ADDR:
            ring.desc, ring.used, ring.avail = struct.unpack_from("<QQQ", payload, 8)
        elif request == SET_VRING_KICK:
            ring.kick = fds[0]
        elif request == SET_VRING_CALL:
            ring.call = fds[0]
        elif request == SET_VRING_ENABLE:
            ring.enabled = bool(number)
        elif request == SET_BACK_REQ_FD:
            self.back = socket.socket(fileno=fds[0])
        return None

    def hear(self):
        head, fds, _, _ = socket.recv_fds(self.peer, 12, 9)
        if len(head) < 12:
            return False
        request, flags, size = struct.unpack("<III", head)
        payload = self.peer.recv(size, socket.MSG_WAITALL) if size else b""
        self.said.append(request)
        if request in self.server.hang_up_at:
            return False
        reply = self.answer(request, payload, fds)
        if reply is None and flags & NEED_REPLY:
            reply = struct.pack("<Q", 1 if request in self.server.refuses else 0)
        if reply is not None:
            reply = struct.pack("<III", request, 1 | REPLY, len(reply)) + reply
            files = [os.memfd_create("inflight")
                     for _ in range((request == GET_INFLIGHT_FD) + self.server.more_files)]
            socket.send_fds(self.peer, [reply], files)
            for fd in files:
                os.close(fd)
        return True

    def run(self):
        try:
            while True:
                rings = {r.kick: r for r in self.rings.values() if r.kick is not None and r.call is not None}
                ready, _, _ = select.select([self.peer, *rings], [], [])
                for fd in ready:
                    if fd is self.peer:
                        if not self.hear():
                            return
                    else:
                        os.read(fd, 8)
                        self.serve(rings[fd])
        except (ConnectionError, OSError):
            pass
        finally:
            self.end()
            self.peer.close()
            if self.back is not None:
                self.back.close()
            for fd in {fd for ring in self.rings.values() for fd in (ring.kick, ring.call)} - {None}:
                os.close(fd)

    def tell_config(self, sectors, reply=False, **limits):
        """Changes the size of the disk and says so. limits: of the new configuration."""
        self.server.config = config(sectors, **limits)
        self.back.send(struct.pack("<III", BACK_CONFIG_CHANGE, 1 | (NEED_REPLY if reply else 0), 0))
        if reply:
            head = self.back.recv(20, socket.MSG_WAITALL)
            assert struct.unpack("<IIIQ", head) == (BACK_CONFIG_CHANGE, 1 | REPLY, 8, 0), head

    def end(self):
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)


class Server:
    def __init__(self, path, features=FEATURES, protocol=PROTOCOL_FEATURES, sectors=8192, slots=32, queues=1,
                 **options):
        self.features = features
        self.protocol = protocol
        self.config = options.get("config", config(sectors))
        self.slots = slots
        self.queues = queues
        self.answers = options.get("answers", {})
        self.more_files = options.get("more_files", 0)  # descriptors with each reply that nobody needs
        self.refuses = options.get("refuses", ())
        self.hang_up_at = options.get("hang_up_at", ())
        # What the used ring says of a chain: its head, and by how much the index grows.
        self.used = options.get("used", lambda head: (head, 1))
        # The status of a request; None: none is written.
        self.status = options.get("status", lambda kind, status: status)
        self.disk = bytearray(512 * sectors)
        self.kinds = []
        self.ranges = []
        self.connections = []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            Connection(self, peer)

    def stop(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for connection in self.connections:
            connection.end()
