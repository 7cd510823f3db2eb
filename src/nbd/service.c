// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nbd/session.h"

#define SECOND_NS UINT64_C(1000000000)

void nbd_limits_default(struct nbd_limits *limits)
{
	*limits = (struct nbd_limits){
		.sessions_max = 1024,
		.handshakes_max = 128,
		.handshake_timeout_ns = 10 * SECOND_NS,
		.inflight_per_session_max = 128,
		.inflight_max = 1024,
		.payload_bytes_max = NBD_PAYLOAD_BYTES_MAX,
		.memory_bytes_max = UINT64_C(128) << 20,
		.stall_timeout_ns = 30 * SECOND_NS,
		.may_spin = true,
	};
}

/* --- pools --------------------------------------------------------------------------------- */

struct rx_buf *service_rx_get(struct nbd_service *service)
{
	struct list_node *node;
	struct rx_buf *rx;

	if (service->rx_count == service->rx_count_max) {
		return NULL;
	}
	node = list_pop_front(&service->rx_free);
	/* New ones are made only while the number of busy connections still grows. */
	rx = node != NULL ? list_entry(node, struct rx_buf, node) : malloc(sizeof(*rx));
	if (rx == NULL) {
		return NULL;
	}
	list_init(&rx->node);
	rx->refs = 1;
	if (arena_get(service->arena, RX_LARGE_BYTES, &rx->buf) < 0) {
		list_push_front(&service->rx_free, &rx->node);
		return NULL;
	}
	service->rx_count++;
	return rx;
}

void service_rx_put(struct nbd_service *service, struct rx_buf *rx)
{
	GMB_ASSERT(rx->refs > 0);
	if (--rx->refs == 0) {
		service->rx_count--;
		arena_put(service->arena, &rx->buf);
		list_push_front(&service->rx_free, &rx->node);
		path_memory_released(service->path);
	}
}

struct send_batch *service_send_get(struct nbd_service *service)
{
	struct list_node *node = list_pop_front(&service->sends_free);
	struct send_batch *send =
		node != NULL ? list_entry(node, struct send_batch, node) : malloc(sizeof(*send));

	if (send != NULL) {
		list_init(&send->node);
	}
	return send;
}

void service_send_put(struct nbd_service *service, struct send_batch *send)
{
	list_push_front(&service->sends_free, &send->node);
}

/* --- the end of a batch: everything that was put off while callbacks ran ------------------- */

/* Each gets one try. Who got something and wants more stands behind those who got nothing: else a
 * few that always want more would take every place before it comes to the others. */
static void resume_blocked(struct nbd_service *service)
{
	struct list_node waiting;
	struct list_node served;
	struct list_node *node;

	if (!service->limits_released || list_is_empty(&service->blocked)) {
		return;
	}
	service->limits_released = false;
	list_init(&served);
	list_insert_before(service->blocked.next, &waiting);
	list_remove(&service->blocked);
	while ((node = list_pop_front(&waiting)) != NULL) {
		uint64_t before = service->counters.requests;

		receive_continue(list_entry(node, struct nbd_session, blocked_node));
		if (list_is_linked(node) && service->counters.requests != before) {
			list_remove(node);
			list_push_back(&served, node);
		}
	}
	while ((node = list_pop_front(&served)) != NULL) {
		list_push_back(&service->blocked, node);
	}
}

static void finish_drain(struct nbd_service *service)
{
	if (service->draining && service->drained != NULL && service->counters.sessions == 0) {
		void (*drained)(void *context) = service->drained;

		service->drained = NULL;
		if (service->timer.in_flight) {
			ring_cancel(service->ring, &service->timer);
		}
		drained(service->drained_context);
	}
}

/* True when a session waits for memory, or for a place among the requests in flight. */
static bool somebody_waits(const struct nbd_service *service)
{
	return path_is_short(service->path) ||
	       (list_is_empty(&service->requests_free) && !list_is_empty(&service->blocked));
}

/* True when something was given back that others may wait for. */
static bool join_ending(struct nbd_service *service)
{
	bool joined = false;

	list_for_each(node, &service->ending)
	{
		joined |= session_join(list_entry(node, struct nbd_session, ending_node));
	}
	/* Requests may have ended whose session cannot go yet. */
	return joined || (service->limits_released && !list_is_empty(&service->blocked));
}

