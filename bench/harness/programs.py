"""Programs of others over clan, TCP and other local ways: how they are started, and whether clan has carried them.

What: with_library() puts a program under clan-run or omniORB's transport; start_omniorb() and mpirun() run omniORB's
server and a job of Open MPI; carried_by_sockets() has what clan-run's library has sent. options: tools, the folder
of the small programs of the build.
Ownership: the caller stops what it has started.
Errors: rig.Unavailable for what is not there, measure.ClientFailed for a program that fails.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time

from . import measure, rig, session
from .cmdline import TOP

SECONDS_MAX = 300
OB1 = ["--mca", "pml", "ob1", "--mca", "btl"]
MPI_WAYS = {  # title, arguments of mpirun
    "fi": ("clan;ofi_rxm", ["--tune", os.path.join(TOP, "packaging", "openmpi-clan.conf")]),
    "tcp": ("btl tcp", [*OB1, "tcp,self"]),
    "carried": ("btl tcp, carried by clan", [*OB1, "tcp,self"]),
    "tcp-rxm": ("tcp;ofi_rxm", ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self",
                                "--mca", "mtl_ofi_provider_include", "tcp;ofi_rxm"]),
    "vader": ("btl vader", [*OB1, "vader,self"]),
}
PROVIDER_SENT = re.compile(r"a connection was closed: (\d+) bytes sent")
# Programs sleep while they wait over TCP and Unix sockets. With clan and with omniORB's transport they poll first if that
# makes their calls faster, except "asleep", which shows the transport apart from the polling.
SOCKETS_WAYS = {"clan": "carried by clan", "asleep": "carried by clan, `spin off`", "idle": "the library, no rule",
                "tcp": "TCP", "unix": "Unix socket", "omniorb": "omniORB's clan transport"}
CARRIED = {"clan": "", "asleep": "; spin off; compare off"}  # what is added to the rules
POLLING = "Over TCP, over Unix sockets and with `spin off` (and `compare off`), programs sleep while they wait. The other ways " \
    "of clan poll before they sleep if that makes calls faster, so their ratios to TCP are those of polling and clan together."


def beside_tools(options, name):
    """A program or library of the same build."""
    return os.path.join(options.tools, "..", "src", name)


def timed(command):
    """Wall and processor seconds of a command that has to succeed, and what it says."""
    before = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = process.stdout.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - before
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode != 0:
        raise measure.ClientFailed("%s: status %d: %s" % (shlex.join(command), process.returncode, said.strip()))
    return seconds, usage.ru_utime + usage.ru_stime, said


class Process:
    """A server, as harness.measure looks at one."""

    def __init__(self, command, output=subprocess.DEVNULL):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, text=True)

    def pids(self):
        return [self.process.pid]

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=SECONDS_MAX)


def wait_until_up(server, port):
    """False if the server has ended."""
    while server.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        time.sleep(0.01)
    return False


def wait_until_listens(process, port):
    """Looks into the kernel's tables: a program that serves one client would take a connection for it."""
    while process.poll() is None:
        for name in ("tcp", "tcp6"):
            with open("/proc/net/" + name, encoding="ascii") as table:
                if any(fields[1].endswith(":%04X" % port) and fields[3] == "0A" for fields in
                       (line.split() for line in list(table)[1:])):
                    return
        time.sleep(0.01)
    raise measure.ClientFailed("%s has ended" % process.args[0])


def carried_by_sockets(stats_file):
    """What the programs under clan-run have sent by ring; each has written a line at its end."""
    if not os.path.exists(stats_file):
        return 0
    with open(stats_file, encoding="utf-8") as file:
        return sum(json.loads(line)["out_bytes"] for line in file)


def with_library(options, way, rules, folder, command):
    if way == "omniorb":
        return ["env", "LD_PRELOAD=" + beside_tools(options, "omniorb/libclan-omniorb.so"), *command]
    if way in ("tcp", "unix"):
        return command
    rules = rules + CARRIED[way] if way in CARRIED else "program none;" + rules
    return [beside_tools(options, "sockets/clan-run"), "--stats", folder + "/stats", "--rules", rules, "--", *command]


def omniorb_program(options, name):
    return beside_tools(options, "../tests/interop/omniorb/" + name)


def start_omniorb(options, way, folder):
    """The server and its object reference."""
    endpoint = {"unix": "giop:unix:%s/socket" % folder, "omniorb": "giop:clan:"}.get(
        way, "giop:tcp:127.0.0.1:")
    command = [omniorb_program(options, "server"), "-ORBendPoint", endpoint]
    server = Process(with_library(options, way, "listen *:*", folder, command), subprocess.PIPE)
    return server, server.process.stdout.readline().strip()


def need_for_omniorb(options):
    session.need_programs(*[omniorb_program(options, name) for name in ("server", "client")])


def need_for_mpi(options):
    for name in ("mpicc", "mpirun"):
        if shutil.which(name) is None:
            raise rig.Unavailable("needs %s (packages openmpi-bin and libopenmpi-dev)" % name)
    if not os.path.exists(beside_tools(options, "fi/libclan-fi.so")):
        raise rig.Unavailable("libclan-fi.so is not built")
    if os.sysconf("SC_NPROCESSORS_ONLN") < 2:
        raise rig.Unavailable("needs two CPUs")


def mpirun(options, way, ranks, words, stats_file):
    """What a job says, and how many bytes clan has carried for it by its own statistics."""
    if way == "carried":
        words = [beside_tools(options, "sockets/clan-run"), "--stats", stats_file, "--rules",
                 "connect *:*; listen *:*; program " + os.path.basename(words[0]), "--", *words]
    command = ["mpirun", "--oversubscribe", "--bind-to", "core", *MPI_WAYS[way][1], "-n", str(ranks), *words]
    environment = dict(os.environ, FI_LOG_LEVEL="info", FI_LOG_PROV="clan",
                       FI_PROVIDER_PATH=beside_tools(options, "fi"),
                       OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(stats_file)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, timeout=SECONDS_MAX, env=environment)
    if done.returncode != 0:
        raise measure.ClientFailed("%s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    return done.stdout, carried_by_sockets(stats_file) + \
        sum(int(count) for count in PROVIDER_SENT.findall(done.stderr))


def micros_of(text):
    """The time that our MPI programs print."""
    found = re.search(r"^([0-9.]+) us$", text, re.M)
    if found is None:
        raise measure.ClientFailed("no time in: " + text)
    return float(found.group(1))
