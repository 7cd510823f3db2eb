#!/usr/bin/python3
"""A virtual machine whose queues are served by several reactors: all of its processors read and write at the same time,
while messages arrive, queues stop, the device is reset, and the server is killed, upgraded, reloaded and stopped. No
request is lost, done twice or overtaken."""
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading

import lingering_socket
import support
import upgrades
import vhost
import vhost_tool as tool

MIB = 1 << 20
QUEUES = 4
DEPTH = 8
PROTOCOL = tool.MQ | tool.REPLY_ACK | tool.CONFIG
ROUNDS = int(os.environ.get("SOAK_QUEUE_ROUNDS", "5").rstrip("%"))


class Processor(threading.Thread):
    """One of the guest's processors, which has a queue of its own. It writes blocks and reads them again, until it is
    told to stop."""

    def __init__(self, device, queue):
        super().__init__()
        self.device, self.queue, self.rounds, self.stopping, self.error = device, queue, 0, False, None
        self.slots = range(DEPTH * queue.index, DEPTH * (queue.index + 1))
        self.start()

    def pattern(self, slot):
        return bytes([(self.rounds + slot) % 251]) * 4096

    def run(self):
        try:
            while not self.stopping:
                for kind in (tool.WRITE, tool.READ):
                    self.submit(kind)
                    self.finish()
                for slot in self.slots:
                    assert self.device.data(4096, slot) == self.pattern(slot), (self.rounds, slot)
                self.rounds += 1
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error

    def submit(self, kind):
        for number, slot in enumerate(self.slots):
            options = {"data": self.pattern(slot)} if kind == tool.WRITE else {"size": 4096}
            if kind == tool.READ:
                at = self.device.DATA + 4096 * slot
                self.device.memory[at:at + 4096] = bytes(4096)
            self.device.submit(kind, 8 * slot, queue=self.queue, first=3 * number, slot=slot,
                               kick=number == DEPTH - 1, **options)

    def finish(self):
        heads = sorted(self.next_used() for _ in range(DEPTH))
        assert heads == [3 * number for number in range(DEPTH)], heads
        assert all(self.device.status(slot) == tool.OK for slot in self.slots)

    def next_used(self):
        """As Queue.next_used(), but others use the socket."""
        queue = self.queue
        while queue.read_used_index() == queue.used_index:
            ready, _, _ = select.select([queue.call_fd], [], [], support.WAIT_SECONDS)
            assert ready, f"queue {queue.index}: no notification in round {self.rounds}"
            os.eventfd_read(queue.call_fd)
        at = queue.used + 4 + 8 * (queue.used_index % queue.entries)
        queue.used_index = (queue.used_index + 1) & 0xffff
        event = queue.avail + 4 + 2 * queue.entries
        queue.device.memory[event:event + 2] = struct.pack("=H", queue.used_index)
        return struct.unpack("=I", queue.device.memory[at:at + 4])[0]


