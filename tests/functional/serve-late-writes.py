#!/usr/bin/python3
"""What a connection has left in the store when it ended is not overtaken by what comes later."""
import json

import nbdmini
import support

BLOCK = 4096


class LateWrites(support.Case):
    def connections(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.path("control"))
        self.assertEqual(code, 0, errors)
        return json.loads(output)["exports"][0]

    def test_a_change_waits_for_that_of_an_ended_connection(self):
        """A slow write is in the store when its connection ends. Zeroing is fast: without a wait it
        would be done first, and the write would land over it."""
        disk = self.make_file("disk.img", b"old!" * BLOCK)
        server = self.start_unix("--threads", "1", "--control", self.path("control"),
                                 "--export", f"={disk},delay=write:500ms")
        with nbdmini.open_export(server.uri) as stays:
            with nbdmini.open_export(server.uri) as leaves:
                leaves.send_request(nbdmini.CMD_WRITE, 1, BLOCK, BLOCK, b"late" * (BLOCK // 4))
                leaves.send_request(nbdmini.CMD_FLUSH, 2)
                self.assertEqual(leaves.reply(), (2, 0))  # so the write is in the store
            # What ended before this is asked is known when it is answered.
            stays.flush()
            stays.send_request(nbdmini.CMD_WRITE_ZEROES, 3, 0, 2 * BLOCK)
            self.assertEqual(stays.reply(), (3, 0))
            while self.connections()["connections"] > 1:
                pass
            self.assertEqual(stays.read(0, 3 * BLOCK), bytes(2 * BLOCK) + b"old!" * (BLOCK // 4))
            self.assertEqual(self.connections()["late_waits"], 1)


if __name__ == "__main__":
    support.main()
