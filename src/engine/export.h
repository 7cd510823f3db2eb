// SPDX-License-Identifier: Apache-2.0
/*
 * An export: one disk as clients see it, whatever protocol they speak.
 *
 * What: name, store, limits and rights. One object per process; every engine that serves it has its
 * own queue on the store (struct engine_export in engine.h).
 * Threading: everything but the description, read_only, the rules, the limits, the counters, the
 * takeover group, the late writes and the references is constant after export_create(). References
 * may be taken and dropped on any thread. Ownership: references are counted; the last one closes
 * the store. Errors: a negative errno and a sentence.
 */
#pragma once

#include <stdatomic.h>

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"
#include "path/late.h"
#include "store/store.h"

struct engine;

struct export_wait;

/* How many engines still use an export; outlives it. An export that replaces others is used as long
 * as they are: who replaces it in turn waits for all. */
struct export_use {
	_Atomic uint32_t references;
	_Atomic uint32_t engines;	 /* and one for each that it replaces, while in use */
	_Atomic uint32_t waits_for;	 /* others, of those that it replaces */
	struct export_wait *replaced_by; /* the first of them, each with a reference */
};

struct export
{
	char *name;		     /* UTF-8 without a terminator; "" is the default export */
	uint32_t name_bytes;	     /* 0 to EXPORT_NAME_BYTES_MAX */
	_Atomic(char *) description; /* or NULL; see export_set_description() */
	struct store *store;
	struct export *parent;		  /* see struct export_options; a reference, or NULL */
	uint32_t overlap;		  /* of split reads and writes: see struct path_export */
	int device_error;		  /* the same; set before it is added to an engine */
	_Atomic bool read_only;		  /* as set, or because the store cannot be written */
	struct access_slot *access;	  /* holds its rules, or NULL; see engine_rights() */
	_Atomic uint32_t connections_max; /* 0 = no limit of its own */
	_Atomic uint32_t connections;	  /* sessions in transmission now, in all engines */
	/* Changes whenever writes that were answered and not flushed may have been lost: for a disk
	 * at each boot, for memory at each start of the server, and when the store says so. 0 =
	 * unknown. */
	uint64_t epoch;
	bool is_volatile; /* a new epoch has lost what was flushed, too */
	struct takeover takeover;
	struct late_writes late;
	/* After a change of these two each engine needs engine_export_limits_changed(). */
	struct rate rate;
	/* Payload memory that its sessions may hold, in all engines together (struct path_quota); 0
	 * = no limit. */
	_Atomic uint64_t memory_max;

	/* Longest write with STORE_FUA that its store gets whole: path_atomic_bytes() of the engine
	 * that had the export first, so that all promise the same. EXPORT_ATOMIC_UNKNOWN: none has
	 * had it yet. */
	_Atomic uint32_t atomic_bytes;

	struct store_start start; /* see export_start() */

	/* Called on any thread when the store is closed, before the export is freed. Set by who
	 * owns it before the last reference can go; NULL: nobody wants to know. */
	void (*closed)(void *context);
	void *closed_context;

	/* Private. */
	struct export_use *use;
	struct mem_region budget; /* of the store; base NULL: none */
	_Atomic uint32_t references;
	struct engine *closing_engine;
	struct ring_op close_op;
};

enum { EXPORT_NAME_BYTES_MAX = 4096 };
#define EXPORT_ATOMIC_UNKNOWN UINT32_MAX

struct export_options {
	const char *name; /* copied */
	uint32_t name_bytes;
	const char *description; /* copied; or NULL */
	struct store *store;	 /* taken, also on failure */
	struct export *parent;	 /* its store must not be closed before this one's; or NULL */
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
/* Any thread. False changes nothing where the store cannot be written. Sessions that have chosen
 * the export keep their rights until each engine that serves it calls engine_export_rights(). */
void export_set_read_only(struct export *export, bool read_only);
/* Takes the rules; NULL: there are none any more. Any thread; otherwise the same. */
void export_set_access(struct export *export, struct access *access);
/* Takes the text, from malloc() or NULL, and returns the one before, which may be freed when each
 * engine has ended the turn that it is in: sessions read it within a turn only. */
GMB_MUST_CHECK char *export_set_description(struct export *export, char *description);
static inline const char *export_description(const struct export *export)
{
	/* Acquire: the text is there. */
	return atomic_load_explicit(&export->description, memory_order_acquire);
}
/* Nobody gets the new export, which no engine serves yet, before all engines are done with the old
 * one, which they serve, or do not any more, and with what that has replaced: what is under way
 * there must not land after what comes later. An export may replace several. One thread at a time.
 * -ENOMEM. */
GMB_MUST_CHECK int export_replaces(
	struct export *export, struct export_use *old, struct error *error);
/* Adds a reference to the use of an export, which outlives the export then. */
struct export_use *export_use_get(struct export *export);
/* NULL is a no-op. */
void export_use_put(struct export_use *use);
/* No engine uses the export any more, nor what it replaces. Of one that was served. */
bool export_use_is_over(const struct export_use *use);
void export_get(struct export *export);
/* The last call closes the store, which may block. No engine may use it then. NULL is a no-op. */
void export_put(struct export *export);

/* Gives the store the memory that it wants and starts it on this engine's ring, on its thread,
 * once: export->start.done (set before, like nothing else of it) is called on the ring when it has
 * ended. Only for store_needs_start(). A negative errno with export->start.error: it is not called.
 */
GMB_MUST_CHECK int export_start(struct export *export, struct engine *engine);

/* Private to src/engine. */
/* export_put() without blocking, on the thread of the engine's ring. */
void export_put_async(struct export *export, struct engine *engine);
/* Whether the export that it replaces is still in use. */
bool export_waits(const struct export *export);