class Queues(vhost.Vhost, upgrades.Case):
    def serve(self, *arguments, **options):
        server = vhost.Vhost.serve(self, "--threads", "2", *arguments, **options)
        self.addCleanup(self.kill_children)  # first, as they have the standard error of the server, too
        return server

    def holders(self, queue):
        return queue.holders(self.stats()["pid"])

    def wait_until_spread(self, device, places=(1, 2, 1, 2)):
        self.wait_for(lambda: all(self.holders(queue) == count for queue, count in zip(device.queues, places)))

    def serve_slow_writes(self, delay):
        """A server and a device with a write in flight on each queue."""
        server = self.serve(keys=f",delay=write:{delay}")
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        for queue in device.queues:
            device.submit(tool.WRITE, 8 * queue.index, b"d" * 4096, queue=queue, slot=queue.index)
        self.wait_for(lambda: self.counters()["inflight"] == QUEUES or device.queues[1].read_used_index() == 1)
        return server, device

    def processors(self, device):
        found = [Processor(device, queue) for queue in device.queues]
        self.addCleanup(self.end, found)
        return found

    def end(self, processors):
        for one in processors:
            one.stopping = True
        for one in processors:
            one.join()

    def stop(self, processors):
        self.end(processors)
        for one in processors:
            if one.error is not None:
                raise one.error

    def all_go_on(self, processors):
        """Each of them finishes another round."""
        before = [one.rounds for one in processors]
        self.wait_for(lambda: all(one.rounds > rounds + 1 or not one.is_alive()
                                  for one, rounds in zip(processors, before)))
        for one in processors:
            if one.error is not None:
                raise one.error

    def restart(self, device, queue, base):
        """Starts a queue that was stopped, and whose processor continues to use the rings."""
        pair = lambda number: struct.pack("=II", queue.index, number)  # noqa: E731
        device.check(tool.SET_VRING_BASE, pair(base))
        device.check(tool.SET_VRING_ADDR, queue.addresses())
        device.check(tool.SET_VRING_KICK, struct.pack("=Q", queue.index), [queue.kick_fd])
        device.check(tool.SET_VRING_CALL, struct.pack("=Q", queue.index), [queue.call_fd])
        device.check(tool.SET_VRING_ERR, struct.pack("=Q", queue.index), [queue.error_fd])
        device.check(tool.SET_VRING_ENABLE, pair(1))

    def base(self, device, queue):
        """Stops a queue; its requests are in the used ring then."""
        index, base = struct.unpack("=II", device.ask(tool.GET_VRING_BASE, struct.pack("=II", queue.index, 0)))
        self.assertEqual((index, base), (queue.index, queue.read_used_index()))
        return base


class Places(Queues):
    def test_queues_are_spread(self):
        """They are still one client with one connection."""
        server = self.serve()
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        for queue in device.queues:
            for _ in range(3):
                self.assertEqual(device.read(queue.index, 512, queue=queue), self.content(512 * queue.index, 512))
        counters, (client,), (export,) = (self.stats()[name] for name in ("counters", "clients", "exports"))
        self.assertEqual((counters["connections"], counters["connections_accepted"], counters["inflight"]), (1, 1, 0))
        self.assertEqual((client["connections"], export["connections"]), (1, 1))
        self.assertEqual(sum(one["count"] for one in client["operations"]), 3 * QUEUES)
        self.assertEqual(counters["bytes_read"], 3 * QUEUES * 512)
        device.close()
        self.wait_for(lambda: self.counters()["connections"] == 0)
        self.assertEqual(server.stop(), (0, ""))

    def test_one_reactor(self):
        server = vhost.Vhost.serve(self, "--threads", "1")
        device = self.device(server, queues=QUEUES)
        for queue in device.queues:
            self.assertEqual(device.read(0, 512, queue=queue), self.content(0, 512))
        self.wait_until_spread(device, (1, 1, 1, 1))

    def test_as_many_queues_as_possible(self):
        """Lanes start and end again and again while the front end sets up its queues, and leave no descriptors."""
        server = self.serve()
        device = self.device(server, queues=64, entries=4)
        for _ in range(20):
            device.share_memory()
        for queue in device.queues:
            self.assertEqual(device.read(queue.index, 512, queue=queue), self.content(512 * queue.index, 512))
        self.wait_until_spread(device)
        self.assertEqual(server.stop()[0], 0)

    def test_limits_on_connections(self):
        """A queue is not a connection."""
        config = self.make_file("gmblock.conf", json.dumps({
            "exports": [{"name": "disk", "path": self.make_file("disk.img", os.urandom(MIB)), "max-connections": 2}],
            "rates": [{"uid": os.geteuid(), "rate": "10G", "connections": 1}]}).encode())
        self.disk, self.control = self.path("disk.img"), self.path("control")
        server = self.start("--config", config, "--control", self.control, "--threads", "2", "--max-connections", "4",
                            "--listen", f"vhost-user-blk+unix:///disk?socket={self.path('socket')}")
        for _ in range(2):
            device = self.device(server, queues=QUEUES)
            self.wait_until_spread(device)
            for queue in device.queues:
                self.assertEqual(device.read(0, 512, queue=queue), self.content(0, 512))
            other = self.device(server, start=False)
            other.gone()
            device.close()
            self.wait_for(lambda: self.counters()["connections"] == 0)

    def test_one_writer(self):
        """Until the client is the writer of the export, its session serves all queues."""
        server = self.serve(keys=",writers=one")
        device = self.device(server, queues=QUEUES)
        for queue in device.queues:
            self.assertEqual(device.read(0, 512, queue=queue), self.content(0, 512))
        self.wait_until_spread(device, (1, 1, 1, 1))
        device.write(0, b"1" * 512, queue=device.queues[1])
        self.wait_until_spread(device)
        for queue in device.queues:
            device.write(queue.index, b"w" * 512, queue=queue)
        self.assertEqual(self.content(0, 512 * QUEUES), b"w" * 512 * QUEUES)


