# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as such: cookies, order, sizes, bounds, several connections (P61-P79)."""

import os
import random

import nbdraw
from nbdraw import (CF_FUA, CMD_BLOCK_STATUS, CMD_CACHE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
                    CMD_WRITE_ZEROES, EINVAL, EIO, ENOSPC, EOVERFLOW, EPERM, TF_CACHE,
                    TF_FLUSH, TF_FUA, TF_MULTI_CONN, TF_READ_ONLY, TF_TRIM, TF_WRITE_ZEROES)
from servers import GIB, MIB, Delay, Export, Fault, Spec
from suite import case

ODD_SIZE = 123456789
ODD = Spec(exports=(Export(size=ODD_SIZE),))
BIG = Spec(exports=(Export(size=8 * GIB, file=True),))


@case
def read_what_was_written(t):
    """P3, P78, P79, P69: data comes back from every alignment, in every reply mode"""
    rng = random.Random(1)
    for mode in t.modes():
        client = t.open(mode=mode)
        base = 8 * MIB
        model = bytearray(client.read(base, 4 * MIB))
        for turn in range(60):
            at = rng.choice((0, 1, 511, 512, 4095, 4096, 65535, rng.randrange(3 * MIB)))
            size = rng.choice((1, 3, 512, 513, 4096, 4097, 65536, rng.randrange(1, 200000)))
            data = rng.randbytes(size)
            client.write(base + at, data)
            model[at:at + size] = data
        t.equal(client.read(base, 4 * MIB), bytes(model), 'P79', f'data in {mode} mode')
        for turn in range(40):
            at = rng.randrange(3 * MIB)
            size = rng.choice((1, 511, 4096, 100001))
            t.equal(client.read(base + at, size), bytes(model[at:at + size]), 'P78',
                    f'{size} bytes at {at} in {mode} mode')


@case
def cookies(t):
    """P69: any 64-bit cookie comes back verbatim"""
    for mode in t.modes():
        client = t.open(mode=mode)
        for cookie in (0, 1, 0xff, 0x8000000000000000, 0xffffffffffffffff, 0x0102030405060708,
                       0x2560951367446698):
            reply = client.collect(client.submit(CMD_READ, 0, 512, cookie=cookie))
            t.error(reply, 0, 'P69', f'cookie {cookie:#x}')


@case
def many_in_flight(t):
    """P69: many requests of all kinds in flight are each answered once, with the right data"""
    rng = random.Random(2)
    for mode in t.modes():
        client = t.open(mode=mode)
        blocks = {}
        for number in range(64):
            blocks[number] = rng.randbytes(4096)
            client.submit(CMD_WRITE, number * 4096, payload=blocks[number])
        for _ in blocks:
            t.error(client.collect_next(), 0, 'P69', 'WRITE')
        asked = {}
        for turn in range(256):
            number = rng.randrange(64)
            asked[client.submit(CMD_READ, number * 4096, 4096)] = number
            if turn % 16 == 0 and client.offers(TF_FLUSH):
                asked[client.submit(CMD_FLUSH)] = None
        while asked:
            reply = client.collect_next()
            number = asked.pop(reply.request.cookie)
            t.error(reply, 0, 'P69')
            if number is not None:
                t.equal(reply.data, blocks[number], 'P69', f'block {number}')


@case
def stream_cut_at_random(t):
    """P79, P69, P124: requests and payloads of all sizes mean the same however they are cut"""
    rng = random.Random(9)
    for mode in t.modes():
        client = t.open(mode=mode)
        model = bytearray(client.read(0, 24 * MIB))
        for turn in range(3):
            stream, at = bytearray(), rng.randrange(5000)
            while at < 20 * MIB:
                size = rng.choice((1, 7, 511, 4096, 4097, 8000, 30000, 65536, 131072, 300001, MIB))
                data = rng.randbytes(size)
                cookie = client.new_cookie()
                flags = nbdraw.CF_PAYLOAD_LEN if mode == nbdraw.EXTENDED else 0
                client.tracker.expect(CMD_WRITE, flags, cookie, at, size)
                stream += nbdraw.pack_request(CMD_WRITE, cookie, at, size, flags, data, mode)
                model[at:at + size] = data
                at += size
                for kind in rng.choices((CMD_READ, 200, CMD_FLUSH), k=rng.randrange(4)):
                    length = 0 if kind == CMD_FLUSH else rng.randrange(1, 9000)
                    cookie = client.new_cookie()
                    place = 0 if kind == CMD_FLUSH else 22 * MIB
                    client.tracker.expect(kind, 0, cookie, place, length)
                    stream += nbdraw.pack_request(kind, cookie, place, length, mode=mode)
            rest = memoryview(stream)
            while rest:
                cut = rng.choice((1, 3, 27, 28, 29, 33, 1000, 8192, 65536, 100000, MIB))
                client.send(rest[:cut])
                rest = rest[cut:]
            while client.tracker.pending:
                client.tracker.receive()
            for reply in client.tracker.finished.values():
                t.error(reply, EINVAL if reply.request.kind == 200 else 0, 'P79')
            client.tracker.finished.clear()
            t.equal(client.read(0, 24 * MIB), bytes(model), 'P79', f'data in {mode} mode')


