"""What the functional tests share: the program under test, a folder of their own, and a server that
is surely gone at the end."""
import contextlib
import ctypes
import fcntl
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from xml.etree import ElementTree

GMBLOCK = ""
PLOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../python/gmblock_plot.py"))
WAIT_SECONDS = 60
WRITER_OFFSET = 2**63 - 4
USE_OFFSET = 2**62
F_OFD_GETLK, F_OFD_SETLK = 36, 37
# What a server says of an address whose socket the kernel has not closed yet.
STILL_OPEN = "cannot listen on .*(another program listens|in use by another program|which has exited, is still open)"
# What no command may show as it is: ESC, CSI of C1, DEL, bidi, zero width, a line separator, an invisible tag.
EVIL = "\x1b[31m\u009b31m\x7f\u202e\u2066\u200b\u200d\u00ad\ufeff\u2028\U000e0041"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                       "\U000e0000-\U000e0fff]")


def ask_writer_mark(fd, order, kind, offset=WRITER_OFFSET):
    """fcntl() with a lock on the byte that marks who writes a disk; the kind that it gives back."""
    lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, order, lock))[0]


def main():
    """Runs the tests of the calling script: SCRIPT GMBLOCK [unittest argument]..."""
    global GMBLOCK
    GMBLOCK = os.path.realpath(sys.argv.pop(1))
    # The program's messages, without those of the harness around it.
    os.environ.pop("JOURNAL_STREAM", None)
    os.environ.pop("NOTIFY_SOCKET", None)
    # Clients that come and go are no news here; what goes wrong is.
    os.environ["GMBLOCK_LOG"] = "warning"
    # The program heeds no signal that it finds ignored, and whoever starts the suite may ignore
    # these (nohup).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    unittest.main(verbosity=2)


def threads_of(pid):
    """Number, name and the other fields of /proc/PID/stat of each thread, the oldest first: helpers of a thread have its
    name."""
    tasks = f"/proc/{pid}/task"
    for thread in sorted(os.listdir(tasks), key=int):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            with open(f"{tasks}/{thread}/stat", encoding="ascii") as stat:
                head, _, fields = stat.read().rpartition(") ")
            yield int(thread), head.partition("(")[2], fields.split()


