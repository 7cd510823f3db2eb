// SPDX-License-Identifier: Apache-2.0
/*
 * The other end of a layer: GnuTLS alone, or nothing but bytes. What it says lies in memory first,
 * so that a test can spoil it. On the real ring over a socket pair, on the simulated one (with
 * TEST_ON_SIM) over the simulated network.
 *
 *   GnuTLS ─▶ out ─ peer_send() ─▶ socket ─▶ layer ─▶ struct stream
 *   GnuTLS ◀─ in ◀ peer_fetch() ── socket ◀──┘
 *
 * Threading: one. Ownership: stated per function. Errors: what cannot be had fails the test.
 */
#pragma once

#include <gnutls/gnutls.h>

#include "tls_world.h"

struct peer_bytes {
	uint8_t *data;
	size_t at;
	size_t end;
	size_t capacity;
};

struct peer {
	struct tls_world *world;
	struct ring *ring;
	struct tls_context *context;
	struct stream stream; /* of the layer */
	int upgraded;	      /* 1: not yet */
	struct ring_op recv_op;
	struct ring_op send_op;
	int recv_result;
	int send_result;

	int fd; /* the other end */
	bool is_server;
	gnutls_session_t session;
	gnutls_certificate_credentials_t certificates;
	gnutls_psk_client_credentials_t keys;
	gnutls_psk_server_credentials_t server_keys;
	struct peer_bytes in;
	struct peer_bytes out;
	struct peer_bytes *heard; /* NULL, or gets a copy of what GnuTLS says */
	bool is_sending;	  /* the rest of out follows when the socket takes it */
	bool at_end;		  /* the layer sends no more */
};

/* A layer of this role on one end, nothing on the other. */
void peer_begin(struct peer *peer, struct tls_world *world, struct ring *ring, enum tls_role role,
	enum tls_proof proof, uint8_t source);
/* Shuts the stream down, waits, closes everything. */
void peer_end(struct peer *peer);
/* When the stream is closed already. */
void peer_end_closed(struct peer *peer);
/* Waits until the stream is idle; after it was shut down. */
void peer_settle(struct peer *peer);

/* Makes a GnuTLS session of the other role. */
void peer_session(struct peer *peer, enum tls_proof proof, const char *priority);
/* That session shows a certificate that names the authority, which has not signed it, and has
 * another key than the certificate's. */
void peer_forge(struct peer *peer);
/* What out holds goes to the socket, some of it perhaps in later turns. */
void peer_send(struct peer *peer);
void peer_send_bytes(struct peer *peer, const void *bytes, size_t count);
/* Says that nothing more comes, without a word of TLS. */
void peer_cut(struct peer *peer);
/* Whatever has come. */
void peer_fetch(struct peer *peer);
/* One turn of the ring, a short one if nothing happens. */
void peer_turn(struct peer *peer);
/* Both shake hands until the layer is open or has failed: its result. */
int peer_shake(struct peer *peer);

/* Until the receive, or send, of the layer has ended: its result. */
int peer_await_receive(struct peer *peer);
int peer_await_send(struct peer *peer);
void peer_receive(struct peer *peer, void *buf, size_t len, bool whole);
/* The GnuTLS session says these bytes; in is read as long as they do not come. */
void peer_say(struct peer *peer, const void *bytes, size_t count);
void peer_hear(struct peer *peer, void *bytes, size_t count);
