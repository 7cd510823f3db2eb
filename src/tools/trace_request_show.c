// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "tools/show.h"
#include "tools/trace_request.h"

enum {
	CHART_COLUMNS = 66,
	PARTS_SHOWN_MAX = 64,
	TITLE_COLUMNS = 10,
};

/* The character for each kind of time in the chart. */
enum chart_sign {
	SIGN_NOTHING = ' ',
	SIGN_PAYLOAD = '<',
	SIGN_DISK = '=',
	SIGN_BOTH = '#',
	SIGN_WAITS = '.',
	SIGN_NETWORK = '>',
	SIGN_ERROR = 'x',
};

/* --- the chart ----------------------------------------------------------------------------- */

static uint32_t column_of(const struct trace_request *request, double us)
{
	double column = request->total_us > 0 ? us / request->total_us * CHART_COLUMNS : 0;

	if (column >= CHART_COLUMNS) {
		return CHART_COLUMNS - 1;
	}
	return column < 0 ? 0 : (uint32_t)column;
}

/* Paints the columns from one time to another, including the columns of both, so that short events
 * are visible. */
static void paint(char line[CHART_COLUMNS], const struct trace_request *request, double from_us,
	double to_us, enum chart_sign sign)
{
	uint32_t last = column_of(request, to_us);

	for (uint32_t i = column_of(request, from_us); i <= last; i++) {
		line[i] = (char)sign;
	}
}

static void paint_piece(char line[CHART_COLUMNS], const struct trace_request *request,
	const struct trace_request_part *part, const struct trace_request_piece *piece)
{
	double back_us = piece->back_us >= 0 ? piece->back_us : request->total_us;

	paint(line, request, piece->handed_us, back_us, SIGN_NETWORK);
	if (part->done_us > piece->handed_us) {
		paint(line, request, piece->handed_us, MIN(part->done_us, back_us), SIGN_BOTH);
	}
}

static void paint_part(char line[CHART_COLUMNS], const struct trace_request *request,
	const struct trace_request_part *part)
{
	bool submitted = part->submitted_us >= 0;
	double done_us = part->done_us >= 0 ? part->done_us : request->total_us;

	memset(line, SIGN_NOTHING, CHART_COLUMNS);
	if (!submitted) {
		paint(line, request, part->opened_us, request->total_us, SIGN_PAYLOAD);
		return;
	}
	if (strcmp(request->operation, "write") == 0) {
		paint(line, request, part->opened_us, part->submitted_us, SIGN_PAYLOAD);
	}
	if (part->piece_count > 0) {
		const struct trace_request_piece *last = &part->pieces[part->piece_count - 1];

		paint(line, request, part->submitted_us, last->handed_us, SIGN_WAITS);
	}
	paint(line, request, part->submitted_us, done_us, SIGN_DISK);
	for (uint32_t i = 0; i < part->piece_count; i++) {
		paint_piece(line, request, part, &part->pieces[i]);
	}
	if (part->error != NULL) {
		paint(line, request, done_us, done_us, SIGN_ERROR);
	}
}

static void show_chart(const struct trace_request *request)
{
	char end[PRINT_US_BYTES];

	for (uint32_t i = 0; i < MIN(request->part_count, (uint32_t)PARTS_SHOWN_MAX); i++) {
		const struct trace_request_part *part = &request->parts[i];
		char line[CHART_COLUMNS];
		char at[UNITS_TEXT_BYTES];
		char label[UNITS_TEXT_BYTES + 1];
		int length = CHART_COLUMNS;

		paint_part(line, request, part);
		while (length > 0 && line[length - 1] == SIGN_NOTHING) {
			length--;
		}
		snprintf(label, sizeof(label), "+%s",
			units_format_bytes(at, part->offset - request->offset));
		printf("  %*s |%.*s\n", TITLE_COLUMNS, label, length, line);
	}
	printf("  %*s +", TITLE_COLUMNS, "");
	for (int i = 0; i < CHART_COLUMNS; i++) {
		putchar('-');
	}
	printf("\n  %*s 0%*s\n", TITLE_COLUMNS, "", CHART_COLUMNS - 1,
		print_us(end, request->total_us));
}

/* --- the table ----------------------------------------------------------------------------- */

enum { COLUMN_COUNT = 5 };

/* The columns for one kind of operation: their titles, and a function that computes their times. */
struct table {
	const char *titles[COLUMN_COUNT]; /* NULL: end */
	void (*times)(const struct trace_request_part *part, double times_us[COLUMN_COUNT]);
};

static void read_times(const struct trace_request_part *part, double times_us[COLUMN_COUNT])
{
	bool sent = part->piece_count > 0;

	times_us[0] = part->submitted_us;
	times_us[1] = part->done_us;
	times_us[2] = sent ? part->pieces[0].handed_us : -1;
	times_us[3] = sent ? part->pieces[part->piece_count - 1].back_us : -1;
}

