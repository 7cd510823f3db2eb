#!/usr/bin/python3
"""A file on FUSE, whose kernel part may forget that a write was to be durable: what is told to be
durable has been flushed all the same."""
import nbdmini

import attach_tool

CMD_FLAG_FUA = 1
EIO = 5


class OnFuse(attach_tool.Case):
    def durable_errors(self, mode, fault):
        """What durable writes get, whole blocks and others, on a file whose disk has this fault."""
        self.serve("--export", f"={self.image()}{fault}")
        disk = self.attach()
        errors = []
        for length in (4096, 65536, 1000):
            server = self.start("--export", f"={disk},mode={mode}",
                                "--listen", self.socket_uri("top"))
            with nbdmini.open_export(server.uri) as client:
                client.send_request(nbdmini.CMD_WRITE, 1, 8192, length, b"d" * length,
                                    CMD_FLAG_FUA)
                cookie, error = client.reply()
                self.assertEqual(cookie, 1)
                errors.append(error)
            server.stop()
        return errors

    def check(self, mode):
        self.assertEqual(self.durable_errors(mode, ""), [0, 0, 0])
        self.detach()
        self.assertEqual(self.durable_errors(mode, ",fault=flush:EIO"), [EIO, EIO, EIO])

    def test_cached(self):
        self.check("cached")

    def test_around_the_cache(self):
        self.check("ram")


if __name__ == "__main__":
    attach_tool.main()
