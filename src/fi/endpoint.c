// SPDX-License-Identifier: Apache-2.0
/*
 * Endpoints, passive endpoints and their connections (fi_cm(3)). Port P is clan's abstract Unix
 * socket clan-fi/P. Each side accepts only peers of the same user and of root. Any user can bind
 * such a name, so the connector checks the user of the process that listens.
 */
#include "fi/absent.h"
#include "fi/provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define HELLO_MAGIC UINT64_C(0x3169662d6e616c63) /* "clan-fi1" */
#define REJECTED    "clan-fi: rejected "

enum {
	/* A program can answer after a long computation. The death of its process is detected
	 * independently. */
	HANDSHAKE_TIMEOUT_MS = 24 * 60 * 60 * 1000,
	PORT_FIRST = 32768,
	PORT_COUNT = 28232, /* up to 60999, like the kernel's ephemeral ports */
	ADDRESS_BYTES = 64,
};

/* The hello of both sides. Little-endian, except for the address, which is in network byte
 * order. */
struct hello {
	uint64_t magic;
	uint32_t ops;	/* limit on this side's operations in flight */
	uint32_t bytes; /* length of the data that follows */
	uint16_t port;	/* port of the requested passive endpoint; 0 in the answer */
	uint16_t reserved[3];
	union prov_address from; /* address of the connector; zeroes in the answer */
	uint32_t reserved2;
};

_Static_assert(sizeof(struct hello) <= PROV_HELLO_BYTES_MAX - PROV_CM_BYTES_MAX,
	"the endpoint has room for a hello with the program's bytes");

static const uint32_t ep_edges[PROV_EP_STATE_COUNT] = {
	[PROV_EP_IDLE] = BIT(PROV_EP_ENABLED),
	[PROV_EP_ENABLED] = BIT(PROV_EP_CONNECTING) | BIT(PROV_EP_CONNECTED),
	[PROV_EP_CONNECTING] = BIT(PROV_EP_CONNECTED) | BIT(PROV_EP_OVER),
	[PROV_EP_CONNECTED] = BIT(PROV_EP_DRAINING) | BIT(PROV_EP_OVER),
	[PROV_EP_DRAINING] = BIT(PROV_EP_OVER),
	[PROV_EP_OVER] = 0,
};

static void ep_set_state(struct prov_ep *ep, enum prov_ep_state state)
{
	GMB_ASSERT((ep_edges[ep->state] & BIT(state)) != 0);
	ep->state = state;
}

static void endpoint_conn_options(struct clan_conn_options *options)
{
	*options = (struct clan_conn_options){
		.size = sizeof(*options),
		.access = CLAN_ACCESS_OWNER,
		.bulk_slots = PROV_RING_SLOTS,
		.handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS,
		.peer_slots_max = PROV_RING_SLOTS,
		.peer_regions_max = 1, /* regions are not used, but 0 selects the default */
		.peer_region_bytes_max = 4096,
	};
}

static void clan_address(char *text, uint16_t port)
{
	snprintf(text, ADDRESS_BYTES, "shm:@clan-fi/%u", port);
}

static size_t put_hello(
	uint8_t *place, const struct hello *hello, const void *data, size_t data_bytes)
{
	memcpy(place, hello, sizeof(*hello));
	if (data_bytes > 0) {
		memcpy(place + sizeof(*hello), data, data_bytes);
	}
	return sizeof(*hello) + data_bytes;
}

/* Checks the peer's hello, which is untrusted. Returns false if it is not of this protocol. */
static bool get_hello(const struct clan_conn *conn, struct hello *hello, const uint8_t **data_out)
{
	size_t bytes;
	const uint8_t *said = clan_conn_hello(conn, &bytes);

	if (bytes < sizeof(*hello)) {
		return false;
	}
	memcpy(hello, said, sizeof(*hello));
	*data_out = said + sizeof(*hello);
	return hello->magic == HELLO_MAGIC && hello->bytes <= PROV_CM_BYTES_MAX &&
	       hello->bytes == bytes - sizeof(*hello) && hello->ops >= 1 &&
	       hello->ops <= PROV_OPS_MAX && hello->reserved[0] == 0 && hello->reserved[1] == 0 &&
	       hello->reserved[2] == 0 && hello->reserved2 == 0;
}

