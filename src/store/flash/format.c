// SPDX-License-Identifier: Apache-2.0
/*
 * Encoding and decoding of the on-disk format, see format.h and docs/protocol/flash.md.
 *
 * The wire structs have the layout of the blocks, which static assertions check. Decoders copy a
 * block into such a struct, because the block may be in memory that is not aligned.
 */
#include "store/flash/format.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/text.h"

/* minimum number of spare segments, in addition to the segments of a checkpoint */
enum { SPARE_SEGMENTS = 4 };
enum {
	CACHE_VERSION = 2,
	TOP_AT = 512,
	SNAPSHOTS_AT = 1024,
	SNAPSHOTS_END = SNAPSHOTS_AT + FLASH_SNAPSHOTS * 640,
	DETOURS_END = SNAPSHOTS_END + FLASH_DETOURS * 16
};

static const uint8_t anchor_magic[8] = { 'G', 'M', 'B', 'F', 'L', 'A', '\r', '\n' };
static const uint8_t cache_magic[8] = { 'G', 'M', 'B', 'F', 'L', 'C', '\r', '\n' };
static const uint8_t record_magic[4] = { 'G', 'F', 'L', 'R' };

/* All numbers are little-endian. */
struct wire_snapshot {
	char name[FLASH_SNAPSHOT_NAME_BYTES];
	uint64_t serial;
	uint64_t created_s;
	uint32_t is_temporary;
	uint8_t zeroes[128 - 84];
	struct flash_entry top[FLASH_TOP_ENTRIES];
};

struct wire_detour {
	uint64_t seq;
	uint32_t segment;
	uint32_t zero;
};

struct wire_anchor {
	uint8_t magic[8];
	uint32_t version;
	uint32_t block_bytes;
	uint8_t uuid[FLASH_UUID_BYTES];
	uint64_t serial;
	uint64_t disk_blocks;
	uint32_t segment_count;
	uint32_t segment_blocks;
	uint64_t next_seq;
	uint32_t next_segment;
	uint32_t next_block;
	uint32_t prev_crc;
	uint32_t spare_percent;
	uint64_t clock;
	char label[FLASH_LABEL_BYTES];
	uint32_t zone_blocks;
	char cache_folder[FLASH_FOLDER_BYTES];
	uint8_t cache_boot_id[FLASH_BOOT_ID_BYTES];
	uint8_t zeroes[TOP_AT - 156 - FLASH_FOLDER_BYTES - FLASH_BOOT_ID_BYTES - 16];
	uint64_t cache_tag;
	uint64_t cache_losses;
	struct flash_entry top[FLASH_TOP_ENTRIES];
	struct wire_snapshot snapshots[FLASH_SNAPSHOTS];
	struct wire_detour detours[FLASH_DETOURS];
	uint8_t more_zeroes[FLASH_BLOCK_BYTES - DETOURS_END - 4];
	uint32_t crc;
};

struct wire_cache {
	uint8_t magic[8];
	uint32_t version;
	uint32_t page_bytes;
	uint8_t uuid[FLASH_UUID_BYTES];
	uint8_t boot_id[FLASH_BOOT_ID_BYTES];
	uint64_t tag;
	uint64_t disk_blocks;
	uint32_t slot_count;
	uint32_t zero;
	/* `followed` and `disk` change while the file is in use; the checksum does not cover
	 * them. */
	uint64_t followed;
	uint64_t disk[2];
	char disk_path[FLASH_DISK_PATH_BYTES];
	uint8_t zeroes[FLASH_BLOCK_BYTES - 96 - FLASH_DISK_PATH_BYTES - 4];
	uint32_t crc;
};

struct wire_entry {
	uint8_t lpn[5];
	uint8_t kind;
	uint8_t source[4];
	uint8_t crc[4];
	uint8_t zero[2];
};

struct wire_record {
	uint8_t magic[4];
	uint32_t crc; /* checksum of the bytes after this member */
	uint8_t uuid[FLASH_UUID_BYTES];
	uint64_t seq;
	uint64_t durable;
	uint32_t prev_crc;
	uint32_t next_segment;
	uint16_t entry_count;
	uint16_t moves;
	uint32_t at;
	uint64_t base;
	uint64_t before;
	uint64_t nodes_at;
	uint8_t zeroes[256 - 80];
	struct wire_entry entries[FLASH_RECORD_ENTRIES];
};

