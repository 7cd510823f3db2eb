# SPDX-License-Identifier: Apache-2.0
"""DISC, shutdown, half-closed and broken connections (P80, P126, P129, P130)."""

import os

import nbdraw
from nbdraw import CMD_DISC, CMD_READ, CMD_WRITE, ESHUTDOWN, pack_request
from servers import MIB, Delay, Export, Spec
from suite import case

SLOW = Spec(exports=(Export(filters=(Delay('read', 500), Delay('write', 500))),))


@case
def disc(t):
    """P80: DISC gets no reply and closes the connection"""
    for mode in t.modes():
        client = t.open(mode=mode)
        client.disc()
        client.expect_closed('P80', f'DISC in {mode} mode')


@case
def disc_waits_for_requests(t):
    """P80: what was in flight when DISC came is finished and answered before the close"""
    server = t.server(SLOW)
    for mode in t.modes():
        client = t.open(server, mode=mode)
        mark = os.urandom(4096)
        cookies = [client.submit(CMD_READ, i * 4096, 4096) for i in range(8)]
        cookies.append(client.submit(CMD_WRITE, MIB, payload=mark))
        client.disc()
        for cookie in cookies:
            t.error(client.collect(cookie), 0, 'P80', f'in flight at DISC in {mode} mode')
        client.expect_closed('P80', 'DISC')
        t.equal(t.open(server).read(MIB, 4096), mark, 'P80', 'data written before DISC')


@case
def disc_with_large_replies_pending(t):
    """P80: megabytes of replies are all sent before the close that DISC asked for"""
    for mode in t.modes():
        client = t.open(mode=mode)
        cookies = [client.submit(CMD_READ, 0, 4 * MIB) for _ in range(6)]
        client.disc()
        client.half_close()
        for cookie in cookies:
            t.error(client.collect(cookie), 0, 'P80', 'READ before DISC')
        client.expect_closed('P80', 'DISC')


@case
def disc_with_odd_fields(t):
    """P80, P124: DISC with offset, length or flags still closes, or is refused, and harms nobody"""
    with t.witness():
        for mode in t.modes():
            for offset, length, flags in ((1, 0, 0), (0, 1, 0), (2**64 - 1, 0xffffffff, 0),
                                          (0, 0, 1), (0, 0, 1 << 15)):
                client = t.open(mode=mode)
                cookie = client.new_cookie()
                client.tracker.expect(CMD_DISC, flags, cookie, offset, length)
                client.send(pack_request(CMD_DISC, cookie, offset, length, flags, mode=mode))
                client.half_close()
                client.drain()


@case
def nothing_after_disc(t):
    """P80: requests behind DISC are not carried out"""
    server = t.server()
    client = t.open(server)
    client.write(0, b'old ' * 1024)
    late = pack_request(CMD_WRITE, 77, 0, 4096, payload=b'new ' * 1024)
    try:
        client.send(pack_request(CMD_DISC, 76, 0, 0) + late)
    except nbdraw.Closed:
        pass
    client.expect_closed('P80', 'DISC')
    t.equal(t.open(server).read(0, 4096), b'old ' * 1024, 'P80', 'data')


@case
def half_close_after_requests(t):
    """P130, P129: a client that half-closes gets its replies or a close, and is let go"""
    with t.witness():
        for mode in t.modes():
            client = t.open(mode=mode)
            mark = os.urandom(8192)
            cookies = [client.submit(CMD_WRITE, MIB, payload=mark), client.submit(CMD_READ, 0, 512)]
            client.half_close()
            try:
                for cookie in cookies:
                    t.error(client.collect(cookie), 0, 'P130', 'request before the half-close')
            except nbdraw.Closed:
                pass
            client.drain()


