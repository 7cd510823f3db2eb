// SPDX-License-Identifier: Apache-2.0
/*
 * Output of traces: text with a table and a chart, and JSON.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "lab/lab.h"
#include "tools/show.h"

enum { LABEL_COLUMNS = 34 };
enum { CHART_COLUMNS = 68, CHART_ROWS = 16, CHART_LINE_BYTES = CHART_COLUMNS + 1 };

static double trace_report_us(uint64_t ns)
{
	return (double)ns / 1000;
}

/* --- rows of the table, also in the JSON summary ------------------------------------------- */

typedef double value_fn(const struct trace_read *read, const struct trace_analysis *analysis);

static double value_time(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return trace_report_us(read->total_ns);
}

static double value_first(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return trace_report_us(analysis->first_ns);
}

static double value_arrived_25(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->arrived[0];
}

static double value_arrived_50(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->arrived[1];
}

static double value_arrived_75(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->arrived[2];
}

static double value_early(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return (double)analysis->early / read->chunk_count;
}

static double value_streams(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->streams;
}

static double value_largest(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->largest_stream;
}

static double value_reordered(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->reordered;
}

static double value_distance(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->reordered_distance / 1024.0;
}

static double value_any(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->hidden_any;
}

static double value_ascending(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return analysis->hidden_ascending;
}

static double value_gap(const struct trace_read *read, const struct trace_analysis *analysis)
{
	return trace_report_us(read->gap_max_ns);
}

static const struct row {
	const char *title;
	const char *unit; /* "%" for shares */
	const char *key;
	value_fn *value;
} rows[] = {
	{ "time of the read", "us", "time_us", value_time },
	{ "first chunk in memory after", "us", "first_us", value_first },
	{ "data in memory after 25 % of the time", "%", "arrived_25", value_arrived_25 },
	{ "data in memory after 50 % of the time", "%", "arrived_50", value_arrived_50 },
	{ "data in memory after 75 % of the time", "%", "arrived_75", value_arrived_75 },
	{ "chunks seen before completion", "%", "early", value_early },
	{ "streams", "", "streams", value_streams },
	{ "  chunks in the largest stream", "%", "largest_stream", value_largest },
	{ "chunks after a higher chunk", "%", "reordered", value_reordered },
	{ "  largest distance, in KiB", "", "reordered_kib", value_distance },
	{ "sending hidden, any order", "%", "hidden_any_order", value_any },
	{ "  in ascending order only", "%", "hidden_ascending", value_ascending },
	{ "longest time between two samples", "us", "gap_us", value_gap },
};

struct spread {
	double median;
	double lowest;
	double highest;
};

static int compare_doubles(const void *a, const void *b)
{
	double left = *(const double *)a;
	double right = *(const double *)b;

	return left < right ? -1 : left > right;
}

static struct spread measure_spread(const struct row *row, const struct trace_group *group)
{
	double values[TRACE_COUNT_MAX];

	GMB_ASSERT(group->count >= 1);
	GMB_ASSERT(group->count <= TRACE_COUNT_MAX);
	for (uint32_t i = 0; i < group->count; i++) {
		values[i] = row->value(&group->reads[i], &group->analyses[i]);
	}
	qsort(values, group->count, sizeof(values[0]), compare_doubles);
	return (struct spread){ values[(group->count - 1) / 2], values[0],
		values[group->count - 1] };
}

/* --- the chart ----------------------------------------------------------------------------- */

static char stream_letter(uint16_t stream)
{
	static const char letters[] = "123456789abcdefghijklmnopqrstuvwxyz";

	return stream <= strlen(letters) ? letters[stream - 1] : '+';
}

static uint32_t chart_column(const struct trace_read *read, uint64_t time_ns)
{
	return MIN((uint32_t)((double)time_ns / (double)read->total_ns * CHART_COLUMNS),
		(uint32_t)CHART_COLUMNS - 1);
}

static uint32_t chart_row(const struct trace_read *read, uint64_t offset)
{
	return CHART_ROWS - 1 - (uint32_t)(offset * CHART_ROWS / read->bytes);
}

