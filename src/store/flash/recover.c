// SPDX-License-Identifier: Apache-2.0
/*
 * Opening a store: the anchor, the nodes it refers to, and the log after the checkpoint.
 *
 *   anchors ─▶ tree and segment table of the disk, of each snapshot ─▶ replay ─▶ end of the log
 *          ─▶ states of segments ─▶ position for the log of this run
 *
 * Invariants: a record is applied only if it and all earlier ones are whole, so the map is that of
 * a prefix of the log. The log of this run never continues after the old end: it begins in a free
 * segment with numbers of a new run, so that remains of the old log cannot become part of it.
 *
 * All functions block, and run on a thread that has the store to itself.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "disk/disk.h"
#include "store/flash/flash.h"

enum {
	/* A header is read together with the blocks after it, unless the records are large: at
	 * least SPARSE_BLOCKS blocks, or 1 / SPARSE_PART of a segment. */
	SPARSE_BLOCKS = 64,
	SPARSE_PART = 4,
	/* Approximate limit of the log to replay. A checkpoint begins after FLASH_LOG_BLOCKS, and
	 * the log can grow by the same amount until the checkpoint is complete. */
	LOG_BLOCKS = 2 * FLASH_LOG_BLOCKS,
	/* number of log blocks read between two progress messages */
	TELL_BLOCKS = 1 << 15,
	AHEAD_BLOCKS = FLASH_RECORD_ENTRIES + 1, /* capacity of flash->record_bytes */
	DURABLE_TRIES_MAX = 3, /* maximum number of attempts to make the log durable */
};

/* --- anchors --------------------------------------------------------------------------------- */

/* Checks that the device has the size, or the zones, that the store was created for. */
static int check_device(const struct flash *flash, struct error *error)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint64_t bytes = flash_device_blocks(geometry) << FLASH_BLOCK_SHIFT;
	const char *path = flash->path;
	uint64_t size;
	int result = disk_size(flash->fd, &size);

	if (flash_has_zones(flash) &&
		(geometry->segment_blocks != flash->zones.capacity ||
			geometry->segment_count + FLASH_ANCHORS > flash->zones.count)) {
		return error_set(error, -EINVAL,
			"the flash store on '%s' was created for %u zones with a capacity of %u "
			"KiB each, but the device has %u with %u KiB",
			path, geometry->segment_count + FLASH_ANCHORS, geometry->segment_blocks * 4,
			flash->zones.count, flash->zones.capacity * 4);
	}
	if (result < 0) {
		return error_set(error, result, "cannot examine '%s': %s", path, strerror(-result));
	}
	if (size < bytes && !flash_has_zones(flash)) {
		return error_set(error, -EINVAL,
			"'%s' has become smaller: it has %llu bytes, but the flash store on it "
			"needs %llu; restore the missing part",
			path, (unsigned long long)size, (unsigned long long)bytes);
	}
	return 0;
}

/* Decodes an anchor and checks its zone size. A copy of a zoned device on another device can
 * contain old anchors, which must not be used. */
static int decode_anchor(const struct flash *flash, const uint8_t block[FLASH_BLOCK_BYTES],
	struct flash_anchor *anchor, struct error *error)
{
	int result = flash_anchor_decode(block, anchor, error);

	if (result == 0 &&
		(uint64_t)anchor->zone_blocks << FLASH_BLOCK_SHIFT != flash->zones.bytes) {
		result = error_set(error, -EINVAL,
			"belongs to a device with zones of %llu KiB (0 means no zones)",
			(unsigned long long)anchor->zone_blocks * 4);
	}
	return result;
}

