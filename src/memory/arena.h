// SPDX-License-Identifier: Apache-2.0
/*
 * Arenas of payload buffers. An arena hands out buffers of one kind of memory, up to a hard limit;
 * each buffer's mem_ref says which kinds of access it permits (ring/memory.h). The arena's source
 * provides the memory: RAM, or memory of a PCI device (p2pmem.h). Blocks are powers of two from 4
 * KiB to 1 MiB, aligned to their size in RAM and to at least 4 KiB in device memory.
 *
 *   arena ── slab 0 (4 MiB) ── slab 1 ── ...      slabs of RAM are mapped (huge pages when the
 *             └ blocks of 2^12 .. 2^20 bytes      kernel gives them) and registered with the ring
 *                                                 when first needed; a device's at the start
 *
 * Threading: the ring's thread. Ownership: arena_get() lends a buffer; arena_put() returns it after
 * the last I/O on it. A new buffer still contains data of an earlier request: never send bytes that
 * were not written for the current one. Errors: -EAGAIN at the limit. Calls never wait: the path
 * suspends requests that get no memory, and decides in which order they continue
 * (path/admission.h).
 */
#pragma once

#include "ring/ring.h"

enum {
	ARENA_BLOCK_BYTES_MIN = 4096,
	ARENA_BLOCK_BYTES_MAX = 1 << 20,
	ARENA_SLAB_BYTES = 4 << 20,
	/* Minimum size of an arena of device memory. With less, the memory that one client can hold
	 * (see PATH_CLIENT_DIVISOR) would be smaller than the smallest part of a request. */
	ARENA_DEVICE_BYTES_MIN = 256 << 10,
};

struct arena;

struct arena_buf {
	struct mem_ref memory; /* MEM_NONE if there is no buffer */
	uint32_t bytes;	       /* size of the block; at least as large as requested */
	bool reserved;	       /* taken by arena_get_reserved() */
};

struct arena_info {
	const char *kind; /* "ram", or the name of the PCI device */
	uint32_t rights;  /* enum mem_right: rights that all memory of the arena has */
	uint64_t limit_bytes;
	uint64_t mapped_bytes;	     /* size of the existing slabs */
	uint64_t used_bytes;	     /* size of the buffers in use */
	uint64_t reserve_bytes;	     /* see arena_reserve() */
	uint64_t reserve_used_bytes; /* size of the buffers from the reserve that are in use */
	int condemned;		     /* reason, see arena_condemn(); 0: not condemned */
};

/* Provider of an arena's memory. */
struct arena_source {
	const char *kind; /* value of arena_info.kind; must outlive the arena */
	uint32_t rights;  /* enum mem_right */
	bool registers;	  /* the ring can register the memory as fixed buffers */
	/* Maps page-aligned memory: ARENA_SLAB_BYTES, or less for the last slab of a device.
	 * Returns 0, or a negative errno if there is not enough. Called on the ring's thread. */
	int (*map)(void *context, uint64_t bytes, uint8_t **base_out);
	void (*unmap)(void *context, uint8_t *base, uint64_t bytes);
	void *context; /* must outlive the arena */
};

/* Users of an arena may only read its members. */
struct arena {
	struct arena_info info;
};

/* Creates an arena of ordinary memory. limit_bytes is rounded down to whole slabs and must be at
 * least one slab. */
GMB_MUST_CHECK int arena_ram_create(
	struct ring *ring, uint64_t limit_bytes, struct arena **arena_out, struct error *error);
/* Creates an arena of device memory. All of it is mapped immediately. bytes is rounded down to a
 * multiple of the smallest block size, and must be at least ARENA_DEVICE_BYTES_MIN. */
GMB_MUST_CHECK int arena_device_create(struct ring *ring, const struct arena_source *source,
	uint64_t bytes, struct arena **arena_out, struct error *error);
/* Destroys an arena whose buffers have all been returned. NULL is a no-op. */
void arena_destroy(struct arena *arena);
/* Marks the memory as unusable, for example after its device was removed: arena_get() fails from
 * now on, and the memory is unmapped when the last buffer is returned. error: the reason, for
 * arena_info.condemned. Only the first call has an effect. */
void arena_condemn(struct arena *arena, int error);

static inline const struct arena_info *arena_info(const struct arena *arena)
{
	return &arena->info;
}

/* Reserves bytes, in blocks of the smallest size, for arena_get_reserved(). Call it before the
 * first arena_get(). */
void arena_reserve(struct arena *arena, uint64_t bytes);
/* Returns how many bytes are available to arena_get(). */
static inline uint64_t arena_free_bytes(const struct arena *arena)
{
	const struct arena_info *info = &arena->info;

	return info->limit_bytes - info->reserve_bytes -
	       (info->used_bytes - info->reserve_used_bytes);
}

/* Lends a buffer of at least bytes (1 to ARENA_BLOCK_BYTES_MAX). Returns 0 or -EAGAIN. */
GMB_MUST_CHECK int arena_get(struct arena *arena, uint32_t bytes, struct arena_buf *buf);
/* Lends a block of the smallest size from the reserve. Returns 0, or -EAGAIN if the reserve is used
 * up or the system has no memory. */
GMB_MUST_CHECK int arena_get_reserved(struct arena *arena, struct arena_buf *buf);
/* Returns a buffer; buf has no memory afterwards. */
void arena_put(struct arena *arena, struct arena_buf *buf);
