// SPDX-License-Identifier: Apache-2.0
/*
 * Reading a tree when a store is opened: the nodes of levels 2 and 1, and the segment table.
 *
 * If a node of level 1 or 2 is damaged, its second copy is used. If the segment table is damaged,
 * it is recomputed from the map. If both copies of a node are damaged, the pages of the disk below
 * it are holes: the store cannot be opened for writing, but it can be read, and reads of holes
 * fail.
 *
 * Called by recover.c and rebuild.c, on a thread that has the store to itself; functions that read
 * block.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "store/flash/flash.h"

/* --- holes ----------------------------------------------------------------------------------- */

static bool has_page(const struct flash_holes *holes, uint32_t page)
{
	for (uint32_t i = 0; i < holes->count; i++) {
		const struct flash_hole *hole = &holes->list[i];

		if (page >= hole->first && page - hole->first < hole->count) {
			return true;
		}
	}
	return false;
}

void flash_hole_add(struct flash_holes *holes, uint32_t page)
{
	struct flash_hole *last = &holes->list[holes->count > 0 ? holes->count - 1 : 0];

	if (has_page(holes, page)) {
		return;
	}
	if (holes->count > 0 && last->first + last->count == page) {
		last->count++;
	} else if (holes->count < FLASH_HOLES_MAX) {
		holes->list[holes->count++] = (struct flash_hole){ page, 1 };
	} else {
		holes->more++;
	}
}

bool flash_hole_text(const struct flash *flash, const struct flash_holes *holes, uint32_t number,
	char *text, size_t bytes)
{
	uint64_t page = (uint64_t)FLASH_NODE_ENTRIES << FLASH_BLOCK_SHIFT;
	uint64_t size = flash->anchor.geometry.disk_blocks << FLASH_BLOCK_SHIFT;
	const struct flash_hole *hole = &holes->list[number];

	if (number < holes->count) {
		snprintf(text, bytes, "bytes %llu to %llu of the disk",
			(unsigned long long)(hole->first * page),
			(unsigned long long)MIN((hole->first + hole->count) * page, size) - 1);
		return true;
	}
	snprintf(text, bytes, "%u more ranges of %llu KiB", holes->more,
		(unsigned long long)page >> 10);
	return number == holes->count && holes->more > 0;
}

/* --- nodes ----------------------------------------------------------------------------------- */

int flash_node_read(struct flash *flash, struct flash_entry at, void *node)
{
	uint32_t block = le32toh(at.block);
	int result;

	memset(node, 0, FLASH_BLOCK_BYTES);
	if (block == 0) {
		return 0;
	}
	if (!flash_is_in_segment(&flash->anchor.geometry, block)) {
		return -EUCLEAN;
	}
	result = flash_read(flash, block, 1, node);
	if (result == 0 && crc32c(0, node, FLASH_BLOCK_BYTES) != le32toh(at.crc)) {
		result = -EUCLEAN;
	}
	return result;
}

/* A record contains the first copies of its nodes, then the second copies. So the second copy is at
 * most FLASH_RECORD_ENTRIES - 1 blocks later in the same segment. A block with the same checksum
 * has the same contents. */
static int flash_twin_read(struct flash *flash, struct flash_entry at, void *node)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t block = le32toh(at.block);
	uint32_t end;

	if (!flash_is_in_segment(geometry, block)) {
		return -EUCLEAN;
	}
	end = flash_segment_at(geometry, flash_segment_of(geometry, block) + 1);
	end = MIN(end, block + FLASH_RECORD_ENTRIES);
	while (++block < end) {
		if (flash_node_read(flash, (struct flash_entry){ htole32(block), at.crc }, node) ==
			0) {
			return 0;
		}
	}
	return -EUCLEAN;
}

/* True if the node's entries refer to segments, and entries past the last node are empty. */
static bool is_sound(const struct flash *flash, uint32_t level, uint32_t index,
	const struct flash_entry *entries)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t below = geometry->node_counts[level - 1];

	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		uint32_t block = le32toh(entries[i].block);

		if (block != 0 && (index * FLASH_NODE_ENTRIES + i >= below ||
					  !flash_is_in_segment(geometry, block))) {
			return false;
		}
	}
	return true;
}

