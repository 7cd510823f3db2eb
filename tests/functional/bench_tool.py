"""What the tests of `gmblock bench` share."""
import json

import support

PERCENTILES = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"]


class BenchCase(support.Case):
    def measured_briefly(self, seconds, *arguments):
        """As measured(), for so long, or for longer if no request completed on a busy machine."""
        while True:
            done = self.run_gmblock("bench", "--json", "--seconds", str(seconds), *arguments)
            if "no request completed" not in done[2]:
                return self.checked(*done)
            seconds *= 2

    def measured(self, *arguments):
        """The JSON of a run that must succeed. What it warns of is not judged here."""
        return self.checked(*self.run_gmblock("bench", "--json", *arguments))

    def checked(self, code, output, errors):
        self.assertEqual(code, 0, errors)
        document = json.loads(output)
        self.check_figures(document)
        return document

    def check_close(self, one, other):
        """Equal up to the digits that are printed."""
        self.assertLessEqual(abs(one - other), 1e-6 * max(abs(one), abs(other)), (one, other))

    def check_latency(self, latency):
        values = [latency[key] for key in PERCENTILES]
        self.assertEqual(values, sorted(values))
        self.assertGreater(latency["min"], 0)
        self.assertLessEqual(latency["min"], latency["mean"])
        self.assertLessEqual(latency["mean"], latency["max"])
        self.assertLessEqual(latency["deviation"], latency["max"] - latency["min"])

    def check_side(self, side, work, seconds):
        self.check_latency(side["latency_us"])
        self.check_close(side["iops"] * seconds, side["requests"])
        self.check_close(side["iops"] * work["block_bytes"], side["bytes_per_second"])
        bars = side["histogram"]
        self.assertEqual(sum(bar["requests"] for bar in bars), side["requests"])
        self.assertGreater(bars[0]["requests"], 0)
        self.assertGreater(bars[-1]["requests"], 0)
        for bar, following in zip(bars, bars[1:]):
            self.assertEqual(bar["below_us"], following["from_us"])
        self.assertLessEqual(bars[0]["from_us"], side["latency_us"]["min"])
        # A bucket of the histogram that lies across a border counts below it.
        self.assertGreater(bars[-1]["below_us"] * 257 / 256, side["latency_us"]["max"])
        self.check_buckets(side)

    def check_buckets(self, side):
        """In ascending order, apart, and of the same requests as the other figures."""
        buckets = side["buckets"]
        self.assertEqual(sum(count for _, _, count in buckets), side["requests"])
        ends = [end for low, high, _ in buckets for end in (low, high + 1)]
        self.assertEqual(ends, sorted(ends))
        for low, high, count in buckets:
            self.assertGreater(count, 0)
            self.assertLessEqual(high - low, low / 256)
        for key, (low, high, _) in (("min", buckets[0]), ("max", buckets[-1])):
            self.assertTrue(low <= round(side["latency_us"][key] * 1000) <= high, (key, low, high))

    def check_figures(self, document):
        """What must be true of any result."""
        work, seconds = document["work"], document["seconds"]
        sides = [document[name] for name in ("read", "write") if document[name] is not None]
        self.assertGreater(len(sides), 0)
        self.assertEqual(sum(side["requests"] for side in sides), document["requests"])
        for side in sides:
            self.check_side(side, work, seconds)
        self.check_latency(document["latency_us"])
        self.check_close(document["iops"] * seconds, document["requests"])
        self.check_close(document["iops"] * work["block_bytes"], document["bytes_per_second"])
        self.assertEqual(document["latency_us"]["min"],
                         min(side["latency_us"]["min"] for side in sides))
        self.assertEqual(document["latency_us"]["max"],
                         max(side["latency_us"]["max"] for side in sides))
        process = document["process"]
        self.check_close(document["cpu_us_per_request"] * document["requests"],
                         1e6 * (process["user_seconds"] + process["system_seconds"]))
        self.check_close(process["system_calls_per_request"] * document["requests"],
                         process["system_calls"])
