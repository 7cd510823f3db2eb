// SPDX-License-Identifier: Apache-2.0
/* What a flash store has on its disk is encoded as docs/protocol/flash.md says, and refused else.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "store/flash/format.h"
#include "unit.h"

static struct flash_anchor make_anchor(uint64_t device_blocks, uint32_t segment_blocks)
{
	struct flash_anchor anchor = { .version = FLASH_ANCHOR_VERSION,
		.serial = 7,
		.next = { .seq = 99, .segment = 3, .block = 5, .prev_crc = 0x12345678 },
		.clock = 1234,
		.spare_percent = 15,
		.label = "a label" };
	struct error error;

	assert_int_equal(
		flash_geometry_make(&anchor.geometry, device_blocks, segment_blocks, 15, &error),
		0);
	memset(anchor.uuid, 0xa5, sizeof(anchor.uuid));
	anchor.top[0] = (struct flash_entry){ htole32(300), htole32(0xabcdef) };
	anchor.serial = 7;
	anchor.snapshots[1] = (struct flash_snapshot_anchor){
		.name = "daily-1.b_2", .serial = 7, .created_s = 1700000000
	};
	anchor.snapshots[1].top[0] = (struct flash_entry){ htole32(301), htole32(0x123456) };
	return anchor;
}

TEST(test_the_checksum_is_that_of_the_rfc)
{
	uint8_t zeroes[32] = { 0 };

	assert_int_equal(crc32c(0, zeroes, sizeof(zeroes)), 0x8a9136aa);
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
}

/* Bit by bit, as it is defined. */
static uint32_t crc_of_bits(const uint8_t *bytes, size_t count)
{
	uint32_t crc = UINT32_MAX;

	for (size_t bit = 0; bit < count * 8; bit++) {
		crc ^= (bytes[bit / 8] >> (bit % 8)) & 1;
		crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0 - (crc & 1)));
	}
	return ~crc;
}

TEST(test_all_ways_have_the_same_checksum)
{
	enum { BYTES = 13000, LENGTHS = 300 };
	uint8_t bytes[BYTES];
	uint64_t seed = 7;

	for (size_t i = 0; i < BYTES; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		bytes[i] = (uint8_t)(seed >> 56);
	}
	for (size_t i = 0; i < LENGTHS; i++) {
		const uint8_t *first = bytes + i % 9;
		size_t count = i * 43;
		size_t cut = count * (i % 5) / 4;
		uint32_t crc = crc_of_bits(first, count);

		assert_int_equal(crc32c(0, first, count), crc);
		for (enum crc32c_way way = CRC32C_TABLES; way <= crc32c_best_way(); way++) {
			uint32_t part = crc32c_by(way, 0, first, cut);

			assert_int_equal(crc32c_by(way, part, first + cut, count - cut), crc);
		}
	}
}

TEST(test_an_anchor_comes_back_as_it_was)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_anchor back;
	uint8_t block[FLASH_BLOCK_BYTES];
	uint8_t again[FLASH_BLOCK_BYTES];
	struct error error;

	flash_anchor_encode(&anchor, block);
	assert_memory_equal(block, "GMBFLA\r\n", 8);
	assert_int_equal(block[8], 5);
	assert_int_equal(block[56], 99);
	assert_int_equal(block[512], 300 & 0xff);
	assert_int_equal(flash_anchor_decode(block, &back, &error), 0);
	assert_memory_equal(&back.geometry, &anchor.geometry, sizeof(anchor.geometry));
	flash_anchor_encode(&back, again);
	assert_memory_equal(block, again, sizeof(block));
	assert_string_equal((const char *)block + 1024 + 640, "daily-1.b_2");
	assert_memory_equal(&back.snapshots[1], &anchor.snapshots[1], sizeof(back.snapshots[1]));
}

