#!/usr/bin/python3
"""attach-readahead.py GMBLOCK KERNEL KIND: the readahead of an attached disk (KIND is ublk, nbd or
fuse), on a link with a round trip of a millisecond and a disk of limited speed. The measured rates of
buffered reads are printed, with the kernel's default readahead and with ours. On longer links of a known
rate, the readahead is twice the product of rate and round trip."""
import sys

import testing

GMBLOCK, KERNEL, KIND = sys.argv[1:4]
MODULE = {"ublk": ["ublk_drv"], "nbd": ["nbd"], "fuse": []}[KIND]
GROWS = "yes" if KIND != "ublk" or KERNEL != "6.12" else "no"

SCRIPT = r"""
ip link set lo up
# busybox has a tc of its own
/usr/sbin/tc qdisc replace dev lo root netem delay 500us limit 100000
head -c 67108864 /dev/urandom >/dev/shm/disk
gmblock serve --listen nbd://127.0.0.1:10809 --export =/dev/shm/disk,pace=400M:latency=300us \
	>/tmp/uri 2>>/results/server &
server=$!
until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
uri=nbd://127.0.0.1:10809/
attach()
{
	case KIND in
	fuse)
		disk=$(gmblock attach --fuse /tmp/file "$@" "$uri")
		number=$(sed -n "s/^[0-9]* [0-9]* \([0-9:]*\) [^ ]* .tmp.file .*/\1/p" /proc/self/mountinfo)
		file=/sys/class/bdi/$number/read_ahead_kb ;;
	*)
		disk=$(gmblock attach --KIND "$@" "$uri")
		file=/sys/block/${disk#/dev/}/queue/read_ahead_kb ;;
	esac
}
rate() # NAME: prints the rate of buffered reads in MiB/s
{
	echo 3 >/proc/sys/vm/drop_caches
	before=$(cut -d' ' -f1 /proc/uptime)
	dd if=$disk of=/dev/null bs=64k 2>/dev/null
	after=$(cut -d' ' -f1 /proc/uptime)
	echo "$1 $(awk "BEGIN { printf \"%.1f\", 64 / ($after - $before) }")" >>/results/rates
}

# Given sizes are set as they are.
attach --readahead 256K
test "$(cat $file)" = 256
gmblock detach $disk
attach --readahead 0
test "$(cat $file)" = 0
gmblock detach $disk
! gmblock attach --KIND_OPTION --readahead 1000 "$uri" 2>/tmp/refusal
grep "multiple of 1K" /tmp/refusal

# By default, it is measured.
attach --log-level debug
until dmesg | grep "a round trip"; do sleep 0.1; done
sleep 0.2
cat $file >/results/auto
dmesg | grep 'a round trip' | cut -d: -f2- >/results/measured
for i in 1 2 3; do
	echo 128 >$file
	rate default
	cat /results/auto >$file
	rate auto
done

# What is set stays when the disk grows, whoever has set it.
echo 640 >$file
truncate -s 80M /dev/shm/disk
gmblock export set "" size=auto --server $server
if [ GROWS = yes ]; then
	until gmblock attach --list --json | grep '"size": 83886080'; do sleep 0.05; done
fi
test "$(cat $file)" = 640
gmblock detach $disk

# Longer links need more, up to 8 MiB.
for delay in 50 100; do
	/usr/sbin/tc qdisc replace dev lo root netem delay ${delay}ms rate 64mbit limit 100000
	size=0
	until [ $size -gt 512 ]; do # at most 512: a pause of the machine has spoiled the measurement
		dmesg -c >/dev/null
		attach --log-level debug
		until dmesg | grep "a round trip"; do sleep 0.1; done
		sleep 0.2
		size=$(cat $file)
		gmblock detach $disk
	done
	dmesg | sed -n "s/.*read of \([0-9]*\) bytes takes \([0-9]*\) us, a round trip \([0-9]*\) us/$delay $size \1 \2 \3/p" >>/results/links
done
"""


def check_links(guest):
    """The readahead is twice the product of rate and round trip."""
    found = set()
    with open(f"{guest.results}/links", encoding="utf-8") as file:
        for line in file:
            delay_ms, kib, count, read_us, trip_us = map(int, line.split())
            print(f"delay {delay_ms} ms: {count} bytes in {read_us} us, round trip {trip_us} us: {kib} KiB")
            wanted = min(2 * count * trip_us / (read_us - trip_us) / 1024, 8192)
            assert abs(kib - wanted) <= 4 + wanted / 100, wanted  # a page, and the rounding of the times
            assert trip_us >= 2 * 1000 * delay_ms
            found.add(kib)
    assert len(found) == 2, found


def test_readahead():
    script = SCRIPT.replace("KIND_OPTION", KIND if KIND != "fuse" else "fuse /tmp/file")
    script = script.replace("KIND", KIND).replace("GROWS", GROWS)
    with testing.laboratory() as lab:
        guest = lab.guest("guest", KERNEL, script, files=[(GMBLOCK, "/lab/gmblock"), *FILES],
                          load=[*MODULE, "sch_netem"], programs=["tc"], memory=512)
        lab.start()
        testing.finish(lab)
        with open(f"{guest.results}/auto", encoding="utf-8") as file:
            auto = int(file.read())
        assert 512 <= auto <= 8192, lab.story()
        check_links(guest)
        print(f"auto: {auto} KiB; MiB/s of dd:")
        for name in ("measured", "rates"):
            with open(f"{guest.results}/{name}", encoding="utf-8") as file:
                print(file.read())


FUSE_LIBRARY = "/usr/lib/x86_64-linux-gnu/libfuse3.so.3"
FILES = [(FUSE_LIBRARY, FUSE_LIBRARY)] if KIND == "fuse" else []
testing.main(test_readahead)
