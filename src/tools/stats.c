// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "control/control.h"
#include "path/stats.h"
#include "store/store.h"

enum { QUOTE_BYTES = 256 };

/* --- asking -------------------------------------------------------------------------------- */

/* The process id is the kernel's, unless the server is in another PID namespace. */
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
		error_set(error, -EPROTO, "%s: this is not the control socket of a server", path);
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

/* --- showing ------------------------------------------------------------------------------- */

static double tools_stats_number(const json_t *object, const char *group, const char *key)
{
	const json_t *from = group != NULL ? json_object_get(object, group) : object;

	return json_number_value(json_object_get(from, key));
}

static const char *tools_stats_text_of(const json_t *object, const char *key)
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

static const char *plural(double count)
{
	return count == 1 ? "" : "s";
}

static void show_head(const json_t *document)
{
	const char *version = tools_stats_text_of(document, "version");
	char shown[QUOTE_BYTES];

	printf("Server %.0f, gmblock %s, up %.0f s: %.0f connection%s, %.0f request%s in flight\n",
		tools_stats_number(document, NULL, "pid"),
		log_escape(shown, sizeof(shown), version, strlen(version)),
		tools_stats_number(document, NULL, "uptime_seconds"),
		tools_stats_number(document, "counters", "connections"),
		plural(tools_stats_number(document, "counters", "connections")),
		tools_stats_number(document, "counters", "inflight"),
		plural(tools_stats_number(document, "counters", "inflight")));
}

