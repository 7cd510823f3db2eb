// SPDX-License-Identifier: Apache-2.0
/* The file of the write cache: whose it is, and what a process that was killed has left in it. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/log.h"
#include "store/flash/flash.h"

enum { PATH_BYTES = 4096, NAMES = 4 };

static const char *folder_of(const char *directory)
{
	return directory == NULL ? FLASH_CACHE_DIRECTORY : directory;
}

/* The file has one of NAMES names; whether it is that of the store its tag says. So a process that
 * takes over has one already while that before it has not let go, and so has a copy of the store.
 */
static void make_path(
	const struct flash_anchor *anchor, const char *directory, uint32_t name, char *path)
{
	char text[FLASH_UUID_BYTES * 2 + 1];
	char number[16] = "";

	for (uint32_t i = 0; i < FLASH_UUID_BYTES; i++) {
		snprintf(text + (size_t)i * 2, 3, "%02x", anchor->uuid[i]);
	}
	if (name > 0) {
		snprintf(number, sizeof(number), "-%u", name + 1);
	}
	snprintf(path, PATH_BYTES, "%s/gmblock-%s%s.cache", folder_of(directory), text, number);
}

/* Not 0. */
static uint64_t make_random(void)
{
	uint64_t number = 0;

	while (number == 0 && getrandom(&number, sizeof(number), 0) == sizeof(number)) {
	}
	return number;
}

/* --- whose file it is ------------------------------------------------------------------------ */

/* A file that this machine, since it started, has written for a store of this UUID. */
static bool is_known(const struct flash_anchor *anchor, const struct disk_shared *file,
	struct flash_cache_head *head)
{
	uint8_t boot_id[DISK_BOOT_ID_BYTES];

	return file->size >= FLASH_BLOCK_BYTES && disk_boot_id(boot_id) == 0 &&
	       flash_cache_head_decode(file->bytes, file->size, head) &&
	       memcmp(head->boot_id, boot_id, sizeof(boot_id)) == 0 &&
	       memcmp(head->uuid, anchor->uuid, sizeof(head->uuid)) == 0;
}

/* The same, and this anchor refers to it. */
static bool is_ours(const struct flash_anchor *anchor, const struct disk_shared *file,
	struct flash_cache_head *head)
{
	return is_known(anchor, file, head) && head->tag == anchor->cache_tag &&
	       head->disk_blocks == anchor->geometry.disk_blocks;
}

static const struct flash_cache_entry *entries_of(const struct disk_shared *file)
{
	return (const void *)(file->bytes + FLASH_BLOCK_BYTES);
}

static uint32_t count_dirty(const struct disk_shared *file, uint32_t slot_count)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < slot_count; i++) {
		count += entries_of(file)[i].commit != 0;
	}
	return count;
}

/* Whether it may have what nobody else has: changes, of a copy of the store perhaps, or the tag of
 * the anchor. That is read again, as who had the file may have ended since. Blocks. */
static bool is_needed(struct flash *flash, const struct disk_shared *file)
{
	const struct flash_anchor anchor = flash->anchor;
	uint32_t good_anchor = flash->good_anchor;
	struct flash_cache_head head;
	struct error error;
	bool is_needed =
		is_known(&anchor, file, &head) &&
		(count_dirty(file, head.slot_count) > 0 || flash_anchors_read(flash, &error) < 0 ||
			flash->anchor.cache_tag == head.tag);

	flash->anchor = anchor;
	flash->good_anchor = good_anchor;
	return is_needed;
}

/* The file of which the anchor has the tag, and its path. -ENOENT: there is none. */
static int find_ours(const struct flash_anchor *anchor, const char *directory, char *path,
	struct disk_shared *file, struct flash_cache_head *head, struct error *error)
{
	int result = -ENOENT;

	for (uint32_t i = 0; i < NAMES; i++) {
		struct error failure;
		int opened;

		make_path(anchor, directory, i, path);
		opened = disk_shared_open(path, DISK_SHARED_WAIT, file, &failure);
		if (opened == 0 && is_ours(anchor, file, head)) {
			return 0;
		}
		if (opened == 0) {
			disk_shared_close(file, false);
		} else if (opened != -ENOENT && result == -ENOENT) {
			result = opened;
			*error = failure;
		}
	}
	make_path(anchor, directory, 0, path);
	return result;
}

