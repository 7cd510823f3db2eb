// SPDX-License-Identifier: Apache-2.0
#include "server/control.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/tracing.h"
#include "server/visitors.h"

enum {
	PATH_BYTES = 256,
	PATH_SHOWN_BYTES = 4 * 4096,
	URI_BYTES_MAX = 3 * 4096 + 1024,
	NEW_SECONDS = 10, /* much longer than from bind to listen */
};

struct control {
	struct control_view view;
	struct listener listener;
	struct tracing *tracing;
	struct visitor *tracer; /* who waits for what tracing sees, or NULL */
	struct visitors *visitors;
	bool stopped;
};

/* --- the place ----------------------------------------------------------------------------- */

int control_folder(char *out, size_t out_bytes)
{
	const char *runtime = geteuid() == 0 ? "/run" : getenv("XDG_RUNTIME_DIR");
	int len;

	if (runtime == NULL || runtime[0] != '/') {
		return -ENOENT;
	}
	len = snprintf(out, out_bytes, "%s/gmblock/serve", runtime);
	return len > 0 && (size_t)len < out_bytes ? 0 : -ENOENT;
}

/* Makes the folder and the one above it; both are fine if they are there. */
static int make_folder(const char *folder)
{
	char above[PATH_BYTES];
	char *slash;

	snprintf(above, sizeof(above), "%s", folder);
	slash = strrchr(above, '/');
	GMB_ASSERT(slash != NULL);
	*slash = '\0';
	if (mkdir(above, 0755) < 0 && errno != EEXIST) {
		return -errno;
	}
	return mkdir(folder, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int listen_at(struct control *control, const char *path, struct error *error)
{
	char socket_path[PATH_BYTES];
	struct nbd_uri uri = { .is_unix = true, .socket_path = socket_path };
	mode_t before;
	int rc;

	if (strlen(path) >= sizeof(socket_path)) {
		return error_set(error, -ENAMETOOLONG, "the path is too long for a socket");
	}
	snprintf(socket_path, sizeof(socket_path), "%s", path);
	uri.socket_path_bytes = (uint32_t)strlen(path);
	before = umask(0177);
	rc = listener_open(&uri, &control->listener, error);
	umask(before);
	return rc;
}

/* Removes a socket that nobody listens on any more. One whose server lives keeps it, also one in
 * another container with the same folder. */
static void remove_if_stale(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0) {
		return;
	}
	/* A path that does not fit does not listen either. */
	memcpy(address.sun_path, path, MIN(strlen(path), sizeof(address.sun_path) - 1));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 &&
		errno == ECONNREFUSED) {
		(void)unlink(path);
	}
	close(fd);
}

/* Between bind and listen a new server's socket looks abandoned. Its process tells that it is not,
 * but for one in another container with the same folder: therefore a new one is left alone. */
static bool is_new(const char *path)
{
	struct timespec now;
	struct stat socket;

	if (lstat(path, &socket) < 0) {
		return true; /* its server has just taken it away */
	}
	clock_gettime(CLOCK_REALTIME, &now);
	/* One of the future: the clock was set, and nobody knows. */
	return now.tv_sec < socket.st_mtim.tv_sec ||
	       now.tv_sec - socket.st_mtim.tv_sec < NEW_SECONDS;
}

static bool owner_lives(const char *socket_name)
{
	long pid = strtol(socket_name, NULL, 10);

	return pid > 0 && pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH);
}

/* Servers that were killed have left their sockets: not worth a word. */
static void sweep(const char *folder)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;

	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		const char *end = strrchr(entry->d_name, '.');
		char path[2 * PATH_BYTES];

		if (end != NULL && strcmp(end, ".sock") == 0 && !owner_lives(entry->d_name) &&
			snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) <
				(int)sizeof(path) &&
			!is_new(path)) {
			remove_if_stale(path);
		}
	}
	if (directory != NULL) {
		closedir(directory);
	}
}

