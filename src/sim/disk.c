// SPDX-License-Identifier: Apache-2.0
/*
 * The medium of a simulated disk, and functions of sim.h for tests.
 *
 *   disk ── leaves[] ── pages[] ── { current: what the device returns, durable: what survives a
 *                                    crash, dirty: sectors that differ or may differ,
 *                                    cache: what the page cache holds (sim/cache.c) }
 *
 * A write changes `current` and marks its sectors dirty. When it completes, its sectors get the
 * next number of the ticket counter. When a flush is submitted, it also gets a number, and makes
 * durable only sectors whose first completed write has a lower one. So writes that were in flight
 * when the flush was submitted stay volatile. A page that was never written does not exist and
 * reads as zeroes. See sim.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/compiler.h"
#include "sim/sim_internal.h"

#define LEAF_BYTES ((uint64_t)SIM_PAGE_BYTES * SIM_LEAF_PAGES)

/* --- pages ---------------------------------------------------------------------------------- */

static void leaves_resize(struct sim_disk *disk, uint64_t size)
{
	uint64_t count = size / LEAF_BYTES + 1;

	if (count <= disk->leaf_count) {
		return;
	}
	disk->leaves = realloc(disk->leaves, count * sizeof(disk->leaves[0]));
	GMB_ASSERT(disk->leaves != NULL);
	for (uint64_t i = disk->leaf_count; i < count; i++) {
		disk->leaves[i] = NULL;
	}
	disk->leaf_count = count;
}

struct sim_page *sim_page_find(const struct sim_disk *disk, uint64_t index)
{
	uint64_t leaf = index / SIM_LEAF_PAGES;

	if (leaf >= disk->leaf_count || disk->leaves[leaf] == NULL) {
		return NULL;
	}
	return disk->leaves[leaf]->pages[index % SIM_LEAF_PAGES];
}

struct sim_page *sim_page_make(struct sim_disk *disk, uint64_t index)
{
	uint64_t leaf = index / SIM_LEAF_PAGES;
	struct sim_page *page = sim_page_find(disk, index);

	if (page != NULL) {
		return page;
	}
	leaves_resize(disk, (index + 1) * SIM_PAGE_BYTES);
	if (disk->leaves[leaf] == NULL) {
		disk->leaves[leaf] = calloc(1, sizeof(*disk->leaves[leaf]));
		GMB_ASSERT(disk->leaves[leaf] != NULL);
	}
	page = calloc(1, sizeof(*page));
	GMB_ASSERT(page != NULL);
	page->index = index;
	page->hole = true;
	list_init(&page->cache_node);
	disk->leaves[leaf]->pages[index % SIM_LEAF_PAGES] = page;
	list_push_back(&disk->pages, &page->node);
	return page;
}

uint8_t sim_sector_bits(const struct sim_disk *disk, uint32_t from, uint32_t to)
{
	uint8_t bits = 0;

	if (disk->options.sector_bytes == SIM_PAGE_BYTES) {
		return 0xff;
	}
	for (uint32_t sector = from / 512; sector * 512 < to; sector++) {
		bits |= (uint8_t)(1 << sector);
	}
	return bits;
}

/* Calls fn for every existing page in the range, with the part of the page that is inside the
 * range. */
static void for_pages(struct sim_disk *disk, uint64_t offset, uint64_t length,
	void (*fn)(struct sim_disk *disk, struct sim_page *page, uint32_t from, uint32_t to,
		uint64_t value),
	uint64_t value)
{
	uint64_t end = offset + length;

	while (offset < end) {
		uint64_t index = offset / SIM_PAGE_BYTES;
		uint64_t leaf = index / SIM_LEAF_PAGES;
		uint64_t next = MIN(end, (index + 1) * SIM_PAGE_BYTES);
		struct sim_page *page;

		if (leaf >= disk->leaf_count) {
			return;
		}
		if (disk->leaves[leaf] == NULL) {
			offset = MIN(end, (leaf + 1) * LEAF_BYTES);
			continue;
		}
		page = sim_page_find(disk, index);
		if (page != NULL) {
			fn(disk, page, (uint32_t)(offset % SIM_PAGE_BYTES),
				(uint32_t)(next - index * SIM_PAGE_BYTES), value);
		}
		offset = next;
	}
}

static void disk_copy_out(
	const struct sim_disk *disk, uint64_t offset, uint8_t *to, size_t len, bool through_cache)
{
	while (len > 0) {
		uint32_t at = (uint32_t)(offset % SIM_PAGE_BYTES);
		size_t bytes = MIN(len, (size_t)(SIM_PAGE_BYTES - at));
		const struct sim_page *page = sim_page_find(disk, offset / SIM_PAGE_BYTES);

		if (page == NULL) {
			memset(to, 0, bytes);
		} else {
			memcpy(to,
				(through_cache ? sim_cache_page_bytes(page) : page->current) + at,
				bytes);
		}
		to += bytes;
		offset += bytes;
		len -= bytes;
	}
}

