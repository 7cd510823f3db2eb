// SPDX-License-Identifier: Apache-2.0
#include "server/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

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

int state_file_read(int folder_fd, const char *name, char **text_out, size_t *bytes_out)
{
	int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
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

int state_file_replace(int folder_fd, const char *folder, const char *name, const char *text,
	size_t bytes, struct error *error)
{
	char new_name[NAME_MAX];
	int fd;
	int rc;

	snprintf(new_name, sizeof(new_name), "%s.new", name);
	fd = openat(
		folder_fd, new_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	rc = fd < 0 ? -errno : write_durably(fd, text, bytes);
	if (fd >= 0 && close(fd) < 0 && rc == 0) {
		rc = -errno;
	}
	/* The folder is flushed even if the new name is not reached, because an earlier call may
	 * have failed after its rename. */
	if (rc == 0 &&
		(renameat(folder_fd, new_name, folder_fd, name) < 0 || fsync(folder_fd) < 0)) {
		rc = -errno;
	}
	return rc < 0 ? error_set(error, rc, "cannot write %s/%s: %s", quote(folder), name,
				strerror(-rc))
		      : 0;
}
