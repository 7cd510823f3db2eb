// SPDX-License-Identifier: Apache-2.0
/*
 * Private interface of libclan-sockets.so. The library is placed between a program and the C
 * library (LD_PRELOAD) and carries stream connections between processes of one machine over
 * libclan. The TCP connection stays open: it provides the descriptor and the name, and the
 * connection can return to it; docs/design/0017-middleware.md.
 *
 * A connection that matches a rule is *tracked*. A tracked connection is *plain* while its bytes go
 * through TCP, and *carried* while they go through the rings of a libclan connection. A call is
 * plain if it goes to the kernel, and emulated if the library performs it itself.
 *
 *   hooks_*.c      the names of the C library; calls on untracked descriptors go straight to it
 *     │
 *   plain.c  data.c  wait.c  epoll.c  process.c   reading and writing, waiting, fork and exec
 *     │
 *   conn.c  meet.c ──▶ switch.c             life of a connection, and the route of its bytes
 *     │
 *   core.c ──▶ libclan                      the lock, the queue, sleeping
 *
 * Threading: one lock (core_lock()) guards all state, except for the table of descriptors and the
 * counters of connections that are not carried, which are atomic. A thread never sleeps while it
 * holds the lock. Signal handlers of the program are deferred until their thread has released the
 * lock (hooks_signal.c). Handlers of crash signals (such as SIGSEGV) are not deferred; in such a
 * handler, calls on tracked descriptors fail with EINTR. Calls that can sleep are cancellation
 * points at their beginning and while they sleep.
 *
 * Ownership: objects belong to the table of descriptors. Connections and sets are kept in pools and
 * never unmapped, so that a reader without the lock always finds an object of the same kind.
 *
 * Errors: hooks fail like the calls that they replace, with -1 and errno. Internal functions return
 * a negative errno.
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
#include "base/spin.h"
#include "sockets/compare.h"
#include "sockets/rules.h"
#include "sockets/switch.h"

enum {
	SOCKETS_FDS_MAX = 65536,
	/* Limits on the buffer of a connection, which holds bytes that were taken from the ring
	 * before the program read them. LOOK_BYTES applies to reading ahead, BUFFER_BYTES before a
	 * fork, which must leave no bytes in the ring. */
	SOCKETS_LOOK_BYTES = 1048576,
	SOCKETS_BUFFER_BYTES = 64 << 20,
	SOCKETS_IOV_MAX = 1024,
};

/* --- counting (stats.c) ----------------------------------------------------------------------- */

/* Reasons why a connection stays on TCP, or returns to TCP. */
enum sockets_reason {
	REASON_NOBODY,	  /* the other end does not run the library */
	REASON_REFUSED,	  /* the library at the other end refused */
	REASON_REMOTE,	  /* the other end is not in this network namespace */
	REASON_IDENTITY,  /* the library at the other end runs as another user */
	REASON_NAME,	  /* the name at which the libraries meet is in use */
	REASON_COUNTS,	  /* bytes were moved by calls that the library does not see */
	REASON_RESOURCES, /* memory or descriptors */
	REASON_OPTION,	  /* a socket option that is not emulated */
	REASON_CALL,	  /* a call that is not emulated */
	REASON_EPOLL,	  /* a use of epoll that is not emulated */
	REASON_FULL,	  /* the ring stayed full */
	REASON_BULK,	  /* the ring was full repeatedly, so a larger one is set up */
	REASON_COMPARE,	  /* its time on TCP must be measured */
	REASON_SLOW,	  /* it is faster on TCP */
	REASON_SHUTDOWN,  /* one direction was shut down */
	REASON_FORK,
	REASON_EXEC,
	REASON_PASSED, /* passed to another process */
	REASON_PEER,   /* requested by the other end */
	REASON_BROKEN, /* the other end broke a rule */
	REASON_ASKED,  /* requested by the test option "switch-every" */
	REASON_COUNT
};

enum { STATS_ROWS = 1024, STATS_PROGRAM_BYTES = 32, STATS_NAME_BYTES = 96 };
#define STATS_MAGIC UINT64_C(0x3174617473636c63) /* "clcstat1" */

struct stats_row { /* a row for a carried connection */
	char name[STATS_NAME_BYTES];
	uint64_t in_bytes;
	uint64_t out_bytes;
	uint32_t used;
	int32_t fd;
};

