#!/usr/bin/python3
"""What --log-level and GMBLOCK_LOG let through: errors of disks, who comes and goes, what a connection
negotiated, and why a request was refused, on the server and in the client library."""
import os
import subprocess

import nbdmini
import support

DEBUG = dict(os.environ, GMBLOCK_LOG="debug")
NOT_SET = dict(os.environ)
NOT_SET.pop("GMBLOCK_LOG", None)


class LogLevel(support.Case):
    def talk(self, server, reads):
        """Reads once inside the export, and then behind its end."""
        with nbdmini.open_export(server.uri, b"disk") as client:
            client.read(0, 512)
            for _ in range(reads):
                with self.assertRaises(OSError):
                    client.read(1 << 20, 512)

    def logged(self, *arguments, reads=1, keys="", **options):
        """Standard error of a server, in lines."""
        server = self.start_unix("--export", "disk=memory:1M" + keys, *arguments, **options)
        self.talk(server, reads)
        status, errors = server.stop()
        self.assertEqual(status, 0)
        return errors.splitlines()

    def check_lines(self, lines):
        ready = [line for line in lines if "from unix:pid" in line]
        self.assertEqual(len(ready), 1, lines)
        self.assertRegex(ready[0], r'^gmblock: debug: nbd: connection 1 from unix:pid \d+: export '
                         r'"disk": simple replies, read and write, 1048576 bytes, blocks of \d+ '
                         r"bytes, overlap auto, page-cache send \w+")
        refused = [line for line in lines if "request failed" in line]
        self.assertEqual(refused, ["gmblock: debug: nbd: connection 1: request failed with error "
                                   "22: the range extends past the end of the export (command 0, "
                                   "offset 1048576, length 512)"])

    def test_a_server_tells_what_it_negotiates_and_refuses(self):
        self.check_lines(self.logged("--log-level", "debug"))
        self.check_lines(self.logged(env=DEBUG))

    def test_an_option_wins_over_the_environment(self):
        self.check_lines(self.logged("--log-level=debug", env=dict(DEBUG, GMBLOCK_LOG="error")))
        self.check_comes_and_goes(self.logged("--log-level=info", env=DEBUG))

    def check_comes_and_goes(self, lines, rights=""):
        self.assertEqual(len(lines), 3, lines)
        self.assertRegex(lines[0], r"^gmblock: sandbox: \w")
        for line, what in zip(lines[1:], ("uses", "has left")):
            self.assertRegex(line, rf'^gmblock: client unix:pid \d+ \(uid \d+\) {what} export "disk"{rights}$')

    def test_who_comes_and_goes_by_default(self):
        self.check_comes_and_goes(self.logged(env=NOT_SET))
        self.check_comes_and_goes(self.logged(keys=",readonly", env=NOT_SET), r" \(read only\)")
        self.assertEqual(self.logged("--log-level=warning"), [])

    def test_a_client_that_only_looks_is_not_told_of(self):
        server = self.start_unix("memory:1M", "--log-level", "info", "--sandbox", "off")
        with nbdmini.Client(server.uri) as client:
            client.hello()
            client.list()
        self.assertEqual(server.stop(), (0, "gmblock: sandbox: off\n"))

    def test_disk_errors_are_told_with_their_place(self):
        """Nobody has to ask for these, and a disk that always fails does not fill the log."""
        image = self.make_file("image", bytes(1 << 20))
        server = self.start_unix("--log-level=error", "--export",
                                 f"disk={image},fault=write:EIO")
        with nbdmini.open_export(server.uri, b"disk") as client:
            for _ in range(100):
                with self.assertRaises(OSError):
                    client.write(8192, bytes(4096))
        lines = server.stop()[1].splitlines()
        self.assertEqual(lines[0], 'gmblock: error: export "disk": write of 4096 bytes at offset '
                         "8192 failed: Input/output error")
        self.assertLess(len(lines), 30)

    def test_a_flush_that_failed_is_told(self):
        image = self.make_file("image", bytes(1 << 20))
        server = self.start_unix("--log-level=error", "--export", f"disk={image},fault=flush:EIO")
        with nbdmini.open_export(server.uri, b"disk") as client:
            client.send_request(nbdmini.CMD_FLUSH, 1)
            self.assertNotEqual(client.reply(), (1, 0))
        self.assertEqual(server.stop()[1], 'gmblock: error: export "disk": flush failed: '
                         "Input/output error\n")

    def test_refusals_are_limited(self):
        lines = self.logged("--log-level=debug", reads=500)
        self.assertLess(len([line for line in lines if "request failed" in line]), 40)

    def test_levels_drop_what_is_below(self):
        for level, count in (("error", 0), ("warning", 1), ("info", 1)):
            server = self.start_unix("memory:1M", "--log-level", level)
            with nbdmini.open_export(server.uri) as client:
                client.sock.sendall(b"x" * 100)
                self.assertTrue(client.at_end())
            errors = server.stop()[1]
            self.assertEqual(errors.count("warning"), count, (level, errors))

    def test_the_client_library(self):
        image = self.make_file("image", b"x" * (1 << 20))
        server = self.start_unix("--export", f"disk={image},fault=read:EIO")
        uri = f"nbd+unix:///disk?socket={self.path('s')}"
        for arguments, options in ((["--log-level=debug"], {}), ([], {"env": DEBUG})):
            done = subprocess.run(
                [support.program(), "copy", *arguments, uri, self.path(f"out{len(options)}")],
                capture_output=True, text=True, check=False, **options)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, r"gmblock: debug: client: connection \d+: \S+, export "
                             r'"disk": extended replies, read and write, 1048576 bytes, minimum '
                             r"block 1 bytes, preferred \d+, largest payload \d+, allocation, takeover, "
                             r"alive")
            self.assertRegex(done.stderr, r"gmblock: debug: client: connection \d+: the server "
                             r"rejected a request: operation \d+, offset \d+, length \d+: "
                             r"Input/output error: the server's disk failed")
        self.assertNotIn("debug", self.run_gmblock("copy", uri, self.path("other"))[2])
        server.stop()

    def test_levels_that_are_none(self):
        for command in ("serve", "attach", "copy", "info", "stats"):
            self.check_refused([command, "--log-level", "loud\x1b"], 2,
                               r"--log-level: 'loud\x1b' is not error, warning, info or debug")
        code, _, errors = self.run_gmblock(
            "info", "--local", env=dict(os.environ, GMBLOCK_LOG="loud"))
        self.assertEqual(code, 0)
        self.assertEqual(errors, 'gmblock: warning: GMBLOCK_LOG: "loud" is not error, warning, info '
                         "or debug: ignored\n")


if __name__ == "__main__":
    support.main()
