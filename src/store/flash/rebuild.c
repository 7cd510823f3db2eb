// SPDX-License-Identifier: Apache-2.0
/*
 * Reconstructing pages of the map that are lost or damaged, from the headers of records. A header
 * contains which of its blocks are images of map pages, as checkpoints wrote them, and which are
 * blocks of the disk.
 *
 *   lost pages ─▶ all headers ─▶ the last valid image of each ─▶ no change since: linked again
 *                                └▶ and all changes since ─▶ reconstructed in memory
 *
 * Only records before the checkpoint, and the nodes of the checkpoint, are used; later records are
 * replayed as usual. Records after the end of the log of an older run are invalid. The records of
 * the next run contain that end. If no such record is left, records with missing blocks are treated
 * as invalid instead. Trims and zeroes leave no trace if the segment with their record has been
 * reused. So a page that is reconstructed from an image other than the last one can have older
 * contents in trimmed or zeroed parts, and is reported.
 *
 * Invariant: an intact page is never changed. All functions block, and run on a thread that has the
 * store to itself.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "store/flash/flash.h"

#define NO_PAGE UINT32_MAX

/* State of a lost map page, collected from the record headers. */
struct lost {
	uint32_t page;
	/* The newest image of the page contains all changes of records before this one; 0: no image
	 * was found. */
	uint64_t newest_seq;
	uint64_t whole_seq; /* like newest_seq, for the newest undamaged image */
	uint32_t whole_moves;
	struct flash_entry whole;
};

/* A change of a page that must be reconstructed. */
struct change {
	uint64_t seq;
	uint64_t base;
	uint64_t lpn;
	uint32_t number; /* index of the entry in its record */
	uint32_t lost;	 /* index of the page in `lost` */
	uint32_t block;
	uint32_t source;
	uint32_t crc;
	uint32_t moves;
	uint8_t kind;
};

/* The end of one run's log. */
struct run {
	uint64_t number;
	uint64_t end;
};

struct rebuild {
	struct flash *flash;
	struct lost *lost;
	uint32_t lost_count;
	uint32_t *index; /* index in `lost` of each page, or NO_PAGE */
	struct run *runs;
	size_t run_count;
	struct change *changes;
	size_t change_count;
	size_t change_max;
	uint8_t *block;
	struct flash_record record;
	int (*visit)(struct rebuild *rebuild);
};

/* True if the record is after the end of its run's log. The end is known if the next run
 * has written a record. */
static bool is_void(const struct rebuild *rebuild, uint64_t seq)
{
	for (size_t i = 0; i < rebuild->run_count; i++) {
		if (rebuild->runs[i].number == seq >> FLASH_SEQ_SHIFT) {
			return seq >= rebuild->runs[i].end;
		}
	}
	return false;
}

/* True if it is known where the run's log ends: a header of the next run contains its end, or it is
 * the last run, whose log is replayed. */
static bool is_end_known(const struct rebuild *rebuild, uint64_t seq)
{
	uint64_t number = seq >> FLASH_SEQ_SHIFT;

	for (size_t i = 0; i < rebuild->run_count; i++) {
		if (rebuild->runs[i].number == number) {
			return true;
		}
	}
	return number == rebuild->flash->anchor.next.seq >> FLASH_SEQ_SHIFT;
}

/* True if some blocks of the record are missing: a crash has cut it off, and the later headers that
 * would show this have been overwritten. */
static bool is_torn(const struct rebuild *rebuild)
{
	const struct flash_record *record = &rebuild->record;
	uint32_t block = record->at + 1;
	struct flash_node bytes;

	if (is_end_known(rebuild, record->seq)) {
		return false;
	}
	for (uint32_t i = 0; i < record->entry_count; i++) {
		struct flash_entry at = { htole32(block), htole32(record->entries[i].crc) };

		if (!flash_kind_has_block(record->entries[i].kind)) {
			continue;
		}
		if (flash_node_read(rebuild->flash, at, &bytes) < 0) {
			return true;
		}
		block++;
	}
	return false;
}

/* --- headers --------------------------------------------------------------------------------- */

/* True if the record was written before the checkpoint, or may contain nodes of the checkpoint. */
static bool is_before(const struct flash *flash, const struct flash_record *record)
{
	return record->seq < flash->anchor.next.seq ||
	       (record->nodes_at > 0 && record->nodes_at <= flash->anchor.next.seq);
}

/* Visits the records of a segment. If a block is not the expected header, the following
 * blocks are searched. */
