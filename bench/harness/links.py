"""The links between server and client: loopback, or a veth pair whose rate is what one likes.

What: Loopback(), Pair() and Shaped(rate) are context managers with server_prefix and client_prefix
(what goes before a command line so that it runs at that end) and address (the server's).  Pair makes
two network namespaces of its own, each kept by a process that ends with this one; Shaped also limits
what the server sends with a token bucket (tc-tbf).
Ownership: namespaces, devices and shaping vanish with the two processes, however this one ends.
Errors: Unavailable if the machine cannot do it, with the reason.
"""

import math
import os
import shutil
import subprocess

from . import daemons
from .rig import Unavailable

TIMEOUT_S = 120
MTU_PAYLOAD, MTU_FRAME = 1448, 1514  # of a full TCP segment with timestamps, and what tc counts
# Smaller bursts of the sender than the usual 64 KiB, so that the bucket can be small, too: what it
# saves up while the link is idle is sent without any delay.
GSO_BYTES = 16 << 10
BUCKET_BYTES_MIN = 32 << 10
BUCKET_S = 60e-6  # what a late timer must not cost
QUEUE_BYTES = 16 << 20  # more than TCP ever has on its way, so that nothing is lost
SERVER, CLIENT, PREFIX_BITS = "10.78.0.1", "10.78.0.2", 30


class Loopback:
    scheme = "nbd"
    name = "tcp"
    title = "TCP over loopback"
    factor = None
    rate = None
    address = "127.0.0.1"
    server_prefix = []
    client_prefix = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def dropped(self):
        return 0


class Pair:
    """A veth pair between two network namespaces, without a limit."""

    def __init__(self):
        self.address = SERVER
        self.server_prefix = []
        self.client_prefix = []
        self._keepers = []

    def __enter__(self):
        need("ip", "iproute2")
        need("nsenter", "util-linux")
        need("unshare", "util-linux")
        if os.geteuid() != 0:
            raise Unavailable("needs root: network namespaces have to be created")
        try:
            self._create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _create(self):
        for _ in range(2):
            # Its standard input is a pipe of ours: it ends with us.
            self._keepers.append(daemons.Daemon(
                ["unshare", "-n", "sh", "-c", "echo ready; read line"], lines=1,
                what="a network namespace"))
        near, far = self._keepers
        self.server_prefix = ["nsenter", "-t", str(near.pid), "-n"]
        self.client_prefix = ["nsenter", "-t", str(far.pid), "-n"]
        _run("ip", "link", "add", "near", "netns", str(near.pid), "type", "veth", "peer", "name",
             "far", "netns", str(far.pid))
        for prefix, device, address in ((self.server_prefix, "near", SERVER),
                                        (self.client_prefix, "far", CLIENT)):
            _run(*prefix, "ip", "addr", "add", "%s/%d" % (address, PREFIX_BITS), "dev", device)
            _run(*prefix, "ip", "link", "set", device, "up")

    def __exit__(self, *_):
        for keeper in self._keepers:
            keeper.stop()
        self._keepers = []


class Shaped(Pair):
    """rate: payload bytes per second, of TCP with segments of the usual size; scheme: nbd, or gmb for the
    native protocol, which also runs over TCP here."""

    def __init__(self, factor, rate, scheme="nbd"):
        super().__init__()
        self.factor = factor
        self.rate = rate
        self.scheme = scheme
        self.name = shaped_name(factor, scheme)
        self.title = "veth, shaped to %g MB/s, %g times the disk's rate%s" % (
            round(rate / 1e6, 1), factor, ", native protocol" if scheme == "gmb" else "")

    def _create(self):
        need("tc", "iproute2")
        super()._create()
        for prefix, device in ((self.server_prefix, "near"), (self.client_prefix, "far")):
            _run(*prefix, "ip", "link", "set", "dev", device, "gso_max_size", str(GSO_BYTES))
            # One that sends as much as the queue takes; others, such as bbr, pace by themselves.
            _run(*prefix, "sh", "-c",
                 "echo reno >/proc/sys/net/ipv4/tcp_congestion_control")
        frame_rate = math.ceil(self.rate * MTU_FRAME / MTU_PAYLOAD)
        bucket = max(BUCKET_BYTES_MIN, math.ceil(frame_rate * BUCKET_S))
        _run(*self.server_prefix, "tc", "qdisc", "add", "dev", "near", "root", "tbf",
             "rate", "%dbps" % frame_rate, "burst", "%db" % bucket, "limit", "%db" % QUEUE_BYTES)

    def dropped(self):
        """Packets that the shaper threw away; any would falsify the figures."""
        shown = _run(*self.server_prefix, "tc", "-s", "qdisc", "show", "dev", "near")
        return int(shown.partition("dropped ")[2].partition(",")[0])


def shaped_name(factor, scheme="nbd"):
    return "%s-%g" % ("tbf" if scheme == "nbd" else scheme, factor)


def need(program, package):
    if shutil.which(program) is None:
        raise Unavailable("needs %s (package %s)" % (program, package))


def _run(*command):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable("%s hangs" % " ".join(command)) from error
    if done.returncode != 0:
        raise Unavailable("%s: %s" % (" ".join(command), done.stderr.strip()))
    return done.stdout
