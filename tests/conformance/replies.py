# SPDX-License-Identifier: Apache-2.0
"""The judge of what a server sends in transmission: simple, structured and extended replies.

ReplyTracker knows every request in flight on one connection and checks each message against the
request it answers, so that every test of the suite is also a test of P69, P88-P94, P100-P103,
P110, P114 and P118.
"""

import bisect
import struct

SIMPLE_MAGIC = 0x67446698
STRUCTURED_MAGIC = 0x668e33ef
EXTENDED_MAGIC = 0x6e8a278c

REPLY_DONE = 1
CHUNK_NONE, CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE = 0, 1, 2
CHUNK_BLOCK_STATUS, CHUNK_BLOCK_STATUS_EXT = 5, 6
CHUNK_ERROR, CHUNK_ERROR_OFFSET = 0x8001, 0x8002

ERRORS = {1: 'EPERM', 5: 'EIO', 12: 'ENOMEM', 22: 'EINVAL', 28: 'ENOSPC', 75: 'EOVERFLOW',
          95: 'ENOTSUP', 108: 'ESHUTDOWN'}
STRING_MAX = 4096
EXTENTS_MAX = 1 << 20

_READ, _WRITE, _FLUSH, _TRIM, _CACHE, _ZERO, _STATUS = 0, 1, 3, 4, 5, 6, 7
_DF, _REQ_ONE, _FAST_ZERO, _PAYLOAD_LEN = 1 << 2, 1 << 3, 1 << 4, 1 << 5


class Violation(AssertionError):
    """The server broke the named row."""

    def __init__(self, row, text):
        super().__init__(f'{row}: {text}')
        self.row = row


def check_string(row, data, what):
    """P1: UTF-8, no NUL, at most 4096 bytes."""
    if len(data) > STRING_MAX:
        raise Violation(row, f'{what} of {len(data)} bytes')
    if b'\0' in data:
        raise Violation(row, f'{what} holds a NUL: {data[:80]!r}')
    try:
        data.decode('utf-8')
    except UnicodeDecodeError:
        raise Violation(row, f'{what} is not UTF-8: {data[:80]!r}') from None


class Reply:
    """One finished reply.  `data` is set on a successful READ, `extents` after BLOCK_STATUS."""

    def __init__(self, request):
        self.request = request
        self.error = 0
        self.text = b''
        self.errors = []
        self.chunks = []
        self.data = None
        self.extents = {}
        self.simple = False

    def describe(self):
        if not self.error:
            return 'success'
        return f'{ERRORS.get(self.error, self.error)} {self.text.decode(errors="replace")!r}'


