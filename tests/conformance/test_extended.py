# SPDX-License-Identifier: Apache-2.0
"""Extended headers and 64-bit lengths, as the extension-ext-header branch has them (P108-P116)."""

import os
import struct

import nbdraw
from nbdraw import (CF_PAYLOAD_LEN, CF_REQ_ONE, CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLUSH,
                    CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, EINVAL, EOVERFLOW,
                    ERR_EXT_HEADER_REQD, ERR_INVALID, ERR_UNSUP, EXTENDED, OPT_EXTENDED_HEADERS,
                    OPT_STRUCTURED_REPLY, REP_ACK, SIMPLE, STRUCTURED, TF_CACHE, TF_FLUSH,
                    TF_STATUS_PAYLOAD, TF_TRIM, TF_WRITE_ZEROES, pack_request)
from servers import GIB, MIB, Export, Spec
from suite import case

META = ('base:allocation',)
BIG = Spec(exports=(Export(size=8 * GIB, file=True),))


def raw(client, kind, offset, length, flags=0, payload=b''):
    """A request whose flags and length need not agree with its payload; returns its cookie."""
    cookie = client.new_cookie()
    client.tracker.expect(kind, flags, cookie, offset, length, payload)
    client.send(pack_request(kind, cookie, offset, length, flags, payload, EXTENDED))
    return cookie


@case
def negotiation(t):
    """P108, P13: EXTENDED_HEADERS works first, after STRUCTURED_REPLY and again; not with data"""
    client = t.greet()
    t.need(client.use_mode(EXTENDED), 'extended headers')
    t.final(client.option(OPT_EXTENDED_HEADERS), (REP_ACK, ERR_INVALID), 'P13')
    client.must_ack(client.go(), 'P108')
    t.requests_in_step(client, 'P108', 'extended READ')
    client = t.greet()
    client.use_mode(STRUCTURED)
    t.check(client.use_mode(EXTENDED), 'P108', 'refused after STRUCTURED_REPLY')
    client.must_ack(client.go(), 'P108')
    t.requests_in_step(client, 'P108', 'extended READ after STRUCTURED_REPLY')
    client = t.greet()
    t.final(client.option(OPT_EXTENDED_HEADERS, b'x'), ERR_INVALID, 'P108', 'with data')
    client.must_ack(client.go(), 'P108')
    t.requests_in_step(client, 'P108', 'simple READ after a refused EXTENDED_HEADERS')


@case
def structured_afterwards(t):
    """P108: STRUCTURED_REPLY after EXTENDED_HEADERS gets ERR_EXT_HEADER_REQD, headers stay"""
    client = t.greet()
    t.need(client.use_mode(EXTENDED), 'extended headers')
    t.final(client.option(OPT_STRUCTURED_REPLY), ERR_EXT_HEADER_REQD, 'P108')
    client.must_ack(client.go(), 'P108')
    t.requests_in_step(client, 'P108', 'extended READ')


@case
def export_name_afterwards(t):
    """P108, P124: EXPORT_NAME after EXTENDED_HEADERS is a breach that the server survives"""
    with t.witness():
        client = t.greet()
        t.need(client.use_mode(EXTENDED), 'extended headers')
        client.send(nbdraw.pack_option(nbdraw.OPT_EXPORT_NAME, client.default_name.encode()) +
                    pack_request(CMD_DISC, 1, 0, 0, mode=EXTENDED))
        client.half_close()
        client.drain()


@case
def every_reply_is_extended(t):
    """P110, P111: every command, good or bad, gets 32-byte replies with its offset and cookie"""
    client = t.open(mode=EXTENDED, meta=META)
    for offset in (0, 4096, 12345, client.size - 512):
        client.write(offset, os.urandom(512))
        for kind, flag in ((CMD_READ, 1), (CMD_TRIM, TF_TRIM), (CMD_WRITE_ZEROES, TF_WRITE_ZEROES),
                           (CMD_CACHE, TF_CACHE), (CMD_BLOCK_STATUS, 1)):
            if client.offers(flag):
                t.error(client.call(kind, offset, 512), 0, 'P110', f'at {offset}')
    if client.offers(TF_FLUSH):
        t.error(client.call(CMD_FLUSH), 0, 'P110')
    for offset in (client.size, 2**63 + 5, 2**64 - 1):
        for kind in (CMD_READ, CMD_TRIM, CMD_WRITE_ZEROES, CMD_CACHE, CMD_BLOCK_STATUS, 99):
            reply = client.call(kind, offset, 512)
            t.check(reply.error, 'P110', f'command {kind} at {offset:#x} succeeded')


@case
def compact_request_is_fatal(t):
    """P120, P110: a 28-byte request after EXTENDED_HEADERS is a bad magic and disconnects"""
    client = t.open(mode=EXTENDED)
    client.send(pack_request(CMD_READ, 7, 0, 512, mode=SIMPLE) + bytes(64))
    client.expect_closed('P120', 'compact request under extended headers')


