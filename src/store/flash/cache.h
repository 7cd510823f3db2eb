// SPDX-License-Identifier: Apache-2.0
/*
 * The write cache of a flash store: pages in a file of a tmpfs, so that what was answered outlives
 * the server's process as what is in the page cache does (docs/design/0006). The file is described
 * in docs/protocol/flash.md, the reasons are in docs/design/0023-flash.md.
 *
 *   small write ─▶ a new slot, answered; the slot of the page before is freed
 *   eviction    ─▶ the oldest dirty pages, sorted ─▶ records ─▶ clean
 *   flush       ─▶ all that were dirty at the time ─▶ records ─▶ sync ─▶ done
 *   direct write, trim ─▶ record, which supersedes the page ─▶ its slot is freed
 *
 * A slot stays dirty in the file until its record is written: a kill loses nothing. Each page has a
 * stamp, the number of the record that was being filled when it came: records from there on that
 * write its block are newer, or have the page itself. So a kill between the end of a record and
 * the freeing of a slot brings back no old page.
 *
 * Only dirty pages in the file count after a kill. Clean ones are what a slot still has, in this
 * process; they save reads of the collector, and of clients as long as they are there.
 *
 * Records are written from the slots themselves. One whose page is replaced meanwhile is used again
 * only when its record has been retired.
 *
 * Threading: as flash.h; opening and loading have the store for themselves. Ownership: the budget
 * of the start holds the tables, the file the pages. Errors: negative errno and a sentence.
 */
#pragma once

#include "disk/disk.h"
#include "store/flash/cache_lru.h"
#include "store/flash/format.h"
#include "store/store.h"

struct flash;
struct flash_cache_load;

/* Beside struct cache_slot. */
struct flash_cache_slot {
	uint64_t lpn; /* FLASH_CACHE_NONE: nothing */
	uint64_t counter;
	uint64_t stamp;
	uint64_t writing; /* number of the record that has the page, or newer contents, and is not
			   * yet written; or 0. Without a page: of the one written from here */
	uint64_t since;	  /* dirty: the counter of the first page that was not written before */
	uint32_t chain;
	bool is_superseded; /* newer contents */
	uint32_t before;    /* dirty: neighbours in the order of since */
	uint32_t behind;
};
#define FLASH_CACHE_NONE UINT64_MAX

/* A block that is to be written. */
struct flash_cache_pick {
	uint64_t lpn;
	uint64_t counter; /* of its page then: an eviction does not want a newer one */
};

struct flash_cache {
	/* Of the opening. */
	struct disk_shared file;      /* bytes == NULL: there is no cache */
	struct flash_cache_head head; /* as it was found, or made */
	uint64_t tag;
	uint32_t slot_count; /* 0: there is no cache */
	uint32_t cold_percent;
	bool is_recorded;     /* the anchor has the tag */
	bool is_busy;	      /* another process has the store, and a file of its own */
	bool is_found;	      /* the file is that of a process that was killed */
	bool is_leaving;      /* nothing goes in any more: it was found, and is not wanted */
	bool is_tight;	      /* nothing goes in, all goes out: soon writes are to be refused */
	bool is_draining;     /* the store is closed: all goes out */
	uint32_t found_count; /* pages that the file had */

	struct cache_lru lru;
	struct cache_slot *lru_slots;
	struct flash_cache_slot *slots;
	struct flash_cache_entry *entries; /* in the file */
	uint8_t *pages;			   /* in the file */
	uint16_t *page_counts;		   /* of cached blocks, by page of the map */
	uint32_t *buckets;
	uint32_t bucket_mask;
	uint32_t first; /* dirty page, in the order of since */
	uint32_t last;
	uint32_t writing_count;
	uint32_t held; /* a slot without a page from which a record is written; more by chain */
	uint64_t counter;

	struct flash_cache_pick *picks;
	struct flash_cache_load *loads; /* of pages of the map */
	uint32_t pick_count;
	bool picks_for_all;	   /* a flush, or the end: also what was changed since */
	uint64_t wanted;	   /* pages up to this counter are to be written */
	struct list_node flushing; /* parts, in the order of their arrival */
};

/* --- cache_file.c ---------------------------------------------------------------------------- */

#define FLASH_CACHE_DIRECTORY "/dev/shm" /* the default, without GMBLOCK_CACHE_DIR */

/* What is done with changes in a file that is of another disk. */
enum flash_others { FLASH_OTHERS_REFUSE, FLASH_OTHERS_TAKE, FLASH_OTHERS_LEAVE };

struct flash_cache_options {
	const char *directory; /* NULL: the default */
	uint64_t bytes;	       /* 0: none is wanted */
	bool is_passed;	       /* another process has the store, and settles before its start */
	enum flash_others others;
};

/* The folder that is meant; NULL: the default. */
const char *flash_cache_directory(const char *directory);

/* Opens or makes the file, after the anchor is known: decides slot_count. A file that has pages is
 * taken whatever its size. Without a file that could be used there is no cache, and a warning; but
 * if one was lost, the anchor says so from then on. Where the anchor refers to a file, a folder
 * that cannot be used is an error and not a loss, and so is another one than that in which it is,
 * and a file with pages that is of another disk, if options do not say what to do with it. A store
 * that is only read: -EBUSY when there are pages, which are not on the disk. -EPERM and
 * others: there is a file which may have pages and cannot be used. Blocks. */
GMB_MUST_CHECK int flash_cache_open(
	struct flash *flash, const struct flash_cache_options *options, struct error *error);
