// SPDX-License-Identifier: Apache-2.0
/*
 * System calls on files and block devices outside the ring: opening, geometry, holes, discarding
 * (disk/linux.c), zones (disk/zones.c), page-cache maps (disk/map.c), memory that outlives the
 * process (disk/shared.c) and sysfs (disk/sysfs.c). The simulation has its own versions of all but
 * the last (sim/disk_io.c, sim/zones.c, sim/map.c, sim/shared.c); they are selected at link time,
 * together with the simulated ring.
 *
 * Threading: any thread; the calls block. A reactor may call only disk_size() and the functions for
 * views of a map; the others are called at start or through ring_call(). Ownership: the caller owns
 * the descriptor. Errors: negative errno; functions with *error also fill it.
 */
#pragma once

#include <string.h>
#include <sys/types.h>

#include "base/compiler.h"
#include "base/error.h"

#define DISK_FORMAT_OVERLAY "gmblock overlay" /* docs/protocol/overlay.md */
#define DISK_FORMAT_FLASH   "gmblock flash"   /* docs/protocol/flash.md */

struct disk_info {
	uint64_t size;	      /* exact, in bytes; for a device: whole logical blocks */
	uint64_t identity[2]; /* device and inode (for a block device: 0 and its device number) */
	/* Identity of the file or device behind a loop device; zero if this is not a loop
	 * device. */
	uint64_t backing[2];
	uint64_t backing_at; /* offset in the backing file or device where the loop device begins */
	/* time of the last change of a file's contents, ns since 1970; 0 = unknown */
	int64_t changed_ns;
	int64_t born_ns; /* time of creation of the file (or node of the device), 0 = unknown */
	bool is_block;	 /* block device, else regular file */
	bool rotational; /* the disk is known to be a rotating one */
	bool read_only;	 /* the device itself refuses writes */
	/* host-managed zoned device: each zone can be written only at its write pointer */
	bool zoned;
	uint64_t zone_bytes; /* distance between the beginnings of two zones; 0: not zoned */
	/* maximum number of zones that are partly written; 0 = no limit */
	uint32_t active_zones_max;
	/* image format that the contents indicate, such as "qcow2"; NULL: none */
	const char *format;
	/* a page read into the cache during a direct write can remain there and be stale */
	bool keeps_stale;
	/* a write with RWF_DSYNC may complete before the data is durable */
	bool ignores_dsync;
	/* a file whose data is in memory (tmpfs), so that reads do not wait for a disk, except for
	 * the swap space */
	bool in_memory;
	bool has_holes;		      /* a file with less space allocated than its size */
	bool punches_holes;	      /* fallocate PUNCH_HOLE (files) or unmap (devices) may work */
	uint32_t direct_offset_align; /* O_DIRECT offset and length alignment; 0 = no O_DIRECT */
	uint32_t direct_memory_align; /* O_DIRECT alignment of memory addresses */
	/* O_DIRECT is known not to fall back to the page cache: it is a device, or its filesystem
	 * reports an alignment */
	bool direct_bypasses_cache;
	/* st_blksize or the physical block size: >= 512, a power of two */
	uint32_t block_preferred;
	uint64_t io_max;	      /* largest transfer in one command, 0 = unknown */
	uint64_t discard_granularity; /* bytes, 0 = unknown */
	/* striped disk (RAID 0): consecutive bytes on one member; 0 = not striped */
	uint32_t stripe_chunk;
	/* number of member disks that hold data, without parity and copies; 0 = not striped */
	uint32_t stripe_members;
};

enum disk_extent_kind { DISK_DATA, DISK_HOLE };

/* Opens path. direct adds O_DIRECT; read_only opens with O_RDONLY, otherwise O_RDWR. Only regular
 * files and block devices can be opened; for others, *error explains why not. */
GMB_MUST_CHECK int disk_open(
	const char *path, bool read_only, bool direct, int *fd_out, struct error *error);