/* The statistics of a process, in a memfd named "clan-sockets", which clan-run --show reads. */
struct stats {
	uint64_t magic;
	uint64_t tracked; /* connections that match a rule */
	uint64_t carried; /* times that a connection became carried */
	uint64_t in_bytes;
	uint64_t out_bytes; /* bytes written to rings */
	uint64_t back;	    /* times that a connection returned to TCP */
	uint64_t reasons[REASON_COUNT];
	char program[STATS_PROGRAM_BYTES];
	struct stats_row rows[STATS_ROWS];
};

extern struct stats *stats; /* never NULL */
extern const char *const stats_reason_names[REASON_COUNT];

void stats_init(const char *program);
/* Creates the memfd. Called before the first count. */
void stats_start(void);
/* In the child after fork(): starts its own statistics, from zero. */
void stats_after_fork(void);
/* Appends one line of JSON to the file named by CLAN_SOCKETS_STATS. */
void stats_write(void);
/* Writes a line to standard error if CLAN_SOCKETS_VERBOSE is set or grave is true. */
void stats_log(bool grave, const char *format, ...) GMB_PRINTF(2, 3);

/* --- objects and their table ------------------------------------------------------------------ */

enum object_kind { OBJECT_CONN, OBJECT_SET, OBJECT_LISTENER, OBJECT_OTHER_LISTENER };

struct object {
	enum object_kind kind;
	uint32_t refs; /* number of descriptors */
	struct list_node pool_node;
};

extern _Atomic(struct object *) sockets_table[SOCKETS_FDS_MAX];
extern struct object sockets_listener;	     /* a listener that matches a rule */
extern struct object sockets_other_listener; /* a listener that matches no rule */

static inline struct object *object_at(int fd)
{
	return (unsigned int)fd < SOCKETS_FDS_MAX
		       ? atomic_load_explicit(&sockets_table[fd], memory_order_acquire)
		       : NULL;
}

enum conn_state {
	CONN_FREE,
	CONN_PLAIN,	 /* on TCP: calls go to the kernel and are counted */
	CONN_LISTENING,	 /* as CONN_PLAIN; the acceptor waits for the other library */
	CONN_CONNECTING, /* as CONN_PLAIN; the libraries are connecting */
	CONN_CARRIED,	 /* all calls are emulated */
	CONN_STATE_COUNT
};

enum conn_touch {
	TOUCH_READ = 1, /* the program has read bytes */
	TOUCH_IN = 2,	/* data might have arrived at the connection */
	TOUCH_OUT = 4,	/* there might be room for data of the program */
};

/* Detection of connections that move more data than their rings hold; see count_full() in
 * data.c. */
struct conn_bulk {
	bool on;	     /* the rings are large, or will be */
	uint32_t fulls;	     /* writes for which the ring had too little room */
	uint64_t fulls_from; /* value of ring_out when `fulls` was last set to 0 */
	uint64_t in;	     /* part of ring_in that was read in large pieces */
};

struct conn {
	struct object object;
	_Atomic(uint32_t) state; /* enum conn_state */
	/* Reads and writes in the kernel that started while the connection was on TCP. */
	_Atomic(uint32_t) plain_readers;
	_Atomic(uint32_t) plain_writers;
	_Atomic(uint32_t) pins; /* emulated calls that sleep; they prevent reuse of the object */
	/* Number of calls since tracking began, or since the connection last returned to TCP: reads
	 * for an acceptor, writes for a connector. When it reaches next_look, conn_advance() is
	 * called. */
	_Atomic(uint32_t) calls;
	_Atomic(uint32_t) next_look; /* value of calls at which conn_advance() is called next */
	struct switch_side side;
	/* Bytes in side.in and side.out that went through rings, so the kernel has not counted
	 * them. */
	uint64_t ring_in;
	uint64_t ring_out;
	struct conn_bulk bulk;
	/* The group of the connection; NULL: it is not compared, or was not carried yet. */
	_Atomic(struct compare *) compare;
	_Atomic(uint64_t) asked_ns; /* when a round trip began; 0: none has begun */
	bool is_compared;	    /* counted in compare->carried */
	/* number of wake-ups of the peer until the last sample; UINT64_MAX: the next wake-ups are
	 * not counted, up to a sample */
	uint64_t bells;
	uint32_t after; /* calls before the first conn_advance(); grows with each return to TCP */
	bool connector;
	bool unmet;  /* the connector has not found the acceptor yet, and is counted so */
	bool passed; /* passed to an unknown process or program */
	struct holders *holders; /* processes with the connection; NULL before the first fork */
	bool named;		 /* local and remote are set */
	int fd;			 /* one of the connection's descriptors */
	struct rules_address local;
	struct rules_address remote;
	struct clan_conn *clan; /* NULL if there is none */
	int listen_fd;		/* -1 if there is none */
	uint64_t listens_to;	/* value of side.in before which the acceptor does not give up */
	int kept_fd; /* during an exec: a duplicate that the executed program does not inherit; else
			-1 */
	struct linger kept_linger;
	bool offered; /* conn_meet() must be called again when no calls are in progress */

