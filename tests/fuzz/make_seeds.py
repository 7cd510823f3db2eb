#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/fuzz/corpus: recorded dialogues, and short texts and messages by hand.

    GMBLOCK=build/gmblock tests/fuzz/make_seeds.py [--corpus FOLDER]

Real clients (those that are installed) talk to "gmblock serve", and "gmblock info" and libgmblock
(by tests/functional/library_driver, LIBRARY_DRIVER in the environment) talk to real servers, each
through a recorder that keeps what goes by; tests/unit/test_nbd_client (TEST_NBD_CLIENT) adds its own cases. The exports are those of fuzz_session.c, so that a
recording makes sense there. Seeds of the same name are replaced; files that a fuzzer found are left
alone.
"""

import argparse
import contextlib
import hmac
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.parse

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "functional"))
import tls_tool  # noqa: E402

GMBLOCK = os.path.abspath(os.environ.get("GMBLOCK", "build/gmblock"))
LIBRARY_DRIVER = os.path.abspath(os.environ.get("LIBRARY_DRIVER",
                                                "build/tests/functional/library_driver"))
TEST_NBD_CLIENT = os.path.abspath(os.environ.get("TEST_NBD_CLIENT", "build/tests/unit/test_nbd_client"))
SEED_BYTES_MAX = 64 << 10
DISK_BYTES = 100001
PATIENCE_S = 60

# Bits of enum circumstance in fuzz_session.c.
JITTER, RESET, PIECES, SMALL, DEAF, STOP, DISK_ERRORS = (1 << n for n in range(7))


# --- recording -----------------------------------------------------------------------------------

class Recorder:
    """Stands between a client and the server at a Unix socket, and keeps every connection's bytes:
    .dialogues is a list of (from the client, from the server)."""

    def __init__(self, folder, server_path):
        self.path = os.path.join(folder, "recorder")
        self.server_path = server_path
        self.dialogues = []
        self.threads = []

    def __enter__(self):
        self.listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()
        return self

    def __exit__(self, *exception):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        for thread in self.threads[1:]:
            thread.join()
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.server_path)
            said = (bytearray(), bytearray())
            self.dialogues.append(said)
            for source, sink, kept in ((client, server, said[0]), (server, client, said[1])):
                thread = threading.Thread(target=self._pump, args=(source, sink, kept))
                self.threads.append(thread)
                thread.start()

    @staticmethod
    def _pump(source, sink, kept):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def run(*command, script="", **environment):
    """Runs a client; that it fails is as good a dialogue as any."""
    subprocess.run(command, input=script.encode(), stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=PATIENCE_S, check=False,
                   env={**os.environ, **environment})


@contextlib.contextmanager
def serving(command):
    """Runs a server under its own --run: the body happens while it serves. {hold} in the command
    is a shell command that says it is ready and waits for the end of its input."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    hold = f"echo >&{ready_write}; read x <&{hold_read}; true"
    process = subprocess.Popen([part.replace("{hold}", hold) for part in command],
                               pass_fds=(ready_write, hold_read), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    os.close(ready_write)
    os.close(hold_read)
    try:
        if not os.read(ready_read, 1):
            raise RuntimeError(f"{command[0]} did not start")
        yield
    finally:
        os.close(hold_write)
        os.close(ready_read)
        process.wait(PATIENCE_S)


# --- clients, for the server session -------------------------------------------------------------

def clients(folder, path):
    """(name, command) of everything that talks to the server behind the socket."""
    def uri(export):
        return f"nbd+unix:///{export}?socket={urllib.parse.quote(path)}"
    disk = os.path.join(folder, "copy.img")
    with open(disk, "wb") as image:
        image.write(bytes(range(256)) * 40)
        image.truncate(20000)
    yield "gmblock-info", [GMBLOCK, "info", uri("")]
    yield "gmblock-info-list", [GMBLOCK, "info", "--list", uri("")]
    yield "gmblock-info-missing", [GMBLOCK, "info", uri("missing")]
    yield "nbdinfo", ["nbdinfo", uri("")]
    yield "nbdinfo-list", ["nbdinfo", "--list", uri("")]
    yield "nbdinfo-map", ["nbdinfo", "--map", uri("")]
    yield "nbdcopy-in", ["nbdcopy", "--connections=1", "--requests=2", disk, uri("bad")]
    yield "nbdcopy-out", ["nbdcopy", "--connections=1", uri("ro"), os.path.join(folder, "out")]
    yield "qemu-img-info", ["qemu-img", "info", "-f", "raw", uri("ro")]
    yield "qemu-img-map", ["qemu-img", "map", "-f", "raw", uri("")]
    yield "qemu-io", ["qemu-io", "-f", "raw", "-c", "write -P 7 512 3000", "-c", "read 0 8192",
                      "-c", "write -z 4096 8192", "-c", "write -z -u 16384 4096",
                      "-c", "discard 0 65536", "-c", "flush", "-c", "write -f 99999 2",
                      "-c", "read 99000 1001", uri("")]
    libnbd = ["/usr/bin/python3", "-c"]
    yield "libnbd-old", libnbd + [
        "import nbd, sys; h = nbd.NBD(); h.set_handshake_flags(0); "
        "h.connect_uri(sys.argv[1]); h.pwrite(b'x' * 100, 5); h.pread(100, 5); h.shutdown()",
        uri("")]
    yield "libnbd-options", libnbd + [
        "import nbd, sys; h = nbd.NBD(); h.set_opt_mode(True); h.add_meta_context('base:'); "
        "h.add_meta_context('base:allocation'); h.connect_uri(sys.argv[1]); "
        "h.opt_list(lambda *a: 0); h.opt_list_meta_context(lambda *a: 0); h.opt_info(); "
        "h.set_export_name('ro'); h.opt_go(); h.block_status(70001, 0, lambda *a: 0); "
        "h.pread_structured(65536, 1, lambda *a: 0, nbd.CMD_FLAG_DF); h.cache(70001, 0); "
        "h.shutdown()", uri("")]
    yield "libnbd-errors", libnbd + [
        "import nbd, sys\n"
        "h = nbd.NBD(); h.set_strict_mode(0); h.connect_uri(sys.argv[1])\n"
        "for c in (lambda: h.pread(10, 1 << 40), lambda: h.pwrite(b'x', 1 << 40),\n"
        "          lambda: h.trim(0, 0), lambda: h.zero(100, 5, 31), lambda: h.flush(8),\n"
        "          lambda: h.pread(4096, 0), lambda: h.pread(4096, 8), lambda: h.cache(9, 9),\n"
        "          lambda: h.pwrite(b'y' * 999, 77, 1), lambda: h.flush()):\n"
        "    try: c()\n"
        "    except nbd.Error: pass\n"
        "h.shutdown()", uri("bad")]


def record_session(folder, corpus):
    disk = os.path.join(folder, "disk.img")
    with open(disk, "wb") as image:
        image.write(b"gmblock" * 1000)
        image.truncate(DISK_BYTES)
    path = os.path.join(folder, "server")
    command = [GMBLOCK, "serve", "--listen", f"nbd+unix:///?socket={path}", "--export",
               f"={disk},description=a disk", "--export", "ro=memory:70001,readonly", "--export",
               "bad=memory:65536,fault=any:EIO:every=3,description=fails and is slow",
               "--run", "{hold}"]
    recorded = {}
    with serving(command):
        for name, client in clients(folder, os.path.join(folder, "recorder")):
            if shutil.which(client[0]) is None:
                print(f"{client[0]} is not installed: no seed {name}")
                continue
            with Recorder(folder, path) as recorder:
                run(*client)
            for number, (said, heard) in enumerate(recorder.dialogues):
                label = name if len(recorder.dialogues) == 1 else f"{name}-{number + 1}"
                recorded[label] = bytes(said)
                if name.startswith("gmblock-info"):
                    is_list = name.endswith("list")
                    suffix = "" if is_list else "-info"
                    corpus.write("nbd_handshake", f"server-gmblock{name[12:]}{suffix}",
                                 bytes([GOAL_LIST if is_list else GOAL_INFO, 0]) + bytes(heard))
    for number, (name, said) in enumerate(sorted(recorded.items())):
        # Every recording in calm weather and once in other circumstances.
        corpus.write("session", name, b"\0\0" + said)
        rough = (JITTER | PIECES, JITTER | RESET, STOP | JITTER, SMALL | DEAF, DISK_ERRORS,
                 JITTER | SMALL | STOP)[number % 6]
        corpus.write("session", name + "-rough", bytes([rough, number]) + said)
        for option, data in options_of(said):
            if option in (6, 7):
                corpus.write("options", f"go-{name}", b"\0" + data)
            elif option in (9, 10):
                corpus.write("options", f"context-{name}", b"\1" + data)


def options_of(said):
    """(number, data) of the options in a client's bytes."""
    at = 4
    while said[at:at + 8] == b"IHAVEOPT":
        number, length = struct.unpack(">II", said[at + 8:at + 16])
        yield number, said[at + 16:at + 16 + length]
        at += 16 + length


# --- servers, for the handshake and the transmission phase ----------------------------------------

# In the first byte of a seed of fuzz_nbd_handshake.c.
GOAL_INFO, GOAL_LIST = 8, 16


def servers(folder, path):
    """(name, command) of servers at the socket, each with an export named disk if it can."""
    image = os.path.join(folder, "disk.img")
    config = os.path.join(folder, "nbd-server.conf")
    with open(config, "w", encoding="ascii") as file:
        # It insists on a TCP port beside the socket.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        file.write(f"[generic]\nlistenaddr = 127.0.0.1\nport = {port}\nunixsock = {path}\n"
                   f"[disk]\nexportname = {image}\nflush = true\nfua = true\ntrim = true\n")
    yield "nbdkit", ["nbdkit", "-U", path, "-e", "disk", "file", image, "--run", "{hold}"]
    yield "nbdkit-no-structured", ["nbdkit", "--no-sr", "-U", path, "memory", "1M", "--run",
                                   "{hold}"]
    yield "nbdkit-oldstyle", ["nbdkit", "--oldstyle", "-U", path, "memory", "1M", "--run", "{hold}"]
    yield "nbdkit-many", ["nbdkit", "-U", path, "file", f"dir={folder}", "--run", "{hold}"]
    yield "nbdkit-errors", ["nbdkit", "-U", path, "--filter=error", "memory", "1M",
                            "error-rate=50%", "error=ENOSPC", "--run", "{hold}"]
    yield "nbdkit-sizes", ["nbdkit", "-U", path, "--filter=blocksize-policy", "memory", "1M",
                           "blocksize-minimum=512", "blocksize-preferred=4096",
                           "blocksize-maximum=1M", "--run", "{hold}"]
    yield "qemu-nbd", ["sh", "-c", f"qemu-nbd -t --fork --pid-file={path}.pid -f raw -x disk "
                       f"-D 'a disk' -k {path} {image}; {{hold}}; kill $(cat {path}.pid)"]
    greets = f"import socket; s = socket.socket(1); s.connect('{path}'); s.recv(8)"
    yield "nbd-server", ["sh", "-c", f"nbd-server -C {config} -p {path}.pid && until python3 -c "
                         f"\"{greets}\" && test -s {path}.pid; do :; done; {{hold}}; "
                         f"kill $(cat {path}.pid)"]
    yield "gmblock", [GMBLOCK, "serve", "--listen", f"nbd+unix:///?socket={path}", "--export",
                      f"disk={image},description=a disk", "--run", "{hold}"]
    yield "gmblock-errors", [
        GMBLOCK, "serve", "--listen", f"nbd+unix:///?socket={path}", "--export",
        f"disk={image},fault=any:EIO:every=3,fault=read:EIO:range=6000+100", "--run", "{hold}"]