static int copy_address(void *to, size_t *bytes, const union prov_address *address)
{
	size_t all = prov_address_bytes(address);
	size_t room = *bytes;

	*bytes = all;
	if (room > 0) {
		memcpy(to, address, MIN(all, room));
	}
	return room < all ? -FI_ETOOSMALL : 0;
}

static int any_getopt(fid_t fid, int level, int name, void *value, size_t *bytes)
{
	if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE) {
		return -FI_ENOPROTOOPT;
	}
	if (*bytes < sizeof(size_t)) {
		return -FI_ETOOSMALL;
	}
	*(size_t *)value = PROV_CM_BYTES_MAX;
	*bytes = sizeof(size_t);
	return 0;
}

static int any_setopt(fid_t fid, int level, int name, const void *value, size_t bytes)
{
	return -FI_ENOPROTOOPT;
}

static struct fi_ops_ep ep_ops = {
	.size = sizeof(struct fi_ops_ep),
	.cancel = absent_cancel,
	.getopt = any_getopt,
	.setopt = any_setopt,
	.tx_ctx = absent_tx_ctx,
	.rx_ctx = absent_rx_ctx,
	.rx_size_left = absent_size_left,
	.tx_size_left = absent_size_left,
};

/* --- connection requests ---------------------------------------------------------------------- */

static struct prov_pep *find_pep(struct prov_fabric *fabric, uint16_t port)
{
	list_for_each(node, &fabric->peps)
	{
		struct prov_pep *pep = list_entry(node, struct prov_pep, node);

		if (pep->listener != NULL && prov_address_port(&pep->address) == port) {
			return pep;
		}
	}
	return NULL;
}

static void free_request(struct prov_request *request)
{
	list_remove(&request->node);
	free(request);
}

/* Reports a connection request. The destination address in its info is the peer's address. */
static int offer_request(struct prov_pep *pep, struct clan_conn *conn, const struct hello *hello,
	const uint8_t *data)
{
	struct prov_request *request = calloc(1, sizeof(*request));
	struct fi_info *info =
		request == NULL ? NULL : prov_info_with(pep->info, &pep->address, &hello->from);

	if (info == NULL) {
		free(request);
		return -FI_ENOMEM;
	}
	request->fid.fclass = FI_CLASS_CONNREQ;
	request->fabric = pep->fabric;
	request->conn = conn;
	request->peer_ops = hello->ops;
	list_push_back(&pep->requests, &request->node);
	info->handle = &request->fid;
	if (prov_eq_add(pep->eq, FI_CONNREQ, &pep->pep.fid, info, data, hello->bytes, 0) != 0) {
		free_request(request);
		return -FI_ENOMEM;
	}
	clan_conn_set_context(conn, request);
	return 0;
}

void prov_request_arrived(struct prov_fabric *fabric, struct clan_conn *conn)
{
	const uint8_t *data;
	struct hello hello;
	struct prov_pep *pep = NULL;

	if (get_hello(conn, &hello, &data) && prov_address_bytes(&hello.from) != 0 &&
		prov_address_is_local(&hello.from)) {
		pep = find_pep(fabric, hello.port);
	}
	if (pep == NULL || offer_request(pep, conn, &hello, data) != 0) {
		clan_reject(conn, "clan-fi: not a clan-fi connection, or out of memory");
		fabric->closing++;
	}
}

void prov_request_lost(struct prov_request *request)
{
	prov_conn_close(request->fabric, request->conn);
	request->conn = NULL;
}

void prov_request_drop(struct fid *handle)
{
	struct prov_request *request = container_of(handle, struct prov_request, fid);

	prov_conn_close(request->fabric, request->conn);
	free_request(request);
}

