"""TCP ports for programs that take no port 0, or do not report the port that they got.

A port that the kernel has chosen (port 0) and that is closed again is not safe: any connection of a parallel test can get it
before the program binds it. These ports are outside the range from which the kernel chooses. No other user of this module
gets the same port: an abstract Unix socket with its number is held until this process ends, or has asked for HELD_MAX more.
Such names belong to a network namespace, as ports do.
"""
import contextlib
import errno
import random
import socket

FIRST, LAST = 10000, 65535  # services have the ports below
HELD_MAX = 100
TRIES = 1000
HELD = []  # the Unix sockets of the ports of this process


def _candidates(last):
    """The ports from FIRST to last that the kernel does not choose; all of them if it chooses among all."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        chosen_first, chosen_last = map(int, file.read().split())
    outside = [port for port in range(FIRST, last + 1) if not chosen_first <= port <= chosen_last]
    return outside or list(range(FIRST, last + 1))


def _hold(port):
    """False if another test has it."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0gmblock-test-port-{port}")
    except OSError as error:
        name.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    HELD.append(name)
    if len(HELD) > HELD_MAX:
        HELD.pop(0).close()
    return True


def _can_be_bound(port):
    """On every address, also by a program that does not set SO_REUSEADDR."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with contextlib.ExitStack() as stack:
            try:
                probe = stack.enter_context(socket.socket(family))
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                if family == socket.AF_INET:
                    raise  # while a machine without IPv6 is fine
    return True


def free(last=LAST):
    """A port of at most last that only a program of the caller binds."""
    candidates = _candidates(last)
    for port in random.SystemRandom().sample(candidates, min(TRIES, len(candidates))):
        if _hold(port):
            if _can_be_bound(port):
                return port
            HELD.pop().close()
    raise OSError(errno.EADDRINUSE, f"{TRIES} ports from {FIRST} to {last} are in use")
