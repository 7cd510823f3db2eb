#!/usr/bin/python3
"""Ordinary programs of omniORB over libclan-omniorb, which is preloaded: an echo server, its client,
and peers that break the rules. omniORB's own trace tells what clan has carried, and the kernel that
there is no socket of TCP."""

import contextlib
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from captive import Skip, main, require_root

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from harness import links, rig  # noqa: E402 (the path has to be set first)

LIBRARY = os.environ.get("CLAN_OMNIORB")
PROGRAMS = os.environ.get("OMNIORB_PROGRAMS")
SECONDS_MAX = 60  # it only ends what hangs
CLAN = ["-ORBendPoint", "giop:clan:"]
BOTH = [*CLAN, "-ORBendPoint", "giop:tcp:127.0.0.1:"]
POOL = ["-ORBthreadPerConnectionPolicy", "0"]
NOBODY = 65534
ENDS = re.compile(r"clan: .* ends: (\d+) bytes sent, (\d+) received")
TAG = struct.pack("<I", 0x434C414E)
REQUEST = "Receive codeset service context"  # with -ORBtraceLevel 25: the first call is being served
MIB = 1 << 20


def environment(preload):
    """preload: True, or what is to be loaded before the library."""
    env = dict(os.environ)
    if preload:
        env["LD_PRELOAD"] = LIBRARY if preload is True else preload + ":" + LIBRARY
        # Only where the library has a sanitizer, which then does not come first.
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + env.get("ASAN_OPTIONS", "")
    return env


class Program:
    """A program, with its standard output, and its trace as a list of lines that grows."""

    def __init__(self, name, *arguments, preload=True, trace=10, files_max=None, uid=None, prefix=()):
        if LIBRARY is None:
            raise Skip("built without omniORB (libomniorb4-dev, omniidl, a C++ compiler)")

        def prepare():
            if files_max is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
            if uid is not None:
                os.setuid(uid)

        command = [*prefix, os.path.join(PROGRAMS, name), *map(str, arguments)]
        if trace:
            command += ["-ORBtraceLevel", str(trace)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, preexec_fn=prepare,
                                        env=environment(preload), errors="replace")
        self.trace = []
        self.traced = threading.Condition()
        self.reader = threading.Thread(target=self._read_trace)
        self.reader.start()
        self.watchdog = threading.Timer(SECONDS_MAX, self.process.kill)
        self.watchdog.start()

    def _read_trace(self):
        for line in self.process.stderr:
            with self.traced:
                self.trace.append(line)
                self.traced.notify_all()
        with self.traced:
            self.trace.append("")
            self.traced.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.end()

    def text(self):
        return "".join(self.trace)

    def wait_for_trace(self, words):
        with self.traced:
            while not any(words in line for line in self.trace):
                assert "" not in self.trace, self.text()
                self.traced.wait()

    def line(self, say=None):
        if say is not None:
            self.process.stdin.write(say + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        assert line, self.text()
        return line

    def end(self):
        """Exit status and the rest of the output; once."""
        if self.process.stdout.closed:
            return None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        output = self.process.stdout.read()
        self.process.stdout.close()
        status = self.process.wait()
        self.watchdog.cancel()
        self.reader.join()
        self.process.stderr.close()
        return status, output

    def carried(self):
        """Bytes that its connections have sent and received."""
        ends = ENDS.findall(self.text())
        return sum(int(sent) for sent, _ in ends), sum(int(received) for _, received in ends)

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))


class Server(Program):
    def __init__(self, *options, **more):
        super().__init__("server", *options, **more)
        self.reference = self.line()

    def __enter__(self):
        assert self.reference.startswith("IOR:"), self.reference + self.text()
        return self


def client(reference, *words, status=0, **more):
    """Runs one and returns it; it prints "ok", or the exception that is expected."""
    with Program("client", reference, *words, **more) as program:
        program.ended, program.output = program.end()
        assert program.ended == status, (words, program.ended, program.output, program.text())
        if status == 0:
            assert program.output.endswith("ok\n"), program.output
        return program


