// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/kind.h"

#define NS_PER_S UINT64_C(1000000000)

enum {
	LABEL_BYTES = 64,
	/* The buckets of a histogram: the first has the upper limit of latency class BUCKET_FIRST,
	 * the last one the limit of class BUCKET_LAST. Each limit is twice the limit of the bucket
	 * before. */
	BUCKET_FIRST = 1,
	BUCKET_LAST = 22 * PATH_LATENCY_PARTS - 1,
};

_Static_assert(
	(int)BUCKET_FIRST < (int)PATH_LATENCY_PARTS && (int)BUCKET_LAST < (int)PATH_LATENCY_BUCKETS,
	"the first and last reported buckets exist");

/* The object that a sample describes. */
struct subject {
	const char *label; /* name of the first label, "export" or "client"; or NULL */
	const char *value; /* value of the label, untrusted text */
	size_t value_bytes;
	const char *second; /* name of the second label, or NULL */
	const char *second_value;
	const char *more; /* more labels, already formatted; or NULL */
};

/* Counters of one object, as a series of a metric. */
struct series {
	struct subject subject;
	/* a struct that the table describes; or if is_list, an array with one uint64_t per
	 * counter */
	const void *values;
	bool is_list;
};

struct writer {
	FILE *out;
	const struct totals *totals;
	bool openmetrics;
	/* The objects whose counters end_table() will write. */
	struct series *series;
	uint32_t series_count;
	bool failed; /* no memory */
};

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* --- lines --------------------------------------------------------------------------------- */

/* Writes the comment lines of a metric. name: without "gmblock_" and "_total". unit: the last word
 * of the name, or NULL. */
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

/* Escapes and writes a label's value, such as the name of an export or client, which is UTF-8. */
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

/* Writes the name and the labels of a sample. more: an additional label, whose name and value need
 * no escaping; NULL: none. */
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
	if (subject->second != NULL) {
		fprintf(w->out, "%s%s=\"%s\"", separator, subject->second, subject->second_value);
		separator = ",";
	}
	if (subject->more != NULL) {
		fprintf(w->out, "%s%s", separator, subject->more);
		separator = ",";
	}
	if (more != NULL) {
		fprintf(w->out, "%s%s", separator, more);
		separator = ",";
	}
	fputs(separator[0] == ',' ? "} " : " ", w->out);
}

static void write_value(const struct writer *w, enum counter_unit unit, uint64_t value)
{
	if (unit == COUNTER_NS) { /* the metric is written in seconds */
		fprintf(w->out, "%llu.%09llu\n", (unsigned long long)(value / NS_PER_S),
			(unsigned long long)(value % NS_PER_S));
	} else if (unit == COUNTER_PERMILLE) {
		fprintf(w->out, "%llu.%03llu\n", (unsigned long long)(value / 1000),
			(unsigned long long)(value % 1000));
	} else {
		fprintf(w->out, "%llu\n", (unsigned long long)value);
	}
}

static void write_gauge(const struct writer *w, const char *name, const struct subject *subject,
	const char *more, enum counter_unit unit, uint64_t value)
{
	write_name(w, name, "", subject, more);
	write_value(w, unit, value);
}

/* --- tables -------------------------------------------------------------------------------- */

static void add(struct writer *w, const struct subject *subject, const void *values, bool is_list)
{
	if (array_grow(&w->series, w->series_count, sizeof(*w->series)) < 0) {
		w->failed = true;
		return;
	}
	w->series[w->series_count++] = (struct series){ *subject, values, is_list };
}

/* Writes the table's counters for all objects in w->series. prefix: distinguishes clients' counters
 * from exports' counters. */
