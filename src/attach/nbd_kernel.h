// SPDX-License-Identifier: Apache-2.0
/*
 * Commands to the kernel's nbd driver (rule P135) over generic netlink, of which only what the
 * driver needs is here: one family, messages with attributes, an acknowledgement for each, and the
 * family's notifications.
 *
 * Threading: one thread at a time for each struct netlink. Ownership: the caller's structs; sockets
 * stay the caller's, the kernel holds them as well. Errors: negative errno, what the driver
 * answered; -ENOSYS no driver, with a sentence where an error is taken.
 */
#pragma once

#include <linux/netlink.h>
#include <stddef.h>

#include "base/compiler.h"
#include "base/error.h"

struct netlink {
	int fd;
	uint16_t family;
	uint32_t group; /* for notifications */
	uint32_t sequence;
};

enum { NETLINK_MESSAGE_BYTES = 8192 };

struct netlink_message {
	uint32_t used;
	bool overflow; /* something did not fit: sending gives -EMSGSIZE */
	uint8_t bytes[NETLINK_MESSAGE_BYTES] __attribute__((aligned(4)));
};

/* Connects, and finds the family and its first multicast group. */
GMB_MUST_CHECK int netlink_open(struct netlink *netlink, const char *family);
void netlink_close(struct netlink *netlink);

/* Subscribes to the family's notifications, which netlink_receive() returns. */
GMB_MUST_CHECK int netlink_join(struct netlink *netlink);

/* Writing a message. */
void netlink_begin(struct netlink_message *message, uint8_t command);
void netlink_put_u32(struct netlink_message *message, uint16_t type, uint32_t value);
void netlink_put_u64(struct netlink_message *message, uint16_t type, uint64_t value);
void netlink_put_text(struct netlink_message *message, uint16_t type, const char *text);
/* Attributes put between the two are inside. */
uint32_t netlink_nest(struct netlink_message *message, uint16_t type);
void netlink_nest_end(struct netlink_message *message, uint32_t start);

/* Sends it, waits for the acknowledgement, and leaves the answer in the message if there was one
 * (used is 0 otherwise). */
GMB_MUST_CHECK int netlink_ask(struct netlink *netlink, struct netlink_message *message);

/* The next notification, without waiting: the command, or -EAGAIN; -ENOBUFS: some were lost. */
GMB_MUST_CHECK int netlink_receive(struct netlink *netlink, struct netlink_message *message);

/* Reading: the payload of an attribute inside [bytes, bytes + size), NULL if it is not there or
 * shorter than wanted. */
const void *netlink_find(
	const void *bytes, size_t size, uint16_t type, size_t wanted, size_t *payload_bytes);

/* The attributes of an answer or notification. */
const void *netlink_attributes(const struct netlink_message *message, size_t *bytes);

/* --- the nbd driver ------------------------------------------------------------------------- */

struct nbd_kernel_device {
	int32_t index; /* -1 = any that is free */
	uint64_t bytes;
	uint32_t block_bytes;
	uint16_t server_flags;
	bool destroy;		 /* the device vanishes when it is disconnected */
	uint64_t timeout_s;	 /* of a request, until its connection counts as dead */
	uint64_t dead_timeout_s; /* how long requests wait for a new connection */
	const char *backend;	 /* our name: needed again to replace sockets */
};

/* Finds the driver, loading its module if it is missing. */
GMB_MUST_CHECK int nbd_kernel_open(struct netlink *netlink, struct error *error);

/* The flags of an export that the running kernel understands (rule P136). */
uint16_t nbd_kernel_flags(uint16_t flags);

/* Creates a disk on these sockets and sets index. */
GMB_MUST_CHECK int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count);

/* Replaces a socket that the kernel knows to be dead. */
GMB_MUST_CHECK int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket);

/* Makes the disk so large; its blocks stay. Drivers before Linux 5.3 ignore it without a word. */
GMB_MUST_CHECK int nbd_kernel_resize(
	struct netlink *netlink, const struct nbd_kernel_device *device, uint64_t bytes);

GMB_MUST_CHECK int nbd_kernel_disconnect(struct netlink *netlink, int32_t index);

/* 1 connected, 0 not. */
GMB_MUST_CHECK int nbd_kernel_status(struct netlink *netlink, int32_t index);

/* The next notification: the index of a device that lost a connection, or -EAGAIN: none. */
GMB_MUST_CHECK int nbd_kernel_dead_link(struct netlink *netlink);