int flash_anchors_read(struct flash *flash, int fd, struct error *error)
{
	struct flash_anchor *anchor = &flash->anchor;
	const char *path = flash->path;
	uint8_t block[FLASH_BLOCK_BYTES] __attribute__((aligned(FLASH_BLOCK_BYTES)));
	struct error faults[FLASH_ANCHORS];
	uint64_t size;
	uint32_t good = 0;
	uint32_t ours = 0;
	int result = disk_size(fd, &size);

	for (uint32_t i = 0; i < FLASH_ANCHORS && result == 0 && size >= sizeof(block) * 2; i++) {
		struct flash_anchor found;

		result = flash_anchor_read(fd, &flash->zones, i, block);
		/* read again: a direct read may report the error of an earlier write */
		if (result == -EIO) {
			result = flash_anchor_read(fd, &flash->zones, i, block);
		}
		if (result == -EIO) { /* the other anchor might be valid */
			ours++;
			(void)error_set(&faults[i], result, "cannot be read");
			result = 0;
			continue;
		}
		ours += flash_anchor_is_ours(block);
		if (result == 0 && decode_anchor(flash, block, &found, &faults[i]) == 0) {
			if (good == 0 || found.serial > anchor->serial) {
				*anchor = found;
				flash->good_anchor = i;
			}
			good++;
		}
	}
	if (result < 0) {
		return error_set(error, result, "cannot read '%s': %s", path, strerror(-result));
	}
	/* A damaged or unreadable anchor, which counts in `ours`, shows that there is a store. */
	if (good == 0 && ours == 0) {
		return error_set(error, -EINVAL,
			"'%s' has no flash store; create one with 'gmblock create'", path);
	}
	if (good == 0) {
		return error_set(error, -EINVAL,
			"the flash store on '%s' cannot be opened: anchor A %s, anchor B %s", path,
			faults[0].text, faults[1].text);
	}
	return check_device(flash, error);
}

/* --- the log --------------------------------------------------------------------------------- */

struct replay {
	struct flash *flash;
	uint8_t *bytes; /* room for AHEAD_BLOCKS blocks */
	/* reads through flash->disk_fd, past the page cache if that is possible */
	bool reads_disk;
	struct flash_seen *seen;
	struct flash_position at;
	struct flash_position next;
	struct flash_record record;
	uint64_t durable; /* largest `durable` of the records examined so far */
	bool has_looked;  /* all later records have been examined */
	uint64_t clock;
	/* position of a record before which all records are durable, see find_durable() */
	struct flash_position sure;
	/* Range of device blocks in `bytes`, empty at first. */
	uint32_t first;
	uint32_t count;
	/* Decaying maximum of the sizes of recent records, in blocks. */
	uint32_t usual;
	uint64_t blocks; /* number of log blocks read so far */
	/* End of a range with an unreadable block, without readahead. */
	uint32_t slow_end;
};

/* Continues at this position, or in another segment if the anchor has a detour for its record. */
static void go_to(struct replay *replay, const struct flash_position *position)
{
	replay->at = *position;
	flash_detour_follow(&replay->flash->anchor, &replay->at);
}

static uint32_t replay_block(const struct replay *replay)
{
	return flash_segment_at(&replay->flash->anchor.geometry, replay->at.segment) +
	       replay->at.block;
}

static int replay_read(const struct replay *replay, uint32_t block, uint32_t count, uint8_t *bytes)
{
	struct flash *flash = replay->flash;

	return replay->reads_disk
		       ? disk_read(flash->disk_fd, bytes, (size_t)count * FLASH_BLOCK_BYTES,
				 flash_block_offset(flash, block))
		       : flash_read(flash, block, count, bytes);
}

/* Stores in *bytes_out the address of count blocks of the log, valid until the next call. Blocks
 * that are in memory are not read again. If some must be read, the function reads up to ahead_count
 * blocks in total, but only `count` where reading ahead has failed. 0 < count <= ahead_count <=
 * AHEAD_BLOCKS. */
static int read_log(struct replay *replay, uint32_t block, uint32_t count, uint32_t ahead_count,
	const uint8_t **bytes_out)
{
	uint8_t *bytes = replay->bytes;
	uint32_t end = replay->first + replay->count;
	uint32_t kept = block >= replay->first && block < end ? end - block : 0;
	uint8_t *at = bytes + (kept == 0 ? 0 : (size_t)(block - replay->first) * FLASH_BLOCK_BYTES);
	int result;

	*bytes_out = at;
	if (kept >= count) {
		return 0;
	}
	*bytes_out = bytes;
	memmove(bytes, at, (size_t)kept * FLASH_BLOCK_BYTES);
	replay->first = block;
	replay->count = kept;
	if (block < replay->slow_end && replay->slow_end - block <= AHEAD_BLOCKS) {
		ahead_count = count;
	}
	at = bytes + (size_t)kept * FLASH_BLOCK_BYTES;
	result = replay_read(replay, block + kept, ahead_count - kept, at);
	if (result < 0 && ahead_count > count) {
		replay->slow_end = block + ahead_count;
		ahead_count = count;
		result = replay_read(replay, block + kept, count - kept, at);
	}
	if (result == 0) {
		replay->count = ahead_count;
	}
	return result;
}