static void write_table(
	const struct writer *w, const struct counter_table *table, const char *prefix)
{
	static const char *const units[] = {
		[COUNTER_BYTES] = "bytes",
		[COUNTER_NS] = "seconds",
		[COUNTER_PERMILLE] = "ratio",
		[COUNTER_BOOL] = NULL,
	};
	char before[2 * COUNTER_METRIC_BYTES] = "";

	for (size_t i = 0; i < table->count && w->series_count > 0; i++) {
		const struct counter *counter = &table->counters[i];
		enum metric_type type =
			counter->kind == COUNTER_TOTAL ? METRIC_COUNTER : METRIC_GAUGE;
		char metric[COUNTER_METRIC_BYTES];
		char name[sizeof(before)];

		if (counter_metric(metric, table, counter)[0] == '\0') {
			continue;
		}
		snprintf(name, sizeof(name), "%s%s", prefix, metric);
		if (strcmp(name, before) != 0) {
			metrics_write_head(w, name, type, units[counter->unit],
				counter->family != NULL ? counter->family : counter->help);
			memcpy(before, name, sizeof(before));
		}
		for (size_t k = 0; k < w->series_count; k++) {
			const struct series *series = &w->series[k];
			uint64_t value = series->is_list ? ((const uint64_t *)series->values)[i]
							 : counter_value(counter, series->values);

			if (value != COUNTER_NONE) {
				write_name(w, name, type == METRIC_COUNTER ? "_total" : "",
					&series->subject, counter->labels);
				write_value(w, counter->unit, value);
			}
		}
	}
}

/* Writes the table's counters for all objects in w->series, and empties w->series. */
static void end_table(struct writer *w, const struct counter_table *table)
{
	write_table(w, table, "");
	w->series_count = 0;
}

static struct subject of_export(const struct export *export)
{
	return (struct subject){
		.label = "export", .value = export->name, .value_bytes = export->name_bytes
	};
}

static struct subject of_client(const struct totals_client *client)
{
	return (struct subject){
		.label = "client", .value = client->name, .value_bytes = strlen(client->name)
	};
}

static void write_server(struct writer *w)
{
	static const struct subject whole;

	add(w, &whole, &w->totals->counters, false);
	end_table(w, &engine_counter_table);
}

static void write_arenas(struct writer *w)
{
	const struct path_arena *const arenas[] = { &w->totals->ram, &w->totals->device };

	for (size_t i = 0; i < ARRAY_COUNT(arenas); i++) {
		const struct subject subject = { .label = "kind",
			.value = arenas[i]->kind,
			.value_bytes = arenas[i]->kind != NULL ? strlen(arenas[i]->kind) : 0 };

		if (arenas[i]->kind != NULL) {
			add(w, &subject, arenas[i], false);
		}
	}
	end_table(w, &path_arena_counter_table);
}

static void write_exports(struct writer *w)
{
	const struct server_view *view = w->totals->view;

	for (size_t i = 0; i < TOTALS_PARTS; i++) {
		const struct totals_part *part = &totals_parts[i];

		for (uint32_t k = 0; k < view->exports->count; k++) {
			struct subject subject = of_export(view->exports->exports[k]);

			subject.second = part->direction != NULL ? "direction" : NULL;
			subject.second_value = part->direction;
			add(w, &subject, (const char *)&w->totals->exports[k] + part->offset,
				false);
		}
		if (i + 1 == TOTALS_PARTS || totals_parts[i + 1].table != part->table) {
			end_table(w, part->table);
		}
	}
}

/* Writes the counters of store layers. If several layers are of one kind, only the outermost one
 * counts, because a series has one value. */
static void write_layers(struct writer *w)
{
	const struct server_view *view = w->totals->view;
	const struct store_kind *kind;

	for (uint32_t i = 0; (kind = store_kind_at(i)) != NULL; i++) {
		const struct counter_table *table = kind->ops->counters;

		for (uint32_t k = 0; table != NULL && k < view->exports->count; k++) {
			const struct subject subject = of_export(view->exports->exports[k]);
			uint64_t *const *layer = w->totals->exports[k].layers;
			const struct store *at = view->exports->exports[k]->store;

			while (at != NULL && (at->ops->counters != table || *layer == NULL)) {
				at = at->inner;
				layer++;
			}
			if (at != NULL) {
				add(w, &subject, *layer, true);
			}
		}
		if (table != NULL) {
			end_table(w, table);
		}
	}
}

