#!/usr/bin/python3
"""Unmodified programs over libclan-sockets: they do what they do over TCP, and bytes were carried.

    sockets-programs.py CLAN_RUN MPI_EXCHANGE.C [TEST]

Environment: OMNIORB_PROGRAMS, the folder of an echo server and its client; nothing: there are none.
"""
import filecmp
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

import sockets_tool
from sockets_tool import answers, ports, wait_for

PYTHON = sys.executable
MPI_EXCHANGE = ""

SERVER = """
import selectors, socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
if kind == "selectors":
    conn, _ = listener.accept()
    conn.setblocking(False)
    loop = selectors.DefaultSelector()
    loop.register(conn, selectors.EVENT_READ)
    left = b""
    while True:
        loop.select()
        data = conn.recv(65536)
        if not data:
            break
        while data:
            try:
                data = data[conn.send(data):]
            except BlockingIOError:
                loop.modify(conn, selectors.EVENT_WRITE)
                loop.select()
                loop.modify(conn, selectors.EVENT_READ)
else:
    import socketserver, threading, os
    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            while True:
                data = self.request.recv(65536)
                if not data:
                    break
                self.request.sendall(data)
    mixin = socketserver.ForkingMixIn if kind == "fork" else socketserver.ThreadingMixIn
    class Server(mixin, socketserver.TCPServer):
        def __init__(self):
            super().__init__(None, Echo, bind_and_activate=False)
            self.socket = listener
    server = Server()
    for _ in range(4):
        server.handle_request()
    server.server_close()
"""

CLIENT = """
import random, socket, sys
port, seed = int(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
conn = socket.create_connection(("127.0.0.1", port))
for _ in range(300):
    data = chance.randbytes(chance.choice([1, 100, 5000, 30000, 200000 if seed % 2 else 70000]))
    conn.sendall(data) if len(data) < 40000 else None
    got = b""
    if len(data) >= 40000:
        conn.settimeout(60)
        sent = 0
        while sent < len(data):
            sent += conn.send(data[sent:sent + 20000])
            got += conn.recv(65536)
    while len(got) < len(data):
        part = conn.recv(65536)
        assert part, "the end"
        got += part
    assert got == data, "other bytes"
conn.shutdown(socket.SHUT_WR)
assert conn.recv(1) == b""
"""


# A client without a dynamic loader: nothing can be put in front of its C library. argv: port.
STATIC_CLIENT = """
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons(atoi(argv[1])) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char text[8];

	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
		return 1;
	for (int i = 0; i < 200; i++) {
		if (write(fd, "PING\\r\\n", 6) != 6 || read(fd, text, 8) != 7 ||
		    memcmp(text, "+PONG\\r\\n", 7) != 0)
			return 2;
	}
	return 0;
}
"""

# Commands of all kinds, a line each; BIG is 100,000 bytes.
REDIS_UNITS = """
flushall
set a 1
append a 23
getrange a 0 1
incrbyfloat a 1.5
setrange b 5 hello
bitcount b
mset x 1 y 2 z 3
mget x y z nothing
rpush list one two three four
lrange list 0 -1
linsert list before two more
lpos list three
sadd set a b c d
sinterstore other set set
scard other
zadd scores 1 one 2 two 3 three
zrangebyscore scores 2 +inf withscores
zincrby scores 5 one
hset hash f1 v1 f2 v2
hgetall hash
xadd stream 1-1 k v
xadd stream 1-2 k w
xrange stream - +
pfadd hll a b c d e
pfcount hll
geoadd places 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
geodist places Palermo Catania
multi
incr counter
incr counter
exec
multi
set p q
discard
eval "local s = 0 for i = 1, 1000 do s = s + i end return s" 0
eval "return redis.call('incrby', KEYS[1], ARGV[1])" 1 counter 40
blpop list 1
blpop nothing 1
object encoding list
wrong command
set big BIG
strlen big
getrange big 99990 -1
debug digest
bgsave
dbsize
"""


