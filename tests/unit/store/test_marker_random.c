// SPDX-License-Identifier: Apache-2.0
/*
 * The marker source against devices that do anything, by chance: chunks in any order, in pieces,
 * twice, with other contents the second time, late errors. A model keeps what each read's memory
 * has held. Whatever the device does, nothing but that read's own bytes comes out, success means
 * that everything that was told was right, and every read ends.
 *
 * Usage: test_store_marker_random [SEED]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../stores.h"
#include "base/log.h"
#include "lab/lab.h"
#include "sim/sim.h"
#include "slow_device.h"

enum { CHUNK = MARKER_CHUNK_BYTES, READS = 6, CHUNKS_MAX = 12, STEPS = 150, WORLDS = 200 };

/* A read, and what its memory on the device holds. */
struct watched {
	struct reader reader;
	struct store_part *part; /* the device's, NULL = the place is free */
	bool direct;		 /* not watched: the device writes into the reader's memory */
	uint8_t *shadow;
	uint8_t *reported; /* the first bytes, as they were told */
	uint64_t progress_bytes;
};

static uint8_t untouched[CHUNKS_MAX * CHUNK];
static uint64_t seed_given;
static uint64_t fault_count;
static uint64_t progress_count;

/* cmocka's own looks at each byte by itself, which is most of the time here. */
static void check_same(const void *left, const void *right, size_t bytes)
{
	assert_int_equal(memcmp(left, right, bytes), 0);
}

static int open_marker(struct store *inner, struct store **store_out, struct error *error)
{
	const struct store_options options = { .path = "a wild device" };

	return store_wrap(&marker_unchecked_kind, &options, NULL, inner, store_out, error);
}

static void begin(struct slow_device *device, struct watched *watched)
{
	uint64_t length = sim_between(2, CHUNKS_MAX) * CHUNK;

	reader_start(device, &watched->reader, sim_between(0, 1000) * CHUNK, length);
	watched->part = device->parts[device->part_count - 1];
	watched->direct = watched->part == &watched->reader.part;
	watched->shadow = malloc(length);
	watched->reported = malloc(length);
	assert_non_null(watched->shadow);
	assert_non_null(watched->reported);
	memcpy(watched->shadow, mem_cpu_read(watched->part->memory), length);
	watched->progress_bytes = 0;
}

/* The device writes anywhere: a good one whole chunks and what belongs there; a bad one also
 * pieces, where a marker can go before the rest of its chunk, and now and then something else. */
static void scribble(struct watched *watched, bool bad)
{
	struct store_part *part = watched->part;
	uint64_t from = sim_between(0, part->length - 1);
	uint64_t bytes;

	if (!bad || sim_chance(700000)) {
		from -= from % CHUNK;
	}
	bytes = sim_between(1, MIN(part->length - from, (uint64_t)(3 * CHUNK)));
	if (!bad || sim_chance(700000)) {
		bytes = MIN((bytes + CHUNK - 1) / CHUNK * CHUNK, part->length - from);
	}
	device_fill(part, bad && sim_chance(30000) ? 99 : 1, from, bytes);
	memcpy(watched->shadow + from, mem_cpu_read(part->memory) + from, bytes);
}

/* Nothing but the bytes that the device has put there may have come out. */
static void check_progress(struct watched *watched)
{
	uint64_t reported = watched->reader.reported;

	if (watched->direct) {
		assert_int_equal(reported, 0);
		return;
	}
	check_same(watched->reader.memory + watched->progress_bytes,
		watched->shadow + watched->progress_bytes, reported - watched->progress_bytes);
	memcpy(watched->reported + watched->progress_bytes,
		watched->shadow + watched->progress_bytes, reported - watched->progress_bytes);
	progress_count += reported > watched->progress_bytes;
	watched->progress_bytes = reported;
	check_same(watched->reader.memory, watched->reported, reported);
	check_same(watched->reader.memory + reported, untouched, watched->part->length - reported);
}

static void end(struct slow_device *device, struct watched *watched, bool bad)
{
	struct store_part *part = watched->part;
	int result = sim_chance(100000) ? -EIO : 0;
	int expected = result;

	/* A good device's last word: everything is there. A bad one's may be anything. */
	if (result == 0 && (!bad || sim_chance(900000))) {
		device_fill(part, 1, 0, part->length);
		memcpy(watched->shadow, mem_cpu_read(part->memory), part->length);
	}
	if (memcmp(watched->reported, watched->shadow, watched->progress_bytes) != 0) {
		expected = -EIO;
		fault_count += result == 0;
	}
	device_finish(device, part, result);
	assert_true(watched->reader.is_done);
	assert_int_equal(watched->reader.result, expected);
	if (expected == 0) {
		check_same(watched->reader.memory, watched->shadow, watched->reader.part.length);
	}
	reader_free(&watched->reader);
	free(watched->shadow);
	free(watched->reported);
	watched->part = NULL;
}

static void run_world(uint64_t seed, bool bad)
{
	struct watched reads[READS] = { 0 };
	struct slow_device device;

	slow_device_start(&device, seed, open_marker);
	for (int step = 0; step < STEPS; step++) {
		struct watched *watched = &reads[sim_between(0, READS - 1)];

		if (watched->part == NULL) {
			begin(&device, watched);
		} else if (sim_chance(100000)) {
			end(&device, watched, bad);
		} else {
			scribble(watched, bad);
		}
		if (sim_chance(500000)) {
			device_wait(&device, sim_between(1, 4) * MARKER_LOOK_NS);
		}
		for (int i = 0; i < READS; i++) {
			if (reads[i].part != NULL) {
				check_progress(&reads[i]);
			}
		}
	}
	for (int i = 0; i < READS; i++) {
		if (reads[i].part != NULL) {
			end(&device, &reads[i], bad);
		}
	}
	slow_device_stop(&device);
}

