// SPDX-License-Identifier: Apache-2.0
/*
 * A file's or block device's part of the page cache as memory, for data that is sent from where it
 * lies. Has a Linux version (disk/map.c) and a simulated one (sim/map.c), as disk.h.
 *
 * Only the kernel may look at this memory, as the source of a system call: where the file has been
 * cut meanwhile, or the disk fails, a system call returns -EFAULT (or a short count, and -EFAULT
 * the next time), but a program that looks by itself is killed. What is there is what a read at
 * that moment would find: a write that comes in between is seen, in whole or in part. (But for the
 * rest of the last page of a file that was cut, which is zeroes.)
 *
 * The cost beside address space: 2 MiB of page tables for each GiB looked at lately, about 32 MiB
 * at most for all maps of the process.
 *
 * Threading: views are for any thread, also at the same time; create and destroy as open and close.
 * Ownership: the descriptor is the caller's and must stay open. Errors: negative errno.
 */
#pragma once

#include "base/compiler.h"

struct disk_map;

/* Of the first size bytes (> 0). Reserves address space only. -EPERM: the kernel does not tell this
 * user what is in the page cache (a file of somebody else's, which may only be read). -EOPNOTSUPP:
 * the file is on a network file system or in FUSE, where nothing is known without asking. -ESTALE:
 * it was opened for reading on an overlay, where another file can take its place. */
GMB_MUST_CHECK int disk_map_create(int fd, uint64_t size, struct disk_map **map_out);
/* Nobody uses a view any more. NULL is a no-op. */
void disk_map_destroy(struct disk_map *map);

/* Where these bytes are, until the map is destroyed, or NULL: not all of them are in the page cache
 * now, or they lie beyond the map. Whether the file still has them is for the caller to ask. length
 * > 0. Does not wait for the disk. Bytes that are thrown out of the cache later are read again by
 * whoever looks at them, which then waits. */
const void *disk_map_view(struct disk_map *map, uint64_t offset, uint64_t length);

/* Copies a few bytes of a view that was just got. False: the disk has failed, or ends before, or
 * one would have to wait. */
bool disk_map_peek(struct disk_map *map, uint64_t offset, void *bytes, size_t count);