/* --- passive endpoints ------------------------------------------------------------------------ */

static int endpoint_listen_at(struct prov_pep *pep, uint16_t port)
{
	char address[ADDRESS_BYTES];
	struct clan_conn_options options;
	struct clan_error error;
	int result;

	clan_address(address, port);
	endpoint_conn_options(&options);
	result = clan_listen(pep->fabric->queue, address, &options, &pep->listener, &error);
	if (result == 0) {
		prov_address_set_port(&pep->address, port);
	} else if (result != -EADDRINUSE) {
		PROV_WARN(FI_LOG_EP_CTRL, "%s\n", error.text);
	}
	return result;
}

static int pep_listen(struct fid_pep *fid)
{
	struct prov_pep *pep = container_of(fid, struct prov_pep, pep);
	uint16_t port = prov_address_port(&pep->address);
	uint32_t start;
	int result;

	prov_lock(pep->fabric);
	if (pep->eq == NULL || pep->listener != NULL || pep->fabric->queue == NULL) {
		prov_leave(pep->fabric);
		return pep->eq == NULL ? -FI_ENOEQ : -FI_EOPBADSTATE;
	}
	if (port != 0) {
		result = endpoint_listen_at(pep, port);
	} else if (getrandom(&start, sizeof(start), 0) != sizeof(start)) {
		result = -FI_EIO;
	} else {
		result = -EADDRINUSE;
		for (uint32_t i = 0; result == -EADDRINUSE && i < PORT_COUNT; i++) {
			result = endpoint_listen_at(pep,
				(uint16_t)(PORT_FIRST + (start % PORT_COUNT + i) % PORT_COUNT));
		}
	}
	prov_leave(pep->fabric);
	return result;
}

static int pep_setname(fid_t fid, void *address, size_t bytes)
{
	struct prov_pep *pep = container_of(fid, struct prov_pep, pep.fid);
	union prov_address copy;

	if (!prov_address_copy(&copy, address, bytes) || !prov_address_is_local(&copy)) {
		return -FI_EINVAL;
	}
	if (pep->listener != NULL) {
		return -FI_EOPBADSTATE;
	}
	pep->address = copy;
	return 0;
}

static int pep_getname(fid_t fid, void *address, size_t *bytes)
{
	return copy_address(address, bytes, &container_of(fid, struct prov_pep, pep.fid)->address);
}

/* Rejects a request. clan's rejections are text, so the program's data is sent in hexadecimal
 * digits. */
static int pep_reject(struct fid_pep *fid, fid_t handle, const void *param, size_t bytes)
{
	struct prov_pep *pep = container_of(fid, struct prov_pep, pep);
	struct prov_request *request = container_of(handle, struct prov_request, fid);
	char text[sizeof(REJECTED) + PROV_CM_BYTES_MAX * 2];
	const uint8_t *data = param;
	size_t at = sizeof(REJECTED) - 1;

	if (handle->fclass != FI_CLASS_CONNREQ || bytes > PROV_CM_BYTES_MAX) {
		return -FI_EINVAL;
	}
	memcpy(text, REJECTED, sizeof(REJECTED));
	for (size_t i = 0; i < bytes; i++, at += 2) {
		snprintf(text + at, sizeof(text) - at, "%02x", data[i]);
	}
	prov_lock(pep->fabric);
	if (request->conn != NULL && pep->fabric->queue != NULL) {
		clan_conn_set_context(request->conn, NULL);
		clan_reject(request->conn, text);
		pep->fabric->closing++;
	}
	free_request(request);
	prov_leave(pep->fabric);
	return 0;
}

