# SPDX-License-Identifier: Apache-2.0
"""STARTTLS and what is said under TLS (P9, P45-P56), with OpenSSL on our side."""

import os
import select
import socket
import ssl

import nbdraw
import servers
from nbdraw import (ERR_INVALID, ERR_TLS_REQD, ERR_UNKNOWN, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO,
                    OPT_INFO, OPT_LIST, OPT_STARTTLS, pack_info, pack_meta, pack_option)
from servers import MIB, Export, Spec
from suite import case

ON = Spec(tls='on')
REQUIRE = Spec(tls='require')
TCP = Spec(tls='require', transport='tcp')


def context(version=None):
    made = ssl.create_default_context(cafile=os.path.join(servers.credentials(), 'ca-cert.pem'))
    if version:
        made.minimum_version = made.maximum_version = version
    return made


def upgraded(t, spec=REQUIRE, version=None):
    """A connection with TLS that is ready for options."""
    return t.greet(t.server(spec)).start_tls(context(version))


@case
def everything_but_starttls_demands_tls(t):
    """P47, P122: FORCEDTLS answers every option but STARTTLS and ABORT with ERR_TLS_REQD"""
    client = t.greet(t.server(REQUIRE))
    for option in (*range(3, 5), *range(6, 31), 4711, 0xffffffff):
        for data in (b'', pack_info(''), pack_meta('', ['base:allocation']), b'x' * 100000):
            t.final(client.option(option, data), ERR_TLS_REQD, 'P47', f'with {len(data)} bytes')
    t.final(client.option(0), ERR_TLS_REQD, 'P47')
    client.start_tls(context())
    client.must_ack(client.go(), 'P47')
    t.requests_in_step(client, 'P47', 'after all that')


@case
def abort_without_tls(t):
    """P47: FORCEDTLS acknowledges ABORT"""
    client = t.greet(t.server(REQUIRE))
    client.must_ack(client.option(OPT_ABORT), 'P47')
    client.expect_closed('P47', 'after ABORT')


@case
def export_name_without_tls(t):
    """P47: FORCEDTLS closes at EXPORT_NAME, whatever the name"""
    for name in (b'', b'none'):
        client = t.greet(t.server(REQUIRE))
        client.send(pack_option(OPT_EXPORT_NAME, name))
        client.expect_closed('P47', f'after EXPORT_NAME {name!r}')


@case
def not_fixed_client_where_tls_is_demanded(t):
    """P9, P47: a client that cannot have TLS is closed, whatever it asks for"""
    for option in (OPT_STARTTLS, OPT_LIST, OPT_EXPORT_NAME):
        client = t.greet(t.server(REQUIRE), flags=0)
        client.send(pack_option(option))
        rest = client.drain() if option != OPT_STARTTLS else b''
        t.equal(rest, b'', 'P9', f'answer to option {option}')
        if option == OPT_STARTTLS:
            t.check(not client.recv_option_result(option).ok, 'P9', 'STARTTLS accepted')


@case
def long_data_without_tls(t):
    """P47, P123: what options claim or send before TLS takes no memory"""
    server = t.server(REQUIRE)
    before = server.rss()
    client = t.greet(server)
    for _ in range(8):
        t.final(client.option(OPT_GO, b'x' * (1 << 20)), ERR_TLS_REQD, 'P47', 'with 1 MiB')
    t.check(server.rss() - before < 4 * MIB, 'P123', f'grew by {server.rss() - before} bytes')


@case
def selective_serves_both(t):
    """P45, P48: SELECTIVETLS serves clients with and without TLS, and ERR_TLS_REQD is for INFO and GO
    of what there is not without TLS"""
    server = t.server(ON)
    client = t.greet(server)
    t.final(client.info('none'), (ERR_TLS_REQD, ERR_UNKNOWN), 'P48')
    t.final(client.option(nbdraw.OPT_LIST_META, pack_meta('none')), ERR_UNKNOWN, 'P48')
    t.final(client.option(4711), nbdraw.ERR_UNSUP, 'P48')
    client.must_ack(client.option(OPT_LIST), 'P48')
    client.must_ack(client.go(), 'P48')
    t.requests_in_step(client, 'P48', 'without TLS')
    client = upgraded(t, ON)
    t.final(client.info('none'), ERR_UNKNOWN, 'P49')
    client.must_ack(client.go(), 'P49')
    t.requests_in_step(client, 'P49', 'with TLS')


@case
def tls_versions(t):
    """P54: TLS 1.2 and 1.3 serve verified I/O; older versions end the session"""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = upgraded(t, REQUIRE, version)
        t.equal(client.tls.session.version(), version.name.replace('_', '.'), 'P54', 'version')
        client.must_ack(client.go(), 'P54')
        pattern = os.urandom(100001)
        client.write(4096, pattern)
        t.equal(client.read(4096, len(pattern)), pattern, 'P54', 'data')
        client.disc()


