// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"

/*
 * The bookkeeping is kept outside the memory, in units of the smallest block:
 *
 *   unit:   0 1 2 3 4 5 6 7 ...             state[0]: FREE, or order of the block starting here
 *   block: [  8 KiB ][4K][4K][ 16 KiB ...   state[1]: 0 (inside a block)
 *
 * Free blocks of one order form a list through links[]. A returned block first goes to a small
 * stack for its order, without being merged with its neighbours. The next request of the same size
 * takes the block from the stack in a few instructions, and the block is most likely still in the
 * CPU cache. The stacks are merged into the buddy lists when an allocation would fail otherwise.
 */
enum {
	ORDER_MIN = 12,
	ORDER_MAX = 20,
	ORDER_COUNT = ORDER_MAX - ORDER_MIN + 1,
	UNITS_PER_SLAB = ARENA_SLAB_BYTES >> ORDER_MIN,
	WARM_MAX = 64,
	STATE_FREE = 0x80,
};

_Static_assert(1 << ORDER_MIN == ARENA_BLOCK_BYTES_MIN, "smallest block");
_Static_assert(1 << ORDER_MAX == ARENA_BLOCK_BYTES_MAX, "largest block");
_Static_assert(ARENA_SLAB_BYTES % ARENA_BLOCK_BYTES_MAX == 0, "slabs hold whole blocks");

#define UNIT_NONE UINT32_MAX

struct unit_links {
	uint32_t next;
	uint32_t prev;
};

struct warm_stack {
	uint32_t units[WARM_MAX];
	uint32_t count;
};

struct buddy_arena {
	struct arena base;
	struct arena_source source;
	struct ring *ring;
	struct mem_region *slabs;
	uint32_t slab_count;
	uint32_t slab_count_max;
	uint8_t *state;		  /* one entry per unit */
	struct unit_links *links; /* one entry per unit; valid for the first unit of a free block */
	uint32_t free_head[ORDER_COUNT];
	struct warm_stack warm[ORDER_COUNT];
};

/* --- buddy lists --------------------------------------------------------------------------- */

static void free_list_push(struct buddy_arena *arena, uint32_t unit, uint32_t order_idx)
{
	uint32_t head = arena->free_head[order_idx];

	arena->state[unit] = (uint8_t)(STATE_FREE | order_idx);
	arena->links[unit] = (struct unit_links){ .next = head, .prev = UNIT_NONE };
	if (head != UNIT_NONE) {
		arena->links[head].prev = unit;
	}
	arena->free_head[order_idx] = unit;
}

static void free_list_remove(struct buddy_arena *arena, uint32_t unit, uint32_t order_idx)
{
	struct unit_links links = arena->links[unit];

	GMB_ASSERT(arena->state[unit] == (STATE_FREE | order_idx));
	arena->state[unit] = 0;
	if (links.prev == UNIT_NONE) {
		arena->free_head[order_idx] = links.next;
	} else {
		arena->links[links.prev].next = links.next;
	}
	if (links.next != UNIT_NONE) {
		arena->links[links.next].prev = links.prev;
	}
}

/* Returns a block to the buddy lists, merging it with its free neighbours. */
static void buddy_free(struct buddy_arena *arena, uint32_t unit, uint32_t order_idx)
{
	while (order_idx < ORDER_COUNT - 1) {
		uint32_t buddy = unit ^ (UINT32_C(1) << order_idx);

		if (arena->state[buddy] != (STATE_FREE | order_idx)) {
			break;
		}
		free_list_remove(arena, buddy, order_idx);
		unit = MIN(unit, buddy);
		order_idx++;
	}
	free_list_push(arena, unit, order_idx);
}

/* Removes and returns a block of exactly this order, splitting a larger one if necessary; UNIT_NONE
 * if there is none. */
static uint32_t buddy_take(struct buddy_arena *arena, uint32_t order_idx)
{
	uint32_t found = order_idx;
	uint32_t unit;

	while (found < ORDER_COUNT && arena->free_head[found] == UNIT_NONE) {
		found++;
	}
	if (found == ORDER_COUNT) {
		return UNIT_NONE;
	}
	unit = arena->free_head[found];
	free_list_remove(arena, unit, found);
	while (found > order_idx) {
		found--;
		free_list_push(arena, unit + (UINT32_C(1) << found), found);
	}
	return unit;
}