/* Sets the error message of a failed open(), and returns -code. code: the positive errno. */
GMB_MUST_CHECK int disk_explain_open(
	const char *path, bool read_only, bool direct, int code, struct error *error);
void disk_close(int fd);

/* Returns whether the path is in the folder of devices, where a file that is created by mistake
 * uses memory until the machine restarts. */
static inline bool disk_path_is_device(const char *path)
{
	return strncmp(path, "/dev/", strlen("/dev/")) == 0 &&
	       strncmp(path, "/dev/shm/", strlen("/dev/shm/")) != 0;
}
/* Creates a file of this size that only its owner can access. It contains head, followed by a hole.
 * The operation is atomic and durable: the file appears complete or not at all. Returns -EEXIST if
 * path exists, and does not change it then. */
GMB_MUST_CHECK int disk_create(
	const char *path, uint64_t size, const void *head, size_t head_bytes, struct error *error);

/* Blocks until count bytes are transferred. Returns -EIO if the file ends earlier. */
GMB_MUST_CHECK int disk_read(int fd, void *bytes, size_t count, uint64_t offset);
GMB_MUST_CHECK int disk_write(int fd, const void *bytes, size_t count, uint64_t offset);
/* Makes all data of the file durable, even data written through other descriptors. */
GMB_MUST_CHECK int disk_sync(int fd);
/* Writes length bytes of the page cache to the disk and drops them, so that the next read gets what
 * the disk has. For disks without direct I/O, which bypasses the page cache. Does not flush the
 * disk's own cache, and ignores errors, which fd then does not report again. Advisory: pages that
 * another process maps or reads stay, and so do pages that are larger than the range. Blocks. */
void disk_drop_cache(int fd, uint64_t offset, uint64_t length);

/*
 * Claims the disk of fd for writing, so that no other claim succeeds: a block device exclusively
 * (O_EXCL, as mount, swap and RAID do), a regular file by a lock that other gmblock processes
 * respect. path: its name, which is opened again for the claim. The claim is a separate descriptor
 * that may only be passed to disk_close(). It must not be registered with a ring, which can keep a
 * file open after the process has ended. *claim_out is -1 if the filesystem has no locks. If the
 * disk is in use, retries for one second before it fails with -EBUSY. Two claims of one process
 * also conflict.
 */
GMB_MUST_CHECK int disk_claim(const char *path, int fd, int *claim_out, struct error *error);

/*
 * Marks the disk of fd as served for reading. path: its name, which is opened again for the mark.
 * The mark does not exclude other servers; disk_check_readers() detects it. A disk can have any
 * number of marks, also together with a claim for writing, and read permission is sufficient. The
 * mark is a descriptor, to be used like that of a claim; -1: the disk could not be marked.
 *
 * frozen: the mark of a file also prevents claims for writing. If such a claim already exists, the
 * call retries for one second like disk_claim() before it fails with -EBUSY.
 */
GMB_MUST_CHECK int disk_claim_reading(
	const char *path, int fd, bool frozen, int *claim_out, struct error *error);

/* Returns whether fd refers to a file that disk_claim_reading() has marked as frozen. */
bool disk_is_frozen(int fd);

/* Called before the contents of a disk are destroyed. Returns -EBUSY if any process, including this
 * one, still serves the disk for reading after one second; otherwise 0. */
GMB_MUST_CHECK int disk_check_readers(int fd);

/*
 * Marks the open file of fd as one through which a server writes. The mark is a lock that lasts
 * until the last operation on that open file has ended. If the process is killed, its claims end
 * immediately, but its direct writes in flight in an io_uring continue, and the mark remains until
 * they have completed. Any number of open files can be marked. For a block device, the marks are on
 * the device node through which it was opened. Returns 0, -EOPNOTSUPP if the filesystem has no such
 * locks, or another errno.
 */
GMB_MUST_CHECK int disk_mark_writer(int fd);
/* Returns -EBUSY if any process, including this one, has a marked open file of the disk, 0 if there
 * is none, or another errno if the filesystem cannot report marks. */
