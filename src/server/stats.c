// SPDX-License-Identifier: Apache-2.0
#include "server/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "path/stats.h"

enum {
	PATH_SHOWN_BYTES = 4 * 4096,
	URI_BYTES_MAX = 3 * 4096 + 1024,
};

/* --- collecting ---------------------------------------------------------------------------- */

/* Large reads that were sent from the page cache, and those that were not. */
struct page_cache_send {
	uint64_t bytes;
	uint64_t misses;
};

/* Sums over the reactors; made for what has traffic only. */
struct summary {
	const struct server_view *view;
	struct engine_counters counters;
	struct path_stats **stats; /* [export * STORE_OP_COUNT + op], or NULL */
	struct overlap *overlaps;  /* [export * 2], of reads and writes: of the busiest reactor */
	struct page_cache_send *page_cache; /* [export] */
	bool short_of_memory;
};

static void add_stats(
	struct summary *summary, const struct path_export *measured, uint32_t export_index)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_stats *from = measured->stats[op];
		struct path_stats **into =
			&summary->stats[(size_t)export_index * STORE_OP_COUNT + (size_t)op];

		if (from == NULL) {
			continue;
		}
		if (*into == NULL) {
			*into = calloc(PATH_SIZE_CLASS_COUNT, sizeof(**into));
		}
		if (*into == NULL) {
			summary->short_of_memory = true;
			return;
		}
		for (int size_class = 0; size_class < PATH_SIZE_CLASS_COUNT; size_class++) {
			path_stats_merge(*into + size_class, from + size_class);
		}
	}
}

static void add_overlaps(
	struct summary *summary, const struct path_export *measured, uint32_t export_index)
{
	const struct overlap *const both[] = { &measured->reads, &measured->writes };

	for (size_t i = 0; i < ARRAY_COUNT(both); i++) {
		const struct overlap *from = both[i];
		struct overlap *into =
			&summary->overlaps[(size_t)export_index * ARRAY_COUNT(both) + i];

		if (from->disk_rate >= into->disk_rate) {
			*into = *from;
		}
	}
}

/* On a reactor's thread, while the main thread waits. */
static void inspect(struct engine *engine, void *context)
{
	struct summary *summary = context;

	engine_counters_add(&summary->counters, &engine->counters);
	for (uint32_t i = 0; i < summary->view->export_count; i++) {
		const struct path_export *measured =
			engine_export_measured(engine, summary->view->exports[i]);

		if (measured != NULL) {
			add_stats(summary, measured, i);
			add_overlaps(summary, measured, i);
			summary->page_cache[i].bytes += measured->page_cache_send_bytes;
			summary->page_cache[i].misses += measured->page_cache_send_misses;
		}
	}
}

static int collect(struct summary *summary)
{
	size_t count = (size_t)summary->view->export_count * STORE_OP_COUNT;

	summary->stats = calloc(MAX(count, (size_t)1), sizeof(struct path_stats *));
	summary->overlaps = calloc(MAX(count, (size_t)1), sizeof(*summary->overlaps));
	summary->page_cache = calloc(MAX(count, (size_t)1), sizeof(*summary->page_cache));
	if (summary->stats == NULL || summary->overlaps == NULL || summary->page_cache == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < summary->view->reactor_count; i++) {
		int rc = reactor_call(summary->view->reactors[i], inspect, summary);

		if (rc < 0) {
			return rc;
		}
	}
	return summary->short_of_memory ? -ENOMEM : 0;
}

static void summary_fini(struct summary *summary)
{
	size_t count = (size_t)summary->view->export_count * STORE_OP_COUNT;

	for (size_t i = 0; summary->stats != NULL && i < count; i++) {
		free(summary->stats[i]);
	}
	free(summary->stats);
	free(summary->overlaps);
	free(summary->page_cache);
}

/* --- the document -------------------------------------------------------------------------- */

static json_t *us(uint64_t ns)
{
	return json_real((double)ns / 1000);
}

static json_t *per_request_us(uint64_t sum_ns, uint64_t count)
{
	return json_real(count > 0 ? (double)sum_ns / (double)count / 1000 : 0);
}

static json_t *class_json(const struct path_stats *stats, int op, uint32_t size_class)
{
	uint64_t limit = path_size_class_limit(size_class);
	json_t *latency = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "mean",
		per_request_us(stats->total_ns, stats->count), "p50",
		us(path_stats_quantile_ns(stats, 500000)), "p90",
		us(path_stats_quantile_ns(stats, 900000)), "p99",
		us(path_stats_quantile_ns(stats, 990000)), "p99_9",
		us(path_stats_quantile_ns(stats, 999000)), "max", us(stats->max_ns));
	json_t *states = json_pack("{s:o, s:o, s:o, s:o}", "init",
		per_request_us(stats->state_ns[PATH_STATE_INIT], stats->count), "read",
		per_request_us(stats->state_ns[PATH_STATE_READ], stats->count), "send_init",
		per_request_us(stats->state_ns[PATH_STATE_SEND_INIT], stats->count), "send",
		per_request_us(stats->state_ns[PATH_STATE_SEND], stats->count));

	return json_pack("{s:s, s:I, s:o, s:I, s:I, s:I, s:o, s:o}", "operation",
		store_op_name((enum store_op)op), "size_above",
		(json_int_t)(size_class > 0 ? path_size_class_limit(size_class - 1) : 0),
		"size_max", limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit),
		"count", (json_int_t)stats->count, "errors", (json_int_t)stats->errors, "bytes",
		(json_int_t)stats->bytes, "latency_us", latency, "state_us", states);
}