static int pep_close(struct fid *fid)
{
	struct prov_pep *pep = container_of(fid, struct prov_pep, pep.fid);
	struct prov_fabric *fabric = pep->fabric;

	prov_lock(fabric);
	if (fabric->queue != NULL) {
		clan_listener_close(pep->listener);
	}
	if (pep->eq != NULL) {
		prov_eq_forget(pep->eq, fid);
		pep->eq->users--;
	}
	/* The fabric keeps reported requests, because they can still be accepted. */
	list_move_all(&fabric->requests, &pep->requests);
	list_remove(&pep->node);
	fabric->objects--;
	prov_leave(fabric);
	fi_freeinfo(pep->info);
	free(pep);
	return 0;
}

static int pep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct prov_pep *pep = container_of(fid, struct prov_pep, pep.fid);

	if (other->fclass != FI_CLASS_EQ || flags != 0 || pep->eq != NULL) {
		return -FI_EINVAL;
	}
	prov_lock(pep->fabric);
	pep->eq = container_of(other, struct prov_eq, eq.fid);
	pep->eq->users++;
	prov_leave(pep->fabric);
	return 0;
}

static struct fi_ops pep_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = pep_close,
	.bind = pep_bind,
	.control = absent_control,
	.ops_open = absent_ops_open,
};

static struct fi_ops_cm pep_cm_ops = {
	.size = sizeof(struct fi_ops_cm),
	.setname = pep_setname,
	.getname = pep_getname,
	.getpeer = absent_getpeer,
	.connect = absent_connect,
	.listen = pep_listen,
	.accept = absent_accept,
	.reject = pep_reject,
	.shutdown = absent_shutdown,
};

int prov_pep_open(
	struct fid_fabric *fid, struct fi_info *info, struct fid_pep **pep_out, void *context)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fabric);
	struct prov_pep *pep = calloc(1, sizeof(*pep));

	if (pep == NULL) {
		return -FI_ENOMEM;
	}
	if (info->src_addr == NULL) { /* fi_setname() can follow */
		prov_address_unspecified(&pep->address, info->addr_format);
	} else if (!prov_address_copy(&pep->address, info->src_addr, info->src_addrlen) ||
		   !prov_address_is_local(&pep->address)) {
		free(pep);
		return -FI_EINVAL;
	}
	pep->fabric = fabric;
	pep->info = fi_dupinfo(info);
	if (pep->info == NULL) {
		free(pep);
		return -FI_ENOMEM;
	}
	list_init(&pep->requests);
	pep->pep.fid = (struct fid){
		.fclass = FI_CLASS_PEP,
		.context = context,
		.ops = &pep_fid_ops,
	};
	pep->pep.ops = &ep_ops;
	pep->pep.cm = &pep_cm_ops;
	prov_lock(fabric);
	list_push_back(&fabric->peps, &pep->node);
	fabric->objects++;
	prov_leave(fabric);
	*pep_out = &pep->pep;
	return 0;
}

/* --- endpoints: the end ----------------------------------------------------------------------- */

static void drop_conn(struct prov_ep *ep)
{
	struct clan_conn_stats stats = { .size = sizeof(stats) };

	list_remove(&ep->again_node);
	if (ep->conn != NULL && ep->fabric->queue != NULL) {
		clan_conn_get_stats(ep->conn, &stats);
		FI_INFO(&prov_provider, FI_LOG_EP_DATA,
			"a connection was closed: %llu bytes sent, %llu received, %llu bells "
			"rung\n",
			(unsigned long long)stats.bytes_sent,
			(unsigned long long)stats.bytes_received,
			(unsigned long long)stats.bells_rung);
	}
	prov_conn_close(ep->fabric, ep->conn);
	ep->conn = NULL;
}

void prov_ep_end(struct prov_ep *ep, int error)
{
	ep_set_state(ep, PROV_EP_OVER);
	prov_stream_flush(ep, error);
	drop_conn(ep);
	prov_eq_add(ep->eq, FI_SHUTDOWN, &ep->ep.fid, NULL, NULL, 0, 0);
}

