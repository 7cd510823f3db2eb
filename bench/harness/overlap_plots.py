"""bench/synchro's plots: SVG, a panel for each disk and link, with the look of gmblock's own plots.

What: plots(parts) returns the documents by name: "rate" and "latency" by size of the request, on
logarithmic axes, and "states", where the server's time went as stacked bars. They have a white
ground of their own, so that they can be read on any page.
Errors: none; what was not measured is not drawn.
"""

import math
from xml.sax.saxutils import escape

from . import overlap, overlap_report
from .overlap import disk_rate, median, net_rate

PANEL_W, PANEL_H = 430, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 418, 30, 218  # the frame, in a panel
HEAD, FOOT, COLUMNS = 84, 16, 2
LINES = [  # key, title, colour, dashes
    ("disk", "disk alone", "#666666", "6 3"),
    ("net", "link alone", "#008b8b", "6 3"),
    ("serial", "model: one after the other", "#b8860b", "2 3"),
    ("overlapped", "model: overlapped", "#8a3ab9", "2 3"),
    ("off", "off", "#222222", ""),
    ("single", "single stream", "#c2521a", ""),
    ("multi", "many streams", "#1d5fa8", ""),
]
STATE_LINES = [("read", "disk only (READ)", "#c2521a"),
               ("send_init", "disk and network (SEND_INIT)", "#2e8540"),
               ("send", "network only (SEND)", "#1d5fa8"),
               ("underway", "in the socket's buffer, on the way", "#9fc0e4")]
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


def nice_range(values):
    """1-2-5 steps around the values; at least a decade."""
    low, high = min(values), max(values)
    if high / low < 10:
        low = high / 10
    return down_125(low), down_125(high) * (1 if down_125(high) >= high else 2.5)


def down_125(value):
    power = 10 ** math.floor(math.log10(value) + 1e-9)
    return max(step * power for step in (1, 2, 5) if step * power <= value * (1 + 1e-9))


def ticks_125(low, high):
    found, value = [], down_125(low)
    sparse = high / low > 300
    while value <= high * 1.001:
        lead = round(value / 10 ** math.floor(math.log10(value) + 1e-9))
        if value >= low * 0.999 and (lead == 1 or not sparse):
            found.append(value)
        value *= 2.5 if lead == 2 else 2
    return found


def curves(part, kind):
    """{key: [(size, median, low, high)]} of what is drawn as lines."""
    found = {}
    for cell in part["cells"]:
        if cell["depth"] != 1:
            continue
        size, samples = cell["bytes"], cell["samples"]
        disk, net = disk_rate(cell), net_rate(cell)
        rates = {"disk": disk, "net": net, "serial": overlap.serial(size, disk, net),
                 "overlapped": overlap.overlapped(size, disk, net, overlap.grain_of(part))}
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


def panel_frame(x, y, title):
    return text(x + LEFT, y + TOP - 8, "panel", title) + \
        '<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>\n' % (
            x + LEFT, y + TOP, RIGHT - LEFT, BOTTOM - TOP)


def line_panel(part, kind, x, y):
    found = curves(part, kind)
    points = [point for line in found.values() for point in line]
    sizes = sorted({point[0] for point in points})
    across = Axis(sizes[0] / 1.4, sizes[-1] * 1.4, x + LEFT, x + RIGHT)
    low, high = nice_range([value for point in points for value in point[1:]])
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
        out.append(path("curve", "M" + "L".join(spots), ' stroke="%s"%s' % (
            colour, ' stroke-dasharray="%s"' % dashes if dashes else "")))
        if not dashes:
            out += ['<circle cx="%s" cy="%s" r="3" fill="%s"/>\n' % (*spot.split(), colour)
                    for spot in spots]
    return "".join(out) + panel_frame(x, y, panel_title(part))


def panel_title(part):
    return "%s, %s" % (part["store"], part["link"])


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
    return "".join(out) + panel_frame(x, y, panel_title(part))


def document(title, subtitle, legend, panels):
    """panels: functions that draw at a place."""
    rows = (len(panels) + COLUMNS - 1) // COLUMNS
    width, height = COLUMNS * PANEL_W, HEAD + rows * PANEL_H + FOOT
    out = ['<?xml version="1.0" encoding="UTF-8"?>\n'
           '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
           'role="img">\n<title>%s</title>\n' % (width, height, width, height, escape(title)),
           STYLE, '<rect width="%d" height="%d" fill="#fff"/>\n' % (width, height),
           text(LEFT, 26, "head", title), text(LEFT, 44, "sub", subtitle)]
    at = LEFT
    for name, colour, dashes in legend:
        if dashes is None:
            out.append('<rect x="%d" y="57" width="14" height="10" fill="%s"/>\n' % (at, colour))
        else:
            out.append(path("curve", "M%d 62h14" % at, ' stroke="%s"%s' % (
                colour, ' stroke-dasharray="%s"' % dashes if dashes else "")))
        out.append(text(at + 19, 66, "small", name))
        at += 30 + round(6.0 * len(name))
    for i, draw in enumerate(panels):
        out.append(draw(i % COLUMNS * PANEL_W, HEAD + i // COLUMNS * PANEL_H))
    return "".join(out) + "</svg>\n"


def plots(parts):
    """By name; a plot without panels is left out."""
    legend = [(title, colour, dashes) for _, title, colour, dashes in LINES]
    wide = [part for part in parts
            if len({cell["bytes"] for cell in part["cells"] if cell["depth"] == 1}) > 1]
    stated = [part for part in parts if part["states_us"].get("multi")]
    found = {}
    if wide:
        found["rate"] = document(
            "Remote read rate by size of the request", "MB/s, one request at a time; medians, "
            "shaded from the slowest to the fastest round", legend,
            [lambda x, y, part=part: line_panel(part, "rate", x, y) for part in wide])
        found["latency"] = document(
            "Latency of a remote read by its size", "µs, one request at a time; medians, shaded "
            "from the fastest to the slowest round", legend,
            [lambda x, y, part=part: line_panel(part, "latency", x, y) for part in wide])
    if stated:
        found["states"] = document(
            "Where the time of a request goes", "shares of the mean latency; o: off, s: single "
            "stream, m: many streams",
            [(title, colour, None) for _, title, colour in STATE_LINES],
            [lambda x, y, part=part: state_panel(part, x, y) for part in stated])
    return found