/* Returns the number of blocks that can be read together, from the current record on. */
static uint32_t ahead(const struct replay *replay)
{
	return MIN(replay->flash->anchor.geometry.segment_blocks - replay->at.block,
		(uint32_t)AHEAD_BLOCKS);
}

/* True if it is cheaper to read only the needed parts of a record of this many blocks than all of
 * it. */
static bool is_large(const struct replay *replay, uint32_t blocks)
{
	return blocks >= MIN(replay->flash->anchor.geometry.segment_blocks / SPARSE_PART,
				 (uint32_t)SPARSE_BLOCKS);
}

/* True if the record is not known to be durable, so that it may be incomplete. */
static bool is_doubtful(const struct replay *replay)
{
	return replay->at.seq >= replay->durable;
}

/* Returns 1 if there is a record, 0 if the log ends. */
static int read_record(struct replay *replay)
{
	uint32_t ahead_count = ahead(replay);
	const uint8_t *block;
	int result;

	/* If the records are large, there is no readahead: only the header is read, or the whole
	 * record if its blocks will be checked because the record may be incomplete. */
	if (is_large(replay, replay->usual)) {
		ahead_count = replay->has_looked && is_doubtful(replay)
				      ? MIN(ahead_count, replay->usual)
				      : 1;
	}
	result = read_log(replay, replay_block(replay), 1, ahead_count, &block);
	if (result < 0) {
		return result;
	}
	if (!flash_record_decode(
		    block, &replay->flash->anchor, &replay->at, &replay->record, &replay->next)) {
		return 0;
	}
	replay->usual = MAX(replay->usual / 2, replay->record.block_count);
	return 1;
}

/* Returns whether all blocks of the record have their checksums. */
static bool blocks_match(const struct flash_record *record, const uint8_t *bytes)
{
	for (uint32_t i = 0; i < record->entry_count; i++) {
		const struct flash_record_entry *entry = &record->entries[i];

		if (flash_kind_has_block(entry->kind)) {
			if (crc32c(0, bytes, FLASH_BLOCK_BYTES) != entry->crc) {
				return false;
			}
			bytes += FLASH_BLOCK_BYTES;
		}
	}
	return true;
}

/* Returns 1 if all blocks of the record have their checksums, 0 if not. */
static int check_blocks(struct replay *replay)
{
	uint32_t count = replay->record.block_count - 1;
	const uint8_t *bytes = NULL;
	uint32_t ahead_count =
		is_large(replay, replay->record.block_count) ? count : ahead(replay) - 1;
	int result =
		count == 0 ? 0
			   : read_log(replay, replay_block(replay) + 1, count, ahead_count, &bytes);

	return result < 0 ? result : blocks_match(&replay->record, bytes);
}

/* Returns the map page after marking it dirty. Returns -ENODATA if it is damaged. */
static int load_page(struct flash *flash, uint32_t page, struct flash_slot **slot_out)
{
	struct flash_slot *slot = flash_map_find(flash, page);
	int result = 0;

	if (slot == NULL) {
		slot = flash_map_take(flash, page);
		if (slot == NULL) {
			return -EUCLEAN;
		}
		result = flash_node_read(flash, flash_page_entry(flash, page), slot->node);
		if (result < 0 || !flash_page_is_sound(flash, page, slot->node)) {
			flash_map_release(flash, slot);
			flash_hole_add(&flash->damage.holes, page);
			return -ENODATA;
		}
	}
	if (result == 0 && !flash_map_dirty(flash, slot)) {
		result = -EUCLEAN; /* an intact log changes fewer pages between checkpoints */
	}
	*slot_out = slot;
	return result;
}

