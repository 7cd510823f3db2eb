// SPDX-License-Identifier: Apache-2.0
/*
 * The server's state folder, for what must outlast the process: the list of fenced nodes and the
 * record of leases. It is opened before the sandbox, and locked (flock()), so that two servers do
 * not have one folder. The lock belongs to the open file. An upgrade passes this file on, so the
 * folder stays locked. In the new process the folder cannot be written until the old process has
 * ended its service.
 *
 * A file is replaced as a whole: a new file is written and flushed, renamed, and the folder
 * flushed. So a file that is cut or damaged is not the result of a crash.
 *
 * A server uses the folder if it has nodes, or if the folder is named: by --state-folder, or by
 * $STATE_DIRECTORY. With a configuration file, a default folder is also used if it has a list of
 * fenced nodes.
 *
 * Threading: the main thread, except for state_folder_replace(). Ownership: the caller owns the
 * struct. Errors: a negative errno, and a message if there is an argument for it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/compiler.h"
#include "base/error.h"

struct server_config;

struct state_folder {
	char *path;
	int fd;		     /* -1: the server uses no folder */
	bool is_needed;	     /* for nodes, or because of --state-folder */
	bool is_locked;	     /* by this process, not by the old one */
	_Atomic bool serves; /* the old process, if there was one, does not use it any more */
};

/* Opens and locks the folder of the configuration. is_taking: an old process can have the lock. If
 * only $STATE_DIRECTORY names the folder, which has no list of fenced nodes, and it cannot be used,
 * warns and continues without it. */
GMB_MUST_CHECK int state_folder_open(const struct server_config *config, bool is_taking,
	struct state_folder *folder, struct error *error);
void state_folder_close(struct state_folder *folder);
/* Checks that the state folder exists if the configuration needs one. If only the default folder is
 * missing, warns, because a service manager can create it at the start. */
GMB_MUST_CHECK int state_folder_check(const struct server_config *config, struct error *error);
/* Called in the new process of an upgrade, before it starts threads. fd: the folder as the old
 * process has locked it, which the folder then owns, also after a failure; -1: the old process uses
 * none. -EBUSY: both processes use different folders, or a third server has the lock. */
GMB_MUST_CHECK int state_folder_inherit(struct state_folder *folder, int fd, struct error *error);
/* Called in the new process when it serves: the files can be written from now on. */
void state_folder_take_over(struct state_folder *folder);
/* Returns whether the files can be written. Any thread. */
bool state_folder_serves(const struct state_folder *folder);

enum { STATE_FILE_BYTES_MAX = 16 << 20 };

/* Reads a file. The caller frees *text_out, which is terminated by a zero. -ENOENT: there is no
 * such file. -EPROTO: it is not a regular file, or longer than STATE_FILE_BYTES_MAX. */
GMB_MUST_CHECK int state_folder_read(
	const struct state_folder *folder, const char *name, char **text_out, size_t *bytes_out);
/* Replaces a file, and returns when it is durable. After an error, the file has the old or the new
 * contents. -EFBIG: the text is longer than STATE_FILE_BYTES_MAX. -EBUSY: an old process still
 * serves. Any thread; the caller serializes the calls for a file. */
GMB_MUST_CHECK int state_folder_replace(const struct state_folder *folder, const char *name,
	const char *text, size_t bytes, struct error *error);