def record_servers(folder, corpus):
    path = os.path.join(folder, "peer")
    for name, command in servers(folder, path):
        tool = command[2].split()[0] if command[0] == "sh" else command[0]
        if shutil.which(tool) is None:
            print(f"{tool} is not installed: no seed server-{name}")
            continue
        with serving(command):
            record_info(folder, corpus, path, name)
            record_client(folder, corpus, path, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def record_info(folder, corpus, path, name):
    if name.startswith("gmblock"):
        return  # record_session() has them
    for is_list in (False, True):
        with Recorder(folder, path) as recorder:
            uri = f"nbd+unix:///disk?socket={recorder.path}"
            run(GMBLOCK, "info", *(["--list"] if is_list else []), uri)
        for _, heard in recorder.dialogues:
            corpus.write("nbd_handshake", f"server-{name}{'-list' if is_list else '-info'}",
                         bytes([GOAL_LIST if is_list else GOAL_INFO, 0]) + bytes(heard))


# What libgmblock is asked to do; the disk has DISK_BYTES.
WORK = """\
read c 0 512 0
read c 0 2048 4
read c 1 3000 0
read c 99328 512 0
write c 5120 1024 0
write c 6000 1000 1
read c 5000 2000 0
flush c 0 0 0
wait
trim c 8192 4096 0
zero c 12288 8192 2
zero c 20480 512 17
cache c 0 65536 0
status c 0 98304 0
status c 4096 8192 8
read c 8192 1500 0
read c 30000 2000 0
flush c 0 0 0
wait
"""


def record_client(folder, corpus, path, name):
    # GMB_OPEN_NO_RECONNECT, NO_EXTENDED, SIMPLE
    for style, flags in (("extended", 2), ("structured", 6), ("simple", 10)):
        with Recorder(folder, path) as recorder:
            run(LIBRARY_DRIVER, script=f"open c nbd+unix:///disk?socket={recorder.path} "
                f"flags={flags} depth=16\n{WORK}close c\n")
        if not recorder.dialogues:
            raise RuntimeError(f"{LIBRARY_DRIVER} did not connect")
        said, heard = (bytes(side) for side in recorder.dialogues[0])
        best = ("simple", "structured", "extended").index(style)
        opening, facts = split_opening(heard)
        corpus.write("nbd_handshake", f"server-{name}-{style}",
                     bytes([best | 4, 0]) + opening)
        if facts is not None and len(opening) < len(heard):
            if facts[0] != best:
                continue  # the same as in another style
            seed = client_seed(split_requests(said), heard[len(opening):], facts)
            slowly = 8 if len(name) % 2 else 0
            corpus.write("nbd_client", f"server-{name}-{style}",
                         bytes([seed[0] | slowly, len(name) % 4]) + seed[1:])


def split_opening(heard):
    """The server's part of the handshake, and (style, id of base:allocation) if it succeeded."""
    style, context, at = 0, None, 18
    while heard[at:at + 8] == b"\x00\x03\xe8\x89\x04\x55\x65\xa9":
        number, kind, length = struct.unpack(">III", heard[at + 8:at + 20])
        data = heard[at + 20:at + 20 + length]
        at += 20 + length
        if kind == 1 and number in (8, 11):
            style = 1 if number == 8 else 2
        elif kind == 4:
            context = data[:4]
        elif (number, kind) == (7, 1):
            return heard[:at], (style, context)
    return heard, None


REQUEST, EXTENDED_REQUEST = 0x25609513, 0x21E41C71


def split_requests(said):
    """(type, flags, cookie, offset, length) of what the client asked for."""
    at = 4
    while said[at:at + 8] == b"IHAVEOPT":
        at += 16 + struct.unpack(">I", said[at + 12:at + 16])[0]
    while at < len(said):
        (magic,) = struct.unpack(">I", said[at:at + 4])
        layout = ">IHH8sQQ" if magic == EXTENDED_REQUEST else ">IHH8sQI"
        _, flags, kind, cookie, offset, length = struct.unpack_from(layout, said, at)
        at += struct.calcsize(layout) + (length if kind == 1 else 0)
        if kind != 2:
            yield kind, flags & ~32, cookie, offset, length


def client_cookie(number):
    """trial_cookie()."""
    return struct.pack("<Q", (77 + number) << 10 | number)


def client_calls(calls):
    return bytes([len(calls)]) + b"".join(
        struct.pack(">BBHQQ", kind, flags, number * 7912 % 65536, length, offset)
        for number, (kind, flags, _, offset, length) in enumerate(calls))


def client_seed(requests, replies, facts):
    """A recording for fuzz_nbd_client.c (without its second byte): the cookies and the context id are
    those of its client."""
    style, context = facts
    calls = list(requests)
    numbers = {call[2]: number for number, call in enumerate(calls)}
    stream, at = b"", 0
    while at + 16 <= len(replies):
        (magic,) = struct.unpack(">I", replies[at:at + 4])
        number = numbers[replies[at + 8:at + 16]]
        if magic == 0x67446698:
            head, body = 16, calls[number][4] if calls[number][0] == 0 else 0
            body = 0 if replies[at + 4:at + 8] != bytes(4) else body
            status = False
        else:
            head = 20 if magic == 0x668E33EF else 32
            body = int.from_bytes(replies[at + (16 if head == 20 else 24):at + head], "big")
            status = replies[at + 6:at + 8] in (b"\0\5", b"\0\6")
        stream += replies[at:at + 8] + client_cookie(number) + replies[at + 16:at + head]
        data = replies[at + head:at + head + body]
        stream += b"\x00\xc0\xff\xee" + data[4:] if status and data[:4] == context else data
        at += head + body
    return bytes([style | (4 if context is not None else 0)]) + client_calls(calls) + stream


# --- by hand -------------------------------------------------------------------------------------

def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


def go(name, *requests, number=7):
    return option(number, struct.pack(">I", len(name)) + name +
                  struct.pack(f">H{len(requests)}H", len(requests), *requests))


def context(name, *queries, number=10):
    return option(number, struct.pack(">I", len(name)) + name + struct.pack(">I", len(queries)) +
                  b"".join(struct.pack(">I", len(q)) + q for q in queries))


def request(command, offset=0, length=0, flags=0, data=b"", cookie=1):
    return struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, offset, length) + data


