// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/kind.h"

#define NS_PER_S UINT64_C(1000000000)

enum {
	NAME_BYTES = 96,
	LABELS_BYTES = 160, /* without those whose values come from elsewhere */
	/* Histograms have a bucket for each doubling between the ends of these two. */
	BUCKET_FIRST = 1,
	BUCKET_LAST = 22 * PATH_LATENCY_PARTS - 1,
};

_Static_assert(
	(int)BUCKET_FIRST < (int)PATH_LATENCY_PARTS && (int)BUCKET_LAST < (int)PATH_LATENCY_BUCKETS,
	"the rows that are told");

struct writer {
	FILE *out;
	const struct summary *summary;
	bool openmetrics;
};

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* How a number of ours is told. */
enum metric_value {
	VALUE_COUNT,
	VALUE_NS,	/* in seconds */
	VALUE_PERMILLE, /* as a ratio */
	VALUE_LIMIT,	/* 0: there is none, and no sample */
};

/* --- lines --------------------------------------------------------------------------------- */

/* name: without the prefix and a counter's suffix. unit: its last word, or NULL. */
static void metrics_write_head(const struct writer *w, const char *name, enum metric_type type,
	const char *unit, const char *help)
{
	static const char *const types[] = { "counter", "gauge", "histogram" };
	const char *suffix = type == METRIC_COUNTER && !w->openmetrics ? "_total" : "";

	fprintf(w->out, "# HELP gmblock_%s%s %s.\n", name, suffix, help);
	fprintf(w->out, "# TYPE gmblock_%s%s %s\n", name, suffix, types[type]);
	if (w->openmetrics && unit != NULL) {
		fprintf(w->out, "# UNIT gmblock_%s %s\n", name, unit);
	}
}

/* Names of exports and clients are UTF-8. */
static void write_escaped(const struct writer *w, const char *value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		if (value[i] == '\n') {
			fputs("\\n", w->out);
			continue;
		}
		if (value[i] == '"' || value[i] == '\\') {
			fputc('\\', w->out);
		}
		fputc(value[i], w->out);
	}
}

/* What a sample is about: one label whose value comes from elsewhere, and others as they are
 * written. */
struct subject {
	const char *label; /* "export", "client", or NULL */
	const char *value;
	size_t value_bytes;
	const char *labels; /* 'operation="read"', or "" */
};

/* One more label, whose name and value need no escape; NULL: none. */
static void write_name(const struct writer *w, const char *name, const char *suffix,
	const struct subject *subject, const char *more)
{
	const char *separator = "{";

	fprintf(w->out, "gmblock_%s%s", name, suffix);
	if (subject->label != NULL) {
		fprintf(w->out, "{%s=\"", subject->label);
		write_escaped(w, subject->value, subject->value_bytes);
		fputc('"', w->out);
		separator = ",";
	}
	if (subject->labels[0] != '\0') {
		fprintf(w->out, "%s%s", separator, subject->labels);
		separator = ",";
	}
	if (more != NULL) {
		fprintf(w->out, "%s%s", separator, more);
		separator = ",";
	}
	fputs(separator[0] == ',' ? "} " : " ", w->out);
}

static void write_value(const struct writer *w, enum metric_value kind, uint64_t value)
{
	if (kind == VALUE_NS) {
		fprintf(w->out, "%llu.%09llu\n", (unsigned long long)(value / NS_PER_S),
			(unsigned long long)(value % NS_PER_S));
	} else if (kind == VALUE_PERMILLE) {
		fprintf(w->out, "%llu.%03llu\n", (unsigned long long)(value / 1000),
			(unsigned long long)(value % 1000));
	} else {
		fprintf(w->out, "%llu\n", (unsigned long long)value);
	}
}

static void write_sample(const struct writer *w, const char *name, enum metric_type type,
	const struct subject *subject, enum metric_value kind, uint64_t value)
{
	if (kind != VALUE_LIMIT || value != 0) {
		write_name(w, name, type == METRIC_COUNTER ? "_total" : "", subject, NULL);
		write_value(w, kind, value);
	}
}

/* --- tables -------------------------------------------------------------------------------- */

