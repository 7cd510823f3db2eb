"""What the runs add up to: medians and ratios, a table in Markdown, a record in JSON.

A cell is the median of the rounds with (min–max).  The ratio of a row is the median of gmblock
over the highest median among the peers; with several gmblock variants each has its own, and so
have the references. In a row that is a stream, the ratio is that of mode=auto over the better of
gmblock's other variants.
Errors: none of its own; a missing value shows as a dash.
"""

import os
import platform
import statistics
import subprocess

from . import servers as recipes

COSTS = [
    ("cpu_s_per_million", "CPU s per million requests", "%.2f"),
    ("cpu_s_per_gb", "CPU s per GB", "%.3f"),
    ("syscalls", "system calls per request", "%.2f"),
    ("context_switches", "context switches per request", "%.3f"),
    ("client_cpu_percent", "client, % of one CPU", "%.0f"),
]

CPU_PART = 0.3  # the target for the processor time of small requests
LOOP_PART = 0.9  # of the plain loop's rate: enough for a row in bytes, where the loop leaves less than the target


def summarize(samples, key):
    values = [sample[key] for sample in samples if sample.get(key) is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def spread(samples, key, scale=1, form="%.2f"):
    """A cell: the median (min–max)."""
    found = summarize(samples or [], key)
    return "–" if found is None else "%s (%s–%s)" % tuple(form % (found[which] / scale) for which in ("median", "min", "max"))


def points(rows, found, way, key, scale=1):
    """Of a line of a plot; rows: (x, name). What has no samples is left out."""
    summaries = [(x, summarize(found.get(name, {}).get(way, []), key)) for x, name in rows]
    return [(x, *(one[which] / scale for which in ("median", "min", "max"))) for x, one in summaries if one]


def bar(samples, key, scale, colour):
    """Of a plot."""
    found = summarize(samples, key)
    return (*(found[which] / scale for which in ("median", "min", "max")), colour)


def ratio(samples, way, other, key):
    """The median of the rounds' own ratios, which compare neighbours in time: what else the machine does meets both. None
    without one of the two."""
    found = [one[key] / base[key] for one, base in zip(samples.get(way, []), samples.get(other, []))]
    return statistics.median(found) if found else None


def figure_key(row):
    return "bytes_per_s" if row.in_bytes else "iops"


def _short(row, value):
    if row.in_bytes:
        return "%.2f" % (value / 1e9)
    return "%.1f" % (value / 1e3) if value < 100e3 else "%.0f" % (value / 1e3)


def _cell(row, summary, bold):
    if summary is None:
        return "–"
    text = _short(row, summary["median"])
    text = "**%s**" % text if bold else text
    return "%s (%s–%s)" % (text, _short(row, summary["min"]), _short(row, summary["max"]))


def is_peer(server):
    """False for gmblock's own variants and for the references."""
    return not server.startswith("gmblock") and server not in recipes.REFERENCES


class Results:
    """All samples of a session, by state, row and server; the tables are views of it."""

    def __init__(self, rows, states, servers):
        self.rows = rows
        self.states = states
        self.servers = servers
        self.samples = {}
        self.counts = {}

    def add(self, state, row, server, sample):
        self.samples.setdefault((state, row.name, server), []).append(sample)

    def add_counts(self, state, row, server, counts):
        self.counts[(state, row.name, server)] = counts

    def summary(self, state, row, server, key):
        return summarize(self.samples.get((state, row.name, server), []), key)

    def _rivals(self, state, row, server):
        if row.is_stream:
            return [other for other in self.servers[state] if other.startswith("gmblock") and other != server] \
                if server == "gmblock/auto" else []
        return [other for other in self.servers[state] if is_peer(other)]

    def _over(self, state, row, server, others):
        own = self.summary(state, row, server, figure_key(row))
        found = [self.summary(state, row, other, figure_key(row)) for other in others]
        found = [other["median"] for other in found if other is not None]
        return own["median"] / max(found) if own is not None and found else None

    def ratio(self, state, row, server):
        """The server's median over the best peer's; None without one of the two."""
        return self._over(state, row, server, self._rivals(state, row, server))

    def loop_part(self, state, row, server):
        """The server's median over that of the plain loop; None without one of the two."""
        return self._over(state, row, server, [other for other in self.servers[state] if other == recipes.SEND_LOOP])

    def verdict(self, state, row, server):
        ratio = self.ratio(state, row, server)
        if ratio is None or row.target is None or server in recipes.REFERENCES:
            return None
        return ratio >= row.target or (self.loop_part(state, row, server) or 0) >= LOOP_PART

    def _ratio_cell(self, state, row, server):
        ratio = self.ratio(state, row, server)
        if ratio is None:
            return "–"
        part = self.loop_part(state, row, server)
        return "%.2f%s%s" % (
            ratio, ", %.2f of the loop" % part if part is not None and server not in recipes.REFERENCES else "",
            {True: " ✓", False: " ✗", None: ""}[self.verdict(state, row, server)])

    def cpu_part(self, state, row, server):
        """The server's processor time per request over the thriftiest peer's, for small requests;
        None for others, for peers, and without one of the two."""
        if row.in_bytes or is_peer(server) or server in recipes.REFERENCES:
            return None
        own = self.summary(state, row, server, "cpu_s_per_million")
        peers = [self.summary(state, row, other, "cpu_s_per_million")
                 for other in self.servers[state] if is_peer(other)]
        peers = [peer["median"] for peer in peers if peer is not None]
        return own["median"] / min(peers) if own is not None and peers else None

    def _rows_in(self, state):
        return [row for row in self.rows if row.is_in(state)]

    def rate_table(self, state):
        servers = self.servers[state]
        own = [name for name in servers if not is_peer(name)]
        head = ["work", "unit", *servers, *("ratio %s" % name for name in own), "target"]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in self._rows_in(state):
            cells = {name: self.summary(state, row, name, figure_key(row)) for name in servers}
            best = max((cell["median"] for name, cell in cells.items()
                        if cell and name not in recipes.REFERENCES), default=None)
            line = [row.title, "GB/s" if row.in_bytes else "k IOPS"]
            line += [_cell(row, cells[name], bool(cells[name]) and cells[name]["median"] == best)
                     for name in servers]
            line += [self._ratio_cell(state, row, name) for name in own]
            line.append("≥ %g" % row.target if row.target is not None else "reported")
            lines.append("| " + " | ".join(line) + " |")
        return "\n".join(lines)

    def cost_table(self, state):
        head = ["work", "cost", *self.servers[state]]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in self._rows_in(state):
            for key, title, form in COSTS:
                line = [row.title, title]
                for name in self.servers[state]:
                    value = self.counts.get((state, row.name, name), {}).get(key)
                    if value is None:
                        summary = self.summary(state, row, name, key)
                        value = summary["median"] if summary else None
                    text = "–" if value is None else form % value
                    part = self.cpu_part(state, row, name) if key == "cpu_s_per_million" else None
                    if part is not None:
                        text += "; **%.2f**%s" % (part, " ✓" if part <= CPU_PART else " ✗")
                    line.append(text)
                lines.append("| " + " | ".join(line) + " |")
        return "\n".join(lines)

    def warnings(self):
        """Runs whose cache state was not what the table says."""
        found = []
        for (state, row_name, server), samples in self.samples.items():
            summary = summarize(samples, "from_device")
            if summary is None or server in recipes.REFERENCES:
                continue
            if state == "cold" and summary["min"] < 0.95:
                found.append("%s, %s: only %.0f %% of the bytes came from the device in the cold "
                             "state" % (server, row_name, 100 * summary["min"]))
            if state == "hot" and summary["max"] > 0.05:
                found.append("%s, %s: %.0f %% of the bytes came from the device in the hot state"
                             % (server, row_name, 100 * summary["max"]))
        return found

    def markdown(self, facts):
        titles = {"cold": "Cold: every block read from the device",
                  "hot": "Hot: every block in the page cache"}
        out = ["# gmblock and its peers", "",
               "Median of %(rounds)d rounds of %(seconds)g s (min–max), servers interleaved in "
               "each round, same client (%(client)s), same loop device over tmpfs. Ratio: gmblock "
               "over the best peer of the row. **Bold** CPU time: the part of the thriftiest peer's, at "
               "most %(cpu_part)g." % {**facts, "cpu_part": CPU_PART}, "",
               "References, which are not compared: `%s` is gmblock with the same bytes in memory of its "
               "own, no disk behind it. `%s` is a plain loop that sends 1 MiB of memory for each request "
               "(bench/send_loop.c): %g of its rate are enough where it leaves less than the target. Rows *after the "
               "first 64 MiB* read these first, from the same fresh server; their ratio is that of `mode=auto` over "
               "the better of the other modes." % (*recipes.REFERENCES, LOOP_PART), "",
               "Machine: %(cpu)s, %(cpu_count)d CPUs, Linux %(kernel)s. Commit: %(commit)s. "
               "Command: `%(command)s`." % facts, ""]
        out += ["- %s: %s" % item for item in sorted(facts["versions"].items())] + [""]
        for state in self.states:
            out += ["## " + titles[state], "", self.rate_table(state), "",
                    "### Costs of the server, and the client's processor time", "", self.cost_table(state), ""]
        warnings = self.warnings()
        if warnings:
            out += ["## Warnings", ""] + ["- " + text for text in warnings] + [""]
        return "\n".join(out)

    def record(self, facts):
        entries = []
        for state in self.states:
            for row in self._rows_in(state):
                for name in self.servers[state]:
                    samples = self.samples.get((state, row.name, name), [])
                    keys = sorted({key for sample in samples for key, value in sample.items()
                                   if isinstance(value, (int, float))})
                    entries.append({
                        "state": state, "row": row.name, "server": name,
                        "target": row.target,
                        "ratio": None if is_peer(name) else self.ratio(state, row, name),
                        "summary": {key: summarize(samples, key) for key in keys},
                        "per_request": self.counts.get((state, row.name, name)),
                        "samples": samples,
                    })
        return {"facts": facts, "results": entries, "warnings": self.warnings()}


def _first_line(path, prefix):
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(prefix):
                    return line.partition(":")[2].strip() or line.strip()
    except OSError:
        pass
    return "unknown"


def version_of(program):
    """The first line that the program says about its version."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0] or "unknown"


def commit_of(folder):
    """Of the checkout that the folder lies in."""
    def git(*arguments):
        try:
            result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True,
                                    text=True, check=False)
        except OSError:
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "unknown"
    # What was measured does not change with the results of another session.
    changed = git("status", "--porcelain", "-uno", "--", ":(top)", ":(top,exclude)bench/results")
    return commit + (" with local changes" if changed else "")


def machine_facts(folder):
    """Where the numbers come from; the load shows whether the machine was shared."""
    return {
        "commit": commit_of(folder),
        "kernel": platform.release(),
        "cpu": _first_line("/proc/cpuinfo", "model name"),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory": _first_line("/proc/meminfo", "MemTotal"),
        "load_average_at_start": os.getloadavg(),
        "pinning": "none",
    }
