// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the io_uring ring: how it is set up, and the part of it that other threads enter:
 * messages posted to the ring, and worker threads for calls that block and have no ring operation.
 *
 *   any thread ── ring_mailbox_post ──▶ messages ─┐
 *                                                 ├─ eventfd ─▶ the ring takes both, empty again
 *   worker ────── call returned ──────▶ returned ─┘
 *
 * Threading: ring_mailbox_post() from any thread; the rest belongs to the ring's thread. Both
 * stacks are emptied whole; whoever makes one non-empty writes the eventfd, which the ring keeps a
 * read on. Ownership: the ring owns the mailbox; messages and operations stay their senders'.
 * Errors: negative errno from ring_mailbox_init(), nothing else fails.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "ring/ring.h"

enum {
	RING_CALL_THREADS_MAX = 8,
	/* Calls take long, and what the ring's own thread does is waited for by more. */
	RING_CALL_NICE = 10,
};

/* Operations in first-in first-out order, linked through op->next. */
struct ring_op_queue {
	struct ring_op *head;
	struct ring_op **tail;
};

static inline void ring_op_queue_init(struct ring_op_queue *queue)
{
	queue->head = NULL;
	queue->tail = &queue->head;
}

static inline void ring_op_queue_push(struct ring_op_queue *queue, struct ring_op *op)
{
	op->next = NULL;
	*queue->tail = op;
	queue->tail = &op->next;
}

static inline struct ring_op *ring_op_queue_pop(struct ring_op_queue *queue)
{
	struct ring_op *op = queue->head;

	if (op != NULL) {
		queue->head = op->next;
		if (queue->head == NULL) {
			queue->tail = &queue->head;
		}
	}
	return op;
}

struct ring_mailbox {
	_Atomic(struct ring_message *) messages;
	_Atomic(struct ring_op *) returned; /* calls that have returned, op->result is set */
	int wake_fd;			    /* becomes readable when either was empty and is not */
	_Atomic int poll_fd;		    /* another eventfd that is written as well, or -1 */

	/* Worker threads: started on first need, joined by ring_mailbox_fini(). */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct ring_op_queue waiting;
	pthread_t threads[RING_CALL_THREADS_MAX];
	uint32_t waiting_count;
	uint32_t thread_count;
	uint32_t idle_count; /* those woken for a call that still waits are counted too */
	bool stopping;
};

/* Even when it fails, the mailbox may be given to ring_mailbox_fini(). */
GMB_MUST_CHECK int ring_mailbox_init(struct ring_mailbox *mailbox);
/* No call may be waiting. */
void ring_mailbox_fini(struct ring_mailbox *mailbox);

void ring_mailbox_post(struct ring_mailbox *mailbox, struct ring_message *message);
/* Everything that was posted, oldest first, linked through next. */
struct ring_message *ring_mailbox_take(struct ring_mailbox *mailbox);

/* Runs op->call on a worker. False when no thread can be had: the caller must run it. */
GMB_MUST_CHECK bool ring_mailbox_call(struct ring_mailbox *mailbox, struct ring_op *op);
/* Adds the calls that have returned to a queue. */
void ring_mailbox_collect(struct ring_mailbox *mailbox, struct ring_op_queue *to);

struct io_uring;

/* Sets up an io_uring with its tables, whose sizes are set in the options, and says what works
 * (setup.c). A negative errno: nothing is left. */
GMB_MUST_CHECK int ring_setup(
	struct io_uring *uring, const struct ring_options *options, struct ring_features *features);
/* The sentence for such an errno, which it returns. */
int ring_setup_explain(int code, struct error *error);
