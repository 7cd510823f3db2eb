// SPDX-License-Identifier: Apache-2.0
/*
 * Commands to the kernel's nbd driver (P135 in docs/protocol/nbd.md) over generic netlink, by
 * libnl. The driver acknowledges each request. For some requests it sends an answer before the
 * acknowledgement. It also sends notifications.
 *
 * Threading: one thread at a time for each struct netlink. Ownership: the caller owns the structs
 * and the sockets; the kernel holds its own references to the sockets. Errors: negative errno, as
 * returned by the driver; -ENOSYS if there is no driver. With an error message if an error argument
 * is taken.
 */
#pragma once

#include "base/compiler.h"
#include "base/error.h"

struct nl_sock;

/* A connection to the driver. It must not be moved while it is open. */
struct netlink {
	struct nl_sock *socket; /* NULL: closed */
	int fd;			/* readable: a notification can be received */
	int family;
	int group; /* multicast group of the notifications; negative: none */

	/* Sequence number of the last request; 0: there was none, this connection only receives
	 * notifications. The members below are from messages with this number. */
	uint32_t sequence;
	bool is_acknowledged;
	uint8_t command;
	int code;	   /* the result in the acknowledgement */
	int32_t index;	   /* index of a device; -EPROTO: none */
	bool is_connected; /* the state of a device */
};

struct nbd_kernel_device {
	int32_t index; /* -1: any free one */
	bool is_new;   /* any free one must be a device that does not exist yet */
	uint64_t bytes;
	uint32_t block_bytes;
	uint16_t server_flags;
	bool destroy; /* the device is removed when it is disconnected; set by nbd_kernel_connect()
		       */
	/* Limits for requests with payload and for discards; 0: none. */
	uint32_t payload_max;
	uint64_t discard_max;
	/* time for a request, after which its connection counts as dead */
	uint64_t timeout_s;
	uint64_t dead_timeout_s; /* time that requests wait for a new connection */
	const char *backend;	 /* our name, required again to replace sockets */
};

/* Connects to the driver, loading its module if it is missing. */
GMB_MUST_CHECK int nbd_kernel_open(struct netlink *netlink, struct error *error);

/* Connects to the driver for its notifications. No other commands can be sent. */
GMB_MUST_CHECK int nbd_kernel_listen(struct netlink *netlink);

/* No-op if the connection is closed. */
void nbd_kernel_close(struct netlink *netlink);

/* Returns the export flags that the running kernel supports (P136 in
 * docs/protocol/nbd.md). */
uint16_t nbd_kernel_flags(uint16_t flags);

/* Creates a disk on these sockets and sets index and destroy. If any free device will do, skips
 * those that have a wrong limit from an earlier disk. -EBUSY: the device with the index is
 * connected; -ESTALE: it has such a limit. */
GMB_MUST_CHECK int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count);

/* Sets the error message for a result of nbd_kernel_connect(). number: the index that was wanted.
 * Returns rc, or -EPERM in place of -EACCES. */
GMB_MUST_CHECK int nbd_kernel_explain_connect(int rc, int32_t number, struct error *error);

/* Replaces a socket that the kernel knows to be dead. */
GMB_MUST_CHECK int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket);

/* Sets the size of the disk; the block size stays. */
GMB_MUST_CHECK int nbd_kernel_resize(
	struct netlink *netlink, const struct nbd_kernel_device *device, uint64_t bytes);

GMB_MUST_CHECK int nbd_kernel_disconnect(struct netlink *netlink, int32_t index);

/* Returns 1 if connected, 0 if not. */
GMB_MUST_CHECK int nbd_kernel_status(struct netlink *netlink, int32_t index);

/* Returns the device index of the next lost-connection notification. -EAGAIN: there is none.
 * -ENOMEM: some were lost. */
GMB_MUST_CHECK int nbd_kernel_dead_link(struct netlink *netlink);

/* Applies the limits for requests, because the driver does not know them. A failure is logged. */
void nbd_kernel_limit_requests(const struct nbd_kernel_device *device);
