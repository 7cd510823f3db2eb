// SPDX-License-Identifier: Apache-2.0
/*
 * The write cache of a flash store: pages in a file in a tmpfs, so that answered changes outlive
 * the server's process like data in the page cache (docs/design/0006). docs/protocol/flash.md
 * describes the file, docs/design/0023-flash.md the reasons.
 *
 *   small write ─▶ a new slot, answered; the slot of the older page is freed
 *   eviction    ─▶ the oldest dirty pages, sorted ─▶ records ─▶ clean
 *   flush       ─▶ all pages that were dirty at its arrival ─▶ records ─▶ sync ─▶ done
 *   direct write, trim ─▶ record, which supersedes the page ─▶ its slot is freed
 *
 * Invariants:
 *
 * A slot stays dirty in the file until its record is written, so a kill loses no answered change. A
 * page has a stamp, the number of the record that was being filled when the page arrived. Records
 * of its block from that number on are newer than the page, or contain it. So a kill between the
 * completion of a record and the freeing of a slot does not restore an old page.
 *
 * A page never changes in its slot; new contents go to another slot, because records are written
 * from the slots themselves. If the page is replaced while its record is in flight, the slot is
 * reused only after the record has been retired.
 *
 * After a kill, only the dirty pages in the file matter, because clean pages are already in the
 * log. Clean pages serve only this process: they save reads of the garbage collector and of
 * clients.
 *
 * Called by changes, reads, garbage collection and recovery.
 *
 * Threading: as in flash.h; while the cache is opened and loaded, no other thread uses the store.
 * Ownership: the tables are in the memory that the start allocates, the pages in the file. Errors:
 * negative errno and an error message.
 */
#pragma once

#include "disk/disk.h"
#include "store/flash/cache_lru.h"
#include "store/flash/format.h"
#include "store/store.h"

struct flash;
struct flash_cache_load;

/* State of a slot. Its place in the order of eviction is in struct cache_slot. */
struct flash_cache_slot {
	uint64_t lpn; /* FLASH_CACHE_NONE: no page */
	uint64_t counter;
	uint64_t stamp;
	/* Number of the record, being filled or in flight, that contains the page or newer
	 * contents; or 0. In a slot without a page: number of the record that is written from this
	 * slot. */
	uint64_t writing;
	/* dirty: counter of the oldest change of the block that is in no record yet */
	uint64_t since;
	/* Next slot in its bucket, or in the held list. */
	uint32_t chain;
	bool is_superseded; /* the record in `writing` has newer contents */
	uint32_t before;    /* dirty: neighbours in the list ordered by `since` */
	uint32_t behind;
};
#define FLASH_CACHE_NONE UINT64_MAX

/* A cached block that was chosen to be written. */
struct flash_cache_pick {
	uint64_t lpn;
	/* Counter of the block's page when it was picked; an eviction skips a newer page. */
	uint64_t counter;
};

struct flash_cache {
	/* Set when the store is opened. */
	struct disk_shared file;      /* the cache file; bytes == NULL: no cache */
	struct flash_cache_head head; /* head of the file, as found or as created */
	uint64_t tag;
	uint32_t slot_count; /* 0: no cache */
	bool is_recorded;    /* the anchor contains the tag */
	bool is_busy;	     /* another process still uses the store, and has its own cache file */
	bool is_found;	     /* the file existed when the store was opened */
	bool is_leaving; /* the file takes no new pages: it was found, but no cache is configured */
	/* Snapshots leave so little space that writes might soon be refused. So new writes bypass
	 * the cache, and its pages are written. */
	bool is_tight;
	bool is_draining;     /* the store is being closed: all pages are written */
	uint32_t found_count; /* number of pages found in the file */

	struct cache_lru lru;
	struct cache_slot *lru_slots;
	struct flash_cache_slot *slots;
	struct flash_cache_entry *entries; /* part of the mapped file */
	uint8_t *pages;			   /* part of the mapped file */
	uint16_t *page_counts;		   /* number of cached blocks for each page of the map */
	uint32_t *buckets;
	uint32_t bucket_mask;
	uint32_t first; /* list of dirty pages, in the order of `since` */
	uint32_t last;
	/* Number of slots with a page and writing != 0. Slots in `held` have no page and are not
	 * counted. */
	uint32_t writing_count;
	/* Head of the list (linked by `chain`) of slots whose page was removed while a record is
	 * written from them. */
	uint32_t held;
	/* Counter of the newest page. */
	uint64_t counter;

