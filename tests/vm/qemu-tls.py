#!/usr/bin/python3
"""qemu-tls.py GMBLOCK KERNEL: the disks of a guest are QEMU's own connections over TLS to a server on
this machine, one by a certificate over TCP, one by a pre-shared key on a Unix socket. The server is
killed and comes back while the guest writes; QEMU connects again, and nothing is lost."""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse

import testing

sys.path.append(os.path.join(testing.HERE, "..", "functional"))
import support  # noqa: E402
import tls_tool  # noqa: E402

support.GMBLOCK, KERNEL = sys.argv[1:3]
DISK_BYTES = 48 << 20
PART_BYTES = 8 << 20
DISKS = ("x509", "psk")

SCRIPT = r"""
for disk in vda vdb; do
	test "$(blockdev --getsize64 /dev/$disk)" = DISK_BYTES
	dd if=/dev/urandom of=/tmp/$disk bs=PART_BYTES count=1 status=none
	dd if=/tmp/$disk of=/dev/$disk bs=1M oflag=direct conv=fsync status=none
	dd if=/dev/$disk of=/tmp/back bs=4k count=$((PART_BYTES / 4096)) iflag=direct status=none
	cmp /tmp/$disk /tmp/back
	sha256sum </tmp/$disk >/results/$disk
done
# In flight when the server is killed.
writers=
for disk in vda vdb; do
	for i in 1 2 3; do
		dd if=/tmp/$disk of=/dev/$disk bs=64k seek=$((i * PART_BYTES / 65536)) oflag=direct \
			conv=fsync status=none &
		writers="$writers $!"
	done
done
lab-signal writing
lab-wait again >/dev/null
for writer in $writers; do
	wait $writer
done
for disk in vda vdb; do
	for i in 1 2 3; do
		dd if=/dev/$disk of=/tmp/back bs=PART_BYTES skip=$i count=1 iflag=fullblock status=none
		cmp /tmp/$disk /tmp/back
	done
	mkfs.ext4 -q -E offset=$((4 * PART_BYTES)) /dev/$disk 8M
done
! dmesg | grep "I/O error"
""".replace("PART_BYTES", str(PART_BYTES)).replace("DISK_BYTES", str(DISK_BYTES))


class Place:
    """Credentials, two images and the server that has them."""

    def __init__(self, folder):
        self.folder = folder
        tls_tool.both(tls_tool.Authority(self.path("authority"), "Example CA"), self.path("pki"))
        os.mkdir(self.path("keys"))
        tls_tool.write_psk(self.path("keys", "keys.psk"), tls_tool.PSK)
        for name in DISKS:
            with open(self.path(name), "wb") as image:
                image.truncate(DISK_BYTES)
        self.uris = ["nbds://127.0.0.1:0", f"nbds+unix:///?socket={self.path('socket')}"]
        self.serve()

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def serve(self):
        """Each disk is there for one identity alone."""
        arguments = ["--tls-certificates", self.path("pki"), "--tls-verify-peer",
                     "--tls-psk", self.path("keys"), "--control", self.path("control"),
                     "--access", "x509: cert-cn=host-a rights=rw",
                     "--access", "psk: psk=alice rights=rw"]
        for name in DISKS:
            arguments += ["--export", f"{name}={self.path(name)}"]
        for uri in self.uris:
            arguments += ["--listen", uri]
        self.server = support.Server(*arguments, uri_count=2)
        # The next server has the same port.
        self.port = urllib.parse.urlsplit(self.server.uris[0]).port
        self.uris[0] = f"nbds://127.0.0.1:{self.port}"

    def serve_again(self):
        self.server.kill()
        self.serve()

    def handshakes(self):
        done = subprocess.run([support.GMBLOCK, "stats", "--json", self.path("control")], check=True,
                              capture_output=True)
        return json.loads(done.stdout)["counters"]["tls_handshakes"]

    def qemu(self):
        """Arguments that make both disks."""
        servers = {"x509": {"type": "inet", "host": "localhost", "port": str(self.port)},
                   "psk": {"type": "unix", "path": self.path("socket")}}
        arguments = [
            "-object", f"tls-creds-x509,id=tls-x509,endpoint=client,dir={self.path('pki')}",
            "-object", f"tls-creds-psk,id=tls-psk,endpoint=client,dir={self.path('keys')},"
                       "username=alice"]
        for name in DISKS:
            arguments += ["-blockdev", json.dumps({
                "driver": "nbd", "node-name": name, "server": servers[name], "export": name,
                "tls-creds": f"tls-{name}", "reconnect-delay": testing.TIME_LIMIT})]
            arguments += ["-device", f"virtio-blk-pci,drive={name}"]
        return arguments


def test_disks_of_qemu_over_tls():
    with tempfile.TemporaryDirectory(prefix="gmblock-qemu-tls-") as folder:
        place = Place(folder)
        try:
            with testing.laboratory() as lab:
                guest = lab.guest("guest", KERNEL, SCRIPT, load=["virtio_blk"],
                                  programs=["mkfs.ext4"], qemu=place.qemu())
                lab.start()
                lab.wait_signal("writing")
                assert place.handshakes() == 2, place.handshakes()
                place.serve_again()
                lab.send("again")
                testing.finish(lab)
                assert place.handshakes() == 2, place.handshakes()
                check_images(place, guest)
            status, errors = place.server.stop()
            assert status == 0, errors
        finally:
            place.server.kill()


def check_images(place, guest):
    for name, disk in zip(DISKS, ("vda", "vdb")):
        with open(os.path.join(guest.results, disk), encoding="ascii") as file:
            wanted = file.read().split()[0]
        with open(place.path(name), "rb") as image:
            for part in range(4):
                found = hashlib.sha256(image.read(PART_BYTES)).hexdigest()
                assert found == wanted, (name, part)
        subprocess.run(["e2fsck", "-fn", f"{place.path(name)}?offset={4 * PART_BYTES}"], check=True,
                       stdout=subprocess.DEVNULL)


testing.main(test_disks_of_qemu_over_tls)
