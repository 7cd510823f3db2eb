// SPDX-License-Identifier: Apache-2.0
/*
 * The NBD server side, one service per reactor: takes connected sockets and speaks NBD on them
 * until they close, serving a fixed table of exports.
 *
 * What: newstyle negotiation (NOTLS), simple, structured and extended replies. See
 * docs/man/gmblock-serve.1 for what a user sees and session.h for the state machine.
 * Threading: a service and its sessions belong to the ring's thread. The export table and its
 * stores are shared by all services and outlive them; only nbd_export.connections (atomically) and
 * nbd_export.takeover (under its lock) change. Ownership: nbd_service_accept() takes the descriptor
 * on every path. The service borrows the export table until it is destroyed. Errors: a peer's
 * violation ends that session with one rate-limited log line naming the rule.
 */
#pragma once

#include <stdatomic.h>

#include "base/error.h"
#include "engine/takeover.h"
#include "path/overlap.h"
#include "path/stats.h"
#include "ring/ring.h"
#include "store/store.h"

/* One disk as clients see it. Filled before the first service is created. */
struct nbd_export {
	const char *name;	 /* UTF-8, no terminator counted; "" is the default export */
	uint32_t name_bytes;	 /* 0 to 4096 */
	const char *description; /* or NULL */
	struct store *store;
	uint32_t overlap;	      /* of split reads and writes: see struct path_export */
	bool read_only;		      /* asked for, or all the store can do */
	uint32_t connections_max;     /* 0 = no limit of its own */
	_Atomic uint32_t connections; /* sessions in transmission now, over all services */
	/* Changes whenever writes that were answered and not flushed may have been lost: for a disk
	 * with every start of the machine, for memory with every start of the server. 0 = untold.
	 */
	uint64_t epoch;
	bool is_volatile; /* a new epoch has lost what was flushed, too */
	struct takeover takeover;
};

struct nbd_limits {
	uint32_t sessions_max;	 /* of this service, handshakes included */
	uint32_t handshakes_max; /* sessions that have not chosen an export; the oldest goes */
	uint64_t handshake_timeout_ns;
	uint32_t inflight_per_session_max;
	uint32_t inflight_max;	    /* of this service */
	uint32_t payload_bytes_max; /* READ and WRITE; 64 MiB */
	uint64_t memory_bytes_max;  /* payload memory of this service */
	uint64_t stall_timeout_ns;  /* a session that holds memory or requests others wait for,
				     * without network progress for so long, is ended */
	bool may_spin; /* look for requests for a moment before sleeping, where that pays */
};

/* Values that suit one reactor of a small server. */
void nbd_limits_default(struct nbd_limits *limits);

struct nbd_counters {
	uint64_t sessions_accepted;
	uint64_t sessions_refused;
	uint64_t sessions_failed; /* ended by a peer violation or a socket error */
	uint64_t requests;
	uint64_t errors; /* requests answered with an error */
	uint64_t bytes_read;
	uint64_t bytes_written;
	uint32_t sessions;   /* now */
	uint32_t handshakes; /* now */
	uint32_t inflight;   /* now */
};

/* Adds each of from's to into's. */
void nbd_counters_add(struct nbd_counters *into, const struct nbd_counters *from);

struct nbd_service;

struct nbd_service_options {
	struct ring *ring;
	struct nbd_export *exports; /* borrowed */
	uint32_t export_count;
	struct nbd_limits limits;
	/* Told on the ring's thread each time a session is gone (its socket closed); may be NULL.
	 */
	void (*session_closed)(void *context);
	void *context;
};

/* Creates the service's memory, pools and one store queue per export. */
GMB_MUST_CHECK int nbd_service_create(const struct nbd_service_options *options,
	struct nbd_service **service_out, struct error *error);
/* No session may exist any more (after the drained callback). NULL is a no-op. */
void nbd_service_destroy(struct nbd_service *service);

/*
 * Takes a connected stream socket (TCP or Unix) and starts the handshake. peer is a short name for
 * the log ("127.0.0.1:4711"); copied. Sets TCP_NODELAY where it applies. When a limit refuses the
 * connection it is closed and counted.
 */
void nbd_service_accept(struct nbd_service *service, int fd, const char *peer);

/*
 * Soft stop: options get ERR_SHUTDOWN, new requests ESHUTDOWN, what is in flight is finished, then
 * each session closes. drained is called once, from the ring, when none is left. Sessions that have
 * not finished after deadline_ns are ended hard.
 */
void nbd_service_drain(struct nbd_service *service, uint64_t deadline_ns,
	void (*drained)(void *context), void *context);

void nbd_service_counters(const struct nbd_service *service, struct nbd_counters *counters);

/* The statistics of an operation on an export, an entry for each size class; NULL: there was none
 * yet. Valid on the ring's thread until the service is destroyed. */
const struct path_stats *nbd_service_stats(
	const struct nbd_service *service, uint32_t export_index, enum store_op op);

/* How reads (or writes) of an export are cut; the same. */
const struct overlap *nbd_service_overlap(
	const struct nbd_service *service, uint32_t export_index, enum store_op op);

/* Bytes of reads that were sent from where the store had them, without memory of ours; and how many
 * reads of such sizes were not. */
uint64_t nbd_service_page_cache_send_bytes(
	const struct nbd_service *service, uint32_t export_index);
uint64_t nbd_service_page_cache_send_misses(
	const struct nbd_service *service, uint32_t export_index);

/* From now on trace records the requests that begin, until this is called with NULL. On the ring's
 * thread. */
void nbd_service_trace(struct nbd_service *service, struct path_trace *trace);
