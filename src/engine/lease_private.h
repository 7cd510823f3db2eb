// SPDX-License-Identifier: Apache-2.0
/*
 * The holders of leases, shared by lease.c, which has the book of them, and session_lease.c, which
 * lets sessions take, use and leave them.
 *
 * Threading: all functions except lease_of() are called with lease_book.lock locked. Ownership: as
 * in lease.h. Errors: none, except for the lack of memory.
 */
#pragma once

#include <pthread.h>

#include "engine/lease.h"

struct lease {
	struct list_node node; /* in book->leases */
	struct lease_book *book;
	char *export; /* not terminated */
	uint32_t export_bytes;
	uint32_t references; /* exports */
	struct list_node holders;
	uint32_t granted; /* BIT(enum lease_mode): what clients have had at this server */
	char offered_to[FENCE_NAME_BYTES];
};

struct lease_holder {
	struct list_node node; /* in lease->holders */
	struct lease *lease;
	struct lease_owner owner;
	enum lease_mode mode;
	enum lease_state state;
	bool granted;	     /* a session has got the lease */
	bool is_reader;	     /* its client has no right to write */
	uint64_t change;     /* number of the change that must be recorded before that */
	uint32_t ms;	     /* see lease_view */
	uint64_t expires_ns; /* valid without sessions */
	struct list_node sessions;
	uint32_t session_count;
	uint64_t *connections; /* peer.previous_id of the sessions to be adopted */
	uint32_t connection_count;
	uint64_t adopt_ns; /* until when they can be adopted */
	char name[LEASE_NAME_BYTES];
	char node_name[FENCE_NAME_BYTES];
};

struct lease_book {
	pthread_mutex_t lock;	     /* protects all members, and all leases and holders */
	pthread_mutex_t record_lock; /* held during lease_desk.record() */
	struct list_node leases;
	struct lease_desk desk;
	uint64_t changes;  /* number of changes of named holders */
	uint64_t recorded; /* number of recorded changes */
	bool held;
};

/* Returns the lease of an export, or NULL. Any thread. */
struct lease *lease_of(const struct export *export);
/* Removes the holders whose time without a session is over, and forgets sessions that were not
 * adopted in time. Not while another process gets the holders, with their full time and indices. */
void lease_expire(struct lease *lease, uint64_t now_ns);
/* Frees the lease if it has neither exports nor holders. */
void lease_free_if_unused(struct lease *lease);
/* Returns a holder because of which `self`, which can be NULL, cannot have a lease of this mode, or
 * NULL. */
struct lease_holder *lease_find_conflict(
	const struct lease *lease, enum lease_mode mode, const struct lease_holder *self);
/* Returns whether operations of a holder that has lost the lease can be in progress. A holder
 * that never got the lease has no such operations. */
bool lease_is_losing(const struct lease *lease);
/* All holders but self lose their leases, as far as they conflict with this mode. */
void lease_lose_others(struct lease *lease, enum lease_mode mode, const struct lease_holder *self,
	const char *reason);
/* Ends the leases of clients that may only read and are not connected, for an exclusive one. */
void lease_lose_readers(struct lease *lease);

/* Returns the holder of the lease that is this client, or NULL. */
struct lease_holder *lease_holder_of(const struct lease *lease, const struct lease_owner *owner);
/* Returns a new holder, or NULL: no memory, or there are too many that stay. preempts: holders that
 * conflict with it do not. */
struct lease_holder *lease_holder_add(
	struct lease *lease, const struct lease_owner *owner, enum lease_mode mode, bool preempts);
/* Removes the holder from its lease. It has no sessions. */
void lease_holder_free(struct lease_holder *holder);
/* Checks the transition, see the picture in lease.h. */
void lease_holder_set_state(struct lease_holder *holder, enum lease_state state);
/* Notes that the record of leases has to change. The holder waits for all changes so far. A holder
 * without a name is not in the record, but must not write before the loss of an earlier holder is
 * recorded. */
void lease_holder_changed(struct lease_holder *holder);
/* Returns whether all changes for which the holder waits are recorded. */
bool lease_holder_is_recorded(const struct lease_holder *holder);
