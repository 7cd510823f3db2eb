"""An upgrade can replace a process of another build. Both must have the same layout of messages and states, or
notice that they do not: the version of the protocol changes with each change of a layout."""
import hashlib
import os
import re

from tree import read

HEADER, PAGE = "src/server/upgrade/wire.h", "docs/protocol/upgrade.md"
# The files that define layouts, and what does it there.
BLOCK = r"(?:struct|enum) \w*(?:wire_|upgrade_type|_flag\b)\w* \{.*?\n\}"
LAYOUTS = {
    HEADER: BLOCK,
    "src/server/upgrade/wire.c": BLOCK,
    "src/nbd/server/handover.c": BLOCK,
    "src/vhost/server/handover.c": BLOCK,
    "src/tls/handover.c": BLOCK,
    "src/server/lease/leases.c": r"static json_t \*write_holder\(.*?\n\}",
}


def text_of(root, path):
    return read(root, path) if os.path.exists(os.path.join(root, path)) else ""


def digest(root):
    text = ""
    for path, pattern in LAYOUTS.items():
        source = re.sub(r"/\*.*?\*/", "", text_of(root, path), flags=re.S)
        text += path + "".join(re.findall(pattern, source, re.S))
    return hashlib.sha256(re.sub(r"\s+", "", text).encode()).hexdigest()[:8]


def check_upgrade(options):
    """The version of the upgrade protocol belongs to the layouts, and its page has the same one."""
    found = re.search(r"UPGRADE_VERSION = (\d+), /\* layouts (\w+) \*/", text_of(options.root, HEADER))
    if not found:
        return
    version, recorded = found.groups()
    now = digest(options.root)
    if now != recorded:
        yield HEADER, 1, (f"a message or a state may have another layout: raise UPGRADE_VERSION, also in {PAGE}, "
                          f"and note 'layouts {now}' behind it")
    page = text_of(options.root, PAGE)
    if not re.search(rf"^# .*, version {version}$", page, re.M) or f"| version, {version} |" not in page:
        yield PAGE, 1, f"the version is {version}"


CHECKS = {"upgrade": check_upgrade}
