// SPDX-License-Identifier: Apache-2.0
/*
 * What "gmblock trace" learns from the times at which the chunks of one read arrived in memory.
 *
 *   offset │      2 2 2        A run is a piece of the buffer that filled upwards without a gap: a
 *          │2 2 2        1     chunk belongs to the run of the chunk below it if that one was there
 *          │      1 1          first. A stream is a chain of runs: each begins above the one before
 *          │1 1                and not before that one ended. Each member of a RAID shows as a
 *          └──────────── time  stream; so does each part of a read that is served by itself.
 *
 * The chunks are looked at again and again, from the last to the first, so an order between two
 * looks is certain; within a look there is none, and the chunks of one count as ascending.
 *
 * Threading: pure functions. Ownership: the caller's objects. Errors: -ENOMEM.
 */
#pragma once

#include "base/compiler.h"

enum trace_how {
	TRACE_EARLY,	     /* seen before the read was complete */
	TRACE_AT_COMPLETION, /* first seen when the read was complete already */
	TRACE_UNSEEN,	     /* the data there are equal to the marker: only the completion tells */
};

struct trace_arrival {
	uint64_t time_ns; /* since the submission; unless EARLY, that of the completion */
	uint32_t look;	  /* in which it was seen, growing; of UNSEEN chunks without meaning */
	uint16_t stream;  /* from 1; 0: none, as it was not EARLY. Set by trace_analyse() */
	uint16_t how;	  /* enum trace_how */
};

/* A part of the read that was submitted on its own. */
struct trace_part {
	uint32_t offset; /* in the read */
	uint32_t bytes;
	uint64_t submitted_ns;
	uint64_t completed_ns;
};

struct trace_read {
	uint64_t offset; /* on the device */
	uint32_t bytes;
	uint32_t chunk_bytes;
	uint32_t chunk_count; /* the last one may be shorter */
	uint32_t part_count;  /* at least 1 */
	uint64_t total_ns;    /* until the last part was complete, at least 1 */
	uint64_t gap_max_ns;  /* the longest time between two looks */
	struct trace_arrival *arrivals;
	struct trace_part *parts; /* ascending and without gaps */
};

/* More streams than these are not told apart: what belongs to none of them is in the last. */
enum { TRACE_STREAMS_MAX = 64, TRACE_QUARTERS = 3 };

struct trace_analysis {
	uint32_t early; /* chunks by enum trace_how */
	uint32_t at_completion;
	uint32_t unseen;
	uint32_t runs;
	uint32_t streams;
	double largest_stream; /* share of the early chunks that it holds */
	/* Chunks that arrived after one above them, as a share of those that were seen, and the
	 * longest distance in bytes to the highest that was there before. */
	double reordered;
	uint32_t reordered_distance;
	uint64_t first_ns;		/* when the first chunk was there */
	double arrived[TRACE_QUARTERS]; /* share of the data at 25, 50 and 75 % of the time */
	/*
	 * What share of its own time a sender would have worked while the disk did, had the network
	 * been exactly as fast as the disk: sending what is there in any order; only in ascending
	 * order; and each part only once it is complete. 0: it begins when the read is complete.
	 */
	double hidden_any;
	double hidden_ascending;
	double hidden_parts;
};

/* Fills *analysis and the stream of each arrival. */
GMB_MUST_CHECK int trace_analyse(struct trace_read *read, struct trace_analysis *analysis);

/* How many bytes chunk number index has. */
static inline uint32_t trace_chunk_bytes(const struct trace_read *read, uint32_t index)
{
	uint32_t begin = index * read->chunk_bytes;

	return MIN(read->chunk_bytes, read->bytes - begin);
}
