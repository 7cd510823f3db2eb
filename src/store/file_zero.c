// SPDX-License-Identifier: Apache-2.0
/*
 * Trim and zero. Both work on whole units (a page or filesystem block):
 *
 *   offset            head_end                  tail                end
 *     |-- edge, written --|---- middle, by the kernel ----|-- edge, written --|
 *
 * Trim leaves the edges unchanged; zero writes zeroes to them. Zero handles the middle first: a
 * fast zero can turn out to be impossible only there, and at that time no byte has been changed. If
 * the file does not support a method, the store records this and uses the next method. The last
 * method is writing zeroes.
 */
#include <errno.h>
#include <linux/falloc.h>
#include <stdalign.h>

#include "base/bytes.h"
#include "store/file.h"
#include "store/kind.h"

enum {
	ZERO_BUFFER_BYTES = 256 << 10,
};
/* Largest range of one system call. A call cannot be interrupted, and other operations wait for its
 * worker thread. */
#define PIECE_FILE_BYTES   (UINT64_C(16) << 20)
#define PIECE_DEVICE_BYTES (UINT64_C(64) << 20)

static const alignas(4096) uint8_t zero_buffer[ZERO_BUFFER_BYTES];

/* file_scratch.phase contains the stage in its low byte, and in the next byte the method of the
 * piece in flight. */
enum zero_stage { ZERO_MIDDLE, ZERO_HEAD, ZERO_TAIL, ZERO_STAGE_COUNT };
enum zero_way { ZERO_PUNCH, ZERO_RANGE, ZERO_DEVICE, ZERO_WRITE };

static void trim_next(struct store_part *part);
static void zero_next(struct store_part *part);

struct span {
	uint64_t start;
	uint64_t end;
};

/* Returns the range of whole units (a page or filesystem block) inside the part. It is empty if
 * start >= end. */
static struct span middle_of(const struct store_part *part)
{
	uint64_t unit = file_store_of(part)->unit;
	struct span middle = {
		.start = align_up(part->offset, unit),
		.end = align_down(part->offset + part->length, unit),
	};

	return middle;
}

static bool is_unsupported(const struct file_store *store, uint32_t what)
{
	/* Relaxed order: a thread that does not see the bit yet tries once more, which is
	 * harmless. */
	return (atomic_load_explicit(&store->unsupported, memory_order_relaxed) & what) != 0;
}

static void mark_unsupported(struct file_store *store, uint32_t what)
{
	atomic_fetch_or_explicit(&store->unsupported, what, memory_order_relaxed);
}

/* --- trim ---------------------------------------------------------------------------------- */

static void trim_retry(struct ring_op *op, int result)
{
	trim_next(file_part_of(op));
}

static void trim_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	if (result == -EOPNOTSUPP || result == -ENOSYS) {
		mark_unsupported(file_store_of(part), FILE_NO_TRIM);
		file_finish_durable(part);
		return;
	}
	if (result < 0) {
		if (!file_retry(part, result, trim_retry)) {
			file_finish(part, result);
		}
		return;
	}
	file_scratch_of(part)->done_bytes += file_scratch_of(part)->piece;
	file_scratch_of(part)->retries = 0;
	trim_next(part);
}

/* Returns the descriptor for discard and zero: the claim if there is one, see
 * file_gate_claim_fd(). */
static int device_fd(const struct store_part *part)
{
	const struct file_store *store = file_store_of(part);
	int claim_fd = file_gate_claim_fd(store->gate);

	return claim_fd >= 0 ? claim_fd : store->fd;
}

static int discard_call(struct ring_op *op)
{
	struct store_part *part = file_part_of(op);
	uint64_t start = middle_of(part).start + file_scratch_of(part)->done_bytes;

	return disk_discard(device_fd(part), true, start, file_scratch_of(part)->piece);
}

static void trim_next(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	struct span middle = middle_of(part);
	uint64_t start = middle.start + file_scratch_of(part)->done_bytes;

	if (start >= middle.end) {
		file_finish_durable(part);
		return;
	}
	if (store->disk.is_block) {
		file_scratch_of(part)->piece = MIN(middle.end - start, PIECE_DEVICE_BYTES);
		ring_call(part->queue->ring, &part->io, discard_call, trim_done);
		return;
	}
	file_scratch_of(part)->piece = MIN(middle.end - start, PIECE_FILE_BYTES);
	ring_allocate(part->queue->ring, &part->io, file_queue_of(part)->file,
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, file_scratch_of(part)->piece,
		trim_done);
}

