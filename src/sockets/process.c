// SPDX-License-Identifier: Apache-2.0
/*
 * Connections during fork, exec and spawn, and when descriptors are passed to other processes.
 *
 * Invariant: a connection is carried only while this process is its only known holder. Before a
 * fork or exec the connections return to TCP, because the private state of a ring cannot be shared.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sockets/real.h"
#include "sockets/sockets.h"

enum {
	FORK_WAIT_MS = 100,
	EXEC_WAIT_MS = 1000,
	PASS_WAIT_MS = 1000,
	HOLDERS_MAX = 8,
	HOLDERS_CHUNK = 2048,
	HOLDERS_LOOKS = 16,
};

/* --- who has a connection --------------------------------------------------------------------- */

/* The processes that have a connection, in memory shared by a process and its children. A process
 * is named by its PID namespace and its PID there. A dead process is detected by its PID. If this
 * is not possible (the PID has been reused, the process is in another namespace, or a child died
 * before it had a name), the connection stays on TCP. */
struct holders {
	_Atomic(uint64_t) names[HOLDERS_MAX]; /* 0: free entry */
	/* bytes that processes have claimed from buffers that existed at a fork; free-running */
	_Atomic(uint64_t) taken;
};

/* Name of a child that has not run yet: the forking process and the number of its fork. Also the
 * name of a process that has executed another program. */
#define UNNAMED		  (UINT64_C(1) << 63)
#define PID_BITS	  31
#define UNNAMED_PID_SHIFT 32
#define STARTED		  UINT32_MAX /* in place of a fork's number: has executed another program */

static uint64_t own_name;
static struct holders *chunk; /* the chunk that this process allocates from */
static uint32_t chunk_at;

/* Sets own_name. The namespace is 0 if it is unknown. */
static void name_self(void)
{
	struct stat space;
	uint64_t number = stat("/proc/self/ns/pid", &space) == 0 ? (uint32_t)space.st_ino : 0;

	own_name = number << PID_BITS | (uint32_t)getpid();
}

/* Replaces one occurrence of a name. Returns false if the name is not found. */
static bool sockets_process_replace(struct holders *holders, uint64_t old, uint64_t new)
{
	for (int i = 0; i < HOLDERS_MAX; i++) {
		uint64_t expected = old;

		if (atomic_compare_exchange_strong(&holders->names[i], &expected, new)) {
			return true;
		}
	}
	return false;
}

static bool lives(uint64_t name)
{
	uint64_t space = own_name >> PID_BITS;

	return (name & UNNAMED) != 0 || space == 0 || name >> PID_BITS != space ||
	       kill((pid_t)(name & (BIT(PID_BITS) - 1)), 0) == 0 || errno != ESRCH;
}

static bool has(struct holders *holders, uint64_t name)
{
	return sockets_process_replace(holders, name, name);
}

/* The name of a program that this process has executed, and that has inherited the connection. Such
 * a program can pass the connection to unknown processes. So its entry is never removed, and the
 * connection stays on TCP. */
static uint64_t started_name(void)
{
	return UNNAMED | (uint64_t)getpid() << UNNAMED_PID_SHIFT | STARTED;
}

/* Returns true if no living process has the connection, and then empties the struct, so that it can
 * be reused for another connection. Entries with a started_name() are ignored, because an executed
 * program no longer accesses the struct. */
static bool is_free(struct holders *holders)
{
	for (int i = 0; i < HOLDERS_MAX; i++) {
		uint64_t name = atomic_load(&holders->names[i]);
		bool started = (name & UNNAMED) != 0 && (uint32_t)name == STARTED;

		if (name == own_name || (name != 0 && !started && lives(name))) {
			return false;
		}
	}
	for (int i = 0; i < HOLDERS_MAX; i++) {
		atomic_store(&holders->names[i], 0);
	}
	return true;
}

/* Returns true if no other process has the connection. Removes dead processes. */
static bool is_sole(struct holders *holders)
{
	int saved = errno;
	bool sole = true;

	for (int i = 0; i < HOLDERS_MAX; i++) {
		uint64_t name = atomic_load(&holders->names[i]);

		if (name == 0 || name == own_name) {
			continue;
		}
		if (lives(name)) {
			sole = false;
		} else { /* frees the entry of a dead process, unless it has been reused */
			atomic_compare_exchange_strong(&holders->names[i], &name, 0);
		}
	}
	errno = saved;
	return sole;
}

/* Returns an unused struct, with this process as holder; NULL if there is no memory. Only the
 * process that created a chunk allocates from it. */
