// SPDX-License-Identifier: Apache-2.0
/*
 * Interface for implementing a kind of store or a filter. Each is one file that defines a struct
 * store_kind; the table of a program's main() registers it (store_register()).
 *
 *   store_submit ─▶ filter.submit ─▶ store_forward ─▶ inner.submit
 *   done ◀─ store_finish ◀─ filter.inner_done ◀─ store_finish ◀─┘
 *
 * A filter is a store whose inner is set. The size, closing and the inner queue are handled for it,
 * and its info is that of the inner store unless its open changes it. The smallest filter is
 * delay.c.
 *
 * A part has STORE_SCRATCH_BYTES for the layers that work on it. Each layer has the scratch_bytes
 * of its table, not zeroed. A filter finds its slice with store_scratch(); the slice of the kind is
 * at the beginning.
 *
 * Threading: open and close as for store_open(); the rest runs on the queue's ring unless stated
 * otherwise. Ownership: store.c allocates and frees stores and queues. Errors: negative errno and a
 * sentence.
 */
#pragma once

#include "store/store.h"

struct gc_rule;

struct store_ops {
	const char *name;
	size_t queue_bytes;	/* of its own queue; 0: a struct store_queue */
	uint32_t scratch_bytes; /* of each part, a multiple of 8 */
	/* Optional: undoes open. The inner store is still open. */
	void (*close)(struct store *store);
	/* Optional. queue is zeroed except for its base, whose inner queue exists. */
	int (*queue_init)(struct store_queue *queue, struct error *error);
	/* Optional. Nothing is in flight. */
	void (*queue_fini)(struct store_queue *queue);
	void (*submit)(struct store_queue *queue, struct store_part *part);
	/* Filters, optional: called when a part that was forwarded is done below. Must end in
	 * store_finish(). */
	store_done_fn *inner_done;
	/* Optional. Sets part->memory and returns true if possible; store_page_cache_ref() does the
	 * rest. */
	bool (*page_cache_ref)(struct store_queue *queue, struct store_part *part);
	/* Optional, see store_page_cache_refusal(). Any thread. */
	const char *(*page_cache_refusal)(struct store *store);
	/* Current size in bytes; asks the operating system each time. Any thread. Filters:
	 * optional. */
	uint64_t (*size)(struct store *store);
	/* Optional: describes the counters in the kind's queue struct, or, with has_owner, in its
	 * store struct. */
	const struct counter_table *counters;
	/* Kinds, optional: see store_start(). Runs on start->ring. Ends in store_started(), once,
	 * not from inside start. Until then it reports its progress with store_start_progress() and
	 * must check start->cancelled regularly. */
	void (*start)(struct store *store, struct store_start *start);
	/* With start, and in the kind of a snapshot: all parts arrive on the ring of start. Their
	 * queue has that ring and no private state (queue_bytes is 0). part->memory does not have
	 * MEM_FIXED if it belongs to another ring. */
	bool has_owner;
	/* Kinds, optional: see store_copy_ways(). Both stores are of this kind. Any thread. */
	uint32_t (*copy_ways)(struct store *target, struct store *source, uint64_t *clone_align);
	/* Optional: see store_barrier(). The outermost layer with this function is asked. Any
	 * thread. */
	enum store_barrier (*barrier)(struct store *store, bool look);
	/* Optional: see store_handover(); a filter answers only for itself. NULL: the store has
	 * state that another process cannot find on the disk, so it cannot be handed over. */
	const char *(*handover)(struct store *store, struct store_claim *claim_out);
	/* Optional: see store_place(). For a filter without it, the bytes are where the layer below
	 * has them. */
	bool (*place)(struct store *store, struct store_place *place_out);
	/* See store_needs_quiesce(): STORE_QUIESCE is supported, and close leaves the disk
	 * unchanged if is_let_go. */
	bool needs_quiesce;
	/* Optional: see store_end(); not called if is_let_go. */
	uint64_t (*end)(struct store *store);
	/* Optional, with needs_quiesce and without start: see store_take(). */
	int (*take)(struct store *store, struct error *error);
	/* Kinds with an owner; all three or none: see store_snapshot_open() and its neighbours. The
	 * snapshot kind's open receives the store as its config, and its parts arrive on the ring
	 * of the store. snapshot_ask is called on the same ring, snapshots on any thread. */
	const struct store_kind *snapshot_kind;
	void (*snapshot_ask)(struct store *store, struct store_snapshot_request *request);
	uint32_t (*snapshots)(struct store *store, struct store_snapshot list[STORE_SNAPSHOTS_MAX]);
};

/* An entry of a counter table, for the named member of the struct. */
#define STORE_COUNTER(type, field, unit, help) COUNTER(type, field, TOTAL, unit, #field, help)

