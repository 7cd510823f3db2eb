#!/usr/bin/python3
"""fence_gmblock as cluster managers call it: parameters on the command line or on standard input."""
import importlib
import os
import subprocess
import sys
from xml.etree import ElementTree

import support

serve_fence = importlib.import_module("serve-fence")

AGENT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../packaging/fence_gmblock"))
ON, FAILED, OFF = 0, 1, 2


class Agent(serve_fence.Fencing):
    def setUp(self):
        super().setUp()
        text = serve_fence.CONF.replace("access: [", "access: [{{ uid: {uid}, fence: yes, rights: none }}, ")
        text = text.replace("  - {{ name: a, uid: {uid} }}\n", "").format(
            uid=os.geteuid(), exports="  - { name: disk, path: 'memory:1M' }\n")
        self.server = self.serve(self.make_file("conf", text), listen=("nbd://127.0.0.1:0", self.socket_uri()))
        self.uri = self.server.uris[1]

    def run_agent(self, *arguments, text=""):
        done = subprocess.run([sys.executable, "-B", AGENT, *arguments], input=text, capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout, done.stderr

    def by_input(self, action, **values):
        """As Pacemaker's fencer: names of its own are among them."""
        values = {"action": action, "nodename": "host-a", "servers": self.uri, "program": support.program(), **values}
        return self.run_agent(text="".join(f"{name}={value}\n" for name, value in values.items()) + "# end\n\n")

    def by_options(self, action, *arguments, node="a"):
        return self.run_agent("-o", action, "-n", node, "--servers=" + self.uri, "-p", support.program(), *arguments)

    def test_metadata(self):
        for arguments, text in ((["-o", "metadata"], ""), (["--action=metadata"], ""), ([], "action=metadata\n")):
            code, output, errors = self.run_agent(*arguments, text=text)
            self.assertEqual((code, errors), (0, ""))
            root = ElementTree.fromstring(output)
            self.assertEqual((root.tag, root.get("name")), ("resource-agent", "fence_gmblock"))
            actions = {action.get("name"): action for action in root.iter("action")}
            self.assertLessEqual({"on", "off", "status", "monitor", "list", "metadata"}, set(actions))
            self.assertNotIn("reboot", actions)
            self.assertEqual(actions["on"].get("automatic"), "0")
            required = {parameter.get("name") for parameter in root.iter("parameter") if parameter.get("required") == "1"}
            self.assertEqual(required, {"action", "plug", "servers"})
            for parameter in root.iter("parameter"):
                self.assertIsNotNone(parameter.find("content").get("type"))
                self.assertTrue(parameter.find("shortdesc").text)

    def test_off_and_on(self):
        client = self.open(self.server.uris[0])
        client.write(0, bytes(512))
        for call in (self.by_input, self.by_options):
            arguments = {"plug": "a"} if call == self.by_input else {}
            self.assertEqual(call("status", **arguments), (ON, "Status: ON\n", ""))
            self.assertEqual(call("off", **arguments), (0, "", ""))
            self.check_refused_client(self.server.uris[0])
            self.assertEqual(call("status", **arguments), (OFF, "Status: OFF\n", ""))
            self.assertEqual(call("off", **arguments), (0, "", ""))
            self.assertEqual(call("on", **arguments), (0, "", ""))
            self.assertEqual(call("status", **arguments), (ON, "Status: ON\n", ""))
        self.assertTrue(client.at_end())
        self.assertEqual(self.by_input("off", port="b"), (0, "", "")) # as older managers name it
        self.assertEqual(self.listed(), {"a": (False, False), "b": (True, True)})

    def test_a_dead_server_is_reported_before_the_time_limit(self):
        self.check_is_reported([
            sys.executable, "-B", AGENT, "-o", "off", "-n", "a", "-s", self.path("lost"), "-t", "3600",
            "-p", support.program()])

    def test_list_and_monitor(self):
        self.assertEqual(self.by_input("monitor", nodes="a,b")[0], 0)
        self.assertEqual(self.by_input("list", nodes="a b"), (0, "a,\nb,\n", ""))
        self.assertEqual(self.by_input("off", plug="b")[0], 0)
        self.assertEqual(self.by_input("list-status", nodes="a b"), (0, "a,,on\nb,,off\n", ""))
        # A control socket lists its nodes.
        self.uri = self.control
        self.assertEqual(self.by_input("list"), (0, "a,\nb,\n", ""))
        self.assertEqual(self.by_input("monitor"), (0, "", ""))
        code, _, errors = self.by_input("monitor", nodes="a other")
        self.assertEqual(code, FAILED)
        self.assertIn("no node 'other'", errors)

    def test_not_fenced_is_a_failure(self):
        lost = self.path("lost")
        code, _, errors = self.by_input("off", plug="a", servers=f"{self.uri} {lost}", timeout="1")
        self.assertEqual(code, FAILED)
        self.assertIn(f"not fenced at {lost}", errors)
        self.assertEqual(self.by_input("on", plug="a")[0], 0)
        # Nodes that fence each other must meet at the first server.
        code, _, errors = self.by_input("off", plug="a", servers=f"{lost} {self.uri}", timeout="1")
        self.assertEqual(code, FAILED)
        self.assertEqual(self.listed()["a"], (False, False))
        code, output, _ = self.by_input("status", plug="a", servers=f"{self.uri},{lost}", timeout="1")
        self.assertEqual((code, output), (FAILED, "Status: unknown\n"))
        self.server.kill()
        self.assertEqual(self.by_input("monitor", nodes="a", timeout="1")[0], FAILED)

    def test_mistakes(self):
        for arguments, text, fragment in (
                (["-o", "reboot", "-n", "a"], "", "there is no action 'reboot'"),
                (["-o", "off"], "", "plug, the name of the node, is missing"),
                ([], "action=off\n", "plug, the name of the node, is missing"),
                ([], "action\n", "'action' on standard input is not of the form name=value"),
                (["-o", "off", "-n", "a", "-t", "soon"], "", "timeout=soon is not a number of seconds"),
                (["-o", "off", "-n", "a", "-t", "\u00b2"], "", "timeout=\u00b2 is not a number of seconds"),
                ([], f"action=off\nplug=a\nserver={self.uri}\nprogram={support.program()}\n", "servers, the servers"),
                *((["-o", action, "-n", "a", "-N", "a"], "", "servers, the servers that must fence the node, is missing")
                  for action in ("on", "off", "status", "monitor", "list-status")),
                (["-o", "off", "-n", "a", "-s", f"local,{self.uri}"], "", "cannot be combined with other servers"),
                (["--nothing"], "", "option --nothing not recognized"),
                (["-o", "off", "-n", "--help", "-s", self.uri, "-p", support.program()], "", "no node '--help'"),
                (["-o", "off", "a"], "", "unexpected argument 'a'"),
                (["-o", "off", "-n", "a", "-s", self.uri, "-p", self.path("none")], "", "cannot run")):
            code, output, errors = self.run_agent(*arguments, text=text)
            self.assertEqual((code, output), (FAILED, ""), arguments)
            self.assertIn(fragment, errors)
        self.assertEqual(self.listed(), {"a": (False, False), "b": (False, False)})
        self.assertEqual(self.run_agent("--help")[0], 0)

    def test_the_local_server(self):
        """gmblock is called without --server."""
        program = self.make_file("program", "#!/bin/sh\necho \"$@\" >&2\n")
        os.chmod(program, 0o700)
        self.assertEqual(self.run_agent("-o", "off", "-n", "a", "-s", "local", "-p", program),
                         (0, "", "fence --timeout 30s -- a\n"))


if __name__ == "__main__":
    support.main()
