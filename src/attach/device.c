// SPDX-License-Identifier: Apache-2.0
#include "attach/device.h"

#include <errno.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

enum { SECTOR_BYTES = 512 };

int device_fit(struct device *device, uint64_t export_bytes, uint32_t block_minimum,
	uint32_t *block_bytes, struct error *error)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	uint32_t block = MAX(block_minimum, (uint32_t)SECTOR_BYTES);

	if (block > page) {
		return error_set(error, -EINVAL,
			"the server takes blocks of %u bytes and more, and the kernel at most %u; "
			"--fuse FILE works",
			block_minimum, page);
	}
	device->bytes = align_down(export_bytes, block);
	if (device->bytes == 0) {
		return error_set(
			error, -EINVAL, "the export is smaller than one block of %u bytes", block);
	}
	if (device->bytes != export_bytes) {
		log_warning("the last %u bytes of the export are not part of the disk, whose "
			    "blocks have %u bytes",
			(unsigned)(export_bytes - device->bytes), block);
	}
	*block_bytes = block;
	return 0;
}
