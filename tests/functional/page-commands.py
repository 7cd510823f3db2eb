#!/usr/bin/python3
"""The commands of README.md and the manual pages.

Pages with recipes are run as they stand: each block of a section by the shell, in order, in one folder
for each section. The port is one that is free; a block that ends by serving goes on in the background
once the server is ready. A block that cannot be run has a comment before it that says what it is, and
why:

    .\\" not run: REASON    its lines are a shell's, and gmblock knows their options
    .\\" file: NAME         written into the folder, for the blocks after it
    .\\" xml: REASON        well-formed; the same with yaml

Every other example, of the pages, README.md and --help, is checked against the tables of options:
gmblock reads its command line up to --help, and refuses what it does not know on the way.
"""
import os
import re
import shlex
import shutil
import socket
import subprocess
import unittest
from xml.etree import ElementTree

import support

ROOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../..")
PAGES = os.path.join(ROOT, "docs/man")
PORT = "10809"
SECONDS = 120
TOOLS = ("certtool", "psktool", "nbdinfo", "qemu-img", "nbdkit", "qemu-system-x86_64")
SERVES = re.compile(r"gmblock serve (?!--check)")
# A guest that only opens its disk, and ends.
GUEST = ("qemu-system-x86_64 ", "echo quit | qemu-system-x86_64 -display none -S -monitor stdio ")
COMMAND = re.compile(r"(?:^|[|&;!]\s*|\$\s+)(?:sudo )?(?:build/)?gmblock [a-z]")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def literal(text):
    """(what the comment before it says, its text) of each literal block."""
    for mark, block in re.findall(
            r'^(?:\.\\" ([^\n]*)\n)?\.Bd -literal[^\n]*\n(.*?)^\.Ed', text, re.M | re.S):
        yield mark, block.replace("\\e", "\\").replace("\\(ti", "~").replace("\\&", "")


def sections(page, pattern):
    """The title of each section with commands -> its blocks."""
    found = {}
    for title, text in re.findall(
            r"^\.Sh (%s)\n(.*?)(?=^\.Sh |\Z)" % pattern, read(os.path.join(PAGES, page)), re.M | re.S):
        blocks = list(literal(text))
        if blocks:
            found[title] = blocks
    return found


