// SPDX-License-Identifier: Apache-2.0
/*
 * Reads and block status (extents). A read gets its data from the write cache, as zeroes from holes
 * of the map, or from the device by helpers.
 *
 * Invariant: a part is complete when done_bytes has reached its length and no helper is pending.
 * Helpers verify checksums, so the read of a damaged block fails. While a helper reads, `readers`
 * keeps its segment from becoming free, so the block is not overwritten under the read.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum {
	FLASH_HELPERS = 64,
	FLASH_RUN_BLOCKS = 256,
	EXTENT_LOADS_MAX = 256,	    /* limit of map pages read for one extents part */
	EXTENT_PAGES_MAX = 1 << 16, /* limit of map pages examined for one extents part */
};

/* Reads a run of blocks for a part, or a single block of which the part needs a piece. */
struct flash_helper {
	struct flash_io io;
	struct flash *flash;
	struct store_part *part;
	struct list_node node;
	uint32_t segment;
	uint32_t count;	 /* blocks */
	uint32_t skip;	 /* position of the piece in its block, in bytes */
	uint32_t bytes;	 /* length of the piece; 0: the helper reads a run */
	uint64_t at;	 /* position of the piece in the part */
	uint64_t block;	 /* first block of the run, on the disk */
	uint8_t *bounce; /* buffer of one block, for a piece */
	uint32_t crcs[FLASH_RUN_BLOCKS];
};

struct flash_reads {
	struct flash_helper helpers[FLASH_HELPERS];
	struct list_node idle;	 /* helpers */
	struct list_node hoping; /* parts that wait for a helper or a free map slot */
};

uint64_t flash_reads_bytes(void)
{
	return align_up(sizeof(struct flash_reads), FLASH_BLOCK_BYTES) +
	       (uint64_t)FLASH_HELPERS * FLASH_BLOCK_BYTES;
}

void flash_reads_init(struct flash *flash, uint8_t *memory)
{
	struct flash_reads *reads = (void *)memory;

	memset(reads, 0, sizeof(*reads));
	list_init(&reads->idle);
	list_init(&reads->hoping);
	memory += align_up(sizeof(*reads), FLASH_BLOCK_BYTES);
	for (uint32_t i = 0; i < FLASH_HELPERS; i++) {
		reads->helpers[i].flash = flash;
		reads->helpers[i].bounce = memory + (size_t)i * FLASH_BLOCK_BYTES;
		list_push_back(&reads->idle, &reads->helpers[i].node);
	}
	flash->reads = reads;
}

/* Makes a part wait until flash_reads_resume() retries it. */
static void hope(struct flash *flash, struct store_part *part)
{
	flash_scratch_of(part)->is_waiting = true;
	list_push_back(&flash->reads->hoping, &part->node);
}

bool flash_reads_resume(struct flash *flash)
{
	struct list_node parts;
	struct list_node *node;
	bool any = !list_is_empty(&flash->reads->hoping) && !list_is_empty(&flash->reads->idle);

	if (!any) {
		return false;
	}
	/* The list is emptied first, because a part that still finds no helper is added to the list
	 * again. */
	list_init(&parts);
	list_move_all(&parts, &flash->reads->hoping);
	while ((node = list_pop_front(&parts)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);

		flash_scratch_of(part)->is_waiting = false;
		if (part->op == STORE_READ) {
			flash_read_step(part);
		} else {
			flash_extents_step(part);
		}
	}
	return true;
}

static void read_page_ready(struct flash_wait *wait, int result)
{
	struct flash_scratch *scratch = container_of(wait, struct flash_scratch, wait);
	struct store_part *part = container_of(
		(uint8_t(*)[STORE_SCRATCH_BYTES])(void *)scratch, struct store_part, scratch);

	scratch->is_waiting = false;
	if (result < 0 && scratch->result == 0) {
		scratch->result = result;
	}
	if (part->op == STORE_READ) {
		flash_read_step(part);
	} else {
		flash_extents_step(part);
	}
}

/* Returns the map page, or NULL if it must be read first. The part then continues later. */
static struct flash_slot *read_page_get(struct flash *flash, struct store_part *part, uint32_t page)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	struct flash_slot *slot;
	bool full;

	scratch->wait.ready = read_page_ready;
	slot = flash_map_get(flash, page, &scratch->wait, &full);
	if (slot == NULL && full) {
		hope(flash, part);
	} else if (slot == NULL && part->op == STORE_EXTENTS) {
		scratch->pending++;
	}
	scratch->is_waiting = slot == NULL;
	return slot;
}

/* Completes the part if it has failed or is finished, and has no pending operation. */
static void read_end(struct store_part *part)
{
	const struct flash_scratch *scratch = flash_scratch_of(part);

	if (scratch->pending == 0 && !scratch->is_waiting &&
		(scratch->result < 0 || scratch->done_bytes == part->length)) {
		flash_finish(part, scratch->result);
	}
}

/* Compares the blocks with the checksums that the map contained when the read began. A write of the
 * same disk blocks during the read does not matter: the new data goes to other blocks of the
 * device. */
