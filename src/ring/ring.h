// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop: one completion ring per reactor thread. Two implementations share this header and
 * are chosen at link time: io_uring (ring/uring.c) and a seeded simulation (sim/ring.c, sim.h).
 *
 * Operations on files, sockets, timers and worker threads are described by a struct ring_op
 * embedded in its owner. A submit function never fails and never blocks. The operation is in flight
 * when it returns, and op->done is called exactly once, later, from ring_run(), never from inside a
 * submit function. Completions are collected first and run afterwards, so there is no recursion.
 *
 *   submit ──▶ [in flight] ──▶ completion queue ──▶ op->done(op, result) ... batch_end() ──▶ submit
 *
 * Threading: everything belongs to the thread that runs the ring, except ring_post(), which any
 * thread can call. Other threads use it by sending a message.
 *
 * Ownership: from submit until done, the ring uses the op, its buffers, message header and file:
 * they must not be freed, reused or closed. The caller owns them.
 *
 * Errors: results are a count >= 0 or a negative errno, exactly as returned by the operation. Short
 * transfers and -EINTR are possible, and the caller must resume after them.
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
		struct ring_guard *guard;	 /* private: RING_RECV_GUARDED (ring/guard.h) */
	};
	int64_t time_s; /* private: timer argument, which the kernel reads at submission */
	int64_t time_ns;
	int result;	/* private */
	uint8_t code;	/* private: enum ring_code */
	bool in_flight; /* true from submit until just before done is called; read-only */
};

/* A file or socket to use with operations. slot: its index in the ring's file table, or -1. */
struct ring_file {
	int fd;
	int slot;
	bool is_guarded; /* the socket's peer can send file descriptors: see ring_recv() */
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
	RING_COMMAND, /* ring_command() in lent.h */
};

/* Kernel features, found by probing at start. Shown by "gmblock info --local". */
struct ring_features {
	bool available;		 /* io_uring is usable */
	bool registered_ring;	 /* the ring's own descriptor is registered */
	bool registered_files;	 /* sparse file table */
	bool registered_buffers; /* sparse buffer table */
	bool min_timeout;	 /* a wait can gather completions for a limited time (6.12) */
	uint32_t buffer_error;	 /* errno of a failed test registration; 0 if it succeeded */
};

struct ring_options {
	uint32_t entries;     /* submission queue entries; 0 = 1024 */
	uint32_t files_max;   /* file table size; 0 = 4096 */
	uint32_t buffers_max; /* buffer table size; 0 = 256 */
	uint64_t seed;	      /* simulation only */
	/*
	 * Makes the kernel reject every operation and registration that ring.h has no function for.
	 * This cannot be undone, not even by an attacker who controls the process. Sends become
	 * writes, because a send could name a destination address. Therefore sockets must not be
	 * O_NONBLOCK, messages must not have control data, and the process must ignore SIGPIPE. The
	 * simulation ignores this option.
	 */
	bool is_restricted;
};

/* Counters since the ring was created; read by the owning thread. */
struct ring_counters {
	uint64_t enters; /* io_uring_enter system calls */
	uint64_t waits;	 /* number of calls that could block */
	uint64_t messages;
	uint64_t events; /* events handled by event sources */
	uint64_t looks;	 /* unsuccessful looks for completions and events while polling */
	/* waits that stopped polling because another thread had taken the CPU */
	uint64_t crowded;
	uint64_t direct; /* socket calls made directly, without an operation */
};

/* Creates a ring. On failure, *error names the missing kernel feature and the remedy. Returns 0,
 * -ENOSYS, -EPERM, -ENOMEM, or another error of io_uring_setup. */
GMB_MUST_CHECK int ring_create(
	const struct ring_options *options, struct ring **ring_out, struct error *error);

/* Checks that the kernel restricts the ring: submits a forbidden operation that has no effect, and
 * expects an error. A server does not start if its ring is not restricted. No operation is in
 * flight. The simulation does not check. -EPERM: the ring is not restricted. */
GMB_MUST_CHECK int ring_check_restricted(struct ring *ring, struct error *error);

/* Frees the ring. Nothing is in flight. NULL is a no-op. */
void ring_destroy(struct ring *ring);

/* Finds out which features the kernel supports, by trying real operations. */
void ring_probe(struct ring_features *features);
const struct ring_features *ring_features(const struct ring *ring);
const struct ring_counters *ring_counters(const struct ring *ring);
/* For use in src/ring only: adds to ring_counters.direct. */
void ring_count_direct(struct ring *ring, uint32_t calls);

