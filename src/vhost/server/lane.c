// SPDX-License-Identifier: Apache-2.0
/*
 * Queues on other reactors. The queues of a session are spread over the reactors
 * (vhost_queue_place()). The session's own reactor receives all messages. On another reactor, a
 * lane serves the queues. A lane is a vhost_session without a socket, and a part of the session in
 * the other engine (engine_part_begin()).
 *
 *   session's reactor                                other reactor
 *   LEAVING: queues are quiet ──── start ──────────▶ the part begins, kicks are read, requests
 *   AWAY                                               │
 *   RETURNING ──────────────────── end, or abort ──▶   │ the last request is in the used ring
 *   LEAVING ◀───────────────────── returned ────────── the part has ended
 *
 * A lane has its own table of memory, its own eventfds and copies of all that requests need of the
 * session. The state of a queue passes to the lane with the message `start`, and back with
 * `returned`. So each object belongs to one thread at a time, and needs no lock. A queue passes
 * only while it is quiet: all its requests have ended, and its kicks are not read. The new owner of
 * a queue looks at the avail ring and signals the guest, as another process does after an upgrade.
 * So neither kicks nor calls are lost.
 *
 * Messages of the front end, except those that only read, are processed while all queues are here.
 * So are resets, drains, changes of rights, and pauses of an upgrade.
 *
 * A lane that cannot begin, because its reactor stops or has too many sessions, gives its queues
 * back, and the session serves them until the next message. A lane that ends with requests in
 * flight, because of memory that vanished, ends its session.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/work.h"
#include "engine/part.h"
#include "vhost/server/session.h"

enum { LANE_KICK, LANE_CALL, LANE_ERROR, LANE_EVENTS };

struct vhost_lane {
	struct list_node node; /* in device->lane_list; of the device's thread */
	/* users of this struct: the session, and messages to the lane that were not delivered */
	_Atomic uint32_t users;
	atomic_bool is_cut;	      /* the session has ended */
	struct vhost_session *device; /* the session of the front end */
	struct engine *engine;	      /* the lane's engine */
	struct ring_message start;
	struct ring_message end;
	struct ring_message abort;
	struct ring_message returned; /* posted once, when the lane has ended */
	bool is_over;		      /* it was posted; of the lane's thread */

	/* These belong to the lane's thread from start to returned, otherwise to the device's. */
	bool refused;				   /* the lane could not begin */
	bool failed;				   /* requests were abandoned */
	int fds[VHOST_SERVER_QUEUES][LANE_EVENTS]; /* for its events; -1: none */
	struct vhost_session session;
};

static void lanes_set(struct vhost_session *session, enum vhost_lanes lanes)
{
	static const uint32_t edges[] = {
		[VHOST_LANES_HOME] = BIT(VHOST_LANES_LEAVING),
		[VHOST_LANES_LEAVING] = BIT(VHOST_LANES_HOME) | BIT(VHOST_LANES_AWAY),
		[VHOST_LANES_AWAY] = BIT(VHOST_LANES_RETURNING),
		[VHOST_LANES_RETURNING] = BIT(VHOST_LANES_LEAVING),
	};

	GMB_ASSERT((edges[session->lanes] & BIT(lanes)) != 0);
	session->lanes = lanes;
}

static void lane_put(struct vhost_lane *lane)
{
	/* Acquire-release order: the thread that frees the lane must see all writes of the
	 * other thread. */
	if (atomic_fetch_sub_explicit(&lane->users, 1, memory_order_acq_rel) == 1) {
		free(lane);
	}
}

/* Closes the descriptors. The last close of an eventfd takes the locks of all epolls that contain
 * it, so a front end can make it sleep. While the session has the same files, no close is the last
 * one. Called on the thread of the session. */
static void lane_close_fds(const struct vhost_lane *lane)
{
	const struct session *base = &lane->device->base;

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		for (int k = 0; k < LANE_EVENTS; k++) {
			int fd = lane->fds[i][k];

			if (fd >= 0 && base->state != SESSION_TERMINATING) {
				close(fd);
			} else if (fd >= 0) {
				dispose_fd(fd, base->peer.credentials.uid, false);
			}
		}
	}
}

/* --- on the lane's thread --------------------------------------------------------------------- */

static void lane_return(struct vhost_lane *lane)
{
	lane->is_over = true;
	ring_post(lane->device->base.engine->ring, &lane->returned);
}

static void lane_abort(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);
	struct vhost_lane *lane = container_of(session, struct vhost_lane, session);
	bool is_done = base->stopping && list_is_empty(&session->requests) && session->held == NULL;

	lane->failed = !lane->refused && !is_done;
	vhost_session_abort(base);
}

