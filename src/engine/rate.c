// SPDX-License-Identifier: Apache-2.0
#include "engine/rate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_NS UINT64_C(1000000000)
/* Maximum length of a booking, so that times cannot overflow. */
#define BOOKING_NS_MAX (UINT64_C(86400) * 366 * SECOND_NS)

/* The sessions and copies of one peer in a queue. */
struct rate_group {
	struct list_node node;
	struct turn_group turns;
	const void *peer;
	uint32_t member_count;
};

static const struct counter rate_counter_list[] = {
	COUNTER(struct rate_counters, delayed, TOTAL, ITEMS, "requests_delayed",
		"Requests delayed by the rate limit", .metric = "export_rate_delayed_requests"),
	COUNTER(struct rate_counters, delayed_ns, TOTAL, NS, "delay_ns",
		"Total delay of requests by the rate limit"),
};

const struct counter_table rate_counter_table = { "rate", "export", "export_rate_",
	rate_counter_list, ARRAY_COUNT(rate_counter_list) };

/* --- time lines ------------------------------------------------------------------------------ */

void rate_set(struct rate *rate, const struct rate_limits *limits, uint64_t now_ns)
{
	/* Release order, for the acquire order in book() and renew(): a queue that finds the
	 * bookings removed also finds the new limits. */
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		atomic_store_explicit(
			&rate->per_second[unit], limits->per_second[unit], memory_order_relaxed);
	}
	atomic_store_explicit(&rate->burst_ns, limits->burst_ns, memory_order_relaxed);
	atomic_fetch_add_explicit(&rate->serial, 1, memory_order_release);
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		atomic_store_explicit(&rate->booked_ns[unit], now_ns, memory_order_release);
	}
}

void rate_get(const struct rate *rate, struct rate_limits *limits)
{
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		limits->per_second[unit] =
			atomic_load_explicit(&rate->per_second[unit], memory_order_relaxed);
	}
	limits->burst_ns = atomic_load_explicit(&rate->burst_ns, memory_order_relaxed);
}

/* Returns how long the amount takes at the rate. Uses floating point, because the product exceeds
 * 64 bits. For durations of days, the error is less than a nanosecond. */
static uint64_t cost_ns(const struct rate_limits *limits, enum rate_unit unit, uint64_t amount)
{
	double ns = (double)amount * (double)SECOND_NS / (double)limits->per_second[unit];

	return ns < (double)BOOKING_NS_MAX ? (uint64_t)ns : BOOKING_NS_MAX;
}

static uint64_t amount_in(const struct rate_limits *limits, enum rate_unit unit, uint64_t ns)
{
	return (uint64_t)((double)ns * (double)limits->per_second[unit] / (double)SECOND_NS);
}

/* Returns how far the end of all bookings can lag behind the clock: the burst without the part that
 * engines can hold unused (1/RATE_HOLD_PART). */
static uint64_t lag_max_ns(const struct rate_limits *limits)
{
	return limits->burst_ns - limits->burst_ns / RATE_HOLD_PART;
}

bool rate_has_rested(const struct rate *rate, uint64_t now_ns)
{
	struct rate_limits limits;
	bool rested = true;

	rate_get(rate, &limits);
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		uint64_t booked_ns =
			atomic_load_explicit(&rate->booked_ns[unit], memory_order_relaxed);

		rested &= limits.per_second[unit] == 0 || booked_ns + lag_max_ns(&limits) <= now_ns;
	}
	return rested;
}

/* If rate_set() was called, discards the queue's bookings, reads the new limits and returns
 * true. */
static bool renew(struct rate_queue *queue)
{
	uint32_t serial = atomic_load_explicit(&queue->rate->serial, memory_order_acquire);

	if (serial == queue->serial) {
		return false;
	}
	queue->serial = serial;
	rate_get(queue->rate, &queue->limits);
	memset(queue->left, 0, sizeof(queue->left));
	queue->ready_ns = 0;
	return true;
}

/* Returns the amount, as a time, that a queue can book in addition to what it needs. All queues of
 * the rate together can hold 1/RATE_HOLD_PART of the burst unused. */
static uint64_t chunk_ns(const struct rate_queue *queue)
{
	uint32_t count = atomic_load_explicit(&queue->rate->queue_count, memory_order_relaxed);

	return queue->limits.burst_ns / RATE_HOLD_PART / MAX(count, 1U);
}

