// SPDX-License-Identifier: Apache-2.0
/*
 * A connection for the kernel's nbd driver to a server that wants TLS. The handshakes are made
 * here. Where the kernel does the records afterwards, the driver gets the socket itself; elsewhere
 * it gets one end of a socket pair, and a thread carries bytes between the other end and the
 * server:
 *
 *   driver ── socket pair ── [ thread: plain stream ◀── bytes ──▶ stream with TLS ] ── server
 *
 * The thread keeps a buffer for each direction and looks at no byte. It is part of what the kernel
 * needs to write to its disk, so its memory is locked as all of the daemon's, and it inherits
 * PR_SET_IO_FLUSHER (process_protect()).
 *
 * Threading: one thread at a time for each relay. Ownership: see each. Errors: those of
 * nbd/client/dial.h.
 */
#pragma once

#include "attach/attach.h"
#include "nbd/client/dial.h"

struct nbd_relay;

struct nbd_relay_options {
	struct nbd_dial_options dial; /* of a URI with TLS, and with its credentials */
	bool hands_over; /* the driver may have the socket, if the kernel does the records */
	int cancel_fd;	 /* readable: -ECANCELED; or -1 */
	/* Of the socket to the server. */
	void (*prepare)(int fd, const struct attach_options *options);
	const struct attach_options *socket_options;
};

/*
 * Dials, and blocks until that is done. *fd_out: for the driver, the caller's to close. *relay_out:
 * NULL when it was handed over, otherwise what nbd_relay_end() takes; it lives until then, also
 * when the connection has died: then fd_out hangs up. *handshake_out: as with nbd_dial_wait(). The
 * credentials and the URI are held as long as the relay.
 */
GMB_MUST_CHECK int nbd_relay_dial(const struct nbd_relay_options *options, int *fd_out,
	struct nbd_relay **relay_out, struct nbd_handshake **handshake_out, struct error *error);

/* The driver is done: what it has said is carried over, and the server may take leave, for at most
 * two seconds. Does not wait. NULL is a no-op. */
void nbd_relay_leave(struct nbd_relay *relay);
/* Waits for the end, which is now unless nbd_relay_leave() came before. NULL is a no-op. */
void nbd_relay_end(struct nbd_relay *relay);
