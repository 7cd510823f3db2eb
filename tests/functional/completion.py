#!/usr/bin/python3
"""Completion in bash, zsh and fish: every command and every option of its help is offered, choices
and files behind those that take them."""
import os
import pty
import re
import select
import shutil
import subprocess

import support


def commands(case):
    return re.findall(r"^  (\w+) ", case.run_gmblock("--help")[1], re.MULTILINE)


def options(case, command):
    """What the help text lists, each at the beginning of its line."""
    text = case.run_gmblock(command, "--help")[1]
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", text.split("\nExamples:")[0], re.MULTILINE))


class Completion(support.Case):
    shell = None  # of the classes below

    def setUp(self):
        super().setUp()
        if self.shell is None:
            self.skipTest("for the shells below")
        if shutil.which(self.shell) is None:
            self.skipTest(f"{self.shell} is not installed")
        code, script, errors = self.run_gmblock("--completion", self.shell)
        self.assertEqual((code, errors), (0, ""))
        self.script = self.make_file("_gmblock", script.encode())
        self.make_file("disk.img", b"x")

    def complete(self, *words):
        """What is offered for the last word, behind "gmblock"."""
        raise NotImplementedError

    def check_all(self):
        self.assertLessEqual({"serve", "copy", "help"}, self.complete(""))
        names = commands(self)
        self.assertLessEqual(set(names), self.complete(""))
        for name in names:
            if name != "help":
                with self.subTest(name):
                    self.assertLessEqual(options(self, name) | {"--log-level"},
                                         self.complete(name, "--"))

    def check_values(self):
        self.assertEqual(self.complete("se"), {"serve"})
        self.assertLessEqual({"--tls", "--tls-psk"}, self.complete("serve", "--tls"))
        self.assertEqual(self.complete("serve", "--tls", "re"), {"require"})
        self.assertIn("disk.img", self.complete("serve", "--config", "di"))
        self.assertIn("disk.img", self.complete("serve", "di"))
        self.assertIn("disk.img", self.complete("copy", "di"))
        self.assertNotIn("disk.img", self.complete("bench", "--depth", "di"))


class Bash(Completion):
    shell = "bash"

    def complete(self, *words):
        done = subprocess.run(
            ["bash", "--norc", "-c", 'source "$1"; shift; COMP_WORDS=(gmblock "$@"); '
             'COMP_CWORD=$#; compopt() { :; }; _gmblock; printf "%s\\n" "${COMPREPLY[@]}"', "bash",
             self.script, *words], capture_output=True, text=True, check=True, cwd=self.folder)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_all(self):
        self.check_all()

    def test_values(self):
        self.check_values()
        self.assertEqual(self.complete("serve", "--tls", "=", "re"), {"require"})
        self.assertEqual(self.complete("serve", "--tls", "="), {"off", "on", "require"})

    def test_actions_and_keys(self):
        self.assertEqual(self.complete("export", ""), {"add", "set", "remove", "list"})
        self.assertEqual(self.complete("snapshot", "d"), {"delete"})
        self.assertEqual(self.complete("export", "set", "disk", "max-m"), {"max-memory="})
        self.assertIn("disk.img", self.complete("export", "add", "disk", ""))
        self.assertEqual(self.complete("export", "add", "disk", "disk.img", "read"), {"readonly"})


class Fish(Completion):
    shell = "fish"

    def complete(self, *words):
        line = " ".join(["gmblock", *words])
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'"],
            capture_output=True, text=True, check=True, cwd=self.folder,
            env={**os.environ, "HOME": self.folder})
        self.assertEqual(done.stderr, "")
        return {entry.split("\t")[0] for entry in done.stdout.splitlines()}

    def test_all(self):
        self.check_all()

    def test_values(self):
        self.check_values()


class Zsh(Completion):
    """zsh completes only on a terminal: what is offered there is noted by a compadd of ours."""
    shell = "zsh"

    def complete(self, *words):
        found = self.path("found")
        marks = self.path("done")
        for path in (found, marks):
            if os.path.exists(path):
                os.unlink(path)
        self.make_file(".zshrc", (
            "PS1='READY> '\nsetopt no_beep\nunset zle_bracketed_paste\n"
            f"fpath=({self.folder} $fpath)\nautoload -Uz compinit\ncompinit -u -d {self.path('dump')}\n"
            "compadd() {\n"
            "  local -a found\n"
            "  if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\\ * ]]; then\n"
            "    builtin compadd -O found \"$@\"\n"
            f"    print -l -- $found >>{found}\n"
            "  fi\n  builtin compadd \"$@\"\n}\n"
            f"_note() {{ zle list-choices; : >{marks} }}\n"
            "zle -N _note\nbindkey '^X' _note\n").encode())
        leader, follower = pty.openpty()
        with subprocess.Popen(
                ["zsh", "-d", "-i"], stdin=follower, stdout=follower, stderr=follower, cwd=self.folder,
                start_new_session=True,
                env={**os.environ, "ZDOTDIR": self.folder, "HOME": self.folder, "TERM": "dumb"}) as shell:
            os.close(follower)
            shown = b""
            sent = False
            while not os.path.exists(marks) and shell.poll() is None:
                if select.select([leader], [], [], 0.05)[0]:
                    shown += os.read(leader, 65536)
                if b"READY> " in shown and not sent:
                    os.write(leader, " ".join(["gmblock", *words]).encode() + b"\x18")
                    sent = True
            shell.kill()
            os.close(leader)
        if not os.path.exists(found):
            return set()
        with open(found, encoding="utf-8") as file:
            return {line.rstrip("=") for line in file.read().splitlines() if line}

    def test_all(self):
        self.check_all()

    def test_values(self):
        self.check_values()


class Usage(support.Case):
    def test_unknown_shells(self):
        for arguments in (["--completion"], ["--completion", "csh"]):
            self.check_refused(arguments, 2, "bash, zsh and fish")


if __name__ == "__main__":
    support.main()
