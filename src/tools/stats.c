// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "control/control.h"
#include "server/observe/stats.h"
#include "server/observe/totals.h"
#include "store/kind.h"

enum { VALUE_BYTES = 64 };

/* --- asking -------------------------------------------------------------------------------- */

/* Replaces "pid" in the document by the process ID from the kernel, unless the kernel does not know
 * it because the server is in another PID namespace. */
static void set_pid(json_t *document, const struct ucred *peer)
{
	if (peer->pid > 0) {
		json_object_set_new(document, "pid", json_integer(peer->pid));
	}
}

json_t *stats_ask_within(const char *path, int timeout_ms, struct ucred *peer, struct error *error)
{
	struct control_connection *connection;
	json_t *document = NULL;
	int rc = control_connect(path, "stats", NULL, timeout_ms, &connection, error);

	if (rc < 0) {
		return NULL;
	}
	*peer = control_connection_peer(connection);
	rc = control_receive_result(connection, timeout_ms, &document, error);
	control_disconnect(connection);
	if (rc < 0) {
		return NULL;
	}
	if (!json_is_array(json_object_get(document, "exports"))) {
		error_set(error, -EPROTO, "%s: not the control socket of a server", path);
		json_decref(document);
		return NULL;
	}
	set_pid(document, peer);
	return document;
}

json_t *stats_ask(const char *path, struct error *error)
{
	struct ucred peer;

	return stats_ask_within(path, CONTROL_TIMEOUT_MS, &peer, error);
}

int stats_print_metrics(const char *path, struct error *error)
{
	json_t *result = NULL;
	const json_t *text;
	int rc = control_ask(path, "metrics", NULL, CONTROL_TIMEOUT_MS, &result, error);

	if (rc < 0) {
		return rc;
	}
	text = json_object_get(result, "text");
	if (!json_is_string(text)) {
		json_decref(result);
		return error_set(error, -EPROTO, "%s: the server has no metrics", path);
	}
	(void)text_print_metrics(stdout, json_string_value(text), json_string_length(text));
	json_decref(result);
	return print_end(error);
}

/* --- counters ------------------------------------------------------------------------------ */

void stats_read(const struct counter_table *table, void *values, const json_t *object)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct counter *counter = &table->counters[i];

		counter_set(counter, values, stats_counter_value(counter, object));
	}
}

static const char *bytes_text(char out[VALUE_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "kB", "MB", "GB", "TB", "PB", "EB" };
	double value = (double)bytes / 1000;
	size_t unit = 0;

	if (bytes < 1000) {
		snprintf(out, VALUE_BYTES, "%llu bytes", (unsigned long long)bytes);
		return out;
	}
	while (value >= 999.9995 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1000;
		unit++;
	}
	snprintf(out, VALUE_BYTES, "%.3f %s", value, units[unit]);
	return out;
}

static const char *value_text(char out[VALUE_BYTES], enum counter_unit unit, uint64_t value)
{
	char us[PRINT_US_BYTES];
	char bytes[VALUE_BYTES];

	switch (unit) {
	case COUNTER_BYTES:
		return bytes_text(out, value);
	case COUNTER_BYTES_PER_SECOND:
		snprintf(out, VALUE_BYTES, "%s/s", bytes_text(bytes, value));
		break;
	case COUNTER_NS:
		snprintf(out, VALUE_BYTES, "%s", print_us(us, (double)value / 1000));
		break;
	case COUNTER_PERMILLE:
		snprintf(out, VALUE_BYTES, "%.1f %%", (double)value / 10);
		break;
	case COUNTER_BOOL:
		snprintf(out, VALUE_BYTES, "yes");
		break;
	case COUNTER_ITEMS:
		snprintf(out, VALUE_BYTES, "%llu", (unsigned long long)value);
		break;
	}
	return out;
}

/* Returns whether the value is worth a line: it is not 0, missing, or a ratio of 1. */
static bool is_news(const struct counter *counter, uint64_t value)
{
	return value != 0 && value != COUNTER_NONE &&
	       (counter->unit != COUNTER_PERMILLE || value != 1000);
}

/* Prints a line for each counter that is_news() accepts. title is a line above them, or NULL. */
static void show_counters(
	const char *title, const struct counter_table *table, const json_t *object)
{
	const char *indent = title != NULL ? "    " : "  ";

	for (size_t i = 0; i < table->count; i++) {
		const struct counter *counter = &table->counters[i];
		uint64_t value = stats_counter_value(counter, object);
		char text[VALUE_BYTES];

		if (!is_news(counter, value)) {
			continue;
		}
		if (title != NULL) {
			printf("  %s:\n", title);
			title = NULL;
		}
		printf("%s%s: %s\n", indent, counter->help, value_text(text, counter->unit, value));
	}
}

/* --- showing ------------------------------------------------------------------------------- */

