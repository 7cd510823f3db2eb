#!/usr/bin/python3
"""Fencing: no operation of a fenced node follows the answer, over any protocol, and the fence outlasts the server."""
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading

import fake_server
import nbdmini
import support

ERR_POLICY = 0x80000002
BLOCK = 4096
A, B = "127.0.0.2", "127.0.0.3"
CONF = """
nodes:
  - {{ name: a, address: 127.0.0.2 }}
  - {{ name: a, uid: {uid} }}
  - {{ name: b, address: 127.0.0.3 }}
access: [{{ node: a, rights: rw }}, {{ node: b, rights: rw }}]
exports:
{exports}
"""


FENCED, UNFENCED = "{}: fenced; its last operation has left all disks\n", "{}: no longer fenced\n"


class Fencing(support.Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("state"))
        self.control = self.path("control")

    def config(self, *exports):
        lines = "".join(f"  - {{ name: {name}, path: '{path}'{keys} }}\n" for name, path, keys in exports)
        return self.make_file("conf", CONF.format(uid=os.geteuid(), exports=lines))

    def serve(self, file, *arguments, listen=("nbd://127.0.0.1:0",), uri_count=1):
        words = [word for uri in listen for word in ("--listen", uri)]
        return self.start("--config", file, "--state-folder", self.path("state"), "--control", self.control, *words,
                          *arguments, uri_count=uri_count * len(listen))

    def fence(self, *arguments, command="fence"):
        return self.run_gmblock(command, *arguments, "--server", self.control)

    def check_fenced(self, node, *arguments):
        self.assertEqual(self.fence(node, *arguments), (0, FENCED.format(node), ""))

    def check_in_vain(self, reason, *arguments, command="fence"):
        """The command fails for this reason at the end of its time, in which a busy machine may not answer at all. Returns
        what it said."""
        def check(factor):
            code, output, errors = self.run_gmblock(command, *arguments, "--timeout", f"{factor * 300}ms")
            self.assertEqual((code, output), (1, ""), errors)
            self.assertIn(reason, errors)
            return errors

        return self.at_some_pace(check)

    def check_unfenced(self, node):
        self.assertEqual(self.fence(node, command="unfence"), (0, UNFENCED.format(node), ""))

    def check_is_reported(self, command):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            ready, _, _ = select.select([process.stderr], [], [], support.WAIT_SECONDS)
            line = process.stderr.readline() if ready else ""
            os.killpg(process.pid, signal.SIGKILL)
        self.assertRegex(line, rf"{self.path('lost')}: cannot connect: No such file.*; trying again for \d+ s")

    def nodes(self):
        """Name of a node -> what the statistics say of it."""
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual(code, 0, errors)
        return {node["name"]: node for node in json.loads(output)["nodes"]}

    def counters(self):
        return json.loads(self.run_gmblock("stats", "--json", self.control)[1])["counters"]

    def listed(self):
        code, output, errors = self.fence("--list", "--json")
        self.assertEqual(code, 0, errors)
        return {node["node"]: (node["fenced"], node["ended"]) for node in json.loads(output)}

    def kill_new(self, output):
        code, document, _ = self.run_gmblock("stats", "--json", self.control)
        if code == 0:
            os.kill(json.loads(document)["pid"], 9)

    def check_refused_client(self, uri, source=A):
        """A new connection of that address: every option is refused, and EXPORT_NAME closes."""
        with nbdmini.Client(uri, source) as client:
            client.hello()
            for option in (nbdmini.OPT_LIST, nbdmini.OPT_GO, nbdmini.OPT_INFO):
                client.send_option(option, b"\0\0\0\4disk\0\0" if option != nbdmini.OPT_LIST else b"")
                with self.assertRaises(nbdmini.OptionRefused) as refused:
                    client.option_replies(option)
                self.assertEqual(refused.exception.code, ERR_POLICY)
                self.assertIn("fenced: this node may not use the server", str(refused.exception))
            client.send_option(nbdmini.OPT_EXPORT_NAME, b"disk")
            self.assertTrue(client.at_end())

    def open(self, uri, source=A):
        client = nbdmini.open_export(uri, b"disk", source=source)
        self.addCleanup(client.close)
        return client


