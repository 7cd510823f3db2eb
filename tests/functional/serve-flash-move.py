#!/usr/bin/python3
"""A flash store on a file whose disk does not take what is written to one range: the log goes on
elsewhere, which clients do not notice, and people are told."""
import json
import random
import re

import nbdmini

import attach_tool

MIB = 1 << 20
CMD_FLAG_FUA = 1


class Move(attach_tool.Case):
    def begin(self, bad):
        """The file on FUSE, with a store in it."""
        self.serve("--export", f"={self.image(16 * MIB)},fault=write:EIO:range={bad}")
        self.disk = self.attach()
        self.assertEqual(self.gmblock("create", "--segment=64K", f"flash:{self.disk}")[0], 0)

    def start_store(self):
        return self.start("--export", f"=flash:{self.disk},mode=direct,cache=0",
                          "--listen", self.socket_uri("top"))

    def write_all(self, client, size):
        """Comes to the bad range. Returns the contents."""
        chance = random.Random(3)
        contents = bytearray(size)
        for turn in range(2 * size // 65536):
            length = chance.choice([4096, 16384, 65536])
            offset = chance.randrange((size - length) // 4096 + 1) * 4096
            contents[offset:offset + length] = data = chance.randbytes(length)
            client.send_request(nbdmini.CMD_WRITE, turn, offset, length, data,
                                CMD_FLAG_FUA if turn % 4 == 0 else 0)
            self.assertEqual(client.reply(), (turn, 0))
        return bytes(contents)

    def test_a_bad_range_is_gone_around(self):
        self.begin("3M+8K")
        for number in range(2):
            server = self.start_store()
            with nbdmini.open_export(server.uri) as client:
                contents = self.write_all(client, client.size)
                self.assertEqual(client.read(0, client.size), contents)
            code, stderr = server.stop()
            self.assertEqual(code, 0, stderr)
            found = json.loads(self.gmblock("check", "--json", self.disk)[1])
            self.assertEqual(found["faults"], [])
            self.assertEqual(found["avoided"], 65536)
            moves = re.findall(r"cannot write its log at byte (\d+): Input/output error; the "
                               r"log continues in another segment", stderr)
            # The second time it is known, and nothing is written there.
            self.assertEqual(len(moves), 1 - number, stderr)
            self.assertTrue(all(3 * MIB - 65536 <= int(at) < 3 * MIB + 8192 for at in moves))
        server = self.start_store()
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.read(0, client.size), contents)


if __name__ == "__main__":
    attach_tool.main()
