// SPDX-License-Identifier: Apache-2.0
/*
 * Changes that may still land after those who asked for them have gone.
 *
 * A connection can end while writes, zeroes and trims of it are in the store, where nothing can
 * take them back. A client that comes again, and writes the same place, must not be overtaken by
 * what it has lost: so the range of such a request is published on the export, and while it is,
 * changes to any part of it wait, whoever asks for them and on whichever reactor.
 *
 *   requester gone ─▶ late_publish(range) ......... its parts are done ─▶ late_withdraw(range)
 *   another one's part: late_any()? ─▶ late_wait(stream) ─── waits ───▶ path_resume(stream)
 *
 * A request whose own range is published can have parts that wait, too: for ranges that were
 * published before it and no others, so that no two wait for each other.
 *
 * Threading: shared by all reactors. Without a published range a part costs one relaxed load; else
 * a lock. A port belongs to its ring's thread. Ownership: ranges lie in their requests, ports in
 * the exports of each reactor; both stay until nothing of them is linked here. Errors: none.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "ring/ring.h"

struct path_stream;

/* One per export, for all reactors. */
struct late_writes {
	_Atomic uint32_t count; /* ranges that are published */
	pthread_mutex_t lock;	/* for all below, and for what is linked here */
	uint64_t serial;	/* of the range published last */
	struct list_node ranges;
};

/* What one request changes. */
struct late_range {
	struct list_node node;
	struct list_node waiting; /* parts that wait for it, by stream->node */
	uint64_t offset;
	uint64_t length;
	uint64_t serial; /* 0: it is not published; read only */
};

/* Where parts of one reactor are when they need not wait any more, until its ring takes them. */
struct late_port {
	struct late_writes *late;
	struct ring *ring;
	struct ring_message message;
	struct list_node granted;
	bool posted;
};

void late_init(struct late_writes *late);
/* Nothing is published any more. */
void late_fini(struct late_writes *late);
void late_port_init(struct late_port *port, struct late_writes *late, struct ring *ring);

static inline bool late_any(const struct late_writes *late)
{
	/* Relaxed: what the peer of an ended connection, or a client that has replaced it, can know
	 * of that end came through the kernel, after the range was published. */
	return atomic_load_explicit(&late->count, memory_order_relaxed) > 0;
}

void late_publish(struct late_writes *late, struct late_range *range);
void late_withdraw(struct late_writes *late, struct late_range *range);

/* True: the part of the stream must wait, and path_resume() is called on its ring when it may be
 * worth to ask again. */
GMB_MUST_CHECK bool late_wait(struct late_writes *late, struct path_stream *stream);
