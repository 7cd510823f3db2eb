#!/usr/bin/python3
"""cluster.py GMBLOCK FENCE_GMBLOCK KERNEL RECORDS ROUNDS KILLS UPGRADES: two nodes share a disk of a server, as
gmblock-cluster(7) says, whose commands are run. Each of them is a guest.

On OCFS2 and on GFS2, both nodes append RECORDS records to one file, and write ROUNDS files that the other one reads. Then
both write while the server is killed KILLS times and upgraded UPGRADES times. All is there, no request fails, and the
file system has no faults.

Then a node stops in mid-write. The other one fences it by dlm, replays its journal and continues. When the first node
continues, no operation of it is executed any more, also after the server was killed, reloaded and upgraded. At last, a
fence is not reported while an operation is in a disk that does not answer."""
import sys
import time

import testing
from nodes import NODES, Cluster

GMBLOCK, AGENT, KERNEL = sys.argv[1:4]
RECORDS, ROUNDS, KILLS, UPGRADES = (int(word) for word in sys.argv[4:8])
TIME_LIMIT = 1200 + 5 * RECORDS
DISK_BYTES = 512 << 20
URI = "'nbds://alpha@storage/shared?tls-psk-file=/etc/pki/gmblock/keys.psk'"

NODE = r"""
# Appends records to a file, each of them with a lock: both file systems choose the offset of a write with O_APPEND
# before they lock the file against other nodes.
append() # RECORDS
{
	exec 9>/shared/lock
	for record in $(seq $1); do
		flock 9
		printf "%s %05d %090d\n" $node $record 0 >>/shared/records
		flock -u 9
	done
}
check_records() # RECORDS
{
	for name in alpha beta; do
		for record in $(seq $1); do printf "%s %05d %090d\n" $name $record 0; done
	done >/tmp/expected
	sort /shared/records | cmp - /tmp/expected
}
# Writes a file, and reads what the other node has written, in turn.
meet() # NAME ROUNDS OTHER
{
	for round in $(seq $2); do
		[ $node = alpha ] || receive $1.$3.$round $3
		head -c 100000 /dev/urandom | dd of=/shared/from-$node bs=100k iflag=fullblock conv=notrunc 2>/dev/null
		lab-signal $1.$node.$round $(sha256sum </shared/from-$node | cut -c 1-64)
		[ $node = beta ] || receive $1.$3.$round $3
	done
}
receive() # SIGNAL OTHER
{
	test "$(lab-wait $1)" = "$(sha256sum </shared/from-$2 | cut -c 1-64)"
}
# Writes a file, and reads that of the other node, until told otherwise. Each has the digest of its data. The file is not
# replaced: GFS2 frees a removed file that another node has in its cache later, perhaps only after the next mount.
work() # OTHER
{
	while [ ! -e /tmp/enough ]; do
		head -c 200000 /dev/urandom >/tmp/data
		{ sha256sum </tmp/data; cat /tmp/data; } >/tmp/file
		flock /shared/by-$node dd if=/tmp/file of=/shared/by-$node bs=32k conv=notrunc,fsync 2>/dev/null
		if [ -s /shared/by-$1 ]; then
			flock -s /shared/by-$1 cp /shared/by-$1 /tmp/copy
			head -n 1 /tmp/copy >/tmp/digest
			tail -n +2 /tmp/copy | sha256sum | cmp - /tmp/digest
		fi
		echo round >>/tmp/rounds
	done
	echo worked >>/tmp/rounds
}
begin_work() # OTHER
{
	rm -f /tmp/enough /tmp/rounds
	touch /tmp/rounds
	work $1 >/tmp/work.log 2>&1 &
	echo $! >/tmp/worker
}
more_work() # ROUNDS
{
	wanted=$(($(wc -l </tmp/rounds) + $1))
	until [ $(wc -l </tmp/rounds) -ge $wanted ]; do
		kill -0 $(cat /tmp/worker) || { cat /tmp/work.log; return 1; }
		sleep 0.1
	done
}
end_work()
{
	touch /tmp/enough
	while kill -0 $(cat /tmp/worker) 2>/dev/null; do sleep 0.1; done
	tail -n 1 /tmp/rounds | grep -q worked || { cat /tmp/work.log; return 1; }
}
# Writes data and files, each of them durable.
hammer()
{
	mkdir /shared/hammer
	for writer in 1 2 3; do
		while dd if=/dev/zero of=/shared/hammer/$writer bs=64k count=4 oflag=direct conv=notrunc; do :; done &
	done
	(
		count=0
		while dd if=/dev/zero of=/shared/hammer/file.$count bs=4k count=1 conv=fsync; do count=$((count + 1)); done
	) &
}
no_errors()
{
	fails grep -i -e "I/O error" -e "withdraw" -e "fatal" -e "self-fenc" -e "corrupt" <<-TEXT
	$(dmesg)
	TEXT
}
"""

