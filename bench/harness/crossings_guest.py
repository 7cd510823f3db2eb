#!/usr/bin/python3
"""The part of bench/crossings that runs in the guest: moves the same bytes in each way, and counts where they pass.

WAYS is what bench/crossings draws its table from. main() needs root, a kernel with kprobes, and two NVMe drives
behind one PCIe switch, one of them with a controller memory buffer. It writes one JSON object to /results/crossings.

Counters that do not depend on each other:
- disk: the sectors in /sys/block/*/stat
- targets of the disk's transfers: what gmblock counts for server RAM, memory of the client and device memory;
  for cached ways the pages of disks in the page cache ("Buffers" in /proc/meminfo)
- copies in the kernel: what its functions have copied, by histograms of kprobes
- copies in user space: bench/copy_counter.c
"""

import collections
import glob
import json
import os
import random
import signal
import socket
import subprocess
import sys

MIB = 1 << 20
TRACING = "/sys/kernel/tracing"
SOCKET, NBD_SOCKET, CONTROL, COUNTS = "/run/gmb", "/run/nbd", "/run/control", "/run/counts"
FAR_SERVER, FAR_CLIENT = "192.0.2.1", "192.0.2.2"

# mode: keys of the export. scheme: how the client reaches it. block: bytes of a request. tool: who reads or writes.
# hot: the data is in the page cache of the server before.
Way = collections.namedtuple("Way", "title mode scheme block tool operation hot", defaults=("bench", "read", False))
WAYS = {
    "cached": Way("NBD over TCP, page cache", "mode=cached", "nbd", 64 << 10),
    "page-cache-copy": Way("NBD over TCP, page cache (hot)", "mode=cached", "nbd", MIB, hot=True),
    "page-cache-send-far": Way("NBD over TCP from another network namespace, sent from the page cache (hot)", "mode=cached", "nbd-far", MIB,
                               hot=True),
    "page-cache-send-unix": Way("NBD over a Unix socket, sent from the page cache (hot)", "mode=cached", "nbd+unix", MIB, hot=True),
    "direct": Way("NBD over TCP, direct", "mode=direct", "nbd", MIB),
    "device": Way("NBD over TCP, device memory", "mode=device,device-cpu=yes", "nbd", MIB),
    "gmb-unix-cached": Way("gmb+unix, page cache", "mode=cached", "gmb+unix", MIB),
    "gmb-unix": Way("gmb+unix, direct", "mode=direct", "gmb+unix", MIB),
    "gmb-tcp": Way("gmb over TCP, direct", "mode=direct", "gmb", MIB),
    "write-cached": Way("NBD over TCP, page cache", "write-mode=cached", "nbd", MIB, operation="write"),
    "write-direct": Way("NBD over TCP, direct", "write-mode=direct", "nbd", MIB, operation="write"),
    "write-gmb-unix": Way("gmb+unix, direct", "write-mode=direct", "gmb+unix", MIB, operation="write"),
    "copy-ram": Way("copy within the server, RAM", "mode=direct", "gmb+unix", MIB, "copy", "copy"),
    "copy-device": Way("copy within the server, device memory", "mode=device", "gmb+unix", MIB, "copy", "copy"),
    "ublk": Way("ublk, NBD over TCP, direct", "mode=direct", "nbd", MIB, "ublk"),
    "ublk-write": Way("ublk, NBD over TCP, direct", "write-mode=direct", "nbd", MIB, "ublk", "write"),
    "ublk-gmb-tcp": Way("ublk with staging, gmb over TCP, direct", "mode=direct", "gmb", MIB, "ublk"),
    "ublk-gmb-tcp-write": Way("ublk with staging, gmb over TCP, direct", "write-mode=direct", "gmb", MIB, "ublk", "write"),
    "ublk-gmb-unix": Way("ublk with staging, gmb+unix, direct", "mode=direct", "gmb+unix", MIB, "ublk"),
    "nbd": Way("kernel nbd, NBD over TCP, direct", "mode=direct", "nbd", MIB, "nbd"),
}

