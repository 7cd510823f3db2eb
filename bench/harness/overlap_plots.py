"""bench/overlap's plots: SVG, a panel for each disk and network, in the style of gmblock's own plots.

What: plots(parts) returns the documents by name, for each group of disks: "rate-GROUP" and
"latency-GROUP" by request size, on logarithmic axes, and "states-GROUP", shares of a request's time
as stacked bars. They have a white background, so that they can be read on any page.
Errors: none; what was not measured is not drawn.
"""

import math
from xml.sax.saxutils import escape

from . import overlap, overlap_report
from .overlap import disk_rate, median, net_rate

PANEL_W, PANEL_H = 430, 290
LEFT, RIGHT, TOP, BOTTOM = 72, 418, 30, 228  # the frame, in a panel
HEAD, LEGEND_LINE, COLUMNS = 62, 20, 2
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
STATE_LINES = [("read", "disk only (READ)", "#c2521a"),
               ("send_init", "disk and network (SEND_INIT)", "#2e8540"),
               ("send", "network only (SEND)", "#1d5fa8"),
               ("underway", "in socket buffers and on the network", "#9fc0e4")]
STYLE = """<style>
text { font: 12px sans-serif; fill: #222 }
.head { font-size: 16px; font-weight: bold }
.panel { font-weight: bold }
.small { font-size: 11px }
.end { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #ddd; fill: none }
.frame { stroke: #888; fill: none }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round }
.band { fill-opacity: 0.15; stroke: none }
</style>
"""


def text(x, y, kind, words):
    return '<text x="%.1f" y="%.1f" class="%s">%s</text>\n' % (x, y, kind, escape(words))


def path(kind, data, more=""):
    return '<path class="%s" d="%s"%s/>\n' % (kind, data, more)


class Axis:
    """A logarithmic axis from one value to another, on pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = math.log(low), math.log(high), start, end

    def at(self, value):
        part = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * part


def round_range(values):
    """From a 1-2-5 step to another, around the values; about a decade at least."""
    low, high = min(values), max(values)
    return round_125(min(low, high / 10), up=False), round_125(high, up=True)


def round_125(value, up):
    """The nearest of 1, 2, 5 times a power of ten, upwards or downwards."""
    power = 10 ** math.floor(math.log10(value) + 1e-9)
    steps = [step * power for step in (1, 2, 5, 10)]
    return min(step for step in steps if step >= value * (1 - 1e-9)) if up else \
        max(step for step in steps if step <= value * (1 + 1e-9))


def ticks_125(low, high):
    """All 1-2-5 steps where there is room, else powers of ten."""
    found, value = [], low
    while value <= high * 1.001:
        found.append(value)
        value = round_125(value * 1.5, up=True)
    return found if high / low <= 10000 else [
        value for value in found if abs(math.log10(value) - round(math.log10(value))) < 1e-6]


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


def panel_frame(part, x, y, across, below, upward):
    """The frame with the panel's title and what its axes show; below: the distance of the words."""
    at_x, at_y = x + 14, y + (TOP + BOTTOM) / 2
    return text(x + LEFT, y + TOP - 8, "panel", overlap_report.plain_name(part)) + \
        text(x + (LEFT + RIGHT) / 2, y + BOTTOM + below, "middle small", across) + \
        '<text x="%.1f" y="%.1f" class="middle small" transform="rotate(-90 %.1f %.1f)">%s</text>\n' \
        % (at_x, at_y, at_x, at_y, upward) + \
        '<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>\n' % (
            x + LEFT, y + TOP, RIGHT - LEFT, BOTTOM - TOP)


