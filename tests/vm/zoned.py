#!/usr/bin/python3
"""zoned.py GMBLOCK KERNEL LOAD: a host-managed zoned block device is not served for writing, with
the reason; for reading it is. A flash store on it is, and keeps what was answered when its server is
killed (LOAD: flash-load.py).

QEMU forgets the zones of its device with the power, and null_blk all: it goes in flash-crash.py."""
import os
import sys
import tempfile

import testing

GMBLOCK, KERNEL, LOAD = sys.argv[1:4]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
KILLS = 6

SCRIPT = r"""
uri='nbd+unix:///?socket=/tmp/s'
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nullb
mkdir nullb0
cd nullb0
for setting in size=96 memory_backed=1 zoned=1 zone_size=4 zone_nr_conv=0 power=1; do
	echo "${setting#*=}" >"${setting%=*}"
done
test "$(cat /sys/block/nullb0/queue/zoned)" = host-managed
# The first zone, from its beginning: the one way in which it can be written.
dd if=/dev/urandom of=/tmp/written bs=1M count=1 2>/dev/null
dd if=/tmp/written of=/dev/nullb0 bs=64K oflag=direct 2>/dev/null

! gmblock serve /dev/nullb0 --listen "$uri" --run true 2>/results/refused
for mode in cached direct; do
	gmblock serve --export "=/dev/nullb0,readonly,mode=$mode" --listen "$uri" \
		--run 'gmblock copy --no-progress "$uri" /tmp/copy'
	head -c 1048576 /tmp/copy | cmp - /tmp/written
	rm /tmp/copy
done

# Neither would a store destroy what is there.
! gmblock create flash:/dev/nullb0 2>/results/not-empty
! gmblock serve flash:/dev/nullb0,mode=cached --listen "$uri" --run true 2>/dev/null
"""

# Zones of 1 MiB with room for 768 KiB or 1 MiB, and no more active ones than there must be.
FLASH_SCRIPT = r"""
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nullb
for disk in nullb0 nullb1; do
	mkdir $disk
	settings='size=48 memory_backed=1 zoned=1 zone_size=1 zone_nr_conv=2 zone_max_active=3 zone_max_open=3'
	test $disk = nullb0 || settings='size=48 memory_backed=1 zoned=1 zone_size=1 zone_max_active=2'
	for setting in $settings power=1; do
		echo "${setting#*=}" >"$disk/${setting%=*}"
	done
done
! gmblock create flash:/dev/nullb1 2>/results/too-few
! gmblock create --segment=256K flash:/dev/nullb0 2>/results/segment
for disk in nullb0=1M nvme0n1=768K; do
	SEGMENT=${disk#*=} python3 /lab/flash-load.py /dev/${disk%=*} KILLS 0 0
	! gmblock create flash:/dev/${disk%=*} 2>>/results/again
	gmblock create --force flash:/dev/${disk%=*}
	gmblock check /dev/${disk%=*}
done
"""


def test_a_zoned_device_is_only_read():
    with testing.laboratory() as lab:
        guest = lab.guest("one", KERNEL, SCRIPT, files=[(GMBLOCK, "/lab/gmblock")], memory=768,
                          load=["null_blk nr_devices=0"])
        lab.start()
        testing.finish(lab)
        said = results(guest, "refused")
        assert "'/dev/nullb0' is a host-managed zoned block device" in said, said
        assert "readonly" in said and "flash:/dev/nullb0" in said, said
        assert "has zones that are not empty" in results(guest, "not-empty")


def results(guest, name):
    with open(os.path.join(guest.results, name), encoding="utf-8") as file:
        return file.read()


def test_a_flash_store_outlives_its_server():
    with tempfile.TemporaryDirectory() as folder, testing.laboratory() as lab:
        disk = os.path.join(folder, "disk")
        with open(disk, "wb") as file:
            file.truncate(48 << 20)
        guest = lab.guest("one", KERNEL, FLASH_SCRIPT.replace("KILLS", str(KILLS)), memory=1024,
                          load=["null_blk nr_devices=0", "nvme"], programs=["python3"],
                          files=[(GMBLOCK, "/lab/gmblock"), (LOAD, "/lab/flash-load.py"),
                                 (os.path.join(FUNCTIONAL, "nbdmini.py"), "/lab/nbdmini.py"),
                                 ("/usr/lib/python3.11", "/usr/lib/python3.11")],
                          qemu=["-drive", f"if=none,id=zones,format=raw,file={disk}",
                                "-device", "nvme,serial=zones,id=nvme0",
                                "-device", "nvme-ns,drive=zones,bus=nvme0,zoned=on,"
                                "zoned.zone_size=1M,zoned.zone_capacity=768K,zoned.max_open=3,"
                                "zoned.max_active=3,logical_block_size=4096,physical_block_size=4096"])
        lab.start()
        lab.send("past", "0 0")
        testing.finish(lab)
        assert "only 2 zones of '/dev/nullb1' can be active" in results(guest, "too-few")
        assert "the zones of the device have a capacity of 1024 KiB" in results(guest, "segment")
        assert results(guest, "again").count("already contains a flash store") == 2


testing.main(test_a_zoned_device_is_only_read, test_a_flash_store_outlives_its_server)
