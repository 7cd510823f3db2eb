// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "server/observe/stats.h"

enum {
	NAME_BYTES = 256,
	NAME_COLUMNS_MIN = 8,
	PATH_COLUMNS = 15,
	NUMBER_COLUMNS = 51, /* width of a row between name and path */
	COLUMNS_MAX = 512,
	LINES_USUAL = 24,
	COLUMNS_USUAL = 80,
	SHORT_BYTES = 32,
	NS_PER_MS = 1000000,
};

/* One line of the screen: what an export or a client did between the last two queries of the
 * server's statistics. */
struct row {
	char name[NAME_BYTES];
	double connections;
	double reads; /* per second, as are the following */
	double writes;
	double others;
	double bytes;
	double errors;
	double p50_us;
	double p99_us;
	char path[SHORT_BYTES]; /* path of most of the payload */
};

enum top_order { ORDER_BYTES, ORDER_REQUESTS, ORDER_P99, ORDER_NAME, ORDER_COUNT };

static const char *const order_names[ORDER_COUNT] = { "bytes", "requests", "p99", "name" };

struct top {
	json_t *now;
	json_t *before;
	double seconds; /* time between the two documents, in seconds */
	enum top_order order;
	bool paused;
	uint32_t columns;
	uint32_t lines;
	uint32_t lines_used;
	FILE *out;
};

static volatile sig_atomic_t ended;

static void end_on_signal(int number)
{
	ended = 1;
}

/* --- activity ------------------------------------------------------------------------------ */

static double number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

enum { SUM_READS, SUM_WRITES, SUM_OTHERS, SUM_COUNT };

/* Statistics of all reads, all writes and all other requests of an export or a client, since the
 * start of the server. */
struct sums {
	struct path_stats of[SUM_COUNT];
};

/* A bucket is a pair of an upper limit in microseconds and a number of requests. */
static void read_buckets(struct path_stats *stats, const json_t *list)
{
	uint32_t bucket = 0;

	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *pair = json_array_get(list, i);
		const json_t *limit = json_array_get(pair, 0);
		double ns = json_is_number(limit) ? json_number_value(limit) * 1000 : INFINITY;

		while (bucket < PATH_LATENCY_BUCKETS - 1 &&
			(double)path_latency_limit_ns(bucket) < ns - 0.5) {
			bucket++;
		}
		stats->latency[bucket] += (uint64_t)json_integer_value(json_array_get(pair, 1));
	}
}

static void add_entry(struct sums *sums, const json_t *entry)
{
	const json_t *list = json_object_get(entry, "operations");

	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *operation = json_array_get(list, i);
		const char *name = stats_text(operation, "operation");
		struct path_stats stats = { 0 };

		stats_read(&path_stats_counter_table, &stats, operation);
		read_buckets(&stats, json_object_get(operation, "latency_buckets"));
		path_stats_merge(&sums->of[strcmp(name, "read") == 0	? SUM_READS
					   : strcmp(name, "write") == 0 ? SUM_WRITES
									: SUM_OTHERS],
			&stats);
	}
}

/* Returns the increase of a counter; 0 if it fell. */
static double since(uint64_t now, uint64_t before)
{
	return now > before ? (double)(now - before) : 0;
}

static const json_t *entry_named(const json_t *list, const char *name)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *entry = json_array_get(list, i);

		if (strcmp(stats_text(entry, "name"), name) == 0) {
			return entry;
		}
	}
	return NULL;
}

/* Returns the same export or client in the previous statistics. NULL: it was not there, or its
 * counters restarted at 0, because the server is another process or the export was removed and
 * added. */
static const json_t *entry_before(const struct top *top, const char *list, const json_t *entry)
{
	const json_t *was =
		entry_named(json_object_get(top->before, list), stats_text(entry, "name"));
	bool is_same_server = json_equal(
		json_object_get(top->now, "instance"), json_object_get(top->before, "instance"));
	struct sums now = { 0 };
	struct sums before = { 0 };

	add_entry(&now, entry);
	add_entry(&before, was);
	for (int i = 0; i < SUM_COUNT; i++) {
		is_same_server = is_same_server && now.of[i].count >= before.of[i].count;
	}
	return is_same_server ? was : NULL;
}

/* Finds the path on which most of the payload was transferred, and its share. The paths are the
 * labels of the metric PATH_PLACEMENT_METRIC. */
static void find_path(struct row *row, const json_t *entry, const json_t *before)
{
	const struct counter *found = NULL;
	double most = 0;
	double all = 0;

	for (size_t i = 0; i < path_export_counter_table.count; i++) {
		const struct counter *counter = &path_export_counter_table.counters[i];

		if (counter->metric != NULL &&
			strcmp(counter->metric, PATH_PLACEMENT_METRIC) == 0) {
			double bytes = since(stats_counter_value(counter, entry),
				stats_counter_value(counter, before));

			all += bytes;
			found = bytes > most ? counter : found;
			most = MAX(bytes, most);
		}
	}
	if (found != NULL) {
		const char *value = strchr(found->labels, '"') + 1;

		snprintf(row->path, sizeof(row->path), "%.*s %.0f%%", (int)strcspn(value, "\""),
			value, 100 * most / all);
	}
}

