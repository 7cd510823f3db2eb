// SPDX-License-Identifier: Apache-2.0
/*
 * An export: a disk that clients of all protocols can use.
 *
 * An export has a name, a store, limits and access rules. All engines of the process share the
 * object. Each engine that serves the export has its own queue on the store (struct engine_export
 * in engine.h).
 *
 * Threading: after export_create(), everything is constant except the description, read_only, the
 * rules, the limits, the counters, the takeover group, the late writes and the references.
 * References can be taken and dropped on any thread. Ownership: references are counted; dropping
 * the last one closes the store. Errors: a negative errno and an error message.
 */
#pragma once

#include <stdatomic.h>

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"
#include "path/late_writes.h"
#include "store/store.h"

struct engine;
struct lease;

struct export_wait;

/* Counts how many engines still use an export. Can exist longer than the export. An export that
 * replaces others counts as in use while one of the others is in use. So a later export that
 * replaces it waits for all engines. */
struct export_use {
	_Atomic uint32_t references;
	_Atomic uint32_t engines;   /* engines that use the export, plus waits_for */
	_Atomic uint32_t waits_for; /* number of exports in use that this export replaces */
	/* Exports that replace this one; the list has a reference to each. */
	struct export_wait *replaced_by;
};

struct export
{
	char *name;		     /* UTF-8, not terminated; "": the default export */
	uint32_t name_bytes;	     /* 0 to EXPORT_NAME_BYTES_MAX */
	_Atomic(char *) description; /* can be NULL; see export_set_description() */
	struct store *store;
	/* another export, which must be closed after this export, see struct export_options; a
	 * reference, or NULL */
	struct export *parent;
	uint32_t overlap; /* part size of reads and writes, see struct path_export */
	/* see struct path_export; set before the export is added to an engine */
	int device_error;
	bool one_writer;	    /* only the holder of the lease may write; see lease.h */
	_Atomic bool read_only;	    /* true if configured so, or if the store cannot be written */
	struct access_slot *access; /* access rules, or NULL; see engine_rights() */
	_Atomic uint32_t connections_max; /* 0 = no limit */
	/* number of sessions that have chosen this export, in all engines */
	_Atomic uint32_t connections;
	/* A number that changes if acknowledged writes that were not flushed might have been lost:
	 * for a disk at each boot, for memory at each start of the server, and when the store
	 * reports it. 0 = unknown. */
	uint64_t epoch;
	bool is_volatile; /* true: if the epoch changes, even flushed data may be lost */
	struct takeover takeover;
	struct late_writes late;
	/* After a change of rate or memory_max, engine_export_limits_changed() must be called on
	 * each engine. */
	struct rate rate;
	/* Maximum payload memory of the export's sessions, in all engines together (struct
	 * path_quota); 0 = no limit. */
	_Atomic uint64_t memory_max;

	/* Maximum length of an atomic write: path_atomic_bytes() of the first engine that has
	 * served the export, so that all engines announce the same value. EXPORT_ATOMIC_UNKNOWN:
	 * not served yet. */
	_Atomic uint32_t atomic_bytes;

	struct store_start start; /* see export_start() */

	/* Called on any thread after the store was closed and the export freed. Set by the owner
	 * before the last reference can be dropped; can be NULL. */
	void (*closed)(void *context);
	void *closed_context;

	/* Private members. */
	_Atomic(struct lease *) lease; /* set when the first engine serves the export; or NULL */
	struct export_use *use;
	struct mem_region budget; /* memory for the store's start; base NULL: none */
	_Atomic uint32_t references;
	struct engine *closing_engine;
	struct ring_op close_op;
};

enum { EXPORT_NAME_BYTES_MAX = 4096 };
#define EXPORT_ATOMIC_UNKNOWN UINT32_MAX

struct export_options {
	const char *name; /* copied */
	uint32_t name_bytes;
	const char *description; /* copied; can be NULL */
	struct store *store;	 /* owned by the export from then on; closed on failure */
	/* another export, whose store must be closed after the store of this export, or NULL; for a
	 * snapshot: the export of its disk */
	struct export *parent;
	uint32_t overlap;
	bool one_writer;
	bool read_only;
	/* owned by the export from then on; released on failure; NULL: no rules */
	struct access *access;
	uint32_t connections_max;
	struct rate_limits rate;
	uint64_t memory_max; /* 0 = no limit */
	uint64_t epoch;
	bool is_volatile;
};

/* Creates an export with one reference, which the caller owns. Fails with -ENOMEM. */
GMB_MUST_CHECK int export_create(
	const struct export_options *options, struct export **export_out, struct error *error);
/* Makes the export read-only or writable. If the store cannot be written, the export stays
 * read-only. Sessions that have chosen the export keep their rights until engine_export_rights()
 * was called on each engine. Any thread. */
void export_set_read_only(struct export *export, bool read_only);
/* Replaces the rules, which the export owns from then on; NULL: no rules. Sessions keep their
 * rights as in export_set_read_only(). Any thread. */
void export_set_access(struct export *export, struct access *access);
/* Sets the text, from malloc() or NULL, which the export owns from then on. Returns the previous
 * one, which the caller frees after each engine has ended its current turn: sessions use the text
 * only during a turn. */
GMB_MUST_CHECK char *export_set_description(struct export *export, char *description);
static inline const char *export_description(const struct export *export)
{
	/* Acquire order: pairs with the exchange that published the text. */
	return atomic_load_explicit(&export->description, memory_order_acquire);
}
/*
 * Makes sessions of the new export wait until no engine uses the old export or any export that the
 * old one replaces. Otherwise operations of the new export could overtake operations that the old
 * exports still have in flight. Called before any engine serves the new export. An export can
 * replace several. One thread at a time. Fails with -ENOMEM.
 */
GMB_MUST_CHECK int export_replaces(
	struct export *export, struct export_use *old, struct error *error);
/* Returns the use counter of an export, with a reference. The counter can exist longer than the
 * export. */
struct export_use *export_use_get(struct export *export);
/* Drops a reference. NULL is a no-op. */
void export_use_put(struct export_use *use);
/* Returns true if no engine uses the export or any export that it replaces. The export must have
 * been served. */
bool export_use_is_over(const struct export_use *use);
void export_get(struct export *export);
/* Drops a reference. Dropping the last one closes the store, which can block; no engine may use the
 * export then. NULL is a no-op. */
void export_put(struct export *export);

/*
 * Allocates the memory that the store needs, and starts the store on this engine's ring. Called
 * once, on the ring's thread, and only if store_needs_start(). The caller sets only
 * export->start.done, which is called on the ring when the start has ended. If this function
 * returns a negative errno, done is not called, and export->start.error is set.
 */
GMB_MUST_CHECK int export_start(struct export *export, struct engine *engine);

/* For use in src/engine only. */
/* Like export_put(), without blocking. Called on the thread of the engine's ring. */
void export_put_async(struct export *export, struct engine *engine);
/* Returns whether an export that this one replaces is still in use. */
bool export_waits(const struct export *export);
