#!/usr/bin/python3
"""Shows that every check of lint.py can fail: a clean small tree passes all of them, and each
bad sample, planted alone in that tree, is found by its check with the words it should use.

    selftest.py [--cc COMPILER] [--format CLANG_FORMAT] [--mandoc MANDOC]

Exit status 0: all as expected. 1: a check missed its sample, or complained about the clean tree.
77: nothing failed, but a tool was missing.
"""
import collections
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import limits  # noqa: E402 (no folder of compiled modules in the source tree)

HERE = os.path.dirname(os.path.realpath(__file__))
LINT = os.path.join(HERE, "lint.py")

PAGE = """.Dd November 21, 2026
.Dt GMBLOCK-SERVE 1
.Os
.Sh NAME
.Nm gmblock-serve
.Nd serve disks
.Sh SYNOPSIS
.Nm
.Op Ar path
.Sh DESCRIPTION
It serves.
.Bl -tag -width Ds
.It Fl -fast Ar n
Faster.
.It Cm color Ns = Ns Ar name
A color.
.El
"""

LIBRARY_PAGE = """.Dd November 21, 2026
.Dt GMBLOCK 3
.Os
.Sh NAME
.Nm gmblock
.Nd a library
.Sh SYNOPSIS
.Ft typedef void
.Fn gmb_done "void *context"
.Ft int
.Fo gmb_open
.Fa "const char *uri"
.Fa "gmb_done *done"
.Fc
.Ft int
.Fn gmb_look "const char *uri"
.Sh DESCRIPTION
It opens.
"""
HEADER = """#pragma once
typedef void gmb_done(void *context); /* not gmb_close(void); */
struct gmb_info {
\tint (*call)(void);
};
int gmb_open(const char *uri, gmb_done *done);
static inline int gmb_look(const char *uri)
{
\treturn gmb_open(uri, 0);
}
"""
MAP = "GMBLOCK_0.1 {\nglobal:\n\tgmb_open;\nlocal:\n\t*;\n};\n"
SYMBOLS = "libgmblock.so.0 libgmblock0 #MINVER#\n GMBLOCK_0.1@GMBLOCK_0.1 0.1.0\n gmb_open@GMBLOCK_0.1 0.1.0\n"

STATIC = "static int %s(void)\n{\n\treturn 1;\n}\n"

CLEAN = {
    "src/meson.build": "sources = files('base/bytes.c', 'store/file.c', 'cli/serve.c', "
                       "'tools/serve_parse.c', 'ring/linux.c')\n",
    "meson.build": "executable('gmblock', 'src/main.c')\n",
    "src/base/bytes.h": "#pragma once\n#include <stdint.h>\n\nuint32_t bytes_get(void);\n",
    "src/base/bytes.c": "#include \"base/bytes.h\"\n\n/* strcpy(a, b) is only talk here. */\n"
                        "uint32_t bytes_get(void)\n{\n\tconst char *text = \"atoi(1)\";\n"
                        "\tdo {\n\t\ttext++;\n\t} while (*text);\n"
                        "\tif (*text) {\n\t\treturn 1;\n\t} else if (text) {\n"
                        "\t\treturn 2;\n\t}\n"
                        "\treturn text != 0;\n}\n",
    "src/ring/linux.c": "#include <liburing.h>\n#include <sys/socket.h>\n",
    "src/store/file.c": "#include <stdio.h>\n\n#include \"base/bytes.h\"\n\n" + STATIC % "file_bytes",
    "src/memory/arena.h": "#pragma once\n",
    "src/nbd/wire.h": "#pragma once\n",
    "src/nbd/client/dial.h": "#pragma once\n\n#include \"client/carrier.h\"\n"
                             "#include \"nbd/wire.h\"\n",
    "src/client/carrier.h": "#pragma once\n",
    "src/engine/engine.h": "#pragma once\n",
    "src/store/store.h": "#pragma once\n",
    "src/main.c": "#include \"nbd/wire.h\"\n",
    "src/cli/serve.c": "#include \"memory/arena.h\"\n#include \"nbd/wire.h\"\n",
    "tests/unit/meson.build": "foreach name : ['bytes']\n",
    "tests/unit/test_bytes.c": "\n",
    "src/tools/serve_parse.c": "#include \"nbd/wire.h\"\n",
    "docs/man/gmblock-serve.1": PAGE,
    "docs/man/gmblock.3": LIBRARY_PAGE,
    "include/gmblock/gmblock.h": HEADER,
    "packaging/debian/libgmblock0.symbols": SYMBOLS,
    "src/client/gmblock.map": MAP,
    "scripts/run": "#!/bin/bash\necho \"$1\"\n",
}



