// SPDX-License-Identifier: Apache-2.0
#include "server/observe/summary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/kind.h"

/* --- tables ---------------------------------------------------------------------------------- */

#define EXPORT(field, unit, name, help, ...)                                                       \
	COUNTER(struct summary_export, field, NOW, unit, name, help, __VA_ARGS__)

static const struct counter export_list[] = {
	EXPORT(size_bytes, BYTES, "size", "Size of the export", .metric = "export_size_bytes"),
	EXPORT(connections, ITEMS, "connections", "Connections that use the export"),
	EXPORT(read_only, BOOL, "read_only", "No client can write to the export"),
	EXPORT(started_permille, PERMILLE, "started", "Completed part of the store's start",
		.metric = "export_started_ratio"),
};

static const struct counter_table export_table = { "export", "export", "export_", export_list,
	ARRAY_COUNT(export_list) };

static const struct counter rate_list[] = {
	EXPORT(rate_bytes_max, BYTES_PER_SECOND, "bytes_per_second", "Limit on the data rate",
		.metric = "export_rate_limit_bytes_per_second"),
	EXPORT(rate_requests_max, ITEMS, "requests_per_second", "Limit on requests per second",
		.metric = "export_rate_limit_requests_per_second"),
};

static const struct counter_table rate_table = { "rate", "export", "export_rate_", rate_list,
	ARRAY_COUNT(rate_list) };

static const struct counter memory_list[] = {
	EXPORT(memory_max, BYTES, "max_bytes",
		"Limit on payload memory held by the clients of the export",
		.metric = "export_memory_limit_bytes"),
};

static const struct counter_table memory_table = { "memory", "export", "export_memory_",
	memory_list, ARRAY_COUNT(memory_list) };

#define DIRECTION(field, unit, name, help, ...)                                                    \
	COUNTER(struct summary_direction, field, NOW, unit, name, help, __VA_ARGS__)

static const struct counter direction_list[] = {
	DIRECTION(part_bytes, BYTES, "part_size", "Size of the parts of large requests",
		.metric = COUNTER_NO_METRIC),
	DIRECTION(disk_rate, BYTES_PER_SECOND, "disk_bytes_per_second",
		"Measured data rate of the disk, on the fastest thread"),
	DIRECTION(network_rate, BYTES_PER_SECOND, "network_bytes_per_second",
		"Measured data rate of the network while large requests were split"),
	DIRECTION(early_permille, PERMILLE, "early",
		"How early the parts of a request complete: 0 all at its end, 0.5 evenly spread",
		.metric = "export_overlap_early_ratio"),
};

static const struct counter_table direction_table = { "direction", "export,direction", "export_",
	direction_list, ARRAY_COUNT(direction_list) };

#define PART(field) offsetof(struct summary_export, field)

const struct summary_part summary_parts[SUMMARY_PARTS] = {
	{ &export_table, 0, NULL, NULL, NULL },
	{ &path_export_counter_table, PART(path), NULL, NULL, NULL },
	{ &rate_table, 0, "rate", NULL, NULL },
	{ &rate_counter_table, PART(rate), "rate", NULL, NULL },
	{ &memory_table, 0, "memory", NULL, NULL },
	{ &path_quota_counter_table, PART(memory), "memory", NULL, NULL },
	{ &direction_table, PART(reads), "reads", "large reads", "read" },
	{ &direction_table, PART(writes), "writes", "large writes", "write" },
};

static const struct counter client_list[] = {
	COUNTER(struct summary_client, session_count, NOW, ITEMS, "connections",
		"Connections of the client"),
};

const struct counter_table summary_client_table = { "client", "client", "client_", client_list,
	ARRAY_COUNT(client_list) };

/* --- sums ------------------------------------------------------------------------------------ */

/* Returns sum, allocated if it is NULL. NULL: no memory, which is recorded. */
static void *sum_of(struct summary *summary, void *sum, size_t bytes)
{
	sum = sum != NULL ? sum : calloc(1, bytes);
	summary->short_of_memory = summary->short_of_memory || sum == NULL;
	return sum;
}

static void summary_add_operations(
	struct summary *summary, struct path_export *sum, const struct path_export *measured)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (measured->operations[op] == NULL) {
			continue;
		}
		sum->operations[op] =
			sum_of(summary, sum->operations[op], sizeof(*sum->operations[op]));
		if (sum->operations[op] != NULL) {
			path_operation_merge(sum->operations[op], measured->operations[op]);
		}
	}
	for (int slot = 0; slot < PATH_ERROR_COUNT; slot++) {
		sum->error_counts[slot] += measured->error_counts[slot];
	}
}

/* Converts a rate or limit; 0 means none. */
static uint64_t summary_known(uint64_t value)
{
	return value > 0 ? value : COUNTER_NONE;
}

static void keep_fastest(struct summary_direction *kept, const struct overlap *measured,
	const struct store_rate *rate)
{
	if (kept->disk_rate == COUNTER_NONE || rate->bytes_per_second >= kept->disk_rate) {
		*kept = (struct summary_direction){
			.part_bytes = summary_known(measured->chosen),
			.disk_rate = summary_known(rate->bytes_per_second),
			.network_rate = summary_known(measured->network_rate),
			.early_permille =
				measured->early_measured
					? (uint64_t)measured->early * 1000 / OVERLAP_EARLY_ONE
					: COUNTER_NONE,
		};
	}
}

