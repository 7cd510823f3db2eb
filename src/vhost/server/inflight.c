// SPDX-License-Identifier: Apache-2.0
/*
 * The record of requests in flight (vhost/wire.h), with which a restarted server finds the requests
 * of a killed one. The record is in memory that the front end can write: bad contents stop the
 * queue.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "vhost/server/session.h"

/* Returns the queue's record in the session's file, or NULL. */
static struct inflight_queue *inflight_record_of(const struct vhost_queue *queue)
{
	const struct vhost_session *session = queue->session;
	uint64_t bytes = inflight_queue_bytes(session->inflight_entries);

	return session->inflight.mapping.base != NULL && queue->index < session->inflight_queues
		       ? (void *)(session->inflight.mapping.base + queue->index * bytes)
		       : NULL;
}

/* Keeps the order of the memory accesses for a server that reads the record after this one was
 * killed. The processor needs no instruction for this: a killed process has made its earlier
 * accesses, in the order of the program. */
static void inflight_in_order(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

/* Finishes a batch that was put into the used ring, but not cleared. */
static const char *finish_batch(struct vhost_queue *queue)
{
	struct inflight_queue *record = queue->record;
	uint16_t used_index;
	uint16_t head;
	uint16_t count;

	shared_copy(&used_index, &record->used_index, sizeof(used_index));
	shared_copy(&head, &record->last_batch_head, sizeof(head));
	count = (uint16_t)(queue->used_index - used_index);
	if (count > queue->entries) {
		return "the record of requests in flight does not match the used ring";
	}
	for (; count > 0; count--) {
		if (head >= queue->entries) {
			return "the record of requests in flight has an invalid descriptor";
		}
		record->desc[head].in_flight = 0;
		shared_copy(&head, &record->desc[head].next, sizeof(head));
	}
	inflight_in_order();
	record->used_index = queue->used_index;
	return NULL;
}

struct taken {
	uint64_t counter;
	uint16_t head;
};

static int by_counter(const void *a_pointer, const void *b_pointer)
{
	const struct taken *a = a_pointer;
	const struct taken *b = b_pointer;

	return a->counter < b->counter ? -1 : a->counter > b->counter;
}

/* Collects the chains that are in flight, the oldest first. */
static const char *collect(struct vhost_queue *queue)
{
	struct taken *list = calloc(queue->entries, sizeof(*list));
	uint32_t count = 0;

	queue->again = calloc(queue->entries, sizeof(*queue->again));
	if (list == NULL || queue->again == NULL) {
		free(list);
		return "the server is out of memory for requests in flight";
	}
	for (uint32_t i = 0; i < queue->entries; i++) {
		struct inflight_desc desc;

		shared_copy(&desc, &queue->record->desc[i], sizeof(desc));
		if (desc.in_flight == 1) {
			list[count++] =
				(struct taken){ .counter = desc.counter, .head = (uint16_t)i };
		}
	}
	qsort(list, count, sizeof(*list), by_counter);
	for (uint32_t i = 0; i < count; i++) {
		queue->again[i] = list[i].head;
		queue->record_counter = MAX(queue->record_counter, list[i].counter + 1);
	}
	queue->again_count = count;
	queue->again_next = 0;
	free(list);
	return NULL;
}

/* Sets queue->record; NULL if the session has no record. Returns the broken rule, or NULL. */
static const char *inflight_find(struct vhost_queue *queue)
{
	queue->record = inflight_record_of(queue);
	if (queue->record != NULL && queue->entries > queue->session->inflight_entries) {
		queue->record = NULL;
		return "the record of requests in flight is smaller than the queue";
	}
	return NULL;
}

const char *vhost_inflight_begin(struct vhost_queue *queue)
{
	struct inflight_queue head;
	const char *rule;

	rule = inflight_find(queue);
	if (queue->record == NULL) {
		return rule;
	}
	shared_copy(&head, queue->record, sizeof(head));
	if (head.version != INFLIGHT_VERSION) {
		queue->record->desc_count = (uint16_t)queue->entries;
		queue->record->used_index = queue->used_index;
		inflight_in_order();
		queue->record->version = INFLIGHT_VERSION;
		return NULL;
	}
	rule = finish_batch(queue);
	rule = rule != NULL ? rule : collect(queue);
	if (rule == NULL) {
		queue->avail_index = (uint16_t)(queue->used_index + queue->again_count);
		queue->avail_seen = queue->avail_index;
	}
	return rule;
}

const char *vhost_inflight_continue(struct vhost_queue *queue)
{
	const char *rule = inflight_find(queue);

	return queue->record == NULL ? rule : collect(queue);
}

void vhost_inflight_taken(struct vhost_queue *queue, uint16_t head)
{
	if (queue->record != NULL) {
		queue->record->desc[head].counter = queue->record_counter++;
		inflight_in_order();
		queue->record->desc[head].in_flight = 1;
	}
}

void vhost_inflight_link(struct vhost_queue *queue)
{
	uint16_t last;

	if (queue->record == NULL) {
		return;
	}
	shared_copy(&last, &queue->record->last_batch_head, sizeof(last));
	list_for_each(node, &queue->done)
	{
		uint16_t head = list_entry(node, struct blk_request, done_node)->head;

		queue->record->desc[head].next = last;
		last = head;
	}
	queue->record->last_batch_head = last;
	inflight_in_order();
}

void vhost_inflight_clear(struct vhost_queue *queue)
{
	if (queue->record == NULL) {
		return;
	}
	inflight_in_order();
	list_for_each(node, &queue->done)
	{
		uint16_t head = list_entry(node, struct blk_request, done_node)->head;

		queue->record->desc[head].in_flight = 0;
	}
	inflight_in_order();
	queue->record->used_index = queue->used_index;
}