def line_panel(part, kind, x, y):
    found = curves(part, kind)
    points = [point for line in found.values() for point in line]
    sizes = sorted({point[0] for point in points})
    across = Axis(sizes[0] / 1.4, sizes[-1] * 1.4, x + LEFT, x + RIGHT)
    low, high = round_range([value for point in points for value in point[1:]])
    upward = Axis(low, high, y + BOTTOM, y + TOP)
    out = []
    for size in sizes:
        out.append(path("grid", "M%.1f %dV%d" % (across.at(size), y + TOP, y + BOTTOM)))
        out.append(text(across.at(size), y + BOTTOM + 16, "middle small",
                        overlap_report.size_text(size)))
    for value in ticks_125(low, high):
        out.append(path("grid", "M%d %.1fH%d" % (x + LEFT, upward.at(value), x + RIGHT)))
        out.append(text(x + LEFT - 6, upward.at(value) + 4, "end small", "%.12g" % value))
    for key, _, colour, dashes in LINES:
        line = found.get(key, [])
        if not line:
            continue
        if any(point[2] < point[3] for point in line) and len(line) > 1:
            edge = ["%.1f %.1f" % (across.at(p[0]), upward.at(p[3])) for p in line] + \
                   ["%.1f %.1f" % (across.at(p[0]), upward.at(p[2])) for p in reversed(line)]
            out.append(path("band", "M" + "L".join(edge) + "Z", ' fill="%s"' % colour))
        spots = ["%.1f %.1f" % (across.at(p[0]), upward.at(p[1])) for p in line]
        out.append(path("curve", "M" + "L".join(spots), stroke(colour, dashes)))
        if not dashes:
            out += ['<circle cx="%s" cy="%s" r="3" fill="%s"/>\n' % (*spot.split(), colour)
                    for spot in spots]
    return "".join(out) + panel_frame(part, x, y, "request size", 34, {
        "rate": "read rate, MB/s", "latency": "median latency, µs"}[kind])


def stroke(colour, dashes):
    return ' stroke="%s"%s' % (colour, ' stroke-dasharray="%s"' % dashes if dashes else "")


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
        part, x, y, "request size (o: overlap off, s: single stream, m: many streams)", 44,
        "share of mean latency")


def legend_of(entries):
    """The legend's drawing, and how many lines it has; entries: (name, colour, dashes or None)."""
    out, at, line = [], LEFT, 0
    for name, colour, dashes in entries:
        width = 34 + round(6.2 * len(name))
        if at + width > COLUMNS * PANEL_W:
            at, line = LEFT, line + 1
        y = HEAD + LEGEND_LINE * line
        out.append('<rect x="%d" y="%d" width="14" height="10" fill="%s"/>\n' % (at, y - 5, colour)
                   if dashes is None else path("curve", "M%d %dh14" % (at, y),
                                               stroke(colour, dashes)))
        out.append(text(at + 19, y + 4, "small", name))
        at += width
    return "".join(out), line + 1


def document(title, subtitle, legend, panels):
    """panels: functions that draw at a place."""
    rows = (len(panels) + COLUMNS - 1) // COLUMNS
    drawn, lines = legend_of(legend)
    top = HEAD + LEGEND_LINE * lines
    width, height = COLUMNS * PANEL_W, top + rows * PANEL_H
    out = ['<?xml version="1.0" encoding="UTF-8"?>\n'
           '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
           'role="img">\n<title>%s</title>\n' % (width, height, width, height, escape(title)),
           STYLE, '<rect width="%d" height="%d" fill="#fff"/>\n' % (width, height),
           text(LEFT, 26, "head", title), text(LEFT, 44, "sub", subtitle), drawn]
    for i, draw in enumerate(panels):
        out.append(draw(i % COLUMNS * PANEL_W, top + i // COLUMNS * PANEL_H))
    return "".join(out) + "</svg>\n"


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
                    [lambda x, y, part=part, kind=kind: line_panel(part, kind, x, y)
                     for part in wide])
        if stated:
            found["states-" + group] = document(
                "Where the time of a request goes: " + title, "One request at a time.", bars,
                [lambda x, y, part=part: state_panel(part, x, y) for part in stated])
    return found
