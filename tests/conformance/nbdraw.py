# SPDX-License-Identifier: Apache-2.0
"""NBD on a raw socket: constants and a client whose every byte can be chosen.

The client follows the protocol when its high-level calls are used and breaks it when a test
hands it raw bytes.  Whatever the server answers is judged on the way in by replies.py, so a
test that only looks at data still fails on a malformed reply.  Every receive has a deadline:
a server that goes silent is a failure, never a hang.
"""

import select
import socket
import ssl
import struct
import time

from replies import ReplyTracker, Violation, check_string

INIT_MAGIC = b'NBDMAGIC'
OPT_MAGIC = b'IHAVEOPT'
REP_MAGIC = 0x3e889045565a9
REQUEST_MAGIC = 0x25609513
EXT_REQUEST_MAGIC = 0x21e41c71

FLAG_FIXED_NEWSTYLE = 1 << 0
FLAG_NO_ZEROES = 1 << 1

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_PEEK_EXPORT, OPT_STARTTLS, OPT_INFO, OPT_GO = range(1, 8)
OPT_STRUCTURED_REPLY, OPT_LIST_META, OPT_SET_META, OPT_EXTENDED_HEADERS = range(8, 12)

REP_ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = range(1, 5)
REP_ERR = 1 << 31
(ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_PLATFORM, ERR_TLS_REQD, ERR_UNKNOWN, ERR_SHUTDOWN,
 ERR_BLOCK_SIZE_REQD, ERR_TOO_BIG, ERR_EXT_HEADER_REQD) = range(REP_ERR + 1, REP_ERR + 11)
REP_NAMES = {
    REP_ACK: 'ACK', REP_SERVER: 'SERVER', REP_INFO: 'INFO', REP_META_CONTEXT: 'META_CONTEXT',
    ERR_UNSUP: 'ERR_UNSUP', ERR_POLICY: 'ERR_POLICY', ERR_INVALID: 'ERR_INVALID',
    ERR_PLATFORM: 'ERR_PLATFORM', ERR_TLS_REQD: 'ERR_TLS_REQD', ERR_UNKNOWN: 'ERR_UNKNOWN',
    ERR_SHUTDOWN: 'ERR_SHUTDOWN', ERR_BLOCK_SIZE_REQD: 'ERR_BLOCK_SIZE_REQD',
    ERR_TOO_BIG: 'ERR_TOO_BIG', ERR_EXT_HEADER_REQD: 'ERR_EXT_HEADER_REQD',
}

INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = range(4)

TF_HAS_FLAGS, TF_READ_ONLY, TF_FLUSH, TF_FUA = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TF_ROTATIONAL, TF_TRIM, TF_WRITE_ZEROES, TF_DF = 1 << 4, 1 << 5, 1 << 6, 1 << 7
TF_MULTI_CONN, TF_RESIZE, TF_CACHE, TF_FAST_ZERO = 1 << 8, 1 << 9, 1 << 10, 1 << 11
TF_STATUS_PAYLOAD = 1 << 12

(CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES,
 CMD_BLOCK_STATUS, CMD_RESIZE) = range(9)
CMD_NAMES = ['READ', 'WRITE', 'DISC', 'FLUSH', 'TRIM', 'CACHE', 'WRITE_ZEROES', 'BLOCK_STATUS',
             'RESIZE']
CF_FUA, CF_NO_HOLE, CF_DF, CF_REQ_ONE, CF_FAST_ZERO, CF_PAYLOAD_LEN = (1 << b for b in range(6))

EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP, ESHUTDOWN = 1, 5, 12, 22, 28, 75, 95, 108

SIMPLE, STRUCTURED, EXTENDED = 'simple', 'structured', 'extended'

# Seconds a single receive may take.  Only reached when the server is silent where it must speak.
DEADLINE = 60.0


def rep_name(value):
    return REP_NAMES.get(value, f'reply type {value:#x}')


class Closed(Exception):
    """The server closed the connection where the caller wanted more bytes."""

    def __init__(self, got=b''):
        super().__init__(f'connection closed by the server after {len(got)} byte(s)')
        self.got = bytes(got)


