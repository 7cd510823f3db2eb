// SPDX-License-Identifier: Apache-2.0
/*
 * Rates: how many requests and bytes a second an export, or an identity, may have.
 *
 *   session ─▶ queue of its identity ─▶ queue of its export ─▶ the request begins
 *                     │ books                  │ books
 *                     ▼                        ▼
 *                struct rate              struct rate        one for all engines
 *
 * A rate is a time line for requests and one for bytes. What is asked for is booked on it, behind
 * what was booked before, and may begin when that time has come: a booking is one atomic operation,
 * and bookings of several engines take turns by themselves. A line that lags behind the clock by
 * the burst goes no further back: so much may begin at once after a pause. What is longer than the
 * burst begins when the line lags by all of it, and is waited for afterwards. This is the virtual
 * scheduling algorithm of ITU-T I.371 (GCRA).
 *
 *     booked by others      room for us         now
 *   ───▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│░░░░░░░░░░░░░░░░░░░░░░░│────▶ time     at most the burst wide
 *
 * A queue is what one engine has of a rate. It books more than the next request needs, up to a
 * chunk while there is room, so that few requests touch the line, and returns what it has not used
 * within RATE_HOLD_PART of the burst. So in no interval of length t more begins than rate * t +
 * burst, and one request of each engine. Sessions that wait take turns by peer, then by session
 * (base/turns.h); one timer for all queues of an engine looks again after RATE_PAUSE_NS at the
 * earliest. docs/design/0014-rates.md has the reasons.
 *
 * Threading: rate_set() and booking on any thread; a queue, its room and members on their ring's.
 * Ownership: a queue borrows its rate; a member must leave its queues. Errors: -EINVAL with a
 * sentence for text that is no rate.
 */
#pragma once

#include <stdatomic.h>

#include "base/counter.h"
#include "base/error.h"
#include "base/turns.h"
#include "ring/ring.h"

enum rate_unit { RATE_REQUESTS, RATE_BYTES, RATE_UNIT_COUNT };

enum {
	RATE_HOLD_PART = 4, /* of the burst, that engines may have booked and not used */
	RATE_TEXT_BYTES = 96,
};

#define RATE_PAUSE_NS	      UINT64_C(1000000)
#define RATE_BURST_NS_DEFAULT UINT64_C(100000000)
#define RATE_BURST_NS_MIN     UINT64_C(10000000)
#define RATE_BURST_NS_MAX     UINT64_C(60000000000)
#define RATE_REQUESTS_MAX     UINT64_C(100000000)
#define RATE_BYTES_MIN	      UINT64_C(1024)
#define RATE_BYTES_MAX	      (UINT64_C(1) << 40)
/* Of payload memory, the other limit of an export or identity that has a rate. */
#define RATE_MEMORY_MIN (UINT64_C(2) << 20)
#define RATE_MEMORY_MAX (UINT64_C(1) << 40)

_Static_assert(RATE_BURST_NS_MIN / RATE_HOLD_PART > RATE_PAUSE_NS,
	"who waits is in time to use what was booked");

struct rate_limits {
	uint64_t per_second[RATE_UNIT_COUNT]; /* 0 = no limit */
	uint64_t burst_ns;		      /* what that long may have brought */
};

/* Reads "RATE[:requests=N][:burst=TIME]", "requests=N[:burst=TIME]" or "off"; RATE is in bytes a
 * second. */
GMB_MUST_CHECK int rate_parse(const char *text, struct rate_limits *limits, struct error *error);
/* The text that rate_parse() reads back. Returns out. */
const char *rate_format(const struct rate_limits *limits, char out[RATE_TEXT_BYTES]);

/* Reads a size from RATE_MEMORY_MIN, or "off": 0. */
GMB_MUST_CHECK int rate_parse_memory(const char *text, uint64_t *bytes, struct error *error);
/* The text that rate_parse_memory() reads back. Returns out. */
const char *rate_format_memory(uint64_t bytes, char out[RATE_TEXT_BYTES]);

static inline bool rate_limits_are_off(const struct rate_limits *limits)
{
	return limits->per_second[RATE_REQUESTS] == 0 && limits->per_second[RATE_BYTES] == 0;
}