/* Why TLS handshakes have failed, most important first. */
static void show_tls_failures(const json_t *document)
{
	static const struct {
		const char *counter;
		const char *text;
	} causes[] = {
		{ "tls_failures_client_refused", "the client's credentials were not accepted" },
		{ "tls_failures_server_refused", "the client did not accept the server's" },
		{ "tls_failures_protocol", "no TLS, or nothing in common" },
		{ "tls_failures_connection", "the connection ended, or the time was over" },
		{ "tls_failures_other", "no memory or thread" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(causes); i++) {
		const double count = tools_stats_number(document, "counters", causes[i].counter);

		if (count > 0) {
			printf("  %.0f failed: %s\n", count, causes[i].text);
		}
	}
}

/* Nothing where nobody has asked for TLS. */
static void show_tls(const json_t *document)
{
	const double handshakes = tools_stats_number(document, "counters", "tls_handshakes");
	const double failed = tools_stats_number(document, "counters", "tls_handshakes_failed");
	const double refused = tools_stats_number(document, "counters", "tls_handshakes_refused");

	if (handshakes + failed + refused == 0) {
		return;
	}
	printf("TLS: %.0f connection%s, %.0f of them by the kernel, %.0f with TLS 1.2; %.0f "
	       "handshake%s, %.0f failed, %.0f refused because there was no place\n",
		tools_stats_number(document, "counters", "tls_connections"),
		plural(tools_stats_number(document, "counters", "tls_connections")),
		tools_stats_number(document, "counters", "tls_connections_kernel"),
		tools_stats_number(document, "counters", "tls_connections_1_2"), handshakes,
		plural(handshakes), failed, refused);
	show_tls_failures(document);
}

/* Nothing where nobody has pushed. */
static void show_push(const json_t *document)
{
	const double tickets = tools_stats_number(document, "counters", "push_tickets");
	const double refused = tools_stats_number(document, "counters", "push_tickets_refused");
	const double done = tools_stats_number(document, "counters", "pushes_done");
	const double failed = tools_stats_number(document, "counters", "pushes_failed");

	if (tickets + refused + done + failed > 0) {
		printf("Push: %.0f ticket%s made, %.0f refused; %.0f push%s done, %.0f failed\n",
			tickets, plural(tickets), refused, done, done == 1 ? "" : "es", failed);
	}
}

static void show_arenas(const json_t *arenas)
{
	for (size_t i = 0; i < json_array_size(arenas); i++) {
		const json_t *arena = json_array_get(arenas, i);
		const char *kind = tools_stats_text_of(arena, "kind");
		const char *trouble = tools_stats_text_of(arena, "trouble");
		double waits = tools_stats_number(arena, NULL, "waits");
		double spills = tools_stats_number(arena, NULL, "spills");
		char shown[QUOTE_BYTES];
		char used[UNITS_TEXT_BYTES];
		char limit[UNITS_TEXT_BYTES];

		printf("Memory (%s): %s of %s in use, clients waited %.0f time%s",
			log_escape(shown, sizeof(shown), kind, strlen(kind)),
			units_format_bytes(
				used, (uint64_t)tools_stats_number(arena, NULL, "used_bytes")),
			units_format_bytes(
				limit, (uint64_t)tools_stats_number(arena, NULL, "limit_bytes")),
			waits, plural(waits));
		if (spills > 0) {
			printf(", %.0f part%s had RAM", spills, plural(spills));
		}
		printf("%s%s\n", trouble[0] != '\0' ? "; it cannot be used any more: " : "",
			log_escape(shown, sizeof(shown), trouble, strlen(trouble)));
	}
}

enum { GB_BYTES = 48 };

/* For a column of nine: asking for the extents of an empty disk adds up to numbers without end. */
static const char *gb_text(char out[GB_BYTES], double bytes)
{
	double gb = bytes / 1e9;

	snprintf(out, GB_BYTES, gb < 1e5 ? "%.3f" : "%.3g", gb);
	return out;
}

/* "read" */
static const char *operation_text(char out[QUOTE_BYTES], const json_t *operation)
{
	return log_escape_sentence(out, QUOTE_BYTES, tools_stats_text_of(operation, "operation"));
}

static void show_operation(const json_t *operation)
{
	static const char *const latencies[] = { "mean", "p50", "p90", "p99", "p99_9", "max" };
	char text[PRINT_US_BYTES];
	char gb[GB_BYTES];
	char shown[QUOTE_BYTES];

	printf("  %-8s %-8s %10.0f %7.0f %9s", operation_text(shown, operation),
		class_text(text, operation), tools_stats_number(operation, NULL, "count"),
		tools_stats_number(operation, NULL, "errors"),
		gb_text(gb, tools_stats_number(operation, NULL, "bytes")));
	for (size_t i = 0; i < ARRAY_COUNT(latencies); i++) {
		printf(" %10s",
			print_us(text, tools_stats_number(operation, "latency_us", latencies[i])));
	}
	for (int i = 0; i < PATH_STATE_DONE; i++) {
		printf(" %10s", print_us(text, tools_stats_number(operation, "state_us",
						       path_state_name((enum path_state)i))));
	}
	printf("\n");
}

static void show_export_name(const json_t *entry)
{
	const char *name = tools_stats_text_of(entry, "name");
	const char *path = tools_stats_text_of(entry, "path");
	char shown[QUOTE_BYTES];
	char shown_path[QUOTE_BYTES];

	printf("\nExport \"%s\" (%s), %.0f connection%s\n",
		log_escape(shown, sizeof(shown), name, strlen(name)),
		log_escape(shown_path, sizeof(shown_path), path, strlen(path)),
		tools_stats_number(entry, NULL, "connections"),
		plural(tools_stats_number(entry, NULL, "connections")));
}

/* How the parts of large requests were chosen; nothing before there were any. */
static void show_cutting(const json_t *entry, const char *what)
{
	const json_t *cutting = json_object_get(entry, what);
	double network = tools_stats_number(cutting, NULL, "network_bytes_per_second");
	char size[UNITS_TEXT_BYTES];

	if (!json_is_integer(json_object_get(cutting, "part_size"))) {
		return;
	}
	printf("  %s in parts of %s: the disk gives %.2f GB/s", what,
		units_format_bytes(
			size, (uint64_t)json_integer_value(json_object_get(cutting, "part_size"))),
		tools_stats_number(cutting, NULL, "disk_bytes_per_second") / 1e9);
	if (network > 0) {
		printf(", the network carries %.2f GB/s", network / 1e9);
	}
	if (json_is_number(json_object_get(cutting, "early"))) {
		printf(", parts come %.0f %% before the end",
			100 * tools_stats_number(cutting, NULL, "early"));
	}
	printf("\n");
}

/* What "page_cache_send_refusal" says, as a sentence. */
static const char *refusal_sentence(const char *refusal)
{
	static const struct {
		const char *refusal;
		const char *sentence;
	} known[] = {
		{ "mode=direct", "mode=direct goes around the page cache" },
		{ "write-mode=direct", "write-mode=direct goes around the page cache" },
		{ "shared", "another export writes to the disk around the page cache" },
		{ "network", "the file is in a network file system or in FUSE" },
		{ "overlay",
			"the file is only read in an overlay, where a copy can take its place" },
		{ "foreign", "the file is somebody else's and may only be read" },
		{ "address-space", "there is too little address space to map the file" },
		{ "empty", "the file was empty when the server was started" },
		{ "null", "there is nothing to send but zeroes" },
		{ "overlap", "overlap= cuts them into parts" },
		{ "fault", "fault= is given" },
		{ "delay", "delay= is given" },
		{ "pace", "pace= is given" },
		{ "marker", "progress=marker goes around the page cache" },
	};

	for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
		if (strcmp(refusal, known[i].refusal) == 0) {
			return known[i].sentence;
		}
	}
	return refusal;
}

