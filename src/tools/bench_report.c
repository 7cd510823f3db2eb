// SPDX-License-Identifier: Apache-2.0
#include "tools/bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "tools/show.h"

enum {
	LABEL_COLUMNS = 16,
	RATE_BYTES = UNITS_TEXT_BYTES + 2,
	BAR_COLUMNS = 40,
	URI_SHOWN_BYTES = 512,
	JSON_DIGITS = 9,
};

static const char *const direction_names[BENCH_DIRECTIONS] = { "read", "write" };

/* The percentiles that are reported. */
static const struct percentile {
	const char *key;
	const char *title;
	uint32_t parts_per_million;
} percentiles[] = {
	{ "p50", "p50", 500000 },
	{ "p90", "p90", 900000 },
	{ "p99", "p99", 990000 },
	{ "p99_9", "p99.9", 999000 },
	{ "p99_99", "p99.99", 999900 },
};

static double bench_report_us(uint64_t ns)
{
	return (double)ns / 1000;
}

static double bench_report_seconds(const struct bench_result *result)
{
	return (double)result->elapsed_ns / 1e9;
}

static double per_second(const struct bench_result *result, uint64_t count)
{
	return (double)count / bench_report_seconds(result);
}

static double per_request(const struct bench_result *result, uint64_t count)
{
	return (double)count / (double)bench_requests(result);
}

/* Returns the sum of both directions; valid until the next call. */
static const struct histogram *both(const struct bench_result *result)
{
	static struct histogram sum;

	histogram_reset(&sum);
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		histogram_merge(&sum, &result->latency_ns[i]);
	}
	return &sum;
}

enum { BENCH_TITLE_BYTES = 160 };

/* Formats a title such as "4 KiB random reads, depth 64, 1 connection". */
static void bench_title(
	char out[BENCH_TITLE_BYTES], const struct bench_work *work, uint32_t connections)
{
	char size[UNITS_TEXT_BYTES];
	char mix[32] = "";

	if (bench_reads(work) && bench_writes(work)) {
		snprintf(mix, sizeof(mix), " (%u %% reads)", work->read_percent);
	}
	snprintf(out, BENCH_TITLE_BYTES,
		"%s%s, blocks of %s%s, depth %u, %u connection%s, %u thread%s", work->rw, mix,
		units_format_bytes(size, work->block_bytes), work->once ? ", each once" : "",
		work->depth, connections, connections == 1 ? "" : "s", work->threads,
		work->threads == 1 ? "" : "s");
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_label(const char *label)
{
	printf("%-*s", LABEL_COLUMNS, label);
}

static const char *rate_text(char out[RATE_BYTES], double bytes_per_second)
{
	char bytes[UNITS_TEXT_BYTES];

	snprintf(out, RATE_BYTES, "%s/s", units_human_bytes(bytes, (uint64_t)bytes_per_second));
	return out;
}

static void bench_report_print_head(
	const struct bench_work *work, const struct bench_result *result)
{
	char title[BENCH_TITLE_BYTES];
	char uri[URI_SHOWN_BYTES];
	char human[UNITS_TEXT_BYTES];

	print_label("Server");
	printf("\"%s\"\n", log_escape(uri, sizeof(uri), work->uri, strlen(work->uri)));
	if (result->host[0] != '\0') {
		print_label("Host in use");
		puts(result->host);
	}
	print_label("Work");
	bench_title(title, work, result->connections);
	printf("%s%s\n", title, work->fua ? ", FUA" : "");
	print_label("Range");
	printf("%s at offset %" PRIu64 "\n",
		units_human_bytes(human, result->range.blocks * work->block_bytes),
		result->range.offset);
	print_label("Measured");
	printf("%.3f s", bench_report_seconds(result));
	if (work->warmup_ns > 0) {
		printf(" after %.3f s of warm-up", (double)work->warmup_ns / 1e9);
	}
	puts(result->interrupted	      ? ", then interrupted"
		: bench_covered(work, result) ? ", until every block was used"
					      : "");
}

static void print_rate(const char *name, const struct bench_work *work,
	const struct bench_result *result, uint64_t count)
{
	char rate[RATE_BYTES];

	print_label(name);
	printf("%12" PRIu64 " %14.0f %14s\n", count, per_second(result, count),
		rate_text(rate, per_second(result, count) * work->block_bytes));
}

/* Returns the requested rate in bytes or requests per second; 0: no rate. */
static uint64_t rate_asked(const struct bench_work *work)
{
	return work->rate_bytes > 0 ? work->rate_bytes : work->rate_requests;
}

/* Returns the share of the requested rate that was achieved. */
static double rate_achieved(const struct bench_work *work, const struct bench_result *result)
{
	return per_second(result, bench_requests(result)) *
	       (work->rate_bytes > 0 ? work->block_bytes : 1) / (double)rate_asked(work);
}

static void print_rate_asked(const struct bench_work *work, const struct bench_result *result)
{
	char rate[RATE_BYTES];

	if (rate_asked(work) == 0) {
		return;
	}
	print_label("requested rate");
	if (work->rate_bytes > 0) {
		printf("%42s", rate_text(rate, (double)work->rate_bytes));
	} else {
		printf("%27" PRIu64 "%15s", work->rate_requests, "");
	}
	printf("   %.2f %% achieved\n", 100 * rate_achieved(work, result));
}

static void print_rates(const struct bench_work *work, const struct bench_result *result)
{
	putchar('\n');
	print_label("");
	printf("%12s %14s %14s\n", "requests", "per second", "bytes");
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		if (result->latency_ns[i].count > 0) {
			print_rate(direction_names[i], work, result, result->latency_ns[i].count);
		}
	}
	if (bench_reads(work) && bench_writes(work)) {
		print_rate("both", work, result, bench_requests(result));
	}
	print_rate_asked(work, result);
}

