// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop: one completion ring per reactor thread. Two implementations share this header and
 * are chosen at link time: io_uring (ring/uring.c) and a seeded simulation (sim/ring.c, sim.h).
 *
 * What: operations on files, sockets, timers and worker threads are described by a struct ring_op
 * embedded in its owner. A submit function never fails and never blocks: the operation is in flight
 * when it returns, and op->done is called exactly once, later, from ring_run(), never from inside a
 * submit function. Completions are collected first and run afterwards, so there is no recursion.
 *
 *   submit ──▶ [in flight] ──▶ completion queue ──▶ op->done(op, result) ... batch_end() ──▶ submit
 *
 * Threading: everything belongs to the thread that runs the ring, except ring_post(), which any
 * thread may call. Another thread that wants something sends a message.
 *
 * Ownership: the ring holds the op, its buffers, message header and file from submit until done.
 * None of them may be freed, reused or closed before. The caller owns them otherwise.
 *
 * Errors: results are a count >= 0 or a negative errno, exactly what the operation gave: short
 * transfers and -EINTR are possible and are the caller's to resume.
 */
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/list.h"
#include "ring/memory.h"

struct ring;
struct ring_op;

typedef void ring_done_fn(struct ring_op *op, int result);

struct ring_op {
	ring_done_fn *done;
	struct ring_op *next; /* private: completion and worker queues */
	union {
		int (*call)(struct ring_op *op); /* private: RING_CALL */
		struct ring_guard *guard;	 /* private: RING_RECV_GUARDED */
	};
	int64_t time_s; /* private: timer argument, read by the kernel at submission */
	int64_t time_ns;
	int result;	/* private */
	uint8_t code;	/* private: enum ring_code */
	bool in_flight; /* true from submit until just before done is called; read only */
};

/* A file or socket as the ring knows it. slot is an index in the ring's file table, or -1. */
struct ring_file {
	int fd;
	int slot;
	bool is_guarded; /* its peer can send open files along: see ring_recv() */
};

enum ring_code {
	RING_ACCEPT,
	RING_RECV,
	RING_RECV_GUARDED,
	RING_SEND,
	RING_SENDMSG,
	RING_RECVMSG,
	RING_READ,
	RING_WRITE,
	RING_FSYNC,
	RING_ALLOCATE,
	RING_ADVISE,
	RING_POLL,
	RING_TIMER,
	RING_CALL,
	RING_DEFER,
	RING_CODE_COUNT
};

/* What was probed at start, and what is used. Shown by "gmblock info --local". */
struct ring_features {
	bool available;		 /* io_uring can be used at all */
	bool single_issuer;	 /* one submitting thread promised to the kernel (6.0) */
	bool defer_taskrun;	 /* completions run only inside our waits (6.1) */
	bool registered_ring;	 /* the ring's own descriptor is registered (5.18) */
	bool registered_files;	 /* sparse file table (5.19) */
	bool registered_buffers; /* sparse buffer table (5.19) */
	bool min_timeout;	 /* waiting for a batch with a time limit (6.12) */
	bool send_zero_copy;	 /* IORING_OP_SEND_ZC (6.0) */
	int available_error;	 /* negative errno when !available */
	uint32_t buffer_error;	 /* errno of a probe registration that failed, 0 if it worked */
};

struct ring_options {
	uint32_t entries;     /* submission queue entries; 0 = 1024 */
	uint32_t files_max;   /* file table size; 0 = 4096 */
	uint32_t buffers_max; /* buffer table size; 0 = 256 */
	uint64_t seed;	      /* simulation only */
	/* The kernel refuses every operation and registration that ring.h has no function for, for
	 * good, also to code that has taken over the process. Sends are writes then, since only
	 * these cannot carry an address: the sockets must not be O_NONBLOCK, messages have no
	 * control data, and the process ignores SIGPIPE. The simulation ignores it. */
	bool is_confined;
};

/* Counters since creation; read by the owning thread. */
struct ring_counters {
	uint64_t enters; /* io_uring_enter system calls */
	uint64_t waits;	 /* of those, the ones that were allowed to block */
	uint64_t completions;
	uint64_t submissions;
	uint64_t messages;
	uint64_t events; /* of event sources */
	uint64_t direct; /* system calls made without an operation */
};

