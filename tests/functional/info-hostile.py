#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gmblock info against servers that break the protocol: a sentence names the rule, status is 1."""

import random
import struct
import unittest

from fake_server import (ABORT, ACK, ERR, EXTENDED, FIXED, GO, IHAVEOPT, INFO_REPLY, LIST,
                         LIST_META, META, NBDMAGIC, NO_ZEROES, OLDSTYLE, SERVER,
                         STRUCTURED_REPLY, UNSUP)
from info_tool import InfoCase

SHORT = ("--timeout", "3s")  # enough for the steps before the silence, on a busy machine


def raw(data, then_wait=True):
    """A server that sends these bytes first and then waits, or closes."""
    def script(d):
        d.send(data)
        if then_wait:
            d.wait_for_close()
    return script


def at_go(misbehave):
    """A lawful server without structured replies, up to the answer to GO."""
    def script(d):
        d.greet()
        d.refuse_styles()
        d.option(GO)
        misbehave(d)
        d.wait_for_close()
    return script


def at_list(misbehave):
    def script(d):
        d.greet()
        d.refuse_styles()
        d.option(LIST)
        misbehave(d)
        d.wait_for_close()
    return script


def at_contexts(misbehave):
    def script(d):
        d.greet()
        d.structured()
        d.option(LIST_META)
        misbehave(d)
        d.wait_for_close()
    return script


class Greeting(InfoCase):
    def test_other_protocol_is_no_nbd_server(self):
        self.assert_refused(raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "not an NBD server", "SSH-2.0-")

    def test_banner_shorter_than_a_greeting(self):
        self.assert_refused(raw(b"\x1b[2J\x07\r\n!"), "\\x1b[2J\\x07\\x0d\\x0a!")

    def test_second_magic_is_wrong(self):
        self.assert_refused(raw(NBDMAGIC + b"IHAVEOPS" + b"\0\3"), "0x49484156454f5053", "rule P4")

    def test_oldstyle_server_is_named(self):
        oldstyle = NBDMAGIC + OLDSTYLE + struct.pack(">QI", 1 << 20, 1) + bytes(124)
        self.assert_refused(raw(oldstyle), "oldstyle")

    def test_oldstyle_server_that_stops_after_its_magic(self):
        self.assert_refused(raw(NBDMAGIC + OLDSTYLE), "oldstyle")

    def test_close_without_a_word(self):
        self.assert_refused(raw(b"", then_wait=False), "without a greeting")

    def test_close_at_every_byte_of_the_greeting(self):
        greeting = NBDMAGIC + IHAVEOPT + b"\0\3"
        for cut in range(1, len(greeting)):
            with self.subTest(cut=cut):
                self.assert_refused(raw(greeting[:cut], then_wait=False),
                                    "closed the connection in the middle of the server's greeting")

    def test_silence(self):
        self.assert_refused(raw(b""), "timed out after 3 s", "the server's greeting; check that this is an NBD server",
                            args=SHORT)

    def test_silence_in_the_greeting(self):
        self.assert_refused(raw(NBDMAGIC), "timed out after 3 s", "the server's greeting", args=SHORT)


