// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "base/text.h"
#include "control/control.h"
#include "server/control.h"
#include "store/store.h"

enum {
	QUOTE_BYTES = 256,
	PIDS_BYTES = 200,
	URIS_BYTES = 160,
	URIS_TAIL_BYTES = 8, /* for a comma, and for what says that there are more */
	PID_TEXT_BYTES = 32, /* room for one more, and for what says that there are more */
};

/* --- asking -------------------------------------------------------------------------------- */

json_t *stats_ask(const char *path, struct error *error)
{
	json_t *document = NULL;

	if (control_ask(path, "stats", NULL, CONTROL_TIMEOUT_MS, &document, error) < 0) {
		return NULL;
	}
	if (!json_is_array(json_object_get(document, "exports"))) {
		error_set(error, -EPROTO, "%s: this is not the control socket of a server", path);
		json_decref(document);
		return NULL;
	}
	return document;
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
	(void)fwrite(json_string_value(text), 1, json_string_length(text), stdout);
	json_decref(result);
	return print_end(error);
}

/* --- finding ------------------------------------------------------------------------------- */

/* How well a URI that a server serves fits one that was written. */
enum fit {
	FIT_NOT,
	FIT_OTHER_SPELLING, /* such as localhost for 127.0.0.1 */
	FIT_EXACT,
};

/* A URI with or without the slash of the default export. */
static bool same_text(const char *a, const char *b)
{
	size_t a_bytes = strlen(a);
	size_t b_bytes = strlen(b);

	a_bytes -= a_bytes > 0 && a[a_bytes - 1] == '/';
	b_bytes -= b_bytes > 0 && b[b_bytes - 1] == '/';
	return a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
}

/* This machine, from its own point of view. */
static bool is_here(const char *host)
{
	static const char *const names[] = { "localhost", "127.0.0.1", "::1", "0.0.0.0", "::" };

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcasecmp(host, names[i]) == 0) {
			return true;
		}
	}
	return false;
}

/* Two paths of a socket, the first of which the process pid has, in whose folder it may begin. */
static bool same_socket(
	const struct export_uri *served, long long pid, const struct export_uri *asked)
{
	char path[STATS_PATH_BYTES];
	struct stat one;
	struct stat other;
	int len;

	if (served->socket_path_bytes == asked->socket_path_bytes &&
		memcmp(served->socket_path, asked->socket_path, asked->socket_path_bytes) == 0) {
		return true;
	}
	if (served->socket_path[0] == '/') {
		len = snprintf(path, sizeof(path), "%s", served->socket_path);
	} else {
		len = snprintf(path, sizeof(path), "/proc/%lld/cwd/%s", pid, served->socket_path);
	}
	return len < (int)sizeof(path) && served->socket_path[0] != '\0' &&
	       asked->socket_path[0] != '\0' && stat(path, &one) == 0 &&
	       stat(asked->socket_path, &other) == 0 && one.st_dev == other.st_dev &&
	       one.st_ino == other.st_ino;
}

static bool same_place(
	const struct export_uri *served, long long pid, const struct export_uri *asked)
{
	if (served->is_unix != asked->is_unix ||
		strcmp(served->export_name, asked->export_name) != 0) {
		return false;
	}
	if (served->is_unix) {
		return same_socket(served, pid, asked);
	}
	return served->port == asked->port &&
	       (strcasecmp(served->host, asked->host) == 0 ||
		       (is_here(served->host) && is_here(asked->host)));
}

static enum fit fit_uri(const char *served_text, long long pid, const char *asked_text)
{
	struct export_uri served = { 0 };
	struct export_uri asked = { 0 };
	struct error error;
	enum fit fit = FIT_NOT;

	if (same_text(served_text, asked_text)) {
		return FIT_EXACT;
	}
	if (export_uri_parse(served_text, &served, &error) == 0 &&
		export_uri_parse(asked_text, &asked, &error) == 0 &&
		same_place(&served, pid, &asked)) {
		fit = FIT_OTHER_SPELLING;
	}
	export_uri_fini(&served);
	export_uri_fini(&asked);
	return fit;
}

static enum fit fit_server(const json_t *document, const char *uri)
{
	const json_t *uris = json_object_get(document, "uris");
	long long pid = (long long)json_integer_value(json_object_get(document, "pid"));
	enum fit best = FIT_NOT;