static void chart_fill(char lines[CHART_ROWS][CHART_LINE_BYTES], const struct trace_read *read)
{
	for (uint32_t i = 0; i < CHART_ROWS; i++) {
		memset(lines[i], ' ', CHART_COLUMNS);
		lines[i][CHART_COLUMNS] = '\0';
	}
	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct trace_arrival *arrival = &read->arrivals[i];
		uint32_t row = chart_row(read, (uint64_t)i * read->chunk_bytes);

		if (arrival->how == TRACE_EARLY) {
			lines[row][chart_column(read, arrival->time_ns)] =
				stream_letter(arrival->stream);
		}
	}
}

/* Draws a read in at most 80 columns: time to the right, offset upwards. */
static void trace_chart(FILE *out, const struct trace_read *read)
{
	char lines[CHART_ROWS][CHART_LINE_BYTES];
	char end[32];

	chart_fill(lines, read);
	for (uint32_t i = 0; i < CHART_ROWS; i++) {
		char label[UNITS_TEXT_BYTES + 4] = "";
		size_t length = CHART_COLUMNS;

		if (i == 0) {
			char number[UNITS_TEXT_BYTES];

			snprintf(label, sizeof(label), "+%s",
				units_format_bytes(number, read->bytes));
		} else if (i == CHART_ROWS - 1) {
			snprintf(label, sizeof(label), "+0");
		}
		while (length > 0 && lines[i][length - 1] == ' ') {
			length--;
		}
		fprintf(out, "%9s |%.*s\n", label, (int)length, lines[i]);
	}
	fprintf(out, "%9s +", "");
	for (uint32_t i = 0; i < CHART_COLUMNS; i++) {
		putc('-', out);
	}
	snprintf(end, sizeof(end), "%.1f us", trace_report_us(read->total_ns));
	fprintf(out, "\n%10s 0%*s\n", "", CHART_COLUMNS - 1, end);
}

/* --- text ---------------------------------------------------------------------------------- */

static void trace_report_print_head(const struct trace_work *work, const struct disk_info *disk)
{
	char human[UNITS_TEXT_BYTES];
	char size[UNITS_TEXT_BYTES];

	printf("%s: %s, %s\n", quote(work->path), disk->is_block ? "block device" : "file",
		units_human_bytes(human, disk->size));
	if (disk->io_max > 0) {
		printf("The disk accepts at most %s in one command.\n",
			units_format_bytes(size, disk->io_max));
	}
	if (disk->stripe_members > 1) {
		printf("The disk is striped over %u disks, in stripes of %s.\n",
			disk->stripe_members, units_format_bytes(size, disk->stripe_chunk));
	}
	printf("%s reads, watched in chunks of %s; marker %016" PRIx64 "\n",
		work->cached ? "Cached" : "Direct", units_format_bytes(size, work->chunk_bytes),
		work->marker);
}

static void print_row(const struct row *row, const struct trace_group *group)
{
	struct spread spread = measure_spread(row, group);
	bool share = row->unit[0] == '%';
	double scale = share ? 100 : 1;
	int digits = row->unit[0] == '\0' ? 0 : 1;

	printf("  %-*s %10.*f %10.*f %10.*f%s%s\n", LABEL_COLUMNS, row->title, digits,
		spread.median * scale, digits, spread.lowest * scale, digits,
		spread.highest * scale, row->unit[0] != '\0' ? " " : "", row->unit);
}

static uint64_t sum_unseen(const struct trace_group *group)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < group->count; i++) {
		sum += group->analyses[i].unseen;
	}
	return sum;
}

static void print_group(
	const struct trace_work *work, const struct trace_group *group, bool interrupted)
{
	const struct trace_read *read = &group->reads[group->typical];
	const struct trace_analysis *analysis = &group->analyses[group->typical];
	uint64_t unseen = sum_unseen(group);
	char size[UNITS_TEXT_BYTES];

	printf("\n%s, %u time%s%s\n", units_format_bytes(size, group->bytes), group->count,
		group->count == 1 ? "" : "s", interrupted ? ", then interrupted" : "");
	printf("  %-*s %10s %10s %10s\n", LABEL_COLUMNS, "", "median", "lowest", "highest");
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		print_row(&rows[i], group);
	}
	if (unseen > 0) {
		printf("  %" PRIu64
		       " chunk%s held the marker by chance: counted as arrived at completion.\n",
			unseen, unseen == 1 ? "" : "s");
	}
	printf("\nRead %u of %u, at %" PRIu64 ": %u stream%s%s\n", group->typical + 1, group->count,
		read->offset, analysis->streams, analysis->streams == 1 ? "" : "s",
		analysis->streams == TRACE_STREAMS_MAX ? " or more" : "");
	trace_chart(stdout, read);
	if (analysis->early == 0) {
		printf("No chunk was seen before the read completed, so none is drawn:\n"
		       "%s.\n",
			work->cached
				? "the page cache had the data, or the data was copied in one step"
				: "the data arrived too fast to be watched; try a larger --size");
	}
}

