// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "client/client_private.h"
#include "client/guest.h"
#include "client/lend.h"

enum {
	ENTRIES_DEFAULT = 256,
	ENTRIES_MAX = 4096,
	/* A wait with timeout 0 has further rounds while each one completes a request, at most
	 * this many. */
	ROUNDS_MAX = 16,
};

const char *gmb_version(void)
{
	return GMBLOCK_VERSION;
}

void error_export(struct gmb_error *out, const struct error *error)
{
	if (out != NULL) {
		out->code = error->code;
		snprintf(out->text, sizeof(out->text), "%.*s", (int)sizeof(out->text) - 1,
			error->text);
	}
}

int options_copy(const char *name, void *own, const void *given, size_t bytes,
	const uint32_t *reserved, struct error *error)
{
	size_t size = *(const size_t *)given;

	if (size < bytes) {
		return error_set(error, -EINVAL,
			"struct %s: the member 'size' is %zu, but must be at least %zu", name, size,
			bytes);
	}
	memcpy(own, given, bytes);
	return *reserved == 0 ? 0
			      : error_set(error, -EINVAL,
					"struct %s: the member 'reserved' must be 0", name);
}

static gmb_log *program_log;

/* The levels of the log and of the library have equal values. */
static void pass_to_program(void *context, enum log_level level, const char *text)
{
	_Static_assert((int)GMB_LOG_DEBUG == (int)LOG_LEVEL_DEBUG, "levels");
	program_log(context, (enum gmb_log_level)level, text);
}

void gmb_set_log(gmb_log *log, void *context, enum gmb_log_level level)
{
	log_set_sink(NULL, NULL);
	program_log = log;
	log_set_sink(log != NULL ? pass_to_program : NULL, context);
	log_init(); /* so that later calls of log_init() have no effect */
	log_set_level((enum log_level)level);
}

static int ring_create_for(struct gmb_queue *queue, struct error *error)
{
	const struct ring_options options = {
		.files_max = 64, .buffers_max = QUEUE_LENT_SLOTS_MAX, .entries = queue->entries
	};
	int err = ring_create(&options, &queue->ring, error);

	if (err == 0) {
		atomic_store(&queue->wake_ring, queue->ring);
		ring_waiter_init(&queue->waiter, queue->ring, false, queue->may_spin);
	}
	return err;
}

static int queue_create(
	const struct gmb_queue_options *options, struct gmb_queue **queue_out, struct error *error)
{
	const uint32_t flags_known = GMB_QUEUE_NO_SPIN;
	struct gmb_queue_options own = { 0 };
	uint32_t reserved = 0;
	struct gmb_queue *queue;
	int err;

	err = options != NULL ? options_copy("gmb_queue_options", &own, options, sizeof(own),
					&reserved, error)
			      : 0;
	if (err != 0) {
		return err;
	}
	if ((own.flags & ~flags_known) != 0) {
		return error_set(error, -EINVAL, "gmb_queue_options: unknown flags 0x%x",
			own.flags & ~flags_known);
	}
	if (own.entries > ENTRIES_MAX) {
		return error_set(error, -EINVAL, "a queue can have at most %d entries, not %u",
			ENTRIES_MAX, own.entries);
	}
	queue = queue_create_on(NULL);
	if (queue == NULL) {
		return error_oom_for(error, "a queue");
	}
	queue->entries = own.entries != 0 ? own.entries : ENTRIES_DEFAULT;
	queue->may_spin = (own.flags & GMB_QUEUE_NO_SPIN) == 0;
	err = ring_create_for(queue, error);
	if (err != 0) {
		free(queue);
		return err;
	}
	queue->owns_ring = true;
	*queue_out = queue;
	return 0;
}

struct gmb_queue *queue_create_on(struct ring *ring)
{
	struct gmb_queue *queue = calloc(1, sizeof(*queue));

	if (queue != NULL) {
		queue->ring = ring;
		atomic_init(&queue->wake_ring, ring);
		list_init(&queue->clients);
		list_init(&queue->ended);
	}
	return queue;
}

int gmb_queue_create(const struct gmb_queue_options *options, struct gmb_queue **queue_out,
	struct gmb_error *error)
{
	struct error reason = { 0 };
	int err;

