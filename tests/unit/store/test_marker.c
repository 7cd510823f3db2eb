// SPDX-License-Identifier: Apache-2.0
/*
 * The marker source over a device that does what a test wants at each moment: what it believes,
 * what it tells, and what becomes of a device that does not keep to the rules.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../stores.h"
#include "lab/lab.h"
#include "sim/sim.h"
#include "slow_device.h"

enum { CHUNK = MARKER_CHUNK_BYTES, KEY = 17, PARTS = 8 };
#define LENGTH	   ((uint64_t)PARTS * CHUNK)
#define SOME_LOOKS (UINT64_C(5) * MARKER_LOOK_NS)

static int open_marker(struct store *inner, struct store **store_out, struct error *error)
{
	const struct store_options options = { .path = "a slow device" };

	return store_wrap(&marker_unchecked_kind, &options, NULL, inner, store_out, error);
}

static int setup(void **state)
{
	static struct slow_device device;

	slow_device_start(&device, 1, open_marker);
	*state = &device;
	return 0;
}

static int teardown(void **state)
{
	slow_device_stop(*state);
	return 0;
}

static uint64_t marker_at(const struct store_part *part, uint32_t chunk)
{
	uint64_t word;

	memcpy(&word, mem_cpu_read(part->memory) + (chunk + 1) * (size_t)CHUNK - sizeof(word),
		sizeof(word));
	return word;
}

/* So much of the read is told once the source has looked a few times. */
static void expect_progress(struct slow_device *device, const struct reader *reader, uint64_t bytes)
{
	device_wait(device, SOME_LOOKS);
	assert_int_equal(reader->reported, bytes);
}

/* A read of LENGTH bytes at offset 0; returns the part that reached the device. */
static struct store_part *start(struct slow_device *device, struct reader *reader)
{
	reader_start(device, reader, 0, LENGTH);
	return device->parts[device->part_count - 1];
}

/* The disk gives all that is missing, and the read ends well. */
static void complete(struct slow_device *device, struct reader *reader, struct store_part *part)
{
	device_fill(part, KEY, 0, LENGTH);
	device_finish(device, part, 0);
	assert_true(reader->is_done);
	assert_int_equal(reader->result, 0);
	assert_true(reader_has(reader, KEY, LENGTH));
	reader_free(reader);
}

/* True when the device got the user's own part: nothing is watched. */
static bool passes_on(struct slow_device *device, struct reader *reader)
{
	struct store_part *part = device->parts[device->part_count - 1];
	bool passes = part == &reader->part && mem_cpu_read(part->memory) == reader->memory;

	if (passes) {
		assert_true(reader_has(reader, KEY, 0)); /* no marker in it */
	}
	device_fill(part, KEY, 0, part->length);
	device_wait(device, SOME_LOOKS);
	device_finish(device, part, 0);
	assert_int_equal(reader->result, 0);
	assert_true(reader_has(reader, KEY, part->length));
	if (passes) {
		assert_int_equal(reader->progress_count, 0);
	}
	reader_free(reader);
	return passes;
}

/* --- prepare ------------------------------------------------------------------------------- */

static void test_device_gets_zeroed_memory_with_markers(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	uint64_t markers[2];

	for (int round = 0; round < 2; round++) { /* the second time in used memory */
		struct store_part *part = start(device, &reader);
		uint64_t marker = marker_at(part, 0);
		const uint8_t *data = mem_cpu_read(part->memory);

		assert_ptr_not_equal(data, reader.memory);
		for (uint32_t chunk = 0; chunk < PARTS; chunk++) {
			assert_true(marker_at(part, chunk) == marker);
			for (uint32_t i = 0; i < CHUNK - sizeof(marker); i++) {
				assert_int_equal(data[chunk * (size_t)CHUNK + i], 0);
			}
		}
		markers[round] = marker;
		complete(device, &reader, part);
	}
	assert_true(markers[0] != markers[1]);
}

static void test_store_looks_like_its_disk_but_tells(void **state)
{
	struct slow_device *device = *state;
	const struct store_info *info = store_info(device->store);

	assert_true(info->has_progress);
	assert_true(info->read_direct);
	assert_int_equal(info->memory_align, 512);
	assert_int_equal(info->caps, STORE_CAP_WRITE);
	assert_int_equal(store_size(device->store), UINT64_C(1) << 30);
}

/* --- send ---------------------------------------------------------------------------------- */

