// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "tools/copy.h"
#include "tools/show.h"

enum { SHOWN_BYTES = 300, PART_BYTES = 400, BAD_BYTES = 1200 };

static const char *target_name(const struct copy_report *report, char shown[SHOWN_BYTES])
{
	char escaped[SHOWN_BYTES - 2];

	if (report->target != NULL) {
		return report->target->name;
	}
	snprintf(shown, SHOWN_BYTES, "'%s'",
		log_escape(escaped, sizeof(escaped), report->target_text,
			strlen(report->target_text)));
	return shown;
}

static void how_far(const struct copy_report *report, char out[PART_BYTES])
{
	const struct copy_counters *counters = report->counters;

	if (counters->total == UINT64_MAX) {
		units_human_bytes(out, counters->done);
	} else {
		copy_share(out, counters->done, counters->total);
	}
}

static void how_to_go_on(const struct copy_report *report, char out[PART_BYTES])
{
	const struct copy_journal *journal = report->journal;
	char shown[SHOWN_BYTES];

	if ((report->source != NULL && report->source->kind == COPY_STREAM) ||
		(report->target != NULL && report->target->kind == COPY_STREAM)) {
		snprintf(out, PART_BYTES, "a copy from or to a stream cannot be resumed");
		return;
	}
	if (journal == NULL || journal->fd < 0) {
		snprintf(out, PART_BYTES,
			"without --resume the next copy starts from the beginning");
		return;
	}
	snprintf(out, PART_BYTES,
		"run the same command with --resume '%s' again to continue from byte %llu",
		log_escape(shown, sizeof(shown), journal->path, strlen(journal->path)),
		(unsigned long long)journal->durable);
}

/* Lists the parts of the copied bytes, separated by commas, without empty parts. */
static void complete_parts(const struct copy_counters *counters, char out[PART_BYTES])
{
	uint64_t moved = counters->total - counters->start;
	const struct {
		uint64_t bytes;
		const char *what;
	} parts[] = {
		{ counters->start, "copied by an earlier run" },
		{ counters->read, "read" },
		{ counters->written, "written" },
		{ counters->copied, "copied by the server" },
		{ moved - counters->copied - MIN(counters->read, moved - counters->copied),
			"of holes skipped" },
	};
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
		char size[UNITS_TEXT_BYTES];

		if (parts[i].bytes > 0) {
			used += (size_t)snprintf(out + used, PART_BYTES - used, "%s%s %s",
				used > 0 ? ", " : ": ", units_human_bytes(size, parts[i].bytes),
				parts[i].what);
		}
	}
}

/* Returns the bytes of data. Holes are not included, because they take no time. */
static uint64_t copy_moved(const struct copy_counters *counters)
{
	return counters->done - counters->start - counters->holes;
}

static void complete_sentence(const struct copy_report *report, char *out, size_t out_bytes)
{
	const struct copy_counters *counters = report->counters;
	uint64_t moved = copy_moved(counters);
	double seconds = report->seconds > 0 ? report->seconds : 1;
	char total[UNITS_TEXT_BYTES];
	char rate[UNITS_TEXT_BYTES];
	char time[COPY_TIME_BYTES];
	char parts[PART_BYTES];

	units_human_bytes(total, counters->total);
	units_human_bytes(rate, (uint64_t)((double)moved / seconds));
	complete_parts(counters, parts);
	snprintf(out, out_bytes, "copied %s in %s, %s/s%s%s", total,
		copy_human_time(time, report->seconds), rate, report->verified ? ", verified" : "",
		parts);
}