class Silent(AssertionError):
    """The server sent nothing for DEADLINE seconds."""


class TlsSocket:
    """A TLS session on a connected socket, with the face of a socket that does not block. One call
    of recv() gives all that has come, so that select() on the socket tells of what is left."""

    def __init__(self, sock, context, hostname, deadline):
        self.sock = sock
        self.inner = ssl.MemoryBIO()
        self.outer = ssl.MemoryBIO()
        self.session = context.wrap_bio(self.inner, self.outer, server_hostname=hostname)
        self.was_closed = False  # by a close_notify
        sock.settimeout(deadline)
        try:
            self.handshake()
        finally:
            sock.setblocking(False)

    def handshake(self):
        while True:
            try:
                self.session.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outer.read())
                data = self.sock.recv(1 << 16)
                if not data:
                    raise Closed() from None
                self.inner.write(data)
                continue
            except ssl.SSLError:
                self.sock.sendall(self.outer.read())  # the alert
                raise
            self.sock.sendall(self.outer.read())
            return

    def fileno(self):
        return self.sock.fileno()

    def setsockopt(self, *arguments):
        self.sock.setsockopt(*arguments)

    def recv(self, limit):
        data = self.sock.recv(limit)
        if data:
            self.inner.write(data)
        else:
            self.inner.write_eof()
        out = b''
        try:
            while True:
                piece = self.session.read(1 << 16)
                if not piece:
                    self.was_closed = True
                    break
                out += piece
        except ssl.SSLWantReadError:
            if not out:
                raise BlockingIOError from None
        except ssl.SSLError:
            pass
        return out

    def send(self, data):
        """All of it: records must not be torn apart by a full socket."""
        self.session.write(bytes(data))
        self.sock.setblocking(True)
        try:
            self.sock.sendall(self.outer.read())
        finally:
            self.sock.setblocking(False)
        return len(data)

    def shutdown(self, how):
        """Says that nothing more comes."""
        try:
            self.session.unwrap()
        except ssl.SSLError:
            pass
        self.sock.setblocking(True)
        self.sock.sendall(self.outer.read())
        self.sock.setblocking(False)
        self.sock.shutdown(how)

    def close(self):
        self.sock.close()


class OptionResult:
    """All replies to one option; `final` is the type of the last one."""

    def __init__(self, option, replies):
        self.option = option
        self.replies = replies
        self.final = replies[-1][0]
        self.text = replies[-1][1] if self.final & REP_ERR else b''

    @property
    def ok(self):
        return self.final == REP_ACK

    @property
    def name(self):
        return rep_name(self.final)

    def of_type(self, rep_type):
        return [data for kind, data in self.replies if kind == rep_type]

    def infos(self):
        """Information items as {type: [payload, ...]}."""
        out = {}
        for data in self.of_type(REP_INFO):
            out.setdefault(struct.unpack('>H', data[:2])[0], []).append(data[2:])
        return out

    def servers(self):
        """LIST entries as [(name, description)]."""
        out = []
        for data in self.of_type(REP_SERVER):
            name_len = struct.unpack('>I', data[:4])[0]
            out.append((data[4:4 + name_len], data[4 + name_len:]))
        return out

    def contexts(self):
        """Metadata contexts as [(id, name)]."""
        return [(struct.unpack('>I', d[:4])[0], d[4:].decode()) for d in
                self.of_type(REP_META_CONTEXT)]


def pack_info(name, requests=(), name_len=None, count=None):
    """Data of INFO or GO; name_len and count lie when given."""
    name = name.encode() if isinstance(name, str) else name
    return (struct.pack('>I', len(name) if name_len is None else name_len) + name +
            struct.pack('>H', len(requests) if count is None else count) +
            b''.join(struct.pack('>H', r) for r in requests))


def pack_meta(export, queries=(), count=None):
    """Data of LIST_META_CONTEXT or SET_META_CONTEXT; count lies when given."""
    export = export.encode() if isinstance(export, str) else export
    out = struct.pack('>I', len(export)) + export
    out += struct.pack('>I', len(queries) if count is None else count)
    for query in queries:
        query = query.encode() if isinstance(query, str) else query
        out += struct.pack('>I', len(query)) + query
    return out


