// SPDX-License-Identifier: Apache-2.0
/*
 * Cache hints, and queries for holes.
 */
#include <errno.h>

#include "store/file.h"
#include "store/kind.h"

enum {
	ADVISE_BYTES_MAX = 64 << 20,  /* limit, so that a hint does not fill the page cache */
	ADVISE_PIECE_BYTES = 2 << 20, /* after each piece, other parts can run */
	/* limit of lookups for one part, to bound the time on a worker thread */
	LOOKUPS_MAX = 256,
};

/* --- cache hint ---------------------------------------------------------------------------- */

static void cache_next(struct store_part *part);

static void advise_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	file_scratch_of(part)->done_bytes += file_scratch_of(part)->piece;
	if (result < 0) {
		file_finish(part, 0); /* a hint that cannot be followed is not an error */
	} else {
		cache_next(part);
	}
}

static void cache_next(struct store_part *part)
{
	uint64_t done = file_scratch_of(part)->done_bytes;
	uint64_t left = MIN(part->length, (uint64_t)ADVISE_BYTES_MAX) - done;

	if (left == 0) {
		file_finish(part, 0);
		return;
	}
	file_scratch_of(part)->piece = MIN(left, (uint64_t)ADVISE_PIECE_BYTES);
	ring_advise(part->queue->ring, &part->io, file_queue_of(part)->file, part->offset + done,
		file_scratch_of(part)->piece, advise_done);
}

void file_cache(struct store_part *part)
{
	struct file_store *store = file_store_of(part);

	/* While there are direct writers, reading ahead could leave stale pages in the cache, see
	 * file_gate.h. */
	if (store->base.info.read_direct ||
		(store->disk.keeps_stale && file_gate_has_direct_writers(store->gate))) {
		store_finish_later(part, 0);
		return;
	}
	file_auto_announced(part, MIN(part->length, (uint64_t)ADVISE_BYTES_MAX));
	cache_next(part);
}

/* --- extents ------------------------------------------------------------------------------- */

/* Runs on a worker thread. If an error occurs, returns the extents found before it. The submitter
 * then requests the rest, and gets the error. */
static int extents_call(struct ring_op *op)
{
	struct store_part *part = file_part_of(op);
	int fd = file_store_of(part)->fd;
	uint64_t done = 0;

	for (unsigned i = 0; i < LOOKUPS_MAX && done < part->length; i++) {
		enum disk_extent_kind kind;
		uint64_t length = 0;
		int result =
			disk_extent(fd, part->offset + done, part->length - done, &kind, &length);

		if (result < 0) {
			return part->extent_count > 0 ? 0 : result;
		}
		GMB_ASSERT(length > 0);
		GMB_ASSERT(length <= part->length - done);
		if (!store_extent_add(part, length,
			    kind == DISK_HOLE ? STORE_EXTENT_HOLE | STORE_EXTENT_ZERO : 0)) {
			break;
		}
		done += length;
	}
	return 0;
}

static void file_extents_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	if (result == -ENXIO) { /* the file was truncated during the query */
		file_refresh_size(file_store_of(part));
		result = -EIO;
	}
	file_finish(part, result);
}

void file_extents(struct store_part *part)
{
	if (file_store_of(part)->disk.is_block) {
		(void)store_extent_add(part, part->length, 0);
		store_finish_later(part, 0);
		return;
	}
	ring_call(part->queue->ring, &part->io, extents_call, file_extents_done);
}
