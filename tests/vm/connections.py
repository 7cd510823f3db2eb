#!/usr/bin/python3
"""connections.py GMBLOCK KERNEL [rates]: several connections on a network that limits each flow (fq
maxrate), between two guests, over NBD and over gmb, and for a push. The library adds connections while
they help, and a copy with them survives a killed server. With "rates", one and four connections run too,
and the rates are printed."""
import json
import sys

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
RATES = sys.argv[3:] == ["rates"]
NUMBERS = ("1", "4", "auto") if RATES else ("auto",)
PUSHES = ("1", "4") if RATES else ("4",)
FLOW = 1 << 20  # bytes per second of a flow: far less than the guests can do on a busy machine

SERVER = r"""
/usr/sbin/tc qdisc replace dev eth0 root fq maxrate 8mbit  # busybox has a tc of its own
head -c 50331648 /dev/urandom >/dev/shm/disk
serve()
{
	gmblock serve /dev/shm/disk --listen nbd://0.0.0.0:10809 \
		--listen 'gmb://0.0.0.0:10810?insecure-network=yes' --push-to 10.0.0.0/8 \
		--listen 'push://0.0.0.0:10811?insecure-network=yes' >/tmp/uri 2>>/results/errors &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
serve
lab-signal ready "$(sha256sum </dev/shm/disk)"
lab-wait copying >/dev/null
kill -9 $server
wait $server || true
rm /tmp/uri
serve
lab-wait exit.client >/dev/null
kill $server
wait $server
"""

CLIENT = r"""
sum=$(lab-wait ready)
for scheme in nbd gmb; do
	for connections in NUMBERS; do
		gmblock bench --rw read --bs 64k --depth 16 --warmup WARMUP --seconds 6 --json \
			--connections $connections $scheme://server/ >/results/$scheme-$connections
	done
done
truncate -s 50331648 /dev/shm/pushed
gmblock serve /dev/shm/pushed --listen 'push://0.0.0.0:10811?insecure-network=yes' >/tmp/uri &
until [ -s /tmp/uri ]; do sleep 0.1; done
for connections in PUSHES; do
	gmblock push --connections $connections --verify --json push://server push://client >/results/push-$connections
	test "$(sha256sum </dev/shm/pushed)" = "$sum"
done
gmblock copy --connections auto nbd://server/ /dev/shm/copy &
copy=$!
until [ "$(du -k /dev/shm/copy 2>/dev/null | cut -f1)0" -gt 80000 ]; do kill -0 $copy; sleep 0.1; done
lab-signal copying
wait $copy
test "$(sha256sum </dev/shm/copy)" = "$sum"
""".replace("PUSHES", " ".join(PUSHES)).replace("NUMBERS", " ".join(NUMBERS)).replace("WARMUP", "20" if RATES else "8")


def test_two_guests():
    options = {"files": [(GMBLOCK, "/lab/gmblock")], "memory": 512}
    with testing.laboratory() as lab:
        lab.guest("server", KERNEL, SERVER, load=["sch_fq"], programs=["tc"], **options)
        client = lab.guest("client", KERNEL, CLIENT, **options)
        lab.start()
        testing.finish(lab)
        for scheme in ("nbd", "gmb"):
            rates = {}
            for connections in NUMBERS:
                with open(f"{client.results}/{scheme}-{connections}", encoding="utf-8") as file:
                    result = json.load(file)
                rates[connections] = result["read"]["bytes_per_second"] / FLOW
                count = result["work"]["connections"]
            print(f"{scheme}: {rates}, auto: {count} connections")
            assert count >= 2, lab.story()
        rates = {}
        for connections in PUSHES:
            with open(f"{client.results}/push-{connections}", encoding="utf-8") as file:
                result = json.load(file)
            rates[connections] = result["bytes"] / result["seconds"] / FLOW
        print(f"push: {rates}")


testing.main(test_two_guests)
