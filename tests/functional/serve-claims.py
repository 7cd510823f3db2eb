#!/usr/bin/python3
"""A disk that somebody else uses is not served for writing; one that is served for writing is not
given to a second server. What is only read keeps no server away, but is not copied over."""
import os
import shutil
import signal
import subprocess

import nbdmini
import support

MIB = 1 << 20


def tool(*command):
    """The output of a tool of the system; None when this machine or user cannot run it."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class Claims(support.Case):
    def image(self, size=16 * MIB):
        path = self.path("disk.img")
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def loop(self, image):
        """A loop device over the image, detached at the end."""
        device = tool("losetup", "--find", "--show", image)
        if device is None:
            self.skipTest("no loop device can be made here")
        self.addCleanup(tool, "losetup", "--detach", device)
        return device

    def check_busy(self, disk, *fragments):
        self.check_refused(["serve", disk, "--listen", self.socket_uri("refused")], 1,
                           f"'{disk}'", "readonly", *fragments)

    def check_readable(self, disk):
        server = self.start("--export", f"={disk},readonly", "--listen", self.socket_uri("reader"))
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(len(client.read(0, 4096)), 4096)
        self.assertEqual(server.stop()[0], 0)

    def check_two_servers(self, disk, *fragments):
        first = self.start_unix(disk)
        self.check_busy(disk, *fragments)
        self.check_readable(disk)
        self.assertEqual(first.stop()[0], 0)
        second = self.start("--listen", self.socket_uri("second"), disk)
        self.assertEqual(second.stop()[0], 0)

    def check_killed(self, disk):
        for _ in range(5):
            server = self.start_unix(disk)
            with nbdmini.open_export(server.uri) as client:
                client.write(0, b"x" * 4096)
                server.signal(signal.SIGKILL)
                server.process.wait()
        self.assertEqual(self.start_unix(disk).stop()[0], 0)

    def check_two_exports(self, disk):
        server = self.start_unix("--export", f"a={disk}", "--export", f"b={disk},mode=direct",
                                 "--export", f"c={disk},readonly", uri_count=3)
        with nbdmini.open_export(server.uri, b"a") as writer, \
                nbdmini.open_export(server.uri, b"b") as direct, \
                nbdmini.open_export(server.uri, b"c") as reader:
            writer.write(0, b"a" * 4096)
            self.assertEqual(direct.read(0, 4096), b"a" * 4096)
            direct.write(0, b"b" * 4096)
            self.assertEqual(reader.read(0, 4096), b"b" * 4096)
        self.assertEqual(server.stop()[0], 0)

    def check_readers(self, disk):
        """Two servers that read a disk, and one that begins to write it beside them; as long as
        one of them is there, nothing is copied over it."""
        source = self.path("source")
        with open(source, "wb") as file:
            file.write(os.urandom(MIB))
        first, second = (
            self.start("--export", f"a={disk},readonly", "--export", f"b={disk},readonly,mode=direct",
                       "--listen", self.socket_uri(name), uri_count=2) for name in ("one", "two"))
        writer = self.start_unix("--export", f"a={disk}", "--export", f"b={disk},readonly",
                                 uri_count=2)
        with nbdmini.open_export(writer.uri, b"a") as client, \
                nbdmini.open_export(second.uri, b"a") as reader:
            client.write(0, b"w" * 4096)
            self.assertEqual(reader.read(0, 4096), b"w" * 4096)
        copy = ["copy", source, disk]
        self.check_refused(copy, 1, "in use by another program")
        self.assertEqual(writer.stop()[0], 0)
        self.check_refused(copy, 1, "served read-only", "gmblock server")
        self.assertEqual(first.stop()[0], 0)
        self.check_refused(copy, 1, "served read-only", "gmblock server")
        with nbdmini.open_export(second.uri, b"a") as reader:
            self.assertEqual(reader.read(0, 4096), b"w" * 4096)
            second.signal(signal.SIGKILL)
            second.process.wait()
        self.assertEqual(self.run_gmblock(*copy)[0], 0)

    def test_an_image_that_is_read(self):
        self.check_readers(self.image())

    def test_a_device_that_is_read(self):
        self.check_readers(self.loop(self.image()))

    def test_an_image_that_its_server_may_only_read(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        image = self.image(MIB)
        os.chmod(image, 0o444)
        os.chmod(self.folder, 0o777)
        self.start("--export", f"={image},readonly", "--listen", self.socket_uri(),
                   preexec_fn=lambda: os.setuid(65534))
        self.check_refused(["copy", "/dev/null", image], 1, "served read-only")
        self.assertEqual(os.path.getsize(image), MIB)

    def test_one_image_in_two_servers(self):
        self.check_two_servers(self.image(), "by a gmblock server; stop that server (gmblock list --local shows")

    def test_one_image_under_two_names(self):
        image = self.image()
        os.link(image, self.path("other.img"))
        self.start_unix(image)
        self.check_busy(self.path("other.img"), "by a gmblock server; stop that server (gmblock list --local shows")

    def test_one_device_in_two_servers(self):
        self.check_two_servers(self.loop(self.image()), "in use by another program")

    def test_one_image_in_several_exports(self):
        self.check_two_exports(self.image())

    def test_one_device_in_several_exports(self):
        self.check_two_exports(self.loop(self.image()))

    def test_a_killed_server_has_let_go_of_its_image(self):
        self.check_killed(self.image())

    def test_a_killed_server_has_let_go_of_its_device(self):
        self.check_killed(self.loop(self.image()))

    def test_a_mounted_device(self):
        device = self.loop(self.image())
        folder = self.path("mounted")
        os.mkdir(folder)
        if tool("mkfs.ext4", "-q", device) is None or tool("mount", device, folder) is None:
            self.skipTest("a filesystem cannot be made and mounted here")
        try:
            self.check_busy(device, "mounted")
            self.check_readable(device)
        finally:
            self.assertIsNotNone(tool("umount", folder))
        self.assertEqual(self.start_unix(device).stop()[0], 0)

    def test_a_device_that_is_served_cannot_be_mounted(self):
        device = self.loop(self.image())
        folder = self.path("mounted")
        os.mkdir(folder)
        if tool("mkfs.ext4", "-q", device) is None or tool("mount", device, folder) is None:
            self.skipTest("a filesystem cannot be made and mounted here")
        self.assertIsNotNone(tool("umount", folder))
        self.start_unix(device)
        if tool("mount", device, folder) is not None:
            tool("umount", folder)
            self.fail("a device that is being served was mounted")


if __name__ == "__main__":
    support.main()