/* Books at least the needed amount. If that amount is available now, books all that is available,
 * up to a chunk. Otherwise books at least what the rate permits in RATE_PAUSE_NS, so that engines
 * that wait for the same rate get equal amounts. Returns false if rate_set() was called. */
static bool book(struct rate_queue *queue, enum rate_unit unit, uint64_t needed, uint64_t now_ns)
{
	const struct rate_limits *limits = &queue->limits;
	_Atomic uint64_t *line = &queue->rate->booked_ns[unit];
	uint64_t lag_ns = lag_max_ns(limits);
	uint64_t most_ns = chunk_ns(queue);
	uint64_t oldest_ns = now_ns - MIN(now_ns, lag_ns);
	uint64_t needed_ns = cost_ns(limits, unit, needed) + 1;
	uint64_t booked_ns = atomic_load_explicit(line, memory_order_acquire);
	uint64_t start_ns;
	uint64_t room_ns;
	uint64_t length_ns;
	uint64_t amount;
	bool waits;

	do {
		if (unlikely(renew(queue))) {
			return false;
		}
		start_ns = MAX(booked_ns, oldest_ns);
		room_ns = now_ns - MIN(now_ns, start_ns);
		waits = room_ns < needed_ns;
		length_ns = MIN(waits ? RATE_PAUSE_NS : room_ns, most_ns);
		/* Rounded up to whole units: a booking must not lose a fraction of a request. */
		amount = MAX(needed, amount_in(limits, unit, length_ns) + waits);
		length_ns = cost_ns(limits, unit, amount) + 1;
	} while (!atomic_compare_exchange_weak_explicit(line, &booked_ns, start_ns + length_ns,
		memory_order_acquire, memory_order_acquire));
	queue->left[unit] += amount;
	start_ns += MIN(length_ns, lag_ns);
	/* The queue gives back an unused booking a fixed time after ready_ns, so ready_ns must not
	 * be in the past. */
	start_ns = MAX(start_ns, now_ns);
	queue->ready_ns = MAX(queue->ready_ns, start_ns);
	return true;
}

static void engine_rate_give_back(struct rate_queue *queue)
{
	if (renew(queue)) {
		return;
	}
	for (enum rate_unit unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		_Atomic uint64_t *line = &queue->rate->booked_ns[unit];
		uint64_t booked_ns = atomic_load_explicit(line, memory_order_relaxed);
		uint64_t length_ns;

		if (queue->left[unit] == 0) {
			continue;
		}
		length_ns = cost_ns(&queue->limits, unit, queue->left[unit]);
		while (!atomic_compare_exchange_weak_explicit(line, &booked_ns,
			booked_ns - MIN(booked_ns, length_ns), memory_order_relaxed,
			memory_order_relaxed)) {
		}
		queue->left[unit] = 0;
	}
	queue->ready_ns = 0;
}

/* --- queues ---------------------------------------------------------------------------------- */

static uint64_t needed_of(const struct rate_queue *queue, enum rate_unit unit, uint64_t bytes)
{
	if (queue->limits.per_second[unit] == 0) {
		return 0;
	}
	return unit == RATE_BYTES ? bytes : 1;
}

/* Takes what a request needs from the queue's booking. If it is not available yet, books it, sets
 * queue->ready_ns to the time of the next attempt, and returns false. */
static bool engine_rate_take(struct rate_queue *queue, uint64_t bytes, uint64_t now_ns)
{
	enum rate_unit unit = 0;

	while (unit < RATE_UNIT_COUNT) {
		uint64_t needed = needed_of(queue, unit, bytes);

		if (needed <= queue->left[unit] ||
			book(queue, unit, needed - queue->left[unit], now_ns)) {
			unit++;
		} else {
			unit = 0; /* start again with the new limits */
		}
	}
	if (queue->ready_ns > now_ns) {
		return false;
	}
	for (unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		queue->left[unit] -= needed_of(queue, unit, bytes);
	}
	return true;
}

static void engine_rate_timer_done(struct ring_op *op, int result);

/* Sets the timer that serves all queues. It expires after RATE_PAUSE_NS at the earliest, so that
 * each expiry serves many requests. */