# Functions that copy, and where a probe finds the number of bytes, of which some are an int: an error or a count below 2^31.
# The functions in lib/iov_iter.c cannot be probed.
RESULT, FOURTH = "$retval", "%cx"
PROBES = {
    "cached_read": ("filemap_read", RESULT),
    "cached_write": ("iomap_file_buffered_write", RESULT),
    "tmpfs_read": ("shmem_file_read_iter", RESULT),
    "tcp_send": ("tcp_sendmsg", RESULT),
    "unix_send": ("skb_copy_datagram_from_iter", FOURTH),
    "receive": ("skb_copy_datagram_iter", FOURTH),
    "ublk": ("ublk_copy_user_pages", RESULT),
    "spliced": ("skb_splice_from_iter", RESULT),
}
# What tcp_sendmsg() has accepted without a copy, as pages from sendfile().
NOT_COPIED = "spliced"


def write(path, text, flags=os.O_WRONLY):
    """In one call, as files of the kernel need it."""
    file = os.open(path, flags)
    try:
        os.write(file, text.encode())
    except OSError as error:
        raise SystemExit("cannot write '%s' to %s: %s" % (text.strip(), path, error)) from error
    finally:
        os.close(file)


class Probes:
    """The bytes of the kernel's copies by thread."""

    def __init__(self):
        if not os.path.isdir(TRACING + "/events"):
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
        with open("/proc/kallsyms", encoding="ascii") as file:
            symbols = {line.split()[2] for line in file}
        for name, (function, place) in PROBES.items():
            # The compiler may have changed its parameters.
            symbol = next(symbol for symbol in (function, function + ".isra.0", function + ".constprop.0")
                          if symbol in symbols)
            write(TRACING + "/kprobe_events", "%s:crossings/%s %s bytes=%s:s32\n" % (
                "r64" if place == RESULT else "p", name, symbol, place), os.O_WRONLY | os.O_APPEND)
            write(self._event(name, "trigger"), "hist:keys=common_pid:vals=bytes:size=4096 if bytes > 0\n")

    @staticmethod
    def _event(name, file):
        return "%s/events/crossings/%s/%s" % (TRACING, name, file)

    def read(self):
        """{thread: bytes}"""
        found = collections.Counter()
        for name in PROBES:
            with open(self._event(name, "hist"), encoding="utf-8") as file:
                for line in file:
                    words = line.replace(":", " ").split()
                    if words[:2] == ["{", "common_pid"]:
                        count = int(words[words.index("bytes") + 1])
                        found[int(words[2])] += -count if name == NOT_COPIED else count
        return found


class Disk:
    def __init__(self, path, size):
        self.path, self.size = path, size

    def sectors(self):
        """Bytes that the disk has read, and written."""
        with open("/sys/block/%s/stat" % os.path.basename(self.path), encoding="ascii") as file:
            words = file.read().split()
        return 512 * int(words[2]), 512 * int(words[6])

    def fill(self, salt):
        """Random bytes, which no page of the cache keeps."""
        with open(self.path, "wb") as file:
            file.write(random.Random(salt).randbytes(self.size))
            file.flush()
            os.fsync(file.fileno())
        drop_caches()

    def warm(self):
        with open(self.path, "rb") as file:
            while file.read(MIB):
                pass


