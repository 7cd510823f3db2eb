// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop: one completion ring per reactor thread. Two implementations share this header
 * and are chosen at link time: io_uring (ring/uring.c) and a seeded simulation (sim/ring.c,
 * sim.h).
 *
 * Operations on files, sockets, timers and worker threads are described by a struct ring_op
 * embedded in its owner. A submit function never fails and never blocks. The operation is in
 * flight when it returns, and op->done is called exactly once, later, from ring_run(), never from
 * inside a submit function. Completions are collected first and run afterwards, so there is no
 * recursion.
 *
 *   submit ──▶ [in flight] ──▶ completion queue ──▶ op->done(op, result) ... batch_end() ──▶ submit
 *
 * Threading: everything belongs to the thread that runs the ring, except ring_post(), which any
 * thread can call. Other threads make requests by sending a message.
 *
 * Ownership: the ring holds the op, its buffers, message header and file from submit until done.
 * None of them can be freed, reused or closed before. Otherwise the caller owns them.
 *
 * Errors: results are a count >= 0 or a negative errno, exactly as returned by the operation.
 * Short transfers and -EINTR are possible, and the caller must resume after them.
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
	bool in_flight; /* true from submit until just before done is called; read-only */
};

/* A file or socket for operations. slot is an index in the ring's file table, or -1. */
struct ring_file {
	int fd;
	int slot;
	bool is_guarded; /* its peer can send file descriptors: see ring_recv() */
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
	RING_CHECK,
	RING_CODE_COUNT
};

/* Kernel features, found by probing at start. Shown by "gmblock info --local". */
struct ring_features {
	bool available;		 /* io_uring is usable */
	bool single_issuer;	 /* the kernel is promised a single submitting thread (6.0) */
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
	/*
	 * The kernel permanently rejects every operation and registration that ring.h has no
	 * function for, also from code that has taken over the process. Sends become writes,
	 * because only writes cannot carry an address. So sockets must not be O_NONBLOCK, messages
	 * must not have control data, and the process must ignore SIGPIPE. The simulation ignores
	 * this option.
	 */
	bool is_restricted;
};

/* Counters since creation; read by the owning thread. */
struct ring_counters {
	uint64_t enters; /* io_uring_enter system calls */
	uint64_t waits;	 /* the part of enters that could block */
	uint64_t completions;
	uint64_t submissions;
	uint64_t messages;
	uint64_t events; /* of event sources */
	uint64_t direct; /* system calls made without an operation */
};

/* Creates a ring. On failure, *error names the missing kernel feature and the remedy. Returns 0,
 * -ENOSYS, -EPERM, -ENOMEM, or another error of io_uring_setup. */
GMB_MUST_CHECK int ring_create(
	const struct ring_options *options, struct ring **ring_out, struct error *error);

/* Checks that the kernel restricts the ring, by an operation without effect that is not permitted:
 * a server does not start with a ring that could do more. No operation is in flight. The
 * simulation checks nothing. -EPERM: the ring is not restricted. */
GMB_MUST_CHECK int ring_check_restricted(struct ring *ring, struct error *error);

/* Frees the ring. Nothing is in flight. NULL is a no-op. */
void ring_destroy(struct ring *ring);

/* Finds out which features the kernel supports, by real operations where a version number is not
 * reliable. */
void ring_probe(struct ring_features *features);
const struct ring_features *ring_features(const struct ring *ring);
const struct ring_counters *ring_counters(const struct ring *ring);

/* Runs until ring_stop(), and returns after the batch in which it was called. */
void ring_run(struct ring *ring);
void ring_stop(struct ring *ring);

/* Runs one turn: submits queued operations, waits for at least one completion if wait is set, and
 * runs the batch. Returns the number of completions and events that ran. For tests, and for owners
 * with their own loop. */
int ring_turn(struct ring *ring, bool wait);
/* Runs one turn that waits for at most limit_ns (0 = not at all). Returns 0 without
 * completions. */
int ring_turn_limited(struct ring *ring, uint64_t limit_ns);

/* Returns a descriptor that polls readable when a turn has something to run, for owners with their
 * own loop. Submitted operations must have been flushed. The descriptor belongs to the ring. After
 * the first call, every turn costs one more system call. A negative errno: it cannot be
 * created. */
int ring_poll_fd(struct ring *ring);
/* Makes the descriptor readable until the next turn, because the owner has work that the ring does
 * not know of. No-op if ring_poll_fd() was not called. */
void ring_poll_again(struct ring *ring);

/*
 * Sets how long a wait gathers completions: it wakes up immediately for count completions, and for
 * fewer only after max_wait_ns. Under load, work accumulates while the thread sleeps, so that not
 * every send of a peer causes a wake-up. An expired timer always wakes it up. With count 1 (the
 * initial state) or max_wait_ns below a microsecond, it wakes up for each completion. Kernels
 * without min_timeout always do.
 */
void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns);

/* Sets how long a wait polls for completions before the thread sleeps, because waking a thread up
 * is expensive. 0 (the initial state): not at all. */
void ring_set_spin(struct ring *ring, uint64_t spin_ns);

