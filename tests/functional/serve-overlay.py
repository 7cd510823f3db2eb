#!/usr/bin/python3
"""Overlays: two exports on one image that is never written, what survives a killed server, and what
is refused."""
import hashlib
import json
import os
import random
import signal
import subprocess

import nbdmini
import support

MIB = 1 << 20
SIZE = 8 * MIB + 4096 + 512
BLOCK = 4096


class Overlay(support.Case):
    def setUp(self):
        super().setUp()
        self.random = random.Random(7)
        self.base = self.path("golden.img")
        with open(self.base, "wb") as file:
            file.write(self.random.randbytes(4 * MIB))
            file.truncate(SIZE)  # a hole
        self.hash = self.base_hash()

    def base_hash(self):
        with open(self.base, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def base_bytes(self):
        with open(self.base, "rb") as file:
            return bytearray(file.read())

    def serve(self, *names, **arguments):
        exports = []
        for name in names:
            exports += ["--export", f"{name}={self.base},overlay={self.path(name + '.overlay')}"]
        return self.start_unix(*exports, uri_count=len(names), **arguments)

    def scribble(self, client, image, rounds):
        """Random changes of any alignment, done to the image as well."""
        for _ in range(rounds):
            length = self.random.choice([1, 511, 512, 4096, 5000, 65536, 200000])
            offset = self.random.randrange(SIZE - length)
            if self.random.random() < 0.7:
                data = self.random.randbytes(length)
                client.write(offset, data)
            else:
                data = bytes(length)
                self.zero(client, offset, length)
            image[offset:offset + length] = data

    def zero(self, client, offset, length):
        client.send_request(nbdmini.CMD_WRITE_ZEROES, 5, offset, length)
        self.assertEqual(client.reply(), (5, 0))

    def check_all(self, client, image):
        for offset in range(0, SIZE, MIB):
            length = min(MIB, SIZE - offset)
            self.assertEqual(client.read(offset, length), bytes(image[offset:offset + length]))

    def test_two_exports_on_one_base(self):
        images = {b"a": self.base_bytes(), b"b": self.base_bytes()}
        server = self.serve("a", "b")
        with nbdmini.open_export(server.uri, b"a") as one, \
                nbdmini.open_export(server.uri, b"b") as two:
            for _ in range(5):
                self.scribble(one, images[b"a"], 20)
                self.scribble(two, images[b"b"], 20)
            self.check_all(one, images[b"a"])
            self.check_all(two, images[b"b"])
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.base_hash(), self.hash)
        # An end in order loses nothing, flushed or not.
        server = self.serve("a", "b")
        for name, image in images.items():
            with nbdmini.open_export(server.uri, name) as client:
                self.check_all(client, image)
        self.assertEqual(server.stop()[0], 0)

    def test_killed_server(self):
        image = self.base_bytes()
        for _ in range(4):
            server = self.serve("a")
            with nbdmini.open_export(server.uri, b"a") as client:
                self.check_all(client, image)
                self.scribble(client, image, 30)
                client.flush()
                # What comes now may be lost, block by block, and is put back below.
                client.write(10 * BLOCK + 5, b"later" * 100)
                server.signal(signal.SIGKILL)
                server.process.wait()
            server = self.serve("a")
            with nbdmini.open_export(server.uri, b"a") as client:
                data = client.read(10 * BLOCK, 2 * BLOCK)
                new = bytearray(image[10 * BLOCK:12 * BLOCK])
                new[5:505] = b"later" * 100
                self.assertIn(data, (bytes(image[10 * BLOCK:12 * BLOCK]), bytes(new)))
                image[10 * BLOCK:12 * BLOCK] = data
                self.check_all(client, image)
            self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.base_hash(), self.hash)

    def test_discard(self):
        server = self.start_unix("--export", f"={self.base},overlay=discard")
        image = self.base_bytes()
        with nbdmini.open_export(server.uri, b"") as client:
            self.scribble(client, image, 20)
            self.check_all(client, image)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.base_hash(), self.hash)
        self.assertEqual(os.listdir(self.path("")), ["golden.img"])

    def test_map_and_copy(self):
        server = self.serve("a")
        image = self.base_bytes()
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(6 * MIB, b"x" * 65536)      # data in the base's hole
            self.zero(client, MIB, MIB)              # a hole in its data
        image[6 * MIB:6 * MIB + 65536] = b"x" * 65536
        image[MIB:2 * MIB] = bytes(MIB)
        done = subprocess.run([support.program(), "info", "--map", "--json", server.uri],
                              capture_output=True, text=True, check=True)
        extents = [(extent["offset"], extent["length"], extent["type"] != "data")
                   for extent in json.loads(done.stdout)["extents"]]
        self.assertEqual(extents[:5], [
            (0, MIB, False), (MIB, MIB, True), (2 * MIB, 2 * MIB, False),
            (4 * MIB, 2 * MIB, True), (6 * MIB, 65536, False)])
        copy = self.path("copy.img")
        subprocess.run([support.program(), "copy", server.uri, copy], check=True,
                       capture_output=True)
        with open(copy, "rb") as file:
            self.assertEqual(file.read(), bytes(image))
        self.assertLess(os.stat(copy).st_blocks * 512, 5 * MIB)
        self.assertEqual(server.stop()[0], 0)

    def test_base_that_has_changed(self):
        self.assertEqual(self.serve("a").stop()[0], 0)
        with open(self.base, "r+b") as file:
            file.write(b"changed")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), "--export",
                            f"a={self.base},overlay={self.path('a.overlay')}"], 1,
                           "no longer fits", "start a new overlay")

    def check(self, *arguments):
        code, output, errors = self.run_gmblock("check", "--json", *arguments)
        self.assertEqual(errors, "")
        found = json.loads(output)
        self.assertEqual(code, 1 if found["faults"] else 0)
        return found

    def test_the_disk_itself_is_no_overlay(self):
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), "--export",
                            f"disk={self.base},overlay={self.base}"], 1, "is the disk itself; name another file")

    def test_refused_without_a_file(self):
        """Nothing is created for an export that cannot be served."""
        new = self.path("new")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), "--export",
                            f"disk={self.base},overlay={new},failover=cluster"], 1, "the state of other disks (overlays)")
        self.assertFalse(os.path.exists(new))

    def test_check(self):
        server = self.serve("a")
        with nbdmini.open_export(server.uri, b"a") as client:
            client.write(5000, b"x")
            client.write(SIZE - 1, b"x")  # the last block has 512 bytes
            self.zero(client, MIB, MIB)
        self.assertEqual(server.stop()[0], 0)
        overlay = self.path("a.overlay")
        whole = {"format": "overlay", "base": self.base, "size": SIZE,
                 "changed": MIB + 4096 + 512, "faults": []}
        self.assertEqual(self.check(overlay), whole)
        code, output, errors = self.run_gmblock("check", overlay)
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, rf"format +overlay\nbase +{self.base}\nsize +8.0 MiB .*\n"
                                 r"changed +1.0 MiB \(1053184 bytes\)\n")
        code, output, errors = self.run_gmblock("info", "--local", "--path", overlay)
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, rf"\nbase +{self.base}\nsize +8.0 MiB .*\n"
                                 r"changed +1.0 MiB \(1053184 bytes\)\n")
        code, output, errors = self.run_gmblock("info", "--local", "--json", "--path", overlay)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(json.loads(output)["path"]["overlay"], whole)
        output = self.run_gmblock("info", "--local", "--json", "--path", self.base)[1]
        self.assertIsNone(json.loads(output)["path"]["overlay"])
        moved = self.path("moved.img")
        os.rename(self.base, moved)
        self.assertIn("does not exist", self.check(overlay)["faults"][0])
        self.assertEqual(self.check("--base", moved, overlay), dict(whole, base=moved))
        with open(overlay, "r+b") as file:
            file.seek(4096 + 4095)
            file.write(b"\x01")
            file.flush()
            self.assertIn("beyond the end", self.check("--base", moved, overlay)["faults"][0])
            file.seek(20)
            file.write(b"\x01")
        found = self.check("--base", moved, overlay)
        self.assertIn("checksum", found["faults"][0])
        self.assertNotIn("size", found)
        self.check_refused(["check", moved], 1, "neither an overlay nor a flash store")
        self.check_refused(["check", self.path("none")], 1, "does not exist")
        self.check_refused(["check"], 2, "give the FILE")
        for repair in "--rebuild", "--accept-loss":
            self.check_refused(["check", repair, overlay], 1, "is an overlay", "only flash stores can be repaired")
        flash = self.path("flash")
        self.assertEqual(self.run_gmblock("create", "--size=64M", f"flash:{flash}"), (0, "", ""))
        for path in flash, f"flash:{flash}":
            self.check_refused(["check", "--base", moved, path], 1, "has no base")
        new = f"overlay:{self.path('new')}"
        for base, words in (overlay, "name the base of that overlay"), (flash, "gmblock copy"):
            self.check_refused(["create", "--base", base, new], 1, "must be a raw disk", words)
        with open(moved, "r+b") as file:
            file.write(b"QFI\xfb")
        self.check_refused(["create", "--base", moved, new], 1, "qcow2 image", "qemu-img convert")
        self.assertFalse(os.path.exists(self.path("new")))

    def test_a_check_takes_what_create_takes(self):
        overlay, store = self.path("x.overlay"), self.path("x.flash")
        self.assertEqual(self.run_gmblock("create", "--base", self.base, f"overlay:{overlay}")[0], 0)
        self.assertEqual(self.run_gmblock("create", "--size=64M", f"flash:{store}")[0], 0)
        for kind, file in ("overlay", overlay), ("flash", store):
            plain = self.run_gmblock("check", "--json", file)
            self.assertEqual((plain[0], json.loads(plain[1])["faults"]), (0, []))
            self.assertEqual(self.run_gmblock("check", "--json", f"{kind}:{file}"), plain)

    def test_keys_that_open_the_disk_anew(self):
        control = self.path("control")
        server = self.start_unix(
            "--control", control, "--export", f"a={self.base},overlay={self.path('a.overlay')}",
            "--export", f"b={self.base},overlay=discard", uri_count=2)
        with nbdmini.open_export(server.uri, b"b") as client:
            client.write(0, b"kept")
            for name in "ab":
                code, _, errors = self.run_gmblock("export", "set", name, "mode=direct",
                                                   "--server", control)
                self.assertEqual(code, 1)
                self.assertIn("mode=direct (was default) would reopen the disk of the export", errors)
                self.assertIn("remove the export and add it again", errors)
            self.assertEqual(client.read(0, 4), b"kept")
            code, _, errors = self.run_gmblock("export", "set", "a", "rate=1G",
                                               "--server", control)
            self.assertEqual((code, errors), (0, ""))
        self.assertEqual(server.stop()[0], 0)

    def test_served_as_a_plain_disk(self):
        self.assertEqual(self.serve("a").stop()[0], 0)
        overlay = self.path("a.overlay")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), overlay], 1,
                           f"'{overlay}' is an overlay", "export that with overlay=FILE (--export =PATH,overlay=FILE)")
        # A base is a whole disk, too.
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), "--export",
                            f"={overlay},overlay={self.path('b.overlay')}"], 1, "is an overlay")
        self.assertEqual(self.start_unix("--export", f"={overlay},format=raw").stop()[0], 0)

    def test_one_server_has_it(self):
        server = self.serve("a")
        overlay = self.path("a.overlay")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), "--export",
                            f"a={self.base},overlay={overlay}"], 1, f"'{overlay}'",
                           "already served")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"), self.base], 1,
                           f"'{self.base}'", "the base of an overlay")
        self.check_refused(["copy", overlay, self.base], 1, "the target", "is the base of an overlay")
        self.check_refused(["serve", "--listen", self.socket_uri("refused"),
                            "--export", f"a={self.base},overlay={self.path('b.overlay')}",
                            "--export", f"b={self.base},overlay={self.path('b.overlay')}"], 1,
                           "give each export its own file")
        # Another overlay on the same base is nobody's business.
        other = self.start("--export", f"={self.base},overlay={self.path('c.overlay')}",
                           "--listen", self.socket_uri("other"))
        self.assertEqual(other.stop()[0], 0)
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    support.main()
