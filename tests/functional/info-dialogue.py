#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gmblock info against lawful servers of every age and mood: what it asks, and what it shows."""

import json
import os
import socket
import struct
import tempfile
import unittest

from fake_server import (ABORT, ACK, ERR, EXPORT_NAME, EXTENDED, FIXED, GO, IHAVEOPT, INFO, LIST,
                         LIST_META, NBDMAGIC, NO_ZEROES, POLICY, SHUTDOWN, STRUCTURED_REPLY,
                         TLS_REQD, UNKNOWN, UNSUP, FakeServer)
from info_tool import InfoCase, row

# HAS_FLAGS and every flag a server may set.
ALL_FLAGS = 0x1FFF
KEYS = ["read_only", "flush", "fua", "rotational", "trim", "write_zeroes", "df", "multi_conn",
        "resize", "cache", "fast_zero", "block_status_payload"]


def name_of(data):
    (length,) = struct.unpack(">I", data[:4])
    return data[4:4 + length]


def plain(tell=lambda d: d.info_export()):
    """Simple replies; tell says what there is to say about the export."""
    def script(d):
        d.greet()
        d.refuse_styles()
        d.option(GO)
        tell(d)
        d.reply(GO, ACK)
        d.disconnect()
    return script


class Styles(InfoCase):
    def test_extended_headers_are_asked_first_and_suffice(self):
        def script(d):
            d.greet()
            d.serve(EXTENDED)
            d.serve(LIST_META)
            d.go()
        shown = self.assert_shown(script)
        self.assertEqual(row(shown, "Protocol"),
                         "fixed newstyle, extended headers (64-bit lengths), no TLS")
        self.assertEqual(self.ask_json(script)["protocol"],
                         {"handshake": "fixed-newstyle", "replies": "extended", "tls": False})

    def test_structured_replies_when_extended_headers_are_unknown(self):
        def script(d):
            d.greet()
            d.structured()
            d.serve(LIST_META)
            d.go()
        self.assertEqual(self.ask_json(script)["protocol"]["replies"], "structured")

    def test_simple_replies_and_then_no_contexts(self):
        document = self.ask_json(plain())
        self.assertEqual(document["protocol"]["replies"], "simple")
        self.assertIsNone(document["exports"][0]["contexts"])

    def test_other_refusals_of_a_style_are_noted_and_lived_with(self):
        def script(d):
            d.greet()
            d.serve(EXTENDED, POLICY, b"not today")
            d.serve(STRUCTURED_REPLY, ERR + 99, b"never heard of")
            d.go()
        notes = self.ask_json(script)["notes"]
        self.assertEqual(len(notes), 2)
        self.assertIn("not today", notes[0])
        self.assertIn("unknown error", notes[1])
        self.assertIn("never heard of", notes[1])

    def test_greeting_flags_from_the_future_are_ignored(self):
        def script(d):
            d.send(NBDMAGIC + IHAVEOPT + b"\xff\xff")
            (flags,) = struct.unpack(">I", d.receive(4))
            assert flags == FIXED | NO_ZEROES, f"P5: client flags {flags:#x}"
            d.refuse_styles()
            d.go()
        self.assert_shown(script)

    def test_bytes_one_at_a_time(self):
        def script(d):
            d.conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            whole = d.send

            def send(data):
                for at in range(len(data)):
                    whole(data[at:at + 1])
            d.send = send
            plain(lambda d: (d.info_export(123456789), d.info(1, b"canon")))(d)
        shown = self.assert_shown(script)
        self.assertEqual(row(shown, "Size"), "118 MiB (123456789 bytes)")
        self.assertEqual(row(shown, "Canonical name"), '"canon"')