static bool warm_stacks_merge(struct buddy_arena *arena)
{
	bool merged = false;

	for (uint32_t i = 0; i < ORDER_COUNT; i++) {
		while (arena->warm[i].count > 0) {
			buddy_free(arena, arena->warm[i].units[--arena->warm[i].count], i);
			merged = true;
		}
	}
	return merged;
}

/* --- slabs ----------------------------------------------------------------------------------- */

/* Registers all slabs that are not registered yet. A slab that could not be registered is retried
 * whenever a slab is added, because the limit (RLIMIT_MEMLOCK) can have been raised or other memory
 * unregistered. Earlier references to its memory remain valid, without MEM_FIXED. */
static void slabs_register(struct buddy_arena *arena)
{
	for (uint32_t i = 0; i < arena->slab_count && arena->source.registers; i++) {
		struct mem_region *slab = &arena->slabs[i];

		if ((slab->rights & MEM_FIXED) == 0 && ring_memory_add(arena->ring, slab) < 0) {
			return;
		}
	}
}

/* Adds the memory of a new slab to the buddy lists, in blocks that are as large as possible. The
 * last slab of a device can be smaller than the others and end with small blocks. */
static void slab_free_all(struct buddy_arena *arena, uint32_t slab_idx, uint64_t bytes)
{
	uint32_t units = (uint32_t)(bytes >> ORDER_MIN);
	uint32_t unit = 0;

	for (uint32_t order_idx = ORDER_COUNT; order_idx-- > 0;) {
		for (; unit + (UINT32_C(1) << order_idx) <= units;
			unit += UINT32_C(1) << order_idx) {
			free_list_push(arena, slab_idx * UNITS_PER_SLAB + unit, order_idx);
		}
	}
}

/* Maps and registers one more slab. Returns 0, -EAGAIN if the arena has all its slabs, or the error
 * of the source's map(). */
static int slab_add(struct buddy_arena *arena)
{
	struct arena_info *info = &arena->base.info;
	struct mem_region *slab = &arena->slabs[arena->slab_count];
	uint8_t *base = NULL;
	uint64_t bytes;
	int result;

	if (arena->slab_count == arena->slab_count_max || info->condemned != 0) {
		return -EAGAIN;
	}
	bytes = MIN((uint64_t)ARENA_SLAB_BYTES, info->limit_bytes - info->mapped_bytes);
	result = arena->source.map(arena->source.context, bytes, &base);
	if (result < 0) {
		return result;
	}
	*slab = (struct mem_region){ .base = base, .bytes = bytes, .rights = info->rights };
	slab_free_all(arena, arena->slab_count, bytes);
	arena->slab_count++;
	info->mapped_bytes += bytes;
	slabs_register(arena);
	return 0;
}

static void slabs_unmap(struct buddy_arena *arena)
{
	for (uint32_t i = 0; i < arena->slab_count; i++) {
		struct mem_region *slab = &arena->slabs[i];

		if (arena->source.registers) {
			ring_memory_remove(arena->ring, slab);
		}
		arena->source.unmap(arena->source.context, slab->base, slab->bytes);
	}
	arena->slab_count = 0;
	arena->base.info.mapped_bytes = 0;
}

static uint32_t order_idx_for(uint32_t bytes)
{
	uint32_t order = bytes <= ARENA_BLOCK_BYTES_MIN ? ORDER_MIN
							: 32 - (uint32_t)__builtin_clz(bytes - 1);

	GMB_ASSERT(order <= ORDER_MAX);
	return order - ORDER_MIN;
}

/* Takes a block from the stack of its order, otherwise from the buddy lists, otherwise from a new
 * slab. The stacks are merged only when there is no slab left, because merging makes later requests
 * slower. */