	for (size_t i = 0; i < json_array_size(uris); i++) {
		const char *served = json_string_value(json_array_get(uris, i));
		enum fit fit = served != NULL ? fit_uri(served, pid, uri) : FIT_NOT;

		best = MAX(best, fit);
	}
	return best;
}

/* What was found among the servers of this machine. */
struct search {
	char path[STATS_PATH_BYTES]; /* of the last match */
	char pids[PIDS_BYTES];	     /* of all matches; cut when there are many */
	bool cut;
	char uris[URIS_BYTES]; /* some of those that do not match */
	uint32_t matches;
	enum fit fit; /* of the matches */
	uint32_t servers;
	struct error error; /* why the first server that could not be asked could not */
};

static void add_match(struct search *search, const char *path, const json_t *document)
{
	size_t used = strlen(search->pids);

	if (used + PID_TEXT_BYTES < sizeof(search->pids)) {
		snprintf(search->pids + used, sizeof(search->pids) - used, "%s%lld",
			search->matches > 0 ? ", " : "",
			(long long)json_integer_value(json_object_get(document, "pid")));
	} else if (!search->cut) {
		snprintf(search->pids + used, sizeof(search->pids) - used, ", ...");
		search->cut = true;
	}
	search->matches++;
	snprintf(search->path, sizeof(search->path), "%s", path);
}

/* What the search goes past, for who looks for a name that is nearly right. */
static void add_uris(struct search *search, const json_t *document)
{
	const json_t *uris = json_object_get(document, "uris");

	for (size_t i = 0; i < json_array_size(uris); i++) {
		const char *uri = json_string_value(json_array_get(uris, i));
		char shown[URIS_BYTES];
		size_t used = strlen(search->uris);
		bool cut = used >= 3 && strcmp(search->uris + used - 3, "...") == 0;

		if (uri == NULL || cut) {
			return;
		}
		log_escape(shown, sizeof(shown), uri, strlen(uri));
		if (used + strlen(shown) + URIS_TAIL_BYTES >= sizeof(search->uris)) {
			snprintf(shown, sizeof(shown), "...");
		}
		snprintf(search->uris + used, sizeof(search->uris) - used, "%s%s",
			used > 0 ? ", " : "", shown);
	}
}

static void look_at(struct search *search, const char *path, const char *uri)
{
	struct error error = { 0 };
	json_t *document = stats_ask(path, &error);
	enum fit fit;

	if (document == NULL) {
		/* One that was killed leaves its socket, one that ends takes it away. */
		if (error.code != -ECONNREFUSED && error.code != -ENOENT &&
			search->error.code == 0) {
			search->error = error;
		}
		return;
	}
	search->servers++;
	fit = uri == NULL ? FIT_EXACT : fit_server(document, uri);
	if (fit > search->fit) {
		/* One that is named exactly is meant, and not one that would fit as well. */
		search->fit = fit;
		search->matches = 0;
		search->cut = false;
		search->pids[0] = '\0';
	}
	if (fit == FIT_NOT) {
		add_uris(search, document);
	} else if (fit == search->fit) {
		add_match(search, path, document);
	}
	json_decref(document);
}

static void search_folder(struct search *search, const char *folder, const char *uri)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;

	if (directory == NULL && errno != ENOENT) {
		error_set(&search->error, -errno, "%s: %s", folder, strerror(errno));
	}
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		char path[STATS_PATH_BYTES];
		const char *end = strrchr(entry->d_name, '.');

		if (end != NULL && strcmp(end, ".sock") == 0 &&
			snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) <
				(int)sizeof(path)) {
			look_at(search, path, uri);
		}
	}
	if (directory != NULL) {
		closedir(directory);
	}
}

static int no_folder(struct error *error)
{
	return error_set(error, -ENOENT,
		"there is no usual place for control sockets here, because XDG_RUNTIME_DIR is not "
		"set: name the server's socket (gmblock serve --control PATH)");
}

