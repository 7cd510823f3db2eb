#!/usr/bin/python3
"""What a server sends to the journal: its messages with fields, and nothing where standard error is
not the journal's."""
import os
import signal
import socket
import struct
import subprocess
import sys

import nbdmini
import support
import tls_tool

OPT_STARTTLS = 5
SKIPPED = 77
# Puts a folder in the place of the journal's, for this program alone.
WITH_JOURNAL = ('mount -t tmpfs none /run && mkdir -p /run/systemd/journal && '
                'mount --bind "$0" /run/systemd/journal && exec "$@"')


def can_mount():
    return subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /run"], check=False,
                          capture_output=True).returncode == 0


def fields_of(message):
    """The fields of a message in the native protocol of the journal."""
    fields = {}
    while message:
        line, _, message = message.partition(b"\n")
        name, is_text, value = line.partition(b"=")
        if not is_text:
            size, = struct.unpack("<Q", message[:8])
            value, message = message[8:8 + size], message[9 + size:]
        fields[name.decode()] = value.decode()
    return fields


class Journal(support.Case):
    def setUp(self):
        super().setUp()
        self.journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.journal.close)
        self.journal.settimeout(support.WAIT_SECONDS)
        os.mkdir(self.path("journal"))
        self.journal.bind(self.path("journal/socket"))

    def serve(self, *arguments, is_stream=True):
        """The server, whose standard error is a file; and its URI."""
        self.errors = self.path("errors")
        with open(self.errors, "w", encoding="utf-8") as errors:
            about = os.fstat(errors.fileno())
            stream = f"{about.st_dev}:{about.st_ino + (0 if is_stream else 1)}"
            process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", WITH_JOURNAL, self.path("journal"),
                 support.program(), "serve", "--control", self.path("control"), "--listen", self.socket_uri(),
                 *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "GMBLOCK_LOG": "info", "JOURNAL_STREAM": stream})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process, process.stdout.readline().rstrip("\n")

    def said(self):
        with open(self.errors, encoding="utf-8") as errors:
            return errors.read()

    def message_with(self, text):
        while True:
            fields = fields_of(self.journal.recv(65536))
            self.assertEqual(fields["SYSLOG_IDENTIFIER"], "gmblock")
            if text in fields["MESSAGE"]:
                return fields

    def test_fields(self):
        process, uri = self.serve("--export", "a disk=memory:1M,fault=read:EIO")
        with nbdmini.open_export(uri, b"a disk") as client:
            fields = self.message_with("uses export")
            self.assertEqual(fields["MESSAGE_ID"], "def5c01ab2a646318b1f9d570987756f")
            self.assertEqual((fields["EXPORT"], fields["PRIORITY"]), ("a disk", "6"))
            self.assertIn(f"(uid {os.getuid()})", fields["CLIENT"])
            with self.assertRaises(OSError):
                client.read(512, 512)
            fields = self.message_with("failed")
            self.assertEqual(fields["MESSAGE_ID"], "47cef44fc0dc45259a2e27dbefa77d61")
            self.assertEqual((fields["EXPORT"], fields["PRIORITY"], fields["ERRNO"]),
                             ("a disk", "3", "5"))
            self.assertIn("read of 512 bytes at offset 512", fields["MESSAGE"])
        self.message_with("has left")
        with nbdmini.Client(uri) as client:
            client.receive(18)
            client.sock.sendall(b"\xff" * 64)
            fields = self.message_with("connection ended")
            self.assertEqual(fields["MESSAGE_ID"], "4e8650871f894628901d5c084c160276")
            self.assertNotIn("EXPORT", fields)
        self.assertEqual(self.said(), "")
        process.terminate()
        self.assertEqual(process.wait(support.WAIT_SECONDS), 0)

    def test_fields_after_an_upgrade(self):
        """The standard error is that of the old process, and not of who has asked."""
        process, uri = self.serve("memory:1M")
        done = subprocess.run(
            ["nsenter", "-t", str(process.pid), "-m", support.program(), "upgrade", self.path("control")],
            capture_output=True, text=True, check=False,
            env={**os.environ, "GMBLOCK_LOG": "info", "JOURNAL_STREAM": "1:1"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.addCleanup(os.kill, int(done.stdout.split()[1]), signal.SIGKILL)
        self.message_with("took over from another process")
        with nbdmini.open_export(uri):
            fields = self.message_with("uses export")
            self.assertEqual(fields["MESSAGE_ID"], "def5c01ab2a646318b1f9d570987756f")
        self.assertEqual(self.said(), "")

    def test_why_tls_failed(self):
        tls_tool.write_psk(self.path("keys"), tls_tool.PSK)
        _, uri = self.serve("memory:1M", "--tls=on", "--tls-psk", self.path("keys"))
        with nbdmini.Client(uri) as client:
            client.hello()
            client.send_option(OPT_STARTTLS)
            client.option_replies(OPT_STARTTLS)
            client.sock.sendall(b"this is no TLS")
            fields = self.message_with("connection ended")
        self.assertEqual(fields["MESSAGE_ID"], "7cd9443d47b14a4cb1935bd4afb6186d")
        self.assertEqual(fields["REASON"], "protocol")

    def test_a_journal_that_has_gone(self):
        _, uri = self.serve("memory:1M")
        self.journal.close()
        with nbdmini.open_export(uri):
            self.wait_for(lambda: "<6>client" in self.said())

    def test_standard_error_is_no_stream_of_the_journal(self):
        _, uri = self.serve("memory:1M", is_stream=False)
        with nbdmini.open_export(uri):
            self.wait_for(lambda: "uses export" in self.said())
        self.journal.settimeout(0)
        with self.assertRaises(BlockingIOError):
            self.journal.recv(1)


if __name__ == "__main__":
    if not can_mount():
        print("mounts of its own are not allowed here: nothing to test", file=sys.stderr)
        sys.exit(SKIPPED)
    support.main()
