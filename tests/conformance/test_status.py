# SPDX-License-Identifier: Apache-2.0
"""BLOCK_STATUS and base:allocation (P100-P107).  The judge of each reply is replies.py."""

import os
import random

from nbdraw import (CF_FUA, CF_NO_HOLE, CF_REQ_ONE, CMD_BLOCK_STATUS, CMD_WRITE, CMD_WRITE_ZEROES,
                    EINVAL, EIO, EXTENDED, STRUCTURED, TF_WRITE_ZEROES)
from servers import GIB, MIB, Export, Fault, Spec
from suite import case

META = ('base:allocation',)
ZERO = 2
BOTH = (STRUCTURED, EXTENDED)
FILE = Spec(exports=(Export(size=32 * MIB, file=True),))
BIG = Spec(exports=(Export(size=8 * GIB, file=True),))


def extents(t, client, offset, length, flags=0):
    reply = client.call(CMD_BLOCK_STATUS, offset, length, flags)
    t.error(reply, 0, 'P100', f'BLOCK_STATUS {offset:#x}+{length:#x}')
    return next(iter(reply.extents.values()))


def walk(t, client, begin, end, step):
    """All extents of [begin, end), asked for step bytes at a time, merged, as (at, len, status)."""
    at, merged = begin, []
    while at < end:
        for length, status in extents(t, client, at, min(step, end - at)):
            length = min(length, end - at)
            if merged and merged[-1][2] == status:
                merged[-1][1] += length
            else:
                merged.append([at, length, status])
            at += length
            if at >= end:
                break
    return merged


@case
def status_tells_the_truth(t):
    """P100, P101, P105: what is called ZERO reads as zeroes, and written data is not called so"""
    rng = random.Random(5)
    for spec in (Spec(), FILE):
        server = t.server(spec)
        for mode in t.modes(BOTH):
            client = t.open(server, mode=mode, meta=META)
            size = 16 * MIB
            client.call(CMD_WRITE_ZEROES, 0, size)
            for turn in range(12):
                at = rng.randrange(0, size - 200000)
                client.write(at, rng.randbytes(rng.randrange(1, 200000)))
            data = client.read(0, size)
            for step in (size, MIB + 512, 65536):
                found = walk(t, client, 0, size, step)
                t.equal(sum(length for _, length, _ in found), size, 'P101', 'sum of extents')
                for at, length, status in found:
                    if status & ZERO:
                        t.check(not any(data[at:at + length]), 'P105',
                                f'{at}+{length} is called ZERO and is not')


@case
def holes_are_found(t):
    """P105: a sparse file shows its holes and its data"""
    client = t.open(t.server(Spec(exports=(Export(size=48 * MIB, file=True),))),
                    mode=STRUCTURED, meta=META)
    client.write(8 * MIB, b'd' * MIB)
    found = walk(t, client, 0, client.size, client.size)
    data = [(at, length) for at, length, status in found if not status & ZERO]
    t.equal(data, [(8 * MIB, MIB)], 'P105', 'extents with data')


@case
def no_hole_provisions(t):
    """P105, P83: WRITE_ZEROES with NO_HOLE takes up the space of its range in the file"""
    server = t.fresh_server(FILE)
    client = t.open(server, mode=STRUCTURED, meta=META)
    t.need(client.offers(TF_WRITE_ZEROES), 'WRITE_ZEROES')
    before = os.stat(server.image(0)).st_blocks * 512
    t.error(client.call(CMD_WRITE_ZEROES, 8 * MIB, 4 * MIB, CF_NO_HOLE | CF_FUA), 0, 'P83')
    taken = os.stat(server.image(0)).st_blocks * 512 - before
    t.check(taken >= 4 * MIB, 'P83', f'4 MiB without a hole took {taken} bytes')
    t.equal(client.read(8 * MIB, 4 * MIB), bytes(4 * MIB), 'P83', 'data')
    # A file system may show such space as a hole; if HOLE is clear, a WRITE has to succeed.
    extents(t, client, 8 * MIB, 4 * MIB)
    client.write(8 * MIB, b'p' * 4 * MIB)


@case
def one_extent(t):
    """P102: REQ_ONE gives one extent, no longer than the request, for any request"""
    for mode in t.modes(BOTH):
        client = t.open(t.server(FILE), mode=mode, meta=META)
        client.write(MIB, b'1' * 4096)
        for offset, length in ((0, 1), (0, 4096), (0, client.size), (MIB - 4096, 8192),
                               (MIB, 4096), (MIB, client.size - MIB), (client.size - 1, 1)):
            for flags in (CF_REQ_ONE, CF_REQ_ONE | CF_FUA):
                t.equal(len(extents(t, client, offset, length, flags)), 1, 'P102', 'extents')


