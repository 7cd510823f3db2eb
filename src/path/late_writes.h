// SPDX-License-Identifier: Apache-2.0
/*
 * Changes that can still take effect after their requesters have gone.
 *
 * A connection can end while its writes, zeroes and trims are in the store, where they cannot be
 * cancelled. If the client reconnects and writes to the same range, the old change must not
 * overwrite the new one. So the range of such a request is published on the export. While it is
 * published, all overlapping changes wait, on whichever reactor and from whichever client.
 *
 *   requester gone ─▶ late_writes_publish() ..... its parts are done ─▶ late_writes_withdraw()
 *   another one's part: late_writes_any()? ─▶ late_writes_wait() ── waits ──▶ path_resume()
 *
 * A request whose own range is published can also have waiting parts. They wait only for ranges
 * that were published earlier, so two requests never wait for each other.
 *
 * Threading: shared by all reactors. Without a published range, a part costs one relaxed load;
 * otherwise it takes a lock. A port belongs to its ring's thread. Ownership: ranges are members of
 * their requests, and ports are members of each reactor's exports. Both exist until they have been
 * unlinked from all lists here. Errors: none.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "ring/ring.h"

struct path_stream;

/* One per export, for all reactors. */
struct late_writes {
	_Atomic uint32_t count; /* number of published ranges */
	pthread_mutex_t lock;	/* protects all members below, and the list nodes linked here */
	uint64_t serial;	/* of the range published last */
	struct list_node ranges;
};

/* The range that one request changes. */
struct late_writes_range {
	struct list_node node;
	struct list_node waiting; /* parts that wait for it, by stream->node */
	uint64_t offset;
	uint64_t length;
	uint64_t serial; /* 0: not published; read-only for others */
};

/* Parts of one reactor that no longer wait, until its ring receives them. */
struct late_writes_port {
	struct late_writes *late;
	struct ring *ring;
	struct ring_message message;
	struct list_node granted;
	bool posted;
};

void late_writes_init(struct late_writes *late);
/* No range is published any more. */
void late_writes_fini(struct late_writes *late);
void late_writes_port_init(
	struct late_writes_port *port, struct late_writes *late, struct ring *ring);

static inline bool late_writes_any(const struct late_writes *late)
{
	/* Relaxed: the peer of an ended connection, or a client that replaced it, learns of the
	 * end through the kernel, and the range was published before that. */
	return atomic_load_explicit(&late->count, memory_order_relaxed) > 0;
}

void late_writes_publish(struct late_writes *late, struct late_writes_range *range);
void late_writes_withdraw(struct late_writes *late, struct late_writes_range *range);

/* Returns true if the part of the stream must wait. path_resume() is then called on its ring when
 * it should retry. */
GMB_MUST_CHECK bool late_writes_wait(struct late_writes *late, struct path_stream *stream);