static void run_worlds(bool bad)
{
	for (uint64_t seed = 1; seed <= WORLDS; seed++) {
		if (seed_given == 0 || seed == seed_given) {
			run_world(seed, bad);
		}
	}
}

static void test_good_devices_in_any_order_never_fail(void **state)
{
	GMB_UNUSED(state);
	fault_count = 0;
	progress_count = 0;
	run_worlds(false);
	assert_int_equal(fault_count, 0);
	assert_true(seed_given != 0 || progress_count > WORLDS);
}

static void test_bad_devices_are_found_out(void **state)
{
	GMB_UNUSED(state);
	fault_count = 0;
	run_worlds(true);
	assert_true(seed_given != 0 || fault_count > WORLDS / 10);
	printf("%" PRIu64 " reads of %d worlds told what changed\n", fault_count, WORLDS);
}

/* --- through the file store ---------------------------------------------------------------- */

enum { DISK_BYTES = 1 << 20 };

static uint8_t disk_bytes[DISK_BYTES];

/* One read, and whether bytes were told that are not the disk's. */
struct judged {
	struct store_part part;
	bool was_reported_wrong;
	bool is_done;
};

static void early(struct store_part *part, uint64_t bytes)
{
	struct judged *judged = container_of(part, struct judged, part);

	judged->was_reported_wrong =
		memcmp(mem_cpu_read(part->memory), disk_bytes + part->offset, bytes) != 0;
	progress_count++;
}

static void ended(struct store_part *part, int result)
{
	struct judged *judged = container_of(part, struct judged, part);

	if (result == 0) {
		assert_false(judged->was_reported_wrong);
		check_same(mem_cpu_read(part->memory), disk_bytes + part->offset, part->length);
	} else {
		assert_int_equal(result, -EIO);
		fault_count += judged->was_reported_wrong;
	}
	judged->is_done = true;
}

static struct store *open_disk(void)
{
	const struct sim_disk_options disk_options = {
		.size = DISK_BYTES, .direct_offset_align = 512, .is_block = true
	};
	struct store_options options = { .path = "disk", .read_mode = STORE_MODE_DIRECT };
	struct sim_disk *disk = sim_disk_create("disk", &disk_options);
	struct store *store;
	struct error error;

	for (uint32_t i = 0; i < DISK_BYTES; i++) {
		disk_bytes[i] = device_byte(1, i);
	}
	sim_disk_poke(disk, 0, disk_bytes, DISK_BYTES);
	stores_set(&options, "marker", "yes");
	assert_int_equal(store_open(&options, &store, &error), 0);
	store_options_fini(&options);
	assert_true(store_info(store)->has_progress);
	return store;
}

static void read_disk(struct ring *ring, struct store_queue *queue)
{
	static uint8_t memory[READS][CHUNKS_MAX * CHUNK];
	struct judged reads[READS] = { 0 };

	for (int i = 0; i < READS; i++) {
		uint64_t length = sim_between(2, CHUNKS_MAX) * CHUNK;

		reads[i].part = (struct store_part){
			.op = STORE_READ,
			.offset = sim_between(0, (DISK_BYTES - length) / CHUNK) * CHUNK,
			.length = length,
			.memory = mem_of(memory[i]),
			.done = ended,
			.progressed = early,
		};
		store_submit(queue, &reads[i].part);
	}
	for (int i = 0; i < READS; i++) {
		while (!reads[i].is_done) {
			ring_turn(ring, true);
		}
	}
}

static void read_until_found_out(struct ring *ring, struct store_queue *queue)
{
	uint64_t faults_before = fault_count;
	uint64_t told_before;

	for (int round = 0; fault_count == faults_before; round++) {
		assert_true(round < 100);
		read_disk(ring, queue);
	}
	told_before = progress_count;
	read_disk(ring, queue);
	assert_true(progress_count == told_before);
}

/*
 * The simulated disk puts garbage into a read's memory before the data, in steps of their own and
 * with errors: all that a marker must not be used with. No read that told garbage succeeds, and a
 * store that was found out tells nothing more.
 */
static void test_a_disk_that_scribbles_is_found_out(void **state)
{
	static const struct sim_faults faults = {
		.partial_ppm = 100000,
		.interrupt_ppm = 20000,
		.again_ppm = 20000,
		.read_error_ppm = 20000,
		.memory_error_ppm = 300000,
		.jitter = true,
	};

	GMB_UNUSED(state);
	fault_count = 0;
	progress_count = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		const struct sim_options options = { .seed = seed_given != 0 ? seed_given : seed };
		const struct ring_options ring_options = { .entries = 64 };
		struct store_queue *queue;
		struct store *store;
		struct ring *ring;
		struct error error;

		sim_start(&options);
		assert_int_equal(ring_create(&ring_options, &ring, &error), 0);
		store = open_disk();
		sim_set_faults(&faults);
		assert_int_equal(store_queue_create(store, ring, &queue, &error), 0);
		read_until_found_out(ring, queue);
		sim_set_faults(&(struct sim_faults){ 0 });
		store_queue_destroy(queue);
		store_close(store);
		ring_destroy(ring);
		sim_stop();
	}
	printf("told early %" PRIu64 " times, %" PRIu64 " reads told garbage\n", progress_count,
		fault_count);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_devices_in_any_order_never_fail),
		cmocka_unit_test(test_bad_devices_are_found_out),
		cmocka_unit_test(test_a_disk_that_scribbles_is_found_out),
	};

	stores_register();
	store_register(&marker_store_kind);
	memset(untouched, 0x5a, sizeof(untouched));
	log_set_level(LOG_LEVEL_ERROR - 1);
	seed_given = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