/* Of a size that can be sent without a copy. */
static bool has_large_reads(const json_t *entry)
{
	const json_t *operations = json_object_get(entry, "operations");

	for (size_t i = 0; i < json_array_size(operations); i++) {
		const json_t *operation = json_array_get(operations, i);
		const json_t *limit = json_object_get(operation, "size_max");

		if (strcmp(tools_stats_text_of(operation, "operation"), "read") == 0 &&
			(!json_is_integer(limit) ||
				json_integer_value(limit) > STORE_PAGE_CACHE_BYTES_MIN)) {
			return true;
		}
	}
	return false;
}

static void show_page_cache_send(const json_t *entry)
{
	double bytes = tools_stats_number(entry, NULL, "page_cache_send_bytes");
	double misses = tools_stats_number(entry, NULL, "page_cache_send_misses");
	const char *refusal = tools_stats_text_of(entry, "page_cache_send_refusal");
	char shown[QUOTE_BYTES];

	if (bytes > 0) {
		printf("  reads: %.3f GB were sent without a copy of the server's own\n",
			bytes / 1e9);
	}
	if (refusal[0] != '\0' && has_large_reads(entry)) {
		refusal = refusal_sentence(refusal);
		printf("  reads: all are copied by the server: %s\n",
			log_escape_sentence(shown, sizeof(shown), refusal));
	} else if (misses > 0) {
		printf("  reads: %.0f large ones were copied: not all was in the page cache, or it "
		       "was zeroes\n",
			misses);
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

/* Its limits, if it has some, and how many have waited for them. */
static void show_limits_and_waits(const json_t *entry)
{
	const json_t *rate = json_object_get(entry, "rate");
	const json_t *memory = json_object_get(entry, "memory");
	double waits = tools_stats_number(memory, NULL, "waits");
	double delayed = tools_stats_number(rate, NULL, "requests_delayed");

	show_limits("  rate", rate);
	if (delayed > 0) {
		printf("  rate: %.0f requests were delayed, by %.3f ms on average\n", delayed,
			tools_stats_number(rate, NULL, "delay_ns") / delayed / 1e6);
	}
	show_memory_limit("  data", tools_stats_number(memory, NULL, "max_bytes"));
	if (waits > 0) {
		printf("  data: clients waited %.0f times because of that limit\n", waits);
	}
}

/* The rules for identities that have connections now. */
static void show_rules(const json_t *rules)
{
	for (size_t i = 0; i < json_array_size(rules); i++) {
		const json_t *rule = json_array_get(rules, i);
		double identities = tools_stats_number(rule, NULL, "identities");
		char label[64];

		if (identities > 0) {
			snprintf(label, sizeof(label), "rule %zu, for each of %.0f identit%s",
				i + 1, identities, identities > 1 ? "ies" : "y");
			show_limits(label, rule);
			show_memory_limit(
				label, tools_stats_number(rule, NULL, "memory_max_bytes"));
		}
	}
}

/* What the layers of its store have counted, as far as there was something. */
static void show_store(const json_t *entry)
{
	const char *layer;
	const char *name;
	json_t *counters;
	json_t *value;
	char shown[2][QUOTE_BYTES];

	json_object_foreach(json_object_get(entry, "store"), layer, counters)
	{
		json_object_foreach(counters, name, value)
		{
			if (json_integer_value(value) != 0) {
				printf("  %s: %s %lld\n",
					log_escape_sentence(shown[0], sizeof(shown[0]), layer),
					log_escape_sentence(shown[1], sizeof(shown[1]), name),
					(long long)json_integer_value(value));
			}
		}
	}
}

void stats_show(const json_t *document)
{
	const json_t *exports = json_object_get(document, "exports");

	show_head(document);
	show_tls(document);
	show_push(document);
	show_arenas(json_object_get(document, "arenas"));
	show_rules(json_object_get(document, "rates"));
	for (size_t i = 0; i < json_array_size(exports); i++) {
		const json_t *entry = json_array_get(exports, i);
		const json_t *operations = json_object_get(entry, "operations");
		const json_t *started = json_object_get(entry, "started");

		show_export_name(entry);
		if (json_is_real(started) && json_real_value(started) < 1) {
			printf("  has started to %.0f %%\n", 100 * json_real_value(started));
			continue;
		}
		show_limits_and_waits(entry);
		if (json_array_size(operations) == 0) {
			printf("  no requests yet\n");
			continue;
		}
		show_cutting(entry, "reads");
		show_cutting(entry, "writes");
		show_page_cache_send(entry);
		show_store(entry);
		printf("  %-8s %-8s %10s %7s %9s %10s %10s %10s %10s %10s %10s %10s %10s %10s "
		       "%10s\n",
			"", "size", "requests", "errors", "GB", "mean", "p50", "p90", "p99",
			"p99.9", "max", "wait", "disk", "overlap", "network");
		for (size_t k = 0; k < json_array_size(operations); k++) {
			show_operation(json_array_get(operations, k));
		}
	}
}

/* --- watching ------------------------------------------------------------------------------ */

enum { WATCH_COLUMNS = 99 }; /* of a line with all states */

/* The same operation and size class among those of an earlier entry; NULL if there was none. */
static const json_t *same_operation(const json_t *before, const json_t *operation)
{
	const json_t *operations = json_object_get(before, "operations");

	for (size_t i = 0; i < json_array_size(operations); i++) {
		const json_t *at = json_array_get(operations, i);

		if (strcmp(tools_stats_text_of(at, "operation"),
			    tools_stats_text_of(operation, "operation")) == 0 &&
			json_equal(json_object_get(at, "size_max"),
				json_object_get(operation, "size_max"))) {
			return at;
		}
	}
	return NULL;
}

static const json_t *entry_named(const json_t *list, const char *name)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		if (strcmp(tools_stats_text_of(json_array_get(list, i), "name"), name) == 0) {
			return json_array_get(list, i);
		}
	}
	return NULL;
}

