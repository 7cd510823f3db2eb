// SPDX-License-Identifier: Apache-2.0
/*
 * Creates flash stores, and checks them (`gmblock check`).
 *
 * A check opens the store read-only, with its own memory, and runs the recovery. So it finds
 * what a start would find, without changes to the store. It does not claim the device, so its
 * results are reliable only while no server writes the store.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "disk/disk.h"
#include "store/flash/flash.h"

enum {
	/* If a disk has more map pages than this (2 GiB), a check takes long enough for progress
	 * messages. */
	TELL_PAGES = 1024,
	/* Maximum without zones: a start might have to search the rest of a segment for records,
	 * block by block. */
	SEGMENT_BLOCKS_MAX = 65536,
};

/* --- creating -------------------------------------------------------------------------------- */

/* Fills in the first anchor. zones: NULL, or the zones of the device, each of which is a
 * segment. */
static int fill_anchor(const struct store_create *create, uint64_t device_bytes,
	const struct flash_zones *zones, struct flash_anchor *anchor, struct error *error)
{
	uint64_t segment_blocks = create->segment_bytes > 0
					  ? create->segment_bytes >> FLASH_BLOCK_SHIFT
					  : FLASH_SEGMENT_BLOCKS_DEFAULT;
	uint32_t spare = create->spare_percent > 0 ? create->spare_percent : FLASH_SPARE_DEFAULT;

	*anchor = (struct flash_anchor){
		.version = FLASH_ANCHOR_VERSION, .serial = 1, .next.seq = 1, .spare_percent = spare
	};
	if (zones != NULL && create->segment_bytes > 0 && segment_blocks != zones->capacity) {
		return error_set(error, -EINVAL,
			"the zones of the device have a capacity of %u KiB, and each zone must be "
			"one segment; omit --segment",
			zones->capacity * 4);
	}
	if (create->label != NULL) {
		memcpy(anchor->label, create->label, strlen(create->label));
	}
	if (zones != NULL) {
		segment_blocks = zones->capacity;
		device_bytes = (FLASH_SEGMENTS_AT +
				       (uint64_t)(zones->count - FLASH_ANCHORS) * segment_blocks)
			       << FLASH_BLOCK_SHIFT;
		anchor->zone_blocks = (uint32_t)(zones->bytes >> FLASH_BLOCK_SHIFT);
	}
	/* A small device gets smaller segments, so that there are enough. */
	while (zones == NULL && create->segment_bytes == 0 &&
		segment_blocks > FLASH_SEGMENT_BLOCKS_MIN * 16 &&
		(device_bytes >> FLASH_BLOCK_SHIFT) / segment_blocks < 128) {
		segment_blocks /= 2;
	}
	if (getrandom(anchor->uuid, sizeof(anchor->uuid), 0) != sizeof(anchor->uuid)) {
		return error_set(error, -EIO, "cannot get random numbers from the system");
	}
	return flash_geometry_make(&anchor->geometry, device_bytes >> FLASH_BLOCK_SHIFT,
		(uint32_t)segment_blocks, spare, error);
}

static void encode_anchors(
	const struct flash_anchor *anchor, uint8_t bytes[FLASH_ANCHORS * FLASH_BLOCK_BYTES])
{
	for (int i = 0; i < FLASH_ANCHORS; i++) {
		flash_anchor_encode(anchor, bytes + (size_t)i * FLASH_BLOCK_BYTES);
	}
}

static int refuse_store(const char *path, struct error *error)
{
	return error_set(error, -EEXIST,
		"'%s' already contains a flash store; --force replaces it, and all its data is "
		"lost",
		path);
}

/* Returns an error if the first MiB is not empty. Filesystems have their signatures there, Btrfs at
 * 64 KiB. */