/* Runs turns until ring_stop() is called, and returns at the end of the current turn. */
void ring_run(struct ring *ring);
void ring_stop(struct ring *ring);

/* Runs one turn: submits queued operations, waits for at least one completion if wait is set, and
 * runs the batch of completions. Returns the number of completions and events that ran. For tests,
 * and for owners with their own loop. */
int ring_turn(struct ring *ring, bool wait);
/* Like ring_turn(), but waits for at most limit_ns (0 = not at all). Returns 0 without
 * completions. */
int ring_turn_limited(struct ring *ring, uint64_t limit_ns);

/* Returns a descriptor that polls readable when a turn has something to run, for owners with their
 * own loop, or a negative errno. The owner must call ring_flush() before it polls. The ring owns
 * the descriptor. After the first call, every turn makes one more system call. */
int ring_poll_fd(struct ring *ring);
/* Makes the descriptor readable until the next turn, for an owner with work that the ring does not
 * know about. No-op if ring_poll_fd() was not called. */
void ring_poll_again(struct ring *ring);

/*
 * Sets how long a waiting thread gathers completions: it wakes up immediately for count
 * completions, and for fewer only after max_wait_ns. So under load it does not wake up for every
 * message of a peer. An expired timer always wakes it up. With count 1 (the default), with
 * max_wait_ns below a microsecond, and on kernels without min_timeout, each completion wakes it up.
 */
void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns);

/* Sets how long a wait polls for completions before the thread sleeps, because waking a thread up
 * is expensive. 0 (the default): not at all. Otherwise ring_set_batch() has no effect. The polling
 * ends early if another thread takes the CPU (base/spin.h). */
void ring_set_spin(struct ring *ring, uint64_t spin_ns);

/* Returns the CPU time that the calling thread has used, in nanoseconds; 0 in the simulation. */
uint64_t ring_thread_cpu_ns(void);

/* Submits queued operations to the kernel now instead of in the next turn. Runs no completions. */
void ring_flush(struct ring *ring);

/* A function that is called once after every batch of completions and messages, before the next
 * submission, in the order of addition. It must exist until it is removed, and call() must not
 * remove it. */
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
/* Stores unpredictable bytes, at most 256 (seeded in the simulation). Returns false if the system
 * cannot provide any. */
GMB_MUST_CHECK bool ring_secret(struct ring *ring, void *bytes, size_t len);

/* --- messages ------------------------------------------------------------------------------ */

struct ring_message {
	struct ring_message *next; /* private */
	void (*deliver)(struct ring *ring, struct ring_message *message);
};

/* Sends a message, from any thread. The ring owns the message until it calls deliver on its thread.
 * Messages of one sender arrive in order. */
void ring_post(struct ring *ring, struct ring_message *message);

/* --- threads ------------------------------------------------------------------------------- */

/* A thread that runs a ring. */
struct ring_thread;

struct ring_thread_options {
	const char *name; /* name for debuggers, truncated to 15 bytes; borrowed */
	/* Both are called on the new thread. begin creates the ring and the objects that use it; if
	 * it fails, it must free them. end is called after the ring has stopped, and destroys
	 * them. */
	int (*begin)(void *context, struct ring **ring_out, struct error *error);
	void (*end)(void *context);
	void *context;
};

/* Starts the thread, and waits until begin() has returned. Returns begin()'s errno if it failed. */
GMB_MUST_CHECK int ring_thread_start(const struct ring_thread_options *options,
	struct ring_thread **thread_out, struct error *error);
/* Stops the ring and waits until end() has returned. */
void ring_thread_stop(struct ring_thread *thread);
/* Calls call(context) on the thread, in one of its turns, and waits until it has returned.
 * Must not be called on a thread that is inside such a call. Returns 0, -ENOMEM, or -ETIMEDOUT if
 * the current turn takes too long (a disk hangs); call was then not called and will not be. */
GMB_MUST_CHECK int ring_thread_call(
	struct ring_thread *thread, void (*call)(void *context), void *context);

/* --- event sources ------------------------------------------------------------------------- */

/*
 * Events from outside the ring: a queue in shared memory, or a completion queue of libfabric. The
 * ring polls its sources in every turn and while it spins. Before it blocks, it arms them, which
 * makes the next event wake it up. While there is work, events cost no system call:
 *
 *   awake: poll() ... poll() ─▶ arm() ─▶ true: blocks until fd is readable, or another event
 *                     ▲           └────▶ false: events are pending
 *                     └──────────────────────┘
 *
 * A ring without sources spends no time on them.
 */
