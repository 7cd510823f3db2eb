"""One part of bench/overlap: a disk behind a link, read in all ways and sizes, round by round.

What: run_part() serves the disk once for each way, interleaves the ways within every round, with
the local disk and the bare link beside them, and returns a record of plain data (what the JSON
file keeps): cells of samples for each size and depth, and where the requests' time went as the
server counts it. The models say what such a disk and link would give in theory.
Ownership: starts and ends its processes itself. Errors: rig.Unavailable for what is not there,
measure.ClientFailed and servers.ServerFailed for what went wrong.
"""

import contextlib
import itertools
import math
import statistics
import subprocess
import sys

from . import against, daemons, measure, session, spellings

CLIENT_TIMEOUT_S = 120
STATES = ("wait", "disk", "overlap", "network")
# How a way is called, the keys of its export, and what its client asks for.
WAYS = {
    "off": ("overlap=off", "any"),
    # With auto a client that wants one chunk is answered when the whole read is done; a size overrides that.
    "single": ("parts=64K", "df"),
    "multi": ("overlap=auto", "any"),
    "again": ("overlap=off", "any"),  # off once more: any difference is the machine's noise
}
BASES = ("off", "single")  # what ratios are taken of
DEPTH_WAYS = ("off", "multi", "again")
# How long a way has its turn: short, so that what disturbs the machine disturbs all of them, and
# so that no connection is idle for as long as TCP forgets what it can carry. With several requests
# a turn is some times as long as all of them, since it begins and ends with none.
SLICE_S, SLICE_DEEP_S, SLICE_DEEP_TIMES = 0.005, 0.02, 4
PART_SIZE_GUESS = 64 << 10


class Tools:
    """The programs: gmblock, and the small programs of the build."""

    def __init__(self, gmblock, client, raw):
        self.gmblock = gmblock
        self.client = client
        self.raw = raw


def way_of(name):
    """One of WAYS, or a part size such as 64K."""
    return WAYS.get(name) or ("parts=" + name, "any")