/* Creates a ring. On failure *error tells the kernel feature that is missing and what to do.
 * Returns 0, or -ENOSYS/-EPERM/-ENOMEM and others from io_uring_setup. */
GMB_MUST_CHECK int ring_create(
	const struct ring_options *options, struct ring **ring_out, struct error *error);

/* Frees it; nothing may be in flight. NULL is a no-op. */
void ring_destroy(struct ring *ring);

/* Finds out what the kernel offers, with real operations where a version number would lie. */
void ring_probe(struct ring_features *features);
const struct ring_features *ring_features(const struct ring *ring);
const struct ring_counters *ring_counters(const struct ring *ring);

/* Runs until ring_stop(); then returns after the current batch. */
void ring_run(struct ring *ring);
void ring_stop(struct ring *ring);

/* One turn: submit what is queued, wait for at least one completion when wait is set, run the
 * batch. Returns how many completions and events ran. For tests and for owners of their own loop.
 */
int ring_turn(struct ring *ring, bool wait);
/* The same, waiting for at most limit_ns (0 = not at all); a turn without completions returns 0. */
int ring_turn_limited(struct ring *ring, uint64_t limit_ns);

/* A descriptor that polls readable when a turn has something to run, for owners of a loop of their
 * own; what was submitted must have been flushed. It is the ring's. Once it was asked for, every
 * turn costs a system call more. A negative errno: no descriptor is to be had. */
int ring_poll_fd(struct ring *ring);
/* Makes it readable until the next turn: the owner has something to run of which the ring does not
 * know. Nothing happens when nobody asked for the descriptor. */
void ring_poll_again(struct ring *ring);

/*
 * How patient a wait is: it wakes for count completions at once, for fewer only after max_wait_ns.
 * Under load this lets work gather while the thread sleeps, so that a peer's every send need not
 * wake us. The end of a timer always wakes it. count 1 (the initial state) or max_wait_ns below a
 * microsecond: wakes for each. Kernels without the feature (min_timeout) always do.
 */
void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns);

/* How long a wait looks for completions before the thread sleeps: sleeping is cheap, being woken
 * is not. 0 (the initial state): not at all. */
void ring_set_spin(struct ring *ring, uint64_t spin_ns);

/* Hands what is queued to the kernel now instead of with the next turn. Runs no completion. */
void ring_flush(struct ring *ring);

/* Something to call once after every batch of completions and messages, before the next submission:
 * in the order in which they were added. Held until it is removed, which call() itself must not do.
 */
struct ring_batch_end {
	struct list_node node; /* private */
	void (*call)(struct ring_batch_end *end);
};
void ring_batch_end_add(struct ring *ring, struct ring_batch_end *end);
static inline void ring_batch_end_remove(struct ring_batch_end *end)
{
	list_remove(&end->node);
}

/* Monotonic time in nanoseconds: exact (no system call), and as of the current batch. */
uint64_t ring_now_ns(const struct ring *ring);
uint64_t ring_batch_ns(const struct ring *ring);

/* A pseudo-random number from the ring's own generator (seeded in the simulation). */
uint64_t ring_random(struct ring *ring);
/* Bytes that nobody can guess, at most 256 (seeded in the simulation). False: the system has none.
 */
GMB_MUST_CHECK bool ring_secret(struct ring *ring, void *bytes, size_t len);

/* --- messages ------------------------------------------------------------------------------ */

struct ring_message {
	struct ring_message *next; /* private */
	void (*deliver)(struct ring *ring, struct ring_message *message);
};

/* Any thread. The message is held until deliver is called on the ring's thread, which gives it
 * back. Messages of one sender arrive in order. */
void ring_post(struct ring *ring, struct ring_message *message);

/* --- threads ------------------------------------------------------------------------------- */

/* A thread that runs a ring. */
struct ring_thread;

struct ring_thread_options {
	const char *name; /* for debuggers, cut after 15 bytes; borrowed */
	/* Both on the thread. begin: creates the ring and what works on it; a negative errno leaves
	 * nothing behind. end: the ring was stopped; destroys them. */
	int (*begin)(void *context, struct ring **ring_out, struct error *error);
	void (*end)(void *context);
	void *context;
};

/* Returns when begin() has. */
GMB_MUST_CHECK int ring_thread_start(const struct ring_thread_options *options,
	struct ring_thread **thread_out, struct error *error);
