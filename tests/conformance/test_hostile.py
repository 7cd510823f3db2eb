# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes: lengths, orders, echoes and closes that a peer may send (P122-P125, P130).

Each test keeps a witness: a connection that was there before does verified I/O afterwards, a new
one is served, and the server's memory has not grown with what was claimed.
"""

import os
import random
import struct

import nbdraw
from nbdraw import (CF_PAYLOAD_LEN, CMD_BLOCK_STATUS, CMD_DISC, CMD_FLUSH, CMD_READ, CMD_WRITE,
                    ERR_INVALID, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP, EXTENDED, OPT_ABORT,
                    OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST,
                    OPT_LIST_META, OPT_SET_META, OPT_STARTTLS, OPT_STRUCTURED_REPLY, SIMPLE,
                    STRUCTURED, pack_info, pack_meta, pack_option, pack_request)
from servers import MIB, Delay, Export, Spec
from suite import case

META = ('base:allocation',)
NAMED = Spec(exports=(Export('alpha'),))
ALL_OPTIONS = (OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, 4, OPT_STARTTLS, OPT_INFO, OPT_GO,
               OPT_STRUCTURED_REPLY, OPT_LIST_META, OPT_SET_META, OPT_EXTENDED_HEADERS, 12345)


def try_send(client, data):
    """Send what the server may refuse to take; False if it closed first."""
    try:
        client.send(data)
        return True
    except nbdraw.Closed:
        return False


@case
def option_length_claims(t):
    """P123, P122, P130: options that claim up to 4 GiB and send little are let go at the close"""
    with t.witness():
        for length in (0xffffffff, 0xfffffffe, 0x80000000, 0x7fffffff, 0x10000000, 70000):
            clients = []
            for option in ALL_OPTIONS:
                client = t.greet()
                try_send(client, pack_option(option, b'\xff' * 512, length=length))
                clients.append(client)
            for client in clients:
                client.half_close()
            for client in clients:
                client.drain()
                client.close()


@case
def option_data_streamed(t):
    """P123, P122: 64 MiB of option data are refused or skipped, never stored"""
    chunk = b'\x5a' * MIB
    for option in ALL_OPTIONS:
        with t.witness():
            client = t.greet()
            alive = try_send(client, pack_option(option, length=64 * MIB))
            for _ in range(64):
                alive = alive and try_send(client, chunk)
            if not alive:
                continue
            try:
                # Skipped: one error, and the stream in step behind it.
                result = client.recv_option_result(option)
                t.check(result.final & nbdraw.REP_ERR or option == OPT_ABORT, 'P123',
                        f'option {option} with 64 MiB got {result.name}')
                if option != OPT_ABORT:
                    t.options_in_step(client, 'P122', f'after 64 MiB of option {option}')
            except nbdraw.Closed:
                pass


@case
def moderate_option_data(t):
    """P122, P123, P10: data beyond any cap is skipped to the byte or the connection closed"""
    for option in (OPT_LIST, OPT_INFO, OPT_GO, OPT_LIST_META, OPT_SET_META, OPT_STRUCTURED_REPLY,
                   OPT_STARTTLS, 999):
        for size in (4097, 16384, 16385, 65536, 100000):
            client = t.greet()
            client.use_mode(STRUCTURED)
            try:
                # All bytes ones: every nested length is 4 GiB.
                result = client.option(option, b'\xff' * size)
                t.final(result, (ERR_INVALID, ERR_TOO_BIG, ERR_UNSUP, nbdraw.ERR_POLICY), 'P122',
                        f'with {size} bytes')
                t.options_in_step(client, 'P122', f'after {size} bytes of option {option}')
            except nbdraw.Closed:
                t.check(size > 4097, 'P123', f'option {option} with {size} bytes disconnected')


@case
def export_name_lengths(t):
    """P123, P130, P124: EXPORT_NAME of 4 GiB, 2 GiB and just over the limit is no name at all"""
    server = t.server(NAMED)
    with t.witness(server):
        for length, sent in ((0xffffffff, 0), (0xffffffff, 5000), (0x80000000, 5000), (4097, 4097),
                             (65536, 65536), (257, 257), (1 << 20, 1 << 20)):
            client = t.greet(server)
            try_send(client, pack_option(OPT_EXPORT_NAME, b'n' * sent, length=length))
            client.half_close()
            rest = client.drain()
            t.equal(rest, b'', 'P31', f'answer to a name of {length} bytes')


@case
def request_length_claims(t):
    """P124, P66, P130: WRITEs that claim up to 4 GiB and stop are let go without the memory"""
    with t.witness():
        for mode in t.modes():
            clients = []
            for length in (0xffffffff, 0xfffffffe, 0x80000000, 64 * MIB, 32 * MIB, 32 * MIB + 1):
                for _ in range(4):
                    client = t.open(mode=mode)
                    flags = CF_PAYLOAD_LEN if mode == EXTENDED else 0
                    try_send(client,
                             pack_request(CMD_WRITE, 1, 0, length, flags, b'w' * 4096, mode))
                    clients.append(client)
            for client in clients:
                client.half_close()
            for client in clients:
                client.drain()
                client.close()


@case
def write_claims_held_open(t):
    """P130, P69: many WRITEs that never complete do not keep others from being served"""
    with t.witness() as witness:
        stuck = []
        for number in range(40):
            client = t.open()
            client.send(pack_request(CMD_WRITE, 1, MIB, 32 * MIB, 0, b'q' * 1000))
            stuck.append(client)
        for turn in range(20):
            t.requests_in_step(witness, 'P130', 'beside stuck WRITEs')
        mark = os.urandom(8 * MIB)
        witness.write(8 * MIB, mark)
        t.equal(witness.read(8 * MIB, 8 * MIB), mark, 'P130', 'data beside stuck WRITEs')
        for client in stuck:
            client.close()


@case
def read_length_claims(t):
    """P124, P64, P94: READs of up to 4 GiB on 64 MiB fail cleanly, hundreds at a time"""
    with t.witness():
        for mode in t.modes():
            client = t.open(mode=mode)
            cookies = []
            for turn in range(200):
                length = (0xffffffff, 0x80000000, 0xfffff000)[turn % 3]
                cookies.append(client.submit(CMD_READ, turn * 512, length))
            for cookie in cookies:
                t.error(client.collect(cookie), (nbdraw.EINVAL, nbdraw.EOVERFLOW), 'P64', 'READ')
            t.requests_in_step(client, 'P64', 'after huge READs')


@case
def unread_replies(t):
    """P130, P124: a client that asks for gigabytes and reads nothing costs bounded memory"""
    with t.witness() as witness:
        deaf = t.open()
        # Take nothing in while sending, so that the replies pile up on the server's side.
        request = b''.join(pack_request(CMD_READ, i, 0, 16 * MIB) for i in range(128))
        deaf.sock.settimeout(0.5)
        try:
            deaf.sock.sendall(request)
        except OSError:
            pass
        for turn in range(20):
            t.requests_in_step(witness, 'P130', 'beside a deaf client')
        deaf.reset()


@case
def random_options(t):
    """P124, P122, P11: random sequences of options, whole and broken, never hurt the server"""
    rng = random.Random(6)
    with t.witness():
        for dialogue in range(150):
            client = t.greet(flags=rng.choice((0, 1, 2, 3)))
            out = b''
            for _ in range(rng.randrange(1, 12)):
                option = rng.choice(ALL_OPTIONS)
                data = rng.choice((b'', pack_info(''), pack_info('', (3, 1)), pack_meta('', META),
                                   pack_meta('', ('x:y',) * 5), rng.randbytes(rng.randrange(64)),
                                   struct.pack('>I', 0xffffffff), b'\0' * 8))
                if rng.random() < 0.2 and data:
                    at = rng.randrange(len(data))
                    data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1:]
                out += pack_option(option, data)
            try_send(client, out)
            client.half_close()
            client.drain()
            client.close()


@case
def random_requests(t):
    """P124, P117, P120: random requests in every mode never hurt the server"""
    rng = random.Random(7)
    with t.witness(bounded=True):
        for dialogue in range(90):
            mode = (SIMPLE, STRUCTURED, EXTENDED)[dialogue % 3]
            client = t.greet()
            if not client.use_mode(mode):
                client.close()
                continue
            if mode != SIMPLE and rng.random() < 0.5:
                client.set_meta()
            client.must_ack(client.go(), 'P124')
            out = b''
            for _ in range(rng.randrange(1, 40)):
                kind = rng.choice((0, 3, 4, 5, 6, 7, 7, 8, 9, 65535))
                offset = rng.choice((0, 1, 4096, 2**32, 2**63, 2**64 - 1, rng.getrandbits(64),
                                     rng.randrange(16 * MIB)))
                length = rng.choice((0, 1, 512, 4096, 65536, 0xffffffff, rng.getrandbits(32)))
                if kind in (4, 6):
                    # Not onto the witness's own bytes.
                    length = min(length, MIB)
                    offset = rng.choice((0, 4096, 2**63, 2**64 - 1))
                if kind == 0:
                    length = min(length, MIB)
                out += pack_request(kind, rng.getrandbits(64), offset, length,
                                    rng.choice((0, 0, 1, 2, 4, 8, 16, 64, 0x8000)), mode=mode)
            try_send(client, out)
            client.half_close()
            client.drain()
            client.close()


@case
def random_bytes(t):
    """P124, P130: noise instead of a handshake, options or requests never hurts the server"""
    rng = random.Random(8)
    with t.witness():
        for turn in range(120):
            client = t.dial()
            if turn % 3 == 1:
                client.greet()
            elif turn % 3 == 2:
                client.greet()
                client.must_ack(client.go(), 'P124')
            try_send(client, rng.randbytes(rng.choice((1, 16, 28, 100, 5000))))
            client.half_close()
            client.drain()
            client.close()


@case
def awkward_orders(t):
    """P124, P40, P43: lawful options in unlawful orders (the orders behind past assertions)"""
    with t.witness():
        for first in ((OPT_STRUCTURED_REPLY,), ()):
            for options in (
                    ((OPT_SET_META, pack_meta('', META)), (OPT_GO, pack_info(''))),
                    ((OPT_SET_META, pack_meta('', META)), (OPT_STARTTLS, b''),
                     (OPT_GO, pack_info(''))),
                    ((OPT_INFO, pack_info('')), (OPT_SET_META, pack_meta('other', META)),
                     (OPT_GO, pack_info(''))),
                    ((OPT_INFO, pack_info('')),) * 5 + ((OPT_GO, pack_info('')),),
                    ((OPT_INFO, pack_info('')), (OPT_LIST, b''), (OPT_ABORT, b'')),
                    ((OPT_SET_META, pack_meta('', META)), (OPT_STRUCTURED_REPLY, b''),
                     (OPT_SET_META, pack_meta('', META)), (OPT_EXTENDED_HEADERS, b''),
                     (OPT_GO, pack_info(''))),
                    ((OPT_LIST_META, pack_meta('', META)), (OPT_EXTENDED_HEADERS, b''),
                     (OPT_EXPORT_NAME, b''))):
                client = t.greet()
                out = b''.join(pack_option(o) for o in first)
                out += b''.join(pack_option(o, d) for o, d in options)
                out += pack_request(CMD_BLOCK_STATUS, 1, 0, 4096)
                out += pack_request(CMD_DISC, 2, 0, 0)
                try_send(client, out)
                client.half_close()
                client.drain()


@case
def echoed_text(t):
    """P125, P1, P20: names with quotes, controls and bad UTF-8 come back as clean short text"""
    awkward = [b'"' * 4096, b'\\' * 4096, b"'" * 4095, b'\x01' * 4096, b'\xff' * 4096,
               b'\x80\x81' * 2048, b'%s%n%d' * 600, '\u202e\u0000x'.encode(), b'\0' * 4096,
               b'\n' * 4000,
               '日'.encode() * 1365, b'a' * 4095 + b'\xc3', b'\xed\xa0\x80' * 100]
    server = t.server(NAMED)
    with t.witness(server):
        for name in awkward:
            for mode in (STRUCTURED, EXTENDED):
                client = t.greet(server)
                if not client.use_mode(mode):
                    continue
                # The judge of option replies (nbdraw) checks every text that comes back.
                for option, data in ((OPT_INFO, pack_info(name)), (OPT_GO, pack_info(name)),
                                     (OPT_LIST_META, pack_meta(name, META)),
                                     (OPT_SET_META, pack_meta(name, META)),
                                     (OPT_LIST_META, pack_meta('alpha', (name,))),
                                     (OPT_SET_META, pack_meta('alpha', (b'base:' + name[:4091],)))):
                    result = client.option(option, data)
                    if option in (OPT_INFO, OPT_GO):
                        t.final(result, (ERR_UNKNOWN, ERR_INVALID), 'P125', f'name {name[:8]!r}')
                t.options_in_step(client, 'P125', f'after {name[:8]!r}')


@case
def echoed_text_in_export_name(t):
    """P125, P31: EXPORT_NAME with the same names is refused by a close"""
    server = t.server(NAMED)
    with t.witness(server):
        for name in (b'"' * 4096, b'\xff' * 4096, b'%s%n' * 1000, b'\0' * 100):
            client = t.greet(server)
            client.send(pack_option(OPT_EXPORT_NAME, name))
            client.expect_closed('P31', f'name {name[:8]!r}')


@case
def names_are_not_prefixes(t):
    """P27, P43: only the exact name is the export: no prefix, case, NUL or slash variant"""
    server = t.server(NAMED)
    for name in (b'alph', b'alphaa', b'alpha ', b' alpha', b'ALPHA', b'alpha\0', b'alpha\0x',
                 b'/alpha', b'alpha/', b'./alpha', b'\0', b'alpha,readonly', b'alpha=1'):
        client = t.greet(server)
        t.final(client.option(OPT_GO, pack_info(name)), (ERR_UNKNOWN, ERR_INVALID), 'P27',
                f'for {name!r}')
        old = t.greet(server)
        old.send(pack_option(OPT_EXPORT_NAME, name))
        old.expect_closed('P27', f'EXPORT_NAME {name!r}')


def dialogue(mode):
    """Bytes of a whole conversation: flags, options of every kind, requests of every kind."""
    out = struct.pack('>I', 3)
    out += pack_option(OPT_LIST) + pack_option(777, b'unknown')
    out += pack_option(OPT_STARTTLS)
    if mode == STRUCTURED:
        out += pack_option(OPT_STRUCTURED_REPLY)
    if mode == EXTENDED:
        out += pack_option(OPT_EXTENDED_HEADERS)
    if mode != SIMPLE:
        out += pack_option(OPT_LIST_META, pack_meta(''))
        out += pack_option(OPT_SET_META, pack_meta('', META))
    out += pack_option(OPT_INFO, pack_info('', (3,))) + pack_option(OPT_GO, pack_info('', (3, 1)))
    flag = CF_PAYLOAD_LEN if mode == EXTENDED else 0
    out += pack_request(CMD_WRITE, 1, 4096, 64, flag, b'\x11' * 64, mode)
    out += pack_request(CMD_READ, 2, 0, 65536, mode=mode)
    out += pack_request(CMD_FLUSH, 3, 0, 0, mode=mode)
    if mode != SIMPLE:
        out += pack_request(CMD_BLOCK_STATUS, 4, 0, 65536, mode=mode)
    out += pack_request(6, 5, 8192, 4096, mode=mode)
    return out + pack_request(CMD_DISC, 6, 0, 0, mode=mode)


def cut_everywhere(t, server, end):
    """Send every proper prefix of every dialogue and then call end(client)."""
    for mode in t.modes():
        whole = dialogue(mode)
        for cut in range(len(whole)):
            client = t.dial(server)
            try_send(client, whole[:cut])
            end(client)
            client.close()


@case
def close_at_every_byte(t):
    """P130, P15: closing after any byte of a dialogue, in every mode, harms nobody"""
    server = t.server()
    with t.witness(server):
        cut_everywhere(t, server, lambda client: client.close())


@case
def half_close_at_every_byte(t):
    """P130: half-closing after any byte ends the connection from the server's side too"""
    server = t.server()
    with t.witness(server):
        cut_everywhere(t, server, lambda client: (client.half_close(), client.drain()))


