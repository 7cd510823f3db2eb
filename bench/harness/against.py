"""Two gmblock programs compared in pairs: an older one and the one to test.

What: Comparison collects, for each row, pairs of samples that were taken next to each other, and
judges them: the median of the paired ratios new/old with an interval that holds the true median with
at least 95 % confidence. The interval is that of the sign test: it lies between two of the ratios
themselves, assumes nothing about how they are spread, and needs at least six pairs.
Ownership: plain data. Errors: none; without an interval there is no verdict.
"""

import math
import os
import statistics
import sys

from . import report, session

RATE_FLOOR = 0.97  # slower: the whole interval of the rate ratio lies below it
CPU_CEILING = 1.03  # too much processor time: the whole interval lies above it
CONFIDENCE = 0.95
SIDES = ("old", "new")
MARKS = {True: "✓", False: "✗", None: "–"}


def interval(values):
    """(low, high) around the median, or None for too few values. The median of what the values are
    drawn from lies below the k-th smallest of n with a probability of P(at most k - 1 heads in n
    throws of a coin)."""
    count = len(values)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += math.comb(count, rank) / 2 ** count
        if 2 * outside > 1 - CONFIDENCE:
            break
        rank += 1
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[count - rank]) if rank > 0 else None


def order(turn):
    """Which side runs first alternates from pair to pair."""
    return SIDES if turn % 2 == 0 else SIDES[::-1]


def say(what, turn, pair):
    """One pair, to standard error as it is measured."""
    print("%s pair %d: %.4g, %.4g; new/old %.3f, CPU %s" % (
        what, turn + 1, pair["old"]["rate"], pair["new"]["rate"], pair["rate_ratio"],
        "–" if pair["cpu_ratio"] is None else "%.3f" % pair["cpu_ratio"]),
        file=sys.stderr, flush=True)


class Comparison:
    """rate and cpu: the names of these figures in the samples; cpu is per request."""

    def __init__(self, options, cpu_title="server CPU, µs per request"):
        self.programs = {"old": options.against, "new": options.gmblock}
        session.need_programs(*self.programs.values())
        self.cpu_title = cpu_title
        self.rows = {}

    def add(self, name, title, unit, pair, rate_ratio=None):
        """pair: {"old": sample, "new": sample}, each with "rate" in that unit and "cpu". rate_ratio
        overrides the ratio of the rates."""
        row = self.rows.setdefault(name, {"row": name, "title": title, "unit": unit, "pairs": []})
        old, new = pair["old"], pair["new"]
        row["pairs"].append({
            **pair,
            "rate_ratio": rate_ratio or new["rate"] / old["rate"],
            "cpu_ratio": new["cpu"] / old["cpu"] if old["cpu"] > 0 else None,
        })
        return row["pairs"][-1]

    def judged(self):
        return [self._judge(row) for row in self.rows.values()]

    def _judge(self, row):
        pairs = row["pairs"]
        found = {key: row[key] for key in ("row", "title", "unit")}
        for side in SIDES:
            for key in ("rate", "cpu"):
                found["%s_%s" % (side, key)] = statistics.median(pair[side][key] for pair in pairs)
        for key in ("rate_ratio", "cpu_ratio"):
            values = [pair[key] for pair in pairs if pair[key] is not None]
            found[key] = {"median": statistics.median(values) if values else None,
                          "interval": interval(values), "pairs": len(values)}
        rate, cpu = found["rate_ratio"]["interval"], found["cpu_ratio"]["interval"]
        found["rate_ok"] = rate[1] >= RATE_FLOOR if rate else None
        found["cpu_ok"] = cpu[0] <= CPU_CEILING if cpu else None
        return found

    def missed(self):
        return [row["row"] for row in self.judged() if False in (row["rate_ok"], row["cpu_ok"])]

    def markdown(self, title, how, facts):
        rows = self.judged()
        counts = [sum(row[key] is False for row in rows) for key in ("rate_ok", "cpu_ok")]
        lines = [
            "# %s: new against old" % title, "", how, "",
            "Ratios are medians of the ratios of the pairs, new/old, with their 95 %% intervals (sign "
            "test). A row is slower (✗) only if the whole interval of its rate lies below %g; its "
            "processor time is too high only if the whole interval lies above %g. Fewer than six "
            "pairs give no interval and no verdict (–)." % (RATE_FLOOR, CPU_CEILING), "",
            "Machine: %(cpu)s, %(cpu_count)d CPUs, Linux %(kernel)s. Command: `%(command)s`." % facts,
            "", *("- %s: %s, commit %s" % (side, facts[side]["version"], facts[side]["commit"])
                  for side in SIDES), "",
            "%d rows: %d slower, %d with too much processor time." % (len(rows), *counts), "",
            "| work | pairs | unit | old | new | rate, new/old | | %s, old | new | new/old | |"
            % self.cpu_title, "|---|---:|---|---:|---:|---:|---|---:|---:|---:|---|"]
        lines += ["| %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |" % (
            row["title"], row["rate_ratio"]["pairs"], row["unit"],
            "%.4g" % row["old_rate"], "%.4g" % row["new_rate"], _ratio(row["rate_ratio"]),
            MARKS[row["rate_ok"]], "%.4g" % row["old_cpu"], "%.4g" % row["new_cpu"],
            _ratio(row["cpu_ratio"]), MARKS[row["cpu_ok"]]) for row in rows]
        return "\n".join(lines)

    def publish(self, options, title, how, **more):
        """Writes the results; the exit status."""
        facts = session.facts(pairs=options.pairs, **more, **{
            side: {"version": report.version_of(program),
                   "commit": report.commit_of(os.path.dirname(os.path.abspath(program)))}
            for side, program in self.programs.items()})
        record = {"facts": facts, "rows": [
            {**judged, "pairs": row["pairs"]}
            for judged, row in zip(self.judged(), self.rows.values())]}
        session.publish(options, record, self.markdown(title, how, facts))
        return 1 if options.check and self.missed() else 0


def _ratio(found):
    if found["median"] is None:
        return "–"
    if found["interval"] is None:
        return "%.3f" % found["median"]
    return "%.3f (%.3f–%.3f)" % (found["median"], *found["interval"])
