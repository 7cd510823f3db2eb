"""One large read at a time over loopback TCP: gmblock and other NBD servers, same client.

What: run() gives every server a fresh start, a loop device of which no block is in the page cache,
and the same client (bench/overlap_client.c); servers take turns within each round. gmblock runs
with overlap and without. Returns plain data.
Errors: those of harness/servers.py; a peer that is not installed is left out.
"""

import sys

from . import overlap, servers, session
from .rig import Unavailable

MIB = 1 << 20
PEERS = ("nbdkit", "qemu-nbd", "nbd-server")
PATTERNS = ("read", "once")  # in order and by chance, no block twice


def recipes():
    found = [servers.Gmblock("gmblock", ("cold",), keys="mode=direct,overlap=auto"),
             servers.Gmblock("gmblock/off", ("cold",), keys="mode=direct,overlap=off")]
    for recipe in servers.select(PEERS, "cold"):
        try:
            recipe.program_path()
        except Unavailable as error:
            print("without a peer: %s" % error, file=sys.stderr)
            continue
        found.append(recipe)
    return found


def one_run(tools, disk, recipe, pattern, options, turn):
    with servers.start(recipe, disk.path, "tcp") as server:
        disk.cold()
        seconds = "%g" % options.seconds
        sample = overlap.run_tool([tools.client, pattern, str(MIB), "1", seconds, seconds,
                                   "%g" % (options.seconds / 20), str(1000 + turn), "",
                                   server.uri, "any", "0"])[0]
        sample["command"] = " ".join(session.without_paths(server.command))
    return sample


def run(tools, disk, options, facts):
    cells = {}
    listed = recipes()
    for turn in range(options.rounds):
        for pattern in PATTERNS:
            for recipe in session.rotated(listed, turn):
                cells.setdefault(pattern, {}).setdefault(recipe.name, []).append(
                    one_run(tools, disk, recipe, pattern, options, turn))
        print("peers: round %d of %d" % (turn + 1, options.rounds), file=sys.stderr, flush=True)
    return {"facts": facts, "bytes": MIB, "cells": cells,
            "versions": {recipe.name: recipe.version() for recipe in listed}}