static int refuse_contents(int fd, const char *path, uint64_t size, struct error *error)
{
	static const uint8_t zeroes[16 * FLASH_BLOCK_BYTES];
	uint8_t bytes[sizeof(zeroes)];
	uint64_t end = MIN(size, (uint64_t)FLASH_SEGMENTS_AT * FLASH_BLOCK_BYTES);

	for (uint64_t at = 0, count; at < end; at += count) {
		int result;

		count = MIN(end - at, (uint64_t)sizeof(bytes));
		result = disk_read(fd, bytes, (size_t)count, at);
		if (result < 0) {
			return error_set(
				error, result, "cannot read '%s': %s", path, strerror(-result));
		}
		if (at == 0 && count >= FLASH_BLOCK_BYTES && flash_anchor_is_ours(bytes)) {
			return refuse_store(path, error);
		}
		if (memcmp(bytes, zeroes, (size_t)count) != 0) {
			return error_set(error, -EEXIST,
				"'%s' is not empty; --force creates a flash store on it, and its "
				"contents are lost",
				path);
		}
	}
	return 0;
}

/* Returns an error unless all zones are empty. */
static int refuse_zones(int fd, const char *path, struct flash_zones *zones, struct error *error)
{
	uint8_t block[FLASH_BLOCK_BYTES];

	for (uint32_t i = 0; i < zones->count; i++) {
		struct disk_zone zone;
		int result = disk_zones(fd, zones->first + i * zones->bytes, &zone, 1);

		if (result <= 0) {
			return error_set(error, -EIO, "cannot examine the zones of '%s'", path);
		}
		if (zone.state == DISK_ZONE_EMPTY) {
			continue;
		}
		if (i < FLASH_ANCHORS && flash_anchor_read(fd, zones, i, block) == 0 &&
			flash_anchor_is_ours(block)) {
			return refuse_store(path, error);
		}
		return error_set(error, -EEXIST,
			"'%s' has zones that are not empty; --force creates a flash store on it, "
			"and its contents are lost",
			path);
	}
	return 0;
}

/* Resets all zones and writes an anchor to each of the first two. */
static int write_zones(int claim, const char *path, const struct flash_zones *zones,
	const uint8_t bytes[FLASH_ANCHORS * FLASH_BLOCK_BYTES], struct error *error)
{
	uint8_t *aligned = NULL;
	int result = disk_zones_reset(claim, zones->first, zones->count * zones->bytes);
	int fd;

	if (result < 0) {
		return error_set(error, result, "cannot reset the zones of '%s': %s", path,
			strerror(-result));
	}
	result = disk_open(path, false, true, &fd, error);
	if (result < 0) {
		return result;
	}
	if (posix_memalign((void **)&aligned, FLASH_BLOCK_BYTES, FLASH_BLOCK_BYTES) != 0) {
		result = -ENOMEM;
	}
	for (uint32_t i = 0; i < FLASH_ANCHORS && result == 0; i++) {
		memcpy(aligned, bytes + (size_t)i * FLASH_BLOCK_BYTES, FLASH_BLOCK_BYTES);
		result =
			disk_write(fd, aligned, FLASH_BLOCK_BYTES, zones->first + i * zones->bytes);
	}
	result = result ?: disk_sync(fd);
	free(aligned);
	disk_close(fd);
	return result == 0 ? 0
			   : error_set(error, result, "cannot write to '%s': %s", path,
				     strerror(-result));
}

