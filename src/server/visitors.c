// SPDX-License-Identifier: Apache-2.0
#include "server/visitors.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"

#define SECOND_NS UINT64_C(1000000000)
/* How long a visitor may say nothing before that is taken for its question. */
#define SILENCE_NS (SECOND_NS / 5)
/* How long it may take nothing of its answer, or leave its question unfinished. */
#define WAIT_NS (10 * SECOND_NS)
/* How long the end of the server waits for that. */
#define FLUSH_NS (2 * SECOND_NS)
/* How long to leave the queue alone when there is no descriptor for who is in it. */
#define SHORTAGE_NS SECOND_NS

enum {
	VISITORS_MAX = 16, /* more wait in the listening socket's queue */
	QUESTION_BYTES = 32 << 10,
	EVENTS_MAX = VISITORS_MAX + 3,
};

enum visitor_state {
	VISITOR_FREE,
	VISITOR_ASKS, /* waits for its question */
	VISITOR_KEPT, /* waits for the server */
	VISITOR_TOLD, /* waits for it to take its answer */
};

struct visitor {
	struct visitors *visitors;
	enum visitor_state state;
	int fd;
	uint64_t deadline_ns; /* UINT64_MAX: none */
	uint32_t question_bytes;
	char *question; /* QUESTION_BYTES, while it asks */
	char *answer;
	size_t answer_bytes;
	size_t answer_sent;
};

struct visitors {
	struct visitors_options options;
	int epoll_fd;
	int timer_fd;
	bool stopped;
	uint64_t resume_ns; /* accept nobody before; UINT64_MAX: no such time */
	uint32_t count;
	struct visitor places[VISITORS_MAX];
};

/* --- what is waited for -------------------------------------------------------------------- */

static int watch(struct visitors *visitors, int operation, int fd, uint32_t events, void *what)
{
	struct epoll_event event = { .events = events, .data.ptr = what };

	return epoll_ctl(visitors->epoll_fd, operation, fd, &event) < 0 ? -errno : 0;
}

/* With all places taken, who comes next waits in the socket's queue. */
static void watch_listener(struct visitors *visitors)
{
	bool room = visitors->count < VISITORS_MAX && visitors->resume_ns == UINT64_MAX &&
		    !visitors->stopped;

	(void)watch(visitors, EPOLL_CTL_MOD, visitors->options.listen_fd, room ? EPOLLIN : 0,
		&visitors->options.listen_fd);
}

