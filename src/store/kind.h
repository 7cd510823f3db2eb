// SPDX-License-Identifier: Apache-2.0
/*
 * For those who implement a kind of store, or a filter: one file each, which defines a struct
 * store_kind. The table of a program's main() registers it (store_register()).
 *
 *   store_submit ─▶ filter.submit ─▶ store_forward ─▶ inner.submit
 *   done ◀─ store_finish ◀─ filter.inner_done ◀─ store_finish ◀─┘
 *
 * A filter is a store whose inner is set: the size, closing and the inner queue are taken care of,
 * and its info is that of the inner store unless its open changes it. The smallest is delay.c.
 *
 * A part has STORE_SCRATCH_BYTES for the layers that work on it. Each has the scratch_bytes of its
 * table, not zeroed: store_scratch() in a filter; the kind itself is at the beginning.
 *
 * Threading: open and close as store_open(); the rest on the queue's ring unless stated otherwise.
 * Ownership: stores and queues are allocated and freed by store.c. Errors: negative errno and a
 * sentence.
 */
#pragma once

#include "store/store.h"

struct gc_rule;

struct store_ops {
	const char *name;
	size_t queue_bytes;	/* of its own queue; 0: a struct store_queue */
	uint32_t scratch_bytes; /* of each part, a multiple of 8 */
	/* Optional: undoes open. The inner store is still there. */
	void (*close)(struct store *store);
	/* Optional. queue is zeroed but for its base, whose inner queue exists. */
	int (*queue_init)(struct store_queue *queue, struct error *error);
	/* Optional. Nothing is in flight. */
	void (*queue_fini)(struct store_queue *queue);
	void (*submit)(struct store_queue *queue, struct store_part *part);
	/* Filters, optional: a part that was forwarded is done below. Must end in store_finish().
	 */
	store_done_fn *inner_done;
	/* Optional. Sets part->memory when it can; store_page_cache_ref() does the rest. */
	bool (*page_cache_ref)(struct store_queue *queue, struct store_part *part);
	/* Optional, see store_page_cache_refusal(). Any thread. */
	const char *(*page_cache_refusal)(struct store *store);
	/* Current size in bytes; asks the operating system again. Any thread. Filters: optional. */
	uint64_t (*size)(struct store *store);
	/* Optional: describes what a queue counts, in its own struct; with has_owner, what the
	 * store counts. */
	const struct counter_table *counters;
	/* Kinds, optional: see store_start(). On start->ring; ends in store_started(), once, not
	 * from inside start. Meanwhile store_start_progress() says how far it is, and it must look
	 * at start->cancelled now and then. */
	void (*start)(struct store *store, struct store_start *start);
	/* With start, and in the kind of a view: all parts come on the ring of start. Their queue
	 * says that ring, and has no state of its own (queue_bytes is 0); part->memory has no
	 * MEM_FIXED when it is another's.
	 */
	bool has_owner;
	/* Kinds, optional: see store_copy_ways(); both stores are of this kind. Any thread. */
	uint32_t (*copy_ways)(struct store *target, struct store *source, uint64_t *clone_align);
	/* Optional: see store_barrier(). The outermost layer that has one is asked. Any thread. */
	enum store_barrier (*barrier)(struct store *store, bool look);
	/* Optional: see store_pass(); a filter answers for itself alone. Without it the store keeps
	 * what another process cannot find on the disk. */
	const char *(*pass)(struct store *store, struct store_claim *claim_out);
	/* Optional: see store_place(); filters that are not asked have their bytes where those
	 * below have them. */
	bool (*place)(struct store *store, struct store_place *place_out);
	/* See store_settles(): the flush has its flag, and close changes nothing when is_let_go. */
	bool settles;
	/* Optional: see store_end(); not called when is_let_go. */
	uint64_t (*end)(struct store *store);
	/* Optional, with settles and without start: see store_take(). */
	int (*take)(struct store *store, struct error *error);
	/* Kinds with an owner, optional, all three or none: see store_view_open() and its
	 * neighbours. The kind's open gets the store as its config, and its parts come on the ring
	 * of that store. view_ask is called there, views on any thread. */
	const struct store_kind *view_kind;
	void (*view_ask)(struct store *store, struct store_view_request *request);
	uint32_t (*views)(struct store *store, struct store_view list[STORE_VIEWS_MAX]);
};

/* A member of that struct, for the table. */
#define STORE_COUNTER(type, field, unit, help) COUNTER(type, field, TOTAL, unit, #field, help)