/* Submits queued operations to the kernel now instead of in the next turn. Runs no completions. */
void ring_flush(struct ring *ring);

/* A function that is called once after every batch of completions and messages, before the next
 * submission, in the order of addition. Held until it is removed; call() must not remove it. */
struct ring_batch_end {
	struct list_node node; /* private */
	void (*call)(struct ring_batch_end *end);
};
void ring_batch_end_add(struct ring *ring, struct ring_batch_end *end);
static inline void ring_batch_end_remove(struct ring_batch_end *end)
{
	list_remove(&end->node);
}

/* Monotonic time in nanoseconds: now (without a system call), and at the start of the current
 * batch. */
uint64_t ring_now_ns(const struct ring *ring);
uint64_t ring_batch_ns(const struct ring *ring);

/* Returns a pseudo-random number from the ring's own generator (seeded in the simulation). */
uint64_t ring_random(struct ring *ring);
/* Fills in unpredictable bytes, at most 256 (seeded in the simulation). False: the system has
 * none. */
GMB_MUST_CHECK bool ring_secret(struct ring *ring, void *bytes, size_t len);

/* --- messages ------------------------------------------------------------------------------ */

struct ring_message {
	struct ring_message *next; /* private */
	void (*deliver)(struct ring *ring, struct ring_message *message);
};

/* Sends a message, from any thread. It is held until deliver is called on the ring's thread, which
 * gives it back. Messages of one sender arrive in order. */
void ring_post(struct ring *ring, struct ring_message *message);

/* --- threads ------------------------------------------------------------------------------- */

/* A thread that runs a ring. */
struct ring_thread;

struct ring_thread_options {
	const char *name; /* for debuggers, cut after 15 bytes; borrowed */
	/* Both are called on the thread. begin creates the ring and its users; a negative errno
	 * leaves nothing behind. end is called after the ring was stopped, and destroys them. */
	int (*begin)(void *context, struct ring **ring_out, struct error *error);
	void (*end)(void *context);
	void *context;
};

/* Starts the thread. Returns when begin() has returned. */
GMB_MUST_CHECK int ring_thread_start(const struct ring_thread_options *options,
	struct ring_thread **thread_out, struct error *error);
/* Stops the ring and waits until end() has returned. */
void ring_thread_stop(struct ring_thread *thread);
/* Calls call(context) on the thread, between two of its turns, and waits until it has returned.
 * Can be called on any thread that is not itself inside such a call. -ETIMEDOUT: a turn takes very
 * long (a disk hangs), and call was not and will not be called; -ENOMEM. */
GMB_MUST_CHECK int ring_thread_call(
	struct ring_thread *thread, void (*call)(void *context), void *context);

/* --- event sources ------------------------------------------------------------------------- */

/*
 * Events from outside the ring: a queue in shared memory, or a completion queue of libfabric. The
 * ring polls its sources in every turn and while it spins, and arms them before it blocks. So no
 * event is missed in between, and none costs a system call while there is work:
 *
 *   awake: poll() ... poll() ─▶ arm() ─▶ true: blocks until fd is readable, or another event
 *                     ▲           └────▶ false: events are pending
 *                     └──────────────────────┘
 *
 * A ring without sources spends no time on them.
 */
struct ring_source {
	/* Set by the owner. */
	/* Handles pending events, a bounded number per call, and returns their number. It can do
	 * everything that a completion can, and can add and remove sources. It must not turn the
	 * ring. */
	int (*poll)(struct ring_source *source);
	/* True: no event is pending, and the next one makes fd readable; this holds until poll()
	 * or arm() is called. False: poll() has events to handle. Called before each wait, armed
	 * or not. It must not add or remove sources. */
	bool (*arm)(struct ring_source *source);
	int fd;

	/* Private. */
	void (*removed)(struct ring_source *source);
	struct list_node node;
	struct ring_op op;
};

/* The source is held, with fd open, until removed() is called. */
void ring_source_add(struct ring *ring, struct ring_source *source);
/* Stops calls of poll() and arm(). removed() is called once, later. Can be called anywhere,
 * once. */
void ring_source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source));

/* --- files and memory ---------------------------------------------------------------------- */

/* Adds fd to the ring's file table if there is room; the file is usable either way. The caller
 * still owns fd. */
struct ring_file ring_file_add(struct ring *ring, int fd);
/* Nothing is in flight on the file. Does not close fd. */
void ring_file_remove(struct ring *ring, struct ring_file *file);

/*
 * Registers a region with an address as a fixed buffer, so that file operations need not map it
 * each time. References created from now on have MEM_FIXED, and are for this ring only. The region
 * must stay mapped until it is removed. Returns 0 or a negative errno; everything works without
 * registration. -ENOMEM: the locked-memory limit is reached; -ENOSPC: the table is full;
 * -EOPNOTSUPP: the kernel has no table.
 */
GMB_MUST_CHECK int ring_memory_add(struct ring *ring, struct mem_region *region);
/* No operation on the region is in flight. No-op if the region is not registered. */
void ring_memory_remove(struct ring *ring, struct mem_region *region);

