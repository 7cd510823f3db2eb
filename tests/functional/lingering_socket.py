# SPDX-License-Identifier: Apache-2.0
"""A socket whose close() takes an hour."""
import contextlib
import socket
import struct


def make(peers):
    """So long it waits for its peer, which reads nothing, and is kept in peers."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock.connect(listener.getsockname())
    peers.append(listener.accept()[0])
    listener.close()
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(4096))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return sock
