// SPDX-License-Identifier: Apache-2.0
/*
 * Leases: which clients may use an export at the same time, or may write to it. See
 * docs/design/0029-leases.md.
 *
 *   lease_book ── lease (of an export's name) ── holder ── sessions of this client
 *
 *      (new) ──▶ HOLDS ─────────────┬──────▶ (gone)     the last session has ended in order, or the
 *      │           ▲ first write    │                   time limit without a session is over
 *      └─ offer ─▶ PENDING ─────────┤
 *                                   └▶ LOST ▶ (gone)    another client has taken the lease: the
 *                                                       sessions end, and the other client waits
 *                                                       until their last operation has left the
 *                                                       store
 *
 * A client that asks for a lease names itself by a random number, which is valid for one principal.
 * A client without such a name is recognized by its address, or by its process on a Unix socket. It
 * becomes a holder with its first write if the export has only one writer (export.one_writer).
 *
 * Leases belong to a name and not to a struct export, so that they outlive a change of the
 * configuration. A named holder outlives its connections for a time that it chooses. It is recorded
 * before it gets the lease (struct lease_desk), so that it also outlives the server. The lease of a
 * client that may only read outlives its connections only until another client takes an exclusive
 * one.
 *
 * Threading: a book is shared by all engines; any thread, except for the functions of a session,
 * which belong to its engine's thread. Ownership: the book owns the leases and their holders; the
 * exports have references to leases. Errors: as stated.
 */
#pragma once

#include "engine/fence.h"

/* The beginning of session->lease_text. Clients recognize it. */
#define LEASE_REFUSAL EXPORT_URI_LEASE_TEXT

enum {
	LEASE_NAME_BYTES = 256,
	LEASE_TEXT_BYTES = 512,
	LEASE_HOLDERS_MAX = 64, /* of one export */
	/* of one holder; an upgrade sends the numbers of its connections in one message */
	LEASE_SESSIONS_MAX = 1024,
	/* Minimum time for a new process to adopt the sessions of a holder. */
	LEASE_ADOPT_MS = 10000,
};

enum lease_state {
	LEASE_HOLDS,
	LEASE_PENDING, /* the lease was offered to the holder: it only reads until its first write
			*/
	LEASE_LOST,    /* the holder's sessions are ending */
	LEASE_STATE_COUNT
};

/* A client as the holder of a lease. */
struct lease_owner {
	bool is_named; /* id is valid, pid and address are not */
	uint8_t id[LEASE_ID_BYTES];
	struct takeover_principal principal;
	uint8_t address[ACCESS_ADDRESS_BYTES]; /* zeroes: unknown */
	int32_t pid;			       /* 0: unknown */
};

/* A holder, for lists, for the record of leases and for another process. Texts are borrowed. */
struct lease_view {
	const char *export; /* not terminated */
	uint32_t export_bytes;
	struct lease_owner owner;
	enum lease_mode mode;
	enum lease_state state;
	uint32_t ms;	/* time for which the holder outlives its last session */
	bool is_reader; /* the client has no right to write; without a session, it excludes nobody
			 */
	/* how much of it is left; UINT32_MAX: the holder has sessions */
	uint32_t left_ms;
	const char *name;	     /* for people, such as "10.1.0.7:4711 (psk alice)"; escaped */
	const char *node;	     /* the node to which the client belongs, or "" */
	const char *offered_to;	     /* the node to which the lease is offered, or "" */
	const uint64_t *connections; /* numbers of the sessions' connections (peer.id) */
	uint32_t connection_count;
};

struct lease_book;

/* The server's function that records leases. */
struct lease_desk {
	/* Records all named holders that are not LOST (lease_book_each()), durably. May block; one
	 * call at a time, on any thread. A failure is logged by this function, and the call is
	 * repeated while a client waits. */
	int (*record)(void *context, struct lease_book *book);
	void *context;
};

/* Returns a book without leases; NULL: no memory. */
struct lease_book *lease_book_create(void);
/* Called when no export exists that was served with the book. NULL is a no-op. */
void lease_book_destroy(struct lease_book *book);
/* Without a desk, no lease outlives the process. is_outdated: the record has to be written even if
 * no lease changes. Called before the first session exists. */
void lease_book_set_desk(struct lease_book *book, const struct lease_desk *desk, bool is_outdated);
/* Adds a holder without sessions, which was recorded or which another process has sent. now_ns: of
 * the rings' clock. -ENOMEM, -EINVAL. */
GMB_MUST_CHECK int lease_book_restore(
	struct lease_book *book, const struct lease_view *view, uint64_t now_ns);
/* Calls look() for each holder, with the book locked: it must not call the book. now_ns: of the
 * rings' clock. If look() returns a negative errno, stops and returns it. */
GMB_MUST_CHECK int lease_book_each(struct lease_book *book, uint64_t now_ns,
	int (*look)(void *context, const struct lease_view *view), void *context);
/* Stops changes, because another process gets the holders: clients wait, and changes are not
 * recorded.
 */
void lease_book_hold(struct lease_book *book);
/* Permits changes again. */
void lease_book_go_on(struct lease_book *book);
/* Records changes that are not recorded yet. Blocks. Returns the result of lease_desk.record(). */
GMB_MUST_CHECK int lease_book_record(struct lease_book *book);

/* Offers the lease of an export to a node: a client of the node can open the export although
 * another client has the lease, and gets the lease with its first write. Replaces an earlier offer.
 * node "": withdraws the offer. -ESRCH: no client has a lease of the export. -EAGAIN: another
 * process gets the holders. */
GMB_MUST_CHECK int lease_book_offer(struct lease_book *book, const char *export,
	uint32_t export_bytes, const char *node, uint64_t now_ns);
/* Ends the leases of an export, and withdraws the offer. node "": of all holders. Returns the
 * number of holders, whose operations may still be in progress, or -ESRCH: there is none; -EAGAIN
 * as above. */
GMB_MUST_CHECK int lease_book_release(struct lease_book *book, const char *export,
	uint32_t export_bytes, const char *node, uint64_t now_ns);

/* For use in src/engine only. */
/* Gives the export its lease of the book, once. NULL: the export has no leases. -ENOMEM. */
GMB_MUST_CHECK int lease_attach(struct lease_book *book, struct export *export);
/* Called when the export is freed. */
void lease_detach(struct export *export);
/* Takes the lease that the session's peer wants (session->lease_want). rights: of the session;
 * without the right to write, it can neither have an exclusive lease nor take one from others, and
 * its shared lease excludes others only while it is connected.
 * Returns 0, -EACCES with session->lease_text, or -EAGAIN: the caller waits while lease_waits() and
 * tries again. */
GMB_MUST_CHECK int session_lease_take(
	struct session *session, struct export *export, uint32_t rights);
/* Gives up the attempt to take the lease. Called before a refusal for another reason. */
void session_lease_give_up(struct session *session);
/* Called when the session has ended and its last operation has left the store. Can be called
 * repeatedly. */
void session_lease_leave(struct session *session);
/* Returns whether a client has to wait, because sessions of a LOST holder exist, or changes are not
 * recorded; records them. Blocks. Any thread. */
bool lease_waits(const struct export *export);
