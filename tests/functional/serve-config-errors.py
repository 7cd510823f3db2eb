#!/usr/bin/python3
"""A mistake in the configuration file is told with file, line, column and key, and nothing is
served."""
import json
import os
import re

import support


class ConfigErrors(support.Case):
    def check(self, content, place, *fragments):
        """place: "LINE:COLUMN" or "" for the file as a whole."""
        path = self.make_file("test.conf", content)
        start = f"gmblock serve: {path}:{place}: " if place else f"gmblock serve: {path}: "
        errors = self.check_refused(["serve", "--config", path], 2, *fragments)
        self.assertTrue(errors.startswith(start), errors)
        return errors

    def test_files_that_cannot_be_read(self):
        missing = self.path("missing.conf")
        self.check_refused(["serve", "--config", missing], 2, missing, "No such file")
        self.check_refused(["serve", "--config", self.folder], 2, self.folder, "is a directory")
        os.mkfifo(self.path("fifo"))
        self.check_refused(["serve", "--config", self.path("fifo")], 2, "not a regular file")

    def test_a_limit_that_does_not_suffice(self):
        exports = "exports: [{name: '', path: 'null:1M'}]\n"
        path = self.make_file("test.conf", exports + "limits:\n  threads: 2\n  memory: 7M\n")
        sentence = "of memory is too little for 2 threads"
        self.check_refused(["serve", "--config", path], 2,
                           f"{path}:4: limits, memory: 7M {sentence}")
        # The command line's limit holds, wherever it stands.
        for arguments in (["--memory", "6M", "--config", path],
                          ["--config", path, "--memory", "6M"]):
            self.check_refused(["serve", *arguments], 2, f"serve: --memory: 6M {sentence}")
        path = self.make_file("test.conf", exports + "limits: {memory: 7M}\n")
        self.check_refused(["serve", "--config", path, "--threads", "2"], 2,
                           f"{path}:2: limits, memory: 7M {sentence}")

    def test_files_without_content_have_nothing_to_serve(self):
        for content in ("", "# nothing\n", "---\n"):
            path = self.make_file("test.conf", content)
            self.check_refused(["serve", "--config", path], 2, "nothing to serve",
                               f"{path} has no exports")

    def test_yaml(self):
        self.check("exports: [a\n", "2:1", "invalid YAML")
        for content in "exports:\n\t- name: a\n", "exports:\n  - name: a\n \tpath: b\n":
            self.check(content, f"{content.count(chr(10))}:{content.splitlines()[-1].index(chr(9)) + 1}",
                       "invalid YAML", "indented with a tab", "replace the tab by spaces")
        # Tabs are allowed there, and something else is wrong.
        for content, at in (("exports: [\n\t{name: a name: b}\n]\n", "2:15"),
                            ("exports: [{\n\tname: a,\n\tpath: @x}]\n", "3:8")):
            self.assertNotIn("tab", self.check(content, at, "invalid YAML"))
        self.check("- a\n", "1:1", "consists of keys")
        self.check("just text\n", "1:1", "consists of keys")
        self.check("limits: {threads: 1}\n---\nlimits: {threads: 2}\n", "3:1", "second YAML document")
        self.check("exports: [{name: a, path: *p}]\n", "1:27", "anchors (&name) and aliases (*name)")
        for text in "{name: &p a, path: *p}", "&p {name: a, path: b}", "&p []", "&p a":
            self.check(f"exports: [{text}]\n", f"1:{11 + text.index('&')}", "anchors (&name) and aliases (*name)")
        # Each would be compared with all before it.
        self.check("exports:\n" + "".join(f"- &a{i} {{name: a, path: b}}\n" for i in range(60000)), "2:3", "anchors")
        self.check('exports: [{name: "a\\0b", path: p}]\n', "1:18", "zero byte")
        self.check(b"exports: \xff\n", "", "not YAML text")
        self.check("[" * 1000000, "1:17", "nested too deeply")

    def test_unknown_keys(self):
        self.check("colour: red\n", "1:1", "unknown key 'colour'",
                   "listen, limits, exports")
        self.check("limits:\n  threads: 1\n  colour: red\n", "3:3", "limits: ",
                   "unknown key 'colour'", "memory, threads")
        self.check("exports:\n  - name: a\n    path: null:1M\n  - name: b\n    path: null:1M\n"
                   "    colour: red\n", "6:5", "exports entry 2: ", "'colour'", "name, path, access, mode")

    def test_keys_that_are_nearly_known(self):
        self.check("exprots: []\n", "1:1",
                   "unknown key 'exprots'; did you mean 'exports'?\n")
        self.check("limits:\n  threads: 1\n  memroy: 1M\n", "3:3", "limits: ",
                   "unknown key 'memroy'; did you mean 'memory'?")
        self.check("exports:\n  - name: a\n    path: null:1M\n    writemode: direct\n", "4:5",
                   "exports entry 1: ", "unknown key 'writemode'; did you mean 'write-mode'?")

    def test_missing_and_repeated_keys(self):
        self.check("exports:\n  - path: null:1M\n", "2:5", "exports entry 1: ",
                   "'name' is missing; the default export has the name \"\"")
        self.check("exports:\n  - name: a\n    path: null:1M\n  - name: b\n", "4:5",
                   "exports entry 2: ", "'path' is missing")
        self.check("exports:\n  - name: a\n    path: null:1M\n    name: b\n", "4:5",
                   "exports entry 1: ", "'name' is given twice")
        self.check("listen: []\nlisten: []\n", "2:1", "'listen' is given twice")

    def test_values_of_the_wrong_kind(self):
        self.check("listen: nbd://localhost\n", "1:9", "listen: the value must be a list")
        self.check("exports: {name: a}\n", "1:1", "exports: the value must be a list")
        self.check("exports: [a]\n", "1:11", "exports entry 1: the value must be a group of keys")
        self.check("limits: 5\n", "1:9", "limits: the value must be a group of keys")
        self.check("limits:\n  memory: [1M]\n", "2:3", "limits, memory: ", "single value")

    def test_wrong_values(self):
        def export(key, value, *fragments):
            self.check(f"exports:\n  - name: a\n    path: null:1M\n    {key}: {value}\n",
                       f"4:{7 + len(key)}", f"exports entry 1, {key}: ", *fragments)

        export("mode", "fast", "'fast' is not a mode")
        export("write-mode", "fast", "'fast' is not a mode")
        export("readonly", "perhaps", "neither yes nor no")
        export("max-connections", "0", "out of range")
        self.check("exports:\n  - name: a\n    path: ''\n", "3:11", "exports entry 1, path: ",
                   "path is empty")
        self.check("exports:\n  - path: null:1M\n    name: " + "x" * 4097 + "\n", "3:11",
                   "exports entry 1, name: ", "4097 bytes")
        self.check("exports:\n  - name: a\n    path: null:1M\n    fault: [read:EIO, read]\n",
                   "4:23", "exports entry 1, fault entry 2: ", "read")
        self.check("exports:\n  - name: a\n    path: null:1M\n    delay:\n      - read:soon\n",
                   "5:9", "exports entry 1, delay entry 1: ", "soon")
        self.check("limits:\n  threads: 65\n", "2:12", "limits, threads: ", "from 1 to 64")
        self.check("limits:\n  memory: lots\n", "2:11", "limits, memory: ", "not a size")
        self.check("listen:\n  - nbd://a\n  - http://b\n", "3:5", "listen entry 2: ",
                   "unknown scheme 'http'")

    def test_addresses_with_keys(self):
        self.check("listen:\n  - nbd://a\n  - tls: on\n", "3:5", "listen entry 2: ",
                   "the key 'uri' is missing")
        self.check("listen:\n  - {uri: nbd://a, tsl: on}\n", "2:20", "listen entry 1: ",
                   "unknown key 'tsl'; did you mean 'tls'?")
        self.check("listen:\n  - {uri: nbd://a, whatever: on}\n", "2:20", "unknown key 'whatever'",
                   "uri, tls, tls-certificates, tls-psk, tls-verify-peer")
        self.check("listen:\n  - uri: nbd://a\n    tls: on\n    tls: off\n", "4:5",
                   "listen entry 1: ", "'tls' is given twice")
        self.check("listen:\n  - {uri: [nbd://a]}\n", "2:6", "listen entry 1, uri: ",
                   "a single value is required")
        self.check("listen: [[nbd://a]]\n", "1:10", "listen entry 1", "a single value is required")
        self.check("listen:\n  - {uri: nbd://a, tls: maybe}\n", "2:25", "listen entry 1, tls: ",
                   "'maybe' is not one of off, on, require")
        self.check("listen:\n  - {uri: nbd://a, tls-verify-peer: 1}\n", "2:37",
                   "listen entry 1, tls-verify-peer: ", "'1' is neither yes nor no")
        self.check("listen:\n  - {uri: nbd://a, tls-psk: ''}\n", "2:29", "tls-psk: the path is empty")

    def test_wrong_values_are_told_in_the_same_words_everywhere(self):
        """Each key is named once, whether a file or the command line has the value."""
        long = "x" * 4097
        for key, value, sentence in (
                ("mode", "fast", "'fast' is not a mode; use cached"),
                ("write-mode", "fast", "'fast' is not a mode; use cached"),
                ("readonly", "perhaps", "'perhaps' is neither yes nor no"),
                ("description", long, "the text is 4097 bytes long; the protocol allows 4096"),
                ("max-connections", "x", "'x' is not a whole number from 1 to 1000000"),
                ("max-connections", "0", "0 is out of range; it must be from 1 to 1000000"),
                ("overlap", "3", "'3' is neither auto nor off"),
                ("stripe", "3", "'3' is not a stripe; write CHUNK:MEMBERS"),
                ("pace", "100", "the value must be at least 1K"),
                ("pace", "1M:latency=x", "latency: 'x' is not a time; write"),
                ("pace", "1M:x\x1b", r"unknown setting 'x\x1b'; use one of latency=TIME, seek="),
                ("fault", "x", "'x' is not read, write"),
                ("fault", "read", "'read' has no errno: expected OP:ERRNO"),
                ("fault", "read:x", "'x' is not the name of an error"),
                ("fault", "read:EIO:nth=x", "nth: 'x' is not a whole number"),
                ("delay", "x", "'x' is not read, write"),
                ("delay", "read:x", "'x' is not a time; write")):
            with self.subTest(key=key, value=value):
                errors = self.check_refused(
                    ["serve", "--export", f"a=null:1M,{key}={value}"], 2)
                self.assertRegex(errors, rf'\Agmblock serve: --export: "a=null:1M,.*": {key}: '
                                 + re.escape(sentence))
                rule = key in ("fault", "delay")
                text = json.dumps([value] if rule else value)  # YAML, too
                self.check(f"exports:\n  - name: a\n    path: null:1M\n    {key}: {text}\n",
                           f"4:{7 + len(key) + rule}",
                           f": exports entry 1, {key}{' entry 1' * rule}: {sentence}")

    def test_repeated_names_and_addresses_name_both_places(self):
        path = self.make_file(
            "test.conf", "exports:\n  - name: a\n    path: null:1M\n"
                         "  - name: a\n    path: null:2M\n")
        self.check_refused(["serve", "--config", path], 2, f"{path}:4: ", '"a"', f"{path}:2;")
        self.check_refused(["serve", "--config", path, "--export", "a=null:1M"], 2,
                           "already used by", path)
        path = self.make_file("test.conf", "listen: [nbd://127.0.0.1]\n")
        self.check_refused(
            ["serve", "null:1M", "--config", path, "--listen", "nbd://127.0.0.1"], 2,
            f"{path}:1: ", "already given by --listen")

    def test_paths_of_the_file_are_shown_printable(self):
        self.check_refused(["serve", "--config", self.path("a\nb")], 2, "a\\x0ab")


if __name__ == "__main__":
    support.main()
