// SPDX-License-Identifier: Apache-2.0
/*
 * The ring contract: event sources. The source of these cases is what they are for: a counter in
 * memory, whose producer rings a bell (a byte through a socket) only when the reader said that it
 * sleeps.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "ring_contract.h"

enum { EVENTS_AT_ONCE = 8, SOURCES = 50, RACES = 200, HAMMER_EVENTS = 20000 };

/* On a busy machine each event takes a turn of the scheduler; so fewer are enough there. */
#define HAMMER_NS (UINT64_C(5000) * MS_NS)

struct bell {
	struct ring_source source;
	struct ring *ring;
	int fds[2]; /* the reader's, the producer's */
	_Atomic int pending;
	_Atomic bool armed; /* the producer takes it, and rings */
	_Atomic int handled;
	_Atomic int last; /* the event with which hammer() ends, or 0 while it goes on */
	bool waits;	  /* armed was set, and nobody has looked since */
	int owed;	  /* bytes of the producer's, on their way */
	int arms;
	int removed;
	int polls_after_removal;
	void (*handle)(struct bell *bell);
	/* What happens in the narrowest places: before the last look, and behind it. */
	void (*before_look)(struct bell *bell);
	void (*behind_look)(struct bell *bell);
};

/* The producer; any thread. */
static void publish(struct bell *bell, int count)
{
	atomic_fetch_add(&bell->pending, count);
	if (atomic_exchange(&bell->armed, false)) {
		world_send_byte(bell->fds[1]);
	}
}

static void publish_one(void *context)
{
	publish(context, 1);
}

/* The reader is awake; what rang meanwhile is taken out of the way. */
static void disarm(struct bell *bell)
{
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (bell->waits && !atomic_exchange(&bell->armed, false)) {
		bell->owed++;
	}
	bell->waits = false;
	while (bell->owed > 0 && ring_recvmsg_now(bell->ring, plain(bell->fds[0]), &message) == 1) {
		bell->owed--;
	}
}

static int bell_poll(struct ring_source *source)
{
	struct bell *bell = container_of(source, struct bell, source);
	int count = atomic_load(&bell->pending);

	bell->polls_after_removal += bell->removed;
	disarm(bell);
	count = MIN(count, (int)EVENTS_AT_ONCE);
	atomic_fetch_sub(&bell->pending, count);
	atomic_fetch_add(&bell->handled, count);
	if (count > 0 && bell->handle != NULL) {
		bell->handle(bell);
	}
	return count;
}

static bool bell_arm(struct ring_source *source)
{
	struct bell *bell = container_of(source, struct bell, source);
	bool quiet;

	bell->arms++;
	disarm(bell);
	atomic_store(&bell->armed, true);
	bell->waits = true;
	if (bell->before_look != NULL) {
		bell->before_look(bell);
	}
	quiet = atomic_load(&bell->pending) == 0;
	if (bell->behind_look != NULL) {
		bell->behind_look(bell);
	}
	return quiet;
}

static void bell_open(struct bell *bell, struct ring *ring)
{
	*bell = (struct bell){
		.source = { .poll = bell_poll, .arm = bell_arm },
		.ring = ring,
	};
	world_pair(bell->fds);
	bell->source.fd = bell->fds[0];
	ring_source_add(ring, &bell->source);
}

static void bell_removed(struct ring_source *source)
{
	container_of(source, struct bell, source)->removed++;
}

static void bell_close(struct bell *bell)
{
	if (bell->removed == 0) {
		if (bell->source.removed == NULL) {
			ring_source_remove(bell->ring, &bell->source, bell_removed);
		}
		while (bell->removed == 0) {
			(void)ring_turn(bell->ring, true);
		}
	}
	assert_int_equal(bell->removed, 1);
	assert_int_equal(bell->polls_after_removal, 0);
	ring_socket_close(bell->ring, bell->fds[0]);
	world_close(bell->fds[1], WORLD_SOCKET);
}

static void wait_handled(struct bell *bell, int count)
{
	while (bell->handled < count) {
		(void)ring_turn(bell->ring, true);
	}
	assert_int_equal(bell->handled, count);
}

static const struct {
	uint32_t count;
	uint64_t wait_ns;
	uint64_t spin_ns;
} ways[] = { { 1, 0, 0 }, { 64, 60000, 0 }, { 1, 0, 50000 }, { 64, 60000, 50000 } };

