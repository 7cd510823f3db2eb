// SPDX-License-Identifier: Apache-2.0
/*
 * Where payload buffers live. An arena hands out buffers of one kind of memory, up to a hard limit;
 * what may be done with them is said by each buffer's reference (ring/memory.h). RAM is the kind
 * that exists: blocks of 4 KiB to 1 MiB, powers of two, naturally aligned up to 4 KiB at least.
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
	bool reserved;	       /* of arena_get_reserved() */
};

struct arena_info {
	const char *kind; /* "ram", ... */
	uint32_t rights;  /* enum mem_right: what all its memory can be used for */
	uint64_t limit_bytes;
	uint64_t mapped_bytes; /* slabs that exist */
	uint64_t used_bytes;   /* in buffers now */
	uint64_t used_bytes_peak;
	uint64_t reserve_bytes;	     /* kept back, see arena_reserve() */
	uint64_t reserve_used_bytes; /* of used, taken from the reserve */
	uint64_t registered_bytes;   /* of mapped, registered with the ring */
	uint64_t register_failures;  /* attempts to register a slab that failed */
	int register_error;	     /* why the last one did; 0 = none did */
	uint64_t refusals;	     /* how often arena_get() had to say -EAGAIN */
};

/* A kind of arena. */
struct arena_ops {
	/* bytes: 1 to ARENA_BLOCK_BYTES_MAX. Gives a block of at least that, or -EAGAIN. */
	int (*get)(struct arena *arena, uint32_t bytes, struct arena_buf *buf);
	void (*put)(struct arena *arena, const struct arena_buf *buf);
	/* Every buffer is back. */
	void (*destroy)(struct arena *arena);
};

/* First member of every kind's own struct. The kind fills in info but for what arena_get() and
 * arena_put() count. */
struct arena {
	const struct arena_ops *ops;
	struct arena_info info;
};

/* Ordinary memory. limit_bytes is rounded down to whole slabs and must be at least one slab. */
GMB_MUST_CHECK int arena_ram_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error);
/* Every buffer must be back. NULL is a no-op. */
void arena_destroy(struct arena *arena);

static inline const struct arena_info *arena_info(const struct arena *arena)
{
	return &arena->info;
}

/* Keeps so many bytes, in smallest blocks, back from arena_get(). Before the first buffer. */
void arena_reserve(struct arena *arena, uint64_t bytes);
/* What arena_get() has left. */
static inline uint64_t arena_free_bytes(const struct arena *arena)
{
	const struct arena_info *info = &arena->info;

	return info->limit_bytes - info->reserve_bytes -
	       (info->used_bytes - info->reserve_used_bytes);
}

/* bytes: 1 to ARENA_BLOCK_BYTES_MAX. 0 or -EAGAIN. */
GMB_MUST_CHECK int arena_get(struct arena *arena, uint32_t bytes, struct arena_buf *buf);
/* A smallest block of the reserve. -EAGAIN: the reserve is used up, or the system has no memory. */
GMB_MUST_CHECK int arena_get_reserved(struct arena *arena, struct arena_buf *buf);
/* Leaves no memory in buf. */
void arena_put(struct arena *arena, struct arena_buf *buf);