static void find_rates(
	const struct top *top, struct row *row, const struct sums *now, const struct sums *before)
{
	double *const rates[SUM_COUNT] = { &row->reads, &row->writes, &row->others };
	struct path_stats all = { .max_ns = UINT64_MAX };

	for (int i = 0; i < SUM_COUNT; i++) {
		const struct path_stats *is = &now->of[i];
		const struct path_stats *was = &before->of[i];

		*rates[i] = since(is->count, was->count) / top->seconds;
		row->errors += since(is->errors, was->errors) / top->seconds;
		if (i != SUM_OTHERS) { /* only reads and writes move payload */
			row->bytes += since(is->bytes, was->bytes) / top->seconds;
		}
		for (uint32_t k = 0; k < PATH_LATENCY_BUCKETS; k++) {
			uint64_t count = (uint64_t)since(is->latency[k], was->latency[k]);

			all.latency[k] += count;
			all.count += count;
		}
	}
	if (all.count > 0) {
		row->p50_us = (double)path_stats_quantile_ns(&all, 500000) / 1000;
		row->p99_us = (double)path_stats_quantile_ns(&all, 990000) / 1000;
	}
}

/* Fills in a row. is_escaped: the name is already escaped; otherwise it is escaped here. */
static void make_row(const struct top *top, struct row *row, const json_t *entry,
	const json_t *before, bool is_escaped)
{
	const char *name = stats_text(entry, "name");
	struct sums sums = { 0 };
	struct sums sums_before = { 0 };

	*row = (struct row){ .connections = number(entry, "connections") };
	if (is_escaped) {
		log_escape_sentence(row->name, sizeof(row->name), name);
	} else {
		log_escape(row->name, sizeof(row->name), name, strlen(name));
	}
	if (row->name[0] == '\0') {
		snprintf(row->name, sizeof(row->name), "\"\"");
	}
	add_entry(&sums, entry);
	add_entry(&sums_before, before);
	if (top->seconds > 0) {
		find_rates(top, row, &sums, &sums_before);
		find_path(row, entry, before);
	}
}

/* --- the screen ---------------------------------------------------------------------------- */

static const char *short_number(char out[SHORT_BYTES], double value)
{
	static const char *const units[] = { "", "k", "M", "G", "T" };
	size_t unit = 0;

	while (value >= 9999.5 && unit + 1 < ARRAY_COUNT(units)) {
		value /= 1000;
		unit++;
	}
	snprintf(out, SHORT_BYTES, unit > 0 && value < 99.95 ? "%.1f%s" : "%.0f%s", value,
		units[unit]);
	return out;
}

static const char *short_time(char out[SHORT_BYTES], double us)
{
	static const char *const units[] = { "us", "ms", "s" };
	size_t unit = 0;

	while (us >= 999.5 && unit + 1 < ARRAY_COUNT(units)) {
		us /= 1000;
		unit++;
	}
	snprintf(out, SHORT_BYTES, us < 9.95 && unit > 0 ? "%.1f%s" : "%.0f%s", us, units[unit]);
	return out;
}

/* Prints a line, cut to the screen; no-op when all lines are used. */
static void put_line(struct top *top, const char *style, const char *text)
{
	size_t bytes = 0;

	if (top->lines_used == top->lines) {
		return;
	}
	for (uint32_t columns = 0; text[bytes] != '\0' && columns < top->columns; columns++) {
		bytes += MAX(utf8_sequence((const uint8_t *)text + bytes, strlen(text + bytes)),
			(size_t)1);
	}
	/* No newline after the last line, because the screen would scroll. */
	fprintf(top->out, "%s%s%.*s\033[0m\033[K", top->lines_used > 0 ? "\r\n" : "", style,
		(int)bytes, text);
	top->lines_used++;
}

/* Appends the text, padded or cut to that number of columns. */
static void append_padded(char *line, const char *text, uint32_t columns)
{
	size_t used = strlen(line);
	uint32_t count = 0;

	while (*text != '\0' && count < columns && used + 8 < COLUMNS_MAX) {
		size_t bytes = MAX(utf8_sequence((const uint8_t *)text, strlen(text)), (size_t)1);

		memcpy(line + used, text, bytes);
		used += bytes;
		text += bytes;
		count++;
	}
	while (count++ < columns && used + 1 < COLUMNS_MAX) {
		line[used++] = ' ';
	}
	line[used] = '\0';
}