void sim_disk_peek(struct sim_disk *disk, uint64_t offset, void *buf, size_t len)
{
	disk_copy_out(disk, offset, buf, len, true);
}

void sim_disk_get(struct sim_disk *disk, uint64_t offset, void *buf, size_t len)
{
	disk_copy_out(disk, offset, buf, len, false);
}

void sim_disk_extend(struct sim_disk *disk, uint64_t end)
{
	if (end > disk->size) {
		GMB_ASSERT(!disk->options.is_block);
		disk->size = end;
	}
}

void sim_disk_put(struct sim_disk *disk, uint64_t offset, const void *bytes, size_t len)
{
	const uint8_t *from = bytes;

	sim_disk_extend(disk, offset + len);
	while (len > 0) {
		uint32_t at = (uint32_t)(offset % SIM_PAGE_BYTES);
		size_t part = MIN(len, (size_t)(SIM_PAGE_BYTES - at));
		struct sim_page *page = sim_page_make(disk, offset / SIM_PAGE_BYTES);

		memcpy(page->current + at, from, part);
		page->hole = false;
		page->dirty |= sim_sector_bits(disk, at, at + (uint32_t)part);
		from += part;
		offset += part;
		len -= part;
	}
}

void sim_disk_poke(struct sim_disk *disk, uint64_t offset, const void *buf, size_t len)
{
	sim_cache_direct_begin(disk, offset, len, true);
	sim_disk_put(disk, offset, buf, len);
	sim_disk_written(disk, offset, len);
	sim_disk_harden(disk, offset, len, UINT64_MAX);
}

enum { FILL_HOLE = 0x100 }; /* flag for page_fill(): whole pages become holes */

static void page_fill(
	struct sim_disk *disk, struct sim_page *page, uint32_t from, uint32_t to, uint64_t value)
{
	sim_cache_page_leave(page, from > 0 || to < SIM_PAGE_BYTES);
	memset(page->current + from, (int)(value & 0xff), to - from);
	page->dirty |= sim_sector_bits(disk, from, to);
	if ((value & FILL_HOLE) == 0) {
		page->hole = false;
	} else if (from == 0 && to == SIM_PAGE_BYTES) {
		page->hole = true;
	}
}

void sim_disk_fill(struct sim_disk *disk, uint64_t offset, uint64_t length, uint8_t byte, bool hole)
{
	/* Ranges that were never written need no pages for zeroes: they already read as zeroes, and
	 * are holes. File systems also report space that is allocated but not written as a hole. */
	if (byte != 0) {
		for (uint64_t at = offset; at < offset + length; at += SIM_PAGE_BYTES) {
			sim_page_make(disk, at / SIM_PAGE_BYTES);
		}
	}
	for_pages(disk, offset, length, page_fill, byte | (hole ? (uint64_t)FILL_HOLE : 0));
}

static void page_written(
	struct sim_disk *disk, struct sim_page *page, uint32_t from, uint32_t to, uint64_t value)
{
	uint8_t bits = sim_sector_bits(disk, from, to);

	page->dirty |= bits;
	for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
		if ((bits >> i & 1) != 0 && page->since[i] == 0) {
			page->since[i] = value;
		}
	}
	sim_cache_page_written(page, value);
}

void sim_disk_written(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	for_pages(disk, offset, length, page_written, ++sim_world.ticket);
}

static void sector_harden(struct sim_page *page, int sector)
{
	memcpy(page->durable + 512 * sector, page->current + 512 * sector, 512);
	page->dirty &= (uint8_t) ~(1 << sector);
	page->since[sector] = 0;
}

static void page_harden(
	struct sim_disk *disk, struct sim_page *page, uint32_t from, uint32_t to, uint64_t value)
{
	uint8_t bits;

	sim_cache_page_sync(page, value);
	bits = sim_sector_bits(disk, from, to) & page->dirty;
	for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
		if ((bits >> i & 1) != 0 && page->since[i] != 0 && page->since[i] <= value) {
			sector_harden(page, i);
		}
	}
}

void sim_disk_harden(struct sim_disk *disk, uint64_t offset, uint64_t length, uint64_t ticket)
{
	for_pages(disk, offset, length, page_harden, ticket);
	sim_zones_hardened(disk, offset, length, ticket);
}

/* Returns which dirty sectors survive a crash. A sector of 4 KiB survives as a whole or not at
 * all. */
