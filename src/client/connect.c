// SPDX-License-Identifier: Apache-2.0
#include "client/connect.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/keep_alive.h"
#include "base/log.h"

/* How often a lookup of a name looks whether it should stop. */
#define LOOKUP_SLICE_NS UINT64_C(100000000)

/* One connection being made. */
struct attempt {
	const struct wait_limit *limit;
	int fd;
	char label[CONNECT_LABEL_BYTES];
};

/* --- time ---------------------------------------------------------------------------------- */

struct wait_limit wait_limit_start(uint64_t timeout_ns, int abort_fd)
{
	return (struct wait_limit){
		.timeout_ns = timeout_ns,
		.deadline_ns = clock_now_ns() + timeout_ns,
		.abort_fd = abort_fd,
	};
}

uint64_t wait_limit_left_ns(const struct wait_limit *limit)
{
	uint64_t now = clock_now_ns();

	return now < limit->deadline_ns ? limit->deadline_ns - now : 0;
}

int wait_for_fd(const struct wait_limit *limit, int fd, short events, uint64_t limit_ns)
{
	uint64_t end_ns = clock_now_ns() + MIN(limit_ns, wait_limit_left_ns(limit));

	for (;;) {
		struct pollfd entries[2] = {
			{ .fd = fd, .events = events },
			{ .fd = limit->abort_fd, .events = POLLIN },
		};
		uint64_t now = clock_now_ns();
		uint64_t wait_ns = now < end_ns ? end_ns - now : 0;
		struct timespec wait = { .tv_sec = (time_t)(wait_ns / 1000000000),
			.tv_nsec = (long)(wait_ns % 1000000000) };
		int count = wait_ns > 0 ? ppoll(entries, 2, &wait, NULL) : 0;

		if (count > 0) {
			return entries[1].revents != 0 ? -ECANCELED : 0;
		}
		if (count == 0) {
			return -ETIMEDOUT;
		}
		if (errno != EINTR) {
			return -errno;
		}
	}
}

int connect_timed_out(
	const struct wait_limit *limit, const char *label, const char *doing, struct error *error)
{
	return error_set(error, -ETIMEDOUT, "%s: no success within %.3g s while %s", label,
		(double)limit->timeout_ns / 1e9, doing);
}

/* --- talking ------------------------------------------------------------------------------- */

int connect_send(const struct wait_limit *limit, const char *label, int fd, const void *bytes,
	size_t len, struct error *error)
{
	const uint8_t *at = bytes;

	while (len > 0) {
		ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
		int err = sent < 0 ? -errno : 0;

		if (err == -EPIPE || err == -ECONNRESET) {
			break;
		}
		if (err == -EAGAIN) {
			err = wait_for_fd(limit, fd, POLLOUT, UINT64_MAX);
			if (err == -ETIMEDOUT || err == -ECANCELED) {
				return connect_timed_out(limit, label, "sending to it", error);
			}
		}
		if (err != 0 && err != -EINTR) {
			return error_set(
				error, err, "%s: sending failed: %s", label, strerror(-err));
		}
		if (sent > 0) {
			at += sent;
			len -= (size_t)sent;
		}
	}
	return 0;
}

ssize_t connect_receive(const struct wait_limit *limit, const char *label, int fd, void *bytes,
	size_t len, const char *awaited, struct error *error)
{
	char doing[CONNECT_LABEL_BYTES];

	for (;;) {
		int err = wait_for_fd(limit, fd, POLLIN, UINT64_MAX);
		ssize_t got;

		if (err == -ETIMEDOUT || err == -ECANCELED) {
			snprintf(doing, sizeof(doing), "waiting for %s", awaited);
			return connect_timed_out(limit, label, doing, error);
		}
		if (err != 0) {
			return error_set(
				error, err, "%s: waiting failed: %s", label, strerror(-err));
		}
		got = recv(fd, bytes, len, 0);
		err = got < 0 ? -errno : 0;
		if (err == 0 || err == -ECONNRESET) {
			return MAX(got, (ssize_t)0);
		}
		if (err != -EINTR && err != -EAGAIN) {
			return error_set(
				error, err, "%s: receiving failed: %s", label, strerror(-err));
		}
	}
}

/* --- connecting ---------------------------------------------------------------------------- */

static void attempt_close(struct attempt *attempt)
{
	if (attempt->fd >= 0) {
		close(attempt->fd);
		attempt->fd = -1;
	}
}

