// SPDX-License-Identifier: Apache-2.0
/*
 * Host-managed zoned devices (docs/protocol/flash.md). The rest of the store uses blocks and
 * segments as on any device; this file maps them to zones and orders the writes.
 *
 *   zones     [anchors A][anchors B][segment 0][segment 1] ...
 *   a write   ─▶ queue ─▶ one in flight ─▶ done
 *                └▶ before the first one to another segment: the zone of the last one is finished
 *                └▶ before an anchor, if its zone is full: that zone is reset
 *
 * Invariants: at most one write is in flight, because neither the kernel nor worker threads keep
 * several writes in order. At most three zones are active: two for the anchors, and one for the
 * log.
 */
#include <errno.h>
#include <string.h>

#include "disk/disk.h"
#include "store/flash/flash.h"

enum { REPORT_ZONES = 64, ACTIVE_ZONES = 3 };

/* --- finding the zones ----------------------------------------------------------------------- */

/* Counts the zones, from `like` on, that are adjacent, sequential and have the same capacity. */
static int count_alike(int fd, const struct disk_zone *like, uint64_t zone_bytes, uint32_t *count)
{
	struct disk_zone zones[REPORT_ZONES];
	uint64_t offset = like->offset;
	int found;

	*count = 0;
	do {
		found = disk_zones(fd, offset, zones, REPORT_ZONES);
		for (int i = 0; i < found; i++) {
			if (zones[i].state == DISK_ZONE_CONVENTIONAL ||
				zones[i].capacity != like->capacity || zones[i].offset != offset) {
				return 0;
			}
			(*count)++;
			offset += zone_bytes;
		}
	} while (found == REPORT_ZONES);
	return found < 0 ? found : 0;
}

/* Finds the first zone that is not conventional. Returns -ENOENT if there is none. */
static int find_first(int fd, uint64_t zone_bytes, struct disk_zone *first)
{
	uint64_t offset = 0;
	int found;

	do {
		struct disk_zone zones[REPORT_ZONES];

		found = disk_zones(fd, offset, zones, REPORT_ZONES);
		for (int i = 0; i < found; i++, offset += zone_bytes) {
			if (zones[i].state != DISK_ZONE_CONVENTIONAL) {
				*first = zones[i];
				return 0;
			}
		}
	} while (found == REPORT_ZONES);
	return found < 0 ? found : -ENOENT;
}

int flash_zones_find(int fd, const char *path, struct flash_zones *zones, struct error *error)
{
	struct disk_zone first;
	struct disk_info info;
	int result = disk_info(fd, &info);

	*zones = (struct flash_zones){ .segment = FLASH_NO_SEGMENT };
	if (result == 0 && !info.zoned) {
		return 0;
	}
	result = result ?: find_first(fd, info.zone_bytes, &first);
	if (result == -ENOENT) {
		return error_set(error, -EINVAL, "'%s' has no zones for sequential writes", path);
	}
	result = result ?: count_alike(fd, &first, info.zone_bytes, &zones->count);
	if (result < 0) {
		return error_set(error, result, "cannot examine the zones of '%s': %s", path,
			strerror(-result));
	}
	zones->bytes = info.zone_bytes;
	zones->first = first.offset;
	zones->capacity = (uint32_t)MIN(first.capacity >> FLASH_BLOCK_SHIFT, (uint64_t)UINT32_MAX);
	if (first.capacity % FLASH_BLOCK_BYTES != 0 || info.zone_bytes % FLASH_BLOCK_BYTES != 0 ||
		zones->capacity < FLASH_SEGMENT_BLOCKS_MIN ||
		zones->capacity > FLASH_SEGMENT_BLOCKS_MAX) {
		return error_set(error, -ENOTSUP,
			"the zones of '%s' have a capacity of %llu KiB each; a flash store needs "
			"zones of 64 KiB to 2 GiB, in whole blocks of 4 KiB",
			path, (unsigned long long)first.capacity >> 10);
	}
	if (info.active_zones_max > 0 && info.active_zones_max < ACTIVE_ZONES) {
		return error_set(error, -ENOTSUP,
			"only %u zones of '%s' can be active at a time; a flash store needs %d",
			info.active_zones_max, path, ACTIVE_ZONES);
	}
	if (zones->count < FLASH_ANCHORS + FLASH_SEGMENTS_MIN) {
		return error_set(error, -ENOTSUP,
			"'%s' has %u equal zones in a row; a flash store needs at least %d", path,
			zones->count, FLASH_ANCHORS + FLASH_SEGMENTS_MIN);
	}
	return 0;
}

static uint64_t zone_offset(const struct flash_zones *zones, uint32_t zone)
{
	return zones->first + zone * zones->bytes;
}

uint64_t flash_zone_offset(const struct flash *flash, uint32_t segment)
{
	return zone_offset(&flash->zones, FLASH_ANCHORS + segment);
}

/* Returns the offset on the device of a block of a segment. */
static uint64_t block_offset(const struct flash *flash, uint32_t block)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t segment = flash_segment_of(geometry, block);
	uint64_t at = block - flash_segment_at(geometry, segment);

	return flash_zone_offset(flash, segment) + (at << FLASH_BLOCK_SHIFT);
}

