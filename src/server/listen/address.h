// SPDX-License-Identifier: Apache-2.0
/*
 * Answers questions about the addresses of listening sockets: whether an address is already served,
 * and whether the server is open to the whole network.
 *
 * Threading: the main thread, while the listeners are open. Ownership: borrows its arguments.
 * Errors: none; if a property cannot be determined, the answer is no.
 */
#pragma once

#include "server/listen/listen.h"

/*
 * Returns true when these listeners serve every address of uri, so that opening it again would fail
 * because it is in use. A wildcard serves each address of its family. Resolves host names.
 */
bool listen_address_is_served(
	const struct listener *listeners, uint32_t listener_count, const struct export_uri *uri);

/* Returns true when the listener serves one of the addresses of uri. Resolves host names. */
bool listen_address_overlaps(const struct listener *listener, const struct export_uri *uri);

/* Returns the listener whose address is the local address of the connected socket; NULL: none. */
const struct listener *listen_address_find(
	const struct listener *listeners, uint32_t listener_count, int fd);

/* Returns whether only this machine can reach the listener's sockets. */
bool listen_address_is_local(const struct listener *listener);

/* Returns whether the path is a Unix socket on which no process listens. */
bool listen_address_is_abandoned(const char *path);

/* Returns whether clients can use the export at the listener's address. */
bool listen_address_serves(const struct listener *listener, const struct export *export);

/* Returns uri with port 0 replaced by the listener's port. Borrows the strings of uri. */
struct export_uri listen_address_with_port(
	const struct export_uri *uri, const struct listener *listener);

/* Logs a warning for each address at which other machines can reach a listener without required
 * TLS. A port that is open on a wildcard address is reported once. admits_all: some export has no
 * access rules. */
void listen_address_warn(
	const struct listener *listeners, uint32_t listener_count, bool admits_all);