struct ring_source {
	/* Members set by the owner. */
	/* Handles pending events, a bounded number per call, and returns their number. It can do
	 * everything that a completion callback can, and can add and remove sources. It must not
	 * run a turn of the ring. */
	int (*poll)(struct ring_source *source);
	/* Returns true if no event is pending and the next one makes fd readable, until poll() or
	 * arm() is called. Returns false if poll() has events to handle. Called before each wait,
	 * even if the source is still armed. It must not add or remove sources. */
	bool (*arm)(struct ring_source *source);
	/* -1: none, because an operation of the owner completes on the next event */
	int fd;

	/* Private members. */
	void (*removed)(struct ring_source *source);
	struct list_node node;
	struct ring_op op;
};

/* Adds a source. The source must exist, with fd open, until removed() is called. */
void ring_source_add(struct ring *ring, struct ring_source *source);
/* Removes a source: poll() and arm() are no longer called, and removed() is called later. Call it
 * once, from anywhere. */
void ring_source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source));

/* --- files and memory ---------------------------------------------------------------------- */

/* Adds fd to the ring's file table if there is room; the file is usable either way. The caller
 * still owns fd. */
struct ring_file ring_file_add(struct ring *ring, int fd);
/* Removes the file from the table, but does not close fd. No operation may be in flight on it. */
void ring_file_remove(struct ring *ring, struct ring_file *file);

/*
 * Registers a region with an address as a fixed buffer, so that the kernel need not map it for each
 * file operation. References created from now on have MEM_FIXED, and can be used only with this
 * ring. The region must stay mapped until it is removed. Returns 0 or a negative errno; an
 * unregistered region also works. -ENOMEM: the locked-memory limit is reached; -ENOSPC: the table
 * is full; -EOPNOTSUPP: the kernel has no table.
 */
GMB_MUST_CHECK int ring_memory_add(struct ring *ring, struct mem_region *region);
/* Unregisters a region. No operation on it may be in flight. No-op if it is not registered. */
void ring_memory_remove(struct ring *ring, struct mem_region *region);

/* Shuts down both directions of a connected socket now: pending operations on it complete. */
void ring_socket_shutdown(struct ring *ring, struct ring_file file);
/* Like ring_socket_shutdown(), but also discards data in this machine's TCP send queue. Data
 * written to a Unix socket is already in the peer's queue. The descriptor must still be closed. */
void ring_socket_abort(struct ring *ring, struct ring_file file);
/* Shuts down the sending direction; receiving continues. */
void ring_socket_shutdown_send(struct ring *ring, struct ring_file file);
/* Progress of a TCP connection since it was opened. */
struct ring_traffic {
	uint64_t acked_bytes; /* data sent and acknowledged */
	uint64_t busy_ns;     /* time during which data was in flight or waiting to be sent */
};
/* Stores the progress of a TCP connection. Returns false if the socket is not TCP. Makes a system
 * call. */
bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic);
/* Stores in *bytes_out how many bytes written to a connected socket the peer has not yet
 * acknowledged (TCP) or read (Unix sockets; includes kernel overhead). Returns false if this is
 * unknown. Makes a system call. */
bool ring_socket_unacked(struct ring *ring, struct ring_file file, uint64_t *bytes_out);
/* Stores the credentials of a Unix socket's peer at the time it connected. Returns false for other
 * sockets. */
bool ring_socket_credentials(int fd, struct ucred *credentials);
/* Closes a socket without operations in flight that was removed from the table. A worker closes it
 * if its queue can contain file descriptors that the peer has sent. */
void ring_socket_close(struct ring *ring, int fd);

/* --- operations ---------------------------------------------------------------------------- */

/* Accepts a connection. result: its socket, with close-on-exec, which done() owns. */
void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done);

/* Receives data. result: number of bytes, 0 at end of stream. wait_all: fewer than len only at end
 * of stream or after an error. -EPERM on a Unix socket: the peer sent file descriptors; they are
 * closed, and some data is lost. */
void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done);

/*
 * Waits until the socket accepts data, and sends as much as it accepts. The result is a negative
 * errno or the number of bytes sent, which is less than len if the socket is full or after an
 * error. The caller then sends the rest, and gets the error if it persists. Never raises SIGPIPE.
 * At most one send can be in flight per socket.
 *
 * MSG_WAITALL is never used, because kernel TLS rejects the flag.
 */