/* Creates the store on an existing file or device. */
static int create_on(
	int fd, int claim, const char *path, const struct store_create *create, struct error *error)
{
	uint8_t bytes[FLASH_ANCHORS * FLASH_BLOCK_BYTES];
	struct flash_anchor anchor;
	struct flash_zones zones;
	struct disk_info info;
	int result = disk_info(fd, &info);

	if (result < 0) {
		return error_set(error, result, "cannot examine '%s': %s", path, strerror(-result));
	}
	result = flash_zones_find(fd, path, &zones, error);
	if (result < 0) {
		return result;
	}
	if (create->size > 0 && create->size != info.size) {
		return error_set(error, -EEXIST,
			"'%s' exists and has %llu bytes; --size is only for a new file", path,
			(unsigned long long)info.size);
	}
	if (!create->force) {
		result = zones.bytes > 0 ? refuse_zones(fd, path, &zones, error)
					 : refuse_contents(fd, path, info.size, error);
	}
	if (result == 0) {
		result = fill_anchor(
			create, info.size, zones.bytes > 0 ? &zones : NULL, &anchor, error);
		if (result < 0) {
			error_prefix(error, "cannot create a flash store on '%s'", path);
		}
	}
	if (result < 0) {
		return result;
	}
	encode_anchors(&anchor, bytes);
	if (zones.bytes > 0) {
		return write_zones(claim, path, &zones, bytes, error);
	}
	result = disk_write(fd, bytes, sizeof(bytes), 0);
	result = result ?: disk_sync(fd);
	return result < 0 ? error_set(error, result, "cannot write to '%s': %s", path,
				    strerror(-result))
			  : 0;
}

/* Warns if the sparse file might not fit into its filesystem later. */
static void tell_room(const char *path, uint64_t size)
{
	struct error error;
	uint64_t room;
	int fd;

	if (disk_open(path, true, false, &fd, &error) < 0) {
		return;
	}
	room = disk_room(fd);
	disk_close(fd);
	if (room < size) {
		log_warning("'%s' might need %llu MiB, but its filesystem has only %llu MiB left; "
			    "if that space is exhausted, the disk becomes read-only",
			path, (unsigned long long)(size >> 20), (unsigned long long)(room >> 20));
	}
}

static int create_file(const char *path, const struct store_create *create, struct error *error)
{
	uint8_t bytes[FLASH_ANCHORS * FLASH_BLOCK_BYTES];
	struct flash_anchor anchor;
	int result;

	if (create->size == 0) {
		return error_set(error, -ENOENT,
			"'%s' does not exist; add --size=SIZE to create a file", path);
	}
	result = fill_anchor(create, create->size, NULL, &anchor, error);
	if (result < 0) {
		error_prefix(error, "cannot create a flash store in '%s'", path);
		return result;
	}
	encode_anchors(&anchor, bytes);
	result = disk_create(path, create->size, bytes, sizeof(bytes), error);
	if (result == 0) {
		tell_room(path, create->size);
	}
	return result;
}

int flash_create_check(const struct store_create *create, struct error *error)
{
	const size_t label_bytes = sizeof(((struct flash_anchor *)NULL)->label);
	uint64_t segment_blocks = create->segment_bytes >> FLASH_BLOCK_SHIFT;
	uint32_t spare = create->spare_percent;

	if (create->base != NULL) {
		return error_set(error, -EINVAL, "a flash store has no base; omit --base");
	}
	if (create->segment_bytes != 0 && (create->segment_bytes % FLASH_BLOCK_BYTES != 0 ||
						  segment_blocks < FLASH_SEGMENT_BLOCKS_MIN ||
						  segment_blocks > SEGMENT_BLOCKS_MAX)) {
		return error_set(error, -EINVAL,
			"a segment must have 64 KiB to 256 MiB, in whole blocks of 4 KiB");
	}
	if (spare != 0 && (spare < FLASH_SPARE_MIN || spare > FLASH_SPARE_MAX)) {
		return error_set(error, -EINVAL, "the spare space must be %d to %d percent",
			FLASH_SPARE_MIN, FLASH_SPARE_MAX);
	}
	if (create->label != NULL && strlen(create->label) >= label_bytes) {
		return error_set(
			error, -EINVAL, "a label can have at most %zu bytes", label_bytes - 1);
	}
	return 0;
}

