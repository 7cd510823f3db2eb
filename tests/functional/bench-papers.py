#!/usr/bin/python3
"""The papers' values, and the model of their machines that predicts them (bench/papers)."""
import os
import sys

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
from papers import model, values  # noqa: E402 (the path has to be set first)


def all_values():
    """[((paper, figure, key), value)]"""
    return [((paper, figure["figure"], entry["key"]), entry) for paper, document in values.PAPERS.items()
            for figure in document["figures"] for entry in figure["values"]]


class Values(support.Case):
    def test_each_value_is_complete(self):
        found = all_values()
        self.assertEqual(len(found), len(dict(found)), "a key occurs twice in a figure")
        for name, entry in found:
            with self.subTest(name):
                self.assertLessEqual(set(entry), {"key", "value", "unit", "mark", "note", "page", "headline", "input"})
                self.assertGreaterEqual(entry["value"], 0)
                self.assertIn(entry["mark"], values.MARKS)
                self.assertTrue(entry["unit"])
                self.assertTrue("note" in entry or entry["mark"] != "D", "how is it derived?")

    def test_ratios_agree_with_the_rates_that_they_compare(self):
        for paper, figure, ratio, one, other in (
                ("synchronized-sends", "5", "synchronized over gmblock-sram", ("5", "synchronized"), ("2", "gmblock-sram")),
                ("synchronized-sends", "5", "synchronized over gmblock-ram", ("5", "synchronized"), ("2", "gmblock-ram")),
                ("synchronized-sends", "5", "synchronized over local", ("5", "synchronized"), ("2", "local-sram")),
                ("ipdps-2007", "9", "gm-myri over gm-mem", ("9", "gm-myri"), ("9", "gm-mem")),
                ("thesis", "4.3", "b synchro-single over sram-1, 256 KB", ("4.3", "b synchro-single 256 KB"),
                 ("3.9", "b sram-1 256 KB"))):
            with self.subTest(ratio):
                self.assertAlmostEqual(values.value(paper, figure, ratio),
                                       values.value(paper, *one) / values.value(paper, *other), delta=0.01)

    def test_a_value_that_no_paper_gives(self):
        self.assertRaisesRegex(KeyError, "no value", values.value, "thesis", "3.9", "sram-8")
        self.assertRaisesRegex(KeyError, "no figure", values.value, "thesis", "3.99", "sram-8")


class Model(support.Case):
    def off(self, name):
        """Of the prediction, as a part of the paper's value."""
        return model.PREDICTIONS[name] / values.value(*name) - 1

    def test_headlines_are_predicted(self):
        headlines = [(name, entry) for name, entry in all_values() if entry.get("headline")]
        self.assertGreaterEqual(len(headlines), 15)
        for name, entry in headlines:
            with self.subTest(name):
                if entry.get("input"):
                    self.assertNotIn(name, model.PREDICTIONS, "the model knows this value already")
                elif name not in model.EXCEPTED:
                    self.assertLessEqual(abs(self.off(name)), model.WITHIN)

    def test_exceptions_are_few_and_needed(self):
        self.assertLessEqual(len(model.EXCEPTED), 2)
        for name, reason in model.EXCEPTED.items():
            self.assertGreater(abs(self.off(name)), model.WITHIN, name)
            self.assertTrue(reason)

    def test_bounds_that_the_papers_compute(self):
        bounds = [name for name, entry in all_values() if entry["mark"] == "C"]
        self.assertGreaterEqual(len(bounds), 5)
        for name in bounds:
            self.assertLess(abs(self.off(name)), 0.005, name)

    def test_buffers_limit_what_is_in_flight(self):
        """Table of section 2: 1 × 1024, 2 × 512, 4 × 256 KB; on the thesis's machines half of each size."""
        for machine, size in ((model.IPDPS, 1024), (model.SYNC, 1024), (model.SERVER_A, 512), (model.SERVER_B, 512)):
            for depth in (1, 2, 4):
                self.assertTrue(model.fits(machine, size // depth, depth))
                self.assertFalse(model.fits(machine, 2 * size // depth, depth))

    def test_a_slower_clock_slows_the_transfer_and_not_the_memory(self):
        bus = model.IPDPS.bus
        slow = bus.at(bus.mhz / 2)
        self.assertAlmostEqual(slow.peak, bus.peak / 2)
        for fast, rate in zip(bus[2:], slow[2:]):
            self.assertTrue(fast / 2 < rate < slow.peak)
        self.assertAlmostEqual(bus.at(bus.mhz).to_memory, bus.to_memory)

    def test_streams_of_a_send(self):
        """A striped disk in ascending order: between nothing and all overlapped; without a stripe the same."""
        disk, wire = 388, 462
        alone = model.one_after_the_other(disk, wire)
        many = model.synchronized(disk, wire, 1024, 16)
        single = model.synchronized(disk, wire, 1024, 16, (8, 64))
        self.assertTrue(alone < single < many < min(disk, wire))
        # One stripe: all but its first chunk is sent when it is complete.
        self.assertAlmostEqual(model.synchronized(disk, wire, 512, 16, (8, 64)), 512 / (512 / disk + 448 / wire))


if __name__ == "__main__":
    support.main()
