// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_kernel.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/nbd-netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "attach/process.h"
#include "nbd/wire.h"

enum {
	ATTR_BACKEND_IDENTIFIER = 10, /* missing in headers before 5.14 */
	/* From linux/nbd.h, which conflicts with the protocol's own numbers. */
	CLIENT_DESTROY_ON_DISCONNECT = 1 << 0,
	KERNEL_6_12 = 6 << 16 | 12,
};

int nbd_kernel_open(struct netlink *netlink, struct error *error)
{
	int rc = netlink_open(netlink, NBD_GENL_FAMILY_NAME);

	if (rc == -ENOSYS) {
		process_load_module("nbd");
		rc = netlink_open(netlink, NBD_GENL_FAMILY_NAME);
	}
	if (rc == -ENOSYS) {
		return error_set(error, rc,
			"this kernel has no nbd driver, or its module nbd is not installed");
	}
	return rc == 0 ? 0 : error_set(error, rc, "cannot query the nbd driver: %s", strerror(-rc));
}

static int kernel_version(void)
{
	struct utsname names;
	unsigned int major = 0;
	unsigned int minor = 0;

	if (uname(&names) != 0 || sscanf(names.release, "%u.%u", &major, &minor) != 2) {
		return 0;
	}
	return (int)(major << 16 | MIN(minor, 0xffffU));
}

uint16_t nbd_kernel_flags(uint16_t flags)
{
	uint16_t known = NBD_FLAG_HAS_FLAGS | NBD_FLAG_READ_ONLY | NBD_FLAG_SEND_FLUSH |
			 NBD_FLAG_SEND_FUA | NBD_FLAG_SEND_TRIM | NBD_FLAG_CAN_MULTI_CONN;

	if (kernel_version() >= KERNEL_6_12) {
		known |= NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_ROTATIONAL;
	}
	return flags & known;
}

static void put_sockets(struct netlink_message *message, const int *sockets, uint32_t count)
{
	uint32_t list = netlink_nest(message, NBD_ATTR_SOCKETS);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t item = netlink_nest(message, NBD_SOCK_ITEM);

		netlink_put_u32(message, NBD_SOCK_FD, (uint32_t)sockets[i]);
		netlink_nest_end(message, item);
	}
	netlink_nest_end(message, list);
}

static int answered_index(const struct netlink_message *message)
{
	size_t bytes;
	const void *attributes = netlink_attributes(message, &bytes);
	const void *payload =
		netlink_find(attributes, bytes, NBD_ATTR_INDEX, sizeof(uint32_t), NULL);
	uint32_t index;

	if (payload == NULL) {
		return -EPROTO;
	}
	memcpy(&index, payload, sizeof(index));
	return index <= INT32_MAX ? (int)index : -EPROTO;
}

int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count)
{
	struct netlink_message message;
	int rc;

	netlink_begin(&message, NBD_CMD_CONNECT);
	if (device->index >= 0) {
		netlink_put_u32(&message, NBD_ATTR_INDEX, (uint32_t)device->index);
	}
	netlink_put_u64(&message, NBD_ATTR_SIZE_BYTES, device->bytes);
	netlink_put_u64(&message, NBD_ATTR_BLOCK_SIZE_BYTES, device->block_bytes);
	netlink_put_u64(&message, NBD_ATTR_TIMEOUT, device->timeout_s);
	netlink_put_u64(&message, NBD_ATTR_DEAD_CONN_TIMEOUT, device->dead_timeout_s);
	netlink_put_u64(&message, NBD_ATTR_SERVER_FLAGS, device->server_flags);
	netlink_put_u64(&message, NBD_ATTR_CLIENT_FLAGS,
		device->destroy ? CLIENT_DESTROY_ON_DISCONNECT : 0);
	netlink_put_text(&message, ATTR_BACKEND_IDENTIFIER, device->backend);
	put_sockets(&message, sockets, count);
	rc = netlink_ask(netlink, &message);
	if (rc == 0) {
		rc = answered_index(&message);
	}
	if (rc >= 0) {
		device->index = rc;
		rc = 0;
	}
	return rc;
}

