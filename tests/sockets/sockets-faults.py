#!/usr/bin/python3
"""libclan-sockets when something goes wrong: either side is killed at any time, the name of the
meeting is taken, an impostor has it, the other side writes what it likes into its memory.

    sockets-faults.py CLAN_RUN

SOCKETS_LONG=1: kills after every call, and more of the last.
"""
import contextlib
import os
import socket
import subprocess
import sys
import unittest

import sockets_tool
from sockets_tool import ports

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
from harness import links, rig  # noqa: E402 (the path has to be set first)

PYTHON = sys.executable
LONG = os.environ.get("SOCKETS_LONG") == "1"
KILLS = range(1, 16) if LONG else (2, 4, 9)  # before, while and after they meet
SEEDS = 40 if LONG else 2
ORDINARY_USER = 12345
MUCH = 2000000000 if LONG else 100000000

# Echoes until the end; prints what it was. argv: port, calls after which it kills itself (0: never)
ECHO = """
import os, signal, socket, sys
port, calls = int(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
conn, _ = listener.accept()
conn.settimeout(60)
count = 0
try:
    while True:
        data = conn.recv(65536)
        if not data:
            print("end")
            break
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        conn.sendall(data)
except (ConnectionResetError, BrokenPipeError):
    print("reset")
"""

TALK = """
import os, signal, socket, sys
port, rounds, calls = map(int, sys.argv[1:4])
conn = socket.create_connection(("127.0.0.1", port))
conn.settimeout(60)
try:
    for i in range(rounds):
        data = b"%06d" % i
        conn.sendall(data)
        if i + 1 == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        got = b""
        while len(got) < 6:
            part = conn.recv(6 - len(got))
            if not part:
                print("end")
                sys.exit(0)
            got += part
        assert got == data, (i, got)
    print("done")
except (ConnectionResetError, BrokenPipeError):
    print("reset")
"""

# The same, with a thread that scribbles over every segment that it shares with its peer.
SCRIBBLE = """
import ctypes, random, sys, threading
chance = random.Random(int(sys.argv[4]))
sys.setswitchinterval(1e-5)
def segments():
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:clan-" in line and " rw-s " in line and "clan-sockets" not in line:
                start, end = (int(x, 16) for x in line.split()[0].split("-"))
                yield start, end - start
def scribble():
    while True:
        for start, length in segments():
            for _ in range(20):
                at = chance.choice([chance.randrange(0x80, 0x400), chance.randrange(length - 8)])
                ctypes.memmove(start + at, chance.randbytes(8), 8)
threading.Thread(target=scribble, daemon=True).start()
"""


# Echoes 40 messages of 6 bytes, then reads half of one of 12; argv: port.
HALF = """
import errno, os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
conn, _ = listener.accept()
def echo():
    for _ in range(40):
        conn.sendall(conn.recv(6, socket.MSG_WAITALL))
def half():
    print(conn.recv(6, socket.MSG_WAITALL), flush=True)
echo()
half()
"""

# The rest stays with the program: the next one gets no connection.
EXEC_UNREAD = HALF + """
os.set_inheritable(conn.fileno(), True)
try:
    os.execv("/nonexistent", ["none"])
except FileNotFoundError:
    half()
conn.sendall(b"next")
echo()
half()
try:
    socket.send_fds(socket.socketpair()[0], [b"x"], [conn.fileno()])
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
os.execv(sys.executable, [sys.executable, "-c", '''
import errno, os, sys
try:
    print(os.read(int(sys.argv[1]), 100))
except OSError as error:
    print(errno.errorcode[error.errno])
''', str(conn.fileno())])
"""

PASS_UNREAD = HALF + """
here, there = socket.socketpair()
try:
    socket.send_fds(here, [b"x"], [conn.fileno()])
    print("passed", flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
half()
conn.sendall(b"next")
echo()
socket.send_fds(here, [b"x"], [conn.fileno()])
_, fds, _, _ = socket.recv_fds(there, 1, 1)
print(os.read(fds[0], 12))
"""

