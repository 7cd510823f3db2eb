// SPDX-License-Identifier: Apache-2.0
/*
 * Writes, trims and zeroes. If all blocks of a change are present, the change is only forwarded to
 * the upper store. Otherwise, the part first becomes the owner of the absent blocks:
 *
 *   all present ────────────────────────────────────────────────────▶ forward ─▶ done
 *   else: own absent blocks ─▶ copy rest of edge blocks ─▶ forward ─▶ present ─▶ done
 *                  │  ▲ when another part that owns a block is done
 *                  └──┘
 *
 * A trim of blocks that are not all present is forwarded as a fast zero, because the upper store
 * may contain bytes there that a killed server has written, and a trim might leave them unchanged.
 * If the upper store cannot zero without writing, the trim has no effect.
 *
 * Invariant: a part that changes blocks for the first time owns them from before it reads the base
 * until they are present. So a copy from the base never overwrites bytes of a client, and every
 * present block was written completely. Data that a failed part has left in the upper store is
 * invisible, because its blocks are not present and reads still go to the base.
 */
#include <errno.h>

#include "base/bytes.h"
#include "store/overlay.h"

struct range {
	uint64_t start;
	uint64_t end;
};

/* Returns the range to change. A trim skips incomplete blocks, except for the last block of the
 * disk. */
static struct range range_of(struct store_part *part)
{
	const struct overlay_scratch *scratch = overlay_scratch_of(part);
	uint64_t size = overlay_of(part->queue)->layout.size;
	struct range range = { scratch->offset, scratch->offset + scratch->length };

	if (part->op == STORE_TRIM) {
		range.start = align_up(range.start, OVERLAY_BLOCK_BYTES);
		range.end = range.end == size ? size : align_down(range.end, OVERLAY_BLOCK_BYTES);
	}
	return range;
}

/* Returns the bits of the blocks from first to end - 1 in the word that contains first. */
static uint64_t word_mask(uint64_t first, uint64_t end)
{
	uint64_t from = first % OVERLAY_WORD_BLOCKS;
	uint64_t count = MIN(end - first, OVERLAY_WORD_BLOCKS - from);

	return (count == OVERLAY_WORD_BLOCKS ? UINT64_MAX : (UINT64_C(1) << count) - 1) << from;
}

/* Returns the first block of the next word. */
static uint64_t word_next(uint64_t block)
{
	return (block / OVERLAY_WORD_BLOCKS + 1) * OVERLAY_WORD_BLOCKS;
}

/* --- ownership of blocks --------------------------------------------------------------------- */

/* All functions of this section are called under the lock. */

static bool overlay_change_is_busy(const struct overlay_store *store, uint64_t first, uint64_t end)
{
	for (uint64_t at = first; at < end; at = word_next(at)) {
		if ((store->busy[at / OVERLAY_WORD_BLOCKS] & word_mask(at, end)) != 0) {
			return true;
		}
	}
	return false;
}

/* Makes the part the owner of all absent blocks in its range. Returns false if another part owns an
 * absent block. */
static bool blocks_take(struct overlay_store *store, struct store_part *part)
{
	struct range range = range_of(part);
	uint64_t first = overlay_first(range.start);
	uint64_t end = overlay_end(range.end);

	if (overlay_change_is_busy(store, first, end)) {
		return false;
	}
	for (uint64_t at = first; at < end; at = word_next(at)) {
		/* Relaxed order: bits are set only under the lock. */
		uint64_t present = atomic_load_explicit(
			&store->present[at / OVERLAY_WORD_BLOCKS], memory_order_relaxed);

		store->busy[at / OVERLAY_WORD_BLOCKS] |= ~present & word_mask(at, end);
	}
	overlay_scratch_of(part)->owns_blocks = true;
	return true;
}

/* Releases the blocks that the part owns in its range, and makes them present if the part has
 * succeeded. All busy blocks of the range are the part's own, because a part cannot own a range in
 * which another part owns a block. Then the blocked parts try again. */
static void blocks_give(struct overlay_store *store, struct range range, bool done)
{
	uint64_t first = overlay_first(range.start);
	uint64_t end = overlay_end(range.end);

	if (done) {
		overlay_pages_changed(store, first, end);
	}
	for (uint64_t at = first; at < end; at = word_next(at)) {
		uint64_t mask = word_mask(at, end);
		uint64_t *busy = &store->busy[at / OVERLAY_WORD_BLOCKS];

		if (done && (*busy & mask) != 0) {
			/* The release order pairs with the acquire in present_word(). */
			atomic_fetch_or_explicit(&store->present[at / OVERLAY_WORD_BLOCKS],
				*busy & mask, memory_order_release);
		}
		*busy &= ~mask;
	}
	list_for_each(node, &store->blocked)
	{
		struct store_part *part = list_entry(node, struct store_part, node);

		if (blocks_take(store, part)) {
			list_remove(node);
			overlay_send(part, OVERLAY_STEP_CHANGE);
		}
	}
}

/* --- copies from the base -------------------------------------------------------------------- */

static void change_next(struct store_part *part);
static void change_end(struct store_part *part, int result);

/* Returns the edge blocks to copy from the base: absent blocks of which only a part is changed. */
static uint8_t edges_of(struct store_part *part)
{
	const struct overlay_store *store = overlay_of(part->queue);
	struct range range = range_of(part);
	uint64_t head = overlay_first(range.start);
	uint64_t tail = overlay_first(range.end - 1);
	uint8_t edges = 0;

	if (!is_aligned(range.start, OVERLAY_BLOCK_BYTES) && !overlay_has(store, head)) {
		edges |= OVERLAY_EDGE_HEAD;
	}
	if (!is_aligned(range.end, OVERLAY_BLOCK_BYTES) && range.end != store->layout.size &&
		!overlay_has(store, tail) && (tail != head || edges == 0)) {
		edges |= OVERLAY_EDGE_TAIL;
	}
	return edges;
}

