#!/usr/bin/python3
"""Rules of access: who sees which export, and what they may do with it, on every kind of listener."""
import contextlib
import json
import os
import socket
import struct
import unittest

import nbdmini
import support

OPT_LIST_META = 9
ERR_UNKNOWN = 0x80000006
EPERM = 1
NOBODY = 65534
OWN_USER = os.geteuid()


class Access(support.Case):
    def rules(self, *rules, name=""):
        """Options for rules of an export; None: of those without their own."""
        prefix = "" if name is None else f"{name}: "
        return [word for rule in rules for word in ("--access", prefix + rule)]


class Meaning(Access):
    def rights(self, server, source=None, name=b""):
        """What a client from that address may do: rw, ro, or None when there is no such export."""
        with nbdmini.Client(server.uri, source) as client:
            client.hello()
            try:
                client.go(name)
            except nbdmini.OptionRefused as refused:
                self.assertEqual(refused.code, ERR_UNKNOWN)
                return None
            client.read(0, 512)
            client.flush()
            try:
                client.write(0, b"mine")
            except OSError as error:
                self.assertEqual(error.errno, EPERM)
                self.assertTrue(client.flags & nbdmini.FLAG_READ_ONLY)
                return "ro"
            self.assertFalse(client.flags & nbdmini.FLAG_READ_ONLY)
            return "rw"

    def serve(self, *rules):
        return self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", *self.rules(*rules))

    def test_the_first_rule_that_holds_decides(self):
        server = self.serve("address=127.0.0.2 rights=ro", "address=127.0.0.3 rights=none",
                            "address=127.0.0.4/30 rights=rw", "address=127.0.0.8/29 tls=true rights=rw",
                            "address=127.0.0.8/29 tls=false rights=ro")
        self.assertEqual(self.rights(server, "127.0.0.2"), "ro")
        self.assertIsNone(self.rights(server, "127.0.0.3"))
        self.assertEqual(self.rights(server, "127.0.0.4"), "rw")
        self.assertEqual(self.rights(server, "127.0.0.7"), "rw")
        self.assertEqual(self.rights(server, "127.0.0.9"), "ro")
        self.assertIsNone(self.rights(server, "127.0.0.1")) # no rule holds

    def test_addresses_are_no_text(self):
        server = self.serve("address=127.0.0.1 rights=ro", "address=127.0.10.0/24 rights=rw")
        self.assertEqual(self.rights(server, "127.0.0.1"), "ro")
        self.assertIsNone(self.rights(server, "127.0.0.10"))
        self.assertEqual(self.rights(server, "127.0.10.1"), "rw")
        self.assertIsNone(self.rights(server, "127.0.101.1"))

    def test_mapped_addresses(self):
        """IPv4 is the same however it is written, and no part of IPv6."""
        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", "--listen", "nbd://[::1]:0",
                            *self.rules("address=::ffff:127.0.0.2 rights=ro",
                                        "address=127.0.0.3 rights=rw", "address=::/0 rights=ro"),
                            uri_count=2)
        self.assertEqual(self.rights(server, "127.0.0.2"), "ro")
        self.assertEqual(self.rights(server, "127.0.0.3"), "rw")
        self.assertIsNone(self.rights(server, "127.0.0.4"))
        server.uris.reverse()
        self.assertEqual(self.rights(server), "ro")

    def test_a_rule_gives_no_more_than_the_export_allows(self):
        server = self.start("--export", "=memory:1M,readonly", "--listen", "nbd://127.0.0.1:0",
                            *self.rules("rights=rw"))
        self.assertEqual(self.rights(server), "ro")

    def test_common_rules_and_own_ones(self):
        file = self.make_file("conf", """
            access: [{address: 127.0.0.3, rights: ro}]
            exports:
              - {name: common, path: 'memory:1M'}
              - name: own
                path: memory:1M
                access:
                  - address: 127.0.0.4
                    rights: rw
                  - ro
            """)
        server = self.start("--config", file, "--listen", "nbd://127.0.0.1:0", uri_count=2,
                            *self.rules("address=127.0.0.5 rights=rw", name=None),
                            *self.rules("address=127.0.0.6 rights=none", name="own"))
        for source, common, own in ((3, "ro", "ro"), (4, None, "rw"), (5, "rw", "ro"),
                                    (6, None, None), (7, None, "ro")):
            self.assertEqual((self.rights(server, f"127.0.0.{source}", b"common"),
                              self.rights(server, f"127.0.0.{source}", b"own")),
                             (common, own), source)

    def test_names_of_the_command_line(self):
        name = "a:b=c: d\\"
        written = "a:b\\=c: d\\\\"
        for text, wanted in (("a\\:b\\=c\\: d\\\\: rights=ro", "ro"),
                             ("address=127.0.0.0/8 rights=rw", "rw")):
            server = self.start("--export", f"{written}=memory:1M", "--listen", "nbd://127.0.0.1:0",
                                "--access", text)
            self.assertEqual(self.rights(server, name=name.encode()), wanted)

    def test_the_operator_learns_what_decided(self):
        file = self.make_file("conf", "exports:\n- name: x\n  path: memory:1M\n  access:\n"
                              "  - {address: 127.0.0.2, rights: none}\n")
        server = self.start("--config", file, "--listen", "nbd://127.0.0.1:0",
                            env={**os.environ, "GMBLOCK_LOG": "info"})
        self.assertIsNone(self.rights(server, "127.0.0.2", b"x"))
        self.assertIsNone(self.rights(server, "127.0.0.3", b"x"))
        _, log = server.stop()
        self.assertIn(f'export "x" is hidden from it (rule {file}:5)', log)
        self.assertIn('export "x" is hidden from it (no rule of access matches)', log)


