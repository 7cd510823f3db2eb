#!/usr/bin/python3
"""A configuration file does what the same command line would; the command line has the last word on
limits."""
import nbdmini
import support

CONTENT = """
listen:
  - nbd+unix:///?socket={folder}/first
  - nbd+unix:///?socket={folder}/second
limits:
  memory: 32M
  threads: 2
  max-connections: {connections}
  handshake-timeout: 20s
  idle-timeout: off
  max-inflight: 16
  spin: off
exports:
  - name: ""
    path: memory:1M
  - name: tools
    path: null:123456789
    readonly: yes
    description: "tools, read only"
    max-connections: 3
  - {{name: slow, path: "memory:4K", fault: ["read:EIO:range=0+512"], delay: ["any:1us"]}}
"""


class ConfigServes(support.Case):
    def config(self, connections=100):
        return self.make_file(
            "test.conf", CONTENT.format(folder=self.folder, connections=connections))

    def test_exports_and_addresses(self):
        server = self.start("--config", self.config(), uri_count=6)
        first, second = (f"?socket={self.path(name)}" for name in ("first", "second"))
        self.assertEqual(server.uris, [
            f"nbd+unix:///{first}", f"nbd+unix:///tools{first}", f"nbd+unix:///slow{first}",
            f"nbd+unix:///{second}", f"nbd+unix:///tools{second}", f"nbd+unix:///slow{second}"])
        for uri in (server.uris[0], server.uris[3]):
            with nbdmini.Client(uri) as client:
                client.hello()
                self.assertEqual(client.list(), {
                    b"": b"", b"tools": b"tools, read only", b"slow": b""})
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.size, 1 << 20)
            self.assertFalse(client.flags & nbdmini.FLAG_READ_ONLY)
            client.write(5, b"hello")
            self.assertEqual(client.read(4, 7), b"\0hello\0")
        with nbdmini.open_export(server.uri, b"tools") as client:
            self.assertEqual(client.size, 123456789)
            self.assertTrue(client.flags & nbdmini.FLAG_READ_ONLY)
        with nbdmini.open_export(server.uri, b"slow") as client:
            with self.assertRaises(OSError):
                client.read(0, 512)
            self.assertEqual(client.read(512, 512), bytes(512))
        self.assertEqual(server.stop()[0], 0)

    def test_added_to_the_command_line(self):
        server = self.start("--export", "more=null:1M", "--listen", self.socket_uri("third"),
                            "--config", self.config(), uri_count=12)
        with nbdmini.Client(server.uri) as client:
            client.hello()
            self.assertEqual(set(client.list()), {b"", b"tools", b"slow", b"more"})

    def test_the_command_line_overrides_limits(self):
        server = self.start("--config", self.config(connections=1), "--max-connections", "2",
                            "--max-connections-per-peer", "2",
                            "--threads", "1", uri_count=6)
        with nbdmini.open_export(server.uri), nbdmini.open_export(server.uri):
            with nbdmini.Client(server.uri) as third:
                self.assertTrue(third.at_end())


if __name__ == "__main__":
    support.main()