int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket)
{
	struct netlink_message message;

	netlink_begin(&message, NBD_CMD_RECONFIGURE);
	netlink_put_u32(&message, NBD_ATTR_INDEX, (uint32_t)device->index);
	netlink_put_u64(&message, NBD_ATTR_TIMEOUT, device->timeout_s);
	netlink_put_u64(&message, NBD_ATTR_DEAD_CONN_TIMEOUT, device->dead_timeout_s);
	netlink_put_text(&message, ATTR_BACKEND_IDENTIFIER, device->backend);
	put_sockets(&message, &socket, 1);
	return netlink_ask(netlink, &message);
}

int nbd_kernel_resize(
	struct netlink *netlink, const struct nbd_kernel_device *device, uint64_t bytes)
{
	struct netlink_message message;

	netlink_begin(&message, NBD_CMD_RECONFIGURE);
	netlink_put_u32(&message, NBD_ATTR_INDEX, (uint32_t)device->index);
	netlink_put_u64(&message, NBD_ATTR_SIZE_BYTES, bytes);
	netlink_put_u64(&message, NBD_ATTR_BLOCK_SIZE_BYTES, device->block_bytes);
	netlink_put_text(&message, ATTR_BACKEND_IDENTIFIER, device->backend);
	return netlink_ask(netlink, &message);
}

int nbd_kernel_disconnect(struct netlink *netlink, int32_t index)
{
	struct netlink_message message;

	netlink_begin(&message, NBD_CMD_DISCONNECT);
	netlink_put_u32(&message, NBD_ATTR_INDEX, (uint32_t)index);
	return netlink_ask(netlink, &message);
}

int nbd_kernel_status(struct netlink *netlink, int32_t index)
{
	struct netlink_message message;
	size_t bytes;
	size_t list_bytes = 0;
	size_t item_bytes = 0;
	const void *at;
	int rc;

	netlink_begin(&message, NBD_CMD_STATUS);
	netlink_put_u32(&message, NBD_ATTR_INDEX, (uint32_t)index);
	rc = netlink_ask(netlink, &message);
	if (rc != 0) {
		return rc;
	}
	at = netlink_attributes(&message, &bytes);
	at = netlink_find(at, bytes, NBD_ATTR_DEVICE_LIST, 0, &list_bytes);
	/* If the list is empty, there is no such device. */
	at = at != NULL ? netlink_find(at, list_bytes, NBD_DEVICE_ITEM, 0, &item_bytes) : NULL;
	at = at != NULL ? netlink_find(at, item_bytes, NBD_DEVICE_CONNECTED, 1, NULL) : NULL;
	return at != NULL && *(const uint8_t *)at != 0;
}

int nbd_kernel_dead_link(struct netlink *netlink)
{
	struct netlink_message message;
	int command = netlink_receive(netlink, &message);

	if (command < 0) {
		return command;
	}
	return command == NBD_CMD_LINK_DEAD ? answered_index(&message) : -EPROTO;
}

enum { HEADERS_BYTES = NLMSG_HDRLEN + GENL_HDRLEN };

/* --- writing ------------------------------------------------------------------------------- */

void netlink_begin(struct netlink_message *message, uint8_t command)
{
	struct genlmsghdr header = { .cmd = command, .version = 1 };

	memset(message->bytes, 0, HEADERS_BYTES);
	memcpy(message->bytes + NLMSG_HDRLEN, &header, sizeof(header));
	message->used = HEADERS_BYTES;
	message->overflow = false;
}

static void nbd_kernel_put(
	struct netlink_message *message, uint16_t type, const void *payload, size_t bytes)
{
	struct nlattr attribute = { .nla_len = (uint16_t)(NLA_HDRLEN + bytes), .nla_type = type };
	size_t padded = NLA_ALIGN(NLA_HDRLEN + bytes);

	if (message->overflow || bytes > UINT16_MAX / 2 ||
		padded > sizeof(message->bytes) - message->used) {
		message->overflow = true;
		return;
	}
	memset(message->bytes + message->used, 0, padded);
	memcpy(message->bytes + message->used, &attribute, sizeof(attribute));
	if (bytes > 0) {
		memcpy(message->bytes + message->used + NLA_HDRLEN, payload, bytes);
	}
	message->used += (uint32_t)padded;
}

void netlink_put_u32(struct netlink_message *message, uint16_t type, uint32_t value)
{
	nbd_kernel_put(message, type, &value, sizeof(value));
}

