"""The page of bench/paper: the papers' values beside ours, figure by figure.

What: State compares where a record was made with this machine; lines() makes the lines of a figure; markdown(),
drawing() and record() are views of all of them.
Errors: none; a row without a record says so.
"""

import os
import subprocess
from collections import Counter, namedtuple

from harness import plots

from . import model, readers, rows, values

# What a record depends on: not on pages, and not on what bench/paper makes of it.
MEASURED = ("src", "include", "bench", "meson.build", "meson_options.txt", ":(exclude)bench/results",
            ":(exclude)bench/README.md", ":(exclude)bench/paper", ":(exclude)bench/papers")
OLDER = "†"
Shown = namedtuple("Shown", "figure line older")


class State:
    """Where records come from. facts: those of this machine and tree; results: the folder."""

    def __init__(self, facts, top):
        self._facts, self._top, self._same = facts, top, {}

    def _same_commit(self, commit):
        """Nothing that is measured differs; results and pages may."""
        if commit == self._facts["commit"]:
            return True
        if commit not in self._same:
            # What local changes are is not known.
            if "local changes" in commit + self._facts["commit"]:
                self._same[commit] = False
            else:
                done = subprocess.run(["git", "-C", self._top, "diff", "--quiet", commit, "HEAD", "--", *MEASURED],
                                      stdin=subprocess.DEVNULL, capture_output=True, check=False)
                self._same[commit] = done.returncode == 0
        return self._same[commit]

    def differs(self, record):
        """What makes a record one of another session, in words: commit, kernel, processor."""
        found = []
        for facts in _all_facts(record):
            for key, other in (("commit", not self._same_commit(facts["commit"])),
                               ("kernel", facts["kernel"] != self._facts["kernel"]),
                               ("cpu", facts["cpu"] != self._facts["cpu"])):
                if other and key not in found:
                    found.append(key)
        return found


def _all_facts(record):
    """A record that was made in several sessions has facts for its parts, too."""
    parts = [part["facts"] for part in record.get("parts", []) if isinstance(part, dict) and "facts" in part]
    return parts or [record["facts"]]


def lines(figure, records, state):
    """[Shown], without those whose record is missing."""
    found = []
    for name, reader in figure.parts:
        record = records.get(name)
        if record is not None:
            older = bool(state.differs(record))
            found += [Shown(figure, line, older) for line in reader(record)]
    return found


def predicted(figure):
    """[Shown] of the model of the paper's machine."""
    found = []
    for (paper, name, key), rate in model.PREDICTIONS.items():
        if (paper, name) == (figure.paper, figure.name):
            off = 100 * (rate / values.value(paper, name, key) - 1)
            found.append(Shown(figure, readers.Line("the model of the paper's machine: " + key, key, rate, "MB/s",
                                                    readers.MODELLED, None, "%+.0f %%" % off), False))
    return found


def possible(figure, records, state):
    """[Shown] of the model of this machine: what is measured is explained by its parts, or by how much it is not."""
    older = any(state.differs(records[name]) for name in model.SOURCES if name in records)
    return [Shown(figure, readers.Line("the model of this machine: " + claim, None, rate, "MB/s", readers.MODELLED, None,
                                       "measured: %.0f MB/s, %.0f %% of it" % (measured, 100 * measured / rate)), older)
            for paper, name, claim, rate, measured in model.here(records) if (paper, name) == (figure.paper, figure.name)]


def bound(line):
    """What no record shows is unknown."""
    return line.bound or ("–" if line.kind == readers.MODELLED else "unknown")


def paper_value(figure, line):
    """(the value or None, its mark)"""
    if isinstance(line.paper, str):
        entry = values.entry(figure.paper, figure.name, line.paper)
        return entry["value"], entry["mark"]
    return line.paper, "D"


def number(value, unit):
    if value is None:
        return "–"
    text = "%.0f" % value if value >= 1000 else "%.3g" % value if value >= 0.01 or value == 0 else "%.3f" % value
    return text if unit == "times" else "%s %s" % (text, unit)