static int open_usual(struct control *control, struct error *error)
{
	char folder[PATH_BYTES];
	char path[PATH_BYTES + 32];
	int rc = control_folder(folder, sizeof(folder));

	if (rc == 0) {
		rc = make_folder(folder);
	}
	if (rc != 0) {
		return rc;
	}
	sweep(folder);
	snprintf(path, sizeof(path), "%s/%ld.sock", folder, (long)getpid());
	return listen_at(control, path, error);
}

/* --- collecting ---------------------------------------------------------------------------- */

/* Large reads that were sent from the page cache, and those that were not. */
struct page_cache_send {
	uint64_t bytes;
	uint64_t misses;
};

/* Sums over the reactors; made for what has traffic only. */
struct summary {
	const struct control_view *view;
	struct engine_counters counters;
	struct path_stats **stats; /* [export * STORE_OP_COUNT + op], or NULL */
	struct overlap *overlaps;  /* [export * 2], of reads and writes: of the busiest reactor */
	struct page_cache_send *page_cache; /* [export] */
	bool short_of_memory;
};

static void add_stats(
	struct summary *summary, const struct path_export *measured, uint32_t export_index)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_stats *from = measured->stats[op];
		struct path_stats **into =
			&summary->stats[(size_t)export_index * STORE_OP_COUNT + (size_t)op];

		if (from == NULL) {
			continue;
		}
		if (*into == NULL) {
			*into = calloc(PATH_SIZE_CLASS_COUNT, sizeof(**into));
		}
		if (*into == NULL) {
			summary->short_of_memory = true;
			return;
		}
		for (int size_class = 0; size_class < PATH_SIZE_CLASS_COUNT; size_class++) {
			path_stats_merge(*into + size_class, from + size_class);
		}
	}
}

static void add_overlaps(
	struct summary *summary, const struct path_export *measured, uint32_t export_index)
{
	const struct overlap *const both[] = { &measured->reads, &measured->writes };

	for (size_t i = 0; i < ARRAY_COUNT(both); i++) {
		const struct overlap *from = both[i];
		struct overlap *into =
			&summary->overlaps[(size_t)export_index * ARRAY_COUNT(both) + i];

		if (from->disk_rate >= into->disk_rate) {
			*into = *from;
		}
	}
}

/* On a reactor's thread, while the main thread waits. */
static void inspect(struct engine *engine, void *context)
{
	struct summary *summary = context;

	engine_counters_add(&summary->counters, &engine->counters);
	for (uint32_t i = 0; i < summary->view->export_count; i++) {
		const struct path_export *measured =
			engine_export_measured(engine, summary->view->exports[i]);

		if (measured != NULL) {
			add_stats(summary, measured, i);
			add_overlaps(summary, measured, i);
			summary->page_cache[i].bytes += measured->page_cache_send_bytes;
			summary->page_cache[i].misses += measured->page_cache_send_misses;
		}
	}
}

static int collect(struct summary *summary)
{
	size_t count = (size_t)summary->view->export_count * STORE_OP_COUNT;

	summary->stats = calloc(MAX(count, (size_t)1), sizeof(struct path_stats *));
	summary->overlaps = calloc(MAX(count, (size_t)1), sizeof(*summary->overlaps));
	summary->page_cache = calloc(MAX(count, (size_t)1), sizeof(*summary->page_cache));
	if (summary->stats == NULL || summary->overlaps == NULL || summary->page_cache == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < summary->view->reactor_count; i++) {
		int rc = reactor_call(summary->view->reactors[i], inspect, summary);

		if (rc < 0) {
			return rc;
		}
	}
	return summary->short_of_memory ? -ENOMEM : 0;
}

static void summary_fini(struct summary *summary)
{
	size_t count = (size_t)summary->view->export_count * STORE_OP_COUNT;

	for (size_t i = 0; summary->stats != NULL && i < count; i++) {
		free(summary->stats[i]);
	}
	free(summary->stats);
	free(summary->overlaps);
	free(summary->page_cache);
}

