#!/usr/bin/python3
"""libnbd's own change of keys: GnuTLS sends new ones after nearly 2^24 records of a direction, and a
small request is one record. That many requests and 1,000 more go over one connection.

Minutes, so it belongs to the soak suite.
"""

import ctypes
import os
import signal

from captive import Gmblock, main, pattern, require_libnbd
import tls_tool

REQUESTS = (1 << 24) + 1000
DEPTH = 64
# A slot reads two blocks in turn, so that what the last read left in its memory is never right.
BLOCKS = 2 * DEPTH
BLOCK_BYTES = 512
# 2,300 requests a second: only what hangs takes as long.
TIME_LIMIT_S = 7200
HANDSHAKE_LOG = 4


class Log:
    """What GnuTLS, which is libnbd's in this process, says about handshakes and keys."""

    def __init__(self):
        self.lines = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)
        self.function = kind(lambda _level, text: self.lines.append(text.decode().strip()))
        library = ctypes.CDLL("libgnutls.so.30")
        library.gnutls_global_set_log_function(self.function)
        library.gnutls_global_set_log_level(HANDSHAKE_LOG)

    def about(self, words):
        return [line for line in self.lines if words in line]


class Reader:
    """Keeps all slots busy until the last request is answered."""

    def __init__(self, nbd, handle):
        self.handle = handle
        self.blocks = [pattern(i * BLOCK_BYTES, BLOCK_BYTES) for i in range(BLOCKS)]
        self.buffers = [nbd.Buffer(BLOCK_BYTES) for _ in range(DEPTH)]
        self.reading = [None] * DEPTH  # the number of a block
        self.wrong = []  # a callback must not raise
        self.done = [self.make_done(slot) for slot in range(DEPTH)]

    def make_done(self, slot):
        def done(error):
            block = self.reading[slot]
            if error.value != 0 or self.buffers[slot].to_bytearray() != self.blocks[block]:
                self.wrong.append((block, error.value))
            self.reading[slot] = None
            return 1
        return done

    def wait(self, slot):
        while self.reading[slot] is not None:
            self.handle.poll(-1)
        assert not self.wrong, self.wrong

    def run(self, requests):
        self.handle.pwrite(b"".join(self.blocks), 0)
        for i in range(requests):
            slot = i % DEPTH
            self.wait(slot)
            self.reading[slot] = i % BLOCKS
            self.handle.aio_pread(self.buffers[slot], i % BLOCKS * BLOCK_BYTES, self.done[slot])
        for slot in range(DEPTH):
            self.wait(slot)


def test_libnbd_changes_its_keys(folder):
    nbd = require_libnbd()
    signal.alarm(TIME_LIMIT_S)
    psk = os.path.join(folder, "keys.psk")
    tls_tool.write_psk(psk, tls_tool.PSK)
    with Gmblock(folder, {"": "memory:1M"}, "--tls=require", "--tls-psk", psk) as server:
        log = Log()
        handle = nbd.NBD()
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_psk_file(psk)
        handle.set_tls_username("alice")
        handle.set_uri_allow_local_file(True)
        handle.connect_uri(server.uris[0])
        Reader(nbd, handle).run(REQUESTS)
        assert len(log.about("sending key update")) == 1, log.lines[-20:]
        handle.shutdown()


if __name__ == "__main__":
    main()
