// SPDX-License-Identifier: Apache-2.0
/*
 * The state folder: one file for each attachment, by which the other commands find it, and beside
 * it the control socket of its daemon (control/control.h): commands "status" and "detach".
 *
 *   /run/gmblock-attach/ublkb0.json    owner, URI, device; locked while the daemon runs
 *   /run/gmblock-attach/ublkb0.sock
 *
 * The folder is GMBLOCK_ATTACH_DIR if that is set, below $XDG_RUNTIME_DIR for users other than
 * root. It is not inside /run/gmblock, which the service manager removes with the server.
 *
 * A file that is not locked was left by a daemon that died: the lock tells without a guess about
 * process numbers that are used again.
 *
 * Threading: any thread, no shared state. Ownership: as said at each function. Errors: negative
 * errno with a sentence that names the file.
 */
#pragma once

#include <limits.h>

#include "attach/attach.h"

struct state_entry {
	char name[64]; /* of the file, without its ending */
	char kind[8];
	char path[ATTACH_PATH_BYTES]; /* of the disk */
	char *uri;		      /* escaped where it was not text */
	int32_t number;
	int32_t pid;
	uint64_t bytes;
	bool read_only;
	bool alive;	/* the daemon is */
	bool made_file; /* fuse: the file at path was made for the attachment */
};

/* The folder's path. -ENAMETOOLONG; -ENOENT when no place for it is known. */
GMB_MUST_CHECK int state_folder(char out[PATH_MAX], struct error *error);

/* The path of a file of an entry. */
GMB_MUST_CHECK int state_path(
	char out[PATH_MAX], const char *name, const char *ending, struct error *error);

/* Writes an entry, locked by the returned descriptor, which the daemon keeps to the end.
 * Returns it, or a negative errno. */
GMB_MUST_CHECK int state_write(const struct state_entry *entry, struct error *error);

/* Removes both files of an entry; those that are not there are no error. */
void state_remove(const char *name);

/* The same by the daemon that wrote the entry, as fd. When its disk is gone, another one may have
 * made a disk of the same name already: the files are that one's then, and stay. */
void state_remove_own(const char *name, int fd);

/* Calls visit for every entry, in the order of the names, until it returns nonzero; returns that. A
 * file that cannot be read is logged and passed over. No folder: no entries. */
typedef int state_visit(const struct state_entry *entry, void *context);
GMB_MUST_CHECK int state_for_each(state_visit *visit, void *context, struct error *error);
