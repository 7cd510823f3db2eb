"""bench/overlap's plots: SVG, a panel for each disk and network, in the style of gmblock's own plots.

What: plots(parts) returns the documents by name, for each group of disks: "rate-GROUP" and
"latency-GROUP" by request size, on logarithmic axes, and "states-GROUP", shares of a request's time
as stacked bars.
Errors: none; what was not measured is not drawn.
"""

from . import overlap, overlap_report
from .overlap import disk_rate, median, net_rate
from .plots import (BOTTOM, LEFT, RIGHT, TOP, document, line_panel, panel_frame, path, text)

# The documents, each with its disks: at most six panels.
GROUPS = {
    "fast": ("fast disks", ("loop", "file")),
    "single": ("one paced disk", ("single",)),
    "raid4": ("RAID of 4 paced disks", ("raid4",)),
    "raid8": ("RAID of 8 paced disks", ("raid8",)),
}
LINES = [  # key, title, colour, dashes
    ("disk", "disk alone", "#666666", "6 3"),
    ("net", "network alone", "#008b8b", "6 3"),
    ("serial", "model: one after the other", "#b8860b", "2 3"),
    ("overlapped", "model: overlapped", "#8a3ab9", "2 3"),
    ("off", "overlap off", "#222222", ""),
    ("single", "overlap, single stream", "#c2521a", ""),
    ("multi", "overlap, many streams", "#1d5fa8", ""),
]
STATE_LINES = [("disk", "disk only", "#c2521a"),
               ("overlap", "disk and network", "#2e8540"),
               ("network", "network only", "#1d5fa8"),
               ("underway", "in socket buffers and on the network", "#9fc0e4")]


def curves(part, kind):
    """{key: [(size, median, low, high)]} of what is drawn as lines."""
    found = {}
    for cell in part["cells"]:
        if cell["depth"] != 1:
            continue
        size, samples = cell["bytes"], cell["samples"]
        disk, net = disk_rate(cell), net_rate(cell)
        rates = {"disk": disk, "net": net, "serial": overlap.serial(size, disk, net),
                 "overlapped": overlap.overlapped(size, disk, net, overlap.part_size_of(part))}
        for key, rate in rates.items():
            value = rate / 1e6 if kind == "rate" else size / rate * 1e6
            found.setdefault(key, []).append((size, value, value, value))
        name, scale = ("bytes_per_s", 1e6) if kind == "rate" else ("latency_p50_us", 1)
        for key in ("off", "single", "multi"):
            values = [sample[name] / scale for sample in samples.get(key, [])]
            if values:
                found.setdefault(key, []).append(
                    (size, median(samples[key], name) / scale, min(values), max(values)))
    return found


def rate_panel(part, kind, x, y):
    found = curves(part, kind)
    return line_panel(
        overlap_report.plain_name(part),
        [(found.get(key, []), colour, dashes) for key, _, colour, dashes in LINES], x, y,
        "request size", overlap_report.size_text,
        {"rate": "read rate, MB/s", "latency": "median latency, µs"}[kind])


def bar(x, width, y, shares):
    """One stacked bar, from the bottom up."""
    out, base = [], y + BOTTOM
    for (_, _, colour), share in zip(STATE_LINES, shares):
        height = share * (BOTTOM - TOP)
        base -= height
        out.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>\n'
                   % (x, base, width, height, colour))
    return "".join(out)


def state_panel(part, x, y):
    states = part["states_us"]
    sizes = sorted({int(size) for by_size in states.values() for size in by_size})
    out = []
    for i in range(5):
        at = y + BOTTOM - (BOTTOM - TOP) * i / 4
        out.append(path("grid", "M%d %.1fH%d" % (x + LEFT, at, x + RIGHT)))
        out.append(text(x + LEFT - 6, at + 4, "end small", "%d %%" % (25 * i)))
    step = (RIGHT - LEFT) / max(1, len(sizes))
    width = min(18, step / 4)
    for i, size in enumerate(sizes):
        middle = x + LEFT + step * (i + 0.5)
        for j, (way, letter) in enumerate((("off", "o"), ("single", "s"), ("multi", "m"))):
            state = dict(states.get(way, {}).get(str(size), {}))
            state["underway"] = overlap.underway_us(part, way, size) if state else 0
            total = sum(state.get(key, 0) for key, _, _ in STATE_LINES)
            at = middle + (j - 1) * (width + 2)
            out.append(text(at, y + BOTTOM + 13, "middle small", letter))
            if total > 0:
                out.append(bar(at - width / 2, width, y,
                               [state[key] / total for key, _, _ in STATE_LINES]))
        out.append(text(middle, y + BOTTOM + 28, "middle small", overlap_report.size_text(size)))
    return "".join(out) + panel_frame(
        overlap_report.plain_name(part), x, y,
        "request size (o: overlap off, s: single stream, m: many streams)", 44,
        "share of mean latency")


def plots(parts):
    """By name; a plot without panels is left out."""
    lines = [(title, colour, dashes) for _, title, colour, dashes in LINES]
    bars = [(title, colour, None) for _, title, colour in STATE_LINES]
    found = {}
    for group, (title, stores) in GROUPS.items():
        here = [part for part in parts if part["store"] in stores]
        wide = [part for part in here
                if len({cell["bytes"] for cell in part["cells"] if cell["depth"] == 1}) > 1]
        stated = [part for part in here if part["states_us"].get("multi")]
        for kind, head, shade in (("rate", "Remote read rate", "slowest to the fastest"),
                                  ("latency", "Latency of remote reads", "fastest to the slowest")):
            if wide:
                found["%s-%s" % (kind, group)] = document(
                    "%s: %s" % (head, title), "One request at a time. Lines: medians of the rounds; "
                    "shaded: from the %s round." % shade, lines,
                    [lambda x, y, part=part, kind=kind: rate_panel(part, kind, x, y)
                     for part in wide])
        if stated:
            found["states-" + group] = document(
                "Where the time of a request goes: " + title, "One request at a time.", bars,
                [lambda x, y, part=part: state_panel(part, x, y) for part in stated])
    return found