/* Stops the ring, and waits until end() has returned. */
void ring_thread_stop(struct ring_thread *thread);
/* Calls call(context) on the thread, between two of its turns, and waits for it: from any thread
 * that is not called like this itself. -ETIMEDOUT: a turn takes very long (a disk hangs), and call
 * was not and will not be called; -ENOMEM. */
GMB_MUST_CHECK int ring_thread_call(
	struct ring_thread *thread, void (*call)(void *context), void *context);

/* --- event sources ------------------------------------------------------------------------- */

/*
 * Events that do not come through the ring: a queue in shared memory, a completion queue of
 * libfabric. The ring polls its sources in every turn and while it spins, and arms them before it
 * blocks, so that no event is missed in between and none costs a system call while there is work:
 *
 *   awake: poll() ... poll() ─▶ arm() ─▶ true: blocks until fd is readable, or anything else comes
 *                     ▲           └────▶ false: events are pending
 *                     └──────────────────────┘
 *
 * A ring without sources does nothing for them.
 */
struct ring_source {
	/* Set by the owner. */
	/* Handles events that are there, a bounded number at a time, and returns how many. May do
	 * what a completion may, and add and remove sources; must not turn the ring. */
	int (*poll)(struct ring_source *source);
	/* True: nothing is pending, and the next event will make fd readable; it stays so until
	 * poll() or arm() is called. False: poll() has something to handle. Called before each
	 * wait, armed or not; must not add or remove sources. */
	bool (*arm)(struct ring_source *source);
	int fd;

	/* Private. */
	void (*removed)(struct ring_source *source);
	struct list_node node;
	struct ring_op op;
};

/* Held, with fd open, until removed() is called. */
void ring_source_add(struct ring *ring, struct ring_source *source);
/* poll() and arm() are not called any more; removed() is, once, later. Anywhere, once. */
void ring_source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source));

/* --- files and memory ---------------------------------------------------------------------- */

/* Enters fd in the ring's file table when there is room; works either way. The fd stays the
 * caller's. */
struct ring_file ring_file_add(struct ring *ring, int fd);
/* Nothing may be in flight on it. Does not close the fd. */
void ring_file_remove(struct ring *ring, struct ring_file *file);

/* Registers a region with an address as a fixed buffer, so that file operations need not map it
 * each time: references taken from now on have MEM_FIXED, and are for this ring only. The region
 * must stay mapped until it is removed. Returns 0 or a negative errno, and everything works
 * without: -ENOMEM when the locked-memory limit is reached, -ENOSPC when the table is full,
 * -EOPNOTSUPP when the kernel has none. */
GMB_MUST_CHECK int ring_memory_add(struct ring *ring, struct mem_region *region);
/* No operation on it is in flight. Does nothing when the region is not registered. */
void ring_memory_remove(struct ring *ring, struct mem_region *region);

/* Ends both directions of a connected socket now: pending operations on it complete. */
void ring_socket_shutdown(struct ring *ring, struct ring_file file);
/* The same in a hurry: what was sent and has not left this machine never will (a TCP socket; what a
 * Unix socket took is with its peer). The descriptor still has to be closed. */
void ring_socket_abort(struct ring *ring, struct ring_file file);
/* Says that we will send nothing more; receiving goes on. */
void ring_socket_shutdown_send(struct ring *ring, struct ring_file file);
/* What a connection has carried since it was opened, as TCP counts it. */
struct ring_traffic {
	uint64_t acked_bytes; /* sent and known to have arrived */
	uint64_t busy_ns;     /* time in which something was on its way, or waited to be */
};
/* False: it is not counted (all but TCP). A system call. */
bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic);
/* Bytes that a connected socket was given and that have not been acknowledged (TCP) or received
 * (Unix sockets, with what the kernel adds): they become fewer only as the peer takes some. False:
 * not known. A system call. */
bool ring_socket_unacked(struct ring *ring, struct ring_file file, uint64_t *bytes_out);
/* The process at the other end of a Unix socket when it connected. False: it is another socket. */
bool ring_socket_credentials(int fd, struct ucred *credentials);
/* Closes a socket that has nothing in flight and was removed from the table. A Unix socket that can
 * hold open files of its peer's is given to a worker. */
void ring_socket_close(struct ring *ring, int fd);