/* Updates the count of live blocks of the segment. */
static void count_block(struct replay *replay, uint32_t block, bool lives)
{
	uint32_t segment = flash_segment_of(&replay->flash->anchor.geometry, block);
	struct flash_seen *seen = &replay->seen[segment];

	replay->flash->map.trees[0].table_dirty[segment / FLASH_TABLE_ENTRIES] = true;
	if (lives) {
		seen->valid++;
		seen->stamp = replay->clock;
	} else if (seen->valid >
		   0) { /* valid is 0: the segment table is wrong; a check reports that */
		seen->valid--;
	}
}

/* Applies an entry of a replayed record to the map of the disk, like flash_map_apply(). The maps of
 * snapshots do not change: until the next checkpoint, the blocks that garbage collection has moved
 * are also in their old place. */
static int apply_entry(
	struct replay *replay, const struct flash_record_entry *entry, uint32_t block)
{
	struct flash_entry *at;
	struct flash_slot *slot;
	uint32_t count = entry->kind == FLASH_TRIM ? entry->source : 1;
	int result;

	if (flash_kind_is_node(entry->kind)) {
		return 0; /* the node's checkpoint was not completed */
	}
	result = load_page(replay->flash, flash_page_of(replay->flash, 0, entry->lpn), &slot);
	if (result == -ENODATA) { /* the page is a hole, which only a read-only store accepts */
		return replay->flash->is_read_only ? 0 : -EUCLEAN;
	}
	if (result < 0) {
		return result;
	}
	/* The cached page of the block is obsolete if its stamp is not later than this record. */
	if (!flash_kind_is_copy(entry->kind)) {
		flash_cache_replayed(replay->flash, entry->lpn, count, replay->record.seq);
	}
	at = &slot->node->entries[entry->lpn % FLASH_NODE_ENTRIES];
	if (flash_kind_is_copy(entry->kind) && le32toh(at->block) != entry->source) {
		return 0;
	}
	/* Only new data of clients advances the clock; garbage collection does not. */
	replay->clock += entry->kind == FLASH_DATA && entry->source == 0;
	for (uint32_t i = 0; i < count; i++) {
		if (at[i].block != 0) {
			count_block(replay, le32toh(at[i].block), false);
		}
		at[i] = (struct flash_entry){ 0 };
	}
	if (entry->kind != FLASH_TRIM) {
		count_block(replay, block, true);
		*at = (struct flash_entry){ htole32(block), htole32(entry->crc) };
	}
	return 0;
}

static int apply_record(struct replay *replay)
{
	uint32_t block = replay_block(replay) + 1;
	int result = 0;

	for (uint32_t i = 0; i < replay->record.entry_count && result == 0; i++) {
		const struct flash_record_entry *entry = &replay->record.entries[i];

		result = apply_entry(replay, entry, block);
		block += flash_kind_has_block(entry->kind);
	}
	return result;
}

static bool is_cancelled(const struct flash *flash)
{
	return flash->start != NULL &&
	       atomic_load_explicit(&flash->start->cancelled, memory_order_relaxed);
}

/* Searches the blocks from `block` to end - 1 of a segment for records after the apparent end of
 * the log, and stores their largest `durable`. Returns false if there are none. Skips unreadable
 * blocks. */
static bool search_blocks(struct replay *replay, uint32_t segment, uint32_t block, uint32_t end)
{
	const struct flash_anchor *anchor = &replay->flash->anchor;
	uint32_t at = flash_segment_at(&anchor->geometry, segment);
	bool any = false;

	for (; block < end; block++) {
		struct flash_record *record = &replay->record;
		const uint8_t *header;

		if (read_log(replay, at + block, 1, MIN(end - block, (uint32_t)AHEAD_BLOCKS),
			    &header) < 0) {
			continue;
		}
		if (flash_record_look(header, anchor, record) && record->seq > replay->at.seq &&
			record->seq >> FLASH_SEQ_SHIFT == replay->at.seq >> FLASH_SEQ_SHIFT) {
			replay->durable = MAX(replay->durable, record->durable);
			any = true;
		}
	}
	return any;
}

/* Searches for records after the apparent end of the log. They can be in the segment of this end,
 * and in segments that were free at the checkpoint. If the `durable` of such a record is greater
 * than the number of the missing record, the missing record was durable. */
