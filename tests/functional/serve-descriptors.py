#!/usr/bin/python3
"""Open files that are sent along over Unix sockets hold nobody up: a server's other clients, or a client.

    serve-descriptors.py GMBLOCK [NO_PASSRIGHTS] [unittest argument]...

NO_PASSRIGHTS: what is preloaded into programs, so that they find no SO_PASSRIGHTS, as before Linux 6.16.
"""
import array
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

import lingering_socket
import nbdmini
import support

NO_PASSRIGHTS = os.path.realpath(sys.argv.pop(2)) if sys.argv[2:] and sys.argv[2].endswith(".so") else None
SO_PASSRIGHTS = 83
# Users of whom no other test has a process: descriptors in flight count for the user.
FLOODER, BYSTANDER = 64990, 64991
FLOODS, MESSAGES, FILES = 40, 16, 253
OPEN_FILES = 2048  # of the server: fewer than the flood
ROOM = 512  # of one user (DISPOSE_OF_OWNER_MAX); a message may exceed it
SLOW = 3  # connections whose files take all of it, and the two workers of one user
EARLY, LATE = 100, 100  # connections before and after there is no more room


def give(sock, data, peers, more=(), flags=0):
    """Sends a socket that lingers along, if it can be sent, and keeps none. Whether it was sent."""
    slow = lingering_socket.make(peers)
    files = array.array("i", [slow.fileno(), *more])
    was_sent = True
    try:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], flags)
    except OSError:  # SO_PASSRIGHTS, no room, or the connection has ended
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        was_sent = False
    slow.close()
    return was_sent


def give_when_accepted(sock, files):
    """Sends files along as soon as the server permits it. Whether it did."""
    end = time.monotonic() + support.WAIT_SECONDS
    while time.monotonic() < end:
        try:
            socket.send_fds(sock, [b"x"], files)
            return True
        except PermissionError:  # SO_PASSRIGHTS: not accepted yet, or rejected and about to be closed
            time.sleep(0.001)
        except OSError:
            return False
    raise TimeoutError


