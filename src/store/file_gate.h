// SPDX-License-Identifier: Apache-2.0
/*
 * State shared by all stores of a process that are open on one file: a gate that keeps writes
 * through the page cache and writes around it apart, the claim against other processes, the barrier
 * against operations of a server that has ended, and the error of a failed flush.
 *
 * Why a gate: a buffered write of half a page reads the page, changes it and writes all of it back
 * later. A direct write to the other half in between would be undone. In addition, on a block
 * device and in FUSE, a page that is read in while an asynchronous direct write is in flight stays
 * in the cache, stale, because the kernel invalidates before such a write, not after it. So two
 * classes exclude each other:
 *
 *   DIRECT    aligned writes around the cache           one atomic addition, no lock
 *   BUFFERED  unaligned writes of a direct writer;      under a lock
 *             while there is a direct writer: every buffered write, and every buffered read where
 *             pages may stay stale
 *
 * Members of one class run together. The gate is fair: when one class waits, newcomers of the other
 * class queue behind it. Direct reads need no gate, because the kernel writes dirty pages back
 * first. Trim and zero of whole blocks need none, because the kernel orders them itself.
 *
 * The claim (disk_claim()) is also shared: the process claims a disk once, however many of its
 * stores write it, and releases it when the last writing store closes. It does not protect against
 * programs that use no claims, nor against reading a partition while its whole disk is written.
 *
 * The claim of a killed server is free immediately, but its direct writes continue. So each store
 * that writes marks its descriptors (disk_mark_writer()). The next process to claim the disk finds
 * the marks for as long as an operation is in flight; until then the barrier is closed, and no
 * store of the file may be given a part. Stores set their own marks once the barrier is open.
 *
 * Threading: any reactor. get, put, join and leave are called where stores are opened and closed.
 * All stores of one file should be open before the first part is submitted, because parts in flight
 * while the first direct writer joins are not covered. Ownership: reference counted; the last put
 * frees. Errors: -ENOMEM from get, those of disk_claim() from claim; the other functions cannot
 * fail.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "store/store.h"

struct store_part;
struct file_gate;

enum file_gate_class { FILE_GATE_NONE, FILE_GATE_DIRECT, FILE_GATE_BUFFERED };

/* Entry of a store in the gate. */
struct file_gate_member {
	struct list_node node;
	const char *path; /* for messages */
	int fd;		  /* the buffered descriptor */
	int direct_fd;	  /* or -1 */
	bool writes;	  /* and has claimed the disk */
	bool keeps_stale; /* as in struct disk_info */
	bool writes_direct;
};

/* Mailbox of a queue: carries parts that were admitted to their ring. */
struct file_gate_port {
	struct ring *ring;
	struct file_gate *gate;
	struct ring_message message;
	struct list_node granted; /* under the gate's lock, as is posted */
	bool posted;
};

/* Returns a reference to the gate of the file with this identity; creates it if needed. */
GMB_MUST_CHECK int file_gate_get(const uint64_t identity[2], struct file_gate **gate_out);
void file_gate_put(struct file_gate *gate);

/* Called by each store that writes, with its own path and fd. Blocks while another process uses the
 * disk, as disk_claim() does. Each success is undone by one unclaim. sole: no other claim of this
 * process may exist until then; -EBUSY if one does. */
GMB_MUST_CHECK int file_gate_claim(
	struct file_gate *gate, const char *path, int fd, bool sole, struct error *error);
void file_gate_unclaim(struct file_gate *gate);
/* The descriptor that holds the claim, or -1. While a block device is claimed, the kernel accepts
 * discard and zero only through this descriptor, because both drop pages of the device's cache. Any
 * thread, between the caller's own claim and unclaim. */
int file_gate_claim_fd(const struct file_gate *gate);

/* See store_barrier(). look: check again whether a closed barrier is open, which may block. Any
 * thread. */
enum store_barrier file_gate_barrier(struct file_gate *gate, bool look);

void file_gate_join(struct file_gate *gate, struct file_gate_member *member);
void file_gate_leave_member(struct file_gate *gate, struct file_gate_member *member);
bool file_gate_has_direct_writers(const struct file_gate *gate);

void file_gate_port_init(struct file_gate_port *port, struct file_gate *gate, struct ring *ring);

/* True: the part is inside. False: it waits, and file_resume() is called on its ring once it is
 * inside. */
bool file_gate_enter(struct file_gate *gate, struct store_part *part, enum file_gate_class class);
/* No-op when the part is not inside. */
void file_gate_leave(struct file_gate *gate, struct store_part *part);

/* The first error of a flush or a durable write since the file was opened, or 0. */
int file_gate_error(const struct file_gate *gate);
void file_gate_fail(struct file_gate *gate, int error);