def limits_of(tree):
    """Limits for a tree of short headers in which nothing else is remarkable."""
    code = collections.Counter()
    for path in tree:
        if path.startswith("src/") and path.endswith((".c", ".h")):
            code[os.path.dirname(path)] += limits.code_lines(tree[path])
    code["src/base"] = 50
    return "# Each with its reason.\nkeys src 0 there is one table\nshared-names src 0 none\n" \
        "phrases comments 0 short\nphrases manual 0 short\n" + "".join(
        [f"code {folder} {number} a sample\n" for folder, number in sorted(code.items())]
        + [f"short-header {path} a sample\n" for path in sorted(tree)
           if path.startswith("src/") and path.endswith(".h")])


LIMITS = CLEAN["tests/lint/limits.txt"] = limits_of(CLEAN)

# check, planted file, its text, words the finding must have
TABLE = ('static const struct counter counter_list[] = {\n\tCOUNTER(struct disk, reads, TOTAL, ITEMS, "disk_reads",\n'
         '\t\t"Reads", .metric = "reads_done"),\n};\n')

BAD = [
    ("counters", "src/tools/top.c", TABLE + 'const char *key = "disk_reads";\n', "disk_reads: a counter"),
    ("counters", "src/server/observe/metrics.c", TABLE + 'const char *key = "reads_done";\n', "reads_done: a counter"),
    ("messages", "docs/man/gmblock-messages.7", '.It Li "atoi(1) ..."\n.It Li "atoi(2) ..."\n', "prints this: atoi(2)"),
    ("messages", "docs/man/gmblock-messages.7", '.It Li "strcpy(a, b)"\n', "prints this: strcpy"),
    ("messages", "docs/man/gmblock-messages.7", '.It Li "atoi(1)"\n' * 2, "again: atoi(1)"),
    ("messages", "docs/man/gmblock-messages.7", ".It Li P1 No to Li P9\nNBD:\n.Pa docs/protocol/nbd.md .\n", "is not P9"),
    ("includes", "src/store/up.c", '#include "nbd/wire.h"\n', "nbd is above store"),
    ("includes", "src/engine/up.c", '#include "nbd/wire.h"\n', "nbd is above engine"),
    ("includes", "src/ring/up.c", '#include "memory/arena.h"\n', "memory is above ring"),
    ("includes", "src/store/side.c", '#include "memory/arena.h"\n', "siblings"),
    ("includes", "src/gmb/side.c", '#include "nbd/wire.h"\n', "siblings"),
    ("includes", "src/nbd/server/up.c", '#include "nbd/client/dial.h"\n', "siblings"),
    ("includes", "src/nbd/client/up.c", '#include "engine/engine.h"\n', "does without engine"),
    ("includes", "src/gmb/client/up.c", '#include "store/store.h"\n', "does without store"),
    ("includes", "src/gmb/server/up.c", '#include "client/carrier.h"\n', "does without client"),
    ("includes", "src/nbd/up.c", '#include "engine/engine.h"\n', "does without engine"),
    ("includes", "src/base/near.c", '#include "bytes.h"\n', 'written "layer/file.h"'),
    ("includes", "src/base/far.c", '#include "../base/bytes.h"\n', 'written "layer/file.h"'),
    ("includes", "src/base/none.c", '  #  include "base/none.h"\n', "no such file"),
    ("includes", "src/nbd/gnutls.c", "#include <gnutls/gnutls.h>\n", "only the tls layer"),
    ("includes", "src/path/uring.c", "#include <liburing.h>\n", "only the ring layer"),
    ("includes", "src/store/net.c", "#include <netinet/tcp.h>\n", "never sees a socket"),
    ("includes", "src/path/net.h", "#include <sys/socket.h>\n", "never sees a socket"),
    ("includes", "src/nbd/pub.c", "#include <gmblock/gmblock.h>\n", "installed headers"),
    ("includes", "src/attic/old.c", "\n", "not on a layer"),
    ("headers", "src/base/needy.h", "#pragma once\nuint32_t needy(void);\n", "compile alone"),
    ("headers", "src/base/twice.h", "enum twice { TWICE };\n", "compile alone"),
    ("headers", "include/gmblock/c_only.h", "#pragma once\nextern int class;\n", "as c++"),
    ("format", "src/base/ugly.c", "int ugly(void) { return 0; }\n", "not formatted"),
    ("format", "tests/unit/ugly.c", "int a;\n  int b;\n", "not formatted"),
    ("length", "src/base/long.c", "\n" * 1001, "more than 1000"),
    ("length", "tests/unit/long.py", "\n" * 1001, "more than 1000"),
    ("braces", "src/base/bare.c", "int x(int a)\n{\n\tif (a)\n\t\treturn 1;\n}\n", "if without"),
    ("braces", "src/base/bare.c", "int x(int a)\n{\n\tfor (;;)\n\t\ta++;\n}\n", "for without"),
    ("braces", "src/base/bare.c", "int x(int a)\n{\n\twhile (a);\n}\n", "while without"),
    ("braces", "tests/unit/bare.c", "void x(void)\n{\n\tif (1) {\n\t} else\n\t\tx();\n}\n",
     "else without"),
    ("leftovers", "src/base/later.c", "/* TO" "DO: later */\n", "say in prose"),
    ("leftovers", "docs/man/gmblock-serve.1", PAGE + ".\\\" FIX" "ME\n", "say in prose"),
    ("manuals", "src/cli/frob.c", "\n", "no docs/man/gmblock-frob.1"),
    ("manuals", "src/cli/serve_parse.c", "\n", "no docs/man/gmblock-serve_parse.1"),
    ("manuals", "include/gmblock/lib.h", "\n", "no docs/man/lib.3"),
    ("manuals", "docs/man/gmblock-serve.1", PAGE + ".Bogus macro\n", "Bogus"),
    ("api", "include/gmblock/gmblock.h", HEADER + "void gmb_close(void);\n", "gmb_close is in the synopsis of no"),
    ("api", "src/client/gmblock.map", MAP.replace("gmb_open;", "gmb_open;\n\tgmb_gone;"), "gmb_gone is in no header"),
    ("api", "src/client/gmblock.map", MAP.replace("gmb_open", "gmb_gone"), "gmb_open is missing"),
    ("api", "docs/man/gmblock.3", LIBRARY_PAGE.replace("const ", ""), "gmb_open: the header has int (const char"),
    ("api", "docs/man/gmblock.3", LIBRARY_PAGE.replace("gmb_open", "gmb_gone"), "gmb_gone is in no header"),
    ("api", "packaging/debian/libgmblock0.symbols", SYMBOLS.replace("open@GMBLOCK_0.1", "open@GMBLOCK_0.2"),
     "gmb_open: not as in the map"),
    ("api", "packaging/debian/libgmblock0.symbols", SYMBOLS.replace(" gmb_open@GMBLOCK_0.1 0.1.0", " gmb_open@GMBLOCK_0.1 0.2.0"),
     "gmb_open: 0.2.0 is not the release of GMBLOCK_0.1"),
    ("api", "packaging/debian/libgmblock0.symbols", SYMBOLS.replace(" GMBLOCK_0.1@GMBLOCK_0.1 0.1.0\n", ""),
     "GMBLOCK_0.1: not as in the map"),
    ("listed", "src/base/dead.c", "\n", "no meson.build names it"),
    ("listed", "tests/unit/dead.c", "\n", "no meson.build names it"),
    ("listed", "tests/functional/dead-test.py", "\n", "no meson.build names it"),
    ("banned", "src/engine/bad.c", "/* as NBD has it */\n", "knows no protocol"),
    ("banned", "src/engine/bad.c", "int gmb_bad;\n", "knows no protocol"),
    ("banned", "src/server/bad.c", "int nbd_bad;\n", "no protocol"),
    # The number of a folder is in limits.txt, so that is where it is found to be wrong.
    ("code", "src/base/more.c", "int more;\n" * 39, "code src/base: 51, more than 50"),
    ("code", "src/fresh/new.c", "int fresh;\n", "code src/fresh: 1, and no limit"),
    ("code", "tests/lint/limits.txt", LIMITS + "code src/gone 5 was here\n", "there is none any more"),
    ("code", "tests/lint/limits.txt", LIMITS + "code src/bare 5\n", "a limit has a reason"),
    ("code", "tests/lint/limits.txt", LIMITS + "code src/none few lines\n", "few: not a number"),
    ("code", "tests/lint/limits.txt", LIMITS + "walks src 5 typing mistake\n", "no such kind"),
    ("code", "tests/lint/limits.txt", LIMITS + "code src/nbd 2 again\n", "stands twice"),
    ("keys", "src/cli/twice.c", 'const char *a[] = { "fast", "--fast" };\n', "keys src: 1, more than 0"),
    ("keys", "src/cli/twice.c", 'const char *a[] = { "color", "color=red" };\n', "color 2"),
    ("names", "src/nbd/twin.c", STATIC % "file_bytes", "file_bytes in src/nbd/twin.c, src/store/file.c"),
    ("sizes", "src/base/tiny.h", "#pragma once\n", "fewer than 40"),
    ("sizes", "src/base/big.c", "\n" * 901, "more than 900"),
    ("sizes", "tests/lint/limits.txt", LIMITS + "long-file src/base/bytes.c one noun\n", "there is none any more"),
    ("phrases", "docs/man/gmblock-serve.1", PAGE + "What serves it is told of a disk\n", "phrases manual: "),
    ("phrases", "src/base/talk.c", "/*\n * What is there.\n */\n", "most are in src/base/talk.c 2"),
    ("upgrade", "src/server/upgrade/wire.h", "\tUPGRADE_VERSION = 3, /* layouts 0 */\n", "raise UPGRADE_VERSION"),
    ("upgrade", "src/server/upgrade/wire.h", "\tUPGRADE_VERSION = 3, /* layouts 0 */\n", "the version is 3"),
    ("phrases", "src/cli/talk.c", 'const char *help = "nobody is there";\n', "phrases messages: "),
    ("scripts", "scripts/oops", "#!/bin/bash\ncd nowhere\nrm -rf $x/*\n", "SC2115"),
]
for call in ("strcpy", "strncpy", "strcat", "sprintf", "vsprintf", "strtok", "atoi", "atol",
             "atoll", "alloca"):
    BAD.append(("banned", "src/base/bad.c", f"int x(void)\n{{\n\t{call} (a);\n}}\n", call + ":"))