static void engine_rate_arm(struct rate_room *room)
{
	uint64_t now_ns = ring_batch_ns(room->ring);
	uint64_t due_ns = UINT64_MAX;

	list_for_each(node, &room->waited_for)
	{
		due_ns = MIN(due_ns, list_entry(node, struct rate_queue, node)->ready_ns);
	}
	if (due_ns == UINT64_MAX) {
		return;
	}
	due_ns = MAX(due_ns, now_ns + RATE_PAUSE_NS);
	if (!room->timer.in_flight) {
		room->due_ns = due_ns;
		ring_timer(room->ring, &room->timer, due_ns - now_ns, engine_rate_timer_done);
	} else if (due_ns < room->due_ns) {
		room->due_ns = due_ns;
		/* the timer completes now, and is then set to the earlier time */
		ring_cancel(room->ring, &room->timer);
	}
}

/* Takes what the member's request needs from each of its queues, beginning with the queue of its
 * current stage. If the request has to wait in a queue, adds the member there. Returns true if the
 * request can start. */
static bool engine_rate_advance(struct rate_member *member, uint64_t now_ns)
{
	for (; member->stage < RATE_QUEUES; member->stage++) {
		struct rate_queue *queue = member->queues[member->stage];

		if (queue == NULL || rate_limits_are_off(&queue->limits)) {
			continue;
		}
		if (turns_are_empty(&queue->waiting)) {
			/* Nobody waits in this queue. If its booking has not been used for a long
			 * time, the queue gives it back to the rate. */
			if (now_ns - MIN(now_ns, queue->ready_ns) >
				queue->limits.burst_ns / RATE_HOLD_PART) {
				engine_rate_give_back(queue);
			}
			if (engine_rate_take(queue, member->bytes, now_ns)) {
				continue;
			}
			list_push_back(&queue->room->waited_for, &queue->node);
		}
		member->turn.group = &member->groups[member->stage]->turns;
		turns_add(&queue->waiting, &member->turn);
		return false;
	}
	return true;
}

static void engine_rate_pass(struct rate_member *member, struct rate_queue *queue, uint64_t now_ns)
{
	turns_remove(&member->turn);
	if (turns_are_empty(&queue->waiting)) {
		list_remove(&queue->node);
	}
	turns_had(&queue->waiting, &member->turn, NULL);
	queue->counters.delayed++;
	queue->counters.delayed_ns += now_ns - MIN(now_ns, member->since_ns);
	member->since_ns = now_ns;
	member->stage++;
	if (engine_rate_advance(member, now_ns)) {
		member->ready(member);
	}
}

/* Lets the waiting members continue, up to the first one whose booking is not ready. A member that
 * starts and then waits again goes behind the others. */
static void engine_rate_serve(struct rate_queue *queue, uint64_t now_ns)
{
	struct turn *turn;

	while ((turn = turns_first(&queue->waiting)) != NULL) {
		struct rate_member *member = container_of(turn, struct rate_member, turn);

		if (!rate_limits_are_off(&queue->limits) &&
			!engine_rate_take(queue, member->bytes, now_ns)) {
			return;
		}
		engine_rate_pass(member, queue, now_ns);
	}
}

static void engine_rate_timer_done(struct ring_op *op, int result)
{
	struct rate_room *room = container_of(op, struct rate_room, timer);
	uint64_t now_ns = ring_now_ns(room->ring);
	struct list_node queues;
	struct list_node *node;

	GMB_UNUSED(result); /* the timer has expired or was cancelled; both cause a check */
	/* Serves each queue once. Queues with members that still wait are added to the room's list
	 * again. */
	list_init(&queues);
	list_move_all(&queues, &room->waited_for);
	while ((node = list_pop_front(&queues)) != NULL) {
		list_push_back(&room->waited_for, node);
		engine_rate_serve(list_entry(node, struct rate_queue, node), now_ns);
	}
	engine_rate_arm(room);
}

void rate_room_init(struct rate_room *room, struct ring *ring)
{
	*room = (struct rate_room){ .ring = ring };
	list_init(&room->waited_for);
}

void rate_room_stop(struct rate_room *room)
{
	GMB_ASSERT(list_is_empty(&room->waited_for));
	if (room->timer.in_flight) {
		ring_cancel(room->ring, &room->timer);
	}
}