static void set_way(struct ring *ring, size_t way)
{
	ring_set_batch(ring, ways[way].count, ways[way].wait_ns);
	ring_set_spin(ring, ways[way].spin_ns);
}

/* --- cases ----------------------------------------------------------------------------------- */

CONTRACT(an_event_wakes_a_ring_that_waits)
{
	struct waiter hour = { 0 };
	struct bell bell;

	bell_open(&bell, ring);
	ring_timer(ring, &hour.op, 3600000 * MS_NS, waiter_done);
	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		set_way(ring, way);
		for (int i = 0; i < 10; i++) {
			int before = bell.handled;

			world_later(publish_one, &bell);
			wait_handled(&bell, before + 1);
			world_join();
		}
	}
	set_way(ring, 0);
	assert_int_equal(ring_counters(ring)->events, 10 * ARRAY_COUNT(ways));
	assert_int_equal(hour.calls, 0);
	ring_cancel(ring, &hour.op);
	(void)wait_for(ring, &hour);
	bell_close(&bell);
}

static void publish_while_there_are(struct bell *bell)
{
	if (bell->handled + bell->pending < RACES) {
		publish(bell, 1);
	}
}

/* Each event comes at the worst moment, and nothing else would ever wake the ring. */
CONTRACT(an_event_on_the_way_to_sleep_is_not_lost)
{
	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		for (int behind = 0; behind < 2; behind++) {
			struct bell bell;

			bell_open(&bell, ring);
			set_way(ring, way);
			*(behind ? &bell.behind_look : &bell.before_look) = publish_while_there_are;
			wait_handled(&bell, RACES);
			bell_close(&bell);
		}
	}
	set_way(ring, 0);
}

static void hammer(void *context)
{
	struct bell *bell = context;
	uint64_t end_ns = clock_now_ns() + HAMMER_NS;

	for (int i = 1; atomic_load(&bell->last) == 0; i++) {
		if (i == HAMMER_EVENTS || clock_now_ns() >= end_ns) {
			atomic_store(&bell->last, i);
		}
		publish(bell, 1);
		while (atomic_load(&bell->handled) < i) {
			sched_yield();
		}
	}
}

CONTRACT(another_thread_loses_no_event)
{
	if (world_kind == WORLD_SIM) {
		return; /* one thread; the case before puts the event where threads would race */
	}
	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		struct bell bell;

		bell_open(&bell, ring);
		set_way(ring, way);
		world_later(hammer, &bell);
		while (bell.last == 0 || bell.handled < bell.last) {
			(void)ring_turn(ring, true);
		}
		world_join();
		assert_int_equal(bell.handled, bell.last);
		bell_close(&bell);
	}
	set_way(ring, 0);
}

/* A ring that is awake sees events in memory: nobody has to ring, and it does not sleep. */
CONTRACT(spinning_sees_events_without_the_bell)
{
	uint64_t waits;
	uint64_t crowded;
	struct bell bell;

	bell_open(&bell, ring);
	ring_set_spin(ring, 10000 * MS_NS);
	waits = ring_counters(ring)->waits;
	crowded = ring_counters(ring)->crowded;
	for (int i = 1; i <= 10; i++) {
		world_later(publish_one, &bell);
		wait_handled(&bell, i);
		world_join();
	}
	/* It sleeps only if another thread has taken the CPU. */
	crowded = ring_counters(ring)->crowded - crowded;
	assert_true((uint64_t)bell.arms <= crowded);
	assert_true(ring_counters(ring)->waits - waits <= crowded);
	ring_set_spin(ring, 0);
	bell_close(&bell);
}

/* More than one poll takes; a turn that does not wait takes them, too. */
CONTRACT(what_is_left_is_handled_without_a_wake_up)
{
	struct bell bell;

	bell_open(&bell, ring);
	publish(&bell, 3 * EVENTS_AT_ONCE + 1);
	assert_int_equal(ring_turn(ring, false), EVENTS_AT_ONCE);
	for (int i = 2; i <= 3; i++) {
		(void)ring_turn(ring, true);
		assert_int_equal(bell.handled, i * EVENTS_AT_ONCE);
	}
	assert_int_equal(ring_turn_limited(ring, 3600000 * MS_NS), 1);
	assert_int_equal(ring_turn(ring, false), 0);
	bell_close(&bell);
}

struct crowd {
	struct bell bells[SOURCES];
	int published[SOURCES];
};

