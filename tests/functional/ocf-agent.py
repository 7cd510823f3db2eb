#!/usr/bin/python3
"""The OCF resource agent, called as Pacemaker does."""
import json
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree

import nbdmini
import support

AGENT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../packaging/ocf/gmblock"))
SUCCESS, GENERIC, UNIMPLEMENTED, INSTALLED, NOT_RUNNING = 0, 1, 3, 5, 7


class Resource(support.Case):
    def setUp(self):
        super().setUp()
        self.disk = self.make_file("disk", "x" * (1 << 20))
        self.config = self.make_file("conf", f"listen: [ '{self.socket_uri()}' ]\nexports:\n"
                                             f"  - {{ name: '', path: {self.disk} }}\n")
        self.addCleanup(self.act, "stop")

    def act(self, action, **parameters):
        values = {"config": self.config, "control": self.path("control"), "program": support.program(),
                  "arguments": "--sandbox off --threads 1", "CRM_meta_timeout": "60000", **parameters}
        environment = {"OCF_RESOURCE_INSTANCE": "disk:0", "HA_RSCTMP": self.path(""), "PATH": os.environ["PATH"],
                       **{"OCF_RESKEY_" + name: value for name, value in values.items()}}
        self.done = subprocess.run([sys.executable, "-B", AGENT, action], env=environment, stdin=subprocess.DEVNULL,
                                   capture_output=True, text=True, check=False)
        return self.done.returncode

    def statistics(self):
        shown = subprocess.run([support.program(), "stats", "--json", "--server", self.path("control")], check=True,
                               capture_output=True, text=True).stdout
        return json.loads(shown)

    def test_meta_data(self):
        self.assertEqual(self.act("meta-data"), SUCCESS)
        root = ElementTree.fromstring(self.done.stdout)
        self.assertEqual((root.tag, root.get("name")), ("resource-agent", "gmblock"))
        self.assertLessEqual({"start", "stop", "monitor", "validate-all", "meta-data"},
                             {action.get("name") for action in root.iter("action")})
        self.assertEqual({parameter.get("name") for parameter in root.iter("parameter")},
                         {"config", "control", "arguments", "program"})
        for action in root.iter("action"):
            self.assertTrue(action.get("timeout"))

    def test_start_monitor_stop(self):
        self.assertEqual(self.act("monitor"), NOT_RUNNING)
        self.assertEqual(self.act("stop"), SUCCESS)
        self.assertEqual(self.act("start"), SUCCESS, self.done.stderr)
        pid = self.statistics()["pid"]
        with nbdmini.open_export(self.socket_uri()) as client:
            client.write(0, b"data")
        self.assertEqual(self.act("start"), SUCCESS)
        self.assertEqual(self.statistics()["pid"], pid)
        self.assertEqual(self.act("monitor"), SUCCESS)
        self.assertEqual(self.act("reload"), SUCCESS)
        subprocess.run([support.program(), "upgrade", "--server", self.path("control")], check=True, capture_output=True)
        self.assertNotEqual(self.statistics()["pid"], pid)
        self.assertEqual(self.act("stop"), SUCCESS, self.done.stderr)
        self.assertEqual(self.act("monitor"), NOT_RUNNING)
        self.assertFalse(os.path.exists(self.path("s")))

    def test_a_killed_server(self):
        self.assertEqual(self.act("start"), SUCCESS, self.done.stderr)
        pid = self.statistics()["pid"]
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: self.act("monitor") == NOT_RUNNING)
        self.assertEqual(self.act("start"), SUCCESS, self.done.stderr)
        self.assertNotEqual(self.statistics()["pid"], pid)

    def test_a_frozen_server(self):
        self.assertEqual(self.act("start"), SUCCESS, self.done.stderr)
        pid = self.statistics()["pid"]
        os.kill(pid, signal.SIGSTOP)
        self.assertEqual(self.act("monitor", CRM_meta_timeout="2000"), GENERIC)
        self.assertIn("does not answer", self.done.stderr)
        self.assertEqual(self.act("stop", CRM_meta_timeout="14000"), SUCCESS, self.done.stderr)
        self.assertFalse(os.path.exists(f"/proc/{pid}/fd/0"))
        self.assertEqual(self.act("monitor"), NOT_RUNNING)

    def test_a_server_that_was_frozen_after_an_upgrade(self):
        self.assertEqual(self.act("start"), SUCCESS, self.done.stderr)
        subprocess.run([support.program(), "upgrade", "--server", self.path("control")], check=True, capture_output=True)
        pid = self.statistics()["pid"]
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(os.kill, pid, signal.SIGCONT)
        self.assertEqual(self.act("monitor", CRM_meta_timeout="2000"), GENERIC)
        os.unlink(self.path("gmblock-disk_0.state"))
        self.assertEqual(self.act("monitor", CRM_meta_timeout="2000"), GENERIC)
        self.assertEqual(self.act("stop", CRM_meta_timeout="2000"), GENERIC)
        self.assertIn("its disks are not known", self.done.stderr)

    def test_mistakes(self):
        self.assertEqual(self.act("validate-all"), SUCCESS, self.done.stderr)
        wrong = self.make_file("wrong", "exports: [ { name: a } ]\n")
        for action in ("validate-all", "start"):
            self.assertEqual(self.act(action, config=wrong), INSTALLED)  # only this host has a wrong file
            self.assertIn("path", self.done.stderr)
        self.assertEqual(self.act("start", program="/nonexistent/gmblock"), INSTALLED)
        self.assertEqual(self.act("promote"), UNIMPLEMENTED)
        os.unlink(self.disk)
        self.assertEqual(self.act("start"), GENERIC)
        self.assertIn("has ended with exit status 1", self.done.stderr)


if __name__ == "__main__":
    support.main()
