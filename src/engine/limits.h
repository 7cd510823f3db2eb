// SPDX-License-Identifier: Apache-2.0
/*
 * Limits of one engine, whatever protocol its sessions use. Each protocol adds the limits of its
 * own wire format.
 *
 * Threading and ownership: plain data. Errors: none.
 */
#pragma once

#include "path/admission.h"

enum {
	ENGINE_SESSIONS_MAX = 1024,
	ENGINE_HANDSHAKES_MAX = 128,
	ENGINE_INFLIGHT_PER_SESSION_MAX = 128,
	ENGINE_INFLIGHT_MAX = 1024,
	/* Requests that start before replies are sent and completions collected again. Each
	 * session without a request in flight can start one more. */
	ENGINE_TURN_REQUESTS = 64,
	/* Bytes of replies after which the other sessions send in the next turn. The kernel copies
	 * them before it returns, which takes about half a millisecond. */
	ENGINE_TURN_BYTES = 2 << 20,
	ENGINE_PAYLOAD_BYTES_MAX = 64 << 20,
	ENGINE_MEMORY_BYTES_MAX = 128 << 20,
	/* Reciprocal of the largest part of the memory that is reserved, one block per session. */
	ENGINE_RESERVE_DIVISOR = 8,
	ENGINE_SESSION_BYTES = ENGINE_RESERVE_DIVISOR * PATH_RESERVE_BYTES,
	/* An export can use at most this many times the number of free slots, so a disk that hangs
	 * leaves some for other exports. */
	ENGINE_EXPORT_FACTOR = 3,
	/* Checks for idle sessions per idle timeout, at most. A session ends late by no more than
	 * this fraction of the timeout. */
	ENGINE_IDLE_LOOKS = 8,
	/* Clients with statistics of their own: the first is the limit of all engines together,
	 * the next two bound the share of each engine. */
	ENGINE_CLIENTS_MAX = 256,
	ENGINE_CLIENTS_EACH_MIN = 8,
	ENGINE_CLIENTS_EACH_MAX = 64,
	ENGINE_LISTENERS_MAX = 64,
};

#define ENGINE_SECOND_NS	    UINT64_C(1000000000)
#define ENGINE_HANDSHAKE_TIMEOUT_NS (10 * ENGINE_SECOND_NS)
#define ENGINE_STALL_TIMEOUT_NS	    (30 * ENGINE_SECOND_NS)
/* Time a peer has to close after the server has; shorter once the session must end. */
#define ENGINE_LINGER_NS	  (2 * ENGINE_SECOND_NS)
#define ENGINE_LINGER_STOPPING_NS (ENGINE_SECOND_NS / 5)
/* Time left to a handshake when its session must end. */
#define ENGINE_HANDSHAKE_STOPPING_NS ENGINE_SECOND_NS
/* Time a session gets to finish after it loses its rights. */
#define ENGINE_RIGHTS_STOP_NS (5 * ENGINE_SECOND_NS)
/* Reciprocal of the part of the handshake timeout that sessions waiting for a store's barrier keep
 * in reserve, to report the timeout to their peers. */
#define ENGINE_BARRIER_SHARE 10
/* Pause between two checks of the barrier. It grows, up to a part of the handshake timeout. */
#define ENGINE_BARRIER_PAUSE_NS	   (ENGINE_SECOND_NS / 1000)
#define ENGINE_BARRIER_PAUSE_SHARE 64
/* Interval at which sessions that hold scarce resources are checked for stalls. */
#define ENGINE_STALL_LOOK_NS ENGINE_SECOND_NS
/* Interval at which sessions whose deadline has passed are checked. */
#define ENGINE_STOP_LOOK_NS (ENGINE_SECOND_NS / 10)
/* A shorter timeout would cost more in checks than it saves in connections. */
#define ENGINE_IDLE_TIMEOUT_NS_MIN (ENGINE_SECOND_NS / 10)

_Static_assert(ENGINE_HANDSHAKES_MAX <= ENGINE_SESSIONS_MAX, "each handshake is a session");
_Static_assert(ENGINE_INFLIGHT_PER_SESSION_MAX <= ENGINE_INFLIGHT_MAX,
	"a session cannot have more in flight than its engine");
_Static_assert(ENGINE_MEMORY_BYTES_MAX / ENGINE_RESERVE_DIVISOR >=
		       ENGINE_SESSIONS_MAX * PATH_RESERVE_BYTES,
	"the default memory has a block for every session");
_Static_assert(ARENA_SLAB_BYTES / ENGINE_RESERVE_DIVISOR >= PATH_RESERVE_BYTES,
	"the smallest memory has a block for one session");
_Static_assert(ENGINE_LINGER_STOPPING_NS < ENGINE_LINGER_NS &&
		       ENGINE_HANDSHAKE_STOPPING_NS < ENGINE_HANDSHAKE_TIMEOUT_NS &&
		       ENGINE_BARRIER_PAUSE_SHARE > ENGINE_BARRIER_SHARE &&
		       ENGINE_STALL_LOOK_NS < ENGINE_STALL_TIMEOUT_NS,
	"the server stops sooner, and detects a stall in time");

struct engine_limits {
	/* Including handshakes; never more than engine_sessions_max(memory_bytes_max). */
	uint32_t sessions_max;
	uint32_t handshakes_max; /* sessions that have not chosen an export */
	uint64_t handshake_timeout_ns;
	uint32_t inflight_per_session_max; /* > 0 */
	/* Of all sessions; > 0. Each session owns one slot in addition. */
	uint32_t inflight_max;
	uint32_t payload_bytes_max; /* of one read or write */
	uint64_t memory_bytes_max;  /* payload memory; at least ARENA_SLAB_BYTES */
	/* A session that holds memory or slots others wait for is ended after this long without
	 * network progress. */
	uint64_t stall_timeout_ns;
	/* A session that has chosen an export is ended after this long without a request in flight
	 * and without network progress. At least ENGINE_IDLE_TIMEOUT_NS_MIN, or 0: never. */
	uint64_t idle_timeout_ns;
	/* Engines that share the memory limit of an export or an identity; > 0. */
	uint32_t engine_count;
	bool may_spin; /* poll for requests before sleeping, if that pays */
};

/* Returns the number of sessions for which this much memory has a reserved block. */
static inline uint32_t engine_sessions_max(uint64_t memory_bytes)
{
	return (uint32_t)MIN(memory_bytes / ENGINE_SESSION_BYTES, (uint64_t)UINT32_MAX);
}

/* Sets the values for one reactor of a small server. */
void engine_limits_default(struct engine_limits *limits);