@case
def last_extent_stays_inside(t):
    """P101, P100: no extent runs past the export, also when its size is odd"""
    for spec in (Spec(), Spec(exports=(Export(size=123456789),)),
                 Spec(exports=(Export(size=12345677, file=True),))):
        for mode in t.modes(BOTH):
            client = t.open(t.server(spec), mode=mode, meta=META)
            for back in (1, 2, 511, 513, 4097, 65536):
                extents(t, client, client.size - back, back)
                extents(t, client, client.size - back, 1)
            # Not aligned in either respect.
            extents(t, client, 1, 1)
            extents(t, client, 4095, 2)


@case
def progress_over_8_gib(t):
    """P107, P101, P103: 8 GiB are walked by requests near 4 GiB, no extent lost or wrapped"""
    server = t.server(BIG)
    writer = t.open(server)
    writer.write(4 * GIB - 4096, b'edge' * 2048)
    writer.write(6 * GIB, b'data' * 1024)
    for mode in t.modes(BOTH):
        client = t.open(server, mode=mode, meta=META)
        steps = [0xffffffff, 0xfffff000, 0x80000000] + ([2**33, 2**32] if mode == EXTENDED else [])
        for step in steps:
            found = walk(t, client, 0, client.size, step)
            t.equal(sum(length for _, length, _ in found), 8 * GIB, 'P107', f'sum by {step:#x}')
            for at, length, status in found:
                for mark in (4 * GIB - 4096, 4 * GIB, 6 * GIB):
                    t.check(not (at <= mark < at + length and status & ZERO), 'P107',
                            f'data at {mark:#x} is called ZERO, asked by {step:#x}')


@case
def status_at_32_bit_edges(t):
    """P107, P102: requests that end or begin at 4 GiB, and REQ_ONE of 4 GiB, are not cut to 0"""
    client = t.open(t.server(BIG), mode=STRUCTURED, meta=META)
    for offset, length in ((0, 0xffffffff), (1, 0xffffffff), (4 * GIB - 1, 2),
                           (4 * GIB, 0xffffffff), (4 * GIB - 512, 0xfffffe00),
                           (8 * GIB - 0xffffffff, 0xffffffff), (8 * GIB - 1, 1)):
        extents(t, client, offset, length)
        extents(t, client, offset, length, CF_REQ_ONE)


@case
def without_selection(t):
    """P104: BLOCK_STATUS with nothing selected is EINVAL, in every mode, in step"""
    for mode in t.modes():
        client = t.open(mode=mode)
        for length in (512, 65536, 0xffffffff):
            t.error(client.call(CMD_BLOCK_STATUS, 0, length), EINVAL, 'P104', f'in {mode} mode')
        t.requests_in_step(client, 'P104', 'after BLOCK_STATUS without a context')


@case
def out_of_range(t):
    """P104, P68: BLOCK_STATUS past the end, or wrapping, is EINVAL"""
    for mode in t.modes(BOTH):
        client = t.open(mode=mode, meta=META)
        for offset, length in ((client.size, 1), (client.size - 1, 2), (2**64 - 1, 1),
                               (2**64 - 512, 1024), (2**63, 512), (0, client.size + 1)):
            for flags in (0, CF_REQ_ONE):
                t.error(client.call(CMD_BLOCK_STATUS, offset, length, flags), EINVAL, 'P104',
                        f'{offset:#x}+{length:#x}')
        t.requests_in_step(client, 'P104', 'after BLOCK_STATUS out of range')


@case
def many_extents(t):
    """P103, P100: thousands of alternating extents come in lawful pieces and tell the truth"""
    client = t.open(t.fresh_server(FILE), mode=STRUCTURED, meta=META)
    step = 65536
    for at in range(0, client.size, 2 * step):
        client.submit(CMD_WRITE, at, payload=b'#' * step)
    for _ in range(0, client.size, 2 * step):
        t.error(client.collect_next(), 0, 'P103', 'WRITE')
    found = walk(t, client, 0, client.size, client.size)
    for at, length, status in found:
        if status & ZERO:
            t.check(at % (2 * step) >= step and length <= step, 'P103', f'{at}+{length} is ZERO')
    t.check(len(found) in (1, 512), 'P103', f'{len(found)} extents')


@case
def failing_status(t):
    """P100, P105: extents that cannot be found out give an error or one extent of status 0"""
    server = t.server(Spec(exports=(Export(filters=(Fault('extents', 'EIO'),)),)))
    for mode in t.modes(BOTH):
        client = t.open(server, mode=mode, meta=META)
        reply = client.call(CMD_BLOCK_STATUS, 0, 65536)
        t.error(reply, (EIO, 0), 'P100')
        if not reply.error:
            t.equal(list(reply.extents.values()), [[(65536, 0)]], 'P105', 'extents')
        t.requests_in_step(client, 'P100', 'after a failed BLOCK_STATUS')