static int search_later(struct replay *replay)
{
	const struct flash *flash = replay->flash;
	uint32_t blocks = flash->anchor.geometry.segment_blocks;

	(void)search_blocks(replay, replay->at.segment, replay->at.block, blocks);
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (is_cancelled(flash)) {
			return -ECANCELED;
		}
		if (replay->seen[i].was_free && search_blocks(replay, i, 0, 1)) {
			(void)search_blocks(replay, i, 1, blocks);
		}
	}
	return 0;
}

/* Reads headers up to the end of the log, and finds the largest `durable` in them. Also sets `sure`
 * to a position before which all records are durable. It need not be the last such position,
 * because the function remembers only one candidate (`next`) at a time. */
static int find_durable(struct replay *replay)
{
	struct flash_position next = replay->at;
	int result;

	replay->sure = replay->at;
	while ((result = read_record(replay)) > 0) {
		replay->durable = MAX(replay->durable, replay->record.durable);
		if (replay->durable >= next.seq) {
			replay->sure = next;
			next = replay->at;
		}
		go_to(replay, &replay->next);
		if (is_cancelled(replay->flash)) {
			return -ECANCELED;
		}
	}
	return result;
}

/* Stores the largest `durable` of this record and all later ones in replay->durable. Earlier
 * records do not matter, because they cannot declare this one durable. */
static int replay_look_ahead(struct replay *replay)
{
	struct replay other = *replay;
	int result = find_durable(&other);

	if (result == 0 || flash_is_of_medium(result)) {
		result = search_later(&other);
	}
	replay->durable = other.durable;
	replay->has_looked = true;
	replay->count = 0; /* the memory now contains other blocks */
	return result;
}

/*
 * Returns 1 if the record is part of the log, 0 if the log ends before it.
 *
 * A record is part of the log if a later record declares it durable, or if its blocks match their
 * checksums. For a small record, the blocks are checked first, and later records are searched only
 * if a block does not match. For a large record, the later records are searched first, because the
 * blocks of a durable record need not be read.
 */
static int replay_is_whole(struct replay *replay)
{
	int result = 0;

	if (!replay->has_looked && !is_large(replay, replay->record.block_count)) {
		result = check_blocks(replay);
		if (result > 0) {
			return result;
		}
	}
	if (!replay->has_looked) {
		result = replay_look_ahead(replay);
		if (result < 0) {
			return result;
		}
	}
	return is_doubtful(replay) ? check_blocks(replay) : 1;
}

/* Reports the progress of a long replay. The log to replay is hardly longer than LOG_BLOCKS,
 * because the killed server would have completed another checkpoint by then. */
static void tell_progress(struct replay *replay)
{
	struct flash *flash = replay->flash;
	uint64_t before = replay->blocks / TELL_BLOCKS;

	replay->blocks += replay->record.block_count;
	if (flash->start != NULL) {
		store_start_progress(&flash->base,
			(uint32_t)(MIN(replay->blocks, (uint64_t)LOG_BLOCKS) * 990 / LOG_BLOCKS));
	}
	if (replay->blocks / TELL_BLOCKS > before) {
		log_info("flash store '%s': read %llu MiB of the log; at most about %d MiB have to "
			 "be read",
			flash->path,
			(unsigned long long)(replay->blocks >> (20 - FLASH_BLOCK_SHIFT)),
			LOG_BLOCKS >> (20 - FLASH_BLOCK_SHIFT));
	}
}

/* Applies records until the log ends (0), or returns an error. */
static int replay_records(struct replay *replay)
{
	int result;

	while ((result = read_record(replay)) > 0) {
		result = replay_is_whole(replay);
		if (result <= 0) {
			return result;
		}
		result = apply_record(replay);
		if (result < 0) {
			return result;
		}
		tell_progress(replay);
		go_to(replay, &replay->next);
		replay->seen[replay->at.segment].in_log = true;
		if (is_cancelled(replay->flash)) {
			return -ECANCELED;
		}
	}
	return result;
}

/* Replays the log. An unreadable block ends it with damage.lost_error. The segments that were free
 * at the checkpoint are determined first, because the replay changes the counts. */
