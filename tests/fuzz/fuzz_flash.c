// SPDX-License-Identifier: Apache-2.0
/*
 * The blocks of a flash store. The first byte of the input says what is put right, so that more
 * than a checksum is tried: bit 0 that of the anchor, bit 1 that of the record. The second one says
 * how much of the input is the anchor, in units of 16 bytes; the header of a record follows, which
 * is taken as the head of a cache file as well (bit 2 puts that right), and as the entry of a slot.
 */
#include "base/bytes.h"
#include "base/crc32c.h"
#include "fuzz.h"
#include "store/flash/format.h"

static void try_record(const struct flash_anchor *anchor, const uint8_t *block)
{
	struct flash_record record;
	struct flash_position at = anchor->next;
	struct flash_position next;
	uint8_t again[FLASH_BLOCK_BYTES];

	if (!flash_record_look(block, anchor, &record)) {
		return;
	}
	GMB_ASSERT(record.block_count <= FLASH_RECORD_ENTRIES + 1);
	/* What was understood is all there is. */
	(void)flash_record_encode(&record, anchor->uuid, again);
	GMB_ASSERT(memcmp(block, again, FLASH_BLOCK_BYTES) == 0);
	at.seq = record.seq;
	at.prev_crc = record.prev_crc;
	if (flash_record_decode(block, anchor, &at, &record, &next)) {
		GMB_ASSERT(next.segment < anchor->geometry.segment_count);
		GMB_ASSERT(next.block <= anchor->geometry.segment_blocks - 2);
	}
}

static void try_cache(const struct flash_anchor *anchor, const uint8_t *block)
{
	static const uint8_t slot[FLASH_BLOCK_BYTES];
	struct flash_cache_head head;
	struct flash_cache_page page;
	struct flash_cache_entry entry;
	uint8_t again[FLASH_BLOCK_BYTES];
	uint32_t slot_count;

	memcpy(&slot_count, block + 64, sizeof(slot_count));
	slot_count = MIN(le32toh(slot_count), (uint32_t)FLASH_CACHE_SLOTS_MAX);
	if (flash_cache_head_decode(block, flash_cache_file_bytes(slot_count), &head)) {
		GMB_ASSERT(head.slot_count == slot_count && head.tag != 0);
		flash_cache_head_encode(&head, again);
		GMB_ASSERT(memcmp(block, again, FLASH_BLOCK_BYTES) == 0);
	}
	memcpy(&entry, block, sizeof(entry));
	entry.commit = htole64(FLASH_CACHE_DIRTY << 32 | flash_cache_crc(&entry, slot));
	if (flash_cache_entry_decode(&entry, slot, anchor, &page)) {
		GMB_ASSERT(page.lpn < anchor->geometry.disk_blocks);
		GMB_ASSERT(page.stamp <= flash_next_run(anchor->next.seq));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t anchor_block[FLASH_BLOCK_BYTES] = { 0 };
	uint8_t record_block[FLASH_BLOCK_BYTES] = { 0 };
	uint8_t again[FLASH_BLOCK_BYTES];
	struct flash_anchor anchor;
	struct error error = { 0 };
	size_t anchor_bytes;
	uint32_t crc;

	if (size < 2) {
		return 0;
	}
	anchor_bytes = MIN(size - 2, (size_t)data[1] * 16);
	memcpy(anchor_block, data + 2, anchor_bytes);
	memcpy(record_block, data + 2 + anchor_bytes,
		MIN(size - 2 - anchor_bytes, sizeof(record_block)));
	if ((data[0] & 1) != 0) {
		crc = htole32(crc32c(0, anchor_block, FLASH_BLOCK_BYTES - 4));
		memcpy(anchor_block + FLASH_BLOCK_BYTES - 4, &crc, sizeof(crc));
	}
	if ((data[0] & 2) != 0) {
		crc = htole32(crc32c(0, record_block + 8, FLASH_BLOCK_BYTES - 8));
		memcpy(record_block + 4, &crc, sizeof(crc));
	}
	if (flash_anchor_decode(anchor_block, &anchor, &error) < 0) {
		GMB_ASSERT(error.text[0] != '\0');
		return 0;
	}
	GMB_ASSERT(flash_device_blocks(&anchor.geometry) <= UINT32_MAX);
	flash_anchor_encode(&anchor, again);
	GMB_ASSERT(memcmp(anchor_block, again, FLASH_BLOCK_BYTES) == 0);
	try_record(&anchor, record_block);
	if ((data[0] & 4) != 0) {
		crc = htole32(crc32c(0, record_block, FLASH_BLOCK_BYTES - 4));
		memcpy(record_block + FLASH_BLOCK_BYTES - 4, &crc, sizeof(crc));
	}
	try_cache(&anchor, record_block);
	return 0;
}
