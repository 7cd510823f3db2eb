// SPDX-License-Identifier: Apache-2.0
/*
 * Inside libclan-sockets.so, which stands between a program and the C library (LD_PRELOAD) and
 * carries stream connections between processes of one machine over libclan. The TCP connection
 * stays open as the descriptor, the name and the way back; docs/design/0017-middleware.md.
 *
 *   hooks_*.c      the C library's names; untracked descriptors go straight on
 *     │
 *   plain.c  data.c  wait.c  epoll.c  process.c   reading and writing, waiting, fork and exec
 *     │
 *   conn.c  meet.c ──▶ switch.c             life of a connection, and where its bytes travel
 *     │
 *   core.c ──▶ libclan                      the lock, the queue, sleeping
 *
 * Threading: one lock (core_lock()) guards everything, but for the table of descriptors and the
 * counts of connections that are not carried, which are atomic. Nothing sleeps with the lock held.
 * Signal handlers of the program wait until their thread has left the lock (hooks_signal.c); those
 * for crashes do not, and there calls on tracked descriptors fail with EINTR. Calls that may sleep
 * are points of cancellation where they begin and while they sleep.
 *
 * Ownership: objects belong to the table of descriptors; connections and sets are kept in pools and
 * never unmapped, so that a look without the lock meets an object of the same kind.
 * Errors: as the calls that are stood for: -1 and errno in hooks, negative errno inside.
 */
#pragma once

#include <gmblock/clan.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/list.h"
#include "sockets/rules.h"
#include "sockets/switch.h"

enum {
	SOCKETS_FDS_MAX = 65536,
	/* Of a connection, for what was taken ahead of the program: for a look at it, and before a
	 * fork, which must not leave anything in the ring. */
	SOCKETS_LOOK_BYTES = 1048576,
	SOCKETS_BUFFER_BYTES = 64 << 20,
	SOCKETS_IOV_MAX = 1024,
};

/* --- counting (stats.c) ----------------------------------------------------------------------- */

/* Why a connection is not carried, or not any more. */
enum sockets_reason {
	REASON_NOBODY,	  /* no library answered at the other end */
	REASON_REFUSED,	  /* it answered no */
	REASON_REMOTE,	  /* the other end is not in this network namespace */
	REASON_IDENTITY,  /* who answered is not the user of the other end */
	REASON_NAME,	  /* the name for the meeting was taken */
	REASON_COUNTS,	  /* bytes were moved by calls that are not seen */
	REASON_RESOURCES, /* memory or descriptors */
	REASON_OPTION,	  /* an option of the socket that is not stood for */
	REASON_CALL,	  /* a call that is not stood for */
	REASON_EPOLL,	  /* a use of epoll that is not stood for */
	REASON_FULL,	  /* the ring stayed full */
	REASON_BULK,	  /* the ring was full again and again: a larger one */
	REASON_SHUTDOWN,  /* one direction was ended */
	REASON_FORK,
	REASON_EXEC,
	REASON_PASSED, /* to another process */
	REASON_PEER,   /* the other end asked for it */
	REASON_BROKEN, /* the other end broke a rule */
	REASON_ASKED,  /* "switch-every" */
	REASON_COUNT
};

enum { STATS_ROWS = 1024, STATS_PROGRAM_BYTES = 32, STATS_NAME_BYTES = 96 };
#define STATS_MAGIC UINT64_C(0x3174617473636c63) /* "clcstat1" */

struct stats_row { /* a carried connection */
	char name[STATS_NAME_BYTES];
	uint64_t in_bytes;
	uint64_t out_bytes;
	uint32_t used;
	int32_t fd;
};

/* One memfd named "clan-sockets" in each process, for clan-run --show. */
struct stats {
	uint64_t magic;
	uint64_t tracked; /* connections that a rule named */
	uint64_t carried; /* times that one was carried */
	uint64_t in_bytes;
	uint64_t out_bytes; /* by ring */
	uint64_t back;	    /* times that one was given back to TCP */
	uint64_t reasons[REASON_COUNT];
	char program[STATS_PROGRAM_BYTES];
	struct stats_row rows[STATS_ROWS];
};

extern struct stats *stats; /* never NULL */
extern const char *const stats_reason_names[REASON_COUNT];

void stats_init(const char *program);
/* There is something to count: makes the memfd. */
void stats_start(void);
/* In the child after fork(): its own, from zero, when it has something to count. */
void stats_after_fork(void);
/* Appends one line of JSON to the file that CLAN_SOCKETS_STATS names. */
void stats_write(void);
/* A line on standard error, if CLAN_SOCKETS_VERBOSE is set or the matter is grave. */
void stats_log(bool grave, const char *format, ...) GMB_PRINTF(2, 3);

