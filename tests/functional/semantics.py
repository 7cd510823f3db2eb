#!/usr/bin/python3
"""The meaning of requests does not depend on what carries them: the same cases, in C through
libgmblock, over every transport, every kind of store and every mode.

    semantics.py GMBLOCK PROGRAM... [TRANSPORT...]

Without transports: all of them.
"""
import json
import os
import subprocess
import sys

import support

PROGRAMS = []
IMAGE_BYTES = 64 << 20
CASE_SECONDS = 200  # far more than any takes

TRANSPORTS = []
VHOST = "vhost-user-blk+unix"

# What is exported: the path, and the keys behind it.
STORES = {
    "file": "{image}",
    "file, direct writes": "{image},write-mode=direct",
    "file, direct": "{image},mode=direct",
    "memory": "memory:64M",
    "file, delayed": "{image},delay=any:200us",
    "file, parts of 64 KiB": "{image},parts=64K",
}

# Cases that need nothing of the export but that it can be written, and is at least 64 MiB long.
CASES = ("wrong-requests", "nothing-to-do", "read-only-by-option", "tiny-scatter-lists",
         "scattered-crowd", "resubmit-from-done", "flood", "close-with-requests", "no-callback",
         "prepared", "several-clients", "event-loop", "placed", "buffer-rules", "list-exports",
         "queue-moves")


# Those that vhost-user-blk cannot do: it has sectors of 512 bytes, and neither cache nor block status.
VHOST_CANNOT = ("tiny-scatter-lists", "wrong-requests")


