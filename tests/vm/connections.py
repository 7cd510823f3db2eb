#!/usr/bin/python3
"""connections.py GMBLOCK KERNEL [rates]: several connections on a network that limits each flow (fq
maxrate), between two guests, over NBD and over gmb, for a push, and for attached disks. The library adds
connections while they help, and a copy with them survives a killed server. With "rates", four connections
must be at least 3.6 times as fast as one."""
import json
import sys

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
RATES = sys.argv[3:] == ["rates"]
NUMBERS = ("1", "4", "auto") if RATES else ("auto",)
PUSHES = ("1", "4") if RATES else ("4",)
FLOW = 500000 if RATES else 1000000  # bytes per second of a flow: far less than the guests can do on a busy machine
# A push ends with its slowest piece of 1 MiB, and has to start: neither may matter.
DISK_BYTES = (64 if RATES else 48) << 20

SERVER = r"""
/usr/sbin/tc qdisc replace dev eth0 root fq maxrate MAXRATE  # busybox has a tc of its own
head -c DISK_BYTES /dev/urandom >/dev/shm/disk
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
""".replace("DISK_BYTES", str(DISK_BYTES)).replace("MAXRATE", f"{8 * FLOW}bit")

CLIENT = r"""
sum=$(lab-wait ready)
for scheme in nbd gmb; do
	for connections in NUMBERS; do
		warmup=4
		[ $connections != auto ] || warmup=WARMUP
		gmblock bench --rw read --bs 32k --depth 16 --warmup $warmup --seconds SECONDS --json \
			--connections $connections $scheme://server/ >/results/$scheme-$connections
	done
done
truncate -s DISK_BYTES /dev/shm/pushed
gmblock serve /dev/shm/pushed --listen 'push://0.0.0.0:10811?insecure-network=yes' >/tmp/uri &
until [ -s /tmp/uri ]; do sleep 0.1; done
for connections in PUSHES; do
	gmblock push --connections $connections --json push://server push://client >/results/push-$connections
	test "$(sha256sum </dev/shm/pushed)" = "$sum"
done

# Attached disks: the given number of connections, or as many as help, starting with one over gmb.
flows() # PORT: the number of connections to it
{
	awk -v "port=$(printf :%X $1)" '$3 ~ port "$" && $4 == "01"' /proc/net/tcp | wc -l
}
disk=$(gmblock attach --ublk --readahead 512K --connections 4 nbd://server/)
until [ $(flows 10809) = 4 ]; do sleep 0.1; done
dd if=$disk bs=8M count=1 iflag=direct status=none | cmp -n 8388608 - /dev/shm/pushed
test $(flows 10809) = 4
gmblock detach $disk
disk=$(gmblock attach --ublk --readahead 512K --connections auto gmb://server/)
test $(flows 10810) = 1
readers=
for reader in 0 1 2 3 4 5 6 7; do
	(until [ -e /tmp/grown ]; do dd if=$disk of=/dev/null bs=64k skip=$((reader * 16)) count=16 iflag=direct status=none; done) &
	readers="$readers $!"
done
until [ $(flows 10810) -ge 3 ]; do # the third follows when the second has helped
	kill -0 $readers
	sleep 0.1
done
touch /tmp/grown
wait $readers
gmblock detach $disk

gmblock copy --connections auto nbd://server/ /dev/shm/copy &
copy=$!
until [ "$(du -k /dev/shm/copy 2>/dev/null | cut -f1)0" -gt 80000 ]; do kill -0 $copy; sleep 0.1; done
lab-signal copying
wait $copy
test "$(sha256sum </dev/shm/copy)" = "$sum"
"""
for name, value in (("PUSHES", " ".join(PUSHES)), ("NUMBERS", " ".join(NUMBERS)), ("WARMUP", "20" if RATES else "8"),
                    ("SECONDS", "12" if RATES else "6"), ("DISK_BYTES", str(DISK_BYTES))):
    CLIENT = CLIENT.replace(name, value)


def read(guest, name):
    with open(f"{guest.results}/{name}", encoding="utf-8") as file:
        return json.load(file)


def check(name, rates):
    """rates: {connections: bytes per second}"""
    print(f"{name}:", *(f"{connections}: {rate / FLOW:.2f} flows," for connections, rate in rates.items()),
          f"4 over 1: {rates['4'] / rates['1']:.2f}" if RATES else "", flush=True)
    assert not RATES or rates["4"] >= 3.6 * rates["1"], name


def test_two_guests():
    options = {"files": [(GMBLOCK, "/lab/gmblock")], "memory": 512}
    with testing.laboratory(1200 if RATES else testing.TIME_LIMIT) as lab:
        lab.guest("server", KERNEL, SERVER, load=["sch_fq"], programs=["tc"], **options)
        client = lab.guest("client", KERNEL, CLIENT, load=["ublk_drv"], programs=["dd", "cmp"], **options)
        lab.start()
        testing.finish(lab)
        for scheme in ("nbd", "gmb"):
            results = {connections: read(client, f"{scheme}-{connections}") for connections in NUMBERS}
            print(f"{scheme}, auto: {results['auto']['work']['connections']} connections")
            assert results["auto"]["work"]["connections"] >= 2, lab.story()
            check(scheme, {connections: result["read"]["bytes_per_second"] for connections, result in results.items()})
        results = {connections: read(client, f"push-{connections}") for connections in PUSHES}
        check("push", {connections: result["bytes"] / result["seconds"] for connections, result in results.items()})


testing.main(test_two_guests)
