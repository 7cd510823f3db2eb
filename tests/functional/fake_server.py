# SPDX-License-Identifier: Apache-2.0
"""A scripted NBD server for testing clients: says exactly what a test tells it to.

A script is a function that gets a Dialogue, one connection as the server sees it. The Dialogue
knows the layout of messages and checks what the client sends: a client that breaks a rule fails the
test with an AssertionError naming the rule. Raw bytes may be sent at any time.
"""

import os
import shutil
import socket
import struct
import tempfile
import threading

NBDMAGIC = b"NBDMAGIC"
IHAVEOPT = b"IHAVEOPT"
OLDSTYLE = bytes.fromhex("0000420281861253")
REPLY_MAGIC = 0x0003E889045565A9

FIXED, NO_ZEROES = 1, 2

EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY, LIST_META, SET_META, EXTENDED = (
    1, 2, 3, 5, 6, 7, 8, 9, 10, 11)

ACK, SERVER, INFO_REPLY, META = 1, 2, 3, 4
ERR = 1 << 31
UNSUP, POLICY, INVALID, PLATFORM, TLS_REQD, UNKNOWN, SHUTDOWN = (ERR + n for n in range(1, 8))

DISC = 2


class ClientGone(Exception):
    """The client closed the connection; ends a script without failing the test."""


