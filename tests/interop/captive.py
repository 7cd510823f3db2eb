"""A private gmblock server for one test, and the few things every interop test needs.

What: Gmblock(…) serves exports on a Unix socket or on loopback TCP (the kernel picks the port)
and stops with the test; the modules of ../functional can be imported after this one; run() calls a client and fails loudly; main() runs the test functions of a
file, each with an empty folder of its own.  GMBLOCK names the program under test.
Results: exit status 0 passed, 1 failed, 77 a prerequisite is missing.
"""

import ctypes
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from urllib.parse import quote

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "functional"))

MIB = 1 << 20
ODD_BYTES = 123456789
PR_SET_PDEATHSIG = 1


class Skip(Exception):
    """The test cannot run here; the text says what is missing."""


def require_program(*names):
    for name in names:
        if shutil.which(name) is None:
            raise Skip("%s is not installed" % name)


def require_libnbd():
    try:
        import nbd
    except ImportError as error:
        raise Skip("libnbd's Python bindings are not installed") from error
    return nbd


def require_root(why):
    if os.geteuid() != 0:
        raise Skip("needs root: " + why)


def require_fio():
    require_program("fio")
    if "uri" not in run("fio", "--enghelp=nbd"):
        raise Skip("this fio has no nbd engine")


def run(*command, status=0, env=None):
    """Output (both streams) of a command that has to end with this status (None: any)."""
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", env=env)
    if status is not None and result.returncode != status:
        raise AssertionError("%s: exit status %d instead of %d\n%s" % (
            " ".join(str(word) for word in command), result.returncode, status, result.stdout))
    return result.stdout


def refused(*command):
    """Output of a command that has to fail (by itself: a signal is not a refusal)."""
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace")
    if result.returncode <= 0:
        raise AssertionError("%s: exit status %d, a failure was expected\n%s" % (
            " ".join(str(word) for word in command), result.returncode, result.stdout))
    return result.stdout


def pattern(offset, count, seed=0):
    """Bytes that tell their place: the number of each 8-byte word, mixed with a seed."""
    first, last = offset // 8, (offset + count + 7) // 8
    mix = (seed * 0x9E3779B97F4A7C15) & (2**64 - 1)
    words = b"".join(((word * 0x2545F4914F6CDD1D + 1) & (2**64 - 1) ^ mix).to_bytes(8, "big")
                     for word in range(first, last))
    start = offset - first * 8
    return words[start:start + count]


def make_file(path, size, data=b"", offset=0):
    """A sparse file of this size with these bytes at this place."""
    with open(path, "wb") as out:
        out.truncate(size)
        out.seek(offset)
        out.write(data)
    return path


def make_random_file(path, size):
    with open(path, "wb") as out:
        while size > 0:
            piece = os.urandom(min(size, MIB))
            out.write(piece)
            size -= len(piece)
    return path


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Gmblock:
    """gmblock serve for the life of a with block; leaving it demands a clean stop.

    exports: {name: "PATH[,key=value…]"}; the empty name is the default export.  listen: "unix",
    "tcp" or the text of a URI.  Every printed URI has to be there before a client may start.
    """

    def __init__(self, folder, exports, *options, listen="unix"):
        self.folder = folder
        self.exports = exports
        self.killed = False
        if listen == "unix":
            listen = "nbd+unix:///?socket=" + os.path.join(folder, "gmblock.sock")
        elif listen == "tcp":
            listen = "nbd://127.0.0.1:0"
        self.command = [os.environ["GMBLOCK"], "serve", "--listen", listen, *options]
        for name, value in exports.items():
            self.command += ["--export", "%s=%s" % (name, value)]
        self._stderr_path = os.path.join(folder, "gmblock.stderr")
        self.uris = []

    def __enter__(self):
        with open(self._stderr_path, "ab") as stderr:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stderr=stderr,
                                            stdout=subprocess.PIPE, text=True,
                                            preexec_fn=_die_with_parent)
        while len(self.uris) < len(self.exports):
            line = self.process.stdout.readline()
            if not line:
                self.process.wait()
                raise AssertionError("%s ended with status %d before it served\n%s" % (
                    " ".join(self.command), self.process.returncode, self.stderr()))
            self.uris.append(line.strip())
        return self

    def __exit__(self, kind, _value, _trace):
        if self.killed:
            self.process.stdout.close()
            return
        ended = self.process.poll()
        if ended is None:
            self.process.terminate()
            self.process.wait()
        self.process.stdout.close()
        if kind is not None:
            sys.stderr.write(self.stderr())
            return
        if ended is not None:
            raise AssertionError("the server ended by itself with status %d\n%s"
                                 % (ended, self.stderr()))
        if self.process.returncode != 0:
            raise AssertionError("the server stopped with status %d\n%s"
                                 % (self.process.returncode, self.stderr()))

    def stderr(self):
        with open(self._stderr_path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def uri(self, name=""):
        """The URI the server printed for this export."""
        wanted = quote(name, safe="")
        for uri in self.uris:
            path = uri.partition("://")[2].partition("?")[0].partition("/")[2]
            if path in (wanted, quote(name)):
                return uri
        raise AssertionError("no URI for export %r among %r" % (name, self.uris))

    def kill(self):
        """kill -9; the with block then expects nothing more of the server."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def assert_alive(self):
        if self.process.poll() is not None:
            raise AssertionError("the server ended with status %d\n%s"
                                 % (self.process.returncode, self.stderr()))


def connect(uri, contexts=(), strict=True):
    """A libnbd handle at this URI; strict off lets it send what a server has to refuse."""
    nbd = require_libnbd()
    handle = nbd.NBD()
    for context in contexts:
        handle.add_meta_context(context)
    if not strict:
        handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


def expect_errno(wanted, call, *arguments, **options):
    """The call has to fail with this error (a name such as "EIO")."""
    nbd = require_libnbd()
    try:
        call(*arguments, **options)
    except nbd.Error as error:
        if error.errno != wanted:
            raise AssertionError("%s instead of %s: %s" % (error.errno, wanted, error.string)) \
                from error
        return
    raise AssertionError("no error where %s was expected" % wanted)


def main():
    """Runs every test_… function of the calling file."""
    module = inspect.getmodule(inspect.stack()[1].frame)
    tests = [(name, value) for name, value in vars(module).items() if name.startswith("test_")]
    if not tests or "GMBLOCK" not in os.environ:
        print("no test functions, or GMBLOCK does not name the program", file=sys.stderr)
        sys.exit(1)
    # SIGTERM (the suite's time limit) has to unwind the with blocks as well.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    skipped = failed = 0
    for name, test in tests:
        with tempfile.TemporaryDirectory(prefix="gmblock-interop-") as folder:
            try:
                test(folder)
                print("ok      %s" % name, flush=True)
            except Skip as reason:
                skipped += 1
                print("skipped %s: %s" % (name, reason), flush=True)
            except Exception:  # each test's failure is reported, and the others still run
                failed += 1
                traceback.print_exc()
                print("FAILED  %s" % name, flush=True)
    if failed:
        sys.exit(1)
    sys.exit(77 if skipped == len(tests) else 0)
