// SPDX-License-Identifier: Apache-2.0
/* Lists the servers on this machine, and finds the one that the user named. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/export_uri.h"
#include "base/log.h"
#include "control/control.h"
#include "server/control.h"
#include "tools/show.h"

#define SEARCH_NS UINT64_C(20000000000) /* limit for all servers of a search */

enum {
	LIST_ONE_MS = 2000, /* limit for one server of a list */
	SHOWN_BYTES = 80,   /* width of one URI in the list */
	STAT_MS = 1000,	    /* limit for one path that a server has named */
	MATCH_BYTES = SHOWN_BYTES + 32,
	MATCHED_BYTES = 280,
	MATCHED_TAIL_BYTES = 8, /* room for ", ..." if there are more */
	URIS_BYTES = 160,
	URIS_TAIL_BYTES = 8, /* room for ", ..." if there are more */
};

/* How well a served URI matches the given one. */
enum fit {
	FIT_NOT,
	FIT_OTHER_SPELLING, /* such as localhost for 127.0.0.1 */
	FIT_EXACT,
};

/* Returns the length of the URI without the slash that is its whole path. A URI of the default
 * export can have this slash or not. */
static size_t bytes_without_slash(const char *uri)
{
	const char *address = strstr(uri, "://");
	const char *path = address != NULL ? strchr(address + 3, '/') : NULL;

	return path != NULL && path[1] == '\0' ? (size_t)(path - uri) : strlen(uri);
}

static bool is_same_uri(const char *a, const char *b)
{
	size_t bytes = bytes_without_slash(a);

	return bytes == bytes_without_slash(b) && memcmp(a, b, bytes) == 0;
}

/* Returns whether the host, as written, always means this machine. */
static bool find_is_here(const char *host)
{
	static const char *const names[] = { "localhost", "127.0.0.1", "::1", "0.0.0.0", "::" };

	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (strcasecmp(host, names[i]) == 0) {
			return true;
		}
	}
	return false;
}

/* Returns the time limit of the next step: one_ms, or less if less time is left until end_ns. */
static int limit_of_next(uint64_t end_ns, int one_ms)
{
	uint64_t left_ns = end_ns - MIN(clock_now_ns(), end_ns);

	return (int)MIN(clock_milliseconds(left_ns), (uint32_t)one_ms);
}

/* Limits the time for looking up the paths that one server has named. Another user might
 * control their file systems, and can make them answer late or never. */
struct lookup {
	uint64_t end_ns; /* deadline of the search */
	bool is_over;	 /* a path took too long, so no other one is looked up */
};

/* Looks up the path in a child process. If the file system does not answer, the child cannot even
 * be killed, and is left behind. So it keeps only the pipe open. */
static _Noreturn void stat_in_child(const char *path, int end)
{
	struct stat status;

	if (dup2(end, 0) == 0 && close_range(1, ~0U, 0) == 0 && stat(path, &status) == 0) {
		(void)!write(0, &status, sizeof(status));
	}
	_exit(0);
}

/* stat() of a path that a server has named. */
static bool stat_in_time(struct lookup *lookup, const char *path, struct stat *status)
{
	struct pollfd told = { .events = POLLIN };
	bool is_there = false;
	int ends[2];
	pid_t child;

	if (lookup->is_over || pipe2(ends, O_CLOEXEC) < 0) {
		return false;
	}
	child = fork();
	if (child == 0) {
		stat_in_child(path, ends[1]);
	}
	close(ends[1]);
	told.fd = ends[0];
	if (child > 0) {
		lookup->is_over = poll(&told, 1, limit_of_next(lookup->end_ns, STAT_MS)) != 1;
		is_there = !lookup->is_over &&
			   read(ends[0], status, sizeof(*status)) == (ssize_t)sizeof(*status);
		(void)kill(child, SIGKILL);
		(void)waitpid(child, NULL, lookup->is_over ? WNOHANG : 0);
	}
	close(ends[0]);
	return is_there;
}

/* Compares two paths of sockets. The first belongs to process pid and can be relative to its
 * working directory. */
static bool same_socket(struct lookup *lookup, const struct export_uri *served, long long pid,
	const struct export_uri *asked)
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
	       asked->socket_path[0] != '\0' && stat(asked->socket_path, &other) == 0 &&
	       stat_in_time(lookup, path, &one) && one.st_dev == other.st_dev &&
	       one.st_ino == other.st_ino;
}

