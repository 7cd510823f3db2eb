"""Numbers that may only fall: limits.txt has each with the reason for it.

The checks of lint.py that compare the tree with these numbers. A finding names the line of limits.txt to
change; a number that rises comes with a new reason. A smaller number than the limit is no finding, so that
changes made side by side do not edit the same line: `lint.py --lower` writes lower numbers.
"""
import collections
import os
import re

import phrases
from tree import SOURCES, blank, files, read

FILE = os.path.join("tests", "lint", "limits.txt")
NUMBERED = ("code", "keys", "shared-names", "walk", "phrases")
NAMED = ("short-header", "long-file")

# Limits of code are multiples of it, so that a small fix does not need a new one.
CODE_STEP = 50
HEADER_LINES_MIN = 40
LONG_LINES_MIN = 900
PAGE = os.path.join("docs", "man", "gmblock-serve.1")

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
NO_CODE = re.compile(r"[\s{}();,]*")
STATIC = re.compile(r"^static\s+(?:inline\s+)?(?:const\s+)?[A-Za-z_][\w\s*]*?[\s*]([A-Za-z_]\w*)\s*\(", re.M)
# Options and keys, as the manual page has them: `.It Fl l , -listen Ar uri`, `.It Cm rate Ns = ...`.
OPTION = re.compile(r"^\.It Fl (?:\w , )?-([\w-]+)|^\.It Cm ([\w-]+) Ns (?:=|Op =)|^\.It Cm ([\w-]+)=", re.M)
# What does not count as an option's key.
REPORTS = tuple(os.path.join("src", *folder) + os.sep for folder in (
    ("server", "observe"), ("tools",), ("lab",), ("sim",), ("sockets",), ("clan",), ("fi",), ("omniorb",)))
JSON_LINE = re.compile(r"^.*\bjson_.*$", re.M)


class Mistake(Exception):
    """A line of limits.txt that cannot be used."""

    def __init__(self, number, text):
        super().__init__(text)
        self.number = number


def parse(text):
    """For each kind the number, or None, and the line of each name."""
    found = {kind: {} for kind in NUMBERED + NAMED}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        kind, fields = words[0], 3 if words[0] in NUMBERED else 2
        if kind not in found:
            raise Mistake(number, f"{kind}: no such kind of limit")
        if len(words) <= fields:
            raise Mistake(number, "a limit has a reason")
        if kind in NUMBERED and not words[2].isdigit():
            raise Mistake(number, f"{words[2]}: not a number")
        if words[1] in found[kind]:
            raise Mistake(number, f"{kind} {words[1]} stands twice")
        found[kind][words[1]] = (int(words[2]) if kind in NUMBERED else None, number)
    return found


def limits(root):
    return parse(read(root, FILE))


def code_lines(text):
    """Lines without blank ones, comments, lone braces and includes."""
    text = COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    return sum(1 for line in text.split("\n")
               if not NO_CODE.fullmatch(line) and not line.lstrip().startswith("#include"))


def code_of(root):
    """Code lines of each folder of src, without the folders in it."""
    found = collections.Counter()
    for path in files(root, ["src"], SOURCES):
        found[os.path.dirname(path)] += code_lines(read(root, path))
    return found


