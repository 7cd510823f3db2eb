// SPDX-License-Identifier: Apache-2.0
/* What is on the disks of a scenario, and what it must be. */
#include "contents.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/crc32c.h"
#include "store/flash/flash.h"

enum {
	GIANT_WINDOW_BYTES = 1 << 20,
	FLASH_SEGMENT_BLOCKS = 16,
	/* With room for the longest record, and so many more of them that the collector gets on. */
	FLASH_ATOMIC_SEGMENT_BLOCKS = 256,
	FLASH_ATOMIC_SPARE = 40,
	FLASH_SEGMENTS_LEAST = 20,
	FLASH_SEGMENTS_MORE = 30,
};

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
		if (node.entries[i].block != 0) {
			flash_block(flash, &node.entries[i], out + i * FLASH_BLOCK_BYTES);
		}
	}
}

/* Whoever opens the store on that disk finds these bytes; to be freed. */
static uint8_t *flash_contents(const struct scenario_export *export, const char *disk)
{
	struct flash *flash = calloc(1, sizeof(*flash));
	struct error error;
	uint64_t bytes;
	uint64_t blocks;
	uint8_t *memory;
	uint8_t *out;

	GMB_ASSERT(flash != NULL);
	sim_set_faults(&(struct sim_faults){ 0 }); /* it is we who look */
	flash->is_read_only = true;
	flash->path = (char *)(uintptr_t)disk;
	if (disk_open(disk, true, false, &flash->fd, &error) != 0 ||
		flash_anchors_read(flash, &error) != 0) {
		model_fail("%s", error.text);
	}
	flash->slot_count = flash_slot_count(&flash->anchor.geometry, 0);
	bytes = flash_budget(flash);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	GMB_ASSERT(memory != MAP_FAILED);
	flash_init(flash, memory);
	if (flash_recover(flash, &error) != 0) {
		model_fail("%s", error.text);
	}
	if (flash->lost_records > 0) {
		model_fail("flash store '%s' has lost what was flushed", disk);
	}
	blocks = flash->anchor.geometry.disk_blocks;
	out = calloc(blocks, FLASH_BLOCK_BYTES);
	GMB_ASSERT(out != NULL);
	for (uint64_t at = 0; at < blocks; at += FLASH_NODE_ENTRIES) {
		flash_page(flash, (uint32_t)(at / FLASH_NODE_ENTRIES), out + at * FLASH_BLOCK_BYTES,
			blocks - at);
	}
	disk_close(flash->fd);
	(void)munmap(memory, bytes);
	free(flash);
	sim_set_faults(&export->scenario->faults);
	return out;
}

void contents_make_flash(struct scenario_export *export, const char *disk)
{
	uint64_t segments = FLASH_SEGMENTS_LEAST + model_random() % FLASH_SEGMENTS_MORE;
	uint64_t segment_blocks =
		runner_atomic ? FLASH_ATOMIC_SEGMENT_BLOCKS : FLASH_SEGMENT_BLOCKS;
	struct sim_disk_options options = {
		.size = (FLASH_SEGMENTS_AT + segments * segment_blocks) * FLASH_BLOCK_BYTES,
		.direct_offset_align = 512,
		.is_block = model_random() % 3 == 0,
		.no_discard = model_random() % 3 == 0,
	};
	struct store_create create = { .segment_bytes = segment_blocks * FLASH_BLOCK_BYTES,
		.spare_percent = runner_atomic ? FLASH_ATOMIC_SPARE : 0 };
	struct flash flash = { .path = (char *)(uintptr_t)disk };
	struct error error;

	export->is_flash = true;
	snprintf(export->path, sizeof(export->path), "flash:%s", disk);
	export->disk = sim_disk_create(disk, &options);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	if (store_create(export->path, &create, &error) != 0 ||
		disk_open(disk, true, false, &flash.fd, &error) != 0 ||
		flash_anchors_read(&flash, &error) != 0) {
		model_fail("%s", error.text);
	}
	disk_close(flash.fd);
	export->size = flash.anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
}

uint64_t contents_moved(struct engine *engine, const struct scenario_export *export)
{
	const struct engine_export *entry =
		engine_export_find(engine, export->name, (uint32_t)strlen(export->name));
	const struct counter_table *table;
	const void *values = store_queue_counters(entry->path.queue, &table);

	for (size_t i = 0; export->is_flash && i < table->count; i++) {
		if (strcmp(table->counters[i].name, "moved_blocks") == 0) {
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
	uint8_t *data = malloc(len + 1);

	GMB_ASSERT(data != NULL);
	if (looking->flash != NULL) {
		memcpy(data, looking->flash + offset, len);
	} else {
		sim_disk_peek(looking->disk, offset, data, len);
	}
	looking->check(looking, offset, data, len);
	free(data);
}

static void look(struct looking *looking, const char *disk)
{
	const struct scenario_export *export = looking->export;
	uint8_t *flash = NULL;

	if (export->is_flash) {
		flash = flash_contents(export, disk);
	}
	looking->flash = flash;
	if (!export->sparse_giant) {
		look_at(looking, 0, (size_t) export->size);
	} else {
		look_at(looking, 0, GIANT_WINDOW_BYTES);
		look_at(looking, (UINT64_C(4) << 30) - GIANT_WINDOW_BYTES / 2, GIANT_WINDOW_BYTES);
		look_at(looking, export->size - GIANT_WINDOW_BYTES, GIANT_WINDOW_BYTES);
	}
	free(flash);
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
		model_fail("at the end, export '%s': %s", export->name,
			oracle_message(export->oracle));
	}
}

void contents_check_durable(
	const struct scenario_export *export, struct sim_disk *copy, const char *name)
{
	look(&(struct looking){ .export = export, .disk = copy, .check = is_durable }, name);
}

void contents_check_current(const struct scenario_export *export)
{
	const char *disk = export->path + (export->is_flash ? strlen("flash:") : 0);

	if (export->is_flash) { /* what cannot be read is there nevertheless */
		sim_disk_set_bad(export->disk, 0, 0, false, false);
	}
	look(&(struct looking){ .export = export, .disk = export->disk, .check = is_current },
		disk);
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
		export->flash_base = flash_contents(export, export->path + strlen("flash:"));
	} else if (export->disk != NULL) {
		snprintf(name, sizeof(name), "%s-base-%u", export->path, export->scenario->life);
		export->base = sim_disk_crash_copy(export->disk, name);
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