static bool same_place(struct lookup *lookup, const struct export_uri *served, long long pid,
	const struct export_uri *asked)
{
	/* If no export name is given, a server at the address matches. */
	if (served->is_unix != asked->is_unix ||
		(asked->export_name[0] != '\0' &&
			strcmp(served->export_name, asked->export_name) != 0)) {
		return false;
	}
	if (served->is_unix) {
		return same_socket(lookup, served, pid, asked);
	}
	for (uint32_t i = 0; i < export_uri_hosts(asked); i++) {
		struct export_uri one = export_uri_at(asked, i);

		if (served->port == one.port &&
			(strcasecmp(served->host, one.host) == 0 ||
				(find_is_here(served->host) && find_is_here(one.host)))) {
			return true;
		}
	}
	return false;
}

static enum fit fit_uri(
	struct lookup *lookup, const char *served_text, long long pid, const char *asked_text)
{
	struct export_uri served = { 0 };
	struct export_uri asked = { 0 };
	struct error error;
	enum fit fit = FIT_NOT;

	if (is_same_uri(served_text, asked_text)) {
		return FIT_EXACT;
	}
	if (export_uri_parse(served_text, &served, &error) == 0 &&
		export_uri_parse(asked_text, &asked, &error) == 0 &&
		same_place(lookup, &served, pid, &asked)) {
		fit = FIT_OTHER_SPELLING;
	}
	export_uri_fini(&served);
	export_uri_fini(&asked);
	return fit;
}

static enum fit fit_server(const json_t *document, const char *uri, uint64_t end_ns)
{
	struct lookup lookup = { .end_ns = end_ns };
	const json_t *uris = json_object_get(document, "uris");
	long long pid = (long long)json_integer_value(json_object_get(document, "pid"));
	enum fit best = FIT_NOT;

	for (size_t i = 0; i < json_array_size(uris); i++) {
		const char *served = json_string_value(json_array_get(uris, i));
		enum fit fit = served != NULL ? fit_uri(&lookup, served, pid, uri) : FIT_NOT;

		best = MAX(best, fit);
	}
	return best;
}

/* State of a search among the servers of this machine. */
struct search {
	uint64_t end_ns;	     /* deadline of all queries and lookups */
	char path[STATS_PATH_BYTES]; /* control socket of the last match */
	char matched[MATCHED_BYTES]; /* all matches; cut if there are many */
	bool cut;
	char uris[URIS_BYTES]; /* some of the URIs that do not match */
	uint32_t matches;
	uint32_t rank; /* rank of the matches */
	uint32_t servers;
	struct error error; /* error of the first server that could not be queried */
};

static void add_match(struct search *search, const char *path, const json_t *document)
{
	const json_t *uris = json_object_get(document, "uris");
	const char *uri = json_string_value(json_array_get(uris, 0));
	size_t used = strlen(search->matched);
	char shown[SHOWN_BYTES] = "";
	char text[MATCH_BYTES];

	if (uri != NULL) {
		log_escape(shown, sizeof(shown), uri, strlen(uri));
	}
	snprintf(text, sizeof(text), "%s%lld%s%s", search->matches > 0 ? ", " : "",
		(long long)json_integer_value(json_object_get(document, "pid")),
		uri != NULL ? " " : "", shown);
	if (used + strlen(text) + MATCHED_TAIL_BYTES < sizeof(search->matched)) {
		memcpy(search->matched + used, text, strlen(text) + 1);
	} else if (!search->cut) {
		snprintf(search->matched + used, sizeof(search->matched) - used, ", ...");
		search->cut = true;
	}
	search->matches++;
	snprintf(search->path, sizeof(search->path), "%s", path);
}

/* Collects URIs that do not match, which are shown if there is no match. */
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

/* Returns the rank of a match; 0: none. Any server can claim any URI. So if the caller is root, the
 * servers that run as root rank above the servers of other users. Among the servers of other users,
 * it does not matter how exactly they spell the URI. */
static uint32_t rank_of(
	const json_t *document, const struct ucred *peer, const char *uri, uint64_t end_ns)
{
	enum fit fit = uri == NULL ? FIT_EXACT : fit_server(document, uri, end_ns);
	bool is_root = uri != NULL && geteuid() == 0;

	if (fit == FIT_NOT || !is_root) {
		return fit;
	}
	return peer->uid == 0 ? FIT_EXACT + (uint32_t)fit : FIT_OTHER_SPELLING;
}

