"""The guests of gmblock-cluster(7): a server and two nodes that share a disk of it.

Cluster() boots them; follow() runs the commands of a section of the page in the guests that it names. The disk is the
first virtio disk of the server. What is run in a guest has the functions of its /tmp/common.
"""
import os
import sys

from shell import SCRIPT, Shell

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.append(os.path.join(HERE, "..", "functional"))
import pages  # noqa: E402 (the path comes first)

PAGE = "gmblock-cluster.7"
STORAGE = "storage"
NODES = ("alpha", "beta")
PYTHON = "/usr/lib/python3.11"
# On a busy machine a kernel measures the rates of these clocks wrongly, and its time runs several times as fast or slow.
CLOCK = "tsc=unstable nolapic_timer"
LIBRARIES = ["libqb100", "libnozzle1", "libknet1", "libstatgrab10", "libcorosync-common4", "libcfg7", "libcmap4", "libcpg4",
             "libquorum5", "libvotequorum8", "libdlm3", "libdlmcontrol3"]

# There is no systemd.
SYSTEMCTL = r"""#!/bin/sh -e
[ "$1 $2" = "enable --now" ]
shift 2
for unit; do
	case $unit in
	corosync)
		corosync
		until corosync-quorumtool | grep -q "^Quorate: *Yes"; do sleep 0.2; done
		;;
	dlm)
		modprobe dlm
		mkdir -p /dev/misc
		for name in dlm-control dlm-monitor dlm_plock; do ln -sf ../$name /dev/misc/$name; done
		dlm_controld
		until dlm_tool status | grep -q "quorate 1"; do sleep 0.2; done
		;;
	*) exit 1 ;;
	esac
done
"""

PREPARE_NODE = r"""
modprobe configfs
mount -t configfs configfs /sys/kernel/config
mkdir -p /shared /etc/pki/gmblock /etc/dlm /etc/corosync /etc/ocfs2 /var/lib/corosync /var/log/cluster
"""

PREPARE_STORAGE = r"""
echo "gmblock:x:999:999::/:/bin/false" >>/etc/passwd
mkdir -p /etc/gmblock /var/lib/gmblock /dev/vg0
dmsetup create --noudevsync shared --table "0 $(blockdev --getsz /dev/vda) linear /dev/vda 0"
ln -s ../dm-0 /dev/vg0/shared
"""

# Of all guests.
COMMON = r"""
node=$(hostname)
fails() # COMMAND...: set -e does not look at "!"
{
	if "$@"; then return 1; fi
}
serve() # in the background
{
	rm -f /tmp/uri
	gmblock serve --config /etc/gmblock/gmblock.conf >/tmp/uri 2>>/tmp/server.log &
	echo $! >/tmp/server
	until [ -s /tmp/uri ]; do kill -0 $! || { tail /tmp/server.log; return 1; }; sleep 0.1; done
}
kill_server()
{
	kill -9 $(cat /tmp/server)
	while grep -qs . /proc/$(cat /tmp/server)/cmdline; do sleep 0.1; done
	serve
}
"""


class Cluster:
    """The guests and the page. shells: those of the guests, by name.

    gmblock, agent: the program, and fence_gmblock. storage, nodes: further options of Lab.guest() for the server, which
    needs a disk, and for both nodes. storage_common, node_common: functions for what they run.
    """

    def __init__(self, lab, kernel, gmblock, agent, storage, nodes=None, storage_common="", node_common=""):
        self.sections = pages.sections(PAGE, "[^\n]*")
        files = [(gmblock, "/lab/gmblock")]
        self._guest(lab, STORAGE, kernel, PREPARE_STORAGE, storage_common, {
            "files": files, "packages": ["libdevmapper1.02.1", "dmsetup"], "programs": ["psktool"],
            "load": ["virtio_blk", "dm_mod"], "modules": ["tls"]}, storage)
        stub = os.path.join(lab.folder, "systemctl")
        with open(stub, "w", encoding="ascii") as file:
            file.write(SYSTEMCTL)
        os.chmod(stub, 0o755)
        files = [*files, (agent, "/usr/sbin/fence_gmblock"), (stub, "/usr/bin/systemctl"), (PYTHON, PYTHON)]
        for name in NODES:
            self._guest(lab, name, kernel, PREPARE_NODE, node_common, {
                "files": files, "packages": LIBRARIES + ["corosync", "dlm-controld", "gfs2-utils", "ocfs2-tools"],
                "programs": ["python3", "flock"], "load": ["ublk_drv", "crc32c_generic"], "memory": 768,
                "modules": ["tls", "configfs", "dlm", "gfs2", "ocfs2", "ocfs2_stack_o2cb", "ocfs2_dlmfs"]}, nodes or {})
        lab.start()
        self.shells = {name: Shell(lab, guest) for name, guest in lab.guests.items()}

    @staticmethod
    def _guest(lab, name, kernel, prepare, common, options, more):
        """Lists of more are added to those of options."""
        options.update({key: [*options.get(key, []), *value] if isinstance(value, list) else value
                        for key, value in more.items()})
        lab.guest(name, kernel, f"{prepare}cat >/tmp/common <<'END'\n{COMMON}{common}END\n{SCRIPT}", append=CLOCK, **options)

    def on(self, name, text):
        return self.shells[name].run(text)

    def on_both(self, *texts):
        """On the nodes at the same time. Returns what each has said."""
        for name, text in zip(NODES, texts):
            self.shells[name].begin(text)
        return [self.shells[name].finish() for name in NODES]

    def on_nodes(self, text):
        return self.on_both(text, text)

    def guest(self, name):
        return self.shells[name].guest

    def follow(self, title, only=None):
        """Runs the blocks of a section of the page; only: the one that is marked so."""
        for mark, block in self.sections[title]:
            where, _, what = mark.removeprefix("on ").partition(": ")
            if (only or "") != (what if not what.startswith("file ") else ""):
                continue
            if what.startswith("file "):
                block = f"cat >{what[5:]} <<'END'\n{block}END\n"
            if where == "nodes":
                self.on_nodes(block)
            else:
                self.on(where, block)
