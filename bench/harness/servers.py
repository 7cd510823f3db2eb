"""The servers under test: how each one is started, found ready and stopped.

What: SERVERS maps a name to a recipe; start(name, …) returns a running Server with its URI and
its process ids.  The name of a variant is "family" or "family/how"; docs in bench/README.md say
why the defaults are what they are.
Ownership: the caller stops what it started (Server is a context manager); a server also gets
SIGTERM from the kernel when the benchmark dies (nbd-server excepted: it makes itself a daemon).
Errors: Unavailable if the program is missing, ServerFailed with its own messages if it ends early.
"""

import copy
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

from . import spellings
from .cmdline import TOP
from .rig import Unavailable

sys.path.append(os.path.join(TOP, "tests", "functional"))
import ports  # noqa: E402 (the path comes first)

EXPORT = "bench"
NO_DISK, SEND_LOOP = "no-disk", "send-loop"
REFERENCES = (NO_DISK, SEND_LOOP)
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class ServerFailed(Exception):
    """A server did not start, or ended while it should have served."""


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def process_tree(root_pid):
    """The process and all its living descendants; empty if it is gone."""
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    if not os.path.exists("/proc/%d" % root_pid):
        return []
    found = [root_pid]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


class Recipe:
    """How one server (or variant of it) is run; command() is all that most of them need."""

    program = None
    version_args = ["--version"]

    def __init__(self, name, states, **settings):
        self.name = name
        self.states = states
        self.settings = settings

    @property
    def family(self):
        return self.name.partition("/")[0]

    def program_path(self):
        found = shutil.which(self.program)
        if found is None:
            raise Unavailable("%s is not installed" % self.program)
        return found

    def version(self):
        result = subprocess.run([self.program_path()] + self.version_args, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        return lines[0].strip() if lines else "unknown"

    def command(self, disk_path, address, folder):
        """argv; address is a port number or the path of a Unix socket."""
        raise NotImplementedError

    def uri(self, address, export=EXPORT):
        if isinstance(address, int):
            return "nbd://127.0.0.1:%d/%s" % (address, export)
        return "%s+unix:///%s?socket=%s" % (self.settings.get("protocol", "nbd"), export, address)

    def prepare(self, uri, disk_path):
        """Called once the server answers, before anything is measured."""

    def daemon_pid(self, folder):
        """The process id, for a program that leaves the foreground; None while not known."""
        return None

    daemonises = False

    def serves(self, row):
        """Whether it is measured in a row."""
        return not row.is_stream


class Gmblock(Recipe):
    """keys: what the export gets, as spellings.py has them; path: the program; protocol: gmb where it
    is not nbd, which is for Unix sockets only."""

    path = None

    def of(self, program):
        """The same with another program."""
        twin = copy.copy(self)
        twin.path = program
        return twin

    def program_path(self):
        if not self.path or not os.access(self.path, os.X_OK):
            raise Unavailable("gmblock is not built (looked for %s)" % self.path)
        return self.path

    def export(self, disk_path):
        """A disk without a file has no page cache, so the modes that use it are no keys of it."""
        keys = self.settings["keys"]
        if disk_path.startswith(("null:", "memory:")) and keys in ("mode=cached", "mode=auto"):
            return "%s=%s" % (EXPORT, disk_path)
        return "%s=%s,%s" % (EXPORT, disk_path, spellings.spelled(self.program_path(), keys))

    def serves(self, row):
        return True

    def command(self, disk_path, address, folder):
        return [self.program_path(), "serve", "--listen", self.uri(address, export=""),
                "--export", self.export(disk_path)] + self.settings.get("extra", [])


class NoDisk(Gmblock):
    """gmblock with the disk's bytes in memory of its own: what the client and the network let any
    server reach, with nothing behind it. A reference, not one of those compared."""

    def command(self, disk_path, address, folder):
        with open(disk_path, "rb") as disk:
            size_bytes = disk.seek(0, os.SEEK_END)
        return super().command("memory:%d" % size_bytes, address, folder)

    def prepare(self, uri, disk_path):
        done = subprocess.run([self.program_path(), "copy", disk_path, uri], check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerFailed("%s was not filled: %s" % (self.name, done.stderr.strip()))

    def serves(self, row):
        return not row.is_stream


class SendLoop(Recipe):
    """bench/send_loop.c, server and client in one, which sends the same memory again and again: what any server
    of sequential reads could reach here. A reference, not one of those compared."""

    folder = None

    def program_path(self):
        path = os.path.join(self.folder or "", "send_loop")
        if not os.access(path, os.X_OK):
            raise Unavailable("send_loop is not built (looked for %s)" % path)
        return path

    def version(self):
        return "bench/send_loop.c"

    def serves(self, row):
        return row.in_bytes and row.rw == "read" and not row.is_stream

    def sample(self, row, disk, seconds):
        """seconds: 0 for one pass over the disk."""
        command = [self.program_path(), "memory", disk.path, row.transport, str(row.depth), str(row.block_bytes),
                   str(disk.size_bytes), "%g" % seconds]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerFailed("send_loop failed: %s" % done.stderr.strip())
        found = json.loads(done.stdout)
        rate = found["bytes_per_s"] / row.block_bytes
        return {"bytes_per_s": found["bytes_per_s"], "iops": rate, "cpu_us_per_request": found["client_cpu_us"],
                "cpu_s_per_million": found["server_cpu_us"], "cpu_s_per_gb": found["server_cpu_us"] / row.block_bytes * 1e3,
                "client_cpu_percent": found["client_cpu_us"] * rate / 1e4, "server_cpu_s": 0.0}


class Nbdkit(Recipe):
    program = "nbdkit"

    def command(self, disk_path, address, folder):
        where = (["--ipaddr", "127.0.0.1", "--port", str(address)] if isinstance(address, int)
                 else ["--unix", address])
        return [self.program_path(), "--foreground", *where, "file", "file=" + disk_path,
                *self.settings.get("parameters", [])]


class QemuNbd(Recipe):
    program = "qemu-nbd"

    def command(self, disk_path, address, folder):
        where = (["--bind=127.0.0.1", "--port=%d" % address] if isinstance(address, int)
                 else ["--socket=" + address])
        return [self.program_path(), "--persistent", "--shared=16", "--format=raw",
                "--export-name=" + EXPORT, "--cache=" + self.settings["cache"],
                "--aio=" + self.settings["aio"], *where, disk_path]


class NbdServer(Recipe):
    program = "nbd-server"
    version_args = ["-V"]
    daemonises = True

    def command(self, disk_path, address, folder):
        config = os.path.join(folder, "nbd-server.conf")
        with open(config, "w", encoding="ascii") as out:
            out.write("[generic]\n")
            if isinstance(address, int):
                out.write("listenaddr = 127.0.0.1\nport = %d\n" % address)
            else:
                # It always opens a TCP port as well.
                out.write("listenaddr = 127.0.0.1\nport = %d\nunixsock = %s\n"
                          % (ports.free(), address))
            for key, value in self.settings.get("generic", {}).items():
                out.write("%s = %s\n" % (key, value))
            out.write("[%s]\nexportname = %s\nflush = true\nfua = true\n" % (EXPORT, disk_path))
        return [self.program_path(), "-C", config, "-p", os.path.join(folder, "pid")]

    def daemon_pid(self, folder):
        try:
            with open(os.path.join(folder, "pid"), encoding="ascii") as pidfile:
                return int(pidfile.read())
        except (OSError, ValueError):
            return None


def _recipes():
    both = ("cold", "hot")
    listed = [
        Gmblock("gmblock/cached", both, keys="mode=cached"),
        Gmblock("gmblock/direct", ("cold",), keys="mode=direct"),
        Gmblock("gmblock/auto", both, keys="mode=auto"),
        NoDisk(NO_DISK, both, keys="mode=cached"),
        SendLoop(SEND_LOOP, both),
        Nbdkit("nbdkit", both),
        QemuNbd("qemu-nbd", ("hot",), cache="writeback", aio="io_uring"),
        QemuNbd("qemu-nbd", ("cold",), cache="none", aio="native"),
        NbdServer("nbd-server", both, generic={"splice": "true"}),
        # Variants, run only when asked for by name (bench/README.md, "Settings of the peers").
        Nbdkit("nbdkit/random", (), parameters=["fadvise=random"]),
        Nbdkit("nbdkit/cache-none", (), parameters=["cache=none"]),
        NbdServer("nbd-server/no-splice", ()),
        NbdServer("nbd-server/threads16", (), generic={"splice": "true", "max_threads": "16"}),
    ]
    for cache in ("writeback", "none"):
        for aio in ("threads", "io_uring", "native"):
            if (cache, aio) != ("writeback", "native"):  # QEMU refuses this pair
                listed.append(QemuNbd("qemu-nbd/%s+%s" % (cache, aio), (), cache=cache, aio=aio))
    return listed


RECIPES = _recipes()


def select(names, state):
    """The recipes to run in a state: a family gives its defaults, a full name that variant."""
    chosen = []
    for name in names:
        matches = [r for r in RECIPES if (r.name == name and "/" in name)
                   or (r.family == name and state in r.states)]
        if not matches and not any(name in (r.name, r.family) for r in RECIPES):
            raise Unavailable("no server called %s; there are: %s"
                              % (name, " ".join(sorted({r.name for r in RECIPES}))))
        chosen.extend(r for r in matches if r not in chosen)
    return chosen


class Server:
    """One running server; see start()."""

    def __init__(self, recipe, uri, command, process, pid, folder, log_path):
        self.recipe = recipe
        self.uri = uri
        self.command = command
        self.pid = pid
        self._process = process
        self._folder = folder
        self._log_path = log_path

    def pids(self):
        return process_tree(self.pid)

    def log(self):
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for pid in reversed(self.pids()):
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in reversed(self.pids()):
            _signal(pid, signal.SIGKILL)
        if self._process.poll() is None:
            self._process.wait()
        self._reap()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _alive(self):
        self._reap()
        return os.path.exists("/proc/%d" % self.pid)

    def _reap(self):
        self._process.poll()
        if self.pid != self._process.pid:
            try:
                os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pass


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _answers(uri):
    """True once something accepts connections at the URI and, with an NBD URI, greets as an NBD server."""
    parts = urlsplit(uri)
    native = parts.scheme.startswith("gmb")
    greets = parts.scheme.startswith("nbd")
    if parts.scheme in ("nbd", "nbds"):
        probe, target = socket.socket(), (parts.hostname, parts.port)
    else:
        probe = socket.socket(socket.AF_UNIX,
                              socket.SOCK_SEQPACKET if native else socket.SOCK_STREAM)
        target = parts.query.partition("socket=")[2]
    with probe:
        probe.settimeout(START_TIMEOUT_S)
        try:
            probe.connect(target)
            return not greets or probe.recv(8) == b"NBDMAGIC"
        except OSError:
            return False


def child_setup():
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _started(recipe, disk_path, transport):
    folder = tempfile.mkdtemp(prefix="gmblock-bench-")
    log_path = os.path.join(folder, "log")
    process = None
    pid = None
    try:
        address = ports.free() if transport == "tcp" else os.path.join(folder, "sock")
        command = recipe.command(disk_path, address, folder)
        with open(log_path, "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       preexec_fn=child_setup, start_new_session=True)
        uri = recipe.uri(address)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            pid = recipe.daemon_pid(folder) if recipe.daemonises else process.pid
            serving = pid is not None and (recipe.daemonises or not ended)
            if serving and _answers(uri) and os.path.exists("/proc/%d" % pid):
                return Server(recipe, uri, command, process, pid, folder, log_path)
            if ended and (not recipe.daemonises or process.returncode != 0):
                break
            time.sleep(0.01)
        with open(log_path, encoding="utf-8", errors="replace") as log:
            said = log.read().strip()
        raise ServerFailed("%s did not start: %s\n%s" % (recipe.name, " ".join(command), said))
    except BaseException:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if pid is not None and recipe.daemonises:
            _signal(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        raise


def start(recipe, disk_path, transport):
    """Starts a server for the disk on "tcp" or "unix"; returns it when it greets clients."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    recipe.program_path()
    server = _started(recipe, disk_path, transport)
    try:
        recipe.prepare(server.uri, disk_path)
    except BaseException:
        server.stop()
        raise
    return server
