// SPDX-License-Identifier: Apache-2.0
/*
 * A hardware queue of a ublk device: one thread with its own connections to the server. The kernel
 * copies the payload of writes into the buffer of the request's tag before it hands it over, and
 * that of reads out of it afterwards; the library sends from and receives into the same buffer.
 *
 *   FETCH ─▶ descriptor[tag] ─▶ gmb_submit(buffer[tag]) ─▶ done ─▶ COMMIT_AND_FETCH ─▶ ...
 *
 * Threading: the functions below are for the thread that starts the device. Ownership: queues are
 * members of the disk. Errors: negative errno with a sentence.
 */
#pragma once

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

#include "attach/attach.h"
#include "attach/remote.h"
#include "attach/ublk_abi.h"

enum {
	UBLK_DEPTH = 64,	       /* requests of a queue */
	UBLK_IO_BYTES_MAX = 512 << 10, /* longest read or write */
	UBLK_QUEUES_MAX = 16,
};

enum ublk_phase {
	UBLK_PHASE_OPENING, /* the thread connects */
	UBLK_PHASE_OPEN,    /* connected; waits for the device, or the order to end */
	UBLK_PHASE_GO,	    /* ordered to serve */
	UBLK_PHASE_SERVING, /* the kernel may send requests */
	UBLK_PHASE_LEAVING, /* the device is stopped: the last flush */
	UBLK_PHASE_CANCEL,  /* ordered to end before it served */
	UBLK_PHASE_ENDED,   /* result and error say how */
};

struct ublk_queue;

/* One request of the kernel. */
struct ublk_slot {
	struct gmb_request request;
	struct ublk_queue *queue;
	bool orphan; /* the kernel has its answer; the library still holds the buffer */
};

struct ublk_queue {
	/* Given by the disk before the thread starts, or with ublk_queue_go(). */
	const struct attach_options *options;
	struct health *health;
	int ended_fd; /* told when the device vanishes */
	uint16_t number;
	uint16_t depth;
	bool encoded;
	int char_fd;
	uint32_t io_bytes;

	/* The thread's. */
	pthread_t thread;
	struct remote remote;
	struct io_uring ring;
	const struct ublksrv_io_desc *descriptors;
	size_t descriptors_bytes;
	char *buffers;
	uint32_t fetching; /* tags that the kernel has or will hand over */
	bool poll_armed;
	struct ublk_slot slots[UBLK_DEPTH];

	/* Between the threads. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum ublk_phase phase;
	_Atomic bool abandon; /* answer everything with an error, and do not wait for the server */
	int result;
	struct error error;
};

/* Starts the thread, which connects. */
GMB_MUST_CHECK int ublk_queue_start(struct ublk_queue *queue, struct error *error);

/* Waits until it has connected. The remote's info can be read then. A queue that could not is
 * ended, and need not be stopped. */
GMB_MUST_CHECK int ublk_queue_wait_open(struct ublk_queue *queue, struct error *error);

/* Lets it serve, and waits until the kernel can send requests. */
GMB_MUST_CHECK int ublk_queue_go(struct ublk_queue *queue, struct error *error);

/* Makes it answer all requests with an error from now on; its last flush is not waited for any
 * more. Also while another thread is in ublk_queue_end(). */
void ublk_queue_abandon(struct ublk_queue *queue);

/* Ends it: it never served, or its device was stopped. What its last flush said is returned.
 * -ETIMEDOUT when it does not end: soon, and the server is away, or abandoned. Its thread goes on
 * then.
 */
int ublk_queue_end(struct ublk_queue *queue, bool soon, struct error *error);