# Has two connections, one of them to a server that is stopped. While that one is given back to TCP, which
# waits for the server, another thread uses the other.
BESIDE = """
import ctypes, os, signal, socket, sys, threading
ports, stopped = list(map(int, sys.argv[1:3])), int(sys.argv[3])
conns = [socket.create_connection(("127.0.0.1", port)) for port in ports]
def talk(conn):
    conn.sendall(b"abcdef")
    assert conn.recv(6, socket.MSG_WAITALL) == b"abcdef"
for _ in range(40):
    for conn in conns:
        talk(conn)
os.kill(stopped, signal.SIGSTOP)
while open(f"/proc/{stopped}/stat").read().rsplit(")")[1].split()[0] != "T":
    pass
begins, ended = threading.Event(), threading.Event()
def give_back():
    libc = ctypes.CDLL(None)
    begins.set()
    libc.dup2(conns[0].fileno(), 0)
    ended.set()
threading.Thread(target=give_back).start()
begins.wait()
ended.wait(0.05)
count = 0
while not ended.is_set():
    talk(conns[1])
    count += 1
os.kill(stopped, signal.SIGCONT)
print(count)
"""


# A stream in one direction. The writer is far ahead when the reader begins, and the reader is not when the writer goes on.
AHEAD = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
def write(count):
    for _ in range(count):
        near.sendall(b"x")
def read(count):
    for _ in range(count):
        assert far.recv(1) == b"x"
write(1000)
read(200)
write(1000)
read(1800)
for _ in range(100):
    write(10)
    read(10)
"""

# Prints how much the first write of the last message took: nobody reads at that time.
BULK = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
out = socket.create_connection(listener.getsockname())
to, _ = listener.accept()
out.setblocking(False)
to.setblocking(False)
data, room = memoryview(bytes(range(1, 256)) * 8226), bytearray(255 * 8226)

def moved(call, part):
    try:
        return call(part)
    except BlockingIOError:
        return 0

for _ in range(30):
    sent = received = first = 0
    while received < len(data):
        if sent < len(data):
            sent += moved(out.send, data[sent:])
        first = first or sent
        received += moved(to.recv_into, memoryview(room)[received:])
    assert room == data, "wrong bytes"
    room[:] = bytes(len(room))
print(first)
"""

# Then the ring is filled, looked into, and filled again; a child has to read all of it.
BULK_FORK = BULK + """
import os
sent = moved(out.send, data)
to.recv(1, socket.MSG_PEEK)
sent += moved(out.send, data[sent:])
sent += moved(out.send, data[sent:])
if os.fork() == 0:
    received = 0
    while received < sent:
        received += moved(to.recv_into, memoryview(room)[received:])
    assert room[:sent] == data[:sent], "wrong bytes"
    os._exit(0)
print(sent, os.wait()[1])
"""


# One thread sleeps in an edge-triggered set, another reads less than it asks for; argv: port.
EDGES = """
import select, socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
conn, _ = listener.accept()
for _ in range(40):
    conn.sendall(conn.recv(1))
edges = select.epoll()
edges.register(conn, select.EPOLLIN | select.EPOLLET)
while edges.poll(0):
    pass
print("first", flush=True)
edges.poll()
sleeper = threading.Thread(target=edges.poll)
sleeper.start()
sleeper.join(0.2)
print(conn.recv(8), flush=True)
sleeper.join()
print(conn.recv(8))
"""

# Both ends of a connection, before and after a fork that fails.
FORK_FAILS = """
import os, resource, socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
def talk():
    for _ in range(60):
        client.sendall(b"abcdef")
        server.sendall(server.recv(6))
        assert client.recv(6) == b"abcdef"
talk()
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    os.fork()
except BlockingIOError:
    print("failed")
talk()
"""

# A child in a PID namespace of its own, where its parent has no number, echoes; then the parent; argv: port.
OTHER_NAMESPACE = """
import ctypes, os, select, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWPID = 0x20000000
if libc.unshare(CLONE_NEWPID) != 0:
    print("not permitted", flush=True)
    sys.exit()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
conn, _ = listener.accept()
def echo():
    for _ in range(60):
        conn.sendall(conn.recv(6))
echo()
select.select([conn], [], []) # both processes have it, and one reads it
child = os.fork()
if child == 0:
    echo()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
echo()
"""

# Echoes, waits, and hands the connection to another program, which counts what comes; argv: port.
HANDS_OVER = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
conn, _ = listener.accept()
for _ in range(40):
    conn.sendall(conn.recv(6, socket.MSG_WAITALL))