	/* Carried. */
	bool nonblocking;
	uint64_t in_limit_ns; /* timeout of reads (SO_RCVTIMEO); 0: none */
	uint64_t out_limit_ns;
	bool out_full;	 /* the ring had no room; the event READY will report new room */
	uint32_t sends;	 /* writes since the descriptors were last checked */
	bool lost;	 /* the clan connection has ended */
	bool tcp_event;	 /* an event of the TCP connection has not been processed */
	bool stranded;	 /* after a fork: the bytes in the ring belong to the parent */
	uint8_t *buffer; /* bytes taken from the ring and not read by the program yet */
	size_t buffer_at;
	size_t buffer_end;
	size_t buffer_bytes;   /* allocated size of buffer */
	bool buffer_shared;    /* a fork has copied the buffer to other processes; process.c */
	uint64_t buffer_taken; /* value of holders->taken to which buffer_at corresponds */
	uint32_t ops;	       /* calls, for "switch-every" */
	bool is_slow;	  /* it returns to TCP because the ring is not faster; both ends know it */
	bool spins_again; /* the thread must try polling again before it compares */
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
/* Ends a counted call. The counter can be 0 already, if a signal handler has forked during the call
 * and this is the child. */
static inline void conn_count_off(_Atomic(uint32_t) *calls)
{
	if (atomic_load(calls) > 0) {
		atomic_fetch_sub(calls, 1);
	}
}
/* After a fork, each byte that was in the buffer goes to the process that reads it first. Skips the
 * bytes that other processes have read. */
void process_look(struct conn *conn);
/* Claims bytes at buffer_at for this process. Returns the number of bytes that it got. */
size_t process_take(struct conn *conn, size_t bytes);

static inline size_t conn_buffered(struct conn *conn)
{
	if (conn->buffer_shared) {
		process_look(conn);
	}
	return conn->buffer_end - conn->buffer_at;
}

/* An epoll set of the program. */
struct set {
	struct object object;
	int fd;
	_Atomic(bool) has_core; /* the set contains core.epoll_fd */
	bool watched;		/* the set is a member of another set */
	uint32_t dozing;	/* threads that wait in the kernel while the set does not contain
				   core.epoll_fd; see doze() */
	uint32_t core_adds;	/* number of times that core.epoll_fd was added */
	uint64_t core_epoch;	/* value of core.kick_epoch when core.epoll_fd was added */
	uint32_t managed;	/* number of managed members */
	uint32_t looks;		/* waits since the kernel's set was checked */
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
	bool managed; /* the library reports its events, and the kernel's set does not contain it */
	bool disabled; /* EPOLLONESHOT has fired */
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
	uint64_t epoch;	   /* kick epoch from core_sleep() */
	struct conn *conn; /* pinned during the sleep; or NULL */
};

/* The polling of one wait; zero at its beginning. */
struct core_poll {
	bool has_begun;
	bool goes_on;
	bool news; /* core_changed() was called */
};

struct core {
	struct rules rules;
	_Atomic(bool) active;	  /* a rule might apply to this program */
	struct clan_queue *queue; /* NULL until first needed */
	int epoll_fd;		  /* watches the queue, kick_fd, and the TCP sockets below rings */
	int kick_fd;
	uint64_t tag; /* identifies core.epoll_fd in the program's sets */
	_Atomic(uint32_t) sleepers;
	_Atomic(uint32_t) kick_left; /* sleepers that the last kick() has not woken yet */
	uint32_t kick_waiters;	     /* threads that wait until kick_left is 0 */
	uint64_t kick_epoch;
	bool news;	  /* a change that sleepers might wait for; core_unlock() then wakes them */
	uint64_t changes; /* number of calls of core_changed() */
	uint64_t sleeps;
	uint64_t reads; /* reads that returned data of carried connections */
	uint32_t own_fds;
	struct list_node touched;
	struct list_node carried;
	int fds_end; /* greater than every descriptor in the table */
};

extern struct core core;
#define CORE_THREAD _Thread_local __attribute__((tls_model("initial-exec")))
extern CORE_THREAD int core_depth;   /* above 0: this thread holds the lock, or waits for it */
extern CORE_THREAD int core_crashed; /* greater than 0 while signals are not deferred */
/* Signals whose handlers are deferred until core_unlock(); bit 0 is signal 1. */
extern CORE_THREAD uint64_t core_deferred;
/* How this thread waits for carried connections. */
extern CORE_THREAD struct spinner core_spinner;

/* Returns true if the caller is libclan itself, within a call of the thread that holds the lock. */
static inline bool core_calls(void)
{
	return core_depth > 0 && core_crashed == 0;
}

/* Takes the lock. Returns false, with errno EINTR, if this thread holds it already, which happens
 * only in the handler of a crash. */
GMB_MUST_CHECK bool core_lock(void);
void core_unlock(void);
/* Creates the queue and its descriptors, if they do not exist. Returns 0 or a negative errno. */
GMB_MUST_CHECK int core_start(void);
/* Processes pending events. all: also checks sources whose check costs a system call. */
void core_look(bool all);
/* Called with the lock when something has changed for which a thread might wait. */
void core_changed(void);
/* Polls before a sleep, if this makes the calls of this thread faster. Called with the lock, until
 * it returns false or the wait is over; keeps the lock, but returns false if another thread waits
 * for the lock, or sleeps while there is an event that it may wait for. deadline_ns: end of the
 * wait; UINT64_MAX: none. Returns true if the caller must check again: poll->news, or descriptors
 * that only the kernel checks. */
GMB_MUST_CHECK bool core_polls(struct core_poll *poll, uint64_t deadline_ns);
/* Prepares for sleeping; called with the lock. Returns 0 if the caller may sleep: the lock is
 * released, and *epoch_out is the argument for core_slept(). Returns 1 if the caller must check
 * again, or -EINTR; the lock is held in both cases. */
GMB_MUST_CHECK int core_sleep(uint64_t *epoch_out);
/* Called after sleeping, without the lock. Takes the lock. */
void core_slept(uint64_t epoch);
/* Sleeps until core.epoll_fd is readable, and processes its events. Called without the lock;
 * returns with it. left: NULL = no limit. Returns the number of ready descriptors, 0 after the time
 * has passed, or -EINTR. A cancellation point. */
int core_wait(struct core_sleep *sleep, const struct timespec *left, const sigset_t *mask);
/* Cleanup handler for threads that are cancelled while they sleep (pthread_cleanup_push()). sleep:
 * a struct core_sleep. */
void core_cancelled(void *sleep);
/* Adds `more` threads to the sleepers. They already wait in an epoll set to which core.epoll_fd has
 * just been added, so it wakes them as well. Called with the lock. Returns the argument for
 * core_woke(), which each of the threads calls with the lock. */
uint64_t core_wakes(uint32_t more);
void core_woke(uint64_t epoch);
void core_after_fork(void);
/* Makes fd a descriptor of the library, and moves it to a high number, out of the program's way.
 * Returns its new number. */
int core_own(int fd);
bool core_owns(int fd);
void core_disown(int fd);

/* --- conn.c ----------------------------------------------------------------------------------- */

/* Starts to track the connection at fd, which matches a rule. */
void conn_track(int fd, bool connector);
/* Stops tracking a connection for good, and leaves it to the kernel. The connection must be on
 * TCP. */
void conn_forget(struct conn *conn, enum sockets_reason reason);
/* Like conn_forget(), without counting a reason. */
void conn_untrack(struct conn *conn);
/* Starts to move a connection from its rings back to TCP: later writes go to TCP, and the message
 * SWITCH makes the peer do the same. */
void conn_leave(struct conn *conn, enum sockets_reason reason);
/* The same for all connections of the group. */
void conn_leave_group(const struct compare *group, enum sockets_reason reason);
/* If the connection uses rings, returns it to TCP for good. Otherwise stops tracking it. */
void conn_unfit(struct conn *conn, enum sockets_reason reason);
/* Returns to TCP all connections for which choose() returns true, and waits for this up to
 * timeout_ms. The lock is released during the wait, so connections can be closed. */
void conn_bring_back(
	bool (*choose)(struct conn *conn), enum sockets_reason reason, uint32_t timeout_ms);
/* Returns one connection to TCP, like conn_bring_back(). Returns true if it is on TCP or closed. */
bool conn_bring_back_one(struct conn *conn, enum sockets_reason reason, uint32_t timeout_ms);
/* Sends MAY, once, when no read that started on TCP is in the kernel any more (plain_readers). It
 * permits the peer to write to the ring, because our reads now accept bytes from both TCP and the
 * ring. */
void conn_say_may(struct conn *conn);
/* Completes the return to TCP. If both directions are on TCP, closes the clan connection. If the
 * buffer is empty as well, sets the state to CONN_PLAIN. */
void conn_try_plain(struct conn *conn);
/* The other end broke a rule: resets the TCP connection. */
void conn_broken(struct conn *conn, const char *what);
/* Processes messages of the library at the other end. Costs one load if there are none. */
void conn_take_messages(struct conn *conn);
void conn_event(const struct clan_event *event);
void conn_touch(struct conn *conn, uint32_t what);
/* If the peer permits it (MAY), and no write that started on TCP is in the kernel any more
 * (plain_writers), moves later writes to the ring and sends GO. */
void conn_go(struct conn *conn);
/* Change the table of descriptors; called with the lock. */
void object_add(int fd, struct object *object);
void object_remove(int fd);
/* Called when the descriptor was closed by a call that the library did not see, and its number has
 * been reused. */
void object_replaced(int fd);
void conn_after_fork(void);
/* Used by meet.c. The transition must be permitted by conn_edges. */
void conn_set_state(struct conn *conn, enum conn_state state);
void conn_stop_listening(struct conn *conn);
/* Adds the TCP socket to core.epoll_fd, which then reports its events. */
void conn_watch_tcp(struct conn *conn);

/* --- meet.c ----------------------------------------------------------------------------------- */

/* Takes the next step from TCP to rings: finds the library at the other end, connects to it, or
 * starts to carry the connection. Called with the lock. */
void conn_advance(struct conn *conn);
/* Called when both libraries are connected: makes the final check, and moves the connection to
 * CONN_CARRIED. */
void conn_meet(struct conn *conn);
/* Sets the number of calls at which conn_advance() is called next. */
void conn_look_again_at(struct conn *conn, uint32_t calls);
/* Reads the send and receive timeouts of the socket. */
void conn_learn_limits(struct conn *conn);

/* --- data.c ----------------------------------------------------------------------------------- */

/* Called when a connection has returned to TCP. Returns true, once, if it should get larger
 * rings. */
bool data_grows(struct conn *conn);
/* Called before a write and after a read that returned data, carried or on TCP, if conn->compare
 * was not NULL. Need no lock. */
void data_asked(struct conn *conn);
void data_answered(struct conn *conn, enum compare_place place);
/* Moves bytes from the ring to the buffer, until the buffer holds bytes_max or the ring is
 * empty. */
void data_pull(struct conn *conn, size_t bytes_max);
/* Returns all conditions that poll() would report. */
short data_ready(struct conn *conn);
/* The complete call, including the lock, like recvmsg() and sendmsg(). *plain_out is true if the
 * connection has returned to TCP before a byte was moved: the caller must then use the kernel. */
ssize_t data_recv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out);
ssize_t data_sendv(
	struct conn *conn, const struct iovec *iov, int iov_count, int flags, bool *plain_out);

