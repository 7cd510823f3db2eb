// SPDX-License-Identifier: Apache-2.0
/*
 * Arenas of payload buffers. An arena hands out buffers of one kind of memory, up to a hard limit;
 * each buffer's reference says how it may be used (ring/memory.h). The arena's source provides the
 * memory: RAM, or memory of a PCI device (p2pmem.h). Blocks are powers of two from 4 KiB to 1 MiB,
 * with natural alignment, at least up to 4 KiB.
 *
 *   arena ── slab 0 (4 MiB) ── slab 1 ── ...      slabs of RAM are mapped (huge pages when the
 *             └ blocks of 2^12 .. 2^20 bytes      kernel gives them) and registered with the ring
 *                                                 when first needed, those of a device at the start
 *
 * Threading: the ring's thread. Ownership: arena_get() gives a buffer, arena_put() takes it back;
 * the holder of the last I/O on it decides when. A new buffer still contains the data of its last
 * holder: never send bytes that were not written for this request. Errors: -EAGAIN at the limit.
 * The layer above (path_serve) decides which requests wait for memory and in which order, because
 * it can suspend requests.
 */
#pragma once

#include "ring/ring.h"

enum {
	ARENA_BLOCK_BYTES_MIN = 4096,
	ARENA_BLOCK_BYTES_MAX = 1 << 20,
	ARENA_SLAB_BYTES = 4 << 20,
	/* Device memory smaller than this is not worth using: see PATH_CLIENT_DIVISOR. */
	ARENA_DEVICE_BYTES_MIN = 256 << 10,
};

struct arena;

struct arena_buf {
	struct mem_ref memory; /* none = no buffer */
	uint32_t bytes;	       /* size of the block, at least the requested size */
	bool reserved;	       /* taken by arena_get_reserved() */
};

struct arena_info {
	const char *kind; /* "ram", or the name of the device */
	uint32_t rights;  /* enum mem_right: uses that all its memory allows */
	uint64_t limit_bytes;
	uint64_t mapped_bytes; /* size of the existing slabs */
	uint64_t used_bytes;   /* in buffers now */
	uint64_t used_bytes_peak;
	uint64_t reserve_bytes;	     /* reserved, see arena_reserve() */
	uint64_t reserve_used_bytes; /* part of used_bytes, from the reserve */
	uint64_t registered_bytes;   /* part of mapped_bytes, registered with the ring */
	uint64_t register_failures;  /* failed attempts to register a slab */
	int register_error;	     /* error of the last one; 0 = none failed */
	uint64_t refusals;	     /* number of -EAGAIN from arena_get() */
	int condemned;		     /* see arena_condemn(); 0 = not condemned */
};

/* Provider of an arena's memory. */
struct arena_source {
	const char *kind; /* for arena_info.kind; lives as long as the arena */
	uint32_t rights;  /* enum mem_right */
	bool registers;	  /* the ring can register its memory as fixed buffers */
	/* Maps page-aligned memory: ARENA_SLAB_BYTES, or less for the last slab of a device. A
	 * negative errno if there is not enough. On the ring's thread. */
	int (*map)(void *context, uint64_t bytes, uint8_t **base_out);
	void (*unmap)(void *context, uint8_t *base, uint64_t bytes);
	void *context; /* lives as long as the arena */
};

/* The public members. */
struct arena {
	struct arena_info info;
};

/* Creates an arena of ordinary memory. limit_bytes is rounded down to whole slabs and must be at
 * least one slab. */
GMB_MUST_CHECK int arena_ram_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error);
/* Creates an arena of device memory. All bytes are mapped immediately; bytes is rounded down to
 * whole smallest blocks and must be at least ARENA_DEVICE_BYTES_MIN. */
GMB_MUST_CHECK int arena_device_create(struct ring *ring, const struct arena_source *source,
	uint64_t bytes, struct arena **arena_out, struct error *error);
/* All buffers must have been returned. NULL is a no-op. */
void arena_destroy(struct arena *arena);
/* Marks the memory as lost with its device, or as unusable: no more buffers are given, and the
 * memory is unmapped when the last one is returned. error: the reason, for arena_info.condemned.
 * Only the first call has an effect. */
void arena_condemn(struct arena *arena, int error);

static inline const struct arena_info *arena_info(const struct arena *arena)
{
	return &arena->info;
}

/* Reserves bytes, in smallest blocks: arena_get() does not use them. Called before the first buffer
 * is taken. */
void arena_reserve(struct arena *arena, uint64_t bytes);
/* Bytes still available to arena_get(). */
static inline uint64_t arena_free_bytes(const struct arena *arena)
{
	const struct arena_info *info = &arena->info;

	return info->limit_bytes - info->reserve_bytes -
	       (info->used_bytes - info->reserve_used_bytes);
}

/* bytes: 1 to ARENA_BLOCK_BYTES_MAX. 0 or -EAGAIN. */
GMB_MUST_CHECK int arena_get(struct arena *arena, uint32_t bytes, struct arena_buf *buf);
/* Takes a smallest block from the reserve. -EAGAIN: the reserve is used up, or the system has no
 * memory. */
GMB_MUST_CHECK int arena_get_reserved(struct arena *arena, struct arena_buf *buf);
/* Returns a buffer; buf has no memory afterwards. */
void arena_put(struct arena *arena, struct arena_buf *buf);