int flash_create(const char *path, const struct store_create *create, struct error *error)
{
	int claim = -1;
	int fd;
	int result = disk_open(path, false, false, &fd, error);

	if (result == -ENOENT) {
		return create_file(path, create, error);
	}
	if (result < 0) {
		return result;
	}
	result = disk_claim(path, fd, &claim, error);
	if (result == 0) {
		result = create_on(fd, claim >= 0 ? claim : fd, path, create, error);
	}
	if (claim >= 0) {
		disk_close(claim);
	}
	disk_close(fd);
	return result;
}

/* --- checking -------------------------------------------------------------------------------- */

struct checking {
	struct flash *flash;
	struct store_check *check;
	uint32_t *valid; /* number of blocks found in the map, for each tree and segment */
	uint64_t mapped;
	struct flash_holes damaged; /* damaged pages of the disk */
	uint32_t damaged_snapshots; /* number of damaged pages of snapshots */
	uint64_t damaged_blocks;
};

static uint32_t *found_valid(const struct checking *checking, uint32_t tree, uint32_t segment)
{
	return &checking->valid[(size_t)tree * checking->flash->anchor.geometry.segment_count +
				segment];
}

static void check_block(struct checking *checking, const struct flash_entry *entry)
{
	struct flash *flash = checking->flash;
	uint8_t *bytes = flash->record_bytes;

	if (flash_read(flash, le32toh(entry->block), 1, bytes) < 0 ||
		crc32c(0, bytes, FLASH_BLOCK_BYTES) != le32toh(entry->crc)) {
		checking->damaged_blocks++;
	}
}

/* Reads a map page, or returns zeroes for a page without a node. Returns false if it is damaged. */
static bool read_page(struct checking *checking, uint32_t page, struct flash_node *node)
{
	struct flash *flash = checking->flash;
	const struct flash_slot *slot = flash_map_find(flash, page);

	if (slot != NULL) {
		*node = *slot->node;
		return true;
	}
	return flash_node_read(flash, flash_page_entry(flash, page), node) == 0;
}

/* Checks a page and the blocks it refers to. A block that a snapshot shares with the disk is read
 * once. */
static void check_page(struct checking *checking, uint32_t tree, uint32_t index)
{
	const struct flash *flash = checking->flash;
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t page = tree * geometry->page_count + index;
	struct flash_node node;
	struct flash_node shared = { 0 };

	if (flash_map_is_empty(checking->flash, page) ||
		(tree > 0 && !flash_tree_is_live(flash, tree))) {
		return;
	}
	if (!read_page(checking, page, &node) || !flash_page_is_sound(flash, index, &node)) {
		checking->damaged_snapshots += tree > 0;
		if (tree == 0) {
			flash_hole_add(&checking->damaged, index);
		}
		return;
	}
	if (tree > 0 && !read_page(checking, index, &shared)) {
		/* The damage of the disk's page is reported when the disk is checked. Without that
		 * page it is unknown which blocks both share, so all are checked. */
		shared = (struct flash_node){ 0 };
	}
	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		uint32_t block = le32toh(node.entries[i].block);

		if (block == 0) {
			continue;
		}
		(*found_valid(checking, tree, flash_segment_of(geometry, block)))++;
		checking->mapped += tree == 0;
		if (node.entries[i].block != shared.entries[i].block) {
			check_block(checking, &node.entries[i]);
		}
	}
}

/* Returns the number of segments whose counts differ from the blocks found. */
static uint32_t count_wrong(const struct checking *checking)
{
	const struct flash *flash = checking->flash;
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		bool is_right = *found_valid(checking, 0, i) == flash->table.segments[i].valid;

		for (uint32_t k = 0; k < FLASH_SNAPSHOTS; k++) {
			is_right =
				is_right && (flash->snapshots.list[k].is_damaged ||
						    *found_valid(checking, 1 + k, i) ==
							    flash->segments[i].snapshot_valid[k]);
		}
		wrong += !is_right;
	}
	return wrong;
}

