// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets that wait for clients: TCP addresses, Unix sockets (by path or abstract), and those that
 * the service manager hands over. One listener is one URI; a host name with several addresses gives
 * it several sockets on the same port.
 *
 * Threading: opened and closed by the main thread; the descriptors are used by the acceptor while
 * it runs. Ownership: the listener owns its sockets and the socket file that it created.
 * Errors: a negative errno and a sentence that names the URI and the remedy.
 */
#pragma once

#include <sys/types.h>

#include "engine/engine.h"
#include "server/config/config.h"

struct upgrade_take;

enum { LISTENER_SOCKETS_MAX = 16 };

struct listener {
	/* As a client on this machine can use it: real port, no wildcard. Without sockets, before
	 * listener_is_bound(): where to listen. */
	struct export_uri uri;
	const struct session_kind *kind;   /* what is spoken there */
	const struct server_tls *settings; /* set by the caller; borrowed */
	struct tls_policy *tls;		   /* NULL: off; see credentials.h */
	int fds[LISTENER_SOCKETS_MAX];	   /* none where the kind listens by itself */
	uint32_t fd_count;
	bool of_manager;   /* the service manager has opened it */
	bool was_passed;   /* another process has, which has it still (upgrade/take.h) */
	char *unlink_path; /* the socket file to remove, or NULL */
	dev_t unlink_device;
	ino_t unlink_inode;
	bool has_group; /* its socket is for a group that was named */
};

/* An address in use is tried again for a second before that is an error. kind: what is spoken
 * there; NULL: something else, over streams. */
GMB_MUST_CHECK int listener_open(const struct export_uri *uri, const struct session_kind *kind,
	struct listener *listener, struct error *error);

/* All that the configuration asks for, and the sockets of the service manager (listeners.c). Both
 * are the caller's to close and free, also after an error. kinds: the protocols there are. take:
 * may have some of them, or NULL. */
GMB_MUST_CHECK int listeners_open(const struct server_config *config, struct upgrade_take *take,
	const struct session_kind *const *kinds, uint32_t kind_count,
	struct listener **listeners_out, uint32_t *count_out, struct error *error);

/* code: why it cannot be listened on that address, a negative errno; it is returned. */
int listener_tcp_error(const struct export_uri *uri, int code, struct error *error);

/* The kind listens at listener->uri now. */
void listener_is_bound(struct listener *listener);

/* Takes over a listening socket of the service manager, for gmb+unix when it is SOCK_SEQPACKET; fd
 * becomes the listener's. The caller sets the kind. */
GMB_MUST_CHECK int listener_adopt(int fd, struct listener *listener, struct error *error);

/* A socket that another process has passed. */
struct upgrade_socket;
GMB_MUST_CHECK int listener_adopt_passed(
	const struct upgrade_socket *socket, struct listener *listener, struct error *error);
/* The other process has failed: what a Unix socket says of who listens is about this one again, if
 * it has not taken another user since. */
void listener_take_back(struct listener *listener);
/* This process removes the socket file no more. */
void listener_forget_path(struct listener *listener);

/* Closes the sockets and removes the socket file if it is still ours. Twice does no harm. */
void listener_close(struct listener *listener);

/* Who is at the other end of a connected socket; text is "127.0.0.1:4711" or "unix:pid 4711". */
void listener_peer(int fd, struct peer *peer);
/* The same from the peer's address as text: "127.0.0.1:4711" or "[::1]:4711". */
void listener_peer_at(const char *address, struct peer *peer);