class Hidden(Access):
    """Nobody can tell a hidden export from one that does not exist."""

    def dialogue(self, server, option, name, structured):
        """All bytes that the server answers until it closes."""
        with nbdmini.Client(server.uri, "127.0.0.2") as client:
            client.hello()
            if structured:
                client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            data = struct.pack(">I", len(name)) + name
            if option == nbdmini.OPT_EXPORT_NAME:
                data = name
            elif option in (nbdmini.OPT_INFO, nbdmini.OPT_GO):
                data += struct.pack(">H", 0)
            else:
                data += struct.pack(">I", 0)
            client.send_option(option, data)
            client.sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := client.sock.recv(65536):
                    answer += piece
            return answer.replace(name, b"NAME")

    def test_every_option_that_names_an_export(self):
        server = self.start("--export", "hidden=memory:1M", "--export", "shown=memory:1M",
                            "--listen", "nbd://127.0.0.1:0", uri_count=2,
                            *self.rules("address=127.0.0.1 rights=rw", name="hidden"))
        for option in (nbdmini.OPT_EXPORT_NAME, nbdmini.OPT_INFO, nbdmini.OPT_GO, OPT_LIST_META,
                       nbdmini.OPT_SET_META_CONTEXT):
            for structured in (False, True):
                hidden = self.dialogue(server, option, b"hidden", structured)
                self.assertEqual(hidden, self.dialogue(server, option, b"nobody", structured))
                if structured or option != nbdmini.OPT_SET_META_CONTEXT:
                    shown = self.dialogue(server, option, b"shown", structured)
                    self.assertNotEqual(hidden, shown)

    def test_lists(self):
        names = [f"{kind}{i}" for i in range(20) for kind in ("shown", "hidden")]
        exports = [word for name in names for word in ("--export", f"{name}=null:1M")]
        rules = [word for i in range(20) for word in self.rules("rights=none", name=f"hidden{i}")]
        server = self.start("--listen", "nbd://127.0.0.1:0", *exports, *rules, uri_count=40)
        with nbdmini.Client(server.uri) as client:
            client.hello()
            self.assertEqual(list(client.list()), [f"shown{i}".encode() for i in range(20)])
            # To the byte what a server lists that has no others.
            client.send_option(nbdmini.OPT_LIST)
            hidden = client.option_replies(nbdmini.OPT_LIST)
        server = self.start("--listen", "nbd://127.0.0.1:0", uri_count=20, *[
            word for i in range(20) for word in ("--export", f"shown{i}=null:1M")])
        with nbdmini.Client(server.uri) as client:
            client.hello()
            client.send_option(nbdmini.OPT_LIST)
            self.assertEqual(client.option_replies(nbdmini.OPT_LIST), hidden)

    def test_names_of_connections(self):
        """No wait, and nobody is replaced, on an export that is hidden."""
        token = b"0123456789abcdef0123456789abcdef.7"
        server = self.start("--export", "x=memory:1M", "--listen", "nbd://127.0.0.1:0",
                            *self.rules("address=127.0.0.1 rights=rw", name="x"))
        query = b"x-gmblock:connection=" + token
        with nbdmini.Client(server.uri) as old, nbdmini.Client(server.uri, "127.0.0.2") as other:
            for client, word in ((old, b"connection"), (other, b"replaces")):
                query = b"x-gmblock:" + word + b"=" + token
                client.hello()
                client.send_option(OPT_LIST_META, struct.pack(">I", 1) + b"x" + struct.pack(
                    ">II", 1, len(query)) + query)
                if client is old:
                    client.option_replies(OPT_LIST_META)
                    client.go(b"x")
                else:
                    with self.assertRaises(nbdmini.OptionRefused):
                        client.option_replies(OPT_LIST_META)
            self.assertEqual(old.read(0, 3), bytes(3))


