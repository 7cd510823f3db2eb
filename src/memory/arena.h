// SPDX-License-Identifier: Apache-2.0
/*
 * Where payload buffers live. An arena hands out buffers of one kind of memory, up to a hard limit;
 * what may be done with them is said by each buffer's reference (ring/memory.h). Its source says
 * where the memory comes from: RAM, or the memory of a PCI device (p2pmem.h). Blocks are 4 KiB to
 * 1 MiB, powers of two, naturally aligned up to 4 KiB at least.
 *
 *   arena ── slab 0 (4 MiB) ── slab 1 ── ...      slabs of RAM are mapped (huge pages when the
 *             └ blocks of 2^12 .. 2^20 bytes      kernel gives them) and registered with the ring
 *                                                 on first need, those of a device at the start
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
	/* Less memory of a device is not worth while: see PATH_CLIENT_DIVISOR. */
	ARENA_DEVICE_BYTES_MIN = 256 << 10,
};

struct arena;

struct arena_buf {
	struct mem_ref memory; /* none = no buffer */
	uint32_t bytes;	       /* the block's size, at least what was asked for */
	bool reserved;	       /* of arena_get_reserved() */
};

struct arena_info {
	const char *kind; /* "ram", or the name of the device */
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
	int condemned;		     /* see arena_condemn(); 0 = it is not */
};

/* Where the memory of an arena comes from. */
struct arena_source {
	const char *kind; /* for arena_info.kind, as long as the arena */
	uint32_t rights;  /* enum mem_right */
	bool registers;	  /* its memory can be in the ring's table of fixed buffers */
	/* Maps so many bytes, page-aligned: ARENA_SLAB_BYTES, the last slab of a device perhaps
	 * less. A negative errno when there are no more. On the ring's thread. */
	int (*map)(void *context, uint64_t bytes, uint8_t **base_out);
	void (*unmap)(void *context, uint8_t *base, uint64_t bytes);
	void *context; /* as long as the arena */
};

/* The part that may be read. */
struct arena {
	struct arena_info info;
};

/* Ordinary memory. limit_bytes is rounded down to whole slabs and must be at least one slab. */
GMB_MUST_CHECK int arena_ram_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error);
/* Memory of a device, of which there are bytes, all mapped at once; rounded down to whole smallest
 * blocks, and at least ARENA_DEVICE_BYTES_MIN. */
GMB_MUST_CHECK int arena_device_create(struct ring *ring, const struct arena_source *source,
	uint64_t bytes, struct arena **arena_out, struct error *error);
/* Every buffer must be back. NULL is a no-op. */
void arena_destroy(struct arena *arena);
/* The memory has gone with its device, or nothing can be done with it: no buffer is given any more,
 * and it is unmapped with the last one that comes back. error: why, for arena_info.condemned. The
 * first call decides. */
void arena_condemn(struct arena *arena, int error);

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
