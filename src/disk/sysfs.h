// SPDX-License-Identifier: Apache-2.0
/*
 * The facts about a block device that only sysfs tells: queue limits and how md and dm lay data
 * over their members. A partition is answered for by the device it is on.
 *
 * Threading: any thread; the calls read small kernel files. Ownership: none. Errors: what cannot be
 * read stays at its unknown value (0 or false).
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"

struct disk_sysfs {
	bool rotational;
	bool discards;		      /* takes discard commands */
	uint64_t io_max;	      /* bytes in one command, 0 = unknown */
	uint64_t discard_granularity; /* bytes, 0 = unknown */
	uint32_t stripe_chunk;	      /* bytes, 0 = not striped */
	uint32_t stripe_members;      /* data members, 0 = not striped */
};

void disk_sysfs_read(dev_t device, struct disk_sysfs *facts);

/* True when the device has a write-zeroes command. */
bool disk_sysfs_write_zeroes(dev_t device);

/*
 * Why a read of this device may write its memory more than once, or by another hand than the
 * device's own: a clause for people ("it is a RAID array, ..."). NULL: nothing says so, it is a raw
 * NVMe namespace on PCI or a virtio disk, or a partition of one. root: "/sys", or a test's own.
 */
const char *disk_sysfs_marker_refusal(const char *root, dev_t device);