class Request:
    def __init__(self, kind, flags, cookie, offset, length, payload):
        self.kind = kind
        self.flags = flags
        self.cookie = cookie
        self.offset = offset
        self.length = length
        self.effect_length = length
        self.status_ids = None
        if kind == _STATUS and flags & _PAYLOAD_LEN and len(payload) >= 8:
            self.effect_length = struct.unpack('>Q', payload[:8])[0]
            self.status_ids = set(struct.unpack(f'>{(len(payload) - 8) // 4}I',
                                                payload[8:8 + (len(payload) - 8) // 4 * 4]))
        self.reply = Reply(self)
        self.covered = []
        self.buffer = bytearray(length) if kind == _READ and length <= (1 << 30) else None


class ReplyTracker:
    """Checks and assembles replies for one client (which lends recv, mode, contexts, size)."""

    def __init__(self, client):
        self.client = client
        self.pending = {}
        self.finished = {}

    def expect(self, kind, flags, cookie, offset, length, payload=b''):
        self.pending[cookie] = Request(kind, flags, cookie, offset, length, payload)

    def receive(self):
        """Take one message off the stream."""
        magic = struct.unpack('>I', self.client.recv(4))[0]
        if magic == SIMPLE_MAGIC:
            self._simple()
        elif magic == STRUCTURED_MAGIC:
            self._structured()
        elif magic == EXTENDED_MAGIC:
            self._extended()
        else:
            raise Violation('P120', f'reply magic {magic:#x}')

    def _request(self, cookie):
        if cookie not in self.pending:
            raise Violation('P69', f'reply to cookie {cookie:#x}, which is not in flight')
        return self.pending[cookie]

    def _finish(self, request):
        del self.pending[request.cookie]
        self.finished[request.cookie] = request.reply

    def _simple(self):
        error, cookie = struct.unpack('>IQ', self.client.recv(12))
        request = self._request(cookie)
        if self.client.mode == 'extended':
            raise Violation('P110', 'simple reply under extended headers')
        if self.client.mode == 'structured' and request.kind == _READ:
            raise Violation('P88', 'simple reply to READ under structured replies')
        reply = request.reply
        reply.simple = True
        if error:
            self._error(request, error, b'')
        elif request.kind == _READ:
            reply.data = self.client.recv(request.length)
        elif request.kind == _STATUS:
            raise Violation('P100', 'BLOCK_STATUS succeeded without a status chunk')
        self._finish(request)

    def _structured(self):
        flags, kind, cookie, length = struct.unpack('>HHQI', self.client.recv(16))
        request = self._request(cookie)
        if self.client.mode != 'structured':
            raise Violation('P88', f'structured reply on a {self.client.mode} connection')
        self._chunk(request, flags, kind, length)

    def _extended(self):
        flags, kind, cookie, offset, length = struct.unpack('>HHQQQ', self.client.recv(28))
        request = self._request(cookie)
        if self.client.mode != 'extended':
            raise Violation('P110', f'extended reply on a {self.client.mode} connection')
        if offset != request.offset:
            raise Violation('P110', f'offset {offset:#x} in the reply to {request.offset:#x}')
        self._chunk(request, flags, kind, length)

    def _chunk(self, request, flags, kind, length):
        if flags & ~REPLY_DONE:
            raise Violation('P89', f'reply flags {flags:#x}')
        limit = max(self.client.max_payload or 0, 8 * EXTENTS_MAX * 2, request.length) + 64
        if length > limit:
            raise Violation('P94', f'chunk type {kind:#x} claims {length} bytes')
        body = self.client.recv(length)
        request.reply.chunks.append((kind, flags, length))
        if kind == CHUNK_NONE:
            if length or not flags & REPLY_DONE:
                raise Violation('P89', f'NONE chunk with length {length}, flags {flags}')
        elif kind in (CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE):
            self._content(request, kind, body)
        elif kind in (CHUNK_BLOCK_STATUS, CHUNK_BLOCK_STATUS_EXT):
            self._status(request, kind, body)
        elif kind in (CHUNK_ERROR, CHUNK_ERROR_OFFSET):
            self._error_chunk(request, kind, body)
        else:
            raise Violation('P129', f'undefined chunk type {kind:#x}')
        if flags & REPLY_DONE:
            self._complete(request)

    def _content(self, request, kind, body):
        if request.kind != _READ:
            raise Violation('P90', f'content chunk in reply to command {request.kind}')
        if kind == CHUNK_OFFSET_DATA:
            if len(body) < 9:
                raise Violation('P90', f'OFFSET_DATA of {len(body)} bytes')
            size = len(body) - 8
            limit = self.client.max_payload
            if limit is not None and size > limit:
                raise Violation('P94', f'{size} bytes in a chunk, maximum payload {limit}')
        else:
            if len(body) != 12:
                raise Violation('P90', f'OFFSET_HOLE of {len(body)} bytes')
            size = struct.unpack('>I', body[8:])[0]
            if not size:
                raise Violation('P90', 'hole of no bytes')
        offset = struct.unpack('>Q', body[:8])[0]
        begin = offset - request.offset
        if begin < 0 or begin + size > request.length:
            raise Violation('P90', f'chunk {offset}+{size} outside {request.offset}'
                                   f'+{request.length}')
        at = bisect.bisect(request.covered, (begin, 0))
        if any(begin < end and start < begin + size
               for start, end in request.covered[max(at - 1, 0):at + 1]):
            raise Violation('P90', f'chunk {offset}+{size} overlaps an earlier one')
        if any(begin <= at - request.offset < begin + size for at in
               (e[1] for e in request.reply.errors if e[1] is not None)):
            raise Violation('P92', f'chunk {offset}+{size} after an error inside it')
        request.covered.insert(at, (begin, begin + size))
        if request.flags & _DF and len(request.covered) > 1:
            raise Violation('P93', 'second content chunk under DF')
        if request.flags & _DF and kind == CHUNK_OFFSET_HOLE and size != request.length:
            raise Violation('P93', 'a hole chunk stands for part of a DF read')
        if kind == CHUNK_OFFSET_DATA and request.buffer is not None:
            request.buffer[begin:begin + size] = body[8:]

    def _status(self, request, kind, body):
        extended = kind == CHUNK_BLOCK_STATUS_EXT
        if request.kind != _STATUS:
            raise Violation('P100', f'status chunk in reply to command {request.kind}')
        if extended != (self.client.mode == 'extended'):
            raise Violation('P114', f'chunk type {kind} on a {self.client.mode} connection')
        head, each = (8, 16) if extended else (4, 8)
        if len(body) < head + each or (len(body) - head) % each:
            raise Violation('P114' if extended else 'P100', f'status chunk of {len(body)} bytes')
        context = struct.unpack('>I', body[:4])[0]
        extents = list(struct.iter_unpack('>QQ' if extended else '>II', body[head:]))
        if extended and struct.unpack('>I', body[4:8])[0] != len(extents):
            raise Violation('P114', f'descriptor count {struct.unpack(">I", body[4:8])[0]} with '
                                    f'{len(extents)} descriptors')
        if context not in self.client.contexts:
            raise Violation('P100', f'status for context {context}, which was not selected')
        if context in request.reply.extents:
            raise Violation('P100', f'two status chunks for context {context}')
        request.reply.extents[context] = extents
        self._extents(request, self.client.contexts[context], extents)

    def _extents(self, request, context, extents):
        lengths = [length for length, _ in extents]
        if not all(lengths):
            raise Violation('P100', 'extent of no bytes')
        if len(extents) > EXTENTS_MAX:
            raise Violation('P103', f'{len(extents)} extents in a chunk')
        if len(extents) > 1 and sum(lengths[:-1]) >= request.effect_length:
            raise Violation('P101', 'an extent begins past the end of the request')
        if request.offset + sum(lengths) > self.client.size:
            raise Violation('P101', f'extents reach {request.offset + sum(lengths)} on an export '
                                    f'of {self.client.size}')
        if request.flags & _REQ_ONE and (len(extents) != 1 or lengths[0] > request.effect_length):
            raise Violation('P102', f'{len(extents)} extents, first {lengths[0]}, for REQ_ONE of '
                                    f'{request.effect_length}')
        if any(a[1] == b[1] for a, b in zip(extents, extents[1:])):
            raise Violation('P103', 'neighbouring extents with equal status')
        if context == 'base:allocation' and any(status & ~3 for _, status in extents):
            raise Violation('P105', f'reserved bits set in {extents[:4]}')

    def _error_chunk(self, request, kind, body):
        fixed = 6 if kind == CHUNK_ERROR else 14
        if len(body) < fixed:
            raise Violation('P92', f'error chunk of {len(body)} bytes')
        error, text_len = struct.unpack('>IH', body[:6])
        if text_len > len(body) - fixed:
            raise Violation('P92', f'text of {text_len} bytes in a chunk of {len(body)}')
        text = body[6:6 + text_len]
        check_string('P92', text, 'error text')
        if not error:
            raise Violation('P92', 'error chunk with error 0')
        at = None
        if kind == CHUNK_ERROR_OFFSET:
            at = struct.unpack('>Q', body[6 + text_len:14 + text_len])[0]
            if not request.offset <= at < request.offset + max(request.effect_length, 1):
                raise Violation('P92', f'error offset {at} outside the request')
        request.reply.errors.append((error, at))
        self._error(request, error, text)

    def _error(self, request, error, text):
        if error not in ERRORS:
            raise Violation('P118', f'error value {error}')
        if error == 95 and not (request.kind == _ZERO and request.flags & _FAST_ZERO):
            raise Violation('P118', f'ENOTSUP in reply to command {request.kind}')
        if error == 75 and request.kind in (_WRITE, _FLUSH):
            raise Violation('P118', f'EOVERFLOW in reply to command {request.kind}')
        if error == 12:
            raise Violation('P118', 'ENOMEM')
        if not request.reply.error:
            request.reply.error = error
            request.reply.text = text

    def _complete(self, request):
        reply = request.reply
        if not reply.error and request.kind == _READ:
            if sum(end - start for start, end in request.covered) != request.length:
                raise Violation('P90', f'success covers {sorted(request.covered)[:4]} of '
                                       f'{request.length} bytes')
            reply.data = bytes(request.buffer) if request.buffer is not None else None
        if not reply.error and request.kind == _STATUS:
            wanted = set(self.client.contexts) if request.status_ids is None else request.status_ids
            if set(reply.extents) != wanted:
                raise Violation('P100', f'status for contexts {sorted(reply.extents)}, selected '
                                        f'{sorted(wanted)}')
        self._finish(request)
