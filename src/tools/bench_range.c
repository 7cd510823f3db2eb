// SPDX-License-Identifier: Apache-2.0
/*
 * Determines the range of an export that "gmblock bench" uses, and checks whether it may be
 * overwritten.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"

int bench_range(const struct bench_work *work, const struct gmb_info *info,
	struct bench_range *range, struct error *error)
{
	uint64_t size = work->size;

	if (bench_writes(work) && (info->capabilities & GMB_CAN_WRITE) == 0) {
		return error_set(error, -EROFS,
			"the server offers the export read-only: --rw %s cannot write to it",
			work->rw);
	}
	if (work->block_bytes % info->block_minimum != 0 ||
		work->offset % info->block_minimum != 0) {
		return error_set(error, -EINVAL,
			"--bs and --offset must be multiples of the minimum block size of the "
			"server, %" PRIu32 " bytes",
			info->block_minimum);
	}
	if (info->bytes == 0) {
		return error_set(error, -ERANGE, "the export is empty, so it cannot be measured");
	}
	if (work->offset >= info->bytes) {
		return error_set(error, -ERANGE,
			"the offset %" PRIu64 " is outside the export, which has %" PRIu64 " bytes",
			work->offset, info->bytes);
	}
	if (size > info->bytes - work->offset) {
		return error_set(error, -ERANGE,
			"the range of %" PRIu64 " bytes at offset %" PRIu64
			" extends past the end of the export, which has %" PRIu64 " bytes",
			size, work->offset, info->bytes);
	}
	if (size == 0) {
		size = info->bytes - work->offset;
	}
	if (size < work->block_bytes) {
		return error_set(error, -ERANGE,
			"the range of %" PRIu64 " bytes is smaller than one block of %" PRIu32
			" bytes",
			size, work->block_bytes);
	}
	range->offset = work->offset;
	range->blocks = size / work->block_bytes;
	return 0;
}

/* --- contents that would be overwritten ------------------------------------------------------ */

/* Bytes read to find contents; enough for partition tables, labels and superblocks. */
enum { LOOK_BYTES = 128 << 10 };

/* Finds the first offset that may hold data; skips what the server reports as zeroes. *data == end:
 * none. */
static int data_find(struct gmb_client *client, uint64_t offset, uint64_t end, uint64_t *data)
{
	int err = 0;

	*data = offset;
	while (err == 0 && *data < end) {
		struct gmb_extent extent;
		uint32_t count = 1;

		err = gmb_block_status(client, *data, end - *data, &extent, &count);
		if (err == 0 && (extent.flags & GMB_EXTENT_ZERO) == 0) {
			break;
		}
		*data += err == 0 ? extent.bytes : 0;
	}
	return err;
}

static int bench_range_look_at(struct gmb_client *client, const struct bench_work *work,
	uint8_t *buffer, uint64_t offset, uint64_t bytes, struct error *error)
{
	int err = gmb_pread(client, buffer, bytes, offset);

	if (err != 0) {
		return error_set(error, err,
			"cannot read %" PRIu64 " bytes at %" PRIu64
			" to check whether the export has contents: %s",
			bytes, offset, strerror(-err));
	}
	for (uint64_t i = 0; i < bytes; i++) {
		if (buffer[i] != 0) {
			return error_set(error, -EEXIST,
				"the export has contents, for example at byte %" PRIu64
				", which --rw %s would overwrite; choose another export or range, "
				"or add --force",
				offset + i, work->rw);
		}
	}
	return 0;
}

int bench_contents_check(const struct bench_work *work, struct gmb_client *client,
	const struct gmb_info *info, const struct bench_range *range, struct error *error)
{
	uint64_t end = range->offset + range->blocks * work->block_bytes;
	uint64_t first = range->offset;
	uint64_t last;
	uint8_t *buffer;
	int err = 0;

	if ((info->capabilities & GMB_CAN_STATUS) != 0) {
		err = data_find(client, range->offset, end, &first);
		if (err != 0) {
			return error_set(error, err, "cannot get the allocation of the export: %s",
				strerror(-err));
		}
	}
	first -= first % info->block_minimum;
	if (first == end) {
		return 0;
	}
	buffer = malloc(LOOK_BYTES);
	if (buffer == NULL) {
		return error_oom(error);
	}
	last = end - MIN(end - first, (uint64_t)LOOK_BYTES);
	err = bench_range_look_at(
		client, work, buffer, first, MIN(end - first, (uint64_t)LOOK_BYTES), error);
	if (err == 0 && last > first) {
		err = bench_range_look_at(client, work, buffer, last, end - last, error);
	}
	free(buffer);
	return err;
}
