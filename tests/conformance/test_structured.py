# SPDX-License-Identifier: Apache-2.0
"""Reads in chunks: coverage, holes, errors, DF (P88-P95).  The judge itself is replies.py."""

import random

import nbdraw
from nbdraw import (CF_DF, CF_FAST_ZERO, CF_FUA, CF_NO_HOLE, CF_REQ_ONE, CMD_FLUSH, CMD_READ,
                    CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, EINVAL, EIO, EOVERFLOW,
                    EXTENDED, STRUCTURED, TF_DF)
from replies import CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, REPLY_DONE
from servers import GIB, MIB, Export, Fault, Spec
from suite import case

CHUNKED = (STRUCTURED, EXTENDED)
SPARSE = Spec(exports=(Export(size=16 * MIB, file=True),))


def content(reply):
    return [c for c in reply.chunks if c[0] in (CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE)]


@case
def chunks_cover_the_read(t):
    """P88, P89, P90, P94: chunks of data and holes cover each READ once, DONE on the last"""
    rng = random.Random(4)
    for spec in (Spec(), SPARSE):
        server = t.server(spec)
        for mode in t.modes(CHUNKED):
            client = t.open(server, mode=mode)
            model = bytearray(client.read(0, 8 * MIB))
            for turn in range(30):
                at = rng.randrange(0, 8 * MIB - MIB) & (~4095 if turn % 2 else ~0)
                data = rng.randbytes(rng.choice((1, 512, 4096, 65536, 300000)))
                client.write(at, data)
                model[at:at + len(data)] = data
            for turn in range(60):
                at = rng.randrange(0, 8 * MIB - 2 * MIB)
                size = rng.choice((1, 2, 511, 4096, 65537, MIB, 2 * MIB))
                reply = client.call(CMD_READ, at, size)
                t.error(reply, 0, 'P90', f'READ {at}+{size}')
                t.equal(reply.data, bytes(model[at:at + size]), 'P90', f'READ {at}+{size}')
                t.equal([f & REPLY_DONE for _, f, _ in reply.chunks].index(REPLY_DONE),
                        len(reply.chunks) - 1, 'P89', 'place of the chunk with DONE')


@case
def errors_of_reads_are_chunks(t):
    """P88, P92: a READ that fails early is answered by an error chunk, with a text"""
    for mode in t.modes(CHUNKED):
        client = t.open(mode=mode)
        for offset, length, flags in ((client.size, 512, 0), (2**64 - 512, 1024, 0),
                                      (0, 512, CF_REQ_ONE), (0, 512, CF_NO_HOLE),
                                      (0, 512, CF_FAST_ZERO), (0, 512, 1 << 15)):
            reply = client.call(CMD_READ, offset, length, flags)
            t.error(reply, EINVAL, 'P88', f'READ {offset:#x}+{length} flags {flags:#x}')
            t.check(not reply.simple and reply.errors, 'P88', 'no error chunk')
            t.check(reply.text or not t.peer.complete, 'P92', 'error chunk without a text')


@case
def errors_of_other_commands(t):
    """P88: errors of other commands come as error chunks with a text"""
    for mode in t.modes(CHUNKED):
        client = t.open(mode=mode)
        for reply in (client.call(CMD_WRITE, client.size, payload=bytes(512)),
                      client.call(CMD_TRIM, client.size, 512), client.call(77),
                      client.call(CMD_FLUSH, flags=1 << 15)):
            t.check(reply.error, 'P88', 'no error')
            t.check(not reply.simple and reply.text, 'P88',
                    f'command {reply.request.kind}: simple reply or no text')


@case
def error_in_the_middle(t):
    """P91, P92, P89: a disk error inside a READ ends it with an error chunk, in step"""
    spec = Spec(exports=(Export(filters=(Fault('read', 'EIO', where=(2 * MIB, 512)),)),))
    server = t.server(spec)
    for mode in t.modes(CHUNKED):
        client = t.open(server, mode=mode)
        for offset, length in ((2 * MIB, 512), (2 * MIB - 65536, 131072), (0, 4 * MIB),
                               (2 * MIB + 511, 1), (MIB, MIB + 1)):
            for flags in (0, CF_DF):
                reply = client.call(CMD_READ, offset, length, flags)
                t.error(reply, EIO, 'P91', f'READ {offset}+{length} flags {flags}')
                t.check(reply.errors, 'P92', 'no error chunk')
                for _, at in reply.errors:
                    t.check(at is None or 2 * MIB - 65536 <= at < 2 * MIB + 512, 'P92',
                            f'error offset {at}')
        t.error(client.call(CMD_READ, 0, 2 * MIB), 0, 'P91', 'READ up to the bad block')
        t.error(client.call(CMD_READ, 2 * MIB + 512, MIB), 0, 'P91', 'READ behind the bad block')


