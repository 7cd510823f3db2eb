"""The public interface is told four times: headers, symbol maps, manual pages and Debian's symbol
files. This checks that they agree."""
import os
import re

from tree import files, read

# Library: its map, its headers, the prefix of its names, Debian's list.
LIBRARIES = (
    ("src/client/gmblock.map", ("gmblock.h",), "gmb_", "libgmblock0.symbols"),
    ("src/clan/clan.map", ("clan.h", "clan_memory.h", "clan_rpc.h"), "clan_", "libclan0.symbols"),
)


def words(text):
    return " ".join(re.findall(r"\w+|[*\[\]]", text))


def declared(header):
    """Name: (whether it is inline, return type, arguments) of each function in a header."""
    text = re.sub(r"/\*.*?\*/|^\s*#.*?$", " ", header.replace("\\\n", " "), flags=re.S | re.M)
    text = text.replace('extern "C" {', " ")
    while re.search(r"\{[^{}]*\}", text):
        text = re.sub(r"\{[^{}]*\}", ";", text)
    found = {}
    for statement in text.split(";"):
        inline = "static inline" in statement
        match = re.match(r"\s*((?:\w+\s+|\*\s*)+?)(\w+)\s*\((.*)\)\s*$", statement, re.S)
        if match and not match.group(1).startswith("typedef"):
            kind = words(match.group(1).replace("static inline", ""))
            found[match.group(2)] = (inline, kind, words(match.group(3)))
    return found


def documented(page):
    """Name: (return type, arguments) of each function in the synopsis of a manual page."""
    synopsis = page.partition(".Sh SYNOPSIS")[2].partition("\n.Sh ")[0]
    found = {}
    kind = name = ""
    arguments = []
    for line in synopsis.splitlines():
        quoted = re.findall(r'"([^"]*)"', line)
        if line.startswith(".Ft "):
            kind = words(line[4:])
        elif line.startswith(".Fo "):
            name, arguments = line.split()[1], []
        elif line.startswith(".Fa "):
            arguments.append(line[4:].strip('"'))
        elif line.startswith(".Fn "):
            found[line.split()[1]] = (kind, words(" ".join(quoted or line.split()[2:])))
        elif line.startswith(".Fc"):
            found[name] = (kind, words(" ".join(arguments)))
    return found


def versions(text):
    """Name: version of each symbol in a map."""
    return {name: node for node, names in re.findall(r"(\w[\w.]*)\s*\{\s*global:(.*?)(?:local:|\})", text, re.S)
            for name in re.findall(r"(\S+);", names)}


def check_api(options):
    """Headers, maps, manual pages and Debian's symbol files name the same functions, with the same
    prototypes and versions, and the pages name no other."""
    root = options.root
    pages = {path: documented(read(root, path)) for path in files(root, ["docs/man"], (".3",))}
    for map_path, headers, prefix, symbols in LIBRARIES:
        if not os.path.exists(os.path.join(root, map_path)):
            continue
        prototypes, linked = {}, set()
        for header in headers:
            path = os.path.join("include/gmblock", header)
            if os.path.exists(os.path.join(root, path)):
                for name, (inline, *prototype) in declared(read(root, path)).items():
                    prototypes[name] = (path, *prototype)
                    linked |= set() if inline else {name}
        exported = versions(read(root, map_path))
        for name in sorted(set(exported) - linked):
            yield map_path, 1, f"{name} is in no header"
        for name in sorted(linked - set(exported)):
            yield map_path, 1, f"{name} is missing"
        yield from manual_problems(pages, prototypes, prefix)
        yield from debian_problems(root, symbols, exported)


def manual_problems(pages, prototypes, prefix):
    for name, (path, *prototype) in sorted(prototypes.items()):
        found = [page for page, names in pages.items() if name in names]
        if not found:
            yield path, 1, f"{name} is in the synopsis of no manual page"
        for page in found:
            if list(pages[page][name]) != prototype:
                yield page, 1, f"{name}: the header has {prototype[0]} ({prototype[1]})"
    for page, names in pages.items():
        for name, (kind, _) in sorted(names.items()):
            if name.startswith(prefix) and name not in prototypes and not kind.startswith("typedef"):
                yield page, 1, f"{name} is in no header"


def debian_problems(root, symbols, exported):
    """Names with their node of the map, and the version that has them: that of the node."""
    path = os.path.join("packaging/debian", symbols)
    text = read(root, path)
    exported = exported | {node: node for node in exported.values()}
    lines = re.findall(r"^ ([\w.]+)@([\w.]+) (\S+)", text, re.M)
    listed = {name: node for name, node, _ in lines}
    for name in sorted(set(listed) ^ set(exported) | {n for n in listed if exported.get(n, listed[n]) != listed[n]}):
        yield path, 1, f"{name}: not as in the map"
    for name, node, version in lines:
        if re.split(r"[~-]", version)[0].removesuffix(".0") != node.rpartition("_")[2]:
            yield path, 1, f"{name}: {version} is not the release of {node}"


CHECKS = {"api": check_api}
