#!/usr/bin/python3
"""Copies within a server: gmb_copy() and COPY, by every way that this machine's file systems offer.

    gmb-copy.py GMBLOCK DRIVER
"""
import json
import os
import random
import shutil
import subprocess
import sys

import support

DRIVER = ""
MIB = 1 << 20


class Copies(support.Case):
    def setUp(self):
        super().setUp()
        self.listen = "gmb+unix:///?socket=" + self.path("s")
        self.random = random.Random(7)
        self.count = 0

    def image(self, name, *pieces, size=0, folder=None):
        """A sparse file with random bytes at (offset, length)."""
        path = os.path.join(folder, name) if folder else self.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
            for offset, length in pieces:
                file.seek(offset)
                file.write(self.random.randbytes(length))
        return path

    def serve(self, *exports, listen=None):
        control = self.path(f"control{self.count}")
        self.count += 1
        server = self.start("--listen", listen or self.listen, "--threads", "1",
                            "--control", control,
                            *[arg for export in exports for arg in ("--export", export)],
                            uri_count=len(exports))
        server.control = control
        return server

    def stats(self, server):
        code, output, errors = self.run_gmblock("stats", "--json", server.control)
        self.assertEqual((code, errors), (0, ""))
        return json.loads(output)

    def drive(self, uris, *lines):
        """What the driver prints, without the openings; clients are a, b, ..."""
        opens = [f"open {key} {uri}" for key, uri in zip("abcdef", uris)]
        run = subprocess.run([DRIVER], input="\n".join([*opens, *lines, ""]), text=True,
                             stdout=subprocess.PIPE, check=True)
        output = run.stdout.splitlines()
        for line in output[:len(opens)]:
            self.assertRegex(line, "^opened ")
        return output[len(opens):]

    def test_the_case_of_a_scheme_does_not_matter(self):
        uri = self.serve("a=memory:1M").uri
        self.assertEqual(self.run_gmblock("info", uri.replace("gmb+unix", "GMB+Unix"))[0], 0)

    def results(self, uris, *copies):
        """(result, copied) of each, made one after the other, and bytes by the way of client b."""
        lines = self.drive(uris, *[line for copy in copies for line in ("copy " + copy, "wait")],
                           "copies b")
        done = [line.split() for line in lines if line.startswith("done ")]
        ways = [line for line in lines if line.startswith("copies ")][0].split()[2:]
        return ([(int(words[4]), int(words[5])) for words in done],
                dict(zip(("reflink", "range", "device", "ram", "zeroes"), map(int, ways))))

    def check_same(self, source, target):
        with open(source, "rb") as first, open(target, "rb") as second:
            self.assertTrue(first.read() == second.read())

    def check_whole(self, source_keys, target_keys, size, pieces, ways, folder=None):
        """All of it is copied in these ways, over old data; the target equals the source."""
        source = self.image("source", *pieces, size=size, folder=folder)
        target = self.image("target", (0, size), size=size, folder=folder)
        server = self.serve("a=" + source + source_keys, "b=" + target + target_keys)
        results, counts = self.results(server.uris, f"b 0 {size} 0 a 0")
        self.assertEqual(results, [(0, size)])
        self.check_same(source, target)
        self.assertEqual({way for way, count in counts.items() if count}, set(ways), counts)
        self.assertEqual(sum(counts.values()), size)
        document = self.stats(server)
        stats = document["counters"]
        self.assertEqual({way: stats["bytes_copied_" + way] for way in counts}, counts)
        # Ways that were tried in vain are no errors.
        self.assertEqual([operation for owner in document["exports"] + document["clients"]
                          for operation in owner["operations"] if operation["errors"]], [])
        self.assertEqual((stats["bytes_read"], stats["bytes_written"]), (0, 0))
        server.stop()
        return source, target

    def test_the_kernel_copies(self):
        pieces = [(0, 5 * MIB), (20 * MIB + 4096, 3 * MIB + 12345)]
        _, target = self.check_whole("", "", 40 * MIB + 512, pieces, ["range", "zeroes"])
        self.assertLess(os.stat(target).st_blocks * 512, 12 * MIB)  # holes stay holes

    def test_around_the_page_cache(self):
        self.check_whole(",mode=direct", ",mode=direct", 20 * MIB + 512,
                         [(MIB, 9 * MIB), (15 * MIB, 4096)], ["ram", "zeroes"])

    def test_filters_are_passed(self):
        for keys in ((",delay=write:1ms", ""), ("", ",delay=write:1ms")):
            self.check_whole(*keys, 3 * MIB, [(0, MIB)], ["ram", "zeroes"])

    def check_shared(self, *make):
        """On a file system of its own, whose files can share blocks."""
        disk = self.image("disk", size=400 * MIB)
        folder = self.path("mounted")
        os.mkdir(folder)
        if not shutil.which(make[0]) or subprocess.run(
                [*make, disk], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest(f"{make[0]} is not there, or does not work")
        if subprocess.run(["mount", "-o", "loop", disk, folder], stderr=subprocess.DEVNULL,
                          check=False).returncode != 0:
            self.skipTest("no file system can be mounted here")
        # A server that was killed may keep it for a moment.
        self.addCleanup(self.wait_for, lambda: subprocess.run(
            ["umount", folder], stderr=subprocess.DEVNULL, check=False).returncode == 0)
        # What is left over behind whole blocks is copied.
        source, target = self.check_whole("", ",mode=direct", 12 * MIB + 512,
                                          [(MIB, 5 * MIB), (12 * MIB, 512)], ["reflink", "ram"],
                                          folder=folder)
        # Both go their own ways afterwards.
        server = self.serve("a=" + source, "b=" + target)
        self.drive(server.uris, f"write b {2 * MIB} 4096 0", "wait")
        with open(source, "rb") as first, open(target, "rb") as second:
            self.assertFalse(first.read() == second.read())

    def test_blocks_are_shared_on_xfs(self):
        self.check_shared("mkfs.xfs", "-q", "-f")

    def test_blocks_are_shared_on_btrfs(self):
        self.check_shared("mkfs.btrfs", "-q", "-f")

    def test_places(self):
        """Any place to any place, also in one export; then what is wrong."""
        size = 8 * MIB
        files = [self.image(name, (0, size), size=size) for name in ("a", "b")]
        with open(files[0], "rb") as file:
            data = file.read()
        with open(files[1], "rb") as file:
            expected = bytearray(file.read())
        for mode in ("", ",mode=direct"):
            server = self.serve("a=" + files[0] + mode, "b=" + files[1] + mode)
            moves = []
            for _ in range(20):
                length = self.random.randrange(1, 700000)
                start = self.random.randrange(size - length)
                at = self.random.randrange(size - length)
                moves.append(f"b {at} {length} {self.random.randrange(2)} a {start}")
                expected[at:at + length] = data[start:start + length]
            moves.append(f"b {4 * MIB} {2 * MIB} 0 b {MIB}")
            expected[4 * MIB:6 * MIB] = expected[MIB:3 * MIB]
            moves.append("b 5 0 0 a 5")
            results, _ = self.results(server.uris, *moves)
            self.assertEqual([result for result, _ in results], [0] * len(moves))
            server.stop()
            with open(files[1], "rb") as file:
                self.assertTrue(file.read() == bytes(expected))

    def test_what_is_refused(self):
        server = self.serve("a=memory:1M", "b=memory:2M", "r=null:1M,readonly", "long=memory:65M")
        nbd = self.serve("a=memory:1M", listen="nbd+unix:///?socket=" + self.path("n"))
        other = self.serve("a=memory:1M", listen="gmb+unix:///?socket=" + self.path("o"))
        results, _ = self.results(
            [*server.uris[:3], nbd.uri, other.uri, server.uris[3]],
            "b 0 4096 0 b 100", "b 4096 4096 0 b 0", "b 0 4096 0 a 1044481",
            f"b {2 * MIB} 1 0 a 0", "c 0 4096 0 a 0", "b 0 4096 0 d 0", "d 0 4096 0 a 0",
            "b 0 4096 0 e 0", "b 0 4096 2 a 0",
            # In two parts, each of which would overlap nothing.
            f"f {64 * MIB - 4096} 8192 0 f {64 * MIB - 8192}")
        self.assertEqual([result for result, _ in results],
                         [-22, 0, -22, -22, -1, -95, -95, -18, -22, -22])

    def test_a_source_that_is_hidden_meanwhile(self):
        """It does not exist any more."""
        config, control = self.path("conf"), self.path("reloaded")

        def write(rights):
            with open(config, "w", encoding="utf-8") as file:
                file.write("exports:\n- {name: b, path: 'memory:1M'}\n"
                           f"- {{name: a, path: 'memory:1M', access: [{rights}]}}\n")
        write("ro")
        server = self.start("--listen", self.listen, "--config", config, "--control", control,
                            uri_count=2)
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as driver:
            driver.stdin.write(f"open b {server.uris[0]}\nopen a {server.uris[1]}\n"
                               "copy b 0 4096 0 a 0\nwait\n")
            driver.stdin.flush()
            before = ""
            while not before.endswith("waited\n"):
                before += driver.stdout.readline()
            write("none")
            code, _, errors = self.run_gmblock("reload", control)
            self.assertEqual((code, errors), (0, ""))
            after, _ = driver.communicate("copy b 0 4096 0 a 0\nwait\n")
        self.assertIn(" copy 0 4096 ", before)
        self.assertIn(" copy -2 0 ", after)
        self.assertIn("the source export does not exist", after)

    def check_rights_that_go(self, source, target, code):
        """These are the rights on the exports once the copy has begun."""
        config, control = self.path("conf" + source), self.path("control" + source)

        def write(*rights):
            with open(config, "w", encoding="utf-8") as file:
                file.write("exports:\n")
                for name, right in zip("ab", rights):
                    file.write(f"- {{name: {name}, path: 'memory:64M', access: [{right}],"
                               " delay: ['read:1s']}\n")
        write("rw", "rw")
        server = self.start("--listen", self.listen, "--config", config, "--control", control,
                            uri_count=2)
        server.control = control
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as driver:
            driver.stdin.write(f"open a {server.uris[0]}\nopen b {server.uris[1]}\n"
                               f"write a 0 {64 * MIB} 0\nwait\ncopy b 0 {64 * MIB} 0 a 0\nwait\n")
            driver.stdin.flush()
            self.wait_for(lambda: self.stats(server)["counters"]["bytes_copied_ram"] > 0)
            write(source, target)
            status, _, errors = self.run_gmblock("reload", control)
            self.assertEqual((status, errors), (0, ""))
            output, _ = driver.communicate()
        done = [line.split() for line in output.splitlines() if " copy " in line]
        self.assertEqual(int(done[0][4]), code, output)
        self.assertLess(int(done[0][5]), 64 * MIB)
        self.assertEqual(server.stop()[0], 0)

    def test_rights_that_go_during_a_copy(self):
        """It ends where it is: the source may not be read any more, the target not be written."""
        self.check_rights_that_go("none", "rw", -2)
        self.check_rights_that_go("rw", "ro", -1)

    def test_little_memory(self):
        """Each of many copies is made, with what there is."""
        size, count = 16 * MIB, 64
        files = [self.image(name, (0, size), size=size) for name in ("source", "target")]
        server = self.start("--listen", self.listen, "--threads", "1", "--memory", "4M",
                            *[arg for name, file in zip("ab", files)
                              for arg in ("--export", f"{name}={file},mode=direct")], uri_count=2)
        part = size // count
        lines = self.drive(server.uris, *[f"copy b {at} {part} 0 a {at}"
                                          for at in range(0, size, part)], "wait")
        self.assertEqual([line.split()[4:6] for line in lines if line.startswith("done ")],
                         [["0", str(part)]] * count)
        self.check_same(*files)

    def test_a_disk_that_fails(self):
        """How much was copied is told."""
        server = self.serve("a=memory:16M", "b=memory:16M,fault=write:EIO:range=9M+4K",
                            "c=memory:16M,fault=read:EIO:range=5M+4K")
        results, _ = self.results(server.uris, f"a 0 {16 * MIB} 0 c 0")
        self.assertEqual(results[0][0], 0)
        writes = self.drive(server.uris, f"write a 0 {16 * MIB} 0", f"write c 0 {16 * MIB} 0",
                            "wait", f"copy b 0 {16 * MIB} 0 a 0", "wait",
                            f"copy a {MIB} {10 * MIB} 0 c {MIB}", "wait")
        copies = [line.split() for line in writes if " copy " in line]
        self.assertEqual([int(words[4]) for words in copies], [-5, -5])
        for words, limit in zip(copies, (9 * MIB, 4 * MIB)):
            self.assertLessEqual(int(words[5]), limit)
            self.assertGreater(int(words[5]), limit - 4 * MIB)

    def test_rates_of_both_exports(self):
        """A copy keeps to the slower one's: a step of it takes a second."""
        for rates in ((",rate=2M:burst=10ms", ""), ("", ",rate=2M:burst=10ms")):
            server = self.serve("a=memory:16M" + rates[0], "b=memory:16M" + rates[1])
            self.drive([server.uris[0]], f"write a 0 {4 * MIB} 0", "wait")
            results, _ = self.results(server.uris, f"b 0 {4 * MIB} 0 a 0")
            self.assertEqual(results, [(0, 4 * MIB)])
            exports = self.stats(server)["exports"]
            delayed = [export["rate"]["requests_delayed"] for export in exports]
            self.assertGreater(delayed[0 if rates[0] else 1], 0)
            server.stop()

    def test_a_rate_is_not_booked_in_advance(self):
        """The kernel copies: what others ask for does not wait for all of it."""
        size = 16 * MIB
        files = [self.image(name, (0, size), size=size) for name in ("source", "target")]
        server = self.serve("a=" + files[0] + ",rate=4M:burst=10ms", "b=" + files[1])
        self.results(server.uris, f"b 0 {size} 0 a 0")
        counters = self.stats(server)["counters"]
        self.assertEqual(counters["bytes_copied_range"], size)
        export = self.stats(server)["exports"][0]
        self.assertGreater(export["rate"]["requests_delayed"], 2)

    def test_the_disk_is_asked_for_whole_pieces(self):
        """Overlap with a network has no part in a copy, and learns nothing from it."""
        size = 16 * MIB
        files = [self.image(name, (0, size), size=size) for name in ("source", "target")]
        keys = ",mode=direct,parts=16K"
        server = self.serve("a=" + files[0] + keys, "b=" + files[1] + keys)
        results, _ = self.results(server.uris, f"b 0 {size} 0 a 0")
        self.assertEqual(results, [(0, size)])
        self.assertIsNone(self.stats(server)["exports"][0]["reads"]["early"])

    def copy(self, *arguments):
        code, output, errors = self.run_gmblock("copy", "--json", *arguments)
        self.assertEqual(code, 0, errors)
        return json.loads(output)

    def test_the_command(self):
        """It has the server copy where it can, and reads and writes where it cannot."""
        size, data = 100 * MIB + 512, [(0, 70 * MIB), (80 * MIB, 9 * MIB), (100 * MIB, 512)]
        source = self.image("source", *data, size=size)
        target = self.image("target", (3 * MIB, 90 * MIB), size=size)
        exports = ("a=" + source, "b=" + target)
        server = self.serve(*exports)
        summary = self.copy("--verify", *server.uris)
        self.assertTrue(summary["verified"])
        self.assertEqual((summary["bytes_read"], summary["bytes_written"]), (0, 0))
        self.assertEqual(summary["bytes_copied"] + summary["bytes_zeroed"], size)
        _, _, errors = self.run_gmblock("copy", "--progress", *server.uris)
        self.assertRegex(errors, r"copied 100 MiB in .*/s: \d+ MiB copied by the server")
        self.check_same(source, target)
        self.assertGreaterEqual(self.stats(server)["counters"]["bytes_copied_range"], 79 * MIB)
        for arguments, uris in (
                (["--allocate"], server.uris),
                ([], [server.uris[0], self.serve("b=" + self.image("other", size=size), listen=(
                    "gmb+unix:///?socket=" + self.path("o"))).uri])):
            summary = self.copy("--verify", *arguments, *uris)
            self.assertEqual(summary["bytes_copied"], 0)
            self.assertGreater(summary["bytes_written"], 79 * MIB)
        summary = self.copy("--skip-errors", self.path("map"), *server.uris)
        self.assertEqual(summary["bytes_copied"], 0)

    def test_one_disk_under_two_names(self):
        """What one range copies would be overwritten by the other."""
        source = self.image("source", (0, MIB), size=4 * MIB)
        link = self.path("link")
        os.link(source, link)
        server = self.serve("a=" + source, "b=" + link)
        results, _ = self.results(server.uris[:2], "b 4096 65536 0 a 0", f"b {2 * MIB} {MIB} 0 a 0")
        self.assertEqual([result for result, _ in results], [-22, 0])
        self.check_refused(["copy", *server.uris[:2]], 1, "the ranges overlap on the same disk")

    def test_the_command_and_servers_that_are_killed(self):
        size = 64 * MIB
        source = self.image("source", (0, size), size=size)
        target = self.image("target", size=size)
        exports = ("a=" + source, "b=" + target)
        # All but the last one never come to the end of it.
        endless = ("a=" + source + f",delay=read:3600s:range={size // 2}+{size // 2}", "b=" + target)
        server = self.serve(*endless)
        with subprocess.Popen([support.program(), "copy", "--json", *server.uris],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copy:
            for following in (endless, endless, exports):
                self.wait_for(lambda: self.stats(server)["counters"]["inflight"] > 0)
                server.kill()
                server = self.serve(*following)
            output, errors = copy.communicate()
        self.assertEqual(copy.returncode, 0, errors)
        self.assertGreater(json.loads(output)["bytes_copied"], 0)
        self.check_same(source, target)

    def test_the_command_goes_on_by_its_journal(self):
        """The server is killed, then the copy is: the next one begins where the journal says."""
        size = 192 * MIB
        source = self.image("source", (0, size), size=size)
        target = self.image("target", size=size)
        journal = self.path("journal")
        # The first server never comes to the end; neither copies within the kernel.
        exports = ("a=" + source + ",delay=read:1ms", "b=" + target)
        server = self.serve("a=" + source + f",delay=read:3600s:range={size // 2}+{size // 2}", exports[1])
        arguments = ["--resume", journal, "--checkpoint", "8M", *server.uris]

        def durable():
            try:
                with open(journal, encoding="utf-8") as file:
                    marks = [line.split() for line in file if " durable " in line]
            except FileNotFoundError:
                return 0
            return int(marks[-1][2]) if marks else 0
        with subprocess.Popen([support.program(), "copy", *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as copy:
            self.wait_for(lambda: durable() > 0 or copy.poll() is not None)
            server.kill()
            copy.kill()
            copy.communicate()
        before = durable()
        self.assertGreater(before, 0)
        self.assertLess(before, size)
        server = self.serve(*exports)
        summary = self.copy(*arguments)
        self.assertEqual(summary["bytes_resumed"], before)
        self.assertEqual(summary["bytes_copied"], size - before)
        self.assertEqual(self.stats(server)["counters"]["bytes_copied_ram"], size - before)
        self.assertFalse(os.path.exists(journal))
        self.check_same(source, target)

    def check_deaths(self, end):
        size = 64 * MIB
        source = self.image("source", (0, 24 * MIB), (40 * MIB, 20 * MIB), size=size)
        target = self.image("target", size=size)
        exports = ("a=" + source, "b=" + target)
        # All but the last one would take twenty seconds.
        slow = ("a=" + source, "b=" + target + ",delay=write:1s")
        server = self.serve(*slow)
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as driver:
            driver.stdin.write("".join(f"open {key} {uri}\n"
                                       for key, uri in zip("ab", server.uris)) +
                               f"copy b 0 {size} 1 a 0\nwait\nstats b\n")
            driver.stdin.flush()
            for _ in range(2):
                self.assertRegex(driver.stdout.readline(), "^opened ")
            for following in (slow, slow, exports):
                self.wait_for(lambda: self.stats(server)["counters"]["inflight"] > 0)
                end(server)
                server = self.serve(*following)
            for line in driver.stdout:
                if line.startswith("done "):
                    self.assertEqual(line.split()[4:6], ["0", str(size)], line)
                if line.startswith("stats "):
                    self.assertGreaterEqual(int(line.split()[2]), 1)
                    break
            driver.stdin.close()
            self.assertEqual(driver.wait(), 0)
        server.stop()
        self.check_same(source, target)

    def test_servers_that_are_killed(self):
        self.check_deaths(support.Server.kill)

    def test_servers_that_stop(self):
        self.check_deaths(support.Server.stop)

    def test_a_source_in_memory_that_is_gone(self):
        """The next server has other bytes there: nothing is made up."""
        target = self.image("target", (0, MIB), size=MIB)
        exports = ("a=memory:1M", "b=" + target + ",delay=write:3600s")
        server = self.serve(*exports)
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as driver:
            driver.stdin.write(f"open a {server.uris[0]}\nopen b {server.uris[1]}\n"
                               f"write a 0 {MIB} 0\nwait\ncopy b 0 {MIB} 0 a 0\nwait\n")
            driver.stdin.flush()
            line = ""
            while not line.startswith("waited"):
                line = driver.stdout.readline()
            self.wait_for(lambda: self.stats(server)["counters"]["inflight"] > 0)
            server.kill()
            server = self.serve("a=memory:1M", "b=" + target)
            output, _ = driver.communicate()
        done = [line.split() for line in output.splitlines() if " copy " in line]
        self.assertIn(int(done[0][4]), (-116, -107), output)

    def test_clients_that_go(self):
        """The server outlives them, and has nothing in flight afterwards."""
        source = self.image("source", (0, 32 * MIB), size=32 * MIB)
        target = self.image("target", size=32 * MIB)
        for keys in ("", ",delay=any:5ms", ",mode=direct", ",rate=1M"):
            server = self.serve("a=" + source + keys, "b=" + target + keys)
            with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True) as driver:
                driver.stdin.write(f"open a {server.uris[0]}\nopen b {server.uris[1]}\n")
                for at in range(0, 32, 2):
                    driver.stdin.write(f"copy b {at * MIB} {2 * MIB} 0 a {at * MIB}\n")
                driver.stdin.write("turn 0\n")
                driver.stdin.flush()
                line = ""
                while not line.startswith("turned"):
                    line = driver.stdout.readline()
                driver.kill()
                driver.communicate()
            self.wait_for(lambda: self.stats(server)["counters"]["connections"] == 0)
            self.assertEqual(self.stats(server)["counters"]["inflight"], 0)
            results, _ = self.results(server.uris, f"b 0 {MIB} 0 a {MIB}")
            self.assertEqual(results, [(0, MIB)])
            self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    DRIVER = os.path.realpath(sys.argv.pop(2))
    support.main()