int trace_show_text(
	const struct trace_work *work, const struct trace_result *result, struct error *error)
{
	trace_report_print_head(work, &result->disk);
	for (uint32_t i = 0; i < result->group_count; i++) {
		print_group(work, &result->groups[i],
			result->interrupted && i + 1 == result->group_count);
	}
	printf("\n"
	       "1-9, a-z: chunks at the time they were seen, by stream\n"
	       "Sending hidden: share of the sending time that overlaps the read,\n"
	       "if sending is as fast as the disk.\n");
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_arrivals(const struct trace_read *read)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		const struct trace_arrival *arrival = &read->arrivals[i];

		json_array_append_new(array, arrival->how == TRACE_EARLY
						     ? json_real(trace_report_us(arrival->time_ns))
						     : json_null());
	}
	return array;
}

static json_t *json_streams(const struct trace_read *read)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < read->chunk_count; i++) {
		json_array_append_new(array, json_integer(read->arrivals[i].stream));
	}
	return array;
}

static json_t *json_read(const struct trace_read *read, const struct trace_analysis *analysis)
{
	json_t *object = json_object();

	json_object_set_new(object, "offset", json_integer((json_int_t)read->offset));
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		json_object_set_new(object, rows[i].key, json_real(rows[i].value(read, analysis)));
	}
	json_object_set_new(object, "runs", json_integer(analysis->runs));
	json_object_set_new(object, "chunks_early", json_integer(analysis->early));
	json_object_set_new(object, "chunks_at_completion", json_integer(analysis->at_completion));
	json_object_set_new(object, "chunks_unseen", json_integer(analysis->unseen));
	json_object_set_new(object, "arrivals_us", json_arrivals(read));
	json_object_set_new(object, "arrival_streams", json_streams(read));
	return object;
}

static json_t *json_group(const struct trace_group *group)
{
	json_t *object = json_object();
	json_t *summary = json_object();
	json_t *reads = json_array();

	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		struct spread spread = measure_spread(&rows[i], group);
		json_t *three = json_object();

		json_object_set_new(three, "median", json_real(spread.median));
		json_object_set_new(three, "min", json_real(spread.lowest));
		json_object_set_new(three, "max", json_real(spread.highest));
		json_object_set_new(summary, rows[i].key, three);
	}
	for (uint32_t i = 0; i < group->count; i++) {
		json_array_append_new(reads, json_read(&group->reads[i], &group->analyses[i]));
	}
	json_object_set_new(object, "bytes", json_integer(group->bytes));
	json_object_set_new(object, "summary", summary);
	json_object_set_new(object, "typical", json_integer(group->typical));
	json_object_set_new(object, "reads", reads);
	return object;
}

int trace_show_json(
	const struct trace_work *work, const struct trace_result *result, struct error *error)
{
	const struct disk_info *disk = &result->disk;
	json_t *root = json_object();
	json_t *sizes = json_array();
	char marker[2 * sizeof(work->marker) + 1];

	snprintf(marker, sizeof(marker), "%016" PRIx64, work->marker);
	json_object_set_new(root, "path", print_json_text(work->path));
	json_object_set_new(root, "size", json_integer((json_int_t)disk->size));
	json_object_set_new(root, "block_device", json_boolean(disk->is_block));
	json_object_set_new(root, "interrupted", json_boolean(result->interrupted));
	json_object_set_new(root, "direct", json_boolean(!work->cached));
	json_object_set_new(root, "io_max", json_integer((json_int_t)disk->io_max));
	json_object_set_new(root, "stripe_members", json_integer(disk->stripe_members));
	json_object_set_new(root, "stripe_chunk", json_integer(disk->stripe_chunk));
	json_object_set_new(root, "marker", json_string(marker));
	json_object_set_new(root, "chunk_bytes", json_integer(work->chunk_bytes));
	for (uint32_t i = 0; i < result->group_count; i++) {
		json_array_append_new(sizes, json_group(&result->groups[i]));
	}
	json_object_set_new(root, "sizes", sizes);
	return print_json(root, error);
}