/* Looks among the usual control sockets for the one server that serves uri (NULL: any). */
static int find_server(const char *uri, char path[STATS_PATH_BYTES], struct error *error)
{
	char folder[STATS_PATH_BYTES];
	char other[STATS_PATH_BYTES];
	struct search search = { 0 };
	char shown[URIS_BYTES];

	if (server_control_folder(0, folder, sizeof(folder)) != 0) {
		return no_folder(error);
	}
	for (uint32_t i = 0; server_control_folder(i, other, sizeof(other)) == 0; i++) {
		search_folder(&search, other, uri);
	}
	if (search.matches == 1) {
		/* One that was named has been found: the others do not matter. */
		if (search.error.code != 0 && uri == NULL) {
			log_warning("one server could not be asked: %s", search.error.text);
		}
		memcpy(path, search.path, sizeof(search.path));
		return 0;
	}
	if (search.matches > 1) {
		return error_set(error, -EINVAL,
			"%u servers fit: name one by a URI of it, its process id (%s) or its "
			"socket in %s",
			search.matches, search.pids, folder);
	}
	if (search.error.code != 0) {
		*error = search.error;
		error_prefix(error, "no server is known to fit, and one could not be asked");
		return error->code;
	}
	if (uri != NULL && search.servers > 0) {
		return error_set(error, -ENOENT,
			"no server of this user on this machine serves %s%s%s; a server is "
			"asked on its own machine: run this command there",
			log_escape(shown, sizeof(shown), uri, strlen(uri)),
			search.uris[0] != '\0' ? "; what is served here is " : "", search.uris);
	}
	return error_set(error, -ENOENT,
		"no server of this user runs on this machine (looked in %s); one that was started "
		"with --control PATH is named by that path",
		folder);
}

/* The usual control socket of a process, which has to be there. */
static int find_process(const char *pid, char path[STATS_PATH_BYTES], struct error *error)
{
	char folder[STATS_PATH_BYTES];

	if (server_control_folder(0, folder, sizeof(folder)) != 0) {
		return no_folder(error);
	}
	for (uint32_t i = 0; server_control_folder(i, folder, sizeof(folder)) == 0; i++) {
		if (snprintf(path, STATS_PATH_BYTES, "%s/%s.sock", folder, pid) >=
			STATS_PATH_BYTES) {
			return error_set(error, -EINVAL, "\"%s\" is no process id", pid);
		}
		if (access(path, F_OK) == 0 || errno != ENOENT) {
			return 0;
		}
	}
	(void)!server_control_folder(0, folder, sizeof(folder));
	return error_set(error, -ENOENT,
		"no server of this user with the process id %s runs on this machine (looked in %s)",
		pid, folder);
}

int stats_find(const char *server, char path[STATS_PATH_BYTES], struct error *error)
{
	if (server == NULL || strstr(server, "://") != NULL) {
		return find_server(server, path, error);
	}
	if (strspn(server, "0123456789") == strlen(server) && server[0] != '\0') {
		return find_process(server, path, error);
	}
	if (snprintf(path, STATS_PATH_BYTES, "%s", server) >= STATS_PATH_BYTES) {
		return error_set(error, -ENAMETOOLONG, "%s: too long for a socket's path", server);
	}
	return 0;
}

/* --- showing ------------------------------------------------------------------------------- */

static double number(const json_t *object, const char *group, const char *key)
{
	const json_t *from = group != NULL ? json_object_get(object, group) : object;

	return json_number_value(json_object_get(from, key));
}

static const char *text_of(const json_t *object, const char *key)
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
	const char *version = text_of(document, "version");
	char shown[QUOTE_BYTES];

	printf("Server %.0f, gmblock %s, up %.0f s: %.0f connection%s, %.0f request%s in flight\n",
		number(document, NULL, "pid"),
		log_escape(shown, sizeof(shown), version, strlen(version)),
		number(document, NULL, "uptime_seconds"),
		number(document, "counters", "connections"),
		plural(number(document, "counters", "connections")),
		number(document, "counters", "inflight"),
		plural(number(document, "counters", "inflight")));
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
		const double count = number(document, "counters", causes[i].counter);

		if (count > 0) {
			printf("  %.0f failed: %s\n", count, causes[i].text);
		}
	}
}