@case
def extended_request_is_fatal(t):
    """P120: a 32-byte request without EXTENDED_HEADERS is a bad magic and disconnects"""
    for mode in t.modes((SIMPLE, STRUCTURED)):
        client = t.open(mode=mode)
        client.send(pack_request(CMD_READ, 7, 0, 512, mode=EXTENDED) + bytes(64))
        client.expect_closed('P120', f'extended request on a {mode} connection')


@case
def payload_on_others(t):
    """P111, P112, P121: a payload that no command wants is consumed, then EINVAL"""
    client = t.open(mode=EXTENDED, meta=META)
    evil = pack_request(CMD_DISC, 666, 0, 0, mode=EXTENDED)
    for kind in (CMD_READ, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, 42, 0xffff):
        for payload in (b'p', evil, evil * 100, bytes(MIB)):
            cookie = raw(client, kind, 0, len(payload), CF_PAYLOAD_LEN, payload)
            t.error(client.collect(cookie), EINVAL, 'P112', f'payload of {len(payload)}')
            t.requests_in_step(client, 'P112', f'payload of {len(payload)} on command {kind}')


@case
def write_without_payload_flag(t):
    """P111, P124: a WRITE without PAYLOAD_LEN breaks a MUST: answered in step, or disconnected"""
    # The text says that no payload follows, some clients send one all the same, and so servers
    # differ; what none may do is to lose its place or to wait for 2^63 bytes.
    with t.witness():
        for length in (512, 4096, 65536):
            client = t.open(mode=EXTENDED)
            try:
                reply = client.collect(raw(client, CMD_WRITE, MIB, length, payload=bytes(length)))
                t.error(reply, (0, EINVAL), 'P111', f'length {length}')
                t.requests_in_step(client, 'P111', 'after a WRITE without PAYLOAD_LEN')
            except nbdraw.Closed:
                pass
        for length in (2**32, 2**63, 2**64 - 1):
            client = t.open(mode=EXTENDED)
            try:
                reply = client.collect(raw(client, CMD_WRITE, 0, length))
                t.error(reply, EINVAL, 'P111', f'length {length:#x}')
                client.half_close()
                client.drain()
            except nbdraw.Closed:
                pass


@case
def zero_payload(t):
    """P111, P86: PAYLOAD_LEN with a length of 0 is answered without a disconnect"""
    client = t.open(mode=EXTENDED)
    for kind in (CMD_WRITE, CMD_READ, CMD_FLUSH, CMD_TRIM):
        client.collect(raw(client, kind, 0, 0, CF_PAYLOAD_LEN))
        t.requests_in_step(client, 'P86', f'after command {kind} with an empty payload')


@case
def oversize_payload_disconnects(t):
    """P112, P123: PAYLOAD_LEN beyond the maximum disconnects, and nothing is allocated for it"""
    server = t.server()
    with t.witness(server):
        for kind, length in ((CMD_WRITE, 2**32), (CMD_WRITE, 2**64 - 1), (CMD_WRITE, 2**63),
                             (CMD_READ, 2**40), (CMD_BLOCK_STATUS, 2**33), (55, 2**62)):
            client = t.open(server, mode=EXTENDED, meta=META)
            raw(client, kind, 0, length, CF_PAYLOAD_LEN)
            try:
                # It may say why, but then it must go.
                client.tracker.receive()
                client.expect_closed('P112', f'command {kind} with a payload of {length:#x}')
            except nbdraw.Closed:
                pass


@case
def long_effects(t):
    """P113, P107: TRIM, WRITE_ZEROES, CACHE and BLOCK_STATUS take lengths above 32 bits"""
    client = t.open(t.server(BIG), mode=EXTENDED, meta=META)
    edge = 6 * GIB + 12288
    for kind, flag in ((CMD_CACHE, TF_CACHE), (CMD_TRIM, TF_TRIM),
                       (CMD_WRITE_ZEROES, TF_WRITE_ZEROES)):
        t.need(client.offers(flag), f'command {kind}')
        client.write(4096, b'before!!' * 512)
        client.write(5 * GIB, b'inside!!' * 512)
        client.write(edge, b'behind!!' * 512)
        t.error(client.call(kind, 8192, edge - 8192), 0, 'P113', f'command {kind} of 6 GiB')
        t.equal(client.read(4096, 4096), b'before!!' * 512, 'P107', 'data before')
        t.equal(client.read(edge, 4096), b'behind!!' * 512, 'P107', 'data behind')
        if kind == CMD_CACHE:
            t.equal(client.read(5 * GIB, 4096), b'inside!!' * 512, 'P113', 'data inside')
        if kind == CMD_WRITE_ZEROES:
            t.equal(client.read(5 * GIB, 4096), bytes(4096), 'P113', 'data inside')
    t.error(client.call(CMD_BLOCK_STATUS, 0, client.size), 0, 'P113', 'status of 8 GiB')
    for kind in (CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS):
        t.error(client.call(kind, 4096, client.size), EINVAL, 'P113', 'one page too long')