@case
def slow_request_overtaken(t):
    """P69: a slow request does not hold back the replies to fast ones"""
    spec = Spec(exports=(Export(filters=(Delay('read', 1500, (0, 4096)),)),))
    client = t.open(t.server(spec))
    slow = client.submit(CMD_READ, 0, 4096)
    fast = [client.submit(CMD_READ, MIB + i * 4096, 4096) for i in range(8)]
    order = [client.collect_next().request.cookie for _ in range(9)]
    t.equal(order[-1], slow, 'P69', 'last reply')
    t.equal(sorted(order[:-1]), sorted(fast), 'P69', 'replies before it')


@case
def odd_size(t):
    """P65, P58, P1: an export of 123456789 bytes is exactly that long"""
    client = t.open(t.server(ODD))
    t.equal(client.size, ODD_SIZE, 'P58', 'size')
    tail = os.urandom(1789)
    client.write(ODD_SIZE - len(tail), tail)
    t.equal(client.read(ODD_SIZE - len(tail), len(tail)), tail, 'P65', 'the last bytes')
    client.write(ODD_SIZE - 1, b'Z')
    t.equal(client.read(ODD_SIZE - 1, 1), b'Z', 'P65', 'the last byte')
    t.error(client.call(CMD_READ, ODD_SIZE - 1, 2), EINVAL, 'P65', 'READ past the end')
    t.error(client.call(CMD_WRITE, ODD_SIZE - 1, payload=b'ab'), ENOSPC, 'P65', 'past the end')
    t.equal(client.read(ODD_SIZE - 1, 1), b'Z', 'P65', 'the last byte after a refused WRITE')


@case
def past_the_end(t):
    """P65, P104, P79: out of range is EINVAL, or ENOSPC for writes; the stream stays in step"""
    for mode in t.modes():
        client = t.open(mode=mode)
        end = client.size
        for offset, length in ((end, 512), (end - 512, 1024), (end + 4096, 512), (2 * end, 65536),
                               (0, end + 512)):
            if length <= MIB:
                t.error(client.call(CMD_READ, offset, length), EINVAL, 'P65',
                        f'READ {offset}+{length}')
                t.error(client.call(CMD_WRITE, offset, payload=bytes(length)), ENOSPC, 'P65',
                        f'WRITE {offset}+{length}')
            if client.offers(TF_TRIM):
                t.error(client.call(CMD_TRIM, offset, length), EINVAL, 'P65',
                        f'TRIM {offset}+{length}')
            if client.offers(TF_WRITE_ZEROES):
                t.error(client.call(CMD_WRITE_ZEROES, offset, length), ENOSPC, 'P65',
                        f'WRITE_ZEROES {offset}+{length}')
            if client.offers(TF_CACHE):
                t.error(client.call(CMD_CACHE, offset, length), EINVAL, 'P65',
                        f'CACHE {offset}+{length}')
        t.requests_in_step(client, 'P79', 'after requests out of range')


@case
def offset_overflow(t):
    """P68, P65: offset + length that wraps around 64 bits is out of range, for every command"""
    for mode in t.modes():
        client = t.open(mode=mode)
        for offset, length in ((2**64 - 1, 1), (2**64 - 1, 2), (2**64 - 512, 512),
                               (2**64 - 512, 1024), (2**63, 512), (2**63 - 1, 513),
                               (2**64 - 4096, 8192)):
            t.error(client.call(CMD_READ, offset, length), EINVAL, 'P68', f'READ {offset:#x}')
            t.error(client.call(CMD_WRITE, offset, payload=bytes(length)), (ENOSPC, EINVAL), 'P68',
                    f'WRITE {offset:#x}')
            for kind, flag in ((CMD_TRIM, TF_TRIM), (CMD_WRITE_ZEROES, TF_WRITE_ZEROES),
                               (CMD_CACHE, TF_CACHE)):
                if client.offers(flag):
                    t.error(client.call(kind, offset, length), (ENOSPC, EINVAL), 'P68',
                            f'command {kind} at {offset:#x}')
        t.requests_in_step(client, 'P68', 'after offsets that wrap')