def resident_bytes():
    """Bytes of disks in the page cache."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Buffers:"))


def drop_caches():
    os.sync()
    write("/proc/sys/vm/drop_caches", "3\n")


def counted(name):
    """The environment of a program whose copies in user space are counted."""
    return {**os.environ, "LD_PRELOAD": "/lab/libcopy_counter.so", "COPY_COUNTER_FILE": COUNTS + name}


def user_copies(name):
    with open(COUNTS + name, encoding="utf-8") as file:
        return json.load(file)["large_bytes"]


def threads(pid):
    return {int(name) for name in os.listdir("/proc/%d/task" % pid)}


class Namespace:
    """A network namespace whose only link leads to that of the server."""

    def __init__(self):
        self._keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        assert self._keeper.stdout.readline() == b"ready\n"
        self._ip([], "link", "add", "far0", "type", "veth", "peer", "name", "far1", "netns", str(self._keeper.pid))
        for prefix, device, address in (([], "far0", FAR_SERVER), (self.prefix(), "far1", FAR_CLIENT)):
            self._ip(prefix, "address", "add", address + "/24", "dev", device)
            self._ip(prefix, "link", "set", device, "up")

    def prefix(self):
        """Words before a command that runs there."""
        return ["nsenter", "-t", str(self._keeper.pid), "-n"]

    @staticmethod
    def _ip(prefix, *words):
        subprocess.run([*prefix, "ip", *words], check=True)


class Server:
    """Has the exports disk, and target for copies. A sandbox would keep the counter of copies from its file."""

    def __init__(self, mode, disks, memory):
        exports = []
        for name, disk in zip(("disk", "target"), disks):
            exports += ["--export", "%s=%s,%s" % (name, disk.path, mode)]
        if "mode=device" in mode:
            exports += ["--arena", "p2pmem:" + memory]
        self._process = subprocess.Popen(
            ["gmblock", "serve", "--threads", "1", "--sandbox", "off", "--control", CONTROL, "--listen", "nbd://127.0.0.1:10809", "--listen",
             "nbd://%s:10809" % FAR_SERVER, "--listen", "nbd+unix:///?socket=" + NBD_SOCKET, "--listen",
             "gmb+unix:///?socket=" + SOCKET, "--listen", "gmb://127.0.0.1:10810?insecure-network=yes", *exports],
            stdout=subprocess.PIPE, text=True, env=counted("server"))
        if not self._process.stdout.readline():
            raise SystemExit("the server did not start")
        self._threads = threads(self._process.pid)

    @staticmethod
    def uri(scheme, name="disk"):
        return {"nbd": "nbd://127.0.0.1:10809/%s", "nbd-far": "nbd://" + FAR_SERVER + ":10809/%s",
                "nbd+unix": "nbd+unix:///%s?socket=" + NBD_SOCKET, "gmb": "gmb://127.0.0.1:10810/%s",
                "gmb+unix": "gmb+unix:///%s?socket=" + SOCKET}[scheme] % name

    def stats(self):
        """Bytes of all exports, by memory."""
        done = subprocess.run(["gmblock", "stats", "--json", CONTROL], check=True, stdout=subprocess.PIPE)
        exports = json.loads(done.stdout)["exports"]
        return {key: sum(entry[key + "_bytes"] for entry in exports) for key in ("ram", "placed", "device")}

    def threads(self):
        """Those of the start, and those of now: the kernel's workers come and go."""
        return self._threads | threads(self._process.pid)

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait() == 0, self._process.returncode


def wait_until_settled():
    """No daemon of an attachment before is still ending."""
    while any(name.startswith("ublkb") for name in os.listdir("/sys/block")):
        os.sched_yield()