/* Nothing where nobody has asked for TLS. */
static void show_tls(const json_t *document)
{
	const double handshakes = number(document, "counters", "tls_handshakes");
	const double failed = number(document, "counters", "tls_handshakes_failed");
	const double refused = number(document, "counters", "tls_handshakes_refused");

	if (handshakes + failed + refused == 0) {
		return;
	}
	printf("TLS: %.0f connection%s, %.0f of them by the kernel, %.0f with TLS 1.2; %.0f "
	       "handshake%s, %.0f failed, %.0f refused because there was no place\n",
		number(document, "counters", "tls_connections"),
		plural(number(document, "counters", "tls_connections")),
		number(document, "counters", "tls_connections_kernel"),
		number(document, "counters", "tls_connections_1_2"), handshakes, plural(handshakes),
		failed, refused);
	show_tls_failures(document);
}

/* Nothing where nobody has pushed. */
static void show_push(const json_t *document)
{
	const double tickets = number(document, "counters", "push_tickets");
	const double refused = number(document, "counters", "push_tickets_refused");
	const double done = number(document, "counters", "pushes_done");
	const double failed = number(document, "counters", "pushes_failed");

	if (tickets + refused + done + failed > 0) {
		printf("Push: %.0f ticket%s made, %.0f refused; %.0f push%s done, %.0f failed\n",
			tickets, plural(tickets), refused, done, done == 1 ? "" : "es", failed);
	}
}