void netlink_put_u64(struct netlink_message *message, uint16_t type, uint64_t value)
{
	nbd_kernel_put(message, type, &value, sizeof(value));
}

void netlink_put_text(struct netlink_message *message, uint16_t type, const char *text)
{
	nbd_kernel_put(message, type, text, strlen(text) + 1);
}

uint32_t netlink_nest(struct netlink_message *message, uint16_t type)
{
	uint32_t start = message->used;

	nbd_kernel_put(message, type | NLA_F_NESTED, NULL, 0);
	return start;
}

void netlink_nest_end(struct netlink_message *message, uint32_t start)
{
	uint16_t len = (uint16_t)(message->used - start);

	if (!message->overflow) {
		memcpy(message->bytes + start + offsetof(struct nlattr, nla_len), &len,
			sizeof(len));
	}
}

/* --- parsing ---------------------------------------------------------------------------------- */

/* Returns NULL if a length is malformed. */
const void *netlink_find(
	const void *bytes, size_t size, uint16_t type, size_t wanted, size_t *payload_bytes)
{
	const uint8_t *at = bytes;
	size_t left = size;

	while (left >= NLA_HDRLEN) {
		struct nlattr attribute;
		size_t step;

		memcpy(&attribute, at, sizeof(attribute));
		if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > left) {
			return NULL;
		}
		if ((attribute.nla_type & NLA_TYPE_MASK) == type) {
			if (payload_bytes != NULL) {
				*payload_bytes = attribute.nla_len - NLA_HDRLEN;
			}
			return attribute.nla_len >= NLA_HDRLEN + wanted ? at + NLA_HDRLEN : NULL;
		}
		step = NLA_ALIGN(attribute.nla_len);
		if (step >= left) {
			return NULL;
		}
		at += step;
		left -= step;
	}
	return NULL;
}

const void *netlink_attributes(const struct netlink_message *message, size_t *bytes)
{
	*bytes = message->used > HEADERS_BYTES ? message->used - HEADERS_BYTES : 0;
	return message->bytes + HEADERS_BYTES;
}

/* --- exchange of messages --------------------------------------------------------------------- */

/* Receives one packet, which may contain several messages. Returns its length. */
static int receive_packet(struct netlink *netlink, void *bytes, size_t size, int flags)
{
	ssize_t count;

	do {
		count = recv(netlink->fd, bytes, size, flags);
	} while (count < 0 && errno == EINTR);
	return count < 0 ? -errno : (int)count;
}

static void keep_answer(
	struct netlink_message *message, const struct nlmsghdr *header, const uint8_t *at)
{
	memcpy(message->bytes, at, header->nlmsg_len);
	message->used = header->nlmsg_len;
}

/* Searches a packet for the answer to the request. Returns 1 if the acknowledgement is still
 * missing, otherwise its result. */
static int take_packet(struct netlink *netlink, const uint8_t *packet, size_t left,
	struct netlink_message *message)
{
	while (left >= NLMSG_HDRLEN) {
		struct nlmsghdr header;
		int code;

		memcpy(&header, packet, sizeof(header));
		if (header.nlmsg_len < NLMSG_HDRLEN || header.nlmsg_len > left) {
			return -EPROTO;
		}
		if (header.nlmsg_seq == netlink->sequence && header.nlmsg_type == NLMSG_ERROR) {
			if (header.nlmsg_len < NLMSG_HDRLEN + sizeof(code)) {
				return -EPROTO;
			}
			memcpy(&code, packet + NLMSG_HDRLEN, sizeof(code));
			return MIN(code, 0);
		}
		if (header.nlmsg_seq == netlink->sequence && header.nlmsg_len >= HEADERS_BYTES &&
			header.nlmsg_len <= sizeof(message->bytes)) {
			keep_answer(message, &header, packet);
		}
		if (NLMSG_ALIGN(header.nlmsg_len) >= left) {
			break;
		}
		left -= NLMSG_ALIGN(header.nlmsg_len);
		packet += NLMSG_ALIGN(header.nlmsg_len);
	}
	return 1;
}