/* Zeroes: no limit. */
struct rate {
	_Atomic uint64_t per_second[RATE_UNIT_COUNT];
	_Atomic uint64_t burst_ns;
	_Atomic uint32_t serial;		     /* counts rate_set() */
	_Atomic uint32_t queue_count;		     /* engines that have one */
	_Atomic uint64_t booked_ns[RATE_UNIT_COUNT]; /* how far each line is given away */
};

/* From now_ns on, with nothing booked and no room for a burst. Queues book by it from then on; they
 * know whether there is a rate at all, and look again for those who wait, after
 * rate_queue_changed(). One thread at a time. */
void rate_set(struct rate *rate, const struct rate_limits *limits, uint64_t now_ns);
void rate_get(const struct rate *rate, struct rate_limits *limits);
/* Nothing was booked for so long that there is room for the whole burst, as in a new one. */
bool rate_has_rested(const struct rate *rate, uint64_t now_ns);

/* What one engine has counted of a rate. */
struct rate_counters {
	uint64_t delayed;
	uint64_t delayed_ns;
};

extern const struct counter_table rate_counter_table; /* of struct rate_counters */

/* The queues of an engine. */
struct rate_room {
	struct ring *ring;
	struct list_node waited_for; /* queues that members wait in */
	struct ring_op timer;
	uint64_t due_ns; /* of the timer in flight */
};

struct rate_queue {
	/* Private. */
	struct rate_room *room;
	struct rate *rate;
	struct rate_limits limits;	/* when it booked last, or was told */
	uint32_t serial;		/* of them */
	uint64_t left[RATE_UNIT_COUNT]; /* booked, and not used */
	uint64_t ready_ns;		/* from when on it may be used */
	struct turns waiting;
	struct list_node groups; /* struct rate_group: the peers that have members */
	struct list_node node;	 /* in room->waited_for */
	struct rate_counters counters;
};

/* Of a member, in the order in which it waits in them: who has its turn by its identity has it
 * without one by the export, and hinders nobody there. */
enum rate_stage { RATE_IDENTITY, RATE_EXPORT, RATE_QUEUES };

struct rate_group;

/* Of a session. */
struct rate_member {
	/* Private. */
	struct rate_queue *queues[RATE_QUEUES]; /* NULL: none */
	struct rate_group *groups[RATE_QUEUES];
	struct turn turn;
	uint32_t stage;	   /* that it waits in; RATE_QUEUES: the request may begin */
	uint64_t bytes;	   /* of that request */
	uint64_t since_ns; /* it waits */
	bool asks;	   /* for a request that has not begun */
	void (*ready)(struct rate_member *member);
};

void rate_room_init(struct rate_room *room, struct ring *ring);
/* Nobody waits any more: the timer comes back soon. */
void rate_room_stop(struct rate_room *room);

void rate_queue_init(struct rate_queue *queue, struct rate_room *room, struct rate *rate);
/* It has no members. Returns what was not used. */
void rate_queue_fini(struct rate_queue *queue);
/* rate_set() was called: those who wait go by the new limits. */
void rate_queue_changed(struct rate_queue *queue);

/* ready: the request for which rate_ask() has said false may begin; from the ring. */
void rate_member_init(struct rate_member *member, void (*ready)(struct rate_member *member));
/* peer: those with the same one take their turns as one. -ENOMEM. */
GMB_MUST_CHECK int rate_join(struct rate_member *member, enum rate_stage stage,
	struct rate_queue *queue, const void *peer);
/* Leaves all queues. What it had and has not used is returned. */
void rate_leave(struct rate_member *member);
/* Waits no more, and keeps its queues. */
void rate_give_up(struct rate_member *member);

static inline bool rate_waits(const struct rate_member *member)
{
	return turn_is_waiting(&member->turn);
}

/* True when a queue of the member has a limit. */
static inline bool rate_is_limited(const struct rate_member *member)
{
	for (int i = 0; i < RATE_QUEUES; i++) {
		if (member->queues[i] != NULL && !rate_limits_are_off(&member->queues[i]->limits)) {
			return true;
		}
	}
	return false;
}

/* Whether a request that moves so many bytes may begin. True: rate_begun() follows, at once or
 * after the same question has been asked again. False: the member waits, and ready() is called. */
GMB_MUST_CHECK bool rate_ask(struct rate_member *member, uint64_t bytes);

static inline void rate_begun(struct rate_member *member)
{
	member->asks = false;
}
