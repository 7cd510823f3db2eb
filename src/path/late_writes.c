// SPDX-License-Identifier: Apache-2.0
#include "path/late_writes.h"

#include "path/path.h"

void late_writes_init(struct late_writes *late)
{
	pthread_mutex_init(&late->lock, NULL);
	list_init(&late->ranges);
}

void late_writes_fini(struct late_writes *late)
{
	GMB_ASSERT(list_is_empty(&late->ranges));
	pthread_mutex_destroy(&late->lock);
}

static void deliver(struct ring *ring, struct ring_message *message)
{
	struct late_writes_port *port = container_of(message, struct late_writes_port, message);
	struct list_node streams;
	struct list_node *node;

	GMB_ASSERT(ring == port->ring);
	list_init(&streams);
	pthread_mutex_lock(&port->late->lock);
	while ((node = list_pop_front(&port->granted)) != NULL) {
		list_push_back(&streams, node);
	}
	port->posted = false;
	pthread_mutex_unlock(&port->late->lock);
	while ((node = list_pop_front(&streams)) != NULL) {
		path_resume(list_entry(node, struct path_stream, node));
	}
}

void late_writes_port_init(
	struct late_writes_port *port, struct late_writes *late, struct ring *ring)
{
	port->late = late;
	port->ring = ring;
	port->message.deliver = deliver;
	port->posted = false;
	list_init(&port->granted);
}

void late_writes_publish(struct late_writes *late, struct late_writes_range *range)
{
	GMB_ASSERT(range->serial == 0);
	list_init(&range->waiting);
	pthread_mutex_lock(&late->lock);
	range->serial = ++late->serial;
	list_push_back(&late->ranges, &range->node);
	atomic_fetch_add_explicit(&late->count, 1, memory_order_relaxed);
	pthread_mutex_unlock(&late->lock);
}

/* Passes the part to its reactor by a message. Called under the lock. The part is not done until it
 * has been resumed, so the export, which contains the port, exists when the message arrives. */
static void late_writes_grant(struct path_stream *stream)
{
	struct late_writes_port *port = &stream->request->export->late_writes_port;

	list_push_back(&port->granted, &stream->node);
	if (!port->posted) {
		port->posted = true;
		ring_post(port->ring, &port->message);
	}
}

void late_writes_withdraw(struct late_writes *late, struct late_writes_range *range)
{
	struct list_node *node;

	GMB_ASSERT(range->serial != 0);
	pthread_mutex_lock(&late->lock);
	list_remove(&range->node);
	atomic_fetch_sub_explicit(&late->count, 1, memory_order_relaxed);
	while ((node = list_pop_front(&range->waiting)) != NULL) {
		late_writes_grant(list_entry(node, struct path_stream, node));
	}
	pthread_mutex_unlock(&late->lock);
	range->serial = 0;
}

/* Returns the first published range for which the part must wait, or NULL. The list is in the order
 * of publication. The search ends at the range of the part's own request, because the part does not
 * wait for ranges that were published later. */
static struct late_writes_range *late_writes_find(
	struct late_writes *late, const struct path_stream *stream)
{
	uint64_t offset = stream->part.offset;
	uint64_t end = offset + stream->part.length;
	uint64_t own = stream->request->late.serial;

	list_for_each(node, &late->ranges)
	{
		struct late_writes_range *range = list_entry(node, struct late_writes_range, node);

		if (range->serial == own) {
			return NULL;
		}
		if (range->offset < end && offset < range->offset + range->length) {
			return range;
		}
	}
	return NULL;
}

bool late_writes_wait(struct late_writes *late, struct path_stream *stream)
{
	struct late_writes_range *range;

	pthread_mutex_lock(&late->lock);
	range = late_writes_find(late, stream);
	if (range != NULL) {
		list_push_back(&range->waiting, &stream->node);
	}
	pthread_mutex_unlock(&late->lock);
	return range != NULL;
}