@case
def shutdown_finishes_requests(t):
    """P126: SIGTERM lets requests in flight finish, or answers ESHUTDOWN, then closes; exit 0"""
    server = t.fresh_server(SLOW)
    clients = [t.open(server, mode=mode) for mode in t.modes()]
    asked = []
    for client in clients:
        for number in range(4):
            asked.append((client, client.submit(CMD_READ, number * 4096, 4096)))
        asked.append((client, client.submit(CMD_WRITE, MIB, payload=b's' * 4096)))
    for client in clients:
        # Answered late like the rest, so all of them have been taken in by then or not at all.
        client.submit(nbdraw.CMD_FLUSH)
    server.signal_stop()
    for client, cookie in asked:
        t.error(client.collect(cookie), (0, ESHUTDOWN), 'P126', 'in flight at SIGTERM')
    for client in clients:
        client.drain()
    t.check(server.wait_exit() in t.peer.clean_exits, 'P126', f'status {server.process.returncode}')


def later_requests(t, mode, delay_ms):
    """What a connection that still waits for a reply gets for further requests after SIGTERM."""
    spec = Spec(exports=(Export(filters=(Delay('read', delay_ms, (MIB, 4096)),)),))
    server = t.fresh_server(spec)
    busy = t.open(server, mode=mode)
    slow = busy.submit(CMD_READ, MIB, 4096)
    t.error(busy.call(CMD_READ, 0, 512), 0, 'P126', 'before the stop')
    server.signal_stop()
    # Until the server has seen the signal it answers as usual.
    reply = busy.call(CMD_READ, 0, 512)
    while not reply.error:
        reply = busy.call(CMD_READ, 0, 512)
    t.error(reply, ESHUTDOWN, 'P126', f'READ after SIGTERM in {mode} mode')
    reply = busy.call(CMD_WRITE, 0, payload=bytes(65536))
    t.error(reply, ESHUTDOWN, 'P126', f'WRITE after SIGTERM in {mode} mode')
    t.error(busy.collect(slow), (0, ESHUTDOWN), 'P126', 'the request that was in flight')
    busy.drain()
    t.check(server.wait_exit() in t.peer.clean_exits, 'P126', f'status {server.process.returncode}')


@case
def shutdown_refuses_later_requests(t):
    """P126: a connection that still waits for a reply at SIGTERM gets ESHUTDOWN for what it adds"""
    for mode in t.modes():
        # On a busy machine the reply may come, and end the connection, before the rest was seen.
        for delay_ms in (2000, 8000):
            try:
                later_requests(t, mode, delay_ms)
                break
            except nbdraw.Closed:
                pass
        else:
            later_requests(t, mode, 32000)


@case
def shutdown_with_a_deaf_client(t):
    """P126, P130: SIGTERM ends the server even if a client will never take its replies"""
    server = t.fresh_server()
    deaf = t.open(server)
    deaf.sock.settimeout(0.5)
    try:
        deaf.sock.sendall(b''.join(pack_request(CMD_READ, i, 0, 16 * MIB) for i in range(64)))
    except OSError:
        pass
    t.requests_in_step(t.open(server), 'P130', 'beside a deaf client')
    server.signal_stop()
    t.check(server.wait_exit() in t.peer.clean_exits, 'P126', f'status {server.process.returncode}')


@case
def shutdown_with_idle_clients(t):
    """P126, P130: SIGTERM with clients idle in every phase ends the server, exit 0"""
    server = t.fresh_server()
    fresh, haggling, serving = t.dial(server), t.greet(server), t.open(server)
    half = t.greet(server)
    half.send(nbdraw.pack_option(nbdraw.OPT_GO, b'', length=100)[:12])
    partial = t.open(server)
    partial.send(pack_request(CMD_WRITE, 1, 0, 65536, payload=bytes(1000)))
    t.requests_in_step(serving, 'P126', 'before the stop')
    server.signal_stop()
    for client in (fresh, haggling, serving, half, partial):
        client.drain()
    t.check(server.wait_exit() in t.peer.clean_exits, 'P126', f'status {server.process.returncode}')


@case
def errors_do_not_disconnect(t):
    """P129, P17: a connection outlives hundreds of failed options and requests"""
    client = t.greet()
    for turn in range(24):
        client.option(1000 + turn)
    client.must_ack(client.go(), 'P129')
    for turn in range(500):
        t.check(client.call(CMD_READ, client.size + turn, 512).error, 'P129', 'READ past the end')
        t.check(client.call(200 + turn).error, 'P129', 'unknown command')
    t.requests_in_step(client, 'P129', 'after a thousand errors')
