#!/usr/bin/python3
"""gmblock list: every export of a server, in four forms, whatever the names are made of."""
import json
import shlex

import fake_server
import support

HOSTILE = b'\x1b[2J\n"\\\xff\xc0 end\t'
HOSTILE_SHOWN = r"\x1b[2J\x0a\x22\x5c\xff\xc0 end\x09"


def lists(*names):
    return fake_server.lists(*names, is_asked=True)


class List(support.Case):
    def listed(self, *arguments):
        code, output, errors = self.run_gmblock("list", *arguments)
        self.assertEqual((code, errors), (0, ""))
        return output

    def serve_three(self):
        return self.start_unix("--export", "=memory:8M", "--export",
                               "disk=memory:64M,description=a \"good\" disk",
                               "--export", "read me=null:1G,readonly", uri_count=3)

    def test_names(self):
        self.serve_three()
        self.assertEqual(self.listed(self.socket_uri()), '""\ndisk\nread me\n')

    def test_a_path_instead_of_a_uri(self):
        image = self.make_file("disk.img", bytes(4096))
        self.start_unix(image)
        for command in ("list", "info", "bench", "attach"):
            self.check_refused([command, image], 2, f"'{image}' is a file", "serve it first")
            self.check_refused([command, self.path("s")], 2, "is a Unix socket",
                               f"the URI of a server on that socket is {self.socket_uri()}\n")

    def test_an_export_in_the_uri_does_not_matter(self):
        self.serve_three()
        uri = self.socket_uri().replace("///", "///no-such-export")
        self.assertEqual(self.listed(uri), '""\ndisk\nread me\n')

    def test_long(self):
        self.serve_three()
        self.assertEqual(
            [line.split(maxsplit=3) for line in self.listed("--long", self.socket_uri())
             .splitlines()],
            [["8.0", "MiB", "write", '""'],
             ["64", "MiB", "write", r'"disk"  a \x22good\x22 disk'],
             ["1.0", "GiB", "read", '"read me"']])

    def test_uris_open_what_they_name(self):
        server = self.serve_three()
        uris = self.listed("--uri", self.socket_uri()).splitlines()
        self.assertEqual(uris, server.uris)
        sizes = [json.loads(self.run_gmblock("info", "--json", uri)[1])["exports"][0]["size"]
                 for uri in uris]
        self.assertEqual(sizes, [8 << 20, 64 << 20, 1 << 30])

    def test_json(self):
        server = self.serve_three()
        document = json.loads(self.listed("--json", self.socket_uri()))
        self.assertEqual(document["uri"], self.socket_uri())
        self.assertEqual(document["exports"], [
            {"name": "", "uri": server.uris[0], "description": None, "size": 8 << 20,
             "read_only": False, "refusal": None},
            {"name": "disk", "uri": server.uris[1], "description": 'a "good" disk',
             "size": 64 << 20, "read_only": False, "refusal": None},
            {"name": "read me", "uri": server.uris[2], "description": None, "size": 1 << 30,
             "read_only": True, "refusal": None}])

    def test_tcp(self):
        server = self.start("--export", "a=memory:1M", "--listen", "nbd://127.0.0.1:0")
        self.assertEqual(self.listed("--uri", server.uri), server.uri + "\n")


class Hostile(support.Case):
    def ask(self, script, *arguments):
        with fake_server.FakeServer(script) as server:
            result = self.run_gmblock("list", *arguments, server.uri())
        self.assertEqual(server.failures, [])
        return result

    def test_names_of_any_bytes_are_one_clean_line_each(self):
        script = lists(HOSTILE, b'""', b"", "größe".encode())
        code, output, errors = self.ask(script)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(output, HOSTILE_SHOWN + "\n\\x22\\x22\n\"\"\ngröße\n")

    def test_long_tells_the_refusal(self):
        code, output, errors = self.ask(lists(HOSTILE), "--long")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn(f'?  ?      "{HOSTILE_SHOWN}"  (not usable: ', output)
        self.assertEqual(output.count("\n"), 1)

    def test_json_keeps_the_exact_name_in_the_uri(self):
        code, output, errors = self.ask(lists(HOSTILE), "--json")
        self.assertEqual((code, errors), (0, ""))
        export = json.loads(output)["exports"][0]
        self.assertEqual(export["name"], HOSTILE_SHOWN)
        self.assertIsNone(export["size"])
        self.assertIn("%1B%5B2J%0A%22%5C%FF%C0%20end%09", export["uri"])

    def test_a_uri_is_safe_for_a_shell_loop(self):
        code, output, errors = self.ask(lists(HOSTILE), "--uri")
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(output.count("\n"), 1)
        self.assertEqual(len(shlex.split(output)), 1)

    def test_no_exports_is_an_empty_list(self):
        self.assertEqual(self.ask(lists()), (0, "", ""))
        code, output, _ = self.ask(lists(), "--json")
        self.assertEqual((code, json.loads(output)["exports"]), (0, []))

    def test_a_server_that_does_not_list(self):
        for kind in (fake_server.POLICY, fake_server.UNSUP):
            code, output, errors = self.ask(fake_server.refuses_list(kind))
            self.assertEqual((code, output), (1, ""))
            self.assertIn("does not list its exports", errors)

    def test_a_list_that_breaks_off_is_not_shown(self):
        def script(dialogue):
            dialogue.greet()
            dialogue.refuse_styles()
            dialogue.option(fake_server.LIST)
            dialogue.server(b"first")
        code, output, errors = self.ask(script)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("closed", errors)


class Usage(support.Case):
    def test_wrong_usage(self):
        uri = self.socket_uri()
        self.check_refused(["list"], 2, "give the URI of a server", "--local")
        self.check_refused(["list", uri, uri], 2, "only one URI can be given")
        self.check_refused(["list", "--long", "--json", uri], 2, "only one of")
        self.check_refused(["list", "--sizes", uri], 2, "--sizes")
        self.check_refused(["list", "--timeout", "0", uri], 2, "--timeout")
        self.check_refused(["list", "--timeout", "soon", uri], 2, "--timeout", "soon")
        self.check_refused(["list", "http://localhost/"], 2, "http")

    def test_nobody_there(self):
        self.check_refused(["list", self.socket_uri("nobody")], 1, "nobody")

    def test_output_that_cannot_be_written_is_a_failure(self):
        self.start_unix("memory:1M")
        for form in ([], ["--long"], ["--uri"], ["--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = support.subprocess.run(
                    [support.program(), "list", *form, self.socket_uri()], stdout=full,
                    check=False, stderr=support.subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    support.main()