def commands(text):
    """The command lines of gmblock in a shell's text, as lists of words."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*[$#] (?=\S)", "", line.strip())
        if not COMMAND.search(line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if not re.fullmatch(r"[();<>|&]+", word):
                words.append(word)
                continue
            while words and words[0] in ("!", "sudo", "exec"):
                words.pop(0)
            # What follows two hyphens is the command of a server, or of a program.
            while words and words[0] in ("gmblock", "build/gmblock"):
                own = words.index("--") if "--" in words else len(words)
                yield words[1:own]
                words = words[own + 1:]
            # The name of a file follows.
            words = ["file of"] if "<" in word or ">" in word else []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Checks(support.Case):
    def check_options(self, text, least=1):
        count = 0
        for words in commands(text):
            count += 1
            done = subprocess.run(
                [support.program(), *words, "--help"], capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, f"gmblock {' '.join(words)}\n{done.stderr}")
        self.assertGreaterEqual(count, least, text)


class Recipes(Checks):
    """Pages whose sections are run."""

    def setUp(self):
        super().setUp()
        # The program under its own name, as the pages call it.
        programs = self.path("bin")
        os.mkdir(programs)
        os.symlink(support.program(), os.path.join(programs, "gmblock"))
        self.environment = dict(
            os.environ, PATH=f"{programs}:{os.environ['PATH']}", HOME=self.folder)

    def shell(self, block, folder, port):
        return ["sh", "-e", "-c", block.replace(PORT, port).replace(*GUEST)], {
            "cwd": folder, "env": self.environment, "text": True, "stdin": subprocess.DEVNULL}

    def run_block(self, block, folder, port):
        command, options = self.shell(block, folder, port)
        done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS, **options)
        self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout}\n{done.stderr}")

    def serve(self, block, folder, port):
        """The block ends with the server, which goes on. Returns what ends it."""
        at = list(SERVES.finditer(block))[-1].start()
        self.run_block(block[:at], folder, port)
        command, options = self.shell("exec " + block[at:], folder, port)
        server = subprocess.Popen(  # pylint: disable=consider-using-with
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

        def end():
            server.kill()
            return server.communicate()

        line = server.stdout.readline()
        if not line:
            self.fail(f"{block}\n{end()[1]}")
        self.assertIn(f":{port}" if PORT in block else "?socket=", line)
        return end

    def look_at(self, mark, block, folder):
        """A block that is not run."""
        kind, separator, words = mark.partition(": ")
        self.assertTrue(separator and words, mark)
        if kind == "file":
            with open(os.path.join(folder, words), "w", encoding="utf-8") as file:
                file.write(block)
            options = dict(line.split("=", 1) for line in block.splitlines() if "OPTIONS=" in block)
            if options:
                self.check_options(f"gmblock attach {options['OPTIONS']} {options['URI']}")
        elif kind == "xml":
            ElementTree.fromstring(block)
        elif kind == "yaml":
            self.check_yaml(block)
        else:
            self.assertEqual(kind, "not run", mark)
            done = subprocess.run(["sh", "-n", "-c", block], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{block}\n{done.stderr}")
            self.check_options(block, 0)

    def check_yaml(self, block):
        try:
            import yaml  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        for document in yaml.safe_load_all(block):
            self.assertLessEqual({"apiVersion", "kind", "metadata", "spec"}, set(document))

    def run_section(self, title, blocks):
        text = "\n".join(block for _, block in blocks)
        for tool in TOOLS:
            if tool in text and shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        folder = self.path(title.replace(" ", "-").lower())
        os.mkdir(folder)
        port = free_port()
        ends = []
        try:
            for mark, block in blocks:
                if mark:
                    self.look_at(mark, block, folder)
                elif SERVES.search(block):
                    ends.append(self.serve(block, folder, port))
                else:
                    self.run_block(block, folder, port)
        finally:
            for end in ends:
                end()

    def run_page(self, page, pattern, least):
        found = sections(page, pattern)
        self.assertGreaterEqual(len(found), least)
        for title, blocks in found.items():
            with self.subTest(page=page, section=title):
                self.run_section(title, blocks)

    def test_tls(self):
        self.run_page("gmblock-tls.7", "HOW TO [^\n]*", 2)

    def test_cookbook(self):
        self.run_page("gmblock-cookbook.7", "[^\n]*", 10)
        for title, blocks in sections("gmblock-cookbook.7", "[^\n]*").items():
            for _, block in blocks:
                self.assertLess(block.count("\n"), 15, title)


class Options(Checks):
    """Examples that are not run: their options exist."""

    def test_readme(self):
        blocks = re.findall(r"^```\n(.*?)^```", read(os.path.join(ROOT, "README.md")), re.M | re.S)
        self.check_options("\n".join(blocks), 15)

    def test_manual_pages(self):
        for page in sorted(os.listdir(PAGES)):
            with self.subTest(page):
                text = read(os.path.join(PAGES, page))
                lines = re.findall(r"^\.Dl (.*)", text, re.M)
                self.check_options("\n".join([*lines, *(block for _, block in literal(text))]), 0)

    def test_help(self):
        names = re.findall(r"^\.It Cm (\w+)$", read(os.path.join(PAGES, "gmblock.1")), re.M)
        self.assertIn("serve", names)
        for name in names:
            with self.subTest(name):
                text = subprocess.run([support.program(), name, "--help"], capture_output=True,
                                      text=True, check=True).stdout
                self.check_options(text.partition("\nExamples:\n")[2], 0)


if __name__ == "__main__":
    support.main()
