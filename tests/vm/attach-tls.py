#!/usr/bin/python3
"""attach-tls.py GMBLOCK KERNEL WHERE CREDENTIALS: a disk of the kernel's nbd driver over TLS, with
records made by the kernel or by a relay of the daemon (WHERE is kernel or user). A file system on it
survives a server that is killed and started again. Before that, a copy to the server and back, by
our client and server alone: over kernel TLS where the kernel can change keys. After it, the same disk
over a Unix socket, from a server that speaks TLS 1.3 alone."""
import sys

import testing

GMBLOCK, KERNEL, WHERE, CREDENTIALS = sys.argv[1:5]
CIPHERS = {"6.12": ["gcm", "ghash_generic", "ctr"], "7.2": ["gcm", "ctr"]}[KERNEL]

SCRIPT = r"""
tls=/lab/tls
serve()
{
	rm -f /tmp/uri
	gmblock serve --listen nbds://127.0.0.1:$1 --tls require --tls-certificates $tls/good \
		--tls-psk $tls/keys.psk /dev/shm/disk.img >/tmp/uri 2>>/results/server &
	server=$!
	until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
}
count() # NAME
{
	sed -n "s/^$1[[:space:]]*//p" /proc/net/tls_stat
}
sums()
{
	(cd "$1" && find . -type f | sort | xargs sha256sum)
}
truncate -s 16M /dev/shm/disk.img
serve 10809

# Our client and server. Every process that uses TLS tries the kernel's, which counts as well.
uri="nbds://127.0.0.1:10809/?tls-certificates=$tls/good"
dd if=/dev/urandom of=/dev/shm/data bs=1M count=3 status=none
before=$(count TlsTxSw)
gmblock info --local >/dev/null
trial=$(($(count TlsTxSw) - before))
before=$(count TlsTxSw)
gmblock copy /dev/shm/data "$uri"
used=$(($(count TlsTxSw) - before - trial))
gmblock copy "$uri" /dev/shm/back
cmp -n 3145728 /dev/shm/data /dev/shm/back
rm /dev/shm/data /dev/shm/back
sent=$(gmblock stats --json "$uri" | tr ',' '\n' | sed -n 's/.*"page_cache_send_bytes": *//p')
case KERNEL in
7.2) test $used -ge 2 && test $sent -ge 1048576 ;;
*) test $used = 0 && test $sent = 0 ;;
esac

# The driver's disk. With certificates first, then with a pre-shared key.
disk=$(gmblock attach --nbd --tls-records WHERE --request-timeout 3s --slow-timeout 3s "$uri")
if [ WHERE = kernel ]; then
	test $(count TlsCurrTxSw) -ge 2
else
	# The connection that measures the readahead tries the kernel's TLS.
	until [ $(count TlsCurrTxSw) = 0 ]; do sleep 0.05; done
fi
mkfs.ext4 -q $disk
mount -t ext4 $disk /mnt
cp -a /bin/busybox /mnt/
(for i in 1 2 3; do dd if=/dev/urandom of=/mnt/noise$i bs=64k count=16 conv=fsync; done) &
writer=$!
until [ -s /mnt/noise1 ]; do sleep 0.05; done
kill -9 $server
serve 10809
wait $writer
sums /mnt >/tmp/before
umount /mnt
gmblock detach $disk
test "$(gmblock attach --list --json)" = "[]"

uri="nbds://alice@127.0.0.1:10809/?tls-psk-file=$tls/keys.psk"
disk=$(gmblock attach --nbd --tls-records WHERE --connections 1 "$uri")
e2fsck -fn $disk
mount -t ext4 -o ro,noload $disk /mnt
sums /mnt >/tmp/after
cmp /tmp/before /tmp/after
umount /mnt
# The server goes for good, and force does not wait for it.
kill -9 $server
until gmblock attach --list | grep -q "not connected"; do sleep 0.05; done
gmblock detach --force $disk
test "$(gmblock attach --list --json)" = "[]"

# A Unix socket, where a relay is all that there is, and a server that speaks TLS 1.3 alone.
rm /tmp/uri
gmblock serve --listen "nbds+unix:///?socket=/tmp/socket" --tls-psk $tls/keys.psk \
	--tls-priority NORMAL:-VERS-ALL:+VERS-TLS1.3:+ECDHE-PSK:+PSK /dev/shm/disk.img \
	>/tmp/uri 2>>/results/server &
server=$!
until [ -s /tmp/uri ]; do kill -0 $server; sleep 0.1; done
disk=$(gmblock attach --nbd "nbds+unix://alice@/?socket=/tmp/socket&tls-psk-file=$tls/keys.psk")
e2fsck -fn $disk
mount -t ext4 $disk /mnt
sums /mnt >/tmp/after
cmp /tmp/before /tmp/after
echo more >/mnt/more
umount /mnt
gmblock detach $disk
kill $server
wait $server

test "$(count TlsDecryptError)" = 0
cat /proc/net/tls_stat
! dmesg | grep -e "I/O error" -e "EXT4-fs error"
"""


def test_a_disk_of_the_driver_over_tls():
    script = SCRIPT.replace("KERNEL", KERNEL).replace("WHERE", WHERE)
    with testing.laboratory() as lab:
        lab.guest("guest", KERNEL, script,
                  files=[(GMBLOCK, "/lab/gmblock"), (CREDENTIALS, "/lab/tls")],
                  load=["nbd", "tls"], modules=["ext4", *CIPHERS],
                  programs=["mkfs.ext4", "e2fsck"])
        lab.start()
        testing.finish(lab)


testing.main(test_a_disk_of_the_driver_over_tls)