class Replies(InfoCase):
    def reply_to_extended(self, data, *wanted, args=()):
        def script(d):
            d.greet()
            d.option(EXTENDED)
            d.send(data)
            d.wait_for_close()
        self.assert_refused(script, *wanted, args=args)

    def test_wrong_magic_loses_the_stream(self):
        self.reply_to_extended(struct.pack(">QIII", 0x3E889045565A8, EXTENDED, ACK, 0),
                               "0x0003e889045565a8", "rule P120")

    def test_reply_to_another_option(self):
        self.reply_to_extended(struct.pack(">QIII", 0x3E889045565A9, GO, ACK, 0),
                               "option 7 (GO), but the request was EXTENDED_HEADERS", "rule P11")

    def test_reply_to_an_option_nobody_knows(self):
        self.reply_to_extended(struct.pack(">QIII", 0x3E889045565A9, 0xFFFFFFFF, ACK, 0),
                               "option 4294967295 (unknown)", "rule P11")

    def test_claimed_lengths_beyond_every_lawful_reply(self):
        for length in (4 + 4096 + 4096 + 1, 1 << 31, 0xFFFFFFFF):
            with self.subTest(length=length):
                self.reply_to_extended(
                    struct.pack(">QIII", 0x3E889045565A9, EXTENDED, UNSUP, length),
                    f"{length} bytes", "rule P1")

    def test_silence_in_the_payload(self):
        self.reply_to_extended(struct.pack(">QIII", 0x3E889045565A9, EXTENDED, UNSUP, 10) + b"x",
                               "timed out after 3 s", "EXTENDED_HEADERS", args=SHORT)

    def test_unknown_reply_types(self):
        for kind in (0, 5, 77, ERR - 1):
            with self.subTest(kind=kind):
                self.reply_to_extended(struct.pack(">QIII", 0x3E889045565A9, EXTENDED, kind, 0),
                                       f"reply of type {kind}", "rule P11")

    def test_known_reply_types_where_they_do_not_belong(self):
        for kind in (SERVER, INFO_REPLY, META):
            with self.subTest(kind=kind):
                self.reply_to_extended(
                    struct.pack(">QIII", 0x3E889045565A9, EXTENDED, kind, 4) + bytes(4),
                    f"reply of type {kind}", "rule P11")

    def test_error_text_beyond_a_string(self):
        self.reply_to_extended(
            struct.pack(">QIII", 0x3E889045565A9, EXTENDED, UNSUP, 4097) + b"x" * 4097,
            "an error text of 4097 bytes", "rule P1")

    def test_error_text_with_a_zero_byte(self):
        self.reply_to_extended(
            struct.pack(">QIII", 0x3E889045565A9, EXTENDED, UNSUP, 3) + b"a\0b",
            "zero byte", "rule P1")

    def test_close_between_options(self):
        def script(d):
            d.greet()
            d.option(EXTENDED)
        self.assert_refused(script, "closed the connection in the middle of",
                            "EXTENDED_HEADERS", "rule P129")

    def test_close_at_every_byte_of_a_reply(self):
        reply = struct.pack(">QIII", 0x3E889045565A9, EXTENDED, UNSUP, 4) + b"nope"
        for cut in range(1, len(reply)):
            def script(d, cut=cut):
                d.greet()
                d.option(EXTENDED)
                d.send(reply[:cut])
            with self.subTest(cut=cut):
                self.assert_refused(script, "rule P129")

    def test_extended_headers_without_go(self):
        def script(d):
            d.greet()
            d.serve(EXTENDED)
            d.serve(LIST_META)
            d.serve(GO, UNSUP)
            d.expect_close()
        self.assert_refused(script, "rule P108")


class Information(InfoCase):
    def breach(self, misbehave, *wanted):
        self.assert_refused(at_go(misbehave), *wanted)

    def test_end_without_the_size(self):
        self.breach(lambda d: d.ack(), "without the size of the export", "rule P23")

    def test_too_short_for_a_type(self):
        for length in (0, 1):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.reply(GO, INFO_REPLY, bytes(n)),
                            f"{length} bytes", "rule P23")

    def test_export_of_wrong_length(self):
        for length in (0, 9, 11):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.info(0, bytes(n)), f"{length + 2} bytes",
                            "instead of 12", "rule P23")

    def test_negative_sizes(self):
        for size in (1 << 63, (1 << 64) - 1):
            with self.subTest(size=size):
                self.breach(lambda d, s=size: d.info_export(s), f"{size:#x}", "rule P68")

    def test_block_size_of_wrong_length(self):
        for length in (0, 11, 13):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.info(3, bytes(n)), "instead of 14", "rule P29")

    def test_block_sizes_out_of_bounds(self):
        for sizes, rule in (((0, 512, 1 << 20), "P58"), ((3, 512, 1 << 20), "P58"),
                            ((1 << 17, 1 << 17, 1 << 20), "P58"),
                            ((1 << 31, 1 << 31, 1 << 31), "P58"),
                            ((1, 256, 1 << 20), "P59"), ((1, 1000, 1 << 20), "P59"),
                            ((4096, 512, 1 << 20), "P59"), ((1, 0, 1 << 20), "P59"),
                            ((1, 4096, 4095), "P60"), ((1, 512, 0), "P60")):
            with self.subTest(sizes=sizes):
                self.breach(lambda d, s=sizes: d.info_block_size(*s), f"rule {rule}")

    def test_strings_beyond_4096_bytes(self):
        for kind, what in ((1, "canonical export name"), (2, "export description")):
            with self.subTest(what=what):
                self.breach(lambda d, k=kind: d.info(k, b"n" * 4097), what, "4097", "rule P1")

    def test_strings_with_a_zero_byte(self):
        for kind in (1, 2):
            with self.subTest(kind=kind):
                self.breach(lambda d, k=kind: d.info(k, b"a\0b"), "zero byte", "rule P1")

    def test_information_without_end(self):
        for kind, payload in ((0, struct.pack(">QH", 1, 1)), (1, b"n" * 4096), (99, b"?")):
            def misbehave(d, kind=kind, payload=payload):
                while True:
                    d.info(kind, payload)
            with self.subTest(kind=kind):
                self.breach(misbehave, "replies with information", "rule P11")


