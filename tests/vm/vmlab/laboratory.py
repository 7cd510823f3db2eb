"""The laboratory: guests, their network, the signals between them, the time limit, the cleanup."""
import fcntl
import glob
import os
import re
import shutil
import tempfile
import time

from .archive import Archive
from .guest import Guest, need_qemu
from .kernel import Kernel, find_kernel
from .loop import Loop
from .network import Switch

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
PREFIX = "gmblock-vm-"
DEFAULTS = {
    "files": (), "programs": (), "packages": (), "modules": (), "load": (), "disks": (),
    "qemu": (), "memory": 512, "cpus": 1, "mtu": 9000, "append": "",
    "machine": "q35", "cpu": "max,la57=off",
    "accel": os.environ.get("GMBLOCK_VM_ACCEL", "tcg,thread=multi"),
}


class LabError(Exception):
    """A guest did not do what the test waited for; the text holds its output."""


class Lab:
    """A with-block around guests: when it is left, no process and no file of it stays.

    time_limit: seconds from start() until every guest is killed and the wait fails.
    cache: the folder for downloads instead of the user's cache folder.
    """

    def __init__(self, time_limit=120, cache=None):
        need_qemu()
        self.archive = Archive(cache)
        self.time_limit = time_limit
        self.guests = {}
        self.signals = {}
        self.deadline = None
        sweep()
        self.folder = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = claim(self.folder)
        self.loop = Loop()
        self.switch = Switch(self.loop)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def guest(self, name, kernel, script, **options):
        """Add a guest. It boots with start().

        kernel: a version ("6.12") or a Kernel. script: its text; it runs as a program if it starts
        with "#!", else by "sh -e".
        files: host paths, or pairs (host path, guest path); by default they go to /lab, which is
        in PATH. programs: names of the host's programs. packages: Debian packages, unpacked, each
        behind those whose libraries it needs.
        Libraries come along with every program.
        load: modules to load at the start, each with its parameters. modules: modules to have at
        hand for modprobe or the kernel itself.
        disks: sizes in bytes of empty disks, /dev/vda and so on, which outlive a power failure.
        memory (MiB), cpus, mtu, append (kernel command line), machine, cpu, accel, qemu (a list of
        further arguments).
        QEMU before 8.1 can run the old code of a page that another processor of the guest writes
        while the page is translated. A guest with several processors then panics, rarely, with a
        trap at an instruction that the kernel has just replaced. So the kernel boots and loads
        modules on one processor, and more than one is for tests that need them.
        """
        unknown = set(options) - set(DEFAULTS)
        if unknown:
            raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
        if name in self.guests or not NAME.fullmatch(name):
            raise ValueError(f"not a name for a new guest: '{name}'")
        if not isinstance(kernel, Kernel):
            kernel = find_kernel(self.archive, kernel)
        guest = Guest(self, name, kernel, script, **{**DEFAULTS, **options})
        self.guests[name] = guest
        return guest

    def start(self, *guests):
        """Boot these guests, or all. The time limit starts with the first."""
        guests = guests or tuple(self.guests.values())
        for guest in guests:
            guest.build()
        self.loop.start()
        if self.deadline is None:
            self.deadline = time.monotonic() + self.time_limit
        for guest in guests:
            guest.start()

    def wait(self, *guests, tick=None):
        """Wait until these guests, or all, have ended. When one fails, the rest is killed: their
        partner is gone. tick() is called about four times a second meanwhile."""
        guests = guests or tuple(self.guests.values())
        while not self._until(lambda: not any(g.running for g in guests) or self._failed(guests),
                              0.25 if tick else None):
            tick()
        if self._failed(guests):
            self.kill()
        if tick:
            tick()

    def wait_signal(self, name, seconds=None):
        """The value of a signal, as soon as a guest has sent it. LabError when all guests have
        ended without it, or the time is up."""
        def there():
            return name in self.signals or not any(g.running for g in self.guests.values())
        if not self._until(there, seconds) or name not in self.signals:
            raise LabError(f"no guest sent '{name}'\n{self.story()}")
        return self.signals[name]

    def wait_for(self, condition, guest):
        """Wait until a condition on what guests have sent is true. LabError when this guest has ended without it, or the
        time is up."""
        self._until(lambda: condition() or not guest.running)
        if not condition():
            raise LabError(self.story())

    def send(self, name, value=""):
        """Send a signal to every guest, as lab-signal does in a guest."""
        self.loop.call(self.signalled, name, value)

    def kill(self, *guests):
        """Take the power of these guests, or of all, and wait until it is off."""
        guests = guests or tuple(self.guests.values())
        with self.loop.changed:
            for guest in guests:
                if guest.process:
                    guest.process.kill()
        self._until(lambda: not any(guest.running for guest in guests), 30)

    def story(self):
        return "\n".join(guest.story() for guest in self.guests.values())

    def close(self):
        if not self.folder:
            return
        self.loop.stop()
        self.switch.close()
        for guest in self.guests.values():
            guest.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self.folder = None

    def settle(self):
        """Wait until the loop has done what was called for before."""
        done = []
        self.loop.call(done.append, True)
        self._until(lambda: done, 30)

    def signalled(self, name, value):
        """In the loop's thread: keep the signal and pass it on."""
        self.signals[name] = value
        for guest in self.guests.values():
            guest.tell(f"signal {name} {value}")

    def told_before(self, guest):
        """In the loop's thread: tell a guest that has just booted what it has missed."""
        for name, value in self.signals.items():
            guest.tell(f"signal {name} {value}")

    @staticmethod
    def _failed(guests):
        return any(g.failure or g.status for g in guests)

    def _until(self, condition, seconds=None):
        """Wait for a condition. False after these seconds; LabError at the time limit."""
        end = None if seconds is None else time.monotonic() + seconds
        with self.loop.changed:
            while not condition():
                if self.loop.error:
                    raise RuntimeError("the laboratory's loop failed") from self.loop.error
                now = time.monotonic()
                if end is not None and now >= end:
                    return False
                if self.deadline is not None and now >= self.deadline:
                    break
                times = [t - now for t in (end, self.deadline) if t is not None]
                self.loop.changed.wait(min(times) if times else None)
            else:
                return True
        running = [guest for guest in self.guests.values() if guest.running]
        self.deadline = None
        self.kill()
        for guest in running:
            guest.failure = f"ran into the time limit of {self.time_limit:g} s"
        raise LabError(self.story())


def claim(folder):
    """A lock that tells that the folder is in use, as long as its owner lives. It appears locked,
    so that nobody else's sweep() sees it free before."""
    path = os.path.join(folder, "lock")
    file = os.open(path + ".new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(path + ".new", path)
    return file


def sweep():
    """Remove the folders of laboratories that were killed before they could do it."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), PREFIX + "*")):
        try:
            file = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(file)