/* --- the document -------------------------------------------------------------------------- */

static json_t *us(uint64_t ns)
{
	return json_real((double)ns / 1000);
}

static json_t *per_request_us(uint64_t sum_ns, uint64_t count)
{
	return json_real(count > 0 ? (double)sum_ns / (double)count / 1000 : 0);
}

static json_t *class_json(const struct path_stats *stats, int op, uint32_t size_class)
{
	uint64_t limit = path_size_class_limit(size_class);
	json_t *latency = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "mean",
		per_request_us(stats->total_ns, stats->count), "p50",
		us(path_stats_quantile_ns(stats, 500000)), "p90",
		us(path_stats_quantile_ns(stats, 900000)), "p99",
		us(path_stats_quantile_ns(stats, 990000)), "p99_9",
		us(path_stats_quantile_ns(stats, 999000)), "max", us(stats->max_ns));
	json_t *states = json_pack("{s:o, s:o, s:o, s:o}", "init",
		per_request_us(stats->state_ns[PATH_STATE_INIT], stats->count), "read",
		per_request_us(stats->state_ns[PATH_STATE_READ], stats->count), "send_init",
		per_request_us(stats->state_ns[PATH_STATE_SEND_INIT], stats->count), "send",
		per_request_us(stats->state_ns[PATH_STATE_SEND], stats->count));

	return json_pack("{s:s, s:I, s:o, s:I, s:I, s:I, s:o, s:o}", "operation",
		store_op_name((enum store_op)op), "size_above",
		(json_int_t)(size_class > 0 ? path_size_class_limit(size_class - 1) : 0),
		"size_max", limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit),
		"count", (json_int_t)stats->count, "errors", (json_int_t)stats->errors, "bytes",
		(json_int_t)stats->bytes, "latency_us", latency, "state_us", states);
}

static json_t *known(uint64_t value)
{
	return value > 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *overlap_stats_json(const struct overlap *overlap)
{
	json_t *early = overlap->early_measured
				? json_real((double)overlap->early / OVERLAP_EARLY_ONE)
				: json_null();

	return json_pack("{s:o, s:o, s:o, s:o}", "part_size", known(overlap->chosen),
		"disk_bytes_per_second", known(overlap->disk_rate), "network_bytes_per_second",
		known(overlap->network_rate), "early", early);
}

static json_t *overlap_json(uint32_t overlap)
{
	if (overlap == PATH_OVERLAP_AUTO) {
		return json_string("auto");
	}
	return overlap == PATH_OVERLAP_OFF ? json_string("off") : json_integer((json_int_t)overlap);
}

/* Why no read of this export is sent from the page cache itself; null: nothing speaks against it.
 */
static json_t *refusal_json(const struct export *entry)
{
	const char *refusal = store_page_cache_refusal(entry->store);

	if (refusal == NULL && entry->overlap != PATH_OVERLAP_AUTO &&
		entry->overlap != PATH_OVERLAP_OFF && entry->overlap < PATH_PART_SIZE_MAX) {
		refusal = "overlap"; /* parts of a fixed size */
	}
	return refusal != NULL ? json_string(refusal) : json_null();
}

static json_t *export_json(const struct summary *summary, uint32_t export_index)
{
	const struct export *entry = summary->view->exports[export_index];
	const char *path = summary->view->paths[export_index];
	json_t *operations = json_array();
	char shown[PATH_SHOWN_BYTES];

	for (int op = 0; op < STORE_OP_COUNT; op++) {
		const struct path_stats *stats =
			summary->stats[(size_t)export_index * STORE_OP_COUNT + (size_t)op];

		for (uint32_t size_class = 0; stats != NULL && size_class < PATH_SIZE_CLASS_COUNT;
			size_class++) {
			if (stats[size_class].count > 0) {
				json_array_append_new(
					operations, class_json(&stats[size_class], op, size_class));
			}
		}
	}
	return json_pack("{s:s%, s:s, s:I, s:b, s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "name",
		entry->name, (size_t)entry->name_bytes, "path",
		/* A path may be any bytes, JSON is UTF-8. */
		log_escape(shown, sizeof(shown), path, strlen(path)), "bytes",
		(json_int_t)store_size(entry->store), "read_only", entry->read_only, "connections",
		(json_int_t)atomic_load_explicit(&entry->connections, memory_order_relaxed),
		"overlap", overlap_json(entry->overlap), "reads",
		overlap_stats_json(&summary->overlaps[(size_t)export_index * 2]), "writes",
		overlap_stats_json(&summary->overlaps[(size_t)export_index * 2 + 1]),
		"page_cache_send_bytes", (json_int_t)summary->page_cache[export_index].bytes,
		"page_cache_send_misses", (json_int_t)summary->page_cache[export_index].misses,
		"page_cache_send_refusal", refusal_json(entry), "operations", operations);
}

static json_t *uris_json(const struct control_view *view)
{
	json_t *uris = json_array();
	char uri[URI_BYTES_MAX];

	for (uint32_t i = 0; i < view->listener_count; i++) {
		for (uint32_t k = 0; k < view->export_count; k++) {
			if (nbd_uri_format(&view->listeners[i].uri, view->exports[k]->name,
				    view->exports[k]->name_bytes, uri, sizeof(uri)) == 0) {
				json_array_append_new(uris, json_string(uri));
			}
		}
	}
	return uris;
}

static json_t *counters_json(const struct engine_counters *counters)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "connections",
		(json_int_t)counters->sessions, "handshakes", (json_int_t)counters->handshakes,
		"inflight", (json_int_t)counters->inflight, "connections_accepted",
		(json_int_t)counters->sessions_accepted, "connections_refused",
		(json_int_t)counters->sessions_refused, "connections_failed",
		(json_int_t)counters->sessions_failed, "requests", (json_int_t)counters->requests,
		"errors", (json_int_t)counters->errors, "bytes_read",
		(json_int_t)counters->bytes_read, "bytes_written",
		(json_int_t)counters->bytes_written);
}