@case
def error_among_good_reads(t):
    """P91, P69: of many READs in flight only those that touch the bad block fail"""
    spec = Spec(exports=(Export(filters=(Fault('read', 'EIO', where=(2 * MIB, 512)),)),))
    server = t.server(spec)
    for mode in t.modes():
        client = t.open(server, mode=mode)
        asked = {}
        for number in range(64):
            asked[client.submit(CMD_READ, number * 65536, 65536)] = number
        for _ in range(64):
            reply = client.collect_next()
            number = asked[reply.request.cookie]
            t.error(reply, EIO if number == 32 else 0, 'P91', f'block {number}')


@case
def do_not_fragment(t):
    """P93: DF gives one content chunk up to 64 KiB and beyond, or EOVERFLOW beyond"""
    server = t.server(SPARSE)
    for mode in t.modes(CHUNKED):
        client = t.open(server, mode=mode)
        t.need(client.offers(TF_DF), 'DF')
        t.error(client.call(CMD_WRITE_ZEROES, MIB, 2 * MIB), 0, 'P93', 'WRITE_ZEROES')
        client.write(MIB, b'd' * 4096)
        client.write(MIB + 8192, b'd' * 4096)
        wanted = (b'd' * 4096 + bytes(4096)) * 2 + bytes(MIB)
        for length in (1, 512, 4096, 12288, 65535, 65536):
            for flags in (CF_DF, CF_DF | CF_FUA):
                reply = client.call(CMD_READ, MIB, length, flags)
                t.error(reply, 0, 'P93', f'DF of {length}')
                t.equal(len(content(reply)), 1, 'P93', 'content chunks')
                t.equal(reply.data, wanted[:length], 'P93', f'data of DF {length}')
        for length in (65537, MIB):
            reply = client.call(CMD_READ, MIB, length, CF_DF)
            t.error(reply, (0, EOVERFLOW), 'P93', f'DF of {length}')
            t.equal(len(content(reply)), 0 if reply.error else 1, 'P93', 'content chunks')
            if not reply.error:
                t.equal(reply.data, wanted[:length], 'P93', f'data of DF {length}')


@case
def df_without_chunks(t):
    """P93, P33, P117: without structured replies DF is not offered, and is EINVAL if used"""
    client = t.open()
    t.check(not client.offers(TF_DF), 'P33', 'DF offered for simple replies')
    t.error(client.call(CMD_READ, 0, 512, CF_DF), EINVAL, 'P93', 'DF on a simple connection')
    t.requests_in_step(client, 'P117', 'after DF')


@case
def reads_over_the_limit(t):
    """P95, P94: a READ over the payload limit is split into lawful chunks or gets EOVERFLOW"""
    server = t.server(Spec(exports=(Export(size=GIB),)))
    for mode in t.modes(CHUNKED):
        client = t.open(server, mode=mode)
        t.need(client.max_payload and client.max_payload <= 512 * MIB, 'limited maximum payload')
        reply = client.call(CMD_READ, 0, client.max_payload + 4096)
        t.error(reply, (0, EINVAL, EOVERFLOW), 'P95', 'READ over the limit')
        t.requests_in_step(client, 'P95', 'after a READ over the limit')


@case
def modes_do_not_leak(t):
    """P88, P110: connections of different reply modes at once each keep to their own"""
    clients = [t.open(mode=mode) for mode in t.modes()]
    for client in clients:
        for turn in range(8):
            client.submit(CMD_READ, turn * 4096, 4096)
    for client in clients:
        for _ in range(8):
            t.error(client.collect_next(), 0, 'P88', f'READ in {client.mode} mode')


@case
def structured_after_info(t):
    """P88, P35: structured replies agreed after INFO of the export still hold after GO"""
    client = t.greet()
    client.must_ack(client.info(requests=(nbdraw.INFO_BLOCK_SIZE,)), 'P35')
    t.need(client.use_mode(STRUCTURED), 'structured replies')
    client.must_ack(client.go(), 'P35')
    reply = client.call(CMD_READ, 0, 4096)
    t.check(not reply.simple, 'P88', 'simple reply to READ')


@case
def structured_after_export_name(t):
    """P88, P31: structured replies hold after EXPORT_NAME as well"""
    client = t.greet()
    t.need(client.use_mode(STRUCTURED), 'structured replies')
    client.export_name()
    t.requests_in_step(client, 'P88', 'structured READ after EXPORT_NAME')
