// SPDX-License-Identifier: Apache-2.0
#include "client/probe.h"

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

#include "base/log.h"
#include "nbd/inquiry.h"

enum { LABEL_BYTES = 160, RECEIVE_BYTES = 16384 };

struct probe {
	struct inquiry *inquiry;
	int fd;
	uint64_t deadline_ns;
	uint64_t timeout_ns;
	char label[LABEL_BYTES]; /* the server's address as the user wrote it, escaped */
};

/* --- time ---------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static uint64_t left_ns(const struct probe *probe)
{
	uint64_t now = now_ns();

	return now < probe->deadline_ns ? probe->deadline_ns - now : 0;
}

/* Waits for events on the socket: 0, -ETIMEDOUT, or another negative errno. Once the time is up no
 * event counts any more: a server that always has something to say must not hold us. */
static int wait_for(struct probe *probe, short events, uint64_t limit_ns)
{
	uint64_t end_ns = now_ns() + MIN(limit_ns, left_ns(probe));

	for (;;) {
		struct pollfd entry = { .fd = probe->fd, .events = events };
		uint64_t now = now_ns();
		uint64_t wait_ns = now < end_ns ? end_ns - now : 0;
		struct timespec wait = { .tv_sec = (time_t)(wait_ns / 1000000000),
			.tv_nsec = (long)(wait_ns % 1000000000) };
		int count = wait_ns > 0 ? ppoll(&entry, 1, &wait, NULL) : 0;

		if (count > 0) {
			return 0;
		}
		if (count == 0) {
			return -ETIMEDOUT;
		}
		if (errno != EINTR) {
			return -errno;
		}
	}
}

static int timed_out(const struct probe *probe, const char *doing, struct error *error)
{
	return error_set(error, -ETIMEDOUT, "%s: no success within %.3g s while %s", probe->label,
		(double)probe->timeout_ns / 1e9, doing);
}

/* --- connecting ---------------------------------------------------------------------------- */

static void probe_close(struct probe *probe)
{
	if (probe->fd >= 0) {
		close(probe->fd);
		probe->fd = -1;
	}
}

