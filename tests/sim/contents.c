// SPDX-License-Identifier: Apache-2.0
/* What is on the disks of a scenario, and what it must be. */
#include "contents.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../unit/stores.h"
#include "base/crc32c.h"
#include "scratch.h"
#include "sim/sim.h"
#include "store/flash/flash.h"

enum {
	GIANT_WINDOW_BYTES = 1 << 20,
	FLASH_SEGMENT_BLOCKS = 16,
	FLASH_ATOMIC_SEGMENT_BLOCKS = 256, /* with room for the longest record */
	FLASH_SEGMENTS_LEAST = 22,
	FLASH_SEGMENTS_MORE = 30,
	KILLED_EVERY = 3, /* scenarios that go on after a kill; the others after a loss of power */
	NAME_BYTES = 32,
	FOLDER_BYTES = 80,
};

/* The name of its simulated disk. */
static const char *contents_disk(const struct scenario_export *export)
{
	return export->path + (export->is_flash ? strlen("flash:") : 0);
}

/* --- flash stores ---------------------------------------------------------------------------- */

static void flash_block(const struct flash *flash, const struct flash_entry *entry, uint8_t *out)
{
	uint32_t block = le32toh(entry->block);

	if (disk_read(flash->fd, out, FLASH_BLOCK_BYTES, (uint64_t)block << FLASH_BLOCK_SHIFT) !=
			0 ||
		crc32c(0, out, FLASH_BLOCK_BYTES) != le32toh(entry->crc)) {
		model_fail(
			"flash store '%s': block %u is not what the map says", flash->path, block);
	}
}

static void flash_page(struct flash *flash, uint32_t page, uint8_t *out, uint64_t blocks)
{
	const struct flash_slot *slot = flash_map_find(flash, page);
	static struct flash_node node;

	if (slot != NULL) {
		node = *slot->node;
	} else if (flash_node_read(flash, flash->map.trees[0].levels[0][page], &node) != 0) {
		model_fail("flash store '%s': page %u of its map is damaged", flash->path, page);
	}
	for (uint64_t i = 0; i < MIN(blocks, (uint64_t)FLASH_NODE_ENTRIES); i++) {
		uint32_t cached = flash_cache_find(flash, (uint64_t)page * FLASH_NODE_ENTRIES + i);

		if (cached != CACHE_NO_SLOT) {
			memcpy(out + i * FLASH_BLOCK_BYTES, flash_cache_page(&flash->cache, cached),
				FLASH_BLOCK_BYTES);
		} else if (node.entries[i].block != 0) {
			flash_block(flash, &node.entries[i], out + i * FLASH_BLOCK_BYTES);
		}
	}
}

/* The file of its cache is there. */
static void cache_folder(const char *disk, char folder[FOLDER_BYTES])
{
	snprintf(folder, FOLDER_BYTES, "/%s/", disk);
}

/* Opens the store with its cache file, if there is one; to be read only, so that the disk stays as
 * it is. */
