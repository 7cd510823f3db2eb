"""What the records of the benches say about the papers' claims: one function for a figure or a group of them.

What: each function takes a bench's record and yields Lines; what a record lacks is left out. A Line has the claim,
the paper's value (a key of values.py in its own figure, a number that follows from such values, or None), the
value here, its unit, how it was made, the bound on this machine, and what differs.
Errors: none for records that are incomplete.
"""

import statistics
from collections import namedtuple

from harness import overlap, programs, seek_disk
from harness.report import ratio as times

REAL, PACED, MODELLED = "real", "paced", "modelled"
KIB, MIB = 1 << 10, 1 << 20
TIMES = "times"
Line = namedtuple("Line", "claim paper here unit kind bound words", defaults=(None, ""))
PEERS = ("nbdkit", "qemu-nbd", "nbd-server")


def middle(samples, key):
    """The median, or None without samples."""
    return statistics.median(sample[key] for sample in samples) if samples else None


def _given(*lines):
    return [line for line in lines if line.here is not None]


def _row(record, name):
    return record["rows"].get(name, {})


# --- bench/gmb: one placement against two -----------------------------------------------------------

GMB, NBD_TCP, LOCAL = "gmblock/gmb", "gmblock/nbd-tcp", "local"
ONE_COPY = "the other path copies in TCP; the papers' ram path does not, and crosses the bus twice"


def _placements(record, depth, paper, claim):
    samples = _row(record, "read-1m-d%d" % depth)
    return Line("%s: disk to the client's memory, over NBD on TCP; 1 MiB, depth %d" % (claim, depth), paper,
                times(samples, GMB, NBD_TCP, "bytes_per_s"), TIMES, REAL, _local_bound(samples), ONE_COPY)


def _local_bound(samples):
    rate = times(samples, LOCAL, NBD_TCP, "bytes_per_s")
    return None if rate is None else "%.2f: the local disk" % rate


def _part_of_local(record, claim, paper, depth):
    samples = _row(record, "read-1m-d%d" % depth)
    return Line("%s; 1 MiB, depth %d" % (claim, depth), paper, times(samples, GMB, LOCAL, "bytes_per_s"), TIMES, REAL,
                "1: the local disk")


def remote_read_66(record):
    samples = _row(record, "read-1m-d8")
    peers = [ratio for ratio in (times(samples, GMB, peer, "bytes_per_s") for peer in PEERS) if ratio]
    return _given(
        _placements(record, 8, "gm-myri-4 over gm-mem-4, 256 KB", "sram over ram"),
        Line("gmblock over a server on TCP (there GNBD, here the best of %s); 1 MiB, depth 8" % ", ".join(PEERS),
             194.6 / 68, min(peers) if peers else None, TIMES, REAL, _local_bound(samples),
             "the peers read from a hot page cache, gmblock from the disk"))


def in_flight(record):
    """By the requests in flight; the papers' have 1, 2 and 4."""
    def gain(way):
        one, eight = (record.get("cells", {}).get("direct-free-n0-d%d" % depth, {}).get(way, []) for depth in (1, 8))
        return times({"one": one, "eight": eight}, "eight", "one", "iops")
    return _given(*(Line("8 requests in flight over one, %s, 4 KiB" % words, None, gain(way), TIMES, REAL, "8",
                         "the paper has a plot for 1, 2 and 4, without numbers")
                    for way, words in ((GMB, "gmb"), (NBD_TCP, "NBD on TCP"))))


def remote_read_a(record):
    return _given(_placements(record, 8, 214 / 178, "sram over ram, RAID"),
                  _part_of_local(record, "share of the local rate, fast disk", "b sram over local", 8))


def remote_read_b(record):
    return _given(_placements(record, 8, 2.20, "sram over ram, RAID"),
                  _part_of_local(record, "share of the local rate, fast disk", "b sram-4 over local, 128 KB", 8),
                  _part_of_local(record, "the same, one request at a time", 209 / 465, 1))


