// SPDX-License-Identifier: Apache-2.0
#include "server/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "server/config/config.h"
#include "server/fence/list.h"

/* Returns the folder of the configuration, to be freed. NULL: no memory. */
static char *state_folder_path(const struct server_config *config)
{
	const char *given = getenv("STATE_DIRECTORY"); /* of a systemd unit; can be a list */

	if (config->state_folder != NULL) {
		return strdup(config->state_folder);
	}
	return given != NULL && given[0] == '/' ? strndup(given, strcspn(given, ":"))
						: strdup("/var/lib/gmblock");
}

static int error_in_use(const struct state_folder *folder, struct error *error)
{
	return error_set(error, -EBUSY,
		"another server uses the state folder %s; give each server its own "
		"with --state-folder",
		quote(folder->path));
}

static void folder_close(struct state_folder *folder)
{
	if (folder->fd >= 0) {
		close(folder->fd);
		folder->fd = -1;
	}
}

/* The folder cannot be used. Returns the error if the server needs the folder. */
static int do_without(struct state_folder *folder, int rc, struct error *error)
{
	if (folder->is_needed) {
		return rc;
	}
	log_warning("leases will not outlast this process: %s", error->text);
	folder_close(folder);
	return 0;
}

/* Returns whether the folder has, or can have, a list of fenced nodes. */
static bool has_fences(const struct state_folder *folder)
{
	struct stat status;

	return fstatat(folder->fd, fence_list_file, &status, AT_SYMLINK_NOFOLLOW) == 0 ||
	       errno != ENOENT;
}

static int error_unusable(const struct state_folder *folder, struct error *error)
{
	return error_set(error, -errno,
		"cannot use the state folder %s: %s; create it for the user of the server, or give "
		"another one with --state-folder",
		quote(folder->path), strerror(errno));
}

static int folder_lock(struct state_folder *folder, struct error *error)
{
	folder->fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder->fd < 0) {
		return error_unusable(folder, error);
	}
	folder->is_locked = flock(folder->fd, LOCK_EX | LOCK_NB) == 0;
	return folder->is_locked ? 0 : error_in_use(folder, error);
}

int state_folder_open(const struct server_config *config, bool is_taking,
	struct state_folder *folder, struct error *error)
{
	bool is_named = config->state_folder != NULL || getenv("STATE_DIRECTORY") != NULL;
	int rc;

	*folder = (struct state_folder){ .path = state_folder_path(config), .fd = -1 };
	atomic_init(&folder->serves, !is_taking);
	folder->is_needed = config->nodes.rule_count > 0 || config->state_folder != NULL;
	if (folder->path == NULL) {
		return error_oom_for(error, "the state folder");
	}
	if (!folder->is_needed && !is_named && config->file_path == NULL) {
		return 0;
	}
	rc = folder_lock(folder, error);
	if (rc == -EBUSY && is_taking) {
		return 0; /* the old process can have the lock, see state_folder_inherit() */
	}
	/* A folder that cannot be opened can contain fences. Only a named folder certainly belongs
	 * to this server. */
	folder->is_needed |= folder->fd >= 0 ? has_fences(folder) : is_named && rc != -ENOENT;
	if (!folder->is_needed && !is_named) {
		folder_close(folder);
		return 0;
	}
	if (rc == 0 && faccessat(folder->fd, ".", W_OK | X_OK, AT_EACCESS) < 0) {
		rc = error_unusable(folder, error);
	}
	return rc < 0 ? do_without(folder, rc, error) : 0;
}

