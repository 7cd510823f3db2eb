// SPDX-License-Identifier: Apache-2.0
/*
 * Commands to the kernel's nbd driver (P135 in docs/protocol/nbd.md) over generic netlink. Only the
 * parts that the driver needs are implemented: one family, messages with attributes, an
 * acknowledgement for each, and the family's notifications.
 *
 * Threading: one thread at a time for each struct netlink. Ownership: the caller owns the structs
 * and the sockets; the kernel holds its own references to the sockets. Errors: negative errno, as
 * returned by the driver; -ENOSYS if there is no driver, with an error message if an error argument
 * is taken.
 */
#pragma once

#include <linux/netlink.h>
#include <stddef.h>

#include "base/compiler.h"
#include "base/error.h"

struct netlink {
	int fd;
	uint16_t family;
	uint32_t group; /* multicast group of the notifications */
	uint32_t sequence;
};

enum { NETLINK_MESSAGE_BYTES = 8192 };

struct netlink_message {
	uint32_t used;
	bool overflow; /* an attribute did not fit: sending returns -EMSGSIZE */
	uint8_t bytes[NETLINK_MESSAGE_BYTES] __attribute__((aligned(4)));
};

/* Connects, and looks up the family and its first multicast group. */
GMB_MUST_CHECK int netlink_open(struct netlink *netlink, const char *family);
void netlink_close(struct netlink *netlink);

/* Subscribes to the family's notifications, which netlink_receive() returns. */
GMB_MUST_CHECK int netlink_join(struct netlink *netlink);

/* Functions that build a message. */
void netlink_begin(struct netlink_message *message, uint8_t command);
void netlink_put_u32(struct netlink_message *message, uint16_t type, uint32_t value);
void netlink_put_u64(struct netlink_message *message, uint16_t type, uint64_t value);
void netlink_put_text(struct netlink_message *message, uint16_t type, const char *text);
/* Attributes put between these two calls are nested. */
uint32_t netlink_nest(struct netlink_message *message, uint16_t type);
void netlink_nest_end(struct netlink_message *message, uint32_t start);

/* Sends the message and waits for the acknowledgement. The answer, if any, replaces the message;
 * otherwise used is 0. */
GMB_MUST_CHECK int netlink_ask(struct netlink *netlink, struct netlink_message *message);

/* Receives the next notification without waiting. Returns its command, -EAGAIN if there is none,
 * -ENOBUFS if some were lost, or -EPROTO if it is not one of the family. */
GMB_MUST_CHECK int netlink_receive(struct netlink *netlink, struct netlink_message *message);

/* Parsing: returns the payload of an attribute inside [bytes, bytes + size), or NULL if it does not
 * exist or is shorter than wanted. */
const void *netlink_find(
	const void *bytes, size_t size, uint16_t type, size_t wanted, size_t *payload_bytes);

/* Returns the attributes of an answer or notification. */
const void *netlink_attributes(const struct netlink_message *message, size_t *bytes);

/* --- the nbd driver ------------------------------------------------------------------------- */

struct nbd_kernel_device {
	int32_t index; /* -1: any free one */
	uint64_t bytes;
	uint32_t block_bytes;
	uint16_t server_flags;
	bool destroy; /* the device is removed when it is disconnected */
	/* time for a request, after which its connection counts as dead */
	uint64_t timeout_s;
	uint64_t dead_timeout_s; /* time that requests wait for a new connection */
	const char *backend;	 /* our name, required again to replace sockets */
};

/* Connects to the driver, loading its module if it is missing. */
GMB_MUST_CHECK int nbd_kernel_open(struct netlink *netlink, struct error *error);

/* Returns those of the export flags that the running kernel understands (P136 in
 * docs/protocol/nbd.md). */
uint16_t nbd_kernel_flags(uint16_t flags);

/* Creates a disk on these sockets and sets index. */
GMB_MUST_CHECK int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count);

/* Replaces a socket that the kernel knows to be dead. */
GMB_MUST_CHECK int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket);

/* Sets the size of the disk; the block size stays. Drivers before Linux 5.3 ignore this without an
 * error. */
GMB_MUST_CHECK int nbd_kernel_resize(
	struct netlink *netlink, const struct nbd_kernel_device *device, uint64_t bytes);

GMB_MUST_CHECK int nbd_kernel_disconnect(struct netlink *netlink, int32_t index);

/* Returns 1 if connected, 0 if not. */
GMB_MUST_CHECK int nbd_kernel_status(struct netlink *netlink, int32_t index);

/* Takes the next notification: the device index of a lost connection, -EPROTO for another one, or
 * -EAGAIN if there is none. */
GMB_MUST_CHECK int nbd_kernel_dead_link(struct netlink *netlink);