/* Starts a non-blocking connection and waits for it. */
static int connect_address(struct attempt *attempt, int family, const struct sockaddr *address,
	socklen_t address_bytes, uint64_t limit_ns)
{
	socklen_t len = sizeof(int);
	int one = 1;
	int err;

	attempt->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (attempt->fd < 0) {
		return -errno;
	}
	if (family != AF_UNIX) {
		/* Rule P2. A failure costs time, not correctness. */
		(void)setsockopt(attempt->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		keep_alive(attempt->fd, 30, 10, 3); /* within a minute */
	}
	if (connect(attempt->fd, address, address_bytes) == 0) {
		return 0;
	}
	err = -errno;
	if (err == -EINPROGRESS) {
		err = wait_for_fd(attempt->limit, attempt->fd, POLLOUT, limit_ns);
		if (err == 0 && getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) {
			err = errno;
		}
		err = err > 0 ? -err : err;
	}
	if (err != 0) {
		attempt_close(attempt);
	}
	return err;
}

/* What to look at when connecting to a path gave err; NULL when the error says it all. */
static const char *unix_advice(const struct nbd_uri *uri, int err)
{
	bool is_path = uri->socket_path[0] != '\0';
	struct stat status;

	switch (-err) {
	case ENOENT:
		return "is the server running, and is this the path of its socket?";
	case ECONNREFUSED:
		if (is_path && stat(uri->socket_path, &status) == 0 && !S_ISSOCK(status.st_mode)) {
			return "this is not a socket; give the path of the one that the server "
			       "listens on";
		}
		return is_path ? "is a server listening there? The socket file may be left over "
				 "from one that has ended"
			       : "is a server listening there?";
	case EACCES:
	case EPERM:
		return "connecting needs write permission for the socket file and access to its "
		       "folder";
	case EPROTOTYPE:
		return "this socket is not for connections; give the path of the one that the "
		       "server listens on";
	default:
		return NULL;
	}
}

static const char *tcp_advice(int err)
{
	switch (-err) {
	case ECONNREFUSED:
		return "is a server listening there, at this port and for this address?";
	case EHOSTUNREACH:
	case ENETUNREACH:
		return "is the address right, and the host up and in reach?";
	case ETIMEDOUT:
		return "is the host up, and does a firewall let the port through?";
	default:
		return NULL;
	}
}

static int cannot_connect(
	const struct attempt *attempt, int err, const char *advice, struct error *error)
{
	return error_set(error, err, "%s: cannot connect: %s%s%s", attempt->label, strerror(-err),
		advice != NULL ? "; " : "", advice != NULL ? advice : "");
}

static int connect_unix(struct attempt *attempt, const struct nbd_uri *uri, struct error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	/* A path in the file system ends in a zero byte, an abstract name does not. */
	size_t end_bytes = uri->socket_path[0] != '\0' ? 1 : 0;
	socklen_t address_bytes;
	int err;

	if (uri->socket_path_bytes + end_bytes > sizeof(address.sun_path)) {
		return error_set(error, -ENAMETOOLONG,
			"%s: the socket path has %u bytes; the system allows at most %zu",
			attempt->label, uri->socket_path_bytes,
			sizeof(address.sun_path) - end_bytes);
	}
	memcpy(address.sun_path, uri->socket_path, uri->socket_path_bytes);
	address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				    uri->socket_path_bytes + end_bytes);
	/* -EAGAIN: the listener's queue is full. There is no way to wait for room but to ask
	 * again, and asking a server that does not accept is no use: say so. */
	err = connect_address(
		attempt, AF_UNIX, (const struct sockaddr *)&address, address_bytes, UINT64_MAX);
	if (err == -EAGAIN) {
		return error_set(error, err,
			"%s: cannot connect: the server does not accept connections fast enough",
			attempt->label);
	}
	return err != 0 ? cannot_connect(attempt, err, unix_advice(uri, err), error) : 0;
}

/*
 * getaddrinfo() has no time limit, so it runs in glibc's helper thread. When it cannot be cancelled
 * in time its request is left behind on purpose: the thread still writes to it.
 */
struct lookup {
	struct gaicb request;
	struct addrinfo hints;
	char port[8];
	char host[];
};

