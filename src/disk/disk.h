// SPDX-License-Identifier: Apache-2.0
/*
 * What is asked of the operating system about a file or block device outside the ring: opening,
 * geometry, holes, discarding (disk/linux.c), zones (disk/zones.c), page-cache maps (disk/map.c),
 * memory that outlives the process (disk/shared.c) and sysfs (disk/sysfs.c). The simulation has its
 * own version of all but the last (sim/disk_io.c, sim/zones.c, sim/map.c, sim/shared.c), which is
 * chosen together with the ring at link time.
 *
 * Threading: any thread; the calls block. Inside a reactor only disk_size() and views of a map may
 * be used directly; the others run at start or through ring_call().
 * Ownership: the descriptor is the caller's. Errors: negative errno; open fills *error.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"
#include "base/error.h"

#define DISK_FORMAT_OVERLAY "gmblock overlay" /* docs/protocol/overlay.md */
#define DISK_FORMAT_FLASH   "gmblock flash"   /* docs/protocol/flash.md */

struct disk_info {
	uint64_t size;	      /* bytes, exactly; of a device: in whole logical blocks */
	uint64_t identity[2]; /* device and inode (for a block device: 0 and its device number) */
	uint64_t backing[2];  /* identity of what a loop device is made of; zeroes: it is none */
	uint64_t backing_at;  /* and where in that the device begins */
	int64_t changed_ns;   /* when a file's contents last changed, since 1970; 0 = unknown */
	bool is_block;	      /* block device, else regular file */
	bool rotational;      /* known to rotate */
	bool read_only;	      /* the device itself refuses writes */
	bool zoned; /* a host-managed zoned device: writes only where a zone's pointer is */
	uint64_t zone_bytes;	   /* of a zoned device, from zone to zone; else 0 */
	uint32_t active_zones_max; /* zones that may have something and room, 0 = no limit */
	const char *format; /* a file that begins as "qcow2" images do, and the like; or NULL */
	bool keeps_stale;   /* a page that is read in during a direct write may stay, outdated */
	bool ignores_dsync; /* a write with RWF_DSYNC may not be durable when it is done */
	bool has_holes;	    /* a file that has less space than its size */
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

/* Opens path; direct adds O_DIRECT, read_only opens O_RDONLY (else O_RDWR). Refuses anything that
 * is not a regular file or a block device, with a sentence for the user. */
GMB_MUST_CHECK int disk_open(
	const char *path, bool read_only, bool direct, int *fd_out, struct error *error);
void disk_close(int fd);

/* Makes a file of so many bytes, the first of which are head and the rest a hole, for its owner
 * alone. It is there, and durable, as a whole or not at all. -EEXIST: path is taken; it stays as it
 * was. */
GMB_MUST_CHECK int disk_create(
	const char *path, uint64_t size, const void *head, size_t head_bytes, struct error *error);

/* All of the bytes, blocking. -EIO: the file ends before. */
GMB_MUST_CHECK int disk_read(int fd, void *bytes, size_t count, uint64_t offset);
GMB_MUST_CHECK int disk_write(int fd, const void *bytes, size_t count, uint64_t offset);
/* Makes what was written through any descriptor durable. */
GMB_MUST_CHECK int disk_sync(int fd);

/*
 * Claims the disk that fd was opened on for writing, under the name path, so that no other claim
 * succeeds: a block device exclusively (O_EXCL, as mounting, swap and RAID do), a regular
 * file by a lock that other processes of this program respect. The claim is a descriptor of its
 * own: give it to disk_close() and to nothing else, as a ring keeps files open after the process
 * is gone. -1: there is nothing to hold (a filesystem without locks). A disk in use is tried again
 * for a second before that is -EBUSY. A claim conflicts with another one of the same process.
 */
GMB_MUST_CHECK int disk_claim(const char *path, int fd, int *claim_out, struct error *error);

/*
 * Marks the disk that fd was opened on as served for reading, under the name path. The mark
 * excludes no server, of either kind: it is for disk_check_readers(). Any number of them may be
 * held, also beside a claim for writing; permission to read is enough. The descriptor is as that of
 * disk_claim(); -1: there is nothing to hold. Never waits.
 * frozen: no claim for writing a file succeeds as long as the mark is held, and it waits for one as
 * disk_claim() does, before that is -EBUSY.
 */
GMB_MUST_CHECK int disk_claim_reading(
	const char *path, int fd, bool frozen, int *claim_out, struct error *error);

/* Whether fd was opened on a file that disk_claim_reading() has marked as frozen. */
bool disk_is_frozen(int fd);

/* Called before the disk's content is destroyed: -EBUSY when it is still served for reading after a
 * second, by any process including this one; else 0. */
GMB_MUST_CHECK int disk_check_readers(int fd);

/*
 * Marks the open file of fd as one through which a server writes. The mark is a lock that ends with
 * the last operation on that open file: direct writes of an io_uring go on after their process was
 * killed, and so does the mark, while every claim of that process is free. Any number of open files
 * can be marked. Of a block device the marks are on the node it was opened by. -EOPNOTSUPP: there
 * are no such locks here; or another errno.
 */
GMB_MUST_CHECK int disk_mark_writer(int fd);
/* -EBUSY: an open file of the disk is marked, of whatever process, this one included; 0: none is;
 * another errno: this cannot be known here. */
GMB_MUST_CHECK int disk_check_writers(int fd);

/* Direct alignments are exact on a descriptor opened with direct, else what the system says or a
 * guess. */
GMB_MUST_CHECK int disk_info(int fd, struct disk_info *info);
GMB_MUST_CHECK int disk_size(int fd, uint64_t *size);

/* NULL when a read's memory is written by the device itself, each byte once, as far as anybody can
 * tell; else a clause that says why not ("it is a file, ..."). A file never gets NULL. */
const char *disk_marker_refusal(int fd);

/* Bytes that the filesystem of a file still has; UINT64_MAX: nobody knows. */
uint64_t disk_room(int fd);

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

/* --- zones ------------------------------------------------------------------------------------ */

enum disk_zone_state {
	DISK_ZONE_EMPTY,
	DISK_ZONE_ACTIVE, /* has something, and room; or is open */
	DISK_ZONE_FULL,	  /* or finished: what was not written reads as anything */
	DISK_ZONE_BROKEN, /* cannot be written any more, perhaps not read */
	DISK_ZONE_CONVENTIONAL,
};

/* A zone of a host-managed device. Bytes. Only what is written may be read. */
struct disk_zone {
	uint64_t offset;
	uint64_t capacity; /* that can be written; up to the next zone there may be nothing */
	uint64_t written;
	enum disk_zone_state state;
};

/* What the device says of the zones from the one that begins at offset on. Returns how many, fewer
 * than zones_max at the end of the device. */
GMB_MUST_CHECK int disk_zones(int fd, uint64_t offset, struct disk_zone *zones, uint32_t zones_max);
/* Empties whole zones. fd is that of the claim, as for a discard. */
GMB_MUST_CHECK int disk_zones_reset(int fd, uint64_t offset, uint64_t length);
/* Nothing more will be written to the zone: it is full, and not active. */
GMB_MUST_CHECK int disk_zone_finish(int fd, uint64_t offset, uint64_t length);

/* --- copies between files -------------------------------------------------------------------- */

/* The range of a file shares the blocks of a range of another, or of itself, until one of them is
 * written. -EOPNOTSUPP: the file system cannot do that; -EXDEV: not with these files, or not in
 * that place. */
GMB_MUST_CHECK int disk_clone(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);
/* Has the kernel copy between two files. Returns the bytes copied, fewer than length perhaps; 0:
 * the source ends there. -EOPNOTSUPP as above. length <= 1 GiB. */
GMB_MUST_CHECK int disk_copy(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);

/* --- the page cache as memory ---------------------------------------------------------------- */

/*
 * Maps the page cache of a file or block device, so that data can be sent without a copy.
 *
 * Only the kernel may read this memory, as the source of a system call: if the file was truncated
 * meanwhile, or the disk fails, a system call returns -EFAULT (or a short count, and -EFAULT the
 * next time), but a program that reads the memory itself is killed. The memory holds what a read at
 * the same moment would return: a concurrent write is seen in whole or in part. (The rest of the
 * last page of a truncated file is zeroes.)
 *
 * Beside address space a map costs 2 MiB of page tables per GiB used recently, about 32 MiB at most
 * for all maps of the process.
 *
 * Views may be used by any thread, also concurrently. The descriptor must stay open.
 */
struct disk_map;

/* Maps the first size bytes (> 0); reserves address space only. -EPERM: the kernel does not say
 * which pages are cached, because the user neither owns the file nor may write to it. -EOPNOTSUPP:
 * the file is on a network file system or in FUSE. -ESTALE: it was opened for reading on an
 * overlay, where another file can take its place. */
GMB_MUST_CHECK int disk_map_create(int fd, uint64_t size, struct disk_map **map_out);
/* No view may be in use any more. NULL is a no-op. */
void disk_map_destroy(struct disk_map *map);

/* The address of these bytes, valid until the map is destroyed, or NULL: not all of them are in the
 * page cache now, or they lie beyond the map. The caller checks that the file still has them.
 * length > 0. Does not wait for the disk. Bytes that are evicted from the cache later are read
 * again by the system call that uses them, which then waits. */
const void *disk_map_view(struct disk_map *map, uint64_t offset, uint64_t length);

/* True when the page with this byte is in the page cache now. False also beyond the map. */
bool disk_map_has(const struct disk_map *map, uint64_t offset);

/* Copies a few bytes of a view that was just taken. False: the disk has failed, or ends before
 * them, or reading them would have to wait. */
bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count);