static void show_arenas(const json_t *arenas)
{
	for (size_t i = 0; i < json_array_size(arenas); i++) {
		const json_t *arena = json_array_get(arenas, i);
		const char *kind = text_of(arena, "kind");
		const char *trouble = text_of(arena, "trouble");
		double waits = number(arena, NULL, "waits");
		double spills = number(arena, NULL, "spills");
		char shown[QUOTE_BYTES];
		char used[UNITS_TEXT_BYTES];
		char limit[UNITS_TEXT_BYTES];

		printf("Memory (%s): %s of %s in use, clients waited %.0f time%s",
			log_escape(shown, sizeof(shown), kind, strlen(kind)),
			units_format_bytes(used, (uint64_t)number(arena, NULL, "used_bytes")),
			units_format_bytes(limit, (uint64_t)number(arena, NULL, "limit_bytes")),
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

static void show_operation(const json_t *operation)
{
	static const char *const latencies[] = { "mean", "p50", "p90", "p99", "p99_9", "max" };
	static const char *const states[] = { "init", "read", "send_init", "send" };
	char text[PRINT_US_BYTES];
	char gb[GB_BYTES];

	printf("  %-8s %-8s %10.0f %7.0f %9s", text_of(operation, "operation"),
		class_text(text, operation), number(operation, NULL, "count"),
		number(operation, NULL, "errors"), gb_text(gb, number(operation, NULL, "bytes")));
	for (size_t i = 0; i < ARRAY_COUNT(latencies); i++) {
		printf(" %10s", print_us(text, number(operation, "latency_us", latencies[i])));
	}
	for (size_t i = 0; i < ARRAY_COUNT(states); i++) {
		printf(" %10s", print_us(text, number(operation, "state_us", states[i])));
	}
	printf("\n");
}

static void show_export_name(const json_t *entry)
{
	const char *name = text_of(entry, "name");
	const char *path = text_of(entry, "path");
	char shown[QUOTE_BYTES];
	char shown_path[QUOTE_BYTES];

	printf("\nExport \"%s\" (%s), %.0f connection%s\n",
		log_escape(shown, sizeof(shown), name, strlen(name)),
		log_escape(shown_path, sizeof(shown_path), path, strlen(path)),
		number(entry, NULL, "connections"), plural(number(entry, NULL, "connections")));
}

/* How the parts of large requests were chosen; nothing before there were any. */
static void show_cutting(const json_t *entry, const char *what)
{
	const json_t *cutting = json_object_get(entry, what);
	double network = number(cutting, NULL, "network_bytes_per_second");
	char size[UNITS_TEXT_BYTES];

	if (!json_is_integer(json_object_get(cutting, "part_size"))) {
		return;
	}
	printf("  %s in parts of %s: the disk gives %.2f GB/s", what,
		units_format_bytes(
			size, (uint64_t)json_integer_value(json_object_get(cutting, "part_size"))),
		number(cutting, NULL, "disk_bytes_per_second") / 1e9);
	if (network > 0) {
		printf(", the network carries %.2f GB/s", network / 1e9);
	}
	if (json_is_number(json_object_get(cutting, "early"))) {
		printf(", parts come %.0f %% before the end", 100 * number(cutting, NULL, "early"));
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

		if (strcmp(text_of(operation, "operation"), "read") == 0 &&
			(!json_is_integer(limit) ||
				json_integer_value(limit) > STORE_PAGE_CACHE_BYTES_MIN)) {
			return true;
		}
	}
	return false;
}

static void show_page_cache_send(const json_t *entry)
{
	double bytes = number(entry, NULL, "page_cache_send_bytes");
	double misses = number(entry, NULL, "page_cache_send_misses");
	const char *refusal = text_of(entry, "page_cache_send_refusal");
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
	double bytes = number(rate, NULL, "bytes_per_second");
	double requests = number(rate, NULL, "requests_per_second");

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
	double waits = number(memory, NULL, "waits");
	double delayed = number(rate, NULL, "requests_delayed");

	show_limits("  rate", rate);
	if (delayed > 0) {
		printf("  rate: %.0f requests were delayed, by %.3f ms on average\n", delayed,
			number(rate, NULL, "delay_ns") / delayed / 1e6);
	}
	show_memory_limit("  data", number(memory, NULL, "max_bytes"));
	if (waits > 0) {
		printf("  data: clients waited %.0f times because of that limit\n", waits);
	}
}

/* The rules for identities that have connections now. */
static void show_rules(const json_t *rules)
{
	for (size_t i = 0; i < json_array_size(rules); i++) {
		const json_t *rule = json_array_get(rules, i);
		double identities = number(rule, NULL, "identities");
		char label[64];

		if (identities > 0) {
			snprintf(label, sizeof(label), "rule %zu, for each of %.0f identit%s",
				i + 1, identities, identities > 1 ? "ies" : "y");
			show_limits(label, rule);
			show_memory_limit(label, number(rule, NULL, "memory_max_bytes"));
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
			"p99.9", "max", "init", "read", "send_init", "send");
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

		if (strcmp(text_of(at, "operation"), text_of(operation, "operation")) == 0 &&
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
		if (strcmp(text_of(json_array_get(list, i), "name"), name) == 0) {
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

		if (is == NULL || number(is, NULL, "count") < number(was, NULL, "count")) {
			return true;
		}
	}
	return false;
}

const json_t *stats_entry_before(
	const json_t *document, const json_t *before, const char *list, const json_t *entry)
{
	const json_t *was = entry_named(json_object_get(before, list), text_of(entry, "name"));
	bool is_same_server = json_equal(
		json_object_get(document, "instance"), json_object_get(before, "instance"));

	return was != NULL && is_same_server && !has_restarted(entry, was) ? was : NULL;
}

/* Difference of a sum that is told as a mean over the requests. */
static double mean_since(
	const json_t *now, const json_t *before, const char *group, const char *key, double count)
{
	double sum = number(now, group, key) * number(now, NULL, "count");

	if (before != NULL) {
		sum -= number(before, group, key) * number(before, NULL, "count");
	}
	return sum > 0 ? sum / count : 0;
}

/* The states of a request, and whether they are for wide terminals only. */
static const struct {
	const char *name;
	bool is_wide;
} watched_states[] = { { "init", true }, { "read", false }, { "send_init", true },
	{ "send", false } };

static void show_change(const json_t *operation, const json_t *before, double seconds, bool is_wide)
{
	double count = number(operation, NULL, "count") -
		       (before != NULL ? number(before, NULL, "count") : 0);
	double bytes = number(operation, NULL, "bytes") -
		       (before != NULL ? number(before, NULL, "bytes") : 0);
	double errors = number(operation, NULL, "errors") -
			(before != NULL ? number(before, NULL, "errors") : 0);
	char text[PRINT_US_BYTES];
	char gb[GB_BYTES];

	if (count <= 0) {
		return;
	}
	printf("  %-7s %-7s %9.0f/s %6.0f %7s GB/s", text_of(operation, "operation"),
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
	double seconds =
		number(document, NULL, "clock_seconds") - number(before, NULL, "clock_seconds");

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
