// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rights.h"
#include "base/work.h"
#include "engine/part.h"
#include "vhost/server/session.h"

void vhost_session_fail(struct vhost_session *session, const char *rule)
{
	char reason[200];

	if (session->base.state != SESSION_TERMINATING) {
		snprintf(reason, sizeof(reason), "vhost-user: %s", rule);
		session_terminate(&session->base, reason);
	}
}

/* Starts the request that waited for its rate limit. Returns false if it still waits. */
static bool start_held(struct vhost_session *session)
{
	struct blk_request *held = session->held;

	if (held == NULL) {
		return true;
	}
	if ((session_waits_to_move(&session->base) && !session->base.stopping) ||
		!engine_request_may(&session->base) ||
		!engine_request_may_move(
			&session->base, vhost_request_op(held), vhost_request_bytes(held))) {
		return false;
	}
	session->held = NULL;
	vhost_request_start(held);
	return true;
}

void vhost_session_put_back(struct vhost_session *session)
{
	struct blk_request *held = session->held;

	if (held != NULL) {
		rate_give_up(&session->base.rate);
		vhost_queue_put_back(held->queue, held->head, held->is_again);
		vhost_request_forget(held);
		session->held = NULL;
	}
}

void vhost_session_take_all(struct vhost_session *session)
{
	uint32_t first = session->next_queue++;

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		(void)vhost_queue_take(&session->queues[(first + i) % VHOST_SERVER_QUEUES]);
	}
}

/* Continues with requests and messages, at the start and after a pause. */
static void vhost_session_go_on(struct vhost_session *session)
{
	if (session->rests) {
		vhost_events_continue(session);
	}
	session->lanes_due = true;
	vhost_message_tell_config(session);
	vhost_session_take_all(session);
	vhost_message_run(session);
}

/* --- choosing the export ---------------------------------------------------------------------- */

static void vhost_session_choose(struct vhost_session *session)
{
	size_t bytes = strlen(session->export_name);
	struct engine_export *entry =
		session_export_find(&session->base, session->export_name, (uint32_t)bytes);
	int rc = session->base.stopping ? -ESHUTDOWN
		 : entry == NULL	? -ENOENT
					: session_choose(&session->base, entry);

	if (rc == -EAGAIN) {
		return; /* vhost_session_resume() tries again */
	}
	if (rc < 0) {
		session_terminate(&session->base,
			rc == -ESHUTDOWN ? session_stop_text(&session->base)
			: rc == -ENOENT	 ? "the export of this socket does not exist, or no access "
					   "rule gives the client rights to it"
					 : session_choose_text(&session->base, rc));
		return;
	}
	session_set_state(&session->base, SESSION_READY);
	vhost_session_go_on(session);
}

void vhost_session_prepare(struct vhost_session *session)
{
	session->back_fd = -1;
	session->inflight_fd = -1;
	session->log.fd = -1;
	session->inflight.fd = -1;
	session->reply.fd = -1;
	session->places = 1;
	list_init(&session->events);
	list_init(&session->requests);
	list_init(&session->finished);
	list_init(&session->lane_list);
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		session->queues[i].session = session;
		session->queues[i].index = i;
		list_init(&session->queues[i].done);
		list_init(&session->queues[i].done_node);
		list_init(&session->queues[i].polled_node);
	}
}

struct vhost_session *vhost_session_create(
	struct vhost_service *service, const struct endpoint *endpoint)
{
	struct vhost_session *session =
		vhost_service_start(service) == 0 ? calloc(1, sizeof(*session)) : NULL;

	if (session == NULL) {
		return NULL;
	}
	session->service = service;
	vhost_session_prepare(session);
	session_init(&session->base, service->engine, endpoint);
	while (session->places < VHOST_SERVER_QUEUES &&
		session_part_engine(&session->base, session->places) != NULL) {
		session->places++;
	}
	session->file = ring_file_add(service->engine->ring, endpoint->fd);
	return session;
}

int vhost_session_accept(void *service, const struct endpoint *endpoint)
{
	char *name = strdup(endpoint->export_name != NULL ? endpoint->export_name : "");
	struct vhost_session *session =
		name != NULL ? vhost_session_create(service, endpoint) : NULL;

	if (session == NULL) {
		free(name);
		return -ENOMEM;
	}
	session->export_name = name;
	if (dispose_has_room(session->base.peer.credentials.uid)) {
		rights_permit(endpoint->fd);
		vhost_session_choose(session);
	} else {
		vhost_session_fail(session, "too many descriptors of its user wait to be closed");
	}
	return 0;
}

void vhost_session_resume(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	turns_remove(&base->blocked_turn);
	if (base->state == SESSION_NEGOTIATING) {
		vhost_session_choose(session);
	} else if (base->state != SESSION_READY || base->paused) {
		return; /* it is continued after the pause, or in another process */
	} else if (session->rests) {
		vhost_session_go_on(session);
	} else if (session->waits == VHOST_WAITS_FOR_EARLIER) {
		vhost_message_run(session);
	} else if (start_held(session)) {
		vhost_session_take_all(session);
	}
}

