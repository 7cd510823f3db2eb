"""What the parts of a machine, each as fast as it is alone, give together: the papers' machines and this one.

What: Machine has the parameters of a server: disk, bus, hub link, network card and grain of synchronized sends.
MACHINES has one set for each machine of the papers, from the papers' description of it and from rates of single
parts; no parameter is fitted to a rate of the whole. ram(), sram() and synchronized() predict the rate of remote
reads. PREDICTIONS names the papers' values that follow, EXCEPTED those that are off by more than WITHIN and why.
this_machine() has the set of this machine, from records of its parts, and here() what it predicts.
Units: rates in MB/s of 2^20 bytes, sizes in KB of 2^10 bytes, clocks in MHz.

The model has no cost of a request itself: no paper states one. A constant 115 µs would explain what is left of
figures 3.9 and 4.3 of the thesis, but would be fitted to them.
"""

import math
import statistics
from collections import namedtuple

from harness import overlap

WITHIN = 0.10


def one_after_the_other(*rates):
    """Phases that follow each other, or crossings that share a bus: their times add up."""
    return 1 / sum(1 / rate for rate in rates)


class Bus(namedtuple("Bus", "mhz bits to_memory from_memory")):
    """to_memory, from_memory: MB/s of bursts to and from RAM behind the bridge, each alone."""

    @property
    def peak(self):
        return self.mhz * 1e6 * self.bits / 8 / (1 << 20)

    def at(self, mhz):
        """The same bus with another clock. The time of a burst beyond its transfer is the latency of bridge and
        RAM, whose clock is another one."""
        faster = self._replace(mhz=mhz)

        def moved(rate):
            return 1 / (1 / rate - 1 / self.peak + 1 / faster.peak)
        return faster._replace(to_memory=moved(self.to_memory), from_memory=moved(self.from_memory))


# rates: {size: MB/s} into the card's memory; to_memory: the same into RAM. members, chunk: of a striped disk.
Disk = namedtuple("Disk", "rates to_memory members chunk")
# wire: from the card's memory; sends: from RAM, or None for as fast as bus and wire.
Card = namedtuple("Card", "wire sends buffer")
# hub: MB/s of a link that each crossing between bus and RAM uses, or None.
Machine = namedtuple("Machine", "name disk bus hub card grain")


def _at_size(rates, size):
    """Of the largest size that is not above; the smallest one's below all."""
    known = [one for one in rates if one <= size]
    return rates[max(known)] if known else rates[min(rates)]


def local(machine, size):
    """The disk's rate into the card's memory."""
    return min(_at_size(machine.disk.rates, size), machine.bus.peak)


def ram(machine, size, depth=1):
    """Disk to RAM, RAM to card. One request at a time does one after the other; with several, both crossings
    share the bus and the hub link."""
    disk, bus, card = machine.disk, machine.bus, machine.card
    to_memory = min(disk.to_memory or _at_size(disk.rates, size), bus.to_memory, machine.hub or math.inf)
    send = min(bus.from_memory, card.sends or card.wire, machine.hub or math.inf)
    if depth == 1:
        return one_after_the_other(to_memory, send)
    shared = one_after_the_other(bus.to_memory, bus.from_memory)
    return min(shared, machine.hub / 2 if machine.hub else math.inf, to_memory, send)


def fits(machine, size, depth):
    return size * depth <= machine.card.buffer


def sram(machine, size, depth=1):
    """Disk to the card's memory, and from there to the wire: one crossing."""
    assert fits(machine, size, depth), "%s has no room for %d × %d KB" % (machine.name, depth, size)
    disk, wire = local(machine, size), machine.card.wire
    return one_after_the_other(disk, wire) if depth == 1 else min(disk, wire)


def synchronized(disk, wire, size, grain, single_of=None):
    """A send that follows the disk in grains. single_of: (members, chunk) of a striped disk that is followed in
    ascending order, so that of each stripe only the first chunk leaves before the stripe is complete."""
    if single_of:
        members, chunk = single_of
        stripe = min(size, members * chunk)
        time, backlog = 0.0, 0.0  # in KB/(MB/s); what is complete and not yet sent, in KB
        for _ in range(int(size / stripe)):
            read = stripe / disk
            backlog = max(0.0, backlog + chunk - read * wire) + stripe - chunk
            time += read
        return size / (time + backlog / wire)
    return overlap.overlapped(size, disk, wire, grain)


