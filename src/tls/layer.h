// SPDX-License-Identifier: Apache-2.0
/*
 * TLS on a byte stream: a layer for stream_upgrade().
 *
 *   tls_layer_create() ─▶ stream_upgrade(stream, &tls_stream_ops, layer, upgraded)
 *        handshake on the ring, its arithmetic on the workers of a pool
 *   upgraded(0): the stream carries bytes; tls_layer_identity() says who the peer is
 *   upgraded(-errno): tls_layer_error() says why; the stream can only be shut down and closed
 *
 *   RECEIVING ◀─▶ WORKER ◀─▶ SENDING ──▶ OPEN (records in user space, or in the kernel) ──▶ CLOSED
 *
 * Nothing is received beyond the record in hand before the layer is open, so what the peer sends
 * early stays in the socket. Bytes that were received before the upgrade are the caller's to reject
 * (CVE-2021-3716): it upgrades only with nothing left. A layer never falls back to plain bytes.
 *
 * Threading: the ring's thread; workers touch a layer only while it waits for them. Ownership: the
 * stream owns its layer from stream_upgrade() on; the layer holds a reference of the context.
 * Errors: -EPROTO the peer broke TLS, -EACCES it was not believed, -EKEYREJECTED it did not believe
 * us, -EAGAIN no place for a handshake, and those of the socket. A record that cannot be
 * authenticated is -EBADMSG and ends both directions.
 */
#pragma once

#include "stream/stream.h"
#include "tls/context.h"

/* --- workers ----------------------------------------------------------------------------------
 * Handshakes are arithmetic of 0.1 to 10 ms each, asked for by strangers: they run on few threads
 * of low priority, and only so many at a time, of one source no more than its share. */

enum {
	TLS_HANDSHAKES_MAX = 64,	   /* that are under way */
	TLS_HANDSHAKES_PER_SOURCE_MAX = 8, /* of them */
	TLS_WAITING_MAX = 1024,		   /* handshakes that wait for a place */
	TLS_SOURCE_BYTES = 17,
};

struct tls_pool_options {
	uint32_t threads;    /* 0: one for two processors */
	uint32_t handshakes; /* 0: TLS_HANDSHAKES_MAX */
};

/* Any thread; one for all rings of a process. Threads start with the first handshake. */
GMB_MUST_CHECK int tls_pool_create(
	const struct tls_pool_options *options, struct tls_pool **pool_out, struct error *error);
/* No layer uses it any more; before the rings of its layers are destroyed, or else after
 * tls_pool_settle(). NULL is a no-op. */
void tls_pool_destroy(struct tls_pool *pool);
/* For who destroys a ring while the pool stays: its layers are gone, and a worker that has told it
 * of the end of its work may still touch it before this. Waits for no handshake. Any thread. */
void tls_pool_settle(struct tls_pool *pool);

/* --- layers ----------------------------------------------------------------------------------- */

struct tls_layer;

struct tls_layer_options {
	struct tls_context *context; /* a reference is taken */
	struct tls_pool *pool;	     /* borrowed */
	/* Client that verifies: the name or address that the certificate must have; copied. */
	const char *server_name;
	/* Server: who shares places for handshakes; all zero: everybody unknown. */
	uint8_t source[TLS_SOURCE_BYTES];
};

extern const struct stream_ops tls_stream_ops;

/* -ENOMEM. Before its upgrade it is freed with tls_layer_destroy(), later by its stream. */
GMB_MUST_CHECK int tls_layer_create(
	const struct tls_layer_options *options, struct tls_layer **layer_out);
void tls_layer_destroy(struct tls_layer *layer);

/* --- in another process ----------------------------------------------------------------------- */

enum { TLS_PASS_BYTES_MAX = 12 << 10 };

/* Open: whether another process can go on with the socket. The kernel makes its records, and who
 * the peer is is not too long to be told. The answer stays the same. */
bool tls_layer_can_pass(const struct stream *stream);
/* What the other process needs beside a copy of the socket (docs/protocol/upgrade.md),
 * TLS_PASS_BYTES_MAX at most; how many bytes. They are secret. It can be passed, and the stream is
 * idle: from now on only one of the two processes may use the socket. */
GMB_MUST_CHECK uint32_t tls_layer_pass(const struct stream *stream, uint8_t *bytes);
/* There: puts a layer in that state, which is parsed as hostile, on a plain stream on which nothing
 * is in flight; it is open. -EPROTO, -EACCES: the credentials of now do not let the peer in,
 * -EOPNOTSUPP: the kernel does not make the socket's records, or is not to, -ENOMEM; the stream is
 * plain then. */
GMB_MUST_CHECK int tls_layer_adopt(const struct tls_layer_options *options, struct stream *stream,
	const uint8_t *bytes, uint32_t count, struct error *error);

/* Open: who the peer is, valid as long as the stream; take a reference to keep it. Never NULL. */
struct identity *tls_layer_identity(const struct stream *stream);
/* After upgraded(-errno), or when a receive or send has failed: what happened, for the operator.
 * Peers are told no more than the alert. */
const struct error *tls_layer_error(const struct stream *stream);

/* Of an open layer; static texts. */
struct tls_facts {
	const char *version; /* "TLS 1.3" */
	const char *cipher;  /* "AES-128-GCM" */
	const char *records; /* "kernel" or "user" */
};
struct tls_facts tls_layer_facts(const struct stream *stream);
/* The peer has closed without saying so: what was received last may not be all (close_notify). */
bool tls_layer_was_cut(const struct stream *stream);
