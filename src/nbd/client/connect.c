// SPDX-License-Identifier: Apache-2.0
#include "nbd/client/connect.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rights.h"
#include "base/uri.h"

enum { LOOKUP_STACK_BYTES = 256 << 10 };

static const uint32_t connector_edges[] = {
	[CONNECTOR_IDLE] = BIT(CONNECTOR_BEGIN),
	[CONNECTOR_BEGIN] = BIT(CONNECTOR_LOOKUP) | BIT(CONNECTOR_ATTEMPT) | BIT(CONNECTOR_ENDING),
	[CONNECTOR_LOOKUP] = BIT(CONNECTOR_ATTEMPT) | BIT(CONNECTOR_ENDING),
	[CONNECTOR_ATTEMPT] = BIT(CONNECTOR_ATTEMPT) | BIT(CONNECTOR_ENDING),
	[CONNECTOR_ENDING] = BIT(CONNECTOR_IDLE),
};

static void nbd_connect_set_state(struct connector *connector, enum connector_state state)
{
	GMB_ASSERT((connector_edges[connector->state] & BIT(state)) != 0);
	connector->state = state;
}

/* --- name lookup ------------------------------------------------------------------------------ */

/* Shared by the ring's thread and the thread that resolves the name; the last user frees the
 * struct. */
struct lookup {
	atomic_int users;
	atomic_bool finished; /* stored with release after err and addresses are written */
	/* A pipe that becomes readable when the thread is done. Not an eventfd: a completion that
	 * occurs inside a write to an eventfd does not always signal ring_poll_fd(), see
	 * src/ring/news.h. */
	int done_fd;
	int thread_fd;
	int err;
	struct addrinfo *addresses;
	char port[8];
	char host[];
};

static void lookup_put(struct lookup *lookup)
{
	/* Sequentially consistent, so that all accesses by the other user happen before this thread
	 * frees the lookup. */
	if (lookup != NULL && atomic_fetch_sub(&lookup->users, 1) == 1) {
		if (lookup->addresses != NULL) {
			freeaddrinfo(lookup->addresses);
		}
		close(lookup->done_fd);
		free(lookup);
	}
}

static int nbd_connect_resolve(
	const char *host, const char *port, int flags, struct addrinfo **addresses)
{
	struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV | flags,
	};

	return getaddrinfo(host, port, &hints, addresses);
}

static void *lookup_run(void *argument)
{
	struct lookup *lookup = argument;

	lookup->err = nbd_connect_resolve(lookup->host, lookup->port, 0, &lookup->addresses);
	/* The release store publishes err and addresses. The pipe only wakes the ring. */
	atomic_store_explicit(&lookup->finished, true, memory_order_release);
	(void)!write(lookup->thread_fd, "", 1);
	close(lookup->thread_fd);
	lookup_put(lookup);
	return NULL;
}

/* Starts a detached thread with all signals blocked. Its stack is small, because a program that
 * locks its memory locks the whole stack. */
static int thread_start(struct lookup *lookup)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, LOOKUP_STACK_BYTES);
	err = pthread_create(&thread, &attributes, lookup_run, lookup);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

static int lookup_start(const char *host, const char *port, struct lookup **lookup_out)
{
	size_t host_bytes = strlen(host) + 1;
	struct lookup *lookup = calloc(1, sizeof(*lookup) + host_bytes);
	int pipe_fds[2];
	int err;

	if (lookup == NULL) {
		return -ENOMEM;
	}
	memcpy(lookup->host, host, host_bytes);
	snprintf(lookup->port, sizeof(lookup->port), "%s", port);
	if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
		err = -errno;
		free(lookup);
		return err;
	}
	lookup->done_fd = pipe_fds[0];
	lookup->thread_fd = pipe_fds[1];
	atomic_store(&lookup->users, 2);
	err = thread_start(lookup);
	if (err != 0) {
		close(lookup->thread_fd);
		atomic_store(&lookup->users, 1);
		lookup_put(lookup);
		return err;
	}
	*lookup_out = lookup;
	return 0;
}

/* --- the end ------------------------------------------------------------------------------- */

static void close_attempt(struct connector *connector)
{
	if (connector->fd >= 0) {
		close(connector->fd);
		connector->fd = -1;
	}
}

/* Makes the socket blocking after connect(). On a non-blocking socket the sends of a restricted
 * ring would return -EAGAIN instead of waiting. */
static void make_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	(void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* cannot fail for a socket */
}

