// SPDX-License-Identifier: Apache-2.0
#include "server/observe/stats.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/observe/summary.h"
#include "store/kind.h"

enum {
	PATH_SHOWN_BYTES = 4 * 4096,
	URI_BYTES_MAX = 3 * 4096 + 1024,
};

/* --- the document -------------------------------------------------------------------------- */

static json_t *observe_stats_us(uint64_t ns)
{
	return json_real((double)ns / 1000);
}

static json_t *per_request_us(uint64_t sum_ns, uint64_t count)
{
	return json_real(count > 0 ? (double)sum_ns / (double)count / 1000 : 0);
}

static json_t *counters_json(const struct counter_table *table, const void *values)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->count; i++) {
		json_object_set_new(object, table->counters[i].name,
			json_integer((json_int_t)counter_value(&table->counters[i], values)));
	}
	return object;
}

/* Those with requests in them: [upper limit in us, requests]; the last one has no limit. */
static json_t *buckets_json(const struct path_stats *stats)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < PATH_LATENCY_BUCKETS; i++) {
		if (stats->latency[i] > 0) {
			uint64_t limit_ns = path_latency_limit_ns(i);

			json_array_append_new(
				list, json_pack("[o, I]",
					      limit_ns == UINT64_MAX ? json_null()
								     : observe_stats_us(limit_ns),
					      (json_int_t)stats->latency[i]));
		}
	}
	return list;
}

/* The requests of one operation. */
static json_t *operation_json(const struct path_stats *stats, int op)
{
	json_t *latency = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "mean",
		per_request_us(stats->total_ns, stats->count), "p50",
		observe_stats_us(path_stats_quantile_ns(stats, 500000)), "p90",
		observe_stats_us(path_stats_quantile_ns(stats, 900000)), "p99",
		observe_stats_us(path_stats_quantile_ns(stats, 990000)), "p99_9",
		observe_stats_us(path_stats_quantile_ns(stats, 999000)), "max",
		observe_stats_us(stats->max_ns));
	json_t *states = json_object();
	json_t *whole = counters_json(&path_stats_counter_table, stats);

	for (int state = 0; state < PATH_STATE_DONE; state++) {
		json_object_set_new(states, path_state_name((enum path_state)state),
			per_request_us(stats->state_ns[state], stats->count));
	}
	json_object_update_new(
		whole, json_pack("{s:s, s:o, s:o, s:o}", "operation",
			       store_op_name((enum store_op)op), "latency_us", latency,
			       "latency_buckets", buckets_json(stats), "state_us", states));
	return whole;
}

/* Those of one size class. */
static json_t *class_json(const struct path_stats *stats, int op, uint32_t size_class)
{
	uint64_t limit = path_size_class_limit(size_class);
	json_t *whole = operation_json(stats, op);

	json_object_update_new(whole,
		json_pack("{s:I, s:o}", "size_above",
			(json_int_t)(size_class > 0 ? path_size_class_limit(size_class - 1) : 0),
			"size_max",
			limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit)));
	return whole;
}

static json_t *client_json(const struct summary_client *client)
{
	json_t *operations = json_array();

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (client->operations[op] != NULL) {
			json_array_append_new(
				operations, operation_json(client->operations[op], op));
		}
	}
	return json_pack("{s:s, s:I, s:o}", "name", client->name, "connections",
		(json_int_t)client->session_count, "operations", operations);
}

