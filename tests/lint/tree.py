"""The files of a source tree, for the checks."""
import os
import re

SOURCES = (".c", ".h", ".cc", ".hh")
NOT_SOURCE = {".git", ".ci-cache", "__pycache__"}


def files(root, tops, suffixes):
    """Paths relative to root, sorted, below the given folders, with one of the suffixes."""
    found = []
    for top in tops:
        for folder, names, entries in os.walk(os.path.join(root, top)):
            names[:] = [n for n in names if n not in NOT_SOURCE and not n.startswith("build")]
            found.extend(os.path.relpath(os.path.join(folder, entry), root)
                         for entry in entries if entry.endswith(suffixes))
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as source:
        return source.read()


def blank(match):
    """As many spaces and line feeds as the match has, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match.group())
