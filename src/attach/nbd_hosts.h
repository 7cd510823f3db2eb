// SPDX-License-Identifier: Apache-2.0
/*
 * The servers of a device of the kernel's nbd driver, and the check before a new connection
 * replaces a lost one. All connections of a device use one server (rule P137).
 *
 * If all connections are lost, the other hosts are tried first, then all in turn.
 *
 * Threading: one thread at a time. Ownership: the URI is borrowed. Errors: as stated, with an error
 * message.
 */
#pragma once

#include "attach/attach.h"
#include "attach/nbd_kernel.h"
#include "base/lease_watch.h"
#include "nbd/client/dial.h"

struct nbd_hosts {
	struct export_uri at[URI_HOSTS_MAX]; /* the URI of each host */
	uint32_t count;
	uint32_t next;		  /* host for new connections */
	uint32_t home;		  /* host of the last connection that was accepted */
	bool has_home;		  /* a connection was accepted */
	struct lease_watch watch; /* in use with a lease and several hosts */
};

void nbd_hosts_init(struct nbd_hosts *hosts, const struct export_uri *uri,
	const struct attach_options *options);
/* Limits the requests of a device with several hosts: none takes so long that the driver repeats it
 * again and again. The driver zeroes up to 4 GiB with one request, and this limit cannot be
 * changed, so the kernel has to write zeroes. The device must be new, because the driver does not
 * reset this limit. */
void nbd_hosts_limit(const struct nbd_hosts *hosts, struct nbd_kernel_device *kernel);
/* Returns whether the next host must know the lease, as in client/hosts.c. in_outage, now: see
 * lease_watch_is_over(). */
bool nbd_hosts_renews_lease(
	const struct nbd_hosts *hosts, bool in_outage, const struct lease_moment *now);
/* Called when the next host has accepted the lease and has the same disk. Returns 0, or an error
 * with a message if this is not the home, and the home can have given the lease to another client
 * before the answer came: -EACCES, which is final, or -ESTALE if the lease was renewed, as in
 * client/hosts.c. */
GMB_MUST_CHECK int nbd_hosts_check_lease(
	const struct nbd_hosts *hosts, bool renewed, struct error *error);
/* Fills in the URI and the time limits of a connection to the next host. While the disk is being
 * attached, a silent server is reported. */
void nbd_hosts_prepare(
	const struct nbd_hosts *hosts, uint64_t deadline_ns, struct nbd_dial_options *dial);
/* Moves to the next host. Returns false if that is the first one again, or if there is only one. */
bool nbd_hosts_move(struct nbd_hosts *hosts);
/* Returns whether the error means that the host cannot be reached, so that the other connections to
 * it are dead as well, and there are other hosts. */
bool nbd_hosts_is_gone(const struct nbd_hosts *hosts, int rc);
/* Called when a connection to the next host is used: it is the home, which is shown by "gmblock
 * attach --list", and has the lease. started: when the attempt began. */
void nbd_hosts_settle(
	struct nbd_hosts *hosts, const struct lease_moment *started, struct device *device);

/* Checks the properties that all connections of a device must share. Returns -ESTALE with an error
 * message if a connection reached another export than the first, or another disk at another host.
 * promised: flags that must still be set. The caller handles a new epoch of an export that is not
 * volatile. */
GMB_MUST_CHECK int nbd_hosts_check(const struct nbd_hosts *hosts, const struct nbd_facts *first,
	const struct nbd_facts *other, uint16_t promised, struct error *error);
