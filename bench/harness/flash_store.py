"""Stores of one server, and gmblock's own commands: what bench/flash-store and bench/snapshot share.

What: gmblock() runs a command, Player one `gmblock bench`; play_count() has so many requests answered; a row is a
dictionary with title, found, goal, met and more, of which line() and table() make a page.
Errors: measure.ClientFailed for a command that fails; NothingMeasured for a run in which nothing happened.
"""

import json
import subprocess
import sys

from . import measure, servers, session

MIB = 1 << 20


def gmblock(options, *words):
    done = subprocess.run([options.gmblock, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise measure.failure("gmblock %s: " % words[0], done.stderr.strip())
    return done.stdout


def stats(options, server):
    return json.loads(gmblock(options, "stats", "--json", str(server.pid)))


def counters(options, server):
    return stats(options, server)["exports"][0]["store"]["flash"]


def data_programmed(found):
    """Blocks of the disk that were written to the device, by whomever."""
    return found["written_blocks"] - found["cached_blocks"] + sum(
        found[key + "_blocks"] for key in ("evicted", "flushed", "moved", "cache_moved", "written_back"))


class Player:
    """gmblock bench, beside what else is done until finish()."""

    def __init__(self, options, uri, rw, block, depth, size, *words):
        self.process = subprocess.Popen(
            [options.gmblock, "bench", "--json", "--rw", rw, "--bs", str(block), "--depth", str(depth), "--size", str(size),
             *(["--force"] if "write" in rw else []), *words, uri],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=servers.child_setup)

    def finish(self):
        output, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise measure.failure("gmblock bench: ", errors.strip())
        return json.loads(output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def play_count(options, server, rw, block, size, count):
    """So many requests, however long they take."""
    return Player(options, server.uri, rw, block, 8 if block == MIB else 32, size, "--requests", str(count),
                  "--seconds", "600", "--seed", "1").finish()


def line(row):
    return "| %s | %.3f %s | %s | %s |" % (
        row["title"], row["found"], "✓" if row["met"] else "✗", row["goal"], row["more"])


def publish(options, title, words, rows):
    """The page of rows; the status of the program."""
    print("\n".join(map(line, rows.values())), file=sys.stderr, flush=True)
    session.publish(options, {"facts": session.facts(), "rows": rows}, "\n".join([
        "# " + title, "", words, "", "| | found | goal | |", "|---|---|---|---|", *map(line, rows.values())]) + "\n")
    return 1 if options.check and not all(row["met"] for row in rows.values()) else 0