def run_tool(command):
    """A program that prints JSON documents; gives them as a list."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=CLIENT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise measure.ClientFailed("%s hangs" % " ".join(command)) from error
    if done.returncode != 0:
        raise measure.ClientFailed("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return session.objects(done.stdout)


def serve(program, store, link, ways):
    """A server at its end of the link with an export for each way."""
    # One thread: all ways are served by the same one, as each would be if it were alone.
    # gmb has no encryption: on other addresses than loopback, that must be said.
    command = [*link.server_prefix, program, "serve", "--threads", "1", "--listen",
               "%s://%s:0%s" % (link.scheme, link.address, "?insecure-network=yes" if link.scheme == "gmb" else "")]
    path = store.path.replace("\\", "\\\\").replace(",", "\\,")
    for way in ways:
        keys = spellings.spelled(program, "readonly,%s,%s" % (store.keys, way_of(way)[0]))
        command += ["--export", "%s=%s,%s" % (way, path, keys)]
    return daemons.Daemon(command, lines=len(ways), what="gmblock")


def run_client(tools, link, work, ways, compare=""):
    """What overlap_client says of each (server, way), which take turns."""
    command = [*link.client_prefix, tools.client, *work, compare]
    for server, way in ways:
        base = server.said[0].partition("?")[0].rpartition("/")[0]
        command += ["%s/%s" % (base, way), way_of(way)[1], "0" if compare else str(server.pid)]
    samples = run_tool(command)
    if any(sample["hole_reads"] > 0 for sample in samples):
        raise measure.ClientFailed("reads were answered without payload: no measurement")
    return samples


def work_of(size, depth, seed, slower, options):
    """The client's arguments for one run; slower: about what the slower of disk and link gives,
    bytes per second."""
    slice_s = SLICE_S if depth == 1 else max(SLICE_DEEP_S, SLICE_DEEP_TIMES * depth * size / slower)
    return ["randread", str(size), str(depth), "%g" % max(options.seconds, 2 * slice_s),
            "%g" % slice_s, "%g" % options.warmup, str(seed)]


def check(tools, link, store, server, way, size, options):
    """Bytes are what they should be, also for many requests at once."""
    seconds = "%g" % options.check_seconds
    run_client(tools, link, ["once", str(size), "4", seconds, seconds, "0", "1"], [(server, way)],
               store.path)


class Part:
    """A disk, a link, and the server between them while it runs; slower: about what the slower of
    disk and link gives, bytes per second."""

    def __init__(self, tools, store, link, ways, options, slower):
        self.slower = slower
        self.tools = tools
        self.store = store
        self.link = link
        # The native protocol has no flag for one fragment.
        self.ways = [way for way in ways if link.scheme == "nbd" or way_of(way)[1] != "df"]
        self.options = options
        self._server = None
        self._sender = None

    def __enter__(self):
        try:
            self._server = serve(self.tools.gmblock, self.store, self.link, self.ways)
            self._sender = daemons.Daemon([*self.link.server_prefix, self.tools.raw, "send",
                                           self.link.address], what="raw_rate")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in (self._sender, self._server):
            if daemon is not None:
                daemon.stop()

    def read(self, ways, size, depth, seed):
        """A sample for each way; they take turns within the run."""
        samples = run_client(self.tools, self.link, work_of(size, depth, seed, self.slower,
                                                            self.options),
                             [(self._server, way) for way in ways])
        turns = {way: sample.pop("turns") for way, sample in zip(ways, samples)}
        for way, sample in zip(ways, samples):
            # Turns that followed each other are compared: the median forgets what disturbed some.
            sample["over"] = {other: statistics.median(
                mine / theirs for mine, theirs in zip(turns[way], turns[other]))
                for other in ways if other in BASES and other != way}
            gigabytes = sample["requests"] * size / 1e9
            sample["cpu_s_per_gb"] = sample["server_cpu_s"] / gigabytes
            sample["client_cpu_s_per_gb"] = sample["client_cpu_s"] / gigabytes
        return dict(zip(ways, samples))

    def check(self, way, size):
        """Bytes are what they should be, also for many requests at once."""
        check(self.tools, self.link, self.store, self._server, way, size, self.options)

    def local(self, size, seed):
        return run_local(self.tools, self.store, size, self.options, seed)

    def raw(self, mode, size):
        return run_tool([*self.link.client_prefix, self.tools.raw, mode, self.link.address,
                         self._sender.said[0], str(size), "%g" % self.options.seconds,
                         "%g" % self.options.warmup])[0]

    def stats(self):
        """The server's own statistics, by export."""
        statistics_now, = run_tool([self.tools.gmblock, "stats", "--json", str(self._server.pid)])
        return {export["name"]: export for export in statistics_now["exports"]}


def run_local(tools, store, size, options, seed):
    """The disk by itself, one read at a time."""
    return run_tool([tools.raw, "disk", store.path, str(size), "%g" % options.seconds,
                     "%g" % options.warmup, str(seed)])[0]


def local_rate(tools, store, size, options):
    """What the disk gives locally, as the link is to be shaped after it."""
    known = store.rate(size)
    if known is not None:
        return known
    return statistics.median(run_local(tools, store, size, options, seed)["bytes_per_s"]
                             for seed in range(3))


# --- two programs --------------------------------------------------------------------------------

def compare_part(tools, store, link, ways, options, sizes, depths, slower, found):
    """Adds pairs of every cell to found, an against.Comparison. Each turn has two fresh servers, since
    where a connection's buffers lie can make it faster or slower than another that does the same;
    old and new take turns of milliseconds in one run of the client."""
    cells = [(size, 1) for size in sizes] + depths
    with link:
        for turn in range(options.pairs):
            with contextlib.ExitStack() as stack:
                running = {side: stack.enter_context(serve(program, store, link, ways))
                           for side, program in found.programs.items()}
                if turn == 0:
                    for server, way in itertools.product(running.values(), ways):
                        check(tools, link, store, server, way, max(sizes), options)
                for (size, depth), way in itertools.product(cells, ways):
                    if depth == 1 or way in DEPTH_WAYS:
                        _compare_cell(tools, store, link, running, way,
                                      work_of(size, depth, 1000 + turn, slower, options), found,
                                      turn)


