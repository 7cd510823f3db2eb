// SPDX-License-Identifier: Apache-2.0
#include "server/reactor.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "server/listen.h"

/* The main thread has signals to heed. */
enum { VISIT_SECONDS_MAX = 2 };

struct reactor {
	struct reactor_options options;
	pthread_t thread;
	struct ring *ring;
	struct nbd_service *service;
	_Atomic uint32_t session_count;
	uint64_t closed_count; /* session_closed calls, reactor's thread */
	bool draining;	       /* reactor's thread */

	/* Start: the thread fills code and error, then posts started. */
	sem_t started;
	int code;
	struct error error;

	sem_t stop_posted;
	uint64_t drain_deadline_ns;
	struct ring_message drain_message;
	struct ring_message stop_message;
};

/* A connection on its way to its reactor. */
struct gift {
	struct ring_message message;
	struct reactor *reactor;
	int fd;
	char peer[LISTENER_PEER_BYTES];
};

static void count_gone(struct reactor *reactor)
{
	/* Relaxed: they only steer placement and the limit, nothing is published with them. */
	atomic_fetch_sub_explicit(&reactor->session_count, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(reactor->options.connection_total, 1, memory_order_relaxed);
}

static void session_closed(void *context)
{
	struct reactor *reactor = context;

	reactor->closed_count++;
	count_gone(reactor);
}

static int create_parts(struct reactor *reactor, struct error *error)
{
	const struct ring_options ring_options = { 0 };
	struct nbd_service_options service_options = {
		.exports = reactor->options.exports,
		.export_count = reactor->options.export_count,
		.limits = reactor->options.limits,
		.session_closed = session_closed,
		.context = reactor,
	};
	int rc = ring_create(&ring_options, &reactor->ring, error);

	if (rc < 0) {
		return rc;
	}
	service_options.ring = reactor->ring;
	rc = nbd_service_create(&service_options, &reactor->service, error);
	if (rc < 0) {
		ring_destroy(reactor->ring);
	}
	return rc;
}

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0) {
		GMB_ASSERT(errno == EINTR);
	}
}

static void *reactor_main(void *context)
{
	struct reactor *reactor = context;
	char name[16];

	snprintf(name, sizeof(name), "gmblock/%u", reactor->options.index % 1000);
	pthread_setname_np(pthread_self(), name);
	reactor->code = create_parts(reactor, &reactor->error);
	if (reactor->code < 0) {
		sem_post(&reactor->started);
		return NULL;
	}
	sem_post(&reactor->started);
	ring_run(reactor->ring);
	/* The stop message can arrive while ring_post() still looks at the ring. */
	wait_for(&reactor->stop_posted);
	nbd_service_destroy(reactor->service);
	ring_destroy(reactor->ring);
	return NULL;
}

static void release(struct reactor *reactor)
{
	sem_destroy(&reactor->started);
	sem_destroy(&reactor->stop_posted);
	free(reactor);
}

int reactor_create(
	const struct reactor_options *options, struct reactor **reactor_out, struct error *error)
{
	struct reactor *reactor = calloc(1, sizeof(*reactor));
	int rc;

	if (reactor == NULL) {
		return error_set(error, -ENOMEM, "no memory for a reactor");
	}
	reactor->options = *options;
	sem_init(&reactor->started, 0, 0);
	sem_init(&reactor->stop_posted, 0, 0);
	rc = -pthread_create(&reactor->thread, NULL, reactor_main, reactor);
	if (rc < 0) {
		error_set(error, rc, "cannot start thread %u: %s", options->index, strerror(-rc));
	} else {
		wait_for(&reactor->started);
		rc = reactor->code;
		if (rc < 0) {
			*error = reactor->error;
			pthread_join(reactor->thread, NULL);
		}
	}
	if (rc < 0) {
		release(reactor);
		return rc;
	}
	*reactor_out = reactor;
	return 0;
}

static void deliver_stop(struct ring *ring, struct ring_message *message)
{
	GMB_UNUSED(message);
	ring_stop(ring);
}

void reactor_destroy(struct reactor *reactor)
{
	if (reactor == NULL) {
		return;
	}
	reactor->stop_message.deliver = deliver_stop;
	ring_post(reactor->ring, &reactor->stop_message);
	sem_post(&reactor->stop_posted);
	pthread_join(reactor->thread, NULL);
	release(reactor);
}

