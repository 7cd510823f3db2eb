// SPDX-License-Identifier: Apache-2.0
#include "server/observe/totals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/fence/fencing.h"
#include "server/lease/leases.h"
#include "store/kind.h"

/* --- tables ---------------------------------------------------------------------------------- */

#define EXPORT(field, unit, name, help, ...)                                                       \
	COUNTER(struct totals_export, field, NOW, unit, name, help, __VA_ARGS__)

static const struct counter export_list[] = {
	EXPORT(size_bytes, BYTES, "size", "Size of the export", .metric = "export_size_bytes"),
	EXPORT(connections, ITEMS, "connections", "Connections that use the export"),
	EXPORT(read_only, BOOL, "read_only", "The export is read-only"),
	EXPORT(started_permille, PERMILLE, "started", "Completed fraction of the store's startup",
		.metric = "export_started_ratio"),
	EXPORT(leases, ITEMS, "leases", "Clients that have a lease of the export"),
	EXPORT(leases_disconnected, ITEMS, "leases_disconnected",
		"Clients that have a lease and no connection"),
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
	COUNTER(struct totals_direction, field, NOW, unit, name, help, __VA_ARGS__)

static const struct counter direction_list[] = {
	DIRECTION(part_bytes, BYTES, "part_size",
		"Size of the parts into which large requests are split",
		.metric = COUNTER_NO_METRIC),
	DIRECTION(disk_rate, BYTES_PER_SECOND, "disk_bytes_per_second",
		"Measured data rate of the disk, on the fastest thread"),
	DIRECTION(network_rate, BYTES_PER_SECOND, "network_bytes_per_second",
		"Measured data rate of the network while large reads were sent"),
	DIRECTION(early_permille, PERMILLE, "early",
		"How early the parts of a request complete: 0 if all complete at its end, 0.5 if "
		"they are evenly spread",
		.metric = "export_overlap_early_ratio"),
	DIRECTION(whole_rate, BYTES_PER_SECOND, "whole_bytes_per_second",
		"Measured data rate of large requests that were not split",
		.metric = "export_overlap_whole_bytes_per_second"),
	DIRECTION(parts_rate, BYTES_PER_SECOND, "parts_bytes_per_second",
		"Measured data rate of large requests in parts",
		.metric = "export_overlap_parts_bytes_per_second"),
};

static const struct counter_table direction_table = { "direction", "export,direction", "export_",
	direction_list, ARRAY_COUNT(direction_list) };

#define PART(field) offsetof(struct totals_export, field)

const struct totals_part totals_parts[TOTALS_PARTS] = {
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
	COUNTER(struct totals_client, session_count, NOW, ITEMS, "connections",
		"Connections of the client"),
};

const struct counter_table totals_client_table = { "client", "client", "client_", client_list,
	ARRAY_COUNT(client_list) };

static const struct counter node_list[] = {
	COUNTER(struct totals_node, completed, TOTAL, ITEMS, "operations_completed",
		"Operations that disks have completed for the clients of the node"),
	COUNTER(struct totals_node, fenced, NOW, BOOL, "fenced", "The node is fenced"),
	COUNTER(struct totals_node, ended, NOW, BOOL, "ended",
		"The node is fenced, and its last operation has left all disks"),
};

const struct counter_table totals_node_table = { "node", "node", "node_", node_list,
	ARRAY_COUNT(node_list) };

/* --- sums ------------------------------------------------------------------------------------ */

/* Returns the struct `sum`, which is allocated if it is NULL. If there is no memory, returns NULL
 * and records that. */
static void *sum_of(struct totals *totals, void *sum, size_t bytes)
{
	sum = sum != NULL ? sum : calloc(1, bytes);
	totals->short_of_memory = totals->short_of_memory || sum == NULL;
	return sum;
}

static void totals_add_operations(
	struct totals *totals, struct path_export *sum, const struct path_export *measured)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (measured->operations[op] == NULL) {
			continue;
		}
		sum->operations[op] =
			sum_of(totals, sum->operations[op], sizeof(*sum->operations[op]));
		if (sum->operations[op] != NULL) {
			path_operation_merge(sum->operations[op], measured->operations[op]);
		}
	}
	for (int slot = 0; slot < PATH_ERROR_COUNT; slot++) {
		sum->error_counts[slot] += measured->error_counts[slot];
	}
}

