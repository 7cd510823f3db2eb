"""The manual pages, as their tests read them."""
import os
import re

PAGES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../docs/man")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def literal(text):
    """(what the comment before it says, its text) of each literal block."""
    for mark, block in re.findall(
            r'^(?:\.\\" ([^\n]*)\n)?\.Bd -literal[^\n]*\n(.*?)^\.Ed', text, re.M | re.S):
        yield mark, block.replace("\\e", "\\").replace("\\(ti", "~").replace("\\&", "")


def sections(page, pattern):
    """The title of each section with blocks -> its blocks."""
    found = {}
    for title, text in re.findall(
            r"^\.Sh (%s)\n(.*?)(?=^\.Sh |\Z)" % pattern, read(os.path.join(PAGES, page)), re.M | re.S):
        blocks = list(literal(text))
        if blocks:
            found[title] = blocks
    return found
