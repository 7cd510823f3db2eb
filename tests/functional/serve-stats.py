#!/usr/bin/python3
"""`gmblock stats` and the control socket it asks: what is counted, who may ask, how a server is
found."""
import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading

import nbdmini
import support


HELLO = {"service": "gmblock control", "protocol": 1, "version": "0", "pid": 1}


def read_socket(path):
    """What the control socket answers to a request for statistics."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(path)
        sock.sendall(b'{"command": "stats"}\n')
        with sock.makefile() as lines:
            _, answer = lines
    return json.loads(answer)["result"]


class Stats(support.Case):
    def serve(self, *arguments, **options):
        self.control = self.path("control")
        return self.start_unix("--control", self.control, *arguments, **options)

    def stats(self, server=None):
        code, output, errors = self.run_gmblock("stats", "--json", server or self.control)
        # By a URI, root asks also the servers of parallel tests; some of these are stopped.
        self.assertRegex(errors, r"^(gmblock: warning: /run/\S*: no response for .*\n)*$")
        self.assertEqual(code, 0, errors)
        return json.loads(output)

    def operations(self, index=0):
        found = self.stats()["exports"][index]["operations"]
        return {(entry["operation"], entry["size_max"]): entry for entry in found}

    def test_nothing_yet(self):
        server = self.serve("memory:1M")
        told = self.stats()
        self.assertEqual(told["pid"], server.process.pid)
        self.assertEqual(told["uris"], [server.uri])
        self.assertEqual([entry["operations"] for entry in told["exports"]], [[]])
        self.assertEqual(told["counters"]["requests"], 0)
        arena, = told["arenas"]
        self.assertGreater(arena.pop("limit_bytes"), 0)
        self.assertEqual(arena, {"kind": "ram", "mapped_bytes": 0, "used_bytes": 0, "waits": 0,
                                 "spills": 0, "trouble": None})
        unknown = dict.fromkeys(("part_size", "disk_bytes_per_second", "network_bytes_per_second",
                                 "early", "whole_bytes_per_second", "parts_bytes_per_second"))
        self.assertEqual([told["exports"][0][what] for what in ("reads", "writes")], [unknown] * 2)
        code, output, _ = self.run_gmblock("stats", self.control)
        self.assertEqual(code, 0)
        self.assertIn("no requests yet", output)
        self.assertRegex(output, r"\nMemory \(ram\)\n  Upper limit of payload memory of this kind: \d+\.\d+ MB\n")

    def test_numbers_are_short(self):
        server = self.serve("--export", "=memory:1M,rate=200M:burst=100ms")
        # The mean of many latencies has more digits.
        self.assertEqual(self.run_gmblock("bench", "--requests", "1000", server.uri)[0], 0)
        output = self.run_gmblock("stats", "--json", self.control)[1]
        self.assertRegex(output, r'"burst_seconds": 0\.1\b')
        numbers = re.findall(r"\d+\.\d+", output)
        self.assertGreater(len(numbers), 20)
        self.assertEqual([number for number in numbers if len(number.replace(".", "").lstrip("0")) > 15], [])

    def test_requests_are_counted_by_operation_and_size(self):
        server = self.serve("--threads", "2", "--export", "=memory:1M", "--export",
                            "other=memory:1M", uri_count=2)
        with nbdmini.open_export(server.uri, b"") as client:
            for _ in range(3):
                client.read(0, 4096)
            client.read(0, 4097)
            client.write(0, b"x" * 65536)
        # The last reply is out before it is counted: the next answer comes after that.
        with nbdmini.open_export(server.uri, b"") as client:
            client.read(0, 1)
        found = self.operations()
        self.assertGreaterEqual(found["read", 4096]["count"], 3)
        self.assertEqual(found["read", 16384]["count"], 1)
        self.assertEqual(found["read", 16384]["bytes"], 4097)
        self.assertEqual(found["write", 65536]["count"], 1)
        self.assertEqual(found["write", 65536]["bytes"], 65536)
        self.assertEqual(self.operations(1), {})
        self.assertEqual(found["read", 4096]["size_above"], 0)
        self.assertEqual(found["read", 16384]["size_above"], 4096)
        for entry in found.values():
            latency = entry["latency_us"]
            self.assertLessEqual(latency["p50"], latency["p90"])
            self.assertLessEqual(latency["p90"], latency["p99"])
            self.assertLessEqual(latency["p99"], latency["max"])
            self.assertAlmostEqual(sum(entry["state_us"].values()), latency["mean"], places=2)

    def test_states_show_where_the_time_went(self):
        """A disk that takes 3 s shows in the state of the disk, not in another."""
        server = self.serve("--export", "=memory:1M,delay=read:3s")
        with nbdmini.open_export(server.uri, b"") as client:
            client.read(0, 4096)
        # What was answered is counted a little later.
        self.wait_for(lambda: ("read", 4096) in self.operations())
        states = self.operations()["read", 4096]["state_us"]
        self.assertGreaterEqual(states["disk"], 3000000)
        self.assertLess(states["wait"] + states["overlap"] + states["network"], states["disk"])

    def test_errors_are_counted(self):
        server = self.serve("--export", "=memory:1M,fault=read:EIO")
        with nbdmini.open_export(server.uri, b"") as client:
            with self.assertRaises(OSError):
                client.read(0, 4096)
        entry = self.operations()["read", 4096]
        self.assertEqual((entry["count"], entry["errors"], entry["bytes"]), (1, 1, 0))

    def test_each_layer_of_a_store_counts(self):
        """Over all reactors, by the name of the filter; those that count nothing are not there."""
        server = self.serve("--threads", "2", "--export",
                            "=memory:1M,fault=read:EIO:every=2,delay=write:1ms")
        for _ in range(4):
            with nbdmini.open_export(server.uri, b"") as client:
                client.write(0, b"x" * 512)
                client.read(0, 512)
                with self.assertRaises(OSError):
                    client.read(0, 512)
        self.assertEqual(self.stats()["exports"][0]["store"],
                         {"delay": {"delayed": 4}, "fault": {"failed": 4}})
        code, output, _ = self.run_gmblock("stats", self.control)
        self.assertEqual(code, 0)
        self.assertIn("\n  delay:\n    Requests delayed by a delay= rule: 4\n", output)

    def test_the_socket_is_its_owners_and_goes_with_the_server(self):
        server = self.serve("memory:1M")
        self.assertEqual(stat.S_IMODE(os.stat(self.control).st_mode), 0o600)
        self.assertEqual(server.stop()[0], 0)
        self.assertFalse(os.path.exists(self.control))
        self.check_refused(["stats", self.control], 1, self.control, "No such file")

    def test_watch_goes_with_json(self):
        self.check_refused(["stats", "--watch", self.path("any")], 2, "--watch needs --json", "gmblock top")

    def test_who_asks_and_leaves_disturbs_nobody(self):
        server = self.serve("memory:1M")
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(self.control)
        with nbdmini.open_export(server.uri, b"") as client:
            client.read(0, 4096)
        self.assertEqual(read_socket(self.control)["pid"], server.process.pid)

    def test_found_by_uri_and_by_process(self):
        """In the folder of a user's own, which holds nothing else."""
        if os.geteuid() == 0:
            self.skipTest("root's folder is shared with servers that are not ours")
        environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder)
        server = self.start_unix("memory:1M", env=environment)
        for name in (server.uri, str(server.process.pid)):
            code, output, errors = self.run_gmblock("stats", "--json", name, env=environment)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual(json.loads(output)["pid"], server.process.pid)

    def test_found_by_uri_as_root(self):
        if os.geteuid() != 0:
            self.skipTest("only root has /run")
        server = self.start_unix("memory:1M")
        for name in (server.uri, str(server.process.pid)):
            self.assertEqual(self.stats(name)["pid"], server.process.pid)

    def test_a_path_of_any_bytes(self):
        path = self.path(os.fsdecode(b"disk-\xff.img"))
        with open(path, "wb") as file:
            file.truncate(4096)
        self.serve(path)
        self.assertIn("disk-\\xff.img", self.stats()["exports"][0]["path"])

    @staticmethod
    def is_refused(path):
        """The kernel holds a killed server's sockets for a moment."""
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except ConnectionRefusedError:
                return True
        return False

    def test_what_a_killed_server_left_is_swept_away(self):
        if os.geteuid() != 0:
            self.skipTest("only root has /run")
        killed = self.start_unix("memory:1M")
        left = f"/run/gmblock-serve/{killed.process.pid}.sock"
        self.assertTrue(os.path.exists(left))
        killed.kill()
        self.wait_for(lambda: self.is_refused(left))
        os.utime(left, (0, 0))
        server = self.start("memory:1M", "--listen", self.socket_uri("other"))
        self.assertEqual(self.stats(server.uri)["pid"], server.process.pid)
        self.assertFalse(os.path.exists(left))
        self.assertEqual(server.stop(), (0, ""))

    def test_root_finds_those_of_others(self):
        """Of the service, and of users who are logged in; unless their folder leads elsewhere."""
        if os.geteuid() != 0:
            self.skipTest("only root looks there")
        uid, user = self.log_somebody_in()
        os.chmod(self.folder, 0o777)
        try:
            server = self.start_unix("memory:1M", env=dict(os.environ, XDG_RUNTIME_DIR=user), user=uid,
                                     group=uid, extra_groups=[])
        except PermissionError:
            self.skipTest("others may not run the program")
        pid = str(server.process.pid)
        self.assertEqual(self.stats(pid)["pid"], server.process.pid)
        self.assertEqual(self.stats(f"{user}/gmblock/serve/{pid}.sock")["pid"], server.process.pid)
        # What it says of its URIs proves nothing.
        self.assertEqual(self.run_gmblock("stats", server.uri)[0], 1)
        os.chown(user, uid - 1000, uid - 1000)  # who could have put a link there
        code, _, errors = self.run_gmblock("stats", pid)
        self.assertEqual(code, 1)
        self.assertIn("belongs to another user than the folder", errors)
        os.chown(user, uid, uid)
        os.rename(user + "/gmblock/serve", self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), user + "/gmblock/serve")
        self.assertEqual(self.run_gmblock("stats", pid)[0], 1)

    def test_a_socket_that_is_about_to_listen_is_left_alone(self):
        """Its process is in another container: here nobody has that number."""
        if os.geteuid() != 0:
            self.skipTest("only root has /run")
        self.start_unix("memory:1M").stop()  # now the folder is there
        with subprocess.Popen(["true"]) as nobody:
            pass
        path = f"/run/gmblock-serve/{nobody.pid}.sock"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
            try:
                self.start("memory:1M", "--listen", self.socket_uri("a")).stop()
                self.assertTrue(os.path.exists(path))
                os.utime(path, (0, 0))
                self.start("memory:1M", "--listen", self.socket_uri("b")).stop()
                self.assertFalse(os.path.exists(path))
            finally:
                if os.path.exists(path):
                    os.unlink(path)

    def folder_of_somebody(self):
        """A folder for control sockets that no other server uses, for a user who is not root: how
        to run a program like that."""
        options = {"env": dict(os.environ, XDG_RUNTIME_DIR=self.folder)}
        os.makedirs(self.path("gmblock/serve"))
        if os.geteuid() == 0:
            options.update(user=65534, group=65534, extra_groups=[])
            for folder in ("", "gmblock", "gmblock/serve"):
                os.chown(self.path(folder), 65534, 65534)
        try:
            subprocess.run([support.program(), "--version"], check=True, capture_output=True,
                           **options)
        except PermissionError:
            self.skipTest("others may not run the program")
        return options

    def test_several_servers_are_listed(self):
        options = self.folder_of_somebody()
        servers = [self.start("memory:1M", "--listen", self.socket_uri(str(index)), **options)
                   for index in range(3)]
        code, output, errors = self.run_gmblock("stats", **options)
        self.assertEqual((code, output), (1, ""))
        self.assertIn("3 servers match", errors)
        for server in servers:
            self.assertIn(str(server.process.pid), errors)
        for server in servers[1:]:
            self.assertEqual(server.stop(), (0, ""))
        code, output, errors = self.run_gmblock("stats", "--json", **options)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(json.loads(output)["pid"], servers[0].process.pid)

    def test_a_list_of_servers_that_is_cut_says_so(self):
        options = self.folder_of_somebody()
        servers = [self.start("memory:1M", "--threads", "1", "--listen",
                              self.socket_uri(str(index)), **options) for index in range(40)]
        code, output, errors = self.run_gmblock("stats", **options)
        self.assertEqual((code, output), (1, ""))
        self.assertRegex(errors, r"40 servers match; select one with --server, by a URI, a process ID "
                         r"\((\d+ nbd\+unix:\S+, )+\.\.\.\) or a control socket in ")
        told = re.search(r"\((.*), \.\.\.\)", errors).group(1).split(", ")
        self.assertLessEqual({int(entry.split()[0]) for entry in told},
                             {server.process.pid for server in servers})

    def test_a_server_that_cannot_be_asked_is_told_of(self):
        options = self.folder_of_somebody()
        code, _, errors = self.run_gmblock("stats", **options)
        self.assertEqual(code, 1)
        self.assertIn("no server of this user runs", errors)
        path = self.path("gmblock/serve/1.sock")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
            sock.listen()
            os.chmod(path, 0)
            for server in ([], ["nbd://localhost"]):
                code, _, errors = self.run_gmblock("stats", *server, **options)
                self.assertEqual(code, 1)
                self.assertIn(f"{path}: cannot connect: Permission denied", errors)
        os.unlink(path)
        os.chmod(self.path("gmblock/serve"), 0)
        code, _, errors = self.run_gmblock("stats", **options)
        self.assertEqual(code, 1)
        self.assertIn("serve: Permission denied", errors)

    def answer_with(self, *documents):
        """A control socket that tells these, one to each that asks: its path and its thread."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path("told"))
        listener.listen()

        def answer():
            with listener:
                for document in documents:
                    with listener.accept()[0] as other:
                        for line in (HELLO, {"result": document}):
                            other.sendall(json.dumps(line).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        return self.path("told"), thread

    def tell(self, document):
        """What `gmblock stats` makes of a document."""
        path, thread = self.answer_with(document)
        code, output, errors = self.run_gmblock("stats", path)
        thread.join()
        self.assertEqual((code, errors), (0, ""))
        os.unlink(path)
        return output

    def change(self, before, document):
        """What `gmblock top` shows of two documents, one a second after the other."""
        path, thread = self.answer_with(dict(before, clock_seconds=1.0),
                                        dict(document, clock_seconds=2.0))
        with subprocess.Popen([sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])",
                               support.program(), "top", "--interval=0.1", path], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as watching:
            # Nobody answers the third time, so the command ends by itself.
            output = watching.communicate()[0]
        thread.join()
        os.unlink(path)
        return output

    def test_top_compares_an_export_with_itself(self):
        def export(name, count):
            return {"name": name, "operations": [{"operation": "read", "size_max": 4096,
                                                  "count": count, "bytes": count * 4096}]}

        first = {"instance": "a", "exports": [export("idle", 7), export("busy", 1000)]}
        for then, rates in (
                (dict(first, exports=[export("busy", 1000)]), {"busy": "0"}),
                (dict(first, exports=[export("busy", 1003)]), {"busy": "3"}),
                (dict(first, exports=[export("new", 5), *first["exports"]]), {"new": "5", "busy": "0", "idle": "0"}),
                (dict(first, exports=[export("busy", 20)]), {"busy": "20"}),
                (dict(first, instance="b", exports=[export("busy", 2000)]), {"busy": "2000"})):
            with self.subTest(then=then):
                shown = self.change(first, then).split("\x1b[H")[-1]
                self.assertEqual(dict(re.findall(r"(busy|idle|new) +0 +(\d+)", shown)), rates)

    def test_what_a_server_tells_is_shown_escaped(self):
        output = self.tell({"version": "1\x1b[2J\n", "exports": [
            {"name": "\x1b", "path": "\x1b", "operations": []}]})
        self.assertNotIn("\x1b", output)
        self.assertIn("gmblock 1\\x1b[2J\\x0a, up", output)

    def test_the_last_class_is_named_by_the_size_below_it(self):
        operation = {"operation": "read", "size_above": 1 << 20, "size_max": None, "count": 1}
        output = self.tell({"exports": [{"operations": [operation]}]})
        self.assertRegex(output, r"read +> 1M ")

    def test_columns_stay_where_they_are(self):
        operations = [{"operation": "read", "size_max": 4096, "count": 1, "bytes": count}
                      for count in (1, 10**12, 99_999 * 10**9, 8.1e24)]
        lines = self.tell({"exports": [{"operations": operations}]}).splitlines()[-5:]
        self.assertEqual({len(line) for line in lines}, {len(lines[0])}, lines)
        self.assertEqual(lines[0].index("GB ") + len("GB"), lines[1].index("0.000 ") + len("0.000"))

    def test_another_version_of_the_protocol(self):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path("later"))
            sock.listen()

            def answer():
                with sock.accept()[0] as other:
                    hello = dict(HELLO, protocol=2, version="9\x1b")
                    other.sendall(json.dumps(hello).encode() + b"\n")

            thread = threading.Thread(target=answer)
            thread.start()
            self.check_refused(["stats", self.path("later")], 1, r"gmblock 9\x1b, has "
                               "version 2 of the control protocol, this program has version 1")
            thread.join()

    def test_other_spellings_of_a_uri(self):
        options = self.folder_of_somebody()

        def asked(uri, **more):
            code, output, errors = self.run_gmblock("stats", "--json", uri, **options, **more)
            self.assertEqual((code, errors), (0, ""), uri)
            return json.loads(output)["pid"]

        tcp = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", **options)
        unix = self.start("memory:1M", "--listen", "nbd+unix:///?socket=s", cwd=self.folder,
                          **options)
        port = re.search(r":(\d+)", tcp.uri).group(1)
        for host in ("localhost", "LocalHost", "127.0.0.1", "[::1]", "0.0.0.0"):
            for end in ("", "/"):
                self.assertEqual(asked(f"nbd://{host}:{port}{end}"), tcp.process.pid)
        for uri in (self.socket_uri(), self.socket_uri("../" + os.path.basename(self.folder) + "/s")):
            self.assertEqual(asked(uri), unix.process.pid)
        for folder, path in ((self.folder, "s"), (self.path("gmblock"), "../s")):
            self.assertEqual(asked(f"nbd+unix:///?socket={path}", cwd=folder), unix.process.pid)

    def test_one_that_is_named_exactly_is_meant(self):
        options = self.folder_of_somebody()
        first = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", **options)
        port = re.search(r":(\d+)", first.uri).group(1)
        try:
            second = self.start("memory:1M", "--listen", f"nbd://[::1]:{port}", **options)
        except AssertionError:
            self.skipTest("no IPv6, or the port is taken there")
        for server in (first, second):
            code, output, errors = self.run_gmblock("stats", "--json", server.uri, **options)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual(json.loads(output)["pid"], server.process.pid)
        code, _, errors = self.run_gmblock("stats", f"nbd://localhost:{port}", **options)
        self.assertEqual(code, 1)
        self.assertIn("2 servers match", errors)

    def test_what_is_served_instead_is_told(self):
        options = self.folder_of_somebody()
        server = self.start("--export", "disk=memory:1M", "--listen", "nbd://127.0.0.1:0",
                            **options)
        base = server.uri.removesuffix("/disk")
        for uri in (base, base + "/"):  # the address is enough
            code, output, errors = self.run_gmblock("stats", "--json", uri, **options)
            self.assertEqual((code, errors), (0, ""), uri)
            self.assertEqual(json.loads(output)["pid"], server.process.pid)
        for uri in (base + "/dusk", base + "/disk/", "nbd://127.0.0.2/disk", "nbd+unix:///disk?socket=s"):
            code, _, errors = self.run_gmblock("stats", uri, **options)
            self.assertEqual(code, 1)
            self.assertIn(f"serves {uri}; served here: {server.uri}; run this command", errors)
        exports = [f"--export=disk-{index}=null:1M" for index in range(20)]
        self.start(*exports, "--listen", self.socket_uri(), uri_count=20, **options)
        code, _, errors = self.run_gmblock("stats", base + "/dusk", **options)
        self.assertEqual(code, 1)
        self.assertRegex(errors, r"served here: nbd.*, \.\.\.; run this command on the machine of the server\n")

    def test_the_socket_of_the_disk_is_no_control_socket(self):
        server = self.start_unix("memory:1M")
        self.check_refused(["stats", self.path("s")], 1, "not a control socket",
                           f"use its URI {server.uri}\n")

    def test_the_greeting_of_nbd_is_enough(self):
        """It is known before the end of a line, or of the time."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path("nbd"))
            sock.listen()
            pid = os.fork()
            if pid == 0:
                other, _ = sock.accept()
                other.sendall(b"NBDMAGICIHAVEOPT\0\3\n")
                other.recv(65536)
                os._exit(0)
            self.check_refused(["stats", self.path("nbd")], 1, "the listening socket of an NBD server")
            os.waitpid(pid, 0)

    def test_none_is_none(self):
        server = self.start_unix("memory:1M", "--control", "none")
        self.check_refused(["stats", server.uri], 1, "gmblock stats: no server")

    def test_wrong_usage(self):
        self.check_refused(["stats", "--watch=1ms"], 2, "from 100ms to 24h")
        self.check_refused(["stats", "--watch=0.01"], 2, "from 100ms to 24h")
        self.check_refused(["stats", "--watch=25h"], 2, "from 100ms to 24h")
        self.check_refused(["stats", "--watch=soon"], 2, "--watch")
        self.check_refused(["stats", "a", "b"], 2, "one server")
        self.check_refused(["stats", self.path("absent")], 1, "No such file")
        self.check_refused(["serve", "memory:1M", "--control", self.path("no/such")], 1,
                           "--control", "does not exist")
        plain = self.make_file("plain", "")
        for path in (plain, self.folder):
            self.check_refused(["stats", path], 1, path, "not a gmblock control socket")
        self.check_refused(["stats", ""], 1, "path of the control socket is empty")

    def test_watch_takes_plain_seconds(self):
        server = self.serve("memory:1M")
        with subprocess.Popen([support.program(), "stats", "--json", "--watch=0.2", self.control],
                              stdout=subprocess.PIPE, text=True) as watching:
            told = [json.loads(watching.stdout.readline()) for _ in range(3)]
            watching.kill()
        self.assertEqual({document["pid"] for document in told}, {server.process.pid})
        clocks = [document["clock_seconds"] for document in told]
        self.assertEqual(clocks, sorted(clocks))

    def test_a_time_that_is_not_part_of_watch(self):
        """`--watch 2` asks the server 2; who meant the time is told how to write it."""
        options = self.folder_of_somebody()
        for time in ("2", "0.5", "500ms"):
            with self.subTest(time):
                code, output, errors = self.run_gmblock("stats", "--json", "--watch", time, **options)
                self.assertEqual((code, output), (1, ""))
                self.assertIn(f"If {time} is the time for --watch, write --watch={time}\n",
                              errors)
                for operands in ([time, "nbd://h"], ["nbd://h", time]):
                    code, output, errors = self.run_gmblock("stats", "--json", "--watch", *operands)
                    self.assertEqual((code, output), (2, ""))
                    self.assertIn(f"--watch: write the time as --watch={time}\n", errors)
        for arguments in (["--json", "--watch=2", "2"], ["2"], ["--json", "--watch", "absent"]):
            code, output, errors = self.run_gmblock("stats", *arguments, **options)
            self.assertEqual((code, output), (1, ""))
            self.assertNotIn("time for --watch", errors)

    def test_processes_and_folders_that_are_not_there(self):
        options = self.folder_of_somebody()
        for pid in ("1", "99999999999999999999"):
            code, _, errors = self.run_gmblock("stats", pid, **options)
            self.assertEqual(code, 1)
            self.assertIn(f"no server of this user with the process ID {pid} runs", errors)
            self.assertIn(self.path("gmblock/serve"), errors)
        del options["env"]["XDG_RUNTIME_DIR"]
        if os.geteuid() != 0 or "user" in options:
            for arguments in ([], ["1"], ["nbd://h"]):
                code, _, errors = self.run_gmblock("stats", *arguments, **options)
                self.assertEqual(code, 1)
                self.assertIn("XDG_RUNTIME_DIR is not set", errors)

    @staticmethod
    def is_refused(path):
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(path) == errno.ECONNREFUSED

    def test_all_commands_say_the_same_of_servers(self):
        """Whatever is asked of a server: what is said when none, several or none that may be asked
        are there, and when what was named is none."""
        commands = (["stats"], ["stats", "--json", "--watch"], ["stats", "--prometheus"], ["top"],
                    ["trace", "--request"], ["reload"], ["upgrade"],
                    ["export", "list"], ["export", "add", "a", "null:1M"],
                    ["export", "set", "a", "rate=1M"], ["export", "remove", "a"])
        options = self.folder_of_somebody()
        folder = self.path("gmblock/serve")
        for end in (terminal := os.openpty()):
            self.addCleanup(os.close, end)

        def check(*fragments, server=(), env=options["env"]):
            said = set()
            for command in commands:
                done = subprocess.run(
                    [support.program(), *command, *server], stdin=terminal[1], text=True,
                    stdout=terminal[1], stderr=subprocess.PIPE, check=False,
                    **dict(options, env=env))
                with self.subTest(command=[*command, *server]):
                    self.assertEqual(done.returncode, 1, done.stderr)
                    name, text = done.stderr.split(": ", 1)
                    self.assertEqual(name, f"gmblock {command[0]}")
                    said.add(text)
            self.assertEqual(len(said), 1, said)
            for fragment in fragments:
                self.assertIn(fragment, min(said))

        check("no server of this user runs on this machine", f"searched {folder}",
              "for a server that was started with --control PATH, add --server PATH")
        check("no server of this user with the process ID 4194305 runs", server=("--server", "4194305"))
        check("XDG_RUNTIME_DIR is not set", "gmblock serve --control PATH",
              env={key: value for key, value in options["env"].items() if key != "XDG_RUNTIME_DIR"})
        check("absent: cannot connect: No such file or directory",
              server=("--server", self.path("absent")))
        check(f"{folder}: not a gmblock control socket", server=("--server", folder))
        servers = [self.start("memory:1M", "--listen", self.socket_uri(str(index)), **options)
                   for index in range(2)]
        check("2 servers match; select one with --server, by a URI, a process ID", f"a control socket in {folder}",
              *(str(server.process.pid) for server in servers))
        check("serves nbd://elsewhere", servers[0].uri, "run this command on the machine of the server",
              server=("--server", "nbd://elsewhere"))
        check("not a control socket", f"use its URI {servers[0].uri}", server=("--server", self.path("0")))
        dead = f"{folder}/{servers[0].process.pid}.sock"
        for server in servers:
            server.signal(signal.SIGKILL)
            server.wait()
            # The kernel lets go of the sockets of an io_uring a moment later.
            self.wait_for(lambda: self.is_refused(f"{folder}/{server.process.pid}.sock"))
        check("no server of this user runs on this machine")
        check(f"{dead}: cannot connect: Connection refused", server=("--server", dead))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{folder}/1.sock")
            sock.listen()
            os.chmod(f"{folder}/1.sock", 0)
            check("not all servers could be queried", "1.sock: cannot connect: Permission denied")
            check("1.sock: cannot connect: Permission denied", server=("--server", "1"))
        os.chmod(folder, 0)
        check("not all servers could be queried", f"{folder}: Permission denied")

    def test_attachments_of_who_has_no_folder_for_them(self):
        options = self.folder_of_somebody()
        del options["env"]["XDG_RUNTIME_DIR"]
        options["env"].pop("GMBLOCK_ATTACH_DIR", None)
        if os.geteuid() != 0 or "user" in options:
            for arguments in (["attach", "--list"], ["attach", "--list", "--json"],
                              ["detach", "ublkb0"]):
                code, _, errors = self.run_gmblock(*arguments, **options)
                self.assertEqual(code, 1)
                self.assertIn("XDG_RUNTIME_DIR is not set; set it, or set GMBLOCK_ATTACH_DIR", errors)

    def test_one_that_cannot_be_asked_is_told_of(self):
        """The only other one is shown, but who looks for this one shall know; unless he named the
        other."""
        options = self.folder_of_somebody()
        server = self.start("memory:1M", "--listen", self.socket_uri(), **options)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path("gmblock/serve/1.sock"))
            os.chmod(self.path("gmblock/serve/1.sock"), 0o777)
            sock.listen()

            def refuse():
                for _ in range(2):
                    other, _ = sock.accept()
                    other.close()

            thread = threading.Thread(target=refuse)
            thread.start()
            code, output, errors = self.run_gmblock("stats", "--json", **options)
            named = self.run_gmblock("stats", "--json", server.uri, **options)
            thread.join()
        self.assertEqual((named[0], named[2]), (0, ""))
        self.assertEqual(code, 0, errors)
        self.assertEqual(json.loads(output)["pid"], server.process.pid)
        self.assertIn("warning: not all servers could be queried: ", errors)
        self.assertIn("gmblock/serve/1.sock", errors)

    def test_a_server_that_does_not_answer(self):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path("silent"))
            sock.listen()
            path = self.path("silent")
            warning, failure = self.check_refused(["stats", path], 1).splitlines()
            self.assertEqual(warning, f"gmblock: warning: {path}: no response for 3 s; waiting for up to 10 s in total")
            self.assertEqual(failure, f"gmblock stats: {path}: the server sent no response for 10 seconds")

    def test_another_socket_is_no_control_socket(self):
        self.serve("memory:1M")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path("stranger"))
            sock.listen()
            pid = os.fork()
            if pid == 0:
                other, _ = sock.accept()
                other.sendall(b"hello")
                os._exit(0)
            self.check_refused(["stats", self.path("stranger")], 1, "not a gmblock control socket")
            os.waitpid(pid, 0)


if __name__ == "__main__":
    support.main()