static void set_timer(struct visitors *visitors)
{
	struct itimerspec when = { 0 };
	uint64_t first_ns = visitors->resume_ns;

	for (int i = 0; i < VISITORS_MAX; i++) {
		if (visitors->places[i].state != VISITOR_FREE) {
			first_ns = MIN(first_ns, visitors->places[i].deadline_ns);
		}
	}
	if (first_ns != UINT64_MAX) {
		when.it_value.tv_sec = (time_t)(first_ns / SECOND_NS);
		when.it_value.tv_nsec = (long)(first_ns % SECOND_NS);
	}
	(void)timerfd_settime(visitors->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* --- one visitor --------------------------------------------------------------------------- */

static void visitor_close(struct visitor *visitor)
{
	struct visitors *visitors = visitor->visitors;

	close(visitor->fd); /* epoll forgets it */
	free(visitor->question);
	free(visitor->answer);
	*visitor = (struct visitor){ .visitors = visitors, .state = VISITOR_FREE, .fd = -1 };
	visitors->count--;
	watch_listener(visitors);
}

static void visitor_open(struct visitors *visitors, int fd)
{
	struct visitor *visitor = visitors->places;

	while (visitor->state != VISITOR_FREE) {
		visitor++;
		GMB_ASSERT(visitor < visitors->places + VISITORS_MAX);
	}
	visitor->question = malloc(QUESTION_BYTES);
	if (visitor->question == NULL || watch(visitors, EPOLL_CTL_ADD, fd, EPOLLIN, visitor) < 0) {
		free(visitor->question);
		visitor->question = NULL;
		close(fd);
		return;
	}
	visitor->state = VISITOR_ASKS;
	visitor->fd = fd;
	visitor->question_bytes = 0;
	visitor->deadline_ns = clock_now_ns() + SILENCE_NS;
	visitors->count++;
}

static void ask(struct visitor *visitor)
{
	struct visitors *visitors = visitor->visitors;

	visitor->question[visitor->question_bytes] = '\0';
	visitors->options.asked(visitors->options.context, visitor, visitor->question);
	GMB_ASSERT(visitor->state != VISITOR_ASKS);
	free(visitor->question);
	visitor->question = NULL;
}

/* It has sent something, or ended its stream. */
static void hear_question(struct visitor *visitor)
{
	char *to = visitor->question + visitor->question_bytes;
	ssize_t got =
		recv(visitor->fd, to, QUESTION_BYTES - 1 - visitor->question_bytes, MSG_DONTWAIT);
	char *end;

	if (got < 0) {
		if (errno != EAGAIN && errno != EINTR) {
			visitor_close(visitor);
		}
		return;
	}
	end = memchr(to, '\n', (size_t)got);
	visitor->question_bytes += (uint32_t)(end != NULL ? end - to : got);
	if (end != NULL || got == 0) {
		ask(visitor);
	} else if (visitor->question_bytes == QUESTION_BYTES - 1) {
		visitor_close(visitor); /* nobody has so much to ask */
	} else {
		visitor->deadline_ns = clock_now_ns() + WAIT_NS;
	}
}

/* It was to wait: anything it sends has no meaning, only the end of its stream does. */
static void hear_end(struct visitor *visitor)
{
	struct visitors *visitors = visitor->visitors;
	char nothing[4096];
	ssize_t got = recv(visitor->fd, nothing, sizeof(nothing), MSG_DONTWAIT);

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
		visitors->options.left(visitors->options.context, visitor);
		GMB_ASSERT(visitor->state == VISITOR_TOLD);
	}
}

static void send_answer(struct visitor *visitor)
{
	size_t left = visitor->answer_bytes - visitor->answer_sent;
	ssize_t sent = left == 0 ? 0
				 : send(visitor->fd, visitor->answer + visitor->answer_sent, left,
					   MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent < 0) {
		if (errno != EAGAIN && errno != EINTR) {
			visitor_close(visitor);
		}
		return;
	}
	visitor->answer_sent += (size_t)sent;
	visitor->deadline_ns = clock_now_ns() + WAIT_NS;
	if (visitor->answer_sent == visitor->answer_bytes) {
		visitor_close(visitor);
	}
}

void visitor_answer(struct visitor *visitor, char *text)
{
	GMB_ASSERT(visitor->state == VISITOR_ASKS || visitor->state == VISITOR_KEPT);
	visitor->state = VISITOR_TOLD;
	visitor->answer = text;
	visitor->answer_bytes = text != NULL ? strlen(text) : 0;
	visitor->answer_sent = 0;
	visitor->deadline_ns = clock_now_ns() + WAIT_NS;
	/* Sent by the next turn, so that no visitor goes away below its caller. */
	(void)watch(visitor->visitors, EPOLL_CTL_MOD, visitor->fd, EPOLLOUT, visitor);
}

void visitor_keep(struct visitor *visitor, const char *text)
{
	ssize_t sent = send(visitor->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);

	GMB_ASSERT(visitor->state == VISITOR_ASKS);
	GMB_UNUSED(sent); /* a line fits into a new socket, or there is nobody: hear_end() sees */
	visitor->state = VISITOR_KEPT;
	visitor->deadline_ns = UINT64_MAX;
}

/* --- all of them --------------------------------------------------------------------------- */

static void accept_one(struct visitors *visitors)
{
	int fd = accept4(visitors->options.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0) {
		visitor_open(visitors, fd);
	} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
		visitors->resume_ns = clock_now_ns() + SHORTAGE_NS;
	}
	watch_listener(visitors);
}

static void expire(struct visitors *visitors)
{
	uint64_t now = clock_now_ns();
	uint64_t count;
	ssize_t got = read(visitors->timer_fd, &count, sizeof(count));

	GMB_UNUSED(got); /* set anew before it could be read: look again all the same */
	if (visitors->resume_ns <= now) {
		visitors->resume_ns = UINT64_MAX;
		watch_listener(visitors);
	}
	for (int i = 0; i < VISITORS_MAX; i++) {
		struct visitor *visitor = &visitors->places[i];

		if (visitor->state == VISITOR_FREE || visitor->deadline_ns > now) {
			continue;
		}
		if (visitor->state == VISITOR_ASKS && visitor->question_bytes == 0) {
			ask(visitor);
		} else {
			visitor_close(visitor);
		}
	}
}

