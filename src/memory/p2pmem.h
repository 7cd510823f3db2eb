// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of a PCI device that other devices of the bus can read and write (CONFIG_PCI_P2PDMA), such
 * as the controller memory buffer of an NVMe drive. What a device publishes is mapped from
 * /sys/bus/pci/devices/BDF/p2pmem/allocate (Documentation/ABI/testing/sysfs-bus-pci, since Linux
 * 6.2); each mapping allocates its bytes and gives them back when it ends. Direct I/O of a disk
 * into such a mapping moves data from device to device; -EREMOTEIO: the two cannot reach each
 * other.
 *
 * When the device is removed, the kernel takes the pages out of all mappings: system calls get
 * -EFAULT from then on, and instructions SIGBUS.
 *
 * Threading: opened and asked on one thread; then any thread may map. Ownership: the caller's
 * struct owns the descriptor. Errors: negative errno and a sentence.
 */
#pragma once

#include "memory/arena.h"

enum { P2PMEM_BDF_BYTES = 16, P2PMEM_ANSWER_BYTES = 200 };

struct p2pmem {
	char bdf[P2PMEM_BDF_BYTES]; /* "0000:01:00.0" */
	int fd;			    /* of the file that is mapped; -1: closed */
	uint64_t bytes;		    /* in all */
	uint64_t free_bytes;	    /* as it was opened */
};

/* Brings "01:00.0" or "0000:01:00.0" into the longer form, small letters. -EINVAL. */
GMB_MUST_CHECK int p2pmem_parse_bdf(
	const char *text, char bdf[P2PMEM_BDF_BYTES], struct error *error);
/* bdf: the longer form. -ENODEV: there is no such device; -EOPNOTSUPP: it has no such memory, or
 * does not publish it; -EACCES. */
GMB_MUST_CHECK int p2pmem_open(const char *bdf, struct p2pmem *memory, struct error *error);
void p2pmem_close(struct p2pmem *memory);

/* For arena_device_create(); memory is borrowed while an arena exists. */
struct arena_source p2pmem_source(struct p2pmem *memory);

/* Maps a page for a moment, and looks where it is: in a BAR of the device. answer: a clause for
 * people, on success too ("a page is at 0xfc010000, in BAR 0 ..."). Only root sees addresses;
 * others learn that it can be mapped. -ENOMEM: all is in use; -EFAULT: it is not in a BAR. */
GMB_MUST_CHECK int p2pmem_examine(struct p2pmem *memory, char answer[P2PMEM_ANSWER_BYTES]);

/* Whether a disk can reach the memory: reads its first bytes there, at most ARENA_BLOCK_BYTES_MAX.
 * direct_fd was opened with O_DIRECT. 0 or why not: -EREMOTEIO, -EINVAL, -EFAULT, -ENOMEM, or an
 * error of the disk. */
GMB_MUST_CHECK int p2pmem_reach(struct p2pmem *memory, int direct_fd, uint32_t bytes);
/* What that means, a clause. */
const char *p2pmem_reach_text(int result);