	struct flash_cache_pick *picks;
	struct flash_cache_load *loads; /* reads of map pages for the picked blocks */
	uint32_t pick_count;
	/* The picks are for a flush or the shutdown: a picked block is also written if it was
	 * changed since. */
	bool picks_for_all;
	/* For a snapshot: all changes up to this counter must be written. */
	uint64_t wanted;
	struct list_node flushing; /* flushes in order of arrival */
};

/* --- cache_file.c ---------------------------------------------------------------------------- */

#define FLASH_CACHE_DIRECTORY "/dev/shm" /* default if GMBLOCK_CACHE_DIR is not set */

/* Treatment of changes in a cache file that belongs to another disk. */
enum flash_others { FLASH_OTHERS_REFUSE, FLASH_OTHERS_TAKE, FLASH_OTHERS_LEAVE };

struct flash_cache_options {
	const char *directory; /* NULL: the default */
	uint64_t bytes;	       /* 0: no cache */
	/* Another process still uses the store, and will hand it over before the start. */
	bool is_inherited;
	enum flash_others others;
};

/* Returns directory, or the default if it is NULL. */
const char *flash_cache_directory(const char *directory);

/* Opens or creates the cache file, and sets slot_count. The anchor must have been read. Blocks.
 *
 * - A file with pages is used whatever its size.
 * - If no file can be created, a warning is logged and there is no cache.
 * - If the file that the anchor refers to is lost, the loss is recorded in the anchor.
 * - In the following cases the store is not opened, and no loss is recorded, because a recorded
 *   loss is final: the folder cannot be examined; cache-dir= names another folder than the file's;
 *   the file cannot be used (-EPERM and others); it has pages of another disk, and the options do
 *   not say what to do with them.
 * - A read-only store returns -EBUSY if the file has pages, because they are not on the disk. */
GMB_MUST_CHECK int flash_cache_open(
	struct flash *flash, const struct flash_cache_options *options, struct error *error);
/* Closes the cache file and removes it, unless the anchor refers to it or the store has failed.
 * Also removes other files of the store that have no pages and are not in use. Blocks. */
void flash_cache_close(struct flash *flash);
/* Restores the dirty pages from the file. Runs on the recovery's worker thread, before the log is
 * replayed. Returns -ENOMEM, or -EBUSY if another process uses the file. */
GMB_MUST_CHECK int flash_cache_load(struct flash *flash);
/* Compares the position in the cache file (`followed`) with end, the end of the log that the replay
 * has found. Returns -ESTALE if the file has pages and the log lacks records that were written
 * before them. */
GMB_MUST_CHECK int flash_cache_compare(struct flash *flash, uint64_t end, struct error *error);
/* Records in the anchor that answered changes are lost: the epoch changes. */
void flash_cache_count_loss(struct flash *flash);
/* True if the position in the cache file shows that the killed server had written all records
 * before `end`, and no other ones. Valid only if the log continues after the checkpoint; otherwise,
 * the position can be older than the anchor. */
bool flash_cache_knows_end(const struct flash *flash, uint64_t end);
/* Stores in the file the number of the first record that is not yet written to the log. Called
 * after each record and each checkpoint. */
void flash_cache_follow(struct flash *flash);
/* Returns the cache_tag for the anchor that is about to be written; 0 if the next process does not
 * need the cache file. */
uint64_t flash_cache_tag(const struct flash *flash);
/* Stores in the anchor the folder and boot ID of the file that its cache_tag refers to. */
void flash_cache_tell_place(struct flash *flash);
/* Returns the number of pages that are only in the cache file. */
uint32_t flash_cache_left(const struct flash *flash);
/* Describes the cache file to `gmblock check`. */
void flash_cache_check(const struct flash *flash, struct store_check *check);

/* --- cache.c --------------------------------------------------------------------------------- */

/* Returns the size of the memory for the tables, which flash_cache_init() divides. */
uint64_t flash_cache_bytes(const struct flash *flash);
void flash_cache_init(struct flash *flash, uint8_t *memory);
/* Enters a page that was found in the file. Called for older pages first. */
void flash_cache_restore(struct flash *flash, uint32_t slot, const struct flash_cache_page *page);

