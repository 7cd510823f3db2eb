// SPDX-License-Identifier: Apache-2.0
/*
 * What gmblock-flash-trace plays: writes that are made up by a seed, or a trace of blktrace.
 *
 *   uniform       single blocks, all alike
 *   zipf0.8       single blocks by Zipf's law, in an order by chance; also zipf0.99
 *   80/20         four fifths of the writes go to a fifth of the blocks
 *   tpcc          pages that the transactions of TPC-C change, standard specification 5.11, clauses
 *                 2.1.6 (NURand) and 5.2.3 (mix): stock and customers by NURand, orders appended,
 *                 a page for each warehouse and its districts
 *   vm            runs of 1 to 64 blocks in a few places and a small part with metadata
 *   a file        the text that blkparse prints (load_read_trace())
 *
 * Threading: one thread. Ownership: load_create() and load_read_trace() allocate everything.
 * Errors: negative errno and a sentence.
 */
#pragma once

#include "base/error.h"

enum load_kind { LOAD_WRITE, LOAD_TRIM, LOAD_FLUSH };

struct load_op {
	enum load_kind kind;
	bool durable; /* a write that is answered when it is on flash (FUA) */
	uint32_t block;
	uint32_t count;
};

struct load;

/* The idx-th name that load_create() knows; NULL behind the last. */
const char *load_name(uint32_t idx);

/* A load for a disk of so many blocks; the same seed makes the same writes. -EINVAL: no such name,
 * or the disk is too small for it. */
GMB_MUST_CHECK int load_create(const char *name, uint32_t blocks, uint64_t seed,
	struct load **load_out, struct error *error);

/*
 * Reads the text that blkparse prints by default, and takes the events with that letter as their
 * action ('Q' queued, 'D' issued, 'C' completed). At its end a trace begins anew. What it touches
 * in pieces of 2 MiB becomes the disk, in the same order; what it never touches is left out.
 * *blocks_out: how large the disk is.
 */
GMB_MUST_CHECK int load_read_trace(const char *path, char action, struct load **load_out,
	uint32_t *blocks_out, struct error *error);

void load_destroy(struct load *load);

void load_next(struct load *load, struct load_op *op);

/* Begins anew: the same operations in the same order. */
void load_rewind(struct load *load);
