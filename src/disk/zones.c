// SPDX-License-Identifier: Apache-2.0
/* Zones of host-managed devices: <linux/blkzoned.h>. */
#include <errno.h>
#include <linux/blkzoned.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "disk/disk.h"

enum { SECTOR_SHIFT = 9, REPORT_ZONES = 256 };

static int zone_ioctl(int fd, unsigned long request, void *argument)
{
	int result;

	do {
		result = ioctl(fd, request, argument);
	} while (result != 0 && errno == EINTR);
	return result == 0 ? 0 : -errno;
}

static enum disk_zone_state state_of(const struct blk_zone *zone)
{
	if (zone->type != BLK_ZONE_TYPE_SEQWRITE_REQ) {
		return DISK_ZONE_CONVENTIONAL;
	}
	switch (zone->cond) {
	case BLK_ZONE_COND_EMPTY:
		return DISK_ZONE_EMPTY;
	case BLK_ZONE_COND_FULL:
		return DISK_ZONE_FULL;
	case BLK_ZONE_COND_IMP_OPEN:
	case BLK_ZONE_COND_EXP_OPEN:
	case BLK_ZONE_COND_CLOSED:
		return DISK_ZONE_ACTIVE;
	default: /* zones that are read-only or offline */
		return DISK_ZONE_BROKEN;
	}
}

static struct disk_zone zone_of(const struct blk_zone *zone, bool has_capacity)
{
	uint64_t capacity = has_capacity ? zone->capacity : zone->len;
	struct disk_zone found = { .offset = zone->start << SECTOR_SHIFT,
		.capacity = capacity << SECTOR_SHIFT,
		.state = state_of(zone) };

	if (found.state == DISK_ZONE_FULL) { /* the write pointer of a full zone is undefined */
		found.written = found.capacity;
	} else if (found.state == DISK_ZONE_BROKEN) {
		found.written = found.capacity; /* any part of the zone may still be readable */
	} else if (found.state == DISK_ZONE_ACTIVE && zone->wp >= zone->start) {
		found.written = MIN(zone->wp - zone->start, capacity) << SECTOR_SHIFT;
	}
	return found;
}

int disk_zones(int fd, uint64_t offset, struct disk_zone *zones, uint32_t zones_max)
{
	struct blk_zone_report *report =
		malloc(sizeof(*report) + REPORT_ZONES * sizeof(report->zones[0]));
	uint32_t count = 0;
	int result = report == NULL ? -ENOMEM : 0;

	while (result == 0 && count < zones_max) {
		report->sector = offset >> SECTOR_SHIFT;
		report->nr_zones = MIN(zones_max - count, (uint32_t)REPORT_ZONES);
		report->flags = 0;
		result = zone_ioctl(fd, BLKREPORTZONE, report);
		if (result < 0 || report->nr_zones == 0) {
			break;
		}
		for (uint32_t i = 0; i < report->nr_zones; i++) {
			const struct blk_zone *zone = &report->zones[i];

			zones[count++] =
				zone_of(zone, (report->flags & BLK_ZONE_REP_CAPACITY) != 0);
			offset = (zone->start + zone->len) << SECTOR_SHIFT;
		}
	}
	free(report);
	return result < 0 ? result : (int)count;
}

static int zone_range(int fd, unsigned long request, uint64_t offset, uint64_t length)
{
	struct blk_zone_range range = { .sector = offset >> SECTOR_SHIFT,
		.nr_sectors = length >> SECTOR_SHIFT };

	return zone_ioctl(fd, request, &range);
}

int disk_zones_reset(int fd, uint64_t offset, uint64_t length)
{
	return zone_range(fd, BLKRESETZONE, offset, length);
}

int disk_zone_finish(int fd, uint64_t offset, uint64_t length)
{
	return zone_range(fd, BLKFINISHZONE, offset, length);
}