/* --- memory that outlives the process -------------------------------------------------------- */

/*
 * A file of a tmpfs, mapped: what is written to it is there when the process was killed, and gone
 * when the machine was. Pages are there from the beginning, so that writing them takes no space
 * later. Stores to it are seen in their order by who opens it next.
 */
struct disk_shared {
	uint8_t *bytes; /* NULL: the file is empty */
	uint64_t size;

	/* Private. */
	int fd;
	char *path;
};

/* Whether files of this kind can be made in a folder, and found there: -ENOTSUP: it is not on a
 * tmpfs. -ENOENT, -ENOTDIR, -EACCES, -EROFS and others: what access() says. With a sentence. */
GMB_MUST_CHECK int disk_shared_look(const char *folder, struct error *error);
enum {
	DISK_SHARED_CREATE = 1U << 0, /* a new, empty one; -EEXIST: there is one */
	DISK_SHARED_WAIT = 1U << 1,   /* a second for who has the file, and may be about to end */
	DISK_SHARED_READ = 1U << 2,   /* nothing is changed; others may do the same */
};
/* Opens the file, or makes one for its owner alone, and claims it until it is closed. -EBUSY:
 * another process has it. -EAGAIN: others only read it. -ENOENT: there is none. -EPERM: it is not a
 * file that this user alone can use and that has one name. -ENOTSUP: it is not on a tmpfs. -ELOOP:
 * it is a symbolic link. All with a sentence. Its contents may be anybody's who runs as this user.
 */
