// SPDX-License-Identifier: Apache-2.0
#include "server/listen/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "server/listen/address.h"

enum { MODE_ALL = 0777 };

uint32_t listen_folders_room(const struct server_config *config)
{
	uint32_t room = 0;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		room += config->listens[i].uri.is_folder ? (uint32_t)SERVER_EXPORTS_MAX : 0;
	}
	return room;
}

/* Returns whether the path is FOLDER/NAME. */
static bool is_in_folder(const char *path, const char *folder)
{
	const char *slash = strrchr(path, '/');
	char *parent = slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : NULL;
	struct stat one;
	struct stat other;
	bool is_in = parent != NULL && stat(parent, &one) == 0 && stat(folder, &other) == 0 &&
		     one.st_dev == other.st_dev && one.st_ino == other.st_ino;

	free(parent);
	return is_in;
}

bool listen_folders_adopt(const struct server_config *config, struct listener *listener)
{
	const char *path = listener->unlink_path;

	for (uint32_t i = 0; path != NULL && i < config->listen_count; i++) {
		const struct export_uri *uri = &config->listens[i].uri;

		if (uri->is_folder && is_in_folder(path, uri->socket_path)) {
			listener->uri.protocol = uri->protocol;
			listener->uri.export_name = strdup(strrchr(path, '/') + 1);
			listener->folder = i + 1;
			return listener->uri.export_name != NULL;
		}
	}
	return false;
}

/* --- one socket ------------------------------------------------------------------------------ */

static const char *why_no_file_name(const char *name)
{
	return name[0] == '\0' ? "its name is empty; name it with --export NAME=PATH"
	       : strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ? "its name denotes a folder"
	       : strchr(name, '/') != NULL			   ? "its name contains a slash"
								   : NULL;
}

/* Fills in the listener of an export. Its socket is opened by open_socket(). */
static int folder_init(struct listener *listener, const struct listen_folders *folders,
	uint32_t folder, const char *name, struct error *error)
{
	static const struct server_tls no_tls;
	const struct export_uri *uri = &folders->config->listens[folder].uri;
	char *path = NULL;
	int bytes = asprintf(&path, "%s/%s", uri->socket_path, name);

	*listener = (struct listener){
		.uri = { .protocol = uri->protocol,
			.is_unix = true,
			.socket_path = bytes < 0 ? NULL : path,
			.socket_path_bytes = bytes < 0 ? 0 : (uint32_t)bytes,
			.export_name = strdup(name) },
		.kind = folders->kind,
		.settings = &no_tls,
		.folder = folder + 1,
	};
	if (listener->uri.socket_path == NULL || listener->uri.export_name == NULL) {
		listener_close(listener);
		return error_oom_for(error, "the socket of an export");
	}
	return 0;
}

/* Opens the socket. Its mode is set by the umask, because the sandbox forbids chmod() when the
 * server has started. */
static int open_socket(
	struct listener *listener, const struct listen_folders *folders, struct error *error)
{
	const char *mode = folders->config->listens[listener->folder - 1].uri.socket_mode;
	mode_t allowed = mode != NULL ? (mode_t)strtoul(mode, NULL, 8) : 0;
	mode_t before = mode != NULL ? umask(MODE_ALL & ~allowed) : 0;
	struct listener opened;
	int rc = listener_open(&listener->uri, listener->kind, folders->retries, &opened, error);

	if (mode != NULL) {
		(void)umask(before);
	}
	if (rc < 0) {
		return rc;
	}
	opened.settings = listener->settings;
	opened.folder = listener->folder;
	listener_close(listener);
	*listener = opened;
	return 0;
}

/* Reports that an export has no socket. */
static void say_none(
	json_t *lines, const struct export_uri *folder, const char *name, const char *reason)
{
	char line[2 * ERROR_TEXT_BYTES];

	snprintf(line, sizeof(line), "export \"%s\": no socket in %s: %s", quote(name),
		quote(folder->socket_path), reason);
	if (lines == NULL || json_array_append_new(lines, json_string(line)) < 0) {
		log_warning("%s", line);
	}
}

/* Opens the socket of a new export. error: the caller reports the failure; NULL: it is reported
 * here. */
static int folder_add(const struct listen_folders *folders, uint32_t folder, const char *name,
	json_t *lines, struct error *error)
{
	const struct export_uri *uri = &folders->config->listens[folder].uri;
	uint32_t index = *folders->listener_count;
	struct listener *listener = &folders->listeners[index];
	const char *reason = why_no_file_name(name);
	struct error why;
	int rc = folder_init(listener, folders, folder, name, &why);

	if (rc == 0) {
		*folders->listener_count += 1;
		rc = reason == NULL ? open_socket(listener, folders, &why) : 0;
	}
	if (rc == -ENAMETOOLONG) { /* for a socket */
		rc = 0;
		reason = why.text;
	}
	if (rc == 0 && reason == NULL) {
		rc = acceptor_add(folders->acceptor, listener, index, &why);
	}
	if (reason != NULL || (rc < 0 && error == NULL)) {
		say_none(lines, uri, name, reason != NULL ? reason : why.text);
	}
	return rc < 0 ? error_set(error, rc, "%s", why.text) : 0;
}

/* Tries again to open the socket of an export. */
static void folder_retry(
	const struct listen_folders *folders, struct listener *listener, json_t *lines)
{
	const char *name = listener->uri.export_name;
	struct error error;
	int rc = why_no_file_name(name) == NULL ? open_socket(listener, folders, &error) : 0;

	if (rc < 0 && rc != -ENAMETOOLONG) { /* which no change of the folder remedies */
		say_none(lines, &folders->config->listens[listener->folder - 1].uri, name,
			error.text);
	}
}

