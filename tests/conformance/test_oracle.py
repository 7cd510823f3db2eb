# SPDX-License-Identifier: Apache-2.0
"""The judge on trial: replies that break a row are fed to it, and it must name the row.

No server is involved.  Without this, a judge that accepts everything would pass every server.
"""

import socket
import struct

import nbdraw
from nbdraw import (CF_DF, CF_REQ_ONE, CMD_BLOCK_STATUS, CMD_READ, CMD_WRITE, EXTENDED, OPT_GO,
                    OPT_INFO, OPT_LIST, OPT_SET_META, SIMPLE, STRUCTURED)
from replies import EXTENDED_MAGIC, SIMPLE_MAGIC, STRUCTURED_MAGIC, Violation
from servers import Address
from suite import case

COOKIE = 0x1122334455667788
OFFSET, LENGTH, SIZE = 4096, 1024, 1 << 20


class Rig:
    """A client whose server is the test itself."""

    def __init__(self, mode):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(('127.0.0.1', 0))
        listener.listen(1)
        self.client = nbdraw.Client(Address(socket.AF_INET, listener.getsockname()))
        self.far = listener.accept()[0]
        listener.close()
        self.client.mode = mode
        self.client.size = SIZE
        self.client.contexts = {3: 'base:allocation'}
        self.client.block_size = (1, 4096, 65536)

    def close(self):
        self.client.close()
        self.far.close()

    def judge(self, kind, data, flags=0):
        """Feed data as the answer to one request; the finished reply."""
        self.client.tracker.expect(kind, flags, COOKIE, OFFSET, LENGTH)
        self.far.sendall(data)
        self.far.shutdown(socket.SHUT_WR)
        return self.client.collect(COOKIE)


def simple(error=0, data=b'', cookie=COOKIE):
    return struct.pack('>IIQ', SIMPLE_MAGIC, error, cookie) + data


def chunk(kind, body=b'', flags=1, length=None, cookie=COOKIE):
    length = len(body) if length is None else length
    return struct.pack('>IHHQI', STRUCTURED_MAGIC, flags, kind, cookie, length) + body


def ext(kind, body=b'', flags=1, offset=OFFSET):
    return struct.pack('>IHHQQQ', EXTENDED_MAGIC, flags, kind, COOKIE, offset, len(body)) + body


def data(offset, size, flags=1):
    return chunk(1, struct.pack('>Q', offset) + b'd' * size, flags)


def hole(offset, size, flags=1):
    return chunk(2, struct.pack('>QI', offset, size), flags)


def status(*extents, context=3, flags=1):
    return chunk(5, struct.pack('>I', context) + b''.join(struct.pack('>II', *e) for e in extents),
                 flags)


def status_ext(*extents, count=None, offset=OFFSET):
    return ext(6, struct.pack('>II', 3, len(extents) if count is None else count) +
               b''.join(struct.pack('>QQ', *e) for e in extents), offset=offset)


def error(number, text=b'', text_len=None, extra=b'', kind=0x8001, flags=1):
    return chunk(kind, struct.pack('>IH', number, len(text) if text_len is None else text_len) +
                 text + extra, flags)


GOOD = (
    (SIMPLE, CMD_READ, simple(0, b'x' * LENGTH)),
    (SIMPLE, CMD_READ, simple(5)),
    (SIMPLE, CMD_WRITE, simple(28)),
    (STRUCTURED, CMD_WRITE, simple(0)),
    (STRUCTURED, CMD_READ, data(OFFSET, LENGTH)),
    (STRUCTURED, CMD_READ, data(OFFSET + 512, 512, 0) + hole(OFFSET, 512, 0) + chunk(0)),
    (STRUCTURED, CMD_READ, data(OFFSET, 512, 0) + error(5, b'disk')),
    (STRUCTURED, CMD_READ, data(OFFSET, LENGTH, 0) +
     error(5, b'x', kind=0x8002, extra=struct.pack('>Q', OFFSET + 5))),
    (STRUCTURED, CMD_BLOCK_STATUS, status((512, 0), (4096, 3))),
    (EXTENDED, CMD_BLOCK_STATUS, status_ext((512, 0), (4096, 3))),
    (EXTENDED, CMD_WRITE, ext(0)),
)

