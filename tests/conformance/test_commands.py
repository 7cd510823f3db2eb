# SPDX-License-Identifier: Apache-2.0
"""TRIM, WRITE_ZEROES, FAST_ZERO, CACHE: what they may and may not change (P82-P85)."""

import os

import nbdraw
from nbdraw import (CF_FAST_ZERO, CF_FUA, CF_NO_HOLE, CMD_CACHE, CMD_TRIM, CMD_WRITE_ZEROES, EINVAL,
                    ENOTSUP, TF_CACHE, TF_FAST_ZERO, TF_TRIM, TF_WRITE_ZEROES)
from servers import MIB, Export, Fault, Spec
from suite import case

FILE = Spec(exports=(Export(file=True),))
RANGES = ((0, 4096), (65536, 65536), (1, 1), (511, 2), (4095, 4098), (12345, 54321), (MIB, MIB))


def fill(client, size=4 * MIB):
    data = os.urandom(65536) * (size // 65536)
    client.write(0, data)
    return bytearray(data)


@case
def trim(t):
    """P82: TRIM succeeds, leaves its neighbours alone, and what it covers can be read"""
    for spec in (Spec(), FILE):
        client = t.open(t.server(spec))
        t.need(client.offers(TF_TRIM), 'TRIM')
        for offset, length in RANGES:
            model = fill(client)
            t.error(client.call(CMD_TRIM, offset, length), 0, 'P82', f'TRIM {offset}+{length}')
            got = client.read(0, len(model))
            t.equal(got[:offset], bytes(model[:offset]), 'P82', 'data before')
            t.equal(got[offset + length:], bytes(model[offset + length:]), 'P82', 'data behind')


@case
def write_zeroes(t):
    """P83: WRITE_ZEROES makes exactly its range read zero, with and without NO_HOLE and FUA"""
    for spec in (Spec(), FILE):
        client = t.open(t.server(spec))
        t.need(client.offers(TF_WRITE_ZEROES), 'WRITE_ZEROES')
        for flags in (0, CF_NO_HOLE, CF_NO_HOLE | CF_FUA):
            for offset, length in RANGES:
                model = fill(client)
                reply = client.call(CMD_WRITE_ZEROES, offset, length, flags)
                t.error(reply, 0, 'P83', f'{offset}+{length}, flags {flags}')
                model[offset:offset + length] = bytes(length)
                t.equal(client.read(0, len(model)), bytes(model), 'P83',
                        f'data after zeroing {offset}+{length}, flags {flags}')


@case
def fast_zero(t):
    """P84: FAST_ZERO zeroes or fails with ENOTSUP and no change; without it never ENOTSUP"""
    for spec in (Spec(), FILE):
        client = t.open(t.server(spec))
        t.need(client.offers(TF_FAST_ZERO), 'FAST_ZERO')
        for flags in (CF_FAST_ZERO, CF_FAST_ZERO | CF_NO_HOLE):
            for offset, length in RANGES:
                model = fill(client)
                reply = client.call(CMD_WRITE_ZEROES, offset, length, flags)
                t.error(reply, (0, ENOTSUP), 'P84', f'{offset}+{length}, flags {flags}')
                if not reply.error:
                    model[offset:offset + length] = bytes(length)
                t.equal(client.read(0, len(model)), bytes(model), 'P84', 'data')
        t.error(client.call(CMD_WRITE_ZEROES, 0, 4096), 0, 'P84', 'without FAST_ZERO')


@case
def fast_zero_not_offered(t):
    """P84, P117: FAST_ZERO is EINVAL where it was not offered"""
    client = t.open()
    if client.offers(TF_FAST_ZERO):
        # Offered: then it must at least be understood.
        reply = client.call(CMD_WRITE_ZEROES, 0, 4096, CF_FAST_ZERO)
        t.error(reply, (0, ENOTSUP), 'P84', 'offered')
        return
    t.need(client.offers(TF_WRITE_ZEROES), 'WRITE_ZEROES')
    t.error(client.call(CMD_WRITE_ZEROES, 0, 4096, CF_FAST_ZERO), EINVAL, 'P84', 'not offered')


@case
def cache(t):
    """P85: CACHE changes nothing, and rejects flags it does not know"""
    for spec in (Spec(), FILE):
        client = t.open(t.server(spec))
        t.need(client.offers(TF_CACHE), 'CACHE')
        model = fill(client)
        for offset, length in RANGES:
            client.call(CMD_CACHE, offset, length)
        t.equal(client.read(0, len(model)), bytes(model), 'P85', 'data')
        for bit in (1, 2, 3, 4, 6, 15):
            reply = client.call(CMD_CACHE, 0, 4096, 1 << bit)
            t.error(reply, EINVAL, 'P85', f'flag bit {bit}')


@case
def failing_commands(t):
    """P82, P83, P85, P72: TRIM, WRITE_ZEROES and CACHE that fail in the backend say so"""
    for op, kind, flag in (('trim', CMD_TRIM, TF_TRIM), ('zero', CMD_WRITE_ZEROES, TF_WRITE_ZEROES),
                           ('cache', CMD_CACHE, TF_CACHE)):
        server = t.server(Spec(exports=(Export(filters=(Fault(op, 'EIO'),)),)))
        for mode in t.modes():
            client = t.open(server, mode=mode)
            t.need(client.offers(flag), op)
            for flags in (0, CF_FUA):
                reply = client.call(kind, 0, 4096, flags)
                t.error(reply, nbdraw.EIO, 'P83', f'{op} in {mode} mode')
            t.requests_in_step(client, 'P83', f'after a failed {op}')
