// SPDX-License-Identifier: Apache-2.0
/*
 * The table of what the server serves, and how one disk of it is opened.
 *
 * Threading: the main thread changes the table; while a change is under way (change.h) nobody does,
 * and its thread may read it. served_open() on any thread. Ownership: the table owns its entries,
 * each of which has a reference to its export. Errors: a sentence that names the export.
 */
#pragma once

#include <jansson.h>

#include "engine/export.h"
#include "server/config/config.h"

struct served {
	struct server_export about; /* as it is served, without its rules */
	struct export *export;	    /* NULL before served_open() */
	_Atomic uint64_t size;	    /* of its disk, when it was looked at last */
	bool is_added;		    /* by a command: the configuration does not know it */
	/* It is a snapshot of that one's disk, whose name is behind the last '@'; or NULL.
	 * Borrowed: this one's export has a reference. */
	struct export *parent;
	/* See struct store_options; used by served_open(). */
	const struct store_claim *passed;
	uint32_t item; /* private to change.c: 1 and its place there, or 0 */
};

/* What was served at a path, and may be in use still. */
struct gone {
	struct gone *next;
	struct export_use *use; /* a reference */
	char path[];
};

struct exports {
	struct served **list;
	/* The same, for those who only look. */
	struct export **exports;
	const char **paths;
	uint32_t count;
	struct gone *gone; /* owned, but for exports_free() */
};

struct upgrade_take;

/* All exports of the configuration but those that were added to the process that is taken over.
 * take: that process, or NULL. */
GMB_MUST_CHECK int exports_open(const struct server_config *config, const struct upgrade_take *take,
	struct exports *exports, struct error *error);
/* Those, in the sandbox: that process names the files, and may open nothing else itself. */
GMB_MUST_CHECK int exports_open_added(const struct server_config *config,
	const struct upgrade_take *take, struct exports *exports, struct error *error);
/* No engine uses them any more. */
void exports_close(struct exports *exports);
/* Room for so many entries, none of which is there yet. -ENOMEM. */
GMB_MUST_CHECK int exports_create(uint32_t room, struct exports *exports, struct error *error);
/* Takes the entry; there is room. */
void exports_append(struct exports *exports, struct served *served);
/* Writes what disks have in memory only. False: changes of one stay there. No reactor is left. */
bool exports_end(const struct exports *exports);
/* Frees the table without its entries. */
void exports_free(struct exports *exports);
/* An entry about to be removed, which its successors at the same path will wait for. -ENOMEM. */
GMB_MUST_CHECK int gone_create(
	const struct served *served, struct gone **gone_out, struct error *error);
/* NULL is a no-op. */
void gone_free(struct gone *gone);
/* Remembers it, and forgets those whose use is over. */
void exports_remember(struct exports *exports, struct gone *gone);
/* What is served, as it was asked for, with limits as they are now: an array. */
json_t *exports_json(const struct exports *exports);

/* An entry of its own with the settings of entry, see server_export_copy(). Not opened. */
GMB_MUST_CHECK int served_create(const struct server_export *entry,
	const struct server_settings *settings, struct served **served_out, struct error *error);
/* NULL is a no-op. */
void served_free(struct served *served);
/* Opens the disk. Takes the rules of access, also on failure. */
GMB_MUST_CHECK int served_open(struct served *served, struct access *rules, struct error *error);
/* Looks whether the disk has another size now; if so, its sessions are told. wanted: NULL, or the
 * size that it has to have. 1: it has, and line says so; 0: it has not. -EINVAL: it has not the
 * wanted size, or has become smaller. May block. */
enum { SERVED_LINE_BYTES = 256 };
GMB_MUST_CHECK int served_look(struct served *served, const uint64_t *wanted,
	char line[SERVED_LINE_BYTES], struct error *error);
/* Chooses the epoch, once the store has started. replaces: what had this name before, or NULL. */
void served_choose_epoch(struct served *served, const struct served *replaces);
/* Completes a sentence: "cannot serve the export \"x\" (file:7): ...". */
void served_blame(const struct server_export *entry, struct error *error);
