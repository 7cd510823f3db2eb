// SPDX-License-Identifier: Apache-2.0
/*
 * Makes a connection to an NBD server: connects and shakes hands until a goal is reached. The one
 * way in which the library, "gmblock info" and the kernel's nbd connections reach a server.
 *
 *   (LOADING) ─▶ CONNECTING ─▶ SHAKING ─▶ (ENCRYPTING ─▶ SHAKING) ─▶ ENDING ─▶ done
 *
 * With TLS the credentials are read first, on a thread, and the stream is encrypted as soon as the
 * server agrees. Only the URI decides whether there is TLS: no way leads around it (rule P57).
 *
 * Threading: the ring's thread; nbd_dial_wait() any thread. Ownership: the struct, the URI and
 * its struct tls_client are held until the stream is closed; afterwards the stream is open only if
 * the goal was GO and reached it, and it and the handshake with its answers are the caller's to
 * close and destroy. Errors: a negative errno, with a sentence that begins with the server's
 * address, or is about a file of this machine: those of connect.h, handshake.h,
 * tls/client.h and tls/layer.h, -ETIMEDOUT, -ECANCELED.
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
	struct tls_client *tls; /* of a URI with tls, else unused; nbd_dial_wait() makes its own */
	uint64_t timeout_ns;	/* for all of it: name resolution, connecting and the handshakes */
	/* Its export name is the URI's, and so is whether it wants TLS. Tokens are copied. */
	struct nbd_handshake_options handshake;
};

/* All zero: idle. */
struct nbd_dial {
	struct nbd_handshake *handshake; /* after done: the caller's, or NULL */
	struct error error;		 /* after a failure: why */
	struct stream stream;		 /* after done: the caller's, where the goal was GO */

	/* Private. */
	struct ring *ring;
	struct tls_client *tls;
	struct tls_context *tls_context; /* for the layer */
	void (*done)(struct nbd_dial *dial, int err);
	enum nbd_dial_state state;
	enum nbd_goal goal;
	int result;
	const struct export_uri *uri;
	uint64_t timeout_ns;
	uint64_t end_ns;
	struct connector connector;
	struct ring_op io_op; /* load, send or receive */
	struct ring_op timer_op;
	struct iovec iov;
	struct msghdr message;
	size_t received_at;
	size_t received_bytes;
	bool is_trusted;	 /* the server has spoken under TLS: it has accepted us */
	struct error load_error; /* the thread's */
	uint8_t received[NBD_DIAL_RECEIVE_BYTES];
};

/* The stream must be closed. done is called once, later, with 0 or a negative errno. */
void nbd_dial_start(struct nbd_dial *dial, struct ring *ring,
	const struct nbd_dial_options *options, void (*done)(struct nbd_dial *dial, int err));

/* Makes it end soon, with -ECANCELED or what happened first. Idle: no-op. */
void nbd_dial_cancel(struct nbd_dial *dial);

/*
 * The same, blocking, on a ring of its own. cancel_fd: readable means -ECANCELED; or -1. *fd_out:
 * the connected socket after GO, which the caller closes. *handshake_out: the answers, the caller's
 * to destroy, or NULL; set after a failure, too, when there are any.
 */
GMB_MUST_CHECK int nbd_dial_wait(const struct nbd_dial_options *options, int cancel_fd, int *fd_out,
	struct nbd_handshake **handshake_out, struct error *error);
