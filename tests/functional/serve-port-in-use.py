#!/usr/bin/python3
"""An address that cannot be listened on is named with the remedy, and nothing is left behind."""
import os
import shutil
import socket
import subprocess
import unittest

import ports
import support


class PortInUse(support.Case):
    def test_another_program_has_the_port(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            self.check_refused(
                ["serve", "null:1M", "--listen", self.socket_uri(), "--listen",
                 f"nbd://127.0.0.1:{port}"],
                1, f"nbd://127.0.0.1:{port}", "in use", "another port")
        self.assertEqual(os.listdir(self.folder), [])

    def test_another_server_of_ours_has_the_port(self):
        server = self.start("null:1M", "--listen", "nbd://127.0.0.1:0")
        self.check_refused(["serve", "null:1M", "--listen", server.uri], 1, server.uri, "in use")

    def test_an_address_of_another_machine(self):
        # 192.0.2.0/24 is kept for documentation: no machine has it.
        self.check_refused(["serve", "null:1M", "--listen", "nbd://192.0.2.1:0"], 1,
                           "nbd://192.0.2.1:0", "does not have the address")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "needs a network of its own")
    def test_no_local_port_is_free(self):
        serve = f"{support.program()} serve null:1M --listen nbd://127.0.0.1:0"
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && "
             "echo 40000 40000 >/proc/sys/net/ipv4/ip_local_port_range && "
             f"exec {serve} --run '{serve}'"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cannot listen on nbd://127.0.0.1:0: no free local port", done.stderr)
        self.assertIn("ip_local_port_range", done.stderr)

    def test_a_host_without_address(self):
        self.check_refused(["serve", "null:1M", "--listen", "nbd://no.such.host.invalid:0"], 1,
                           "cannot resolve host 'no.such.host.invalid'")

    def test_the_port_can_be_used_again_at_once(self):
        port = ports.free()
        server = self.start("null:1M", "--listen", f"nbd://127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", port)) as client:
            self.assertEqual(client.recv(8, socket.MSG_WAITALL), b"NBDMAGIC")
            # The server closes first, so its side of the connection lingers in TIME_WAIT.
            self.assertEqual(server.stop()[0], 0)
        again = self.start("null:1M", "--listen", server.uri)
        self.assertEqual(again.uri, server.uri)


if __name__ == "__main__":
    support.main()