/* Converts a rate or limit to a counter: 0, which means that there is none, becomes
 * COUNTER_NONE. */
static uint64_t totals_known(uint64_t value)
{
	return value > 0 ? value : COUNTER_NONE;
}

static void keep_fastest(struct totals_direction *kept, const struct overlap *measured,
	const struct store_rate *rate)
{
	if (kept->disk_rate == COUNTER_NONE || rate->bytes_per_second >= kept->disk_rate) {
		*kept = (struct totals_direction){
			.part_bytes = totals_known(measured->chosen),
			.disk_rate = totals_known(rate->bytes_per_second),
			.network_rate = totals_known(measured->network_rate),
			.early_permille =
				measured->early_measured
					? (uint64_t)measured->early * 1000 / OVERLAP_EARLY_ONE
					: COUNTER_NONE,
			.whole_rate = totals_known(measured->trial.rates[0] << 10),
			.parts_rate = totals_known(measured->trial.rates[1] << 10),
		};
	}
}

static void add_layers(
	struct totals *totals, struct totals_export *sum, const struct store_queue *queue)
{
	for (uint32_t i = 0; queue != NULL; i++, queue = queue->inner) {
		const struct counter_table *table;
		const void *values = store_queue_counters(queue, &table);

		if (values == NULL) {
			continue;
		}
		sum->layers[i] = sum_of(totals, sum->layers[i], table->count * sizeof(uint64_t));
		for (size_t k = 0; sum->layers[i] != NULL && k < table->count; k++) {
			sum->layers[i][k] += counter_value(&table->counters[k], values);
		}
	}
}

static void totals_add_export(
	struct totals *totals, const struct engine_export *entry, struct totals_export *sum)
{
	const struct path_export *measured = &entry->path;

	counter_table_add(&rate_counter_table, &sum->rate, &entry->rate.counters);
	counter_table_add(&path_quota_counter_table, &sum->memory, &entry->memory);
	counter_table_add(&path_export_counter_table, &sum->path, measured);
	totals_add_operations(totals, &sum->path, measured);
	add_layers(totals, sum, measured->queue);
	keep_fastest(&sum->reads, &measured->reads, store_rate(measured->queue, STORE_READ));
	keep_fastest(&sum->writes, &measured->writes, store_rate(measured->queue, STORE_WRITE));
}

/* Finds or adds the client of this name. NULL: no memory. */
static struct totals_client *find_client(struct totals *totals, const char *name)
{
	for (uint32_t i = 0; i < totals->client_count; i++) {
		if (strcmp(totals->clients[i].name, name) == 0) {
			return &totals->clients[i];
		}
	}
	if (array_grow(&totals->clients, totals->client_count, sizeof(*totals->clients)) < 0) {
		totals->short_of_memory = true;
		return NULL;
	}
	totals->clients[totals->client_count] = (struct totals_client){ 0 };
	memcpy(totals->clients[totals->client_count].name, name, ENGINE_CLIENT_NAME_BYTES);
	return &totals->clients[totals->client_count++];
}

static void add_client(struct totals *totals, const struct engine_client *client)
{
	struct totals_client *sum = find_client(totals, client->name);

	if (sum == NULL) {
		return;
	}
	sum->session_count += client->session_count - client->part_count;
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		if (client->operations[op] == NULL) {
			continue;
		}
		sum->operations[op] =
			sum_of(totals, sum->operations[op], sizeof(*sum->operations[op]));
		if (sum->operations[op] != NULL) {
			path_stats_merge(sum->operations[op], client->operations[op]);
		}
	}
}

/* Creates the nodes. */
static int take_nodes(struct totals *totals)
{
	struct fencing_view *views = fencing_views(totals->view->fencing, &totals->node_count);

	totals->nodes = calloc(MAX(totals->node_count, 1U), sizeof(*totals->nodes));
	if (views == NULL || totals->nodes == NULL) {
		free(views);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < totals->node_count; i++) {
		memcpy(totals->nodes[i].name, views[i].node, sizeof(totals->nodes[i].name));
		totals->nodes[i].fenced = views[i].fenced;
		totals->nodes[i].ended = views[i].ended;
	}
	free(views);
	return 0;
}