/* Reports that connecting has failed. */
static void connect_failed(struct prov_ep *ep, int error, const void *data, size_t bytes)
{
	ep_set_state(ep, PROV_EP_OVER);
	prov_eq_add(ep->eq, 0, &ep->ep.fid, NULL, data, bytes, error);
	prov_stream_flush(ep, error);
	drop_conn(ep);
}

static int digit(uint8_t character)
{
	return character >= '0' && character <= '9'   ? character - '0'
	       : character >= 'a' && character <= 'f' ? character - 'a' + 10
						      : -1;
}

/* Decodes the program's data from the text of a rejection. */
static size_t rejection_data(const struct prov_ep *ep, uint8_t *data)
{
	size_t bytes;
	const uint8_t *text = clan_conn_hello(ep->conn, &bytes);
	size_t count = 0;

	if (bytes < sizeof(REJECTED) - 1 || memcmp(text, REJECTED, sizeof(REJECTED) - 1) != 0) {
		return 0;
	}
	for (size_t at = sizeof(REJECTED) - 1; at + 1 < bytes && count < PROV_CM_BYTES_MAX;
		at += 2) {
		int high = digit(text[at]);
		int low = digit(text[at + 1]);

		if (high < 0 || low < 0) {
			break;
		}
		data[count++] = (uint8_t)(high * 16 + low);
	}
	return count;
}

void prov_ep_lost(struct prov_ep *ep, int status)
{
	uint8_t data[PROV_CM_BYTES_MAX];

	if (ep->state == PROV_EP_CONNECTING) {
		connect_failed(
			ep, -status, data, status == -ECONNREFUSED ? rejection_data(ep, data) : 0);
	} else if (ep->state == PROV_EP_CONNECTED) {
		/* Data that the peer sent before its end is still delivered. Operations fail,
		 * because the peer neither receives messages nor sends answers. */
		ep_set_state(ep, PROV_EP_DRAINING);
		prov_stream_receive(ep);
		if (ep->state == PROV_EP_DRAINING) {
			prov_stream_flush_ops(ep, FI_ECONNRESET);
		}
	} else {
		drop_conn(ep); /* fi_accept() will report the loss */
	}
}

/* --- endpoints: the start --------------------------------------------------------------------- */

static int try_to_connect(struct prov_ep *ep)
{
	struct clan_conn_options options;
	char address[ADDRESS_BYTES];
	struct clan_error error;
	int result;

	endpoint_conn_options(&options);
	clan_address(address, prov_address_port(&ep->peer));
	result = clan_connect(ep->fabric->queue, address, &options, ep->hello, ep->hello_bytes,
		&ep->conn, &error);
	if (result == 0) {
		clan_conn_set_context(ep->conn, &ep->ep.fid);
	} else if (result != -ENOBUFS) {
		PROV_WARN(FI_LOG_EP_CTRL, "%s\n", error.text);
	}
	return result;
}

void prov_ep_again(struct prov_ep *ep)
{
	int result;

	if (ep->state == PROV_EP_CONNECTING) {
		result = ep->conn != NULL ? 0 : try_to_connect(ep);
		if (result == -ENOBUFS) {
			list_push_back(&ep->fabric->again, &ep->again_node);
		} else if (result != 0) {
			connect_failed(ep, -result, NULL, 0);
		}
		return;
	}
	prov_stream_send(ep);
	prov_stream_receive(ep);
}