def writes(record):
    lines = []
    for size in ("4k", "64k", "256k", "1m"):
        samples, words = _row(record, "write-%s-d4" % size), size.upper().replace("K", " KiB").replace("M", " MiB")
        lines += [Line("share of the local rate of writes, %s, depth 4" % words, 100 / 160 if size == "1m" else None,
                       times(samples, GMB, LOCAL, "bytes_per_s"), TIMES, REAL, "1: the local disk"),
                  Line("the same over NBD on TCP", None, times(samples, NBD_TCP, LOCAL, "bytes_per_s"), TIMES, REAL,
                       "1: the local disk")]
    return _given(*lines)


# --- bench/overlap: synchronized sends ----------------------------------------------------------------

def _part(record, store, link):
    for part in record["parts"]:
        if (part["store"], part["link"]) == (store, link):
            return part
    return None


def _cell(record, store, link, size):
    part = _part(record, store, link)
    cell = part and overlap.find_cell(part, size)
    return (part, cell) if cell and cell["samples"].get("off") else (None, None)


def _bounds(part, cell):
    """Bytes a second with nothing overlapped, and what the slower of disk and network gives."""
    disk, net = overlap.disk_rate(cell), overlap.net_peak(part, cell)
    return overlap.serial(cell["bytes"], disk, net), min(disk, net)


def _over_off(cell, way):
    """Of neighbouring turns; older records have that of some ways only, and rounds instead."""
    found = overlap.ratios(cell, way, "off")
    return overlap.typical(found)[0] if found else times(cell["samples"], way, "off", "bytes_per_s")


