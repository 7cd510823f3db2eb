// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of a PCI device that other devices on the bus can read and write (CONFIG_PCI_P2PDMA), such
 * as the controller memory buffer of an NVMe drive. If its driver publishes this memory, it is
 * mapped from /sys/bus/pci/devices/BDF/p2pmem/allocate (Documentation/ABI/testing/sysfs-bus-pci,
 * since Linux 6.2). Each mapping allocates its bytes and frees them when it ends. Direct I/O of a
 * disk into such a mapping moves data from device to device; -EREMOTEIO means that the two devices
 * cannot reach each other.
 *
 * When the device is removed, the kernel removes the pages from all mappings. Then system calls
 * with such a buffer return -EFAULT, and access by instructions raises SIGBUS.
 *
 * Threading: opened and examined on one thread; after that, any thread may map. Ownership: the
 * caller's struct owns the descriptor. Errors: a negative errno and an error message.
 */
#pragma once

#include "memory/arena.h"

enum { P2PMEM_BDF_BYTES = 16, P2PMEM_ANSWER_BYTES = 200 };

struct p2pmem {
	char bdf[P2PMEM_BDF_BYTES]; /* "0000:01:00.0" */
	int fd;			    /* descriptor for mapping; -1: closed */
	uint64_t bytes;		    /* total size */
	uint64_t free_bytes;	    /* bytes that were free when the memory was opened */
};

/* Converts "01:00.0" or "0000:01:00.0" to the longer form, in lower case. Returns 0 or -EINVAL. */
GMB_MUST_CHECK int p2pmem_parse_bdf(
	const char *text, char bdf[P2PMEM_BDF_BYTES], struct error *error);
/* Opens the memory of the device with that address, in the longer form of p2pmem_parse_bdf().
 * Returns 0, -ENODEV if there is no such device, -EOPNOTSUPP if it does not publish any memory, or
 * -EACCES. */
GMB_MUST_CHECK int p2pmem_open(const char *bdf, struct p2pmem *memory, struct error *error);
void p2pmem_close(struct p2pmem *memory);

/* Returns a source for arena_device_create(). memory must exist as long as the arena. */
struct arena_source p2pmem_source(struct p2pmem *memory);

/* Maps a page temporarily and checks that it lies in a BAR of the device. answer: the result as a
 * clause for users ("a page is at 0xfc010000, in BAR 0 ..."). Only root can see addresses; for
 * other users, answer only says that the memory can be mapped. Returns 0, -ENOMEM if all memory is
 * in use, or -EFAULT if it is not in a BAR. */
GMB_MUST_CHECK int p2pmem_examine(struct p2pmem *memory, char answer[P2PMEM_ANSWER_BYTES]);

/* Tests whether a disk can reach the memory, by reading the first bytes of the disk into it, at
 * most ARENA_BLOCK_BYTES_MAX. direct_fd: the disk, opened with O_DIRECT. Returns 0, -EREMOTEIO,
 * -EINVAL, -EFAULT, -ENOMEM, or an error of the disk. */
GMB_MUST_CHECK int p2pmem_reach(struct p2pmem *memory, int direct_fd, uint32_t bytes);
/* Returns a clause that explains the result of p2pmem_reach(). */
const char *p2pmem_reach_text(int result);
