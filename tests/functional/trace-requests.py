#!/usr/bin/python3
"""`gmblock trace --request`: what a running server tells of single requests. Nothing here depends on
how fast anything is, but for delays that are put in on purpose and are lower bounds."""
import json
import os
import signal
import socket
import struct
import subprocess

import nbdmini
import support
import vhost_tool

KIB = 1 << 10
MIB = 1 << 20
SVG = "{http://www.w3.org/2000/svg}"


class Streams(nbdmini.Client):
    """A client with structured replies: fragments of a read may come in any order."""

    MAGIC = 0x668E33EF
    DONE, DATA, HOLE = 1, 1, 2

    @classmethod
    def open(cls, uri, name=b""):
        client = cls(uri)
        client.hello()
        client.send_option(8)
        client.option_replies(8)
        return client.go(name)

    def read(self, offset, length):
        content = bytearray(length)
        flags = 0
        self.send_request(nbdmini.CMD_READ, 1, offset, length)
        while not flags & self.DONE:
            magic, flags, kind, _, size = struct.unpack(">IHHQI", self.receive(20))
            assert magic == self.MAGIC
            payload = self.receive(size)
            if kind & 1 << 15:
                raise OSError(struct.unpack(">I", payload[:4])[0], "read failed")
            if kind == self.DATA:
                at = struct.unpack(">Q", payload[:8])[0] - offset
                content[at:at + size - 8] = payload[8:]
        return bytes(content)


class Case(support.Case):
    def serve(self, *arguments, **options):
        self.control = self.path("control")
        return self.start_unix("--control", self.control, *arguments, **options)

    def begin(self, *arguments):
        """A tracer; it waits for requests once this returns."""
        tracer = subprocess.Popen(
            [support.program(), "trace", "--request", *arguments, self.control],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end_tracer, tracer)
        # Not more than this line: communicate() does not see what is in the buffer of a reader.
        line = ""
        while not line.endswith("\n") and (byte := os.read(tracer.stderr.fileno(), 1)):
            line += byte.decode()
        self.assertRegex(line, r"^gmblock trace: waiting for \d+ requests?$")
        return tracer

    def end_tracer(self, tracer):
        if tracer.poll() is None:
            tracer.kill()
        tracer.communicate()

    def result(self, tracer, status=0, message=""):
        output, errors = tracer.communicate()
        self.assertEqual(tracer.returncode, status, errors)
        self.assertIn(message, errors)
        if status == 0:
            self.assertEqual(errors, "")
        return json.loads(output)

    def check_part(self, request, part):
        """The order of a part's times, and that what was sent of it covers it once."""
        self.assertLessEqual(0, part["opened_us"])
        self.assertLessEqual(part["opened_us"], part["submitted_us"])
        self.assertLessEqual(part["submitted_us"], part["done_us"])
        self.assertLessEqual(part["done_us"], request["total_us"])
        told = [mark["progress_us"] for mark in part["progress"]]
        self.assertEqual(told, sorted(told))
        counted = [mark["bytes"] for mark in part["progress"]]
        self.assertEqual(counted, sorted(counted))
        for mark in part["progress"]:
            self.assertLessEqual(part["submitted_us"], mark["progress_us"])
            self.assertLessEqual(mark["progress_us"], part["done_us"])
            self.assertLess(0, mark["bytes"])
            self.assertLess(mark["bytes"], part["length"])
        first_us = min([part["done_us"], *told])
        for piece in part["sent"]:
            self.assertLessEqual(first_us, piece["handed_us"])
            self.assertLessEqual(piece["handed_us"], piece["back_us"])
            self.assertLessEqual(piece["back_us"], request["total_us"])

    def covers(self, pieces, offset, length):
        """Each byte of the range is in exactly one piece."""
        for piece in sorted(pieces, key=lambda piece: piece["offset"]):
            self.assertEqual(piece["offset"], offset)
            offset += piece["length"]
            length -= piece["length"]
        self.assertEqual(length, 0)

    def check_request(self, request, operation, offset, length, error=None, export=""):
        self.assertEqual(
            (request["operation"], request["offset"], request["length"], request["error"],
             request["export"]), (operation, offset, length, error, export))
        self.assertEqual(set(request["state_us"]), {"wait", "disk", "overlap", "network"})
        self.assertGreaterEqual(min(request["state_us"].values()), 0)
        self.assertAlmostEqual(sum(request["state_us"].values()), request["total_us"], places=2)
        self.assertEqual(request["parts_more"], 0)
        for part in request["parts"]:
            self.check_part(request, part)
            self.assertEqual(part["placement"] is not None, operation in ("read", "write"))
        if error is None:
            self.covers(request["parts"], offset, length)
            for part in request["parts"]:
                self.assertIsNone(part["error"])
                if operation == "read":
                    self.covers(part["sent"], part["offset"], part["length"])
                else:
                    self.assertEqual(part["sent"], [])