/* A number in struct summary or struct summary_export. Neighbours with one name are one family. */
struct metric {
	const char *name;
	enum metric_type type;
	const char *unit;
	enum metric_value kind;
	const char *labels;
	size_t offset;
	const char *help;
};

#define SERVER(field)		offsetof(struct summary, counters.field)
#define SERVER_COUNT(field)	METRIC_COUNTER, NULL, VALUE_COUNT, "", SERVER(field)
#define SERVER_NOW(field)	METRIC_GAUGE, NULL, VALUE_COUNT, "", SERVER(field)
#define COUNT_BY(labels, field) METRIC_COUNTER, NULL, VALUE_COUNT, labels, SERVER(field)
#define BYTES_BY(labels, field) METRIC_COUNTER, "bytes", VALUE_COUNT, labels, SERVER(field)

static const struct metric server_metrics[] = {
	{ "connections", SERVER_NOW(sessions), "Connections now" },
	{ "handshakes", SERVER_NOW(handshakes), "Connections that have not chosen an export yet" },
	{ "requests_in_flight", SERVER_NOW(inflight), "Requests in flight" },
	{ "connections_accepted", SERVER_COUNT(sessions_accepted), "Connections accepted" },
	{ "connections_refused", SERVER_COUNT(sessions_refused),
		"Connections closed at once because of a limit" },
	{ "connections_broken", COUNT_BY("reason=\"error\"", sessions_failed),
		"Connections that the server ended, by why" },
	{ "connections_broken", COUNT_BY("reason=\"idle\"", sessions_idle), NULL },
	{ "requests_received", SERVER_COUNT(requests), "Requests received" },
	{ "error_replies", SERVER_COUNT(errors), "Requests answered with an error" },
	{ "place_waits", SERVER_COUNT(place_waits),
		"Requests that waited because as many were in flight as may be" },
	{ "identity_memory_waits", SERVER_COUNT(identity_memory_waits),
		"How often clients waited for payload memory because of the limit of an identity" },
	{ "payload_bytes", BYTES_BY("direction=\"sent\"", bytes_read),
		"Payload sent to and received from clients" },
	{ "payload_bytes", BYTES_BY("direction=\"received\"", bytes_written), NULL },
	{ "copied_bytes", BYTES_BY("method=\"reflink\"", bytes_copied[COPY_REFLINK]),
		"Data copied within the server, by how" },
	{ "copied_bytes", BYTES_BY("method=\"range\"", bytes_copied[COPY_RANGE]), NULL },
	{ "copied_bytes", BYTES_BY("method=\"device\"", bytes_copied[COPY_DEVICE]), NULL },
	{ "copied_bytes", BYTES_BY("method=\"ram\"", bytes_copied[COPY_RAM]), NULL },
	{ "copied_bytes", BYTES_BY("method=\"zeroes\"", bytes_copied[COPY_ZEROES]), NULL },
	{ "push_tickets", COUNT_BY("result=\"made\"", push_tickets),
		"Tickets of push that were made, and those that were shown and refused" },
	{ "push_tickets", COUNT_BY("result=\"refused\"", push_refusals), NULL },
	{ "pushes", COUNT_BY("result=\"done\"", pushes_done),
		"Pushes that have ended, as source or destination, by how" },
	{ "pushes", COUNT_BY("result=\"failed\"", pushes_failed), NULL },
	{ "tls_connections", SERVER_NOW(tls_sessions), "Connections with TLS" },
	{ "tls_connections_kernel", SERVER_NOW(tls_sessions_kernel),
		"Connections whose TLS records the kernel handles" },
	{ "tls_connections_1_2", SERVER_NOW(tls_sessions_1_2), "Connections with TLS 1.2" },
	{ "tls_handshakes_waiting", SERVER_NOW(tls_upgrading),
		"TLS handshakes under way, or waiting for a place" },
	{ "tls_handshakes", COUNT_BY("result=\"done\"", tls_handshakes),
		"TLS handshakes, by how they ended" },
	{ "tls_handshakes", COUNT_BY("result=\"failed\"", tls_failed), NULL },
	{ "tls_handshakes", COUNT_BY("result=\"refused\"", tls_refused), NULL },
	{ "tls_failures",
		COUNT_BY("reason=\"client_refused\"", tls_failures[ENGINE_TLS_CLIENT_REFUSED]),
		"TLS handshakes that failed, by why" },
	{ "tls_failures",
		COUNT_BY("reason=\"server_refused\"", tls_failures[ENGINE_TLS_SERVER_REFUSED]),
		NULL },
	{ "tls_failures", COUNT_BY("reason=\"protocol\"", tls_failures[ENGINE_TLS_PROTOCOL]),
		NULL },
	{ "tls_failures", COUNT_BY("reason=\"connection\"", tls_failures[ENGINE_TLS_CONNECTION]),
		NULL },
	{ "tls_failures", COUNT_BY("reason=\"other\"", tls_failures[ENGINE_TLS_OTHER]), NULL },
};

