// SPDX-License-Identifier: Apache-2.0
#include "tools/copy_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int copy_pool_create(
	struct copy_pool *pool, uint32_t count, size_t buffer_bytes, struct error *error)
{
	size_t bytes = count * buffer_bytes;

	memset(pool, 0, sizeof(*pool));
	pool->free = calloc(count, sizeof(*pool->free));
	pool->memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool->free == NULL || pool->memory == MAP_FAILED) {
		if (pool->memory != MAP_FAILED) {
			munmap(pool->memory, bytes);
		}
		free(pool->free);
		pool->memory = NULL;
		pool->free = NULL;
		return error_set(error, -ENOMEM,
			"out of memory for %u buffers of %zu bytes; use smaller --requests or "
			"--request-size",
			count, buffer_bytes);
	}
	(void)madvise(pool->memory, bytes, MADV_HUGEPAGE); /* fewer page faults where it can */
	pool->count = count;
	pool->buffer_bytes = buffer_bytes;
	for (uint32_t i = 0; i < count; i++) {
		copy_pool_put(pool, pool->memory + (count - 1 - i) * buffer_bytes);
	}
	return 0;
}

void copy_pool_destroy(struct copy_pool *pool)
{
	if (pool->memory == NULL) {
		return;
	}
	GMB_ASSERT(pool->free_count == pool->count);
	munmap(pool->memory, pool->count * pool->buffer_bytes);
	free(pool->free);
	pool->memory = NULL;
	pool->free = NULL;
}

uint8_t *copy_pool_get(struct copy_pool *pool)
{
	return pool->free_count > 0 ? pool->free[--pool->free_count] : NULL;
}

void copy_pool_put(struct copy_pool *pool, uint8_t *buffer)
{
	GMB_ASSERT(pool->free_count < pool->count);
	pool->free[pool->free_count++] = buffer;
}
