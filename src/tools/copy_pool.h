// SPDX-License-Identifier: Apache-2.0
/*
 * The memory of a copy: a fixed number of equal buffers in one mapping, made once. The buffer that
 * was given back last is taken next, since the processor's caches still hold it.
 *
 * Threading: one thread. Ownership: copy_pool_get() gives a buffer until copy_pool_put().
 * Errors: -ENOMEM.
 */
#pragma once

#include "base/error.h"

struct copy_pool {
	uint8_t *memory;
	uint8_t **free;
	uint32_t free_count;
	uint32_t count;
	size_t buffer_bytes;
};

/* buffer_bytes: a multiple of the page size. */
GMB_MUST_CHECK int copy_pool_create(
	struct copy_pool *pool, uint32_t count, size_t buffer_bytes, struct error *error);
/* Every buffer must have been put back. */
void copy_pool_destroy(struct copy_pool *pool);

/* NULL when all are in use. */
uint8_t *copy_pool_get(struct copy_pool *pool);
void copy_pool_put(struct copy_pool *pool, uint8_t *buffer);