static void take_event(struct visitors *visitors)
{
	uint64_t count;

	if (read(visitors->options.event_fd, &count, sizeof(count)) == (ssize_t)sizeof(count)) {
		visitors->options.event(visitors->options.context);
	}
}

static void serve_visitor(struct visitor *visitor)
{
	switch (visitor->state) {
	case VISITOR_FREE:
		break; /* it went in this turn */
	case VISITOR_ASKS:
		hear_question(visitor);
		break;
	case VISITOR_KEPT:
		hear_end(visitor);
		break;
	case VISITOR_TOLD:
		send_answer(visitor);
		break;
	}
}

void visitors_serve(struct visitors *visitors)
{
	struct epoll_event events[EVENTS_MAX];
	int count = epoll_wait(visitors->epoll_fd, events, EVENTS_MAX, 0);

	for (int i = 0; i < count; i++) {
		void *what = events[i].data.ptr;

		if (what == &visitors->options.listen_fd) {
			accept_one(visitors);
		} else if (what == &visitors->options.event_fd) {
			take_event(visitors);
		} else if (what == &visitors->timer_fd) {
			expire(visitors);
		} else {
			serve_visitor(what);
		}
	}
	set_timer(visitors);
}

int visitors_fd(const struct visitors *visitors)
{
	return visitors->epoll_fd;
}

void visitors_stop(struct visitors *visitors)
{
	visitors->stopped = true;
	for (int i = 0; i < VISITORS_MAX; i++) {
		enum visitor_state state = visitors->places[i].state;

		if (state != VISITOR_FREE && state != VISITOR_TOLD) {
			visitor_close(&visitors->places[i]);
		}
	}
	watch_listener(visitors);
	visitors_serve(visitors);
}

void visitors_flush(struct visitors *visitors)
{
	uint64_t end_ns = clock_now_ns() + FLUSH_NS;
	struct pollfd fd = { .fd = visitors->epoll_fd, .events = POLLIN };
	uint64_t now;

	while (visitors->count > 0 && (now = clock_now_ns()) < end_ns) {
		(void)poll(&fd, 1, (int)((end_ns - now) / (SECOND_NS / 1000) + 1));
		visitors_serve(visitors);
	}
}

int visitors_create(
	const struct visitors_options *options, struct visitors **visitors_out, struct error *error)
{
	struct visitors *visitors = calloc(1, sizeof(*visitors));
	int rc = 0;

	if (visitors == NULL) {
		return error_set(error, -ENOMEM, "no memory for the control socket's visitors");
	}
	visitors->options = *options;
	for (int i = 0; i < VISITORS_MAX; i++) {
		visitors->places[i] = (struct visitor){ .visitors = visitors, .fd = -1 };
	}
	visitors->resume_ns = UINT64_MAX;
	visitors->epoll_fd = -1;
	visitors->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (visitors->timer_fd < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		visitors->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		rc = visitors->epoll_fd < 0 ? -errno : 0;
	}
	if (rc == 0) {
		rc = watch(
			visitors, EPOLL_CTL_ADD, visitors->timer_fd, EPOLLIN, &visitors->timer_fd);
	}
	if (rc == 0) {
		rc = watch(visitors, EPOLL_CTL_ADD, options->event_fd, EPOLLIN,
			&visitors->options.event_fd);
	}
	if (rc == 0) {
		rc = watch(visitors, EPOLL_CTL_ADD, options->listen_fd, EPOLLIN,
			&visitors->options.listen_fd);
	}
	if (rc < 0) {
		visitors_destroy(visitors);
		return error_set(error, rc, "cannot wait for the control socket's visitors: %s",
			strerror(-rc));
	}
	*visitors_out = visitors;
	return 0;
}

void visitors_destroy(struct visitors *visitors)
{
	if (visitors == NULL) {
		return;
	}
	visitors->stopped = true;
	for (int i = 0; i < VISITORS_MAX; i++) {
		if (visitors->places[i].state != VISITOR_FREE) {
			visitor_close(&visitors->places[i]);
		}
	}
	if (visitors->epoll_fd >= 0) {
		close(visitors->epoll_fd);
	}
	if (visitors->timer_fd >= 0) {
		close(visitors->timer_fd);
	}
	free(visitors);
}