_Static_assert(sizeof(struct wire_anchor) == FLASH_BLOCK_BYTES, "without gaps");
_Static_assert(offsetof(struct wire_anchor, top) == TOP_AT, "as documented");
_Static_assert(offsetof(struct wire_anchor, snapshots) == SNAPSHOTS_AT, "as documented");
_Static_assert(offsetof(struct wire_anchor, detours) == SNAPSHOTS_END, "as documented");
_Static_assert(offsetof(struct wire_anchor, crc) == FLASH_BLOCK_BYTES - 4, "the last");
_Static_assert(sizeof(struct wire_cache) == FLASH_BLOCK_BYTES, "without gaps");
_Static_assert(offsetof(struct wire_cache, crc) == FLASH_BLOCK_BYTES - 4, "the last");
_Static_assert(sizeof(struct wire_entry) == 16, "without gaps");
_Static_assert(offsetof(struct wire_record, entries) == 256, "as documented");
_Static_assert(sizeof(struct wire_record) == FLASH_BLOCK_BYTES, "without gaps");

static bool is_zero(const uint8_t *bytes, size_t count)
{
	return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* --- sizes ----------------------------------------------------------------------------------- */

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return (a + b - 1) / b;
}

/* Returns the number of log blocks that this many nodes need, including record headers. */
static uint64_t nodes_to_log(uint64_t nodes)
{
	return nodes + divide_up(nodes, FLASH_RECORD_ENTRIES);
}

/* Returns the maximum number of blocks that a checkpoint with `pages` dirty pages writes. */
static uint64_t checkpoint_blocks(const struct flash_geometry *geometry, uint32_t pages)
{
	uint64_t table = geometry->page_count - geometry->leaf_count;

	return nodes_to_log(pages + FLASH_TREES * table) +
	       nodes_to_log(2 * FLASH_TREES * (uint64_t)geometry->node_counts[1]) +
	       nodes_to_log(2 * FLASH_TREES * (uint64_t)geometry->node_counts[2]);
}

/* Returns the number of segments that a checkpoint with `pages` dirty pages can fill. Up to 4
 * blocks of a segment are lost to headers and at its end. */
static uint32_t segments_of(const struct flash_geometry *geometry, uint32_t pages)
{
	return (uint32_t)divide_up(
		checkpoint_blocks(geometry, pages), geometry->segment_blocks - 4);
}

uint64_t flash_usable_blocks(const struct flash_geometry *geometry)
{
	return geometry->segment_blocks -
	       divide_up(geometry->segment_blocks, FLASH_RECORD_ENTRIES + 1) - 2;
}

/* Returns the number of blocks that can contain the data of the disk. */
static uint64_t room_blocks(const struct flash_geometry *geometry)
{
	uint64_t segments = geometry->segment_count - geometry->reserve_segments;
	uint64_t usable = flash_usable_blocks(geometry);
	uint64_t nodes = geometry->node_counts[0] + UINT64_C(2) * geometry->node_counts[1] +
			 UINT64_C(2) * geometry->node_counts[2];

	return segments * usable > nodes ? segments * usable - nodes : 0;
}

/* Returns the largest disk, in blocks, that leaves spare_percent of the usable blocks as spare
 * space, but at least SPARE_SEGMENTS and the segments of a checkpoint. With less, garbage
 * collection might free less space than its checkpoints take. */
static uint64_t disk_blocks_max(const struct flash_geometry *geometry, uint32_t spare_percent)
{
	uint64_t room = room_blocks(geometry);
	uint64_t least =
		(SPARE_SEGMENTS + geometry->checkpoint_segments) * flash_usable_blocks(geometry);
	uint64_t spare = MAX(room - room * (100 - spare_percent) / 100, least);

	return room > spare ? room - spare : 0;
}

