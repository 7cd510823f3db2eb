# SPDX-License-Identifier: Apache-2.0
"""Greeting, client flags, EXPORT_NAME, and the transport underneath (P1-P9, P31)."""

import socket
import struct

import nbdraw
import servers
from nbdraw import FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES
from servers import Export, Spec
from suite import case


@case
def greeting(t):
    """P4, P7: the greeting is newstyle, fixed, with no flag above NO_ZEROES"""
    client = t.dial()
    head = client.recv(16)
    t.equal(head, b'NBDMAGICIHAVEOPT', 'P4', 'magic numbers')
    flags = struct.unpack('>H', client.recv(2))[0]
    t.check(flags & FLAG_FIXED_NEWSTYLE, 'P4', f'flags {flags:#x} lack FIXED_NEWSTYLE')
    t.check(not flags & ~3, 'P4', f'flags {flags:#x} have bits above NO_ZEROES')
    # An oldstyle server would go on with the export size; a newstyle one waits for our flags.
    client.send(struct.pack('>I', FLAG_FIXED_NEWSTYLE))
    client.must_ack(client.option(nbdraw.OPT_ABORT), 'P7')


@case
def unknown_client_flag_drops(t):
    """P6: a client flag that is unknown drops the connection"""
    for flags in (0x4, 0x8, 0x5, 0x80, 0x10001, 0x40000000, 0x80000003, 0xffffffff):
        client = t.dial()
        client.recv(18)
        client.send(struct.pack('>I', flags))
        try:
            client.send(nbdraw.pack_option(nbdraw.OPT_LIST))
        except nbdraw.Closed:
            pass
        client.expect_closed('P6', f'client flags {flags:#x}')


@case
def unoffered_client_flag_drops(t):
    """P6: NO_ZEROES from the client when the server did not offer it drops the connection"""
    client = t.dial()
    flags = struct.unpack('>H', client.recv(18)[16:])[0]
    if flags & FLAG_NO_ZEROES:
        # Nothing was left unoffered: then both bits must be welcome together.
        client.send(struct.pack('>I', 3))
        client.must_ack(client.option(nbdraw.OPT_ABORT), 'P6')
        return
    client.send(struct.pack('>I', 3))
    client.expect_closed('P6', 'NO_ZEROES not offered')


@case
def not_fixed_client_gets_no_tls(t):
    """P9, P46: a client without FIXED_NEWSTYLE is never given TLS"""
    client = t.greet(flags=0)
    try:
        result = client.option(nbdraw.OPT_STARTTLS)
    except nbdraw.Closed:
        return
    t.check(not result.ok, 'P9', 'STARTTLS accepted without fixed newstyle')


@case
def not_fixed_client_uses_export_name(t):
    """P9, P31: a client without FIXED_NEWSTYLE enters by EXPORT_NAME and gets 124 zeroes"""
    client = t.greet(flags=0)
    client.export_name(t.server().spec.exports[0].name)
    t.equal(client.size, t.server().spec.exports[0].size, 'P31', 'size')
    t.requests_in_step(client, 'P31', 'after the zeroes')


@case
def export_name_with_zeroes(t):
    """P31: fixed newstyle without NO_ZEROES gets size, flags and 124 zeroes"""
    client = t.greet(flags=FLAG_FIXED_NEWSTYLE)
    client.export_name()
    t.requests_in_step(client, 'P31', 'after the zeroes')


@case
def export_name_without_zeroes(t):
    """P31: with NO_ZEROES agreed, requests follow size and flags at once"""
    client = t.greet()
    t.need(client.client_flags & FLAG_NO_ZEROES, 'NO_ZEROES')
    client.export_name()
    t.equal(client.size, t.server().spec.exports[0].size, 'P31', 'size')
    t.requests_in_step(client, 'P31', 'after ten bytes')


@case
def export_name_as_go(t):
    """P31, P33: EXPORT_NAME tells the same size and flags as GO"""
    old = t.greet()
    old.export_name()
    new = t.open(ask=False)
    t.equal((old.size, old.tflags), (new.size, new.tflags), 'P31', 'size and flags')


@case
def export_name_refusal_closes(t):
    """P31, P17: EXPORT_NAME of a missing export closes the connection without a word"""
    spec = Spec(exports=(Export('alpha'),))
    for name in ('gamma', 'alph', 'x' * 4096):
        client = t.greet(t.server(spec))
        client.send(nbdraw.pack_option(nbdraw.OPT_EXPORT_NAME, name.encode()))
        client.expect_closed('P31', f'EXPORT_NAME {name[:20]!r}')


