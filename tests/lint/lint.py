#!/usr/bin/python3
"""Checks on the source text that neither compiler makes. One check a run:

    lint.py CHECK [--root DIR] [--cc COMPILER] [--format CLANG_FORMAT] [--mandoc MANDOC]

Exit status 0: clean. 1: at least one finding, each printed as "file:line: text". 77: the tool
the check needs is not installed. lint.py --list prints the names of the checks. lint.py --lower lowers
the numbers in limits.txt to those of today; limits.py has the checks that use it.
selftest.py shows for every check that it can fail.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import api  # noqa: E402 (no folder of compiled modules in the source tree)
import counters  # noqa: E402
import limits  # noqa: E402
import messages  # noqa: E402
import upgrade  # noqa: E402
from tree import SOURCES, blank, files, read  # noqa: E402

# The layers, lowest first. The folders of one row do not include each other's headers. attach uses
# client, so it is above it. A folder inside a layer that is named here is a layer too. The reasons are
# in docs/design/0001.
LAYERS = [
    ["base"],
    ["ring", "disk", "clan", "sandbox"],
    ["fi", "omniorb", "sockets"],
    ["store", "memory", "control"],
    ["path", "stream"],
    ["tls"],
    ["engine", "client"],
    ["nbd", "gmb", "vhost", "clan_service"],
    ["nbd/server", "nbd/client", "gmb/server", "gmb/client", "vhost/server", "vhost/client", "push"],
    ["attach"],
    ["server"],
    ["tools"],
    ["cli"],
    ["lab"],
    ["main", "sim"],
]
HEIGHT = {layer: height for height, row in enumerate(LAYERS) for layer in row}

# What serves requests and what sends them do not know each other, and a wire format knows neither:
# libgmblock is linked without what a server needs.
CLIENT_SIDE = {"client", "nbd/client", "gmb/client", "vhost/client"}
SERVER_SIDE = {"engine", "clan_service", "nbd/server", "gmb/server", "vhost/server"}
WIRE = {"nbd", "gmb", "vhost"}
NOT_OF_CLIENTS = SERVER_SIDE | {"path", "store", "memory"}
APART = {**{layer: NOT_OF_CLIENTS for layer in CLIENT_SIDE},
         **{layer: CLIENT_SIDE for layer in SERVER_SIDE},
         **{layer: CLIENT_SIDE | NOT_OF_CLIENTS for layer in WIRE}}

# System headers that belong to some layers only: store never sees a socket, and whoever is not
# the event loop asks the event loop.
SOCKET_HEADERS = re.compile(r"^(sys/socket\.h|sys/un\.h|netinet/|arpa/|netdb\.h|linux/tcp\.h)")
SYSTEM_RULES = [
    (re.compile(r"^liburing"), {"ring", "attach", "clan"},
     "only the ring layer (and ublk, and clan) uses io_uring"),
    (re.compile(r"^gnutls/"), {"tls"}, "only the tls layer uses GnuTLS"),
    (SOCKET_HEADERS, set(HEIGHT) - {"store", "memory", "path"}, "this layer never sees a socket"),
]

# The installed headers are for those who use the library.
PUBLIC_INCLUDERS = {"client", "attach", "tools", "clan", "clan_service", "gmb", "gmb/server",
                    "gmb/client", "push", "fi", "omniorb", "sockets"}

BANNED = {
    "strcpy": "copy with a length that was checked",
    "strncpy": "it does not terminate; copy with a length that was checked",
    "strcat": "append with a length that was checked",
    "sprintf": "use snprintf and check its result",
    "vsprintf": "use vsnprintf and check its result",
    "strtok": "it keeps hidden state",
    "atoi": "it cannot tell an error",
    "atol": "it cannot tell an error",
    "atoll": "it cannot tell an error",
    "alloca": "stack use must have a bound",
}

# The engine serves every protocol alike, and the server knows none by name: it gets a table of
# session kinds. (Whole text, comments included.)
STRANGERS = [
    ("engine", re.compile(r"nbd|NBD|\bgmb[_/ ]"), "the engine knows no protocol"),
    ("server", re.compile(r"\bnbd_|\bgmb_"), "the server knows session kinds, no protocol"),
]

LINES_MAX = 1000
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class MissingTool(Exception):
    """The external tool of a check is not installed."""


def c_files(root):
    """The transport of omniORB is the one part in C++: .cc and .hh."""
    return files(root, ["src", "include", "tests", "bench", "examples"], SOURCES)


def without_comments_and_strings(text):
    """The same text, same line numbers, with comments and literals blanked out."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(blank, text)


def layer_of(path):
    parts = path.split(os.sep)
    if parts == ["src", "main.c"]:
        return "main"
    return layer_named(parts[1:]) if parts[0] == "src" and len(parts) > 2 else None


def layer_named(parts):
    inner = "/".join(parts[:2])
    return inner if inner in HEIGHT else parts[0]


