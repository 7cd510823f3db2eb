#!/usr/bin/python3
"""attach-readahead.py GMBLOCK KERNEL KIND: the readahead of an attached disk (KIND is ublk, nbd or
fuse), on a link with a round trip of a millisecond and a disk of limited speed. The measured rates of
buffered reads are printed, with the kernel's default readahead and with ours."""
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

# A longer link needs more.
/usr/sbin/tc qdisc replace dev lo root netem delay 50ms limit 100000
attach
until [ "$(cat $file)" -gt 512 ]; do
	gmblock detach $disk
	dmesg -c >/dev/null
	attach --log-level debug
	until dmesg | grep "a round trip"; do sleep 0.1; done
	sleep 0.2
done
test "$(cat $file)" -le 8192
echo "long link: $(cat $file) KiB" >>/results/rates
gmblock detach $disk
"""


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
        print(f"auto: {auto} KiB; MiB/s of dd:")
        for name in ("measured", "rates"):
            with open(f"{guest.results}/{name}", encoding="utf-8") as file:
                print(file.read())


FUSE_LIBRARY = "/usr/lib/x86_64-linux-gnu/libfuse3.so.3"
FILES = [(FUSE_LIBRARY, FUSE_LIBRARY)] if KIND == "fuse" else []
testing.main(test_readahead)