def _compare_cell(tools, store, link, running, way, work, found, turn):
    size, depth = int(work[1]), int(work[2])
    order = against.order(turn)
    pair = dict(zip(order, run_client(tools, link, work,
                                      [(running[side], way) for side in order])))
    rates = {side: sample.pop("turns") for side, sample in pair.items()}
    for sample in pair.values():
        sample["rate"] = sample["bytes_per_s"] / 1e6
        sample["cpu"] = sample["server_cpu_s"] * 1e6 / sample["requests"]
    cell = "%d KiB × %d, %s" % (size >> 10, depth, way)
    against.say("%s, %s, %s" % (store.name, link.name, cell), turn, found.add(
        "%s/%s/%d/%d/%s" % (store.name, link.name, size, depth, way),
        "%s, %s, %s" % (store.title, link.title, cell), "MB/s", pair,
        statistics.median(new / old for new, old in zip(rates["new"], rates["old"]))))


# --- one program, all ways -----------------------------------------------------------------------

def _say(part, text):
    print("%s, %s: %s" % (part.store.name, part.link.name, text), file=sys.stderr, flush=True)


def _round(part, cells, turn, keys):
    """Every cell of keys once more: (size, depth) with its ways, the disk and the link."""
    for size, depth in keys:
        cell = cells.setdefault((size, depth), {})
        ways = part.ways if depth == 1 else [way for way in part.ways if way in DEPTH_WAYS]
        for way, sample in part.read(session.rotated(ways, turn), size, depth, 1000 + turn).items():
            cell.setdefault(way, []).append(sample)
        if depth == 1:
            if part.store.rate(size) is None:
                cell.setdefault("local", []).append(part.local(size, 1000 + turn))
            cell.setdefault("net", []).append(part.raw("reply", size))


def ratios(cell, way, other):
    """Of the rates, one for each round."""
    return [sample["over"][other] for sample in cell.get(way, []) if other in sample["over"]]


def cost_ratios(cell, way, other):
    """Of the server's processor time, one for each round."""
    return [mine["cpu_s_per_gb"] / theirs["cpu_s_per_gb"]
            for mine, theirs in zip(cell.get(way, []), cell.get(other, []))
            if theirs["cpu_s_per_gb"] > 0]


def typical(values):
    """The geometric mean of ratios, and the factor that it may be off by (two standard errors).
    Not the median: buffers that fit the processor's caches well or badly make a connection one of
    two kinds, and a median would jump between them."""
    logs = [math.log(value) for value in values]
    error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0
    return math.exp(statistics.mean(logs)), math.exp(error)


def _doubtful(cell, floor):
    found = ratios(cell, "multi", "off")
    return bool(found) and typical(found)[0] < floor


def _states(part, size_of_class):
    """Mean time in each state by way and size, of the requests of depth 1 so far."""
    found = {}
    for way, export in part.stats().items():
        for operation in export["operations"]:
            size = size_of_class.get(operation["size_max"])
            if operation["operation"] == "read" and size is not None:
                found.setdefault(way, {})[str(size)] = {
                    state: operation["state_us"][state] for state in STATES}
    return found


def _reads(part):
    """By way: the part size that the server chose last, the rates that it follows from, and how
    early parts came: 0 all at the end, 0.5 evenly, None not measured."""
    return {way: export["reads"] for way, export in part.stats().items()
            if export["overlap"] != "off"}


