#!/usr/bin/python3
"""Limits of a real server for exports and identities: nothing begins earlier than a rate allows, on
any thread and by any protocol, and no more memory is held than is allowed; they change while clients
wait; and who waits for a rate hears that the server lives."""
import contextlib
import json
import os
import struct

import nbdmini
import support

KIB, MIB = 1 << 10, 1 << 20
OPT_LIST_META = 9
BLOCK_STATUS = 5
ALIVE = 0xFFFFFFFF
ESHUTDOWN = 108
LONG = "1000"
NEVER = "1K:burst=10ms"  # a read of MIB is waited for a quarter of an hour


class Rate(support.Case):
    def serve(self, *arguments, **options):
        self.control = self.path("control")
        return self.start_unix("--control", self.control, *arguments, **options)

    def stats(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.control)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)

    def change(self, setting, export=""):
        code, output, errors = self.run_gmblock("export", "set", export, setting, "--server", self.control)
        self.assertEqual((code, errors), (0, ""))
        return output

    def moved(self, before, after, export=0):
        """Requests and bytes of an export between two documents."""
        def count(document):
            operations = document["exports"][export]["operations"]
            return [sum(entry[what] for entry in operations) for what in ("count", "bytes")]
        return [late - early for early, late in zip(count(before), count(after))]

    def work(self, count, *arguments):
        """So many requests as fast as they may be, and what the server says before and after them."""
        before = self.stats()
        code, _, errors = self.run_gmblock(
            "bench", "--connections", "4", "--threads", "2", "--depth", "16", "--requests", str(count),
            "--seconds", LONG, *arguments)
        self.assertEqual(code, 0, errors)
        return before, self.stats()

    def check_work(self, uri, count, **limits):
        """Compares with the server's own clock."""
        before, after = self.work(count, "--rw", "randrw", "--force", uri)
        requests, moved = self.moved(before, after)
        seconds = after["clock_seconds"] - before["clock_seconds"]
        rate = after["exports"][0]["rate"]
        self.assertEqual((rate["requests_per_second"], rate["bytes_per_second"]),
                         (limits.get("requests"), limits.get("moved")))
        # The burst, and of each thread a request.
        whole = seconds + rate["burst_seconds"]
        if "requests" in limits:
            self.assertLessEqual(requests, limits["requests"] * whole + 2)
        if "moved" in limits:
            self.assertLessEqual(moved, limits["moved"] * whole + 2 * 4 * KIB)
        self.assertGreater(requests, 0)
        self.assertGreater(rate["requests_delayed"], 0)
        self.assertGreater(rate["delay_ns"], 0)

    def test_what_two_threads_serve(self):
        server = self.serve("--threads", "2", "--export", "=memory:64M,rate=requests=200")
        self.check_work(server.uri, 300, requests=200)
        self.assertRegex(self.change("rate=800K:burst=50ms"), r'^export "": rate=800K:burst=50ms \(was .*\)\n$')
        self.check_work(server.uri, 300, moved=800 * KIB)
        _, output, _ = self.run_gmblock("stats", self.control)
        self.assertRegex(output, r"Limit on the data rate: 819\.200 kB/s\n  Requests delayed by the rate limit: [0-9]+\n"
                                 r"  Total delay of requests by the rate limit: ")
        self.assertEqual(server.stop()[0], 0)

    def test_gmb(self):
        uri = "gmb+unix:///?socket=" + self.path("g")
        self.serve("--listen", uri, "--threads", "2", "--export",
                   "=memory:64M,rate=800K:requests=100", uri_count=2)
        self.check_work(uri, 150, requests=100, moved=800 * KIB)

    def test_a_file_configures_it(self):
        config = self.make_file("config", "exports:\n  - name: disk\n    path: memory:1M\n"
                                          "    rate: 100M:requests=5000:burst=1s\n")
        self.serve("--config", config)
        rate = self.stats()["exports"][0]["rate"]
        self.assertEqual(rate, {"bytes_per_second": 100 * MIB, "requests_per_second": 5000,
                                "burst_seconds": 1.0, "requests_delayed": 0, "delay_ns": 0})

    def waiting(self, server, name=b""):
        """A client one of whose reads has its turn in a quarter of an hour."""
        client = nbdmini.open_export(server.uri, name)
        self.addCleanup(client.close)
        client.read(0, MIB)
        client.send_request(nbdmini.CMD_READ, 7, 0, MIB)
        return client

    def test_a_change_while_a_client_waits(self):
        server = self.serve("--threads", "2", "--export", f"slow=memory:1M,rate={NEVER}",
                            "--export", "other=memory:1M")
        client = self.waiting(server, b"slow")
        with nbdmini.open_export(server.uri, b"other") as other:
            for _ in range(100):
                other.read(0, 64 * KIB)  # does not wait
        # What was answered is counted a little later.
        self.wait_for(lambda: self.stats()["counters"]["inflight"] == 0)
        self.change("rate=off", "slow")
        self.assertEqual(client.reply(), (7, 0))
        client.receive(MIB)
        self.assertEqual(self.stats()["exports"][0]["rate"]["requests_delayed"], 1)

    def reload_with(self, old, new, said):
        """Replaces a limit of a rule in the configuration file."""
        with open(self.path("config"), encoding="utf-8") as file:
            self.make_file("config", file.read().replace(old, new))
        code, output, errors = self.run_gmblock("reload", self.control)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn(said, output)

    def serve_rules(self, rules, *arguments, **options):
        lines = "".join(f"  - {rule}\n" for rule in rules)
        config = self.make_file("config", f"exports: [{{name: disk, path: memory:64M}}]\n"
                                          f"rates:\n{lines}")
        return self.serve("--config", config, *arguments, **options)

    def test_identities(self):
        """The first rule that holds limits each identity for itself, over all threads."""
        other = os.getuid() + 1
        server = self.serve_rules(
            [f"{{uid: {other}, rate: 1K}}",
             f"{{uid: {os.getuid()}, rate: requests=200, connections: 4}}",
             f"{{address: 127.0.0.0/8, rate: '{NEVER}'}}"],
            "--threads", "2", "--listen", "nbd://127.0.0.1:0", uri_count=2)
        uri = [uri for uri in server.uris if "unix" in uri][0]
        before, after = self.work(300, uri)
        requests, _ = self.moved(before, after)
        seconds = after["clock_seconds"] - before["clock_seconds"]
        self.assertLessEqual(requests, 200 * (seconds + 0.1) + 2)
        self.assertGreater(requests, 0)
        self.assertEqual([rule["identities"] for rule in after["rates"]], [0, 0, 0])
        slow = nbdmini.open_export([uri for uri in server.uris if "unix" not in uri][0], b"disk")
        self.addCleanup(slow.close)
        slow.read(0, MIB)
        slow.send_request(nbdmini.CMD_READ, 7, 0, MIB)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(nbdmini.open_export(uri, b"disk")) for _ in range(4)]
            clients[0].read(0, MIB)  # does not wait
            told = self.stats()["rates"]
            self.assertEqual([rule["identities"] for rule in told], [0, 1, 1])
            self.assertEqual((told[1]["requests_per_second"], told[1]["connections_max"]),
                             (200, 4))
            self.assertRegex(told[1]["origin"], r"/config:4$")
            code, _, errors = self.run_gmblock("bench", "--seconds", "0.1", uri)
            self.assertEqual(code, 1)
            self.assertIn("reached your connection limit", errors)
            _, output, _ = self.run_gmblock("stats", self.control)
            self.assertIn("rate rule 2, for each of 1 identity: at most 200 requests/s", output)
        self.reload_with(f"'{NEVER}'", "off", "rate rule 3: rate=off ")
        self.assertEqual(slow.reply(), (7, 0))
        slow.receive(MIB)

    def hungry(self, uri, name=b"", count=8):
        """Clients that ask for much and take nothing."""
        for _ in range(count):
            client = nbdmini.open_export(uri, name)
            self.addCleanup(client.close)
            for cookie in range(8):
                client.send_request(nbdmini.CMD_READ, cookie, 0, MIB)

    def memory(self, export=0):
        return self.stats()["exports"][export]["memory"]

    def test_memory_of_an_export(self):
        server = self.serve("--threads", "2", "--export", "small=null:1G,max-memory=4M",
                            "--export", "other=null:1G")
        self.hungry(server.uri, b"small")
        self.wait_for(lambda: self.memory()["waits"] >= 8)
        self.assertLessEqual(self.memory()["held_bytes"], 4 * MIB)
        self.assertEqual(self.memory()["max_bytes"], 4 * MIB)
        for name in (b"small", b"other"):
            with nbdmini.open_export(server.uri, name) as client:
                client.read(0, MIB)
        _, output, _ = self.run_gmblock("stats", self.control)
        self.assertRegex(output, r"  Limit on payload memory held by the clients of the export: 4\.194 MB\n"
                                 r"(.*\n)?  Times a client waited because the export had reached its limit on "
                                 r"payload memory: [0-9]+\n")
        self.assertEqual(self.change("max-memory=8M", "small"), 'export "small": max-memory=8M (was 4M)\n')
        self.wait_for(lambda: self.memory()["held_bytes"] > 4 * MIB)
        self.assertLessEqual(self.memory()["held_bytes"], 8 * MIB)
        self.assertEqual(self.change("max-memory=off", "small"), 'export "small": max-memory=off (was 8M)\n')
        self.wait_for(lambda: self.memory()["held_bytes"] > 8 * MIB)
        self.assertIsNone(self.memory()["max_bytes"])
        self.assertEqual(self.memory(1)["waits"], 0)

    def test_memory_of_an_identity(self):
        """Two exports together; the address of a network is another identity."""
        rules = f"  - {{uid: {os.getuid()}, rate: off, memory: 4M}}\n"
        config = self.make_file("config", "exports:\n  - {name: a, path: 'null:1G'}\n"
                                          "  - {name: b, path: 'null:1G', max-memory: 1G}\n"
                                          f"rates:\n{rules}")
        server = self.serve("--config", config, "--threads", "2", "--listen",
                            "nbd://127.0.0.1:0", uri_count=4)
        local = [uri for uri in server.uris if "unix" in uri and "/a?" in uri][0]
        network = [uri for uri in server.uris if "unix" not in uri and uri.endswith("/a")][0]

        def held():
            return self.memory(0)["held_bytes"] + self.memory(1)["held_bytes"]

        def waits():
            return self.memory(0)["waits"] + self.memory(1)["waits"]

        self.hungry(local, b"a", 4)
        self.hungry(local, b"b", 4)
        self.wait_for(lambda: held() > MIB)
        for _ in range(10):
            with nbdmini.open_export(network, b"a") as client:
                client.read(0, MIB)
            self.assertLessEqual(held(), 4 * MIB)
        self.assertEqual(waits(), 0)  # not for what the exports may hold
        self.assertEqual(self.memory(1)["max_bytes"], 1 << 30)
        self.assertEqual(self.stats()["rates"][0]["memory_max_bytes"], 4 * MIB)
        _, output, _ = self.run_gmblock("stats", self.control)
        self.assertIn("rate rule 1, for each of 1 identity: at most 4.194 MB in memory", output)
        self.reload_with("memory: 4M", "memory: off", "rate rule 1: memory=off (was 4M)")
        self.wait_for(lambda: held() > 4 * MIB)

    def test_rules_that_are_wrong(self):
        for rule, where, why in (
                ("{uid: 1}", ":3:5: rates entry 1: ", "the key 'rate' is missing"),
                ("{uid: 1, rate: fast}", ":3:20: rates entry 1, rate: ", "'fast' is not a rate"),
                ("{rate: 1M, connections: 0}", ":3:29: rates entry 1, connections: ", "0 is out"),
                ("{rate: off, memory: 1M}", ":3:25: rates entry 1, memory: ", "2M to 1T"),
                ("{uid: all, rate: 1M}", ":3:11: rates entry 1, uid: ", "'all' is not"),
                ("{uid: 1, address: 10.0.0.0/8, rate: 1M}", ":3:5: ", "write two rules"),
                ("{rate: 1M, rights: rw}", ":3:16: rates entry 1: ", "unknown key 'rights'")):
            config = self.make_file("config", "exports: [{name: disk, path: memory:1M}]\n"
                                              f"rates:\n  - {rule}\n")
            errors = self.check_refused(["serve", "--config", config], 2, why)
            self.assertIn(config + where, errors, rule)

    def test_signs_of_life(self):
        server = self.serve("--export", f"=memory:1M,rate={NEVER}")
        client = nbdmini.Client(server.uri)
        self.addCleanup(client.close)
        client.hello()
        client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
        client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
        query = b"x-gmblock:alive=10"
        client.send_option(OPT_LIST_META, struct.pack(">III", 0, 1, len(query)) + query)
        client.option_replies(OPT_LIST_META)
        client.go()
        client.send_request(nbdmini.CMD_READ, 6, 0, MIB)
        list(client.chunks(6))
        client.send_request(nbdmini.CMD_READ, 7, 0, MIB)
        for _ in range(3):
            magic, flags, kind, cookie, length = struct.unpack(">IHHQI", client.receive(20))
            self.assertEqual((magic, flags, kind, cookie),
                             (nbdmini.STRUCTURED_REPLY_MAGIC, 0, BLOCK_STATUS, 7))
            self.assertEqual(client.receive(length), struct.pack(">III", ALIVE, 1, 0))

    def test_a_stop_does_not_wait(self):
        server = self.serve("--export", f"=memory:1M,rate={NEVER}")
        client = self.waiting(server)
        self.wait_for(lambda: self.stats()["counters"]["inflight"] == 0)
        server.signal()
        self.assertEqual(client.reply(), (7, ESHUTDOWN))
        self.assertEqual(server.wait()[0], 0)

    def test_what_is_refused(self):
        self.serve("--export", "disk=memory:1M")
        for setting, why in (("rate=fast", "'fast' is not a rate"),
                             ("rate=1M:burst=1ms", "burst: the value must be at least 10 ms"),
                             ("rate=1M:request=5", "unknown setting 'request=5'; use one of requests=N, burst=TIME"),
                             ("max-memory=1M", "2M to 1T"), ("max-memory=", "2M to 1T")):
            self.check_refused(["export", "set", "disk", setting, "--server", self.control], 2, why)
        self.check_refused(["serve", "--export", "=memory:1M,max-memory=all"], 2,
                           "max-memory: 'all' is neither off nor a size from 2M")
        self.check_refused(["serve", "--export", "=memory:1M,rate=burst=1s"], 2,
                           "rate: a burst needs a rate")


if __name__ == "__main__":
    support.main()
