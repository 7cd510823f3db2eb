// SPDX-License-Identifier: Apache-2.0
/*
 * The file of the write cache: finding it, deciding whether this disk may use it, and restoring the
 * pages that a killed process has left.
 *
 * Invariants: an error in the configuration is never recorded as a loss of data, because the record
 * in the anchor is permanent. A valid file with pages is never removed.
 *
 * Called when the store is opened and closed, by recovery, by checkpoints (tag and folder of the
 * anchor) and by `gmblock check`.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum { PATH_BYTES = 4096, PREFIX_BYTES = 48, SHOWN_BYTES = 128 };

const char *flash_cache_directory(const char *directory)
{
	const char *told = getenv("GMBLOCK_CACHE_DIR");

	if (directory != NULL) {
		return directory;
	}
	return told != NULL && told[0] == '/' ? told : FLASH_CACHE_DIRECTORY;
}

/* Makes the prefix that the names of all cache files of this UUID have. The rest of a name is the
 * file's tag, a random number, so that no other user can create the file first, and no two files
 * have the same name. */
static void make_prefix(const struct flash_anchor *anchor, char prefix[PREFIX_BYTES])
{
	int at = snprintf(prefix, PREFIX_BYTES, "gmblock-");

	for (uint32_t i = 0; i < FLASH_UUID_BYTES; i++) {
		at += snprintf(prefix + at, 3, "%02x", anchor->uuid[i]);
	}
	snprintf(prefix + at, 2, "-");
}

static void make_path(
	const struct flash_anchor *anchor, uint64_t tag, const char *folder, char *path)
{
	char prefix[PREFIX_BYTES];

	make_prefix(anchor, prefix);
	snprintf(path, PATH_BYTES, "%s/%s%016llx.cache", folder, prefix, (unsigned long long)tag);
}

/* Returns a random number that is not 0, or 0 if the system cannot provide one. */
static uint64_t make_random(void)
{
	uint64_t number = 0;

	while (number == 0 && getrandom(&number, sizeof(number), 0) == sizeof(number)) {
	}
	return number;
}

/* --- owner of a file ------------------------------------------------------------------------- */

/* True if this machine has written the file since its last boot, for a store with this UUID. */
static bool is_known(const struct flash_anchor *anchor, const uint8_t *bytes, uint64_t size,
	struct flash_cache_head *head)
{
	uint8_t boot_id[DISK_BOOT_ID_BYTES];

	return size >= FLASH_BLOCK_BYTES && disk_boot_id(boot_id) == 0 &&
	       flash_cache_head_decode(bytes, size, head) &&
	       memcmp(head->boot_id, boot_id, sizeof(boot_id)) == 0 &&
	       memcmp(head->uuid, anchor->uuid, sizeof(head->uuid)) == 0;
}

/* True if this anchor refers to the file. If the store was copied, the anchor of the copy refers to
 * the same file. */
static bool is_meant(const struct flash_anchor *anchor, const uint8_t *bytes, uint64_t size,
	struct flash_cache_head *head)
{
	return is_known(anchor, bytes, size, head) && head->tag == anchor->cache_tag &&
	       head->disk_blocks == anchor->geometry.disk_blocks;
}

static bool is_of_disk(const struct flash_cache_head *head, const uint64_t disk[2])
{
	return head->disk[0] == disk[0] && head->disk[1] == disk[1];
}

static const struct flash_cache_entry *entries_of(const struct disk_shared *file)
{
	return (const void *)(file->bytes + FLASH_BLOCK_BYTES);
}

/* Counts the slots that are not free, whether their entries are valid or not. */
static uint32_t cache_file_count_dirty(const struct disk_shared *file, uint32_t slot_count)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < slot_count; i++) {
		count += entries_of(file)[i].commit != 0;
	}
	return count;
}

uint32_t flash_cache_left(const struct flash *flash)
{
	return cache_file_count_dirty(&flash->cache.file, flash->cache.slot_count);
}