/* Returns true if holes are accepted: the store is read-only, or a repair fills them. */
static bool may_have_holes(const struct flash *flash)
{
	return flash->is_read_only || (flash->damage.repairs & STORE_REPAIR_MAP) != 0;
}

/* Makes reads of the pages below a lost node fail: lets their entries refer to the lost node
 * itself, but with another checksum. So no other code needs to distinguish holes from damaged
 * pages. */
static void tree_lose(struct flash *flash, uint32_t level, uint32_t index)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_tree *tree = &flash->map.trees[0];
	uint32_t first = index * FLASH_NODE_ENTRIES;
	uint32_t end = MIN(first + FLASH_NODE_ENTRIES, geometry->node_counts[level - 1]);
	struct flash_entry nothing = tree->levels[level][index];

	nothing.crc++; /* not the node's checksum, nor after the increments for the lower levels */
	for (uint32_t i = first; i < end; i++) {
		tree->levels[level - 1][i] = nothing;
		if (level == 1 && i < geometry->leaf_count) {
			flash_hole_add(&flash->damage.holes, i);
		}
	}
	tree->dirty[level][index] = true;
}

/* Fills in the entries of a node, which are the addresses of the level below. */
static int read_upper(
	struct flash *flash, uint32_t number, uint32_t level, uint32_t index, bool *damaged)
{
	struct flash_tree *tree = &flash->map.trees[number];
	struct flash_entry at = tree->levels[level][index];
	struct flash_entry *entries = tree->levels[level - 1] + (size_t)index * FLASH_NODE_ENTRIES;
	int result = flash_node_read(flash, at, entries);

	if (result < 0) {
		result = flash_twin_read(flash, at, entries);
		flash->damage.twins_used += result == 0;
		tree->dirty[level][index] = true; /* the next checkpoint writes both copies again */
	}
	if (result == 0 && is_sound(flash, level, index, entries)) {
		return 0;
	}
	memset(entries, 0, FLASH_BLOCK_BYTES);
	if (number > 0) {
		*damaged = true;
		tree->dirty[level][index] = false;
		return 0;
	}
	if (!may_have_holes(flash)) {
		return -EUCLEAN;
	}
	tree_lose(flash, level, index);
	return 0;
}

int flash_tree_read(
	struct flash *flash, uint32_t number, const struct flash_entry *top, bool *damaged)
{
	const struct flash_tree *tree = &flash->map.trees[number];

	memcpy(tree->levels[FLASH_LEVELS - 1], top, sizeof(flash->anchor.top));
	for (uint32_t level = FLASH_LEVELS - 1; level > 0; level--) {
		for (uint32_t i = 0; i < flash->anchor.geometry.node_counts[level]; i++) {
			int result = 0;

			/* The entries of a missing node stay zeroes; not touching them saves
			 * memory. */
			if (tree->levels[level][i].block != 0) {
				result = read_upper(flash, number, level, i, damaged);
			}
			if (result < 0) {
				return result;
			}
		}
	}
	return 0;
}

/* --- the table of segments ------------------------------------------------------------------- */

/* Takes the counts from a page of the segment table. A snapshot's table contains only counts. */
static void take_table(struct flash *flash, uint32_t tree, struct flash_seen *seen, uint32_t first,
	const struct flash_table_entry *entries)
{
	uint32_t end = MIN(first + FLASH_TABLE_ENTRIES, flash->anchor.geometry.segment_count);

	for (uint32_t i = first; i < end; i++) {
		const struct flash_table_entry *entry = &entries[i - first];

		if (tree > 0) {
			flash->segments[i].snapshot_valid[tree - 1] = le32toh(entry->valid);
		} else {
			seen[i].stamp = le64toh(entry->stamp);
			seen[i].valid = le32toh(entry->valid);
			flash->segments[i].erases = le32toh(entry->erases);
		}
	}
}

