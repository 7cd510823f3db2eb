// SPDX-License-Identifier: Apache-2.0
/*
 * A change of the served exports while clients are connected.
 *
 *   thread  change_create ─▶ change_configure(), or one of add, set, remove ─▶ change_open
 *   main    change_prepare ─▶ change_commit ─▶ change_put
 *
 * Every step that can fail comes before change_commit(): the configuration is compared and checked,
 * disks are opened, and each engine gets its queues. Then every reactor shows and hides exports in
 * one message. Exports that the change does not name are not touched, and neither are their
 * clients.
 *
 * If the path or a key without FIELD_LIVE changes, the export is replaced: its clients complete
 * requests in flight and are informed that it is no longer served. Meanwhile new clients that
 * request the name wait until the old clients are gone (export_replaces()).
 *
 * Threading: as in the picture; one change at a time. Ownership: reference-counted. The caller and
 * each reactor that has not committed yet hold a reference; dropping the last one frees the change.
 * Errors: a negative errno and an error message; the change then has no effect.
 */
#pragma once

#include <jansson.h>

#include "server/change/exports.h"
#include "server/device.h"
#include "server/reactor.h"

/* Time limit for the requests in flight of clients whose export is removed. */
#define CHANGE_DRAIN_NS UINT64_C(10000000000)

struct change;

struct change_options {
	const struct exports *exports;	     /* the table of served exports */
	const struct server_config *running; /* configuration with which the server was started */
	const struct server_config *configured; /* configuration that was last read */
	struct rate_rules *rate_rules;		/* rates of identities; or NULL */
	struct device *device;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* Time limit for requests in flight on removed exports. */
	uint64_t deadline_ns;
	/* Called on any thread for each removed export when its disk is closed. */
	void (*closed)(void *context);
	void *context;
};

GMB_MUST_CHECK int change_create(
	const struct change_options *options, struct change **change_out, struct error *error);
/* Drops a reference. NULL is a no-op. */
void change_put(struct change *change);

/* Changes everything that differs from config, except for settings that need a restart. config is
 * only read. Exports that a command added are not removed. They get the configuration's access
 * rules for exports without rules of their own; snapshots get the rules of their disk's export. */
GMB_MUST_CHECK int change_configure(
	struct change *change, const struct server_config *config, struct error *error);
/* Adds one export. `about` must have a name, a path and an origin. -EEXIST: the name is in use. */
GMB_MUST_CHECK int change_add(
	struct change *change, const struct server_export *about, struct error *error);
/* Adds the export NAME@SNAPSHOT for that snapshot of parent's disk, with the access rules of
 * parent. keys: the settings that the snapshot had in the process that this one replaces, or NULL.
 * -EEXIST: the name is in use. */
GMB_MUST_CHECK int change_add_snapshot(struct change *change, const struct served_export *parent,
	const char *snapshot, const struct server_export *keys, struct error *error);
/* Sets keys of one export, see server_export_copy(). -ENOENT: there is no such export. */
GMB_MUST_CHECK int change_set(struct change *change, const char *name,
	const struct server_settings *settings, struct error *error);
/* Removes an export and the exports of its snapshots. */
GMB_MUST_CHECK int change_remove(struct change *change, const char *name, struct error *error);

struct forecast;

/* change_foresee() adds the exports whose access rules change to the forecast, which predicts the
 * effect on connected clients. After the forecast has run, change_tell() adds that effect to the
 * lines of change_lines(). */
GMB_MUST_CHECK int change_foresee(
	const struct change *change, struct forecast *forecast, struct error *error);
void change_tell(struct change *change, const struct forecast *forecast);

/* Opens the disks. Blocks. */
GMB_MUST_CHECK int change_open(struct change *change, struct error *error);
GMB_MUST_CHECK int change_prepare(struct change *change, struct error *error);
/* Puts the change into effect. *exports, the table named in the change's options, is replaced by
 * the new table. */
void change_commit(struct change *change, struct exports *exports);

/* Returns the number of exports that the change removes or replaces; 0 before change_open(). */
uint32_t change_closing(const struct change *change);
/* Returns a JSON array with one line of text for each difference, such as "export \"x\": added,
 * /srv/x.img". The caller owns the reference. */
json_t *change_lines(const struct change *change);
