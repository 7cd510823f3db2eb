#!/usr/bin/python3
"""QEMU as the front end of vhost-user-blk, without a kernel: the firmware boots from the disk, and a boot sector writes
and reads it while the guest moves from one QEMU to the next (live migration) and the server is killed."""
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import support

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "vm"))
from vmlab.monitor import connect  # noqa: E402

MIB = 1 << 20
HOPS = int(os.environ.get("SOAK_VHOST_HOPS", "3").rstrip("%"))
# Prints "booted" on the debug console, and exits with a status.
HELLO = b"".join(bytes([0xb0, byte, 0xe6, 0xe9]) for byte in b"booted\n") + bytes([0xb0, 0x31, 0xe6, 0xf4, 0xf4])
# Counts, writes the counter to sector 1 (INT 13h, AH=43h), reads it back (AH=42h) into other memory, and prints a dot
# if both are the same; otherwise an X, and stops.
COUNTER = bytes.fromhex(
    "31c08ed88ed0bc007c8816007066ff060080be457cb800438a160070cd13721fbe557cb800428a160070cd13721166a10080663b0600907506b0"
    "2ee6e9ebceb058e6e9faf41000010000800000010000000000000010000100009000000100000000000000")


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "no QEMU")
class Qemu(support.Case):
    def serve(self, sector=None):
        """The server of a disk with that boot sector; None: the disk stays as it is."""
        self.socket_path = self.path("socket")
        if sector is not None:
            self.make_file("disk.img", sector.ljust(510, b"\0") + b"\x55\xaa" + bytes(MIB - 512))
        self.control = self.path("control")
        return self.start("--export", f"disk={self.path('disk.img')}", "--control", self.control,
                          "--listen", f"vhost-user-blk+unix:///disk?socket={self.socket_path}")

    def command(self, console, *arguments):
        return ["qemu-system-x86_64", "-M", "pc,accel=tcg,memory-backend=memory", "-m", "32", "-nodefaults", "-display",
                "none", "-no-reboot", "-object", "memory-backend-memfd,id=memory,size=32M,share=on",
                "-chardev", f"socket,id=disk,path={self.socket_path},reconnect=1",
                "-device", "vhost-user-blk-pci,chardev=disk,bootindex=1", "-debugcon", console,
                "-device", "isa-debug-exit,iobase=0xf4,iosize=1", *arguments]

    def test_the_firmware_boots_from_it(self):
        self.serve(HELLO)
        run = subprocess.run(self.command("stdio"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             timeout=support.WAIT_SECONDS * 3, check=False)
        self.assertIn(b"booted\n", run.stdout)
        self.assertEqual(run.returncode, 0x31 << 1 | 1)

    def launch(self, number, *arguments):
        """A QEMU process that counts; its monitor and its console."""
        console, monitor = self.path(f"console{number}"), self.path(f"monitor{number}")
        process = subprocess.Popen(self.command(f"file:{console}", "-qmp", f"unix:{monitor},server=on,wait=off",
                                                *arguments))
        self.addCleanup(self.end, process)
        opened = connect(monitor, process)
        self.addCleanup(opened.close)
        return process, opened, console

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def dots(self, console):
        with open(console, "rb") as file:
            text = file.read()
        self.assertNotIn(b"X", text)
        return len(text)

    def go_on(self, console, count=50):
        """Waits until the guest has written and read that often since now."""
        goal = self.dots(console) + count
        self.wait_for(lambda: self.dots(console) >= goal)

    def test_live_migration(self):
        self.serve(COUNTER)
        process, monitor, console = self.launch(0)
        self.go_on(console)
        for hop in range(1, HOPS + 1):
            channel = self.path(f"migration{hop}")
            target, target_monitor, target_console = self.launch(hop, "-incoming", f"unix:{channel}")
            monitor.migrate(channel)
            self.end(process)
            process, monitor, console = target, target_monitor, target_console
            self.go_on(console)
        stats = json.loads(subprocess.run([support.program(), "stats", "--json", self.control], check=True,
                                          stdout=subprocess.PIPE).stdout)
        self.assertEqual((stats["counters"]["errors"], stats["counters"]["connections_failed"]), (0, 0))
        self.assertEqual(stats["counters"]["connections_accepted"], HOPS + 1)

    def test_killed_and_restarted_servers(self):
        server = self.serve(COUNTER)
        _, _, console = self.launch(0)
        self.go_on(console)
        for number in (signal.SIGKILL, signal.SIGTERM):
            server.signal(number)
            server.wait()
            server = self.serve()
            self.go_on(console)


if __name__ == "__main__":
    support.main()