/* A search for the file that an anchor refers to. */
struct search {
	const struct flash_anchor *anchor;
	const uint64_t *disk; /* identity of the disk with the anchor */
	bool is_wanted;	      /* the file will be used, not only examined */
	bool takes;	      /* a file of another disk is accepted */

	char path[PATH_BYTES];
	char shown[SHOWN_BYTES]; /* path of the file's disk, for messages */
	struct disk_shared file;
	struct flash_cache_head head;
	bool is_others; /* the file belongs to another disk: this one is a copy, or was moved */
	uint32_t dirty; /* number of slots in use */
};

/* Opens the cache file in this folder. Returns 0 if it is claimed (or readable), -ENOENT if there
 * is none, or an error of disk_shared_open(). */
static int find_in(struct search *search, const char *folder, struct error *error)
{
	uint8_t head[FLASH_BLOCK_BYTES];
	uint32_t flags = search->is_wanted ? 0 : DISK_SHARED_READ;
	uint64_t size = 0;
	int result;

	make_path(search->anchor, search->anchor->cache_tag, folder, search->path);
	result = disk_shared_peek(search->path, head, sizeof(head), &size, error);
	if (result == 0 && !is_meant(search->anchor, head, size, &search->head)) {
		result = -ENOENT;
	}
	if (result < 0) {
		return result;
	}
	log_escape(search->shown, sizeof(search->shown), search->head.disk_path,
		strlen(search->head.disk_path));
	search->is_others = !is_of_disk(&search->head, search->disk);
	/* the file is only read, because the server of the other disk may be opening it */
	if (search->is_others && !search->takes) {
		flags = DISK_SHARED_READ;
	}
	flags |= search->is_others ? 0 : DISK_SHARED_WAIT;
	result = disk_shared_open(search->path, flags, &search->file, error);
	if (result < 0) {
		return result;
	}
	/* Check the file again now that it is claimed: before the claim, its owner could have
	 * reused or removed it. */
	if (!is_meant(search->anchor, search->file.bytes, search->file.size, &search->head)) {
		disk_shared_close(&search->file, false);
		return -ENOENT;
	}
	search->dirty = cache_file_count_dirty(&search->file, search->head.slot_count);
	return 0;
}

/* The epoch changes with each loss of answered, unflushed changes, so that clients detect the
 * loss. */
static void set_epoch(struct flash *flash)
{
	uint8_t boot_id[DISK_BOOT_ID_BYTES];
	struct be64 first;

	if (flash->anchor.cache_losses == 0 || disk_boot_id(boot_id) < 0) {
		return;
	}
	memcpy(&first, boot_id, sizeof(first));
	flash->base.info.epoch = be64_get(first) ^ flash->anchor.cache_losses;
}

void flash_cache_count_loss(struct flash *flash)
{
	flash->anchor.cache_losses = make_random();
	set_epoch(flash);
}

/* Logs a loss and records it in the anchor. Returns -ENOENT: the store is opened without the
 * file. */
static int cache_file_lose(struct flash *flash, const char *reason, const char *path)
{
	log_warning("flash store '%s': writes that were not flushed before its server ended are "
		    "lost: %s '%s'",
		flash->path, reason, path);
	flash_cache_count_loss(flash);
	return -ENOENT;
}

/* --- finding the file ------------------------------------------------------------------------ */

/* Returns an error if the folder cannot be examined, which does not mean that the file is lost. */
static int look_at_folder(const struct flash *flash, const char *folder, struct error *error)
{
	struct error reason;
	int result = disk_shared_look(folder, &reason);

	return result == 0 ? 0
			   : error_set(error, -EINVAL,
				     "'%s' may have changes in a cache file left by its server, "
				     "and the search for that file failed: %s; correct cache-dir, "
				     "or, if the file is lost, set cache-dir to another folder on "
				     "a tmpfs, such as " FLASH_CACHE_DIRECTORY
				     ", to continue without the changes",
				     flash->path, reason.text);
}

/* Searches the configured folder, and then the one in the anchor. Sets *elsewhere if the file is,
 * or might be, in the folder of the anchor. */
