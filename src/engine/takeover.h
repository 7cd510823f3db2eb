// SPDX-License-Identifier: Apache-2.0
/*
 * Takeover of a lost connection: before a client repeats requests on a new connection, it makes
 * sure that none of the requests on the lost one can still take effect:
 * docs/design/0006-reconnect.md.
 *
 * Connections to an export that chose a token are members of the export's takeover group. A new
 * connection that replaces a member ends it, on whichever ring it lives, and is woken when the
 * member's last request has ended. A token is only valid together with the principal that chose
 * it, so the token of another principal is ignored.
 *
 *   new: takeover_replace(token) ──▶ end() on the old one's ring ... its requests end ...
 *                         wake() on the new one's ring ◀── takeover_leave() ◀──┘
 *
 * Threading: all reactors share a takeover group. Its lock is taken only during handshakes and at
 * the end of connections. A member belongs to its session's ring, and end() and wake() are called
 * there. Ownership: members are part of their sessions, which exist until takeover_may_go().
 * Errors: none. A token without a member needs no takeover.
 */
#pragma once

#include <pthread.h>

#include "base/compiler.h"
#include "ring/ring.h"

enum { TAKEOVER_TOKEN_BYTES_MAX = 64, TAKEOVER_PRINCIPAL_BYTES = 33, PEER_IDENTITY_BYTES = 17 };

/* Identity of a peer across connections: an address family, then the address of its host, or its
 * user. Peers with equal bytes are the same one. All zeroes: unknown. */
struct peer_identity {
	uint8_t bytes[PEER_IDENTITY_BYTES];
};

/* Owner of a connection: a kind (in clear, encrypted, proved), then the proved identity, or
 * without one the peer_identity. The kind ensures that a connection in clear cannot match an
 * encrypted one. */
struct takeover_principal {
	uint8_t bytes[TAKEOVER_PRINCIPAL_BYTES];
};

struct takeover_member;

/* All zeroes: an empty group. */
struct takeover {
	pthread_mutex_t lock;
	struct takeover_member *members;
};

/* All zeroes: in no group. */
struct takeover_member {
	/* Set by the owner before the first call. The principal can also change later, as long as
	 * the member has no token. */
	struct ring *ring;
	struct takeover_principal principal;
	void (*end)(struct takeover_member *member);  /* another connection replaces this one */
	void (*wake)(struct takeover_member *member); /* the replaced one has ended */

	/* Private. */
	struct takeover *takeover;
	struct takeover_member *next;
	struct takeover_member *waits_for;
	struct takeover_member *next_waiter;
	struct takeover_member *waiters;
	struct ring_message end_message;
	struct ring_message wake_message;
	bool joined;
	bool end_posted;
	bool wake_posted;
	char token[TAKEOVER_TOKEN_BYTES_MAX];
	uint32_t token_bytes;
};

/* Sets the token of a connection. A member that already has a token keeps it. */
void takeover_join(struct takeover *takeover, struct takeover_member *member, const uint8_t *token,
	uint32_t bytes);

enum takeover_found {
	TAKEOVER_NOBODY,
	TAKEOVER_OTHERS, /* only other principals use this token; no action */
	TAKEOVER_OWN,	 /* it is being ended; wake() is called, then the caller retries */
};

/* Ends the connection with that token. */
GMB_MUST_CHECK enum takeover_found takeover_replace(struct takeover *takeover,
	struct takeover_member *member, const uint8_t *token, uint32_t bytes);

/* Returns whether any principal has a connection with that token. */
bool takeover_has(struct takeover *takeover, const char *token, uint32_t bytes);

/* The session ends: it no longer waits for another one. */
void takeover_give_up(struct takeover_member *member);
/* The member's last request has ended, or its token is no longer valid. */
void takeover_leave(struct takeover_member *member);
/* Returns true when no message to the session is in flight, so that it can be freed. */
bool takeover_may_go(struct takeover_member *member);