uint64_t flash_block_offset(const struct flash *flash, uint32_t block)
{
	return flash_has_zones(flash) ? block_offset(flash, block)
				      : (uint64_t)block << FLASH_BLOCK_SHIFT;
}

/* --- reading --------------------------------------------------------------------------------- */

int flash_anchor_read(int fd, struct flash_zones *zones, uint32_t anchor, uint8_t *block)
{
	struct disk_zone zone;
	uint64_t blocks;
	int result;

	memset(block, 0, FLASH_BLOCK_BYTES);
	if (zones->bytes == 0) {
		return disk_read(
			fd, block, FLASH_BLOCK_BYTES, (uint64_t)anchor << FLASH_BLOCK_SHIFT);
	}
	result = disk_zones(fd, zone_offset(zones, anchor), &zone, 1);
	if (result <= 0 || zone.state == DISK_ZONE_BROKEN) {
		return result < 0 ? result : -EIO;
	}
	blocks = zone.written >> FLASH_BLOCK_SHIFT;
	zones->anchor_blocks[anchor] = (uint32_t)blocks;
	if (zone.written % FLASH_BLOCK_BYTES != 0 || zone.state == DISK_ZONE_FULL) {
		/* After a torn last block, or if the zone was finished, no block can be appended.
		 */
		zones->anchor_blocks[anchor] = zones->capacity;
	}
	return blocks == 0 ? 0
			   : disk_read(fd, block, FLASH_BLOCK_BYTES,
				     zone.offset + ((blocks - 1) << FLASH_BLOCK_SHIFT));
}

/* Returns zeroes for blocks after the write pointer of a zone. Such blocks are not read from the
 * device, because some devices fail the read. */
int flash_read(struct flash *flash, uint32_t block, uint32_t count, void *bytes)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t segment = flash_segment_of(geometry, block);
	uint32_t at = block - flash_segment_at(geometry, segment);
	uint32_t there = count;

	if (flash_has_zones(flash)) {
		uint32_t written = flash->segments[segment].written;

		there = written > at ? MIN(count, written - at) : 0;
	}
	memset((uint8_t *)bytes + (size_t)there * FLASH_BLOCK_BYTES, 0,
		(size_t)(count - there) * FLASH_BLOCK_BYTES);
	return there == 0 ? 0
			  : disk_read(flash->fd, bytes, (size_t)there * FLASH_BLOCK_BYTES,
				    flash_block_offset(flash, block));
}

int flash_zones_load(struct flash *flash)
{
	uint32_t count = flash->anchor.geometry.segment_count;

	for (uint32_t next = 0; flash_has_zones(flash) && next < count;) {
		struct disk_zone zones[REPORT_ZONES];
		int found = disk_zones(flash->fd, flash_zone_offset(flash, next), zones,
			MIN(count - next, (uint32_t)REPORT_ZONES));

		if (found <= 0) {
			return found < 0 ? found : -EIO;
		}
		for (int i = 0; i < found; i++) {
			struct flash_segment *segment = &flash->segments[next++];

			segment->written = (uint32_t)(zones[i].written >> FLASH_BLOCK_SHIFT);
			segment->zone = (uint8_t)zones[i].state;
		}
	}
	return 0;
}

/* --- preparing the zones --------------------------------------------------------------------- */

/* Takes a segment out of use, because its zone has failed. */
static void zone_give_up(struct flash *flash, uint32_t i)
{
	flash->segments[i].is_bad = true;
	if (flash->table.segments[i].state == GC_FREE) {
		gc_set_state(&flash->table, i, GC_CLOSED);
	}
}

/* Brings a zone into the state that its segment needs. *kept: number of free segments that must
 * still be made usable immediately. Further ones whose zones are full are reset later, one at a
 * time (erase.c). */
static int prepare_segment(struct flash *flash, uint32_t i, uint32_t *kept)
{
	uint8_t state = flash->segments[i].zone;
	uint64_t offset = flash_zone_offset(flash, i);

	if (state == DISK_ZONE_BROKEN) {
		zone_give_up(flash, i);
		return 0;
	}
	if (flash->table.segments[i].state != GC_FREE) {
		return state == DISK_ZONE_ACTIVE
			       ? disk_zone_finish(flash->erase.fd, offset, flash->zones.bytes)
			       : 0;
	}
	if (state == DISK_ZONE_EMPTY) {
		*kept -= MIN(*kept, 1U);
		return 0;
	}
	if (*kept == 0 && state == DISK_ZONE_FULL) {
		gc_set_state(&flash->table, i, GC_ERASING);
		return 0;
	}
	*kept -= MIN(*kept, 1U);
	return disk_zones_reset(flash->erase.fd, offset, flash->zones.bytes);
}

int flash_zones_prepare(struct flash *flash, struct error *error)
{
	uint32_t kept = flash->anchor.geometry.reserve_segments + FLASH_RECORD_SEGMENTS;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		int result = prepare_segment(flash, i, &kept);

		if (result < 0) {
			return error_set(error, result, "cannot reset or finish a zone of '%s': %s",
				flash->path, strerror(-result));
		}
	}
	return 0;
}