static int helper_check(const struct flash_helper *helper)
{
	const uint8_t *bytes = mem_cpu_read(helper->io.memory);

	for (uint32_t i = 0; i < helper->count; i++) {
		if (crc32c(0, bytes + (size_t)i * FLASH_BLOCK_BYTES, FLASH_BLOCK_BYTES) !=
			helper->crcs[i]) {
			helper->flash->counters.checksum_errors++;
			log_error("flash store '%s': block %llu of the disk is damaged: its "
				  "checksum is wrong",
				helper->flash->path, (unsigned long long)helper->block + i);
			return -EIO;
		}
	}
	return 0;
}

static void helper_done(struct flash_io *io, int result)
{
	struct flash_helper *helper = container_of(io, struct flash_helper, io);
	struct flash *flash = helper->flash;
	struct store_part *part = helper->part;
	struct flash_scratch *scratch = flash_scratch_of(part);

	flash->segments[helper->segment].readers--;
	result = result ?: helper_check(helper);
	if (result == 0 && helper->bytes > 0) {
		memcpy(mem_cpu_write(part->memory) + helper->at, helper->bounce + helper->skip,
			helper->bytes);
	}
	if (result < 0 && scratch->result == 0) {
		scratch->result = result;
	}
	list_push_back(&flash->reads->idle, &helper->node);
	scratch->pending--;
	read_end(part);
}

/* Starts a read of blocks that are adjacent on the device. Whole blocks go directly to the part's
 * memory, a partial or unaligned block through the bounce buffer. Returns the number of bytes of
 * the part that the read covers. */
static uint64_t helper_start(struct flash *flash, struct flash_helper *helper,
	struct store_part *part, const struct flash_slot *slot)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	uint64_t offset = part->offset + scratch->done_bytes;
	uint64_t left = part->length - scratch->done_bytes;
	uint32_t first = (uint32_t)((offset >> FLASH_BLOCK_SHIFT) % FLASH_NODE_ENTRIES);
	const struct flash_entry *entries = slot->node->entries;
	uint32_t block = le32toh(entries[first].block);
	struct mem_ref memory = mem_add(part->memory, scratch->done_bytes);
	uint64_t bytes;
	bool is_cached;

	helper->part = part;
	helper->block = offset >> FLASH_BLOCK_SHIFT;
	helper->segment = flash_segment_of(&flash->anchor.geometry, block);
	helper->crcs[0] = le32toh(entries[first].crc);
	helper->count = 1;
	helper->bytes = 0;
	if (offset % FLASH_BLOCK_BYTES != 0 || left < FLASH_BLOCK_BYTES ||
		!mem_is_aligned(memory, flash->memory_align)) {
		helper->skip = (uint32_t)(offset % FLASH_BLOCK_BYTES);
		helper->bytes = (uint32_t)MIN(left, (uint64_t)FLASH_BLOCK_BYTES - helper->skip);
		helper->at = scratch->done_bytes;
		memory = mem_of(helper->bounce);
		bytes = helper->bytes;
	} else {
		uint64_t most = MIN(left >> FLASH_BLOCK_SHIFT, (uint64_t)FLASH_RUN_BLOCKS);

		most = MIN(most, (uint64_t)FLASH_NODE_ENTRIES - first);
		most = flash_cache_run(flash, helper->block, (uint32_t)most, &is_cached);
		while (helper->count < most &&
			le32toh(entries[first + helper->count].block) == block + helper->count) {
			helper->crcs[helper->count] = le32toh(entries[first + helper->count].crc);
			helper->count++;
		}
		bytes = (uint64_t)helper->count << FLASH_BLOCK_SHIFT;
	}
	scratch->pending++;
	flash->segments[helper->segment].readers++;
	flash_io_start(flash, &helper->io, false, memory, block,
		(size_t)helper->count << FLASH_BLOCK_SHIFT, helper_done);
	return bytes;
}

/* Returns the number of bytes from offset on, within one map page, that have no block. slot ==
 * NULL: an empty page. */
static uint64_t hole_bytes(const struct flash_slot *slot, uint64_t offset)
{
	uint64_t first = (offset >> FLASH_BLOCK_SHIFT) % FLASH_NODE_ENTRIES;
	uint64_t end = first;

	while (end < FLASH_NODE_ENTRIES && (slot == NULL || slot->node->entries[end].block == 0)) {
		end++;
	}
	return end == first ? 0 : ((end - first) << FLASH_BLOCK_SHIFT) - offset % FLASH_BLOCK_BYTES;
}

/* Returns the number of bytes from offset on, within one map page, that have blocks. */
static uint64_t data_bytes(const struct flash_slot *slot, uint64_t offset)
{
	uint64_t first = (offset >> FLASH_BLOCK_SHIFT) % FLASH_NODE_ENTRIES;
	uint64_t end = first;

	while (end < FLASH_NODE_ENTRIES && slot->node->entries[end].block != 0) {
		end++;
	}
	return ((end - first) << FLASH_BLOCK_SHIFT) - offset % FLASH_BLOCK_BYTES;
}

