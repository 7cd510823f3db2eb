"""A small vhost-user-blk front end with a driver: messages, split rings and requests as bytes, so that tests can also
send what no guest would."""
import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import socket
import struct
import urllib.parse

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_LOG_BASE = 1, 2, 3, 5, 6
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 12, 13, 14
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_VRING_ENABLE = 15, 16, 17, 18
SET_BACK_REQ_FD, GET_CONFIG, SET_CONFIG, GET_INFLIGHT_FD, SET_INFLIGHT_FD = 21, 24, 25, 31, 32
RESET_DEVICE, GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG, SET_STATUS, GET_STATUS = 34, 36, 37, 38, 39, 40
BACK_CONFIG_CHANGE = 2
VERSION, REPLY, NEED_REPLY, NO_FD = 1, 4, 8, 0x100

MQ, LOG_SHMFD, REPLY_ACK, BACK_REQ, CONFIG, INFLIGHT, RESET, SLOTS, STATUS = (
    1 << bit for bit in (0, 1, 3, 5, 9, 12, 13, 15, 16))
F_SIZE_MAX, F_SEG_MAX, F_RO, F_BLK_SIZE, F_FLUSH, F_TOPOLOGY, F_CONFIG_WCE, F_MQ, F_DISCARD, F_WRITE_ZEROES = (
    1 << bit for bit in (1, 2, 5, 6, 9, 10, 11, 12, 13, 14))
F_LOG_ALL, F_INDIRECT, F_EVENT_IDX, F_PROTOCOL, F_VERSION_1 = (1 << bit for bit in (26, 28, 29, 30, 32))

READ, WRITE, FLUSH, GET_ID, DISCARD, ZEROES = 0, 1, 4, 8, 11, 13
OK, IO_ERROR, UNSUPPORTED = 0, 1, 2
NEXT, WRITABLE, INDIRECT = 1, 2, 4

TIMEOUT_S = 60
USER = 0x7000_0000_0000  # where the memory is in the address space that the messages mention
GUEST = 0x10_0000  # where it is in the guest


class Gone(Exception):
    """The server has closed the connection."""


def eventfd(flags=os.EFD_NONBLOCK | os.EFD_CLOEXEC):
    return os.eventfd(0, flags)


