// SPDX-License-Identifier: Apache-2.0
/*
 * Private parts of a pool (tls/layer.h): slots for handshakes, workers for their arithmetic, and
 * memory for records, with one stock per ring.
 *
 *   tls_place_take() ─┬─▶ 0: held ───────────────────────────────▶ tls_place_give()
 *                     ├─▶ -EINPROGRESS: waits ─▶ done(0): held ──────▶ │
 *                     │                     └─▶ done(-EAGAIN): rejected│
 *                     ├─▶ -EBUSY: too many failures of its source; retry in wait_ns
 *                     ├─▶ -EAGAIN: too many wait
 *                     └─▶ -ENOMEM: no memory for a record of its source
 *
 * The next slot goes to the longest waiter whose source holds less than its share; waiters whose
 * first message is complete come first. A failed handshake costs its source a token. A source
 * without tokens is served at the rate at which tokens return. If others wait, a holder whose peer
 * is silent for a while loses its slot.
 *
 * Threading: a slot belongs to its ring's thread, jobs run on workers, the rest is protected by
 * locks. Ownership: callers own their slots and jobs, and keep them in memory while they wait or
 * run. Errors: see each.
 */
#pragma once

#include <stdatomic.h>

#include "base/list.h"
#include "ring/ring.h"
#include "tls/layer.h"

/* --- slots ----------------------------------------------------------------------------------- */

enum {
	/* A source has at most TLS_FAILURES_BURST tokens. Each failed handshake costs one token,
	 * and one token returns every TLS_FAILURE_INTERVAL_MS. */
	TLS_FAILURES_BURST = 20,
	TLS_FAILURE_INTERVAL_MS = 500,
	/* Time after which a silent peer loses its slot to waiters. It is longer than a round trip
	 * to the other side of the earth. */
	TLS_SILENCE_MS = 400,
	/* Limit on the sources whose failures are remembered. */
	TLS_SOURCES_MAX = 2048,
};

struct tls_source;

enum tls_place_state { TLS_PLACE_NONE, TLS_PLACE_WAITING, TLS_PLACE_HELD };

struct tls_place {
	/* Members that the owner sets. */
	struct ring *ring;
	/* identifies the peer's user or address, TLS_SOURCE_BYTES bytes; NULL: a handshake that we
	 * started, to which no limit per source applies */
	const uint8_t *source;
	/* Most of the peer's first message has not arrived. Waiters whose first message is
	 * complete are served first. */
	bool is_slow;
	/* 0: the waiter now holds a slot. -EAGAIN for a waiter: it was rejected and no longer
	 * waits. -EAGAIN for a holder: its peer is silent and others wait, so it must give the slot
	 * back soon. */
	void (*done)(struct tls_place *place, int result);

	/* Private. */
	struct tls_pool *pool;
	struct tls_source *of;
	enum tls_place_state state;
	struct list_node node; /* in the list of waiters or holders */
	struct ring_message message;
	int result;	    /* result to pass to done() */
	bool is_posted;	    /* message was posted to the ring, and done() has not been called yet */
	bool is_asked_back; /* done(-EAGAIN) was posted to this holder of a slot */
	uint64_t silent_ns; /* time at which the holder started to wait for its peer; 0: it does not
			       wait */
};

/* Takes a slot, or starts to wait for one. The results are listed at the beginning of this file.
 * *wait_ns_out is set only for -EBUSY. */
GMB_MUST_CHECK int tls_place_take(
	struct tls_pool *pool, struct tls_place *place, uint64_t *wait_ns_out);
/* Stops waiting, or gives the slot back; otherwise a no-op. failed: the handshake failed, which
 * costs its source a token. done() can still be called once while tls_place_is_idle() returns
 * false. */
void tls_place_give(struct tls_place *place, bool failed);
bool tls_place_is_idle(struct tls_place *place);
/* silent: the holder starts to wait for its peer. Not silent: the peer has sent a complete message,
 * or has accepted ours. A peer that sends a message byte by byte stays silent. */
void tls_place_is_silent(struct tls_place *place, bool silent);
/* If there are waiters and no free slot, requests back the slot of the holder that has been silent
 * longest, if that is at least TLS_SILENCE_MS. Slots of our own handshakes are not requested
 * back. */
void tls_pool_make_room(struct tls_pool *pool, uint64_t now_ns);

/* --- workers ----------------------------------------------------------------------------------
 * Chosen at link time: threads (tls/workers.c), or worker calls of the simulated ring. */

struct tls_workers;

struct tls_job {
	/* Members that the owner sets. */
	struct ring *ring;
	/* a handshake that we started as a client: run on a thread of normal priority */
	bool is_urgent;
	void (*run)(struct tls_job *job);  /* called on a worker */
	void (*done)(struct tls_job *job); /* called afterwards on the ring */

	/* Private. */
	struct list_node node;
	struct ring_message message;
	struct ring_op op;
	uint64_t queued_ns;
};

GMB_MUST_CHECK int tls_workers_create(
	uint32_t threads, struct tls_workers **workers_out, struct error *error);
/* Frees the workers. No job may wait or run. NULL is a no-op. */
void tls_workers_destroy(struct tls_workers *workers);
/* Waits until no worker accesses the rings of jobs whose done() was called before this call. */
void tls_workers_synchronize(struct tls_workers *workers);
/* Queues a job. -EAGAIN: no thread could be started, and neither run() nor done() will be called.
 */
GMB_MUST_CHECK int tls_workers_submit(struct tls_workers *workers, struct tls_job *job);

struct tls_workers *tls_pool_workers(struct tls_pool *pool);

/* --- memory for records ----------------------------------------------------------------------- */

enum {
	TLS_CONTENT_BYTES_MAX = 16384, /* limit on the content of a record */
	/* Overhead of a record: header, explicit nonce, content type, tag. */
	TLS_SEALED_EXTRA_BYTES = 64,
	TLS_BATCH_RECORDS = 8,
	/* A batch, and the records that GnuTLS adds to it: new keys, an alert. */
	TLS_BATCH_BYTES =
		TLS_BATCH_RECORDS * (TLS_CONTENT_BYTES_MAX + TLS_SEALED_EXTRA_BYTES) + 512,
	/* Size of the buffer used instead of a batch when all batches of a ring are in use. */
	TLS_SINGLE_BYTES = TLS_CONTENT_BYTES_MAX + TLS_SEALED_EXTRA_BYTES + 512,
	TLS_BATCHES_MAX = 16, /* limit on batches of a ring */
};

/* The batches of one ring, for reuse by all TLS connections on it. tls_stock_get() and
 * tls_stock_put() take the pool's lock; everything else is done on the ring's thread. */
struct tls_stock {
	struct list_node node; /* in the pool's list of stocks */
	struct ring *ring;
	uint32_t uses;
	uint32_t batches_out;
	uint32_t free_count;
	uint8_t *free[TLS_BATCHES_MAX];
	uint8_t scratch[TLS_CONTENT_BYTES_MAX]; /* for the content of a record that is gathered from
						   several pieces */
};

/* Returns the ring's stock, which is created with the first user. NULL: out of memory. */
struct tls_stock *tls_stock_get(struct tls_pool *pool, struct ring *ring);
/* Ends a use that tls_stock_get() began. The end of the last use frees the stock. */
void tls_stock_put(struct tls_pool *pool, struct tls_stock *stock);
/* Returns TLS_BATCH_BYTES bytes; NULL: used up. */
uint8_t *tls_stock_take(struct tls_stock *stock);
void tls_stock_give(struct tls_stock *stock, uint8_t *batch);