/* --- operations ---------------------------------------------------------------------------- */

/* result: a connected, close-on-exec, socket descriptor that the callee of done owns. */
void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done);

/* result: bytes, 0 at end of stream. wait_all: fewer than len only at end of stream or error.
 * -EPERM on a Unix socket: the peer has sent open files along, which were got rid of, and some
 * bytes are lost. */
void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done);

/* Sends some of it once the socket takes any: a short count as soon as the socket is full, or an
 * error stops it (the rest can be sent again, and meets the error if there was one), or a negative
 * errno. Never raises SIGPIPE. One send in flight per socket.
 *
 * The kernel is never asked to go on by itself (MSG_WAITALL): after a page that was not there (a
 * page-cache send, disk/map.h) it leaves out what it had already copied for a Unix socket before
 * that page, and kernel TLS refuses the flag. */
void ring_send(struct ring *ring, struct ring_op *op, struct ring_file file, const void *buf,
	size_t len, ring_done_fn *done);
void ring_sendmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct msghdr *message, ring_done_fn *done);

/* Memory with an address; len <= 1 GiB. */
void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done);
/* dsync: complete only when the data is durable (RWF_DSYNC). */
void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done);
/* The same from several places one after the other, which are not in the table of fixed buffers;
 * vector is held as well. count <= 1024. */
void ring_writev(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct iovec *vector, uint32_t count, uint64_t offset, bool dsync,
	ring_done_fn *done);
/* As ring_write() without dsync, done at once by this thread: for the page cache, where kernels
 * hand a write to a worker thread and the hand-over costs more than the copy. It may block when the
 * cache is full of dirty pages: the caller measures, and turns to ring_write() while it does. */
void ring_write_inline(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done);
/* fdatasync. */
void ring_fsync(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done);
/* fallocate with the given FALLOC_FL_ mode. */
void ring_allocate(struct ring *ring, struct ring_op *op, struct ring_file file, int mode,
	uint64_t offset, uint64_t length, ring_done_fn *done);
/* posix_fadvise WILLNEED. */
void ring_advise(struct ring *ring, struct ring_op *op, struct ring_file file, uint64_t offset,
	uint64_t length, ring_done_fn *done);
/* One-shot poll. result: the events that are ready. */
void ring_poll(struct ring *ring, struct ring_op *op, int fd, uint32_t events, ring_done_fn *done);
/* result: 0 when delay_ns has passed, -ECANCELED after ring_cancel(). */
void ring_timer(struct ring *ring, struct ring_op *op, uint64_t delay_ns, ring_done_fn *done);
/* Runs call(op) on a worker thread (system calls that have no ring operation: lseek, ioctl);
 * done gets what it returned. call must touch only what op's owner put aside for it. */
void ring_call(
	struct ring *ring, struct ring_op *op, int (*call)(struct ring_op *op), ring_done_fn *done);

/* Completes in the next batch with the given result, without a system call: for producers that have
 * the answer at once and still owe the caller an asynchronous done. */
void ring_defer(struct ring *ring, struct ring_op *op, int result, ring_done_fn *done);
/* The same in two steps, for an operation that somebody else than the ring carries out: in flight
 * after the first, completed in the batch after the second. */
void ring_op_begin(struct ring_op *op, ring_done_fn *done);
void ring_op_complete(struct ring *ring, struct ring_op *op, int result);

/* Asks an accept, receive, poll or timer in flight to end soon. done still comes, with -ECANCELED
 * or with what happened first. Not in flight: nothing happens. */
void ring_cancel(struct ring *ring, struct ring_op *op);

/* As ring_recv() into a scatter list. The message, its vector and buffers are held until done. */
void ring_recvmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct msghdr *message, bool wait_all, ring_done_fn *done);

/*
 * Try at once, without an operation: how many bytes were moved, 0 at end of stream (receive), or
 * -EAGAIN when that would block, or another negative errno. For one who has found that there is
 * something, or who would wait for nothing else: no completion has to be reaped. Not while the
 * operation of the same direction is in flight on the socket.
 */
GMB_MUST_CHECK ssize_t ring_recvmsg_now(
	struct ring *ring, struct ring_file file, struct msghdr *message);
GMB_MUST_CHECK ssize_t ring_sendmsg_now(
	struct ring *ring, struct ring_file file, const struct msghdr *message);
