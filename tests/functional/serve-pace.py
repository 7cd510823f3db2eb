#!/usr/bin/python3
"""A disk that is paced holds the same bytes, however long they take."""
import json
import random
import threading

import nbdmini
import support

SIZE = 3 << 20


class Pace(support.Case):
    def setUp(self):
        super().setUp()
        self.content = bytearray(random.Random(1).randbytes(SIZE))
        self.image = self.make_file("disk.img", bytes(self.content))

    def work(self, uri, seed):
        """Reads and writes as a client of its own, in a stretch of its own."""
        rng = random.Random(seed)
        base = seed * (1 << 20)
        with nbdmini.open_export(uri) as client:
            self.assertEqual(client.size, SIZE)
            for _ in range(40):
                offset = base + rng.randrange(1 << 20)
                length = min(rng.choice((1, 511, 4096, 65536, 70001, 1 << 19)),
                             base + (1 << 20) - offset)
                if rng.random() < 0.4:
                    data = rng.randbytes(length)
                    client.write(offset, data)
                    self.content[offset:offset + length] = data
                else:
                    self.assertEqual(client.read(offset, length),
                                     self.content[offset:offset + length])
            client.flush()

    def check(self, export):
        server = self.start_unix("--threads", "2", "--export", export)
        workers = [threading.Thread(target=self.work, args=(server.uri, seed))
                   for seed in range(3)]
        failures = []
        threading.excepthook = failures.append
        self.addCleanup(setattr, threading, "excepthook", threading.__excepthook__)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(failures, [])
        with nbdmini.open_export(server.uri) as client:
            for offset in range(0, SIZE, 1 << 20):
                self.assertEqual(client.read(offset, 1 << 20),
                                 self.content[offset:offset + (1 << 20)])
        self.assertEqual(server.stop()[0], 0)
        with open(self.image, "rb") as image:
            self.assertEqual(image.read(), self.content)

    def test_one_disk(self):
        self.check(f"={self.image},pace=100M:latency=200us")

    def test_stripe(self):
        self.check(f"={self.image},pace=30M:members=4:chunk=16K")

    def test_scheduled(self):
        self.check(f"={self.image},pace=100M:seek=5ms")

    def counters(self, server):
        """By export: what its layers have counted."""
        code, output, errors = self.run_gmblock("stats", "--json", str(server.process.pid))
        self.assertEqual(code, 0, errors)
        return {export["name"]: export["store"] for export in json.loads(output)["exports"]}

    def test_a_disk_that_seeks_is_scheduled(self):
        """Unless the user does not want it, or the disk does not seek."""
        server = self.start_unix("--export", f"={self.image},pace=1G:seek=10ms",
                                 "--export", f"off={self.image},readonly,pace=1G:seek=10ms,sched=off",
                                 "--export", f"fast={self.image},readonly,pace=100M")
        with nbdmini.open_export(server.uri) as client:
            for turn in range(8):  # it learns that the disk seeks
                client.read(turn % 2 << 20, 512)
            for offset in range(0, 3 << 20, 1 << 18):
                self.assertEqual(client.read(offset, 1 << 18), self.content[offset:offset + (1 << 18)])
        found = self.counters(server)
        self.assertGreater(found[""]["sched"]["runs"], 0)
        self.assertNotIn("sched", found["off"])
        self.assertNotIn("sched", found["fast"])

    def test_with_parts_of_a_grain(self):
        self.check(f"={self.image},pace=100M:members=2,parts=16K")

    def test_an_overlay_that_is_scheduled(self):
        """The deepest stack of layers."""
        server = self.start_unix("--export", f"={self.image},overlay=discard,pace=1G:seek=3ms,delay=write:1ms,"
                                 "fault=read:EIO:nth=1000000")
        with nbdmini.open_export(server.uri) as client:
            for turn in range(6):
                client.write(turn % 2 << 20, b"x" * 4096)
            self.assertEqual(client.read(1 << 20, 8192), b"x" * 4096 + self.content[(1 << 20) + 4096:(1 << 20) + 8192])

    def test_with_all_other_keys(self):
        self.check(f"={self.image},delay=write:1ms,pace=1G:latency=1ms:seek=3ms,stripe=128K:3,"
                   "fault=read:EIO:nth=1000000")

    def test_from_a_configuration_file(self):
        config = self.make_file("test.conf", "exports:\n"
                                "  - name: \"\"\n"
                                f"    path: {self.image}\n"
                                "    pace: \"200M:members=2\"\n")
        server = self.start_unix("--config", config)
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.read(1 << 20, 1 << 20), self.content[1 << 20:2 << 20])

    def test_a_slow_read_holds_up_nothing_else(self):
        server = self.start_unix("--export", f"={self.image},pace=1K")
        with nbdmini.open_export(server.uri) as client, nbdmini.open_export(server.uri) as other:
            client.send_request(nbdmini.CMD_READ, 1, 0, 1 << 20)  # takes 17 minutes
            client.flush()
            other.flush()

    def test_mistakes(self):
        for text, *fragments in (
                ("pace", "needs a value", "pace=100M"), ("pace=", "'' is not a size"),
                ("pace=slow", "'slow' is not a size", "64M"),
                ("pace=1M:members=65", "from 1 to 64"), ("pace=1M:chunk=4K", "members=2"),
                ("pace=1M:seek=fast", "seek: 'fast' is not a time", "10ms"), ("sched=on", "auto"),
                ("pace=1M:colour=red", "latency=TIME"), ("pace=1M,pace=1M", "twice")):
            self.check_refused(["serve", "--export", f"a=null:1M,{text}"], 2,
                               "--export: ", f"{text.partition('=')[0]}: ", *fragments)


if __name__ == "__main__":
    support.main()