void copy_report_sentence(const struct copy_report *report, char *out, size_t out_bytes)
{
	char shown[SHOWN_BYTES];
	char far[PART_BYTES];
	char on[PART_BYTES];
	const char *name = target_name(report, shown);

	switch (report->state) {
	case COPY_TARGET_GAPS:
		snprintf(out, out_bytes,
			"the target %s holds zeroes in the unreadable ranges, and all other data "
			"is copied and on stable storage",
			name);
		break;
	case COPY_TARGET_UNCHANGED:
		snprintf(out, out_bytes, "the target %s was not changed", name);
		break;
	case COPY_TARGET_PARTIAL:
		how_far(report, far);
		how_to_go_on(report, on);
		snprintf(out, out_bytes, "the target %s holds a partial copy: %s; %s", name, far,
			on);
		break;
	case COPY_TARGET_WHOLE:
		how_to_go_on(report, on);
		snprintf(out, out_bytes,
			"the target %s holds the whole copy, but the command did not finish: the "
			"copy may not be on stable storage and was not verified; %s",
			name, on);
		break;
	case COPY_TARGET_DIFFERS:
		snprintf(out, out_bytes, "the target %s holds a copy that differs from the source",
			name);
		break;
	case COPY_TARGET_COMPLETE:
		complete_sentence(report, out, out_bytes);
		break;
	}
}

void copy_report_bad(const struct copy_report *report, char *out, size_t out_bytes)
{
	const struct copy_bad *bad = report->bad;
	char shown[SHOWN_BYTES];
	size_t used;

	out[0] = '\0';
	if (bad->count == 0) {
		return;
	}
	used = (size_t)snprintf(out, out_bytes,
		"%" PRIu64
		" bytes of the source cannot be read, in %zu %s, the first at byte %" PRIu64 ": %s",
		bad->bytes, bad->count, bad->count == 1 ? "range" : "ranges", bad->ranges[0].start,
		bad->first.text);
	if (bad->is_written && used < out_bytes) {
		snprintf(out + used, out_bytes - used, "; the map '%s' lists these ranges",
			log_escape(shown, sizeof(shown), bad->path, strlen(bad->path)));
	}
}

static json_t *end_json(const struct copy_end *end, const char *text)
{
	static const char *const kinds[] = {
		[COPY_REMOTE] = "remote",
		[COPY_FILE] = "file",
		[COPY_DEVICE] = "device",
		[COPY_STREAM] = "stream",
	};
	char shown[SHOWN_BYTES];
	json_t *bytes =
		end != NULL && end->size_known ? json_integer((json_int_t)end->bytes) : json_null();

	log_escape(shown, sizeof(shown), text, strlen(text));
	return json_pack("{s:s, s:s?, s:o}", "name", shown, "kind",
		end != NULL ? kinds[end->kind] : NULL, "bytes", bytes);
}

int copy_report_json(const struct copy_report *report, struct error *error)
{
	static const char *const outcomes[] = {
		[COPY_COMPLETE] = "complete",
		[COPY_INCOMPLETE] = "incomplete",
		[COPY_FAILED] = "failed",
		[COPY_INTERRUPTED] = "interrupted",
	};
	static const char *const states[] = {
		[COPY_TARGET_UNCHANGED] = "unchanged",
		[COPY_TARGET_PARTIAL] = "partial",
		[COPY_TARGET_WHOLE] = "whole",
		[COPY_TARGET_DIFFERS] = "differs",
		[COPY_TARGET_GAPS] = "gaps",
		[COPY_TARGET_COMPLETE] = "complete",
	};
	const struct copy_counters *counters = report->counters;
	json_int_t moved = (json_int_t)copy_moved(counters);
	json_t *total = counters->total == UINT64_MAX ? json_null()
						      : json_integer((json_int_t)counters->total);
	json_t *durable = report->journal != NULL && report->journal->fd >= 0
				  ? json_integer((json_int_t)report->journal->durable)
				  : json_null();
	const struct copy_bad *bad = report->bad;
	const char *text = report->error != NULL ? report->error->text : NULL;
	char bad_text[BAD_BYTES];
	json_t *first_bad =
		bad->count > 0 ? json_integer((json_int_t)bad->ranges[0].start) : json_null();

	if (report->outcome == COPY_INCOMPLETE) {
		copy_report_bad(report, bad_text, sizeof(bad_text));
		text = bad_text;
	}
	return print_json(
		json_pack("{s:s, s:s?, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
			  "s:I, s:o, s:f, s:f, s:b, s:o}",
			"result", outcomes[report->outcome], "error", text, "target_state",
			states[report->state], "source",
			end_json(report->source, report->source_text), "target",
			end_json(report->target, report->target_text), "bytes", total, "bytes_done",
			(json_int_t)counters->done, "bytes_resumed", (json_int_t)counters->start,
			"bytes_read", (json_int_t)counters->read, "bytes_written",
			(json_int_t)counters->written, "bytes_copied", (json_int_t)counters->copied,
			"bytes_zeroed", (json_int_t)counters->zeroed, "bytes_skipped",
			(json_int_t)counters->skipped, "bytes_verified",
			(json_int_t)counters->compared, "bytes_bad", (json_int_t)bad->bytes,
			"first_bad", first_bad, "seconds", report->seconds, "bytes_per_second",
			(double)moved / (report->seconds > 0 ? report->seconds : 1), "verified",
			report->verified, "durable_bytes", durable),
		error);
}