static void nbd_connect_ending_step(struct connector *connector)
{
	char label[EXPORT_URI_LABEL_BYTES];

	if (connector->wait_op.in_flight || connector->timer_op.in_flight) {
		return;
	}
	if (connector->result != 0) {
		close_attempt(connector);
		error_prefix(&connector->error, "%s", export_uri_label(label, connector->uri));
	} else {
		make_blocking(connector->fd);
	}
	lookup_put(connector->lookup);
	if (connector->addresses != NULL) {
		freeaddrinfo(connector->addresses);
	}
	nbd_connect_set_state(connector, CONNECTOR_IDLE);
	connector->done(connector, connector->result);
}

/* Starts to end the attempt. Called only by handlers of completions, which call
 * nbd_connect_ending_step() afterwards. */
static void nbd_connect_end(struct connector *connector, int err)
{
	if (connector->state != CONNECTOR_BEGIN) {
		ring_cancel(connector->ring, &connector->wait_op);
	}
	nbd_connect_set_state(connector, CONNECTOR_ENDING);
	connector->result = err;
	ring_cancel(connector->ring, &connector->timer_op);
}

static void end_timed_out(struct connector *connector, const char *doing)
{

	nbd_connect_end(connector,
		error_set(&connector->error, -ETIMEDOUT, "timed out after %.3g s while %s",
			(double)connector->timeout_ns / 1e9, doing));
}

static void end_refused(struct connector *connector, int err)
{
	const char *advice = connector->uri->is_unix
				     ? uri_unix_advice(connector->uri->socket_path, err)
				     : uri_tcp_advice(err);

	nbd_connect_end(connector,
		error_set(&connector->error, err, "cannot connect: %s%s%s", strerror(-err),
			advice != NULL ? "; " : "", advice != NULL ? advice : ""));
}

/* --- attempts ------------------------------------------------------------------------------ */

static void wait_done(struct ring_op *op, int result);
static void nbd_connect_timer_done(struct ring_op *op, int result);

/* Sets the time limit of the current step. A timer in flight is set again when its cancellation
 * completes. */
static void nbd_connect_set_limit(struct connector *connector, uint64_t end_ns)
{
	uint64_t now_ns = ring_now_ns(connector->ring);

	connector->step_end_ns = end_ns;
	if (connector->timer_op.in_flight) {
		ring_cancel(connector->ring, &connector->timer_op);
	} else {
		ring_timer(connector->ring, &connector->timer_op,
			now_ns < end_ns ? end_ns - now_ns : 1, nbd_connect_timer_done);
	}
}

/* Starts to connect to an address. Returns 0 if it is connected, -EINPROGRESS, or an error. */
static int try_address(struct connector *connector, int family, const struct sockaddr *address,
	socklen_t address_bytes)
{
	connector->timed_out = false;
	connector->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connector->fd < 0) {
		return -errno;
	}
	rights_refuse(connector->fd);
	return connect(connector->fd, address, address_bytes) == 0 ? 0 : -errno;
}

/* Tries addresses until one is connected or is in progress. Each gets an equal share of the
 * remaining time. err: result of the previous address. */
static void next_address(struct connector *connector, int err)
{
	while (connector->next != NULL) {
		const struct addrinfo *address = connector->next;
		uint64_t now_ns = ring_now_ns(connector->ring);
		uint64_t count = 0;

		for (const struct addrinfo *at = address; at != NULL; at = at->ai_next) {
			count++;
		}
		connector->next = address->ai_next;
		err = try_address(
			connector, address->ai_family, address->ai_addr, address->ai_addrlen);
		if (err == 0) {
			nbd_connect_end(connector, 0);
			return;
		}
		if (err == -EINPROGRESS && now_ns < connector->end_ns) {
			nbd_connect_set_state(connector, CONNECTOR_ATTEMPT);
			nbd_connect_set_limit(
				connector, now_ns + (connector->end_ns - now_ns) / count);
			ring_poll(connector->ring, &connector->wait_op, connector->fd, POLLOUT,
				wait_done);
			return;
		}
		close_attempt(connector);
		err = err == -EINPROGRESS ? -ETIMEDOUT : err;
	}
	if (err == -ETIMEDOUT && ring_now_ns(connector->ring) >= connector->end_ns) {
		end_timed_out(connector, "connecting");
	} else {
		end_refused(connector, err);
	}
}

/* Called when the socket is ready, or its time is up. */
static void attempt_done(struct connector *connector)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (connector->timed_out) {
		err = ETIMEDOUT;
	} else if (getsockopt(connector->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) {
		err = errno;
	}
	if (err == 0) {
		nbd_connect_end(connector, 0);
	} else {
		close_attempt(connector);
		next_address(connector, -err);
	}
}

