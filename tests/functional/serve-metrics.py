#!/usr/bin/python3
"""Metrics over HTTP: what they say, in both formats; who may ask; and what requests that are none,
slow readers and a flood of connections do to the server."""
import http.client
import os
import re
import shutil
import socket
import subprocess
import urllib.parse

import nbdmini
import support
import vhost_tool

try:
    from prometheus_client import parser as text_parser
    from prometheus_client.openmetrics import parser as openmetrics_parser
except ImportError:
    text_parser = openmetrics_parser = None

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
# As Prometheus 2.42 asks.
PROMETHEUS_ACCEPT = ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
                     "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
CLIENTS_MAX = 32  # connections that a server of metrics has at a time


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(support.WAIT_SECONDS)
        self.sock.connect(self.path)


class Metrics(support.Case):
    def serve(self, *arguments, **options):
        """A server with metrics on a Unix socket."""
        self.socket_path = self.path("metrics")
        self.control = self.path("control")
        return self.start_unix("--control", self.control, "--metrics",
                               f"http+unix:///?socket={self.socket_path}", *arguments, **options)

    def ask(self, method="GET", target="/metrics", **headers):
        """The answer and its content."""
        connection = UnixConnection(self.socket_path)
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        return answer, content

    def samples(self, **headers):
        """The values by name and labels."""
        found = {}
        for line in self.ask(**headers)[1].splitlines():
            match = re.fullmatch(r'(\w+)(?:\{(.*)\})? (\S+)', line)
            if not line.startswith("#"):
                self.assertIsNotNone(match, line)
                self.assertNotIn((match[1], match[2] or ""), found)
                found[match[1], match[2] or ""] = float(match[3])
        return found

    def raw(self, request, shut=False):
        """What comes back on a request as bytes, to its end."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(support.WAIT_SECONDS)
            sock.connect(self.socket_path)
            sock.sendall(request)
            if shut:
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        return answer

    def work(self, uri, name=b""):
        """Two reads and a write; the last reply is out before it is counted, so one more."""
        for _ in range(2):
            with nbdmini.open_export(uri, name) as client:
                client.read(0, 4096)
        with nbdmini.open_export(uri, name) as client:
            client.write(0, b"x" * 8192)
            client.read(0, 512)

    def test_what_was_counted(self):
        server = self.serve("--threads", "2", "--export", "=memory:1M", "--export",
                            'a "b" \\\\ c=memory:1M,rate=1G,fault=read:EIO:every=2', uri_count=2)
        self.work(server.uri)
        with nbdmini.open_export(server.uri, b'a "b" \\ c') as client:
            for _ in range(4):
                with self.assertRaises(OSError):
                    client.read(0, 4096)
                    client.read(0, 4096)
            self.wait_for(lambda: self.samples()[
                "gmblock_requests_total",
                r'export="a \"b\" \\ c",operation="read"'] >= 8)
            # Those that have left are gone a moment later.
            self.wait_for(lambda: self.samples()["gmblock_connections", ""] == 1)
            found = self.samples()
        default = 'export="",operation="%s"'
        other = r'export="a \"b\" \\ c"'
        client = f'client="uid {os.getuid()}"'
        self.assertGreaterEqual(found["gmblock_requests_total", default % "read"], 2)
        self.assertEqual(found["gmblock_requests_total", default % "write"], 1)
        self.assertEqual(found["gmblock_request_bytes_total", default % "write"], 8192)
        self.assertEqual(found["gmblock_request_errors_total", other + ',operation="read"'], 4)
        self.assertEqual(found["gmblock_export_errors_total", other + ',error="EIO"'], 4)
        self.assertEqual(found["gmblock_store_fault_failed_total", other], 4)
        self.assertEqual(found["gmblock_export_size_bytes", other], 1 << 20)
        self.assertEqual(found["gmblock_export_rate_limit_bytes_per_second", other], 1 << 30)
        self.assertNotIn(("gmblock_export_rate_limit_bytes_per_second", 'export=""'), found)
        self.assertEqual(found["gmblock_client_connections", client], 1)
        self.assertGreaterEqual(
            found["gmblock_client_requests_total", client + ',operation="read"'], 10)
        self.assertEqual(found["gmblock_connections", ""], 1)
        self.assertGreater(found["gmblock_uptime_seconds", ""], 0)
        self.assertEqual(found["gmblock_arena_limit_bytes", 'kind="ram"'], 2 * (128 << 20))
        self.assertGreater(found["gmblock_arena_mapped_bytes", 'kind="ram"'], 0)
        self.assertIn(("gmblock_arena_waits_total", 'kind="ram"'), found)
        # Nothing was split, so nothing was measured.
        self.assertNotIn(("gmblock_export_overlap_early_ratio", 'export="",direction="read"'),
                         found)

    def test_front_ends_of_a_virtual_machine(self):
        """Two connections of one socket, as while it moves."""
        server = self.serve("--export", "disk=memory:1M", "--listen",
                            f"vhost-user-blk+unix:///disk?socket={self.path('vm')}", uri_count=2)
        client = f'client="uid {os.getuid()}"'
        with vhost_tool.Device(server.uris[0]) as one, vhost_tool.Device(server.uris[0]) as two:
            one.read(0, 4096)
            two.write(0, bytes(8192))
            found = self.samples()
        self.assertEqual(found["gmblock_connections", ""], 2)
        self.assertEqual(found["gmblock_client_connections", client], 2)
        for operation, count in (("read", 4096), ("write", 8192)):
            self.assertEqual(found["gmblock_client_requests_total", f'{client},operation="{operation}"'], 1)
            labels = f'export="disk",operation="{operation}"'
            self.assertEqual(found["gmblock_requests_total", labels], 1)
            self.assertEqual(found["gmblock_request_bytes_total", labels], count)
        self.assertEqual(found["gmblock_export_placement_bytes_total", 'export="disk",placement="requester"'],
                         4096 + 8192)
        self.wait_for(lambda: self.samples()["gmblock_connections", ""] == 0)

    def test_histograms_agree_with_counters(self):
        server = self.serve("memory:1M")
        with nbdmini.open_export(server.uri, b"") as client:
            for _ in range(200):
                client.read(0, 4096)
        found = self.samples()
        labels = 'export="",operation="read"'
        count = found["gmblock_requests_total", labels]
        self.assertGreaterEqual(count, 199)
        phases = {}
        for name, labels in (("gmblock_request_duration_seconds", labels),
                             ("gmblock_client_request_duration_seconds",
                              f'client="uid {os.getuid()}",operation="read"')):
            buckets = [(float(key[1][key[1].index('le="') + 4:-1].replace("+Inf", "inf")), value)
                       for key, value in found.items()
                       if key[0] == name + "_bucket" and key[1].startswith(labels + ",le=")]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(len(buckets), 25)
            self.assertEqual([value for _, value in buckets],
                             sorted(value for _, value in buckets))
            self.assertEqual(buckets[-1][1], count)
            self.assertEqual(found[name + "_count", labels], count)
            phases[name] = found[name + "_sum", labels]
        total, of_client = phases.values()
        self.assertEqual(total, of_client)
        parts = [found["gmblock_request_phase_seconds_sum",
                       f'export="",operation="read",phase="{phase}"']
                 for phase in ("wait", "disk", "overlap", "network")]
        self.assertAlmostEqual(sum(parts), total, places=6)

    def test_both_formats_are_clean(self):
        server = self.serve("memory:1M")
        self.work(server.uri)
        answer, openmetrics = self.ask(Accept=PROMETHEUS_ACCEPT)
        self.assertEqual(answer.getheader("Content-Type"), OPENMETRICS)
        self.assertTrue(openmetrics.endswith("\n# EOF\n"))
        answer, text = self.ask()
        self.assertEqual(answer.getheader("Content-Type"), TEXT)
        self.assertNotIn("# EOF", text)
        code, printed, errors = self.run_gmblock("stats", "--prometheus", self.control)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(re.findall("# .*", printed), re.findall("# .*", text))
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=printed, text=True,
                                  capture_output=True, check=False)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        if openmetrics_parser is not None:
            strict = list(openmetrics_parser.text_string_to_metric_families(openmetrics))
            loose = list(text_parser.text_string_to_metric_families(text))
            self.assertEqual([family.name for family in strict], [family.name for family in loose])
            self.assertTrue(all(family.documentation for family in strict))

    def test_the_format_is_negotiated(self):
        self.serve("memory:1M")
        for accept, wanted in (
                ("*/*", TEXT), ("text/html", TEXT), ("text/*;q=0.1", TEXT),
                ("application/openmetrics-text", OPENMETRICS),
                ("APPLICATION/OpenMetrics-Text ; Version=1.0.0 ; Q=0.2 , text/plain;q=0.2",
                 OPENMETRICS),
                ("application/openmetrics-text;q=0.1,text/plain;q=0.9", TEXT),
                ("application/openmetrics-text;q=0", TEXT),
                ("application/openmetrics-text;q=2x", TEXT)):
            self.assertEqual(self.ask(Accept=accept)[0].getheader("Content-Type"), wanted, accept)

    def test_requests_that_are_refused(self):
        self.serve("memory:1M")
        end = b"\r\nHost: x\r\n\r\n"
        for request, status in (
                (b"GET /metrics HTTP/1.1" + end, 200),
                (b"GET /metrics?x=1 HTTP/1.0" + end, 200),
                (b"GET /metrics HTTP/1.1\n\n", 200),
                (b"GET / HTTP/1.1" + end, 404),
                (b"GET /metricsx HTTP/1.1" + end, 404),
                (b"GET http://x/metrics HTTP/1.1" + end, 404),
                (b"POST /metrics HTTP/1.1" + end + b"body", 405),
                (b"get /metrics HTTP/1.1" + end, 405),
                (b"GET /metrics HTTP/2.0" + end, 505),
                (b"GET /metrics" + end, 400),
                (b"GET  /metrics HTTP/1.1" + end, 400),
                (b"GET /metrics HTTP/1.1\r\nno field\r\n\r\n", 400),
                (b"GET /metrics HTTP/1.1\r\n folded: x\r\n\r\n", 400),
                (b"GET /metrics HTTP/1.1\r\nA\0: x\r\n\r\n", 400),
                (b"\x16\x03\x01\x02\0\n\n", 400),
                (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 20000 + b"\r\n\r\n", 431)):
            answer = self.raw(request)
            self.assertEqual(answer[:13], b"HTTP/1.1 %d " % status, request[:60])
            head, _, content = answer.partition(b"\r\n\r\n")
            self.assertIn(b"Content-Length: %d\r\n" % len(content), head)
            self.assertEqual(b"\r\nAllow: GET, HEAD" in head, status == 405)
        head = self.raw(b"HEAD /metrics HTTP/1.1" + end)
        self.assertTrue(head.endswith(b"\r\n\r\n"))
        self.assertIn(b"Content-Length: ", head)
        self.assertEqual(self.raw(b"GET /met", shut=True), b"")
        self.assertEqual(self.ask()[0].status, 200)

    def descriptors(self, server):
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    def test_a_thousand_connections(self):
        server = self.serve("memory:1M")
        before = self.descriptors(server)
        silent = []
        for _ in range(1000):
            sock = socket.socket(socket.AF_UNIX)
            self.addCleanup(sock.close)
            sock.settimeout(support.WAIT_SECONDS)
            sock.connect(self.socket_path)
            silent.append(sock)
        self.assertEqual(self.ask()[0].status, 200)
        self.assertLessEqual(self.descriptors(server), before + CLIENTS_MAX + 2)
        code, _, errors = self.run_gmblock("stats", self.control)
        self.assertEqual((code, errors), (0, ""))
        self.work(server.uri)
        # The oldest made room.
        self.assertEqual(silent[0].recv(1), b"")

    def test_readers_that_do_not_read(self):
        exports = []
        for i in range(200):
            exports += ["--export", f"{'x' * 200}{i}=null:1M"]
        server = self.serve(*exports, uri_count=200)
        slow = []
        for _ in range(2 * CLIENTS_MAX):
            sock = socket.socket(socket.AF_UNIX)
            self.addCleanup(sock.close)
            sock.connect(self.socket_path)
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            slow.append(sock)
            answer, content = self.ask()
            self.assertEqual(int(answer.getheader("Content-Length")), len(content))
        self.assertGreater(len(content), 1 << 20)
        server.stop()

    def test_where_it_may_be(self):
        server = self.start_unix("memory:1M", "--metrics", "http://127.0.0.1:0/metrics",
                                 "--log-level", "info")
        line = ""
        while "metrics: " not in line:
            line = server.process.stderr.readline()
        url = urllib.parse.urlsplit(line.split("metrics: ")[1].strip())
        connection = http.client.HTTPConnection(url.hostname, url.port,
                                                timeout=support.WAIT_SECONDS)
        connection.request("GET", url.path)
        self.assertEqual(connection.getresponse().status, 200)
        server.stop()
        open_to_all = ["memory:1M", "--listen", self.socket_uri("t"), "--metrics"]
        self.check_refused(["serve", *open_to_all, "http://0.0.0.0:0"], 1, "insecure-network=yes",
                           "--metrics")
        self.check_refused(["serve", *open_to_all, "http://[::]:0?insecure-network=no"], 1,
                           "insecure-network=yes")
        self.start(*open_to_all, "http://0.0.0.0:0?insecure-network=yes").stop()

    def test_addresses_that_are_none(self):
        for uri, reason in (
                ("127.0.0.1:9464", "http://HOST:PORT"),
                ("https://127.0.0.1:9464", "http://HOST:PORT"),
                ("http://127.0.0.1", "port"), ("http://a@127.0.0.1:1", "cannot have a user"),
                ("http://127.0.0.1:1/other", "/metrics"),
                ("http+unix:///", "socket"), ("http://127.0.0.1:1?x=1", '"x"'),
                ("http://127.0.0.1:1?insecure-network=maybe", "yes or no")):
            self.check_refused(["serve", "memory:1M", "--metrics", uri], 2, "--metrics", reason)
        self.check_refused(["serve", "memory:1M", "--metrics", "http://127.0.0.1:1", "--metrics",
                            "http://127.0.0.1:2"], 2, "only once")

    def test_the_key_of_the_configuration(self):
        path = self.path("metrics")
        config = self.make_file("c.yaml", f"metrics: http+unix:///?socket={path}\n"
                                "exports: [{name: '', path: 'memory:1M'}]\n")
        server = self.start_unix("--config", config)
        self.socket_path = path
        self.assertEqual(self.ask()[0].status, 200)
        self.assertEqual(server.stop(), (0, ""))
        self.assertFalse(os.path.exists(path))
        bad = self.make_file("bad.yaml", "exports: [{name: '', path: 'memory:1M'}]\n"
                             "metrics: nonsense\n")
        self.check_refused(["serve", "--config", bad], 2, "bad.yaml:2:10", "metrics")

    def test_options_that_exclude_each_other(self):
        self.serve("memory:1M")
        code, output, errors = self.run_gmblock("stats", "--prometheus", "--json", self.control)
        self.assertEqual((code, output), (2, ""))
        self.assertIn("--prometheus", errors)


if __name__ == "__main__":
    support.main()
