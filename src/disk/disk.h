// SPDX-License-Identifier: Apache-2.0
/*
 * System calls on files and block devices outside the ring: opening, geometry, holes, discarding
 * (disk/linux.c), zones (disk/zones.c), page-cache maps (disk/map.c), memory that outlives the
 * process (disk/shared.c) and sysfs (disk/sysfs.c). The simulation has its own versions of all but
 * the last (sim/disk_io.c, sim/zones.c, sim/map.c, sim/shared.c); they are chosen together with the
 * ring at link time.
 *
 * Threading: any thread; the calls block. Inside a reactor, only disk_size() and views of a map may
 * be used directly; the other functions run at start or through ring_call(). Ownership: the caller
 * owns the descriptor. Errors: negative errno; functions with *error also fill it.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"
#include "base/error.h"

#define DISK_FORMAT_OVERLAY "gmblock overlay" /* docs/protocol/overlay.md */
#define DISK_FORMAT_FLASH   "gmblock flash"   /* docs/protocol/flash.md */

struct disk_info {
	uint64_t size;	      /* exact, in bytes; for a device: whole logical blocks */
	uint64_t identity[2]; /* device and inode (for a block device: 0 and its device number) */
	/* Identity of the file or device below a loop device; zeroes: not a loop device. */
	uint64_t backing[2];
	uint64_t backing_at; /* offset in it at which the loop device begins */
	int64_t changed_ns;  /* last change of a file's contents, since 1970; 0 = unknown */
	bool is_block;	     /* block device, else regular file */
	bool rotational;     /* known to rotate */
	bool read_only;	     /* the device itself refuses writes */
	bool zoned; /* host-managed zoned device: writes only at the write pointer of a zone */
	uint64_t zone_bytes;	   /* of a zoned device, from zone to zone; else 0 */
	uint32_t active_zones_max; /* limit on zones that are partly written; 0 = no limit */
	const char *format; /* image format if the file begins like one, such as "qcow2"; or NULL */
	bool keeps_stale;   /* a page that is read in during a direct write may stay, outdated */
	bool ignores_dsync; /* a write with RWF_DSYNC may complete before it is durable */
	bool has_holes;	    /* a file that occupies less space than its size */
	bool punches_holes; /* fallocate PUNCH_HOLE (files) or unmap (devices) is worth trying */
	uint32_t direct_offset_align; /* O_DIRECT offset and length alignment; 0 = no O_DIRECT */
	uint32_t direct_memory_align; /* O_DIRECT memory alignment */
	uint32_t block_preferred;     /* st_blksize or physical block, >= 512, a power of two */
	uint64_t io_max; /* largest transfer the device takes in one command, 0 = unknown */
	uint64_t discard_granularity; /* 0 = unknown */
	uint32_t stripe_chunk;	      /* bytes on one member before the next, 0 = not striped */
	uint32_t stripe_members;      /* data members, 0 = not striped */
};

enum disk_extent_kind { DISK_DATA, DISK_HOLE };

/* Opens path. direct adds O_DIRECT; read_only opens with O_RDONLY, otherwise O_RDWR. Anything but a
 * regular file or a block device is refused, with a sentence for the user. */
GMB_MUST_CHECK int disk_open(
	const char *path, bool read_only, bool direct, int *fd_out, struct error *error);
void disk_close(int fd);

/* Creates a file of this size that only its owner may use: head, followed by a hole. The operation
 * is atomic and durable: the file appears complete or not at all. -EEXIST: path exists; it is not
 * changed. */
GMB_MUST_CHECK int disk_create(
	const char *path, uint64_t size, const void *head, size_t head_bytes, struct error *error);

/* Transfers all of the bytes, blocking. -EIO: the file ends earlier. */
GMB_MUST_CHECK int disk_read(int fd, void *bytes, size_t count, uint64_t offset);
GMB_MUST_CHECK int disk_write(int fd, const void *bytes, size_t count, uint64_t offset);
/* Makes durable all data written through any descriptor. */
GMB_MUST_CHECK int disk_sync(int fd);