/* --- wait.c ----------------------------------------------------------------------------------- */

/* Returns the time at which the timeout ends: 0 = immediately, UINT64_MAX = never (NULL, or more
 * than a clock can represent). */
uint64_t wait_deadline(const struct timespec *timeout);
/* Returns the time until deadline_ns; zero if it has passed. */
struct timespec wait_left(uint64_t deadline_ns);
int wait_poll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
/* Sleeps until the state of the connection might have changed. The lock is released in between, and
 * the connection might no longer be tracked (CONN_FREE). events: conditions of the TCP socket to
 * wait for; 0 = only the events of core.epoll_fd. Returns 0, -EAGAIN if the deadline (0: none) has
 * passed, -EINTR, or -EBADF if it was closed. */
int wait_conn(struct conn *conn, short events, uint64_t deadline_ns);
/* Sleeps until any event, up to ms. The lock is released in between. Not a cancellation point. */
void wait_moment(uint32_t ms);
/* Returns true if poll() of the descriptors must be emulated. */
bool wait_is_ours(struct pollfd *fds, nfds_t count);

/* --- epoll.c ---------------------------------------------------------------------------------- */

void epoll_track(int fd);
int epoll_control(struct set *set, int op, int fd, struct epoll_event *event);
int epoll_take(struct set *set, struct epoll_event *events, int max, const struct timespec *timeout,
	const sigset_t *mask);
