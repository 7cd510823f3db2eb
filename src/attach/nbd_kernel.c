// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nbd-netlink.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach/process.h"
#include "base/kernel.h"
#include "base/log.h"
#include "nbd/wire.h"

enum {
	ATTR_BACKEND_IDENTIFIER = 10, /* missing in headers before 5.14 */
	/* From linux/nbd.h, which conflicts with the protocol's own numbers. */
	CLIENT_DESTROY_ON_DISCONNECT = 1 << 0,
	REQUEST_BYTES_MAX = 8192,
};

uint16_t nbd_kernel_flags(uint16_t flags)
{
	uint16_t known = NBD_FLAG_HAS_FLAGS | NBD_FLAG_READ_ONLY | NBD_FLAG_SEND_FLUSH |
			 NBD_FLAG_SEND_FUA | NBD_FLAG_SEND_TRIM | NBD_FLAG_CAN_MULTI_CONN;

	if (kernel_is_at_least(6, 12)) {
		known |= NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_ROTATIONAL;
	}
	return flags & known;
}

/* --- libnl --------------------------------------------------------------------------------- */

/* Converts a result of libnl to a negative errno. libnl has its own error codes; NLE_FAILURE stands
 * for every errno that has no code. */
static int nbd_kernel_errno(int result)
{
	if (result >= 0) {
		return 0;
	}
	switch (-result) {
	case NLE_AGAIN:
		return -EAGAIN;
	case NLE_NOMEM: /* NLE_NOMEM also reports lost notifications */
		return -ENOMEM;
	case NLE_PERM:
		return -EPERM;
	case NLE_NOACCESS:
		return -EACCES;
	case NLE_AF_NOSUPPORT:
		return -EAFNOSUPPORT;
	case NLE_OBJ_NOTFOUND:	 /* no such family */
	case NLE_PROTO_MISMATCH: /* no generic netlink */
		return -ENOSYS;
	case NLE_FAILURE:
		return errno != 0 ? -errno : -EIO;
	default:
		return -EIO;
	}
}

/* Finds an attribute nested in another one. Returns NULL if either does not exist. */
static struct nlattr *find_nested(const struct nlattr *outer, int type)
{
	return outer != NULL ? nla_find(nla_data(outer), nla_len(outer), type) : NULL;
}

/* Called by libnl for every received message. */
static int take_message(struct nl_msg *message, void *argument)
{
	struct netlink *netlink = argument;
	struct nlmsghdr *header = nlmsg_hdr(message);
	struct nlattr *found;

	if (header->nlmsg_seq != netlink->sequence) {
		return NL_SKIP;
	}
	/* An acknowledgement is an error message with code 0. */
	if (header->nlmsg_type == NLMSG_ERROR) {
		const struct nlmsgerr *result = nlmsg_data(header);

		netlink->is_acknowledged = true;
		netlink->code =
			nlmsg_datalen(header) >= (int)sizeof(*result) ? result->error : -EPROTO;
		return NL_STOP;
	}
	netlink->command = genlmsg_valid_hdr(header, 0) ? genlmsg_hdr(header)->cmd : NBD_CMD_UNSPEC;
	found = nlmsg_find_attr(header, GENL_HDRLEN, NBD_ATTR_INDEX);
	if (found != NULL && nla_len(found) == sizeof(uint32_t)) {
		netlink->index = nla_get_s32(found);
	}
	found = nlmsg_find_attr(header, GENL_HDRLEN, NBD_ATTR_DEVICE_LIST);
	/* If the list is empty, the device that was asked for does not exist. */
	found = find_nested(find_nested(found, NBD_DEVICE_ITEM), NBD_DEVICE_CONNECTED);
	netlink->is_connected = found != NULL && nla_len(found) == 1 && nla_get_u8(found) != 0;
	return NL_SKIP;
}

static int netlink_open(struct netlink *netlink)
{
	int rc;

	*netlink = (struct netlink){ .socket = nl_socket_alloc() };
	if (netlink->socket == NULL) {
		return -ENOMEM;
	}
	rc = genl_connect(netlink->socket);
	rc = rc ?: genl_ctrl_resolve(netlink->socket, NBD_GENL_FAMILY_NAME);
	if (rc < 0) {
		rc = nbd_kernel_errno(rc);
		nbd_kernel_close(netlink);
		return rc;
	}
	netlink->family = rc;
	netlink->group = genl_ctrl_resolve_grp(
		netlink->socket, NBD_GENL_FAMILY_NAME, NBD_GENL_MCAST_GROUP_NAME);
	netlink->fd = nl_socket_get_fd(netlink->socket);
	nl_socket_modify_cb(netlink->socket, NL_CB_MSG_IN, NL_CB_CUSTOM, take_message, netlink);
	return 0;
}

int nbd_kernel_open(struct netlink *netlink, struct error *error)
{
	int rc = netlink_open(netlink);

	if (rc == -ENOSYS) {
		process_load_module("nbd");
		rc = netlink_open(netlink);
	}
	if (rc == -ENOSYS) {
		return error_set(error, rc,
			"this kernel has no nbd driver, or its module nbd is not installed");
	}
	return rc == 0 ? 0 : error_set(error, rc, "cannot query the nbd driver: %s", strerror(-rc));
}

