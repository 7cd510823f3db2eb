// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/work.h"
#include "vhost/server/session.h"

/* Returns whether the descriptor is an eventfd. Reading the link does not access the file itself,
 * which could block. */
static bool is_eventfd(int fd)
{
	static const char expected[] = "anon_inode:[eventfd]";
	char path[40];
	char link[sizeof(expected)];
	ssize_t bytes;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	bytes = readlink(path, link, sizeof(link));
	return bytes == (ssize_t)sizeof(expected) - 1 &&
	       memcmp(link, expected, sizeof(expected) - 1) == 0;
}

/* The descriptors of a lane belong to struct vhost_lane. */
static void event_close(const struct vhost_session *session, int fd)
{
	if (session->is_cut == NULL) {
		dispose_fd(fd, session->base.peer.credentials.uid, false);
	}
}

static void event_free(struct vhost_event *event)
{
	struct vhost_session *session = event->session;
	int fd = event->file.fd;

	session->event_count--;
	list_remove(&event->node);
	ring_file_remove(session->base.engine->ring, &event->file);
	event_close(session, fd);
	free(event);
}

static void kick_done(struct ring_op *op, int result);
static void event_poll_done(struct ring_op *op, int result);

static void kick_wait(struct vhost_event *event)
{
	ring_read(event->session->base.engine->ring, &event->op, event->file, mem_of(&event->value),
		sizeof(event->value), 0, kick_done);
}

static void kick_done(struct ring_op *op, int result)
{
	struct vhost_event *event = container_of(op, struct vhost_event, op);

	if (event->queue == NULL) {
		event_free(event);
	} else if (event->session->rests || !vhost_queue_is_here(event->queue)) {
		/* Who continues, or the lane, reads again, and looks at all queues. */
		vhost_lanes_go_on(event->session);
	} else if (result == -EAGAIN) { /* some kernels do not wait if the file is O_NONBLOCK */
		ring_poll(event->session->base.engine->ring, op, event->file.fd, POLLIN,
			event_poll_done);
	} else if (result == sizeof(event->value) || result == -EINTR || result == -ECANCELED) {
		kick_wait(event);
		(void)vhost_queue_take(event->queue);
	} else {
		vhost_queue_fail(event->queue, "its kick eventfd cannot be read");
	}
}

static void event_poll_done(struct ring_op *op, int result)
{
	struct vhost_event *event = container_of(op, struct vhost_event, op);

	GMB_UNUSED(result); /* an error is reported by the read */
	if (event->queue == NULL) {
		event_free(event);
	} else if (event->session->rests || !vhost_queue_is_here(event->queue)) {
		vhost_lanes_go_on(event->session);
	} else {
		kick_wait(event);
	}
}

static void call_done(struct ring_op *op, int result)
{
	struct vhost_event *event = container_of(op, struct vhost_event, op);

	/* An error is ignored: -EAGAIN means that the counter is full, so the front end will
	 * notice it anyway. */
	if (event->is_due) {
		event->is_due = false;
		vhost_event_signal(event);
	} else if (event->queue == NULL) {
		event_free(event);
	}
}

int vhost_event_create(
	struct vhost_queue *queue, int fd, bool is_kick, struct vhost_event **event_out)
{
	struct vhost_session *session = queue->session;
	struct vhost_event *event = NULL;
	int rc = !is_eventfd(fd) ? -EINVAL : session->event_count >= VHOST_EVENTS_MAX ? -EMFILE : 0;

	if (rc == 0) {
		event = calloc(1, sizeof(*event));
	}
	if (event == NULL) {
		event_close(session, fd);
		return rc ?: -ENOMEM;
	}
	list_push_back(&session->events, &event->node);
	event->session = session;
	event->queue = queue;
	event->is_kick = is_kick;
	event->value = 1;
	event->file = ring_file_add(session->base.engine->ring, fd);
	session->event_count++;
	if (is_kick && !session->rests && vhost_queue_is_here(queue)) {
		kick_wait(event);
	}
	*event_out = event;
	return 0;
}

void vhost_event_signal(struct vhost_event *event)
{
	if (event == NULL) {
		return;
	}
	if (event->op.in_flight) {
		event->is_due = true;
		return;
	}
	ring_write(event->session->base.engine->ring, &event->op, event->file,
		mem_of(&event->value), sizeof(event->value), 0, false, call_done);
}

void vhost_event_drop(struct vhost_event **event, bool signals)
{
	struct vhost_event *dropped = *event;

	*event = NULL;
	if (dropped == NULL) {
		return;
	}
	dropped->queue = NULL;
	if (!dropped->op.in_flight) {
		event_free(dropped);
	} else if (!signals) {
		dropped->is_due = false;
		ring_cancel(dropped->session->base.engine->ring, &dropped->op);
	}
}

void vhost_events_cancel(struct vhost_session *session)
{
	list_for_each(node, &session->events)
	{
		struct vhost_event *event = list_entry(node, struct vhost_event, node);

		event->is_due = false;
		ring_cancel(session->base.engine->ring, &event->op);
	}
}

/* The read of a kick is cancelled, because the other process would miss kicks that it takes. */
void vhost_events_pause(struct vhost_session *session)
{
	session->rests = true;
	list_for_each(node, &session->events)
	{
		struct vhost_event *event = list_entry(node, struct vhost_event, node);

		if (event->is_kick && event->op.in_flight) {
			ring_cancel(session->base.engine->ring, &event->op);
		}
	}
}

/* Returns whether a signal would wait, because the front end has not read its counter. */
static bool counter_is_full(const struct vhost_event *event)
{
	struct pollfd poll_fd = { .fd = event->file.fd, .events = POLLOUT };

	return poll(&poll_fd, 1, 0) == 0;
}

/* A signal is cancelled only if the counter is full: the front end then notices the requests when
 * it reads the counter. Any other signal is about to complete, but perhaps in a worker of the
 * kernel that a cancellation would precede. */
bool vhost_events_rest(struct vhost_session *session)
{
	bool rest = true;

	list_for_each(node, &session->events)
	{
		struct vhost_event *event = list_entry(node, struct vhost_event, node);

		if (event->op.in_flight && (event->is_kick || counter_is_full(event))) {
			event->is_due = false;
			ring_cancel(session->base.engine->ring, &event->op);
		}
		rest &= !event->op.in_flight;
	}
	return rest;
}

void vhost_events_continue(struct vhost_session *session)
{
	session->rests = false;
	list_for_each(node, &session->events)
	{
		struct vhost_event *event = list_entry(node, struct vhost_event, node);

		if (event->is_kick && event->queue != NULL && !event->op.in_flight &&
			vhost_queue_is_here(event->queue)) {
			kick_wait(event);
		}
	}
	for (uint32_t i = 0; i < VHOST_SERVER_QUEUES; i++) {
		struct vhost_queue *queue = &session->queues[i];

		if (queue->is_running) {
			vhost_event_signal(queue->is_broken ? queue->error : queue->call);
		}
	}
}
