#!/usr/bin/python3
"""Stock clients use TLS with our server: libnbd (nbdinfo, nbdcopy, its API), qemu-img, qemu-io and
nbdkit's nbd plugin, with certificates and with pre-shared keys; and those who should not get in do
not."""

import os
from urllib.parse import quote

from captive import (MIB, Gmblock, main, make_file, make_random_file, pattern, refused,
                     require_libnbd, require_program, run)
import tls_tool

BYTES = 8 * MIB


class Credentials:
    """Good ones, those of another authority, and pre-shared keys."""

    def __init__(self, folder):
        require_program("certtool")
        ours = tls_tool.Authority(os.path.join(folder, "authority"), "Example CA")
        self.pki = os.path.join(folder, "pki")
        tls_tool.both(ours, self.pki)
        self.other = os.path.join(folder, "other")
        tls_tool.both(tls_tool.Authority(os.path.join(folder, "others"), "Other CA"), self.other)
        # A folder of their own, with the name that QEMU wants.
        self.keys = os.path.join(folder, "keys")
        os.mkdir(self.keys)
        self.psk = os.path.join(self.keys, "keys.psk")
        tls_tool.write_psk(self.psk, tls_tool.PSK)
        self.bad_keys = os.path.join(folder, "bad-keys")
        os.mkdir(self.bad_keys)
        self.bad_psk = os.path.join(self.bad_keys, "keys.psk")
        tls_tool.write_psk(self.bad_psk, tls_tool.OTHER_PSK)


def x509_server(folder, disk, *options):
    with_pki = Credentials(folder)
    return with_pki, Gmblock(folder, {"": disk}, "--tls=require", "--tls-verify-peer",
                             "--tls-certificates", with_pki.pki, *options,
                             listen="nbd://localhost:0")


def psk_server(folder, disk):
    with_keys = Credentials(folder)
    return with_keys, Gmblock(folder, {"": disk}, "--tls=require", "--tls-psk", with_keys.psk,
                              listen="nbd://localhost:0")


def with_files(uri, folder):
    return "%s%stls-certificates=%s" % (uri, "&" if "?" in uri else "?", quote(folder))


def with_key(uri, psk, user="alice"):
    return "%s?tls-psk-file=%s" % (uri.replace("://", "://%s@" % user), quote(psk))


def test_nbdinfo_with_certificates(folder):
    require_program("nbdinfo")
    credentials, server = x509_server(folder, "memory:1M")
    with server:
        assert server.uris[0].startswith("nbds://"), server.uris
        assert run("nbdinfo", "--size", with_files(server.uris[0], credentials.pki)) == "1048576\n"
        text = run("nbdinfo", with_files(server.uris[0], credentials.pki))
        assert "protocol: newstyle-fixed with TLS" in text, text
        refused("nbdinfo", with_files(server.uris[0], credentials.other))
        refused("nbdinfo", server.uris[0].replace("nbds", "nbd"))


def test_nbdinfo_with_a_key(folder):
    require_program("nbdinfo")
    credentials, server = psk_server(folder, "memory:1M")
    with server:
        for user in ("alice", "bob"):
            uri = with_key(server.uris[0], credentials.psk, user)
            assert run("nbdinfo", "--size", uri) == "1048576\n"
        refused("nbdinfo", with_key(server.uris[0], credentials.bad_psk))
        refused("nbdinfo", with_key(server.uris[0], credentials.bad_psk, "mallory"))


def copy_there_and_back(folder, uri):
    source = make_random_file(os.path.join(folder, "source"), BYTES)
    back = os.path.join(folder, "back")
    run("nbdcopy", source, uri)
    run("nbdcopy", uri, back)
    with open(source, "rb") as one, open(back, "rb") as other:
        assert one.read() == other.read(), "what was copied differs"


def test_nbdcopy_with_certificates(folder):
    require_program("nbdcopy")
    disk = make_file(os.path.join(folder, "disk"), BYTES)
    credentials, server = x509_server(folder, disk)
    with server:
        copy_there_and_back(folder, with_files(server.uris[0], credentials.pki))