SERVER = r"""
upgrade()
{
	gmblock upgrade >/tmp/upgraded
	sed -n 's/^process \([0-9]*\) is now serving.*/\1/p' /tmp/upgraded >/tmp/server
}
# Another server, of a disk of its own.
serve_moving() # PORT
{
	gmblock serve --export moving=/tmp/moving.img --listen nbd://0.0.0.0:$1 --control /tmp/control.$1 \
		--state-folder /tmp/state.$1 >/tmp/uri.$1 2>>/tmp/server.log &
	echo $! >/tmp/moving
	until [ -s /tmp/uri.$1 ]; do kill -0 $! || { tail /tmp/server.log; return 1; }; sleep 0.1; done
}
kill_moving()
{
	kill -9 $(cat /tmp/moving)
	while grep -qs . /proc/$(cat /tmp/moving)/cmdline; do sleep 0.1; done
	rm -f /tmp/uri.*
}
# The operations of a node that stores have completed.
operations() # NODE
{
	gmblock stats --json | tr -d ' \n' | grep -o '"name":"'$1'","[^}]*' | sed 's/.*"operations_completed":\([0-9]*\).*/\1/'
}
"""


def prepare(cluster):
    cluster.follow("THE SERVER")
    cluster.on("storage", "serve")
    for name in NODES:
        keys = cluster.on("storage", f"grep ^{name}: /etc/gmblock/keys.psk")
        cluster.on(name, f"umask 077; cat >/etc/pki/gmblock/keys.psk <<'END'\n{keys}END\n")
    cluster.follow("THE NODES")


def exercise(cluster, title, check):
    """Both nodes use the file system of this section; check: the command that finds its faults."""
    cluster.follow(title)
    cluster.on("alpha", "touch /shared/lock /shared/records")  # OCFS2 answers EEXIST if two nodes create a file at once
    cluster.on_nodes(f"append {RECORDS}")
    cluster.on_nodes(f"check_records {RECORDS}")
    cluster.on_both(f"meet {title} {ROUNDS} beta", f"meet {title} {ROUNDS} alpha")
    cluster.on_both("begin_work beta", "begin_work alpha")
    for command in KILLS * ["kill_server"] + UPGRADES * ["upgrade"]:
        cluster.on_nodes("more_work 1")
        cluster.on("storage", command)
    cluster.on_nodes("more_work 2; end_work; no_errors")
    cluster.on_nodes("umount /shared")
    cluster.on("beta", check)


def test_a_paused_node(cluster):
    """Its clock stands still while another node has the lease at the first server. The second server does not know this."""
    cluster.on("storage", "truncate -s 1M /tmp/moving.img; mkdir /tmp/state.1001 /tmp/state.1002; serve_moving 1001")
    cluster.on("alpha", "gmblock attach --device 5 --exclusive --lease-timeout 10s nbd://storage:1001,storage:1002/moving")
    cluster.guest("alpha").pause()
    cluster.on("storage", "kill_moving; serve_moving 1001")  # the time of the lease begins
    cluster.on("beta", "until gmblock attach --device 5 --exclusive nbd://storage:1001/moving 2>/tmp/reason; do\n"
                       "\tgrep 'has the exclusive lease' /tmp/reason; sleep 0.5\ndone\n"
                       "yes beta | dd of=/dev/ublkb5 bs=4k count=1 iflag=fullblock oflag=direct; gmblock detach /dev/ublkb5")
    cluster.on("storage", "kill_moving; serve_moving 1002")
    cluster.guest("alpha").resume()
    cluster.on("alpha", "fails dd if=/dev/zero of=/dev/ublkb5 bs=4k count=1 oflag=direct\n"
                        "gmblock attach --list | grep 'has lost its lease'; gmblock detach --force /dev/ublkb5\n"
                        "dmesg -c >/dev/null")  # it has I/O errors of the lost disk, see no_errors
    cluster.on("storage", "test $(head -c 4 /tmp/moving.img) = beta; kill_moving")


