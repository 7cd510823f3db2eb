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

/* What the splitting of large reads or writes goes by, on the reactor with the fastest disk; each
 * may be COUNTER_NONE. */
struct summary_direction {
	uint64_t part_bytes;
	uint64_t disk_rate; /* bytes per second */
	uint64_t network_rate;
	uint64_t early_permille;
};

/* An export over all reactors. */
struct summary_export {
	struct path_export path; /* its counters, and operations where there were requests */
	struct summary_direction reads;
	struct summary_direction writes;
	struct rate_counters rate;
	struct path_quota memory;
	/* Of the export itself. */
	uint64_t size_bytes;
	uint64_t connections;
	uint64_t read_only; /* 0 or 1 */
	uint64_t started_permille;
	uint64_t memory_max;	    /* or COUNTER_NONE, as below */
	uint64_t rate_bytes_max;    /* per second */
	uint64_t rate_requests_max; /* per second */
	/* Of each layer of its store, from the outermost: as many as its table has counters. */
	uint64_t *layers[STORE_KINDS_MAX];
};

/* A client over all reactors; see struct engine_client. */
struct summary_client {
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint64_t session_count;
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

/* The tables that describe struct summary_export: a part of it each. Those with one table follow
 * each other. */
struct summary_part {
	const struct counter_table *table;
	size_t offset;	       /* of the struct of the table */
	const char *member;    /* the JSON object of the part; NULL: the export's own */
	const char *title;     /* of its text for people, or NULL */
	const char *direction; /* a label, or NULL */
};

enum { SUMMARY_PARTS = 8 };
extern const struct summary_part summary_parts[SUMMARY_PARTS];

extern const struct counter_table summary_client_table; /* of struct summary_client */

/* -ETIMEDOUT when a reactor does not answer, -ENOMEM. summary_fini() in any case. */
GMB_MUST_CHECK int summary_collect(const struct server_view *view, struct summary *summary);
void summary_fini(struct summary *summary);