class Messages(Queues):
    def test_messages_under_load(self):
        server = self.serve()
        device = self.device(server, queues=QUEUES, protocol=PROTOCOL | tool.SLOTS | tool.LOG_SHMFD | tool.STATUS)
        log_fd = os.memfd_create("log")
        self.addCleanup(os.close, log_fd)
        pages = (tool.GUEST + device.size) // 4096
        os.ftruncate(log_fd, pages // 8 + 1)
        other = bytes(8) + struct.pack("=QQQQ", 1 << 40, MIB, 1 << 44, 0)
        for queue in device.queues:  # requests that are available already are taken when the queues are spread
            self.assertEqual(device.read(0, 512, queue=queue), self.content(0, 512))
        self.wait_until_spread(device)
        processors = self.processors(device)

        def enable(queue, on):
            device.check(tool.SET_VRING_ENABLE, struct.pack("=II", queue.index, on))

        def set_features(more):
            device.check(tool.SET_FEATURES, struct.pack("=Q", device.features | more))

        def event(request, queue):
            fd = {tool.SET_VRING_KICK: queue.kick_fd, tool.SET_VRING_CALL: queue.call_fd,
                  tool.SET_VRING_ERR: queue.error_fd}[request]
            device.check(request, struct.pack("=Q", queue.index), [fd])

        queue_of = itertools.cycle(device.queues)
        messages = [
            device.share_memory,
            lambda: device.check(tool.ADD_MEM_REG, other, [device.memory_fd]),
            lambda: device.check(tool.REM_MEM_REG, other),
            lambda: self.assertEqual(device.config()["capacity"], 2048),
            lambda: device.check(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\0"),
            lambda: device.check(tool.SET_CONFIG, struct.pack("=III", 32, 1, 0) + b"\1"),
            lambda: device.ask(tool.SET_LOG_BASE, struct.pack("=QQ", pages // 8 + 1, 0), [log_fd]),
            lambda: set_features(tool.F_LOG_ALL),
            lambda: set_features(0),
            lambda: device.check(tool.SET_STATUS, struct.pack("=Q", 15)),
            lambda: self.assertEqual(device.number(tool.GET_STATUS), 15),
            lambda: event(tool.SET_VRING_KICK, next(queue_of)),
            lambda: event(tool.SET_VRING_CALL, next(queue_of)),
            lambda: event(tool.SET_VRING_ERR, next(queue_of)),
            lambda: device.check(tool.SET_VRING_ADDR, next(queue_of).addresses()),
            lambda: [enable(next(queue_of), on) for on in (0, 0, 0, 0, 1, 1, 1, 1)],
            lambda: self.assertFalse(device.acknowledged(tool.SET_VRING_NUM, struct.pack("=II", 1, 64))),
        ]
        for _ in range(ROUNDS):
            for message in messages:
                message()
            self.all_go_on(processors)
        for message in messages:
            message()
            self.all_go_on(processors)
        self.wait_until_spread(device)
        log = os.pread(log_fd, pages // 8 + 1, 0)
        for slot in range(DEPTH * QUEUES):  # each queue has logged the blocks that it has read
            page = (tool.GUEST + device.DATA) // 4096 + slot
            self.assertTrue(log[page // 8] >> page % 8 & 1, slot)
        self.stop(processors)

    def test_queues_stop_and_start_under_load(self):
        server = self.serve()
        device = self.device(server, queues=QUEUES, protocol=PROTOCOL | tool.RESET)
        processors = self.processors(device)
        for _ in range(ROUNDS):
            for queue in device.queues:
                base = self.base(device, queue)
                self.all_go_on([one for one in processors if one.queue is not queue])
                self.restart(device, queue, base)
                self.all_go_on(processors)
            self.assertTrue(device.acknowledged(tool.RESET_DEVICE))
            for queue in device.queues:
                self.restart(device, queue, self.base(device, queue))
            self.all_go_on(processors)
        self.stop(processors)
        for queue in device.queues:
            self.assertEqual(self.base(device, queue), queue.avail_index)

    def test_a_message_waits_for_requests_of_lanes(self):
        """The record, the log and the guest then show all of them."""
        server, device = self.serve_slow_writes("200ms")
        device.share_memory()
        self.assertEqual([device.queues[at].read_used_index() for at in (1, 3)], [1, 1])
        for queue in device.queues:
            self.assertEqual(queue.next_used(), (0, 1))
        self.assertEqual(self.content(0, 4096 * QUEUES), b"d" * 4096 * QUEUES)

    def test_a_resize_does_not_wait_for_requests_of_lanes(self):
        """Other queues of the lane continue, and can use the new blocks."""
        server, device = self.serve_slow_writes("1h")
        os.truncate(self.disk, 2 * MIB)
        subprocess.run([support.program(), "export", "set", "disk", "size=auto", "--server", self.control], check=True)
        self.wait_for(lambda: device.config()["capacity"] == 2 * MIB // 512)
        for queue in device.queues:
            device.submit(tool.READ, 2 * MIB // 512 - 1, size=512, queue=queue, first=3, slot=DEPTH + queue.index)
            self.assertEqual(queue.next_used(), (3, 513))
        self.wait_until_spread(device)
        server.kill()

    def test_a_request_that_waits_for_its_rate(self):
        """It is put back when a message arrives, and done once."""
        server = self.serve(keys=",rate=requests=40:burst=50ms", content=bytes(MIB))
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        for queue in device.queues:
            for number in range(6):
                slot = DEPTH * queue.index + number
                device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, queue=queue, first=3 * number, slot=slot,
                              kick=number == 5)
        for _ in range(6):
            device.share_memory()
        for queue in device.queues:
            self.assertEqual(sorted(queue.next_used()[0] for _ in range(6)), [0, 3, 6, 9, 12, 15])
            for number in range(6):
                slot = DEPTH * queue.index + number
                self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
        self.assertEqual([device.stop(queue) for queue in device.queues], [6] * QUEUES)

    def test_descriptors_that_are_closed_slowly(self):
        """They keep all workers of their user busy. Front ends that send none are not disconnected."""
        server = self.serve()
        device = self.device(server, queues=32, entries=8)
        other, peers = self.device(server, start=False), []
        other.number(tool.GET_FEATURES)  # from now on, descriptors are permitted
        server.freeze()  # otherwise the last descriptor may be ours
        for _ in range(2):
            outer, inner = socket.socketpair()
            with outer, inner:
                slow = lingering_socket.make(peers)
                self.addCleanup(peers[-1].close)
                socket.send_fds(inner, [b"x"], [slow.fileno()])
                slow.close()
                other.send(tool.GET_FEATURES, fds=[outer.fileno()])
        server.signal(signal.SIGCONT)
        for _ in range(2):
            other.receive()
        for _ in range(12):
            self.wait_for(lambda: self.holders(device.queues[1]) == 2)
            device.share_memory()

    def test_a_ring_that_breaks_a_rule(self):
        """Only its queue stops."""
        server = self.serve()
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        broken = device.queues[1]
        broken.set_avail_index(1000)
        broken.kick()
        self.assertTrue(broken.wait(broken.error_fd))
        for queue in (device.queues[0], *device.queues[2:]):
            self.assertEqual(device.read(1, 512, queue=queue), self.content(512, 512))
        device.stop(broken)
        broken.set_avail_index(0)
        broken.setup()
        self.assertEqual(device.read(1, 512, queue=broken), self.content(512, 512))
        self.wait_until_spread(device)

    def test_memory_vanishes(self):
        """Nothing is answered, and the session ends."""
        server = self.serve(keys=",delay=read:100ms")
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        for queue in device.queues:  # the index of a ring is 0 in memory that has vanished
            device.read(0, 512, queue=queue)
        for queue in device.queues:
            device.submit(tool.READ, 8, size=512, queue=queue, slot=queue.index)
        os.ftruncate(device.memory_fd, 0)
        for queue in device.queues:
            queue.kick()
        device.gone()
        self.wait_for(lambda: self.counters()["connections"] == 0)
        with self.device(server, queues=QUEUES) as other:
            for queue in other.queues:
                self.assertEqual(other.read(0, 512, queue=queue), self.content(0, 512))


class Lifetime(Queues):
    def recorded_queues(self, server, device=None, record=None, when_accepted=lambda: None):
        """A front end with a record for all queues: a new one, or the same one again after its server was killed.
        when_accepted is called before any request is repeated."""
        again = self.device(server, queues=QUEUES, protocol=PROTOCOL | tool.INFLIGHT, start=False,
                            memory_fd=device.memory_fd if device else None)
        again.negotiate()
        if record is None:
            answer, fd = again.ask(tool.GET_INFLIGHT_FD, struct.pack("=QQHH4x", 0, 0, QUEUES, again.queue.entries))
            self.addCleanup(os.close, fd)
            record = (answer, [fd])
        again.check(tool.SET_INFLIGHT_FD, *record)
        when_accepted()
        again.share_memory()
        if device is not None:
            again.queues = device.queues
        for queue in again.queues:
            device_entries = struct.pack("=II", queue.index, queue.entries)
            again.check(tool.SET_VRING_NUM, device_entries)
            self.restart(again, queue, queue.read_used_index())
        return again, record

    def test_a_killed_server(self):
        """V16: with requests in flight on all reactors"""
        server = self.serve(keys=",mode=direct")
        device, record = self.recorded_queues(server)
        processors = self.processors(device)
        for _ in range(ROUNDS):
            self.wait_until_spread(device)
            self.all_go_on(processors)
            server.kill()
            server = self.serve(keys=",mode=direct")
            device, _ = self.recorded_queues(server, device, record)
            self.all_go_on(processors)
        self.stop(processors)
        self.assertEqual([device.stop(queue) for queue in device.queues],
                         [queue.avail_index for queue in device.queues])

    def test_requests_of_a_killed_server(self):
        """They are done again by the reactor to which their queue belongs, each once."""
        server = self.serve(keys=",delay=write:1h", content=bytes(MIB))
        device, record = self.recorded_queues(server)
        self.wait_until_spread(device)
        for queue in device.queues:
            for number in range(DEPTH):
                slot = DEPTH * queue.index + number
                device.submit(tool.WRITE, 8 * slot, bytes([slot + 1]) * 4096, queue=queue, first=3 * number, slot=slot)
        self.wait_for(lambda: self.counters()["inflight"] == DEPTH * QUEUES)
        server.kill()
        server = self.serve(keys=",rate=requests=200:burst=50ms")
        again, _ = self.recorded_queues(server, device, record)
        again.share_memory()  # while lanes have some of them
        for queue in again.queues:
            queue.device = again
            self.assertEqual(sorted(queue.next_used()[0] for _ in range(DEPTH)),
                             [3 * number for number in range(DEPTH)])
        for slot in range(DEPTH * QUEUES):
            self.assertEqual(self.content(4096 * slot, 4096), bytes([slot + 1]) * 4096)
        self.assertEqual([again.stop(queue) for queue in again.queues], [DEPTH] * QUEUES)

    def test_a_front_end_that_connects_again(self):
        """V16: no reactor uses the rings for its earlier connection any more when the record is accepted."""
        server = self.serve(keys=",delay=read:500ms")
        device, record = self.recorded_queues(server)
        self.wait_until_spread(device)
        for queue in device.queues[1::2]:
            device.submit(tool.READ, 8 * queue.index, size=512, queue=queue, slot=queue.index)
        self.wait_for(lambda: self.counters()["inflight"] == 2 or device.queues[1].read_used_index() == 1)

        def check_that_no_other_is_left():
            counters = self.counters()
            self.assertEqual((counters["connections"], counters["inflight"]), (1, 0))
        again, _ = self.recorded_queues(server, device, record, check_that_no_other_is_left)
        device.gone()
        for queue in again.queues[1::2]:
            queue.device = again
            self.assertEqual(queue.next_used(), (0, 513))
            self.assertEqual(again.data(512, queue.index), self.content(4096 * queue.index, 512))

    def test_upgrades_under_load(self):
        server = self.serve(keys=",mode=direct")
        device, _ = self.recorded_queues(server)
        processors = self.processors(device)
        for number in range(1, ROUNDS + 1):
            self.wait_until_spread(device)
            passed, ended, _ = self.must_upgrade()
            self.assertEqual((passed, ended), (1, 0))
            if number % 2:
                device.share_memory()
            self.all_go_on(processors)
        code, _, errors = self.upgrade(*upgrades.PROCESS, "--new", "dies-with-all")
        self.assertEqual(code, 1, errors)
        self.all_go_on(processors)
        self.wait_until_spread(device)
        self.stop(processors)
        self.assertEqual([device.stop(queue) for queue in device.queues],
                         [queue.avail_index for queue in device.queues])
        counters = self.counters()
        self.assertEqual((counters["connections_accepted"], counters["connections_taken_over"]), (1, 1))

    def test_an_upgrade_that_fails_while_queues_return(self):
        """They are served again, although the guest has broken another one before."""
        code = 0
        while code == 0:  # on a busy machine, the request ends before the upgrade gives up
            server = self.serve(keys=",delay=write:8s")
            device = self.device(server, queues=QUEUES)
            self.wait_until_spread(device)
            device.queues[3].set_avail_index(1000)
            device.queues[3].kick()
            self.assertTrue(device.queues[3].wait(device.queues[3].error_fd))
            device.share_memory()
            self.wait_until_spread(device, (1, 2, 1, 1))
            device.submit(tool.WRITE, 0, b"u" * 512, queue=device.queues[1])
            self.wait_for(lambda: self.counters()["inflight"] == 1)
            code, _, errors = self.upgrade()
            if code == 0:
                self.stop_newest()
        self.assertIn("in flight", errors)
        self.assertEqual(device.queues[1].next_used(), (0, 1))
        for queue in device.queues[:3]:
            self.assertEqual(device.read(8, 512, queue=queue), self.content(4096, 512))
        self.wait_until_spread(device, (1, 2, 1, 1))

    def test_reloads_and_rights_under_load(self):
        config = self.path("gmblock.conf")

        def write(readonly, **keys):
            with open(config, "w", encoding="utf-8") as file:
                rule = {"uid": os.geteuid(), "rights": "ro" if readonly else "rw"}
                json.dump({"exports": [{"name": "disk", "path": self.path("disk.img"), "access": [rule], **keys}]}, file)

        def reload():
            subprocess.run([support.program(), "reload", self.control], check=True, stdout=subprocess.DEVNULL)

        self.make_file("disk.img", bytes(MIB))
        write(False)
        self.control = self.path("control")
        server = self.start("--config", config, "--control", self.control, "--threads", "2",
                            "--listen", f"vhost-user-blk+unix:///disk?socket={self.path('socket')}")
        device = self.device(server, queues=QUEUES)
        self.wait_until_spread(device)
        processors = self.processors(device)
        for number in range(ROUNDS):
            write(False, rate=f"requests={100000 + number}")
            reload()
            self.all_go_on(processors)
        self.stop(processors)
        write(True)
        reload()
        for status in (tool.IO_ERROR, tool.OK):
            for queue in device.queues:
                self.wait_for(lambda queue=queue, status=status: device.do(
                    tool.WRITE, 0, b"x" * 512, queue=queue)[0] == status)
            write(False)
            reload()
        self.wait_until_spread(device)
        self.assertEqual(self.counters()["connections_accepted"], 1)

    def test_the_export_is_removed(self):
        """Requests that were taken are finished, then the session ends."""
        server, device = self.serve_slow_writes("200ms")
        subprocess.run([support.program(), "export", "remove", "disk", "--server", self.control], check=True,
                       stdout=subprocess.DEVNULL)
        device.gone()
        for queue in device.queues:
            self.assertEqual((queue.read_used_index(), device.status(queue.index)), (1, tool.OK))
        self.assertEqual(server.stop()[0], 0)

    def test_the_end_of_the_server_finishes_requests(self):
        server, device = self.serve_slow_writes("100ms")
        server.signal()
        device.gone()
        for queue in device.queues:
            self.assertEqual((queue.read_used_index(), device.status(queue.index)), (1, tool.OK))
        self.assertEqual(server.wait()[0], 0)

    def test_front_ends_that_leave_under_load(self):
        """Nothing stays behind, wherever their queues are at that moment."""
        server = self.serve(keys=",delay=read:1ms")

        def resources():
            process = f"/proc/{server.process.pid}"
            with open(process + "/maps", encoding="ascii") as maps:
                guests = sum("guest" in line for line in maps)
            return len(os.listdir(process + "/fd")), guests

        def cycle(number):
            device = tool.Device(server.uri, queues=QUEUES, protocol=PROTOCOL)
            for queue in device.queues:
                device.submit(tool.READ, 8, size=4096, queue=queue, slot=queue.index)
            if number % 4 == 1:
                device.share_memory()
            elif number % 4 == 2:
                device.send(tool.SET_VRING_ENABLE, struct.pack("=II", 1, 1))
            elif number % 4 == 3:
                self.wait_until_spread(device)
            device.close()

        for number in range(8):
            cycle(number)
        self.wait_for(lambda: resources()[1] == 0 and self.counters()["connections"] == 0)
        before = resources()[0]
        for number in range(10 * ROUNDS):
            cycle(number)
        self.wait_for(lambda: resources()[1] == 0 and resources()[0] <= before)
        self.assertEqual(server.stop()[0], 0)

    def test_a_front_end_that_leaves_while_its_message_waits(self):
        """The server notices it, and does not wait for requests that never end."""
        server = self.serve(keys=",delay=write:1h")
        device = self.device(server, queues=2)
        self.wait_until_spread(device)
        device.submit(tool.WRITE, 0, b"1" * 4096, queue=device.queues[1])
        self.wait_for(lambda: self.counters()["inflight"] == 1)
        device.send(tool.GET_VRING_BASE, struct.pack("=II", 0, 0))
        device.socket.close()
        self.wait_until_spread(device, (0, 1))  # a lane keeps its descriptors as long as its requests
        server.kill()


if __name__ == "__main__":
    upgrades.main()