def extended(command, offset=0, length=0, flags=0, data=b"", cookie=1):
    return struct.pack(">IHHQQQ", 0x21E41C71, flags, command, cookie, offset, length) + data


def hand_session(corpus):
    begin = b"\0\0" + b"\0\0\0\3"
    commands = [(0, 10, 5000, 0), (0, 0, 4096, 4), (3, 0, 0, 0), (4, 5, 70000, 1),
                (6, 1, 9000, 0), (6, 1, 9000, 3), (6, 1, 9000, 16), (5, 0, 100001, 0),
                (7, 0, 100001, 0), (7, 7, 90000, 8), (9, 0, 100, 0), (0, 100000, 2, 0),
                (0, 1 << 63, 1 << 31, 0)]
    for name, export in (("disk", b""), ("read-only", b"ro"), ("failing", b"bad")):
        styles = {
            "simple": (b"", request),
            "structured": (option(8) + context(export, b"base:allocation"), request),
            "extended": (option(11) + context(export, b"base:"  b"allocation"), extended),
        }
        for style, (options, make) in styles.items():
            stream = begin + options + go(export, 3)
            for cookie, (command, offset, length, flags) in enumerate(commands):
                length = min(length, 0xFFFFFFFF)
                stream += make(command, offset, length, flags, cookie=cookie)
            payload = bytes(range(256)) * 3
            flags = 32 if make is extended else 0
            stream += make(1, 99, len(payload), flags, payload, 77)
            stream += make(1, 99, len(payload), flags | 1, payload, 78)
            if make is extended:
                stream += make(7, 0, 65536, 32, struct.pack(">QI", 65536, 1), 79)[:-4]
                stream += make(6, 0, 1 << 40, 0, cookie=80)
            corpus.write("session", f"hand-{style}-{name}", stream + make(2))
    corpus.write("session", "hand-options",
                 begin + option(3) + option(3, b"x") + option(99, b"future") + option(5) +
                 option(4) + option(8) + option(8) + context(b"", number=9) +
                 context(b"", b"base:", b"qemu:", b"nocolon", number=9) + context(b"nope", b"") +
                 go(b"nope") + go(b"", 0, 1, 2, 3, 99, number=6) + option(7, b"\0\0\0\x09ro\0\0") +
                 option(11, b"data") + option(2))
    corpus.write("session", "hand-export-name", begin[:2] + bytes(4) + option(1, b"ro") +
                 request(0, 0, 10) + request(2))
    corpus.write("session", "hand-export-name-missing", begin + option(1, b"none"))
    corpus.write("session", "hand-long-option", begin + option(3, b"z" * 17000) + option(2))
    corpus.write("session", "hand-bad-flags", b"\0\0" + b"\0\0\0\x07")
    corpus.write("session", "hand-bad-magic", begin + go(b"") + b"\x25\x60\x95\x14" + bytes(24))
    corpus.write("session", "hand-big-write",
                 begin + option(8) + go(b"") + request(1, 0, 40000, 0, b"w" * 40000) +
                 request(0, 0, 65536) + request(2))
    for data in (b"\0" + go(b"disk", 1, 2, 3)[16:], b"\0" + b"\xff\xff\xff\xfa\0\0",
                 b"\1" + context(b"disk", b"base:allocation", b"qemu:dirty-bitmap:b")[16:],
                 b"\1" + struct.pack(">I4sII", 4, b"disk", 1, 0xFFFFFFFF)):
        corpus.write("options", f"hand-{len(data)}-bytes", data)