static int cache_file_find(const struct flash *flash, const char *folder, struct search *search,
	bool *elsewhere, struct error *error)
{
	const char *before = flash->anchor.cache_folder;
	int result = find_in(search, folder, error);

	*elsewhere = false;
	if (result != -ENOENT || before[0] == '\0' || strcmp(before, folder) == 0) {
		return result;
	}
	result = find_in(search, before, error);
	*elsewhere = result != -ENOENT && result != -ENOTDIR;
	if (!*elsewhere) {
		make_path(search->anchor, search->anchor->cache_tag, folder, search->path);
	}
	return *elsewhere ? result : -ENOENT;
}

/* Decides whether to use a file that belongs to another disk and is not in use. Returns 0 to use
 * it, -ENOENT to open this disk without it, or an error. */
static int judge_others(struct flash *flash, const struct flash_cache_options *options,
	const struct search *search, struct error *error)
{
	if (options->others == FLASH_OTHERS_TAKE && !flash->is_read_only) {
		return 0;
	}
	if (search->dirty == 0) {
		return -ENOENT;
	}
	if (options->others == FLASH_OTHERS_LEAVE) {
		return cache_file_lose(
			flash, "cache-file=leave leaves the writes in", search->path);
	}
	return error_set(error, -EEXIST,
		"'%s' was copied or moved: its cache file '%s' has %u changed block%s of '%s'; if "
		"the original store still exists, serve it first; if the store was moved here, "
		"serve it here once with cache-file=take%s; cache-file=leave opens the copy "
		"without the changes",
		flash->path, search->path, search->dirty, search->dirty == 1 ? "" : "s",
		search->shown, flash->is_read_only ? " and without 'readonly'" : "");
}

/* Reports that the file is in the anchor's folder, but another folder is configured or the file
 * cannot be used. */
static int refuse_elsewhere(const struct flash *flash, const struct search *search, int result,
	const struct error *reason, struct error *error)
{
	const char *folder = flash->anchor.cache_folder;

	if (result == 0 && search->dirty == 0) {
		/* The message does not suggest removing the file: a start without the file would
		 * record a loss of changes. */
		return error_set(error, -EEXIST,
			"flash store '%s' has a cache file without changes, '%s'; serve the store "
			"once with cache-dir=%s",
			flash->path, search->path, folder);
	}
	if (result == 0) {
		return error_set(error, -EEXIST,
			"store '%s' has %u changed block%s in its cache file '%s'; serve it with "
			"cache-dir=%s, or remove the file to open the store without the changes",
			flash->path, search->dirty, search->dirty == 1 ? "" : "s", search->path,
			folder);
	}
	return error_set(error, -EEXIST,
		"'%s' may have changes in its cache file in '%s', which cannot be used: %s; "
		"correct that and serve the store with cache-dir=%s, or remove the file to open "
		"the store without the changes",
		flash->path, folder, reason->text, folder);
}

/* Decides how to open the store, given the result of cache_file_find(). Returns 0 to use the file,
 * -ENOENT to open the store without it, or an error. */
static int judge(struct flash *flash, const struct flash_cache_options *options, int result,
	bool elsewhere, struct search *search, struct error *error)
{
	struct error reason = *error;

	if (result == -ENOENT) {
		return cache_file_lose(flash, "no cache file", search->path);
	}
	/* A process uses the file, and the file belongs to another disk. So this store is a copy
	 * that was made while the disk's server was running. */
	if (result == -EBUSY && search->is_others) {
		return cache_file_lose(flash,
			"the store was copied while a server held the changes in its cache file",
			search->path);
	}
	if (result == 0 && search->is_others) {
		result = judge_others(flash, options, search, error);
		if (result < 0) {
			return result;
		}
	}
	if (result == -EBUSY || result == -EAGAIN) {
		error_prefix(error, "'%s' may have changes in its cache file", flash->path);
		return result;
	}
	if (elsewhere && (result < 0 || options->directory != NULL)) {
		return refuse_elsewhere(flash, search, result, &reason, error);
	}
	if (result < 0) {
		error_prefix(error,
			"'%s' may have changes in its cache file, which cannot be used; correct "
			"that, or remove the file to open the store without the changes",
			flash->path);
	}
	return result;
}

