// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of a PCI device that other devices on the bus can read and write (CONFIG_PCI_P2PDMA), such
 * as the controller memory buffer of an NVMe drive. Published memory is mapped from
 * /sys/bus/pci/devices/BDF/p2pmem/allocate (Documentation/ABI/testing/sysfs-bus-pci, since Linux
 * 6.2). Each mapping allocates its bytes and frees them when it ends. Direct I/O of a disk into
 * such a mapping moves data from device to device; -EREMOTEIO means that the two devices cannot
 * reach each other.
 *
 * When the device is removed, the kernel removes the pages from all mappings: system calls then
 * return -EFAULT, and instructions raise SIGBUS.
 *
 * Threading: opened and examined on one thread; after that, any thread may map. Ownership: the
 * caller's struct owns the descriptor. Errors: negative errno and a sentence.
 */
#pragma once

#include "memory/arena.h"

enum { P2PMEM_BDF_BYTES = 16, P2PMEM_ANSWER_BYTES = 200 };

struct p2pmem {
	char bdf[P2PMEM_BDF_BYTES]; /* "0000:01:00.0" */
	int fd;			    /* of the file to map; -1: closed */
	uint64_t bytes;		    /* total size */
	uint64_t free_bytes;	    /* at the time of opening */
};

/* Converts "01:00.0" or "0000:01:00.0" to the longer form, in lower case. -EINVAL. */
GMB_MUST_CHECK int p2pmem_parse_bdf(
	const char *text, char bdf[P2PMEM_BDF_BYTES], struct error *error);
/* bdf: the longer form. -ENODEV: no such device; -EOPNOTSUPP: it has no such memory, or does not
 * publish it; -EACCES. */
GMB_MUST_CHECK int p2pmem_open(const char *bdf, struct p2pmem *memory, struct error *error);
void p2pmem_close(struct p2pmem *memory);

/* For arena_device_create(); memory is borrowed while an arena exists. */
struct arena_source p2pmem_source(struct p2pmem *memory);

/* Maps a page temporarily and checks that it lies in a BAR of the device. answer: a clause for
 * users, on success too ("a page is at 0xfc010000, in BAR 0 ..."). Only root can see addresses; for
 * others the answer is that the memory can be mapped. -ENOMEM: all of it is in use; -EFAULT: it is
 * not in a BAR. */
GMB_MUST_CHECK int p2pmem_examine(struct p2pmem *memory, char answer[P2PMEM_ANSWER_BYTES]);

/* Tests whether a disk can reach the memory, by reading the first bytes of the disk into it, at
 * most ARENA_BLOCK_BYTES_MAX. direct_fd was opened with O_DIRECT. 0, or the error: -EREMOTEIO,
 * -EINVAL, -EFAULT, -ENOMEM, or an error of the disk. */
GMB_MUST_CHECK int p2pmem_reach(struct p2pmem *memory, int direct_fd, uint32_t bytes);
/* A clause that explains the result. */
const char *p2pmem_reach_text(int result);