bool flash_geometry_init(struct flash_geometry *geometry)
{
	uint64_t blocks;

	if (geometry->segment_blocks < FLASH_SEGMENT_BLOCKS_MIN ||
		geometry->segment_blocks > FLASH_SEGMENT_BLOCKS_MAX ||
		geometry->segment_count < FLASH_SEGMENTS_MIN ||
		geometry->segment_count > FLASH_SEGMENTS_MAX) {
		return false;
	}
	blocks = flash_device_blocks(geometry);
	if (blocks > UINT32_MAX || geometry->disk_blocks == 0 || geometry->disk_blocks > blocks) {
		return false;
	}
	geometry->leaf_count = (uint32_t)divide_up(geometry->disk_blocks, FLASH_NODE_ENTRIES);
	geometry->page_count = geometry->leaf_count +
			       (uint32_t)divide_up(geometry->segment_count, FLASH_TABLE_ENTRIES);
	geometry->node_counts[0] = geometry->page_count;
	for (int level = 1; level < FLASH_LEVELS; level++) {
		geometry->node_counts[level] =
			(uint32_t)divide_up(geometry->node_counts[level - 1], FLASH_NODE_ENTRIES);
	}
	if (geometry->node_counts[FLASH_LEVELS - 1] > FLASH_TOP_ENTRIES) {
		return false;
	}
	/* The maximum is one dirty page for each 64 blocks of the device, within limits, so that
	 * even on a small store a checkpoint fits into the free space. */
	blocks = MAX(blocks / 64, (uint64_t)4);
	geometry->dirty_max = (uint32_t)MIN(blocks, (uint64_t)FLASH_DIRTY_MAX);
	geometry->dirty_max = MIN(geometry->dirty_max, FLASH_TREES * geometry->leaf_count);
	geometry->replay_max = MAX(geometry->dirty_max, geometry->leaf_count);
	geometry->replay_max = MIN(geometry->replay_max, 2 * geometry->dirty_max);
	geometry->checkpoint_segments = segments_of(geometry, geometry->dirty_max);
	geometry->replay_segments = segments_of(geometry, geometry->replay_max);
	/* Room for a checkpoint, for the checkpoint of an interrupted recovery, and for garbage
	 * collection, which needs segments to copy to before it frees any. */
	geometry->reserve_segments =
		8 + 2 * geometry->checkpoint_segments + geometry->replay_segments;
	return geometry->reserve_segments < geometry->segment_count &&
	       geometry->disk_blocks <= room_blocks(geometry);
}

static const char *blocks_text(char out[UNITS_TEXT_BYTES], uint64_t blocks)
{
	return units_format_bytes(out, blocks * FLASH_BLOCK_BYTES);
}

int flash_geometry_make(struct flash_geometry *geometry, uint64_t device_blocks,
	uint32_t segment_blocks, uint32_t spare_percent, struct error *error)
{
	char segment[UNITS_TEXT_BYTES];
	char least[UNITS_TEXT_BYTES];
	uint64_t count;
	uint64_t blocks;

	*geometry = (struct flash_geometry){ .segment_blocks = segment_blocks };
	if (device_blocks < FLASH_SEGMENTS_AT + (uint64_t)FLASH_SEGMENTS_MIN * segment_blocks) {
		return error_set(error, -EINVAL,
			"the size is too small: segments of %s need at least %s",
			blocks_text(segment, segment_blocks),
			blocks_text(least,
				FLASH_SEGMENTS_AT + (uint64_t)FLASH_SEGMENTS_MIN * segment_blocks));
	}
	if (device_blocks > UINT32_MAX) {
		return error_set(error, -EINVAL, "the size is larger than the limit of 16 TiB");
	}
	count = (device_blocks - FLASH_SEGMENTS_AT) / segment_blocks;
	if (count > FLASH_SEGMENTS_MAX) {
		return error_set(error, -EINVAL,
			"more than %d segments of %s would be needed; choose larger segments",
			FLASH_SEGMENTS_MAX, blocks_text(segment, segment_blocks));
	}
	geometry->segment_count = (uint32_t)count;
	/* Starts with the size that spare_percent leaves, and reduces it until the store's own
	 * blocks fit as well. */
	blocks = count * segment_blocks * (100 - spare_percent) / 100;
	for (; blocks > 0; blocks -= divide_up(blocks, 200)) {
		geometry->disk_blocks = blocks;
		if (flash_geometry_init(geometry) &&
			blocks <= disk_blocks_max(geometry, spare_percent)) {
			return 0;
		}
	}
	return error_set(error, -EINVAL, "the size is too small for segments of %s",
		blocks_text(segment, segment_blocks));
}

/* --- the anchor ------------------------------------------------------------------------------ */

