// SPDX-License-Identifier: Apache-2.0
/*
 * The flash store: submitting and completing parts, the order of work, starting, opening and
 * options.
 *
 * Invariant: every operation that is counted in io_count ends with flash_io_ended(), and every
 * event leads to flash_pump(). So a part that waits is retried, and the last part leaves the store
 * only when no operation is in flight.
 */
#include "store/flash/flash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "store/file.h"

enum {
	MAP_MEMORY_DEFAULT = 64 << 20,
	/* number of map slots in addition to the pages that a replay can change */
	MAP_SLOTS_MIN = 64,
	CACHE_DEFAULT = 64 << 20,
	CACHE_DEFAULT_DIVISOR = 8, /* the default is at most the disk's size divided by this */
	CONFIG_PATH_BYTES = 3072,
};
/* Interval at which a start checks again whether writes of a killed server have ended. */
#define BARRIER_PAUSE_NS UINT64_C(50000000)

struct flash_config {
	uint64_t map_memory;
	bool refuses; /* on-full=refuse */
	uint64_t cache_bytes;
	bool has_cache_bytes; /* false: the default applies */
	/* Empty: the default, see flash_cache_directory(). */
	char cache_directory[CONFIG_PATH_BYTES];
	enum flash_others others;
};

static const struct flash_config flash_defaults = {
	.map_memory = MAP_MEMORY_DEFAULT,
};

/* --- parts ----------------------------------------------------------------------------------- */

/* The start completes here and not at the end of its checkpoint, because transfers might still be
 * in flight at that time, and the caller may close the store as soon as the start is complete. */
void flash_io_ended(struct flash *flash)
{
	struct list_node *node;

	GMB_ASSERT(flash->io_count > 0);
	flash->io_count--;
	if (flash->start_has_ended && flash->io_count == 0) {
		flash->start_has_ended = false;
		flash->is_starting = false;
		store_started(&flash->base, flash->start_result);
		return;
	}
	/* Garbage collection has found no victim, and no operation is in flight any more that could
	 * lead to one. flash_pump() now drops a snapshot, or makes the store fail. */
	if (flash->io_count == 0 && flash->is_out) {
		flash_pump(flash);
	}
	flash_snapshots_io_ended(flash);
	/* The parts in `held` can complete when no operation is in flight. They can also complete
	 * if another part or a snapshot request has arrived since: the store cannot be closed
	 * before that is done. */
	if (flash->io_count > 0 && !flash_may_work(flash)) {
		return;
	}
	while ((node = list_pop_front(&flash->held)) != NULL) {
		struct store_part *part = list_entry(node, struct store_part, node);

		flash->held_count--;
		flash->part_count--;
		store_finish_later(part, flash_scratch_of(part)->result);
	}
}

void flash_finish(struct store_part *part, int result)
{
	struct flash *flash = flash_of(part);

	/* The store may be closed when its last part completes. So the last part is kept in `held`
	 * while anything is in flight; flash_io_ended() completes it. */
	if (flash->io_count > 0 && flash->part_count == flash->held_count + 1) {
		flash_scratch_of(part)->result = result;
		flash->held_count++;
		list_push_back(&flash->held, &part->node);
		return;
	}
	flash->part_count--;
	store_finish_later(part, result);
}

/*
 * Performs the first step that can make progress. Returns true if there was one; all steps are then
 * tried again from the first on. The order is a rule:
 *
 *   redo        rewrites the end of the log after a failed sync. Everything that needs a sync
 *               waits for the rewrite, even a move of the log.
 *   move        moves the log after a failed write. A kill would leave the failed block at the end
 *               of the log, where it might be unreadable. So redo and move run even if no part
 *               waits; all steps below need flash_may_work().
 *   snapshots   a snapshot request holds changes back and fixes the contents of the next
 *               checkpoint, so this step must come before the checkpoint begins.
 *   erase       frees segments early, so that clients do not have to wait for them.
 *   checkpoint  appends its nodes before new data, because only the end of a checkpoint frees
 *               segments.
 *   cache       writes the pages that flushes and evictions wait for. These pages are older than
 *               the queued changes.
 *   changes     appends the queued changes of clients before garbage collection gets its turn.
 *   gc          may examine a number of blocks in proportion to the blocks that clients write.
 */