static void test_ascending_chunks_are_told_as_they_come(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	expect_progress(device, &reader, 0);
	assert_true(reader_has(&reader, KEY, 0));
	for (uint64_t chunk = 0; chunk < PARTS - 1; chunk++) {
		device_fill(part, KEY, chunk * CHUNK, CHUNK);
		device_wait(device, SOME_LOOKS);
		assert_int_equal(reader.reported, (chunk + 1) * CHUNK);
		assert_true(reader_has(&reader, KEY, (chunk + 1) * CHUNK));
	}
	assert_int_equal(reader.progress_count, PARTS - 1);
	complete(device, &reader, part);
}

/* Who wants to be told seldom is; what is left of a step comes with the end. */
static void test_steps_are_kept(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	reader.part.progress_step = 3 * CHUNK;
	device_fill(part, KEY, 0, 2 * CHUNK);
	expect_progress(device, &reader, 0);
	device_fill(part, KEY, 2 * CHUNK, 2 * CHUNK);
	expect_progress(device, &reader, 4 * CHUNK);
	device_fill(part, KEY, 4 * CHUNK, 2 * CHUNK);
	expect_progress(device, &reader, 4 * CHUNK);
	device_fill(part, KEY, 6 * CHUNK, CHUNK);
	expect_progress(device, &reader, 7 * CHUNK);
	assert_int_equal(reader.progress_count, 2);
	complete(device, &reader, part);
}

static void test_half_a_chunk_is_not_told(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill(part, KEY, 0, CHUNK + CHUNK / 2);
	expect_progress(device, &reader, CHUNK);
	assert_true(reader_has(&reader, KEY, CHUNK));
	complete(device, &reader, part);
}

static void test_what_comes_out_of_order_waits_for_what_is_before(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill(part, KEY, 3 * CHUNK, CHUNK);
	device_fill(part, KEY, 2 * CHUNK, CHUNK);
	expect_progress(device, &reader, 0);
	device_fill(part, KEY, 0, CHUNK);
	expect_progress(device, &reader, CHUNK);
	device_fill(part, KEY, CHUNK, CHUNK);
	expect_progress(device, &reader, 4 * CHUNK);
	assert_int_equal(reader.progress_count, 2);
	complete(device, &reader, part);
}

static void test_last_chunk_waits_for_the_end(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill(part, KEY, 0, LENGTH);
	expect_progress(device, &reader, LENGTH - CHUNK);
	assert_true(reader_has(&reader, KEY, LENGTH - CHUNK));
	assert_false(reader.is_done);
	complete(device, &reader, part);
}

/* Data that are the marker by chance: that chunk and those behind it come with the end. */
static void test_data_that_equal_the_marker_only_wait(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);
	uint64_t marker = marker_at(part, 0);
	uint8_t *end = mem_cpu_write(part->memory) + 3 * CHUNK - sizeof(marker);

	device_fill(part, KEY, 0, LENGTH);
	memcpy(end, &marker, sizeof(marker));
	expect_progress(device, &reader, 2 * CHUNK);
	device_finish(device, part, 0);
	assert_int_equal(reader.result, 0);
	assert_memory_equal(reader.memory + 3 * CHUNK - sizeof(marker), &marker, sizeof(marker));
	for (uint64_t i = 0; i < sizeof(marker); i++) {
		uint64_t at = 3 * CHUNK - sizeof(marker) + i;

		reader.memory[at] = device_byte(KEY, at);
	}
	assert_true(reader_has(&reader, KEY, LENGTH));
	reader_free(&reader);
}

static void test_reads_in_flight_are_told_apart(void **state)
{
	struct slow_device *device = *state;
	struct reader first;
	struct reader second;
	struct store_part *parts[2] = { start(device, &first), start(device, &second) };

	device_fill(parts[1], KEY, 0, 2 * CHUNK);
	device_wait(device, SOME_LOOKS);
	assert_int_equal(first.reported, 0);
	assert_int_equal(second.reported, 2 * CHUNK);
	complete(device, &second, parts[1]);
	device_fill(parts[0], KEY, 0, 5 * CHUNK);
	device_wait(device, SOME_LOOKS);
	assert_int_equal(first.reported, 5 * CHUNK);
	complete(device, &first, parts[0]);
}

/* --- finalize ------------------------------------------------------------------------------ */