#define EXPORT(field)		    offsetof(struct summary_export, field)
#define EXPORT_COUNT(labels, field) METRIC_COUNTER, NULL, VALUE_COUNT, labels, EXPORT(field)
#define EXPORT_TOTAL(labels, field) METRIC_COUNTER, "bytes", VALUE_COUNT, labels, EXPORT(field)
#define EXPORT_BYTES(field)	    METRIC_GAUGE, "bytes", VALUE_COUNT, "", EXPORT(field)
#define EXPORT_NOW(field)	    METRIC_GAUGE, NULL, VALUE_COUNT, "", EXPORT(field)
#define EXPORT_LIMIT(labels, field) METRIC_GAUGE, NULL, VALUE_LIMIT, labels, EXPORT(field)

static const struct metric export_metrics[] = {
	{ "export_size_bytes", EXPORT_BYTES(size_bytes), "Size of the export" },
	{ "export_connections", EXPORT_NOW(connections), "Connections that use the export" },
	{ "export_read_only", EXPORT_NOW(read_only), "1 when nobody can write to the export" },
	{ "export_started_ratio", METRIC_GAUGE, "ratio", VALUE_PERMILLE, "",
		EXPORT(started_permille), "How much of the start of its store is done" },
	{ "export_placement_bytes", EXPORT_TOTAL("placement=\"ram\"", path.ram_bytes),
		"Payload of reads and writes, by where it lay" },
	{ "export_placement_bytes", EXPORT_TOTAL("placement=\"requester\"", path.placed_bytes),
		NULL },
	{ "export_placement_bytes", EXPORT_TOTAL("placement=\"device\"", path.device_bytes), NULL },
	{ "export_placement_bytes",
		EXPORT_TOTAL("placement=\"page_cache\"", path.page_cache_send_bytes), NULL },
	{ "export_page_cache_misses", EXPORT_COUNT("", path.page_cache_send_misses),
		"Large reads that were copied because not all was in the page cache" },
	{ "export_device_refusals", EXPORT_COUNT("reason=\"cpu\"", path.ram_for_session),
		"Requests or parts of them in RAM despite mode=device, by why" },
	{ "export_device_refusals", EXPORT_COUNT("reason=\"store\"", path.ram_for_store), NULL },
	{ "export_device_refusals", EXPORT_COUNT("reason=\"room\"", path.ram_for_room), NULL },
	{ "export_device_refusals", EXPORT_COUNT("reason=\"trouble\"", path.ram_for_trouble),
		NULL },
	{ "export_late_waits", EXPORT_COUNT("", path.late_waits),
		"Writes that waited for one of a connection that had ended" },
	{ "export_memory_bytes", EXPORT_BYTES(memory.held_bytes),
		"Payload memory that clients of the export hold" },
	{ "export_memory_limit_bytes", METRIC_GAUGE, "bytes", VALUE_LIMIT, "", EXPORT(memory_max),
		"Payload memory that clients of the export may hold" },
	{ "export_memory_waits", EXPORT_COUNT("", memory.waits),
		"How often a client waited because of that limit" },
	{ "export_rate_limit_bytes_per_second", EXPORT_LIMIT("", rate_bytes_max),
		"What the export may move" },
	{ "export_rate_limit_requests_per_second", EXPORT_LIMIT("", rate_requests_max),
		"How many requests the export may have" },
	{ "export_rate_delayed_requests", EXPORT_COUNT("", rate.delayed),
		"Requests delayed by a rate" },
	{ "export_rate_delay_seconds", METRIC_COUNTER, "seconds", VALUE_NS, "",
		EXPORT(rate.delayed_ns), "By how much, all of them together" },
	{ "export_disk_bytes_per_second", EXPORT_LIMIT("direction=\"read\"", read_rate),
		"What the disk was measured to give, on the fastest thread" },
	{ "export_disk_bytes_per_second", EXPORT_LIMIT("direction=\"write\"", write_rate), NULL },
	{ "export_network_bytes_per_second",
		EXPORT_LIMIT("direction=\"read\"", path.reads.network_rate),
		"What the network was measured to carry while large requests were split" },
	{ "export_network_bytes_per_second",
		EXPORT_LIMIT("direction=\"write\"", path.writes.network_rate), NULL },
};