def shared_names(root):
    """The names that more than one file gives to a static function, with the files."""
    found = collections.defaultdict(set)
    for path in files(root, ["src"], SOURCES):
        for name in STATIC.findall(COMMENT.sub(blank, read(root, path))):
            found[name].add(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def key_places(root):
    """For each option and key of the manual page of `gmblock serve` the string literals that are it, or
    begin with it and a `=`, each as file and line. Members of JSON documents have the same names, so
    folders that only report or read reports do not count, nor do lines that make or read JSON."""
    page = os.path.join(root, PAGE)
    keys = {next(filter(None, found)) for found in OPTION.findall(read(root, PAGE))} if os.path.exists(page) else set()
    literal = re.compile(r'"(?:--)?([a-z][a-z0-9-]*)(?:=[^"\n]*)?"')
    found = {key: [] for key in keys}
    for path in files(root, ["src"], SOURCES):
        if path.startswith(REPORTS):
            continue
        text = JSON_LINE.sub(blank, COMMENT.sub(blank, read(root, path)))
        for match in literal.finditer(text):
            if match.group(1) in found:
                found[match.group(1)].append((path, text.count("\n", 0, match.start()) + 1))
    return found


def keys_beyond_table(root):
    """How many literals there are beside one for each key, which its table needs."""
    return sum(len(places) - 1 for places in key_places(root).values() if places)


# The numbers of today, but for those that a program has to run for.
MEASURED = {
    "code": code_of,
    "keys": lambda root: {"src": keys_beyond_table(root)},
    "shared-names": lambda root: {"src": len(shared_names(root))},
    "phrases": phrases.rates,
}


def higher(root, kind, explain):
    """The numbers of a kind that are above their limits, or have none."""
    known, today = limits(root)[kind], MEASURED[kind](root)
    for name, number in sorted(today.items()):
        limit, line = known.get(name, (None, 1))
        if limit is None:
            yield FILE, 1, f"{kind} {name}: {number}, and no limit: add a line with the reason"
        elif number > limit:
            yield FILE, line, f"{kind} {name}: {number}, more than {limit}: {explain(name)}"
    for name, (_, line) in sorted(known.items()):
        if name not in today:
            yield FILE, line, f"{kind} {name}: there is none any more"


def mistakes_found(check):
    def checked(options):
        try:
            yield from check(options)
        except Mistake as mistake:
            yield FILE, mistake.number, str(mistake)
    checked.__doc__ = check.__doc__
    return checked


@mistakes_found
def check_code(options):
    """No folder of src has more lines of code than its limit."""
    yield from higher(options.root, "code", lambda name: "remove code, or raise the limit and say for what")


@mistakes_found
def check_keys(options):
    """An option's key stands in its table only."""
    def most(_):
        places = sorted(key_places(options.root).items(), key=lambda item: -len(item[1]))
        return "name a key in its table only; the most: " + ", ".join(
            f"{key} {len(found)}" for key, found in places[:10])
    yield from higher(options.root, "keys", most)


@mistakes_found
def check_names(options):
    """Static functions have names of their own, which profilers and debuggers can tell apart."""
    def which(_):
        return "; ".join(f"{name} in {', '.join(sorted(paths))}"
                         for name, paths in sorted(shared_names(options.root).items()))
    yield from higher(options.root, "shared-names", which)


@mistakes_found
def check_phrases(options):
    """No kind of text has more turns of phrase that stop readers (phrases.txt) than its limit."""
    yield from higher(options.root, "phrases", lambda kind:
                      f"rewrite these sentences from their facts; most are in {phrases.worst(options.root, kind)}")


@mistakes_found
def check_sizes(options):
    """Headers too short to be a file of their own and files that are nearly too long have a reason."""
    known = limits(options.root)
    found = {kind: {} for kind in NAMED}
    for path in files(options.root, ["src"], SOURCES):
        lines = read(options.root, path).count("\n")
        if path.endswith((".h", ".hh")) and lines < HEADER_LINES_MIN:
            found["short-header"][path] = f"{lines} lines, fewer than {HEADER_LINES_MIN}"
        elif lines > LONG_LINES_MIN:
            found["long-file"][path] = f"{lines} lines, more than {LONG_LINES_MIN}"
    for kind in NAMED:
        for path in sorted(found[kind].keys() - known[kind].keys()):
            yield path, 1, f"{found[kind][path]}: {FILE} has no reason for it"
        for path in sorted(known[kind].keys() - found[kind].keys()):
            yield FILE, known[kind][path][1], f"{kind} {path}: there is none any more"


CHECKS = {"code": check_code, "keys": check_keys, "names": check_names, "sizes": check_sizes,
          "phrases": check_phrases}


def lower(root):
    """Writes the numbers of today over those that are higher; of code, the next multiple of CODE_STEP."""
    today, known = {kind: measure(root) for kind, measure in MEASURED.items()}, limits(root)
    today["code"] = {name: -(-number // CODE_STEP) * CODE_STEP for name, number in today["code"].items()}
    lines = read(root, FILE).splitlines(keepends=True)
    for kind, numbers in today.items():
        for name, number in numbers.items():
            limit, line = known[kind].get(name, (None, None))
            if limit is not None and number < limit:
                lines[line - 1] = re.sub(rf"^(\S+\s+\S+\s+){limit}\b", rf"\g<1>{number}", lines[line - 1])
    with open(os.path.join(root, FILE), "w", encoding="utf-8") as out:
        out.writelines(lines)
