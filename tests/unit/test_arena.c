// SPDX-License-Identifier: Apache-2.0
/* Arenas on a simulated ring: blocks, the limit, slabs that cannot be registered, and little memory
 * of a device that goes. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/arena.h"
#include "sim/sim.h"
#include "unit.h"

enum { SLABS = 4, BLOCKS_MAX = SLABS * ARENA_SLAB_BYTES / ARENA_BLOCK_BYTES_MIN };

struct world {
	struct ring *ring;
	struct arena *arena;
};

static int world_open(void **state)
{
	static struct world world;
	struct error error;

	world.ring = sim_ring_create_for_fuzz(1);
	assert_int_equal(
		arena_ram_create(world.ring, SLABS * ARENA_SLAB_BYTES, &world.arena, &error), 0);
	*state = &world;
	return 0;
}

static int world_close(void **state)
{
	struct world *world = *state;

	assert_int_equal(arena_info(world->arena)->used_bytes, 0);
	arena_destroy(world->arena);
	ring_destroy(world->ring);
	sim_stop();
	return 0;
}

static bool overlap(const struct arena_buf *a, const struct arena_buf *b)
{
	const uint8_t *a_bytes = mem_cpu_read(a->memory);
	const uint8_t *b_bytes = mem_cpu_read(b->memory);

	return a_bytes < b_bytes + b->bytes && b_bytes < a_bytes + a->bytes;
}

TEST_WITH(test_blocks_are_aligned_and_apart, world_open, world_close)
{
	struct world *world = *state;
	struct arena_buf bufs[64];

	for (uint32_t round = 0; round < 200; round++) {
		uint32_t count = 0;

		while (count < ARRAY_COUNT(bufs)) {
			uint32_t bytes = (uint32_t)sim_between(1, sim_between(1, 1 << 18));

			assert_int_equal(arena_get(world->arena, bytes, &bufs[count]), 0);
			assert_true(bufs[count].bytes >= bytes);
			assert_true(mem_is_aligned(bufs[count].memory, ARENA_BLOCK_BYTES_MIN));
			assert_true(mem_may(bufs[count].memory, MEM_RAM));
			for (uint32_t i = 0; i < count; i++) {
				assert_false(overlap(&bufs[i], &bufs[count]));
			}
			count++;
		}
		while (count > 0) {
			arena_put(world->arena, &bufs[--count]);
			assert_true(bufs[count].memory.rights == 0);
		}
	}
}

TEST_WITH(test_limit, world_open, world_close)
{
	struct world *world = *state;
	static struct arena_buf bufs[BLOCKS_MAX];
	struct arena_buf one;

	for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
		assert_int_equal(arena_get(world->arena, 1, &bufs[i]), 0);
	}
	assert_int_equal(arena_get(world->arena, 1, &one), -EAGAIN);
	assert_int_equal(
		arena_info(world->arena)->used_bytes, arena_info(world->arena)->limit_bytes);
	for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
		arena_put(world->arena, &bufs[i]);
	}
	/* Small blocks come together again. */
	for (uint32_t i = 0; i < SLABS * ARENA_SLAB_BYTES / ARENA_BLOCK_BYTES_MAX; i++) {
		assert_int_equal(arena_get(world->arena, ARENA_BLOCK_BYTES_MAX, &bufs[i]), 0);
	}
	assert_int_equal(arena_get(world->arena, ARENA_BLOCK_BYTES_MAX, &one), -EAGAIN);
	for (uint32_t i = 0; i < SLABS * ARENA_SLAB_BYTES / ARENA_BLOCK_BYTES_MAX; i++) {
		arena_put(world->arena, &bufs[i]);
	}
}

/* A slab that cannot be registered is used all the same, and tried again with the next. */
TEST_WITH(test_registration_is_tried_again, world_open, world_close)
{
	struct world *world = *state;
	const struct arena_info *info = arena_info(world->arena);
	struct arena_buf bufs[12];

	sim_set_faults(&(struct sim_faults){ .memory_error_ppm = 1000000 });
	for (uint32_t i = 0; i < 8; i++) { /* two slabs */
		assert_int_equal(arena_get(world->arena, ARENA_BLOCK_BYTES_MAX, &bufs[i]), 0);
		assert_false(mem_may(bufs[i].memory, MEM_FIXED));
	}
	assert_int_equal(info->mapped_bytes, 2 * ARENA_SLAB_BYTES);
	sim_set_faults(&(struct sim_faults){ 0 });
	for (uint32_t i = 8; i < 12; i++) {
		assert_int_equal(arena_get(world->arena, ARENA_BLOCK_BYTES_MAX, &bufs[i]), 0);
		assert_true(mem_may(bufs[i].memory, MEM_FIXED));
	}
	assert_int_equal(info->mapped_bytes, 3 * ARENA_SLAB_BYTES);
	for (uint32_t i = 0; i < 12; i++) {
		arena_put(world->arena, &bufs[i]);
	}
	/* What was not registered is now. */
	assert_int_equal(arena_get(world->arena, ARENA_BLOCK_BYTES_MAX, &bufs[0]), 0);
	assert_true(mem_may(bufs[0].memory, MEM_FIXED));
	arena_put(world->arena, &bufs[0]);
}

/* --- memory of a device ---------------------------------------------------------------------- */