BAD = (
    ('P69', SIMPLE, CMD_READ, simple(0, b'x' * LENGTH, cookie=COOKIE + 1)),
    ('P120', SIMPLE, CMD_READ, b'\x67\x44\x66\x99' + bytes(12)),
    ('P118', SIMPLE, CMD_READ, simple(2)),
    ('P118', SIMPLE, CMD_WRITE, simple(95)),
    ('P118', SIMPLE, CMD_WRITE, simple(75)),
    ('P118', SIMPLE, CMD_READ, simple(12)),
    ('P88', SIMPLE, CMD_READ, data(OFFSET, LENGTH)),
    ('P88', STRUCTURED, CMD_READ, simple(0, b'x' * LENGTH)),
    ('P88', STRUCTURED, CMD_READ, simple(22)),
    ('P89', STRUCTURED, CMD_READ, data(OFFSET, LENGTH, 3)),
    ('P89', STRUCTURED, CMD_READ, chunk(0, flags=0)),
    ('P89', STRUCTURED, CMD_READ, chunk(0, b'x')),
    ('P90', STRUCTURED, CMD_READ, chunk(0)),
    ('P90', STRUCTURED, CMD_READ, chunk(1, struct.pack('>Q', OFFSET))),
    ('P90', STRUCTURED, CMD_READ, chunk(2, struct.pack('>Q', OFFSET))),
    ('P90', STRUCTURED, CMD_READ, hole(OFFSET, 0)),
    ('P90', STRUCTURED, CMD_READ, data(OFFSET, 512)),
    ('P90', STRUCTURED, CMD_READ, data(OFFSET, LENGTH + 1)),
    ('P90', STRUCTURED, CMD_READ, data(OFFSET - 1, 512, 0)),
    ('P90', STRUCTURED, CMD_READ, hole(OFFSET, 0xffffffff)),
    ('P90', STRUCTURED, CMD_READ, data(OFFSET, 512, 0) + hole(OFFSET + 511, 513)),
    ('P90', STRUCTURED, CMD_READ, data(OFFSET + 512, 512, 0) + data(OFFSET, 513)),
    ('P90', STRUCTURED, CMD_WRITE, data(OFFSET, 512)),
    ('P92', STRUCTURED, CMD_READ, error(0)),
    ('P92', STRUCTURED, CMD_READ, error(5, b'abc', text_len=4)),
    ('P92', STRUCTURED, CMD_READ, chunk(0x8001, b'\0\0\0\5')),
    ('P92', STRUCTURED, CMD_READ, chunk(0x8002, b'\0\0\0\5\0\0' + bytes(7))),
    ('P92', STRUCTURED, CMD_READ, error(5, b'\xff')),
    ('P92', STRUCTURED, CMD_READ, error(5, b'a\0b')),
    ('P92', STRUCTURED, CMD_READ, error(5, b't' * 4097)),
    ('P92', STRUCTURED, CMD_READ, error(5, kind=0x8002, extra=struct.pack('>Q', OFFSET + LENGTH))),
    ('P92', STRUCTURED, CMD_READ, error(5, kind=0x8002, flags=0,
                                        extra=struct.pack('>Q', OFFSET)) + data(OFFSET, LENGTH)),
    ('P94', STRUCTURED, CMD_READ, chunk(1, length=0xffffffff)),
    ('P129', STRUCTURED, CMD_READ, chunk(3)),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, simple(0)),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, chunk(0)),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, status((0, 0))),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, status()),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, status((512, 0), context=4)),
    ('P100', STRUCTURED, CMD_BLOCK_STATUS, status((512, 0), flags=0) + status((512, 0))),
    ('P100', STRUCTURED, CMD_READ, status((512, 0))),
    ('P101', STRUCTURED, CMD_BLOCK_STATUS, status((LENGTH, 0), (512, 3))),
    ('P101', STRUCTURED, CMD_BLOCK_STATUS, status((SIZE, 0))),
    ('P103', STRUCTURED, CMD_BLOCK_STATUS, status((512, 0), (512, 0))),
    ('P105', STRUCTURED, CMD_BLOCK_STATUS, status((512, 4))),
    ('P110', EXTENDED, CMD_WRITE, simple(0)),
    ('P88', EXTENDED, CMD_READ, data(OFFSET, LENGTH)),
    ('P110', EXTENDED, CMD_WRITE, ext(0, offset=0)),
    ('P110', STRUCTURED, CMD_WRITE, ext(0)),
    ('P114', EXTENDED, CMD_BLOCK_STATUS, status_ext((512, 0), count=2)),
    ('P114', EXTENDED, CMD_BLOCK_STATUS, ext(5, struct.pack('>III', 3, 512, 0))),
    ('P105', EXTENDED, CMD_BLOCK_STATUS, status_ext((512, 1 << 32))),
)

