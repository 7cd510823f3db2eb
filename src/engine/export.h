// SPDX-License-Identifier: Apache-2.0
/*
 * An export: one disk as clients see it, whatever protocol they use.
 *
 * It has a name, a store, limits and rights. There is one object per process. Every engine that
 * serves it has its own queue on the store (struct engine_export in engine.h).
 *
 * Threading: after export_create(), everything is constant except the description, read_only, the
 * rules, the limits, the counters, the takeover group, the late writes and the references.
 * References can be taken and dropped on any thread. Ownership: references are counted; dropping
 * the last one closes the store. Errors: a negative errno and a sentence.
 */
#pragma once

#include <stdatomic.h>

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"
#include "path/late_writes.h"
#include "store/store.h"

struct engine;

struct export_wait;

/* Number of engines that still use an export; it outlives the export. An export that replaces
 * others stays in use as long as they do, so a later export that replaces it waits for all of
 * them. */
struct export_use {
	_Atomic uint32_t references;
	_Atomic uint32_t engines;   /* plus one for each export it replaces that is in use */
	_Atomic uint32_t waits_for; /* number of replaced exports that are in use */
	/* List of exports that replace it; each holds a reference. */
	struct export_wait *replaced_by;
};

struct export
{
	char *name;		     /* UTF-8 without a terminator; "": the default export */
	uint32_t name_bytes;	     /* 0 to EXPORT_NAME_BYTES_MAX */
	_Atomic(char *) description; /* can be NULL; see export_set_description() */
	struct store *store;
	struct export *parent;	/* see struct export_options; a reference, or NULL */
	uint32_t overlap;	/* of split reads and writes, see struct path_export */
	int device_error;	/* see struct path_export; set before it is added to an engine */
	_Atomic bool read_only; /* as configured, or because the store cannot be written */
	struct access_slot *access;	  /* holds its rules, or NULL; see engine_rights() */
	_Atomic uint32_t connections_max; /* 0 = no limit of its own */
	_Atomic uint32_t connections;	  /* sessions in transmission, in all engines */
	/* Changes whenever answered but unflushed writes might have been lost: for a disk at each
	 * boot, for memory at each server start, and when the store reports it. 0 = unknown. */
	uint64_t epoch;
	bool is_volatile; /* a new epoch has lost flushed data, too */
	struct takeover takeover;
	struct late_writes late;
	/* After a change of the next two, each engine needs engine_export_limits_changed(). */
	struct rate rate;
	/* Limit of the payload memory of its sessions, in all engines together (struct
	 * path_quota); 0 = no limit. */
	_Atomic uint64_t memory_max;

	/* Longest write with STORE_FUA that reaches its store as one write: path_atomic_bytes() of
	 * the first engine that served the export, so that all engines promise the same.
	 * EXPORT_ATOMIC_UNKNOWN: not served yet. */
	_Atomic uint32_t atomic_bytes;

	struct store_start start; /* see export_start() */

	/* Called on any thread after the store is closed and the export is freed. The owner sets
	 * it before the last reference can be dropped. NULL: not called. */
	void (*closed)(void *context);
	void *closed_context;

	/* Private. */
	struct export_use *use;
	struct mem_region budget; /* memory of the store; base NULL: none */
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
	struct store *store;	 /* taken, also on failure */
	struct export *parent; /* NULL, or the export whose store must be closed after this one's */
	uint32_t overlap;
	bool read_only;
	struct access *access; /* taken, also on failure; NULL: no rules */
	uint32_t connections_max;
	struct rate_limits rate;
	uint64_t memory_max; /* 0 = no limit */
	uint64_t epoch;
	bool is_volatile;
};

/* Gives the first reference. -ENOMEM. */
GMB_MUST_CHECK int export_create(
	const struct export_options *options, struct export **export_out, struct error *error);
/* Can be called on any thread. False has no effect if the store cannot be written. Sessions that
 * have chosen the export keep their rights until each engine that serves it calls
 * engine_export_rights(). */
void export_set_read_only(struct export *export, bool read_only);
/* Takes the rules; NULL: no rules. Can be called on any thread. Sessions keep their rights as with
 * export_set_read_only(). */
void export_set_access(struct export *export, struct access *access);
/* Takes the text, from malloc() or NULL, and returns the previous one. It can be freed once each
 * engine has ended its current turn, because sessions use the text only within a turn. */
GMB_MUST_CHECK char *export_set_description(struct export *export, char *description);
static inline const char *export_description(const struct export *export)
{
	/* Acquire: pairs with the exchange that published the text. */
	return atomic_load_explicit(&export->description, memory_order_acquire);
}
/*
 * Blocks sessions from the new export until no engine uses the old one, nor any export that the
 * old one replaced, because operations in flight there must not overtake later ones. No engine
 * serves the new export yet. The old one is served, or was. An export can replace several. One
 * thread at a time. -ENOMEM.
 */
GMB_MUST_CHECK int export_replaces(
	struct export *export, struct export_use *old, struct error *error);
/* Adds a reference to the use of an export. It can outlive the export. */
struct export_use *export_use_get(struct export *export);
/* NULL is a no-op. */
void export_use_put(struct export_use *use);
/* Returns whether neither the export, which was served, nor any export that it replaces is still
 * used by an engine. */
bool export_use_is_over(const struct export_use *use);
void export_get(struct export *export);
/* Dropping the last reference closes the store, which can block. No engine uses it then. NULL is a
 * no-op. */
void export_put(struct export *export);

/*
 * Gives the store the memory it needs, and starts it on this engine's ring. Called once, on the
 * ring's thread, and only for store_needs_start(). The caller has set only export->start.done,
 * which is called on the ring when the start has ended. On a negative errno it is not called, and
 * export->start.error is set.
 */
GMB_MUST_CHECK int export_start(struct export *export, struct engine *engine);

/* Private to src/engine. */
/* As export_put(), without blocking. Called on the thread of the engine's ring. */
void export_put_async(struct export *export, struct engine *engine);
/* Returns whether an export that this one replaces is still in use. */
bool export_waits(const struct export *export);