void flash_anchor_encode(const struct flash_anchor *anchor, uint8_t block[FLASH_BLOCK_BYTES])
{
	struct wire_anchor wire = {
		.version = htole32(anchor->version),
		.block_bytes = htole32(FLASH_BLOCK_BYTES),
		.serial = htole64(anchor->serial),
		.disk_blocks = htole64(anchor->geometry.disk_blocks),
		.segment_count = htole32(anchor->geometry.segment_count),
		.segment_blocks = htole32(anchor->geometry.segment_blocks),
		.next_seq = htole64(anchor->next.seq),
		.next_segment = htole32(anchor->next.segment),
		.next_block = htole32(anchor->next.block),
		.prev_crc = htole32(anchor->next.prev_crc),
		.spare_percent = htole32(anchor->spare_percent),
		.clock = htole64(anchor->clock),
		.zone_blocks = htole32(anchor->zone_blocks),
		.cache_tag = htole64(anchor->cache_tag),
		.cache_losses = htole64(anchor->cache_losses),
	};

	memcpy(wire.magic, anchor_magic, sizeof(wire.magic));
	memcpy(wire.uuid, anchor->uuid, sizeof(wire.uuid));
	memcpy(wire.label, anchor->label, sizeof(wire.label));
	memcpy(wire.cache_folder, anchor->cache_folder, sizeof(wire.cache_folder));
	memcpy(wire.cache_boot_id, anchor->cache_boot_id, sizeof(wire.cache_boot_id));
	memcpy(wire.top, anchor->top, sizeof(wire.top));
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		const struct flash_snapshot_anchor *snapshot = &anchor->snapshots[i];

		memcpy(wire.snapshots[i].name, snapshot->name, sizeof(snapshot->name));
		wire.snapshots[i].serial = htole64(snapshot->serial);
		wire.snapshots[i].created_s = htole64(snapshot->created_s);
		wire.snapshots[i].is_temporary = htole32(snapshot->is_temporary);
		memcpy(wire.snapshots[i].top, snapshot->top, sizeof(snapshot->top));
	}
	for (uint32_t i = 0; i < anchor->detour_count; i++) {
		wire.detours[i].seq = htole64(anchor->detours[i].seq);
		wire.detours[i].segment = htole32(anchor->detours[i].segment);
	}
	wire.crc = htole32(crc32c(0, &wire, offsetof(struct wire_anchor, crc)));
	memcpy(block, &wire, sizeof(wire));
}

bool flash_anchor_is_ours(const uint8_t block[FLASH_BLOCK_BYTES])
{
	return memcmp(block, anchor_magic, sizeof(anchor_magic)) == 0;
}

static bool position_is_sound(const struct flash_anchor *anchor)
{
	const struct flash_geometry *geometry = &anchor->geometry;

	return anchor->next.segment < geometry->segment_count &&
	       anchor->next.block <= geometry->segment_blocks - 2;
}

/* True if all used entries refer to blocks in segments, and belong to nodes that exist. */
static bool top_is_sound(const struct flash_anchor *anchor, const struct flash_entry *top)
{
	for (uint32_t i = 0; i < FLASH_TOP_ENTRIES; i++) {
		uint32_t block = le32toh(top[i].block);

		if (block == 0 ? top[i].crc != 0
			       : i >= anchor->geometry.node_counts[FLASH_LEVELS - 1] ||
					 !flash_is_in_segment(&anchor->geometry, block)) {
			return false;
		}
	}
	return true;
}

#define SNAPSHOT_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

bool flash_snapshot_name_is_sound(const char *name)
{
	size_t bytes = strnlen(name, FLASH_SNAPSHOT_NAME_BYTES);

	return bytes > 0 && bytes < FLASH_SNAPSHOT_NAME_BYTES &&
	       strspn(name, SNAPSHOT_LETTERS) > 0 && strspn(name, SNAPSHOT_LETTERS "._-") == bytes;
}

/* Decodes a snapshot. An unused slot is all zeroes. */
static bool snapshot_decode(const struct flash_anchor *anchor, const struct wire_snapshot *wire,
	struct flash_snapshot_anchor *snapshot)
{
	size_t bytes;

	memcpy(snapshot->name, wire->name, sizeof(snapshot->name));
	snapshot->serial = le64toh(wire->serial);
	snapshot->created_s = le64toh(wire->created_s);
	snapshot->is_temporary = wire->is_temporary != 0;
	memcpy(snapshot->top, wire->top, sizeof(snapshot->top));
	if (snapshot->name[0] == '\0') {
		return is_zero((const uint8_t *)wire, sizeof(*wire));
	}
	bytes = strnlen(snapshot->name, sizeof(snapshot->name));
	return flash_snapshot_name_is_sound(snapshot->name) &&
	       is_zero((const uint8_t *)wire->name + bytes, sizeof(wire->name) - bytes) &&
	       le32toh(wire->is_temporary) <= 1 && is_zero(wire->zeroes, sizeof(wire->zeroes)) &&
	       snapshot->serial <= anchor->serial && top_is_sound(anchor, snapshot->top);
}

