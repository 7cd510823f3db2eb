#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/fuzz/recorded.json.xz, of which make_seeds.py makes seeds.

    GMBLOCK=build/gmblock tests/fuzz/record_seeds.py

Real clients (those that are installed) talk to "gmblock serve", and "gmblock info" and libgmblock
(by tests/functional/library_driver, LIBRARY_DRIVER in the environment) talk to real servers, each
through a recorder that keeps what goes by. The exports are those of fuzz_session.c, so that a recording
makes sense there. Certificates and first bytes of TLS belong to the recording: they are random.
"""

import contextlib
import json
import lzma
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.parse

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "functional")]
from make_seeds import (CERTIFICATE, DEAF, DISK_ERRORS, GOAL_INFO, GOAL_LIST, JITTER, PIECES,  # noqa: E402
                        RECORDED, RESET, SMALL, STOP, Corpus, write_strangers)
import tls_tool  # noqa: E402

GMBLOCK = os.path.abspath(os.environ.get("GMBLOCK", "build/gmblock"))
LIBRARY_DRIVER = os.path.abspath(os.environ.get("LIBRARY_DRIVER",
                                                "build/tests/functional/library_driver"))
DISK_BYTES = 100001
PATIENCE_S = 60


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


# --- random bytes of TLS --------------------------------------------------------------------------

def record_certificates(corpus):
    """Those of tests/functional/tls_tool.py."""
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        tls_tool.make(folder)
        for name in ("good/server", "good/client", "chain/client", "rsa/server"):
            with open(os.path.join(folder, name + "-cert.pem"), encoding="ascii") as pem:
                der = ssl.PEM_cert_to_DER_cert(pem.read().split("-----END")[0] +
                                               "-----END CERTIFICATE-----\n")
            corpus.write("identity", "hand-cert-" + name.replace("/", "-"), bytes([CERTIFICATE]) + der)


def record_hellos(corpus):
    def hello(version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = version
        output = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), output, server_hostname="host-a.example").do_handshake()
        return output.read()

    write_strangers(corpus, {"tls12": hello(ssl.TLSVersion.TLSv1_2), "tls13": hello(ssl.TLSVersion.TLSv1_3)})


def record():
    """Makes recorded.json.xz: {target: {name: a character for each byte}}."""
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        corpus = Corpus(os.path.join(folder, "corpus"))
        record_session(folder, corpus)
        record_servers(folder, corpus)
        record_certificates(corpus)
        record_hellos(corpus)
        found = {}
        for target in sorted(os.listdir(corpus.folder)):
            seeds = found[target] = {}
            for name in sorted(os.listdir(os.path.join(corpus.folder, target))):
                with open(os.path.join(corpus.folder, target, name), "rb") as seed:
                    seeds[name] = seed.read().decode("latin-1")
    with lzma.open(RECORDED, "wt", encoding="ascii") as out:
        json.dump(found, out, indent=0)


if __name__ == "__main__":
    record()
