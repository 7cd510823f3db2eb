#!/usr/bin/python3
"""The papers' values, the model of their machines that predicts them, and the page of bench/paper."""
import os
import subprocess
import sys
import types

import support

BENCH = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
sys.path.insert(0, BENCH)
from harness import session  # noqa: E402 (the path has to be set first)
from papers import model, page, rows, values  # noqa: E402


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


class ThisMachine(support.Case):
    """Its parts: 2 GB/s of disk, 4 of network, 16 of memory; a request of 1 MiB is sent in two parts."""

    def records(self):
        def reads(ways):
            return {way: [{"bytes_per_s": rate}] for way, rate in ways.items()}
        cell = {"bytes": 1 << 20, "depth": 1, "rate": None, "samples": reads(
            {"local": 2e9, "net": 4e9, "off": 1e9, "multi": 1.5e9})}
        part = {"store": "loop", "link": "tcp", "cells": [cell], "stream": [{"bytes_per_s": 3e9}],
                "reads": {"multi": {"part_size": 512 << 10}}}
        row = reads({"local": 2e9, "gmblock/gmb": 2e9, "gmblock/nbd-tcp": 1e9})
        return {"overlap": {"facts": FACTS, "parts": [part]}, "neighbour": {"facts": FACTS, "alone": [
            {"triad": {"bytes_per_s": 16e9}}]}, "gmb": {"facts": FACTS, "rows": {"read-1m-d1": row, "read-1m-d8": row}}}

    def test_its_parts_bound_the_whole(self):
        found = {claim: (rate * (1 << 20) / 1e9, measured * (1 << 20) / 1e9)
                 for _, _, claim, rate, measured in model.here(self.records())}
        for claim, rate, measured in (("gmb, 1 MiB, depth 8", 2, 2), ("NBD on TCP, 1 MiB, depth 8", 2, 1),
                                      ("gmb, 1 MiB, depth 1", 2, 2), ("NBD on TCP, 1 MiB, depth 1", 1.6, 1),
                                      ("overlap off, fast disk, 1 MiB", 4 / 3, 1),
                                      ("many streams, fast disk, 1 MiB", 1.6, 1.5)):
            self.assertAlmostEqual(found[claim][0], rate, msg=claim)
            self.assertAlmostEqual(found[claim][1], measured, msg=claim)

    def test_without_a_part_there_is_no_prediction(self):
        for name in model.SOURCES:
            records = self.records()
            del records[name]
            self.assertEqual(model.here(records), [])

    def test_without_a_row_there_is_less(self):
        records = self.records()
        whole = len(model.here(records))
        del records["gmb"]["rows"]["read-1m-d1"]
        self.assertEqual(len(model.here(records)), whole - 2)
        records["overlap"]["parts"] = []
        self.assertEqual(model.here(records), [])

    def test_predictions_are_on_the_page(self):
        state = page.State(FACTS, self.folder)
        text = page.markdown(self.records(), state, FACTS, self.folder, {}, False)
        self.assertIn("| the model of this machine: NBD on TCP, 1 MiB, depth 8 | – | **1907 MB/s** | modelled | – | "
                      "measured: 954 MB/s, 50 % of it |", text)


FACTS = {"commit": "0123456789ab", "kernel": "6.1.0", "cpu": "a processor", "cpu_count": 2, "date": "2026-01-01T00:00"}


def gmb_record(**facts):
    """Reads of 1 MiB, twice as fast over gmb as over NBD on TCP."""
    ways = {"local": 4e9, "gmblock/gmb": 3e9, "gmblock/nbd-tcp": 1.5e9}
    return {"facts": {**FACTS, **facts},
            "rows": {"read-1m-d8": {way: [{"bytes_per_s": rate}, {"bytes_per_s": rate}] for way, rate in ways.items()}}}


class Pages(support.Case):
    """What session.publish() adds to the page of each bench."""

    def published(self, text, **facts):
        options = types.SimpleNamespace(json=None, table=self.folder + "/page.md", plots=self.folder + "/plot")
        record = {"facts": {**FACTS, "load_average_at_start": [0.5, 0, 0], "command": "bench/x", **facts}}
        session.publish(options, record, text, lambda: "<svg/>")
        with open(options.table, encoding="utf-8") as page_file:
            return page_file.read()

    def test_the_machine_and_the_drawing_come_behind_the_title(self):
        self.assertEqual(self.published("# Title\n\nText.\n", priority="nice 0"), (
            "# Title\n\nMachine: a processor, 2 CPUs, Linux 6.1.0, load 0.50 at the start. Priority: nice 0. Commit: 0123456789ab. "
            "Command: `bench/x`.\n\n![the medians](plot.svg)\n\nText.\n"))
        self.assertTrue(os.path.exists(self.folder + "/plot.svg"))

    def test_a_page_that_names_its_machine_does_so_once(self):
        self.assertEqual(self.published("# Title\n\nMachine: another.\n"), "# Title\n\nMachine: another.\n")


