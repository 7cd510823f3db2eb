// SPDX-License-Identifier: Apache-2.0
/*
 * Rates: limits on the requests and bytes per second of an export or an identity.
 *
 *   session ─▶ queue of its identity ─▶ queue of its export ─▶ the request starts
 *                     │ books                  │ books
 *                     ▼                        ▼
 *                struct rate              struct rate        one for all engines
 *
 * A rate has one time line for requests and one for bytes. A request books its share of the line
 * after all earlier bookings, and starts when the time of its booking has come. A booking is one
 * atomic operation, so the bookings of several engines interleave without a lock. A line can lag
 * behind the clock by at most the burst, which is the amount that can start immediately after a
 * pause. A request longer than the burst starts when the line lags by the whole burst, and the
 * requests after it wait for the rest. This is the virtual scheduling algorithm of ITU-T I.371
 * (GCRA).
 *
 *     booked by others      available          now
 *   ───▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│░░░░░░░░░░░░░░░░░░░░░░░│────▶ time     at most the burst wide
 *
 * A queue is one engine's part of a rate. It books more than the next request needs, up to a chunk
 * while the line has room, so that few requests touch the line. It returns what it has not used
 * within RATE_HOLD_PART of the burst. So in any interval of length t, at most rate * t + burst
 * starts, plus one request per engine. Waiting sessions take turns by peer, then by session
 * (base/turns.h). One timer serves all queues of an engine; it fires RATE_PAUSE_NS later at the
 * earliest. The reasons are in docs/design/0014-rates.md.
 *
 * Threading: rate_set() and booking on any thread; a queue, its room and its members on their
 * ring's thread. Ownership: a queue borrows its rate; a member must leave its queues. Errors:
 * -EINVAL with a sentence for text that is not a rate.
 */
#pragma once

#include <stdatomic.h>

#include "base/counter.h"
#include "base/error.h"
#include "base/turns.h"
#include "ring/ring.h"

enum rate_unit { RATE_REQUESTS, RATE_BYTES, RATE_UNIT_COUNT };

enum {
	RATE_HOLD_PART = 4, /* reciprocal of the part of the burst that engines can hold unused */
	RATE_TEXT_BYTES = 96,
};

#define RATE_PAUSE_NS	      UINT64_C(1000000)
#define RATE_BURST_NS_DEFAULT UINT64_C(100000000)
#define RATE_BURST_NS_MIN     UINT64_C(10000000)
#define RATE_BURST_NS_MAX     UINT64_C(60000000000)
#define RATE_REQUESTS_MAX     UINT64_C(100000000)
#define RATE_BYTES_MIN	      UINT64_C(1024)
#define RATE_BYTES_MAX	      (UINT64_C(1) << 40)
/* Range of payload memory, the other limit of an export or identity that has a rate. */
#define RATE_MEMORY_MIN (UINT64_C(2) << 20)
#define RATE_MEMORY_MAX (UINT64_C(1) << 40)

_Static_assert(RATE_BURST_NS_MIN / RATE_HOLD_PART > RATE_PAUSE_NS,
	"a waiter is called in time to use its share");

struct rate_limits {
	uint64_t per_second[RATE_UNIT_COUNT]; /* 0 = no limit */
	uint64_t burst_ns;		      /* the burst is what the rate admits in this time */
};

/* Parses "RATE[:requests=N][:burst=TIME]", "requests=N[:burst=TIME]" or "off". RATE is in bytes
 * per second. */
GMB_MUST_CHECK int rate_parse(const char *text, struct rate_limits *limits, struct error *error);
/* Writes the text that rate_parse() reads back. Returns out. */
const char *rate_format(const struct rate_limits *limits, char out[RATE_TEXT_BYTES]);

/* Parses a size of at least RATE_MEMORY_MIN, or "off", which is 0. */
GMB_MUST_CHECK int rate_parse_memory(const char *text, uint64_t *bytes, struct error *error);
/* Writes the text that rate_parse_memory() reads back. Returns out. */
const char *rate_format_memory(uint64_t bytes, char out[RATE_TEXT_BYTES]);

static inline bool rate_limits_are_off(const struct rate_limits *limits)
{
	return limits->per_second[RATE_REQUESTS] == 0 && limits->per_second[RATE_BYTES] == 0;
}

