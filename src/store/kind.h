// SPDX-License-Identifier: Apache-2.0
/*
 * Interface for implementing a kind of store or a filter. Each is one file that defines a struct
 * store_kind; the program's main() registers it (store_register()).
 *
 *   store_submit ─▶ filter.submit ─▶ store_forward ─▶ inner.submit
 *   done ◀─ store_finish ◀─ filter.inner_done ◀─ store_finish ◀─┘
 *
 * A filter is a store whose inner is set. store.c handles its size, closing and inner queue. Its
 * info is the inner store's info unless its open() changes it. The smallest filter is delay.c.
 *
 * Each part contains STORE_SCRATCH_BYTES for private data of the layers. Each layer gets a slice of
 * scratch_bytes, not zeroed. A filter finds its slice with store_scratch(); the slice of the kind
 * is at the beginning.
 *
 * Threading: open and close run on any thread, as for store_open(); the rest runs on the queue's
 * ring unless stated otherwise. Ownership: store.c allocates and frees stores and queues. Errors:
 * negative errno and an error message.
 */
#pragma once

#include "store/store.h"

struct gc_rule;

struct store_ops {
	const char *name;
	/* size of the kind's queue struct; 0: it uses a plain struct store_queue */
	size_t queue_bytes;
	/* size of the layer's slice of each part's scratch, a multiple of 8 */
	uint32_t scratch_bytes;
	/* Optional: releases what open has acquired. The inner store is still open. */
	void (*close)(struct store *store);
	/* Optional: initializes a queue, which is zeroed except for its first member, a struct
	 * store_queue whose inner queue exists. */
	int (*queue_init)(struct store_queue *queue, struct error *error);
	/* Optional: releases what queue_init has acquired. No part is in flight. */
	void (*queue_fini)(struct store_queue *queue);
	void (*submit)(struct store_queue *queue, struct store_part *part);
	/* Filters, optional: called when the layer below has finished a forwarded part. Must end in
	 * store_finish(). */
	store_done_fn *inner_done;
	/* Optional: returns false, or sets part->memory and returns true. store_page_cache_ref()
	 * does the rest. */
	bool (*page_cache_ref)(struct store_queue *queue, struct store_part *part);
	/* Optional, see store_page_cache_refusal(). Any thread. */
	const char *(*page_cache_refusal)(struct store *store);
	/* Returns the current size in bytes, which it queries from the operating system each time.
	 * Any thread. Optional for filters. */
	uint64_t (*size)(struct store *store);
	/* Optional: describes the counters in the queue struct, or, with has_owner, in the store
	 * struct. */
	const struct counter_table *counters;
	/* Kinds, optional: see store_start(). Runs on start->ring. The kind must call
	 * store_started() once, later, not from inside start. Until then, the kind reports the
	 * progress of the start with store_start_progress() and regularly checks
	 * start->cancelled. */
	void (*start)(struct store *store, struct store_start *start);
	/* For kinds with start, and for kinds of snapshots: all parts arrive on the ring of start,
	 * in a queue without private state (queue_bytes is 0). The memory of parts from other rings
	 * does not have MEM_FIXED. */
	bool has_owner;
	/* Filters: copies between stores (STORE_COPY) do not pass through the filter, but are made
	 * by the layer below. */
	bool passes_copies;
	/* Kinds, optional: see store_copy_ways(). Both stores are of this kind. Any thread. */
	uint32_t (*copy_ways)(struct store *target, struct store *source, uint64_t *clone_align);
	/* Optional: see store_barrier(). Called for the outermost layer that has this function. Any
	 * thread. */
	enum store_barrier (*barrier)(struct store *store, bool look);
	/* Optional: see store_handover(), which calls this function of each layer. A layer without
	 * this function cannot be handed over, because it has state that another process would not
	 * find on the disk. */
	const char *(*handover)(struct store *store, struct store_claim *claim_out);
	/* Optional: see store_place(). Without this function, a filter's bytes have the location
	 * that the layer below reports. */
	bool (*place)(struct store *store, struct store_place *place_out);
	/* See store_needs_quiesce(). The kind must support STORE_QUIESCE, and its close must not
	 * change the disk if is_let_go is set. */
	bool needs_quiesce;
	/* Optional: see store_end(); not called if is_let_go. */
	uint64_t (*end)(struct store *store);
	/* Optional, for kinds that set needs_quiesce and have no start: see store_take(). */
	int (*take)(struct store *store, struct error *error);
	/* Only for kinds with has_owner, which set all three members or leave all three NULL: see
	 * store_snapshot_open(), store_snapshot_ask() and store_snapshots(). The open function of
	 * snapshot_kind receives the store as its config. Parts of a snapshot arrive on the ring of
	 * the store. snapshot_ask is called on that ring, snapshots on any thread. */
	const struct store_kind *snapshot_kind;
	void (*snapshot_ask)(struct store *store, struct store_snapshot_request *request);
	uint32_t (*snapshots)(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX]);
};

/* An entry of a counter table for a member of the struct; the member's name is also the counter's
 * name. */
#define STORE_COUNTER(type, field, unit, help) COUNTER(type, field, TOTAL, unit, #field, help)

