#!/usr/bin/python3
"""gmblock bench: the figures fit together, and the work is the one that was asked for."""
import os

import bench_tool
import nbdmini
import support

# Short runs: the figures must fit together, not be good.
SECONDS = 0.1
LONG = "1000"
BLOCK = 4096
SVG = "{http://www.w3.org/2000/svg}"


class Figures(bench_tool.BenchCase):
    def serve_memory(self, size="16M"):
        return self.start_unix(f"memory:{size}").uri

    def test_what_is_done_without_options(self):
        result = self.measured_briefly(SECONDS, self.serve_memory())
        work = result["work"]
        self.assertEqual((work["rw"], work["block_bytes"], work["depth"], work["connections"]),
                         ("randread", 4096, 64, 1))
        self.assertEqual((work["offset"], work["size"], work["warmup_seconds"]), (0, 16 << 20, 0))
        self.assertIsNone(result["write"])
        self.assertEqual(result["server"]["size"], 16 << 20)
        self.assertFalse(result["interrupted"])
        self.assertGreaterEqual(result["seconds"], SECONDS)

    def test_times_with_and_without_a_unit(self):
        uri = self.serve_memory()
        for text, seconds in (("20ms", 0.02), ("0.02", 0.02), ("30000us", 0.03)):
            work = self.measured_briefly(SECONDS, "--warmup", text, uri)["work"]
            self.assertEqual(work["warmup_seconds"], seconds)
        for text, seconds in (("60000ms", 60), ("60.5", 60.5), ("60000000us", 60)):
            work = self.measured("--seconds", text, "--requests", "5", uri)["work"]
            self.assertEqual(work["seconds"], seconds)

    def test_each_pattern_reads_and_writes_what_its_name_says(self):
        uri = self.serve_memory()
        for pattern in ("read", "write", "randread", "randwrite", "rw", "randrw"):
            force = [] if "read" in pattern else ["--force"]
            result = self.measured("--rw", pattern, "--requests", "600", "--seconds", LONG, *force,
                                   uri)
            self.assertEqual(result["read"] is not None, pattern not in ("write", "randwrite"))
            self.assertEqual(result["write"] is not None, pattern not in ("read", "randread"))
            self.assertEqual(result["requests"], 600)

    def test_requests_are_counted_exactly(self):
        uri = self.serve_memory()
        for count, options in ((1, []), (7, ["--depth", "16"]), (1001, ["--threads", "3"]),
                               (2, ["--threads", "3"]), (500, ["--connections", "5"])):
            result = self.measured("--requests", str(count), "--seconds", LONG, *options, uri)
            self.assertEqual(result["requests"], count, options)

    def test_read_percent(self):
        uri = self.serve_memory()
        for percent in (0, 25, 90, 100):
            result = self.measured("--rw", "randrw", "--read-percent", str(percent), "--requests",
                                   "4000", "--seconds", LONG, "--seed", "5",
                                   *(["--force"] if percent < 100 else []), uri)
            reads = result["read"]["requests"] if result["read"] else 0
            # Ten standard deviations of a fair draw.
            self.assertAlmostEqual(reads, 40 * percent, delta=320 if 0 < percent < 100 else 0)

    def test_bytes_over_the_wire_are_those_of_the_requests(self):
        uri = self.serve_memory("4M")
        # What was never written might be sent as a hole.
        self.measured("--rw", "write", "--bs", "1M", "--requests", "4", "--seconds", LONG, uri)
        result = self.measured("--rw", "randrw", "--bs", "20000", "--requests", "900", "--seconds",
                               LONG, "--force", uri)
        process = result["process"]
        self.assertEqual(process["payload_bytes_received"], result["read"]["requests"] * 20000)
        self.assertEqual(process["payload_bytes_sent"], result["write"]["requests"] * 20000)
        self.assertGreaterEqual(process["commands"], 900)

    def test_reads_of_holes_are_told(self):
        uri = self.serve_memory("4M")
        result = self.measured("--requests", "300", "--seconds", LONG, uri)
        self.assertEqual(result["hole_reads"], 300)
        _, output, _ = self.run_gmblock("bench", "--requests", "300", "--seconds", LONG, uri)
        self.assertIn("100 % of the reads hit holes", output)
        self.measured("--rw", "write", "--bs", "1M", "--requests", "4", "--seconds", LONG, uri)
        result = self.measured("--requests", "300", "--seconds", LONG, uri)
        self.assertEqual(result["hole_reads"], 0)
        _, output, _ = self.run_gmblock("bench", "--requests", "300", "--seconds", LONG, uri)
        self.assertNotIn("hole", output)

    def test_warm_up_is_not_counted(self):
        result = self.measured_briefly(SECONDS, "--warmup", "0.1", self.serve_memory())
        self.assertEqual(result["work"]["warmup_seconds"], 0.1)
        self.assertGreaterEqual(result["seconds"], SECONDS)

    def test_several_connections_and_threads(self):
        uri = self.serve_memory()
        result = self.measured_briefly(SECONDS, "--threads", "2", "--connections", "5",
                               "--depth", "3", "--rw", "read", uri)
        self.assertEqual((result["work"]["connections"], result["work"]["threads"]), (5, 2))
        result = self.measured_briefly(SECONDS, "--threads", "2", uri)
        self.assertEqual(result["work"]["connections"], 2)
        result = self.measured_briefly(SECONDS, "--connections", "auto", uri)
        self.assertGreaterEqual(result["work"]["connections"], 1)

    def test_a_request_may_be_larger_than_what_a_server_takes_at_once(self):
        result = self.measured("--bs", "80M", "--depth", "1", "--requests", "2", "--seconds", LONG,
                               self.serve_memory("100M"))
        self.assertEqual(result["requests"], 2)

    def test_text(self):
        code, output, errors = self.run_gmblock(
            "bench", "--rw", "randrw", "--requests", "100", "--seconds", LONG, self.serve_memory())
        self.assertEqual((code, errors), (0, ""))
        for word in ("randrw (50 % reads)", "blocks of 4K", "depth 64", "p99.99",
                     "processor time per request", "read latency", "write latency"):
            self.assertIn(word, output)


