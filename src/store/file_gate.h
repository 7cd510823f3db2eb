// SPDX-License-Identifier: Apache-2.0
/*
 * What all stores of a process that are open on one file share: a gate that keeps writes through
 * the page cache and writes around it apart, the claim against other processes, the barrier against
 * operations of a server that has ended, and the verdict of failed flushes.
 *
 * Why a gate: a buffered write of half a page reads the page, changes it and writes all of it back
 * later. A direct write to the other half in between would be undone. And on a block device and in
 * FUSE, a page that is read in while an asynchronous direct write is on its way stays in the cache,
 * stale: the kernel invalidates before such a write, not after it. So two classes exclude each
 * other:
 *
 *   DIRECT    aligned writes around the cache           one atomic addition, no lock
 *   BUFFERED  unaligned writes of a direct writer;      under a lock
 *             while there is a direct writer: every buffered write, and every buffered read where
 *             pages may stay stale
 *
 * Members of one class run together. Both classes get their turn: when one waits, newcomers of the
 * other queue behind it. Direct reads need no gate: the kernel writes dirty pages back first. Trim
 * and zero of whole blocks need none: the kernel orders them itself.
 *
 * The same holds for the claim (disk_claim()): the process claims a disk once, however many of its
 * stores write it, and lets go when the last of them closes. What stays out of reach: a program
 * that claims nothing, and reading a partition beside its whole disk.
 *
 * The claim of a server that was killed is free at once, its direct writes go on. So each store
 * that writes marks its descriptors (disk_mark_writer()), and who claims the disk next finds the
 * marks for as long as an operation is under way: until then the barrier is closed, and no store of
 * the file may be given a part. Stores mark theirs when it is open.
 *
 * Threading: any reactor; get, put, join and leave where stores are opened and closed. All stores
 * of one file should be open before the first part is submitted: what is in flight while the first
 * direct writer joins is not covered.
 * Ownership: counted; the last put frees. Errors: -ENOMEM from get, those of disk_claim() from
 * claim; the rest cannot fail.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "store/store.h"

struct store_part;
struct file_gate;

enum file_gate_class { FILE_GATE_NONE, FILE_GATE_DIRECT, FILE_GATE_BUFFERED };

/* A store's entry. */
struct file_gate_member {
	struct list_node node;
	const char *path; /* for messages */
	int fd;		  /* the buffered descriptor */
	int direct_fd;	  /* or -1 */
	bool writes;	  /* and has claimed */
	bool keeps_stale; /* as in struct disk_info */
	bool writes_direct;
};

/* A queue's mailbox: parts that were let in are carried to their ring here. */
struct file_gate_port {
	struct ring *ring;
	struct file_gate *gate;
	struct ring_message message;
	struct list_node granted; /* under the gate's lock, as is posted */
	bool posted;
};

/* The gate of the file with this identity; made on first need. */
GMB_MUST_CHECK int file_gate_get(const uint64_t identity[2], struct file_gate **gate_out);
void file_gate_put(struct file_gate *gate);

/* For each store that writes: path and fd are its own. Blocks while the disk is in use elsewhere,
 * as disk_claim() does. Each success is undone by one unclaim. sole: until then there is no other
 * claim, or -EBUSY. */
GMB_MUST_CHECK int file_gate_claim(
	struct file_gate *gate, const char *path, int fd, bool sole, struct error *error);
void file_gate_unclaim(struct file_gate *gate);
/* The descriptor that holds the claim, or -1. While a block device is claimed, the kernel lets only
 * this one discard or zero: both throw pages of the device's cache away. Any thread, between claim
 * and unclaim of its own. */
int file_gate_claim_fd(const struct file_gate *gate);

/* See store_barrier(). look: asks again whether a closed barrier is open, which may block. Any
 * thread. */
enum store_barrier file_gate_barrier(struct file_gate *gate, bool look);

void file_gate_join(struct file_gate *gate, struct file_gate_member *member);
void file_gate_leave_member(struct file_gate *gate, struct file_gate_member *member);
bool file_gate_has_direct_writers(const struct file_gate *gate);

void file_gate_port_init(struct file_gate_port *port, struct file_gate *gate, struct ring *ring);

/* True: the part is inside. False: it waits; file_resume() is called on its ring when it is. */
bool file_gate_enter(struct file_gate *gate, struct store_part *part, enum file_gate_class class);
/* No-op when the part is not inside. */
void file_gate_leave(struct file_gate *gate, struct store_part *part);

/* The first error that a flush or a durable write gave since the file was opened, or 0. */
int file_gate_error(const struct file_gate *gate);
void file_gate_fail(struct file_gate *gate, int error);
