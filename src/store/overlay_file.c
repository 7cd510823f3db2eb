// SPDX-License-Identifier: Apache-2.0
/* The file format of overlays (docs/protocol/overlay.md), and the identification of the base. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "disk/disk.h"
#include "store/overlay.h"

enum {
	VERSION = 1,
	SAMPLES = 64, /* number of samples of the base */
	SAMPLE_BYTES = 4096,
};
#define SECOND_NS INT64_C(1000000000)

static const uint8_t magic[8] = { 'G', 'M', 'B', 'O', 'V', 'L', '\r', '\n' };

struct head {
	uint8_t magic[8];
	struct be32 version;
	struct be32 block_bytes;
	struct be64 size;
	struct be64 changed_ns;
	struct be64 fingerprint;
	struct be32 path_bytes;
	uint8_t zero[4];
	uint8_t path[OVERLAY_BASE_PATH_MAX];
	uint8_t zeroes[72];
	struct be64 checksum;
};

_Static_assert(sizeof(struct head) == OVERLAY_HEAD_BYTES, "without gaps");
_Static_assert(offsetof(struct head, checksum) == OVERLAY_HEAD_BYTES - 8, "the last");
_Static_assert(OVERLAY_SIZE_MAX / OVERLAY_BLOCK_BYTES / 8 < INT64_MAX / 2, "the file has a size");

/* FNV-1a, 64 bits. Detects accidental changes, not attacks. */
static uint64_t hash_begin(void)
{
	return UINT64_C(0xcbf29ce484222325);
}

static uint64_t hash_add(uint64_t hash, const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	}
	return hash;
}

struct overlay_layout overlay_layout_of(uint64_t size)
{
	struct overlay_layout layout = { .size = size };

	GMB_ASSERT(size > 0 && size <= OVERLAY_SIZE_MAX);
	layout.block_count = overlay_end(size);
	layout.page_count = (layout.block_count - 1) / OVERLAY_PAGE_BLOCKS + 1;
	layout.data_offset = align_up(overlay_page_offset(layout.page_count), OVERLAY_DATA_ALIGN);
	return layout;
}

/* --- the base -------------------------------------------------------------------------------- */

/* Hashes samples of the base, because reading all of it would take too long. Changes outside the
 * samples that leave the modification time unchanged are rare. */
static int take_fingerprint(int fd, uint64_t size, uint64_t *fingerprint)
{
	uint8_t sample[SAMPLE_BYTES];
	uint64_t bytes = MIN(size, (uint64_t)SAMPLE_BYTES);
	uint64_t hash = hash_begin();

	for (uint64_t i = 0; i < SAMPLES; i++) {
		uint64_t offset = (size - bytes) * i / (SAMPLES - 1);
		int result = disk_read(fd, sample, bytes, offset);

		if (result < 0) {
			return result;
		}
		hash = hash_add(hash, sample, bytes);
	}
	*fingerprint = hash;
	return 0;
}

/* Returns the absolute path if possible, because the recorded path must not depend on the working
 * directory. */
static void take_path(const char *path, char out[OVERLAY_BASE_PATH_MAX + 1])
{
	char *absolute = realpath(path, NULL);
	const char *chosen = absolute != NULL ? absolute : path;

	snprintf(out, OVERLAY_BASE_PATH_MAX + 1, "%s",
		strlen(chosen) <= OVERLAY_BASE_PATH_MAX ? chosen : "");
	free(absolute);
}