TEST(test_detours_come_back_as_they_were)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_position at = anchor.next;
	struct flash_anchor back;
	uint8_t block[FLASH_BLOCK_BYTES];
	uint8_t again[FLASH_BLOCK_BYTES];
	struct error error;

	for (uint32_t i = 0; i < FLASH_DETOURS; i++) {
		assert_true(flash_detour_add(&anchor, anchor.next.seq + i, i));
	}
	assert_true(flash_detour_add(&anchor, anchor.next.seq + FLASH_DETOURS - 1, 77));
	assert_false(flash_detour_add(&anchor, anchor.next.seq + FLASH_DETOURS, 0));
	flash_anchor_encode(&anchor, block);
	assert_int_equal(block[8], 5); /* programs of before refuse it */
	assert_int_equal(block[2304], 99);
	assert_int_equal(block[2304 + 7 * 16 + 8], 77);
	assert_int_equal(flash_anchor_decode(block, &back, &error), 0);
	flash_anchor_encode(&back, again);
	assert_memory_equal(block, again, sizeof(block));
	flash_detour_follow(&back, &at);
	assert_true(at.segment == 0 && at.block == 0 && at.prev_crc == anchor.next.prev_crc);
	at.seq += FLASH_DETOURS;
	at.block = 5;
	flash_detour_follow(&back, &at);
	assert_int_equal(at.block, 5);
	back.next.seq += FLASH_DETOURS - 1;
	flash_detours_drop(&back);
	assert_int_equal(back.detour_count, 1);
	assert_int_equal(back.detours[0].segment, 77);
	back.next.seq++;
	flash_anchor_encode(&back, block);
	assert_int_equal(flash_anchor_decode(block, &back, &error), -EINVAL); /* before the log */
	anchor.detours[1].segment = anchor.geometry.segment_count;
	flash_anchor_encode(&anchor, block);
	assert_int_equal(flash_anchor_decode(block, &back, &error), -EINVAL);
	anchor.detours[1] = anchor.detours[2];
	flash_anchor_encode(&anchor, block);
	assert_int_equal(flash_anchor_decode(block, &back, &error), -EINVAL); /* twice */
}

TEST(test_names_of_snapshots)
{
	char name[FLASH_SNAPSHOT_NAME_BYTES + 1];

	memset(name, 'a', sizeof(name));
	name[FLASH_SNAPSHOT_NAME_BYTES] = '\0';
	assert_false(flash_snapshot_name_is_sound(name));
	name[FLASH_SNAPSHOT_NAME_BYTES - 1] = '\0';
	assert_true(flash_snapshot_name_is_sound(name));
	assert_true(flash_snapshot_name_is_sound("2026-11-23_08.15"));
	assert_false(flash_snapshot_name_is_sound(""));
	assert_false(flash_snapshot_name_is_sound(".a"));
	assert_false(flash_snapshot_name_is_sound("-a"));
	assert_false(flash_snapshot_name_is_sound("a@b"));
	assert_false(flash_snapshot_name_is_sound("a/b"));
	assert_false(flash_snapshot_name_is_sound("a\xc3\xa4"));
}

static int decode_changed(uint32_t at, uint8_t value, bool repaired)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	uint8_t block[FLASH_BLOCK_BYTES];
	struct error error;

	flash_anchor_encode(&anchor, block);
	block[at] = value;
	if (repaired) {
		uint32_t crc = htole32(crc32c(0, block, FLASH_BLOCK_BYTES - 4));

		memcpy(block + FLASH_BLOCK_BYTES - 4, &crc, sizeof(crc));
	}
	return flash_anchor_decode(block, &anchor, &error);
}

TEST(test_an_anchor_that_is_wrong_is_refused)
{
	assert_int_equal(decode_changed(0, 'X', true), -EINVAL);
	assert_int_equal(decode_changed(100, 1, false), -EINVAL); /* the checksum */
	assert_int_equal(decode_changed(8, 2, true), -ENOTSUP);
	assert_int_equal(decode_changed(8, 3, true), 0); /* as before */
	assert_int_equal(decode_changed(8, 4, true), 0);
	assert_int_equal(decode_changed(8, 6, true), -ENOTSUP);
	assert_int_equal(decode_changed(13, 1, true), -ENOTSUP);    /* the size of a block */
	assert_int_equal(decode_changed(45, 1, true), -EINVAL);	    /* the disk is too large */
	assert_int_equal(decode_changed(66, 1, true), -EINVAL);	    /* a segment that is none */
	assert_int_equal(decode_changed(70, 1, true), -EINVAL);	    /* a block behind it */
	assert_int_equal(decode_changed(151, 1, true), -EINVAL);    /* a label without an end */
	assert_int_equal(decode_changed(160, 1, true), -EINVAL);    /* zeroes */
	assert_int_equal(decode_changed(515, 0xff, true), -EINVAL); /* a node outside */
	assert_int_equal(decode_changed(520, 1, true), -EINVAL);    /* one too many */
	/* Views: one that is there, where only zeroes may be; and its fields. */
	assert_int_equal(decode_changed(1024 + 64, 1, true), -EINVAL);
	assert_int_equal(decode_changed(1664, 'D', true), 0);
	assert_int_equal(decode_changed(1664, '/', true), -EINVAL);
	assert_int_equal(decode_changed(1664 + 12, 'x', true), -EINVAL);
	assert_int_equal(decode_changed(1664, 0, true), -EINVAL);      /* no name */
	assert_int_equal(decode_changed(1664 + 64, 8, true), -EINVAL); /* of a later anchor */
	assert_int_equal(decode_changed(1664 + 80, 1, true), 0);       /* of a job */
	assert_int_equal(decode_changed(1664 + 80, 2, true), -EINVAL);
	assert_int_equal(decode_changed(1664 + 84, 1, true), -EINVAL);	  /* zeroes */
	assert_int_equal(decode_changed(1664 + 131, 255, true), -EINVAL); /* a node outside */
	assert_int_equal(decode_changed(2304, 1, true), -EINVAL);
	assert_int_equal(decode_changed(156, 47, true), -EINVAL); /* a folder of no cache file */
	assert_int_equal(decode_changed(411, 1, true), -EINVAL);
	assert_int_equal(decode_changed(412, 1, true), -EINVAL); /* a machine of none */
	assert_int_equal(decode_changed(428, 1, true), -EINVAL);
}

