// SPDX-License-Identifier: Apache-2.0
/*
 * The limits of one engine, whatever protocol its sessions speak. Each protocol adds the limits of
 * its own wire format.
 *
 * Threading and ownership: plain data. Errors: none.
 */
#pragma once

#include "path/share.h"

enum {
	ENGINE_SESSIONS_MAX = 1024,
	ENGINE_HANDSHAKES_MAX = 128,
	ENGINE_INFLIGHT_PER_SESSION_MAX = 128,
	ENGINE_INFLIGHT_MAX = 1024,
	/* So many requests begin before replies are sent and completions taken again. Each session
	 * without one can begin one more. */
	ENGINE_TURN_REQUESTS = 64,
	/* Sessions send until so many bytes of replies were handed to the kernel, which copies them
	 * before it returns; the others send in the next turn. About half a millisecond. */
	ENGINE_TURN_BYTES = 2 << 20,
	ENGINE_PAYLOAD_BYTES_MAX = 64 << 20,
	ENGINE_MEMORY_BYTES_MAX = 128 << 20,
	/* At most this part of the memory is kept back, a block for each session. */
	ENGINE_RESERVE_DIVISOR = 8,
	ENGINE_SESSION_BYTES = ENGINE_RESERVE_DIVISOR * PATH_RESERVE_BYTES,
	/* An export has at most so many times the places that are free: those of a disk that hangs
	 * leave some to the others. */
	ENGINE_EXPORT_FACTOR = 3,
	/* At most so many looks for idle sessions within the idle timeout: they end late by no more
	 * than that part of it. */
	ENGINE_IDLE_LOOKS = 8,
	/* Clients whose requests are counted apart: so many of all engines together, but of each
	 * engine no fewer and no more than the next two. */
	ENGINE_CLIENTS_MAX = 256,
	ENGINE_CLIENTS_EACH_MIN = 8,
	ENGINE_CLIENTS_EACH_MAX = 64,
	ENGINE_LISTENERS_MAX = 64,
};

#define ENGINE_SECOND_NS	    UINT64_C(1000000000)
#define ENGINE_HANDSHAKE_TIMEOUT_NS (10 * ENGINE_SECOND_NS)
#define ENGINE_STALL_TIMEOUT_NS	    (30 * ENGINE_SECOND_NS)
/* How long a peer may take to close after us; shorter once the session has to end. */
#define ENGINE_LINGER_NS	  (2 * ENGINE_SECOND_NS)
#define ENGINE_LINGER_STOPPING_NS (ENGINE_SECOND_NS / 5)
/* What a handshake has left when its session has to end. */
#define ENGINE_HANDSHAKE_STOPPING_NS ENGINE_SECOND_NS
/* What a session has to finish that has lost its rights. */
#define ENGINE_RIGHTS_STOP_NS (5 * ENGINE_SECOND_NS)
/* Sessions that wait for the barrier of a store keep this share of the handshake timeout for
 * telling their peers that they have waited in vain. */
#define ENGINE_BARRIER_SHARE 10
/* Between two looks at the barrier: grows, up to a share of that timeout. */
#define ENGINE_BARRIER_PAUSE_NS	   (ENGINE_SECOND_NS / 1000)
#define ENGINE_BARRIER_PAUSE_SHARE 64
/* How often sessions that hold what others wait for are examined. */
#define ENGINE_STALL_LOOK_NS ENGINE_SECOND_NS
/* The same for sessions whose deadline to end has passed. */
#define ENGINE_STOP_LOOK_NS (ENGINE_SECOND_NS / 10)
/* Shorter, and the looks would cost more than the connections. */
#define ENGINE_IDLE_TIMEOUT_NS_MIN (ENGINE_SECOND_NS / 10)

_Static_assert(ENGINE_HANDSHAKES_MAX <= ENGINE_SESSIONS_MAX, "every handshake is a session");
_Static_assert(ENGINE_INFLIGHT_PER_SESSION_MAX <= ENGINE_INFLIGHT_MAX,
	"a session cannot have more in flight than its engine");
_Static_assert(ENGINE_MEMORY_BYTES_MAX / ENGINE_RESERVE_DIVISOR >=
		       ENGINE_SESSIONS_MAX * PATH_RESERVE_BYTES,
	"the default memory has a block for every session");
_Static_assert(ARENA_SLAB_BYTES / ENGINE_RESERVE_DIVISOR >= PATH_RESERVE_BYTES,
	"the least memory has one");
_Static_assert(ENGINE_LINGER_STOPPING_NS < ENGINE_LINGER_NS &&
		       ENGINE_HANDSHAKE_STOPPING_NS < ENGINE_HANDSHAKE_TIMEOUT_NS &&
		       ENGINE_BARRIER_PAUSE_SHARE > ENGINE_BARRIER_SHARE &&
		       ENGINE_STALL_LOOK_NS < ENGINE_STALL_TIMEOUT_NS,
	"stopping is faster, and a stall is seen in time");

struct engine_limits {
	/* Handshakes included; never more than engine_sessions_max(memory_bytes_max). */
	uint32_t sessions_max;
	uint32_t handshakes_max; /* sessions that have not chosen an export */
	uint64_t handshake_timeout_ns;
	uint32_t inflight_per_session_max; /* > 0 */
	/* Of all sessions; > 0. Each session can have one more, which is its own. */
	uint32_t inflight_max;
	uint32_t payload_bytes_max; /* of one read or write */
	uint64_t memory_bytes_max;  /* payload memory; at least ARENA_SLAB_BYTES */
	uint64_t stall_timeout_ns;  /* a session that holds memory or requests others wait for is
				     * ended after so long without network progress */
	/* A session that has chosen an export is ended when it had no request in flight, and the
	 * network did not move, for so long; at least ENGINE_IDLE_TIMEOUT_NS_MIN, or 0: never. */
	uint64_t idle_timeout_ns;
	/* Engines among which the memory of an export, and of an identity, is divided; > 0. */
	uint32_t engine_count;
	bool may_spin; /* look for requests before sleeping, where that pays */
};

/* For how many sessions there is memory that nobody else can have. */
static inline uint32_t engine_sessions_max(uint64_t memory_bytes)
{
	return (uint32_t)MIN(memory_bytes / ENGINE_SESSION_BYTES, (uint64_t)UINT32_MAX);
}

/* Values for one reactor of a small server. */
void engine_limits_default(struct engine_limits *limits);
