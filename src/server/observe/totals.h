// SPDX-License-Identifier: Apache-2.0
/*
 * The sums of the counters of all reactors of a server, the source of the statistics (stats.h) and
 * the metrics (metrics.h).
 *
 * Threading: the main thread; calls each reactor once and waits for it. Ownership: the caller owns
 * the totals. Errors: if a reactor does not answer, there are no totals.
 */
#pragma once

#include "server/control.h"

/* Measured values that determine how large reads or writes are split, from the reactor with the
 * fastest disk. Each may be COUNTER_NONE. */
struct totals_direction {
	uint64_t part_bytes;
	uint64_t disk_rate; /* bytes per second */
	uint64_t network_rate;
	uint64_t early_permille;
	uint64_t whole_rate; /* of requests that were not split */
	uint64_t parts_rate; /* of requests in parts */
};

/* The counters of an export, summed over all reactors. */
struct totals_export {
	struct path_export path; /* counters, and operations that had requests */
	struct totals_direction reads;
	struct totals_direction writes;
	struct rate_counters rate;
	struct path_quota memory;
	/* Values that are not sums over reactors. */
	uint64_t size_bytes;
	uint64_t connections;
	uint64_t read_only; /* 0 or 1 */
	uint64_t started_permille;
	uint64_t leases;	      /* clients */
	uint64_t leases_disconnected; /* those without a connection */
	/* Limits; COUNTER_NONE: no limit. */
	uint64_t memory_max;
	uint64_t rate_bytes_max;    /* bytes per second */
	uint64_t rate_requests_max; /* requests per second */
	/* Counters of the layers of its store, from the outermost layer on, in the order of each
	 * layer's table. */
	uint64_t *layers[STORE_KINDS_MAX];
};

/* The counters of a client, summed over all reactors; see struct engine_client. */
struct totals_client {
	char name[ENGINE_CLIENT_NAME_BYTES];
	uint64_t session_count;
	struct path_stats *operations[STORE_OP_COUNT]; /* NULL: no requests */
};

/* A node, see fence.h. */
struct totals_node {
	char name[ENGINE_NODE_NAME_BYTES];
	uint64_t completed; /* struct engine_node.operations of all reactors */
	uint64_t fenced;    /* 0 or 1, like the next member */
	uint64_t ended;
};

struct totals {
	const struct server_view *view;
	uint64_t at_ns; /* time of completion, CLOCK_MONOTONIC */
	struct engine_counters counters;
	struct path_arena ram;
	struct path_arena device;
	struct totals_export *exports; /* one per export of the server_view, in its order */
	struct totals_client *clients; /* names are unique */
	uint32_t client_count;
	struct totals_node *nodes; /* the configured and the fenced ones */
	uint32_t node_count;

	bool short_of_memory; /* private */
};

/* A part of struct totals_export that a counter table describes. Parts with the same table are
 * adjacent. */
struct totals_part {
	const struct counter_table *table;
	size_t offset;	       /* offset in struct totals_export */
	const char *member;    /* JSON object of the part; NULL: the export's object */
	const char *title;     /* title in the text for people, or NULL */
	const char *direction; /* a label, or NULL */
};

enum { TOTALS_PARTS = 8 };
extern const struct totals_part totals_parts[TOTALS_PARTS];

extern const struct counter_table totals_client_table; /* describes struct totals_client */
extern const struct counter_table totals_node_table;   /* describes struct totals_node */

/* Collects the sums. -ETIMEDOUT: a reactor does not answer. -ENOMEM. Call totals_fini() in all
 * cases. */
GMB_MUST_CHECK int totals_collect(const struct server_view *view, struct totals *totals);
void totals_fini(struct totals *totals);