@case
def reset_at_every_byte(t):
    """P130: a TCP reset after any byte of a dialogue harms nobody"""
    server = t.server(Spec(transport='tcp'))
    with t.witness(server):
        cut_everywhere(t, server, lambda client: client.reset())


@case
def close_with_requests_in_flight(t):
    """P130: closing with slow requests and large replies in flight harms nobody"""
    server = t.server(Spec(exports=(Export(filters=(Delay('read', 200, (0, 16 * MIB)),
                                                    Delay('write', 200, (0, 16 * MIB)))),)))
    with t.witness(server):
        for end in ('close', 'reset', 'half_close'):
            for mode in t.modes():
                client = t.open(server, mode=mode)
                for number in range(16):
                    client.submit(CMD_READ, number * 4096, MIB)
                    client.submit(CMD_WRITE, number * 65536, payload=b'f' * 65536)
                getattr(client, end)()
                client.close()


@case
def close_during_large_replies(t):
    """P130: closing in the middle of megabytes of reply data harms nobody, over Unix and TCP"""
    for transport in ('unix', 'tcp'):
        server = t.server(Spec(transport=transport))
        modes = list(t.modes())
        with t.witness(server) as witness:
            # Data, not holes, or chunked replies would be small.
            witness.write(0, os.urandom(8 * MIB))
            for turn in range(24):
                client = t.open(server, mode=modes[turn % len(modes)])
                for _ in range(4):
                    client.submit(CMD_READ, 0, 8 * MIB)
                client.recv(1 + turn * 100000)
                client.reset() if turn % 3 else client.close()