/*
 * Claims the disk that fd was opened on for writing, under the name path, so that no other claim
 * succeeds: a block device exclusively (O_EXCL, as mount, swap and RAID do), a regular file by a
 * lock that other processes of this program respect. The claim is a separate descriptor that may
 * only be passed to disk_close(). It must not be registered with a ring, which keeps files open
 * after the process has ended. -1: the disk cannot be claimed (a filesystem without locks). If the
 * disk is in use, the claim is retried for one second before it fails with -EBUSY. Claims of the
 * same process also conflict.
 */
GMB_MUST_CHECK int disk_claim(const char *path, int fd, int *claim_out, struct error *error);

/*
 * Marks the disk that fd was opened on as served for reading, under the name path. The mark
 * excludes no server; it is for disk_check_readers(). There can be any number of marks, also
 * together with a claim for writing, and permission to read is sufficient. The descriptor is used
 * like a claim; -1: there is no mark. Does not wait, except with frozen.
 *
 * With frozen, no claim for writing a file succeeds as long as the mark is held. If there already
 * is such a claim, the call waits for it like disk_claim(), and then fails with -EBUSY.
 */
GMB_MUST_CHECK int disk_claim_reading(
	const char *path, int fd, bool frozen, int *claim_out, struct error *error);

/* True if fd refers to a file that disk_claim_reading() has marked as frozen. */
bool disk_is_frozen(int fd);

/* Called before the contents of the disk are destroyed. -EBUSY if the disk is still served for
 * reading after one second, by any process including this one; otherwise 0. */
GMB_MUST_CHECK int disk_check_readers(int fd);

/*
 * Marks the open file of fd as one through which a server writes. The mark is a lock that ends with
 * the last operation on that open file. When the process is killed, its claims are free
 * immediately, but direct writes of an io_uring continue, and so does the mark. Any number of open
 * files can be marked. For a block device, the marks are on the device node through which it was
 * opened. -EOPNOTSUPP: such locks are not available here; or another errno.
 */
GMB_MUST_CHECK int disk_mark_writer(int fd);
/* -EBUSY: an open file of the disk is marked, in any process including this one; 0: no mark exists;
 * another errno: marks cannot be detected here. */
GMB_MUST_CHECK int disk_check_writers(int fd);

/* The direct alignments are exact for a descriptor opened with direct. Otherwise they are reported
 * by the system or guessed. */
GMB_MUST_CHECK int disk_info(int fd, struct disk_info *info);
GMB_MUST_CHECK int disk_size(int fd, uint64_t *size);

/* Returns NULL if reads from this device write each byte of memory once, by the device itself, as
 * far as that can be known. Otherwise a clause with the reason ("it is a file, ..."). Never NULL
 * for a file. */
const char *disk_marker_refusal(int fd);

/* Free bytes in the filesystem of a file; UINT64_MAX: unknown. */
uint64_t disk_room(int fd);

/* Disables readahead for this descriptor. Advisory. */
void disk_set_random(int fd);

/* Returns the kind of the extent at offset, and its length up to limit. -ENXIO: the file ends at or
 * before offset. */
GMB_MUST_CHECK int disk_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind *kind, uint64_t *length);

/* Discards a range, whose contents are undefined afterwards. -EOPNOTSUPP if not supported. */
GMB_MUST_CHECK int disk_discard(int fd, bool is_block, uint64_t offset, uint64_t length);

/* Makes the range read as zeroes. may_unmap: space may be freed; otherwise it stays or becomes
 * provisioned. fast: fails with -EOPNOTSUPP rather than writing zeroes. */
GMB_MUST_CHECK int disk_zero(
	int fd, bool is_block, uint64_t offset, uint64_t length, bool may_unmap, bool fast);

/* --- zones ------------------------------------------------------------------------------------ */