class Attachment:
    """A disk of the guest. Its daemon counts as the client. It must not measure the link meanwhile."""

    def __init__(self, kind, uri):
        done = subprocess.run(["gmblock", "attach", "--" + kind, "--readahead", "512K", uri], check=True, stdout=subprocess.PIPE,
                              env=counted("client"))
        self.path = done.stdout.decode().strip()
        self._uri = uri

    def use(self, way, size):
        words = (["if=/dev/zero", "of=" + self.path, "count=%d" % (size // way.block), "oflag=direct", "conv=fsync"] if way.operation == "write"
                 else ["if=" + self.path, "of=/dev/null", "iflag=direct"])
        subprocess.run(["/usr/bin/dd", "bs=%d" % way.block, "status=none", *words], check=True)

    def stop(self):
        subprocess.run(["gmblock", "detach", self._uri], check=True)


def use_server(way, server, far):
    uri = server.uri(way.scheme)
    if way.tool == "copy":
        words = ["copy", uri, server.uri(way.scheme, "target")]
    else:
        words = ["bench", "--rw", way.operation, "--bs", str(way.block), "--depth", "1", "--connections", "1", "--warmup",
                 "0", "--seconds", "600", "--once", *(["--force"] if way.operation == "write" else []), uri]
    prefix = far.prefix() if way.scheme == "nbd-far" else []
    subprocess.run([*prefix, "gmblock", *words], check=True, stdout=subprocess.DEVNULL, env=counted("client"))


def transferred(disks, before):
    """Bytes that the disks have read and written since then."""
    return sum(now - then for disk, old in zip(disks, before) for now, then in zip(disk.sectors(), old))


def measure(way, disks, memory, probes, far):
    """Bytes of everything that is counted."""
    used = disks if way.tool == "copy" else disks[:1]
    server = Server(way.mode, used, memory)
    attachment = Attachment(way.tool, server.uri(way.scheme)) if way.tool in ("ublk", "nbd") else None
    drop_caches()
    if way.hot: # while the server has the disk open: its pages go with the last user
        used[0].warm()
    started = {"disks": [disk.sectors() for disk in used], "copies": probes.read(), "stats": server.stats(),
               "resident": resident_bytes()}
    if attachment:
        attachment.use(way, used[0].size)
    else:
        use_server(way, server, far)
    os.sync()
    copies = probes.read() - started["copies"]
    found = {"disk": transferred(used, started["disks"]),
             "resident": resident_bytes() - started["resident"],
             **{key: value - started["stats"][key] for key, value in server.stats().items()}}
    own = server.threads()
    found["server_copies"] = sum(count for thread, count in copies.items() if thread in own)
    found["client_copies"] = sum(count for thread, count in copies.items() if thread not in own | {os.getpid()})
    if attachment:
        attachment.stop()
        wait_until_settled()
    server.stop()
    found["server_user_copies"], found["client_user_copies"] = user_copies("server"), user_copies("client")
    return found


def control(size, probes):
    """A transfer whose copies are known, one of each kind: read from the page cache, sent to and received from TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    before = probes.read()
    child = os.fork()
    if child == 0:
        out = socket.create_connection(listener.getsockname())
        with open("/lab/payload", "rb", buffering=0) as file:
            while block := file.read(MIB):
                out.sendall(block)
        os._exit(0)
    one, _ = listener.accept()
    got = 0
    while block := one.recv(MIB):
        got += len(block)
    os.waitpid(child, 0)
    assert got == size, got
    copies = probes.read() - before
    return {"sender": copies[child], "receiver": copies[os.getpid()]}


def bdf_of(path):
    return os.path.basename(os.path.realpath("/sys/block/%s/device/device" % os.path.basename(path)))


def main():
    size, names = int(sys.argv[1]), sys.argv[2].split(",")
    memory, = [path.split("/")[-2] for path in glob.glob("/sys/bus/pci/devices/*/p2pmem")]
    paths = {bdf_of(path): path for path in sorted(glob.glob("/dev/nvme*n1"))}
    with_memory = paths.pop(memory)
    disks = [Disk(path, size) for path in (*paths.values(), with_memory)]
    for salt, disk in enumerate(disks):
        disk.fill(salt)
    with open("/lab/payload", "wb") as file:
        file.write(random.Random(9).randbytes(size))
    probes, far = Probes(), Namespace()
    found = {"control": control(size, probes), "ways": {}}
    for name in names:
        found["ways"][name] = measure(WAYS[name], disks, memory, probes, far)
        print(name, found["ways"][name], flush=True)
    with open("/results/crossings", "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