static bool pump_one(struct flash *flash)
{
	return flash_redo_step(flash) || flash_move_step(flash) ||
	       (flash_may_work(flash) &&
		       (flash_snapshots_step(flash) || flash_erase_step(flash) ||
			       flash_checkpoint_step(flash) || flash_cache_step(flash) ||
			       flash_changes_step(flash) || flash_gc_step(flash)));
}

void flash_pump(struct flash *flash)
{
	if (flash->is_pumping) {
		flash->pump_again = true;
		return;
	}
	flash->is_pumping = true;
	do {
		flash->pump_again = false;
		while (pump_one(flash)) {
		}
		/* The two calls below come after all steps. By then small changes have gathered in
		 * the record being filled, and finished reads have released their helpers. */
		if (flash_may_work(flash)) {
			flash_log_kick(flash);
			(void)flash_reads_resume(flash);
		}
	} while (flash->pump_again);
	flash->is_pumping = false;
}

void flash_flush(struct flash *flash, struct store_part *part)
{
	if (flash->failed != 0) {
		flash_finish(part, flash->failed);
	} else if (flash_cache_is_dirty(&flash->cache)) {
		/* A flush covers the cached pages that are dirty now; cache.c completes it
		 * when they are durable. */
		flash_cache_flush(flash, part);
	} else if ((part->flags & STORE_QUIESCE) != 0 &&
		   (flash->log.since_checkpoint > 0 || flash->anchor.cache_tag != 0 ||
			   flash_checkpoint_runs(flash)) &&
		   !flash->is_quiet && !flash->is_read_only) {
		/* The next process must find everything in a checkpoint. No checkpoint is needed if
		 * the last one contains everything and its anchor refers to no cache file. */
		flash_quiesce(flash, part);
	} else if (flash->log.durable_seq == flash->log.written_seq) {
		flash_finish(part, 0);
	} else {
		flash_sync_part(flash, part);
	}
}

/* Begins the log of this run in a free segment, with a checkpoint (docs/protocol/flash.md,
 * "Replay"). Returns false if no segment is free. */
static bool begin_log(struct flash *flash)
{
	flash->is_quiet = false;
	flash->log.head.segment = flash_take_segment(flash);
	if (flash->log.head.segment == FLASH_NO_SEGMENT) {
		return false;
	}
	flash->log.written_at = flash->log.head;
	flash->log.durable_at = flash->log.head;
	flash_snapshots_drop_temporary(flash);
	flash_checkpoint_ask(flash);
	return true;
}

void flash_wake(struct flash *flash)
{
	if (flash->is_quiet && !begin_log(flash)) {
		flash_fail(flash, -ENOSPC, "the log has no free segment");
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
		flash_flush(flash, part);
		break;
	case STORE_CACHE: /* ignored, because CACHE is only a hint */
		flash_finish(part, 0);
		break;
	case STORE_COPY: /* never submitted, because the store offers no copy methods */
	case STORE_OP_COUNT:
		GMB_ASSERT(false);
	}
	flash_pump(flash);
}

/* --- starting -------------------------------------------------------------------------------- */

/* Takes the next bytes of the memory that all tables and buffers share. With memory NULL it returns
 * NULL and only counts the bytes. */
static void *budget_take(uint8_t *memory, uint64_t *at, uint64_t bytes)
{
	void *taken = memory != NULL ? memory + *at : NULL;

	*at += align_up(bytes, FLASH_BLOCK_BYTES);
	return taken;
}

/* Divides the store's memory among its tables and buffers in a fixed order, or only adds up the
 * sizes if memory is NULL. Both calls must see the same geometry and slot counts. */