	log_init();
	err = queue_create(options, queue_out, &reason);

	if (err != 0) {
		error_export(error, &reason);
	}
	return err;
}

int gmb_queue_release(struct gmb_queue *queue)
{
	if (!list_is_empty(&queue->clients) || queue->inside) {
		return -EBUSY;
	}
	/* Waits until no thread is inside gmb_queue_wake(), where it could still use the ring. Such
	 * a call takes only a few instructions. */
	atomic_store(&queue->wake_ring, NULL);
	while (atomic_load(&queue->wakers) > 0) {
		sched_yield();
	}
	/* The ring may still hold the queue's wake-up message, so the queue is freed only after its
	 * delivery. */
	while (atomic_load(&queue->wake_posted)) {
		(void)ring_turn(queue->ring, true); /* delivers the message when it has arrived */
	}
	if (queue->part != NULL) {
		queue->part->destroy(queue->part);
		queue->part = NULL;
	}
	if (queue->owns_ring) {
		ring_destroy(queue->ring);
	}
	queue->ring = NULL;
	return 0;
}

int gmb_queue_acquire(struct gmb_queue *queue, struct gmb_error *error)
{
	struct error reason = { 0 };
	int err = queue->ring != NULL ? error_set(&reason, -EBUSY,
						"another thread still owns the queue; it "
						"must call gmb_queue_release() first")
				      : ring_create_for(queue, &reason);

	if (err != 0) {
		error_export(error, &reason);
	}
	return err;
}

int gmb_queue_destroy(struct gmb_queue *queue)
{
	int err = queue != NULL ? gmb_queue_release(queue) : 0;

	if (err == 0) {
		free(queue);
	}
	return err;
}

struct queue_part **queue_part(struct gmb_queue *queue)
{
	return &queue->part;
}

struct ring *queue_ring(struct gmb_queue *queue)
{
	return queue->ring;
}

bool queue_spins(const struct gmb_queue *queue)
{
	return queue->owns_ring && queue->waiter.way == WAIT_SPIN;
}

const struct ring_lent *queue_lent(const struct gmb_queue *queue)
{
	return queue->lent;
}

struct ring *queue_lend(struct gmb_queue *queue, const struct ring_lent *lent)
{
	queue->lent = lent;
	return queue->ring;
}

/* --- the loop ------------------------------------------------------------------------------ */

static void client_queue_wake_deliver(struct ring *ring, struct ring_message *message)
{
	struct gmb_queue *queue = container_of(message, struct gmb_queue, wake);

	/* Cleared first, so that a gmb_queue_wake() during the delivery posts another message. */
	atomic_store(&queue->wake_posted, false);
	atomic_store(&queue->woken, true);
}

/* Called on any thread. queue->wake is a single message; wake_posted keeps it from being posted
 * again while it is in flight. */
void gmb_queue_wake(struct gmb_queue *queue)
{
	struct ring *ring;

	atomic_fetch_add(&queue->wakers, 1);
	ring = atomic_load(&queue->wake_ring);
	if (ring == NULL) { /* released */
		atomic_store(&queue->woken, true);
		/* gmb_queue_acquire() could have created a ring after the first load. The thread of
		 * the queue may then sleep without having seen `woken`, so it needs the message. */
		ring = atomic_load(&queue->wake_ring);
	}
	if (ring != NULL && !atomic_exchange(&queue->wake_posted, true)) {
		queue->wake.deliver = client_queue_wake_deliver;
		ring_post(ring, &queue->wake);
	}
	atomic_fetch_sub(&queue->wakers, 1);
}

int gmb_queue_fd(const struct gmb_queue *queue)
{
	return ring_poll_fd(queue->ring);
}

void queue_tell(struct gmb_queue *queue, struct gmb_request *request)
{
	bool no_done = request_state(request)->no_done;

	queue->completed++;
	/* Cleared before done(), which may submit the same request again. */
	request->in_flight = 0;
	if (request->done != NULL && !no_done) {
		bool inside = queue->inside;

		queue->inside = true;
		request->done(request);
		queue->inside = inside;
	}
}

