// SPDX-License-Identifier: Apache-2.0
/*
 * Memory references: the location of payload and the permitted kinds of access. On the path from
 * disk to network, payload has a reference instead of a pointer, because code on the CPU must not
 * access every payload: device memory and bytes of a file, for example, might not have an address.
 *
 *   mem_region   base, bytes, fixed-buffer index      a run of memory, or a file; owned elsewhere
 *      ▲
 *   mem_ref      a position in it, and rights         a value; 16 bytes, passed in registers
 *
 * Only a few functions convert a reference to a pointer, and each asserts the right it needs:
 * mem_cpu_read() and mem_cpu_write() for code that accesses the bytes, mem_socket_ptr() for the
 * ring's socket operations, and mem_address() for the ring itself.
 *
 * Threading: a reference is a value, which any thread can copy. A region changes only on the thread
 * of the ring with which it is registered. Ownership: a reference does not own memory. The region
 * must outlive all references to it. Errors: using memory without the right to is a bug, and
 * asserted.
 */
#pragma once

#include "base/compiler.h"

enum mem_right {
	MEM_CPU_READ = 1 << 0,	/* instructions of this process can load from the memory */
	MEM_CPU_WRITE = 1 << 1, /* instructions of this process can store to the memory */
	/* socket operations can send from the memory and receive into it; without MEM_ADDRESS:
	 * ring_sendfile_now() can send the bytes of the region's file */
	MEM_SOCKET = 1 << 2,
	MEM_FIXED = 1 << 3, /* the memory's region is in the ring's table of fixed buffers */
	MEM_NIC = 1 << 4,   /* a network card can access the memory (RDMA) */
	/* the memory has an address for system calls; implied by MEM_CPU_READ and MEM_CPU_WRITE */
	MEM_ADDRESS = 1 << 5,
	/* Only this process can change the memory, so data does not change while an operation reads
	 * it. Memory shared with a client or a peer does not have this right. */
	MEM_STABLE = 1 << 6,
	/* An access never waits for another process, so threads that serve others can access the
	 * memory, too. Memory into which an untrusted peer can punch holes does not have this
	 * right. */
	MEM_PROMPT = 1 << 7,
};

/* Rights of ordinary memory of this process. */
#define MEM_RAM (MEM_CPU_READ | MEM_CPU_WRITE | MEM_SOCKET | MEM_ADDRESS | MEM_STABLE | MEM_PROMPT)
#define MEM_CPU (MEM_CPU_READ | MEM_CPU_WRITE)

struct mem_region {
	uint8_t *base; /* NULL: without MEM_ADDRESS */
	uint64_t bytes;
	int32_t fixed_idx; /* index in the ring's buffer table; valid with MEM_FIXED */
	uint32_t rights;   /* enum mem_right: rights of a new reference to the region */
	int fd;		   /* the file; valid with MEM_SOCKET and without MEM_ADDRESS */
};

struct mem_ref {
	struct mem_region *region; /* NULL: memory of this process without a region */
	uint64_t at : 56;    /* the address, or without MEM_ADDRESS the offset in the region */
	uint64_t rights : 8; /* enum mem_right; 0 = no memory */
};

_Static_assert(sizeof(struct mem_ref) == 16, "passed in registers");

/* An element of a scatter list: a contiguous part of a requester's memory. */
struct mem_segment {
	struct mem_ref memory;
	uint64_t bytes;
};

#define MEM_NONE ((struct mem_ref){ 0 })

/* Returns a reference to memory of this process that has no region. */
static inline struct mem_ref mem_of(void *bytes)
{
	return (struct mem_ref){ .at = (uintptr_t)bytes, .rights = MEM_RAM };
}

static inline struct mem_ref mem_of_const(const void *bytes)
{
	return (struct mem_ref){ .at = (uintptr_t)bytes, .rights = MEM_RAM & ~MEM_CPU_WRITE };
}

/* Returns a reference to a position in a region, with all rights that the region has now. */
static inline struct mem_ref mem_at(struct mem_region *region, uint64_t offset)
{
	return (struct mem_ref){ .region = region,
		.at = (uintptr_t)region->base + offset,
		.rights = (uint8_t)region->rights };
}

/* Advances a reference by a number of bytes. */
static inline struct mem_ref mem_add(struct mem_ref memory, uint64_t bytes)
{
	memory.at += bytes;
	return memory;
}

/* Returns the reference, with its rights reduced to `rights`. */
static inline struct mem_ref mem_limit(struct mem_ref memory, uint32_t rights)
{
	memory.rights &= (uint8_t)rights;
	return memory;
}

/* Returns whether the reference has all these rights. */
static inline bool mem_may(struct mem_ref memory, uint32_t rights)
{
	return (memory.rights & rights) == rights;
}

/* Returns whether the position is aligned, assuming that the region is. align: a power of two, at
 * most a page. */
static inline bool mem_is_aligned(struct mem_ref memory, uint32_t align)
{
	return (memory.at & (align - 1)) == 0;
}

/* Returns the offset from the beginning of the reference's region. */
static inline uint64_t mem_offset(struct mem_ref memory)
{
	return memory.at - (uintptr_t)memory.region->base;
}

/* Returns the address for a system call. Only for the ring and its simulation. */
static inline void *mem_address(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_ADDRESS) != 0);
	return (void *)(uintptr_t)memory.at;
}

/* Return the address of the bytes, for code that loads or stores them itself. */
static inline const uint8_t *mem_cpu_read(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_CPU_READ) != 0);
	return (const uint8_t *)(uintptr_t)memory.at;
}

static inline uint8_t *mem_cpu_write(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_CPU_WRITE) != 0);
	return (uint8_t *)(uintptr_t)memory.at;
}

/* Returns a buffer argument for the ring's socket operations. The caller must not access the
 * bytes. */
static inline void *mem_socket_ptr(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_SOCKET) != 0 && (memory.rights & MEM_ADDRESS) != 0);
	return (void *)(uintptr_t)memory.at;
}
