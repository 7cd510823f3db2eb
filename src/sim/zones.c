// SPDX-License-Identifier: Apache-2.0
/*
 * Zones of a simulated host-managed device. A zone is written in order from its beginning and reset
 * as a whole; unwritten sectors cannot be read. After a crash, each zone has a prefix of the
 * written data, or the data before a reset if no flush has followed the reset.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/compiler.h"
#include "sim/sim_internal.h"

void sim_zones_init(struct sim_disk *disk)
{
	const struct sim_disk_options *options = &disk->options;

	if (options->zone_bytes == 0) {
		return;
	}
	GMB_ASSERT(options->size % options->zone_bytes == 0 && options->is_block);
	disk->zone_count = (uint32_t)(options->size / options->zone_bytes);
	disk->zones = calloc(disk->zone_count, sizeof(disk->zones[0]));
	GMB_ASSERT(disk->zones != NULL);
}

static uint64_t capacity(const struct sim_disk *disk)
{
	return disk->options.zone_capacity > 0 ? disk->options.zone_capacity
					       : disk->options.zone_bytes;
}

static bool is_conventional(const struct sim_disk *disk, uint64_t offset)
{
	return offset / disk->options.zone_bytes < disk->options.conventional_zones;
}

static struct sim_zone *zone_at(const struct sim_disk *disk, uint64_t offset)
{
	GMB_ASSERT(offset / disk->options.zone_bytes < disk->zone_count);
	return &disk->zones[offset / disk->options.zone_bytes];
}

/* Returns the number of zones that are partly written, which a device can limit. */
static uint32_t active_count(const struct sim_disk *disk)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < disk->zone_count; i++) {
		count += disk->zones[i].written > 0 && !disk->zones[i].is_full;
	}
	return count;
}

int sim_zones_check(const struct sim_disk *disk, uint64_t offset, uint64_t length, bool write)
{
	const struct sim_zone *zone;
	uint64_t at;

	if (disk->zones == NULL || is_conventional(disk, offset)) {
		return 0;
	}
	zone = zone_at(disk, offset);
	at = offset % disk->options.zone_bytes;
	if (!write) {
		return at + length <= (zone->is_full ? disk->options.zone_bytes : zone->written)
			       ? 0
			       : -EIO;
	}
	if (at != zone->written || zone->is_full || at + length > capacity(disk)) {
		return -EIO;
	}
	return at == 0 && disk->options.active_zones_max > 0 &&
			       active_count(disk) >= disk->options.active_zones_max
		       ? -EIO
		       : 0;
}

void sim_zones_wrote(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	struct sim_zone *zone;

	if (disk->zones != NULL && !is_conventional(disk, offset)) {
		zone = zone_at(disk, offset);
		GMB_ASSERT(offset % disk->options.zone_bytes == zone->written);
		zone->written += length;
		zone->is_full = zone->written == capacity(disk);
	}
}

void sim_zones_hardened(struct sim_disk *disk, uint64_t offset, uint64_t length, uint64_t ticket)
{
	for (uint32_t i = 0; i < disk->zone_count; i++) {
		uint64_t start = i * disk->options.zone_bytes;
		struct sim_zone *zone = &disk->zones[i];

		if (start < offset + length && offset < start + disk->options.zone_bytes &&
			zone->reset <= ticket) {
			zone->reset = 0;
		}
	}
}

/* Returns how many bytes from the beginning of the zone survive every crash. */
static uint64_t durable_bytes(const struct sim_disk *disk, uint64_t start, uint64_t written)
{
	for (uint64_t at = 0; at < written; at += 512) {
		const struct sim_page *page = sim_page_find(disk, (start + at) / SIM_PAGE_BYTES);
		uint32_t sector = (uint32_t)((start + at) % SIM_PAGE_BYTES / 512);

		if (page != NULL && (page->dirty >> sector & 1) != 0) {
			return at;
		}
	}
	return written;
}