static void test_device_that_writes_told_bytes_again_is_found_out(void **state)
{
	struct slow_device *device = *state;
	struct reader bystander;
	struct reader reader;
	struct reader later;
	struct store_part *other = start(device, &bystander);
	struct store_part *part = start(device, &reader);

	device_fill(other, KEY, 0, 2 * CHUNK);
	device_fill(part, KEY + 1, 0, 4 * CHUNK); /* ciphertext */
	expect_progress(device, &reader, 4 * CHUNK);
	device_fill(part, KEY, 0, LENGTH); /* decrypted */
	device_finish(device, part, 0);
	assert_int_equal(reader.result, -EIO);
	reader_free(&reader);

	/* Who was in flight has told the truth, and tells no more. */
	device_fill(other, KEY, 0, 6 * CHUNK);
	device_wait(device, SOME_LOOKS);
	assert_int_equal(bystander.reported, 2 * CHUNK);
	complete(device, &bystander, other);

	for (int i = 0; i < 3; i++) {
		reader_start(device, &later, 0, LENGTH);
		assert_true(passes_on(device, &later));
	}
}

/* What was sent counts, not what the device makes of it before the next look. */
static void test_later_looks_do_not_mend_what_was_told(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill(part, KEY + 1, 0, 2 * CHUNK);
	device_wait(device, SOME_LOOKS);
	device_fill(part, KEY, 0, 4 * CHUNK);
	expect_progress(device, &reader, 4 * CHUNK);
	assert_int_equal(reader.memory[0], device_byte(KEY + 1, 0));
	assert_int_equal(reader.memory[2 * CHUNK], device_byte(KEY, 2 * CHUNK));
	device_fill(part, KEY, 0, LENGTH);
	device_finish(device, part, 0);
	assert_int_equal(reader.result, -EIO);
	reader_free(&reader);
}

static void test_one_changed_byte_is_enough(void **state)
{
	static const uint64_t places[] = { 0, 1, CHUNK - 1, CHUNK, LENGTH - CHUNK - 1 };
	struct slow_device *device = *state;

	for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
		struct reader reader;
		struct store_part *part;
		uint8_t *byte;

		if (i > 0) { /* a source that is off stays off: take a new one */
			teardown(state);
			setup(state);
		}
		part = start(device, &reader);
		byte = mem_cpu_write(part->memory) + places[i];
		device_fill(part, KEY, 0, LENGTH);
		device_wait(device, SOME_LOOKS);
		assert_int_equal(reader.reported, LENGTH - CHUNK);
		*byte ^= 0x80;
		assert_true(store_has_progress(device->store));
		device_finish(device, part, 0);
		assert_int_equal(reader.result, -EIO);
		assert_false(store_has_progress(device->store));
		reader_free(&reader);
	}
}

static void test_bytes_not_told_may_be_written_again(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill_byte(part, 0xee, LENGTH - CHUNK, CHUNK);
	device_fill_byte(part, 0xee, 2 * CHUNK, CHUNK);
	device_fill(part, KEY, 0, CHUNK);
	expect_progress(device, &reader, CHUNK);
	complete(device, &reader, part);
	part = start(device, &reader);
	assert_ptr_not_equal(part, &reader.part); /* still on */
	complete(device, &reader, part);
}

static void test_told_bytes_may_be_written_again_the_same(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	for (int i = 0; i < 3; i++) {
		device_fill(part, KEY, 0, 4 * CHUNK);
		device_wait(device, SOME_LOOKS);
	}
	assert_int_equal(reader.reported, 4 * CHUNK);
	assert_int_equal(reader.progress_count, 1);
	complete(device, &reader, part);
}

/* The marker's bytes come before the rest of their chunk: what leaves is no older read's data. */
static void test_a_marker_that_goes_early_shows_zeroes_and_fails(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	complete(device, &reader, part); /* secrets in the memory that is used next */
	part = start(device, &reader);
	device_fill(part, KEY, CHUNK - 8, 8);
	expect_progress(device, &reader, CHUNK);
	for (uint32_t i = 0; i < CHUNK - 8; i++) {
		assert_int_equal(reader.memory[i], 0);
	}
	device_fill(part, KEY, 0, LENGTH);
	device_finish(device, part, 0);
	assert_int_equal(reader.result, -EIO);
	reader_free(&reader);
}

static void test_late_error_is_the_reads_own(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_fill(part, KEY, 0, LENGTH);
	expect_progress(device, &reader, LENGTH - CHUNK);
	device_finish(device, part, -ETIMEDOUT);
	assert_int_equal(reader.result, -ETIMEDOUT);
	assert_true(reader_has(&reader, KEY, LENGTH - CHUNK)); /* the last chunk never came out */
	reader_free(&reader);
	part = start(device, &reader); /* an error is no lie: still on */
	assert_ptr_not_equal(part, &reader.part);
	complete(device, &reader, part);
}

static void test_error_before_any_byte(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	struct store_part *part = start(device, &reader);

	device_finish(device, part, -EIO);
	assert_int_equal(reader.result, -EIO);
	assert_true(reader_has(&reader, KEY, 0));
	reader_free(&reader);
}

