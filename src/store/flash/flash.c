// SPDX-License-Identifier: Apache-2.0
/* The flash store: opening, starting, reads and extents. */
#include "store/flash/flash.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/text.h"
#include "store/file.h"

enum {
	MAP_MEMORY_DEFAULT = 64 << 20,
	EXTENT_LOADS_MAX = 256,	    /* pages read for one part */
	EXTENT_PAGES_MAX = 1 << 16, /* looked at for one part */
};
#define BARRIER_PAUSE_NS UINT64_C(50000000)

struct flash_config {
	uint64_t map_memory; /* 0: the default */
	enum gc_policy policy;
	bool refuses; /* on-full=refuse */
};

/* --- reads ----------------------------------------------------------------------------------- */

static void hope(struct flash *flash, struct store_part *part)
{
	flash_scratch_of(part)->is_waiting = true;
	list_push_back(&flash->hoping, &part->node);
}

/* Parts that waited for a helper or a slot try again. */
static bool resume_hoping(struct flash *flash)
{
	struct list_node parts;
	struct list_node *node;
	bool any = !list_is_empty(&flash->hoping) && !list_is_empty(&flash->helpers_idle);

	if (!any) {
		return false;
	}
	list_init(&parts);
	while ((node = list_pop_front(&flash->hoping)) != NULL) {
		list_push_back(&parts, node);
	}
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

static void page_ready(struct flash_wait *wait, int result)
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

/* The page, or NULL: the part goes on later. */
static struct flash_slot *page_get(struct flash *flash, struct store_part *part, uint32_t page)
{
	struct flash_scratch *scratch = flash_scratch_of(part);
	struct flash_slot *slot;
	bool full;

	scratch->wait.ready = page_ready;
	slot = flash_map_get(flash, page, &scratch->wait, &full);
	if (slot == NULL && full) {
		hope(flash, part);
	} else if (slot == NULL && part->op == STORE_EXTENTS) {
		scratch->pending++;
	}
	scratch->is_waiting = slot == NULL;
	return slot;
}

static void read_end(struct store_part *part)
{
	const struct flash_scratch *scratch = flash_scratch_of(part);

	if (scratch->pending == 0 && !scratch->is_waiting &&
		(scratch->result < 0 || scratch->done_bytes == part->length)) {
		flash_finish(part, scratch->result);
	}
}

static int helper_check(const struct flash_helper *helper)
{
	const uint8_t *bytes = mem_cpu_read(helper->io.memory);

	for (uint32_t i = 0; i < helper->count; i++) {
		if (crc32c(0, bytes + (size_t)i * FLASH_BLOCK_BYTES, FLASH_BLOCK_BYTES) !=
			helper->crcs[i]) {
			helper->flash->counters.checksum_errors++;
			log_error("flash store '%s': block %llu of the disk is damaged: it does "
				  "not have its checksum",
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
	if (result == 0) {
		result = helper_check(helper);
	}
	if (result == 0 && helper->bytes > 0) {
		memcpy(mem_cpu_write(part->memory) + helper->at, helper->bounce + helper->skip,
			helper->bytes);
	}
	if (result < 0 && scratch->result == 0) {
		scratch->result = result;
	}
	list_push_back(&flash->helpers_idle, &helper->node);
	scratch->pending--;
	read_end(part);
}

/* Reads what lies together on the device, whole blocks into the part's own memory. */
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

/* Bytes from offset on that nothing was written to, in this page. slot: NULL, none of it. */
static uint64_t hole_bytes(const struct flash_slot *slot, uint64_t offset)
{
	uint64_t first = (offset >> FLASH_BLOCK_SHIFT) % FLASH_NODE_ENTRIES;
	uint64_t end = first;

	while (end < FLASH_NODE_ENTRIES && (slot == NULL || slot->node->entries[end].block == 0)) {
		end++;
	}
	return end == first ? 0 : ((end - first) << FLASH_BLOCK_SHIFT) - offset % FLASH_BLOCK_BYTES;
}

/* The same of what was written. */
static uint64_t data_bytes(const struct flash_slot *slot, uint64_t offset)
{
	uint64_t first = (offset >> FLASH_BLOCK_SHIFT) % FLASH_NODE_ENTRIES;
	uint64_t end = first;

	while (end < FLASH_NODE_ENTRIES && slot->node->entries[end].block != 0) {
		end++;
	}
	return ((end - first) << FLASH_BLOCK_SHIFT) - offset % FLASH_BLOCK_BYTES;
}

/* The next one that the part needs. */
static uint32_t page_of(const struct flash *flash, const struct store_part *part)
{
	const struct flash_scratch *scratch = (const void *)part->scratch;
	uint64_t offset = part->offset + scratch->done_bytes;

	return flash_page_of(flash, scratch->tree, offset >> FLASH_BLOCK_SHIFT);
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

		if (flash_view_has_gone(part)) {
			scratch->result = -ESTALE;
			break;
		}
		if (!flash_map_is_empty(flash, page_of(flash, part))) {
			slot = page_get(flash, part, page_of(flash, part));
			if (slot == NULL) {
				return;
			}
		}
		hole = MIN(hole_bytes(slot, offset), left);
		if (hole > 0) {
			memset(mem_cpu_write(part->memory) + scratch->done_bytes, 0, hole);
			scratch->done_bytes += hole;
			continue;
		}
		node = list_pop_front(&flash->helpers_idle);
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

/* False: there is no room for one more. */
static bool extents_add(struct store_part *part, uint64_t bytes, bool is_hole)
{
	uint32_t flags = is_hole ? STORE_EXTENT_HOLE | STORE_EXTENT_ZERO : 0;

	if (part->extent_count > 0 && part->extents[part->extent_count - 1].flags == flags) {
		part->extents[part->extent_count - 1].length += bytes;
	} else if (part->extent_count == part->extent_max) {
		return false;
	} else {
		part->extents[part->extent_count++] = (struct store_extent){ bytes, flags };
	}
	flash_scratch_of(part)->done_bytes += bytes;
	return true;
}

void flash_extents_step(struct store_part *part)
{
	struct flash *flash = flash_of(part);
	struct flash_scratch *scratch = flash_scratch_of(part);

	for (uint32_t pages = 0; scratch->done_bytes < part->length && scratch->result == 0;
		pages++) {
		uint64_t offset = part->offset + scratch->done_bytes;
		uint64_t left = part->length - scratch->done_bytes;
		const struct flash_slot *slot = NULL;
		uint64_t hole;

		if (flash_view_has_gone(part)) {
			scratch->result = -ESTALE;
			break;
		}
		if (pages == EXTENT_PAGES_MAX || scratch->pending == EXTENT_LOADS_MAX) {
			break; /* who wants to know more asks again */
		}
		if (!flash_map_is_empty(flash, page_of(flash, part))) {
			slot = page_get(flash, part, page_of(flash, part));
			if (slot == NULL) {
				return;
			}
		}
		hole = MIN(hole_bytes(slot, offset), left);
		if (!extents_add(part, hole > 0 ? hole : MIN(data_bytes(slot, offset), left),
			    hole > 0)) {
			break;
		}
	}
	flash_finish(part, part->extent_count > 0 ? 0 : scratch->result);
}

/* --- parts ----------------------------------------------------------------------------------- */

void flash_pump(struct flash *flash)
{
	if (flash->is_pumping) {
		flash->pump_again = true;
		return;
	}
	flash->is_pumping = true;
	do {
		flash->pump_again = false;
		while (flash_may_work(flash) &&
			(flash_erase_step(flash) || flash_checkpoint_step(flash) ||
				flash_changes_step(flash) || flash_gc_step(flash))) {
		}
		if (flash_may_work(flash)) {
			flash_log_kick(flash);
			(void)resume_hoping(flash);
		}
	} while (flash->pump_again);
	flash->is_pumping = false;
}

static void flush(struct flash *flash, struct store_part *part)
{
	if (flash->failed != 0) {
		flash_finish(part, flash->failed);
	} else if ((part->flags & STORE_SETTLE) != 0 && flash->log.since_checkpoint > 0 &&
		   !flash->is_quiet && !flash->is_read_only) {
		flash_settle(flash, part);
	} else if (flash->log.durable_seq == flash->log.written_seq) {
		flash_finish(part, 0);
	} else {
		flash_sync_part(flash, part);
	}
}

/* The log goes on behind a checkpoint of its own, see docs/protocol/flash.md. False: there is no
 * segment for it. */
static bool begin_log(struct flash *flash)
{
	flash->is_quiet = false;
	flash->log.head.segment = flash_take_segment(flash);
	if (flash->log.head.segment == FLASH_NO_SEGMENT) {
		return false;
	}
	flash_checkpoint_ask(flash);
	return true;
}

void flash_wake(struct flash *flash)
{
	if (flash->is_quiet && !begin_log(flash)) {
		flash_fail(flash, -ENOSPC, "has no free segment");
	}
}

static void flash_submit(struct store_queue *queue, struct store_part *part)
{
	struct flash *flash = container_of(queue->store, struct flash, base);
	struct flash_scratch *scratch = flash_scratch_of(part);
	uint64_t size = flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;

	*scratch = (struct flash_scratch){ 0 };
	list_init(&scratch->wait.node);
	flash->part_count++;
	if (part->op != STORE_FLUSH) {
		flash_wake(flash);
	}
	if (part->offset + part->length > size) {
		flash_finish(part, -EIO);
		return;
	}
	switch (part->op) {
	case STORE_READ:
		flash_read_step(part);
		break;
	case STORE_EXTENTS:
		flash_extents_step(part);
		break;
	case STORE_WRITE:
	case STORE_TRIM:
	case STORE_ZERO:
		list_push_back(&flash->changes, &part->node);
		break;
	case STORE_FLUSH:
		flush(flash, part);
		break;
	case STORE_CACHE: /* a hint */
		flash_finish(part, 0);
		break;
	case STORE_COPY: /* it has no ways for it */
	case STORE_OP_COUNT:
		GMB_ASSERT(false);
	}
	flash_pump(flash);
}

/* --- starting -------------------------------------------------------------------------------- */

static uint64_t carve(struct flash *flash, uint8_t *memory)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint64_t at = 0;
	uint64_t segments_at = at;
	uint64_t gc_at;
	uint64_t log_at;

	at += align_up((uint64_t)geometry->segment_count * sizeof(struct flash_segment), 4096);
	gc_at = at;
	at += align_up((uint64_t)geometry->segment_count * sizeof(struct gc_segment), 4096);
	log_at = at;
	at += flash_log_bytes();
	if (memory != NULL) {
		flash->segments = (void *)(memory + segments_at);
		gc_init(&flash->table, flash->policy, (void *)(memory + gc_at),
			geometry->segment_count, geometry->segment_blocks);
		flash_log_init(flash, memory + log_at);
		flash->gc.bytes = memory + at;
		flash->checkpoint.block =
			flash->gc.bytes + (size_t)(FLASH_RECORD_ENTRIES + 1) * FLASH_BLOCK_BYTES;
		flash->edges[0].bytes = flash->checkpoint.block + FLASH_BLOCK_BYTES;
		flash->edges[1].bytes = flash->edges[0].bytes + FLASH_BLOCK_BYTES;
		for (uint32_t i = 0; i < FLASH_HELPERS; i++) {
			flash->helpers[i].flash = flash;
			flash->helpers[i].bounce =
				flash->edges[1].bytes + (size_t)(i + 1) * FLASH_BLOCK_BYTES;
			list_push_back(&flash->helpers_idle, &flash->helpers[i].node);
		}
	}
	at += (uint64_t)(FLASH_RECORD_ENTRIES + 4 + FLASH_HELPERS) * FLASH_BLOCK_BYTES;
	if (memory != NULL) {
		flash_map_init(flash, memory + at);
	}
	return at + flash_map_bytes(geometry, flash->slot_count);
}

uint64_t flash_budget(struct flash *flash)
{
	return carve(flash, NULL);
}

void flash_init(struct flash *flash, uint8_t *memory)
{
	list_init(&flash->helpers_idle);
	list_init(&flash->hoping);
	list_init(&flash->held);
	list_init(&flash->blocking);
	list_init(&flash->settling);
	list_init(&flash->zones.writes);
	list_init(&flash->sync.now);
	list_init(&flash->sync.next);
	(void)carve(flash, memory);
	flash_changes_init(flash);
	flash_gc_init(flash);
}

/* The anchors as another process has left them since the store was opened. */
static int look_again(struct flash *flash, struct error *error)
{
	struct flash *now = calloc(1, sizeof(*now));
	int result;

	if (now == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", flash->path);
	}
	now->path = flash->path;
	now->fd = flash->fd;
	result = flash_anchors_read(now, error);
	if (result == 0 && memcmp(now->anchor.uuid, flash->anchor.uuid, FLASH_UUID_BYTES) != 0) {
		result = error_set(error, -EINVAL, "'%s' has become another flash store meanwhile",
			flash->path);
	}
	if (result == 0) { /* the sizes stay, which other threads may read */
		flash->anchor.serial = now->anchor.serial;
		flash->anchor.next = now->anchor.next;
		flash->anchor.clock = now->anchor.clock;
		memcpy(flash->anchor.top, now->anchor.top, sizeof(flash->anchor.top));
		memcpy(flash->anchor.views, now->anchor.views, sizeof(flash->anchor.views));
		flash->good_anchor = now->good_anchor;
	}
	free(now);
	return result;
}

static int recover_call(struct ring_op *op)
{
	struct flash *flash = container_of(op, struct flash, start_op);
	int result;

	/* Direct writes of a server that was killed may still change what is read here. */
	if (store_barrier(flash->below, true) == STORE_BARRIER_CLOSED) {
		return -EAGAIN;
	}
	result = flash->start->is_quiet ? look_again(flash, &flash->start->error) : 0;
	if (result == 0) {
		result = flash_recover(flash, &flash->start->error);
	}
	if (result == 0 && flash_has_zones(flash) && !flash->is_read_only) {
		result = flash_zones_prepare(flash, &flash->start->error);
	} else if (result == 0) {
		flash_erase_found(flash);
	}
	return result;
}

static void recovered(struct ring_op *op, int result);

static void recover_again(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash, start_op);

	GMB_UNUSED(result);
	if (atomic_load_explicit(&flash->start->cancelled, memory_order_relaxed)) {
		store_started(&flash->base,
			error_set(&flash->start->error, -ECANCELED, "the start was interrupted"));
		return;
	}
	ring_call(flash->ring, op, recover_call, recovered);
}

static void recovered(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash, start_op);

	if (result == -EAGAIN) {
		ring_timer(flash->ring, op, BARRIER_PAUSE_NS, recover_again);
		return;
	}
	if (result == 0 && flash->lost_records > 0) {
		log_warning("flash store '%s': its log is damaged at byte %llu: %llu records from "
			    "there on, which were flushed, are lost; it is served as it was before",
			flash->path, (unsigned long long)flash->lost_at,
			(unsigned long long)flash->lost_records);
	}
	if (result < 0 || flash->is_read_only) {
		store_started(&flash->base, result);
		return;
	}
	if (flash->start->is_quiet) {
		flash->is_quiet = true;
		store_started(&flash->base, 0);
		return;
	}
	if (!begin_log(flash)) {
		store_started(&flash->base, error_set(&flash->start->error, -ENOSPC,
						    "'%s' has no free segment", flash->path));
		return;
	}
	flash->is_starting = true;
	flash->io_count++;
	flash_pump(flash);
	flash_io_ended(flash);
}

static void flash_start(struct store *base, struct store_start *start)
{
	struct flash *flash = container_of(base, struct flash, base);

	flash->start = start;
	flash->ring = start->ring;
	flash_init(flash, mem_cpu_write(start->memory));
	ring_call(flash->ring, &flash->start_op, recover_call, recovered);
}

/* --- opening --------------------------------------------------------------------------------- */

uint32_t flash_slot_count(const struct flash_geometry *geometry, uint64_t map_memory)
{
	uint64_t slots = (map_memory > 0 ? map_memory : MAP_MEMORY_DEFAULT) / FLASH_BLOCK_BYTES;

	slots = MIN(slots, (uint64_t)geometry->leaf_count + FLASH_SLOTS_MIN);
	return (uint32_t)MAX(slots, (uint64_t)geometry->dirty_max + FLASH_SLOTS_MIN);
}

static int open_below(struct flash *flash, const struct store_options *options, struct error *error)
{
	struct store_options below = {
		.path = flash->path,
		.read_only = options->read_only,
		.frozen = options->read_only,
		.sole = !options->read_only,
		.read_mode = options->read_mode,
		.write_mode = options->write_mode,
		.page_cache_send_off = true,
		.any_format = true,
	};
	bool reads_direct = store_mode_is_direct(options->read_mode);
	bool writes_direct = store_mode_is_direct(options->write_mode);
	const struct file_store *file;
	int claim_fd;
	int result;

	if (options->read_mode == STORE_MODE_DEVICE || options->write_mode == STORE_MODE_DEVICE ||
		reads_direct != writes_direct) {
		return error_set(error, -EINVAL,
			"'%s': a flash store reads and writes in the same way; write mode=cached "
			"or mode=direct",
			options->path);
	}
	below.read_mode = reads_direct ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	if (store_kind_at(store_kind_of_path(flash->path)) != &file_store_kind) {
		return error_set(error, -EINVAL,
			"'%s': a flash store is on a file or a block device", options->path);
	}
	result = store_open(&below, &flash->below, error);
	if (result < 0) {
		return result;
	}
	file = container_of(flash->below, struct file_store, base);
	flash->fd = file->fd;
	flash->file =
		(struct ring_file){ .fd = reads_direct ? file->direct_fd : file->fd, .slot = -1 };
	flash->memory_align = reads_direct ? FLASH_BLOCK_BYTES : 1;
	flash->ignores_dsync = file->disk.ignores_dsync;
	claim_fd = file_gate_claim_fd(file->gate);
	result = flash_zones_find(flash->fd, flash->path, &flash->zones, error);
	if (result < 0) {
		return result;
	}
	if (flash_has_zones(flash) && !reads_direct && !options->read_only) {
		struct store_options direct = *options;

		/* The page cache would write in any order. */
		if (options->read_mode == STORE_MODE_CACHED) {
			return error_set(error, -EINVAL,
				"'%s' is a host-managed zoned block device, which is not written "
				"through the page cache; leave out mode=, or write mode=direct",
				options->path);
		}
		direct.read_mode = STORE_MODE_DIRECT;
		direct.write_mode = STORE_MODE_DIRECT;
		store_close(flash->below);
		flash->below = NULL;
		return open_below(flash, &direct, error);
	}
	flash_erase_init(
		flash, &file->disk, file->disk.is_block && claim_fd >= 0 ? claim_fd : flash->fd);
	if (reads_direct && file->offset_align > FLASH_BLOCK_BYTES) {
		return error_set(error, -EINVAL,
			"'%s': its blocks of %u bytes are larger than those of a flash store",
			options->path, file->offset_align);
	}
	return 0;
}

static void release(struct flash *flash)
{
	store_close(flash->below);
	free(flash->path);
}

static void flash_close(struct store *base)
{
	struct flash *flash = container_of(base, struct flash, base);

	GMB_ASSERT(flash->io_count == 0 && flash->part_count == 0);
	if (base->is_let_go) {
		store_let_go(flash->below);
	} else {
		flash_checkpoint_last(flash);
	}
	release(flash);
}

static void fill_info(struct flash *flash)
{
	const struct store_info *below = store_info(flash->below);

	flash->base.info = (struct store_info){
		.kind = "flash",
		.caps = STORE_CAP_EXTENTS | (below->caps & STORE_CAP_ROTATIONAL),
		.block_min = FLASH_BLOCK_BYTES,
		.block_preferred = FLASH_BLOCK_BYTES,
		.memory_align = flash->memory_align,
		.offset_align = flash->memory_align,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.read_direct = below->read_direct,
		.write_direct = below->write_direct,
		.io_max = below->io_max,
		.budget_bytes = flash_budget(flash),
	};
	if (!flash->is_read_only) {
		flash->base.info.caps |= STORE_CAP_WRITE | STORE_CAP_TRIM | STORE_CAP_FAST_ZERO;
	}
}

static int flash_open(struct store *base, const struct store_options *options,
	const void *config_bytes, struct error *error)
{
	static const struct flash_config defaults;
	struct flash *flash = container_of(base, struct flash, base);
	const struct flash_config *config = config_bytes != NULL ? config_bytes : &defaults;
	int result;

	flash->path = strdup(store_path_file(options->path));
	flash->is_read_only = options->read_only;
	flash->policy = config->policy;
	flash->views.refuses = config->refuses;
	if (flash->path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	/* The claim is had before the contents are believed. */
	result = open_below(flash, options, error);
	if (result == 0) {
		result = flash_anchors_read(flash, error);
	}
	if (result < 0) {
		release(flash);
		return result;
	}
	flash->slot_count = flash_slot_count(&flash->anchor.geometry, config->map_memory);
	fill_info(flash);
	return 0;
}

static uint64_t flash_size(struct store *base)
{
	return container_of(base, struct flash, base)->anchor.geometry.disk_blocks
	       << FLASH_BLOCK_SHIFT;
}

static enum store_barrier flash_barrier(struct store *base, bool look)
{
	return store_barrier(container_of(base, struct flash, base)->below, look);
}

/* --- options --------------------------------------------------------------------------------- */

static int set_map_memory(void *config_bytes, const char *value, struct error *error)
{
	struct flash_config *config = config_bytes;
	int result = units_parse_bytes(value, &config->map_memory, error);

	if (result == 0 && (config->map_memory < FLASH_BLOCK_BYTES ||
				   config->map_memory > UINT64_C(1) << 40)) {
		result = error_set(error, -ERANGE, "'%s' is not between 4K and 1T", value);
	}
	return result;
}

static int set_gc(void *config_bytes, const char *value, struct error *error)
{
	struct flash_config *config = config_bytes;

	for (int i = 0; i < GC_POLICY_COUNT; i++) {
		if (strcmp(value, gc_policy_names[i]) == 0) {
			config->policy = (enum gc_policy)i;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "it is none of auto, paper, plain and greedy");
}

static int set_on_full(void *config_bytes, const char *value, struct error *error)
{
	struct flash_config *config = config_bytes;

	config->refuses = strcmp(value, "refuse") == 0;
	return config->refuses || strcmp(value, "drop") == 0
		       ? 0
		       : error_set(error, -EINVAL, "it is neither drop nor refuse");
}

static const struct store_option flash_options[] = {
	{ "map-memory", "SIZE",
		"flash: memory for the map of a flash store: 64M,\n"
		"the default, covers 32 GiB of the disk",
		"64M", .set = set_map_memory },
	{ "gc", "auto|plain|paper|greedy",
		"flash: by which rule segments are collected\n"
		"(default auto); the others are for comparison",
		"auto", .set = set_gc },
	{ "on-full", "drop|refuse",
		"flash: when a snapshot leaves no room for writes:\n"
		"drop it (the default), or let writes fail",
		"refuse", .set = set_on_full },
};

static const struct counter counter_list[] = {
	{ "written_blocks", "Blocks of 4 KiB that clients have written", COUNTER_TOTAL,
		COUNTER_ITEMS, offsetof(struct flash, counters.written_blocks) },
	{ "moved_blocks", "Blocks that the collector has moved", COUNTER_TOTAL, COUNTER_ITEMS,
		offsetof(struct flash, counters.moved_blocks) },
	{ "node_blocks", "Blocks of the map that checkpoints have written", COUNTER_TOTAL,
		COUNTER_ITEMS, offsetof(struct flash, counters.node_blocks) },
	{ "header_blocks", "Headers of records", COUNTER_TOTAL, COUNTER_ITEMS,
		offsetof(struct flash, counters.header_blocks) },
	{ "checkpoints", "Checkpoints", COUNTER_TOTAL, COUNTER_ITEMS,
		offsetof(struct flash, counters.checkpoints) },
	{ "map_misses", "Pages of the map that had to be read", COUNTER_TOTAL, COUNTER_ITEMS,
		offsetof(struct flash, counters.map_misses) },
	{ "checksum_errors", "Blocks and pages that did not have their checksum", COUNTER_TOTAL,
		COUNTER_ITEMS, offsetof(struct flash, counters.checksum_errors) },
	{ "erased_segments", "Segments that were discarded before they became free", COUNTER_TOTAL,
		COUNTER_ITEMS, offsetof(struct flash, counters.erased_segments) },
	{ "erases_min", "Erasures of the segment that has the fewest", COUNTER_NOW, COUNTER_ITEMS,
		offsetof(struct flash, counters.erases_min) },
	{ "erases_mean", "Erasures of a segment, on average", COUNTER_NOW, COUNTER_ITEMS,
		offsetof(struct flash, counters.erases_mean) },
	{ "erases_max", "Erasures of the segment that has the most", COUNTER_NOW, COUNTER_ITEMS,
		offsetof(struct flash, counters.erases_max) },
	{ "free_segments", "Segments that are free, as of the last checkpoint", COUNTER_NOW,
		COUNTER_ITEMS, offsetof(struct flash, counters.free_segments) },
	{ "snapshot_blocks", "Blocks that only snapshots need, about, as of the last checkpoint",
		COUNTER_NOW, COUNTER_ITEMS, offsetof(struct flash, counters.snapshot_blocks) },
	{ "snapshots_dropped", "Snapshots that were dropped to make room for writes", COUNTER_TOTAL,
		COUNTER_ITEMS, offsetof(struct flash, counters.snapshots_dropped) },
};

static const struct counter_table flash_counter_table = { "flash", "export", counter_list,
	ARRAY_COUNT(counter_list) };

static const char *flash_pass(struct store *store, struct store_claim *claim_out)
{
	struct flash *flash = container_of(store, struct flash, base);

	/* The next process would finish the zone in which this one may have to go on. */
	if (flash_has_zones(flash) && !flash->is_read_only) {
		return "is a flash store on a zoned block device";
	}
	return store_pass(flash->below, claim_out);
}

static const struct store_ops flash_ops = {
	.name = "flash",
	.scratch_bytes = sizeof(struct flash_scratch),
	.close = flash_close,
	.submit = flash_submit,
	.size = flash_size,
	.counters = &flash_counter_table,
	.start = flash_start,
	.has_owner = true,
	.barrier = flash_barrier,
	.pass = flash_pass,
	.view_kind = &flash_view_kind,
	.view_ask = flash_view_ask,
	.views = flash_views_list,
	.settles = true,
};

const struct store_kind flash_store_kind = {
	.name = "flash",
	.prefix = "flash:",
	.is_on_file = true,
	.check = flash_check,
	.create = flash_create,
	.options = flash_options,
	.option_count = ARRAY_COUNT(flash_options),
	.config_bytes = sizeof(struct flash_config),
	.store_bytes = sizeof(struct flash),
	.ops = &flash_ops,
	.open = flash_open,
};