static uint64_t budget_divide(struct flash *flash, uint8_t *memory)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t count = geometry->segment_count;
	uint64_t at = 0;
	struct flash_segment *segments = budget_take(memory, &at, count * sizeof(*segments));
	struct gc_segment *table = budget_take(memory, &at, count * sizeof(*table));
	uint8_t *log = budget_take(memory, &at, flash_log_bytes());
	uint8_t *record =
		budget_take(memory, &at, (uint64_t)(FLASH_RECORD_ENTRIES + 1) * FLASH_BLOCK_BYTES);
	uint8_t *checkpoint = budget_take(memory, &at, FLASH_BLOCK_BYTES);
	uint8_t *move = budget_take(memory, &at, FLASH_BLOCK_BYTES);
	uint8_t *redo = budget_take(memory, &at, flash_redo_bytes());
	uint8_t *io = budget_take(memory, &at, flash_io_bytes());
	uint8_t *gc = budget_take(memory, &at, flash_gc_bytes());
	uint8_t *changes = budget_take(memory, &at, flash_changes_bytes());
	uint8_t *reads = budget_take(memory, &at, flash_reads_bytes());
	uint8_t *map = budget_take(memory, &at, flash_map_bytes(geometry, flash->slot_count));
	uint8_t *cache = budget_take(memory, &at, flash_cache_bytes(flash));

	if (memory == NULL) {
		return at;
	}
	flash->segments = segments;
	flash->record_bytes = record;
	flash->checkpoint.block = checkpoint;
	flash->log.move.block = move;
	flash->rule = flash->rule ?: &gc_rule_auto;
	gc_init(&flash->table, flash->rule, table, count, geometry->segment_blocks);
	flash_log_init(flash, log);
	flash_redo_init(flash, redo);
	flash_io_init(flash, io);
	flash_gc_init(flash, gc);
	flash_changes_init(flash, changes);
	flash_reads_init(flash, reads);
	flash_map_init(flash, map);
	flash_cache_init(flash, cache);
	return at;
}

uint64_t flash_budget(struct flash *flash)
{
	return budget_divide(flash, NULL);
}

void flash_init(struct flash *flash, uint8_t *memory)
{
	list_init(&flash->held);
	list_init(&flash->checkpoint.quiescing);
	list_init(&flash->zones.writes);
	flash_snapshots_init(flash);
	(void)budget_divide(flash, memory);
}

/* Reads the anchors again after another process has written them since the store was opened. Copies
 * only the members that a checkpoint changes, because other threads may read the others. */
static int look_again(struct flash *flash, struct error *error)
{
	struct flash *now = calloc(1, sizeof(*now));
	int result;

	if (now == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", flash->path);
	}
	now->path = flash->path;
	now->fd = flash->fd;
	now->zones = flash->zones;
	result = flash_anchors_read(now, flash->disk_fd, error);
	if (result == 0 && memcmp(now->anchor.uuid, flash->anchor.uuid, FLASH_UUID_BYTES) != 0) {
		result = error_set(error, -EINVAL,
			"'%s' was replaced by another flash store while it was being opened",
			flash->path);
	}
	if (result == 0) { /* does not copy the sizes, which other threads read without a lock */
		flash->anchor.version = now->anchor.version;
		flash->anchor.serial = now->anchor.serial;
		flash->anchor.next = now->anchor.next;
		flash->anchor.clock = now->anchor.clock;
		flash->anchor.cache_tag = now->anchor.cache_tag;
		memcpy(flash->anchor.cache_folder, now->anchor.cache_folder,
			sizeof(flash->anchor.cache_folder));
		memcpy(flash->anchor.cache_boot_id, now->anchor.cache_boot_id,
			sizeof(flash->anchor.cache_boot_id));
		memcpy(flash->anchor.top, now->anchor.top, sizeof(flash->anchor.top));
		memcpy(flash->anchor.snapshots, now->anchor.snapshots,
			sizeof(flash->anchor.snapshots));
		memcpy(flash->anchor.detours, now->anchor.detours, sizeof(flash->anchor.detours));
		flash->anchor.detour_count = now->anchor.detour_count;
		memcpy(flash->zones.anchor_blocks, now->zones.anchor_blocks,
			sizeof(flash->zones.anchor_blocks));
		flash->good_anchor = now->good_anchor;
	}
	free(now);
	return result;
}

/* Closes the descriptor of open_disk(), which only a start needs. */
static void close_disk(struct flash *flash)
{
	if (flash->disk_fd != flash->fd) {
		disk_close(flash->disk_fd);
		flash->disk_fd = flash->fd;
	}
}

