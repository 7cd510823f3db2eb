"""One guest: its root, its QEMU process, and the line on which it reports.

The guest's init (../guest/init) talks with the laboratory over virtio-serial ports: lab.control
carries lines both ways, lab.output what the script prints, lab.results a tar of /results. Fields
are read by the caller's thread and written by the loop's, under Loop.changed.
"""
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time

from .archive import Unavailable
from .image import Tree
from .monitor import Monitor

HERE = os.path.dirname(os.path.realpath(__file__))
INSIDE = os.path.join(os.path.dirname(HERE), "guest")
QEMU = "qemu-system-x86_64"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
TOLD_LINES = 60
# A kernel that checks its timer against the clock panics when the host is too busy to deliver the
# ticks (no_timer_check); one that oopses is to end the guest. It boots on one processor (maxcpus=1): see Lab.guest().
COMMAND_LINE = "console=ttyS0 panic=-1 oops=panic no_timer_check nowatchdog nokaslr mitigations=off maxcpus=1"
NEVER_BOOTED = "never booted"


class Guest:
    """Made by Lab.guest(), which tells what the options mean.

    status: None while it runs or has not run, else the script's exit status.
    failure: None, or how the guest ended without reporting a status.
    boot_seconds: from the start of QEMU to the start of the script.
    answers: what it sent to nobody but the laboratory, by name.
    """

    def __init__(self, lab, name, kernel, script, **options):
        self.lab = lab
        self.name = name
        self.kernel = kernel
        self.script = script
        self.number = len(lab.guests) + 1
        self.address = f"10.77.0.{self.number}"
        self.folder = os.path.join(lab.folder, name)
        self.options = options
        self.status = None
        self.failure = None
        self.boot_seconds = None
        self.seconds = None
        self.answers = {}
        self.process = None
        self._started = 0.0
        self._pidfd = None
        self._listener = None
        self._control = None
        self._received = b""
        os.mkdir(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    @property
    def running(self):
        return self.process is not None

    @property
    def output(self):
        """What the script has printed so far."""
        return self._text("output.log")

    @property
    def console(self):
        """What the kernel and init have said so far."""
        return self._text("console.log")

    @property
    def results(self):
        """The folder with what the script put into /results; there once the guest has ended."""
        return self.path("results")

    def _text(self, name):
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read().replace("\r", "")
        except FileNotFoundError:
            return ""

    def story(self):
        """The end of the guest and of what it said, for an error message. Its output comes last:
        a report keeps the last lines."""
        ended = self.failure or ("running" if self.status is None else f"status {self.status}")
        lines = [f"guest {self.name} ({self.kernel.release}): {ended}"]
        for title, text in (("console", self.console), ("output", self.output)):
            lines.append(f"--- {self.name}: {title}")
            lines += text.splitlines()[-TOLD_LINES:]
        return "\n".join(lines)

    def build(self):
        """Write the guest's initramfs. All that may be missing shows here."""
        tree = Tree()
        self._base(tree)
        for package in self.options["packages"]:
            tree.package(self.lab.archive.package(package))
        for program in self.options["programs"]:
            tree.program(program)
        for item in self.options["files"]:
            source, path = item if isinstance(item, tuple) else (item, None)
            tree.file(source, path or f"/lab/{os.path.basename(os.path.normpath(source))}")
        load = ["virtio_net", *(["virtio_blk"] if self.options["disks"] else ()),
                *self.options["load"]]
        tree.modules(self.kernel, ["virtio_console", "virtio_pci", *self.options["modules"],
                                   *(words.split()[0] for words in load)])
        tree.text("/lab/modules", "".join(f"{words}\n" for words in load))
        tree.busybox(self.lab.archive)
        tree.write(self.path("initramfs"))

    def _base(self, tree):
        for folder in ("dev", "proc", "sys", "run", "root", "results", "mnt", "var/tmp"):
            tree.folder(folder)
        tree.folder("tmp", 0o1777)
        tree.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        tree.text("etc/group", "root:x:0:\n")
        tree.link("etc/mtab", "/proc/self/mounts")
        tree.link("var/run", "/run")
        hosts = [f"{guest.address} {guest.name}\n" for guest in self.lab.guests.values()]
        tree.text("etc/hosts", "127.0.0.1 localhost\n" + "".join(hosts))
        tree.file(os.path.join(INSIDE, "init"), "/init")
        for tool in ("lab-signal", "lab-wait"):
            tree.file(os.path.join(INSIDE, tool), f"/usr/bin/{tool}")
        tree.text("lab/script", self.script, 0o755)
        tree.text("lab/settings", f"NAME={self.name}\nADDRESS={self.address}\n"
                                  f"MTU={self.options['mtu']}\n")

    def command(self):
        options = self.options
        arguments = [
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", options["machine"], "-accel", options["accel"], "-cpu", options["cpu"],
            # QEMU before 8.1 emulates the memory barriers of a guest only if it can have several processors. Without
            # them, devices, which run in another thread, miss requests: an NVMe write then waits for a reset.
            "-smp", f"{options['cpus']},maxcpus={max(options['cpus'], 2)}", "-m", f"{options['memory']}M",
            "-kernel", self.kernel.image, "-initrd", self.path("initramfs"),
            "-append", f"{COMMAND_LINE} {options['append']}",
            "-chardev", f"file,id=console,path={self.path('console.log')}",
            "-serial", "chardev:console",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=control,path={self.path('control')}",
            "-device", "virtserialport,chardev=control,name=lab.control",
            "-qmp", f"unix:{self.path('monitor')},server=on,wait=off",
        ]
        for name, file in (("output", "output.log"), ("results", "results.tar")):
            arguments += ["-chardev", f"file,id={name},path={self.path(file)}",
                          "-device", f"virtserialport,chardev={name},name=lab.{name}"]
        arguments += [
            "-netdev", "stream,id=net,server=off,addr.type=unix,"
                       f"addr.path={self.path('network')}",
            "-device", f"virtio-net-pci,netdev=net,romfile=,host_mtu={options['mtu']},"
                       f"mac=52:54:00:77:00:{self.number:02x}",
        ]
        for number, _ in enumerate(options["disks"]):
            arguments += ["-drive", f"if=virtio,format=raw,file={self.path(f'disk{number}')}"]
        return [QEMU, *arguments, *options["qemu"]]

    def start(self):
        """Boot. A guest that has ended can be started again: with a fresh root, the same disks.
        The guest dies with the thread that has started it."""
        if self.process:
            raise RuntimeError(f"guest {self.name} runs already")
        if not os.path.exists(self.path("initramfs")):
            self.build()
        if not self._listener:
            for number, size in enumerate(self.options["disks"]):
                with open(self.path(f"disk{number}"), "wb") as disk:
                    disk.truncate(size)
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.path("control"))
            self._listener.listen(1)
            self.lab.loop.call(self.lab.switch.add, self.name, self.path("network"))
            self.lab.loop.call(self.lab.loop.watch, self._listener, self._accept)
            self.lab.settle()
        self.status = self.failure = self.boot_seconds = None
        self.answers.clear()
        shutil.rmtree(self.results, ignore_errors=True)
        self._started = time.monotonic()
        with open(self.path("qemu.log"), "wb") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=_die_with_parent)
        self._pidfd = os.pidfd_open(self.process.pid)
        self.lab.loop.call(self.lab.loop.watch, self._pidfd, self._ended)

    def kill(self):
        """Take the power away, and wait until it is off."""
        self.lab.kill(self)

    def link(self, up):
        """Break (False) or mend (True) the guest's network link."""
        self.lab.loop.call(setattr, self.lab.switch.ports[self.name], "up", up)

    def pause(self):
        """Stop its processors and its clock, until resume(). Nobody is told, inside or outside."""
        self._monitor("stop")

    def resume(self):
        self._monitor("cont")

    def _monitor(self, command):
        with Monitor(self.path("monitor")) as monitor:
            monitor.do(command)

    def tell(self, line):
        """Send a line to the guest. In the loop's thread."""
        if self._control:
            try:
                self._control.sendall(line.encode() + b"\n")
            except OSError:
                pass  # the guest is ending

    def _accept(self):
        self._hang_up()
        self._control, _ = self._listener.accept()
        self._received = b""
        self.lab.loop.watch(self._control, self._read)

    def _read(self):
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode("utf-8", "replace").partition(" ")
            if verb == "boot":
                self.boot_seconds = time.monotonic() - self._started
                self.lab.told_before(self)
            elif verb == "signal":
                self.lab.signalled(*((rest.split(" ", 1) + [""])[:2]))
            elif verb == "answer":
                name, _, value = rest.partition(" ")
                self.answers[name] = value
            elif verb == "exit" and rest.isdigit():
                self.status = int(rest)

    def _hang_up(self):
        if self._control:
            self.lab.loop.forget(self._control)
            self._control.close()
            self._control = None

    def _ended(self):
        """QEMU is gone: take what it left."""
        while self._control:
            self._read()
        self.lab.loop.forget(self._pidfd)
        os.close(self._pidfd)
        code = self.process.wait()
        self.seconds = time.monotonic() - self._started
        if self.status is None:
            self.failure = self._why(code)
        self._unpack_results()
        self.process = None
        self.lab.signalled(f"exit.{self.name}", str(self.status if self.status is not None
                                                    else "none"))

    def _why(self, code):
        if code == -signal.SIGKILL:
            return "killed"
        if code != 0:
            return f"QEMU ended with {code}: {self._text('qemu.log').strip()[-400:]}"
        return NEVER_BOOTED if self.boot_seconds is None else "went down without a status"

    def _unpack_results(self):
        os.makedirs(self.results, exist_ok=True)
        path = self.path("results.tar")
        try:
            if os.path.getsize(path):
                with tarfile.open(path) as tar:
                    tar.extractall(self.results, [m for m in tar if _harmless(m)])
        except (OSError, tarfile.TarError) as error:
            self.failure = f"its results cannot be read: {error}"

    def close(self):
        """After the loop has ended: leave nothing behind."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
            os.close(self._pidfd)
            self.failure = "killed"
        for open_socket in (self._control, self._listener):
            if open_socket:
                open_socket.close()


def need_qemu():
    if not shutil.which(QEMU):
        raise Unavailable(f"{QEMU} is not installed (Debian package qemu-system-x86)")


def _harmless(member):
    """Only files and folders, and only below where they are unpacked."""
    name = os.path.normpath(member.name)
    return (member.isreg() or member.isdir()) and not name.startswith(("/", ".."))


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