static int block_get(struct arena *base, uint32_t order_idx, bool reserved, struct arena_buf *buf)
{
	struct buddy_arena *arena = container_of(base, struct buddy_arena, base);
	struct warm_stack *warm = &arena->warm[order_idx];
	uint32_t unit;

	if (unlikely(base->info.condemned != 0)) {
		return -EAGAIN;
	}
	if (likely(warm->count > 0)) {
		unit = warm->units[--warm->count];
	} else {
		unit = buddy_take(arena, order_idx);
		if (unit == UNIT_NONE && (slab_add(arena) == 0 || warm_stacks_merge(arena))) {
			unit = buddy_take(arena, order_idx);
		}
		if (unit == UNIT_NONE) {
			return -EAGAIN;
		}
	}
	buf->memory = mem_at(&arena->slabs[unit / UNITS_PER_SLAB], (uint64_t)(unit % UNITS_PER_SLAB)
									   << ORDER_MIN);
	buf->bytes = UINT32_C(1) << (order_idx + ORDER_MIN);
	buf->reserved = reserved;
	base->info.used_bytes += buf->bytes;
	return 0;
}

/* --- sources --------------------------------------------------------------------------------- */

static int ram_map(void *context, uint64_t bytes, uint8_t **base_out)
{
	uint8_t *base;
	uint8_t *slab;

	GMB_ASSERT(bytes == ARENA_SLAB_BYTES);
	/* Maps twice the size and trims it to an aligned slab, so that the kernel can use huge
	 * pages. */
	base = mmap(NULL, 2 * ARENA_SLAB_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED) {
		return -ENOMEM;
	}
	slab = (uint8_t *)align_up((uintptr_t)base, ARENA_SLAB_BYTES);
	if (slab > base) {
		munmap(base, (size_t)(slab - base));
	}
	munmap(slab + ARENA_SLAB_BYTES, (size_t)(base + ARENA_SLAB_BYTES - slab));
	(void)madvise(slab, ARENA_SLAB_BYTES, MADV_HUGEPAGE); /* advisory */
	*base_out = slab;
	return 0;
}

static void ram_unmap(void *context, uint8_t *base, uint64_t bytes)
{
	munmap(base, bytes);
}

static const struct arena_source ram_source = {
	.kind = "ram",
	.rights = MEM_RAM,
	.registers = true,
	.map = ram_map,
	.unmap = ram_unmap,
};

/* --- creating and destroying --------------------------------------------------------------- */

static int arena_create(struct ring *ring, const struct arena_source *source, uint64_t limit_bytes,
	struct arena **arena_out, struct error *error)
{
	uint64_t slab_count_max = align_up(limit_bytes, ARENA_SLAB_BYTES) / ARENA_SLAB_BYTES;
	struct buddy_arena *arena = calloc(1, sizeof(*arena));

	if (arena == NULL) {
		return error_oom_for(error, "an arena");
	}
	arena->base.info.kind = source->kind;
	arena->base.info.rights = source->rights;
	arena->base.info.limit_bytes = limit_bytes;
	arena->source = *source;
	arena->ring = ring;
	arena->slab_count_max = (uint32_t)slab_count_max;
	for (uint32_t i = 0; i < ORDER_COUNT; i++) {
		arena->free_head[i] = UNIT_NONE;
	}
	arena->slabs = calloc(slab_count_max, sizeof(*arena->slabs));
	arena->state = calloc(slab_count_max * UNITS_PER_SLAB, sizeof(*arena->state));
	arena->links = calloc(slab_count_max * UNITS_PER_SLAB, sizeof(*arena->links));
	if (arena->slabs == NULL || arena->state == NULL || arena->links == NULL) {
		arena_destroy(&arena->base);
		return error_oom_for(error, "the tables of an arena");
	}
	*arena_out = &arena->base;
	return 0;
}

/* Checks that bytes is at least one step, and small enough for the unit numbers. */
static int check_limit(uint64_t bytes, uint64_t step, struct error *error)
{
	uint64_t slabs = bytes / ARENA_SLAB_BYTES;

	if (bytes < step || slabs > UNIT_NONE / UNITS_PER_SLAB) {
		return error_set(error, -EINVAL,
			"a payload memory limit of %llu bytes is out of range: it must be between "
			"%llu KiB and 16 TiB for each reactor thread",
			(unsigned long long)bytes, (unsigned long long)step >> 10);
	}
	return 0;
}

int arena_ram_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error)
{
	int result = check_limit(limit_bytes, ARENA_SLAB_BYTES, error);

	return result < 0 ? result
			  : arena_create(ring, &ram_source,
				    align_down(limit_bytes, ARENA_SLAB_BYTES), arena_out, error);
}