def _gain(record, store, link, size, way, claim, paper, words="", protocol="NBD"):
    part, cell = _cell(record, store, link, size)
    if part is None or not cell["samples"].get(way):
        return Line(claim, paper, None, TIMES, PACED)
    off, most = _bounds(part, cell)
    return Line("%s; %d KiB, %s, %s" % (claim, size // KIB, protocol, part["store_title"]), paper,
                _over_off(cell, way), TIMES, PACED, "%.2f: disk and network at the same time" % (most / off), words)


def _share(record, store, link, size, way, claim, paper):
    part, cell = _cell(record, store, link, size)
    if part is None or not cell["samples"].get(way):
        return Line(claim, paper, None, TIMES, PACED)
    grain, disk, net = overlap.part_size_of(part), overlap.disk_rate(cell), overlap.net_peak(part, cell)
    most = overlap.overlapped(size, disk, net, grain) / min(disk, net)
    return Line("%s; %d KiB, %s" % (claim, size // KIB, part["store_title"]), paper,
                overlap.median(cell["samples"][way]) / min(disk, net), TIMES, PACED,
                "%.2f: the model with parts of %d KiB" % (most, grain // KIB))


def local_rates(record):
    lines = []
    for size in (4 * KIB, 64 * KIB, 256 * KIB, MIB):
        part, cell = _cell(record, "loop", "tcp", size)
        if part:
            lines.append(Line("local reads of %d KiB, one at a time" % (size // KIB), None,
                              overlap.disk_rate(cell) / MIB, "MB/s", REAL, "itself: it bounds the others",
                              "a loop device over memory"))
    return lines


def phases(record):
    """Figure 2: without overlap the times of the phases add up."""
    part, cell = _cell(record, "raid8", "tbf-1", MIB)
    if part is None:
        return []
    off, _ = _bounds(part, cell)
    return [Line("one request at a time over 1/(1/disk + 1/network), 1024 KiB", 211 / 210.9,
                 overlap.median(cell["samples"]["off"]) / off, TIMES, PACED, "1: the phases follow each other",
                 part["store_title"])]


def synchronized_sends(record):
    return _given(
        _gain(record, "raid4", "tbf-1", 4 * MIB, "single", "one ascending stream, several stripes, over off",
              "synchronized over gmblock-sram", "four stripes of 1 MiB; there two of 512 KB"),
        _gain(record, "raid8", "tbf-1", MIB, "multi", "many streams over off", None, "not in this paper"),
        _share(record, "single", "tbf-1", MIB, "multi", "ideal source, over disk and network alone", 375 / 388))


def multiple_streams(record):
    return _given(
        _share(record, "raid8", "tbf-1", MIB, "multi", "many streams over the slower of disk and network",
               "a synchro-multiple over local"),
        _gain(record, "raid8", "tbf-1", MIB, "multi", "many streams over off (there over four requests in flight)",
              "a synchro-multiple over sram-4"),
        _gain(record, "raid8", "tbf-1", MIB, "single", "one stream over off, one stripe", 199 / 186),
        _gain(record, "single", "tbf-1", 256 * KIB, "single", "one stream over off, one disk",
              "b synchro-single over sram-1, 256 KB"),
        _gain(record, "single", "tbf-1", 64 * KIB, "multi", "the same", "b synchro-single over sram-1, 64 KB"),
        _gain(record, "single", "gmb-1", 64 * KIB, "multi", "many streams over off", None, protocol="gmb"),
        _gain(record, "single", "gmb-1", MIB, "multi", "the same", None, protocol="gmb"),
        _gain(record, "raid8", "gmb-1", MIB, "multi", "the same", None, protocol="gmb"))


def states(record):
    """Figures 3 and 4.5: the network time of a request that is not overlapped."""
    part = _part(record, "raid8", "tbf-1")
    lines = []
    for way, title, paper in (("off", "overlap off", 2.16 / (2.16 + 2.58)), ("single", "one stream", 0.70 / 3.28),
                              ("multi", "many streams", None)):
        found = part and part["states_us"].get(way, {}).get(str(MIB))
        if found:
            left = found["network"] + overlap.underway_us(part, way, MIB)
            cell = overlap.find_cell(part, MIB)
            disk, net = overlap.disk_rate(cell), overlap.net_peak(part, cell)
            rate = {"off": overlap.serial(MIB, disk, net), "single": overlap.striped_single(MIB, disk, net, part["members"]),
                    "multi": overlap.overlapped(MIB, disk, net, overlap.part_size_of(part))}[way]
            lines.append(Line("network time that is not overlapped, part of the request; %s, 1024 KiB" % title, paper,
                              left / (left + found["disk"] + found["overlap"]), TIMES, PACED,
                              "%.3f: the model, with a disk that never waits" % (1 - rate / disk),
                              "negligible in the paper" if way == "multi" else ""))
    return lines


# --- bench/neighbour: programs beside the server ------------------------------------------------------

def _beside(record, way, program):
    """How much longer the program takes beside it, at the common rate; 1: as alone."""
    rates = [one["rate"] for one in record.get("results", [])]
    for one in record.get("results", []):
        if one["beside"] == way and one["rate"] == min(rates):
            return 1 + statistics.median(one["slower_percent"][program]) / 100
    return None


def _by_size(record, block, way):
    """How much longer bzip2 takes beside it; 1: as alone."""
    for one in record.get("blocks", []):
        if one["block_kib"] == block and one["slower_percent"].get(way):
            return 1 + statistics.median(one["slower_percent"][way]) / 100
    return None


def _neighbours(record, paper):
    best = [value for value in (_beside(record, peer, "triad") for peer in PEERS) if value]
    local = "%.2f: beside the local disk, without a server"
    at_512, beside_disk = _by_size(record, 512, "fio"), _beside(record, "fio", "triad")
    bound = at_512 and local % at_512
    return _given(
        Line("run time of bzip2 beside a server whose data crosses memory, over alone; 512 KiB (there ram, here NBD on TCP)",
             paper, _by_size(record, 512, "nbd/direct"), TIMES, REAL, bound,
             "all rates are far above the papers', and so are those of memory"),
        Line("the same beside the direct path (there sram, \"near 1\", here gmb)", None, _by_size(record, 512, "gmb/direct"),
             TIMES, REAL, bound),
        Line("triad beside the best peer, all servers at one rate", None, min(best) if best else None, TIMES, REAL,
             beside_disk and local % beside_disk, "the triad is bound by memory, bzip2 only in part"),
        Line("triad beside gmb at this rate", None, _beside(record, "gmb/direct", "triad"), TIMES, REAL,
             beside_disk and local % beside_disk))


def neighbours_66(record):
    return _neighbours(record, "gm-mem-4 512 KB")


def neighbours_a(record):
    return _neighbours(record, "ram-2 512 KB")


# --- bench/cluster and bench/streams ------------------------------------------------------------------

CACHED, DIRECT = "cached", "direct + sched"
SEEKING = "one disk that seeks, there a RAID of eight"


def _of_pace(samples, way, key="bytes_per_s", rate=seek_disk.PAPERS_RATE):
    """How much faster than this way the paced disk is."""
    found = middle(samples.get(way), key)
    return found and "%.2f: the disk without seeks" % (rate / found)


def _cluster(record, name, claim, paper, words=SEEKING):
    samples = _row(record, name)
    return Line(claim, paper, times(samples, DIRECT, CACHED, "bytes_per_s"), TIMES, PACED, _of_pace(samples, CACHED), words)


def iozone_one(record):
    return _given(*(_cluster(record, "iozone-1-%s-%s" % (size, block), "direct over cached, %s file, %s" % (size, words),
                             "sram over ramcache, %s file" % size if block == "4m" else None)
                    for size in ("small", "large") for block, words in (("64k", "64 KiB"), ("4m", "4 MiB"))))


def iozone_four(record):
    return _given(
        _cluster(record, "iozone-4-large-4m", "direct over cached, large file, 4 MiB (there the best case)",
                 "sram over ramcache, best"),
        _cluster(record, "iozone-4-small-64k", "direct over cached, small file, 64 KiB (there the worst case)",
                 "sram over ramcache, worst"))


def web_farm(record):
    return _given(*(_cluster(record, "web-%d" % count, "direct over cached, %d files there, %d here" % (papers, count),
                             "sram over ramcache, %d files" % papers,
                             "nodes without a cache, there with one" if papers == 70 else SEEKING)
                    for papers, count in ((70, 9), (1000, 125), (10000, 1250))))


def tiles(record):
    lines = []
    for name, key in (("512x512", "512 × 512"), ("1024x1024", "1024 × 1024"), ("4096x1024", "4096 × 1024")):
        line = _cluster(record, "tiles-" + name, "time, direct over cached, %s elements" % key, key)
        found = middle(_row(record, "tiles-" + name).get(CACHED), "bytes_per_s")
        lines.append(line._replace(here=line.here and 1 / line.here, bound=found and "%.2f: the disk without seeks" % (
            found / seek_disk.PAPERS_RATE)))
    return _given(*lines)


def stream_aware(record):
    """Named as future work."""
    return _given(Line("4 streams of 512 KiB, the scheduler on over off", None,
                       times(_row(record, "streams"), "auto", "off", "bytes_per_s"), TIMES, PACED,
                       _of_pace(_row(record, "streams"), "off"), "the paper names stream-aware scheduling as future work"))


# --- bench/crossings ----------------------------------------------------------------------------------

def _crossing(record, way, claim, paper, bound, words=""):
    """How often a byte crosses RAM of the server: transfers of the disk, and twice for each copy of a processor."""
    counted = record.get("ways", {}).get(way)
    if not counted:
        return Line(claim, paper, None, "crossings", REAL)
    transfers = counted["resident"] if "cached" in way else counted["ram"] + counted["placed"]
    copies = counted["server_copies"] + counted["server_user_copies"]
    return Line(claim, paper, (transfers + 2 * copies) / record["facts"]["size"], "crossings", REAL, bound, words)


def crossings(record):
    return _given(
        _crossing(record, "cached", "RAM of the server, NBD over TCP, page cache", "TCP with one kernel copy, memory",
                  "3: TCP copies once", "counted in a guest; two copies, and no network card that reads"),
        _crossing(record, "direct", "the same, direct I/O", "ram, memory", "3: TCP copies once", "the network of a guest is a copy"),
        _crossing(record, "gmb-unix", "gmb, direct I/O", "sram, memory", "1: the client's memory",
                  "the disk writes to the client's memory, which is RAM of the same machine"),
        _crossing(record, "copy-device", "copy within the server through device memory", "pcimem, memory", "0"))


def device_writes(record):
    return _given(_crossing(record, "copy-device", "RAM of the server, a disk that is written from device memory", None,
                            "0", "bytes are counted, not times: the device is emulated"),
                  _crossing(record, "write-gmb-unix", "the same, written from the client's memory over gmb", None,
                            "1: the client's memory"))


# --- bench/guest-disk ---------------------------------------------------------------------------------

def elevators(record):
    lines = []
    for elevator, document in record.get("traces", {}).get("raid", {}).items():
        summary = document["sizes"][0]["summary"]
        lines.append(Line("streams in which four striped disks fill 1 MiB, %s" % elevator, None, summary["streams"]["median"],
                          "streams", PACED, "4: one for each disk", "the paper has plots; its elevators are anticipatory and CFQ"))
    for elevator, document in record.get("traces", {}).get("disk", {}).items():
        summary = document["sizes"][0]["summary"]
        lines.append(Line("chunks after a higher chunk, 512 KiB in two transfers, %s" % elevator, None,
                          100 * summary["reordered"]["median"], "%", PACED, "0: ascending",
                          "in the paper, anticipatory swaps the two segments"))
    return lines


# --- bench/ocfs2 --------------------------------------------------------------------------------------

GUESTS = "guests with emulated processors, so ratios only; two nodes, there four"
OCFS2_RATE = 4 * 4 * MIB  # of the paced disk of bench/ocfs2


def _passes(samples, way):
    """The rate of later passes over that of the first."""
    found = [one["again_per_s"] / one["first_per_s"] for one in samples.get(way, [])]
    return statistics.median(found) if found else None


def _client_cache(record, name, claim, paper, words):
    samples = _row(record, name)
    return _given(
        Line("first pass of one node, %s, readahead of 512 over 128 KiB" % claim, paper,
             times(samples, "512", "128", "first_per_s"), TIMES, PACED, _of_pace(samples, "128", "first_per_s", OCFS2_RATE),
             "guests with emulated processors"),
        Line("later passes over the first, readahead of 512 KiB", None, _passes(samples, "512"), TIMES, PACED, None, words))


def client_cache_small(record):
    return _client_cache(record, "one-small", "small file", "512 KB over 128 KB, first pass", "the client's page cache answers")


def client_cache_large(record):
    return _client_cache(record, "one-large", "large file", None, "the file does not fit into the client's page cache")


def client_caches_small(record):
    samples = _row(record, "two-small")
    pairs = zip(samples.get("direct", []), _row(record, "one-small").get("512", []))
    both = [two["again_per_s"] / one["again_per_s"] for two, one in pairs]
    return _given(
        Line("later passes of two nodes together over those of one", None, statistics.median(both) if both else None, TIMES,
             PACED, "2: each node has its own page cache", "the paper has the rate of four nodes, 2.4 GB/s"),
        Line("later passes over the first", None, _passes(samples, "direct"), TIMES, PACED),
        Line("first pass, direct over cached", None, times(samples, "direct", "cached", "first_per_s"), TIMES, PACED,
             _of_pace(samples, "cached", "first_per_s", OCFS2_RATE), GUESTS))


def client_caches_large(record):
    return _given(*(Line("direct over cached, large file, requests of %s" % words, None,
                         times(samples, "direct", "cached", "first_per_s"), TIMES, PACED,
                         _of_pace(samples, "cached", "first_per_s", OCFS2_RATE), "in the paper, direct is always faster")
                    for samples, words in ((_row(record, "two-large-64k"), "64 KiB"),
                                           (_row(record, "two-large-1m"), "1 MiB"))))


# --- bench/clan and bench/middleware ------------------------------------------------------------------

def one_word(record):
    samples = _row(record, "round-trip-two-cpus")
    return _given(
        Line("round trip of one word, both sides poll", "median", middle(samples.get("poll"), "latency_p50_us"), "µs",
             REAL, None, "shared memory of one machine, no network"),
        Line("the same, the server sleeps", None, middle(samples.get("futex"), "latency_p50_us"), "µs", REAL))


def tripwires(record):
    samples = _row(record, "tripwire-wake-up")
    return _given(
        Line("wake-up of a sleeping server by a put to a tripwire, over one by a message", None,
             times(samples, "tripwire", "message", "latency_p50_us"), TIMES, REAL, "1: it is reported by a message",
             "shared memory reports a touched tripwire by a message, so that no layer of gmblock uses one"),
        Line("the same over TCP", None, times(samples, "tripwire-tcp", "message-tcp", "latency_p50_us"), TIMES, REAL))


def message_bandwidth(record):
    rates = {size: middle(_row(record, "bandwidth-%d" % size).get("messages"), "bytes_per_s")
             for size in (64, 512, 4 * KIB, 8 * KIB)}
    known = {size: rate * 8 / 1e6 for size, rate in rates.items() if rate}
    if not known:
        return []
    most = max(known.values())
    half = [size for size in sorted(known) if known[size] >= most / 2]
    return [Line("messages through a queue, the most", "Alpha 21264, PIO", most, "Mbit/s", REAL, None,
                 "shared memory; the ring has 256 KiB, there 50 KB"),
            Line("half of it at", "Alpha 21264, PIO, half of it at", half[0], "bytes", REAL, None,
                 "the smallest size measured that reaches half")]


def requests(record):
    samples = _row(record, "rpc-16x32")
    return _given(
        Line("requests of 16 clients, replied at once", "raw CLAN", middle(samples.get("rpc"), "rate"), "requests/s",
             REAL, None, "clan_rpc with 64 bytes each way, server and clients on two processors"),
        Line("the same, over the reference (there Emulex VIA, here TCP)", 1030000 / 150000,
             times(samples, "rpc", "tcp", "rate"), TIMES, REAL))


def rpc_of_dsfr(record):
    samples = _row(record, "rpc-16x32")
    return _given(Line("calls of 16 clients over TCP's (there \"dozens of times\")", None,
                       times(samples, "rpc", "tcp", "rate"), TIMES, REAL, None,
                       "within a machine; without RDMA hardware the network part cannot be measured"))


def _mpi(record, name, way):
    found = _row(record, name).get(way)
    return statistics.median(found) if found else None


def mpi_round_trip(record):
    own = _mpi(record, "mpi-8", "vader")
    bound = own and "%.2g: Open MPI's own shared memory" % own
    return _given(Line("MPI round trip of 8 bytes (clan;ofi_rxm)", "CLAN", _mpi(record, "mpi-8", "fi"), "µs", REAL, bound,
                       "both ranks poll on their own processors"),
                  Line("the same over btl tcp, carried by clan", None, _mpi(record, "mpi-8", "carried"), "µs", REAL, bound),
                  Line("the same over btl tcp", None, _mpi(record, "mpi-8", "tcp"), "µs", REAL, bound))


POLLS, SLEEPS = "polls before it sleeps, if that makes calls faster", "sleeps while it waits"
CORBA_WAYS = (  # way, claim, the papers' key, what differs
    ("omniorb", programs.SOCKETS_WAYS["omniorb"], "CLAN", POLLS), ("clan", programs.SOCKETS_WAYS["clan"], None, POLLS),
    ("asleep", programs.SOCKETS_WAYS["asleep"], None, SLEEPS), ("tcp", "TCP on loopback", "Gigabit Ethernet", SLEEPS))


def corba_round_trip(record):
    samples = _row(record, "omniorb-null")

    def micros(way):
        rate = middle(samples.get(way), "rate")
        return rate and 1e6 / rate
    return _given(*(Line("call without data, " + claim, paper, micros(way), "µs", REAL, None, words)
                    for way, claim, paper, words in CORBA_WAYS))


# --- bench/clan-paper ---------------------------------------------------------------------------------

def _of(record, name, way, key):
    return middle(_row(record, name).get(way), key)


def via_round_trip(record):
    lines = []
    for size in (4, 40):
        lines += [Line("round trip of %d bytes, FI_EP_MSG over clan" % size, "%d bytes, CLAN PIO" % size,
                       _of(record, "via-%d" % size, "clan", "round_trip_us"), "µs", REAL, None,
                       "fi_pingpong has no messages of 0 bytes" if size == 4 else ""),
                  Line("the same over libfabric's tcp", None, _of(record, "via-%d" % size, "tcp", "round_trip_us"), "µs",
                       REAL)]
    return _given(*lines)


def via_bandwidth(record):
    return _given(*(Line("ping-pong with messages of %d bytes, over clan against tcp" % size, None,
                         times(_row(record, "via-%d" % size), "clan", "tcp", "bytes_per_s"), TIMES, REAL, None,
                         "the paper has a plot without numbers") for size in (128, 4 * KIB, 16 * KIB)))


def ttcp(record):
    return _given(*(Line("nuttcp with writes of %d bytes, carried by clan against TCP" % size, None,
                         times(_row(record, "ttcp-%d" % size), "clan", "tcp", "mbit_per_s"), TIMES, REAL, None,
                         "clan-run carries the sockets of a program; the paper's CLAN IP was a device of the kernel")
                    for size in (64, 512, 4 * KIB, 64 * KIB)))


def corba_requests(record):
    lines = []
    for way, claim, paper, words in CORBA_WAYS:
        rates = [rate for rate in (_of(record, "corba-%d" % count, way, "rate") for count in range(1, 7)) if rate]
        if rates:
            lines.append(Line("requests of 1 to 6 clients, the most; " + claim, paper, max(rates), "requests/s", REAL, None,
                              words))
    return lines


def nbody(record):
    return _given(*(Line("speed-up of two ranks, %d particles, %s" % (count, words), None,
                         _of(record, "nbody-%d" % count, way, "speed_up"), TIMES, REAL, "2",
                         "the paper has a plot without numbers")
                    for count in (64, 256, 1024) for way, (words, _) in programs.MPI_WAYS.items()))


# --- bench/push and bench/flash-store -----------------------------------------------------------------

def push(record):
    lines = []
    for row in record["rows"]:
        if row["row"] == "memory":
            lines.append(Line("time of sendfile over that of a push, flash to memory to flash (there \"an order of "
                              "magnitude\")", None, times(row["samples"], "sendfile", "push", "seconds"), TIMES, REAL,
                              "%.2f: direct I/O, send and recv without gmblock" % times(
                                  row["samples"], "sendfile", "direct", "seconds"),
                              "one machine, loop devices over memory; without RDMA hardware"))
    return _given(*lines)


def _modelled(row, policy):
    return row["policies"][policy]["tool"]["write_amplification"]


def garbage_collection(record):
    return [Line("blocks written, collector that knows the cache over the better of two that do not; %s" % row["title"]
                 .partition("cache 10 %, ")[2], None, row["found"], TIMES, REAL, "%.2f: the model of the store" % (
                     _modelled(row, "auto") / min(_modelled(row, "plain"), _modelled(row, "greedy"))),
                 "the paper gives no number")
            for name, row in record["rows"].items() if name in ("rule-15", "rule-7", "rule-tpcc")]