static bool table_is_sound(const struct flash *flash, const struct flash_table_entry *entries)
{
	for (uint32_t i = 0; i < FLASH_TABLE_ENTRIES; i++) {
		if (le32toh(entries[i].valid) > flash->anchor.geometry.segment_blocks ||
			le64toh(entries[i].stamp) > flash->anchor.clock) {
			return false;
		}
	}
	return true;
}

/* Guesses values for segments whose table page is damaged: their data is new, and their erase count
 * is the mean. */
static void guess_table(struct flash *flash, struct flash_seen *seen, uint32_t first)
{
	uint32_t count = flash->anchor.geometry.segment_count;
	uint32_t end = MIN(first + FLASH_TABLE_ENTRIES, count);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++) {
		sum += flash_is_avoided(flash, i) ? 0 : flash->segments[i].erases;
	}
	for (uint32_t i = first; i < end; i++) {
		seen[i].stamp = flash->anchor.clock;
		flash->segments[i].erases = (uint32_t)(sum / count);
	}
}

/* Returns the counter of the tree's live blocks in a segment. */
static uint32_t *valid_of(
	struct flash *flash, uint32_t tree, struct flash_seen *seen, uint32_t segment)
{
	return tree == 0 ? &seen[segment].valid
			 : &flash->segments[segment].snapshot_valid[tree - 1];
}

/* Counts the blocks of each segment that the pages of a tree refer to. Returns -EUCLEAN if a page
 * is damaged; the others are counted. */
static int count_table(struct flash *flash, uint32_t tree, struct flash_seen *seen)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	struct flash_node node;
	int all = 0;

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		*valid_of(flash, tree, seen, i) = 0;
	}
	for (uint32_t i = 0; i < geometry->leaf_count; i++) {
		uint32_t page = tree * geometry->page_count + i;
		/* A page that is in memory now was reconstructed by a rebuild. */
		const struct flash_slot *slot = flash_map_find(flash, page);
		int result = slot != NULL
				     ? 0
				     : flash_node_read(flash, flash_page_entry(flash, page), &node);

		if (slot != NULL) {
			node = *slot->node;
		}
		if (result < 0 || !flash_page_is_sound(flash, i, &node)) {
			all = -EUCLEAN;
			if (tree == 0) {
				flash_hole_add(&flash->damage.holes, i);
			}
			continue;
		}
		for (uint32_t k = 0; k < FLASH_NODE_ENTRIES; k++) {
			uint32_t block = le32toh(node.entries[k].block);

			if (block != 0) {
				(*valid_of(flash, tree, seen, flash_segment_of(geometry, block)))++;
			}
		}
	}
	memset(flash->map.trees[tree].table_dirty, true,
		geometry->page_count - geometry->leaf_count);
	return all;
}

bool flash_page_is_sound(const struct flash *flash, uint32_t index, const struct flash_node *node)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint64_t last = geometry->disk_blocks - (uint64_t)index * FLASH_NODE_ENTRIES;

	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		uint32_t block = le32toh(node->entries[i].block);

		if (block != 0 && (i >= last || !flash_is_in_segment(geometry, block))) {
			return false;
		}
	}
	return true;
}

int flash_table_read(struct flash *flash, uint32_t tree, struct flash_seen *seen)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	bool is_counted = tree == 0 && (flash->damage.repairs & STORE_REPAIR_MAP) != 0;

	for (uint32_t first = 0; first < geometry->segment_count; first += FLASH_TABLE_ENTRIES) {
		struct flash_table_entry entries[FLASH_TABLE_ENTRIES];
		uint32_t index = geometry->leaf_count + first / FLASH_TABLE_ENTRIES;

		if (flash_node_read(flash, flash->map.trees[tree].levels[0][index], entries) == 0 &&
			table_is_sound(flash, entries)) {
			take_table(flash, tree, seen, first, entries);
			continue;
		}
		flash->damage.is_table_damaged = true;
		is_counted = true;
		if (tree == 0) {
			guess_table(flash, seen, first);
		}
	}
	if (!is_counted) {
		return 0;
	}
	/* A read-only store needs no counts. Its start would have to read the whole map for
	 * them. */
	return tree == 0 && flash->is_read_only ? 0 : count_table(flash, tree, seen);
}

