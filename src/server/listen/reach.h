// SPDX-License-Identifier: Apache-2.0
/*
 * Who reaches the server through its listening sockets: whether an address is served already, and
 * whether the whole network is let in.
 *
 * Threading: the main thread, while the listeners are open. Ownership: borrows its arguments.
 * Errors: none; what cannot be found out counts as no.
 */
#pragma once

#include "server/listen/listen.h"

/*
 * True when these listeners serve every address that uri stands for, so that one more socket could
 * only find it in use. A wildcard serves each address of its kind. Looks up host names.
 */
bool reach_covers(
	const struct listener *listeners, uint32_t listener_count, const struct export_uri *uri);

/* True when the listener serves one of the addresses that uri stands for. Looks up host names. */
bool reach_meets(const struct listener *listener, const struct export_uri *uri);

/* The listener at whose address the connected socket is; NULL: none of them. */
const struct listener *reach_of_socket(
	const struct listener *listeners, uint32_t listener_count, int fd);

/* Port 0 is any free one: the one that the listener has. Borrows what uri owns. */
struct export_uri reach_with_port(const struct export_uri *uri, const struct listener *listener);

/* Warns of each address at which a listener without required TLS can be reached from other
 * machines, of a port that is open to every network once. admits_all: there is an export without
 * rules of access. */
void reach_warn(const struct listener *listeners, uint32_t listener_count, bool admits_all);