/* --- objects and their table ------------------------------------------------------------------ */

enum object_kind { OBJECT_CONN, OBJECT_SET, OBJECT_LISTENER, OBJECT_OTHER_LISTENER };

struct object {
	enum object_kind kind;
	uint32_t refs; /* descriptors */
	struct list_node pool_node;
};

extern _Atomic(struct object *) sockets_table[SOCKETS_FDS_MAX];
extern struct object sockets_listener;	     /* a rule names it */
extern struct object sockets_other_listener; /* none does */

static inline struct object *object_at(int fd)
{
	return (unsigned int)fd < SOCKETS_FDS_MAX
		       ? atomic_load_explicit(&sockets_table[fd], memory_order_acquire)
		       : NULL;
}

enum conn_state {
	CONN_FREE,
	CONN_PLAIN,	 /* on TCP: the program's calls go to the kernel, and are counted */
	CONN_LISTENING,	 /* the same; the acceptor waits for the other library */
	CONN_CONNECTING, /* the same; one of the libraries has not answered */
	CONN_CARRIED,	 /* every call is ours */
	CONN_STATE_COUNT
};

enum conn_touch {
	TOUCH_READ = 1, /* the program read */
	TOUCH_IN = 2,	/* something may have come */
	TOUCH_OUT = 4,	/* there may be room */
};

/* Does a connection move more than its rings have room for? data.c */
struct conn_bulk {
	bool on;	     /* its rings are the large ones, or will be */
	uint32_t fulls;	     /* writes that found less room than they needed, */
	uint64_t fulls_from; /* since ring_out was this */
	uint64_t in;	     /* of ring_in: what came in large pieces */
};

struct conn {
	struct object object;
	_Atomic(uint32_t) state; /* enum conn_state */
	/* Calls that are in the kernel on behalf of a connection that was not carried. */
	_Atomic(uint32_t) plain_readers;
	_Atomic(uint32_t) plain_writers;
	_Atomic(uint32_t) pins;	 /* calls of ours that sleep */
	_Atomic(uint32_t) calls; /* of the kind that decides: reads of an acceptor, else writes */
	_Atomic(uint32_t) next_look; /* the number of calls at which something is tried */
	struct switch_side side;
	uint64_t ring_in; /* of the bytes of side: what the kernel has not counted */
	uint64_t ring_out;
	struct conn_bulk bulk;
	uint32_t after;	  /* calls before it is carried; more each time it comes back */
	uint32_t attempt; /* of the connector */
	bool connector;
	bool passed;		 /* to another process or program, of which nothing is known */
	struct holders *holders; /* of those that lived through a fork; process.c */
	bool named;		 /* the addresses below are known */
	int fd;			 /* one of its descriptors */
	struct rules_address local;
	struct rules_address remote;
	struct clan_conn *clan; /* NULL: none */
	int listen_fd;		/* -1: none */
	int kept_fd;		/* during an exec that must not pass it on; -1: none */
	struct linger kept_linger;
	bool offered; /* the clan connection waits for our answer */

	/* Carried. */
	bool nonblocking;
	uint64_t in_limit_ns; /* SO_RCVTIMEO; 0: none */
	uint64_t out_limit_ns;
	bool out_full;	 /* the ring had no room; READY will tell */
	uint32_t sends;	 /* since somebody looked at the descriptors */
	bool lost;	 /* the clan connection has ended */
	bool tcp_event;	 /* something happened on the TCP connection */
	bool stranded;	 /* after a fork: what came by ring is the parent's */
	uint8_t *buffer; /* taken from the ring, and not yet read */
	size_t buffer_at;
	size_t buffer_end;
	size_t buffer_bytes;   /* allocated */
	bool buffer_shared;    /* since a fork others have the same in theirs; process.c */
	uint64_t buffer_taken; /* holders->taken when buffer_at was right */
	uint32_t ops;	       /* for "switch-every" */
	struct stats_row *row;

	uint32_t touched; /* enum conn_touch */
	struct list_node touched_node;
	struct list_node members;      /* struct member */
	struct list_node carried_node; /* in core.carried */
};

