#!/usr/bin/python3
"""zoned.py GMBLOCK KERNEL: a host-managed zoned block device is not served for writing, with the
reason; for reading it is."""
import os
import sys

import testing

GMBLOCK, KERNEL = sys.argv[1:3]

SCRIPT = r"""
uri='nbd+unix:///?socket=/tmp/s'
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nullb
mkdir nullb0
cd nullb0
for setting in size=64 memory_backed=1 zoned=1 zone_size=4 zone_nr_conv=0 power=1; do
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
"""


def test_a_zoned_device_is_only_read():
    with testing.laboratory() as lab:
        guest = lab.guest("one", KERNEL, SCRIPT, files=[(GMBLOCK, "/lab/gmblock")], memory=768,
                          load=["null_blk nr_devices=0"])
        lab.start()
        testing.finish(lab)
        with open(os.path.join(guest.results, "refused"), encoding="utf-8") as file:
            said = file.read()
        assert "'/dev/nullb0' is a host-managed zoned block device" in said, said
        assert "readonly" in said, said


testing.main(test_a_zoned_device_is_only_read)