static bool snapshots_decode(struct flash_anchor *anchor, const struct wire_anchor *wire)
{
	for (uint32_t i = 0; i < FLASH_SNAPSHOTS; i++) {
		if (!snapshot_decode(anchor, &wire->snapshots[i], &anchor->snapshots[i])) {
			return false;
		}
	}
	return anchor->snapshots[0].name[0] == '\0' ||
	       strcmp(anchor->snapshots[0].name, anchor->snapshots[1].name) != 0;
}

/* Decodes the detours. Their record numbers must ascend, and unused entries must be zeroes. */
static bool detours_decode(struct flash_anchor *anchor, const struct wire_anchor *wire)
{
	uint64_t least = anchor->next.seq;
	uint32_t count = 0;

	for (; count < FLASH_DETOURS && wire->detours[count].seq != 0; count++) {
		struct flash_detour *detour = &anchor->detours[count];

		detour->seq = le64toh(wire->detours[count].seq);
		detour->segment = le32toh(wire->detours[count].segment);
		if (anchor->version < FLASH_DETOUR_VERSION || detour->seq < least ||
			detour->seq >> FLASH_SEQ_SHIFT != anchor->next.seq >> FLASH_SEQ_SHIFT ||
			detour->segment >= anchor->geometry.segment_count ||
			wire->detours[count].zero != 0) {
			return false;
		}
		least = detour->seq + 1;
	}
	anchor->detour_count = count;
	return is_zero((const uint8_t *)&wire->detours[count],
		(FLASH_DETOURS - count) * sizeof(struct wire_detour));
}

/* True if the folder of the cache file is an absolute path, or empty. It must be empty if there is
 * no cache file. */
static bool cache_is_sound(const struct flash_anchor *anchor)
{
	const char *folder = anchor->cache_folder;
	size_t bytes = strnlen(folder, FLASH_FOLDER_BYTES);

	return bytes < FLASH_FOLDER_BYTES &&
	       is_zero((const uint8_t *)folder + bytes, FLASH_FOLDER_BYTES - bytes) &&
	       (bytes == 0 || folder[0] == '/') &&
	       (anchor->cache_tag != 0 || (bytes == 0 && is_zero(anchor->cache_boot_id,
								 sizeof(anchor->cache_boot_id))));
}

/* Damage is detected by the checksum. The further checks protect the server against a forged
 * device. */
int flash_anchor_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], struct flash_anchor *anchor, struct error *error)
{
	struct wire_anchor wire;
	uint32_t version;

	memcpy(&wire, block, sizeof(wire));
	version = le32toh(wire.version);
	if (!flash_anchor_is_ours(block)) {
		return error_set(error, -EINVAL, "is none");
	}
	if (le32toh(wire.crc) != crc32c(0, &wire, offsetof(struct wire_anchor, crc))) {
		return error_set(error, -EINVAL, "is damaged");
	}
	if (version < FLASH_OLDEST_VERSION || version > FLASH_ANCHOR_VERSION ||
		le32toh(wire.block_bytes) != FLASH_BLOCK_BYTES) {
		return error_set(error, -ENOTSUP,
			"has format version %u and blocks of %u bytes, but this program supports "
			"only versions %d to %d and blocks of %d bytes; copy the disk with the "
			"gmblock version that created the store",
			version, le32toh(wire.block_bytes), FLASH_OLDEST_VERSION,
			FLASH_ANCHOR_VERSION, FLASH_BLOCK_BYTES);
	}
	*anchor = (struct flash_anchor){
		.version = version,
		.serial = le64toh(wire.serial),
		.geometry = { .disk_blocks = le64toh(wire.disk_blocks),
			.segment_count = le32toh(wire.segment_count),
			.segment_blocks = le32toh(wire.segment_blocks) },
		.next = { .seq = le64toh(wire.next_seq),
			.segment = le32toh(wire.next_segment),
			.block = le32toh(wire.next_block),
			.prev_crc = le32toh(wire.prev_crc) },
		.clock = le64toh(wire.clock),
		.spare_percent = le32toh(wire.spare_percent),
		.zone_blocks = le32toh(wire.zone_blocks),
		.cache_tag = le64toh(wire.cache_tag),
		.cache_losses = le64toh(wire.cache_losses),
	};
	memcpy(anchor->uuid, wire.uuid, sizeof(wire.uuid));
	memcpy(anchor->label, wire.label, sizeof(wire.label));
	memcpy(anchor->cache_folder, wire.cache_folder, sizeof(wire.cache_folder));
	memcpy(anchor->cache_boot_id, wire.cache_boot_id, sizeof(wire.cache_boot_id));
	memcpy(anchor->top, wire.top, sizeof(wire.top));
	if (!flash_geometry_init(&anchor->geometry) || !position_is_sound(anchor) ||
		!top_is_sound(anchor, anchor->top) || !snapshots_decode(anchor, &wire) ||
		!detours_decode(anchor, &wire) || anchor->label[FLASH_LABEL_BYTES - 1] != '\0' ||
		!cache_is_sound(anchor) || !is_zero(wire.zeroes, sizeof(wire.zeroes)) ||
		!is_zero(wire.more_zeroes, sizeof(wire.more_zeroes))) {
		return error_set(error, -EINVAL, "has inconsistent values");
	}
	return 0;
}

