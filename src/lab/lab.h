// SPDX-License-Identifier: Apache-2.0
/*
 * The instruments of the papers. No other module depends on them; main() registers those that it is
 * built with.
 *
 * lab_trace() is "gmblock trace" for disks. It reads from a disk while a second thread watches the
 * memory that is read into, and shows when each piece of the data arrived there.
 *
 *   buffer │ chunk 0        M│ chunk 1        M│ chunk 2        M│   M: marker, its last 8 bytes
 *            ▲ the disk writes, in its own order    ▲ trace_run()'s thread looks from the end on
 *
 * Each chunk ends in a marker that is written before the read and is overwritten by the disk's
 * data. The observed order is only displayed and never used to send data, because a disk may write
 * a location twice, or the last bytes of a chunk first.
 *
 * Threading: trace_run() creates and joins its threads; all other functions run on the main thread.
 * Ownership: as stated at each function. Errors: 0, or a negative errno with a sentence.
 */
#pragma once

#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "disk/disk.h"
#include "store/kind.h"

/* The command: traces disks, and calls cmd_trace() for --request. */
int lab_trace(int argc, char **argv);

/* --- arrivals -------------------------------------------------------------------------------- */

/*
 * Analysis of the times at which the chunks of one read arrived in memory.
 *
 *   offset │      2 2 2        A run is a piece of the buffer that filled upwards without a gap: a
 *          │2 2 2        1     chunk belongs to the run of the chunk below it if that one arrived
 *          │      1 1          first. A stream is a chain of runs: each begins above the previous
 *          │1 1                one and not before that one ended. Each member of a RAID shows as a
 *          └──────────── time  stream; so does each part of a read that is served separately.
 *
 * The chunks are examined repeatedly, from the last to the first. So the order of chunks seen in
 * different looks is certain. Chunks seen in the same look have no known order and count as
 * ascending.
 */

enum trace_how {
	TRACE_EARLY,	     /* seen before the read was complete */
	TRACE_AT_COMPLETION, /* first seen when the read was already complete */
	TRACE_UNSEEN,	     /* the data equals the marker: only the completion shows its arrival */
};

struct trace_arrival {
	uint64_t time_ns; /* since the submission; unless EARLY, that of the completion */
	uint32_t look;	  /* number of the look that saw it, increasing; UNSEEN: undefined */
	uint16_t stream;  /* from 1; 0: none, because it was not EARLY. Set by trace_analyse() */
	uint16_t how;	  /* enum trace_how */
};

/* A part of the read that was submitted separately. */
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
	uint32_t chunk_count; /* the last chunk may be shorter */
	uint32_t part_count;  /* at least 1 */
	uint64_t total_ns;    /* until the last part was complete, at least 1 */
	uint64_t gap_max_ns;  /* longest time between two looks */
	struct trace_arrival *arrivals;
	struct trace_part *parts; /* ascending, without gaps */
};

/* Limit on the number of streams: all further runs are counted in the last stream. */
enum { TRACE_STREAMS_MAX = 64, TRACE_QUARTERS = 3 };

struct trace_analysis {
	uint32_t early; /* number of chunks by enum trace_how */
	uint32_t at_completion;
	uint32_t unseen;
	uint32_t runs;
	uint32_t streams;
	double largest_stream; /* its share of the early chunks */
	/* Share of the seen chunks that arrived after a chunk above them, and the largest distance
	 * in bytes to the highest chunk that was there before. */
	double reordered;
	uint32_t reordered_distance;
	uint64_t first_ns;		/* arrival of the first chunk */
	double arrived[TRACE_QUARTERS]; /* share of the data at 25, 50 and 75 % of the time */
	/*
	 * Share of its sending time that a sender would have overlapped with the disk, if the
	 * network were exactly as fast as the disk: sending arrived data in any order; only in
	 * ascending order; and each part only once it is complete. 0: sending begins when the read
	 * is complete.
	 */
	double hidden_any;
	double hidden_ascending;
	double hidden_parts;
};

/* Fills *analysis and the stream of each arrival. -ENOMEM. */
GMB_MUST_CHECK int trace_analyse(struct trace_read *read, struct trace_analysis *analysis);

/* Number of bytes in chunk number index. */
static inline uint32_t trace_chunk_bytes(const struct trace_read *read, uint32_t index)
{
	uint32_t begin = index * read->chunk_bytes;

	return MIN(read->chunk_bytes, read->bytes - begin);
}