static json_t *known(uint64_t value)
{
	return value > 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *text_or_null(const char *text)
{
	return text != NULL ? json_string(text) : json_null();
}

static json_t *overlap_stats_json(const struct overlap *overlap)
{
	json_t *early = overlap->early_measured
				? json_real((double)overlap->early / OVERLAP_EARLY_ONE)
				: json_null();

	return json_pack("{s:o, s:o, s:o, s:o}", "part_size", known(overlap->chosen),
		"disk_bytes_per_second", known(overlap->disk_rate), "network_bytes_per_second",
		known(overlap->network_rate), "early", early);
}

static json_t *overlap_json(uint32_t overlap)
{
	if (overlap == PATH_OVERLAP_AUTO) {
		return json_string("auto");
	}
	return overlap == PATH_OVERLAP_OFF ? json_string("off") : json_integer((json_int_t)overlap);
}

static json_t *export_json(const struct summary *summary, uint32_t export_index)
{
	const struct export *entry = summary->view->exports[export_index];
	const char *path = summary->view->paths[export_index];
	json_t *operations = json_array();
	char shown[PATH_SHOWN_BYTES];

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_stats *stats =
			summary->stats[(size_t)export_index * STORE_OP_COUNT + (size_t)op];

		for (uint32_t size_class = 0; stats != NULL && size_class < PATH_SIZE_CLASS_COUNT;
			size_class++) {
			if (stats[size_class].count > 0) {
				json_array_append_new(
					operations, class_json(&stats[size_class], op, size_class));
			}
		}
	}
	return json_pack("{s:s%, s:s, s:I, s:b, s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "name",
		entry->name, (size_t)entry->name_bytes, "path",
		/* A path may be any bytes, JSON is UTF-8. */
		log_escape(shown, sizeof(shown), path, strlen(path)), "bytes",
		(json_int_t)store_size(entry->store), "read_only", entry->read_only, "connections",
		(json_int_t)atomic_load_explicit(&entry->connections, memory_order_relaxed),
		"overlap", overlap_json(entry->overlap), "reads",
		overlap_stats_json(&summary->overlaps[(size_t)export_index * 2]), "writes",
		overlap_stats_json(&summary->overlaps[(size_t)export_index * 2 + 1]),
		"page_cache_send_bytes", (json_int_t)summary->page_cache[export_index].bytes,
		"page_cache_send_misses", (json_int_t)summary->page_cache[export_index].misses,
		"page_cache_send_refusal", text_or_null(export_page_cache_refusal(entry)),
		"operations", operations);
}

static json_t *uris_json(const struct server_view *view)
{
	json_t *uris = json_array();
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < view->listener_count; i++) {
		for (uint32_t k = 0; k < view->export_count; k++) {
			if (nbd_uri_format(&view->listeners[i].uri, view->exports[k]->name,
				    view->exports[k]->name_bytes, uri, sizeof(uri)) == 0) {
				json_array_append_new(uris, json_string(uri));
			}
		}
	}
	return uris;
}

static json_t *counters_json(const struct engine_counters *counters)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "connections",
		(json_int_t)counters->sessions, "handshakes", (json_int_t)counters->handshakes,
		"inflight", (json_int_t)counters->inflight, "connections_accepted",
		(json_int_t)counters->sessions_accepted, "connections_refused",
		(json_int_t)counters->sessions_refused, "connections_failed",
		(json_int_t)counters->sessions_failed, "requests", (json_int_t)counters->requests,
		"errors", (json_int_t)counters->errors, "bytes_read",
		(json_int_t)counters->bytes_read, "bytes_written",
		(json_int_t)counters->bytes_written);
}

json_t *stats_document(const struct server_view *view, int *code)
{
	struct summary summary = { .view = view };
	uint64_t at_ns = clock_now_ns();
	json_t *document = NULL;

	*code = collect(&summary);
	if (*code == 0) {
		json_t *exports = json_array();

		for (uint32_t i = 0; i < view->export_count; i++) {
			json_array_append_new(exports, export_json(&summary, i));
		}
		document = json_pack("{s:s, s:I, s:f, s:f, s:o, s:o, s:o}", "version",
			GMBLOCK_VERSION, "pid", (json_int_t)getpid(), "uptime_seconds",
			(double)(at_ns - view->start_ns) / 1e9, "clock_seconds",
			(double)at_ns / 1e9, "uris", uris_json(view), "counters",
			counters_json(&summary.counters), "exports", exports);
	}
	summary_fini(&summary);
	return document;
}
