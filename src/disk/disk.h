// SPDX-License-Identifier: Apache-2.0
/*
 * What a store asks the operating system about a file or block device outside the ring: opening,
 * geometry, holes, discarding. Has a Linux version (disk/linux.c) and a simulated one (sim/ring.c),
 * chosen together with the ring at link time.
 *
 * Threading: any thread; the calls block. Inside a reactor only disk_size() may be called directly
 * (it is a quick fstat/ioctl), the others run at start or through ring_call().
 * Ownership: the descriptor is the caller's. Errors: negative errno; open fills *error.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

struct disk_info {
	uint64_t size;	      /* bytes, exactly; of a device: in whole logical blocks */
	uint64_t identity[2]; /* device and inode (for a block device: 0 and its device number) */
	bool is_block;	      /* block device, else regular file */
	bool rotational;      /* known to rotate */
	bool read_only;	      /* the device itself refuses writes */
	const char *format;   /* a file that begins as "qcow2" images do, and the like; or NULL */
	bool keeps_stale;     /* a page that is read in during a direct write may stay, outdated */
	bool ignores_dsync;   /* a write with RWF_DSYNC may not be durable when it is done */
	bool punches_holes;   /* fallocate PUNCH_HOLE (files) or unmap (devices) is worth trying */
	uint32_t direct_offset_align; /* O_DIRECT offset and length alignment; 0 = no O_DIRECT */
	uint32_t direct_memory_align; /* O_DIRECT memory alignment */
	uint32_t block_preferred;     /* st_blksize or physical block, >= 512, a power of two */
	uint64_t io_max; /* largest transfer the device takes in one command, 0 = unknown */
	uint64_t discard_granularity; /* 0 = unknown */
	uint32_t stripe_chunk;	      /* bytes on one member before the next, 0 = not striped */
	uint32_t stripe_members;      /* data members, 0 = not striped */
};

enum disk_extent_kind { DISK_DATA, DISK_HOLE };

/* Opens path; direct adds O_DIRECT, read_only opens O_RDONLY (else O_RDWR). Refuses anything that
 * is not a regular file or a block device, with a sentence for the user. */
GMB_MUST_CHECK int disk_open(
	const char *path, bool read_only, bool direct, int *fd_out, struct error *error);
void disk_close(int fd);

/*
 * Claims the disk that fd was opened on for writing, under the name path, so that nobody else who
 * asks gets it too: a block device exclusively (O_EXCL, as mounting, swap and RAID do), a regular
 * file by a lock that other processes of this program respect. The claim is a descriptor of its
 * own: give it to disk_close() and to nothing else, as a ring keeps files open after the process
 * is gone. -1: there is nothing to hold (a filesystem without locks). A disk in use is tried again
 * for a second before that is -EBUSY. A claim conflicts with another one of the same process.
 */
GMB_MUST_CHECK int disk_claim(const char *path, int fd, int *claim_out, struct error *error);

/*
 * Tells that the disk that fd was opened on is served for reading, under the name path. Keeps no
 * server away, of either kind: it is there for disk_check_readers(). Any number of them may be
 * held, also beside a claim for writing; permission to read is enough. The descriptor is as that
 * of disk_claim(); -1: there is nothing to hold. It is never in use, so it never waits.
 */
GMB_MUST_CHECK int disk_claim_reading(
	const char *path, int fd, int *claim_out, struct error *error);

/* For who is about to destroy what the disk holds: -EBUSY when it is still served for reading after
 * a second, by anybody, this process included. 0: nobody is known to. */
GMB_MUST_CHECK int disk_check_readers(int fd);

/* Direct alignments are exact on a descriptor opened with direct, else what the system tells or a
 * guess. */
GMB_MUST_CHECK int disk_info(int fd, struct disk_info *info);
GMB_MUST_CHECK int disk_size(int fd, uint64_t *size);

/* NULL when a read's memory is written by the device itself, each byte once, as far as anybody can
 * tell; else a clause that says why not ("it is a file, ..."). A file never gets NULL. */
const char *disk_marker_refusal(int fd);

/* Reads through this descriptor bring in only what they ask for, nothing ahead. Advisory. */
void disk_set_random(int fd);

/* The kind and length of the extent that starts at offset (at most limit bytes long). -ENXIO: the
 * file ends at or before offset. */
GMB_MUST_CHECK int disk_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind *kind, uint64_t *length);

/* Discards (contents undefined after). -EOPNOTSUPP when it cannot. */
GMB_MUST_CHECK int disk_discard(int fd, bool is_block, uint64_t offset, uint64_t length);

/* Makes the range read as zeroes. may_unmap: space may be given back; else it stays or becomes
 * provisioned. fast: fail with -EOPNOTSUPP rather than write zero bytes. */
GMB_MUST_CHECK int disk_zero(
	int fd, bool is_block, uint64_t offset, uint64_t length, bool may_unmap, bool fast);
