// SPDX-License-Identifier: Apache-2.0
/*
 * Erasing free segments, and wear.
 *
 * A segment without references is discarded before it becomes free. The device then need not keep
 * the contents, and a file releases the space. One segment at a time is discarded, on a worker
 * thread, while the log continues in others.
 *
 * Wear: the free segment with the fewest erases is written next. That alone would never erase
 * segments with static data, so the garbage collector sometimes moves such a segment.
 *
 * Invariant: only segments that no durable anchor needs are erased. Called when a checkpoint ends,
 * by flash_pump(), and once after recovery.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "disk/disk.h"
#include "store/flash/flash.h"

enum {
	/* data is moved if the erase count of its segment is this much below the mean */
	WEAR_ERASES = 32,
	/* for wear levelling, one segment is moved per this many segments written: this adds less
	 * than 1 % of writes */
	WEAR_SEGMENTS = 128,
};

static uint64_t segment_offset(const struct flash *flash, uint32_t segment)
{
	return (uint64_t)flash_segment_at(&flash->anchor.geometry, segment) << FLASH_BLOCK_SHIFT;
}

static uint64_t segment_bytes(const struct flash *flash)
{
	return (uint64_t)flash->anchor.geometry.segment_blocks << FLASH_BLOCK_SHIFT;
}

void flash_erase_init(struct flash *flash, const struct disk_info *disk, int fd)
{
	flash->erase.fd = fd;
	flash->erase.is_block = disk->is_block;
	/* A fully allocated file keeps its space, because it was allocated on purpose. */
	flash->erase.is_wanted =
		!flash->is_read_only &&
		(flash_has_zones(flash) ||
			(disk->punches_holes && (disk->is_block || disk->has_holes)));
}

/* Returns the number of segments that remain free when the disk is full. Their space is not
 * released, because they are soon written again, and allocating the space each time would cost a
 * third of the speed. */
static uint32_t spare_segments(const struct flash *flash)
{
	const struct flash_geometry *geometry = &flash->anchor.geometry;

	return geometry->segment_count -
	       (uint32_t)(geometry->disk_blocks / geometry->segment_blocks);
}

void flash_erase_found(struct flash *flash)
{
	uint32_t kept = spare_segments(flash);

	if (!flash->erase.is_wanted || flash->erase.is_block) {
		return;
	}
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		enum disk_extent_kind kind = DISK_HOLE;
		uint64_t length;

		if (flash->table.segments[i].state != GC_FREE ||
			disk_extent(flash->fd, segment_offset(flash, i), segment_bytes(flash),
				&kind, &length) < 0 ||
			(kind == DISK_HOLE && length == segment_bytes(flash))) {
			continue;
		}
		if (kept > 0) {
			kept--;
		} else {
			gc_set_state(&flash->table, i, GC_ERASING);
		}
	}
}

void flash_erase(struct flash *flash, uint32_t segment)
{
	const struct flash_erase *erase = &flash->erase;
	bool is_kept = !erase->is_block && flash_free_soon(flash) < spare_segments(flash);

	/* The segment was empty, so its unreadable blocks are no longer needed. */
	flash->segments[segment].is_bad = false;
	gc_set_state(&flash->table, segment, erase->is_wanted && !is_kept ? GC_ERASING : GC_FREE);
}

static int erase_now(const struct flash *flash)
{
	const struct flash_erase *erase = &flash->erase;

	return flash_has_zones(flash)
		       ? disk_zones_reset(erase->fd, flash_zone_offset(flash, erase->segment),
				 flash->zones.bytes)
		       : disk_discard(erase->fd, erase->is_block,
				 segment_offset(flash, erase->segment), segment_bytes(flash));
}

static int erase_call(struct ring_op *op)
{
	struct flash_erase *erase = container_of(op, struct flash_erase, op);

	return erase_now(container_of(erase, struct flash, erase));
}

/* A segment is usable after a failed discard, but not after a failed reset of its zone. An error
 * other than an interruption ends all discards. */
