// SPDX-License-Identifier: Apache-2.0
#include "attach/flush.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "attach/process.h"

struct disk_flush {
	pthread_t thread;
	int (*check)(const char *path, struct error *error);
	char path[ATTACH_PATH_BYTES];
	int over_fd;
	atomic_uint holders; /* the thread and the caller; the last one frees the struct */
	struct error error;
	int result;
};

static void flush_put(struct disk_flush *flush)
{
	/* The holder that frees the struct must see all accesses of the other holder as completed.
	 * The default memory order of atomic_fetch_sub() ensures this. */
	if (atomic_fetch_sub(&flush->holders, 1) == 1) {
		close(flush->over_fd);
		free(flush);
	}
}

int attach_flush(const char *path)
{
	int fd;

	/* A service manager or terminal also sends its signals to this process. The daemon waits
	 * for this flush, so they must not end it. */
	(void)signal(SIGTERM, SIG_IGN);
	(void)signal(SIGINT, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	/* Read-only, because udev opens a disk again after a writable descriptor was closed, and
	 * the disk would then be in use. */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) != 0) {
		return errno;
	}
	close(fd);
	return 0;
}

/*
 * Flushes in a separate process, without the daemon's descriptors. fsync() cannot be interrupted,
 * and it waits for the daemon, which serves the disk. If a thread of the daemon called fsync() and
 * the daemon was killed, this thread would wait forever. It would keep the daemon's descriptors
 * open, so the kernel would not detect that the daemon is gone, and would not fail the flush.
 */
static int flush_path(const char *path, struct error *error)
{
	const char *const command[] = { "/proc/self/exe", "attach", ATTACH_FLUSH_OPTION, path,
		NULL };
	int status = process_run(command);

	if (status == 0) {
		return 0;
	}
	if (status == PROCESS_SIGNALLED) {
		status = EINTR;
	}
	return error_set(error, status < 0 || status == EBUSY ? -EIO : -status,
		"%s is detached, but the last flush failed (%s): writes since the previous flush "
		"may be lost",
		path, strerror(abs(status)));
}

static void *flush_run(void *argument)
{
	struct disk_flush *flush = argument;

	if (flush->check != NULL) {
		flush->result = flush->check(flush->path, &flush->error);
	}
	if (flush->result == 0) {
		flush->result = flush_path(flush->path, &flush->error);
	}
	eventfd_write(flush->over_fd, 1);
	flush_put(flush);
	return NULL;
}

int disk_flush_begin(const char *path, int (*check)(const char *path, struct error *error),
	struct disk_flush **flush_out, struct error *error)
{
	struct disk_flush *flush = calloc(1, sizeof(*flush));
	int rc;

	if (flush == NULL) {
		return error_oom(error);
	}
	flush->check = check;
	snprintf(flush->path, sizeof(flush->path), "%s", path);
	atomic_init(&flush->holders, 2);
	flush->over_fd = eventfd(0, EFD_CLOEXEC);
	rc = flush->over_fd >= 0 ? thread_start(&flush->thread, flush_run, flush, error)
				 : error_set(error, -errno, "cannot create an event descriptor");
	if (rc != 0) {
		if (flush->over_fd >= 0) {
			close(flush->over_fd);
		}
		free(flush);
		return rc;
	}
	*flush_out = flush;
	return 0;
}

int disk_flush_fd(const struct disk_flush *flush)
{
	return flush->over_fd;
}

int disk_flush_end(struct disk_flush *flush, struct error *error)
{
	int rc;

	pthread_join(flush->thread, NULL);
	rc = flush->result == 0 ? 0 : error_set(error, flush->result, "%s", flush->error.text);
	flush_put(flush);
	return rc;
}

void disk_flush_leave(struct disk_flush *flush)
{
	if (flush != NULL) {
		pthread_detach(flush->thread);
		flush_put(flush);
	}
}
