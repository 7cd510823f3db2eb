// SPDX-License-Identifier: Apache-2.0
/*
 * Folders of sockets: an address vhost-user-blk+unix:///?folder=FOLDER is a listener FOLDER/EXPORT
 * for each export, which is opened and closed with the export. An export whose name cannot be a
 * file name, or whose socket cannot be opened, has a listener without a socket.
 *
 *   exports change ─▶ listen_folders_follow() ─┬▶ listener_open() ─▶ acceptor_add()
 *                                              └▶ acceptor_remove() ─▶ listener_close()
 *
 * Threading: the main thread. Ownership: borrows everything; listener_close() closes the listeners.
 * Errors: a negative errno and an error message.
 */
#pragma once

#include "server/change/exports.h"
#include "server/listen/accept.h"

struct listen_folders {
	const struct server_config *config; /* with the addresses */
	const struct session_kind *kind;    /* the protocol of all folders */
	/* All listeners of the server. The array has room for one more listener for each export and
	 * folder. */
	struct listener *listeners;
	uint32_t *listener_count;
	struct acceptor *acceptor;
	/* number of retries of listener_open() for all sockets together */
	uint32_t *retries;
};

/* Returns the number of listeners that the folders can have. */
uint32_t listen_folders_room(const struct server_config *config);
/* Returns whether the socket of another process is in one of the folders, and makes the listener
 * one of this folder. */
bool listen_folders_adopt(const struct server_config *config, struct listener *listener);
/* Opens the sockets of new exports, tries again those that could not be opened before, and closes
 * those of removed exports. Returns the first error of a new export, after it has tried all
 * sockets. lines: a JSON array, to which a line is added for each socket that could not be opened;
 * NULL: such a line is logged. */
GMB_MUST_CHECK int listen_folders_follow(const struct listen_folders *folders,
	const struct exports *exports, json_t *lines, struct error *error);
/* Removes sockets that a killed server has left for exports that do not exist any more. Called
 * before sandbox_seal(). */
void listen_folders_clean(const struct listen_folders *folders);