GMB_MUST_CHECK int disk_check_writers(int fd);
/* The same for a block device, whose node is the one that the kernel has named. Also returns the
 * errors of open(). */
GMB_MUST_CHECK int disk_check_writers_of(dev_t device);

/*
 * Marks the open file of fd as one through which this process reads or writes. Like the mark of a
 * writer, it lasts until the last operation has ended. But any number of processes can read a disk,
 * so disk_check_uses() also has to know whether the process of a mark exists: the process must have
 * a claim of the disk, for writing or reading, which ends with it. Returns 0, -EOPNOTSUPP if the
 * filesystem has no such locks or there is no claim, or another errno.
 */
GMB_MUST_CHECK int disk_mark_use(int fd);
/* Returns -EBUSY if a process that does not exist any more has a marked open file of the disk, 0 if
 * there is none, or another errno if the filesystem cannot report marks. */
GMB_MUST_CHECK int disk_check_uses(int fd);
/* Called for a claim for writing that another process has handed over. From now on, it is also a
 * claim of this process. */
void disk_adopt_claim(int claim);

/* Fills in *info. The alignments for direct I/O are exact if fd was opened with direct. Otherwise
 * they are reported by the system or guessed. */
GMB_MUST_CHECK int disk_info(int fd, struct disk_info *info);
GMB_MUST_CHECK int disk_size(int fd, uint64_t *size);

/* Returns the number of free bytes in a file's filesystem; UINT64_MAX: unknown. */
uint64_t disk_room(int fd);

/* Disables readahead for this descriptor. Failure is ignored. */
void disk_set_random(int fd);

/* Stores the kind of the extent at offset, and its length, at most limit. Returns -ENXIO if the
 * file ends at or before offset. */
GMB_MUST_CHECK int disk_extent(
	int fd, uint64_t offset, uint64_t limit, enum disk_extent_kind *kind, uint64_t *length);

/* Discards a range; its contents are then undefined. Returns -EOPNOTSUPP if discarding is not
 * supported. */
GMB_MUST_CHECK int disk_discard(int fd, bool is_block, uint64_t offset, uint64_t length);

/* Makes the range read as zeroes. may_unmap: its space may be freed; otherwise the range is
 * allocated afterwards. fast: returns -EOPNOTSUPP if zeroes would have to be written. */
GMB_MUST_CHECK int disk_zero(
	int fd, bool is_block, uint64_t offset, uint64_t length, bool may_unmap, bool fast);

/* --- zones ------------------------------------------------------------------------------------ */

enum disk_zone_state {
	DISK_ZONE_EMPTY,
	DISK_ZONE_ACTIVE, /* partly written, or open */
	/* full or finished; sectors that were not written have undefined contents */
	DISK_ZONE_FULL,
	DISK_ZONE_BROKEN, /* no longer writable, perhaps not readable */
	DISK_ZONE_CONVENTIONAL,
};

/* A zone of a host-managed device, in bytes. Only the written part may be read. */
struct disk_zone {
	uint64_t offset;
	uint64_t capacity; /* writable bytes; can be less than the distance to the next zone */
	uint64_t written;
	enum disk_zone_state state;
};

/* Reports the zones, starting with the one at offset. Returns their number, which is less than
 * zones_max at the end of the device. */
GMB_MUST_CHECK int disk_zones(int fd, uint64_t offset, struct disk_zone *zones, uint32_t zones_max);
/* Resets whole zones to the empty state. fd: the descriptor from disk_claim(), as for a discard. */
GMB_MUST_CHECK int disk_zones_reset(int fd, uint64_t offset, uint64_t length);
/* Finishes a zone: it becomes full and is no longer active. */
GMB_MUST_CHECK int disk_zone_finish(int fd, uint64_t offset, uint64_t length);

/* --- copies between files -------------------------------------------------------------------- */

/* Makes a range of fd share the blocks of a range of source_fd, which may be the same file. A later
 * write to one range does not change the other. Returns -EOPNOTSUPP if the file system cannot do
 * this, or -EXDEV if it cannot for these files or offsets. */
