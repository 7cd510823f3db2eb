// SPDX-License-Identifier: Apache-2.0
/*
 * Writes, zeroes and trims that can still take effect after the connection of their client has
 * ended.
 *
 * Such a change is already in the store and cannot be cancelled. If its client reconnects and
 * writes to the same range, the old change must not overwrite the new one. So the range of the old
 * request is published on the export. While the range is published, all overlapping changes wait,
 * on all reactors and from all clients.
 *
 *   old request  connection ends ─▶ late_writes_publish(), parts done ─▶ late_writes_withdraw()
 *   new request  part ─▶ late_writes_any() ─▶ late_writes_wait() ... waits ... ─▶ path_resume()
 *
 * A request whose range is published can have parts that wait for ranges published earlier, but not
 * for later ones. So two requests never wait for each other.
 *
 * Threading: shared by all reactors. Without a published range, a part costs one relaxed load;
 * otherwise it takes a lock. A port belongs to its ring's thread. Ownership: ranges are members of
 * their requests, and ports are members of each reactor's exports. Both must exist until all lists
 * here have released them. Errors: none.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "ring/ring.h"

struct path_stream;

/* The published ranges of an export, shared by all reactors. */
struct late_writes {
	_Atomic uint32_t count; /* number of published ranges */
	pthread_mutex_t lock;	/* protects the following members and the list nodes in them */
	uint64_t serial;	/* number of the range that was published last */
	struct list_node ranges;
};

/* The range that a request changes. */
struct late_writes_range {
	struct list_node node;
	/* parts that wait until the range is withdrawn, linked by stream->node */
	struct list_node waiting;
	uint64_t offset;
	uint64_t length;
	uint64_t serial; /* number in the order of publication; 0: not published */
};

/* Passes the parts that no longer have to wait to the ring of their reactor. */
struct late_writes_port {
	struct late_writes *late;
	struct ring *ring;
	struct ring_message message;
	struct list_node granted;
	bool posted;
};

void late_writes_init(struct late_writes *late);
/* Frees the list, which must not contain any range. */
void late_writes_fini(struct late_writes *late);
void late_writes_port_init(
	struct late_writes_port *port, struct late_writes *late, struct ring *ring);

static inline bool late_writes_any(const struct late_writes *late)
{
	/* Relaxed order is enough: a range is published before its connection is closed. The client
	 * detects the closing through the kernel, so the requests that it sends afterwards see the
	 * range. */
	return atomic_load_explicit(&late->count, memory_order_relaxed) > 0;
}

void late_writes_publish(struct late_writes *late, struct late_writes_range *range);
void late_writes_withdraw(struct late_writes *late, struct late_writes_range *range);

/* Returns true if the stream's part must wait. path_resume() is then called on its ring. */
GMB_MUST_CHECK bool late_writes_wait(struct late_writes *late, struct path_stream *stream);
