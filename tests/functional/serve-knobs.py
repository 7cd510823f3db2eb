#!/usr/bin/python3
"""Keys for figures: each is refused where it does nothing, and the server works with it."""
import os
import random

import nbdmini
import support

MIB = 1 << 20
DISK = 16 * MIB


class Knobs(support.Case):
    def refused(self, export, *fragments, code=1):
        self.check_refused(["serve", "--export", f"={export}", "--listen", self.socket_uri()], code, *fragments)
        self.assertNotIn("s", os.listdir(self.folder))

    def test_wrong_values_are_refused(self):
        for value in ("0", "4097", "2M", "", "64K ", "off"):
            self.refused(f"memory:1M,parts={value}", "parts: ", f"'{value}'", code=2)
        self.refused("memory:1M,gc=fast", "gc: ", "paper", "greedy", code=2)

    def test_where_they_do_nothing_they_are_refused(self):
        image = self.make_file("disk.img", bytes(MIB))
        self.refused("memory:1M,device-cpu=yes", "device-cpu has no effect here",
                     "neither mode nor write-mode is device")
        for path in (image, "memory:1M"):
            self.refused(f"{path},gc=auto", path, "the key gc is only for disks whose path begins with flash:")

    def test_a_flash_store_collects_by_every_rule(self):
        for number, rule in enumerate(("greedy", "plain", "paper")):
            path = self.path(f"flash-{number}")
            with open(path, "wb") as file:
                file.truncate(64 * MIB)
            self.assertEqual(self.run_gmblock("create", f"flash:{path}")[0], 0)
            server = self.start_unix("--export", f"=flash:{path},cache=1M,gc={rule}")
            with nbdmini.open_export(server.uri, b"") as client:
                content = bytearray(DISK)
                draws = random.Random(number)
                for _ in range(400):
                    offset = draws.randrange(DISK - 65536)
                    data = draws.randbytes(draws.randrange(1, 65536))
                    client.write(offset, data)
                    content[offset:offset + len(data)] = data
                for offset in range(0, DISK, MIB):
                    self.assertEqual(client.read(offset, MIB), content[offset:offset + MIB])
            self.assertEqual(server.stop(), (0, ""))


if __name__ == "__main__":
    support.main()
