// SPDX-License-Identifier: Apache-2.0
/*
 * Connects a socket to the server that an NBD URI names, blocking but never for longer than a time
 * that was given, and waits on sockets in the same way.
 *
 * Threading: any thread; what is passed in must not be used by another meanwhile. Ownership: the
 * connected socket is the caller's. Errors: sentences begin with the server's address.
 */
#pragma once

#include <sys/types.h>

#include "nbd/uri.h"

enum { CONNECT_LABEL_BYTES = 160 };

/* How long to wait, over any number of calls. */
struct wait_limit {
	uint64_t timeout_ns; /* for the messages */
	uint64_t deadline_ns;
	int abort_fd; /* readable: stop waiting (-ECANCELED); or -1 */
};

/* Starts the clock. */
struct wait_limit wait_limit_start(uint64_t timeout_ns, int abort_fd);
uint64_t wait_limit_left_ns(const struct wait_limit *limit);

/* Waits for poll events on fd for at most limit_ns (UINT64_MAX: the whole rest): 0, -ETIMEDOUT,
 * -ECANCELED or another negative errno. Once the time is up no event counts any more: a server that
 * always has something to say must not hold us. */
GMB_MUST_CHECK int wait_for_fd(
	const struct wait_limit *limit, int fd, short events, uint64_t limit_ns);

/* The server's address as the user wrote it, escaped: "[::1]:10809". Returns out. */
const char *connect_label(char out[CONNECT_LABEL_BYTES], const struct nbd_uri *uri);

/* "LABEL: no success within 2 s while DOING"; returns -ETIMEDOUT. */
int connect_timed_out(
	const struct wait_limit *limit, const char *label, const char *doing, struct error *error);

/* Sends all of it. A peer that has closed is no error: reading tells why. */
GMB_MUST_CHECK int connect_send(const struct wait_limit *limit, const char *label, int fd,
	const void *bytes, size_t len, struct error *error);

/* Waits for bytes and takes them: how many, 0 at the end of the stream, or a negative errno.
 * awaited: "its greeting", for the message when nothing comes. */
GMB_MUST_CHECK ssize_t connect_receive(const struct wait_limit *limit, const char *label, int fd,
	void *bytes, size_t len, const char *awaited, struct error *error);

/* A connected, non-blocking, close-on-exec socket in *fd_out, TCP without delay and with
 * keep-alive. Errors: -EPROTONOSUPPORT TLS, -EHOSTUNREACH name, -ETIMEDOUT, -ECANCELED, those
 * of connect(2). */
GMB_MUST_CHECK int connect_uri(const struct nbd_uri *uri, const struct wait_limit *limit,
	int *fd_out, struct error *error);
