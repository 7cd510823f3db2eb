#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gmblock-plot(1): draws the JSON of `gmblock bench` and `gmblock trace` as SVG.

What: load() reads and checks a document, drawing() returns the picture of any of the three kinds: latencies
(bench), requests of a server (trace --request), reads from a disk (trace in builds with the lab).
The first two sections, texts and axes, are also those of the plots in bench/, which import this file.
Errors: Refused, with a sentence that names the file, the reason and what to do about it.
"""
import argparse
import bisect
import json
import math
import os
import signal
import sys

# --- texts ----------------------------------------------------------------------------------------

# The code points that gmblock does not print either (utf8_is_hidden() in src/base/text.c), as first and last.
HIDDEN = [
    (0x0000, 0x001f), (0x007f, 0x009f), (0x00ad, 0x00ad), (0x034f, 0x034f), (0x0600, 0x0605), (0x061c, 0x061c),
    (0x06dd, 0x06dd), (0x070f, 0x070f), (0x115f, 0x1160), (0x17b4, 0x17b5), (0x180b, 0x180f), (0x200b, 0x200f),
    (0x2028, 0x202e), (0x2060, 0x206f), (0x3164, 0x3164), (0xd800, 0xdfff), (0xfe00, 0xfe0f), (0xfeff, 0xfeff),
    (0xffa0, 0xffa0), (0xfff0, 0xfffb), (0x1bca0, 0x1bca3), (0x1d173, 0x1d17a), (0xe0000, 0xe0fff)]
TEXT_BYTES_MAX = 1020
REFERENCES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;",
              # Valid UTF-8, but not permitted in XML.
              "\ufffe": "&#xfffd;", "\uffff": "&#xfffd;"}


def visible(words):
    """The text with \\xNN for each byte of a character that is hidden or not UTF-8; a long one is cut."""
    out, used = [], 0
    for char in words:
        place = bisect.bisect_right(HIDDEN, (ord(char), 0x110000)) - 1
        data = char.encode("utf-8", "surrogatepass")
        if 0xdc80 <= ord(char) <= 0xdcff:  # a byte of a command line that is not UTF-8
            data = os.fsencode(char)
        if place >= 0 and ord(char) <= HIDDEN[place][1]:
            data = b"".join(b"\\x%02x" % byte for byte in data)
        used += len(data)
        if used > TEXT_BYTES_MAX:
            return "".join(out) + "..."
        out.append(data.decode())
    return "".join(out)


def escape(words):
    """Any text between tags or in an attribute."""
    return "".join(REFERENCES.get(char, char) for char in visible(words))


def text(x, y, kind, words):
    return '<text x="%.1f" y="%.1f" class="%s">%s</text>\n' % (x, y, kind, escape(words))


def path(kind, data, more=""):
    return '<path class="%s" d="%s"%s/>\n' % (kind, data, more)


def frame(left, top, right, bottom):
    return '<rect class="frame" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>\n' % (
        left, top, right - left, bottom - top)


def document(width, height, left, title, subtitle, style, body):
    """style: rules in addition to the common ones."""
    return ('<?xml version="1.0" encoding="UTF-8"?>\n'
            '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">\n'
            "<title>%s</title>\n"
            "<style>\n"
            "text { font: 12px sans-serif; fill: #222 }\n"
            ".head { font-size: 16px; font-weight: bold }\n"
            ".end { text-anchor: end }\n"
            ".middle { text-anchor: middle }\n"
            ".grid { stroke: #ddd; fill: none }\n"
            ".frame { stroke: #888; fill: none }\n"
            "%s"
            "</style>\n"
            '<rect width="%d" height="%d" fill="#fff"/>\n' % (
                width, height, width, height, escape(title), style, width, height)
            + text(left, 28, "head", title) + text(left, 48, "sub", subtitle) + "".join(body) + "</svg>\n")


def duration(ns):
    """With its unit, and at most three digits."""
    for unit in ("ns", "µs", "ms"):
        if ns < 999.5:
            return "%.3g %s" % (ns, unit)
        ns /= 1000
    return "%.3g s" % ns


# --- axes -----------------------------------------------------------------------------------------

def round_125(value, up):
    """The nearest of 1, 2, 5 times a power of ten, upwards or downwards."""
    power = 10 ** math.floor(math.log10(value) + 1e-9)
    steps = [step * power for step in (1, 2, 5, 10)]
    return min(step for step in steps if step >= value * (1 - 1e-9)) if up else \
        max(step for step in steps if step <= value * (1 + 1e-9))


def ticks_125(low, high):
    """All 1-2-5 steps where there is room, else powers of ten."""
    found, value = [], round_125(low, up=True)
    while value <= high * 1.001:
        found.append(value)
        value = round_125(value * 1.5, up=True)
    return found if high / low <= 10000 * 1.001 else [
        value for value in found if abs(math.log10(value) - round(math.log10(value))) < 1e-6]


class Axis:
    """A logarithmic axis from one value to another, on pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = math.log(low), math.log(high), start, end

    def at(self, value):
        part = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * part