static uint8_t page_survivors(const struct sim_disk *disk, const struct sim_page *page)
{
	uint8_t bits = (uint8_t)sim_random();

	if (disk->options.sector_bytes == SIM_PAGE_BYTES) {
		bits = (bits & 1) != 0 ? 0xff : 0;
	}
	return bits & page->dirty;
}

void sim_disk_lose(struct sim_disk *disk)
{
	sim_cache_write_back_all(disk);
	list_for_each(node, &disk->pages)
	{
		struct sim_page *page = list_entry(node, struct sim_page, node);
		uint8_t keep = page_survivors(disk, page);

		for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
			if ((keep >> i & 1) != 0) {
				sector_harden(page, i);
			} else if ((page->dirty >> i & 1) != 0) {
				page->since[i] = 0;
			}
		}
		page->dirty = 0;
	}
}

static const uint8_t *sector_kept(const struct sim_page *page, uint64_t sector)
{
	return ((page->dirty >> sector & 1) != 0 ? page->current : page->durable) + 512 * sector;
}

void sim_disk_get_kept(const struct sim_disk *disk, uint64_t offset, uint8_t *buf, size_t len)
{
	for (size_t at = 0; at < len; at += 512) {
		const struct sim_page *page = sim_page_find(disk, (offset + at) / SIM_PAGE_BYTES);

		if (page == NULL) {
			memset(buf + at, 0, 512);
		} else {
			memcpy(buf + at, sector_kept(page, (offset + at) % SIM_PAGE_BYTES / 512),
				512);
		}
	}
}

void sim_disk_drop_cache(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	list_for_each(node, &disk->pages)
	{
		struct sim_page *page = list_entry(node, struct sim_page, node);
		uint64_t at = page->index * SIM_PAGE_BYTES;

		if (disk->options.keeps_cache || at + SIM_PAGE_BYTES <= offset ||
			at >= offset + length) {
			continue;
		}
		sim_cache_page_leave(page, true);
		for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
			memmove(page->current + 512 * i, sector_kept(page, (uint64_t)i), 512);
		}
	}
}

static bool disk_is_zero(const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != 0) {
			return false;
		}
	}
	return true;
}

void sim_disk_crash(struct sim_disk *disk)
{
	list_for_each(node, &sim_world.files)
	{
		struct sim_file *file = list_entry(node, struct sim_file, node);

		GMB_ASSERT(
			file->disk != disk || sim_world.fds[file->fd - SIM_FD_BASE].inflight == 0);
	}
	if (sim_random() % 2 == 0) {
		sim_cache_write_back_all(disk);
	}
	sim_cache_drop_all(disk);
	list_for_each(node, &disk->pages)
	{
		struct sim_page *page = list_entry(node, struct sim_page, node);
		uint8_t keep = page_survivors(disk, page);

		for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
			if ((keep >> i & 1) != 0) {
				sector_harden(page, i);
			}
		}
		memcpy(page->current, page->durable, SIM_PAGE_BYTES);
		memset(page->since, 0, sizeof(page->since));
		page->dirty = 0;
		page->hole = page->hole && disk_is_zero(page->current, SIM_PAGE_BYTES);
	}
}

static struct sim_disk *disk_like(const struct sim_disk *disk, const char *name)
{
	struct sim_disk_options options = disk->options;

	options.size = disk->size;
	return sim_disk_create(name, &options);
}

struct sim_disk *sim_disk_crash_copy(struct sim_disk *disk, const char *name)
{
	struct sim_disk *copy = disk_like(disk, name);

	list_for_each(node, &disk->pages)
	{
		const struct sim_page *page = list_entry(node, struct sim_page, node);
		struct sim_page *to = sim_page_make(copy, page->index);
		uint8_t keep = page_survivors(disk, page);
		/* A dirty page was written back by chance just before the crash. */
		const uint8_t *device =
			page->cache_dirty && sim_random() % 2 == 0 ? page->cache : page->current;

		memcpy(to->durable, page->durable, SIM_PAGE_BYTES);
		for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
			if ((keep >> i & 1) != 0) {
				memcpy(to->durable + 512 * i, device + 512 * i, 512);
			}
		}
		memcpy(to->current, to->durable, SIM_PAGE_BYTES);
		to->hole = page->hole && disk_is_zero(to->current, SIM_PAGE_BYTES);
	}
	sim_zones_crash_copy(disk, copy);
	return copy;
}

struct sim_disk *sim_disk_kill_copy(struct sim_disk *disk, const char *name)
{
	struct sim_disk *before = sim_disk_find(name);
	struct sim_disk *copy = before != NULL ? before : disk_like(disk, name);
	uint64_t ticket = ++sim_world.ticket;

