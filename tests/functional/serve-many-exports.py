#!/usr/bin/python3
"""A server with a thousand exports prints, lists and serves each of them."""
import nbdmini
import support

COUNT = 1000


class ManyExports(support.Case):
    def test_a_thousand(self):
        content = "exports:\n" + "".join(
            f"  - {{name: disk-{n}, path: 'null:{n + 1}', description: number {n}}}\n"
            for n in range(COUNT))
        server = self.start_unix("--config", self.make_file("test.conf", content),
                                 "--threads", "2", uri_count=COUNT)
        self.assertEqual(server.uris[COUNT - 1],
                         f"nbd+unix:///disk-{COUNT - 1}?socket={self.path('s')}")
        with nbdmini.Client(server.uri) as client:
            client.hello()
            listed = client.list()
        self.assertEqual(len(listed), COUNT)
        for number in (0, 1, COUNT // 2, COUNT - 1):
            name = f"disk-{number}".encode()
            self.assertEqual(listed[name], f"number {number}".encode())
            with nbdmini.open_export(server.uri, name) as client:
                self.assertEqual(client.size, number + 1)
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    support.main()
