// SPDX-License-Identifier: Apache-2.0
/*
 * Asks servers to fence or unfence a node, and waits until each server has done it.
 *
 * A request does not wait in the server: it starts the work, or reports how far the work is, and
 * is repeated until the work is done or the time is over. So a server can be
 * restarted or upgraded between two requests.
 *
 * If a server cannot be reached for a second, or does not respond for some seconds, a message says
 * so, and the request is repeated.
 *
 * Threading: the caller waits; one thread for each server. Ownership: the caller owns everything.
 * Errors: for each server, a negative errno and a message that says what is in the way.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"

enum { FENCE_SERVERS_MAX = 64 };

struct fence_server {
	/* A URI: the server is asked over NBD. Otherwise a control socket, a process ID, or NULL
	 * for the only server of this user on this machine (stats_find()). */
	const char *server;
	int result;    /* 0, or the error */
	bool was_open; /* FENCE_JOB_UNFENCE: the node was not fenced */
	struct error error;
};

enum fence_job_action {
	FENCE_JOB_FENCE,
	FENCE_JOB_UNFENCE,
	FENCE_JOB_CHECK, /* only reports; -ESRCH: the server answers that the node is not fenced */
};

struct fence_job {
	enum fence_job_action action;
	const char *node;
	struct fence_server *servers;
	uint32_t server_count; /* 1 to FENCE_SERVERS_MAX */
	uint64_t timeout_ns;   /* for all servers together */
};

/* Returns the number of servers that have not done it. */
GMB_MUST_CHECK uint32_t fence_run(const struct fence_job *job);

/* Returns the nodes of a server as a JSON array, see docs/protocol/control.md; NULL: an error. */
json_t *fence_list(const char *server, uint64_t timeout_ns, struct error *error);