/* Waits in the kernel, in any set. timeout NULL: no limit; uses epoll_pwait(), because Linux before
 * 5.11 has no epoll_pwait2(). Returns a count or a negative errno. */
int epoll_wait_in_kernel(int fd, struct epoll_event *events, int max,
	const struct timespec *timeout, const sigset_t *mask);
/* Returns true if a member is ready. */
bool epoll_set_is_ready(struct set *set);
/* epoll_conn_fits() is called before a connection moves from TCP to rings, and returns false for a
 * use of epoll that is not emulated. The others are called after it has moved to rings, and after
 * it has returned to TCP. */
bool epoll_conn_fits(struct conn *conn);
void epoll_conn_carried(struct conn *conn);
void epoll_conn_plain(struct conn *conn);
/* Returns true if the descriptor is in a set. */
bool epoll_has(const struct conn *conn, int fd);
/* Called before a descriptor is closed. */
void epoll_fd_closes(struct conn *conn, int fd);
void epoll_set_closes(struct set *set);
/* Removes core.epoll_fd from sets that do not need it, so that a child does not inherit it. */
void epoll_before_fork(void);
void epoll_after_fork(void);

/* --- process.c -------------------------------------------------------------------------------- */

void process_init(void);
/* Called after fork() has returned -1 in this thread, so no child has the connections. Preserves
 * errno. */
