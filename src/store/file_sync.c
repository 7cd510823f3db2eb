// SPDX-License-Identifier: Apache-2.0
/*
 * Flushes. Flushes of one queue share system calls: those submitted while a call is in flight wait,
 * and share the next call. The call in flight might not cover them, because it started before.
 */
#include <errno.h>

#include "store/file.h"
#include "store/kind.h"

static void sync_start(struct file_queue *queue);

void file_sync_init(struct file_queue *queue)
{
	list_init(&queue->sync_waiting);
	list_init(&queue->sync_riding);
}

static void file_sync_done(struct ring_op *op, int result)
{
	struct file_queue *queue = container_of(op, struct file_queue, sync_op);
	struct file_gate *gate = container_of(queue->base.store, struct file_store, base)->gate;
	struct list_node finished;
	struct list_node *node;

	list_init(&finished);
	if (result == -EINTR || result == -EAGAIN) {
		/* The call was interrupted. Its repetition also covers the flushes that wait. */
		sync_start(queue);
		return;
	}
	if (result < 0) {
		file_gate_fail(gate, result);
	}
	list_move_all(&finished, &queue->sync_riding);
	if (!list_is_empty(&queue->sync_waiting)) {
		sync_start(queue);
	}
	/* After a failure, every flush gets the error, because the kernel reports it only once. */
	result = file_gate_error(gate);
	while ((node = list_pop_front(&finished)) != NULL) {
		file_finish(list_entry(node, struct store_part, node), result);
	}
}

static void sync_start(struct file_queue *queue)
{
	list_move_all(&queue->sync_riding, &queue->sync_waiting);
	ring_fsync(queue->base.ring, &queue->sync_op, queue->sync, file_sync_done);
}

static void file_sync_join(struct store_part *part)
{
	struct file_queue *queue = file_queue_of(part);

	list_push_back(&queue->sync_waiting, &part->node);
	if (!queue->sync_op.in_flight) {
		sync_start(queue);
	}
}

void file_flush(struct store_part *part)
{
	struct file_store *store = file_store_of(part);
	int error = file_gate_error(store->gate);

	if (error != 0) {
		store_finish_later(part, error);
	} else if ((store->base.info.caps & STORE_CAP_WRITE) == 0) {
		store_finish_later(part, 0); /* a read-only store has no data to flush */
	} else {
		file_sync_join(part);
	}
}

void file_finish_durable(struct store_part *part)
{
	file_gate_leave(file_store_of(part)->gate, part);
	if ((part->flags & (STORE_FUA | STORE_THROUGH)) == 0) {
		store_finish(part, 0);
	} else {
		file_sync_join(part);
	}
}