/* The answer, to be freed; NULL when there is no memory for it. -ETIMEDOUT: no answer. */
static int make_answer(const struct control_view *view, char **text_out)
{
	struct summary summary = { .view = view };
	uint64_t at_ns = clock_now_ns();
	int rc = collect(&summary);

	*text_out = NULL;
	if (rc == 0) {
		json_t *exports = json_array();
		json_t *whole;

		for (uint32_t i = 0; i < view->export_count; i++) {
			json_array_append_new(exports, export_json(&summary, i));
		}
		whole = json_pack("{s:s, s:I, s:f, s:f, s:o, s:o, s:o}", "version", GMBLOCK_VERSION,
			"pid", (json_int_t)getpid(), "uptime_seconds",
			(double)(at_ns - view->start_ns) / 1e9, "clock_seconds",
			(double)at_ns / 1e9, "uris", uris_json(view), "counters",
			counters_json(&summary.counters), "exports", exports);
		*text_out = whole != NULL ? json_dumps(whole, JSON_COMPACT) : NULL;
		json_decref(whole);
	}
	summary_fini(&summary);
	return rc;
}

/* --- answering ----------------------------------------------------------------------------- */

static char *error_answer(const char *sentence)
{
	char shown[ERROR_TEXT_BYTES * 4];
	json_t *whole =
		json_pack("{s:s}", "error", log_escape_sentence(shown, sizeof(shown), sentence));
	char *text = whole != NULL ? json_dumps(whole, JSON_COMPACT) : NULL;

	json_decref(whole);
	return text;
}

static void begin_trace(struct control *control, struct visitor *visitor, const char *question)
{
	struct error error;

	if (tracing_begin(control->tracing, question, &error) == 0) {
		control->tracer = visitor;
		visitor_keep(visitor, "{\"armed\": true}\n");
	} else {
		visitor_answer(visitor, error_answer(error.text));
	}
}