def check_includes(options):
    """Includes point downwards, never sideways, and name the layer they come from."""
    for path in files(options.root, ["src"], SOURCES):
        layer = layer_of(path)
        if layer not in HEIGHT:
            yield path, 1, "not on a layer that this check knows"
            continue
        for number, line in enumerate(read(options.root, path).splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                problem = include_problem(options.root, layer, *match.groups())
                if problem:
                    yield path, number, f"{match.group(2)}: {problem}"


def include_problem(root, layer, bracket, name):
    if bracket == "<" or name.startswith("gmblock/"):
        if name.startswith("gmblock/") and layer not in PUBLIC_INCLUDERS:
            return ("installed headers are for client, attach, tools, clan and what uses it, tests "
                    "and users")
        for pattern, allowed, reason in SYSTEM_RULES:
            if pattern.match(name) and layer not in allowed:
                return reason
        return None
    target = layer_named(name.split("/"))
    if "/" not in name or target not in HEIGHT:
        return 'includes are written "layer/file.h"'
    if not os.path.exists(os.path.join(root, "src", name)):
        return "no such file below src/"
    if target != layer and HEIGHT[target] == HEIGHT[layer]:
        return f"{layer} and {target} are siblings and do not know each other"
    if target in APART.get(layer, ()):
        return f"{layer} does without {target}: a server and a client have the wire in common, no more"
    if HEIGHT[target] > HEIGHT[layer]:
        return f"{target} is above {layer}: includes point downwards"
    return None


def check_headers(options):
    """Every header compiles alone, and every installed one as C++ too."""
    compiler = shlex.split(options.cc)
    need(compiler[0])
    base = ["-D_GNU_SOURCE", '-DGMBLOCK_VERSION="lint"', "-fsyntax-only", "-Wall", "-Wextra",
            "-Werror", "-Wno-unused-function", "-Wno-unused-const-variable",
            "-Wno-unused-parameter", "-Wno-unused-variable"]
    base += [f"-I{os.path.join(options.root, folder)}" for folder in ("src", "include")]
    base += ["-I/usr/include/fuse3"]
    with tempfile.TemporaryDirectory() as scratch:
        for path in files(options.root, ["src", "include"], (".h",)):
            name = path.split(os.sep, 1)[1]
            quoted = f"<{name}>" if path.startswith("include") else f'"{name}"'
            languages = [("c", "gnu17")]
            if path.startswith("include"):
                languages.append(("c++", "c++17"))
            for language, standard in languages:
                alone = os.path.join(scratch, "alone.c")
                with open(alone, "w", encoding="utf-8") as source:
                    source.write(f"#include {quoted}\n#include {quoted}\n")
                run = subprocess.run([*compiler, *base, "-x", language, f"-std={standard}", alone],
                                     capture_output=True, text=True, check=False)
                if run.returncode != 0:
                    yield path, 1, f"does not compile alone as {language}:\n{run.stderr}"


def check_format(options):
    """Every C file is as clang-format leaves it."""
    need(options.format)
    # One process for all: its start takes longer than most files.
    run = subprocess.run([options.format, "--dry-run", "--Werror", "--style=file",
                          *c_files(options.root)],
                         cwd=options.root, capture_output=True, text=True, check=False)
    told = set()
    for found in re.finditer(r"^(.+?):(\d+):\d+: error", run.stderr, re.M):
        if found.group(1) not in told:
            told.add(found.group(1))
            yield found.group(1), int(found.group(2)), "not formatted; make format"
    if run.returncode != 0 and not told:
        yield "", 1, run.stderr[:400]


def check_length(options):
    """No source file is longer than anyone will read."""
    tops = ["src", "include", "tests", "bench", "examples", "scripts"]
    for path in files(options.root, tops, (*SOURCES, ".py", ".sh", ".build")):
        count = read(options.root, path).count("\n")
        if count > LINES_MAX:
            yield path, LINES_MAX, f"{count} lines, more than {LINES_MAX}: split it by noun"


def check_banned(options):
    """Calls that cannot be used safely, or hide an error."""
    calls = re.compile(r"\b(" + "|".join(BANNED) + r")\s*\(")
    for path in c_files(options.root):
        text = without_comments_and_strings(read(options.root, path))
        for number, line in enumerate(text.splitlines(), 1):
            for match in calls.finditer(line):
                yield path, number, f"{match.group(1)}: {BANNED[match.group(1)]}"
    for layer, names, reason in STRANGERS:
        for path in files(options.root, [os.path.join("src", layer)], (".c", ".h")):
            for number, line in enumerate(read(options.root, path).splitlines(), 1):
                if names.search(line):
                    yield path, number, reason


def check_braces(options):
    """Every body has braces; clang-format 14 cannot add them."""
    heads = re.compile(r"\b(if|for|while|else)\b")
    for path in c_files(options.root):
        text = without_comments_and_strings(read(options.root, path))
        text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", blank, text, flags=re.M)
        for match in heads.finditer(text):
            word, after = match.group(1), match.end()
            if word != "else":
                after = past_parentheses(text, after)
            rest = text[after:].lstrip()
            if rest.startswith("{") or (word == "else" and re.match(r"if\b", rest)):
                continue
            if word == "while" and rest.startswith(";") and closes_do(text, match.start()):
                continue
            yield path, text.count("\n", 0, match.start()) + 1, f"{word} without braces"


def past_parentheses(text, start):
    """The place behind the parenthesis that closes the one which opens next."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "(":
            depth += 1
        elif text[place] == ")":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)


def closes_do(text, start):
    return text[:start].rstrip().endswith("}")


def check_leftovers(options):
    """No note to self stays behind."""
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
    tops = ["src", "include", "tests", "bench", "examples", "scripts", "docs", "packaging"]
    suffixes = (*SOURCES, ".py", ".sh", ".build", ".md", ".1", ".5", ".service", ".socket")
    for path in files(options.root, tops, suffixes):
        for number, line in enumerate(read(options.root, path).splitlines(), 1):
            match = marks.search(line)
            if match:
                yield path, number, f"{match.group(1)}: do it, or say in prose what is missing"


def check_manuals(options):
    """A manual page for every command and every installed header, and no page with mistakes. A file
    in src/cli is a command, but for cli.c and completion.c, which they share."""
    need(options.mandoc)
    for path in files(options.root, ["src/cli"], (".c",)):
        command = os.path.splitext(os.path.basename(path))[0]
        if command in ("cli", "completion"):
            continue
        if not os.path.exists(os.path.join(options.root, f"docs/man/gmblock-{command}.1")):
            yield path, 1, f"no docs/man/gmblock-{command}.1"
    for path in files(options.root, ["include"], (".h",)):
        page = os.path.splitext(os.path.basename(path))[0]
        if not os.path.exists(os.path.join(options.root, f"docs/man/{page}.3")):
            yield path, 1, f"no docs/man/{page}.3"
    for path in files(options.root, ["docs/man"], (".1", ".3", ".5", ".7", ".8")):
        run = subprocess.run([options.mandoc, "-T", "lint", "-W", "warning", path],
                             cwd=options.root, capture_output=True, text=True, check=False)
        for line in run.stdout.splitlines():
            yield path, 1, line


def check_listed(options):
    """Every C file is named by a meson.build, and every test script: no dead files. A list of test
    names may leave out the prefix that they all have. Scripts with a hyphen in their names cannot
    be modules, so that they are tests."""
    builds = files(options.root, ["src", "tests", "examples"], ("meson.build",))
    builds.append("meson.build")
    text = "\n".join(read(options.root, path) for path in builds
                     if os.path.exists(os.path.join(options.root, path)))
    for path in files(options.root, ["src", "tests", "examples"], (".c", ".cc", ".py")):
        stem = os.path.splitext(os.path.basename(path))[0]
        if path.endswith(".py") and "-" not in stem:
            continue
        names = "|".join({re.escape(stem), re.escape(re.sub(r"^(test|fuzz|bench)_", "", stem))})
        if not re.search(rf"(?<![\w-])({names})(?![\w-])", text):
            yield path, 1, "no meson.build names it"


def check_scripts(options):
    """Shell scripts hold no common mistake that shellcheck knows."""
    need("shellcheck")
    for path in shell_scripts(options.root):
        run = subprocess.run(["shellcheck", "--severity=warning", "--format=gcc", path],
                             cwd=options.root, capture_output=True, text=True, check=False)
        for line in run.stdout.splitlines():
            yield path, 1, line


def shell_scripts(root):
    for path in files(root, ["scripts", "packaging", "tests", "bench", ".ci"], ("",)):
        with open(os.path.join(root, path), "rb") as source:
            if re.match(rb"#!.*\b(ba|da)?sh\b", source.readline(80)):
                yield path


def need(tool):
    if shutil.which(tool) is None:
        raise MissingTool(tool)


CHECKS = {
    "includes": check_includes,
    "headers": check_headers,
    "format": check_format,
    "length": check_length,
    "banned": check_banned,
    "braces": check_braces,
    "leftovers": check_leftovers,
    "manuals": check_manuals,
    "listed": check_listed,
    "scripts": check_scripts,
    **limits.CHECKS,
    **counters.CHECKS,
    **api.CHECKS,
    **messages.CHECKS,
    **upgrade.CHECKS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("check", nargs="?", choices=sorted(CHECKS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--lower", action="store_true")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), "..", ".."))
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--format", default="clang-format-14")
    parser.add_argument("--mandoc", default="mandoc")
    options = parser.parse_args()
    options.root = os.path.realpath(options.root)
    if options.list:
        print("\n".join(CHECKS))
        return 0
    if options.lower:
        limits.lower(options.root)
        return 0
    if options.check is None:
        parser.error("which check?")
    try:
        findings = list(CHECKS[options.check](options))
    except MissingTool as tool:
        print(f"SKIP: {tool} is not installed")
        return 77
    for path, number, text in findings:
        print(f"{path}:{number}: {text}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