/* True if a count fell: the export was removed, and another one was added by its name. */
static bool has_restarted(const json_t *entry, const json_t *before)
{
	const json_t *operations = json_object_get(before, "operations");

	for (size_t i = 0; i < json_array_size(operations); i++) {
		const json_t *was = json_array_get(operations, i);
		const json_t *is = same_operation(entry, was);

		if (is == NULL || tools_stats_number(is, NULL, "count") <
					  tools_stats_number(was, NULL, "count")) {
			return true;
		}
	}
	return false;
}

const json_t *stats_entry_before(
	const json_t *document, const json_t *before, const char *list, const json_t *entry)
{
	const json_t *was =
		entry_named(json_object_get(before, list), tools_stats_text_of(entry, "name"));
	bool is_same_server = json_equal(
		json_object_get(document, "instance"), json_object_get(before, "instance"));

	return was != NULL && is_same_server && !has_restarted(entry, was) ? was : NULL;
}

/* Difference of a sum that is told as a mean over the requests. */
static double mean_since(
	const json_t *now, const json_t *before, const char *group, const char *key, double count)
{
	double sum = tools_stats_number(now, group, key) * tools_stats_number(now, NULL, "count");

	if (before != NULL) {
		sum -= tools_stats_number(before, group, key) *
		       tools_stats_number(before, NULL, "count");
	}
	return sum > 0 ? sum / count : 0;
}