static int replay_log(struct replay *replay)
{
	struct flash *flash = replay->flash;
	int result;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		/* A segment with only nodes also counts as free: in the last segment of a
		 * checkpoint, its nodes can be followed by records that are replayed. */
		replay->seen[i].was_free = replay->seen[i].valid == 0 &&
					   flash->segments[i].snapshot_valid[0] == 0 &&
					   flash->segments[i].snapshot_valid[1] == 0;
	}
	go_to(replay, &flash->anchor.next);
	replay->seen[replay->at.segment].in_log = true;
	result = replay_records(replay);
	if (flash_is_of_medium(result)) {
		flash->damage.lost_error = result;
		result = 0;
	}
	/* Without replay_look_ahead(), the records after the end of the log have not been searched
	 * yet. A later record might declare a missing record durable. */
	return result < 0 || replay->has_looked ? result : replay_look_ahead(replay);
}

static bool accepts_loss(const struct flash *flash)
{
	return (flash->damage.repairs & STORE_REPAIR_LOSS) != 0;
}

/* Determines the loss at the end of the log. An unreadable block might have been written and
 * answered, unless the cache file of the killed server shows that it was not. */
static void judge_end(struct replay *replay)
{
	struct flash *flash = replay->flash;
	uint64_t end = MAX(replay->durable, flash->damage.dropped_end);

	flash->damage.lost_at = flash_block_offset(flash, replay_block(replay));
	if (end > replay->at.seq) {
		flash->damage.lost_records = end - replay->at.seq;
	} else if (replay->at.seq > flash->anchor.next.seq &&
		   flash_cache_knows_end(flash, replay->at.seq)) {
		flash->damage.lost_error = 0;
	}
}

/* --- writing again what only the page cache has ----------------------------------------------- */

/* Returns the current record if all of it can be read, or NULL; valid until the next read. */
static const uint8_t *replay_whole(struct replay *replay)
{
	uint32_t count = replay->record.block_count;
	const uint8_t *bytes;
	int result = read_log(replay, replay_block(replay), count, count, &bytes);

	return result == 0 && blocks_match(&replay->record, bytes + FLASH_BLOCK_BYTES) ? bytes
										       : NULL;
}

/* Returns whether the disk has the record at this position, without regard to the page cache's
 * contents. */
static bool disk_has(struct replay *disk, const struct flash_position *at)
{
	disk->at = *at;
	return disk->flash->disk_fd != disk->flash->fd && read_record(disk) > 0 &&
	       replay_whole(disk) != NULL;
}

/*
 * Writes records again that can be read and that no later record declares durable. Unless `all` is
 * set, skips records that a read past the page cache finds on the disk. If such reads are
 * impossible, skips none.
 *
 * Continues after a record whose blocks cannot be read. A later record might declare that record
 * durable, even a later record behind a damaged header, where only search_later() finds it. The
 * replay then uses the records after the unreadable one.
 */
static int write_log_again(struct replay *replay, struct replay *disk, bool all)
{
	struct flash *flash = replay->flash;
	int result;

	go_to(replay, &flash->anchor.next);
	/* an error is ignored: the loop below gets the same error */
	(void)find_durable(replay);
	replay->at = replay->sure;
	replay->has_looked = true;
	while ((result = read_record(replay)) > 0) {
		const uint8_t *bytes = is_doubtful(replay) && (all || !disk_has(disk, &replay->at))
					       ? replay_whole(replay)
					       : NULL;

		if (bytes != NULL) {
			result = disk_write(flash->fd, bytes,
				(size_t)replay->record.block_count * FLASH_BLOCK_BYTES,
				flash_block_offset(flash, replay_block(replay)));
		}
		result = result >= 0 && is_cancelled(flash) ? -ECANCELED : result;
		if (result < 0) {
			return result;
		}
		go_to(replay, &replay->next);
	}
	return flash_is_of_medium(result) ? 0 : result;
}

/*
 * Makes the log durable. Segments that it has emptied are overwritten only after that: if the end
 * of the log were lost, the map of the old anchor would need their contents.
 *
 * If a write of the killed server through the page cache has failed, its pages can still be read,
 * but no sync writes them again, and possibly only that server got the error. So records that only
 * the page cache has are written again. If the sync then fails, all records are written again,
 * because the disk may return records from its own cache. Zones are written past the page cache.
 */