GMB_MUST_CHECK int disk_clone(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);
/* Copies between two files in the kernel. Returns the number of bytes copied, which can be less
 * than length and is 0 at the end of the source, or -EOPNOTSUPP or -EXDEV as disk_clone(). length
 * <= 1 GiB. */
GMB_MUST_CHECK int disk_copy(
	int source_fd, uint64_t source_offset, int fd, uint64_t offset, uint64_t length);

/* --- the page cache as memory ---------------------------------------------------------------- */

/*
 * Shows which data of a file or block device is in the page cache, so that only such data is sent
 * from there (ring_sendfile_now()). The map uses address space, but neither memory nor page tables:
 * nothing reads the mapping. Any thread, also concurrently. The descriptor must stay open.
 */
struct disk_map;

/* Maps the first size bytes (> 0). This reserves only address space. Returns -EPERM if the kernel
 * does not report which pages are cached, because the user neither owns the file nor may write to
 * it; -EOPNOTSUPP if the file is on a network file system or FUSE; -ESTALE if it is on overlayfs,
 * which can replace the file by a copy; -EINVAL if sendfile() would wait for writes to the file
 * (XFS, unless fd is open for reading only) or is not supported. */
GMB_MUST_CHECK int disk_map_create(int fd, uint64_t size, struct disk_map **map_out);
/* NULL is a no-op. */
void disk_map_destroy(struct disk_map *map);

/* Returns whether all these bytes are in the page cache now. length > 0. False beyond the map. Does
 * not wait for the disk. The file may be shorter than the map. */
bool disk_map_has(const struct disk_map *map, uint64_t offset, uint64_t length);

/* Copies a few bytes from the page cache. Returns false if the disk fails, if the file ends before
 * these bytes, or if the read would have to wait. */
bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count);

/* --- memory that outlives the process -------------------------------------------------------- */

/*
 * A mapped file in a tmpfs. Its contents survive when the process is killed, but not when the
 * machine fails. All pages are allocated when the size is set, so that writing them never fails for
 * lack of space. The next process that opens the file sees all writes to the memory, in their
 * order.
 */
struct disk_shared {
	uint8_t *bytes; /* NULL if the file is empty */
	uint64_t size;

	/* Private members. */
	int fd;
	char *path;
};

/* Checks whether shared files (struct disk_shared) can be created and opened in a folder. Returns
 * -ENOTSUP if the folder is not on a tmpfs, or an errno of access() such as -ENOENT or -EACCES, and
 * sets *error. */
GMB_MUST_CHECK int disk_shared_look(const char *folder, struct error *error);
enum {
	DISK_SHARED_CREATE = 1U << 0, /* create an empty file; -EEXIST if it exists */
	DISK_SHARED_WAIT = 1U << 1,   /* wait for one second if another process uses the file */
	/* open only for reading; other processes can also open it for reading */
	DISK_SHARED_READ = 1U << 2,
};
/* Opens the file, or creates one that only its owner can access, and claims it until it is closed.
 * -EBUSY: another process has claimed it. -EAGAIN: other processes only read it. -ENOENT: it does
 * not exist. -EPERM: other users can access it, or it has several names. -ENOTSUP: it is not on a
 * tmpfs. -ELOOP: it is a symbolic link. Sets *error on failure. The contents are untrusted, because
 * any process of this user can write them. */
GMB_MUST_CHECK int disk_shared_open(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error);
/* Reads the file's size and its first bytes, padded with zeroes, without a claim: another process
 * may be using it. Errors as for disk_shared_open(). */
GMB_MUST_CHECK int disk_shared_peek(
	const char *path, void *bytes, size_t count, uint64_t *size_out, struct error *error);
/* Calls found() for each file in the folder whose name begins with prefix. found() may remove the
 * file. */
void disk_shared_list(const char *folder, const char *prefix,
	void (*found)(void *context, const char *path), void *context);