@case
def big_payloads(t):
    """P66, P61: payloads of 32 MiB are written and read, whether or not sizes were negotiated"""
    for mode in t.modes():
        for ask in (False, True):
            client = t.open(mode=mode, ask=ask)
            data = random.Random(mode).randbytes(32 * MIB)
            client.write(4096, data)
            t.equal(client.read(4096, 32 * MIB), data, 'P66', f'32 MiB in {mode} mode')


@case
def largest_payload(t):
    """P60, P66: a payload of the advertised maximum, unaligned, is written and read"""
    server = t.server(Spec(exports=(Export(size=80 * MIB),)))
    client = t.open(server)
    t.need(client.max_payload, 'advertised maximum payload')
    size = min(client.max_payload, 64 * MIB)
    data = random.Random(3).randbytes(size)
    client.write(12345, data)
    t.equal(client.read(12345, size), data, 'P60', f'{size} bytes')
    if t.peer.complete:
        t.equal(client.max_payload, 64 * MIB, 'P60', 'maximum payload')


@case
def payload_over_the_limit(t):
    """P64, P66, P95: over the maximum a READ fails cleanly or is split, a WRITE fails or ends"""
    server = t.server(Spec(exports=(Export(size=GIB),)))
    client = t.open(server)
    t.need(client.max_payload and client.max_payload < GIB, 'limited maximum payload')
    over = client.max_payload + 1
    with t.witness(server):
        reply = client.call(CMD_READ, 0, over)
        t.error(reply, (0, EINVAL, EOVERFLOW), 'P64', f'READ of {over}')
        t.requests_in_step(client, 'P64', 'after an oversized READ')
        before = client.read(0, 4096)
        try:
            reply = client.call(CMD_WRITE, 0, payload=b'\xa5' * over)
            t.error(reply, (EINVAL, EOVERFLOW, ENOSPC), 'P64', f'WRITE of {over}')
            t.requests_in_step(client, 'P64', 'after an oversized WRITE')
        except nbdraw.Closed:
            pass
        t.equal(t.open(server).read(0, 4096), before, 'P64', 'data after an oversized WRITE')


@case
def long_effects(t):
    """P67, P107: TRIM, WRITE_ZEROES and CACHE far longer than any payload are accepted"""
    server = t.server(BIG)
    for length in (0xffffffff, 0xfffff000, 0x80000000):
        client = t.open(server)
        client.write(0, b'A' * 4096)
        client.write(length & ~4095, b'B' * 4096)
        for kind, flag in ((CMD_CACHE, TF_CACHE), (CMD_TRIM, TF_TRIM),
                           (CMD_WRITE_ZEROES, TF_WRITE_ZEROES)):
            if not client.offers(flag):
                t.demand(f'command {kind}')
                continue
            allowed = 0 if t.peer.complete else (0, EINVAL, EOVERFLOW)
            reply = client.call(kind, 0, length)
            t.error(reply, allowed, 'P67', f'command {kind} of {length:#x} bytes')
            if kind == CMD_WRITE_ZEROES and not reply.error:
                t.equal(client.read(0, 4096), bytes(4096), 'P67', 'zeroed data')
                kept = b'B' * 4096 if length % 4096 == 0 else bytes(4095) + b'B'
                t.equal(client.read(length & ~4095, 4096), kept, 'P107', 'data at the far end')
        t.requests_in_step(client, 'P67', 'after long requests')


@case
def zero_lengths(t):
    """P86: requests of no bytes get an answer and no disconnect, also at and past the end"""
    for mode in t.modes():
        client = t.open(mode=mode)
        for offset in (0, 1, client.size, client.size + 1, 2**64 - 1):
            for kind, flag in ((CMD_READ, 1), (CMD_WRITE, 1), (CMD_TRIM, TF_TRIM),
                               (CMD_WRITE_ZEROES, TF_WRITE_ZEROES), (CMD_CACHE, TF_CACHE)):
                if client.offers(flag):
                    client.call(kind, offset, 0)
        t.requests_in_step(client, 'P86', 'after requests of no bytes')


