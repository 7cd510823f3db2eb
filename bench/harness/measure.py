"""One run of a client (clients.py) against one server, and what it cost.

What: measure() drives a work row and returns rates, latencies and costs; cpu_seconds() adds up the
processor time of a server's process tree, ended threads and reaped children included;
count_events() runs the client once more while system calls and context switches are counted.
Counting is a run of its own because it slows the server; perf counts in the kernel (cheap),
strace is the fallback (its rates mean nothing, its counts per request do). long_enough() repeats a
timed run in which a busy machine let no request complete.
Errors: ClientFailed if the client fails; counts that cannot be had are None.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

CPU_CLOCK = 2  # of another process: see clock_getcpuclockid(3) and posix-timers_types.h
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
EVENTS = {
    "syscalls": "raw_syscalls:sys_enter",
    "uring_enters": "syscalls:sys_enter_io_uring_enter",
    "context_switches": "context-switches",
}


class ClientFailed(Exception):
    """A client ended with an error; the text has its messages."""


class NothingMeasured(ClientFailed):
    """No request completed in the time of the run."""


SECONDS_MAX = 120  # that one run may take
NOTHING_MEASURED = "no request completed"  # what gmblock bench says then


def failure(text, errors):
    """What to raise for a client that ended with these errors."""
    return (NothingMeasured if NOTHING_MEASURED in errors else ClientFailed)(text + errors)


def long_enough(run, seconds):
    """run(seconds), and as long as that raises NothingMeasured, again with twice the time."""
    while True:
        try:
            return run(seconds)
        except NothingMeasured:
            seconds *= 2
            if seconds > SECONDS_MAX:
                raise


class Row:
    """A line of the table: one access pattern over one transport, from one place of the disk to another
    (end_bytes: None for the end of the disk)."""

    def __init__(self, name, title, rw, block, depth, transport, jobs=1, target=None,
                 start_bytes=0, end_bytes=None):
        self.name = name
        self.title = title
        self.rw = rw
        self.block_bytes = block
        self.depth = depth
        self.transport = transport
        self.jobs = jobs
        self.target = target
        self.start_bytes = start_bytes
        self.end_bytes = end_bytes

    def before(self):
        """The reads before the place where this one starts, which bring the server there."""
        return Row(self.name, self.title, self.rw, self.block_bytes, self.depth, self.transport, self.jobs,
                   end_bytes=self.start_bytes)

    @property
    def is_stream(self):
        """It goes on with what a server has learnt, and only gmblock's own ways are compared."""
        return self.start_bytes > 0

    def is_in(self, state):
        return state == "cold" or not self.is_stream

    @property
    def in_bytes(self):
        """True where bandwidth is the figure of merit, False for requests per second."""
        return self.block_bytes >= 1 << 20

    @property
    def writes(self):
        return "write" in self.rw


KIB = 1 << 10
MIB = 1 << 20
ROWS = [
    Row("randread-4k-d64-tcp", "4 KiB random read, depth 64, TCP", "randread", 4 * KIB, 64, "tcp",
        target=3.5),
    Row("randread-4k-d1-tcp", "4 KiB random read, depth 1, TCP", "randread", 4 * KIB, 1, "tcp",
        target=1.2),
    Row("randread-4k-d1-unix", "4 KiB random read, depth 1, Unix", "randread", 4 * KIB, 1, "unix",
        target=1.2),
    Row("read-1m-d1-tcp", "1 MiB sequential read, depth 1, TCP", "read", MIB, 1, "tcp", target=1.2),
    Row("read-1m-d1-unix", "1 MiB sequential read, depth 1, Unix", "read", MIB, 1, "unix",
        target=1.2),
    Row("randread-1m-d1-tcp", "1 MiB random read, depth 1, TCP", "randread", MIB, 1, "tcp",
        target=1.2),
    Row("read-1m-d8-tcp", "1 MiB sequential read, depth 8, TCP", "read", MIB, 8, "tcp", target=1.2),
    Row("read-1m-d8-unix", "1 MiB sequential read, depth 8, Unix", "read", MIB, 8, "unix",
        target=1.2),
    *(Row("stream-1m-d%d-%s" % (depth, transport), "1 MiB sequential read after the first 64 MiB, depth %d, %s"
          % (depth, "TCP" if transport == "tcp" else "Unix"), "read", MIB, depth, transport, target=1,
          start_bytes=64 * MIB)
      for depth, transport in ((1, "tcp"), (8, "tcp"), (8, "unix"))),
    Row("randwrite-4k-d64-tcp", "4 KiB random write, depth 64, TCP", "randwrite", 4 * KIB, 64,
        "tcp", target=1.2),
    Row("write-1m-d8-tcp", "1 MiB sequential write, depth 8, TCP", "write", MIB, 8, "tcp",
        target=1.2),
    Row("randread-4k-4x32-tcp", "4 KiB random read, 4 connections × depth 32, TCP", "randread",
        4 * KIB, 32, "tcp", jobs=4, target=1.5),
]


def cpu_seconds(server):
    """Of the living tree, of its ended threads and of children it waited for. The process clock has
    nanoseconds; for reaped children the kernel has ticks only."""
    total = 0.0
    for pid in server.pids():
        try:
            total += time.clock_gettime(~pid << 3 | CPU_CLOCK)
            with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(value) for value in fields[13:15]) / TICKS_PER_S
    return total