static void *flash_begin(struct flash *flash, const char *disk, uint64_t *bytes_out)
{
	char folder[FOLDER_BYTES];
	/* The disk of the next process has another identity here, and the file is its own. */
	const struct flash_cache_options cache = { .directory = folder,
		.others = FLASH_OTHERS_TAKE };
	struct disk_info info;
	struct error error;
	void *memory;

	cache_folder(disk, folder);
	flash->path = (char *)(uintptr_t)disk;
	if (disk_open(disk, true, false, &flash->fd, &error) != 0 ||
		disk_info(flash->fd, &info) != 0) {
		model_fail("%s", error.text);
	}
	memcpy(flash->identity, info.identity, sizeof(info.identity));
	if (flash_anchors_read(flash, flash->fd, &error) != 0 ||
		flash_cache_open(flash, &cache, &error) != 0) {
		model_fail("%s", error.text);
	}
	flash->is_read_only = true;
	flash->slot_count = flash_slot_count(&flash->anchor.geometry, 0);
	*bytes_out = flash_budget(flash);
	memory = mmap(NULL, *bytes_out, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	GMB_ASSERT(memory != MAP_FAILED);
	flash_init(flash, memory);
	if (flash_recover(flash, &error) != 0) {
		model_fail("%s", error.text);
	}
	if (flash_has_loss(flash)) {
		model_fail("flash store '%s' has lost what was flushed", disk);
	}
	return memory;
}

/* What is in a flash store. */
struct found {
	uint8_t *bytes;	     /* to be freed if there is no scratch buffer */
	uint64_t from_cache; /* blocks of those that only its cache file has */
	bool has_lost_cache; /* the disk refers to a file that is not there */
};

/* Whoever opens the store on that disk finds these bytes. The disk stays as it is. */
static struct found flash_contents(
	const struct scenario_export *export, const char *disk, struct scratch *scratch)
{
	struct flash *flash = calloc(1, sizeof(*flash));
	struct found found = { 0 };
	uint64_t blocks;
	uint64_t bytes;
	void *memory;

	GMB_ASSERT(flash != NULL);
	sim_set_faults(&(struct sim_faults){ 0 }); /* it is we who look */
	memory = flash_begin(flash, disk, &bytes);
	found.has_lost_cache = flash->anchor.cache_tag != 0 && !flash->cache.is_found;
	blocks = flash->anchor.geometry.disk_blocks;
	found.bytes = scratch != NULL ? scratch_get(scratch, blocks * FLASH_BLOCK_BYTES)
				      : malloc(blocks * FLASH_BLOCK_BYTES);
	GMB_ASSERT(found.bytes != NULL);
	memset(found.bytes, 0, blocks * FLASH_BLOCK_BYTES);
	for (uint64_t at = 0; at < blocks; at += FLASH_NODE_ENTRIES) {
		flash_page(flash, (uint32_t)(at / FLASH_NODE_ENTRIES),
			found.bytes + at * FLASH_BLOCK_BYTES, blocks - at);
	}
	if (flash->cache.is_found) {
		found.from_cache = cache_lru_dirty_count(&flash->cache.lru);
		disk_shared_close(&flash->cache.file, false);
	}
	disk_close(flash->fd);
	(void)munmap(memory, bytes);
	free(flash);
	sim_set_faults(&export->scenario->faults);
	return found;
}

void contents_make_flash(struct scenario_export *export, const char *disk)
{
	uint64_t segments = FLASH_SEGMENTS_LEAST + sim_random() % FLASH_SEGMENTS_MORE;
	uint64_t segment_blocks =
		runner_atomic ? FLASH_ATOMIC_SEGMENT_BLOCKS : FLASH_SEGMENT_BLOCKS;
	struct sim_disk_options options = {
		.size = (FLASH_SEGMENTS_AT + segments * segment_blocks) * FLASH_BLOCK_BYTES,
		.direct_offset_align = 512,
		.is_block = sim_random() % 3 == 0,
		.no_discard = sim_random() % 3 == 0,
	};
	struct store_create create = { .segment_bytes = segment_blocks * FLASH_BLOCK_BYTES };
	struct flash flash = { .path = (char *)(uintptr_t)disk };
	struct error error;

	export->is_flash = true;
	snprintf(export->path, sizeof(export->path), "flash:%s", disk);
	export->disk = sim_disk_create(disk, &options);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	if (store_create(export->path, &create, &error) != 0 ||
		disk_open(disk, true, false, &flash.fd, &error) != 0 ||
		flash_anchors_read(&flash, flash.fd, &error) != 0) {
		model_fail("%s", error.text);
	}
	disk_close(flash.fd);
	export->size = flash.anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
}

/* Not drawn: seeds stay what they were. */
void contents_choose_cache(const struct scenario_export *export, struct store_options *options)
{
	static const char *const sizes[] = { "256K", "128K", "256K", "0" };
	const struct scenario *scenario = export->scenario;
	char folder[FOLDER_BYTES];

	cache_folder(contents_disk(export), folder);
	stores_set(options, "cache-dir", folder);
	stores_set(options, "cache", sizes[(scenario->seed / 5 + scenario->life) % 4]);
}

void contents_check_epoch(struct scenario_export *export)
{
	uint64_t epoch = store_epoch(export->store);

	if (export->scenario->life == 0) {
		export->epoch = epoch;
	} else if ((epoch != export->epoch) != export->cache_is_lost) {
		model_fail("export '%s': its epoch was %llx and is %llx after its server %s%s",
			export->name, (unsigned long long)export->epoch, (unsigned long long)epoch,
			export->is_killed ? "was killed" : "lost the power",
			export->cache_is_lost ? ", and its cache" : "");
	}
}

uint64_t contents_counted(
	struct engine *engine, const struct scenario_export *export, const char *name)
{
	const struct engine_export *entry =
		engine_export_find(engine, export->name, (uint32_t)strlen(export->name));
	const struct counter_table *table;
	const void *values = store_queue_counters(entry->path.queue, &table);

	for (size_t i = 0; export->is_flash && i < table->count; i++) {
		if (strcmp(table->counters[i].name, name) == 0) {
			return counter_value(&table->counters[i], values);
		}
	}
	return 0;
}

/* --- all kinds ------------------------------------------------------------------------------- */

/* Calls fn on every stretch of the export that is used: all of it, or the windows of a giant. The
 * disk is its own or a copy; flash: what the store on it has, or NULL. */
struct looking {
	const struct scenario_export *export;
	struct sim_disk *disk;
	const uint8_t *flash;
	void (*check)(const struct looking *looking, uint64_t offset, uint8_t *data, size_t len);
};

static void look_at(const struct looking *looking, uint64_t offset, size_t len)
{
	static struct scratch scratch;
	uint8_t *data = scratch_get(&scratch, len);

	if (looking->flash != NULL) {
		memcpy(data, looking->flash + offset, len);
	} else {
		sim_disk_peek(looking->disk, offset, data, len);
	}
	looking->check(looking, offset, data, len);
	scratch_put(&scratch);
}

/* Returns how many blocks only a cache file has. */
static uint64_t look(struct looking *looking, const char *disk, bool has_cache)
{
	static struct scratch scratch;
	const struct scenario_export *export = looking->export;
	struct found found = { 0 };

	if (export->is_flash) {
		found = flash_contents(export, disk, &scratch);
		if (has_cache && found.has_lost_cache) {
			model_fail("flash store '%s' has no cache file, and needs it", disk);
		}
	}
	looking->flash = found.bytes;
	if (!export->sparse_giant) {
		look_at(looking, 0, (size_t) export->size);
	} else {
		look_at(looking, 0, GIANT_WINDOW_BYTES);
		look_at(looking, (UINT64_C(4) << 30) - GIANT_WINDOW_BYTES / 2, GIANT_WINDOW_BYTES);
		look_at(looking, export->size - GIANT_WINDOW_BYTES, GIANT_WINDOW_BYTES);
	}
	scratch_put(&scratch);
	return found.from_cache;
}

/* Whatever is there: what its server was to keep as a whole. */
static void is_whole(const struct scenario_export *export, const uint8_t *data, size_t len)
{
	uint32_t open_count = 0;

	if (export->is_flash && !oracle_check_whole(export->oracle, data, len, &open_count)) {
		model_fail("export '%s': %s", export->name, oracle_message(export->oracle));
	}
	export->scenario->atomic_writes += open_count;
}

static void is_durable(const struct looking *looking, uint64_t offset, uint8_t *data, size_t len)
{
	const struct scenario_export *export = looking->export;

	is_whole(export, data, len);
	if (!oracle_check_durable(export->oracle, offset, data, len)) {
		model_fail("durability, export '%s': %s", export->name,
			oracle_message(export->oracle));
	}
}

static void is_current(const struct looking *looking, uint64_t offset, uint8_t *data, size_t len)
{
	const struct scenario_export *export = looking->export;

	is_whole(export, data, len);
	if (!oracle_check_read(export->oracle, oracle_now(export->oracle), offset, data, len)) {
		model_fail("what was answered, export '%s': %s", export->name,
			oracle_message(export->oracle));
	}
}

static void crash_name(const struct scenario_export *export, bool is_killed, char name[NAME_BYTES])
{
	snprintf(name, NAME_BYTES, "disk%u-%s", (uint32_t)(export - export->scenario->exports),
		is_killed ? "killed" : "crashed");
}

static void forget_disk(const char *name)
{
	if (sim_disk_find(name) != NULL) {
		sim_disk_destroy(sim_disk_find(name));
	}
}

static void lose_power(const struct scenario_export *export)
{
	static const char hidden[] = "/hidden/";
	struct looking looking = { .export = export, .check = is_durable };
	char name[NAME_BYTES];
	char folder[FOLDER_BYTES];
	bool is_left;

	crash_name(export, false, name);
	forget_disk(name);
	looking.disk = sim_disk_crash_copy(export->disk, name);
	cache_folder(contents_disk(export), folder);
	/* One of a store that has failed is there, and nobody has it open. */
	is_left = sim_shared_find(folder, &(uint64_t){ 0 }) != NULL && !sim_shared_is_open(folder);
	if (is_left) {
		sim_shared_copy(folder, hidden);
		sim_shared_remove(folder);
	}
	look(&looking, name, false);
	if (is_left) {
		sim_shared_copy(hidden, folder);
		sim_shared_remove(hidden);
	}
}

static void kill_server(const struct scenario_export *export)
{
	struct looking looking = { .export = export, .check = is_current };
	char name[NAME_BYTES];
	char from[FOLDER_BYTES];
	char folder[FOLDER_BYTES];

	crash_name(export, true, name);
	forget_disk(name);
	looking.disk = sim_disk_kill_copy(export->disk, name);
	cache_folder(contents_disk(export), from);
	cache_folder(name, folder);
	if (sim_shared_find(folder, &(uint64_t){ 0 }) != NULL) {
		sim_shared_remove(folder);
	}
	sim_shared_copy(from, folder);
	export->scenario->flash_kept += look(&looking, name, true);
}

void contents_crash(const struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->export_count; i++) {
		const struct scenario_export *export = &scenario->exports[i];

		if (export->disk != NULL && !export->size_may_change) {
			lose_power(export);
			kill_server(export);
		}
	}
}