static void progress_read_times(
	const struct trace_request_part *part, double times_us[COLUMN_COUNT])
{
	double rest_us[COLUMN_COUNT];

	read_times(part, rest_us);
	times_us[0] = rest_us[0];
	times_us[1] = part->mark_count > 0 ? part->marks[0].progress_us : -1;
	times_us[2] = rest_us[1];
	times_us[3] = rest_us[2];
	times_us[4] = rest_us[3];
}

static void write_times(const struct trace_request_part *part, double times_us[COLUMN_COUNT])
{
	times_us[0] = part->opened_us;
	times_us[1] = part->submitted_us;
	times_us[2] = part->done_us;
}

static void plain_times(const struct trace_request_part *part, double times_us[COLUMN_COUNT])
{
	times_us[0] = part->submitted_us;
	times_us[1] = part->done_us;
}

static bool progress_progress(const struct trace_request *request)
{
	for (uint32_t i = 0; i < request->part_count; i++) {
		if (request->parts[i].mark_count > 0) {
			return true;
		}
	}
	return false;
}

static const struct table *table_of(const struct trace_request *request)
{
	static const struct table reads = { { "to disk", "from disk", "to network", "taken" },
		read_times };
	static const struct table progress_reads = {
		{ "to disk", "progress", "from disk", "to network", "taken" }, progress_read_times
	};
	static const struct table writes = { { "room", "payload in", "on disk" }, write_times };
	static const struct table others = { { "to disk", "done" }, plain_times };

	if (strcmp(request->operation, "read") == 0) {
		return progress_progress(request) ? &progress_reads : &reads;
	}
	return strcmp(request->operation, "write") == 0 ? &writes : &others;
}

static void show_row(const struct table *table, const struct trace_request_part *part)
{
	double times_us[COLUMN_COUNT];
	char size[UNITS_TEXT_BYTES];
	char text[PRINT_US_BYTES];

	printf("  %*llu %8s", TITLE_COLUMNS + 4, (unsigned long long)part->offset,
		units_format_bytes(size, part->length));
	table->times(part, times_us);
	for (int i = 0; i < COLUMN_COUNT && table->titles[i] != NULL; i++) {
		printf("  %10s", times_us[i] < 0 ? "-" : print_us(text, times_us[i]));
	}
	if (part->placement != NULL) {
		printf("  %-10s", quote(part->placement));
	}
	if (part->error != NULL) {
		printf("  %s", quote(part->error));
	}
	printf("\n");
}

static void show_table(const struct trace_request *request)
{
	const struct table *table = table_of(request);
	uint32_t shown = MIN(request->part_count, (uint32_t)PARTS_SHOWN_MAX);

	printf("  %*s %8s", TITLE_COLUMNS + 4, "offset", "length");
	for (int i = 0; i < COLUMN_COUNT && table->titles[i] != NULL; i++) {
		printf("  %10s", table->titles[i]);
	}
	printf(request->part_count > 0 && request->parts[0].placement != NULL ? "  placement\n"
									      : "\n");
	for (uint32_t i = 0; i < shown; i++) {
		show_row(table, &request->parts[i]);
	}
	if (shown < request->part_count) {
		printf("  and %u more parts, included in --json\n", request->part_count - shown);
	}
	if (request->parts_more > 0) {
		printf("  and %u more parts, which the server did not record\n",
			request->parts_more);
	}
}

/* --- output -------------------------------------------------------------------------------- */

static void show_request(const struct trace_request *request)
{
	char title[TRACE_REQUEST_TITLE_BYTES];
	char shown_title[TRACE_REQUEST_TITLE_BYTES];
	char text[PRINT_US_BYTES];

	trace_request_title(title, request);
	printf("%s: %s in %s\n ", log_escape_sentence(shown_title, sizeof(shown_title), title),
		request->error != NULL ? "failed" : "done", print_us(text, request->total_us));
	for (int i = 0; i < PATH_STATE_DONE; i++) {
		printf(" %s %s%s", path_state_name((enum path_state)i),
			print_us(text, request->state_us[i]), i + 1 < PATH_STATE_DONE ? "," : "\n");
	}
	if (request->error != NULL) {
		printf("  disk error: %s\n", quote(request->error));
	}
	printf("\n");
	show_table(request);
	printf("\n");
	show_chart(request);
	printf("\n");
}

void trace_request_show(const struct trace_requests *requests)
{
	for (uint32_t i = 0; i < requests->count; i++) {
		if (requests->count > 1) {
			printf("%u. ", i + 1);
		}
		show_request(&requests->requests[i]);
	}
	if (requests->count > 0) {
		printf("= disk at work   . ready and waiting   > being sent   # both disk and "
		       "network\n"
		       "< payload being received   x the disk failed\n");
	}
}
