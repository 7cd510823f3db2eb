#!/usr/bin/python3
"""marker is for raw disks that are read around the page cache; everything else is refused
with the reason and what to do, and nothing is served. tests/vm/marker.py has the disks."""
import os
import subprocess

import support


class Marker(support.Case):
    def setUp(self):
        super().setUp()
        self.image = self.make_file("disk.img", bytes(1 << 20))

    def check(self, export, *fragments):
        self.check_refused(
            ["serve", "--export", f"={export}", "--listen", self.socket_uri()], 1,
            "marker does not work", "omit", *fragments)
        self.assertNotIn("s", os.listdir(self.folder))

    def test_a_file_is_refused(self):
        self.check(f"{self.image},mode=direct,marker", self.image, "the disk is a file")
        self.check(f"{self.image},mode=direct,readonly,marker", self.image, "the disk is a file")

    def test_the_page_cache_is_refused(self):
        self.check(f"{self.image},marker", self.image, "mode=cached", "add mode=direct")
        self.check(f"{self.image},marker,write-mode=direct", "mode=cached", "add mode=direct")

    def test_what_is_no_disk_is_refused(self):
        self.check("memory:1M,mode=direct,marker", "'memory:1M'", "the path is not a disk")
        self.check("null:1M,mode=direct,marker", "'null:1M'", "the path is not a disk")

    def test_a_loop_device_is_refused(self):
        try:
            device = subprocess.run(
                ["losetup", "--find", "--show", self.image], check=True, capture_output=True,
                text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no loop device: {error}")
        self.addCleanup(subprocess.run, ["losetup", "--detach", device], check=False)
        self.check(f"{device},mode=direct,marker", device, "the disk is a loop device")

    def test_the_file_of_exports_is_refused_too(self):
        config = self.make_file("config", f"exports:\n  - name: a\n    path: {self.image}\n"
                                          "    mode: direct\n    marker: yes\n")
        self.check_refused(["serve", "--config", config, "--listen", self.socket_uri()], 1,
                           "marker does not work", self.image, "the disk is a file")


if __name__ == "__main__":
    support.main()
