// SPDX-License-Identifier: Apache-2.0
/*
 * What the data path counts of its requests, by operation and size: always on, a few additions a
 * request.
 *
 * Latencies are counted in buckets whose width grows with the value: 8 for each doubling, from 1 us
 * to over two minutes, so that what is read back is at most 1/8 above the truth.
 *
 * Threading: one writer, the path's thread; whoever reads does it there. Ownership: plain data.
 * Errors: none; counters do not wrap in practice.
 */
#pragma once

#include "base/compiler.h"

/* The five states of the thesis; one timestamp per edge. */
enum path_state {
	PATH_STATE_INIT,      /* decoded; waits for memory or for its turn */
	PATH_STATE_READ,      /* the disk works, nothing can be sent yet */
	PATH_STATE_SEND_INIT, /* some bytes are valid; disk and network overlap */
	PATH_STATE_SEND,      /* the disk is done; network time that it did not hide */
	PATH_STATE_FIN,	      /* everything is sent, resources are back */
	PATH_STATE_COUNT
};

enum {
	PATH_SIZE_CLASS_COUNT = 8, /* <= 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1, 4, 16 MiB, more */
	PATH_LATENCY_PARTS = 8,	   /* buckets for each doubling */
	PATH_LATENCY_BUCKETS = 26 * PATH_LATENCY_PARTS,
};

/* The requests of one operation and size class. */
struct path_stats {
	uint64_t count;
	uint64_t errors;
	uint64_t bytes;			     /* of those without an error */
	uint64_t state_ns[PATH_STATE_COUNT]; /* sum of the time spent in each state */
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t latency[PATH_LATENCY_BUCKETS];
};

/* The size class of a request. */
uint32_t path_size_class(uint64_t length);
/* The longest request of a class; UINT64_MAX for the last. */
uint64_t path_size_class_limit(uint32_t size_class);

/* Counts one request. edge_ns: when each state was entered, 0 = it was skipped; FIN is set. */
void path_stats_add(struct path_stats *stats, const uint64_t edge_ns[PATH_STATE_COUNT],
	uint64_t bytes, bool failed);

void path_stats_merge(struct path_stats *into, const struct path_stats *from);

/* The time that parts_per_million of the requests did not exceed: the end of its bucket, or the
 * maximum if that is less. 0 when there were none. */
uint64_t path_stats_quantile_ns(const struct path_stats *stats, uint32_t parts_per_million);
