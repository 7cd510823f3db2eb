// SPDX-License-Identifier: Apache-2.0
/*
 * Takeover of a lost connection: before a client repeats requests on a new connection, it makes
 * sure that no request of the lost one can still take effect. See docs/design/0006-reconnect.md.
 *
 * A connection to an export that has sent a token is a member of the export's takeover group. A new
 * connection that names this token ends the old one, also on another ring, and is woken when the
 * last request of the old one has ended. A token is valid only for the principal (the owner of the
 * connection) that has sent it, so it cannot end connections of other principals.
 *
 *   new: takeover_replace(token) ──▶ end() on the ring of the old connection ... requests end ...
 *              wake() on the ring of the new connection ◀── takeover_leave() ◀──┘
 *
 * Threading: all reactors share a takeover group. Its lock is taken only during handshakes and at
 * the end of connections. A member belongs to the ring of its session, where end() and wake() are
 * called. Ownership: members are part of their sessions, which exist until takeover_may_go().
 * Errors: none. If no member has the token, no takeover is necessary.
 */
#pragma once

#include <pthread.h>

#include "base/compiler.h"
#include "ring/ring.h"

enum { TAKEOVER_TOKEN_BYTES_MAX = 64, TAKEOVER_PRINCIPAL_BYTES = 33, PEER_IDENTITY_BYTES = 17 };

/* Identifies a peer across its connections: address family and address of its host, or its user on
 * this machine. Equal bytes mean the same peer. All zeroes: unknown. */
struct peer_identity {
	uint8_t bytes[PEER_IDENTITY_BYTES];
};

/* Owner of a connection: a kind (not encrypted, encrypted, authenticated) and the authenticated
 * identity, or without one the peer_identity. Because of the kind, an unencrypted connection cannot
 * match an encrypted one. */
struct takeover_principal {
	uint8_t bytes[TAKEOVER_PRINCIPAL_BYTES];
};

struct takeover_member;

/* A takeover group. All zeroes: an empty group. */
struct takeover {
	pthread_mutex_t lock;
	struct takeover_member *members;
};

/* A connection in a takeover group. All zeroes: not in a group. */
struct takeover_member {
	/* Set by the owner before the first call. The owner can change the principal as long as the
	 * member has no token. */
	struct ring *ring;
	struct takeover_principal principal;
	/* called when another connection takes this one's place */
	void (*end)(struct takeover_member *member);
	/* called when the replaced connection has ended */
	void (*wake)(struct takeover_member *member);

	char token[TAKEOVER_TOKEN_BYTES_MAX]; /* read-only for the owner */
	uint32_t token_bytes;		      /* 0: none */

	/* Private members. */
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
};

/* Sets the token of a connection. No effect on a member with a token or in another group. */
void takeover_join(struct takeover *takeover, struct takeover_member *member, const uint8_t *token,
	uint32_t bytes);

enum takeover_found {
	TAKEOVER_NOBODY,
	/* only other principals have connections with this token; none was ended */
	TAKEOVER_OTHERS,
	/* the connection is being ended; the caller tries again after wake() */
	TAKEOVER_OWN,
};

/* Ends another connection with that token and the same principal, if there is one. Until wake() is
 * called for the one before, only returns TAKEOVER_OWN. */
GMB_MUST_CHECK enum takeover_found takeover_replace(struct takeover *takeover,
	struct takeover_member *member, const uint8_t *token, uint32_t bytes);

/* Puts a connection into the group without a token, so that takeover_end() can end it. No effect on
 * a member of a group. */
void takeover_enter(struct takeover *takeover, struct takeover_member *member);
/* Ends a connection that is in a group. Any thread; the session must exist. */
void takeover_end(struct takeover_member *member);

/* Returns whether any principal has a connection with that token. */
bool takeover_has(struct takeover *takeover, const char *token, uint32_t bytes);

/* Called when the member's session ends: the member no longer waits for another connection. */
void takeover_give_up(struct takeover_member *member);
/* Called when the member's last request has ended, or when its token becomes invalid. */
void takeover_leave(struct takeover_member *member);
/* Returns true if no message to the session is in flight, so that the session can be freed. */
bool takeover_may_go(struct takeover_member *member);