static int lookup_wait(struct attempt *attempt, struct lookup *lookup)
{
	struct gaicb *list[1] = { &lookup->request };
	const struct gaicb *waited[1] = { &lookup->request };
	int err = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);

	while (err == 0 && gai_error(&lookup->request) == EAI_INPROGRESS) {
		/* In slices, so that an abort is noticed. */
		uint64_t wait_ns = MIN(wait_limit_left_ns(attempt->limit), LOOKUP_SLICE_NS);
		struct timespec wait = { .tv_sec = (time_t)(wait_ns / 1000000000),
			.tv_nsec = (long)(wait_ns % 1000000000) };
		struct pollfd aborted = { .fd = attempt->limit->abort_fd, .events = POLLIN };

		if (wait_ns == 0 || poll(&aborted, 1, 0) > 0) {
			break;
		}
		(void)gai_suspend(waited, 1, &wait);
	}
	return err != 0 ? err : gai_error(&lookup->request);
}

static int resolve(struct attempt *attempt, const struct nbd_uri *uri, struct addrinfo **addresses,
	struct error *error)
{
	size_t host_bytes = strlen(uri->host) + 1;
	struct lookup *lookup = calloc(1, sizeof(*lookup) + host_bytes);
	int err;

	if (lookup == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	memcpy(lookup->host, uri->host, host_bytes);
	snprintf(lookup->port, sizeof(lookup->port), "%u", uri->port);
	lookup->hints.ai_socktype = SOCK_STREAM;
	lookup->hints.ai_flags = AI_NUMERICSERV;
	lookup->request.ar_name = lookup->host;
	lookup->request.ar_service = lookup->port;
	lookup->request.ar_request = &lookup->hints;
	err = lookup_wait(attempt, lookup);
	if (err == EAI_INPROGRESS) {
		if (gai_cancel(&lookup->request) == EAI_CANCELED) {
			free(lookup);
		}
		return connect_timed_out(
			attempt->limit, attempt->label, "looking up the host name", error);
	}
	*addresses = lookup->request.ar_result;
	free(lookup);
	if (err != 0) {
		return error_set(error, -EHOSTUNREACH, "%s: cannot find the host: %s",
			attempt->label, gai_strerror(err));
	}
	return 0;
}

/* Every address in turn; each gets its share of the time that is left. */
static int connect_tcp(struct attempt *attempt, const struct nbd_uri *uri, struct error *error)
{
	struct addrinfo *addresses = NULL;
	uint64_t left_count = 0;
	int err;

	if (uri->port == 0) {
		return error_set(error, -EINVAL, "%s: port 0 is for servers only", attempt->label);
	}
	err = resolve(attempt, uri, &addresses, error);
	if (err != 0) {
		return err;
	}
	for (struct addrinfo *at = addresses; at != NULL; at = at->ai_next) {
		left_count++;
	}
	err = -EHOSTUNREACH;
	for (struct addrinfo *at = addresses; at != NULL; at = at->ai_next, left_count--) {
		err = connect_address(attempt, at->ai_family, at->ai_addr, at->ai_addrlen,
			wait_limit_left_ns(attempt->limit) / left_count);
		if (err == 0) {
			break;
		}
	}
	freeaddrinfo(addresses);
	if (err == -ETIMEDOUT && wait_limit_left_ns(attempt->limit) == 0) {
		return connect_timed_out(attempt->limit, attempt->label, "connecting", error);
	}
	return err != 0 ? cannot_connect(attempt, err, tcp_advice(err), error) : 0;
}

const char *connect_label(char out[CONNECT_LABEL_BYTES], const struct nbd_uri *uri)
{
	char quoted[CONNECT_LABEL_BYTES - 16];

	if (uri->is_unix) {
		log_escape(quoted, sizeof(quoted), uri->socket_path, uri->socket_path_bytes);
		snprintf(out, CONNECT_LABEL_BYTES, "%s", quoted);
	} else {
		log_escape(quoted, sizeof(quoted), uri->host, strlen(uri->host));
		snprintf(out, CONNECT_LABEL_BYTES,
			strchr(uri->host, ':') != NULL ? "[%s]:%u" : "%s:%u", quoted, uri->port);
	}
	return out;
}

int connect_uri(
	const struct nbd_uri *uri, const struct wait_limit *limit, int *fd_out, struct error *error)
{
	struct attempt attempt = { .limit = limit, .fd = -1 };
	int err;

	connect_label(attempt.label, uri);
	if (uri->tls) {
		return error_set(error, -EPROTONOSUPPORT,
			"%s: the URI asks for TLS, which this version of gmblock does not speak "
			"(rule P132); for a server without TLS write nbd or nbd+unix",
			attempt.label);
	}
	err = uri->is_unix ? connect_unix(&attempt, uri, error) : connect_tcp(&attempt, uri, error);
	if (err != 0) {
		attempt_close(&attempt);
		return err;
	}
	*fd_out = attempt.fd;
	return 0;
}
