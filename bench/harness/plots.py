"""SVG plots in the style of gmblock-plot, whose texts and axes they share: panels side by side, a legend above.

What: document() puts panels into one drawing; line_panel() draws lines of medians with their spread
on logarithmic axes, bar_panel() bars. A line is a list of points (x, median, low, high). They have a white background,
so that they can be read on any page.
Errors: none; a line without points is not drawn.
"""

import math
import os
import sys

from .cmdline import TOP as ROOT

sys.path.append(os.path.join(ROOT, "python"))
import gmblock_plot  # noqa: E402 (the path comes first)
from gmblock_plot import Axis, path, round_125, text, ticks_125  # noqa: E402

PANEL_W, PANEL_H = 430, 290
LEFT, RIGHT, TOP, BOTTOM = 72, 418, 30, 228  # the frame, in a panel
HEAD, LEGEND_LINE, COLUMNS = 66, 20, 2
STYLE = """.panel { font-weight: bold }
.small { font-size: 11px }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round }
.band { fill-opacity: 0.15; stroke: none }
"""


def round_range(values):
    """From a 1-2-5 step to another, around the values; about a decade at least."""
    low, high = min(values), max(values)
    return round_125(min(low, high / 10), up=False), round_125(high, up=True)


def stroke(colour, dashes):
    return ' stroke="%s"%s' % (colour, ' stroke-dasharray="%s"' % dashes if dashes else "")


def panel_frame(title, x, y, across, below, upward):
    """The frame with the panel's title and what its axes show; below: the distance of the words."""
    at_x, at_y = x + 14, y + (TOP + BOTTOM) / 2
    return text(x + LEFT, y + TOP - 8, "panel", title) + \
        text(x + (LEFT + RIGHT) / 2, y + BOTTOM + below, "middle small", across) + \
        '<text x="%.1f" y="%.1f" class="middle small" transform="rotate(-90 %.1f %.1f)">%s</text>\n' \
        % (at_x, at_y, at_x, at_y, upward) + \
        '<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>\n' % (
            x + LEFT, y + TOP, RIGHT - LEFT, BOTTOM - TOP)


def line_panel(title, lines, x, y, across_words, across_text, upward_words):
    """lines: (points, colour, dashes), the last drawn on top; across_text: what a tick is called."""
    points = [point for line, _, _ in lines for point in line]
    if not points:
        return panel_frame(title, x, y, across_words, 34, upward_words)
    places = sorted({point[0] for point in points})
    across = Axis(places[0] / 1.4, places[-1] * 1.4, x + LEFT, x + RIGHT)
    low, high = round_range([value for point in points for value in point[1:]])
    upward = Axis(low, high, y + BOTTOM, y + TOP)
    out = []
    for place in places:
        out.append(path("grid", "M%.1f %dV%d" % (across.at(place), y + TOP, y + BOTTOM)))
        out.append(text(across.at(place), y + BOTTOM + 16, "middle small", across_text(place)))
    for value in ticks_125(low, high):
        out.append(path("grid", "M%d %.1fH%d" % (x + LEFT, upward.at(value), x + RIGHT)))
        out.append(text(x + LEFT - 6, upward.at(value) + 4, "end small", "%.12g" % value))
    for line, colour, dashes in lines:
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
    return "".join(out) + panel_frame(title, x, y, across_words, 34, upward_words)


def bar_panel(title, bars, x, y, across_words, upward_words):
    """bars: (value, low, high, colour), with their spread as whiskers, on a linear axis that has 0."""
    highest = max([high for _, _, high, _ in bars] + [0])
    lowest = min([low for _, low, _, _ in bars] + [0])
    step = round_125(max(highest - lowest, 1) / 5, up=True)
    low, high = math.floor(lowest / step), math.ceil(max(1.08 * highest, step) / step)  # room for the words

    def at(value):
        return y + BOTTOM - (BOTTOM - TOP) * (value / step - low) / (high - low)

    out = []
    for tick in range(low, high + 1):
        out.append(path("grid", "M%d %.1fH%d" % (x + LEFT, at(tick * step), x + RIGHT)))
        out.append(text(x + LEFT - 6, at(tick * step) + 4, "end small", "%.6g" % (tick * step)))
    room = (RIGHT - LEFT) / max(1, len(bars))
    for i, (value, below, above, colour) in enumerate(bars):
        middle = x + LEFT + room * (i + 0.5)
        top, bottom = sorted((at(value), at(0)))
        out.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>\n'
                   % (middle - room * 0.35, top, room * 0.7, bottom - top, colour))
        out.append(path("frame", "M%.1f %.1fV%.1f" % (middle, at(below), at(above))))
        out.append(text(middle, at(max(value, above, 0)) - 4, "middle small", "%.1f" % value))
    return "".join(out) + panel_frame(title, x, y, across_words, 20, upward_words)


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
    body = [draw(i % COLUMNS * PANEL_W, top + i // COLUMNS * PANEL_H) for i, draw in enumerate(panels)]
    return gmblock_plot.document(width, height, LEFT, title, subtitle, STYLE, [drawn, *body])
