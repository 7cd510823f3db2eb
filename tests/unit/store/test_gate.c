// SPDX-License-Identifier: Apache-2.0
/*
 * Several reactors, each in a thread with a ring of its own, write to the same pages of one file:
 * some sectors directly, some bytes through the page cache. Nobody may undo what another wrote.
 *
 * The argument names where the file lies: "file" or "loop" (a block device, where the page cache
 * gets no help from the filesystem).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../stores.h"
#include "harness.h"
#include "unit.h"

enum {
	THREADS = 3,
	DEPTH = 8, /* parts in flight per thread */
	STEPS = 4000,
	PAGES = 16, /* few, so that the threads meet often */
	PAGE_BYTES = 4096,
	IMAGE_BYTES = PAGES * PAGE_BYTES,
	SECTOR_BYTES = 512,
	SECTORS = IMAGE_BYTES / SECTOR_BYTES,
};

static char store_path[512];

/*
 * Sector s belongs to thread s % (THREADS + 1); the last share belongs to nobody and stays zero. In
 * its sectors a thread writes either all 512 bytes (direct) or an inner piece (through the cache).
 */
struct worker {
	pthread_t thread;
	unsigned number;
	struct store *store;
	uint8_t *expected; /* only its own sectors are looked at */
	uint64_t seed;
	bool sector_busy[SECTORS];
	struct slot {
		struct waited_part waited;
		uint64_t sector;
		uint64_t skip;
		uint64_t length;
		bool is_read;
		uint8_t *data;
	} slots[DEPTH];
	unsigned wrong_reads; /* judged by the main thread: assertions belong there */
	unsigned errors;
};

static uint64_t pick_sector(struct worker *worker)
{
	for (;;) {
		uint64_t sector = random_below(&worker->seed, SECTORS);

		if (sector % (THREADS + 1) == worker->number && !worker->sector_busy[sector]) {
			return sector;
		}
	}
}

static void slot_start(struct bench *bench, struct worker *worker, struct slot *slot)
{
	uint64_t offset;

	slot->sector = pick_sector(worker);
	slot->skip = 0;
	slot->length = SECTOR_BYTES;
	if (random_below(&worker->seed, 3) == 0) {
		slot->skip = 1 + random_below(&worker->seed, 100);
		slot->length = 1 + random_below(&worker->seed, SECTOR_BYTES - slot->skip);
	}
	slot->is_read = random_below(&worker->seed, 2) == 0;
	offset = slot->sector * SECTOR_BYTES + slot->skip;
	worker->sector_busy[slot->sector] = true;
	for (uint64_t i = 0; i < slot->length; i++) {
		slot->data[i] = (uint8_t)random_next(&worker->seed);
	}
	if (!slot->is_read) {
		memcpy(worker->expected + offset, slot->data, slot->length);
	}
	bench_start(bench, &slot->waited, slot->is_read ? STORE_READ : STORE_WRITE, 0, offset,
		slot->length, slot->data);
}

static void slot_finish(struct bench *bench, struct worker *worker, struct slot *slot)
{
	const uint8_t *expected = worker->expected + slot->sector * SECTOR_BYTES + slot->skip;

	worker->errors += bench_wait(bench, &slot->waited) != 0;
	worker->sector_busy[slot->sector] = false;
	if (slot->is_read) {
		worker->wrong_reads += memcmp(slot->data, expected, slot->length) != 0;
	}
}

static void *worker_run(void *argument)
{
	struct worker *worker = argument;
	struct bench bench;

	bench_share(&bench, worker->store);
	for (unsigned step = 0; step < STEPS; step++) {
		struct slot *slot = &worker->slots[step % DEPTH];

		if (step >= DEPTH) {
			slot_finish(&bench, worker, slot);
		}
		slot_start(&bench, worker, slot);
	}
	for (unsigned i = 0; i < DEPTH; i++) {
		slot_finish(&bench, worker, &worker->slots[i]);
	}
	bench_close(&bench);
	return NULL;
}

static struct store *open_store(enum store_mode read_mode, enum store_mode write_mode)
{
	struct store_options options = {
		.path = store_path, .read_mode = read_mode, .write_mode = write_mode
	};
	struct store *store = NULL;
	struct error error;

