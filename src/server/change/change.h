// SPDX-License-Identifier: Apache-2.0
/*
 * A change of what is served, while clients are connected.
 *
 *   thread  change_create ─▶ change_configure(), or one of add, set, remove ─▶ change_open
 *   main    change_prepare ─▶ change_commit ─▶ change_put
 *
 * Whatever can fail comes before change_commit(): the configuration is compared and checked, disks
 * are opened, and each engine gets its queues. Then every reactor shows and hides exports in one
 * message. Exports that are not named by the change are not touched, nor are their clients.
 *
 * An export of which a key without FIELD_LIVE changes is replaced: its clients finish what
 * they have begun, are told that it is not served any more, and who asks for the name meanwhile
 * waits until they are gone (export_replaces()).
 *
 * Threading: as in the picture; one change at a time. Ownership: counted: the caller and each
 * reactor that has still to commit; the last one frees. Errors: a negative errno and a sentence;
 * then nothing has changed.
 */
#pragma once

#include <jansson.h>

#include "server/change/exports.h"
#include "server/device.h"
#include "server/reactor.h"

#define CHANGE_DRAIN_NS UINT64_C(10000000000) /* for what clients of an export have begun */

struct change;

struct change_options {
	const struct exports *exports;		/* what is served */
	const struct server_config *running;	/* as the server was started */
	const struct server_config *configured; /* as it was read last */
	struct rate_rules *rate_rules;		/* of identities; or NULL */
	struct device *device;
	struct reactor *const *reactors;
	uint32_t reactor_count;
	/* For what clients have begun on exports that go. */
	uint64_t deadline_ns;
	/* For each export that goes, when its disk is closed: on any thread. */
	void (*closed)(void *context);
	void *context;
};

GMB_MUST_CHECK int change_create(
	const struct change_options *options, struct change **change_out, struct error *error);
/* NULL is a no-op. */
void change_put(struct change *change);

/* All that is configured, but for what takes a restart, is as in config from now on, which is only
 * read. Exports that a command has added stay, with the rules of access for exports without rules
 * of their own. */
GMB_MUST_CHECK int change_configure(
	struct change *change, const struct server_config *config, struct error *error);
/* One export. about has a name, a path and an origin. -EEXIST. */
GMB_MUST_CHECK int change_add(
	struct change *change, const struct server_export *about, struct error *error);
/* The snapshot of that name of the disk of an export, which is served as NAME@VIEW to those who may
 * use that export. -EEXIST. keys: those that it had in another process, or NULL. */
GMB_MUST_CHECK int change_add_view(struct change *change, const struct served *parent,
	const char *view, const struct server_export *keys, struct error *error);
/* Keys of one export, see server_export_copy(). -ENOENT. */
GMB_MUST_CHECK int change_set(struct change *change, const char *name,
	const struct server_settings *settings, struct error *error);
/* Its snapshots are not served any more either. */
GMB_MUST_CHECK int change_remove(struct change *change, const char *name, struct error *error);

struct forecast;

/* Says of which exports the rules change, and then, when the forecast has run, what that does. */
GMB_MUST_CHECK int change_foresee(
	const struct change *change, struct forecast *forecast, struct error *error);
void change_tell(struct change *change, const struct forecast *forecast);

/* Opens the disks. Blocks. */
GMB_MUST_CHECK int change_open(struct change *change, struct error *error);
GMB_MUST_CHECK int change_prepare(struct change *change, struct error *error);
/* *exports, which is that of the options, becomes what is served now. */
void change_commit(struct change *change, struct exports *exports);

/* How many exports go. */
uint32_t change_closing(const struct change *change);
/* A line for each difference, for people: "export \"x\": added, /srv/x.img". An array; gives a
 * reference. */
json_t *change_lines(const struct change *change);
