// SPDX-License-Identifier: Apache-2.0
/*
 * The new process of an upgrade (upgrade.h): receives sockets, disks and sessions from the old
 * process while it starts. The functions are declared in calling order. Without an old process,
 * upgrade_take_find() sets *take_out to NULL, which the functions for sockets and disks accept.
 *
 *   sockets, claims ─▶ the exports are opened ─▶ READY ─▶ sessions ─▶ STARTED
 *
 * Threading: the main thread; until the exports are open it is the only one. Ownership: the caller
 * closes the sockets that it gets; the rest is borrowed. Errors: an error message, which is also
 * sent to the old process.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/accept.h"

struct upgrade_take;
struct leases;
struct state_folder;

/* Checks the environment for an old process, without reading its data. -EPERM, with *take_out set:
 * another user can write to the configuration file that was read. */
GMB_MUST_CHECK int upgrade_take_find(
	const struct server_config *config, struct upgrade_take **take_out, struct error *error);
/* Receives the sockets, and for each disk a claim: what the old process holds on it (struct
 * store_claim). This process already runs as the user that it will serve as, and the old one must
 * run as the same user. Exports that commands added there are appended to the configuration. */
GMB_MUST_CHECK int upgrade_take_begin(
	struct upgrade_take *take, struct server_config *config, struct error *error);
/* Gives the locked state folder of the old process to this one, see state_folder_inherit(). take
 * may be NULL. */
GMB_MUST_CHECK int upgrade_take_state(
	struct upgrade_take *take, struct state_folder *folder, struct error *error);
struct upgrade_socket {
	int fd;
	bool of_manager;
	bool of_metrics;
	bool has_path; /* the socket has a file, which is to be removed at the end */
	uint64_t device;
	uint64_t inode;
};

/* Returns the next listening socket: for metrics if of_metrics is set, otherwise for clients.
 * Returns false after the last one. */
GMB_MUST_CHECK bool upgrade_take_socket(
	struct upgrade_take *take, bool of_metrics, struct upgrade_socket *out);
/* Returns the control socket if it is the one at path. */
GMB_MUST_CHECK bool upgrade_take_control(
	struct upgrade_take *take, const char *path, struct upgrade_socket *out);
uint32_t upgrade_take_socket_count(const struct upgrade_take *take);
/* Returns the old process's claim on the disk of its export with that name, for struct
 * store_options; borrowed. NULL: the old process has no such export. index: position of the export
 * in this process, where the search starts. */
const struct store_claim *upgrade_take_disk(
	const struct upgrade_take *take, const char *name, uint32_t index);

/* Arguments of upgrade_take_over(). */
struct upgrade_taker {
	const struct exports *exports;
	struct leases *leases;
	const struct session_kind *const *kinds;
	uint32_t kind_count;
	struct acceptor *acceptor; /* acceptor that was not started yet */
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* Called when the old process has flushed its disks: reads the contents of disks with
	 * store_needs_quiesce(). */
	int (*quiesced)(void *context, struct error *error);
	/* Called before this process exits because of a failure. Must not touch connections. */
	void (*leave)(void *context);
	void *context;
};

/*
 * Receives the sessions after everything has been opened. Returns 0 if the old process has released
 * them and they continue here. -EBUSY: an export with clients is missing here, or is another disk.
 * A later failure exits without touching the connections, which still belong to the old process.
 */
GMB_MUST_CHECK int upgrade_take_over(
	struct upgrade_take *take, const struct upgrade_taker *taker, struct error *error);
/* Called after upgrade_take_over(): waits, at most 2 seconds, until the old process no longer uses
 * the control socket and the service manager, and frees take. */
void upgrade_take_finish(struct upgrade_take *take);
/* Called when this process fails before sessions are taken: sends the reason to the old process,
 * leaves the socket files to it, and frees take. */
void upgrade_take_abandon(struct upgrade_take *take, struct listener *listeners,
	uint32_t listener_count, struct listener *control, struct listener *metrics,
	const struct error *failure);