/* Reports pages of the disk that are lost or damaged. */
static void check_holes(const struct checking *checking)
{
	struct store_check *check = checking->check;
	char hole[FLASH_HOLE_TEXT_BYTES];
	char text[FLASH_HOLE_TEXT_BYTES + 96];

	for (uint32_t i = 0;
		flash_hole_text(checking->flash, &checking->damaged, i, hole, sizeof(hole)); i++) {
		snprintf(text, sizeof(text),
			"%s cannot be read: their part of the map is lost; --rebuild restores it",
			hole);
		check->fault(check, text);
	}
	if (checking->damaged_snapshots > 0) {
		snprintf(text, sizeof(text), "%u pages of the maps of snapshots are damaged",
			checking->damaged_snapshots);
		check->fault(check, text);
	}
}

/* Reports damage with which the store can still be opened. */
static void check_spare(const struct checking *checking)
{
	struct flash *flash = checking->flash;
	struct store_check *check = checking->check;
	uint32_t single = 0;
	char text[96];

	for (uint32_t i = 0; i < FLASH_TREES; i++) {
		single += flash_tree_is_live(flash, i) ? flash_tree_single(flash, i) : 0;
	}
	if (single > 0) {
		snprintf(text, sizeof(text),
			"%u nodes of the map have only one good copy; --rebuild restores both",
			single);
		check->fault(check, text);
	}
	if (flash->damage.is_table_damaged) {
		check->fault(check, "the segment table is damaged; --rebuild, or the next server "
				    "of the store, creates the table again from the map");
	}
}

static void check_found(struct checking *checking)
{
	const struct flash *flash = checking->flash;
	struct store_check *check = checking->check;
	uint32_t wrong = count_wrong(checking);
	char loss[FLASH_LOSS_TEXT_BYTES];
	char text[256];

	check->amount(check, "used", checking->mapped << FLASH_BLOCK_SHIFT);
	if (flash_has_loss(flash)) {
		flash_loss_text(flash, loss, sizeof(loss));
		snprintf(text, sizeof(text), "the log %s; --accept-loss discards these records",
			loss);
		check->fault(check, text);
	}
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		if (flash->snapshots.list[i].is_damaged) {
			snprintf(text, sizeof(text),
				"the map of snapshot '%s' is damaged: parts of it cannot be read; "
				"'gmblock snapshot delete' frees its space",
				flash->snapshots.list[i].about.name);
			check->fault(check, text);
		}
	}
	check_holes(checking);
	check_spare(checking);
	if (checking->damaged_blocks > 0) {
		snprintf(text, sizeof(text),
			"%llu blocks of the disk have a wrong checksum; reads of them fail",
			(unsigned long long)checking->damaged_blocks);
		check->fault(check, text);
	}
	if (wrong > 0 && checking->damaged.count == 0 && checking->damaged_snapshots == 0 &&
		!flash->damage.is_table_damaged) {
		snprintf(text, sizeof(text),
			"%u segments have a wrong count of used blocks; --rebuild corrects it",
			wrong);
		check->fault(check, text);
	}
}

/* Reports the size of the segments that are used last because writes to them have failed. Such
 * segments are not reported as a fault. */
static void tell_avoided(const struct flash *flash, struct store_check *check)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		blocks += flash_is_avoided(flash, i) ? geometry->segment_blocks : 0;
	}
	if (blocks > 0) {
		check->amount(check, "avoided", blocks << FLASH_BLOCK_SHIFT);
	}
}

