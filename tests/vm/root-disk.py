#!/usr/bin/python3
"""root-disk.py GMBLOCK KERNEL SOURCE_ROOT BUILD_ROOT WORK_FOLDER RELEASE [TEST...]: a guest whose root file system is an
export, attached in an initramfs of initramfs-tools or dracut as the installed hooks make it. When the
root has taken over, the server is killed and started again, and the root is still read and written.

The initramfs is made in a root of that release of Debian (mmdebstrap), as root. Its libraries must be those
that the program was linked with, or compatible with them."""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import unittest

import testing

GMBLOCK, KERNEL, SOURCE, BUILD, WORK, RELEASE, *TESTS = sys.argv[1:]
sys.path.insert(0, os.path.join(SOURCE, "tests/frontdoor"))
import packages  # noqa: E402 pylint: disable=wrong-import-position
from packages import ports  # noqa: E402

packages.WORK = os.path.abspath(WORK)
DRIVERS = ["virtio_net", "virtio_pci", "ext4"]
MODULES = [*DRIVERS, "ublk_drv", "nbd", "tls", "af_packet"]
# Where the build installs what makers of an initramfs look for.
HOOKS = ("/initramfs-tools/", "/dracut/")
KEY = "root:00112233445566778899aabbccddeeff\n"
COMMAND_LINE = ("console=ttyS0 panic=-1 oops=panic no_timer_check nowatchdog nokaslr mitigations=off "
                "root=/dev/ublkb0 rw ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off net.ifnames=0")
INIT = r"""#!/bin/sh
exec </dev/console >/dev/console 2>&1
mount -o remount,rw /
echo ready
read -r line
echo 3 >/proc/sys/vm/drop_caches
sha256sum -c /data.sum && echo whole >/proof
sync
poweroff -f
"""


