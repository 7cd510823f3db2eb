// SPDX-License-Identifier: Apache-2.0
/*
 * Lets a client that has lost a connection make sure that nothing it sent there can still happen,
 * before it sends it again on another: docs/design/0006-reconnect.md.
 *
 * What: connections to an export that gave themselves a token are members of its takeover group. A
 * newcomer that comes instead of one ends it, wherever it lives, and is woken when its last request
 * has ended. A token counts together with the principal that gave it: from another one it names
 * nobody.
 *
 *   newcomer: takeover_replace(token) ──▶ end() on the old one's ring ... its requests end ...
 *                              wake() on the newcomer's ring ◀── takeover_leave() ◀──┘
 *
 * Threading: a takeover group is shared by all reactors (a lock, taken during handshakes and at the
 * end of connections only); a member belongs to its session's ring, and end() and wake() are called
 * there. Ownership: members lie in their sessions, which stay until takeover_may_go(). Errors:
 * none; a token that nobody has needs no takeover.
 */
#pragma once

#include <pthread.h>

#include "base/compiler.h"
#include "ring/ring.h"

enum { TAKEOVER_TOKEN_BYTES_MAX = 64, TAKEOVER_PRINCIPAL_BYTES = 33, PEER_IDENTITY_BYTES = 17 };

/* What a peer is known by beyond one connection: a family, and the address of its host or its user.
 * Peers with equal bytes are the same one. All zero: nothing is known of it. */
struct peer_identity {
	uint8_t bytes[PEER_IDENTITY_BYTES];
};

/* Whose a connection is: a kind (in clear, encrypted, proved), and who has proved to be there, else
 * the peer_identity. So nobody in clear has the name of somebody who is not. */
struct takeover_principal {
	uint8_t bytes[TAKEOVER_PRINCIPAL_BYTES];
};

struct takeover_member;

/* All zero: an empty group. */
struct takeover {
	pthread_mutex_t lock;
	struct takeover_member *members;
};

/* All zero: a member of none. */
struct takeover_member {
	/* Set by the owner before the first call; the principal also later, while it has no name.
	 */
	struct ring *ring;
	struct takeover_principal principal;
	void (*end)(struct takeover_member *member);  /* another one comes instead of this one */
	void (*wake)(struct takeover_member *member); /* the one that was waited for is gone */

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

/* The connection's own name. One that has a name already keeps it. */
void takeover_join(struct takeover *takeover, struct takeover_member *member, const uint8_t *token,
	uint32_t bytes);

enum takeover_found {
	TAKEOVER_NOBODY,
	TAKEOVER_OTHERS, /* have that name; nothing happens */
	TAKEOVER_OWN,	 /* it is not gone yet, wake() will come, then ask again */
};

/* Ends the connection of that name. */
GMB_MUST_CHECK enum takeover_found takeover_replace(struct takeover *takeover,
	struct takeover_member *member, const uint8_t *token, uint32_t bytes);

/* Whether there is a connection of that name, of whomever. */
bool takeover_has(struct takeover *takeover, const char *token, uint32_t bytes);

/* The session ends: it waits for nobody any more. */
void takeover_give_up(struct takeover_member *member);
/* Its last request has ended, or its name does not count any more. */
void takeover_leave(struct takeover_member *member);
/* No message to the session is on its way: it may be freed. */
bool takeover_may_go(struct takeover_member *member);
