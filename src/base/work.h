// SPDX-License-Identifier: Apache-2.0
/*
 * What must not hold up a thread that serves others: mapping and populating memory, touching memory
 * that a stranger can empty, and disposing of descriptors and mappings. All of it can block for as
 * long as a stranger likes (holes punched again and again, FUSE, sockets that linger).
 *
 * Threading: work_start() and dispose() from any thread. run() is called on a worker thread, and
 * touches only what is in the work; done() is called by work_finish() on the thread that calls it.
 * At most WORKERS_MAX threads run in a process; more work waits. What may never end (in_doubt) has
 * a part of them, of which one owner (the user of the peer) has a part again: it delays nothing but
 * its like of the same owner. Ownership: a work is held until done(). Descriptors and memory given
 * to dispose() are taken. Errors: without memory or threads, everything is done at once by the
 * caller.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "base/list.h"

enum {
	WORKERS_MAX = 16,
	WORKERS_IN_DOUBT_MAX = 8, /* of them, for what may never end */
	WORKERS_OF_OWNER_MAX = 2, /* of those, for one owner */
};

/* Work that has ended and waits for its owner's thread. */
struct work_results {
	pthread_mutex_t lock;
	struct list_node list;
	int wake_fd;	/* of a pipe; not blocking */
	bool in_caller; /* no threads: work_start() runs it */
};

struct work {
	struct list_node node;
	void (*run)(struct work *work);
	void (*done)(struct work *work);
	struct work_results *results;
	bool in_doubt;	    /* it may never end */
	uid_t owner;	    /* in_doubt: the user on whom that depends; -1: unknown */
	void *owner_record; /* private */
};

/* Makes the owner's thread look. Any thread. */
void work_wake(struct work_results *results);
void work_start(struct work *work, struct work_results *results);
/* Calls done() for everything that has ended. */
void work_finish(struct work_results *results);

/* Something to get rid of. Sockets of a peer do not linger, whatever it has set. */
enum {
	DISPOSE_FDS_MAX = 256,
	/* Descriptors that peers have sent and that are not closed yet. A user has at most
	 * DISPOSE_OF_OWNER_MAX, and no more than are left of DISPOSE_ALL_MAX, so that one more user
	 * finds as much room as each of the others has taken; root and our own user are not held to
	 * the latter. Room for the largest message (253) is left above both. */
	DISPOSE_OF_OWNER_MAX = 512,
	DISPOSE_ALL_MAX = 2048,
	/* Our ends of connections in which such descriptors are left, counted apart. */
	DISPOSE_ENDS_MAX = 1024,
};
struct disposal {
	void *base; /* to be unmapped, or NULL */
	size_t bytes;
	const int *fds;
	uint32_t fd_count; /* at most DISPOSE_FDS_MAX */
	bool of_peer;	   /* the descriptors are what a peer sent */
	bool is_end;	   /* one descriptor, our end of a Unix socket */
	bool is_shut;	   /* is_end: what its peer has sent is received and closed first */
	bool in_caller;	   /* no threads */
	uid_t owner;	   /* of_peer: the peer's user; -1: unknown */
};
void dispose(const struct disposal *disposal);
/* A descriptor that a peer sent. */
void dispose_fd(int fd, uid_t owner, bool in_caller);
/* Our end of a Unix socket that another process may have, too. */
void dispose_end(int fd, uid_t owner);
/* Our end of a connected Unix socket, or of a listening one. It is shut down, and closed at once
 * when no descriptors are left in it. */
void dispose_socket(int fd, uid_t owner, bool in_caller);
/* Whether a message with descriptors may be received from the user; if not, later. */
bool dispose_has_room(uid_t owner);
/* Whether a connection may be accepted in which descriptors can be; if not, later. */
bool dispose_ends_have_room(void);
