// SPDX-License-Identifier: Apache-2.0
/*
 * Endpoints of libfabric, posted operations, and registrations of memory: docs/protocol/clan.md
 * §12.10.
 *
 * Some domains require local memory to be registered. The registration of a region is kept with the
 * region; other memory is registered for the duration of the put or get. Each share has its own
 * registration, so that closing it invalidates its key.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "clan/ofi.h"

#define PIECE_BYTES_MAX (UINT64_C(1) << 30)

enum { KEY_TRIES = 8 };

/* The registration of a region in a domain, as local memory of puts and gets. */
struct ofi_local {
	struct clan_registration registration;
	struct ofi_domain *domain;
	struct fid_mr *mr;
};

/* The object at rma->held, which exists if the local memory of a put or get must be registered. */
struct ofi_held {
	void *descs[CLAN_IOV_MAX];
	struct fid_mr *mrs[CLAN_IOV_MAX]; /* registrations for this operation only */
	void *copies[CLAN_IOV_MAX];	  /* copies of parts in memory that cannot be registered */
};

static void *desc_of(struct fid_mr *mr)
{
	return mr == NULL ? NULL : fi_mr_desc(mr);
}

/* --- endpoints -------------------------------------------------------------------------------- */

static int register_buffers(
	struct ofi_conn *conn, void *memory, size_t bytes, uint64_t access, struct fid_mr **mr_out)
{
	return conn->domain->registers_local ? ofi_errno(fi_mr_reg(conn->domain->domain, memory,
						       bytes, access, 0, 0, 0, mr_out, NULL))
					     : 0;
}

static int post_receive(struct ofi_conn *conn, struct net_buffer *buffer)
{
	return ofi_errno(fi_recv(conn->ep, buffer->data, NET_FRAME_BYTES, desc_of(conn->receive_mr),
		0, &buffer->op));
}

/* Registers the buffers of a connection and posts all receives. */
static int start_receiving(struct ofi_conn *conn)
{
	const size_t bytes = (size_t)NET_RECEIVES * NET_FRAME_BYTES;
	int result;

	conn->receive_memory = calloc(1, bytes);
	if (conn->receive_memory == NULL) {
		return -ENOMEM;
	}
	result = register_buffers(conn, conn->receive_memory, bytes, FI_RECV, &conn->receive_mr);
	if (result == 0) {
		result = register_buffers(
			conn, conn->net.memory, NET_MEMORY_BYTES, FI_SEND, &conn->send_mr);
	}
	for (uint32_t i = 0; result == 0 && i < NET_RECEIVES; i++) {
		struct net_buffer *buffer = &conn->receives[i];

		buffer->op = (struct net_op){ .kind = NET_OP_RECEIVE, .conn = &conn->net };
		list_init(&buffer->node);
		buffer->data = conn->receive_memory + (size_t)i * NET_FRAME_BYTES;
		result = post_receive(conn, buffer);
	}
	return result;
}

/* Creates the endpoint that the info describes, and posts receives before the peer can send. */
static int endpoint_open(struct ofi_conn *conn, struct fi_info *info)
{
	int result = ofi_domain_get(net_queue(conn->net.conn.queue), info, &conn->domain);

	if (result != 0) {
		return result;
	}
	conn->domain->conn_count++;
	conn->piece_bytes_max = info->ep_attr->max_msg_size;
	conn->piece_iov_max = MIN(info->tx_attr->iov_limit, (size_t)OFI_PIECE_IOV);
	result = fi_endpoint(conn->domain->domain, info, &conn->ep, conn);
	if (result == 0) {
		result = fi_ep_bind(conn->ep, &conn->domain->eq->fid, 0);
	}
	if (result == 0) {
		result = fi_ep_bind(conn->ep, &conn->domain->cq->fid, FI_TRANSMIT | FI_RECV);
	}
	if (result == 0) {
		result = fi_enable(conn->ep);
	}
	return result != 0 ? ofi_errno(result) : start_receiving(conn);
}

static int ofi_dial(struct net_conn *base, void *found)
{
	struct ofi_conn *conn = ofi_conn(base);
	struct fi_info *info = found;
	int result = endpoint_open(conn, info);

	if (result == 0) {
		result = ofi_errno(fi_connect(conn->ep, info->dest_addr, NULL, 0));
	}
	ofi_info_free(info);
	return result;
}