static int visit_segment(struct rebuild *rebuild, uint32_t segment)
{
	struct flash *flash = rebuild->flash;
	uint32_t blocks = flash->anchor.geometry.segment_blocks;
	uint32_t first = flash_segment_at(&flash->anchor.geometry, segment);

	for (uint32_t at = 0; at < blocks;) {
		int result = flash_read(flash, first + at, 1, rebuild->block);

		/* A client's block can look like a header, but it does not contain its own
		 * position. */
		if (result < 0 ||
			!flash_record_look(rebuild->block, &flash->anchor, &rebuild->record) ||
			rebuild->record.at != first + at ||
			rebuild->record.block_count > blocks - at) {
			at++;
			continue;
		}
		if (is_before(flash, &rebuild->record)) {
			result = rebuild->visit(rebuild);
			if (result < 0) {
				return result;
			}
		}
		at += rebuild->record.block_count;
	}
	return 0;
}

static int visit_all(struct rebuild *rebuild, int (*visit)(struct rebuild *rebuild))
{
	rebuild->visit = visit;
	for (uint32_t i = 0; i < rebuild->flash->anchor.geometry.segment_count; i++) {
		int result = visit_segment(rebuild, i);

		if (result < 0) {
			return result;
		}
	}
	return 0;
}

/* Collects the ends of runs: each record contains the end of the previous run. */
static int find_run(struct rebuild *rebuild)
{
	uint64_t before = rebuild->record.before;
	struct run *runs = rebuild->runs;

	for (size_t i = 0; i < rebuild->run_count; i++) {
		if (runs[i].number == before >> FLASH_SEQ_SHIFT) {
			return 0;
		}
	}
	runs = realloc(runs, (rebuild->run_count + 1) * sizeof(*runs));
	if (runs == NULL) {
		return -ENOMEM;
	}
	rebuild->runs = runs;
	runs[rebuild->run_count++] = (struct run){ before >> FLASH_SEQ_SHIFT, before };
	return 0;
}

/* --- images ---------------------------------------------------------------------------------- */

/* Returns whether one image of a page is older than another. Two images with the same number are
 * from the same checkpoint, which writes each page once: the one with more moves was written again,
 * after a write of the other had failed. */
static bool is_older(uint64_t seq, uint32_t moves, uint64_t than_seq, uint32_t than_moves)
{
	return seq != than_seq ? seq < than_seq : moves < than_moves;
}

static void take_image(struct rebuild *rebuild, struct lost *lost,
	const struct flash_record_entry *entry, uint32_t block)
{
	struct flash_entry at = { htole32(block), htole32(entry->crc) };
	struct flash_node node;
	/* Headers of older format versions lack nodes_at, so it is 0. The programs that wrote them
	 * appended no changes between the nodes of a checkpoint, so the record's own number is
	 * right. */
	uint64_t seq =
		rebuild->record.nodes_at > 0 ? rebuild->record.nodes_at : rebuild->record.seq;

	lost->newest_seq = MAX(lost->newest_seq, seq);
	if (!is_older(seq, rebuild->record.moves, lost->whole_seq, lost->whole_moves) &&
		flash_node_read(rebuild->flash, at, &node) == 0 &&
		flash_page_is_sound(rebuild->flash, lost->page, &node)) {
		lost->whole_seq = seq;
		lost->whole_moves = rebuild->record.moves;
		lost->whole = at;
	}
}

/* Finds the newest image of each lost page, and the newest undamaged one. */
static int find_images(struct rebuild *rebuild)
{
	const struct flash_record *record = &rebuild->record;
	uint32_t block = record->at + 1;

	for (uint32_t i = 0; i < record->entry_count && !is_void(rebuild, record->seq); i++) {
		const struct flash_record_entry *entry = &record->entries[i];

		if (entry->kind == FLASH_NODE && entry->source == 0 &&
			entry->lpn < rebuild->flash->anchor.geometry.leaf_count &&
			rebuild->index[entry->lpn] != NO_PAGE) {
			take_image(
				rebuild, &rebuild->lost[rebuild->index[entry->lpn]], entry, block);
		}
		block += flash_kind_has_block(entry->kind);
	}
	return 0;
}

/* --- changes --------------------------------------------------------------------------------- */

static bool rebuild_is_whole(const struct lost *lost)
{
	return lost->newest_seq > 0 && lost->whole_seq == lost->newest_seq;
}