BAD_FLAGGED = (
    ('P93', CMD_READ, CF_DF, data(OFFSET, 512, 0) + data(OFFSET + 512, 512)),
    ('P93', CMD_READ, CF_DF, hole(OFFSET, 512, 0) + chunk(0)),
    ('P102', CMD_BLOCK_STATUS, CF_REQ_ONE, status((512, 0), (512, 3))),
    ('P102', CMD_BLOCK_STATUS, CF_REQ_ONE, status((LENGTH + 512, 0))),
)


def option_reply(option, kind, body=b'', magic=nbdraw.REP_MAGIC):
    return struct.pack('>QIII', magic, option, kind, len(body)) + body


BAD_OPTIONS = (
    ('P11', OPT_LIST, option_reply(OPT_LIST, 1, magic=1)),
    ('P11', OPT_LIST, option_reply(OPT_INFO, 1)),
    ('P11', OPT_LIST, option_reply(OPT_LIST, 1, b'x')),
    ('P11', OPT_LIST, option_reply(OPT_LIST, nbdraw.REP_INFO, bytes(12))),
    ('P11', OPT_LIST, option_reply(OPT_LIST, nbdraw.REP_ERR + 99)),
    ('P46', OPT_GO, option_reply(OPT_GO, nbdraw.ERR_TLS_REQD)),
    ('P20', OPT_GO, option_reply(OPT_GO, nbdraw.ERR_UNKNOWN, b'\xff')),
    ('P20', OPT_GO, option_reply(OPT_GO, nbdraw.ERR_UNKNOWN, b'e' * 4097)),
    ('P16', OPT_LIST, option_reply(OPT_LIST, 2, struct.pack('>I', 5) + b'four')),
    ('P1', OPT_LIST, option_reply(OPT_LIST, 2, struct.pack('>I', 4) + b'fo\0r')),
    ('P23', OPT_GO, option_reply(OPT_GO, 3, bytes(11))),
    ('P23', OPT_GO, option_reply(OPT_GO, 3, b'\0\3' + bytes(10))),
    ('P38', OPT_SET_META, option_reply(OPT_SET_META, 4, bytes(4))),
)


def expect_violation(t, row, what, action):
    try:
        action()
    except Violation as found:
        t.equal(found.row, row, row, f'row named for {what}')
        return
    t.check(False, row, f'{what} was accepted')


@case
def good_replies_are_accepted(t):
    """P69, P88, P90, P92, P100, P114: the judge accepts lawful replies"""
    for mode, kind, sent in GOOD:
        rig = Rig(mode)
        t.stack.callback(rig.close)
        rig.judge(kind, sent)


@case
def bad_replies_are_named(t):
    """P69, P88, P89, P90, P92, P93, P94, P100, P101, P102, P103, P105, P110, P114, P118, P120: the
    judge names the row that a reply breaks"""
    for number, (row, mode, kind, sent) in enumerate(BAD):
        rig = Rig(mode)
        t.stack.callback(rig.close)
        expect_violation(t, row, f'bad reply {number}', lambda: rig.judge(kind, sent))
    for number, (row, kind, flags, sent) in enumerate(BAD_FLAGGED):
        rig = Rig(STRUCTURED)
        t.stack.callback(rig.close)
        expect_violation(t, row, f'bad flagged reply {number}',
                         lambda: rig.judge(kind, sent, flags))


@case
def bad_option_replies_are_named(t):
    """P11, P46, P20, P16, P1, P23, P38: the judge names the row that an option reply breaks"""
    for number, (row, option, sent) in enumerate(BAD_OPTIONS):
        rig = Rig(SIMPLE)
        t.stack.callback(rig.close)
        rig.far.sendall(sent)
        expect_violation(t, row, f'bad option reply {number}',
                         lambda: rig.client.recv_option_result(option))


@case
def go_without_export_is_named(t):
    """P23, P33: the judge refuses a GO without INFO_EXPORT, or without HAS_FLAGS"""
    for row, item in (('P23', b''), ('P33', struct.pack('>HQH', 0, SIZE, 4))):
        rig = Rig(SIMPLE)
        t.stack.callback(rig.close)
        rig.far.sendall((option_reply(OPT_GO, 3, item) if item else b'') + option_reply(OPT_GO, 1))
        expect_violation(t, row, 'GO', lambda: rig.client.go('x'))