bool flash_detour_add(struct flash_anchor *anchor, uint64_t seq, uint32_t segment)
{
	uint32_t count = anchor->detour_count;

	if (count > 0 && anchor->detours[count - 1].seq == seq) {
		count--;
	}
	if (count == FLASH_DETOURS) {
		return false;
	}
	anchor->detours[count] = (struct flash_detour){ seq, segment };
	anchor->detour_count = count + 1;
	return true;
}

void flash_detours_drop(struct flash_anchor *anchor)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < anchor->detour_count; i++) {
		if (anchor->detours[i].seq >= anchor->next.seq) {
			anchor->detours[kept++] = anchor->detours[i];
		}
	}
	anchor->detour_count = kept;
}

void flash_detour_follow(const struct flash_anchor *anchor, struct flash_position *position)
{
	for (uint32_t i = 0; i < anchor->detour_count; i++) {
		if (anchor->detours[i].seq == position->seq) {
			position->segment = anchor->detours[i].segment;
			position->block = 0;
		}
	}
}

/* --- records --------------------------------------------------------------------------------- */

static uint64_t load_lpn(const uint8_t bytes[5])
{
	uint64_t value = 0;

	memcpy(&value, bytes, 5);
	return le64toh(value);
}

static uint32_t load_u32(const uint8_t bytes[4])
{
	uint32_t value;

	memcpy(&value, bytes, sizeof(value));
	return le32toh(value);
}

static void store_u32(uint8_t bytes[4], uint32_t value)
{
	value = htole32(value);
	memcpy(bytes, &value, sizeof(value));
}

uint32_t flash_record_encode(const struct flash_record *record,
	const uint8_t uuid[FLASH_UUID_BYTES], uint8_t block[FLASH_BLOCK_BYTES])
{
	struct wire_record wire = {
		.seq = htole64(record->seq),
		.durable = htole64(record->durable),
		.prev_crc = htole32(record->prev_crc),
		.next_segment = htole32(record->next_segment),
		.at = htole32(record->at),
		.base = htole64(record->base),
		.before = htole64(record->before),
		.nodes_at = htole64(record->nodes_at),
		.entry_count = htole16((uint16_t)record->entry_count),
		.moves = htole16((uint16_t)record->moves),
	};
	uint32_t crc;

	GMB_ASSERT(record->entry_count <= FLASH_RECORD_ENTRIES);
	memcpy(wire.magic, record_magic, sizeof(wire.magic));
	memcpy(wire.uuid, uuid, sizeof(wire.uuid));
	for (uint32_t i = 0; i < record->entry_count; i++) {
		const struct flash_record_entry *entry = &record->entries[i];
		uint64_t lpn = htole64(entry->lpn);

		memcpy(wire.entries[i].lpn, &lpn, sizeof(wire.entries[i].lpn));
		wire.entries[i].kind = entry->kind;
		store_u32(wire.entries[i].source, entry->source);
		store_u32(wire.entries[i].crc, entry->crc);
	}
	crc = crc32c(0, (const uint8_t *)&wire + 8, sizeof(wire) - 8);
	wire.crc = htole32(crc);
	memcpy(block, &wire, sizeof(wire));
	return crc;
}