static void erase_ended(struct flash *flash, int result)
{
	struct flash_erase *erase = &flash->erase;
	enum gc_state state = GC_FREE;

	if (result == 0) {
		flash->counters.erased_segments++;
	} else if (flash_has_zones(flash)) {
		log_error("flash store '%s': cannot reset the zone at byte %llu: %s; the zone is "
			  "no longer used",
			flash->path, (unsigned long long)flash_zone_offset(flash, erase->segment),
			strerror(-result));
		flash->segments[erase->segment].is_bad = true;
		state = GC_CLOSED;
	} else if (result != -EINTR) {
		erase->is_wanted = false;
		if (result != -EOPNOTSUPP) {
			log_warning("flash store '%s': cannot discard unused segments: %s; "
				    "discards are now off",
				flash->path, strerror(-result));
		}
	}
	gc_set_state(&flash->table, erase->segment, state);
}

static void erase_done(struct ring_op *op, int result)
{
	struct flash_erase *erase = container_of(op, struct flash_erase, op);
	struct flash *flash = container_of(erase, struct flash, erase);

	erase_ended(flash, result);
	flash_pump(flash);
	flash_io_ended(flash);
}

bool flash_erase_step(struct flash *flash)
{
	struct flash_erase *erase = &flash->erase;

	/* No discard begins while a start waits for its last operations, because the start
	 * completes only when no operation is in flight. */
	if (flash->table.state_counts[GC_ERASING] == 0 || erase->op.in_flight ||
		flash->start_has_ended || flash->is_quiet) {
		return false;
	}
	while (flash->table.segments[erase->segment].state != GC_ERASING) {
		erase->segment = (erase->segment + 1) % flash->anchor.geometry.segment_count;
	}
	/* While the store is closed, only zones are reset; discards are skipped. */
	if (flash->is_closing && flash_has_zones(flash)) {
		erase_ended(flash, erase_now(flash));
		return true;
	}
	if (flash->is_closing || !erase->is_wanted) {
		gc_set_state(&flash->table, erase->segment, GC_FREE);
		return true;
	}
	flash->io_count++;
	ring_call(flash->ring, &erase->op, erase_call, erase_done);
	return false;
}

/* --- wear ------------------------------------------------------------------------------------ */

uint32_t flash_wear_victim(struct flash *flash)
{
	uint32_t fewest = GC_NO_SEGMENT;

	/* Zoned devices level their wear themselves. */
	if (flash_has_zones(flash) || flash->erase.taken < WEAR_SEGMENTS) {
		return GC_NO_SEGMENT;
	}
	for (uint32_t i = 0; i < flash->anchor.geometry.segment_count; i++) {
		if (flash->table.segments[i].state == GC_CANDIDATE && !flash_is_avoided(flash, i) &&
			(fewest == GC_NO_SEGMENT ||
				flash->segments[i].erases < flash->segments[fewest].erases)) {
			fewest = i;
		}
	}
	/* also without a victim: the next search is WEAR_SEGMENTS segments later */
	flash->erase.taken = 0;
	return fewest != GC_NO_SEGMENT && flash->segments[fewest].erases + WEAR_ERASES <
						  flash->counters.erases_mean
		       ? fewest
		       : GC_NO_SEGMENT;
}

void flash_wear_count(struct flash *flash)
{
	uint32_t count = flash->anchor.geometry.segment_count;
	struct flash_counters *counters = &flash->counters;
	uint64_t sum = 0;

	counters->erases_min = UINT64_MAX;
	counters->erases_max = 0;
	counters->avoided_segments = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t erases = flash->segments[i].erases;

		if (flash_is_avoided(flash, i)) {
			counters->avoided_segments++;
			continue;
		}
		counters->erases_min = MIN(counters->erases_min, erases);
		counters->erases_max = MAX(counters->erases_max, erases);
		sum += erases;
	}
	counters->erases_mean = sum / MAX(count - counters->avoided_segments, (uint64_t)1);
}