/* All zeroes: no limit. */
struct rate {
	_Atomic uint64_t per_second[RATE_UNIT_COUNT];
	_Atomic uint64_t burst_ns;
	_Atomic uint32_t serial;		     /* counts rate_set() */
	_Atomic uint32_t queue_count;		     /* engines that have a queue */
	_Atomic uint64_t booked_ns[RATE_UNIT_COUNT]; /* end of the bookings on each line */
};

/* Sets the limits from now_ns on, with empty bookings and without a burst available. Queues notice
 * the change at their next booking. rate_queue_changed() makes them notice whether there is a rate
 * at all, and re-examine waiting members. One thread at a time. */
void rate_set(struct rate *rate, const struct rate_limits *limits, uint64_t now_ns);
void rate_get(const struct rate *rate, struct rate_limits *limits);
/* Returns whether the line lags so far that the whole burst is available, as in a new rate. */
bool rate_has_rested(const struct rate *rate, uint64_t now_ns);

/* One engine's counters of a rate. */
struct rate_counters {
	uint64_t delayed;
	uint64_t delayed_ns;
};

extern const struct counter_table rate_counter_table; /* of struct rate_counters */

/* The queues of one engine. */
struct rate_room {
	struct ring *ring;
	struct list_node waited_for; /* queues that have waiting members */
	struct ring_op timer;
	uint64_t due_ns; /* of the timer in flight */
};

struct rate_queue {
	/* Private. */
	struct rate_room *room;
	struct rate *rate;
	struct rate_limits limits;	/* as of the last booking or rate_queue_changed() */
	uint32_t serial;		/* of the rate, when limits was read */
	uint64_t left[RATE_UNIT_COUNT]; /* booked and not used yet */
	uint64_t ready_ns;		/* when the booking becomes usable */
	struct turns waiting;
	struct list_node groups; /* struct rate_group: peers that have members */
	struct list_node node;	 /* in room->waited_for */
	struct rate_counters counters;
};

/* The queues of a member, in the order in which it waits in them. The identity comes first, so a
 * member that waits for its identity's rate does not hold back others in the export's queue. */
enum rate_stage { RATE_IDENTITY, RATE_EXPORT, RATE_QUEUES };

struct rate_group;

/* One session, or one direction of a copy. */
struct rate_member {
	/* Private. */
	struct rate_queue *queues[RATE_QUEUES]; /* NULL: none */
	struct rate_group *groups[RATE_QUEUES];
	struct turn turn;
	uint32_t stage;	   /* queue it waits in; RATE_QUEUES: the request can start */
	uint64_t bytes;	   /* of the request */
	uint64_t since_ns; /* when it started to wait */
	bool asks;	   /* a request has been asked for and has not started */
	void (*ready)(struct rate_member *member);
};

void rate_room_init(struct rate_room *room, struct ring *ring);
/* No member waits any more: cancels the timer, which completes soon. */
void rate_room_stop(struct rate_room *room);

void rate_queue_init(struct rate_queue *queue, struct rate_room *room, struct rate *rate);
/* The queue has no members. Returns unused bookings to the rate. */
void rate_queue_fini(struct rate_queue *queue);
/* rate_set() was called: applies the new limits to waiting members. */
void rate_queue_changed(struct rate_queue *queue);

/* ready: called on the ring when a request that rate_ask() delayed can start. */
void rate_member_init(struct rate_member *member, void (*ready)(struct rate_member *member));
/* Adds the member to a queue. Members with the same peer share one turn. -ENOMEM. */
GMB_MUST_CHECK int rate_join(struct rate_member *member, enum rate_stage stage,
	struct rate_queue *queue, const void *peer);
/* Leaves all queues. Unused bookings are returned. */
void rate_leave(struct rate_member *member);
/* Stops waiting, and stays in its queues. */
void rate_give_up(struct rate_member *member);

static inline bool rate_waits(const struct rate_member *member)
{
	return turn_is_waiting(&member->turn);
}

/* Returns whether a queue of the member has a limit. */
static inline bool rate_is_limited(const struct rate_member *member)
{
	for (int i = 0; i < RATE_QUEUES; i++) {
		if (member->queues[i] != NULL && !rate_limits_are_off(&member->queues[i]->limits)) {
			return true;
		}
	}
	return false;
}

/* Returns whether a request that moves this many bytes can start. True: the caller must call
 * rate_begun(), now or after asking again about the same request. False: the member waits, and
 * ready() is called. */
GMB_MUST_CHECK bool rate_ask(struct rate_member *member, uint64_t bytes);

static inline void rate_begun(struct rate_member *member)
{
	member->asks = false;
}