/* --- what is passed on --------------------------------------------------------------------- */

static void test_without_a_free_slot_reads_pass_on(void **state)
{
	struct slow_device *device = *state;
	struct reader readers[DEVICE_PARTS_MAX];
	struct reader late;
	struct store_part *part;
	uint32_t count = 0;

	do {
		part = start(device, &readers[count++]);
	} while (part != &readers[count - 1].part && count < DEVICE_PARTS_MAX);
	assert_in_range(count, 3, DEVICE_PARTS_MAX - 1); /* at least two were watched */
	assert_true(passes_on(device, &readers[--count]));
	complete(device, &readers[0], device->parts[0]); /* makes room */
	part = start(device, &late);
	assert_ptr_not_equal(part, &late.part);
	complete(device, &late, part);
	for (uint32_t i = 1; i < count; i++) {
		complete(device, &readers[i], device->parts[0]);
	}
}

static void test_reads_of_other_shapes_pass_on(void **state)
{
	static const struct {
		uint64_t offset;
		uint64_t length;
		bool passes;
	} shapes[] = {
		{ 0, 2 * CHUNK, false },
		{ 0, 1 << 20, false },
		{ 512, 2 * CHUNK, true },
		{ 0, 2 * CHUNK + 512, true },
		{ 0, CHUNK, true },
		{ 0, 1, true },
		{ 0, (1 << 20) + CHUNK, true },
	};
	struct slow_device *device = *state;
	struct reader reader;

	for (size_t i = 0; i < ARRAY_COUNT(shapes); i++) {
		reader_start(device, &reader, shapes[i].offset, shapes[i].length);
		assert_int_equal(passes_on(device, &reader), shapes[i].passes);
	}
	reader_start_quiet(device, &reader, 0, LENGTH); /* nobody listens */
	assert_true(passes_on(device, &reader));
}

static void write_done(struct store_part *part, int result)
{
	assert_int_equal(part->op, STORE_WRITE);
	assert_int_equal(result, -ENOSPC);
	part->memory = MEM_NONE;
}

static void test_writes_pass_on(void **state)
{
	struct slow_device *device = *state;
	static uint8_t data[2 * CHUNK];
	struct store_part part = {
		.op = STORE_WRITE,
		.length = sizeof(data),
		.memory = mem_of(data),
		.done = write_done,
	};

	store_submit(device->queue, &part);
	assert_ptr_equal(device->parts[0], &part);
	device_finish(device, &part, -ENOSPC);
	assert_true(part.memory.rights == 0);
}

/* --- the timer ----------------------------------------------------------------------------- */

static void test_nothing_runs_when_nothing_is_read(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;
	uint64_t completions;

	complete(device, &reader, start(device, &reader));
	device_wait(device, SOME_LOOKS); /* the last look */
	completions = ring_counters(device->ring)->completions;
	device_wait(device, 100 * SOME_LOOKS);
	assert_true(ring_counters(device->ring)->completions == completions);
}

static void test_a_queue_can_go_right_after_its_last_read(void **state)
{
	struct slow_device *device = *state;
	struct reader reader;

	for (int i = 0; i < 3; i++) {
		complete(device, &reader, start(device, &reader));
		teardown(state); /* with a look still to come; a ring in use cannot be destroyed */
		setup(state);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_device_gets_zeroed_memory_with_markers, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_store_looks_like_its_disk_but_tells, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_ascending_chunks_are_told_as_they_come, setup, teardown),
		cmocka_unit_test_setup_teardown(test_steps_are_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_half_a_chunk_is_not_told, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_what_comes_out_of_order_waits_for_what_is_before, setup, teardown),
		cmocka_unit_test_setup_teardown(test_last_chunk_waits_for_the_end, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_data_that_equal_the_marker_only_wait, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_reads_in_flight_are_told_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_device_that_writes_told_bytes_again_is_found_out, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_later_looks_do_not_mend_what_was_told, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_changed_byte_is_enough, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_bytes_not_told_may_be_written_again, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_told_bytes_may_be_written_again_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_marker_that_goes_early_shows_zeroes_and_fails, setup, teardown),
		cmocka_unit_test_setup_teardown(test_late_error_is_the_reads_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_error_before_any_byte, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_without_a_free_slot_reads_pass_on, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_reads_of_other_shapes_pass_on, setup, teardown),
		cmocka_unit_test_setup_teardown(test_writes_pass_on, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_nothing_runs_when_nothing_is_read, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_queue_can_go_right_after_its_last_read, setup, teardown),
	};

	stores_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
