// SPDX-License-Identifier: Apache-2.0
/*
 * Orders to the kernel's nbd driver (rule P135).
 *
 * Threading: as struct netlink. Ownership: sockets stay the caller's, the kernel holds them as
 * well. Errors: negative errno, what the driver answered; -ENOSYS no driver, with a sentence where
 * an error is taken.
 */
#pragma once

#include "attach/netlink.h"
#include "base/error.h"

struct nbd_kernel_device {
	int32_t index; /* -1 = any that is free */
	uint64_t bytes;
	uint32_t block_bytes;
	uint16_t server_flags;
	bool destroy;		 /* the device vanishes when it is disconnected */
	uint64_t timeout_s;	 /* of a request, until its connection counts as dead */
	uint64_t dead_timeout_s; /* how long requests wait for a new connection */
	const char *backend;	 /* who this is: needed again to give it new sockets */
};

/* Finds the driver, loading its module if it is missing. */
GMB_MUST_CHECK int nbd_kernel_open(struct netlink *netlink, struct error *error);

/* The flags of an export that the running kernel understands (rule P136). */
uint16_t nbd_kernel_flags(uint16_t flags);

/* Makes a disk of sockets. index is set. */
GMB_MUST_CHECK int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count);

/* Gives it a socket in the place of one that the kernel knows to be dead. */
GMB_MUST_CHECK int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket);

GMB_MUST_CHECK int nbd_kernel_disconnect(struct netlink *netlink, int32_t index);

/* 1 connected, 0 not. */
GMB_MUST_CHECK int nbd_kernel_status(struct netlink *netlink, int32_t index);

/* Reads news: the index of a device that lost a connection, or negative: -EAGAIN none. */
GMB_MUST_CHECK int nbd_kernel_dead_link(struct netlink *netlink);