class Dialogue:
    """One connection. Every receive blocks until the client says enough or goes."""

    def __init__(self, conn):
        self.conn = conn
        self.asked = None  # the option in progress
        self.extended = False

    # --- bytes

    def send(self, data):
        try:
            self.conn.sendall(data)
        except OSError as err:
            raise ClientGone from err

    def receive(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.conn.recv(count - len(data))
            except OSError as err:
                raise ClientGone from err
            if not more:
                raise ClientGone
            data += more
        return data

    def wait_for_close(self):
        """Says nothing and takes anything until the client goes."""
        while True:
            self.receive(1)

    def expect_close(self):
        """The client's last bytes were read: anything more is its mistake."""
        data = self.conn.recv(1)
        assert data == b"", f"the client still sent {data!r}"

    # --- handshake

    def greet(self, flags=FIXED | NO_ZEROES):
        self.send(NBDMAGIC + IHAVEOPT + struct.pack(">H", flags))
        (client_flags,) = struct.unpack(">I", self.receive(4))
        assert client_flags & ~flags == 0, f"P5: client flags {client_flags:#x} were not offered"
        assert not flags & FIXED or client_flags & FIXED, "P5: the client forgot FIXED_NEWSTYLE"
        return client_flags

    def option(self, wanted=None):
        """The client's next option: (number, data)."""
        magic, number, length = struct.unpack(">8sII", self.receive(16))
        assert magic == IHAVEOPT, f"option magic is {magic!r}"
        assert length <= 8192, f"option {number} with {length} bytes"
        data = self.receive(length)
        self.asked = number
        assert wanted is None or number == wanted, f"option {number} instead of {wanted}"
        if number in (INFO, GO):
            self.check_info(data)
        elif number in (ABORT, LIST, STRUCTURED_REPLY, EXTENDED):
            assert data == b"", f"option {number} must not have data"
        return number, data

    @staticmethod
    def check_info(data):
        (name_len,) = struct.unpack(">I", data[:4])
        assert name_len <= len(data) - 6, "P22: name length"
        (count,) = struct.unpack(">H", data[4 + name_len:6 + name_len])
        assert len(data) == 6 + name_len + 2 * count, "P22: count of requests"
        requests = struct.unpack(f">{count}H", data[6 + name_len:])
        assert len(set(requests)) == count, f"P24: duplicate requests {requests}"

    def reply(self, option, kind, data=b"", length=None, magic=REPLY_MAGIC):
        length = len(data) if length is None else length
        self.send(struct.pack(">QIII", magic, option, kind, length) + data)

    def serve(self, number, kind=ACK, data=b""):
        """Expects an option and gives its final reply; returns the option's data."""
        _, sent = self.option(number)
        self.reply(number, kind, data)
        self.extended |= (number, kind) == (EXTENDED, ACK)
        return sent

    def refuse_styles(self):
        """A server that has neither extended headers nor structured replies."""
        self.serve(EXTENDED, UNSUP)
        self.serve(STRUCTURED_REPLY, UNSUP)

    def structured(self):
        """A server that has structured replies."""
        self.serve(EXTENDED, UNSUP)
        self.serve(STRUCTURED_REPLY)

    # --- replies to options

    def server(self, name, description=b""):
        self.reply(LIST, SERVER, struct.pack(">I", len(name)) + name + description)

    def info(self, kind, payload):
        """To INFO as to GO."""
        self.reply(self.asked, INFO_REPLY, struct.pack(">H", kind) + payload)

    def info_export(self, size=1 << 20, flags=1):
        self.info(0, struct.pack(">QH", size, flags))

    def info_block_size(self, minimum, preferred, maximum):
        self.info(3, struct.pack(">III", minimum, preferred, maximum))

    def ack(self):
        self.reply(self.asked, ACK)

    def context(self, name, number=0):
        self.reply(LIST_META, META, struct.pack(">I", number) + name)

    def old_reply(self, size=1 << 20, flags=1, zeroes=124):
        self.send(struct.pack(">QH", size, flags) + bytes(zeroes))

    # --- endings

    def farewell(self):
        """ABORT, ACK, and nothing more."""
        self.serve(ABORT)
        self.expect_close()

    def go(self, size=1 << 20, flags=1):
        """A whole answer to GO, and what must follow."""
        _, data = self.option(GO)
        self.info_export(size, flags)
        self.ack()
        self.disconnect()
        return data

    def disconnect(self):
        """DISC in the size that was negotiated, and nothing more."""
        extended = self.extended
        magic, flags, kind = struct.unpack(">IHH", self.receive(8))
        assert magic == (0x21E41C71 if extended else 0x25609513), f"request magic {magic:#x}"
        assert (flags, kind) == (0, DISC), f"request {kind} with flags {flags}"
        rest = self.receive(24 if extended else 20)
        assert rest[8:] == bytes(len(rest) - 8), "P80: DISC has offset and length 0"
        self.expect_close()


def lists(*names, is_asked=False):
    """A script: lists these names. is_asked: describes none of them to the client, which asks for each."""
    def script(dialogue):
        dialogue.greet()
        dialogue.refuse_styles()
        dialogue.option(LIST)
        for name in names:
            dialogue.server(name)
        dialogue.reply(LIST, ACK)
        for _ in names if is_asked else ():
            dialogue.serve(INFO, POLICY)
        dialogue.farewell()
    return script


def refuses_list(kind):
    """A script: answers LIST with this error."""
    def script(dialogue):
        dialogue.greet()
        dialogue.refuse_styles()
        dialogue.serve(LIST, kind)
        dialogue.farewell()
    return script


class FakeServer:
    """Serves one script on a Unix socket in a directory of its own, for any number of clients.

    A listening socket of another kind may be given instead; it is closed in the end. After the with
    block, .failures holds what the scripts' assertions had to say.
    """

    def __init__(self, script, listener=None):
        self.script = script
        self.listener = listener
        self.failures = []
        self.threads = []
        self.connections = []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-test-")
        self.path = os.path.join(self.folder, "socket")
        if self.listener is None:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(self.path)
            self.listener.listen(8)
        self.acceptor = threading.Thread(target=self._accept)
        self.acceptor.start()
        return self

    def uri(self, export=""):
        return f"nbd+unix:///{export}?socket={self.path}"

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(conn,))
            self.connections.append(conn)
            self.threads.append(thread)
            thread.start()

    def _talk(self, conn):
        try:
            with conn:
                self.script(Dialogue(conn))
        except ClientGone:
            pass
        except Exception as err:  # reported by the test's main thread
            self.failures.append(f"{type(err).__name__}: {err}")

    def __exit__(self, *exception):
        # shutdown() wakes the accept() and recv() that close() would leave waiting.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.acceptor.join()
        for thread in self.threads:
            thread.join()
        shutil.rmtree(self.folder)
