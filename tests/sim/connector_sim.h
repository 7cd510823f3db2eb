// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated twin of src/nbd/client/connect.c, chosen at link time: connections lead into the
 * simulated world, where the test decides what becomes of each attempt.
 *
 * Threading: one. Ownership: the descriptor that connect() gives is the library's to close. Errors:
 * the answers of the test, as negative errnos.
 */
#pragma once

#include <stdint.h>

struct connector_network {
	/* An attempt begins: how long it takes, and 0 or the error it will end with. host: of the
	 * URI, NULL for a Unix socket. */
	int (*attempt)(void *context, const char *host, uint64_t timeout_ns, uint64_t *delay_ns);
	/* It has reached the server's machine: a connected descriptor, or -ECONNREFUSED. */
	int (*connect)(void *context, const char *host);
	void *context;
};

/* Borrowed until the next call. NULL: attempts abort the test. */
void connector_sim_use(const struct connector_network *network);