static int count_lease(void *context, const struct lease_view *lease)
{
	struct totals *totals = context;

	for (uint32_t i = 0; i < totals->view->exports->count; i++) {
		const struct export *export = totals->view->exports->exports[i];

		if (export->name_bytes == lease->export_bytes &&
			memcmp(export->name, lease->export, lease->export_bytes) == 0) {
			totals->exports[i].leases++;
			totals->exports[i].leases_disconnected += lease->left_ms != UINT32_MAX;
			break;
		}
	}
	return 0;
}

static void count_node(struct totals *totals, const struct engine_node *node)
{
	for (uint32_t i = 0; i < totals->node_count; i++) {
		if (strcmp(totals->nodes[i].name, node->name) == 0) {
			totals->nodes[i].completed += node->operations;
		}
	}
}

/* Adds a reactor's counters. Called on the reactor's thread while the main thread waits. */
static void inspect(struct engine *engine, void *context)
{
	struct totals *totals = context;
	uint32_t hint = 0;

	engine_counters_add(engine, &totals->counters);
	path_arenas_add(engine->path, &totals->ram, &totals->device);
	for (uint32_t i = 0; i < totals->view->exports->count; i++) {
		const struct engine_export *entry =
			engine_export_entry(engine, totals->view->exports->exports[i], &hint);

		if (entry != NULL) {
			totals_add_export(totals, entry, &totals->exports[i]);
		}
	}
	list_for_each(node, &engine->clients)
	{
		add_client(totals, list_entry(node, struct engine_client, node));
	}
	add_client(totals, &engine->other_clients);
	list_for_each(node, &engine->nodes)
	{
		count_node(totals, list_entry(node, struct engine_node, node));
	}
}

/* Sets the values that are the same for all reactors, such as the size of the export. */
static void set_export(struct totals_export *sum, const struct export *export)
{
	struct rate_limits limits;

	rate_get(&export->rate, &limits);
	sum->size_bytes = store_size(export->store);
	sum->connections = atomic_load_explicit(&export->connections, memory_order_relaxed);
	sum->read_only = atomic_load_explicit(&export->read_only, memory_order_relaxed);
	sum->started_permille = store_start_permille(export->store);
	sum->memory_max =
		totals_known(atomic_load_explicit(&export->memory_max, memory_order_relaxed));
	sum->rate_bytes_max = totals_known(limits.per_second[RATE_BYTES]);
	sum->rate_requests_max = totals_known(limits.per_second[RATE_REQUESTS]);
}

int totals_collect(const struct server_view *view, struct totals *totals)
{
	static const struct totals_direction nothing_measured = { COUNTER_NONE, COUNTER_NONE,
		COUNTER_NONE, COUNTER_NONE };
	int rc;

	*totals = (struct totals){ .view = view };
	totals->exports = calloc(MAX(view->exports->count, 1U), sizeof(*totals->exports));
	if (totals->exports == NULL || take_nodes(totals) < 0) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < view->exports->count; i++) {
		totals->exports[i].reads = nothing_measured;
		totals->exports[i].writes = nothing_measured;
	}
	rc = reactors_call(view->reactors, view->reactor_count, inspect, totals, NULL);
	if (rc < 0) {
		return rc;
	}
	for (uint32_t i = 0; i < view->exports->count; i++) {
		set_export(&totals->exports[i], view->exports->exports[i]);
	}
	totals->at_ns = clock_now_ns();
	return totals->short_of_memory ? -ENOMEM
				       : lease_book_each(leases_book(view->leases), totals->at_ns,
						 count_lease, totals);
}

void totals_fini(struct totals *totals)
{
	for (uint32_t i = 0; totals->exports != NULL && i < totals->view->exports->count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			free(totals->exports[i].path.operations[op]);
		}
		for (int layer = 0; layer < STORE_KINDS_MAX; layer++) {
			free(totals->exports[i].layers[layer]);
		}
	}
	for (uint32_t i = 0; i < totals->client_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			free(totals->clients[i].operations[op]);
		}
	}
	free(totals->exports);
	free(totals->clients);
	free(totals->nodes);
}
