#!/usr/bin/python3
"""A file on FUSE, whose kernel part may forget that a write was to be durable, and that it has pages
which a direct write has made old: what is told to be durable has been flushed all the same, and
what was written is read."""
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

    def test_reads_during_a_direct_write_leave_nothing_old(self):
        self.serve("--export", f"={self.image()},delay=write:100ms")
        disk = self.attach()
        server = self.start("--export", f"={disk},mode=direct", "--export", f"cached={disk}",
                            "--listen", self.socket_uri("top"), uri_count=2)
        writer, reader = (nbdmini.open_export(server.uri) for _ in range(2))
        cached = nbdmini.open_export(server.uri, b"cached")
        for client in (writer, reader, cached):
            self.addCleanup(client.close)
        for turn in range(3):
            data = bytes([turn + 1]) * 4096
            writer.send_request(nbdmini.CMD_WRITE, turn, 8192, len(data), data)
            # Not whole blocks, so these go through the page cache, while the write is on its way.
            reader.read(8193, 100)
            cached.read(8193, 100)
            self.assertEqual(writer.reply(), (turn, 0))
            self.assertEqual(reader.read(8193, 100), data[:100])
            self.assertEqual(cached.read(8193, 100), data[:100])

    def test_durable_writes(self):
        for mode in ("cached", "direct"):
            self.assertEqual(self.durable_errors(mode, ""), [0, 0, 0], mode)
            self.detach()

    def test_durable_writes_through_the_cache_have_been_flushed(self):
        self.assertEqual(self.durable_errors("cached", ",fault=flush:EIO"), [EIO, EIO, EIO])

    def test_durable_writes_around_the_cache_have_been_flushed(self):
        self.assertEqual(self.durable_errors("direct", ",fault=flush:EIO"), [EIO, EIO, EIO])


if __name__ == "__main__":
    attach_tool.main()
