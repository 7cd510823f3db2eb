// SPDX-License-Identifier: Apache-2.0
/*
 * The fences of a server: which nodes are fenced, on disk and in the engines, and whether the last
 * operation of a fenced node has ended.
 *
 *   fencing_open() ── reads the list, before the sandbox ─▶ fencing_start() ── the thread
 *
 *   ask: fence ─▶ WANTED ─ list written ─▶ FENCED ─ engines refuse and end; looks ─▶ ENDED
 *   ask: release ─▶ UNWANTED ─ list written ─▶ (no entry)
 *
 * Order, for a fence: the list is durable, then no session of the node can select an export, then
 * its sessions are ended, then every engine has reported that none is left and no write of a killed
 * server is in flight, then the answer is 0. For a release: the list is durable, then sessions can
 * select exports. An upgrade stops changes of the list (fencing_hold()) before the old process
 * passes sessions on, and the new process reads it again (fencing_read()) before it serves.
 *
 * Threading: any thread, except where stated. The list is written on a separate thread, which can
 * block. Ownership: the caller owns the fencing, which owns its struct fence. Errors: a negative
 * errno and a message.
 */
#pragma once

#include <jansson.h>

#include "engine/fence.h"
#include "server/config/config.h"
#include "server/reactor.h"
#include "server/state_folder.h"

struct fencing;

/* Reads the list of fenced nodes. folder: must outlive the fencing. *fencing_out is NULL if the
 * configuration has no nodes, and the folder has no fenced nodes: those that were fenced before the
 * nodes were removed from the configuration stay fenced. is_taking: another process serves with the
 * same list. A list that cannot be read is an error. */
GMB_MUST_CHECK int fencing_open(const struct server_config *config,
	const struct state_folder *folder, bool is_taking, struct fencing **fencing_out,
	struct error *error);
/* Returns what engines need; NULL if fencing is NULL. */
struct fence *fencing_fence(struct fencing *fencing);

/* Starts the thread, which looks at these reactors. They must exist until fencing_stop(). */
GMB_MUST_CHECK int fencing_start(struct fencing *fencing, struct reactor *const *reactors,
	uint32_t reactor_count, struct error *error);
/* Called before the reactors end: later requests fail. NULL is a no-op, like below. */
void fencing_stop(struct fencing *fencing);
/* Ends the thread. Called after the reactors were destroyed. */
void fencing_destroy(struct fencing *fencing);

/* Replaces the nodes and rights after a change of the configuration. Fenced nodes also keep their
 * previous rules. keeps: other nodes also keep them, until fencing_settle(), because clients can
 * still be accepted by the previous configuration. Called on the main thread. */
GMB_MUST_CHECK int fencing_configure(struct fencing *fencing, const struct server_config *config,
	bool keeps, struct error *error);
/* Called on the main thread when all sessions were checked by the new configuration. */
void fencing_settle(struct fencing *fencing);

/* For upgrades; the main thread. Stops changes of the list. Fails with -EBUSY if a change or a
 * fence is in progress. */
GMB_MUST_CHECK int fencing_hold(struct fencing *fencing, struct error *error);
void fencing_release(struct fencing *fencing);
/* Called in the new process, before it serves: reads the list again, because the old process could
 * change it since fencing_open(). */
GMB_MUST_CHECK int fencing_read(struct fencing *fencing, struct error *error);
/* Called in the new process when it serves, after state_folder_take_over(): writes changes of the
 * list. */
void fencing_take_over(struct fencing *fencing);

/* See struct fence_desk. -EINVAL: there is no such node. NULL: no nodes. */
GMB_MUST_CHECK int fencing_ask(struct fencing *fencing, struct session *session,
	enum fence_action action, const char *node, char text[FENCE_TEXT_BYTES]);
/* The state of a node. */
struct fencing_view {
	char node[FENCE_NAME_BYTES];
	bool fenced;
	bool ended;			  /* fenced, and its last operation has left every store */
	uint64_t since_s;		  /* fenced: since when, in seconds since 1970 */
	char waits_for[FENCE_TEXT_BYTES]; /* fenced and not ended: what is in the way */
};

/* Returns the configured and the fenced nodes, freed by the caller; NULL: no memory. */
struct fencing_view *fencing_views(struct fencing *fencing, uint32_t *count_out);
/* Returns all nodes as a JSON array, see docs/protocol/control.md. NULL: no memory. */
json_t *fencing_list(struct fencing *fencing);
