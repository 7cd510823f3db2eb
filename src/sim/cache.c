// SPDX-License-Identifier: Apache-2.0
/*
 * The page cache of a simulated disk. Buffered I/O uses it, direct I/O does not, and mixing them
 * has the same hazards as on Linux:
 *
 *   buffered read, write ──▶ cache page ── write-back (whole page) ──▶ device ◀── direct I/O
 *                              ▲ filled from the device when first touched
 *
 * Direct I/O writes back dirty pages in its range before it starts. A direct write then drops the
 * pages in its range. When it is done, it drops clean pages again, except on block devices and
 * FUSE. A page that was made dirty in between stays: when it is written back, its older bytes
 * replace data of the direct write. Dirty pages are written back and clean ones evicted at random
 * times.
 */
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "sim/sim_internal.h"

static void page_writeback(struct sim_page *page)
{
	memcpy(page->current, page->cache, SIM_PAGE_BYTES);
	page->dirty = 0xff;
	for (int i = 0; i < SIM_SECTORS_PER_PAGE; i++) {
		/* since[i] is the ticket of the first write to the sector that a crash can lose.
		 * The cached write was not counted while it was only in the cache. So it can be
		 * older than a direct write that has set since[i]. */
		if (page->since[i] == 0 ||
			(page->cache_since != 0 && page->cache_since < page->since[i])) {
			page->since[i] = page->cache_since;
		}
	}
	page->cache_since = 0;
	page->cache_dirty = false;
}

static void page_drop(struct sim_page *page)
{
	free(page->cache);
	page->cache = NULL;
	page->cache_dirty = false;
	page->cache_since = 0;
	list_remove(&page->cache_node);
}

static void page_fill_cache(struct sim_disk *disk, struct sim_page *page)
{
	if (page->cache == NULL) {
		page->cache = malloc(SIM_PAGE_BYTES);
		GMB_ASSERT(page->cache != NULL);
		memcpy(page->cache, page->current, SIM_PAGE_BYTES);
		list_push_back(&disk->cached, &page->cache_node);
	}
}

void sim_cache_read(struct sim_disk *disk, uint64_t offset, void *buf, size_t len)
{
	uint8_t *to = buf;

	while (len > 0) {
		uint32_t at = (uint32_t)(offset % SIM_PAGE_BYTES);
		size_t bytes = MIN(len, (size_t)(SIM_PAGE_BYTES - at));
		struct sim_page *page = sim_page_find(disk, offset / SIM_PAGE_BYTES);

		if (page == NULL && !sim_world.options.faults.jitter) {
			memset(to, 0, bytes);
		} else {
			page = sim_page_make(disk, offset / SIM_PAGE_BYTES);
			page_fill_cache(disk, page);
			memcpy(to, page->cache + at, bytes);
		}
		to += bytes;
		offset += bytes;
		len -= bytes;
	}
}

void sim_disk_warm(struct sim_disk *disk)
{
	for (uint64_t at = 0; at < disk->size; at += SIM_PAGE_BYTES) {
		page_fill_cache(disk, sim_page_make(disk, at / SIM_PAGE_BYTES));
	}
}

void sim_cache_write(struct sim_disk *disk, uint64_t offset, const void *bytes, size_t len)
{
	const uint8_t *from = bytes;

	sim_disk_extend(disk, offset + len);
	while (len > 0) {
		uint32_t at = (uint32_t)(offset % SIM_PAGE_BYTES);
		size_t part = MIN(len, (size_t)(SIM_PAGE_BYTES - at));
		struct sim_page *page = sim_page_make(disk, offset / SIM_PAGE_BYTES);

		page_fill_cache(disk, page);
		memcpy(page->cache + at, from, part);
		page->cache_dirty = true;
		page->hole = false;
		page->dirty |= sim_sector_bits(disk, at, at + (uint32_t)part);
		from += part;
		offset += part;
		len -= part;
	}
}

void sim_cache_page_leave(struct sim_page *page, bool keep_contents)
{
	if (page->cache != NULL) {
		if (page->cache_dirty && keep_contents) {
			page_writeback(page);
		}
		page_drop(page);
	}
}

void sim_cache_page_sync(struct sim_page *page, uint64_t ticket)
{
	if (page->cache_dirty && page->cache_since != 0 && page->cache_since <= ticket) {
		page_writeback(page);
	}
}

void sim_cache_page_written(struct sim_page *page, uint64_t ticket)
{
	if (page->cache_dirty && page->cache_since == 0) {
		page->cache_since = ticket;
	}
}

const uint8_t *sim_cache_page_bytes(const struct sim_page *page)
{
	return page->cache != NULL ? page->cache : page->current;
}

void sim_cache_write_back_all(struct sim_disk *disk)
{
	list_for_each(node, &disk->cached)
	{
		struct sim_page *page = list_entry(node, struct sim_page, cache_node);

		if (page->cache_dirty) {
			page_writeback(page);
		}
	}
}

void sim_cache_drop_all(struct sim_disk *disk)
{
	while (!list_is_empty(&disk->cached)) {
		page_drop(list_entry(list_first(&disk->cached), struct sim_page, cache_node));
	}
}

/* Direct I/O writes back dirty pages in its range. A direct write also drops all pages in its
 * range. */
void sim_cache_direct_begin(struct sim_disk *disk, uint64_t offset, uint64_t length, bool write)
{
	list_for_each(node, &disk->cached)
	{
		struct sim_page *page = list_entry(node, struct sim_page, cache_node);
		uint64_t start = page->index * SIM_PAGE_BYTES;

		if (start < offset + length && offset < start + SIM_PAGE_BYTES) {
			if (write) {
				sim_cache_page_leave(page, true);
			} else if (page->cache_dirty) {
				page_writeback(page);
			}
		}
	}
}

void sim_cache_direct_end(struct sim_disk *disk, uint64_t offset, uint64_t length)
{
	list_for_each(node, &disk->cached)
	{
		struct sim_page *page = list_entry(node, struct sim_page, cache_node);
		uint64_t start = page->index * SIM_PAGE_BYTES;

		if (!page->cache_dirty && start < offset + length &&
			offset < start + SIM_PAGE_BYTES) {
			page_drop(page);
		}
	}
}

void sim_cache_tick(struct sim_disk *disk)
{
	struct list_node *node = list_first(&disk->cached);
	struct sim_page *page;

	if (node == NULL || sim_random() % 2 == 0) {
		return;
	}
	page = list_entry(node, struct sim_page, cache_node);
	if (page->cache_dirty) {
		page_writeback(page);
		list_remove(node);
		list_push_back(&disk->cached, node);
	} else if (!disk->options.keeps_cache) {
		page_drop(page);
	}
}
