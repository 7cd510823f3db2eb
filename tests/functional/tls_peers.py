# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 by GnuTLS and by OpenSSL, through their libraries: Python's ssl has no way to change keys.

Both classes stand on a connected socket and are used in its place (sendall, recv, close). They
believe whoever answers. folder, of certificates as tls_tool makes it, is needed by a server only.
"""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ssize_t, c_uint, c_void_p
import os
import socket
import struct
import time

RECORD_BYTES = 16384
HANDSHAKE, KEY_UPDATE = 22, 24
# Long enough that only a hang meets it.
TIMEOUT_S = 60


class Peer:
    """What both have in common: what is sent is cut into records, and keys change on the way.

    updates_received: how often the other side has changed its key."""

    def __init__(self, sock):
        sock.setblocking(True)
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", TIMEOUT_S, 0))
        self.sock = sock
        self.updates_received = 0
        self.updates_left = 0
        self.change_keys(0)

    def change_keys(self, count, every=1, ask=False, record_bytes=RECORD_BYTES):
        """From now on: a new key after each so many records sent, count times in all; with ask, the
        other side is to change its own as well. Our stack, for one, allows 8 in a second."""
        assert self.updates_left == 0, f"{self.updates_left} changes of keys have not been made"
        self.updates_left = count
        self.every = every
        self.ask = ask
        self.record_bytes = record_bytes
        self.records = 0

    def sendall(self, data):
        for at in range(0, len(data), self.record_bytes):
            self.send_record(data[at:at + self.record_bytes])
            self.records += 1
            if self.updates_left > 0 and self.records % self.every == 0:
                self.update_key(self.ask)
                self.updates_left -= 1

    def check(self, is_good, *what):
        if not is_good:
            raise OSError(f"{type(self).__name__}: {' '.join(map(str, what))}")

    def close(self):
        """Ends the stream of TLS, then the connection."""
        if self.sock is not None:
            self.end()
            self.sock.close()
            self.sock = None


class GnuTls(Peer):
    CLIENT, SERVER, NO_SIGNAL = 2, 1, 1 << 6
    AGAIN, INTERRUPTED = -28, -52
    CREDENTIALS_CERTIFICATE, PEM, SHUT_WRITE, TLS_1_3 = 1, 1, 1, 5
    ASK_PEER = 1
    HOOK_AFTER = 1
    HOOK = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint, c_uint, c_uint, c_void_p)

    library = ctypes.CDLL("libgnutls.so.30")
    library.gnutls_record_send.argtypes = library.gnutls_record_recv.argtypes = [
        c_void_p, c_char_p, c_size_t]
    library.gnutls_record_send.restype = library.gnutls_record_recv.restype = c_ssize_t

    def __init__(self, sock, folder=None):
        super().__init__(sock)
        self.session = c_void_p()
        self.credentials = c_void_p()
        self.hook = self.HOOK(self.note_update)
        call = self.call
        call("gnutls_init", byref(self.session),
             c_uint((self.SERVER if folder else self.CLIENT) | self.NO_SIGNAL))
        call("gnutls_certificate_allocate_credentials", byref(self.credentials))
        if folder:
            call("gnutls_certificate_set_x509_key_file", self.credentials,
                 *[os.path.join(folder, f"server-{part}.pem").encode() for part in ("cert", "key")],
                 self.PEM)
        call("gnutls_credentials_set", self.session, self.CREDENTIALS_CERTIFICATE, self.credentials)
        call("gnutls_set_default_priority", self.session)
        self.library.gnutls_handshake_set_hook_function(
            self.session, c_uint(KEY_UPDATE), self.HOOK_AFTER, self.hook)
        self.library.gnutls_transport_set_int2(self.session, sock.fileno(), sock.fileno())
        call("gnutls_handshake", self.session)
        assert self.library.gnutls_protocol_get_version(self.session) == self.TLS_1_3

    def note_update(self, _session, _kind, _when, is_incoming, _message):
        self.updates_received += is_incoming
        return 0

    def call(self, name, *arguments):
        """A function that may have to be called again, and whose negative results are errors."""
        end = time.monotonic() + TIMEOUT_S
        again = True
        while again:
            result = getattr(self.library, name)(*arguments)
            again = result in (self.AGAIN, self.INTERRUPTED) and time.monotonic() < end
        self.check(result >= 0, name, result)
        return result

    def send_record(self, data):
        sent = self.call("gnutls_record_send", self.session, data, len(data))
        self.check(sent == len(data), "sent", sent, "of", len(data))

    def recv(self, count):
        buffer = ctypes.create_string_buffer(count)
        got = self.call("gnutls_record_recv", self.session, buffer, count)
        return buffer.raw[:got]

    def update_key(self, ask):
        self.call("gnutls_session_key_update", self.session, self.ASK_PEER if ask else 0)

    def end(self):
        self.library.gnutls_bye(self.session, self.SHUT_WRITE)
        self.library.gnutls_deinit(self.session)
        self.library.gnutls_certificate_free_credentials(self.credentials)


class OpenSsl(Peer):
    PEM, TLS_1_3 = 1, 0x304
    NO_ANSWER, ASK_PEER = 0, 1
    ERROR_NONE, ERROR_ZERO_RETURN = 0, 6
    CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_int, c_int, POINTER(ctypes.c_ubyte), c_size_t, c_void_p,
                                c_void_p)

    library = ctypes.CDLL("libssl.so.3")
    for maker in ("TLS_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, maker).restype = c_void_p

    def __init__(self, sock, folder=None):
        super().__init__(sock)
        library = self.library
        context = c_void_p(library.SSL_CTX_new(c_void_p(library.TLS_method())))
        if folder:
            for name, file in (("certificate", "cert"), ("PrivateKey", "key")):
                path = os.path.join(folder, f"server-{file}.pem").encode()
                self.check(getattr(library, f"SSL_CTX_use_{name}_file")(context, path, self.PEM) == 1,
                           path)
        self.session = c_void_p(library.SSL_new(context))
        library.SSL_CTX_free(context)
        self.callback = self.CALLBACK(self.note_message)
        library.SSL_set_msg_callback(self.session, self.callback)
        library.SSL_set_fd(self.session, sock.fileno())
        self.call("SSL_accept" if folder else "SSL_connect")
        assert library.SSL_version(self.session) == self.TLS_1_3

    def note_message(self, is_outgoing, _version, kind, data, _count, _session, _argument):
        if not is_outgoing and kind == HANDSHAKE and data[0] == KEY_UPDATE:
            self.updates_received += 1

    def call(self, name, *arguments):
        """A function whose result is positive, or 0 at the end of the stream."""
        result = getattr(self.library, name)(self.session, *arguments)
        error = self.library.SSL_get_error(self.session, result)
        self.check(error in (self.ERROR_NONE, self.ERROR_ZERO_RETURN), name, error)
        return result

    def send_record(self, data):
        self.call("SSL_write", data, len(data))

    def recv(self, count):
        buffer = ctypes.create_string_buffer(count)
        got = self.call("SSL_read", buffer, count)
        return buffer.raw[:max(got, 0)]

    def update_key(self, ask):
        self.call("SSL_key_update", self.ASK_PEER if ask else self.NO_ANSWER)
        self.call("SSL_do_handshake")

    def end(self):
        self.library.SSL_shutdown(self.session)
        self.library.SSL_free(self.session)
