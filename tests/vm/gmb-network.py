#!/usr/bin/python3
"""gmb-network.py GMBLOCK SEND-FILE KERNEL PROVIDER: gmb and push between two guests, over TCP, or by verbs
over soft RoCE. What one of them has is read, changed and read again in the other, and measured; a file is
sent with gmb_send_file(); and the server of one pushes its disk to the server of the other."""
import json
import os
import sys

import testing

GMBLOCK, SEND_FILE = map(os.path.realpath, sys.argv[1:3])
KERNEL, PROVIDER = sys.argv[3:5]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Loaded when they are needed, so ldd does not name them.
LOADED = [f"{LIBRARIES}/libfabric.so.1"]
if PROVIDER == "verbs":
    LOADED += [f"{LIBRARIES}/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver"]

PREPARE = f"export FI_PROVIDER={PROVIDER}  # the others of libfabric take their time\n"
if PROVIDER == "verbs":
    PREPARE += "rdma link add rxe0 type rxe netdev eth0\n"

SERVER = PREPARE + f"""
head -c 16777216 /dev/urandom >/dev/shm/disk
gmblock serve --handshake-timeout 200s /dev/shm/disk \\
    --listen 'gmb://server?provider={PROVIDER}&insecure-network=yes' \\
    --listen 'push://server?provider={PROVIDER}&insecure-network=yes' >uri 2>/results/errors &
server=$!
until grep -q push: uri; do kill -0 $server; sleep 0.1; done
cp uri /results/uri
lab-signal ready "$(sha256sum </dev/shm/disk)"
for step in written sent pushed; do
	sum=$(lab-wait $step)
	test "$(sha256sum </dev/shm/disk)" = "$sum"
	lab-signal seen-$step
done
lab-wait exit.client >/dev/null
kill $server
wait $server
"""

CLIENT = PREPARE + f"""
uri='gmb://server?provider={PROVIDER}'
sum=$(lab-wait ready)
gmblock info --timeout 200s "$uri" >/results/info
gmblock copy --connections 1 --verify "$uri" /dev/shm/copy
test "$(sha256sum </dev/shm/copy)" = "$sum"
head -c 16777216 /dev/urandom >/dev/shm/copy
gmblock copy --connections 1 --verify /dev/shm/copy "$uri"
lab-signal written "$(sha256sum </dev/shm/copy)"
lab-wait seen-written >/dev/null

head -c 16777216 /dev/urandom >/dev/shm/copy
{SEND_FILE} "$uri" /dev/shm/copy
lab-signal sent "$(sha256sum </dev/shm/copy)"
lab-wait seen-sent >/dev/null

head -c 16777216 /dev/urandom >/dev/shm/copy
gmblock serve --handshake-timeout 200s /dev/shm/copy --control none --push-to 10.77.0.1,port=any \\
    --listen 'push://client?provider={PROVIDER}&insecure-network=yes' >/tmp/uri 2>/results/errors &
source=$!
until [ -s /tmp/uri ]; do kill -0 $source; sleep 0.1; done
gmblock push --timeout 200s --verify --connections 2 --json 'push://client?provider={PROVIDER}' \\
    'push://server?provider={PROVIDER}' >/results/push
lab-signal pushed "$(sha256sum </dev/shm/copy)"
lab-wait seen-pushed >/dev/null
kill $source
wait $source

for work in '--bs 4k --depth 16' '--bs 1M --depth 4'; do
	gmblock bench --timeout 200s --seconds 2 $work "$uri" >>/results/bench
done
"""


def read(guest, name):
    with open(f"{guest.results}/{name}", encoding="utf-8") as file:
        return file.read()


def test_two_guests():
    for path in LOADED:
        if not os.path.exists(path):
            raise testing.Unavailable(f"{path} is missing")
    options = {"files": [(GMBLOCK, "/lab/gmblock"), *((path, path) for path in (SEND_FILE, *LOADED))],
               "memory": 1024}
    if PROVIDER == "verbs":
        options |= {"programs": ["rdma"],
                    "load": ["crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs"]}
    with testing.laboratory() as lab:
        server = lab.guest("server", KERNEL, SERVER, **options)
        client = lab.guest("client", KERNEL, CLIENT, **options)
        lab.start()
        testing.finish(lab)
        assert read(server, "uri").splitlines()[0] == f"gmb://server:10810?provider={PROVIDER}", lab.story()
        pushed = json.loads(read(client, "push"))
        assert (pushed["state"], pushed["bytes_done"]) == ("done", 16 << 20), pushed
        assert "16 MiB" in read(client, "info"), lab.story()
        print([line for line in read(client, "bench").splitlines() if "B/s" in line])


testing.main(test_two_guests)
