#!/usr/bin/python3
"""Rules of access: who sees which export, and what they may do with it, on every kind of listener."""
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import unittest
import urllib.parse

import nbdmini
import support
import tls_tool

serve_tls = importlib.import_module("serve-tls")

OPT_LIST_META = 9
ERR_TLS_REQD = 0x80000005
ERR_UNKNOWN = 0x80000006
EPERM = 1
ESHUTDOWN = 108
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
        self.assertIn(f'export "x" is hidden from the client (rule {file}:5)', log)
        self.assertIn('export "x" is hidden from the client (no access rule matches)', log)


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

    def test_what_is_left_out_of_the_log_is_counted_by_cause(self):
        server = self.start("--threads=1", "--export", "ruled=memory:1M", "--export", "other=memory:1M", "--listen",
                            "nbd://127.0.0.1:0", uri_count=2,
                            *self.rules("address=127.0.0.2 rights=none", "rights=rw", name="ruled"),
                            *self.rules("address=127.0.0.1 rights=rw", name="other"))
        for name, count in ((b"ruled", 14), (b"other", 5)):
            for _ in range(count):
                with nbdmini.Client(server.uri, "127.0.0.2") as client:
                    client.hello()
                    with self.assertRaises(nbdmini.OptionRefused):
                        client.go(name)
        status, errors = server.stop()
        told = [int(count) for count in re.findall(r"\((\d+) similar lines were suppressed", errors)]
        self.assertEqual((status, errors.count("is hidden from the client") + sum(told)), (0, 19), errors)
        for reason, count in (("rule", 14), ("no_rule", 5)):
            shown = errors.count(f'export "{"ruled" if reason == "rule" else "other"}" is hidden')
            left = sum(int(found) for found in re.findall(rf"[:,] (\d+) {reason}\b", errors))
            self.assertEqual(shown + left, count, errors)

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
            self.assertIn("no export named ''", errors)
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


class Reload(Access):
    """Rules are read again while clients are connected."""

    def setUp(self):
        super().setUp()
        self.file = self.path("conf")
        self.control = self.path("control")
        self.keys = ""

    def write(self, *rules, name="x"):
        with open(self.file, "w", encoding="utf-8") as out:
            out.write(f"exports:\n- name: {name}\n  path: memory:1M\n{self.keys}  access:\n")
            out.writelines(f"  - {rule}\n" for rule in rules)

    def serve(self, *rules):
        self.write(*rules)
        return self.start("--config", self.file, "--listen", "nbd://127.0.0.1:0", "--control",
                          self.control)

    def reload(self, *rules, status=0, **options):
        self.write(*rules, **options)
        code, output, errors = self.run_gmblock("reload", self.control)
        self.assertEqual(code, status, errors)
        return errors or output

    def test_more_and_fewer_rights(self):
        server = self.serve("{address: 127.0.0.1, rights: rw}", "{address: 127.0.0.2, rights: ro}")
        with nbdmini.open_export(server.uri, b"x") as first, \
                nbdmini.open_export(server.uri, b"x", source="127.0.0.2") as second:
            first.write(0, b"one")
            with self.assertRaises(PermissionError):
                second.write(0, b"two")
            self.reload("{address: 127.0.0.1, rights: ro}", "{address: 127.0.0.2, rights: rw}")
            with self.assertRaises(PermissionError):
                first.write(0, b"two")
            self.assertEqual(first.read(0, 3), b"one")
            second.write(0, b"two") # whoever knows a connection, and not its flags, may
            self.assertIn("connections ended: 1", self.reload("{address: 127.0.0.2, rights: rw}"))
            self.assertTrue(first.at_end())
            self.assertEqual(second.read(0, 3), b"two")
            with nbdmini.Client(server.uri) as third, self.assertRaises(nbdmini.OptionRefused):
                third.hello()
                third.go(b"x")
            self.reload("rw")
            nbdmini.open_export(server.uri, b"x").close()

    def test_what_waits_is_refused_by_its_reason(self):
        self.keys = "  rate: 1K:burst=10ms\n" # of the file: a reload would take another one away
        server = self.serve("rw")
        with nbdmini.open_export(server.uri, b"x", structured=True) as client:
            for cookie in (6, 7): # of which the second one waits for a quarter of an hour
                client.send_request(nbdmini.CMD_READ, cookie, 0, 1 << 20)
            client.chunks(6)
            self.reload("none")
            *_, cookie, length = struct.unpack(">IHHQI", client.receive(20))
            code, _, text = struct.unpack(f">IH{length - 6}s", client.receive(length))
            self.assertEqual((cookie, code), (7, ESHUTDOWN))
            self.assertIn(b"revoked the access rights", text)

    def test_a_signal_does_the_same(self):
        server = self.serve("rw")
        with nbdmini.open_export(server.uri, b"x") as client:
            self.write("{address: 127.0.0.2, rights: rw}")
            server.signal(signal.SIGHUP)
            self.assertTrue(client.at_end())

    def test_what_is_wrong_changes_nothing(self):
        server = self.serve("{address: 127.0.0.1, rights: rw}")
        with nbdmini.open_export(server.uri, b"x") as client:
            for rules, name, fragment in ((["{rights: ro, uid: x}"], "x", f"{self.file}:5:23: "),
                                          (["{rights: ro, cert-cn: x}"], "x", "tls-verify-peer")):
                errors = self.reload(*rules, name=name, status=1)
                self.assertIn(fragment, errors)
                self.assertIn("nothing was changed", errors)
                client.write(0, b"still")
            with open(self.file, "w", encoding="utf-8") as out:
                out.write("exports:\n- name: x\n  path: memory:1M\n")
            code, _, errors = self.run_gmblock("reload", self.control)
            self.assertEqual(code, 1, errors)
            self.assertIn('no longer contains access rules for the export "x"', errors)
            os.unlink(self.file)
            self.assertEqual(self.run_gmblock("reload", self.control)[0], 1)
            client.write(0, b"still")
            with nbdmini.Client(server.uri, "127.0.0.2") as other, \
                    self.assertRaises(nbdmini.OptionRefused):
                other.hello()
                other.go(b"x")