class Facts(InfoCase):
    def test_every_flag_by_name(self):
        for bit, key in enumerate(KEYS, start=1):
            with self.subTest(key=key):
                document = self.ask_json(plain(lambda d, b=bit: d.info_export(1, 1 | 1 << b)))
                export = document["exports"][0]
                self.assertEqual(export["transmission_flags"], 1 | 1 << bit)
                self.assertEqual([k for k, v in export["capabilities"].items() if v], [key])

    def test_no_flag_counts_without_has_flags(self):
        document = self.ask_json(plain(lambda d: d.info_export(1, ALL_FLAGS & ~1)))
        self.assertFalse(any(document["exports"][0]["capabilities"].values()))
        self.assertTrue(any("P33" in note for note in document["notes"]), document["notes"])

    def test_unknown_flags_are_ignored(self):
        document = self.ask_json(plain(lambda d: d.info_export(1, 0xE001)))
        self.assertFalse(any(document["exports"][0]["capabilities"].values()))
        self.assertEqual(document["notes"], [])

    def test_sizes_to_the_limit(self):
        for size, shown in ((0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB (1024 bytes)"),
                            ((1 << 63) - 1, "8.0 EiB (9223372036854775807 bytes)")):
            with self.subTest(size=size):
                text = self.assert_shown(plain(lambda d, s=size: d.info_export(s)))
                self.assertEqual(row(text, "Size"), shown)
                self.assertEqual(self.ask_json(plain(
                    lambda d, s=size: d.info_export(s)))["exports"][0]["size"], size)

    def test_block_sizes(self):
        def tell(d):
            d.info_block_size(512, 4096, 1 << 25)
            d.info_export(1 << 20)
        self.assertEqual(self.ask_json(plain(tell))["exports"][0]["block_sizes"],
                         {"minimum": 512, "preferred": 4096, "maximum_payload": 1 << 25})
        self.assertEqual(row(self.assert_shown(plain(tell)), "Block sizes"),
                         "minimum 512, preferred 4096, largest payload 32 MiB (33554432)")

    def test_block_sizes_at_their_limits(self):
        def tell(d):
            d.info_block_size(65536, 65536, 0xFFFFFFFF)
            d.info_export(1 << 20)
        self.assertEqual(self.ask_json(plain(tell))["exports"][0]["block_sizes"],
                         {"minimum": 65536, "preferred": 65536, "maximum_payload": None})

    def test_block_sizes_not_told(self):
        self.assertIsNone(self.ask_json(plain())["exports"][0]["block_sizes"])
        self.assertIn("not reported", row(self.assert_shown(plain()), "Block sizes"))

    def test_a_size_that_is_no_multiple_of_the_block_is_noted(self):
        def tell(d):
            d.info_block_size(4096, 4096, 1 << 25)
            d.info_export((1 << 20) + 1)
        self.assertIn("P58", self.ask_json(plain(tell))["notes"][0])

    def test_information_in_any_order_and_unknown_kinds(self):
        def tell(d):
            d.info(77, b"\0\1\2" * 1000)
            d.info(2, b"words")
            d.info(0xFFFF, b"")
            d.info_export(4096, 3)
            d.info(1, b"canon")
        export = self.ask_json(plain(tell), export="asked")["exports"][0]
        self.assertEqual((export["name"], export["canonical_name"], export["description"],
                          export["size"]), ("asked", "canon", "words", 4096))

    def test_strings_of_4096_bytes(self):
        def tell(d):
            d.info(1, b"n" * 4096)
            d.info(2, b"\xc3\xa9" * 2048)
            d.info_export()
        export = self.ask_json(plain(tell))["exports"][0]
        self.assertEqual(export["canonical_name"], "n" * 4096)
        self.assertEqual(export["description"], "é" * 2048)

    def test_an_export_name_of_4096_bytes_is_asked_for(self):
        name = b"x" * 4096

        def script(d):
            d.greet()
            d.refuse_styles()
            assert name_of(d.go()) == name
        self.assert_shown(script, export="x" * 4096)

    def test_contexts(self):
        def script(d):
            d.greet()
            d.structured()
            _, data = d.option(LIST_META)
            assert data[8:] == bytes(4), "no queries: everything"
            d.context(b"base:allocation", 7)
            d.context(b"qemu:dirty-bitmap:b0", 0xFFFFFFFF)
            d.ack()
            assert name_of(d.go()) == name_of(data) == b"disk", "P42: the same name"
        self.assertEqual(self.ask_json(script, export="disk")["exports"][0]["contexts"],
                         ["base:allocation", "qemu:dirty-bitmap:b0"])
        self.assert_shown(script, '"base:allocation"\n', '"qemu:dirty-bitmap:b0"\n', export="disk")

    def test_contexts_of_a_failed_reply_do_not_count(self):
        def script(d):
            d.greet()
            d.structured()
            d.option(LIST_META)
            d.context(b"base:allocation")
            d.reply(LIST_META, POLICY, b"none for you")
            d.go()
        export = self.ask_json(script)["exports"][0]
        self.assertIsNone(export["contexts"])
        self.assertIn("none for you", export["contexts_refusal"])


class Age(InfoCase):
    """Servers from before GO."""

    def test_export_name_where_go_is_unknown(self):
        for flags, zeroes in ((FIXED, 124), (FIXED | NO_ZEROES, 0)):
            def script(d, flags=flags, zeroes=zeroes):
                d.greet(flags)
                d.structured()
                d.option(LIST_META)
                d.context(b"base:allocation")
                d.ack()
                d.serve(GO, UNSUP)
                _, data = d.option(EXPORT_NAME)
                assert data == b"old"
                d.old_reply(12345, 3, zeroes)
                d.disconnect()
            with self.subTest(flags=flags):
                export = self.ask_json(script, export="old")["exports"][0]
                self.assertEqual((export["size"], export["transmission_flags"],
                                  export["contexts"]), (12345, 3, ["base:allocation"]))

    def test_the_first_newstyle_protocol(self):
        def script(d):
            assert d.greet(0) == 0
            d.option(EXPORT_NAME)
            d.old_reply(12345, 3)
            d.disconnect()
        document = self.ask_json(script)
        self.assertEqual(document["protocol"]["handshake"], "newstyle")
        self.assertEqual(document["exports"][0]["size"], 12345)

    def test_the_first_newstyle_protocol_has_no_list(self):
        def script(d):
            d.send(NBDMAGIC + IHAVEOPT + b"\0\0")
            d.wait_for_close()
        self.assert_refused(script, "cannot list exports", args=("--list",))


class Refusals(InfoCase):
    def refused_at_go(self, kind, text=b""):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, kind, text)
            d.farewell()
        return script

    def test_the_servers_words_are_shown(self):
        self.assert_refused(self.refused_at_go(POLICY, b"ask the owner"),
                            'export "mine"', "policy", "ask the owner", export="mine")

    def test_an_unknown_error_is_a_refusal(self):
        self.assert_refused(self.refused_at_go(ERR + 1000, b"new trouble"),
                            "unknown error", "new trouble")

    def test_demand_for_tls_at_the_first_option(self):
        def script(d):
            d.greet()
            d.serve(EXTENDED, TLS_REQD, b"use TLS")
            d.farewell()
        self.assertNotIn("use TLS", self.assert_refused(script, "demands TLS", "nbds://").stderr)

    def test_demand_for_tls_for_one_export(self):
        self.assert_refused(self.refused_at_go(TLS_REQD), 'export ""', "demands TLS")

    def test_a_server_that_is_shutting_down(self):
        for at in (EXTENDED, STRUCTURED_REPLY, GO):
            def script(d, at=at):
                d.greet()
                for number in (EXTENDED, STRUCTURED_REPLY, GO):
                    d.serve(number, SHUTDOWN if number == at else UNSUP)
                    if number == at:
                        break
                d.farewell()
            with self.subTest(at=at):
                self.assert_refused(script, "shutting down")

    def test_a_missing_export_and_what_there_is(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, UNKNOWN, b"no such disk")
            d.option(LIST)
            d.server(b"one")
            d.server(b"two \x1b[31m", b"the second")
            d.ack()
            d.farewell()
        done = self.assert_refused(script, 'export ""', "no such export", "no such disk")
        self.assertEqual(done.stderr.split("\n")[1:],
                         ["The server's exports are:", '  "one"', '  "two \\x1b[31m"', ""])
        done = self.ask(script, "--json")
        self.assertEqual(done.returncode, 1)
        document = json.loads(done.stdout)
        self.assertIn("no such disk", document["error"])
        self.assertEqual([e["name"] for e in document["exports"]], ["one", "two \x1b[31m"])
        self.assertEqual(document["exports"][1]["description"], "the second")
        self.assertIsNone(document["exports"][1]["size"])

    def test_a_missing_export_among_thousands(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, UNKNOWN)
            d.option(LIST)
            for number in range(3000):
                d.server(b"disk%d" % number)
            d.ack()
            d.farewell()
        done = self.assert_refused(script, "no such export")
        lines = done.stderr.split("\n")
        self.assertEqual(lines[2], '  "disk0"')
        self.assertEqual(lines[21:], ['  "disk19"', "and 2980 more; --list shows them.", ""])

    def test_a_missing_export_on_an_empty_server(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, UNKNOWN)
            d.serve(LIST)
            d.farewell()
        done = self.assert_refused(script, 'export "gone"', export="gone")
        self.assertIn("lists no other export", done.stderr)

    def test_a_missing_export_and_a_secret_list(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, UNKNOWN)
            d.option(LIST)
            d.server(b"half of it")
            d.reply(LIST, POLICY)
            d.farewell()
        done = self.assert_refused(script, "no such export")
        self.assertNotIn("half of it", done.stderr)

    def test_a_list_that_is_refused(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(LIST, POLICY, b"secret")
            d.farewell()
        self.assert_refused(script, "does not list", "policy", "secret", args=("--list",))


class Listing(InfoCase):
    def test_every_export_is_asked_about(self):
        names = [b"", b"a", b"b \"q\"", "späße".encode(), b"n" * 4096]

        def script(d):
            d.greet()
            d.structured()
            d.option(LIST)
            for name in names:
                d.server(name, b"listed")
            d.ack()
            for at, name in enumerate(names):
                _, data = d.option(INFO)
                assert name_of(data) == name
                d.info_export(at)
                d.ack()
                _, data = d.option(LIST_META)
                assert name_of(data) == name
                d.context(b"x:%d" % at)
                d.ack()
            d.farewell()
        document = self.ask_json(script, "--list")
        self.assertEqual(len(document["notes"]), 1, document["notes"])
        self.assertIn('export "": the server reports a size of 0 bytes', document["notes"][0])
        exports = document["exports"]
        self.assertEqual([e["name"].encode() for e in exports], names)
        self.assertEqual([e["size"] for e in exports], [0, 1, 2, 3, 4])
        self.assertEqual([e["contexts"] for e in exports], [[f"x:{i}"] for i in range(5)])
        self.assertEqual({e["description"] for e in exports}, {"listed"})
        shown = self.assert_shown(script, '"b \\x22q\\x22"', '"späße"', args=("--list",))
        self.assertEqual(row(shown, "Exports"), "5")

    def test_an_export_that_cannot_be_used_does_not_hide_the_others(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.option(LIST)
            for name in (b"bad", b"tls", b"good"):
                d.server(name)
            d.ack()
            d.serve(INFO, UNKNOWN, b"medium missing")
            d.serve(INFO, TLS_REQD)
            d.option(INFO)
            d.info_export(77)
            d.ack()
            d.farewell()
        exports = self.ask_json(script, "--list")["exports"]
        self.assertIn("medium missing", exports[0]["refusal"])
        self.assertIn("TLS", exports[1]["refusal"])
        self.assertEqual([e["size"] for e in exports], [None, None, 77])
        self.assertEqual([e["capabilities"] is None for e in exports], [True, True, False])

    def test_an_empty_server(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(LIST)
            d.farewell()
        self.assertEqual(self.ask_json(script, "--list")["exports"], [])
        self.assertEqual(row(self.assert_shown(script, args=("--list",)), "Exports"), "0")

    def test_names_only_where_info_is_unknown(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.option(LIST)
            d.server(b"one")
            d.server(b"two")
            d.ack()
            d.serve(INFO, UNSUP)
            d.farewell()
        document = self.ask_json(script, "--list")
        self.assertEqual([e["name"] for e in document["exports"]], ["one", "two"])
        self.assertIn("INFO", document["notes"][0])


    def test_extended_headers_oblige_to_info(self):
        def script(d):
            d.greet()
            d.serve(EXTENDED)
            d.option(LIST)
            d.server(b"one")
            d.ack()
            d.serve(INFO, UNSUP)
            d.expect_close()
        self.assert_refused(script, "INFO", "rule P108", args=("--list",))


class Terminal(InfoCase):
    EVIL = b"\x1b]0;owned\x07\r\n\x9b2J\"\\\x7f"

    def test_text_of_the_server_is_escaped(self):
        def script(d):
            d.greet()
            d.structured()
            d.option(LIST_META)
            d.context(self.EVIL)
            d.ack()
            d.option(GO)
            d.info(1, self.EVIL)
            d.info(2, self.EVIL)
            d.info_export()
            d.ack()
            d.disconnect()
        escaped = '"\\x1b]0;owned\\x07\\x0d\\x0a\\x9b2J\\x22\\x5c\\x7f"'
        shown = self.assert_shown(script)
        for label in ("Canonical name", "Description", "Contexts"):
            self.assertEqual(row(shown, label), escaped)
        document = self.ask_json(script)
        self.assertEqual(f'"{document["exports"][0]["canonical_name"]}"', escaped)
        self.assertIn("P1", document["notes"][0])

    def test_refusals_are_escaped(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, POLICY, self.EVIL)
            d.farewell()
        self.assert_refused(script, "\\x1b]0;owned\\x07")

    def test_a_long_refusal_is_cut(self):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.serve(GO, POLICY, b"\xff" * 4096)
            d.farewell()
        self.assert_refused(script, "\\xff\\xff", "...")


class Farewell(InfoCase):
    """The end of a list; a single export ends in DISC, which has no reply."""

    def talk(self, end):
        def script(d):
            d.greet()
            d.refuse_styles()
            d.option(LIST)
            d.server(b"one")
            d.ack()
            d.option(INFO)
            d.info_export(4242)
            d.ack()
            d.option(ABORT)
            end(d)
        return script

    def test_a_server_that_just_closes(self):
        self.assert_shown(self.talk(lambda d: None), "(4242 bytes)", args=("--list",))

    def test_a_server_that_resets(self):
        def end(d):
            d.conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.assert_shown(self.talk(end), "(4242 bytes)", args=("--list",))

    def test_a_server_that_stays_silent(self):
        self.assert_shown(self.talk(lambda d: d.wait_for_close()), "(4242 bytes)",
                          args=("--list", "--timeout", "2s"))

    def test_a_server_that_refuses_to_part(self):
        self.assert_shown(self.talk(lambda d: d.reply(ABORT, POLICY, b"stay")), "(4242 bytes)",
                          args=("--list",))


class Addresses(InfoCase):
    def over_tcp(self, family, host, text):
        try:
            listener = socket.create_server((host, 0), family=family)
        except OSError as err:
            self.skipTest(f"{host}: {err}")
        port = listener.getsockname()[1]
        with FakeServer(plain(lambda d: d.info_export(31337)), listener) as server:
            done = self.run_info(f"nbd://{text}:{port}")
        self.assertEqual(server.failures, [])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("(31337 bytes)", done.stdout)

    def test_ipv4(self):
        self.over_tcp(socket.AF_INET, "127.0.0.1", "127.0.0.1")

    def test_ipv6(self):
        self.over_tcp(socket.AF_INET6, "::1", "[::1]")

    def test_a_name_with_several_addresses(self):
        self.over_tcp(socket.AF_INET, "127.0.0.1", "localhost")

    def refused_without_server(self, uri, *wanted, status=1):
        done = self.run_info(uri, "--timeout", "5s")
        self.assertEqual((done.returncode, done.stdout), (status, ""))
        for text in wanted:
            self.assertIn(text, done.stderr)

    def test_nobody_there(self):
        with socket.socket() as deaf:  # nobody else has its port
            deaf.bind(("127.0.0.1", 0))
            port = deaf.getsockname()[1]
            self.refused_without_server(f"nbd://127.0.0.1:{port}", f"127.0.0.1:{port}",
                                        "Connection refused", "check that the server is running")

    def test_no_such_socket(self):
        self.refused_without_server("nbd+unix:///?socket=/nonexistent/socket",
                                    "/nonexistent/socket", "No such file",
                                    "check that the server is running")

    def test_what_is_no_socket_of_a_server(self):
        with tempfile.TemporaryDirectory(prefix="gmblock-info-") as folder:
            file, left, datagram = (os.path.join(folder, name) for name in "fld")
            with open(file, "wb"), socket.socket(socket.AF_UNIX) as sock:
                sock.bind(left)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.bind(datagram)
                for path, wanted in ((file, "not a socket"), (left, "left over from an earlier server"),
                                     (datagram, "different sockets for nbd+unix and gmb+unix"),
                                     ("%00gmblock-nobody", "check that the server is running\n")):
                    with self.subTest(path=path):
                        self.refused_without_server(f"nbd+unix:///?socket={path}",
                                                    "cannot connect", wanted)

    @unittest.skipIf(os.geteuid() == 0, "root may connect to everything")
    def test_a_socket_that_is_not_for_us(self):
        with tempfile.TemporaryDirectory(prefix="gmblock-info-") as folder, \
                socket.socket(socket.AF_UNIX) as sock:
            path = os.path.join(folder, "s")
            sock.bind(path)
            sock.listen()
            os.chmod(path, 0)
            self.refused_without_server(f"nbd+unix:///?socket={path}", "write permission")

    def test_a_socket_path_that_is_too_long(self):
        self.refused_without_server("nbd+unix:///?socket=/" + "s" * 200, "201 bytes", "at most")

    def test_an_unknown_host(self):
        self.refused_without_server("nbd://no-such-host.invalid", "no-such-host.invalid")

    def test_port_zero(self):
        self.refused_without_server("nbd://127.0.0.1:0", "port 0")

    def test_not_a_uri(self):
        self.refused_without_server("http://127.0.0.1/", "http", status=2)

    def test_an_unknown_parameter_is_told(self):
        with FakeServer(plain()) as server:
            done = self.run_info(server.uri() + "&sockte=x")
        self.assertEqual(done.returncode, 0)
        self.assertIn('"sockte"', done.stderr)


class Usage(InfoCase):
    def test_mistakes(self):
        for args, wanted in (((), "URI"), (("a", "b"), "'b'"), (("--frob",), "--frob"),
                             (("--json=x",), "--json"), (("--timeout",), "--timeout"),
                             (("--timeout", "soon", "u"), "soon"),
                             (("--timeout", "0s", "u"), "--timeout"),
                             (("--local", "u"), "--local"), (("--local", "--list"), "--local"),
                             (("--path", "/", "u"), "--local")):
            with self.subTest(args=args):
                done = self.run_info(*args)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(wanted, done.stderr)
                self.assertIn("--help", done.stderr)

    def test_help(self):
        done = self.run_info("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("--list", "--json", "--timeout", "--local", "--path"):
            self.assertIn(option, done.stdout)


if __name__ == "__main__":
    unittest.main()
