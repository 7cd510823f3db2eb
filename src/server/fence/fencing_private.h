// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/fence: the nodes that are fenced or to be fenced, and the thread that does
 * it. entries.c has the nodes and the copy for the engines, thread.c writes the list and looks at
 * the engines, fencing.c has the requests, start and end.
 *
 * Threading: functions that take an entry, and all functions of entries.c, are called with
 * fencing->lock held. Ownership: struct fencing owns everything. Errors: as stated below.
 */
#pragma once

#include <pthread.h>

#include "server/fence/fencing.h"
#include "server/fence/list.h"

/* An engine that needs longer for a look hangs. */
#define FENCING_HANGING_NS UINT64_C(500000000)

enum fencing_state {
	FENCING_WANTED,	  /* not yet in the list on disk */
	FENCING_FENCED,	  /* durable and refused; its operations may be in flight */
	FENCING_ENDED,	  /* its last operation has left every store */
	FENCING_UNWANTED, /* still fenced, but not in the next list */
	FENCING_FAILED,	  /* not fenced: the list could not be written */
	FENCING_STATE_COUNT
};

/* Whether an entry is in the list that is being written. */
enum drafted { DRAFTED_NOT, DRAFTED_IN, DRAFTED_OUT };

/* A node that is fenced or shall be. */
struct fencing_entry {
	struct fence_record record;
	enum fencing_state state;
	enum drafted drafted;
	/* number of the publication that has fenced the node: only looks that began later count */
	uint64_t serial;
	/* bits of the reactors on which the node has no session left */
	uint64_t clear;
	bool unwritten;		     /* the file can lack the node, or rules of it */
	bool barriers_open;	     /* no write of a killed server is in flight */
	char text[FENCE_TEXT_BYTES]; /* what was in the way, or the error of a failed write */
	bool has_failed;	     /* a release has failed; text is the reason */
};

/* A look at one reactor. While it is busy, its reactor and then its message use it. */
struct fencing_look {
	struct fencing *fencing;
	uint32_t index;
	bool busy; /* protected by the lock */
	uint64_t begun_ns;
	uint64_t serial;
	struct fence_nodes *nodes;
	struct fence_sight *sights;
	uint32_t barriers;
	char barred[FENCE_NAME_BYTES]; /* one of the exports with closed barriers */
	struct reactor_task task;
	struct ring_message back;
};

struct fencing {
	struct fence *fence;
	const struct state_folder *folder;
	struct ring_thread *thread;
	struct ring *ring;
	struct ring_op timer; /* on the thread */
	uint64_t pause_ns;    /* on the thread: pause before the next look */

	pthread_mutex_t lock; /* protects all further members */
	bool stopped;
	bool held;		    /* an upgrade is in progress */
	bool writing;		    /* the thread writes the list, without the lock */
	bool grown;		    /* a fenced node has rules that are not in the file */
	uint64_t write_ns;	    /* when they may be written, after a failed write */
	uint64_t write_pause_ns;    /* pause after the last failed write; 0: it has not failed */
	bool unpublished;	    /* the engines do not use the entries in force yet */
	struct server_access nodes; /* of the configuration, with ACCESS_NODE */
	uint32_t previous_count;    /* the last rules of `nodes`: only in previous configurations */
	struct fencing_entry *entries[FENCE_NODES_MAX];
	uint32_t entry_count;
	/* the node that was unfenced last, because it can be in no list any more */
	char released[FENCE_NAME_BYTES];
	uint64_t serial; /* number of publications */
	struct reactor *const *reactors;
	struct fencing_look *looks; /* one for each reactor */
	uint32_t look_count;
	bool wakes; /* `wake` is on its way */
	struct ring_message wake;
};

/* Returns whether the node is fenced. */
static inline bool fencing_is_in_force(const struct fencing_entry *entry)
{
	return (BIT(entry->state) &
		       (BIT(FENCING_FENCED) | BIT(FENCING_ENDED) | BIT(FENCING_UNWANTED))) != 0;
}

/* --- entries.c -------------------------------------------------------------------------------- */

void fencing_set_state(struct fencing_entry *entry, enum fencing_state state);
/* Returns the entry of a node, or NULL. */
struct fencing_entry *fencing_find(const struct fencing *fencing, const char *node);
/* Adds an entry in state WANTED, with the rules of the configuration. NULL: no memory, or no room.
 */
struct fencing_entry *fencing_add(struct fencing *fencing, const char *node);
void fencing_remove(struct fencing *fencing, struct fencing_entry *entry);
/* Replaces the entries by the records of a list, whose rules they take. -ENOMEM. */
GMB_MUST_CHECK int fencing_take_records(struct fencing *fencing, struct fence_list *list);
/* Requires new looks at all engines before the fence counts as complete: those with this serial, or
 * a later one. */
void fencing_look_again(struct fencing_entry *entry, uint64_t serial);
/* Adds the rules of the configuration to the fenced nodes. -ENOMEM. */
GMB_MUST_CHECK int fencing_grow(struct fencing *fencing);
bool fencing_is_configured(const struct fencing *fencing, const char *node);
/* Copies the name of the node of the configuration's idx-th rule. Returns false, without effect, if
 * an earlier rule is of the same node. */
bool fencing_name(const struct fencing *fencing, uint32_t idx, char out[FENCE_NAME_BYTES]);
/* Returns a list of the fenced nodes; NULL: no memory. */
struct fence_nodes *fencing_in_force(const struct fencing *fencing);
/* Makes the engines use the entries in force. If there is no memory, the thread tries it again. */
void fencing_publish(struct fencing *fencing);

/* --- thread.c --------------------------------------------------------------------------------- */

/* Makes the thread look for work. Called with the lock held. */
void fencing_wake(struct fencing *fencing);
/* Starts the thread, whose ring is then fencing->ring. */
GMB_MUST_CHECK int fencing_thread_start(struct fencing *fencing, struct error *error);
