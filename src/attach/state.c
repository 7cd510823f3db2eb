// SPDX-License-Identifier: Apache-2.0
#include "attach/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

/* Enough for log_escape() of any path, so the text is never truncated. */
enum { ESCAPED_PATH_BYTES = 4 * ATTACH_PATH_BYTES + 8 };

static const char root_folder[] = "/run/gmblock-attach";

/* --- paths ------------------------------------------------------------------------------------ */

/* -ENOENT: this user has no default folder, because XDG_RUNTIME_DIR is not set. */
static int state_folder(char out[PATH_MAX], struct error *error)
{
	const char *folder = getenv("GMBLOCK_ATTACH_DIR");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	struct stat status;
	int len;

	if (folder != NULL && folder[0] != '\0') {
		len = snprintf(out, PATH_MAX, "%s", folder);
	} else if (geteuid() != 0 && runtime != NULL && runtime[0] == '/') {
		len = snprintf(out, PATH_MAX, "%s/gmblock-attach", runtime);
	} else if (geteuid() == 0 ||
		   (stat(root_folder, &status) == 0 && status.st_uid == geteuid())) {
		len = snprintf(out, PATH_MAX, "%s", root_folder);
	} else {
		return error_set(error, -ENOENT,
			"no default state folder for this user: XDG_RUNTIME_DIR is not set; set "
			"it, or set GMBLOCK_ATTACH_DIR to a folder");
	}
	if (len < 0 || len >= PATH_MAX) {
		return error_set(error, -ENAMETOOLONG, "the path of the state folder is too long");
	}
	return 0;
}

int state_path(char out[PATH_MAX], const char *name, const char *ending, struct error *error)
{
	char folder[PATH_MAX];
	int rc = state_folder(folder, error);
	int len;

	if (rc != 0) {
		return rc;
	}
	len = snprintf(out, PATH_MAX, "%s/%s.%s", folder, name, ending);
	if (len < 0 || len >= PATH_MAX) {
		return error_set(error, -ENAMETOOLONG, "the path of the state folder is too long");
	}
	return 0;
}

/* Creates the folder. It is private, because write access to its sockets allows detaching disks. */
static int make_folder(struct error *error)
{
	char folder[PATH_MAX];
	struct stat status;
	int rc = state_folder(folder, error);

	if (rc != 0) {
		return rc;
	}
	if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
		rc = -errno;
		return error_set(
			error, rc, "cannot create the folder %s: %s", folder, strerror(-rc));
	}
	if (lstat(folder, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
		(status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		return error_set(error, -EPERM,
			"%s must be a folder owned by the user who runs gmblock and writable only "
			"by that user",
			folder);
	}
	return 0;
}

/* --- writing ------------------------------------------------------------------------------- */

/* A path can contain any bytes, but JSON is UTF-8. The path is therefore written with \xNN escapes,
 * also for its own backslashes, and state_unescape() restores it exactly. */
static int write_json(int fd, const struct state_entry *entry)
{
	char device[ESCAPED_PATH_BYTES];
	json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:b, s:b}", "kind", entry->kind,
		"device", log_escape(device, sizeof(device), entry->path, strlen(entry->path)),
		"uri", entry->uri, "number", entry->number, "pid", entry->pid, "bytes",
		(json_int_t)entry->bytes, "read_only", entry->read_only, "made_file",
		entry->made_file);
	int rc;

	if (root == NULL) {
		return -ENOMEM;
	}
	rc = json_dumpfd(root, fd, JSON_INDENT(2)) == 0 ? 0 : -EIO;
	json_decref(root);
	return rc;
}

/* Writes a new file, locks it and renames it, so readers never see an incomplete or unlocked
 * file. */
int state_write(const struct state_entry *entry, struct error *error)
{
	char path[PATH_MAX];
	char fresh[PATH_MAX];
	int rc = make_folder(error);
	int fd;

	rc = rc ?: state_path(path, entry->name, "json", error);
	rc = rc ?: state_path(fresh, entry->name, "new", error);
	if (rc != 0) {
		return rc;
	}
	fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		rc = -errno;
		return error_set(error, rc, "cannot write %s: %s", fresh, strerror(-rc));
	}
	rc = flock(fd, LOCK_EX | LOCK_NB) == 0 ? write_json(fd, entry) : -errno;
	if (rc == 0 && rename(fresh, path) != 0) {
		rc = -errno;
	}
	if (rc != 0) {
		close(fd);
		return error_set(error, rc, "cannot write %s: %s", fresh, strerror(-rc));
	}
	return fd;
}

