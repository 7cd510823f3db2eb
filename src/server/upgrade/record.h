// SPDX-License-Identifier: Apache-2.0
/*
 * How a server was started: its arguments and working directory, for a process that is to replace
 * it (docs/design/0019-upgrade.md). The server writes them down before it reads anything of a
 * client, into a file beside the usual control sockets; its sandbox, and --user, do not let it
 * change that file later. What /proc says of the arguments is memory of the process itself.
 *
 *   FOLDER/PID.start   strings, each with a zero at its end: "gmblock start 1", the time at which
 *                      the process began (field 22 of /proc/PID/stat), the working directory, the
 *                      arguments
 *
 * Threading: the main thread. Ownership: as said below. Errors: a server without a record runs, and
 * is upgraded with a command that the caller names.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"
#include "base/error.h"

enum { SERVER_RECORD_PATH_BYTES = 320 };

/* Records this process. path: of the file, or "" when there is none. */
void server_record_write(char path[SERVER_RECORD_PATH_BYTES]);
/* At the end. "" is a no-op. */
void server_record_remove(char path[SERVER_RECORD_PATH_BYTES]);

struct server_record {
	char *text;	    /* all strings */
	const char *folder; /* the working directory */
	char **arguments;   /* NULL at the end */
};

/*
 * The record of a running process, which root or the caller must have written; to be freed with
 * server_record_fini(). -ENOENT: there is none; -ESRCH: it is of another process that had this id;
 * -EPERM: somebody else could have written it.
 */
GMB_MUST_CHECK int server_record_read(pid_t pid, struct server_record *record, struct error *error);
void server_record_fini(struct server_record *record);