/* Finds the file that the anchor refers to. Returns -ENOENT if there is none, or if this disk does
 * not need the file. */
static int open_found(struct flash *flash, const struct flash_cache_options *options,
	struct search *search, struct error *error)
{
	uint8_t boot_id[DISK_BOOT_ID_BYTES];
	const char *folder = flash_cache_directory(options->directory);
	bool elsewhere;
	int result;

	if (disk_boot_id(boot_id) < 0) {
		return error_set(error, -EINVAL,
			"'%s' may have changes in its cache file, but the boot ID of this machine "
			"is unknown; set GMBLOCK_BOOT_ID to the contents of "
			"/proc/sys/kernel/random/boot_id",
			flash->path);
	}
	make_path(&flash->anchor, flash->anchor.cache_tag, folder, search->path);
	/* After a reboot the tmpfs is empty: a file of this name cannot be the one that the anchor
	 * means. */
	if (memcmp(boot_id, flash->anchor.cache_boot_id, sizeof(boot_id)) != 0) {
		return cache_file_lose(flash,
			"the machine has rebooted, which removed the cache file", search->path);
	}
	result = look_at_folder(flash, folder, error);
	if (result < 0) {
		return result;
	}
	search->anchor = &flash->anchor;
	search->disk = flash->identity;
	search->is_wanted = !flash->is_read_only;
	search->takes = options->others == FLASH_OTHERS_TAKE;
	result = cache_file_find(flash, folder, search, &elsewhere, error);
	result = judge(flash, options, result, elsewhere, search, error);
	if (result < 0) {
		disk_shared_close(&search->file, false);
	}
	return result;
}

/* --- opening --------------------------------------------------------------------------------- */

/* For a read-only store: returns -EBUSY if the cache file has changes that are not on the disk. */
static int open_to_read(struct flash *flash, const struct flash_cache_options *options,
	struct search *search, struct error *error)
{
	int result =
		flash->anchor.cache_tag == 0 ? -ENOENT : open_found(flash, options, search, error);

	if (result < 0) {
		return result == -ENOENT ? 0 : result;
	}
	disk_shared_close(&search->file, false);
	return search->dirty == 0 ? 0
				  : error_set(error, -EBUSY,
					    "flash store '%s' has %u changed block%s in the cache "
					    "file '%s', left by a server that was killed; serve "
					    "the store once without 'readonly'",
					    flash->path, search->dirty,
					    search->dirty == 1 ? "" : "s", search->path);
}

static void fill_head(
	const struct flash *flash, uint64_t tag, uint64_t bytes, struct flash_cache_head *head)
{
	uint64_t count = MAX(bytes >> FLASH_BLOCK_SHIFT, (uint64_t)FLASH_CACHE_SLOTS_MIN);
	char *path = realpath(flash->path, NULL);

	*head = (struct flash_cache_head){
		.tag = tag,
		.disk_blocks = flash->anchor.geometry.disk_blocks,
		.slot_count = (uint32_t)MIN(count, (uint64_t)FLASH_CACHE_SLOTS_MAX),
		.disk = { flash->identity[0], flash->identity[1] },
	};
	memcpy(head->uuid, flash->anchor.uuid, sizeof(head->uuid));
	snprintf(head->disk_path, sizeof(head->disk_path), "%s", path != NULL ? path : flash->path);
	free(path);
}