static inline struct conn *conn_of(struct object *object)
{
	return object != NULL && object->kind == OBJECT_CONN
		       ? container_of(object, struct conn, object)
		       : NULL;
}
static inline struct conn *conn_at(int fd)
{
	return conn_of(object_at(fd));
}
static inline enum conn_state conn_state(const struct conn *conn)
{
	return atomic_load_explicit(&conn->state, memory_order_acquire);
}
static inline bool conn_is_carried(const struct conn *conn)
{
	return conn_state(conn) == CONN_CARRIED;
}
/* The end of a call that was counted, but perhaps not in this process: a handler has forked. */
static inline void conn_count_off(_Atomic(uint32_t) *calls)
{
	if (atomic_load(calls) > 0) {
		atomic_fetch_sub(calls, 1);
	}
}
/* Of what a connection had in its buffer at a fork each byte is for whoever reads it first. Skips
 * what others have read. */
void process_look(struct conn *conn);
/* Takes bytes that are to be read from buffer_at, and returns how many of them it has got. */
size_t process_take(struct conn *conn, size_t bytes);

static inline size_t conn_buffered(struct conn *conn)
{
	if (conn->buffer_shared) {
		process_look(conn);
	}
	return conn->buffer_end - conn->buffer_at;
}

/* An epoll set of the program's. */
struct set {
	struct object object;
	int fd;
	_Atomic(bool) has_core; /* core.epoll_fd is in it */
	bool watched;		/* it is in another set */
	uint32_t dozing;	/* threads that sleep in it without core.epoll_fd */
	uint32_t core_adds;	/* how often core.epoll_fd has been put into it */
	uint64_t core_epoch;	/* of those that slept then */
	uint32_t managed;	/* members of carried connections */
	uint32_t looks;		/* without a look at the kernel's set */
	uint64_t looked_ns;
	struct list_node members;
	struct list_node ready;
};

static inline struct set *set_at(int fd)
{
	struct object *object = object_at(fd);

	return object != NULL && object->kind == OBJECT_SET
		       ? container_of(object, struct set, object)
		       : NULL;
}

struct member {
	struct set *set;
	struct conn *conn;
	int fd;
	struct epoll_event event;
	bool managed;  /* by us; the kernel's set does not have it */
	bool disabled; /* EPOLLONESHOT was used up */
	bool edge_in;
	bool edge_out;
	struct list_node set_node;
	struct list_node conn_node;
	struct list_node ready_node;
};

static inline bool set_has_core(const struct set *set)
{
	return atomic_load_explicit(&set->has_core, memory_order_acquire);
}

/* --- core.c ----------------------------------------------------------------------------------- */

struct core_sleep {
	uint64_t epoch;	   /* of core_sleep() */
	struct conn *conn; /* pinned, or NULL */
};

struct core {
	struct rules rules;
	_Atomic(bool) active;	  /* a rule may apply to this program */
	struct clan_queue *queue; /* NULL until it is needed */
	int epoll_fd; /* the queue, kick_fd and the TCP sockets of carried connections */
	int kick_fd;
	uint64_t tag; /* data of epoll_fd in the program's sets */
	_Atomic(uint32_t) sleepers;
	_Atomic(uint32_t) kick_left; /* sleepers that have not seen the last kick */
	uint32_t kick_waiters;	     /* threads that wait for that */
	uint64_t kick_epoch;
	bool news; /* something happened that sleepers may wait for */
	uint32_t own_fds;
	struct list_node touched;
	struct list_node carried;
	int fds_end; /* above every descriptor in the table */
};

extern struct core core;
#define CORE_THREAD _Thread_local __attribute__((tls_model("initial-exec")))
extern CORE_THREAD int core_depth;	   /* this thread has the lock, or waits for it */
extern CORE_THREAD int core_crashed;	   /* why handlers do not wait for core_unlock() */
extern CORE_THREAD uint64_t core_deferred; /* signals that wait for core_unlock(), from bit 0 */

/* Does libclan call, for who has the lock? */
static inline bool core_calls(void)
{
	return core_depth > 0 && core_crashed == 0;
}

/* False, with errno EINTR: this thread has the lock already, we are in the handler of a crash. */
GMB_MUST_CHECK bool core_lock(void);
void core_unlock(void);
/* The queue and what belongs to it. Negative errno: cannot be had. */
GMB_MUST_CHECK int core_start(void);
/* Takes what has happened; all: also where looking costs a system call. */
void core_look(bool all);
/* Before sleeping, with the lock. 0: unlocked, with the number for core_slept(); 1: look again;
 * -EINTR. */
GMB_MUST_CHECK int core_sleep(uint64_t *epoch_out);
/* After sleeping, without the lock: takes it again. */
void core_slept(uint64_t epoch);
/* Sleeps until core.epoll_fd tells of something, and takes that; without the lock, with which it
 * returns. left: NULL = for ever. How many descriptors there were, 0: the time has passed, or
 * -EINTR. A point of cancellation. */