static bool shows_path(const struct top *top)
{
	return top->columns >= NAME_COLUMNS_MIN + NUMBER_COLUMNS + PATH_COLUMNS;
}

static uint32_t name_columns(const struct top *top)
{
	uint32_t others = NUMBER_COLUMNS + (shows_path(top) ? PATH_COLUMNS : 0);

	return top->columns > others + NAME_COLUMNS_MIN ? top->columns - others : NAME_COLUMNS_MIN;
}

static void put_header(struct top *top, const char *what, bool has_path)
{
	char line[COLUMNS_MAX * 2] = "";
	size_t used;

	append_padded(line, what, name_columns(top));
	used = strlen(line);
	snprintf(line + used, sizeof(line) - used, " %5s %7s %7s %8s %6s %6s %5s%s", "CONN",
		"READ/s", "WRITE/s", "BYTES/s", "P50", "P99", "ERR/s", has_path ? " PATH" : "");
	append_padded(line + strlen(line), "",
		top->columns > strlen(line) ? top->columns - (uint32_t)strlen(line) : 0);
	put_line(top, "\033[7m", line);
}

static void put_row(struct top *top, const struct row *row, bool has_path)
{
	char line[COLUMNS_MAX * 2] = "";
	char texts[7][SHORT_BYTES];
	bool had_any = row->reads + row->writes + row->others > 0;
	size_t used;

	append_padded(line, row->name, name_columns(top));
	used = strlen(line);
	snprintf(line + used, sizeof(line) - used, " %5s %7s %7s %8s %6s %6s %5s%s%s",
		short_number(texts[0], row->connections), short_number(texts[1], row->reads),
		short_number(texts[2], row->writes), short_number(texts[3], row->bytes),
		had_any ? short_time(texts[4], row->p50_us) : "-",
		had_any ? short_time(texts[5], row->p99_us) : "-",
		short_number(texts[6], row->errors), has_path ? " " : "",
		has_path ? row->path : "");
	put_line(top, "", line);
}

static enum top_order sort_order;

static int compare_rows(const void *left, const void *right)
{
	const struct row *a = left;
	const struct row *b = right;
	double by[ORDER_COUNT] = {
		[ORDER_BYTES] = b->bytes - a->bytes,
		[ORDER_REQUESTS] =
			b->reads + b->writes + b->others - a->reads - a->writes - a->others,
		[ORDER_P99] = b->p99_us - a->p99_us,
	};
	double order = by[sort_order];

	return order > 0 ? 1 : order < 0 ? -1 : strcmp(a->name, b->name);
}

/* Prints one of the two lists on at most line_count lines. */
static void put_list(
	struct top *top, const char *key, const char *what, uint32_t line_count, bool is_exports)
{
	const json_t *list = json_object_get(top->now, key);
	size_t count = json_array_size(list);
	struct row *rows = calloc(MAX(count, (size_t)1), sizeof(*rows));

	for (size_t i = 0; rows != NULL && i < count; i++) {
		const json_t *entry = json_array_get(list, i);

		make_row(top, &rows[i], entry, entry_before(top, key, entry), !is_exports);
	}
	if (rows != NULL) {
		sort_order = top->order;
		qsort(rows, count, sizeof(*rows), compare_rows);
		put_header(top, what, is_exports && shows_path(top));
	}
	for (size_t i = 0; rows != NULL && i < count && i + 1 < line_count; i++) {
		if (i + 2 == line_count && i + 1 < count) {
			char more[64];

			snprintf(more, sizeof(more), "... and %zu more", count - i);
			put_line(top, "", more);
		} else {
			put_row(top, &rows[i], is_exports && shows_path(top));
		}
	}
	free(rows);
}

static void put_summary(struct top *top)
{
	const char *version = stats_text(top->now, "version");
	struct engine_counters counters = { 0 };
	char line[COLUMNS_MAX * 2];
	size_t used;

	stats_read(&engine_counter_table, &counters, json_object_get(top->now, "counters"));
	snprintf(line, sizeof(line),
		"gmblock %s, server %.0f, up %.0f s: %llu connection%s, %llu in flight",
		quote(version), number(top->now, "pid"), number(top->now, "uptime_seconds"),
		(unsigned long long)counters.sessions, counters.sessions == 1 ? "" : "s",
		(unsigned long long)counters.inflight);
	/* strlen(), because the result of snprintf() would exceed the buffer if the line was cut.
	 * Numbers from the server can have hundreds of digits. */
	used = strlen(line);
	if (counters.tls_sessions > 0) {
		snprintf(line + used, sizeof(line) - used, ", TLS %llu (kernel %llu)",
			(unsigned long long)counters.tls_sessions,
			(unsigned long long)counters.tls_sessions_kernel);
	}
	put_line(top, "\033[1m", line);
}