enum disk_zone_state {
	DISK_ZONE_EMPTY,
	DISK_ZONE_ACTIVE, /* partly written; or open */
	DISK_ZONE_FULL,	  /* or finished: sectors that were not written read as anything */
	DISK_ZONE_BROKEN, /* no longer writable, perhaps not readable */
	DISK_ZONE_CONVENTIONAL,
};

/* A zone of a host-managed device, in bytes. Only the written part may be read. */
struct disk_zone {
	uint64_t offset;
	uint64_t capacity; /* writable bytes; up to the next zone there may be a gap */
	uint64_t written;
	enum disk_zone_state state;
};

/* Reports the zones from the one that begins at offset on. Returns their number, less than
 * zones_max at the end of the device. */
GMB_MUST_CHECK int disk_zones(int fd, uint64_t offset, struct disk_zone *zones, uint32_t zones_max);
/* Resets whole zones, which become empty. fd is the claim, as for a discard. */
GMB_MUST_CHECK int disk_zones_reset(int fd, uint64_t offset, uint64_t length);
/* Finishes a zone: it becomes full and is no longer active. */
GMB_MUST_CHECK int disk_zone_finish(int fd, uint64_t offset, uint64_t length);

/* --- copies between files -------------------------------------------------------------------- */

/* Lets a range of fd share the blocks of a range of source_fd, which may be the same file, until
 * either is written. -EOPNOTSUPP: the file system does not support this; -EXDEV: not for these
 * files, or not at these offsets. */
GMB_MUST_CHECK int disk_clone(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);
/* Copies between two files in the kernel. Returns the number of bytes copied, which may be less
 * than length; 0: the source ends there. -EOPNOTSUPP as above. length <= 1 GiB. */
GMB_MUST_CHECK int disk_copy(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);

/* --- the page cache as memory ---------------------------------------------------------------- */

/*
 * Maps the page cache of a file or block device, so that data can be sent without a copy.
 *
 * Only the kernel may read this memory, as the source of a system call. If the file was truncated
 * or the disk fails, a system call returns -EFAULT (or a short count, and -EFAULT on the next
 * call), but a program that reads the memory itself is killed. The memory contains what a read
 * would return at that moment: a concurrent write is visible in whole or in part. (The rest of the
 * last page of a truncated file is zeroes.)
 *
 * In addition to address space, a map uses 2 MiB of page tables per GiB used recently, at most
 * about 32 MiB for all maps of the process.
 *
 * Views may be used by any thread, also concurrently. The descriptor must stay open.
 */
struct disk_map;

/* Maps the first size bytes (> 0); only address space is reserved. -EPERM: the kernel does not
 * report which pages are cached, because the user neither owns the file nor may write to it.
 * -EOPNOTSUPP: the file is on a network file system or in FUSE. -ESTALE: it was opened for reading
 * on an overlay file system, where another file can replace it. */
GMB_MUST_CHECK int disk_map_create(int fd, uint64_t size, struct disk_map **map_out);
/* All views must have ended. NULL is a no-op. */
void disk_map_destroy(struct disk_map *map);

/* The address of the bytes, valid until the map is destroyed. NULL: not all bytes are in the page
 * cache now, or they lie beyond the map. The caller checks that the file still has them. length >
 * 0. Does not wait for the disk. If bytes are evicted from the cache later, the system call that
 * uses them reads them again and waits. */
const void *disk_map_view(struct disk_map *map, uint64_t offset, uint64_t length);

/* True if the page with this byte is in the page cache now. False beyond the map. */
bool disk_map_has(const struct disk_map *map, uint64_t offset);

/* Copies a few bytes from the start of a view that was just taken. False: the disk failed or ends
 * before them, or the read would have to wait. */
bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count);

/* --- memory that outlives the process -------------------------------------------------------- */

/*
 * A mapped file in a tmpfs. Its contents survive when the process is killed, but not when the
 * machine fails. All pages are allocated from the beginning, so that writing them never fails for
 * lack of space. The next process that opens it sees the stores in their order.
 */
