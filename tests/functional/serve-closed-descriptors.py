#!/usr/bin/python3
"""Started without standard descriptors, the server never writes its messages into a disk."""
import os
import subprocess

import nbdmini
import support

CLOSER = 'exec "$0" serve "$@" <&- >&- 2>&-'


class ClosedDescriptors(support.Case):
    def test_messages_do_not_end_up_in_the_disk(self):
        disk = self.make_file("disk.img", bytes(4096))
        notify = support.NotifySocket(self.path("notify"))
        self.addCleanup(notify.close)
        process = subprocess.Popen(
            ["/bin/sh", "-c", CLOSER, support.program(), disk, "--listen", self.socket_uri(),
             "--max-connections", "1"],
            env={**os.environ, "NOTIFY_SOCKET": notify.path})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(notify.wait_for("READY"), "1")
        with nbdmini.open_export(self.socket_uri()), nbdmini.Client(self.socket_uri()) as refused:
            # This refusal is logged.
            self.assertTrue(refused.at_end())
        process.terminate()
        self.assertEqual(process.wait(), 0)
        with open(disk, "rb") as file:
            self.assertEqual(file.read(), bytes(4096))

    def test_standard_output_that_is_gone_does_not_stop_the_service(self):
        reader, writer = os.pipe()
        os.close(reader)
        process = subprocess.Popen(
            [support.program(), "serve", "null:1M", "--listen", self.socket_uri()],
            stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertIn("standard output", process.stderr.readline())
        with nbdmini.open_export(self.socket_uri()) as client:
            self.assertEqual(client.size, 1 << 20)


if __name__ == "__main__":
    support.main()
