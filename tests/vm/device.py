#!/usr/bin/python3
"""device.py GMBLOCK KERNEL: two NVMe drives behind one PCIe switch, one of which has memory that the
other can reach (a controller memory buffer), and a third one elsewhere. gmblock serves them with
mode=device: data goes through that memory and is right, in every mixture of modes; what the processor
must not touch, and what a disk cannot reach, goes through RAM, and is counted; copies within the server
have no byte in RAM; and the memory may go while it is in use."""
import os
import sys
import tempfile

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
DISK_BYTES = 32 << 20
PYTHON = "/usr/lib/python3.11"

SCRIPT = r'''#!/usr/bin/python3
import glob, json, os, random, re, subprocess, sys, threading
sys.path.insert(0, "/lab")
import nbdmini

URI = "nbd://127.0.0.1:10809"
CONTROL = "/run/control"
MIB = 1 << 20
DISK_BYTES = 32 * MIB

def bdf_of(disk):
    path = os.path.realpath(f"/sys/block/{disk}/device/device")
    return os.path.basename(path)

disks = {bdf_of(os.path.basename(path)): "/dev/" + os.path.basename(path)
         for path in glob.glob("/sys/block/nvme*n1")}
memory, = [path.split("/")[-2] for path in glob.glob("/sys/bus/pci/devices/*/p2pmem")]
near = disks.pop(memory)
lone = disks.pop(min(disks)) # on the root's own bus
(far_bdf, far), = disks.items()

class Server:
    def __init__(self, *arguments):
        self.log = open("/tmp/log", "w+")
        self.process = subprocess.Popen(
            ["gmblock", "serve", "--listen", URI, "--control", CONTROL, "--threads", "1", *arguments],
            stdout=subprocess.PIPE, stderr=self.log, text=True)

    def __enter__(self):
        if not self.process.stdout.readline():
            raise AssertionError(self.said())
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        status = self.process.wait()
        print(self.said(), end="", flush=True)
        assert status == 0, status

    def said(self):
        self.log.flush()
        with open("/tmp/log") as file:
            return file.read()

    def all_stats(self):
        return json.loads(subprocess.run(["gmblock", "stats", "--json", CONTROL], check=True,
                                         stdout=subprocess.PIPE).stdout)

    def stats(self, name):
        entry, = [entry for entry in self.all_stats()["exports"] if entry["name"] == name]
        return entry

    def arenas(self):
        return self.all_stats()["arenas"]

def refused(status, text, *arguments):
    done = subprocess.run(["gmblock", "serve", "--listen", "nbd://127.0.0.1:0", "--control", "none", "--threads", "1",
                           *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == status and text in done.stderr, (done.returncode, done.stderr)

def export(name, path, *keys):
    return ["--export", ",".join([f"{name}={path}", *keys])]

def open_export(name):
    return nbdmini.open_export(URI, name.encode(), structured=False)

class Local:
    """The disk, used by a program of this machine through the page cache."""
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR)
    def read(self, offset, length):
        return os.pread(self.fd, length, offset)
    def write(self, offset, data):
        assert os.pwrite(self.fd, data, offset) == len(data)

def check_refusals():
    device = export("", far, "mode=device")
    refused(1, "no PCI device 0000:7f:1f.0", *device, "--arena", "p2pmem:7f:1f.0")
    refused(1, "has no memory for other devices", *device, "--arena", f"p2pmem:{far_bdf}")
    refused(2, "mode=device needs", *device)
    refused(2, "is not the address of a PCI device", *device, "--arena", "p2pmem:eth0")

def check_local():
    told = json.loads(subprocess.run(["gmblock", "info", "--local", "--json"], check=True,
                                     stdout=subprocess.PIPE).stdout)
    device, = told["device_memory"]
    print(device, flush=True)
    assert device["device"] == memory and device["works"] and "in BAR" in device["verdict"]
    disk, = [disk for disk in device["disks"] if disk["device"] == far_bdf]
    assert disk["works"] and disk["bridge"] and f"/dev/{disk['disk']}" == far, disk
    disk, = [disk for disk in device["disks"] if f"/dev/{disk['disk']}" == lone]
    assert not disk["works"] and disk["bridge"] is None, disk

def check_addresses(server):
    """Every page that the server has mapped is in a BAR of the device."""
    with open(f"/sys/bus/pci/devices/{memory}/resource") as file:
        bars = [[int(word, 16) for word in line.split()[:2]] for line in file]
    pages = 0
    with open(f"/proc/{server.process.pid}/maps") as maps, \
            open(f"/proc/{server.process.pid}/pagemap", "rb") as pagemap:
        for line in maps:
            if "p2pmem/allocate" not in line:
                continue
            begin, end = [int(word, 16) for word in line.split()[0].split("-")]
            for page in range(begin, end, 4096):
                pagemap.seek(page // 4096 * 8)
                entry = int.from_bytes(pagemap.read(8), "little")
                address = (entry & (1 << 55) - 1) * 4096
                assert entry >> 63 and any(a <= address < b for a, b in bars if b), hex(address)
                pages += 1
    assert pages > 0
    print(f"{pages} pages in the BARs", flush=True)

MODES = {"device": ["mode=device", "device-cpu=yes", "parts=64K"], "direct": ["mode=direct"],
         "cached": ["mode=cached"]}

def check_modes():
    exports = sum([export(name, far, *keys) for name, keys in MODES.items()], [])
    exports += export("untouched", far, "mode=device")
    with Server(*exports, "--arena", f"p2pmem:{memory}") as server:
        assert "in BAR" in server.said(), server.said()
        check_addresses(server)
        refused(1, "0 KiB are free", *export("", near, "mode=device"), "--arena", f"p2pmem:{memory}")
        content = random.randbytes(8 * MIB)
        client = open_export("device")
        for at in range(0, len(content), MIB):
            client.write(at, content[at:at + MIB])
        for at in range(0, len(content), MIB):
            assert client.read(at, MIB) == content[at:at + MIB], at
        told = server.stats("device")
        print({key: value for key, value in told.items() if key.startswith(("device", "ram", "placed"))})
        # Of a write, the parts that came together with its header are copied by the program, into
        # RAM: at most a receive buffer of 256 KiB, and the part in which it ends.
        assert told["device_bytes"] > len(content) * 3 // 2, told
        # With no use of the processor, the same reads have RAM.
        untouched = open_export("untouched")
        assert untouched.read(0, MIB) == content[:MIB]
        told = server.stats("untouched")
        assert told["device_bytes"] == 0 and told["device_refused_cpu"] > 0, told
        check_table()

def check_table():
    """Every writer beside every reader, which has the old content in its cache if it has one."""
    users = {name: open_export(name) for name in MODES}
    users["local"] = Local(far)
    at = 16 * MIB
    for writer in users:
        for reader in users:
            old, new = random.randbytes(65536), random.randbytes(65536)
            users[reader].write(at, old)
            assert users[reader].read(at, 65536) == old, reader
            users[writer].write(at, new)
            assert users[reader].read(at, 65536) == new, (writer, reader)
            users[writer].write(at + 512, old[:1024]) # not whole pages
            assert users[reader].read(at, 2048) == new[:512] + old[:1024] + new[1536:2048], \
                (writer, reader)
            at += 65536
    print(f"{len(users) ** 2} pairs of writers and readers", flush=True)

def sectors(disk):
    """Bytes that the disk has read and written."""
    with open(f"/sys/block/{os.path.basename(disk)}/stat") as file:
        words = file.read().split()
    return 512 * int(words[2]), 512 * int(words[6])

def copy(source, target):
    done = subprocess.run(["gmblock", "copy", "--json", *[f"gmb+unix:///{name}?socket=/run/gmb"
                                                          for name in (source, target)]],
                          stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    assert told["bytes_copied"] == DISK_BYTES, told

def check_copies():
    """The server copies: through the memory where both disks reach it, else through RAM."""
    with open(far, "wb") as file:
        file.write(random.randbytes(DISK_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with Server("--listen", "gmb+unix:///?socket=/run/gmb", *export("far", far, "mode=device"),
                *export("near", near, "mode=device"), *export("lone", lone, "mode=direct"),
                "--arena", f"p2pmem:{memory}") as server:
        before = sectors(far), sectors(near)
        copy("far", "near")
        moved = [[b - a for a, b in zip(*pair)] for pair in zip(before, (sectors(far), sectors(near)))]
        assert moved == [[DISK_BYTES, 0], [0, DISK_BYTES]], moved
        assert server.all_stats()["counters"]["bytes_copied_device"] == DISK_BYTES
        for name in ("far", "near"):
            told = server.stats(name)
            assert (told["device_bytes"], told["ram_bytes"], told["placed_bytes"]) == \
                (DISK_BYTES, 0, 0), told
        # The first pieces find out that this disk cannot reach it.
        copy("far", "lone")
        told = server.all_stats()["counters"]
        assert told["bytes_copied_device"] + told["bytes_copied_ram"] == 2 * DISK_BYTES, told
        assert told["bytes_copied_device"] <= DISK_BYTES + 8 * 256 * 1024, told
        assert "the disk cannot reach the memory" in server.said(), server.said()
    content = Local(far).read(0, DISK_BYTES)
    assert Local(near).read(0, DISK_BYTES) == content
    assert Local(lone).read(0, DISK_BYTES) == content
    print("copies", flush=True)

def check_scarce():
    """256 KiB for eight clients at once."""
    for spill in ("ram", "wait"):
        with Server(*export("", far, *MODES["device"]),
                    "--arena", f"p2pmem:{memory},size=256K,spill={spill}") as server:
            def work(idx):
                client = open_export("")
                data = bytes([idx + 1]) * MIB
                for _ in range(3):
                    client.write(idx * MIB, data)
                    assert client.read(idx * MIB, MIB) == data
                good.append(idx)
            good = []
            threads = [threading.Thread(target=work, args=[idx]) for idx in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            told = server.stats("")
            assert len(good) == 8 and told["device_bytes"] > 0, told
            assert spill == "ram" or told["device_refused_room"] == 0, told
            ram, device = server.arenas()
            assert ram["kind"] == "ram" and device["kind"] == memory, (ram, device)
            assert device["limit_bytes"] == 256 << 10 and device["trouble"] is None, device
            assert device["spills"] == told["device_refused_room"] and ram["spills"] == 0, device
            assert (device["spills"] if spill == "ram" else device["waits"]) > 0, device

def check_removal():
    """The drive with the memory goes while data passes through it."""
    with Server(*export("far", far, *MODES["device"]), *export("near", near),
                "--arena", f"p2pmem:{memory}") as server:
        content = random.randbytes(MIB)
        client = open_export("far")
        client.write(0, content)
        reads, failures, stop = 0, [], threading.Event()
        counted = threading.Condition()
        def work():
            nonlocal client, reads
            while not stop.is_set():
                try:
                    assert client.read(0, MIB) == content
                    with counted:
                        reads += 1
                        counted.notify()
                except (OSError, EOFError, RuntimeError) as error:
                    failures.append(error)
                    client = open_export("far")
        def wait_for_reads(count):
            with counted:
                assert counted.wait_for(lambda: reads >= count, 60), (reads, count, failures)
        worker = threading.Thread(target=work)
        worker.start()
        wait_for_reads(3)
        with open(f"/sys/bus/pci/devices/{memory}/remove", "w") as file:
            file.write("1")
        try:
            wait_for_reads(reads + 5)
        finally:
            stop.set()
            worker.join()
        told = server.stats("far")
        assert told["device_refused_trouble"] > 0, (reads, failures, told)
        assert [arena["trouble"] is None for arena in server.arenas()] == [True, False]
        assert len(failures) <= 2, failures # what was under way
        assert "can no longer be used" in server.said(), server.said()
        assert "p2pmem" not in open(f"/proc/{server.process.pid}/maps").read()
        print(f"{reads} reads, of which {len(failures)} failed", flush=True)

check_refusals()
check_local()
check_modes()
check_copies()
check_scarce()
check_removal()
'''


def drives(folder):
    arguments = ["-device", "pcie-root-port,id=root0,chassis=1",
                 "-device", "x3130-upstream,id=switch0,bus=root0"]
    for idx, more in enumerate((",bus=down0", ",bus=down1,cmb_size_mb=16", ",bus=pcie.0")):
        path = os.path.join(folder, f"disk{idx}")
        with open(path, "wb") as file:
            file.truncate(DISK_BYTES)
        if "down" in more:
            arguments += ["-device", f"xio3130-downstream,id=down{idx},bus=switch0,"
                                     f"chassis={idx + 2},slot={idx + 1}"]
        arguments += ["-drive", f"if=none,id=drive{idx},format=raw,file={path}",
                      "-device", f"nvme,serial=disk{idx},drive=drive{idx}{more}"]
    return arguments


def test_payload_passes_through_memory_of_a_device():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        lab.guest("one", KERNEL, SCRIPT, memory=768, load=["nvme"], programs=["python3"],
                  files=[(GMBLOCK, "/lab/gmblock"), (PYTHON, PYTHON),
                         (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py")],
                  qemu=drives(folder))
        lab.start()
        testing.finish(lab)


testing.main(test_payload_passes_through_memory_of_a_device)
