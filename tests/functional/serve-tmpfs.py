#!/usr/bin/python3
"""A file in memory: the server's own threads copy its data, as a thread of the kernel would cost more than the copy."""
import os
import subprocess
import tempfile

import nbdmini
import support

FOLDER = "/dev/shm"
SIZE = 1 << 20
ATTEMPTS = 20


class Tmpfs(support.Case):
    def threads_of_the_kernel(self):
        """Of a new server, after small transfers."""
        data = os.urandom(SIZE)
        with tempfile.NamedTemporaryFile(dir=FOLDER) as file:
            file.write(data)
            file.flush()
            server = self.start_unix(file.name)
            with nbdmini.open_export(server.uri) as client:
                for offset in range(0, SIZE, 65536):
                    self.assertEqual(client.read(offset, 4096), data[offset:offset + 4096])
                    self.assertEqual(client.read(offset, 65536), data[offset:offset + 65536])
                client.write(4096, bytes(4096))
                self.assertEqual(client.read(0, 12288), data[:4096] + bytes(4096) + data[8192:12288])
                names = [name for _, name, _ in support.threads_of(server.process.pid)]
            server.kill()
        # They would exist for seconds after their last work.
        return [name for name in names if name.startswith("iou-wrk")]

    def test_small_transfers_need_no_threads_of_the_kernel(self):
        """Except after copies that took long, as on a busy machine."""
        found = subprocess.run(["stat", "-f", "-c", "%T", FOLDER], capture_output=True, text=True, check=False).stdout
        if found != "tmpfs\n":
            self.skipTest(f"{FOLDER} is not a tmpfs")
        self.assertFalse(all(self.threads_of_the_kernel() for _ in range(ATTEMPTS)))


if __name__ == "__main__":
    support.main()