/* --- reads ----------------------------------------------------------------------------------- */

/* The limits of the options. */
enum {
	TRACE_SIZES_MAX = 8,
	TRACE_COUNT_MAX = 1000,
	TRACE_BYTES_MAX = 64 << 20,
	TRACE_UNIT_BYTES = 512, /* all sizes are multiples of this */
	TRACE_PARTS_MAX = 1024,
	TRACE_CHUNKS_MAX = 4 << 20, /* in all reads together */
};

/* Settings of a trace. */
struct trace_work {
	const char *path;
	uint32_t sizes[TRACE_SIZES_MAX];
	uint32_t size_count;
	uint32_t count; /* reads of each size */
	uint32_t chunk_bytes;
	uint32_t part_bytes; /* 0: each read in one part */
	uint64_t offset;
	uint64_t marker;
	bool random;
	bool together; /* all parts in one system call */
	bool cached;   /* through the page cache */
};

/* All reads of one size. */
struct trace_group {
	uint32_t bytes;
	uint32_t count; /* at least 1 */
	struct trace_read *reads;
	struct trace_analysis *analyses;
	uint32_t typical; /* the read with the median time, which is drawn */
};

struct trace_result {
	struct disk_info disk;
	struct trace_group groups[TRACE_SIZES_MAX];
	uint32_t group_count;
	uint32_t read_count; /* in all groups */
	bool interrupted;    /* ended early by SIGINT or SIGTERM */
};

/*
 * Performs the reads. Never writes to the disk. Errors: from opening and reading; -EOPNOTSUPP if
 * the file does not support direct reads, -EINVAL if a size or offset is not a multiple of the
 * disk's block, -ERANGE if the disk is too small. *result must be freed in any case.
 *
 * SIGINT and SIGTERM end the trace after the current read, with a result (-EINTR: before the first
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

/* "1M in parts of 64K, one by one" */
enum { TRACE_TITLE_BYTES = 120 };
const char *trace_title(char out[TRACE_TITLE_BYTES], const struct trace_work *work, uint32_t bytes);

/* Draws a read in at most 80 columns: time to the right, offset upwards. */
void trace_chart(FILE *out, const struct trace_read *read);

/* --- plots ----------------------------------------------------------------------------------- */

/*
 * Draws traced reads as SVG, one panel per read: time to the right, offset upwards. Each chunk is a
 * dot at the time at which it was seen, coloured by stream. Each part is a line at the time of its
 * completion, over the bytes it contains. The texts may contain any bytes.
 */

enum { TRACE_PLOT_PANELS_MAX = 8 };

struct trace_plot {
	const char *title;
	const char *subtitle;
	struct trace_plot_panel {
		const char *title;
		const struct trace_read *read; /* analysed */
	} panels[TRACE_PLOT_PANELS_MAX];
	uint32_t panel_count; /* at least 1 */
};

/* Writes the complete document and flushes out. */
GMB_MUST_CHECK int trace_plot_write(FILE *out, const struct trace_plot *plot, struct error *error);

/*
 * --- the marker source of progress ---------------------------------------------------------------
 *
 * A filter that is enabled by the key marker. Threading, ownership and errors: see store/kind.h;
 * -ENOTSUP for everything but raw disks.
 */

enum {
	MARKER_CHUNK_BYTES = 4096, /* one marker at the end of each */
};
/* Interval between two looks while reads are in flight. */
#define MARKER_LOOK_NS UINT64_C(50000)

extern const struct store_kind marker_store_kind;
/* For tests: does not check that the store below is a suitable disk. */
extern const struct store_kind marker_unchecked_kind;

/*
 * --- knobs ---------------------------------------------------------------------------------------
 *
 * A filter that forwards all parts, and changes the properties that the store below reports, so
 * that figures can compare gmblock's own choices with others:
 *
 *   parts=SIZE                    requests are cut into parts of this size
 *   progress=completion|counter   reads report no progress, or those of a memory store do
 *   device-cpu=yes|no             with mode=device: the CPU moves payload between device memory and
 *                                 sockets
 *   gc=RULE, cold=PERCENT         flash: see lab/gc_rules.h
 *
 * It is the outermost layer. Threading, ownership and errors: see store/kind.h.
 */

extern const struct store_kind knobs_store_kind;
