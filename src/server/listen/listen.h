// SPDX-License-Identifier: Apache-2.0
/*
 * Listening sockets: TCP addresses, Unix sockets (by path or abstract), and sockets passed by the
 * service manager. One listener is one URI. A host name with several addresses gives the listener
 * several sockets on the same port.
 *
 * Threading: opened and closed by the main thread; the descriptors are used by the acceptor while
 * it runs. Ownership: the listener owns its sockets and the socket file that it created. Errors: a
 * negative errno and an error message that names the URI and the remedy.
 */
#pragma once

#include <sys/types.h>

#include "engine/engine.h"
#include "server/config/config.h"

struct door;
struct upgrade_take;

enum {
	LISTENER_SOCKETS_MAX = 16,
	LISTENER_RETRIES = 39, /* of listener_open(), one second in total */
};

/* The protocol in the URI of a control socket, which has no URI for clients. */
#define LISTENER_CONTROL "control"

struct listener {
	/* The URI for a client on this machine, with the real port and no wildcard. If the session
	 * kind has its own listeners, it is the configured address until listener_is_bound() is
	 * called. export_name is set only if export_uri_has_one_export(). */
	struct export_uri uri;
	const struct session_kind *kind;   /* the protocol of its connections */
	const struct server_tls *settings; /* set by the caller; borrowed */
	struct tls_policy *tls;		   /* NULL: off; see credentials.h */
	int fds[LISTENER_SOCKETS_MAX];	   /* fd_count is 0 if the kind has its own listeners */
	uint32_t fd_count;
	bool of_manager; /* opened by the service manager */
	/* The socket was passed by another process, which also has it open
	 * (server/upgrade/take.h). */
	bool was_inherited;
	char *unlink_path; /* the socket file to remove, or NULL */
	dev_t unlink_device;
	ino_t unlink_inode;
	bool has_group; /* the configuration sets the group of its socket */
	/* 1 + index of the folder in server_config.listens (listen/folder.h); 0: none. Such a
	 * listener without descriptors has no socket. */
	uint32_t folder;
	struct door *door; /* of a listener in a folder, see acceptor_add() */
};

/* Opens the address. kind: the protocol of its connections; NULL: they are not sessions, as for the
 * control socket. retries: number of retries while the address is in use, such as LISTENER_RETRIES
 * for that of a server that was just killed; reduced by those that were needed, so that several
 * listeners can share them. */
GMB_MUST_CHECK int listener_open(const struct export_uri *uri, const struct session_kind *kind,
	uint32_t *retries, struct listener *listener, struct error *error);

/* Opens all listeners of the configuration, and adopts the sockets of the service manager
 * (listeners.c). The caller closes and frees both *listeners_out and its elements, also after an
 * error. kinds: the supported protocols. take: the process that this one replaces, which may
 * already have some of the sockets; or NULL. */
GMB_MUST_CHECK int listeners_open(const struct server_config *config, struct upgrade_take *take,
	const struct session_kind *const *kinds, uint32_t kind_count,
	struct listener **listeners_out, uint32_t *count_out, struct error *error);

/* Sets the error message for an address that cannot be listened on. code: the reason, a negative
 * errno; returns it. */
int listener_tcp_error(const struct export_uri *uri, int code, struct error *error);

/* Copies the export name of uri to the listener, if the protocol has one export for each address.
 */
void listener_set_export(struct listener *listener, const struct export_uri *uri);

/* Called when the session kind has opened its listener, at listener->uri. */
void listener_is_bound(struct listener *listener);

/* Adopts a listening socket of the service manager; one of type SOCK_SEQPACKET is for gmb+unix, any
 * other one for NBD. The listener owns fd from now on. The caller sets the kind. */
GMB_MUST_CHECK int listener_adopt(int fd, struct listener *listener, struct error *error);

/* Adopts a socket that another process has passed. */
struct upgrade_socket;
GMB_MUST_CHECK int listener_adopt_inherited(
	const struct upgrade_socket *socket, struct listener *listener, struct error *error);
/* Called when the new process of an upgrade has failed: calls listen() again on a Unix socket, so
 * that the kernel reports this process as the listener. No effect if this process has changed its
 * user since it opened the socket. */
void listener_take_back(struct listener *listener);
/* Makes the listener leave the socket file in place when it closes. */
void listener_forget_path(struct listener *listener);
/* Removes the socket file, unless the listener was inherited. NULL is a no-op. */
void listener_remove_new_path(const struct listener *listener);

/* Closes the sockets, and removes the socket file if it is still ours. Can be called twice. */
void listener_close(struct listener *listener);

/* Identifies the peer of a connected socket; text is "127.0.0.1:4711" or "unix:pid 4711". */
void listener_peer(int fd, struct peer *peer);
/* Identifies a peer by its address as text: "127.0.0.1:4711" or "[::1]:4711". */
void listener_peer_at(const char *address, struct peer *peer);
