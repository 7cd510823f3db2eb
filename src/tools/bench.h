// SPDX-License-Identifier: Apache-2.0
/*
 * "gmblock bench": keeps a number of requests in flight on an export and measures them.
 *
 *   bench_run() ─▶ one worker per thread ─▶ links (connections) ─▶ slots (`depth` requests)
 *                  queue, histograms         gmb_client             buffer, start time
 *
 * Without a rate, a slot is submitted again from the callback of its completion, so the depth is
 * constant and a new request waits only for a completion (a closed loop). With a rate, requests are
 * due at times that do not depend on completions (an open loop), and depth limits the number in
 * flight; a request that finds no free slot is late. Latency is from submit to done, as seen by a
 * program that uses the library.
 *
 * Threading: bench_run() creates and joins its threads; everything else runs on the main thread.
 * Ownership: the caller owns all objects. Errors: 0, or a negative errno and an error message.
 */
#pragma once

#include <gmblock/gmblock.h>

#include "base/error.h"
#include "base/export_uri.h"
#include "base/histogram.h"

enum bench_direction { BENCH_READ, BENCH_WRITE, BENCH_DIRECTIONS };

/* Limits of the options. */
enum {
	BENCH_DEPTH_MAX = 1024,
	BENCH_CONNECTIONS_MAX = 256,
	BENCH_THREADS_MAX = 64,
	BENCH_BLOCK_BYTES_MAX = 256 << 20,
};
#define BENCH_BUFFERS_BYTES_MAX (UINT64_C(4) << 30)

enum bench_spin { BENCH_SPIN_AUTO, BENCH_SPIN_OFF };

/* The workload. */
struct bench_work {
	const char *uri;
	const char *rw; /* the pattern as given by the user */
	bool random;
	uint32_t read_percent; /* 100: only reads, 0: only writes */
	uint32_t block_bytes;
	uint32_t depth; /* requests in flight per connection */
	/* total number of connections; 0: each thread has one client, which chooses its own number
	 * of connections */
	uint32_t connections;
	uint32_t threads;
	uint64_t duration_ns;
	uint64_t warmup_ns;
	uint64_t requests_max; /* end after this number of requests; 0: only the time counts */
	uint64_t rate_bytes;   /* per second; 0: none. At most one of the two is set. */
	uint64_t rate_requests;
	uint64_t offset;
	uint64_t size; /* bytes of the export to use; 0: to its end */
	uint64_t seed;
	uint64_t timeout_ns;
	enum bench_spin spin;
	bool fua;
	bool once;  /* use no block twice, and end after the last one */
	bool force; /* overwrite contents */
};

static inline bool bench_reads(const struct bench_work *work)
{
	return work->read_percent > 0;
}

static inline bool bench_writes(const struct bench_work *work)
{
	return work->read_percent < 100;
}

/* The part of the export that is used: `blocks` whole blocks from `offset` on. */
struct bench_range {
	uint64_t offset;
	uint64_t blocks;
};

/* Determines the range that the workload uses on an export with these properties. Fails with the
 * reason if the workload is not possible there. */
GMB_MUST_CHECK int bench_range(const struct bench_work *work, const struct gmb_info *info,
	struct bench_range *range, struct error *error);

/* Fails with -EEXIST if the range contains data: reads the first data that the server reports, and
 * the end of the range. Called on the client's thread; blocks. */
GMB_MUST_CHECK int bench_contents_check(const struct bench_work *work, struct gmb_client *client,
	const struct gmb_info *info, const struct bench_range *range, struct error *error);

/* Processor time and context switches of the whole process. */
struct bench_cpu {
	uint64_t user_ns;
	uint64_t system_ns;
	uint64_t switches_voluntary;
	uint64_t switches_involuntary;
};

/* The measurements, without the warm-up and without requests that completed after the end. */
struct bench_result {
	struct histogram latency_ns[BENCH_DIRECTIONS];
	/* with a rate: time from when a request was due until it was submitted */
	struct histogram late_ns;
	uint64_t blocks_used; /* number of blocks used, with work->once; includes the warm-up */
	/* Number of reads for which the server sent no payload for some or all of the bytes. */
	uint64_t hole_reads;
	uint64_t elapsed_ns;
	struct bench_cpu cpu;
	struct bench_range range;
	struct gmb_info info;		   /* information from the first connection */
	char host[EXPORT_URI_LABEL_BYTES]; /* its server at the end; "" if the URI names only one */
	/* sum of all connections; only counters that increase with requests */
	struct gmb_stats stats;
	uint32_t connections; /* open connections */
	bool interrupted;     /* SIGINT or SIGTERM ended the run before the end of its time */
};

/*
 * Runs the workload. SIGINT and SIGTERM end it early, with a result; a second signal ends the
 * program. progress: print a line on standard error each second. Errors: as for gmb_open(), of
 * the first request that failed, -EROFS, -EINVAL and -ERANGE from bench_range(), -EEXIST: contents
 * would be overwritten without work->force, -EINTR: interrupted before there was a result,
 * -ENODATA: no request was completed in the time.
 */
GMB_MUST_CHECK int bench_run(const struct bench_work *work, bool progress,
	struct bench_result *result, struct error *error);

/* Prints the result. */
GMB_MUST_CHECK int bench_show_text(
	const struct bench_work *work, const struct bench_result *result, struct error *error);
GMB_MUST_CHECK int bench_show_json(
	const struct bench_work *work, const struct bench_result *result, struct error *error);

static inline uint64_t bench_requests(const struct bench_result *result)
{
	return result->latency_ns[BENCH_READ].count + result->latency_ns[BENCH_WRITE].count;
}

/* Returns whether every block of the range was used, once. */
static inline bool bench_covered(const struct bench_work *work, const struct bench_result *result)
{
	return work->once && result->blocks_used == result->range.blocks;
}
