// SPDX-License-Identifier: Apache-2.0
/*
 * Worker threads for operations that must not block a thread that serves clients: mapping and
 * populating memory, touching memory that an untrusted process can truncate, and closing
 * descriptors and unmapping memory. An untrusted process can make any of these block for as long as
 * it likes (repeated hole punching, FUSE, sockets with SO_LINGER).
 *
 * A process has at most WORKERS_MAX worker threads; further work waits. Work that might never end
 * (in_doubt) is limited to a share of the threads, and each owner (the user of the peer) to a share
 * of these. It therefore delays only other work in doubt for the same owner.
 *
 * Threading: work_start() and dispose() from any thread. run() is called on a worker thread and
 * touches only the work itself; work_finish() calls done() on its caller's thread. Ownership: the
 * module holds a work until done(), and takes over descriptors and memory given to dispose().
 * Errors: without memory or threads, the caller's thread does the work itself.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "base/list.h"

enum {
	WORKERS_MAX = 16,
	WORKERS_IN_DOUBT_MAX = 8, /* of these, for work that might never end */
	WORKERS_OF_OWNER_MAX = 2, /* of WORKERS_IN_DOUBT_MAX, for one owner */
};

/* Finished work that waits for its owner's thread. */
struct work_results {
	pthread_mutex_t lock;
	struct list_node list;
	int wake_fd;	/* write end of a pipe, non-blocking */
	bool in_caller; /* no threads: work_start() runs the work itself */
};

struct work {
	struct list_node node;
	void (*run)(struct work *work);
	void (*done)(struct work *work);
	struct work_results *results;
	bool in_doubt;	    /* might never end */
	uid_t owner;	    /* in_doubt: the user on whom completion depends; -1: unknown */
	void *owner_record; /* private */
};

/* Wakes the owner's thread to call work_finish(). Any thread. */
void work_wake(struct work_results *results);
void work_start(struct work *work, struct work_results *results);
/* Calls done() for all finished work. */
void work_finish(struct work_results *results);

/* Resources to release. Closing a descriptor that a peer has sent does not wait for the socket's
 * unsent data, even if the peer has set SO_LINGER. */
enum {
	DISPOSE_FDS_MAX = 256,
	/* Descriptors that peers have passed and that are not closed yet. A user can have at most
	 * DISPOSE_OF_OWNER_MAX, and at most as many as are left of DISPOSE_ALL_MAX; thus a new user
	 * always finds as much room as each of the others has taken. The second limit does not
	 * apply to root and our own user. Either limit can be exceeded by the largest message
	 * (253), because room is checked before a message is received. */
	DISPOSE_OF_OWNER_MAX = 512,
	DISPOSE_ALL_MAX = 2048,
	/* Our ends of connections that still hold such descriptors, counted separately. */
	DISPOSE_ENDS_MAX = 1024,
};
struct disposal {
	void *base; /* memory to unmap, or NULL */
	size_t bytes;
	const int *fds;
	uint32_t fd_count; /* at most DISPOSE_FDS_MAX */
	bool of_peer;	   /* a peer has sent the descriptors */
	bool is_end;	   /* one descriptor: our end of a Unix socket */
	/* with is_end: shut down; data from the peer is received and its descriptors are closed
	 * first */
	bool is_shut;
	bool in_caller; /* no threads: release in the caller */
	uid_t owner;	/* of_peer: the peer's user; -1: unknown */
};
void dispose(const struct disposal *disposal);
/* Releases a descriptor that a peer passed. */
void dispose_fd(int fd, uid_t owner, bool in_caller);
/* Releases our end of a Unix socket that another process may also hold. */
void dispose_end(int fd, uid_t owner);
/* Shuts down our end of a Unix socket, connected or listening. If no descriptors are left in it, it
 * is closed immediately, otherwise by a worker. */
void dispose_socket(int fd, uid_t owner, bool in_caller);
/* Returns whether a message with descriptors may be received from the user now; if not, try
 * later. */
bool dispose_has_room(uid_t owner);
/* Returns whether a connection that can carry descriptors may be accepted now; if not, try
 * later. */
bool dispose_ends_have_room(void);