static void print_holes(const struct bench_result *result)
{
	if (result->hole_reads > 0) {
		print_label("");
		printf("%.3g %% of the reads hit holes, which need no disk access; to measure the "
		       "disk, write the range first\n",
			100.0 * (double)result->hole_reads /
				(double)result->latency_ns[BENCH_READ].count);
	}
}

static void print_lost(const struct bench_result *result)
{
	if (result->stats.connections_lost > 0) {
		print_label("");
		printf("connections were lost and restored %llu time%s; the results include the "
		       "time of the outages\n",
			(unsigned long long)result->stats.connections_lost,
			result->stats.connections_lost == 1 ? "" : "s");
	}
}

static void print_time(double time_us)
{
	char text[PRINT_US_BYTES];

	printf(" %9s", print_us(text, time_us));
}

static void print_latency(const char *name, const struct histogram *latency)
{
	if (latency->count == 0) {
		return;
	}
	print_label(name);
	print_time(histogram_mean(latency) / 1000);
	print_time(bench_report_us(latency->minimum));
	for (size_t i = 0; i < ARRAY_COUNT(percentiles); i++) {
		print_time(bench_report_us(
			histogram_quantile(latency, percentiles[i].parts_per_million)));
	}
	print_time(bench_report_us(latency->maximum));
	putchar('\n');
}

static void print_latencies(const struct bench_result *result)
{
	putchar('\n');
	print_label("latency");
	printf(" %9s %9s", "mean", "min");
	for (size_t i = 0; i < ARRAY_COUNT(percentiles); i++) {
		printf(" %9s", percentiles[i].title);
	}
	printf(" %9s\n", "max");
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		print_latency(direction_names[i], &result->latency_ns[i]);
	}
	print_latency("send delay", &result->late_ns);
}

