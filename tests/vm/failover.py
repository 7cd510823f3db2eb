#!/usr/bin/python3
"""failover.py GMBLOCK KERNEL nvme|scsi: servers of one disk in a guest, each with a path of its own to the disk, so that the
disk knows them as several hosts.

nvme (nvmet, nvme-loop): a server that starts takes the disk over. A late write of a frozen server is refused by the disk, and
not answered. What a server keeps over an upgrade and a reload.

Both: what a server respects, refuses and releases. scsi (LIO, tcm_loop) does not take disks over, because LIO waits for
itself when a disk of tcm_loop gets PREEMPT AND ABORT (flush_work() in core_tmr_drain_state_list())."""
import os
import sys
import tempfile

import nvmet
import testing

GMBLOCK, KERNEL, KIND = sys.argv[1:4]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")

# Three paths (hosts) to one disk, and another disk.
NVME = nvmet.STORAGE + r"""
echo loop >ports/1/addr_trtype
ln -s /sys/kernel/config/nvmet/subsystems/store ports/1/subsystems/store
for number in 0 1 2; do
	uuid=0000000$number-1111-4111-8111-111111111111
	echo "transport=loop,nqn=store,hostnqn=nqn.host:$number,hostid=$uuid" >/dev/nvme-fabrics
	until [ -e /dev/nvme${number}n1 ] && [ -e /dev/nvme${number}n2 ]; do sleep 0.05; done
done
exec python3 -u /lab/disks.py nvme0n1 nvme1n1 nvme2n1 nvme0n2 nvme0n2p1
"""

SCSI = r"""
mkdir -p /var/target/pr
mount -t configfs configfs /sys/kernel/config
target=/sys/kernel/config/target
disk() # NUMBER PAGES
{
	mkdir -p $target/core/rd_mcp_$1/disk
	echo rd_pages=$2 >$target/core/rd_mcp_$1/disk/control
	echo 6001405000$1 >$target/core/rd_mcp_$1/disk/wwn/vpd_unit_serial
	echo 1 >$target/core/rd_mcp_$1/disk/enable
}
path() # NUMBER DISK: makes /dev/sdX
{
	group=$target/loopback/naa.500140500000000$1/tpgt_1
	mkdir -p $group
	echo naa.60014050000000a$1 >$group/nexus
	mkdir $group/lun/lun_0
	ln -s $target/core/rd_mcp_$2/disk $group/lun/lun_0/disk
	until [ -e /dev/sd$3 ]; do sleep 0.05; done
}
disk 0 4096
disk 1 4096
path 1 0 a
path 2 0 b
path 3 0 c
path 4 1 d
exec python3 -u /lab/disks.py sda sdb sdc sdd sdd1
"""

