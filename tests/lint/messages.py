"""gmblock-messages(7) quotes messages of the programs: each must be in the source, and each rule in its protocol.

The check of lint.py for that page. The page itself is the list: an item ".It Li "text"" is a message, in which
" ... " stands for the parts that vary.
"""
import os
import re

from tree import files, read

PAGE = "docs/man/gmblock-messages.7"
MESSAGE = re.compile(r'^\.It Li "(.*)"$')
# An item "P1 to P138" names the rules of a protocol, and the next line with .Pa the page that lists them.
RULES = re.compile(r"^\.It Li ([A-Z])1 No to Li \1(\d+)$")
PROTOCOL = re.compile(r"^\.Pa (docs/protocol/\S+)")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
# Adjacent literals are one; a statement, or an entry of a table, is what stands between two of these signs.
TOKEN = re.compile(r'"((?:\\.|[^"\\\n])*)"|([;{}])|(\s+)|([^"\s;{}]+)')
ESCAPE = {"\\(dq": '"', "\\e": "\\", "\\&": ""}


def strings(text):
    """The string literals of each statement; a new line between those that are not adjacent."""
    text = COMMENT.sub(lambda match: " " if match.group().startswith("/") else
                       match.group() if match.group().startswith('"') else "x", text)
    found = []
    for literal, end, space, _ in TOKEN.findall(text):
        if end:
            if found:
                yield "".join(found)
            found = []
        elif not space:
            found.append(literal.replace('\\"', '"') if literal else "\n")
    if found:
        yield "".join(found)


def pattern(quoted):
    """The parts of a quoted message, in order; what is between them varies."""
    quoted = re.sub(r"\\\(dq|\\e|\\&", lambda match: ESCAPE[match.group()], quoted)
    parts = [part for part in (re.sub(r"\s+", " ", part).strip() for part in quoted.split("...")) if part]
    return re.compile(".*".join(re.escape(part) for part in parts), re.S)


def check_messages(options):
    """Every message that the page of messages quotes is one of the program's, and every rule exists."""
    if not os.path.exists(os.path.join(options.root, PAGE)):
        return
    lines = read(options.root, PAGE).splitlines()
    source = "\0".join(string for path in files(options.root, ["src"], (".c",))
                       for string in strings(read(options.root, path)))
    statements = source.split("\0")
    rules = None
    seen = set()
    for number, line in enumerate(lines, 1):
        message = MESSAGE.match(line)
        if message:
            wanted = pattern(message.group(1))
            if not any(wanted.search(statement) for statement in statements):
                yield PAGE, number, f"no program prints this: {message.group(1)}"
            if message.group(1) in seen:
                yield PAGE, number, f"again: {message.group(1)}"
            seen.add(message.group(1))
        rules = RULES.match(line) or rules
        protocol = PROTOCOL.match(line)
        if rules and protocol:
            path = os.path.join(options.root, protocol.group(1))
            text = read(options.root, protocol.group(1)) if os.path.exists(path) else ""
            named = re.findall(rf"\b{rules.group(1)}(\d+)\b", text)
            if max(map(int, named), default=0) != int(rules.group(2)):
                yield PAGE, number, f"the last rule of {protocol.group(1)} is not {rules.group(1)}{rules.group(2)}"
            rules = None


CHECKS = {"messages": check_messages}