struct store_kind {
	const char *name;
	/* Kinds: paths that begin with this prefix belong to the kind. NULL: paths without the
	 * prefix of another kind. */
	const char *prefix;
	/* The text after the prefix is a size, see parse_path_size(). Such a kind has no file, and
	 * no page cache. */
	bool names_size;
	/* Optional: of the options for all kinds, the keys of those that have no effect on this
	 * kind (a list ending with NULL), and the reason. */
	const char *const *useless;
	const char *useless_reason;
	bool is_on_file; /* the text after the prefix is the path of a file or block device */
	bool is_filter;	 /* a filter, otherwise a kind of store */
	bool can_repair; /* kinds: supports store_options.repairs */
	/* filters: the store below is never written while the filter wraps it */
	bool freezes_inner;
	/* Filters, optional: returns whether the filter wraps a store with this info. config is
	 * NULL if no option of the filter was given. Without this function, a filter wraps the
	 * store if one of its options was given. */
	bool (*wraps)(const struct store_info *info, const void *config);
	/* Filters, optional: refuses options that the filter cannot be combined with, before a file
	 * is opened or created. Called if one of its options was given. */
	int (*fits)(const struct store_options *options, struct error *error);
	/* Filters, optional: returns the path of an additional file that config opens, or NULL. */
	const char *(*file)(const void *config);
	/* For kinds, optional: see store_options_memory_folder(). config can be NULL. */
	const char *(*memory_folder)(const void *config);
	/* Optional, for a kind with its own file format: see store_check(). *recognized is set to
	 * true if the file at path has this format. */
	int (*check)(
		const char *path, struct store_check *check, bool *recognized, struct error *error);
	/* Optional: see store_create_check(). Present if create is present. */
	int (*create_check)(const struct store_create *create, struct error *error);
	/* Optional: see store_create(). path: the text after the kind's name and the colon. */
	int (*create)(const char *path, const struct store_create *create, struct error *error);
	const struct field *options;
	uint32_t option_count;
	size_t config_bytes;  /* size of the configuration that the options set */
	const void *defaults; /* initial contents of the configuration; NULL: zeroes */
	size_t store_bytes;
	const struct store_ops *ops;
	/* store is zeroed except for its base. config is NULL if no option was given. Kinds must
	 * set base.info. If open fails, it must release everything. */
	int (*open)(struct store *store, const struct store_options *options, const void *config,
		struct error *error);
};

extern const struct store_kind file_store_kind;
extern const struct store_kind memory_store_kind;
extern const struct store_kind null_store_kind;
extern const struct store_kind flash_store_kind;
extern const struct store_kind overlay_store_kind;
extern const struct store_kind pace_store_kind;
extern const struct store_kind sched_store_kind;
extern const struct store_kind delay_store_kind;
extern const struct store_kind fault_store_kind;
extern const struct store_kind failover_store_kind;

enum {
	/* Before data is sent from the page cache, one word in each piece of this size (the part
	 * size of path) is checked. If it is zero, the whole piece may be zeroes, and it is read
	 * instead, so that it can be sent as a hole. */
	STORE_PAGE_CACHE_LOOK_BYTES = 512 << 10,
};

/* Returns the idx-th registered kind or filter; NULL after the last. */
const struct store_kind *store_kind_at(uint32_t idx);
/* Returns the index of the kind to which a path belongs. */
uint32_t store_kind_of_path(const char *path);
/* Returns -EINVAL and a message if an option of another kind was given, because it would have no
 * effect, or if a filter refuses an option. */
GMB_MUST_CHECK int store_options_fit(
	const struct store_options *options, const struct store_kind *kind, struct error *error);
/* Returns whether a requested filter freezes the store below it (freezes_inner). */
bool store_options_freezes(const struct store_options *options);

/* Returns the O_DIRECT descriptor of a file store that reads directly; -1 for any other store. */
int file_store_direct_fd(struct store *store);

/* Returns the memory of a memory store, beginning with the first byte of the disk. Initially
 * zeroes. */
uint8_t *memory_store_bytes(struct store *store);

/* Sets the garbage collection rule of a flash store (store/flash/gc_policy.h). Called before the
 * start; rule is borrowed. Returns false if it is not a flash store. */
bool flash_store_set_rule(struct store *store, const struct gc_rule *rule);

/* Reports the progress of the start, from 0 to 999. */
void store_start_progress(struct store *store, uint32_t permille);
/* Finishes the start with result 0, or with a negative errno and a message in start->error. */
void store_started(struct store *store, int result);

/* Called by a kind that has detected a change of its size. Any thread; takes a lock. */
void store_resized(struct store *store);

/* Called by a filter when the disk has refused a change: makes store_is_lost() return true. When
 * the call returns, a message to each watch was posted that calls its lost(). So a part that a
 * filter finishes in a message posted later is finished after that. Returns whether it was the
 * first call. Any thread; takes a lock. */
bool store_lost(struct store *store);

/* Value of store_ops.handover for layers that have no state to hand over. */
const char *store_handover_nothing(struct store *store, struct store_claim *claim_out);

/* Returns the layer that makes copies to and from the store. */
static inline struct store *store_copied(struct store *store)
{
	while (store->ops->passes_copies) {
		store = store->inner;
	}
	return store;
}

/* Returns the slice of the layer that currently works on the part. */
static inline void *store_scratch(struct store_part *part)
{
	return part->scratch + part->queue->store->scratch_offset;
}

/* Passes the part from a filter to its inner queue. inner_done is called when it is finished. */
void store_forward(struct store_part *part);
/* Passes the part to a queue of a second store that the filter uses. The filter must have set that
 * queue's outer. */
void store_forward_to(struct store_queue *lower, struct store_part *part);

/* Finishes the part in the ring's next batch. Can therefore be called from inside submit. part->io
 * must not be in flight. */
void store_finish_later(struct store_part *part, int result);

/* Appends an extent to those of a STORE_EXTENTS, or extends the last one if it has the same flags.
 * Returns false if a new entry is needed and none is free. */
bool store_extent_add(struct store_part *part, uint64_t length, uint32_t flags);

/* Returns whether this result of a flush or durable part means that acknowledged data may be
 * lost. */
bool store_result_breaks(const struct store_part *part, int result);