def _given(figure):
    """The papers' values of a figure, with pages and marks."""
    texts = []
    for entry in figure["values"]:
        more = [entry["mark"]]
        if "page" in entry:
            more.append("p. " + entry["page"])
        if "note" in entry:
            more.append(entry["note"])
        texts.append("%s **%s** (%s)" % (entry["key"], number(entry["value"], entry["unit"]) +
                                         ("×" if entry["unit"] == "times" else ""), ", ".join(more)))
    return texts


def _figure_text(figure, records, state, results):
    data = values.figure(figure.paper, figure.name)
    page = data["page"] if data["page"].startswith("§") else "p. " + data["page"]
    out = ["### %s, %s" % (figure.name[0].upper() + figure.name[1:] if not figure.name[0].isdigit()
                           else "Figure " + figure.name, page), "", data["title"][0].upper() + data["title"][1:] + ".", ""]
    given = _given(data)
    if given:
        out += ["In the paper: " + " · ".join(given) + ".", ""]
    shown = lines(figure, records, state) + predicted(figure) + possible(figure, records, state)
    if shown:
        out += ["| claim | paper | here | | bound here | what differs |", "|---|---|---|---|---|---|"]
        for one in shown:
            line = one.line
            value, mark = paper_value(figure, line)
            paper = "–" if value is None else number(value, line.unit) + (" (%s)" % mark if mark != "S" else "")
            out.append("| %s | %s | **%s**%s | %s | %s | %s |" % (
                line.claim, paper, number(line.here, line.unit), OLDER if one.older else "", line.kind,
                bound(line), line.words or "–"))
        out.append("")
    missing = sorted({name for name, _ in figure.parts if name not in records})
    if missing:
        out += ["Not measured: " + ", ".join("`%s`" % name for name in missing) + ".", ""]
    if figure.words:
        out += [figure.words, ""]
    if figure.drawing and lines(figure, records, state) and os.path.exists(os.path.join(results, figure.drawing)):
        out += ["![%s](%s)" % (data["title"], figure.drawing), ""]
    return out


def _record_lines(records, state, skipped, took):
    out = ["A full run takes %g minutes on an idle machine of two processors." % sum(
        row.minutes for row in rows.ROWS.values()), "",
        "| row | minutes | took here | commit | kernel | processor | measured | state |", "|---|---|---|---|---|---|---|---|"]
    for name, row in rows.ROWS.items():
        record = records.get(name)
        minutes = "| `%s` | %g | %s |" % (name, row.minutes, took.get(name, "–"))
        if record is None:
            out.append("%s – | – | – | – | %s |" % (minutes, skipped.get(name, "not measured")))
            continue
        facts = _all_facts(record)[0]
        differs = state.differs(record)
        words = "another " + ", ".join(differs) + " " + OLDER if differs else "of this commit, kernel and processor"
        if name in skipped:
            words += "; " + skipped[name]
        out.append("%s %s | %s | %s | %s | %s |" % (minutes, facts["commit"], facts["kernel"], facts["cpu"], facts["date"][:10],
                                                  words))
    return out


INTRODUCTION = """\
# The papers' evaluation

What [bench/paper](../README.md#benchpaper) finds of the papers' figures and tables on this machine. The hardware
is another one, so ratios are compared, and absolute values only where a claim is one.

- **real**: measured. **paced**: a real server and client, with a disk or a network that is slowed down to a known rate.
  **modelled**: computed by [model.py](../papers/model.py) from the parts of a machine.
- **S**: stated in the paper. **C**: computed by the paper, a bound. **D**: derived by us from such values.
  MB are 2^20 bytes.
- **modelled** lines have in the column *here* what the model predicts for the paper's machine, or for this one from the
  rates of its parts. None of its parameters is fitted to such a value.
- **bound here**: what this machine permits at most; *unknown* where no part of the machine that is measured alone bounds it.
- **{older}**: measured at another commit, with another kernel or on another processor; such rows are measured again
  by the next run.

Machine: {cpu}, {cpu_count} CPUs, Linux {kernel}. Commit: {commit}.
"""


