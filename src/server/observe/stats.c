// SPDX-License-Identifier: Apache-2.0
#include "server/observe/stats.h"
#include "server/listen/address.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/lease/leases.h"
#include "server/observe/totals.h"
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

static json_t *counter_json(const struct counter *counter, uint64_t value)
{
	if (value == COUNTER_NONE) {
		return json_null();
	}
	if (counter->unit == COUNTER_BOOL) {
		return json_boolean(value != 0);
	}
	return counter->unit == COUNTER_PERMILLE ? json_real((double)value / 1000)
						 : json_integer((json_int_t)value);
}

uint64_t stats_counter_value(const struct counter *counter, const json_t *object)
{
	const json_t *value = json_object_get(object, counter->name);

	if (json_is_boolean(value)) {
		return json_is_true(value);
	}
	if (counter->unit == COUNTER_PERMILLE && json_is_number(value)) {
		double ratio = json_number_value(value);

		return ratio >= 0 && ratio <= 1 ? (uint64_t)(ratio * 1000 + 0.5) : COUNTER_NONE;
	}
	return json_is_null(value) ? COUNTER_NONE : (uint64_t)json_integer_value(value);
}

static void counters_add(json_t *object, const struct counter_table *table, const void *values)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct counter *counter = &table->counters[i];

		json_object_set_new(object, counter->name,
			counter_json(counter, counter_value(counter, values)));
	}
}

static json_t *counters_json(const struct counter_table *table, const void *values)
{
	json_t *object = json_object();

	counters_add(object, table, values);
	return object;
}

/* Lists the latency buckets that have requests: [upper limit in us, requests]. The last bucket has
 * no limit. */
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

/* Returns the statistics of one operation, such as read. */
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

/* Returns the statistics of an operation's requests of one size class. */
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

static json_t *client_json(const struct totals_client *client)
{
	json_t *operations = json_array();

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (client->operations[op] != NULL) {
			json_array_append_new(
				operations, operation_json(client->operations[op], op));
		}
	}
	json_t *whole = json_pack("{s:s, s:o}", "name", client->name, "operations", operations);

	counters_add(whole, &totals_client_table, client);
	return whole;
}

static json_t *nodes_json(const struct totals *totals)
{
	json_t *nodes = json_array();

	for (uint32_t i = 0; i < totals->node_count; i++) {
		json_t *node = json_pack("{s:s}", "name", totals->nodes[i].name);

		counters_add(node, &totals_node_table, &totals->nodes[i]);
		json_array_append_new(nodes, node);
	}
	return nodes;
}

static json_t *stats_known(uint64_t value)
{
	return value > 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *text_or_null(const char *text)
{
	return text != NULL ? json_string(text) : json_null();
}

static json_t *overlap_json(uint32_t overlap)
{
	if (overlap == PATH_OVERLAP_AUTO) {
		return json_string("auto");
	}
	return overlap == PATH_OVERLAP_OFF ? json_string("off") : json_integer((json_int_t)overlap);
}

static json_t *burst_json(const struct rate_limits *limits)
{
	return json_real((double)limits->burst_ns / 1e9);
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

static json_t *arenas_json(const struct totals *totals)
{
	json_t *all = json_array();

	arena_json(all, &totals->ram);
	arena_json(all, &totals->device);
	return all;
}

/* Returns the rate rules of identities, in order. */
static json_t *rules_json(struct rate_rules *rules)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < rate_rules_count(rules); i++) {
		char shown[PATH_SHOWN_BYTES];
		struct rate_rule rule;
		uint32_t identities;

		rate_rules_look(rules, i, &rule, &identities);
		json_array_append_new(all,
			json_pack("{s:o, s:o, s:o, s:s, s:o, s:o, s:I}", "bytes_per_second",
				stats_known(rule.limits.per_second[RATE_BYTES]),
				"requests_per_second",
				stats_known(rule.limits.per_second[RATE_REQUESTS]), "burst_seconds",
				burst_json(&rule.limits), "origin",
				log_escape(shown, sizeof(shown), rule.origin, strlen(rule.origin)),
				"connections_max", stats_known(rule.connections_max),
				"memory_max_bytes", stats_known(rule.memory_max), "identities",
				(json_int_t)identities));
	}
	return all;
}

/* Returns the counters of a store's layers, by layer name. */
static json_t *layers_json(const struct totals_export *about, const struct store *store)
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

/* Adds the counters of an export, some in nested objects. */
static void parts_add(json_t *whole, const struct totals_export *about)
{
	for (size_t i = 0; i < TOTALS_PARTS; i++) {
		const struct totals_part *part = &totals_parts[i];
		json_t *object = whole;

		if (part->member != NULL) {
			object = json_object_get(whole, part->member);
			if (object == NULL) {
				object = json_object();
				json_object_set_new(whole, part->member, object);
			}
		}
		counters_add(object, part->table, (const char *)about + part->offset);
	}
}

