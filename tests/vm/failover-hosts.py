#!/usr/bin/python3
"""failover-hosts.py GMBLOCK ROUNDS: two hosts, left and right, serve one NVMe disk of a storage system (nvmet-tcp with
reservations), one after the other, as gmblock-cluster(7) says. The client, on the storage system, has an attached disk with
both hosts in its URI, and fio writes and verifies on it all the time.

ROUNDS times (10%: that part of 100) the power of the current host fails, and the other one starts its server: the pause is
at most 5 s longer than the detection. As often, the current host stops (QEMU) and continues when the other one serves: its
late write is refused by the disk. Another disk under the same name is not accepted. One of the hosts has a kernel that
cannot read reservations."""
import os
import re
import sys

import nvmet
import testing
from shell import SCRIPT, Shell

sys.path.append(os.path.join(testing.HERE, "..", "functional"))
import pages  # noqa: E402

GMBLOCK, ROUNDS = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
if ROUNDS.endswith("%"):
    ROUNDS = max(1, int(ROUNDS[:-1]) * int(os.environ.get("SOAK_PERCENT", "100")) // 100)
ROUNDS = int(ROUNDS)
KERNELS = {"left": "7.2", "right": "6.12"}
UUIDS = {"left": "11111111-1111-4111-8111-111111111111", "right": "22222222-2222-4222-8222-222222222222"}
DETECTION_S, COST_S = 5, 5  # the first is in the page
BLOCKS = dict(pages.sections("gmblock-cluster.7", "[^\n]*")["SEVERAL SERVERS OF A DISK"])
CONF = re.sub(r"path: [^,]*", "path: DISK", BLOCKS["on hosts: file /etc/gmblock/gmblock.conf"])
ATTACH = BLOCKS["on client"].replace("gmblock attach ", "gmblock attach --ublk ")
FIO_BYTES = 48 << 20  # the rest of the disk is for late writes

STORAGE = nvmet.STORAGE + r"""
echo ipv4 >ports/1/addr_adrfam
echo tcp >ports/1/addr_trtype
echo 4420 >ports/1/addr_trsvcid
echo 0.0.0.0 >ports/1/addr_traddr
ln -s /sys/kernel/config/nvmet/subsystems/store ports/1/subsystems/store
cd /lab
cat >/tmp/common <<'END'
disk=/dev/ublkb0
sectors() { awk '{ print $3 + $7 }' /sys/block/ublkb0/stat; }
progress() # until data moves
{
	from=$(sectors)
	until [ $(($(sectors) - from)) -gt 2048 ]; do kill -0 $(cat /tmp/fio.pid); sleep 0.05; done
}
# Measures the longest time without progress until it is told to stop.
watch_pauses()
{
	rm -f /tmp/enough
	exec python3 /lab/pauses.py
}
END
"""

PAUSES_PY = r"""
import os
import time

longest, last, since = 0, None, time.monotonic()
while not os.path.exists("/tmp/enough"):
    with open("/sys/block/ublkb0/stat") as file:
        words = file.read().split()
    count, now = (words[2], words[6]), time.monotonic()
    if count != last:
        longest, last, since = max(longest, now - since), count, now
    time.sleep(0.02)
print(f"{longest:.2f}")
"""

# A write that a host receives too late: the connection is made before the host stops.
LATE_PY = r"""
import os
import sys
import time

import nbdmini

host, at = sys.argv[1], int(sys.argv[2])
client = nbdmini.open_export(f"nbd://{host}:10809", b"disk")
client.write(at, b"1" * 4096)
print("ready", flush=True)
while not os.path.exists("/tmp/stopped"):
    time.sleep(0.02)
client.send_request(nbdmini.CMD_WRITE, 1, at, 4096, b"late" * 1024)
client.sock.settimeout(600)
try:
    answer = client.sock.recv(16)
except ConnectionResetError:
    answer = b""
assert answer == b"", answer
print("ended", flush=True)
"""

HOST = r"""
cat >/tmp/common <<'END'
connect()
{
	host="hostnqn=nqn.host:NAME,hostid=UUID"
	times="keep_alive_tmo=5,ctrl_loss_tmo=3600"
	echo "transport=tcp,traddr=10.77.0.1,trsvcid=4420,nqn=store,$host,$times" >/dev/nvme-fabrics
	for number in 1 2; do # their names depend on the order in which the kernel finds them
		until name=$(grep -l "uuid.0000000$number-" /sys/block/nvme0n*/wwid); do sleep 0.05; done
		name=${name%/wwid}
		ln -sf /dev/${name##*/} /dev/space$number
	done
}
serve() # DISK
{
	rm -f /tmp/uri
	sed "s,DISK,$1," >/etc/gmblock.conf <<-TEXT
CONF
	TEXT
	gmblock serve --config /etc/gmblock.conf --control /tmp/control >/tmp/uri 2>>/tmp/server.log &
	echo $! >/tmp/server
	until [ -s /tmp/uri ]; do kill -0 $! || { cat /tmp/server.log; return 1; }; sleep 0.02; done
}
refused_writes()
{
	gmblock stats --json --server /tmp/control | tr -d ' \n' | grep -o '"late_writes_refused":[0-9]*' | cut -d : -f 2
}
END
"""


class Hosts:
    def __init__(self, lab):
        self.lab = lab
        files = [(GMBLOCK, "/lab/gmblock"), (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py"),
                 ("/usr/lib/python3.11", "/usr/lib/python3.11")]
        for name, text in (("pauses.py", PAUSES_PY), ("late.py", LATE_PY)):
            with open(os.path.join(lab.folder, name), "w", encoding="ascii") as file:
                file.write(text)
            files.append((os.path.join(lab.folder, name), "/lab/" + name))
        lab.guest("storage", "7.2", STORAGE + SCRIPT, files=files, programs=["fio", "python3"], memory=768,
                  load=["ublk_drv", "configfs", "nvmet", "nvmet-tcp"], disks=[64 << 20, 64 << 20])
        for name, kernel in KERNELS.items():
            host = HOST.replace("NAME", name).replace("UUID", UUIDS[name]).replace("CONF", CONF.rstrip())
            lab.guest(name, kernel, host + SCRIPT, files=files[:1], load=["nvme-tcp"])
        lab.start()
        self.shells = {name: Shell(lab, guest) for name, guest in lab.guests.items()}
        self.count = 0
        self.storage("true")  # it is ready
        for name in KERNELS:
            self.on(name, "connect")

    def on(self, name, text):
        return self.shells[name].run(text)

    def storage(self, text):
        return self.on("storage", text)

    def power_failure(self, name):
        self.lab.guests[name].kill()

    def boot(self, name):
        self.lab.guests[name].start()
        self.shells[name] = Shell(self.lab, self.lab.guests[name])
        self.on(name, "connect")

    def begin(self):
        self.on("left", "serve /dev/space1")
        self.storage(ATTACH)
        self.storage(f"""
fio --name=verify --filename=$disk --size={FIO_BYTES} --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --rwmixread=30 \\
	--bsrange=4k-64k --verify=crc32c --verify_backlog=64 --do_verify=1 --time_based --runtime=100000 \\
	--output=/tmp/fio >/dev/null 2>&1 &
echo $! >/tmp/fio.pid
progress""")

    def end(self):
        self.storage("""
kill -INT $(cat /tmp/fio.pid)
while grep -qs . /proc/$(cat /tmp/fio.pid)/cmdline; do sleep 0.1; done
grep -q "err= 0" /tmp/fio && ! grep -E "^verify: bad|error" /tmp/fio || { cat /tmp/fio; exit 1; }
gmblock detach $disk
if dmesg | grep "I/O error"; then exit 1; fi
""")


def test_power_failure(hosts, old, new):
    hosts.storage("(watch_pauses) >/tmp/pause 2>&1 & echo $! >/tmp/watcher")
    hosts.power_failure(old)
    hosts.on(new, "serve /dev/space1")
    hosts.storage("progress; touch /tmp/enough; while grep -qs . /proc/$(cat /tmp/watcher)/cmdline; do sleep 0.05; done")
    pause = float(hosts.storage("cat /tmp/pause").split()[-1])
    print(f"power failure of {old}: pause {pause:.2f} s, of which detection {DETECTION_S} s")
    hosts.boot(old)
    return pause


def test_frozen(hosts, old, new):
    at = FIO_BYTES + 4096 * hosts.count
    hosts.count += 1
    hosts.storage(f"rm -f /tmp/stopped; python3 /lab/late.py {old} {at} >/tmp/late 2>&1 &\n"
                  "until grep -q ready /tmp/late; do sleep 0.05; done")
    before = int(hosts.on(old, "refused_writes").split()[-1])
    hosts.lab.guests[old].pause()
    hosts.storage("touch /tmp/stopped")
    hosts.on(new, "serve /dev/space1")
    hosts.storage(f"progress; dd if=/dev/zero of=$disk bs=4096 seek={at // 4096} count=1 oflag=direct 2>/dev/null")
    hosts.lab.guests[old].resume()
    hosts.storage("until grep -q ended /tmp/late; do kill -0 $(cat /tmp/fio.pid); sleep 0.05; done; progress")
    assert int(hosts.on(old, "refused_writes").split()[-1]) > before
    hosts.on(old, "grep 'another server has taken it over' /tmp/server.log")
    hosts.storage(f"dd if=$disk bs=4096 skip={at // 4096} count=1 iflag=direct 2>/dev/null | cmp -n 4096 - /dev/zero")
    hosts.on(old, "kill $(cat /tmp/server); while grep -qs . /proc/$(cat /tmp/server)/cmdline; do sleep 0.05; done")


def test_another_disk(hosts, old, new):
    """The client does not use it, and continues when the right disk is there again."""
    hosts.on(new, "serve /dev/space2")
    hosts.on(old, "kill -9 $(cat /tmp/server)")
    hosts.storage("until dmesg | grep 'have different disks under the name'; do sleep 0.1; done")
    # It asks this host again and again, and leaves.
    hosts.on(new, "until gmblock stats --json --server /tmp/control | tr -d ' \\n' | grep -q '\"connections\":0'\n"
                  "do sleep 0.02; done")
    hosts.on(old, "serve /dev/space1")
    hosts.storage("progress")


def test_servers_of_two_hosts():
    with testing.laboratory(600 + 120 * ROUNDS) as lab:
        hosts = Hosts(lab)
        hosts.begin()
        current, other = "left", "right"
        pauses = []
        for _ in range(ROUNDS):
            pauses.append(test_power_failure(hosts, current, other))
            current, other = other, current
            test_frozen(hosts, current, other)
            current, other = other, current
        test_another_disk(hosts, current, other)
        hosts.end()
        assert max(pauses) <= DETECTION_S + COST_S, pauses


testing.main(test_servers_of_two_hosts)
