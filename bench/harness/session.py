"""What surrounds the measuring in every benchmark: choices, facts, results and exit status.

What: run() turns a benchmark's function into a program; facts() says where numbers come from;
take_turns() and whole_rounds() run what is compared; publish() writes or prints what was found.
Errors: rig.Unavailable for a name that does not exist; run() reports all errors of a benchmark in
one line.
"""

import datetime
import json
import os
import shlex
import subprocess
import signal
import sys

from . import measure, report, rig, samples, servers
from .cmdline import TOP

SKIP = 77


def chosen(text, names, what):
    """Those of the names that the text has, separated by commas, in their own order; or all."""
    picked = list(names) if text is None else text.split(",")
    for name in picked:
        if name not in names:
            raise rig.Unavailable("no %s called %s; there are: %s" % (what, name, " ".join(names)))
    return [name for name in names if name in picked]


def rotated(items, turn):
    """The items in an order in which none always follows the same other one."""
    start = turn % len(items)
    return items[start:] + items[:start]


def take_turns(count, ways, sample):
    """{way: [sample(way, turn) of each round]}; the ways take turns."""
    found = {way: [] for way in ways}
    for turn in range(count):
        for way in rotated(list(ways), turn):
            found[way].append(sample(way, turn))
    return found


def whole_rounds(facts, rows, sample):
    """{row name: {way: [the sample of each round]}} of facts["rounds"], and whether there are fewer. The ways of a row take
    turns; sample(row, way) runs one of them, or returns None where this machine cannot. A failure after the first round
    keeps the whole rounds before it, and says so."""
    found = {row.name: {way: [] for way in row.ways} for row in rows}
    count = facts["rounds"]
    for turn in range(count):
        samples = []
        try:
            for row in rows:
                for way in rotated(list(row.ways), turn):
                    samples.append((row.name, way, sample(row, way)))
        except (measure.ClientFailed, subprocess.TimeoutExpired) as reason:
            if turn == 0:
                raise
            print("round %d failed, and the %d before it count: %s" % (turn + 1, turn, reason), file=sys.stderr)
            facts["rounds"] = turn
            return found, True
        for name, way, one in samples:
            if one is not None:
                found[name][way].append(one)
        print("round %d of %d" % (turn + 1, count), file=sys.stderr, flush=True)
    return found, False


def need_programs(*paths):
    for path in paths:
        if not os.access(path, os.X_OK):
            raise rig.Unavailable("%s is not built (looked for %s); see bench/README.md"
                                  % (os.path.basename(path), path))


def need_lab(gmblock):
    """For scripts that need keys which only a build with lab has."""
    need_programs(gmblock)
    done = subprocess.run([gmblock, "serve", "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if "parts=SIZE" not in done.stdout:
        raise rig.Unavailable("%s has no lab, which this measurement needs; build it with -Dlab=true" % gmblock)


def without_paths(words):
    """A command line without places on this machine."""
    shown = []
    for word in words:
        option, equals, value = word.rpartition("=")
        shown.append(option + equals + (os.path.basename(value) if os.path.isabs(value)
                                        else value))
    return shown


def facts(**more):
    """Of the machine, the time and the command line, and what the caller adds."""
    return {
        **report.machine_facts(TOP),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([os.path.relpath(os.path.realpath(sys.argv[0]), TOP),
                               *without_paths(sys.argv[1:])]),
        **more,
    }


def priority():
    """That of this program, which the servers and clients inherit: on a busy machine, figures of disks that sleep
    more than they compute are only right with real-time priority (chrt -r 1)."""
    return "real-time" if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO) else \
        "nice %d" % os.getpriority(os.PRIO_PROCESS, 0)


def objects(text):
    """The JSON documents in a text, one after the other."""
    found, text = [], text.strip()
    while text:
        document, end = json.JSONDecoder().raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found


def write_text(path, text):
    """Whole or not at all: an interrupted session leaves an older file alone."""
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(text if text.endswith("\n") else text + "\n")
    os.replace(path + ".new", path)


def machine(facts):
    """Where the figures of a page come from, in one line."""
    text = "Machine: %(cpu)s, %(cpu_count)d CPUs, Linux %(kernel)s" % facts
    text += ", load %.2f at the start." % facts["load_average_at_start"][0]
    for word, key, form in (("Priority", "priority", "%s"), ("Commit", "commit", "%s"), ("Command", "command", "`%s`")):
        if key in facts:
            text += " %s: %s." % (word, form % facts[key])
    return text


def drawn(options, name, drawing):
    """Writes a drawing to PREFIX-NAME.svg, or PREFIX.svg without a name, if --plots is given. Returns how a page shows it."""
    if not options.plots:
        return []
    path = options.plots + ("-" + name if name else "") + ".svg"
    write_text(path, drawing())
    return ["![%s](%s)" % (name.replace("-", " ") or "the medians", os.path.basename(path)), ""]


def publish(options, record, text, drawing=None):
    """The record to --json if given; the text to --table or else to standard output. With both, the
    medians go beside the table, as .csv. The first line of the text is its title; machine() and the drawing, a function that
    makes it, come behind it."""
    title, _, rest = text.partition("\n")
    if "facts" in record and "\nMachine: " not in text:
        more = drawn(options, "", drawing) if drawing else []
        text = "\n".join([title, "", machine(record["facts"]), "", *more]) + "\n" + rest.lstrip("\n")
    if options.json:
        samples.write(options.json, record)
        if options.table:
            write_text(os.path.splitext(options.table)[0] + ".csv", samples.medians(record))
    if options.table:
        write_text(options.table, text)
    else:
        print(text, end="" if text.endswith("\n") else "\n")


def kept(options):
    """The record that --keep continues, or None."""
    if not options.keep:
        return None
    return samples.read(options.json)


def run(work, options):
    """The exit status of work(options): its own; 77 with --quick, or else 2, where something that
    it needs is missing; 1 if something failed."""
    def interrupted(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    name = os.path.basename(sys.argv[0])
    try:
        return work(options)
    except rig.Unavailable as error:
        print("%s: %s" % (name, error), file=sys.stderr)
        return SKIP if options.quick else 2
    except (OSError, measure.ClientFailed, servers.ServerFailed) as error:
        print("%s: %s" % (name, error), file=sys.stderr)
        return 1
