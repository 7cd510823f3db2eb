#!/usr/bin/python3
"""gmblock info --map: which parts of an export are data, holes or zeroes."""
import json
import shutil
import subprocess
import unittest

import fake_server
import support

MIB = 1 << 20
KINDS = {"data": 0, "hole": 1, "zero": 2, "hole,zero": 3}


class MapCase(support.Case):
    def map(self, uri):
        """The JSON of a complete map, whose rows fit together."""
        code, output, errors = self.run_gmblock("info", "--map", "--json", uri)
        self.assertEqual((code, errors), (0, ""))
        document = json.loads(output)
        self.assertIsNone(document["error"])
        self.check_whole(document)
        return document

    def check_whole(self, document, size=None):
        end = 0
        last = None
        totals = {kind: {"bytes": 0, "extents": 0} for kind in KINDS}
        for extent in document["extents"]:
            kind = extent["type"]
            self.assertEqual(extent["offset"], end)
            self.assertGreater(extent["length"], 0)
            self.assertNotEqual(kind, last, "neighbours of one kind")
            self.assertEqual((extent["hole"], extent["zero"]),
                             (bool(KINDS[kind] & 1), bool(KINDS[kind] & 2)))
            totals[kind]["bytes"] += extent["length"]
            totals[kind]["extents"] += 1
            end += extent["length"]
            last = kind
        self.assertEqual(end, document["size"] if size is None else size)
        self.assertEqual(document["totals"], totals)

    def sparse_file(self, name, size, ranges):
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
            for offset, length in ranges:
                file.seek(offset)
                file.write(b"d" * length)
        return path

    def data_of(self, document):
        return [(extent["offset"], extent["length"]) for extent in document["extents"]
                if extent["type"] == "data"]


class Map(MapCase):
    def test_a_sparse_file(self):
        ranges = [(16 * MIB, MIB), (48 * MIB, 2 * MIB)]
        path = self.sparse_file("disk.img", 64 * MIB, ranges)
        document = self.map(self.start_unix(path).uri)
        self.assertEqual(document["size"], 64 * MIB)
        self.assertEqual(self.data_of(document), ranges)

    def test_more_extents_than_one_answer_holds(self):
        step = 8192
        ranges = [(at * 2 * step, step) for at in range(5000)]
        path = self.sparse_file("disk.img", 5000 * 2 * step, ranges)
        document = self.map(self.start_unix(path).uri)
        self.assertEqual(self.data_of(document), ranges)

    def test_every_byte_of_an_odd_size(self):
        path = self.sparse_file("disk.img", 123456789, [])
        self.assertEqual(self.map(self.start_unix(path).uri)["size"], 123456789)

    def test_a_huge_export(self):
        document = self.map(self.start_unix("null:4P").uri)
        self.assertEqual(document["size"], 4 << 50)
        self.assertEqual(len(document["extents"]), 1)

    def test_an_empty_export(self):
        uri = self.start_unix(self.make_file("empty.img", b"")).uri
        self.assertEqual(self.map(uri)["extents"], [])
        code, output, errors = self.run_gmblock("info", "--map", uri)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(len(output.splitlines()), 1)

    def test_text(self):
        path = self.sparse_file("disk.img", 8 * MIB, [(MIB, MIB)])
        code, output, errors = self.run_gmblock("info", "--map", self.start_unix(path).uri)
        self.assertEqual((code, errors), (0, ""))
        rows = [line.split() for line in output.splitlines()]
        self.assertEqual(rows[0], ["offset", "length", "type"])
        self.assertEqual(rows[1:5], [["0", str(MIB), "hole,zero"], [str(MIB), str(MIB), "data"],
                                     [str(2 * MIB), str(6 * MIB), "hole,zero"], []])
        self.assertEqual(" ".join(rows[5]), f"data 1.0 MiB 12.5 % {MIB} bytes in 1 extent")
        self.assertEqual(" ".join(rows[6]), f"hole,zero 7.0 MiB 87.5 % {7 * MIB} bytes in 2 extents")

    @unittest.skipUnless(shutil.which("nbdinfo"), "nbdinfo is not installed")
    def test_nbdinfo_says_the_same(self):
        ranges = [(at * MIB, 65536 * (1 + at % 5)) for at in range(1, 60, 3)]
        path = self.sparse_file("disk.img", 64 * MIB, ranges)
        uri = self.start_unix(path).uri
        done = subprocess.run(["nbdinfo", "--map", "--json", uri], capture_output=True, check=True,
                              text=True, stdin=subprocess.DEVNULL)
        theirs = []
        for extent in json.loads(done.stdout):
            if theirs and theirs[-1][2] == extent["type"]:
                theirs[-1][1] += extent["length"]
            else:
                theirs.append([extent["offset"], extent["length"], extent["type"]])
        ours = [[extent["offset"], extent["length"], KINDS[extent["type"]]]
                for extent in self.map(uri)["extents"]]
        self.assertEqual(ours, theirs)


class Failures(MapCase):
    def test_a_map_that_breaks_off_says_so_and_is_json_all_the_same(self):
        step = 8192
        path = self.sparse_file("disk.img", 20000 * 2 * step,
                                [(at * 2 * step, step) for at in range(20000)])
        # The second answer fails; the first does not hold all of them.
        uri = self.start_unix("--export", f"={path},fault=extents:EIO:nth=2").uri
        code, output, errors = self.run_gmblock("info", "--map", "--json", uri)
        self.assertEqual(code, 1)
        document = json.loads(output)
        self.assertIn("Input/output error", document["error"])
        self.assertIn("Input/output error", errors)
        self.check_whole(document, size=sum(extent["length"] for extent in document["extents"]))
        self.assertGreater(len(document["extents"]), 100)
        self.assertLess(len(document["extents"]), 40000)

    def test_a_server_that_does_not_tell(self):
        def script(dialogue):
            dialogue.greet()
            number, _ = dialogue.option()
            while number != fake_server.GO:
                dialogue.reply(number, fake_server.UNSUP)
                number, _ = dialogue.option()
            dialogue.info_export()
            dialogue.ack()
            dialogue.wait_for_close()
        with fake_server.FakeServer(script) as server:
            self.check_refused(["info", "--map", server.uri()], 1, "base:allocation")
            self.check_refused(["info", "--map", "--json", server.uri()], 1, "base:allocation")
        self.assertEqual(server.failures, [])

    def test_nobody_there(self):
        self.check_refused(["info", "--map", self.socket_uri("nobody")], 1, "gmblock info: ")

    def test_no_such_export(self):
        server = self.start_unix("--export", "disk=memory:1M")
        self.check_refused(["info", "--map", server.uri.replace("disk", "dusk")], 1,
                           "no export named 'dusk'")

    def test_wrong_usage(self):
        uri = self.socket_uri()
        self.check_refused(["info", "--map", "--list", uri], 2, "--map cannot be combined with --list")
        self.check_refused(["info", "--map", "--local"], 2, "--list or --map")
        self.check_refused(["info", "--local", "--timeout", "1s"], 2, "--timeout cannot be combined with --local")
        self.check_refused(["info", "--map"], 2, "give the URI of a server")
        self.check_refused(["info", "--map", "http://localhost"], 2, "http")

    def test_output_that_cannot_be_written_is_a_failure(self):
        uri = self.start_unix("memory:1M").uri
        for form in ([], ["--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([support.program(), "info", "--map", *form, uri], stdout=full,
                                      check=False, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, form)
            self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    support.main()
