// SPDX-License-Identifier: Apache-2.0
/*
 * Moves the bytes: walks over the source in ascending order, keeps many pieces in flight, and
 * decides for each run of zeroes whether it is skipped, zeroed or written.
 *
 *   source's map ─▶ next piece ─▶ task: READ ─▶ runs of data and zeroes ─▶ WRITE / ZERO / skip
 *                                  (bounded: one buffer each)     a stream takes them in order
 *
 * Every so often the target is flushed meanwhile and the journal told up to where it is durable.
 *
 * Threading: the thread of the loop. Ownership: borrows everything in copy_engine_options and holds
 * it until copy_engine_run() returns; then nothing is in flight. Errors: the first one stops the
 * copy, after what is in flight has ended.
 */
#pragma once

#include "tools/copy_end.h"
#include "tools/copy_journal.h"
#include "tools/copy_pool.h"

struct copy_counters {
	uint64_t start;	   /* bytes that an earlier run had copied */
	uint64_t done;	   /* bytes of the copy that are dealt with, start included */
	uint64_t total;	   /* UINT64_MAX: not known yet */
	uint64_t read;	   /* bytes read from the source */
	uint64_t written;  /* bytes written to the target */
	uint64_t zeroed;   /* bytes that the target was asked to zero */
	uint64_t skipped;  /* zeroes that the target held already */
	uint64_t compared; /* bytes that were verified */
};

typedef void copy_tick_fn(void *context);

struct copy_engine_options {
	struct copy_loop *loop;
	struct copy_end *source;
	struct copy_end *target;
	struct copy_pool *pool;
	struct copy_journal *journal;
	struct copy_counters *counters;
	copy_tick_fn *tick; /* called now and then, for the progress bar */
	void *tick_context;
	uint32_t requests;	   /* pieces in flight, at most */
	bool adapts;		   /* fewer where the ends answer quickly */
	uint64_t request_bytes;	   /* a power of two */
	uint64_t sparse_bytes;	   /* zeroes are looked for in blocks of this; 0 = not at all */
	uint64_t checkpoint_bytes; /* flush and journal after so many bytes at the latest */
	bool allocate;		   /* the target gets every block, zeroes too */
};

/* Copies everything from counters->start on and flushes the target: 0, -EINTR when a signal asked
 * to stop, or the first error. counters->done says how far it came. */
GMB_MUST_CHECK int copy_engine_run(const struct copy_engine_options *options, struct error *error);

/* Reads both ends from the beginning to counters->total and compares: 0, -EINTR, -EILSEQ with the
 * first difference in *error, or another error. */
GMB_MUST_CHECK int copy_verify_run(const struct copy_engine_options *options, struct error *error);

/* True when every one of the bytes is zero. */
bool copy_is_zero(const uint8_t *buffer, size_t bytes);