int core_wait(struct core_sleep *sleep, const struct timespec *left, const sigset_t *mask);
/* The thread was cancelled while it slept (pthread_cleanup_push()); a struct core_sleep. */
void core_cancelled(void *sleep);
/* With the lock: so many more threads, which sleep already, will be woken by core.epoll_fd. Returns
 * the number for core_woke(), which each of them calls when it has the lock. */
uint64_t core_wakes(uint32_t more);
void core_woke(uint64_t epoch);
void core_after_fork(void);
/* A descriptor of ours: moved out of the program's way. Returns its number. */
int core_own(int fd);
bool core_owns(int fd);
void core_disown(int fd);

/* --- conn.c ----------------------------------------------------------------------------------- */

/* A connection that a rule names begins at fd. */
void conn_track(int fd, bool connector);
/* Never carries it (again): leaves it to the kernel and forgets it. Not while it is carried. */
void conn_forget(struct conn *conn, enum sockets_reason reason);
/* The same, uncounted. */
void conn_untrack(struct conn *conn);
/* Begins to give it back to TCP. */
void conn_leave(struct conn *conn, enum sockets_reason reason);
/* The same for one that is not carried: forgets it. */
void conn_unfit(struct conn *conn, enum sockets_reason reason);
/* Gives back all that are chosen, and waits for at most timeout_ms. The lock is given up in
 * between: connections may be closed meanwhile. */
void conn_bring_back(
	bool (*choose)(struct conn *conn), enum sockets_reason reason, uint32_t timeout_ms);
/* The same for one. True: it is on TCP, or closed. */
bool conn_bring_back_one(struct conn *conn, enum sockets_reason reason, uint32_t timeout_ms);
/* The reader waits at both places now, if no plain call is left. */
void conn_say_may(struct conn *conn);
/* Both directions on TCP? Then the clan connection is closed, and when nothing is buffered, the
 * connection is plain. */
void conn_settle(struct conn *conn);
/* The other end broke a rule: resets the TCP connection. */
void conn_broken(struct conn *conn, const char *what);
/* Takes what the other library has said; when it has said nothing, that costs one load. */
void conn_take_messages(struct conn *conn);
void conn_event(const struct clan_event *event);
void conn_touch(struct conn *conn, uint32_t what);
/* What is written from here on goes by ring, if the peer waits there. */
void conn_go(struct conn *conn);
/* Descriptors come and go; with the lock. */
void object_add(int fd, struct object *object);
void object_remove(int fd);
/* It was closed by a call that we did not see, and the number is another's now. */
void object_replaced(int fd);
void conn_after_fork(void);
/* For meet.c. Must be an edge of conn_edges. */
void conn_set_state(struct conn *conn, enum conn_state state);
void conn_stop_listening(struct conn *conn);
/* What happens on TCP makes events of core.epoll_fd from now on. */
void conn_watch_tcp(struct conn *conn);

/* --- meet.c ----------------------------------------------------------------------------------- */

/* Tries what is due: meeting the other library, carrying. With the lock. */
void conn_advance(struct conn *conn);
/* Both libraries are there: the last check, and it is carried. */
void conn_meet(struct conn *conn);
/* conn_advance() is called again when there were so many calls. */
void conn_look_again_at(struct conn *conn, uint32_t calls);
/* Looks which time-outs of its calls the socket has. */
void conn_learn_limits(struct conn *conn);

/* --- data.c ----------------------------------------------------------------------------------- */

/* Carried connections, with the lock. Each returns a count or a negative errno. */

/* One attempt; never sleeps. flags: MSG_PEEK, MSG_TRUNC. */
ssize_t data_receive(struct conn *conn, const struct iovec *iov, int iov_count, int flags);
ssize_t data_send(struct conn *conn, const struct iovec *iov, int iov_count);
/* It has gone back to TCP: is it to get larger rings, which it did not have? True once. */
bool data_grows(struct conn *conn);
/* Takes what the ring has into the buffer, until that has bytes_max or more. */
void data_pull(struct conn *conn, size_t bytes_max);
/* What poll() would say, of all conditions. */
short data_ready(struct conn *conn);
/* The whole call, lock included, as recvmsg() and sendmsg() of a carried connection. *plain_out: it
 * is not carried any more, and nothing was done. */
ssize_t data_recv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out);
ssize_t data_sendv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out);
/* After EINTR: do all handlers of signals want calls to be restarted? */
bool data_restarts(void);

/* --- wait.c ----------------------------------------------------------------------------------- */

