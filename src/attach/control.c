// SPDX-License-Identifier: Apache-2.0
#include "attach/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "attach/state.h"
#include "base/log.h"

enum { LINE_PATIENCE_MS = 5000 };

/* A socket's address holds 107 bytes only; a longer path is reached through its folder. */
struct place {
	struct sockaddr_un address;
	int folder_fd; /* or -1 */
};

static int place_find(struct place *place, const char *name, struct error *error)
{
	char path[PATH_MAX];
	char folder[PATH_MAX];
	int rc = state_path(path, name, "sock", error);

	place->address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	place->folder_fd = -1;
	if (rc == 0) {
		rc = state_folder(folder, error);
	}
	if (rc != 0) {
		return rc;
	}
	if (strlen(path) < sizeof(place->address.sun_path)) {
		memcpy(place->address.sun_path, path, strlen(path) + 1);
		return 0;
	}
	place->folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (place->folder_fd < 0) {
		rc = -errno;
		return error_set(error, rc, "cannot open %s: %s", folder, strerror(-rc));
	}
	rc = snprintf(place->address.sun_path, sizeof(place->address.sun_path),
		"/proc/self/fd/%d/%s.sock", place->folder_fd, name);
	GMB_ASSERT(rc > 0 && (size_t)rc < sizeof(place->address.sun_path));
	return 0;
}

static void place_leave(struct place *place)
{
	if (place->folder_fd >= 0) {
		close(place->folder_fd);
	}
}

static int stream_socket(struct error *error)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return fd >= 0 ? fd : error_set(error, -errno, "cannot make a socket: %s", strerror(errno));
}

int control_listen(const char *name, struct error *error)
{
	struct place place;
	int rc = place_find(&place, name, error);
	int fd = rc == 0 ? stream_socket(error) : rc;

	if (fd >= 0) {
		/* Left by a daemon that died; a living one would have kept its disk, and with it
		 * the name. */
		unlink(place.address.sun_path);
		if (bind(fd, (struct sockaddr *)&place.address, sizeof(place.address)) != 0 ||
			listen(fd, 16) != 0) {
			rc = -errno;
			close(fd);
			fd = error_set(error, rc, "cannot listen at %s: %s", place.address.sun_path,
				strerror(-rc));
		}
	}
	place_leave(&place);
	return fd;
}

/* Reads up to the end of a line or of the stream: its length without the end, or an errno. */
static int read_line(int fd, char line[CONTROL_LINE_BYTES], int timeout_ms)
{
	size_t used = 0;

	while (used < CONTROL_LINE_BYTES - 1) {
		struct pollfd entry = { .fd = fd, .events = POLLIN };
		int ready = poll(&entry, 1, timeout_ms);
		ssize_t count;

		if (ready == 0) {
			return -ETIMEDOUT;
		}
		/* Not a byte of the line after it. */
		count = ready > 0 ? read(fd, line + used, 1) : -1;
		if (count < 0 && errno == EINTR) {
			continue;
		}
		if (count <= 0) {
			return count < 0 ? -errno : -ECONNRESET;
		}
		used += (size_t)count;
		line[used] = '\0';
		if (strchr(line, '\n') != NULL) {
			*strchr(line, '\n') = '\0';
			return (int)strlen(line);
		}
	}
	return -EMSGSIZE;
}

int control_accept(int listen_fd, char line[CONTROL_LINE_BYTES])
{
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	int rc;

	if (fd < 0) {
		return -errno;
	}
	rc = read_line(fd, line, LINE_PATIENCE_MS);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

static void send_line(int fd, int code, const char *text)
{
	char line[CONTROL_LINE_BYTES];
	int len = snprintf(line, sizeof(line) - 1, "%d %s", code, text);
	size_t bytes = MIN((size_t)len, sizeof(line) - 2);

	line[bytes] = '\n';
	(void)!send(fd, line, bytes + 1, MSG_NOSIGNAL);
}

void control_note(int fd, const char *text)
{
	send_line(fd, 1, text);
}

void control_answer(int fd, int code, const char *text)
{
	send_line(fd, code, text);
}

static int read_answer(int fd, char line[CONTROL_LINE_BYTES], int timeout_ms)
{
	char shown[4 * CONTROL_LINE_BYTES];
	int rc = read_line(fd, line, timeout_ms);

	while (rc >= 0 && strncmp(line, "1 ", 2) == 0) {
		fprintf(stderr, "gmblock: %s\n",
			log_escape_sentence(shown, sizeof(shown), line + 2));
		rc = read_line(fd, line, timeout_ms);
	}
	return rc;
}

/* "-16 the reason" */
static int take_answer(char *line, struct error *error)
{
	char *end;
	long code = strtol(line, &end, 10);

	if (end == line || *end != ' ' || code > 0 || code < -4095) {
		return error_set(error, -EPROTO, "the daemon gave no sensible answer");
	}
	if (code == 0) {
		snprintf(error->text, sizeof(error->text), "%s", end + 1);
		return 0;
	}
	return error_set(error, (int)code, "%s", end + 1);
}

static void wait_for_end(int fd)
{
	char rest[64];
	ssize_t count;

	do {
		count = read(fd, rest, sizeof(rest));
	} while (count > 0 || (count < 0 && errno == EINTR));
}

int control_ask(const char *name, const char *line, bool until_end, struct error *error)
{
	char answer[CONTROL_LINE_BYTES];
	struct place place;
	int rc = place_find(&place, name, error);
	int fd = rc == 0 ? stream_socket(error) : rc;

	if (fd < 0) {
		place_leave(&place);
		return fd;
	}
	rc = connect(fd, (struct sockaddr *)&place.address, sizeof(place.address)) == 0 ? 0
											: -errno;
	place_leave(&place);
	if (rc == 0) {
		int len = snprintf(answer, sizeof(answer), "%s\n", line);

		rc = send(fd, answer, (size_t)len, MSG_NOSIGNAL) == len ? 0 : -EPIPE;
	}
	if (rc == 0) {
		rc = read_answer(fd, answer, until_end ? -1 : LINE_PATIENCE_MS);
	}
	if (rc < 0) {
		close(fd);
		return error_set(error, rc, "cannot ask the daemon of %s: %s", name, strerror(-rc));
	}
	rc = take_answer(answer, error);
	if (rc == 0 && until_end) {
		wait_for_end(fd);
	}
	close(fd);
	return rc;
}
