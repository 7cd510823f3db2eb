#!/usr/bin/python3
"""killed-server.py GMBLOCK KERNEL: a server is killed, again and again, with direct writes on a disk
that keeps them (dm-delay) until the test lets them go on. Until then no client gets the next
server's export. Then the first one finds there all that the killed server had handed to the disk,
and what was acknowledged as durable.

How much a process has handed to disks is counted in /proc/PID/io, also of one that is dead and not
yet waited for. What the disk has done is in its stat; its inflight leaves out what dm-delay keeps.
"""
import os
import sys
import tempfile

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
KILLS = 10
DISK_BYTES = 16 << 20

# Writes are kept, but for those of the disk's last MiB. Flushes pass.
SCRIPT = r"""
sectors=$(blockdev --getsz /dev/vda)
slow=$((sectors - 2048))
dmsetup create --noudevsync slow <<END
0 $slow delay /dev/vda 0 0 /dev/vda 0 3600000 /dev/vda 0 0
$slow 2048 linear /dev/vda $slow
END
exec python3 /lab/kills.py
"""

KILLS_PY = f"""
import os
import signal
import subprocess

import nbdmini

DISK = "/dev/dm-0"
PAGE = 4096
BLOCK = 16 * PAGE
WRITES = 32
DURABLE = {DISK_BYTES} - BLOCK


class Server:
    count = 0
    killed = None

    def __init__(self):
        # Another socket each time: that of a killed one stays until its last write is over.
        if Server.count > 0:
            for uri, reason in ((f"nbd+unix:///?socket=/tmp/{{Server.count}}",
                                 f"the socket of process {{Server.killed}}, which has exited"),
                                (f"nbd://127.0.0.1:{{7000 + Server.count}}", "a write of a killed server")):
                refused = subprocess.run(["gmblock", "serve", "null:1M", "--listen", uri],
                                         stderr=subprocess.PIPE, text=True)
                assert refused.returncode == 1 and reason in refused.stderr, refused
        Server.count += 1
        self.process = subprocess.Popen(
            ["gmblock", "serve", "--export", f"={{DISK}},mode=direct,sched=off", "--threads", "1",
             "--handshake-timeout", "60s", "--listen", f"nbd+unix:///?socket=/tmp/{{Server.count}}",
             "--listen", f"nbd://127.0.0.1:{{7000 + Server.count}}"],
            stdout=subprocess.PIPE, text=True)
        self.uri = self.process.stdout.readline().rstrip()

    def handed_over(self):
        # Bytes that it has given to the disk.
        with open(f"/proc/{{self.process.pid}}/io") as file:
            return int(dict(line.split(": ") for line in file)["write_bytes"])

    def kill(self):
        # Gives the bytes that it had given to the disk.
        self.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        count = self.handed_over()
        self.process.wait()
        Server.killed = self.process.pid
        return count


def landed():
    # Bytes that the disk has written.
    with open("/sys/block/dm-0/stat") as file:
        return int(file.read().split()[6]) * 512


def let_writes_go_on():
    # dm-delay keeps nothing while it is suspended, which waits for what it had.
    subprocess.run(["dmsetup", "suspend", "--nolockfs", "slow"], check=True)
    subprocess.run(["dmsetup", "resume", "--noudevsync", "slow"], check=True)


def page(kill, place):
    return bytes([kill + 1, place]) * (PAGE // 2)


def new_bytes(client, kill):
    found = 0
    for place in range(WRITES):
        block = client.read(place * BLOCK, BLOCK)
        found += sum(PAGE for at in range(0, BLOCK, PAGE)
                     if block[at:at + PAGE] == page(kill, place))
    return found


def open_behind_writes(server):
    client = nbdmini.Client(server.uri)
    client.hello()
    client.send_option(nbdmini.OPT_GO, bytes(6))
    with nbdmini.Client(server.uri) as other:
        other.hello()
        other.list()  # when this is answered, the server has seen the other option, too
    client.sock.setblocking(False)
    try:
        raise AssertionError(f"the client was let in: {{client.sock.recv(20)}}")
    except BlockingIOError:
        client.sock.settimeout(nbdmini.TIMEOUT_S)
    let_writes_go_on()
    client.option_replies(nbdmini.OPT_GO)
    return client


server = Server()
client = nbdmini.open_export(server.uri)
for kill in range({KILLS}):
    client.write(DURABLE, page(kill, 255) * (BLOCK // PAGE))
    client.flush()
    handed_before, landed_before = server.handed_over(), landed()
    for place in range(WRITES):
        client.send_request(nbdmini.CMD_WRITE, place, place * BLOCK, BLOCK,
                            page(kill, place) * (BLOCK // PAGE))
    # From one write at least to nearly all of them.
    while server.handed_over() - handed_before < (kill * WRITES // {KILLS} + 1) * BLOCK:
        pass
    written = server.kill() - handed_before
    assert landed() == landed_before, f"kill {{kill}}: the disk did not keep the writes"
    client.close()

    server = Server()
    client = open_behind_writes(server)
    found = new_bytes(client, kill)
    assert found == written, f"kill {{kill}}: {{found}} of {{written}} bytes are there"
    assert client.read(DURABLE, BLOCK) == page(kill, 255) * (BLOCK // PAGE), f"kill {{kill}}"
client.close()
server.process.terminate()
assert server.process.wait() == 0
"""


def test_the_next_server_waits_for_the_writes_of_a_killed_one():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        kills = os.path.join(folder, "kills.py")
        with open(kills, "w", encoding="ascii") as file:
            file.write(KILLS_PY)
        lab.guest("one", KERNEL, SCRIPT, memory=1024,
                  files=[(GMBLOCK, "/lab/gmblock"), (kills, "/lab/kills.py"),
                         (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py"),
                         ("/usr/lib/python3.11", "/usr/lib/python3.11")],
                  packages=["libdevmapper1.02.1", "dmsetup"], programs=["python3"],
                  modules=["dm_mod", "dm_delay"], disks=[DISK_BYTES])
        lab.start()
        testing.finish(lab)


testing.main(test_the_next_server_waits_for_the_writes_of_a_killed_one)