def plant(root, tree):
    for path, text in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as planted:
            planted.write(text)


def lint(root, check, tools):
    run = subprocess.run([sys.executable, LINT, check, "--root", root, *tools],
                         capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


def with_tree(extra, check, tools):
    with tempfile.TemporaryDirectory() as root:
        plant(root, CLEAN)
        style = os.path.join(HERE, "..", "..", ".clang-format")
        with open(style, encoding="utf-8") as source:
            plant(root, {".clang-format": source.read()})
        plant(root, extra)
        return lint(root, check, tools)


def lowered(tools):
    """What --lower makes of limits that are too high."""
    with tempfile.TemporaryDirectory() as root:
        plant(root, CLEAN)
        plant(root, {"tests/lint/limits.txt": LIMITS.replace("base 50", "base 70").replace("keys src 0", "keys src 7")})
        lint(root, "--lower", tools)
        with open(os.path.join(root, "tests/lint/limits.txt"), encoding="utf-8") as changed:
            return changed.read()


def main(tools):
    names = subprocess.run([sys.executable, LINT, "--list"], capture_output=True, text=True,
                           check=True).stdout.split()
    failures = 0
    skipped = set()

    def report(fine, what, output):
        nonlocal failures
        if not fine:
            failures += 1
            print(f"FAILED: {what}\n{output}")

    for check in names:
        status, output = with_tree({}, check, tools)
        if status == 77:
            skipped.add(check)
            print(output.strip())
            continue
        report(status == 0, f"{check} complains about the clean tree", output)
        report(any(check == bad[0] for bad in BAD), f"{check} has no bad sample", "")
    for check, path, text, words in BAD:
        if check in skipped:
            continue
        status, output = with_tree({path: text}, check, tools)
        report(status == 1 and words in output and (path in output or "limits.txt:" in output),
               f"{check} missed {path} ({words!r}), status {status}", output)
    report(lowered(tools) == LIMITS, "--lower does not write the numbers of the clean tree", lowered(tools))
    status, _ = lint(HERE, "nonsense", tools)
    report(status == 2, "an unknown check is refused", "")
    print(f"{len(BAD)} bad samples, {failures} failures")
    if failures:
        return 1
    return 77 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
