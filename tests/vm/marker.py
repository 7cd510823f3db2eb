#!/usr/bin/python3
"""marker.py GMBLOCK KERNEL: marker is refused on everything that may write a read's memory
twice (dm-crypt, device mapper, RAID, btrfs, a loop device, multipath NVMe), and serves what a raw
virtio disk and a raw NVMe disk hold."""
import os
import re
import sys
import tempfile

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
DISK_BYTES = 32 << 20
MODULES = ["dm_mod", "dm_crypt", "xts", "aesni_intel", "raid1", "btrfs", "loop"]
# Libraries first: what a package depends on is not fetched by itself.
PACKAGES = ["liblzo2-2", "libdevmapper1.02.1", "dmsetup", "btrfs-progs", "mdadm"]

SCRIPT = r"""
refused() # WORDS PATH
{
	! gmblock serve --export "=$2,mode=direct,marker" --listen "$uri" >/tmp/out 2>/tmp/err
	grep -q "$1" /tmp/err || { cat /tmp/err; exit 1; }
	grep -q "marker does not work with '$2'" /tmp/err || { cat /tmp/err; exit 1; }
	test ! -s /tmp/out || { cat /tmp/out; exit 1; }
	echo "$2: refused" >>/results/refused
}
served() # PATH NAME
{
	gmblock serve --log-level info --export "=$1,readonly,mode=direct,marker" --listen "$uri" \
		--run 'gmblock copy --no-progress --requests 2 --connections 1 "$uri" /tmp/copy' 2>/results/$2 ||
		{ cat /results/$2; exit 1; }
	cmp /tmp/copy $1
	rm /tmp/copy
}
# Drives are numbered in the order in which the kernel has found them.
drive() # SERIAL
{
	for folder in /sys/block/nvme*; do
		read -r serial <$folder/device/serial
		case ${folder##*/} in
		*c*) ;; # a path to a drive
		*) [ "$serial" != "$1" ] || echo "${folder##*/}" ;;
		esac
	done
}
uri='nbd+unix:///?socket=/tmp/s'
one=$(drive one)
two=$(drive two)
for disk in vda $one; do
	dd if=/dev/urandom of=/dev/$disk bs=1M count=32 2>/dev/null
done
sync

served /dev/vda virtio
served /dev/$one nvme

# A partition is as good as its disk, and as bad.
printf 'o\nn\np\n1\n2048\n\nw\n' | fdisk /dev/vda >/dev/null
until [ -b /dev/vda1 ]; do sleep 0.1; done
dd if=/dev/urandom of=/dev/vda1 bs=1M count=8 conv=notrunc 2>/dev/null
served /dev/vda1 partition

key=$(head -c 64 /dev/zero | tr '\0' 7)
sectors=$(blockdev --getsz /dev/vdb)
dmsetup create --noudevsync secret --table "0 $sectors crypt aes-xts-plain64 $key$key 0 /dev/vdb 0"
dd if=/dev/urandom of=/dev/dm-0 bs=1M count=8 2>/dev/null
refused "device-mapper device" /dev/dm-0
dmsetup remove --noudevsync secret
dmsetup create --noudevsync straight --table "0 $sectors linear /dev/vdb 0"
refused "device-mapper device" /dev/dm-0
dmsetup remove --noudevsync straight

mkfs.btrfs -q /dev/vdb >/dev/null 2>&1
mount -t btrfs /dev/vdb /mnt
dd if=/dev/urandom of=/mnt/disk.img bs=1M count=8 2>/dev/null
refused "the disk is a file" /mnt/disk.img
losetup /dev/loop0 /mnt/disk.img
refused "the disk is a loop device" /dev/loop0
losetup -d /dev/loop0
umount /mnt

wipefs -qa /dev/vdb
yes | mdadm --quiet --create /dev/md0 --level=1 --raid-devices=2 --force --assume-clean \
	--metadata=1.2 /dev/vdb /dev/vdc
refused "the disk is a RAID array" /dev/md0

refused "the disk is a multipath NVMe device" /dev/$two
"""


def nvme(folder):
    """Two drives: one of its own, and one that several controllers could reach."""
    arguments = []
    for name, device in (("one", ["nvme,serial=one,drive=one"]),
                         ("two", ["nvme-subsys,id=many", "nvme,serial=two,subsys=many",
                                  "nvme-ns,drive=two,shared=on"])):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.truncate(DISK_BYTES)
        arguments += ["-drive", f"if=none,id={name},format=raw,file={path}"]
        for text in device:
            arguments += ["-device", text]
    return arguments


def check_served(guest, name):
    with open(f"{guest.results}/{name}", encoding="utf-8") as file:
        said = file.read()
    match = re.search(r"(\d+) reads watched; (\S+) of their (\S+) detected before the reads completed; (\d+) reads", said)
    assert match and int(match[1]) > 0 and match[4] == "0", said
    print(f"{name}: {match[0]}")


def test_markers_are_for_raw_disks():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        guest = lab.guest("one", KERNEL, SCRIPT, files=[(GMBLOCK, "/lab/gmblock")],
                          packages=PACKAGES, programs=["wipefs", "losetup"],
                          load=["nvme_core multipath=1", "nvme", "loop"], modules=MODULES,
                          disks=[DISK_BYTES, 160 << 20, 160 << 20], memory=768,
                          qemu=nvme(folder))
        lab.start()
        testing.finish(lab)
        for name in ("virtio", "nvme", "partition"):
            check_served(guest, name)
        with open(f"{guest.results}/refused", encoding="utf-8") as file:
            assert len(file.read().splitlines()) == 6, lab.story()


testing.main(test_markers_are_for_raw_disks)
