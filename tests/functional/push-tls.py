#!/usr/bin/python3
"""gmblock push over TLS: the source's server connects with the credentials of its --push-to nbds:PLACE.

    push-tls.py GMBLOCK
"""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import tempfile

import push_tool
import relay
import support
import tls_tool
from push_tool import MIB, digest

LINE = b"a line of the disk that nobody but both servers reads, 64 bytes\n"
EXPORT = "secret-disk"


class Recorder(relay.Relay):
    """Keeps what both sides say."""

    def __init__(self, port):
        self.heard = bytearray()
        super().__init__(port)

    def seen(self, link, direction, data):
        self.heard += data
        return data

    def ended(self, link, direction):
        with contextlib.suppress(OSError):  # it has ended
            link.ends[direction].shutdown(socket.SHUT_WR)


class PushTls(push_tool.Case):
    @classmethod
    def setUpClass(cls):
        cls.pki = tempfile.mkdtemp(prefix="gmblock-pki-")
        cls.addClassCleanup(shutil.rmtree, cls.pki)
        tls_tool.make(cls.pki)

    def creds(self, name):
        return os.path.join(self.pki, name)

    def x509(self, place, folder="good", hostname="localhost"):
        """The rule of a place; folder: of the credentials, or a path."""
        return f"nbds:{place},tls-certificates={self.creds(folder)}" + (f",tls-hostname={hostname}" if hostname else "")

    def psk(self, place, user="alice", keys="keys.psk"):
        return f"nbds:{place},tls-psk-file={self.creds(keys)},tls-username={user}"

    def source(self, *rules, size=2 * MIB):
        """A server of a disk; push("disk") is its URI."""
        path = self.image(f"source{self.count}", size, (0, size))
        server = self.serve(f"disk={path}", arguments=[word for rule in rules for word in ("--push-to", rule)])
        server.image = path
        return server

    def destination(self, target, *arguments, tls="--tls=require"):
        """A server of ours on TCP, with its port; its URI has the host localhost."""
        server = self.start("--listen", "nbd://127.0.0.1:0", "--export", f"{EXPORT}={target}", tls, *arguments)
        server.port = int(re.search(":([0-9]+)/", server.uri).group(1))
        server.at = f"{'nbd' if tls == '--tls=off' else 'nbds'}://localhost:{server.port}/{EXPORT}"
        return server

    def check_push(self, first, uri, target, *options):
        job = self.push(first.push("disk"), uri, *options)
        self.assertEqual(digest(first.image), digest(target))
        return job

    def check_peer(self, uri, target, rule):
        """A server at a Unix socket that is neither ours nor wants anything else than TLS."""
        first = self.source(rule)
        self.check_push(first, uri, target, "--verify=read")
        with open(target, "r+b") as file:
            file.write(bytes(MIB))
        self.assertGreater(self.check_push(first, uri, target, "--resume")["bytes_skipped"], 0)
        self.assertEqual(first.stop(), (0, ""))

    # --- servers ------------------------------------------------------------------------------

    def test_gmblock(self):
        """Both sides show certificates, or have a key; the source's server is confined."""
        target = self.image("target", 2 * MIB)
        good = f"--tls-certificates={self.creds('good')}"
        for rule, arguments in ((self.x509, (good, "--tls-verify-peer")),
                                (self.psk, (f"--tls-psk={self.creds('keys.psk')}",))):
            far = self.destination(target, *arguments)
            first = self.source(rule(f"127.0.0.1,port={far.port}"))
            self.check_push(first, far.at, target, "--verify=read", "--connections", "4")
            with open(f"/proc/{first.process.pid}/status") as file:
                self.assertIn("Seccomp:\t2", file.read())
            self.assertEqual((first.stop(), far.stop()[0]), ((0, ""), 0))

    def test_nbdkit(self):
        target, path = self.image("target", 2 * MIB), self.path("k")
        uri = f"nbds+unix:///{EXPORT}?socket={path}"
        for rule, *arguments in (
                (self.x509(path), f"--tls-certificates={self.creds('good')}", "--tls-verify-peer"),
                (self.psk(path), f"--tls-psk={self.creds('keys.psk')}")):
            nbdkit = self.background(path + ".pid", "nbdkit", "-f", "-U", path, "-P", path + ".pid", "-e", EXPORT,
                                     "--tls=require", *arguments, "file", target)
            self.check_peer(uri, target, rule)
            nbdkit.kill()
            nbdkit.wait()
            for left in (path, path + ".pid"):
                os.unlink(left)

    def test_qemu_nbd(self):
        target = self.image("target", 2 * MIB)
        os.mkdir(self.path("psk"))
        shutil.copy(self.creds("keys.psk"), self.path("psk/keys.psk"))
        for kind, folder, rule in (("x509", self.creds("good"), self.x509), ("psk", self.path("psk"), self.psk)):
            path = self.path(kind + "-socket")
            self.background(path + ".pid", "qemu-nbd", "-t", "-x", EXPORT, "-f", "raw", "-k", path,
                            "--pid-file", path + ".pid", "--tls-creds", "t", "--object",
                            f"tls-creds-{kind},id=t,endpoint=server,dir={folder}", target)
            self.check_peer(f"nbds+unix:///{EXPORT}?socket={path}", target, rule(os.path.dirname(path) + "/"))

    # --- what others see ------------------------------------------------------------------------

    def test_wire(self):
        """Nothing of the disk, nor its name, is in what passes; without TLS both are."""
        target = self.image("target", 2 * MIB)
        for tls in ("--tls=require", "--tls=off"):
            good = [] if tls == "--tls=off" else [f"--tls-certificates={self.creds('good')}"]
            far = self.destination(target, *good, tls=tls)
            recorder = Recorder(far.port)
            self.addCleanup(recorder.close)
            port = recorder.place
            first = self.source(self.x509(f"127.0.0.1,port={port}"), f"nbd:127.0.0.1,port={port}")
            with open(first.image, "wb") as file:
                file.write(LINE * (2 * MIB // len(LINE)))
            uri = far.at.replace(f":{far.port}/", f":{port}/")
            self.check_push(first, uri, target)
            self.assertGreater(len(recorder.heard), 2 * MIB)
            in_clear = tls == "--tls=off"
            self.assertEqual((LINE in recorder.heard, EXPORT.encode() in recorder.heard), (in_clear, in_clear))
            far.stop()

    def test_no_credentials_are_shown(self):
        target = self.image("target", 2 * MIB)
        far = self.destination(target, f"--tls-psk={self.creds('keys.psk')}")
        first = self.source(self.psk(f"127.0.0.1,port={far.port}"))
        code, output, errors = self.run_gmblock("push", first.push("disk"), far.at)
        self.assertEqual((code, errors), (0, ""))
        for arguments in (("push", "--list", first.push("disk")), ("stats", "--json", first.control)):
            output += self.run_gmblock(*arguments)[1]
        with open(f"/proc/{first.process.pid}/cmdline") as file:
            output += file.read()
        output += first.stop()[1]
        self.assertNotIn(tls_tool.PSK["alice"], output)
        self.assertIn(f"127.0.0.1:{far.port}", output)

    # --- what is refused ------------------------------------------------------------------------

    def test_destinations(self):
        """One that is not what the rule says, or does not take us for a client."""
        target = self.image("target", 2 * MIB)
        good = f"--tls-certificates={self.creds('good')}"
        keys = f"--tls-psk={self.creds('keys.psk')}"
        for rule, arguments, *fragments in (
                (self.x509, ("--tls=off",), "does not offer TLS, which the URI requires"),
                (lambda place: self.x509(place, hostname="other.example"), (good,), "other.example", "tls-hostname"),
                (self.x509, (f"--tls-certificates={self.creds('other-ca')}",), "not signed by a trusted authority", "in --push-to nbds:PLACE"),
                (lambda place: self.x509(place, "no-client"), (good, "--tls-verify-peer"), "requires a certificate", "in --push-to nbds:PLACE"),
                (lambda place: self.x509(place, "stranger"), (good, "--tls-verify-peer"), "the authority of our", "in --push-to nbds:PLACE"),
                (lambda place: self.psk(place, keys="other.psk"), (keys,), "pre-shared key", "in --push-to nbds:PLACE"),
                (lambda place: self.psk(place, "mallory", "other.psk"), (keys,), "pre-shared key", "in --push-to nbds:PLACE")):
            tls = arguments[0] if arguments[0] == "--tls=off" else "--tls=require"
            far = self.destination(target, *[word for word in arguments if word != tls], tls=tls)
            first = self.source(rule(f"127.0.0.1,port={far.port}"))
            with self.subTest(fragments):
                said = self.check_refused(["push", first.push("disk"), far.at.replace("nbd:", "nbds:")], 1,
                                          "the destination: ", f"127.0.0.1:{far.port}", *fragments)
                self.assertEqual(said.count("\n"), 1)
            self.assertEqual((first.stop()[0], far.stop()[0]), (0, 0))
        self.assertEqual(digest(target), digest(self.image("zeroes", 2 * MIB)))

    def test_expired(self):
        path = self.path("k")
        self.background(path + ".pid", "nbdkit", "-f", "-U", path, "-P", path + ".pid", "--tls=require",
                        f"--tls-certificates={self.creds('expired')}", "memory", "2M")
        first = self.source(self.x509(path))
        self.check_refused(["push", first.push("disk"), f"nbds+unix:///?socket={path}"], 1,
                           f"the destination: {path}: ", "has expired", "in --push-to nbds:PLACE")

    def test_rules(self):
        """Where no rule says so there is no TLS, and none without it where one does; the URI chooses neither files nor
        keys."""
        target = self.image("target", 2 * MIB)
        far = self.destination(target, f"--tls-certificates={self.creds('good')}")
        path = self.path("s0")
        for rules, uri, text in (
                ((), far.at, "with --push-to nbds:PLACE"),
                (("nbd:127.0.0.1,port=any",), far.at, "with --push-to nbds:PLACE"),
                ((self.x509("127.0.0.1"),), far.at, "with --push-to nbds:PLACE"),
                ((self.x509("127.0.0.1,port=any"),), far.at.replace("nbds:", "nbd:"), "with --push-to nbd:PLACE"),
                (("nbd:/",), f"nbds+unix:///x?socket={path}", "with --push-to nbds:PLACE")):
            first = self.source(*rules)
            self.check_refused(["push", first.push("disk"), uri], 1, text)
            first.stop()
        first = self.source(self.x509("127.0.0.1,port=any", hostname=None))
        for parameter in ("tls-certificates=/etc", "tls-psk-file=/etc/passwd", "tls-verify-peer=0", "tls-type=psk"):
            self.check_refused(["push", first.push("disk"), f"{far.at}?{parameter}"], 1, "with its own credentials")
        self.check_refused(["push", first.push("disk"), far.at.replace("//", "//alice@")], 1, "with its own credentials")
        # Without a name in the rule, it is the URI's.
        self.check_refused(["push", first.push("disk"), far.at + "?tls-hostname=other.example"], 1, "'other.example'")
        for uri in (far.at, far.at.replace("localhost", "127.0.0.1"), far.at + "?tls-hostname=server.example"):
            self.check_push(first, uri, target)

    def test_two_rules(self):
        """The first one that contains the destination has its credentials, and no other is tried."""
        target = self.image("target", 2 * MIB)
        far = self.destination(target, f"--tls-certificates={self.creds('good')}")
        rules = self.x509("127.0.0.1,port=any"), self.x509("127.0.0.0/8,port=any", hostname="other.example")
        self.check_push(self.source(*rules), far.at, target)
        first = self.source(*rules[::-1])
        self.check_refused(["push", first.push("disk"), far.at], 1, "'other.example'")

    def test_start(self):
        """A rule that cannot work is refused before anything is served."""
        pki = shutil.copytree(self.creds("good"), self.path("pki"))
        os.chmod(os.path.join(pki, "client-key.pem"), 0o644)
        for rule, status, *fragments in (
                ("nbds:10.0.0.1", 2, "either tls-certificates=FOLDER or tls-psk-file=FILE"),
                ("nbd:10.0.0.1,tls-certificates=/x", 2, "only nbds:PLACE can have TLS credentials"),
                ("nbds:/run/s,tls-certificates=/x", 2, "add tls-hostname=NAME"),
                ("nbds:10.0.0.1,tls-psk-file=/x", 2, "tls-username"),
                ("nbds:10.0.0.1,tls-certificates=/x,port=5", 2, "'port=5' is not valid after a destination"),
                ("nbds:10.0.0.1,tls-certificates=/none", 1, "--push-to nbds:10.0.0.1", "/none: No such file"),
                ("nbds:10.0.0.1,tls-psk-file=/none,tls-username=a", 1, "/none: No such file"),
                (self.psk("10.0.0.1", user="carol"), 1, "carol"),
                (f"nbds:10.0.0.1,tls-certificates={pki}", 1, "client-key.pem", "chmod 600")):
            self.check_refused(["serve", "null:1M", "--listen", self.socket_uri(), "--push-to", rule], status, *fragments)
        for rule in (self.x509("10.0.0.1", "mismatch"), self.x509("10.0.0.1", "expired")):
            self.check_refused(["serve", "null:1M", "--listen", self.socket_uri(), "--push-to", rule], 1, "client-")

    # --- changes --------------------------------------------------------------------------------

    def test_renewed(self):
        """New files are used by the next push, without a word; a half-written one is not."""
        target = self.image("target", 2 * MIB)
        far = self.destination(target, f"--tls-certificates={self.creds('good')}", "--tls-verify-peer")
        # Apart from the disk, whose folder the sandbox leaves open in any case.
        pki = shutil.copytree(self.creds("stranger"), self.creds("renewed"))
        first = self.source(self.x509(f"127.0.0.1,port={far.port}", pki))
        self.check_refused(["push", first.push("disk"), far.at], 1, "the authority of our certificate")
        for name in ("client-key.pem", "client-cert.pem"):
            shutil.copy(os.path.join(self.creds("good"), name), pki + "/new")
            os.rename(pki + "/new", os.path.join(pki, name))
        self.check_push(first, far.at, target)
        with open(os.path.join(pki, "client-cert.pem"), "w") as file:
            file.write("-----BEGIN")
        self.check_push(first, far.at, target)
        code, errors = first.stop()
        self.assertEqual((code, errors.count("the credentials read earlier stay in use")), (0, 1), errors)
        self.assertIn("client-cert.pem", errors)

    def test_renewed_outside_of_the_sandbox(self):
        """Renewed files that the server cannot open are named, with what helps, where the old ones are refused."""
        features = json.loads(self.run_gmblock("info", "--local", "--json")[1])["features"]
        if not features["landlock"]["available"]:
            self.skipTest("no Landlock")
        target = self.image("target", 2 * MIB)
        far = self.destination(target, f"--tls-certificates={self.creds('good')}", "--tls-verify-peer")
        link = self.creds("current")
        os.symlink(shutil.copytree(self.creds("stranger"), self.creds("v1/pki")), link)
        first = self.source(self.x509(f"127.0.0.1,port={far.port}", link))
        os.symlink(shutil.copytree(self.creds("good"), self.creds("v2/pki")), link + ".new")
        os.rename(link + ".new", link)
        words = (link, "the sandbox allows only files in use when the server started: restart the server")
        self.check_refused(["push", first.push("disk"), far.at], 1, "the authority of our certificate",
                           "credentials that it had read earlier", *words)
        code, errors = first.stop()
        self.assertEqual((code, [word for word in words if word not in errors]), (0, []), errors)

    def test_reload(self):
        """Another rule takes a restart, which reload says; the same one in other words does not."""
        path = self.path("conf")

        def write(*rules):
            with open(path, "w") as file:
                file.write("exports:\n  - name: disk\n    path: memory:1M\npush-to:\n" +
                           "".join(f"  - '{rule}'\n" for rule in rules))
        rules = self.x509("10.0.0.0/8"), self.psk("192.0.2.7")
        write(*rules)
        server = self.start_unix("--config", path, "--control", self.path("c"))
        for again in (rules, (rules[0].replace("/8,", "/8,port=10809,"), rules[1])):
            write(*again)
            code, _, errors = self.run_gmblock("reload", self.path("c"))
            self.assertEqual(code, 0, errors)
        for again in ((rules[0], self.psk("192.0.2.7", user="bob")), rules[::-1], rules[:1],
                      (rules[0].replace("localhost", "server.example"), rules[1]),
                      (rules[0].replace("/good", "/host-b"), rules[1])):
            write(*again)
            code, output, errors = self.run_gmblock("reload", self.path("c"))
            self.assertIn("push-to", output + errors, again)
        self.assertEqual(server.stop()[0], 0)

    # --- jobs -----------------------------------------------------------------------------------

    def test_jobs(self):
        """Rate, cancellation and the end of the destination in the middle, as without TLS."""
        size = 8 * MIB
        target = self.image("target", size)
        good = f"--tls-certificates={self.creds('good')}"
        far = self.destination(target, good)
        first = self.source(self.x509("127.0.0.1,port=any"), size=size)
        uris = first.push("disk"), far.at
        number = self.run_gmblock("push", "--detach", "--rate", "1", *uris)[1].strip()
        self.wait_for(lambda: self.jobs(uris[0], "--status", number)[0]["state"] == "moves")
        self.assertEqual(self.run_gmblock("push", "--cancel", number, uris[0]), (0, "", ""))
        self.wait_for(lambda: self.jobs(uris[0], "--status", number)[0]["state"] == "failed")
        self.assertGreaterEqual(self.check_push(first, far.at, target, "--rate", str(16 * MIB))["seconds"], 0.499)
        with open(target, "r+b") as file:
            file.write(bytes(size))
        push = self.start_push("--rate", "1M", *uris)
        self.wait_for_bytes(uris[0], 2 * MIB)
        far.kill()
        _, errors = push.communicate()
        self.assertEqual(push.returncode, 1)
        self.assertIn("the connection to the destination was lost", errors)
        self.assertIn("with --resume", errors)
        far = self.destination(target, good)
        job = self.check_push(first, far.at, target, "--resume")
        self.assertGreaterEqual(job["bytes_skipped"], 2 * MIB)
        self.assertLess(job["bytes_skipped"], size)
        self.assertEqual(first.stop()[0], 0)

    def test_stopped(self):
        """A source that is stopped in the middle of a handshake, or of a job, ends."""
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        far = self.destination("memory:8M", f"--tls-certificates={self.creds('good')}")
        for port, begun in ((far.port, True), (silent.getsockname()[1], False)):
            first = self.source(self.x509("127.0.0.1,port=any"), size=8 * MIB)
            push = self.start_push("--rate", "1M", first.push("disk"), f"nbds://127.0.0.1:{port}/{EXPORT}")
            if begun:
                self.wait_for_bytes(first.push("disk"), MIB)
            else:
                with silent.accept()[0] as peer:
                    peer.sendall(b"NBDMAGICIHAVEOPT\0\3")
                    heard = b""
                    while len(heard) < 20:
                        heard += peer.recv(64)
                    peer.sendall(bytes.fromhex("0003e889045565a9 00000005 00000001 00000000"))
                    self.assertEqual(peer.recv(1), b"\x16")  # its hello
                    self.assertEqual(first.stop()[0], 0)
            self.assertEqual(first.stop()[0] if begun else 0, 0)
            push.communicate()
            self.assertEqual(push.returncode, 1)

    def test_a_flash_store(self):
        """Its snapshot is pushed, or with --live what clients write."""
        store = self.path("store")
        self.assertEqual(self.run_gmblock("create", "--size=64M", "--segment=256K", "flash:" + store)[0], 0)
        far = self.destination("memory:64M", f"--tls-certificates={self.creds('good')}")
        first = self.serve("disk=flash:" + store, arguments=("--push-to", self.x509("127.0.0.1,port=any")))
        for options in ((), ("--live",)):
            job = self.push(first.push("disk"), far.at, "--verify=read", *options)
            self.assertEqual(job["state"], "done")
        self.assertNotIn("push-", self.run_gmblock("snapshot", "list", "disk", "--server", first.control)[1])
        self.assertEqual(first.stop()[0], 0)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    support.main()


if __name__ == "__main__":
    main()