static struct holders *take_holders(void)
{
	struct holders *holders;
	bool is_taken;
	void *base;

	for (int i = 0; i < HOLDERS_LOOKS && chunk != NULL; i++) {
		holders = &chunk[chunk_at++ % HOLDERS_CHUNK];
		if (is_free(holders)) {
			is_taken = sockets_process_replace(holders, 0, own_name);
			GMB_ASSERT(is_taken);
			return holders;
		}
	}
	/* The old chunk stays mapped, because connections use its structs. */
	base = mmap(NULL, HOLDERS_CHUNK * sizeof(struct holders), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	chunk = base == MAP_FAILED ? NULL : base;
	if (chunk == NULL) {
		return NULL;
	}
	atomic_store(&chunk[0].names[0], own_name);
	chunk_at = 1;
	return &chunk[0];
}

/* Number of calls that are starting programs. */
static uint32_t spawning;

static bool stays_open(int fd)
{
	int flags = REAL(fcntl64)(fd, F_GETFD);

	return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

static bool survives_exec(struct conn *conn)
{
	bool survives = stays_open(conn->fd);

	for (int fd = 0; fd < core.fds_end && !survives && conn->object.refs > 1; fd++) {
		survives = conn_at(fd) == conn && stays_open(fd);
	}
	return survives;
}

bool process_is_sole(struct conn *conn)
{
	return conn->holders == NULL || is_sole(conn->holders);
}

bool process_may_carry(struct conn *conn)
{
	return process_is_sole(conn) && !conn->passed && (spawning == 0 || !survives_exec(conn));
}

void process_closes(struct conn *conn)
{
	if (conn->holders != NULL) {
		(void)sockets_process_replace(conn->holders, own_name, 0);
		conn->holders = NULL;
		conn->buffer_shared = false;
	}
}

/* Replaces a name in all connections that contain it. */
static void rename_held(uint64_t old, uint64_t new)
{
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn != NULL && conn->holders != NULL) {
			(void)sockets_process_replace(conn->holders, old, new);
		}
	}
}

/* --- bytes that were not read at a fork ------------------------------------------------------- */

void process_look(struct conn *conn)
{
	uint64_t taken = atomic_load(&conn->holders->taken);
	uint64_t bytes = taken - conn->buffer_taken;

	conn->buffer_at += MIN(bytes, (uint64_t)(conn->buffer_end - conn->buffer_at));
	conn->buffer_taken = taken;
	conn->buffer_shared = conn->buffer_at < conn->buffer_end;
}

size_t process_take(struct conn *conn, size_t bytes)
{
	uint64_t taken = conn->buffer_taken;

	if (!conn->buffer_shared) {
		return bytes;
	}
	/* All holders share the counter. The process that advances it gets the bytes. */
	while (!atomic_compare_exchange_strong(&conn->holders->taken, &taken, taken + bytes)) {
		process_look(conn);
		taken = conn->buffer_taken;
		bytes = MIN(bytes, conn->buffer_end - conn->buffer_at);
	}
	conn->buffer_taken = taken + bytes;
	return bytes;
}

/* Name that this thread's last fork gives to the child until the child runs; 0: no fork yet. */
static _Thread_local uint64_t fork_name __attribute__((tls_model("initial-exec")));
static uint32_t forks;

/* Called before a fork. Adds the future child, under the name fork_name, to the processes that have
 * the connection. */
static void share(struct conn *conn)
{
	bool counted;

	if (conn->holders == NULL) {
		conn->holders = take_holders();
	}
	counted = conn->holders != NULL && sockets_process_replace(conn->holders, 0, fork_name);
	if (!counted && conn->holders != NULL) {
		(void)is_sole(conn->holders); /* called to remove dead processes from the holders */
		counted = sockets_process_replace(conn->holders, 0, fork_name);
	}
	if (!counted) {
		conn_unfit(conn, REASON_FORK);
	}
	if (counted && conn->clan == NULL && !conn->buffer_shared && conn_buffered(conn) > 0) {
		conn->buffer_shared = true;
		conn->buffer_taken = atomic_load(&conn->holders->taken);
	}
}

/* --- fork ------------------------------------------------------------------------------------- */

/* Number of fork() calls in progress in handlers of crash signals that interrupted this thread
 * while it held the lock. For these, the functions below neither take nor release the lock. */
static _Thread_local int nested_forks __attribute__((tls_model("initial-exec")));

static bool is_any(struct conn *conn)
{
	return true;
}