@case
def integers_are_big_endian(t):
    """P1: sizes and offsets beyond 32 bits mean what they say"""
    size = (5 << 32) + 0x01020304
    spec = Spec(exports=(Export(size=size - size % 512, file=True),))
    client = t.open(t.server(spec))
    t.equal(client.size, spec.exports[0].size, 'P1', 'export size')
    mark = bytes(range(256)) * 2
    for offset in (0, 1 << 32, (4 << 32) + 0x01020000, client.size - 512):
        client.write(offset, mark[::-1] if offset else mark)
    t.equal(client.read(0, 512), mark, 'P1', 'data at 0')
    t.equal(client.read(1 << 32, 512), mark[::-1], 'P1', 'data at 4 GiB')
    t.equal(client.read(client.size - 512, 512), mark[::-1], 'P1', 'data at the end')


@case
def strings_are_clean(t):
    """P1, P16, P28: names and descriptions are UTF-8 without NUL or terminator"""
    spec = Spec(exports=(Export('größe', description='ein größeres Laufwerk, naïve'),))
    server = t.server(spec)
    client = t.greet(server)
    listed = client.option(nbdraw.OPT_LIST)
    client.must_ack(listed, 'P16')
    t.equal([n for n, _ in listed.servers()], ['größe'.encode()], 'P1', 'listed name')
    infos = client.info('größe', (nbdraw.INFO_NAME, nbdraw.INFO_DESCRIPTION)).infos()
    for item in infos.get(nbdraw.INFO_NAME, []):
        t.equal(item, 'größe'.encode(), 'P1', 'INFO_NAME')
    for item in infos.get(nbdraw.INFO_DESCRIPTION, []):
        t.equal(item, spec.exports[0].description.encode(), 'P28', 'INFO_DESCRIPTION')


@case
def baseline(t):
    """P3: everything a baseline client needs, in one conversation"""
    client = t.greet()
    t.final(client.option(4242, b'data'), nbdraw.ERR_UNSUP, 'P3')
    t.final(client.option(nbdraw.OPT_LIST), (nbdraw.REP_ACK, nbdraw.ERR_POLICY), 'P3')
    client.must_ack(client.info(), 'P3')
    client.must_ack(client.go(requests=()), 'P3')
    client.write(4096, b'baseline' * 64)
    t.equal(client.read(4096, 512), b'baseline' * 64, 'P3', 'data')
    client.disc()
    client.expect_closed('P3', 'DISC')
    other = t.greet()
    other.must_ack(other.option(nbdraw.OPT_ABORT), 'P3')


@case
def one_byte_at_a_time(t):
    """P3, P124: a dialogue cut into single bytes means the same"""
    client = t.dial()
    whole = client.send

    def send(data):
        for at in range(len(data)):
            whole(data[at:at + 1])

    client.send = send
    client.greet()
    t.final(client.option(77, b'unknown'), nbdraw.ERR_UNSUP, 'P3')
    client.must_ack(client.go(), 'P3')
    client.write(512, b'0123456789abcdef' * 32)
    t.equal(client.read(512, 512), b'0123456789abcdef' * 32, 'P3', 'data')
    client.disc()
    client.expect_closed('P3', 'DISC')


@case
def tcp_nodelay(t):
    """P2: accepted TCP sockets have TCP_NODELAY, for handshake and transmission alike"""
    server = t.server(Spec(transport='tcp'))
    client = t.greet(server)
    for phase in ('handshake', 'transmission'):
        if phase == 'transmission':
            client.must_ack(client.go(), 'P2')
            t.requests_in_step(client, 'P2', 'TCP')
        try:
            twin = servers.steal_socket(server, client.sock.getsockname())
        except OSError as error:
            t.skip(f'environment: no right to look into the server ({error})')
        if twin is None:
            t.skip('environment: connection not found among the descriptors of the main process')
        with twin:
            t.check(twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), 'P2',
                    f'no TCP_NODELAY in {phase}')


@case
def tcp_as_unix(t):
    """P3, P2: the same conversation over TCP, IPv4 and IPv6"""
    for transport in ('tcp', 'tcp6') if t.peer.complete else ('tcp',):
        client = t.open(t.server(Spec(transport=transport)))
        client.write(1 << 20, b'over tcp' * 64)
        t.equal(client.read(1 << 20, 512), b'over tcp' * 64, 'P3', f'data over {transport}')
        client.disc()
        client.expect_closed('P3', 'DISC')