static void start_later(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);

	if (result < 0) {
		file_finish(part, result);
	} else {
		file_finish_durable(part);
	}
}

/* Returns the error of an earlier flush if the operation must be durable, otherwise 0. */
static int durable_error(const struct store_part *part)
{
	return (part->flags & STORE_FUA) != 0 ? file_gate_error(file_store_of(part)->gate) : 0;
}

void file_trim(struct store_part *part)
{
	struct span middle = middle_of(part);
	int error = durable_error(part);

	if (error != 0 || middle.start >= middle.end ||
		is_unsupported(file_store_of(part), FILE_NO_TRIM)) {
		ring_defer(part->queue->ring, &part->io, error, start_later);
		return;
	}
	trim_next(part);
}

/* --- zero: ranges and methods -------------------------------------------------------------- */

/* Returns the span of a stage. If there is no middle, the head is the whole range. */
static struct span stage_span(const struct store_part *part, enum zero_stage stage)
{
	uint64_t end = part->offset + part->length;
	struct span middle = middle_of(part);
	bool has_middle = middle.start < middle.end;

	switch (stage) {
	case ZERO_MIDDLE:
		return has_middle ? middle : (struct span){ 0, 0 };
	case ZERO_HEAD:
		return (struct span){ part->offset, has_middle ? middle.start : end };
	case ZERO_TAIL:
		return has_middle ? (struct span){ middle.end, end } : (struct span){ 0, 0 };
	case ZERO_STAGE_COUNT:
		break;
	}
	GMB_ASSERT(false);
	return (struct span){ 0, 0 };
}

static enum zero_way middle_way(const struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	bool may_unmap = (part->flags & STORE_NO_HOLE) == 0;
	bool fast = (part->flags & STORE_FAST_ZERO) != 0;

	if (store->disk.is_block) {
		uint32_t known = FILE_NO_DEVICE_ZERO;

		if (fast) {
			known |= may_unmap ? FILE_NO_PUNCH : FILE_NO_ZERO_RANGE;
		}
		return is_unsupported(store, known) ? ZERO_WRITE : ZERO_DEVICE;
	}
	if (may_unmap && !is_unsupported(store, FILE_NO_PUNCH)) {
		return ZERO_PUNCH;
	}
	return is_unsupported(store, FILE_NO_ZERO_RANGE) ? ZERO_WRITE : ZERO_RANGE;
}

static void remember_refusal(struct store_part *part, enum zero_way way)
{
	struct file_store *store = file_store_of(part);
	bool may_unmap = (part->flags & STORE_NO_HOLE) == 0;

	if (way == ZERO_PUNCH) {
		mark_unsupported(store, FILE_NO_PUNCH);
	} else if (way == ZERO_RANGE) {
		mark_unsupported(store, FILE_NO_ZERO_RANGE);
	} else if ((part->flags & STORE_FAST_ZERO) != 0) {
		/* The device has no command for zeroing; the kernel can still write zeroes to
		 * it. */
		mark_unsupported(store, may_unmap ? FILE_NO_PUNCH : FILE_NO_ZERO_RANGE);
	} else {
		mark_unsupported(store, FILE_NO_DEVICE_ZERO);
	}
}

static enum zero_stage stage_of(struct store_part *part)
{
	return (enum zero_stage)(file_scratch_of(part)->phase & 0xff);
}

static enum zero_way way_of(struct store_part *part)
{
	return (enum zero_way)(file_scratch_of(part)->phase >> 8);
}

/* --- zero: piece by piece ------------------------------------------------------------------ */

static void zero_retry(struct ring_op *op, int result)
{
	zero_next(file_part_of(op));
}

static void file_zero_done(struct ring_op *op, int result)
{
	struct store_part *part = file_part_of(op);
	enum zero_way way = way_of(part);

	/* Leaves the gate, so that other parts can enter it between two pieces. */
	file_gate_leave(file_store_of(part)->gate, part);
	if (way == ZERO_WRITE && result >= 0) {
		file_scratch_of(part)->piece = (uint64_t)result;
		result = result == 0 ? -EIO : 0;
	} else if (way != ZERO_WRITE && (result == -EOPNOTSUPP || result == -ENOSYS)) {
		remember_refusal(part, way);
		zero_next(part);
		return;
	}
	if (result < 0) {
		if (!file_retry(part, result, zero_retry)) {
			file_finish(part, result);
		}
		return;
	}
	file_scratch_of(part)->done_bytes += file_scratch_of(part)->piece;
	file_scratch_of(part)->retries = 0;
	zero_next(part);
}

