#!/usr/bin/python3
"""How the benchmarks judge an older program against a newer one, and how they talk to both."""
import os
import random
import sys
import types
import unittest.mock

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
from harness import against, spellings  # noqa: E402 (the path has to be set first)

# A program that knows no spelling of today's: it refuses them, and serves what they were called.
OLDER = r"""#!/bin/sh
for word; do
	case $word in
	*mode=direct*|*overlap=*) exit 2 ;;
	esac
done
exec "%s" "$@"
"""


class Interval(support.Case):
    def test_few_values_have_none(self):
        for count in range(6):
            self.assertIsNone(against.interval(list(range(count))))

    def test_ranks_are_those_of_the_sign_test(self):
        # From a table of the sign test: n, and the rank from either end, 95 % two-sided.
        for count, rank in ((6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (40, 14)):
            values = list(range(1, count + 1))
            random.Random(count).shuffle(values)
            self.assertEqual(against.interval(values), (rank, count + 1 - rank), count)

    def test_it_holds_the_median_of_what_is_drawn_from(self):
        chooser = random.Random(7)
        found = 0
        for _ in range(2000):
            low, high = against.interval([chooser.expovariate(1) for _ in range(15)])
            found += low <= 0.6931 <= high
        self.assertGreaterEqual(found, 1900)
        self.assertLess(found, 1960)


class Verdicts(support.Case):
    def judge(self, rates, cpus=None):
        """The judged row of pairs whose ratios these are."""
        program = support.program()
        found = against.Comparison(types.SimpleNamespace(against=program, gmblock=program))
        for rate, cpu in zip(rates, cpus or [1] * len(rates)):
            found.add("row", "a row", "IOPS", {"old": {"rate": 1000, "cpu": 4},
                                               "new": {"rate": 1000 * rate, "cpu": 4 * cpu}})
        row, = found.judged()
        return row, found

    def test_a_row_is_slower_only_if_the_whole_interval_is(self):
        row, found = self.judge([0.90] * 12 + [1.0] * 3)
        self.assertEqual((row["rate_ok"], row["cpu_ok"]), (False, True))
        self.assertEqual(found.missed(), ["row"])
        row, found = self.judge([0.90] * 11 + [1.0] * 4)  # the fourth from above is the upper end
        self.assertEqual((row["rate_ok"], row["rate_ratio"]["interval"]), (True, (0.9, 1.0)))
        self.assertEqual(found.missed(), [])
        self.assertTrue(self.judge([0.97] * 15)[0]["rate_ok"])
        self.assertFalse(self.judge([0.969] * 15)[0]["rate_ok"])

    def test_processor_time_is_too_high_only_if_the_whole_interval_is(self):
        self.assertFalse(self.judge([1] * 15, [1.04] * 15)[0]["cpu_ok"])
        self.assertTrue(self.judge([1] * 15, [1.03] * 15)[0]["cpu_ok"])
        self.assertTrue(self.judge([1] * 15, [1.2] * 11 + [1.0] * 4)[0]["cpu_ok"])
        self.assertEqual(self.judge([1] * 15, [1.04] * 15)[1].missed(), ["row"])

    def test_few_pairs_give_no_verdict(self):
        row, found = self.judge([0.5] * 5, [2] * 5)
        self.assertEqual((row["rate_ok"], row["cpu_ok"], found.missed()), (None, None, []))

    def test_the_table_has_ratios_and_marks(self):
        _, found = self.judge([0.5] * 15, [2] * 15)
        facts = {side: {"version": "gmblock", "commit": "1"} for side in against.SIDES}
        facts.update(cpu="one", cpu_count=1, kernel="6", command="bench")
        text = found.markdown("Rows", "How.", facts)
        self.assertIn("| a row | 15 | IOPS | 1000 | 500 | 0.500 (0.500–0.500) | ✗ | 4 | 8 | "
                      "2.000 (2.000–2.000) | ✗ |", text)
        self.assertIn("1 rows: 1 slower, 1 with too much processor time.", text)

    def test_who_runs_first_alternates(self):
        self.assertEqual([against.order(turn)[0] for turn in range(4)], ["old", "new"] * 2)


class Spellings(support.Case):
    def test_todays_program_is_asked_with_todays_words(self):
        keys = "readonly,mode=direct,parts=64K"
        self.assertEqual(spellings.spelled(support.program(), keys), keys)

    def test_an_older_program_is_asked_with_its_own(self):
        path = self.make_file("older", OLDER % support.program())
        os.chmod(path, 0o755)
        with unittest.mock.patch.object(
                spellings, "SPELLINGS",
                [("mode=direct", "pace=1G"), ("overlap=", "description=")]):
            self.assertEqual(spellings.spelled(path, "readonly,mode=direct,overlap=off"),
                             "readonly,pace=1G,description=off")

    def test_what_no_spelling_helps_stays_for_the_program_to_refuse(self):
        self.assertEqual(spellings.spelled(support.program(), "overlap=nonsense"),
                         "overlap=nonsense")


if __name__ == "__main__":
    support.main()