static double tools_stats_number(const json_t *object, const char *group, const char *key)
{
	const json_t *from = group != NULL ? json_object_get(object, group) : object;

	return json_number_value(json_object_get(from, key));
}

const char *stats_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text != NULL ? text : "";
}

static const char *class_text(char out[48], const json_t *operation)
{
	const json_t *limit = json_object_get(operation, "size_max");
	const json_t *above = json_object_get(operation, "size_above");
	bool last = !json_is_integer(limit);
	char size[UNITS_TEXT_BYTES];

	snprintf(out, 48, "%s %s", last ? ">" : "<=",
		units_format_bytes(size, (uint64_t)json_integer_value(last ? above : limit)));
	return out;
}

static void stats_show_server(const json_t *document)
{
	const char *version = stats_text(document, "version");

	printf("Server %.0f, gmblock %s, up %.0f s\n", tools_stats_number(document, NULL, "pid"),
		quote(version), tools_stats_number(document, NULL, "uptime_seconds"));
	show_counters(NULL, &engine_counter_table, json_object_get(document, "counters"));
}

static void show_arenas(const json_t *arenas)
{
	for (size_t i = 0; i < json_array_size(arenas); i++) {
		const json_t *arena = json_array_get(arenas, i);
		const char *kind = stats_text(arena, "kind");
		const char *trouble = stats_text(arena, "trouble");

		printf("Memory (%s)", quote(kind));
		printf("%s%s\n", trouble[0] != '\0' ? ": no longer usable: " : "", quote(trouble));
		show_counters(NULL, &path_arena_counter_table, arena);
	}
}

enum { GB_BYTES = 48 };

/* Formats for a column of nine characters. The value can be very large: queries for the extents of
 * an empty disk count its whole size each time. */
static const char *gb_text(char out[GB_BYTES], double bytes)
{
	double gb = bytes / 1e9;

	snprintf(out, GB_BYTES, gb < 1e5 ? "%.3f" : "%.3g", gb);
	return out;
}

/* Returns the name of an operation, such as "read". */
static const char *operation_text(char out[QUOTE_BYTES], const json_t *operation)
{
	return log_escape_sentence(out, QUOTE_BYTES, stats_text(operation, "operation"));
}

static void show_operation(const json_t *operation)
{
	static const char *const latencies[] = { "mean", "p50", "p90", "p99", "p99_9", "max" };
	struct path_stats stats = { 0 };
	char text[PRINT_US_BYTES];
	char gb[GB_BYTES];
	char shown[QUOTE_BYTES];

	stats_read(&path_stats_counter_table, &stats, operation);
	printf("  %-8s %-8s %10llu %7llu %9s", operation_text(shown, operation),
		class_text(text, operation), (unsigned long long)stats.count,
		(unsigned long long)stats.errors, gb_text(gb, (double)stats.bytes));
	for (size_t i = 0; i < ARRAY_COUNT(latencies); i++) {
		printf(" %10s",
			print_us(text, tools_stats_number(operation, "latency_us", latencies[i])));
	}
	for (int i = 0; i < PATH_STATE_DONE; i++) {
		printf(" %10s", print_us(text, (double)stats.state_ns[i] /
						       (double)MAX(stats.count, 1U) / 1000));
	}
	printf("\n");
}

static void show_export_name(const json_t *entry)
{
	const char *name = stats_text(entry, "name");
	const char *path = stats_text(entry, "path");

	printf("\nExport \"%s\" (%s)\n", quote(name), quote(path));
}

