#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets, as a step of the build: messages and texts by hand, the cases of
tests/unit/test_nbd_client, and what recorded.json.xz has (see record_seeds.py).

    TEST_NBD_CLIENT=build/tests/unit/test_nbd_client tests/fuzz/make_seeds.py FOLDER

It writes the same files each time, a folder for each target.
"""

import hmac
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

TEST_NBD_CLIENT = os.path.abspath(os.environ.get("TEST_NBD_CLIENT", "build/tests/unit/test_nbd_client"))
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded.json.xz")
SEED_BYTES_MAX = 64 << 10

# In the first byte of a seed of fuzz_nbd_handshake.c.
GOAL_INFO, GOAL_LIST = 8, 16

# Bits of enum circumstance in fuzz_session.c.
JITTER, RESET, PIECES, SMALL, DEAF, STOP, DISK_ERRORS = (1 << n for n in range(7))


# --- by hand -------------------------------------------------------------------------------------

def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


def go(name, *requests, number=7):
    return option(number, struct.pack(">I", len(name)) + name +
                  struct.pack(f">H{len(requests)}H", len(requests), *requests))


def context(name, *queries, number=10):
    return option(number, struct.pack(">I", len(name)) + name + struct.pack(">I", len(queries)) +
                  b"".join(struct.pack(">I", len(q)) + q for q in queries))


def request(command, offset=0, length=0, flags=0, data=b"", cookie=1):
    return struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, offset, length) + data


def extended(command, offset=0, length=0, flags=0, data=b"", cookie=1):
    return struct.pack(">IHHQQQ", 0x21E41C71, flags, command, cookie, offset, length) + data


def hand_session(corpus):
    begin = b"\0\0" + b"\0\0\0\3"
    commands = [(0, 10, 5000, 0), (0, 0, 4096, 4), (3, 0, 0, 0), (4, 5, 70000, 1),
                (6, 1, 9000, 0), (6, 1, 9000, 3), (6, 1, 9000, 16), (5, 0, 100001, 0),
                (7, 0, 100001, 0), (7, 7, 90000, 8), (9, 0, 100, 0), (0, 100000, 2, 0),
                (0, 1 << 63, 1 << 31, 0)]
    for name, export in (("disk", b""), ("read-only", b"ro"), ("failing", b"bad")):
        styles = {
            "simple": (b"", request),
            "structured": (option(8) + context(export, b"base:allocation"), request),
            "extended": (option(11) + context(export, b"base:"  b"allocation"), extended),
        }
        for style, (options, make) in styles.items():
            stream = begin + options + go(export, 3)
            for cookie, (command, offset, length, flags) in enumerate(commands):
                length = min(length, 0xFFFFFFFF)
                stream += make(command, offset, length, flags, cookie=cookie)
            payload = bytes(range(256)) * 3
            flags = 32 if make is extended else 0
            stream += make(1, 99, len(payload), flags, payload, 77)
            stream += make(1, 99, len(payload), flags | 1, payload, 78)
            if make is extended:
                stream += make(7, 0, 65536, 32, struct.pack(">QI", 65536, 1), 79)[:-4]
                stream += make(6, 0, 1 << 40, 0, cookie=80)
            corpus.write("session", f"hand-{style}-{name}", stream + make(2))
    corpus.write("session", "hand-options",
                 begin + option(3) + option(3, b"x") + option(99, b"future") + option(5) +
                 option(4) + option(8) + option(8) + context(b"", number=9) +
                 context(b"", b"base:", b"qemu:", b"nocolon", number=9) + context(b"nope", b"") +
                 go(b"nope") + go(b"", 0, 1, 2, 3, 99, number=6) + option(7, b"\0\0\0\x09ro\0\0") +
                 option(11, b"data") + option(2))
    corpus.write("session", "hand-export-name", begin[:2] + bytes(4) + option(1, b"ro") +
                 request(0, 0, 10) + request(2))
    corpus.write("session", "hand-export-name-missing", begin + option(1, b"none"))
    corpus.write("session", "hand-long-option", begin + option(3, b"z" * 17000) + option(2))
    corpus.write("session", "hand-bad-flags", b"\0\0" + b"\0\0\0\x07")
    corpus.write("session", "hand-bad-magic", begin + go(b"") + b"\x25\x60\x95\x14" + bytes(24))
    corpus.write("session", "hand-big-write",
                 begin + option(8) + go(b"") + request(1, 0, 40000, 0, b"w" * 40000) +
                 request(0, 0, 65536) + request(2))
    for data in (b"\0" + go(b"disk", 1, 2, 3)[16:], b"\0" + b"\xff\xff\xff\xfa\0\0",
                 b"\1" + context(b"disk", b"base:allocation", b"qemu:dirty-bitmap:b")[16:],
                 b"\1" + struct.pack(">I4sII", 4, b"disk", 1, 0xFFFFFFFF)):
        corpus.write("options", f"hand-{len(data)}-bytes", data)


def hand_handshake(corpus):
    def reply(number, kind, data=b""):
        return struct.pack(">QIII", 0x3E889045565A9, number, kind, len(data)) + data
    error = 1 << 31
    greeting = b"NBDMAGICIHAVEOPT\0\3"
    plain = greeting + reply(11, error + 1) + reply(8, error + 1, b"no")
    size = struct.pack(">HQH", 0, 1 << 30, 0x0FFF)
    selected = reply(10, 4, b"\0\0\0\7base:allocation") + reply(10, 1)
    accepted = reply(7, 3, size) + reply(7, 3, struct.pack(">HIII", 3, 1, 4096, 1 << 25)) + \
        reply(7, 3, b"\0\1canon") + reply(7, 3, b"\0\2words") + reply(7, 3, b"\0\x63?") + reply(7, 1)
    newstyle = b"NBDMAGICIHAVEOPT\0\0" + struct.pack(">QH", 1 << 20, 3) + bytes(124)
    for name, data in {
            "extended": b"\2\0" + greeting + reply(11, 1) + selected + accepted,
            "structured": b"\2\5" + greeting + reply(11, error + 1) + reply(8, 1) + selected + accepted,
            "structured-asked": b"\1\1" + greeting + reply(8, 1) + selected + accepted,
            "simple": b"\0\2" + greeting + accepted,
            "export-name": b"\0\7" + greeting + reply(7, error + 1) + struct.pack(">QH", 9, 3),
            "newstyle": b"\2\3" + newstyle,
            "no-context": b"\1\4" + greeting + reply(8, 1) + reply(10, error + 3, b"no") + accepted,
            "missing": b"\0\0" + greeting + reply(7, error + 6, b"none") + reply(2, 1),
            "tls": b"\2\0" + greeting + reply(11, error + 5) + reply(2, error + 2),
            "starttls": b"\x42\3" + greeting + reply(5, 1) + reply(11, 1) + selected + accepted,
            "starttls-simple": b"\x40\2" + greeting + reply(5, 1) + accepted,
            "starttls-refused": b"\x42\0" + greeting + reply(5, error + 2, b"no") + reply(2, 1),
            "starttls-twice": b"\x42\1" + greeting + reply(5, 1) + reply(5, 1),
            "starttls-newstyle": b"\x42\3" + newstyle,
            "starttls-list": b"\x50\5" + greeting + reply(5, 1) + plain[18:] +
                             reply(3, 2, b"\0\0\0\3one") + reply(3, 1) + reply(6, error + 5) +
                             reply(2, 1),
            "shutdown": b"\1\2" + greeting + reply(8, error + 7) + reply(2, 1),
            "epoch": b"\4\1" + greeting + reply(9, 4, b"\0\0\0\0x-gmblock:epoch=0123456789abcdef") +
                     reply(9, 1) + accepted,
            "volatile": b"\5\1" + greeting + reply(8, 1) + reply(9, 4, b"\0\0\0\0x:y") +
                        reply(9, 4, b"\0\0\0\0x-gmblock:epoch=f,volatile") + reply(9, 1) + selected +
                        accepted,
            "speaks-first": b"\0\2" + greeting + accepted + b"gD\x66\x98",
            "everything-info": b"\x08\0" + greeting + reply(11, 1) +
                               reply(9, 4, b"\0\0\0\7base:allocation") + reply(9, 1) + accepted,
            "old-names-info": b"\x08\0" + plain + reply(7, error + 1) + struct.pack(">QH", 1 << 20, 3),
            "first-newstyle-info": b"\x08\0" + newstyle,
            "missing-info": b"\x08\0" + plain + reply(7, error + 6, b"none") +
                            reply(3, 2, b"\0\0\0\3one") + reply(3, 2, b"\0\0\0\3twoabout") +
                            reply(3, 1) + reply(2, 1),
            "list": b"\x10\5" + plain + reply(3, 2, b"\0\0\0\3one") +
                    reply(3, 2, b"\0\0\0\3two") + reply(3, 1) + reply(6, error + 5) +
                    reply(6, 3, size) + reply(6, 1) + reply(2, error + 2),
            "shutdown-list": b"\x10\2" + greeting + reply(11, error + 7) + reply(2, 1),
    }.items():
        corpus.write("nbd_handshake", f"hand-{name}", data)


TEXTS = {
    "http": [
        "GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nUser-Agent: Prometheus/2.42.0\r\n"
        "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
        "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
        "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n",
        "HEAD /metrics?x=1 HTTP/1.0\n\n",
        "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "GET http://host/metrics HTTP/1.1\r\nAccept: text/*; q=0.123 ; x=\"a,b\" ,;,"
        "*/*;q=1.0000\r\n\r\n",
        "GET / HTTP/2.0\r\nA: b\r\n folded\r\n\r\n",
        "\x16\x03\x01\x02\x00\n\n",
    ],
    "uri": ["nbd://localhost", "nbd://127.0.0.1:10809/disk", "nbd://[::1]:0/a%20b", "nbds://h/x", "nbd://a,b:1/x", "nbds://u@a:1,[::1]:2,c%2Cd/x",
            "nbd+unix:///?socket=/tmp/s", "nbd+unix:///e%2Ff?socket=/a/b&x=y",
            "nbds+unix:///n?socket=%00abstract&tls-type=psk&tls-hostname=h&tls-verify-peer=0",
            "nbds://u@h/?tls-certificates=/etc/pki&tls-psk-file=a%20b&tls-verify-peer=1",
            "nbds://u:password@h/", "nbd://h/?tls-type=psk",
            "nbd://user@host:99/%C3%A9", "nbd://h:65536/", "nbd://h/%00", "nbd+unix:///x",
            "nbd://[fe80::1%25eth0]/", "http://x/", "nbd://h/%zz", "nbd:", ""],
    "units": ["exclusive,id=0123456789abcdef0123456789abcdef,ms=30000,preempt",
              "shared,id=ffffffffffffffffffffffffffffffff,ms=1,renew", "shared,id=ffffffffffffffffffffffffffffffff,ms=1,moves",
              "exclusive,id=00000000000000000000000000000000,ms=999999999", "0", "1", "4096", "64M", "1g", "16EiB", "15E", "18446744073709551615", "1KiB", "2kb",
              "10ms", "500us", "1s", "3min", "1h", "7ns", "-1", "1.5G", " 1", "1 ", "99999999999h"],
    "store_rule": ["read:EIO", "write:ENOSPC:nth=3", "any:EIO:every=2:range=4096+8192",
                   "flush:EIO:prob=0.25", "trim:EPERM:range=1M+1M", "zero:EOPNOTSUPP",
                   "read:10ms", "any:1s:range=0+512", "cache:500us", "extents:1ns",
                   "read:EIO:nth=0", "read:EIO:prob=1.1", "read:EIO:range=18446744073709551615+2",
                   "none:EIO", "read:", ":", "read:EIO:nth=1:every=2", "100M",
                   "1G:latency=100us:members=4:chunk=64K", "1T:members=64", "1M:chunk=4K"],
    "access": ["rights=rw", "disk1: psk=alice address=10.1.0.0/16 rights=rw", ": rights=none",
               r"a\:b\=c\\: uid=0 rights=ro", r"cert-dn=CN=Joe\ Doe,O=Example rights=ro",
               "cert-san=dns:host.example tls=true rights=rw", "cert-san=ip:::1 rights=ro",
               "cert-san=email:a@b.example rights=ro", "cert-san=uri:https://x.example/y rights=ro",
               "cert-fingerprint=sha256:" + "9f" * 32 + " rights=rw",
               "key-fingerprint=" + "00:" * 31 + "ff rights=rw", "cert-cn=x rights=rw",
               "address=::ffff:10.0.0.0/104 rights=ro", "address=::/0 rights=ro",
               "address=10.0.0.1/8 rights=ro", "address=1.2.3.4 uid=1 rights=ro", "rights=rw rights=ro",
               "uid=4294967295 rights=rw", "tls=false psk=x rights=rw", "cert-san=dns:*.x rights=ro",
               "psk=", "psk", "disk1:", "  ", "adress=::1 rights=ro"],
    "export": ["=disk.img", "name=path", "=memory:64M,readonly", "a=null:1G,mode=direct",
               "a=b,write-mode=cached,description=some text,max-connections=3",
               r"we\=ird=pa\,th,description=a\,b\\c", "x=y,fault=read:EIO:nth=2,delay=any:1ms",
               "x=y,fault=read:EIO,fault=write:EIO", "x=y,readonly=yes", "x=y,mode=fast", "x", "=",
               "x=y,", "x=y,,", "x=y,what=ever", "\xe9=y", "x=y,readonly,readonly",
               "x=y,overlap=auto,stripe=128K:4", "x=y,overlap=off,page-cache-send=off",
               "x=y,pace=100M:latency=1ms:members=4:chunk=128K"],
}


def hand_texts(corpus):
    for target, texts in TEXTS.items():
        for number, text in enumerate(texts):
            corpus.write(target, f"hand-{number:02}", text.encode("latin-1"))
    for number, text in enumerate((b"plain", b"\x1b[31m\r\n", b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x92\xbe",
                                   b"\xc3\xff\xed\xa0\x80\xf4\x90\x80\x80", b"\"\\\x7f\xc2\x9b",
                                   b"x" * 300)):
        corpus.write("text", f"hand-{number:02}-small", b"\0" + text)
        corpus.write("text", f"hand-{number:02}-large", b"\xff" + text)


def hand_overlay(corpus):
    """What is put right, header, bitmap; see fuzz_overlay.c."""
    def head(version=1, block=4096, size=100 << 10, fingerprint=0x9C735BED0A722325, path=b"base",
             path_bytes=None):
        return struct.pack(">8sIIQQQII", b"GMBOVL\r\n", version, block, size, 0, fingerprint,
                           len(path) if path_bytes is None else path_bytes, 0) + path.ljust(80, b"\0")
    for name, right, data in (
            ("good", 3, head()), ("bits", 3, head() + b"\xff\1\0\1"),
            ("behind-the-end", 3, head() + b"\0\0\0\xff"), ("checksum", 2, head()),
            ("short", 1, head()), ("version", 3, head(version=2)), ("block", 3, head(block=512)),
            ("other-base", 3, head(fingerprint=1)), ("other-size", 3, head(size=4096)),
            ("large", 3, head(size=1 << 36) + b"\1"), ("too-large", 3, head(size=(1 << 48) + 1)),
            ("empty-disk", 3, head(size=0)), ("path", 3, head(path_bytes=3969)),
            ("whole-path", 3, head(path_bytes=3968)), ("no-path", 3, head(path=b""))):
        corpus.write("overlay", f"hand-{name}", bytes([right]) + data)


def hand_flash(corpus):
    """What is put right, length of the anchor, anchor, record; see fuzz_flash.c."""
    uuid = bytes(range(16))

    def anchor(version=1, disk=1000, count=32, blocks=64, segment=1, block=2, top=b""):
        return struct.pack("<8sII16sQQIIQIIIIQ", b"GMBFLA\r\n", version, 4096, uuid, 5, disk, count,
                           blocks, 77, segment, block, 0xC0FFEE, 15, 4000).ljust(512, b"\0") + top.ljust(16, b"\0")

    def view(name, serial=5, top=b""):
        return struct.pack("<64sQQ", name, serial, 1 << 30).ljust(128, b"\0") + top.ljust(512, b"\0")

    def entry(lpn, kind, source=0, crc=0):
        return lpn.to_bytes(5, "little") + struct.pack("<BIIH", kind, source, crc, 0)

    def record(entries=(), seq=77, durable=70, next_segment=0xFFFFFFFF, count=None):
        return (struct.pack("<4sI16sQQIIH", b"GFLR", 0, uuid, seq, durable, 0xC0FFEE, next_segment,
                            len(entries) if count is None else count).ljust(256, b"\0") + b"".join(entries))

    def cache(version=1, tag=7, slots=32):
        return struct.pack("<8sII16s16sQQI", b"GMBFLC\r\n", version, 4096, uuid, uuid, tag, 1000, slots)

    some = (entry(3, 1, crc=9), entry(4, 2, source=300, crc=8), entry(512, 3, source=400), entry(0, 4, source=2, crc=7))
    for name, right, first, second in (
            ("good", 3, anchor(), record(some)), ("empty", 3, anchor(), record()),
            ("top", 3, anchor(top=struct.pack("<II", 700, 1)), record(some)),
            ("views", 3, anchor().ljust(1024, b"\0") + view(b"daily", top=struct.pack("<II", 700, 1)) + view(b"x.2"),
             record((entry(0, 4, source=5, crc=7), entry(3, 2, source=300, crc=8)))),
            ("view-name", 3, anchor().ljust(1024, b"\0") + view(b"a/b"), b""),
            ("view-serial", 3, anchor().ljust(1024, b"\0") + view(b"a", serial=6), b""),
            ("leaves", 3, anchor(), record(some, next_segment=9)), ("nowhere", 3, anchor(), record(some, next_segment=32)),
            ("durable", 3, anchor(), record(some, durable=78)), ("count", 3, anchor(), record(some, count=241)),
            ("long", 3, anchor(block=10), record([entry(i, 1, crc=i) for i in range(60)])),
            ("cache", 5, anchor(), cache()), ("cache-slots", 5, anchor(), cache(slots=1 << 25)),
            ("cache-tag", 5, anchor(), cache(tag=0)), ("cache-page", 1, anchor(), struct.pack("<QQQ", 3, 9, 77)),
            ("checksums", 0, anchor(), record(some)), ("version", 1, anchor(version=9), b""),
            ("disk", 1, anchor(disk=100000), b""), ("segments", 1, anchor(count=1 << 31), b""),
            ("position", 1, anchor(block=63), b"")):
        corpus.write("flash", f"hand-{name}", bytes([right, len(first) // 16]) + first + second)


def hand_fences(corpus):
    """Whether the last line is added, lines; see fuzz_fences.c."""
    head = "gmblock-fenced 1\n"
    alpha = "node alpha 1764428490\nwhen psk:616c706861\n"
    network = "when network:" + "00" * 10 + "ffff0a4d0002" + "80" + " encrypted:00\n"
    for name, end, text in (
            ("empty", 1, head), ("node", 1, head + alpha), ("two", 1, head + alpha + "node b.2 0\n" + network),
            ("kinds", 1, head + alpha + "when uid:e8030000\nwhen cert-cn:616263 dns:61\nwhen ip:" + "00" * 16 + "\n"
             "when certificate:" + "a5" * 32 + "\nwhen key:" + "5a" * 32 + "\nwhen email:40 uri:3a cert-dn:434e3d61\n"),
            ("many", 1, head + "".join(f"node n{number} {number}\nwhen uid:{number:08x}\n" for number in range(300))),
            ("no-rule", 1, head + "node alpha 5\n"), ("no-node", 1, head + network), ("twice", 1, head + alpha + alpha),
            ("same-kind", 1, head + "node a 1\nwhen uid:00000000 uid:01000000\n"),
            ("long", 1, head + "node " + "a" * 64 + " 1\nwhen uid:00000000\n"), ("version", 1, "gmblock-fenced 2\n" + alpha),
            ("time", 1, head + "node a 18446744073709551616\nwhen uid:00000000\n"),
            ("prefix", 1, head + "node a 184467440737095516155\nwhen uid:000000\n"),
            ("cut", 0, head + alpha), ("checksum", 0, head + alpha + "end 1 5a3c0f12\n"), ("nothing", 0, ""),
            ("behind", 0, head + "end 0 00000000\nend 0 00000000\n")):
        corpus.write("fences", f"hand-{name}", bytes([end]) + text.encode())


CONFIGS = {
    "whole": """