struct device {
	uint64_t bytes_left;
	uint32_t mapped_count;
};

static int device_map(void *context, uint64_t bytes, uint8_t **base_out)
{
	struct device *device = context;

	if (bytes > device->bytes_left) {
		return -ENOMEM;
	}
	*base_out = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(*base_out, MAP_FAILED);
	device->bytes_left -= bytes;
	device->mapped_count++;
	return 0;
}

static void device_unmap(void *context, uint8_t *base, uint64_t bytes)
{
	struct device *device = context;

	assert_int_equal(munmap(base, bytes), 0);
	device->mapped_count--;
}

static struct arena_source source_of(struct device *device)
{
	return (struct arena_source){ .kind = "0000:01:00.0",
		.rights = MEM_ADDRESS,
		.map = device_map,
		.unmap = device_unmap,
		.context = device };
}

/* A slab and the beginning of another: every smallest block once, and they come together again. */
TEST_WITH(test_device_memory_is_given_to_the_last_block, world_open, world_close)
{
	enum { KIB = 4096 + 700, BLOCKS = KIB / 4 };
	static struct arena_buf bufs[BLOCKS];
	struct world *world = *state;
	struct device device = { .bytes_left = KIB << 10 };
	struct arena_source source = source_of(&device);
	struct arena_buf one;
	struct arena *arena;
	struct error error;

	assert_int_equal(
		arena_device_create(world->ring, &source, (KIB << 10) + 100, &arena, &error), 0);
	assert_int_equal(device.mapped_count, 2);
	assert_int_equal(arena_info(arena)->mapped_bytes, KIB << 10);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < BLOCKS; i++) {
			assert_int_equal(arena_get(arena, 4096, &bufs[i]), 0);
			assert_int_equal(bufs[i].memory.rights, MEM_ADDRESS);
		}
		assert_int_equal(arena_get(arena, 1, &one), -EAGAIN);
		assert_int_equal(arena_free_bytes(arena), 0);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			arena_put(arena, &bufs[i]);
		}
	}
	/* 700 KiB are blocks of 512, 128, 32, 16, 8 and 4. */
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(arena_get(arena, 1 << 20, &bufs[i]), 0);
	}
	assert_int_equal(arena_get(arena, 1 << 20, &one), -EAGAIN);
	assert_int_equal(arena_get(arena, 512 << 10, &bufs[4]), 0);
	assert_int_equal(arena_get(arena, 128 << 10, &bufs[5]), 0);
	assert_int_equal(arena_get(arena, 64 << 10, &one), -EAGAIN);
	for (uint32_t i = 0; i < 6; i++) {
		arena_put(arena, &bufs[i]);
	}
	arena_destroy(arena);
	assert_int_equal(device.mapped_count, 0);
}

TEST_WITH(test_device_memory_that_goes, world_open, world_close)
{
	struct world *world = *state;
	struct device device = { .bytes_left = 1 << 20 };
	struct arena_source source = source_of(&device);
	struct arena_buf bufs[2];
	struct arena_buf one;
	struct arena *arena;
	struct error error;

	assert_int_equal(arena_device_create(world->ring, &source, 1 << 20, &arena, &error), 0);
	assert_int_equal(arena_get(arena, 4096, &bufs[0]), 0);
	assert_int_equal(arena_get(arena, 65536, &bufs[1]), 0);
	arena_condemn(arena, -ENODEV);
	arena_condemn(arena, -EFAULT);
	assert_int_equal(arena_info(arena)->condemned, -ENODEV);
	assert_int_equal(arena_get(arena, 4096, &one), -EAGAIN);
	arena_put(arena, &bufs[0]);
	assert_int_equal(device.mapped_count, 1); /* somebody still uses it */
	arena_put(arena, &bufs[1]);
	assert_int_equal(device.mapped_count, 0);
	assert_int_equal(arena_get(arena, 4096, &one), -EAGAIN);
	arena_destroy(arena);
}

TEST_WITH(test_device_memory_that_is_too_little, world_open, world_close)
{
	struct world *world = *state;
	struct device device = { .bytes_left = 5 << 20 };
	struct arena_source source = source_of(&device);
	struct arena *arena;
	struct error error;

	assert_int_equal(arena_device_create(
				 world->ring, &source, ARENA_DEVICE_BYTES_MIN - 1, &arena, &error),
		-EINVAL);
	/* Others have it: what was mapped is given back. */
	assert_int_equal(
		arena_device_create(world->ring, &source, 8 << 20, &arena, &error), -ENOMEM);
	assert_non_null(strstr(error.text, "8192 KiB of the memory of 0000:01:00.0"));
	assert_int_equal(device.mapped_count, 0);
}

TEST_WITH(test_sizes, world_open, world_close)
{
	struct world *world = *state;
	struct arena *arena;
	struct error error;

	assert_int_equal(
		arena_ram_create(world->ring, ARENA_SLAB_BYTES - 1, &arena, &error), -EINVAL);
	assert_int_equal(arena_ram_create(world->ring, UINT64_MAX, &arena, &error), -EINVAL);
	assert_int_equal(arena_ram_create(world->ring, ARENA_SLAB_BYTES, &arena, &error), 0);
	arena_destroy(arena);
	arena_destroy(NULL);
}
