"""A small NBD client for tests that look at single bytes and moments, where a real client would
negotiate, retry or hide too much. Fixed newstyle, simple or structured replies, blocking sockets."""
import collections
import socket
import struct
import urllib.parse

NBDMAGIC = 0x4E42444D41474943
IHAVEOPT = 0x49484156454F5054
OPT_REPLY_MAGIC = 0x3E889045565A9
REQUEST_MAGIC = 0x25609513
SIMPLE_REPLY_MAGIC = 0x67446698
STRUCTURED_REPLY_MAGIC = 0x668E33EF

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY = 1, 2, 3, 6, 7, 8
OPT_SET_META_CONTEXT = 10
REP_ACK, REP_SERVER, REP_INFO = 1, 2, 3
INFO_EXPORT = 0
CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH = 0, 1, 2, 3
CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS = 4, 5, 6, 7

FLAG_READ_ONLY = 1 << 1

CMD_FLAG_FUA = 1 << 0
CMD_FLAG_DF = 1 << 2
CHUNK_FLAG_DONE = 1
CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_ERROR = 0, 1, 2, 1 << 15 | 1
CHUNK_BLOCK_STATUS = 5

# A piece of a structured reply; offset, data and error where its kind has them, else None.
Chunk = collections.namedtuple("Chunk", "cookie kind done offset data error")

# Long enough that only a hang meets it.
TIMEOUT_S = 60


class OptionRefused(Exception):
    """The server answered an option with an error reply."""

    def __init__(self, code, text):
        super().__init__(f"option refused: {code:#x} {text}")
        self.code = code


def connect_socket(uri, source=None):
    """A connected socket to the server of an NBD URI, from that address."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme == "nbd+unix":
        query = urllib.parse.parse_qs(parts.query, encoding="utf-8")
        path = query["socket"][0]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(TIMEOUT_S)
        sock.connect(path)
        return sock
    return socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S,
                                    source_address=(source, 0) if source else None)


class Client:
    """One connection. Makes the greeting; negotiation is the caller's, export by export."""

    def __init__(self, uri, source=None):
        self.sock = connect_socket(uri, source)
        self.size = None
        self.flags = None
        self.error_text = ""  # of the last piece that is an error

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        self.sock.close()

    def receive(self, count):
        """Exactly count bytes, or ConnectionError at the end of the stream."""
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {count} bytes")
            data += piece
        return data

    def at_end(self):
        """True when the server has closed and sends nothing more."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    # --- handshake ---------------------------------------------------------------------------

    def greeting(self):
        magic, haveopt, flags = struct.unpack(">QQH", self.receive(18))
        assert magic == NBDMAGIC and haveopt == IHAVEOPT, (magic, haveopt)
        return flags

    def hello(self):
        """Greeting and our flags: fixed newstyle, no zeroes."""
        assert self.greeting() & 3 == 3
        self.sock.sendall(struct.pack(">I", 3))

    def send_option(self, option, data=b""):
        self.sock.sendall(struct.pack(">QII", IHAVEOPT, option, len(data)) + data)

    def option_replies(self, option):
        """The replies to an option, as (type, payload), up to the acknowledgement."""
        replies = []
        while True:
            magic, echoed, kind, length = struct.unpack(">QIII", self.receive(20))
            assert magic == OPT_REPLY_MAGIC and echoed == option, (magic, echoed)
            payload = self.receive(length)
            if kind == REP_ACK:
                return replies
            if kind & (1 << 31):
                raise OptionRefused(kind, payload.decode(errors="replace"))
            replies.append((kind, payload))

    def list(self):
        """The exports: bytes of the name -> bytes of the description."""
        self.send_option(OPT_LIST)
        found = {}
        for kind, payload in self.option_replies(OPT_LIST):
            assert kind == REP_SERVER
            (length,) = struct.unpack(">I", payload[:4])
            found[payload[4:4 + length]] = payload[4 + length:]
        return found

    def go(self, name=b"", option=OPT_GO):
        """Chooses an export; sets size and flags."""
        self.send_option(option, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        for kind, payload in self.option_replies(option):
            if kind == REP_INFO and struct.unpack(">H", payload[:2])[0] == INFO_EXPORT:
                _, self.size, self.flags = struct.unpack(">HQH", payload)
        return self

    # --- transmission ------------------------------------------------------------------------

    def send_request(self, command, cookie, offset=0, length=0, data=b"", flags=0):
        self.sock.sendall(
            struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length) + data)

    def reply(self):
        """The next simple reply, as (cookie, error); a read's data is the caller's to receive."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE_REPLY_MAGIC, hex(magic)
        return cookie, error

    def chunk(self):
        """The next piece of a structured reply."""
        magic, flags, kind, cookie, length = struct.unpack(">IHHQI", self.receive(20))
        assert magic == STRUCTURED_REPLY_MAGIC, hex(magic)
        payload = self.receive(length)
        offset = data = error = None
        if kind in (CHUNK_DATA, CHUNK_HOLE):
            (offset,) = struct.unpack(">Q", payload[:8])
            data = payload[8:]
            if kind == CHUNK_HOLE:
                data = bytes(struct.unpack(">I", data)[0])
        elif kind == CHUNK_BLOCK_STATUS:
            data = payload
        elif kind & 1 << 15:
            (error,) = struct.unpack(">I", payload[:4])
            self.error_text = payload[6:6 + struct.unpack(">H", payload[4:6])[0]].decode()
        else:
            assert kind == CHUNK_NONE and not payload, (kind, payload)
        return Chunk(cookie, kind, bool(flags & CHUNK_FLAG_DONE), offset, data, error)

    def chunks(self, cookie):
        """All pieces of the reply to one request, when nothing else is on its way."""
        found = []
        while not found or not found[-1].done:
            found.append(self.chunk())
            assert found[-1].cookie == cookie, found[-1]
        return found

    def read(self, offset, length):
        self.send_request(CMD_READ, 1, offset, length)
        cookie, error = self.reply()
        assert cookie == 1
        if error:
            raise OSError(error, "read failed")
        return self.receive(length)

    def write(self, offset, data):
        self.send_request(CMD_WRITE, 2, offset, len(data), data)
        cookie, error = self.reply()
        assert cookie == 2
        if error:
            raise OSError(error, "write failed")

    def flush(self):
        self.send_request(CMD_FLUSH, 3)
        assert self.reply() == (3, 0)


def open_export(uri, name=b"", structured=False, source=None):
    """A client in transmission on one export."""
    client = Client(uri, source)
    client.hello()
    if structured:
        client.send_option(OPT_STRUCTURED_REPLY)
        client.option_replies(OPT_STRUCTURED_REPLY)
    return client.go(name)
