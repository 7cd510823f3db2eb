"""Raw samples on disk, and their medians as one small table.

What: write() and read() keep a benchmark's record as JSON, compressed where the name ends in .xz;
medians() is a CSV text with a line for each group of samples and a column for each figure.
Ownership: plain data. Errors: OSError; ValueError for what is no such file.
"""

import csv
import io
import json
import lzma
import os
import statistics

XZ = ".xz"
# Lists of them are rows, each with a name of its own; all other lists of objects are samples.
ROWS = {"results", "rows", "cells", "blocks", "parts", "peers", "walks", "ciphers", "lookups", "rules", "floods", "cases"}
# No samples, or what is made of samples that are here, too.
LEFT_OUT = {"facts", "summary", "proof", "profile", "entered", "ratios", "targets", "warnings", "verdicts",
            "states_us"}


def write(path, record):
    """Whole or not at all, as session.write_text()."""
    if path.endswith(XZ):
        data = lzma.compress(json.dumps(record, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME)
    else:
        data = (json.dumps(record, indent=1) + "\n").encode()
    with open(path + ".new", "wb") as out:
        out.write(data)
    os.replace(path + ".new", path)


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    try:
        return json.loads(lzma.decompress(data) if path.endswith(XZ) else data)
    except lzma.LZMAError as error:
        raise ValueError("%s: %s" % (path, error)) from error


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figures(sample, prefix=""):
    """The numbers of one sample, those of its parts with the part's name before theirs."""
    for key, value in sample.items():
        if _is_number(value):
            yield prefix + key, [value]
        elif isinstance(value, dict):
            yield from _figures(value, prefix + key + ".")
        elif isinstance(value, list) and value and all(map(_is_number, value)):
            yield prefix + key, value


def _name(row, index):
    """What tells a row from its neighbours: its texts, or else its whole numbers."""
    texts = [value for key, value in row.items()
             if isinstance(value, str) and 0 < len(value) < 60 and not key.endswith("_title")]
    numbers = ["%s=%d" % (key, value) for key, value in row.items() if _is_number(value) and isinstance(value, int)]
    return " ".join(texts or numbers) or str(index)


def _collect(groups, path, value):
    """Enters the samples at a place of a record into groups, {place: {figure: numbers}}."""
    def add(place, figures):
        group = groups.setdefault(" / ".join(part for part in place if part != "samples"), {})
        for figure, numbers in figures:
            group.setdefault(figure, []).extend(numbers)

    for key, part in value.items():
        if key in LEFT_OUT:
            continue
        if isinstance(part, dict):
            if part and all(map(_is_number, part.values())):
                add((*path, key), _figures(part))
            else:
                _collect(groups, (*path, key), part)
        elif isinstance(part, list) and part:
            if all(map(_is_number, part)):
                add((*path, key), [("value", part)])
            elif all(isinstance(one, dict) for one in part):
                for index, one in enumerate(part):
                    if key in ROWS:
                        _collect(groups, (*path, _name(one, index)), one)
                    else:
                        add((*path, key), _figures(one))
        elif _is_number(part) and path and "%s=%s" % (key, part) not in path[-1].split():
            add(path, [(key, [part])])


def medians(record):
    groups = {}
    _collect(groups, (), record)
    columns = list(dict.fromkeys(figure for group in groups.values() for figure in group))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["median of", "samples", *columns])
    for place, group in groups.items():
        lines.writerow([place, max(map(len, group.values())), *(
            "%.5g" % statistics.median(group[column]) if column in group else "" for column in columns)])
    return out.getvalue()