static int nbd_kernel_send_message(struct netlink *netlink, struct netlink_message *message)
{
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct nlmsghdr header = {
		.nlmsg_len = message->used,
		.nlmsg_type = netlink->family,
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
		.nlmsg_seq = ++netlink->sequence,
	};
	ssize_t count;

	if (message->overflow) {
		return -EMSGSIZE;
	}
	memcpy(message->bytes, &header, sizeof(header));
	do {
		count = sendto(netlink->fd, message->bytes, message->used, 0,
			(struct sockaddr *)&kernel, sizeof(kernel));
	} while (count < 0 && errno == EINTR);
	return count < 0 ? -errno : 0;
}

int netlink_ask(struct netlink *netlink, struct netlink_message *message)
{
	uint8_t packet[NETLINK_MESSAGE_BYTES] __attribute__((aligned(4)));
	int rc = nbd_kernel_send_message(netlink, message);

	message->used = 0;
	if (rc != 0) {
		return rc;
	}
	do {
		rc = receive_packet(netlink, packet, sizeof(packet), 0);
		if (rc >= 0) {
			rc = take_packet(netlink, packet, (size_t)rc, message);
		}
	} while (rc > 0);
	return rc;
}

int netlink_receive(struct netlink *netlink, struct netlink_message *message)
{
	int count = receive_packet(netlink, message->bytes, sizeof(message->bytes), MSG_DONTWAIT);
	struct nlmsghdr header;
	struct genlmsghdr generic;

	if (count < 0) {
		return count;
	}
	if (count < HEADERS_BYTES) {
		return -EPROTO;
	}
	memcpy(&header, message->bytes, sizeof(header));
	memcpy(&generic, message->bytes + NLMSG_HDRLEN, sizeof(generic));
	message->used = MIN((uint32_t)count, header.nlmsg_len);
	return header.nlmsg_type == netlink->family && message->used >= HEADERS_BYTES ? generic.cmd
										      : -EPROTO;
}

/* --- the family ---------------------------------------------------------------------------- */

/* Returns the number of the first multicast group; 0 if there is none. */
static uint32_t first_group(const void *attributes, size_t bytes)
{
	size_t groups_bytes = 0;
	size_t group_bytes = 0;
	const void *groups =
		netlink_find(attributes, bytes, CTRL_ATTR_MCAST_GROUPS, 0, &groups_bytes);
	/* The list's members have their position as type, from 1 on. */
	const void *group =
		groups != NULL ? netlink_find(groups, groups_bytes, 1, 0, &group_bytes) : NULL;
	const void *id = group != NULL ? netlink_find(group, group_bytes, CTRL_ATTR_MCAST_GRP_ID,
						 sizeof(uint32_t), NULL)
				       : NULL;
	uint32_t value = 0;

	if (id != NULL) {
		memcpy(&value, id, sizeof(value));
	}
	return value;
}

static int find_family(struct netlink *netlink, const char *family)
{
	struct netlink_message message;
	const void *attributes;
	const void *id;
	size_t bytes;
	int rc;

	netlink->family = GENL_ID_CTRL;
	netlink_begin(&message, CTRL_CMD_GETFAMILY);
	netlink_put_text(&message, CTRL_ATTR_FAMILY_NAME, family);
	rc = netlink_ask(netlink, &message);
	if (rc != 0) {
		return rc == -ENOENT ? -ENOSYS : rc;
	}
	attributes = netlink_attributes(&message, &bytes);
	id = netlink_find(attributes, bytes, CTRL_ATTR_FAMILY_ID, sizeof(uint16_t), NULL);
	if (id == NULL) {
		return -EPROTO;
	}
	memcpy(&netlink->family, id, sizeof(netlink->family));
	netlink->group = first_group(attributes, bytes);
	return 0;
}

int netlink_open(struct netlink *netlink, const char *family)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK };
	int rc = 0;

	*netlink = (struct netlink){
		.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC),
	};
	if (netlink->fd < 0) {
		return errno == EPROTONOSUPPORT ? -ENOSYS : -errno;
	}
	if (bind(netlink->fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = find_family(netlink, family);
	}
	if (rc != 0) {
		netlink_close(netlink);
	}
	return rc;
}

void netlink_close(struct netlink *netlink)
{
	if (netlink->fd >= 0) {
		close(netlink->fd);
		netlink->fd = -1;
	}
}

int netlink_join(struct netlink *netlink)
{
	if (netlink->group == 0) {
		return -EOPNOTSUPP;
	}
	return setsockopt(netlink->fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &netlink->group,
		       sizeof(netlink->group)) == 0
		       ? 0
		       : -errno;
}