struct store_kind {
	const char *name;
	/* Kinds: paths with this prefix belong to it. NULL: all paths without the prefix of another
	 * kind. */
	const char *prefix;
	/* The text after the prefix is a size, see parse_path_size(). There is no file, and so no
	 * page cache. */
	bool names_size;
	/* Optional: keys of all kinds that have no effect here, ending with NULL, and the
	 * reason. */
	const char *const *useless;
	const char *useless_reason;
	bool is_on_file;    /* the text after the prefix is the path of a file or block device */
	bool is_filter;	    /* else a kind of store */
	bool can_repair;    /* kinds: supports store_options.repairs */
	bool freezes_inner; /* filters: the store below is never written while it is wrapped */
	/* Filters, optional: the additional file that is opened for config, or NULL. */
	const char *(*file)(const void *config);
	/* Kinds, optional: see store_options_memory_folder(). config may be NULL. */
	const char *(*memory_folder)(const void *config);
	/* Optional, for a kind with its own file format: see store_check(). *recognized is set to
	 * true if the file at path has this format. */
	int (*check)(
		const char *path, struct store_check *check, bool *recognized, struct error *error);
	/* Optional: see store_create_check(). With create. */
	int (*create_check)(const struct store_create *create, struct error *error);
	/* Optional: see store_create(). path is the text after the name of the kind and a colon. */
	int (*create)(const char *path, const struct store_create *create, struct error *error);
	const struct field *options;
	uint32_t option_count;
	size_t config_bytes;  /* of the configuration that the options set */
	const void *defaults; /* its initial contents; NULL: zeroes */
	size_t store_bytes;
	const struct store_ops *ops;
	/* store is zeroed except for its base. config is NULL if no option was given. A kind sets
	 * info. After a failure, open has released everything. */
	int (*open)(struct store *store, const struct store_options *options, const void *config,
		struct error *error);
};

extern const struct store_kind file_store_kind;
extern const struct store_kind memory_store_kind;
extern const struct store_kind null_store_kind;
extern const struct store_kind flash_store_kind;
extern const struct store_kind overlay_store_kind;
extern const struct store_kind pace_store_kind;
extern const struct store_kind delay_store_kind;
extern const struct store_kind fault_store_kind;

enum {
	/* Before data is sent from the page cache, one word in each piece of this size (the size in
	 * which path would cut it) is checked. If a piece may be all zeroes, it is read instead, so
	 * that it can become a hole on the wire. */
	STORE_PAGE_CACHE_LOOK_BYTES = 512 << 10,
};

/* Puts a filter around inner, which it takes, also on failure. */
GMB_MUST_CHECK int store_wrap(const struct store_kind *kind, const struct store_options *options,
	const void *config, struct store *inner, struct store **store_out, struct error *error);

/* The idx-th registered kind or filter; NULL after the last. */
const struct store_kind *store_kind_at(uint32_t idx);
/* Index of the kind to which a path belongs. */
uint32_t store_kind_of_path(const char *path);
/* -EINVAL with a sentence if an option of a kind other than the path's was given, because it would
 * have no effect. */
GMB_MUST_CHECK int store_options_fit(
	const struct store_options *options, const struct store_kind *kind, struct error *error);
/* True if one of the kind's options was given. */
bool store_options_has(const struct store_options *options, const struct store_kind *kind);
/* True if a requested filter freezes the store below it. */
bool store_options_freezes(const struct store_options *options);

/* The O_DIRECT descriptor of a file store that reads around the page cache; -1 for any other
 * store. */
int file_store_direct_fd(struct store *store);

/* The memory of a memory store, from the first byte of the disk on. Initially zeroes. */
uint8_t *memory_store_bytes(struct store *store);

/* Sets the garbage collection rule of a flash store, and the share of its dirty pages that is
 * treated as cold (store/flash/gc_policy.h). Called before the start; rule is borrowed. False: not
 * a flash store. */
bool flash_store_set_rule(struct store *store, const struct gc_rule *rule, uint32_t cold_percent);

/* Reports the progress of the start, 0 to 999. */
void store_start_progress(struct store *store, uint32_t permille);
/* Ends the start with 0, or with a negative errno and a sentence in start->error. */
void store_started(struct store *store, int result);

/* Called by a kind that has detected a change of its size. Any thread; takes a lock. */
void store_resized(struct store *store);

/* For store_ops.handover of layers with no state to hand over. */
const char *store_handover_nothing(struct store *store, struct store_claim *claim_out);

/* The slice of the layer that currently works on the part. */
static inline void *store_scratch(struct store_part *part)
{
	return part->scratch + part->queue->store->scratch_offset;
}

/* Passes the part of a filter to its inner queue. It comes back to inner_done. */
void store_forward(struct store_part *part);
/* Passes the part to a queue on a second store that the filter has; the filter has set that queue's
 * outer. */
void store_forward_to(struct store_queue *lower, struct store_part *part);

/* Finishes the part in the ring's next batch, and so never from inside submit. part->io must be
 * free. */
void store_finish_later(struct store_part *part, int result);

/* True if this result of a flush or durable part means that acknowledged bytes may be lost. */
bool store_result_breaks(const struct store_part *part, int result);