static void choose_wait(struct nbd_service *service)
{
	uint64_t taken = service->counters.requests - service->turn_requests;
	enum wait_way way = wait_policy_turn(
		&service->wait_policy, ring_batch_ns(service->ring), (uint32_t)taken);

	service->turn_requests = service->counters.requests;
	ring_set_batch(service->ring, WAIT_BATCH_MAX, way == WAIT_BATCH ? WAIT_BATCH_NS : 0);
	ring_set_spin(
		service->ring, way == WAIT_SPIN && !path_is_slow(service->path) ? WAIT_SPIN_NS : 0);
}

static void batch_end(void *context)
{
	struct nbd_service *service = context;
	struct list_node *node;
	bool alone;

	do {
		path_serve(service->path);
		resume_blocked(service);
		alone = service->dirty.next == service->dirty.prev;
		while ((node = list_pop_front(&service->dirty)) != NULL) {
			reply_flush(list_entry(node, struct nbd_session, dirty_node), alone);
		}
		/* What a session gives back as it goes may be what another waits for, and nothing
		 * else may ever happen on this ring: look again. */
	} while (join_ending(service));
	if (somebody_waits(service)) {
		service_timer_arm(service);
	}
	choose_wait(service);
	finish_drain(service);
}

/* --- deadlines ----------------------------------------------------------------------------- */

/* Ends the sessions of a list, oldest first, whose deadline has passed. reason NULL: no news. */
static void expire(struct list_node *sessions, uint64_t now_ns, const char *reason)
{
	struct list_node *node;

	while ((node = list_first(sessions)) != NULL) {
		struct nbd_session *session = list_entry(node, struct nbd_session, deadline_node);

		if (session->deadline_ns > now_ns) {
			return;
		}
		session_terminate(session, reason);
	}
}

/* When the first deadline of a list is due; UINT64_MAX for an empty one. */
static uint64_t first_deadline_ns(const struct list_node *sessions)
{
	struct list_node *oldest = list_first(sessions);

	return oldest == NULL ? UINT64_MAX
			      : list_entry(oldest, struct nbd_session, deadline_node)->deadline_ns;
}

/* A peer that takes or gives nothing must not keep from the others what they wait for. */
static void expire_stalls(struct nbd_service *service, uint64_t now_ns)
{
	if (!somebody_waits(service)) {
		return;
	}
	list_for_each(node, &service->sessions)
	{
		struct nbd_session *session = list_entry(node, struct nbd_session, service_node);
		bool holds_rx = session->rx_stream != NULL || session->rx_large != NULL ||
				session->rx_discard_request != NULL;
		bool waits_for_peer =
			session->send_op.in_flight || (holds_rx && session->recv_op.in_flight);

		if (session->state == SESSION_TERMINATING || !waits_for_peer ||
			now_ns - session->progress_ns < service->options.limits.stall_timeout_ns) {
			continue;
		}
		if (receive_owes_nothing(session)) {
			receive_shrink(session);
		} else {
			session_terminate(
				session, "it held what others waited for and made no progress");
		}
	}
}

static void timer_done(struct ring_op *op, int result)
{
	struct nbd_service *service = container_of(op, struct nbd_service, timer);
	uint64_t now_ns = ring_now_ns(service->ring);

	GMB_UNUSED(result); /* passed or cancelled: look again either way */
	expire(&service->handshakes, now_ns, "no export was chosen within the handshake timeout");
	expire(&service->lingering, now_ns, NULL);
	expire_stalls(service, now_ns);
	if (service->draining && now_ns >= service->drain_deadline_ns) {
		list_for_each(node, &service->sessions)
		{
			session_terminate(list_entry(node, struct nbd_session, service_node),
				"it did not finish before the server stopped");
		}
	}
	service_timer_arm(service);
}

