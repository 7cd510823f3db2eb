// SPDX-License-Identifier: Apache-2.0
/*
 * The commands of --run: shell commands that are started one after another while the server serves,
 * until one fails. Each gets the environment with $uri (and $unixsocket) set, default signals, and
 * none of the server's descriptors nor its limit on them.
 *
 * Threading: the main thread. Ownership: borrows the commands and URIs until runner_fini().
 * Errors: starting the shell can fail; how a command ends is its exit status, 128 + n for signal n.
 */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/error.h"

enum { RUNNER_LIMIT_BYTES = 24 };

/* Raises the limit on open files to what is allowed. before_out, which is "", is as file_limit. */
void runner_raise_file_limit(char before_out[RUNNER_LIMIT_BYTES]);

struct runner_options {
	char *const *commands;
	uint32_t command_count; /* > 0 */
	const char *uri;
	const char *socket_path;    /* or NULL */
	const sigset_t *child_mask; /* the signal mask before the server changed it */
	const char *file_limit;	    /* as ulimit -n takes it; NULL: the server has not raised it */
};

struct runner {
	struct runner_options options;
	uint32_t next;
	pid_t pid;	 /* of the command that runs, or 0 */
	int exit_status; /* of the last command that ended */
};

void runner_init(struct runner *runner, const struct runner_options *options);

/* Starts the next command. */
GMB_MUST_CHECK int runner_start(struct runner *runner, struct error *error);

/* Looks whether the command has ended; to be called on SIGCHLD. True when it has: then exit_status
 * is set and runner_has_next() tells whether to start another. */
bool runner_reap(struct runner *runner);
bool runner_has_next(const struct runner *runner);

/* Passes a signal on to the running command, if there is one. */
void runner_signal(struct runner *runner, int signal_number);