int arena_device_create(struct ring *ring, const struct arena_source *source, uint64_t bytes,
	struct arena **arena_out, struct error *error)
{
	struct arena *arena = NULL;
	int result = check_limit(bytes, ARENA_DEVICE_BYTES_MIN, error);

	if (result == 0) {
		result = arena_create(
			ring, source, align_down(bytes, ARENA_BLOCK_BYTES_MIN), &arena, error);
	}
	while (result == 0 && arena->info.mapped_bytes < arena->info.limit_bytes) {
		result = slab_add(container_of(arena, struct buddy_arena, base));
		if (result < 0) {
			(void)error_set(error, result,
				"cannot map %llu KiB of the memory of %s: %s",
				(unsigned long long)arena->info.limit_bytes >> 10, source->kind,
				strerror(-result));
		}
	}
	if (result < 0) {
		arena_destroy(arena);
		return result;
	}
	*arena_out = arena;
	return 0;
}

/* --- buffers --------------------------------------------------------------------------------- */

void arena_destroy(struct arena *base)
{
	struct buddy_arena *arena = container_of(base, struct buddy_arena, base);

	if (base == NULL) {
		return;
	}
	GMB_ASSERT(base->info.used_bytes == 0);
	slabs_unmap(arena);
	free(arena->slabs);
	free(arena->state);
	free(arena->links);
	free(arena);
}

void arena_condemn(struct arena *arena, int error)
{
	GMB_ASSERT(error < 0);
	if (arena->info.condemned == 0) {
		arena->info.condemned = error;
		if (arena->info.used_bytes == 0) {
			slabs_unmap(container_of(arena, struct buddy_arena, base));
		}
	}
}

void arena_reserve(struct arena *arena, uint64_t bytes)
{
	struct arena_info *info = &arena->info;

	GMB_ASSERT(info->used_bytes == 0 && bytes % ARENA_BLOCK_BYTES_MIN == 0);
	GMB_ASSERT(bytes < info->limit_bytes);
	info->reserve_bytes = bytes;
}

int arena_get(struct arena *arena, uint32_t bytes, struct arena_buf *buf)
{
	uint32_t order_idx = order_idx_for(bytes);

	GMB_ASSERT(bytes > 0);
	return unlikely(arena_free_bytes(arena) < UINT64_C(1) << (order_idx + ORDER_MIN))
		       ? -EAGAIN
		       : block_get(arena, order_idx, false, buf);
}

/* Blocks are powers of two with natural alignment. So if any memory is unused, a block of the
 * smallest size can be allocated from it, whatever the sizes of the blocks in use. */
int arena_get_reserved(struct arena *arena, struct arena_buf *buf)
{
	struct arena_info *info = &arena->info;
	int result;

	if (info->reserve_used_bytes == info->reserve_bytes) {
		return -EAGAIN;
	}
	result = block_get(arena, 0, true, buf);
	if (result == 0) {
		info->reserve_used_bytes += buf->bytes;
	}
	return result;
}

void arena_put(struct arena *base, struct arena_buf *buf)
{
	struct buddy_arena *arena = container_of(base, struct buddy_arena, base);
	struct arena_info *info = &base->info;
	uint32_t order_idx = order_idx_for(buf->bytes);
	struct warm_stack *warm = &arena->warm[order_idx];
	uint32_t unit;

	GMB_ASSERT(info->used_bytes >= buf->bytes);
	GMB_ASSERT(buf->memory.region >= arena->slabs &&
		   buf->memory.region < arena->slabs + arena->slab_count);
	info->used_bytes -= buf->bytes;
	info->reserve_used_bytes -= buf->reserved ? buf->bytes : 0;
	unit = (uint32_t)(buf->memory.region - arena->slabs) * UNITS_PER_SLAB +
	       (uint32_t)(mem_offset(buf->memory) >> ORDER_MIN);
	if (likely(warm->count < WARM_MAX)) {
		warm->units[warm->count++] = unit;
	} else {
		buddy_free(arena, unit, order_idx);
	}
	buf->memory = MEM_NONE;
	if (unlikely(info->condemned != 0) && info->used_bytes == 0) {
		slabs_unmap(arena);
	}
}
