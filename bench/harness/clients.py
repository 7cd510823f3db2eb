"""The clients under test, one run of each, and what shows whether they copy payload.

What: CLIENTS maps a name to a client; run() drives a work row against a server and returns a sample
with iops, bytes_per_s, requests and cpu_us_per_request, the client's own processor time as it measures
it over the timed part of its run; fio and gmblock also have latencies. In the state "cold", which
those two know, no block is read twice. On a machine so busy that nothing was measured, a run is
repeated with twice the time (measure.long_enough()). copies() and profile() look at one run from outside.
Errors: measure.ClientFailed if a client fails; profile() returns None where perf is missing.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile

from . import measure, session


class Client:
    """How one client is run on a row; arguments of the work come in the client's own words."""

    def __init__(self, name, title):
        self.name = name
        self.title = title

    def command(self, row, uri, seconds, size_bytes, seed, state):
        raise NotImplementedError

    def sample(self, _row, document):
        """The figures from what the client printed."""
        return {
            "iops": document["iops"],
            "bytes_per_s": document["bytes_per_second"],
            "requests": document["requests"],
            "cpu_us_per_request": document["cpu_us_per_request"],
        }

    def run(self, row, uri, seconds, size_bytes, seed, state="hot", environment=None):
        return measure.long_enough(lambda seconds: self.run_once(
            row, uri, seconds, size_bytes, seed, state, environment), seconds)

    def run_at(self, server, row, seconds, size_bytes, seed):
        """With the processor time of the server."""
        before = measure.cpu_seconds(server)
        sample = self.run(row, server.uri, seconds, size_bytes, seed)
        sample["server_cpu_us_per_request"] = (measure.cpu_seconds(server) - before) * 1e6 / sample["requests"]
        return sample

    def run_once(self, row, uri, seconds, size_bytes, seed, state, environment):
        """Requests that cost no time that the client can tell are not measured, either."""
        command = self.command(row, uri, seconds, size_bytes, seed, state)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, env={**os.environ, **(environment or {})})
        start = done.stdout.find("{")
        try:
            document = json.loads(done.stdout[start:])
        except ValueError:
            document = None
        if done.returncode != 0 or start < 0 or document is None:
            raise measure.failure("%s\n%s" % (" ".join(command), done.stdout), done.stderr)
        sample = self.sample(row, document)
        if sample["requests"] == 0 or sample["cpu_us_per_request"] == 0:
            raise measure.NothingMeasured("%s: no request completed in %g s" % (self.name, seconds))
        sample["command"] = " ".join(session.without_paths(command))
        return sample


class Gmblock(Client):
    """connections: None for as many as the row has jobs; extra: more options."""

    program = None
    extra = ()

    def __init__(self, name, title, connections):
        super().__init__(name, title)
        self.connections = connections

    def command(self, row, uri, seconds, size_bytes, seed, state):
        return [self.program, "bench", "--json", "--rw", row.rw, "--bs", str(row.block_bytes),
                "--depth", str(row.depth), "--connections", self.connections or str(row.jobs),
                "--seconds", "%g" % seconds, "--seed", str(seed), *(["--force"] if row.writes else []),
                *(["--once"] if state == "cold" and not row.writes else []),
                *(["--offset", str(row.start_bytes)] if row.start_bytes else []),
                *(["--size", str(row.end_bytes - row.start_bytes)] if row.end_bytes else []), *self.extra, uri]

    def sample(self, row, document):
        latency, process = document["latency_us"], document["process"]
        return {
            **super().sample(row, document),
            "connections": document["work"]["connections"],
            "latency_mean_us": latency["mean"],
            "latency_p50_us": latency["p50"],
            "latency_p99_us": latency["p99"],
            "system_calls_per_request": process["system_calls_per_request"],
            "payload_bytes": process["payload_bytes_received"],
            "payload_bytes_copied": process["payload_bytes_copied"],
        }


class Fio(Client):
    def engine(self, uri):
        return ["--ioengine=nbd", "--uri=" + uri]

    def command(self, row, uri, seconds, size_bytes, seed, state):
        part = ((row.end_bytes or size_bytes) - row.start_bytes) // row.jobs // row.block_bytes * row.block_bytes
        command = ["fio", "--name=" + row.name, *self.engine(uri), "--thread=1",
                   "--rw=" + row.rw, "--bs=%d" % row.block_bytes, "--iodepth=%d" % row.depth,
                   "--numjobs=%d" % row.jobs, "--group_reporting=1",
                   "--runtime=%dms" % round(seconds * 1000),
                   "--size=%d" % part, "--randseed=%d" % seed, "--output-format=json"]
        if row.start_bytes > 0:
            command.append("--offset=%d" % row.start_bytes)
        if row.jobs > 1:
            command.append("--offset_increment=%d" % part)
        if state == "hot" or row.writes:
            command += ["--time_based=1", "--norandommap=1"]
        return command

    def sample(self, row, document):
        job = document["jobs"][0]
        side = job["write" if row.writes else "read"]
        if job["error"] != 0:
            raise measure.ClientFailed("fio: %s" % os.strerror(job["error"]))
        if side["total_ios"] == 0:
            raise measure.NothingMeasured("fio: no request completed")
        percentile = side["clat_ns"]["percentile"]
        busy = (job["usr_cpu"] + job["sys_cpu"]) / 100
        return {
            "iops": side["iops"],
            "bytes_per_s": side["bw_bytes"],
            "requests": side["total_ios"],
            # job_runtime is the sum of all jobs, and the shares are of that.
            "cpu_us_per_request": busy * job["job_runtime"] * 1000 / side["total_ios"],
            "latency_mean_us": side["clat_ns"]["mean"] / 1000,
            "latency_p50_us": percentile["50.000000"] / 1000,
            "latency_p99_us": percentile["99.000000"] / 1000,
        }


