// SPDX-License-Identifier: Apache-2.0
/*
 * The new process of an upgrade (upgrade.h): what it gets from the old one while it starts, in the
 * order of the functions. Without an old process, begin gives NULL, which the others take.
 *
 *   sockets, claims ─▶ the exports are opened ─▶ READY ─▶ sessions ─▶ STARTED
 *
 * Threading: the main thread; before there are other threads, but for sessions. Ownership: sockets
 * are the taker's to close; the rest is borrowed. Errors: a sentence, which the old process is
 * told, too.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/accept.h"

struct upgrade_take;

/* Asks the environment for an old process. Nothing that it says is read yet. -EPERM: somebody else
 * can write the configuration, which has been read. */
GMB_MUST_CHECK int upgrade_take_find(
	const struct server_config *config, struct upgrade_take **take_out, struct error *error);
/* This process has the user that it will serve as: asks the old one, which must have the same, for
 * what it has. Exports that commands have added there are appended to the configuration. */
GMB_MUST_CHECK int upgrade_take_begin(
	struct upgrade_take *take, struct server_config *config, struct error *error);
struct upgrade_socket {
	int fd;
	bool of_manager;
	bool of_metrics;
	bool has_path; /* of this socket file, to be removed at the end */
	uint64_t device;
	uint64_t inode;
};

/* The next listening socket, of metrics or else of clients. False: there is none. */
GMB_MUST_CHECK bool upgrade_take_socket(
	struct upgrade_take *take, bool of_metrics, struct upgrade_socket *out);
/* The control socket, if it is the socket file at path. */
GMB_MUST_CHECK bool upgrade_take_control(
	struct upgrade_take *take, const char *path, struct upgrade_socket *out);
uint32_t upgrade_take_socket_count(const struct upgrade_take *take);
/* What the old process has of the disk that it serves by that name, for struct store_options;
 * borrowed. NULL: it serves none. index: of the export here, where the search begins. */
const struct store_claim *upgrade_take_disk(
	const struct upgrade_take *take, const char *name, uint32_t index);

/* Where the sessions go. */
struct upgrade_taker {
	const struct exports *exports;
	const struct session_kind *const *kinds;
	uint32_t kind_count;
	struct acceptor *acceptor; /* not started */
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* The disks that settle have done so: reads what is on them. */
	int (*settled)(void *context, struct error *error);
	void *context;
};

/*
 * Everything is open: gets the sessions. 0: the old process has let go, and they go on here.
 * -EBUSY: an export that has clients is not here, or is another disk. What fails later ends this
 * process at once, without touching the connections, which are still the other one's.
 */
GMB_MUST_CHECK int upgrade_take_over(
	struct upgrade_take *take, const struct upgrade_taker *taker, struct error *error);
/* Then: waits until the old process is done with the control socket and the service manager. */
void upgrade_take_finish(struct upgrade_take *take);
/* This process has failed before: tells the old one why, and leaves the socket files to it. */
void upgrade_take_abandon(struct upgrade_take *take, struct listener *listeners,
	uint32_t listener_count, struct listener *control, struct listener *metrics,
	const struct error *failure);