static struct subject of_export(const struct export *export, const char *labels)
{
	return (struct subject){ "export", export->name, export->name_bytes, labels };
}

static void write_server(const struct writer *w)
{
	for (size_t i = 0; i < ARRAY_COUNT(server_metrics); i++) {
		const struct metric *metric = &server_metrics[i];
		const struct subject subject = { .labels = metric->labels };

		if (metric->help != NULL) {
			metrics_write_head(
				w, metric->name, metric->type, metric->unit, metric->help);
		}
		write_sample(w, metric->name, metric->type, &subject, metric->kind,
			*(const uint64_t *)((const char *)w->summary + metric->offset));
	}
}

static void write_exports(const struct writer *w)
{
	for (size_t i = 0; i < ARRAY_COUNT(export_metrics); i++) {
		const struct metric *metric = &export_metrics[i];

		if (metric->help != NULL) {
			metrics_write_head(
				w, metric->name, metric->type, metric->unit, metric->help);
		}
		for (uint32_t k = 0; k < w->summary->view->export_count; k++) {
			const struct subject subject =
				of_export(w->summary->view->exports[k], metric->labels);
			const struct summary_export *sum = &w->summary->exports[k];

			write_sample(w, metric->name, metric->type, &subject, metric->kind,
				*(const uint64_t *)((const char *)sum + metric->offset));
		}
	}
}

/* --- what is no plain number ----------------------------------------------------------------- */

static void write_process(const struct writer *w)
{
	const struct subject build = { .labels = "version=\"" GMBLOCK_VERSION "\"" };
	const struct subject nothing = { .labels = "" };

	metrics_write_head(w, "build_info", METRIC_GAUGE, NULL, "The version of the server");
	write_sample(w, "build_info", METRIC_GAUGE, &build, VALUE_COUNT, 1);
	metrics_write_head(
		w, "uptime_seconds", METRIC_GAUGE, "seconds", "Time since the server started");
	write_sample(w, "uptime_seconds", METRIC_GAUGE, &nothing, VALUE_NS,
		w->summary->at_ns - w->summary->view->start_ns);
}

static void write_rules(const struct writer *w)
{
	uint32_t count = rate_rules_count(w->summary->view->rate_rules);

	if (count > 0) {
		metrics_write_head(w, "rule_identities", METRIC_GAUGE, NULL,
			"Identities with connections that go by a rule of rates, which is named by "
			"its place in the configuration, from 1");
	}
	for (uint32_t i = 0; i < count; i++) {
		char labels[LABELS_BYTES];
		const struct subject subject = { .labels = labels };
		struct rate_rule rule;
		uint32_t identities;

		rate_rules_look(w->summary->view->rate_rules, i, &rule, &identities);
		snprintf(labels, sizeof(labels), "rule=\"%u\"", i + 1);
		write_sample(w, "rule_identities", METRIC_GAUGE, &subject, VALUE_COUNT, identities);
	}
}

/* By enum counter_unit. */
static const char *const units[] = { NULL, "bytes", "seconds" };