/* Returns the edge block to copy next: the first block, then the last block. */
static struct range edge_range(struct store_part *part)
{
	struct range range = range_of(part);
	bool head = (overlay_scratch_of(part)->edges & OVERLAY_EDGE_HEAD) != 0;
	uint64_t start = align_down(head ? range.start : range.end - 1, OVERLAY_BLOCK_BYTES);
	uint64_t size = overlay_of(part->queue)->layout.size;

	return (struct range){ start, MIN(start + OVERLAY_BLOCK_BYTES, size) };
}

/* Ends one copy, releases the helper and continues with the part. */
static void overlay_change_copy_end(struct overlay_helper *helper, int result)
{
	struct store_part *part = helper->owner;

	if (result < 0) {
		overlay_helper_give(helper);
		change_end(part, result);
		return;
	}
	/* clears the lowest set bit: the edge that was copied */
	overlay_scratch_of(part)->edges &= (uint8_t)(overlay_scratch_of(part)->edges - 1);
	overlay_helper_give(helper);
	change_next(part);
}

static void copy_written(struct store_part *helper_part, int result)
{
	overlay_change_copy_end(container_of(helper_part, struct overlay_helper, part), result);
}

static void copy_read(struct store_part *helper_part, int result)
{
	struct overlay_helper *helper = container_of(helper_part, struct overlay_helper, part);
	struct range block = edge_range(helper->owner);

	if (result < 0) {
		overlay_change_copy_end(helper, result);
		return;
	}
	overlay_helper_submit(helper, true, STORE_WRITE, block.start, block.end - block.start,
		mem_of(helper->buffer), copy_written);
}

static void overlay_change_copy_begin(struct store_part *part)
{
	struct overlay_helper *helper = overlay_helper_take(part, OVERLAY_STEP_COPY);
	struct range block = edge_range(part);

	if (helper == NULL) {
		return;
	}
	helper->queue->copied_blocks++;
	overlay_helper_submit(helper, false, STORE_READ, block.start, block.end - block.start,
		mem_of(helper->buffer), copy_read);
}

/* --- the change itself ----------------------------------------------------------------------- */

static void change_forward(struct store_part *part)
{
	struct range range = range_of(part);

	if (overlay_scratch_of(part)->commits) {
		part->flags &= ~(uint32_t)STORE_FUA; /* the commit makes the change durable */
	}
	part->offset = range.start;
	part->length = range.end - range.start;
	if (overlay_scratch_of(part)->zeroes) {
		part->op = STORE_ZERO;
		part->flags |= STORE_FAST_ZERO;
	}
	overlay_forward(part, true);
}

static void change_next(struct store_part *part)
{
	if (overlay_scratch_of(part)->edges != 0) {
		overlay_change_copy_begin(part);
	} else {
		change_forward(part);
	}
}

static void change_owned(struct store_part *part)
{
	overlay_scratch_of(part)->edges = edges_of(part);
	change_next(part);
}

void overlay_change_resume(struct store_part *part, enum overlay_step step)
{
	if (step == OVERLAY_STEP_CHANGE) {
		change_owned(part);
	} else {
		overlay_change_copy_begin(part);
	}
}

/* Ends a change. The part must have its original flags and operation again. */
static void change_end(struct store_part *part, int result)
{
	struct overlay_store *store = overlay_of(part->queue);
	struct overlay_scratch *scratch = overlay_scratch_of(part);
	/* The part is a trim, forwarded as a fast zero. If that is not possible, the trim has no
	 * effect, which is permitted. */
	bool undone = scratch->zeroes && result == -EOPNOTSUPP;

	if (scratch->owns_blocks) {
		scratch->owns_blocks = false;
		pthread_mutex_lock(&store->lock);
		blocks_give(store, range_of(part), result == 0);
		pthread_mutex_unlock(&store->lock);
	}
	if (result == 0 && scratch->commits) {
		overlay_commit(part);
	} else {
		store_finish(part, undone ? 0 : result);
	}
}

void overlay_change_done(struct store_part *part, int result)
{
	const struct overlay_scratch *scratch = overlay_scratch_of(part);

	if (scratch->commits) {
		part->flags |= STORE_FUA;
	}
	if (scratch->zeroes) {
		part->op = STORE_TRIM;
		part->flags &= ~(uint32_t)STORE_FAST_ZERO;
	}
	change_end(part, result);
}

void overlay_change(struct store_part *part)
{
	struct overlay_store *store = overlay_of(part->queue);
	struct overlay_scratch *scratch = overlay_scratch_of(part);
	bool durable = (part->flags & STORE_FUA) != 0 && store->fd >= 0;
	struct range range = range_of(part);
	uint64_t first = overlay_first(range.start);
	uint64_t end = overlay_end(range.end);
	bool present;
	bool taken;

	if (range.start >= range.end) { /* a trim without a whole block */
		store_finish_later(part, 0);
		return;
	}
	if (overlay_run(store, first, end, &present) == end && present) {
		scratch->commits = durable && !overlay_is_saved(store, first, end);
		change_forward(part);
		return;
	}
	scratch->commits = durable;
	scratch->zeroes = part->op == STORE_TRIM;
	pthread_mutex_lock(&store->lock);
	taken = blocks_take(store, part);
	if (!taken) {
		list_push_back(&store->blocked, &part->node);
	}
	pthread_mutex_unlock(&store->lock);
	if (taken) {
		change_owned(part);
	}
}
