// SPDX-License-Identifier: Apache-2.0
/*
 * What all reactors of a server have counted, summed: what the statistics (stats.h) and the metrics
 * (metrics.h) are made from.
 *
 * Threading: the main thread; calls each reactor once and waits for it. Ownership: a summary is the
 * caller's. Errors: a reactor that does not answer is an error, and there is no summary.
 */
#pragma once

#include "server/control.h"

/* An export over all reactors. */
struct summary_export {
	/* Its counters, operations where there were requests, and overlaps of the reactor on which
	 * the disk was fastest. */
	struct path_export path;
	uint64_t read_rate; /* of the disk, there; bytes per second, 0 = not known */
	uint64_t write_rate;
	struct rate_counters rate;
	struct path_quota memory;
	/* Of the export itself. */
	uint64_t size_bytes;
	uint64_t connections;
	uint64_t read_only; /* 0 or 1 */
	uint64_t started_permille;
	uint64_t memory_max;	    /* 0 = no limit, as below */
	uint64_t rate_bytes_max;    /* per second */
	uint64_t rate_requests_max; /* per second */
	/* Of each layer of its store, from the outermost: as many as its table has counters. */
	uint64_t *layers[STORE_KINDS_MAX];
};

/* A client over all reactors; see struct engine_client. */
struct summary_client {
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint32_t session_count;
	struct path_stats *operations[STORE_OP_COUNT]; /* NULL: it had none */
};

struct summary {
	const struct server_view *view;
	uint64_t at_ns; /* when it was complete, CLOCK_MONOTONIC */
	struct engine_counters counters;
	struct path_arena ram;
	struct path_arena device;
	struct summary_export *exports; /* as many as in the view */
	struct summary_client *clients; /* each name once */
	uint32_t client_count;

	/* Private. */
	uint32_t client_room;
	bool short_of_memory;
};

/* -ETIMEDOUT when a reactor does not answer, -ENOMEM. summary_fini() in any case. */
GMB_MUST_CHECK int summary_collect(const struct server_view *view, struct summary *summary);
void summary_fini(struct summary *summary);