GMB_MUST_CHECK int disk_shared_open(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error);
/* The first bytes, zeroes behind the end, and the size, without a claim: of a file that another
 * process has as well. Else as disk_shared_open(). */
GMB_MUST_CHECK int disk_shared_peek(
	const char *path, void *bytes, size_t count, uint64_t *size_out, struct error *error);
/* Calls found for each file of the folder whose name begins with prefix. found may remove it. */
void disk_shared_list(const char *folder, const char *prefix,
	void (*found)(void *context, const char *path), void *context);
/* The file gets that size, and zeroes. -ENOSPC: the tmpfs has no room; the file is empty then. */
GMB_MUST_CHECK int disk_shared_resize(
	struct disk_shared *shared, uint64_t size, struct error *error);
/* remove: the file is no longer needed. A struct of zeroes is a no-op. */
void disk_shared_close(struct disk_shared *shared, bool remove);

enum { DISK_BOOT_ID_BYTES = 16 };
/* What the kernel calls this run of the machine. Where its file is hidden, the environment variable
 * GMBLOCK_BOOT_ID tells. -ENOENT: it cannot be known. */
GMB_MUST_CHECK int disk_boot_id(uint8_t id[DISK_BOOT_ID_BYTES]);

/* --- what sysfs and the file system say ------------------------------------------------------- */

/* True when another machine or a user's program provides the file system: there asking for the size
 * or a cached page may need an answer from outside. True also when that cannot be found out. The
 * call may block. */
bool disk_is_remote(int fd);

/* What only sysfs says about a block device: queue limits and how md and dm lay data over their
 * members. The values of a partition are those of the device it is on; what cannot be read stays at
 * its unknown value (0 or false). */
struct disk_sysfs {
	bool rotational;
	bool zoned;		      /* host-managed */
	uint64_t zone_bytes;	      /* of a host-managed one */
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
 * Why a read of this device may write its memory more than once, or by another hand than the
 * device's own: a clause for a message ("it is a RAID array, ..."). NULL: nothing says so, it is a
 * raw NVMe namespace on PCI or a virtio disk, or a partition of one. root: "/sys", or a test's own.
 */
const char *disk_sysfs_marker_refusal(const char *root, dev_t device);