static int zero_device_call(struct ring_op *op)
{
	struct store_part *part = file_part_of(op);
	uint64_t start = stage_span(part, stage_of(part)).start + file_scratch_of(part)->done_bytes;

	return disk_zero(device_fd(part), true, start, file_scratch_of(part)->piece,
		(part->flags & STORE_NO_HOLE) == 0, (part->flags & STORE_FAST_ZERO) != 0);
}

/* Continues with the next piece, or with one that waited at the gate. */
void file_zero_resume(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	struct file_queue *queue = file_queue_of(part);
	uint64_t start = stage_span(part, stage_of(part)).start + file_scratch_of(part)->done_bytes;
	bool writes_direct = store->base.info.write_direct;
	bool direct = writes_direct && file_fits_direct(store, start, mem_of_const(zero_buffer),
					       file_scratch_of(part)->piece);

	if (!file_write_enter(part, direct)) {
		return;
	}
	ring_write(queue->base.ring, &part->io, direct ? queue->direct : queue->file,
		mem_of_const(zero_buffer), file_scratch_of(part)->piece, start,
		writes_direct && !direct, file_zero_done);
}

static void zero_allocate(struct store_part *part, int mode, uint64_t start)
{
	ring_allocate(part->queue->ring, &part->io, file_queue_of(part)->file,
		mode | FALLOC_FL_KEEP_SIZE, start, file_scratch_of(part)->piece, file_zero_done);
}

static void zero_piece(struct store_part *part, enum zero_way way, struct span left)
{
	uint64_t bytes = left.end - left.start;

	file_scratch_of(part)->phase = (uint32_t)stage_of(part) | (uint32_t)way << 8;
	switch (way) {
	case ZERO_PUNCH:
		file_scratch_of(part)->piece = MIN(bytes, PIECE_FILE_BYTES);
		zero_allocate(part, FALLOC_FL_PUNCH_HOLE, left.start);
		break;
	case ZERO_RANGE:
		file_scratch_of(part)->piece = MIN(bytes, PIECE_FILE_BYTES);
		zero_allocate(part, FALLOC_FL_ZERO_RANGE, left.start);
		break;
	case ZERO_DEVICE:
		file_scratch_of(part)->piece = MIN(bytes, PIECE_DEVICE_BYTES);
		ring_call(part->queue->ring, &part->io, zero_device_call, file_zero_done);
		break;
	case ZERO_WRITE:
		file_scratch_of(part)->piece = MIN(bytes, (uint64_t)ZERO_BUFFER_BYTES);
		file_zero_resume(part);
		break;
	}
}

static void zero_next(struct store_part *part)
{
	struct span left = stage_span(part, stage_of(part));
	enum zero_way way = ZERO_WRITE;

	while (left.start + file_scratch_of(part)->done_bytes >= left.end) {
		if (stage_of(part) == ZERO_TAIL) {
			file_finish_durable(part);
			return;
		}
		file_scratch_of(part)->phase = stage_of(part) + 1;
		file_scratch_of(part)->done_bytes = 0;
		left = stage_span(part, stage_of(part));
	}
	left.start += file_scratch_of(part)->done_bytes;
	if (stage_of(part) == ZERO_MIDDLE) {
		way = middle_way(part);
		if (way == ZERO_WRITE && (part->flags & STORE_FAST_ZERO) != 0) {
			file_finish(part, -EOPNOTSUPP);
			return;
		}
	}
	zero_piece(part, way, left);
}

/* Returns whether a fast zero is known to be impossible, without accessing the disk. */
static bool file_zero_is_refused(const struct store_part *part)
{
	return (part->flags & STORE_FAST_ZERO) != 0 && middle_way(part) == ZERO_WRITE;
}

void file_zero(struct store_part *part)
{
	int error = durable_error(part);

	if (error == 0 && file_zero_is_refused(part)) {
		error = -EOPNOTSUPP;
	}
	if (error != 0) {
		store_finish_later(part, error);
		return;
	}
	zero_next(part);
}