void service_timer_arm(struct nbd_service *service)
{
	uint64_t now_ns = ring_batch_ns(service->ring);
	uint64_t lingering_ns = first_deadline_ns(&service->lingering);
	uint64_t when_ns = first_deadline_ns(&service->handshakes);

	when_ns = MIN(when_ns, lingering_ns);
	if (somebody_waits(service)) {
		when_ns = MIN(when_ns, now_ns + SECOND_NS);
	}
	if (service->draining && service->counters.sessions > 0) {
		/* After the deadline nothing but the kernel's own operations are waited for. */
		uint64_t look_ns = MAX(service->drain_deadline_ns, now_ns + SECOND_NS / 10);

		when_ns = MIN(when_ns, look_ns);
	}
	if (when_ns == UINT64_MAX) {
		return; /* an idle server sleeps */
	}
	if (service->timer.in_flight) {
		if (when_ns < service->timer_due_ns) {
			service->timer_due_ns = when_ns;
			ring_cancel(service->ring, &service->timer); /* comes back and looks */
		}
		return;
	}
	service->timer_due_ns = when_ns;
	ring_timer(service->ring, &service->timer, when_ns > now_ns ? when_ns - now_ns : 1,
		timer_done);
}

/* --- life ---------------------------------------------------------------------------------- */

static int open_exports(struct nbd_service *service, struct error *error)
{
	const struct nbd_service_options *options = &service->options;

	service->path_exports = calloc(MAX(options->export_count, 1U), sizeof(struct path_export));
	if (service->path_exports == NULL) {
		return error_set(error, -ENOMEM, "out of memory for the table of exports");
	}
	for (uint32_t i = 0; i < options->export_count; i++) {
		struct path_export *export = &service->path_exports[i];
		int result;

		export->store = options->exports[i].store;
		path_export_init(export, options->exports[i].overlap);
		result = store_queue_create(export->store, service->ring, &export->queue, error);
		if (result < 0) {
			return result;
		}
	}
	return 0;
}

static int create_memory(struct nbd_service *service, struct error *error)
{
	const struct nbd_limits *limits = &service->options.limits;
	struct path_options path_options = { .ring = service->ring };
	int result =
		arena_ram_create(service->ring, limits->memory_bytes_max, &service->arena, error);

	if (result < 0) {
		return result;
	}
	path_options.arena = service->arena;
	result = path_create(&path_options, &service->path, error);
	if (result < 0) {
		return result;
	}
	service->requests = calloc(limits->inflight_max, sizeof(*service->requests));
	if (service->requests == NULL) {
		return error_set(error, -ENOMEM, "out of memory for %u requests in flight",
			limits->inflight_max);
	}
	for (uint32_t i = 0; i < limits->inflight_max; i++) {
		list_push_back(&service->requests_free, &service->requests[i].session_node);
	}
	/* The other half is for requests: a session keeps its receive buffer while it waits for
	 * requests to end, which may wait for memory. */
	service->rx_count_max =
		(uint32_t)(arena_info(service->arena)->limit_bytes / 2 / RX_LARGE_BYTES);
	/* One session may keep a quarter of the memory busy, but always enough for one request. */
	service->held_bytes_max = MAX(limits->memory_bytes_max / 4, (uint64_t)ARENA_SLAB_BYTES / 4);
	return 0;
}

int nbd_service_create(const struct nbd_service_options *options, struct nbd_service **service_out,
	struct error *error)
{
	struct nbd_service *service = calloc(1, sizeof(*service));
	int result;

	if (service == NULL) {
		return error_set(error, -ENOMEM, "out of memory for an NBD service");
	}
	GMB_ASSERT(options->limits.inflight_max > 0);
	GMB_ASSERT(options->limits.inflight_per_session_max > 0);
	for (uint32_t i = 0; i < options->export_count; i++) {
		const struct nbd_export *export = &options->exports[i];

		GMB_ASSERT(export->name_bytes <= NBD_STRING_BYTES_MAX);
		GMB_ASSERT(export->description == NULL ||
			   strlen(export->description) <= NBD_STRING_BYTES_MAX);
	}
	service->options = *options;
	service->ring = options->ring;
	wait_policy_init(&service->wait_policy, options->limits.may_spin);
	list_init(&service->requests_free);
	list_init(&service->rx_free);
	list_init(&service->sends_free);
	list_init(&service->sessions);
	list_init(&service->handshakes);
	list_init(&service->lingering);
	list_init(&service->dirty);
	list_init(&service->blocked);
	list_init(&service->ending);
	result = create_memory(service, error);
	if (result == 0) {
		result = open_exports(service, error);
	}
	if (result < 0) {
		nbd_service_destroy(service);
		return result;
	}
	ring_set_batch_end(service->ring, batch_end, service);
	*service_out = service;
	return 0;
}

