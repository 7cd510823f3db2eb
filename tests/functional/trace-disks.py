#!/usr/bin/python3
"""gmblock trace shows when the chunks of reads arrived, and leaves the disk as it was."""
import os

import support
from trace_tool import MIB, TraceCase

SVG = "{http://www.w3.org/2000/svg}"


class Figures(TraceCase):
    """Nothing here depends on how fast anything is: a chunk may be seen early or not."""

    def check_read(self, size, read, chunk):
        count = -(-size // chunk)
        times, streams = read["arrivals_us"], read["arrival_streams"]
        self.assertEqual((len(times), len(streams)), (count, count))
        self.assertEqual(read["chunks_early"] + read["chunks_at_completion"] +
                         read["chunks_unseen"], count)
        self.assertEqual(sum(time is not None for time in times), read["chunks_early"])
        for time, stream in zip(times, streams):
            self.assertEqual(time is None, stream == 0)
            self.assertTrue(time is None or 0 <= time < read["time_us"])
        self.assertEqual(max(streams), read["streams"])
        for key in ("arrived_25", "arrived_50", "arrived_75", "early", "reordered",
                    "hidden_any_order", "hidden_ascending"):
            self.assertTrue(0 <= read[key] <= 1, (key, read[key]))

    def check(self, result, sizes, count, chunk):
        self.assertEqual([group["bytes"] for group in result["sizes"]], sizes)
        for group in result["sizes"]:
            self.assertEqual(len(group["reads"]), count)
            for read in group["reads"]:
                self.check_read(group["bytes"], read, chunk)
            times = sorted(read["time_us"] for read in group["reads"])
            self.assertEqual(group["summary"]["time_us"]["min"], times[0])
            self.assertEqual(group["summary"]["time_us"]["max"], times[-1])
            self.assertEqual(group["summary"]["time_us"]["median"], times[(count - 1) // 2])
            self.assertEqual(group["reads"][group["typical"]]["time_us"],
                             times[(count - 1) // 2])

    def test_a_file(self):
        path = self.disk()
        result = self.trace(path)
        self.check(result, [MIB], 8, 4096)
        self.assertIs(result["interrupted"], False)
        self.assertEqual((result["path"], result["size"], result["direct"],
                          result["block_device"]), (path, 4 * MIB, True, False))
        self.assertEqual([read["offset"] for read in result["sizes"][0]["reads"]],
                         [i % 4 * MIB for i in range(8)])
        self.assertEqual(sum(read["chunks_unseen"] for read in result["sizes"][0]["reads"]), 0)
        self.assertNotEqual(result["marker"], self.trace("--count", "1", path)["marker"])

    def test_sizes_chunks_and_places(self):
        path = self.disk()
        result = self.trace("--size", "64K", "--size", "36K", "--count", "3", "--chunk", "16K",
                            "--offset", "3M", path)
        self.check(result, [64 << 10, 36 << 10], 3, 16 << 10)
        self.assertEqual([read["offset"] for read in result["sizes"][1]["reads"]],
                         [3 * MIB + i * (36 << 10) for i in range(3)])

    def test_through_the_page_cache(self):
        path = self.make_file("disk", os.urandom(MIB + 5))
        result = self.trace("--cached", "--offset", "512", "--size", "1536", path)
        self.check(result, [1536], 8, 4096)
        self.assertIs(result["direct"], False)

    def test_a_loop_device(self):
        content = os.urandom(4 * MIB)
        image = self.make_file("image", content)
        device = self.loop(image, "--read-only")
        result = self.trace(device)
        self.check(result, [MIB], 8, 4096)
        self.assertEqual((result["block_device"], result["size"]), (True, 4 * MIB))
        with open(image, "rb") as file:
            self.assertEqual(file.read(), content)

    def test_the_disk_stays_as_it_is(self):
        content = os.urandom(2 * MIB)
        path = self.disk(content=content)
        os.chmod(path, 0o444)
        before = os.stat(path).st_mtime_ns
        for how in ([], ["--cached"]):
            self.trace(*how, path)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), content)
        self.assertEqual(os.stat(path).st_mtime_ns, before)


class Drawings(TraceCase):
    def test_text_fits_a_terminal(self):
        code, output, errors = self.run_gmblock(
            "trace", "--size", "64K", "--size", "1M", self.disk())
        self.assertEqual((code, errors), (0, ""))
        # The first line names the file, however long that is.
        for line in output.splitlines()[1:]:
            self.assertLessEqual(len(line), 80, line)
        self.assertEqual(output.count("+" + "-" * 68), 2)
        charts = [line[11:] for line in output.splitlines() if line[10:11] == "|"]
        self.assertEqual(len(charts), 32)
        self.assertIn("\n64K, 8 times\n", output)

    def test_svg(self):
        path = self.disk(name="a<b>&\"c\x01")
        root = self.plot(self.trace("--size", "64K", "--size", "256K", path))
        self.assertEqual(root.tag, SVG + "svg")
        self.assertEqual([one.get("class") for one in root.iter(SVG + "rect")].count("frame"), 2)
        texts = [one.text for one in root.iter(SVG + "text")]
        self.assertIn("256K", texts)
        self.assertTrue(any("a<b>&" in text for text in texts))


if __name__ == "__main__":
    support.main()
