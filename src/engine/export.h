// SPDX-License-Identifier: Apache-2.0
/*
 * An export: one disk as clients see it, whatever protocol they speak.
 *
 * What: name, store, limits and rights. One object per process; every engine that serves it has its
 * own queue on the store (struct engine_export in engine.h).
 * Threading: everything but read_only, the rules, the rate, the memory, the counters, the takeover
 * group, the late writes and the references is constant after export_create(). References may be
 * taken and dropped on any thread. Ownership: references are counted; the last one closes the
 * store. Errors: a negative errno and a sentence.
 */
#pragma once

#include <stdatomic.h>

#include "engine/access.h"
#include "engine/rate.h"
#include "engine/takeover.h"
#include "path/late.h"
#include "store/store.h"

struct engine;

struct export
{
	char *name;	     /* UTF-8 without a terminator; "" is the default export */
	uint32_t name_bytes; /* 0 to EXPORT_NAME_BYTES_MAX */
	char *description;   /* or NULL */
	struct store *store;
	uint32_t overlap;	      /* of split reads and writes: see struct path_export */
	int device_error;	      /* the same; set before it is added to an engine */
	_Atomic bool read_only;	      /* as set, or because the store cannot be written */
	struct access_slot *access;   /* holds its rules, or NULL; see engine_rights() */
	uint32_t connections_max;     /* 0 = no limit of its own */
	_Atomic uint32_t connections; /* sessions in transmission now, in all engines */
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

	struct store_start start; /* see export_start() */

	/* Private. */
	struct mem_region budget; /* of the store; base NULL: none */
	_Atomic uint32_t references;
	struct engine *closing_engine;
	struct ring_op close_op;
};

enum { EXPORT_NAME_BYTES_MAX = 4096 };

struct export_options {
	const char *name; /* copied */
	uint32_t name_bytes;
	const char *description; /* copied; or NULL */
	struct store *store;	 /* taken, also on failure */
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
void export_get(struct export *export);
/* The last call closes the store, which may block. No engine may use it then. NULL is a no-op. */
void export_put(struct export *export);

/* Gives the store the memory that it wants and starts it on this engine's ring, on its thread,
 * once: export->start.done (set before, like nothing else of it) is called on the ring when it has
 * ended. Only for store_needs_start(). A negative errno with export->start.error: it is not called.
 */
GMB_MUST_CHECK int export_start(struct export *export, struct engine *engine);

/* Why no read of the export is sent from the page cache; NULL: nothing prevents it. Static text:
 * see store_page_cache_refusal(), and "overlap" (reads are cut into parts of a fixed size). */
const char *export_page_cache_refusal(const struct export *export);

/* Private to src/engine: the same without blocking, on the thread of the engine's ring. */
void export_put_async(struct export *export, struct engine *engine);