class Panel:
    """Time to the right, from 0, and bytes upward, from an offset on; no such axis if there are no bytes."""

    LEFT, RIGHT = 80, 830
    TICKS_MAX = 5

    def __init__(self, top, bottom, total_ns, length, offset=0):
        self.top, self.bottom = top, bottom
        self.total_ns, self.length, self.offset = max(total_ns, 1), length, offset

    def x(self, ns):
        return self.LEFT + (self.RIGHT - self.LEFT) * ns / self.total_ns

    def y(self, offset):
        return self.bottom - (self.bottom - self.top) * (offset - self.offset) / max(self.length, 1)

    def axes(self):
        """The frame, and grid lines and labels at round values."""
        out = []
        step = round_125(self.total_ns / self.TICKS_MAX, up=True)
        for i in range(math.floor(self.total_ns * (1 + 1e-9) / step) + 1):
            x = self.x(i * step)
            out.append(path("grid", "M%.1f %.1fV%.1f" % (x, self.top, self.bottom)))
            out.append(text(x, self.bottom + 18, "middle", duration(i * step) if i else "0"))
        # Sizes of requests are usually powers of two, so the ticks are powers of two.
        step = 1024
        while step * self.TICKS_MAX < self.length:
            step *= 2
        for i in range(self.length // step + 1 if self.length else 0):
            y = self.y(self.offset + i * step)
            out.append(path("grid", "M%.1f %.1fH%.1f" % (self.LEFT, y, self.RIGHT)))
            out.append(text(self.LEFT - 8, y + 4, "end", "%d KiB" % (i * step // 1024)))
        return out + [frame(self.LEFT, self.top, self.RIGHT, self.bottom)]


class Sheet:
    """Panels, one below the other, and a legend at the end."""

    WIDTH, HEAD, FOOT = 860, 74, 34

    def __init__(self, panel_height):
        self.panel_height = panel_height
        self.panels = []

    def next_top(self):
        return self.HEAD + self.panel_height * len(self.panels)

    def drawn(self, title, subtitle, style, legend):
        height = self.next_top() + self.FOOT
        return document(self.WIDTH, height, Panel.LEFT, title, subtitle, style,
                        [*self.panels, text(Panel.LEFT, height - 14, "sub", legend)])


# --- documents ------------------------------------------------------------------------------------

class Refused(Exception):
    """What cannot be drawn or written, and why."""


def malformed(what):
    return Refused(what + "; record the data again with this version of gmblock")


NUMBER_MAX = 2 ** 64
KINDS = {"list": list, "object": dict, "text": str, "yes or no": bool}


def get(place, key, kind="number", optional=False):
    """A member of an object, or of a list; it has the type that gmblock prints, or None if it can be null."""
    try:
        value = place[key]
    except (KeyError, IndexError, TypeError):
        raise malformed("'%s' is missing" % key) from None
    if value is None and optional:
        return None
    if kind in KINDS:
        fits = isinstance(value, KINDS[kind])
    else:
        fits = isinstance(value, int if kind == "count" else (int, float)) and not isinstance(value, bool) and \
            0 <= value <= NUMBER_MAX
    if not fits:
        raise malformed("'%s' is wrong (expected: %s)" % (key, kind))
    return value


def get_all(place, key, kind="object"):
    """A list whose members have a type."""
    found = get(place, key, "list")
    for i in range(len(found)):
        get(found, i, kind)
    return found


def size_text(size):
    unit = ""
    for larger in "KMGTPE":
        if size == 0 or size % 1024:
            break
        size, unit = size // 1024, larger
    return "%d%s" % (size, unit)


# --- latencies ------------------------------------------------------------------------------------
#
# The upper panel shows the share of requests at each latency. The lower one shows the share of requests up to that
# latency, on a scale with equal space for every nine of a percentile. The latency axis is common to both.

WIDTH, HEIGHT = 860, 640
LEFT, RIGHT = Panel.LEFT, Panel.RIGHT
SHARES_TOP, SHARES_BOTTOM, CDF_TOP, CDF_BOTTOM = 112, 310, 350, 580
BINS, NINES_MAX = 75, 6
DIRECTIONS, COLOURS = ("read", "write"), ("#1d5fa8", "#c2521a")


class Series:
    """The latencies of one direction, in nanoseconds."""

    def __init__(self, name, side):
        summary = get(side, "latency_us", "object")
        self.name = name
        self.low, self.high, self.p50, self.p99 = (
            round(get(summary, key) * 1000) for key in ("min", "max", "p50", "p99"))
        if self.low > self.high:
            raise malformed("'min' is more than 'max'")
        self.buckets = []
        for bucket in get_all(side, "buckets", "list"):
            low, high, count = (get(bucket, i, "count") for i in range(3))
            if low > high or count == 0:
                raise malformed("'buckets' is wrong")
            self.buckets.append((low, high, count))
        if not self.buckets:
            raise malformed("'buckets' is empty")
        self.count = sum(count for _, _, count in self.buckets)


class Latencies:
    """The drawing and its scales."""

    def __init__(self, series):
        self.series = series
        self.colours = COLOURS[:len(series)]
        self.low = round_125(max(min(one.low for one in series), 1), up=False)
        self.high = round_125(max(*(one.high for one in series), 1), up=True)
        if self.high / self.low < 10 ** 0.5:
            self.low = round_125(self.low / 10 ** 0.15, up=False)
            self.high = round_125(self.high * 10 ** 0.15, up=True)
        self.across = Axis(self.low, self.high, LEFT, RIGHT)
        # The scale ends where one request is still a visible step.
        self.nines = max(1, min(NINES_MAX, math.ceil(math.log10(max(one.count for one in series)))))
        self.bins = [self.bins_of(one) for one in series]
        highest = max(max(bins) for bins in self.bins)
        self.share_step = round_125(highest / 5, up=True)
        self.share_max = math.ceil(highest / self.share_step - 1e-9) * self.share_step

    def bins_of(self, series):
        """Adds a bucket to the bins that it overlaps, in proportion to the overlap. If each bucket went to one
        bin, the plot would show a comb, because buckets and bins have different limits."""
        bins = [0.0] * BINS
        scale = Axis(self.low, self.high, 0, BINS)
        for low, high, count in series.buckets:
            start = scale.at(max(low, 1))
            end = scale.at(max(low, 1) + high - low)
            first, last = (min(max(int(place), 0), BINS - 1) for place in (start, end))
            for i in range(first, last + 1):
                part = 1 if first == last else (min(end, i + 1) - max(start, i)) / (end - start)
                bins[i] += count / series.count * max(part, 0)
        return bins

    def y_of_share(self, share):
        return SHARES_BOTTOM - (SHARES_BOTTOM - SHARES_TOP) * share / self.share_max

    def y_of_nines(self, nines):
        return CDF_BOTTOM - (CDF_BOTTOM - CDF_TOP) * min(nines, self.nines) / self.nines

    def legend(self):
        for i, (one, colour) in enumerate(zip(self.series, self.colours)):
            y = 68 + 18 * i
            yield '<rect x="%d" y="%.1f" width="14" height="10" fill="%s"/>\n' % (LEFT, y - 9, colour)
            yield text(LEFT + 20, y, "key", "%s: median %s, 99 %% within %s, longest %s" % (
                one.name, duration(one.p50), duration(one.p99), duration(one.high)))

    def axes(self):
        for ns in ticks_125(self.low, self.high):
            x = self.across.at(ns)
            for top, bottom in ((SHARES_TOP, SHARES_BOTTOM), (CDF_TOP, CDF_BOTTOM)):
                yield path("grid", "M%.1f %dV%d" % (x, top, bottom))
                yield text(x, bottom + 18, "middle", duration(ns))
        yield text((LEFT + RIGHT) / 2, CDF_BOTTOM + 42, "middle", "latency, from submit to completion")
        marks = [(self.y_of_share(i * self.share_step), "%.3g %%" % (100 * i * self.share_step))
                 for i in range(round(self.share_max / self.share_step) + 1)]
        if self.nines <= 4:
            marks.append((self.y_of_nines(math.log10(2)), "50 %"))
        marks += [(self.y_of_nines(i), "%.*f %%" % (max(0, i - 2), 100 - 10 ** (2 - i)))
                  for i in range(self.nines + 1)]
        for y, label in marks:
            yield path("grid", "M%d %.1fH%d" % (LEFT, y, RIGHT))
            yield text(LEFT - 8, y + 4, "end", label)
        yield text(LEFT, SHARES_TOP - 4, "axis", "share of requests")
        yield text(LEFT, CDF_TOP - 4, "axis", "requests that took no longer")

    def shares(self, bins, colour):
        steps = ["V%.1fH%.1f" % (self.y_of_share(share), LEFT + (RIGHT - LEFT) * (i + 1) / BINS)
                 for i, share in enumerate(bins)]
        return path("area", "M%d %d%sV%dZ" % (LEFT, SHARES_BOTTOM, "".join(steps), SHARES_BOTTOM),
                    ' fill="%s" stroke="%s"' % (colour, colour))

    def curve(self, series, colour):
        points, seen = [(self.across.at(max(series.low, 1)), CDF_BOTTOM)], 0
        for _, high, count in series.buckets:
            seen += count
            left = series.count - seen
            x = self.across.at(max(min(high, series.high), 1))
            y = self.y_of_nines(math.log10(series.count / left)) if left else CDF_TOP
            # Skips points that cannot be distinguished from the last one, to keep the file short.
            if left == 0 or abs(x - points[-1][0]) >= 0.5 or abs(y - points[-1][1]) >= 0.5:
                points.append((x, y))
        return path("curve", "M" + "L".join("%.1f %.1f" % point for point in points),
                    ' stroke="%s"' % colour)

    def body(self):
        yield from self.legend()
        yield from self.axes()
        for one, bins, colour in zip(self.series, self.bins, self.colours):
            yield self.shares(bins, colour)
            yield self.curve(one, colour)
        yield frame(LEFT, SHARES_TOP, RIGHT, SHARES_BOTTOM)
        yield frame(LEFT, CDF_TOP, RIGHT, CDF_BOTTOM)


def plural(count, noun):
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")


def work_title(work):
    percent = get(work, "read_percent", "count")
    return "%s%s, blocks of %s%s, depth %d, %s, %s" % (
        get(work, "rw", "text"), " (%d %% reads)" % percent if 0 < percent < 100 else "",
        size_text(get(work, "block_bytes", "count")), ", each once" if get(work, "once", "yes or no") else "",
        get(work, "depth", "count"), plural(get(work, "connections", "count"), "connection"),
        plural(get(work, "threads", "count"), "thread"))


def draw_latencies(root):
    sides = [(name, get(root, name, "object", optional=True)) for name in DIRECTIONS]
    series = [Series(name, side) for name, side in sides if side is not None]
    if not series:
        raise Refused("it has no requests, so there is nothing to draw; measure for a longer time (--seconds)")
    return document(
        WIDTH, HEIGHT, LEFT, work_title(get(root, "work", "object")), get(root, "uri", "text"),
        ".area { fill-opacity: 0.35; stroke-width: 1 }\n"
        ".curve { fill: none; stroke-width: 2; stroke-linejoin: round }\n", Latencies(series).body())


# --- requests of a server -------------------------------------------------------------------------

REQUESTS_DRAWN_MAX = 6
STATES = ("wait", "disk", "overlap", "network")


def us_text(us):
    if us < 1000:
        return "%.1f us" % us
    return "%.2f ms" % (us / 1e3) if us < 1e6 else "%.2f s" % (us / 1e6)


class Request:
    """One request, with the panel that shows it."""

    def __init__(self, request, top):
        self.request, self.begin = request, top
        self.operation = get(request, "operation", "text")
        self.total_us = get(request, "total_us")
        self.length = get(request, "length", "count")
        self.offset = get(request, "offset", "count")
        self.panel = Panel(top + 42, top + 290, self.total_us * 1000, self.length, self.offset)

    def heads(self):
        """The request, and its figures."""
        states = get(self.request, "state_us", "object")
        title = self.operation
        if self.length:  # a flush has no range
            title += " of %s at %d" % (size_text(self.length), self.offset)
        yield text(LEFT, self.begin + 14, "sub",
                   '%s, export "%s"' % (title, get(self.request, "export", "text")))
        failed = get(self.request, "error", "text", optional=True) is not None
        yield text(LEFT, self.begin + 31, "sub", "%s in %s: %s" % (
            "failed" if failed else "done", us_text(self.total_us),
            ", ".join("%s %s" % (name, us_text(get(states, name))) for name in STATES)))

    def bar(self, kind, start_us, end_us, place):
        """As high as its range of bytes; a request without bytes uses the full height. A bar has at least the
        width of a line, so that it is visible."""
        left, right = (self.panel.x(us * 1000) for us in (start_us, end_us))
        low, high = self.panel.bottom, self.panel.top
        if self.length:
            offset = get(place, "offset", "count")
            low, high = self.panel.y(offset), self.panel.y(offset + get(place, "length", "count"))
        return '<rect class="%s" x="%.1f" y="%.2f" width="%.1f" height="%.2f"/>\n' % (
            kind, left, high, max(right - left, 1), low - high)

    def part(self, part):
        opened, submitted, done = (
            get(part, key, optional=True) for key in ("opened_us", "submitted_us", "done_us"))
        done = self.total_us if done is None else done
        if self.operation == "write" and opened is not None:
            yield self.bar("payload", opened, self.total_us if submitted is None else submitted, part)
        if submitted is not None:
            failed = get(part, "error", "text", optional=True) is not None
            yield self.bar("failed" if failed else "disk", submitted, done, part)
        for piece in get_all(part, "sent"):
            handed, back = get(piece, "handed_us"), get(piece, "back_us", optional=True)
            if handed > done:
                yield self.bar("waits", done, handed, piece)
            yield self.bar("network", handed, self.total_us if back is None else back, piece)
        yield from self.marks(part, submitted)

    def marks(self, part, submitted):
        """The progress that the disk reported."""
        reports = get_all(part, "progress")
        if not reports or submitted is None:
            return
        offset = get(part, "offset", "count")
        points = [(submitted, offset)] + [
            (get(report, "progress_us"), offset + get(report, "bytes", "count")) for report in reports]
        yield path("marks", "M" + "L".join(
            "%.1f %.2f" % (self.panel.x(us * 1000), self.panel.y(place)) for us, place in points))

    def drawn(self):
        yield from self.heads()
        yield from self.panel.axes()
        for part in sorted(get_all(self.request, "parts"), key=lambda part: get(part, "offset", "count")):
            yield from self.part(part)


def draw_requests(root):
    requests = get_all(root, "requests")
    if not requests:
        raise Refused("it has no requests, so there is nothing to draw; trace again while a client sends requests "
                      "that match the options")
    sheet = Sheet(340)
    for request in requests[:REQUESTS_DRAWN_MAX]:
        sheet.panels.append("".join(Request(request, sheet.next_top()).drawn()))
    return sheet.drawn(
        "Time spent by individual requests", "%d of %s, time to the right, offset upward" % (
            len(sheet.panels), plural(len(requests), "request")),
        "rect { stroke: #fff; stroke-width: 0.4 }\n"
        ".disk { fill: #1d5fa8 }\n"
        ".waits { fill: #ccc }\n"
        ".network { fill: #c2521a; fill-opacity: 0.85 }\n"
        ".payload { fill: #2e8540 }\n"
        ".failed { fill: #c71585 }\n"
        ".marks { stroke: #222; fill: none }\n",
        "blue: disk; grey: ready and waiting; orange: being sent; green: write payload being received; "
        "magenta: the disk failed")


# --- reads from a disk ----------------------------------------------------------------------------

# By stream; further streams have the last colour.
STREAM_COLOURS = ("#1d5fa8", "#c2521a", "#2e8540", "#8a3ab9", "#b8860b", "#008b8b", "#c71585", "#666666")


class Read:
    """The read of a size that took the median time, with its panel."""

    def __init__(self, size, chunk_bytes, top):
        self.read = get(get(size, "reads", "list"), get(size, "typical", "count"), "object")
        self.length, self.chunk_bytes = get(size, "bytes", "count"), chunk_bytes
        self.panel = Panel(top + 24, top + 270, get(self.read, "time_us") * 1000, self.length)

    def dots(self):
        """By colour, the places of the chunks that were seen before the read was complete."""
        arrivals, streams = (get(self.read, key, "list") for key in ("arrivals_us", "arrival_streams"))
        found = {colour: [] for colour in STREAM_COLOURS}
        for i in range(len(arrivals)):
            us, stream = get(arrivals, i, optional=True), get(streams, i, "count")
            if us is None or stream == 0:
                continue
            start = i * self.chunk_bytes
            middle = start + min(self.chunk_bytes, self.length - start) / 2
            found[STREAM_COLOURS[min(stream, len(STREAM_COLOURS)) - 1]].append(
                (self.panel.x(us * 1000), self.panel.y(middle)))
        return found

    def chunks(self):
        """All dots of a colour as one path: a line of length zero with round ends is a dot. Skips dots that could
        not be distinguished from the previous one, to keep the file short."""
        found = self.dots()
        for colour, dots in found.items():
            shown = dots[:1]
            for x, y in dots[1:]:
                if abs(x - shown[-1][0]) >= 0.5 or abs(y - shown[-1][1]) >= 0.5:
                    shown.append((x, y))
            if shown:
                yield path("dots", "".join("M%.1f %.1fh0" % dot for dot in shown), ' stroke="%s"' % colour)
        if not any(found.values()):
            yield text(LEFT + 16, (self.panel.top + self.panel.bottom) / 2, "sub",
                       "No chunk was seen before the read was complete.")

    def drawn(self):
        return [*self.panel.axes(), *self.chunks()]


def draw_reads(root):
    sizes = get_all(root, "sizes")
    if not sizes:
        raise Refused("it has no reads, so there is nothing to draw; trace the disk again")
    chunk_bytes = get(root, "chunk_bytes", "count")
    sheet = Sheet(320)
    for size in sizes:
        top = sheet.next_top()
        title = size_text(get(size, "bytes", "count"))
        sheet.panels.append("".join(
            [text(LEFT, top + 14, "sub", title), *Read(size, chunk_bytes, top).drawn()]))
    return sheet.drawn(
        "When the data of a read arrives in memory", get(root, "path", "text"),
        ".dots { stroke-width: 3; stroke-linecap: round; fill: none }\n",
        "dots: chunks at the time they were seen in memory, one colour per stream")


# --- the command ----------------------------------------------------------------------------------

# What only documents of a kind have, in their first level.
DRAW = (("work", draw_latencies), ("wanted", draw_requests), ("stripe_members", draw_reads))
WANTED = "the output of gmblock bench --json or gmblock trace --json"


def load(data):
    """The document in the bytes of a file."""
    def refuse_constant(word):
        raise ValueError(word)

    if not data.strip():
        raise Refused("there is no data; if it comes from a gmblock command, see the message of that command")
    try:
        return json.loads(data, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Refused("it is not JSON; " + WANTED + " is needed") from None


def drawing(root):
    """The picture of a document."""
    for key, draw in DRAW:
        if isinstance(root, dict) and key in root:
            return draw(root)
    raise Refused("it is the JSON of something else; " + WANTED + " is needed")


def reason(error):
    return error.strerror or str(error)


def read_input(name):
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            return file.read()
    except OSError as error:
        raise Refused("cannot read it: " + reason(error)) from None


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def write_file(name, data):
    """If the writing fails, a new file is removed."""
    is_new = False
    try:
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            is_new = True
        except FileExistsError:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        if is_new:
            os.unlink(name)
        raise Refused("%s: cannot write the plot: %s" % (name, reason(error))) from None


def write_output(name, data):
    if name != "-":
        write_file(name, data)
        return
    try:
        write_all(1, data)
    except OSError as error:
        raise Refused("standard output: cannot write the plot: " + reason(error)) from None


class Parser(argparse.ArgumentParser):
    """Prints mistakes like gmblock."""

    def error(self, message):
        fail(message + "; see gmblock-plot --help", 2)


def fail(message, status=1):
    sys.stderr.write("gmblock-plot: %s\n" % visible(message))
    sys.exit(status)


def parse_arguments():
    parser = Parser(
        prog="gmblock-plot", allow_abbrev=False, usage="gmblock-plot [-o OUTPUT] [FILE]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draws the output of gmblock bench --json or gmblock trace --json as SVG.",
        epilog="Examples:\n"
        "  gmblock bench --json nbd://storage/data | gmblock-plot -o latency.svg\n"
        "  gmblock trace --request --json | gmblock-plot -o request.svg")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE",
                        help="the JSON; default, and -: standard input")
    parser.add_argument("-o", "--output", default="-", metavar="OUTPUT",
                        help="the SVG; default, and -: standard output")
    options = parser.parse_args()
    for name, value in (("FILE", options.file), ("--output", options.output)):
        if not value:
            parser.error("%s: the path is empty" % name)
    return options


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = parse_arguments()
    try:
        try:
            picture = drawing(load(read_input(options.file)))
        except Refused as error:
            name = "standard input" if options.file == "-" else options.file
            raise Refused("%s: %s" % (name, error)) from None
        write_output(options.output, picture.encode())
    except Refused as error:
        fail(str(error))


if __name__ == "__main__":
    main()