/* Payload memory, by its kind. */
static void write_arenas(const struct writer *w)
{
	const struct path_arena *const arenas[] = { &w->summary->ram, &w->summary->device };

	for (size_t k = 0; k < path_arena_counter_table.count; k++) {
		const struct counter *counter = &path_arena_counter_table.counters[k];
		enum metric_type type =
			counter->kind == COUNTER_TOTAL ? METRIC_COUNTER : METRIC_GAUGE;
		char name[NAME_BYTES];

		snprintf(name, sizeof(name), "arena_%s", counter->name);
		metrics_write_head(w, name, type, units[counter->unit], counter->help);
		for (size_t i = 0; i < ARRAY_COUNT(arenas); i++) {
			const struct subject subject = { "kind", arenas[i]->kind,
				arenas[i]->kind != NULL ? strlen(arenas[i]->kind) : 0, "" };

			if (arenas[i]->kind != NULL) {
				write_sample(w, name, type, &subject, VALUE_COUNT,
					counter_value(counter, arenas[i]));
			}
		}
	}
}

/* What splitting of large requests goes by, where it was measured. */
static void write_overlaps(const struct writer *w)
{
	static const char name[] = "export_overlap_early_ratio";

	metrics_write_head(w, name, METRIC_GAUGE, "ratio",
		"How early the parts of a request complete: 0 all at its end, 0.5 evenly");
	for (uint32_t i = 0; i < w->summary->view->export_count; i++) {
		const struct path_export *path = &w->summary->exports[i].path;
		const struct {
			const char *labels;
			const struct overlap *overlap;
		} directions[] = { { "direction=\"read\"", &path->reads },
			{ "direction=\"write\"", &path->writes } };

		for (size_t k = 0; k < ARRAY_COUNT(directions); k++) {
			const struct overlap *overlap = directions[k].overlap;
			const struct subject subject =
				of_export(w->summary->view->exports[i], directions[k].labels);

			if (overlap->early_measured) {
				write_sample(w, name, METRIC_GAUGE, &subject, VALUE_PERMILLE,
					(uint64_t)overlap->early * 1000 / OVERLAP_EARLY_ONE);
			}
		}
	}
}

/* One counter of a kind of stores, of every export that has one. */
static void write_layer_counter(
	const struct writer *w, const struct counter_table *table, size_t index)
{
	const struct counter *counter = &table->counters[index];
	enum metric_type type = counter->kind == COUNTER_TOTAL ? METRIC_COUNTER : METRIC_GAUGE;
	bool has_head = false;
	char name[NAME_BYTES];
	int name_bytes = snprintf(name, sizeof(name), "store_%s_%s", table->name, counter->name);

	GMB_ASSERT(name_bytes > 0 && name_bytes < NAME_BYTES - (int)sizeof("seconds"));
	if (counter->unit == COUNTER_NS) { /* "..._ns" */
		memcpy(name + name_bytes - 2, "seconds", sizeof("seconds"));
	}
	for (uint32_t i = 0; i < w->summary->view->export_count; i++) {
		const struct export *export = w->summary->view->exports[i];
		const struct subject subject = of_export(export, "");
		uint64_t *const *layer = w->summary->exports[i].layers;

		for (const struct store *at = export->store; at != NULL; at = at->inner, layer++) {
			if (at->ops->counters != table || *layer == NULL) {
				continue;
			}
			if (!has_head) {
				metrics_write_head(
					w, name, type, units[counter->unit], counter->help);
				has_head = true;
			}
			write_sample(w, name, type, &subject,
				counter->unit == COUNTER_NS ? VALUE_NS : VALUE_COUNT,
				(*layer)[index]);
			break; /* the outermost of that kind: a series has one value */
		}
	}
}

static void write_layers(const struct writer *w)
{
	const struct store_kind *kind;

	for (uint32_t i = 0; (kind = store_kind_at(i)) != NULL; i++) {
		const struct counter_table *table = kind->ops->counters;

		for (size_t k = 0; table != NULL && k < table->count; k++) {
			write_layer_counter(w, table, k);
		}
	}
}

