# SPDX-License-Identifier: Apache-2.0
"""What a test is, what it may use, and how it ends.

A test is a function decorated with @case whose docstring begins with the rows it covers:
"P10, P122: what must hold".  It gets a Test, through which it starts servers (kept and shared by
Spec), opens connections (closed at the end) and states what must be true.
"""

import contextlib
import importlib
import os
import re

import nbdraw
import servers
from nbdraw import Client, Closed
from replies import Violation
from servers import MIB, Spec

CASES = []
CHAPTERS = ('oracle', 'handshake', 'options', 'meta', 'transmission', 'commands', 'structured',
            'extended', 'status', 'tls', 'errors', 'disconnect', 'hostile', 'resources')

# A server may keep this much more memory after a hostile test than before it.  Far below the
# 4 GiB that the claims ask for, far above what buffers and allocator slack explain.
RSS_SLACK = 256 * MIB


class Skip(Exception):
    """The test says nothing about this server; the text is the reason."""


class Case:
    def __init__(self, function):
        self.function = function
        self.chapter = function.__module__.removeprefix('test_')
        self.name = f'{self.chapter}.{function.__name__}'
        doc = ' '.join((function.__doc__ or '').split())
        match = re.match(r'((?:P\d+)(?:, P\d+)*): (.+)', doc)
        if not match:
            raise SystemExit(f'{self.name}: the docstring must begin with its rows')
        self.rows = match.group(1).split(', ')
        self.title = match.group(2)


def case(function):
    CASES.append(Case(function))
    return function


def load():
    """All cases, in the order of the chapters."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = {n[5:-3] for n in os.listdir(here) if n.startswith('test_') and n.endswith('.py')}
    if found != set(CHAPTERS):
        raise SystemExit(f'chapters on disk and in CHAPTERS differ: {found ^ set(CHAPTERS)}')
    for chapter in CHAPTERS:
        importlib.import_module(f'test_{chapter}')
    return CASES


class Pool:
    """Running servers by Spec.  A server that misbehaved is stopped and started afresh."""

    def __init__(self, peer):
        self.peer = peer
        self.running = {}
        self.complaints = []

    def get(self, spec):
        if spec not in self.running:
            self.running[spec] = servers.Server(self.peer, spec)
        return self.running[spec]

    def fresh(self, spec):
        """A server nobody else has talked to; the caller's Test stops it."""
        return servers.Server(self.peer, spec)

    def drop(self, server):
        for spec in [s for s, running in self.running.items() if running is server]:
            del self.running[spec]
        complaint = server.stop()
        if complaint:
            self.complaints.append(complaint)

    def stop(self):
        for server in list(self.running.values()):
            self.drop(server)


