#!/usr/bin/python3
"""A new connection ends an old one of the same peer by its name, and of nobody else."""
import os
import socket
import struct
import unittest

import nbdmini
import support

OPT_LIST_META = 9
TOKEN = b"0123456789abcdef0123456789abcdef.7"
NOBODY = 65534


def introduce(client, *queries):
    """Our own contexts, of which these list nothing."""
    data = struct.pack(">II", 0, len(queries))
    data += b"".join(struct.pack(">I", len(query)) + query for query in queries)
    client.send_option(OPT_LIST_META, data)
    assert client.option_replies(OPT_LIST_META) == []


def named(uri):
    """A connection in transmission that has a name."""
    client = nbdmini.Client(uri)
    client.hello()
    introduce(client, b"x-gmblock:connection=" + TOKEN)
    return client.go()


def replace(client):
    client.hello()
    introduce(client, b"x-gmblock:replaces=" + TOKEN)


class Takeover(support.Case):
    def from_address(self, server, address):
        """A connection from one of this machine's own addresses."""
        client = nbdmini.Client.__new__(nbdmini.Client)
        port = int(server.uri.rsplit(":", 1)[1].rstrip("/"))
        client.sock = socket.create_connection(("127.0.0.1", port), timeout=nbdmini.TIMEOUT_S,
                                               source_address=(address, 0))
        return client

    def test_the_same_address(self):
        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0")
        with named(server.uri) as old, self.from_address(server, "127.0.0.1") as new:
            replace(new)
            self.assertTrue(old.at_end())
            self.assertEqual(new.go().size, 1 << 20)

    def test_another_address(self):
        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0")
        with named(server.uri) as old, self.from_address(server, "127.0.0.2") as other:
            replace(other)
            self.assertEqual(old.read(0, 3), bytes(3))
            self.assertEqual(other.go().size, 1 << 20)
            # The name still works for the one that has it, also beside another who took it, too.
            introduced = self.from_address(server, "127.0.0.2")
            self.addCleanup(introduced.close)
            introduced.hello()
            introduce(introduced, b"x-gmblock:connection=" + TOKEN)
            introduced.go()
            with self.from_address(server, "127.0.0.1") as new:
                replace(new)
                self.assertTrue(old.at_end())
            introduced.write(0, b"mine")

    def test_the_same_user(self):
        server = self.start_unix("memory:1M")
        with named(server.uri) as old, nbdmini.Client(server.uri) as new:
            replace(new)
            self.assertTrue(old.at_end())

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_another_user(self):
        server = self.start_unix("memory:1M")
        path = server.uri.split("socket=")[1]
        os.chmod(os.path.dirname(path), 0o755)
        os.chmod(path, 0o777)
        with named(server.uri) as old:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.setuid(NOBODY)
                    with nbdmini.Client(server.uri) as other:
                        replace(other)
                        status = 0 if other.go().size == 1 << 20 else 1
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(old.read(0, 3), bytes(3))


if __name__ == "__main__":
    support.main()