static void print_costs(const struct bench_result *result)
{
	const struct bench_cpu *cpu = &result->cpu;
	uint64_t cpu_ns = cpu->user_ns + cpu->system_ns;
	uint64_t switches = cpu->switches_voluntary + cpu->switches_involuntary;
	char human[UNITS_TEXT_BYTES];

	putchar('\n');
	print_label("This process");
	printf("%.2f us of processor time per request (%.2f user, %.2f system), %.0f %% of one "
	       "processor\n",
		bench_report_us(cpu_ns) / (double)bench_requests(result),
		bench_report_us(cpu->user_ns) / (double)bench_requests(result),
		bench_report_us(cpu->system_ns) / (double)bench_requests(result),
		100.0 * (double)cpu_ns / (double)result->elapsed_ns);
	print_label("");
	printf("%.3f system calls and %.3f context switches per request\n",
		per_request(result, result->stats.system_calls), per_request(result, switches));
	if (result->stats.bytes_moved > 0) {
		print_label("");
		printf("%s of payload copied, because it could not be received directly into the "
		       "buffer of its request\n",
			units_human_bytes(human, result->stats.bytes_moved));
	}
}

static const char *bench_report_time_text(char out[RATE_BYTES], uint64_t ns)
{
	if (ns < UINT64_C(1000000)) {
		snprintf(out, RATE_BYTES, "%g us", (double)ns / 1e3);
	} else if (ns < UINT64_C(1000000000)) {
		snprintf(out, RATE_BYTES, "%g ms", (double)ns / 1e6);
	} else {
		snprintf(out, RATE_BYTES, "%g s", (double)ns / 1e9);
	}
	return out;
}

/* Returns the number after border in the series 1, 2, 5, 10, 20, 50 and so on. The ranges of the
 * report end at these numbers. */
static uint64_t border_next(uint64_t border)
{
	uint64_t first = border;

	while (first >= 10) {
		first /= 10;
	}
	return first == 2 ? border / 2 * 5 : border * 2;
}

/* Calls show for each range between limits of the 1-2-5 series, from the smallest to the largest
 * value. A bucket that extends over a limit counts for the lower range. */
static void each_range(const struct histogram *latency,
	void (*show)(void *context, uint64_t low, uint64_t high, uint64_t count), void *context)
{
	uint64_t first = histogram_lowest(histogram_index(latency->minimum));
	uint64_t last = histogram_lowest(histogram_index(latency->maximum));
	uint64_t low = 100;

	if (latency->count == 0) {
		return;
	}
	while (border_next(low) <= first) {
		low = border_next(low);
	}
	if (low > first) {
		low = 0;
	}
	while (low <= last) {
		uint64_t high = low == 0 ? 100 : border_next(low);

		show(context, low, high, histogram_between(latency, low, high));
		low = high;
	}
}

static void print_bar(void *context, uint64_t low, uint64_t high, uint64_t count)
{
	const struct histogram *const *latency_in = context;
	const struct histogram *latency = *latency_in;
	double share = (double)count / (double)latency->count;
	char from[RATE_BYTES];
	char to[RATE_BYTES];
	int bar = (int)(share * BAR_COLUMNS + 0.5);

	printf("%10s - %-10s %8.4f %%  %.*s\n", bench_report_time_text(from, low),
		bench_report_time_text(to, high), 100 * share, bar,
		"########################################");
}

static void print_distributions(const struct bench_result *result)
{
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		const struct histogram *latency = &result->latency_ns[i];

		if (latency->count > 0) {
			printf("\n%s latency\n", direction_names[i]);
			each_range(latency, print_bar, &latency);
		}
	}
}