class Test:
    """One run of one case."""

    def __init__(self, case_, pool):
        self.case = case_
        self.pool = pool
        self.peer = pool.peer if pool else None
        self.used = []
        self.stack = contextlib.ExitStack()

    # -- servers and connections -------------------------------------------------------------

    def server(self, spec=Spec()):
        try:
            server = self.pool.get(spec)
        except servers.Unsupported as reason:
            raise Skip(str(reason)) from None
        server.check_alive()
        if server not in self.used:
            self.used.append(server)
        return server

    def fresh_server(self, spec=Spec()):
        try:
            server = self.pool.fresh(spec)
        except servers.Unsupported as reason:
            raise Skip(str(reason)) from None
        self.stack.callback(server.stop)
        return server

    def dial(self, server=None):
        """A connection on which nothing has been said."""
        server = server or self.server()
        client = Client(server.address)
        client.default_name = server.peer.default_name
        client.may_demand_tls = bool(server.spec.tls)
        self.stack.callback(client.close)
        return client

    def greet(self, server=None, flags=3):
        """A connection that is ready for options."""
        return self.dial(server).greet(flags)

    def open(self, server=None, mode=nbdraw.SIMPLE, name=None, meta=(), ask=True):
        """A connection in transmission.  ask: INFO_BLOCK_SIZE is requested."""
        server = server or self.server()
        name = server.spec.exports[0].name if name is None else name
        client = self.greet(server)
        self.need(client.use_mode(mode), f'{mode} replies')
        if meta:
            result = client.set_meta(meta, name)
            self.need(result.final != nbdraw.ERR_UNSUP, 'metadata contexts')
            client.must_ack(result, 'P40')
        result = client.go(name, (nbdraw.INFO_BLOCK_SIZE,) if ask else ())
        client.must_ack(result, 'P23')
        return client

    def modes(self, wanted=(nbdraw.SIMPLE, nbdraw.STRUCTURED, nbdraw.EXTENDED)):
        """The reply modes of this server, in turn."""
        for mode in wanted:
            client = self.greet()
            able = client.use_mode(mode)
            client.close()
            if able:
                yield mode
            else:
                self.demand(mode + ' replies')

    # -- verdicts ----------------------------------------------------------------------------

    def skip(self, reason):
        raise Skip(reason)

    def demand(self, feature):
        """Fail a server that must have every feature; do nothing for others."""
        if self.peer.complete:
            raise Violation(self.case.rows[0], f'{self.peer.name} must have {feature}')

    def need(self, present, feature):
        """Skip (or fail, see demand) unless the feature is there."""
        if not present:
            self.demand(feature)
            raise Skip(f'no {feature}')

    @staticmethod
    def check(condition, row, text):
        if not condition:
            raise Violation(row, text)

    def equal(self, got, wanted, row, what):
        if got != wanted:
            if isinstance(got, (bytes, bytearray)):
                at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b),
                          min(len(got), len(wanted)))
                raise Violation(row, f'{what}: {len(got)} bytes differ at {at}: '
                                     f'{bytes(got[at:at + 16]).hex()} instead of '
                                     f'{bytes(wanted[at:at + 16]).hex()}')
            raise Violation(row, f'{what}: {got!r} instead of {wanted!r}')

    def final(self, result, wanted, row, what=''):
        """The option ended with one of the wanted reply types."""
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        names = ' or '.join(nbdraw.rep_name(w) for w in wanted)
        self.check(result.final in wanted, row,
                   f'option {result.option} {what} got {result.name} {result.text!r}, not {names}')

    def error(self, reply, wanted, row, what=''):
        """The command failed with one of the wanted errors (0 is success)."""
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        self.check(reply.error in wanted, row,
                   f'command {reply.request.kind} {what} got {reply.describe()}, not {wanted}')

    def options_in_step(self, client, row, why):
        """The option stream is where it should be: an INFO is answered, once and fully."""
        result = client.option(nbdraw.OPT_INFO, nbdraw.pack_info('no such export'))
        self.check(result.final & nbdraw.REP_ERR or result.ok, row, f'{why}: {result.name}')

    def requests_in_step(self, client, row, why):
        """The request stream is where it should be: a READ is answered with its own cookie."""
        length = min(512, client.size)
        try:
            reply = client.call(nbdraw.CMD_READ, 0, length)
        except Closed as end:
            raise Violation(row, f'{why}: {end}') from None
        self.check(not reply.error, row, f'{why}: {reply.describe()}')

    @contextlib.contextmanager
    def witness(self, server=None, bounded=True):
        """Hostility inside, innocent bystanders outside: on leaving, a connection that was
        there before still does verified I/O, a new one is served, and memory is bounded."""
        server = server or self.server()
        name = server.spec.exports[0].name
        client = self.open(server, name=name)
        writable = not client.offers(nbdraw.TF_READ_ONLY)
        offset = client.size - 65536
        pattern = os.urandom(4096) * 16
        if writable:
            client.write(offset, pattern)
        before = server.rss()
        yield client
        server.check_alive()
        if writable:
            self.equal(client.read(offset, 65536), pattern, 'P130', 'data of the witness')
            client.write(offset, pattern[::-1])
            self.equal(client.read(offset, 65536), pattern[::-1], 'P130', 'data of the witness')
        self.requests_in_step(client, 'P130', 'the witness connection')
        with contextlib.closing(Client(server.address)) as later:
            later.default_name = server.peer.default_name
            later.greet()
            later.must_ack(later.go(name), 'P130')
            self.requests_in_step(later, 'P130', 'a new connection')
            later.disc()
        grown = server.rss() - before
        self.check(not bounded or grown < RSS_SLACK, 'P123', f'server grew by {grown >> 20} MiB')
        client.disc()

    def finish(self):
        """Close connections and see that the servers outlived the test."""
        self.stack.close()
        for server in self.used:
            server.check_alive()
