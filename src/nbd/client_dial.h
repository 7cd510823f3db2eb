// SPDX-License-Identifier: Apache-2.0
/*
 * Makes a connection to an NBD server: connects and shakes hands until a goal is reached. The one
 * way in which the library, "gmblock info" and the kernel's nbd connections reach a server.
 *
 *   CONNECTING ─▶ SHAKING ─▶ ENDING ─▶ done
 *
 * Threading: the ring's thread; nbd_dial_wait() any thread. Ownership: the struct, the URI and the
 * stream are held until done; afterwards the stream is open only if the goal was GO and reached it,
 * and the handshake with its answers is the caller's to destroy. Errors: a negative errno, with a
 * sentence that begins with the server's address: those of client_connect.h and client_handshake.h,
 * -ETIMEDOUT, -ECANCELED.
 */
#pragma once

#include "nbd/client_connect.h"
#include "nbd/client_handshake.h"
#include "stream/stream.h"

enum { NBD_DIAL_RECEIVE_BYTES = 4096 };

enum nbd_dial_state { NBD_DIAL_IDLE, NBD_DIAL_CONNECTING, NBD_DIAL_SHAKING, NBD_DIAL_ENDING };

struct nbd_dial_options {
	const struct export_uri *uri;
	uint64_t timeout_ns; /* for all of it: name resolution, connecting and the handshake */
	/* Its export name is the URI's. Tokens are copied. */
	struct nbd_handshake_options handshake;
};

/* All zero: idle. */
struct nbd_dial {
	struct nbd_handshake *handshake; /* after done: the caller's, or NULL */
	struct error error;		 /* after a failure: why */

	/* Private. */
	struct ring *ring;
	struct stream *stream;
	void (*done)(struct nbd_dial *dial, int err);
	enum nbd_dial_state state;
	enum nbd_goal goal;
	int result;
	const struct export_uri *uri;
	uint64_t timeout_ns;
	uint64_t end_ns;
	struct connector connector;
	struct ring_op io_op; /* send or receive */
	struct ring_op timer_op;
	struct iovec iov;
	struct msghdr message;
	size_t received_at;
	size_t received_bytes;
	uint8_t received[NBD_DIAL_RECEIVE_BYTES];
};

/* stream must be closed. done is called once, later, with 0 or a negative errno. */
void nbd_dial_start(struct nbd_dial *dial, struct ring *ring, struct stream *stream,
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