/* Returns the next map page that the part needs. */
static uint32_t page_of(const struct flash *flash, const struct store_part *part)
{
	const struct flash_scratch *scratch = (const void *)part->scratch;
	uint64_t offset = part->offset + scratch->done_bytes;

	return flash_page_of(flash, scratch->tree, offset >> FLASH_BLOCK_SHIFT);
}

/* Returns the number of bytes from offset on, at most left and within one map page, that are all
 * cached or all not cached. */
static uint64_t run_bytes(
	const struct flash *flash, uint64_t offset, uint64_t left, bool *is_cached_out)
{
	uint64_t lpn = offset >> FLASH_BLOCK_SHIFT;
	uint64_t end =
		MIN((offset + left - 1) >> FLASH_BLOCK_SHIFT, lpn | (FLASH_NODE_ENTRIES - 1)) + 1;
	uint64_t run = flash_cache_run(flash, lpn, (uint32_t)(end - lpn), is_cached_out);

	return MIN(left, (run << FLASH_BLOCK_SHIFT) - offset % FLASH_BLOCK_BYTES);
}

/* Copies the next bytes from the cache. Returns false if they are not cached. The cache serves the
 * disk only, not snapshots. */
static bool read_cached(struct flash *flash, struct store_part *part)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	uint64_t offset = part->offset + scratch->done_bytes;
	uint64_t left = part->length - scratch->done_bytes;
	uint32_t slot = flash_cache_find(flash, offset >> FLASH_BLOCK_SHIFT);
	uint64_t bytes = MIN(left, FLASH_BLOCK_BYTES - offset % FLASH_BLOCK_BYTES);

	if (scratch->tree != 0 || slot == CACHE_NO_SLOT) {
		return false;
	}
	memcpy(mem_cpu_write(part->memory) + scratch->done_bytes,
		flash_cache_page(&flash->cache, slot) + offset % FLASH_BLOCK_BYTES, bytes);
	scratch->done_bytes += bytes;
	return true;
}

void flash_read_step(struct store_part *part)
{
	struct flash *flash = flash_of(part);
	struct flash_scratch *scratch = flash_scratch_of(part);

	while (scratch->done_bytes < part->length && scratch->result == 0) {
		uint64_t offset = part->offset + scratch->done_bytes;
		uint64_t left = part->length - scratch->done_bytes;
		const struct flash_slot *slot = NULL;
		struct list_node *node;
		uint64_t hole;
		bool is_cached;

		if (read_cached(flash, part)) {
			continue;
		}
		if (flash_snapshot_is_deleted(part)) {
			scratch->result = -ESTALE;
			break;
		}
		if (!flash_map_is_empty(flash, page_of(flash, part))) {
			slot = read_page_get(flash, part, page_of(flash, part));
			if (slot == NULL) {
				return;
			}
		}
		hole = MIN(hole_bytes(slot, offset), left);
		if (hole > 0) {
			hole = run_bytes(flash, offset, hole, &is_cached);
			memset(mem_cpu_write(part->memory) + scratch->done_bytes, 0, hole);
			scratch->done_bytes += hole;
			continue;
		}
		node = list_pop_front(&flash->reads->idle);
		if (node == NULL) {
			hope(flash, part);
			return;
		}
		scratch->done_bytes += helper_start(
			flash, list_entry(node, struct flash_helper, node), part, slot);
	}
	read_end(part);
}

/* --- extents --------------------------------------------------------------------------------- */

void flash_extents_step(struct store_part *part)
{
	struct flash *flash = flash_of(part);
	struct flash_scratch *scratch = flash_scratch_of(part);

	for (uint32_t pages = 0; scratch->done_bytes < part->length && scratch->result == 0;
		pages++) {
		uint64_t offset = part->offset + scratch->done_bytes;
		uint64_t left = part->length - scratch->done_bytes;
		const struct flash_slot *slot = NULL;
		bool is_cached;
		uint64_t run = run_bytes(flash, offset, left, &is_cached);
		uint64_t hole;

		is_cached = is_cached && scratch->tree == 0;
		if (flash_snapshot_is_deleted(part)) {
			scratch->result = -ESTALE;
			break;
		}
		if (pages == EXTENT_PAGES_MAX || scratch->pending == EXTENT_LOADS_MAX) {
			break; /* the client will request the rest */
		}
		if (!is_cached && !flash_map_is_empty(flash, page_of(flash, part))) {
			slot = read_page_get(flash, part, page_of(flash, part));
			if (slot == NULL) {
				return;
			}
		}
		hole = is_cached ? 0 : MIN(hole_bytes(slot, offset), run);
		if (hole == 0 && !is_cached) {
			run = MIN(data_bytes(slot, offset), run);
		}
		run = hole > 0 ? hole : run;
		if (!store_extent_add(
			    part, run, hole > 0 ? STORE_EXTENT_HOLE | STORE_EXTENT_ZERO : 0)) {
			break;
		}
		scratch->done_bytes += run;
	}
	flash_finish(part, part->extent_count > 0 ? 0 : scratch->result);
}
