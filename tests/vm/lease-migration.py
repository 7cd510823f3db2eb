#!/usr/bin/python3
"""lease-migration.py GMBLOCK KERNEL ROUNDS: the recipe of gmblock-cluster(7) for virtual machines that move. A guest moves ROUNDS
times between the hosts alpha and beta while fio writes and verifies its disk, and the lease of the disk moves with it. The
hosts and the server have a network, mounts and processes of their own."""
import json
import os
import shlex
import subprocess
import sys
import tempfile

import moving
import testing
from vmlab import Unavailable

sys.path.append(os.path.join(testing.HERE, "../functional"))
import pages  # noqa: E402

GMBLOCK, KERNEL = os.path.realpath(sys.argv[1]), sys.argv[2]
ROUNDS = int(sys.argv[3])
MIB = 1 << 20
DISK_BYTES = 64 * MIB
NODES = ("alpha", "beta")
BLOCKS = dict(pages.sections("gmblock-cluster.7", "[^\n]*")["VIRTUAL MACHINES THAT MOVE"])

SCRIPT = r"""
exec >/dev/ttyS0 2>&1
pass=0
while :; do
	fio --name=verify --filename=/dev/vda --offset=$((pass % 2 * 32))M --size=24M --direct=1 --ioengine=libaio --iodepth=16 \
		--rw=randwrite --bssplit=4k/70:64k/30 --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$pass \
		--output=/tmp/fio || { echo "FAILED: fio"; cat /tmp/fio; exit 1; }
	pass=$((pass + 1))
	echo "PASS $pass"
done
"""
PREPARE = """
ip link set lo up
mount -t tmpfs run /run
mount --bind {folder}/hosts /etc/hosts
echo ready
read line
"""


class Space:
    """A machine of its own, as far as network, mounts and processes go. They end with it."""

    def __init__(self, host, name, storage_address):
        self.folder = host.path(name)
        os.mkdir(self.folder)
        with open(os.path.join(self.folder, "hosts"), "w", encoding="ascii") as file:
            file.write(f"127.0.0.1 localhost\n{storage_address} storage\n")
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec",
             PREPARE.format(folder=shlex.quote(self.folder))], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        host.spaces.append(self)
        if self.keeper.stdout.readline() != b"ready\n":
            raise Unavailable("only root has a network of its own")
        with open(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children", encoding="ascii") as file:
            self.pid = file.read().strip()

    def inside(self, *command):
        return ["nsenter", "--target", self.pid, "--mount", "--net", "--pid", *command]

    def begin(self, text):
        """A shell in the folder, as arguments of subprocess functions."""
        text = f"cd {shlex.quote(self.folder)}; PATH={shlex.quote(os.path.dirname(GMBLOCK))}:$PATH; {text}"
        return self.inside("sh", "-ec", text)

    def run(self, text):
        return subprocess.run(self.begin(text), capture_output=True, text=True, check=False)

    def do(self, text):
        done = self.run(text)
        assert done.returncode == 0, f"{text}: {done.stderr}"
        return done.stdout

    def ip(self, *arguments):
        subprocess.run(["nsenter", "--target", self.pid, "--net", "ip", *arguments], check=True)

    def link(self, other, number):
        """This space gets the address 10.77.NUMBER.1, the other one 10.77.NUMBER.2."""
        name = f"host{number}"
        self.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", other.pid)
        for space, device, last in ((self, name, 1), (other, "eth0", 2)):
            space.ip("address", "add", f"10.77.{number}.{last}/24", "dev", device)
            space.ip("link", "set", device, "up")

    def end(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        self.keeper.stdout.close()


class Host(moving.Host):
    """The server, and the nodes between which the guest moves."""

    def __init__(self, folder, guest):
        super().__init__(folder, guest, GMBLOCK)
        self.spaces = []
        try:
            self.storage = Space(self, "storage", "127.0.0.1")
            self.serve()
            self.nodes = [Space(self, name, f"10.77.{number}.1") for number, name in enumerate(NODES, 1)]
            for number, node in enumerate(self.nodes, 1):
                self.storage.link(node, number)
        except BaseException:
            self.end()
            raise

    def serve(self):
        with open(os.path.join(self.storage.folder, "vm1.img"), "wb") as image:
            image.truncate(DISK_BYTES)
        with open(os.path.join(self.storage.folder, "gmblock.conf"), "w", encoding="ascii") as file:
            file.write(BLOCKS["on storage: file gmblock.conf"])
        with open(self.path("log"), "ab") as log:
            server = subprocess.Popen(self.storage.begin("mkdir state; exec gmblock serve --config gmblock.conf --state-folder "
                                                         "state --listen nbd://0.0.0.0"), stdout=subprocess.PIPE, stderr=log)
        assert server.stdout.readline(), self.story()

    def command(self, number, console):
        return self.nodes[number % 2].inside(*super().command(number, console))

    def disk(self, number):
        block = BLOCKS["on alpha: disk"].replace("vm1.raw", os.path.join(self.nodes[number % 2].folder, "vm1.raw"))
        return shlex.split(block)

    def holders(self):
        return {entry["node"]: entry["state"] for entry in json.loads(self.storage.do("gmblock lease list --json"))}

    def stats(self):
        return json.loads(self.storage.do("gmblock stats --json"))

    def attach(self, number):
        self.nodes[number % 2].do(BLOCKS["on alpha: attach"])

    def move(self, machine, number):
        old_name, new_name = NODES[(number - 1) % 2], NODES[number % 2]
        old, new = self.nodes[(number - 1) % 2], self.nodes[number % 2]
        refused = new.run(BLOCKS["on alpha: attach"])
        assert f" of node '{old_name}' has the exclusive lease" in refused.stderr, refused
        self.storage.do(BLOCKS["on storage: offer"].replace("beta", new_name))
        self.attach(number)
        assert self.holders() == {old_name: "holds", new_name: "pending"}, self.holders()
        machine = self.migrate(machine, number)
        machine.go_on()
        assert self.holders() == {new_name: "holds"}, self.holders()
        entry, = json.loads(old.do("gmblock attach --list --json"))
        assert "lost its lease" in entry["state"], entry
        old.do(BLOCKS["on alpha: detach"])
        return machine

    def end(self):
        for space in self.spaces:
            space.end()
        super().end()


def test_a_guest_moves():
    with tempfile.TemporaryDirectory(prefix="gmblock-lease-") as folder, testing.laboratory() as lab:
        guest = lab.guest("guest", KERNEL, SCRIPT, load=["virtio_blk"], memory=512, programs=["fio"])
        guest.build()
        with Host(folder, guest) as host:
            host.attach(0)
            machine = moving.Machine(host, 0)
            machine.go_on()
            for number in range(1, ROUNDS + 1):
                machine = host.move(machine, number)
            errors = host.stats()["counters"]["errors"]
            assert errors == 0, errors
            print("passes:", machine.passes())


testing.main(test_a_guest_moves)