TEST(test_segments_are_not_too_many_for_memory)
{
	struct flash_geometry geometry;
	struct error error;

	assert_int_equal(flash_geometry_make(&geometry, UINT32_MAX, 4096, 15, &error), 0);
	assert_int_equal(flash_geometry_make(&geometry, UINT32_MAX, 2048, 15, &error), -EINVAL);
	assert_non_null(strstr(error.text, "choose larger segments"));
	geometry = (struct flash_geometry){ .disk_blocks = 1 << 20,
		.segment_count = FLASH_SEGMENTS_MAX + 1,
		.segment_blocks = 16 };
	assert_false(flash_geometry_init(&geometry));
	geometry.segment_count = FLASH_SEGMENTS_MAX;
	assert_true(flash_geometry_init(&geometry));
}

static struct flash_record make_record(const struct flash_anchor *anchor)
{
	return (struct flash_record){ .seq = anchor->next.seq,
		.durable = 90,
		.base = 80,
		.before = 70,
		.nodes_at = 60,
		.moves = 2,
		.at = flash_segment_at(&anchor->geometry, anchor->next.segment) +
		      anchor->next.block,
		.prev_crc = anchor->next.prev_crc,
		.next_segment = FLASH_NO_SEGMENT,
		.entry_count = 4,
		.entries = { { .lpn = 1000, .crc = 1, .kind = FLASH_DATA },
			{ .lpn = 5, .source = 400, .crc = 2, .kind = FLASH_COPY },
			{ .lpn = 512, .source = 512, .kind = FLASH_TRIM },
			{ .lpn = 1, .source = 1, .crc = 3, .kind = FLASH_NODE } } };
}

TEST(test_a_record_comes_back_as_it_was)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_record record = make_record(&anchor);
	struct flash_record back;
	struct flash_position next;
	uint8_t block[FLASH_BLOCK_BYTES];
	uint32_t crc;

	crc = flash_record_encode(&record, anchor.uuid, block);
	assert_true(flash_record_decode(block, &anchor, &anchor.next, &back, &next));
	assert_int_equal(back.entry_count, 4);
	assert_int_equal(back.block_count, 4); /* a trim has no block */
	assert_int_equal(back.durable, 90);
	assert_int_equal(back.base, 80);
	assert_int_equal(back.before, 70);
	assert_int_equal(back.nodes_at, 60);
	assert_int_equal(block[72], 60);
	assert_int_equal(back.moves, 2);
	assert_int_equal(back.at, record.at);
	for (uint32_t i = 0; i < back.entry_count; i++) {
		assert_true(back.entries[i].lpn == record.entries[i].lpn);
		assert_int_equal(back.entries[i].source, record.entries[i].source);
		assert_int_equal(back.entries[i].crc, record.entries[i].crc);
		assert_int_equal(back.entries[i].kind, record.entries[i].kind);
	}
	assert_int_equal(next.seq, 100);
	assert_int_equal(next.segment, 3);
	assert_int_equal(next.block, 9);
	assert_int_equal(next.prev_crc, crc);
}