struct store_kind {
	const char *name;
	/* Kinds: paths that begin so are its own. NULL: every path that no other kind has. */
	const char *prefix;
	bool names_size; /* what follows the prefix is a size, see parse_path_size(): no file, and
			  * so no page cache */
	/* Optional: keys of all kinds that do nothing here, NULL behind the last, and why. */
	const char *const *useless;
	const char *useless_reason;
	bool is_on_file;    /* what follows the prefix is the path of a file or a block device */
	bool is_filter;	    /* else a kind of store */
	bool can_repair;    /* kinds: knows store_options.repairs */
	bool freezes_inner; /* filters: what is below is never written while it is there */
	/* Filters, optional: the file that is opened for what config says, or NULL. */
	const char *(*file)(const void *config);
	/* Kinds, optional: see store_options_memory_folder(). config may be NULL. */
	const char *(*memory_folder)(const void *config);
	/* Optional, of a kind with files of a format of its own: see store_check(). *recognized
	 * turns true when the file at path is one. */
	int (*check)(
		const char *path, struct store_check *check, bool *recognized, struct error *error);
	/* Optional: see store_create_check(). With create. */
	int (*create_check)(const struct store_create *create, struct error *error);
	/* Optional: see store_create(). path is what follows the name of the kind and a colon. */
	int (*create)(const char *path, const struct store_create *create, struct error *error);
	const struct field *options;
	uint32_t option_count;
	size_t config_bytes;  /* of what the options set */
	const void *defaults; /* what it is before the first is set; NULL: zeroes */
	size_t store_bytes;
	const struct store_ops *ops;
	/* store is zeroed but for its base. config is NULL when no option was given. A kind sets
	 * info. On failure it leaves nothing behind. */
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
	/* Before data is sent from the page cache, a word in each piece of that size (as the path
	 * would cut it) is checked: a piece that may be zeroes is read, to become a hole on the
	 * wire. */
	STORE_PAGE_CACHE_LOOK_BYTES = 512 << 10,
};

/* Puts a filter around inner, which it takes, also on failure. */
GMB_MUST_CHECK int store_wrap(const struct store_kind *kind, const struct store_options *options,
	const void *config, struct store *inner, struct store **store_out, struct error *error);

/* The idx-th kind or filter that was registered; NULL behind the last. */
const struct store_kind *store_kind_at(uint32_t idx);
/* Which of them a path belongs to. */
uint32_t store_kind_of_path(const char *path);
/* -EINVAL, with a sentence, when an option of another kind than the path's was given, which would
 * do nothing. */
GMB_MUST_CHECK int store_options_fit(
	const struct store_options *options, const struct store_kind *kind, struct error *error);
/* True when one of the kind's options was given. */
bool store_options_has(const struct store_options *options, const struct store_kind *kind);
/* True when a filter was asked for that freezes what is below. */
bool store_options_freezes(const struct store_options *options);

/* The descriptor of a file store that reads around the page cache; -1: it is not, or does not. */
int file_store_direct_fd(struct store *store);

/* The memory of a memory store, whose first byte is that of the disk. Zeroes at first. */
uint8_t *memory_store_bytes(struct store *store);

/* Before the start of a flash store: it collects segments by this rule, which it borrows, and so
 * much of its changed pages is cold (store/flash/gc_policy.h). False: it is another store. */
bool flash_store_set_rule(struct store *store, const struct gc_rule *rule, uint32_t cold_percent);

/* How much of the start is done, 0 to 999. */
void store_start_progress(struct store *store, uint32_t permille);
/* The start has ended: 0, or a negative errno with a sentence in start->error. */
void store_started(struct store *store, int result);

/* Called by a kind that has found its size changed. Any thread; takes a lock. */
void store_resized(struct store *store);

/* For store_ops.pass: there is nothing to pass. */
const char *store_pass_nothing(struct store *store, struct store_claim *claim_out);

/* The slice of the layer that works on the part. */
static inline void *store_scratch(struct store_part *part)
{
	return part->scratch + part->queue->store->scratch_offset;
}

/* Gives the part of a filter to its inner queue. It comes back to inner_done. */
void store_forward(struct store_part *part);
/* The same with a queue on a store that the filter has besides, and whose outer it has set. */
void store_forward_to(struct store_queue *lower, struct store_part *part);

/* Finishes the part in the ring's next batch, so never from inside submit. part->io must be free.
 */
void store_finish_later(struct store_part *part, int result);

/* True when this result of a flush or durable part means that acknowledged bytes may be lost. */
bool store_result_breaks(const struct store_part *part, int result);