def markdown(records, state, facts, results, skipped, drawn):
    out = [INTRODUCTION.format(older=OLDER, **facts)]
    if drawn:
        out += ["![the papers' factors and ours](paper.svg)", ""]
    out += ["## Where the model fails", "",
            "The model predicts the papers' headline rates within %.0f %%, except:" % (100 * model.WITHIN), ""]
    for name, reason in model.EXCEPTED.items():
        out.append("- %s, figure %s, %s: %.0f MB/s, the model has %.0f: %s." % (
            values.PAPERS[name[0]]["title"], *name[1:], values.value(*name), model.PREDICTIONS[name], reason))
    out += [""]
    for paper, document in values.PAPERS.items():
        out += ["## %s (%d)" % (document["title"], document["year"]), "", "Pages: %s." % document["pages"], ""]
        for figure in rows.FIGURES:
            if figure.paper == paper:
                out += _figure_text(figure, records, state, results)
    return "\n".join(out + ["## Records", "", *_record_lines(records, state, skipped, facts.get("took", {}))]) + "\n"


def claims(records, state):
    """[Shown] that have a factor in the paper and one here."""
    return [one for figure in rows.FIGURES for one in lines(figure, records, state)
            if one.line.unit == "times" and one.line.here and paper_value(figure, one.line)[0]]


def record(records, state, facts):
    """For the JSON: every line as numbers."""
    return {"facts": facts, "rows": [
        {"row": "%s %s, %d" % (figure.paper, figure.name, count), "claim_title": one.line.claim,
         "paper": paper_value(figure, one.line)[0], "here": one.line.here, "unit": one.line.unit, "kind": one.line.kind,
         "older": one.older}
        for figure in rows.FIGURES
        for count, one in enumerate(lines(figure, records, state) + predicted(figure) + possible(figure, records, state), 1)]}


PAPER_COLOUR, OUR_COLOURS = "#bbbbbb", {"real": "#1d5fa8", "paced": "#2e8540"}


# Title, and which figures a panel has.
PANELS = (
    ("Thesis, chapter 3", lambda figure: figure.paper == "thesis" and figure.name.startswith("3")),
    ("Thesis, chapter 4", lambda figure: figure.paper == "thesis" and figure.name.startswith("4")),
    ("Thesis, chapter 5", lambda figure: figure.paper == "thesis" and figure.name.startswith("5")),
    ("IPDPS 2007", lambda figure: figure.paper == "ipdps-2007"),
    ("Synchronized sends", lambda figure: figure.paper == "synchronized-sends"),
    ("CLAN", lambda figure: figure.paper == "clan"),
)


def _claims_panel(title, shown):
    bars = []
    for one in shown:
        value = paper_value(one.figure, one.line)[0]
        bars += [(value, value, value, PAPER_COLOUR), (*[one.line.here] * 3, OUR_COLOURS[one.line.kind])]
    counts = Counter(one.figure.name for one in shown)
    names = " · ".join(name if count == 1 else "%s (%d)" % (name, count) for name, count in counts.items())
    return lambda x, y: plots.bar_panel(title, bars, x, y, "figure: " + names, "times")


def drawing(records, state):
    """The papers' factors beside ours; None without any."""
    known = claims(records, state)
    panels = []
    for title, belongs in PANELS:
        shown = [one for one in known if belongs(one.figure)]
        if shown:
            panels.append(_claims_panel(title, shown))
    if not panels:
        return None
    return plots.document("The papers' factors, and what gmblock reaches on one machine", "Each pair of bars is a claim "
                          "of bench/results/paper.md, in its order.",
                          [("the paper", PAPER_COLOUR, None), ("here, real", OUR_COLOURS["real"], None),
                           ("here, paced disk or network", OUR_COLOURS["paced"], None)], panels)