limits:
  memory: 256M
  threads: 2
  max-connections: 100
  handshake-timeout: 5s
  max-inflight: 64
  spin: off
listen:
  - nbd://127.0.0.1:10809
  - nbd+unix:///?socket=/run/s
exports:
  - name: disk
    path: /srv/disk.img
    mode: cached
    write-mode: direct
    readonly: true
    description: "A disk, with a comma"
    max-connections: 5
    overlap: auto
    stripe: "128K:4"
  - name: ""
    path: memory:64M
    fault: [ "read:EIO:nth=3", "flush:EIO" ]
    delay: [ "any:10ms" ]
    pace: "100M:members=2"
""",
    "smallest": "exports: [ { path: memory:1M } ]\n",
    "access": "access: [{rights: ro, address: 10.0.0.0/8}, none]\nexports:\n- name: a\n  path: memory:1M\n  access:\n  - {rights: rw, psk: alice, tls: true}\n  - {cert-san: \"dns:a.example\", rights: ro}\n  - rw\n",
    "access-wrong": "access:\n- {rights: [ro]}\nexports: [{name: a, path: b, access: [{uid: 1, uid: 2}]}]\n",
    "unknown-key": "exports:\n  - path: x\n    colour: red\n",
    "wrong-type": "exports: 7\n",
    "bad-value": "limits: { memory: lots }\nexports:\n  - { name: a, path: b }\n",
    "twice": "exports:\n  - { name: a, path: b }\n  - { name: a, path: c }\n",
    "anchors": "a: &a [x]\nb: *a\nexports: [ { path: &p m, name: *p } ]\n",
    "not-yaml": "exports: [ {\n\t: }\n",
    "empty": "",
    "documents": "---\nexports: []\n---\nexports: []\n",
}


def hand_upgrade(corpus):
    def message(kind, payload=b"", version=3, magic=0x676D6255):
        return struct.pack(">IHH", magic, version, kind) + payload

    def session(state, kind=b"nbd", export=b"", token=b""):
        head = struct.pack(">QIIII", 7, len(kind), len(export), len(token), len(state))
        return message(6, head + kind + export + token + state)

    def state(flags=0, alive=0, received=b""):
        return struct.pack(">III", flags, alive, len(received)) + received

    def vhost(flags=0, regions=4, queues=(), waits=0, got=0, fds=0, head=bytes(12), rest=b"", entries=64):
        """The files of fuzz_upgrade.c are four, of 1 MiB each."""
        return session(
            struct.pack(">IIQQQQQQIIIIIIII", flags, 15, 0x174006246 & ~(1 << 34), 0x1b22b, 0, 65536, 4096, 65536, 1,
                        entries, waits, 0, regions, len(queues), got, fds) + head +
            b"".join(struct.pack(">QQQQ", i << 20, 1 << 20, i << 30, 0) for i in range(regions)) +
            b"".join(struct.pack(">IIIIIIQQQQ", *queue) for queue in queues) + rest, kind=b"vhost")

    def tls(peer, rest=b"", form=1, version=0x0304, cipher=2):
        return struct.pack(">HHIQ48s48sI", form, version, cipher, 1 << 34, b"r" * 48, b"s" * 48,
                           peer) + rest

    def chain(*certificates):
        return struct.pack(">32sQQ", b"", 0, 2**40) + b"".join(
            struct.pack(">I", len(der)) + der for der in certificates)

    claim = struct.pack(">II16sQ", 1, 2, bytes(range(16)), 77)
    memory = struct.pack(">II16sQ", 2, 2, bytes(range(16)), 77)
    # That of fuzz_upgrade.c.
    key = hmac.digest(bytes.fromhex("0123456789abcdef" * 2), b"nobody", "sha256")
    read, write = request(0, 0, 512), request(1, 4096, 4096, data=bytes(4096))
    packets = {
        "hello": (0, message(1, struct.pack(">I", 4711))),
        "listener": (1, message(2, struct.pack(">IQQ", 1, 2, 3))),
        "listener-of-metrics": (1, message(2, struct.pack(">IQQ", 9, 2, 3))),
        "export": (1, message(3, claim + struct.pack(">I", 4) + b"disk")),
        "export-of-memory": (1, message(3, memory + struct.pack(">I", 4) + b"disk")),
        "export-without-memory": (0, message(3, memory + struct.pack(">I", 4) + b"disk")),
        "prepare": (0, message(4)), "ready": (0, message(5)),
        "sessions-end": (0, message(7, struct.pack(">II", 3, 1))), "started": (0, message(8)),
        "failed": (0, message(9, b"no \x1b[31mdisk")),
        "added": (0, message(10, b"x\0memory:1M\0rate\0=1M\0readonly\0\0")),
        "added-bare": (0, message(10, b"\0/srv/x.img\0")),
        "added-overlay": (0, message(10, b"n\0/srv/x\0overlay\0=discard\0delay\0=read:1ms\0"
                                         b"delay\0=write:1ms\0")),
        "added-odd": (0, message(10, b"x\0memory:1M\0rate\0")),
        "added-no-end": (0, message(10, b"x\0memory:1M")),
        "added-no-equals": (0, message(10, b"x\0memory:1M\0rate\x001M\0")),
        "added-unknown-key": (0, message(10, b"x\0memory:1M\0colour\0=red\0")),
        "added-not-utf-8": (0, message(10, b"\xff\0memory:1M\0")),
        "added-no-path": (0, message(10, b"x\0\0")),
        "added-full": (0, message(10, b"x\0memory:1M\0" + b"description\0=" + b"d" * 16358 + b"\0")),
        "added-many": (0, message(10, b"x\0memory:1M\0" + b"fault\0=read:EIO\0" * 257)),
        "session": (1, session(state())),
        "session-begun": (1, session(state(32, received=write[:28] + bytes(96)) + struct.pack(">QI", 4000, 0))),
        "session-begun-and-more": (130, session(state(32, received=write[:28]) + struct.pack(">QI", 512, 0))),
        "session-failed": (1, session(state(32, received=write[:28]) + struct.pack(">QI", 4096, 5))),
        "session-begun-too-far": (1, session(state(32, received=write[:28]) + struct.pack(">QI", 4097, 0))),
        "session-begun-without-header": (1, session(state(32, received=write[:27]) + bytes(12))),
        "received": (0, message(12, struct.pack(">I", 0) + write)),
        "received-too-much": (0, message(12, bytes(4 + 24577))),
        "session-unknown-export": (1, session(state(), export=b"none")),
        "session-token": (1, session(state(7, 10), token=b"t" * 16)),
        "session-read": (1, session(state(1, 0, read + read[:13]))),
        "session-write": (1, session(state(0, 0, write))),
        "session-half": (1, session(state(0, 0, write[:2000]))),
        "session-extended": (1, session(state(3, 100, extended(0, 0, 70000)))),
        "session-context": (1, session(state(5, 0, request(7, 0, 65536)))),
        "session-full": (1, session(state(0, 0, read * 292))),
        "session-too-full": (1, session(state(0, 0, read * 293))),
        "session-bad-flags": (1, session(state(2))),
        "session-tls-missing": (1, session(state(16))),
        "session-tls-nobody": (1, session(state(16) + tls(0))),
        "session-tls-form": (1, session(state(17) + tls(0, form=2))),
        "session-tls-cipher": (1, session(state(17) + tls(0, version=0x0303, cipher=4))),
        "session-tls-psk": (1, session(state(16, 0, read) + tls(1, key + b"nobody"))),
        "session-tls-chain": (1, session(state(16) + tls(2, chain(b"0" * 40, b"1")))),
        "session-tls-no-chain": (1, session(state(16) + tls(2, chain()))),
        "vhost": (1, vhost()),
        "vhost-log-and-record": (1, vhost(2 | 4, 2, [(0, 11, 64, 0, 0, 1, 4096, 16384, 8192, 0)])),
        "vhost-queues": (1, vhost(1 | 16, 4, [(i, 11, 16, 3, 2, 0, (1 << 30) + 64, (1 << 30) + 4096, (1 << 30) + 512, 0)
                                              for i in range(64)])),
        "vhost-waits": (1, vhost(16, 4, [(0, 139, 16, 0, 0, 0, 0, 0, 0, 0)], waits=1)),
        "vhost-resets": (1, vhost(16, 4, [(1, 7, 16, 0, 0, 0, 0, 0, 0, 0)], waits=2)),
        "vhost-message": (1, vhost(0, 2, got=20, fds=2, head=struct.pack("=III", 37, 9, 40), rest=bytes(8))),
        "vhost-message-head": (1, vhost(0, 3, got=7, fds=1, head=struct.pack("=III", 37, 9, 40))),
        "vhost-message-too-long": (1, vhost(0, 4, got=52, head=struct.pack("=III", 37, 9, 40), rest=bytes(40))),
        "vhost-too-few-files": (1, vhost(2 | 4, 4)),
        "vhost-record-too-small": (1, vhost(2 | 4, 2, entries=1025)),
        "vhost-twice": (1, vhost(0, 4, [(0, 1, 16, 0, 0, 0, 0, 0, 0, 0)] * 2)),
        "vhost-event": (1, vhost(0, 3, [(0, 16, 16, 0, 0, 0, 0, 0, 0, 0)])),
        "version": (0, message(4, version=2)), "magic": (0, message(4, magic=1)),
    }
    for name, (fds, packet) in packets.items():
        corpus.write("upgrade", f"hand-{name}", bytes([fds]) + packet)


def hand_vhost_server(corpus):
    """Steps of fuzz_vhost_server.c."""
    guest = 1 << 20

    def message(request, payload=b"", fd=0, flags=1):
        return bytes([0, request, flags, fd, len(payload)]) + payload

    def write(position, contents):
        return bytes([2]) + struct.pack(">HB", position, len(contents)) + contents

    def desc(number, address, size, flags=0, following=0):
        return write(16 * number, struct.pack("=QIHH", address, size, flags, following))

    def chain(kind, sector=0, size=512, status=True):
        """Head, payload and status of a request, as descriptors 0 to 2."""
        writes = 2 if kind in (0, 8) else 0
        return (write(0x4000, struct.pack("=IIQ", kind, 0, sector)) + desc(0, guest + 0x4000, 16, 1, 1) +
                desc(1, guest + 0x5000, size, writes | 1, 2) + desc(2, guest + 0x4100, 1 if status else 0, 2) +
                write(4100, struct.pack("=H", 0)))

    start, start_plain, kick, submit, rewrite = bytes([1, 0]), bytes([1, 1]), bytes([3]), bytes([4, 1]), bytes([6])
    region = struct.pack("=QQQQ", 1 << 40, 8192, 1 << 41, 4096)
    numbers = b"".join(message(request) for request in (1, 15, 17, 36, 40))
    inputs = {
        "numbers": numbers,
        "unknown": message(99), "too-short": message(5, b"\1"), "version": message(1, flags=2),
        "start": start + kick, "read": start + chain(0) + submit + submit,
        "write": start_plain + chain(1, 3, 4096) + submit, "flush": start + chain(4) + submit,
        "id": start + chain(8, size=20) + submit, "discard": start + chain(11, size=16) + submit,
        "zeroes": start + chain(13, size=16) + submit, "no-status": start + chain(0, status=False) + submit,
        "unknown-request": start + chain(77) + submit,
        "loop": start + chain(0) + desc(2, guest, 8, 1, 1) + submit,
        "outside": start + chain(0) + desc(1, 99, 512, 3, 2) + submit,
        "indirect": start + desc(0, guest + 0x6000, 48, 4) + write(0x6000, struct.pack(
            "=QIHHQIHHQIHH", guest + 0x4000, 16, 1, 1, guest + 0x5000, 512, 3, 2, guest + 0x4100, 1, 2, 0)) + submit,
        "jump": start + bytes([4, 17]), "rewrite": start + chain(0) + submit + rewrite + rewrite,
        "truncate": start + chain(0) + bytes([5, 1]) + submit + submit,
        "truncate-all": start + chain(1) + bytes([5, 0]) + submit,
        "slots": start + message(37, bytes(8) + region, 1) + chain(0) + submit + message(38, bytes(8) + region),
        "stop": start + chain(0) + submit + message(11, struct.pack("=II", 0, 0)) + rewrite + start + submit,
        "reset": start + chain(0) + submit + message(34) + message(39, bytes(8)) + start + submit,
        "record": message(31, struct.pack("=QQHH4x", 0, 0, 1, 16)) +
                  message(32, struct.pack("=QQHH4x", 4096, 65536, 1, 16), 1) + start + chain(0) + submit + rewrite,
        "log": message(6, struct.pack("=QQ", 64, 131072), 1) + start + message(2, struct.pack("=Q", 0x144000000)) +
               message(9, struct.pack("=IIQQQQ", 0, 1, 1 << 30, (1 << 30) + 8192, (1 << 30) + 4096, guest + 8192)) +
               chain(0) + submit,
        "channel": start + message(21, b"", 4) + message(24, struct.pack("=III", 0, 60, 0) + bytes(60)) +
                   message(25, struct.pack("=III", 32, 1, 0) + b"\0"),
        "two-queues": start + chain(0) + submit + bytes([4, 19]) + message(5, struct.pack(
            "=IIQQQQ", 1, 0, guest, 1 << 18, 1 << 30, 0), 1) + submit + bytes([4, 19]) + rewrite,
        "second-queue": start + chain(1) + bytes([4, 19]) + message(11, struct.pack("=II", 1, 0)) + start + kick,
        "second-queue-breaks": start + chain(0) + bytes([4, 35]) + message(34) + start + bytes([4, 19]),
        "events": start + message(12, bytes(8), 1) + message(13, bytes(8), 4) + message(14, bytes(8), 3) + submit,
    }
    for name, steps in inputs.items():
        corpus.write("vhost_server", f"hand-{name}", steps)


def hand_nbd_client(corpus):
    """The replies of tests/unit/test_nbd_client.c, one a seed."""
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        subprocess.run([TEST_NBD_CLIENT, folder], check=True)
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as seed:
                corpus.write("nbd_client", f"hand-{name}", seed.read())


# The last kind of text in the first byte of a seed of fuzz_identity.c.
CERTIFICATE = 10


def hand_identity(corpus):
    """Texts of rules by kind, and files of keys."""
    psk, dn, cn, dns, email, uri, ip, cert_hash, key_hash, psk_file = range(CERTIFICATE)
    digits = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    texts = {
        psk: ["alice", "a:b"], cn: ["host-a"], email: ["a@b"], uri: ["urn:x"],
        dn: ["CN=backup,O=Example", "cn = a , 2.5.4.10=b", r"CN=\ a\2C\,\#+UID=b,DC=org",
             "CN=#0c0441424344", "CN=#0c81", "O=\xc3\xbc", "OID.1.2=x", "CN=", "CN=a,"],
        dns: ["Host-A.example", "*.example", "a."],
        ip: ["192.0.2.7", "2001:db8::1", "1.2.3"],
        cert_hash: ["sha256:" + digits], key_hash: ["SHA256:" + ":".join(re.findall("..", digits))],
        psk_file: [f"# keys\nalice:{digits}\n\nbob:{digits[:32]}\r\n", f"a:{digits}\na:{digits}\n",
                   "a:00\n", f"#cafe:{digits}\n", f"a:{digits}"],
    }
    for kind, seeds in texts.items():
        for number, text in enumerate(seeds):
            corpus.write("identity", f"hand-{kind:02}-{number}", bytes([kind]) + text.encode("latin-1"))


def hand_gmb(corpus):
    """Each message once as it should be, and at the borders of what is allowed."""
    hello, lists, opens, region, requests, welcome, export, reply, event, copies = range(10)
    magic = b"gmblock1"
    segment = lambda offset, length: struct.pack("<HHIQQ", 1, 0, 7, offset, length)
    head = lambda operation, length, segments=0, inlined=0, extents=0: struct.pack(
        "<IBBHQQHHI", 5, operation, 0, 0, 4096, length, segments, inlined, extents)
    asked = lambda extents, length: struct.pack("<IQ", extents, length)
    answer = lambda status, value: struct.pack("<IIQ", 5, status, value)
    extent = lambda length, flags: struct.pack("<QII", length, flags, 0)
    described = lambda flags: struct.pack("<IIQQQIIHHI", 0, flags, 1 << 30, 1, 2, 1 << 20, 4096, 4, 6, 0) + b"diska disk"
    seeds = {
        "hello": (hello, magic + struct.pack("<HHI", 1, 3, 0)),
        "hello-later": (hello, magic + struct.pack("<HHI", 2, 3, 0)),
        "list": (lists, bytes(8)),
        "open": (opens, struct.pack("<HHBBH", 0, 4, 3, 2, 0) + b"disk" + b"t.3" + b"\x03t.1\x03t.2"),
        "open-look": (opens, struct.pack("<HHBBH", 1, 0, 0, 0, 0)),
        "region": (region, struct.pack("<QIIHHHHQ", 0, 1 << 20, 1, 0, 15, 3, 0, 0)),
        "read": (requests, head(0, 5000, 2) + segment(0, 4096) + segment(8192, 904)),
        "read-longest": (requests, head(0, 64 * 512, 64) + segment(0, 512) * 64),
        "read-wraps": (requests, head(0, 1, 2) + segment(0, 1 << 63) + segment(0, (1 << 63) + 1)),
        "write-inline": (requests, head(1, 512, 0, 512) + bytes(512)),
        "write-both": (requests, head(1, 1024, 1, 512) + segment(0, 512) + bytes(512)),
        "flush": (requests, head(2, 0)),
        "status": (requests, head(6, 1 << 40, 0, 0, 16)),
        "unknown": (requests, head(200, 7)),
        "welcome": (welcome, magic + struct.pack("<HHI", 1, 0, 0)),
        "welcome-moves": (welcome, magic + struct.pack("<HHI", 1, 1, 0)),
        "export": (export, described(5)),
        "export-identity": (export, described(5 + 16) + bytes(range(16))),
        "export-identity-short": (export, described(5 + 16) + bytes(range(15))),
        "export-none": (export, struct.pack("<II", 2, 0) + bytes(40)),
        "reply": (reply, asked(0, 4096) + answer(0, 0)),
        "reply-error": (reply, asked(0, 4096) + answer(28, 4096) + b"no space"),
        "reply-extents": (reply, asked(4, 8192) + answer(0, 2) + extent(4096, 0) + extent(4096, 3)),
        "reply-too-much": (reply, asked(4, 8192) + answer(0, 2) + extent(4096, 0) + extent(4097, 3)),
        "welcome-2": (welcome, magic + struct.pack("<HHI", 2, 0, 0) + bytes(range(16))),
        "copy": (copies, struct.pack("<IHHQQQQ", 5, 1, 4, 4096, 1 << 40, 8192, 7) + b"disk"),
        "copy-no-text": (copies, struct.pack("<IHHQQQQ", 5, 0, 2, 0, 1, 0, 0) + b"a\xff"),
        "reply-copied": (reply, asked((1 << 32) - 1, 15) + answer(0, 0) +
                         struct.pack("<5Q", 1, 2, 3, 4, 5)),
        "reply-copied-wraps": (reply, asked((1 << 32) - 1, 1) + answer(0, 0) +
                               struct.pack("<5Q", 1 << 63, 1 << 63, 0, 0, 1)),
        "event": (event, struct.pack("<IIQ", 1, 0, 1 << 30)),
    }
    for name, (parser, message) in seeds.items():
        corpus.write("gmb", f"hand-{name}", bytes([parser]) + message)


class Corpus:
    def __init__(self, folder):
        self.folder = folder

    def write(self, target, name, data):
        if len(data) > SEED_BYTES_MAX:
            data = data[:SEED_BYTES_MAX]
        os.makedirs(os.path.join(self.folder, target), exist_ok=True)
        with open(os.path.join(self.folder, target, name), "wb") as seed:
            seed.write(data)


def hand_push(corpus):
    """The parser, and a message, the head of a piece, or a ticket; see fuzz_push.c."""
    mib, instance, uri = 1 << 20, bytes(range(16)), b"push+unix:///?socket=/s"
    ticket = struct.pack("<IHHQQQQII", 0x314B5450, 1, 0, 7, 0, mib, 600, 1, 1000) + bytes(16) + instance + bytes(32)
    for parser, name, message in (
            (0, "look", struct.pack("<HHI", 4, 0, 0) + b"disk"),
            (1, "grant", struct.pack("<QQQIIIHH", 0, mib, 0, 2, 1, 1000, 4, 6) + bytes(16) + instance + b"disksource"),
            (2, "start", struct.pack("<QQQIHHII", 0, mib, 0, 1, 4, len(uri), 1000, 0) + b"disk" + uri + ticket),
            (2, "start-nbd", struct.pack("<QQQIHHII", 0, mib, 0, 8, 4, 9, 0xFFFFFFFF, 0) + b"disknbd://a/b"
             + struct.pack("<IHHQQQ", 0, 0, 6, 0, mib, mib) + bytes(80)),
            (3, "cancel", struct.pack("<Q", 7)),
            (3, "hello", struct.pack("<8sHHI", b"gmbpush1", 1, 1, 0)),
            (4, "answer", struct.pack("<IIQHHI", 0, 0, 7, 0, 112, 0) + ticket),
            (4, "answer-error", struct.pack("<IIQHHI", 2, 0, 0, 4, 0, 0) + b"none"),
            (5, "job", struct.pack("<QQQQQQQQQQIBBHHHI", 7, 1, 0, 100, 50, 0, 0, 10, 9, 5, 0, 1, 2, 4, 1, 0, 0) + b"diskp"),
            (6, "welcome", struct.pack("<8sHHI", b"gmbpush1", 1, 0, 0) + bytes(16)),
            (7, "zero", struct.pack("<QQ", mib, 2 * mib)),
            (8, "check", struct.pack("<QII", mib, mib, 5)),
            (9, "flush", struct.pack("<QQII", mib, 5, 1, 0)),
            (10, "piece", struct.pack("<IIQI44x", 0x31435050, 1, mib, mib)),
            (11, "used", struct.pack("<QQIIHHI", 0, mib, 8, 1, 1, 0, 30000)),
            (12, "zeroed", struct.pack("<QQ", 0, 1)),
            (13, "checked", struct.pack("<QII", 0, 1, 0)),
            (14, "failed", struct.pack("<IHH", 5, 4, 0) + b"text"),
            (15, "use", instance + ticket),
            (16, "join", instance + ticket + struct.pack("<II", 1, 0)),
            (17, "drop", struct.pack("<II", 1, 0)),
            (18, "dropped", struct.pack("<II8Q", 1, 0, 0, mib, *[(1 << 64) - 1] * 6))):
        corpus.write("push", f"hand-{name}", bytes([parser]) + message)


def hand_vhost(corpus):
    add, publish, take, arm, serve, write = (lambda *rest, step=step: bytes([step, *rest, *bytes(3 - len(rest))])
                                             for step in range(6))
    for features in range(4):
        head = bytes([features])
        work = b"".join(add(pieces) for pieces in (0, 1, 2, 64, 70)) + publish() + arm(1)
        corpus.write("vhost_ring", f"hand-all-used-{features}",
                     head + work + b"".join(serve(i, i % 3) for i in range(5)) + take() * 6 + work)
        corpus.write("vhost_ring", f"hand-out-of-order-{features}",
                     head + work + serve(3) + serve(1) + take() * 2 + serve(0) + take())
        corpus.write("vhost_ring", f"hand-twice-{features}", head + work + serve(1) * 2 + take() * 2)
        corpus.write("vhost_ring", f"hand-bad-status-{features}", head + work + serve(0, 3) + take())
        corpus.write("vhost_ring", f"hand-full-{features}",
                     head + (add(1) * 70 + publish() + serve(0) + take()) * 4)
        corpus.write("vhost_ring", f"hand-writes-{features}",
                     head + work + b"".join(write(i, 7 * i & 255, 255) + take() for i in range(200)))


def write_strangers(corpus, strangers):
    for name, data in strangers.items():
        for way, role in ((0, "server"), (0x80, "client"), (2, "records")):
            corpus.write("tls", f"hand-{name}-{role}", bytes([way, 200]) + data)


def hand_tls(corpus):
    """First bytes of connections, and changes of what is said: see fuzz_tls.c."""
    def changes(*places):
        return b"".join(struct.pack(">HB", *place) for place in places)

    write_strangers(corpus, {
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "sslv2": bytes.fromhex("802e0100020015000000100100800300800700c0"),
        "alert": bytes.fromhex("15030300020228"),
        "bytewise": bytes.fromhex("160303000101") * 40,
        "data": bytes.fromhex("170303000401020304") + bytes.fromhex("140303000101") * 4,
    })
    for name, places in {"nothing": (), "early": ((9, 1),), "late": ((160, 0x80),),
                         "two": ((300, 1), (40, 2)), "header": ((522, 1),)}.items():
        for way in (1, 0x81, 3, 0x83):
            corpus.write("tls", f"hand-change-{name}-{way:02x}", bytes([way, 0]) + changes(*places))


def hand_session_tls(corpus):
    flags = b"\0\0\0\3"
    starttls = option(5)
    structured = option(8) + context(b"", b"base:allocation")
    use = (structured + go(b"", 3) + request(1, 99, 300, 1, bytes(300)) + request(0, 10, 5000) +
           request(7, 0, 100001) + request(2))
    talks = {  # what is said in clear, what under TLS
        "use": (flags + starttls, b"T" + use),
        "agreed-before": (flags + option(11) + structured + starttls,
                          b"T" + go(b"", 3) + request(0, 10, 5000) + request(2)),
        "twice": (flags + starttls, b"T" + starttls + option(3) + go(b"ro") + request(2)),
        "refused-hello": (flags + starttls, b"X" + use),
        "no-hello": (flags + starttls, b""),
        "early-bytes": (flags + starttls + b"T" + option(3), use),
        "with-data": (flags + option(5, b"x") + starttls, b"T" + use),
        "clear-options": (flags + option(3) + go(b"", number=6) + option(8) + option(99, b"x"),
                          option(2)),
        "clear-use": (flags + structured, go(b"", 3) + request(0, 10, 5000) + request(2)),
        "clear-export-name": (flags, option(1) + request(0, 0, 10) + request(2)),
        "export-name": (flags + starttls, b"T" + option(1) + request(0, 0, 10) + request(2)),
        "old-client": (bytes(4) + starttls, b"T" + use),
    }
    rough = JITTER | PIECES | SMALL
    for mode, mode_name in enumerate(("off", "on", "require")):
        for name, (clear, encrypted) in talks.items():
            said = bytes([mode, len(clear)]) + clear + encrypted
            corpus.write("session_tls", f"hand-{mode_name}-{name}", b"\0\0" + said)
        corpus.write("session_tls", f"hand-{mode_name}-use-rough",
                     bytes([rough, 5 + mode, mode, len(flags + starttls)]) + flags + starttls +
                     b"T" + use)
        corpus.write("session_tls", f"hand-{mode_name}-use-stop",
                     bytes([STOP | RESET, 9, mode, len(flags + starttls)]) + flags + starttls +
                     b"T" + use)


def record():
    """Makes recorded.json.xz: {target: {name: a character for each byte}}."""
    with tempfile.TemporaryDirectory(prefix="gmblock-seeds-") as folder:
        corpus = Corpus(os.path.join(folder, "corpus"))
        record_session(folder, corpus)
        record_servers(folder, corpus)
        record_certificates(corpus)
        record_hellos(corpus)
        found = {}
        for target in sorted(os.listdir(corpus.folder)):
            seeds = found[target] = {}
            for name in sorted(os.listdir(os.path.join(corpus.folder, target))):
                with open(os.path.join(corpus.folder, target, name), "rb") as seed:
                    seeds[name] = seed.read().decode("latin-1")
    with lzma.open(RECORDED, "wt", encoding="ascii") as out:
        json.dump(found, out, indent=0)


def make(corpus):
    """All seeds, as a step of the build."""
    with lzma.open(RECORDED, "rt", encoding="ascii") as recorded:
        for target, seeds in json.load(recorded).items():
            for name, text in seeds.items():
                corpus.write(target, name, text.encode("latin-1"))
    for hand in (hand_session, hand_session_tls, hand_handshake, hand_nbd_client, hand_texts, hand_overlay,
                 hand_flash, hand_fences, hand_upgrade, hand_vhost_server, hand_gmb, hand_push, hand_tls,
                 hand_identity, hand_vhost):
        hand(corpus)
    for name, text in CONFIGS.items():
        corpus.write("config", f"hand-{name}", text.encode())


def main():
    folder, = sys.argv[1:]
    shutil.rmtree(folder, ignore_errors=True)
    make(Corpus(folder))


if __name__ == "__main__":
    main()
