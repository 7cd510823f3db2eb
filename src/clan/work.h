// SPDX-License-Identifier: Apache-2.0
/*
 * What must not hold up a queue: mapping and populating memory, and disposing of descriptors and
 * mappings, which can block for as long as a stranger likes (FUSE, sockets that linger).
 *
 * Threading: work_start() and dispose() from any thread. run() is called on a worker thread, and
 * touches only what is in the work; done() is called by work_finish() on the thread that calls it.
 * At most WORKERS_MAX threads run in a process; more work waits. What strangers can make last for
 * ever, which is closing what they sent, has a part of them, so that it delays nothing but its
 * like. Ownership: a work is held until done(). Descriptors and memory given to dispose() are
 * taken. Errors: without memory or threads, everything is done at once by the caller.
 */
#pragma once

#include <pthread.h>

#include "base/list.h"

enum {
	WORKERS_MAX = 16,
	WORKERS_IN_DOUBT_MAX = 8, /* of them, for what may never end */
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
	bool in_doubt; /* it may never end */
};

/* Makes the owner's thread look. Any thread. */
void work_wake(struct work_results *results);
void work_start(struct work *work, struct work_results *results);
/* Calls done() for everything that has ended. */
void work_finish(struct work_results *results);

/* Something to get rid of. */
enum { DISPOSE_FDS_MAX = 256 };
struct disposal {
	void *base; /* to be unmapped, or NULL */
	size_t bytes;
	const int *fds;
	uint32_t fd_count; /* at most DISPOSE_FDS_MAX */
	bool of_peer;	   /* the descriptors are what a peer sent */
	bool in_caller;	   /* no threads */
};
void dispose(const struct disposal *disposal);
/* A descriptor that a peer sent, or that may hold such. */
void dispose_fd(int fd, bool in_caller);