void nbd_service_destroy(struct nbd_service *service)
{
	struct list_node *node;

	if (service == NULL) {
		return;
	}
	GMB_ASSERT(list_is_empty(&service->sessions));
	ring_set_batch_end(service->ring, NULL, NULL);
	ring_set_batch(service->ring, 1, 0);
	ring_set_spin(service->ring, 0);
	if (service->timer.in_flight) {
		ring_cancel(service->ring, &service->timer);
	}
	while (service->timer.in_flight) { /* comes back at once */
		ring_turn(service->ring, true);
	}
	for (uint32_t i = 0; service->path_exports != NULL && i < service->options.export_count;
		i++) {
		store_queue_destroy(service->path_exports[i].queue);
		path_export_fini(&service->path_exports[i]);
	}
	while ((node = list_pop_front(&service->rx_free)) != NULL) {
		free(list_entry(node, struct rx_buf, node));
	}
	while ((node = list_pop_front(&service->sends_free)) != NULL) {
		free(list_entry(node, struct send_batch, node));
	}
	path_destroy(service->path);
	arena_destroy(service->arena);
	free(service->path_exports);
	free(service->requests);
	free(service);
}

void nbd_service_accept(struct nbd_service *service, int fd, const char *peer)
{
	const struct nbd_limits *limits = &service->options.limits;

	if (service->draining || service->counters.sessions >= limits->sessions_max) {
		service->counters.sessions_refused++;
		ring_socket_close(service->ring, fd);
		if (service->options.session_closed != NULL) {
			service->options.session_closed(service->options.context);
		}
		return;
	}
	/* A flood of connections that say nothing must not lock out those who do: the one that has
	 * had the longest chance makes room. */
	if (service->counters.handshakes >= limits->handshakes_max) {
		session_terminate(list_entry(list_first(&service->handshakes), struct nbd_session,
					  deadline_node),
			"too many connections were in the handshake and it was the oldest");
	}
	session_open(service, fd, peer);
	service_timer_arm(service);
}

void nbd_service_drain(struct nbd_service *service, uint64_t deadline_ns,
	void (*drained)(void *context), void *context)
{
	GMB_ASSERT(!service->draining);
	service->draining = true;
	service->drain_deadline_ns = ring_now_ns(service->ring) + deadline_ns;
	service->drained = drained;
	service->drained_context = context;
	list_for_each(node, &service->sessions)
	{
		session_stop(list_entry(node, struct nbd_session, service_node));
	}
	if (service->timer.in_flight) {
		ring_cancel(service->ring, &service->timer); /* comes back and sees the deadline */
	} else {
		service_timer_arm(service);
	}
}

void nbd_service_counters(const struct nbd_service *service, struct nbd_counters *counters)
{
	*counters = service->counters;
}

void nbd_counters_add(struct nbd_counters *into, const struct nbd_counters *from)
{
	into->sessions_accepted += from->sessions_accepted;
	into->sessions_refused += from->sessions_refused;
	into->sessions_failed += from->sessions_failed;
	into->requests += from->requests;
	into->errors += from->errors;
	into->bytes_read += from->bytes_read;
	into->bytes_written += from->bytes_written;
	into->sessions += from->sessions;
	into->handshakes += from->handshakes;
	into->inflight += from->inflight;
}

const struct path_stats *nbd_service_stats(
	const struct nbd_service *service, uint32_t export_index, enum store_op op)
{
	GMB_ASSERT(export_index < service->options.export_count);
	return service->path_exports[export_index].stats[op];
}

const struct overlap *nbd_service_overlap(
	const struct nbd_service *service, uint32_t export_index, enum store_op op)
{
	GMB_ASSERT(export_index < service->options.export_count);
	return op == STORE_READ ? &service->path_exports[export_index].reads
				: &service->path_exports[export_index].writes;
}

uint64_t nbd_service_page_cache_send_bytes(const struct nbd_service *service, uint32_t export_index)
{
	GMB_ASSERT(export_index < service->options.export_count);
	return service->path_exports[export_index].page_cache_send_bytes;
}

uint64_t nbd_service_page_cache_send_misses(
	const struct nbd_service *service, uint32_t export_index)
{
	GMB_ASSERT(export_index < service->options.export_count);
	return service->path_exports[export_index].page_cache_send_misses;
}

void nbd_service_trace(struct nbd_service *service, struct path_trace *trace)
{
	path_set_trace(service->path, trace);
}
