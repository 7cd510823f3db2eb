// SPDX-License-Identifier: Apache-2.0
/*
 * Private to both rings: the common part of their event sources (ring.h).
 *
 *   turn: [spin: poll...] ─▶ arm ─▶ block ─▶ completions ─▶ poll ─▶ end of the batch
 *                             └─ events are pending: do not block
 *
 * Threading: the ring's thread. Ownership: see ring.h. Errors: none.
 */
#pragma once

#include <errno.h>
#include <poll.h>

#include "ring/ring.h"

struct ring_sources {
	struct list_node list;
	bool polling; /* a source's poll() is being called */
};

static inline void source_done(struct ring_op *op, int result)
{
	struct ring_source *source = container_of(op, struct ring_source, op);

	GMB_ASSERT(result >= 0 || result == -ECANCELED);
	if (source->removed != NULL) {
		list_remove(&source->node);
		source->removed(source);
	} /* otherwise fd is readable, and the source is polled in this turn */
}

static inline void source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source))
{
	GMB_ASSERT(source->removed == NULL && removed != NULL);
	source->removed = removed;
	if (source->op.in_flight) {
		ring_cancel(ring, &source->op);
	} else {
		ring_defer(ring, &source->op, 0, source_done);
	}
}

/* Returns the number of events that were handled. */
static inline int sources_poll(struct ring_sources *sources)
{
	int count = 0;

	/* Must not be nested: a turn inside poll() could free a source that is in use here. */
	GMB_ASSERT(!sources->polling);
	sources->polling = true;
	list_for_each(node, &sources->list)
	{
		struct ring_source *source = list_entry(node, struct ring_source, node);

		if (source->removed == NULL) {
			count += source->poll(source);
		}
	}
	sources->polling = false;
	return count;
}

/* Arms all sources. Returns true if no event is pending and the next one will wake the ring. */
static inline bool sources_arm(struct ring *ring, struct ring_sources *sources)
{
	list_for_each(node, &sources->list)
	{
		struct ring_source *source = list_entry(node, struct ring_source, node);

		if (source->removed != NULL) {
			continue;
		}
		if (!source->arm(source)) {
			return false;
		}
		if (source->fd >= 0 && !source->op.in_flight) {
			ring_poll(ring, &source->op, source->fd, POLLIN, source_done);
		}
	}
	return true;
}
