// SPDX-License-Identifier: Apache-2.0
#include "base/manager.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"

/* --- messages --------------------------------------------------------------------------------- */

/* Returns the length of the address, or a negative errno. */
static int read_address(const char *text, struct sockaddr_un *address)
{
	size_t len = strlen(text);

	if (text[0] != '/' && text[0] != '@') {
		return -EAFNOSUPPORT;
	}
	if (len < 2 || len >= sizeof(address->sun_path)) {
		return -EINVAL;
	}
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(address->sun_path, text, len);
	if (text[0] == '@') {
		/* An abstract name has no terminator, because all bytes of the address belong to
		 * it. */
		address->sun_path[0] = '\0';
	} else {
		len++;
	}
	return (int)(offsetof(struct sockaddr_un, sun_path) + len);
}

/* The socket that manager_open() has connected, or -1. */
static int kept_fd = -1;

/* Returns a socket connected to the manager, or a negative errno. */
static int manager_dial(const char *where)
{
	struct sockaddr_un address;
	int bytes = read_address(where, &address);
	int fd = bytes < 0 ? bytes : socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0) {
		return bytes < 0 ? bytes : -errno;
	}
	if (connect(fd, (struct sockaddr *)&address, (socklen_t)bytes) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int send_to(int fd, const char *text)
{
	return send(fd, text, strlen(text), MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int manager_send_text(const char *where, const char *text)
{
	int fd;
	int rc;

	if (kept_fd >= 0 && send_to(kept_fd, text) == 0) {
		return 0;
	}
	fd = manager_dial(where); /* reconnect, in case the manager has recreated its socket */
	if (fd < 0) {
		return fd;
	}
	rc = send_to(fd, text);
	if (kept_fd >= 0) {
		close(kept_fd);
		kept_fd = fd;
	} else {
		close(fd);
	}
	return rc;
}

void manager_open(void)
{
	const char *where = getenv("NOTIFY_SOCKET");

	if (where != NULL && kept_fd < 0) {
		kept_fd = manager_dial(where);
	}
}

void manager_tell(const char *format, ...)
{
	const char *where = getenv("NOTIFY_SOCKET");
	char text[MANAGER_TEXT_BYTES];
	va_list args;
	int rc;

	if (where == NULL) {
		return;
	}
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	rc = manager_send_text(where, text);
	if (rc < 0) {
		log_debug("cannot notify the service manager at %s: %s", where, strerror(-rc));
	}
}

/* --- sockets ------------------------------------------------------------------------------- */

/* Parses an environment variable as a decimal number from 1. Returns 0 if it is not set, or
 * -EINVAL. */
static int read_variable(const char *name)
{
	const char *text = getenv(name);
	uint32_t value = 0;

	if (text != NULL &&
		units_parse_count(text, 1, INT_MAX - MANAGER_FD_FIRST, &value, NULL) < 0) {
		return -EINVAL;
	}
	return (int)value;
}

static int manager_take(void)
{
	int pid = read_variable("LISTEN_PID");
	int count;

	if (pid != getpid()) {
		return pid < 0 ? pid : 0;
	}
	count = read_variable("LISTEN_FDS");
	for (int i = 0; i < count; i++) {
		if (fcntl(MANAGER_FD_FIRST + i, F_SETFD, FD_CLOEXEC) < 0) {
			return -errno;
		}
	}
	return count;
}

int manager_take_sockets(void)
{
	int rc = manager_take();

	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_PIDFDID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	return rc;
}
