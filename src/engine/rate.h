// SPDX-License-Identifier: Apache-2.0
/*
 * Rates: limits on the requests and bytes per second of an export or an identity.
 *
 *   session ─▶ queue of its identity ─▶ queue of its export ─▶ the request starts
 *                     │ books                  │ books
 *                     ▼                        ▼
 *                struct rate              struct rate        one for all engines
 *
 * A rate has one time line for requests and one for bytes. A request books a section of the line
 * behind all earlier bookings, and starts when the time of its booking has come. A booking is one
 * atomic operation, so several engines can book without a lock. After a pause, the end of the
 * bookings lags behind the clock, but by no more than three quarters of the burst: this amount can
 * start immediately. A request that needs more starts when three quarters of the burst are
 * available, and later requests wait until the rest of its booking has passed. This is the virtual
 * scheduling algorithm of ITU-T I.371 (GCRA).
 *
 *     booked by others      available          now
 *   ───▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│░░░░░░░░░░░░░░░░░░░░░░░│────▶ time     available: at most 3/4 of the burst
 *
 * A queue is one engine's part of a rate. If more is available than the next request needs, the
 * queue books more, up to a chunk, so that few requests access the time line that all engines
 * share. After burst_ns / RATE_HOLD_PART, the queue gives back what it has not used. So the
 * requests that start in any interval of length t need at most rate * t + burst. In addition, one
 * request per engine can start, and where sessions wait for two rates, one per session. Waiting
 * sessions are served round-robin, first by peer, then by session (base/turns.h). One timer serves
 * all queues of an engine, with pauses of at least RATE_PAUSE_NS. The reasons are in
 * docs/design/0014-rates.md.
 *
 * Threading: rate_set() and booking run on any thread. A queue, its struct rate_room and its
 * members belong to their ring's thread. Ownership: a queue borrows its rate; a member must leave
 * its queues. Errors: a negative errno, such as -EINVAL or -ERANGE, with an error message for text
 * that is not a rate.
 */
#pragma once

#include <stdatomic.h>

#include "base/counter.h"
#include "base/error.h"
#include "base/turns.h"
#include "ring/ring.h"

enum rate_unit { RATE_REQUESTS, RATE_BYTES, RATE_UNIT_COUNT };

enum {
	RATE_HOLD_PART = 4, /* engines can hold 1/4 of the burst unused */
	RATE_TEXT_BYTES = 96,
};

#define RATE_PAUSE_NS	      UINT64_C(1000000)
#define RATE_BURST_NS_DEFAULT UINT64_C(100000000)
#define RATE_BURST_NS_MIN     UINT64_C(10000000)
#define RATE_BURST_NS_MAX     UINT64_C(60000000000)
#define RATE_REQUESTS_MAX     UINT64_C(100000000)
#define RATE_BYTES_MIN	      UINT64_C(1024)
#define RATE_BYTES_MAX	      (UINT64_C(1) << 40)
/* Range of a limit on payload memory, which exports and identities can have in addition to a
 * rate. */
#define RATE_MEMORY_MIN (UINT64_C(2) << 20)
#define RATE_MEMORY_MAX (UINT64_C(1) << 40)

_Static_assert(RATE_BURST_NS_MIN / RATE_HOLD_PART > RATE_PAUSE_NS,
	"a waiter is called in time to use its share");

struct rate_limits {
	uint64_t per_second[RATE_UNIT_COUNT]; /* 0 = no limit */
	/* the burst as a duration: after a pause, three quarters of the work that the rate permits
	 * in this time can start together */
	uint64_t burst_ns;
};

/* Parses "RATE[:requests=N][:burst=TIME]", "requests=N[:burst=TIME]" or "off". RATE: bytes per
 * second. */
GMB_MUST_CHECK int rate_parse(const char *text, struct rate_limits *limits, struct error *error);
/* Formats limits in the form that rate_parse() reads. Returns out. */
const char *rate_format(const struct rate_limits *limits, char out[RATE_TEXT_BYTES]);

/* Parses a size from RATE_MEMORY_MIN to RATE_MEMORY_MAX, or "off", which is 0. */
GMB_MUST_CHECK int rate_parse_memory(const char *text, uint64_t *bytes, struct error *error);
/* Formats a size in the form that rate_parse_memory() reads. Returns out. */
const char *rate_format_memory(uint64_t bytes, char out[RATE_TEXT_BYTES]);

static inline bool rate_limits_are_off(const struct rate_limits *limits)
{
	return limits->per_second[RATE_REQUESTS] == 0 && limits->per_second[RATE_BYTES] == 0;
}