static json_t *known(uint64_t value)
{
	return value > 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *text_or_null(const char *text)
{
	return text != NULL ? json_string(text) : json_null();
}

static json_t *overlap_stats_json(const struct overlap *overlap, uint64_t disk_rate)
{
	json_t *early = overlap->early_measured
				? json_real((double)overlap->early / OVERLAP_EARLY_ONE)
				: json_null();

	return json_pack("{s:o, s:o, s:o, s:o}", "part_size", known(overlap->chosen),
		"disk_bytes_per_second", known(disk_rate), "network_bytes_per_second",
		known(overlap->network_rate), "early", early);
}

static json_t *overlap_json(uint32_t overlap)
{
	if (overlap == PATH_OVERLAP_AUTO) {
		return json_string("auto");
	}
	return overlap == PATH_OVERLAP_OFF ? json_string("off") : json_integer((json_int_t)overlap);
}

static json_t *limits_json(const struct rate_limits *limits)
{
	return json_pack("{s:o, s:o, s:f}", "bytes_per_second",
		known(limits->per_second[RATE_BYTES]), "requests_per_second",
		known(limits->per_second[RATE_REQUESTS]), "burst_seconds",
		(double)limits->burst_ns / 1e9);
}

static json_t *rate_json(const struct export *entry, const struct rate_counters *counters)
{
	json_t *whole = counters_json(&rate_counter_table, counters);
	struct rate_limits limits;

	rate_get(&entry->rate, &limits);
	json_object_update_new(whole, limits_json(&limits));
	return whole;
}

static json_t *memory_json(const struct export *entry, const struct path_quota *counters)
{
	json_t *whole = counters_json(&path_quota_counter_table, counters);

	json_object_set_new(whole, "max_bytes",
		known(atomic_load_explicit(&entry->memory_max, memory_order_relaxed)));
	return whole;
}

static void arena_json(json_t *all, const struct path_arena *arena)
{
	json_t *whole;

	if (arena->kind != NULL) {
		whole = counters_json(&path_arena_counter_table, arena);
		json_object_update_new(whole,
			json_pack("{s:s, s:o}", "kind", arena->kind, "trouble",
				text_or_null(arena->condemned != 0 ? strerror(-arena->condemned)
								   : NULL)));
		json_array_append_new(all, whole);
	}
}

static json_t *arenas_json(const struct summary *summary)
{
	json_t *all = json_array();

	arena_json(all, &summary->ram);
	arena_json(all, &summary->device);
	return all;
}

/* The rules for identities, in their order. */
static json_t *rules_json(struct rate_rules *rules)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < rate_rules_count(rules); i++) {
		char shown[PATH_SHOWN_BYTES];
		struct rate_rule rule;
		uint32_t identities;
		json_t *whole;

		rate_rules_look(rules, i, &rule, &identities);
		whole = limits_json(&rule.limits);
		json_object_update_new(whole,
			json_pack("{s:s, s:o, s:o, s:I}", "origin",
				log_escape(shown, sizeof(shown), rule.origin, strlen(rule.origin)),
				"connections_max", known(rule.connections_max), "memory_max_bytes",
				known(rule.memory_max), "identities", (json_int_t)identities));
		json_array_append_new(all, whole);
	}
	return all;
}

/* What the layers of a store have counted, by their names. */
static json_t *layers_json(const struct summary_export *about, const struct store *store)
{
	json_t *all = json_object();

	for (uint32_t i = 0; store != NULL; i++, store = store->inner) {
		const struct counter_table *table = store->ops->counters;
		json_t *layer;

		if (about->layers[i] == NULL) {
			continue;
		}
		layer = json_object();
		for (size_t k = 0; k < table->count; k++) {
			json_object_set_new(layer, table->counters[k].name,
				json_integer((json_int_t)about->layers[i][k]));
		}
		json_object_set_new(all, table->name, layer);
	}
	return all;
}

static json_t *export_json(const struct summary *summary, uint32_t export_index)
{
	const struct export *entry = summary->view->exports[export_index];
	const struct summary_export *about = &summary->exports[export_index];
	const struct path_export *sum = &about->path;
	const char *path = summary->view->paths[export_index];
	json_t *whole = counters_json(&path_export_counter_table, sum);
	json_t *operations = json_array();
	char shown[PATH_SHOWN_BYTES];

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_operation *operation = sum->operations[op];

		for (uint32_t i = 0; operation != NULL && i < PATH_SIZE_CLASS_COUNT; i++) {
			if (operation->classes[i].count > 0) {
				json_array_append_new(
					operations, class_json(&operation->classes[i], op, i));
			}
		}
	}
	json_object_update_new(whole,
		json_pack("{s:s%, s:s, s:I, s:f, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, "
			  "s:o}",
			"name", entry->name, (size_t)entry->name_bytes, "path",
			/* A path may be any bytes, JSON is UTF-8. */
			log_escape(shown, sizeof(shown), path, strlen(path)), "size",
			(json_int_t)store_size(entry->store), "started",
			store_start_permille(entry->store) / 1000.0, "read_only",
			atomic_load_explicit(&entry->read_only, memory_order_relaxed),
			"connections",
			(json_int_t)atomic_load_explicit(&entry->connections, memory_order_relaxed),
			"rate", rate_json(entry, &about->rate), "memory",
			memory_json(entry, &about->memory), "overlap", overlap_json(entry->overlap),
			"reads", overlap_stats_json(&sum->reads, about->read_rate), "writes",
			overlap_stats_json(&sum->writes, about->write_rate),
			"page_cache_send_refusal", text_or_null(export_page_cache_refusal(entry)),
			"barrier", store_barrier_name(store_barrier(entry->store, false)), "store",
			layers_json(about, entry->store), "operations", operations));
	return whole;
}