@case
def long_read(t):
    """P113, P95: a READ beyond 32 bits is refused with EOVERFLOW or EINVAL, or split"""
    client = t.open(t.server(BIG), mode=EXTENDED)
    cookie = client.new_cookie()
    client.tracker.expect(CMD_READ, 0, cookie, 0, 5 * GIB)
    client.send(pack_request(CMD_READ, cookie, 0, 5 * GIB, mode=EXTENDED))
    request = client.tracker.pending[cookie]
    # Judged by its first chunk: nobody wants to take 5 GiB here.
    client.tracker.receive()
    if request.covered:
        return
    t.error(client.collect(cookie), (EOVERFLOW, EINVAL), 'P113', 'READ of 5 GiB')
    t.requests_in_step(client, 'P113', 'after a READ of 5 GiB')


@case
def status_layout(t):
    """P114, P100: BLOCK_STATUS is answered by BLOCK_STATUS_EXT with count and zero high bits"""
    client = t.open(mode=EXTENDED, meta=META)
    client.write(MIB, b'm' * 65536)
    for offset, length, flags in ((0, 4 * MIB, 0), (MIB, 65536, CF_REQ_ONE),
                                  (client.size - 1, 1, 0)):
        reply = client.call(CMD_BLOCK_STATUS, offset, length, flags)
        t.error(reply, 0, 'P114', f'{offset}+{length}')
        for extents in reply.extents.values():
            t.check(all(not status >> 32 for _, status in extents), 'P114', f'{extents[:3]}')


@case
def status_payload(t):
    """P115, P112: the payload form filters by context id; bad ids, duplicates and sizes: EINVAL"""
    client = t.open(mode=EXTENDED, meta=META)
    known = next(iter(client.contexts))
    offered = client.offers(TF_STATUS_PAYLOAD)
    forms = {
        'the known id': (struct.pack('>QI', 65536, known), 0),
        'an unknown id': (struct.pack('>QI', 65536, known + 1), EINVAL),
        'the id twice': (struct.pack('>QII', 65536, known, known), EINVAL),
        'known and unknown': (struct.pack('>QII', 65536, known, known ^ 0x55), EINVAL),
        'half an id': (struct.pack('>QIH', 65536, known, 0), EINVAL),
        'half a length': (struct.pack('>I', 65536), EINVAL),
        'one byte': (b'\0', EINVAL),
        'range past the end': (struct.pack('>QI', client.size + 1, known), EINVAL),
        'length that wraps': (struct.pack('>QI', 2**64 - 1, known), EINVAL),
        'ten thousand ids': (struct.pack('>Q', 65536) + bytes(40000), EINVAL),
    }
    for what, (payload, wanted) in forms.items():
        cookie = raw(client, CMD_BLOCK_STATUS, 4096, len(payload), CF_PAYLOAD_LEN, payload)
        t.error(client.collect(cookie), wanted if offered else EINVAL, 'P115', what)
        t.requests_in_step(client, 'P112', f'after a status payload with {what}')


@case
def status_payload_flag(t):
    """P115, P33: BLOCK_STATUS_PAYLOAD is offered under extended headers only"""
    for mode in t.modes():
        client = t.open(mode=mode)
        if mode != EXTENDED:
            t.check(not client.offers(TF_STATUS_PAYLOAD), 'P115', f'offered in {mode} mode')
            t.error(client.call(CMD_BLOCK_STATUS, 0, 512, CF_PAYLOAD_LEN), EINVAL, 'P115',
                    f'used in {mode} mode')
            t.requests_in_step(client, 'P115', 'PAYLOAD_LEN in a compact request')


@case
def status_payload_needs_contexts(t):
    """P115, P26: BLOCK_STATUS_PAYLOAD is not offered without a context selected for the export"""
    server = t.server(Spec(exports=(Export('alpha', MIB), Export('beta', MIB))))
    for selected in (None, 'beta', 'alpha'):
        client = t.greet(server)
        t.need(client.use_mode(EXTENDED), 'extended headers')
        if selected:
            t.need(client.set_meta(export=selected).final != ERR_UNSUP, 'metadata contexts')
        client.must_ack(client.info('alpha'), 'P26')
        before = client.offers(TF_STATUS_PAYLOAD)
        client.must_ack(client.go('alpha'), 'P115')
        t.equal(client.offers(TF_STATUS_PAYLOAD), before, 'P26', 'the flag in INFO and GO')
        if selected != 'alpha':
            t.check(not before, 'P115', f'offered with contexts of {selected} selected')


@case
def payload_flag_in_compact_write(t):
    """P111, P117: PAYLOAD_LEN means nothing in a compact WRITE: consumed, EINVAL, in step"""
    client = t.open()
    t.error(client.call(CMD_WRITE, 0, flags=CF_PAYLOAD_LEN, payload=b'w' * 4096), EINVAL, 'P111')
    t.requests_in_step(client, 'P117', 'after PAYLOAD_LEN in a compact WRITE')
