#!/usr/bin/python3
"""killed-server.py GMBLOCK KERNEL: a server is killed, again and again, with direct writes on a disk
that takes its time (dm-delay). No client gets the next server's export before the last of these
writes has landed; nothing that was acknowledged as durable is lost; nothing that was answered later
is overtaken."""
import os
import sys
import tempfile

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
KILLS = 20
DISK_BYTES = 16 << 20

SCRIPT = r"""
sectors=$(blockdev --getsz /dev/vda)
dmsetup create --noudevsync slow --table "0 $sectors delay /dev/vda 0 0 /dev/vda 0 1000"
exec python3 /lab/kills.py
"""

KILLS_PY = f"""
import signal
import subprocess

import nbdmini

DISK = "/dev/dm-0"
BLOCK = 65536
WRITES = 32


def start():
    server = subprocess.Popen(
        ["gmblock", "serve", "--export", f"={{DISK}},mode=direct", "--listen",
         "nbd+unix:///?socket=/tmp/s"], stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().rstrip()


def writes_under_way():
    with open("/sys/block/dm-0/inflight") as file:
        return int(file.read().split()[1])


def pattern(kill, place):
    return bytes([kill + 1, place]) * (BLOCK // 2)


late = 0
server, uri = start()
client = nbdmini.open_export(uri)
for kill in range({KILLS}):
    # Durable: it must be there when the server is not any more.
    client.write(WRITES * BLOCK, pattern(kill, 255))
    client.flush()
    for place in range(WRITES):
        client.send_request(nbdmini.CMD_WRITE, place, place * BLOCK, BLOCK,
                            pattern(kill, 128 + place))
    while writes_under_way() == 0:
        pass
    server.send_signal(signal.SIGKILL)
    server.wait()
    late += writes_under_way() > 0
    client.close()

    server, uri = start()
    client = nbdmini.open_export(uri)
    assert writes_under_way() == 0, f"after kill {{kill}} writes were still under way"
    assert client.read(WRITES * BLOCK, BLOCK) == pattern(kill, 255)
    for place in range(WRITES):
        client.send_request(nbdmini.CMD_WRITE, place, place * BLOCK, BLOCK, pattern(kill, place))
    assert sorted(client.reply() for place in range(WRITES)) == [(p, 0) for p in range(WRITES)]
    client.flush()
    for place in range(WRITES):
        assert client.read(place * BLOCK, BLOCK) == pattern(kill, place), (kill, place)
client.close()
server.terminate()
assert server.wait() == 0
with open("/results/late", "w") as file:
    print(late, file=file)
"""


def test_the_next_server_waits_for_the_writes_of_a_killed_one():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        kills = os.path.join(folder, "kills.py")
        with open(kills, "w", encoding="ascii") as file:
            file.write(KILLS_PY)
        guest = lab.guest("one", KERNEL, SCRIPT, memory=1024,
                          files=[(GMBLOCK, "/lab/gmblock"), (kills, "/lab/kills.py"),
                                 (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py"),
                                 ("/usr/lib/python3.11", "/usr/lib/python3.11")],
                          packages=["libdevmapper1.02.1", "dmsetup"], programs=["python3"],
                          modules=["dm_mod", "dm_delay"], disks=[DISK_BYTES])
        lab.start()
        testing.finish(lab)
        with open(os.path.join(guest.results, "late"), encoding="ascii") as file:
            late = int(file.read())
        print(f"{late} of {KILLS} kills left writes behind")
        assert late > 0


testing.main(test_the_next_server_waits_for_the_writes_of_a_killed_one)
