// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the io_uring ring: its setup, and the part that other threads use. That part has
 * messages posted to the ring, and worker threads for blocking calls without a ring operation.
 *
 *   any thread ── ring_mailbox_post ──▶ messages ─┐
 *                                                 ├─ eventfd ─▶ the ring takes all of both
 *   worker ────── call returned ──────▶ returned ─┘
 *
 * Threading: ring_mailbox_post() on any thread; the rest belongs to the ring's thread. Messages and
 * returned calls are two lock-free stacks, and the ring always takes a whole stack. A thread that
 * adds to an empty stack writes the eventfd, on which the ring has a read in flight. Ownership: the
 * ring owns the mailbox; the senders own messages and operations. Errors: a negative errno from
 * ring_mailbox_init() and ring_setup(); ring_mailbox_call() returns false without a thread.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "ring/ring.h"

enum {
	RING_CALL_THREADS_MAX = 8,
	/* Low priority of worker threads, because calls take long anyway, and more requests wait
	 * for the ring's own thread than for calls. */
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
	_Atomic(struct ring_op *) returned; /* completed calls; op->result is set */
	/* eventfd; written when one of the two stacks is no longer empty */
	int wake_fd;

	/* Worker threads: started when needed, joined by ring_mailbox_fini(). */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct ring_op_queue waiting;
	pthread_t threads[RING_CALL_THREADS_MAX];
	uint32_t waiting_count;
	uint32_t thread_count;
	uint32_t idle_count; /* includes threads woken for a call that they have not taken yet */
	bool stopping;
};

/* Initializes the mailbox. On failure, it can still be passed to ring_mailbox_fini(). */
GMB_MUST_CHECK int ring_mailbox_init(struct ring_mailbox *mailbox);
/* Joins the worker threads. No call may be in progress. */
void ring_mailbox_fini(struct ring_mailbox *mailbox);

void ring_mailbox_post(struct ring_mailbox *mailbox, struct ring_message *message);
/* Returns all posted messages, oldest first, linked through next. */
struct ring_message *ring_mailbox_take(struct ring_mailbox *mailbox);

/* Runs op->call on a worker. Returns false if no thread could be started; the caller must then run
 * op->call itself. */
GMB_MUST_CHECK bool ring_mailbox_call(struct ring_mailbox *mailbox, struct ring_op *op);
/* Appends completed calls to a queue. */
void ring_mailbox_collect(struct ring_mailbox *mailbox, struct ring_op_queue *to);

struct io_uring;
struct io_uring_sqe;

/* Starts an operation, and returns the submission entry to fill in (uring.c). The caller sets its
 * user data to op. */
struct io_uring_sqe *ring_sqe(
	struct ring *ring, struct ring_op *op, enum ring_code code, ring_done_fn *done);

/* Sets up an io_uring with file and buffer tables of the sizes in options, and reports the
 * available features (setup.c). Returns 0, or a negative errno after releasing everything. */
GMB_MUST_CHECK int ring_setup(
	struct io_uring *uring, const struct ring_options *options, struct ring_features *features);
/* Sets *error to an explanation of ring_setup()'s errno, and returns the errno. */
int ring_setup_explain(int code, struct error *error);