enum { BAR_WIDTH_MAX = 40, COLUMNS_DEFAULT = 80, TEXT_BYTES = 160, LINE_BYTES = 256 };
#define TERMINAL_NS UINT64_C(200000000)
#define LOG_NS	    UINT64_C(1000000000)
#define MARK_NS	    UINT64_C(500000000)
#define NS_PER_S    1e9

void copy_progress_init(struct copy_progress *progress, enum copy_progress_mode mode,
	const struct copy_counters *counters)
{
	const char *kind = getenv("TERM");
	bool terminal = isatty(STDERR_FILENO) == 1;

	memset(progress, 0, sizeof(*progress));
	/* A terminal that cannot erase a line gets one line per second, as a file does. */
	progress->terminal = terminal && kind != NULL && strcmp(kind, "dumb") != 0;
	progress->wanted = mode == COPY_PROGRESS_ON || (mode == COPY_PROGRESS_AUTO && terminal);
	progress->counters = counters;
	progress->now = &counters->done;
	progress->verb = "copying";
}

/* Returns the bytes of data that the current phase has processed. */
static uint64_t progress_moved(const struct copy_progress *progress)
{
	const struct copy_counters *counters = progress->counters;

	return *progress->now - (progress->now == &counters->done ? counters->holes : 0);
}

void copy_progress_phase(
	struct copy_progress *progress, const char *verb, const uint64_t *counter, uint64_t now_ns)
{
	progress->verb = verb;
	progress->now = counter;
	progress->mark_ns = now_ns;
	progress->mark_bytes = *counter;
	progress->mark_moved = progress_moved(progress);
	progress->rate = 0;
	progress->pace = 0;
	progress->shown_ns = now_ns;
}

const char *copy_human_time(char out[COPY_TIME_BYTES], double seconds)
{
	unsigned long long whole = seconds < 0 ? 0 : (unsigned long long)(seconds + 0.5);

	if (whole >= 3600) {
		snprintf(out, COPY_TIME_BYTES, "%llu:%02llu:%02llu", whole / 3600, whole / 60 % 60,
			whole % 60);
	} else {
		snprintf(out, COPY_TIME_BYTES, "%llu:%02llu", whole / 60, whole % 60);
	}
	return out;
}

const char *copy_share(char out[COPY_SHARE_BYTES], uint64_t done, uint64_t total)
{
	char done_text[UNITS_TEXT_BYTES];
	char total_text[UNITS_TEXT_BYTES];

	units_human_bytes(done_text, done);
	units_human_bytes(total_text, total);
	if (done != total && strcmp(done_text, total_text) == 0) {
		snprintf(out, COPY_SHARE_BYTES, "%llu of %llu bytes", (unsigned long long)done,
			(unsigned long long)total);
	} else {
		snprintf(out, COPY_SHARE_BYTES, "%s of %s", done_text, total_text);
	}
	return out;
}

