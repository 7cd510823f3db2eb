// SPDX-License-Identifier: Apache-2.0
#include "server/control.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "control/control.h"
#include "server/change/exports.h"
#include "server/change/jobs.h"
#include "server/fence/fencing.h"
#include "server/lease/leases.h"
#include "server/listen/address.h"
#include "server/observe/metrics.h"
#include "server/observe/stats.h"
#include "server/observe/tracing.h"
#include "server/upgrade/take.h"
#include "server/upgrade/upgrade.h"

enum {
	PATH_BYTES = 256,
	NEW_SECONDS = 10, /* a socket counts as new for this time; bind() to listen() is shorter */
};

struct server_control {
	const struct server_view *view;
	struct listener listener;
	struct control_server *server;
	struct tracing *tracing;
	bool stopped;
};

/* --- paths --------------------------------------------------------------------------------- */

static int own_folder(char *out, size_t out_bytes)
{
	bool is_root = geteuid() == 0;
	const char *service = is_root ? NULL : getenv("RUNTIME_DIRECTORY");
	const char *user = is_root ? NULL : getenv("XDG_RUNTIME_DIR");
	int len = -1;

	if (is_root) {
		len = snprintf(out, out_bytes, "/run/gmblock-serve");
	} else if (service != NULL && service[0] == '/') {
		len = snprintf(out, out_bytes, "%.*s/serve", (int)strcspn(service, ":"), service);
	} else if (user != NULL && user[0] == '/') {
		len = snprintf(out, out_bytes, "%s/gmblock/serve", user);
	}
	return len > 0 && (size_t)len < out_bytes ? 0 : -ENOENT;
}

/* Returns whether neither the folder nor a folder above it is a symbolic link. Required for a
 * folder that another user controls. */
static bool is_itself(const char *folder)
{
	char *real = realpath(folder, NULL);
	bool itself = real != NULL && strcmp(real, folder) == 0;

	free(real);
	return itself;
}

int server_control_folder(uint32_t idx, char *out, size_t out_bytes)
{
	static const char *const patterns[] = { "/run/gmblock/serve", "/run/user/*/gmblock/serve" };
	int rc = -ENOENT;

	if (idx == 0) {
		return own_folder(out, out_bytes);
	}
	for (size_t i = 0; geteuid() == 0 && rc < 0 && i < ARRAY_COUNT(patterns); i++) {
		glob_t found;

		if (glob(patterns[i], 0, NULL, &found) != 0) {
			continue;
		}
		for (size_t k = 0; rc < 0 && k < found.gl_pathc; k++) {
			const char *path = found.gl_pathv[k];

			if (is_itself(path) && --idx == 0 && strlen(path) < out_bytes) {
				memcpy(out, path, strlen(path) + 1);
				rc = 0;
			}
		}
		globfree(&found);
	}
	return rc;
}

