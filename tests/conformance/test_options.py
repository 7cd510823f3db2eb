# SPDX-License-Identifier: Apache-2.0
"""Option haggling and the choice of an export (P10-P35, P45, P46, P56)."""

import struct

import nbdraw
from nbdraw import (ERR_INVALID, ERR_POLICY, ERR_SHUTDOWN, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP,
                    INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, OPT_ABORT, OPT_GO,
                    OPT_INFO, OPT_LIST, OPT_STARTTLS, OPT_STRUCTURED_REPLY, REP_ACK, pack_info,
                    pack_option)
from servers import Delay, Export, Spec
from suite import case

NAMED = Spec(exports=(Export('alpha', 1 << 20),))
PLAIN_MANY = Spec(exports=(Export('alpha', 1 << 20), Export('beta', 2 << 20)))


@case
def unknown_options(t):
    """P10, P122: unknown options, with or without data, get ERR_UNSUP and are skipped exactly"""
    for option in (0, 4, 12, 99, 0x7fffffff, 0x80000000, 0xffffffff):
        client = t.greet()
        for size in (0, 1, 8, 19, 100, 4096):
            # Data that looks like an option must not be taken for one.
            data = (pack_option(OPT_ABORT) * 300)[:size]
            t.final(client.option(option, data), ERR_UNSUP, 'P10', f'with {size} bytes')
        client.must_ack(client.go(), 'P10')
        t.requests_in_step(client, 'P10', 'after unknown options')


@case
def long_unknown_options(t):
    """P10, P122: an unknown option with more data than any known one gets ERR_UNSUP all the same"""
    client = t.greet()
    for size in (16384, 16385, 65536, 100000):
        t.final(client.option(999, b'\xff' * size), ERR_UNSUP, 'P10', f'with {size} bytes')
    client.must_ack(client.go(), 'P10')
    t.requests_in_step(client, 'P122', 'after long unknown options')


@case
def one_final_reply_each(t):
    """P11: every option is answered by its own number and exactly one final reply"""
    client = t.greet()
    for option, data in ((OPT_LIST, b''), (OPT_LIST, b'x'), (OPT_INFO, pack_info('')),
                         (OPT_INFO, b''), (OPT_STRUCTURED_REPLY, b'no'), (50, b''),
                         (OPT_STARTTLS, b''), (OPT_STRUCTURED_REPLY, b''),
                         (nbdraw.OPT_LIST_META, nbdraw.pack_meta(''))):
        client.option(option, data)
    client.must_ack(client.option(OPT_ABORT), 'P11')
    client.half_close()
    client.expect_closed('P11', 'bytes beyond the last final reply')


@case
def bad_option_magic(t):
    """P17, P129: an option without IHAVEOPT is a lost stream and is disconnected"""
    for magic in (b'IHAVEOPS', b'\0' * 8, b'NBDMAGIC'):
        client = t.greet()
        client.send(pack_option(OPT_LIST, magic=magic))
        client.drain()


@case
def abort(t):
    """P15: ABORT gets ACK and ends the session; its data is ignored, however long it is"""
    for size in (0, 7, 4000, 16384, 16385, 100000):
        client = t.greet()
        client.must_ack(client.option(OPT_ABORT, b'x' * size), 'P15')
        client.expect_closed('P15', f'after ABORT with {size} bytes')


@case
def abort_and_go_away(t):
    """P15, P130: a client that sends ABORT and leaves harms nobody"""
    with t.witness():
        for _ in range(20):
            client = t.greet()
            client.send(pack_option(OPT_ABORT))
            client.reset()


@case
def list_default_export(t):
    """P16: LIST names the default export, or is refused with ERR_POLICY"""
    client = t.greet()
    result = client.option(OPT_LIST)
    t.final(result, (REP_ACK, ERR_POLICY), 'P16')
    if result.ok:
        t.equal([n for n, _ in result.servers()], [b''], 'P16', 'listed exports')


@case
def list_many_exports(t):
    """P16: LIST has one entry for each export"""
    client = t.greet(t.server(PLAIN_MANY))
    result = client.option(OPT_LIST)
    client.must_ack(result, 'P16')
    t.equal(sorted(n for n, _ in result.servers()), [b'alpha', b'beta'], 'P16', 'listed exports')


@case
def list_descriptions(t):
    """P16, P28: LIST and INFO_DESCRIPTION carry the description that was configured"""
    spec = Spec(exports=(Export('alpha', description='first of two'),))
    client = t.greet(t.server(spec))
    listed = client.option(OPT_LIST).servers()
    t.equal(listed, [(b'alpha', b'first of two')], 'P16', 'listed exports')
    infos = client.info('alpha', (INFO_DESCRIPTION,)).infos()
    t.equal(infos.get(INFO_DESCRIPTION), [b'first of two'], 'P28', 'INFO_DESCRIPTION')