/* Creates a new file. The anchor refers to it only after the next checkpoint. */
static int cache_file_make(struct flash *flash, const struct flash_cache_options *options,
	char *path, struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	struct flash_cache_head *head = &cache->head;
	uint64_t tag = make_random();
	int result;

	fill_head(flash, tag, options->bytes, head);
	if (disk_boot_id(head->boot_id) < 0) {
		return error_set(error, -ENOENT,
			"cannot read the boot ID of this machine; set GMBLOCK_BOOT_ID");
	}
	if (tag == 0) {
		return error_set(error, -EIO, "cannot get random numbers from the system");
	}
	make_path(&flash->anchor, tag, flash_cache_directory(options->directory), path);
	result = disk_shared_open(path, DISK_SHARED_CREATE, &cache->file, error);
	if (result == 0) {
		result = disk_shared_resize(
			&cache->file, flash_cache_file_bytes(head->slot_count), error);
	}
	if (result == 0) {
		flash_cache_head_encode(head, cache->file.bytes);
		cache->slot_count = head->slot_count;
		cache->tag = tag;
	}
	return result;
}

/* Uses the file that was found. bytes == 0: no cache is configured, so its pages are written and no
 * new ones are stored. */
static void cache_file_take(struct flash *flash, const struct search *search, uint64_t bytes)
{
	struct flash_cache *cache = &flash->cache;

	cache->file = search->file;
	cache->head = search->head;
	cache->slot_count = search->head.slot_count;
	cache->tag = search->head.tag;
	cache->is_found = true;
	cache->is_leaving = bytes == 0;
}

static void tidy(struct flash *flash, const char *folder);

static int open_to_write(struct flash *flash, const struct flash_cache_options *options,
	struct search *search, struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	int result = -ENOENT;

	/* The process that hands over the store still uses its file, and will remove it. */
	cache->is_busy = options->is_inherited;
	set_epoch(flash);
	if (flash->anchor.cache_tag != 0 && !options->is_inherited) {
		result = open_found(flash, options, search, error);
	}
	if (result == 0) {
		cache_file_take(flash, search, options->bytes);
	}
	if (result != -ENOENT) {
		return result;
	}
	if (!options->is_inherited) {
		tidy(flash, flash_cache_directory(options->directory));
	}
	if (options->bytes > 0 && cache_file_make(flash, options, search->path, error) < 0) {
		disk_shared_close(&cache->file, true);
		log_warning("flash store '%s' has no write cache: %s", flash->path, error->text);
	}
	return 0;
}

int flash_cache_open(
	struct flash *flash, const struct flash_cache_options *options, struct error *error)
{
	struct search *search = calloc(1, sizeof(*search));
	int result;

	if (search == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", flash->path);
	}
	result = flash->is_read_only ? open_to_read(flash, options, search, error)
				     : open_to_write(flash, options, search, error);
	free(search);
	return result;
}

uint64_t flash_cache_tag(const struct flash *flash)
{
	const struct flash_cache *cache = &flash->cache;

	/* If the store is being closed or quiesced, and the file has no pages that are not in the
	 * log, the next process must not search for it. */
	return (flash->is_closing || !list_is_empty(&flash->checkpoint.quiescing)) &&
			       !flash_cache_is_dirty(cache)
		       ? 0
		       : cache->tag;
}

void flash_cache_tell_place(struct flash *flash)
{
	const char *path = flash->cache.file.path;
	struct flash_anchor *anchor = &flash->anchor;

	memset(anchor->cache_folder, 0, sizeof(anchor->cache_folder));
	memset(anchor->cache_boot_id, 0, sizeof(anchor->cache_boot_id));
	if (anchor->cache_tag == 0) {
		return;
	}
	memcpy(anchor->cache_boot_id, flash->cache.head.boot_id, sizeof(anchor->cache_boot_id));
	if (path[0] == '/') {
		size_t bytes = (size_t)(strrchr(path, '/') - path);

		memcpy(anchor->cache_folder, path, bytes < FLASH_FOLDER_BYTES ? bytes : 0);
	}
}

/* --- closing --------------------------------------------------------------------------------- */

/* Removes a cache file with this UUID unless it might be needed. These files stay: a file that a
 * process uses, a file whose head names another disk, the file that the anchor refers to, and, with
 * a warning, a file with changes. */
