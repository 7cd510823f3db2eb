// SPDX-License-Identifier: Apache-2.0
/*
 * How long a client with a lease was cut off from its server, at most. The server keeps the lease
 * for a time after it has lost the client, and the client must not take it to another server of the
 * disk later than that (docs/design/0029-leases.md).
 *
 *   pause, or SIGSTOP ──┐
 *   ──look──────look────┴──────look──loss noticed────▶
 *             [0]    [1]
 *
 * A client that was stopped notices a loss too late. So it looks at its clocks at intervals, and an
 * outage begins with the last but one look before the loss was noticed: the last one can follow the
 * stop. A look that comes much too late shows the stop itself.
 *
 * The monotonic clock of a virtual machine does not advance while the machine is paused. So the
 * real-time clock of the machine counts as well, which most hypervisors emulate with the time of
 * the host.
 *
 * Threading: one thread at a time. Ownership: none. Errors: none. Except for lease_watch_moment(),
 * pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Why connections are replaced after a stop. */
#define LEASE_WATCH_STOPPED "the client was stopped or paused, so a server must confirm its lease"

/* Why a client has lost its lease although a server has accepted it. */
#define LEASE_WATCH_LATE "this client has lost its lease: it was cut off for too long"
/* Why a client does not continue at another server that has renewed its lease. */
#define LEASE_WATCH_ELSEWHERE                                                                      \
	"cannot continue here: after an outage longer than the lease, only the last server can "   \
	"confirm the lease"

struct lease_moment {
	uint64_t now_ns; /* monotonic */
	uint64_t rtc_s;	 /* of the real-time clock; 0: unknown */
};

/* All zeroes: a client without a lease, or with one server only. */
struct lease_watch {
	uint64_t interval_ns;	      /* time between two looks; 0: not in use */
	uint64_t stop_ns;	      /* a look that is so late shows a stop */
	uint64_t left_ns;	      /* maximum length of an outage */
	bool wants_rtc;		      /* moments need rtc_s */
	struct lease_moment looks[2]; /* the last but one, and the last */
	/* In an outage: when the server had the lease for certain. The outage can have begun then.
	 */
	struct lease_moment doubt;
};

struct lease_watch_times {
	uint64_t lease_ms;   /* how long the server keeps the lease */
	uint64_t request_ms; /* how long the client waits for a silent server */
	uint64_t connect_ms; /* limit of an attempt to connect */
};

void lease_watch_init(struct lease_watch *watch, const struct lease_watch_times *times);
/* Returns the present moment. now_ns: monotonic. Reads the real-time clock if the watch wants it,
 * which takes up to a millisecond. */
struct lease_moment lease_watch_moment(const struct lease_watch *watch, uint64_t now_ns);
/* Called when a server of the same disk has accepted the lease. started: a moment before that, such
 * as the start of the connection. */
void lease_watch_accept(struct lease_watch *watch, const struct lease_moment *started);
/* Notes that the client runs and is connected. Returns false if it was stopped so long that its
 * connections can be dead without a sign of it. They must be replaced, so that a server confirms
 * the lease. */
bool lease_watch_look(struct lease_watch *watch, const struct lease_moment *now);
/* Called at intervals of interval_ns, or more often, while the client is connected: looks if it is
 * time for that. now_ns: monotonic. Returns the result of lease_watch_look(), or true. */
bool lease_watch_check(struct lease_watch *watch, uint64_t now_ns);
/* Returns interval_ns as a time limit of poll(); -1: no limit. */
int lease_watch_poll_ms(const struct lease_watch *watch);
/* Called when an outage begins, and again when the server has shown in an outage that it still
 * serves the client: the time begins again. */
void lease_watch_doubt(struct lease_watch *watch);
/* Returns whether the server in use can have given the lease to another client, so that the client
 * must not take it to the next server. in_outage: since lease_watch_doubt(). */
bool lease_watch_is_over(
	const struct lease_watch *watch, bool in_outage, const struct lease_moment *now);
