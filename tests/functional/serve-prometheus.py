#!/usr/bin/python3
"""Prometheus scrapes a server, and the queries of the dashboard give data."""
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

import nbdmini
import ports
import support

DASHBOARD = os.path.join(os.path.dirname(__file__), "../../packaging/grafana/gmblock.json")
SKIPPED = 77


class Prometheus(support.Case):
    def setUp(self):
        super().setUp()
        self.server = self.start_unix("--export", "=memory:1M", "--export", "other=memory:1M",
                                      "--metrics", "http://127.0.0.1:0", "--log-level", "info",
                                      uri_count=2)
        line = ""
        while "metrics: " not in line:
            line = self.server.process.stderr.readline()
        self.target = urllib.parse.urlsplit(line.split("metrics: ")[1].strip()).netloc
        # The log is read on, lest it fill the pipe.
        threading.Thread(target=self.server.process.stderr.read, daemon=True).start()

    def start_prometheus(self):
        config = self.make_file("prometheus.yml", json.dumps({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
            "scrape_configs": [{"job_name": "gmblock",
                                "static_configs": [{"targets": [self.target]}]}]}))
        self.port = ports.free()
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.path('tsdb')}",
             f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_for(lambda: process.poll() is not None or self.is_ready())
        self.assertIsNone(process.poll(), "Prometheus did not start")

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready") as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def query(self, expression):
        text = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{text}"
        with urllib.request.urlopen(url) as answer:
            told = json.load(answer)
        self.assertEqual(told["status"], "success", expression)
        return told["data"]["result"]

    def work(self):
        for name in (b"", b"other"):
            with nbdmini.open_export(self.server.uri, name) as client:
                for _ in range(20):
                    client.read(0, 4096)
                    client.write(4096, b"x" * 4096)

    def test_the_queries_of_the_dashboard(self):
        with open(DASHBOARD, encoding="utf-8") as file:
            panels = json.load(file)["panels"]
        expressions = [target["expr"].replace("$__rate_interval", "30s").replace("$export", ".*")
                       for panel in panels for target in panel["targets"]]
        self.assertGreater(len(expressions), 15)
        self.assertEqual([at for at in expressions if "$" in at], [])
        self.start_prometheus()
        self.wait_for(lambda: self.query("up") and self.query("up")[0]["value"][1] == "1")

        def have_data():
            self.work()
            return all(self.has_numbers(at) for at in expressions)
        self.wait_for(have_data)
        told = self.query("gmblock_export_size_bytes")
        self.assertEqual({at["metric"].get("export", "") for at in told}, {"", "other"})
        told = self.query("scrape_samples_scraped")
        self.assertGreater(int(told[0]["value"][1]), 100)
        described = self.metadata()
        self.assertEqual(described["gmblock_request_bytes"][0]["unit"], "bytes")
        self.assertEqual(described["gmblock_request_duration_seconds"][0]["type"], "histogram")

    def has_numbers(self, expression):
        return any(at["value"][1] != "NaN" for at in self.query(expression))

    def metadata(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/metadata") as answer:
            return json.load(answer)["data"]


if __name__ == "__main__":
    if shutil.which("prometheus") is None:
        print("prometheus is not installed: nothing to test", file=sys.stderr)
        sys.exit(SKIPPED)
    support.main()
