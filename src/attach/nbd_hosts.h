// SPDX-License-Identifier: Apache-2.0
/*
 * The servers of a device of the kernel's nbd driver, and the check before a new connection
 * replaces a lost one. All connections of a device use one server (rule P137).
 *
 * If all connections are lost, the other hosts are tried first, then all in turn.
 *
 * Threading: one thread at a time. Ownership: the URI is borrowed. Errors: -ESTALE with an error
 * message.
 */
#pragma once

#include "attach/attach.h"
#include "nbd/client/dial.h"

struct nbd_hosts {
	struct export_uri at[URI_HOSTS_MAX]; /* the URI of each host */
	uint32_t count;
	uint32_t next; /* host for new connections */
	uint32_t home; /* host of the last connection that was accepted */
};

void nbd_hosts_init(struct nbd_hosts *hosts, const struct export_uri *uri);
/* Fills in the URI and the time limits of a connection to the next host. */
void nbd_hosts_prepare(
	const struct nbd_hosts *hosts, uint64_t deadline_ns, struct nbd_dial_options *dial);
/* Moves to the next host. Returns false if that is the first one again, or if there is only one. */
bool nbd_hosts_move(struct nbd_hosts *hosts);
/* Returns whether the error means that the host cannot be reached, so that the other connections to
 * it are dead as well, and there are other hosts. */
bool nbd_hosts_is_gone(const struct nbd_hosts *hosts, int rc);
/* Called when a connection to the next host was accepted: it is the home, which is shown by
 * "gmblock attach --list". */
void nbd_hosts_settle(struct nbd_hosts *hosts, struct device *device);

/* Checks the properties that all connections of a device must share. Returns -ESTALE with an error
 * message if a connection reached another export than the first, or another disk at another host.
 * promised: flags that must still be set. The caller handles a new epoch of an export that is not
 * volatile. */
GMB_MUST_CHECK int nbd_hosts_check(const struct nbd_hosts *hosts, const struct nbd_facts *first,
	const struct nbd_facts *other, uint16_t promised, struct error *error);
