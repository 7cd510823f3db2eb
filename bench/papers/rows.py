"""What bench/paper runs, and what it shows: one line of registration for each.

What: ROWS has a bench for each row, with the arguments that a full run gives it and its time; FIGURES has the
papers' figures and tables in their order, each with the rows that it is redrawn from, the function of readers.py
that does it, and words for what is not redrawn. A new measurement is a line in ROWS and one in FIGURES.
Ownership: plain data.
"""

from . import readers


class Row:
    """A bench whose record bench/paper keeps. minutes: of a full run on an idle machine of two processors;
    quick: arguments beside --quick, or None for a row that has guests, which take too long for a quick run; chrt: its
    figures need real-time priority on a busy machine."""

    def __init__(self, name, minutes, full=(), quick=(), plots=True, chrt=False):
        self.name, self.minutes, self.full, self.quick = name, minutes, list(full), quick
        self.plots, self.chrt = plots, chrt

    def command(self, program, results, options):
        """argv; the record, the page and the drawings go where the bench's own results are."""
        command = ["chrt", "-r", "1"] if self.chrt and options.real_time else []
        command += [program, "--json", record_path(results, self.name), "--table", "%s/%s.md" % (results, self.name)]
        if self.plots:
            command += ["--plots", "%s/%s" % (results, self.name)]
        return command + (["--quick", *self.quick] if options.quick else self.full)


def record_path(results, name):
    return "%s/raw/%s.json.xz" % (results, name)


ROWS = {row.name: row for row in (
    Row("clan", 4, quick=["--rows", "round-trip-two-cpus,bandwidth-512,rpc-16x32"]),
    Row("crossings", 1, quick=None, plots=False),
    Row("guest-disk", 1, quick=None),
    Row("ocfs2", 6, quick=None),
    Row("gmb", 6, quick=["--rows", "read-1m-d8,write-64k-d4"]),
    Row("middleware", 2, quick=["--rows", "omniorb-null,mpi-8"]),
    Row("clan-paper", 5),
    Row("flash-store", 5, quick=["--rows", "rule-15"], plots=False),
    Row("neighbour", 6),
    Row("push", 1, quick=["--rows", "memory"]),
    Row("overlap", 8, quick=["--no-peers"]),
    Row("streams", 7, quick=["--rows", "streams"], chrt=True),
    Row("depth", 13, ["--seconds", "0.4"], quick=["--depths", "1,8", "--stores", "direct", "--neighbours", "0"]),
    Row("cluster", 11, quick=["--rows", "iozone-1-small-64k,web-125"], chrt=True),
)}


class Figure:
    """rows: whose records readers take, one reader for each; words: what cannot be redrawn, and why, or what the
    model says instead."""

    def __init__(self, paper, name, parts=(), words="", drawing=None):
        self.paper, self.name, self.parts, self.words, self.drawing = paper, name, tuple(parts), words, drawing


FIGURES = (
    Figure("thesis", "table 3.1", words="The papers' machines are parameter sets of bench/papers/model.py. The rates of this "
           "machine's parts come from the records: loop device and loopback network (overlap), local disk (gmb), memory "
           "(neighbour)."),
    Figure("thesis", "3.7", [("overlap", readers.local_rates)]),
    Figure("thesis", "3.8", [("gmb", readers.remote_read_a)], drawing="gmb-depth.svg"),
    Figure("thesis", "3.9", [("gmb", readers.remote_read_b)], "A hub link that halves the rate of all that crosses "
           "memory is in no machine that we have: the model only."),
    Figure("thesis", "3.10", [("neighbour", readers.neighbours_a)], drawing="neighbour.svg"),
    Figure("thesis", "3.11", [("gmb", readers.writes), ("crossings", readers.device_writes)], "NIC memory that is slow to read from is a property of that "
           "card.", drawing="gmb-sweep.svg"),
    Figure("thesis", "4.3", [("overlap", readers.multiple_streams)], drawing="overlap-rate-raid4.svg"),
    Figure("thesis", "4.4", [("guest-disk", readers.elevators)], drawing="guest-disk-raid-mq-deadline.svg"),
    Figure("thesis", "4.5", [("overlap", readers.states)], drawing="overlap-states-raid8.svg"),
    Figure("thesis", "5.4", [("cluster", readers.iozone_one)], drawing="cluster.svg"),
    Figure("thesis", "5.5", [("ocfs2", readers.client_cache_small)], drawing="ocfs2.svg"),
    Figure("thesis", "5.6", [("ocfs2", readers.client_cache_large)]),
    Figure("thesis", "5.7", [("cluster", readers.iozone_four), ("streams", readers.stream_aware)], drawing="streams.svg"),
    Figure("thesis", "5.8", [("ocfs2", readers.client_caches_small)]),
    Figure("thesis", "5.9", [("ocfs2", readers.client_caches_large)]),
    Figure("thesis", "5.10a", [("cluster", readers.web_farm)]),
    Figure("thesis", "5.10b", [("cluster", readers.tiles)]),
    Figure("ipdps-2007", "section 2", [("crossings", readers.crossings)]),
    Figure("ipdps-2007", "8a", [("gmb", readers.remote_read_66), ("depth", readers.in_flight)], drawing="depth.svg"),
    Figure("ipdps-2007", "8b", [("neighbour", readers.neighbours_66)]),
    Figure("ipdps-2007", "9", words="No machine here has a bus whose clock can be halved: the model only."),
    Figure("synchronized-sends", "2", [("overlap", readers.phases)], "Memory of the network card as the source of a "
           "send (SRAM to wire) cannot be redrawn without such a card."),
    Figure("synchronized-sends", "3", [("overlap", readers.states)]),
    Figure("synchronized-sends", "5", [("overlap", readers.synchronized_sends)]),
    Figure("clan", "PIO round trip", [("clan", readers.one_word), ("clan", readers.tripwires)], "Switch and jitter: shared memory has none."),
    Figure("clan", "3", [("clan", readers.message_bandwidth)], drawing="clan-bandwidth.svg"),
    Figure("clan", "MPI round trip", [("middleware", readers.mpi_round_trip)], drawing="middleware-mpi.svg"),
    Figure("clan", "5", [("clan-paper", readers.nbody)], drawing="clan-paper.svg"),
    Figure("clan", "table 1", [("clan-paper", readers.via_round_trip)]),
    Figure("clan", "7", [("clan-paper", readers.via_bandwidth)]),
    Figure("clan", "VIA round trip", words="Other networks of that time; there is nothing of ours to compare."),
    Figure("clan", "requests", [("clan", readers.requests)], drawing="clan-rate.svg"),
    Figure("clan", "8", [("clan-paper", readers.ttcp)]),
    Figure("clan", "table 2", words="Cannot be redrawn: clan carries the TCP connections of programs, and no IP, so "
           "that there is nothing for ping to reach."),
    Figure("clan", "table 3", [("middleware", readers.corba_round_trip)], drawing="middleware-sockets.svg"),
    Figure("clan", "table 4", [("clan-paper", readers.corba_requests)]),
    Figure("dsfr", "uSendfile", [("push", readers.push)], drawing="push.svg"),
    Figure("dsfr", "RPC", [("clan", readers.rpc_of_dsfr)]),
    Figure("dsfr", "garbage collection", [("flash-store", readers.garbage_collection)], drawing="flash-policy.svg"),
    Figure("dsfr", "queue pairs", words="A formula without a measurement. The part of this paper with its evaluation "
           "is not public."),
)
