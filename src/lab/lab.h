// SPDX-License-Identifier: Apache-2.0
/*
 * Instruments for the measurements of research papers. No other module depends on them; main()
 * registers those that are part of the build.
 *
 * lab_trace() is "gmblock trace" for disks. It reads from a disk while a second thread watches the
 * memory that is read into, and shows when each piece of the data arrived there.
 *
 *   buffer │ chunk 0        M│ chunk 1        M│ chunk 2        M│   M: marker, last 8 bytes
 *            ▲ the disk writes, in any order        ▲ a thread examines, last chunk first
 *
 * Each chunk ends in a marker that is stored before the read and overwritten by the disk's data.
 * The observed order is only displayed and never used to send data, because a disk may write a
 * location twice, or the last bytes of a chunk first.
 *
 * Threading: trace_run() creates and joins its threads; all other functions run on the main thread.
 * Ownership: as stated at each function. Errors: 0, or a negative errno and an error message.
 */
#pragma once

#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "disk/disk.h"
#include "store/kind.h"

/* Runs "gmblock trace": traces disks, or calls cmd_trace() for --request. */
int lab_trace(int argc, char **argv);

/* --- arrivals -------------------------------------------------------------------------------- */

/*
 * Analysis of the times at which the chunks of one read arrived in memory.
 *
 *   offset │      2 2 2        A run is a range of chunks that arrived in ascending order: a
 *          │2 2 2        1     chunk belongs to the run of the chunk below it if that one arrived
 *          │      1 1          first. A stream is a chain of runs: each begins above the previous
 *          │1 1                one and not before that one ended. Each member of a RAID shows as a
 *          └──────────── time  stream; so does each part of a read that is served separately.
 *
 * All chunks are examined repeatedly, from the last to the first; each such pass is called a look.
 * The order of chunks that were first seen in different looks is certain. The order of chunks seen
 * in the same look is unknown and assumed to be ascending.
 */

enum trace_how {
	TRACE_EARLY,	     /* seen before the completion of the read */
	TRACE_AT_COMPLETION, /* not seen before the completion of the read */
	TRACE_UNSEEN, /* the chunk's data equals the marker, so its arrival cannot be detected */
};

struct trace_arrival {
	/* time from the submission of the read until the chunk was seen (TRACE_EARLY), otherwise
	 * until the read was complete */
	uint64_t time_ns;
	uint32_t look; /* number of the look that has seen the chunk; undefined with TRACE_UNSEEN */
	/* number of the stream, from 1, which trace_analyse() sets; 0: no stream, because the chunk
	 * is not TRACE_EARLY */
	uint16_t stream;
	uint16_t how; /* enum trace_how */
};

struct trace_read {
	uint64_t offset; /* position on the disk */
	uint32_t bytes;
	uint32_t chunk_bytes;
	uint32_t chunk_count; /* the last chunk can be shorter */
	uint64_t total_ns;    /* time until the read was complete, at least 1 */
	uint64_t gap_max_ns;  /* longest time between two looks */
	struct trace_arrival *arrivals;
};

/* Maximum number of streams: all further runs are assigned to the last one. */
enum { TRACE_STREAMS_MAX = 64, TRACE_QUARTERS = 3 };

struct trace_analysis {
	uint32_t early; /* number of chunks that are TRACE_EARLY */
	uint32_t at_completion;
	uint32_t unseen;
	uint32_t runs;
	uint32_t streams;
	double largest_stream; /* share of the early chunks in the largest stream */
	/* Share of the seen chunks that arrived after a higher chunk, and the largest distance in
	 * bytes to the highest chunk that had arrived before. */
	double reordered;
	uint32_t reordered_distance;
	uint64_t first_ns; /* arrival of the first chunk */
	/* share of the data that had arrived after 25, 50 and 75 % of the time */
	double arrived[TRACE_QUARTERS];
	/*
	 * Simulated overlap with a network that is as fast as the disk: the share of the sending
	 * time that is before the completion of the read. The two values are for senders that
	 * send arrived data in any order, or only in ascending order.
	 */
	double hidden_any;
	double hidden_ascending;
};

/* Computes *analysis and the stream of each arrival. Fails with -ENOMEM. */
GMB_MUST_CHECK int trace_analyse(struct trace_read *read, struct trace_analysis *analysis);

/* Returns the number of bytes in a chunk. */
static inline uint32_t trace_chunk_bytes(const struct trace_read *read, uint32_t index)
{
	uint32_t begin = index * read->chunk_bytes;

	return MIN(read->chunk_bytes, read->bytes - begin);
}

/* --- reads ----------------------------------------------------------------------------------- */

/* Limits of the options. */
enum {
	TRACE_SIZES_MAX = 8,
	TRACE_COUNT_MAX = 1000,
	TRACE_BYTES_MAX = 64 << 20,
	TRACE_UNIT_BYTES = 512,	    /* sizes must be multiples of this */
	TRACE_CHUNKS_MAX = 4 << 20, /* limit for all reads together */
};

/* Settings of a trace. */
struct trace_work {
	const char *path;
	uint32_t sizes[TRACE_SIZES_MAX];
	uint32_t size_count;
	uint32_t count; /* number of reads of each size */
	uint32_t chunk_bytes;
	uint64_t offset;
	uint64_t marker;
	bool cached; /* read through the page cache */
};

/* All reads of one size. */
struct trace_group {
	uint32_t bytes;
	uint32_t count; /* at least 1 */
	struct trace_read *reads;
	struct trace_analysis *analyses;
	uint32_t typical; /* index of the read with the median time, which is drawn */
};

struct trace_result {
	struct disk_info disk;
	struct trace_group groups[TRACE_SIZES_MAX];
	uint32_t group_count;
	uint32_t read_count; /* number of reads in all groups */
	bool interrupted;    /* SIGINT or SIGTERM has ended the trace early */
};

/*
 * Performs the reads. Never writes to the disk. Errors: of opening, examining and reading the
 * disk, and of creating the ring and the threads; -ENOMEM; -EOPNOTSUPP if the file does not support
 * direct reads, -EINVAL if a size or offset is not a multiple of the disk's block, -ERANGE if the
 * disk is too small. *result must be freed in any case.
 *
 * SIGINT or SIGTERM ends the trace after the current read, with a result (-EINTR before the first
 * read). A second signal ends the program. Only one thread may call this at a time.
 */
GMB_MUST_CHECK int trace_run(
	const struct trace_work *work, struct trace_result *result, struct error *error);
void trace_result_fini(struct trace_result *result);

/* Prints the result. */
GMB_MUST_CHECK int trace_show_text(
	const struct trace_work *work, const struct trace_result *result, struct error *error);
GMB_MUST_CHECK int trace_show_json(
	const struct trace_work *work, const struct trace_result *result, struct error *error);

/*
 * --- knobs ---------------------------------------------------------------------------------------
 *
 * A filter that forwards all parts, and changes the properties that the store below reports, so
 * that figures can compare gmblock's own choices with others:
 *
 *   parts=SIZE                    requests are cut into parts of this size
 *   device-cpu=yes|no             with mode=device: the CPU moves payload between device memory and
 *                                 sockets
 *   gc=RULE                       flash: see lab/gc_rules.h
 *
 * The filter is the outermost layer. Threading, ownership and errors: see store/kind.h.
 */

extern const struct store_kind knobs_store_kind;
