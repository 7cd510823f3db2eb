#!/usr/bin/python3
"""A disk that cannot be opened is named with the reason; then nothing at all is served."""
import os
import shutil
import socket
import subprocess
import unittest

import support


class BadPaths(support.Case):
    def check(self, path, *fragments):
        self.check_refused(["serve", path, "--listen", self.socket_uri()], 1, path, *fragments)
        self.assertNotIn("s", os.listdir(self.folder))

    def test_what_is_not_a_disk(self):
        self.check(self.path("missing.img"), "does not exist", "'truncate -s SIZE FILE'")
        self.check_refused(["serve", "flash:" + self.path("missing.flash"), "--listen", self.socket_uri()], 1,
                           "does not exist", "'gmblock create --size=SIZE flash:FILE'")
        self.make_file("disk.flash", bytes(4096))
        for key in ("", ",readonly"):
            errors = self.check_refused(
                ["serve", "--export", f"=flash:{self.path('disk.flash')}@monday{key}", "--listen", self.socket_uri()],
                1, "does not exist; leave out '@'", "EXPORT@NAME")
            self.assertNotIn("gmblock create", errors)
        self.check(self.folder, "directory")
        os.mkfifo(self.path("fifo"))
        self.check(self.path("fifo"))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path("socket"))
            self.check(self.path("socket"))
        self.check("/dev/null")
        os.symlink("loop", self.path("loop"))
        self.check(self.path("loop"), "symbolic links")

    def test_a_key_without_export(self):
        self.check(self.path("missing.img") + ",readonly", "does not exist", "--export =PATH,KEY")

    def test_a_file_is_not_advised_where_it_would_do_harm(self):
        missing = self.path("missing.img")
        for export in ("/dev/no-such-disk", f"{missing},readonly"):
            errors = self.check_refused(["serve", "--export", f"={export}", "--listen",
                                         self.socket_uri()], 1, "does not exist")
            self.assertNotIn("truncate", errors)
        code, _, errors = self.run_gmblock("info", "--local", "--path", missing)
        self.assertEqual(code, 1)
        self.assertIn(f"'{missing}': it does not exist\n", errors)

    def test_what_is_no_path(self):
        for path, advice in (("memory", "memory:SIZE"), ("null", "null:SIZE"),
                             ("nbd://localhost/disk", "give a path")):
            errors = self.check_refused(["serve", path, "--listen", self.socket_uri()], 1,
                                        f"'{path}': it does not exist; ", advice)
            self.assertNotIn("truncate", errors)

    def test_a_prefix_that_no_disk_has(self):
        self.make_file("disk.img", bytes(4096))
        for path in ("file:disk.img", "fil:missing.img"):
            for export in (path, path + ",readonly"):
                errors = self.check_refused(["serve", "--export", f"={export}", "--listen", self.socket_uri()], 1,
                                            f"'{path}': it does not exist; leave out the word before the colon")
                self.assertNotIn("truncate", errors)
        with open(self.path("file:disk.img"), "xb") as disk:
            disk.truncate(4096)
        self.assertEqual(self.start_unix(self.path("file:disk.img")).stop(), (0, ""))

    def test_a_missing_folder_of_an_overlay(self):
        disk = self.make_file("disk.img", bytes(4096))
        errors = self.check_refused(["serve", "--export", f"={disk},overlay={self.path('no/overlay')}", "--listen",
                                     self.socket_uri()], 1, "create its folder first")
        self.assertNotIn("truncate", errors)

    def test_sizes_of_memory_disks(self):
        """They are wrong whatever the machine has, so they are usage errors."""
        for path in ("memory:lots", "memory:10x", "null:", "memory:99999999999E"):
            for arguments in ([path], ["--export", f"={path}"]):
                self.check_refused(["serve", *arguments, "--listen", self.socket_uri()], 2, path,
                                   "Try 'gmblock serve --help'")
        file = self.make_file("conf", "exports: [{name: a, path: 'memory:10x'}]\n")
        self.check_refused(["serve", "--config", file], 2, f"{file}:1:", "memory:10x")

    @support.unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_a_file_we_may_not_read(self):
        path = self.make_file("secret.img", bytes(4096))
        os.chmod(path, 0)
        os.chmod(self.folder, 0o755)
        program = self.path("gmblock")
        support.shutil.copy(support.program(), program)
        done = subprocess.run(
            [program, "serve", path, "--listen", "nbd://127.0.0.1:0"], user=65534, group=65534,
            extra_groups=[], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(path, done.stderr)
        self.assertIn("Permission denied", done.stderr)

    def test_images_that_are_more_than_a_disk(self):
        """They are served only when that is said to be wanted."""
        for name, begin in (
                ("qcow2", b"QFI\xfb\0\0\0\3"), ("VMDK", b"KDMV"), ("VMDK", b"COWD"),
                ("VMDK", b"# Disk DescriptorFile\n"), ("VHDX", b"vhdxfile"), ("VHD", b"conectix"),
                ("VDI", b"<<< Oracle VM VirtualBox Disk Image >>>".ljust(64, b"\0") +
                 b"\x7f\x10\xda\xbe")):
            with self.subTest(begin):
                image = self.make_file(name, begin + bytes(65536))
                for more in ("", ",readonly"):
                    self.check_refused(
                        ["serve", "--export", f"={image}{more}", "--listen", self.socket_uri()], 1,
                        f"'{image}' looks like a {name} image", "qemu-img convert -O raw",
                        "format=raw")
                self.assertEqual(self.start_unix("--export", f"={image},format=raw").stop(), (0, ""))
        for begin in (b"QFI", b"", b"\0QFI\xfb", b"LUKS\xba\xbe"):
            image = self.make_file("raw", begin + bytes(4096))
            self.assertEqual(self.start_unix(image).stop(), (0, ""))

    @unittest.skipUnless(shutil.which("qemu-img"), "qemu-img is not installed")
    def test_images_as_qemu_makes_them(self):
        for form in ("qcow2", "vmdk", "vhdx", "vpc", "vdi"):
            with self.subTest(form):
                image = self.path("disk." + form)
                subprocess.run(["qemu-img", "create", "-q", "-f", form, image, "4M"], check=True)
                self.check_refused(["serve", image, "--listen", self.socket_uri()], 1, image,
                                   "looks like", "format=raw")

    def test_other_formats_are_not_served(self):
        image = self.make_file("raw", bytes(4096))
        self.check_refused(["serve", "--export", f"={image},format=qcow2"], 2, "format",
                           "'qcow2' is not a supported format", "qemu-img convert")

    def test_one_bad_export_stops_all(self):
        good = self.make_file("good.img", bytes(4096))
        self.check_refused(
            ["serve", "--export", f"good={good}", "--export", f"bad={self.path('missing')}",
             "--listen", self.socket_uri()],
            1, 'the export "bad"', self.path("missing"))
        self.assertEqual(os.listdir(self.folder), ["good.img"])


if __name__ == "__main__":
    support.main()