/* --- metrics without a table ------------------------------------------------------------------ */

static void write_process(const struct writer *w)
{
	static const struct subject whole;

	metrics_write_head(w, "build_info", METRIC_GAUGE, NULL, "Version of the server");
	write_gauge(w, "build_info", &whole, "version=\"" GMBLOCK_VERSION "\"", COUNTER_ITEMS, 1);
	metrics_write_head(
		w, "uptime_seconds", METRIC_GAUGE, "seconds", "Time since the server started");
	write_gauge(w, "uptime_seconds", &whole, NULL, COUNTER_NS,
		w->totals->at_ns - w->totals->view->start_ns);
}

static void write_rules(const struct writer *w)
{
	uint32_t count = rate_rules_count(w->totals->view->rate_rules);

	if (count > 0) {
		metrics_write_head(w, "rule_identities", METRIC_GAUGE, NULL,
			"Connected identities that a rate rule applies to, by rule, numbered "
			"from 1 in the order of the configuration");
	}
	for (uint32_t i = 0; i < count; i++) {
		static const struct subject whole;
		char label[LABEL_BYTES];
		struct rate_rule rule;
		uint32_t identities;

		rate_rules_look(w->totals->view->rate_rules, i, &rule, &identities);
		snprintf(label, sizeof(label), "rule=\"%u\"", i + 1);
		write_gauge(w, "rule_identities", &whole, label, COUNTER_ITEMS, identities);
	}
}

static void write_errors(const struct writer *w)
{
	metrics_write_head(w, "export_errors", METRIC_COUNTER, NULL,
		"Requests that failed on the disk, by error");
	for (uint32_t i = 0; i < w->totals->view->exports->count; i++) {
		for (uint32_t slot = 0; slot < PATH_ERROR_COUNT; slot++) {
			struct subject subject = of_export(w->totals->view->exports->exports[i]);

			subject.second = "error";
			subject.second_value = path_error_name(slot);
			write_name(w, "export_errors", "_total", &subject, NULL);
			write_value(
				w, COUNTER_ITEMS, w->totals->exports[i].path.error_counts[slot]);
		}
	}
}

/* --- requests ------------------------------------------------------------------------------ */

static void write_histogram(const struct writer *w, const char *name, const struct subject *subject,
	const uint64_t *buckets, uint64_t sum_ns)
{
	uint64_t count = 0;

	for (uint32_t i = 0; i < PATH_LATENCY_BUCKETS; i++) {
		char limit[LABEL_BYTES];
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
		write_value(w, COUNTER_ITEMS, count);
	}
	write_name(w, name, "_bucket", subject, "le=\"+Inf\"");
	write_value(w, COUNTER_ITEMS, count);
	write_name(w, name, "_sum", subject, NULL);
	write_value(w, COUNTER_NS, sum_ns);
	write_name(w, name, "_count", subject, NULL);
	write_value(w, COUNTER_ITEMS, count);
}

/* Writes the counters and latency histograms of the objects in w->series, whose values are of type
 * struct path_stats. */
static void write_requests(struct writer *w, const char *prefix, const char *help)
{
	char name[LABEL_BYTES];

	write_table(w, &path_stats_counter_table, prefix);
	snprintf(name, sizeof(name), "%srequest_duration_seconds", prefix);
	metrics_write_head(w, name, METRIC_HISTOGRAM, "seconds", help);
	for (size_t i = 0; i < w->series_count; i++) {
		const struct path_stats *stats = w->series[i].values;

		write_histogram(w, name, &w->series[i].subject, stats->latency, stats->total_ns);
	}
	w->series_count = 0;
}

static struct subject of_operation(struct subject subject, int op)
{
	subject.second = "operation";
	subject.second_value = store_op_name((enum store_op)op);
	return subject;
}