/* Sets the size of the file, all of whose bytes are zero afterwards. -ENOSPC: the tmpfs is full;
 * the file is then empty. */
GMB_MUST_CHECK int disk_shared_resize(
	struct disk_shared *shared, uint64_t size, struct error *error);
/* Closes the file. remove: also deletes it. No-op if the struct is zeroed. */
void disk_shared_close(struct disk_shared *shared, bool remove);

enum { DISK_BOOT_ID_BYTES = 16 };
/* Stores the kernel's identifier of this boot. If the sandbox hides the kernel's file, uses the
 * environment variable GMBLOCK_BOOT_ID. -ENOENT: unknown. */
GMB_MUST_CHECK int disk_boot_id(uint8_t id[DISK_BOOT_ID_BYTES]);

/* --- properties from sysfs and the file system ------------------------------------------------ */

/* Returns whether the file system is provided by another machine or by a user's program, so that
 * querying the size or a cached page may block. Returns true if this cannot be determined. May
 * block. */
bool disk_is_remote(int fd);

/* Properties of a block device that are available only in sysfs: queue limits, and how md and dm
 * distribute data over their members. A partition has the values of its device. Values that cannot
 * be read are 0 or false. */
struct disk_sysfs {
	bool rotational;
	bool zoned;		      /* host-managed zoned device */
	uint64_t zone_bytes;	      /* distance between the beginnings of two zones, if zoned */
	uint32_t active_zones_max;    /* 0 = no limit */
	bool discards;		      /* takes discard commands */
	uint64_t io_max;	      /* largest transfer in one command, bytes; 0 = unknown */
	uint64_t discard_granularity; /* bytes, 0 = unknown */
	/* striped disk (RAID 0): consecutive bytes on one member; 0 = not striped */
	uint32_t stripe_chunk;
	/* members that hold data, without parity and copies; 0 = not striped */
	uint32_t stripe_members;
};

void disk_sysfs_read(dev_t device, struct disk_sysfs *facts);

enum { DISK_WWID_BYTES = 256 };
/*
 * Stores the name by which a device is known on every machine that has it: the worldwide unique
 * name of a SCSI or NVMe disk (naa, eui or uuid), that of the disk below dm-multipath, the UUID of
 * another dm device such as a logical volume, or of an md array. Returns -ENODATA if there is none;
 * a serial number is not sufficient. root: "/sys", or another folder in tests.
 */
GMB_MUST_CHECK int disk_sysfs_wwid(const char *root, dev_t device, char text[DISK_WWID_BYTES]);

enum { DISK_MEMBERS_MAX = 1024 };
/* The disks on which a device is stored, or the devices that are stored on a disk. */
struct disk_members {
	dev_t disks[DISK_MEMBERS_MAX]; /* different devices */
	uint32_t count;
	bool is_multipath; /* at least one of them is a device of dm-multipath */
};
/*
 * Finds the disks below a device-mapper device, such as a logical volume, at any depth: disks, also
 * of dm-multipath, md arrays, and other devices that are not device-mapper devices. Every other
 * device is its own only member. Returns -E2BIG if there are more than DISK_MEMBERS_MAX, or -EIO if
 * sysfs cannot be read. root: as above.
 */
GMB_MUST_CHECK int disk_sysfs_members(const char *root, dev_t device, struct disk_members *out);
/* Finds the devices that are stored on a disk, in part or as a whole: the disk, its partitions, and
 * the volumes and arrays on these, at any depth. Errors and root: as above. */
GMB_MUST_CHECK int disk_sysfs_sharers(const char *root, dev_t disk, struct disk_members *out);
/* Returns whether the device is a partition of another one. */
bool disk_sysfs_is_partition(const char *root, dev_t device);
/* Returns whether the device reports a cache that loses its contents without power. True if this is
 * unknown. */
bool disk_sysfs_has_volatile_cache(const char *root, dev_t device);

/* Returns whether the device has a write-zeroes command. */
bool disk_sysfs_write_zeroes(dev_t device);