/* A connection beyond the limits of the listener is rejected before it gets an endpoint. */
void ofi_connection_requested(struct ofi_listener *listener, struct fi_info *info)
{
	struct net_conn *base = net_arrived(&listener->net);
	int result;

	if (base == NULL) {
		fi_reject(listener->pep, info->handle, NULL, 0);
		ofi_info_free(info);
		return;
	}
	result = endpoint_open(ofi_conn(base), info);
	if (result == 0) {
		result = ofi_errno(fi_accept(ofi_conn(base)->ep, NULL, 0));
	} else if (ofi_conn(base)->ep == NULL) {
		fi_reject(listener->pep, info->handle, NULL, 0);
	}
	ofi_info_free(info);
	if (result != 0) {
		net_conn_end(base, result, "");
	}
}

void ofi_connected(struct ofi_conn *conn)
{
	struct sockaddr_storage address;
	size_t length = sizeof(address);
	bool known = conn->net.phase == NET_DIALING && fi_getpeer(conn->ep, &address, &length) == 0;

	net_connected(&conn->net, known ? (const struct sockaddr *)&address : NULL);
}

/* Closes the endpoint, and processes its remaining completions, which refer to the connection's
 * memory. */
static void ofi_close(struct net_conn *base)
{
	struct ofi_conn *conn = ofi_conn(base);

	if (conn->ep != NULL) {
		fi_close(&conn->ep->fid);
		conn->ep = NULL;
	}
	if (conn->domain != NULL) {
		ofi_domain_reap(conn->domain);
		conn->domain->conn_count--;
		conn->domain = NULL;
	}
}

static void ofi_conn_free(struct net_conn *base)
{
	struct ofi_conn *conn = ofi_conn(base);
	struct fid_mr *mrs[] = { conn->receive_mr, conn->send_mr };

	GMB_ASSERT(conn->ep == NULL);
	for (size_t i = 0; i < ARRAY_COUNT(mrs); i++) {
		if (mrs[i] != NULL) {
			fi_close(&mrs[i]->fid);
		}
	}
	free(conn->receive_memory);
}

/* --- listeners -------------------------------------------------------------------------------- */

static int ofi_listen(struct net_listener *base, void *found, struct sockaddr_storage *address)
{
	struct ofi_listener *listener = container_of(base, struct ofi_listener, net);
	size_t length = sizeof(*address);
	struct fi_info *info = found;
	int result = ofi_domain_get(net_queue(base->listener.queue), info, &listener->domain);

	if (result != 0) {
		return result;
	}
	result = fi_passive_ep(listener->domain->fabric, info, &listener->pep, listener);
	if (result == 0) {
		result = fi_pep_bind(listener->pep, &listener->domain->eq->fid, 0);
	}
	if (result == 0) {
		result = fi_listen(listener->pep);
	}
	if (result == 0) {
		result = fi_getname(&listener->pep->fid, address, &length);
	}
	if (result != 0 && listener->pep != NULL) {
		fi_close(&listener->pep->fid);
	}
	return ofi_errno(result);
}

static void ofi_listener_close(struct net_listener *base)
{
	fi_close(&container_of(base, struct ofi_listener, net)->pep->fid);
}

/* --- frames ----------------------------------------------------------------------------------- */

static int ofi_post_frame(struct net_conn *base, struct net_buffer *buffer)
{
	struct ofi_conn *conn = ofi_conn(base);

	return ofi_errno(fi_send(
		conn->ep, buffer->data, buffer->bytes, desc_of(conn->send_mr), 0, &buffer->op));
}

void ofi_received(struct ofi_conn *conn, struct net_buffer *buffer, size_t bytes)
{
	int result;

	/* Adapters can deliver the first frame before the event FI_CONNECTED. */
	ofi_connected(conn);
	if (net_frame_received(&conn->net, buffer->data, bytes) != 0) {
		return;
	}
	/* The peer may not use this buffer yet: a later frame of ours returns the credit for it. So
	 * the buffer is posted in time. */
	result = post_receive(conn, buffer);
	if (result != 0) {
		net_conn_cut(&conn->net, result);
	}
}

/* libfabric transmits posted operations without a flush. */
static void ofi_flush(struct net_conn *conn)
{
}

static void ofi_look(struct net_conn *conn)
{
	ofi_domain_reap(ofi_conn(conn)->domain);
}

/* --- memory of our own ------------------------------------------------------------------------ */

static void local_drop(struct clan_registration *registration)
{
	struct ofi_local *local = container_of(registration, struct ofi_local, registration);

	fi_close(&local->mr->fid);
	free(local);
}

/* Returns the registration of a region in a domain, creating it at its first use; NULL if that
 * fails. It is kept until the region is destroyed. */
static struct ofi_local *region_local(struct clan_region *region, struct ofi_domain *domain)
{
	struct ofi_local *local;