/* Smooths the rate: the last half second has half of the weight, so the display is steady but
 * follows quickly. */
static void smooth(double *rate, uint64_t bytes, uint64_t passed_ns)
{
	double current = (double)bytes * NS_PER_S / (double)passed_ns;

	*rate = *rate > 0 ? (*rate + current) / 2 : current;
}

static void rate_update(struct copy_progress *progress, uint64_t now_ns)
{
	uint64_t passed = now_ns - progress->mark_ns;
	uint64_t moved = progress_moved(progress);

	if (passed < MARK_NS) {
		return;
	}
	smooth(&progress->rate, moved - progress->mark_moved, passed);
	smooth(&progress->pace, *progress->now - progress->mark_bytes, passed);
	progress->mark_moved = moved;
	progress->mark_ns = now_ns;
	progress->mark_bytes = *progress->now;
}

static void text_format(const struct copy_progress *progress, char *text, size_t text_bytes)
{
	const struct copy_counters *counters = progress->counters;
	char done[UNITS_TEXT_BYTES];
	char share[COPY_SHARE_BYTES];
	char rate[UNITS_TEXT_BYTES];
	char left[COPY_TIME_BYTES];

	units_human_bytes(rate, (uint64_t)progress->rate);
	if (counters->total == UINT64_MAX) {
		units_human_bytes(done, *progress->now);
		snprintf(text, text_bytes, "%s %s, %s/s", progress->verb, done, rate);
		return;
	}
	copy_share(share, *progress->now, counters->total);
	if (progress->pace < 1) {
		snprintf(text, text_bytes, "%s %s", progress->verb, share);
		return;
	}
	copy_human_time(left, (double)(counters->total - *progress->now) / progress->pace);
	snprintf(text, text_bytes, "%s %s, %s/s, %s left", progress->verb, share, rate, left);
}

static int terminal_columns(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
									       : COLUMNS_DEFAULT;
}

/* Rounds down, so that 100 % means complete. */
static int percent(double part)
{
	return (int)(part * 100);
}

static void bar_show(const struct copy_progress *progress, const char *text, double part)
{
	char bar[BAR_WIDTH_MAX + 1];
	char line[LINE_BYTES];
	int columns = terminal_columns();
	int width = MIN(columns - (int)strlen(text) - 11, (int)BAR_WIDTH_MAX);
	int full = (int)(part * width);

	if (width >= 8 && progress->counters->total != UINT64_MAX) {
		memset(bar, '#', (size_t)full);
		memset(bar + full, '.', (size_t)(width - full));
		bar[width] = '\0';
		snprintf(line, sizeof(line), "%3d%% [%s] %s", percent(part), bar, text);
	} else {
		snprintf(line, sizeof(line), "%s", text);
	}
	/* Writes less than the width of the terminal, because a full line would start another
	 * one. */
	fprintf(stderr, "\r%.*s\033[K", columns - 1, line);
}

void copy_progress_tick(struct copy_progress *progress, uint64_t now_ns)
{
	uint64_t interval = progress->terminal ? TERMINAL_NS : LOG_NS;
	uint64_t total = progress->counters->total;
	char text[TEXT_BYTES];
	double part;

	if (!progress->wanted || now_ns - progress->shown_ns < interval) {
		return;
	}
	progress->shown_ns = now_ns;
	rate_update(progress, now_ns);
	text_format(progress, text, sizeof(text));
	part = total == 0 || total == UINT64_MAX ? 0 : (double)*progress->now / (double)total;
	if (progress->terminal) {
		bar_show(progress, text, MIN(part, 1.0));
		progress->line_open = true;
	} else if (total != UINT64_MAX) {
		fprintf(stderr, "%3d%% %s\n", percent(part), text);
	} else {
		fprintf(stderr, "%s\n", text);
	}
}

void copy_progress_clear(struct copy_progress *progress)
{
	if (progress->line_open) {
		fputs("\r\033[K", stderr);
		progress->line_open = false;
	}
}
