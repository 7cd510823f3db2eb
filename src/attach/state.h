// SPDX-License-Identifier: Apache-2.0
/*
 * The state folder has one file for each attachment, through which other commands find it, and next
 * to it the control socket of its daemon (control/control.h) with the commands "status" and
 * "detach".
 *
 *   /run/gmblock-attach/ublkb0.json    owner, URI, device; locked while the daemon runs
 *   /run/gmblock-attach/ublkb0.sock
 *
 * The folder is GMBLOCK_ATTACH_DIR if that is set, and below $XDG_RUNTIME_DIR for users other than
 * root. It is not inside /run/gmblock, because the service manager removes that folder with the
 * server.
 *
 * A file that is not locked was left by a daemon that died. A lock is reliable, while process
 * numbers are reused.
 *
 * Threading: any thread, no shared state. Ownership: as noted at each function. Errors: negative
 * errno with an error message that names the file.
 */
#pragma once

#include <limits.h>

#include "attach/attach.h"

struct state_entry {
	char name[64]; /* file name without extension */
	char kind[8];
	char path[ATTACH_PATH_BYTES]; /* path of the disk */
	char *uri;		      /* bytes that are not text are escaped */
	int32_t number;
	int32_t pid;
	uint64_t bytes;
	bool read_only;
	bool alive;	/* the daemon is running */
	bool made_file; /* fuse: the file at path was created for the attachment */
};

/* Returns the path of the file of an entry that has this ending, such as "json". */
GMB_MUST_CHECK int state_path(
	char out[PATH_MAX], const char *name, const char *ending, struct error *error);

/* Writes an entry and locks it. Returns the descriptor that holds the lock, which the daemon keeps
 * open to the end, or a negative errno. */
GMB_MUST_CHECK int state_write(const struct state_entry *entry, struct error *error);

/* Removes both files of an entry; a missing file is not an error. */
void state_remove(const char *name);

/* state_remove() called by the daemon that wrote the entry; fd holds its lock. If its disk is gone,
 * another daemon may already have created a disk with the same name. The files then belong to that
 * daemon and stay. */
void state_remove_own(const char *name, int fd);

/* Calls visit for each entry, ordered by name, until it returns nonzero, and returns that value. A
 * file that cannot be used is skipped; an invalid one is logged. No folder: no entries. */
typedef int state_visit(const struct state_entry *entry, void *context);
GMB_MUST_CHECK int state_for_each(state_visit *visit, void *context, struct error *error);
