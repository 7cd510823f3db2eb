#!/usr/bin/python3
"""A limit on the size of files (ulimit -f, LimitFSIZE=) below the size of the disk: what lies behind
it cannot be written, which is an error of that write and of nothing else."""
import os
import resource
import signal

import nbdmini
import support

MIB = 1 << 20
SIZE, LIMIT = 8 * MIB, MIB
CMD_WRITE_ZEROES = 6
CMD_FLAG_FUA = 1
ENOSPC = 28


def limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python's own is to ignore it
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


class FileSizeLimit(support.Case):
    def error_of(self, client, command, offset, length, data=b"", flags=0):
        client.send_request(command, 7, offset, length, data, flags)
        cookie, error = client.reply()
        self.assertEqual(cookie, 7)
        return error

    def check(self, mode):
        content = os.urandom(SIZE)
        image = self.make_file("disk", content)
        server = self.start_unix("--export", f"={image},mode={mode}", preexec_fn=limit)
        client = nbdmini.open_export(server.uri)
        self.addCleanup(client.close)
        data = bytes(range(256)) * 16
        for flags in (0, CMD_FLAG_FUA):
            for at in (LIMIT, SIZE - 4096, SIZE - 5000):
                self.assertEqual(
                    self.error_of(client, nbdmini.CMD_WRITE, at, 4096, data, flags), ENOSPC)
            self.assertEqual(self.error_of(client, CMD_WRITE_ZEROES, SIZE - 100, 100, b"", flags),
                             ENOSPC)
            # Nothing is lost by that, so what is promised still can be.
            self.assertEqual(self.error_of(client, nbdmini.CMD_WRITE, 0, 4096, data, flags), 0)
        client.flush()
        self.assertEqual(client.read(0, 4096), data)
        self.assertEqual(client.read(LIMIT, SIZE - LIMIT), content[LIMIT:])
        client.close()
        code, errors = server.stop()
        self.assertEqual(code, 0)
        for line in errors.splitlines():
            self.assertRegex(line, "(write|zero) of .* failed: File too large")

    def test_cached(self):
        self.check("cached")

    def test_ram(self):
        self.check("direct")


if __name__ == "__main__":
    support.main()