/* When such a wait ends: 0 = at once, UINT64_MAX = never (NULL, and what no clock holds). */
uint64_t wait_deadline(const struct timespec *timeout);
int wait_poll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
/* Sleeps until something of the connection may have changed; the lock is given up in between, and
 * the connection may have been forgotten (CONN_FREE). events: what of the TCP socket, 0 = nothing
 * but what core.epoll_fd says. 0; -EAGAIN: the deadline (0: none) has passed; -EINTR; -EBADF: it
 * was closed. */
int wait_conn(struct conn *conn, short events, uint64_t deadline_ns);
/* Sleeps until anything happens, at most for so long; the lock is given up in between. No point of
 * cancellation. */
void wait_moment(uint32_t ms);
/* Does poll() of these have to be ours? */
bool wait_is_ours(struct pollfd *fds, nfds_t count);

/* --- epoll.c ---------------------------------------------------------------------------------- */

void epoll_track(int fd);
int epoll_control(struct set *set, int op, int fd, struct epoll_event *event);
int epoll_take(struct set *set, struct epoll_event *events, int max, const struct timespec *timeout,
	const sigset_t *mask);
/* The kernel's wait in any set; timeout NULL: for ever. A kernel before 5.11 has no epoll_pwait2(),
 * and needs none for that. Negative errno. */
int epoll_wait_in_kernel(int fd, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask);
/* Is a member ready? */
bool epoll_set_is_ready(struct set *set);
/* The connection is carried: its members are ours. False: a use that is not stood for. */
bool epoll_conn_fits(struct conn *conn);
void epoll_conn_carried(struct conn *conn);
void epoll_conn_plain(struct conn *conn);
/* Is the descriptor in a set? */
bool epoll_has(const struct conn *conn, int fd);
/* A descriptor is about to be closed. */
void epoll_fd_closes(struct conn *conn, int fd);
void epoll_set_closes(struct set *set);
/* What the child need not inherit. */
void epoll_before_fork(void);
void epoll_after_fork(void);

/* --- process.c -------------------------------------------------------------------------------- */

void process_init(void);
/* fork() has returned -1 in this thread: there is no child that has the connections. errno stays.
 */
void process_fork_failed(void);
/* Does no other process that we know of have the connection? A system call for each. */
bool process_is_sole(struct conn *conn);
/* The same, and no program that is being started gets it. */
bool process_may_carry(struct conn *conn);
/* This process has it no more. */
void process_closes(struct conn *conn);
/* Before the program is replaced. What it has not read of a connection the next one cannot get: it
 * gets a socket that is not connected instead. Returns with the lock, for process_exec_failed();
 * false: without. */
GMB_MUST_CHECK bool process_before_exec(void);
/* The program was not replaced. errno stays. */
void process_exec_failed(bool began);
/* Around a call that starts another program with descriptors of this one. */
bool process_before_spawn(void);
void process_after_spawn(const bool *began);
/* A message that may pass descriptors to another process. False: one of them has bytes that the
 * program has not read, and that would be lost. */
GMB_MUST_CHECK bool process_passes(const struct msghdr *message);

/* --- hooks_signal.c --------------------------------------------------------------------------- */

/* From now on handlers of the program run when nobody in their thread has the lock. */
void signals_init(void);
/* Without the lock: the handlers of core_deferred. */
void signals_let_in(void);
/* A signal whose handler cannot wait. */
bool signals_is_crash(int number);

/* --- memory of a call ------------------------------------------------------------------------- */

/* Of a pointer that is to be freed at the end of its block, also when the thread is cancelled. */
#define SOCKETS_AUTO_FREE __attribute__((cleanup(sockets_auto_free)))
static inline void sockets_auto_free(void *pointer)
{
	free(*(void **)pointer);
}

/* --- plain.c ---------------------------------------------------------------------------------- */

/* Where a call on a descriptor goes. */
enum way {
	WAY_KERNEL, /* it is none of ours */
	WAY_PLAIN,  /* to the kernel, between plain_enter() and plain_leave() */
	WAY_OURS,   /* it is carried */
};
/* A call that may be in the kernel. A variable PLAIN_CALL is left at the end of its block, also
 * when the thread is cancelled. */
struct plain_call {
	struct conn *conn;
	bool writes;
	bool entered;
	ssize_t bytes; /* what it has moved, if anything */
};
#define PLAIN_CALL __attribute__((cleanup(plain_leave))) struct plain_call
/* Tries what is due first. */
enum way plain_enter(int fd, bool writes, struct plain_call *call);
/* errno stays. */
void plain_leave(struct plain_call *call);