class Programs(sockets_tool.Case):
    def need(self, program):
        found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        if not found:
            self.skipTest(f"{program} is not installed")
        return found

    def check_bytes(self, program, least):
        stats = self.stats(program)
        self.assertTrue(stats, f"{program} counted nothing")
        self.assertGreaterEqual(stats["in_bytes"] + stats["out_bytes"], least, stats)
        self.assertEqual(stats["broken"], 0, stats)
        return stats

    def redis(self, rules):
        server = self.need("redis-server")
        port = ports.free()
        process = self.start(
            *self.carried(rules.replace("PORT", str(port)), server, "--port", str(port),
                          "--save", "", "--appendonly", "no", "--bind", "127.0.0.1",
                          "--enable-debug-command", "local", "--repl-diskless-sync-delay", "0",
                          "--dir", self.folder),
            stdout=subprocess.DEVNULL)
        wait_for(lambda: answers(port), "redis-server does not answer")
        return process, port

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(sockets_tool.DEADLINE_S), 0)

    def test_redis_benchmark(self):
        benchmark = self.need("redis-benchmark")
        process, port = self.redis("listen *:PORT")
        done = subprocess.run(
            self.carried(f"connect *:{port}", benchmark, "-p", str(port), "-t", "set,get,lrange",
                         "-n", "4000", "-c", "20", "-q", "--csv"),
            capture_output=True, text=True, timeout=120, check=True)
        self.assertIn('"GET"', done.stdout)
        self.stop(process)
        # Each test has connections of its own, which begin on TCP.
        self.check_bytes("redis-benchmark", 500000)
        self.check_bytes("redis-server", 500000)

    def test_redis_answers_are_right(self):
        """Also while the server forks, and in pipelines."""
        command = self.need("redis-cli")
        process, port = self.redis("listen *:PORT")
        script = "".join(f"set key{i} value{i}\nincr counter\nget key{i}\n" for i in range(200))
        script += "bgsave\n" + "".join(f"get key{i}\nincr counter\n" for i in range(200))
        expected = "".join(f"OK\n{i + 1}\nvalue{i}\n" for i in range(200))
        expected += "Background saving started\n"
        expected += "".join(f"value{i}\n{201 + i}\n" for i in range(200))
        done = subprocess.run(self.carried(f"connect *:{port}", command, "-p", str(port)),
                              input=script, capture_output=True, text=True, timeout=120,
                              check=True)
        self.assertEqual(done.stdout, expected)
        self.stop(process)
        self.check_bytes("redis-cli", 10000)

    def redis_units(self, carried):
        """What redis-cli prints, and what a replica has in the end."""
        command = self.need("redis-cli")
        rules = "listen *:PORT; after 2" if carried else "program none; listen *:PORT"
        process, port = self.redis(rules)
        replica, replica_port = self.redis(f"listen *:PORT; connect *:{port}; after 2" if carried
                                           else "program none; listen *:PORT")
        rules = f"connect *:{port}; connect *:{replica_port}; after 2"
        rules = rules if carried else "program none; " + rules

        def ask(at, text):
            return subprocess.run(self.carried(rules, command, "-p", str(at)), input=text, text=True,
                                  capture_output=True, timeout=120, check=True).stdout

        self.assertEqual(ask(replica_port, f"replicaof 127.0.0.1 {port}\n"), "OK\n")
        wait_for(lambda: "master_link_status:up" in ask(replica_port, "info replication\n"),
                 "the replica has no link")
        printed = ask(port, REDIS_UNITS.replace("BIG", "0123456789" * 10000))
        self.assertEqual(ask(port, "wait 1 60000\n"), "1\n")
        digests = {ask(at, "debug digest\n") for at in (port, replica_port)}
        self.assertEqual(len(digests), 1)
        self.assertEqual(len(digests.pop()), 41)
        self.stop(replica)
        self.stop(process)
        return printed

    def test_redis_units(self):
        """Commands of all kinds and a replica: the same with and without."""
        plain = self.redis_units(False)
        self.assertEqual(self.stats(), {})
        carried = self.redis_units(True)
        self.assertGreater(len(carried.splitlines()), 60)
        self.assertEqual(carried, plain)
        self.check_bytes("redis-server", 100000)
        self.check_bytes("redis-cli", 100000)

    def test_curl_and_http_server(self):
        curl = self.need("curl")
        port = ports.free()
        chance = random.Random(1)
        for i in range(30):
            with open(self.path(f"in{i}"), "wb") as file:
                file.write(chance.randbytes(100000))
        server = self.start(
            *self.carried(f"listen *:{port}; after 2", PYTHON, "-m", "http.server", "--directory",
                          self.folder, "--bind", "127.0.0.1", "--protocol", "HTTP/1.1", str(port)),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: answers(port), "http.server does not answer")
        subprocess.run(
            self.carried(f"connect *:{port}; after 2", curl, "--silent", "--fail", "--output",
                         self.path("out#1"), f"http://127.0.0.1:{port}/in[0-29]"),
            check=True, timeout=120)
        for i in range(30):
            self.assertTrue(filecmp.cmp(self.path(f"in{i}"), self.path(f"out{i}"), shallow=False))
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(sockets_tool.DEADLINE_S), 0)
        stats = self.check_bytes("curl", 1000000)
        self.assertLessEqual(stats["carried"], 1 + stats["peer"])  # again, with larger rings

    def test_static_client(self):
        """Nothing is in front of its C library: it stays on TCP, and is counted at the other end."""
        compiler = self.need("cc")
        with open(self.path("client.c"), "w", encoding="ascii") as file:
            file.write(STATIC_CLIENT)
        subprocess.run([compiler, "-static", "-o", self.path("client"), self.path("client.c")],
                       check=True)
        process, port = self.redis("listen *:PORT")
        subprocess.run(self.carried(f"connect *:{port}", self.path("client"), str(port)),
                       check=True, timeout=60)
        self.stop(process)
        self.assertEqual(self.stats("client"), {})
        stats = self.stats("redis-server")
        self.assertEqual((stats["carried"], stats["nobody"]), (0, 1), stats)

    def test_open_mpi(self):
        """Its own transport over TCP, with data checked by the program."""
        compiler, mpirun = self.need("mpicc"), self.need("mpirun")
        program = self.path("mpi_exchange")
        subprocess.run([compiler, "-o", program, MPI_EXCHANGE], check=True)
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        environment.pop("MALLOC_PERTURB_", None)  # mpirun itself does not stand it
        done = subprocess.run(
            # Among all interfaces it would share the bytes out, also to a bridge of somebody's containers.
            [mpirun, "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
             "--mca", "btl_tcp_if_include", "lo", "-n", "2",
             *self.carried("connect *:*; listen *:*; program mpi_exchange", program, "all")],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
            check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_bytes("mpi_exchange", 10 << 20)

    def test_omniorb(self):
        folder = os.environ.get("OMNIORB_PROGRAMS")
        if folder is None:
            self.skipTest("built without omniORB")
        endpoint = ["-ORBendPoint", "giop:tcp:127.0.0.1:"]
        server = self.start(*self.carried("listen *:*; after 2", os.path.join(folder, "server"),
                                          *endpoint),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        reference = server.stdout.readline().strip()
        for words in (("null", "300"), ("echo", "1000000", "5"), ("threads", "4", "100"),
                      ("oneway", "100")):
            done = subprocess.run(
                self.carried("connect *:*; after 2", os.path.join(folder, "client"), reference,
                             *words),
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((done.stdout, done.returncode), ("ok\n", 0), (words, done.stderr))
        server.stdin.close()
        self.assertEqual(server.wait(sockets_tool.DEADLINE_S), 0)
        self.check_bytes("client", 1000000)
        self.check_bytes("server", 1000000)

    def nginx(self, extra=""):
        program = self.need("nginx")
        port = ports.free()
        with open(self.path("small"), "wb") as file:
            file.write(bytes(i % 251 for i in range(1000)))
        with open(self.path("large"), "wb") as file:
            file.write(bytes(i * 7 % 251 for i in range(1 << 20)))
        with open(self.path("nginx.conf"), "w", encoding="utf-8") as file:
            file.write(f"""
daemon off; worker_processes 1; pid {self.path('pid')}; error_log {self.path('errors')} warn;
{'user root;' if os.geteuid() == 0 else ''}
events {{ worker_connections 200; }}
http {{
  access_log off; keepalive_requests 1000000; sendfile on; {extra}
  client_body_temp_path {self.path('t1')}; proxy_temp_path {self.path('t2')};
  fastcgi_temp_path {self.path('t3')}; uwsgi_temp_path {self.path('t4')};
  scgi_temp_path {self.path('t5')};
  server {{ listen 127.0.0.1:{port}; root {self.folder}; }}
}}
""")
        process = self.start(*self.carried(f"listen *:{port}", program, "-c",
                                           self.path("nginx.conf"), "-e", self.path("errors")))
        wait_for(lambda: answers(port), "nginx does not answer")
        return process, port

    def test_nginx_bodies(self):
        process, port = self.nginx()
        client = """
import http.client, sys
folder, port = sys.argv[1], int(sys.argv[2])
conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
bodies = {name: open(folder + "/" + name, "rb").read() for name in ("small", "large")}
for i in range(100):
    name = "large" if i % 10 == 9 else "small"
    conn.request("GET", "/" + name)
    answer = conn.getresponse()
    assert answer.status == 200 and answer.read() == bodies[name], (i, name)
"""
        subprocess.run(self.carried(f"connect *:{port}", PYTHON, "-c", client, self.folder,
                                    str(port)), check=True, timeout=120)
        self.stop(process)
        # http.client makes streams of sockets, but by recv_into(): they can be carried.
        self.check_bytes("nginx", 5 << 20)

    def test_nginx_with_wrk(self):
        load = self.need("wrk")
        process, port = self.nginx()
        done = subprocess.run(
            self.carried(f"connect *:{port}", load, "-t1", "-c32", "-d1",
                         f"http://127.0.0.1:{port}/small"),
            capture_output=True, text=True, timeout=120, check=True)
        self.assertNotIn("Socket errors", done.stdout)
        self.assertNotIn("Non-2xx", done.stdout)
        self.assertGreater(int(re.search(r"(\d+) requests in", done.stdout).group(1)), 100)
        self.stop(process)
        self.check_bytes("nginx", 100000)
        self.check_bytes("wrk", 100000)

    def echo(self, kind, clients):
        port = ports.free()
        server = self.start(*self.carried(f"listen *:{port}", PYTHON, "-c", SERVER, kind,
                                          str(port)), stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        running = [self.start(*self.carried(f"connect *:{port}", PYTHON, "-c", CLIENT, str(port),
                                            str(i))) for i in range(clients)]
        for client in running:
            self.assertEqual(client.wait(sockets_tool.DEADLINE_S), 0)
        self.assertEqual(server.wait(sockets_tool.DEADLINE_S), 0)
        stats = self.stats()
        self.assertGreater(stats["in_bytes"], 1000000, stats)
        self.assertEqual(stats["broken"], 0, stats)

    def test_python_selectors(self):
        self.echo("selectors", 1)

    def test_python_threads(self):
        self.echo("threads", 4)

    def test_python_forks(self):
        self.echo("fork", 4)

    def test_plain_client(self):
        """One end without the library: plain TCP, and it is counted."""
        process, port = self.redis("listen *:PORT")
        with socket.create_connection(("127.0.0.1", port)) as conn:
            for _ in range(200):
                conn.sendall(b"PING\r\n")
                self.assertEqual(conn.recv(100), b"+PONG\r\n")
        self.stop(process)
        stats = self.stats("redis-server")
        self.assertEqual(stats["carried"], 0, stats)
        self.assertEqual(stats["nobody"], 1, stats)

    def test_connections_share_a_bell(self):
        """Also those that are met at the same time: one group of two segments for a pair of processes."""
        process, port = self.redis("listen *:PORT")
        client = f"""
import socket
conns = [socket.create_connection(("127.0.0.1", {port})) for _ in range(16)]
for _ in range(100):
    for conn in conns:
        conn.sendall(b"PING\\r\\n")
    for conn in conns:
        assert conn.recv(100) == b"+PONG\\r\\n"
with open("/proc/self/maps") as file:
    print(sum("memfd:clan-group" in line for line in file))
"""
        done = subprocess.run(self.carried(f"connect *:{port}", PYTHON, "-c", client), check=True,
                              capture_output=True, text=True, timeout=60)
        self.stop(process)
        self.assertEqual(self.stats("python3")["carried"], 16)
        self.assertEqual(done.stdout, "2\n")

    def test_show(self):
        process, port = self.redis("listen *:PORT")
        client = f"""
import socket, sys
conn = socket.create_connection(("127.0.0.1", {port}))
for _ in range(100):
    conn.sendall(b"PING\\r\\n")
    assert conn.recv(100) == b"+PONG\\r\\n"
print("there", flush=True)
sys.stdin.read()
"""
        peer = self.start(*self.carried(f"connect *:{port}", PYTHON, "-c", client),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(peer.stdout.readline(), "there\n")
        shown = subprocess.run([sockets_tool.RUN, "--show", str(process.pid)],
                               capture_output=True, text=True, check=True).stdout
        self.assertRegex(shown, rf"^{process.pid} redis-server\n"
                                r"  connections that match a rule: [1-9]\d*\n"
                                r"  carried by shared memory: 1 now, 1 in total; [1-9]\d* bytes in, "
                                r"[1-9]\d* bytes out\n"
                                r"  \d+ @clan-tcp/")
        self.assertRegex(shown, r"clan-tcp/[0-9a-f]{32}\.\d+/[0-9a-f]{32}\.\d+: [1-9]")
        everything = subprocess.run([sockets_tool.RUN, "--show"], capture_output=True, text=True,
                                    check=True).stdout
        self.assertIn(f"{peer.pid} python3", everything)
        peer.communicate()
        # The server learns of it by itself.
        closed = ("carried by shared memory: 0 now, 1 in total",
                  "not carried, or no longer carried, by reason: peer 1\n")
        while not all(text in shown for text in closed):
            self.assertIsNone(process.poll())
            shown = subprocess.run([sockets_tool.RUN, "--show", str(process.pid)],
                                   capture_output=True, text=True, check=True).stdout
        self.stop(process)


if __name__ == "__main__":
    sockets_tool.RUN = sys.argv.pop(1)
    MPI_EXCHANGE = sys.argv.pop(1)
    unittest.main()
