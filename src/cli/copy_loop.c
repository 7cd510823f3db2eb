// SPDX-License-Identifier: Apache-2.0
#include "cli/copy_loop.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

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

static void signal_read(struct copy_loop *loop)
{
	struct signalfd_siginfo info;

	if (loop->stop_signal != 0 ||
		read(loop->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
		return;
	}
	loop->stop_signal = (int)info.ssi_signo;
	/* Whoever asks again does not want to wait. */
	(void)sigprocmask(SIG_UNBLOCK, &loop->stop_set, NULL);
}

static void signal_done(struct ring_op *op, int result)
{
	struct copy_loop *loop = container_of(op, struct copy_loop, signal_op);

	GMB_UNUSED(result);
	signal_read(loop);
}

static void tick_done(struct ring_op *op, int result)
{
	struct copy_loop *loop = container_of(op, struct copy_loop, tick_op);

	GMB_UNUSED(result);
	loop->ticked = true;
}

static void queue_done(struct ring_op *op, int result)
{
	/* That the turn ends is all that is wanted: the next one begins with the queue. */
	GMB_UNUSED(op);
	GMB_UNUSED(result);
}

int copy_loop_watch_signals(struct copy_loop *loop, struct error *error)
{
	sigemptyset(&loop->stop_set);
	sigaddset(&loop->stop_set, SIGINT);
	sigaddset(&loop->stop_set, SIGTERM);
	sigaddset(&loop->stop_set, SIGHUP);
	for (int number = 1; number < NSIG; number++) {
		struct sigaction action;

		/* nohup: who was started to survive a signal does. */
		if (sigismember(&loop->stop_set, number) == 1 &&
			sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
			sigdelset(&loop->stop_set, number);
		}
	}
	loop->signal_fd = signalfd(-1, &loop->stop_set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (loop->signal_fd < 0 || sigprocmask(SIG_BLOCK, &loop->stop_set, NULL) != 0) {
		return error_set(error, -errno, "cannot watch for signals: %s", strerror(errno));
	}
	return 0;
}

static void arm(struct copy_loop *loop)
{
	if (loop->queue != NULL && !loop->queue_op.in_flight) {
		ring_poll(
			loop->ring, &loop->queue_op, gmb_queue_fd(loop->queue), POLLIN, queue_done);
	}
	if (loop->signal_fd >= 0 && loop->stop_signal == 0 && !loop->signal_op.in_flight) {
		ring_poll(loop->ring, &loop->signal_op, loop->signal_fd, POLLIN, signal_done);
	}
	if (!loop->tick_op.in_flight) {
		ring_timer(loop->ring, &loop->tick_op, TICK_NS, tick_done);
	}
}

/* A system call now and then instead of one a turn. */
static void look_for_signal(struct copy_loop *loop)
{
	uint64_t now = copy_loop_now_ns(loop);

	if (loop->signal_fd >= 0 && now - loop->look_ns >= TICK_NS / 4) {
		loop->look_ns = now;
		signal_read(loop);
	}
}

void copy_loop_turn(struct copy_loop *loop)
{
	int finished = 0;

	if (!loop->local) {
		(void)gmb_queue_wait(loop->queue, COPY_TICK_MS);
		look_for_signal(loop);
		return;
	}
	if (loop->queue != NULL) {
		finished = gmb_queue_wait(loop->queue, 0);
	}
	arm(loop);
	(void)ring_turn(loop->ring, finished <= 0);
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
	if (loop->signal_fd >= 0) {
		close(loop->signal_fd);
	}
	(void)gmb_queue_destroy(loop->queue);
	ring_destroy(loop->ring);
	loop->ring = NULL;
}
