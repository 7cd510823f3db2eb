# SPDX-License-Identifier: Apache-2.0
"""Metadata contexts in the handshake (P37-P44, P116)."""

import struct

import nbdraw
from nbdraw import (CMD_BLOCK_STATUS, EINVAL, ERR_INVALID, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP,
                    EXTENDED, OPT_LIST_META, OPT_SET_META, REP_ACK, STRUCTURED, pack_meta)
from servers import Export, Spec
from suite import case

BASE = 'base:allocation'
BOTH = (STRUCTURED, EXTENDED)


def ready(t, mode=STRUCTURED, server=None):
    """A connection that may ask for contexts."""
    client = t.greet(server)
    t.need(client.use_mode(mode), f'{mode} replies')
    return client


def ask(t, client, option, data):
    result = client.option(option, data)
    t.need(result.final != ERR_UNSUP, 'metadata contexts')
    return result


def names(result):
    return sorted(name for _, name in result.contexts())


def status_of(client):
    """Error of a BLOCK_STATUS request, 0 if the server has contexts selected."""
    return client.call(CMD_BLOCK_STATUS, 0, 4096).error


@case
def list_without_queries(t):
    """P38, P44: LIST with no query gives every context, well named, with id 0"""
    for mode in t.modes(BOTH):
        client = ready(t, mode)
        result = ask(t, client, OPT_LIST_META, pack_meta(client.default_name))
        client.must_ack(result, 'P38')
        t.check(BASE in names(result), 'P38', f'only {names(result)}')
        t.check(all(i == 0 for i, _ in result.contexts()), 'P38', 'an id in a LIST reply is not 0')
        t.check(len(set(names(result))) == len(names(result)), 'P38', f'twice in {names(result)}')
        for name in names(result):
            space, colon, _ = name.partition(':')
            t.check(space and colon and space.isprintable() and ' ' not in space, 'P44', name)
            t.check(space in ('base', 'nbd-server', 'qemu') or space.startswith('x-'), 'P44',
                    f'namespace of {name} is not registered')


@case
def list_with_queries(t):
    """P38, P37, P39: LIST gives what matches: exact names, the base: wildcard, nothing unknown"""
    client = ready(t)
    found = {
        (BASE,): [BASE],
        ('base:',): [BASE],
        ('base:nonsense',): [],
        ('x-nobody:anything',): [],
        ('x-nobody:',): [],
        ('x-nobody:anything', BASE): [BASE],
        ('base:allocatio', 'base:allocation2', 'BASE:allocation'): [],
    }
    for queries, wanted in found.items():
        result = ask(t, client, OPT_LIST_META, pack_meta(client.default_name, queries))
        client.must_ack(result, 'P38')
        t.equal(names(result), wanted, 'P39', f'contexts for {queries}')


@case
def context_given_once(t):
    """P38, P40: a context asked for by several queries is given once"""
    client = ready(t)
    for option in (OPT_LIST_META, OPT_SET_META):
        result = ask(t, client, option,
                     pack_meta(client.default_name, (BASE, 'base:', BASE, BASE)))
        client.must_ack(result, 'P40')
        t.equal(names(result), [BASE], 'P40', f'contexts of option {option}')


@case
def set_selects(t):
    """P40, P116: SET of base:allocation selects it, and never needs extended headers"""
    for mode in t.modes(BOTH):
        client = ready(t, mode)
        result = client.set_meta()
        t.need(result.final != ERR_UNSUP, 'metadata contexts')
        client.must_ack(result, 'P116')
        t.equal(list(client.contexts.values()), [BASE], 'P40', 'selection')
        client.must_ack(client.go(), 'P40')
        t.equal(status_of(client), 0, 'P40', 'error of BLOCK_STATUS')


@case
def set_ignores_wildcard_and_unknown(t):
    """P39, P37, P40: SET ignores base:, unknown leaves and unknown namespaces"""
    client = ready(t)
    for queries in (('base:',), ('base:unknown',), ('x-nobody:home',), ('base:', 'x-a:b'), ()):
        result = client.set_meta(queries)
        t.need(result.final != ERR_UNSUP, 'metadata contexts')
        client.must_ack(result, 'P37')
        t.equal(client.contexts, {}, 'P39', f'contexts selected by {queries}')
    client.must_ack(client.go(), 'P40')
    t.equal(status_of(client), EINVAL, 'P40', 'error of BLOCK_STATUS with nothing selected')


@case
def set_replaces(t):
    """P40: a later SET replaces the selection: with nothing, or with it again"""
    for queries, wanted in (((), EINVAL), (('x-nobody:home',), EINVAL), ((BASE,), 0)):
        client = ready(t)
        t.need(client.set_meta().final != ERR_UNSUP, 'metadata contexts')
        client.must_ack(client.set_meta(queries), 'P40')
        client.must_ack(client.go(), 'P40')
        t.equal(status_of(client), wanted, 'P40', f'error of BLOCK_STATUS after SET of {queries}')


@case
def failed_set_replaces(t):
    """P40, P122: a SET that fails leaves nothing selected, wherever its fault lies"""
    faults = {
        'short data': b'\0\0',
        'query past the end': pack_meta('', (BASE,))[:-1],
        'count too large': pack_meta('', (BASE,), count=2),
        'data of more than 16 KiB': b'\xff' * 16385,
    }
    for what, data in faults.items():
        client = ready(t)
        t.need(client.set_meta().final != ERR_UNSUP, 'metadata contexts')
        t.final(client.option(OPT_SET_META, data), (ERR_INVALID, ERR_TOO_BIG), 'P40', what)
        client.contexts = {}
        client.must_ack(client.go(), 'P40')
        t.equal(status_of(client), EINVAL, 'P40', f'error of BLOCK_STATUS after SET with {what}')


