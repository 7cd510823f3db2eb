#!/usr/bin/python3
"""attach-lent.py GMBLOCK KERNEL ROUNDS: ublk over plain NBD, whose payload goes directly between the socket and the
pages of the kernel's requests. fio writes and verifies while server and daemon are killed in turn, ROUNDS times (10%:
that part of 100); holes of the server arrive as zeroes; a forced detach does not wait for a server that stops in the
middle of a payload; and connections that need it still copy."""
import os
import sys

import testing

GMBLOCK, KERNEL, ROUNDS = sys.argv[1:4]
if ROUNDS.endswith("%"):
    ROUNDS = str(max(1, int(ROUNDS[:-1]) * int(os.environ.get("SOAK_PERCENT", "100")) // 100))

COMMON = r"""
plain=nbd://127.0.0.1:10809
local='nbd+unix:///?socket=/tmp/s'
native='gmb+unix:///?socket=/tmp/g'
serve()
{
	rm -f /tmp/s /tmp/g /tmp/uri
	gmblock serve /dev/shm/disk --listen $plain --listen "$local" --listen "$native" --tls on --tls-psk /tmp/keys.psk \
		>/tmp/uri 2>>/results/server &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
field() # NAME
{
	gmblock attach --list --json | sed -n "s/.*\"$1\": \([0-9a-z]*\).*/\1/p"
}
(umask 077; echo "alice:$(printf %064d 1)" >/tmp/keys.psk)
truncate -s 128M /dev/shm/disk
"""

KILLS = COMMON + r"""
head -c 33554432 /dev/urandom >/dev/shm/noise
dd if=/dev/shm/noise of=/dev/shm/disk bs=1M seek=64 conv=notrunc status=none
serve
disk=$(gmblock attach --ublk --request-timeout 5s $plain)

# Holes, data, and requests that contain both.
dd if=$disk of=/tmp/half bs=1M skip=48 count=64 iflag=direct status=none
dd if=/dev/shm/disk bs=1M skip=48 count=64 status=none | cmp - /tmp/half
rm /tmp/half
/usr/sbin/blkdiscard -z -o 1M -l 1M $disk
dd if=/dev/shm/noise of=$disk bs=64k count=16 seek=200 oflag=direct status=none
cmp -n 1048576 /dev/shm/noise /dev/shm/disk 0 13107200

fio --name=verify --filename=$disk --size=48M --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --rwmixread=30 \
	--bsrange=4k-512k --verify=crc32c --verify_backlog=64 --do_verify=1 --time_based --runtime=100000 \
	--output=/tmp/fio &
fio=$!
sectors() { awk '{ print $3 + $7 }' /sys/block/${disk#/dev/}/stat; }
progress() # until data moves again
{
	from=$(sectors)
	until [ $(($(sectors) - from)) -gt 4096 ]; do kill -0 $fio; sleep 0.05; done
}
progress
round=0
while [ $round -lt ROUNDS ]; do
	kill -9 $server
	wait $server || true
	serve
	progress
	test "$(field staged_bytes)" = 0
	kill -9 $(field pid)
	until [ "$(field alive)" = false ]; do sleep 0.05; done
	test "$(gmblock attach --ublk --request-timeout 5s $plain)" = $disk
	progress
	round=$((round + 1))
done
kill -INT $fio
wait $fio || true # which it was told to end
grep -q "err= 0" /tmp/fio && ! grep -E "^verify: bad|error" /tmp/fio || { cat /tmp/fio; exit 1; }
test "$(field staged_bytes)" = 0
gmblock detach $disk

# Connections of other kinds copy each byte that is read or written.
for uri in "$local" "$native" "nbds://alice@127.0.0.1:10809/?tls-psk-file=/tmp/keys.psk"; do
	disk=$(gmblock attach --ublk --readahead 512K "$uri")
	before=$(field staged_bytes)
	dd if=/dev/shm/noise of=$disk bs=1M count=8 oflag=direct status=none
	dd if=$disk bs=1M count=8 iflag=direct status=none | cmp -n 8388608 - /dev/shm/noise
	test $(($(field staged_bytes) - before)) = 16777216
	gmblock detach $disk
done
dmesg >/results/dmesg
""".replace("ROUNDS", ROUNDS)

HUNG = COMMON + r"""
head -c 134217728 /dev/urandom >/dev/shm/disk
serve
disk=$(gmblock attach --ublk $plain)
(while dd if=$disk of=/dev/null bs=1M iflag=direct status=none; do :; done) 2>/dev/null &
until [ "$(awk '{ print $3 }' /sys/block/${disk#/dev/}/stat)" -gt 16384 ]; do sleep 0.05; done
kill -STOP $server
gmblock detach --force $disk
test "$(gmblock attach --list --json)" = "[]"
kill -CONT $server
"""


def run(script):
    with testing.laboratory() as lab:
        lab.guest("one", KERNEL, script, load=["ublk_drv"], memory=768, files=[(GMBLOCK, "/lab/gmblock")],
                  programs=["blkdiscard", "fio", "dd", "cmp"])
        lab.start()
        testing.finish(lab)


def test_killed_servers_and_daemons():
    run(KILLS)


def test_a_server_that_stops():
    run(HUNG)


testing.main(test_killed_servers_and_daemons, test_a_server_that_stops)
