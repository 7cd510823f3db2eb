#!/usr/bin/python3
"""pool.py GMBLOCK KERNEL [RATE]: the recipes of gmblock-cookbook(7) for disks of several servers: a volume of LVM that
is striped over four of them and used by two machines, and a mirror of md that survives the end of a server.

With RATE, each flow has so many MB/s (fq maxrate), and the volume must be at least 3.6 times as fast as one disk."""
import os
import sys

import testing
from shell import SCRIPT, Shell

sys.path.append(os.path.join(testing.HERE, "..", "functional"))
import pages  # noqa: E402

GMBLOCK, KERNEL = sys.argv[1:3]
RATE = int(sys.argv[3]) if sys.argv[3:] else None
PAGE = "gmblock-cookbook.7"
MACHINES = ("one", "two")
DISK_MIB = 48

STORAGE = r"""
/usr/sbin/tc qdisc replace dev eth0 root fq FLOW # busybox has a tc of its own
for number in 1 2 3 4; do
	ip address add 10.77.0.10$number/24 dev eth0
	FILL >/dev/shm/disk$number
	truncate -s SIZEM /dev/shm/disk$number
done
cat >/tmp/common <<'END'
serve() # NUMBER
{
	rm -f /tmp/uri$1
	gmblock serve --export disk=/dev/shm/disk$1 --listen nbd://10.77.0.10$1 >/tmp/uri$1 2>>/tmp/server.log &
	echo $! >/tmp/server$1
	until [ -s /tmp/uri$1 ]; do kill -0 $! || { tail /tmp/server.log; return 1; }; sleep 0.1; done
}
END
""".replace("FLOW", f"maxrate {8 * RATE}mbit" if RATE else "").replace("SIZE", str(DISK_MIB)).replace(
    # Holes would not be transferred.
    "FILL", f"tr '\\000' x </dev/zero | head -c {DISK_MIB << 20}" if RATE else ":")

MACHINE = r"""
for number in 1 2 3 4; do echo "10.77.0.10$number storage$number" >>/etc/hosts; done
mkdir -p /run/lvm /run/lock/lvm /etc/lvm/archive /etc/lvm/backup
cat >/tmp/common <<'END'
export DM_DISABLE_UDEV=1 # there is none
# Seconds that a read of so many MiB takes.
seconds() # DEVICE MIB
{
	began=$(cut -d ' ' -f 1 /proc/uptime)
	dd if=$1 of=/dev/null bs=16M count=$(($2 / 16)) iflag=direct 2>/dev/null
	echo "$(cut -d ' ' -f 1 /proc/uptime) $began" | awk '{ print $1 - $2 }'
}
END
"""


class Pool:
    def __init__(self, lab):
        self.sections = pages.sections(PAGE, "[^\n]*")
        files = [(GMBLOCK, "/lab/gmblock")]
        lab.guest("storage", KERNEL, STORAGE + SCRIPT, files=files, programs=["tc"], load=["sch_fq"], memory=768)
        for name in MACHINES:
            lab.guest(name, KERNEL, MACHINE + SCRIPT, files=files, load=["ublk_drv", "dm_mod", "raid1"],
                      packages=["libdevmapper1.02.1", "libdevmapper-event1.02.1", "libaio1", "libedit2", "dmsetup", "lvm2",
                                "mdadm"])
        lab.start()
        self.shells = {name: Shell(lab, guest) for name, guest in lab.guests.items()}

    def on(self, name, text):
        return self.shells[name].run(text)

    def block(self, title, number):
        """One of the blocks of a section."""
        mark, block = self.sections[title][number]
        assert "tests/vm/pool.py" in mark, mark
        return block.replace("gmblock attach ", "gmblock attach --connections 1 ") if RATE else block


def test_a_striped_volume(pool):
    title = "A VOLUME ON SEVERAL SERVERS"
    pool.on("storage", "for number in 1 2 3 4; do serve $number; done")
    for name in MACHINES:
        pool.on(name, pool.block(title, 0))
    pool.on("one", pool.block(title, 1))
    pool.on("two", pool.block(title, 2))
    if RATE:
        one, all_four = (mib / float(pool.on("one", f"seconds {device} {mib}").split()[-1])
                         for device, mib in (("/dev/ublkb1", DISK_MIB // 3), ("/dev/pool/data", DISK_MIB)))
        print(f"{one:.2f} MiB/s of one server, {all_four:.2f} of four: {all_four / one:.2f}", flush=True)
        assert all_four >= 3.6 * one
    pool.on("one", "dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null\n"
                   "dd if=/tmp/data of=/dev/pool/data bs=1M oflag=direct")
    digests = [pool.on(name, f"dd if={device} bs=1M count=16 iflag=direct 2>/dev/null | sha256sum").split()[0]
               for name, device in (("one", "/tmp/data"), ("one", "/dev/pool/data"), ("two", "/dev/pool/data"))]
    assert len(set(digests)) == 1, digests
    # All servers have a part.
    pool.on("storage", "for number in 1 2 3 4; do test $(du -k /dev/shm/disk$number | cut -f 1) -ge 4000; done")
    for name in MACHINES:
        pool.on(name, "vgchange --activate n pool; for number in 1 2 3 4; do gmblock detach /dev/ublkb$number; done")


def test_a_mirror(pool):
    title = "A MIRROR ON TWO SERVERS"
    for command in (pool.block(title, 0), pool.block(title, 1),
                    "dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null",
                    "dd if=/tmp/data of=/dev/md0 bs=1M oflag=direct"):
        pool.on("one", command)
    pool.on("storage", "kill -9 $(cat /tmp/server1)")
    pool.on("one", "dd if=/tmp/data of=/dev/md0 bs=1M seek=8 oflag=direct\n"
                   "until grep -e '(F)' -e '_U' -e 'U_' /proc/mdstat; do sleep 0.1; done")
    pool.on("storage", "serve 1")
    pool.on("one", pool.block(title, 2) + "mdadm --wait /dev/md0 || true; grep UU /proc/mdstat")
    pool.on("one", "mdadm --stop /dev/md0")
    pool.on("storage", "kill $(cat /tmp/server2)")
    pool.on("one", "mdadm --assemble --run /dev/md0 /dev/ublkb1\n"
                   "cat /tmp/data /tmp/data | cmp -n 16777216 - /dev/md0; mdadm --stop /dev/md0")


def test_disks_of_several_servers():
    with testing.laboratory() as lab:
        pool = Pool(lab)
        test_a_striped_volume(pool)
        test_a_mirror(pool)


testing.main(test_disks_of_several_servers)