@case
def set_for_missing_export(t):
    """P40, P27: SET for an export that does not exist gets ERR_UNKNOWN and selects nothing"""
    server = t.server(Spec(exports=(Export('alpha'),)))
    client = ready(t, server=server)
    t.need(client.set_meta(export='alpha').final != ERR_UNSUP, 'metadata contexts')
    t.final(client.set_meta(export='missing'), ERR_UNKNOWN, 'P27')
    client.must_ack(client.go('alpha'), 'P40')
    t.equal(status_of(client), EINVAL, 'P40', 'error of BLOCK_STATUS')


@case
def other_export_drops_selection(t):
    """P43: contexts selected for one export are gone if GO names another"""
    server = t.server(Spec(exports=(Export('alpha', 1 << 20), Export('beta', 2 << 20))))
    client = ready(t, server=server)
    t.need(client.set_meta(export='alpha').final != ERR_UNSUP, 'metadata contexts')
    client.contexts = {}
    client.must_ack(client.go('beta'), 'P43')
    t.equal(status_of(client), EINVAL, 'P43', 'error of BLOCK_STATUS')
    client = ready(t, server=server)
    client.must_ack(client.set_meta(export='alpha'), 'P43')
    client.must_ack(client.info('beta'), 'P43')
    client.must_ack(client.go('alpha'), 'P43')
    t.equal(status_of(client), 0, 'P43', 'error of BLOCK_STATUS after INFO of another export')


@case
def set_before_structured(t):
    """P41, P116: SET without structured replies or extended headers gets ERR_INVALID"""
    client = t.greet()
    result = ask(t, client, OPT_SET_META, pack_meta(client.default_name, (BASE,)))
    t.final(result, ERR_INVALID, 'P41')
    result = client.option(OPT_LIST_META, pack_meta(client.default_name))
    t.final(result, (ERR_INVALID, REP_ACK), 'P41', 'LIST')
    client.must_ack(client.go(), 'P41')
    t.requests_in_step(client, 'P41', 'after a refused SET')


@case
def malformed_queries(t):
    """P37, P122, P11: lengths that disagree get one ERR_INVALID and the next option is in step"""
    good = pack_meta('', (BASE, 'x-a:b'))
    bad = {
        'no data': b'',
        'half a name length': b'\0\0\0',
        'name past the end': struct.pack('>I', 100) + good[4:],
        'name to the very end': struct.pack('>I', len(good) - 4) + good[4:],
        'name that wraps': struct.pack('>I', 0xfffffffc) + good[4:],
        'name of 4 GiB': struct.pack('>I', 0xffffffff) + good[4:],
        'no count': good[:4],
        'half a count': good[:6],
        'count without queries': pack_meta('', (), count=1),
        'count too large': pack_meta('', (BASE,), count=2),
        'count of 4 GiB': pack_meta('', (BASE,), count=0xffffffff),
        'query past the end': good[:-1],
        'query length past the end': good[:8] + struct.pack('>I', 1000) + good[12:],
        'query of 4 GiB': good[:8] + struct.pack('>I', 0xffffffff) + good[12:],
        'query that wraps': good[:8] + struct.pack('>I', 0xfffffff4) + good[12:],
        'trailing byte': good + b'\0',
        'trailing query': pack_meta('', (BASE, BASE), count=1),
    }
    for option in (OPT_LIST_META, OPT_SET_META):
        for what, data in bad.items():
            client = ready(t)
            # Bytes left over break no MUST of the text, but may not be taken for an option.
            wanted = (ERR_INVALID, REP_ACK) if what.startswith('trailing') else ERR_INVALID
            t.final(ask(t, client, option, data), wanted, 'P37', what)
            t.options_in_step(client, 'P122', what)
            client.must_ack(client.go(), 'P122')
            t.requests_in_step(client, 'P122', what)


@case
def query_without_colon(t):
    """P37: a query without a namespace is refused or ignored, never selected"""
    for query in ('allocation', '', 'base', ':allocation'):
        client = ready(t)
        result = ask(t, client, OPT_SET_META, pack_meta(client.default_name, (query,)))
        t.final(result, (ERR_INVALID, REP_ACK), 'P37', f'query {query!r}')
        t.equal(result.contexts() if result.ok else [], [], 'P37', f'contexts for {query!r}')
        t.options_in_step(client, 'P37', f'query {query!r}')


@case
def many_queries(t):
    """P41, P38: very many queries are answered or get ERR_TOO_BIG, in step"""
    for count in (100, 500):
        client = ready(t)
        queries = [f'x-q{i}:leaf' for i in range(count)] + [BASE]
        for option in (OPT_LIST_META, OPT_SET_META):
            result = ask(t, client, option, pack_meta(client.default_name, queries))
            t.final(result, (REP_ACK, ERR_TOO_BIG), 'P41', f'{count} queries')
            if result.ok:
                t.equal(names(result), [BASE], 'P38', f'contexts of {count} queries')
        t.options_in_step(client, 'P41', f'after {count} queries')


@case
def long_query(t):
    """P37, P1: a query of 4096 bytes is ignored like any unknown one; a longer one is survived"""
    client = ready(t)
    result = ask(t, client, OPT_LIST_META,
                 pack_meta(client.default_name, ('x-' + 'q' * 4090 + ':abc', BASE)))
    t.final(result, REP_ACK, 'P37')
    t.equal(names(result), [BASE], 'P37', 'contexts')
    result = client.option(OPT_LIST_META,
                           pack_meta(client.default_name, ('x-' + 'q' * 5000 + ':',)))
    t.final(result, (REP_ACK, ERR_INVALID, ERR_TOO_BIG), 'P1', 'query of 5003 bytes')
    t.options_in_step(client, 'P1', 'after a long query')