def test_nbdcopy_with_a_key(folder):
    require_program("nbdcopy")
    disk = make_file(os.path.join(folder, "disk"), BYTES)
    credentials, server = psk_server(folder, disk)
    with server:
        copy_there_and_back(folder, with_key(server.uris[0], credentials.psk))


def test_libnbd_with_many_requests(folder):
    nbd = require_libnbd()
    credentials, server = x509_server(folder, "memory:16M", "--threads=2")
    with server:
        handle = nbd.NBD()
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_certificates(credentials.pki)
        handle.set_uri_allow_local_file(True)
        handle.connect_uri(server.uris[0])
        assert handle.get_tls_negotiated()
        cookies = []
        for at in range(0, 16 * MIB, 64 << 10):
            cookies.append(handle.aio_pwrite(nbd.Buffer.from_bytearray(
                bytearray(pattern(at, 64 << 10))), at))
            while handle.aio_in_flight() > 32:
                handle.poll(-1)
        for cookie in cookies:
            while not handle.aio_command_completed(cookie):
                handle.poll(-1)
        for at, count in ((0, MIB), (5, 100001), (16 * MIB - 7, 7), (MIB, 8 * MIB)):
            assert handle.pread(count, at) == pattern(at, count), (at, count)
        handle.shutdown()


def qemu_image(server, kind, folder, user=None):
    host, _, port = server.uris[0].split("://")[1].strip("/").rpartition(":")
    object_text = "tls-creds-%s,id=tls,endpoint=client,dir=%s" % (kind, folder)
    if user:
        object_text += ",username=" + user
    return ["--object", object_text, "--image-opts",
            "driver=nbd,host=%s,port=%s,tls-creds=tls" % (host, port)]


def test_qemu_with_certificates(folder):
    require_program("qemu-img", "qemu-io")
    credentials, server = x509_server(folder, "memory:1M")
    with server:
        good = qemu_image(server, "x509", credentials.pki)
        run("qemu-io", *good, "-c", "write -P 0x5a 4096 65536")
        text = run("qemu-io", *good, "-c", "read -P 0x5a -v 4096 65536")
        assert "verification failed" not in text, text[:300]
        assert "1048576" in run("qemu-img", "info", *good)
        refused("qemu-img", "info", *qemu_image(server, "x509", credentials.other))


def test_qemu_with_a_key(folder):
    require_program("qemu-img")
    credentials, server = psk_server(folder, "memory:1M")
    with server:
        assert "1048576" in run("qemu-img", "info",
                                *qemu_image(server, "psk", credentials.keys, "alice"))
        refused("qemu-img", "info", *qemu_image(server, "psk", credentials.bad_keys, "alice"))
        refused("qemu-img", "info", *qemu_image(server, "psk", credentials.bad_keys, "mallory"))


def through_nbdkit(server, *options):
    host, _, port = server.uris[0].split("://")[1].strip("/").rpartition(":")
    return run("nbdkit", "-U", "-", "nbd", "hostname=" + host, "port=" + port, "tls=require", *options,
               "--run", "nbdinfo --size $uri")


def test_nbdkit_with_both(folder):
    require_program("nbdkit", "nbdinfo")
    credentials = Credentials(folder)
    with Gmblock(folder, {"": "memory:1M"}, "--tls=require", "--tls-certificates",
                 credentials.pki, "--tls-psk", credentials.psk,
                 listen="nbd://localhost:0") as server:
        assert through_nbdkit(server, "tls-certificates=" + credentials.pki) == "1048576\n"
        assert through_nbdkit(server, "tls-psk=" + credentials.psk,
                              "tls-username=bob") == "1048576\n"


def test_clients_without_tls_where_it_is_offered(folder):
    require_program("nbdinfo", "qemu-img")
    credentials = Credentials(folder)
    with Gmblock(folder, {"": "memory:1M"}, "--tls=on", "--tls-certificates", credentials.pki,
                 listen="nbd://localhost:0") as server:
        uri = server.uris[0]
        assert uri.startswith("nbd://"), uri
        assert "with TLS" not in run("nbdinfo", uri)
        assert "1048576" in run("qemu-img", "info", uri)
        secure = with_files(uri.replace("nbd", "nbds", 1), credentials.pki)
        assert "with TLS" in run("nbdinfo", secure)


if __name__ == "__main__":
    main()