def hand_handshake(corpus):
    def reply(number, kind, data=b""):
        return struct.pack(">QIII", 0x3E889045565A9, number, kind, len(data)) + data
    error = 1 << 31
    greeting = b"NBDMAGICIHAVEOPT\0\3"
    plain = greeting + reply(11, error + 1) + reply(8, error + 1, b"no")
    size = struct.pack(">HQH", 0, 1 << 30, 0x0FFF)
    selected = reply(10, 4, b"\0\0\0\7base:allocation") + reply(10, 1)
    accepted = reply(7, 3, size) + reply(7, 3, struct.pack(">HIII", 3, 1, 4096, 1 << 25)) + \
        reply(7, 3, b"\0\1canon") + reply(7, 3, b"\0\2words") + reply(7, 3, b"\0\x63?") + reply(7, 1)
    newstyle = b"NBDMAGICIHAVEOPT\0\0" + struct.pack(">QH", 1 << 20, 3) + bytes(124)
    for name, data in {
            "extended": b"\2\0" + greeting + reply(11, 1) + selected + accepted,
            "structured": b"\2\5" + greeting + reply(11, error + 1) + reply(8, 1) + selected + accepted,
            "structured-asked": b"\1\1" + greeting + reply(8, 1) + selected + accepted,
            "simple": b"\0\2" + greeting + accepted,
            "export-name": b"\0\7" + greeting + reply(7, error + 1) + struct.pack(">QH", 9, 3),
            "newstyle": b"\2\3" + newstyle,
            "no-context": b"\1\4" + greeting + reply(8, 1) + reply(10, error + 3, b"no") + accepted,
            "missing": b"\0\0" + greeting + reply(7, error + 6, b"none") + reply(2, 1),
            "tls": b"\2\0" + greeting + reply(11, error + 5) + reply(2, error + 2),
            "starttls": b"\x42\3" + greeting + reply(5, 1) + reply(11, 1) + selected + accepted,
            "starttls-simple": b"\x40\2" + greeting + reply(5, 1) + accepted,
            "starttls-refused": b"\x42\0" + greeting + reply(5, error + 2, b"no") + reply(2, 1),
            "starttls-twice": b"\x42\1" + greeting + reply(5, 1) + reply(5, 1),
            "starttls-newstyle": b"\x42\3" + newstyle,
            "starttls-list": b"\x50\5" + greeting + reply(5, 1) + plain[18:] +
                             reply(3, 2, b"\0\0\0\3one") + reply(3, 1) + reply(6, error + 5) +
                             reply(2, 1),
            "shutdown": b"\1\2" + greeting + reply(8, error + 7) + reply(2, 1),
            "epoch": b"\4\1" + greeting + reply(9, 4, b"\0\0\0\0x-gmblock:epoch=0123456789abcdef") +
                     reply(9, 1) + accepted,
            "volatile": b"\5\1" + greeting + reply(8, 1) + reply(9, 4, b"\0\0\0\0x:y") +
                        reply(9, 4, b"\0\0\0\0x-gmblock:epoch=f,volatile") + reply(9, 1) + selected +
                        accepted,
            "speaks-first": b"\0\2" + greeting + accepted + b"gD\x66\x98",
            "everything-info": b"\x08\0" + greeting + reply(11, 1) +
                               reply(9, 4, b"\0\0\0\7base:allocation") + reply(9, 1) + accepted,
            "old-names-info": b"\x08\0" + plain + reply(7, error + 1) + struct.pack(">QH", 1 << 20, 3),
            "first-newstyle-info": b"\x08\0" + newstyle,
            "missing-info": b"\x08\0" + plain + reply(7, error + 6, b"none") +
                            reply(3, 2, b"\0\0\0\3one") + reply(3, 2, b"\0\0\0\3twoabout") +
                            reply(3, 1) + reply(2, 1),
            "list": b"\x10\5" + plain + reply(3, 2, b"\0\0\0\3one") +
                    reply(3, 2, b"\0\0\0\3two") + reply(3, 1) + reply(6, error + 5) +
                    reply(6, 3, size) + reply(6, 1) + reply(2, error + 2),
            "shutdown-list": b"\x10\2" + greeting + reply(11, error + 7) + reply(2, 1),
    }.items():
        corpus.write("nbd_handshake", f"hand-{name}", data)