def client_hello(version):
    """A ClientHello of an old version, by hand: OpenSSL does not speak it any more."""
    body = version + os.urandom(32) + b'\0' + b'\0\4\xc0\x13\0\x2f' + b'\1\0'
    hello = b'\1' + len(body).to_bytes(3, 'big') + body
    return b'\x16\3\1' + len(hello).to_bytes(2, 'big') + hello


@case
def old_versions(t):
    """P54, P50: TLS 1.0 and 1.1, SSL and HTTP get an alert or nothing, and the end"""
    for first in (client_hello(b'\3\1'), client_hello(b'\3\2'), client_hello(b'\3\0'),
                  bytes.fromhex('802b0100020012000000100100800700c0030080060040020080040080000004') +
                  bytes(16), b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'):
        client = t.greet(t.server(REQUIRE))
        client.must_ack(client.option(OPT_STARTTLS), 'P49')
        client.send(first)
        rest = client.drain()
        t.check(rest == b'' or rest[:1] == b'\x15', 'P54', f'{first[:3].hex()} got {rest[:40].hex()}')


@case
def starttls_with_data(t):
    """P49: STARTTLS with data gets ERR_INVALID, and the connection goes on in clear"""
    for size in (1, 8, 5000):
        client = t.greet(t.server(REQUIRE))
        t.final(client.option(OPT_STARTTLS, b'x' * size), ERR_INVALID, 'P49', f'{size} bytes')
        client.start_tls(context())
        client.must_ack(client.go(), 'P49')


@case
def second_starttls(t):
    """P49: STARTTLS under TLS gets ERR_INVALID, and TLS goes on"""
    client = upgraded(t)
    for _ in range(2):
        t.final(client.option(OPT_STARTTLS), ERR_INVALID, 'P49')
    client.must_ack(client.go(), 'P49')
    t.requests_in_step(client, 'P49', 'after a second STARTTLS')


@case
def state_is_wiped(t):
    """P51: structured replies, extended headers and contexts agreed on in clear are gone under TLS,
    and may be agreed on anew"""
    client = t.greet(t.server(ON))
    t.need(client.use_mode(nbdraw.STRUCTURED), 'structured replies')
    client.must_ack(client.set_meta(), 'P40')
    client.start_tls(context())
    t.final(client.option(nbdraw.OPT_SET_META, pack_meta('', ['base:allocation'])), ERR_INVALID,
            'P51', 'without structured replies')
    client.must_ack(client.go(), 'P51')
    t.requests_in_step(client, 'P51', 'simple replies after STARTTLS')
    client = t.greet(t.server(ON))
    t.need(client.use_mode(nbdraw.EXTENDED), 'extended headers')
    client.start_tls(context())
    t.check(client.use_mode(nbdraw.EXTENDED), 'P51', 'extended headers cannot be had again')
    client.must_ack(client.set_meta(), 'P51')
    client.must_ack(client.go(), 'P51')
    t.requests_in_step(client, 'P51', 'extended headers under TLS')


@case
def flags_are_kept(t):
    """P51, P31: the client flags precede options, and stay"""
    client = t.greet(t.server(ON), flags=1).start_tls(context())
    client.export_name('')
    t.requests_in_step(client, 'P51', 'after 124 zeroes')


@case
def bytes_behind_starttls(t):
    """P56: what comes in one piece with STARTTLS is neither obeyed nor taken for TLS: the session
    ends"""
    for more in (pack_option(OPT_LIST), pack_option(OPT_ABORT), pack_option(OPT_STARTTLS), b'\x16',
                 client_hello(b'\3\3'), b'x' * 8000):
        client = t.greet(t.server(ON))
        client.send(pack_option(OPT_STARTTLS) + more)
        rest = client.drain()
        t.check(rest[20:] == b'', 'P56', f'{more[:20]!r} was answered with {rest[20:60].hex()}')


@case
def bytes_after_the_ack(t):
    """P56, P50: options in clear where TLS belongs end the session unanswered"""
    for more in (pack_option(OPT_LIST), pack_option(OPT_INFO, pack_info('')), bytes(100),
                 b'\x17\3\3\0\5hello', b'\x16\3\3\xff\xff' + bytes(100)):
        client = t.greet(t.server(ON))
        client.must_ack(client.option(OPT_STARTTLS), 'P49')
        client.send(more)
        rest = client.drain()
        t.check(rest == b'' or rest[:1] == b'\x15', 'P56', f'{more[:20]!r} got {rest[:40].hex()}')


@case
def failed_handshake(t):
    """P50: a client that does not believe the server's certificate ends the session"""
    strict = ssl.create_default_context()
    for _ in range(3):
        client = t.greet(t.server(REQUIRE))
        client.must_ack(client.option(OPT_STARTTLS), 'P49')
        try:
            client.wrap(strict)
            t.check(False, 'P50', 'a certificate of nobody was believed')
        except ssl.SSLError:
            client.drain()
    client = upgraded(t)
    client.must_ack(client.go(), 'P50')
    t.requests_in_step(client, 'P50', 'a later client')


@case
def split_handshake(t):
    """P49: a handshake that comes byte by byte succeeds"""

    class Drip(socket.socket):
        def sendall(self, data):
            for at in range(len(data)):
                super().sendall(data[at:at + 1])

    client = t.greet(t.server(TCP))
    client.must_ack(client.option(OPT_STARTTLS), 'P49')
    client.sock = Drip(fileno=client.sock.detach())
    client.wrap(context())
    client.must_ack(client.go(), 'P49')
    t.requests_in_step(client, 'P49', 'after a slow handshake')


@case
def several_options_in_one_record(t):
    """P49, P56: options in one record are taken one by one, as in clear"""
    client = upgraded(t)
    client.send(pack_option(OPT_INFO, pack_info('')) + pack_option(4711, b'abc') +
                pack_option(OPT_LIST))
    client.must_ack(client.recv_option_result(OPT_INFO), 'P49')
    t.final(client.recv_option_result(4711), nbdraw.ERR_UNSUP, 'P49')
    client.must_ack(client.recv_option_result(OPT_LIST), 'P49')
    client.must_ack(client.go(), 'P49')
    t.requests_in_step(client, 'P49', 'after options in one record')


@case
def close_notify(t):
    """P55: a session that ends in good order ends with a close_notify: after ABORT, after DISC, and
    when the server stops"""
    client = upgraded(t)
    client.must_ack(client.option(OPT_ABORT), 'P55')
    client.expect_closed('P55', 'after ABORT')
    t.check(client.tls.was_closed, 'P55', 'no close_notify after ABORT')
    client = upgraded(t)
    client.must_ack(client.go(), 'P55')
    client.disc()
    client.expect_closed('P55', 'after DISC')
    t.check(client.tls.was_closed, 'P55', 'no close_notify after DISC')
    server = t.fresh_server(Spec(exports=(Export(size=MIB),), tls='require'))
    client = t.greet(server).start_tls(context())
    client.must_ack(client.go(), 'P55')
    server.signal_stop()
    client.expect_closed('P55', 'when the server stops')
    t.check(client.tls.was_closed, 'P55', 'no close_notify when the server stops')


@case
def silent_handshakes_end(t):
    """P50, P131: a client that stops in the middle of the handshake is closed at the deadline, and a
    server that stops does not wait for it"""
    server = t.fresh_server(Spec(tls='require', limits=(('handshake-timeout', '2s'),)))
    hello = client_hello(b'\3\3')
    clients = []
    for length in (0, 1, 4, 5, 6, len(hello) - 1):
        clients.append(t.greet(server))
        clients[-1].must_ack(clients[-1].option(OPT_STARTTLS), 'P49')
        clients[-1].send(hello[:length])
    for client in clients:
        client.drain()
    server = t.fresh_server(REQUIRE)
    client = t.greet(server)
    client.must_ack(client.option(OPT_STARTTLS), 'P49')
    client.send(hello[:20])
    server.signal_stop()
    client.drain()


@case
def cut_handshakes(t):
    """P130: clients that go away in the middle of the handshake harm nobody"""
    server = t.server(REQUIRE)
    hello = client_hello(b'\3\3')
    before = server.fd_count()
    for length in range(0, len(hello), 7):
        client = t.greet(server)
        client.must_ack(client.option(OPT_STARTTLS), 'P49')
        client.send(hello[:length])
        client.reset()
    end = 600
    while server.fd_count() > before and end > 0:
        select.select([], [], [], 0.1)
        end -= 1
    t.check(end > 0, 'P130', f'{server.fd_count() - before} descriptors are left')
    client = upgraded(t)
    client.must_ack(client.go(), 'P130')
    t.requests_in_step(client, 'P130', 'after cut handshakes')


@case
def flipped_bits(t):
    """P50: a record that was changed on the way ends the session, unanswered"""
    for at in (5, 20, -1):
        client = upgraded(t)
        client.must_ack(client.go(), 'P50')
        client.tls.session.write(nbdraw.pack_request(nbdraw.CMD_READ, 1, 0, 512))
        record = bytearray(client.tls.outer.read())
        record[at] ^= 1
        client.sock.sock.sendall(record)
        rest = client.drain()
        t.equal(rest, b'', 'P50', 'answer to a forged record')