static void lane_close(struct session *base)
{
	struct vhost_session *session = vhost_session_of(base);

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		list_remove(&session->queues[i].polled_node);
		vhost_memory_put(session->queues[i].memory);
	}
	lane_return(container_of(session, struct vhost_lane, session));
}

/* A part is not handed over and not drained: its session ends it. */
static const struct session_kind lane_kind = {
	.name = "vhost",
	.maps_memory = true,
	.resume = vhost_session_resume,
	.flush = vhost_session_flush,
	.abort = lane_abort,
	.join = vhost_session_join,
	.close = lane_close,
};

/* Creates the events of a queue from its descriptors. */
static int lane_create_events(struct vhost_lane *lane, struct vhost_queue *queue)
{
	struct vhost_event **events[LANE_EVENTS] = { &queue->kick, &queue->call, &queue->error };
	int rc = 0;

	for (int k = 0; rc == 0 && k < LANE_EVENTS; k++) {
		int fd = lane->fds[queue->index][k];

		rc = fd >= 0 ? vhost_event_create(queue, fd, k == LANE_KICK, events[k]) : 0;
	}
	return rc;
}

static int lane_begin(struct vhost_lane *lane)
{
	struct vhost_session *session = &lane->session;
	int rc;

	session->service = engine_service(lane->engine, &vhost_session_kind);
	rc = vhost_service_start(session->service)
		     ?: engine_part_begin(lane->engine, &session->base);
	if (rc < 0) {
		lane_return(lane);
		return rc;
	}
	for (uint32_t i = 0; rc == 0 && i < VHOST_SERVER_QUEUES; i++) {
		if (session->queues[i].is_running) {
			vhost_queue_locate(&session->queues[i]);
			rc = lane_create_events(lane, &session->queues[i]);
		}
	}
	if (rc < 0) {
		session_terminate(&session->base, NULL);
	}
	return rc;
}

static void lane_deliver_start(struct ring *ring, struct ring_message *message)
{
	struct vhost_lane *lane = container_of(message, struct vhost_lane, start);
	struct vhost_session *session = &lane->session;

	GMB_UNUSED(ring);
	lane->refused = true;
	if (lane_begin(lane) < 0) {
		return; /* the lane may be freed */
	}
	lane->refused = false;
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		vhost_event_signal(session->queues[i].call);
	}
	vhost_session_take_all(session);
}

/* Stops to take requests. vhost_session_flush() ends the lane after the last request. */
static void lane_deliver_end(struct ring *ring, struct ring_message *message)
{
	struct vhost_lane *lane = container_of(message, struct vhost_lane, end);
	struct vhost_session *session = &lane->session;

	GMB_UNUSED(ring);
	if (!lane->is_over && session->base.state == SESSION_READY) {
		session->base.stopping = true;
		vhost_session_put_back(session);
		session_mark_dirty(&session->base);
	}
	lane_put(lane);
}

static void lane_deliver_abort(struct ring *ring, struct ring_message *message)
{
	struct vhost_lane *lane = container_of(message, struct vhost_lane, abort);

	GMB_UNUSED(ring);
	if (!lane->is_over) {
		session_terminate(&lane->session.base, NULL);
	}
	lane_put(lane);
}

/* --- on the thread of the session ------------------------------------------------------------- */

/* Posts `end` or `abort`, each at most once. */
static void lane_tell(struct vhost_lane *lane, struct ring_message *message)
{
	/* Relaxed order: the session's own use keeps the lane alive. */
	atomic_fetch_add_explicit(&lane->users, 1, memory_order_relaxed);
	ring_post(lane->engine->ring, message);
}

static void lanes_call_back(struct vhost_session *session)
{
	if (session->lanes == VHOST_LANES_AWAY) {
		lanes_set(session, VHOST_LANES_RETURNING);
		list_for_each(node, &session->lane_list)
		{
			struct vhost_lane *lane = list_entry(node, struct vhost_lane, node);

			lane_tell(lane, &lane->end);
		}
	}
}

bool vhost_lanes_return(struct vhost_session *session)
{
	session->lanes_due = true;
	lanes_call_back(session);
	return !vhost_lanes_are_out(session);
}

void vhost_lanes_abort(struct vhost_session *session)
{
	list_for_each(node, &session->lane_list)
	{
		struct vhost_lane *lane = list_entry(node, struct vhost_lane, node);

		atomic_store_explicit(&lane->is_cut, true, memory_order_relaxed);
		lane_tell(lane, &lane->abort);
	}
}