DISKS_PY = r"""
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time

import nbdmini
import vhost_tool

ONE, TWO, THREE, OTHER, PARTITION = sys.argv[1:6]
BLOCK = 4096
REGISTER, RESERVE, CLEAR, READ_RESERVATION = 0x401870c8, 0x401070c9, 0x401070cd, 0x801070cf
BLKRRPART = 0x125f
IGNORE_KEY = 1
REGISTRANTS_ONLY, ALL_REGISTRANTS = 3, 5
CONFLICT = 0x18
OPT_LIST_META_CONTEXT = 9
OFD_SETLK, WRITER_OFFSET = 37, (1 << 63) - 1 - 3  # the mark of a server that writes, docs/design/0006
ERR_SHUTDOWN = (1 << 31) + 7


class Server:
    # A server of one path.
    count = 0

    def __init__(self, *exports, threads=2, arguments=(), prefix=()):
        Server.count += 1
        self.name = f"/tmp/server{Server.count}"
        self.exports = exports
        if not ONE.startswith("nvme") and not prefix:
            arguments = ["--sandbox", "off", *arguments]  # without it, this kernel does not permit to read reservations
        self.arguments = [*prefix, "gmblock", "serve", "--threads", str(threads), "--control", self.name + ".control",
                          "--listen", f"nbd://127.0.0.1:{7000 + Server.count}", *arguments]
        for export in exports:
            self.arguments += ["--export", export]
        self.log = open(self.name + ".log", "w")
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.uri = self.process.stdout.readline().rstrip()
        assert self.uri, self.errors()

    def errors(self):
        with open(self.name + ".log") as file:
            return file.read()

    def client(self):
        return nbdmini.open_export(self.uri, b"disk")

    def contexts(self):
        # The contexts that the server tells of the export.
        name, queries = b"disk", (b"x-gmblock:epoch", b"x-gmblock:disk")
        data = struct.pack(">I", len(name)) + name + struct.pack(">I", len(queries))
        data += b"".join(struct.pack(">I", len(query)) + query for query in queries)
        with nbdmini.Client(self.uri) as client:
            client.hello()
            client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
            client.send_option(OPT_LIST_META_CONTEXT, data)
            return sorted(payload[4:] for _, payload in client.option_replies(OPT_LIST_META_CONTEXT))

    def refused_writes(self):
        (export,) = json.loads(self.command("stats", "--json"))["exports"]
        assert export["lost"] == (export["store"]["failover"]["late_writes_refused"] > 0), export
        return export["store"]["failover"]["late_writes_refused"]

    def command(self, *words, status=0):
        done = subprocess.run(["gmblock", *words, "--server", self.name + ".control"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == status, done
        return done.stdout

    def freeze(self):
        # Returns when all threads have stopped.
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0, self.errors()

    def kill(self):
        self.process.kill()
        self.process.wait()


def refused(*exports, reason, arguments=()):
    # A server that must not start.
    words = ["gmblock", "serve", "--control", "none", "--listen", "nbd://127.0.0.1:6999", *arguments]
    for export in exports:
        words += ["--export", export]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and reason in done.stderr, done


def export(path, kind="reservation", name="disk"):
    return f"{name}=/dev/{path},mode=direct,failover={kind}"


@contextlib.contextmanager
def volume(name, uuid, *segments):
    # A device-mapper device of 4 MiB.
    sectors = 8192 // len(segments)
    table = "".join(f"{sectors * number} {sectors} {segment}\n" for number, segment in enumerate(segments))
    words = ["dmsetup", "create", "--noudevsync", "volume-" + name, "--uuid", uuid]
    subprocess.run(words, input=table, text=True, check=True)
    words = ["dmsetup", "info", "--columns", "--noheadings", "-o", "minor", "volume-" + name]
    yield "dm-" + subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    subprocess.run(["dmsetup", "remove", "--noudevsync", "--retry", "volume-" + name], check=True)


def reservation_call(path, request, *numbers):
    # What another program does on a path.
    with open("/dev/" + path, "r+b", buffering=0) as disk:
        layout = "=QQII" if request == REGISTER else "=QII"
        try:
            return fcntl.ioctl(disk, request, struct.pack(layout, *numbers))
        except OSError as error:
            return error.errno


def is_free(path):
    # Whether the disk is not reserved.
    found = bytearray(16)
    with open("/dev/" + path, "r+b", buffering=0) as disk:
        try:
            fcntl.ioctl(disk, READ_RESERVATION, found)
            return found[12:] == bytes(4)  # its type
        except OSError:  # an older kernel
            pass
    reservation_call(path, REGISTER, 0, 0x77, IGNORE_KEY, 0)
    with open("/dev/" + path, "r+b", buffering=0) as disk:
        status = libc_ioctl(disk.fileno(), RESERVE, struct.pack("=QII", 0x77, REGISTRANTS_ONLY, 0))
    reservation_call(path, REGISTER, 0x77, 0, 0, 0)
    return status == 0


def clear(path):
    # What an administrator does when no server runs any more.
    reservation_call(path, REGISTER, 0, 0x77, IGNORE_KEY, 0)
    reservation_call(path, CLEAR, 0x77, 0, 0)
    assert is_free(path)


def libc_ioctl(fd, request, data):
    # Positive results are the status of the device.
    import ctypes
    return ctypes.CDLL(None, use_errno=True).ioctl(fd, ctypes.c_ulong(request), ctypes.create_string_buffer(data))


def writes(path):
    # Whether the disk executes a write on this path.
    disk = os.open("/dev/" + path, os.O_RDWR | os.O_DIRECT)
    try:
        return os.pwrite(disk, mmap.mmap(-1, BLOCK), 0) == BLOCK
    except OSError as error:
        assert error.errno == errno.EBADE, error
        return False
    finally:
        os.close(disk)


def ended(client):
    # The connection ended without a reply.
    try:
        return client.sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_frozen_server():
    one = Server(export(ONE))
    client = one.client()
    client.write(0, b"1" * BLOCK)
    client.write(BLOCK, b"2" * BLOCK)  # not flushed
    told = one.contexts()
    assert told[-1].startswith(b"x-gmblock:epoch="), told
    one.freeze()
    client.send_request(nbdmini.CMD_WRITE, 1, 0, BLOCK, b"late" * (BLOCK // 4))

    two = Server(export(TWO))
    assert two.contexts() == told
    other = two.client()
    assert other.read(0, 2 * BLOCK) == b"1" * BLOCK + b"2" * BLOCK
    other.write(0, b"3" * BLOCK)
    one.process.send_signal(signal.SIGCONT)
    assert ended(client)
    assert other.read(0, BLOCK) == b"3" * BLOCK
    assert one.refused_writes() == 1
    assert "another server has taken it over" in one.errors(), one.errors()
    try:
        one.client()
        raise AssertionError("the lost disk is served")
    except nbdmini.OptionRefused as error:
        assert error.code == ERR_SHUTDOWN and "taken over" in str(error), error
    # It does not take the disk back, unless somebody says so.
    assert "taken over" in one.command("upgrade", status=1)
    other.write(0, b"4" * BLOCK)
    return one, two, other


def test_taking_a_disk_back(one, two, other):
    one.command("export", "remove", "disk")
    one.command("export", "add", "disk", "/dev/" + ONE, "mode=direct", "failover=reservation")
    other.send_request(nbdmini.CMD_WRITE, 1, 0, BLOCK, bytes(BLOCK))
    assert ended(other)
    assert two.refused_writes() == 1
    with one.client() as client:
        client.write(0, b"5" * BLOCK)
        client.flush()
    two.stop()
    with one.client() as client:  # the lost server has released nothing
        client.write(0, b"6" * BLOCK)
    one.stop()
    clear(THREE)


def test_a_frozen_server_outlives_the_next_one(*late):
    # A disk that was taken over stays reserved, because the previous server still has writes.
    one = Server(export(ONE))
    client = one.client()
    client.write(0, b"1" * BLOCK)
    one.freeze()
    client.send_request(nbdmini.CMD_WRITE, 1, *late)
    two = Server(export(TWO))
    with two.client() as other:
        other.write(0, b"3" * BLOCK)
    two.stop()
    one.process.send_signal(signal.SIGCONT)
    assert ended(client)
    assert one.refused_writes() == 1
    two = Server(export(TWO))
    with two.client() as other:
        assert other.read(0, BLOCK) == b"3" * BLOCK
    two.stop()
    one.stop()
    clear(THREE)


def test_a_host_that_has_booted_again():
    # The disk still knows the key of the previous boot.
    key = 0x676d620000000001
    reservation_call(ONE, REGISTER, 0, key, IGNORE_KEY, 0)
    reservation_call(ONE, RESERVE, key, REGISTRANTS_ONLY, 0)
    assert not is_free(THREE)
    one = Server(export(ONE))
    with one.client() as client:
        client.write(0, b"1" * BLOCK)
    one.stop()
    clear(THREE)


def test_the_loss_reaches_all_reactors():
    one = Server(export(ONE), threads=4)
    clients = [one.client() for _ in range(8)]
    two = Server(export(TWO))
    clients[0].send_request(nbdmini.CMD_WRITE, 1, 0, BLOCK, bytes(BLOCK))
    assert all(ended(client) for client in clients)
    one.kill()
    two.stop()
    clear(THREE)


@contextlib.contextmanager
def stopped_thread(pid, name):
    # The thread of that name does nothing meanwhile.
    seize, interrupt, detach, any_child = 0x4206, 0x4207, 17, 0x40000000
    call = ctypes.CDLL(None).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    (thread,) = [int(task) for task in os.listdir(f"/proc/{pid}/task")
                 if open(f"/proc/{pid}/task/{task}/comm").read().rstrip() == name]
    assert call(seize, thread, 0, None) == 0 and call(interrupt, thread, 0, None) == 0
    os.waitpid(thread, any_child)
    yield
    call(detach, thread, 0, None)


def is_idle(pid):
    # All threads of the process sleep, or have been stopped.
    states = [open(f"/proc/{pid}/task/{task}/stat").read().rsplit(")")[-1].split()[0] for task in os.listdir(f"/proc/{pid}/task")]
    return set(states) <= {"S", "t"}


def test_the_loss_reaches_all_queues_of_a_virtual_machine():
    # They end although the connection's reactor does not tell them.
    one = Server(export(ONE), threads=4, arguments=["--listen", "vhost-user-blk+unix:///disk?socket=/tmp/vhost"])
    uri = next(line for line in one.process.stdout if line.startswith("vhost"))
    device = vhost_tool.Device(uri.rstrip(), queues=4)
    while [queue.holders(one.process.pid) for queue in device.queues] != [1, 2, 2, 2]:
        time.sleep(0.01)
    two = Server(export(TWO))
    with stopped_thread(one.process.pid, "gmblock/0"):
        device.submit(vhost_tool.WRITE, data=bytes(BLOCK), queue=device.queues[1])
        while "has taken it over" not in one.errors() or not is_idle(one.process.pid):
            time.sleep(0.01)
    device.gone()
    assert device.queues[1].read_used_index() == 0, device.status()
    one.kill()
    two.stop()
    clear(THREE)


def test_upgrade_and_reload():
    path = "/tmp/gmblock.yaml"

    def configure(text):
        with open(path, "w") as file:
            file.write(text)
    disk = "exports:\n  - name: disk\n    path: /dev/" + ONE + "\n    mode: direct\n    failover: reservation\n"
    configure(disk)
    one = Server(arguments=["--config", path])
    with one.client() as client:
        client.write(0, b"1" * BLOCK)
        configure(disk + "    description: changed\n    sched: off\n")
        one.command("reload")
    with one.client() as client:
        client.write(0, b"2" * BLOCK)
        upgraded = one.command("upgrade")
        client.write(BLOCK, b"3" * BLOCK)
    pid = int(upgraded.split("process ")[-1].split()[0])
    one.process.wait()
    assert not is_free(THREE)
    # An upgrade does not take a disk from another server either, although this one does not know its loss.
    two = Server(export(TWO))
    assert "another server has taken over" in one.command("upgrade", status=1)
    with two.client() as client:
        client.write(0, b"4" * BLOCK)
    os.kill(pid, signal.SIGKILL)
    two.stop()
    clear(THREE)


def test_killed_servers():
    one = Server(export(ONE))
    one.kill()
    assert not is_free(THREE)
    one = Server(export(ONE))  # takes over from itself
    with one.client() as client:
        client.write(0, b"1" * BLOCK)
    one.kill()
    two = Server(export(TWO))
    with two.client() as client:
        assert client.read(0, BLOCK) == b"1" * BLOCK
        client.write(0, b"2" * BLOCK)
    two.stop()
    clear(THREE)


def mark(file):
    # A lock stands for operations of a killed server.
    fcntl.fcntl(file, OFD_SETLK, struct.pack("=hhxxxxqqixxxx", fcntl.F_RDLCK, os.SEEK_SET, WRITER_OFFSET, 1, 0))


def test_operations_of_a_killed_server():
    # The server that is started again on this host must not make the disk execute them, on whichever volume they are.
    reason = "operations of a killed server of this machine are still in progress"
    Server(export(ONE)).kill()
    with open("/dev/" + ONE, "rb") as operations:
        mark(operations)
        Server(export(ONE)).kill()  # no other server has had the disk
        two = Server(export(TWO))
        refused(export(ONE), reason=reason)
        with two.client() as client:
            client.write(0, b"2" * BLOCK)
    with volume("left", "LVM-left", f"linear /dev/{ONE} 0") as left, \
         volume("right", "LVM-right", f"linear /dev/{ONE} 8192") as right:
        with open("/dev/" + right, "rb") as operations:
            mark(operations)
            refused(export(left), reason=reason)
        with two.client() as client:
            client.write(0, b"2" * BLOCK)
        # A volume that cannot be opened is reported.
        number = os.stat("/dev/" + right).st_rdev
        os.rename("/dev/" + right, "/dev/away")
        one = Server(export(left))
        unknown = f"on device {os.major(number)}:{os.minor(number)}, which is on the same disk, cannot be detected: No such file"
        assert unknown in one.errors(), one.errors()
        one.kill()
        os.rename("/dev/away", "/dev/" + right)
    two.kill()
    two = Server(export(TWO))
    one = Server(export(ONE))
    with one.client() as client:
        assert client.read(0, BLOCK) == b"2" * BLOCK
    two.kill()
    one.stop()
    clear(THREE)


def test_a_server_with_the_key_of_another_one():
    # Two machines that continue from one snapshot of a virtual machine have the same state, and had the same key.
    Server(export(TWO)).kill()
    found = bytearray(16)
    with open("/dev/" + TWO, "r+b", buffering=0) as disk:
        fcntl.ioctl(disk, READ_RESERVATION, found)
    clear(THREE)
    key = int.from_bytes(found[:8], "little")
    reservation_call(ONE, REGISTER, 0, key, IGNORE_KEY, 0)
    reservation_call(ONE, RESERVE, key, REGISTRANTS_ONLY, 0)
    assert writes(ONE)
    two = Server(export(TWO))
    assert not writes(ONE)
    two.stop()
    clear(THREE)


def test_a_server_that_ended_before_it_had_the_disk():
    # Its registration remains, and the previous server, which still has the disk, removes it. With the type ALL_REGISTRANTS, a
    # server has ended while it did this.
    key = 0x676d620000000001
    for kind in REGISTRANTS_ONLY, ALL_REGISTRANTS:
        reservation_call(ONE, REGISTER, 0, key, IGNORE_KEY, 0)
        reservation_call(ONE, RESERVE, key, kind, 0)
        reservation_call(TWO, REGISTER, 0, key + 1, IGNORE_KEY, 0)
        assert writes(TWO)
        one = Server(export(ONE))
        assert not writes(TWO)
        found = bytearray(16)
        with open("/dev/" + ONE, "r+b", buffering=0) as disk:
            fcntl.ioctl(disk, READ_RESERVATION, found)
        assert int.from_bytes(found[12:], "little") == REGISTRANTS_ONLY, found
        with one.client() as client:
            client.write(0, b"1" * BLOCK)
        one.stop()
        clear(THREE)


def test_a_volatile_cache():
    # Writes reach the medium before they are answered (FUA), if the disk says that it has a volatile cache.
    with open(f"/sys/block/{ONE}/dev") as file:
        issued = re.compile("block_rq_issue: " + file.read().strip().replace(":", ",") + " WF?S? ")
    tracing = "/sys/kernel/tracing/"
    subprocess.run(["mount", "-t", "tracefs", "tracefs", tracing], check=True)
    counts = []
    for cache in ("write through", "write back"):  # the disk has one
        with open(f"/sys/block/{ONE}/queue/write_cache", "w") as file:
            file.write(cache)
        one = Server(export(ONE))
        with one.client() as client, open(tracing + "events/block/block_rq_issue/enable", "w") as switch:
            switch.write("1")
            switch.flush()
            for number in range(10):
                client.write(number * BLOCK, b"w" * BLOCK)
            switch.write("0")
        with open(tracing + "trace") as file:
            found = issued.findall(file.read())
        with open(tracing + "trace", "w"):
            pass
        counts.append((len(found), sum("F" in text for text in found)))
        one.stop()
    assert counts == [(10, 0), (10, 10)], counts


def test_other_disks():
    one = Server(export(ONE))
    other = Server(export(OTHER))
    assert one.contexts() != other.contexts()
    assert not set(one.contexts()) & set(other.contexts())
    one.stop()
    other.stop()
    cluster = Server(export(ONE, "cluster"))
    assert is_free(THREE)
    with cluster.client() as client:
        client.write(0, b"1" * BLOCK)
    told = cluster.contexts()
    cluster.stop()
    one = Server(export(TWO))
    assert one.contexts() == told
    one.stop()


def test_volumes_of_a_disk():
    # They share its reservation.
    with volume("left", "LVM-left", f"linear /dev/{ONE} 0") as left, \
         volume("right", "LVM-right", f"linear /dev/{ONE} 8192") as right:
        one = Server(export(left), export(right, name="more"))
        with one.client() as client:
            client.write(0, b"1" * BLOCK)
            upgraded = one.command("upgrade")
            client.write(0, b"2" * BLOCK)
        one.process.wait()
        assert not is_free(THREE)
        pid = int(upgraded.split("process ")[-1].split()[0])
        descriptor = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        select.select([descriptor], [], [])
        os.close(descriptor)
    clear(THREE)


def test_an_error_of_a_disk_with_two_servers():
    # The second one has replaced the key of this host. The first one must not take an error of the disk for its loss.
    with volume("left", "LVM-left", f"linear /dev/{ONE} 0") as left, \
         volume("right", "LVM-right", f"linear /dev/{ONE} 8192") as right:
        one, two = Server(export(left)), Server(export(right, name="more"))
        broken = f"0 8192 flakey /dev/{ONE} 0 0 100 1 error_writes"
        with one.client() as client:
            for words in (["reload", "--table", broken], ["suspend", "--noflush"], ["resume", "--noudevsync"]):
                subprocess.run(["dmsetup", words[0], "volume-left", *words[1:]], check=True)
            client.send_request(nbdmini.CMD_WRITE, 1, 100, 4, b"late")
            assert client.reply() == (1, errno.EIO)
        assert one.refused_writes() == 0
        two.stop()
        one.stop()
    clear(THREE)


def test_a_clone_below_a_volume():
    told = []
    for disk in ONE, OTHER, ONE:
        with volume("disk", "LVM-AbCd", f"linear /dev/{disk} 0") as path:
            cluster = Server(export(path, "cluster"))
            told.append(cluster.contexts())
            cluster.stop()
    # A clone is another disk. The epoch is the same, because a volume that is moved with pvmove has lost no changes.
    (disk, epoch), (other_disk, other_epoch) = told[:2]
    assert told[0] == told[2] and disk != other_disk and epoch == other_epoch, told


def test_volumes_that_cannot_be_reserved():
    with volume("paths", "mpath-36001405000", f"multipath 0 0 1 1 round-robin 0 1 1 /dev/{ONE} 1") as paths:
        refused(export(paths), reason="not possible with dm-multipath")
        with volume("disk", "LVM-AbCd", f"linear /dev/{paths} 0") as path:
            refused(export(path), reason="not possible with dm-multipath")
        Server(export(paths, "cluster")).stop()
    with volume("striped", "LVM-AbCd", f"striped 2 16 /dev/{ONE} 0 /dev/{OTHER} 0") as path:
        refused(export(path), reason="is stored on 2 disks")
        Server(export(path, "cluster")).stop()
    with volume("pieces", "LVM-AbCd", f"linear /dev/{ONE} 0", f"linear /dev/{ONE} 8192") as path:
        refused(export(path), reason="or the volume has more than one segment")
    assert is_free(THREE)


def test_capabilities():
    # The drop-in reservations.conf of the service: another user, with the capabilities that Linux demands before 6.19.
    os.chmod("/dev/" + ONE, 0o666)
    os.chmod("/tmp", 0o1777)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if not ONE.startswith("nvme"):
        words = [*user, "gmblock", "serve", "--control", "none", "--listen", "nbd://127.0.0.1:6999", "--export", export(ONE)]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1 and "CAP_SYS_RAWIO" in done.stderr, done
    capabilities = "+sys_admin,+sys_rawio"
    words = [*user, "--inh-caps=" + capabilities, "--ambient-caps=" + capabilities]
    server = Server(export(ONE), prefix=words)
    with server.client() as client:
        client.write(0, bytes(BLOCK))
    assert not is_free(THREE)
    server.stop()
    clear(THREE)


def test_refusals():
    reservation_call(THREE, REGISTER, 0, 0x77, IGNORE_KEY, 0)
    refused(export(ONE), reason="registered or reserved by another program (key 0x77)")
    reservation_call(THREE, RESERVE, 0x77, REGISTRANTS_ONLY, 0)
    refused(export(ONE), reason="registered or reserved by another program (key 0x77)")
    reservation_call(THREE, CLEAR, 0x77, 0, 0)
    refused(export("vdc"), reason="has no worldwide unique name")
    with volume("plain", "LVM-AbCd", "linear /dev/vdc 0") as path:
        refused(export(path), reason="the disk has no persistent reservations")
    refused(f"disk=/dev/{ONE},failover=reservation", reason="through the page cache")
    refused(f"disk=/dev/{ONE},failover=reservation,mode=direct,readonly", reason="a read-only export has no reservation")
    refused("disk=memory:1M,failover=cluster", reason="the state of other disks (memory)")
    subprocess.run(["gmblock", "create", "--size=64M", "flash:/tmp/flash"], check=True)
    refused("disk=flash:/tmp/flash,failover=cluster", reason="the state of other disks (flash)")
    refused(f"disk=/dev/{ONE},failover=cluster,overlay=/tmp/overlay", reason="the state of other disks (overlays)")
    with open("/dev/" + OTHER, "r+b", buffering=0) as disk:
        disk.write(bytes(446) + struct.pack("<BBHBBHII", 0, 0, 0, 0x83, 0, 0, 8, 8192) + bytes(48) + b"\x55\xaa")
        fcntl.ioctl(disk, BLKRRPART)
    refused(export(PARTITION), reason="a disk changes its server as a whole")
    one = Server(export(ONE))
    one.stop()


if ONE.startswith("nvme"):
    test_taking_a_disk_back(*test_a_frozen_server())
    test_a_frozen_server_outlives_the_next_one(0, BLOCK, b"late" * (BLOCK // 4))
    test_a_frozen_server_outlives_the_next_one(100, 4, b"late")  # through the page cache
    test_a_host_that_has_booted_again()
    test_the_loss_reaches_all_reactors()
    test_the_loss_reaches_all_queues_of_a_virtual_machine()
    test_upgrade_and_reload()
    test_killed_servers()
    test_operations_of_a_killed_server()
    test_a_server_with_the_key_of_another_one()
    test_a_server_that_ended_before_it_had_the_disk()
    test_an_error_of_a_disk_with_two_servers()
    test_a_volatile_cache()
test_volumes_of_a_disk()
test_a_clone_below_a_volume()
test_volumes_that_cannot_be_reserved()
test_other_disks()
test_capabilities()
test_refusals()
"""


def test_servers_of_a_disk():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        script = os.path.join(folder, "disks.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(DISKS_PY)
        modules = {"nvme": ["nvme-core multipath=N", "nvmet", "nvme-loop"],
                   "scsi": ["sd_mod", "target_core_mod", "tcm_loop"]}[KIND]
        lab.guest("one", KERNEL, {"nvme": NVME, "scsi": SCSI}[KIND], memory=768,
                  files=[(GMBLOCK, "/lab/gmblock"), (script, "/lab/disks.py"),
                         *((os.path.join(FUNCTIONAL, name), "/lab/" + name) for name in ("nbdmini.py", "vhost_tool.py")),
                         ("/usr/lib/python3.11", "/usr/lib/python3.11")],
                  packages=["libdevmapper1.02.1", "dmsetup"], programs=["python3", "setpriv"],
                  load=["configfs", "dm_mod", "dm_multipath", "dm_round_robin", "dm_flakey", *modules], disks=3 * [16 << 20])
        lab.start()
        testing.finish(lab)


testing.main(test_servers_of_a_disk)