static json_t *export_json(const struct totals *totals, uint32_t export_index)
{
	const struct export *entry = totals->view->exports->exports[export_index];
	const struct totals_export *about = &totals->exports[export_index];
	const struct path_export *sum = &about->path;
	const char *path = totals->view->exports->list[export_index]->about.path;
	json_t *operations = json_array();
	char shown[PATH_SHOWN_BYTES];
	struct rate_limits limits;
	json_t *whole;

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_operation *operation = sum->operations[op];

		for (uint32_t i = 0; operation != NULL && i < PATH_SIZE_CLASS_COUNT; i++) {
			if (operation->classes[i].count > 0) {
				json_array_append_new(
					operations, class_json(&operation->classes[i], op, i));
			}
		}
	}
	/* A path may contain any bytes, but JSON must be UTF-8. */
	whole = json_pack("{s:s%, s:s}", "name", entry->name, (size_t)entry->name_bytes, "path",
		log_escape(shown, sizeof(shown), path, strlen(path)));
	parts_add(whole, about);
	rate_get(&entry->rate, &limits);
	json_object_set_new(json_object_get(whole, "rate"), "burst_seconds", burst_json(&limits));
	json_object_update_new(
		whole, json_pack("{s:o, s:o, s:s, s:b, s:o, s:o}", "overlap",
			       overlap_json(entry->overlap), "page_cache_send_refusal",
			       text_or_null(store_page_cache_refusal(entry->store)), "barrier",
			       store_barrier_name(store_barrier(entry->store, false)), "lost",
			       store_is_lost(entry->store), "store",
			       layers_json(about, entry->store), "operations", operations));
	json_object_set_new(whole, "lease_holders", leases_list(totals->view->leases, entry));
	return whole;
}

static json_t *uris_json(const struct server_view *view)
{
	json_t *uris = json_array();
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < *view->listener_count; i++) {
		for (uint32_t k = 0; k < view->exports->count; k++) {
			if (listen_address_serves(&view->listeners[i], view->exports->exports[k]) &&
				export_uri_format(&view->listeners[i].uri,
					view->exports->exports[k]->name,
					view->exports->exports[k]->name_bytes, uri,
					sizeof(uri)) == 0) {
				json_array_append_new(uris, json_string(uri));
			}
		}
	}
	return uris;
}

json_t *stats_document(const struct server_view *view, int *code)
{
	struct totals totals;
	json_t *document = NULL;

	*code = totals_collect(view, &totals);
	if (*code == 0) {
		json_t *exports = json_array();

		for (uint32_t i = 0; i < view->exports->count; i++) {
			json_array_append_new(exports, export_json(&totals, i));
		}
		json_t *clients = json_array();

		for (uint32_t i = 0; i < totals.client_count; i++) {
			json_t *client = client_json(&totals.clients[i]);

			/* "other", the sum of clients without an entry, is left out if no client is
			 * in it. */
			if (totals.clients[i].session_count > 0 ||
				json_array_size(json_object_get(client, "operations")) > 0) {
				json_array_append(clients, client);
			}
			json_decref(client);
		}
		char instance[2 * ENGINE_INSTANCE_BYTES + 1];

		for (int i = 0; i < ENGINE_INSTANCE_BYTES; i++) {
			snprintf(instance + 2 * i, 3, "%02x", view->instance[i]);
		}
		document = json_pack("{s:s, s:I, s:s, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			"version", GMBLOCK_VERSION, "pid", (json_int_t)getpid(), "instance",
			instance, "uptime_seconds", (double)(totals.at_ns - view->start_ns) / 1e9,
			"clock_seconds", (double)totals.at_ns / 1e9, "uris", uris_json(view),
			"counters", counters_json(&engine_counter_table, &totals.counters),
			"arenas", arenas_json(&totals), "rates", rules_json(view->rate_rules),
			"exports", exports, "clients", clients, "nodes", nodes_json(&totals));
	}
	totals_fini(&totals);
	return document;
}

static void observe_stats_describe(json_t *all, const struct counter_table *table)
{
	static const char *const units[] = { "", "bytes", "nanoseconds", "bytes per second",
		"ratio", "boolean" };
	static const char *const kinds[] = { "total", "now" };
	char metric[COUNTER_METRIC_BYTES];

	for (size_t k = 0; k < table->count; k++) {
		const struct counter *counter = &table->counters[k];

		json_array_append_new(all,
			json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o}", "of", table->name,
				"name", counter->name, "labels", table->labels, "unit",
				units[counter->unit], "kind", kinds[counter->kind], "help",
				counter->help, "metric", counter_metric(metric, table, counter),
				"metric_labels", text_or_null(counter->labels)));
	}
}

json_t *stats_counters(void)
{
	const struct counter_table *before = NULL;
	const struct store_kind *kind;
	json_t *all = json_array();

	observe_stats_describe(all, &engine_counter_table);
	observe_stats_describe(all, &path_arena_counter_table);
	for (size_t i = 0; i < TOTALS_PARTS; i++) {
		if (totals_parts[i].table != before) {
			observe_stats_describe(all, totals_parts[i].table);
		}
		before = totals_parts[i].table;
	}
	observe_stats_describe(all, &path_stats_counter_table);
	for (uint32_t i = 0; (kind = store_kind_at(i)) != NULL; i++) {
		if (kind->ops->counters != NULL) {
			observe_stats_describe(all, kind->ops->counters);
		}
	}
	observe_stats_describe(all, &totals_client_table);
	observe_stats_describe(all, &totals_node_table);
	return json_pack("{s:o}", "counters", all);
}
