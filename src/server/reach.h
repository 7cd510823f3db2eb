// SPDX-License-Identifier: Apache-2.0
/*
 * Who reaches the server through its listening sockets: whether an address is served already, and
 * whether the whole network is let in.
 *
 * Threading: the main thread, while the listeners are open. Ownership: borrows its arguments.
 * Errors: none; what cannot be found out counts as no.
 */
#pragma once

#include "server/listen.h"

/*
 * True when these listeners serve every address that uri stands for, so that one more socket could
 * only find it in use. A wildcard serves each address of its kind. Looks up host names.
 */
bool reach_covers(
	const struct listener *listeners, uint32_t listener_count, const struct export_uri *uri);

/* Warns of each port on which a listener takes connections from every network, once. */
void reach_warn(const struct listener *listeners, uint32_t listener_count);