int flash_zones_take(struct flash *flash, struct error *error)
{
	struct flash_zones *zones = &flash->zones;

	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		const struct flash_segment *segment = &flash->segments[i];
		bool is_free = flash->table.segments[i].state == GC_FREE;

		if (segment->zone == DISK_ZONE_BROKEN) {
			zone_give_up(flash, i);
		} else if (segment->zone == DISK_ZONE_FULL && is_free) {
			gc_set_state(&flash->table, i, GC_ERASING);
		} else if (segment->zone == DISK_ZONE_ACTIVE) {
			if (is_free || zones->segment != FLASH_NO_SEGMENT) {
				return error_set(error, -EBUSY,
					"the log of '%s' ends in several zones; stop its server "
					"and start it again",
					flash->path);
			}
			/* remembered, so that the zone is finished before another one is written */
			zones->segment = i;
			zones->blocks = segment->written;
		}
	}
	return flash->table.state_counts[GC_FREE] > 0
		       ? 0
		       : error_set(error, -ENOSPC,
				 "no zone of '%s' is empty at the moment; try the upgrade again",
				 flash->path);
}

/* --- writes ---------------------------------------------------------------------------------- */

/* Sets the offset of a write. Returns true if a zone must be finished or reset first (`ends`). */
static bool zone_place(struct flash *flash, struct flash_io *io)
{
	struct flash_zones *zones = &flash->zones;
	const struct flash_geometry *geometry = &flash->anchor.geometry;
	uint32_t segment;

	zones->ends = UINT32_MAX;
	if (io->block < FLASH_ANCHORS) {
		if (zones->anchor_blocks[io->block] == zones->capacity) {
			zones->ends = io->block;
			zones->anchor_blocks[io->block] = 0;
		}
		io->offset = zone_offset(zones, io->block) +
			     ((uint64_t)zones->anchor_blocks[io->block] << FLASH_BLOCK_SHIFT);
		return zones->ends != UINT32_MAX;
	}
	segment = flash_segment_of(geometry, io->block);
	if (segment != zones->segment) {
		if (zones->segment != FLASH_NO_SEGMENT && zones->blocks < zones->capacity) {
			zones->ends = FLASH_ANCHORS + zones->segment;
		}
		zones->segment = segment;
		zones->blocks = 0;
	}
	/* A segment is written from its beginning without gaps. */
	GMB_ASSERT(flash_segment_at(geometry, segment) + zones->blocks == io->block);
	io->offset = block_offset(flash, io->block);
	return zones->ends != UINT32_MAX;
}

static int end_zone(const struct flash *flash)
{
	const struct flash_zones *zones = &flash->zones;
	uint64_t offset = zone_offset(zones, zones->ends);

	return zones->ends < FLASH_ANCHORS
		       ? disk_zones_reset(flash->erase.fd, offset, zones->bytes)
		       : disk_zone_finish(flash->erase.fd, offset, zones->bytes);
}

static int end_zone_call(struct ring_op *op)
{
	struct flash_zones *zones = container_of(op, struct flash_zones, op);

	return end_zone(container_of(zones, struct flash, zones));
}

static void end_zone_done(struct ring_op *op, int result)
{
	struct flash_zones *zones = container_of(op, struct flash_zones, op);
	struct flash *flash = container_of(zones, struct flash, zones);

	flash_io_issue(flash, zones->writing, result);
	flash_io_ended(flash);
}

void flash_zone_next(struct flash *flash)
{
	struct flash_zones *zones = &flash->zones;
	struct list_node *node;

	if (zones->writing != NULL) {
		return;
	}
	node = list_pop_front(&zones->writes);
	if (node == NULL) {
		return;
	}
	zones->writing = list_entry(node, struct flash_io, node);
	/* After a failure the write pointer is unknown, so queued writes fail. */
	if (flash->failed != 0) {
		flash_io_issue(flash, zones->writing, flash->failed);
	} else if (zone_place(flash, zones->writing)) {
		flash->io_count++;
		ring_call(flash->ring, &zones->op, end_zone_call, end_zone_done);
	} else {
		flash_io_issue(flash, zones->writing, 0);
	}
}

void flash_zone_write(struct flash *flash, struct flash_io *io)
{
	list_push_back(&flash->zones.writes, &io->node);
	flash_zone_next(flash);
}

int flash_zone_write_now(struct flash *flash, struct flash_io *io)
{
	return zone_place(flash, io) ? end_zone(flash) : 0;
}

void flash_zone_written(struct flash *flash, const struct flash_io *io)
{
	struct flash_zones *zones = &flash->zones;

	/* A failed write is counted like others, because no further write follows it. */
	*(io->block < FLASH_ANCHORS ? &zones->anchor_blocks[io->block] : &zones->blocks) +=
		(uint32_t)(io->bytes >> FLASH_BLOCK_SHIFT);
	zones->writing = NULL;
}