@unittest.skipUnless(OWN_USER == 0, "only root can be another user")
class Matrix(Access):
    """Who x what they may do x how they come. Each cell is looked at with the program itself."""

    CONDITIONS = {"host": "address=127.0.0.1", "root": "uid=0", "nobody": f"uid={NOBODY}"}
    # Index of the listener, and who comes there.
    WAYS = [(0, "host"), (1, "root"), (1, "nobody"), (2, "root"), (2, "nobody")]

    def serve(self, *rules):
        """On TCP, and on Unix sockets that everybody may use: NBD and gmb."""
        os.chmod(self.folder, 0o755)
        server = self.start(
            "memory:1M", "--listen", "nbd://127.0.0.1:0", "--listen", self.socket_uri("nbd"),
            "--listen", f"gmb+unix:///?socket={self.path('gmb')}", *self.rules(*rules), uri_count=3)
        for name in ("nbd", "gmb"):
            os.chmod(self.path(name), 0o777)
        return server

    def rights(self, uri, who):
        """By gmblock info, list and copy, which agree."""
        options = {}
        if who == "nobody":
            options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        source = self.make_file("source", bytes(4096))
        os.chmod(source, 0o644)
        code, output, errors = self.run_gmblock("info", "--json", uri, **options)
        _, listed, _ = self.run_gmblock("list", "--json", uri, **options)
        copied, _, _ = self.run_gmblock("copy", source, uri, **options)
        exports = json.loads(listed)["exports"]
        if code != 0:
            self.assertIn("there is no export named ''", errors)
            self.assertEqual(exports, [])
            self.assertNotEqual(copied, 0)
            return "none"
        self.assertEqual(len(exports), 1)
        read_only = json.loads(output)["exports"][0]["capabilities"]["read_only"]
        self.assertEqual(copied != 0, read_only)
        return "ro" if read_only else "rw"

    def check(self, wanted, *rules):
        server = self.serve(*rules)
        found = {(idx, who): self.rights(server.uris[idx], who) for idx, who in self.WAYS}
        self.assertEqual(found, wanted, rules)
        server.stop()

    def test_rules(self):
        rights = ["rw", "ro", "none"]
        for turn in range(3):
            given = {who: rights[(turn + i) % 3] for i, who in enumerate(self.CONDITIONS)}
            # What does not hold has the best rights of all, and what comes too late.
            rules = [f"{condition} tls=true rights=rw" for condition in self.CONDITIONS.values()]
            rules += ["address=192.0.2.0/24 rights=rw", "uid=1 rights=rw"]
            rules += [f"{self.CONDITIONS[who]} rights={may}" for who, may in given.items()]
            self.check({way: given[way[1]] for way in self.WAYS}, *rules, "rights=rw")

    def test_without_rules(self):
        """A Unix socket admits whom its mode admits, but gmb maps memory: own user and root."""
        self.check({way: "none" if way == (2, "nobody") else "rw" for way in self.WAYS})