class Server:
    def __init__(self, port, disk, *arguments):
        self.process = subprocess.Popen(
            [GMBLOCK, "serve", "--listen", f"nbd://127.0.0.1:{port}", "--export", f"root={disk}",
             "--control", "none", *arguments], stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline():
            raise AssertionError("the server did not start")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Cleanups:
    """What a root file system is removed by: the end of the class."""

    def __init__(self, case):
        self.addCleanup = case.addClassCleanup  # pylint: disable=invalid-name


class RootDisk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("only root can make a root file system")
        for tool in ("mmdebstrap", "qemu-system-x86_64", "mkfs.ext4", "debugfs"):
            if shutil.which(tool, path="/usr/sbin:" + os.environ["PATH"]) is None:
                raise unittest.SkipTest(f"{tool} is not installed")
        if packages.mirror() is None:
            raise unittest.SkipTest("this machine's sources have no mirror of Debian")
        os.makedirs(packages.WORK, exist_ok=True)
        try:
            with testing.laboratory() as lab:
                cls.kernel = lab.guest("none", KERNEL, "").kernel
        except testing.Unavailable as reason:
            raise unittest.SkipTest(str(reason)) from reason
        cls.root = packages.Root(RELEASE, Cleanups(cls))
        libraries = re.findall(r"NEEDED +(\S+)", packages.run("objdump", "-p", GMBLOCK))
        owners = {packages.run("dpkg", "-S", f"*/{name}").split(":")[0] for name in libraries
                  if name.startswith("lib")}
        cls.root.install("initramfs-tools", "dracut-network", "dbus", "iproute2", "procps", "systemd", "busybox-static",
                         *sorted(owners))
        cls.install()

    @classmethod
    def install(cls):
        """The program, what the build installs for an initramfs, and a kernel's modules."""
        done = packages.run("meson", "introspect", "--installed", BUILD)
        prefix = next(option["value"] for option in json.loads(
            packages.run("meson", "introspect", "--buildoptions", BUILD)) if option["name"] == "prefix")
        for source, path in json.loads(done).items():
            if any(hook in path for hook in HOOKS):
                path = path.replace(prefix, "/usr", 1)
            elif not path.endswith("/attach-root"):
                continue
            cls.copy(source, path, 0o755)
        cls.copy(GMBLOCK, f"{prefix}/bin/gmblock", 0o755)
        folder = f"/lib/modules/{cls.kernel.release}"
        for name in cls.kernel.closure(MODULES):
            cls.write(f"{folder}/kernel/{name}.ko", cls.kernel.read(name))
        for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
            cls.copy(os.path.join(cls.kernel.folder, "modules", name), f"{folder}/{name}", 0o644)
        cls.copy(os.path.join(cls.kernel.folder, "config"), f"/boot/config-{cls.kernel.release}", 0o644)
        cls.root.run("depmod", cls.kernel.release)

    @classmethod
    def copy(cls, source, path, mode):
        with open(source, "rb") as file:
            cls.write(path, file.read(), mode)

    @classmethod
    def write(cls, path, data, mode=0o644):
        path = cls.root.path(path.lstrip("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode)

    def disk(self, name):
        """A root file system with a shell and something to read."""
        tree = self.root.path(f"tmp/{name}")
        for folder in ("bin", "sbin", "dev", "etc", "proc", "sys", "run"):
            os.makedirs(f"{tree}/{folder}")
        # systemd goes on to nothing else.
        shutil.copy(self.root.path("etc/os-release"), f"{tree}/etc/os-release")
        shutil.copy(self.root.path("bin/busybox"), f"{tree}/bin/busybox")
        for applet in ("sh", "mount", "sha256sum", "sync", "poweroff"):
            os.symlink("busybox", f"{tree}/bin/{applet}")
        with open(f"{tree}/sbin/init", "w", encoding="ascii") as file:
            file.write(INIT)
        os.chmod(f"{tree}/sbin/init", 0o755)
        with open(f"{tree}/data", "wb") as file:
            file.write(os.urandom(8 << 20))
        with open(f"{tree}/data.sum", "w", encoding="ascii") as file:
            file.write(packages.run("sha256sum", f"{tree}/data").split()[0] + "  /data\n")
        disk = self.root.path(f"tmp/{name}.img")
        packages.run("mkfs.ext4", "-q", "-d", tree, disk, "64M",
                     env={**os.environ, "PATH": "/usr/sbin:" + os.environ["PATH"]})
        return disk

    def boot(self, initramfs, words, disk, port, *arguments):
        server = Server(port, disk, *arguments)
        self.addCleanup(lambda: server.kill())
        # One processor: without KVM, a second one sometimes runs into what the kernel patches at the boot.
        guest = subprocess.Popen(
            ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
             "-machine", "q35", "-cpu", "max", "-m", "768",
             "-kernel", self.kernel.image, "-initrd", initramfs, "-append", f"{COMMAND_LINE} {words}",
             "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
             "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace")
        limit = threading.Timer(testing.TIME_LIMIT, guest.kill)
        limit.start()
        said = []
        try:
            for line in guest.stdout:
                said.append(line)
                if line.strip() == "ready":
                    server.kill()
                    server = Server(port, disk, *arguments)
                    guest.stdin.write("go\n")
                    guest.stdin.flush()
        finally:
            limit.cancel()
            guest.kill()
            guest.communicate()
        server.kill()
        proof = packages.run("debugfs", "-R", "cat /proof", disk,
                             env={**os.environ, "PATH": "/usr/sbin:" + os.environ["PATH"]})
        self.assertEqual(proof, "whole\n", "".join(said[-80:]))

    def with_tls(self, name, words, make):
        """Boots with the initramfs that make() puts into /boot/initramfs, from a server that requires TLS."""
        port = ports.free()
        self.write("/etc/gmblock/root.psk", KEY.encode(), 0o600)
        self.write("/etc/gmblock/attach/root.conf",
                   f"URI=nbds://root@10.0.2.2:{port}/root?tls-psk-file=/etc/gmblock/root.psk\n"
                   "OPTIONS=\"--ublk --device 0\"\n".encode(), 0o600)
        make()
        self.boot(self.root.path("boot/initramfs"), words, self.disk(name), port,
                  "--tls", "require", "--tls-psk", self.root.path("etc/gmblock/root.psk"))

    def initramfs_tools(self):
        self.write("/etc/initramfs-tools/conf.d/test.conf", b"MODULES=list\n")
        self.write("/etc/initramfs-tools/modules", "\n".join(DRIVERS).encode())
        self.root.run("mkinitramfs", "-o", "/boot/initramfs", self.kernel.release)

    def dracut(self):
        self.root.run("dracut", "--force", "--no-hostonly", "--add-drivers", " ".join(DRIVERS),
                      "/boot/initramfs", self.kernel.release)

    def test_initramfs_tools_with_tls(self):
        self.with_tls("initramfs-tools", "", self.initramfs_tools)

    def test_dracut_with_tls(self):
        self.with_tls("dracut", "rd.shell=0 rd.emergency=poweroff", self.dracut)
        self.assertEqual(os.stat(self.root.path("boot/initramfs")).st_mode & 0o077, 0)

    def test_without_a_disk_nothing_is_in_it(self):
        conf = self.root.path("etc/gmblock/attach/root.conf")
        if os.path.exists(conf):
            os.unlink(conf)
        self.initramfs_tools()
        self.assertNotIn("gmblock", self.root.run("lsinitramfs", "/boot/initramfs")
                         .replace("scripts/local-top/gmblock", ""))
        self.dracut()
        self.assertNotIn("gmblock", self.root.run("lsinitrd", "/boot/initramfs"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *TESTS], verbosity=2)
