// SPDX-License-Identifier: Apache-2.0
/*
 * State shared by the parts of a layer: the handshake (layer.c) and, after it, GnuTLS's record
 * layer over memory (records.c).
 *
 *   socket ── ring ──▶ in ── pull ──▶ GnuTLS ──▶ the receiver's memory
 *   socket ◀── ring ── out ◀── push ── GnuTLS ◀── the sender's memory, or a copy gathered from it
 *
 * Threading: the ring's thread; in the state TLS_LAYER_WORKER, a worker's. Ownership: the layer
 * owns all of it. Errors: as tls/layer.h.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls/internal.h"
#include "tls/kernel.h"
#include "tls/pool.h"

enum {
	TLS_HEADER_BYTES = 5,
	/* Largest received record, without its header (RFC 8446, 5.2). Records of TLS 1.2 can be
	 * longer, but only with ciphers that are not offered here. */
	TLS_RECEIVED_BYTES_MAX = TLS_CONTENT_BYTES_MAX + 256,
	/* Limits of one handshake. */
	TLS_HANDSHAKE_RECORDS_MAX = 32,
	TLS_HANDSHAKE_IN_BYTES_MAX = 64 << 10,
	TLS_HANDSHAKE_OUT_BYTES = 16 << 10, /* more is allocated when needed */
	TLS_HANDSHAKE_OUT_BYTES_MAX = 64 << 10,
	/* Buffer of an idle connection; an ordinary hello fits into it. */
	TLS_IN_BYTES = 4096,
	/* A receive with more room than this uses a batch of the ring's stock as buffer while it
	 * waits. */
	TLS_IN_LARGE_BYTES = 16 << 10,
};

enum tls_layer_state {
	TLS_LAYER_NEW,
	TLS_LAYER_HEADER,   /* waits for the header of a record */
	TLS_LAYER_BODY,	    /* waits for the rest of the record; a short hello needs no slot */
	TLS_LAYER_PLACE,    /* waits for a handshake slot */
	TLS_LAYER_WORKER,   /* waits for a worker, which uses the session */
	TLS_LAYER_SENDING,  /* waits until the socket has accepted our messages */
	TLS_LAYER_REFUSING, /* waits until the socket has accepted our alert */
	TLS_LAYER_OPEN,
	TLS_LAYER_ENDED, /* no data is received or sent any longer */
	TLS_LAYER_STATE_COUNT
};

/* A buffer whose bytes [at, end) are to be used next. */
struct tls_bytes {
	uint8_t *data;
	uint32_t at;
	uint32_t end;
	uint32_t capacity;
};

enum tls_outcome { TLS_OUTCOME_MORE, TLS_OUTCOME_DONE, TLS_OUTCOME_FAILED };

/* State that is only needed during a handshake. */
struct tls_handshake {
	uint32_t records;
	uint32_t bytes;
	uint32_t warnings;
	enum tls_outcome outcome; /* result of the worker's last run */
	int result;		  /* TLS_OUTCOME_FAILED: a negative errno */
	uint8_t in[TLS_HEADER_BYTES + TLS_RECEIVED_BYTES_MAX];
};

struct tls_layer {
	struct stream *stream;
	struct tls_context *context;
	struct tls_pool *pool;
	struct tls_check check;
	gnutls_session_t session; /* NULL until a worker creates it, and while `kernel` is set */
	struct tls_keys keys;	  /* traffic secrets, until the layer is open */
	/* open: processes the records; NULL: GnuTLS does, in records.c */
	struct tls_kernel *kernel;
	struct tls_facts facts;
	struct identity *identity;
	struct error error;
	enum tls_layer_state state;
	bool is_server;
	/* a worker has run for this handshake; if the handshake fails, the limit on failures of the
	 * peer's source counts it (pool.h) */
	bool was_at_work;
	bool was_cut;
	bool gives_way;		 /* the slot must be given back, so the operation in flight is being
				    cancelled */
	_Atomic bool is_stopped; /* the stream was shut down; also read by the worker */

	struct tls_bytes in;  /* received ciphertext */
	struct tls_bytes out; /* ciphertext to send */
	struct ring_op in_op;
	struct ring_op out_op;

	/* The handshake. */
	struct ring_op *starting; /* the stream's operation, until it completes */
	int start_result;
	struct ring_op timer_op;
	struct tls_place place;
	struct tls_job job;
	struct tls_handshake *handshake;
	uint8_t source[TLS_SOURCE_BYTES];
	char *server_name;

	/* Records. */
	struct tls_stock *stock;
	uint8_t *in_small; /* buffer of TLS_IN_BYTES */
	/* TLS 1.3: the header of every record says that it is data */
	bool is_disguised;
	/* Header of the first record, and later of the one that GnuTLS is reading. */
	uint8_t head[TLS_HEADER_BYTES];
	uint32_t head_bytes;
	uint32_t body_left;
	struct ring_op *receiving;
	struct msghdr *into;
	size_t into_idx; /* index in the vector of into, and position in that element */
	size_t into_at;
	size_t got;
	bool whole;
	struct ring_op *sending;
	const struct msghdr *message;
	size_t taken;	   /* bytes of the message that are in out */
	bool is_finishing; /* close_notify follows the contents of out */
	bool is_closing;   /* close_notify is in out: the socket is shut down after it */
	bool ended;	   /* the peer has sent close_notify, or has gone */
	int broken;	   /* result of sends and receives from now on, or 0 */
	int send_error;	   /* result of sending from now on, or 0 */
	uint32_t warnings;
	uint32_t tickets;
};

/* --- records.c -------------------------------------------------------------------------------- */

/* Connects GnuTLS to the layer's buffers, also for the handshake. */
void tls_records_attach(struct tls_layer *layer);
/* Starts the processing of records in user space. The handshake has ended, and struct tls_handshake
 * is freed. -ENOMEM. */
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
