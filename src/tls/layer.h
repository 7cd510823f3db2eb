// SPDX-License-Identifier: Apache-2.0
/*
 * TLS on a byte stream: a layer for stream_upgrade().
 *
 *   tls_layer_create() ─▶ stream_upgrade(stream, &tls_stream_ops, layer, upgraded)
 *        handshake on the ring, its arithmetic on the workers of a pool
 *   upgraded(0): the stream carries bytes; tls_layer_identity() is the peer
 *   upgraded(-errno): tls_layer_error() is the reason; the stream can only be shut down and closed
 *
 *   server: HEADER ─▶ BODY ─▶ PLACE ─▶ WORKER; a long hello: HEADER ─▶ PLACE ─▶ BODY ─▶ WORKER
 *   client: PLACE ─▶ WORKER
 *   both:   WORKER ─▶ [SENDING] ─▶ HEADER ─▶ [BODY] ─▶ WORKER ... ─▶ OPEN
 *   after an error: [REFUSING] ─▶ ENDED
 *
 * Before the layer is open, it receives only the current record, so early data stays in
 * the socket. The caller must reject bytes that it received before the upgrade (CVE-2021-3716): it
 * upgrades only if none are left. A layer never falls back to plain bytes.
 *
 * Threading: the ring's thread; a worker accesses a layer only while the layer waits for it.
 * Ownership: the stream owns its layer from stream_upgrade() on; the layer holds a reference to the
 * context. Errors: -EPROTO: the peer violated TLS; -EACCES: we rejected the peer; -EKEYREJECTED:
 * the peer rejected us; -EAGAIN: no free slot for a handshake, or the peer was silent while other
 * handshakes waited; -ECANCELED: the stream was shut down; -ENOMEM; and the errors of the socket
 * and of starting a worker. A record that cannot be authenticated is -EBADMSG and ends both
 * directions.
 */
#pragma once

#include "stream/stream.h"
#include "tls/context.h"

/* --- workers ----------------------------------------------------------------------------------
 * A handshake takes 0.1 to 10 ms of CPU time, and anyone can request one. So handshakes run on a
 * few threads of low priority, their number is limited, and no source gets more than its share. */

enum {
	TLS_HANDSHAKES_MAX = 64,	   /* limit on handshakes in progress */
	TLS_HANDSHAKES_PER_SOURCE_MAX = 8, /* limit on handshakes of one source in progress */
	TLS_WAITING_MAX = 1024,		   /* limit on handshakes that wait for a slot */
	TLS_SOURCE_BYTES = 17,
};

struct tls_pool_options {
	uint32_t threads;    /* 0: one per two processors */
	uint32_t handshakes; /* 0: TLS_HANDSHAKES_MAX */
};

/* Creates a pool. One pool serves all rings of a process. Its threads start with the first
 * handshake. Any thread. */
GMB_MUST_CHECK int tls_pool_create(
	const struct tls_pool_options *options, struct tls_pool **pool_out, struct error *error);
/* Frees a pool. No layer may use it any more. Called before the rings of its layers are destroyed,
 * or after tls_pool_synchronize(). NULL is a no-op. */
void tls_pool_destroy(struct tls_pool *pool);
/* For destroying a ring while the pool stays. The ring's layers are gone, but a worker that posted
 * the end of its job might still access the ring until this returns. Does not wait for handshakes.
 * Any thread. */
void tls_pool_synchronize(struct tls_pool *pool);

/* --- layers ----------------------------------------------------------------------------------- */

struct tls_layer;

struct tls_layer_options {
	struct tls_context *context; /* a reference is taken */
	struct tls_pool *pool;	     /* borrowed */
	/* Client that verifies: the name or address that must be in the certificate; copied. */
	const char *server_name;
	/* Server: the peer's user or address (struct peer_identity). Peers with the same value
	 * share a limit on handshake slots. All zeroes: unknown; all such peers share a limit. */
	uint8_t source[TLS_SOURCE_BYTES];
};

extern const struct stream_ops tls_stream_ops;

/* Creates a layer, or fails with -ENOMEM. Before its upgrade, a layer is freed with
 * tls_layer_destroy(), later by its stream. */
GMB_MUST_CHECK int tls_layer_create(
	const struct tls_layer_options *options, struct tls_layer **layer_out);
void tls_layer_destroy(struct tls_layer *layer);

/* --- in another process ----------------------------------------------------------------------- */

enum { TLS_HANDOVER_BYTES_MAX = 12 << 10 };

/* For an open layer: returns whether another process can continue with the socket: the kernel must
 * process its records, and the encoded identity must not be too long. The answer does not change.
 */
bool tls_layer_can_hand_over(const struct stream *stream);
/*
 * Writes the state that the other process needs in addition to a copy of the socket
 * (docs/protocol/upgrade.md), at most TLS_HANDOVER_BYTES_MAX, and returns its size. The state is
 * secret. Requires tls_layer_can_hand_over() and an idle stream. From now on, only one of the two
 * processes can use the socket.
 */
GMB_MUST_CHECK uint32_t tls_layer_hand_over(const struct stream *stream, uint8_t *bytes);
/*
 * Called in the process that takes over the connection: puts a layer in the state that
 * tls_layer_hand_over() has written on a plain stream without operations in flight. The layer is
 * open. The state is parsed as hostile input. On failure the stream stays plain. -EPROTO: invalid
 * state; -EACCES: the current credentials reject the peer; -EOPNOTSUPP: the kernel does not process
 * the socket's records, or options->context does not permit this; -ENOMEM.
 */
GMB_MUST_CHECK int tls_layer_adopt(const struct tls_layer_options *options, struct stream *stream,
	const uint8_t *bytes, uint32_t count, struct error *error);

/* For an open layer: returns the identity of the peer, valid as long as the stream; take a
 * reference to keep it. Never NULL. */
struct identity *tls_layer_identity(const struct stream *stream);
/* After upgraded(-errno), or after a failed receive or send: returns the reason, for the operator.
 * The peer only receives an alert. */
const struct error *tls_layer_error(const struct stream *stream);

/* Properties of an open layer; static texts. */
struct tls_facts {
	const char *version; /* "TLS 1.3" */
	const char *cipher;  /* "AES-128-GCM" */
	const char *records; /* "kernel" or "user" */
};
struct tls_facts tls_layer_facts(const struct stream *stream);
/* Returns whether the peer has closed without close_notify, so that the received data might be
 * incomplete. */
bool tls_layer_was_cut(const struct stream *stream);