static void check_map(struct flash *flash, struct store_check *check)
{
	struct checking checking = { .flash = flash, .check = check };
	struct error error;

	checking.valid = calloc((size_t)FLASH_TREES * flash->anchor.geometry.segment_count,
		sizeof(*checking.valid));
	if (checking.valid == NULL) {
		check->fault(check, "not enough memory to examine the map");
	} else if (flash_recover(flash, &error) < 0) {
		check->fault(check, error.text);
	} else {
		for (uint32_t i = 0; i < flash->anchor.geometry.leaf_count; i++) {
			for (uint32_t tree = 0; tree < FLASH_TREES; tree++) {
				check_page(&checking, tree, i);
			}
			if (i >= TELL_PAGES && i % (flash->anchor.geometry.leaf_count / 8) == 0) {
				log_info("flash store '%s': %llu %% of the disk has been checked",
					flash->path,
					(unsigned long long)i * 100 /
						flash->anchor.geometry.leaf_count);
			}
		}
		check_found(&checking);
		tell_avoided(flash, check);
	}
	free(checking.valid);
}

static void check_anchor(
	int fd, const char *path, const struct flash_zones *zones, struct store_check *check)
{
	struct flash *flash = calloc(1, sizeof(*flash));
	struct disk_info info;
	struct error error;
	uint64_t bytes;
	void *memory;
	char text[FLASH_UUID_BYTES * 2 + 1];

	if (flash == NULL) {
		check->fault(check, "not enough memory");
		return;
	}
	flash->fd = fd;
	flash->zones = *zones;
	flash->path = (char *)(uintptr_t)path;
	flash->is_read_only = true;
	if (disk_info(fd, &info) == 0) {
		memcpy(flash->identity, info.identity, sizeof(info.identity));
	}
	if (flash_anchors_read(flash, fd, &error) < 0) {
		check->fault(check, error.text);
		free(flash);
		return;
	}
	for (uint32_t i = 0; i < FLASH_UUID_BYTES; i++) {
		snprintf(text + (size_t)i * 2, 3, "%02x", flash->anchor.uuid[i]);
	}
	check->fact(check, "uuid", text);
	if (flash->anchor.label[0] != '\0') {
		check->fact(check, "label", flash->anchor.label);
	}
	check->amount(check, "size", flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT);
	check->amount(check, "segment",
		(uint64_t)flash->anchor.geometry.segment_blocks << FLASH_BLOCK_SHIFT);
	check->amount(check, "atomic",
		(uint64_t)flash_atomic_blocks(&flash->anchor.geometry) << FLASH_BLOCK_SHIFT);
	check->entry(check, "snapshots", NULL);
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		if (flash->anchor.snapshots[i].name[0] != '\0') {
			check->entry(check, "snapshots", flash->anchor.snapshots[i].name);
		}
	}
	flash_cache_check(flash, check);
	flash->slot_count = flash_slot_count(&flash->anchor.geometry, 0);
	bytes = flash_budget(flash);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		check->fault(check, "not enough memory to examine the map");
	} else {
		flash_init(flash, memory);
		check_map(flash, check);
		(void)munmap(memory, bytes);
	}
	free(flash);
}

int flash_check(const char *path, struct store_check *check, bool *recognized, struct error *error)
{
	uint8_t block[FLASH_BLOCK_BYTES];
	struct flash_zones zones;
	uint64_t size = 0;
	int fd;
	int result;

	result = disk_open(path, true, false, &fd, error);
	if (result < 0) {
		return result;
	}
	result = disk_size(fd, &size);
	if (result == 0 && size >= sizeof(block) * FLASH_ANCHORS &&
		flash_zones_find(fd, path, &zones, error) == 0) {
		for (uint32_t i = 0; i < FLASH_ANCHORS && result == 0; i++) {
			result = flash_anchor_read(fd, &zones, i, block);
			*recognized |= result == 0 && flash_anchor_is_ours(block);
		}
	}
	if (result < 0) {
		result = error_set(error, result, "cannot read '%s': %s", path, strerror(-result));
	} else if (*recognized) {
		check->fact(check, "format", "flash");
		if (disk_check_writers(fd) == -EBUSY) {
			check->fact(check, "writer",
				"a server has the store open for writing, and the changes that the "
				"server makes can look like corruption");
		}
		check_anchor(fd, path, &zones, check);
	}
	disk_close(fd);
	return result;
}