class Server:
    """`gmblock serve` in the background. Its URIs are known once it is ready."""

    def __init__(self, *arguments, uri_count=1, **popen):
        self.process = subprocess.Popen(
            [program(), "serve", *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)
        self.uris = []
        for _ in range(uri_count):
            line = self.process.stdout.readline()
            if not line:
                break
            self.uris.append(line.rstrip("\n"))
        if len(self.uris) < uri_count:
            self.process.kill()
            _, errors = self.process.communicate()
            raise AssertionError(f"the server did not start: {errors}")

    @property
    def uri(self):
        return self.uris[0]

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def freeze(self):
        """Returns when every thread has stopped; SIGCONT ends it."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wait(self):
        """The exit status and what was written to standard error."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors

    def stop(self):
        self.signal()
        return self.wait()

    def faults_of_reactors(self, names=r"gmblock/\d+"):
        """The minor page faults of the threads that serve clients."""
        faults = {}
        for _, name, fields in threads_of(self.process.pid):
            if re.fullmatch(names, name):
                faults.setdefault(name, int(fields[7]))
        assert faults, "no reactors"
        return sum(faults.values())

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def program():
    return GMBLOCK


def has_libfabric():
    """Whether gmb:// can be tested; says so when it cannot."""
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError as error:
        print("without gmb://:", error, file=sys.stderr)
        return False
    return True


class Case(unittest.TestCase):
    """A test with a folder that is removed and servers that are killed."""

    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-functional-")
        # A server that is just ending removes its own socket: what is gone is gone.
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.remove_caches)

    def remove_caches(self):
        """Those of flash stores in the folder: a killed server leaves its own for the next one."""
        for place, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(place, name)
                if not os.path.isfile(path):
                    continue
                with open(path, "rb") as file:
                    anchor = file.read(32)
                if anchor.startswith(b"GMBFLA\r\n"):
                    for cache in glob.glob(f"/dev/shm/gmblock-{anchor[16:32].hex()}*.cache"):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(cache)

    def path(self, name):
        return os.path.join(self.folder, name)

    def log_somebody_in(self):
        """A user whom no other test has, and the folders of its servers below /run/user/UID."""
        os.makedirs("/run/user", exist_ok=True)
        for uid in range(65533, 65000, -1):
            user = f"/run/user/{uid}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(user)
                break
        else:
            self.fail("all users of tests are logged in")
        self.addCleanup(shutil.rmtree, user)
        os.makedirs(user + "/gmblock/serve")
        for folder in ("", "/gmblock", "/gmblock/serve"):
            os.chown(user + folder, uid, uid)
        return uid, user

    def make_file(self, name, content):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def loop(self, image, *options):
        """A loop device over the image, detached at the end. Without loop devices, the test is skipped."""
        if os.geteuid() != 0:
            self.skipTest("needs root for loop devices")
        done = subprocess.run(["losetup", "--find", "--show", *options, image], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("no such loop device: " + done.stderr.strip())
        device = done.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "--detach", device], check=True)
        return device

    def wait_for(self, condition):
        """Until it holds. The limit is far more than anything takes."""
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end)
            select.select([], [], [], 0.01)

    @contextlib.contextmanager
    def stopped_thread(self, pid, name):
        """The thread of that name does nothing meanwhile."""
        seize, interrupt, detach, any_child = 0x4206, 0x4207, 17, 0x40000000
        call = ctypes.CDLL(None).ptrace
        call.restype = ctypes.c_long
        call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
        thread = next(task for task, found, _ in threads_of(pid) if found == name)
        if call(seize, thread, 0, None) != 0:
            self.skipTest("no thread can be stopped here")
        call(interrupt, thread, 0, None)
        os.waitpid(thread, any_child)
        try:
            yield
        finally:
            call(detach, thread, 0, None)

    def at_some_pace(self, check):
        """check(factor) must hold when the times of the test are long enough for this machine: a server that a busy
        one holds up is silent, too. What is wrong fails at any pace, as all times keep their ratio."""
        for factor in (1, 2, 4):
            with contextlib.suppress(AssertionError):
                return check(factor)
        return check(8)

    def start(self, *arguments, **options):
        """The kernel closes the sockets of a killed server's ring somewhat later, and on a busy machine after the second
        for which a server tries to listen."""
        end = time.monotonic() + 30
        while True:
            try:
                server = Server(*arguments, **options)
                self.addCleanup(server.kill)
                return server
            except AssertionError as error:
                if not re.search(STILL_OPEN, str(error)) or time.monotonic() > end:
                    raise
                select.select([], [], [], 0.05)

    def start_unix(self, *arguments, **options):
        """A server on a Unix socket in the test's folder."""
        return self.start(*arguments, "--listen", self.socket_uri(), **options)

    def socket_uri(self, name="s"):
        return f"nbd+unix:///?socket={self.path(name)}"

    def run_plot(self, *arguments, **options):
        """gmblock-plot to its end: status, standard output, standard error."""
        options = {"input": "", "stdout": subprocess.PIPE, **options}
        done = subprocess.run([sys.executable, PLOT, *arguments], stderr=subprocess.PIPE, encoding="utf-8", check=False,
                              **options)
        return done.returncode, done.stdout, done.stderr

    def plot(self, document):
        """The root of the picture of a document, which must be drawn."""
        code, picture, errors = self.run_plot(input=json.dumps(document))
        self.assertEqual((code, errors), (0, ""))
        return ElementTree.fromstring(picture)

    def run_gmblock(self, *arguments, **options):
        """The program to its end: status, standard output, standard error."""
        done = subprocess.run(
            [program(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, **options)
        return done.returncode, done.stdout, done.stderr

    def check_refused(self, arguments, status, *fragments):
        """The program must end with this status, print nothing on standard output, and say each
        fragment in one message."""
        code, output, errors = self.run_gmblock(*arguments)
        self.assertEqual((code, output), (status, ""), errors)
        for fragment in fragments:
            self.assertIn(fragment, errors)
        return errors


class NotifySocket:
    """The service manager's end of sd_notify."""

    def __init__(self, path):
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.settimeout(60)
        self.sock.bind(path)

    def receive(self):
        """The next message, as a dictionary."""
        lines = self.sock.recv(65536).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_for(self, key):
        """The messages up to the first that sets key; returns that value."""
        while True:
            message = self.receive()
            if key in message:
                return message[key]

    def close(self):
        self.sock.close()
