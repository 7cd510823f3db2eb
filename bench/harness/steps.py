"""What bench/walk makes of the functions that were entered: names, files, and one typical read.

What: named(program, addresses, folders) finds functions and files; walks(entries, names) counts for
each read; typical(walks) picks the one in the middle.
Ownership: plain data. Errors: measure.ClientFailed if the debug information cannot be read.
"""

import collections
import os
import struct
import subprocess

from . import measure

HEADER = struct.Struct("=IIQ")  # struct walk of bench/walk_recorder.c: mark, count, ready
ENTRY = struct.Struct("=QII")  # struct walk_entry: address, mark, thread
ENTRIES_MAX = 1 << 20
FILE_BYTES = HEADER.size + ENTRIES_MAX * ENTRY.size

FIGURES = {
    "functions": "distinct functions",
    "calls": "calls",
    "files": "distinct files",
    "moves": "moves from file to file",
}


def entries_of(data):
    """[(address, mark, thread)] from the bytes of a recorder's file."""
    _, count, _ = HEADER.unpack_from(data)
    if count > ENTRIES_MAX:
        raise measure.ClientFailed("the recorder's file is too small: fewer --reads")
    return [ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size) for i in range(count)]


def named(program, addresses, build, source):
    """{address: (function, file)}, the file relative to the source tree, for functions of that tree
    (those of system headers are left out). The copies of a function in a header have one name."""
    listed = sorted(set(addresses))
    done = subprocess.run(["addr2line", "-f", "-e", program], capture_output=True, text=True,
                          check=False, input="".join("%#x\n" % address for address in listed))
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 2 * len(listed):
        raise measure.ClientFailed("addr2line: " + done.stderr.strip())
    found = {}
    for address, function, place in zip(listed, lines[::2], lines[1::2]):
        path = os.path.realpath(os.path.join(build, place.rpartition(":")[0]))
        file = os.path.relpath(path, os.path.realpath(source))
        if not file.startswith(".."):
            # A compiler may split a function; its parts are one.
            found[address] = (function.partition(".")[0], file)
    return found


def walks(entries, names):
    """{mark: figures}, each from the thread that was entered most often meanwhile: the reactor that
    serves the connection."""
    by_mark = collections.defaultdict(lambda: collections.defaultdict(list))
    for address, mark, thread in entries:
        if address in names:
            by_mark[mark][thread].append(names[address])
    return {mark: _figures(max(threads.values(), key=len))
            for mark, threads in sorted(by_mark.items())}


def _figures(steps):
    """Of one read; a move is a function entered in another file than the one entered before it."""
    files = [file for _, file in steps]
    return {
        "functions": len(set(steps)), "calls": len(steps), "files": len(set(files)),
        "moves": sum(one != following for one, following in zip(files, files[1:])),
        "entered": [{"file": file, "function": function, "calls": count} for (function, file), count
                    in sorted(collections.Counter(steps).items(), key=lambda item: item[0][::-1])],
    }


def typical(found):
    """The read in the middle of them, ordered by figures."""
    ordered = sorted(found, key=lambda walk: [walk[key] for key in FIGURES])
    return ordered[(len(ordered) - 1) // 2]