TEXTS = {
    "http": [
        "GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nUser-Agent: Prometheus/2.42.0\r\n"
        "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
        "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
        "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n",
        "HEAD /metrics?x=1 HTTP/1.0\n\n",
        "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "GET http://host/metrics HTTP/1.1\r\nAccept: text/*; q=0.123 ; x=\"a,b\" ,;,"
        "*/*;q=1.0000\r\n\r\n",
        "GET / HTTP/2.0\r\nA: b\r\n folded\r\n\r\n",
        "\x16\x03\x01\x02\x00\n\n",
    ],
    "uri": ["nbd://localhost", "nbd://127.0.0.1:10809/disk", "nbd://[::1]:0/a%20b", "nbds://h/x",
            "nbd+unix:///?socket=/tmp/s", "nbd+unix:///e%2Ff?socket=/a/b&x=y",
            "nbds+unix:///n?socket=%00abstract&tls-type=psk&tls-hostname=h&tls-verify-peer=0",
            "nbds://u@h/?tls-certificates=/etc/pki&tls-psk-file=a%20b&tls-verify-peer=1",
            "nbds://u:password@h/", "nbd://h/?tls-type=psk",
            "nbd://user@host:99/%C3%A9", "nbd://h:65536/", "nbd://h/%00", "nbd+unix:///x",
            "nbd://[fe80::1%25eth0]/", "http://x/", "nbd://h/%zz", "nbd:", ""],
    "units": ["0", "1", "4096", "64M", "1g", "16EiB", "15E", "18446744073709551615", "1KiB", "2kb",
              "10ms", "500us", "1s", "3min", "1h", "7ns", "-1", "1.5G", " 1", "1 ", "99999999999h"],
    "store_rule": ["read:EIO", "write:ENOSPC:nth=3", "any:EIO:every=2:range=4096+8192",
                   "flush:EIO:prob=0.25", "trim:EPERM:range=1M+1M", "zero:EOPNOTSUPP",
                   "read:10ms", "any:1s:range=0+512", "cache:500us", "extents:1ns",
                   "read:EIO:nth=0", "read:EIO:prob=1.1", "read:EIO:range=18446744073709551615+2",
                   "none:EIO", "read:", ":", "read:EIO:nth=1:every=2", "100M",
                   "1G:latency=100us:members=4:chunk=64K", "1T:members=64", "1M:chunk=4K"],
    "access": ["rights=rw", "disk1: psk=alice address=10.1.0.0/16 rights=rw", ": rights=none",
               r"a\:b\=c\\: uid=0 rights=ro", r"cert-dn=CN=Joe\ Doe,O=Example rights=ro",
               "cert-san=dns:host.example tls=true rights=rw", "cert-san=ip:::1 rights=ro",
               "cert-san=email:a@b.example rights=ro", "cert-san=uri:https://x.example/y rights=ro",
               "cert-fingerprint=sha256:" + "9f" * 32 + " rights=rw",
               "key-fingerprint=" + "00:" * 31 + "ff rights=rw", "cert-cn=x rights=rw",
               "address=::ffff:10.0.0.0/104 rights=ro", "address=::/0 rights=ro",
               "address=10.0.0.1/8 rights=ro", "address=1.2.3.4 uid=1 rights=ro", "rights=rw rights=ro",
               "uid=4294967295 rights=rw", "tls=false psk=x rights=rw", "cert-san=dns:*.x rights=ro",
               "psk=", "psk", "disk1:", "  ", "adress=::1 rights=ro"],
    "export": ["=disk.img", "name=path", "=memory:64M,readonly", "a=null:1G,mode=direct",
               "a=b,write-mode=cached,description=some text,max-connections=3",
               r"we\=ird=pa\,th,description=a\,b\\c", "x=y,fault=read:EIO:nth=2,delay=any:1ms",
               "x=y,fault=read:EIO,fault=write:EIO", "x=y,readonly=yes", "x=y,mode=fast", "x", "=",
               "x=y,", "x=y,,", "x=y,what=ever", "\xe9=y", "x=y,readonly,readonly",
               "x=y,overlap=64K,stripe=128K:4,progress=completion", "x=y,overlap=off,page-cache-send=off",
               "x=y,pace=100M:latency=1ms:members=4:chunk=128K"],
}


def hand_texts(corpus):
    for target, texts in TEXTS.items():
        for number, text in enumerate(texts):
            corpus.write(target, f"hand-{number:02}", text.encode("latin-1"))
    for number, text in enumerate((b"plain", b"\x1b[31m\r\n", b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x92\xbe",
                                   b"\xc3\xff\xed\xa0\x80\xf4\x90\x80\x80", b"\"\\\x7f\xc2\x9b",
                                   b"x" * 300)):
        corpus.write("text", f"hand-{number:02}-small", b"\0" + text)
        corpus.write("text", f"hand-{number:02}-large", b"\xff" + text)


def hand_overlay(corpus):
    """What is put right, header, bitmap; see fuzz_overlay.c."""
    def head(version=1, block=4096, size=100 << 10, fingerprint=0x9C735BED0A722325, path=b"base",
             path_bytes=None):
        return struct.pack(">8sIIQQQII", b"GMBOVL\r\n", version, block, size, 0, fingerprint,
                           len(path) if path_bytes is None else path_bytes, 0) + path.ljust(80, b"\0")
    for name, right, data in (
            ("good", 3, head()), ("bits", 3, head() + b"\xff\1\0\1"),
            ("behind-the-end", 3, head() + b"\0\0\0\xff"), ("checksum", 2, head()),
            ("short", 1, head()), ("version", 3, head(version=2)), ("block", 3, head(block=512)),
            ("other-base", 3, head(fingerprint=1)), ("other-size", 3, head(size=4096)),
            ("large", 3, head(size=1 << 36) + b"\1"), ("too-large", 3, head(size=(1 << 48) + 1)),
            ("empty-disk", 3, head(size=0)), ("path", 3, head(path_bytes=3969)),
            ("whole-path", 3, head(path_bytes=3968)), ("no-path", 3, head(path=b""))):
        corpus.write("overlay", f"hand-{name}", bytes([right]) + data)


