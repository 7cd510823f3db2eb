// SPDX-License-Identifier: Apache-2.0
/*
 * The memory reference: where payload is, and what may be done with it. It takes the place of a
 * bare pointer from the disk to the network, because not all payload memory is memory that the CPU
 * may use: the page cache must not be read by a program, and memory of a device may have no address
 * at all.
 *
 *   mem_region   base, bytes, fixed-buffer index      a run of memory; its owner keeps it
 *      ▲
 *   mem_ref      a place in it, and rights            a value; 16 bytes, passed in registers
 *
 * A pointer comes out of a reference in few places, each of which asserts the right it needs:
 * mem_cpu_read() and mem_cpu_write() for code that touches the bytes, mem_socket_ptr() for the
 * ring's socket operations, mem_address() for the ring itself.
 *
 * Threading: values; a region changes only on the thread of the ring that it is registered with.
 * Ownership: a reference owns nothing. The region must outlive all references into it.
 * Errors: using memory without the right to is a mistake of the program, and asserted.
 */
#pragma once

#include "base/compiler.h"

enum mem_right {
	MEM_CPU_READ = 1 << 0,	/* instructions of this process may load from it */
	MEM_CPU_WRITE = 1 << 1, /* and store to it */
	MEM_SOCKET = 1 << 2,	/* socket operations may send from it and receive into it */
	MEM_FIXED = 1 << 3,	/* its region is in the ring's table of fixed buffers */
	MEM_NIC = 1 << 4,	/* a network card may be told to move it (RDMA) */
	MEM_ADDRESS = 1 << 5,	/* it has an address, which system calls take; the first three do */
	/* Only this process changes it: what an operation reads stays the same until its end.
	 * Memory that is shared with a client or a peer has not got this. */
	MEM_STABLE = 1 << 6,
};

/* What ordinary memory of this process can be used for. */
#define MEM_RAM (MEM_CPU_READ | MEM_CPU_WRITE | MEM_SOCKET | MEM_ADDRESS | MEM_STABLE)
#define MEM_CPU (MEM_CPU_READ | MEM_CPU_WRITE)

struct mem_region {
	uint8_t *base; /* NULL: without MEM_ADDRESS */
	uint64_t bytes;
	int32_t fixed_idx; /* in the ring's table; with MEM_FIXED only */
	uint32_t rights;   /* enum mem_right: what references into it begin with */
};

struct mem_ref {
	struct mem_region *region; /* NULL: memory of this process that belongs to no region */
	uint64_t at : 56;	   /* the address; without MEM_ADDRESS the offset in the region */
	uint64_t rights : 8;	   /* enum mem_right; 0 = no memory */
};

_Static_assert(sizeof(struct mem_ref) == 16, "passed in registers");

/* A run of a requester's memory; a list of them is a scatter list. */
struct mem_segment {
	struct mem_ref memory;
	uint64_t bytes;
};

#define MEM_NONE ((struct mem_ref){ 0 })

/* Memory of this process that no region describes. */
static inline struct mem_ref mem_of(void *bytes)
{
	return (struct mem_ref){ .at = (uintptr_t)bytes, .rights = MEM_RAM };
}

static inline struct mem_ref mem_of_const(const void *bytes)
{
	return (struct mem_ref){ .at = (uintptr_t)bytes, .rights = MEM_RAM & ~MEM_CPU_WRITE };
}

/* A place in a region, with all the rights that the region has now. */
static inline struct mem_ref mem_at(struct mem_region *region, uint64_t offset)
{
	return (struct mem_ref){ .region = region,
		.at = (uintptr_t)region->base + offset,
		.rights = (uint8_t)region->rights };
}

/* The place so many bytes further on. */
static inline struct mem_ref mem_add(struct mem_ref memory, uint64_t bytes)
{
	memory.at += bytes;
	return memory;
}

/* The same memory with no other rights than these. */
static inline struct mem_ref mem_limit(struct mem_ref memory, uint32_t rights)
{
	memory.rights &= (uint8_t)rights;
	return memory;
}

/* True when it has all these rights. */
static inline bool mem_may(struct mem_ref memory, uint32_t rights)
{
	return (memory.rights & rights) == rights;
}

/* Regions begin at a page or better. align: a power of two. */
static inline bool mem_is_aligned(struct mem_ref memory, uint32_t align)
{
	return (memory.at & (align - 1)) == 0;
}

/* Bytes from the beginning of its region. */
static inline uint64_t mem_offset(struct mem_ref memory)
{
	return memory.at - (uintptr_t)memory.region->base;
}

/* For the ring and its twin in the simulation, which hand it to system calls. */
static inline void *mem_address(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_ADDRESS) != 0);
	return (void *)(uintptr_t)memory.at;
}

/* The only ways to the bytes for code that loads or stores them itself. */
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

/* For the arguments of the ring's socket operations; not to be looked at. */
static inline void *mem_socket_ptr(struct mem_ref memory)
{
	GMB_ASSERT((memory.rights & MEM_SOCKET) != 0);
	return (void *)(uintptr_t)memory.at;
}
