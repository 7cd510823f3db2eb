// SPDX-License-Identifier: Apache-2.0
/*
 * What the parts of a layer share: the handshake (layer.c) and, once it is done, GnuTLS's record
 * layer over memory (records.c).
 *
 *   socket ── ring ──▶ in ── pull ──▶ GnuTLS ──▶ the receiver's memory
 *   socket ◀── ring ── out ◀── push ── GnuTLS ◀── the sender's memory, or what was gathered of it
 *
 * Threading: the ring's thread; while the state is TLS_LAYER_WORKER, a worker's. Ownership: all of
 * it is the layer's. Errors: as tls/layer.h.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls/internal.h"
#include "tls/kernel.h"
#include "tls/pool.h"

enum {
	TLS_HEADER_BYTES = 5,
	/* A record as it arrives, without its header (RFC 8446, 5.2). Those of TLS 1.2 may be
	 * longer with ciphers that nobody offers here. */
	TLS_RECEIVED_BYTES_MAX = TLS_CONTENT_BYTES_MAX + 256,
	/* Of one handshake. */
	TLS_HANDSHAKE_RECORDS_MAX = 32,
	TLS_HANDSHAKE_IN_BYTES_MAX = 64 << 10,
	TLS_HANDSHAKE_OUT_BYTES = 16 << 10, /* more is allocated when it is needed */
	TLS_HANDSHAKE_OUT_BYTES_MAX = 64 << 10,
	/* Where an idle connection waits for bytes, and an ordinary hello is received. */
	TLS_IN_BYTES = 4096,
	/* A receive that has room for more than this may wait in a batch. */
	TLS_IN_LARGE_BYTES = 16 << 10,
};

enum tls_layer_state {
	TLS_LAYER_NEW,
	TLS_LAYER_HEADER,   /* for the header of a record */
	TLS_LAYER_BODY,	    /* for the rest of the record; an ordinary hello needs no place */
	TLS_LAYER_PLACE,    /* for a place among the handshakes */
	TLS_LAYER_WORKER,   /* for a worker, who has the session */
	TLS_LAYER_SENDING,  /* until the socket has taken our messages */
	TLS_LAYER_REFUSING, /* the same with our alert */
	TLS_LAYER_OPEN,
	TLS_LAYER_ENDED, /* nothing is received or sent any more */
	TLS_LAYER_STATE_COUNT
};

/* A run of memory of which [at, end) is to be used next. */
struct tls_bytes {
	uint8_t *data;
	uint32_t at;
	uint32_t end;
	uint32_t capacity;
};

enum tls_outcome { TLS_OUTCOME_MORE, TLS_OUTCOME_DONE, TLS_OUTCOME_FAILED };

/* What only a handshake needs. */
struct tls_handshake {
	uint32_t records;
	uint32_t bytes;
	uint32_t warnings;
	enum tls_outcome outcome; /* of the worker's last visit */
	int result;		  /* TLS_OUTCOME_FAILED: a negative errno */
	uint8_t in[TLS_HEADER_BYTES + TLS_RECEIVED_BYTES_MAX];
};

struct tls_layer {
	struct stream *stream;
	struct tls_context *context;
	struct tls_pool *pool;
	struct tls_check check;
	gnutls_session_t session;  /* NULL until a worker has made it, and with kernel */
	struct tls_keys keys;	   /* secrets, until it is open */
	struct tls_kernel *kernel; /* open: who does the records; NULL: GnuTLS, in records.c */
	struct tls_facts facts;
	struct identity *identity;
	struct error error;
	enum tls_layer_state state;
	bool is_server;
	bool was_at_work; /* a worker has seen it */
	bool was_cut;
	bool gives_way; /* its place was asked for, and its operation in flight is to end */
	_Atomic bool is_stopped; /* the stream was shut down; the worker looks, too */

	struct tls_bytes in;  /* ciphertext */
	struct tls_bytes out; /* ciphertext */
	struct ring_op in_op;
	struct ring_op out_op;

	/* The handshake. */
	struct ring_op *starting; /* the stream's, until it completes */
	int start_result;
	struct ring_op timer_op;
	struct tls_place place;
	struct tls_job job;
	struct tls_handshake *handshake;
	uint8_t source[TLS_SOURCE_BYTES];
	char *server_name;

	/* Records. */
	struct tls_stock *stock;
	uint8_t *in_small;		/* TLS_IN_BYTES */
	bool is_disguised;		/* TLS 1.3: every record says that it is data */
	uint8_t head[TLS_HEADER_BYTES]; /* of the first record, and later of the one that GnuTLS
					 * is taking */
	uint32_t head_bytes;
	uint32_t body_left;
	struct ring_op *receiving;
	struct msghdr *into;
	size_t into_idx; /* of the vector of into, and the place in it */
	size_t into_at;
	size_t got;
	bool whole;
	struct ring_op *sending;
	const struct msghdr *message;
	size_t taken;	   /* bytes of the message that are in out */
	bool is_finishing; /* close_notify follows what is in out */
	bool is_closing;   /* it is in out: then the socket says so, too */
	bool ended;	   /* the peer has said that it sends no more, or has gone */
	int broken;	   /* what both directions end with from now on, or 0 */
	int send_error;	   /* what sending ends with, or 0 */
	uint32_t warnings;
	uint32_t tickets;
};

/* --- records.c -------------------------------------------------------------------------------- */

/* For GnuTLS, during the handshake as well. */
void tls_records_attach(struct tls_layer *layer);
/* The handshake is done and its memory given back. -ENOMEM. */
GMB_MUST_CHECK int tls_records_open(struct tls_layer *layer);
void tls_records_close(struct tls_layer *layer);

void tls_records_receive(
	struct tls_layer *layer, struct ring_op *op, struct msghdr *message, bool whole);
void tls_records_send(struct tls_layer *layer, struct ring_op *op, const struct msghdr *message);
GMB_MUST_CHECK ssize_t tls_records_receive_now(struct tls_layer *layer, struct msghdr *message);
GMB_MUST_CHECK ssize_t tls_records_send_now(struct tls_layer *layer, const struct msghdr *message);
void tls_records_cancel(struct tls_layer *layer);
bool tls_records_flush(struct tls_layer *layer, struct ring_op *op, ring_done_fn *done);
void tls_records_shutdown_send(struct tls_layer *layer);
