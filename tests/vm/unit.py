#!/usr/bin/python3
"""unit.py GMBLOCK KERNEL PACKAGING: the service as the packages bring it, under systemd: the first disk
of gmblock-cookbook(7), reload, upgrade, a process that is killed, restart, stop, activation by its
socket, and the unit of a remote disk. The kernel's nbd client works on a disk all the time.

systemd is that of this machine, as the first process of a PID namespace of the guest, with the few
units of its own that the service needs."""
import os
import sys

import testing

GMBLOCK, KERNEL, PACKAGING = sys.argv[1:4]
SYSTEMD = "/lib/systemd"
PROGRAMS = ["systemctl", "journalctl", "systemd-sysusers", "nbd-client"]
DAEMONS = ["systemd", "systemd-shutdown", "systemd-journald"]
UNITS = [
    "basic.target", "exit.target", "final.target", "local-fs-pre.target", "local-fs.target",
    "modprobe@.service", "multi-user.target", "network-online.target", "network.target",
    "paths.target", "remote-fs-pre.target", "remote-fs.target", "shutdown.target", "slices.target",
    "sockets.target", "swap.target", "sysinit.target", "systemd-exit.service",
    "systemd-journald-dev-log.socket", "systemd-journald.service", "systemd-journald.socket",
    "timers.target", "umount.target"]
# What the script below is for systemd: its end is the end of all.
TEST_UNIT = """
[Unit]
DefaultDependencies=no
Wants=systemd-journald.socket systemd-journald-dev-log.socket
After=systemd-journald.socket systemd-journald-dev-log.socket
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
Environment=PATH=/usr/bin:/usr/sbin
StandardOutput=append:/results/steps
StandardError=append:/results/steps
ExecStart=/bin/sh -ex /lab/steps
"""

SCRIPT = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
status=0
unshare -m -p -f --mount-proc env -i container=lab PATH=/usr/bin:/usr/sbin \\
	/lib/systemd/systemd --unit=steps.service --log-target=console || status=$?
cat /results/steps
exit $status
"""

STEPS = r"""
property()
{
	systemctl show --value --property "$1" gmblock.service
}
main()
{
	property MainPID
}
until_true()
{
	until "$@"; do sleep 0.1; done
}
# What the unit promises of the process that serves.
check_process()
{
	pid=$(main)
	test "$(systemctl show --value -p ActiveState -p NRestarts gmblock.service | sort | xargs)" = \
		"${1:-0} active"
	test "$(cat /sys/fs/cgroup/system.slice/gmblock.service/cgroup.procs)" = "$pid"
	test "$(stat -c %U /proc/$pid)" = gmblock
	grep -q "^NoNewPrivs:[[:space:]]*1$" /proc/$pid/status
	grep -q "^Seccomp:[[:space:]]*2$" /proc/$pid/status
	grep -q "^CapBnd:[[:space:]]*0*$" /proc/$pid/status
	grep -q " / / ro," /proc/$pid/mountinfo
	grep -q "^Max locked memory *unlimited" /proc/$pid/limits
	grep -q "^Max open files *65536 *65536 " /proc/$pid/limits
	grep -q "GMBLOCK_BOOT_ID=$(tr -d - </proc/sys/kernel/random/boot_id)" /proc/$pid/environ
	ls /run/gmblock/serve/$pid.sock /run/gmblock/serve/$pid.start
	gmblock stats --json $pid >/results/stats
}
refused() # WORDS COMMAND...
{
	words=$1
	shift
	fails "$@" 2>/run/refusal
	grep -q "$words" /run/refusal
}
fails() # COMMAND...: set -e does not look at "!"
{
	if "$@"; then return 1; fi
}
# A stock client that ends with the first error.
work()
{
	while [ ! -e /run/work.stop ]; do
		dd if=/dev/urandom of=/run/data bs=64k count=2 status=none
		dd if=/run/data of=/dev/nbd0 bs=4k oflag=direct status=none
		dd if=/dev/nbd0 of=/run/back bs=4k count=32 iflag=direct status=none
		cmp /run/data /run/back
		echo round >>/run/rounds
	done
}
has_worked()
{
	test "$(wc -l </run/rounds)" -gt "$1"
}
one_more_round()
{
	until_true has_worked $(wc -l </run/rounds)
}
new_program()
{
	cp /usr/bin/gmblock /usr/bin/gmblock.new
	mv /usr/bin/gmblock.new /usr/bin/gmblock
}
# The configuration with these disks.
configure()
{
	echo "listen: [ nbd://127.0.0.1:10809 ]"
	echo "exports:"
	for disk in "$@"; do
		echo "  - { name: $disk, path: /var/lib/gmblock/$disk.img }"
	done
}
is_gone()
{
	[ ! -e /proc/$1 ]
}

: the first disk, as gmblock-cookbook says
systemd-sysusers
systemctl enable --now gmblock.service
su -s /bin/sh gmblock -c "truncate -s 64M /var/lib/gmblock/disk.img"
gmblock export add disk /var/lib/gmblock/disk.img
gmblock info nbd://localhost/disk
test -d /sys/module/tls
check_process
refused "systemctl reload gmblock.service" gmblock upgrade

: root finds the server by itself, and another one beside it
gmblock stats
gmblock serve memory:1M --listen "nbd+unix:///?socket=/run/other" >/run/other.uri &
other=$!
until_true test -s /run/other.uri
gmblock stats --json $other