sys.stdin.readline()
if os.fork() == 0:
    os.set_inheritable(conn.fileno(), True)
    os.execv(sys.executable, [sys.executable, "-c", '''
import os, sys
print("runs", flush=True)
count = 0
while got := os.read(int(sys.argv[1]), 65536):
    count += len(got)
print(count, flush=True)
''', str(conn.fileno())])
sys.stdin.readline()
conn.close()
os.wait()
"""

# The parent reads what both have after the fork; the child has what comes then.
PARENT_READS = """
import os, select, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
peer = socket.create_connection(listener.getsockname())
conn, _ = listener.accept()
for _ in range(60):
    peer.sendall(b"abcdef")
    conn.sendall(conn.recv(6))
    assert peer.recv(6) == b"abcdef"
peer.sendall(b"abcdef")
select.select([conn], [], [])
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    peer.close()
    os.close(write_end)
    os.read(read_end, 1)
    if sys.argv[1] == "poll":
        waiter = select.poll()
        waiter.register(conn, select.POLLIN)
        assert waiter.poll() == [(conn.fileno(), select.POLLIN)]
    elif sys.argv[1] == "epoll":
        waiter = select.epoll()
        waiter.register(conn, select.EPOLLIN)
        assert waiter.poll() == [(conn.fileno(), select.EPOLLIN)]
    elif sys.argv[1] == "exec":
        conn.set_inheritable(True)
        os.execv(sys.executable, [sys.executable, "-c", "import socket; conn = socket.socket(fileno=%d); "
            "assert conn.recv(6) == b'123456'; conn.sendall(b'got it')" % conn.fileno()])
    assert conn.recv(6) == b"123456"
    conn.sendall(b"got it")
    sys.exit()
assert conn.recv(6) == b"abcdef"
if sys.argv[1] == "exec":
    conn.close()
os.write(write_end, b"x")
while sys.argv[1] != "exec" and (select.select([read_end], [], [], 0)[0] or
                                 open("/proc/%d/stat" % child).read().rpartition(")")[2].split()[0] != "S"):
    os.sched_yield() # until it waits