static bool entry_is_sound(
	const struct flash_record_entry *entry, const struct flash_geometry *geometry)
{
	switch (entry->kind) {
	case FLASH_DATA:
		return entry->lpn < geometry->disk_blocks &&
		       (entry->source == 0 || flash_is_in_segment(geometry, entry->source));
	case FLASH_COPY:
	case FLASH_KEPT:
		return entry->lpn < geometry->disk_blocks &&
		       flash_is_in_segment(geometry, entry->source);
	case FLASH_TRIM:
		return entry->lpn < geometry->disk_blocks && entry->source > 0 &&
		       entry->lpn % FLASH_NODE_ENTRIES + entry->source <= FLASH_NODE_ENTRIES &&
		       entry->lpn + entry->source <= geometry->disk_blocks && entry->crc == 0;
	case FLASH_NODE:
	case FLASH_TWIN:
		return entry->source < FLASH_TREES * FLASH_LEVELS &&
		       entry->lpn < geometry->node_counts[entry->source % FLASH_LEVELS];
	default:
		return false;
	}
}

static bool entries_decode(const struct wire_record *wire, const struct flash_geometry *geometry,
	struct flash_record *record)
{
	record->block_count = 1;
	for (uint32_t i = 0; i < record->entry_count; i++) {
		const struct wire_entry *from = &wire->entries[i];
		struct flash_record_entry *entry = &record->entries[i];

		*entry = (struct flash_record_entry){ .lpn = load_lpn(from->lpn),
			.source = load_u32(from->source),
			.crc = load_u32(from->crc),
			.kind = from->kind };
		if (!entry_is_sound(entry, geometry) || from->zero[0] != 0 || from->zero[1] != 0) {
			return false;
		}
		record->block_count += flash_kind_has_block(entry->kind);
	}
	return is_zero((const uint8_t *)&wire->entries[record->entry_count],
		sizeof(wire->entries) - record->entry_count * sizeof(struct wire_entry));
}

/* Advances the position to the next record, as the header says. Returns false if the record or the
 * new position exceeds its segment, or the new segment does not exist. */
static bool take_next(const struct flash_geometry *geometry, const struct flash_record *record,
	struct flash_position *position)
{
	uint32_t left = geometry->segment_blocks - position->block;

	if (record->block_count > left) {
		return false;
	}
	position->seq++;
	position->block += record->block_count;
	if (record->next_segment != FLASH_NO_SEGMENT) {
		position->segment = record->next_segment;
		position->block = 0;
		return record->next_segment < geometry->segment_count;
	}
	return left - record->block_count >= 2;
}

bool flash_record_look(const uint8_t block[FLASH_BLOCK_BYTES], const struct flash_anchor *anchor,
	struct flash_record *record)
{
	struct wire_record wire;

	memcpy(&wire, block, sizeof(wire));
	if (memcmp(wire.magic, record_magic, sizeof(wire.magic)) != 0 ||
		memcmp(wire.uuid, anchor->uuid, sizeof(wire.uuid)) != 0 ||
		le16toh(wire.entry_count) > FLASH_RECORD_ENTRIES ||
		le32toh(wire.crc) != crc32c(0, block + 8, FLASH_BLOCK_BYTES - 8)) {
		return false;
	}
	record->seq = le64toh(wire.seq);
	record->durable = le64toh(wire.durable);
	record->prev_crc = le32toh(wire.prev_crc);
	record->next_segment = le32toh(wire.next_segment);
	record->entry_count = le16toh(wire.entry_count);
	record->moves = le16toh(wire.moves);
	record->at = le32toh(wire.at);
	record->base = le64toh(wire.base);
	record->before = le64toh(wire.before);
	record->nodes_at = le64toh(wire.nodes_at);
	return record->durable <= record->seq && record->nodes_at <= record->seq &&
	       is_zero(wire.zeroes, sizeof(wire.zeroes)) &&
	       entries_decode(&wire, &anchor->geometry, record);
}

bool flash_record_decode(const uint8_t block[FLASH_BLOCK_BYTES], const struct flash_anchor *anchor,
	const struct flash_position *at, struct flash_record *record, struct flash_position *next)
{
	struct wire_record wire;

	if (!flash_record_look(block, anchor, record) || record->seq != at->seq ||
		record->prev_crc != at->prev_crc ||
		record->at != flash_segment_at(&anchor->geometry, at->segment) + at->block) {
		return false;
	}
	memcpy(&wire, block, sizeof(wire));
	*next = *at;
	next->prev_crc = le32toh(wire.crc);
	return take_next(&anchor->geometry, record, next);
}

/* --- the cache file -------------------------------------------------------------------------- */