class Contents(bench_tool.BenchCase):
    """What the writes leave behind."""

    def contents(self, *arguments, size=256 * BLOCK):
        with support.tempfile.TemporaryDirectory(dir=self.folder) as folder:
            server = self.start(f"memory:{size}", "--listen", f"nbd+unix:///?socket={folder}/s")
            result = self.measured("--seconds", LONG, *arguments, server.uri)
            with nbdmini.open_export(server.uri) as client:
                data = client.read(0, size)
            server.stop()
        return [data[at:at + BLOCK] for at in range(0, size, BLOCK)], result

    def test_sequential_writes_cover_the_range_and_nothing_else(self):
        blocks, result = self.contents(
            "--rw", "write", "--offset", str(16 * BLOCK), "--size", str(100 * BLOCK + 5),
            "--requests", "100")
        self.assertEqual((result["work"]["offset"], result["work"]["size"]),
                         (16 * BLOCK, 100 * BLOCK))
        empty = bytes(BLOCK)
        written = [at for at, block in enumerate(blocks) if block != empty]
        self.assertEqual(written, list(range(16, 116)))

    def test_connections_share_a_sequential_range(self):
        blocks, _ = self.contents("--rw", "write", "--connections", "4", "--depth", "64",
                                  "--requests", "256")
        self.assertNotIn(bytes(BLOCK), blocks)

    def test_random_writes_stay_in_the_range(self):
        blocks, _ = self.contents("--rw", "randwrite", "--offset", str(16 * BLOCK), "--size",
                                  str(8 * BLOCK), "--requests", "400")
        empty = bytes(BLOCK)
        written = [at for at, block in enumerate(blocks) if block != empty]
        self.assertEqual(written, list(range(16, 24)))

    def test_a_seed_of_its_own_survives_programs_that_read_json(self):
        result = self.measured("--requests", "1", "--seconds", LONG,
                               self.start_unix("memory:1M").uri)
        self.assertLess(result["work"]["seed"], 1 << 53)

    def test_a_seed_repeats_places_and_contents(self):
        options = ["--rw", "randwrite", "--depth", "1", "--requests", "60"]
        first, result = self.contents(*options, "--seed", "9")
        self.assertEqual(result["work"]["seed"], 9)
        self.assertEqual(self.contents(*options, "--seed", "9")[0], first)
        self.assertNotEqual(self.contents(*options, "--seed", "10")[0], first)
        self.assertNotEqual(self.contents(*options)[0], first)

    def test_written_blocks_differ(self):
        blocks, _ = self.contents("--rw", "write", "--depth", "64", "--requests", "64",
                                  size=64 * BLOCK)
        self.assertEqual(len(set(blocks)), 64)

    def test_reading_changes_nothing(self):
        path = self.make_file("disk.img", os.urandom(64 * BLOCK))
        with open(path, "rb") as file:
            before = file.read()
        server = self.start_unix(path)
        self.measured("--rw", "randread", "--requests", "500", "--seconds", LONG, server.uri)
        server.stop()
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_fua_is_a_durable_write(self):
        path = self.make_file("disk.img", bytes(16 * BLOCK))
        server = self.start_unix(path)
        result = self.measured("--rw", "write", "--fua", "--depth", "1", "--requests", "16",
                               "--seconds", LONG, server.uri)
        self.assertTrue(result["work"]["fua"])
        server.kill()
        with open(path, "rb") as file:
            data = file.read()
        self.assertNotIn(bytes(BLOCK), [data[at:at + BLOCK] for at in range(0, 16 * BLOCK, BLOCK)])


    def test_once_uses_each_block_once(self):
        for pattern in ("write", "randwrite"):
            for options in ([], ["--threads", "2", "--connections", "5", "--depth", "7"],
                            ["--connections", "200", "--depth", "1"], ["--rate", "requests=100000"]):
                with self.subTest(pattern=pattern, options=options):
                    blocks, result = self.contents(
                        "--rw", pattern, "--once", *options, size=101 * BLOCK)
                    self.assertNotIn(bytes(BLOCK), blocks)
                    self.assertEqual(result["requests"], 101)
                    self.assertIs(result["covered"], True)
                    self.assertIs(result["work"]["once"], True)

    def test_once_repeats_no_block_before_its_end(self):
        for pattern in ("write", "randwrite"):
            blocks, result = self.contents("--rw", pattern, "--once", "--connections", "3",
                                           "--requests", "90", size=101 * BLOCK)
            self.assertEqual(blocks.count(bytes(BLOCK)), 11)
            self.assertIs(result["covered"], False)

    def test_once_at_random_has_an_order_for_each_seed(self):
        options = ["--rw", "randwrite", "--once", "--depth", "1", "--requests", "60"]
        first, _ = self.contents(*options, "--seed", "9")
        self.assertEqual(self.contents(*options, "--seed", "9")[0], first)
        self.assertNotEqual(self.contents(*options, "--seed", "10")[0], first)