# --- the papers' machines ---------------------------------------------------------------------------

RAID_MEMBERS, RAID_CHUNK = 8, 64  # 8 disks, RAID0 of 64 KB chunks, on all machines
PCI_64_66 = 64, 66.0
GM_MTU = 4


def _bus(to_memory, from_memory):
    bits, mhz = PCI_64_66
    return Bus(mhz, bits, to_memory, from_memory)


# The memory side of the bus is given as a pair of rates (337 and 397), the RAID's as those of its sizes.
IPDPS = Machine("IPDPS 2007", Disk({256: 194.6, 512: 200}, None, RAID_MEMBERS, RAID_CHUNK), _bus(397, 337), None,
                Card(2 * 238.4, None, 1024), None)  # two links of 2 Gbit/s each
SYNC = Machine("synchronized sends", Disk({1024: 388}, 347, RAID_MEMBERS, RAID_CHUNK), _bus(378, 331), None,
               Card(462, 330, 1024), 16)
# No rate of reading RAM is given: as fast as writing it.
SERVER_A = Machine("thesis, Server A", Disk({256: 214}, None, RAID_MEMBERS, RAID_CHUNK), _bus(398, 398), None,
                   Card(462, None, 700), GM_MTU)
# All between bus and RAM goes through the hub link.
SERVER_B = Machine("thesis, Server B", Disk({256: 220, 512: 335}, None, RAID_MEMBERS, RAID_CHUNK), _bus(503, 503), 217,
                   Card(462, None, 700), GM_MTU)
MACHINES = [IPDPS, SYNC, SERVER_A, SERVER_B]


def with_fast_disk(machine):
    """The second Myrinet card in place of the RAID: 465 MB/s of one stream, at 128 KB."""
    return machine._replace(disk=Disk({128: 465}, None, 1, machine.disk.chunk))


def _predictions():
    """{(paper, figure, key): MB/s}"""
    fast_a, fast_b = with_fast_disk(SERVER_A), with_fast_disk(SERVER_B)
    slow = IPDPS._replace(bus=IPDPS.bus.at(33))
    sync, single = SYNC, (RAID_MEMBERS, RAID_CHUNK)
    disk_b, wire_b = local(SERVER_B, 512), SERVER_B.card.wire
    thesis = {
        ("3.8", "b ram"): ram(fast_a, 256, depth=2),
        ("3.8", "b sram-2 256 KB"): sram(fast_a, 256, depth=2),
        ("3.9", "a sram-1 512 KB"): sram(SERVER_B, 512),
        ("3.9", "a sram-1 512 KB, bound"): sram(SERVER_B, 512),
        ("3.9", "ram"): ram(SERVER_B, 512, depth=2),
        ("3.9", "ram, bound"): ram(SERVER_B, 512, depth=2),
        ("3.9", "b sram-4 128 KB"): sram(fast_b, 128, depth=4),
        ("3.9", "b sram-1 256 KB"): sram(fast_b, 256),
        ("4.3", "a synchro-single 512 KB"): synchronized(disk_b, wire_b, 512, GM_MTU, single),
        ("4.3", "a synchro-multiple"): synchronized(disk_b, wire_b, 512, GM_MTU),
        ("4.3", "b synchro-single 256 KB"): synchronized(local(fast_b, 256), wire_b, 256, GM_MTU),
    }
    ipdps = {
        ("8a", "gm-mem, bound"): ram(IPDPS, 512, depth=2),
        ("8a", "gm-mem-4"): ram(IPDPS, 512, depth=4),
        ("9", "gm-mem"): ram(slow, 512, depth=4),
        ("9", "gm-myri"): min(sram(slow, 256, depth=4), slow.bus.to_memory),
    }
    synchro = {
        ("2", "gmblock-ram"): ram(sync, 1024),
        ("2", "gmblock-ram, bound"): ram(sync, 1024),
        ("2", "gmblock-sram"): sram(sync, 1024),
        ("2", "gmblock-sram, bound"): sram(sync, 1024),
        ("2", "gmblock-bogus-ram"): min(sync.bus.from_memory, sync.card.wire),
        ("5", "synchronized"): synchronized(local(sync, 1024), sync.card.wire, 1024, sync.grain, single),
        ("5", "gmblock-bogussynchro"): synchronized(local(sync, 1024), sync.card.wire, 1024, sync.grain),
    }
    found = {}
    for paper, values in (("thesis", thesis), ("ipdps-2007", ipdps), ("synchronized-sends", synchro)):
        found.update({(paper, *name): rate for name, rate in values.items()})
    return found