class Requests(Case):
    def test_one_read(self):
        server = self.serve("--export", "=memory:16M,delay=read:30ms")
        tracer = self.begin("--json")
        with nbdmini.open_export(server.uri) as client:
            client.read(8192, 4096)
        told = self.result(tracer)
        self.assertEqual((told["pid"], told["wanted"], told["ended"], len(told["requests"])),
                         (server.process.pid, 1, "count", 1))
        request = told["requests"][0]
        self.check_request(request, "read", 8192, 4096)
        self.assertEqual(len(request["parts"]), 1)
        # The delay is in the disk's time.
        self.assertGreaterEqual(request["state_us"]["disk"], 29000)

    def test_a_read_in_parts(self):
        server = self.serve("--export", "=memory:16M,parts=64K,delay=read:40ms:range=256K+4K")
        content = os.urandom(MIB)
        with Streams.open(server.uri) as client:
            client.write(4096, content)
            tracer = self.begin("--json")
            self.assertEqual(client.read(4096, MIB), content)
        request = self.result(tracer)["requests"][0]
        self.check_request(request, "read", 4096, MIB)
        parts = {part["offset"]: part for part in request["parts"]}
        self.assertGreaterEqual(len(parts), 16)
        slow = [part for part in parts.values()
                if part["offset"] < 260 * KIB and part["offset"] + part["length"] > 256 * KIB]
        self.assertEqual(len(slow), 1)
        self.assertGreaterEqual(slow[0]["done_us"], 39000)

    def test_a_read_whose_disk_tells_progress(self):
        server = self.serve("--export", "=memory:16M,pace=256K,parts=16K")  # so slow that a busy machine sees it
        content = os.urandom(512 * KIB)
        with Streams.open(server.uri) as client:
            client.write(0, content)
            tracer = self.begin("--json")
            self.assertEqual(client.read(0, 512 * KIB), content)
        request = self.result(tracer)["requests"][0]
        self.check_request(request, "read", 0, 512 * KIB)
        self.assertTrue(all(part["progress"] for part in request["parts"]))

    def test_a_striped_disk_with_a_pace(self):
        """Whatever its members do at a time, each byte is in one part, and no part in two chunks."""
        server = self.serve("--export", "=memory:16M,parts=16K,"
                            "pace=200M:latency=200us:members=4:chunk=64K")
        content = os.urandom(MIB)
        with Streams.open(server.uri) as client:
            client.write(0, content)
            tracer = self.begin("--json", "--operation", "read")
            self.assertEqual(client.read(0, MIB), content)
        request = self.result(tracer)["requests"][0]
        self.check_request(request, "read", 0, MIB)
        for part in request["parts"]:
            self.assertEqual(part["offset"] // (64 * KIB),
                             (part["offset"] + part["length"] - 1) // (64 * KIB))

    def test_a_write_in_parts(self):
        server = self.serve("--export", "=memory:16M,parts=64K")
        tracer = self.begin("--json")
        with nbdmini.open_export(server.uri) as client:
            client.write(12288, bytes(MIB))
        request = self.result(tracer)["requests"][0]
        self.check_request(request, "write", 12288, MIB)
        self.assertGreaterEqual(len(request["parts"]), 16)

    def test_small_writes_and_what_has_no_payload(self):
        server = self.serve("memory:16M")
        tracer = self.begin("--json", "--count", "3")
        with nbdmini.open_export(server.uri) as client:
            client.write(100, b"x" * 1000)
            client.flush()
            client.send_request(4, 7, 8192, MIB)  # trim
            self.assertEqual(client.reply(), (7, 0))
        requests = self.result(tracer)["requests"]
        self.check_request(requests[0], "write", 100, 1000)
        self.check_request(requests[1], "flush", 0, 0)
        self.check_request(requests[2], "trim", 8192, MIB)
        self.assertEqual([len(request["parts"]) for request in requests], [1, 1, 1])

    def test_requests_of_a_virtual_machine(self):
        server = self.serve("--export", "disk=memory:16M,delay=any:5ms", "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('vm')}", uri_count=2)
        tracer = self.begin("--json", "--count", "3")
        with vhost_tool.Device(server.uris[0]) as device:
            device.write(8, b"v" * 4096)
            device.read(8, 64 * KIB)
            device.do(vhost_tool.FLUSH)
        write, read, flush = self.result(tracer)["requests"]
        self.check_request(write, "write", 4096, 4096, export="disk")
        self.check_request(read, "read", 4096, 64 * KIB, export="disk")
        self.check_request(flush, "flush", 0, 0, export="disk")
        self.assertGreaterEqual(min(request["state_us"]["disk"] for request in (write, read)), 4900)

    def test_a_disk_that_fails(self):
        server = self.serve("--export", "=memory:16M,parts=64K,fault=read:EIO:range=128K+4K")
        tracer = self.begin("--json")
        with Streams.open(server.uri) as client:
            with self.assertRaises(OSError):
                client.read(0, 256 * KIB)
        request = self.result(tracer)["requests"][0]
        error = os.strerror(5)
        self.check_request(request, "read", 0, 256 * KIB, error)
        failed = [part["offset"] for part in request["parts"] if part["error"] is not None]
        self.assertEqual(failed, [128 * KIB])

    def test_only_what_was_asked_for(self):
        server = self.serve("--export", "=memory:16M", "--export", "other=memory:16M", uri_count=2)
        tracers = [self.begin("--json", "--operation", "write", "--operation", "flush",
                              "--min-size", "4097", "--export", "other")]
        with nbdmini.open_export(server.uri) as client:
            client.write(0, bytes(65536))
        with nbdmini.open_export(server.uri, b"other") as client:
            client.read(0, 65536)
            client.write(4096, bytes(4096))
            client.flush()
            client.write(8192, bytes(4097))
        self.check_request(self.result(tracers[0])["requests"][0], "write", 8192, 4097,
                           export="other")
        tracer = self.begin("--json", "--export", "")
        with nbdmini.open_export(server.uri, b"other") as client:
            client.read(0, 512)
        with nbdmini.open_export(server.uri) as client:
            client.read(512, 512)
        self.check_request(self.result(tracer)["requests"][0], "read", 512, 512)

    def test_an_export_that_is_replaced(self):
        """It is meant by its name: another one of that name is traced, and a removed one is named."""
        server = self.serve("--export", "a=memory:1M", "--export", "b=memory:1M")
        control = ["--server", self.path("control")]
        for export in "a", None:
            tracer = self.begin("--json", "--count", "2", *(["--export", export] if export else []))
            for _ in range(2):
                with nbdmini.open_export(server.uri, b"a") as client:
                    client.read(0, 512)
                for words in ["remove", "a"], ["add", "a", "memory:2M"]:
                    code, _, errors = self.run_gmblock("export", *words, *control)
                    self.assertEqual((code, errors), (0, ""))
            for request in self.result(tracer)["requests"]:
                self.check_request(request, "read", 0, 512, export="a")

    def test_over_all_threads(self):
        server = self.serve("--threads", "3", "memory:16M")
        tracer = self.begin("--json", "--count", "30")
        clients = [nbdmini.open_export(server.uri) for _ in range(6)]
        for i in range(5):
            for k, client in enumerate(clients):
                client.read((i * 6 + k) * 512, 512)
        for client in clients:
            client.close()
        requests = self.result(tracer)["requests"]
        self.assertEqual(sorted(request["offset"] for request in requests),
                         [i * 512 for i in range(30)])
        clocks = [request["clock_seconds"] for request in requests]
        self.assertEqual(clocks, sorted(clocks))
        for request in requests:
            self.check_request(request, "read", request["offset"], 512)

    def test_a_client_that_leaves_is_as_if_it_had_not_been(self):
        server = self.serve("--export", "=memory:16M,delay=read:3s:range=0+4K")
        tracer = self.begin("--json")
        with nbdmini.open_export(server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 1, 0, 4096)
        with nbdmini.open_export(server.uri) as client:
            while tracer.poll() is None:  # its place is free once its part has ended
                client.read(8192, 512)
        self.check_request(self.result(tracer)["requests"][0], "read", 8192, 512)

    def record_three(self, server, *form):
        """The output of a trace of a read, a write and a flush."""
        tracer = self.begin("--count", "3", *form)
        with Streams.open(server.uri, b"a<b") as client:
            client.read(4096, 256 * KIB)
            client.write(0, bytes(64 * KIB))
            client.flush()
        output, errors = tracer.communicate()
        self.assertEqual((tracer.returncode, errors), (0, ""))
        return output

    def test_text_and_drawing(self):
        server = self.serve("--export", "a<b=memory:16M,parts=64K,delay=any:1ms")
        output, drawn = (self.record_three(server, *form) for form in ([], ["--json"]))
        self.assertIn('1. read of 256K at 4096, export "a<b": done in', output)
        self.assertIn('2. write of 64K at 0, export "a<b": done in', output)
        self.assertIn('3. flush, export "a<b": done in', output)
        for word in ("wait", "disk", "overlap", "network", "to disk", "payload in"):
            self.assertIn(word, output)
        rows = [line for line in output.splitlines() if line.lstrip().startswith("+") and "|" in line]
        self.assertGreaterEqual(len(rows), 6)
        self.assertTrue(any("=" in row and ">" in row for row in rows))
        root = self.plot(json.loads(drawn))
        self.assertEqual(root.tag, SVG + "svg")
        classes = [rect.get("class") for rect in root.iter(SVG + "rect")]
        self.assertEqual(classes.count("frame"), 3)
        for name in ("disk", "network", "payload"):
            self.assertIn(name, classes)
        texts = [text.text for text in root.iter(SVG + "text")]
        self.assertIn('read of 256K at 4096, export "a<b"', texts)


class Ends(Case):
    """Waits that end in another way."""

    def read_once(self, server):
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)

    def test_one_at_a_time(self):
        server = self.serve("memory:1M")
        first = self.begin("--json")
        self.check_refused(["trace", "--request", self.control], 1, "already tracing")
        self.read_once(server)
        self.check_request(self.result(first)["requests"][0], "read", 0, 512)
        second = self.begin("--json")
        self.read_once(server)
        self.check_request(self.result(second)["requests"][0], "read", 0, 512)

    def test_a_tracer_that_is_killed(self):
        server = self.serve("--export", "=memory:1M,delay=read:5ms")
        with nbdmini.open_export(server.uri) as client:
            for _ in range(5):
                tracer = self.begin("--count", "1000")
                client.read(0, 512)
                client.send_request(nbdmini.CMD_READ, 1, 0, 512)  # under way as it goes
                tracer.kill()
                tracer.communicate()
                self.assertEqual(client.reply(), (1, 0))
                client.receive(512)
        tracer = self.begin("--json")
        self.read_once(server)
        self.check_request(self.result(tracer)["requests"][0], "read", 0, 512)
        self.assertEqual(server.stop(), (0, ""))

    def test_an_interrupt_shows_what_there_is(self):
        server = self.serve("memory:1M")
        for number in (signal.SIGINT, signal.SIGTERM):
            tracer = self.begin("--json", "--count", "2", "--operation", "read")
            with nbdmini.open_export(server.uri) as client:
                client.read(0, 512)
                client.flush()  # and so the read has ended for the server, too
            tracer.send_signal(number)
            told = self.result(tracer, 1, "the wait for requests ended after 1 of 2 requests")
            self.assertEqual((told["ended"], len(told["requests"])), ("left", 1))

    def test_a_timeout(self):
        self.serve("memory:1M")
        tracer = self.begin("--json", "--timeout", "50ms")
        told = self.result(tracer, 1, "the wait for requests ended after 0 of 1 requests: no client made a request")
        self.assertEqual((told["ended"], told["requests"]), ("left", []))

    def test_the_server_stops(self):
        server = self.serve("memory:1M")
        tracer = self.begin("--json", "--count", "5")
        self.assertEqual(server.stop(), (0, ""))
        told = self.result(tracer, 1, "the server stopped after 0 of 5 requests")
        self.assertEqual(told["ended"], "stop")

    def test_the_server_stops_with_a_traced_request_in_flight(self):
        server = self.serve("--export", "=memory:1M,delay=read:50ms")
        tracer = self.begin("--json")
        with nbdmini.open_export(server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 1, 0, 512)
            client.send_request(nbdmini.CMD_FLUSH, 3)
            self.assertEqual(client.reply(), (3, 0))  # so the read is under way
            server.signal()
            told = json.loads(tracer.communicate()[0])
            self.assertIn(told["ended"], ("stop", "count"))
            self.assertEqual(client.reply(), (1, 0))
            client.receive(512)
        self.assertEqual(server.wait(), (0, ""))

    def test_the_server_is_killed(self):
        server = self.serve("memory:1M")
        tracer = self.begin()
        server.kill()
        output, errors = tracer.communicate()
        self.assertEqual((tracer.returncode, output), (1, ""))
        self.assertIn(self.control, errors)