static int make_durable(struct flash *flash)
{
	uint8_t *bytes;
	int tries = 0;
	int result;

	if (flash_has_zones(flash)) {
		return disk_sync(flash->fd);
	}
	bytes = aligned_alloc(FLASH_BLOCK_BYTES, (size_t)AHEAD_BLOCKS * FLASH_BLOCK_BYTES);
	if (bytes == NULL) {
		return -ENOMEM;
	}
	/* Consumes the errors of earlier writes. They do not matter, because the loop below writes
	 * the records again. */
	result = disk_sync(flash->fd);
	do {
		struct replay replay = { .flash = flash, .bytes = flash->record_bytes };
		struct replay disk = { .flash = flash, .bytes = bytes, .reads_disk = true };

		if (tries > 0) {
			log_warning("'%s': cannot make the log durable: %s; all of its latest "
				    "records are written again",
				flash->path, strerror(-result));
		}
		result = write_log_again(&replay, &disk, tries > 0);
		result = result ?: disk_sync(flash->fd);
		tries++;
	} while (result < 0 && result != -ECANCELED && tries < DURABLE_TRIES_MAX);
	free(bytes);
	return result;
}

/* Drops the records that could not be made durable, and stores in dropped_end where the log ended
 * before that. From now on the store is what the device has. */
static void drop_undurable(struct flash *flash)
{
	struct replay replay = { .flash = flash, .bytes = flash->record_bytes };
	uint64_t bytes = flash_device_blocks(&flash->anchor.geometry) << FLASH_BLOCK_SHIFT;

	go_to(&replay, &flash->anchor.next);
	(void)find_durable(&replay); /* an unreadable record also ends the log */
	flash->damage.dropped_end = replay.at.seq;
	disk_drop_cache(flash->fd, 0, bytes);
}

/* --- segments -------------------------------------------------------------------------------- */

/* Derives the state of each segment. Returns -EUCLEAN if a count is impossible. */
static int restore_segments(struct flash *flash, const struct flash_seen *seen)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;

	for (uint32_t i = 0; i < geometry->segment_count; i++) {
		const struct flash_segment *segment = &flash->segments[i];

		if (seen[i].valid > geometry->segment_blocks) {
			return -EUCLEAN;
		}
		/* A segment with log after the checkpoint is needed until the next checkpoint. */
		if (seen[i].valid > 0 || segment->nodes > 0 || seen[i].in_log ||
			segment->snapshot_valid[0] > 0 || segment->snapshot_valid[1] > 0) {
			gc_restore(&flash->table, i, seen[i].valid, seen[i].stamp);
		}
		flash_snapshots_restore(flash, i);
	}
	flash->counters.free_segments = flash->table.state_counts[GC_FREE];
	return 0;
}

/* Reads a tree and its table, after a rebuild if one was requested. Damage to a snapshot does
 * not fail the opening. */
static int read_tree(
	struct flash *flash, uint32_t tree, const struct flash_entry *top, struct flash_seen *seen)
{
	bool damaged = false;
	int result = flash_tree_read(flash, tree, top, &damaged);

	if (result == 0 && tree == 0 && (flash->damage.repairs & STORE_REPAIR_MAP) != 0) {
		result = flash_rebuild(flash);
	}
	result = result ?: flash_table_read(flash, tree, seen);
	if (result == -EUCLEAN && tree > 0) {
		damaged = true;
		result = 0;
	}
	if (result == 0) { /* the replay changes no nodes, so these counts remain correct */
		flash_map_count_nodes(flash, tree, 1);
	}
	if (damaged) {
		flash_snapshot_damaged(flash, tree - 1);
	}
	return result;
}