static void add_layers(
	struct summary *summary, struct summary_export *sum, const struct store_queue *queue)
{
	for (uint32_t i = 0; queue != NULL; i++, queue = queue->inner) {
		const struct counter_table *table;
		const void *values = store_queue_counters(queue, &table);

		if (values == NULL) {
			continue;
		}
		sum->layers[i] = sum_of(summary, sum->layers[i], table->count * sizeof(uint64_t));
		for (size_t k = 0; sum->layers[i] != NULL && k < table->count; k++) {
			sum->layers[i][k] += counter_value(&table->counters[k], values);
		}
	}
}

static void summary_add_export(
	struct summary *summary, const struct engine_export *entry, struct summary_export *sum)
{
	const struct path_export *measured = &entry->path;

	counter_table_add(&rate_counter_table, &sum->rate, &entry->rate.counters);
	counter_table_add(&path_quota_counter_table, &sum->memory, &entry->memory);
	counter_table_add(&path_export_counter_table, &sum->path, measured);
	summary_add_operations(summary, &sum->path, measured);
	add_layers(summary, sum, measured->queue);
	keep_fastest(&sum->reads, &measured->reads, store_rate(measured->queue, STORE_READ));
	keep_fastest(&sum->writes, &measured->writes, store_rate(measured->queue, STORE_WRITE));
}

/* Finds or adds the client of that name. NULL: no memory. */
static struct summary_client *find_client(struct summary *summary, const char *name)
{
	struct summary_client *grown;

	for (uint32_t i = 0; i < summary->client_count; i++) {
		if (strcmp(summary->clients[i].name, name) == 0) {
			return &summary->clients[i];
		}
	}
	if (summary->client_count == summary->client_room) {
		summary->client_room += ENGINE_CLIENTS_EACH_MAX;
		grown = realloc(summary->clients, summary->client_room * sizeof(*grown));
		if (grown == NULL) {
			summary->short_of_memory = true;
			return NULL;
		}
		summary->clients = grown;
	}
	summary->clients[summary->client_count] = (struct summary_client){ 0 };
	memcpy(summary->clients[summary->client_count].name, name, ENGINE_CLIENT_NAME_BYTES);
	return &summary->clients[summary->client_count++];
}

static void add_client(struct summary *summary, const struct engine_client *client)
{
	struct summary_client *sum = find_client(summary, client->name);

	if (sum == NULL) {
		return;
	}
	sum->session_count += client->session_count;
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (client->operations[op] == NULL) {
			continue;
		}
		sum->operations[op] =
			sum_of(summary, sum->operations[op], sizeof(*sum->operations[op]));
		if (sum->operations[op] != NULL) {
			path_stats_merge(sum->operations[op], client->operations[op]);
		}
	}
}

/* Called on a reactor's thread while the main thread waits. */
static void inspect(struct engine *engine, void *context)
{
	struct summary *summary = context;
	uint32_t hint = 0;

	engine_counters_add(engine, &summary->counters);
	path_arenas_add(engine->path, &summary->ram, &summary->device);
	for (uint32_t i = 0; i < summary->view->export_count; i++) {
		const struct engine_export *entry =
			engine_export_entry(engine, summary->view->exports[i], &hint);

		if (entry != NULL) {
			summary_add_export(summary, entry, &summary->exports[i]);
		}
	}
	list_for_each(node, &engine->clients)
	{
		add_client(summary, list_entry(node, struct engine_client, node));
	}
	add_client(summary, &engine->other_clients);
}

/* Collects values that need no reactor. */
static void summary_look_at(struct summary_export *sum, const struct export *export)
{
	struct rate_limits limits;

	rate_get(&export->rate, &limits);
	sum->size_bytes = store_size(export->store);
	sum->connections = atomic_load_explicit(&export->connections, memory_order_relaxed);
	sum->read_only = atomic_load_explicit(&export->read_only, memory_order_relaxed);
	sum->started_permille = store_start_permille(export->store);
	sum->memory_max =
		summary_known(atomic_load_explicit(&export->memory_max, memory_order_relaxed));
	sum->rate_bytes_max = summary_known(limits.per_second[RATE_BYTES]);
	sum->rate_requests_max = summary_known(limits.per_second[RATE_REQUESTS]);
}

int summary_collect(const struct server_view *view, struct summary *summary)
{
	static const struct summary_direction nothing_measured = { COUNTER_NONE, COUNTER_NONE,
		COUNTER_NONE, COUNTER_NONE };

	*summary = (struct summary){ .view = view };
	summary->exports = calloc(MAX(view->export_count, 1U), sizeof(*summary->exports));
	if (summary->exports == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < view->export_count; i++) {
		summary->exports[i].reads = nothing_measured;
		summary->exports[i].writes = nothing_measured;
	}
	for (uint32_t i = 0; i < view->reactor_count; i++) {
		int rc = reactor_call(view->reactors[i], inspect, summary);

		if (rc < 0) {
			return rc;
		}
	}
	for (uint32_t i = 0; i < view->export_count; i++) {
		summary_look_at(&summary->exports[i], view->exports[i]);
	}
	summary->at_ns = clock_now_ns();
	return summary->short_of_memory ? -ENOMEM : 0;
}

void summary_fini(struct summary *summary)
{
	for (uint32_t i = 0; summary->exports != NULL && i < summary->view->export_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			free(summary->exports[i].path.operations[op]);
		}
		for (int layer = 0; layer < STORE_KINDS_MAX; layer++) {
			free(summary->exports[i].layers[layer]);
		}
	}
	for (uint32_t i = 0; i < summary->client_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			free(summary->clients[i].operations[op]);
		}
	}
	free(summary->exports);
	free(summary->clients);
}