peer.sendall(b"123456")
assert peer.recv(6) == b"got it"
assert os.waitpid(child, 0)[1] == 0
print("done")
"""

# A child that is forked while a thread runs another program has connections of its own.
FORKS_BESIDE_A_PROGRAM = """
import os, socket, sys, threading
ends, starts = os.pipe(), os.pipe()
os.set_inheritable(ends[0], True)
os.set_inheritable(starts[1], True)
thread = threading.Thread(target=os.system, args=(f"printf x >&{starts[1]}; read line <&{ends[0]}",))
thread.start()
os.read(starts[0], 1)
child = os.fork()
if child == 0:
    listener = socket.create_server(("127.0.0.1", 0))
    conn = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    for end in conn, peer:
        end.set_inheritable(True)
    for _ in range(40):
        conn.sendall(b"abcdef")
        peer.sendall(peer.recv(6, socket.MSG_WAITALL))
        assert conn.recv(6, socket.MSG_WAITALL) == b"abcdef"
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
os.write(ends[1], b"end\\n")
thread.join()
"""


class Faults(sockets_tool.Case):
    def test_fork_beside_a_program(self):
        done = subprocess.run(self.carried("connect *:*; listen *:*; after 3", PYTHON, "-c",
                                           FORKS_BESIDE_A_PROGRAM),
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        self.assertEqual(self.stats()["carried"], 2, self.stats())  # both ends

    def test_bytes_of_both_that_the_parent_reads(self):
        for waits in "recv", "poll", "epoll", "exec":
            with self.subTest(waits=waits):
                done = subprocess.run(self.carried("connect *:*; listen *:*; after 3", PYTHON, "-c", PARENT_READS, waits),
                                      capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.stdout, done.returncode), ("done\n", 0), done.stderr)

    def test_fork_that_fails(self):
        """There is no child that has the connection: it is carried again."""
        os.chmod(self.folder, 0o777)
        user = {"user": ORDINARY_USER} if os.geteuid() == 0 else {}
        done = subprocess.run(self.carried("connect *:*; listen *:*; after 3", PYTHON, "-c",
                                           FORK_FAILS),
                              capture_output=True, text=True, timeout=60, check=False, **user)
        self.assertEqual((done.stdout, done.returncode), ("failed\n", 0), done.stderr)
        self.assertEqual(self.stats()["carried"], 4, self.stats())  # two ends, twice

    def test_child_in_another_pid_namespace(self):
        """It finds no process of its parent's number, and must not take the connection for its own."""
        port = ports.free()
        server = self.start(*self.carried(f"listen *:{port}; after 3", PYTHON, "-c",
                                          OTHER_NAMESPACE, str(port)),
                            stdout=subprocess.PIPE, text=True)
        if server.stdout.readline() != "ready\n":
            self.skipTest("may not make a PID namespace")
        talk = subprocess.run(self.carried(f"connect *:{port}; after 3", PYTHON, "-c", TALK,
                                           str(port), "180", "0"),
                              capture_output=True, text=True, timeout=sockets_tool.DEADLINE_S,
                              check=False)
        self.assertEqual(talk.stdout, "done\n", talk.stderr)
        self.assertEqual(server.wait(sockets_tool.DEADLINE_S), 0)
        self.assertEqual(self.stats()["carried"], 2, self.stats())  # two ends, before the fork

    def serve_half(self, program):
        """A server that does not read all. Returns it and a connection that is carried."""
        port = ports.free()
        server = self.start(*self.carried(f"listen *:{port}; after 3", PYTHON, "-c", program,
                                          str(port)), stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        client = self.start(*self.carried(f"connect *:{port}; after 3", PYTHON, "-c", """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def talk():
    for i in range(40):
        conn.sendall(b"%06d" % i)
        assert conn.recv(6, socket.MSG_WAITALL) == b"%06d" % i
talk()
conn.sendall(b"first second")
assert conn.recv(4, socket.MSG_WAITALL) == b"next"
talk()
conn.sendall(b"third fourth")
try:
    print(conn.recv(1))
except ConnectionResetError:
    print("reset")
""", str(port)), stdout=subprocess.PIPE, text=True)
        said = server.communicate(timeout=60)[0]
        return said.splitlines(), client.communicate(timeout=60)[0]

    def test_exec_with_bytes_unread(self):
        said, client = self.serve_half(EXEC_UNREAD)
        self.assertEqual(said, ["b'first '", "b'second'", "b'third '", "EBUSY", "ENOTCONN"])
        self.assertEqual(client, "reset\n")
        self.assertGreaterEqual(self.stats()["carried"], 1)

    def test_passed_with_bytes_unread(self):
        said, client = self.serve_half(PASS_UNREAD)
        self.assertEqual(said, ["b'first '", "EBUSY", "b'second'", "b'third fourth'"])
        self.assertEqual(client, "b''\n")
        self.assertEqual(self.stats()["carried"], 2)

    def test_writer_that_does_not_block(self):
        """It is told each time that there is room again."""
        port = ports.free()
        reader = self.start(*self.carried(f"listen *:{port}; after 3; ring 16384", PYTHON, "-c", """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
conn, _ = listener.accept()
for _ in range(40):
    conn.sendall(conn.recv(1))
room, total = bytearray(1 << 16), 0
while got := conn.recv_into(room):
    total += got
print(total)
""", str(port)), stdout=subprocess.PIPE, text=True)
        self.assertEqual(reader.stdout.readline(), "ready\n")
        done = subprocess.run(self.carried(f"connect *:{port}; after 3; ring 16384", PYTHON, "-c", """
import select, socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(40):
    conn.sendall(b"x")
    conn.recv(1)
conn.setblocking(False)
poll = select.poll()
poll.register(conn, select.POLLOUT)
data, left = memoryview(bytes(3000)), int(sys.argv[2])
while left:
    try:
        left -= conn.send(data[:left])
    except BlockingIOError:
        assert poll.poll(30000), "nobody tells that there is room"
""", str(port), str(MUCH)), capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(reader.communicate(timeout=60)[0], f"{MUCH}\n")
        self.assertGreater(self.stats()["in_bytes"], MUCH // 2)

    def move_bulk(self, rules):
        done = subprocess.run(self.carried("connect *:*; listen *:*; after 3" + rules, PYTHON, "-c", BULK),
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout), self.stats()

    def test_larger_rings_for_bulk(self):
        """Who fills its ring again and again is carried again, with a larger one."""
        room, stats = self.move_bulk("")
        self.assertGreater(room, 262144)
        self.assertLess(room, 1 << 20)
        self.assertEqual((stats["bulk"], stats["carried"], stats["broken"]), (1, 4, 0))  # two ends, twice
        self.assertGreater(stats["out_bytes"], 30 << 20)

    def test_a_writer_that_is_far_ahead(self):
        """It meets a reader that begins late."""
        done = subprocess.run(self.carried("connect *:*; listen *:*", PYTHON, "-c", AHEAD), capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        stats = self.stats()
        self.assertEqual((stats["nobody"], stats["carried"]), (0, 2), stats)
        self.assertGreaterEqual(stats["out_bytes"], 900, stats)

    def test_an_end_without_the_library_is_counted(self):
        """Also at the end that has made the connection, and goes on to look for the other."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = self.start(*self.carried("connect *:*", PYTHON, "-c", """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(100):
    conn.sendall(b"x")
    assert conn.recv(1) == b"x"
""", str(listener.getsockname()[1])))
            conn, _ = listener.accept()
            with conn:
                while data := conn.recv(1):
                    conn.sendall(data)
        self.assertEqual(client.wait(60), 0)
        stats = self.stats()
        self.assertEqual((stats["nobody"], stats["carried"]), (1, 0), stats)

    def test_fork_with_much_unread(self):
        """The child has what was in the ring and what was taken from it."""
        done = subprocess.run(self.carried("connect *:*; listen *:*; after 3", PYTHON, "-c", BULK_FORK),
                              capture_output=True, text=True, timeout=120, check=False)
        sent, status = done.stdout.split()[1:]
        self.assertEqual(status, "0", done.stderr)
        self.assertGreater(int(sent), 1 << 20)

    def test_ring_of_a_rule_stays(self):
        room, stats = self.move_bulk("; ring 65536")
        self.assertLess(room, 65536)
        self.assertEqual((stats["bulk"], stats["carried"]), (0, 2))
        self.assertGreater(stats["out_bytes"], 50 << 20)

    def test_edge_behind_a_short_read(self):
        """The read has met the end: the next bytes wake who sleeps."""
        port = ports.free()
        server = self.start(*self.carried(f"listen *:{port}; after 3", PYTHON, "-c", EDGES, str(port)),
                            stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "listens\n")
        client = self.start(*self.carried(f"connect *:{port}; after 3", PYTHON, "-c", """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(40):
    conn.sendall(b"x")
    conn.recv(1)
for line in sys.stdin:
    conn.sendall(line.strip().encode())
""", str(port)), stdin=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "first\n")
        client.stdin.write("1234\n")
        client.stdin.flush()
        self.assertEqual(server.stdout.readline(), "b'1234'\n")
        client.stdin.write("5\n")
        client.stdin.flush()
        self.assertEqual(server.communicate(timeout=60)[0], "b'5'\n")
        client.communicate(timeout=60)
        self.assertEqual(self.stats()["carried"], 2)

    def test_handed_over_while_the_peer_makes_no_call(self):
        """What it writes afterwards is for the other program."""
        port = ports.free()
        server = self.start(*self.carried(f"listen *:{port}; after 3", PYTHON, "-c", HANDS_OVER, str(port)),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "listens\n")
        client = self.start(*self.carried(f"connect *:{port}; after 3", PYTHON, "-c", """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(40):
    conn.sendall(b"abcdef")
    assert conn.recv(6, socket.MSG_WAITALL) == b"abcdef"
print("talked", flush=True)
sys.stdin.readline()
conn.sendall(bytes(65536))
""", str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(client.stdout.readline(), "talked\n")
        server.stdin.write("go\n")
        server.stdin.flush()
        self.assertEqual(server.stdout.readline(), "runs\n")
        server.stdin.write("close\n")
        server.stdin.flush()
        client.communicate("go\n", timeout=60)
        self.assertEqual((client.returncode, server.stdout.readline()), (0, "65536\n"))
        self.assertEqual(server.wait(60), 0)
        self.assertEqual(self.stats()["carried"], 2)

    def test_waits_hold_up_nobody_else(self):
        (stopped, port), (_, other) = self.serve(), self.serve()
        done = subprocess.run(
            self.carried(f"connect *:{port} *:{other}; after 3", PYTHON, "-c", BESIDE, str(port),
                         str(other), str(stopped.pid)),
            capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(int(done.stdout), 3)

    def serve(self, calls=0, rules="listen *:PORT; after 3"):
        port = ports.free()
        server = self.start(*self.carried(rules.replace("PORT", str(port)), PYTHON, "-c", ECHO,
                                          str(port), str(calls)),
                            stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        return server, port

    def talk(self, port, rounds, calls=0, rules="connect *:PORT; after 3", before="", seed=0):
        done = subprocess.run(
            self.carried(rules.replace("PORT", str(port)), PYTHON, "-c", before + TALK, str(port),
                         str(rounds), str(calls), str(seed)),
            capture_output=True, text=True, timeout=120, check=False)
        return done

    def test_server_is_killed(self):
        for calls in KILLS:
            server, port = self.serve(calls)
            done = self.talk(port, 100)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(done.stdout, ("end\n", "reset\n"))
            self.assertEqual(server.wait(60), -9)

    def test_server_of_a_program_that_only_writes_is_killed(self):
        server, port = self.serve(41)
        client = self.start(*self.carried(f"connect *:{port}; after 3", PYTHON, "-c", """
import socket, sys
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(40):
    conn.sendall(b"abcdef")
    assert conn.recv(6, socket.MSG_WAITALL) == b"abcdef"
conn.sendall(b"the last")
sys.stdin.readline()
count = 0
try:
    while count < 2000:
        conn.sendall(b"x")
        count += 1
except OSError:
    pass
print(count)
""", str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.wait(60), -9)
        self.assertLess(int(client.communicate("go\n", timeout=60)[0]), 1000)
        self.assertEqual(self.stats()["carried"], 1)

    def test_client_is_killed(self):
        for calls in KILLS:
            server, port = self.serve()
            done = self.talk(port, 100, calls)
            self.assertEqual(done.returncode, -9)
            said = server.communicate(timeout=60)[0]
            self.assertIn(said, ("end\n", "reset\n"))
            self.assertEqual(server.returncode, 0)

    def has_rings(self, process):
        """Whether this process has memory of a carried connection, or has ended."""
        if process.poll() is not None:
            return True
        try:
            with open(f"/proc/{process.pid}/maps", encoding="ascii", errors="replace") as maps:
                return any("memfd:clan-" in line and " rw-s " in line and "clan-sockets" not in line
                           for line in maps)
        except OSError:
            return True  # it has ended since

    def test_other_side_scribbles(self):
        # The scribbling may also prevent that a connection is carried, so more are made than have to be.
        for seed in range(10 * SEEDS):
            server, port = self.serve()
            # The hostile side may do anything but bring the other down.
            hostile = self.start(*self.carried(f"connect *:{port}; after 3", PYTHON, "-c",
                                               SCRIBBLE + TALK, str(port), "2000", "0", str(seed)),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sockets_tool.wait_for(lambda process=hostile: self.has_rings(process), "no memory of a connection")
            try:
                hostile.wait(3)
            except subprocess.TimeoutExpired:
                hostile.kill()
            said = server.communicate(timeout=60)[0]
            self.assertIn(said, ("end\n", "reset\n", ""))
            self.assertIn(server.returncode, (0, 1))  # 1: the time-out of a silent peer
            if self.stats().get("carried", 0) >= SEEDS:
                return
        self.fail(f"of {10 * SEEDS} connections fewer than {SEEDS} were carried: {self.stats()}")

    def bind_name(self, kind, pair):
        """Where the acceptor of this connection would listen."""
        def text(address):
            return (b"\0" * 10 + b"\xff\xff" + socket.inet_aton(address[0])).hex() + "." + \
                str(address[1])
        client, server = pair
        taken = socket.socket(socket.AF_UNIX, kind)
        taken.bind("\0clan-tcp/" + text(server) + "/" + text(client))
        taken.listen()
        self.addCleanup(taken.close)

    def test_name_is_taken(self):
        """By a socket of another kind, so that nobody can connect there either."""
        server, port = self.serve()
        with socket.create_connection(("127.0.0.1", port)) as conn:
            self.bind_name(socket.SOCK_SEQPACKET, (conn.getsockname(), conn.getpeername()))
            for i in range(100):
                conn.sendall(b"%03d" % i)
                self.assertEqual(conn.recv(100), b"%03d" % i)
        self.assertEqual(server.communicate(timeout=60)[0], "end\n")
        stats = self.stats()
        self.assertEqual(stats["carried"], 0)
        self.assertEqual(stats["name"], 1)

    def test_peer_in_another_network_namespace(self):
        with contextlib.ExitStack() as stack:
            try:
                pair = stack.enter_context(links.Pair())
            except rig.Unavailable as reason:
                self.skipTest(str(reason))
            server = self.start(*pair.server_prefix, *self.carried(
                "listen *:7000", PYTHON, "-c", ECHO.replace("127.0.0.1", pair.address), "7000", "0"),
                stdout=subprocess.PIPE, text=True)
            self.assertEqual(server.stdout.readline(), "ready\n")
            done = subprocess.run([*pair.client_prefix, *self.carried(
                "connect *:7000", PYTHON, "-c", TALK.replace("127.0.0.1", pair.address), "7000", "200", "0")],
                stdout=subprocess.PIPE, text=True, timeout=120, check=True)
            self.assertEqual((done.stdout, server.communicate(timeout=60)[0]), ("done\n", "end\n"))
        stats = self.stats()
        self.assertEqual((stats["carried"], stats["remote"]), (0, 2), stats)

    @unittest.skipIf(os.geteuid() != 0, "only root can become another user")
    def test_impostor(self):
        """Another user connects to the acceptor's name before the client does."""
        server, port = self.serve()
        with socket.create_connection(("127.0.0.1", port)) as conn:
            for i in range(4):
                conn.sendall(b"%03d" % i)
                self.assertEqual(conn.recv(100), b"%03d" % i)
            impostor = """
import socket, sys
conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
conn.connect("\\0" + sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""
            with open("/proc/net/unix", encoding="utf-8") as file:
                names = [line.split("@")[1].strip() for line in file if "@clan-tcp/" in line
                         and f".{conn.getsockname()[1]}" in line]
            self.assertEqual(len(names), 1)
            other = self.start(PYTHON, "-c", impostor, names[0], user=65534, group=65534,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.assertEqual(other.stdout.readline(), "connected\n")
            for i in range(100):
                conn.sendall(b"%03d" % i)
                self.assertEqual(conn.recv(100), b"%03d" % i)
        self.assertEqual(server.communicate(timeout=60)[0], "end\n")
        stats = self.stats()
        self.assertEqual(stats["carried"], 0)
        self.assertEqual(stats["identity"], 1)

    def test_calls_past_the_library(self):
        """Bytes that were moved by raw system calls are noticed: nothing is carried."""
        server, port = self.serve()
        raw = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
plain = socket.socket.sendall
count = 0
def sendall(self, data):
    global count
    count += 1
    if count == 2:
        assert libc.syscall(1, self.fileno(), data, len(data)) == len(data)
    else:
        plain(self, data)
socket.socket.sendall = sendall
"""
        done = self.talk(port, 100, before="import socket\n" + raw)
        self.assertEqual((done.stdout, done.returncode), ("done\n", 0), done.stderr)
        self.assertEqual(server.communicate(timeout=60)[0], "end\n")
        stats = self.stats()
        self.assertEqual(stats["counts"], 1, stats)
        self.assertEqual(stats["out_bytes"], 0)

    def test_calls_past_the_library_later(self):
        """Raw writes on a carried connection: the peer resets it and says why."""
        server, port = self.serve()
        done = self.talk(port, 100, before="""
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
plain = socket.socket.sendall
count = 0
def sendall(self, data):
    global count
    count += 1
    if count == 80:
        assert libc.syscall(1, self.fileno(), data, len(data)) == len(data)
    else:
        plain(self, data)
socket.socket.sendall = sendall
""")
        self.assertIn(done.stdout, ("reset\n", "end\n"), done.stderr)
        self.assertEqual(server.communicate(timeout=60)[0], "reset\n")
        self.assertEqual(self.stats()["broken"], 1)

    def test_mistakes_in_rules(self):
        for rules in ("connect", "connect 127.0.0.1", "listen *:0", "listen *:65536", "after 0",
                      "ring 17000", "wish *:1", "connect 300.0.0.1:1", "connect 10.0.0.0/33:1",
                      "refuse me", "connect [::1:5"):
            done = subprocess.run([sockets_tool.RUN, "--rules", rules, "--", "true"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, rules)
            self.assertIn("rules, statement 1: ", done.stderr)
        done = subprocess.run([sockets_tool.RUN, "--config", self.path("none"), "true"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot read", done.stderr)


if __name__ == "__main__":
    sockets_tool.RUN = sys.argv.pop(1)
    unittest.main()