static void write_phases(const struct writer *w, const struct path_stats *sums)
{
	static const char name[] = "request_phase_seconds";

	metrics_write_head(w, name, METRIC_HISTOGRAM, "seconds",
		"Time that requests spent in each phase: waiting for memory, a rate limit or "
		"payload; disk only; disk and network; network only");
	for (uint32_t i = 0; i < w->totals->view->exports->count * STORE_OP_COUNT; i++) {
		uint32_t index = i / STORE_OP_COUNT;
		int op = (int)(i % STORE_OP_COUNT);
		const struct path_operation *operation =
			w->totals->exports[index].path.operations[op];
		struct subject subject =
			of_operation(of_export(w->totals->view->exports->exports[index]), op);

		for (int state = 0; operation != NULL && state < PATH_STATE_DONE; state++) {
			char phase[LABEL_BYTES];

			snprintf(phase, sizeof(phase), "phase=\"%s\"",
				path_state_name((enum path_state)state));
			subject.more = phase;
			write_histogram(w, name, &subject, operation->phases[state],
				sums[i].state_ns[state]);
		}
	}
}

/* Writes the requests of all sizes, by export and operation. */
static void write_operations(struct writer *w)
{
	uint32_t count = w->totals->view->exports->count * STORE_OP_COUNT;
	struct path_stats *sums = calloc(MAX(count, 1U), sizeof(*sums));

	if (sums == NULL) {
		w->failed = true;
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t index = i / STORE_OP_COUNT;
		int op = (int)(i % STORE_OP_COUNT);
		const struct subject subject =
			of_operation(of_export(w->totals->view->exports->exports[index]), op);
		const struct path_operation *operation =
			w->totals->exports[index].path.operations[op];

		for (uint32_t k = 0; operation != NULL && k < PATH_SIZE_CLASS_COUNT; k++) {
			path_stats_merge(&sums[i], &operation->classes[k]);
		}
		if (operation != NULL) {
			add(w, &subject, &sums[i], false);
		}
	}
	write_requests(w, "",
		"Time from the decoding of a request until its reply was passed to the kernel");
	write_phases(w, sums);
	free(sums);
}

static void write_clients(struct writer *w)
{
	const struct totals *totals = w->totals;

	for (uint32_t i = 0; i < totals->client_count; i++) {
		const struct subject subject = of_client(&totals->clients[i]);

		add(w, &subject, &totals->clients[i], false);
	}
	end_table(w, &totals_client_table);
	for (uint32_t i = 0; i < totals->client_count; i++) {
		for (int op = 0; op < STORE_OP_COUNT; op++) {
			const struct subject subject =
				of_operation(of_client(&totals->clients[i]), op);

			if (totals->clients[i].operations[op] != NULL) {
				add(w, &subject, totals->clients[i].operations[op], false);
			}
		}
	}
	write_requests(w, "client_", "Duration of a client's requests");
}

static void write_nodes(struct writer *w)
{
	for (uint32_t i = 0; i < w->totals->node_count; i++) {
		const struct totals_node *node = &w->totals->nodes[i];
		const struct subject subject = {
			.label = "node", .value = node->name, .value_bytes = strlen(node->name)
		};

		add(w, &subject, node, false);
	}
	end_table(w, &totals_node_table);
}

static int format_totals(
	const struct totals *totals, bool openmetrics, char **text_out, size_t *bytes_out)
{
	char *text = NULL;
	struct writer w = {
		.out = open_memstream(&text, bytes_out),
		.totals = totals,
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
	write_layers(&w);
	write_errors(&w);
	write_operations(&w);
	write_clients(&w);
	write_nodes(&w);
	free(w.series);
	if (openmetrics) {
		fputs("# EOF\n", w.out);
	}
	failed = w.failed || ferror(w.out) != 0;
	if (fclose(w.out) != 0 || failed) {
		free(text);
		return -ENOMEM;
	}
	*text_out = text;
	return 0;
}

int metrics_format(
	const struct server_view *view, bool openmetrics, char **text_out, size_t *bytes_out)
{
	struct totals totals;
	int rc = totals_collect(view, &totals)
			 ?: format_totals(&totals, openmetrics, text_out, bytes_out);

	totals_fini(&totals);
	return rc;
}