/* Returns the meaning of "page_cache_send_refusal" as a sentence. */
static const char *refusal_sentence(const char *refusal)
{
	static const struct {
		const char *refusal;
		const char *sentence;
	} known[] = {
		{ "mode=direct", "mode=direct bypasses the page cache" },
		{ "write-mode=direct", "write-mode=direct bypasses the page cache" },
		{ "shared", "another export bypasses the page cache when it writes to the disk" },
		{ "network", "the file is on a network filesystem or FUSE" },
		{ "overlay", "the file is in an overlayfs, where a copy can replace it" },
		{ "filesystem", "on this file system, a send waits for writes to the file" },
		{ "foreign", "the file belongs to another user and is not writable" },
		{ "address-space", "there is too little address space to map the file" },
		{ "empty", "the file was empty when the server started" },
		{ "null", "the disk contains only zeroes" },
		{ "flash", "the disk is in a flash store" },
		{ "flash snapshot", "the disk is a snapshot in a flash store" },
		{ "fault", "the export has the key fault" },
		{ "delay", "the export has the key delay" },
		{ "pace", "the export has the key pace" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
		if (strcmp(refusal, known[i].refusal) == 0) {
			return known[i].sentence;
		}
	}
	return refusal;
}

/* Returns whether there were reads of a size that can be sent without a copy. */
static bool has_large_reads(const json_t *entry)
{
	const json_t *operations = json_object_get(entry, "operations");

	for (size_t i = 0; i < json_array_size(operations); i++) {
		const json_t *operation = json_array_get(operations, i);
		const json_t *limit = json_object_get(operation, "size_max");

		if (strcmp(stats_text(operation, "operation"), "read") == 0 &&
			(!json_is_integer(limit) ||
				json_integer_value(limit) > STORE_PAGE_CACHE_BYTES_MIN)) {
			return true;
		}
	}
	return false;
}

static void show_page_cache_refusal(const json_t *entry)
{
	const char *refusal = stats_text(entry, "page_cache_send_refusal");
	char shown[QUOTE_BYTES];

	if (refusal[0] != '\0' && has_large_reads(entry)) {
		printf("  reads: all copied by the server, none sent from the page cache: %s\n",
			log_escape_sentence(shown, sizeof(shown), refusal_sentence(refusal)));
	}
}

static void show_limits(const char *label, const json_t *rate)
{
	double bytes = tools_stats_number(rate, NULL, "bytes_per_second");
	double requests = tools_stats_number(rate, NULL, "requests_per_second");

	if (bytes > 0) {
		printf("%s: at most %.3f MB/s\n", label, bytes / 1e6);
	}
	if (requests > 0) {
		printf("%s: at most %.0f requests/s\n", label, requests);
	}
}

static void show_memory_limit(const char *label, double bytes)
{
	if (bytes > 0) {
		printf("%s: at most %.3f MB in memory\n", label, bytes / 1e6);
	}
}

/* Prints the rules of identities that currently have connections. */
static void show_rules(const json_t *rules)
{
	for (size_t i = 0; i < json_array_size(rules); i++) {
		const json_t *rule = json_array_get(rules, i);
		double identities = tools_stats_number(rule, NULL, "identities");
		char label[64];

		if (identities > 0) {
			snprintf(label, sizeof(label), "rate rule %zu, for each of %.0f identit%s",
				i + 1, identities, identities > 1 ? "ies" : "y");
			show_limits(label, rule);
			show_memory_limit(
				label, tools_stats_number(rule, NULL, "memory_max_bytes"));
		}
	}
}

/* Prints the counters of an export and of the layers of its store. */
static void show_export_counters(const json_t *entry)
{
	const json_t *layers = json_object_get(entry, "store");
	const struct store_kind *kind;

	for (size_t i = 0; i < TOTALS_PARTS; i++) {
		const struct totals_part *part = &totals_parts[i];

		show_counters(part->title, part->table,
			part->member != NULL ? json_object_get(entry, part->member) : entry);
	}
	for (uint32_t i = 0; (kind = store_kind_at(i)) != NULL; i++) {
		const struct counter_table *table = kind->ops->counters;

		if (table != NULL) {
			show_counters(table->name, table, json_object_get(layers, table->name));
		}
	}
}

static void show_leases(const json_t *entry)
{
	const json_t *lease;
	size_t i;

	json_array_foreach(json_object_get(entry, "lease_holders"), i, lease)
	{
		printf("  ");
		print_lease(lease, " lease: ");
		printf("\n");
	}
}

static void show_nodes(const json_t *nodes)
{
	const json_t *node;
	size_t i;

	json_array_foreach(nodes, i, node)
	{
		printf("Node \"%s\"\n", quote(stats_text(node, "name")));
		show_counters(NULL, &totals_node_table, node);
	}
}

void stats_show(const json_t *document)
{
	const json_t *exports = json_object_get(document, "exports");

	stats_show_server(document);
	show_nodes(json_object_get(document, "nodes"));
	show_arenas(json_object_get(document, "arenas"));
	show_rules(json_object_get(document, "rates"));
	for (size_t i = 0; i < json_array_size(exports); i++) {
		const json_t *entry = json_array_get(exports, i);
		const json_t *operations = json_object_get(entry, "operations");
		const json_t *started = json_object_get(entry, "started");

		show_export_name(entry);
		if (json_is_real(started) && json_real_value(started) < 1) {
			printf("  starting: %.0f %%\n", 100 * json_real_value(started));
			continue;
		}
		show_export_counters(entry);
		show_leases(entry);
		if (json_array_size(operations) == 0) {
			printf("  no requests yet\n");
			continue;
		}
		show_page_cache_refusal(entry);
		printf("  %-8s %-8s %10s %7s %9s %10s %10s %10s %10s %10s %10s %10s %10s %10s "
		       "%10s\n",
			"", "size", "requests", "errors", "GB", "mean", "p50", "p90", "p99",
			"p99.9", "max", "wait", "disk", "overlap", "network");
		for (size_t k = 0; k < json_array_size(operations); k++) {
			show_operation(json_array_get(operations, k));
		}
	}
}
