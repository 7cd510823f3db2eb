"""A counter is a member of a struct, an entry of a table and an increment: nothing else names it.

The check of lint.py that looks at what prints counters, and at the manual pages whose lists are made from
the tables (scripts/manual-counters).
"""
import re

from tree import blank, files, read

TABLE = re.compile(r"^static const struct counter (\w+)\[\] = \{\n(.*?)^\};", re.M | re.S)
ENTRY = re.compile(r"\b([A-Z][A-Z_]*)\(((?:[^()\"]|\"(?:\\.|[^\"\\])*\")*)\)", re.S)
STRING = re.compile(r"\"((?:\\.|[^\"\\])*)\"")
# Macros whose first argument is the type of the struct, and the member second.
WITH_TYPE = ("COUNTER", "STORE_COUNTER")
PRINTERS = ["src/server/observe", "src/tools", "src/cli"]
PRINTER = re.compile(r"/(metrics|stats|summary|top)\.c$")
PAGES = ["docs/man/gmblock-stats-json.5", "docs/man/gmblock-metrics.7"]

# Words that are something else there, too.
OTHERWISE = {
    "bytes": "a unit",
    "bytes_per_second": "a limit of a rule for identities",
    "connections": "a column of top, and the list of a client's members",
    "early": "the page says when it is null",
    "errors": "a column",
    "requests": "a column, and an order of top",
    "requests_per_second": "a limit of a rule for identities",
    "size": "a column",
    "started": "decides what is shown of an export",
}


def entries(text):
    """(name, metric or None) of each entry of the tables in a file."""
    for table in TABLE.finditer(text):
        for entry in ENTRY.finditer(table.group(2)):
            arguments = entry.group(2).split(",")
            member = arguments[1 if entry.group(1) in WITH_TYPE else 0].strip()
            first = STRING.search(entry.group(2))
            metric = re.search(r"\.metric = \"(\w+)\"", entry.group(2))
            # The first string is the name, or the help of one that is named like its member.
            yield (first.group(1) if first and re.fullmatch(r"[a-z0-9_]+", first.group(1)) else member,
                   metric.group(1) if metric else None)


def check_counters(options):
    """No counter is named but in its table."""
    found = [entry for path in files(options.root, ["src"], (".c",))
             for entry in entries(read(options.root, path))]
    names = {name for name, _ in found} - set(OTHERWISE)
    metrics = {metric for _, metric in found if metric} - set(OTHERWISE)
    for path in files(options.root, PRINTERS, (".c",)):
        if PRINTER.search(path):
            text = TABLE.sub(blank, read(options.root, path))
            yield from again(path, text, STRING, names | metrics)
    for path in files(options.root, ["docs/man"], (".1", ".5", ".7")):
        if path in PAGES:
            text = read(options.root, path)
            yield from again(path, text, re.compile(r"(?<=\.Li )(\w+)|(?<=\.It Li )(\w+)"), names)
            yield from again(path, text, re.compile(r"\.It Li gmblock_(\w+?)(?:_total)?\b(?!_)"), metrics)


def again(path, text, pattern, words):
    for match in pattern.finditer(text):
        word = next(filter(None, match.groups()), "")
        if word in words:
            yield path, text.count("\n", 0, match.start()) + 1, f"{word}: a counter is named in its table only"


CHECKS = {"counters": check_counters}
