#!/usr/bin/python3
"""Nodes of the configuration file: as a condition of access rules, and the warnings about clients that belong to no
node."""

import os

import nbdmini
import support

ERR_UNKNOWN = 0x80000006


class Nodes(support.Case):
    def config(self, text):
        return self.make_file("conf", text)

    def rights(self, server, source):
        with nbdmini.Client(server.uri, source) as client:
            client.hello()
            try:
                client.go(b"disk")
            except nbdmini.OptionRefused as refused:
                self.assertEqual(refused.code, ERR_UNKNOWN)
                return None
            return "ro" if client.flags & nbdmini.FLAG_READ_ONLY else "rw"

    def test_a_node_is_each_of_its_entries(self):
        text = """
            exports: [{name: disk, path: 'memory:1M'}]
            access:
              - {address: 127.0.0.4, rights: none}
              - {node: a, tls: false, rights: rw}
              - {node: b, rights: ro}
            nodes:
              - {name: a, address: 127.0.0.2}
              - {name: b, address: 127.0.0.3}
              - {name: a, address: 127.0.0.4/30}
            """
        file = self.config(text)
        server = self.start("--config", file, "--listen", "nbd://127.0.0.1:0", "--state-folder", self.folder,
                            "--access", "node=b address=127.0.0.3 rights=rw")
        for source, rights in ((1, None), (2, "rw"), (3, "rw"), (4, None), (5, "rw"), (7, "rw"), (8, None)):
            self.assertEqual(self.rights(server, f"127.0.0.{source}"), rights, source)
        # the rules of connected clients follow a changed node
        with nbdmini.Client(server.uri, "127.0.0.2") as client:
            client.hello()
            client.go(b"disk")
            client.write(0, bytes(512))
            self.config(text.replace("127.0.0.2}", "127.0.0.9}"))
            self.assertEqual(self.run_gmblock("reload", "--server", str(server.process.pid))[0], 0)
            with self.assertRaises((OSError, EOFError)):
                client.read(0, 512)
        self.assertIsNone(self.rights(server, "127.0.0.2"))
        self.assertEqual(self.rights(server, "127.0.0.9"), "rw")

    def test_mistakes(self):
        export = "exports: [{name: disk, path: 'memory:1M'}]\n"
        for text, *fragments in (
                ("nodes: [{psk: a}]", ":2:9: nodes entry 1: the key 'name' is missing"),
                ("nodes: [a]", "nodes entry 1: the node has no condition"),
                ("nodes: [{name: -a, psk: a}]", "'-a' is not a name for a node"),
                ("nodes: [{name: " + 64 * "a" + ", psk: a}]", "is not a name for a node; use 1 to 63"),
                ("nodes: [{name: a, psk: a, cert-cn: b}]", "both a pre-shared key and a certificate"),
                ("nodes: [{name: a, node: b}]", "unknown key 'node'"),
                ("nodes: [{name: a, rights: rw}]", "unknown key 'rights'"),
                ("rates: [{node: a, rate: 1M}]", "unknown key 'node'")):
            self.check_refused(["serve", "--check", self.config(export + text + "\n")], 2, *fragments)
        for text, *fragments in (
                ("access: [{node: a, rights: rw}]", ":2: there is no node 'a'; list it under nodes"),
                ("nodes: [{name: a, address: 10.0.0.1}]\naccess: [{node: a, address: 10.0.0.0/8, rights: rw}]",
                 ":3: the node itself has a condition of that kind (", ":2)"),
                ("nodes: [{name: a, address: 10.0.0.1}]\naccess: [{node: a, uid: 1, rights: rw}]",
                 ":3: a uid is known only on Unix sockets"),
                ("nodes: [{name: a, cert-cn: a}]", ":2: the rule requires a certificate, but no address")):
            self.check_refused(["serve", "--check", self.config(export + text + "\n")], 2, *fragments)

    def warnings(self, access, nodes="[{name: a, address: 10.0.0.0/24}]", path="memory:1M"):
        file = self.config(f"nodes: {nodes}\nexports: [{{name: disk, path: '{path}', access: {access}}}]\n")
        code, _, errors = self.run_gmblock("serve", "--check", file, "--state-folder", self.folder)
        self.assertEqual(code, 0, errors)
        return errors

    def test_a_check_includes_the_state_folder(self):
        file = self.config("nodes: [{name: a, uid: 1}]\nexports: [{name: disk, path: 'memory:1M', access: [ro]}]\n")
        for name, reason in (("none", "No such file"), (os.path.basename(file), "Not a directory")):
            errors = self.check_refused(["serve", "--check", file, "--state-folder", self.path(name)], 1,
                                        f"cannot use the state folder {self.path(name)}: {reason}")
            self.assertIn("; create it for the user of the server", errors)
        # A service manager creates the default folder.
        code, output, errors = self.run_gmblock("serve", "--check", file, env={**os.environ, "STATE_DIRECTORY": self.path("none")})
        self.assertEqual((code, output), (0, "valid: 1 export, the default address\n"))
        self.assertIn(f"cannot use the state folder {self.path('none')}: No such file", errors)

    def test_writers_that_cannot_be_fenced(self):
        for access in ("[{node: a, rights: rw}]", "[{address: 10.0.0.7, rights: rw}]",
                       "[{address: 10.0.1.0/24, rights: rw}]", "[{node: a, rights: rw}, ro]"):
            self.assertEqual(self.warnings(access), "", access)
        for access in ("[{node: a, rights: rw}, rw]", "[{address: 10.0.0.0/8, rights: rw}]",
                       "[{psk: x, rights: rw}]", "[{node: a, rights: rw}, {address: 10.0.1.1, rights: rw}]"):
            self.assertIn("also clients that belong to no node; these clients cannot be fenced",
                          self.warnings(access), access)
        self.assertEqual(self.warnings("[{psk: x, rights: rw}]", "[{name: a, psk: y}]"), "")
        file = self.config("nodes: [{name: a, uid: 1}]\nexports: [{name: disk, path: 'memory:1M'}, "
                           "{name: other, path: 'memory:1M', readonly: yes}]\n")
        _, _, errors = self.run_gmblock("serve", "--check", file, "--state-folder", self.folder)
        self.assertIn('export "disk" has no access rules: clients that belong to no node can write to it', errors)
        self.assertNotIn("other", errors)

    def test_a_disk_that_moves_to_another_server(self):
        exports = "exports: [{name: disk, path: /dev/sda, mode: direct, failover: cluster, access: [ro]}]\n"
        for nodes, count in (("nodes: [{name: a, uid: 1}]\n", 1), ("", 0)):
            _, _, errors = self.run_gmblock("serve", "--check", self.config(nodes + exports))
            self.assertEqual(errors.count("another server of the disk does not know the nodes that are fenced"), count)


if __name__ == "__main__":
    support.main()