static void find_size(struct top *top)
{
	struct winsize size = { 0 };

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0) {
		size.ws_col = COLUMNS_USUAL;
		size.ws_row = LINES_USUAL;
	}
	top->columns = MIN((uint32_t)size.ws_col, (uint32_t)COLUMNS_MAX);
	top->lines = size.ws_row;
}

/* Composes the whole screen and writes it in one call, so that it does not flicker. */
static int draw(struct top *top, struct error *error)
{
	size_t export_count = json_array_size(json_object_get(top->now, "exports"));
	char *screen = NULL;
	size_t bytes = 0;
	uint32_t room;
	uint32_t for_exports;
	char keys[64];

	find_size(top);
	top->lines_used = 0;
	top->out = open_memstream(&screen, &bytes);
	if (top->out == NULL) {
		return error_oom_for(error, "the screen");
	}
	fputs("\033[H", top->out);
	put_summary(top);
	room = top->lines > 2 ? top->lines - 2 : 0;
	for_exports = MAX(room / 2, 2U); /* at least the header and one line */
	for_exports = (uint32_t)MIN(export_count + 1, (size_t)for_exports);
	put_list(top, "exports", "EXPORT", for_exports, true);
	put_list(top, "clients", "CLIENT", room > for_exports ? room - for_exports : 0, false);
	while (top->lines_used + 1 < top->lines) {
		put_line(top, "", "");
	}
	snprintf(keys, sizeof(keys), "q quit  s sort (%s)  p %s", order_names[top->order],
		top->paused ? "resume (paused)" : "pause");
	put_line(top, "\033[2m", keys);
	if (fclose(top->out) != 0) {
		free(screen);
		return error_oom_for(error, "the screen");
	}
	(void)fwrite(screen, 1, bytes, stdout);
	free(screen);
	return print_end(error);
}

/* --- the loop ------------------------------------------------------------------------------ */

static int tools_top_look(struct top *top, const char *path, struct error *error)
{
	json_t *now = stats_ask(path, error);

	if (now == NULL) {
		return error->code;
	}
	json_decref(top->before);
	top->before = top->now;
	top->now = now;
	top->seconds = top->before != NULL
			       ? number(now, "clock_seconds") - number(top->before, "clock_seconds")
			       : 0;
	return 0;
}

static void take_keys(struct top *top)
{
	char keys[64];
	ssize_t count = read(STDIN_FILENO, keys, sizeof(keys));

	if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) {
		ended = 1;
	}
	for (ssize_t i = 0; i < count; i++) {
		if (keys[i] == 'q' || keys[i] == 'Q') {
			ended = 1;
		} else if (keys[i] == 's') {
			top->order = (top->order + 1) % ORDER_COUNT;
		} else if (keys[i] == 'p' || keys[i] == ' ') {
			top->paused = !top->paused;
		}
	}
}

static int tools_top_run(
	struct top *top, const char *path, uint64_t interval_ns, struct error *error)
{
	int rc = tools_top_look(top, path, error);
	uint64_t due_ns = clock_now_ns() + MIN(interval_ns, (uint64_t)200 * NS_PER_MS);

	while (rc == 0 && !ended) {
		struct pollfd fd = { .fd = STDIN_FILENO, .events = POLLIN };
		uint64_t now_ns = clock_now_ns();

		if (now_ns >= due_ns) {
			due_ns = now_ns + interval_ns;
			rc = top->paused ? 0 : tools_top_look(top, path, error);
		}
		rc = rc ?: draw(top, error);
		if (rc == 0 &&
			poll(&fd, 1, (int)((due_ns - MIN(now_ns, due_ns)) / NS_PER_MS + 1)) > 0) {
			take_keys(top);
		}
	}
	json_decref(top->now);
	json_decref(top->before);
	return rc;
}

int top_show(const char *path, uint64_t interval_ns, struct error *error)
{
	static const char enter[] = "\033[?1049h\033[?25l\033[?7l";
	static const char leave[] = "\033[?7h\033[?25h\033[?1049l";
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	const struct sigaction end = { .sa_handler = end_on_signal };
	struct top top = { .order = ORDER_BYTES };
	struct termios before;
	struct termios raw;
	int rc;

	if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) < 0) {
		return error_set(error, -ENOTTY,
			"the output must be a terminal; otherwise use \"gmblock stats --json "
			"--watch\"");
	}
	for (size_t i = 0; i < ARRAY_COUNT(signals); i++) {
		(void)sigaction(signals[i], &end, NULL);
	}
	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	(void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	(void)fwrite(enter, 1, sizeof(enter) - 1, stdout);
	rc = tools_top_run(&top, path, interval_ns, error);
	(void)fwrite(leave, 1, sizeof(leave) - 1, stdout);
	(void)fflush(stdout);
	(void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
	return rc;
}