static int ep_connect(struct fid_ep *fid, const void *address, const void *param, size_t bytes)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);
	struct hello hello = {
		.magic = HELLO_MAGIC,
		.ops = ep->op_count,
		.bytes = (uint32_t)bytes,
	};
	union prov_address peer = ep->peer;
	int result;

	if (bytes > PROV_CM_BYTES_MAX || (address != NULL && !prov_address_of(&peer, address)) ||
		prov_address_bytes(&peer) == 0) {
		return -FI_EINVAL;
	}
	if (!prov_address_is_local(&peer)) {
		PROV_WARN(FI_LOG_EP_CTRL, "cannot connect to another machine: clan connects "
					  "processes of the same machine\n");
		return -FI_EHOSTUNREACH;
	}
	prov_lock(ep->fabric);
	if (ep->state != PROV_EP_ENABLED || ep->accepts || ep->fabric->queue == NULL) {
		prov_leave(ep->fabric);
		return -FI_EOPBADSTATE;
	}
	ep->peer = peer;
	hello.port = prov_address_port(&peer);
	hello.from = prov_address_bytes(&ep->local) != 0 ? ep->local : peer;
	ep->hello_bytes = put_hello(ep->hello, &hello, param, bytes);
	result = try_to_connect(ep);
	if (result == 0 || result == -ENOBUFS || result == -ECONNREFUSED) {
		ep_set_state(ep, PROV_EP_CONNECTING);
	}
	if (result == -ENOBUFS) {
		list_push_back(&ep->fabric->again, &ep->again_node);
		result = 0;
	} else if (result == -ECONNREFUSED) {
		/* The call succeeds. An event reports the refused connection, as on a network. */
		connect_failed(ep, FI_ECONNREFUSED, NULL, 0);
		result = 0;
	}
	prov_leave(ep->fabric);
	return result;
}

/* Called when the listener has accepted: checks the user of its process, which was not known
 * before, and its hello. */
static int endpoint_connected(struct prov_ep *ep, const uint8_t **data_out, size_t *bytes_out)
{
	struct clan_peer peer;
	struct hello hello;

	clan_conn_peer(ep->conn, &peer);
	if (peer.uid != 0 && peer.uid != geteuid()) {
		PROV_WARN(FI_LOG_EP_CTRL, "port %u belongs to a process of another user (%u)\n",
			prov_address_port(&ep->peer), peer.uid);
		return -FI_EACCES;
	}
	if (!get_hello(ep->conn, &hello, data_out)) {
		PROV_WARN(FI_LOG_EP_CTRL, "port %u does not speak this provider's protocol\n",
			prov_address_port(&ep->peer));
		return -FI_ECONNREFUSED;
	}
	*bytes_out = hello.bytes;
	return prov_stream_init_answers(ep, hello.ops);
}

void prov_ep_connected(struct prov_ep *ep)
{
	const uint8_t *data = NULL;
	size_t bytes = 0;
	int result = endpoint_connected(ep, &data, &bytes);

	if (result != 0) {
		connect_failed(ep, -result, NULL, 0);
		return;
	}
	ep_set_state(ep, PROV_EP_CONNECTED);
	if (prov_eq_add(ep->eq, FI_CONNECTED, &ep->ep.fid, NULL, data, bytes, 0) != 0) {
		prov_ep_end(ep, FI_ENOMEM);
		return;
	}
	prov_stream_receive(ep);
}

static int ep_accept(struct fid_ep *fid, const void *param, size_t bytes)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);
	const struct hello hello = {
		.magic = HELLO_MAGIC,
		.ops = ep->op_count,
		.bytes = (uint32_t)bytes,
	};
	int result;

	if (bytes > PROV_CM_BYTES_MAX) {
		return -FI_EINVAL;
	}
	prov_lock(ep->fabric);
	if (ep->state != PROV_EP_ENABLED || !ep->accepts) {
		prov_leave(ep->fabric);
		return -FI_EOPBADSTATE;
	}
	if (ep->conn == NULL || ep->fabric->queue == NULL) {
		prov_leave(ep->fabric);
		return -FI_ECONNRESET; /* the peer has ended the connection */
	}
	ep->hello_bytes = put_hello(ep->hello, &hello, param, bytes);
	result = clan_accept(ep->conn, ep->hello, ep->hello_bytes);
	if (result == 0) {
		ep_set_state(ep, PROV_EP_CONNECTED);
		result = prov_eq_add(ep->eq, FI_CONNECTED, &ep->ep.fid, NULL, NULL, 0, 0);
		if (result == 0) {
			prov_stream_receive(ep);
		} else {
			prov_ep_end(ep, FI_ENOMEM);
		}
	}
	prov_leave(ep->fabric);
	return result;
}