def test_ocfs2(cluster):
    exercise(cluster, "OCFS2", "fsck.ocfs2 -fn /dev/ublkb0")
    cluster.on("beta", "dd if=/dev/zero of=/dev/ublkb0 bs=1M count=4 conv=fsync")


def test_gfs2(cluster):
    exercise(cluster, "GFS2", "fsck.gfs2 -n /dev/ublkb0")


def operations(cluster):
    return int(cluster.on("storage", "operations alpha"))


def test_a_node_stops_in_mid_write(cluster):
    cluster.on_nodes("mount -t gfs2 -o noatime /dev/ublkb0 /shared")
    cluster.on("alpha", "hammer >/tmp/hammer 2>&1")
    before = operations(cluster)
    while operations(cluster) < before + 100:
        pass
    cluster.guest("alpha").pause()
    cluster.on("beta", "echo beta >/shared/hammer/beta; sync; cat /shared/hammer/beta")
    cluster.on("storage", "gmblock fence --check alpha")
    fenced = operations(cluster)
    cluster.guest("alpha").resume()
    cluster.on("alpha", "fails dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct\n"
                        "gmblock attach --list | grep fenced:")
    cluster.on("beta", "echo more >>/shared/hammer/beta; sync; ls /shared/hammer | wc -l")
    assert operations(cluster) == fenced, f"{fenced} operations, and now {operations(cluster)}"
    cluster.follow("FENCING BY HAND", "fence")


def test_the_fence_lasts(cluster):
    for command in ("kill_server", "gmblock reload", "upgrade"):
        cluster.on("storage", f"{command}; gmblock fence --check alpha")
        cluster.on("alpha", f"fails gmblock info {URI} 2>/tmp/refusal; grep fenced: /tmp/refusal")
        cluster.on("beta", "echo more >>/shared/hammer/beta; sync")


def test_the_journal_was_replayed(cluster):
    cluster.on("storage", "fails gmblock fence --check beta")  # alpha could not fence it when it had continued
    cluster.guest("alpha").kill()
    cluster.on("beta", "grep -qx beta /shared/hammer/beta; umount /shared; no_errors; fsck.gfs2 -n /dev/ublkb0")
    cluster.follow("AFTER A FENCE", "unfence")
    cluster.on("storage", "fails gmblock fence --check alpha")


def test_a_disk_that_does_not_answer(cluster):
    """A flush, and the write before it, are in the disk until it is resumed."""
    cluster.on("storage", "dmsetup suspend --noflush --nolockfs shared")
    cluster.on("beta", "dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1 oflag=direct\n"
                       "dd if=/dev/null of=/dev/ublkb0 conv=notrunc,fsync >/dev/null 2>&1 &")
    cluster.on("storage", "until gmblock stats --json | grep '\"inflight\": [1-9]'; do sleep 0.1; done")
    cluster.on("storage", "fails timeout 60 gmblock fence beta --timeout 2s 2>/tmp/reason; cat /tmp/reason\n"
                          "grep 'not fenced' /tmp/reason; dmsetup info shared | grep SUSPENDED")
    cluster.on("storage", "dmsetup resume --noudevsync shared; gmblock fence beta")


def test_the_cluster():
    with testing.laboratory(TIME_LIMIT) as lab:
        cluster = Cluster(lab, KERNEL, GMBLOCK, AGENT, {"disks": [DISK_BYTES]}, storage_common=SERVER, node_common=NODE)
        prepare(cluster)
        for test in (test_a_paused_node, test_ocfs2, test_gfs2, test_a_node_stops_in_mid_write, test_the_fence_lasts,
                     test_the_journal_was_replayed, test_a_disk_that_does_not_answer):
            began = time.monotonic()
            test(cluster)
            print(f"{test.__name__}: passed, {time.monotonic() - began:.0f} s", flush=True)


testing.main(test_the_cluster)