static void queue_take_back(struct vhost_queue *own, const struct vhost_queue *lent)
{
	own->is_away = false;
	own->is_broken = lent->is_broken;
	own->misses_memory = lent->misses_memory;
	own->avail_index = lent->avail_index;
	own->avail_seen = lent->avail_seen;
	own->prefetched = lent->prefetched;
	own->hushed = lent->hushed;
	own->used_index = lent->used_index;
	own->signalled = lent->signalled;
	own->signalled_index = lent->signalled_index;
	own->record_counter = lent->record_counter;
	own->again_next = lent->again_next;
	if (own->is_broken) { /* the lane can have cancelled its signal */
		vhost_event_signal(own->error);
	}
}

/* A lane has ended. */
static void lanes_have_changed(struct vhost_session *session, bool refused, bool failed)
{
	if (failed) {
		session_terminate(&session->base, NULL); /* the lane has logged why */
		return;
	}
	lanes_call_back(session); /* if it was refused: the others, too */
	session->lanes_due &= !refused;
	if (!vhost_lanes_are_out(session)) {
		lanes_set(session, VHOST_LANES_LEAVING);
		session_mark_dirty(&session->base);
		vhost_message_run(session);
	}
}

static void lane_deliver_returned(struct ring *ring, struct ring_message *message)
{
	struct vhost_lane *lane = container_of(message, struct vhost_lane, returned);
	struct vhost_session *session = lane->device;
	bool refused = lane->refused;
	bool failed = lane->failed;

	GMB_UNUSED(ring);
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		if (lane->session.queues[i].is_running) {
			queue_take_back(&session->queues[i], &lane->session.queues[i]);
		}
	}
	lane_close_fds(lane);
	vhost_memory_put(lane->session.memory);
	list_remove(&lane->node);
	lane_put(lane);
	if (session->base.state != SESSION_TERMINATING) {
		lanes_have_changed(session, refused, failed);
	} /* else the engine looks again whether the session can be closed */
}

/* --- leaving ---------------------------------------------------------------------------------- */

/* Returns whether the queues can leave as soon as their requests have ended. */
static bool lanes_may_leave(const struct vhost_session *session)
{
	const struct session *base = &session->base;

	return session->lanes_due && !base->paused && !base->stopping && !session->rests &&
	       session->waits == VHOST_WAITS_NOT && !base->lease_checked &&
	       !vhost_message_is_complete(session);
}

static bool queue_can_leave(const struct vhost_queue *queue, uint32_t place)
{
	return vhost_queue_place(queue) == place && vhost_queue_is_usable(queue);
}

static bool has_queue_for(const struct vhost_session *session, uint32_t place)
{
	uint32_t i = 0;

	while (i < VHOST_SERVER_QUEUES && !queue_can_leave(&session->queues[i], place)) {
		i++;
	}
	return i < VHOST_SERVER_QUEUES;
}

/* Stops to serve the queues of other reactors. */
static void lanes_leave(struct vhost_session *session)
{
	bool puts_back = session->held != NULL && vhost_queue_place(session->held->queue) != 0;

	lanes_set(session, VHOST_LANES_LEAVING);
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		struct vhost_queue *queue = &session->queues[i];

		if (vhost_queue_place(queue) != 0) {
			list_remove(&queue->polled_node);
			if (queue->kick != NULL) {
				ring_cancel(session->base.engine->ring, &queue->kick->op);
			}
		}
	}
	if (puts_back) {
		vhost_session_put_back(session);
		vhost_session_take_all(session); /* other queues have waited for this request */
	}
}

/* Serves all queues here. */
static void lanes_stay(struct vhost_session *session)
{
	lanes_set(session, VHOST_LANES_HOME);
	if (!session->rests) {
		vhost_events_continue(session);
		vhost_session_take_all(session);
	}
}

static bool lanes_are_quiet(const struct vhost_session *session)
{
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		const struct vhost_queue *queue = &session->queues[i];

		if (vhost_queue_place(queue) != 0 &&
			(queue->inflight_count > 0 ||
				(queue->kick != NULL && queue->kick->op.in_flight))) {
			return false;
		}
	}
	return true;
}

/* Sets the descriptors of a queue's events. Returns false if there is no descriptor left. */
static bool lane_set_fds(struct vhost_lane *lane, const struct vhost_queue *queue)
{
	const struct vhost_event *events[LANE_EVENTS] = { queue->kick, queue->call, queue->error };
	bool done = true;

	for (int k = 0; done && k < LANE_EVENTS; k++) {
		if (events[k] != NULL) {
			lane->fds[queue->index][k] = fcntl(events[k]->file.fd, F_DUPFD_CLOEXEC, 0);
			done = lane->fds[queue->index][k] >= 0;
		}
	}
	return done;
}

static void lane_destroy(struct vhost_lane *lane)
{
	lane_close_fds(lane);
	vhost_memory_put(lane->session.memory);
	free(lane);
}