int bench_show_text(
	const struct bench_work *work, const struct bench_result *result, struct error *error)
{
	bench_report_print_head(work, result);
	print_rates(work, result);
	print_holes(result);
	print_lost(result);
	print_latencies(result);
	print_costs(result);
	print_distributions(result);
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_latency(const struct histogram *latency)
{
	json_t *object = json_object();

	json_object_set_new(object, "mean", json_real(histogram_mean(latency) / 1000));
	json_object_set_new(object, "deviation", json_real(histogram_deviation(latency) / 1000));
	json_object_set_new(object, "min",
		json_real(bench_report_us(latency->count > 0 ? latency->minimum : 0)));
	for (size_t i = 0; i < ARRAY_COUNT(percentiles); i++) {
		uint64_t value = histogram_quantile(latency, percentiles[i].parts_per_million);

		json_object_set_new(object, percentiles[i].key, json_real(bench_report_us(value)));
	}
	json_object_set_new(object, "max", json_real(bench_report_us(latency->maximum)));
	return object;
}

static void json_bar(void *context, uint64_t low, uint64_t high, uint64_t count)
{
	json_t *object = json_object();

	json_object_set_new(object, "from_us", json_real(bench_report_us(low)));
	json_object_set_new(object, "below_us", json_real(bench_report_us(high)));
	json_object_set_new(object, "requests", json_integer((json_int_t)count));
	json_array_append_new(context, object);
}

/* Returns the buckets that are not empty, each as [lowest ns, highest ns, requests]. */
static json_t *json_buckets(const struct histogram *latency)
{
	json_t *buckets = json_array();

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		if (latency->buckets[i] > 0) {
			json_array_append_new(
				buckets, json_pack("[I, I, I]", (json_int_t)histogram_lowest(i),
						 (json_int_t)histogram_highest(i),
						 (json_int_t)latency->buckets[i]));
		}
	}
	return buckets;
}

static json_t *json_direction(const struct bench_work *work, const struct bench_result *result,
	const struct histogram *latency)
{
	json_t *object;
	json_t *bars;

	if (latency->count == 0) {
		return json_null();
	}
	object = json_object();
	bars = json_array();
	each_range(latency, json_bar, bars);
	json_object_set_new(object, "requests", json_integer((json_int_t)latency->count));
	json_object_set_new(object, "iops", json_real(per_second(result, latency->count)));
	json_object_set_new(object, "bytes_per_second",
		json_real(per_second(result, latency->count) * work->block_bytes));
	json_object_set_new(object, "latency_us", json_latency(latency));
	json_object_set_new(object, "histogram", bars);
	json_object_set_new(object, "buckets", json_buckets(latency));
	return object;
}

/* Returns JSON null if no rate was requested. */
static json_t *json_rate(const struct bench_work *work, const struct bench_result *result)
{
	json_t *object;

	if (rate_asked(work) == 0) {
		return json_null();
	}
	object = json_object();
	json_object_set_new(object,
		work->rate_bytes > 0 ? "bytes_per_second" : "requests_per_second",
		json_integer((json_int_t)rate_asked(work)));
	json_object_set_new(object, "achieved", json_real(rate_achieved(work, result)));
	json_object_set_new(object, "late_us", json_latency(&result->late_ns));
	return object;
}

static json_t *json_work(const struct bench_work *work, const struct bench_result *result)
{
	json_t *object = json_object();

	json_object_set_new(object, "rw", json_string(work->rw));
	json_object_set_new(object, "read_percent", json_integer(work->read_percent));
	json_object_set_new(object, "block_bytes", json_integer(work->block_bytes));
	json_object_set_new(object, "depth", json_integer(work->depth));
	json_object_set_new(object, "connections", json_integer(result->connections));
	json_object_set_new(object, "threads", json_integer(work->threads));
	json_object_set_new(object, "fua", json_boolean(work->fua));
	json_object_set_new(object, "once", json_boolean(work->once));
	json_object_set_new(object, "offset", json_integer((json_int_t)result->range.offset));
	json_object_set_new(object, "size",
		json_integer((json_int_t)(result->range.blocks * work->block_bytes)));
	json_object_set_new(object, "seed", json_integer((json_int_t)work->seed));
	json_object_set_new(object, "seconds", json_real((double)work->duration_ns / 1e9));
	json_object_set_new(object, "warmup_seconds", json_real((double)work->warmup_ns / 1e9));
	return object;
}

