#!/usr/bin/python3
"""Export names of any legal bytes are served, listed and printed as URIs that lead back to them."""
import urllib.parse

import nbdmini
import support

NAMES = ["", "a", "a=b", "a,b", "back\\slash", "two\\\\", "space name", "%41", "a/b", "/a", "..",
         "?socket=x#", "tab\tnewline\n", "\x7f\x01", "caf\xe9", "\u65e5\u672c", "\U0001f4be",
         "-", "x" * 4096]


def escape(name):
    return name.replace("\\", "\\\\").replace("=", "\\=")


class ExportNames(support.Case):
    def test_every_name(self):
        arguments = []
        for number, name in enumerate(NAMES):
            arguments += ["--export", f"{escape(name)}=null:{number + 1}M"]
        server = self.start_unix(*arguments, uri_count=len(NAMES))
        with nbdmini.Client(server.uri) as client:
            client.hello()
            self.assertEqual(set(client.list()), {name.encode() for name in NAMES})
        for number, name in enumerate(NAMES):
            printed = urllib.parse.urlsplit(server.uris[number]).path
            self.assertEqual(urllib.parse.unquote(printed, errors="strict"), "/" + name)
            with nbdmini.open_export(server.uri, name.encode()) as client:
                self.assertEqual(client.size, (number + 1) << 20)

    def test_commas_and_backslashes_in_values(self):
        path = self.make_file("a,b\\c", bytes(1000))
        text = path.replace("\\", "\\\\").replace(",", "\\,")
        server = self.start_unix("--export", f"={text},readonly,description=one\\, two\\\\")
        with nbdmini.Client(server.uri) as client:
            client.hello()
            self.assertEqual(client.list(), {b"": b"one, two\\"})
            self.assertEqual(client.go().size, 1000)

    def test_a_bare_path_is_taken_as_it_is(self):
        path = self.make_file("a,b=c\\,d", bytes(777))
        server = self.start_unix(path)
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.size, 777)

    def test_a_name_nobody_serves(self):
        server = self.start_unix("--export", "a=null:1M")
        for name in (b"", b"A", b"a\0", b"ab"):
            with nbdmini.Client(server.uri) as client:
                client.hello()
                with self.assertRaises(nbdmini.OptionRefused):
                    client.go(name)


if __name__ == "__main__":
    support.main()