class Load(Fencing):
    def hammer(self, uri, source, stop, counts):
        """Writes, and connects again, until told otherwise."""
        while not stop.is_set():
            with contextlib.suppress(OSError, nbdmini.OptionRefused):
                with nbdmini.Client(uri, source) as client:
                    client.hello()
                    client.go(b"disk")
                    while not stop.is_set():
                        client.write(0, bytes(BLOCK))
                        counts[source] += 1

    def test_nothing_follows_the_answer(self):
        """NBD and gmb, several connections and reactors, two exports."""
        gmb = f"gmb+unix:///?socket={self.path('gmb')}"
        file = self.config(("disk", "memory:16M", ", delay: [ 'any:1ms' ]"), ("other", "memory:16M", ""))
        server = self.serve(file, "--threads", "2", listen=("nbd://127.0.0.1:0", gmb), uri_count=2)
        uri = server.uris[0]
        stop = threading.Event()
        counts = {A: 0, B: 0}
        threads = [threading.Thread(target=self.hammer, args=(uri, source, stop, counts))
                   for source in (A, B) for _ in range(3)]
        benches = [subprocess.Popen([support.program(), "bench", "--rw", "randwrite", "--force", "--depth", "8",
                                     "--seconds", "600", f"gmb+unix:///{name}?socket={self.path('gmb')}"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for name in ("disk", "other")]
        for thread in threads:
            thread.start()
        try:
            self.wait_for(lambda: counts[A] > 20 and counts[B] > 20 and self.nodes()["a"]["operations_completed"] > 200)
            for _ in range(5):
                self.check_fenced("a")
                before = self.nodes()
                self.assertEqual((before["a"]["fenced"], before["a"]["ended"]), (True, True))
                done = counts[B]
                for _ in range(5):
                    self.check_refused_client(uri)
                self.wait_for(lambda: counts[B] > done + 20)
                after = self.nodes()
                self.assertEqual(after["a"]["operations_completed"], before["a"]["operations_completed"])
                self.assertGreater(after["b"]["operations_completed"], before["b"]["operations_completed"])
                self.check_unfenced("a")
                self.wait_for(lambda: self.nodes()["a"]["operations_completed"] > after["a"]["operations_completed"] + 20)
        finally:
            stop.set()
            for bench in benches:
                bench.kill()
                bench.communicate()
            for thread in threads:
                thread.join()

    def test_idle_connections_end(self):
        server = self.serve(self.config(("disk", "memory:16M", "")))
        idle, other = self.open(server.uri), self.open(server.uri, B)
        self.check_fenced("a")
        self.assertTrue(idle.at_end())
        other.write(0, bytes(BLOCK))

    def test_an_operation_in_a_store_is_waited_for(self):
        """Its connection is open, or has gone long ago."""
        def check(factor):
            for leaves in (False, True):
                disk = self.make_file(f"disk{factor}{leaves}", bytes(2 * BLOCK))
                server = self.serve(self.config(("disk", disk, f", delay: [ 'write:{2 * factor}s' ]")))
                client = self.open(server.uri)
                client.send_request(nbdmini.CMD_WRITE, 1, BLOCK, BLOCK, b"late" * (BLOCK // 4))
                client.send_request(nbdmini.CMD_FLUSH, 2)
                self.assertEqual(client.reply(), (2, 0))  # so the write is in the store
                if leaves:
                    client.close()
                code, output, errors = self.fence("a", "--timeout", f"{400 * factor}ms")
                try:
                    self.assertEqual((code, output), (1, ""), errors)
                    self.assertIn(f'not fenced at {self.control}: the node still has 1 connection with 1 request in '
                                  f'flight, such as {A}:', errors)
                    self.assertIn('at export "disk"', errors)
                    self.assertEqual(self.listed()["a"], (True, False))
                    code, output, errors = self.fence("--list")
                    self.assertIn("but its operations may not have ended: the node still has 1 connection", output)
                    self.check_refused_client(server.uri)
                    code, _, errors = self.run_gmblock("upgrade", self.control)
                    self.assertEqual(code, 1)
                    self.assertRegex(errors, "node 'a' is being fenced|requests in flight did not complete")
                    self.check_fenced("a", "--timeout", "60s")
                    with open(disk, "rb") as file:
                        self.assertEqual(file.read()[BLOCK:], b"late" * (BLOCK // 4))
                    self.assertEqual(self.listed()["a"], (True, True))
                finally:
                    self.kill_new(None)  # if the machine was too busy, the upgrade has succeeded
                    server.kill()
                    shutil.rmtree(self.path("state"))
                    os.mkdir(self.path("state"))

        self.at_some_pace(check)

    def test_a_reload_does_not_hide_an_operation(self):
        """The node loses the rule by which its connection was accepted, while a write is in the store."""
        def check(factor):
            disk = self.make_file(f"disk{factor}", bytes(2 * BLOCK))
            file = self.config(("disk", disk, f", delay: [ 'write:{4 * factor}s' ]"))
            server = self.serve(file)
            client = self.open(server.uri)
            client.send_request(nbdmini.CMD_WRITE, 1, BLOCK, BLOCK, b"late" * (BLOCK // 4))
            client.send_request(nbdmini.CMD_FLUSH, 2)
            self.assertEqual(client.reply(), (2, 0))  # so the write is in the store
            with open(file, encoding="utf-8") as old:
                content = old.read()
            self.make_file("conf", content.replace("address: 127.0.0.2", "address: 127.0.0.9"))
            try:
                code, _, errors = self.run_gmblock("reload", "--server", self.control)
                self.assertEqual(code, 0, errors)
                code, _, errors = self.fence("a", "--timeout", f"{200 * factor}ms")
                self.assertEqual(code, 1, "the write is still in the store")
                self.assertIn("the node still has 1 connection", errors)
                self.check_fenced("a", "--timeout", "60s")
                with open(disk, "rb") as written:
                    self.assertEqual(written.read()[BLOCK:], b"late" * (BLOCK // 4))
            finally:
                server.kill()
                shutil.rmtree(self.path("state"))
                os.mkdir(self.path("state"))

        self.at_some_pace(check)

    def test_operations_of_a_killed_server_are_waited_for(self):
        disk = self.make_file("disk", bytes(BLOCK))
        operations = os.open(disk, os.O_RDWR)  # what is left of a killed server: the lock on its descriptor
        support.ask_writer_mark(operations, support.F_OFD_SETLK, fcntl.F_RDLCK)
        server = self.serve(self.config(("disk", disk, ""), ("other", "memory:1M", "")), uri_count=2)
        self.check_in_vain('operations of a killed server on the disks of 1 export are still in progress, such as "disk"',
                           "a", "--server", self.control)
        os.close(operations)
        self.check_fenced("a")
        self.open(server.uri, B).write(0, bytes(512))


class Push(Fencing):
    def test_jobs_end(self):
        """A job belongs to who asked for it, at its source and at its destination."""
        places = {}
        for name in ("source", "target"):
            os.mkdir(self.path(name))
            disk = self.make_file(f"{name}.img", os.urandom(8 << 20))
            places[name] = self.start("--config", self.config(("disk", disk, "")), "--state-folder", self.path(name),
                                      "--control", self.path(name + ".control"), "--listen",
                                      f"push+unix:///?socket={self.path(name + '.socket')}").uri
        for name in places:
            self.control = self.path(name + ".control")
            push = subprocess.Popen([support.program(), "push", "--rate", "1M", places["source"], places["target"]],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    text=True)
            self.addCleanup(push.kill)
            self.wait_for(lambda: self.nodes()["a"]["operations_completed"] > 0)
            self.check_fenced("a")
            before = self.nodes()["a"]["operations_completed"]
            _, errors = push.communicate()
            self.assertEqual(push.returncode, 1, errors)
            code, _, errors = self.run_gmblock("push", places["source"], places["target"])
            self.assertEqual(code, 1)
            self.assertIn("fenced: this node may not use the server until it is unfenced", errors)
            self.assertEqual(self.nodes()["a"]["operations_completed"], before)
            self.check_unfenced("a")

    def test_a_destination_that_has_not_answered(self):
        """A push to an NBD server whose requester has gone, and a write there that has not been answered."""
        written, answers = threading.Event(), threading.Event()

        def script(dialogue):
            dialogue.greet()
            while dialogue.option()[0] != fake_server.GO:
                dialogue.reply(dialogue.asked, fake_server.UNSUP)
            dialogue.info_export(1 << 20, 5)  # writable, with FLUSH
            dialogue.ack()
            while True:
                _, _, command, cookie, _, length = struct.unpack(">IHHQQI", dialogue.receive(28))
                if command == nbdmini.CMD_WRITE:
                    dialogue.receive(length)
                    written.set()
                    answers.wait()
                if command == fake_server.DISC:
                    return
                dialogue.send(struct.pack(">IIQ", 0x67446698, 0, cookie))

        disk = self.make_file("disk", os.urandom(1 << 20))
        with fake_server.FakeServer(script) as target, contextlib.ExitStack() as stack:
            stack.callback(answers.set)  # so that the script ends
            source = self.serve(self.config(("disk", disk, "")), "--push-to", f"nbd:{target.path}",
                                listen=(f"push+unix:///?socket={self.path('push')}",)).uri
            push = subprocess.Popen([support.program(), "push", source, target.uri()], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(push.kill)
            self.assertTrue(written.wait(20), target.failures)
            push.kill()
            push.wait()

            def is_over():
                _, output, _ = self.run_gmblock("push", "--json", "--list", source)
                return json.loads(output)[0]["state"] == "failed"

            self.wait_for(is_over)
            # A new process would not know of the write.
            code, _, errors = self.run_gmblock("upgrade", self.control)
            self.assertEqual(code, 1)
            self.assertIn("requests in flight did not complete", errors)
            self.check_in_vain("the node still has 1 connection", "a", "--server", self.control)
            answers.set()
            self.check_fenced("a", "--timeout", "60s")
        self.assertEqual(target.failures, [])


class Lasting(Fencing):
    def test_it_outlasts_the_server_and_the_configuration(self):
        text = self.config(("disk", "memory:16M", ""))
        server = self.serve(text)
        self.check_fenced("a")
        server.signal(9)
        server.process.wait()
        server = self.serve(text)
        self.check_refused_client(server.uri)
        self.check_fenced("a") # and the answer comes again
        code, _, errors = self.run_gmblock("reload", "--server", self.control)
        self.assertEqual(code, 0, errors)
        self.check_refused_client(server.uri)
        # an entry of the node that comes later is fenced, too, and what it has lost stays fenced
        with open(text, encoding="utf-8") as file:
            content = file.read()
        self.make_file("conf", content.replace("name: a, address: 127.0.0.2", "name: a, address: 127.0.0.9"))
        code, _, errors = self.run_gmblock("reload", "--server", self.control)
        self.assertEqual(code, 0, errors)
        self.check_fenced("a")
        for source in (A, "127.0.0.9"):
            self.check_refused_client(server.uri, source)
        code, output, errors = self.run_gmblock("upgrade", self.control)
        self.assertEqual(code, 0, errors)
        self.addCleanup(self.kill_new, output)
        for source in (A, "127.0.0.9"):
            self.check_refused_client(server.uri, source)
        self.assertEqual(self.listed(), {"a": (True, True), "b": (False, False)})
        self.check_fenced("b")
        self.check_refused_client(server.uri, B)
        self.check_unfenced("a")
        self.open(server.uri, "127.0.0.9").write(0, bytes(512))
        self.check_unfenced("b")

    def test_an_upgrade_keeps_the_state_folder(self):
        """A new process with another folder, or without nodes, would not know the fenced nodes."""
        text = self.config(("disk", "memory:16M", ""))
        with open(text, encoding="utf-8") as file:
            content = file.read()
        plain = "access: [rw]\nexports: [{ name: disk, path: 'memory:16M' }]\n"
        other = self.path("other")
        os.mkdir(other)
        here, there = (f"state-folder: {folder}\n" for folder in (self.path("state"), other))
        self.make_file("conf", here + content)
        server = self.start("--config", text, "--control", self.control, "--listen", "nbd://127.0.0.1:0")
        self.check_fenced("a")
        for changed, fragment in ((there + content, "the running server has another state folder"),
                                  (there + plain, "the running server has another state folder")):
            self.make_file("conf", changed)
            code, _, errors = self.run_gmblock("upgrade", self.control)
            self.assertEqual(code, 1)
            self.assertIn(fragment, errors)
            self.check_refused_client(server.uri)
            self.check_fenced("a")
        os.symlink(self.path("state"), self.path("same"))
        self.make_file("conf", f"state-folder: {self.path('same')}\n" + content)
        code, output, errors = self.run_gmblock("upgrade", self.control)
        self.assertEqual(code, 0, errors)
        self.addCleanup(self.kill_new, output)
        self.check_refused_client(server.uri)
        self.check_fenced("a")

    def test_a_node_without_entries_stays_fenced(self):
        text = self.config(("disk", "memory:16M", ""))
        server = self.serve(text)
        self.check_fenced("a")
        server.stop()
        with open(text, encoding="utf-8") as file:
            lines = [line for line in file if "name: a" not in line]
        self.make_file("conf", "".join(lines).replace("{ node: a, rights: rw }", "rw"))
        server = self.serve(text)
        self.check_refused_client(server.uri)
        self.assertEqual(self.listed(), {"a": (True, True), "b": (False, False)})
        self.check_unfenced("a")
        self.open(server.uri).read(0, 512)
        code, _, errors = self.fence("a")
        self.assertEqual(code, 1)
        self.assertIn("the configuration of the server has no node 'a'", errors)

    def test_a_configuration_without_nodes_keeps_the_fences(self):
        text = self.config(("disk", "memory:16M", ""))
        server = self.serve(text)
        self.check_fenced("a")
        plain = "access: [rw]\nexports: [{ name: disk, path: 'memory:16M' }]\n"
        for change in ("reload", "upgrade", "restart"):
            self.make_file("conf", plain)
            if change == "restart":
                self.kill_new(None)
                server.process.wait()
                self.wait_for(self.is_unlocked)
                server = self.serve(text)
            else:
                arguments = (self.control,) if change == "upgrade" else ("--server", self.control)
                code, _, errors = self.run_gmblock(change, *arguments)
                self.assertEqual(code, 0, errors)
                self.addCleanup(self.kill_new, None)
            self.check_refused_client(server.uri)
            self.assertEqual(self.listed(), {"a": (True, True)})
            self.check_fenced("a")
        damaged = self.path("state/fenced")
        with open(damaged, "rb") as file:
            good = file.read()
        server.stop()
        self.make_file("state/fenced", good[:-1])
        self.check_refused(["serve", "--config", text, "--state-folder", self.path("state"), "--control", "none"], 1,
                           "the file is damaged")
        self.make_file("state/fenced", good)
        server = self.serve(text)
        self.check_unfenced("a")
        self.open(server.uri).write(0, bytes(512))
        server.stop()
        self.serve(text)
        code, _, errors = self.fence("a")
        self.assertEqual(code, 1)
        self.assertIn("the server has no nodes", errors)

    def is_unlocked(self):
        folder = os.open(self.path("state"), os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(folder)
        return True

    def test_a_node_with_many_entries(self):
        """What can be written can be read again."""
        text = self.config(("disk", "memory:16M", ""))
        with open(text, encoding="utf-8") as file:
            content = file.read()
        many = "".join(f"  - {{ name: a, address: 127.1.{i // 250}.{i % 250} }}\n" for i in range(1000))
        self.make_file("conf", content.replace("nodes:\n", "nodes:\n" + many))
        server = self.serve(text)
        self.check_fenced("a")
        server.signal(9)
        server.process.wait()
        server = self.serve(text)
        for source in (A, "127.1.3.249"):
            self.check_refused_client(server.uri, source)

    def test_a_damaged_list_stops_the_start(self):
        text = self.config(("disk", "memory:16M", ""))
        server = self.serve(text)
        self.check_fenced("a")
        self.check_fenced("b")
        server.stop()
        path = self.path("state/fenced")
        with open(path, "rb") as file:
            good = file.read()
        arguments = ["serve", "--config", text, "--state-folder", self.path("state"), "--listen", "nbd://127.0.0.1:0"]
        damaged = [good[:length] for length in range(0, len(good), 7)]
        damaged += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1:] for at in range(0, len(good), 11)]
        damaged += [good + b"\n", good + good, b"\xff" * 100, good.replace(b"node b", b"node a")]
        for content in damaged:
            self.make_file("state/fenced", content)
            self.check_refused(arguments, 1, f"{path}: line ", "the file is damaged")
        os.unlink(path)
        for make, fragment in ((lambda: os.mkdir(path), "the file is damaged"),
                               (lambda: os.mkfifo(path), "the file is damaged"),
                               (lambda: os.symlink(self.path("elsewhere"), path), "symbolic links")):
            make()
            self.check_refused(arguments, 1, f"{path}: ", fragment)
            (os.rmdir if os.path.isdir(path) else os.unlink)(path)
        self.make_file("state/fenced", good)
        self.check_refused_client(self.serve(text).uri)

    def test_a_list_that_cannot_be_written_fences_nobody(self):
        file = self.config(("disk", "memory:16M", ""))
        server = self.serve(file)
        client = self.open(server.uri)
        os.rename(self.path("state"), self.path("moved"))
        self.check_fenced("b") # the folder was opened at the start
        shutil.rmtree(self.path("moved"))
        for command, node in (("fence", "a"), ("unfence", "b")):
            code, _, errors = self.fence(node, command=command)
            self.assertEqual(code, 1)
            self.assertIn(f"cannot write {self.path('state')}/fenced: No such file or directory", errors)
        client.write(0, bytes(512))
        self.check_refused_client(server.uri, B)
        # a restarted server would not know additional rules of the node, which are not in the file
        with open(file, encoding="utf-8") as old:
            content = old.read()
        self.make_file("conf", content.replace("nodes:\n", "nodes:\n  - { name: b, address: 127.0.0.9 }\n"))
        code, _, errors = self.run_gmblock("reload", "--server", self.control)
        self.assertEqual(code, 0, errors)
        self.check_in_vain("cannot be written", "b", "--server", self.control)

    def test_a_list_that_cannot_be_written_is_not_tried_all_the_time(self):
        """While operations of a fenced node are in a disk, the server looks at them often."""
        server = self.serve(self.config(("disk", "memory:1M", ", delay: [ 'write:600s' ]")))
        client = self.open(server.uri)
        client.send_request(nbdmini.CMD_WRITE, 1, 0, 512, bytes(512))
        client.send_request(nbdmini.CMD_FLUSH, 2)
        self.assertEqual(client.reply(), (2, 0))  # so the write is in the store
        self.assertEqual(self.fence("a", "--timeout", "300ms")[0], 1)
        os.rename(self.path("state"), self.path("moved"))
        shutil.rmtree(self.path("moved"))
        for _ in range(5):
            code, _, errors = self.fence("b")
            self.assertEqual(code, 1)
            self.assertIn("cannot write", errors)
        server.signal(signal.SIGKILL)
        self.assertLess(server.wait()[1].count("cannot write"), 50)

    def test_a_list_that_could_not_be_written_is_written_later(self):
        """Although no operation is left that the server would wait for."""
        server = self.serve(self.config(("disk", "memory:1M", "")))
        self.assertEqual(self.fence("a")[0], 0)
        record = os.path.join(self.path("state"), "fenced")
        os.mkdir(record + ".new")
        self.assertEqual(self.fence("b")[0], 1)
        os.unlink(record)
        os.rmdir(record + ".new")
        self.wait_for(lambda: os.path.exists(record))
        self.assertEqual(server.stop()[0], 0)

    @contextlib.contextmanager
    def assert_stays_locked(self, folder):
        ended, taken = threading.Event(), []

        def try_to_lock():
            fd = os.open(folder, os.O_RDONLY)
            while not ended.is_set() and not taken:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken.append(fd)
            os.close(fd)

        thread = threading.Thread(target=try_to_lock)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self.assertEqual(taken, [])

    def test_one_folder_has_one_server(self):
        text = self.config(("disk", "memory:16M", ""))
        self.serve(text)
        for upgraded in (False, True):
            if upgraded:
                with self.assert_stays_locked(self.path("state")):
                    code, _, errors = self.run_gmblock("upgrade", self.control)
                self.assertEqual(code, 0, errors)
                self.addCleanup(self.kill_new, None)
            self.check_refused(["serve", "--config", text, "--state-folder", self.path("state"), "--control", "none",
                                "--listen", "nbd://127.0.0.1:0"], 1,
                               f"another server uses the state folder {self.path('state')}; give each server its own")
        self.check_refused(["serve", "--config", text, "--state-folder", self.path("none"), "--control", "none"], 1,
                           f"cannot use the state folder {self.path('none')}: No such file")

    def test_a_uri_of_several_servers(self):
        self.check_refused(["fence", "a", "--server", "nbds://storage-1,storage-2"], 2,
                           "'nbds://storage-1,storage-2' names several servers; give each server its own --server")

    def test_servers_without_nodes(self):
        text = self.make_file("plain", "exports: [{ name: disk, path: 'memory:1M' }]\n")
        server = self.start("--config", text, "--control", self.control, "--listen", "nbd://127.0.0.1:0")
        code, _, errors = self.fence("a")
        self.assertEqual(code, 1)
        self.assertIn("the server has no nodes", errors)
        self.assertEqual(self.fence("--list"), (0, "", ""))
        self.make_file("plain", "exports: [{ name: disk, path: 'memory:1M' }]\nnodes: [{ name: a, uid: 1 }]\n")
        code, _, errors = self.run_gmblock("reload", "--server", self.control)
        self.assertEqual(code, 1)
        self.assertIn("plain:2: the server was started without nodes", errors)
        nbdmini.open_export(server.uri, b"disk").close()


class Commands(Fencing):
    def test_one_line_in_the_log(self):
        """A node can have many connections."""
        server = self.serve(self.config(("disk", "memory:16M", "")), "--threads", "1")
        clients = [self.open(server.uri) for _ in range(9)]
        self.check_fenced("a")
        for client in clients:
            self.assertTrue(client.at_end())
        self.assertEqual(self.counters()["connections_failed"], 9)
        errors = server.stop()[1]
        self.assertEqual(errors.count("connection ended: node 'a' is fenced"), 1, errors)

    def test_several_servers(self):
        """One that does not answer means not fenced, whatever the others say."""
        server = self.serve(self.config(("disk", "memory:16M", "")))
        lost = self.path("lost")
        both = ["a", "--server", lost, "--server", self.control]
        errors = self.check_in_vain(f"not fenced at {lost} (but at others): cannot connect: No such file", *both)
        self.assertIn("; no server has this control socket", errors)
        self.assertEqual(errors.count("not fenced at"), 1)
        self.check_refused_client(server.uri)
        self.check_in_vain(f"cannot unfence the node at {lost} (but at others): cannot connect: No such file", *both,
                           command="unfence")
        # A server that cannot be asked might have fenced the node, or not.
        code, output, errors = self.run_gmblock("fence", "a", "--check", "--server", lost, "--server", self.control)
        self.assertEqual((code, output), (1, f"a: not fenced at {self.control}\n"))
        self.assertIn(f"fence: cannot ask the server at {lost}: cannot connect: No such file", errors)
        self.assertNotIn("not fenced", errors)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(lost)
            silent.listen()
            code, _, errors = self.run_gmblock("fence", "a", "--server", lost, "--timeout", "300ms")
            self.assertEqual(code, 1)
            self.assertIn("the server sent no response", errors)

    def test_a_dead_server_is_reported_before_the_time_limit(self):
        """A user need not wait for the time limit to learn that a server is dead."""
        self.check_is_reported([support.program(), "fence", "a", "--server", self.path("lost"), "--timeout", "1h"])

    def over_nbd(self, uri, *arguments, command="fence"):
        code, output, errors = self.run_gmblock(command, *arguments, "--server", uri)
        done = (FENCED if command == "fence" else UNFENCED).format(arguments[0])
        self.assertEqual(output, {0: done, 3: f"{arguments[0]}: not fenced at {uri}\n"}.get(code, ""))
        return code, errors

    def test_over_nbd(self):
        """A rule with fence: yes, for peers on this machine, on a Unix socket or with TLS."""
        text = CONF.replace("access: [", "access: [{{ uid: {uid}, fence: yes, rights: none }}, "
                            "{{ psk: manager, rights: none, fence: yes }}, ")
        text = text.replace("  - {{ name: a, uid: {uid} }}\n", "").format(
            uid=os.geteuid(), exports="  - { name: disk, path: 'memory:1M' }\n")
        keys = self.make_file("keys", f"manager:{'ab' * 32}\nsomebody:{'cd' * 32}\n")
        os.chmod(keys, 0o600)
        server = self.serve(self.make_file("conf", text), "--tls", "on", "--tls-psk", keys,
                            listen=("nbd://127.0.0.1:0", self.socket_uri()))
        tcp, local = server.uris
        self.assertEqual(self.over_nbd(local, "a", "--check")[0], 3)
        self.assertEqual(self.over_nbd(local, "a"), (0, ""))
        self.assertEqual(self.over_nbd(local, "a", "--check"), (0, ""))
        self.check_refused_client(tcp)
        self.assertEqual(self.over_nbd(local, "a", command="unfence"), (0, ""))
        self.assertEqual(self.run_gmblock("unfence", "a", "--server", local), (0, "a: was not fenced\n", ""))
        self.open(tcp).write(0, bytes(512))
        code, errors = self.over_nbd(local, "nobody")
        self.assertEqual(code, 1)
        self.assertIn("the configuration of the server has no node 'nobody'", errors)
        for user, code in (("manager", 0), ("somebody", 1)):
            with_tls = tcp.replace("nbd://", f"nbds://{user}@") + f"?tls-psk-file={keys}"
            found, errors = self.over_nbd(with_tls, "b")
            self.assertEqual(found, code, errors)
            self.assertEqual(code == 1, "you may not fence nodes" in errors)
        code, errors = self.over_nbd(tcp, "a") # on this machine, but no rule with fence: yes applies
        self.assertEqual(code, 1)
        self.assertIn("you may not fence nodes; the server needs an access rule with fence: yes", errors)
        self.assertEqual(self.listed(), {"a": (False, False), "b": (True, True)})
        self.assertRegex(self.run_gmblock("stats", self.control)[1],
                         r'Node "a"\n(  .*\n)*Node "b"\n(  .*\n)*  The node is fenced: yes\n')
        # and the option itself
        with nbdmini.Client(local) as client:
            client.hello()
            for data, code in ((b"", 3), (b"\0\0\0\1", 3), (b"\0\0\0\3a", 3), (b"\0\0\0\1a\0", 3),
                               (b"\0\0\0\1" + 64 * b"a", 3), (b"\0\0\0\0a", 6), (b"\0\0\0\1z", 3)):
                client.send_option(0x676d6246, data)
                with self.assertRaises(nbdmini.OptionRefused) as refused:
                    client.option_replies(0x676d6246)
                self.assertEqual(refused.exception.code, 1 << 31 | code, data)
            client.send_option(0x676d6246, b"\0\0\0\0b")
            self.assertEqual(client.option_replies(0x676d6246), [])
        server.stop()
        code, errors = self.over_nbd(tcp, "a", "--timeout", "1s")
        self.assertEqual(code, 1)
        self.assertIn(f"fence: not fenced at {tcp}: cannot connect: ", errors)

    def test_nodes_that_fence_each_other(self):
        """Each node asks with its own credentials, as gmblock-cluster(7) recommends: one of them wins."""
        text = ("nodes: [{ name: a, psk: a }, { name: b, psk: b }]\n"
                "access: [{ node: a, rights: none, fence: yes }, { node: b, rights: none, fence: yes }]\n"
                "exports: [{ name: disk, path: 'memory:1M', access: [{ node: a, rights: rw }, { node: b, rights: rw }] }]\n")
        keys = self.make_file("keys", f"a:{'ab' * 32}\nb:{'cd' * 32}\n")
        os.chmod(keys, 0o600)
        server = self.serve(self.make_file("conf", text), "--tls", "on", "--tls-psk", keys)
        uri = {node: server.uri.replace("nbd://", f"nbds://{node}@") + f"?tls-psk-file={keys}" for node in ("a", "b")}
        blocked = self.path("state/fenced.new")
        os.mkfifo(blocked)  # the server waits until somebody reads
        self.check_in_vain("the list of fenced nodes is being written", "b", "--server", uri["a"])
        self.check_in_vain("another request is fencing the node that asks", "a", "--server", uri["b"])
        with open(os.open(blocked, os.O_RDONLY | os.O_NONBLOCK), "rb"):
            os.unlink(blocked)
            self.wait_for(lambda: "cannot write" in self.over_nbd(uri["a"], "b")[1])
        self.assertEqual(self.over_nbd(uri["a"], "b"), (0, ""))
        self.check_in_vain("fenced: this node may not use the server", "a", "--server", uri["b"])
        self.assertEqual(self.listed(), {"a": (False, False), "b": (True, True)})

    def test_where_the_right_may_be(self):
        export = "exports: [{ name: disk, path: 'memory:1M', access: [{ rights: rw, fence: yes }] }]\n"
        self.check_refused(["serve", "--check", self.make_file("conf", export)], 2,
                           "conf:1: fence: yes is for all exports")
        self.check_refused(["serve", "memory:1M", "--access", ": rights=rw fence=yes"], 2, "fence: yes is for all exports")
        self.check_refused(["fence", "a", "--server", "gmb://127.0.0.1"], 1, "over NBD only, not over gmb")
        for host in ("192.0.2.1", "[2001:db8::1]", "storage.example"):
            self.check_refused(["fence", "a", "--server", f"nbd://{host}"], 1, "only with TLS: use nbds://")
        errors = self.check_refused(["fence", "--list", "--server", "nbds://storage.example"], 1)
        # The second, if the server of another test ends meanwhile.
        self.assertRegex(errors, "no server of this user on this machine serves nbds://storage.example, and --list needs|"
                                 "no server matches, but not all servers could be queried")

    def test_usage(self):
        for arguments, fragment in ((["fence"], "give"), (["fence", "a", "b"], "only one"),
                                    (["fence", "a", "--json"], "--json is only for --list"),
                                    (["fence", "--list", "a"], "--list takes no NODE"), (["unfence"], "give"),
                                    (["unfence", "--list"], "--list")):
            self.check_refused(arguments, 2, fragment)


if __name__ == "__main__":
    support.main()
