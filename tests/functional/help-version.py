#!/usr/bin/python3
"""The program explains itself: usage, help of each command, version."""
import os
import re
import shlex

import support

SOURCE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../src/cli/cli.c")


class HelpAndVersion(support.Case):
    def test_no_arguments_is_wrong_usage(self):
        self.check_refused([], 2, "Usage: gmblock COMMAND", "serve", "info")

    def test_version(self):
        code, output, errors = self.run_gmblock("--version")
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, r"^gmblock \d+\.\d+\.\d+\n$")

    def test_help(self):
        for arguments in (["--help"], ["-h"], ["help"]):
            code, output, errors = self.run_gmblock(*arguments)
            self.assertEqual((code, errors), (0, ""))
            self.assertIn("Usage: gmblock COMMAND", output)

    def test_help_of_commands(self):
        listed = re.findall(r"^  (\w+) ", self.run_gmblock("--help")[1], re.MULTILINE)
        self.assertIn("serve", listed)
        self.assertIn("help", listed)
        for command in listed:
            texts = set()
            for arguments in ([command, "--help"], [command, "-h"], ["help", command]):
                with self.subTest(arguments):
                    code, output, errors = self.run_gmblock(*arguments)
                    self.assertEqual((code, errors), (0, ""))
                    self.assertTrue(output.startswith(f"Usage: gmblock {command} "), output)
                    self.assertIn("  -h, --help ", output)
                    texts.add(output)
            self.assertEqual(len(texts), 1, command)

    def test_help_ends_in_examples_that_are_accepted(self):
        for command in re.findall(r"^  (\w+) ", self.run_gmblock("--help")[1], re.MULTILINE):
            if command == "help":
                continue
            text = self.run_gmblock(command, "--help")[1]
            lines = re.search(r"^Examples:\n((?:  .*\n)+)", text, re.M).group(1).splitlines()
            self.assertIn(len(lines), (2, 3, 4), command)
            for line in lines:
                with self.subTest(line):
                    words = shlex.split(re.split(r" [|>]", line)[0])
                    self.assertEqual(words[:2], ["gmblock", command])
                    # All its options are read before the last one.
                    self.assertEqual(self.run_gmblock(*words[1:], "--help"), (0, text, ""))

    def test_help_counts_wherever_it_stands(self):
        for arguments in (["copy", "a", "-h"], ["serve", "-e", "a=b", "-h"], ["info", "--json", "-h"]):
            with self.subTest(arguments):
                code, output, errors = self.run_gmblock(*arguments)
                self.assertEqual((code, errors), (0, ""))
                self.assertTrue(output.startswith(f"Usage: gmblock {arguments[0]} "), output)
        # The value of an option, and what stands behind "--".
        self.check_refused(["serve", "-l", "-h"], 2, "--listen: ", "-h")
        self.check_refused(["info", "--", "-h"], 2, "-h")
        self.check_refused(["serve", "--help=yes"], 2, "--help=yes takes no value")

    def test_help_with_too_much(self):
        self.check_refused(["help", "serve", "info"], 2, "only one command can be given", "'info'")
        self.check_refused(["help", "--nothing"], 2, "unknown option --nothing",
                           "gmblock help --help")

    def test_unknown_command(self):
        self.check_refused(["sevre"], 2, "unknown command 'sevre'", "gmblock --help")
        self.check_refused(["--sevre"], 2, "unknown option '--sevre'", "gmblock --help")
        self.check_refused(["help", "sevre"], 2, "unknown command 'sevre'")

    def test_what_was_probably_meant(self):
        for arguments, fragment in (
                (["sevre"], "unknown command 'sevre'; did you mean 'serve'?"),
                (["help", "detatch"], "did you mean 'detach'?"),
                (["att"], "did you mean 'attach'?"),
                (["--verison"], "unknown option '--verison'; did you mean '--version'?"),
                (["copy", "--requets", "1", "a", "b"],
                 "unknown option --requets; did you mean '--requests'?"),
                (["copy", "--destination-zero=1"], "did you mean '--destination-is-zero'?"),
                (["list", "--hepl"], "did you mean '--help'?"),
                (["info", "-json", "nbd://h"], "unknown option -j; did you mean '--json'?"),
                (["info", "-jsno"], "unknown option -j; did you mean '--json'?"),
                (["info", "-\u00e9"], r"unknown option -\xc3")):
            with self.subTest(arguments):
                self.check_refused(arguments, 2, fragment)
        for arguments in (["sv"], ["x" * 100], [""], ["--colour"], ["copy", "--colour"], ["copy", "-v"],
                          ["copy", "-x", "-"], ["copy", "-xy"], ["copy", "--" + "y" * 100]):
            with self.subTest(arguments):
                self.assertNotIn("did you mean", self.check_refused(arguments, 2, "gmblock"))

    def test_habits_of_other_programs(self):
        for arguments, fragments in (
                # The program itself.
                (["mount", "nbd://h", "/mnt"], ["unknown command 'mount'", "gmblock attach"]),
                (["umount"], ["gmblock detach"]), (["disconnect"], ["gmblock detach"]),
                (["version"], ["gmblock --version"]),
                (["help", "convert"], ["gmblock copy"]), (["ls"], ["gmblock list"]),
                # nbdkit, qemu-nbd, nbd-server.
                (["serve", "-r", "d"], ["unknown option -r", "--read-only"]),
                (["serve", "--readonly", "d"], ["did you mean '--read-only'?"]),
                (["serve", "-f", "qcow2", "d"], ["foreground", "disks are always raw"]), (["serve", "--fork", "d"], ["foreground"]),
                (["serve", "-fr", "d"], ["unknown option -f", "foreground"]),
                (["serve", "-U", "/s", "d"], ["nbd+unix:///?socket=PATH"]),
                (["serve", "--socket=/s", "d"], ["unknown option --socket=/s", "nbd+unix:"]),
                (["serve", "-x", "name", "d"], ["--export NAME=PATH"]),
                (["serve", "-p", "1", "d"], ["--listen nbd://127.0.0.1:"]),
                (["serve", "--port=1", "d"], ["--listen nbd://127.0.0.1:"]),
                (["serve", "--pidfile", "f"], ["systemd"]), (["serve", "-t", "d"], ["keeps running"]),
                (["serve", "--cache=none", "d"], ["mode=direct"]),
                (["serve", "--format=raw", "d"], ["raw"]),
                # fio.
                (["bench", "--runtime=5", "nbd://h"], ["--seconds"]),
                (["bench", "--numjobs=4", "nbd://h"], ["--connections"]),
                (["bench", "--iodepth", "4", "nbd://h"], ["--depth"]),
                (["bench", "--rwmixread=30"], ["--read-percent"]),
                (["bench", "--filename=x"], ["as an operand"]),
                # nbdcopy, qemu-img, nbd-client.
                (["copy", "-p", "a", "b"], ["--progress"]), (["copy", "-O", "raw"], ["raw"]),
                (["attach", "-N", "disk", "nbd://h"], ["nbd://HOST/NAME"]),
                (["attach", "-d", "/dev/nbd0"], ["gmblock detach"]),
                (["attach", "-r", "nbd://h"], ["--read-only"])):
            with self.subTest(arguments):
                self.check_refused(arguments, 2, *fragments)

    def test_every_habit_of_the_table_is_answered(self):
        with open(SOURCE, encoding="utf-8") as file:
            text = re.sub(r"\\\n", " ", file.read())
        macros = dict(re.findall(r'^#define (\w+)\s+"(.*)"$', text, re.M))
        table = text[text.index("} habits[] = {"):text.index("const char *cli_habit(")]
        rows = re.findall(r'\{ "(\w*)", "([\w-]+)",\s+(?:"(.*?)"|(\w+)) \}', table)
        self.assertEqual(len(rows), table.count('{ "'))
        for command, word, hint, macro in rows:
            words = [command, ("-" if len(word) == 1 else "--") + word] if command else [word]
            with self.subTest(words):
                self.check_refused(words, 2, f"unknown {'option' if command else 'command'}",
                                   hint or macros[macro])

    def test_an_option_without_its_value_is_shown_with_it(self):
        for arguments, fragment in (
                (["attach", "nbd://h/d", "--fuse"], "the option --fuse needs a value: --fuse FILE"),
                (["serve", "-l"], "the option -l needs a value: --listen URI"),
                (["serve", "--export"], "needs a value: --export NAME=PATH[,KEY=VALUE]...\n"),
                (["info", "nbd://h", "--timeout"], "needs a value: --timeout TIME\n"),
                (["serve", "--check", "--state-folder", "DIR", "FILE"], "the option --check needs a value: --check FILE\n"),
                (["copy", "--rate", "--json", "a", "b"], "the option --rate needs a value: --rate BYTES\n"),
                (["bench", "nbd://h", "--log-level"], "the option --log-level needs a value")):
            with self.subTest(arguments):
                self.check_refused(arguments, 2, fragment)

    def test_attach_fuse_without_its_file(self):
        self.check_refused(["attach", "--fuse", "nbd://h/disk"], 2,
                           "--fuse needs a FILE as mount point, before the URI: "
                           "gmblock attach --fuse disk.raw nbd://h/disk")

    def test_words_with_control_characters_are_shown_without(self):
        for word in ("mount=\33[31m", "mouth\33[31m"):
            self.assertNotIn("\33", self.check_refused([word], 2, "unknown command"))

    def test_habits_of_one_command_are_not_those_of_another(self):
        self.assertNotIn("--seconds", self.check_refused(["copy", "--runtime=5", "a", "b"], 2, "--runtime"))
        self.assertNotIn("attach", self.check_refused(["serve", "--mount", "d"], 2, "--mount"))

    def test_empty_paths_are_wrong_usage(self):
        for arguments in (["serve", "--config", "", "null:1M"], ["info", "--local", "--path", ""],
                          ["copy", "--resume", "", "a", "b"], ["attach", "--fuse=", "nbd://h"]):
            with self.subTest(arguments):
                option = next(word for word in arguments if word.startswith("--")
                              and word != "--local").rstrip("=")
                self.check_refused(arguments, 2, f"{option}: the path is empty")

    def test_names_of_any_bytes_do_not_reach_the_terminal(self):
        name = self.path("a\x1b[31m\udcff\u00e4/x")
        for arguments in (["serve", name], ["info", "--local", "--path", name],
                          ["copy", name, "x"], ["trace", "--request", name], ["stats", name],
                          ["serve", "--config", name]):
            with self.subTest(arguments):
                self.check_refused(arguments, 2 if "--config" in arguments else 1, r"a\x1b[31m\xff" + "\u00e4/x")

    def test_output_that_cannot_be_written_is_a_failure(self):
        for arguments in (["--version"], ["--help"], ["serve", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = support.subprocess.run(
                    [support.program(), *arguments], stdout=full, check=False,
                    stderr=support.subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("standard output", done.stderr)

    def test_json_that_cannot_be_written_says_why(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = support.subprocess.run(
                [support.program(), "info", "--local", "--json"], stdout=full, check=False,
                stderr=support.subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output: No space left on device", done.stderr)

    def test_output_that_is_closed_is_a_failure(self):
        for arguments in (["--version"], ["--help"], ["serve", "--help"], ["info", "--local"],
                          ["info", "--local", "--json"]):
            with self.subTest(arguments):
                done = support.subprocess.run(
                    ["/bin/sh", "-c", 'exec "$0" "$@" >&-', support.program(), *arguments],
                    check=False, stderr=support.subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn("standard output: Bad file descriptor", done.stderr)


if __name__ == "__main__":
    support.main()