/* It is not in the folder that was given; perhaps it is where the anchor says. -EEXIST: it is, or
 * may be. */
static int look_elsewhere(const struct flash *flash, const char *directory, struct error *error)
{
	const char *folder = flash->anchor.cache_folder;
	struct flash_cache_head head;
	struct disk_shared file;
	struct error reason;
	char path[PATH_BYTES];
	int result;

	if (folder[0] == '\0' || strcmp(folder, folder_of(directory)) == 0) {
		return 0;
	}
	result = find_ours(&flash->anchor, folder, path, &file, &head, &reason);
	/* Whoever uses it has a copy of the store: this one is claimed. */
	if (result == -ENOENT || result == -ENOTDIR || result == -EBUSY) {
		return 0;
	}
	if (result == 0) {
		disk_shared_close(&file, false);
		return error_set(error, -EEXIST,
			"'%s' has changes in its cache file '%s'; serve it with cache-dir=%s, or "
			"remove the file to open the store without them",
			flash->path, path, folder);
	}
	return error_set(error, -EEXIST,
		"'%s' has changes in its cache file, which was in '%s' and cannot be used: %s; put "
		"that right and serve it with cache-dir=%s, or remove the file to open the store "
		"without them",
		flash->path, folder, reason.text, folder);
}

/* What was answered and not flushed is gone, so who has it unflushed must hear of it. */
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

static void count_loss(struct flash *flash)
{
	flash->anchor.cache_losses = make_random();
	set_epoch(flash);
}

static void warn_of_loss(const struct flash *flash, const char *path)
{
	log_warning("flash store '%s': what was written and not flushed before its server ended is "
		    "lost: there is no cache file '%s' with it",
		flash->path, path);
}

/* --- opening --------------------------------------------------------------------------------- */

static int open_to_read(struct flash *flash, const char *directory, char *path, struct error *error)
{
	struct flash_cache_head head;
	struct disk_shared file;
	uint32_t dirty = 0;
	int result;

	if (flash->anchor.cache_tag == 0) {
		return 0;
	}
	result = find_ours(&flash->anchor, directory, path, &file, &head, error);
	if (result == -ENOENT) {
		result = look_elsewhere(flash, directory, error);
		if (result == 0) {
			warn_of_loss(flash, path);
		}
		return result;
	}
	if (result < 0) {
		error_prefix(error, "'%s' has changes in its cache file", flash->path);
		return result;
	}
	dirty = count_dirty(&file, head.slot_count);
	disk_shared_close(&file, false);
	return dirty == 0 ? 0
			  : error_set(error, -EBUSY,
				    "'%s' has %u changed blocks in '%s', where a server that was "
				    "killed has left them; serve it once without 'readonly'",
				    flash->path, dirty, path);
}

/* The file is used by somebody else, needed, or not for this user: another name will do. */
static bool is_anothers(int result)
{
	return result == -EBUSY || result == -EEXIST || result == -EPERM || result == -EACCES ||
	       result == -ELOOP;
}

/* A file that nobody needs. */
static int open_unneeded(struct flash *flash, const struct flash_cache_options *options, char *path,
	struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	uint32_t flags = DISK_SHARED_CREATE | (options->is_passed ? 0U : DISK_SHARED_WAIT);
	int result = -EBUSY;

	for (uint32_t i = 0; i < NAMES && is_anothers(result); i++) {
		make_path(&flash->anchor, options->directory, i, path);
		result = disk_shared_open(path, flags, &cache->file, error);
		if (result == 0 && is_needed(flash, &cache->file)) {
			disk_shared_close(&cache->file, false);
			result = error_set(error, -EEXIST,
				"'%s' has changes of a copy of the store, where its server was "
				"killed; serve that copy once, or remove the file",
				path);
		}
	}
	return result;
}