void ring_send(struct ring *ring, struct ring_op *op, struct ring_file file, const void *buf,
	size_t len, ring_done_fn *done);
void ring_sendmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct msghdr *message, ring_done_fn *done);

/* Reads from a file. memory must have an address; len <= 1 GiB. */
void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done);
/* Writes to a file. dsync: completes only when the data is durable (RWF_DSYNC). */
void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done);
/* Like ring_write(), from several buffers, which must not be fixed buffers. The vector must stay
 * valid until done. count <= 1024. */
void ring_writev(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct iovec *vector, uint32_t count, uint64_t offset, bool dsync,
	ring_done_fn *done);
/*
 * Like ring_write() without dsync, or ring_read(), but transfers the data immediately on this
 * thread. For the page cache: kernels pass ring_write(), and ring_read() from a tmpfs, to a worker
 * thread, and that costs more than the copy of a small transfer. The call can block if there are
 * too many dirty pages, or if data is in the swap space. So the caller measures its duration, and
 * uses the other functions for some time after calls that blocked.
 */
void ring_transfer_inline(struct ring *ring, struct ring_op *op, bool writes, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done);
/* Makes written data durable. result: as of fdatasync(). */
void ring_fsync(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done);
/* Calls fallocate(); mode: FALLOC_FL_ flags. */
void ring_allocate(struct ring *ring, struct ring_op *op, struct ring_file file, int mode,
	uint64_t offset, uint64_t length, ring_done_fn *done);
/* Calls posix_fadvise() with POSIX_FADV_WILLNEED. */
void ring_advise(struct ring *ring, struct ring_op *op, struct ring_file file, uint64_t offset,
	uint64_t length, ring_done_fn *done);
/* One-shot poll. result: the events that are ready. */
void ring_poll(struct ring *ring, struct ring_op *op, int fd, uint32_t events, ring_done_fn *done);
/* Starts a timer. result: 0 after delay_ns, -ECANCELED after ring_cancel(). */
void ring_timer(struct ring *ring, struct ring_op *op, uint64_t delay_ns, ring_done_fn *done);
/* Runs call(op) on a worker thread, or here if none can be started, for system calls without a ring
 * operation (lseek, ioctl). Its return value is passed to done. call() must access only memory that
 * no other thread uses until done. */
void ring_call(
	struct ring *ring, struct ring_op *op, int (*call)(struct ring_op *op), ring_done_fn *done);

/* Completes op with the given result in the next batch, without a system call. For functions that
 * know the result immediately but must not call done before they return. */
void ring_defer(struct ring *ring, struct ring_op *op, int result, ring_done_fn *done);
/* ring_defer() in two steps, for an operation that the ring does not execute: ring_op_begin() makes
 * it in flight, and ring_op_complete() completes it in the next batch. */
void ring_op_begin(struct ring_op *op, ring_done_fn *done);
void ring_op_complete(struct ring *ring, struct ring_op *op, int result);

/* Cancels an accept, receive, poll or timer in flight. done is still called soon, with -ECANCELED
 * or the result of the operation. No-op if it is not in flight. */
void ring_cancel(struct ring *ring, struct ring_op *op);

/* Like ring_recv(), but into several buffers and without its check for file descriptors. The
 * message, its vector and buffers must stay valid until done. */
void ring_recvmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct msghdr *message, bool wait_all, ring_done_fn *done);

/*
 * Transfers immediately, without an operation. Returns the number of bytes, 0 at end of stream
 * (receive), -EAGAIN if it would block, or another negative errno. For callers that know that the
 * transfer will not block, or that want to try it before they submit an operation. Must not be
 * called while an operation of the same direction is in flight on the socket.
 */
GMB_MUST_CHECK ssize_t ring_recvmsg_now(
	struct ring *ring, struct ring_file file, struct msghdr *message);
GMB_MUST_CHECK ssize_t ring_sendmsg_now(
	struct ring *ring, struct ring_file file, const struct msghdr *message);
/*
 * Like ring_sendmsg_now(), for count bytes of a file (> 0), a reference with MEM_SOCKET and without
 * MEM_ADDRESS. The socket refers to the page cache, so the peer receives bytes that may be changed
 * until then. Bytes that are not in the page cache are read first, which blocks. -EFAULT: the file
 * ends before the first byte, or cannot be read there. Never raises SIGPIPE if the process ignores
 * it.
 */
GMB_MUST_CHECK ssize_t ring_sendfile_now(
	struct ring *ring, struct ring_file file, struct mem_ref bytes, size_t count);