static void find_look_at(struct search *search, const char *path, const char *uri)
{
	struct error error = { 0 };
	struct ucred peer;
	json_t *document = stats_ask_within(
		path, limit_of_next(search->end_ns, CONTROL_TIMEOUT_MS), &peer, &error);
	uint32_t rank;

	if (document == NULL) {
		/* The error of a server that has ended does not count: a killed server leaves its
		 * socket, and one that stops removes it. */
		if (error.code != -ECONNREFUSED && error.code != -ENOENT &&
			search->error.code == 0) {
			search->error = error;
		}
		return;
	}
	search->servers++;
	rank = rank_of(document, &peer, uri, search->end_ns);
	if (rank > search->rank) {
		/* This server matches better than those found so far, which are dropped. */
		search->rank = rank;
		search->matches = 0;
		search->cut = false;
		search->matched[0] = '\0';
	}
	if (rank == 0) {
		add_uris(search, document);
	} else if (rank == search->rank) {
		add_match(search, path, document);
	}
	json_decref(document);
}

/* Calls see for each control socket of a folder. Returns a positive errno, or 0. */
static int walk_folder(
	const char *folder, void (*see)(void *context, const char *path), void *context)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;

	if (directory == NULL) {
		return errno == ENOENT ? 0 : errno;
	}
	while ((entry = readdir(directory)) != NULL) {
		char path[STATS_PATH_BYTES];
		const char *end = strrchr(entry->d_name, '.');

		if (end != NULL && strcmp(end, ".sock") == 0 &&
			snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) <
				(int)sizeof(path)) {
			see(context, path);
		}
	}
	closedir(directory);
	return 0;
}

struct wish {
	struct search *search;
	const char *uri;
};

static void see_match(void *context, const char *path)
{
	const struct wish *wish = context;

	find_look_at(wish->search, path, wish->uri);
}

static void search_folder(struct search *search, const char *folder, const char *uri)
{
	struct wish wish = { search, uri };
	int code = walk_folder(folder, see_match, &wish);

	if (code != 0) {
		error_set(&search->error, -code, "%s: %s", folder, strerror(code));
	}
}

/* Returns whether any user might have created the contents of the folder. */
static bool is_of_a_user(const char *folder)
{
	return geteuid() == 0 && strncmp(folder, "/run/user/", strlen("/run/user/")) == 0;
}

static int no_folder(struct error *error)
{
	return error_set(error, -ENOENT,
		"there is no default folder for control sockets, because XDG_RUNTIME_DIR is not "
		"set; give the path of the server's control socket (gmblock serve --control PATH)");
}

/* Searches the usual control sockets for the one server that serves uri (NULL: any). */
static int find_server(const char *uri, char path[STATS_PATH_BYTES], struct error *error)
{
	char folder[STATS_PATH_BYTES];
	char other[STATS_PATH_BYTES];
	struct search search = { .end_ns = clock_now_ns() + SEARCH_NS };
	char shown[URIS_BYTES];

	if (server_control_folder(0, folder, sizeof(folder)) != 0) {
		return no_folder(error);
	}
	for (uint32_t i = 0; server_control_folder(i, other, sizeof(other)) == 0; i++) {
		/* Any server can claim any URI. So for root, the folders below /run/user are not
		 * searched. Root selects a server there by its process ID or socket. */
		if (!is_of_a_user(other)) {
			search_folder(&search, other, uri);
		}
	}
	if (search.matches == 1) {
		/* Without a URI every server matches, so one that could not be queried would also
		 * have matched. */
		if (search.error.code != 0 && uri == NULL) {
			log_warning("not all servers could be queried: %s", search.error.text);
		}
		memcpy(path, search.path, sizeof(search.path));
		return 0;
	}
	if (search.matches > 1) {
		return error_set(error, -EINVAL,
			"%u servers match; select one with --server, by a URI, a process ID (%s) "
			"or a control socket in %s; \"gmblock list --local\" lists the servers",
			search.matches, search.matched, folder);
	}
	if (search.error.code != 0) {
		*error = search.error;
		error_prefix(error, "no server matches, but not all servers could be queried");
		return error->code;
	}
	if (uri != NULL && search.servers > 0) {
		return error_set(error, -ENOENT,
			"no server of this user on this machine serves %s%s%s; run this command on "
			"the machine of the server",
			log_escape(shown, sizeof(shown), uri, strlen(uri)),
			search.uris[0] != '\0' ? "; served here: " : "", search.uris);
	}
	return error_set(error, -ENOENT,
		"no server of this user runs on this machine (searched %s); for a server that was "
		"started with --control PATH, add --server PATH",
		folder);
}

