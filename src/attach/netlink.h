// SPDX-License-Identifier: Apache-2.0
/*
 * Generic netlink, as much as the nbd driver needs: one family, messages with attributes, an
 * acknowledgement for each, and the family's news.
 *
 * Threading: one thread at a time for each struct netlink. Ownership: the caller's structs. Errors:
 * negative errno: what the kernel answered, -ENOSYS when the family does not exist.
 */
#pragma once

#include <linux/netlink.h>
#include <stddef.h>

#include "base/compiler.h"

struct netlink {
	int fd;
	uint16_t family;
	uint32_t group; /* for the news */
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

/* Subscribes to the family's news, which netlink_receive() returns then. */
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

/* The next news without waiting: the command, or -EAGAIN; -ENOBUFS: some were lost. */
GMB_MUST_CHECK int netlink_receive(struct netlink *netlink, struct netlink_message *message);

/* Reading: the payload of an attribute inside [bytes, bytes + size), NULL if it is not there or
 * shorter than wanted. */
const void *netlink_find(
	const void *bytes, size_t size, uint16_t type, size_t wanted, size_t *payload_bytes);

/* The attributes of an answer or of news. */
const void *netlink_attributes(const struct netlink_message *message, size_t *bytes);