@case
def list_with_data(t):
    """P16, P122: LIST with data gets ERR_INVALID and the data is skipped"""
    client = t.greet()
    for size in (1, 4, 1000):
        t.final(client.option(OPT_LIST, b'z' * size), ERR_INVALID, 'P16', f'with {size} bytes')
    t.final(client.option(OPT_LIST), (REP_ACK, ERR_POLICY), 'P122')


@case
def repeated_structured_reply(t):
    """P13: asking twice for structured replies gets ACK or ERR_INVALID, and they stay on"""
    client = t.greet()
    t.need(client.use_mode(nbdraw.STRUCTURED), 'structured replies')
    t.final(client.option(OPT_STRUCTURED_REPLY), (REP_ACK, ERR_INVALID), 'P13')
    client.must_ack(client.go(), 'P13')
    t.requests_in_step(client, 'P13', 'structured READ')


@case
def unwelcome_client_is_answered(t):
    """P17: a client whose options all fail keeps getting errors and may still enter"""
    client = t.greet(t.server(NAMED))
    for turn in range(24):
        t.final(client.go(f'missing {turn}'), (ERR_UNKNOWN, ERR_POLICY), 'P17')
    client.must_ack(client.go('alpha'), 'P17')
    t.equal(client.size, 1 << 20, 'P17', 'size')


@case
def error_texts(t):
    """P20: error replies carry a text for a human"""
    client = t.greet(t.server(NAMED))
    for option, data in ((OPT_GO, pack_info('missing')), (OPT_LIST, b'x'), (OPT_INFO, b''),
                         (12345, b'')):
        t.check(client.option(option, data).text, 'P20', f'option {option} failed without a text')


@case
def malformed_info_and_go(t):
    """P22, P122, P11: INFO and GO whose lengths disagree get one ERR_INVALID and stay in step"""
    bad = {
        'no data': b'',
        'half a name length': b'\0\0',
        'name length only': struct.pack('>I', 0),
        'no count': pack_info('abc')[:-2],
        'half a count': pack_info('abc')[:-1],
        'name one too long': pack_info('abc', name_len=4),
        'name swallows the count': pack_info('abc', name_len=5),
        'name past the end': pack_info('abc', name_len=6),
        'name of 2 GiB': pack_info('abc', name_len=0x80000000),
        'name of 4 GiB': pack_info('abc', name_len=0xffffffff),
        'name that wraps with 6': pack_info('abc', name_len=0xfffffffa),
        'count too large': pack_info('', (INFO_BLOCK_SIZE,), count=2),
        'count too small': pack_info('', (INFO_BLOCK_SIZE, INFO_NAME), count=1),
        'count of 65535': pack_info('', (INFO_BLOCK_SIZE,), count=65535),
        'half a request': pack_info('', (INFO_BLOCK_SIZE,)) + b'\0',
        'trailing bytes': pack_info('') + b'\0\0\0\0',
    }
    for option in (OPT_INFO, OPT_GO):
        for what, data in bad.items():
            client = t.greet()
            t.final(client.option(option, data), ERR_INVALID, 'P22', what)
            t.options_in_step(client, 'P122', what)
            client.must_ack(client.go(), 'P22')
            t.requests_in_step(client, 'P22', what)


@case
def info_export_comes_before_ack(t):
    """P23: INFO and GO give INFO_EXPORT of 12 bytes whatever was asked, and ignore the unknown"""
    for requests in ((), (INFO_EXPORT,), (INFO_NAME, INFO_BLOCK_SIZE, INFO_DESCRIPTION),
                     (9999,), (0xffff, 4, INFO_BLOCK_SIZE), tuple(range(200))):
        client = t.greet()
        client.must_ack(client.info(requests=requests), 'P23')
        client.must_ack(client.go(requests=requests), 'P23')
        t.equal(client.size, t.server().spec.exports[0].size, 'P23', 'size')
        t.requests_in_step(client, 'P23', f'asked for {requests[:5]}')


@case
def no_zeroes_after_go(t):
    """P25: nothing but replies follows the ACK to GO, with and without NO_ZEROES"""
    for flags in (1, 3):
        client = t.greet(flags=flags)
        client.must_ack(client.go(), 'P25')
        t.requests_in_step(client, 'P25', f'client flags {flags}')


@case
def info_then_go(t):
    """P26: GO repeats what INFO said when nothing came between"""
    for mode in t.modes():
        for requests in ((), (INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE)):
            client = t.greet()
            client.use_mode(mode)
            said = client.info(requests=requests)
            done = client.go(requests=requests)
            t.equal(sorted(done.of_type(nbdraw.REP_INFO)), sorted(said.of_type(nbdraw.REP_INFO)),
                    'P26', f'information in {mode} mode')