static int ep_shutdown(struct fid_ep *fid, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);
	int result = 0;

	prov_lock(ep->fabric);
	if (ep->state == PROV_EP_CONNECTED || ep->state == PROV_EP_DRAINING) {
		prov_ep_end(ep, FI_ECANCELED);
	} else if (ep->state != PROV_EP_OVER) {
		result = -FI_ENOTCONN;
	}
	prov_leave(ep->fabric);
	return result;
}

static int ep_getname(fid_t fid, void *address, size_t *bytes)
{
	return copy_address(address, bytes, &container_of(fid, struct prov_ep, ep.fid)->local);
}

static int ep_setname(fid_t fid, void *address, size_t bytes)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep.fid);
	union prov_address copy;

	if (!prov_address_copy(&copy, address, bytes) || !prov_address_is_local(&copy)) {
		return -FI_EINVAL;
	}
	if (ep->state > PROV_EP_ENABLED) {
		return -FI_EOPBADSTATE;
	}
	ep->local = copy;
	return 0;
}

static int ep_getpeer(struct fid_ep *fid, void *address, size_t *bytes)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep);

	return ep->state == PROV_EP_CONNECTED ? copy_address(address, bytes, &ep->peer)
					      : -FI_ENOTCONN;
}

static struct fi_ops_cm ep_cm_ops = {
	.size = sizeof(struct fi_ops_cm),
	.setname = ep_setname,
	.getname = ep_getname,
	.getpeer = ep_getpeer,
	.connect = ep_connect,
	.listen = absent_listen,
	.accept = ep_accept,
	.reject = absent_reject,
	.shutdown = ep_shutdown,
};

static int bind_cq(struct prov_ep *ep, struct prov_cq *cq, uint64_t flags)
{
	bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;

	if ((flags & (FI_TRANSMIT | FI_RECV)) == 0 || cq->domain != ep->domain ||
		((flags & FI_TRANSMIT) != 0 && ep->tx_cq != NULL) ||
		((flags & FI_RECV) != 0 && ep->rx_cq != NULL)) {
		return -FI_EINVAL;
	}
	if ((flags & FI_TRANSMIT) != 0) {
		ep->tx_cq = cq;
		ep->tx_selective = selective;
		cq->users++;
	}
	if ((flags & FI_RECV) != 0) {
		ep->rx_cq = cq;
		ep->rx_selective = selective;
		cq->users++;
	}
	return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep.fid);
	int result = 0;

	prov_lock(ep->fabric);
	if (ep->state != PROV_EP_IDLE) {
		result = -FI_EOPBADSTATE;
	} else if (other->fclass == FI_CLASS_CQ) {
		result = bind_cq(ep, container_of(other, struct prov_cq, cq.fid), flags);
	} else if (other->fclass == FI_CLASS_EQ && ep->eq == NULL) {
		ep->eq = container_of(other, struct prov_eq, eq.fid);
		ep->eq->users++;
	} else {
		result = -FI_EINVAL;
	}
	prov_leave(ep->fabric);
	return result;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep.fid);
	int result = 0;

	if (command != FI_ENABLE) {
		return -FI_ENOSYS;
	}
	prov_lock(ep->fabric);
	if (ep->state != PROV_EP_IDLE) {
		result = -FI_EOPBADSTATE;
	} else if (ep->eq == NULL) {
		result = -FI_ENOEQ;
	} else if (ep->tx_cq == NULL || ep->rx_cq == NULL) {
		result = -FI_ENOCQ;
	} else {
		ep_set_state(ep, PROV_EP_ENABLED);
	}
	prov_leave(ep->fabric);
	return result;
}

