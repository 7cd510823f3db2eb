#!/usr/bin/python3
"""TLS of a server: options, addresses with keys of their own, messages, statistics, and files that
are read again while it serves. What is said on the wire is the conformance suite's (test_tls.py)."""
import contextlib
import json
import os
import queue
import re
import select
import shutil
import signal
import socket
import ssl
import tempfile
import threading

import nbdmini
import support
import tls_tool

OPT_STARTTLS = 5
CREDENTIALS = ""


def folder_of(name):
    return os.path.join(CREDENTIALS, name)


class HandshakeIsOver(Exception):
    pass


class Client(nbdmini.Client):
    """One that asks for TLS. name: of its folder of certificates, or None. in_handshake: called when
    the server's part of the handshake is there, and the client's last one is not sent."""

    def __init__(self, uri, name=None, hostname="localhost", in_handshake=None):
        while True:
            try:
                self.begin(uri, name, hostname, in_handshake)
                break
            except HandshakeIsOver:
                pass

    def begin(self, uri, name, hostname, in_handshake):
        super().__init__(uri.replace("nbds", "nbd", 1))
        try:
            self.hello()
            self.send_option(OPT_STARTTLS)
            self.option_replies(OPT_STARTTLS)
            context = ssl.create_default_context(cafile=folder_of("good/ca-cert.pem"))
            if name is not None:
                context.load_cert_chain(folder_of(f"{name}/client-cert.pem"),
                                        folder_of(f"{name}/client-key.pem"))
            self.sock = context.wrap_socket(self.sock, server_hostname=hostname,
                                            do_handshake_on_connect=in_handshake is None)
            if in_handshake is not None:
                self.handshake_with_pause(in_handshake)
        except BaseException:
            self.close()
            raise

    def handshake_with_pause(self, pause):
        timeout = self.sock.gettimeout()
        self.sock.setblocking(False)
        try:
            self.sock.do_handshake()  # no more than its hello
        except ssl.SSLWantReadError:
            pass
        else:
            raise HandshakeIsOver  # a fast server's answer was there already
        if select.select([self.sock], [], [], timeout)[0] == []:
            raise TimeoutError("the server does not answer the hello")
        pause()
        self.sock.settimeout(timeout)
        self.sock.do_handshake()

    def certificate(self):
        return self.sock.getpeercert(binary_form=True)


def read_file(*parts):
    with open(os.path.join(*parts), "rb") as file:
        return file.read()


def certificate_in(folder):
    return ssl.PEM_cert_to_DER_cert(read_file(folder, "server-cert.pem").decode())