static void write_errors(const struct writer *w)
{
	metrics_write_head(w, "export_errors", METRIC_COUNTER, NULL,
		"Requests that the disk failed, by the error");
	for (uint32_t i = 0; i < w->summary->view->export_count; i++) {
		for (uint32_t slot = 0; slot < PATH_ERROR_COUNT; slot++) {
			char labels[LABELS_BYTES];
			const struct subject subject =
				of_export(w->summary->view->exports[i], labels);

			snprintf(labels, sizeof(labels), "error=\"%s\"", path_error_name(slot));
			write_sample(w, "export_errors", METRIC_COUNTER, &subject, VALUE_COUNT,
				w->summary->exports[i].path.error_counts[slot]);
		}
	}
}

/* --- requests ------------------------------------------------------------------------------ */

static void write_histogram(const struct writer *w, const char *name, const struct subject *subject,
	const uint64_t *buckets, uint64_t sum_ns)
{
	uint64_t count = 0;

	for (uint32_t i = 0; i < PATH_LATENCY_BUCKETS; i++) {
		char limit[LABELS_BYTES];
		uint32_t end = i + 1;
		bool is_doubling = end < PATH_LATENCY_PARTS ? (end & (end - 1)) == 0
							    : end % PATH_LATENCY_PARTS == 0;

		count += buckets[i];
		if (i < BUCKET_FIRST || i > BUCKET_LAST || !is_doubling) {
			continue;
		}
		snprintf(limit, sizeof(limit), "le=\"%.9g\"",
			(double)path_latency_limit_ns(i) / (double)NS_PER_S);
		write_name(w, name, "_bucket", subject, limit);
		write_value(w, VALUE_COUNT, count);
	}
	write_name(w, name, "_bucket", subject, "le=\"+Inf\"");
	write_value(w, VALUE_COUNT, count);
	write_name(w, name, "_sum", subject, NULL);
	write_value(w, VALUE_NS, sum_ns);
	write_name(w, name, "_count", subject, NULL);
	write_value(w, VALUE_COUNT, count);
}

/* Something about the requests of one operation. */
struct family {
	const char *name;
	enum metric_type type;
	const char *unit;
	size_t offset; /* of a number in struct path_stats; for a counter */
	const char *help;
};

#define REQUESTS(field) offsetof(struct path_stats, field)

/* Histograms have no offset. */
static const struct family export_families[] = {
	{ "requests", METRIC_COUNTER, NULL, REQUESTS(count), "Requests that have ended" },
	{ "request_errors", METRIC_COUNTER, NULL, REQUESTS(errors), "Requests that failed" },
	{ "request_bytes", METRIC_COUNTER, "bytes", REQUESTS(bytes),
		"Bytes of the requests that did not fail" },
	{ "request_duration_seconds", METRIC_HISTOGRAM, "seconds", 0,
		"Time from the decoding of a request to the moment its reply was passed on" },
};

static const struct family client_families[] = {
	{ "client_requests", METRIC_COUNTER, NULL, REQUESTS(count),
		"Requests of a client that have ended" },
	{ "client_request_errors", METRIC_COUNTER, NULL, REQUESTS(errors),
		"Requests of a client that failed" },
	{ "client_request_bytes", METRIC_COUNTER, "bytes", REQUESTS(bytes),
		"Bytes of the requests of a client that did not fail" },
	{ "client_request_duration_seconds", METRIC_HISTOGRAM, "seconds", 0,
		"Time that requests of a client took" },
};

static void write_operation(const struct writer *w, const struct family *family,
	const struct subject *subject, const struct path_stats *stats)
{
	if (family->type == METRIC_HISTOGRAM) {
		write_histogram(w, family->name, subject, stats->latency, stats->total_ns);
	} else {
		write_sample(w, family->name, family->type, subject, VALUE_COUNT,
			*(const uint64_t *)((const char *)stats + family->offset));
	}
}

static void operation_label(char out[LABELS_BYTES], int op)
{
	snprintf(out, LABELS_BYTES, "operation=\"%s\"", store_op_name((enum store_op)op));
}

