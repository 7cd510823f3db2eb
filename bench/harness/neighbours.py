"""The programs that bench/neighbour runs beside servers, and what keeps the two apart.

What: Triad, Zstd and Bzip2 run on a processor of their own and say how fast they were; Pinned keeps
everything else that this process starts on another one; Load is a client that moves block data at a
rate until it is stopped.
Ownership: context managers; all programs end with this process.
Errors: measure.ClientFailed.
"""

import json
import os
import random
import resource
import signal
import subprocess
import time

from . import measure, servers

UNBOUND = "/sys/devices/virtual/workqueue/cpumask"
CACHE = "/sys/devices/system/cpu/cpu%d/cache"
SET_BYTES_MAX = 512 << 20
CONTENT_BYTES, PIECE_BYTES = 8 << 20, 64 << 10
STOP_TIMEOUT_S = 120


def working_set(cpu):
    """Four times the largest cache of the processor, at most 512 MiB."""
    largest = 0
    try:
        for index in os.listdir(CACHE % cpu):
            if index.startswith("index"):
                with open(os.path.join(CACHE % cpu, index, "size"), encoding="ascii") as size:
                    largest = max(largest, int(size.read().strip().rstrip("K")) << 10)
    except (OSError, ValueError):
        pass
    return min(4 * largest, SET_BYTES_MAX) if largest else SET_BYTES_MAX


def speed(done, seconds, cpu_seconds):
    """What a run of a program gives: bytes a second, and the part of its processor that it had."""
    return {"bytes_per_s": done / seconds, "processor": cpu_seconds / seconds}


class Triad:
    """The triad of STREAM (bench/triad.c)."""

    name = "triad"

    def __init__(self, tools, cpu, set_bytes, seconds):
        self.title = "triad, %d MiB" % (set_bytes >> 20)
        self._seconds = seconds
        self._process = subprocess.Popen(
            ["taskset", "-c", str(cpu), os.path.join(tools, "triad"), str(set_bytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=servers.child_setup)
        if self._process.stdout.readline() != "ready\n":
            self._process.wait()
            raise measure.ClientFailed("triad did not start")

    def start(self, seconds):
        self._process.stdin.write("%g\n" % seconds)
        self._process.stdin.flush()

    def finish(self):
        """See speed(), when the time is over."""
        line = self._process.stdout.readline()
        if not line:
            raise measure.ClientFailed("triad ended")
        found = json.loads(line)
        return speed(found["bytes_per_second"] * found["seconds"], found["seconds"],
                     found["cpu_seconds"])

    def run(self):
        self.start(self._seconds)
        return self.finish()

    def close(self):
        self._process.communicate()


class Compressor:
    """A program that compresses a file in memory, half of it text and half of it random, as long as takes it about
    so many seconds here."""

    name, words = None, None

    def __init__(self, cpu, seconds):
        self._command = ["taskset", "-c", str(cpu), *self.words]
        self._fd = os.memfd_create("set")  # a file of a tmpfs that has no name
        self._bytes = 0
        content = self._content()
        self._grow(content, len(content))
        self.run()  # the first time it reads the program, too
        wanted = round(self.run()["bytes_per_s"] * seconds)
        self._grow(content, min(SET_BYTES_MAX, max(len(content), wanted)))
        self.title = "%s, %d MiB" % (" ".join(self.words[:2]), self._bytes >> 20)

    def _grow(self, content, size):
        while self._bytes < size:
            # None of them looks back that far: nothing repeats for it.
            self._bytes += os.pwrite(self._fd, content[:size - self._bytes], self._bytes)

    @staticmethod
    def _content():
        draw = random.Random(1)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 10)))
                 for _ in range(5000)]
        text = " ".join(draw.choices(words, k=CONTENT_BYTES // 14)).encode()
        return b"".join(text[at:at + PIECE_BYTES] + draw.randbytes(PIECE_BYTES)
                        for at in range(0, CONTENT_BYTES // 2, PIECE_BYTES))

    def run(self):
        os.lseek(self._fd, 0, os.SEEK_SET)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        done = subprocess.run(self._command, stdin=self._fd, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, preexec_fn=servers.child_setup, check=False)
        if done.returncode != 0:
            raise measure.ClientFailed(self.name + ": " + done.stderr.decode(errors="replace"))
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return speed(self._bytes, seconds, after.ru_utime + after.ru_stime - before.ru_utime -
                     before.ru_stime)

    def close(self):
        os.close(self._fd)


class Zstd(Compressor):
    name, words = "zstd", ["zstd", "-1", "-q", "-c", "--single-thread"]


class Bzip2(Compressor):
    """As in the papers: its working set of 8 MB is larger than most caches of a processor alone."""

    name, words = "bzip2", ["bzip2", "-9", "-c"]


class Pinned:
    """While it lasts, what this process starts runs on one processor, and so do the workers of the
    kernel that have no processor of their own, such as those of loop devices, if it can be set."""

    def __init__(self, cpu):
        self._cpu = cpu
        self._mask = None
        self.workers = False  # whether those are pinned

    def __enter__(self):
        self._before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._cpu})
        try:
            with open(UNBOUND, encoding="ascii") as mask:
                self._mask = mask.read().strip()
            self._write("%x" % (1 << self._cpu))
            self.workers = True
        except OSError:
            self._mask = None
        return self

    @staticmethod
    def _write(mask):
        with open(UNBOUND, "w", encoding="ascii") as out:
            out.write(mask + "\n")

    def __exit__(self, *_):
        if self._mask is not None:
            self._write(self._mask)
        os.sched_setaffinity(0, self._before)

    def strays(self, pids):
        """Names of threads that may run elsewhere: the kernel's, for requests of a process."""
        found = set()
        for pid in pids:
            try:
                for task in os.listdir("/proc/%d/task" % pid):
                    if os.sched_getaffinity(int(task)) != {self._cpu}:
                        with open("/proc/%d/task/%s/comm" % (pid, task), encoding="utf-8",
                                  errors="replace") as comm:
                            found.add(comm.read().strip().rstrip("0123456789-"))
            except OSError:
                continue  # it has just ended
        return found


class Load:
    """A client that runs until it is stopped. command: prints one JSON object when SIGINT ends it."""

    def __init__(self, command):
        self._command = command
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True,
                                         preexec_fn=servers.child_setup)

    def pids(self):
        return servers.process_tree(self._process.pid)

    def stop(self):
        """What it measured until now, or None if it had not begun to measure."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            return self._document(self._said())
        return self.finish()

    def finish(self):
        """What it measured, when it ends."""
        said = self._said()
        document = self._document(said)
        if document is None:
            raise measure.failure("%s\n%s" % (" ".join(self._command), said[0]), said[1])
        return document

    def _said(self):
        try:
            return self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise measure.ClientFailed("%s\ndoes not end" % " ".join(self._command)) from None

    @staticmethod
    def _document(said):
        start = said[0].find("{")
        try:
            return json.loads(said[0][start:]) if start >= 0 else None
        except ValueError:
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def busy_seconds(cpu):
    """How long a processor has worked, for whomever."""
    with open("/proc/stat", encoding="ascii") as stat:
        for line in stat:
            fields = line.split()
            if fields[0] == "cpu%d" % cpu:
                # user, nice, system, irq, softirq
                return sum(int(fields[i]) for i in (1, 2, 3, 6, 7)) / measure.TICKS_PER_S
    raise OSError("/proc/stat has no cpu%d" % cpu)
