#!/usr/bin/python3
"""SIGTERM, SIGINT and the end of the terminal stop the server cleanly: what is in flight is finished
first, then every connection is closed."""
import fcntl
import os
import pty
import select
import signal
import termios

import nbdmini
import support


class Stop(support.Case):
    def test_idle(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.start_unix("null:1M")
            server.signal(number)
            self.assertEqual(server.wait()[0], 0)
            self.assertEqual(os.listdir(self.folder), [])

    def start_in_terminal(self, *arguments, **options):
        """A server with a terminal of its own, which ends when the descriptor is closed."""
        terminal, inner = pty.openpty()

        def take_terminal():
            os.setsid()
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
            os.close(terminal)

        server = self.start_unix("null:1M", *arguments, preexec_fn=take_terminal,
                                 pass_fds=[terminal, inner], **options)
        os.close(inner)
        return server, terminal

    def test_the_end_of_the_terminal(self):
        server, terminal = self.start_in_terminal()
        os.close(terminal)
        self.assertEqual(server.wait()[0], 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_end_of_the_terminal_can_be_ignored(self):
        server = self.start_unix(
            "null:1M", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            masks = dict(line.split(":\t", 1) for line in file if line.startswith("Sig"))
        bit = 1 << (signal.SIGHUP - 1)
        self.assertTrue(int(masks["SigIgn"], 16) & bit)
        self.assertFalse(int(masks["SigBlk"], 16) & bit, "it would be read, not ignored")
        server.signal(signal.SIGHUP)
        with nbdmini.open_export(server.uri) as client:
            client.flush()
        self.assertEqual(server.stop()[0], 0)

    def test_a_command_hears_of_the_end_of_the_terminal(self):
        said = self.path("said")
        os.mkfifo(said)
        server, terminal = self.start_in_terminal("--run", (
            "trap 'kill $!; exit 33' HUP; tail --pid=$$ -f /dev/null & echo >" + said + "; wait"),
            uri_count=0)
        with open(said, encoding="ascii") as file:
            file.read()
        os.close(terminal)
        self.assertEqual(server.wait()[0], 33)

    def test_idle_connections_are_closed(self):
        server = self.start_unix("null:1M")
        with nbdmini.open_export(server.uri) as chosen, nbdmini.Client(server.uri) as silent, \
                nbdmini.Client(server.uri) as haggling:
            silent.greeting()
            haggling.hello()
            haggling.list()
            self.assertEqual(server.stop()[0], 0)
            for client in (chosen, silent, haggling):
                self.assertTrue(client.at_end())

    def test_requests_in_flight_are_finished(self):
        disk = self.make_file("disk.img", b"old!" * 1024)
        server = self.start_unix(
            "--export", f"={disk},delay=read:2s,delay=write:2s")
        with nbdmini.open_export(server.uri) as reader, \
                nbdmini.open_export(server.uri) as writer:
            reader.send_request(nbdmini.CMD_READ, 10, 0, 4096)
            writer.send_request(nbdmini.CMD_WRITE, 20, 0, 4, b"new!")
            # A flush is not delayed: its answer shows that the requests before it are taken.
            for client in (reader, writer):
                client.send_request(nbdmini.CMD_FLUSH, 30)
                self.assertEqual(client.reply(), (30, 0))
            server.signal()
            self.assertEqual(reader.reply(), (10, 0))
            self.assertEqual(len(reader.receive(4096)), 4096)
            self.assertEqual(writer.reply(), (20, 0))
            self.assertTrue(reader.at_end())
            self.assertTrue(writer.at_end())
        self.assertEqual(server.wait()[0], 0)
        with open(disk, "rb") as file:
            self.assertEqual(file.read(8), b"new!old!")

    def test_a_second_signal_ends_at_once(self):
        notify = support.NotifySocket(self.path("notify"))
        self.addCleanup(notify.close)
        server = self.start_unix("--export", "=null:1M,delay=read:3600s",
                                 env={**os.environ, "NOTIFY_SOCKET": notify.path})
        with nbdmini.open_export(server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 10, 0, 512)
            client.flush()
            server.signal()
            self.assertEqual(notify.wait_for("STOPPING"), "1")
            # Signals close to the first one are taken for the same wish: repeat it.
            while server.process.poll() is None:
                server.signal()
                select.select([], [], [], 0.1)
            code, errors = server.wait()
        self.assertEqual(code, 1)
        self.assertIn("second signal", errors)
        self.assertEqual(os.listdir(self.folder), ["notify"])

    def test_signals_that_come_together_are_one(self):
        server = self.start_unix("--export", "=null:1M,delay=read:1s")
        with nbdmini.open_export(server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 10, 0, 512)
            client.flush()
            server.freeze()
            server.signal(signal.SIGINT)
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGCONT)
            self.assertEqual(client.reply(), (10, 0))
        self.assertEqual(server.wait()[0], 0)

    def test_new_connections_are_refused_while_stopping(self):
        server = self.start("--export", "=null:1M,delay=read:1s", "--listen",
                            "nbd://127.0.0.1:0")
        with nbdmini.open_export(server.uri) as client:
            client.send_request(nbdmini.CMD_READ, 10, 0, 512)
            client.flush()
            server.signal()
            self.assertEqual(client.reply(), (10, 0))
            with self.assertRaises(ConnectionError):
                nbdmini.Client(server.uri).greeting()
        self.assertEqual(server.wait()[0], 0)


if __name__ == "__main__":
    support.main()