/* Runs on a worker thread. Returns -EAGAIN while writes of a killed server may still reach the disk
 * (store_barrier()). */
static int recover_call(struct ring_op *op)
{
	struct flash *flash = container_of(op, struct flash, start_op);
	int result;

	/* Direct writes of a killed server could change what is read here. */
	if (store_barrier(flash->below, true) == STORE_BARRIER_CLOSED) {
		return -EAGAIN;
	}
	result = flash->start->is_quiet ? look_again(flash, &flash->start->error) : 0;
	result = result ?: flash_recover(flash, &flash->start->error);
	if (result == 0) {
		close_disk(flash);
	}
	if (result == 0 && flash_has_zones(flash) && !flash->is_read_only) {
		result = flash->start->is_quiet ? flash_zones_take(flash, &flash->start->error)
						: flash_zones_prepare(flash, &flash->start->error);
	} else if (result == 0) {
		flash_erase_found(flash);
	}
	return result;
}

static void recovered(struct ring_op *op, int result);

static void recover_again(struct ring_op *op, int result)
{
	struct flash *flash = container_of(op, struct flash, start_op);

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
	if (result == 0) {
		flash_damage_tell(flash);
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
	/* The start ends with the first checkpoint, because until then a recovery would not find
	 * the records of this run. The extra count in io_count keeps the start alive while the pump
	 * runs. */
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

	slots = MIN(slots, (uint64_t)geometry->leaf_count + MAP_SLOTS_MIN);
	return (uint32_t)MAX(slots, (uint64_t)geometry->replay_max + MAP_SLOTS_MIN);
}

/* Opens the file store below, and its zones, and decides how to do I/O. On failure the caller
 * closes the store below. */
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
		.is_below = true,
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
			"'%s': a flash store reads and writes in the same mode; use "
			"mode=cached or mode=direct, and omit write-mode",
			options->path);
	}
	below.read_mode = reads_direct ? STORE_MODE_DIRECT : STORE_MODE_CACHED;
	if (store_kind_at(store_kind_of_path(flash->path)) != &file_store_kind) {
		return error_set(error, -EINVAL,
			"'%s': a flash store must be a file or a block device", options->path);
	}
	result = store_open(&below, &flash->below, error);
	if (result < 0) {
		return result;
	}
	file = container_of(flash->below, struct file_store, base);
	flash->fd = flash->disk_fd = file->fd;
	flash->file =
		(struct ring_file){ .fd = reads_direct ? file->direct_fd : file->fd, .slot = -1 };
	flash->memory_align = reads_direct ? FLASH_BLOCK_BYTES : 1;
	flash->has_dsync = reads_direct && !file->disk.ignores_dsync;
	memcpy(flash->identity, file->disk.identity, sizeof(flash->identity));
	claim_fd = file_gate_claim_fd(file->gate);
	result = flash_zones_find(flash->fd, flash->path, &flash->zones, error);
	if (result < 0) {
		return result;
	}
	if (flash_has_zones(flash) && !reads_direct && !options->read_only) {
		struct store_options direct = *options;

		/* The page cache would write the blocks of a zone in any order. */
		if (options->read_mode == STORE_MODE_CACHED) {
			return error_set(error, -EINVAL,
				"'%s' is a host-managed zoned block device, which cannot be "
				"written through the page cache; omit mode=, or use mode=direct",
				options->path);
		}
		direct.read_mode = STORE_MODE_DIRECT;
		direct.write_mode = STORE_MODE_DIRECT;
		store_close(flash->below);
		flash->below = NULL;
		return open_below(flash, &direct, error);
	}
	/* Discards go through the descriptor that holds the claim, if there is one. */
	flash_erase_init(
		flash, &file->disk, file->disk.is_block && claim_fd >= 0 ? claim_fd : flash->fd);
	if (reads_direct && file->offset_align > FLASH_BLOCK_BYTES) {
		return error_set(error, -EINVAL,
			"'%s' has blocks of %u bytes; a flash store needs blocks of at most 4096",
			options->path, file->offset_align);
	}
	return 0;
}