/* A write that the device has put elsewhere. */
TEST(test_a_record_of_another_place_ends_the_log)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_record record = make_record(&anchor);
	struct flash_record back;
	struct flash_position next;
	uint8_t block[FLASH_BLOCK_BYTES];

	record.at++;
	(void)flash_record_encode(&record, anchor.uuid, block);
	assert_true(flash_record_look(block, &anchor, &back));
	assert_false(flash_record_decode(block, &anchor, &anchor.next, &back, &next));
}

static bool decodes(const struct flash_record *from, const struct flash_position *at)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_record record = *from;
	struct flash_record back;
	struct flash_position next;
	uint8_t block[FLASH_BLOCK_BYTES];

	record.at = flash_segment_at(&anchor.geometry, at->segment) + at->block;
	(void)flash_record_encode(&record, anchor.uuid, block);
	return flash_record_decode(block, &anchor, at, &back, &next);
}

TEST(test_a_record_that_does_not_follow_ends_the_log)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_record record = make_record(&anchor);
	struct flash_position at = anchor.next;

	assert_true(decodes(&record, &at));
	at.seq++;
	assert_false(decodes(&record, &at));
	at = anchor.next;
	at.prev_crc++; /* what a crash has left of another log */
	assert_false(decodes(&record, &at));
	at = anchor.next;
	at.block = 1024 - 4; /* fits, but must name the next segment */
	assert_false(decodes(&record, &at));
	record.next_segment = 4;
	assert_true(decodes(&record, &at));
	at.block++;
	assert_false(decodes(&record, &at));
	at = anchor.next;
	record.next_segment = anchor.geometry.segment_count;
	assert_false(decodes(&record, &at));
}

static void refuse_entry(struct flash_record_entry entry)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	struct flash_record record = make_record(&anchor);

	record.entries[2] = entry;
	assert_false(decodes(&record, &anchor.next));
}

TEST(test_entries_that_cannot_be_are_refused)
{
	struct flash_anchor anchor = make_anchor(1 << 20, 1024);
	uint64_t blocks = anchor.geometry.disk_blocks;

	refuse_entry((struct flash_record_entry){ .lpn = blocks, .kind = FLASH_DATA });
	refuse_entry((struct flash_record_entry){ .source = 1, .kind = FLASH_DATA });
	refuse_entry((struct flash_record_entry){ .source = 1, .kind = FLASH_COPY });
	refuse_entry((struct flash_record_entry){ .lpn = 511, .source = 2, .kind = FLASH_TRIM });
	refuse_entry((struct flash_record_entry){ .kind = FLASH_TRIM });
	refuse_entry((struct flash_record_entry){ .source = 9, .kind = FLASH_NODE });
	refuse_entry((struct flash_record_entry){ .lpn = 1 << 20, .kind = FLASH_NODE });
	refuse_entry((struct flash_record_entry){ .source = 9, .kind = FLASH_TWIN });
	refuse_entry((struct flash_record_entry){ .kind = 0 });
	refuse_entry((struct flash_record_entry){ .kind = FLASH_KIND_COUNT });
}

TEST(test_sizes_leave_room_for_the_stores_own_blocks)
{
	static const uint64_t devices[] = { 512, 2000, 1 << 15, 1 << 18, 1 << 22, 1 << 28,
		UINT32_MAX };
	uint32_t made = 0;

	for (size_t i = 0; i < ARRAY_COUNT(devices); i++) {
		for (uint32_t segment = 16; segment <= 65536; segment *= 8) {
			struct flash_geometry geometry;
			struct flash_geometry same = { 0 };
			struct error error;

			if (flash_geometry_make(&geometry, devices[i], segment, 15, &error) < 0) {
				assert_true(devices[i] < 256 + 64 * (uint64_t)segment ||
					    devices[i] / segment > FLASH_SEGMENTS_MAX);
				continue;
			}
			made++;
			same.disk_blocks = geometry.disk_blocks;
			same.segment_count = geometry.segment_count;
			same.segment_blocks = segment;
			assert_true(flash_geometry_init(&same));
			assert_memory_equal(&same, &geometry, sizeof(same));
			assert_true(flash_device_blocks(&geometry) <= devices[i]);
			/* Of a large device nearly all but the spare space is the disk's. */
			if (geometry.segment_count > 4000 && segment > 1000) {
				assert_true(geometry.disk_blocks > devices[i] / 100 * 80);
			}
		}
	}
	assert_true(made > 10);
}
