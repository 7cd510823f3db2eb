// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/trust.h"
#include "server/control.h"

enum {
	COMMAND_BYTES_MAX = 2 << 20, /* the kernel's limit on arguments */
	TEXT_BYTES_MAX = COMMAND_BYTES_MAX + PATH_MAX + 64,
	STAT_BYTES = 1024,
	START_FIELD = 22, /* position of the start time in /proc/PID/stat */
};

static const char magic[] = "gmblock start 1";

/* Reads a small file, and adds a zero. The caller frees *text_out. -EFBIG: the file is larger. */
static int record_read_file(int fd, size_t bytes_max, char **text_out, size_t *bytes_out)
{
	char *text = malloc(bytes_max + 1);
	size_t used = 0;
	ssize_t got = 1;

	while (text != NULL && got > 0 && used < bytes_max) {
		got = read(fd, text + used, bytes_max - used);
		used += got > 0 ? (size_t)got : 0;
	}
	if (text == NULL || got != 0) {
		int rc = text == NULL ? -ENOMEM : got < 0 ? -errno : -EFBIG;

		free(text);
		return rc;
	}
	text[used] = '\0';
	*text_out = text;
	*bytes_out = used;
	return 0;
}

static int read_path(const char *path, size_t bytes_max, char **text_out, size_t *bytes_out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int rc = fd < 0 ? -errno : record_read_file(fd, bytes_max, text_out, bytes_out);

	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

/* Returns the start time of the process in kernel ticks. Together with the ID it identifies the
 * process. */
static int start_ticks(pid_t pid, unsigned long long *ticks_out)
{
	char path[64];
	char *text;
	const char *at;
	size_t bytes;
	int rc;

	snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
	rc = read_path(path, STAT_BYTES, &text, &bytes);
	if (rc < 0) {
		return rc;
	}
	/* The program's name, field 2, can contain any characters, so the last ')' is searched. */
	at = strrchr(text, ')');
	for (int field = 2; at != NULL && field < START_FIELD; field++) {
		at = strchr(at + 1, ' ');
	}
	*ticks_out = at != NULL ? strtoull(at, NULL, 10) : 0;
	free(text);
	return *ticks_out > 0 ? 0 : -EPROTO;
}

static int record_path(pid_t pid, char path[SERVER_RECORD_PATH_BYTES])
{
	char folder[SERVER_RECORD_PATH_BYTES - 32];
	int rc = server_control_folder(0, folder, sizeof(folder));

	if (rc == 0) {
		snprintf(path, SERVER_RECORD_PATH_BYTES, "%s/%ld%s", folder, (long)pid,
			SERVER_RECORD_SUFFIX);
	}
	return rc;
}

/* --- writing --------------------------------------------------------------------------------- */

static int write_record(const char *path, const char *command, size_t command_bytes)
{
	unsigned long long ticks;
	char folder[PATH_MAX];
	FILE *file = NULL;
	int rc = start_ticks(getpid(), &ticks);
	int fd;

	if (rc < 0 || getcwd(folder, sizeof(folder)) == NULL) {
		return rc < 0 ? rc : -errno;
	}
	/* Removes a record that an earlier process with this ID has left. */
	(void)unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	file = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (file == NULL) {
		rc = -errno;
		if (fd >= 0) {
			close(fd);
		}
		return rc;
	}
	fprintf(file, "%s%c%llu%c%s%c", magic, '\0', ticks, '\0', folder, '\0');
	(void)fwrite(command, 1, command_bytes, file);
	rc = ferror(file) != 0 ? -EIO : 0;
	return fclose(file) != 0 ? -errno : rc;
}

void server_record_write(char path[SERVER_RECORD_PATH_BYTES])
{
	char *command = NULL;
	size_t bytes = 0;
	int rc = server_control_make_folder() ?: record_path(getpid(), path);

	if (rc == 0) {
		/* At this point no client has influenced this process, so it still has the caller's
		 * arguments. */
		rc = read_path("/proc/self/cmdline", COMMAND_BYTES_MAX, &command, &bytes);
	}
	rc = rc ?: write_record(path, command, bytes);
	if (rc < 0) {
		log_debug("cannot record the arguments: %s; \"gmblock upgrade\" will need a "
			  "command after --",
			strerror(-rc));
		server_record_remove(path);
	}
	free(command);
}

void server_record_remove(char path[SERVER_RECORD_PATH_BYTES])
{
	if (path[0] != '\0') {
		(void)unlink(path);
		path[0] = '\0';
	}
}

/* --- reading --------------------------------------------------------------------------------- */

/* Splits the record into its strings: `magic`, the start time, the working directory and at least
 * one argument. */
static bool split(struct server_record *record, size_t bytes, unsigned long long *ticks_out)
{
	char *at = record->text;
	const char *end = at + bytes;
	size_t count = 0;

	for (size_t i = 0; i < bytes; i++) {
		count += at[i] == '\0';
	}
	if (bytes == 0 || end[-1] != '\0' || count < 4 || strcmp(at, magic) != 0) {
		return false;
	}
	record->arguments = calloc(count - 2, sizeof(*record->arguments));
	if (record->arguments == NULL) {
		return false;
	}
	at += strlen(at) + 1;
	*ticks_out = strtoull(at, NULL, 10);
	at += strlen(at) + 1;
	record->folder = at;
	for (size_t i = 0; i < count - 3; i++) {
		at += strlen(at) + 1;
		record->arguments[i] = at;
	}
	return true;
}

int server_record_read(pid_t pid, struct server_record *record, struct error *error)
{
	char path[SERVER_RECORD_PATH_BYTES];
	unsigned long long recorded = 0;
	unsigned long long ticks;
	size_t bytes = 0;
	int rc = record_path(pid, path);

	*record = (struct server_record){ 0 };
	if (rc < 0) {
		return error_set(error, -ENOENT, "XDG_RUNTIME_DIR is not set");
	}
	rc = trust_path(path, error);
	if (rc < 0) {
		return rc;
	}
	rc = read_path(path, TEXT_BYTES_MAX, &record->text, &bytes);
	if (rc == 0 && !split(record, bytes, &recorded)) {
		rc = -EPROTO;
	}
	rc = rc ?: start_ticks(pid, &ticks);
	if (rc < 0) {
		error_set(error, rc, "%s: %s", path, strerror(-rc));
	} else if (ticks != recorded) {
		rc = error_set(error, -ESRCH, "%s belongs to an earlier process", path);
	}
	if (rc < 0) {
		server_record_fini(record);
	}
	return rc;
}

void server_record_fini(struct server_record *record)
{
	free(record->text);
	free(record->arguments);
	*record = (struct server_record){ 0 };
}
