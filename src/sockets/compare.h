// SPDX-License-Identifier: Apache-2.0
/*
 * Whether carrying connections pays: compares their round trips by rings with those by TCP. A round
 * trip begins with the first write after a read, and ends with the next read that returns data.
 * Only the end that has made a connection measures round trips, because its program sends requests.
 *
 * All connections of a process to the same address are compared together, as a *group*: they share
 * threads and processors, so a connection that moves alone also changes the time of the others.
 *
 *   by rings ── most round trips wake a process ──▶ by TCP ──▶ by rings ── faster ──▶ stay
 *                                                    ▲            │ slower
 *                                                    └────────────┘
 *
 * Each such return to TCP lasts 16 times as long as the previous one (conn.c).
 *
 * Threading: any thread may call compare_sample(); if two threads take the same sample, it is only
 * inexact. The other functions need the lock of core.c. Ownership: plain data; zero at the
 * beginning. Errors: none.
 */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"

enum {
	COMPARE_SAMPLES = 128,	    /* at least as many round trips by rings are compared */
	COMPARE_SAMPLES_MAX = 8192, /* enough in a shorter time than COMPARE_NS */
	COMPARE_TCP_MIN = 32,	    /* at least as many round trips by TCP */
	/* Minimum time of measuring. On a busy machine, other programs have the CPU for some
	 * milliseconds. */
	COMPARE_NS = 50000000,
	COMPARE_NS_MAX = 100000000, /* longer round trips count as long as this */
	/* Round trips by rings until their wake-ups are counted again, if there were few. */
	COMPARE_PAUSE = 4096,
};

enum compare_place { COMPARE_TCP, COMPARE_RING, COMPARE_PLACE_COUNT };

enum compare_verdict {
	COMPARE_GOES_ON, /* the connections stay */
	COMPARE_UNKNOWN, /* they must return to TCP, where round trips are measured */
	COMPARE_SLOW,	 /* they must return to TCP, which is faster */
};

/* Numbers since the start of the process, which only grow. */
struct compare_costs {
	uint64_t sleeps; /* sleeps for carried connections */
	uint64_t reads;	 /* reads that returned data of carried connections */
};

struct compare {
	_Atomic(uint32_t) carried; /* connections that use rings */
	uint32_t settled;	   /* value of carried when rings were faster; 0: they were not */
	uint32_t pause;		   /* round trips by rings before the next samples */
	uint64_t bells; /* times that this end has woken the peer, since the first sample */
	struct compare_costs from;		      /* at the first sample by rings */
	_Atomic(uint32_t) count[COMPARE_PLACE_COUNT]; /* number of samples */
	_Atomic(uint64_t) sum_ns[COMPARE_PLACE_COUNT];
	/* begin of the first and end of the last sample */
	_Atomic(uint64_t) begin_ns[COMPARE_PLACE_COUNT];
	_Atomic(uint64_t) end_ns[COMPARE_PLACE_COUNT];
};

/* Called when a connection has begun to use rings, and when it has ceased to. */
void compare_carried(struct compare *compare);
void compare_returned(struct compare *compare);
/* Adds a round trip. By TCP only while no connection uses rings. */
void compare_sample(
	struct compare *compare, enum compare_place place, uint64_t begin_ns, uint64_t end_ns);
/* Returns true if round trips by rings are measured now. Called once for each read that returned
 * data. */
bool compare_is_due(struct compare *compare);
/* Called after compare_sample() for a round trip by rings. bells: times that this end has woken the
 * peer for it. */
enum compare_verdict compare_judge(
	struct compare *compare, const struct compare_costs *costs, uint64_t bells);