static int add_change(struct rebuild *rebuild, const struct change *change)
{
	if (rebuild->change_count == rebuild->change_max) {
		size_t max = MAX(rebuild->change_max * 2, (size_t)4096);
		struct change *changes = realloc(rebuild->changes, max * sizeof(*changes));

		if (changes == NULL) {
			return -ENOMEM;
		}
		rebuild->changes = changes;
		rebuild->change_max = max;
	}
	rebuild->changes[rebuild->change_count++] = *change;
	return 0;
}

/* Collects the changes of lost pages since their images. FLASH_KEPT entries are skipped, because
 * only snapshots have their blocks. */
static int find_changes(struct rebuild *rebuild)
{
	const struct flash_record *record = &rebuild->record;
	uint32_t block = record->at + 1;
	bool is_looked_at = false;

	if (record->seq >= rebuild->flash->anchor.next.seq) {
		return 0; /* the replay applies this record */
	}
	for (uint32_t i = 0; i < record->entry_count && !is_void(rebuild, record->seq); i++) {
		const struct flash_record_entry *entry = &record->entries[i];
		uint32_t lost = flash_kind_is_node(entry->kind) || entry->kind == FLASH_KEPT
					? NO_PAGE
					: rebuild->index[entry->lpn / FLASH_NODE_ENTRIES];

		if (lost != NO_PAGE && record->seq >= rebuild->lost[lost].whole_seq) {
			int result;

			if (!is_looked_at && is_torn(rebuild)) {
				return 0;
			}
			is_looked_at = true;
			result = add_change(rebuild, &(struct change){ .seq = record->seq,
							     .base = record->base,
							     .lpn = entry->lpn,
							     .number = i,
							     .lost = lost,
							     .block = block,
							     .source = entry->source,
							     .crc = entry->crc,
							     .moves = record->moves,
							     .kind = entry->kind });

			if (result < 0) {
				return result;
			}
		}
		block += flash_kind_has_block(entry->kind);
	}
	return 0;
}

/* Sorts by page, then in log order. Of two records with the same number, the valid one (more moves)
 * is first. */
static int rebuild_compare(const void *a, const void *b)
{
	const struct change *one = a;
	const struct change *other = b;

	if (one->lost != other->lost) {
		return one->lost < other->lost ? -1 : 1;
	}
	if (one->seq != other->seq) {
		return one->seq < other->seq ? -1 : 1;
	}
	if (one->moves != other->moves) {
		return one->moves > other->moves ? -1 : 1;
	}
	return one->number < other->number ? -1 : one->number > other->number;
}

/* Applies a change to a page that is being reconstructed. A block that garbage collection has moved
 * (FLASH_COPY) existed at the checkpoint before the record (change->base). So an entry that was not
 * changed since that checkpoint gets the new position. An entry that was changed since gets it only
 * if it still refers to the old position. */
static void rebuild_apply(
	struct flash_node *node, uint64_t seqs[FLASH_NODE_ENTRIES], const struct change *change)
{
	uint32_t first = (uint32_t)(change->lpn % FLASH_NODE_ENTRIES);
	uint32_t count = change->kind == FLASH_TRIM ? change->source : 1;

	if (change->kind == FLASH_COPY && seqs[first] >= change->base &&
		le32toh(node->entries[first].block) != change->source) {
		return;
	}
	for (uint32_t i = first; i < first + count; i++) {
		node->entries[i] = (struct flash_entry){ 0 };
		seqs[i] = change->seq;
	}
	if (change->kind != FLASH_TRIM) {
		node->entries[first] =
			(struct flash_entry){ htole32(change->block), htole32(change->crc) };
	}
}

/* Clears the entries that come from the image, not from a later change, and whose blocks do not
 * match their checksums: since an old image was written, its blocks could have been reused. */
static void drop_stale(struct flash *flash, struct flash_node *node,
	const uint64_t seqs[FLASH_NODE_ENTRIES], uint64_t image)
{
	struct flash_node block;

	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		if (seqs[i] == image && flash_node_read(flash, node->entries[i], &block) < 0) {
			node->entries[i] = (struct flash_entry){ 0 };
		}
	}
}

/* Reconstructs a page in memory. The next checkpoint writes it. */
static int put_together(
	struct rebuild *rebuild, uint32_t number, const struct change *changes, size_t count)
{
	struct flash *flash = rebuild->flash;
	const struct lost *lost = &rebuild->lost[number];
	struct flash_slot *slot = flash_map_take(flash, lost->page);
	const struct change *record = changes; /* first change of the current record */
	uint64_t seqs[FLASH_NODE_ENTRIES];
	/* Number of the last record whose changes the image contains. */
	uint64_t image = lost->whole_seq - (lost->whole_seq > 0);