static void end_trace(struct control *control, const char *why)
{
	visitor_answer(control->tracer, tracing_tell(control->tracing, why));
	control->tracer = NULL;
}

static void tell_stats(struct control *control, struct visitor *visitor)
{
	char *text;

	if (make_answer(&control->view, &text) == -ETIMEDOUT) {
		text = error_answer("a thread of this server cannot be asked: it does not answer, "
				    "perhaps a disk hangs");
	}
	visitor_answer(visitor, text);
}

static void asked(void *context, struct visitor *visitor, const char *question)
{
	static const char trace[] = "trace ";
	struct control *control = context;

	if (question[0] == '\0' || strcmp(question, "stats") == 0) {
		tell_stats(control, visitor);
	} else if (strncmp(question, trace, sizeof(trace) - 1) == 0) {
		begin_trace(control, visitor, question + sizeof(trace) - 1);
	} else {
		visitor_answer(visitor, error_answer("this server does not know the question"));
	}
}

static void left(void *context, struct visitor *visitor)
{
	struct control *control = context;

	GMB_ASSERT(visitor == control->tracer);
	end_trace(control, "left");
	tracing_disarm(control->tracing);
}

static void enough_ended(void *context)
{
	struct control *control = context;

	if (control->tracer != NULL && !tracing_is_short(control->tracing)) {
		end_trace(control, "count");
		tracing_disarm(control->tracing);
	}
}

/* --- life ---------------------------------------------------------------------------------- */

static int open_parts(struct control *control, struct error *error)
{
	const struct tracing_options tracing_options = {
		.exports = control->view.exports,
		.export_count = control->view.export_count,
		.reactors = control->view.reactors,
		.reactor_count = control->view.reactor_count,
	};
	struct visitors_options visitors_options = {
		.listen_fd = control->listener.fds[0],
		.asked = asked,
		.left = left,
		.event = enough_ended,
		.context = control,
	};
	int rc = tracing_create(&tracing_options, &control->tracing, error);

	if (rc < 0) {
		return rc;
	}
	/* Who connects and is gone again must not hold the main thread. */
	(void)fcntl(control->listener.fds[0], F_SETFL, O_NONBLOCK);
	visitors_options.event_fd = tracing_event_fd(control->tracing);
	return visitors_create(&visitors_options, &control->visitors, error);
}

int control_open(const char *path, const struct control_view *view, struct control **control_out,
	struct error *error)
{
	struct control *control;
	int rc;

	*control_out = NULL;
	if (path != NULL && strcmp(path, "none") == 0) {
		return 0;
	}
	control = calloc(1, sizeof(*control));
	if (control == NULL) {
		return error_set(error, -ENOMEM, "no memory for a control socket");
	}
	control->view = *view;
	rc = path != NULL ? listen_at(control, path, error) : open_usual(control, error);
	if (rc < 0) {
		free(control);
		if (path == NULL) {
			return 0;
		}
		error_prefix(error, "--control");
		return rc;
	}
	rc = open_parts(control, error);
	if (rc < 0) {
		control_close(control);
		return rc;
	}
	*control_out = control;
	return 0;
}

void control_stop(struct control *control)
{
	if (control == NULL || control->stopped) {
		return;
	}
	control->stopped = true;
	if (control->tracer != NULL) {
		end_trace(control, "stop");
	}
	if (control->visitors != NULL) {
		visitors_stop(control->visitors);
	}
	listener_close(&control->listener);
}

void control_close(struct control *control)
{
	if (control == NULL) {
		return;
	}
	control_stop(control);
	if (control->visitors != NULL) {
		visitors_flush(control->visitors);
	}
	visitors_destroy(control->visitors);
	tracing_destroy(control->tracing);
	free(control);
}

int control_fd(const struct control *control)
{
	return control != NULL ? visitors_fd(control->visitors) : -1;
}

void control_serve(struct control *control)
{
	visitors_serve(control->visitors);
}