def tcp_sockets(*programs):
    """How many sockets of TCP they have, by the kernel's table."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            inodes |= {line.split()[9] for line in list(lines)[1:]}
    count = 0
    for program in programs:
        folder = "/proc/%d/fd" % program.process.pid
        links = [os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)]
        count += sum(link[len("socket:["):-1] in inodes for link in links
                     if link.startswith("socket:["))
    return count


def component(reference):
    """Where the component of clan is in the bytes of a reference: its tag, and its port."""
    data = bytes.fromhex(reference[len("IOR:"):])
    at = data.index(TAG)
    text_bytes, = struct.unpack_from("<I", data, at + 12)
    end = at + 16 + text_bytes
    port, = struct.unpack_from("<H", data, end + end % 2)
    return data, at, port


def changed(reference, change):
    data, at, _ = component(reference)
    data = bytearray(data)
    change(data, at)
    return "IOR:" + data.hex()


def of_another_machine(data, at):
    data[at + 16] ^= 1  # the first character of what names the machine


def wait_for_descriptors(program, count):
    deadline = time.monotonic() + SECONDS_MAX
    while program.descriptors() > count:
        assert time.monotonic() < deadline, program.text()
        time.sleep(0.01)


def exchange(server, **more):
    """Calls of all kinds."""
    for words in (["null", 100], ["echo", 0, 3], ["echo", 5000, 20], ["echo", MIB, 4],
                  ["oneway", 500], ["threads", 8, 30]):
        client(server.reference, *words, **more)
    status, _ = server.end()
    assert status == 0, server.text()
    sent, received = server.carried()
    assert sent > 4 * MIB and received > 4 * MIB, server.text()


def test_calls_with_a_thread_for_each_connection(_folder):
    with Server(*CLAN) as server:
        exchange(server)


def test_calls_with_a_pool_of_threads(_folder):
    for _ in range(int(os.environ.get("SOAK_OMNIORB_POOL_ROUNDS", "1"))):
        with Server(*CLAN, *POOL) as server:
            exchange(server)


def test_watches_that_begin_before_omniorb_watches(_folder):
    """One thread asks for a watch, and another one begins it: what that one finds is not lost."""
    with Server(*CLAN, *POOL, preload=os.path.join(PROGRAMS, "libslow-watch.so")) as server:
        client(server.reference, "oneway", 200)
        client(server.reference, "threads", 8, 30)


def test_calls_that_share_a_connection(_folder):
    for policy in ([], POOL):
        with Server(*CLAN, *policy, "-ORBmaxServerThreadPerConnection", "8") as server:
            client(server.reference, "threads", 8, 30, "-ORBoneCallPerConnection", "0",
                   "-ORBmaxGIOPConnectionPerServer", "1")
            assert server.text().count("Accepted connection") == 1, server.text()


def test_there_is_no_tcp(_folder):
    with Server(*CLAN) as server, Program("client", server.reference, "hold") as caller:
        assert caller.line("call") == "ok"
        assert tcp_sockets(server, caller) == 0
        caller.end()
        sent, received = caller.carried()
        assert sent > 0 and received > 0, caller.text()
    with Server(*BOTH) as server:
        assert tcp_sockets(server) == 1  # this is how they are found


def test_callbacks(_folder):
    with Server(*CLAN) as server:
        caller = client(server.reference, "callback", 50, *CLAN)
        assert "Accepted connection from giop:clan:" in caller.text(), caller.text()
        assert tcp_sockets(server) == 0


def test_bidirectional_giop_is_of_tcp(_folder):
    """Both sides allow it, and omniORB makes a connection for the callbacks all the same."""
    for policy in ([], POOL):
        with Server("bidirectional", *CLAN, *policy, "-ORBacceptBiDirectionalGIOP", "1",
                    "-ORBserverTransportRule", "* bidir,clan") as server:
            caller = client(server.reference, "bidirectional", 50, *CLAN,
                            "-ORBofferBiDirectionalGIOP", "1", "-ORBclientTransportRule",
                            "* bidir,clan")
            assert "Accepted connection from giop:clan:" in caller.text(), caller.text()


def test_a_client_without_clan_and_one_of_another_machine_use_tcp(_folder):
    with Server(*BOTH) as server:
        assert client(server.reference, "echo", MIB, 1).carried()[0] > MIB
        assert client(server.reference, "echo", MIB, 1, preload=False).carried()[0] == 0
        elsewhere = changed(server.reference, of_another_machine)
        assert client(elsewhere, "echo", MIB, 1).carried()[0] == 0
    with Server("-ORBendPoint", "giop:tcp:127.0.0.1:", *CLAN) as server:
        assert client(server.reference, "echo", MIB, 1).carried()[0] > MIB
        assert client(server.reference, "echo", MIB, 1, preload=False).carried()[0] == 0
    with Server(*CLAN) as server:
        elsewhere = changed(server.reference, of_another_machine)
        assert "TRANSIENT" in client(elsewhere, "null", 1, status=1).output


def test_a_client_in_another_network_namespace_uses_tcp(_folder):
    with contextlib.ExitStack() as stack:
        try:
            pair = stack.enter_context(links.Pair())
        except rig.Unavailable as reason:
            raise Skip(str(reason)) from reason
        with Server("-ORBendPoint", "giop:tcp:%s:" % pair.address, *CLAN, prefix=pair.server_prefix) as server:
            near = client(server.reference, "echo", MIB, 1, prefix=pair.server_prefix)
            assert near.carried()[0] > MIB, near.text()
            far = client(server.reference, "echo", MIB, 1, prefix=pair.client_prefix)
            assert far.carried()[0] == 0, far.text()
        with Server(*CLAN, prefix=pair.server_prefix) as server:
            assert "TRANSIENT" in client(server.reference, "null", 1, status=1, prefix=pair.client_prefix).output


def test_a_reference_whose_component_is_malformed(_folder):
    def cut(data, at):
        struct.pack_into("<I", data, at + 12, 1 << 30)  # the length of its string

    with Server(*BOTH) as server:
        caller = client(changed(server.reference, cut), "null", 1)
        assert "malformed" in caller.text() and caller.carried()[0] == 0, caller.text()


def test_rules_of_transports(_folder):
    local = ["Rule", "localhost clan,tcp"]
    with Server(*BOTH, "-ORBserverTransport" + local[0], local[1]) as server:
        assert client(server.reference, "null", 1, "-ORBclientTransport" + local[0],
                      local[1]).carried()[0] > 0
        assert client(server.reference, "null", 1, "-ORBclientTransportRule",
                      "* tcp").carried()[0] == 0
    with Server(*CLAN, "-ORBserverTransportRule", "10.0.0.0/8 clan") as server:
        client(server.reference, "null", 1, status=1)


def test_a_server_that_is_killed(_folder):
    for policy in ([], POOL):
        with Server(*CLAN, *policy, trace=25) as server:
            with Program("client", server.reference, "wait", 1000 * SECONDS_MAX) as caller:
                server.wait_for_trace(REQUEST)
                server.process.kill()
                line = caller.line()
                assert line == "COMM_FAILURE", (line, caller.text())


def test_a_client_that_is_killed(_folder):
    for policy in ([], POOL):
        with Server(*CLAN, *policy, trace=25) as server:
            before = server.descriptors()
            with Program("client", server.reference, "wait", 200) as caller:
                server.wait_for_trace(REQUEST)
                caller.process.kill()
            wait_for_descriptors(server, before)
            client(server.reference, "null", 1)


def test_deadlines(_folder):
    with Server(*CLAN) as server:
        late = client(server.reference, "wait", 1000 * SECONDS_MAX, "-ORBclientCallTimeOutPeriod",
                      100, status=1)
        assert "TIMEOUT" in late.output, late.output
        client(server.reference, "echo", MIB, 1, "-ORBclientCallTimeOutPeriod",
               1000 * SECONDS_MAX)
        # A server that does not run takes nothing: the deadline ends a send.
        with Program("client", server.reference, "hold", "-ORBclientCallTimeOutPeriod",
                     1000) as caller:
            assert caller.line("call") == "ok"
            server.process.send_signal(signal.SIGSTOP)
            os.waitpid(server.process.pid, os.WUNTRACED)
            line = caller.line("call")
            assert line == "TIMEOUT", (line, caller.text())
            stopped = client(server.reference, "echo", MIB, 1, "-ORBclientCallTimeOutPeriod", 100,
                             status=1)
            assert stopped.output.strip() in ("TIMEOUT", "TRANSIENT"), stopped.output
            server.process.send_signal(signal.SIGCONT)
            assert caller.line("call") == "ok"


def test_a_server_that_comes_back(_folder):
    with Server(*CLAN) as server:
        _, _, port = component(server.reference)
        with Program("client", server.reference, "hold") as caller:
            assert caller.line("call") == "ok"
            server.process.kill()
            server.process.wait()
            assert caller.line("call") in ("COMM_FAILURE", "TRANSIENT")
            assert caller.line("call") == "TRANSIENT"
            with Server("-ORBendPoint", "giop:clan::%d" % port):
                assert caller.line("call") == "ok"


def test_a_port_that_is_taken(_folder):
    with Server(*CLAN) as server:
        _, _, port = component(server.reference)
        with Program("server", "-ORBendPoint", "giop:clan::%d" % port) as second:
            assert second.line() == "INITIALIZE"
            second.end()
            assert "cannot listen at port %d" % port in second.text(), second.text()
    with Program("server", "-ORBendPoint", "giop:clan:example.org:1") as wrong:
        assert wrong.line() == "INITIALIZE"


def test_peers_that_break_the_rules(_folder):
    for policy in ([], POOL):
        with Server(*CLAN, *policy) as server, \
                Program("client", server.reference, "hold") as caller:
            _, _, port = component(server.reference)
            assert caller.line("call") == "ok"
            for kind in ("rubbish", "huge", "messages", "stranger"):
                with Program("hostile", port, kind, trace=0, preload=False) as hostile:
                    status, _ = hostile.end()
                    assert status == 0, (kind, server.text())
                assert caller.line("call") == "ok"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
                raw.connect("\0clan-omniorb/%d" % port)
                raw.send(b"GET / HTTP/1.0\r\n\r\n")
                assert raw.recv(100) == b""
            assert caller.line("call") == "ok"
            client(server.reference, "null", 1)


def test_servers_that_break_the_rules(_folder):
    with Server(*CLAN) as server:
        data, at, port = component(server.reference)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as name:
        name.bind("\0clan-omniorb/%d" % port)
        name.listen()
        reference = "IOR:" + data.hex()
        assert at > 0
        # It accepts, and says nothing.
        late = client(reference, "null", 1, "-ORBclientConnectTimeOutPeriod", 100, status=1)
        assert late.output.strip() in ("TIMEOUT", "TRANSIENT"), late.output
        with Program("client", reference, "null", 1) as caller:
            for _ in range(2):  # the first is what the client before has left
                peer, _ = name.accept()
                with peer:
                    try:
                        peer.send(b"220 mail.example.org\r\n")
                    except BrokenPipeError:
                        pass
            name.close()
            status, output = caller.end()
            assert status == 1 and "TRANSIENT" in output, (output, caller.text())


def test_more_connections_than_descriptors(_folder):
    with Server(*CLAN, files_max=48) as server, \
            Program("client", server.reference, "hold") as caller:
        _, _, port = component(server.reference)
        assert caller.line("call") == "ok"
        before = server.descriptors()
        many = []
        for _ in range(60):
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            raw.connect("\0clan-omniorb/%d" % port)
            many.append(raw)
        server.wait_for_trace("Too many open files")
        assert caller.line("call") == "ok"
        for raw in many:
            raw.close()
        wait_for_descriptors(server, before)
        client(server.reference, "echo", MIB, 1)


def test_other_users(_folder):
    require_root("to be somebody else")
    with Server(*CLAN, uid=NOBODY) as server:
        # Root is served, and so is the user; but root does not believe what a user offers.
        client(server.reference, "null", 1, uid=NOBODY)
        caller = client(server.reference, "null", 1, status=1)
        assert "a process of another user" in caller.text(), caller.text()
    with Server(*CLAN) as server:
        caller = client(server.reference, "null", 1, uid=NOBODY, status=1)
        server.wait_for_trace("belongs to another user")


if __name__ == "__main__":
    main()