/* Opens the disk for direct reads, which show what the disk has: the kernel first writes the dirty
 * pages of the range, and does not use clean ones. Used in every mode, because a killed server
 * might have used the page cache. Returns false if direct reads are impossible, or might be reads
 * of the page cache. */
static bool open_disk(struct flash *flash)
{
	struct disk_info info;
	struct error error;
	int fd;

	if (disk_open(flash->path, true, true, &fd, &error) < 0) {
		return false;
	}
	if (disk_info(fd, &info) < 0 || !info.direct_bypasses_cache ||
		MAX(info.direct_offset_align, info.direct_memory_align) > FLASH_BLOCK_BYTES ||
		memcmp(info.identity, flash->identity, sizeof(info.identity)) != 0) {
		disk_close(fd);
		return false;
	}
	flash->disk_fd = fd;
	return true;
}

static void flash_release(struct flash *flash)
{
	close_disk(flash);
	store_close(flash->below);
	free(flash->path);
}

static void flash_close(struct store *base)
{
	struct flash *flash = container_of(base, struct flash, base);

	GMB_ASSERT(flash->io_count == 0 && flash->part_count == 0);
	/* After a handover (is_let_go) no byte of the disk may change, so there is no final
	 * checkpoint. */
	if (base->is_let_go) {
		store_let_go(flash->below);
	} else {
		(void)flash_end(base);
	}
	flash_cache_close(flash);
	flash_release(flash);
}

static void fill_info(struct flash *flash)
{
	const struct store_info *below = store_info(flash->below);

	flash->base.info = (struct store_info){
		.kind = "flash",
		.epoch = flash->base.info.epoch, /* set when the cache file was opened */
		.caps = STORE_CAP_EXTENTS | (below->caps & STORE_CAP_ROTATIONAL),
		.block_min = FLASH_BLOCK_BYTES,
		.block_preferred = FLASH_BLOCK_BYTES,
		.memory_align = flash->memory_align,
		.offset_align = flash->memory_align,
		/* the owner's thread accesses the memory of all parts */
		.memory_rights = MEM_CPU | MEM_ADDRESS | MEM_PROMPT,
		.read_direct = below->read_direct,
		.write_direct = below->write_direct,
		.io_max = below->io_max,
		.budget_bytes = flash_budget(flash),
	};
	if (!flash->is_read_only) {
		flash->base.info.caps |= STORE_CAP_WRITE | STORE_CAP_TRIM | STORE_CAP_FAST_ZERO;
		flash->base.info.atomic_bytes = flash_atomic_blocks(&flash->anchor.geometry)
						<< FLASH_BLOCK_SHIFT;
	}
}

/* True if the store is the one that another process hands over with the claim `inherited`. */
static bool is_inherited(const struct flash *flash, const struct store_claim *inherited)
{
	struct store_claim claim;

	return inherited != NULL && store_handover(flash->below, &claim) == NULL &&
	       memcmp(claim.identity, inherited->identity, sizeof(claim.identity)) == 0;
}

static int open_cache(struct flash *flash, const struct flash_config *config,
	const struct store_claim *inherited, struct error *error)
{
	uint64_t size = flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
	struct flash_cache_options options = {
		.directory = config->cache_directory[0] != '\0' ? config->cache_directory : NULL,
		.bytes = config->has_cache_bytes
				 ? config->cache_bytes
				 : MIN(size / CACHE_DEFAULT_DIVISOR, (uint64_t)CACHE_DEFAULT),
		.is_inherited = is_inherited(flash, inherited),
		.others = config->others,
	};

	/* After a repair, the cache file is emptied, and no new file is created. */
	if (flash->damage.repairs != 0) {
		options.bytes = 0;
		options.directory = flash->anchor.cache_folder[0] != '\0'
					    ? flash->anchor.cache_folder
					    : options.directory;
	}
	return flash_cache_open(flash, &options, error);
}

