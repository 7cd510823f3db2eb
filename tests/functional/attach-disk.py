#!/usr/bin/python3
"""A loop device on a file through FUSE is a disk: a file system on it survives a server that is
killed in the middle, and is whole after another attachment."""
import hashlib
import os
import shutil
import subprocess
import threading
import unittest

import attach_tool


class Disk(attach_tool.Case):
    def setUp(self):
        super().setUp()
        for tool in ("mkfs.ext4", "e2fsck", "losetup"):
            if shutil.which(tool, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin") is None:
                raise unittest.SkipTest(f"there is no {tool}")
        self.mount_point = self.path("mnt")
        os.mkdir(self.mount_point)

    def mount(self, device, *options):
        self.call("mount", *options, device, self.mount_point)
        self.addCleanup(subprocess.run, ["umount", self.mount_point], check=False,
                        stderr=subprocess.DEVNULL)

    def sums(self):
        found = {}
        for folder, _, names in os.walk(self.mount_point):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    found[name] = hashlib.sha256(file.read()).hexdigest()
        return found

    def test_a_file_system_survives_a_killed_server(self):
        image = self.image(96 << 20)
        self.serve(image)
        device = self.loop_device(self.attach())
        self.call("mkfs.ext4", "-q", device)
        self.mount(device)
        failures = []

        def write(number):
            try:
                with open(f"{self.mount_point}/{number}", "wb", buffering=0) as file:
                    for _ in range(24):
                        file.write(os.urandom(128 << 10))
                        os.fsync(file.fileno())
            except OSError as error:
                failures.append(error)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(2):
            # In the middle of it: some is there, and more is to come.
            while len(os.listdir(self.mount_point)) < 3:
                pass
            self.serve(image)
        for writer in writers:
            writer.join()
        self.assertEqual(failures, [])
        before = self.sums()
        code, _, errors = self.gmblock("detach", self.path("disk"))
        self.assertEqual(code, 1)
        self.assertIn("backs /dev/loop", errors)
        self.call("umount", self.mount_point)
        self.call("e2fsck", "-fn", device)
        self.call("losetup", "--detach", device)
        self.detach()

        device = self.loop_device(self.attach("--read-only"))
        self.mount(device, "-o", "ro")
        self.assertEqual(self.sums(), before)
        self.assertEqual(len(before), 4)


if __name__ == "__main__":
    attach_tool.main()