struct ring *reactor_ring(struct reactor *reactor)
{
	return reactor->ring;
}

uint32_t reactor_session_count(const struct reactor *reactor)
{
	return atomic_load_explicit(&reactor->session_count, memory_order_relaxed);
}

/* The service counts a refusal and need not call it a session that closed. */
static void accept_gift(struct reactor *reactor, const struct gift *gift)
{
	struct nbd_counters before;
	struct nbd_counters after;
	uint64_t closed_before = reactor->closed_count;

	nbd_service_counters(reactor->service, &before);
	nbd_service_accept(reactor->service, gift->fd, gift->peer);
	nbd_service_counters(reactor->service, &after);
	if (after.sessions_refused != before.sessions_refused &&
		reactor->closed_count == closed_before) {
		count_gone(reactor);
	}
}

static void deliver_gift(struct ring *ring, struct ring_message *message)
{
	struct gift *gift = container_of(message, struct gift, message);
	struct reactor *reactor = gift->reactor;

	GMB_UNUSED(ring);
	if (reactor->draining) {
		close(gift->fd);
		count_gone(reactor);
	} else {
		accept_gift(reactor, gift);
	}
	free(gift);
}

void reactor_give(struct reactor *reactor, int fd, const char *peer)
{
	struct gift *gift = malloc(sizeof(*gift));

	atomic_fetch_add_explicit(&reactor->session_count, 1, memory_order_relaxed);
	if (gift == NULL) {
		log_error("no memory for the connection from %s: closed it", peer);
		close(fd);
		count_gone(reactor);
		return;
	}
	*gift = (struct gift){
		.message.deliver = deliver_gift,
		.reactor = reactor,
		.fd = fd,
	};
	snprintf(gift->peer, sizeof(gift->peer), "%s", peer);
	ring_post(reactor->ring, &gift->message);
}

static void deliver_drain(struct ring *ring, struct ring_message *message)
{
	struct reactor *reactor = container_of(message, struct reactor, drain_message);

	GMB_UNUSED(ring);
	reactor->draining = true;
	nbd_service_drain(reactor->service, reactor->drain_deadline_ns, reactor->options.drained,
		reactor->options.context);
}

void reactor_drain(struct reactor *reactor, uint64_t deadline_ns)
{
	reactor->drain_deadline_ns = deadline_ns;
	reactor->drain_message.deliver = deliver_drain;
	ring_post(reactor->ring, &reactor->drain_message);
}

/* A visit to the reactor's thread. Whoever comes second to `decided` finds it true: a reactor then
 * has nothing more to do than to free the visit, a visitor has to wait for the end of the call. */
struct visit {
	struct ring_message message;
	struct reactor *reactor;
	void (*call)(struct nbd_service *service, void *context);
	void *context;
	_Atomic bool decided;
	sem_t over;
};

static void visit_destroy(struct visit *visit)
{
	sem_destroy(&visit->over);
	free(visit);
}

static void deliver_visit(struct ring *ring, struct ring_message *message)
{
	struct visit *visit = container_of(message, struct visit, message);

	GMB_UNUSED(ring);
	/* Acquire and release: what the visitor prepared is seen, and nothing after it gave up. */
	if (atomic_exchange_explicit(&visit->decided, true, memory_order_acq_rel)) {
		visit_destroy(visit);
		return;
	}
	visit->call(visit->reactor->service, visit->context);
	sem_post(&visit->over);
}

/* False: it did not come in time. */
static bool wait_a_moment(sem_t *semaphore)
{
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += VISIT_SECONDS_MAX;
	while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &end) < 0) {
		if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

int reactor_visit(struct reactor *reactor,
	void (*visit)(struct nbd_service *service, void *context), void *context)
{
	struct visit *stay = calloc(1, sizeof(*stay));

	if (stay == NULL) {
		return -ENOMEM;
	}
	stay->message.deliver = deliver_visit;
	stay->reactor = reactor;
	stay->call = visit;
	stay->context = context;
	sem_init(&stay->over, 0, 0);
	ring_post(reactor->ring, &stay->message);
	if (!wait_a_moment(&stay->over)) {
		if (!atomic_exchange_explicit(&stay->decided, true, memory_order_acq_rel)) {
			return -ETIMEDOUT; /* the reactor frees it */
		}
		wait_for(&stay->over);
	}
	visit_destroy(stay);
	return 0;
}