def hand_flash(corpus):
    """What is put right, length of the anchor, anchor, record; see fuzz_flash.c."""
    uuid = bytes(range(16))

    def anchor(version=1, disk=1000, count=32, blocks=64, segment=1, block=2, top=b""):
        return struct.pack("<8sII16sQQIIQIIIIQ", b"GMBFLA\r\n", version, 4096, uuid, 5, disk, count,
                           blocks, 77, segment, block, 0xC0FFEE, 15, 4000).ljust(512, b"\0") + top.ljust(16, b"\0")

    def view(name, serial=5, top=b""):
        return struct.pack("<64sQQ", name, serial, 1 << 30).ljust(128, b"\0") + top.ljust(512, b"\0")

    def entry(lpn, kind, source=0, crc=0):
        return lpn.to_bytes(5, "little") + struct.pack("<BIIH", kind, source, crc, 0)

    def record(entries=(), seq=77, durable=70, next_segment=0xFFFFFFFF, count=None):
        return (struct.pack("<4sI16sQQIIH", b"GFLR", 0, uuid, seq, durable, 0xC0FFEE, next_segment,
                            len(entries) if count is None else count).ljust(256, b"\0") + b"".join(entries))

    def cache(version=1, tag=7, slots=32):
        return struct.pack("<8sII16s16sQQI", b"GMBFLC\r\n", version, 4096, uuid, uuid, tag, 1000, slots)

    some = (entry(3, 1, crc=9), entry(4, 2, source=300, crc=8), entry(512, 3, source=400), entry(0, 4, source=2, crc=7))
    for name, right, first, second in (
            ("good", 3, anchor(), record(some)), ("empty", 3, anchor(), record()),
            ("top", 3, anchor(top=struct.pack("<II", 700, 1)), record(some)),
            ("views", 3, anchor().ljust(1024, b"\0") + view(b"daily", top=struct.pack("<II", 700, 1)) + view(b"x.2"),
             record((entry(0, 4, source=5, crc=7), entry(3, 2, source=300, crc=8)))),
            ("view-name", 3, anchor().ljust(1024, b"\0") + view(b"a/b"), b""),
            ("view-serial", 3, anchor().ljust(1024, b"\0") + view(b"a", serial=6), b""),
            ("leaves", 3, anchor(), record(some, next_segment=9)), ("nowhere", 3, anchor(), record(some, next_segment=32)),
            ("durable", 3, anchor(), record(some, durable=78)), ("count", 3, anchor(), record(some, count=241)),
            ("long", 3, anchor(block=10), record([entry(i, 1, crc=i) for i in range(60)])),
            ("cache", 5, anchor(), cache()), ("cache-slots", 5, anchor(), cache(slots=1 << 25)),
            ("cache-tag", 5, anchor(), cache(tag=0)), ("cache-page", 1, anchor(), struct.pack("<QQQ", 3, 9, 77)),
            ("checksums", 0, anchor(), record(some)), ("version", 1, anchor(version=9), b""),
            ("disk", 1, anchor(disk=100000), b""), ("segments", 1, anchor(count=1 << 31), b""),
            ("position", 1, anchor(block=63), b"")):
        corpus.write("flash", f"hand-{name}", bytes([right, len(first) // 16]) + first + second)


CONFIGS = {
    "whole": """
limits:
  memory: 256M
  threads: 2
  max-connections: 100
  max-handshakes: 10
  handshake-timeout: 5s
  max-inflight: 64
  max-inflight-total: 512
  spin: off
listen:
  - nbd://127.0.0.1:10809
  - nbd+unix:///?socket=/run/s
exports:
  - name: disk
    path: /srv/disk.img
    mode: cached
    write-mode: direct
    readonly: true
    description: "A disk, with a comma"
    max-connections: 5
    overlap: 64K
    stripe: "128K:4"
    progress: auto
  - name: ""
    path: memory:64M
    fault: [ "read:EIO:nth=3", "flush:EIO" ]
    delay: [ "any:10ms" ]
    pace: "100M:members=2"
""",
    "smallest": "exports: [ { path: memory:1M } ]\n",
    "access": "access: [{rights: ro, address: 10.0.0.0/8}, none]\nexports:\n- name: a\n  path: memory:1M\n  access:\n  - {rights: rw, psk: alice, tls: true}\n  - {cert-san: \"dns:a.example\", rights: ro}\n  - rw\n",
    "access-wrong": "access:\n- {rights: [ro]}\nexports: [{name: a, path: b, access: [{uid: 1, uid: 2}]}]\n",
    "unknown-key": "exports:\n  - path: x\n    colour: red\n",
    "wrong-type": "exports: 7\n",
    "bad-value": "limits: { memory: lots }\nexports:\n  - { name: a, path: b }\n",
    "twice": "exports:\n  - { name: a, path: b }\n  - { name: a, path: c }\n",
    "anchors": "a: &a [x]\nb: *a\nexports: [ { path: &p m, name: *p } ]\n",
    "not-yaml": "exports: [ {\n\t: }\n",
    "empty": "",
    "documents": "---\nexports: []\n---\nexports: []\n",
}


def hand_upgrade(corpus):
    def message(kind, payload=b"", version=1, magic=0x676D6255):
        return struct.pack(">IHH", magic, version, kind) + payload

    def session(state, kind=b"nbd", export=b"", token=b""):
        lengths = struct.pack(">IIII", len(kind), len(export), len(token), len(state))
        return message(6, lengths + kind + export + token + state)

    def state(flags=0, alive=0, received=b""):
        return struct.pack(">III", flags, alive, len(received)) + received

    def tls(peer, rest=b"", form=1, version=0x0304, cipher=2):
        return struct.pack(">HHIQ48s48sI", form, version, cipher, 1 << 34, b"r" * 48, b"s" * 48,
                           peer) + rest

    def chain(*certificates):
        return struct.pack(">32sQQ", b"", 0, 2**40) + b"".join(
            struct.pack(">I", len(der)) + der for der in certificates)

    claim = struct.pack(">II16sQ", 1, 2, bytes(range(16)), 77)
    memory = struct.pack(">II16sQ", 2, 2, bytes(range(16)), 77)
    # That of fuzz_upgrade.c.
    key = hmac.digest(bytes.fromhex("0123456789abcdef" * 2), b"nobody", "sha256")
    read, write = request(0, 0, 512), request(1, 4096, 4096, data=bytes(4096))
    packets = {
        "hello": (0, message(1, struct.pack(">I", 4711))),
        "listener": (1, message(2, struct.pack(">IQQ", 1, 2, 3))),
        "listener-of-metrics": (1, message(2, struct.pack(">IQQ", 9, 2, 3))),
        "export": (1, message(3, claim + struct.pack(">I", 4) + b"disk")),
        "export-of-memory": (1, message(3, memory + struct.pack(">I", 4) + b"disk")),
        "export-without-memory": (0, message(3, memory + struct.pack(">I", 4) + b"disk")),
        "prepare": (0, message(4)), "ready": (0, message(5)),
        "sessions-end": (0, message(7, struct.pack(">II", 3, 1))), "started": (0, message(8)),
        "failed": (0, message(9, b"no \x1b[31mdisk")),
        "added": (0, message(10, b"x\0memory:1M\0rate\0=1M\0readonly\0\0")),
        "added-bare": (0, message(10, b"\0/srv/x.img\0")),
        "added-overlay": (0, message(10, b"n\0/srv/x\0overlay\0=discard\0delay\0=read:1ms\0"
                                         b"delay\0=write:1ms\0")),
        "added-odd": (0, message(10, b"x\0memory:1M\0rate\0")),
        "added-no-end": (0, message(10, b"x\0memory:1M")),
        "added-no-equals": (0, message(10, b"x\0memory:1M\0rate\x001M\0")),
        "added-unknown-key": (0, message(10, b"x\0memory:1M\0colour\0=red\0")),
        "added-not-utf-8": (0, message(10, b"\xff\0memory:1M\0")),
        "added-no-path": (0, message(10, b"x\0\0")),
        "added-full": (0, message(10, b"x\0memory:1M\0" + b"description\0=" + b"d" * 16358 + b"\0")),
        "added-many": (0, message(10, b"x\0memory:1M\0" + b"fault\0=read:EIO\0" * 257)),
        "session": (1, session(state())),
        "session-begun": (1, session(state(32, received=write[:28] + bytes(96)) + struct.pack(">QI", 4000, 0))),
        "session-begun-and-more": (130, session(state(32, received=write[:28]) + struct.pack(">QI", 512, 0))),
        "session-failed": (1, session(state(32, received=write[:28]) + struct.pack(">QI", 4096, 5))),
        "session-begun-too-far": (1, session(state(32, received=write[:28]) + struct.pack(">QI", 4097, 0))),
        "session-begun-without-header": (1, session(state(32, received=write[:27]) + bytes(12))),
        "received": (0, message(12, struct.pack(">I", 0) + write)),
        "received-too-much": (0, message(12, bytes(4 + 24577))),
        "session-unknown-export": (1, session(state(), export=b"none")),
        "session-token": (1, session(state(7, 10), token=b"t" * 16)),
        "session-read": (1, session(state(1, 0, read + read[:13]))),
        "session-write": (1, session(state(0, 0, write))),
        "session-half": (1, session(state(0, 0, write[:2000]))),
        "session-extended": (1, session(state(3, 100, extended(0, 0, 70000)))),
        "session-context": (1, session(state(5, 0, request(7, 0, 65536)))),
        "session-full": (1, session(state(0, 0, read * 292))),
        "session-too-full": (1, session(state(0, 0, read * 293))),
        "session-bad-flags": (1, session(state(2))),
        "session-tls-missing": (1, session(state(16))),
        "session-tls-nobody": (1, session(state(16) + tls(0))),
        "session-tls-form": (1, session(state(17) + tls(0, form=2))),
        "session-tls-cipher": (1, session(state(17) + tls(0, version=0x0303, cipher=4))),
        "session-tls-psk": (1, session(state(16, 0, read) + tls(1, key + b"nobody"))),
        "session-tls-chain": (1, session(state(16) + tls(2, chain(b"0" * 40, b"1")))),
        "session-tls-no-chain": (1, session(state(16) + tls(2, chain()))),
        "version": (0, message(4, version=2)), "magic": (0, message(4, magic=1)),
    }
    for name, (fds, packet) in packets.items():
        corpus.write("upgrade", f"hand-{name}", bytes([fds]) + packet)


def hand_nbd_client(corpus):
    """The replies of tests/unit/test_nbd_client.c, one a seed."""
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        subprocess.run([TEST_NBD_CLIENT, folder], check=True)
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as seed:
                corpus.write("nbd_client", f"hand-{name}", seed.read())


def hand_identity(corpus):
    """Texts of rules by kind, files of keys, and the certificates of tests/functional/tls_tool.py."""
    psk, dn, cn, dns, email, uri, ip, cert_hash, key_hash, psk_file, certificate = range(11)
    digits = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    texts = {
        psk: ["alice", "a:b"], cn: ["host-a"], email: ["a@b"], uri: ["urn:x"],
        dn: ["CN=backup,O=Example", "cn = a , 2.5.4.10=b", r"CN=\ a\2C\,\#+UID=b,DC=org",
             "CN=#0c0441424344", "CN=#0c81", "O=\xc3\xbc", "OID.1.2=x", "CN=", "CN=a,"],
        dns: ["Host-A.example", "*.example", "a."],
        ip: ["192.0.2.7", "2001:db8::1", "1.2.3"],
        cert_hash: ["sha256:" + digits], key_hash: ["SHA256:" + ":".join(re.findall("..", digits))],
        psk_file: [f"# keys\nalice:{digits}\n\nbob:{digits[:32]}\r\n", f"a:{digits}\na:{digits}\n",
                   "a:00\n", f"#cafe:{digits}\n", f"a:{digits}"],
    }
    for kind, seeds in texts.items():
        for number, text in enumerate(seeds):
            corpus.write("identity", f"hand-{kind:02}-{number}", bytes([kind]) + text.encode("latin-1"))
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        tls_tool.make(folder)
        for name in ("good/server", "good/client", "chain/client", "rsa/server"):
            with open(os.path.join(folder, name + "-cert.pem"), encoding="ascii") as pem:
                der = ssl.PEM_cert_to_DER_cert(pem.read().split("-----END")[0] +
                                               "-----END CERTIFICATE-----\n")
            corpus.write("identity", "hand-cert-" + name.replace("/", "-"), bytes([certificate]) + der)


def hand_gmb(corpus):
    """Each message once as it should be, and at the borders of what is allowed."""
    hello, lists, opens, region, requests, welcome, export, reply, event, copies = range(10)
    magic = b"gmblock1"
    segment = lambda offset, length: struct.pack("<HHIQQ", 1, 0, 7, offset, length)
    head = lambda operation, length, segments=0, inlined=0, extents=0: struct.pack(
        "<IBBHQQHHI", 5, operation, 0, 0, 4096, length, segments, inlined, extents)
    asked = lambda extents, length: struct.pack("<IQ", extents, length)
    answer = lambda status, value: struct.pack("<IIQ", 5, status, value)
    extent = lambda length, flags: struct.pack("<QII", length, flags, 0)
    described = struct.pack("<IIQQQIIHHI", 0, 5, 1 << 30, 1, 2, 1 << 20, 4096, 4, 6, 0)
    seeds = {
        "hello": (hello, magic + struct.pack("<HHI", 1, 3, 0)),
        "hello-later": (hello, magic + struct.pack("<HHI", 2, 3, 0)),
        "list": (lists, bytes(8)),
        "open": (opens, struct.pack("<HHBBH", 0, 4, 3, 2, 0) + b"disk" + b"t.3" + b"\x03t.1\x03t.2"),
        "open-look": (opens, struct.pack("<HHBBH", 1, 0, 0, 0, 0)),
        "region": (region, struct.pack("<QIIHHHHQ", 0, 1 << 20, 1, 0, 15, 3, 0, 0)),
        "read": (requests, head(0, 5000, 2) + segment(0, 4096) + segment(8192, 904)),
        "read-longest": (requests, head(0, 64 * 512, 64) + segment(0, 512) * 64),
        "read-wraps": (requests, head(0, 1, 2) + segment(0, 1 << 63) + segment(0, (1 << 63) + 1)),
        "write-inline": (requests, head(1, 512, 0, 512) + bytes(512)),
        "write-both": (requests, head(1, 1024, 1, 512) + segment(0, 512) + bytes(512)),
        "flush": (requests, head(2, 0)),
        "status": (requests, head(6, 1 << 40, 0, 0, 16)),
        "unknown": (requests, head(200, 7)),
        "welcome": (welcome, magic + struct.pack("<HHI", 1, 0, 0)),
        "welcome-moves": (welcome, magic + struct.pack("<HHI", 1, 1, 0)),
        "export": (export, described + b"disk" + b"a disk"),
        "export-none": (export, struct.pack("<II", 2, 0) + bytes(40)),
        "reply": (reply, asked(0, 4096) + answer(0, 0)),
        "reply-error": (reply, asked(0, 4096) + answer(28, 4096) + b"no space"),
        "reply-extents": (reply, asked(4, 8192) + answer(0, 2) + extent(4096, 0) + extent(4096, 3)),
        "reply-too-much": (reply, asked(4, 8192) + answer(0, 2) + extent(4096, 0) + extent(4097, 3)),
        "welcome-2": (welcome, magic + struct.pack("<HHI", 2, 0, 0) + bytes(range(16))),
        "copy": (copies, struct.pack("<IHHQQQQ", 5, 1, 4, 4096, 1 << 40, 8192, 7) + b"disk"),
        "copy-no-text": (copies, struct.pack("<IHHQQQQ", 5, 0, 2, 0, 1, 0, 0) + b"a\xff"),
        "reply-copied": (reply, asked((1 << 32) - 1, 15) + answer(0, 0) +
                         struct.pack("<5Q", 1, 2, 3, 4, 5)),
        "reply-copied-wraps": (reply, asked((1 << 32) - 1, 1) + answer(0, 0) +
                               struct.pack("<5Q", 1 << 63, 1 << 63, 0, 0, 1)),
        "event": (event, struct.pack("<IIQ", 1, 0, 1 << 30)),
    }
    for name, (parser, message) in seeds.items():
        corpus.write("gmb", f"hand-{name}", bytes([parser]) + message)


class Corpus:
    def __init__(self, folder):
        self.folder = folder

    def write(self, target, name, data):
        if len(data) > SEED_BYTES_MAX:
            data = data[:SEED_BYTES_MAX]
        os.makedirs(os.path.join(self.folder, target), exist_ok=True)
        with open(os.path.join(self.folder, target, name), "wb") as seed:
            seed.write(data)


def hand_push(corpus):
    """The parser, and a message, the head of a piece, or a ticket; see fuzz_push.c."""
    mib, instance, uri = 1 << 20, bytes(range(16)), b"push+unix:///?socket=/s"
    ticket = struct.pack("<IHHQQQQII", 0x314B5450, 1, 0, 7, 0, mib, 600, 1, 1000) + bytes(16) + instance + bytes(32)
    for parser, name, message in (
            (0, "look", struct.pack("<HHI", 4, 0, 0) + b"disk"),
            (1, "grant", struct.pack("<QQQIIIHH", 0, mib, 0, 2, 1, 1000, 4, 6) + bytes(16) + instance + b"disksource"),
            (2, "start", struct.pack("<QQQIHHII", 0, mib, 0, 1, 4, len(uri), 1000, 0) + b"disk" + uri + ticket),
            (2, "start-nbd", struct.pack("<QQQIHHII", 0, mib, 0, 8, 4, 9, 0xFFFFFFFF, 0) + b"disknbd://a/b"
             + struct.pack("<IHHQQQ", 0, 0, 6, 0, mib, mib) + bytes(80)),
            (3, "cancel", struct.pack("<Q", 7)),
            (3, "hello", struct.pack("<8sHHI", b"gmbpush1", 1, 1, 0)),
            (4, "answer", struct.pack("<IIQHHI", 0, 0, 7, 0, 112, 0) + ticket),
            (4, "answer-error", struct.pack("<IIQHHI", 2, 0, 0, 4, 0, 0) + b"none"),
            (5, "job", struct.pack("<QQQQQQQQQQIBBHHHI", 7, 1, 0, 100, 50, 0, 0, 10, 9, 5, 0, 1, 2, 4, 1, 0, 0) + b"diskp"),
            (6, "welcome", struct.pack("<8sHHI", b"gmbpush1", 1, 0, 0) + bytes(16)),
            (7, "zero", struct.pack("<QQ", mib, 2 * mib)),
            (8, "check", struct.pack("<QII", mib, mib, 5)),
            (9, "flush", struct.pack("<QQII", mib, 5, 1, 0)),
            (10, "piece", struct.pack("<IIQI44x", 0x31435050, 1, mib, mib)),
            (11, "used", struct.pack("<QQIIHHI", 0, mib, 8, 1, 1, 0, 30000)),
            (12, "zeroed", struct.pack("<QQ", 0, 1)),
            (13, "checked", struct.pack("<QII", 0, 1, 0)),
            (14, "failed", struct.pack("<IHH", 5, 4, 0) + b"text"),
            (15, "use", instance + ticket)):
        corpus.write("push", f"hand-{name}", bytes([parser]) + message)


def hand_tls(corpus):
    """First bytes of connections, and changes of what is said: see fuzz_tls.c."""
    def hello(version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = version
        output = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), output, server_hostname="host-a.example").do_handshake()
        return output.read()

    def changes(*places):
        return b"".join(struct.pack(">HB", *place) for place in places)

    strangers = {
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "sslv2": bytes.fromhex("802e0100020015000000100100800300800700c0"),
        "tls12": hello(ssl.TLSVersion.TLSv1_2),
        "tls13": hello(ssl.TLSVersion.TLSv1_3),
        "alert": bytes.fromhex("15030300020228"),
        "bytewise": bytes.fromhex("160303000101") * 40,
        "data": bytes.fromhex("170303000401020304") + bytes.fromhex("140303000101") * 4,
    }
    for name, data in strangers.items():
        for way, role in ((0, "server"), (0x80, "client"), (2, "records")):
            corpus.write("tls", f"hand-{name}-{role}", bytes([way, 200]) + data)
    for name, places in {"nothing": (), "early": ((9, 1),), "late": ((160, 0x80),),
                         "two": ((300, 1), (40, 2)), "header": ((522, 1),)}.items():
        for way in (1, 0x81, 3, 0x83):
            corpus.write("tls", f"hand-change-{name}-{way:02x}", bytes([way, 0]) + changes(*places))


def hand_session_tls(corpus):
    flags = b"\0\0\0\3"
    starttls = option(5)
    structured = option(8) + context(b"", b"base:allocation")
    use = (structured + go(b"", 3) + request(1, 99, 300, 1, bytes(300)) + request(0, 10, 5000) +
           request(7, 0, 100001) + request(2))
    talks = {  # what is said in clear, what under TLS
        "use": (flags + starttls, b"T" + use),
        "agreed-before": (flags + option(11) + structured + starttls,
                          b"T" + go(b"", 3) + request(0, 10, 5000) + request(2)),
        "twice": (flags + starttls, b"T" + starttls + option(3) + go(b"ro") + request(2)),
        "refused-hello": (flags + starttls, b"X" + use),
        "no-hello": (flags + starttls, b""),
        "early-bytes": (flags + starttls + b"T" + option(3), use),
        "with-data": (flags + option(5, b"x") + starttls, b"T" + use),
        "clear-options": (flags + option(3) + go(b"", number=6) + option(8) + option(99, b"x"),
                          option(2)),
        "clear-use": (flags + structured, go(b"", 3) + request(0, 10, 5000) + request(2)),
        "clear-export-name": (flags, option(1) + request(0, 0, 10) + request(2)),
        "export-name": (flags + starttls, b"T" + option(1) + request(0, 0, 10) + request(2)),
        "old-client": (bytes(4) + starttls, b"T" + use),
    }
    rough = JITTER | PIECES | SMALL
    for mode, mode_name in enumerate(("off", "on", "require")):
        for name, (clear, encrypted) in talks.items():
            said = bytes([mode, len(clear)]) + clear + encrypted
            corpus.write("session_tls", f"hand-{mode_name}-{name}", b"\0\0" + said)
        corpus.write("session_tls", f"hand-{mode_name}-use-rough",
                     bytes([rough, 5 + mode, mode, len(flags + starttls)]) + flags + starttls +
                     b"T" + use)
        corpus.write("session_tls", f"hand-{mode_name}-use-stop",
                     bytes([STOP | RESET, 9, mode, len(flags + starttls)]) + flags + starttls +
                     b"T" + use)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--corpus", default=os.path.join(os.path.dirname(__file__), "corpus"))
    corpus = Corpus(parser.parse_args().corpus)
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        record_session(folder, corpus)
        record_servers(folder, corpus)
    hand_session(corpus)
    hand_session_tls(corpus)
    hand_handshake(corpus)
    hand_nbd_client(corpus)
    hand_texts(corpus)
    hand_overlay(corpus)
    hand_flash(corpus)
    hand_upgrade(corpus)
    hand_gmb(corpus)
    hand_push(corpus)
    hand_tls(corpus)
    hand_identity(corpus)
    for name, text in CONFIGS.items():
        corpus.write("config", f"hand-{name}", text.encode())


if __name__ == "__main__":
    main()