class LocalFio(Fio):
    """The disk itself, without a server: the URI is its path."""

    def engine(self, uri):
        return ["--ioengine=io_uring", "--direct=1", "--filename=" + uri]


class LibnbdLoop(Client):
    program = None

    def __init__(self, name, title, replies):
        super().__init__(name, title)
        self.replies = replies

    def command(self, row, uri, seconds, size_bytes, seed, state):
        return [self.program, uri, row.rw, str(row.block_bytes), str(row.depth), "%g" % seconds,
                str(seed), self.replies]


class Discard(Client):
    """No client but a control: it throws the payload away inside the kernel, so that what it
    reaches is what the server can send over one connection."""

    program = None

    def command(self, row, uri, seconds, size_bytes, seed, state):
        return [self.program, uri, row.rw, str(row.block_bytes), str(row.depth), "%g" % seconds,
                str(seed)]


CLIENTS = {client.name: client for client in [
    Gmblock("gmblock", "libgmblock, connections chosen by it", "auto"),
    Gmblock("gmblock/jobs", "libgmblock, a connection for each job", None),
    Gmblock("gmblock/1", "libgmblock, one connection", "1"),
    Fio("fio", "fio (libnbd)"),
    LibnbdLoop("libnbd/simple", "libnbd loop, simple replies", "simple"),
    LibnbdLoop("libnbd/structured", "libnbd loop, structured replies", "structured"),
    Discard("discard", "control: payload thrown away, one connection"),
]}
LOCAL = LocalFio("fio/local", "fio (io_uring, O_DIRECT), no server")


def copies(client, counter, row, uri, seconds, size_bytes):
    """Bytes that the client and its libraries copied in user space during one run, as counted by
    bench/copy_counter.c; small copies (headers, texts) are apart from large ones."""
    with tempfile.TemporaryDirectory(prefix="gmblock-bench-") as folder:
        path = os.path.join(folder, "counts")
        sample = client.run(row, uri, seconds, size_bytes, 1, environment={
                            "LD_PRELOAD": counter, "COPY_COUNTER_FILE": path})
        try:
            with open(path, encoding="ascii") as counts:
                found = json.load(counts)
        except (OSError, ValueError) as error:
            raise measure.ClientFailed("%s left no counts: %s" % (client.name, error)) from error
    found["payload_bytes"] = round(sample["requests"] * row.block_bytes)
    return found


COPIERS = re.compile(r"mem(p?cpy|move|set)", re.I)


def profile(client, row, uri, seconds, size_bytes):
    """Where the client's processor time goes: shares in percent of kernel, user space, and of the
    functions in user space that copy or clear memory; the ten costliest functions of user space."""
    if shutil.which("perf") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="gmblock-bench-") as folder:
        data = os.path.join(folder, "data")
        record = subprocess.run(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-o", data, "--",
             *client.command(row, uri, seconds, size_bytes, 1, "hot")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        report = subprocess.run(
            ["perf", "report", "-i", data, "--stdio", "--sort", "dso,symbol", "-F",
             "overhead,dso,symbol", "--percent-limit", "0", "-t", ";"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if record.returncode != 0 or report.returncode != 0:
        return None
    user, total = {}, 0.0
    for line in report.stdout.splitlines():
        match = re.match(r"\s*([\d.]+)%\s*;\s*(\S+)\s*;\[(.)\]\s*(\S+)", line)
        if match:
            share = float(match.group(1))
            total += share
            if match.group(3) != "k":
                name = "%s (%s)" % (match.group(4), match.group(2))
                user[name] = user.get(name, 0) + share
    if total < 50:
        return None
    ranked = sorted(user.items(), key=lambda item: -item[1])
    return {
        "kernel_percent": round(total - sum(user.values()), 2),
        "user_percent": round(sum(user.values()), 2),
        "user_copying_percent": round(sum(share for name, share in ranked
                                          if COPIERS.search(name)), 2),
        "user_functions": [{"function": name, "percent": round(share, 2)}
                           for name, share in ranked[:10]],
    }
