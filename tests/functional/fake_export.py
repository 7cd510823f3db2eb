# SPDX-License-Identifier: Apache-2.0
"""An export behind a scripted NBD server (fake_server.py): the transmission phase, honest or not.

A script opens the export with open_export() and then speaks through the Export it gets: requests are
checked as the client's rules demand, replies are whatever the test wants.
"""

import struct
import threading

from fake_server import (ACK, EXTENDED, GO, LIST_META, META, SET_META, STRUCTURED_REPLY, UNSUP, ClientGone,
                         FakeServer)

SIMPLE_STYLE, STRUCTURED_STYLE, EXTENDED_STYLE = range(3)

READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZERO, STATUS = range(8)

NONE, DATA, HOLE, BLOCK_STATUS, BLOCK_STATUS_EXT = 0, 1, 2, 5, 6
ERROR, ERROR_OFFSET = 0x8001, 0x8002
DONE = 1

CONTEXT = 0x2A
ALIVE = 0xFFFFFFFF
SIZE_CONTEXT = 0xFFFFFFFE
SIZE = 1 << 20
# HAS_FLAGS, FLUSH, FUA, TRIM, ZERO, DF, CACHE
FLAGS = 1 | 4 | 8 | 32 | 64 | 128 | 1 << 10
MULTI_CONN = 1 << 8


def content(offset, length):
    """What an honest server's export holds."""
    return bytes((at * 7 + (at >> 8)) & 0xFF for at in range(offset, offset + length))


class Request:
    def __init__(self, kind, flags, cookie, offset, length, data):
        self.kind = kind
        self.flags = flags
        self.cookie = cookie
        self.offset = offset
        self.length = length
        self.data = data


class Export:
    """One connection in the transmission phase."""

    def __init__(self, dialogue, style):
        self.dialogue = dialogue
        self.style = style
        self.seen = set()

    def send(self, data):
        self.dialogue.send(data)

    def request(self, wanted=None):
        """The client's next request with its payload. DISC ends the script."""
        extended = self.style == EXTENDED_STYLE
        magic, flags, kind, cookie, offset = struct.unpack(">IHH8sQ", self.dialogue.receive(24))
        length = int.from_bytes(self.dialogue.receive(8 if extended else 4), "big")
        assert magic == (0x21E41C71 if extended else 0x25609513), f"request magic {magic:#x}"
        if kind == DISC:
            assert (flags, offset, length) == (0, 0, 0), "P80: DISC has offset and length 0"
            raise ClientGone
        assert cookie not in self.seen, "P69: a cookie twice on one connection"
        self.seen.add(cookie)
        assert bool(flags & 32) == (extended and kind == WRITE), "P111: PAYLOAD_LEN"
        data = self.dialogue.receive(length) if kind == WRITE else b""
        assert wanted is None or kind == wanted, f"request {kind} instead of {wanted}"
        return Request(kind, flags & ~32, cookie, offset, length, data)

    # --- replies as bytes

    @staticmethod
    def simple(request, error=0, data=b"", cookie=None):
        return struct.pack(">II8s", 0x67446698, error, cookie or request.cookie) + data

    def chunk(self, request, kind, body=b"", flags=DONE, length=None, cookie=None, offset=None):
        length = len(body) if length is None else length
        head = struct.pack(">HH8s", flags, kind, cookie or request.cookie)
        if self.style == EXTENDED_STYLE:
            offset = request.offset if offset is None else offset
            return struct.pack(">I", 0x6E8A278C) + head + struct.pack(">QQ", offset, length) + body
        return struct.pack(">I", 0x668E33EF) + head + struct.pack(">I", length) + body

    def data(self, request, place=0, length=None, flags=DONE):
        offset = request.offset + place
        length = request.length - place if length is None else length
        return self.chunk(request, DATA, struct.pack(">Q", offset & (1 << 64) - 1) +
                          content(offset, length), flags)

    def hole(self, request, place=0, length=None, flags=DONE):
        length = request.length - place if length is None else length
        return self.chunk(request, HOLE, struct.pack(">QI", request.offset + place, length), flags)

    def error(self, request, error, text=b"", flags=DONE):
        return self.chunk(request, ERROR, struct.pack(">IH", error, len(text)) + text, flags)

    def extents(self, request, extents, context=CONTEXT, flags=DONE, count=None):
        if self.style == EXTENDED_STYLE:
            count = len(extents) if count is None else count
            return self.chunk(request, BLOCK_STATUS_EXT, struct.pack(">II", context, count) +
                              b"".join(struct.pack(">QQ", *e) for e in extents), flags)
        return self.chunk(request, BLOCK_STATUS, struct.pack(">I", context) +
                          b"".join(struct.pack(">II", *e) for e in extents), flags)

    def size(self, request, size, flags=DONE):
        """The answer of x-gmblock:size."""
        extents = [(1, size)] if self.style == EXTENDED_STYLE else [(1, size >> 32),
                                                                    (1, size & 0xFFFFFFFF)]
        return self.extents(request, extents, SIZE_CONTEXT, flags)

    def honest(self, request):
        """The right answer."""
        if self.style == SIMPLE_STYLE:
            data = content(request.offset, request.length) if request.kind == READ else b""
            return self.simple(request, 0, data)
        if request.kind == READ:
            return self.data(request)
        if request.kind == STATUS:
            return self.extents(request, [(request.length, 0)])
        return self.chunk(request, NONE)

    def serve(self):
        """Honest until the client goes."""
        while True:
            self.send(self.honest(self.request()))


