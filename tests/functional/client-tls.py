#!/usr/bin/python3
"""TLS as clients speak it: the library and every command against other servers, and against somebody
in between who does not want it.

    client-tls.py GMBLOCK LIBRARY_DRIVER
"""
import json
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import zlib

import attach_tool
import ports
import relay
import support
import tls_tool

BYTES = 4 << 20
URI_FILES = 1 << 4  # GMB_OPEN_URI_FILES
STARTTLS, ABORT = 5, 2
ACK, UNSUP, POLICY, TLS_REQD = 1, 1 << 31 | 1, 1 << 31 | 2, 1 << 31 | 5
GREETING = b"NBDMAGICIHAVEOPT\0\3"


def reply(option, kind, data=b""):
    return struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data


# What somebody in between says instead of the server: the greeting, and the answer to STARTTLS.
MODES = {
    "unsup": (GREETING, reply(STARTTLS, UNSUP, b"what?")),
    "policy": (GREETING, reply(STARTTLS, POLICY)),
    "demand": (GREETING, reply(STARTTLS, TLS_REQD)),
    "other option": (GREETING, reply(8, ACK)),
    "two answers": (GREETING, reply(STARTTLS, ACK) * 2),
    "unencrypted data followed": (GREETING, reply(STARTTLS, ACK) + reply(11, UNSUP) + reply(8, ACK)),
    "garbage": (GREETING, reply(STARTTLS, ACK) + b"\x16\x03\x03\xff\xff" + b"x" * 300),
    "a close": (GREETING, reply(STARTTLS, ACK)),
    "not fixed": (b"NBDMAGICIHAVEOPT\0\2", b""),
    "no newstyle": (b"NBDMAGIC" + bytes.fromhex("0000420281861253") + bytes(136), b""),
}


class Proxy(relay.Relay):
    """The first connections are passed on, later ones are answered by MODES[mode]. What clients say to that is kept in
    heard, and of connections that were passed on how it begins."""

    def __init__(self, path, target, passed=0, mode="unsup"):
        self.left = passed
        self.mode = mode
        self.heard = []
        self.begins = {}  # by link
        self.begun = []  # those of the connections that have ended
        super().__init__(target, path)

    def passes(self, client):
        self.left -= 1
        if self.left < 0:
            self.run(self.answer, client)
        return self.left >= 0

    def seen(self, link, direction, data):
        begin = self.begins.get(link, b"")
        if direction == relay.UP and len(begin) < 4096:
            self.begins[link] = begin + data
        return data

    def ended(self, link, direction):
        link.cut()
        if direction == relay.UP:
            self.begun.append(self.begins.get(link, b""))

    def answer(self, client):
        greeting, answer = MODES[self.mode]
        heard = b""
        with client:
            client.settimeout(support.WAIT_SECONDS)
            try:
                client.sendall(greeting)
                while len(heard) < 20 and (data := client.recv(4096)):
                    heard += data
                if heard:
                    client.sendall(answer)
                if self.mode not in ("garbage", "unencrypted data followed"):
                    client.shutdown(socket.SHUT_WR)  # an answer to ABORT is not waited for
                while data := client.recv(65536):
                    heard += data
            except OSError:
                pass
            self.heard.append(heard)


def options_in_clear(heard):
    """The options in what a client said; what begins with a record of TLS is none."""
    options = []
    at = 4
    while heard[at:at + 8] == b"IHAVEOPT":
        option, length = struct.unpack(">II", heard[at + 8:at + 16])
        options.append(option)
        at += 16 + length
    rest = heard[at:]
    assert not rest or rest[0] in (0x15, 0x16), rest
    assert b"IHAVEOPT" not in rest and b"secret-disk" not in heard, heard
    return options


class Driver:
    """tests/functional/library_driver.c."""

    def __init__(self):
        self.process = subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.events = []

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def until(self, *words):
        """The next line that begins with one of these; events on the way are kept."""
        while line := self.process.stdout.readline():
            line = line.rstrip("\n")
            if line.split(" ", 1)[0] in words:
                return line
            if line.startswith("event "):
                self.events.append(line)
        raise AssertionError(f"the driver has ended; events: {self.events}")

    def open(self, uri, *options):
        self.say(" ".join(("open", "a", uri, f"flags={URI_FILES}", *options)))
        return self.until("opened", "refused")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def close(self):
        """The program must end well."""
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.stdout.close()
        status = self.process.wait(support.WAIT_SECONDS)
        assert status == 0, status