	if (slot == NULL || !flash_map_dirty(flash, slot)) {
		return -EFBIG;
	}
	if (lost->whole_seq > 0 && flash_node_read(flash, lost->whole, slot->node) < 0) {
		return -EIO;
	}
	for (uint32_t i = 0; i < FLASH_NODE_ENTRIES; i++) {
		seqs[i] = image;
	}
	for (size_t i = 0; i < count; i++) {
		if (changes[i].seq != record->seq) {
			record = &changes[i];
		}
		/* Skips records with the same number but fewer moves: after a failed write of such
		 * a record, its changes were written again. */
		if (changes[i].moves == record->moves) {
			rebuild_apply(slot->node, seqs, &changes[i]);
		}
	}
	flash->map.trees[0].levels[0][lost->page] = (struct flash_entry){ 0 };
	/* The newest image was damaged or not found, so changes that only it contained might be
	 * missing. */
	if (!rebuild_is_whole(lost)) {
		drop_stale(flash, slot->node, seqs, image);
		flash_hole_add(&flash->damage.patched, lost->page);
	}
	return 0;
}

/* --- all of it ------------------------------------------------------------------------------- */

static bool is_lost(struct flash *flash, uint32_t page)
{
	struct flash_node node;

	return flash_node_read(flash, flash_page_entry(flash, page), &node) < 0 ||
	       !flash_page_is_sound(flash, page, &node);
}

static int find_lost(struct rebuild *rebuild)
{
	uint32_t leaf_count = rebuild->flash->anchor.geometry.leaf_count;

	rebuild->index = malloc(leaf_count * sizeof(*rebuild->index));
	rebuild->lost = malloc(leaf_count * sizeof(*rebuild->lost));
	rebuild->block = malloc(FLASH_BLOCK_BYTES);
	if (rebuild->index == NULL || rebuild->lost == NULL || rebuild->block == NULL) {
		return -ENOMEM;
	}
	for (uint32_t page = 0; page < leaf_count; page++) {
		rebuild->index[page] = NO_PAGE;
		if (is_lost(rebuild->flash, page)) {
			rebuild->index[page] = rebuild->lost_count;
			rebuild->lost[rebuild->lost_count++] = (struct lost){ .page = page };
		}
	}
	return 0;
}

/* Links or reconstructs each lost page. The level 1 node above it is written again. */
static int fill(struct rebuild *rebuild)
{
	struct flash *flash = rebuild->flash;
	struct flash_tree *tree = &flash->map.trees[0];
	size_t at = 0;

	if (rebuild->change_count > 0) { /* without changes there is no array */
		qsort(rebuild->changes, rebuild->change_count, sizeof(*rebuild->changes),
			rebuild_compare);
	}
	for (uint32_t i = 0; i < rebuild->lost_count; i++) {
		const struct lost *lost = &rebuild->lost[i];
		size_t first = at;
		int result = 0;

		while (at < rebuild->change_count && rebuild->changes[at].lost == i) {
			at++;
		}
		tree->dirty[1][lost->page / FLASH_NODE_ENTRIES] = true;
		if (rebuild_is_whole(lost) && at == first) {
			tree->levels[0][lost->page] = lost->whole;
			flash->damage.linked_pages++;
		} else if (lost->whole_seq > 0 || at > first) {
			result = put_together(rebuild, i, rebuild->changes + first, at - first);
		} else { /* the page was never written, or all traces are lost */
			tree->levels[0][lost->page] = (struct flash_entry){ 0 };
			flash_hole_add(&flash->damage.emptied, lost->page);
		}
		if (result < 0) {
			return result;
		}
	}
	return 0;
}

int flash_rebuild(struct flash *flash)
{
	struct rebuild rebuild = { .flash = flash };
	int result = find_lost(&rebuild);

	if (result == 0 && rebuild.lost_count > 0) {
		result = visit_all(&rebuild, find_run);
	}
	if (result == 0 && rebuild.lost_count > 0) {
		result = visit_all(&rebuild, find_images);
	}
	if (result == 0 && rebuild.lost_count > 0) {
		result = visit_all(&rebuild, find_changes);
	}
	if (result == 0) {
		result = fill(&rebuild);
		flash->damage.holes = (struct flash_holes){ 0 };
	}
	free(rebuild.changes);
	free(rebuild.runs);
	free(rebuild.lost);
	free(rebuild.index);
	free(rebuild.block);
	return result;
}