class Proved(Access):
    """What TLS has proved: each condition has an export of its own, and a list shows which hold."""

    @classmethod
    def setUpClass(cls):
        cls.credentials = tempfile.mkdtemp(prefix="gmblock-functional-")
        cls.addClassCleanup(shutil.rmtree, cls.credentials, ignore_errors=True)
        tls_tool.make(cls.credentials)
        serve_tls.CREDENTIALS = cls.credentials

    def fingerprint(self, *command):
        der = subprocess.run(command, check=True, capture_output=True).stdout
        return "sha256:" + hashlib.sha256(der).hexdigest().upper()

    def conditions(self):
        """Name of an export -> its condition, and who is let in by it."""
        cert = os.path.join(self.credentials, "good", "client-cert.pem")
        public = self.make_file("public.pem", subprocess.run(
            ["openssl", "x509", "-in", cert, "-noout", "-pubkey"], check=True,
            capture_output=True).stdout)
        whole = self.fingerprint("openssl", "x509", "-in", cert, "-outform", "DER")
        key = self.fingerprint("openssl", "pkey", "-pubin", "-in", public, "-outform", "DER")
        a, b, x509 = {"host-a"}, {"host-b"}, {"host-a", "host-b"}
        return {
            "cn": ("cert-cn=host-a", a), "cn-prefix": ("cert-cn=host-", set()),
            "cn-case": ("cert-cn=HOST-A", set()),
            "dn": ("cert-dn=CN=host-a,O=Example", a), "dn-types": ("cert-dn=2.5.4.3=host-a,o=Example", a),
            "dn-order": ("cert-dn=O=Example,CN=host-a", set()), "dn-part": ("cert-dn=O=Example", set()),
            "dns": ("cert-san=dns:HOST-A.example", a), "dns-other": ("cert-san=dns:host-b.example", b),
            "dns-parent": ("cert-san=dns:example", set()),
            "dns-as-cn": ("cert-cn=host-a.example", set()), "cn-as-dns": ("cert-san=dns:host-a", set()),
            "email": ("cert-san=email:host-a@example.com", a), "uri": ("cert-san=uri:urn:host:a", a),
            "uri-as-dns": ("cert-san=dns:urn", set()), "ip": ("cert-san=ip:192.0.2.7", a),
            "ip-mapped": ("cert-san=ip:::ffff:192.0.2.7", a), "ip-other": ("cert-san=ip:192.0.2.70", set()),
            "cert-hash": (f"cert-fingerprint={whole}", a), "key-hash": (f"key-fingerprint={key}", a),
            "wrong-hash": (f"cert-fingerprint={key}", set()),
            "psk": ("psk=alice", {"alice"}), "psk-prefix": ("psk=ali", set()),
            "psk-longer": ("psk=alice2", set()), "cn-as-psk": ("psk=host-a", set()),
            "tls": ("tls=true", x509 | {"alice", "bob"}), "clear": ("tls=false", {"nobody"}),
            "both": ("cert-cn=host-a address=127.0.0.1 tls=true", a),
            "not-both": ("cert-cn=host-a address=127.0.0.2", set()), "uid": (f"uid={OWN_USER}", set()),
            "address": ("address=127.0.0.1", x509 | {"alice", "bob", "nobody"}),
        }

    def test_conditions(self):
        conditions = self.conditions()
        file = self.make_file("conf", f"""
            listen:
              - uri: nbd://127.0.0.1:0
                tls: on
                tls-certificates: {self.credentials}/good
                tls-verify-peer: true
              - uri: nbd://127.0.0.1:0
                tls: on
                tls-psk: {self.credentials}/keys.psk
            """)
        words = [word for name, (condition, _) in conditions.items() for word in
                 ("--export", f"{name}=null:1M", "--access", f"{name}: {condition} rights=rw")]
        server = self.start("--config", file, *words, uri_count=2 * len(conditions))
        x509, psk = (f"nbd://127.0.0.1:{urllib.parse.urlsplit(uri).port}"
                     for uri in (server.uris[0], server.uris[-1]))
        for who in ("host-a", "host-b", "alice", "bob", "nobody"):
            wanted = {name for name, (_, admitted) in conditions.items() if who in admitted}
            self.assertEqual(self.listed(x509, psk, who), wanted, who)

    def listed(self, x509, psk, who):
        if who in ("alice", "bob"):
            done = subprocess.run(
                ["nbdinfo", "--list", "--json", f"nbds://{who}@{psk[6:]}/?tls-psk-file="
                 f"{self.credentials}/keys.psk"], check=True, capture_output=True)
            return {export["export-name"] for export in json.loads(done.stdout)["exports"]}
        if who == "nobody":
            client = nbdmini.Client(x509)
            client.hello()
        else:
            client = serve_tls.Client(x509, {"host-a": "good"}.get(who, who))
        with client:
            return {name.decode() for name in client.list()}

    def test_what_needs_tls_looks_like_what_is_not_there(self):
        server = self.start("--export", "hidden=memory:1M", "--export", "shown=memory:1M",
                            "--listen", "nbd://127.0.0.1:0", "--tls=on", "--tls-certificates",
                            f"{self.credentials}/good",
                            *self.rules("tls=true rights=rw", name="hidden"), uri_count=2)
        refused = []
        for name in (b"hidden", b"nobody"):
            for option in (nbdmini.OPT_INFO, nbdmini.OPT_GO):
                with nbdmini.Client(server.uri) as client:
                    client.hello()
                    with self.assertRaises(nbdmini.OptionRefused) as caught:
                        client.go(name, option)
                    refused.append((caught.exception.code,
                                    str(caught.exception).replace(name.decode(), "NAME")))
        self.assertEqual(set(refused), {refused[0]})
        self.assertEqual(refused[0][0], ERR_TLS_REQD)
        with nbdmini.Client(server.uri) as client:
            client.hello()
            self.assertEqual(list(client.list()), [b"shown"])
            client.go(b"shown").write(0, b"mine")
        with serve_tls.Client(server.uri) as client:
            self.assertEqual(list(client.list()), [b"hidden", b"shown"])
            client.go(b"hidden").write(0, b"mine")

    def test_who_has_proved_nothing(self):
        """An address is one identity, with TLS and without: no second set of limits."""
        file = self.make_file("conf", """
            exports: [{name: disk, path: 'memory:1M'}]
            rates: [{address: 127.0.0.1, rate: off, connections: 1}]
            """)
        server = self.start("--config", file, "--listen", "nbd://127.0.0.1:0", "--tls=on",
                            "--tls-certificates", f"{self.credentials}/good")
        with nbdmini.open_export(server.uri, b"disk"), serve_tls.Client(server.uri) as second:
            with self.assertRaisesRegex(nbdmini.OptionRefused, "reached your connection limit"):
                second.go(b"disk")

    def test_names_of_connections(self):
        """A connection is replaced by the same identity only, whoever knows its name."""
        token = b"0123456789abcdef0123456789abcdef.7"

        def introduce(client, word):
            query = b"x-gmblock:" + word + b"=" + token
            client.send_option(OPT_LIST_META, struct.pack(">III", 0, 1, len(query)) + query)
            self.assertEqual(client.option_replies(OPT_LIST_META), [])

        server = self.start("memory:1M", "--listen", "nbd://127.0.0.1:0", "--tls=on",
                            "--tls-certificates", f"{self.credentials}/good", "--tls-verify-peer")
        with serve_tls.Client(server.uri, "good") as old:
            introduce(old, b"connection")
            old.go()
            with nbdmini.Client(server.uri) as clear, serve_tls.Client(server.uri, "host-b") as other:
                clear.hello()
                for client in (clear, other):
                    introduce(client, b"replaces")
                    client.go()
            self.assertEqual(old.read(0, 3), bytes(3))
            with serve_tls.Client(server.uri, "good") as new:
                introduce(new, b"replaces")
                new.go()
                self.assertTrue(old.at_end())