static void folder_remove(const struct listen_folders *folders, uint32_t index)
{
	struct listener *listener = &folders->listeners[index];

	if (listener->door != NULL) {
		acceptor_remove(folders->acceptor, listener);
	}
	listener_close(listener);
	*listener = folders->listeners[--*folders->listener_count];
}

/* --- all sockets ----------------------------------------------------------------------------- */

/* An export, sorted by its name. */
struct named {
	const char *name;
	uint32_t index; /* in the table of exports */
};

static int compare_named(const void *left, const void *right)
{
	const struct named *a = left;
	const struct named *b = right;

	return strcmp(a->name, b->name);
}

/* Closes the sockets of exports that are gone, and accepts at inherited ones and at those that
 * could not be opened before. Sets `seen` for each export that has a listener. */
static int keep_listeners(const struct listen_folders *folders, uint32_t folder,
	const struct named *names, uint32_t count, bool *seen, json_t *lines, struct error *error)
{
	int result = 0;

	for (uint32_t i = 0; result == 0 && i < *folders->listener_count;) {
		struct listener *listener = &folders->listeners[i];
		const struct named key = { .name = listener->uri.export_name };
		const struct named *found =
			listener->folder == folder + 1
				? bsearch(&key, names, count, sizeof(*names), compare_named)
				: NULL;

		if (found == NULL && listener->folder == folder + 1) {
			folder_remove(folders, i); /* another listener has this index now */
			continue;
		}
		if (found != NULL) {
			seen[found->index] = true;
			if (listener->fd_count == 0) {
				folder_retry(folders, listener, lines);
			}
			result = listener->door == NULL && listener->fd_count > 0
					 ? acceptor_add(folders->acceptor, listener, i, error)
					 : 0;
		}
		i++;
	}
	return result;
}

/* Checks that the folder exists, so that its exports do not have one error each. */
static int check_folder(const struct export_uri *uri, struct error *error)
{
	struct stat status;
	bool exists = stat(uri->socket_path, &status) == 0;

	if (exists && S_ISDIR(status.st_mode)) {
		return 0;
	}
	return error_set(error, exists ? -ENOTDIR : -ENOENT,
		"cannot listen on %s+unix:///?folder=%s: %s", uri->protocol,
		quote(uri->socket_path), exists ? "not a folder" : "no such folder; create it");
}

static int follow(const struct listen_folders *folders, const struct exports *exports,
	struct named *names, bool *seen, json_t *lines, struct error *error)
{
	uint32_t count = exports->count;
	int result = 0;

	for (uint32_t i = 0; i < count; i++) {
		names[i] = (struct named){ exports->list[i]->about.name, i };
	}
	qsort(names, count, sizeof(*names), compare_named);
	for (uint32_t folder = 0; folder < folders->config->listen_count; folder++) {
		if (!folders->config->listens[folder].uri.is_folder) {
			continue;
		}
		if (result == 0 && error != NULL) {
			result = check_folder(&folders->config->listens[folder].uri, error);
			if (result < 0) {
				return result;
			}
		}
		memset(seen, 0, count * sizeof(*seen));
		result =
			result ?: keep_listeners(folders, folder, names, count, seen, lines, error);
		for (uint32_t i = 0; i < count; i++) {
			int rc = seen[i] ? 0
					 : folder_add(folders, folder, exports->list[i]->about.name,
						   lines, result == 0 ? error : NULL);

			result = result ?: rc;
		}
	}
	return result;
}

int listen_folders_follow(const struct listen_folders *folders, const struct exports *exports,
	json_t *lines, struct error *error)
{
	struct named *names;
	bool *seen;
	int rc;

	if (listen_folders_room(folders->config) == 0) {
		return 0;
	}
	names = calloc(MAX(exports->count, 1U), sizeof(*names));
	seen = calloc(MAX(exports->count, 1U), sizeof(*seen));
	rc = names != NULL && seen != NULL ? follow(folders, exports, names, seen, lines, error)
					   : error_oom_for(error, "the sockets of exports");
	free(names);
	free(seen);
	return rc;
}

/* Returns whether the socket file is one of this server. */
static bool is_own_socket(const struct listen_folders *folders, const struct stat *status)
{
	for (uint32_t i = 0; i < *folders->listener_count; i++) {
		if (folders->listeners[i].unlink_path != NULL &&
			folders->listeners[i].unlink_device == status->st_dev &&
			folders->listeners[i].unlink_inode == status->st_ino) {
			return true;
		}
	}
	return false;
}

static void clean(const struct listen_folders *folders, const char *folder)
{
	DIR *entries = opendir(folder);
	const struct dirent *entry;
	struct stat status;

	/* The lock of listen.c: a socket that another server has bound, and that does not listen
	 * yet, seems to be abandoned. */
	if (entries != NULL && flock(dirfd(entries), LOCK_EX | LOCK_NB) < 0 &&
		errno == EWOULDBLOCK) {
		closedir(entries);
		return;
	}
	while (entries != NULL && (entry = readdir(entries)) != NULL) {
		char *path;

		if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0) {
			break;
		}
		if (lstat(path, &status) == 0 && S_ISSOCK(status.st_mode) &&
			!is_own_socket(folders, &status) && listen_address_is_abandoned(path) &&
			unlink(path) == 0) {
			log_info("removed the socket file %s of an earlier server", quote(path));
		}
		free(path);
	}
	if (entries != NULL) {
		closedir(entries);
	}
}

void listen_folders_clean(const struct listen_folders *folders)
{
	for (uint32_t i = 0; i < folders->config->listen_count; i++) {
		if (folders->config->listens[i].uri.is_folder) {
			clean(folders, folders->config->listens[i].uri.socket_path);
		}
	}
}