class Tls(support.Case):
    @classmethod
    def setUpClass(cls):
        global CREDENTIALS
        CREDENTIALS = tempfile.mkdtemp(prefix="gmblock-functional-")
        cls.addClassCleanup(shutil.rmtree, CREDENTIALS, ignore_errors=True)
        tls_tool.make(CREDENTIALS)

    def start_with(self, pki, *arguments, **options):
        return self.start_unix("memory:1M", f"--tls-certificates={pki}", *arguments, **options)

    def make_pki(self, name="good"):
        return shutil.copytree(folder_of(name), self.path("pki"))

    def reload(self, *options):
        return self.run_gmblock("reload", *options, self.control_path())

    def control_path(self):
        return self.path("control")

    def start_reloadable(self, pki, *arguments, **options):
        return self.start_with(pki, "--tls=require", "--control", self.control_path(), *arguments,
                               **options)

    def check_demands_tls(self, uri):
        with nbdmini.Client(uri.replace("nbds", "nbd", 1)) as clear:
            clear.hello()
            with self.assertRaisesRegex(nbdmini.OptionRefused, "demands TLS.*nbds"):
                clear.go()

    # --- options and addresses ----------------------------------------------------------------

    def test_uris(self):
        good = folder_of("good")
        for mode, scheme in (("off", "nbd"), ("on", "nbd"), ("require", "nbds")):
            arguments = [] if mode == "off" else ["--tls-certificates", good]
            server = self.start("null:1M", "--tls", mode, *arguments, "--listen",
                                "nbd://127.0.0.1:0", "--listen", self.socket_uri(), uri_count=2)
            self.assertTrue(server.uris[0].startswith(f"{scheme}://127.0.0.1:"), server.uris)
            self.assertTrue(server.uris[1].startswith(f"{scheme}+unix:///?socket="), server.uris)
            self.assertEqual(server.stop()[0], 0)
        status, output, errors = self.run_gmblock(
            "serve", "null:1M", "--tls-certificates", good, "--listen",
            self.socket_uri().replace("nbd", "nbds", 1), "--run", "echo $uri")
        self.assertEqual((status, output), (0, self.socket_uri().replace("nbd", "nbds", 1) + "\n"),
                         errors)

    def test_what_clients_get(self):
        good = folder_of("good")
        server = self.start_with(good, "--tls=on")
        with Client(server.uri) as tls, nbdmini.open_export(server.uri) as clear:
            tls.go().write(0, b"one" * 100)
            self.assertEqual(clear.read(0, 300), b"one" * 100)
        server.stop()
        server = self.start_with(good, "--tls=require")
        self.check_demands_tls(server.uri)
        with Client(server.uri) as tls:
            tls.go().write(0, b"two" * 100)
            self.assertEqual(tls.read(0, 300), b"two" * 100)
        server.stop()
        server = self.start_unix("memory:1M")
        with self.assertRaisesRegex(nbdmini.OptionRefused, "does not offer TLS"):
            Client(server.uri)

    def test_addresses_with_keys_of_their_own(self):
        config = self.make_file("conf", f"""
listen:
  - {self.socket_uri("clear")}
  - {{uri: "{self.socket_uri("tls")}", tls: require, tls-certificates: {folder_of("good")}}}
  - uri: "{self.socket_uri("both").replace("nbd", "nbds", 1)}"
    tls-certificates: {folder_of("ip-only")}
    tls-verify-peer: true
exports:
  - {{name: "", path: "null:1M"}}
""")
        server = self.start("--config", config, uri_count=3)
        self.assertEqual([uri.split("+")[0] for uri in server.uris], ["nbd", "nbds", "nbds"])
        with nbdmini.open_export(server.uris[0]):
            pass
        with Client(server.uris[1]) as client:
            self.assertEqual(client.certificate(), certificate_in(folder_of("good")))
            client.go()
        with Client(server.uris[2], "good", "127.0.0.1") as client:
            self.assertEqual(client.certificate(), certificate_in(folder_of("ip-only")))
            client.go()
        with self.assertRaises((ssl.SSLError, OSError)):
            with Client(server.uris[2], None, "127.0.0.1") as client:
                client.go()

    def test_common_options_fill_what_an_address_leaves_open(self):
        config = self.make_file("conf", f"""
listen:
  - {{uri: "{self.socket_uri("clear")}", tls: off}}
  - {self.socket_uri("tls")}
exports:
  - {{name: "", path: "null:1M"}}
""")
        server = self.start("--config", config, "--tls=require", "--tls-certificates",
                            folder_of("good"), uri_count=2)
        self.assertEqual([uri.split("+")[0] for uri in server.uris], ["nbd", "nbds"])

    def test_contradictions(self):
        good = folder_of("good")

        def refused(arguments, *fragments):
            self.check_refused(["serve", "null:1M", *arguments], 2, *fragments)

        refused(["--tls=yes"], "--tls: 'yes' is not one of off, on, require")
        refused(["--tls-records=both"], "--tls-records: 'both' is not one of auto, kernel, user")
        refused(["--tls-certificates="], "--tls-certificates: the path is empty")
        for option in (f"--tls-certificates={good}", "--tls-psk=x", "--tls-verify-peer",
                       "--tls-priority=NORMAL", "--tls-records=user"):
            refused([option], "no address uses TLS", "--tls=require")

        def address(keys, *fragments):
            path = self.make_file("conf", "exports: [{name: a, path: 'null:1M'}]\n"
                                  f"listen: [{{{keys}}}]\n")
            self.check_refused(["serve", "--config", path], 2, f"{path}:2: ", *fragments)

        address("uri: nbds://localhost, tls: on", "requires TLS, but its key tls does not", "remove the key")
        address("uri: nbds://localhost, tls: off", "requires TLS, but its key tls does not", "remove the key")
        address("uri: nbd://localhost, tls-psk: x", "does not use TLS", "tls: require")
        address("uri: gmb://localhost, tls: require", "has no TLS")

    def test_credentials_that_cannot_be_used(self):
        for arguments in (["--tls=require", "--tls-certificates", self.path("none")],
                          ["--tls=on", "--tls-psk", self.path("none")]):
            errors = self.check_refused(["serve", "null:1M", *arguments, "--listen",
                                         self.socket_uri()], 1, "cannot set up TLS at ", self.path("none"))
            self.assertEqual(errors.count("\n"), 1)
            self.assertIn("No such file or directory", errors)
        with open(self.path("keys.psk"), "w", encoding="ascii") as file:
            file.write("alice:" + 64 * "1" + "\n")
        os.chmod(self.path("keys.psk"), 0o600)
        self.check_refused(["serve", "null:1M", "--tls=on", "--tls-psk", self.path("keys.psk"),
                            "--tls-verify-peer", "--listen", self.socket_uri()], 1,
                           "tls-verify-peer requests client certificates")
        self.assertEqual(os.listdir(self.folder), ["keys.psk"])

    def test_an_exposed_address_is_warned_of(self):
        good = folder_of("good")
        for mode, sentence in (("on", "does not require TLS"), ("require", None)):
            server = self.start("null:1M", "--tls", mode, "--tls-certificates", good, "--listen",
                                "nbd://0.0.0.0:0")
            errors = server.stop()[1]
            self.assertEqual("open to the whole network" in errors, sentence is not None, errors)
            self.assertIn(sentence or "", errors)

    # --- what is told -------------------------------------------------------------------------

    def test_statistics_and_log(self):
        os.environ["GMBLOCK_LOG"] = "info"
        self.addCleanup(os.environ.__setitem__, "GMBLOCK_LOG", "warning")
        server = self.start_reloadable(folder_of("good"), "--tls-verify-peer", "--threads=2")

        def counters(group=None):
            _, output, errors = self.run_gmblock("stats", "--json", self.control_path())
            self.assertEqual(errors, "")
            found = json.loads(output)["counters"]
            if group is not None:
                group = "tls_" + group
                return {name.removeprefix(group): value for name, value in found.items()
                        if name.startswith(group)}
            return {name: found["tls_" + name] for name in (
                "connections", "connections_1_2", "handshakes", "handshakes_failed",
                "handshakes_refused", "handshakes_waiting")}

        self.assertEqual(set(counters().values()), {0})
        with Client(server.uri, "good") as client, nbdmini.Client(
                server.uri.replace("nbds", "nbd", 1)) as silent:
            client.go()
            silent.hello()
            silent.send_option(OPT_STARTTLS)
            silent.option_replies(OPT_STARTTLS)
            self.wait_for(lambda: counters() == {
                "connections": 1, "connections_1_2": 0, "handshakes": 1, "handshakes_failed": 0,
                "handshakes_refused": 0, "handshakes_waiting": 1})
        with self.assertRaises((ssl.SSLError, OSError)):
            with Client(server.uri, "other-ca") as client:
                client.go()
        self.wait_for(lambda: counters() == {
            "connections": 0, "connections_1_2": 0, "handshakes": 1, "handshakes_failed": 2,
            "handshakes_refused": 0, "handshakes_waiting": 0})
        self.assertEqual(self.run_gmblock(
            "info", f"{server.uri}&tls-hostname=localhost"
            f"&tls-certificates={folder_of('other-ca')}")[0], 1)
        with nbdmini.Client(server.uri.replace("nbds", "nbd", 1)) as client:
            client.hello()
            client.send_option(OPT_STARTTLS)
            client.option_replies(OPT_STARTTLS)
            client.sock.sendall(b"this is no TLS")
            with contextlib.suppress(OSError):
                while client.sock.recv(4096):
                    pass
        reasons = {"client_refused": 1, "server_refused": 1, "protocol": 1, "connection": 1,
                   "other": 0}
        self.wait_for(lambda: counters("failures_") == reasons)
        self.assertEqual(counters()["handshakes_failed"], 4)
        shown = self.run_gmblock("stats", self.control_path())[1]
        self.assertIn("\n  TLS handshakes that succeeded: 1\n  TLS handshakes that failed: 4\n", shown)
        self.assertIn("\n  Failed TLS handshakes: the client did not accept the server's credentials: 1\n", shown)
        metrics = self.run_gmblock("stats", "--prometheus", self.control_path())[1]
        for reason, count in reasons.items():
            self.assertIn(f'\ngmblock_tls_failures_total{{reason="{reason}"}} {count}\n', metrics)
        errors = server.stop()[1]
        self.assertRegex(errors, r"client unix:pid \d+ uses TLS 1\.3 with cipher AES-\d+-GCM, TLS records: "
                         r"(user|kernel); identity: .*host-a")

    # --- reading again ------------------------------------------------------------------------

    def test_a_renewed_certificate(self):
        pki = self.make_pki()
        server = self.start_reloadable(pki)
        with Client(server.uri) as before:
            before.go()
            for name in ("server-cert.pem", "server-key.pem"):
                shutil.copy(folder_of(f"ip-only/{name}"), pki)
            told = (f"TLS at {self.path('s')}: {pki}/server-cert.pem, {pki}/server-key.pem changed; "
                    "no connection is closed\n")
            self.assertEqual(self.reload("--dry-run"), (0, told, ""))
            self.assertEqual(self.reload(), (0, told + "addresses with TLS: 1, connections ended: 0\n", ""))
            self.assertEqual(self.reload("--dry-run"), (0, "nothing would change\n", ""))
            with Client(server.uri, None, "127.0.0.1") as after:
                self.assertEqual(after.certificate(), certificate_in(folder_of("ip-only")))
                after.go().flush()
            before.flush()
        self.assertEqual(server.stop()[0], 0)

    def test_a_signal_reloads(self):
        os.environ["GMBLOCK_LOG"] = "info"
        self.addCleanup(os.environ.__setitem__, "GMBLOCK_LOG", "warning")
        pki = self.make_pki()
        server = self.start_reloadable(pki)
        for name in ("server-cert.pem", "server-key.pem"):
            shutil.copy(folder_of(f"ip-only/{name}"), pki)
        server.signal(signal.SIGHUP)
        for line in server.process.stderr:
            if "reloaded" in line:
                break
        with Client(server.uri, None, "127.0.0.1") as after:
            self.assertEqual(after.certificate(), certificate_in(folder_of("ip-only")))

    def test_a_broken_set_changes_nothing(self):
        pki = self.make_pki()
        server = self.start_reloadable(pki, "--tls-verify-peer")
        whole = {name: read_file(pki, name) for name in os.listdir(pki)}

        def put(name, content):
            with open(os.path.join(pki, name), "wb") as file:
                file.write(content)

        for name in ("ca-cert.pem", "server-cert.pem", "server-key.pem"):
            # As a copy under way leaves it, and as a wrong one.
            for part in (b"", whole[name][:30], whole[name][:len(whole[name]) // 2], b"\0" * 100):
                put(name, part)
                status, output, errors = self.reload()
                self.assertEqual((status, output), (1, ""), (name, part))
                self.assertRegex(errors, rf"nothing was changed: cannot set up TLS at .*{name}")
                with Client(server.uri, "good") as client:
                    client.go()
            put(name, whole[name])
        put("server-key.pem", read_file(folder_of("rsa"), "server-key.pem"))
        self.assertIn("nothing was changed", self.reload()[2])
        put("server-key.pem", whole["server-key.pem"])
        self.assertEqual(self.reload()[0], 0)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        self.assertNotIn("nothing was changed", errors)  # the commands have reported it

    def test_whose_certificate_is_revoked_is_disconnected(self):
        pki = self.make_pki()
        server = self.start_reloadable(pki, "--tls-verify-peer", "--threads=2")
        with Client(server.uri, "good") as good, Client(server.uri, "revoked") as revoked:
            good.go().flush()
            revoked.go().flush()
            shutil.copy(folder_of("crl/ca-crl.pem"), pki)
            told = f"TLS at {self.path('s')}: {pki}/ca-crl.pem changed; 1 connection ends\n"
            self.assertEqual(self.reload("--dry-run"), (0, told, ""))
            revoked.flush()
            self.assertEqual(self.reload(), (0, told + "addresses with TLS: 1, connections ended: 1\n", ""))
            self.assertTrue(revoked.at_end())
            good.flush()
        with self.assertRaises((ssl.SSLError, OSError)):
            with Client(server.uri, "revoked") as client:
                client.go()
        errors = server.stop()[1]
        self.assertRegex(errors, "client unix:pid .* disconnected: .*revoked")

    def put_server_certificate(self, name, pki):
        for part in ("cert", "key"):
            file = f"server-{part}.pem"
            shutil.copy(folder_of(f"{name}/{file}"), self.path("new"))
            os.rename(self.path("new"), os.path.join(pki, file))

    def test_reload_in_the_middle_of_a_handshake(self):
        pki = self.make_pki()
        server = self.start_reloadable(pki)

        def reload():
            self.put_server_certificate("ip-only", pki)
            self.assertEqual(self.reload()[0], 0)

        with Client(server.uri, in_handshake=reload) as client:
            self.assertEqual(client.certificate(), certificate_in(folder_of("good")))
            client.go().flush()
        with Client(server.uri, None, "127.0.0.1") as client:
            self.assertEqual(client.certificate(), certificate_in(folder_of("ip-only")))
        self.assertEqual(server.stop()[0], 0)

    def test_reloads_while_many_connect(self):
        names = ("good", "ip-only")
        known = [certificate_in(folder_of(name)) for name in names]
        pki = self.make_pki()
        server = self.start_reloadable(pki)
        seen = queue.SimpleQueue()
        enough = threading.Event()

        def connect():
            try:
                while not enough.is_set():
                    with Client(server.uri, None, "127.0.0.1") as client:
                        seen.put(known.index(client.certificate()))
                        client.go().flush()
            except Exception as error:  # told by the main thread
                seen.put(error)

        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(1, 11):
                self.put_server_certificate(names[turn % 2], pki)
                self.assertEqual(self.reload()[0], 0)
                self.await_seen(seen, turn % 2)
        finally:
            enough.set()
            for thread in threads:
                thread.join()
        while not seen.empty():
            self.assertIn(seen.get(), (0, 1))
        self.assertEqual(server.stop()[0], 0)

    def await_seen(self, seen, wanted):
        idx = None
        while idx != wanted:
            idx = seen.get(timeout=60)
            self.assertIn(idx, (0, 1))

    def test_nothing_to_reload(self):
        self.start_unix("null:1M", "--control", self.control_path())
        self.assertEqual(self.run_gmblock("reload", self.control_path()), (
            0, "the configuration has not changed\n", ""))
        self.check_refused(["reload", self.path("nobody")], 1, "gmblock reload: ")
        self.check_refused(["reload", "a", "b"], 2, "gmblock reload: ")

    # --- sockets of the service manager -------------------------------------------------------

    def start_activated(self, arguments):
        """On a listening socket of ours, whose port stands for PORT."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def pass_socket():
            if listener.fileno() != 3:
                os.dup2(listener.fileno(), 3)
            os.set_inheritable(3, True)
            os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))

        return self.start(*[text.replace("PORT", str(port)) for text in arguments],
                          preexec_fn=pass_socket, close_fds=False)

    def test_a_socket_that_was_passed_has_the_tls_of_its_address(self):
        pki = f"--tls-certificates={folder_of('good')}"
        for arguments in (["null:1M", "--tls=require", pki],
                          ["null:1M", pki, "--listen", "nbds://127.0.0.1:PORT"]):
            server = self.start_activated(arguments)
            self.assertEqual(re.sub(r"\d+$", "", server.uri), "nbds://127.0.0.1:")
            self.check_demands_tls(server.uri)
            with Client(server.uri) as client:
                client.go()
            server.stop()


if __name__ == "__main__":
    support.main()