class Lists(InfoCase):
    def breach(self, misbehave, *wanted):
        self.assert_refused(at_list(misbehave), *wanted, args=("--list",))

    def test_too_short_for_a_name_length(self):
        for length in range(4):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.reply(LIST, SERVER, bytes(n)), "rule P16")

    def test_name_runs_past_the_reply(self):
        for length in (5, 1 << 31, 0xFFFFFFFF, 0xFFFFFFFC):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.reply(
                    LIST, SERVER, struct.pack(">I", n) + b"four"), f"{length} bytes", "rule P16")

    def test_name_beyond_4096_bytes(self):
        self.breach(lambda d: d.server(b"n" * 4097), "export name of 4097", "rule P1")

    def test_description_beyond_4096_bytes(self):
        self.breach(lambda d: d.server(b"n", b"d" * 4097), "description of 4097", "rule P1")

    def test_name_with_a_zero_byte(self):
        self.breach(lambda d: d.server(b"a\0b"), "zero byte", "rule P1")

    def test_list_without_end(self):
        batch = (struct.pack(">QIII", 0x3E889045565A9, LIST, SERVER, 4) + bytes(4)) * 4096

        def misbehave(d):
            while True:
                d.send(batch)
        self.breach(misbehave, "more than 65536 exports")

    def test_list_of_more_text_than_is_kept(self):
        one = struct.pack(">QIII", 0x3E889045565A9, LIST, SERVER, 8196)
        batch = (one + struct.pack(">I", 4096) + b"n" * 8192) * 32

        def misbehave(d):
            while True:
                d.send(batch)
        self.breach(misbehave, "exceed the limit of 32 MiB")


class Contexts(InfoCase):
    def breach(self, misbehave, *wanted):
        self.assert_refused(at_contexts(misbehave), *wanted)

    def test_no_room_for_a_name(self):
        for length in range(5):
            with self.subTest(length=length):
                self.breach(lambda d, n=length: d.reply(LIST_META, META, bytes(n)), "rule P38")

    def test_name_beyond_4096_bytes(self):
        self.breach(lambda d: d.context(b"x:" + b"n" * 4095), "4097", "rule P1")

    def test_contexts_without_end(self):
        batch = (struct.pack(">QIII", 0x3E889045565A9, LIST_META, META, 7) + bytes(4) +
                 b"x:y") * 1024

        def misbehave(d):
            while True:
                d.send(batch)
        self.breach(misbehave, "more than 4096 metadata contexts")


class OldNames(InfoCase):
    """EXPORT_NAME, the option without replies."""

    def ask_old(self, answer, *wanted, args=()):
        def script(d):
            d.greet(FIXED)
            d.refuse_styles()
            d.serve(GO, UNSUP)
            d.option(1)
            answer(d)
        self.assert_refused(script, *wanted, args=args, export="old")

    def test_refusal_by_closing(self):
        self.ask_old(lambda d: None, 'export "old"', "the only way")

    def test_close_in_the_zeroes(self):
        self.ask_old(lambda d: d.old_reply(zeroes=123), "EXPORT_NAME", "rule P129")

    def test_silence_in_the_zeroes(self):
        def answer(d):
            d.old_reply(zeroes=123)
            d.wait_for_close()
        self.ask_old(answer, "timed out after 3 s", "EXPORT_NAME", args=SHORT)

    def test_negative_size(self):
        self.ask_old(lambda d: d.old_reply(size=1 << 63), "rule P68")


class Pressure(InfoCase):
    def test_everything_at_once_without_being_asked(self):
        # Replies to options that were not sent yet, and rubbish after them.
        def script(d):
            d.send(NBDMAGIC + IHAVEOPT + struct.pack(">H", FIXED | NO_ZEROES))
            d.reply(EXTENDED, UNSUP)
            d.reply(STRUCTURED_REPLY, UNSUP)
            d.reply(GO, ACK)
            d.reply(ABORT, ACK)
            d.wait_for_close()
        self.assert_refused(script, "rule P23")

    def test_random_bytes_after_a_good_greeting(self):
        rng = random.Random(20)
        for seed in range(20):
            data = rng.randbytes(600)

            def script(d, data=data):
                d.greet()
                d.send(data)
                d.wait_for_close()
            with self.subTest(seed=seed):
                self.assert_refused(script, "rule P120")


if __name__ == "__main__":
    unittest.main()