/* Finds the usual control socket of a process; it is an error if there is none. */
static int find_process(const char *pid, char path[STATS_PATH_BYTES], struct error *error)
{
	char folder[STATS_PATH_BYTES];

	if (server_control_folder(0, folder, sizeof(folder)) != 0) {
		return no_folder(error);
	}
	for (uint32_t i = 0; server_control_folder(i, folder, sizeof(folder)) == 0; i++) {
		if (snprintf(path, STATS_PATH_BYTES, "%s/%s.sock", folder, pid) >=
			STATS_PATH_BYTES) {
			return error_set(error, -EINVAL, "\"%s\" is not a process ID", pid);
		}
		if (access(path, F_OK) == 0 || errno != ENOENT) {
			return 0;
		}
	}
	(void)!server_control_folder(0, folder, sizeof(folder));
	return error_set(error, -ENOENT,
		"no server of this user with the process ID %s runs on this machine (searched %s)",
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
		return error_set(
			error, -ENAMETOOLONG, "%s: the path is too long for a socket", server);
	}
	return 0;
}

int server_ask(const char *server, const char *command, json_t *arguments, int timeout_ms,
	json_t **result, struct error *error)
{
	char path[STATS_PATH_BYTES];
	int rc = stats_find(server, path, error);

	*result = NULL;
	if (rc < 0) {
		json_decref(arguments);
		return rc;
	}
	return control_ask(path, command, arguments, timeout_ms, result, error);
}

/* --- listing --------------------------------------------------------------------------------- */

/* An array of servers, and the deadline of all queries. */
struct listing {
	json_t *servers;
	uint64_t end_ns;
};

static json_t *exports_of(const json_t *document)
{
	json_t *list = json_array();
	json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(document, "exports"), i, entry)
	{
		json_array_append_new(
			list, json_pack("{s:O?, s:O?}", "name", json_object_get(entry, "name"),
				      "path", json_object_get(entry, "path")));
	}
	return list;
}

static void see_server(void *context, const char *path)
{
	struct listing *listing = context;
	struct ucred peer = { .uid = (uid_t)-1 };
	struct error error = { 0 };
	json_t *document =
		stats_ask_within(path, limit_of_next(listing->end_ns, LIST_ONE_MS), &peer, &error);
	json_t *server;

	if (document == NULL && (error.code == -ECONNREFUSED || error.code == -ENOENT)) {
		return; /* the server has ended */
	}
	if (document == NULL) {
		server = json_pack("{s:o, s:o}", "socket", print_json_text(path), "error",
			print_json_text(error.text));
	} else {
		server = json_pack("{s:O?, s:I, s:o, s:O?, s:O?, s:o}", "pid",
			json_object_get(document, "pid"), "uid", (json_int_t)peer.uid, "socket",
			print_json_text(path), "version", json_object_get(document, "version"),
			"uris", json_object_get(document, "uris"), "exports", exports_of(document));
	}
	json_array_append_new(listing->servers, server);
	json_decref(document);
}

json_t *servers_list(uint64_t timeout_ns, struct error *error)
{
	struct listing listing = {
		.servers = json_array(),
		.end_ns = clock_now_ns() + timeout_ns,
	};
	char folder[STATS_PATH_BYTES];

	if (server_control_folder(0, folder, sizeof(folder)) != 0) {
		no_folder(error);
		json_decref(listing.servers);
		return NULL;
	}
	for (uint32_t i = 0; server_control_folder(i, folder, sizeof(folder)) == 0; i++) {
		int code = walk_folder(folder, see_server, &listing);

		if (code != 0) {
			log_warning("%s: %s", folder, strerror(code));
		}
	}
	return listing.servers;
}

static void print_texts(const json_t *list, const char *key)
{
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry)
	{
		const char *text =
			json_string_value(key != NULL ? json_object_get(entry, key) : entry);

		if (text != NULL) {
			printf("  ");
			print_peer_text(text);
			printf("\n");
		}
	}
}

void servers_print(const json_t *servers)
{
	json_t *server;
	size_t i;

	json_array_foreach(servers, i, server)
	{
		const char *error = json_string_value(json_object_get(server, "error"));
		const json_t *uris = json_object_get(server, "uris");
		uid_t uid = (uid_t)json_integer_value(json_object_get(server, "uid"));
		const struct passwd *user = error == NULL ? getpwuid(uid) : NULL;

		if (error != NULL) {
			print_peer_text(error);
			printf("\n");
			continue;
		}
		printf("Server %lld, user %u%s%s%s, ",
			(long long)json_integer_value(json_object_get(server, "pid")),
			(unsigned int)uid, user != NULL ? " (" : "",
			user != NULL ? user->pw_name : "", user != NULL ? ")" : "");
		print_peer_text(json_string_value(json_object_get(server, "socket")));
		printf("\n");
		if (json_array_size(uris) > 0) {
			print_texts(uris, NULL);
		} else { /* these addresses contain no URIs of exports */
			print_texts(json_object_get(server, "exports"), "name");
		}
	}
}
