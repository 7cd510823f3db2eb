#!/usr/bin/python3
"""The control socket of a server, byte by byte: what it answers, and that no client keeps it from
others or from stopping."""
import json
import os
import re
import shutil
import socket
import subprocess
import threading

import nbdmini
import support

STATS = b'{"command": "stats"}\n'
METRICS = b'{"command": "metrics"}\n'
TRACE = b'{"command": "trace", "arguments": %s}\n'


class Control(support.Case):
    def serve(self, *arguments, **options):
        self.control = self.path("control")
        return self.start_unix("--control", self.control, *arguments, **options)

    def connect(self, command=b""):
        sock = socket.socket(socket.AF_UNIX)
        self.addCleanup(sock.close)
        sock.settimeout(nbdmini.TIMEOUT_S)
        sock.connect(self.control)
        sock.sendall(command)
        return sock

    def rest(self, sock):
        """What the server sends until it closes, as lines."""
        parts = []
        try:
            while part := sock.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass  # it closed before it had read all of ours
        return [json.loads(line) for line in b"".join(parts).splitlines()]

    def ask(self, command):
        """The answer to a command: one line after the hello."""
        hello, answer = self.rest(self.connect(command))
        self.assertEqual((hello["service"], hello["protocol"]), ("gmblock control", 1))
        return answer

    def error(self, command):
        """The code and the text of an error."""
        answer = self.ask(command)
        self.assertEqual(list(answer), ["error"], command)
        return answer["error"]["code"], answer["error"]["text"]

    def line(self, sock):
        line = b""
        while not line.endswith(b"\n"):
            byte = sock.recv(1)
            self.assertNotEqual(byte, b"", line)
            line += byte
        return json.loads(line)

    def arm(self, arguments=b'{"count": 1}'):
        sock = self.connect(TRACE % arguments)
        self.line(sock)
        self.assertEqual(self.line(sock), {"note": {"armed": True}})
        return sock

    def traced(self, sock):
        """The answer to a trace that was armed."""
        answer, = self.rest(sock)
        return answer["result"]

    def test_hello_and_statistics(self):
        server = self.serve("memory:1M")
        for command in (STATS, STATS + b"and more", b'{"command": "stats", "arguments": {}}\n'):
            hello, answer = self.rest(self.connect(command))
            self.assertEqual((hello["service"], hello["protocol"], hello["pid"]),
                             ("gmblock control", 1, server.process.pid))
            self.assertEqual(answer["result"]["pid"], server.process.pid)
            self.assertEqual(answer["result"]["version"], hello["version"])

    def test_every_counter_is_described_and_documented(self):
        """What "counters" lists is what "stats" shows, what the manual pages list, and what the metrics are; and the
        dashboard asks for metrics that there are."""
        disk = self.make_file("disk", bytes(4096))
        store = "flash:" + self.path("log")
        self.assertEqual(self.run_gmblock("create", "--size=1G", store)[0], 0)
        server = self.serve("--export", f"={disk},pace=1G:seek=1us,delay=flush:1ms,fault=flush:EIO:nth=9",
                            "--export", f"golden={self.make_file('base', bytes(4096))},overlay=discard",
                            "--export", f"log={store}", "--state-folder", self.folder,
                            "--config", self.make_file("conf", "nodes: [{name: a, uid: 1}]"))
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
        document = self.ask(STATS)["result"]
        export, golden, log = document["exports"]
        shown = {"server": document["counters"], "export": export,
                 "operation": export["operations"][0], "rate": export["rate"],
                 "memory": export["memory"], "arena": document["arenas"][0],
                 "direction": export["reads"], "client": document["clients"][0], "node": document["nodes"][0],
                 **golden["store"], **export["store"], **log["store"]}
        described = self.ask(b'{"command": "counters"}\n')["result"]["counters"]
        names = {of: {entry["name"] for entry in described if entry["of"] == of} for of in shown}
        self.assertEqual(names["server"], set(shown["server"]))
        numbers = {key for key, value in shown["operation"].items() if type(value) is int}
        self.assertEqual(names["operation"], numbers - {"size_above", "size_max"})
        self.assertEqual(json.loads(self.run_gmblock("stats", "--describe")[1])["counters"], described)
        listed = set(self.page("gmblock-stats-json.5").replace(",", " ").split())
        # A disk with failover needs a name on all machines: tests/vm/failover.py looks at its counters.
        failover = {entry["name"] for entry in described if entry["of"] == "failover"}
        shown["failover"] = failover
        for entry in described:
            self.assertIn(entry["name"], shown[entry["of"]])
            store = entry["of"] in document["exports"][0]["store"] or entry["of"] in ("overlay", "flash", "failover")
            self.assertIn(f"{entry['of']}.{entry['name']}" if store else entry["name"], listed)
            self.assertIn(entry["kind"], ("total", "now"))
            self.assertIn(entry["unit"], ("", "bytes", "nanoseconds", "bytes per second", "ratio", "boolean"))
            self.assertNotEqual(entry["help"], "")
        series = [(entry["metric"], entry["metric_labels"]) for entry in described if entry["metric"]]
        self.assertEqual(len(series), len(set(series)))
        families = set(re.findall(r"# TYPE (gmblock_\w+)", self.ask(METRICS)["result"]["text"]))
        families |= {f"gmblock_store_failover_{counter}_total" for counter in failover}
        bare = {family.removesuffix("_total") for family in families}
        self.assertLessEqual({"gmblock_" + metric for metric, _ in series}, bare)
        page = self.page("gmblock-metrics.7")
        self.assertEqual({family for family in families if not re.search(rf"\b{family}\b", page)}, set())
        self.assertEqual({name for name in re.findall(r"\.It Li (gmblock_\w+)", page)} - families,
                         {"gmblock_rule_identities"})  # there is no rule
        with open(self.source("packaging/grafana/gmblock.json"), encoding="utf-8") as file:
            asked = set(re.findall(r"\bgmblock_\w+", file.read()))
        self.assertLessEqual({re.sub("_(total|bucket|sum|count)$", "", name) for name in asked}, bare)

    @staticmethod
    def source(path):
        return os.path.join(os.path.dirname(os.path.realpath(__file__)), "../..", path)

    def page(self, name):
        """A manual page with its lists of counters."""
        output = self.path(name)
        subprocess.run([self.source("scripts/manual-counters"), support.program(),
                        self.source("docs/man/" + name), output], check=True)
        with open(output, encoding="utf-8") as file:
            return file.read()

    def test_a_client_that_sends_no_command_is_closed(self):
        self.serve("memory:1M")
        silent = self.connect()
        ended = self.connect(b'{"command": "stats"}')
        ended.shutdown(socket.SHUT_WR)
        for sock in (silent, ended):
            self.assertEqual(len(self.rest(sock)), 1)

    def test_a_command_in_pieces(self):
        server = self.serve("memory:1M")
        sock = self.connect()
        for byte in STATS:
            sock.sendall(bytes([byte]))
        self.assertEqual(self.rest(sock)[1]["result"]["pid"], server.process.pid)

    def test_a_server_that_does_not_accept(self):
        path = self.path("full")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(0)
            with socket.socket(socket.AF_UNIX) as first:
                first.connect(path)
                self.check_refused(["stats", path], 1, "cannot connect: Connection timed out")

    def test_wrong_commands(self):
        self.serve("memory:1M")
        for command in (b"stats", b"{", b"[]", b"{}", b"null", b'{"command": 7}', b"\xff\xfe",
                        b'{"command": "stats", "command": "stats"}', b"[" * 5000, b"{}\x00"):
            self.assertEqual(self.error(command + b"\n")[0], "EINVAL", command)
        self.assertEqual(self.error(b'{"command": "STATS"}\n'), ("EINVAL", "unknown command"))
        self.assertIn("must be a JSON object",
                      self.error(b'{"command": "stats", "arguments": []}\n')[1])
        for arguments in (b"{}", b'{"count": 0}', b'{"count": 1001}', b'{"count": "1"}',
                          b'{"count": 1.5}', b'{"count": 1, "speed": 2}',
                          b'{"count": 1, "min_size": -1}', b'{"count": 1, "min_size": "x"}',
                          b'{"count": 1, "operations": []}',
                          b'{"count": 1, "operations": ["raed"]}',
                          b'{"count": 1, "operations": [7]}',
                          b'{"count": 1, "operations": "read"}', b'{"count": 1, "export": 7}',
                          b'{"min_size": 1}'):
            self.assertEqual(self.error(TRACE % arguments)[0], "EINVAL", arguments)
        self.assertEqual(self.error(TRACE % b'{"count": 1, "export": "other"}')[0], "ENOENT")
        self.assertEqual(self.error(TRACE % b'{"count": 1, "a\\\\b\\u001b": 2}'),
                         ("EINVAL", 'unknown argument "a\\x5cb\\x1b"'))
        self.arm()

    def test_a_command_that_is_too_long(self):
        """A line that never ends is cut off; others are answered meanwhile and afterwards."""
        server = self.serve("memory:1M")
        endless = self.connect()
        try:
            while True:
                endless.sendall(b"x" * 4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.assertEqual(self.rest(endless)[1]["error"]["code"], "EMSGSIZE")
        self.assertEqual(self.ask(STATS)["result"]["pid"], server.process.pid)

    def test_another_user_may_not(self):
        """Also when the mode of the socket would let that user in."""
        if os.geteuid() != 0:
            self.skipTest("only root can be another user")
        self.serve("memory:1M")
        os.chmod(self.control, 0o666)
        os.chmod(self.folder, 0o755)
        os.seteuid(65534)
        try:
            sock = self.connect(STATS)
        finally:
            os.seteuid(0)
        self.assertEqual(self.rest(sock)[1]["error"]["code"], "EPERM")
        self.assertIn("result", self.ask(STATS))

    def test_the_server_of_another_user_is_not_replaced(self):
        """Else whoever has a server would have root run a program of his choice."""
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        self.control = self.path("control")
        program = self.path("gmblock")
        shutil.copy(support.program(), program)
        os.chmod(self.folder, 0o777)
        new = ["serve", "memory:1M", "--listen", self.socket_uri(), "--control", self.control]
        with subprocess.Popen([program, *new], user=65534, group=65534, extra_groups=[], stdout=subprocess.PIPE,
                              text=True) as server:
            server.stdout.readline()
            for command in ((), ("--", support.program(), *new)):
                code, _, errors = self.run_gmblock("upgrade", self.control, *command)
                self.assertEqual(code, 1)
                self.assertIn(f"process {server.pid} belongs to another user (65534)", errors)
            server.terminate()
            self.assertEqual(server.wait(), 0)

    def test_many_at_a_time(self):
        """More than there are places, beside some that stay silent, and all are answered."""
        server = self.serve("memory:1M")
        tracer = self.arm()
        silent = [self.connect() for _ in range(20)]
        asking = [self.connect(STATS) for _ in range(50)]
        for sock in asking:
            self.assertEqual(self.rest(sock)[1]["result"]["pid"], server.process.pid)
        for sock in silent:
            self.assertEqual(self.line(sock)["service"], "gmblock control")
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
        self.assertEqual(self.traced(tracer)["ended"], "count")

    def test_a_second_trace_is_refused_while_one_waits(self):
        self.serve("memory:1M")
        first = self.arm()
        self.assertIn("already tracing", self.error(TRACE % b'{"count": 1}')[1])
        first.close()
        second = self.arm()
        second.shutdown(socket.SHUT_WR)
        self.assertEqual(self.traced(second)["ended"], "left")
        self.arm()

    def test_input_after_the_command_is_ignored(self):
        server = self.serve("memory:1M")
        sock = self.arm()
        sock.sendall(b"x" * 100000 + b"\n" + STATS)
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
        self.assertEqual(self.traced(sock)["ended"], "count")

    def test_a_client_that_does_not_read(self):
        """The answer with a thousand requests does not fit into a socket: it waits there while
        others are served, and the server can be stopped."""
        server = self.serve("memory:16M")
        sock = self.arm(b'{"count": 1000, "operations": ["read"]}')
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with nbdmini.open_export(server.uri) as client:
            for _ in range(1000):
                client.read(0, 512)
            client.flush()  # and so the last read has ended for the server, too
            self.arm().close()
            self.assertEqual(self.ask(STATS)["result"]["pid"], server.process.pid)
        self.assertEqual(len(self.traced(sock)["requests"]), 1000)

    def test_a_client_that_reads_slowly(self):
        """Statistics that do not fit into a socket, read in small pieces for ever: others get
        theirs, disks are served, and the server stops."""
        names = [f"{index:03}{'x' * 4000}" for index in range(100)]
        arguments = [f"--export={name}=memory:1M" for name in names]
        arguments += [f"--listen={self.socket_uri(str(index))}" for index in range(19)]
        server = self.serve(*arguments, uri_count=20 * len(names))
        slow = self.connect(STATS)
        ended = threading.Event()
        taken = []

        def read_slowly():
            while not ended.wait(0.5):
                taken.append(slow.recv(65536))

        reader = threading.Thread(target=read_slowly)
        reader.start()
        self.addCleanup(reader.join)
        self.addCleanup(ended.set)
        whole = self.ask(STATS)["result"]
        self.assertEqual(whole["pid"], server.process.pid)
        with nbdmini.open_export(server.uri, names[0].encode()) as client:
            client.read(0, 512)
        self.assertEqual(server.stop(), (0, ""))
        ended.set()
        reader.join()
        self.assertLess(sum(map(len, taken)), len(json.dumps(whole)) / 2)

    def test_a_stop_answers_clients_that_wait(self):
        server = self.serve("memory:1M")
        sock = self.arm(b'{"count": 7}')
        asking = self.connect(STATS[:-1])
        self.line(asking)
        with nbdmini.open_export(server.uri) as client:
            client.read(0, 512)
            client.flush()
        server.signal()
        told = self.traced(sock)
        self.assertEqual((told["ended"], told["wanted"]), ("stop", 7))
        self.assertIn(len(told["requests"]), (1, 2))  # the flush may not have ended for it
        self.assertEqual(self.rest(asking), [])
        self.assertEqual(server.wait(), (0, ""))
        self.assertFalse(os.path.exists(self.control))


if __name__ == "__main__":
    support.main()
