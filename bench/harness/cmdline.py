"""The command lines of the benchmarks: numbers that are right, and one line about those that are not.

What: Parser() is argparse's, but what is wrong is told in one line, with status 2; whole(),
seconds() and size() make types for its arguments.
Ownership: plain values.
Errors: argparse.ArgumentTypeError, which argparse takes.
"""

import argparse
import math

UNITS = {"K": 10, "M": 20, "G": 30}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, "%s: %s; see --help\n" % (self.prog, message))


def _number(kind, text):
    """None when it is none."""
    try:
        return kind(text)
    except ValueError:
        return None


def whole(least):
    """A whole number from least on."""
    def parse(text):
        value = _number(int, text)
        if value is None or value < least:
            raise argparse.ArgumentTypeError(
                "%s is not a whole number of at least %d" % (ascii(text), least))
        return value
    return parse


def wholes(least):
    """The same several times, with commas between."""
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
    """Bytes, or a number with K, M or G; from least MiB on."""
    def parse(text):
        shift = UNITS.get(text[-1:].upper(), 0)
        value = _number(int, text[:-1] if shift else text)
        if value is None or value << shift < least << 20:
            raise argparse.ArgumentTypeError(
                "%s is not a size of at least %dM, such as 1G" % (ascii(text), least))
        return value << shift
    return parse
