"""The command lines of the benchmarks: shared options, checked numbers, one-line errors.

What: Parser() is argparse's; it reports an error in one line, with status 2. add_shared() adds the
options that several benchmarks have, read() fills in the defaults of a full or a quick run.
whole(), seconds() and size() make types for arguments.
Ownership: plain values.
Errors: argparse.ArgumentTypeError, which argparse takes.
"""

import argparse
import math
import os

UNITS = {"K": 10, "M": 20, "G": 30}
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def _number(kind, text):
    """None if the text is not a number."""
    try:
        return kind(text)
    except ValueError:
        return None


def whole(least):
    """A whole number of at least that."""
    def parse(text):
        value = _number(int, text)
        if value is None or value < least:
            raise argparse.ArgumentTypeError(
                "%s is not a whole number of at least %d" % (ascii(text), least))
        return value
    return parse


def wholes(least):
    """Several of them, separated by commas."""
    def parse(text):
        return [whole(least)(part) for part in text.split(",")]
    return parse


def seconds(zero=False):
    """A time above 0, or also 0."""
    def parse(text):
        value = _number(float, text)
        if value is None or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise argparse.ArgumentTypeError("%s is not a time in seconds" % ascii(text))
        return value
    return parse


def size(least):
    """Bytes, or a number with K, M or G; at least that many MiB."""
    def parse(text):
        shift = UNITS.get(text[-1:].upper(), 0)
        value = _number(int, text[:-1] if shift else text)
        if value is None or value << shift < least << 20:
            raise argparse.ArgumentTypeError(
                "%s is not a size of at least %dM, such as 1G" % (ascii(text), least))
        return value << shift
    return parse


SHARED = {
    "rounds": {"type": whole(1), "help": "timed runs of each cell"},
    "seconds": {"type": seconds(), "help": "length of a timed run"},
    "rows": {"help": "names separated by commas (default all)"},
    "gmblock": {"metavar": "PROGRAM",
                "default": os.environ.get("GMBLOCK") or os.path.join(TOP, "build", "gmblock"),
                "help": "the program to test (default $GMBLOCK, else build/gmblock)"},
    "tools": {"metavar": "FOLDER",
              "default": os.environ.get("GMBLOCK_BENCH_TOOLS") or
              os.path.join(TOP, "build", "bench"),
              "help": "the folder of the small programs that the build makes (default build/bench)"},
    "against": {"metavar": "PROGRAM",
                "help": "compare with an older gmblock instead, in pairs and without other servers"},
    "pairs": {"type": whole(1), "help": "pairs of runs of each row with --against"},
    "json": {"metavar": "FILE", "help": "write all samples there"},
    "table": {"metavar": "FILE", "help": "write the tables there, in Markdown"},
    "plots": {"metavar": "PREFIX", "help": "write the plots to files that begin with PREFIX and end with .svg"},
    "keep": {"action": "store_true",
             "help": "take what is not run from the file that --json names"},
    "check": {"action": "store_true", "help": "exit 1 if a target is missed"},
    "quick": {"action": "store_true",
              "help": "tiny run that shows that everything works; its numbers mean nothing"},
}


class Parser(argparse.ArgumentParser):
    """full and quick: the defaults of options that have one for each kind of run."""

    def __init__(self, description, full=None, quick=None):
        super().__init__(description=description)
        self._full, self._quick = full or {}, quick or {}

    def error(self, message):
        self.exit(2, "%s: %s; see --help\n" % (self.prog, message))

    def add_shared(self, names):
        """Adds options of SHARED, named with blanks between."""
        for name in names.split():
            words = dict(SHARED[name])
            if name in self._full:
                words["help"] += " (default %g)" % self._full[name]
            self.add_argument("--" + name, **words)

    def read(self):
        options = self.parse_args()
        for key, value in (self._quick if options.quick else self._full).items():
            if getattr(options, key) is None:
                setattr(options, key, value)
        if getattr(options, "keep", False) and not options.json:
            self.error("--keep needs --json")
        return options