/* The states of a request, and whether they are for wide terminals only. */
static const struct {
	const char *name;
	bool is_wide;
} watched_states[] = { { "wait", true }, { "disk", false }, { "overlap", true },
	{ "network", false } };

static void show_change(const json_t *operation, const json_t *before, double seconds, bool is_wide)
{
	double count = tools_stats_number(operation, NULL, "count") -
		       (before != NULL ? tools_stats_number(before, NULL, "count") : 0);
	double bytes = tools_stats_number(operation, NULL, "bytes") -
		       (before != NULL ? tools_stats_number(before, NULL, "bytes") : 0);
	double errors = tools_stats_number(operation, NULL, "errors") -
			(before != NULL ? tools_stats_number(before, NULL, "errors") : 0);
	char text[PRINT_US_BYTES];
	char gb[GB_BYTES];
	char shown[QUOTE_BYTES];

	if (count <= 0) {
		return;
	}
	printf("  %-7s %-7s %9.0f/s %6.0f %7s GB/s", operation_text(shown, operation),
		class_text(text, operation), count / seconds, errors, gb_text(gb, bytes / seconds));
	printf(" %9s", print_us(text, mean_since(operation, before, "latency_us", "mean", count)));
	for (size_t i = 0; i < ARRAY_COUNT(watched_states); i++) {
		if (is_wide || !watched_states[i].is_wide) {
			printf(" %9s", print_us(text, mean_since(operation, before, "state_us",
							      watched_states[i].name, count)));
		}
	}
	printf("\n");
}

void stats_show_changes(const json_t *document, const json_t *before, uint32_t columns)
{
	bool is_wide = columns >= WATCH_COLUMNS;
	const json_t *exports = json_object_get(document, "exports");
	double seconds = tools_stats_number(document, NULL, "clock_seconds") -
			 tools_stats_number(before, NULL, "clock_seconds");

	show_head(document);
	printf("  %-7s %-7s %11s %6s %12s %9s", "", "size", "requests", "errors", "rate", "mean");
	for (size_t i = 0; i < ARRAY_COUNT(watched_states); i++) {
		if (is_wide || !watched_states[i].is_wide) {
			printf(" %9s", watched_states[i].name);
		}
	}
	printf("\n");
	for (size_t i = 0; i < json_array_size(exports); i++) {
		const json_t *entry = json_array_get(exports, i);
		const json_t *was = stats_entry_before(document, before, "exports", entry);
		const json_t *operations = json_object_get(entry, "operations");

		if (json_array_size(exports) > 1 && json_array_size(operations) > 0) {
			show_export_name(entry);
		}
		for (size_t k = 0; k < json_array_size(operations); k++) {
			const json_t *operation = json_array_get(operations, k);

			show_change(operation, same_operation(was, operation), seconds, is_wide);
		}
	}
}
