// SPDX-License-Identifier: Apache-2.0
/*
 * What the files of src/store share: the constructors of the implementations, and how a filter
 * hands a part on.
 *
 *   store_submit ─▶ filter.submit ─▶ store_forward ─▶ inner.submit
 *                        ▲ frame.done ◀── store_finish ◀──┘
 *   done ◀── store_finish┘
 *
 * Threading: constructors as store_open(); the rest on the queue's ring. Ownership: a constructor
 * gives the store; a filter's constructor takes the inner store, also on failure.
 * Errors: negative errno and a sentence.
 */
#pragma once

#include "store/store.h"

GMB_MUST_CHECK int file_store_open(
	const struct store_options *options, struct store **store_out, struct error *error);
/* Whether markers can be a source of progress: -ENOTSUP, with the reason, for everything but a raw
 * disk that is read around the page cache. Any store may be asked. */
GMB_MUST_CHECK int file_store_check_marker(
	struct store *store, const char *path, struct error *error);
/* size_text: what follows "memory:" or "null:". */
GMB_MUST_CHECK int memory_store_open(const struct store_options *options, const char *size_text,
	struct store **store_out, struct error *error);
GMB_MUST_CHECK int null_store_open(const struct store_options *options, const char *size_text,
	struct store **store_out, struct error *error);
GMB_MUST_CHECK int fault_store_open(struct store *inner, const struct store_rule *rules,
	uint32_t rule_count, struct store **store_out, struct error *error);
GMB_MUST_CHECK int delay_store_open(struct store *inner, const struct store_rule *rules,
	uint32_t rule_count, struct store **store_out, struct error *error);
GMB_MUST_CHECK int pace_store_open(struct store *inner, const struct store_pace *pace,
	struct store **store_out, struct error *error);

enum {
	/* Before data is sent from the page cache, a word in each piece of that size (as the path
	 * would cut it) is checked: a piece that may be zeroes is read, to become a hole on the
	 * wire. */
	STORE_PAGE_CACHE_LOOK_BYTES = 512 << 10,
};

/* The queue of a store that needs nothing of its own for one. */
GMB_MUST_CHECK int store_plain_queue_create(struct store *store, struct ring *ring,
	struct store_queue **queue_out, struct error *error);
void store_plain_queue_destroy(struct store_queue *queue);

/* Gives the part to a filter's inner queue. done is called in place of the submitter's when the
 * inner store finishes, with part->queue being the filter's again; it must end in store_finish().
 */
void store_forward(struct store_queue *filter_queue, struct store_queue *inner_queue,
	struct store_part *part, store_done_fn *done);

/* Finishes the part in the ring's next batch, so never from inside submit. part->io must be free.
 */
void store_finish_later(struct store_part *part, int result);

/* True when this result of a flush or durable part means that acknowledged bytes may be lost. */
bool store_result_breaks(const struct store_part *part, int result);