: reload, with the file of the disk in the configuration, and a client
configure disk >/etc/gmblock/gmblock.conf
first=$(main)
systemctl reload gmblock.service
nbd-client -N disk localhost 10809 /dev/nbd0
work &
worker=$!
touch /run/rounds
one_more_round
su -s /bin/sh gmblock -c "truncate -s 1M /var/lib/gmblock/more.img"
configure disk more >/etc/gmblock/gmblock.conf
systemctl reload gmblock.service
gmblock info nbd://localhost/more
test $(main) = $first
one_more_round
check_process

: a configuration that is wrong changes nothing
echo "nonsense: 1" >>/etc/gmblock/gmblock.conf
fails systemctl reload gmblock.service
configure disk more >/etc/gmblock/gmblock.conf
journalctl --sync
journalctl --unit gmblock.service | grep nonsense
test $(main) = $first
check_process

: a new program, twice
for round in 1 2; do
	old=$(main)
	new_program
	systemctl reload gmblock.service
	test $(main) != $old
	until_true is_gone $old
	one_more_round
	gmblock info nbd://localhost/more
	check_process
done
: upgrades drop no request
touch /run/work.stop
wait $worker
nbd-client -d /dev/nbd0
dmesg >/results/dmesg
fails grep "I/O error" /results/dmesg

: a process that is killed is replaced by systemd, with what is in the cache of a flash store
su -s /bin/sh gmblock -c "gmblock create --size=64M --segment=256K flash:/var/lib/gmblock/log"
echo "  - { name: log, path: 'flash:/var/lib/gmblock/log' }" >>/etc/gmblock/gmblock.conf
systemctl restart gmblock.service
nbd-client -N log localhost 10809 /dev/nbd1
dd if=/run/data of=/dev/nbd1 bs=4k oflag=direct status=none
ls /run/gmblock/gmblock-*.cache
old=$(main)
kill -9 $old
until_true gmblock info nbd://localhost/disk
test $(main) != $old
check_process 1
nbd-client -d /dev/nbd1
ls /run/gmblock/gmblock-*.cache
nbd-client -N log localhost 10809 /dev/nbd1
dd if=/dev/nbd1 of=/run/back bs=4k count=32 iflag=direct status=none
cmp /run/data /run/back
nbd-client -d /dev/nbd1

: restart, beside the other server
systemctl restart gmblock.service
gmblock info nbd://localhost/disk
check_process
gmblock stats --json $other

: stop
systemctl stop gmblock.service
test "$(property Result)" = success
# The folder stays for the changes of write caches, without what names this server.
test ! -e /run/gmblock/serve/$pid.sock
test ! -e /run/gmblock/serve/$pid.start
test "$(stat -c %U /var/lib/gmblock/disk.img)" = gmblock
gmblock stats --json $other
fails gmblock info nbd://localhost/disk

: by its socket, which goes on in a new program
systemctl start gmblock.socket
until_true gmblock info nbd://localhost/disk
old=$(main)
new_program
systemctl reload gmblock.service
test $(main) != $old
gmblock info nbd://localhost/disk
check_process

: a remote disk
mkdir -p /etc/gmblock/attach
echo "URI=nbd://localhost/disk" >/etc/gmblock/attach/here.conf
echo "OPTIONS=--ublk --device 7" >>/etc/gmblock/attach/here.conf
systemctl start gmblock-attach@here.service
dd if=/run/data of=/dev/ublkb7 bs=4k oflag=direct conv=fsync status=none
systemctl stop gmblock-attach@here.service
test ! -e /dev/ublkb7
systemctl stop gmblock.socket gmblock.service
kill $other
wait $other
"""


def installed():
    """What the packages would install: pairs of a text and its path."""
    def text(name):
        with open(os.path.join(PACKAGING, name), encoding="utf-8") as file:
            return file.read().replace("@bindir@", "/usr/bin")

    for unit in ("gmblock.service", "gmblock-attach@.service"):
        yield text(unit + ".in"), f"{SYSTEMD}/system/{unit}"
    yield text("gmblock.socket"), f"{SYSTEMD}/system/gmblock.socket"
    yield text("gmblock.sysusers"), "/usr/lib/sysusers.d/gmblock.conf"
    yield text("gmblock.conf"), "/etc/gmblock/gmblock.conf"
    yield TEST_UNIT, f"{SYSTEMD}/system/steps.service"
    yield STEPS, "/lab/steps"
    yield "0123456789abcdef0123456789abcdef\n", "/etc/machine-id"


def test_the_service():
    files = [f"{SYSTEMD}/{name}" for name in DAEMONS]
    files += [f"{SYSTEMD}/system/{name}" for name in UNITS]
    for path in files:
        if not os.path.exists(path):
            raise testing.Unavailable(f"{path} is not there: systemd is not installed")
    with testing.laboratory() as lab:
        files = [(path, path) for path in files] + [(GMBLOCK, "/usr/bin/gmblock")]
        for number, (text, path) in enumerate(installed()):
            source = os.path.join(lab.folder, f"file{number}")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            files.append((source, path))
        lab.guest("guest", KERNEL, SCRIPT, files=files, programs=PROGRAMS, load=["nbd", "ublk_drv"],
                  modules=["tls"], memory=1024)
        lab.start()
        testing.finish(lab)


testing.main(test_the_service)
