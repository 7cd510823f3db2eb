#!/usr/bin/python3
"""The new process of an upgrade, as it should not be, or with something between it and the old one:
upgrade_process.py --new HOW | --between URI EXPORT COMMAND... | --killed WHEN COMMAND..."""
import os
import re
import signal
import socket
import struct
import subprocess
import sys

import nbdmini

MAGIC, VERSION = 0x676D6255, 3
HELLO, LISTENER, EXPORT, PREPARE, READY, SESSION, SESSIONS_END, STARTED, FAILED = range(1, 10)


def message(kind, payload=b"", version=VERSION, magic=MAGIC):
    return struct.pack(">IHH", magic, version, kind) + payload


def hello():
    return message(HELLO, struct.pack(">I", os.getpid()))


def receive(channel):
    """The type of the next message, whose descriptors are closed when it ends."""
    data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 8)
    if not data:
        sys.exit(3)
    return struct.unpack(">IHH", data[:8])[2], fds


def until(channel, kind):
    while receive(channel)[0] != kind:
        pass


def waits_of(pid):
    """How often the threads of a process have waited."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as status:
            count += int(re.search(r"\nvoluntary_ctxt_switches:\t(\d+)", status.read())[1])
    return count


def be_wrong(channel, how):
    """Each of these is one entry of the tables WRONG and HANGING of serve-upgrade.py, or of a test of its own."""
    if how == "dies-at-once":
        return
    if how == "hangs":
        while receive(channel):
            pass
    if how == "hello-with-descriptors":
        socket.send_fds(channel, [hello()], [0, 1, 2])
        receive(channel)
    first = {"no-magic": message(HELLO, struct.pack(">I", 1), magic=1),
             "older-version": message(HELLO, struct.pack(">I", 1), version=VERSION - 1),
             "newer-version": message(HELLO, struct.pack(">I", 1), version=VERSION + 1),
             "unknown-type": message(99),
             "short-hello": message(HELLO, b"\0"),
             "long-hello": message(HELLO, bytes(30000)),
             "pid-zero": message(HELLO, bytes(4)),
             "started-first": message(STARTED),
             "ready-first": message(READY),
             "session-first": message(SESSION, bytes(24))}
    channel.send(first.get(how, hello()))
    if how in first:
        receive(channel)
    if how == "dies-after-hello":
        return
    until(channel, PREPARE)
    if how == "hangs-prepared":
        receive(channel)
    if how == "dies-prepared":
        return
    if how == "fails-prepared":
        channel.send(message(FAILED, b"no \x1b[31mdisk"))
        receive(channel)
    if how == "started-without-ready":
        channel.send(message(STARTED))
        receive(channel)
    if how == "waits":
        with open(sys.argv[3], "w", encoding="utf-8"):
            receive(channel)
    if how == "fails-settling":
        with open(sys.argv[3], "w", encoding="ascii"):
            pass
        with open(sys.argv[4], encoding="ascii") as ready:
            ready.read()
    channel.send(message(READY))
    if how == "fails-settling":
        # The disks of the old process are flushed at once; afterwards it looks at its threads every 2 ms.
        before = waits_of(sys.argv[5])
        while waits_of(sys.argv[5]) < before + 100:
            pass
        channel.send(message(FAILED, b"no disk"))
        receive(channel)
    if how == "dies-after-ready":
        return
    if how == "dies-with-a-session":
        until(channel, SESSION)
        return
    if how == "fails-with-a-session":
        until(channel, SESSION)
        channel.send(message(FAILED, b"not one more"))
        return
    until(channel, SESSIONS_END)
    if how == "dies-with-all":
        return
    if how == "hangs-with-all":
        receive(channel)
    if how == "ready-again":
        channel.send(message(READY))
        receive(channel)
    if how == "fails-with-all":
        channel.send(message(FAILED, b"too late"))
        receive(channel)
    sys.exit(4)


# --- a new process as it should be, and clients that come late ---------------------------------


def forward(source, target):
    """One message with its descriptors; returns its type, or None at the end."""
    data, fds, _, _ = socket.recv_fds(source, 1 << 16, 8)
    if not data:
        return None
    socket.send_fds(target, [data], fds)
    for fd in fds:
        os.close(fd)
    return struct.unpack(">IHH", data[:8])[2]


def be_between(channel, uri, name, command):
    """The new process is ready, but before the old one hears of that, a client connects to it."""
    own, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(inner.fileno()))
    with subprocess.Popen(command, env=environment, pass_fds=[inner.fileno()]) as process:
        inner.close()
        kind = forward(own, channel)
        while kind != PREPARE:
            kind = forward(channel, own)
        ready = own.recv(1 << 16)
        with nbdmini.open_export(uri, name.encode()) as client:
            channel.send(ready)
            while kind != SESSIONS_END and kind is not None:
                kind = forward(channel, own)
            while forward(own, channel) is not None:
                pass
            channel.close()
            client.read(0, 512)
        return process.wait()


def be_killed(channel, when, command):
    """The new process is killed when it is ready, or when it would serve; or then the old one is."""
    own, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = int(os.environ["GMBLOCK_UPGRADE_STDERR"])
    environment = dict(os.environ, GMBLOCK_UPGRADE_FD=str(inner.fileno()))
    with subprocess.Popen(command, env=environment, pass_fds=[inner.fileno(), errors]) as process:
        inner.close()
        forward(own, channel)
        while forward(channel, own) != PREPARE:
            pass
        if when != "ready":
            forward(own, channel)
            while forward(channel, own) != SESSIONS_END:
                pass
        own.recv(1 << 16)
        if when == "old":
            os.kill(struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0],
                    signal.SIGKILL)
            own.close()
            os._exit(0)  # the new one goes on
        process.kill()
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(os.environ["GMBLOCK_UPGRADE_FD"])) as inherited:
        if sys.argv[1] == "--new":
            be_wrong(inherited, sys.argv[2])
        elif sys.argv[1] == "--between":
            sys.exit(be_between(inherited, *sys.argv[2:4], sys.argv[4:]))
        elif sys.argv[1] == "--killed":
            sys.exit(be_killed(inherited, sys.argv[2], sys.argv[3:]))