/* It is not an error if the folder and its parent already exist. */
int server_control_make_folder(void)
{
	char folder[PATH_BYTES];
	char above[PATH_BYTES];
	char *slash;
	int rc = server_control_folder(0, folder, sizeof(folder));

	if (rc < 0) {
		return rc;
	}
	snprintf(above, sizeof(above), "%s", folder);
	slash = strrchr(above, '/');
	GMB_ASSERT(slash != NULL);
	*slash = '\0';
	if (mkdir(above, 0755) < 0 && errno != EEXIST) {
		return -errno;
	}
	return mkdir(folder, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int server_control_listen_at(
	struct listener *listener, const char *path, struct error *error)
{
	char socket_path[PATH_BYTES];
	struct export_uri uri = {
		.protocol = LISTENER_CONTROL, .is_unix = true, .socket_path = socket_path
	};
	uint32_t retries = LISTENER_RETRIES;
	size_t path_bytes = strlen(path);
	mode_t before;
	int rc;

	if (path_bytes >= sizeof(socket_path)) {
		return error_set(
			error, -ENAMETOOLONG, "the path of the control socket is too long");
	}
	memcpy(socket_path, path, path_bytes + 1);
	uri.socket_path_bytes = (uint32_t)path_bytes;
	before = umask(0177);
	rc = listener_open(&uri, NULL, &retries, listener, error);
	umask(before);
	return rc;
}

/* Returns whether the socket is so new that its server may not listen on it yet. Such a socket must
 * not be removed. The process ID in its name does not help if that server is in another
 * container. */
static bool is_new(const char *path)
{
	struct timespec now;
	struct stat socket;

	if (lstat(path, &socket) < 0) {
		return true; /* the server has just removed the socket */
	}
	clock_gettime(CLOCK_REALTIME, &now);
	/* A time in the future means that the clock was set; the age is then unknown. */
	return now.tv_sec < socket.st_mtim.tv_sec ||
	       now.tv_sec - socket.st_mtim.tv_sec < NEW_SECONDS;
}

/* Does not use kill(), because the sandbox allows kill() for this process only. */
static bool owner_lives(const char *socket_name)
{
	long pid = strtol(socket_name, NULL, 10);
	char path[32];

	snprintf(path, sizeof(path), "/proc/%ld", pid);
	return pid > 0 && pid != (long)getpid() && (access(path, F_OK) == 0 || errno != ENOENT);
}

/* Removes the record of a server that has ended. It stays if there is a socket with the same PID,
 * because that server may be in another container. */
static void remove_record(const char *path, size_t name_bytes)
{
	char socket_path[2 * PATH_BYTES];

	snprintf(socket_path, sizeof(socket_path), "%.*s.sock", (int)name_bytes, path);
	if (access(socket_path, F_OK) < 0 && errno == ENOENT) {
		(void)unlink(path);
	}
}

static void sweep_entry(const char *folder, const char *name)
{
	const char *end = strrchr(name, '.');
	char path[2 * PATH_BYTES];

	if (end == NULL || owner_lives(name) ||
		snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path) ||
		is_new(path)) {
		return;
	}
	if (strcmp(end, ".sock") == 0) {
		/* The socket of a live server stays, even if that server is in another container
		 * that shares the folder. */
		if (listen_address_is_abandoned(path)) {
			(void)unlink(path);
		}
	} else if (strcmp(end, SERVER_RECORD_SUFFIX) == 0) {
		remove_record(path, strlen(path) - strlen(end));
	}
}

/* Removes the sockets and records of killed servers, without a log line. Called as late as
 * possible, because the kernel keeps a killed server's socket open for a moment, so it does not
 * look abandoned at first. */
static void sweep(void)
{
	char folder[PATH_BYTES];
	DIR *directory = NULL;
	struct dirent *entry;

	if (server_control_folder(0, folder, sizeof(folder)) == 0) {
		directory = opendir(folder);
	}
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		sweep_entry(folder, entry->d_name);
	}
	if (directory != NULL) {
		closedir(directory);
	}
}

static int listen_as_usual(struct listener *listener, struct error *error)
{
	char folder[PATH_BYTES];
	char path[PATH_BYTES + 32];
	int rc = server_control_make_folder() ?: server_control_folder(0, folder, sizeof(folder));

	if (rc != 0) {
		return rc;
	}
	snprintf(path, sizeof(path), "%s/%ld.sock", folder, (long)getpid());
	return server_control_listen_at(listener, path, error);
}

int server_control_listen(
	const char *path, struct upgrade_take *take, struct listener *listener, struct error *error)
{
	struct upgrade_socket socket;
	int rc;

	*listener = (struct listener){ 0 };
	if (path != NULL && upgrade_take_control(take, path, &socket)) {
		return listener_adopt_inherited(&socket, listener, error);
	}
	if (path == NULL) {
		(void)listen_as_usual(listener, error);
		return 0;
	}
	rc = strcmp(path, "none") != 0 ? server_control_listen_at(listener, path, error) : 0;
	if (rc < 0) {
		error_prefix(error, "--control");
	}
	return rc;
}

/* --- commands ------------------------------------------------------------------------------ */

static void begin_stats(void *context, struct control_client *client, const json_t *arguments)
{
	const struct server_control *control = context;
	json_t *document;
	int code;

	document = stats_document(control->view, &code);
	if (code < 0) {
		control_fail(client, code, reactor_call_text(code));
	} else {
		control_reply(client, document);
	}
}

static void begin_counters(void *context, struct control_client *client, const json_t *arguments)
{
	control_reply(client, stats_counters());
}