class Usage(Access):
    def refused(self, rule, *fragments):
        self.check_refused(["serve", "memory:1M", "--access", rule], 2, "--access", *fragments)

    def test_the_rule_is_quoted_alike(self):
        for rule in "rights=yes", "nosuch: rights=ro", "cert-cn=a rights=ro", "alice rights=ro":
            self.refused(rule, f'gmblock serve: --access: "{rule}": ')

    def test_mistakes_in_rules(self):
        self.refused("psk=alice", "the rule has no rights")
        self.refused("rights=yes", "'yes' is not one of rw, ro, none")
        self.refused("rights=rw rights=ro", "rights: the key is given twice")
        self.refused("uid=1 uid=1 rights=ro", "uid: the key is given twice")
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
        self.refused("cert-san=host rights=ro", "has no type")
        self.refused("cert-san=dns:*.example rights=ro", "wildcard")
        self.refused("psk=a cert-cn=b rights=ro", "write two rules")
        self.refused("psk=a tls=false rights=ro", "without TLS")
        self.refused("cert-cn=a rights=ro", "add --tls-verify-peer")
        self.refused("uid=1 address=10.0.0.1 rights=ro", "write two rules")

    def test_mistakes_in_files(self):
        def check(rules, place, *fragments):
            path = self.make_file("conf", "exports:\n- name: x\n  path: memory:1M\n" + rules)
            errors = self.check_refused(["serve", "--config", path], 2, *fragments)
            self.assertIn(f"{path}:{place}: ", errors)

        check("  access: []\n", "4:3", "exports entry 1, access: the list of access rules is empty")
        check("  access:\n", "4:10", "the value must be a list")
        check("  access:\n  - uid: 1\n", "5:5", "access entry 1: the key 'rights' is missing")
        check("  access:\n  - {rights: rw, uid: 1}\n  - {rights: rw, uid: x}\n", "6:23",
              "exports entry 1, access entry 2, uid: ")
        check("  access:\n  - {rights: rw, pks: 1}\n", "5:18", "did you mean 'psk'?")
        check("  access:\n  - {rights: rw, psk: [1]}\n", "5:18", "access entry 1, psk: ", "single value")
        check("  access:\n  - {rights: rw, uid: 1, uid: 2}\n", "5:26", "'uid' is given twice")
        check("  access: [rw]\n  access: [ro]\n", "5:3", "'access' is given twice")
        check("access:\n- {rights: rw, address: 10.0.0.1/8}\n", "5:25",
              "access entry 1, address: ", "the network is 10.0.0.0/8")
        errors = self.check_refused(
            ["serve", "memory:1M", "--config",
             self.make_file("conf", "rates: [{cert-cn: a, rate: 1M}]\n")], 2,
            "add --tls-verify-peer")
        self.assertIn("/conf:1", errors)
        check("access: [psk=alice]\n", "4:10", "access entry 1: rights: ", "not one of rw, ro, none")


if __name__ == "__main__":
    support.main()
