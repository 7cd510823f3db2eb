# SPDX-License-Identifier: Apache-2.0
"""Commands and flags that do not exist, error codes, bad magics (P117-P121)."""

import nbdraw
from nbdraw import (CF_DF, CF_FAST_ZERO, CF_NO_HOLE, CF_REQ_ONE, CMD_BLOCK_STATUS, CMD_CACHE,
                    CMD_DISC, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, EINVAL,
                    EIO, ENOSPC, EPERM, EXTENDED, SIMPLE, TF_CACHE, TF_FLUSH, TF_TRIM,
                    TF_WRITE_ZEROES, pack_request)
from replies import ERRORS
from servers import Export, Fault, Spec
from suite import case

META = ('base:allocation',)


@case
def unknown_commands(t):
    """P117, P121: unknown commands are EINVAL whatever their length, and carry no payload"""
    for mode in t.modes():
        client = t.open(mode=mode)
        for kind in (8, 9, 10, 99, 0x100, 0x7fff, 0xffff):
            for length in (0, 1, 512, 65536, 0xffffffff):
                t.error(client.call(kind, 0, length), EINVAL, 'P117', f'length {length}')
            t.requests_in_step(client, 'P121', f'after command {kind}')


@case
def unknown_flags(t):
    """P117: a flag that no command has is EINVAL on every command, and nothing is done"""
    for mode in t.modes():
        client = t.open(mode=mode, meta=META if mode != SIMPLE else ())
        client.write(0, b'keep' * 1024)
        for bit in (6, 7, 10, 15):
            for kind, flag in ((CMD_READ, 1), (CMD_WRITE, 1), (CMD_FLUSH, TF_FLUSH),
                               (CMD_TRIM, TF_TRIM), (CMD_WRITE_ZEROES, TF_WRITE_ZEROES),
                               (CMD_CACHE, TF_CACHE), (CMD_BLOCK_STATUS, 1)):
                if not client.offers(flag):
                    continue
                payload = b'lost' * 1024 if kind == CMD_WRITE else b''
                length = 0 if kind in (CMD_FLUSH, CMD_WRITE) else 4096
                t.error(client.call(kind, 0, length, 1 << bit, payload), EINVAL, 'P117',
                        f'flag bit {bit} in {mode} mode')
            t.equal(client.read(0, 4096), b'keep' * 1024, 'P117', 'data')


@case
def misplaced_flags(t):
    """P117: flags that belong to other commands are EINVAL, and nothing is done"""
    alien = {
        CMD_READ: (CF_NO_HOLE, CF_REQ_ONE, CF_FAST_ZERO),
        CMD_WRITE: (CF_NO_HOLE, CF_DF, CF_REQ_ONE, CF_FAST_ZERO),
        CMD_FLUSH: (CF_NO_HOLE, CF_DF, CF_REQ_ONE, CF_FAST_ZERO),
        CMD_TRIM: (CF_NO_HOLE, CF_DF, CF_REQ_ONE, CF_FAST_ZERO),
        CMD_CACHE: (CF_NO_HOLE, CF_DF, CF_REQ_ONE, CF_FAST_ZERO),
        CMD_WRITE_ZEROES: (CF_DF, CF_REQ_ONE),
        CMD_BLOCK_STATUS: (CF_NO_HOLE, CF_DF, CF_FAST_ZERO),
    }
    offered = {CMD_FLUSH: TF_FLUSH, CMD_TRIM: TF_TRIM, CMD_CACHE: TF_CACHE,
               CMD_WRITE_ZEROES: TF_WRITE_ZEROES}
    for mode in t.modes():
        client = t.open(mode=mode, meta=META if mode != SIMPLE else ())
        client.write(0, b'keep' * 1024)
        for kind, flags in alien.items():
            if not client.offers(offered.get(kind, 1)):
                continue
            for flag in flags:
                payload = b'lost' * 1024 if kind == CMD_WRITE else b''
                length = 0 if kind in (CMD_FLUSH, CMD_WRITE) else 4096
                t.error(client.call(kind, 0, length, flag, payload), EINVAL, 'P117',
                        f'flag {flag} in {mode} mode')
        t.equal(client.read(0, 4096), b'keep' * 1024, 'P117', 'data')