bool vhost_session_is_broken(struct vhost_session *session, const struct vhost_memory *rings)
{
	if (vhost_session_is_cut(session)) {
		session_terminate(&session->base, NULL);
	}
	if (vhost_memory_is_broken(session->memory) ||
		vhost_memory_is_broken(rings != session->memory ? rings : NULL) ||
		mapping_is_broken(&session->log.mapping) ||
		mapping_is_broken(&session->inflight.mapping)) {
		vhost_session_fail(session, "its memory was truncated, or cannot be allocated");
	}
	return session->base.state == SESSION_TERMINATING;
}

/* Takes requests for which the guest does not kick, because the queue was full. The share of a turn
 * limits their number, because a guest can make each request that ends immediately add another one.
 * vhost_session_resume() takes the others. */
static void take_more(struct vhost_queue *queue)
{
	struct session *base = &queue->session->base;
	struct engine *engine = base->engine;

	if (base->state == SESSION_TERMINATING) {
		return; /* it has ended */
	}
	if (engine_turn_is_full(engine)) {
		engine->limits_released = true;
		turns_add(&engine->blocked, &base->blocked_turn);
	} else {
		(void)vhost_queue_take(queue);
	}
}

void vhost_session_flush(struct session *base, bool alone)
{
	struct vhost_session *session = vhost_session_of(base);
	struct list_node *node;

	while (!vhost_session_is_broken(session, NULL) &&
		(node = list_pop_front(&session->finished)) != NULL) {
		struct vhost_queue *queue = list_entry(node, struct vhost_queue, done_node);

		vhost_queue_publish(queue);
		take_more(queue);
	}
	if (base->stopping && list_is_empty(&session->requests) && session->held == NULL &&
		!vhost_lanes_are_out(session)) {
		session_terminate(base, NULL);
	} else if (base->state == SESSION_READY && session->waits != VHOST_WAITS_NOT) {
		vhost_message_run(session);
	} else {
		vhost_lanes_go_on(session);
	}
}

void vhost_session_export_changed(struct session *base, enum export_change change)
{
	struct vhost_session *session = vhost_session_of(base);

	if (change == EXPORT_RESIZED) {
		session->config_due = true;
		vhost_message_tell_config(session);
	} else {
		(void)vhost_lanes_return(session); /* so that they learn of the change */
	}
}

bool vhost_session_is_away(struct session *base)
{
	return vhost_lanes_are_out(vhost_session_of(base));
}

/* A virtual machine that is idle is not disconnected, because some front ends do not reconnect. */
bool vhost_session_peer_receives(struct session *base)
{
	/* of a paused session, only a reply that the front end does not receive is due */
	return !base->paused;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Requests that were taken are finished. Later ones stay in the avail rings for the server to which
 * the front end reconnects. */
void vhost_session_drain(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	if (base->state == SESSION_NEGOTIATING) {
		session_terminate(base, NULL);
		return;
	}
	(void)start_held(session);
	(void)vhost_lanes_return(session);
	session_mark_dirty(base); /* vhost_session_flush() ends the session */
}

void vhost_session_abort(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);
	struct ring *ring = base->engine->ring;

	vhost_lanes_abort(session);
	if (session->held != NULL) {
		vhost_request_forget(session->held);
		session->held = NULL;
	}
	list_for_each(node, &session->requests)
	{
		struct blk_request *request = list_entry(node, struct blk_request, node);

		if (request->is_started) {
			(void)path_abandon(&request->path);
		}
	}
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		/* Not later: while the last requests end, the front end can connect again, and
		 * then the rings belong to its new session. */
		vhost_queue_leave(&session->queues[i]);
		vhost_event_drop(&session->queues[i].kick, true);
		vhost_event_drop(&session->queues[i].call, true);
		vhost_event_drop(&session->queues[i].error, true);
	}
	vhost_events_cancel(session);
	ring_cancel(ring, &session->poll_op);
	ring_cancel(ring, &session->back_op);
}

bool vhost_session_join(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	list_for_each(node, &session->requests)
	{
		struct blk_request *request = list_entry(node, struct blk_request, node);

		if (!request->is_started || path_is_idle(&request->path)) {
			vhost_request_end(request);
		}
	}
	return list_is_empty(&session->requests) && session->event_count == 0 &&
	       !vhost_lanes_are_out(session) && !session->poll_op.in_flight &&
	       !session->back_op.in_flight;
}

void vhost_session_close(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);
	struct ring *ring = base->engine->ring;
	int fd = session->file.fd;

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		list_remove(&session->queues[i].polled_node);
		free(session->queues[i].again);
		vhost_memory_put(session->queues[i].memory);
	}
	vhost_message_drop_fds(session);
	vhost_memory_put(session->memory);
	vhost_file_unmap(&session->log);
	vhost_file_unmap(&session->inflight);
	if (session->inflight_fd >= 0) {
		close(session->inflight_fd);
	}
	if (session->back_fd >= 0) {
		dispose_fd(session->back_fd, base->peer.credentials.uid, false);
	}
	ring_file_remove(ring, &session->file);
	if (!base->handed_over) {
		shutdown(fd, SHUT_RDWR); /* the descriptor is perhaps closed much later */
	}
	ring_socket_close(ring, fd);
	free(session->export_name);
	free(session);
}
