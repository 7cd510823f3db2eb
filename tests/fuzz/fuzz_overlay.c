// SPDX-License-Identifier: Apache-2.0
/*
 * The file of an overlay. The first byte of the input says what is put right, so that more than the
 * checksum is tried: bit 0 the checksum, bit 1 the length of the file. Then come the first bytes of
 * the header, whose others are zeroes, and the bitmap.
 */
#include "../unit/stores.h"
#include "base/bytes.h"
#include "fuzz.h"
#include "sim/sim.h"
#include "store/overlay.h"

enum { BASE_BYTES = 100 << 10, GIVEN_BYTES = 128 };

static void repair_checksum(uint8_t *head)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	struct be64 checksum;

	for (int i = 0; i < OVERLAY_HEAD_BYTES - 8; i++) {
		hash = (hash ^ head[i]) * UINT64_C(0x100000001b3);
	}
	checksum = be64_make(hash);
	memcpy(head + OVERLAY_HEAD_BYTES - 8, &checksum, sizeof(checksum));
}

static void ignore_fact(struct store_check *check, const char *name, const char *text)
{
	GMB_ASSERT(name[0] != '\0' && strlen(text) <= OVERLAY_BASE_PATH_MAX);
}

static void check_amount(struct store_check *check, const char *name, uint64_t bytes)
{
	static uint64_t size;

	if (strcmp(name, "size") == 0) {
		size = bytes;
		GMB_ASSERT(size > 0 && size <= OVERLAY_SIZE_MAX);
	} else {
		GMB_ASSERT(bytes <= size);
	}
}

static void check_fault(struct store_check *check, const char *sentence)
{
	GMB_ASSERT(sentence[0] != '\0');
}

/* As a server does. Whatever is wrong, it says so. */
static void try_serve(void)
{
	struct store_options options = { .path = "base" };
	struct error error = { 0 };
	struct store *store;

	stores_set(&options, "overlay", "overlay");
	if (store_open(&options, &store, &error) == 0) {
		GMB_ASSERT(store_size(store) == BASE_BYTES);
		store_close(store);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	store_options_fini(&options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct store_check check = {
		.base = "base", .fact = ignore_fact, .amount = check_amount, .fault = check_fault
	};
	uint8_t head[OVERLAY_HEAD_BYTES] = { 0 };
	uint64_t file_bytes = size;
	struct error error = { 0 };
	struct sim_disk *disk;

	if (size < 1) {
		return 0;
	}
	memcpy(head, data + 1, MIN(size - 1, (size_t)GIVEN_BYTES));
	if ((data[0] & 1) != 0) {
		repair_checksum(head);
		file_bytes = MAX(file_bytes, sizeof(head));
	}
	if ((data[0] & 2) != 0) {
		struct be64 bytes;
		uint64_t disk_bytes;

		memcpy(&bytes, head + 16, sizeof(bytes));
		disk_bytes = MIN(be64_get(bytes), UINT64_C(1) << 40);
		file_bytes = MAX(file_bytes, disk_bytes + (64 << 20));
	}
	sim_start(&(struct sim_options){ .seed = 1 });
	(void)sim_disk_create("base", &(struct sim_disk_options){ .size = BASE_BYTES });
	disk = sim_disk_create("overlay", &(struct sim_disk_options){ .size = file_bytes });
	sim_disk_poke(disk, 0, head, MIN(file_bytes, (uint64_t)sizeof(head)));
	if (size > 1 + GIVEN_BYTES) {
		sim_disk_poke(disk, sizeof(head), data + 1 + GIVEN_BYTES, size - 1 - GIVEN_BYTES);
	}
	if (store_check("overlay", &check, &error) < 0) {
		GMB_ASSERT(error.text[0] != '\0');
	}
	try_serve();
	sim_stop();
	return 0;
}