class Refused(Case):
    def test_wrong_usage(self):
        def refuse(*arguments):
            *options, fragment = arguments
            self.check_refused(["trace", *options], 2, fragment, "gmblock trace --help")

        refuse("--request", "a", "b", "only one server can be given")
        refuse("--request", "--count", "0", "--count")
        refuse("--request", "--count", "1001", "--count")
        refuse("--request", "--min-size", "x", "--min-size")
        refuse("--request", "--min-size", "8E", "--min-size")
        refuse("--request", "--timeout", "0", "--timeout")
        refuse("--request", "--timeout", "soon", "--timeout")
        refuse("--request", "--operation", "re\x1bad", r"'re\x1bad'; the operations are read, write")

    def test_no_such_server(self):
        self.check_refused(["trace", "--request", self.path("absent")], 1, "No such file")
        plain = self.make_file("plain", "")
        self.check_refused(["trace", "--request", plain], 1, plain)

    def test_no_such_export(self):
        self.serve("memory:1M")
        self.check_refused(["trace", "--request", "--export", "ab\x1b", self.control], 1,
                           r'there is no export "ab\x1b"; ' + "'gmblock export list' shows the exports\n")
        self.check_refused(["trace", "--request", "--export", r'a\b"c', self.control], 1,
                           r'there is no export "a\x5cb\x22c"; ')
        self.check_refused(["trace", "--request", "--export", b"\xff", self.control], 1, "UTF-8")

    def check_stranger(self, answers, said):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path("stranger"))
            listener.listen()
            tracer = subprocess.Popen(
                [support.program(), "trace", "--request", self.path("stranger")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(self.end_tracer, tracer)
            client, _ = listener.accept()
            with client, client.makefile("rb") as commands:
                client.sendall(json.dumps(answers[0]).encode() + b"\n")
                commands.readline()
                for answer in answers[1:]:
                    client.sendall(json.dumps(answer).encode() + b"\n")
            output, errors = tracer.communicate()
        os.unlink(self.path("stranger"))
        self.assertEqual((tracer.returncode, output), (1, ""))
        self.assertEqual(errors, f"gmblock trace: {said}\n")

    def test_what_a_stranger_says_cannot_harm_a_terminal(self):
        """A sentence comes with its names escaped: that stays, and the rest is not trusted."""
        hello = {"service": "gmblock control", "protocol": 1}
        self.check_stranger([hello, {"error": {"code": "EBUSY", "text": 'not "\\x1b" \x1b[2J'}}],
                            'not "\\x1b" \\x1b[2J')
        self.check_stranger([hello, {"error": 7}], "the server gave no reason")
        path = self.path("stranger")
        self.check_stranger([hello, {}], f"{path}: invalid response")
        self.check_stranger([hello, {"result": {}}], f"{path}: the server did not start to record requests")
        for stranger in ({}, {"service": "\x1b"}, [1]):
            self.check_stranger([stranger], f"{path}: not a gmblock control socket")

    def test_a_plot_without_a_request_is_not_made(self):
        self.serve("memory:1M")
        plot = self.path("plot.svg")
        tracer = self.begin("--json", "--timeout", "1ms")
        document = self.result(tracer, 1, "the wait for requests ended after 0 of 1 requests: no client made a request")
        code, _, errors = self.run_plot("-o", plot, input=json.dumps(document))
        self.assertEqual(code, 1)
        self.assertIn("standard input: it has no requests, so there is nothing to draw; trace again", errors)
        self.assertFalse(os.path.exists(plot))


if __name__ == "__main__":
    support.main()
