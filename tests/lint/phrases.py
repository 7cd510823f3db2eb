"""How often texts use turns of phrase that stop readers (phrases.txt), in 10,000 words of each kind of text."""
import os
import re

from tree import SOURCES, files, read

PATTERNS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "phrases.txt")
WORDS = 10000
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.S)
# A literal of fewer words is a name or a part of a sentence.
STRING_SPACES_MIN = 2


def patterns():
    with open(PATTERNS, encoding="utf-8") as lines:
        return [re.compile(line) for line in lines.read().split("\n") if line and not line.startswith("#")]


def lines_of_manual(text):
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line and not line.startswith(".")]


def lines_of_markdown(text):
    text = re.sub(r"^```.*?^```", lambda match: re.sub(r"[^\n]", "", match.group()), text, flags=re.S | re.M)
    return [(number, re.sub(r"^[-*#>|\d.\s]+", "", line)) for number, line in enumerate(text.split("\n"), 1)]


def lines_of_source(text, of_comments):
    """The lines of its comments, or its string literals."""
    found = []
    for match in COMMENT_OR_STRING.finditer(text):
        first, part = text.count("\n", 0, match.start()) + 1, match.group()
        if part[0] == "/" and of_comments:
            found += [(first + at, re.sub(r"^\s*(/\*+|\*+/?|//+)\s*|\s*\*/$", "", line))
                      for at, line in enumerate(part.split("\n"))]
        elif part[0] == '"' and not of_comments and part.count(" ") >= STRING_SPACES_MIN:
            found.append((first, part[1:-1]))
    return found


# Kind of text: where it is, the ends of its files' names, and its lines.
KINDS = {
    "manual": (["docs/man"], tuple(f".{section}" for section in range(1, 9)), lines_of_manual),
    "markdown": (["."], (".md",), lines_of_markdown),
    "comments": (["src", "include"], SOURCES, lambda text: lines_of_source(text, True)),
    "messages": (["src", "include"], SOURCES, lambda text: lines_of_source(text, False)),
}


def matches(root, kind):
    """The places in a kind of text as file, line and phrase, and the number of its words."""
    tops, suffixes, lines = KINDS[kind]
    compiled, found, words = patterns(), [], 0
    for path in files(root, tops, suffixes):
        if "results" in path.split(os.sep):
            continue
        for number, line in lines(read(root, path)):
            words += len(line.split())
            found += [(path, number, match.group()) for match in (p.search(line) for p in compiled) if match]
    return found, words


def rates(root):
    """Matches in 10,000 words, rounded up."""
    found = {}
    for kind in KINDS:
        places, words = matches(root, kind)
        if words:
            found[kind] = -(-len(places) * WORDS // words)
    return found


def worst(root, kind):
    """The files with most matches."""
    counts = {}
    for path, _, _ in matches(root, kind)[0]:
        counts[path] = counts.get(path, 0) + 1
    return ", ".join(f"{path} {count}" for path, count in sorted(counts.items(), key=lambda item: -item[1])[:5])
