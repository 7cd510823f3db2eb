#!/usr/bin/python3
"""`gmblock copy --verify` finds what nobody reported; without it, nobody does."""
import json
import os
import signal

import support
from copy_tool import MIB, ODD_BYTES, CopyCase, flip


class Verify(CopyCase):
    def flipping_relay(self, source, disk):
        """One bit of the only write is wrong when it reaches the server."""
        self.assertLess(os.path.getsize(source), 256 * 1024)
        self.serve(disk, "up")
        relay = self.relay("up")
        relay.at("up", 100000, flip)
        return relay

    def test_good_copies(self):
        source, disk = self.image("source"), self.image("disk", seed=2)
        summary = self.copy_ok("--verify", source, self.serve(disk))
        self.assertEqual((summary["verified"], summary["bytes_verified"]), (True, ODD_BYTES))
        summary = self.copy_ok("--verify", source, self.path("target"))
        self.assertEqual((summary["verified"], summary["bytes_verified"]), (True, ODD_BYTES))
        summary = self.copy_ok(source, self.path("again"))
        self.assertEqual((summary["verified"], summary["bytes_verified"]), (False, 0))

    def test_a_flipped_bit_on_the_way(self):
        source = self.image("source", 200000, holes=False)
        disk = self.image("disk", 200000, seed=2)
        relay = self.flipping_relay(source, disk)
        status, output, errors = self.copy("--verify", "--json", source, relay.uri)
        self.assertEqual(status, 1)
        with open(source, "rb") as one, open(disk, "rb") as other:
            left, right = one.read(), other.read()
        places = [index for index in range(len(left)) if left[index] != right[index]]
        self.assertEqual(len(places), 1, "the bit was not in the data")
        self.assertIn(f"differ at byte {places[0]} ", errors)
        self.assertIn("differs from the source", errors)
        summary = json.loads(output)
        self.assertEqual((summary["result"], summary["target_state"]), ("failed", "differs"))

    def test_without_it_nobody_knows(self):
        """Shows that the test above tests something."""
        source = self.image("source", 200000, holes=False)
        disk = self.image("disk", 200000, seed=2)
        relay = self.flipping_relay(source, disk)
        self.copy_ok(source, relay.uri)
        with self.assertRaises(AssertionError):
            self.same(source, disk)

    def test_an_outsider_writes_to_the_target(self):
        """Somebody else changes a byte that was copied, before it is read again."""
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        self.serve(disk, "up")
        relay = self.relay("up")

        def write(_chunk, _index):
            with open(disk, "r+b") as file:
                file.seek(ODD_BYTES - 7)
                byte = file.read(1)
                file.seek(ODD_BYTES - 7)
                file.write(bytes([byte[0] ^ 0x80]))

        # A MiB comes down only when it is read back, and then 128 KiB at a time are under way.
        relay.at("down", MIB, write)
        self.copy_fails(["--verify", "--requests", "4", "--request-size", "64K", source,
                         relay.uri], f"differ at byte {ODD_BYTES - 7} ")

    def test_a_failing_read_is_no_difference(self):
        disk = self.image("disk", seed=2)
        uri = self.serve(f"{disk},fault=read:EIO:range=5000000+1")
        self.copy_fails(["--verify", self.image("source", holes=False), uri], "the target",
                        "Input/output error", "holds the whole copy")

    def test_stopped_while_verifying(self):
        source, disk = self.image("source", holes=False), self.image("disk", seed=2)
        self.serve(disk, "up")
        relay = self.relay("up")
        process = self.spawn("--verify", source, relay.uri)
        relay.at("down", MIB, lambda _chunk, _index: process.send_signal(signal.SIGTERM))
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, errors)
        self.assertIn("stopped by SIGTERM", errors)
        self.assertIn("holds the whole copy", errors)

    def test_a_larger_target(self):
        source, disk = self.image("source"), self.image("disk", ODD_BYTES + MIB, seed=2)
        self.copy_ok("--verify", source, self.serve(disk))

    def test_pipes_are_refused(self):
        for ends in (["-", self.path("target")], [self.image("source"), "-"]):
            self.copy_fails(["--verify", *ends], "--verify", "needs a seekable source and target", status=2)


if __name__ == "__main__":
    support.main()
