// SPDX-License-Identifier: Apache-2.0
/*
 * The instruments of the papers. No other part depends on them: main() registers what it is built
 * with.
 *
 * lab_trace() is "gmblock trace" for disks: it reads from a disk while a second thread watches the
 * memory that is read into, and shows when each piece of the data got there.
 *
 *   buffer │ chunk 0        M│ chunk 1        M│ chunk 2        M│   M: marker, its last 8 bytes
 *            ▲ the disk writes, in its own order    ▲ trace_run()'s thread looks from the end on
 *
 * Each chunk ends in a marker that is written before the read and is gone once the disk's data are
 * there. What is watched is shown, never used: a disk may write a place twice, or a chunk's last
 * bytes first.
 *
 * Threading: trace_run() makes and joins its threads; everything else is the main thread's.
 * Ownership: as said. Errors: 0, or a negative errno with a sentence.
 */
#pragma once

#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"
#include "disk/disk.h"
#include "store/kind.h"

/* The command: reads disks, and leaves --request to cmd_trace(). */
int lab_trace(int argc, char **argv);

/* --- arrivals ----------------------------------------------------------------------------------
 */

/*
 * What is learnt from the times at which the chunks of one read arrived in memory.
 *
 *   offset │      2 2 2        A run is a piece of the buffer that filled upwards without a gap: a
 *          │2 2 2        1     chunk belongs to the run of the chunk below it if that one was there
 *          │      1 1          first. A stream is a chain of runs: each begins above the one before
 *          │1 1                and not before that one ended. Each member of a RAID shows as a
 *          └──────────── time  stream; so does each part of a read that is served by itself.
 *
 * The chunks are looked at again and again, from the last to the first, so an order between two
 * looks is certain; within a look there is none, and the chunks of one count as ascending.
 */

enum trace_how {
	TRACE_EARLY,	     /* seen before the read was complete */
	TRACE_AT_COMPLETION, /* first seen when the read was complete already */
	TRACE_UNSEEN, /* the data equals the marker: only the completion shows that it came */
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

/* More streams are not distinguished: the rest is counted in the last. */
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

/* Fills *analysis and the stream of each arrival. -ENOMEM. */
GMB_MUST_CHECK int trace_analyse(struct trace_read *read, struct trace_analysis *analysis);

/* How many bytes chunk number index has. */
static inline uint32_t trace_chunk_bytes(const struct trace_read *read, uint32_t index)
{
	uint32_t begin = index * read->chunk_bytes;

	return MIN(read->chunk_bytes, read->bytes - begin);
}

/* --- reads -------------------------------------------------------------------------------------
 */

/* The limits of the options. */
enum {
	TRACE_SIZES_MAX = 8,
	TRACE_COUNT_MAX = 1000,
	TRACE_BYTES_MAX = 64 << 20,
	TRACE_UNIT_BYTES = 512, /* what all sizes are multiples of */
	TRACE_PARTS_MAX = 1024,
	TRACE_CHUNKS_MAX = 4 << 20, /* of all reads together */
};

/* What to do. */
struct trace_work {
	const char *path;
	uint32_t sizes[TRACE_SIZES_MAX];
	uint32_t size_count;
	uint32_t count; /* reads of each size */
	uint32_t chunk_bytes;
	uint32_t part_bytes; /* 0: each read in one piece */
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
	uint32_t typical; /* the read with the median time: the one to draw */
};

struct trace_result {
	struct disk_info disk;
	struct trace_group groups[TRACE_SIZES_MAX];
	uint32_t group_count;
	uint32_t read_count; /* of all groups */
	bool interrupted;    /* SIGINT or SIGTERM ended it before its last read */
};

/*
 * Does the reads. Never writes to the disk. Errors: those of opening and reading; -EOPNOTSUPP when
 * the file cannot be read directly, -EINVAL when a size or place is no multiple of the disk's
 * block, -ERANGE when the disk is too small. *result can be freed in any case.
 *
 * SIGINT and SIGTERM end it after the read under way, with a result (-EINTR: before the first
 * read); a second one ends the program. To be called by one thread at a time.
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

/* --- plots -------------------------------------------------------------------------------------
 */

/*
 * Draws traced reads as SVG, one panel a read: time to the right, offset upwards, a dot for each
 * chunk at the moment it was seen, coloured by stream; a line for each part at the moment it was
 * complete, over the bytes it holds.
 * The texts may hold any bytes.
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

/* Writes the whole document and flushes out. */
GMB_MUST_CHECK int trace_plot_write(FILE *out, const struct trace_plot *plot, struct error *error);

/* --- the marker source of progress ---------------------------------------------------------------
 *
 * A filter that is put in place by the key marker. Threading, ownership and errors: see
 * store/kind.h; -ENOTSUP for all but raw disks.
 */

enum {
	MARKER_CHUNK_BYTES = 4096, /* one marker at the end of each */
};
/* Between two looks while reads are in flight. */
#define MARKER_LOOK_NS UINT64_C(50000)

extern const struct store_kind marker_store_kind;
/* For tests: does not look whether the store below is a disk it can work with. */
extern const struct store_kind marker_unchecked_kind;

/* --- knobs ---------------------------------------------------------------------------------------
 *
 * A filter that passes everything on, and changes what the store below says of itself, so that
 * figures can compare what gmblock chooses with something else:
 *
 *   parts=SIZE                    requests are cut into parts of this size
 *   progress=completion|counter   reads report no progress, or those of a memory store do
 *   device-cpu=yes|no             with mode=device: the processor moves payload between device
 *                                 memory and sockets
 *   gc=RULE, cold=PERCENT         flash: see lab/gc_rules.h
 *
 * It is the outermost layer. Threading, ownership and errors: see store/kind.h.
 */

extern const struct store_kind knobs_store_kind;