int overlay_base_look(const char *path, struct overlay_base *base, struct error *error)
{
	struct disk_info info;
	int fd;
	int result = disk_open(path, true, false, &fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_info(fd, &info);
	if (result == 0 && (info.size == 0 || info.size > OVERLAY_SIZE_MAX)) {
		result = -EFBIG;
	}
	if (result == 0) {
		*base = (struct overlay_base){ .size = info.size, .changed_ns = info.changed_ns };
		result = take_fingerprint(fd, info.size, &base->fingerprint);
	}
	disk_close(fd);
	if (result < 0) {
		return error_set(error, result, "cannot examine '%s', the base of an overlay: %s",
			path, strerror(-result));
	}
	take_path(path, base->path);
	return 0;
}

static int refuse_base(const char *path, const struct overlay_base *found, const char *what,
	const char *way_out, struct error *error)
{
	return error_set(error, -ESTALE,
		"the overlay '%s' no longer fits '%s': %s; restore the base%s, or start a new "
		"overlay",
		quote(path), quote(found->path), what, way_out);
}

int overlay_base_compare(const char *path, const struct overlay_base *recorded,
	const struct overlay_base *found, struct error *error)
{
	char text[160];

	if (recorded->size != found->size) {
		snprintf(text, sizeof(text), "the base had %llu bytes and now has %llu",
			(unsigned long long)recorded->size, (unsigned long long)found->size);
		return refuse_base(path, found, text, "", error);
	}
	if (recorded->fingerprint != found->fingerprint) {
		return refuse_base(path, found, "the contents of the base have changed", "", error);
	}
	/* Compares times only if both are known: devices do not have a modification time. */
	if (recorded->changed_ns != 0 && found->changed_ns != 0 &&
		recorded->changed_ns != found->changed_ns) {
		snprintf(text, sizeof(text),
			" (if only its modification time has changed, with 'touch -d "
			"@%lld.%09lld')",
			(long long)(recorded->changed_ns / SECOND_NS),
			(long long)(recorded->changed_ns % SECOND_NS));
		return refuse_base(path, found,
			"the base has been written since the overlay was created", text, error);
	}
	return 0;
}

/* --- the header ------------------------------------------------------------------------------ */

void overlay_head_encode(const struct overlay_base *base, uint8_t bytes[OVERLAY_HEAD_BYTES])
{
	struct head head = { .version = be32_make(VERSION),
		.block_bytes = be32_make(OVERLAY_BLOCK_BYTES),
		.size = be64_make(base->size),
		.changed_ns = be64_make((uint64_t)base->changed_ns),
		.fingerprint = be64_make(base->fingerprint),
		.path_bytes = be32_make((uint32_t)strlen(base->path)) };

	memcpy(head.magic, magic, sizeof(magic));
	memcpy(head.path, base->path, strlen(base->path));
	memcpy(bytes, &head, sizeof(head));
	head.checksum = be64_make(hash_add(hash_begin(), bytes, offsetof(struct head, checksum)));
	memcpy(bytes, &head, sizeof(head));
}

/* Returns whether the bytes begin like the header of an overlay. */
static bool head_is_ours(const uint8_t bytes[OVERLAY_HEAD_BYTES])
{
	return memcmp(bytes, magic, sizeof(magic)) == 0;
}

/* Decodes a header, which is untrusted. Returns 0, or -EINVAL and a message. */
static int overlay_head_decode(const uint8_t bytes[OVERLAY_HEAD_BYTES], const char *path,
	struct overlay_base *base, struct error *error)
{
	struct head head;
	uint32_t path_bytes;

	memcpy(&head, bytes, sizeof(head));
	if (!head_is_ours(bytes)) {
		return error_set(error, -EINVAL,
			"'%s' exists and is not an overlay; name an overlay, or a file that does "
			"not exist yet",
			path);
	}
	if (be64_get(head.checksum) !=
		hash_add(hash_begin(), bytes, offsetof(struct head, checksum))) {
		return error_set(error, -EINVAL,
			"the header of the overlay '%s' is damaged: its checksum is wrong", path);
	}
	if (be32_get(head.version) != VERSION ||
		be32_get(head.block_bytes) != OVERLAY_BLOCK_BYTES) {
		return error_set(error, -EINVAL,
			"the overlay '%s' has version %u and blocks of %u bytes; this gmblock "
			"supports version %d and blocks of %d bytes",
			path, be32_get(head.version), be32_get(head.block_bytes), VERSION,
			OVERLAY_BLOCK_BYTES);
	}
	path_bytes = be32_get(head.path_bytes);
	if (be64_get(head.size) == 0 || be64_get(head.size) > OVERLAY_SIZE_MAX ||
		path_bytes > OVERLAY_BASE_PATH_MAX) {
		return error_set(error, -EINVAL,
			"the header of the overlay '%s' is damaged: its values are invalid", path);
	}
	*base = (struct overlay_base){ .size = be64_get(head.size),
		.changed_ns = (int64_t)be64_get(head.changed_ns),
		.fingerprint = be64_get(head.fingerprint) };
	memcpy(base->path, head.path, path_bytes);
	return 0;
}

int overlay_head_read(int fd, const char *path, struct overlay_base *base, struct error *error)
{
	uint8_t head[OVERLAY_HEAD_BYTES];
	struct overlay_layout layout;
	struct disk_info info;
	int result = disk_info(fd, &info);

	if (result == 0 && (info.is_block || info.size < sizeof(head))) {
		/* not an overlay: makes overlay_head_decode() fail */
		memset(head, 0, sizeof(head));
	} else if (result == 0) {
		result = disk_read(fd, head, sizeof(head), 0);
	}
	if (result < 0) {
		return error_set(error, result, "cannot read the header of the overlay '%s': %s",
			path, strerror(-result));
	}
	result = overlay_head_decode(head, path, base, error);
	if (result < 0) {
		return result;
	}
	layout = overlay_layout_of(base->size);
	if (info.size < layout.data_offset + layout.size) {
		return error_set(error, -EINVAL,
			"the overlay '%s' is damaged: it has %llu bytes instead of %llu", path,
			(unsigned long long)info.size,
			(unsigned long long)(layout.data_offset + layout.size));
	}
	return 0;
}

/* --- the bitmap ------------------------------------------------------------------------------ */

/* Adds words that were read from the file to the bitmap. Returns the number of their set bits. */
static uint64_t take_words(struct overlay_bitmap *bitmap, uint64_t first, uint64_t end)
{
	uint64_t blocks = 0;

	for (uint64_t i = first; i < end; i++) {
		uint64_t word = le64toh(bitmap->words[i]);

		blocks += (uint64_t)__builtin_popcountll(word);
		if (word != 0 && bitmap->present != NULL) {
			atomic_init(&bitmap->present[i], word);
		}
	}
	return blocks;
}

/* Reads the bitmap without its holes: for a large disk, most of it is a hole. */
static int read_words(int fd, const struct overlay_layout *layout, struct overlay_bitmap *bitmap,
	uint64_t *blocks)
{
	uint64_t end = overlay_page_offset(layout->page_count);
	uint64_t offset = OVERLAY_HEAD_BYTES;

	*blocks = 0;
	while (offset < end) {
		uint64_t at = offset - OVERLAY_HEAD_BYTES;
		enum disk_extent_kind kind;
		uint64_t length;
		int result = disk_extent(fd, offset, end - offset, &kind, &length);

		if (result == 0 && kind == DISK_DATA) {
			result = disk_read(fd, (uint8_t *)bitmap->words + at, length, offset);
		}
		if (result < 0) {
			return result;
		}
		if (kind == DISK_DATA) {
			*blocks += take_words(
				bitmap, at / sizeof(uint64_t), (at + length) / sizeof(uint64_t));
		}
		offset += length;
	}
	return 0;
}

static bool has_block(const struct overlay_bitmap *bitmap, uint64_t block)
{
	return (le64toh(bitmap->words[block / OVERLAY_WORD_BLOCKS]) >> block % OVERLAY_WORD_BLOCKS &
		       1) != 0;
}

int overlay_bitmap_read(int fd, const char *path, const struct overlay_layout *layout,
	struct overlay_bitmap *bitmap, struct error *error)
{
	uint64_t blocks;
	int result = read_words(fd, layout, bitmap, &blocks);

	if (result < 0) {
		return error_set(error, result, "cannot read the bitmap of the overlay '%s': %s",
			path, strerror(-result));
	}
	for (uint64_t i = layout->block_count; i < layout->page_count * OVERLAY_PAGE_BLOCKS; i++) {
		if (has_block(bitmap, i)) {
			return error_set(error, -EINVAL,
				"the overlay '%s' is damaged: its bitmap has blocks beyond the end "
				"of the disk",
				path);
		}
	}
	bitmap->changed_bytes = blocks * OVERLAY_BLOCK_BYTES;
	if (has_block(bitmap, layout->block_count - 1)) {
		bitmap->changed_bytes -= layout->block_count * OVERLAY_BLOCK_BYTES - layout->size;
	}
	return 0;
}

/* --- creating -------------------------------------------------------------------------------- */

static bool overlay_file_is_zero(const uint8_t *bytes, size_t count)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* Stores in *is_made whether a crash has left the file with its final size but without a header.
 * The bitmap is then a hole. */
static int is_half_made(int fd, uint64_t data_offset, bool *is_made)
{
	uint8_t head[OVERLAY_HEAD_BYTES];
	enum disk_extent_kind kind = DISK_DATA;
	uint64_t length = 0;
	uint64_t rest = data_offset - OVERLAY_HEAD_BYTES;
	int result = disk_read(fd, head, sizeof(head), 0);

	if (result == 0 && overlay_file_is_zero(head, sizeof(head))) {
		result = disk_extent(fd, OVERLAY_HEAD_BYTES, rest, &kind, &length);
	}
	*is_made = kind == DISK_HOLE && length >= rest;
	return result;
}

int overlay_file_is_empty(int fd, const struct overlay_base *base, bool *is_empty)
{
	struct overlay_layout layout = overlay_layout_of(base->size);
	struct disk_info info;
	int result = disk_info(fd, &info);

	*is_empty = result == 0 && !info.is_block && info.size == 0;
	if (result == 0 && !info.is_block && info.size == layout.data_offset + layout.size) {
		result = is_half_made(fd, layout.data_offset, is_empty);
	}
	return result;
}

/* Extends the file by writing its last byte, because a sandbox may forbid ftruncate(). Writes the
 * header last: without it the file is not an overlay. */
int overlay_file_fill(
	int fd, const char *path, const struct overlay_base *base, struct error *error)
{
	struct overlay_layout layout = overlay_layout_of(base->size);
	uint8_t head[OVERLAY_HEAD_BYTES];
	uint8_t last = 0;
	int result = disk_write(fd, &last, 1, layout.data_offset + layout.size - 1);

	overlay_head_encode(base, head);
	result = result ?: disk_sync(fd);
	result = result ?: disk_write(fd, head, sizeof(head), 0);
	result = result ?: disk_sync(fd);
	return result == 0 ? 0
			   : error_set(error, result, "cannot create the overlay '%s': %s", path,
				     strerror(-result));
}

/* Overwrites an existing overlay, whose changes are discarded. */
static int reset(const char *path, const struct overlay_base *base,
	const struct store_create *create, struct error *error)
{
	struct overlay_base recorded;
	bool is_empty = false;
	int claim = -1;
	int fd;
	int result = disk_open(path, false, false, &fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_claim(path, fd, &claim, error);
	if (result == 0 && overlay_file_is_empty(fd, base, &is_empty) < 0) {
		is_empty = false;
	}
	if (result == 0 && !is_empty && overlay_head_read(fd, path, &recorded, error) < 0) {
		result = -EINVAL; /* only an overlay may be overwritten */
	} else if (result == 0 && !is_empty && !create->force) {
		result = error_set(error, -EEXIST,
			"'%s' is an overlay; --force replaces it with a new one and discards its "
			"changes",
			path);
	}
	if (result == 0 && !is_empty && ftruncate(fd, 0) != 0) {
		result = error_set(error, -errno, "cannot empty '%s': %s", path, strerror(errno));
	}
	result = result ?: overlay_file_fill(fd, path, base, error);
	if (claim >= 0) {
		disk_close(claim);
	}
	disk_close(fd);
	return result;
}

/* Refuses a base that looks like a disk image of another format, as 'gmblock serve' does. To serve
 * such a base, the export needs format=raw. */
static int check_format(const char *path, struct error *error)
{
	struct disk_info info;
	int fd;
	int result = disk_open(path, true, false, &fd, error);

	if (result < 0) {
		return result;
	}
	result = disk_info(fd, &info);
	disk_close(fd);
	if (result < 0 || info.format == NULL) {
		return 0; /* overlay_base_look() will report the error */
	}
	return error_set(error, -EMEDIUMTYPE,
		"'%s' looks like a %s image, but the base of an overlay must be a raw disk; %s",
		path, info.format,
		strcmp(info.format, DISK_FORMAT_OVERLAY) == 0
			? "name the base of that overlay, which 'gmblock check' shows"
		: strcmp(info.format, DISK_FORMAT_FLASH) == 0
			? "copy the disk that the flash store contains to a raw file ('gmblock "
			  "copy')"
			: "convert it with 'qemu-img convert -O raw'");
}

int overlay_create_check(const struct store_create *create, struct error *error)
{
	if (create->base == NULL) {
		return error_set(error, -EINVAL,
			"an overlay needs --base, the disk on which the overlay is based");
	}
	if (create->size != 0 || create->segment_bytes != 0 || create->spare_percent != 0 ||
		create->label != NULL) {
		return error_set(error, -EINVAL,
			"an overlay has the size of its base, and takes only --base and --force");
	}
	return 0;
}

int overlay_create(const char *path, const struct store_create *create, struct error *error)
{
	struct overlay_base base;
	struct overlay_layout layout;
	uint8_t head[OVERLAY_HEAD_BYTES];
	int result = check_format(create->base, error);

	result = result ?: overlay_base_look(create->base, &base, error);
	if (result < 0) {
		return result;
	}
	layout = overlay_layout_of(base.size);
	overlay_head_encode(&base, head);
	result = disk_create(path, layout.data_offset + layout.size, head, sizeof(head), error);
	return result == -EEXIST ? reset(path, &base, create, error) : result;
}

/* --- checking -------------------------------------------------------------------------------- */

static void check_base(
	const char *path, const struct overlay_base *recorded, struct store_check *check)
{
	const char *base = check->base != NULL ? check->base : recorded->path;
	struct overlay_base found;
	struct error error;

	if (base[0] == '\0') {
		check->fault(check, "the overlay does not record the path of its base, so the base "
				    "is not checked; name the base with --base");
	} else if (overlay_base_look(base, &found, &error) < 0 ||
		   overlay_base_compare(path, recorded, &found, &error) < 0) {
		check->fault(check, error.text);
	}
}

static void check_bitmap(
	int fd, const char *path, const struct overlay_layout *layout, struct store_check *check)
{
	uint64_t bytes = layout->page_count * OVERLAY_PAGE_BYTES;
	void *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct overlay_bitmap bitmap = { .words = words };
	struct error error;

	if (words == MAP_FAILED) {
		check->fault(check, "not enough memory to read the bitmap of the overlay");
		return;
	}
	if (overlay_bitmap_read(fd, path, layout, &bitmap, &error) < 0) {
		check->fault(check, error.text);
	} else {
		check->amount(check, "changed", bitmap.changed_bytes);
	}
	(void)munmap(words, bytes);
}

static int check_open(
	int fd, const char *path, struct store_check *check, bool *recognized, struct error *error)
{
	uint8_t head[OVERLAY_HEAD_BYTES];
	struct overlay_base recorded;
	struct overlay_layout layout;
	struct error fault;
	uint64_t size;
	int result = disk_size(fd, &size);

	if (result == 0 && size >= sizeof(head)) {
		result = disk_read(fd, head, sizeof(head), 0);
		*recognized = result == 0 && head_is_ours(head);
	}
	if (result < 0) {
		return error_set(error, result, "cannot read '%s': %s", path, strerror(-result));
	}
	if (!*recognized) {
		return 0;
	}
	check->fact(check, "format", "overlay");
	if (overlay_head_read(fd, path, &recorded, &fault) < 0) {
		check->fault(check, fault.text);
		return 0;
	}
	layout = overlay_layout_of(recorded.size);
	check->fact(check, "base", check->base != NULL ? check->base : recorded.path);
	check->amount(check, "size", recorded.size);
	check_bitmap(fd, path, &layout, check);
	check_base(path, &recorded, check);
	return 0;
}

int overlay_check(
	const char *path, struct store_check *check, bool *recognized, struct error *error)
{
	int fd;
	int result = disk_open(path, true, false, &fd, error);

	if (result == 0) {
		result = check_open(fd, path, check, recognized, error);
		disk_close(fd);
	}
	return result;
}