int state_folder_check(const struct server_config *config, struct error *error)
{
	struct state_folder folder = { .path = state_folder_path(config), .fd = -1 };
	bool is_needed = config->nodes.rule_count > 0 || config->state_folder != NULL;
	int rc = 0;

	if (folder.path == NULL) {
		return error_oom_for(error, "the state folder");
	}
	folder.fd = is_needed ? open(folder.path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if (is_needed && folder.fd < 0) {
		rc = error_unusable(&folder, error);
	}
	if (rc == -ENOENT && config->state_folder == NULL) {
		/* the service manager can create it at the start (StateDirectory=) */
		log_warning("%s", error->text);
		rc = 0;
	}
	state_folder_close(&folder);
	return rc;
}

void state_folder_close(struct state_folder *folder)
{
	folder_close(folder);
	free(folder->path);
	folder->path = NULL;
}

int state_folder_inherit(struct state_folder *folder, int fd, struct error *error)
{
	struct stat theirs;
	struct stat ours;
	bool is_same;

	if (fd < 0) {
		return folder->fd < 0 || folder->is_locked
			       ? 0
			       : do_without(folder, error_in_use(folder, error), error);
	}
	is_same = folder->fd >= 0 && fstat(fd, &theirs) == 0 && fstat(folder->fd, &ours) == 0 &&
		  theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
	if (!is_same) {
		close(fd);
		return error_set(error, -EBUSY,
			"the running server has %s state folder, which contains its fenced nodes "
			"and leases; %s",
			folder->fd >= 0 ? "another" : "a",
			folder->fd >= 0 ? "use the same folder, or stop the server and move the "
					  "folder"
					: "name it with --state-folder");
	}
	close(folder->fd);
	folder->fd = fd;
	return 0;
}

void state_folder_take_over(struct state_folder *folder)
{
	/* Relaxed order, see state_folder_serves(). */
	atomic_store_explicit(&folder->serves, true, memory_order_relaxed);
}

bool state_folder_serves(const struct state_folder *folder)
{
	/* Relaxed order: the old process is synchronized with this one by its messages. */
	return atomic_load_explicit(&folder->serves, memory_order_relaxed);
}

/* --- files ------------------------------------------------------------------------------------ */

static int read_all(int fd, char **text_out, size_t *bytes_out)
{
	struct stat status;
	size_t got = 0;
	char *text;

	if (fstat(fd, &status) < 0) {
		return -errno;
	}
	if (!S_ISREG(status.st_mode) || status.st_size > STATE_FILE_BYTES_MAX) {
		return -EPROTO;
	}
	text = malloc((size_t)status.st_size + 1);
	if (text == NULL) {
		return -ENOMEM;
	}
	while (got < (size_t)status.st_size) {
		ssize_t part = read(fd, text + got, (size_t)status.st_size - got);

		if (part <= 0) {
			int rc = part < 0 ? -errno : -EPROTO;

			free(text);
			return rc;
		}
		got += (size_t)part;
	}
	text[got] = '\0';
	*text_out = text;
	*bytes_out = got;
	return 0;
}

int state_folder_read(
	const struct state_folder *folder, const char *name, char **text_out, size_t *bytes_out)
{
	int fd = openat(folder->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int rc = fd < 0 ? -errno : read_all(fd, text_out, bytes_out);

	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

static int write_durably(int fd, const char *text, size_t bytes)
{
	while (bytes > 0) {
		ssize_t part = write(fd, text, bytes);

		if (part < 0 && errno != EINTR) {
			return -errno;
		}
		text += MAX(part, (ssize_t)0);
		bytes -= (size_t)MAX(part, (ssize_t)0);
	}
	return fsync(fd) < 0 ? -errno : 0;
}

static int state_file_write(
	const struct state_folder *folder, const char *name, const char *text, size_t bytes)
{
	char new_name[NAME_MAX];
	int fd;
	int rc;

	snprintf(new_name, sizeof(new_name), "%s.new", name);
	fd = openat(
		folder->fd, new_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	rc = fd < 0 ? -errno : write_durably(fd, text, bytes);
	if (fd >= 0 && close(fd) < 0 && rc == 0) {
		rc = -errno;
	}
	/* The folder is flushed even if the new name is not reached, because an earlier call may
	 * have failed after its rename. */
	if (rc == 0 &&
		(renameat(folder->fd, new_name, folder->fd, name) < 0 || fsync(folder->fd) < 0)) {
		rc = -errno;
	}
	return rc;
}

int state_folder_replace(const struct state_folder *folder, const char *name, const char *text,
	size_t bytes, struct error *error)
{
	int rc = bytes > STATE_FILE_BYTES_MAX ? -EFBIG : 0;

	if (!state_folder_serves(folder)) {
		return error_set(error, -EBUSY, "the old process of an upgrade still serves");
	}
	rc = rc ?: state_file_write(folder, name, text, bytes);
	return rc < 0 ? error_set(error, rc, "cannot write %s/%s: %s", quote(folder->path), name,
				strerror(-rc))
		      : 0;
}