int nbd_kernel_listen(struct netlink *netlink)
{
	int rc = netlink_open(netlink);

	if (rc == 0 && netlink->group < 0) {
		rc = -EOPNOTSUPP;
	} else if (rc == 0) {
		rc = nbd_kernel_errno(nl_socket_add_membership(netlink->socket, netlink->group));
	}
	return rc == 0 ? nbd_kernel_errno(nl_socket_set_nonblocking(netlink->socket)) : rc;
}

void nbd_kernel_close(struct netlink *netlink)
{
	nl_socket_free(netlink->socket);
	netlink->socket = NULL;
}

/* Returns a request, to which attributes can be added until nbd_kernel_ask() frees it. NULL: out
 * of memory. index -1: none. */
static struct nl_msg *nbd_kernel_request(
	const struct netlink *netlink, uint8_t command, int32_t index)
{
	struct nl_msg *request = nlmsg_alloc_size(REQUEST_BYTES_MAX);

	if (request != NULL) {
		genlmsg_put(request, NL_AUTO_PORT, NL_AUTO_SEQ, netlink->family, 0, 0, command,
			NBD_GENL_VERSION);
		if (index >= 0) {
			nla_put_s32(request, NBD_ATTR_INDEX, index);
		}
	}
	return request;
}

static bool put_sockets(struct nl_msg *request, const int *sockets, uint32_t count)
{
	struct nlattr *list = nla_nest_start(request, NBD_ATTR_SOCKETS);
	bool fits = list != NULL;

	for (uint32_t i = 0; fits && i < count; i++) {
		struct nlattr *item = nla_nest_start(request, NBD_SOCK_ITEM);

		fits = item != NULL && nla_put_s32(request, NBD_SOCK_FD, sockets[i]) == 0 &&
		       nla_nest_end(request, item) == 0;
	}
	return fits && nla_nest_end(request, list) == 0;
}

/* Sends a request and waits for its acknowledgement. take_message() keeps the answer. fits: all
 * attributes could be added. */
static int nbd_kernel_ask(struct netlink *netlink, struct nl_msg *request, bool fits)
{
	int rc;

	if (!fits) {
		nlmsg_free(request);
		return request == NULL ? -ENOMEM : -EMSGSIZE;
	}
	rc = nl_send_auto(netlink->socket, request);
	netlink->sequence = nlmsg_hdr(request)->nlmsg_seq;
	netlink->is_acknowledged = false;
	netlink->is_connected = false;
	netlink->index = -EPROTO;
	nlmsg_free(request);
	while (rc >= 0 && !netlink->is_acknowledged) {
		rc = nl_recvmsgs_default(netlink->socket);
	}
	return rc < 0 ? nbd_kernel_errno(rc) : netlink->code;
}

/* --- the driver's commands ----------------------------------------------------------------- */

static int connect_once(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count)
{
	const uint64_t client_flags = device->destroy ? CLIENT_DESTROY_ON_DISCONNECT : 0;
	struct nl_msg *request = nbd_kernel_request(netlink, NBD_CMD_CONNECT, device->index);
	bool fits = request != NULL &&
		    nla_put_u64(request, NBD_ATTR_SIZE_BYTES, device->bytes) == 0 &&
		    nla_put_u64(request, NBD_ATTR_BLOCK_SIZE_BYTES, device->block_bytes) == 0 &&
		    nla_put_u64(request, NBD_ATTR_TIMEOUT, device->timeout_s) == 0 &&
		    nla_put_u64(request, NBD_ATTR_DEAD_CONN_TIMEOUT, device->dead_timeout_s) == 0 &&
		    nla_put_u64(request, NBD_ATTR_SERVER_FLAGS, device->server_flags) == 0 &&
		    nla_put_u64(request, NBD_ATTR_CLIENT_FLAGS, client_flags) == 0 &&
		    nla_put_string(request, ATTR_BACKEND_IDENTIFIER, device->backend) == 0 &&
		    put_sockets(request, sockets, count);
	int rc = nbd_kernel_ask(netlink, request, fits);

	if (rc == 0 && netlink->index < 0) {
		rc = -EPROTO;
	} else if (rc == 0) {
		device->index = netlink->index;
	}
	return rc;
}

/* Returns whether the server of a writable disk rejects requests to zero ranges. */
static bool has_no_zero(const struct nbd_kernel_device *device)
{
	return (device->server_flags & (NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_READ_ONLY)) == 0;
}

/* Returns whether an earlier disk of this device permitted requests to zero ranges, and the new one
 * does not. The driver does not reset this limit, so the kernel would send such requests. */
static bool is_stale(const struct nbd_kernel_device *device, const char *folder)
{
	char path[96];
	unsigned long long bytes = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/queue/write_zeroes_max_bytes", folder);
	file = fopen(path, "re");
	if (file != NULL) {
		(void)!fscanf(file, "%llu", &bytes);
		fclose(file);
	}
	return bytes != 0 && has_no_zero(device);
}

