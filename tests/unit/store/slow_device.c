// SPDX-License-Identifier: Apache-2.0
#include "slow_device.h"

#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "store/kind.h"

enum { UNTOUCHED = 0x5a };
#define DEVICE_BYTES (UINT64_C(1) << 30)

/* Finds the device of the running test. */
static struct slow_device *current;

/* --- the store ----------------------------------------------------------------------------- */

static void device_submit(struct store_queue *queue, struct store_part *part)
{
	GMB_UNUSED(queue);
	assert_true(current->part_count < DEVICE_PARTS_MAX);
	current->parts[current->part_count++] = part;
}

static uint64_t device_size(struct store *store)
{
	GMB_UNUSED(store);
	return DEVICE_BYTES;
}

static const struct store_ops device_ops = {
	.name = "slow device",
	.submit = device_submit,
	.size = device_size,
};

/* --- life ---------------------------------------------------------------------------------- */

void slow_device_start(struct slow_device *device, uint64_t seed, device_filter_fn *filter)
{
	const struct sim_options sim_options = { .seed = seed };
	const struct ring_options ring_options = { .entries = 64 };
	struct store *store = calloc(1, sizeof(*store));
	struct error error;

	assert_non_null(store);
	memset(device, 0, sizeof(*device));
	current = device;
	sim_start(&sim_options);
	assert_int_equal(ring_create(&ring_options, &device->ring, &error), 0);
	store->ops = &device_ops;
	store->info = (struct store_info){
		.kind = "block device",
		.caps = STORE_CAP_WRITE,
		.block_min = 512,
		.block_preferred = 4096,
		.memory_align = 512,
		.offset_align = 512,
		.memory_rights = MEM_CPU | MEM_ADDRESS,
		.read_direct = true,
	};
	assert_int_equal(filter(store, &device->store, &error), 0);
	assert_int_equal(
		store_queue_create(device->store, device->ring, &device->queue, &error), 0);
}

void slow_device_stop(struct slow_device *device)
{
	assert_int_equal(device->part_count, 0);
	store_queue_destroy(device->queue);
	store_close(device->store);
	ring_destroy(device->ring);
	sim_stop();
	current = NULL;
}

void device_wait(struct slow_device *device, uint64_t time_ns)
{
	uint64_t end_ns = ring_now_ns(device->ring) + time_ns;
	uint64_t now_ns;

	while ((now_ns = ring_now_ns(device->ring)) < end_ns) {
		ring_turn_limited(device->ring, end_ns - now_ns);
	}
}

/* --- the device ---------------------------------------------------------------------------- */

uint8_t device_byte(uint32_t key, uint64_t offset)
{
	return (uint8_t)(offset * 31 + offset / 256 * 7 + offset / 4096 + key);
}

static uint8_t *memory_of(struct store_part *part, uint64_t from, uint64_t bytes)
{
	assert_int_equal(part->op, STORE_READ);
	assert_true(from + bytes <= part->length);
	return mem_cpu_write(part->memory) + from;
}

void device_fill(struct store_part *part, uint32_t key, uint64_t from, uint64_t bytes)
{
	uint8_t *memory = memory_of(part, from, bytes);

	for (uint64_t i = 0; i < bytes; i++) {
		memory[i] = device_byte(key, part->offset + from + i);
	}
}

void device_fill_byte(struct store_part *part, uint8_t byte, uint64_t from, uint64_t bytes)
{
	memset(memory_of(part, from, bytes), byte, bytes);
}

void device_finish(struct slow_device *device, struct store_part *part, int result)
{
	uint32_t i = 0;

	while (i < device->part_count && device->parts[i] != part) {
		i++;
	}
	assert_true(i < device->part_count);
	device->part_count--;
	memmove(&device->parts[i], &device->parts[i + 1],
		(device->part_count - i) * sizeof(device->parts[0]));
	store_finish(part, result);
}

/* --- its user ------------------------------------------------------------------------------ */

static void reader_done(struct store_part *part, int result)
{
	struct reader *reader = container_of(part, struct reader, part);

	assert_false(reader->is_done);
	reader->is_done = true;
	reader->result = result;
}

static void reader_progressed(struct store_part *part, uint64_t bytes)
{
	struct reader *reader = container_of(part, struct reader, part);

	assert_false(reader->is_done);
	assert_true(bytes > reader->reported);
	assert_true(bytes < part->length);
	reader->reported = bytes;
	reader->progress_count++;
}

static void submit(struct slow_device *device, struct reader *reader, uint64_t offset,
	uint64_t length, store_progress_fn *progressed)
{
	memset(reader, 0, sizeof(*reader));
	reader->memory = malloc(length);
	assert_non_null(reader->memory);
	memset(reader->memory, UNTOUCHED, length);
	reader->part = (struct store_part){
		.op = STORE_READ,
		.offset = offset,
		.length = length,
		.memory = mem_of(reader->memory),
		.done = reader_done,
		.progressed = progressed,
	};
	store_submit(device->queue, &reader->part);
	assert_int_equal(reader->progress_count, 0);
}

void reader_start(
	struct slow_device *device, struct reader *reader, uint64_t offset, uint64_t length)
{
	submit(device, reader, offset, length, reader_progressed);
}

void reader_start_quiet(
	struct slow_device *device, struct reader *reader, uint64_t offset, uint64_t length)
{
	submit(device, reader, offset, length, NULL);
}

void reader_free(struct reader *reader)
{
	assert_true(reader->is_done);
	free(reader->memory);
}

bool reader_has(const struct reader *reader, uint32_t key, uint64_t bytes)
{
	for (uint64_t i = 0; i < reader->part.length; i++) {
		uint8_t expected =
			i < bytes ? device_byte(key, reader->part.offset + i) : UNTOUCHED;

		if (reader->memory[i] != expected) {
			return false;
		}
	}
	return true;
}
