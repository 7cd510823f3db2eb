#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gmblock info --local: what this machine offers."""

import ctypes
import glob
import json
import os
import platform
import resource
import subprocess
import tempfile
import unittest

from info_tool import GMBLOCK, InfoCase, row

FEATURES = ["io_uring", "registered_ring", "registered_files", "registered_buffers", "min_timeout",
            "landlock", "seccomp", "kernel_tls"]


def forbid_io_uring():
    """Runs in the child: a seccomp filter that answers io_uring_setup (425) with EPERM."""
    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                    ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]
    code = (Instruction * 4)(
        Instruction(0x20, 0, 0, 0),            # load the system call's number
        Instruction(0x15, 0, 1, 425),          # io_uring_setup?
        Instruction(0x06, 0, 0, 0x00050001),   # then EPERM
        Instruction(0x06, 0, 0, 0x7FFF0000))   # else allow
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(4, code)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
        os._exit(99)


class Local(InfoCase):
    def document(self, *args):
        done = self.run_info("--local", "--json", *args)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_machine(self):
        document = self.document()
        self.assertEqual(document["kernel"], platform.release())
        self.assertEqual(document["cpus_usable"], len(os.sched_getaffinity(0)))
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        self.assertEqual(document["locked_memory_bytes_max"],
                         None if limit == resource.RLIM_INFINITY else limit)
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            lines = dict(line.split(":") for line in meminfo)
        self.assertEqual(document["huge_pages"]["total"], int(lines["HugePages_Total"]))

    def test_every_feature_has_a_verdict_and_a_consequence(self):
        features = self.document()["features"]
        self.assertEqual(sorted(features), sorted(FEATURES))
        for name, feature in features.items():
            with self.subTest(name=name):
                self.assertIsInstance(feature["available"], bool)
                self.assertGreater(len(feature["consequence"]), 5)

    def test_text(self):
        done = self.run_info("--local")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(row(done.stdout, "Kernel"), f"Linux {platform.release()}")
        for words in ("io_uring", "registered memory", "minimum wait"):
            self.assertIn(words, done.stdout)

    def test_machine_without_io_uring(self):
        done = subprocess.run([GMBLOCK, "info", "--local", "--json"], capture_output=True,
                              timeout=60, check=False, preexec_fn=forbid_io_uring)
        if done.returncode == 99:
            self.skipTest("seccomp filters are not allowed here")
        self.assertEqual(done.returncode, 0, done.stderr)
        document = json.loads(done.stdout)
        self.assertFalse(any(
            feature["available"]
            for name, feature in document["features"].items()
            if name not in ("landlock", "seccomp")))
        self.assertIn("io_uring", document["io_uring_error"])

    def test_device_memory(self):
        found = [path.split("/")[-2] for path in glob.glob("/sys/bus/pci/devices/*/p2pmem")]
        devices = self.document()["device_memory"]
        self.assertEqual(sorted(device["device"] for device in devices), sorted(found))
        text = self.run_info("--local").stdout
        self.assertIn("Memory of PCI devices", text)
        self.assertEqual("no PCI device offers memory" in text, not found)

    def test_path(self):
        with tempfile.NamedTemporaryFile() as image:
            image.truncate(123456789)
            path = self.document("--path", image.name)["path"]
            self.assertEqual((path["path"], path["kind"], path["size"]),
                             (image.name, "file", 123456789))
            if path["direct"]["works"]:
                self.assertGreaterEqual(path["direct"]["offset_align"], 1)
                self.assertIsNone(path["direct"]["reason"])
            else:
                self.assertTrue(path["direct"]["reason"])
            shown = self.run_info("--local", "--path", image.name).stdout
            self.assertIn("(123456789 bytes)", row(shown, "Size"))
            self.assertIn("works" if path["direct"]["works"] else "does not work",
                          row(shown, "O_DIRECT"))

    def test_path_without_direct_io(self):
        # Files of /proc look regular and have no O_DIRECT.
        path = self.document("--path", "/proc/version")["path"]
        self.assertFalse(path["direct"]["works"])
        self.assertTrue(path["direct"]["reason"])

    def test_path_that_cannot_be_looked_at(self):
        for path in ("/nonexistent/disk", "/", "/dev/null"):
            with self.subTest(path=path):
                done = self.run_info("--local", "--path", path)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(path, done.stderr)


class Output(InfoCase):
    def test_a_full_disk_is_an_error(self):
        for args in (("--local",), ("--local", "--json")):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                done = subprocess.run([GMBLOCK, "info", *args], stdout=full,
                                      stderr=subprocess.PIPE, timeout=60, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"standard output", done.stderr)


if __name__ == "__main__":
    unittest.main()
