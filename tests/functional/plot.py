#!/usr/bin/python3
"""gmblock-plot: its pictures are well-formed, show the data at their places, and nothing else; it says why it cannot
draw. Tests of the commands whose output it draws are in bench-figures.py, trace-requests.py and trace-disks.py."""
import copy
import json
import math
import os
import re
import sys
import unittest

import support

sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(support.PLOT))
import gmblock_plot  # noqa: E402 (the path comes first)

SVG = "{http://www.w3.org/2000/svg}"
LEFT, RIGHT = 80, 830  # of all panels
HOSTILE = '</text><script>\x01\x1b[2J & "quoted" \ud800 \u202e\u00ad \uffff end'
ESCAPED = '</text><script>\\x01\\x1b[2J & "quoted" \\xed\\xa0\\x80 \\xe2\\x80\\xae\\xc2\\xad \ufffd end'


def side(values):
    """A direction of gmblock bench with these latencies, in nanoseconds."""
    buckets = {}
    for value in values:
        shift = max(0, value.bit_length() - 9)
        low = value >> shift << shift
        buckets[low, low + (1 << shift) - 1] = buckets.get((low, low + (1 << shift) - 1), 0) + 1
    values = sorted(values)
    return {
        "latency_us": {"min": values[0] / 1000, "max": values[-1] / 1000, "p50": values[(len(values) - 1) // 2] / 1000,
                       "p99": values[math.ceil(len(values) * 0.99) - 1] / 1000},
        "buckets": [[*ends, buckets[ends]] for ends in sorted(buckets)]}


def bench(read=None, write=None, uri="nbd://h/disk"):
    return {"uri": uri, "read": read and side(read), "write": write and side(write), "work": {
        "rw": "randread", "read_percent": 100 if write is None else 70, "block_bytes": 4096, "once": False,
        "depth": 8, "connections": 1, "threads": 2}}


def request(operation="read", offset=0, length=4096, total_us=100, parts=(), **more):
    return {"operation": operation, "export": "disk", "offset": offset, "length": length, "error": None,
            "total_us": total_us, "state_us": {"wait": 1, "disk": 2000, "overlap": 3e6, "network": 4},
            "parts": list(parts), "parts_more": 0, **more}


def part(offset, length, submitted, done, **more):
    return {"offset": offset, "length": length, "opened_us": 0, "submitted_us": submitted, "done_us": done,
            "error": None, "progress": [], "sent": [], **more}


def requests(*found):
    return {"version": 1, "pid": 1, "wanted": len(found), "ended": "count", "requests": list(found)}


def disk(arrivals, streams, size=65536, chunk=4096, time_us=100, path="/dev/disk"):
    read = {"time_us": time_us, "arrivals_us": arrivals, "arrival_streams": streams}
    return {"path": path, "stripe_members": 1, "chunk_bytes": chunk,
            "sizes": [{"bytes": size, "typical": 0, "reads": [read]}]}


class Case(support.Case):
    def texts(self, root):
        return [one.text for one in root.iter(SVG + "text")]

    def paths(self, root, kind):
        return [one for one in root.iter(SVG + "path") if one.get("class") == kind]

    def points(self, one):
        """The absolute points of a path of lines."""
        return [tuple(map(float, pair.split())) for pair in re.split("[ML]", one.get("d"))[1:]]

    def bars(self, root, kind):
        """(x, y, width, height) of the rectangles of a class."""
        return [tuple(float(one.get(key)) for key in ("x", "y", "width", "height"))
                for one in root.iter(SVG + "rect") if one.get("class") == kind]

    def check_near(self, found, wanted):
        """Up to the digit that is printed."""
        self.assertEqual(len(found), len(wanted))
        for one, other in zip(found, wanted):
            self.assertAlmostEqual(one, other, delta=0.06, msg=(found, wanted))


class Latencies(Case):
    def test_one_direction(self):
        root = self.plot(bench(range(1000, 1001000, 1000)))
        self.assertEqual(root.find(SVG + "title").text,
                         "randread, blocks of 4K, depth 8, 1 connection, 2 threads")
        self.assertEqual([len(self.paths(root, kind)) for kind in ("curve", "area")], [1, 1])
        texts = self.texts(root)
        self.assertIn("read: median 500 µs, 99 % within 990 µs, longest 1 ms", texts)
        self.assertIn("nbd://h/disk", texts)
        # The largest bin has about 9 % of the requests.
        for label in ("99.9 %", "50 %", "0 %", "2 %", "10 %", "1 µs", "1 ms"):
            self.assertIn(label, texts)
        self.assertNotIn("99.99 %", texts)

    def test_two_directions(self):
        root = self.plot(bench([10], [1 << 40]))
        self.assertIn("randread (70 % reads), ", root.find(SVG + "title").text)
        curves = self.paths(root, "curve")
        self.assertEqual([one.get("stroke") for one in curves], ["#1d5fa8", "#c2521a"])
        self.assertEqual(len(self.paths(root, "area")), 2)
        texts = " ".join(self.texts(root))
        self.assertIn("read: median 10 ns", texts)
        self.assertIn("write: median 1.1e+03 s", texts)

    def test_places_on_the_scales(self):
        """Half of the requests took 1 us, the other half 100 us: a scale of two decades, with an eighth of a pixel
        for a bucket."""
        root = self.plot(bench([1000] * 50 + [100000] * 50))
        curve, = self.paths(root, "curve")
        width = RIGHT - LEFT
        # 1000 is the lowest value of its bucket, 1001 the highest; 50 % are 0.301 of the two nines of 100 requests.
        right = LEFT + width * math.log10(1001 / 1000) / 2
        wanted = [(LEFT, 580), (right, 580 - 230 * math.log10(2) / 2), (RIGHT, 350)]
        for found, place in zip(self.points(curve), wanted):
            self.check_near(found, place)
        area, = self.paths(root, "area")
        steps = [float(number) for number in re.findall(r"V([\d.]+)H", area.get("d"))]
        self.assertEqual(len(steps), 75)
        self.assertEqual((steps[0], steps[-1], set(steps[1:-1])), (112, 112, {310}))

    def test_the_curve_is_monotone_however_many_points_there_are(self):
        root = self.plot(bench([20000 + i * i % 7777777 for i in range(100000)]))
        curve, = self.paths(root, "curve")
        points = self.points(curve)
        self.assertGreater(len(points), 20)
        self.assertLess(len(points), 2000)
        for one, following in zip(points, points[1:]):
            self.assertLessEqual(one[0], following[0])
            self.assertGreaterEqual(one[1], following[1])

    def test_extremes_stay_on_the_canvas(self):
        """Whatever the values: one value only, zero, the largest."""
        values = [0, 1, 7, 999999999, 2 ** 63]
        for i, one in enumerate(values):
            for other in values[i:]:
                with self.subTest(values=(one, other)):
                    root = self.plot(bench([one, other]))
                    for shape in self.paths(root, "area") + self.paths(root, "curve"):
                        self.assertNotRegex(shape.get("d"), "[a-y]")
                        for number in re.findall(r"-?[\d.]+", shape.get("d")):
                            self.assertTrue(0 <= float(number) <= 1000, shape.get("d"))

    def test_hostile_texts_stay_text(self):
        root = self.plot(bench([5], uri=HOSTILE))
        self.assertIn(ESCAPED, self.texts(root))
        self.assertEqual({one.tag for one in root.iter()},
                         {SVG + name for name in ("svg", "title", "style", "rect", "text", "path")})

    def test_a_long_text_is_cut(self):
        text, = (text for text in self.texts(self.plot(bench([5], uri="<é" * 100000))) if "<" in text)
        self.assertLessEqual(len(text.encode()), 1023)
        self.assertTrue(text.endswith("..."))


class Requests(Case):
    def test_bars_have_the_times_and_ranges_of_their_parts(self):
        pieces = [{"offset": 8192, "length": 4096, "handed_us": 50, "back_us": None}]
        root = self.plot(requests(request(offset=4096, length=16384, parts=[
            part(12288, 8192, 20, 100), part(4096, 8192, 10, 30, sent=pieces, progress=[
                {"progress_us": 20, "bytes": 4096}])])))
        self.check_near(self.bars(root, "frame")[0], (80, 116, 750, 248))
        # In order of their offsets: 750 pixels are 100 us, 248 pixels are 16 KiB.
        first, second = self.bars(root, "disk")
        self.check_near(first, (155, 240, 150, 124))
        self.check_near(second, (230, 116, 600, 124))
        # It waited from 30 us to 50 us, and was being sent when the record ended.
        for kind, wanted in (("waits", (305, 240, 150, 62)), ("network", (455, 240, 375, 62))):
            with self.subTest(kind):
                bar, = self.bars(root, kind)
                self.check_near(bar, wanted)
        marks, = self.paths(root, "marks")
        for found, wanted in zip(self.points(marks), [(155, 364), (230, 302)]):
            self.check_near(found, wanted)
        self.assertIn('read of 16K at 4096, export "disk"', self.texts(root))
        self.assertIn("done in 100.0 us: wait 1.0 us, disk 2.00 ms, overlap 3.00 s, network 4.0 us", self.texts(root))

    def test_operations(self):
        failing = part(0, 4096, 20, 20, error="EIO")
        root = self.plot(requests(
            request("write", parts=[part(0, 4096, 40, None)]),
            request("flush", length=0, parts=[part(0, 0, 10, 100)]),
            request("write", parts=[part(0, 4096, None, None)]),
            request(parts=[failing], error="EIO")))
        payload = self.bars(root, "payload")
        self.assertEqual([bar[2] for bar in payload], [300, 750])  # the second one never went to the disk
        # Without bytes: the full height. A bar of no time is as wide as a line.
        self.check_near(self.bars(root, "disk")[1], (155, 456, 675, 248))
        self.check_near(self.bars(root, "failed")[0], (230, 1136, 1, 248))
        self.assertIn('flush, export "disk"', self.texts(root))
        self.assertTrue(any(text.startswith("failed in 100.0 us") for text in self.texts(root)))

    def test_axes_have_round_values_up_to_their_ends(self):
        root = self.plot(requests(request(length=300 << 10, total_us=1170)))
        texts = self.texts(root)
        for label in ("0", "500 µs", "1 ms", "256 KiB"):
            self.assertIn(label, texts)
        self.assertNotIn("1.5 ms", texts)
        self.assertEqual(len([text for text in texts if text.endswith(" KiB")]), 5)
        grid = [one.get("d") for one in self.paths(root, "grid")]
        self.assertEqual(len(grid), 8)
        # 256 of 300 KiB: 364 - 248 * 256 / 300; 1 of 1.17 ms: 80 + 750 / 1.17.
        self.assertIn("M80.0 152.4H830.0", grid)
        self.assertIn("M721.0 116.0V364.0", grid)

    def test_the_first_six_of_very_many(self):
        parts = [part(4096 * i, 4096, i, i + 1) for i in range(1000)]
        root = self.plot(requests(*[request(length=4096000, total_us=1000, parts=parts)] * 6, *[request()] * 994))
        self.assertIn("6 of 1000 requests, time to the right, offset upward", self.texts(root))
        self.assertEqual(len(self.bars(root, "frame")), 6)
        self.assertEqual(len(self.bars(root, "disk")), 6000)

    def test_hostile_texts_stay_text(self):
        root = self.plot(requests(request(operation=HOSTILE, export=HOSTILE)))
        self.assertIn(f'{ESCAPED} of 4K at 0, export "{ESCAPED}"', self.texts(root))


class Reads(Case):
    def test_dots_have_the_times_and_offsets_of_their_chunks(self):
        """One colour for each stream; chunks that were not seen have none. The last chunk is short."""
        document = disk([10, 50, None, 100], [1, 2, 0, 9], size=3 * 4096 + 2048)
        root = self.plot(document)
        found = {one.get("stroke"): one.get("d") for one in self.paths(root, "dots")}
        # 246 pixels are 14 KiB, from 344 upward.
        self.assertEqual(found, {"#1d5fa8": "M155.0 308.9h0", "#c2521a": "M455.0 238.6h0",
                                 "#666666": "M830.0 115.6h0"})
        self.assertIn("14K", self.texts(root))
        self.assertIn("/dev/disk", self.texts(root))

    def test_without_a_dot_it_says_why(self):
        words = "No chunk was seen before the read was complete."
        self.assertIn(words, self.texts(self.plot(disk([None] * 4, [0] * 4))))
        self.assertNotIn(words, self.texts(self.plot(disk([None, None, 5, None], [0, 0, 1, 0]))))

    def test_very_many_chunks(self):
        """Those that could not be distinguished are left out."""
        count = 1 << 17
        root = self.plot(disk([i / 1000 for i in range(count)], [1] * count, size=512 * count, chunk=512,
                              time_us=count / 1000))
        dots, = self.paths(root, "dots")
        self.assertTrue(700 < dots.get("d").count("M") < 3000)

    def test_sizes_have_a_panel_each(self):
        document = disk([5], [1])
        document["sizes"] *= 8
        self.assertEqual(len(self.bars(self.plot(document), "frame")), 8)

    def test_hostile_texts_stay_text(self):
        self.assertIn(ESCAPED, self.texts(self.plot(disk([5], [1], path=HOSTILE))))


class Refused(Case):
    def refuse(self, data, *fragments, status=1, arguments=(), **options):
        """One message, no output, and no file."""
        new = self.path("new.svg")
        arguments = arguments or ("-o", new)
        code, output, errors = self.run_plot(*arguments, input=data, **options)
        self.assertEqual((code, output), (status, ""), errors)
        self.assertRegex(errors, r"\Agmblock-plot: [^\n]*\n\Z")
        for fragment in fragments:
            self.assertIn(fragment, errors)
        self.assertFalse(os.path.exists(new))

    def test_empty_data(self):
        remedies = ((bench(), "it has no requests", "measure for a longer time"),
                    (requests(), "it has no requests", "trace again while a client sends requests"),
                    ({**disk([5], [1]), "sizes": []}, "it has no reads", "trace the disk again"))
        for document, reason, remedy in remedies:
            self.refuse(json.dumps(document), "standard input: ", reason, "so there is nothing to draw", remedy)
        for data in ("", "\n"):
            self.refuse(data, "standard input: there is no data", "see the message of that command")

    def test_something_else(self):
        wanted = "the output of gmblock bench --json or gmblock trace --json is needed"
        for data in ("{", "<svg/>", "[" * 100000, '{"work": NaN}', "1" * 5000, '"\xff'):
            self.refuse(data, "it is not JSON", wanted)
        for data in ("{}", "[]", "7", "null", '"work"', '{"exports": []}', '["work"]'):
            self.refuse(data, "it is the JSON of something else", wanted)

    def test_every_member_that_is_missing_or_wrong_is_named(self):
        documents = (bench([5], [6]), disk([5], [1]), requests(request(parts=[part(0, 4096, 1, 2, sent=[
            {"offset": 0, "length": 1, "handed_us": 3, "back_us": 4}], progress=[{"progress_us": 1, "bytes": 1}])])))
        kinds = {key for key, _ in gmblock_plot.DRAW}
        unused = {"version", "pid", "ended", "wanted", "parts_more", "stripe_members"}
        count = 0
        for document in documents:
            for place, key in self.members(document):
                for wrong in (None, {}, -1, 1e999, True):
                    broken = copy.deepcopy(document)
                    parent = broken
                    for step in place:
                        parent = parent[step]
                    if parent[key] is None or key in unused or type(parent[key]) is type(wrong):
                        continue
                    if wrong is not None:
                        parent[key] = wrong
                    elif key not in kinds:
                        del parent[key]
                    else:
                        continue
                    count += 1
                    data = json.dumps(broken).replace("Infinity", "1e999")
                    with self.subTest(key=key, place=place, wrong=wrong):
                        self.assertRegex(self.draw_here(data), r"\A'\w+' is (missing|wrong[^;]*|empty)"
                                         "; record the data again with this version of gmblock")
        self.assertGreater(count, 150)

    def draw_here(self, data):
        """As the command, without a process for each."""
        try:
            gmblock_plot.drawing(gmblock_plot.load(data))
        except gmblock_plot.Refused as error:
            return str(error)
        return "drawn"

    def members(self, place, path=()):
        """(path, key) of all members of objects."""
        items = place.items() if isinstance(place, dict) else enumerate(place) if isinstance(place, list) else ()
        for key, value in items:
            if isinstance(place, dict):
                yield path, key
            yield from self.members(value, (*path, key))

    def test_contradictions(self):
        document = bench([5])
        document["read"]["latency_us"]["min"] = 9
        self.refuse(json.dumps(document), "'min' is more than 'max'")
        for bucket in ([6, 5, 1], [5, 5, 0], [5, 5], [5, "5", 1]):
            document = bench([5])
            document["read"]["buckets"] = [bucket]
            self.refuse(json.dumps(document), "record the data again")

    def test_input_that_cannot_be_read(self):
        name = self.path("a\x1b[31m\udcff\u00e4")
        self.refuse("", r"a\x1b[31m\xff" + "\u00e4: cannot read it: No such file or directory", arguments=[name])
        self.refuse("", "cannot read it: Is a directory", arguments=[self.folder])
        self.refuse("", f"{self.make_file('x', '{')}: it is not JSON", arguments=[self.path("x")])

    def test_usage(self):
        for arguments, fragment in ((["-o", ""], "--output: the path is empty"), ([""], "FILE: the path is empty"),
                                    (["--colour\x1b"], r"--colour\x1b"), (["a", "b"], "arguments: b"),
                                    (["-o"], "expected one argument")):
            self.refuse("", fragment, "see gmblock-plot --help", arguments=arguments, status=2)


class Output(Case):
    DATA = json.dumps(bench([5, 6, 7]))

    def setUp(self):
        super().setUp()
        self.picture = self.run_plot(input=self.DATA)[1]
        self.assertTrue(self.picture.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<svg '))
        self.assertTrue(self.picture.endswith("</svg>\n"))

    def content(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_files_and_streams(self):
        data = self.make_file("data.json", self.DATA)
        self.assertEqual(self.run_plot(data), (0, self.picture, ""))
        self.assertEqual(self.run_plot("-o", "-", "-", input=self.DATA), (0, self.picture, ""))
        for option in ("-o", "--output"):
            self.assertEqual(self.run_plot(option, self.path(option), data), (0, "", ""))
            self.assertEqual(self.content(self.path(option)), self.picture)

    def test_an_older_file_is_replaced(self):
        old = self.make_file("old.svg", "x" * 1000000)
        self.assertEqual(self.run_plot("-o", old, input=self.DATA), (0, "", ""))
        self.assertEqual(self.content(old), self.picture)

    def test_bad_data_do_not_damage_an_older_file(self):
        old = self.make_file("old.svg", "an older picture")
        for data in ("", "{", json.dumps(bench())):
            self.assertEqual(self.run_plot("-o", old, input=data)[0], 1)
        self.assertEqual(self.content(old), "an older picture")

    def test_output_that_cannot_be_written(self):
        folder = self.path("no/such/folder.svg")
        self.assertEqual(self.run_plot("-o", folder, input=self.DATA),
                         (1, "", f"gmblock-plot: {folder}: cannot write the plot: No such file or directory\n"))
        full = "cannot write the plot: No space left on device\n"
        self.assertEqual(self.run_plot("-o", "/dev/full", input=self.DATA), (1, "", f"gmblock-plot: /dev/full: {full}"))
        with open("/dev/full", "w", encoding="ascii") as file:
            self.assertEqual(self.run_plot(input=self.DATA, stdout=file)[::2],
                             (1, f"gmblock-plot: standard output: {full}"))

    def test_a_new_file_that_cannot_be_completed_is_removed(self):
        new = self.path("new.svg")
        code, _, errors = self.run_plot("-o", new, input=self.DATA, preexec_fn=self.limit_files)
        self.assertEqual(code, 1)
        self.assertIn(f"{new}: cannot write the plot: File too large", errors)
        self.assertFalse(os.path.exists(new))

    @staticmethod
    def limit_files():
        import resource  # pylint: disable=import-outside-toplevel
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    def test_help(self):
        code, output, errors = self.run_plot("--help")
        self.assertEqual((code, errors), (0, ""))
        for words in ("gmblock-plot [-o OUTPUT] [FILE]", "--output", "gmblock bench --json"):
            self.assertIn(words, output)


class Parts(unittest.TestCase):
    """Those that bench/ shares."""

    def test_ticks_are_round(self):
        for value, up, down in ((0.2, 0.2, 0.2), (0.202, 0.5, 0.2), (2.6, 5, 2), (1, 1, 1), (5.2, 10, 5), (6e8, 1e9, 5e8),
                                (0.000084, 0.0001, 0.00005)):
            self.assertAlmostEqual(gmblock_plot.round_125(value, up=True) / up, 1, places=9)
            self.assertAlmostEqual(gmblock_plot.round_125(value, up=False) / down, 1, places=9)


if __name__ == "__main__":
    support.main()
