// SPDX-License-Identifier: Apache-2.0
#include "tools/copy_progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/print.h"

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
	/* One that cannot erase a line gets a line a second, as a file does. */
	progress->terminal = terminal && kind != NULL && strcmp(kind, "dumb") != 0;
	progress->wanted = mode == COPY_PROGRESS_ON || (mode == COPY_PROGRESS_AUTO && terminal);
	progress->counters = counters;
	progress->now = &counters->done;
	progress->verb = "copying";
}

void copy_progress_phase(
	struct copy_progress *progress, const char *verb, const uint64_t *counter, uint64_t now_ns)
{
	progress->verb = verb;
	progress->now = counter;
	progress->mark_ns = now_ns;
	progress->mark_bytes = *counter;
	progress->rate = 0;
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
	char done_text[PRINT_SIZE_BYTES];
	char total_text[PRINT_SIZE_BYTES];

	print_size(done_text, done);
	print_size(total_text, total);
	if (done != total && strcmp(done_text, total_text) == 0) {
		snprintf(out, COPY_SHARE_BYTES, "%llu of %llu bytes", (unsigned long long)done,
			(unsigned long long)total);
	} else {
		snprintf(out, COPY_SHARE_BYTES, "%s of %s", done_text, total_text);
	}
	return out;
}

static void rate_update(struct copy_progress *progress, uint64_t now_ns)
{
	uint64_t passed = now_ns - progress->mark_ns;
	double current;

	if (passed < MARK_NS) {
		return;
	}
	current = (double)(*progress->now - progress->mark_bytes) * NS_PER_S / (double)passed;
	/* Half the weight on the last half second: steady to look at, and quick to follow. */
	progress->rate = progress->rate > 0 ? (progress->rate + current) / 2 : current;
	progress->mark_ns = now_ns;
	progress->mark_bytes = *progress->now;
}

static void text_format(const struct copy_progress *progress, char *text, size_t text_bytes)
{
	const struct copy_counters *counters = progress->counters;
	char done[PRINT_SIZE_BYTES];
	char share[COPY_SHARE_BYTES];
	char rate[PRINT_SIZE_BYTES];
	char left[COPY_TIME_BYTES];

	print_size(rate, (uint64_t)progress->rate);
	if (counters->total == UINT64_MAX) {
		print_size(done, *progress->now);
		snprintf(text, text_bytes, "%s %s, %s/s", progress->verb, done, rate);
		return;
	}
	copy_share(share, *progress->now, counters->total);
	if (progress->rate < 1) {
		snprintf(text, text_bytes, "%s %s", progress->verb, share);
		return;
	}
	copy_human_time(left, (double)(counters->total - *progress->now) / progress->rate);
	snprintf(text, text_bytes, "%s %s, %s/s, %s left", progress->verb, share, rate, left);
}

static int terminal_columns(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
									       : COLUMNS_DEFAULT;
}

/* Whole percents: all of it is only said of all of it. */
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
	/* Never as wide as the terminal, which would begin a new line. */
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