/* Starts a non-blocking connection and waits for it. */
static int connect_address(struct probe *probe, int family, const struct sockaddr *address,
	socklen_t address_bytes, uint64_t limit_ns)
{
	socklen_t len = sizeof(int);
	int one = 1;
	int err;

	probe->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe->fd < 0) {
		return -errno;
	}
	if (family != AF_UNIX) {
		/* Rule P2. A failure costs time, not correctness. */
		(void)setsockopt(probe->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	if (connect(probe->fd, address, address_bytes) == 0) {
		return 0;
	}
	err = -errno;
	if (err == -EINPROGRESS) {
		err = wait_for(probe, POLLOUT, limit_ns);
		if (err == 0 && getsockopt(probe->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) {
			err = errno;
		}
		err = err > 0 ? -err : err;
	}
	if (err != 0) {
		probe_close(probe);
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
	const struct probe *probe, int err, const char *advice, struct error *error)
{
	return error_set(error, err, "%s: cannot connect: %s%s%s", probe->label, strerror(-err),
		advice != NULL ? "; " : "", advice != NULL ? advice : "");
}

static int connect_unix(struct probe *probe, const struct nbd_uri *uri, struct error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	/* A path in the file system ends in a zero byte, an abstract name does not. */
	size_t end_bytes = uri->socket_path[0] != '\0' ? 1 : 0;
	socklen_t address_bytes;
	int err;

	if (uri->socket_path_bytes + end_bytes > sizeof(address.sun_path)) {
		return error_set(error, -ENAMETOOLONG,
			"%s: the socket path has %u bytes; the system allows at most %zu",
			probe->label, uri->socket_path_bytes, sizeof(address.sun_path) - end_bytes);
	}
	memcpy(address.sun_path, uri->socket_path, uri->socket_path_bytes);
	address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				    uri->socket_path_bytes + end_bytes);
	/* -EAGAIN: the listener's queue is full. There is no way to wait for room but to ask
	 * again, and asking a server that does not accept is no use: say so. */
	err = connect_address(
		probe, AF_UNIX, (const struct sockaddr *)&address, address_bytes, UINT64_MAX);
	if (err == -EAGAIN) {
		return error_set(error, err,
			"%s: cannot connect: the server does not accept connections fast enough",
			probe->label);
	}
	return err != 0 ? cannot_connect(probe, err, unix_advice(uri, err), error) : 0;
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

static int lookup_wait(struct probe *probe, struct lookup *lookup)
{
	struct gaicb *list[1] = { &lookup->request };
	const struct gaicb *waited[1] = { &lookup->request };
	int err = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);

	while (err == 0 && gai_error(&lookup->request) == EAI_INPROGRESS) {
		uint64_t wait_ns = left_ns(probe);
		struct timespec wait = { .tv_sec = (time_t)(wait_ns / 1000000000),
			.tv_nsec = (long)(wait_ns % 1000000000) };

		if (wait_ns == 0) {
			break;
		}
		(void)gai_suspend(waited, 1, &wait);
	}
	return err != 0 ? err : gai_error(&lookup->request);
}

static int resolve(struct probe *probe, const struct nbd_uri *uri, struct addrinfo **addresses,
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
	err = lookup_wait(probe, lookup);
	if (err == EAI_INPROGRESS) {
		if (gai_cancel(&lookup->request) == EAI_CANCELED) {
			free(lookup);
		}
		return timed_out(probe, "looking up the host name", error);
	}
	*addresses = lookup->request.ar_result;
	free(lookup);
	if (err != 0) {
		return error_set(error, -EHOSTUNREACH, "%s: cannot find the host: %s", probe->label,
			gai_strerror(err));
	}
	return 0;
}

/* Every address in turn; each gets its share of the time that is left. */
static int connect_tcp(struct probe *probe, const struct nbd_uri *uri, struct error *error)
{
	struct addrinfo *addresses = NULL;
	uint64_t left_count = 0;
	int err;

	if (uri->port == 0) {
		return error_set(error, -EINVAL, "%s: port 0 is for servers only", probe->label);
	}
	err = resolve(probe, uri, &addresses, error);
	if (err != 0) {
		return err;
	}
	for (struct addrinfo *at = addresses; at != NULL; at = at->ai_next) {
		left_count++;
	}
	err = -EHOSTUNREACH;
	for (struct addrinfo *at = addresses; at != NULL; at = at->ai_next, left_count--) {
		err = connect_address(probe, at->ai_family, at->ai_addr, at->ai_addrlen,
			left_ns(probe) / left_count);
		if (err == 0) {
			break;
		}
	}
	freeaddrinfo(addresses);
	if (err == -ETIMEDOUT && left_ns(probe) == 0) {
		return timed_out(probe, "connecting", error);
	}
	return err != 0 ? cannot_connect(probe, err, tcp_advice(err), error) : 0;
}

/* --- talking ------------------------------------------------------------------------------- */

/* Time is up. A server that does not answer our farewell has told everything before. */
static int stalled(struct probe *probe, struct error *error)
{
	char doing[LABEL_BYTES];

	if (inquiry_end_of_stream(probe->inquiry, NULL) == 0) {
		return 0;
	}
	snprintf(doing, sizeof(doing), "waiting for %s", inquiry_awaits(probe->inquiry));
	return timed_out(probe, doing, error);
}

/* Sends what the inquiry has to say. A peer that has closed is found out by reading. */
static int send_all(struct probe *probe, struct error *error)
{
	size_t bytes;
	const uint8_t *output = inquiry_output(probe->inquiry, &bytes);

	while (bytes > 0) {
		ssize_t sent = send(probe->fd, output, bytes, MSG_NOSIGNAL);
		int err = sent < 0 ? -errno : 0;

		if (err == -EPIPE || err == -ECONNRESET) {
			break;
		}
		if (err == -EAGAIN) {
			err = wait_for(probe, POLLOUT, UINT64_MAX);
			if (err == -ETIMEDOUT) {
				return timed_out(probe, "sending to it", error);
			}
		}
		if (err != 0 && err != -EINTR) {
			return error_set(
				error, err, "%s: sending failed: %s", probe->label, strerror(-err));
		}
		if (sent > 0) {
			output += sent;
			bytes -= (size_t)sent;
		}
	}
	inquiry_sent(probe->inquiry);
	return 0;
}

/* Hands received bytes over, answering whenever the inquiry has something to say. */
static int take_input(struct probe *probe, const uint8_t *bytes, size_t len, struct error *error)
{
	size_t taken = 0;

	while (taken < len && !inquiry_is_finished(probe->inquiry)) {
		int count = inquiry_input(probe->inquiry, bytes + taken, len - taken, error);
		int err;

		if (count < 0) {
			error_prefix(error, "%s", probe->label);
			return count;
		}
		taken += (size_t)count;
		err = send_all(probe, error);
		if (err != 0) {
			return err;
		}
	}
	return 0;
}

static int converse(struct probe *probe, struct error *error)
{
	uint8_t bytes[RECEIVE_BYTES];

	while (!inquiry_is_finished(probe->inquiry)) {
		int err = wait_for(probe, POLLIN, UINT64_MAX);
		ssize_t got;

		if (err == -ETIMEDOUT) {
			return stalled(probe, error);
		}
		if (err != 0) {
			return error_set(
				error, err, "%s: waiting failed: %s", probe->label, strerror(-err));
		}
		got = recv(probe->fd, bytes, sizeof(bytes), 0);
		if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
			continue;
		}
		if (got < 0 && errno != ECONNRESET) {
			err = -errno;
			return error_set(error, err, "%s: receiving failed: %s", probe->label,
				strerror(-err));
		}
		if (got > 0) {
			err = take_input(probe, bytes, (size_t)got, error);
		} else {
			err = inquiry_end_of_stream(probe->inquiry, error);
			if (err != 0) {
				error_prefix(error, "%s", probe->label);
			}
		}
		if (err != 0) {
			return err;
		}
	}
	return 0;
}

/* --- the whole ----------------------------------------------------------------------------- */

static void label_set(struct probe *probe, const struct nbd_uri *uri)
{
	char quoted[LABEL_BYTES - 16];

	if (uri->is_unix) {
		log_escape(quoted, sizeof(quoted), uri->socket_path, uri->socket_path_bytes);
		snprintf(probe->label, sizeof(probe->label), "%s", quoted);
	} else {
		log_escape(quoted, sizeof(quoted), uri->host, strlen(uri->host));
		snprintf(probe->label, sizeof(probe->label),
			strchr(uri->host, ':') != NULL ? "[%s]:%u" : "%s:%u", quoted, uri->port);
	}
}

static int probe_run(struct probe *probe, const struct nbd_uri *uri,
	const struct probe_options *options, struct error *error)
{
	struct inquiry_options inquiry_options = {
		.export_name = uri->export_name,
		.list = options->list,
	};
	int err;

	if (uri->tls) {
		return error_set(error, -EPROTONOSUPPORT,
			"%s: the URI asks for TLS, which this version of gmblock does not speak "
			"(rule P132); for a server without TLS write nbd or nbd+unix",
			probe->label);
	}
	err = inquiry_create(&inquiry_options, &probe->inquiry, error);
	if (err != 0) {
		return err;
	}
	err = uri->is_unix ? connect_unix(probe, uri, error) : connect_tcp(probe, uri, error);
	if (err != 0) {
		return err;
	}
	err = converse(probe, error);
	probe_close(probe);
	if (err != 0) {
		return err;
	}
	err = inquiry_outcome(probe->inquiry, error);
	if (err != 0) {
		error_prefix(error, "%s", probe->label);
	}
	return err;
}

int probe_server(const struct nbd_uri *uri, const struct probe_options *options,
	struct probe **probe_out, struct error *error)
{
	struct probe *probe = calloc(1, sizeof(*probe));
	int err;

	*probe_out = NULL;
	if (probe == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	probe->fd = -1;
	probe->timeout_ns = options->timeout_ns;
	probe->deadline_ns = now_ns() + options->timeout_ns;
	label_set(probe, uri);
	err = probe_run(probe, uri, options, error);
	if (err != 0 && (probe->inquiry == NULL || !probe_offers(probe)->listed)) {
		probe_destroy(probe);
		return err;
	}
	*probe_out = probe;
	return err;
}

void probe_destroy(struct probe *probe)
{
	if (probe != NULL) {
		probe_close(probe);
		inquiry_destroy(probe->inquiry);
		free(probe);
	}
}

const struct nbd_offers *probe_offers(const struct probe *probe)
{
	return inquiry_offers(probe->inquiry);
}
