#!/usr/bin/python3
"""The commands of gmblock-tls(7), as the page has them: each block of its "how to" sections is run by
the shell, in order, in one folder for each section. The port is one that is free; a block that ends by
serving goes on in the background once the server is ready."""
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest

import support

PAGE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../docs/man/gmblock-tls.7")
PORT = "10809"
SERVE = "gmblock serve"
SECONDS = 120
TOOLS = ("certtool", "psktool", "nbdinfo", "qemu-img", "nbdkit")


def sections():
    """The title of each section of commands -> its blocks."""
    found = {}
    with open(PAGE, encoding="utf-8") as page:
        for title, text in re.findall(
                r"^\.Sh (HOW TO [^\n]*)\n(.*?)(?=^\.Sh |\Z)", page.read(), re.M | re.S):
            blocks = re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed", text, re.M | re.S)
            found[title] = [block.replace("\\e\n", "\\\n") for block in blocks]
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class HowTo(support.Case):
    def setUp(self):
        super().setUp()
        for tool in TOOLS:
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        # The program under its own name, as the page calls it.
        programs = self.path("bin")
        os.mkdir(programs)
        os.symlink(support.program(), os.path.join(programs, "gmblock"))
        os.mkdir(self.path("work"))
        self.environment = dict(
            os.environ, PATH=f"{programs}:{os.environ['PATH']}", HOME=self.folder)

    def shell(self, block, port):
        return ["sh", "-e", "-c", block.replace(PORT, port)], {
            "cwd": self.path("work"), "env": self.environment, "text": True,
            "stdin": subprocess.DEVNULL}

    def run_block(self, block, port):
        command, options = self.shell(block, port)
        done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS, **options)
        self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout}\n{done.stderr}")

    def serve(self, block, port):
        """The block ends with the server, which goes on."""
        before, name, arguments = block.rpartition(SERVE)
        self.run_block(before, port)
        command, options = self.shell("exec " + name + arguments, port)
        server = subprocess.Popen(  # pylint: disable=consider-using-with
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

        def end():
            server.kill()
            server.communicate()

        self.addCleanup(end)
        line = server.stdout.readline()
        if not line:
            self.fail(f"{block}\n{server.stderr.read()}")
        self.assertIn(f":{port}/", line)

    def run_section(self, title):
        port = free_port()
        blocks = sections()[title]
        self.assertGreater(len(blocks), 2)
        for block in blocks:
            if SERVE in block:
                self.serve(block, port)
            else:
                self.run_block(block, port)

    def test_every_section_is_run(self):
        tests = {name for name in dir(self) if name.startswith("test_how_to_")}
        self.assertEqual(tests, {
            "test_" + title.lower().replace(" ", "_").replace("-", "_") for title in sections()})

    def test_how_to_set_up_certificates(self):
        self.run_section("HOW TO SET UP CERTIFICATES")

    def test_how_to_set_up_pre_shared_keys(self):
        self.run_section("HOW TO SET UP PRE-SHARED KEYS")


if __name__ == "__main__":
    support.main()
