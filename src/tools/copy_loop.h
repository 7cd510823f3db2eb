// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop of "gmblock copy": the ring for what is local, the library's completion queue for
 * what is remote, the signals that ask to stop, and a tick for the progress bar. The queue's
 * descriptor is polled by the ring, so that one wait covers both; with two remote ends the queue is
 * waited for directly.
 *
 * Threading: the thread that created it. Ownership: the loop owns the ring and the queue; whoever
 * has operations in flight on them waits for their end before destroying the loop.
 * Errors: creation fills *error; a turn cannot fail.
 */
#pragma once

#include "base/error.h"
#include "gmblock/gmblock.h"
#include "ring/ring.h"

struct copy_loop {
	struct ring *ring;
	struct gmb_queue *queue; /* NULL: nothing is remote */
	bool local;		 /* something waits on the ring */
	int signal_fd;		 /* -1 until copy_loop_watch_signals(); belongs to the process */
	int stop_signal;	 /* the signal that asked to stop, 0: none yet */
	struct ring_op queue_op;
	struct ring_op signal_op;
	struct ring_op tick_op;
};

/* What a turn waits at most. */
enum { COPY_TICK_MS = 200 };

/* remote, local: which kinds of ends there are. */
GMB_MUST_CHECK int copy_loop_create(
	struct copy_loop *loop, bool remote, bool local, struct error *error);
void copy_loop_destroy(struct copy_loop *loop);

/* From here on the first SIGINT, SIGTERM or SIGHUP sets stop_signal instead of ending the process;
 * the next one ends it as always. Once in a process. */
GMB_MUST_CHECK int copy_loop_watch_signals(struct copy_loop *loop, struct error *error);

/* Sends and submits, waits for a completion, a signal or the tick, and runs what completed. */
void copy_loop_turn(struct copy_loop *loop);

/* -EINTR with a sentence once a signal has asked to stop. */
GMB_MUST_CHECK int copy_loop_check(const struct copy_loop *loop, struct error *error);

uint64_t copy_loop_now_ns(const struct copy_loop *loop);
