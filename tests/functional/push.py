#!/usr/bin/python3
"""gmblock push: disks of one server to another, over shared memory and over the network; what is refused; and
what is left when one of the three is killed.

    push.py GMBLOCK DRIVER
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

import push_tool
import support
from push_tool import MIB, digest

DRIVER = ""


class Push(push_tool.Case):
    def check_whole(self, network, keys):
        """All of it, over other data, with holes, zeroes, and an end within a piece and a block."""
        size = 24 * MIB + 5 * 512
        source = self.image("source", size, (0, 3 * MIB), (5 * MIB + 4096, 4 * MIB), (20 * MIB, size - 20 * MIB))
        target = self.image("target", size, (0, size))
        first = self.serve(f"disk={source}{keys}", network=network,
                           arguments=("--push-to", "127.0.0.1,port=any"))
        second = self.serve(f"disk={target}{keys}", network=network)
        job = self.push(first.push("disk"), second.push("disk"), "--verify=read")
        self.assertEqual(digest(source), digest(target))
        self.assertEqual((job["state"], job["bytes_done"], job["bytes_durable"]), ("done", size, size))
        self.assertGreaterEqual(job["bytes_zeroed"], 11 * MIB)
        self.assertLess(os.stat(target).st_blocks * 512, 16 * MIB)  # holes stay holes
        # Both ends have the same digest, and the second time nothing is moved.
        listed = [self.jobs(server.push("disk"))[-1] for server in (first, second)]
        self.assertEqual([entry["role"] for entry in listed], ["source", "destination"])
        self.assertEqual({entry["digest"] for entry in listed}, {job["digest"]})
        again = self.push(first.push("disk"), second.push("disk"), "--resume")
        self.assertEqual(again["bytes_skipped"] + again["bytes_zeroed"], size)
        self.assertEqual(again["digest"], job["digest"])
        self.assertEqual(self.counters(second)["pushes_done"], 2)
        for server in (first, second):
            code, errors = server.stop()
            self.assertEqual((code, errors), (0, ""))

    def test_shared_memory(self):
        self.check_whole(False, "")

    def test_shared_memory_direct(self):
        self.check_whole(False, ",mode=direct")

    def test_network(self):
        self.check_whole(True, "")

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_shared_memory_of_another_user(self):
        """Helper threads copy the pieces, at the end that would wait for holes of the other one."""
        os.chmod(self.folder, 0o777)
        size = 12 * MIB + 512
        for users in (("--user", "nobody"), ()), ((), ("--user", "nobody")):
            source = self.image("source", size, (0, 5 * MIB), (9 * MIB, size - 9 * MIB))
            target = self.image("target", size, (0, size))
            for path in source, target:
                os.chmod(path, 0o666)
            first, second = (self.serve("disk=" + path, arguments=user)
                             for path, user in zip((source, target), users))
            os.chmod(self.path(f"s{self.count}"), 0o777)
            self.push(first.push("disk"), second.push("disk"), "--verify=read")
            self.assertEqual(digest(source), digest(target))
            for server in first, second:
                self.assertEqual(server.stop()[0], 0)

    def faults_of_holes(self, server, *arguments):
        """The page faults of the threads that serve clients, while pieces are put into holes of another user."""
        try:
            stranger = subprocess.Popen([DRIVER, server.push("disk"), *arguments, "holes"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, user=65534, group=65534, extra_groups=[])
        except PermissionError:
            self.skipTest("others may not run the program")
        self.addCleanup(stranger.communicate)
        self.addCleanup(stranger.kill)
        counts = []
        for place in "lent", "written":
            self.assertEqual(stranger.stdout.readline(), place + "\n")
            counts.append(server.faults_of_reactors())
            stranger.stdin.write("\n")
            stranger.stdin.flush()
        self.assertEqual(stranger.wait(), 0)
        self.assertEqual(server.stop()[0], 0)
        return counts[1] - counts[0]

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_holes_that_a_stranger_makes(self):
        """Who touches a page shows in page faults: not the threads that serve clients."""
        os.chmod(self.folder, 0o755)
        server = self.serve("disk=" + self.image("target", 8 * MIB, (0, 8 * MIB)), arguments=("--access", "rights=rw"))
        os.chmod(self.path("s1"), 0o777)
        self.assertLess(self.faults_of_holes(server), 8 * MIB // 4096 // 2)

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_holes_of_a_destination(self):
        """The same at the source, whose export is in memory that it has touched before."""
        with open(support.GMBLOCK, "rb") as program:
            if b"__tsan_init" in program.read():
                self.skipTest("the shadow memory of ThreadSanitizer has page faults of its own")
        os.chmod(self.folder, 0o777)
        server = self.serve("disk=memory:8M", "image=" + self.image("image", 8 * MIB, (0, 8 * MIB)),
                            arguments=("--access", "rights=rw", "--push-to", self.path("target")))
        os.chmod(self.path("s1"), 0o777)
        self.push(server.push("image"), server.push("disk"))
        self.assertLess(self.faults_of_holes(server, self.path("target")), 7 * MIB // 4096 // 2)

    def test_what_a_stranger_says_is_shown_escaped(self):
        """In names, and in sentences of its own."""
        path = self.path("stranger")
        server = subprocess.Popen([DRIVER, "says", path, "said " + support.EVIL], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        self.assertEqual(server.stdout.readline(), "listens\n")
        uri = f"push+unix:///a?socket={path}"
        for arguments, status in (["--list", uri], 0), (["--list", "--json", uri], 0), (["--cancel", "1", uri], 1), (
                [uri, self.serve("disk=memory:1M").push("disk")], 1):
            with self.subTest(arguments):
                code, output, errors = self.run_gmblock("push", *arguments)
                self.assertEqual(code, status, output + errors)
                self.assertIsNone(support.FORBIDDEN.search(output + errors), repr(output + errors))
                if "--json" in arguments:
                    job, = json.loads(output)
                    self.assertEqual({job[key] for key in ("export", "peer", "error")}, {"said " + support.EVIL})
                else:
                    self.assertIn(r"said \x1b", output + errors)

    @unittest.skipUnless(support.has_libfabric(), "no libfabric")
    def test_libfabric(self):
        self.check_whole("ofi-tcp", "")

    def test_within_a_server(self):
        size = 5 * MIB + 1
        source = self.image("source", size, (0, size))
        target = self.image("target", size, (0, size))
        server = self.serve(f"a={source}", f"b={target}")
        self.assertNotIn("Push", self.run_gmblock("stats", server.control)[1])
        self.push(server.push("a"), server.push("b"))
        self.assertEqual(digest(source), digest(target))
        self.assertIn("  Push tickets issued: 1\n  Pushes completed, as source or destination: 2\n",
                      self.run_gmblock("stats", server.control)[1])
        self.assertRegex(self.run_gmblock("stats", "--prometheus", server.control)[1], "(?s)" + ".*".join((
            r'\ngmblock_push_tickets_total\{result="made"\} 1\n', r'_total\{result="refused"\} 0\n',
            r'\ngmblock_pushes_total\{result="done"\} 2\n', r'_total\{result="failed"\} 0\n')))

    def test_a_snapshot(self):
        """From one flash store into another, while the disk is something else already."""
        disks = [self.path(name) for name in ("source", "target")]
        for disk in disks:
            self.assertEqual(self.run_gmblock("create", "--size=64M", "--segment=256K", "flash:" + disk)[0], 0)
        image = self.image("image", 24 * MIB, (MIB, 20 * MIB))
        size = json.loads(self.run_gmblock("check", "--json", disks[0])[1])["size"]
        first, second = (self.serve("disk=flash:" + disk) for disk in disks)
        plain = self.serve("image=" + image, f"zeroes=null:{size}", f"copy={self.image('copy', size)}")
        self.push(plain.push("image"), first.push("disk"))
        self.assertEqual(self.run_gmblock("snapshot", "create", "disk", "a", "--server", first.control)[0], 0)
        snapshot = first.push("disk").replace("/disk", "/disk@a")
        self.push(plain.push("zeroes"), first.push("disk"))
        self.push(snapshot, second.push("disk"), "--verify=read")
        self.push(second.push("disk"), plain.push("copy"))
        self.assertEqual(digest(self.path("copy"), 0, 24 * MIB), digest(image))
        for server in (first, second, plain):
            self.assertEqual(server.stop(), (0, ""))

    def test_a_part(self):
        source = self.image("source", 8 * MIB, (0, 8 * MIB))
        target = self.image("target", 8 * MIB, (0, 8 * MIB))
        before = digest(target, 0, 1000), digest(target, 1000 + 3 * MIB + 77)
        first, second = self.serve(f"disk={source}"), self.serve(f"disk={target}")
        self.push(first.push("disk"), second.push("disk"), "--range", f"4097+{3 * MIB + 77}",
                  "--to-offset", "1000")
        self.assertEqual(digest(target, 1000, 3 * MIB + 77), digest(source, 4097, 3 * MIB + 77))
        self.assertEqual((digest(target, 0, 1000), digest(target, 1000 + 3 * MIB + 77)), before)

    def test_rate(self):
        """The first pieces have to wait for their time, too."""
        size, rate = 4 * MIB, 8 * MIB
        first = self.serve(f"disk={self.image('source', size, (0, size))}")
        second = self.serve("disk=memory:4M")
        job = self.push(first.push("disk"), second.push("disk"), "--rate", str(rate))
        self.assertGreaterEqual(job["seconds"], size / rate - 0.001)  # it is cut to milliseconds

    def test_sentence(self):
        source = self.image("source", 2 * MIB, (0, MIB))
        first, second = self.serve(f"disk={source}"), self.serve("disk=memory:2M")
        code, output, errors = self.run_gmblock(
            "push", "--progress=on", "--verify", first.push("disk"), second.push("disk"))
        self.assertEqual(code, 0, errors)
        self.assertRegex(output, r"^pushed 2.0 MiB in .*, read back: 1.0 MiB transferred, 1.0 MiB of zeroes, "
                                 r"0 bytes already at the destination; digest [0-9a-f]{16}\n$")

    def test_refused(self):
        source = self.image("source", 4 * MIB, (0, 4 * MIB))
        first = self.serve(f"disk={source}", "other=memory:4M")
        second = self.serve("small=memory:1M", f"ro={source},readonly=yes", "disk=memory:8M")
        disk = first.push("disk")
        for target, *fragments in (
                (second.push("small"), 'export "small": the destination is too small: it has 1048576 bytes, '
                 "but the push ends at 4194304"),
                (second.push("ro"), "is served read-only"),
                (second.push("disk").replace("/disk", "/none"), 'export "none": no such export'),
                (disk, "the same"),
                ("nbd://127.0.0.1/x", "with --push-to nbd:PLACE"),
                (f"push+unix:///x?socket={self.path('none')}", "cannot connect")):
            errors = self.check_refused(["push", disk, target], 1, *fragments)
            self.assertNotRegex(errors, r"ends at \d+[a-z]")
        self.check_refused(["push", "--range", "4M+1", disk, second.push("disk")], 1, "past the end")
        for arguments in (["push", disk], ["push", "--range", "x", disk, disk],
                          ["push", "--list", "--cancel", "1", disk], ["push", "--status", "x", disk],
                          ["push", "--list"], ["push", "--verify=no", disk, disk]):
            self.check_refused(arguments, 2)
        self.check_refused(["push", "--verify=no", disk, disk], 2, "--verify: unknown value 'no'", "--verify=read")
        self.check_refused(["push", "--status", "1", disk], 1, "no job")
        self.check_refused(["push", "--cancel", "1", disk], 1, "job 0000000000000001: no job of yours with this number")
        # Wrong addresses are wrong usage, and nothing is connected: the other server is not there.
        gone = f"push+unix:///x?socket={self.path('none')}"
        for arguments in (["push", "nbd://127.0.0.1/x", gone], ["push", source, gone], ["push", gone, source],
                          ["push", gone, "gmb+unix:///x?socket=/none"], ["push", "--list", "nbd://127.0.0.1"],
                          ["push", "--cancel", "1", source]):
            self.check_refused(arguments, 2, "is not a push address", "gmblock copy", "Try 'gmblock push --help'")
        for wrong in ("push+unix:///", "push://127.0.0.1:99999/x", "nbd://127.0.0.1:99999/x", "http://x/y"):
            self.check_refused(["push", gone, wrong], 2, f"invalid URI '{wrong}': ")
        # Another part of the same export is no push onto itself.
        self.push(disk, disk, "--range", "0+1M", "--to-offset", "2M")
        self.assertEqual(digest(source, 0, MIB), digest(source, 2 * MIB, MIB))

    def test_the_log_of_a_refused_push(self):
        """Who never used an export does not leave it."""
        server = self.serve("disk=memory:1M", arguments=("--log-level", "info"))
        self.check_refused(["push", server.push("disk"), "nbd://127.0.0.1/x"], 1, "with --push-to nbd:PLACE")
        code, errors = server.stop()
        self.assertEqual((code, errors.count("uses export"), errors.count("has left export")), (0, 0, 0), errors)

    def test_one_disk_under_two_names(self):
        """In one server and in two, where the second name is a link to the file."""
        source = self.image("source", 4 * MIB, (0, 4 * MIB))
        link = self.path("link")
        os.link(source, link)
        before = digest(source)
        server = self.serve(f"disk={source},readonly", f"same={link}")
        other = self.serve(f"disk={source},readonly")
        for uri in (server.push("disk"), other.push("disk")):
            for arguments in ([], ["--range", "0+2M", "--to-offset", "1M"]):
                self.check_refused(["push", *arguments, uri, server.push("same")], 1,
                                   "the same disk under two names, and the ranges overlap")
        self.assertEqual(digest(source), before)
        self.push(other.push("disk"), server.push("same"), "--range", "0+1M", "--to-offset", "2M")
        self.assertEqual(digest(source, 0, MIB), digest(source, 2 * MIB, MIB))

    def test_several_hosts(self):
        """Each end is the first host that answers."""
        size = 2 * MIB
        source, target = (self.image(name, size, (0, size)) for name in ("source", "target"))
        first, second = (self.serve(f"disk={path}", network=True, arguments=("--push-to", "127.0.0.1,port=any"))
                         for path in (source, target))
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{deaf.getsockname()[1]}"
            uris = [server.push("disk").replace("//", f"//{dead},") for server in (first, second)]
            self.push(*uris)
            self.assertEqual(digest(source), digest(target))
            self.assertEqual([entry["role"] for entry in self.jobs(uris[1])], ["destination"])
            self.check_refused(["push", f"push://{dead},{dead}/disk", uris[1]], 1,
                               f"{dead}: cannot connect", f"; {dead}: cannot connect")

    def test_networks(self):
        local = self.serve("disk=memory:4M")
        network = self.serve("disk=memory:4M", network=True, arguments=("--push-to", self.path("s1")))
        # A server that listens on no network connects to none; the other way is fine.
        self.check_refused(["push", local.push("disk"), network.push("disk")], 1, "only to Unix sockets")
        self.push(network.push("disk"), local.push("disk"))
        for listen in ("push://0.0.0.0:0", "push://[::]:0"):
            self.check_refused(["serve", "--listen", listen, "memory:1M"], 1, "push is not encrypted")

    def test_places(self):
        """Who is not known can have a server push to places that its operator has named, and nowhere else."""
        target = self.serve("disk=memory:1M").push("disk")
        far = self.serve("disk=memory:1M", network=True).push("disk")
        port = re.search(":([0-9]+)/", far).group(1)
        folder = os.path.dirname(self.path("s1")) + "/"
        for places, may in (((), set()), ((self.path("s1"),), {target}), ((folder,), {target}),
                            ((self.path("s"), folder[:-1], os.path.dirname(folder[:-1]) + "/"), set()),
                            (("127.0.0.1",), set()), (("127.0.0.1,port=1", f"::1,port={port}"), set()),
                            ((f"127.0.0.0/8,port={port}",), {far}),
                            (("10.0.0.0/8,port=any", "127.0.0.1,port=any", folder), {target, far})):
            source = self.serve("disk=memory:1M", network=True,
                                arguments=[word for place in places for word in ("--push-to", place)])
            for uri in (target, far):
                with self.subTest(places=places, uri=uri):
                    if uri in may:
                        self.push(source.push("disk"), uri)
                    else:
                        self.check_refused(["push", source.push("disk"), uri], 1, "start the server with a matching --push-to PLACE")
            source.stop()
        for uri, place in (("nbd://192.0.2.1", "nbd:ADDRESS"), ("nbds://192.0.2.1,tls-certificates=/x", "nbds:ADDRESS")):
            self.check_refused(["serve", "--push-to", uri, "memory:1M", "--run", "true"], 2, f"is a URI; write {place}")
        for place in ("", "localhost", "10.0.0.1/8", "10.0.0.1,port=0", "10.0.0.1,port=", "x,port=any"):
            self.check_refused(["serve", "--push-to", place, "memory:1M"], 2, "--push-to: ")

    def test_what_a_network_must_not_do(self):
        """A piece that changes on its way is not written, and who takes answers late is not hung up on."""
        server = self.start("--listen", "push://127.0.0.1:0", "--export", "disk=memory:16M,pace=64M")
        run = subprocess.run([DRIVER, server.uris[0]], stdout=subprocess.PIPE, text=True, check=True)
        self.assertIn("changed: a piece was corrupted in transit", run.stdout)
        self.assertRegex(run.stdout, r"many: message [0-9]+\n")  # the thirteenth answer

    def test_no_room_for_messages(self):
        """While the destination takes nothing, there is room for fewer messages than may be on the way."""
        # Every second piece is a message of zeroes, the others are one with a question. The disk gives one after
        # the other, so each goes by itself.
        size = 24 * MIB
        source = self.image("source", size, *((at, MIB) for at in range(0, size, 2 * MIB)))
        with open(source, "r+b") as file:
            for at in range(MIB, size, 2 * MIB):
                file.seek(at)
                file.write(bytes(MIB))
        target = self.image("target", size)
        first = self.serve(f"disk={source},pace=10M", network=True, arguments=("--push-to", "127.0.0.1,port=any"))
        second = self.serve(f"disk={target}", network=True)
        push = self.start_push("--resume", first.push("disk"), second.push("disk"))
        self.wait_for(lambda: self.counters(first)["bytes_read"] >= MIB)
        second.freeze()
        seen = []

        def is_full():  # every slot, and the source reads no more
            seen.append(self.counters(first)["bytes_read"])
            done = self.jobs(first.push("disk"))[-1]["bytes_done"]
            return push.poll() is not None or (seen[-1] >= done + 8 * MIB and seen[-2:-1] == seen[-1:])

        self.wait_for(is_full)
        second.signal(signal.SIGCONT)
        _, errors = push.communicate()
        self.assertEqual((push.returncode, errors), (0, ""))
        self.assertEqual(digest(source), digest(target))

    def restart(self, server, uri, path):
        server.kill()
        return self.start("--listen", uri.replace("/disk", "/"), "--export", f"disk={path}",
                          "--push-to", "127.0.0.1,port=any")

    def test_killed(self):
        self.check_killed(False)

    def test_killed_network(self):
        self.check_killed(True)

    def check_killed(self, network):
        """Each of the three, in turn; what is there already is not moved again."""
        size = 16 * MIB
        source, target = self.image("source", size, (0, size)), self.image("target", size)
        servers = {"source": self.serve(f"disk={source}", network=network,
                                        arguments=("--push-to", "127.0.0.1,port=any")),
                   "destination": self.serve(f"disk={target}", network=network)}
        uris = {name: server.push("disk") for name, server in servers.items()}
        for number in range(ROUNDS):
            victim = ("destination", "source", "coordinator")[number % 3]
            with open(target, "r+b") as file:
                file.write(self.random.randbytes(size))
            push = self.start_push("--rate", "2M", *uris.values())
            least = self.random.randrange(1, 4) * MIB
            self.wait_for_bytes(uris["source"], least)
            if victim == "coordinator":
                push.kill()
                push.communicate()
                self.wait_for(lambda: self.jobs(uris["source"])[-1]["state"] == "failed")
                self.assertIn("the command that requested the job has exited", self.jobs(uris["source"])[-1]["error"])
            else:
                servers[victim] = self.restart(
                    servers[victim], uris[victim], source if victim == "source" else target)
                _, errors = push.communicate()
                self.assertEqual(push.returncode, 1, errors)
            for uri in uris.values():  # whoever was left has ended the job
                self.wait_for(lambda uri=uri: all(job["state"] in ("done", "failed")
                                                  for job in self.jobs(uri)))
            job = self.push(*uris.values(), "--resume")
            self.assertEqual(digest(source), digest(target))
            self.assertGreaterEqual(job["bytes_skipped"], least)
            self.assertLess(job["bytes_skipped"], size)

    def test_stopped(self):
        """The command names the server, the job and the remedy, and the server ends the job."""
        source = self.image("source", 16 * MIB, (0, 16 * MIB))
        first, second = self.serve(f"disk={source}"), self.serve("disk=memory:16M")
        uris = first.push("disk"), second.push("disk")
        remedy = r"; the destination holds a partial copy: .* of .*; run the command again with --resume to continue\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None):
            push = self.start_push("--rate", "2M", *uris)
            self.wait_for_bytes(uris[0], MIB)
            job, = [job["job"] for job in self.jobs(uris[0]) if job["state"] == "moves"]
            begin = rf'gmblock push: {self.path("s1")}: export "disk": job {job}: '
            if number is None:
                first.kill()
                output, errors = push.communicate()
                self.assertEqual((push.returncode, output), (1, ""))
                self.assertRegex(errors, f"^{begin}the server closed the connection.*{remedy}$")
                return
            push.send_signal(number)
            output, errors = push.communicate()
            self.assertEqual((push.returncode, output), (128 + number, ""))
            self.assertRegex(errors, f"^{begin}stopped by {number.name}, and the server ends the job{remedy}$")
            self.wait_for(lambda: self.jobs(uris[0])[-1]["state"] == "failed")

    def test_a_silent_server(self):
        first, second = self.serve("disk=memory:1M"), self.serve("disk=memory:1M")
        second.freeze()
        self.addCleanup(second.signal, signal.SIGCONT)
        code, _, errors = self.run_gmblock("push", "--timeout", "4s", first.push("disk"), second.push("disk"))
        self.assertEqual(code, 1)
        line, failure = errors.splitlines()
        self.assertEqual(line, f"gmblock: warning: {self.path('s2')}: no response for 3 s; waiting for up to 4 s in total")
        self.assertIn(f"gmblock push: {self.path('s2')}: ", failure)

    @unittest.skipUnless(shutil.which("ss"), "no ss, which tells what sockets have carried")
    def test_no_payload_for_the_coordinator(self):
        source = self.image("source", 64 * MIB, (0, 64 * MIB))
        first = self.serve(f"disk={source}", network=True, arguments=("--push-to", "127.0.0.1,port=any"))
        second = self.serve("disk=memory:64M", network=True)
        push = self.start_push("--rate", "1M", first.push("disk"), second.push("disk"))
        self.wait_for_bytes(first.push("disk"), 3 * MIB)
        sockets = subprocess.run(["ss", "-tinpOH"], stdout=subprocess.PIPE, text=True, check=True).stdout
        carried = [int(count) for line in sockets.splitlines() if f"pid={push.pid}," in line
                   for count in re.findall(r"bytes_(?:acked|received):([0-9]+)", line)]
        self.assertEqual(len(carried), 4, sockets)  # of two connections
        self.assertLess(sum(carried), 64 << 10)

    def test_not_for_clients(self):
        uri = self.serve("disk=memory:1M").push("disk")
        for arguments, status in ((["list", uri], 2), (["info", uri], 2), (["bench", uri], 2),
                                  (["copy", uri, self.path("copy")], 1)):
            self.check_refused(arguments, status, "only for gmblock push")

    def test_detached(self):
        source = self.image("source", 8 * MIB, (0, 8 * MIB))
        first, second = self.serve(f"disk={source}"), self.serve("disk=memory:8M")
        uris = first.push("disk"), second.push("disk")
        code, number, errors = self.run_gmblock("push", "--detach", *uris)
        self.assertEqual((code, errors), (0, ""))
        number = number.strip()
        for uri in uris:
            self.wait_for(lambda uri=uri: self.jobs(uri, "--status", number)[0]["state"] == "done")
        # One that would take long is cancelled, from either end.
        for uri in uris:
            code, number, errors = self.run_gmblock("push", "--detach", "--rate", "1", *uris)
            number = number.strip()
            # While it is under way, nobody else pushes there.
            self.wait_for(lambda: self.jobs(uris[1], "--status", number)[0]["state"] == "moves")
            self.check_refused(["push", *uris], 1, "another job")
            self.assertEqual(self.run_gmblock("push", "--cancel", number, uri), (0, "", ""))
            for end in uris:
                self.wait_for(
                    lambda end=end: self.jobs(end, "--status", number)[0]["state"] == "failed")
            self.assertIn("cancelled", " ".join(self.jobs(end, "--status", number)[0]["error"]
                                                for end in uris))
        code, errors = first.stop()
        self.assertEqual(code, 0, errors)

    def test_disks_that_fail(self):
        data = self.image("data", 4 * MIB, (0, 4 * MIB))
        first = self.serve(f"bad={data},fault=read:EIO", f"good={data}")
        second = self.serve("bad=memory:4M,fault=write:ENOSPC", "flush=memory:4M,fault=flush:EIO",
                            "good=memory:4M")
        for source, target, text in (("good", "bad", "cannot write the destination: No space"),
                                     ("bad", "good", "cannot read the source"),
                                     ("good", "flush", "cannot make the destination durable")):
            self.check_refused(["push", first.push(source), second.push(target)], 1, text)

    def test_tickets(self):
        """Those that are not good are refused, and counted; a peer that breaks a rule is hung up on."""
        server = self.serve("disk=memory:4M")
        run = subprocess.run([DRIVER, server.push("disk")], stdout=subprocess.PIPE, text=True, check=True)
        lines = dict(line.split(": ", 1) for line in run.stdout.splitlines())
        self.assertIn("another server", lines["foreign instance"])
        self.assertIn("another user or address", lines["foreign uid"])
        for forged in ("forged range", "forged mac", "forged expiry"):
            self.assertIn("from another server", lines[forged])
        self.assertEqual(lines["good"], "slots 8")
        self.assertIn("used before", lines["replayed"])
        for broken in ("early flush", "long zero", "check without compare", "no slot", "bad head", "piece twice"):
            self.assertEqual(lines[broken], "closed")
        self.assertIn("a process of a different user", lines["another listens"])
        self.assertEqual(self.counters(server)["push_tickets_refused"], 6)
        # It serves on.
        source = self.serve("disk=memory:4M")
        self.push(source.push("disk"), server.push("disk"))

    def test_silence(self):
        """Who gives no sign of life loses what it was lent; who is slow does not."""
        def check(factor):
            limit = "--handshake-timeout", f"{2 * factor}s"
            source = self.image(f"source{factor}", 4 * MIB, (0, 4 * MIB))
            slow = self.serve(f"disk={source}", "other=memory:4M", arguments=limit)
            code, number, errors = self.run_gmblock("push", "--detach", "--rate", "1", slow.push("disk"),
                                                    slow.push("other"))
            self.assertEqual((code, errors), (0, ""))
            server = self.serve("disk=memory:4M", arguments=limit)
            run = subprocess.run([DRIVER, server.push("disk"), self.path(f"mute{factor}")], stdout=subprocess.PIPE,
                                 text=True, check=True)
            lines = dict(line.split(": ", 1) for line in run.stdout.splitlines())
            self.assertIn("the source does not respond", lines["silent"])
            self.assertIn("the destination does not respond", lines["no answer"])
            states = {job["state"] for job in self.jobs(slow.push("disk"), "--status", number.strip())}
            self.assertEqual(states, {"moves"})
        self.at_some_pace(check)

    def test_rights(self):
        """Those of who runs the command count: here, of a user who may only read."""
        uid = os.getuid()
        first = self.serve("disk=memory:1M", arguments=("--access", f"uid={uid} rights=ro"))
        second = self.serve("disk=memory:1M", arguments=("--access", f"uid={uid} rights=ro"))
        third = self.serve("disk=memory:1M")
        self.check_refused(["push", first.push("disk"), second.push("disk")], 1, "access rules")
        self.push(first.push("disk"), third.push("disk"))


def main():
    global DRIVER, ROUNDS
    DRIVER = os.path.realpath(sys.argv.pop(2))
    ROUNDS = int(sys.argv.pop(2))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    support.main()


if __name__ == "__main__":
    main()