int nbd_kernel_connect(struct netlink *netlink, struct nbd_kernel_device *device,
	const int *sockets, uint32_t count)
{
	bool is_searching = device->index < 0 && (device->is_new || has_no_zero(device));
	bool is_wrong;
	char folder[64];
	int rc;

	do { /* until a suitable device is free */
		device->index += is_searching;
		snprintf(folder, sizeof(folder), "/sys/block/nbd%d", (int)device->index);
		/* The driver creates a device that does not exist; we also remove it. */
		device->destroy = device->index >= 0 && access(folder, F_OK) != 0;
		is_wrong = is_stale(device, folder) ||
			   (is_searching && device->is_new && !device->destroy);
		rc = is_wrong ? -EBUSY : connect_once(netlink, device, sockets, count);
	} while (is_searching && rc == -EBUSY);
	return is_wrong && nbd_kernel_status(netlink, device->index) == 0 ? -ESTALE : rc;
}

int nbd_kernel_explain_connect(int rc, int32_t number, struct error *error)
{
	return rc == -EPERM || rc == -EACCES
		       ? error_set(error, -EPERM, "only root can create block devices")
	       : rc == -EBUSY ? error_set(error, rc, "/dev/nbd%d is already connected", (int)number)
	       : rc == -ESTALE
		       ? error_set(error, rc,
				 "/dev/nbd%d was used before, and the kernel would zero ranges as "
				 "its earlier disk permitted, but this disk does not; omit "
				 "--device, or use the number of a device that does not exist yet",
				 (int)number)
		       : error_set(error, rc, "the nbd driver cannot create a disk: %s",
				 strerror(-rc));
}

int nbd_kernel_reconfigure(
	struct netlink *netlink, const struct nbd_kernel_device *device, int socket)
{
	struct nl_msg *request = nbd_kernel_request(netlink, NBD_CMD_RECONFIGURE, device->index);
	bool fits = request != NULL &&
		    nla_put_u64(request, NBD_ATTR_TIMEOUT, device->timeout_s) == 0 &&
		    nla_put_u64(request, NBD_ATTR_DEAD_CONN_TIMEOUT, device->dead_timeout_s) == 0 &&
		    nla_put_string(request, ATTR_BACKEND_IDENTIFIER, device->backend) == 0 &&
		    put_sockets(request, &socket, 1);

	return nbd_kernel_ask(netlink, request, fits);
}

int nbd_kernel_resize(
	struct netlink *netlink, const struct nbd_kernel_device *device, uint64_t bytes)
{
	struct nl_msg *request = nbd_kernel_request(netlink, NBD_CMD_RECONFIGURE, device->index);
	bool fits = request != NULL && nla_put_u64(request, NBD_ATTR_SIZE_BYTES, bytes) == 0 &&
		    nla_put_u64(request, NBD_ATTR_BLOCK_SIZE_BYTES, device->block_bytes) == 0 &&
		    nla_put_string(request, ATTR_BACKEND_IDENTIFIER, device->backend) == 0;

	return nbd_kernel_ask(netlink, request, fits);
}

int nbd_kernel_disconnect(struct netlink *netlink, int32_t index)
{
	struct nl_msg *request = nbd_kernel_request(netlink, NBD_CMD_DISCONNECT, index);

	return nbd_kernel_ask(netlink, request, request != NULL);
}

int nbd_kernel_status(struct netlink *netlink, int32_t index)
{
	struct nl_msg *request = nbd_kernel_request(netlink, NBD_CMD_STATUS, index);
	int rc = nbd_kernel_ask(netlink, request, request != NULL);

	return rc != 0 ? rc : netlink->is_connected;
}

int nbd_kernel_dead_link(struct netlink *netlink)
{
	int rc;

	netlink->command = NBD_CMD_UNSPEC;
	netlink->index = -EPROTO;
	rc = nbd_kernel_errno(nl_recvmsgs_default(netlink->socket));
	if (rc != 0) {
		return rc;
	}
	return netlink->command == NBD_CMD_LINK_DEAD ? netlink->index : -EPROTO;
}

/* Lowers a limit of the disk's queue, if it is higher. max: 0: none. */
static void nbd_kernel_limit(
	const struct nbd_kernel_device *device, const char *limit, uint64_t max)
{
	char path[96];
	char text[24];
	int fd;
	int len;

	snprintf(path, sizeof(path), "/sys/block/nbd%d/queue/%s", (int)device->index, limit);
	fd = max != 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0) {
		return;
	}
	len = (int)read(fd, text, sizeof(text) - 1);
	text[MAX(len, 0)] = '\0';
	if (strtoull(text, NULL, 10) > max) {
		len = snprintf(text, sizeof(text), "%llu", (unsigned long long)max);
		if (pwrite(fd, text, (size_t)len, 0) != len) {
			log_warning("cannot set %s to %s: %s", path, text, strerror(errno));
		}
	}
	close(fd);
}

void nbd_kernel_limit_requests(const struct nbd_kernel_device *device)
{
	nbd_kernel_limit(device, "max_sectors_kb", device->payload_max / 1024);
	nbd_kernel_limit(device, "discard_max_bytes", device->discard_max);
}