def greeting_bytes(flags=3):
    return b"NBDMAGICIHAVEOPT" + struct.pack(">H", flags)


def option_reply(option, kind, data=b""):
    return struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data


def opening(style, size=SIZE, flags=FLAGS, sizes=None, epoch=None, alive=False, says_size=False):
    """What the server says to each of the client's options, in order."""
    replies = []
    if style == EXTENDED_STYLE:
        replies.append(option_reply(EXTENDED, ACK))
    else:
        replies.append(option_reply(EXTENDED, UNSUP))
        replies.append(option_reply(STRUCTURED_REPLY, ACK if style == STRUCTURED_STYLE else UNSUP))
    # Asked for gmblock's own contexts, of which it has none, or one.
    listed = b"" if epoch is None else option_reply(
        LIST_META, META, bytes(4) + f"x-gmblock:epoch={epoch:016x}".encode())
    if alive:
        listed += option_reply(LIST_META, META, bytes(4) + b"x-gmblock:alive")
    if says_size:
        listed += option_reply(LIST_META, META, bytes(4) + b"x-gmblock:size")
    replies.append(listed + option_reply(LIST_META, ACK))
    if style != SIMPLE_STYLE:
        replies.append(option_reply(SET_META, META, struct.pack(">I", CONTEXT) +
                                    b"base:allocation") + option_reply(SET_META, ACK))
    sizes = b"" if sizes is None else option_reply(GO, 3, struct.pack(">HIII", 3, *sizes))
    replies.append(sizes + option_reply(GO, 3, struct.pack(">HQH", 0, size, flags)) +
                   option_reply(GO, ACK))
    return replies


def open_export(dialogue, style=EXTENDED_STYLE, **facts):
    """The server's side of an opening up to the transmission phase."""
    dialogue.greet()
    for reply in opening(style, **facts):
        dialogue.option()
        dialogue.send(reply)
    return Export(dialogue, style)


class ExportServer(FakeServer):
    """Each connection is opened and given to one of the scripts, the last one again and again:
    script(export)."""

    def __init__(self, *scripts, style=EXTENDED_STYLE, **facts):
        super().__init__(self._serve)
        self.scripts = list(scripts)
        self.style = style
        self.facts = facts
        self.count = 0
        self.lock = threading.Lock()

    def _serve(self, dialogue):
        with self.lock:
            script = self.scripts[min(self.count, len(self.scripts) - 1)]
            self.count += 1
        script(open_export(dialogue, self.style, **self.facts))
