"""The private network: an Ethernet switch that guests plug into over a Unix socket.

QEMU's stream socket sends each frame behind its length, four bytes, most significant first. The
switch learns addresses like any other. A link can be taken down: frames to and from it vanish, and
nobody is told, as with a broken cable further away. Runs in the loop's thread.
"""
import socket
import struct

FRAME_MAX = 1 << 17
QUEUE_MAX = 8 << 20
LENGTH = struct.Struct(">I")
GROUP = 0x01


class Port:
    """One guest's place in the switch."""

    def __init__(self, switch, name, listener):
        self.switch = switch
        self.name = name
        self.listener = listener
        self.socket = None
        self.up = True
        self.received = bytearray()
        self.queue = bytearray()
        self.frames = 0
        self.dropped = 0

    def accept(self):
        accepted, _ = self.listener.accept()
        accepted.setblocking(False)
        self.unplug()
        self.socket = accepted
        self.switch.loop.watch(accepted, self.ready)

    def unplug(self):
        if self.socket:
            self.switch.loop.forget(self.socket)
            self.socket.close()
            self.socket = None
        self.received.clear()
        self.queue.clear()

    def ready(self):
        try:
            if self.queue:
                self._send_queue()
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.unplug()
            return
        self.received += data
        self._take_frames()

    def _send_queue(self):
        try:
            del self.queue[:self.socket.send(self.queue)]
        except BlockingIOError:
            return
        if not self.queue:
            self.switch.loop.watch(self.socket, self.ready)

    def _take_frames(self):
        used = 0
        while len(self.received) - used >= LENGTH.size:
            length, = LENGTH.unpack_from(self.received, used)
            if length > FRAME_MAX:
                self.unplug()
                return
            end = used + LENGTH.size + length
            if len(self.received) < end:
                break
            self.switch.forward(self, bytes(self.received[used + LENGTH.size:end]))
            used = end
        del self.received[:used]

    def deliver(self, frame):
        if not self.socket or not self.up or len(self.queue) > QUEUE_MAX:
            self.dropped += 1
            return
        self.frames += 1
        data = LENGTH.pack(len(frame)) + frame
        if not self.queue:
            try:
                data = data[self.socket.send(data):]
            except BlockingIOError:
                pass
            except OSError:
                return  # its ready() sees the end
        if data:
            self.queue += data
            self.switch.loop.watch(self.socket, self.ready, write=True)


class Switch:
    def __init__(self, loop):
        self.loop = loop
        self.ports = {}
        self._where = {}

    def add(self, name, path):
        """A port for the guest of that name, which connects to the socket at path."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        listener.setblocking(False)
        port = Port(self, name, listener)
        self.ports[name] = port
        self.loop.watch(listener, port.accept)

    def forward(self, source, frame):
        if not source.up or len(frame) < 14:
            return
        self._where[frame[6:12]] = source
        target = None if frame[0] & GROUP else self._where.get(frame[:6])
        if target:
            if target is not source:
                target.deliver(frame)
            return
        for port in self.ports.values():
            if port is not source:
                port.deliver(frame)

    def close(self):
        for port in self.ports.values():
            port.unplug()
            self.loop.forget(port.listener)
            port.listener.close()