/* Runs the steps of a recovery in order, until one fails. */
static int recover(struct flash *flash, struct replay *replay, struct error *error)
{
	int result = flash_zones_load(flash);

	result = result ?: read_tree(flash, 0, flash->anchor.top, replay->seen);
	flash_snapshots_recovered(flash);
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS && result == 0; i++) {
		if (flash_snapshot_is_live(flash, i)) {
			result = read_tree(
				flash, i + 1, flash->anchor.snapshots[i].top, replay->seen);
		}
	}
	result = result ?: replay_log(replay);
	if (result == 0) {
		judge_end(replay);
		flash->table.clock = replay->clock;
		result = restore_segments(flash, replay->seen);
	}
	/* The position in the cache file is compared only if no record is lost, or the loss is
	 * accepted. Otherwise opening the store fails because of the loss. */
	if (result == 0 && (!flash_has_loss(flash) || accepts_loss(flash))) {
		result = flash_cache_compare(flash, replay->at.seq, error);
	}
	if (result == 0 && flash_has_loss(flash) && accepts_loss(flash)) {
		flash_cache_count_loss(flash);
	}
	if (result == 0) {
		flash->log.head = (struct flash_position){
			.seq = flash_next_run(replay->at.seq),
			.segment = FLASH_NO_SEGMENT,
		};
		flash->log.before = replay->at.seq;
		flash->log.written_seq = flash->log.head.seq;
		flash->log.durable_seq = flash->log.head.seq;
	}
	return result;
}

static int refuse_map(const struct flash *flash, struct error *error)
{
	char hole[FLASH_HOLE_TEXT_BYTES];
	bool is_known = flash_hole_text(flash, &flash->damage.holes, 0, hole, sizeof(hole));

	return error_advise(error, -EUCLEAN, "readonly",
		"the map of the flash store on '%s' is damaged%s%s%s; 'gmblock check --rebuild' "
		"restores the map from the log, and the rest of the disk can be read",
		flash->path, is_known ? ": it has lost " : "", is_known ? hole : "",
		is_known && flash->damage.holes.count > 1 ? " and more" : "");
}

static int refuse_loss(const struct flash *flash, struct error *error)
{
	char loss[FLASH_LOSS_TEXT_BYTES];

	flash_loss_text(flash, loss, sizeof(loss));
	return error_advise(error, -EUCLEAN, "readonly",
		"the log of the flash store on '%s' %s; %srestore a copy of the store, read the "
		"disk as it was before these records, or continue without them after 'gmblock "
		"check --accept-loss'",
		flash->path, loss,
		flash->damage.lost_error < 0 ? "try again, in case the error is temporary, " : "");
}

int flash_recover(struct flash *flash, struct error *error)
{
	struct replay replay = {
		.flash = flash, .bytes = flash->record_bytes, .clock = flash->anchor.clock
	};
	int result = flash->is_read_only ? 0 : make_durable(flash);

	if (flash_is_of_medium(result) && accepts_loss(flash)) {
		drop_undurable(flash);
		replay.reads_disk = true; /* the page cache may have kept pages */
		result = 0;
	}
	if (result < 0 && result != -ECANCELED) {
		return error_advise(error, result, "readonly",
			"cannot make the contents of '%s' durable: %s; data that its last server "
			"wrote may be only in memory: before a reboot, copy the store or try "
			"again; 'gmblock check --accept-loss' discards the data that the device "
			"has lost",
			flash->path, strerror(-result));
	}
	replay.seen = calloc(flash->anchor.geometry.segment_count, sizeof(*replay.seen));
	if (replay.seen == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", flash->path);
	}
	result = result ?: flash_cache_load(flash);
	result = result ?: recover(flash, &replay, error);
	free(replay.seen);
	if (result == -EUCLEAN) {
		return refuse_map(flash, error);
	}
	if (result == -EFBIG) {
		return error_set(error, result,
			"the map of the flash store on '%s' is too damaged to be restored: "
			"'readonly' serves the rest",
			flash->path);
	}
	if (result == -ESTALE) {
		return result; /* flash_cache_compare() has set the error */
	}
	if (result == -EBUSY) {
		return error_set(error, result,
			"'%s' has changes in its cache file, which another process uses",
			flash->path);
	}
	if (result == -ECANCELED) {
		return error_set(error, result, "the start was interrupted");
	}
	if (result < 0) {
		return error_set(
			error, result, "cannot read '%s': %s", flash->path, strerror(-result));
	}
	return flash_has_loss(flash) && !flash->is_read_only && !accepts_loss(flash)
		       ? refuse_loss(flash, error)
		       : 0;
}