def measure(server, row, seconds, state, disk, seed, client):
    """A timed run with the server's CPU and the device's reads."""
    read_before = disk.device_bytes_read()
    cpu_before = cpu_seconds(server)
    sample = client.run(row, server.uri, seconds, disk.size_bytes, seed, state)
    cpu = cpu_seconds(server) - cpu_before
    moved = sample["requests"] * row.block_bytes
    sample["server_cpu_s"] = cpu
    sample["cpu_s_per_gb"] = cpu / (moved / 1e9)
    sample["cpu_s_per_million"] = cpu / (sample["requests"] / 1e6)
    sample["client_cpu_percent"] = sample["cpu_us_per_request"] * sample["iops"] / 1e4
    if not row.writes:
        sample["from_device"] = (disk.device_bytes_read() - read_before) / moved
    return sample


class PerfCounter:
    """perf stat, switched on when it is made and off by finish(); where: perf's words for the
    processes or processors; events: {key: perf's name}, whose counts of all units are added."""

    def __init__(self, where, events):
        self._events = events
        self._folder = tempfile.mkdtemp(prefix="gmblock-bench-")
        self._output = os.path.join(self._folder, "counts")
        control_r, self._control = os.pipe()
        self._ack, ack_w = os.pipe()
        command = ["perf", "stat", "-x;", "-o", self._output, "-D", "-1",
                   "--control", "fd:%d,%d" % (control_r, ack_w), *where]
        for event in events.values():
            command += ["-e", event]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL,
                                             pass_fds=(control_r, ack_w))
        finally:
            os.close(control_r)
            os.close(ack_w)
        self.ready = self._say(b"enable\n")

    def _say(self, word):
        try:
            os.write(self._control, word)
            return os.read(self._ack, 16).startswith(b"ack")
        except OSError:
            return False

    def finish(self):
        counts = {}
        if self.ready and self._say(b"disable\n"):
            self._process.send_signal(signal.SIGINT)
        else:
            self._process.kill()
        self._process.wait()
        os.close(self._control)
        os.close(self._ack)
        try:
            with open(self._output, encoding="utf-8") as lines:
                for line in lines:
                    fields = line.split(";")
                    for key, event in self._events.items():
                        if len(fields) > 2 and fields[2].startswith(event) and \
                                fields[0][:1].isdigit():
                            counts[key] = counts.get(key, 0) + float(fields[0])
        except OSError:
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        return counts


class _StraceCounter:
    """strace -c on a process tree; it stops the server at each call, so rates are not usable."""

    def __init__(self, pids):
        self._folder = tempfile.mkdtemp(prefix="gmblock-bench-")
        self._output = os.path.join(self._folder, "counts")
        command = ["strace", "-c", "-f", "-o", self._output]
        for pid in pids:
            command += ["-p", str(pid)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        attached = 0
        while attached < len(pids):
            line = self._process.stderr.readline()
            if not line:
                break
            attached += "attached" in line
        self.ready = attached >= len(pids)

    def finish(self):
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()
        counts = {}
        try:
            with open(self._output, encoding="utf-8") as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) >= 4 and fields[-1] == "total":
                        counts["syscalls"] = int(fields[3])
                    elif len(fields) >= 4 and fields[-1] == "io_uring_enter":
                        counts["uring_enters"] = int(fields[3])
        except (OSError, ValueError):
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        return counts


class _SwitchPoller:
    """Context switches from /proc/PID/task/*/status, for machines without perf.

    Threads that end between two looks lose what they added since the last one.
    """

    def __init__(self, server):
        self._server = server
        self._first = {}
        self._last = {}
        self._stop = threading.Event()
        self._look()
        self._first = dict(self._last)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _look(self):
        for pid in self._server.pids():
            try:
                tasks = os.listdir("/proc/%d/task" % pid)
            except OSError:
                continue
            for task in tasks:
                try:
                    with open("/proc/%d/task/%s/status" % (pid, task), encoding="utf-8",
                              errors="replace") as status:
                        found = re.findall(r"ctxt_switches:\s+(\d+)", status.read())
                except OSError:
                    continue
                self._last[task] = sum(int(value) for value in found)

    def _run(self):
        while not self._stop.wait(0.05):
            self._look()

    def finish(self):
        self._stop.set()
        self._thread.join()
        self._look()
        return sum(count - self._first.get(task, 0) for task, count in self._last.items())


def perf_counts(events, *where):
    """Whether perf can count them here."""
    if shutil.which("perf") is None:
        return False
    command = ["perf", "stat", "-x;", *where]
    for event in events.values():
        command += ["-e", event]
    probe = subprocess.run(command + ["true"], capture_output=True, text=True, check=False)
    return probe.returncode == 0 and "<not" not in probe.stderr


def choose_counter():
    """"perf", "strace" or None: the first that works here."""
    if perf_counts(EVENTS):
        return "perf"
    return "strace" if shutil.which("strace") is not None else None


def count_events(server, row, seconds, state, disk, seed, method, client):
    """Events per request as a dict; method is what choose_counter() returned."""
    poller = _SwitchPoller(server) if method != "perf" else None
    counter = None
    if method == "perf":
        counter = PerfCounter(["-p", ",".join(str(pid) for pid in server.pids())], EVENTS)
    elif method == "strace":
        counter = _StraceCounter(server.pids())
    counts = {}
    try:
        sample = client.run(row, server.uri, seconds, disk.size_bytes, seed, state)
    finally:
        if counter is not None:
            counts = counter.finish()
        if poller is not None:
            counts["context_switches"] = poller.finish()
    return {key: counts[key] / sample["requests"] if key in counts else None for key in EVENTS}
