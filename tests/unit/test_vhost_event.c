// SPDX-License-Identifier: Apache-2.0
/* Call eventfds of a session that another process takes over. */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "unit.h"
#include "vhost/server/session.h"

enum { TURNS_MAX = 1000 };

static struct ring *ring;
static struct engine engine;
static struct vhost_session session;
static struct vhost_queue *const queue = &session.queues[0];

static int set_up(void **state)
{
	const struct ring_options options = { .entries = 8, .files_max = 8, .buffers_max = 8 };
	struct error error;

	if (ring_create(&options, &ring, &error) < 0) {
		return -1;
	}
	engine.ring = ring;
	session.base.engine = &engine;
	list_init(&session.events);
	queue->session = &session;
	return 0;
}

static int tear_down(void **state)
{
	ring_destroy(ring);
	return 0;
}

/* Returns a descriptor of the eventfd of queue->call. */
static int make_call(int flags)
{
	int fd = eventfd(0, EFD_CLOEXEC | flags);
	int other = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	assert_true(other >= 0);
	assert_int_equal(vhost_event_create(queue, fd, false, &queue->call), 0);
	return other;
}

/* Pauses the session until it rests; returns the value of the counter. */
static uint64_t counter_at_rest(int fd)
{
	eventfd_t value = 0;

	vhost_events_pause(&session);
	for (int turns = 0; !vhost_events_rest(&session); turns++) {
		assert_true(turns < TURNS_MAX);
		(void)ring_turn(ring, true);
	}
	assert_int_equal(eventfd_read(fd, &value), 0);
	session.rests = false;
	return value;
}

static void end(int fd)
{
	vhost_event_drop(&queue->call, false);
	assert_int_equal(session.event_count, 0);
	close(fd);
}

/* The second signal is due when the first one is under way. */
TEST(a_signal_is_not_lost)
{
	int fd = make_call(0);

	vhost_event_signal(queue->call);
	vhost_event_signal(queue->call);
	assert_int_equal(counter_at_rest(fd), 2);
	end(fd);
}

/* The front end has stopped the queue. */
TEST(a_signal_of_a_stopped_queue_is_not_lost)
{
	int fd = make_call(EFD_NONBLOCK);

	vhost_event_signal(queue->call);
	vhost_event_signal(queue->call);
	vhost_event_drop(&queue->call, true);
	assert_int_equal(counter_at_rest(fd), 2);
	end(fd);
}

/* A front end that never reads its counter must not prevent an upgrade. */
TEST(a_full_counter_is_not_waited_for)
{
	const uint64_t full = UINT64_MAX - 1;
	int fd = make_call(0);

	assert_int_equal(eventfd_write(fd, full), 0);
	vhost_event_signal(queue->call);
	vhost_event_signal(queue->call);
	assert_int_equal(counter_at_rest(fd), full);
	end(fd);
}

int main(void)
{
	return unit_run(set_up, tear_down);
}
