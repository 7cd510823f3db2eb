// SPDX-License-Identifier: Apache-2.0
/*
 * Copies from file to file in the kernel, on a worker thread. A system call cannot be interrupted,
 * so a part is copied in pieces. Between two pieces, the part leaves the gate, so that other parts
 * can enter it.
 */
#include <errno.h>

#include "store/file.h"
#include "store/kind.h"

#define PIECE_BYTES (UINT64_C(16) << 20)

static const struct file_store *source_of(const struct store_part *part)
{
	return container_of(part->copy.source, struct file_store, base);
}

/* copy_file_range() copies through the page cache. It is not offered for stores in direct mode,
 * where copying by direct reads and writes is better. */
uint32_t file_copy_ways(struct store *target_base, struct store *source_base, uint64_t *clone_align)
{
	const struct file_store *target = container_of(target_base, struct file_store, base);
	const struct file_store *source = container_of(source_base, struct file_store, base);
	/* Relaxed order: a thread that does not see the bit yet tries once more, which is
	 * harmless. */
	uint32_t unsupported = atomic_load_explicit(&target->unsupported, memory_order_relaxed);
	bool cached = !target_base->info.write_direct && !source_base->info.read_direct;

	if (target->disk.is_block || source->disk.is_block ||
		target->disk.identity[0] != source->disk.identity[0]) {
		return 0;
	}
	*clone_align = MAX(target->unit, source->unit);
	return ((unsupported & FILE_NO_CLONE) == 0 ? (uint32_t)STORE_COPY_CLONE : 0) |
	       (cached && (unsupported & FILE_NO_COPY_RANGE) == 0 ? (uint32_t)STORE_COPY_RANGE : 0);
}

static void copy_retry(struct ring_op *op, int result)
{
	file_copy(file_part_of(op));
}

static void file_copy_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);
	struct file_scratch *scratch = file_scratch_of(part);
	struct file_store *store = file_store_of(part);

	file_gate_leave(store->gate, part);
	if (result == -EOPNOTSUPP) { /* the file system does not support this method */
		atomic_fetch_or_explicit(&store->unsupported,
			part->copy.way == STORE_COPY_CLONE ? FILE_NO_CLONE : FILE_NO_COPY_RANGE,
			memory_order_relaxed);
	} else if (result == -EXDEV) { /* not supported for these two files, or at this offset */
		result = -EOPNOTSUPP;
	} else if (result == 0) { /* the source ends here: the file was truncated */
		result = -EIO;
	}
	if (result < 0) {
		if (!file_retry(part, result, copy_retry)) {
			file_finish(part, result);
		}
		return;
	}
	scratch->done_bytes += (uint64_t)result;
	scratch->retries = 0;
	if (scratch->done_bytes == part->length) {
		file_finish_durable(part);
	} else {
		file_copy(part);
	}
}

/* Copies one piece. Returns the number of bytes copied, or a negative errno. */
static int copy_call(struct ring_op *op)
{
	struct store_part *part = file_part_of(op);
	const struct file_scratch *scratch = file_scratch_of(part);
	int from = source_of(part)->fd;
	int to = file_store_of(part)->fd;
	uint64_t from_offset = part->copy.offset + scratch->done_bytes;
	uint64_t offset = part->offset + scratch->done_bytes;
	int result;

	if (part->copy.way == STORE_COPY_RANGE) {
		return disk_copy(from, from_offset, to, offset, scratch->piece);
	}
	result = disk_clone(from, from_offset, to, offset, scratch->piece);
	return result == 0 ? (int)scratch->piece : result;
}

void file_copy(struct store_part *part)
{
	struct file_scratch *scratch = file_scratch_of(part);

	if (!file_write_enter(part, false)) {
		return;
	}
	scratch->piece = MIN(part->length - scratch->done_bytes, PIECE_BYTES);
	ring_call(part->queue->ring, &part->io, copy_call, file_copy_done);
}