def are_refused():
    """Whether servers refuse files."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
        except OSError:
            return False
    return NO_PASSRIGHTS is None


def program_environment():
    return dict(os.environ, LD_PRELOAD=NO_PASSRIGHTS) if NO_PASSRIGHTS else dict(os.environ)


def become_another_user():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # so many may be in flight
    os.setgid(FLOODER)
    os.setuid(FLOODER)


def connect(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    sock.setblocking(False)
    return sock


def flood(path):
    """Another user, who says so when everything was sent, and stays."""
    become_another_user()
    peers, senders = [], []
    null = os.open("/dev/null", os.O_RDONLY)
    for _ in range(FLOODS):
        sock = connect(path)
        senders.append(sock)
        give_when_accepted(sock, [null])
        for _ in range(MESSAGES):
            give(sock, b"x", peers, (FILES - 1) * [null])
    print("sent", flush=True)
    sys.stdin.read()


def flood_with_connections(path):
    """Another user, who leaves files in its connections. Says when the server has accepted those and has
    to stop, and when it has to go on; how many could carry files; how many of later ones; and stays."""
    become_another_user()
    peers = []
    slow = [connect(path) for _ in range(SLOW)]
    early = [connect(path) for _ in range(EARLY)]
    with connect(path) as sock:
        give_when_accepted(sock, [sys.stderr.fileno()])
    print("stop", flush=True)
    sys.stdin.readline()
    for sock in slow:
        # SO_LINGER is switched off in a socket that is received, but not in one within another.
        outer, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        give(inner, b"x", peers)
        inner.close()
        socket.send_fds(sock, [b"x"], FILES * [outer.fileno()])
        outer.close()
    print("go on", flush=True)
    count, is_taken = 1 + SLOW + EARLY, True
    while is_taken:
        with connect(path) as sock:
            is_taken = give_when_accepted(sock, [sys.stderr.fileno()])
            count += is_taken
    for sock in early:
        with sock:
            give_when_accepted(sock, [sys.stderr.fileno()])
    print(count, flush=True)
    late = 0
    for _ in range(LATE):
        with connect(path) as sock:
            late += give_when_accepted(sock, [sys.stderr.fileno()])
    print(late, flush=True)
    sys.stdin.read()


class Descriptors(support.Case):
    def files_of(self, server):
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    @unittest.skipIf(os.getuid() != 0, "another user is needed")
    def test_a_flood_of_files(self):
        for scheme in ("gmb+unix", "push+unix"):
            os.chmod(self.folder, 0o755)
            server = self.start(
                "memory:1M", "--listen", f"{scheme}:///?socket={self.path(scheme)}",
                "--listen", f"gmb+unix:///?socket={self.path('own-' + scheme)}",
                "--listen", self.socket_uri("nbd-" + scheme), "--threads", "1", uri_count=3,
                env=program_environment(),
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                      (OPEN_FILES, OPEN_FILES)))
            os.chmod(self.path(scheme), 0o777)
            before = self.files_of(server)
            with subprocess.Popen([sys.executable, __file__, "--flood", self.path(scheme)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
                try:
                    self.assertEqual(stranger.stdout.readline(), b"sent\n")
                    for uri in server.uris[1:]:
                        status, _, errors = self.run_gmblock("info", uri)
                        self.assertEqual((status, errors), (0, ""))
                    # What was sent is closed while its sender still has the other ends.
                    self.wait_for(lambda: self.files_of(server) < before + 100)
                finally:
                    stranger.stdin.close()
            code, errors = server.stop()
            self.assertEqual(code, 0)
            self.assertNotIn("cannot accept connections", errors)

    @unittest.skipIf(os.getuid() != 0, "other users are needed")
    @unittest.skipUnless(are_refused(), "before Linux 6.16 one user can keep all others out")
    def test_a_flood_of_connections(self):
        """A user's connections end with files in them. It gets no more, and others do."""
        for scheme in ("gmb+unix", "push+unix"):
            os.chmod(self.folder, 0o755)
            paths = [self.path("ends-" + scheme), self.path("gmb-" + scheme)]
            server = self.start(
                "memory:1M", "--access", "rights=rw", "--listen", f"{scheme}:///?socket={paths[0]}",
                "--listen", f"gmb+unix:///?socket={paths[1]}", "--threads", "1",
                "--handshake-timeout", "60s", uri_count=2, env=program_environment(),
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                      (OPEN_FILES, OPEN_FILES)))
            for path in paths:
                os.chmod(path, 0o777)
            before = self.files_of(server)
            with subprocess.Popen(
                    [sys.executable, __file__, "--flood-with-connections", paths[0]],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
                try:
                    self.assertEqual(stranger.stdout.readline(), b"stop\n")
                    server.process.send_signal(signal.SIGSTOP)
                    os.waitpid(server.process.pid, os.WUNTRACED)
                    stranger.stdin.write(b"\n")
                    stranger.stdin.flush()
                    self.assertEqual(stranger.stdout.readline(), b"go on\n")
                    server.process.send_signal(signal.SIGCONT)
                    count = int(stranger.stdout.readline())
                    late = int(stranger.stdout.readline())
                    self.assertEqual(late, 0)
                    # The files of two messages are being closed, those of a third one wait.
                    self.wait_for(lambda: self.files_of(server) >= before + FILES + EARLY)
                    for uri in server.uris if scheme == "gmb+unix" else server.uris[1:]:
                        for user in (0, BYSTANDER):
                            status, _, errors = self.run_gmblock(
                                "info", uri, user=user, group=user, extra_groups=[])
                            self.assertEqual((status, errors), (0, ""))
                    self.assertLess(self.files_of(server), before + ROOM + FILES + count)
                finally:
                    server.process.send_signal(signal.SIGCONT)
                    stranger.stdin.close()
            self.wait_for(lambda: self.files_of(server) < before + 100)
            code, errors = server.stop()
            self.assertEqual(code, 0)
            self.assertNotIn("accepting no connections", errors)

    def check_nobody_waits(self, path, uri, control, flags):
        """A file that takes an hour to close is sent, and a client of the same reactor is served."""
        peers = []
        with nbdmini.open_export(uri) as honest, socket.socket(socket.AF_UNIX) as sender:
            sender.connect(path)
            self.assertEqual(give(sender, b"x", peers, flags=flags), not are_refused())
            with contextlib.suppress(OSError):
                sender.sendall(bytes(64))
            self.assertEqual(honest.read(0, 512), bytes(512))
        status, output, _ = self.run_gmblock("stats", "--json", control)
        self.assertEqual(status, 0)
        self.assertIn("counters", json.loads(output))
        for peer in peers:
            peer.close()

    def test_files_are_refused_or_received(self):
        control, metrics = self.path("control"), self.path("metrics")
        server = self.start("memory:1M", "--listen", self.socket_uri(), "--control", control,
                            "--metrics", f"http+unix:///?socket={metrics}", "--threads", "1",
                            env=program_environment())
        for path in (self.path("s"), control, metrics):
            for flags in (0, socket.MSG_OOB):
                with self.subTest(path=path, flags=flags):
                    self.check_nobody_waits(path, server.uri, control, flags)
        self.assertEqual(server.stop()[0], 0)

    def test_a_server_sends_files(self):
        peers, sent = [], []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path("fake"))
            listener.listen()

            def serve():
                with listener.accept()[0] as client:
                    sent.append(give(client, b"N", peers))

            thread = threading.Thread(target=serve)
            thread.start()
            # Only what waits for an hour fails here.
            done = subprocess.run([support.program(), "info", "nbd+unix:///?socket=" + self.path("fake")],
                                  stderr=subprocess.PIPE, check=False, timeout=support.WAIT_SECONDS,
                                  env=program_environment())
            thread.join()
        self.assertEqual((done.returncode, sent), (1, [not are_refused()]))
        for peer in peers:
            peer.close()

    def test_files_of_who_connected_before(self):
        """To a socket of the service manager, which refuses nothing."""
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path("early"))
        listener.listen(8)
        peers, senders = [], []
        for count in range(4):  # as the first bytes, behind some, never received, and out of band
            sender = socket.socket(socket.AF_UNIX)
            self.addCleanup(sender.close)
            sender.connect(self.path("early"))
            if count == 1:
                sender.sendall(struct.pack(">I", 3))
            if count < 3:
                give(sender, bytes(4), peers)
            else:  # a receive skips it, which would close the file
                give(sender, b"x", peers, flags=socket.MSG_OOB)
                sender.sendall(bytes(64))
            if count == 2:
                sender.shutdown(socket.SHUT_RDWR)
            senders.append(sender)
        control = self.path("control")
        process = subprocess.Popen(
            [sys.executable, "-c",
             "import os, sys; os.dup2(int(sys.argv[1]), 3);"
             "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
             "os.execv(sys.argv[2], sys.argv[2:])",
             str(listener.fileno()), support.program(), "serve", "memory:1M", "--threads", "1",
             "--control", control],
            pass_fds=[listener.fileno(), 3], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=program_environment())
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        uri = process.stdout.readline().rstrip("\n")
        with nbdmini.open_export(uri) as honest:
            for sender in (*senders[:2], senders[3]):
                sender.setblocking(True)
                with contextlib.suppress(ConnectionError):
                    while sender.recv(4096):
                        pass
            self.assertEqual(honest.read(0, 512), bytes(512))
        process.terminate()
        self.assertEqual(process.wait(), 0)
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    if sys.argv[1] == "--flood":
        flood(sys.argv[2])
    elif sys.argv[1] == "--flood-with-connections":
        flood_with_connections(sys.argv[2])
    else:
        support.main()