static void begin_metrics(void *context, struct control_client *client, const json_t *arguments)
{
	const struct server_control *control = context;
	bool openmetrics = json_is_true(json_object_get(arguments, "openmetrics"));
	char *text;
	size_t bytes;
	int rc = metrics_format(control->view, openmetrics, &text, &bytes);

	if (rc < 0) {
		control_fail(client, rc, reactor_call_text(rc));
	} else {
		control_reply(client, json_pack("{s:s%}", "text", text, bytes));
		free(text);
	}
}

static const struct control_command metrics_command = {
	.name = "metrics",
	.right = CONTROL_READ,
	.begin = begin_metrics,
};

static const struct control_command counters_command = {
	.name = "counters",
	.right = CONTROL_READ,
	.begin = begin_counters,
};

static const struct control_command stats_command = {
	.name = "stats",
	.right = CONTROL_READ,
	.begin = begin_stats,
};

/* --- nodes --------------------------------------------------------------------------------- */

static void begin_fence(void *context, struct control_client *client, const json_t *arguments)
{
	const struct server_control *control = context;
	const char *action = json_string_value(json_object_get(arguments, "action"));
	const char *node = json_string_value(json_object_get(arguments, "node"));
	static const char *const actions[] = {
		[FENCE_LOOK] = "look", [FENCE_NODE] = "fence", [FENCE_RELEASE] = "unfence"
	};
	uint32_t at = 0;
	char text[FENCE_TEXT_BYTES];
	int rc;

	if (action != NULL && strcmp(action, "list") == 0) {
		control_reply(
			client, json_pack("{s:o?}", "nodes", fencing_list(control->view->fencing)));
		return;
	}
	while (action != NULL && at < ARRAY_COUNT(actions) && strcmp(action, actions[at]) != 0) {
		at++;
	}
	if (action == NULL || at == ARRAY_COUNT(actions) || node == NULL) {
		control_fail(client, -EINVAL,
			"the argument \"action\" (fence, unfence, look or list) and, except for "
			"list, \"node\" (text) are required");
		return;
	}
	rc = fencing_ask(control->view->fencing, NULL, (enum fence_action)at, node, text);
	if (rc == 0) {
		control_reply(client, json_pack("{s:b}", "done", true));
	} else {
		control_fail(client, rc, text);
	}
}

static const struct control_command fence_command = {
	.name = "fence",
	.right = CONTROL_CHANGE,
	.begin = begin_fence,
};

/* --- leases -------------------------------------------------------------------------------- */

static bool has_node(const struct server_control *control, const char *node)
{
	uint32_t count = 0;
	struct fencing_view *views = fencing_views(control->view->fencing, &count);
	bool has = false;

	for (uint32_t i = 0; views != NULL && i < count; i++) {
		has |= strcmp(views[i].node, node) == 0;
	}
	free(views);
	return has;
}

static void change_lease(const struct server_control *control, struct control_client *client,
	bool offers, const char *export, const char *node)
{
	struct lease_book *book = leases_book(control->view->leases);
	uint32_t bytes = (uint32_t)strlen(export);
	char text[ERROR_TEXT_BYTES];
	int rc;

	rc = offers ? lease_book_offer(book, export, bytes, node, clock_now_ns())
		    : lease_book_release(book, export, bytes, node, clock_now_ns());
	if (rc > 0 && lease_book_record(book) < 0) {
		control_fail(client, -EIO,
			"the leases have ended, but this cannot be recorded (see the log of the "
			"server): after a restart they exist again");
	} else if (rc >= 0) {
		control_reply(client, json_pack("{s:i}", "count", rc));
	} else if (rc == -EAGAIN) {
		control_fail(client, rc, "another process is taking over the server; try again");
	} else {
		snprintf(text, sizeof(text), "%s%s%s of export \"%s\"",
			node[0] != '\0' && !offers ? "no client of node '" : "no client",
			node[0] != '\0' && !offers ? quote(node) : "",
			node[0] != '\0' && !offers ? "' has a lease" : " has a lease",
			quote(export));
		control_fail(client, rc, text);
	}
}