static json_t *json_costs(const struct bench_result *result)
{
	json_t *object = json_object();

	json_object_set_new(object, "user_seconds", json_real((double)result->cpu.user_ns / 1e9));
	json_object_set_new(
		object, "system_seconds", json_real((double)result->cpu.system_ns / 1e9));
	json_object_set_new(object, "context_switches_voluntary",
		json_integer((json_int_t)result->cpu.switches_voluntary));
	json_object_set_new(object, "context_switches_involuntary",
		json_integer((json_int_t)result->cpu.switches_involuntary));
	json_object_set_new(
		object, "system_calls", json_integer((json_int_t)result->stats.system_calls));
	json_object_set_new(object, "system_calls_per_request",
		json_real(per_request(result, result->stats.system_calls)));
	json_object_set_new(object, "polls", json_integer((json_int_t)result->stats.polls));
	json_object_set_new(object, "commands", json_integer((json_int_t)result->stats.commands));
	json_object_set_new(object, "payload_bytes_received",
		json_integer((json_int_t)result->stats.bytes_read));
	json_object_set_new(object, "payload_bytes_sent",
		json_integer((json_int_t)result->stats.bytes_written));
	json_object_set_new(object, "payload_bytes_copied",
		json_integer((json_int_t)result->stats.bytes_moved));
	return object;
}

static json_t *json_server(const struct bench_result *result)
{
	static const char *const replies[] = {
		[GMB_REPLIES_SIMPLE] = "simple",
		[GMB_REPLIES_STRUCTURED] = "structured",
		[GMB_REPLIES_EXTENDED] = "extended",
		[GMB_REPLIES_PLACED] = "placed",
	};
	json_t *object = json_object();

	json_object_set_new(object, "size", json_integer((json_int_t)result->info.bytes));
	json_object_set_new(object, "replies", json_string(replies[result->info.replies]));
	json_object_set_new(object, "block_minimum", json_integer(result->info.block_minimum));
	json_object_set_new(object, "payload_max", json_integer(result->info.payload_max));
	return object;
}

int bench_show_json(
	const struct bench_work *work, const struct bench_result *result, struct error *error)
{
	uint64_t cpu_ns = result->cpu.user_ns + result->cpu.system_ns;
	double iops = per_second(result, bench_requests(result));
	json_t *root = json_object();

	json_object_set_new(root, "iops", json_real(iops));
	json_object_set_new(root, "bytes_per_second", json_real(iops * work->block_bytes));
	json_object_set_new(root, "latency_us", json_latency(both(result)));
	json_object_set_new(root, "cpu_us_per_request",
		json_real(bench_report_us(cpu_ns) / (double)bench_requests(result)));
	json_object_set_new(root, "requests", json_integer((json_int_t)bench_requests(result)));
	json_object_set_new(root, "hole_reads", json_integer((json_int_t)result->hole_reads));
	json_object_set_new(
		root, "connections_lost", json_integer((json_int_t)result->stats.connections_lost));
	json_object_set_new(root, "seconds", json_real(bench_report_seconds(result)));
	json_object_set_new(root, "interrupted", json_boolean(result->interrupted));
	json_object_set_new(root, "covered", json_boolean(bench_covered(work, result)));
	json_object_set_new(root, "rate", json_rate(work, result));
	json_object_set_new(root, "uri", print_json_text(work->uri));
	json_object_set_new(
		root, "host", print_json_text(result->host[0] != '\0' ? result->host : NULL));
	json_object_set_new(root, "work", json_work(work, result));
	json_object_set_new(root, "process", json_costs(result));
	json_object_set_new(root, "server", json_server(result));
	/* The histograms come last, because they are long. */
	for (int i = 0; i < BENCH_DIRECTIONS; i++) {
		json_object_set_new(root, direction_names[i],
			json_direction(work, result, &result->latency_ns[i]));
	}
	/* Nine digits exceed the resolution of any clock. */
	return print_json_digits(root, JSON_DIGITS, error);
}
