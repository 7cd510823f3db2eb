// SPDX-License-Identifier: Apache-2.0
/*
 * Worker threads for operations that must not block a thread that serves clients: mapping and
 * populating memory, touching memory that an untrusted process can truncate, and closing
 * descriptors and unmapping memory. An untrusted process can make any such call block for as long
 * as it likes (by punching holes repeatedly, with FUSE, or with SO_LINGER).
 *
 * A process has at most WORKERS_MAX worker threads; further work waits. Work that might never end
 * (in_doubt) can occupy only WORKERS_IN_DOUBT_MAX threads, of which each owner (the peer's user)
 * gets WORKERS_OF_OWNER_MAX. Such work can therefore delay only other work in doubt, and a single
 * owner can delay only the owner's own work.
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
	WORKERS_IN_DOUBT_MAX = 8, /* limit for work that might never end */
	WORKERS_OF_OWNER_MAX = 2, /* limit for such work of one owner */
};

/* Finished work for which work_finish() has to call done(). */
struct work_results {
	pthread_mutex_t lock;
	struct list_node list;
	int wake_fd;	/* write end of a pipe, non-blocking */
	bool in_caller; /* true: work_start() runs the work itself, without a worker */
};

struct work {
	struct list_node node;
	void (*run)(struct work *work);
	void (*done)(struct work *work);
	struct work_results *results;
	bool in_doubt;	    /* might never end */
	uid_t owner;	    /* with in_doubt: the user who can block the work; -1: unknown */
	void *owner_record; /* private */
};

/* Wakes the owner's thread, which then calls work_finish(). Any thread can call it. */
void work_wake(struct work_results *results);
void work_start(struct work *work, struct work_results *results);
/* Calls done() for all finished work. */
void work_finish(struct work_results *results);

/* Resources to release. If a descriptor that a peer has sent is a socket with SO_LINGER, closing it
 * does not wait until its unsent data is delivered. */
enum {
	DISPOSE_FDS_MAX = 256,
	/* Limits on descriptors that are not yet closed: those that peers have passed, and sockets
	 * of ours that may contain such descriptors. A user can have at most DISPOSE_OF_OWNER_MAX.
	 * All users together can have DISPOSE_ALL_MAX, and a user cannot have more than are still
	 * free, so that some are left for other users. The second limit does not apply to root and
	 * our own user. Of the descriptors of one user, at most DISPOSE_OF_OWNER_MAX count towards
	 * it. The limits are checked before a message is received, so a user can exceed them by one
	 * message (up to 253 descriptors), and by the sockets of connections that end later. */
	DISPOSE_OF_OWNER_MAX = 512,
	DISPOSE_ALL_MAX = 2048,
};
struct disposal {
	void *base; /* memory to unmap, or NULL */
	size_t bytes;
	const int *fds;
	uint32_t fd_count; /* at most DISPOSE_FDS_MAX */
	bool of_peer;	   /* the descriptors were sent by a peer, or is_end is set */
	bool is_end;	   /* fds is a single descriptor: our end of a Unix socket */
	/* with is_end: the socket was shut down; the descriptors that are still in its queue are
	 * closed before the socket */
	bool is_shut;
	bool in_caller; /* true: the caller releases the resources, without a worker */
	uid_t owner;	/* with of_peer: the peer's user; -1: unknown */
};
void dispose(const struct disposal *disposal);
/* Releases a descriptor that a peer passed. */
void dispose_fd(int fd, uid_t owner, bool in_caller);
/* Closes our end of a Unix socket that another process can also have open. */
void dispose_end(int fd, uid_t owner);
/* Shuts down our end of a Unix socket, connected or listening. Closes it immediately if no
 * descriptors are left in its queue, otherwise in a worker thread. */
void dispose_socket(int fd, uid_t owner, bool in_caller);
/* Counts descriptors that a peer has passed and that dispose() will not close. */
void dispose_count_more(uid_t owner, uint32_t fd_count);
/* Called when descriptors counted by dispose_count_more() are closed. */
void dispose_count_less(uid_t owner, uint32_t fd_count);
/* Returns whether the limits allow receiving a message with descriptors from this user now, or
 * keeping a new connection of this user that permits them. */
bool dispose_has_room(uid_t owner);
/* Returns whether a connection may be accepted now at this listener. If the listener cannot refuse
 * descriptors (before Linux 6.16), even closing a rejected connection can occupy a worker. For such
 * a listener, the result is false while all users together have DISPOSE_ALL_MAX descriptors. */
bool dispose_may_accept(int listener);
