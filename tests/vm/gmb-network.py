#!/usr/bin/python3
"""gmb-network.py GMBLOCK KERNEL PROVIDER: gmb between two guests, over TCP, or by verbs
over soft RoCE. What one of them has is read, changed and read again in the other, and measured."""
import os
import sys

import testing

GMBLOCK, KERNEL, PROVIDER = sys.argv[1:4]
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
    --listen 'gmb://server?provider={PROVIDER}&insecure-network=yes' >uri 2>/results/errors &
server=$!
until [ -s uri ]; do kill -0 $server; sleep 0.1; done
cp uri /results/uri
lab-signal ready "$(sha256sum </dev/shm/disk)"
sum=$(lab-wait written)
test "$(sha256sum </dev/shm/disk)" = "$sum"
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
    options = {"files": [(GMBLOCK, "/lab/gmblock"), *((path, path) for path in LOADED)],
               "memory": 1024}
    if PROVIDER == "verbs":
        options |= {"programs": ["rdma"],
                    "load": ["crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs"]}
    with testing.laboratory() as lab:
        server = lab.guest("server", KERNEL, SERVER, **options)
        client = lab.guest("client", KERNEL, CLIENT, **options)
        lab.start()
        testing.finish(lab)
        assert read(server, "uri") == f"gmb://server:10810?provider={PROVIDER}\n", lab.story()
        assert "16 MiB" in read(client, "info"), lab.story()
        print([line for line in read(client, "bench").splitlines() if "B/s" in line])


testing.main(test_two_guests)