/* Called before fork(). Returns all connections to TCP, so that parent and child can both use their
 * descriptors. The lock is released while it waits for the peers. */
static void sockets_process_before_fork(void)
{
	if (!core_lock()) {
		nested_forks++;
		return;
	}
	conn_bring_back(is_any, REASON_FORK, FORK_WAIT_MS);
	fork_name = UNNAMED | (uint64_t)getpid() << UNNAMED_PID_SHIFT | forks++ % STARTED;
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn != NULL && conn->fd == fd) {
			share(conn);
		}
	}
	epoll_before_fork();
}

static void parent_after_fork(void)
{
	if (nested_forks > 0) {
		nested_forks--;
		return;
	}
	core_unlock();
}

/* Runs in the child, which starts with a new queue, new statistics and no chunk. In the holders of
 * each connection, replaces the name that the parent has entered for this fork (fork_name) by the
 * name of the child. */
static void child_after_fork(void)
{
	name_self();
	if (nested_forks > 0) {
		nested_forks--;
		return;
	}
	core_after_fork();
	stats_after_fork();
	conn_after_fork();
	chunk = NULL; /* the chunk belongs to the parent */
	spawning = 0; /* the threads exist only in the parent */
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn == NULL || conn->fd != fd) {
			continue;
		}
		if (conn->holders != NULL) {
			(void)sockets_process_replace(conn->holders, fork_name, own_name);
		}
		if (conn_is_carried(conn) && !conn->stranded && core_start() == 0) {
			/* Another process might read the bytes in the buffer first. The next bytes
			 * of this process then come from TCP, so its events are watched. */
			conn_watch_tcp(conn);
			list_push_back(&core.carried, &conn->carried_node);
		}
	}
	epoll_after_fork();
	core_unlock();
}

void process_fork_failed(void)
{
	int saved = errno;

	if (fork_name != 0 && core_lock()) {
		rename_held(fork_name, 0);
		fork_name = 0;
		core_unlock();
	}
	errno = saved;
}

void process_init(void)
{
	name_self();
	/* If the handlers cannot be registered, the library stays inactive, because a child must
	 * not use the rings of its parent. */
	if (pthread_atfork(sockets_process_before_fork, parent_after_fork, child_after_fork) != 0) {
		atomic_store(&core.active, false);
	}
}

/* --- exec and spawn --------------------------------------------------------------------------- */

/* Keeps a duplicate of the descriptor in case exec fails. If exec succeeds, the kernel closes the
 * duplicate, and the peer gets a reset. Returns false if the duplicate cannot be made. */
static bool sockets_process_keep(struct conn *conn)
{
	const struct linger reset = { .l_onoff = 1 };
	socklen_t length = sizeof(conn->kept_linger);
	int fd = REAL(fcntl64)(conn->fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_LINGER, &conn->kept_linger, &length) != 0) {
		return false;
	}
	(void)REAL(setsockopt)(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	conn->kept_fd = core_own(fd);
	return true;
}

/* Called before exec if the ring has bytes that the program has not read. They are lost with the
 * program's memory, and the next program must not continue after the gap. So the next program gets
 * an unconnected socket in place of this one. */
static void withhold(struct conn *conn, int fd)
{
	int blank = REAL(socket)(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (blank >= 0 && (conn->kept_fd >= 0 || sockets_process_keep(conn))) {
		stats_log(true,
			"descriptor %d is not inherited by the next program: data that arrived by "
			"clan has not been read",
			fd);
		GMB_ASSERT(REAL(dup2)(blank, fd) == fd);
	} else {
		conn_broken(conn, "data that arrived by clan was not read before exec");
	}
	if (blank >= 0) {
		REAL(close)(blank);
	}
}

/* Stops the deferral of signals, because a deferred signal would stay blocked in the next
 * program. */
static void handlers_run(void)
{
	core_crashed++;
	atomic_signal_fence(memory_order_seq_cst);
	if (core_deferred != 0) {
		signals_let_in();
	}
}

/* Called before exec, and returns with the lock, so that no other thread changes the connections
 * until the program has been replaced. */
bool process_before_exec(void)
{
	if (!atomic_load(&core.active) || !core_lock()) {
		return false;
	}
	conn_bring_back(survives_exec, REASON_EXEC, EXEC_WAIT_MS);
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn == NULL) {
			continue;
		}
		conn_try_plain(conn); /* for a buffer that is empty now, because other processes
					 have read its bytes */
		if (!survives_exec(conn)) {
			if (conn->holders != NULL) {
				(void)sockets_process_replace(conn->holders, own_name, 0);
			}
		} else if (conn_is_carried(conn) && stays_open(fd) && !conn->passed &&
			   process_is_sole(conn)) {
			/* Only this process has the unread bytes of the ring, and they are lost
			 * with its memory. So the next program must not get the connection. If
			 * other processes have the connection, they have these bytes as well, and
			 * can continue. */
			withhold(conn, fd);
		}
	}
	rename_held(own_name, started_name());
	handlers_run();
	return true;
}