/* A new file in its place, of which the anchor knows nothing yet. */
static int make(struct flash *flash, uint64_t bytes, struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	uint64_t count = MAX(bytes >> FLASH_BLOCK_SHIFT, (uint64_t)FLASH_CACHE_SLOTS_MIN);
	struct flash_cache_head head = {
		.tag = make_random(),
		.disk_blocks = flash->anchor.geometry.disk_blocks,
		.slot_count = (uint32_t)MIN(count, (uint64_t)FLASH_CACHE_SLOTS_MAX),
	};
	int result;

	memcpy(head.uuid, flash->anchor.uuid, sizeof(head.uuid));
	result = disk_boot_id(head.boot_id);
	if (result < 0) {
		return error_set(error, result,
			"it is not known since when the machine runs (GMBLOCK_BOOT_ID)");
	}
	if (head.tag == 0) {
		return error_set(error, -EIO, "the system has no random numbers");
	}
	result = disk_shared_resize(&cache->file, flash_cache_file_bytes(head.slot_count), error);
	if (result == 0) {
		flash_cache_head_encode(&head, cache->file.bytes);
		cache->slot_count = head.slot_count;
		cache->tag = head.tag;
	}
	return result;
}

static void take(struct flash *flash, const struct flash_cache_head *head, uint64_t bytes)
{
	struct flash_cache *cache = &flash->cache;

	cache->slot_count = head->slot_count;
	cache->tag = head->tag;
	cache->is_found = true;
	cache->is_leaving = bytes == 0;
}

static int open_to_write(struct flash *flash, const struct flash_cache_options *options, char *path,
	struct error *error)
{
	struct flash_cache *cache = &flash->cache;
	struct flash_cache_head head;
	int result = flash->anchor.cache_tag == 0 ? 0
		     : options->is_passed	  ? -EBUSY /* wherever its file is */
					  : find_ours(&flash->anchor, options->directory, path,
						    &cache->file, &head, error);

	set_epoch(flash);
	if (result == 0 && flash->anchor.cache_tag != 0) {
		take(flash, &head, options->bytes);
		return 0;
	}
	if (result < 0 && result != -ENOENT && result != -EBUSY) {
		error_prefix(error,
			"'%s' has changes in its cache file, which cannot be used; put that "
			"right, or remove the file to open the store without them",
			flash->path);
		return result;
	}
	if (result == -ENOENT) {
		result = look_elsewhere(flash, options->directory, error);
		if (result < 0) {
			return result;
		}
		warn_of_loss(flash, path);
		count_loss(flash);
	}
	/* Perhaps by a process that hands over. */
	cache->is_busy = result == -EBUSY || options->is_passed;
	if (options->bytes == 0) {
		return 0;
	}
	result = open_unneeded(flash, options, path, error);
	if (result == 0) {
		result = make(flash, options->bytes, error);
	}
	if (result < 0) {
		disk_shared_close(&cache->file, true);
		log_warning("flash store '%s' has no write cache: %s", flash->path, error->text);
	}
	return 0;
}

/* An error in the configuration must not be taken for a loss, which is for good. */
static int look_at_folder(const struct flash *flash, const char *folder, struct error *error)
{
	struct error reason;
	int result = disk_shared_look(folder, &reason);

	return result == 0
		       ? 0
		       : error_set(error, result,
				 "'%s' has changes in a cache file, which its server has left, and "
				 "the file cannot be looked for: %s; correct cache-dir; if the "
				 "file is lost, let cache-dir be another folder on a tmpfs, such "
				 "as " FLASH_CACHE_DIRECTORY ", to go on without the changes",
				 flash->path, reason.text);
}

int flash_cache_open(
	struct flash *flash, const struct flash_cache_options *options, struct error *error)
{
	uint8_t boot_id[DISK_BOOT_ID_BYTES];
	char *path;
	int result;

	if (flash->anchor.cache_tag != 0 && disk_boot_id(boot_id) < 0) {
		return error_set(error, -ENOENT,
			"'%s' has changes in its cache file, and it is not known since when the "
			"machine runs; set GMBLOCK_BOOT_ID to what "
			"/proc/sys/kernel/random/boot_id says",
			flash->path);
	}
	if (flash->anchor.cache_tag != 0 && !options->is_passed) {
		result = look_at_folder(flash, folder_of(options->directory), error);
		if (result < 0) {
			return result;
		}
	}
	path = malloc(PATH_BYTES);
	if (path == NULL) {
		return error_set(error, -ENOMEM, "not enough memory to open '%s'", flash->path);
	}
	result = flash->is_read_only ? open_to_read(flash, options->directory, path, error)
				     : open_to_write(flash, options, path, error);
	free(path);
	return result;
}