static void zone_crash(const struct sim_disk *disk, struct sim_disk *copy, uint32_t idx)
{
	const struct sim_zone *zone = &disk->zones[idx];
	uint64_t start = idx * disk->options.zone_bytes;
	bool is_undone = zone->reset != 0 && sim_random() % 2 == 0;
	uint64_t kept = is_undone ? zone->reset_bytes : zone->written;

	if (!is_undone) {
		uint64_t least = zone->reset != 0 ? 0 : durable_bytes(disk, start, kept);

		kept = align_down(sim_between(least, kept), disk->options.sector_bytes);
		kept = MAX(kept, least);
	}
	copy->zones[idx] = (struct sim_zone){ .written = kept,
		.is_full = kept == capacity(disk) ||
			   (!is_undone && zone->is_full && kept == zone->written) };
	for (uint64_t at = 0; at < disk->options.zone_bytes; at += SIM_PAGE_BYTES) {
		const struct sim_page *page = sim_page_find(disk, (start + at) / SIM_PAGE_BYTES);
		uint64_t bytes = kept > at ? MIN(kept - at, (uint64_t)SIM_PAGE_BYTES) : 0;

		if (page != NULL) {
			struct sim_page *to = sim_page_make(copy, page->index);

			memset(to->durable, 0, SIM_PAGE_BYTES);
			memcpy(to->durable, is_undone ? page->durable : page->current, bytes);
			memcpy(to->current, to->durable, SIM_PAGE_BYTES);
		}
	}
}

void sim_zones_crash_copy(const struct sim_disk *disk, struct sim_disk *copy)
{
	for (uint32_t i = disk->options.conventional_zones; i < disk->zone_count; i++) {
		zone_crash(disk, copy, i);
	}
}

void sim_zones_kill_copy(const struct sim_disk *disk, struct sim_disk *copy, uint64_t ticket)
{
	for (uint32_t i = 0; i < disk->zone_count; i++) {
		copy->zones[i] = disk->zones[i];
		copy->zones[i].reset = disk->zones[i].reset != 0 ? ticket : 0;
	}
}

/* --- disk.h --------------------------------------------------------------------------------- */

int disk_zones(int fd, uint64_t offset, struct disk_zone *zones, uint32_t zones_max)
{
	const struct sim_disk *disk = sim_disk_file(fd)->disk;
	uint32_t count = 0;

	GMB_ASSERT(disk->zones != NULL && offset % disk->options.zone_bytes == 0);
	for (; offset < disk->size && count < zones_max; offset += disk->options.zone_bytes) {
		const struct sim_zone *zone = zone_at(disk, offset);

		zones[count++] = (struct disk_zone){ .offset = offset,
			.capacity = capacity(disk),
			.written = zone->is_full ? capacity(disk) : zone->written,
			.state = is_conventional(disk, offset) ? DISK_ZONE_CONVENTIONAL
				 : zone->is_full	       ? DISK_ZONE_FULL
				 : zone->written > 0	       ? DISK_ZONE_ACTIVE
							       : DISK_ZONE_EMPTY };
	}
	return (int)count;
}

int disk_zones_reset(int fd, uint64_t offset, uint64_t length)
{
	struct sim_disk *disk = sim_disk_file(fd)->disk;
	uint64_t end = offset + length;
	int error = sim_disk_fault(
		disk, SIM_FAULT_RANGE, offset, length, sim_world.options.faults.range_error_ppm, 0);

	if (error != 0) {
		return error;
	}
	GMB_ASSERT(!sim_world.in_batch || sim_world.in_call);
	GMB_ASSERT((offset | length) % disk->options.zone_bytes == 0 && end <= disk->size);
	for (; offset < end; offset += disk->options.zone_bytes) {
		struct sim_zone *zone = zone_at(disk, offset);

		if (is_conventional(disk, offset)) {
			return -EIO;
		}
		if (zone->reset == 0) {
			zone->reset_bytes = durable_bytes(disk, offset, zone->written);
		}
		zone->written = 0;
		zone->is_full = false;
		sim_disk_fill(disk, offset, disk->options.zone_bytes, 0, true);
		sim_disk_written(disk, offset, disk->options.zone_bytes);
		zone->reset = sim_world.ticket;
	}
	return 0;
}

int disk_zone_finish(int fd, uint64_t offset, uint64_t length)
{
	struct sim_disk *disk = sim_disk_file(fd)->disk;

	GMB_ASSERT(!sim_world.in_batch || sim_world.in_call);
	GMB_ASSERT(offset % disk->options.zone_bytes == 0 && length == disk->options.zone_bytes);
	zone_at(disk, offset)->is_full = true;
	return 0;
}