	list_for_each(node, &region->registrations)
	{
		struct clan_registration *registration =
			list_entry(node, struct clan_registration, node);

		local = container_of(registration, struct ofi_local, registration);
		if (registration->drop == local_drop && local->domain == domain) {
			return local;
		}
	}
	local = calloc(1, sizeof(*local));
	if (local == NULL || fi_mr_reg(domain->domain, region->base, region->bytes,
				     FI_READ | FI_WRITE, 0, 0, 0, &local->mr, NULL) != 0) {
		free(local);
		return NULL;
	}
	local->domain = domain;
	local->registration.drop = local_drop;
	list_push_back(&region->registrations, &local->registration.node);
	return local;
}

static int register_memory(struct ofi_domain *domain, struct net_rma *rma, uint32_t part)
{
	struct ofi_held *held = rma->held;

	return ofi_errno(fi_mr_reg(domain->domain, rma->iov[part].iov_base, rma->iov[part].iov_len,
		rma->put ? FI_WRITE : FI_READ, 0, 0, 0, &held->mrs[part], NULL));
}

/* Sets the descriptor of one part of the vector. Uses the registration of the region that contains
 * the part, if there is one; otherwise registers the part for this operation. A part of a put in
 * read-only memory that cannot be registered is replaced by a registered copy. Returns 0 or a
 * negative errno. */
static int register_part(struct ofi_domain *domain, struct net_rma *rma, uint32_t part)
{
	struct ofi_held *held = rma->held;
	uintptr_t begin = (uintptr_t)rma->iov[part].iov_base;
	size_t bytes = rma->iov[part].iov_len;
	int result;

	list_for_each(node, &domain->net->queue->regions)
	{
		struct clan_region *region = list_entry(node, struct clan_region, node);
		uintptr_t base = (uintptr_t)region->base;

		if (begin >= base && range_inside(begin - base, bytes, region->bytes)) {
			struct ofi_local *local = region_local(region, domain);

			if (local != NULL) {
				held->descs[part] = fi_mr_desc(local->mr);
				return 0;
			}
			break; /* too large to register, or read-only */
		}
	}
	result = register_memory(domain, rma, part);
	if (result == -EFAULT && rma->put) { /* verbs does not register read-only memory */
		held->copies[part] = malloc(bytes);
		if (held->copies[part] == NULL) {
			return -ENOMEM;
		}
		memcpy(held->copies[part], rma->iov[part].iov_base, bytes);
		rma->iov[part].iov_base = held->copies[part];
		result = register_memory(domain, rma, part);
	}
	if (result == 0) {
		held->descs[part] = fi_mr_desc(held->mrs[part]);
	}
	return result;
}

static void ofi_rma_release(struct net_rma *rma)
{
	struct ofi_held *held = rma->held;

	for (uint32_t i = 0; held != NULL && i < rma->iov_count; i++) {
		if (held->mrs[i] != NULL) {
			fi_close(&held->mrs[i]->fid);
			held->mrs[i] = NULL;
		}
		free(held->copies[i]);
		held->copies[i] = NULL;
		held->descs[i] = NULL; /* valid in one domain; the next use can be in another */
	}
}

/* Registers all parts of a put or get, if the provider requires it (FI_MR_LOCAL). If that fails, no
 * part stays registered. */
static int ofi_rma_hold(struct net_rma *rma)
{
	struct ofi_domain *domain = ofi_conn(rma->op.conn)->domain;
	int result = 0;

	if (!domain->registers_local) {
		return 0;
	}
	if (rma->held == NULL) {
		rma->held = calloc(1, sizeof(struct ofi_held));
		if (rma->held == NULL) {
			return -ENOMEM;
		}
	}
	for (uint32_t i = 0; result == 0 && i < rma->iov_count; i++) {
		result = register_part(domain, rma, i);
	}
	if (result != 0) {
		ofi_rma_release(rma);
	}
	return result;
}

/* --- puts and gets ---------------------------------------------------------------------------- */

/* Posts the next piece of a put or get. */
static int ofi_post_rma(struct net_conn *base, struct net_rma *rma)
{
	struct ofi_conn *conn = ofi_conn(base);
	const struct ofi_held *held = rma->held;
	uint64_t piece_max = MIN(PIECE_BYTES_MAX, conn->piece_bytes_max);
	struct iovec iov[OFI_PIECE_IOV];
	void *descs[OFI_PIECE_IOV] = { 0 };
	uint32_t index = rma->index;
	size_t skip = rma->skip;
	uint64_t bytes = 0;
	size_t count = 0;
	ssize_t result;

	while (count < conn->piece_iov_max && bytes < MIN(piece_max, rma->left)) {
		size_t part = MIN(rma->iov[index].iov_len - skip, piece_max - bytes);

		iov[count] = (struct iovec){ .iov_base = (uint8_t *)rma->iov[index].iov_base + skip,
			.iov_len = part };
		descs[count++] = held == NULL ? NULL : held->descs[index];
		bytes += part;
		skip += part;
		if (skip == rma->iov[index].iov_len) {
			index++;
			skip = 0;
		}
	}
	if (rma->put) {
		result = fi_writev(
			conn->ep, iov, descs, count, 0, rma->remote, rma->region->key, &rma->op);
	} else {
		result = fi_readv(
			conn->ep, iov, descs, count, 0, rma->remote, rma->region->key, &rma->op);
	}
	if (result == 0) {
		rma->index = index;
		rma->skip = skip;
		rma->remote += bytes;
		rma->left -= bytes;
		rma->pieces++;
		base->pieces++;
	}
	return ofi_errno(result);
}