void state_remove(const char *name)
{
	char path[PATH_MAX];

	if (state_path(path, name, "sock", NULL) == 0) {
		unlink(path);
	}
	if (state_path(path, name, "json", NULL) == 0) {
		unlink(path);
	}
}

void state_remove_own(const char *name, int fd)
{
	char path[PATH_MAX];
	struct stat now;
	struct stat own;

	if (state_path(path, name, "json", NULL) == 0 && stat(path, &now) == 0 &&
		fstat(fd, &own) == 0 && now.st_dev == own.st_dev && now.st_ino == own.st_ino) {
		state_remove(name);
	}
}

/* --- reading ------------------------------------------------------------------------------- */

static int digit_of(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c != '\0' ? strchr(digits, c) : NULL;

	return at != NULL ? (int)(at - digits) : -1;
}

/* Reverses log_escape() of a path. Returns false if the result cannot be the path of a disk. */
static bool state_unescape(char out[ATTACH_PATH_BYTES], const char *text)
{
	size_t used = 0;

	for (; *text != '\0' && used + 1 < ATTACH_PATH_BYTES; text++) {
		int high = text[0] == '\\' && text[1] == 'x' ? digit_of(text[2]) : -1;
		int low = high >= 0 ? digit_of(text[3]) : -1;

		if (low < 0) {
			out[used++] = *text;
		} else if (high > 0 || low > 0) {
			out[used++] = (char)(high << 4 | low);
			text += 3;
		} else {
			break;
		}
	}
	out[used] = '\0';
	return *text == '\0';
}

static int read_entry(int fd, struct state_entry *entry)
{
	const char *kind;
	const char *device;
	const char *uri;
	json_int_t bytes;
	int read_only;
	int made_file = 0;
	json_t *root = json_loadfd(fd, 0, NULL);
	int rc = -EINVAL;

	if (root != NULL &&
		json_unpack(root, "{s:s, s:s, s:s, s:i, s:i, s:I, s:b, s?b}", "kind", &kind,
			"device", &device, "uri", &uri, "number", &entry->number, "pid",
			&entry->pid, "bytes", &bytes, "read_only", &read_only, "made_file",
			&made_file) == 0 &&
		state_unescape(entry->path, device)) {
		snprintf(entry->kind, sizeof(entry->kind), "%s", kind);
		entry->uri = strdup(uri);
		entry->bytes = (uint64_t)bytes;
		entry->read_only = read_only != 0;
		entry->made_file = made_file != 0;
		rc = entry->uri != NULL ? 0 : -ENOMEM;
	}
	json_decref(root);
	return rc;
}

static int open_entry(const char *name, struct state_entry *entry)
{
	char path[PATH_MAX];
	int rc = state_path(path, name, "json", NULL);
	int fd = rc == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : rc;

	if (fd < 0) {
		return rc == 0 ? -errno : rc;
	}
	*entry = (struct state_entry){ 0 };
	snprintf(entry->name, sizeof(entry->name), "%s", name);
	rc = read_entry(fd, entry);
	if (rc != 0) {
		log_warning("%s is not a gmblock state file", path);
	}
	/* A running daemon holds an exclusive lock. */
	entry->alive = flock(fd, LOCK_SH | LOCK_NB) != 0;
	close(fd);
	return rc;
}

static int is_entry(const struct dirent *found)
{
	size_t len = strlen(found->d_name);

	return len > 5 && len < sizeof(((struct state_entry *)NULL)->name) &&
	       strcmp(found->d_name + len - 5, ".json") == 0;
}

int state_for_each(state_visit *visit, void *context, struct error *error)
{
	char folder[PATH_MAX];
	struct dirent **list = NULL;
	int rc = state_folder(folder, error);
	int count;

	if (rc != 0) {
		return rc;
	}
	count = scandir(folder, &list, is_entry, versionsort);
	if (count < 0) {
		rc = -errno;
		return rc == -ENOENT ? 0
				     : error_set(error, rc, "cannot read the folder %s: %s", folder,
					       strerror(-rc));
	}
	rc = 0;
	for (int i = 0; i < count; i++) {
		struct state_entry entry;

		list[i]->d_name[strlen(list[i]->d_name) - 5] = '\0';
		if (rc == 0 && open_entry(list[i]->d_name, &entry) == 0) {
			rc = visit(&entry, context);
			free(entry.uri);
		}
		free(list[i]);
	}
	free(list);
	return rc;
}