class Connection:
    """The socket and its messages."""

    def __init__(self, uri):
        parts = urllib.parse.urlsplit(uri)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(urllib.parse.parse_qs(parts.query)["socket"][0])

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, request, payload=b"", fds=(), flags=0, size=None):
        head = struct.pack("=III", request, VERSION | flags, len(payload) if size is None else size)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([head + payload], rights, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone() from error

    def read_exactly(self, count, room=0):
        data, fds = b"", []
        while len(data) < count:
            try:
                piece, rights, _, _ = self.socket.recvmsg(count - len(data), room)
            except ConnectionResetError as error:
                raise Gone() from error
            if not piece:
                raise Gone()
            data += piece
            for _, _, some in rights:
                fds += array.array("i", some[:len(some) // 4 * 4])
        return data, fds

    def receive(self):
        head, fds = self.read_exactly(12, socket.CMSG_SPACE(4))
        request, flags, size = struct.unpack("=III", head)
        assert flags == VERSION | REPLY, flags
        return request, self.read_exactly(size)[0], fds

    def ask(self, request, payload=b"", fds=()):
        self.send(request, payload, fds)
        answered, data, fds = self.receive()
        assert answered == request, (answered, request)
        return (data, fds[0]) if fds else data

    def number(self, request):
        return struct.unpack("=Q", self.ask(request))[0]

    def acknowledged(self, request, payload=b"", fds=()):
        """Whether the server says that the message succeeded."""
        self.send(request, payload, fds, NEED_REPLY)
        answered, data, _ = self.receive()
        assert answered == request
        return struct.unpack("=Q", data)[0] == 0

    def gone(self):
        """Waits until the server closes the connection; it sends nothing else."""
        with contextlib.suppress(ConnectionResetError):
            assert self.socket.recv(1) == b""


class Queue:
    """A split ring in guest memory, and its events."""

    def __init__(self, device, index, entries, at):
        self.device, self.index, self.entries, self.at = device, index, entries, at
        self.desc, self.avail = at, at + 16 * entries
        self.used = (self.avail + 6 + 2 * entries + 3) & ~3
        self.end = self.used + 6 + 8 * entries
        self.avail_index = self.used_index = 0
        self.kick_fd, self.call_fd, self.error_fd = eventfd(), eventfd(), eventfd()

    def setup(self, base=0, log=None):
        device, index = self.device, self.index
        pair = lambda number: struct.pack("=II", index, number)  # noqa: E731
        device.check(SET_VRING_NUM, pair(self.entries))
        device.check(SET_VRING_BASE, pair(base))
        device.check(SET_VRING_ADDR, self.addresses(log))
        device.check(SET_VRING_KICK, struct.pack("=Q", index), [self.kick_fd])
        device.check(SET_VRING_CALL, struct.pack("=Q", index), [self.call_fd])
        device.check(SET_VRING_ERR, struct.pack("=Q", index), [self.error_fd])
        device.check(SET_VRING_ENABLE, pair(1))
        self.avail_index = base

    def addresses(self, log=None):
        return struct.pack("=IIQQQQ", self.index, 0 if log is None else 1, USER + self.desc, USER + self.used,
                           USER + self.avail, 0 if log is None else log)

    def describe(self, number, address, size, flags=0, following=0, table=None):
        at = (self.desc if table is None else table) + 16 * number
        self.device.memory[at:at + 16] = struct.pack("=QIHH", address, size, flags, following)

    def chain(self, parts, first=0, table=None):
        """Descriptors for a list of (offset in memory, size, whether the device writes)."""
        for i, (at, size, writable) in enumerate(parts):
            last = i == len(parts) - 1
            self.describe(first + i, GUEST + at, size, (WRITABLE if writable else 0) | (0 if last else NEXT),
                          first + i + 1, table)

    def make_available(self, head, kick=True):
        at = self.avail + 4 + 2 * (self.avail_index % self.entries)
        self.device.memory[at:at + 2] = struct.pack("=H", head)
        self.set_avail_index(self.avail_index + 1)
        if kick:
            self.kick()

    def set_avail_index(self, index):
        self.avail_index = index & 0xffff
        self.device.memory[self.avail + 2:self.avail + 4] = struct.pack("=H", self.avail_index)

    def kick(self):
        os.eventfd_write(self.kick_fd, 1)

    def holders(self, pid):
        """How often the server has the kick eventfd open: twice while another reactor than the connection's serves the
        queue."""
        def number(path):
            with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:  # closed in the meantime
                return [line for line in file if line.startswith("eventfd-id")]

        folder = f"/proc/{pid}/fdinfo"
        wanted = number(f"/proc/self/fdinfo/{self.kick_fd}")
        assert len(wanted) == 1, wanted
        return sum(number(f"{folder}/{fd}") == wanted for fd in os.listdir(folder))

    def read_used_index(self):
        return struct.unpack("=H", self.device.memory[self.used + 2:self.used + 4])[0]

    def wait(self, event=None):
        """Until the device has signalled; False if the connection was closed instead."""
        event = self.call_fd if event is None else event
        ready, _, _ = select.select([event, self.device.socket], [], [], TIMEOUT_S)
        assert ready, "no notification"
        if event in ready:
            os.eventfd_read(event)
            return True
        return False

    def next_used(self):
        """The next element of the used ring: head, bytes."""
        while self.read_used_index() == self.used_index:
            if not self.wait():
                raise Gone()
        at = self.used + 4 + 8 * (self.used_index % self.entries)
        self.used_index = (self.used_index + 1) & 0xffff
        # with EVENT_IDX, the device signals again for the next one
        self.device.memory[self.avail + 4 + 2 * self.entries:self.avail + 6 + 2 * self.entries] = struct.pack(
            "=H", self.used_index)
        return struct.unpack("=II", self.device.memory[at:at + 8])


class Device(Connection):
    """A front end with memory, and requests that are answered one by one."""

    HEAD, STATUS_AT, DATA = 0x8000, 0xa000, 0x10000

    def __init__(self, uri, megabytes=4, protocol=MQ | REPLY_ACK | CONFIG, entries=64, queues=1, features=None,
                 memory_fd=None, start=True):
        super().__init__(uri)
        self.protocol = protocol
        self.size = megabytes << 20
        self.memory_fd = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) \
            if memory_fd is None else memory_fd
        if memory_fd is None:
            os.ftruncate(self.memory_fd, self.size)
        self.owned = [self.memory_fd] if memory_fd is None else []
        self.memory = mmap.mmap(self.memory_fd, self.size)
        self.queues, at = [], 0
        for index in range(queues):
            queue = Queue(self, index, entries, at)
            self.queues.append(queue)
            self.owned += [queue.kick_fd, queue.call_fd, queue.error_fd]
            at = (self.queues[-1].end + 63) & ~63
        assert at <= self.HEAD, "the rings need less room than that"
        if start:
            self.start(features)

    @property
    def queue(self):
        return self.queues[0]

    def close(self):
        super().close()
        for fd in self.owned:
            os.close(fd)
        self.owned = []

    def check(self, request, payload=b"", fds=()):
        if self.protocol & REPLY_ACK:
            assert self.acknowledged(request, payload, fds), f"message {request} was rejected"
        else:
            self.send(request, payload, fds)

    def negotiate(self, features=None):
        self.offered = self.number(GET_FEATURES)
        self.number(GET_PROTOCOL_FEATURES)
        self.send(SET_PROTOCOL_FEATURES, struct.pack("=Q", self.protocol))
        self.send(SET_OWNER)
        self.features = self.offered & ~F_LOG_ALL if features is None else features
        self.check(SET_FEATURES, struct.pack("=Q", self.features))

    def region(self):
        return struct.pack("=QQQQ", GUEST, self.size, USER, 0)

    def share_memory(self):
        self.check(SET_MEM_TABLE, struct.pack("=II", 1, 0) + self.region(), [self.memory_fd])

    def start(self, features=None, base=0):
        self.negotiate(features)
        self.share_memory()
        for queue in self.queues:
            queue.setup(base)

    def config(self):
        names = ("capacity", "size_max", "seg_max", "geometry", "blk_size", "physical_exp", "alignment", "min_io",
                 "opt_io", "wce", "unused", "num_queues", "discard_max", "discard_seg", "discard_align", "zero_max",
                 "zero_seg", "zero_unmap")
        data = self.ask(GET_CONFIG, struct.pack("=III", 0, 60, 0) + bytes(60))
        return dict(zip(names, struct.unpack("=QII4sIBBHIBBHIIIIIB3x", data[12:])))

    def submit(self, kind, sector=0, data=b"", size=0, queue=None, kick=True, first=0, indirect=False, slot=0):
        """Makes a request available. size: bytes to read; slot: another place in memory."""
        queue = queue or self.queue
        head, status, payload = self.HEAD + 32 * slot, self.STATUS_AT + slot, self.DATA + 4096 * slot
        self.memory[head:head + 16] = struct.pack("=IIQ", kind, 0, sector)
        self.memory[status:status + 1] = b"\xff"
        parts = [(head, 16, False)]
        if data:
            self.memory[payload:payload + len(data)] = data
            parts.append((payload, len(data), False))
        if size:
            parts.append((payload, size, True))
        parts.append((status, 1, True))
        if indirect:
            table = 0xc000
            queue.chain(parts, 0, table)
            queue.describe(first, GUEST + table, 16 * len(parts), INDIRECT)
        else:
            queue.chain(parts, first)
        queue.make_available(first, kick)

    def status(self, slot=0):
        return self.memory[self.STATUS_AT + slot]

    def data(self, size, slot=0):
        at = self.DATA + 4096 * slot
        return self.memory[at:at + size]

    def do(self, kind, sector=0, data=b"", size=0, queue=None, **options):
        """One request; returns its status and what was read. Each queue has a place in memory."""
        queue = queue or self.queue
        self.submit(kind, sector, data, size, queue=queue, slot=queue.index, **options)
        head, written = queue.next_used()
        assert head == options.get("first", 0), head
        assert written == size + 1, written
        return self.status(queue.index), self.data(size, queue.index)

    def read(self, sector, size, **options):
        status, data = self.do(READ, sector, size=size, **options)
        assert status == OK, status
        return data

    def write(self, sector, data, **options):
        status, _ = self.do(WRITE, sector, data, **options)
        assert status == OK, status

    def range(self, kind, sector, sectors, flags=0):
        return self.do(kind, 0, struct.pack("=QII", sector, sectors, flags))[0]

    def stop(self, queue=None):
        """Stops a queue; returns the index at which it would continue."""
        queue = queue or self.queue
        index, base = struct.unpack("=II", self.ask(GET_VRING_BASE, struct.pack("=II", queue.index, 0)))
        assert index == queue.index
        return base


def stranger(uri, **options):
    """A front end of another user: the kernel tells the server who has connected."""
    os.seteuid(65534)
    try:
        device = Device(uri, start=False, **options)
    finally:
        os.seteuid(0)
    device.start()
    return device


def punch(fd, offset, size):
    """Removes the memory of a range of a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 3, ctypes.c_long(offset), ctypes.c_long(size)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def seals(fd):
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
