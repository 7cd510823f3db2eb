// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_kernel.h"

#include <errno.h>
#include <linux/nbd-netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "attach/process.h"
#include "nbd/wire.h"

enum {
	ATTR_BACKEND_IDENTIFIER = 10, /* headers before 5.14 lack it */
	/* From linux/nbd.h, which cannot be included beside the protocol's own numbers. */
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
	return rc == 0 ? 0 : error_set(error, rc, "cannot ask the nbd driver: %s", strerror(-rc));
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
	/* No item: there is no such device. */
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