uint64_t flash_cache_tag(const struct flash *flash)
{
	const struct flash_cache *cache = &flash->cache;

	/* Who has the store next needs the file no more. */
	return (flash->is_closing || !list_is_empty(&flash->settling)) &&
			       !flash_cache_is_dirty(cache)
		       ? 0
		       : cache->tag;
}

void flash_cache_tell_folder(struct flash *flash)
{
	const char *path = flash->cache.file.path;
	char *folder = flash->anchor.cache_folder;

	memset(folder, 0, FLASH_FOLDER_BYTES);
	if (flash->anchor.cache_tag != 0 && path[0] == '/') {
		size_t bytes = (size_t)(strrchr(path, '/') - path);

		memcpy(folder, path, bytes < FLASH_FOLDER_BYTES ? bytes : 0);
	}
}

/* What processes have left that were killed while one took over from another. */
static void remove_unneeded(struct flash *flash)
{
	const char *own = flash->cache.file.path;
	char *directory = strndup(own, (size_t)(strrchr(own, '/') - own));
	char *path = malloc(PATH_BYTES);

	for (uint32_t i = 0; directory != NULL && path != NULL && i < NAMES; i++) {
		struct disk_shared file;
		struct error error;

		make_path(&flash->anchor, directory, i, path);
		if (strcmp(path, own) != 0 && disk_shared_open(path, 0, &file, &error) == 0) {
			disk_shared_close(&file, !is_needed(flash, &file));
		}
	}
	free(path);
	free(directory);
}

void flash_cache_close(struct flash *flash)
{
	struct flash_cache *cache = &flash->cache;

	/* Who only had the store for another process to take knows nothing of what is needed. */
	if (cache->slot_count > 0 && flash->counters.checkpoints > 0 && !flash->base.is_let_go) {
		remove_unneeded(flash);
	}
	disk_shared_close(
		&cache->file, flash->failed == 0 && flash->anchor.cache_tag != cache->tag);
}

/* --- what is in it --------------------------------------------------------------------------- */

struct found {
	struct flash_cache_page page;
	uint32_t slot;
};

static int compare(const void *a, const void *b)
{
	uint64_t one = ((const struct found *)a)->page.counter;
	uint64_t other = ((const struct found *)b)->page.counter;

	return one < other ? -1 : one > other;
}

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
	qsort(all, count, sizeof(*all), compare);
	for (uint32_t i = 0; i < count; i++) {
		flash_cache_restore(flash, all[i].slot, &all[i].page);
	}
	free(all);
	if (bad > 0) {
		log_warning("flash store '%s': %u blocks in its cache file are damaged; what they "
			    "had is lost",
			flash->path, bad);
		count_loss(flash);
	}
	return 0;
}

void flash_cache_check(const struct flash_anchor *anchor, struct store_check *check)
{
	struct flash_cache_head head;
	struct flash_cache_page page;
	struct disk_shared file;
	struct error error;
	char path[PATH_BYTES];
	uint64_t dirty = 0;
	uint64_t bad = 0;
	int result;

	if (anchor->cache_tag == 0) {
		return;
	}
	result = find_ours(anchor, anchor->cache_folder[0] == '\0' ? NULL : anchor->cache_folder,
		path, &file, &head, &error);
	if (result == -ENOENT) {
		error_set(&error, result,
			"not in '%.*s': elsewhere, or lost with the machine's memory",
			(int)(strrchr(path, '/') - path), path);
	}
	if (result < 0) {
		check->fact(check, "cache", result == -EBUSY ? "in use by a server" : error.text);
		return;
	}
	for (uint32_t i = 0; i < head.slot_count; i++) {
		const struct flash_cache_entry *entry = &entries_of(&file)[i];
		const uint8_t *slot = file.bytes + flash_cache_slots_at(head.slot_count) +
				      (uint64_t)i * FLASH_BLOCK_BYTES;

		if (entry->commit != 0) {
			dirty++;
			bad += !flash_cache_entry_decode(entry, slot, anchor, &page);
		}
	}
	check->fact(check, "cache", path);
	check->amount(check, "cached", dirty << FLASH_BLOCK_SHIFT);
	disk_shared_close(&file, false);
	if (bad > 0) {
		char text[96];

		snprintf(text, sizeof(text), "%llu blocks in the cache file are damaged",
			(unsigned long long)bad);
		check->fault(check, text);
	}
}