/* --- shares ----------------------------------------------------------------------------------- */

/* Registers the region for one peer. Keys are random if we can choose them, because a key can be
 * valid for every connection of the domain. */
static int ofi_share(struct net_conn *base, struct net_key *key)
{
	struct ofi_domain *domain = ofi_conn(base)->domain;
	const struct fi_domain_attr *attr = domain->info->domain_attr;
	const struct clan_share *share = key->share;
	uint64_t access = ((share->rights & CLAN_READ) != 0 ? FI_REMOTE_READ : 0) |
			  ((share->rights & CLAN_WRITE) != 0 ? FI_REMOTE_WRITE : 0);
	bool chosen = (attr->mr_mode & FI_MR_PROV_KEY) == 0;
	struct fid_mr *mr = NULL;
	int result = -ENOKEY;

	for (int i = 0; i < KEY_TRIES && result == -ENOKEY; i++) {
		uint64_t number = 0;

		if (chosen && getrandom(&number, MIN(sizeof(number), attr->mr_key_size), 0) < 0) {
			return -EIO;
		}
		result = ofi_errno(fi_mr_reg(domain->domain, share->region->base,
			share->region->bytes, access, 0, number, 0, &mr, NULL));
	}
	if (result == 0) {
		bool by_address = (attr->mr_mode & FI_MR_VIRT_ADDR) != 0;

		key->held = mr;
		key->key = fi_mr_key(mr);
		key->base = by_address ? (uintptr_t)share->region->base : 0;
	}
	return result;
}

static void ofi_unshare(struct net_key *key)
{
	struct fid_mr *mr = key->held;

	fi_close(&mr->fid);
}

/* --- queues ----------------------------------------------------------------------------------- */

static bool ofi_progress(struct net_queue *net)
{
	const struct ofi_queue *ofi = net->transports[NET_OFI];
	bool any = false;

	list_for_each(node, &ofi->domains)
	{
		any = ofi_domain_reap(list_entry(node, struct ofi_domain, node)) || any;
	}
	return any;
}

static bool ofi_arm(struct net_queue *net)
{
	const struct ofi_queue *ofi = net->transports[NET_OFI];
	bool found = false;

	list_for_each(node, &ofi->domains)
	{
		found = !ofi_domain_may_sleep(list_entry(node, struct ofi_domain, node)) || found;
	}
	return found;
}

static void ofi_queue_destroy(struct net_queue *net)
{
	struct ofi_queue *ofi = net->transports[NET_OFI];

	list_for_each(node, &ofi->domains)
	{
		ofi_domain_destroy(list_entry(node, struct ofi_domain, node));
	}
	free(ofi);
}

/* Closing libfabric objects in the child would shut down the parent's connections. So they stay
 * open, with the memory that they use, until the child exits. */
static void ofi_after_fork(struct net_conn *conn, struct net_listener *listener)
{
}

const struct net_transport net_transport_ofi = {
	.number = NET_OFI,
	.magic = OFI_MAGIC,
	.receives = NET_RECEIVES,
	.conn_bytes = sizeof(struct ofi_conn),
	.listener_bytes = sizeof(struct ofi_listener),
	.look_up = ofi_look_up,
	.found_free = ofi_info_free,
	.listen = ofi_listen,
	.listener_close = ofi_listener_close,
	.dial = ofi_dial,
	.close = ofi_close,
	.conn_free = ofi_conn_free,
	.post_frame = ofi_post_frame,
	.post_rma = ofi_post_rma,
	.flush = ofi_flush,
	.look = ofi_look,
	.rma_hold = ofi_rma_hold,
	.rma_release = ofi_rma_release,
	.share = ofi_share,
	.unshare = ofi_unshare,
	.progress = ofi_progress,
	.arm = ofi_arm,
	.queue_destroy = ofi_queue_destroy,
	.after_fork = ofi_after_fork,
};