uint32_t flash_tree_single(struct flash *flash, uint32_t number)
{
	const struct flash_tree *tree = &flash->map.trees[number];
	const struct flash_tree *disk = &flash->map.trees[0];
	struct flash_node node;
	uint32_t count = 0;

	for (uint32_t level = 1; level < FLASH_LEVELS; level++) {
		for (uint32_t i = 0; i < flash->anchor.geometry.node_counts[level]; i++) {
			struct flash_entry at = tree->levels[level][i];

			if (at.block != 0 &&
				(number == 0 || at.block != disk->levels[level][i].block)) {
				count += (flash_node_read(flash, at, &node) == 0) !=
					 (flash_twin_read(flash, at, &node) == 0);
			}
		}
	}
	return count;
}

/* --- messages -------------------------------------------------------------------------------- */

static void tell_holes(const struct flash *flash, const struct flash_holes *holes, const char *what)
{
	char hole[FLASH_HOLE_TEXT_BYTES];

	for (uint32_t i = 0; flash_hole_text(flash, holes, i, hole, sizeof(hole)); i++) {
		log_warning("flash store '%s': %s %s", flash->path, hole, what);
	}
}

bool flash_has_loss(const struct flash *flash)
{
	return flash->damage.lost_records > 0 || flash->damage.lost_error < 0;
}

void flash_loss_text(const struct flash *flash, char *text, size_t bytes)
{
	char where[FLASH_LOSS_TEXT_BYTES / 2];

	snprintf(where, sizeof(where), "%s at byte %llu%s%s%s",
		flash->damage.lost_error < 0 ? "cannot be read" : "is damaged",
		(unsigned long long)flash->damage.lost_at, flash->damage.lost_error < 0 ? " (" : "",
		flash->damage.lost_error < 0 ? strerror(-flash->damage.lost_error) : "",
		flash->damage.lost_error < 0 ? ")" : "");
	if (flash->damage.lost_records > 0) {
		snprintf(text, bytes, "%s: %llu %s from there on are lost", where,
			(unsigned long long)flash->damage.lost_records,
			flash->damage.dropped_end > 0 ? "records that could not be written"
						      : "flushed records");
	} else {
		snprintf(text, bytes,
			"%s: the records from there on are lost, unless its server ended "
			"before it wrote them",
			where);
	}
}

void flash_damage_tell(const struct flash *flash)
{
	char loss[FLASH_LOSS_TEXT_BYTES];

	if (flash->damage.twins_used > 0) {
		log_warning("flash store '%s': %u nodes of its map are damaged; their second "
			    "copies are used%s",
			flash->path, flash->damage.twins_used,
			flash->is_read_only ? "" : ", and both copies are written again");
	}
	if (flash->damage.is_table_damaged) {
		log_warning("flash store '%s': its segment table is damaged%s", flash->path,
			flash->is_read_only ? "" : "; it was restored from the map");
	}
	if (flash_has_loss(flash)) {
		flash_loss_text(flash, loss, sizeof(loss));
		log_warning("flash store '%s': its log %s; %s", flash->path, loss,
			flash->is_read_only ? "the store is served as it was before these records"
					    : "the store is served without these records, as "
					      "requested");
	}
	tell_holes(flash, &flash->damage.holes,
		"cannot be read because their part of the map is lost; 'gmblock check --rebuild' "
		"restores it from the log");
	if (flash->damage.linked_pages > 0) {
		log_info("flash store '%s': %u lost pages of its map were found again; a page that "
			 "was entirely trimmed or zeroed later might have older contents",
			flash->path, flash->damage.linked_pages);
	}
	tell_holes(flash, &flash->damage.patched,
		"were restored from later changes: parts that were trimmed or zeroed later might "
		"have older contents");
	tell_holes(flash, &flash->damage.emptied, "are not in the log: they read as zeroes");
}