def pack_option(option, data=b'', length=None, magic=OPT_MAGIC):
    return magic + struct.pack('>II', option, len(data) if length is None else length) + data


def pack_request(kind, cookie, offset, length, flags=0, payload=b'', mode=SIMPLE, magic=None):
    if mode == EXTENDED:
        magic = EXT_REQUEST_MAGIC if magic is None else magic
        return struct.pack('>IHHQQQ', magic, flags, kind, cookie, offset, length) + payload
    magic = REQUEST_MAGIC if magic is None else magic
    return struct.pack('>IHHQQI', magic, flags, kind, cookie, offset, length) + payload


class Client:
    """One connection.  Not shared between threads; close() may be called twice."""

    def __init__(self, address, deadline=None):
        self.deadline = DEADLINE if deadline is None else deadline
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        # A blocking connect: a Unix socket whose backlog is full makes any other kind fail.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO,
                             struct.pack('ll', int(self.deadline), 0))
        self.sock.connect(address.sockaddr)
        if address.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.inbuf = bytearray()
        self.eof = False
        # What stands for the empty name, for servers without a default export.
        self.default_name = ''
        self.mode = SIMPLE
        self.client_flags = 0
        self.contexts = {}
        self.size = 0
        self.tflags = 0
        self.block_size = None
        self.next_cookie = 0x0101000000000001
        self.tracker = ReplyTracker(self)
        self.may_demand_tls = False  # the server has TLS
        self.tls = None

    # -- bytes -------------------------------------------------------------------------------

    def fill(self):
        """Take in what has come, without waiting; sets eof when there will be no more."""
        try:
            data = self.sock.recv(1 << 20)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b''
        if not data:
            self.eof = True
        self.inbuf += data

    def send(self, data):
        """Send all of it, taking in replies meanwhile so that neither side can starve."""
        view = memoryview(data)
        end = time.monotonic() + self.deadline
        while view:
            want_read = [] if self.eof or len(self.inbuf) > (256 << 20) else [self.sock]
            readable, writable, _ = select.select(want_read, [self.sock], [],
                                                  max(0, end - time.monotonic()))
            if not readable and not writable:
                raise Silent(f'{self.deadline} s without room to send {len(view)} bytes')
            if readable:
                self.fill()
                end = time.monotonic() + self.deadline
            if writable:
                try:
                    sent = self.sock.send(view[:1 << 20])
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    raise Closed(self.inbuf) from None
                view = view[sent:]
                end = time.monotonic() + self.deadline

    def recv(self, count):
        """Exactly count bytes; Closed if the stream ends first, Silent past the deadline."""
        end = time.monotonic() + self.deadline
        while len(self.inbuf) < count:
            if self.eof:
                raise Closed(self.inbuf)
            before = len(self.inbuf)
            readable, _, _ = select.select([self.sock], [], [], max(0, end - time.monotonic()))
            if not readable:
                raise Silent(f'{self.deadline} s without the {count - len(self.inbuf)} bytes due')
            self.fill()
            if len(self.inbuf) > before:
                end = time.monotonic() + self.deadline
        out = bytes(self.inbuf[:count])
        del self.inbuf[:count]
        return out

    def expect_closed(self, row, why):
        """The server must close now and say nothing more."""
        rest = self.drain()
        if rest:
            raise Violation(row, f'{why}: {len(rest)} bytes instead of a close: {rest[:40].hex()}')

    def drain(self):
        """Everything up to the close; Silent if the server neither speaks nor closes."""
        out = b''
        while True:
            try:
                out += self.recv(1)
                out += bytes(self.inbuf)
                self.inbuf.clear()
            except Closed:
                return out
            except Silent:
                raise Silent(f'not closed within {self.deadline} s; {len(out)} bytes came: '
                             f'{out[:40].hex()}') from None

    def half_close(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def reset(self):
        """Close with a TCP reset (a plain close on a Unix socket)."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        except OSError:
            pass
        self.close()

    def close(self):
        self.sock.close()

    # -- handshake and options ---------------------------------------------------------------

    def greet(self, flags=FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES):
        head = self.recv(18)
        if head[:16] != INIT_MAGIC + OPT_MAGIC:
            raise Violation('P4', f'greeting {head[:16]!r}')
        self.server_flags = struct.unpack('>H', head[16:])[0]
        self.client_flags = flags & (self.server_flags | ~3)
        self.send(struct.pack('>I', self.client_flags))
        return self

    def recv_option_reply(self, option):
        magic, echoed, kind, length = struct.unpack('>QIII', self.recv(20))
        if magic != REP_MAGIC:
            raise Violation('P11', f'option reply magic {magic:#x}')
        if echoed != option:
            raise Violation('P11', f'reply repeats option {echoed} instead of {option}')
        if length > 16384:
            raise Violation('P1', f'option reply of {length} bytes')
        data = self.recv(length)
        self._check_option_reply(option, kind, data)
        return kind, data

    def _check_option_reply(self, option, kind, data):
        if kind & REP_ERR:
            if kind == ERR_TLS_REQD and self.tls:
                raise Violation('P49', 'ERR_TLS_REQD under TLS')
            if kind == ERR_TLS_REQD and not self.may_demand_tls:
                raise Violation('P46', 'ERR_TLS_REQD from a server without TLS')
            if kind not in REP_NAMES:
                raise Violation('P11', f'undefined error reply {kind:#x}')
            check_string('P20', data, 'error text')
        elif kind == REP_ACK:
            if data:
                raise Violation('P11', f'ACK with {len(data)} bytes of data')
        elif kind == REP_SERVER and option == OPT_LIST:
            if len(data) < 4 or struct.unpack('>I', data[:4])[0] > len(data) - 4:
                raise Violation('P16', 'name longer than its SERVER reply')
            name_len = struct.unpack('>I', data[:4])[0]
            check_string('P1', data[4:4 + name_len], 'export name')
            check_string('P1', data[4 + name_len:], 'export description')
        elif kind == REP_INFO and option in (OPT_INFO, OPT_GO):
            lengths = {INFO_EXPORT: 12, INFO_BLOCK_SIZE: 14}
            item = struct.unpack('>H', data[:2])[0] if len(data) >= 2 else None
            if item is None or len(data) != lengths.get(item, len(data)):
                raise Violation('P23', f'INFO reply {item} of {len(data)} bytes')
            if item in (INFO_NAME, INFO_DESCRIPTION):
                check_string('P28', data[2:], 'information text')
        elif kind == REP_META_CONTEXT and option in (OPT_LIST_META, OPT_SET_META):
            if len(data) < 5:
                raise Violation('P38', f'META_CONTEXT reply of {len(data)} bytes')
            check_string('P1', data[4:], 'context name')
        else:
            raise Violation('P11', f'{rep_name(kind)} in reply to option {option}')

    def recv_option_result(self, option):
        replies = []
        while True:
            replies.append(self.recv_option_reply(option))
            if replies[-1][0] == REP_ACK or replies[-1][0] & REP_ERR:
                return OptionResult(option, replies)
            if len(replies) > 10000:
                raise Violation('P11', 'more than 10000 replies to one option')

    def option(self, option, data=b'', length=None):
        self.send(pack_option(option, data, length))
        return self.recv_option_result(option)

    def start_tls(self, context, hostname='localhost'):
        """STARTTLS and the TLS handshake; ssl.SSLError when that fails."""
        self.must_ack(self.option(OPT_STARTTLS), 'P49')
        return self.wrap(context, hostname)

    def wrap(self, context, hostname='localhost'):
        if self.inbuf:
            raise Violation('P49', f'{len(self.inbuf)} bytes behind the ACK to STARTTLS')
        self.tls = self.sock = TlsSocket(self.sock, context, hostname, self.deadline)
        self.mode = SIMPLE
        self.contexts = {}
        return self

    def must_ack(self, result, row):
        if not result.ok:
            raise Violation(row, f'option {result.option} got {result.name} {result.text!r}')
        return result

    def use_mode(self, mode):
        """Negotiate a reply mode; False if the server answers UNSUP."""
        if mode == SIMPLE:
            return True
        option = OPT_STRUCTURED_REPLY if mode == STRUCTURED else OPT_EXTENDED_HEADERS
        result = self.option(option)
        if result.final == ERR_UNSUP:
            return False
        self.must_ack(result, 'P35' if mode == STRUCTURED else 'P108')
        self.mode = mode
        return True

    def set_meta(self, queries=('base:allocation',), export=''):
        self.contexts = {}
        result = self.option(OPT_SET_META, pack_meta(export or self.default_name, queries))
        if result.ok:
            found = result.contexts()
            self.contexts = dict(found)
            if len(self.contexts) != len(found):
                raise Violation('P40', f'context ids not unique: {found}')
        return result

    def _learn(self, result):
        items = result.infos()
        if len(items.get(INFO_EXPORT, [])) != 1:
            raise Violation('P23', f'{len(items.get(INFO_EXPORT, []))} INFO_EXPORT before the ACK')
        self.size, self.tflags = struct.unpack('>QH', items[INFO_EXPORT][0])
        if not self.tflags & TF_HAS_FLAGS:
            raise Violation('P33', 'HAS_FLAGS is clear')
        for item in items.get(INFO_BLOCK_SIZE, []):
            self.block_size = struct.unpack('>III', item)

    def info(self, name='', requests=()):
        result = self.option(OPT_INFO, pack_info(name or self.default_name, requests))
        if result.ok:
            self._learn(result)
        return result

    def go(self, name='', requests=(INFO_BLOCK_SIZE,)):
        """Enter transmission; the caller must look at .ok when refusal is possible."""
        result = self.option(OPT_GO, pack_info(name or self.default_name, requests))
        if result.ok:
            self._learn(result)
        return result

    def export_name(self, name=''):
        name = name or self.default_name
        name = name.encode() if isinstance(name, str) else name
        self.send(pack_option(OPT_EXPORT_NAME, name))
        self.size, self.tflags = struct.unpack('>QH', self.recv(10))
        if not self.client_flags & FLAG_NO_ZEROES and any(self.recv(124)):
            raise Violation('P31', 'the 124 bytes of padding are not zero')
        if not self.tflags & TF_HAS_FLAGS:
            raise Violation('P33', 'HAS_FLAGS is clear')

    # -- transmission ------------------------------------------------------------------------

    def offers(self, flag):
        return bool(self.tflags & flag)

    @property
    def max_payload(self):
        return self.block_size[2] if self.block_size else None

    def submit(self, kind, offset=0, length=0, flags=0, payload=b'', cookie=None):
        """Send one lawful request and return its cookie.  WRITE takes its length from payload."""
        cookie = self.new_cookie() if cookie is None else cookie
        if kind == CMD_WRITE:
            length = len(payload)
            if self.mode == EXTENDED and payload:
                flags |= CF_PAYLOAD_LEN
        self.tracker.expect(kind, flags, cookie, offset, length, payload)
        self.send(pack_request(kind, cookie, offset, length, flags, payload, self.mode))
        return cookie

    def new_cookie(self):
        self.next_cookie += 0x0000000100000001
        return self.next_cookie

    def collect(self, cookie):
        """The finished reply to that cookie; replies to others are kept for their own collect."""
        while cookie not in self.tracker.finished:
            self.tracker.receive()
        return self.tracker.finished.pop(cookie)

    def collect_next(self):
        """Whichever reply finishes first."""
        while not self.tracker.finished:
            self.tracker.receive()
        return self.tracker.finished.pop(next(iter(self.tracker.finished)))

    def call(self, kind, offset=0, length=0, flags=0, payload=b''):
        return self.collect(self.submit(kind, offset, length, flags, payload))

    def read(self, offset, length, flags=0):
        reply = self.call(CMD_READ, offset, length, flags)
        if reply.error:
            raise Violation('P78', f'READ {offset}+{length}: {reply.describe()}')
        return reply.data

    def write(self, offset, payload, flags=0):
        reply = self.call(CMD_WRITE, offset, flags=flags, payload=payload)
        if reply.error:
            raise Violation('P79', f'WRITE {offset}+{len(payload)}: {reply.describe()}')

    def disc(self):
        self.send(pack_request(CMD_DISC, self.new_cookie(), 0, 0, mode=self.mode))
