// SPDX-License-Identifier: Apache-2.0
#include "server/observe/summary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/kind.h"

/* Room for one more sum; NULL: no memory, which is remembered. */
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

static void keep_fastest(struct overlap *kept, uint64_t *kept_rate, const struct overlap *measured,
	const struct store_rate *rate)
{
	if (rate->bytes_per_second >= *kept_rate) {
		*kept = *measured;
		*kept_rate = rate->bytes_per_second;
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
	keep_fastest(&sum->path.reads, &sum->read_rate, &measured->reads,
		store_rate(measured->queue, STORE_READ));
	keep_fastest(&sum->path.writes, &sum->write_rate, &measured->writes,
		store_rate(measured->queue, STORE_WRITE));
}

/* The client of that name, perhaps a new one. NULL: no memory. */
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

/* On a reactor's thread, while the main thread waits. */
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

/* What needs no reactor. */
static void summary_look_at(struct summary_export *sum, const struct export *export)
{
	struct rate_limits limits;

	rate_get(&export->rate, &limits);
	sum->size_bytes = store_size(export->store);
	sum->connections = atomic_load_explicit(&export->connections, memory_order_relaxed);
	sum->read_only = atomic_load_explicit(&export->read_only, memory_order_relaxed);
	sum->started_permille = store_start_permille(export->store);
	sum->memory_max = atomic_load_explicit(&export->memory_max, memory_order_relaxed);
	sum->rate_bytes_max = limits.per_second[RATE_BYTES];
	sum->rate_requests_max = limits.per_second[RATE_REQUESTS];
}

int summary_collect(const struct server_view *view, struct summary *summary)
{
	*summary = (struct summary){ .view = view };
	summary->exports = calloc(MAX(view->export_count, 1U), sizeof(*summary->exports));
	if (summary->exports == NULL) {
		return -ENOMEM;
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