	if (store_open(&options, &store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	return store;
}

/* Every byte is its owner's last. */
static void verify(struct worker *workers, enum store_mode read_mode)
{
	struct store *store = open_store(read_mode, STORE_MODE_CACHED);
	uint8_t *image = aligned_bytes(IMAGE_BYTES);
	struct bench bench;

	bench_share(&bench, store);
	assert_int_equal(bench_read(&bench, 0, IMAGE_BYTES, image), 0);
	for (uint64_t i = 0; i < IMAGE_BYTES; i++) {
		uint64_t owner = i / SECTOR_BYTES % (THREADS + 1);

		assert_int_equal(image[i], owner < THREADS ? workers[owner].expected[i] : 0);
	}
	bench_close(&bench);
	store_close(store);
	free(image);
}

static void wipe(struct store *store)
{
	uint8_t *zeroes = aligned_bytes(IMAGE_BYTES);
	struct bench bench;

	memset(zeroes, 0, IMAGE_BYTES);
	bench_share(&bench, store);
	assert_int_equal(bench_write(&bench, 0, IMAGE_BYTES, zeroes), 0);
	bench_close(&bench);
	free(zeroes);
}

static void worker_init(struct worker *worker, unsigned number, struct store *store)
{
	worker->number = number;
	worker->store = store;
	worker->seed = number + 1;
	worker->expected = aligned_bytes(IMAGE_BYTES);
	memset(worker->expected, 0, IMAGE_BYTES);
	for (unsigned j = 0; j < DEPTH; j++) {
		worker->slots[j].data = aligned_bytes(PAGE_BYTES);
	}
}

static void worker_fini(struct worker *worker)
{
	free(worker->expected);
	for (unsigned j = 0; j < DEPTH; j++) {
		free(worker->slots[j].data);
	}
}

/* stores[i] is worker i's. */
static void run_workers(struct store **stores)
{
	struct worker *workers = calloc(THREADS, sizeof(*workers));

	assert_non_null(workers);
	wipe(stores[0]);
	for (unsigned i = 0; i < THREADS; i++) {
		worker_init(&workers[i], i, stores[i]);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(workers[i].errors, 0);
		assert_int_equal(workers[i].wrong_reads, 0);
	}
	verify(workers, STORE_MODE_CACHED);
	verify(workers, STORE_MODE_DIRECT);
	for (unsigned i = 0; i < THREADS; i++) {
		worker_fini(&workers[i]);
	}
	free(workers);
}

TEST(test_unaligned_and_direct_writes_share_pages)
{
	struct store *store = open_store(STORE_MODE_DIRECT, STORE_MODE_DIRECT);
	struct store *stores[THREADS] = { store, store, store };

	run_workers(stores);
	store_close(store);
}

/* The same file in all modes at once, by stores that were opened apart. */
TEST(test_stores_in_different_modes_share_pages)
{
	struct store *stores[THREADS] = {
		open_store(STORE_MODE_CACHED, STORE_MODE_CACHED),
		open_store(STORE_MODE_DIRECT, STORE_MODE_DIRECT),
		open_store(STORE_MODE_CACHED, STORE_MODE_DIRECT),
	};

	run_workers(stores);
	for (unsigned i = 0; i < THREADS; i++) {
		store_close(stores[i]);
	}
}

int main(int argc, char **argv)
{
	const char *place = argc == 2 ? argv[1] : "file";
	int loop_fd = -1;
	int failed;

	scratch_create();
	if (!scratch_has_direct()) {
		return scratch_skip("no O_DIRECT in the temporary directory");
	}
	snprintf(store_path, sizeof(store_path), "%s", scratch_file("image", IMAGE_BYTES));
	if (strcmp(place, "loop") == 0) {
		char device[64];

		loop_fd = loop_open(store_path, SECTOR_BYTES, device, sizeof(device));
		if (loop_fd < 0) {
			return scratch_skip("no loop device to be had");
		}
		snprintf(store_path, sizeof(store_path), "%s", device);
	}
	failed = unit_run(NULL, NULL);
	if (loop_fd >= 0) {
		loop_close(loop_fd);
	}
	scratch_remove();
	return failed;
}
