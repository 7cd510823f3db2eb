#!/usr/bin/python3
"""The service manager is told when the server is ready and when it stops, not before."""
import os

import nbdmini
import support


class Notify(support.Case):
    def setUp(self):
        super().setUp()
        self.notify = support.NotifySocket(self.path("notify"))
        self.addCleanup(self.notify.close)
        self.environment = {**os.environ, "NOTIFY_SOCKET": self.notify.path}

    def test_ready_and_stopping(self):
        server = self.start_unix("--export", "=null:1M", "--export", "a=null:1M", "--threads", "2",
                                 uri_count=2, env=self.environment)
        message = self.notify.receive()
        self.assertEqual(message["READY"], "1")
        self.assertEqual(message["STATUS"], "Serving 2 exports on 1 address with 2 threads")
        with nbdmini.open_export(self.socket_uri()) as client:
            self.assertEqual(client.size, 1 << 20)
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(self.notify.receive()["STOPPING"], "1")

    def test_ready_means_that_clients_are_served(self):
        self.start_unix("null:1M", env=self.environment, uri_count=0)
        self.assertEqual(self.notify.wait_for("READY"), "1")
        with nbdmini.open_export(self.socket_uri()) as client:
            self.assertEqual(client.size, 1 << 20)

    def test_a_failed_start_is_not_ready(self):
        code, _, _ = self.run_gmblock("serve", self.path("missing"), env=self.environment)
        self.assertEqual(code, 1)
        self.notify.sock.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.notify.receive()


if __name__ == "__main__":
    support.main()
