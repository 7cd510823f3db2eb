// SPDX-License-Identifier: Apache-2.0
/*
 * The table of served exports, and the opening of their disks.
 *
 * Threading: the main thread changes the table, but not while a change is in progress (change.h),
 * so that the change's thread may read it. served_export_open() on any thread. Ownership: the table
 * owns its entries, each of which has a reference to its export. Errors: a sentence that names the
 * export.
 */
#pragma once

#include <jansson.h>

#include "engine/export.h"
#include "server/config/config.h"

struct served_export {
	struct server_export about; /* as it is served, without access rules */
	struct export *export;	    /* NULL before served_export_open() */
	_Atomic uint64_t size;	    /* of its disk, when last checked */
	bool is_added;		    /* by a command; the configuration does not contain it */
	/* The export whose disk this one is a snapshot of, with the snapshot's name after the last
	 * '@'; or NULL. Borrowed, because this entry's export has a reference to it. */
	struct export *parent;
	/* See struct store_options; used by served_export_open(). */
	const struct store_claim *inherited;
	uint32_t item; /* private to change.c: 1 + index of its item, or 0 */
};

/* A removed entry whose path may still be in use. */
struct removed_export {
	struct removed_export *next;
	struct export_use *use; /* a reference */
	char path[];
};

struct exports {
	struct served_export **list;
	/* The same entries, for read-only users. */
	struct export **exports;
	const char **paths;
	uint32_t count;
	struct removed_export *removed; /* owned; exports_free() does not free it */
};

struct upgrade_take;

/* Opens all exports of the configuration, except those that commands added to the process that is
 * taken over. take: that process, or NULL. */
GMB_MUST_CHECK int exports_open(const struct server_config *config, const struct upgrade_take *take,
	struct exports *exports, struct error *error);
/* Opens the exports that commands added there. Called in the sandbox, because the other process
 * names the files and must not make this one open files that it could not open itself. */
GMB_MUST_CHECK int exports_open_added(const struct server_config *config,
	const struct upgrade_take *take, struct exports *exports, struct error *error);
/* Called when no engine uses the exports. */
void exports_close(struct exports *exports);
/* Creates an empty table with room for that many entries. -ENOMEM. */
GMB_MUST_CHECK int exports_create(uint32_t room, struct exports *exports, struct error *error);
/* Takes the entry. The caller has ensured that there is room. */
void exports_append(struct exports *exports, struct served_export *served);
/* Writes data that disks hold only in memory. Returns false if some data could not be written.
 * Called when no reactor is left. */
bool exports_end(const struct exports *exports);
/* Frees the table without its entries. */
void exports_free(struct exports *exports);
/* Creates a record of an entry that is about to be removed. New entries at the same path wait for
 * it. -ENOMEM. */
GMB_MUST_CHECK int removed_export_create(const struct served_export *served,
	struct removed_export **removed_out, struct error *error);
/* NULL is a no-op. */
void removed_export_free(struct removed_export *removed);
/* Adds the record, and frees records whose disks are no longer in use. */
void exports_remember(struct exports *exports, struct removed_export *removed);
/* Returns the served exports as requested, with their current limits, as an array. */
json_t *exports_json(const struct exports *exports);

/* Creates an entry from entry and settings, see server_export_copy(). The disk is not opened. */
GMB_MUST_CHECK int served_export_create(const struct server_export *entry,
	const struct server_settings *settings, struct served_export **served_out,
	struct error *error);
/* NULL is a no-op. */
void served_export_free(struct served_export *served);
/* Opens the disk. Takes the access rules, also on failure. */
GMB_MUST_CHECK int served_export_open(
	struct served_export *served, struct access *rules, struct error *error);
/* Checks whether the disk's size has changed; its sessions are notified of the new size. wanted:
 * the required size, or NULL. Returns 1 if it has grown, with line set, or 0. -EINVAL: it does not
 * have the wanted size, or has become smaller. May block. */
enum { SERVED_EXPORT_LINE_BYTES = 256 };
GMB_MUST_CHECK int served_export_check_size(struct served_export *served, const uint64_t *wanted,
	char line[SERVED_EXPORT_LINE_BYTES], struct error *error);
/* Chooses the epoch after the store has started. replaces: the entry that had this name before, or
 * NULL. */
void served_export_choose_epoch(struct served_export *served, const struct served_export *replaces);
/* Completes a sentence: "cannot serve the export \"x\" (file:7): ...". */
void served_export_blame(const struct server_export *entry, struct error *error);