static json_t *uris_json(const struct server_view *view)
{
	json_t *uris = json_array();
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < view->listener_count; i++) {
		for (uint32_t k = 0; k < view->export_count; k++) {
			if (export_uri_format(&view->listeners[i].uri, view->exports[k]->name,
				    view->exports[k]->name_bytes, uri, sizeof(uri)) == 0) {
				json_array_append_new(uris, json_string(uri));
			}
		}
	}
	return uris;
}

json_t *stats_document(const struct server_view *view, int *code)
{
	struct summary summary;
	json_t *document = NULL;

	*code = summary_collect(view, &summary);
	if (*code == 0) {
		json_t *exports = json_array();

		for (uint32_t i = 0; i < view->export_count; i++) {
			json_array_append_new(exports, export_json(&summary, i));
		}
		json_t *clients = json_array();

		for (uint32_t i = 0; i < summary.client_count; i++) {
			json_t *client = client_json(&summary.clients[i]);

			/* "other" is there only when it stands for somebody. */
			if (summary.clients[i].session_count > 0 ||
				json_array_size(json_object_get(client, "operations")) > 0) {
				json_array_append(clients, client);
			}
			json_decref(client);
		}
		char instance[2 * ENGINE_INSTANCE_BYTES + 1];

		for (int i = 0; i < ENGINE_INSTANCE_BYTES; i++) {
			snprintf(instance + 2 * i, 3, "%02x", view->instance[i]);
		}
		document = json_pack("{s:s, s:I, s:s, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o}",
			"version", GMBLOCK_VERSION, "pid", (json_int_t)getpid(), "instance",
			instance, "uptime_seconds", (double)(summary.at_ns - view->start_ns) / 1e9,
			"clock_seconds", (double)summary.at_ns / 1e9, "uris", uris_json(view),
			"counters", counters_json(&engine_counter_table, &summary.counters),
			"arenas", arenas_json(&summary), "rates", rules_json(view->rate_rules),
			"exports", exports, "clients", clients);
	}
	summary_fini(&summary);
	return document;
}

static void observe_stats_describe(json_t *all, const struct counter_table *table)
{
	static const char *const units[] = { "", "bytes", "nanoseconds" };
	static const char *const kinds[] = { "total", "now" };

	for (size_t k = 0; k < table->count; k++) {
		const struct counter *counter = &table->counters[k];

		json_array_append_new(
			all, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "of", table->name, "name",
				     counter->name, "labels", table->labels, "unit",
				     units[counter->unit], "kind", kinds[counter->kind], "help",
				     counter->help));
	}
}

json_t *stats_counters(void)
{
	static const struct counter_table *const tables[] = { &engine_counter_table,
		&path_export_counter_table, &path_stats_counter_table, &rate_counter_table,
		&path_quota_counter_table, &path_arena_counter_table };
	const struct store_kind *kind;
	json_t *all = json_array();

	for (size_t i = 0; i < ARRAY_COUNT(tables); i++) {
		observe_stats_describe(all, tables[i]);
	}
	for (uint32_t i = 0; (kind = store_kind_at(i)) != NULL; i++) {
		if (kind->ops->counters != NULL) {
			observe_stats_describe(all, kind->ops->counters);
		}
	}
	return json_pack("{s:o}", "counters", all);
}