@case
def missing_export(t):
    """P27: an export that does not exist gets ERR_UNKNOWN and no information"""
    client = t.greet(t.server(NAMED))
    for name in ('gamma', 'a/b', 'n' * 255, 'ü' * 100, 'n' * 4096):
        for option in (OPT_INFO, OPT_GO):
            result = client.option(option, pack_info(name, (INFO_BLOCK_SIZE, INFO_NAME)))
            t.final(result, ERR_UNKNOWN, 'P27', f'for {name[:20]!r}')
            t.equal(result.of_type(nbdraw.REP_INFO), [], 'P27', 'information on a missing export')


@case
def no_default_export(t):
    """P27: the empty name is no wildcard: without a default export it gets ERR_UNKNOWN"""
    client = t.greet(t.server(NAMED))
    result = client.go('')
    t.final(result, ERR_UNKNOWN, 'P27', 'for the empty name')


@case
def named_exports(t):
    """P27: each name leads to its own export, the empty one to the default"""
    spec = Spec(exports=(Export('', 3 << 20), Export('alpha', 1 << 20), Export('beta', 2 << 20)))
    server = t.server(spec)
    for export in spec.exports:
        client = t.open(server, name=export.name)
        t.equal(client.size, export.size, 'P27', f'size of {export.name!r}')
        client.write(0, export.name.ljust(16).encode() * 32)
    for export in spec.exports:
        client = t.open(server, name=export.name)
        t.equal(client.read(0, 512), export.name.ljust(16).encode() * 32, 'P27',
                f'data of {export.name!r}')


@case
def odd_names(t):
    """P27, P1: names with spaces, slashes, quotes, controls and non-ASCII letters work"""
    names = ('with space', 'a/b/../c', "it's \"quoted\"", 'tab\there', 'ünïcödé', '日本語', '%41',
             'x' * 250, '-dash', '.')
    if not t.peer.complete:
        t.skip(f'{t.peer.name} is not run with odd names')
    server = t.server(Spec(exports=tuple(Export(n, (i + 1) << 20) for i, n in enumerate(names))))
    listed = t.greet(server).option(OPT_LIST).servers()
    t.equal(sorted(n for n, _ in listed), sorted(n.encode() for n in names), 'P16', 'listed names')
    for index, name in enumerate(names):
        t.equal(t.open(server, name=name).size, (index + 1) << 20, 'P27', f'size of {name!r}')


@case
def info_name(t):
    """P28: INFO_NAME, when asked for, is the canonical name"""
    server = t.server(Spec(exports=(Export('alpha'),)))
    items = t.greet(server).info('alpha', (INFO_NAME,)).infos()
    t.equal(items.get(INFO_NAME), [b'alpha'], 'P28', 'INFO_NAME')


@case
def block_sizes(t):
    """P29, P58, P59, P60: INFO_BLOCK_SIZE is sent when asked for, and is sound"""
    client = t.greet()
    items = client.info(requests=(INFO_BLOCK_SIZE,)).infos()
    t.need(INFO_BLOCK_SIZE in items, 'INFO_BLOCK_SIZE')
    minimum, preferred, maximum = client.block_size
    t.check(minimum and not minimum & (minimum - 1) and minimum <= 65536, 'P58',
            f'minimum block {minimum}')
    t.check(client.size % minimum == 0, 'P58', f'size {client.size}, minimum block {minimum}')
    t.check(not preferred & (preferred - 1) and preferred >= max(minimum, 512), 'P59',
            f'preferred block {preferred}, minimum {minimum}')
    t.check(maximum >= preferred and maximum >= min(1 << 20, client.size), 'P60',
            f'maximum payload {maximum}, preferred block {preferred}')


@case
def block_size_not_demanded(t):
    """P30, P61: default constraints are never forced on anyone: GO without asking is accepted"""
    client = t.greet()
    result = client.go(requests=())
    t.check(result.final != nbdraw.ERR_BLOCK_SIZE_REQD, 'P30', 'demanded')
    client.must_ack(result, 'P61')
    client = t.greet()
    t.check(client.go(requests=(INFO_BLOCK_SIZE,)).final != nbdraw.ERR_BLOCK_SIZE_REQD, 'P30',
            'demanded of a client that asked')


