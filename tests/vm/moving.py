"""A guest that moves from one QEMU process to the next (live migration). Its script prints "PASS n" on the serial console
after each pass of its work, and "FAILED: ..." if something is wrong: the laboratory talks with one QEMU only.

    class Host(moving.Host):
        def disk(self, number): ...          # arguments of QEMU process `number`
    machine = moving.Machine(host, 0)
    machine.go_on()
    machine = host.migrate(machine, 1)

Threading: one thread. Errors: AssertionError with the logs and consoles.
"""
import contextlib
import json
import os
import re
import subprocess
import time

from vmlab.monitor import Refused, connect

WAIT_SECONDS = 120
# What the kernel, a file system and a script print if a request has failed.
BAD = re.compile(r"FAILED|I/O error|EXT4-fs error|Kernel panic|BUG:")


def memory_kib(mib):
    """The size of the memory of a guest. Before version 9.0, QEMU without KVM loses writes of the guest during a migration
    if the memory is a multiple of 256 KiB: it then clears the bits of dirty pages 64 at a time, and forgets to make the
    emulated processor report the next write."""
    return mib * 1024 - 8


class Machine:
    """One QEMU process of the guest."""

    def __init__(self, host, number, *arguments):
        self.host, self.number, self.monitor = host, number, None
        self.console = host.path(f"console{number}")
        monitor = host.path(f"monitor{number}")
        with open(host.path("qemu.log"), "ab") as log:
            self.process = subprocess.Popen(
                [*host.command(number, self.console), "-qmp", f"unix:{monitor},server=on,wait=off", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host.machines.append(self)
        self.monitor = connect(monitor, self.process)

    def text(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.console, encoding="utf-8", errors="replace") as file:
                return file.read()
        return ""

    def passes(self):
        text = self.text()
        assert not BAD.search(text), "the guest has failed"
        assert self.process.poll() is None, f"QEMU has ended with status {self.process.returncode}"
        found = re.findall(r"PASS (\d+)", text)
        return int(found[-1]) if found else 0

    def go_on(self):
        """Until a pass has ended that began after now."""
        goal = self.passes() + 2
        first = not self.passes()
        self.host.wait_for(lambda: self.passes() >= (1 if first else goal) and
                           len(re.findall(r"PASS \d+", self.text())) >= 2)

    def end(self):
        if self.monitor:
            with contextlib.suppress(OSError, Refused):
                self.monitor.do("quit")
            self.monitor.close()
            self.monitor = None
        self.process.kill()
        self.process.wait()


class Host:
    """The folder of a test, with a server's control socket and log, and the machines."""

    def __init__(self, folder, guest, gmblock):
        self.folder, self.guest, self.gmblock, self.machines = folder, guest, gmblock, []

    def path(self, name):
        return os.path.join(self.folder, name)

    def wait_for(self, condition):
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < end, f"not within {WAIT_SECONDS} s"
            time.sleep(0.1)

    def story(self):
        lines = []
        for name in ("log", "qemu.log", *(os.path.basename(machine.console) for machine in self.machines[-2:])):
            with contextlib.suppress(FileNotFoundError):
                with open(self.path(name), encoding="utf-8", errors="replace") as file:
                    lines += [f"--- {name}", *file.read().splitlines()[-40:]]
        return "\n".join(lines)

    def disk(self, number):
        """The arguments for the disk of a QEMU process."""
        raise NotImplementedError

    def command(self, number, console):
        """That of the guest, but without the channels to the laboratory."""
        command = self.guest.command()
        memory = command.index("-m") + 1
        command[memory] = f"{memory_kib(int(command[memory].rstrip('M')))}K"
        for i, word in enumerate(command):
            found = re.match(r"(?:file|socket),id=(\w+),path=", word)
            if found:
                command[i] = f"file,id=console,path={console}" if found[1] == "console" else f"null,id={found[1]}"
            elif word.startswith("stream,id=net,"):
                command[i] = "hubport,id=net,hubid=0"
        return [*command, *self.disk(number)]

    def stats(self):
        return json.loads(subprocess.run([self.gmblock, "stats", "--json", self.path("control")], check=True,
                                         stdout=subprocess.PIPE).stdout)

    def migrate(self, machine, number):
        """Moves the guest to a new QEMU process, and returns that. The old one has ended."""
        channel = self.path(f"migration{number}")
        target = Machine(self, number, "-incoming", f"unix:{channel}")
        machine.monitor.migrate(channel)
        machine.end()
        return target

    def end(self):
        for machine in self.machines:
            machine.end()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is not None:
                print(self.story())
        finally:
            self.end()