/* Gives the lane what it needs of the session. */
static void lane_copy(struct vhost_lane *lane, const struct vhost_session *device)
{
	struct vhost_session *session = &lane->session;

	vhost_session_prepare(session);
	session->base.kind = &lane_kind;
	session->base.peer = device->base.peer;
	session->base.rights = device->base.rights;
	session->base.export = device->base.export;
	session->features = device->features;
	session->is_writethrough = device->is_writethrough;
	session->log.mapping = device->log.mapping;
	session->inflight.mapping = device->inflight.mapping;
}

/* Creates the lane of a place. NULL: no memory or no descriptors. */
static struct vhost_lane *lane_create(struct vhost_session *device, uint32_t place)
{
	struct vhost_lane *lane = calloc(1, sizeof(*lane));
	bool done;

	if (lane == NULL) {
		return NULL;
	}
	atomic_init(&lane->users, 1);
	atomic_init(&lane->is_cut, false);
	lane->session.is_cut = &lane->is_cut;
	lane->device = device;
	lane->engine = session_part_engine(&device->base, place);
	lane->start.deliver = lane_deliver_start;
	lane->end.deliver = lane_deliver_end;
	lane->abort.deliver = lane_deliver_abort;
	lane->returned.deliver = lane_deliver_returned;
	memset(lane->fds, -1, sizeof(lane->fds));
	lane_copy(lane, device);
	lane->session.memory = vhost_memory_copy(device->memory);
	done = lane->session.memory != NULL;
	for (uint32_t i = 0; done && i < VHOST_SERVER_QUEUES; i++) {
		if (queue_can_leave(&device->queues[i], place)) {
			done = lane_set_fds(lane, &device->queues[i]);
		}
	}
	if (!done) {
		lane_destroy(lane);
		return NULL;
	}
	return lane;
}

static void queue_lend(
	struct vhost_queue *own, struct vhost_queue *lent, struct vhost_session *lane)
{
	*lent = *own;
	lent->session = lane;
	lent->memory = NULL; /* vhost_queue_locate() finds the rings in the lane's table */
	lent->kick = NULL;
	lent->call = NULL;
	lent->error = NULL;
	list_init(&lent->done);
	list_init(&lent->done_node);
	list_init(&lent->polled_node);
	own->is_away = true;
}

/* Posts `start`. From then on, the lane's thread uses the lane. */
static void lane_send(struct vhost_lane *lane, uint32_t place)
{
	struct vhost_session *device = lane->device;

	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		if (queue_can_leave(&device->queues[i], place)) {
			queue_lend(&device->queues[i], &lane->session.queues[i], &lane->session);
		}
	}
	ring_post(lane->engine->ring, &lane->start);
}

/* Creates the lanes of all places that have queues. Returns false if there is none, or no memory.
 */
static bool lanes_create(
	struct vhost_session *session, struct vhost_lane *lanes[VHOST_SERVER_QUEUES])
{
	bool done = true;

	for (uint32_t place = 1; done && place < session->places; place++) {
		if (has_queue_for(session, place)) {
			lanes[place] = lane_create(session, place);
			done = lanes[place] != NULL;
		}
	}
	return done;
}

/* The queues of other reactors are quiet: starts their lanes. */
static void lanes_send(struct vhost_session *session)
{
	struct vhost_lane *lanes[VHOST_SERVER_QUEUES] = { NULL };
	bool done = lanes_create(session, lanes);

	session->lanes_due = false;
	for (uint32_t place = 1; place < session->places; place++) {
		if (lanes[place] != NULL && done) {
			list_push_back(&session->lane_list, &lanes[place]->node);
			lane_send(lanes[place], place);
		} else if (lanes[place] != NULL) {
			lane_destroy(lanes[place]);
		}
	}
	if (vhost_lanes_are_out(session)) {
		lanes_set(session, VHOST_LANES_AWAY);
	} else {
		lanes_stay(session);
	}
}

void vhost_lanes_go_on(struct vhost_session *session)
{
	bool may = session->base.state == SESSION_READY && lanes_may_leave(session);

	if (session->base.state != SESSION_READY) {
		return;
	}
	if (session->lanes == VHOST_LANES_HOME && may) {
		session->lanes_due = false;
		for (uint32_t i = 1; !session->lanes_due && i < session->places; i++) {
			session->lanes_due = has_queue_for(session, i);
		}
		if (session->lanes_due) {
			lanes_leave(session);
		}
	}
	if (session->lanes != VHOST_LANES_LEAVING) {
		return;
	}
	if (!may) {
		lanes_stay(session);
	} else if (lanes_are_quiet(session)) {
		lanes_send(session);
	}
}