class Page(support.Case):
    def state(self, **facts):
        return page.State({**FACTS, **facts}, self.folder)

    def shown(self, figure, records, state):
        return page.lines(next(one for one in rows.FIGURES if (one.paper, one.name) == figure), records, state)

    def test_every_figure_of_the_papers_is_there_once(self):
        known = [(paper, figure["figure"]) for paper, document in values.PAPERS.items() for figure in document["figures"]]
        self.assertEqual(sorted(known), sorted((figure.paper, figure.name) for figure in rows.FIGURES))

    def test_a_figure_is_redrawn_or_says_why_not(self):
        for figure in rows.FIGURES:
            self.assertTrue(figure.parts or figure.words, figure.name)
            for name, _ in figure.parts:
                self.assertIn(name, rows.ROWS)

    def test_rows_are_benches(self):
        for name in rows.ROWS:
            self.assertTrue(os.access(os.path.join(BENCH, name), os.X_OK), name)

    def test_a_record_that_lacks_all_has_no_lines(self):
        for record in ({"facts": FACTS, "rows": {}, "parts": [], "results": []},
                       {"facts": FACTS, "rows": [], "parts": [], "results": []}):
            for figure in rows.FIGURES:
                for name, reader in figure.parts:
                    if isinstance(record["rows"], list) == (name == "push"):
                        self.assertEqual(list(reader(record)), [], (figure.name, name))

    def test_a_line_has_the_papers_value_beside_ours(self):
        line, = (one for one in self.shown(("ipdps-2007", "8a"), {"gmb": gmb_record()}, self.state())
                 if one.line.claim.startswith("sram over ram"))
        self.assertEqual((line.line.here, line.older), (2.0, False))
        self.assertEqual(page.paper_value(line.figure, line.line), (1.14, "S"))

    def test_records_of_other_sessions_are_marked(self):
        state = self.state()
        self.assertEqual(state.differs(gmb_record()), [])
        for key, other in (("kernel", "6.2.0"), ("cpu", "another"), ("commit", "ffffffffffff")):
            record = gmb_record(**{key: other})
            self.assertEqual(state.differs(record), [key])
            self.assertTrue(all(one.older for one in self.shown(("ipdps-2007", "8a"), {"gmb": record}, state)))
        record = {**gmb_record(), "parts": [{"facts": FACTS}, {"facts": {**FACTS, "kernel": "6.2.0"}}]}
        self.assertEqual(state.differs(record), ["kernel"])

    def test_a_commit_that_changes_only_pages_is_no_other(self):
        def git(*words):
            done = subprocess.run(["git", "-C", self.folder, "-c", "user.name=n", "-c", "user.email=e", *words],
                                  capture_output=True, text=True, check=True)
            return done.stdout.strip()

        def commit(name):
            path = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write("a line\n")
            git("add", "--all")
            git("commit", "--quiet", "-m", name)
            return git("rev-parse", "--short=12", "HEAD")
        git("init", "--quiet")
        for name in ("src/file.c", "include/file.h", "bench/gmb", "meson_options.txt"):
            first = commit(name)
            commit("bench/results/page.md")
            commit("bench/papers/page.py")
            self.assertEqual(self.state(commit=commit("docs/page.md")).differs(gmb_record(commit=first)), [])
            self.assertEqual(self.state(commit=commit(name)).differs(gmb_record(commit=first)), ["commit"])

    def test_what_a_record_depends_on_is_there(self):
        for name in page.MEASURED:
            self.assertTrue(os.path.exists(os.path.join(BENCH, "..", name.removeprefix(":(exclude)"))), name)

    def test_local_changes_are_another_tree(self):
        dirty = FACTS["commit"] + " with local changes"
        self.assertEqual(self.state().differs(gmb_record(commit=dirty)), ["commit"])
        self.assertEqual(self.state(commit=dirty).differs(gmb_record()), ["commit"])

    def test_the_page_names_what_is_missing(self):
        text = page.markdown({"gmb": gmb_record()}, self.state(), {**FACTS, "took": {"push": 7.5}}, self.folder,
                             {"push": "skipped: no nbdcopy"}, False)
        self.assertIn("| `push` | %g | 7.5 | – | – | – | – | skipped: no nbdcopy |" % rows.ROWS["push"].minutes, text)
        self.assertIn("Not measured: `overlap`.", text)
        for reason in model.EXCEPTED.values():
            self.assertIn(reason, text)

    def test_every_claim_is_marked(self):
        for line in page.markdown({"gmb": gmb_record()}, self.state(), FACTS, self.folder, {}, False).splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 8 and cells[1] not in ("claim", "---"):
                self.assertIn(cells[4], ("real", "paced", "modelled"), line)


if __name__ == "__main__":
    support.main()
