// SPDX-License-Identifier: Apache-2.0
/*
 * Where payload buffers live: RAM with a hard limit, cut by a buddy scheme into power-of-two blocks
 * of 4 KiB to 1 MiB, each naturally aligned up to 4 KiB at least.
 *
 *   arena ── slab 0 (4 MiB) ── slab 1 ── ...      slabs are mapped (huge pages when the kernel
 * gives └ blocks of 2^12 .. 2^20 bytes     them) and registered with the ring on first need
 *
 * Threading: the ring's thread. Ownership: arena_get() gives a buffer, arena_put() takes it back;
 * the holder of the last I/O on it decides when. Contents are whatever the last holder left: never
 * send bytes that were not written for this request.
 * Errors: -EAGAIN when the limit is reached. Who waits for memory, and in which order, is decided
 * one floor up (path_serve), where a request can be put aside.
 */
#pragma once

#include "ring/ring.h"

enum {
	ARENA_BLOCK_BYTES_MIN = 4096,
	ARENA_BLOCK_BYTES_MAX = 1 << 20,
	ARENA_SLAB_BYTES = 4 << 20,
};

struct arena;

struct arena_buf {
	struct mem_ref memory; /* none = no buffer */
	uint32_t bytes;	       /* the block's size, at least what was asked for */
};

struct arena_info {
	uint64_t limit_bytes;
	uint64_t mapped_bytes; /* slabs that exist */
	uint64_t used_bytes;   /* in buffers now */
	uint64_t used_bytes_peak;
	uint64_t registered_bytes; /* of mapped, registered with the ring */
	uint64_t refusals;	   /* how often arena_get() had to say -EAGAIN */
	int register_error;	   /* why registration was given up, 0 = it was not */
};

/* limit_bytes is rounded down to whole slabs and must be at least one slab. */
GMB_MUST_CHECK int arena_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error);
/* Every buffer must be back. NULL is a no-op. */
void arena_destroy(struct arena *arena);
void arena_info(const struct arena *arena, struct arena_info *info);

/* bytes: 1 to ARENA_BLOCK_BYTES_MAX. 0 or -EAGAIN. */
GMB_MUST_CHECK int arena_get(struct arena *arena, uint32_t bytes, struct arena_buf *buf);
/* Leaves no memory in buf. */
void arena_put(struct arena *arena, struct arena_buf *buf);
