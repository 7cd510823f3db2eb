"""What bench/overlap found: tables, and the figures that were to be reached.

What: markdown(record) is the whole document; verdicts(record) the list of figures, each with what
was measured, the target, and met: True, False, or None where the rounds are too far apart.
Works on the plain data that the JSON file holds.
Errors: none of its own; what was not measured shows as a dash.
"""

import statistics

from . import overlap
from .overlap import (cost_ratios, disk_rate, find_cell, median, net_peak, net_rate, ratios,
                      typical)
from .report import spread

KIB, MIB = 1 << 10, 1 << 20
FLOOR = 0.98  # "never slower than off by more than 2 %"
OF_SLOWER, OVER_OFF, OVER_SINGLE, CPU_LIMIT, OVER_PEER = 0.92, 1.4, 1.25, 1.1, 1.8
NEAR = (0.45, 2.2)  # the network's rate over the disk's, with room for what was measured
EARLY_MIN = 0.15  # of the server's measure; parts that come evenly have 0.5
PATTERN_TITLES = {"read": "sequential", "once": "random"}
MARKS = {True: "✓ met", False: "✗ not met", None: "? unclear"}
WAY_TITLES = {"off": "off", "single": "single stream", "multi": "many streams",
              "again": "off, again"}


def size_text(size):
    return "%d MiB" % (size // MIB) if size >= MIB else "%d KiB" % (size // KIB)


STORE_NAMES = {"loop": "loop device in memory", "file": "file on a disk",
               "single": "one disk", "raid4": "RAID of 4", "raid8": "RAID of 8"}
NETWORK_NAMES = {None: "loopback network", 0.5: "network half as fast as the disk",
                 1: "network as fast as the disk", 2: "network twice as fast as the disk"}


def plain_name(record):
    """Of a disk behind a network, for titles."""
    words = "%s, %s" % (STORE_NAMES[record["store"]], NETWORK_NAMES[record["factor"]])
    if record["link"].startswith("gmb"):
        words += ", native protocol"
    return words[0].upper() + words[1:]


def rate_text(value):
    return "–" if value is None else "%.0f" % (value / 1e6) if value >= 100e6 \
        else "%.1f" % (value / 1e6)


def middle(values):
    return statistics.median(values) if values else None


def number(value, form="%.2f"):
    return "–" if value is None else form % value


def range_text(values, form="%.3f"):
    if not values:
        return "–"
    return "%s (%s–%s)" % tuple(form % value for value in (
        typical(values)[0], min(values), max(values)))


# --- verdicts ------------------------------------------------------------------------------------

def _named(record, cell):
    text = "%s, %s" % (plain_name(record), size_text(cell["bytes"]))
    return text if cell["depth"] == 1 else text + " × %d" % cell["depth"]


def _verdict(figure, where, measured, target, met, note=""):
    return {"figure": figure, "where": where, "measured": measured, "target": target, "met": met,
            "note": note}


def _near(record, cell):
    disk = disk_rate(cell)
    return record["factor"] is not None and disk and \
        NEAR[0] <= net_peak(record, cell) / disk <= NEAR[1]


def _of_slower(record, cell):
    """The rate of many streams over what the slower of disk and link gives by itself."""
    return median(cell["samples"].get("multi")) / min(disk_rate(cell), net_peak(record, cell))


def _lateness(record):
    early = record["reads"]["multi"]["early"]
    if early is None or early >= EARLY_MIN:  # None: not measured
        return ""
    return "this disk completes the parts of a request together (early %.2f): nothing to overlap" \
        % early


def _overlap_verdicts(record):
    cell = find_cell(record, MIB)
    if cell is None or not _near(record, cell):
        return []
    samples, where = cell["samples"], _named(record, cell)
    found = []
    share, gain = _of_slower(record, cell), middle(ratios(samples, "multi", "off"))
    disk, net = disk_rate(cell), net_peak(record, cell)
    most = min(disk, net) / overlap.serial(MIB, disk, net)
    found.append(_verdict("many streams ≥ 92 % of min(disk, network)", where,
                          "%.1f %%" % (100 * share), "≥ 92 %", share >= OF_SLOWER,
                          _lateness(record)))
    found.append(_verdict("many streams ≥ 1.4 × off", where, "%.2f" % gain, "≥ 1.4",
                          gain >= OVER_OFF, "%.2f would be all of min(disk, network)" % most))
    if record["members"] > 1 and samples.get("single"):
        over = middle(ratios(samples, "multi", "single"))
        most = min(disk, net) / overlap.striped_single(MIB, disk, net, record["members"])
        found.append(_verdict("striped: many streams ≥ 1.25 × single stream", where,
                              "%.2f" % over, "≥ 1.25", over >= OVER_SINGLE,
                              "%.2f would be all of min(disk, network)" % most))
    return found


def _noise(samples):
    """How far off strays from itself."""
    return ratios(samples, "again", "off")


def _slower_judge(_record, cell):
    """The ratio of a row, and the verdict: None where the rounds do not agree enough."""
    ratio, error = typical(ratios(cell["samples"], "multi", "off"))
    return ratio, True if ratio >= FLOOR else None if ratio * error >= FLOOR else False


def _cpu_judge(_record, cell):
    ratio, error = typical(cost_ratios(cell["samples"], "multi", "off"))
    return ratio, True if ratio <= CPU_LIMIT else None if ratio / error <= CPU_LIMIT else False


def _all_rows(records):
    return [(record, cell) for record in records for cell in record["cells"]
            if cell["samples"].get("multi") and cell["samples"].get("off")]


def _over_rows(figure, target, rows, judge, worst_of):
    """One verdict over many rows: the worst one, and which are not met or not clear."""
    if not rows:
        return []
    judged = [(record, cell, *judge(record, cell)) for record, cell in rows]
    worst = worst_of(judged, key=lambda entry: entry[2])
    note, met = "%d rows" % len(rows), True
    for verdict, word in ((None, "rounds too far apart"), (False, "not met")):
        entries = [entry for entry in judged if entry[3] is verdict]
        if entries:
            met = verdict
            note += "; %s: %s" % (word, ", ".join(
                "%s (%.3f)" % (_named(record, cell), ratio) for record, cell, ratio, _ in entries))
    return [_verdict(figure, "worst: " + _named(*worst[:2]), "%.3f" % worst[2], target, met, note)]


def _never_slower(records):
    rows = _all_rows(records)
    small = [(record, cell) for record, cell in rows if cell["bytes"] == 4 * KIB]
    return _over_rows("warm: never slower than off by more than 2 %", "≥ %.2f" % FLOOR, rows,
                      _slower_judge, min) + \
        _over_rows("requests of 4 KiB unaffected", "≥ %.2f" % FLOOR, small, _slower_judge, min)


def _new_servers(peers):
    """Those that have not compared the two ways yet, on a fast disk: one with overlap over one without, by rounds."""
    found = []
    for pattern, cells in (peers or {"cells": {}})["cells"].items():
        own, off = cells.get("gmblock"), cells.get("gmblock/off")
        if not own or not off:
            continue
        ratio, error = typical([other["latency_mean_us"] / one["latency_mean_us"] for one, other in zip(own, off)])
        found.append(_verdict(
            "new server: not slower than off by more than 2 %", "loop device, loopback network, 1 MiB, %s, mean" %
            PATTERN_TITLES[pattern], "%.3f" % ratio, "≥ %.2f" % FLOOR,
            True if ratio >= FLOOR else None if ratio * error >= FLOOR else False,
            "%.0f µs; off %.0f µs" % (median(own, "latency_mean_us"), median(off, "latency_mean_us"))))
    return found


def _cpu(records):
    found = []
    for title, paced in (("", False), (", paced disks, their timers included", True)):
        rows = [(record, cell) for record, cell in _all_rows(records)
                if (cell["rate"] is not None) == paced]
        found += _over_rows("the server's CPU per GB ≤ 1.1 × off" + title, "≤ %g" % CPU_LIMIT, rows,
                            _cpu_judge, max)
    return found


def _peer_verdicts(peers):
    """By mean and by median: they differ for servers that read ahead, where most requests find
    their data and some wait for those of many."""
    found = []
    for pattern, cells in (peers or {"cells": {}})["cells"].items():
        for key, word in (("latency_mean_us", "mean"), ("latency_p50_us", "median")):
            others = {name: median(samples, key) for name, samples in cells.items()
                      if not name.startswith("gmblock")}
            if not others or "gmblock" not in cells:
                continue
            best = min(others, key=others.get)
            own = median(cells["gmblock"], key)
            ratio = others[best] / own
            found.append(_verdict(
                "latency of 1 MiB at depth 1, loopback TCP: ≥ 1.8 × better than the best peer",
                "%s, %s" % (PATTERN_TITLES[pattern], word), "%.2f" % ratio, "≥ %g" % OVER_PEER,
                ratio >= OVER_PEER, "%.0f µs; %s %.0f µs" % (own, best, others[best])))
    return found


def verdicts(record):
    if record["facts"]["quick"]:
        return []
    found = [verdict for part in record["parts"] for verdict in _overlap_verdicts(part)]
    found.sort(key=lambda verdict: verdict["figure"])
    return found + _never_slower(record["parts"]) + _new_servers(record["peers"]) + _cpu(record["parts"]) + \
        _peer_verdicts(record["peers"])


def verdict_table(record):
    lines = ["| figure | where | measured | to reach | | |", "|" + "---|" * 6]
    for verdict in record["verdicts"]:
        lines.append("| %s | %s | %s | %s | %s | %s |" % (
            verdict["figure"], verdict["where"], verdict["measured"], verdict["target"],
            MARKS[verdict["met"]], verdict["note"]))
    return lines


# --- tables --------------------------------------------------------------------------------------

def _fixed_ways(record):
    return [way for way in record["ways"] if way not in overlap.WAYS]


def rate_table(record):
    part_size = overlap.part_size_of(record)
    fixed = _fixed_ways(record)
    head = ["request", "disk alone", "network alone", "model: one after the other",
            "model: overlapped, parts of %s" % size_text(part_size), "off", "single stream",
            "many streams", *("parts of " + way for way in fixed), "many / off", "off again / off",
            "many / single", "many / min(disk, link)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cell in record["cells"]:
        if cell["depth"] != 1:
            continue
        size, samples = cell["bytes"], cell["samples"]
        disk, net = disk_rate(cell), net_rate(cell)
        local = spread(samples.get("local"), "bytes_per_s", 1e6, "%.0f")
        line = [size_text(size), "%s (set)" % rate_text(disk) if cell["rate"] else local,
                rate_text(net), rate_text(overlap.serial(size, disk, net)),
                rate_text(overlap.overlapped(size, disk, net, part_size))]
        line += [spread(samples.get(way), "bytes_per_s", 1e6, "%.4g")
                 for way in ("off", "single", "multi", *fixed)]
        line += [range_text(ratios(samples, "multi", "off")), range_text(_noise(samples)),
                 number(middle(ratios(samples, "multi", "single"))),
                 "%.1f %%" % (100 * _of_slower(record, cell))]
        lines.append("| " + " | ".join(line) + " |")
    return lines


def cost_table(record):
    head = ["request", "p50 µs: off", "single", "many", "p99 µs: off", "single", "many",
            "server's CPU s/GB: off", "many", "many / off", "client's CPU s/GB: off", "many"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cell in record["cells"]:
        if cell["depth"] != 1:
            continue
        samples = cell["samples"]
        line = [size_text(cell["bytes"])]
        for key in ("latency_p50_us", "latency_p99_us"):
            line += [number(median(samples.get(way), key), "%.0f")
                     for way in ("off", "single", "multi")]
        line += [spread(samples.get(way), "cpu_s_per_gb", 1, "%.3g") for way in ("off", "multi")]
        line.append(number(middle(cost_ratios(samples, "multi", "off"))))
        line += [number(median(samples.get(way), "client_cpu_s_per_gb"), "%.3g")
                 for way in ("off", "multi")]
        lines.append("| " + " | ".join(line) + " |")
    return lines


def depth_table(record):
    rows = [cell for cell in record["cells"] if cell["depth"] > 1]
    if not rows:
        return []
    lines = ["Several requests at a time:", "",
             "| request × depth | off | many streams | many / off | off again / off | "
             "CPU: many / off | CPU: off again / off |", "|" + "---|" * 7]
    for cell in rows:
        samples = cell["samples"]
        lines.append("| %s × %d | %s | %s | %s | %s | %s | %s |" % (
            size_text(cell["bytes"]), cell["depth"],
            spread(samples["off"], "bytes_per_s", 1e6, "%.4g"),
            spread(samples["multi"], "bytes_per_s", 1e6, "%.4g"),
            range_text(ratios(samples, "multi", "off")), range_text(_noise(samples)),
            number(middle(cost_ratios(samples, "multi", "off"))),
            number(middle(cost_ratios(samples, "again", "off")))))
    return lines + [""]


def state_table(record):
    """Mean µs a request spends in each state. The server has sent when the kernel took the bytes;
    what the client waits beyond that they spend in the socket's buffer and on the way."""
    lines = ["| request | way | disk | disk and network | network | "
             "on the way |", "|" + "---|" * 6]
    sizes = sorted({int(size) for by_size in record["states_us"].values() for size in by_size})
    for size in sizes:
        for way in ("off", "single", "multi"):
            state = record["states_us"].get(way, {}).get(str(size))
            if state:
                lines.append("| %s | %s | %.0f | %.0f | %.0f | %.0f |" % (
                    size_text(size), WAY_TITLES[way], state["disk"], state["overlap"],
                    state["network"], overlap.underway_us(record, way, size)))
    return lines


def part_text(record):
    facts = record["facts"]
    lines = ["## " + plain_name(record), "",
             "%s; %s (`--storage %s --link %s`); %d rounds of %g s, commit %s. Network streaming "
             "without a pause: %s MB/s.%s" % (
                 record["store_title"][0].upper() + record["store_title"][1:], record["link_title"],
                 record["store"], record["link"], facts["rounds"], facts["seconds"],
                 facts["commit"], spread(record["stream"], "bytes_per_s", 1e6, "%.4g"),
                 " **%d packets were lost in the shaper.**" % record["dropped"]
                 if record["dropped"] else ""), "", "MB/s, one request at a time:", ""]
    lines += rate_table(record) + [""] + cost_table(record) + [""] + depth_table(record)
    return lines + ["Mean time of a request in each state, µs:", ""] + state_table(record) + [""]


def peers_text(peers):
    lines = ["## Other servers: 1 MiB, one request at a time, loopback TCP", "",
             "Loop device over a tmpfs, no block in the page cache, a fresh server for each run. %d "
             "rounds of %g s, commit %s." % (peers["facts"]["rounds"], peers["facts"]["seconds"],
                                             peers["facts"]["commit"]), ""]
    lines += ["- %s: %s" % item for item in sorted(peers["versions"].items())] + [""]
    lines += ["| server | order | mean µs | p50 µs | p99 µs | MB/s |", "|" + "---|" * 6]
    for pattern, cells in peers["cells"].items():
        for name, samples in cells.items():
            lines.append("| %s | %s | %s | %s | %s | %s |" % (
                name, PATTERN_TITLES[pattern], spread(samples, "latency_mean_us", 1, "%.0f"),
                spread(samples, "latency_p50_us", 1, "%.0f"),
                spread(samples, "latency_p99_us", 1, "%.0f"),
                spread(samples, "bytes_per_s", 1e6, "%.0f")))
    return lines + [""]


def markdown(record):
    facts = record["facts"]
    lines = ["# Overlap of disk and network", "",
             "The effect of starting a reply before the disk has finished. Medians of rounds "
             "(min–max); ways, disk and network take turns within each round, and ratios are those of "
             "neighbouring turns. *Warm* servers have served before a round; a *new server* starts each round without "
             "having compared the two ways. Method: bench/README.md.", ""]
    if facts["quick"]:
        lines += ["**A quick run: these numbers mean nothing.**", ""]
    else:
        lines += ["## Figures to reach", ""] + verdict_table(record) + [""]
    for text in record["missing"]:
        lines += ["- not measured: %s" % text]
    lines += [""] if record["missing"] else []
    for part in record["parts"]:
        lines += part_text(part)
    if record["peers"]:
        lines += peers_text(record["peers"])
    return "\n".join(lines)