/* The file goes, unless the anchor refers to it; and so do others of the store that nobody needs.
 * Blocks. */
void flash_cache_close(struct flash *flash);
/* Finds the dirty pages in the file. On the worker thread of the recovery, before the log is
 * replayed. -ENOMEM; -EBUSY: another process has the file. */
GMB_MUST_CHECK int flash_cache_load(struct flash *flash);
/* After the replay, which has found the end of the log: -ESTALE: the pages are newer than the disk
 * by more than themselves. */
GMB_MUST_CHECK int flash_cache_compare(struct flash *flash, uint64_t end, struct error *error);
/* The server that was killed had written all records before this one, and no other. It counts only
 * if the log goes on behind the checkpoint: the file may follow an anchor late. */
bool flash_cache_knows_end(const struct flash *flash, uint64_t end);
/* After a record has been written, or a checkpoint: what comes next follows it. */
void flash_cache_follow(struct flash *flash);
/* The tag for the anchor that is written now. */
uint64_t flash_cache_tag(const struct flash *flash);
/* Has the anchor say where the file is to which its tag refers, and since when. */
void flash_cache_tell_place(struct flash *flash);
/* Pages that the file has and the log, as far as it is known, has not. */
uint32_t flash_cache_left(const struct flash *flash);
/* For `gmblock check`: what there is to say of the cache. */
void flash_cache_check(const struct flash *flash, struct store_check *check);

/* --- cache.c --------------------------------------------------------------------------------- */

/* Bytes of memory for the tables, and from where on. */
uint64_t flash_cache_bytes(const struct flash *flash);
void flash_cache_init(struct flash *flash, uint8_t *memory);
/* A page that was found: older ones first. */
void flash_cache_restore(struct flash *flash, uint32_t slot, const struct flash_cache_page *page);

/* The slot with the newest contents of a block, CACHE_NO_SLOT: it is not cached. */
uint32_t flash_cache_find(const struct flash *flash, uint64_t lpn);
/* Blocks of this page of the map that are cached. */
static inline bool flash_cache_has_page(const struct flash_cache *cache, uint64_t page)
{
	return cache->slot_count > 0 && cache->page_counts[page] > 0;
}
/* How many of count blocks (all of one page of the map) from lpn on are as the first one: cached,
 * or not. */
uint32_t flash_cache_run(
	const struct flash *flash, uint64_t lpn, uint32_t count, bool *is_cached_out);
/* What a slot has. */
static inline const uint8_t *flash_cache_page(const struct flash_cache *cache, uint32_t slot)
{
	return cache->pages + (size_t)slot * FLASH_BLOCK_BYTES;
}

/* True: records are written from the slots of dirty pages. Not where nobody can know whether writes
 * of a killed server are still under way when the next one uses the slots. */
bool flash_cache_holds(const struct flash *flash);

/* Dirty pages, of which the log has no record yet that is written. */
static inline bool flash_cache_is_dirty(const struct flash_cache *cache)
{
	return cache->slot_count > 0 &&
	       (cache_lru_dirty_count(&cache->lru) > 0 || cache->writing_count > 0);
}
/* True: this change goes into the cache. */
bool flash_cache_takes(struct flash *flash, struct store_part *part);
/* True: changes have to wait until all pages are in records. */
static inline bool flash_cache_must_drain(const struct flash_cache *cache)
{
	return cache->is_tight && cache_lru_dirty_count(&cache->lru) > 0;
}
/* Room for one block. False: flash_pump() is called when there may be. */
bool flash_cache_has_room(struct flash *flash);
/* With room: data (a block) is the newest contents of the block, and survives a kill. */
void flash_cache_put(struct flash *flash, uint64_t lpn, const uint8_t *data);
/* A record that is being filled has newer contents of these blocks. */
void flash_cache_supersede(struct flash *flash, uint64_t lpn, uint32_t count);
/* The blocks, all of one page of the map, are zeroes, and nothing of them is in the log. */
void flash_cache_drop(struct flash *flash, uint64_t lpn, uint32_t count);
/* The record is written, and the entry has taken effect. */
void flash_cache_written(struct flash *flash, const struct flash_record_entry *entry, uint64_t seq);
/* All of the record has: slots that were only held for it are free. */
void flash_cache_retired(struct flash *flash, uint64_t seq);
/* The map says from now on that the block is in that segment, or (GC_NO_SEGMENT) nowhere. */
void flash_cache_moved(struct flash *flash, uint64_t lpn, uint32_t segment);
/* The same in the recovery: a record has these blocks. */
void flash_cache_replayed(struct flash *flash, uint64_t lpn, uint32_t count, uint64_t seq);

/* Evicts and flushes. Returns true when something was done. */
bool flash_cache_step(struct flash *flash);
/* Somebody waits until pages are in the log. */
bool flash_cache_wants_log(const struct flash *flash);
/* The part is done when all that was answered is durable. */
void flash_cache_flush(struct flash *flash, struct store_part *part);
/* What was answered until now is to be written soon, for a snapshot. */
void flash_cache_want_written(struct flash *flash);
/* True when it is, or in records that are not yet written. */
bool flash_cache_has_written(const struct flash *flash);

/* What the collector does with a block of a segment that is valid there, and has that checksum. */
enum gc_way flash_cache_gc_way(struct flash *flash, uint64_t lpn, uint32_t victim, uint32_t crc);
/* The collector has appended the dirty page of the block to the record being filled. */
void flash_cache_written_back(struct flash *flash, uint64_t lpn);
