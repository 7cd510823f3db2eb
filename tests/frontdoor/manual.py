#!/usr/bin/python3
"""The manual pages and the example configuration say what the program does.

    manual.py SOURCE_ROOT GMBLOCK GMBLOCK_WITH_LAB
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = ""
GMBLOCK = ""
LAB = ""


def page(name):
    with open(f"{ROOT}/docs/man/{name}", encoding="utf-8") as file:
        return file.read()


def documented(text):
    """The long options that a page describes: those that head an item of a list."""
    items = re.findall(r"^\.It Fl (.*)", text, re.M)
    return {"--" + name for item in items for name in re.findall(r"(?:^|, )-([a-z-]+)", item)}


def offered(*command):
    """The long options that --help shows."""
    program = LAB if command == ("trace",) else GMBLOCK  # the page describes all of it
    done = subprocess.run([program, *command, "--help"], capture_output=True, text=True,
                          check=True)
    return set(re.findall(r"(?<![\w-])--[a-z-]+", done.stdout))


class Options(unittest.TestCase):
    """Every option is in the manual page, and every option of the page exists."""

    def test_gmblock(self):
        self.assertEqual(documented(page("gmblock.1")), offered() | {"--help"})

    def test_gmblock_serve(self):
        self.assertEqual(documented(page("gmblock-serve.1")), offered("serve"))

    def test_gmblock_info(self):
        self.assertEqual(documented(page("gmblock-info.1")), offered("info"))

    def test_gmblock_list(self):
        self.assertEqual(documented(page("gmblock-list.1")), offered("list"))

    def test_gmblock_bench(self):
        self.assertEqual(documented(page("gmblock-bench.1")), offered("bench"))

    def test_gmblock_check(self):
        self.assertEqual(documented(page("gmblock-check.1")), offered("check"))

    def test_gmblock_create(self):
        self.assertEqual(documented(page("gmblock-create.1")), offered("create"))

    def test_gmblock_copy(self):
        self.assertEqual(documented(page("gmblock-copy.1")), offered("copy"))

    def test_gmblock_push(self):
        self.assertEqual(documented(page("gmblock-push.1")), offered("push"))

    def test_gmblock_stats(self):
        self.assertEqual(documented(page("gmblock-stats.1")), offered("stats"))

    def test_gmblock_trace(self):
        self.assertEqual(documented(page("gmblock-trace.1")), offered("trace"))

    def test_gmblock_plot(self):
        done = subprocess.run([sys.executable, f"{ROOT}/python/gmblock_plot.py", "--help"], capture_output=True,
                              text=True, check=True)
        self.assertEqual(documented(page("gmblock-plot.1")),
                         set(re.findall(r"^  -.*?(--[a-z-]+)", done.stdout, re.M)))

    def test_synopsis_has_all_of_them(self):
        for command in ("serve", "info", "list", "bench", "stats", "trace", "check", "copy", "push"):
            text = page(f"gmblock-{command}.1")
            synopsis = text[text.index(".Sh SYNOPSIS"):text.index(".Sh DESCRIPTION")]
            named = {"--" + name for name in re.findall(r"Fl -([a-z-]+)", synopsis)}
            self.assertEqual(named, offered(command) - {"--help"})

    def test_the_version_is_printed(self):
        done = subprocess.run([GMBLOCK, "--version"], capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, r"^gmblock \d+\.\d+\.\d+\n$")


class Configuration(unittest.TestCase):
    """The example files load: their disks and addresses replaced, everything else as it stands."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-manual-")
        self.addCleanup(shutil.rmtree, self.folder)

    def serve(self, text):
        for path in re.findall(r"path: (/\S+)", text):
            image = os.path.join(self.folder, os.path.basename(path))
            with open(image, "wb") as file:
                file.truncate(1 << 20)
            text = text.replace(path, image)
        text = text.replace(":10809", ":0").replace("/run/gmblock", self.folder)
        if "/etc/pki/gmblock" in text:
            certificates = os.path.join(self.folder, "pki")
            tls_tool.both(tls_tool.Authority(os.path.join(self.folder, "ca"), "ca"), certificates)
            text = text.replace("/etc/pki/gmblock", certificates)
        # What a disk in memory can do everywhere, a temporary file system need not.
        text = text.replace("mode: direct", "mode: cached")
        config = os.path.join(self.folder, "gmblock.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        return subprocess.run(
            [GMBLOCK, "serve", "--config", config, "--run", "echo \"$uri\""],
            capture_output=True, text=True, check=False)

    def test_the_manual_page(self):
        text = page("gmblock.conf.5")
        example = re.search(r"\.Bd -literal[^\n]*\n(.*?)\.Ed", text, re.S).group(1)
        done = self.serve(example)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("nbd+unix:///?socket="), done.stdout)

    def test_the_installed_example(self):
        with open(f"{ROOT}/packaging/gmblock.conf", encoding="utf-8") as file:
            text = file.read()
        done = self.serve(text)
        self.assertEqual(done.returncode, 0, done.stderr)
        # What is commented out is meant to be taken in.
        whole = re.sub(r"^  # (?=- name|  )", "  ", text, flags=re.M)
        self.assertNotEqual(text, whole)
        done = self.serve(whole)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_wrong_key_is_named_with_its_line(self):
        done = self.serve("exports:\n  - name: x\n    path: memory:1M\n    colour: red\n")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"gmblock\.conf:4:\d+: .*colour")

    def test_every_key_is_documented(self):
        keys = set()
        for group in ("colour: 1", "limits: {colour: 1}", "listen: [{colour: 1}]", "access: [{colour: 1}]",
                      "rates: [{colour: 1}]", "exports: [{colour: 1}]"):
            found = re.search("unknown key 'colour'; use one of (.*)", self.serve(group + "\n").stderr)
            keys.update(found[1].split(", "))
        # Those of a build with the lab are not for users.
        keys -= set(re.findall(r"^ {8}([a-z-]+)\S*\s+lab: ", subprocess.run(
            [GMBLOCK, "serve", "--help"], capture_output=True, text=True, check=True).stdout, re.M))
        text = page("gmblock.conf.5")
        items = {key for item in re.findall(r"^\.It Cm (.*)", text, re.M) for key in item.split(" , ")}
        # Those of a rate are in the text of rates.
        rates = text[text.index(".It Cm rates\n"):text.index(".It Cm access\n")]
        self.assertEqual(items | set(re.findall(r"^\.Cm ((?:connections|memory|rate))$", rates, re.M)), keys)


if __name__ == "__main__":
    LAB = os.path.realpath(sys.argv.pop(3))
    GMBLOCK = os.path.realpath(sys.argv.pop(2))
    ROOT = os.path.realpath(sys.argv.pop(1))
    sys.path.append(f"{ROOT}/tests/functional")
    import tls_tool
    unittest.main(verbosity=2)
