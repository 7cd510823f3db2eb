// SPDX-License-Identifier: Apache-2.0
/*
 * Makes the connections of a device of the kernel's nbd driver: the credentials, the lease, and the
 * names by which the server recognizes the connections.
 *
 * Threading: one thread at a time. Ownership: the options and the hosts are borrowed; the caller
 * owns each connection until nbd_connection_close(), or until the driver has its socket. Errors: as
 * in nbd/client/dial.h, with an error message.
 */
#pragma once

#include "attach/attach.h"
#include "attach/nbd_hosts.h"
#include "attach/nbd_relay.h"
#include "nbd/client/dial.h"

struct nbd_dialer {
	const struct attach_options *options;
	struct nbd_hosts *hosts;
	struct export_uri uri;
	/* Credentials for a URI with TLS: tls_driver for sockets that the driver gets, tls for
	 * relays. NULL: this way is unavailable or not wanted. */
	struct tls_client *tls_driver;
	struct tls_client *tls;
	char token[40]; /* unique to this disk */
	uint32_t number_next;
	bool has_lease; /* a connection was established, so the disk has had its lease */
};

/* A connection that can replace others. */
struct nbd_connection {
	struct lease_moment started; /* when the attempt began */
	int fd;			     /* socket for the driver */
	uint32_t number;	     /* unique in the dialer */
	bool renews_lease;	     /* the server had to know the lease */
	struct nbd_relay *relay;     /* NULL: the driver communicates with the server directly */
};

struct nbd_dial_order {
	uint64_t deadline_ns;
	int cancel_fd;		  /* readable: -ECANCELED; or -1 */
	const uint32_t *replaces; /* numbers of dead connections, which the server ends first */
	uint32_t replaces_count;
	bool in_outage; /* since lease_watch_doubt(): no connection is left */
};

/* Parses the URI of the options, and fills in the hosts. After a failure, nbd_dialer_fini() is
 * still required. */
GMB_MUST_CHECK int nbd_dialer_init(struct nbd_dialer *dialer, const struct attach_options *options,
	struct nbd_hosts *hosts, struct error *error);
void nbd_dialer_fini(struct nbd_dialer *dialer);
/* Dials one connection to the next host, with simple replies, because the driver understands no
 * others (P136 in docs/protocol/nbd.md). Blocks. */
GMB_MUST_CHECK int nbd_dialer_dial(struct nbd_dialer *dialer, const struct nbd_dial_order *order,
	struct nbd_connection *connection, struct nbd_facts *facts, struct error *error);
/* Says goodbye to the server, which returns the lease with the last connection. fd: the socket of a
 * connection, which the driver does not have. */
void nbd_connection_leave(int fd);
void nbd_connection_close(const struct nbd_connection *connection);