class Semantics(support.Case):
    def cases(self, uri, names, *arguments):
        """Those of one program in one process."""
        left = set(names)
        for program in PROGRAMS:
            known = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            chosen = [name for name in known.split() if name in left]
            if chosen:
                done = subprocess.run([program, ",".join(chosen), uri, *arguments],
                                      capture_output=True, check=False, timeout=CASE_SECONDS)
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                left.difference_update(chosen)
        self.assertEqual(left, set())

    def listen_uris(self, transport, exports):
        if transport == VHOST:  # a socket for each export
            return [f"{transport}:///{name}?socket=" + self.path(f"vhost-{name}") for name, _ in exports]
        return [f"{transport}:///?socket=" + self.path(transport) if transport.endswith("+unix")
                else f"{transport}://127.0.0.1:0"]

    def serve(self, *exports):
        """A server for all transports; the URIs by transport and export name."""
        listens = [part for transport in TRANSPORTS for uri in self.listen_uris(transport, exports)
                   for part in ("--listen", uri)]
        exported = [part for name, text in exports for part in ("--export", f"{name}={text}")]
        server = self.start(*listens, *exported, uri_count=len(TRANSPORTS) * len(exports))
        return server, {(transport, exports[i % len(exports)][0]): server.uris[i]
                        for i in range(len(server.uris))
                        for transport in [TRANSPORTS[i // len(exports)]]}

    def without_vhost(self):
        """vhost-user-blk has no block status, no names and descriptions of exports, and no texts of errors."""
        return [transport for transport in TRANSPORTS if transport != VHOST]

    def check_store(self, text):
        image = self.path("image")
        with open(image, "wb") as file:
            file.truncate(IMAGE_BYTES)
        server, uris = self.serve(("disk", text.format(image=image)))
        for transport in TRANSPORTS:
            argument = "moved" if transport.startswith("nbd") else "placed"
            with self.subTest(transport=transport):
                cases = [case for case in CASES if transport != VHOST or case not in VHOST_CANNOT]
                self.cases(uris[transport, "disk"], cases, argument)
        self.assertEqual(server.stop(), (0, ""))

    def test_imported_memory(self):
        image = self.make_file("image", bytes(1 << 20))
        _, uris = self.serve(("disk", image + ",mode=direct"), ("ram", "memory:1M"))
        for export in ("disk", "ram"):
            for argument in ("placed", "moved"):
                self.cases(uris["gmb+unix", export], ["imported"], argument)

    def test_read_only(self):
        _, uris = self.serve(("disk", "memory:64M,readonly"))
        for transport in TRANSPORTS:
            with self.subTest(transport=transport):
                self.cases(uris[transport, "disk"], ["read-only"])

    def test_failures_are_told_and_explained(self):
        _, uris = self.serve(("disk", "memory:64M,fault=read:EIO:range=4096+1,fault=write:ENOSPC,"
                                      "fault=zero:EIO:range=4096+1"))
        for transport in self.without_vhost():
            with self.subTest(transport=transport):
                self.cases(uris[transport, "disk"], ["failures"])

    def test_block_status(self):
        image = self.path("sparse")
        with open(image, "wb") as file:
            file.truncate(8 << 20)
            for i in range(100):
                file.seek(65536 * i)
                file.write(b"\1" * 4096)
        _, uris = self.serve(("disk", image))
        for transport in self.without_vhost():
            with self.subTest(transport=transport):
                self.cases(uris[transport, "disk"], ["block-status"], str(100 * 4096))

    def test_what_one_transport_writes_all_read(self):
        _, uris = self.serve(("disk", "memory:8M"))
        for writer in TRANSPORTS:
            content = os.urandom(8 << 20)
            source = self.make_file("source", content)
            self.assertEqual(self.run_gmblock("copy", source, uris[writer, "disk"])[0], 0)
            for reader in TRANSPORTS:
                target = self.path(f"target-{reader}")
                self.assertEqual(self.run_gmblock("copy", uris[reader, "disk"], target)[0], 0)
                with open(target, "rb") as file:
                    self.assertEqual(file.read(), content, (writer, reader))
                os.unlink(target)

    def test_info_and_list_say_the_same(self):
        _, uris = self.serve(("disk", "memory:8M,description=some words"),
                             ("other", "memory:1M,readonly"))
        known = ("name", "description", "size", "block_sizes")
        told = set()
        for transport in self.without_vhost():
            for command in (("info",), ("info", "--list"), ("list",)):
                status, output, _ = self.run_gmblock(*command, "--json", uris[transport, "disk"])
                self.assertEqual(status, 0)
                exports = [{key: export[key] for key in known if key in export}
                           for export in json.loads(output)["exports"]]
                told.add((command, json.dumps(exports)))
        self.assertEqual(len(told), 3, told)
        uri = uris["gmb+unix", "disk"].replace("/disk?", "/none?")
        for command in (("info", uri), ("copy", uri, self.path("target"))):
            status, _, errors = self.run_gmblock(*command)
            self.assertEqual(status, 1)
            self.assertIn("gmb+unix: no export named 'none'\n", errors)

    def test_a_socket_of_the_other_protocol_is_told(self):
        _, uris = self.serve(("disk", "memory:1M"))
        for one, other in (("nbd+unix", "gmb+unix"), ("gmb+unix", "nbd+unix")):
            wrong = uris[one, "disk"].replace(one, other)
            for command in (("info", wrong), ("copy", wrong, self.path("target"))):
                status, _, errors = self.run_gmblock(*command)
                self.assertEqual(status, 1)
                self.assertRegex(errors, ": cannot connect: [^;]*; check the path: a server has different sockets")
                self.assertNotIn("shm:", errors)
        _, _, errors = self.run_gmblock("info", uris["gmb+unix", "disk"] + "-none")
        self.assertIn(": cannot connect: No such file or directory; check that the server is running", errors)


def add_tests():
    for name, text in STORES.items():
        def test(self, text=text):
            self.check_store(text)

        words = "".join(c if c.isalnum() else "_" for c in name)
        setattr(Semantics, f"test_{words}", test)


if __name__ == "__main__":
    add_tests()
    PROGRAMS = [os.path.realpath(argument) for argument in sys.argv[2:] if "/" in argument]
    TRANSPORTS = [argument for argument in sys.argv[2:] if "/" not in argument] or [
        "nbd", "nbd+unix", "gmb+unix", "gmb", VHOST]
    del sys.argv[2:]
    support.main()
