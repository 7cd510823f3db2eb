// SPDX-License-Identifier: Apache-2.0
/*
 * The commands of --run: shell commands that are started one after another while the server serves,
 * until one fails. Each gets $uri (and $unixsocket) in its environment and default signal handling.
 * It inherits neither the server's descriptors nor its raised limit on them.
 *
 * Threading: the main thread. Ownership: borrows the commands and URIs as long as the runner is
 * used. Errors: starting the shell can fail; the result of a command is its exit status, 128 + n
 * for signal n.
 */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/error.h"

enum { RUNNER_LIMIT_BYTES = 24 };

/* Raises the soft limit on open files to the hard limit. before_out, which is "" at the call,
 * receives the previous limit in the format of runner_options.file_limit. */
void runner_raise_file_limit(char before_out[RUNNER_LIMIT_BYTES]);

struct runner_options {
	char *const *commands;
	uint32_t command_count; /* > 0 */
	const char *uri;
	const char *socket_path;    /* or NULL */
	const sigset_t *child_mask; /* signal mask before the server changed it */
	const char *file_limit;	    /* argument for ulimit -n; NULL: the limit was not raised */
};

struct runner {
	struct runner_options options;
	uint32_t next;
	pid_t pid;	 /* process of the running command, or 0 */
	int exit_status; /* status of the last command that ended */
};

void runner_init(struct runner *runner, const struct runner_options *options);

/* Starts the next command. */
GMB_MUST_CHECK int runner_start(struct runner *runner, struct error *error);

/* To be called on SIGCHLD. Returns true if the command has ended; exit_status is then set, and
 * runner_has_next() returns whether there is another one to start. */
bool runner_reap(struct runner *runner);
bool runner_has_next(const struct runner *runner);

/* Passes a signal on to the running command, if there is one. */
void runner_signal(struct runner *runner, int signal_number);
