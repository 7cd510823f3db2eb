// SPDX-License-Identifier: Apache-2.0
/*
 * Establishes a connection to an NBD server: connects and performs the handshake until a goal is
 * reached. The library, "gmblock info" and the kernel's nbd connections all reach a server through
 * this module.
 *
 *   (LOADING) ─▶ CONNECTING ─▶ SHAKING ─▶ (ENCRYPTING ─▶ SHAKING) ─▶ ENDING ─▶ done
 *
 * With TLS a thread reads the credentials first, and the stream is encrypted as soon as the server
 * agrees. The URI alone decides whether TLS is used, and cannot be bypassed (rule P57).
 *
 * Threading: the ring's thread; nbd_dial_wait() any thread. Ownership: the struct, the URI and its
 * struct tls_client are borrowed until the stream is closed. After done() the stream is open only
 * if the goal GO was reached; the caller closes it, and destroys the handshake with its answers.
 * Errors: a negative errno, with a sentence that begins with the server's address or is about a
 * local file: the errors of connect.h, handshake.h, tls/client.h and tls/layer.h, -ETIMEDOUT,
 * -ECANCELED.
 */
#pragma once

#include "nbd/client/connect.h"
#include "nbd/client/handshake.h"
#include "stream/stream.h"
#include "tls/client.h"

enum { NBD_DIAL_RECEIVE_BYTES = 4096 };

enum nbd_dial_state {
	NBD_DIAL_IDLE,
	NBD_DIAL_LOADING,
	NBD_DIAL_CONNECTING,
	NBD_DIAL_SHAKING,
	NBD_DIAL_ENCRYPTING,
	NBD_DIAL_ENDING,
};

struct nbd_dial_options {
	const struct export_uri *uri;
	/* for a URI with TLS, otherwise unused; nbd_dial_wait() creates its own */
	struct tls_client *tls;
	/* limit for name resolution, connecting and the handshakes together */
	uint64_t timeout_ns;
	uint64_t connect_ns; /* limit for name resolution and connecting; 0: only timeout_ns */
	/* nbd_dial_wait(): logs a warning if a server does not respond, see export_uri_silent() */
	bool warns;
	/* The members export_name and tls are set from the URI, host by nbd_dial_wait(). Tokens are
	 * copied. */
	struct nbd_handshake_options handshake;
};

/* All zero: idle. */
struct nbd_dial {
	struct nbd_handshake *handshake; /* after done(): owned by the caller, or NULL */
	struct error error;		 /* after a failure: the reason */
	struct stream stream;		 /* after done(): owned by the caller if the goal was GO */

	/* Private. */
	struct ring *ring;
	struct tls_client *tls;
	struct tls_context *tls_context; /* context for the TLS layer */
	void (*done)(struct nbd_dial *dial, int err);
	enum nbd_dial_state state;
	enum nbd_goal goal;
	int result;
	const struct export_uri *uri;
	uint64_t timeout_ns;
	uint64_t connect_ns;
	uint64_t end_ns;
	struct connector connector;
	struct ring_op io_op; /* load, send or receive */
	struct ring_op timer_op;
	struct iovec iov;
	struct msghdr message;
	size_t received_at;
	size_t received_bytes;
	/* the server has sent data under TLS, so it has accepted our credentials */
	bool is_trusted;
	struct error load_error; /* written by the thread that loads credentials */
	uint8_t received[NBD_DIAL_RECEIVE_BYTES];
};

/* Starts a connection. The URI has one host. The stream must be closed. done() is called once,
 * later, with 0 or a negative errno. */
void nbd_dial_start(struct nbd_dial *dial, struct ring *ring,
	const struct nbd_dial_options *options, void (*done)(struct nbd_dial *dial, int err));

/* Ends the attempt soon, with -ECANCELED or an earlier result. No effect if idle. */
void nbd_dial_cancel(struct nbd_dial *dial);

/*
 * As nbd_dial_start(), but blocks, and runs its own ring. If the URI has several hosts, they are
 * tried in order, each in its share of the time; the error contains the failures of all. cancel_fd:
 * returns -ECANCELED when it becomes readable; or -1. *fd_out: the connected socket after GO, which
 * the caller closes. *handshake_out: the answers, which the caller destroys, or NULL; also set
 * after a failure if there are any.
 */
GMB_MUST_CHECK int nbd_dial_wait(const struct nbd_dial_options *options, int cancel_fd, int *fd_out,
	struct nbd_handshake **handshake_out, struct error *error);