@case
def flush_with_a_range(t):
    """P117, P129: FLUSH with offset and length breaks a MUST: answered or closed, never hung"""
    with t.witness():
        client = t.open()
        t.need(client.offers(TF_FLUSH), 'FLUSH')
        try:
            reply = client.call(CMD_FLUSH, 4096, 512)
            t.error(reply, (0, EINVAL), 'P117')
            t.requests_in_step(client, 'P117', 'after FLUSH with a range')
        except nbdraw.Closed:
            pass


@case
def error_codes_are_mapped(t):
    """P118: every errno of a disk arrives as one of the eight codes of the protocol"""
    table = {'EIO': EIO, 'ENOSPC': ENOSPC, 'EDQUOT': ENOSPC, 'EFBIG': ENOSPC, 'EPERM': EPERM,
             'EINVAL': EINVAL, 'EROFS': EPERM}
    # Not ENOMEM: a disk that says so may be quoted, a server should never come to it by itself.
    loose = ('ENOENT', 'EREMOTEIO', 'ETIMEDOUT', 'ENODEV', 'ENXIO', 'EBADF', 'EOPNOTSUPP',
             'EOVERFLOW', 'ESHUTDOWN', 'EAGAIN')
    for errno in tuple(table) + loose:
        server = t.server(Spec(exports=(Export(filters=(Fault('write', errno),)),)))
        for mode in t.modes():
            client = t.open(server, mode=mode)
            reply = client.call(CMD_WRITE, 0, payload=bytes(512))
            t.error(reply, table.get(errno, tuple(ERRORS)), 'P118', f'{errno} in {mode} mode')
            t.requests_in_step(client, 'P118', f'after {errno}')
        t.pool.drop(server)
        t.used.remove(server)


@case
def bad_request_magic(t):
    """P120: a wrong request magic is a lost stream: the server disconnects and stays well"""
    with t.witness():
        for mode in t.modes():
            for magic in (0, 0x25609512, 0x13956025, 0x67446698, 0x668e33ef, 0xffffffff,
                          int.from_bytes(b'IHAV', 'big'), 0x12560953):
                client = t.open(mode=mode)
                client.send(pack_request(CMD_READ, 1, 0, 512, mode=mode, magic=magic))
                client.expect_closed('P120', f'request magic {magic:#x} in {mode} mode')


@case
def bad_magic_behind_good_requests(t):
    """P120, P130: requests before the bad magic may be answered, nothing after it is"""
    with t.witness():
        for mode in t.modes():
            client = t.open(mode=mode)
            good = [client.submit(CMD_READ, i * 4096, 4096) for i in range(4)]
            try:
                client.send(pack_request(CMD_READ, 1, 0, 512, mode=mode, magic=0xdeadbeef) +
                            pack_request(CMD_READ, 2, 0, 512, mode=mode))
                while True:
                    t.check(client.collect_next().request.cookie in good, 'P120', 'reply')
            except nbdraw.Closed:
                pass


@case
def option_after_go(t):
    """P120, P124: an option sent in transmission is a bad magic"""
    with t.witness():
        client = t.open()
        client.send(nbdraw.pack_option(nbdraw.OPT_ABORT) + bytes(64))
        client.expect_closed('P120', 'an option in transmission')


@case
def request_in_handshake(t):
    """P17, P124: a request sent before GO is a bad option magic"""
    with t.witness():
        for mode in (SIMPLE, EXTENDED):
            client = t.greet()
            client.send(pack_request(CMD_DISC, 0, 0, 0, mode=mode) + bytes(64))
            client.drain()
