// SPDX-License-Identifier: Apache-2.0
/*
 * Inside of a pool (tls/layer.h): places for handshakes, workers for their arithmetic, and memory
 * for records, one stock for each ring.
 *
 *   tls_place_take() ─┬─▶ 0: held ───────────────────────────────▶ tls_place_give()
 *                     ├─▶ -EINPROGRESS: waits ─▶ done(0): held ──────▶ │
 *                     │                     └─▶ done(-EAGAIN): refused │
 *                     └─▶ -EBUSY: too many failed from there; again in wait_ns
 *
 * Whoever is next is the one that has waited longest and whose source holds less than its share,
 * those whose first message is complete before the others. A failed handshake costs its source a
 * token; without tokens a source is served as slowly as tokens come back. A holder whose peer says
 * nothing for a while loses its place when others wait.
 *
 * Threading: places belong to a ring's thread, jobs run on workers, the rest is locked. Ownership:
 * places and jobs are their callers' and are held while they wait or run. Errors: at each.
 */
#pragma once

#include <stdatomic.h>

#include "base/list.h"
#include "ring/ring.h"
#include "tls/layer.h"

/* --- places ----------------------------------------------------------------------------------- */

enum {
	/* Failed handshakes that a source may have at once, and how soon it may have another. */
	TLS_FAILURES_BURST = 20,
	TLS_FAILURE_INTERVAL_MS = 500,
	/* A peer that is silent for so long gives way to those who wait: longer than the way to
	 * the other side of the earth and back takes. */
	TLS_SILENCE_MS = 400,
	/* Sources that are remembered. */
	TLS_SOURCES_MAX = 2048,
};

struct tls_source;

enum tls_place_state { TLS_PLACE_NONE, TLS_PLACE_WAITING, TLS_PLACE_HELD };

struct tls_place {
	/* Set by the owner. */
	struct ring *ring;
	const uint8_t *source; /* TLS_SOURCE_BYTES, or NULL: of our own accord, without a share */
	bool is_slow; /* most of its peer's first message is still to come: those of whom all is
		       * there are served first */
	/* 0: the place is held now. -EAGAIN: it is not waited for any more, or the one that is held
	 * is to be given back soon. */
	void (*done)(struct tls_place *place, int result);

	/* Private. */
	struct tls_pool *pool;
	struct tls_source *of;
	enum tls_place_state state;
	struct list_node node; /* of those who wait, or hold */
	struct ring_message message;
	int result;	    /* of the message */
	bool is_posted;	    /* the message is under way */
	bool is_asked_back; /* done(-EAGAIN) was posted to a holder */
	uint64_t silent_ns; /* since when its holder waits for its peer; 0: it does not */
};

/* wait_ns_out: set with -EBUSY. */
GMB_MUST_CHECK int tls_place_take(
	struct tls_pool *pool, struct tls_place *place, uint64_t *wait_ns_out);
/* Waits no more, or gives the place back; failed: the handshake did, at the expense of its source.
 * done() may still be called once when tls_place_is_idle() says false. Neither: no-op. */
void tls_place_give(struct tls_place *place, bool failed);
bool tls_place_is_idle(struct tls_place *place);
/* The holder begins to wait for its peer, or ends to, because it has a whole message: who sends one
 * byte after the other is silent. */
void tls_place_is_silent(struct tls_place *place, bool silent);
/* Asks a stranger for its place back that has been silent for too long, if somebody waits. */
void tls_pool_make_room(struct tls_pool *pool, uint64_t now_ns);

/* --- workers ----------------------------------------------------------------------------------
 * Chosen at link time: threads (tls/workers.c), or worker calls of the simulated ring. */

struct tls_workers;

struct tls_job {
	/* Set by the owner. */
	struct ring *ring;
	bool is_urgent; /* on a thread of normal priority at once: not a stranger's */
	void (*run)(struct tls_job *job);  /* on a worker */
	void (*done)(struct tls_job *job); /* later, on the ring */

	/* Private. */
	struct list_node node;
	struct ring_message message;
	struct ring_op op;
	uint64_t queued_ns;
};

GMB_MUST_CHECK int tls_workers_create(
	uint32_t threads, struct tls_workers **workers_out, struct error *error);
/* No job waits or runs. NULL is a no-op. */
void tls_workers_destroy(struct tls_workers *workers);
/* Returns when no worker touches the ring of a job any more whose done() was called before. */
void tls_workers_settle(struct tls_workers *workers);
/* -EAGAIN: the system has no thread for us, and nothing will be called. */
GMB_MUST_CHECK int tls_workers_submit(struct tls_workers *workers, struct tls_job *job);

struct tls_workers *tls_pool_workers(struct tls_pool *pool);

/* --- memory for records ----------------------------------------------------------------------- */

enum {
	TLS_CONTENT_BYTES_MAX = 16384, /* of a record */
	/* What a record is longer than its content: header, explicit nonce, content type, tag. */
	TLS_SEALED_EXTRA_BYTES = 64,
	TLS_BATCH_RECORDS = 8,
	/* A batch, and records that GnuTLS adds to it: new keys, an alert. */
	TLS_BATCH_BYTES =
		TLS_BATCH_RECORDS * (TLS_CONTENT_BYTES_MAX + TLS_SEALED_EXTRA_BYTES) + 512,
	/* What is left of it when a ring's stock is used up. */
	TLS_SINGLE_BYTES = TLS_CONTENT_BYTES_MAX + TLS_SEALED_EXTRA_BYTES + 512,
	TLS_BATCHES_MAX = 16, /* of a ring */
};

/* Stock of a ring; that ring's thread but for get and put. */
struct tls_stock {
	struct list_node node; /* of its pool */
	struct ring *ring;
	uint32_t uses;
	uint32_t batches_out;
	uint32_t free_count;
	uint8_t *free[TLS_BATCHES_MAX];
	uint8_t scratch[TLS_CONTENT_BYTES_MAX]; /* content that is gathered */
};

/* NULL: out of memory. */
struct tls_stock *tls_stock_get(struct tls_pool *pool, struct ring *ring);
void tls_stock_put(struct tls_pool *pool, struct tls_stock *stock);
/* TLS_BATCH_BYTES, or NULL: used up. */
uint8_t *tls_stock_take(struct tls_stock *stock);
void tls_stock_give(struct tls_stock *stock, uint8_t *batch);