class Rate(bench_tool.BenchCase):
    """Nothing here depends on how fast the machine is."""

    def rated(self, *arguments, disk="memory:1M", uri=None):
        uri = uri or self.start_unix("--export", "=" + disk).uri
        result = self.measured("--seconds", LONG, *arguments, uri)
        late = result["rate"]["late_us"]
        self.assertEqual([late[key] for key in bench_tool.PERCENTILES],
                         sorted(late[key] for key in bench_tool.PERCENTILES))
        return result

    def test_requests_are_not_sent_before_their_time(self):
        uri = self.start_unix("memory:1M").uri
        for options in ([], ["--threads", "2", "--connections", "3"], ["--depth", "1"]):
            result = self.rated("--rate", "requests=200", "--requests", "41", *options, uri=uri)
            self.assertEqual(result["requests"], 41)
            self.assertGreaterEqual(result["seconds"], 40 / 200)
            self.assertEqual(result["rate"]["requests_per_second"], 200)
            self.check_close(result["rate"]["achieved"], result["iops"] / 200)

    def test_bytes(self):
        result = self.rated("--rate", "4M", "--bs", "128K", "--requests", "9")
        self.assertGreaterEqual(result["seconds"], 8 / 32)
        self.assertEqual(result["rate"]["bytes_per_second"], 4 << 20)
        self.check_close(result["rate"]["achieved"], result["bytes_per_second"] / (4 << 20))

    def test_a_slow_server_makes_requests_late_and_not_fewer(self):
        result = self.rated("--rate", "requests=1000", "--requests", "10", "--depth", "1",
                            disk="memory:1M,delay=read:20ms")
        self.assertEqual(result["requests"], 10)
        self.assertLess(result["rate"]["achieved"], 0.05)
        # Nine others came first, 20 ms each; it was due after 9 ms.
        self.assertGreaterEqual(result["rate"]["late_us"]["max"], 170000)
        # But what takes long is the wait for a slot, not the request.
        self.assertLess(result["latency_us"]["min"], result["rate"]["late_us"]["max"])

    def test_the_time_ends_a_run_in_which_nothing_is_due(self):
        uri = self.start_unix("memory:1M").uri
        result = self.measured_briefly(SECONDS, "--rate", "1", uri)
        self.assertEqual(result["requests"], 1 + int(result["work"]["seconds"]))

    def test_without_one(self):
        result = self.measured("--requests", "9", "--seconds", LONG,
                               self.start_unix("memory:1M").uri)
        self.assertIsNone(result["rate"])

    def test_text(self):
        uri = self.start_unix("memory:64K").uri
        for rate in ("1M", "requests=5000"):
            _, output, errors = self.run_gmblock("bench", "--rate", rate, "--once", uri)
            for words in ("requested rate", "% achieved", "send delay", "each once",
                          "until every block was used"):
                self.assertIn(words, output, errors)


class Plot(bench_tool.BenchCase):
    """Its JSON has what gmblock-plot needs; plot.py has the tests of the pictures."""

    def test_it_has_a_curve_for_each_side(self):
        for pattern, sides in (("randread", 1), ("rw", 2)):
            with self.subTest(pattern):
                uri = self.start_unix("memory:1M").uri
                root = self.plot(self.measured("--requests", "500", "--seconds", LONG, "--rw", pattern, uri))
                curves = [path for path in root.iter(SVG + "path") if path.get("class") == "curve"]
                self.assertEqual(len(curves), sides)
                self.assertIn(pattern, root.find(SVG + "title").text)
                self.doCleanups()
                self.setUp()

    def test_a_failed_run_draws_nothing(self):
        """The plot has no input then, and names the reason."""
        code, output, errors = self.run_gmblock("bench", "--json", self.socket_uri("nobody"))
        self.assertEqual((code, output), (1, ""), errors)
        plot = self.path("new.svg")
        code, _, errors = self.run_plot("-o", plot, input=output)
        self.assertEqual(code, 1)
        self.assertIn("standard input: there is no data", errors)
        self.assertFalse(os.path.exists(plot))


if __name__ == "__main__":
    support.main()