static int flash_open(struct store *base, const struct store_options *options,
	const void *config_bytes, struct error *error)
{
	struct flash *flash = container_of(base, struct flash, base);
	const struct flash_config *config = config_bytes != NULL ? config_bytes : &flash_defaults;
	int result;

	flash->path = strdup(store_path_file(options->path));
	flash->is_read_only = options->read_only;
	flash->snapshots.refuses = config->refuses;
	flash->damage.repairs = options->repairs;
	if (flash->path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", options->path);
	}
	/* The claim is taken before the contents are read. */
	result = open_below(flash, options, error);
	/* The page cache can contain anchors that could not be written to the disk. So the anchors
	 * are read past the page cache, or their pages are dropped first. (flash_recover() later
	 * writes records again, but no anchors.) In an upgrade, the anchors are read again when the
	 * other process has made them durable. */
	if (result == 0 && !flash->is_read_only && !flash_has_zones(flash) && !open_disk(flash)) {
		disk_drop_cache(flash->fd, 0, FLASH_ANCHORS * FLASH_BLOCK_BYTES);
	}
	result = result ?: flash_anchors_read(flash, flash->disk_fd, error);
	if (result < 0) {
		flash_release(flash);
		return result;
	}
	flash->slot_count = flash_slot_count(&flash->anchor.geometry, config->map_memory);
	result = open_cache(flash, config, options->inherited, error);
	if (result < 0) {
		flash_release(flash);
		return result;
	}
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

static int set_cache(void *config_bytes, const char *value, struct error *error)
{
	struct flash_config *config = config_bytes;
	int result = units_parse_bytes(value, &config->cache_bytes, error);

	if (result == 0 && config->cache_bytes > 0 &&
		(config->cache_bytes < (uint64_t)FLASH_CACHE_SLOTS_MIN * FLASH_BLOCK_BYTES ||
			config->cache_bytes >
				(uint64_t)FLASH_CACHE_SLOTS_MAX * FLASH_BLOCK_BYTES)) {
		result = error_set(error, -ERANGE, "'%s' must be 0, or from 128K to 64G", value);
	}
	config->has_cache_bytes = true;
	return result;
}

static int set_cache_directory(void *config_bytes, const char *value, struct error *error)
{
	struct flash_config *config = config_bytes;

	if (value[0] != '/' || strlen(value) >= sizeof(config->cache_directory)) {
		return error_set(
			error, -EINVAL, "'%s' is not the absolute path of a folder", value);
	}
	memset(config->cache_directory, 0, sizeof(config->cache_directory));
	if (strcmp(value, flash_cache_directory(NULL)) != 0) {
		snprintf(config->cache_directory, sizeof(config->cache_directory), "%s", value);
	}
	return 0;
}

static const char *const full_words[] = { "drop", "refuse", NULL };
static const char *const others_words[] = { [FLASH_OTHERS_REFUSE] = "refuse",
	[FLASH_OTHERS_TAKE] = "take",
	[FLASH_OTHERS_LEAVE] = "leave",
	NULL };

static const char *flash_memory_folder(const void *config_bytes)
{
	const struct flash_config *config = config_bytes;

	return flash_cache_directory(config == NULL || config->cache_directory[0] == '\0'
					     ? NULL
					     : config->cache_directory);
}

#define AT(first, last) FIELD_AT(struct flash_config, first, last)

static const struct field flash_options[] = {
	{ "map-memory", "SIZE",
		"flash: memory for the block map; 64M (the default) covers a disk of 32 GiB", "64M",
		.type = FIELD_BYTES, .min = FLASH_BLOCK_BYTES, .max = UINT64_C(1) << 40,
		FIELD_IN(struct flash_config, map_memory) },
	{ "on-full", NULL,
		"flash: action when a snapshot leaves no space for writes: drop the snapshot "
		"(drop, default) or let the writes fail (refuse)",
		"refuse", .type = FIELD_WORD, .words = full_words, AT(refuses, refuses) },
	{ "cache", "SIZE",
		"flash: size of the write-back cache, or 0 for none; default: 64M, or an eighth of "
		"the disk if that is less",
		"64M", .set = set_cache, AT(cache_bytes, has_cache_bytes) },
	{ "cache-dir", "FOLDER", "flash: folder of the cache file, on a tmpfs (default /dev/shm)",
		"/dev/shm", .set = set_cache_directory, AT(cache_directory, cache_directory) },
	{ "cache-file", NULL,
		"flash: handling of changes in the cache file of the store from which this one was "
		"copied or moved: take them over, or leave them there",
		"take", .type = FIELD_WORD, .words = others_words,
		FIELD_IN(struct flash_config, others) },
};

#define FLASH(field, kind, help) COUNTER(struct flash, counters.field, kind, ITEMS, #field, help)

static const struct counter counter_list[] = {
	FLASH(written_blocks, TOTAL, "Blocks of 4 KiB written by clients"),
	FLASH(cached_blocks, TOTAL, "Blocks written to the write cache"),
	FLASH(evicted_blocks, TOTAL, "Blocks written to the disk to make room in the cache"),
	FLASH(flushed_blocks, TOTAL, "Blocks of the cache written to the disk by flushes"),
	FLASH(dirty_pages, NOW, "Blocks of the cache that are not yet written to the disk"),
	FLASH(moved_blocks, TOTAL, "Blocks that garbage collection read from the disk and moved"),
	FLASH(cache_moved_blocks, TOTAL,
		"Unchanged blocks that garbage collection moved without reading the disk, "
		"because they were in the cache"),
	FLASH(written_back_blocks, TOTAL,
		"Changed blocks that garbage collection wrote from the cache, instead of moving "
		"the old blocks that they replace"),
	FLASH(node_blocks, TOTAL, "Blocks of the map written by checkpoints"),
	FLASH(header_blocks, TOTAL, "Headers of log records written"),
	FLASH(checkpoints, TOTAL, "Checkpoints"),
	FLASH(map_misses, TOTAL,
		"Pages of the map read from the disk, because they were not in memory"),
	FLASH(checksum_errors, TOTAL, "Blocks and map pages whose checksum did not match"),
	FLASH(erased_segments, TOTAL, "Segments discarded before they became free"),
	FLASH(erases_min, NOW, "Erasures of the least worn segment"),
	FLASH(erases_mean, NOW, "Mean number of erasures of a segment"),
	FLASH(erases_max, NOW, "Erasures of the most worn segment"),
	FLASH(free_segments, NOW, "Free segments at the last checkpoint"),
	FLASH(log_moves, TOTAL,
		"Failed writes to the log, after which the log continued in another segment"),
	FLASH(log_rewrites, TOTAL,
		"Failed flushes, after which the affected data was written again"),
	FLASH(avoided_segments, NOW,
		"Segments that were avoided at the last checkpoint, after a failed write"),
	FLASH(snapshot_blocks, NOW,
		"Approximate number of blocks that only snapshots use, at the last checkpoint"),
	FLASH(snapshots_dropped, TOTAL, "Snapshots dropped to make room for writes"),
};

static const struct counter_table flash_counter_table = { "flash", "export", "store_flash_",
	counter_list, ARRAY_COUNT(counter_list) };

static const char *flash_handover(struct store *store, struct store_claim *claim_out)
{
	return store_handover(container_of(store, struct flash, base)->below, claim_out);
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
	.handover = flash_handover,
	.snapshot_kind = &flash_snapshot_kind,
	.snapshot_ask = flash_snapshot_ask,
	.snapshots = flash_snapshots_list,
	.needs_quiesce = true,
	.end = flash_end,
};

const struct store_kind flash_store_kind = {
	.name = "flash",
	.prefix = "flash:",
	.is_on_file = true,
	.can_repair = true,
	.check = flash_check,
	.create_check = flash_create_check,
	.create = flash_create,
	.memory_folder = flash_memory_folder,
	.options = flash_options,
	.option_count = ARRAY_COUNT(flash_options),
	.config_bytes = sizeof(struct flash_config),
	.defaults = &flash_defaults,
	.store_bytes = sizeof(struct flash),
	.ops = &flash_ops,
	.open = flash_open,
};

/* Called before the start, see kind.h. */
bool flash_store_set_rule(struct store *store, const struct gc_rule *rule)
{
	struct flash *flash;

	if (store->ops != &flash_ops) {
		return false;
	}
	flash = container_of(store, struct flash, base);
	GMB_ASSERT(flash->start == NULL);
	flash->rule = rule;
	return true;
}