/* The requests of one operation of all exports, of all sizes; false: there were none. */
static bool add_sizes(const struct path_operation *operation, struct path_stats *sum)
{
	*sum = (struct path_stats){ 0 };
	for (uint32_t i = 0; operation != NULL && i < PATH_SIZE_CLASS_COUNT; i++) {
		path_stats_merge(sum, &operation->classes[i]);
	}
	return operation != NULL;
}

static void write_export_family(const struct writer *w, const struct family *family)
{
	metrics_write_head(w, family->name, family->type, family->unit, family->help);
	for (uint32_t i = 0; i < w->summary->view->export_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			char labels[LABELS_BYTES];
			const struct subject subject =
				of_export(w->summary->view->exports[i], labels);
			struct path_stats sum;

			operation_label(labels, op);
			if (add_sizes(w->summary->exports[i].path.operations[op], &sum)) {
				write_operation(w, family, &subject, &sum);
			}
		}
	}
}

static void write_phases(const struct writer *w)
{
	static const char name[] = "request_phase_seconds";

	metrics_write_head(w, name, METRIC_HISTOGRAM, "seconds",
		"Time that requests were in a phase: waiting for memory, turn or payload; only the "
		"disk at work; disk and network at work; only the network at work");
	for (uint32_t i = 0; i < w->summary->view->export_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			const struct path_operation *operation =
				w->summary->exports[i].path.operations[op];
			struct path_stats sum;
			bool has_any = add_sizes(operation, &sum);

			for (int state = 0; has_any && state < PATH_STATE_DONE; state++) {
				char labels[2 * LABELS_BYTES];
				const struct subject subject =
					of_export(w->summary->view->exports[i], labels);

				snprintf(labels, sizeof(labels), "operation=\"%s\",phase=\"%s\"",
					store_op_name((enum store_op)op),
					path_state_name((enum path_state)state));
				write_histogram(w, name, &subject, operation->phases[state],
					sum.state_ns[state]);
			}
		}
	}
}

static struct subject of_client(const struct summary_client *client, const char *labels)
{
	return (struct subject){ "client", client->name, strlen(client->name), labels };
}

static void write_clients(const struct writer *w)
{
	const struct summary *summary = w->summary;

	metrics_write_head(w, "client_connections", METRIC_GAUGE, NULL, "Connections of a client");
	for (uint32_t i = 0; i < summary->client_count; i++) {
		const struct subject subject = of_client(&summary->clients[i], "");

		write_sample(w, "client_connections", METRIC_GAUGE, &subject, VALUE_COUNT,
			summary->clients[i].session_count);
	}
	for (size_t k = 0; k < ARRAY_COUNT(client_families); k++) {
		const struct family *family = &client_families[k];

		metrics_write_head(w, family->name, family->type, family->unit, family->help);
		for (uint32_t i = 0; i < summary->client_count; i++) {
			const struct summary_client *client = &summary->clients[i];

			for (int op = 0; op < STORE_OP_COUNT; op++) {
				char labels[LABELS_BYTES];
				const struct subject subject = of_client(client, labels);

				operation_label(labels, op);
				if (client->operations[op] != NULL) {
					write_operation(
						w, family, &subject, client->operations[op]);
				}
			}
		}
	}
}

int metrics_format(
	const struct summary *summary, bool openmetrics, char **text_out, size_t *bytes_out)
{
	char *text = NULL;
	struct writer w = {
		.out = open_memstream(&text, bytes_out),
		.summary = summary,
		.openmetrics = openmetrics,
	};
	bool failed;

	if (w.out == NULL) {
		return -ENOMEM;
	}
	write_process(&w);
	write_server(&w);
	write_arenas(&w);
	write_rules(&w);
	write_exports(&w);
	write_overlaps(&w);
	write_layers(&w);
	write_errors(&w);
	for (size_t i = 0; i < ARRAY_COUNT(export_families); i++) {
		write_export_family(&w, &export_families[i]);
	}
	write_phases(&w);
	write_clients(&w);
	if (openmetrics) {
		fputs("# EOF\n", w.out);
	}
	failed = ferror(w.out) != 0;
	if (fclose(w.out) != 0 || failed) {
		free(text);
		return -ENOMEM;
	}
	*text_out = text;
	return 0;
}