/* A rate that all engines share. All zeroes: no limit. */
struct rate {
	_Atomic uint64_t per_second[RATE_UNIT_COUNT];
	_Atomic uint64_t burst_ns;
	_Atomic uint32_t serial;		     /* number of rate_set() calls */
	_Atomic uint32_t queue_count;		     /* number of engines that have a queue */
	_Atomic uint64_t booked_ns[RATE_UNIT_COUNT]; /* by unit: the end of all bookings */
};

/* Sets the limits from now_ns on, and removes all bookings. No burst is available at now_ns. Queues
 * use the new limits from their next booking on. The caller must then call rate_queue_changed() on
 * each queue, because a queue without a limit does not book, and because members may be waiting.
 * One thread at a time. */
void rate_set(struct rate *rate, const struct rate_limits *limits, uint64_t now_ns);
void rate_get(const struct rate *rate, struct rate_limits *limits);
/* Returns whether the whole burst is available, as in a new rate. */
bool rate_has_rested(const struct rate *rate, uint64_t now_ns);

/* One engine's counters of a rate. */
struct rate_counters {
	uint64_t delayed;
	uint64_t delayed_ns;
};

extern const struct counter_table rate_counter_table; /* describes struct rate_counters */

/* All rate queues of one engine. */
struct rate_room {
	struct ring *ring;
	struct list_node waited_for; /* queues with waiting members */
	struct ring_op timer;
	uint64_t due_ns; /* time at which the timer in flight expires */
};

struct rate_queue {
	/* Private members. */
	struct rate_room *room;
	struct rate *rate;
	struct rate_limits limits;	/* the rate's limits when the queue last read them */
	uint32_t serial;		/* rate->serial when limits was read */
	uint64_t left[RATE_UNIT_COUNT]; /* amount that is booked and not used yet */
	uint64_t ready_ns;		/* time at which the booking can be used */
	struct turns waiting;
	struct list_node groups; /* struct rate_group: peers with members in the queue */
	struct list_node node;	 /* in room->waited_for while members wait */
	struct rate_counters counters;
};

/* The queues in which a request of a rate_member can wait, first to last. The identity's queue is
 * first, because a member that waits there does not hold up other members in the export's queue. */
enum rate_stage { RATE_IDENTITY, RATE_EXPORT, RATE_QUEUES };

struct rate_group;

/* A user of rate queues: a session, or one direction of a copy. */
struct rate_member {
	/* Private members. */
	struct rate_queue *queues[RATE_QUEUES]; /* NULL: none */
	struct rate_group *groups[RATE_QUEUES];
	struct turn turn;
	uint32_t stage;	   /* queue in which the member waits; RATE_QUEUES: the request can start */
	uint64_t bytes;	   /* size of the request */
	uint64_t since_ns; /* time at which the member started to wait */
	bool asks;	   /* rate_ask() was called for a request that has not started yet */
	void (*ready)(struct rate_member *member);
};

void rate_room_init(struct rate_room *room, struct ring *ring);
/* Cancels the timer, which completes soon. No member may wait any more. */
void rate_room_stop(struct rate_room *room);

void rate_queue_init(struct rate_queue *queue, struct rate_room *room, struct rate *rate);
/* Returns unused bookings to the rate. The queue must not have members. */
void rate_queue_fini(struct rate_queue *queue);
/* Called after rate_set(): applies the new limits to waiting members. */
void rate_queue_changed(struct rate_queue *queue);

/* ready: called on the ring when a request delayed by rate_ask() can start. */
void rate_member_init(struct rate_member *member, void (*ready)(struct rate_member *member));
/* Adds the member to a queue. Members with the same peer share one turn. Fails with -ENOMEM. */
GMB_MUST_CHECK int rate_join(struct rate_member *member, enum rate_stage stage,
	struct rate_queue *queue, const void *peer);
/* Removes the member from all queues, and returns its unused bookings. */
void rate_leave(struct rate_member *member);
/* Withdraws the request of the last rate_ask(): the member no longer waits, and its queues get back
 * what they have granted. The member stays in its queues. */
void rate_give_up(struct rate_member *member);

static inline bool rate_waits(const struct rate_member *member)
{
	return turn_is_waiting(&member->turn);
}

/* Returns whether any queue of the member has a limit. */
static inline bool rate_is_limited(const struct rate_member *member)
{
	for (int i = 0; i < RATE_QUEUES; i++) {
		if (member->queues[i] != NULL && !rate_limits_are_off(&member->queues[i]->limits)) {
			return true;
		}
	}
	return false;
}

/* Returns whether a request of this many bytes can start. If so, the caller must call rate_begun()
 * when it starts; until then it can call rate_ask() again for the same request. If not, the member
 * waits, and ready() is called later. */
GMB_MUST_CHECK bool rate_ask(struct rate_member *member, uint64_t bytes);

static inline void rate_begun(struct rate_member *member)
{
	member->asks = false;
}
