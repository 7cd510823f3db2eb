// SPDX-License-Identifier: Apache-2.0
/*
 * A connection for the kernel's nbd driver to a server that requires TLS. The handshakes are
 * performed here. If the kernel can encrypt records afterwards, the driver gets the socket itself.
 * Otherwise it gets one end of a socket pair, and a thread carries bytes between the other end and
 * the server:
 *
 *   driver ── socket pair ── [ thread: plain stream ◀── bytes ──▶ stream with TLS ] ── server
 *
 * The thread has one buffer for each direction and does not interpret the bytes. When memory is
 * short, the kernel writes dirty pages to the disk, and needs this thread to do so. Therefore the
 * thread must not wait for memory: like all memory of the daemon, its memory is locked, and it
 * inherits PR_SET_IO_FLUSHER (process_protect()).
 *
 * Threading: one thread at a time for each relay. Ownership: see each function. Errors: as in
 * nbd/client/dial.h.
 */
#pragma once

#include "attach/attach.h"
#include "nbd/client/dial.h"

struct nbd_relay;

struct nbd_relay_options {
	struct nbd_dial_options dial; /* URI with TLS, and credentials */
	bool hands_over; /* the driver may get the socket if the kernel encrypts records */
	int cancel_fd;	 /* readable: -ECANCELED; or -1 */
	/* Sets options of the socket to the server. */
	void (*prepare)(int fd, const struct attach_options *options);
	const struct attach_options *socket_options;
};

/*
 * Connects, and blocks until that has succeeded or failed. *fd_out: socket for the driver, which
 * the caller closes. *relay_out: NULL if the driver gets the socket to the server itself. Otherwise
 * the caller must end the relay with nbd_relay_end(), even if its connection is lost. If the
 * connection is lost, fd_out reports POLLHUP. *handshake_out: as in nbd_dial_wait(). The
 * credentials and the URI are borrowed for the lifetime of the relay.
 */
GMB_MUST_CHECK int nbd_relay_dial(const struct nbd_relay_options *options, int *fd_out,
	struct nbd_relay **relay_out, struct nbd_handshake **handshake_out, struct error *error);

/* The driver has finished: forwards the data it has sent, and gives the server at most two seconds
 * to close. Does not wait. NULL is a no-op. */
void nbd_relay_leave(struct nbd_relay *relay);
/* Ends the relay, immediately unless nbd_relay_leave() was called before, and waits for its end.
 * NULL is a no-op. */
void nbd_relay_end(struct nbd_relay *relay);
