// SPDX-License-Identifier: Apache-2.0
/*
 * Lets a client that has lost a connection make sure that nothing it sent there can still happen,
 * before it sends it again on another: docs/design/0006-reconnect.md.
 *
 * What: connections to an export that gave themselves a token are members of its fence. A newcomer
 * that comes instead of one ends it, wherever it lives, and is woken when its last request has
 * ended.
 *
 *   newcomer: fence_replace(token) ──▶ end() on the old one's ring ... its requests end ...
 *                              wake() on the newcomer's ring ◀── fence_leave() ◀──┘
 *
 * Threading: a fence is shared by all reactors (a lock, taken during handshakes and at the end of
 * connections only); a member belongs to its session's ring, and end() and wake() are called there.
 * Ownership: members lie in their sessions, which stay until fence_may_go(). Errors: none; a token
 * that nobody has needs no fence.
 */
#pragma once

#include <pthread.h>

#include "base/compiler.h"
#include "ring/ring.h"

enum { FENCE_TOKEN_BYTES_MAX = 64 };

struct fence_member;

/* All zero: an empty fence. */
struct fence {
	pthread_mutex_t lock;
	struct fence_member *members;
};

/* All zero: a member of none. */
struct fence_member {
	/* Set by the owner before the first call. */
	struct ring *ring;
	void (*end)(struct fence_member *member);  /* another one comes instead of this one */
	void (*wake)(struct fence_member *member); /* the one that was waited for is gone */

	/* Private. */
	struct fence *fence;
	struct fence_member *next;
	struct fence_member *waits_for;
	struct fence_member *next_waiter;
	struct fence_member *waiters;
	struct ring_message end_message;
	struct ring_message wake_message;
	bool joined;
	bool end_posted;
	bool wake_posted;
	char token[FENCE_TOKEN_BYTES_MAX];
	uint32_t token_bytes;
};

/* The connection's own name. One that has a name already keeps it. */
void fence_join(
	struct fence *fence, struct fence_member *member, const uint8_t *token, uint32_t bytes);

/* Ends the connection of that name. True: it is not gone yet, wake() will come, then ask again. */
GMB_MUST_CHECK bool fence_replace(
	struct fence *fence, struct fence_member *member, const uint8_t *token, uint32_t bytes);

/* The session ends: it waits for nobody any more. */
void fence_give_up(struct fence_member *member);
/* Its last request has ended. */
void fence_leave(struct fence_member *member);
/* No message to the session is on its way: it may be freed. */
bool fence_may_go(struct fence_member *member);
