#!/usr/bin/python3
"""The client library on real networks that fail: resets, dead links, half-closed connections, a
server that is killed, stopped, or too slow to answer.

    client-faults.py GMBLOCK JOURNAL

Each case runs the program `journal` (journal.c) against a server in a network namespace of its own,
joined by a veth pair; both vanish with their processes. The case does something to the network or
the server when the program has got going, waits until the program has noticed and works again, and
lets it verify. Afterwards the image itself must hold at least what the journal says was durable.
Nothing is timed: waits end with what they wait for, or with the time limit of a hang.
"""
import os
import queue
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import threading
import unittest

GMBLOCK, JOURNAL = sys.argv[1:3] if len(sys.argv) >= 3 else ("", "")
HANG_SECONDS = 120
BLOCK_BYTES = 4096
IMAGE_BYTES = 256 * BLOCK_BYTES
SERVER, CLIENT, PORT = "10.77.0.1", "10.77.0.2", 10809
SKIP = 77


def run(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE, timeout=HANG_SECONDS)


class Lines:
    """The lines of a stream as they come."""

    def __init__(self, stream):
        self.lines = queue.Queue()
        self.seen = []
        self.thread = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.put(line.decode().rstrip("\n"))
        self.lines.put(None)

    def until(self, wanted):
        """The next line for which wanted(line) holds."""
        while True:
            line = self.lines.get(timeout=HANG_SECONDS)
            if line is None:
                raise AssertionError("the program ended: " + "; ".join(self.seen[-5:]))
            self.seen.append(line)
            if wanted(line):
                return line