static void begin_lease(void *context, struct control_client *client, const json_t *arguments)
{
	const struct server_control *control = context;
	const char *action = json_string_value(json_object_get(arguments, "action"));
	const char *export = json_string_value(json_object_get(arguments, "export"));
	const char *node = json_string_value(json_object_get(arguments, "node"));
	bool lists = action != NULL && strcmp(action, "list") == 0;
	bool offers = action != NULL && strcmp(action, "offer") == 0;
	bool releases = action != NULL && strcmp(action, "release") == 0;
	char text[ERROR_TEXT_BYTES];

	if ((!lists && !offers && !releases) || (!lists && export == NULL) ||
		(offers && node == NULL)) {
		control_fail(client, -EINVAL,
			"the argument \"action\" (list, offer or release) and, except for list, "
			"\"export\" (text) are required, for offer also \"node\" (text)");
	} else if (export != NULL && exports_find(control->view->exports, export) == NULL) {
		snprintf(text, sizeof(text), EXPORTS_ABSENT_TEXT, quote(export));
		control_fail(client, -ENOENT, text);
	} else if (lists) {
		control_reply(client,
			json_pack("{s:o?}", "leases", leases_list(control->view->leases, NULL)));
	} else if (node != NULL && !has_node(control, node)) {
		snprintf(text, sizeof(text),
			"there is no node '%s'; nodes are described in the configuration file of "
			"the server",
			quote(node));
		control_fail(client, -ENOENT, text);
	} else {
		change_lease(control, client, offers, export, node != NULL ? node : "");
	}
}

static const struct control_command lease_command = {
	.name = "lease",
	.right = CONTROL_CHANGE,
	.begin = begin_lease,
};

/* --- life ---------------------------------------------------------------------------------- */

int server_control_open(struct listener *listener, const struct server_view *view,
	struct server_control **control_out, struct error *error)
{
	struct server_control *control;
	int rc;

	*control_out = NULL;
	if (listener->fd_count == 0) {
		return 0;
	}
	sweep();
	control = calloc(1, sizeof(*control));
	if (control == NULL) {
		listener_close(listener);
		return error_oom_for(error, "a control socket");
	}
	control->view = view;
	control->listener = *listener;
	*listener = (struct listener){ 0 };
	rc = control_server_create(control->listener.fds[0], &control->server, error);
	if (rc == 0) {
		control_server_add(control->server, &stats_command, control);
		control_server_add(control->server, &counters_command, NULL);
		control_server_add(control->server, &metrics_command, control);
		control_server_add(control->server, &fence_command, control);
		control_server_add(control->server, &lease_command, control);
		control_server_add(control->server, &reload_command, control->view->jobs);
		control_server_add(control->server, &export_command, control->view->jobs);
		control_server_add(control->server, &snapshot_command, control->view->jobs);
		control_server_add(control->server, &upgrade_command, control->view->upgrade);
		rc = tracing_create(control->view, control->server, &control->tracing, error);
	}
	if (rc < 0) {
		/* the other process may continue to use the socket, so its file stays */
		if (control->listener.was_inherited) {
			listener_forget_path(&control->listener);
		}
		server_control_close(control);
		return rc;
	}
	*control_out = control;
	return 0;
}

void server_control_begin(struct server_control *control)
{
	if (control != NULL) {
		control_server_begin(control->server);
	}
}

void server_control_stop(struct server_control *control)
{
	if (control == NULL || control->stopped) {
		return;
	}
	control->stopped = true;
	if (control->tracing != NULL) {
		tracing_stop(control->tracing);
	}
	if (control->server != NULL) {
		control_server_stop(control->server);
	}
	listener_close(&control->listener);
}

void server_control_close(struct server_control *control)
{
	if (control == NULL) {
		return;
	}
	server_control_stop(control);
	control_server_destroy(control->server);
	tracing_destroy(control->tracing);
	free(control);
}

int server_control_fd(const struct server_control *control)
{
	return control != NULL ? control_server_fd(control->server) : -1;
}

void server_control_run(struct server_control *control)
{
	control_server_run(control->server);
}

struct listener *server_control_listener(struct server_control *control)
{
	return control != NULL ? &control->listener : NULL;
}

void server_control_let_go(struct server_control *control)
{
	if (control != NULL) {
		control_server_refuse(control->server);
	}
}