PREDICTIONS = _predictions()
EXCEPTED = {
    ("thesis", "4.3", "b synchro-single 256 KB"):
        "the constant time of a request is not in the model: 130 µs of the 692 µs that a request takes",
    ("ipdps-2007", "9", "gm-myri"):
        "no part that the paper describes is that slow: RAID 194.6, one bus crossing 222, the wire 477 MB/s",
}


# --- this machine -----------------------------------------------------------------------------------

SOURCES = ("overlap", "gmb", "neighbour")  # the records that it needs
KIB, MIB = 1 << 10, 1 << 20


def _rate(samples):
    return overlap.median(samples) / MIB


def _fast_part(records):
    """Of bench/overlap: the loop device behind loopback, and its cell of 1 MiB; (None, None) if a row is missing."""
    for part in records["overlap"]["parts"]:
        cell = overlap.find_cell(part, MIB)
        if (part["store"], part["link"]) == ("loop", "tcp") and cell and cell["samples"].get("off"):
            return part, cell
    return None, None


def this_machine(records):
    """No bus is between disk, memory and network, so that a crossing is one of memory itself, at the triad's rate."""
    part, cell = _fast_part(records)
    memory = statistics.median(one["triad"]["bytes_per_s"] for one in records["neighbour"]["alone"]) / MIB
    disk = {one["bytes"] // KIB: overlap.disk_rate(one) / MIB for one in part["cells"] if one["depth"] == 1}
    return Machine("this machine", Disk(disk, None, 1, None), Bus(memory * MIB * 8 / 64 / 1e6, 64, memory, memory), None,
                   Card(overlap.net_peak(part, cell) / MIB, None, math.inf), overlap.part_size_of(part) / KIB)


def here(records):
    """[(paper, figure, what it is, MB/s by the model, MB/s measured)]; less where a record or a row is missing."""
    if not all(name in records for name in SOURCES) or not _fast_part(records)[1]:
        return []
    machine, samples = this_machine(records), _fast_part(records)[1]["samples"]
    found = []
    for depth, figure in ((8, "3.8"), (1, "3.9")):
        row = records["gmb"]["rows"].get("read-1m-d%d" % depth)
        if not row:
            continue
        tcp = machine._replace(disk=machine.disk._replace(rates={1024: _rate(row["local"])}))
        shared = tcp._replace(card=tcp.card._replace(wire=math.inf))  # the disk writes to the client's memory
        words = ", 1 MiB, depth %d" % depth
        copied = ram(tcp, 1024, depth) if depth > 1 else synchronized(local(tcp, 1024), tcp.card.wire, 1024, tcp.grain)
        found += [("thesis", figure, "gmb" + words, sram(shared, 1024, depth), _rate(row["gmblock/gmb"])),
                  ("thesis", figure, "NBD on TCP" + words, copied, _rate(row["gmblock/nbd-tcp"]))]
    disk, wire = local(machine, 1024), machine.card.wire
    return found + [("synchronized-sends", "2", "overlap off, fast disk, 1 MiB", one_after_the_other(disk, wire),
                     _rate(samples["off"])),
                    ("synchronized-sends", "5", "many streams, fast disk, 1 MiB",
                     synchronized(disk, wire, 1024, machine.grain), _rate(samples["multi"]))]