void contents_go_on(struct scenario_export *export)
{
	char name[NAME_BYTES];
	char folder[FOLDER_BYTES];

	export->is_killed = export->scenario->seed % KILLED_EVERY == 0;
	if (!export->is_killed) { /* with the power all such files go */
		cache_folder(contents_disk(export), folder);
		if (sim_shared_find(folder, &(uint64_t){ 0 }) != NULL) {
			sim_shared_remove(folder);
		}
	}
	crash_name(export, export->is_killed, name);
	snprintf(
		export->path, sizeof(export->path), "%s%s", export->is_flash ? "flash:" : "", name);
	export->disk = sim_disk_find(name);
	GMB_ASSERT(export->disk != NULL);
}

static bool has_cache_file(const struct scenario_export *export)
{
	char folder[FOLDER_BYTES];

	cache_folder(contents_disk(export), folder);
	return sim_shared_find(folder, &(uint64_t){ 0 }) != NULL;
}

void contents_check_current(const struct scenario_export *export)
{
	const char *disk = contents_disk(export);

	if (export->is_flash) { /* what cannot be read is there nevertheless */
		sim_disk_set_bad(export->disk, 0, 0, false, false);
		if (!export->changes_may_fail && has_cache_file(export)) {
			model_fail(
				"flash store '%s' was closed, and its cache file is there", disk);
		}
	}
	look(&(struct looking){ .export = export, .disk = export->disk, .check = is_current }, disk,
		true);
}

static void base_read(void *context, uint64_t offset, uint8_t *out, size_t len)
{
	const struct scenario_export *export = context;

	if (export->is_flash) {
		memcpy(out, export->flash_base + offset, len);
	} else {
		sim_disk_peek(export->base, offset, out, len);
	}
}

void contents_begin(struct scenario_export *export)
{
	char name[sizeof(export->path) + 16];

	contents_end(export);
	if (export->is_flash) {
		struct found found = flash_contents(export, contents_disk(export), NULL);

		export->flash_base = found.bytes;
		export->cache_is_lost = found.has_lost_cache;
	} else if (export->disk != NULL) {
		snprintf(name, sizeof(name), "%s-base-%u", export->path, export->scenario->life);
		export->base = export->is_killed ? sim_disk_kill_copy(export->disk, name)
						 : sim_disk_crash_copy(export->disk, name);
	}
	export->oracle = oracle_create(export->disk == NULL ? NULL : base_read, export);
}

void contents_end(struct scenario_export *export)
{
	oracle_destroy(export->oracle);
	export->oracle = NULL;
	free(export->flash_base);
	export->flash_base = NULL;
}
