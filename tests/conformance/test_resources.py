# SPDX-License-Identifier: Apache-2.0
"""What a stranger may cost before and after the handshake (P131, P130, P17)."""

import select

import nbdraw
from nbdraw import CMD_READ, OPT_GO, pack_info, pack_option
from servers import MIB, Export, Spec
from suite import case

# Long enough for our own handshakes on a busy machine, short enough to wait for.
DEADLINE = Spec(limits=(('handshake-timeout', '2s'),))
CROWD = Spec(limits=(('max-connections', '128'), ('threads', '1')))
HANDSHAKES = 16  # an eighth of the connections
FEW = Spec(limits=(('max-connections', '4'),))


def refused(t, server):
    """True if a new connection is closed, or told no, before it can be served."""
    client = t.dial(server)
    try:
        client.greet()
        return not client.go().ok
    except nbdraw.Closed:
        return True


def await_closed(clients, wanted):
    """How many of the clients the server closed, once that is `wanted` or nothing more happens."""
    while True:
        still_open = [client for client in clients if not client.eof]
        if len(clients) - len(still_open) >= wanted:
            return len(clients) - len(still_open)
        ready = select.select([c.sock for c in still_open], [], [], nbdraw.DEADLINE)[0]
        if not ready:
            return len(clients) - len(still_open)
        for client in still_open:
            if client.sock in ready:
                client.fill()


def open_in_time(t, server):
    """A served connection, also where the machine was too busy for the deadline at first."""
    for _ in range(100):
        try:
            return t.open(server)
        except nbdraw.Closed:
            pass
    t.skip('environment: no handshake can be done before its deadline')


@case
def handshake_deadline(t):
    """P131, P130: who does not finish the handshake in time is disconnected, in any state of it"""
    server = t.server(DEADLINE)
    served = open_in_time(t, server)
    silent, greeted, half_option, busy = (t.dial(server) for _ in range(4))
    try:
        greeted.greet()
        half_option.greet()
        half_option.send(pack_option(OPT_GO, pack_info(''))[:-1])
    except nbdraw.Closed:
        pass
    for client in (silent, greeted, half_option):
        client.drain()
    try:
        # Never idle, but never done either: the deadline is for the whole handshake.
        busy.greet()
        while True:
            busy.option(4321)
    except nbdraw.Closed:
        pass
    t.requests_in_step(served, 'P130', 'beside those who ran out of time')


@case
def deadline_spares_the_served(t):
    """P131, P129: the handshake deadline does not touch connections in transmission"""
    server = t.server(DEADLINE)
    served = open_in_time(t, server)
    stranger = t.dial(server)
    # The stranger came later, so when its time is up the deadline of the other is past too.
    stranger.drain()
    t.requests_in_step(served, 'P129', 'after the deadline of a later connection')


@case
def too_many_strangers(t):
    """P131: beyond the cap on handshakes strangers are turned away, new or old; the served stay"""
    server = t.server(CROWD)
    served = [t.open(server) for _ in range(6)]
    with t.witness(server):
        strangers = [t.dial(server) for _ in range(HANDSHAKES + 20)]
        closed = await_closed(strangers, 20)
        t.check(closed >= 20, 'P131',
                f'{len(strangers) - closed} handshakes are open at a cap of {HANDSHAKES}')
        for client in served:
            t.requests_in_step(client, 'P131', 'in a crowd of strangers')


@case
def too_many_clients(t):
    """P131: beyond the cap on connections newcomers are refused and the served are not disturbed"""
    server = t.server(FEW)
    served = [t.open(server) for _ in range(4)]
    t.check(refused(t, server), 'P131', 'a fifth connection was served at a cap of 4')
    for client in served:
        t.requests_in_step(client, 'P131', 'with the house full')
    served[0].disc()
    served[0].drain()
    served[0].close()
    for _ in range(100000):
        if not refused(t, server):
            break
    else:
        t.check(False, 'P131', 'the place of a client that left is not free')


@case
def too_many_clients_of_one_export(t):
    """P131, P17: the cap of one export refuses GO there with an error, and nothing elsewhere"""
    spec = Spec(exports=(Export('small', max_connections=2), Export('other')))
    server = t.server(spec)
    served = [t.open(server, name='small') for _ in range(2)]
    client = t.greet(server)
    result = client.go('small')
    t.check(result.final & nbdraw.REP_ERR, 'P131', f'third client of two got {result.name}')
    client.must_ack(client.go('other'), 'P17')
    t.requests_in_step(client, 'P17', 'on the other export')
    for held in served:
        t.requests_in_step(held, 'P131', 'with the export full')


@case
def crowd_of_idle_handshakes(t):
    """P131, P130: a crowd of strangers who say nothing costs little and is let go"""
    with t.witness():
        crowd = [t.dial() for _ in range(200)]
        for client in crowd[::2]:
            try:
                client.recv(18)
            except nbdraw.Closed:
                pass
        for client in crowd:
            client.close()


@case
def crowd_of_clients(t):
    """P130, P131: hundreds of connections come, are served, and leave no descriptor behind"""
    server = t.server()
    with t.witness(server):
        for turn in range(3):
            crowd = [t.open(server) for _ in range(50)]
            for client in crowd:
                client.submit(CMD_READ, 0, 4096)
            for client in crowd:
                t.error(client.collect_next(), 0, 'P130', 'READ in a crowd')
            for number, client in enumerate(crowd):
                if number % 2:
                    client.disc()
                    client.drain()
                client.close()
            if not turn:
                before = server.fd_count()
        for _ in range(100000):
            # Closes are seen by the server in its own time; ask it for something meanwhile.
            if server.fd_count() <= before + 8:
                break
            t.open(server).close()
        else:
            t.check(False, 'P130', f'{server.fd_count()} descriptors, {before} at first')


@case
def large_requests_from_many(t):
    """P130, P66: several clients with 32 MiB each in flight are all served, in bounded memory"""
    server = t.server()
    with t.witness(server, bounded=False):
        clients = [t.open(server) for _ in range(6)]
        for client in clients:
            for _ in range(2):
                client.submit(CMD_READ, 0, 32 * MIB)
        for client in clients:
            for _ in range(2):
                t.error(client.collect_next(), 0, 'P66', 'READ of 32 MiB beside others')