static int ep_close(struct fid *fid)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, ep.fid);
	struct prov_fabric *fabric = ep->fabric;

	prov_lock(fabric);
	if (ep->tx_cq != NULL && ep->rx_cq != NULL) {
		prov_stream_flush(ep, FI_ECANCELED);
	}
	drop_conn(ep);
	if (ep->eq != NULL) {
		prov_eq_forget(ep->eq, fid);
		ep->eq->users--;
	}
	if (ep->tx_cq != NULL) {
		ep->tx_cq->users--;
	}
	if (ep->rx_cq != NULL) {
		ep->rx_cq->users--;
	}
	ep->domain->users--;
	prov_leave(fabric);
	prov_stream_fini(ep);
	free(ep);
	return 0;
}

static struct fi_ops ep_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = ep_close,
	.bind = ep_bind,
	.control = ep_control,
	.ops_open = absent_ops_open,
};

/* Moves the connection of a request to the endpoint that accepts it, and frees the request. */
static int endpoint_take_request(struct prov_ep *ep, struct prov_request *request)
{
	int result = prov_stream_init_answers(ep, request->peer_ops);

	if (result != 0) {
		return result;
	}
	ep->accepts = true;
	ep->conn = request->conn;
	if (ep->conn != NULL && ep->fabric->queue != NULL) {
		clan_conn_set_context(ep->conn, &ep->ep.fid);
	}
	free_request(request);
	return 0;
}

/* Processes the handle that the program opens the endpoint with: a connection request to accept, or
 * a passive endpoint that does not listen, whose address the endpoint gets. */
static int take_handle(struct prov_ep *ep, struct fid *handle)
{
	const struct prov_pep *pep = container_of(handle, struct prov_pep, pep.fid);

	if (handle == NULL) {
		return 0;
	}
	if (handle->fclass == FI_CLASS_CONNREQ) {
		return endpoint_take_request(ep, container_of(handle, struct prov_request, fid));
	}
	if (handle->fclass != FI_CLASS_PEP || pep->fabric != ep->fabric || pep->listener != NULL) {
		return -FI_EINVAL;
	}
	ep->local = pep->address;
	return 0;
}

static size_t size_or_default(size_t size)
{
	return size == 0 ? PROV_OPS_DEFAULT : MIN(size, (size_t)PROV_OPS_MAX);
}

int prov_ep_open(
	struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep_out, void *context)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, domain);
	struct prov_ep *ep = calloc(1, sizeof(*ep));
	int result;

	if (ep == NULL) {
		return -FI_ENOMEM;
	}
	ep->fabric = domain->fabric;
	ep->domain = domain;
	ep->state = PROV_EP_IDLE;
	ep->tx_flags = info->tx_attr == NULL ? 0 : info->tx_attr->op_flags;
	ep->rx_flags = info->rx_attr == NULL ? 0 : info->rx_attr->op_flags;
	prov_address_copy(&ep->local, info->src_addr, info->src_addrlen);
	prov_address_copy(&ep->peer, info->dest_addr, info->dest_addrlen);
	list_init(&ep->again_node);
	ep->ep.fid = (struct fid){
		.fclass = FI_CLASS_EP,
		.context = context,
		.ops = &ep_fid_ops,
	};
	ep->ep.ops = &ep_ops;
	ep->ep.cm = &ep_cm_ops;
	ep->ep.msg = &prov_msg_ops;
	ep->ep.rma = &prov_rma_ops;
	ep->ep.tagged = &prov_tagged_ops;
	ep->ep.atomic = &prov_atomic_ops;
	ep->ep.collective = &prov_collective_ops;
	result = prov_stream_init(ep,
		size_or_default(info->tx_attr == NULL ? 0 : info->tx_attr->size),
		size_or_default(info->rx_attr == NULL ? 0 : info->rx_attr->size));
	if (result != 0) {
		free(ep);
		return result;
	}
	prov_lock(domain->fabric);
	result = take_handle(ep, info->handle);
	domain->users += result == 0;
	prov_leave(domain->fabric);
	if (result != 0) {
		prov_stream_fini(ep);
		free(ep);
		return result;
	}
	*ep_out = &ep->ep;
	return 0;
}