class Proxy:
    """Relays connections until it is told to misbehave."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.wake_in, self.wake_out = socket.socketpair()
        self.selector.register(self.wake_in, selectors.EVENT_READ)
        self.peers = {}
        self.silent = set()
        self.calls = queue.Queue()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def call(self, function):
        """Runs function in the proxy's thread."""
        done = threading.Event()
        self.calls.put((function, done))
        self.wake_out.send(b"x")
        if not done.wait(HANG_SECONDS):
            raise AssertionError("the proxy hangs")

    def serve(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj is self.wake_in:
                    self.wake_in.recv(1)
                    function, done = self.calls.get()
                    if function is None:
                        self.close_all()
                        done.set()
                        return
                    function()
                    done.set()
                elif key.fileobj in self.peers:
                    self.relay(key.fileobj)

    def accept(self):
        near, _ = self.listener.accept()
        try:
            far = socket.create_connection(self.target, timeout=HANG_SECONDS)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peers[one] = other
            self.selector.register(one, selectors.EVENT_READ)

    def forget(self, sock):
        if sock in self.peers:
            del self.peers[sock]
            if sock not in self.silent:
                self.selector.unregister(sock)
            self.silent.discard(sock)
            sock.close()

    def relay(self, sock):
        other = self.peers[sock]
        try:
            data = sock.recv(65536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self.forget(sock)
        self.forget(other)

    def reset_all(self):
        for sock in list(self.peers):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for sock in list(self.peers):
            self.forget(sock)

    def swallow_all(self):
        """What is connected now goes on existing and never says a word again."""
        for sock in self.peers:
            if sock not in self.silent:
                self.selector.unregister(sock)
                self.silent.add(sock)

    def deliver_all(self):
        """What was swallowed comes after all."""
        for sock in list(self.silent):
            self.silent.discard(sock)
            self.selector.register(sock, selectors.EVENT_READ)

    def finish_all(self):
        """The server seems to say goodbye, and still listens."""
        for sock, other in self.peers.items():
            if sock.getpeername()[0] == "127.0.0.1":
                sock.shutdown(socket.SHUT_WR)
                self.selector.unregister(other)
                self.silent.add(other)

    def close_all(self):
        for sock in list(self.peers):
            self.forget(sock)
        self.selector.close()
        for sock in (self.listener, self.wake_in, self.wake_out):
            sock.close()

    def stop(self):
        self.call(None)
        self.thread.join(HANG_SECONDS)


class Faults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gmblock-faults-")
        self.addCleanup(self.folder.cleanup)
        self.image = os.path.join(self.folder.name, "image")
        self.journal = os.path.join(self.folder.name, "journal")
        with open(self.image, "wb") as image:
            image.truncate(IMAGE_BYTES)
        # A process that does nothing but keep the server's namespace.
        self.keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready; read line"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.end_keeper)
        self.assertEqual(self.keeper.stdout.readline(), b"ready\n")
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns",
            str(self.keeper.pid))
        self.addCleanup(run, "ip", "link", "del", "near")
        run("ip", "addr", "add", CLIENT + "/24", "dev", "near")
        run("ip", "link", "set", "near", "up")
        for command in (("addr", "add", SERVER + "/24", "dev", "far"),
                        ("link", "set", "far", "up"), ("link", "set", "lo", "up")):
            self.far("ip", *command)
        self.server = None
        self.start_server()

    def end_keeper(self):
        self.keeper.stdin.close()
        self.keeper.wait(HANG_SECONDS)
        self.keeper.stdout.close()

    def far(self, *command):
        run("nsenter", "-t", str(self.keeper.pid), "-n", *command)

    def start_server(self):
        """On a busy machine the port of a killed server can stay open longer than a start waits for it."""
        began = time.monotonic()
        line = b""
        while not line and time.monotonic() < began + HANG_SECONDS:
            self.server = subprocess.Popen(
                ["nsenter", "-t", str(self.keeper.pid), "-n", GMBLOCK, "serve", self.image,
                 "--listen", f"nbd://{SERVER}:{PORT}"], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL)
            self.addCleanup(self.kill_server, self.server)
            line = self.server.stdout.readline()
        self.assertIn(b"nbd://", line)

    def kill_server(self, server):
        if server.poll() is None:
            server.kill()
            server.send_signal(signal.SIGCONT)
        server.wait(HANG_SECONDS)
        server.stdout.close()

    def start(self, connections=1, address=f"{SERVER}:{PORT}"):
        self.program = subprocess.Popen([JOURNAL, f"nbd://{address}", self.journal,
                                         str(connections)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.output = Lines(self.program.stdout)
        self.addCleanup(self.end_program)
        self.goes_on()

    def end_program(self):
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait(HANG_SECONDS)
        self.output.thread.join(HANG_SECONDS)
        for stream in (self.program.stdin, self.program.stdout, self.program.stderr):
            stream.close()

    def start_through_proxy(self, connections=1):
        self.proxy = Proxy((SERVER, PORT))
        self.addCleanup(self.proxy.stop)
        self.start(connections, f"127.0.0.1:{self.proxy.port}")

    def goes_on(self):
        """Requests are being done, some hundreds of them."""
        for _ in range(4):
            self.output.until(lambda line: line.startswith("acked"))

    def notices(self):
        self.output.until(lambda line: line.startswith("lost"))

    def comes_back(self):
        self.output.until(lambda line: line.startswith("reconnected"))
        self.goes_on()

    def durable_versions(self):
        durable = {}
        with open(self.journal, encoding="ascii") as journal:
            for line in journal:
                if line.endswith("\n"):
                    block, version = line.split()
                    durable[int(block)] = int(version)
        return durable

    def check_image(self):
        with open(self.image, "rb") as image:
            data = image.read()
        self.assertEqual(len(data), IMAGE_BYTES)
        for block, version in self.durable_versions().items():
            word, = struct.unpack_from("<Q", data, block * BLOCK_BYTES)
            self.assertGreaterEqual(word ^ block << 48, version, f"block {block}")

    def finish(self):
        self.program.stdin.write(b"stop\n")
        self.program.stdin.flush()
        errors = self.program.stderr.read().decode()
        self.assertEqual((self.program.wait(HANG_SECONDS), errors), (0, ""))
        self.output.until(lambda line: line.startswith("verified"))
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(HANG_SECONDS), 0)
        self.check_image()
        self.assertGreater(len(self.durable_versions()), 0)

    def test_reset(self):
        self.start_through_proxy()
        for _ in range(5):
            self.proxy.call(self.proxy.reset_all)
            self.notices()
            self.comes_back()
        self.finish()

    def test_reset_of_many_connections(self):
        self.start_through_proxy(4)
        for _ in range(3):
            self.proxy.call(self.proxy.reset_all)
            self.notices()
            self.goes_on()
        self.finish()

    def test_half_close(self):
        self.start_through_proxy()
        self.proxy.call(self.proxy.finish_all)
        self.notices()
        self.comes_back()
        self.finish()

    def test_swallowed(self):
        self.start_through_proxy()
        self.proxy.call(self.proxy.swallow_all)
        self.notices()
        self.comes_back()
        self.finish()

    def test_swallowed_and_delivered_late(self):
        """The old requests reach the server when their blocks have been written anew."""
        self.start_through_proxy(2)
        for _ in range(3):
            self.proxy.call(self.proxy.swallow_all)
            self.notices()
            self.goes_on()
            self.proxy.call(self.proxy.deliver_all)
            self.goes_on()
        self.finish()

    def test_link_down_and_up(self):
        self.start()
        for _ in range(2):
            run("ip", "link", "set", "near", "down")
            self.notices()
            run("ip", "link", "set", "near", "up")
            self.comes_back()
        self.finish()

    def test_link_down_at_the_server(self):
        self.start(3)
        self.far("ip", "link", "set", "far", "down")
        self.notices()
        self.far("ip", "link", "set", "far", "up")
        self.comes_back()
        self.finish()

    def test_answers_get_lost(self):
        """One direction only: requests arrive, answers do not."""
        self.start()
        self.far("ip", "route", "add", "blackhole", CLIENT + "/32")
        self.notices()
        self.far("ip", "route", "del", "blackhole", CLIENT + "/32")
        self.comes_back()
        self.finish()

    def test_server_killed(self):
        self.start(2)
        for _ in range(3):
            self.server.kill()
            self.server.wait(HANG_SECONDS)
            self.check_image()
            self.notices()
            self.start_server()
            self.comes_back()
        self.finish()

    def test_server_stopped_and_started(self):
        self.start(2)
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(HANG_SECONDS), 0)
        self.notices()
        self.start_server()
        self.comes_back()
        self.finish()

    def test_server_frozen(self):
        """Longer than a request may take: its old connections are full of requests by then."""
        self.start(2)
        for _ in range(3):
            self.server.send_signal(signal.SIGSTOP)
            self.notices()
            self.server.send_signal(signal.SIGCONT)
            self.goes_on()
        self.finish()


def missing():
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "nsenter"):
        if subprocess.run(["which", program], stdout=subprocess.DEVNULL, check=False).returncode:
            return f"{program} is not installed"
    probe = subprocess.run(["ip", "link", "add", "probe", "type", "veth", "peer", "name", "eborp"],
                           stderr=subprocess.PIPE, check=False)
    if probe.returncode != 0:
        return "no veth pair: " + probe.stderr.decode().strip()
    run("ip", "link", "del", "probe")
    return None


def main():
    if os.geteuid() == 0 and "FAULTS_NAMESPACE" not in os.environ:
        # A namespace of our own: nothing here can be seen or left behind outside.
        if subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0:
            os.environ["FAULTS_NAMESPACE"] = "1"
            os.execvp("unshare", ["unshare", "-n", sys.executable] + sys.argv)
        print("no network namespace may be made here")
        sys.exit(SKIP)
    reason = missing()
    if reason is not None:
        print(reason)
        sys.exit(SKIP)
    run("ip", "link", "set", "lo", "up")
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:], verbosity=2)


if __name__ == "__main__":
    main()
