// SPDX-License-Identifier: Apache-2.0
/*
 * Records how a server was started, its arguments and working directory, for the process that
 * replaces it (docs/design/0019-upgrade.md). The server writes the record before it reads any data
 * from a client, into a file next to the usual control sockets. Its sandbox and --user prevent it
 * from changing that file later. /proc is not sufficient, because the arguments there are memory of
 * the process itself.
 *
 *   FOLDER/PID.start   zero-terminated strings: "gmblock start 1", the start time of the process
 *                      (field 22 of /proc/PID/stat), the working directory, the arguments
 *
 * Threading: the main thread. Ownership: as stated below. Errors: if the record cannot be
 * written, the server runs without it, and "gmblock upgrade" needs the command of the new process
 * as an argument.
 */
#pragma once

#include <sys/types.h>

#include "base/compiler.h"
#include "base/error.h"

enum { SERVER_RECORD_PATH_BYTES = 320 };

/* Writes the record of this process. path, "" at the call, receives the path of the file if it was
 * written. */
void server_record_write(char path[SERVER_RECORD_PATH_BYTES]);
/* Removes the record when the server ends. "" is a no-op. */
void server_record_remove(char path[SERVER_RECORD_PATH_BYTES]);

struct server_record {
	char *text;	    /* memory that contains all strings */
	const char *folder; /* the working directory */
	char **arguments;   /* NULL-terminated */
};

/*
 * Reads the record of a running process, which root or the caller must have written. Freed with
 * server_record_fini(). -ENOENT: there is no record, or no process. -ESRCH: the record is of an
 * earlier process with this ID. -EPERM: another user could have written it. -EPROTO: invalid.
 */
GMB_MUST_CHECK int server_record_read(pid_t pid, struct server_record *record, struct error *error);
void server_record_fini(struct server_record *record);
