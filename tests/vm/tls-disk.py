#!/usr/bin/python3
"""tls-disk.py GMBLOCK KERNEL: disks of a guest's kernel over TLS: by nbd-client, whose kernel nbd speaks
through a process of its own, and by gmblock attach --ublk, whose server is killed meanwhile and has
other credentials when it comes back."""
import os
import sys
import tempfile

import testing

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "functional"))
import tls_tool  # noqa: E402

GMBLOCK, KERNEL = sys.argv[1:3]

SCRIPT = r"""
serve()
{
	rm -f /tmp/uri
	gmblock serve --tls=require --tls-certificates /lab/pki --tls-verify-peer \
		--listen nbds://127.0.0.1:10809 /dev/shm/disk.img >/tmp/uri 2>>/results/server &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
truncate -s 32M /dev/shm/disk.img
dd if=/dev/urandom of=/dev/shm/data bs=1M count=4 status=none
serve

! nbd-client -N '' 127.0.0.1 10809 /dev/nbd0
nbd-client -N "" -enable-tls -cacertfile /lab/pki/ca-cert.pem -certfile /lab/pki/client-cert.pem \
	-keyfile /lab/pki/client-key.pem -tlshostname localhost 127.0.0.1 10809 /dev/nbd0
dd if=/dev/shm/data of=/dev/nbd0 bs=1M oflag=direct conv=fsync status=none
cmp -n 4194304 /dev/shm/data /dev/shm/disk.img
dd if=/dev/nbd0 of=/dev/shm/back bs=1M count=4 iflag=direct status=none
cmp /dev/shm/data /dev/shm/back
nbd-client -d /dev/nbd0

disk=$(gmblock attach --ublk --request-timeout 3s "nbds://127.0.0.1/?tls-certificates=/lab/pki")
dd if=$disk of=/dev/shm/back bs=1M count=4 iflag=direct status=none
cmp /dev/shm/data /dev/shm/back
kill -9 $server
mv /lab/pki /lab/old
mv /lab/new /lab/pki
serve
dd if=/dev/shm/data of=$disk bs=1M seek=8 oflag=direct conv=fsync status=none
gmblock detach $disk
dd if=/dev/shm/disk.img of=/dev/shm/back bs=1M skip=8 count=4 status=none
cmp /dev/shm/data /dev/shm/back
# Nobody else gets in.
! gmblock info "nbds://127.0.0.1/?tls-certificates=/lab/old" 2>/tmp/refusal
grep -q "not signed by a trusted authority" /tmp/refusal
! gmblock info nbd://127.0.0.1 2>/tmp/refusal
grep -q "demands TLS" /tmp/refusal
"""


def test_disks_over_tls():
    with tempfile.TemporaryDirectory(prefix="gmblock-pki-") as pki, testing.laboratory() as lab:
        files = [(GMBLOCK, "/lab/gmblock")]
        for name, folder in (("Old", "pki"), ("New", "new")):
            path = os.path.join(pki, folder)
            tls_tool.both(tls_tool.Authority(path + "-authority", name), path)
            files += [(os.path.join(path, file), f"/lab/{folder}/{file}")
                      for file in os.listdir(path)]
        lab.guest("guest", KERNEL, SCRIPT, files=files, load=["nbd", "ublk_drv"],
                  programs=["nbd-client"])
        lab.start()
        testing.finish(lab)


testing.main(test_disks_over_tls)