	/* every page of the copy is overwritten below, because the original has the same pages */
	sim_cache_drop_all(copy);
	list_for_each(node, &disk->pages)
	{
		const struct sim_page *page = list_entry(node, struct sim_page, node);
		struct sim_page *to = sim_page_make(copy, page->index);

		memcpy(to->durable, page->durable, SIM_PAGE_BYTES);
		memcpy(to->current, page->cache_dirty ? page->cache : page->current,
			SIM_PAGE_BYTES);
		to->hole = page->hole;
		/* A dirty page in the cache would be written back as a whole, so all of its sectors
		 * are dirty. */
		to->dirty = page->cache_dirty ? 0xff : page->dirty;
		for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
			to->since[i] = (to->dirty >> i & 1) != 0 ? ticket : 0;
		}
	}
	sim_zones_kill_copy(disk, copy, ticket);
	return copy;
}

uint64_t sim_disk_unflushed_bytes(const struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	uint64_t bytes = 0;

	list_for_each(node, &disk->pages)
	{
		const struct sim_page *page = list_entry(node, struct sim_page, node);
		uint64_t at = page->index * SIM_PAGE_BYTES;

		if (at >= offset && at - offset < length) {
			bytes += 512u * (uint64_t)__builtin_popcount(page->dirty);
		}
	}
	return bytes;
}

/* --- functions for tests -------------------------------------------------------------------- */

struct sim_disk *sim_disk_create(const char *name, const struct sim_disk_options *options)
{
	struct sim_disk *disk = calloc(1, sizeof(*disk));

	GMB_ASSERT(disk != NULL);
	GMB_ASSERT(sim_world.running);
	disk->name = strdup(name);
	disk->options = *options;
	if (disk->options.sector_bytes == 0) {
		disk->options.sector_bytes = 512;
	}
	if (disk->options.direct_memory_align == 0) {
		disk->options.direct_memory_align = disk->options.direct_offset_align;
	}
	GMB_ASSERT(disk->options.sector_bytes == 512 || disk->options.sector_bytes == 4096);
	disk->size = options->size;
	list_init(&disk->pages);
	list_init(&disk->cached);
	list_init(&disk->parked);
	leaves_resize(disk, disk->size);
	sim_zones_init(disk);
	disk->identity = ++sim_world.identity_last;
	list_for_each(node, &sim_world.disks)
	{
		GMB_ASSERT(strcmp(list_entry(node, struct sim_disk, node)->name, name) != 0);
	}
	list_push_back(&sim_world.disks, &disk->node);
	return disk;
}

struct sim_disk *sim_disk_find(const char *name)
{
	list_for_each(node, &sim_world.disks)
	{
		struct sim_disk *disk = list_entry(node, struct sim_disk, node);

		if (strcmp(disk->name, name) == 0) {
			return disk;
		}
	}
	return NULL;
}

uint64_t sim_disk_size(const struct sim_disk *disk)
{
	return disk->size;
}

void sim_disk_resize(struct sim_disk *disk, uint64_t size)
{
	if (size < disk->size) {
		/* If the disk grows again, the range reads as zeroes. */
		sim_disk_fill(disk, size, disk->size - size, 0, true);
		sim_disk_written(disk, size, disk->size - size);
		sim_disk_harden(disk, size, disk->size - size, UINT64_MAX);
	}
	leaves_resize(disk, size);
	disk->size = size;
}

void sim_disk_set_bad_flushes(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	disk->bad_flush_offset = offset;
	disk->bad_flush_length = length;
}

void sim_disk_set_bad(
	struct sim_disk *disk, uint64_t offset, uint64_t length, bool reads, bool writes)
{
	disk->bad_offset = offset;
	disk->bad_length = length;
	disk->bad_reads = reads;
	disk->bad_writes = writes;
}

bool sim_disk_is_bad(const struct sim_disk *disk, uint64_t offset, uint64_t length, bool write)
{
	return disk->bad_length > 0 && (write ? disk->bad_writes : disk->bad_reads) &&
	       offset < disk->bad_offset + disk->bad_length && disk->bad_offset < offset + length;
}

void sim_disk_destroy(struct sim_disk *disk)
{
	list_for_each(node, &sim_world.files)
	{
		GMB_ASSERT(list_entry(node, struct sim_file, node)->disk != disk);
	}
	list_remove(&disk->node);
	sim_cache_drop_all(disk);
	while (!list_is_empty(&disk->pages)) {
		free(list_entry(list_pop_front(&disk->pages), struct sim_page, node));
	}
	for (uint64_t i = 0; i < disk->leaf_count; i++) {
		free(disk->leaves[i]);
	}
	free(disk->leaves);
	free(disk->zones);
	free(disk->name);
	free(disk);
}

void sim_disk_stop(void)
{
	while (!list_is_empty(&sim_world.disks)) {
		sim_disk_destroy(list_entry(list_first(&sim_world.disks), struct sim_disk, node));
	}
}
