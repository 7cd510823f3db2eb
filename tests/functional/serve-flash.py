#!/usr/bin/python3
"""Flash stores: made, served, killed, checked; damaged blocks are errors and never data."""
import collections
import errno
import glob
import json
import os
import random
import re
import signal
import struct
import subprocess
import tempfile
import threading

import nbdmini
import support

MIB = 1 << 20
FILE = 64 * MIB
BLOCK = 4096
ATOMIC = 240 * BLOCK


Result = collections.namedtuple("Result", "returncode stdout stderr")


class Flash(support.Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(7)
        self.file = self.path("disk.flash")
        self.assertEqual(self.gmblock("create", f"--size={FILE}", "--segment=256K", "--label=a b",
                                      f"flash:{self.file}").returncode, 0)
        found = self.check()
        self.size = found["size"]
        self.uuid = found["uuid"]

    def gmblock(self, *arguments):
        return Result(*self.run_gmblock(*arguments))

    def check(self, faults=0):
        result = self.gmblock("check", "--json", self.file)
        found = json.loads(result.stdout)
        self.assertEqual(len(found["faults"]), faults, found)
        self.assertEqual(result.returncode, 1 if faults else 0)
        return found

    def caches(self, folder="/dev/shm"):
        return glob.glob(f"{folder}/gmblock-{self.uuid}-*.cache")

    def serve(self, *keys, options=()):
        return self.start_unix("--export", ",".join(["=flash:" + self.file, *keys]), *options)

    def scribble(self, client, image, rounds):
        """Random changes of any alignment, done to the image as well."""
        for _ in range(rounds):
            length = self.random.choice([1, 511, 4096, 5000, 65536, 300000])
            offset = self.random.randrange(self.size - length)
            if self.random.random() < 0.8:
                data = self.random.randbytes(length)
                client.write(offset, data)
            else:
                data = bytes(length)
                client.send_request(nbdmini.CMD_WRITE_ZEROES, 5, offset, length)
                self.assertEqual(client.reply(), (5, 0))
            image[offset:offset + length] = data

    def check_all(self, client, image):
        for offset in range(0, self.size, MIB):
            length = min(MIB, self.size - offset)
            self.assertEqual(client.read(offset, length), bytes(image[offset:offset + length]))

    def test_what_was_answered_survives_a_killed_server(self):
        image = bytearray(self.size)
        for number in range(4):
            server = self.serve("mode=direct" if number == 2 else "mode=cached",
                                ["cache=1M", "cache=2M", "cache=0", "cache=0"][number])
            with nbdmini.open_export(server.uri, b"") as client:
                self.check_all(client, image)
                self.scribble(client, image, 60)
            server.signal(signal.SIGKILL)
            server.process.wait()
            self.assertEqual([self.check().get("cache")], self.caches(), number)
        for keys in [], ["readonly"]:
            server = self.serve(*keys)
            with nbdmini.open_export(server.uri, b"") as client:
                self.check_all(client, image)
            self.assertEqual(server.stop()[0], 0)
            self.assertEqual(self.caches(), [])
        self.assertNotIn("cache", self.check())

    def test_a_check_beside_a_server(self):
        server = self.serve("cache=1M")
        with nbdmini.open_export(server.uri, b"") as client:
            client.write(0, b"x" * 4096)
            found = self.check()
            self.assertEqual((found["cache"], found["cache-note"]), ("in-use", "a server is using the cache file"))
            self.assertIn("a server has the store open for writing", found["writer"])
        self.assertEqual(server.stop()[0], 0)
        self.assertNotIn("writer", self.check())

    def test_a_damaged_map_is_rebuilt(self):
        image = bytearray(self.size)
        server = self.serve("cache=0")
        with nbdmini.open_export(server.uri, b"") as client:
            self.scribble(client, image, 40)
        self.assertEqual(server.stop()[0], 0)
        with open(self.file, "r+b") as file:
            top, = struct.unpack("<I", os.pread(file.fileno(), 4, 512))
            for copy in range(2):
                os.pwrite(file.fileno(), b"damage", (top + copy) * BLOCK + 8)
        faults = self.check(faults=2)["faults"]
        self.assertRegex(faults[0], r"^bytes 0 to \d+ of the disk cannot be read")
        server = self.serve("readonly")
        with nbdmini.open_export(server.uri, b"") as client:
            client.send_request(nbdmini.CMD_READ, 7, 0, BLOCK)
            self.assertEqual(client.reply()[1], errno.EIO)
        server.stop()
        status, _, stderr = self.run_gmblock("serve", "--run", "true", f"--export==flash:{self.file}")
        self.assertEqual(status, 1)
        self.assertIn("'gmblock check --rebuild' restores the map", stderr)
        result = self.gmblock("check", "--rebuild", self.file)
        self.assertEqual((result.returncode, "wrong" in result.stdout), (0, False), result)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            self.check_all(client, image)

    def make_large_segments(self):
        """With room for the longest record; returns the size of the disk."""
        os.remove(self.file)
        self.assertEqual(self.gmblock("create", f"--size={FILE}", "--segment=1M",
                                      f"flash:{self.file}").returncode, 0)
        found = self.check()
        self.assertEqual(found["atomic"], ATOMIC)
        return found["size"]

    def write_for_ever(self, client, slot, seed, written, answered):
        """Durable writes to a place of its own, until the server is gone."""
        numbers = random.Random(seed)
        try:
            with client:
                while True:
                    data = numbers.randbytes(BLOCK * numbers.randint(1, ATOMIC // BLOCK))
                    written.append(data)
                    client.send_request(nbdmini.CMD_WRITE, 9, slot * MIB, len(data), data,
                                        nbdmini.CMD_FLAG_FUA)
                    self.assertEqual(client.reply(), (9, 0))
                    answered.release()
        except (EOFError, OSError):
            pass

    def test_durable_writes_are_whole_after_a_kill(self):
        """With memory for a few of them."""
        slots = self.make_large_segments() // MIB
        image = [bytes(MIB)] * slots
        for number in range(3):
            server = self.serve("cache=0", f"mode={['cached', 'direct', 'cached'][number]}",
                                options=("--threads", "1", "--memory", "12M"))
            answered = threading.Semaphore(0)
            written = [[] for _ in range(slots)]
            threads = [threading.Thread(target=self.write_for_ever, args=(
                nbdmini.open_export(server.uri, b""), slot, slots * number + slot,
                written[slot], answered)) for slot in range(slots)]
            for thread in threads:
                thread.start()
            for _ in range(2 * slots):
                answered.acquire()
            server.signal(signal.SIGKILL)
            server.process.wait()
            for thread in threads:
                thread.join()
            server = self.serve()
            with nbdmini.open_export(server.uri, b"") as client:
                for slot, writes in enumerate(written):
                    # The last one may not have been answered.
                    states = [image[slot]]
                    for data in writes:
                        states.append(data + states[-1][len(data):])
                    image[slot] = client.read(slot * MIB, MIB)
                    self.assertIn(image[slot], states[-2:], (number, slot))
            self.assertEqual(server.stop()[0], 0)

    def test_what_is_promised_is_told_over_gmb(self):
        self.make_large_segments()
        for memory, promised in ("4M", 256 << 10), ("12M", ATOMIC):
            listen = "gmb+unix:///?socket=" + self.path("g" + memory)
            server = self.start("--export", "=flash:" + self.file, "--export", "m=memory:1M",
                                "--listen", listen, "--threads", "1", "--memory", memory)
            told = [json.loads(self.gmblock("info", "--json", uri).stdout)["exports"][0]
                    for uri in (listen, listen.replace("///", "///m"))]
            self.assertEqual([export["atomic_bytes"] for export in told], [promised, 0])
            self.assertEqual(server.stop()[0], 0)

    def leave_changes(self, *keys, folder="/dev/shm", flush=False):
        """In the cache of a server that is killed. Returns its path."""
        server = self.serve("cache=1M", *keys)
        with nbdmini.open_export(server.uri, b"") as client:
            client.write(0, bytes([1]) * BLOCK)
            if flush:
                client.flush()
        server.signal(signal.SIGKILL)
        server.process.wait()
        path, = self.caches(folder)
        return path

    def test_a_store_in_the_page_cache_has_direct_reads_at_its_start_only(self):
        server = self.serve("mode=cached")
        folder = f"/proc/{server.process.pid}/fd"
        flags = []
        for number in os.listdir(folder):
            if os.readlink(f"{folder}/{number}") == self.file:
                with open(f"{folder}info/{number}", encoding="ascii") as file:
                    flags.append(int(re.search(r"flags:\s+(\d+)", file.read())[1], 8))
        self.assertNotEqual(flags, [])
        self.assertEqual([flag for flag in flags if flag & os.O_DIRECT], [])
        self.assertEqual(server.stop(), (0, ""))

    def test_changes_that_cannot_be_had_are_told(self):
        cache = self.leave_changes()
        self.refused("has 1 changed block in", keys=["readonly"])
        away = self.path("away")
        with open(cache, "rb") as file:
            contents = file.read()

        def put(mode=0o600):
            with open(cache, "wb") as file:
                file.write(contents)
            os.chmod(cache, mode)

        for told, forge in {
                "is accessible to other users": lambda: put(0o644),
                "is not a regular file with exactly one hard link": lambda: (put(), os.link(cache, cache + "2")),
                "the path is a symbolic link": lambda: os.symlink(away, cache),
                "belongs to another user": lambda: (put(), os.chown(cache, 65534, -1)),
        }.items():
            if told == "belongs to another user" and os.geteuid() != 0:
                continue
            os.remove(cache)
            forge()
            self.refused(told, keys=["cache=1M"])
            self.refused(told, keys=["readonly"])
            if os.path.exists(cache + "2"):
                os.remove(cache + "2")
        os.remove(cache)
        server = self.serve("readonly")
        with nbdmini.open_export(server.uri, b"") as client:
            self.assertEqual(client.read(0, BLOCK), bytes(BLOCK))
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("are lost: no cache file", errors)
        put()
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
        self.assertEqual(server.stop()[0], 0)

    def test_a_cache_file_without_changes_in_another_folder(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, \
                tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            cache = self.leave_changes("cache-dir=" + other, folder=other, flush=True)
            self.refused(f"has a cache file without changes, '{cache}'; serve the store once with cache-dir={other}",
                         keys=["cache-dir=" + folder])
            for keys in ("cache-dir=" + other, "cache-dir=" + folder):
                server = self.serve(keys)
                with nbdmini.open_export(server.uri, b"") as client:
                    self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
                self.assertEqual(server.stop(), (0, ""))

    def unusable_folders(self):
        """With what is said of each."""
        plain = os.path.dirname(self.file)
        found = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", plain], capture_output=True,
                               text=True, check=False).stdout.strip()
        folders = {"/nonexistent": "No such file", self.file: "Not a directory", "/proc": "is not on a tmpfs"}
        if found not in ("", "tmpfs"):
            folders[plain] = "is not on a tmpfs"
        if os.geteuid() != 0:
            folders["/run"] = "Permission denied"
        return folders

    def test_changes_are_not_lost_by_a_wrong_folder(self):
        self.leave_changes()
        for folder, told in self.unusable_folders().items():
            for key in ("cache=1M", "cache=0", "readonly"):
                self.refused("may have changes in a cache file", folder, told, "correct cache-dir",
                             keys=[key, "cache-dir=" + folder])
        server = self.serve("cache=0")
        with nbdmini.open_export(server.uri, b"") as client:
            self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertNotIn("lost", errors)
        self.assertEqual(self.caches(), [])
        # The store knows where the file is; without that, and in a folder that could have it, it is lost.
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, \
                tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            cache = self.leave_changes("cache-dir=" + other, folder=other)
            self.assertEqual(self.check()["cache"], cache)
            self.assertEqual(self.check()["cached"], BLOCK)
            for keys in (["cache-dir=" + folder], ["cache=0", "cache-dir=" + folder],
                         ["readonly", "cache-dir=" + folder]):
                self.refused("has 1 changed block in its cache file", cache, "serve it with cache-dir=" + other, keys=keys)
            self.refused("has 1 changed block in", cache, keys=["readonly"])
            server = self.serve("cache-dir=" + other)
            with nbdmini.open_export(server.uri, b"") as client:
                self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
            self.assertEqual(server.stop(), (0, ""))
            os.remove(self.leave_changes("cache-dir=" + other, folder=other))
            self.assertEqual(self.check()["cache"], "missing")
            self.assertIn(f"in another folder than '{other}'", self.check()["cache-note"])
            server = self.serve("cache-dir=" + folder)
            with nbdmini.open_export(server.uri, b"") as client:
                self.assertEqual(client.read(0, BLOCK), bytes([1]) * BLOCK)
            status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertIn("are lost: no cache file", errors)

    def test_a_store_that_is_served_is_not_opened_again(self):
        control = self.path("control")
        server = self.start_unix("--control", control, "--export", f"a=flash:{self.file}")
        for key, told in {"cache=1M": "a flash store does not allow", "readonly": "a flash store does not allow",
                          "description=b": ""}.items():
            result = self.gmblock("export", "set", "a", key, "--server", control)
            self.assertEqual(result.returncode, 1 if told else 0, result.stderr)
            self.assertIn(told, result.stderr)
        self.assertEqual(server.stop()[0], 0)

    def test_keys_of_flash_stores_are_refused_for_other_disks(self):
        plain = self.make_file("plain", bytes(MIB))
        for key in ("map-memory=64M", "cache=1M", "cache-dir=/dev/shm", "on-full=refuse"):
            for path in (plain, "memory:1M"):
                self.check_refused(["serve", "--export", f"={path},{key}", "--listen", self.socket_uri("t")], 1, path,
                                   f"the key {key[:key.index('=')]} is only for disks whose path begins with flash:")
        self.refused("the key format is only for files and block devices", keys=["format=raw"])

    def test_a_store_without_a_cache_file_is_served_without_a_cache(self):
        for folder, told in self.unusable_folders().items():
            before = os.listdir(folder) if os.path.isdir(folder) and folder != "/proc" else None
            server = self.serve("cache-dir=" + folder)
            with nbdmini.open_export(server.uri, b"") as client:
                client.write(0, bytes([2]) * BLOCK)
            status, errors = server.stop()
            self.assertEqual(status, 0)
            self.assertIn("has no write cache", errors)
            self.assertIn(told, errors)
            if before is not None:
                self.assertEqual([name for name in os.listdir(folder) if name not in before], [])
        self.assertEqual(self.check()["used"], BLOCK)

    def test_the_collector_makes_room(self):
        server = self.serve()
        image = bytearray(self.size)
        with nbdmini.open_export(server.uri, b"") as client:
            for offset in range(0, self.size, MIB):
                data = self.random.randbytes(min(MIB, self.size - offset))
                client.write(offset, data)
                image[offset:offset + len(data)] = data
            for _ in range(3000):
                offset = self.random.randrange(self.size // BLOCK) * BLOCK
                data = self.random.randbytes(BLOCK)
                client.write(offset, data)
                image[offset:offset + BLOCK] = data
            self.check_all(client, image)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_space_that_is_not_used_is_given_back(self):
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            data = self.random.randbytes(MIB)
            for offset in range(0, self.size - MIB, MIB):
                client.write(offset, data)
            client.flush()
            self.assertGreater(os.stat(self.file).st_blocks * 512, self.size - 2 * MIB)
            client.send_request(nbdmini.CMD_TRIM, 5, 0, self.size // BLOCK * BLOCK)
            self.assertEqual(client.reply(), (5, 0))
            # The collector and a checkpoint come with writes; so do discards, one with each at least, and large
            # writes alone may need the space as fast as it is given back.
            while os.stat(self.file).st_blocks * 512 > FILE // 2:
                client.write(0, data)
                for block in range(16):
                    client.write(block * BLOCK, data[block * BLOCK:(block + 1) * BLOCK])
                    client.flush()
            self.assertEqual(client.read(0, MIB), data)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_a_file_that_has_all_its_space_keeps_it(self):
        self.file = self.path("full.flash")
        with open(self.file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, FILE)
        self.assertEqual(self.gmblock("create", "--segment=256K", f"flash:{self.file}").returncode, 0)
        space = os.stat(self.file).st_blocks
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for _ in range(3):
                for offset in range(0, self.size - MIB, MIB):
                    client.write(offset, bytes(MIB))
        self.assertEqual(server.stop()[0], 0)
        self.assertGreaterEqual(os.stat(self.file).st_blocks, space)

    def mount_small(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to mount a small tmpfs")
        small = self.path("small")
        os.mkdir(small)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M", "none", small],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest("cannot mount a tmpfs: " + done.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        return small

    def test_changes_that_a_full_filesystem_leaves_in_the_cache_are_told(self):
        small = self.mount_small()
        self.file = os.path.join(small, "disk.flash")
        self.assertEqual(self.gmblock("create", f"--size={FILE}", "--segment=256K",
                                      f"flash:{self.file}").returncode, 0)
        self.uuid = self.check()["uuid"]
        server = self.serve("cache=4M")
        cache, = self.caches()
        blocks = {}
        with nbdmini.open_export(server.uri, b"") as client:
            for offset in range(0, 40 * MIB, BLOCK):
                data = self.random.randbytes(BLOCK)
                client.send_request(nbdmini.CMD_WRITE, 5, offset, BLOCK, data)
                if client.reply() != (5, 0):
                    break
                blocks[offset] = data
        status, errors = server.stop()
        self.assertEqual(status, 1, errors)
        self.assertRegex(errors, rf"\d+ changed blocks? (is|are) only in its cache file '{cache}', which is in memory")
        self.refused("free space in the filesystem", "changed blocks in the store's cache file", cache)
        subprocess.run(["mount", "-o", "remount,size=80M", small], check=True)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for offset, data in blocks.items():
                self.assertEqual(client.read(offset, BLOCK), data)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_changes_that_the_end_of_the_server_cannot_write_are_told(self):
        small = self.mount_small()
        self.file = os.path.join(small, "disk.flash")
        self.assertEqual(self.gmblock("create", f"--size={FILE}", "--segment=256K",
                                      f"flash:{self.file}").returncode, 0)
        self.uuid = self.check()["uuid"]
        server = self.serve("cache=4M")
        cache, = self.caches()
        data = [self.random.randbytes(BLOCK) for _ in range(500)]
        with nbdmini.open_export(server.uri, b"") as client:
            for number, block in enumerate(data):
                client.write(number * BLOCK, block)
        filler = os.path.join(small, "filler")
        with open(filler, "wb", buffering=0) as file, self.assertRaises(OSError) as full:
            while True:
                file.write(bytes(BLOCK))
        self.assertEqual(full.exception.errno, errno.ENOSPC)
        status, errors = server.stop()
        self.assertEqual(status, 1, errors)
        self.assertRegex(errors, rf"\d+ changed blocks? (is|are) only in its cache file '{cache}', which is in memory")
        os.remove(filler)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for number, block in enumerate(data):
                self.assertEqual(client.read(number * BLOCK, BLOCK), block)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_a_full_filesystem_can_be_read_and_recovers_with_room(self):
        small = self.mount_small()
        self.file = os.path.join(small, "disk.flash")
        result = self.gmblock("create", f"--size={FILE}", "--segment=256K", f"flash:{self.file}")
        self.assertEqual(result.returncode, 0)
        self.assertIn("might need 64 MiB, but its filesystem has only 23 MiB left", result.stderr)
        data = [self.random.randbytes(MIB) for _ in range(40)]
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for written in range(len(data)):
                client.send_request(nbdmini.CMD_WRITE, 5, written * MIB, MIB, data[written])
                reply = client.reply()
                if reply != (5, 0):
                    break
            self.assertEqual(reply, (5, 28))
            self.assertGreater(written, 15)
            client.send_request(nbdmini.CMD_WRITE, 6, 0, BLOCK, bytes(BLOCK))
            self.assertEqual(client.reply(), (6, 28))
            for number in range(written):
                self.assertEqual(client.read(number * MIB, MIB), data[number])
        _, errors = server.stop()
        self.assertIn("the store is read-only until the server opens it again; first free space in", errors)
        self.refused("cannot write the checkpoint", "free space in the filesystem", "'readonly'")
        self.assertEqual(self.serve("readonly").stop()[0], 0)
        subprocess.run(["mount", "-o", "remount,size=80M", small], check=True)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for number in range(written):
                self.assertEqual(client.read(number * MIB, MIB), data[number])
            for number in range(written, len(data)):
                client.write(number * MIB, data[number])
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def test_a_long_log_says_how_far_it_is_read(self):
        self.file = self.path("long.flash")
        self.assertEqual(self.gmblock("create", f"--size={16 * FILE}", f"flash:{self.file}").returncode, 0)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for number in range(140):
                client.write(number * MIB, bytes(MIB))
        server.signal(signal.SIGKILL)
        server.process.wait()
        self.assertIn("read 128 MiB of the log", self.gmblock("check", "--log-level=info", self.file).stderr)
        _, errors = self.start_unix("--log-level=info", f"flash:{self.file}").stop()
        self.assertIn("read 128 MiB of the log", errors)
        self.file = self.path("large.flash")
        self.assertEqual(self.gmblock("create", "--size=20G", f"flash:{self.file}").returncode, 0)
        self.assertIn("49 % of the disk has been checked", self.gmblock("check", "--log-level=info", self.file).stderr)

    def test_a_damaged_block_is_an_error(self):
        server = self.serve()
        marks = [bytes([65 + i]) * BLOCK for i in range(3)]
        with nbdmini.open_export(server.uri, b"") as client:
            for number, mark in enumerate(marks):
                client.write(number * MIB, mark)
        self.assertEqual(server.stop()[0], 0)
        with open(self.file, "r+b") as file:
            contents = file.read()
            places = [contents.index(mark) for mark in marks]
            # One bit is flipped; one block has another one's contents.
            file.seek(places[0] + 100)
            file.write(bytes([65 ^ 4]))
            file.seek(places[1])
            file.write(marks[2])
        self.check(faults=1)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for number, mark in enumerate(marks):
                client.send_request(nbdmini.CMD_READ, 7, number * MIB, BLOCK)
                self.assertEqual(client.reply(), (7, 0 if number == 2 else 5))
                if number == 2:
                    self.assertEqual(client.receive(BLOCK), mark)
        self.assertEqual(server.stop()[0], 0)

    def records(self):
        """Number, and place in the file, of each header."""
        with open(self.file, "rb") as file:
            contents = file.read()
        places = [at for at in range(256 * BLOCK, FILE, BLOCK) if contents[at:at + 4] == b"GFLR"]
        return sorted((int.from_bytes(contents[at + 24:at + 32], "little"), at) for at in places)

    def test_a_log_that_lost_what_was_flushed_is_refused(self):
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            for number in range(6):
                client.write(number * MIB, bytes([65 + number]) * BLOCK)
                client.flush()
        server.signal(signal.SIGKILL)
        server.process.wait()
        self.check()
        self.damage(self.records()[-3][1] + 200, b"x")
        found = self.check(faults=1)
        self.assertIn("2 flushed records from there on are lost", str(found["faults"]))
        self.refused("the log of the flash store", "2 flushed records",
                     "export the disk with readonly (")
        server = self.serve("readonly")
        with nbdmini.open_export(server.uri, b"") as client:
            for number in range(6):
                self.assertEqual(client.read(number * MIB, BLOCK),
                                 (bytes([65 + number]) if number < 3 else bytes(1)) * BLOCK)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.gmblock("check", "--rebuild", self.file).returncode, 1)  # gives up no data
        result = self.gmblock("check", "--accept-loss", self.file)
        self.assertEqual((result.returncode, "wrong" in result.stdout), (0, False), result)
        self.assertIn("the store is served without these records, as requested", result.stderr)
        server = self.serve()
        with nbdmini.open_export(server.uri, b"") as client:
            client.write(3 * MIB, b"D" * BLOCK)
            for number in range(4):
                self.assertEqual(client.read(number * MIB, BLOCK), bytes([65 + number]) * BLOCK)
        self.assertEqual(server.stop()[0], 0)
        self.check()

    def refused(self, *words, keys=()):
        result = self.gmblock("serve", "--export", ",".join(["=flash:" + self.file, *keys]),
                              "--listen", self.socket_uri("t"))
        self.assertEqual(result.returncode, 1)
        for word in words:
            self.assertIn(word, result.stderr)

    def damage(self, offset, data):
        with open(self.file, "r+b") as file:
            file.seek(offset)
            file.write(data)

    def test_what_cannot_be_opened_says_why(self):
        server = self.serve()
        self.refused("is already served for writing")
        self.assertEqual(server.stop()[0], 0)
        self.damage(40, b"\xff")
        server = self.serve()  # the other anchor does
        self.assertEqual(server.stop()[0], 0)
        self.damage(40, b"\xff")
        self.damage(BLOCK + 40, b"\xff")
        self.refused("anchor A is damaged, anchor B is damaged")
        self.damage(0, bytes(2 * BLOCK))
        self.refused("gmblock create")

    def test_two_exports_of_one_store_are_refused(self):
        _, _, errors = self.run_gmblock("serve", "--export", "a=flash:" + self.file, "--export", "b=flash:" + self.file,
                                        "--listen", self.socket_uri("t"))
        self.assertIn("flash store and already belongs to another export of this server", errors)

    def test_served_as_a_plain_disk(self):
        code, _, errors = self.run_gmblock("serve", self.file, "--listen", self.socket_uri("t"))
        self.assertEqual(code, 1)
        self.assertIn(f"serve it as flash:{self.file}", errors)
        self.assertEqual(self.start_unix("--export", f"={self.file},format=raw").stop()[0], 0)

    def test_a_device_that_has_shrunk_is_refused(self):
        os.truncate(self.file, FILE // 2)
        self.refused("has become smaller")

    def test_create_loses_nothing_unasked(self):
        result = self.gmblock("create", f"flash:{self.file}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("already contains a flash store", result.stderr)
        self.assertEqual(self.gmblock("create", "--force", f"flash:{self.file}").returncode, 0)
        other = self.path("full")
        with open(other, "wb") as file:
            file.write(b"x" * FILE)
        self.assertIn("is not empty", self.gmblock("create", f"flash:{other}").stderr)
        with open(other, "wb") as file:  # where Btrfs has its superblock
            file.truncate(FILE)
            file.seek(65536 + 64)
            file.write(b"_BHRfS_M")
        self.assertIn("is not empty", self.gmblock("create", f"flash:{other}").stderr)
        self.assertIn("--size", self.gmblock("create", "flash:" + self.path("none")).stderr)
        self.assertIn("too small", self.gmblock("create", "--size=1M",
                                                "flash:" + self.path("none")).stderr)
        self.assertIn("--segment: the value must be at least 64K",
                      self.gmblock("create", "--size=8M", "--segment=32K",
                                   "flash:" + self.path("none")).stderr)
        self.assertEqual(self.gmblock("create", "memory:1M").returncode, 2)


if __name__ == "__main__":
    support.main()