class Usage(Access):
    def refused(self, rule, *fragments):
        self.check_refused(["serve", "memory:1M", "--access", rule], 2, "--access", *fragments)

    def test_mistakes_in_rules(self):
        self.refused("psk=alice", "it has no rights")
        self.refused("rights=yes", "'yes' is not one of rw, ro, none")
        self.refused("rights=rw rights=ro", "rights: it is given twice")
        self.refused("uid=1 uid=1 rights=ro", "uid: it is given twice")
        self.refused("uid=root rights=ro", "uid:", "'root'")
        self.refused("uid=4294967295 rights=ro", "uid:")
        self.refused("tls=yes rights=ro", "'yes' is neither true nor false")
        self.refused("adress=10.0.0.1 rights=ro", "did you mean 'address'?")
        self.refused("alice rights=ro", "has no '='")
        self.refused("nosuch: rights=ro", 'no export named "nosuch"')
        for text, network in (("10.1.2.3/16", "10.1.0.0/16"), ("2001:db8::1/32", "2001:db8::/32"),
                              ("::ffff:10.1.2.3/112", "::ffff:10.1.0.0/112"), ("1.2.3.4/0", "0.0.0.0/0")):
            self.refused(f"address={text} rights=ro", f"the network is {network}")
        for text in ("10.1.2", "10.1.2.3.4", "host", "10.0.0.0/33", "::/129", "10.0.0.0/", "/8",
                     "10.0.0.0/8/8", "fe80::1%lo", "010.0.0.1", ""):
            self.refused(f"address={text} rights=ro", "address:")
        self.refused("cert-san=host rights=ro", "of which type")
        self.refused("cert-san=dns:*.example rights=ro", "wildcard")
        self.refused("psk=a cert-cn=b rights=ro", "make two rules of it")
        self.refused("psk=a tls=false rights=ro", "without TLS")
        self.refused("uid=1 address=10.0.0.1 rights=ro", "make two rules of it")

    def test_mistakes_in_files(self):
        def check(rules, place, *fragments):
            path = self.make_file("conf", "exports:\n- name: x\n  path: memory:1M\n" + rules)
            errors = self.check_refused(["serve", "--config", path], 1, *fragments)
            self.assertIn(f"{path}:{place}: ", errors)

        check("  access: []\n", "4:3", "exports entry 1, access: the list is empty")
        check("  access:\n", "4:10", "this must be a list")
        check("  access:\n  - uid: 1\n", "5:5", "access entry 1: the key 'rights' is missing")
        check("  access:\n  - {rights: rw, uid: 1}\n  - {rights: rw, uid: x}\n", "6:23",
              "exports entry 1, access entry 2, uid: ")
        check("  access:\n  - {rights: rw, pks: 1}\n", "5:18", "did you mean 'psk'?")
        check("  access:\n  - {rights: rw, psk: [1]}\n", "5:18", "access entry 1, psk: ", "single value")
        check("  access:\n  - {rights: rw, uid: 1, uid: 2}\n", "5:26", "'uid' is given twice")
        check("  access: [rw]\n  access: [ro]\n", "5:3", "'access' is given twice")
        check("access:\n- {rights: rw, address: 10.0.0.1/8}\n", "5:25",
              "access entry 1, address: ", "the network is 10.0.0.0/8")
        check("access: [psk=alice]\n", "4:10", "access entry 1, rights: ", "not one of rw, ro, none")


if __name__ == "__main__":
    support.main()