static void tidy_file(void *context, const char *path)
{
	struct flash *flash = context;
	const struct flash_anchor *anchor = &flash->anchor;
	uint8_t bytes[FLASH_BLOCK_BYTES];
	struct flash_cache_head head;
	struct disk_shared file;
	struct error error;
	uint64_t size;
	bool is_of_another;

	if (disk_shared_peek(path, bytes, sizeof(bytes), &size, &error) < 0) {
		return; /* the file belongs to another user */
	}
	is_of_another = is_known(anchor, bytes, size, &head) && !is_of_disk(&head, flash->identity);
	if (is_of_another || disk_shared_open(path, 0, &file, &error) < 0) {
		return;
	}
	/* Without a valid head the file is incomplete, and no store could use it. */
	if (!is_known(anchor, file.bytes, file.size, &head)) {
		disk_shared_close(&file, true);
	} else if (head.tag == anchor->cache_tag || !is_of_disk(&head, flash->identity)) {
		/* Another disk's file, or the one that the anchor refers to, stays. */
		disk_shared_close(&file, false);
	} else if (cache_file_count_dirty(&file, head.slot_count) == 0) {
		disk_shared_close(&file, true);
	} else {
		log_warning(
			"flash store '%s': cache file '%s' has changes for earlier or other "
			"contents of the disk; remove the file, unless you restore those contents",
			flash->path, path);
		disk_shared_close(&file, false);
	}
}

/* Removes cache files in the folder that processes killed during a handover have left. */
static void tidy(struct flash *flash, const char *folder)
{
	char prefix[PREFIX_BYTES];

	make_prefix(&flash->anchor, prefix);
	disk_shared_list(folder, prefix, tidy_file, flash);
}

void flash_cache_close(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	const char *path = cache->file.path;

	/* After a handover, and before the first checkpoint, it is unknown which files are needed,
	 * so none is removed. */
	if (cache->slot_count > 0 && flash->counters.checkpoints > 0 && !flash->base.is_let_go) {
		char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));

		if (folder != NULL) {
			tidy(flash, folder);
		}
		free(folder);
	}
	/* The file stays after a failure, because it has the only copy of its pages. */
	disk_shared_close(
		&cache->file, flash->failed == 0 && flash->anchor.cache_tag != cache->tag);
}

/* --- contents -------------------------------------------------------------------------------- */

struct found {
	struct flash_cache_page page;
	uint32_t slot;
};

/* Sorts by counter, so that the newest page of a block is restored last. */
static int cache_file_compare(const void *a, const void *b)
{
	uint64_t one = ((const struct found *)a)->page.counter;
	uint64_t other = ((const struct found *)b)->page.counter;

	return one < other ? -1 : one > other;
}

/* Stores in the file the number of the first record that is not yet written to the log. The next
 * start compares this position with the end of the log: a log that ends earlier belongs to an older
 * copy of the disk. No position is stored until the anchor refers to the file (is_recorded).
 * Otherwise the next start would not find the records of this run and would reject its own disk. */
void flash_cache_follow(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;

	if (cache->is_recorded && cache->slot_count > 0) {
		flash_cache_head_follow(cache->file.bytes, flash->log.written_seq);
	}
}

int flash_cache_compare(struct flash *flash, uint64_t end, struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	const struct flash_cache_head *head = &cache->head;

	if (!cache->is_found) {
		return 0;
	}
	if (head->followed > end && cache->found_count > 0) {
		return error_set(error, -ESTALE,
			"the log of '%s' lacks the last records that its server wrote (%llu), and "
			"the cache file '%s' still has changed blocks (%u): the store was replaced "
			"by an earlier copy, or the disk has lost writes; restore the newer copy, "
			"or remove the cache file to open the store as it is",
			flash->path, (unsigned long long)(head->followed - end), cache->file.path,
			cache->found_count);
	}
	/* If the cache file has no pages, the store can be opened, but changes in the missing
	 * records are lost. */
	if (head->followed > end && !flash_has_loss(flash)) {
		log_warning("flash store '%s': its log lacks the last records that its server "
			    "wrote (%llu): their data is lost",
			flash->path, (unsigned long long)(head->followed - end));
		flash_cache_count_loss(flash);
	}
	/* cache-file=take: the file belongs to this disk from now on. */
	if (!is_of_disk(head, flash->identity)) {
		flash_cache_head_give(cache->file.bytes, flash->identity);
	}
	return 0;
}