def size_classes(sizes):
    """The statistics have a class for 4, 16, 64 KiB … 16 MiB and less; which of the sizes is alone
    in its class, by the limit of the class."""
    classes = {}
    for size in sizes:
        limit = 4096
        while limit < size:
            limit *= 4
        classes.setdefault(limit, []).append(size)
    return {limit: found[0] for limit, found in classes.items() if len(found) == 1}


def run_part(tools, store, link, ways, options, sizes, depths, slower):
    """depths: pairs of size and depth above 1."""
    with link, Part(tools, store, link, ways, options, slower) as part:
        for way in part.ways:
            part.check(way, max(sizes))
            part.check(way, min(sizes))
        cells, streams = {}, []
        for turn in range(options.rounds):
            streams.append(part.raw("stream", 64 << 10))
            _round(part, cells, turn, [(size, 1) for size in sizes])
            _say(part, "round %d of %d" % (turn + 1, options.rounds))
        states, reads = _states(part, size_classes(sizes)), _reads(part)
        for turn in range(options.rounds if depths else 0):
            _round(part, cells, turn, depths)
        # A row that looks slower than off is looked at again: two per cent is less than the
        # machine's noise, and more rounds show which of the two it was.
        for turn in range(options.rounds, options.rounds * (1 + options.again)):
            again = [key for key, cell in cells.items() if _doubtful(cell, options.floor)]
            if again:
                _say(part, "once more: %s" % ", ".join("%d KiB × %d" % (size >> 10, depth)
                                                         for size, depth in again))
                _round(part, cells, turn, again)
        dropped = link.dropped()
    return record_of(part, cells, streams, states, reads, dropped)


def record_of(part, cells, streams, states, reads, dropped):
    store, link = part.store, part.link
    return {
        "store": store.name, "store_title": store.title, "members": store.members,
        "link": link.name, "link_title": link.title, "factor": link.factor,
        "shaped_bytes_per_s": link.rate, "dropped": dropped,
        "ways": {way: way_of(way) for way in part.ways},
        "reads": reads, "states_us": states, "stream": streams,
        "cells": [{"bytes": size, "depth": depth, "rate": store.rate(size), "samples": cell}
                  for (size, depth), cell in sorted(cells.items(), key=lambda item: (
                      item[0][1], item[0][0]))],
    }


# --- what a cell says ----------------------------------------------------------------------------

def median(samples, key="bytes_per_s"):
    values = [sample[key] for sample in samples or []]
    return statistics.median(values) if values else None


def disk_rate(cell):
    return cell["rate"] or median(cell["samples"].get("local"))


def net_rate(cell):
    """Of the bare link, one reply of that size at a time."""
    return median(cell["samples"].get("net"))


def net_peak(record, cell):
    """The best that the bare link gave in either way."""
    return max(median(record["stream"]), net_rate(cell) or 0)


def serial(size, disk, net):
    """First the disk, then the network: 1 / (1 / disk + 1 / net)."""
    return size / (size / disk + size / net)


def overlapped(size, disk, net, part_size):
    """A first part from the disk, then both at the rate of the slower, a last part to send."""
    part_size = min(part_size, size)
    return size / (part_size / disk + (size - part_size) / min(disk, net) + part_size / net)


def striped_single(size, disk, net, members):
    """In ascending order a striped disk's first member is sent as it comes, the others after."""
    hidden = min(size / members, size / disk * net)
    return size / (size / disk + (size - hidden) / net)


def underway_us(record, way, size):
    """The mean time that the client waits beyond the time in the server."""
    cell = find_cell(record, size)
    samples = cell["samples"].get(way) if cell else None
    if not samples:
        return 0
    return max(0, statistics.mean(sample["latency_mean_us"] for sample in samples)
               - sum(record["states_us"][way][str(size)].values()))


def part_size_of(record):
    return record["reads"]["multi"]["part_size"] or PART_SIZE_GUESS


def find_cell(record, size, depth=1):
    for cell in record["cells"]:
        if cell["bytes"] == size and cell["depth"] == depth:
            return cell
    return None