/* Checksum of the fields that do not change while the file is in use. */
static uint32_t head_crc(const struct wire_cache *wire)
{
	const uint8_t *bytes = (const void *)wire;
	size_t changing = offsetof(struct wire_cache, followed);
	size_t behind = offsetof(struct wire_cache, disk_path);

	return crc32c(crc32c(0, bytes, changing), bytes + behind,
		offsetof(struct wire_cache, crc) - behind);
}

void flash_cache_head_encode(const struct flash_cache_head *head, uint8_t block[FLASH_BLOCK_BYTES])
{
	struct wire_cache wire = {
		.version = htole32(CACHE_VERSION),
		.page_bytes = htole32(FLASH_BLOCK_BYTES),
		.tag = htole64(head->tag),
		.disk_blocks = htole64(head->disk_blocks),
		.slot_count = htole32(head->slot_count),
		.followed = htole64(head->followed),
		.disk = { htole64(head->disk[0]), htole64(head->disk[1]) },
	};

	memcpy(wire.magic, cache_magic, sizeof(wire.magic));
	memcpy(wire.uuid, head->uuid, sizeof(wire.uuid));
	memcpy(wire.boot_id, head->boot_id, sizeof(wire.boot_id));
	memcpy(wire.disk_path, head->disk_path, sizeof(wire.disk_path));
	wire.crc = htole32(head_crc(&wire));
	memcpy(block, &wire, sizeof(wire));
}

bool flash_cache_head_decode(
	const uint8_t block[FLASH_BLOCK_BYTES], uint64_t file_bytes, struct flash_cache_head *head)
{
	struct wire_cache wire;

	memcpy(&wire, block, sizeof(wire));
	*head = (struct flash_cache_head){
		.tag = le64toh(wire.tag),
		.disk_blocks = le64toh(wire.disk_blocks),
		.slot_count = le32toh(wire.slot_count),
		.followed = le64toh(wire.followed),
		.disk = { le64toh(wire.disk[0]), le64toh(wire.disk[1]) },
	};
	memcpy(head->uuid, wire.uuid, sizeof(wire.uuid));
	memcpy(head->boot_id, wire.boot_id, sizeof(wire.boot_id));
	memcpy(head->disk_path, wire.disk_path, sizeof(wire.disk_path));
	return memcmp(wire.magic, cache_magic, sizeof(wire.magic)) == 0 &&
	       le32toh(wire.crc) == head_crc(&wire) && le32toh(wire.version) == CACHE_VERSION &&
	       le32toh(wire.page_bytes) == FLASH_BLOCK_BYTES && head->tag != 0 && wire.zero == 0 &&
	       head->slot_count >= FLASH_CACHE_SLOTS_MIN &&
	       head->slot_count <= FLASH_CACHE_SLOTS_MAX &&
	       head->disk_path[FLASH_DISK_PATH_BYTES - 1] == '\0' &&
	       is_zero(wire.zeroes, sizeof(wire.zeroes)) &&
	       file_bytes == flash_cache_file_bytes(head->slot_count);
}

void flash_cache_head_follow(uint8_t *block, uint64_t seq)
{
	struct wire_cache *wire = (void *)block;

	/* Release order: a process that reads seq from the file later also sees all changes of the
	 * file that were made before. */
	__atomic_store_n(&wire->followed, htole64(seq), __ATOMIC_RELEASE);
}

void flash_cache_head_give(uint8_t *block, const uint64_t disk[2])
{
	struct wire_cache *wire = (void *)block;

	wire->disk[0] = htole64(disk[0]);
	wire->disk[1] = htole64(disk[1]);
}

uint32_t flash_cache_crc(const struct flash_cache_entry *entry, const uint8_t *page)
{
	return crc32c(crc32c(0, entry, offsetof(struct flash_cache_entry, commit)), page,
		FLASH_BLOCK_BYTES);
}

bool flash_cache_entry_decode(const struct flash_cache_entry *entry, const uint8_t *page,
	const struct flash_anchor *anchor, struct flash_cache_page *found)
{
	uint64_t commit = le64toh(entry->commit);

	*found = (struct flash_cache_page){
		.lpn = le64toh(entry->lpn),
		.counter = le64toh(entry->counter),
		.stamp = le64toh(entry->stamp),
	};
	return commit >> 32 == FLASH_CACHE_DIRTY && found->lpn < anchor->geometry.disk_blocks &&
	       found->counter <= FLASH_CACHE_COUNTER_MAX &&
	       found->stamp <= flash_next_run(anchor->next.seq) &&
	       (uint32_t)commit == flash_cache_crc(entry, page);
}