void process_fork_failed(void);
/* Returns true if no other known process has the connection. Makes one system call for each known
 * process. */
bool process_is_sole(struct conn *conn);
/* Returns true if process_is_sole() does, and no program that is being started inherits the
 * connection. */
bool process_may_carry(struct conn *conn);
/* Called when this process has closed the connection: removes the process from conn->holders. */
void process_closes(struct conn *conn);
/* Called before exec. Bytes that the program has not read cannot be passed to the next program; it
 * gets an unconnected socket instead of such a connection. Returns true with the lock held, which
 * process_exec_failed() releases, or false without it. */
GMB_MUST_CHECK bool process_before_exec(void);
/* Called when exec has failed. Preserves errno. */
void process_exec_failed(bool began);
/* Called before and after a call that starts another program with descriptors of this one. */
bool process_before_spawn(void);
void process_after_spawn(const bool *began);
/* Called for a message that can pass descriptors to another process. Returns false if one
 * has unread bytes, which would be lost. */
GMB_MUST_CHECK bool process_passes(const struct msghdr *message);

/* --- hooks_signal.c --------------------------------------------------------------------------- */

/* Installs the deferral of signal handlers: from now on they run when their thread does not hold
 * the lock. */
void signals_init(void);
/* Runs the deferred handlers. Called without the lock. */
void signals_let_in(void);
/* Returns true for signals whose handler cannot be deferred. */
bool signals_is_crash(int number);

/* --- memory of a call ------------------------------------------------------------------------- */

/* Attribute of a pointer that is freed at the end of its block, also if the thread is cancelled. */
#define SOCKETS_AUTO_FREE __attribute__((cleanup(sockets_auto_free)))
static inline void sockets_auto_free(void *pointer)
{
	free(*(void **)pointer);
}

/* --- plain.c ---------------------------------------------------------------------------------- */

/* The route of a call on a descriptor. */
enum way {
	WAY_KERNEL, /* to the kernel: the descriptor is not tracked */
	WAY_PLAIN,  /* to the kernel, between calls of plain_enter() and plain_leave() */
	WAY_OURS,   /* to the library, because the connection uses rings */
};
/* A call that might be in the kernel. For a variable declared with PLAIN_CALL, plain_leave() is
 * called at the end of its block, also if the thread is cancelled. */
struct plain_call {
	struct conn *conn;
	bool writes;
	bool entered;
	ssize_t bytes; /* bytes moved, if any */
};
#define PLAIN_CALL __attribute__((cleanup(plain_leave))) struct plain_call
/* Performs the connection's next step if it is due, and returns the route of the call. */
enum way plain_enter(int fd, bool writes, struct plain_call *call);
/* Preserves errno. */
void plain_leave(struct plain_call *call);