void queue_tell_opened(struct gmb_client *client)
{
	struct gmb_queue *queue = client->queue;
	struct gmb_error error = { 0 };
	bool inside = queue->inside;

	queue->completed++;
	if (client->options.opened != NULL) {
		error_export(&error, &client->open_error);
		queue->inside = true;
		client->options.opened(client->options.context, client, &error);
		queue->inside = inside;
	}
}

/* Reports requests that ended in gmb_submit(), which itself never calls back. */
static void tell_ended(struct gmb_queue *queue)
{
	struct list_node batch;

	/* Requests that end in these callbacks wait for the next round. */
	list_init(&batch);
	list_move_all(&batch, &queue->ended);
	while (!list_is_empty(&batch)) {
		queue_tell(queue, request_of(list_pop_front(&batch)));
	}
}

static void client_queue_flush(struct gmb_queue *queue)
{
	list_for_each(node, &queue->clients)
	{
		struct gmb_client *client = list_entry(node, struct gmb_client, node);

		client_dispatch(client);
		for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
			if (client->connections[i] != NULL) {
				connection_flush(client->connections[i]);
			}
		}
	}
}

bool queue_pump(struct gmb_queue *queue)
{
	uint64_t before = queue->completed;

	client_queue_flush(queue);
	tell_ended(queue);
	return queue->completed != before;
}

void queue_round(struct gmb_queue *queue, uint64_t limit_ns)
{
	if (queue_pump(queue)) {
		limit_ns = 0; /* sending can complete requests, so do not wait */
	}
	if (limit_ns == UINT64_MAX) {
		(void)ring_turn(queue->ring, true);
	} else {
		(void)ring_turn_limited(queue->ring, limit_ns);
	}
	if (queue->owns_ring) {
		ring_waiter_turn(&queue->waiter, queue->completed, false);
	}
}

/* Called before the program polls the queue's descriptor. Submits everything. Completions of the
 * ring make the descriptor readable; if there are other results to report, this function makes it
 * readable. */
static void get_ready_to_poll(struct gmb_queue *queue, bool more)
{
	uint64_t before = queue->completed;

	client_queue_flush(queue);
	ring_flush(queue->ring);
	if (more || queue->completed != before || !list_is_empty(&queue->ended)) {
		ring_poll_again(queue->ring);
	}
}

int gmb_queue_wait(struct gmb_queue *queue, int timeout_ms)
{
	uint64_t before = queue->completed - queue->told_early;
	uint64_t now_ns = 0;
	uint64_t end_ns = 0;
	bool more = false;
	int rounds = 0;

	if (queue->inside) {
		return -EDEADLK;
	}
	queue->told_early = 0;
	if (timeout_ms > 0) {
		now_ns = ring_now_ns(queue->ring);
		end_ns = now_ns + (uint64_t)timeout_ms * UINT64_C(1000000);
	}
	for (;;) {
		uint64_t limit_ns = UINT64_MAX;
		uint64_t round = queue->completed;

		if (timeout_ms >= 0) {
			limit_ns = now_ns < end_ns ? end_ns - now_ns : 0;
		}
		if (queue->completed != before || queue->woken) {
			/* Do not sleep, because there is something to report: client_end() has
			 * called done(), or an earlier call has received the wake-up. */
			limit_ns = 0;
		}
		queue_round(queue, limit_ns);
		/* The loop ends if the queue was woken, or if a round without waiting has completed
		 * no request. With a timeout other than 0 it also ends if a request or opening has
		 * completed. */
		if (queue->woken || (timeout_ms != 0 && queue->completed != before) ||
			(limit_ns == 0 && queue->completed == round)) {
			break;
		}
		if (timeout_ms == 0 && ++rounds == ROUNDS_MAX) {
			more = true; /* the wait returns, so that the program can do other work */
			break;
		}
		now_ns = timeout_ms > 0 ? ring_now_ns(queue->ring) : 0;
	}
	if (timeout_ms == 0) {
		get_ready_to_poll(queue, more || queue->woken);
	}
	queue->woken = false;
	return (int)MIN(queue->completed - before, (uint64_t)INT32_MAX);
}