bool flash_cache_knows_end(const struct flash *flash, uint64_t end)
{
	return flash->cache.is_found && flash->cache.head.followed == end;
}

/* Runs before the log is replayed. The replay then discards pages that a record supersedes. */
int flash_cache_load(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;
	struct found *all;
	uint32_t count = 0;
	uint32_t bad = 0;

	if (cache->is_busy && flash->anchor.cache_tag != 0) {
		return -EBUSY;
	}
	if (!cache->is_found) {
		return 0;
	}
	all = malloc(cache->slot_count * sizeof(*all));
	if (all == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < cache->slot_count; i++) {
		const struct flash_cache_entry *entry = &cache->entries[i];

		if (entry->commit == 0) {
			continue;
		}
		if (flash_cache_entry_decode(
			    entry, flash_cache_page(cache, i), &flash->anchor, &all[count].page)) {
			all[count++].slot = i;
		} else {
			bad++;
		}
	}
	qsort(all, count, sizeof(*all), cache_file_compare);
	for (uint32_t i = 0; i < count; i++) {
		flash_cache_restore(flash, all[i].slot, &all[i].page);
	}
	free(all);
	cache->found_count = count;
	if (bad > 0) {
		log_warning("flash store '%s': %u blocks in its cache file are damaged; their data "
			    "is lost",
			flash->path, bad);
		flash_cache_count_loss(flash);
	}
	return 0;
}

void flash_cache_check(const struct flash *flash, struct store_check *check)
{
	const struct flash_anchor *anchor = &flash->anchor;
	struct search *search;
	struct flash_cache_page page;
	struct error error;
	uint64_t bad = 0;
	int result;

	if (anchor->cache_tag == 0) {
		return;
	}
	search = calloc(1, sizeof(*search));
	if (search == NULL) {
		check->fault(check, "not enough memory to examine the cache file");
		return;
	}
	search->anchor = anchor;
	search->disk = flash->identity;
	result = find_in(search,
		anchor->cache_folder[0] == '\0' ? flash_cache_directory(NULL)
						: anchor->cache_folder,
		&error);
	if (result == -ENOENT) {
		error_set(&error, result,
			"the cache file is in another folder than '%.*s', or was lost in a reboot",
			(int)(strrchr(search->path, '/') - search->path), search->path);
	}
	/* Programs can distinguish these words from a path, which begins with a slash. */
	if (result < 0) {
		check->fact(check, "cache",
			result == -EBUSY    ? "in-use"
			: result == -ENOENT ? "missing"
					    : "unreadable");
		check->fact(check, "cache-note",
			result == -EBUSY ? "a server is using the cache file" : error.text);
		free(search);
		return;
	}
	for (uint32_t i = 0; i < search->head.slot_count; i++) {
		const struct flash_cache_entry *entry = &entries_of(&search->file)[i];
		const uint8_t *slot = search->file.bytes +
				      flash_cache_slots_at(search->head.slot_count) +
				      (uint64_t)i * FLASH_BLOCK_BYTES;

		bad += entry->commit != 0 && !flash_cache_entry_decode(entry, slot, anchor, &page);
	}
	check->fact(check, "cache", search->path);
	if (search->is_others) {
		check->fact(check, "cache-of", search->shown);
	}
	check->amount(check, "cached", (uint64_t)search->dirty << FLASH_BLOCK_SHIFT);
	disk_shared_close(&search->file, false);
	free(search);
	if (bad > 0) {
		char text[96];

		snprintf(text, sizeof(text), "%llu blocks in the cache file are damaged",
			(unsigned long long)bad);
		check->fault(check, text);
	}
}
