# SPDX-License-Identifier: Apache-2.0
"""Captive servers: one process per Spec, on a Unix socket or a TCP port the kernel picked.

A Spec says what a test needs in words common to all servers; each Peer turns it into a command
line or says that its server cannot do it (Unsupported, which skips the test).  Servers that know
socket activation get a socket that already listens, so nothing has to wait for them.
"""

import atexit
import ctypes
import dataclasses
import functools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'functional'))
import ports  # noqa: E402
import tls_tool  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
START_SECONDS = 60
# How much of a server's own output a complaint shows: the end, where sanitizers speak.
LOG_TAIL = 2500


# LISTEN_PID must be the server's own id, so a launcher sets it and then becomes the server.
ACTIVATE = '''
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
'''


PR_SET_PDEATHSIG = 1
PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """In the child: no server outlives a suite that was killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Unsupported(Exception):
    """This peer has no such feature; the reason is the text."""


class ServerDied(AssertionError):
    """The server exited, or would not exit when told to."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """Requests of kind op (read, write, flush, trim, zero, cache, extents) fail with errno."""
    op: str
    errno: str
    nth: int = 0
    where: tuple = ()


@dataclasses.dataclass(frozen=True)
class Delay:
    """Requests of kind op take at least that many milliseconds."""
    op: str
    ms: int
    where: tuple = ()


@dataclasses.dataclass(frozen=True)
class Export:
    name: str = ''
    size: int = 64 * MIB
    readonly: bool = False
    description: str = ''
    file: bool = False
    filters: tuple = ()
    max_connections: int = 0


@dataclasses.dataclass(frozen=True)
class Spec:
    """limits: pairs of gmblock option name and value, e.g. ('handshake-timeout', '1s').
    tls: '' (NOTLS), 'on' (SELECTIVETLS) or 'require' (FORCEDTLS), with the credentials below."""
    exports: tuple = (Export(),)
    transport: str = 'unix'
    limits: tuple = ()
    tls: str = ''


@functools.cache
def credentials():
    """A folder with the certificate of "localhost" and its authority, for servers and clients."""
    folder = tempfile.mkdtemp(prefix='nbdconf.')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority = tls_tool.Authority(os.path.join(folder, 'authority'), 'Conformance CA')
    authority.give(os.path.join(folder, 'pki'), 'server', ['cn = "localhost"',
                                                          'dns_name = "localhost"'])
    return os.path.join(folder, 'pki')


class Address:
    def __init__(self, family, sockaddr):
        self.family = family
        self.sockaddr = sockaddr


class Daemon:
    """A process that put itself in the background, with the face of subprocess.Popen."""
    stdout = None

    def __init__(self, pid):
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.returncode = None

    def poll(self):
        if self.returncode is None and select.select([self.pidfd], [], [], 0)[0]:
            self.returncode = 0
        return self.returncode

    def wait(self, seconds=None):
        if self.returncode is None and not select.select([self.pidfd], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(f'process {self.pid}', seconds)
        return self.poll()

    def send_signal(self, number):
        signal.pidfd_send_signal(self.pidfd, number)


class Server:
    """A running server.  stop() is safe to call twice."""

    def __init__(self, peer, spec):
        self.peer = peer
        self.spec = spec
        self.dir = tempfile.mkdtemp(prefix='nbdconf.')
        self.listener = None
        self.process = None
        self.log = open(os.path.join(self.dir, 'log'), 'w+b')
        try:
            peer.start(self)
        except BaseException:
            self.stop()
            raise

    def path(self, name):
        return os.path.join(self.dir, name)

    def image(self, index):
        """A sparse file of the right size for the index-th export."""
        path = self.path(f'disk{index}')
        if not os.path.exists(path):
            with open(path, 'wb') as disk:
                disk.truncate(self.spec.exports[index].size)
        return path

    def listen(self):
        """A listening socket for socket activation, and the address of it."""
        if self.spec.transport == 'unix':
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(self.path('sock'))
            self.address = Address(socket.AF_UNIX, self.path('sock'))
        else:
            self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.listener.bind(('127.0.0.1', 0))
            self.address = Address(socket.AF_INET, self.listener.getsockname())
        self.listener.listen(128)

    def spawn(self, argv, stdout=None, activate=False):
        keep = {}
        if activate:
            self.listen()
            argv = [sys.executable, '-c', ACTIVATE, str(self.listener.fileno())] + argv
            keep = {'pass_fds': [self.listener.fileno()]}
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout or self.log,
                                        stderr=self.log, start_new_session=True,
                                        preexec_fn=die_with_parent, **keep)
        if activate:
            self.listener.close()

    def pids(self):
        """The server and all its descendants."""
        parents = {}
        for entry in os.listdir('/proc'):
            if entry.isdigit():
                try:
                    with open(f'/proc/{entry}/stat') as stat:
                        parents[int(entry)] = int(stat.read().rpartition(')')[2].split()[1])
                except (OSError, IndexError, ValueError):
                    pass
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def rss(self):
        """Resident bytes of the server and its children."""
        total = 0
        for pid in self.pids():
            try:
                with open(f'/proc/{pid}/status') as status:
                    for line in status:
                        if line.startswith('VmRSS:'):
                            total += int(line.split()[1]) * 1024
            except OSError:
                pass
        return total

    def fd_count(self):
        """Open descriptors of the main process, to see that closed connections are let go."""
        return len(os.listdir(f'/proc/{self.process.pid}/fd'))

    def log_text(self):
        self.log.flush()
        with open(self.path('log'), 'rb') as log:
            return log.read().decode(errors='replace')

    def check_alive(self):
        if self.process.poll() is not None:
            raise ServerDied(f'server exited with status {self.process.returncode}:\n'
                             f'{self.log_text()[-LOG_TAIL:]}')

    def signal_stop(self):
        self.process.send_signal(signal.SIGTERM)

    def kill(self):
        """SIGKILL to this server's own process group, as long as the server is there to own it."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()

    def wait_exit(self):
        """Exit status after SIGTERM."""
        try:
            return self.process.wait(self.peer.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerDied(f'server still there {self.peer.stop_seconds} s after SIGTERM:\n'
                             f'{self.log_text()[-LOG_TAIL:]}') from None

    def stop(self):
        """Clean stop.  Returns a complaint if the server's end was not clean, else None."""
        complaint = None
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                self.signal_stop()
                try:
                    status = self.wait_exit()
                except ServerDied as error:
                    complaint = str(error)
            if complaint is None and status not in self.peer.clean_exits:
                complaint = f'server ended with status {status}:\n{self.log_text()[-LOG_TAIL:]}'
            if self.process.stdout:
                self.process.stdout.close()
            self.kill()
            self.process = None
        if not self.log.closed:
            self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        return complaint


class Peer:
    """name and how to start one server program.

    complete: skipping a test is a failure.  default_name: what to ask for instead of ''.
    """
    name = ''
    program = ''
    complete = False
    default_name = ''
    stop_seconds = 5
    clean_exits = (0,)

    def __init__(self, path=None):
        self.path = path or shutil.which(self.program)
        if self.path is None or not os.access(self.path, os.X_OK):
            raise SystemExit(f'{self.name}: program {path or self.program} not found')

    def refuse(self, spec, **wanted):
        """Raise Unsupported for whatever of these the spec asks."""
        reasons = {
            'limits': spec.limits,
            'many': len(spec.exports) > 1,
            'named': any(e.name for e in spec.exports),
            'filters': any(e.filters for e in spec.exports),
            'description': any(e.description for e in spec.exports),
            'max_connections': any(e.max_connections for e in spec.exports),
            'tcp6': spec.transport == 'tcp6',
            'tls': spec.tls,
        }
        for what in wanted:
            if reasons[what]:
                raise Unsupported(f'{self.name} is not run with {what} here')


class Gmblock(Peer):
    name = program = 'gmblock'
    complete = True
    stop_seconds = 60

    def start(self, server):
        spec = server.spec
        argv = [self.path, 'serve']
        for index, export in enumerate(spec.exports):
            store = server.image(index) if export.file else f'memory:{export.size}'
            keys = self.keys(export)
            argv += ['--export', ','.join([f'{export.name}={store}'] + keys)]
        if spec.transport == 'unix':
            argv += ['--listen', f'nbd+unix:///?socket={server.path("sock")}']
        else:
            host = '127.0.0.1' if spec.transport == 'tcp' else '[::1]'
            argv += ['--listen', f'nbd://{host}:0']
        # Unless the deadline is what is tested, a machine with no time to spare shall not run
        # into it.
        limits = {'handshake-timeout': '10min', **dict(spec.limits)}
        if 'max-connections' in limits:  # all of them come from one peer here
            limits['max-connections-per-peer'] = limits['max-connections']
        for option, value in limits.items():
            argv += [f'--{option}', value]
        if spec.tls:
            argv += ['--tls', spec.tls, '--tls-certificates', credentials()]
        server.spawn(argv, stdout=subprocess.PIPE)
        line = self.first_line(server)
        uri = urllib.parse.urlsplit(line)
        if uri.scheme.endswith('+unix'):
            path = urllib.parse.parse_qs(uri.query)['socket'][0]
            server.address = Address(socket.AF_UNIX, path)
        elif ':' in uri.hostname:
            server.address = Address(socket.AF_INET6, (uri.hostname, uri.port))
        else:
            server.address = Address(socket.AF_INET, (uri.hostname, uri.port))

    @staticmethod
    def keys(export):
        keys = ['readonly'] if export.readonly else []
        if export.description:
            keys.append('description=' + export.description.replace(',', '\\,'))
        if export.max_connections:
            keys.append(f'max-connections={export.max_connections}')
        for item in export.filters:
            where = f':range={item.where[0]}+{item.where[1]}' if item.where else ''
            if isinstance(item, Fault):
                nth = f':nth={item.nth}' if item.nth else ''
                keys.append(f'fault={item.op}:{item.errno}{nth}{where}')
            else:
                keys.append(f'delay={item.op}:{item.ms}ms{where}')
        return keys

    @staticmethod
    def first_line(server):
        """The first served URI; printed when the server is ready."""
        fd = server.process.stdout.fileno()
        end = time.monotonic() + START_SECONDS
        out = b''
        while b'\n' not in out:
            ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
            data = os.read(fd, 4096) if ready else b''
            if not data:
                server.process.wait(5) if ready else None
                raise ServerDied(f'no URI on stdout: {out!r}\n{server.log_text()[-LOG_TAIL:]}')
            out += data
        return out.split(b'\n')[0].decode()


class Nbdkit(Peer):
    name = program = 'nbdkit'

    def start(self, server):
        spec = server.spec
        self.refuse(spec, limits=1, max_connections=1, description=1, tcp6=1)
        argv = [self.path, '-f', f'--tls={spec.tls or "off"}']
        if spec.tls:
            argv.append(f'--tls-certificates={credentials()}')
        export = spec.exports[0]
        params = self.filters(export)
        for name in dict.fromkeys(f for f, _ in params):
            argv.append(f'--filter={name}')
        if export.readonly:
            argv.append('-r')
        if len(spec.exports) > 1 or export.name:
            if len({(e.readonly, e.filters) for e in spec.exports}) > 1:
                raise Unsupported('nbdkit has one set of flags for all exports')
            if any(not e.name for e in spec.exports):
                raise Unsupported('nbdkit file dir= has no default export')
            os.mkdir(server.path('dir'))
            for index, item in enumerate(spec.exports):
                os.rename(server.image(index), os.path.join(server.path('dir'), item.name))
            argv += ['file', f'dir={server.path("dir")}']
        elif export.file:
            argv += ['file', server.image(0)]
        else:
            argv += ['memory', str(export.size)]
        server.spawn(argv + [p for _, p in params], activate=True)

    @staticmethod
    def filters(export):
        params = []
        names = {'read': 'pread', 'write': 'pwrite', 'trim': 'trim', 'zero': 'zero',
                 'extents': 'extents', 'cache': 'cache'}
        for item in export.filters:
            if item.where or getattr(item, 'nth', 0):
                raise Unsupported('nbdkit filters take no range and no count')
            if isinstance(item, Fault):
                if item.op not in names:
                    raise Unsupported(f'nbdkit error filter has no {item.op}')
                if item.errno not in ('EIO', 'EPERM', 'EINVAL', 'ENOSPC', 'ENOMEM', 'ESHUTDOWN'):
                    raise Unsupported(f'nbdkit error filter has no {item.errno}')
                params += [('error', f'error-{names[item.op]}={item.errno}'),
                           ('error', f'error-{names[item.op]}-rate=100%')]
            else:
                if item.op not in ('read', 'write', 'zero', 'trim', 'extents', 'cache'):
                    raise Unsupported(f'nbdkit delay filter has no {item.op}')
                params.append(('delay', f'delay-{item.op}={item.ms}ms'))
        return params


class QemuNbd(Peer):
    name = program = 'qemu-nbd'

    def start(self, server):
        spec = server.spec
        self.refuse(spec, limits=1, many=1, filters=1, max_connections=1, tcp6=1, tls=1)
        export = spec.exports[0]
        argv = [self.path, '-t', '-e', '0', '-f', 'raw', '-x', export.name, '--discard=unmap']
        if export.description:
            argv += ['-D', export.description]
        if export.readonly:
            argv.append('-r')
        server.spawn(argv + [server.image(0)], activate=True)


class NbdServer(Peer):
    name = program = 'nbd-server'
    default_name = 'default'

    def start(self, server):
        spec = server.spec
        self.refuse(spec, limits=1, filters=1, description=1, tcp6=1, tls=1)
        # Its Unix socket kills it on the first connection (3.24), and it cannot tell which port
        # the kernel picked, so it is given one, whatever the transport.
        port = ports.free()
        lines = ['[generic]', 'listenaddr = 127.0.0.1', f'port = {port}', 'allowlist = true']
        for index, export in enumerate(spec.exports):
            lines += [f'[{export.name or "default"}]', f'exportname = {server.image(index)}',
                      f'readonly = {str(export.readonly).lower()}', 'flush = true', 'fua = true',
                      'trim = true']
            if export.max_connections:
                lines.append(f'maxconnections = {export.max_connections}')
        with open(server.path('nbd.config'), 'w') as config:
            config.write('\n'.join(lines) + '\n')
        server.spawn([self.path, '-C', server.path('nbd.config'), '-p', server.path('pid')])
        if server.process.wait(START_SECONDS):
            raise ServerDied(f'nbd-server did not start: {server.log_text()[-LOG_TAIL:]}')
        self.await_true(lambda: self.pid_written(server.path('pid')), server)
        with open(server.path('pid')) as pid:
            server.process = Daemon(int(pid.read()))
        server.address = Address(socket.AF_INET, ('127.0.0.1', port))
        self.await_true(lambda: self.reachable(server.address.sockaddr), server)

    @staticmethod
    def pid_written(path):
        return os.path.exists(path) and os.path.getsize(path) > 0

    @staticmethod
    def reachable(sockaddr):
        """It also looks for a prime number after it listens, for up to seconds of CPU time."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(START_SECONDS)
            return probe.connect_ex(sockaddr) == 0 and probe.recv(8) != b''

    @staticmethod
    def await_true(condition, server):
        """nbd-server does not say when it is ready, so its traces have to be looked for."""
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise ServerDied(f'nbd-server did not start: {server.log_text()[-LOG_TAIL:]}')
            time.sleep(0.01)


class NoServer(Peer):
    """For the tests of the suite's own judge."""
    name = 'none'

    def __init__(self, path=None):
        pass

    def start(self, server):
        raise Unsupported('no server')


PEERS = {peer.name: peer for peer in (Gmblock, Nbdkit, QemuNbd, NbdServer, NoServer)}


def steal_socket(server, peer_name):
    """A copy of the server's end of the TCP connection whose far end is peer_name, or None.

    Uses pidfd_getfd, which needs the right to trace the server; PermissionError says it lacks.
    """
    pidfd = os.pidfd_open(server.process.pid)
    try:
        for fd in sorted(int(n) for n in os.listdir(f'/proc/{server.process.pid}/fd')):
            copy = LIBC.syscall(PIDFD_GETFD, pidfd, fd, 0)
            if copy < 0:
                number = ctypes.get_errno()
                if number == 9:
                    continue
                raise PermissionError(number, os.strerror(number))
            try:
                sock = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            try:
                if sock.getpeername() == peer_name:
                    return sock
            except OSError:
                pass
            sock.close()
    finally:
        os.close(pidfd)
    return None
