// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the io_uring ring: the descriptor of ring_poll_fd(), for owners with their own loop.
 * It is an epoll set:
 *
 *   poll_fd ─┬─ event_fd   registered with io_uring: completions, and ring_news_tell()
 *            ├─ wake_fd    of the mailbox
 *            └─ descriptors of event sources
 *
 * The ring's own descriptor cannot be polled: with defer_taskrun, the kernel only records that
 * there is work until a thread calls io_uring_enter(2), and does not wake pollers. It does signal a
 * registered eventfd. But if the completion occurs inside a write to another eventfd, the kernel
 * postpones the signal, and some versions (such as 6.18) deliver a postponed signal only once in
 * the life of the ring. So the set also contains the eventfds on which the ring waits.
 *
 * Threading: the ring's thread. Ownership: the ring owns this object, and the descriptors in the
 * set belong to their owners. Errors: a negative errno from ring_news_create().
 */
#pragma once

#include <liburing.h>
#include <stdbool.h>

#include "base/compiler.h"

struct ring_news {
	int poll_fd; /* -1: not created */
	int event_fd;
	/* A source could not be added. The ring then calls ring_news_tell() before each wait. */
	bool is_incomplete;
};

static inline void ring_news_init(struct ring_news *news)
{
	*news = (struct ring_news){ .poll_fd = -1, .event_fd = -1 };
}

static inline bool ring_news_exist(const struct ring_news *news)
{
	return news->poll_fd >= 0;
}

/* If the set does not exist, the functions below are no-ops. */

/* Creates the set. It is readable at first, because there might already be work. */
GMB_MUST_CHECK int ring_news_create(struct ring_news *news, struct io_uring *uring, int wake_fd);
/* Closes the set. */
void ring_news_fini(struct ring_news *news);
/* Adds the descriptor of an event source, or removes it. It is open, or -1 for a no-op. */
void ring_news_watch(struct ring_news *news, int fd);
void ring_news_ignore(struct ring_news *news, int fd);
/* Forgets the completions that were signalled, and calls of ring_news_tell(). */
void ring_news_clear(struct ring_news *news);
/* Makes the set readable until it is cleared. */
void ring_news_tell(struct ring_news *news);