/* Returns the slot with the newest contents of a block, or CACHE_NO_SLOT if it is not cached. */
uint32_t flash_cache_find(const struct flash *flash, uint64_t lpn);
/* True if blocks of this page of the map are cached. */
static inline bool flash_cache_has_page(const struct flash_cache *cache, uint64_t page)
{
	return cache->slot_count > 0 && cache->page_counts[page] > 0;
}
/* Returns the number of blocks, from lpn on and at most count, that are all cached or all not
 * cached. All count blocks must be in one page of the map. */
uint32_t flash_cache_run(
	const struct flash *flash, uint64_t lpn, uint32_t count, bool *is_cached_out);
/* Returns the page in a slot. */
static inline const uint8_t *flash_cache_page(const struct flash_cache *cache, uint32_t slot)
{
	return cache->pages + (size_t)slot * FLASH_BLOCK_BYTES;
}

/* True if records may be written from the memory of dirty slots. After a kill, the kernel can still
 * be reading that memory for writes in flight. So the result is false where the next server cannot
 * detect such writes (STORE_BARRIER_UNKNOWN). */
bool flash_cache_holds(const struct flash *flash);

/* True if there are dirty pages, or pages in records that are not written yet. */
static inline bool flash_cache_is_dirty(const struct flash_cache *cache)
{
	return cache->slot_count > 0 &&
	       (cache_lru_dirty_count(&cache->lru) > 0 || cache->writing_count > 0);
}
/* True if this change goes to the cache. */
bool flash_cache_takes(struct flash *flash, struct store_part *part);
/* True if changes must wait until all pages are in records. */
static inline bool flash_cache_must_drain(const struct flash_cache *cache)
{
	return cache->is_tight && cache_lru_dirty_count(&cache->lru) > 0;
}
/* True if there is a slot for one block. Otherwise flash_pump() is called when a slot might be
 * free. */
bool flash_cache_has_room(struct flash *flash);
/* Stores data, one block, as the newest contents of block lpn. The data survives a kill of the
 * process. There must be room. */
void flash_cache_put(struct flash *flash, uint64_t lpn, const uint8_t *data);
/* Called when newer contents of the blocks were appended to the record being filled. */
void flash_cache_supersede(struct flash *flash, uint64_t lpn, uint32_t count);
/* Discards the pages of the blocks, which read as zeroes from now on. No record contains this
 * change. All blocks must be in one page of the map. */
void flash_cache_drop(struct flash *flash, uint64_t lpn, uint32_t count);
/* Called for each entry of record seq after the entry was applied to the map: discards a cached
 * page that is older than the entry, or marks the page clean if the record contains this page. */
void flash_cache_written(struct flash *flash, const struct flash_record_entry *entry, uint64_t seq);
/* Called after all entries of record seq were applied: frees the slots that were held for it. */
void flash_cache_retired(struct flash *flash, uint64_t seq);
/* Called when the block's version on the device has moved to this segment, or no longer exists
 * (GC_NO_SEGMENT). */
void flash_cache_moved(struct flash *flash, uint64_t lpn, uint32_t segment);
/* Called by recovery for the blocks that record seq changes: discards their cached pages, unless
 * these are newer than the record (a stamp greater than seq). */
void flash_cache_replayed(struct flash *flash, uint64_t lpn, uint32_t count, uint64_t seq);

/* Continues evictions and flushes. Returns true if there was progress. */
bool flash_cache_step(struct flash *flash);
/* True if a flush, an eviction, a snapshot or the shutdown waits until pages are in the log. */
bool flash_cache_wants_log(const struct flash *flash);
/* Completes the part when all changes answered before it are durable. */
void flash_cache_flush(struct flash *flash, struct store_part *part);
/* For a snapshot: requests that all cached changes answered so far be written to the log soon. */
void flash_cache_want_written(struct flash *flash);
/* True when the changes requested by flash_cache_want_written() are in records, which need not be
 * written yet. */
bool flash_cache_has_written(const struct flash *flash);

/* Returns how garbage collection must move a live block of segment victim with checksum crc. */
enum gc_way flash_cache_gc_way(struct flash *flash, uint64_t lpn, uint32_t victim, uint32_t crc);
/* Called when garbage collection has appended the block's dirty page to the record being filled. */
void flash_cache_written_back(struct flash *flash, uint64_t lpn);
