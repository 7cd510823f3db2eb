// SPDX-License-Identifier: Apache-2.0
/*
 * State shared by all stores of a process that have the same file open: a gate that prevents
 * buffered writes and direct writes at the same time, the claim that excludes other processes, the
 * barrier that waits for the operations of a server that was killed, and the error of a failed
 * flush.
 *
 * The gate is needed because a buffered write of half a page reads the page, changes it and writes
 * all of it back later. A direct write to the other half that is made in between would be undone.
 * In addition, on block devices and FUSE, a page that is read into the cache while an asynchronous
 * direct write is in flight stays there and becomes stale, because the kernel invalidates pages
 * before such a write, but not after it. So two classes exclude each other:
 *
 *   DIRECT    direct writes                             one atomic addition, no lock
 *   BUFFERED  unaligned writes of a direct writer;      under a lock
 *             while there is a direct writer: every buffered write, and every buffered read where
 *             pages may stay stale
 *
 * Parts of one class can be inside at the same time. The gate is fair: if parts of one class wait,
 * later parts of the other class wait behind them. Direct reads need no gate, because the kernel
 * writes dirty pages back first. Trim and zero of whole blocks need no gate, because the kernel
 * orders them.
 *
 * All stores of a process that write the disk share one claim (disk_claim()). The first store
 * claims the disk, and closing the last store releases the claim. The claim does not protect
 * against programs without claims, or against writing a whole disk while one of its partitions is
 * read.
 *
 * When a server is killed, its claim ends immediately, but its direct I/O continues: a write can
 * still reach the disk, and a read can still reach memory that the server shared with its client.
 * So each store marks its descriptors (disk_mark_use(), disk_mark_writer()), and a mark remains
 * until the last operation has ended. While the next process that opens the disk finds marks of a
 * process that has exited, its barrier is closed, and no part may be submitted to its stores of
 * this file. A writer's mark does not tell whether its process exists, so a store sets its own when
 * the barrier opens.
 *
 * Threading: any thread. get, put, join and leave are called when stores are opened and closed. All
 * stores of one file should be open before the first part is submitted: buffered parts in flight
 * when the first direct writer joins are not in the gate. Ownership: reference counted; the last
 * put frees. Errors: -ENOMEM from get, the errors of disk_claim() from claim; the other functions
 * cannot fail.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "store/store.h"

struct store_part;
struct file_gate;

enum file_gate_class { FILE_GATE_NONE, FILE_GATE_DIRECT, FILE_GATE_BUFFERED };

/* Entry of a store in the gate's list of stores. */
struct file_gate_member {
	struct list_node node;
	const char *path; /* path for messages */
	int fd;		  /* the descriptor for buffered I/O */
	int direct_fd;	  /* -1: none */
	bool writes;	  /* the store writes, and has claimed the disk for writing */
	bool keeps_stale; /* see struct disk_info */
	bool writes_direct;
};

/* Mailbox of a queue, which carries admitted parts back to the queue's ring. */
struct file_gate_port {
	struct ring *ring;
	struct file_gate *gate;
	struct ring_message message;
	struct list_node granted; /* admitted parts; protected by the gate's lock, like posted */
	bool posted;
};

/* Returns a reference to the gate of the file with this identity; creates it if needed. */
GMB_MUST_CHECK int file_gate_get(const uint64_t identity[2], struct file_gate **gate_out);
void file_gate_put(struct file_gate *gate);

/* Called by each store that writes, with its own path and fd. If another process uses the disk,
 * retries like disk_claim(). Each successful call needs one file_gate_unclaim(). With sole, the
 * store must be the only one of this process with a claim: returns -EBUSY if another store has a
 * claim, and until file_gate_unclaim(), claims of other stores fail with -EBUSY. */
GMB_MUST_CHECK int file_gate_claim(
	struct file_gate *gate, const char *path, int fd, bool sole, struct error *error);
void file_gate_unclaim(struct file_gate *gate);
/* Called by each store that only reads, when it has claimed the disk for reading: looks for
 * operations of a process that has exited. */
void file_gate_read(struct file_gate *gate, const char *path, int fd);
/* Returns the descriptor that holds the claim, or -1. While a block device is claimed, the kernel
 * accepts discard and zero only through this descriptor, because both drop pages of the device's
 * cache. Any thread, while the caller has a claim. */
int file_gate_claim_fd(const struct file_gate *gate);

/* Returns the state of the barrier, see store_barrier(). look: query the system again if the
 * barrier is closed, which can block. Any thread. */
enum store_barrier file_gate_barrier(struct file_gate *gate, bool look);
/* Returns whether this process uses a block device, and the last known state of its barrier. Any
 * thread. */
bool file_gate_of_device(dev_t device, enum store_barrier *barrier_out);

void file_gate_join(struct file_gate *gate, struct file_gate_member *member);
void file_gate_leave_member(struct file_gate *gate, struct file_gate_member *member);
bool file_gate_has_direct_writers(const struct file_gate *gate);

void file_gate_port_init(struct file_gate_port *port, struct file_gate *gate, struct ring *ring);

/* Makes the part enter the gate. Returns true if it is inside. Otherwise the part waits, and
 * file_resume() is called on its ring after the gate has admitted it. */
bool file_gate_enter(struct file_gate *gate, struct store_part *part, enum file_gate_class class);
/* Takes the part out of the gate. No-op if it is not inside. */
void file_gate_leave(struct file_gate *gate, struct store_part *part);

/* Returns the first error of a flush or durable write since the file was opened, or 0. */
int file_gate_error(const struct file_gate *gate);
void file_gate_fail(struct file_gate *gate, int error);