struct disk_shared {
	uint8_t *bytes; /* NULL: the file is empty */
	uint64_t size;

	/* Private. */
	int fd;
	char *path;
};

/* Checks whether such files can be created and found in a folder. -ENOTSUP: not a tmpfs. -ENOENT,
 * -ENOTDIR, -EACCES, -EROFS and others: as from access(). With a sentence. */
GMB_MUST_CHECK int disk_shared_look(const char *folder, struct error *error);
enum {
	DISK_SHARED_CREATE = 1U << 0, /* a new, empty file; -EEXIST: it exists */
	DISK_SHARED_WAIT = 1U << 1,   /* wait one second for another user of the file to end */
	DISK_SHARED_READ = 1U << 2,   /* read only; others may also read */
};
/* Opens the file, or creates one that only its owner may use, and claims it until it is closed.
 * -EBUSY: another process has claimed it. -EAGAIN: other processes only read it. -ENOENT: it does
 * not exist. -EPERM: other users can access it, or it has several names. -ENOTSUP: not on a tmpfs.
 * -ELOOP: a symbolic link. All with a sentence. Its contents are untrusted: any process of this
 * user can write them. */
GMB_MUST_CHECK int disk_shared_open(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error);
/* Reads the first bytes, with zeroes after the end, and the size, without a claim: the file may be
 * in use by another process. Otherwise as disk_shared_open(). */
GMB_MUST_CHECK int disk_shared_peek(
	const char *path, void *bytes, size_t count, uint64_t *size_out, struct error *error);
/* Calls found for each file in the folder whose name begins with prefix. found may remove the
 * file. */
void disk_shared_list(const char *folder, const char *prefix,
	void (*found)(void *context, const char *path), void *context);
/* Sets the size of the file and clears its contents. -ENOSPC: the tmpfs is full; the file is then
 * empty. */
GMB_MUST_CHECK int disk_shared_resize(
	struct disk_shared *shared, uint64_t size, struct error *error);
/* remove: also delete the file. A zeroed struct is a no-op. */
void disk_shared_close(struct disk_shared *shared, bool remove);

enum { DISK_BOOT_ID_BYTES = 16 };
/* The kernel's identifier of this boot. If its file is hidden, the environment variable
 * GMBLOCK_BOOT_ID is used. -ENOENT: unknown. */
GMB_MUST_CHECK int disk_boot_id(uint8_t id[DISK_BOOT_ID_BYTES]);

/* --- properties from sysfs and the file system ------------------------------------------------ */

/* True if the file system is provided by another machine or by a user's program, so that a query of
 * the size or of a cached page may wait for it. Also true if this cannot be determined. The call
 * may block. */
bool disk_is_remote(int fd);

/* Properties of a block device that only sysfs has: queue limits, and how md and dm distribute data
 * over their members. A partition has the values of its device. Values that cannot be read stay
 * unknown (0 or false). */
struct disk_sysfs {
	bool rotational;
	bool zoned;		      /* host-managed */
	uint64_t zone_bytes;	      /* of a host-managed device */
	uint32_t active_zones_max;    /* 0 = no limit */
	bool discards;		      /* takes discard commands */
	uint64_t io_max;	      /* bytes in one command, 0 = unknown */
	uint64_t discard_granularity; /* bytes, 0 = unknown */
	uint32_t stripe_chunk;	      /* bytes, 0 = not striped */
	uint32_t stripe_members;      /* data members, 0 = not striped */
};

void disk_sysfs_read(dev_t device, struct disk_sysfs *facts);

/* True when the device has a write-zeroes command. */
bool disk_sysfs_write_zeroes(dev_t device);

/*
 * A reason for which reads from this device may write their memory more than once, or not by the
 * device itself: a clause for a message ("it is a RAID array, ..."). NULL: no reason found, the
 * device is a raw NVMe namespace on PCI or a virtio disk, or a partition of one. root: "/sys", or a
 * test's own folder.
 */
const char *disk_sysfs_marker_refusal(const char *root, dev_t device);