@case
def transmission_flags(t):
    """P33: HAS_FLAGS is set and no flag promises what the negotiation excludes"""
    for mode in t.modes():
        client = t.open(mode=mode)
        flags = client.tflags
        t.check(flags & nbdraw.TF_HAS_FLAGS, 'P33', 'HAS_FLAGS is clear')
        t.check(not flags & ~0x1fff, 'P33', f'undefined bits in {flags:#x}')
        t.check(not flags & nbdraw.TF_RESIZE, 'P33', 'RESIZE offered')
        if mode == nbdraw.SIMPLE:
            t.check(not flags & nbdraw.TF_DF, 'P33', 'DF without structured replies')
        if mode != nbdraw.EXTENDED:
            t.check(not flags & nbdraw.TF_STATUS_PAYLOAD, 'P33', 'payload flag without extension')
        if not flags & nbdraw.TF_WRITE_ZEROES:
            t.check(not flags & nbdraw.TF_FAST_ZERO, 'P33', 'FAST_ZERO without WRITE_ZEROES')


@case
def structured_reply_option(t):
    """P35: STRUCTURED_REPLY is accepted without data and refused with data"""
    client = t.greet()
    result = client.option(OPT_STRUCTURED_REPLY, b'1')
    t.need(result.final != ERR_UNSUP, 'structured replies')
    t.final(result, ERR_INVALID, 'P35', 'with data')
    client.must_ack(client.go(), 'P35')
    # Refused, so the mode is still simple: a READ must get a simple reply.
    t.requests_in_step(client, 'P35', 'simple READ after a refused STRUCTURED_REPLY')
    client = t.greet()
    t.check(client.use_mode(nbdraw.STRUCTURED), 'P35', 'not supported')


@case
def starttls_is_refused(t):
    """P45, P46: without TLS, STARTTLS is refused every time and the connection goes on in clear"""
    client = t.greet()
    for _ in range(3):
        t.final(client.option(OPT_STARTTLS), (ERR_POLICY, ERR_UNSUP), 'P46')
    t.check(not client.option(OPT_STARTTLS, b'data').ok, 'P46', 'STARTTLS with data accepted')
    t.options_in_step(client, 'P46', 'after STARTTLS with data')
    structured = client.use_mode(nbdraw.STRUCTURED)
    t.final(client.option(OPT_STARTTLS), (ERR_POLICY, ERR_UNSUP), 'P45')
    client.must_ack(client.go(), 'P45')
    t.requests_in_step(client, 'P45', f'structured={structured} after a refused STARTTLS')


@case
def bytes_behind_starttls(t):
    """P56, P46: options sent in one piece with a refused STARTTLS are plain options, in order"""
    client = t.greet()
    client.send(pack_option(OPT_STARTTLS) + pack_option(4711, b'abc') + pack_option(OPT_STARTTLS) +
                pack_option(OPT_INFO, pack_info('')))
    t.final(client.recv_option_result(OPT_STARTTLS), (ERR_POLICY, ERR_UNSUP), 'P46')
    t.final(client.recv_option_result(4711), ERR_UNSUP, 'P56')
    t.final(client.recv_option_result(OPT_STARTTLS), (ERR_POLICY, ERR_UNSUP), 'P46')
    client.must_ack(client.recv_option_result(OPT_INFO), 'P56')


@case
def client_hello_as_option(t):
    """P56, P129: TLS bytes where an option belongs are a lost stream, not a handshake"""
    client = t.greet()
    client.send(bytes.fromhex('16030100c8010000c40303') + bytes(200))
    rest = client.drain()
    t.check(not rest.startswith(b'\x16\x03'), 'P56', f'answered {rest[:20].hex()}')


@case
def long_names(t):
    """P1, P27: a name of 4096 bytes is answered, a longer one refused, both in step"""
    client = t.greet(t.server(NAMED))
    t.final(client.info('y' * 4096), ERR_UNKNOWN, 'P27', 'for 4096 bytes')
    for size in (4097, 5000, 16000):
        t.final(client.info('y' * size), (ERR_UNKNOWN, ERR_INVALID, ERR_TOO_BIG), 'P1',
                f'for {size} bytes')
    t.options_in_step(client, 'P1', 'after long names')


@case
def shutdown_answers_options(t):
    """P18, P15: while the server stops, options get ERR_SHUTDOWN and ABORT gets ACK"""
    spec = Spec(exports=(Export(filters=(Delay('read', 3000),)),))
    server = t.fresh_server(spec)
    haggling = t.greet(server)
    aborting = t.greet(server)
    busy = t.open(server)
    busy.submit(nbdraw.CMD_READ, 0, 512)
    t.options_in_step(haggling, 'P18', 'before the stop')
    server.signal_stop()
    # The read in flight holds the server open for seconds; until it has seen the signal it may
    # answer as usual.
    try:
        for _ in range(1000000):
            result = haggling.option(OPT_INFO, pack_info(''))
            if not result.ok:
                break
        t.final(result, ERR_SHUTDOWN, 'P18', 'during shutdown')
        aborting.must_ack(aborting.option(OPT_ABORT), 'P15')
    except nbdraw.Closed:
        t.check(False, 'P18', 'disconnected instead of ERR_SHUTDOWN')