static bool is_given_away(struct conn *conn)
{
	return !conn->passed && survives_exec(conn);
}

/* Called when a program is being started. The connections that the program inherits stay on TCP,
 * because it and the programs that it starts can keep them indefinitely. */
static void give_away(void)
{
	conn_bring_back(is_given_away, REASON_EXEC, EXEC_WAIT_MS);
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn == NULL || !is_given_away(conn)) {
			continue;
		}
		if (conn_is_carried(conn)) {
			/* once its bytes have been read, the connection is left to the kernel */
			conn->passed = true;
		} else {
			conn_forget(conn, REASON_EXEC);
		}
	}
}

bool process_before_spawn(void)
{
	if (!atomic_load(&core.active) || !core_lock()) {
		return false;
	}
	spawning++;
	give_away();
	core_unlock();
	return true;
}

void process_after_spawn(const bool *began)
{
	int saved = errno;

	if (*began && core_lock()) {
		give_away(); /* for connections that other threads opened during the call */
		spawning -= spawning > 0; /* 0 in the child, if a handler has forked */
		core_unlock();
	}
	errno = saved;
}

static void sockets_process_give_back(struct conn *conn)
{
	(void)REAL(setsockopt)(conn->kept_fd, SOL_SOCKET, SO_LINGER, &conn->kept_linger,
		sizeof(conn->kept_linger));
	core_disown(conn->kept_fd);
	REAL(close)(conn->kept_fd);
	conn->kept_fd = -1;
}

void process_exec_failed(bool began)
{
	int saved = errno;

	if (!began) {
		return;
	}
	core_crashed--;
	rename_held(started_name(), own_name);
	for (int fd = 0; fd < core.fds_end; fd++) {
		struct conn *conn = conn_at(fd);

		if (conn != NULL && conn->holders != NULL && !has(conn->holders, own_name)) {
			(void)sockets_process_replace(conn->holders, 0,
				own_name); /* uses the entry that withhold() has freed */
		}
		if (conn != NULL && conn->kept_fd >= 0 && stays_open(fd)) {
			GMB_ASSERT(REAL(dup2)(conn->kept_fd, fd) == fd);
		}
	}
	for (int fd = 0; fd < core.fds_end; fd++) {
		if (conn_at(fd) != NULL && conn_at(fd)->kept_fd >= 0) {
			sockets_process_give_back(conn_at(fd));
		}
	}
	core_unlock();
	errno = saved;
}

/* --- passing ---------------------------------------------------------------------------------- */

/* Called before a descriptor is passed to another process: returns its connection to TCP. Returns
 * false if bytes in the ring are unread, because the receiver of the descriptor would miss them. */
static bool sockets_process_pass(int fd)
{
	struct conn *conn = conn_at(fd);
	bool fits = true;

	if (conn == NULL || !core_lock()) {
		return true;
	}
	conn = conn_at(fd);
	if (conn != NULL && conn_is_carried(conn)) {
		conn_unfit(conn, REASON_PASSED);
		(void)conn_bring_back_one(conn, REASON_PASSED, PASS_WAIT_MS);
		if (conn_at(fd) == conn) {
			fits = !conn_is_carried(conn);
		}
	} else if (conn != NULL) {
		conn_forget(conn, REASON_PASSED);
	}
	if (!fits) {
		stats_log(true,
			"descriptor %d is not passed to another process (EBUSY): data that arrived "
			"by clan has not been read",
			fd);
	}
	core_unlock();
	return fits;
}

/* Prepares all descriptors in the message, also those that follow one with unread bytes. */
bool process_passes(const struct msghdr *message)
{
	struct msghdr copy = *message;
	bool fits = true;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(&copy); part != NULL;
		part = CMSG_NXTHDR(&copy, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
			continue;
		}
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len;
			at += sizeof(int)) {
			int fd;

			memcpy(&fd, (uint8_t *)part + at, sizeof(fd));
			fits = sockets_process_pass(fd) && fits;
		}
	}
	return fits;
}