static void publish_to_some(void *context)
{
	struct crowd *crowd = context;

	for (int i = 0; i < SOURCES; i += 1 + i % 3) {
		crowd->published[i] += 1 + i;
		publish(&crowd->bells[i], 1 + i);
	}
}

CONTRACT(many_sources_are_all_served)
{
	struct crowd *crowd = calloc(1, sizeof(*crowd));

	assert_non_null(crowd);
	for (int i = 0; i < SOURCES; i++) {
		bell_open(&crowd->bells[i], ring);
	}
	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		set_way(ring, way);
		world_later(publish_to_some, crowd);
		for (int i = 0; i < SOURCES; i += 1 + i % 3) {
			wait_handled(&crowd->bells[i], (int)(way + 1) * (1 + i));
		}
		world_join();
	}
	set_way(ring, 0);
	for (int i = 0; i < SOURCES; i++) {
		assert_int_equal(crowd->bells[i].handled, crowd->published[i]);
		bell_close(&crowd->bells[i]);
	}
	free(crowd);
}

static struct bell *successor;

static void replace(struct bell *bell)
{
	bell_open(successor, bell->ring);
	ring_source_remove(bell->ring, &bell->source, bell_removed);
	assert_int_equal(bell->removed, 0); /* later */
}

/* Asleep and awake; the next one takes over in the same callback. */
CONTRACT(a_source_is_removed_in_its_own_callback)
{
	struct bell other;

	bell_open(&other, ring);
	for (size_t way = 0; way < ARRAY_COUNT(ways); way++) {
		struct bell first;
		struct bell second;
		int before = other.handled;

		set_way(ring, way);
		bell_open(&first, ring);
		first.handle = replace;
		successor = &second;
		world_later(publish_one, &first);
		wait_handled(&first, 1);
		world_join();
		publish(&first, 1); /* nobody listens any more */
		publish(&other, 1);
		wait_handled(&other, before + 1);
		world_later(publish_one, &second);
		wait_handled(&second, 1);
		world_join();
		assert_int_equal(first.handled, 1);
		bell_close(&first);
		bell_close(&second);
	}
	set_way(ring, 0);
	bell_close(&other);
}

static int leave(struct ring_source *source)
{
	ring_source_remove(container_of(source, struct bell, source)->ring, source, bell_removed);
	return 0;
}

/* No event is handled, and nothing else would ever wake the ring. */
CONTRACT(a_source_that_spins_is_removed_without_an_event)
{
	struct bell bell;

	bell_open(&bell, ring);
	bell.source.poll = leave;
	ring_set_spin(ring, MS_NS);
	(void)ring_turn(ring, true);
	assert_int_equal(bell.removed, 1);
	ring_set_spin(ring, 0);
	bell_close(&bell);
}

CONTRACT(sources_are_removed_while_they_are_armed)
{
	struct waiter waiter = { .ring = ring };
	struct bell bells[3];

	for (int i = 0; i < 3; i++) {
		bell_open(&bells[i], ring);
	}
	ring_timer(ring, &waiter.op, MS_NS, waiter_done); /* asleep before, with all armed */
	(void)wait_for(ring, &waiter);
	for (int i = 0; i < 3; i++) {
		assert_true(bells[i].arms > 0);
		ring_source_remove(ring, &bells[i].source, bell_removed);
		publish(&bells[i], 1);
	}
	settle(ring);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(bells[i].removed, 1);
		assert_int_equal(bells[i].handled, 0);
		bell_close(&bells[i]);
	}
}

/* A loop of the owner's own that waits for the ring's descriptor hears of events as well. */
CONTRACT(an_event_wakes_another_loop)
{
	struct ring *outer = contract_ring(NULL);
	struct bell bell;

	bell_open(&bell, ring);
	assert_true(ring_poll_fd(ring) >= 0);
	for (int i = 1; i <= 20; i++) {
		if (i % 2 == 0) {
			bell.before_look = publish_while_there_are;
		} else {
			world_later(publish_one, &bell);
		}
		while (bell.handled < i) {
			struct waiter waiter = { 0 };

			while (ring_turn_limited(ring, 0) > 0) {
			}
			if (bell.handled >= i) {
				break;
			}
			ring_flush(ring);
			bell.before_look = NULL;
			ring_poll(outer, &waiter.op, ring_poll_fd(ring), POLLIN, waiter_done);
			assert_true((wait_for(outer, &waiter) & POLLIN) != 0);
		}
		world_join();
	}
	assert_int_equal(bell.handled, 20);
	bell_close(&bell);
	ring_destroy(outer);
}
