// SPDX-License-Identifier: Apache-2.0
#include "twin_arena.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runner.h"
#include "sim/sim.h"

enum { LIMIT_BYTES_MAX = 16 << 20, UNITS_MAX = LIMIT_BYTES_MAX / ARENA_BLOCK_BYTES_MIN };

struct twin_arena {
	struct arena base;
	struct ring *ring;
	struct mem_region region;
	void *real;
	uint64_t gets;
	uint32_t unit_count;
	bool used[UNITS_MAX];
};

/* The first run of so many free units. */
static bool find_run(const struct twin_arena *arena, uint32_t units, uint32_t *first)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < arena->unit_count; i++) {
		run = arena->used[i] ? 0 : run + 1;
		if (run == units) {
			*first = i + 1 - units;
			return true;
		}
	}
	return false;
}

static void set_run(struct twin_arena *arena, uint32_t first, uint32_t units, bool used)
{
	for (uint32_t i = first; i < first + units; i++) {
		GMB_ASSERT(arena->used[i] != used);
		arena->used[i] = used;
	}
}

static int twin_get(struct arena *base, uint32_t bytes, struct arena_buf *buf)
{
	struct twin_arena *arena = container_of(base, struct twin_arena, base);
	uint32_t units = (bytes + ARENA_BLOCK_BYTES_MIN - 1) / ARENA_BLOCK_BYTES_MIN;
	uint32_t first = 0;

	if (!find_run(arena, units, &first)) {
		return -EAGAIN;
	}
	set_run(arena, first, units, true);
	arena->gets++;
	buf->memory = mem_at(&arena->region, (uint64_t)first * ARENA_BLOCK_BYTES_MIN);
	buf->bytes = units * ARENA_BLOCK_BYTES_MIN;
	return 0;
}

static void twin_put(struct arena *base, const struct arena_buf *buf)
{
	struct twin_arena *arena = container_of(base, struct twin_arena, base);

	GMB_ASSERT(buf->memory.region == &arena->region);
	set_run(arena, (uint32_t)(mem_offset(buf->memory) / ARENA_BLOCK_BYTES_MIN),
		buf->bytes / ARENA_BLOCK_BYTES_MIN, false);
}

static void twin_destroy(struct arena *base)
{
	struct twin_arena *arena = container_of(base, struct twin_arena, base);

	ring_memory_remove(arena->ring, &arena->region);
	sim_memory_unalias(arena->region.base);
	(void)munmap(arena->region.base, arena->region.bytes);
	(void)munmap(arena->real, arena->region.bytes);
	free(arena);
}

static const struct arena_ops twin_ops = {
	.get = twin_get,
	.put = twin_put,
	.destroy = twin_destroy,
};

struct arena *twin_arena_create(struct ring *ring, uint64_t limit_bytes)
{
	struct twin_arena *arena = calloc(1, sizeof(*arena));
	uint64_t bytes = MIN(limit_bytes, (uint64_t)LIMIT_BYTES_MAX);
	int fd = memfd_create("twin", MFD_CLOEXEC);
	void *closed;

	if (arena == NULL || fd < 0 || ftruncate(fd, (off_t)bytes) < 0) {
		model_fail("no memory for a twin arena");
	}
	arena->real = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	closed = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	close(fd);
	if (arena->real == MAP_FAILED || closed == MAP_FAILED) {
		model_fail("a twin arena cannot be mapped");
	}
	arena->base.ops = &twin_ops;
	arena->base.info.kind = "twin";
	arena->base.info.rights = MEM_SOCKET | MEM_ADDRESS;
	arena->base.info.limit_bytes = bytes;
	arena->ring = ring;
	arena->unit_count = (uint32_t)(bytes / ARENA_BLOCK_BYTES_MIN);
	arena->region = (struct mem_region){
		.base = closed, .bytes = bytes, .rights = arena->base.info.rights
	};
	(void)!ring_memory_add(ring, &arena->region); /* works without */
	sim_memory_alias(closed, bytes, arena->real);
	return &arena->base;
}

uint64_t twin_arena_gets(struct arena *base)
{
	return container_of(base, struct twin_arena, base)->gets;
}
