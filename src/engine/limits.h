// SPDX-License-Identifier: Apache-2.0
/*
 * Limits of one engine that apply to sessions of all protocols. Each protocol has further limits
 * for its wire format.
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
	/* Maximum number of requests that start before replies are sent and completions are
	 * collected again. In addition, each session without a request in flight can start one. */
	ENGINE_TURN_REQUESTS = 64,
	/* After this many bytes of replies, the remaining sessions send in the next turn. The
	 * kernel copies these bytes during the system calls, which takes about half a
	 * millisecond. */
	ENGINE_TURN_BYTES = 2 << 20,
	ENGINE_PAYLOAD_BYTES_MAX = 64 << 20,
	ENGINE_MEMORY_BYTES_MAX = 128 << 20,
	/* At most 1/8 of the memory is reserved, one block for each session; and half as much for
	 * parts of sessions. */
	ENGINE_RESERVE_DIVISOR = 8,
	/* There can be this many times as many sessions as parts of sessions, which have reserved
	 * blocks of their own. So parts do not take the places of connections. */
	ENGINE_PARTS_DIVISOR = 2,
	ENGINE_SESSION_BYTES = ENGINE_RESERVE_DIVISOR * PATH_RESERVE_BYTES,
	/* The requests of an export can use at most this many times the number of free slots, so
	 * that a disk that hangs leaves slots for other exports. */
	ENGINE_EXPORT_FACTOR = 3,
	/* Maximum number of checks for idle sessions per idle timeout. So a session is ended at
	 * most 1/ENGINE_IDLE_LOOKS of the timeout too late. */
	ENGINE_IDLE_LOOKS = 8,
	/* Number of clients with their own statistics: first the maximum of all engines together,
	 * then the bounds for the share of each engine. */
	ENGINE_CLIENTS_MAX = 256,
	ENGINE_CLIENTS_EACH_MIN = 8,
	ENGINE_CLIENTS_EACH_MAX = 64,
	ENGINE_LISTENERS_MAX = 64,
};

#define ENGINE_SECOND_NS	    UINT64_C(1000000000)
#define ENGINE_HANDSHAKE_TIMEOUT_NS (10 * ENGINE_SECOND_NS)
#define ENGINE_STALL_TIMEOUT_NS	    (30 * ENGINE_SECOND_NS)
/* How long a session waits for its peer to close the connection, after the server has closed its
 * own side. The second, shorter time applies to a session that is being stopped. */
#define ENGINE_LINGER_NS	  (2 * ENGINE_SECOND_NS)
#define ENGINE_LINGER_STOPPING_NS (ENGINE_SECOND_NS / 5)
/* How long a handshake can continue when its session must end. */
#define ENGINE_HANDSHAKE_STOPPING_NS ENGINE_SECOND_NS
/* Time a session gets to finish after it loses its rights. */
#define ENGINE_RIGHTS_STOP_NS (5 * ENGINE_SECOND_NS)
/* A session waits for a store's barrier (store_barrier()) until 1/10 of its handshake timeout is
 * left, so that it can report the timeout to its peer. */
#define ENGINE_BARRIER_SHARE 10
/* Pause between two checks of a store's barrier. The pause increases, up to 1/64 of the handshake
 * timeout. */
#define ENGINE_BARRIER_PAUSE_NS	   (ENGINE_SECOND_NS / 1000)
#define ENGINE_BARRIER_PAUSE_SHARE 64
/* Interval at which stalled sessions are searched for while a client waits for memory. */
#define ENGINE_STALL_LOOK_NS ENGINE_SECOND_NS
/* Pause between two checks of the sessions that have not ended at their deadline. */
#define ENGINE_STOP_LOOK_NS (ENGINE_SECOND_NS / 10)
/* Minimum idle timeout. With a shorter one, the checks would cost more than idle connections. */
#define ENGINE_IDLE_TIMEOUT_NS_MIN (ENGINE_SECOND_NS / 10)

_Static_assert(ENGINE_HANDSHAKES_MAX <= ENGINE_SESSIONS_MAX, "each handshake is a session");
_Static_assert(ENGINE_INFLIGHT_PER_SESSION_MAX <= ENGINE_INFLIGHT_MAX,
	"a session cannot have more requests in flight than its engine");
_Static_assert(ENGINE_MEMORY_BYTES_MAX / ENGINE_RESERVE_DIVISOR >=
		       ENGINE_SESSIONS_MAX * PATH_RESERVE_BYTES,
	"the default amount of payload memory has a block for every session");
_Static_assert(ARENA_SLAB_BYTES / ENGINE_RESERVE_DIVISOR >= PATH_RESERVE_BYTES,
	"the smallest amount of payload memory has a block for one session");
_Static_assert(ENGINE_LINGER_STOPPING_NS < ENGINE_LINGER_NS &&
		       ENGINE_HANDSHAKE_STOPPING_NS < ENGINE_HANDSHAKE_TIMEOUT_NS &&
		       ENGINE_BARRIER_PAUSE_SHARE > ENGINE_BARRIER_SHARE &&
		       ENGINE_STALL_LOOK_NS < ENGINE_STALL_TIMEOUT_NS,
	"time limits are shorter while the server stops, and stall checks are more frequent than "
	"stall timeouts");

struct engine_limits {
	/* maximum, including handshakes; at most engine_sessions_max(memory_bytes_max) */
	uint32_t sessions_max;
	uint32_t handshakes_max; /* maximum number of sessions that have not chosen an export */
	uint64_t handshake_timeout_ns;
	uint32_t inflight_per_session_max; /* > 0 */
	/* Maximum number of requests in flight of all sessions together; > 0. In addition, each
	 * session owns one slot. */
	uint32_t inflight_max;
	uint32_t payload_bytes_max; /* maximum length of one read or write */
	uint64_t memory_bytes_max;  /* payload memory; at least ARENA_SLAB_BYTES */
	/* A session that holds memory for which others wait is ended after this time without
	 * network progress. */
	uint64_t stall_timeout_ns;
	/* A session that has chosen an export is ended after this time without requests and without
	 * network progress. At least ENGINE_IDLE_TIMEOUT_NS_MIN, or 0: never. */
	uint64_t idle_timeout_ns;
	/* number of engines that share the memory limit of an export or identity; > 0 */
	uint32_t engine_count;
	bool may_spin; /* poll for requests before sleeping if this makes requests faster */
};

/* Returns how many sessions are possible with this much memory, if each has a reserved block. */
static inline uint32_t engine_sessions_max(uint64_t memory_bytes)
{
	return (uint32_t)MIN(memory_bytes / ENGINE_SESSION_BYTES, (uint64_t)UINT32_MAX);
}

/* Returns how many parts of sessions of other engines an engine can have. */
static inline uint32_t engine_parts_max(const struct engine_limits *limits)
{
	return limits->sessions_max / ENGINE_PARTS_DIVISOR;
}

/* Sets the values for one reactor of a small server. */
void engine_limits_default(struct engine_limits *limits);