def setUpModule():
    TlsCase.pki = tempfile.mkdtemp(prefix="gmblock-pki-")
    unittest.addModuleCleanup(shutil.rmtree, TlsCase.pki)
    tls_tool.make(TlsCase.pki)


class TlsCase(support.Case):
    pki = None

    def setUp(self):
        super().setUp()
        self.content = random.Random(11).randbytes(BYTES)
        self.image = self.make_file("image", self.content)

    def creds(self, name):
        return os.path.join(self.pki, name)

    def nbdkit(self, *arguments, name="s"):
        """nbdkit, ready, with an export of any name."""
        path = self.path(name)
        server = subprocess.Popen(
            ["nbdkit", "-f", "-U", path, "-P", path + ".pid", *arguments, "file", self.image],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.wait_for(lambda: os.path.exists(path + ".pid"))
        return server

    def nbdkit_x509(self, folder="good", *arguments, name="s"):
        return self.nbdkit("--tls=require", f"--tls-certificates={self.creds(folder)}", *arguments,
                           name=name)

    def uri(self, name="s", user="", export="secret-disk", **parameters):
        query = {"socket": self.path(name)}
        query.update({f"tls-{key.replace('_', '-')}": value for key, value in parameters.items()})
        return f"nbds+unix://{user}{'@' if user else ''}/{export}?" + "&".join(
            f"{key}={urllib.parse.quote(value)}" for key, value in query.items())

    def x509(self, name="s", folder="good", hostname="localhost", **parameters):
        return self.uri(name, certificates=self.creds(folder), hostname=hostname, **parameters)

    def psk(self, name="s", user="alice", keys="keys.psk"):
        return self.uri(name, user=user, psk_file=self.creds(keys))

    def proxy(self, **options):
        proxy = Proxy(self.path("p"), self.path("s"), **options)
        self.addCleanup(proxy.close)
        return proxy

    def check_nothing_in_clear(self, proxy):
        for heard in proxy.heard + proxy.begun:
            for option in options_in_clear(heard):
                self.assertIn(option, (STARTTLS, ABORT))

    def check_works(self, uri, cipher="AES-128-GCM", verified=True):
        """info says how it is protected, and what is read is right."""
        status, output, errors = self.run_gmblock("info", "--json", uri)
        self.assertEqual(status, 0, errors)
        tls = json.loads(output)["protocol"]["tls"]
        self.assertIn(tls["version"], ("TLS 1.2", "TLS 1.3"))
        self.assertEqual((tls["cipher"], tls["verified"]), (cipher, verified))
        copied = self.path("copied")
        status, _, errors = self.run_gmblock("copy", uri, copied)
        self.assertEqual(status, 0, errors)
        with open(copied, "rb") as file:
            self.assertEqual(file.read(), self.content)
        os.unlink(copied)
        return errors


class Peers(TlsCase):
    def test_certificates_with_nbdkit(self):
        self.nbdkit_x509()
        self.assertEqual(self.check_works(self.x509()), "")
        self.check_works(self.x509(hostname="127.0.0.1"))
        self.check_works(self.x509(folder="no-client"))
        self.assertIn("not verified (tls-verify-peer=0)", self.check_works(
            self.uri(certificates=self.creds("good"), verify_peer="0"), verified=False))

    def test_a_client_that_must_show_its_certificate(self):
        self.nbdkit_x509("good", "--tls-verify-peer")
        self.check_works(self.x509())
        self.check_refused(["info", self.x509(folder="no-client")], 1, "certificate")
        self.check_refused(["info", self.x509(folder="stranger")], 1, "certificate")

    def test_pre_shared_keys_with_nbdkit(self):
        self.nbdkit("--tls=require", f"--tls-psk={self.creds('keys.psk')}")
        self.check_works(self.psk())
        self.check_works(self.psk(user="bob"))
        self.check_refused(["info", self.psk(keys="other.psk")], 1, "pre-shared key")
        self.check_refused(["info", self.psk(user="mallory", keys="other.psk")], 1,
                           "pre-shared key")

    def qemu_nbd(self, object_, name="q"):
        path = self.path(name)
        server = subprocess.Popen(
            ["qemu-nbd", "--object", object_, "--tls-creds", "t", "-f", "raw", "-t", "-e", "16",
             "-x", "secret-disk", "-k", path, "--pid-file", path + ".pid", self.image],
            stdin=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.wait_for(lambda: os.path.exists(path + ".pid"))

    def test_certificates_with_qemu_nbd(self):
        self.qemu_nbd(f"tls-creds-x509,id=t,endpoint=server,dir={self.creds('good')}")
        self.check_works(self.x509("q"))

    def test_pre_shared_keys_with_qemu_nbd(self):
        os.mkdir(self.path("psk"))
        shutil.copy(self.creds("keys.psk"), self.path("psk/keys.psk"))
        self.qemu_nbd(f"tls-creds-psk,id=t,endpoint=server,dir={self.path('psk')}")
        self.check_works(self.psk("q"))

    def test_a_server_that_leaves_it_to_the_client(self):
        self.nbdkit("--tls=on", f"--tls-certificates={self.creds('good')}")
        self.check_works(self.x509())

    def test_what_info_prints(self):
        """The protection has a row of its own, and is not repeated in another one."""
        self.nbdkit("--tls=require", f"--tls-certificates={self.creds('good')}")
        output = self.run_gmblock("info", self.x509())[1]
        self.assertRegex(output, r"\nTLS +TLS 1\.[23], AES-128-GCM, the server is verified\n")
        self.assertRegex(output, r"\nProtocol +fixed newstyle, [^,\n]+\n")

    def test_a_server_without_tls(self):
        self.nbdkit("--tls=off")
        self.check_refused(["info", self.x509()], 1, "does not offer TLS, which the URI requires")

    def test_tcp_and_its_host_name(self):
        port = ports.free()
        self.nbdkit_tcp(port, "good")
        files = f"tls-certificates={self.creds('good')}"
        self.check_works(f"nbds://localhost:{port}/?{files}")
        self.check_works(f"nbds://127.0.0.1:{port}/?{files}")
        self.check_refused(["info", f"nbds://127.0.0.2:{port}/?{files}"], 1, "'127.0.0.2'",
                           "tls-hostname")
        self.check_works(f"nbds://127.0.0.2:{port}/?{files}&tls-hostname=server.example")

    def nbdkit_tcp(self, port, folder):
        pid = self.path("tcp.pid")
        server = subprocess.Popen(
            ["nbdkit", "-f", "-p", str(port), "-P", pid, "--tls=require",
             f"--tls-certificates={self.creds(folder)}", "file", self.image],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.wait_for(lambda: os.path.exists(pid))


class Messages(TlsCase):
    def test_servers_that_are_not_believed(self):
        for folder, hostname, wanted in (("good", "other.example", "'other.example'"),
                                         ("other-ca", "localhost", "authority"),
                                         ("expired", "localhost", "expired"),
                                         ("not-yet", "localhost", "not yet valid"),
                                         ("wrong-purpose", "localhost", "server")):
            with self.subTest(folder=folder, hostname=hostname):
                server = self.nbdkit_x509(folder, name=folder)
                self.check_refused(["info", self.x509(folder, hostname=hostname)], 1, wanted)
                server.kill()

    def test_parameters_that_do_not_fit(self):
        keys = self.creds("keys.psk")
        for uri, wanted in (
                (self.uri(certificates="/pki"), "tls-hostname=NAME"),
                (self.uri(type="psk"), "tls-psk-file=FILE"),
                (self.uri(type="x509", psk_file=keys, hostname="h"), "tls-certificates=FOLDER"),
                (self.uri(certificates="/pki", psk_file=keys), "only one of"),
                (self.uri(psk_file=self.path("none")), "none"),
                (self.uri(psk_file=keys, user="carol"), "'carol'"),
                (self.uri(certificates=self.path("nowhere"), hostname="h"), "nowhere")):
            for command in ("info", "list"):
                with self.subTest(uri=uri, command=command):
                    self.check_refused([command, uri], 1, wanted)

    def test_a_program_must_allow_files(self):
        self.nbdkit_x509()
        driver = Driver()
        self.addCleanup(driver.kill)
        for uri in (self.x509(), self.psk()):
            driver.say(f"open a {uri}")
            self.assertIn("GMB_OPEN_URI_FILES", driver.until("refused"))
        self.assertIn("opened", driver.open(self.x509()))

    def test_settings_of_a_program(self):
        """They replace parameters of the URI, and need no GMB_OPEN_URI_FILES."""
        self.nbdkit_x509()
        self.nbdkit("--tls=require", f"--tls-psk={self.creds('keys.psk')}", name="p")
        driver = Driver()
        self.addCleanup(driver.kill)
        good = f"certificates={self.creds('good')}"
        for uri, options, expected in (
                (self.uri(), f"{good} hostname=localhost", "opened"),
                (self.uri(hostname="elsewhere"), f"{good} hostname=localhost", "opened"),
                (self.uri(hostname="localhost"), f"{good} hostname=elsewhere", "refused"),
                (self.uri(hostname="elsewhere"), f"{good} tls_flags=1", "opened"),
                (self.uri(), "tls_flags=1", "opened"),
                (self.uri(), "tls_flags=2", "refused a -22 unknown flags"),
                (self.uri("p"), f"psk_file={self.creds('keys.psk')} username=alice", "opened"),
                (self.uri("p", user="mallory"), f"psk_file={self.creds('keys.psk')} username=bob",
                 "opened"),
                (self.uri("p"), f"{good} psk_file={self.creds('keys.psk')}", "refused a -22 "),
                (f"nbd+unix:///?socket={self.path('s')}", good, "refused a -22 credentials for TLS"),
                (f"gmb+unix:///?socket={self.path('s')}", good, "refused a -22 credentials for TLS")):
            with self.subTest(uri=uri, options=options):
                driver.say(f"open a {uri} {options}")
                line = driver.until("opened", "refused")
                self.assertTrue(line.startswith(expected), line)
                if line.startswith("opened"):
                    driver.say("close a")
                    driver.until("closed")


class Downgrade(TlsCase):
    """Expected of all: an error, and nothing in clear that names an export."""

    def commands(self, uri):
        copy = self.path("copy")
        yield "info", uri
        yield "info", "--list", uri
        yield "info", "--map", uri
        yield "list", uri
        yield "bench", "--seconds", "1s", uri
        yield "copy", uri, copy
        yield "copy", self.image, uri
        yield "attach", "--fuse", self.path("fuse"), uri
        yield "attach", "--nbd", uri

    def test_every_command(self):
        proxy = self.proxy()
        for command in self.commands(self.x509("p")):
            with self.subTest(command=command):
                status, _, errors = self.run_gmblock(*command)
                self.assertEqual(status, 1, errors)
                self.assertRegex(errors, "TLS|no nbd|nbd driver")
        # The kernel's driver is not even tried.
        self.wait_for(lambda: len(proxy.heard) >= len(list(self.commands(""))) - 1)
        self.check_nothing_in_clear(proxy)

    def test_every_trick(self):
        for mode in MODES:
            path = self.path(mode.replace(" ", "-"))
            proxy = Proxy(path, None, mode=mode)
            self.addCleanup(proxy.close)
            for uri in (self.x509(os.path.basename(path)), self.psk(os.path.basename(path))):
                for command in (("info", uri), ("info", "--map", uri)):
                    with self.subTest(mode=mode, command=command):
                        status, output, errors = self.run_gmblock(*command)
                        self.assertEqual((status, output), (1, ""), errors)
            self.wait_for(lambda proxy=proxy: len(proxy.heard) == 4)
            self.check_nothing_in_clear(proxy)

    def test_further_connections(self):
        """They are not made; the first one does all the work."""
        self.nbdkit_x509()
        for mode in ("unsup", "unencrypted data followed"):
            proxy = Proxy(self.path(mode.replace(" ", "-")), self.path("s"), passed=1, mode=mode)
            self.addCleanup(proxy.close)
            copied = self.path("copied")
            status, _, errors = self.run_gmblock(
                "copy", "--connections", "4", self.x509(mode.replace(" ", "-")), copied)
            self.assertEqual(status, 0, errors)
            with open(copied, "rb") as file:
                self.assertEqual(file.read(), self.content)
            os.unlink(copied)
            self.wait_for(lambda proxy=proxy: len(proxy.heard) >= 3)
            self.check_nothing_in_clear(proxy)

    def test_reconnecting(self):
        """What waits fails when the time is up; it is not sent to somebody else."""
        self.nbdkit_x509()
        for mode in ("unsup", "unencrypted data followed", "no newstyle"):
            name = mode.replace(" ", "-")
            proxy = Proxy(self.path(name), self.path("s"), passed=1, mode=mode)
            self.addCleanup(proxy.close)
            driver = Driver()
            self.addCleanup(driver.kill)
            self.assertIn("opened", driver.open(self.x509(name), "connections=1",
                                                "reconnect_timeout_ms=300"))
            driver.say("read a 0 4096 0")
            driver.say("wait")
            self.assertIn(" read 0 ", driver.until("done"))
            driver.until("waited")
            proxy.cut_all()
            driver.say("write a 4096 4096 0")
            driver.say("wait")
            self.assertIn(" write -107 ", driver.until("done"))
            driver.close()
            self.wait_for(lambda proxy=proxy: len(proxy.heard) > 0)
            self.check_nothing_in_clear(proxy)
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(), self.content)


class Renewing(TlsCase):
    def open(self, uri, **options):
        driver = Driver()
        self.addCleanup(driver.kill)
        self.assertIn("opened", driver.open(uri, *(f"{k}={v}" for k, v in options.items())))
        return driver

    def read(self, driver, offset=0, length=100000):
        driver.say(f"read a {offset} {length} 0")
        driver.say("wait")
        done = driver.until("done").split(" ")
        driver.until("waited")
        self.assertEqual(done[4], "0", done)
        self.assertEqual(int(done[5]), zlib.crc32(self.content[offset:offset + length]), done)

    def replace(self, folder, other):
        """As a deployment does: each file at once, one after the other."""
        for name in os.listdir(folder):
            shutil.copy(os.path.join(self.creds(other), name), folder + ".new")
            os.rename(folder + ".new", os.path.join(folder, name))

    def restart(self, server, folder):
        server.send_signal(signal.SIGKILL)
        server.wait()
        os.unlink(self.path("s"))
        os.unlink(self.path("s.pid"))
        return self.nbdkit_x509(folder, "--tls-verify-peer")


class Renewal(Renewing):
    def test_a_killed_server(self):
        server = self.nbdkit_x509()
        driver = self.open(self.x509())
        for _ in range(3):
            self.read(driver, 12345)
            for i in range(20):
                driver.say(f"read a {i * 100000} 100000 0")
            server.send_signal(signal.SIGKILL)
            server.wait()
            os.unlink(self.path("s"))
            os.unlink(self.path("s.pid"))
            server = self.nbdkit_x509()
            driver.say("wait")
            for _ in range(20):
                done = driver.until("done").split(" ")
                at = int(driver_offset(done))
                self.assertEqual(done[4], "0", done)
                self.assertEqual(int(done[5]),
                                 zlib.crc32(self.content[at:at + 100000]), done)
            driver.until("waited")
        self.assertTrue(any("reconnected" in event for event in driver.events), driver.events)

    def test_credentials_are_read_again(self):
        folder = self.path("pki")
        shutil.copytree(self.creds("good"), folder)
        server = self.nbdkit_x509("good", "--tls-verify-peer")
        driver = self.open(self.uri(certificates=folder, hostname="localhost"))
        self.read(driver)
        # Half written: what was read before stays in use.
        with open(os.path.join(folder, "client-cert.pem"), "wb") as file:
            file.write(b"-----BEGIN CERT")
        server = self.restart(server, "good")
        self.read(driver)
        # Another authority on both sides.
        self.replace(folder, "other-ca")
        self.restart(server, "other-ca")
        self.read(driver)

    def test_a_relative_path_is_of_the_folder_where_it_began(self):
        self.nbdkit_x509()
        uri = self.uri(certificates="good", hostname="localhost")
        status, _, errors = self.run_gmblock("info", uri, cwd=self.pki)
        self.assertEqual(status, 0, errors)
        self.check_refused(["info", uri], 1, "good")


class Ours(Renewing):
    """gmblock serve, whose clients take over from their lost connections."""

    def serve(self, *options):
        if os.path.exists(self.path("s")):
            os.unlink(self.path("s"))
        return self.start("--listen", "nbd+unix:///?socket=" + self.path("s"), *options,
                          "--export", "secret-disk=" + self.image)

    def serve_x509(self):
        return self.serve("--tls=require", "--tls-certificates", self.creds("good"),
                          "--tls-psk", self.creds("keys.psk"), "--tls-verify-peer")

    def test_certificates_and_keys(self):
        self.serve_x509()
        self.check_works(self.x509())
        self.check_works(self.psk())
        self.check_refused(["info", self.psk(keys="other.psk")], 1, "pre-shared key")
        self.check_refused(["info", self.x509(folder="stranger")], 1, "rejected us")
        self.check_refused(["info", self.x509(folder="no-client")], 1, "the peer requires a certificate", "client-cert.pem")

    def test_every_connection_of_several(self):
        self.serve_x509()
        proxy = self.proxy(passed=99)
        copied = self.path("copied")
        for arguments in ((self.x509("p"), copied), (copied, self.x509("p"))):
            status, _, errors = self.run_gmblock("copy", "--connections", "4", *arguments)
            self.assertEqual(status, 0, errors)
        with open(copied, "rb") as file:
            self.assertEqual(file.read(), self.content)
        proxy.cut_all()
        self.wait_for(lambda: len(proxy.begun) == len(proxy.links))
        self.assertGreaterEqual(len(proxy.begun), 8)
        self.check_nothing_in_clear(proxy)

    def test_killed_while_it_writes(self):
        server = self.serve_x509()
        driver = self.open(self.x509(), connections=4)
        for _ in range(3):
            for i in range(32):
                driver.say(f"write a {i * 100000} 100000 0")
            driver.say("turn 1")
            server.kill()
            server = self.serve_x509()
            driver.say("wait")
            for _ in range(32):
                self.assertEqual(driver.until("done").split(" ")[4], "0")
            driver.until("waited")
        driver.close()
        self.assertTrue(any("reconnected" in event for event in driver.events), driver.events)
        with open(self.image, "rb") as file:
            for i in range(32):
                self.assertEqual(file.read(100000), bytes(
                    (i * 100000 + k) % 251 for k in range(100000)))

    def test_a_server_that_comes_back_without_tls(self):
        server = self.serve_x509()
        driver = self.open(self.x509(), reconnect_timeout_ms=500)
        self.read(driver)
        server.kill()
        self.serve()
        driver.say("write a 0 4096 0")
        driver.say("wait")
        self.assertIn(" write -107 ", driver.until("done"))
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(), self.content)


@unittest.skipIf(attach_tool.missing(), attach_tool.missing())
class Attached(Renewing):
    """An export as a file, whose daemon reads the credentials again."""

    def test_a_file_outlives_its_server_and_its_credentials(self):
        environment = {**os.environ, "GMBLOCK_ATTACH_DIR": self.path("state")}
        folder = self.path("pki")
        shutil.copytree(self.creds("good"), folder)
        server = self.nbdkit_x509("good", "--tls-verify-peer")
        disk = self.path("disk")
        # Relative, as from a shell.
        uri = self.uri(certificates="pki", hostname="localhost")
        status, output, errors = self.run_gmblock("attach", "--fuse", disk, uri, env=environment,
                                                  cwd=self.folder)
        self.assertEqual((status, output), (0, disk + "\n"), errors)
        self.addCleanup(self.run_gmblock, "detach", "--force", disk, env=environment)
        fd = os.open(disk, os.O_RDWR | os.O_DIRECT)
        self.addCleanup(os.close, fd)
        memory = mmap.mmap(-1, 1 << 20)
        self.assertEqual(os.preadv(fd, [memory], 0), 1 << 20)
        self.assertEqual(memory[:], self.content[:1 << 20])
        self.replace(folder, "other-ca")
        self.restart(server, "other-ca")
        self.assertEqual(os.preadv(fd, [memory], 1 << 20), 1 << 20)
        self.assertEqual(memory[:], self.content[1 << 20:2 << 20])
        memory[:] = self.content[2 << 20:3 << 20]
        self.assertEqual(os.pwritev(fd, [memory], 0), 1 << 20)
        os.fsync(fd)
        with open(self.image, "rb") as file:
            self.assertEqual(file.read(1 << 20), memory[:])


def driver_offset(done):
    """Reads are numbered; each round has one in front of its twenty."""
    return (int(done[2]) % 21 - 1) * 100000


if __name__ == "__main__":
    DRIVER = os.path.realpath(sys.argv.pop(2))
    support.main()
