// SPDX-License-Identifier: Apache-2.0
/*
 * The table of served exports, and the opening of their disks.
 *
 * Threading: the main thread changes the table, but not while a change is in progress (change.h),
 * so that the change's thread may read it. served_export_open() on any thread. Ownership: the table
 * owns its entries, each of which has a reference to its export. Errors: an error message that
 * names the export.
 */
#pragma once

#include <jansson.h>

#include "engine/export.h"
#include "server/config/config.h"

struct served_export {
	struct server_export about; /* the export's settings, without access rules */
	struct export *export;	    /* NULL before served_export_open() */
	_Atomic uint64_t size;	    /* size of the disk when last checked */
	bool is_added;		    /* added by a command; not in the configuration */
	/* If this entry serves a snapshot: the export of the disk. The snapshot's name is after the
	 * last '@' of the entry's name. NULL for other exports. Borrowed; this entry's export holds
	 * a reference to it. */
	struct export *parent;
	/* Claims of the replaced process on the disk, or NULL; see struct
	 * store_options. */
	const struct store_claim *inherited;
	uint32_t item; /* private to change.c: 1 + index of the entry's item, or 0 */
};

/* A removed entry whose path may still be in use. */
struct removed_export {
	struct removed_export *next;
	struct export_use *use; /* a reference */
	char path[];
};

struct exports {
	struct served_export **list;
	struct export **exports; /* the exports of the entries in `list`, in the same order */
	uint32_t count;
	/* entries removed by earlier changes; owned, but not freed by exports_free() */
	struct removed_export *removed;
};

struct upgrade_take;

/* Opens all exports of the configuration. take: the process that this one replaces, or NULL.
 * Exports that commands added to that process are left to exports_open_added(). */
GMB_MUST_CHECK int exports_open(const struct server_config *config, const struct upgrade_take *take,
	struct exports *exports, struct error *error);
/* In an upgrade, opens the exports that were added to the old process by commands. Called inside
 * the sandbox, because the old process names the files. It must not be able to make this process
 * open files that its own sandbox forbids. */
GMB_MUST_CHECK int exports_open_added(const struct server_config *config,
	const struct upgrade_take *take, struct exports *exports, struct error *error);
/* Closes all exports. Called when no engine uses them. */
void exports_close(struct exports *exports);
/* The message about an unknown export: a format for its name, escaped. */
#define EXPORTS_ABSENT_TEXT "there is no export \"%s\"; 'gmblock export list' shows the exports"

/* NULL: there is no such export. */
struct served_export *exports_find(const struct exports *exports, const char *name);
/* Like exports_find(), but returns -ENOENT and an error message if there is no such export. */
GMB_MUST_CHECK int exports_need(const struct exports *exports, const char *name,
	struct served_export **served_out, struct error *error);
/* Creates an empty table with room for that many entries. Fails with -ENOMEM. */
GMB_MUST_CHECK int exports_create(uint32_t room, struct exports *exports, struct error *error);
/* Appends the entry, which the table owns from then on. The caller has ensured that there is
 * room. */
void exports_append(struct exports *exports, struct served_export *served);
/* Writes data that disks hold only in memory. Returns false if some data could not be written.
 * Called when no reactor is left. */
bool exports_end(const struct exports *exports);
/* Frees the table without its entries. */
void exports_free(struct exports *exports);
/* Creates a record of an entry that is about to be removed. New entries at the same path wait for
 * it. Fails with -ENOMEM. */
GMB_MUST_CHECK int removed_export_create(const struct served_export *served,
	struct removed_export **removed_out, struct error *error);
/* NULL is a no-op. */
void removed_export_free(struct removed_export *removed);
/* Adds the record, and frees records whose disks are no longer in use. */
void exports_remember(struct exports *exports, struct removed_export *removed);
/* Returns a JSON array of the served exports: settings as given, last known size, connections. */
json_t *exports_json(const struct exports *exports);

/* Creates an entry from entry and settings, see server_export_copy(). The disk is not opened. */
GMB_MUST_CHECK int served_export_create(const struct server_export *entry,
	const struct server_settings *settings, struct served_export **served_out,
	struct error *error);
/* NULL is a no-op. */
void served_export_free(struct served_export *served);
/* Opens the disk. Takes ownership of the access rules, even on failure. */
GMB_MUST_CHECK int served_export_open(
	struct served_export *served, struct access *rules, struct error *error);
/* Checks whether the size of the disk has changed; the sessions of the export are then notified.
 * wanted: the required size, or NULL. Returns 1 with a description in `line` if the disk has grown,
 * otherwise 0. -EINVAL: the disk does not have the wanted size, or has become smaller. May
 * block. */
enum { SERVED_EXPORT_LINE_BYTES = 256 };
GMB_MUST_CHECK int served_export_check_size(struct served_export *served, const uint64_t *wanted,
	char line[SERVED_EXPORT_LINE_BYTES], struct error *error);
/* Checks for disks whose size has changed and logs them, so that enlarging a disk needs no command.
 * Blocks. */
void exports_look_at_sizes(const struct exports *exports);
/* Chooses the export's epoch (struct export) after the store has started. replaces: the entry that
 * had this name before, or NULL. */
void served_export_choose_epoch(struct served_export *served, const struct served_export *replaces);
/* Prefixes the error with the export and its origin: "cannot serve the export \"x\" (file:7):
 * ...". */
void served_export_blame(const struct server_export *entry, struct error *error);