@case
def flush(t):
    """P71: FLUSH is offered and answered after the writes it covers"""
    client = t.open()
    t.need(client.offers(TF_FLUSH), 'FLUSH')
    for turn in range(8):
        client.write(turn * 4096, bytes([turn]) * 4096)
        t.error(client.call(CMD_FLUSH), 0, 'P71')


@case
def flushed_data_outlives_a_kill(t):
    """P71, P72: what FLUSH or FUA acknowledged is in the file after the server is killed"""
    for how in ('flush', 'fua'):
        server = t.fresh_server(Spec(exports=(Export(size=4 * MIB, file=True),)))
        client = t.open(server)
        t.need(client.offers(TF_FLUSH if how == 'flush' else TF_FUA), how)
        marks = {offset: os.urandom(5000) for offset in (0, 100001, 4 * MIB - 5000)}
        for offset, mark in marks.items():
            client.write(offset, mark, CF_FUA if how == 'fua' else 0)
        if how == 'flush':
            t.error(client.call(CMD_FLUSH), 0, 'P71')
        server.kill()
        with open(server.image(0), 'rb') as disk:
            content = disk.read()
        for offset, mark in marks.items():
            t.equal(content[offset:offset + len(mark)], mark, 'P71', f'file at {offset} by {how}')


@case
def fua_on_every_command(t):
    """P72: once FUA is offered it is accepted on every command"""
    for mode in t.modes():
        meta = ('base:allocation',) if mode != nbdraw.SIMPLE and t.peer.complete else ()
        client = t.open(mode=mode, meta=meta)
        t.need(client.offers(TF_FUA), 'FUA')
        kinds = [(CMD_READ, 1), (CMD_WRITE, 1), (CMD_FLUSH, TF_FLUSH), (CMD_TRIM, TF_TRIM),
                 (CMD_WRITE_ZEROES, TF_WRITE_ZEROES), (CMD_CACHE, TF_CACHE)]
        for kind, flag in kinds + ([(CMD_BLOCK_STATUS, 1)] if meta else []):
            if not client.offers(flag):
                continue
            length = 0 if kind in (CMD_FLUSH, CMD_WRITE) else 4096
            payload = bytes(4096) if kind == CMD_WRITE else b''
            t.error(client.call(kind, 0, length, CF_FUA, payload), 0, 'P72', 'with FUA')


@case
def several_connections(t):
    """P73: CAN_MULTI_CONN is set, and FLUSH or FUA on one connection is seen on all"""
    clients = [t.open() for _ in range(4)]
    t.need(clients[0].offers(TF_MULTI_CONN), 'CAN_MULTI_CONN')
    for turn in range(32):
        writer, reader = clients[turn % 4], clients[(turn + 1) % 4]
        mark = bytes([turn + 1]) * 4096
        if turn % 2 and writer.offers(TF_FUA):
            writer.write(turn * 4096, mark, CF_FUA)
        else:
            writer.write(turn * 4096, mark)
            t.error(clients[(turn + 2) % 4].call(CMD_FLUSH), 0, 'P73', 'FLUSH elsewhere')
        t.equal(reader.read(turn * 4096, 4096), mark, 'P73', 'data on another connection')


@case
def read_only(t):
    """P76, P79, P33: a read-only export says so and answers every change with EPERM"""
    server = t.server(Spec(exports=(Export(readonly=True),)))
    for mode in t.modes():
        client = t.open(server, mode=mode)
        t.check(client.offers(TF_READ_ONLY), 'P76', 'READ_ONLY is clear')
        before = client.read(0, 65536)
        t.error(client.call(CMD_WRITE, 0, payload=b'\xff' * 4096), EPERM, 'P76', 'WRITE')
        t.error(client.call(CMD_WRITE_ZEROES, 0, 4096), EPERM, 'P76', 'WRITE_ZEROES')
        t.error(client.call(CMD_TRIM, 0, 4096), EPERM, 'P76', 'TRIM')
        t.equal(client.read(0, 65536), before, 'P76', 'data')
        if client.offers(TF_FLUSH):
            t.error(client.call(CMD_FLUSH), 0, 'P76', 'FLUSH')