/* Shuts down both directions of a connected socket now: pending operations on it complete. */
void ring_socket_shutdown(struct ring *ring, struct ring_file file);
/* As ring_socket_shutdown(), and discards data that is still in this machine's TCP send queue.
 * Data that a Unix socket has accepted is already with the peer. The descriptor must still be
 * closed. */
void ring_socket_abort(struct ring *ring, struct ring_file file);
/* Shuts down the sending direction; receiving continues. */
void ring_socket_shutdown_send(struct ring *ring, struct ring_file file);
/* Data that a connection has carried since it was opened, as counted by TCP. */
struct ring_traffic {
	uint64_t acked_bytes; /* sent and acknowledged */
	uint64_t busy_ns;     /* time with data in flight or waiting to be sent */
};
/* Returns false if it is not counted (all except TCP). Makes a system call. */
bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic);
/* Returns in *bytes_out the bytes written to a connected socket that are not acknowledged (TCP) or
 * received (Unix sockets, including kernel overhead) yet. The number only falls when the peer
 * receives data. False: unknown. Makes a system call. */
bool ring_socket_unacked(struct ring *ring, struct ring_file file, uint64_t *bytes_out);
/* Returns the credentials of a Unix socket's peer at the time it connected. False: another kind of
 * socket. */
bool ring_socket_credentials(int fd, struct ucred *credentials);
/* Closes a socket that has nothing in flight and was removed from the table. A Unix socket that
 * can hold file descriptors sent by its peer is closed by a worker. */
void ring_socket_close(struct ring *ring, int fd);

/* --- operations ---------------------------------------------------------------------------- */

/* result: a connected close-on-exec socket, owned by the callee of done. */
void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done);

/* result: bytes, 0 at end of stream. wait_all: fewer than len only at end of stream or error.
 * -EPERM on a Unix socket: the peer has sent file descriptors; they were closed, and some bytes
 * are lost. */
void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done);

/*
 * Sends as much as the socket accepts, once it accepts any. The result is a negative errno, or a
 * count that is short if the socket is full or an error stopped it. The caller then sends the
 * rest, which meets the error again. Never raises SIGPIPE. One send in flight per socket.
 *
 * MSG_WAITALL is never used, because kernel TLS rejects the flag, and because of a fault with
 * page-cache sends (disk/map.c): if a page is missing, a Unix socket loses the data already copied
 * before that page.
 */
void ring_send(struct ring *ring, struct ring_op *op, struct ring_file file, const void *buf,
	size_t len, ring_done_fn *done);
void ring_sendmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct msghdr *message, ring_done_fn *done);

/* memory must have an address; len <= 1 GiB. */
void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done);
/* dsync: completes only when the data is durable (RWF_DSYNC). */
void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done);
/* As ring_write(), from a vector of memory outside the fixed buffers. The vector is held, too.
 * count <= 1024. */
void ring_writev(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct iovec *vector, uint32_t count, uint64_t offset, bool dsync,
	ring_done_fn *done);
/*
 * As ring_write() without dsync, but executed immediately on this thread. For the page cache:
 * kernels pass such a write to a worker thread, which costs more than the copy. It can block when
 * the cache is full of dirty pages. So the caller measures it, and uses ring_write() while it
 * blocks.
 */
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
/* Runs call(op) on a worker thread, for system calls without a ring operation (lseek, ioctl). done
 * gets its return value. call must only touch memory that the owner of op has reserved for it. */
void ring_call(
	struct ring *ring, struct ring_op *op, int (*call)(struct ring_op *op), ring_done_fn *done);

/* Completes in the next batch with the given result, without a system call. For functions that
 * know the result immediately but have to call done asynchronously. */
void ring_defer(struct ring *ring, struct ring_op *op, int result, ring_done_fn *done);
/* As ring_defer(), in two steps, for an operation that the ring does not execute: in flight after
 * the first call, completed in the batch after the second. */
void ring_op_begin(struct ring_op *op, ring_done_fn *done);
void ring_op_complete(struct ring *ring, struct ring_op *op, int result);

/* Cancels an accept, receive, poll or timer in flight. done is still called soon, with -ECANCELED
 * or the result of the operation. No-op if it is not in flight. */
void ring_cancel(struct ring *ring, struct ring_op *op);

/* As ring_recv(), into a scatter list. The message, its vector and buffers are held until done. */
void ring_recvmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct msghdr *message, bool wait_all, ring_done_fn *done);

/*
 * Transfers immediately, without an operation. Returns the number of bytes, 0 at end of stream
 * (receive), -EAGAIN if it would block, or another negative errno. For callers that know data is
 * available, or that would otherwise only wait for it: it avoids a completion. Must not be called
 * while an operation of the same direction is in flight on the socket.
 */
GMB_MUST_CHECK ssize_t ring_recvmsg_now(
	struct ring *ring, struct ring_file file, struct msghdr *message);
GMB_MUST_CHECK ssize_t ring_sendmsg_now(
	struct ring *ring, struct ring_file file, const struct msghdr *message);
