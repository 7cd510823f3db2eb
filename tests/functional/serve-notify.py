#!/usr/bin/python3
"""The service manager is told when the server is ready and when it stops, not before."""
import os
import socket

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
        self.check_nothing_told()

    def check_nothing_told(self):
        self.notify.sock.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.notify.receive()

    def check_serves_and_stops(self, address):
        """What cannot be told changes nothing else."""
        server = self.start_unix("null:1M", env={**os.environ, "NOTIFY_SOCKET": address})
        with nbdmini.open_export(self.socket_uri()) as client:
            self.assertEqual(client.size, 1 << 20)
        self.assertEqual(server.stop(), (0, ""), address)
        self.check_nothing_told()

    def test_an_abstract_name(self):
        name = f"gmblock-test-{os.getpid()}-{id(self)}"
        # A name with this one as its beginning, as it would be met if zeros were sent after it.
        padded = support.NotifySocket("\0" + name.ljust(107, "\0"))
        self.addCleanup(padded.close)
        notify = support.NotifySocket("\0" + name)
        self.addCleanup(notify.close)
        server = self.start_unix("null:1M", "--threads", "1",
                                 env={**os.environ, "NOTIFY_SOCKET": "@" + name})
        self.assertEqual(notify.receive(),
                         {"READY": "1", "STATUS": "Serving 1 export on 1 address with 1 thread"})
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(notify.receive(),
                         {"STOPPING": "1", "STATUS": "Finishing requests in flight"})

    def test_the_longest_addresses(self):
        path = self.path("x" * (107 - len(self.path(""))))
        name = f"gmblock-test-{os.getpid()}-".ljust(106, "z")
        for bound, told in ((path, path), ("\0" + name, "@" + name)):
            notify = support.NotifySocket(bound)
            self.addCleanup(notify.close)
            self.start_unix("null:1M", env={**os.environ, "NOTIFY_SOCKET": told}).stop()
            self.assertEqual(notify.wait_for("STOPPING"), "1")

    def test_an_address_where_nobody_listens(self):
        for address in (self.path("missing"), "/", "@", "@gmblock-test-nobody", "",
                        "relative", "vsock:2:1234", "/" + "x" * 107, "@" + "x" * 107,
                        "/" + "x" * 5000, self.make_file("file", "")):
            self.check_serves_and_stops(address)

    def test_a_manager_that_went_away(self):
        server = self.start_unix("null:1M", env=self.environment)
        self.assertEqual(self.notify.wait_for("READY"), "1")
        self.notify.close()
        self.assertEqual(server.stop()[0], 0)

    def test_a_socket_of_another_type(self):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.bind(self.path("stream"))
            stream.listen()
            self.check_serves_and_stops(self.path("stream"))


if __name__ == "__main__":
    support.main()