@case
def failed_read(t):
    """P78, P88: a READ that fails has no payload and harms no other request"""
    spec = Spec(exports=(Export(filters=(Fault('read', 'EIO', where=(MIB, 4096)),)),))
    server = t.server(spec)
    for mode in t.modes():
        client = t.open(server, mode=mode)
        for offset, length in ((MIB, 4096), (MIB, 1), (MIB + 4095, 1), (MIB - 4096, 12288)):
            t.error(client.call(CMD_READ, offset, length), EIO, 'P78', f'READ {offset}+{length}')
            t.requests_in_step(client, 'P78', 'after a failed READ')
        t.error(client.call(CMD_READ, MIB + 4096, 4096), 0, 'P78', 'READ beside the bad range')
        t.error(client.call(CMD_READ, MIB - 4096, 4096), 0, 'P78', 'READ beside the bad range')


@case
def failed_large_read(t):
    """P78, P91: a large READ that fails at its end is an error, or a hard disconnect, no success"""
    bad = Fault('read', 'EIO', where=(40 * MIB, 512))
    server = t.server(Spec(exports=(Export(size=96 * MIB, filters=(bad,)),)))
    for mode in t.modes():
        for length in (8 * MIB, 32 * MIB):
            client = t.open(server, mode=mode)
            for where in (40 * MIB + 4096 - length, 40 * MIB - 4096):
                try:
                    reply = client.call(CMD_READ, where, length)
                    t.error(reply, EIO, 'P78', f'READ of {length} in {mode} mode')
                    t.requests_in_step(client, 'P78', 'after a failed large READ')
                except nbdraw.Closed:
                    t.check(mode == nbdraw.SIMPLE, 'P91', f'disconnected in {mode} mode')
                    client = t.open(server, mode=mode)


@case
def every_read_fails(t):
    """P78, P88: a disk that fails every READ gives EIO every time, in every mode"""
    server = t.server(Spec(exports=(Export(filters=(Fault('read', 'EIO'),)),)))
    for mode in t.modes():
        client = t.open(server, mode=mode)
        cookies = [client.submit(CMD_READ, i * 4096, 4096) for i in range(32)]
        for cookie in cookies:
            t.error(client.collect(cookie), EIO, 'P78', 'READ')
        client.write(0, b'x' * 512)


@case
def failed_write(t):
    """P79: a WRITE that fails has its payload consumed, and the next request is in step"""
    server = t.server(Spec(exports=(Export(filters=(Fault('write', 'EIO'),)),)))
    for mode in t.modes():
        client = t.open(server, mode=mode)
        for size in (1, 4096, 70000, 4 * MIB):
            t.error(client.call(CMD_WRITE, 0, payload=b'\x25' * size), EIO, 'P79',
                    f'WRITE of {size}')
            t.requests_in_step(client, 'P79', f'after a failed WRITE of {size}')


@case
def failed_flush_is_told_to_all(t):
    """P77: a backend that cannot flush is reported to every FLUSH waiting, on every connection"""
    server = t.server(Spec(exports=(Export(filters=(Fault('flush', 'EIO'),)),)))
    clients = [t.open(server, mode=mode) for mode in t.modes()] + [t.open(server)]
    for turn in range(3):
        for index, client in enumerate(clients):
            client.write(index * 4096, bytes([index]) * 4096)
        cookies = [(client, client.submit(CMD_FLUSH)) for client in clients for _ in range(4)]
        for client, cookie in cookies:
            t.error(client.collect(cookie), EIO, 'P77', 'FLUSH')
    for client in clients:
        t.requests_in_step(client, 'P77', 'after failed flushes')


@case
def failed_flush_is_not_retried(t):
    """P77: a flush that fails once is reported, not tried again in silence until it succeeds"""
    for mode in t.modes():
        server = t.fresh_server(Spec(exports=(Export(filters=(Fault('flush', 'EIO', nth=1),)),)))
        client = t.open(server, mode=mode)
        client.write(0, b'once' * 1024)
        t.error(client.call(CMD_FLUSH), EIO, 'P77', 'the FLUSH that failed')


@case
def failed_fua(t):
    """P77, P72: a WRITE with FUA reports the error of its disk"""
    server = t.server(Spec(exports=(Export(filters=(Fault('write', 'EIO'),)),)))
    for mode in t.modes():
        client = t.open(server, mode=mode)
        reply = client.call(CMD_WRITE, 0, flags=CF_FUA, payload=b'z' * 4096)
        t.error(reply, EIO, 'P77', 'WRITE with FUA')
        t.requests_in_step(client, 'P77', 'after a failed WRITE with FUA')