static void connect_unix(struct connector *connector)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const struct export_uri *uri = connector->uri;
	/* A path ends with a zero byte, an abstract name does not. */
	size_t end_bytes = uri->socket_path[0] != '\0' ? 1 : 0;
	socklen_t address_bytes;
	int err;

	if (uri->socket_path_bytes + end_bytes > sizeof(address.sun_path)) {
		nbd_connect_end(connector,
			error_set(&connector->error, -ENAMETOOLONG,
				"the socket path has %u bytes, but the system allows at most %zu",
				uri->socket_path_bytes, sizeof(address.sun_path) - end_bytes));
		return;
	}
	memcpy(address.sun_path, uri->socket_path, uri->socket_path_bytes);
	address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				    uri->socket_path_bytes + end_bytes);
	err = try_address(connector, AF_UNIX, (const struct sockaddr *)&address, address_bytes);
	if (err == 0) {
		nbd_connect_end(connector, 0);
	} else {
		end_refused(connector, err);
	}
}

static void resolved(struct connector *connector, int err)
{

	if (err != 0) {
		nbd_connect_end(connector,
			error_set(&connector->error, -EHOSTUNREACH,
				"cannot find the host: %s; check its name", gai_strerror(err)));
		return;
	}
	connector->next = connector->addresses;
	next_address(connector, -EHOSTUNREACH);
}

static void lookup_done(struct connector *connector)
{
	/* Pairs with the release store in lookup_run(): err and addresses are valid if it is
	 * set. */
	bool finished = atomic_load_explicit(&connector->lookup->finished, memory_order_acquire);

	if (connector->timed_out || !finished) {
		end_timed_out(connector, "looking up the host name");
		return;
	}
	connector->addresses = connector->lookup->addresses;
	connector->lookup->addresses = NULL;
	resolved(connector, connector->lookup->err);
}

/* Numeric addresses need no thread. */
static void connect_tcp(struct connector *connector)
{
	const struct export_uri *uri = connector->uri;
	char port[8];
	int err;

	if (uri->port == 0) {
		nbd_connect_end(connector,
			error_set(&connector->error, -EINVAL, "a client cannot connect to port 0"));
		return;
	}
	snprintf(port, sizeof(port), "%u", uri->port);
	if (nbd_connect_resolve(uri->host, port, AI_NUMERICHOST, &connector->addresses) == 0) {
		resolved(connector, 0);
		return;
	}
	connector->addresses = NULL;
	err = lookup_start(uri->host, port, &connector->lookup);
	if (err != 0) {
		nbd_connect_end(
			connector, error_set(&connector->error, err,
					   "cannot look up the host name: %s", strerror(-err)));
		return;
	}
	nbd_connect_set_state(connector, CONNECTOR_LOOKUP);
	nbd_connect_set_limit(connector, connector->end_ns);
	ring_poll(connector->ring, &connector->wait_op, connector->lookup->done_fd, POLLIN,
		wait_done);
}

static void nbd_connect_begin(struct connector *connector)
{
	if (connector->uri->is_unix) {
		connect_unix(connector);
	} else {
		connect_tcp(connector);
	}
}

static void nbd_connect_timer_done(struct ring_op *op, int result)
{
	struct connector *connector = container_of(op, struct connector, timer_op);

	if (connector->state == CONNECTOR_ENDING) {
		nbd_connect_ending_step(connector);
	} else if (ring_now_ns(connector->ring) < connector->step_end_ns) {
		nbd_connect_set_limit(connector, connector->step_end_ns);
	} else {
		connector->timed_out = true;
		ring_cancel(connector->ring, &connector->wait_op);
	}
}

static void wait_done(struct ring_op *op, int result)
{
	struct connector *connector = container_of(op, struct connector, wait_op);

	switch (connector->state) {
	case CONNECTOR_BEGIN:
		nbd_connect_begin(connector);
		break;
	case CONNECTOR_LOOKUP:
		lookup_done(connector);
		break;
	case CONNECTOR_ATTEMPT:
		attempt_done(connector);
		break;
	case CONNECTOR_IDLE:
	case CONNECTOR_ENDING:
		break;
	}
	if (connector->state == CONNECTOR_ENDING) {
		nbd_connect_ending_step(connector);
	}
}

void connector_start(struct connector *connector, struct ring *ring, const struct export_uri *uri,
	uint64_t timeout_ns, void (*done)(struct connector *connector, int err))
{
	GMB_ASSERT(connector->state == CONNECTOR_IDLE);
	*connector = (struct connector){
		.fd = -1,
		.ring = ring,
		.uri = uri,
		.done = done,
		.timeout_ns = timeout_ns,
		.end_ns = ring_now_ns(ring) + timeout_ns,
	};
	nbd_connect_set_state(connector, CONNECTOR_BEGIN);
	ring_defer(ring, &connector->wait_op, 0, wait_done);
}

void connector_cancel(struct connector *connector)
{

	if (connector->state != CONNECTOR_IDLE && connector->state != CONNECTOR_ENDING) {
		nbd_connect_end(connector, error_set(&connector->error, -ECANCELED, "cancelled"));
	}
}