void rate_queue_init(struct rate_queue *queue, struct rate_room *room, struct rate *rate)
{
	*queue = (struct rate_queue){ .room = room, .rate = rate };
	atomic_fetch_add_explicit(&rate->queue_count, 1, memory_order_relaxed);
	(void)renew(queue);
	turns_init(&queue->waiting);
	list_init(&queue->groups);
	list_init(&queue->node);
}

void rate_queue_fini(struct rate_queue *queue)
{
	GMB_ASSERT(list_is_empty(&queue->groups));
	engine_rate_give_back(queue);
	atomic_fetch_sub_explicit(&queue->rate->queue_count, 1, memory_order_relaxed);
}

void rate_queue_changed(struct rate_queue *queue)
{
	/* Reads the limits again, because the queue might have read them while rate_set() ran, and
	 * got a mixture of old and new ones. */
	engine_rate_give_back(queue);
	engine_rate_arm(queue->room);
}

/* --- members --------------------------------------------------------------------------------- */

void rate_member_init(struct rate_member *member, void (*ready)(struct rate_member *member))
{
	*member = (struct rate_member){ .ready = ready };
	list_init(&member->turn.node);
}

int rate_join(struct rate_member *member, enum rate_stage stage, struct rate_queue *queue,
	const void *peer)
{
	struct rate_group *group = NULL;

	GMB_ASSERT(member->queues[stage] == NULL && !member->asks);
	list_for_each(node, &queue->groups)
	{
		struct rate_group *other = list_entry(node, struct rate_group, node);

		group = other->peer == peer ? other : group;
	}
	if (group == NULL) {
		group = calloc(1, sizeof(*group));
		if (group == NULL) {
			return -ENOMEM;
		}
		group->peer = peer;
		turn_group_init(&group->turns);
		list_push_back(&queue->groups, &group->node);
	}
	group->member_count++;
	member->queues[stage] = queue;
	member->groups[stage] = group;
	return 0;
}

/* Gives back to the queue what was taken for a request that will not start. */
static void refund(struct rate_queue *queue, uint64_t bytes)
{
	for (int unit = 0; unit < RATE_UNIT_COUNT; unit++) {
		if (queue->limits.per_second[unit] > 0) {
			queue->left[unit] += unit == RATE_BYTES ? bytes : 1;
		}
	}
	if (turns_are_empty(&queue->waiting)) {
		engine_rate_give_back(queue);
	}
}

void rate_give_up(struct rate_member *member)
{
	struct rate_queue *waits_in = rate_waits(member) ? member->queues[member->stage] : NULL;

	if (!member->asks) {
		return;
	}
	member->asks = false;
	for (uint32_t i = 0; i < member->stage; i++) {
		if (member->queues[i] != NULL) {
			refund(member->queues[i], member->bytes);
		}
	}
	if (waits_in == NULL) {
		return;
	}
	/* This member was the first in the queue, so the booking was made for its request. Return
	 * the booking, because the next member may need much less. */
	if (turns_first(&waits_in->waiting) == &member->turn) {
		engine_rate_give_back(waits_in);
	}
	turns_remove(&member->turn);
	if (turns_are_empty(&waits_in->waiting)) {
		list_remove(&waits_in->node);
	}
	engine_rate_arm(waits_in->room);
}

void rate_leave(struct rate_member *member)
{
	rate_give_up(member);
	for (int i = 0; i < RATE_QUEUES; i++) {
		struct rate_group *group = member->groups[i];

		if (group != NULL && --group->member_count == 0) {
			list_remove(&group->node);
			free(group);
		}
		member->groups[i] = NULL;
		member->queues[i] = NULL;
	}
}

bool rate_ask(struct rate_member *member, uint64_t bytes)
{
	const struct rate_queue *queue;

	if (member->asks) {
		return member->stage == RATE_QUEUES;
	}
	queue = member->queues[0] != NULL ? member->queues[0] : member->queues[1];
	member->asks = true;
	member->bytes = bytes;
	member->stage = 0;
	member->since_ns = ring_batch_ns(queue->room->ring);
	if (engine_rate_advance(member, member->since_ns)) {
		return true;
	}
	engine_rate_arm(queue->room);
	return false;
}
