// SPDX-License-Identifier: Apache-2.0
#include "tools/copy_loop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

enum { RING_ENTRIES = 256 };
#define TICK_NS (UINT64_C(1000000) * COPY_TICK_MS)

int copy_loop_create(struct copy_loop *loop, bool remote, bool local, struct error *error)
{
	static const struct ring_options options = {
		.entries = RING_ENTRIES,
		.files_max = 16,
		.buffers_max = 16,
	};
	struct gmb_error reason;
	int err;

	memset(loop, 0, sizeof(*loop));
	loop->signal_fd = -1;
	loop->local = local;
	err = ring_create(&options, &loop->ring, error);
	if (err < 0) {
		return err;
	}
	if (!remote) {
		return 0;
	}
	err = gmb_queue_create(NULL, &loop->queue, &reason);
	if (err < 0) {
		ring_destroy(loop->ring);
		loop->ring = NULL;
		return error_set(error, err, "%s", reason.text);
	}
	return 0;
}

/* What a signal handler may touch has to be here: handlers know nobody, and a signal may come in
 * any of the process's threads. */
static const int stop_signals[] = { SIGINT, SIGTERM, SIGHUP };
static volatile sig_atomic_t caught_signal;
static volatile sig_atomic_t caught_fd;
static _Atomic uint64_t caught_ns;

static void signal_caught(int number)
{
	static const uint64_t one = 1;
	int saved_errno = errno;

	if (caught_signal == 0) {
		caught_ns = clock_now_ns();
		caught_signal = number;
		(void)!write(caught_fd, &one, sizeof(one));
	} else if (clock_now_ns() - caught_ns >= CLOCK_SAME_SIGNAL_NS) {
		/* Whoever asks again does not want to wait. It comes when this handler is left. */
		(void)signal(number, SIG_DFL);
		(void)raise(number);
	}
	errno = saved_errno;
}

static void signal_done(struct ring_op *op, int result)
{
	struct copy_loop *loop = container_of(op, struct copy_loop, signal_op);

	GMB_UNUSED(result);
	loop->stop_signal = caught_signal;
}

/* That the turn ends is all that is wanted: the tick is for the caller, and the next turn begins
 * with the queue. */
static void turn_ends(struct ring_op *op, int result)
{
	GMB_UNUSED(op);
	GMB_UNUSED(result);
}

int copy_loop_watch_signals(struct copy_loop *loop, struct error *error)
{
	struct sigaction catch = { .sa_handler = signal_caught };

	GMB_ASSERT(loop->signal_fd < 0);
	loop->signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->signal_fd < 0) {
		return error_set(error, -errno, "cannot watch for signals: %s", strerror(errno));
	}
	caught_fd = loop->signal_fd;
	for (size_t i = 0; i < ARRAY_COUNT(stop_signals); i++) {
		struct sigaction before;

		/* nohup: who was started to survive a signal does. */
		if (sigaction(stop_signals[i], NULL, &before) == 0 &&
			before.sa_handler != SIG_IGN) {
			(void)sigaction(stop_signals[i], &catch, NULL);
		}
	}
	return 0;
}

static void arm(struct copy_loop *loop)
{
	if (loop->queue != NULL && !loop->queue_op.in_flight) {
		ring_poll(
			loop->ring, &loop->queue_op, gmb_queue_fd(loop->queue), POLLIN, turn_ends);
	}
	if (loop->signal_fd >= 0 && loop->stop_signal == 0 && !loop->signal_op.in_flight) {
		ring_poll(loop->ring, &loop->signal_op, loop->signal_fd, POLLIN, signal_done);
	}
	if (!loop->tick_op.in_flight) {
		ring_timer(loop->ring, &loop->tick_op, TICK_NS, turn_ends);
	}
}

void copy_loop_turn(struct copy_loop *loop)
{
	int finished = 0;

	if (!loop->local) {
		(void)gmb_queue_wait(loop->queue, COPY_TICK_MS);
		loop->stop_signal = caught_signal;
		return;
	}
	if (loop->queue != NULL) {
		finished = gmb_queue_wait(loop->queue, 0);
	}
	arm(loop);
	(void)ring_turn(loop->ring, finished <= 0);
}

int copy_loop_check(const struct copy_loop *loop, struct error *error)
{
	return loop->stop_signal == 0 ? 0
				      : error_set(error, -EINTR, "stopped by SIG%s",
						sigabbrev_np(loop->stop_signal));
}

uint64_t copy_loop_now_ns(const struct copy_loop *loop)
{
	return ring_now_ns(loop->ring);
}

void copy_loop_destroy(struct copy_loop *loop)
{
	if (loop->ring == NULL) {
		return;
	}
	ring_cancel(loop->ring, &loop->queue_op);
	ring_cancel(loop->ring, &loop->signal_op);
	ring_cancel(loop->ring, &loop->tick_op);
	while (loop->queue_op.in_flight || loop->signal_op.in_flight || loop->tick_op.in_flight) {
		(void)ring_turn(loop->ring, true);
	}
	(void)gmb_queue_destroy(loop->queue);
	ring_destroy(loop->ring);
	loop->ring = NULL;
}
