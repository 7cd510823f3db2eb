// SPDX-License-Identifier: Apache-2.0
/*
 * Puts and gets: docs/protocol/clan.md §12.5. The bytes go from and to the program's own memory. A
 * domain that wants to know it gets registrations: those of a region are kept with it, other memory
 * is registered for as long as the put or get runs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "clan/ofi.h"

#define PIECE_BYTES_MAX (UINT64_C(1) << 30)

struct ofi_rma {
	struct ofi_context context;
	struct list_node node; /* in conn->rmas or conn->running, or free */
	struct clan_source source;
	struct ofi_owed owed; /* PUT */
	struct ofi_ticket *ticket;
	struct ofi_peer_region *region;
	struct ofi_put record;
	void *op;
	int status;
	bool put;
	bool released;
	bool given;	 /* DONE, or nobody wants it */
	uint32_t pieces; /* posted, not ended */
	uint64_t remote; /* where the next piece goes */
	uint64_t left;
	uint32_t iov_count;
	uint32_t index; /* in iov */
	size_t skip;
	struct iovec iov[CLAN_IOV_MAX];
	void *descs[CLAN_IOV_MAX];
	struct fid_mr *mrs[CLAN_IOV_MAX]; /* made for this one only */
	void *copies[CLAN_IOV_MAX];	  /* of memory that cannot be registered */
};

/* A registration of a region in a domain, for bytes that go from it or to it. */
struct ofi_local {
	struct clan_registration registration;
	struct ofi_net *net;
	struct fid_mr *mr;
};

/* --- memory of our own ------------------------------------------------------------------------ */

static void local_drop(struct clan_registration *registration)
{
	struct ofi_local *local = container_of(registration, struct ofi_local, registration);

	fi_close(&local->mr->fid);
	free(local);
}

static struct ofi_local *region_local(struct clan_region *region, struct ofi_net *net)
{
	struct ofi_local *local;

	list_for_each(node, &region->registrations)
	{
		struct clan_registration *registration =
			list_entry(node, struct clan_registration, node);

		local = container_of(registration, struct ofi_local, registration);
		if (registration->drop == local_drop && local->net == net) {
			return local;
		}
	}
	local = calloc(1, sizeof(*local));
	if (local == NULL || fi_mr_reg(net->domain, region->base, region->bytes, FI_READ | FI_WRITE,
				     0, 0, 0, &local->mr, NULL) != 0) {
		free(local);
		return NULL;
	}
	local->net = net;
	local->registration.drop = local_drop;
	list_push_back(&region->registrations, &local->registration.node);
	return local;
}

static int register_memory(struct ofi_conn *conn, struct ofi_rma *rma, uint32_t part)
{
	return ofi_errno(
		fi_mr_reg(conn->net->domain, rma->iov[part].iov_base, rma->iov[part].iov_len,
			rma->put ? FI_WRITE : FI_READ, 0, 0, 0, &rma->mrs[part], NULL));
}

/* The registration of one part: 0 or a negative errno. */
static int register_part(struct ofi_conn *conn, struct ofi_rma *rma, uint32_t part)
{
	uintptr_t begin = (uintptr_t)rma->iov[part].iov_base;
	size_t bytes = rma->iov[part].iov_len;
	int result;

	list_for_each(node, &conn->conn.queue->regions)
	{
		struct clan_region *region = list_entry(node, struct clan_region, node);
		uintptr_t base = (uintptr_t)region->base;

		if (begin >= base && range_inside(begin - base, bytes, region->bytes)) {
			struct ofi_local *local = region_local(region, conn->net);

			if (local != NULL) {
				rma->descs[part] = fi_mr_desc(local->mr);
				return 0;
			}
			break; /* it may be more than can be registered, or read-only */
		}
	}
	result = register_memory(conn, rma, part);
	if (result == -EFAULT && rma->put) { /* read-only memory, which verbs does not take */
		rma->copies[part] = malloc(bytes);
		if (rma->copies[part] == NULL) {
			return -ENOMEM;
		}
		memcpy(rma->copies[part], rma->iov[part].iov_base, bytes);
		rma->iov[part].iov_base = rma->copies[part];
		result = register_memory(conn, rma, part);
	}
	if (result == 0) {
		rma->descs[part] = fi_mr_desc(rma->mrs[part]);
	}
	return result;
}

static void unregister_parts(struct ofi_rma *rma)
{
	for (uint32_t i = 0; i < rma->iov_count; i++) {
		if (rma->mrs[i] != NULL) {
			fi_close(&rma->mrs[i]->fid);
			rma->mrs[i] = NULL;
		}
		free(rma->copies[i]);
		rma->copies[i] = NULL;
	}
}

/* --- life ------------------------------------------------------------------------------------- */

static struct ofi_queue *queue_of(const struct ofi_rma *rma)
{
	return ofi_queue(rma->context.conn->conn.queue);
}

/* Back to the others, when nobody needs it any more. */
static void rma_put_back(struct ofi_rma *rma)
{
	if (rma->given && rma->released && !list_is_linked(&rma->owed.node)) {
		struct ofi_queue *ofi = queue_of(rma);

		list_remove(&rma->node);
		list_push_back(&ofi->rmas, &rma->node);
	}
}

static bool give_done(struct clan_source *source, struct clan_event *event)
{
	struct ofi_rma *rma = container_of(source, struct ofi_rma, source);
	struct clan_conn *conn = &rma->context.conn->conn;

	event->type = CLAN_EVENT_DONE;
	event->conn = conn;
	event->context = conn->context;
	event->op = rma->op;
	event->status = rma->status;
	rma->given = true;
	rma_put_back(rma);
	return false;
}

/* Nothing of it is under way any more. */
static void rma_release(struct ofi_rma *rma)
{
	struct ofi_conn *conn = rma->context.conn;

	unregister_parts(rma);
	rma->released = true;
	if (conn->conn.state == CLAN_OPEN || conn->conn.state == CLAN_LOST) {
		clan_fire(conn->conn.queue, &rma->source);
	} else {
		rma->given = true;
	}
	ofi_ticket_released(conn, rma->ticket, rma->region);
	rma_put_back(rma);
}

void ofi_rma_free_all(struct ofi_queue *ofi)
{
	struct list_node *node;

	while ((node = list_pop_front(&ofi->rmas)) != NULL) {
		free(list_entry(node, struct ofi_rma, node));
	}
}

static struct ofi_rma *rma_get(struct ofi_conn *conn)
{
	struct list_node *node = list_pop_front(&ofi_queue(conn->conn.queue)->rmas);
	struct ofi_rma *rma =
		node != NULL ? list_entry(node, struct ofi_rma, node) : calloc(1, sizeof(*rma));

	if (rma != NULL) {
		rma->context = (struct ofi_context){ .kind = OFI_RMA, .conn = conn };
		list_init(&rma->node);
		list_init(&rma->owed.node);
		clan_source_init(&rma->source, give_done);
		rma->status = 0;
		rma->released = false;
		rma->given = false;
		rma->pieces = 0;
		rma->index = 0;
		rma->skip = 0;
	}
	return rma;
}

/* --- posting ---------------------------------------------------------------------------------- */

/* Posts the next piece: 0, or what libfabric said. */
static ssize_t post_piece(struct ofi_conn *conn, struct ofi_rma *rma)
{
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
		descs[count++] = rma->descs[index];
		bytes += part;
		skip += part;
		if (skip == rma->iov[index].iov_len) {
			index++;
			skip = 0;
		}
	}
	if (rma->put) {
		result = fi_writev(conn->ep, iov, descs, count, 0, rma->remote, rma->region->key,
			&rma->context);
	} else {
		result = fi_readv(conn->ep, iov, descs, count, 0, rma->remote, rma->region->key,
			&rma->context);
	}
	if (result == 0) {
		rma->index = index;
		rma->skip = skip;
		rma->remote += bytes;
		rma->left -= bytes;
		rma->pieces++;
		conn->pieces++;
	}
	return result;
}

void ofi_rma_pump(struct ofi_conn *conn)
{
	while (conn->phase == OFI_TALKING && !list_is_empty(&conn->rmas) &&
		conn->pieces < OFI_RMA_PIECES) {
		struct ofi_rma *rma = list_entry(list_first(&conn->rmas), struct ofi_rma, node);
		ssize_t result = post_piece(conn, rma);

		if (result == -FI_EAGAIN) {
			ofi_changed(conn);
			return;
		}
		if (result != 0) {
			ofi_conn_cut(conn, (int)-result);
			return;
		}
		if (rma->left == 0) {
			list_remove(&rma->node);
			list_push_back(&conn->running, &rma->node);
			conn->rmas_posted++;
		}
	}
}

void ofi_rma_completed(struct ofi_context *context, int error)
{
	struct ofi_rma *rma = container_of(context, struct ofi_rma, context);
	struct ofi_conn *conn = context->conn;

	rma->pieces--;
	conn->pieces--;
	if (error != 0 && rma->status == 0) {
		rma->status = -ENOTCONN;
	}
	if (conn->phase != OFI_TALKING) {
		return; /* ofi_rma_end() does the rest */
	}
	if (rma->pieces == 0 && rma->left == 0) {
		rma_release(rma);
	}
	if (!list_is_empty(&conn->rmas) || !list_is_empty(&conn->frames)) {
		ofi_changed(conn);
	}
	ofi_conn_drained(conn);
}

/* Ends one that was not ended by completions. */
static void end_all(struct list_node *list)
{
	list_for_each(node, list)
	{
		struct ofi_rma *rma = list_entry(node, struct ofi_rma, node);

		list_remove(&rma->owed.node);
		if (!rma->released) {
			rma->status = -ENOTCONN;
			rma->pieces = 0;
			rma->left = 0;
			rma_release(rma);
		} else {
			rma_put_back(rma);
		}
	}
}

void ofi_rma_end(struct ofi_conn *conn)
{
	end_all(&conn->rmas);
	end_all(&conn->running);
	conn->pieces = 0;
}

static void quiet_all(struct list_node *list)
{
	list_for_each(node, list)
	{
		struct ofi_rma *rma = list_entry(node, struct ofi_rma, node);

		list_remove(&rma->source.node);
		rma->given = true;
		rma_put_back(rma);
	}
}

void ofi_rma_close(struct ofi_conn *conn)
{
	quiet_all(&conn->rmas);
	quiet_all(&conn->running);
}

/* --- the calls -------------------------------------------------------------------------------- */

static void write_put(struct ofi_conn *conn, struct ofi_owed *owed)
{
	struct ofi_rma *rma = container_of(owed, struct ofi_rma, owed);

	ofi_append_system(conn, OFI_PUT, &rma->record, sizeof(rma->record));
	rma_put_back(rma);
}

struct transfer {
	const struct iovec *iov;
	uint32_t iov_count;
	uint64_t bytes;
	uint64_t offset; /* in the cookie */
	void *op;
	bool put;
};

static int begin(
	struct ofi_conn *conn, const struct clan_cookie *cookie, const struct transfer *transfer)
{
	struct ofi_ticket *ticket;
	struct ofi_rma *rma;
	int result = ofi_ticket_find(conn, cookie, transfer->put ? CLAN_WRITE : CLAN_READ,
		transfer->offset, transfer->bytes, &ticket);

	if (result != 0) {
		conn->conn.stats.refused++;
		return result;
	}
	rma = rma_get(conn);
	if (rma == NULL) {
		return -ENOMEM;
	}
	rma->put = transfer->put;
	rma->iov_count = 0;
	for (uint32_t i = 0; i < transfer->iov_count; i++) {
		if (transfer->iov[i].iov_len > 0) {
			rma->descs[rma->iov_count] = NULL; /* another net may have set it */
			rma->iov[rma->iov_count++] = transfer->iov[i];
		}
	}
	for (uint32_t i = 0; result == 0 && conn->net->registers_local && i < rma->iov_count; i++) {
		result = register_part(conn, rma, i);
	}
	if (result != 0) {
		unregister_parts(rma);
		list_push_back(&queue_of(rma)->rmas, &rma->node);
		return result;
	}
	rma->op = transfer->op;
	rma->ticket = ticket;
	rma->region = ticket->region;
	rma->left = transfer->bytes;
	rma->record = (struct ofi_put){
		.region = rma->region->number,
		.offset = ticket->cookie.offset + transfer->offset,
		.bytes = transfer->bytes,
	};
	rma->remote = rma->region->base + rma->record.offset;
	ticket->running++;
	rma->region->running++;
	if ((ticket->cookie.flags & CLAN_COOKIE_ONCE) != 0) {
		ticket->cookie.generation = 0;
	}
	list_push_back(&conn->rmas, &rma->node);
	conn->rmas_begun++;
	if (rma->put) {
		ofi_owe(conn, &rma->owed, write_put);
	}
	ofi_rma_pump(conn);
	return 0;
}

static bool sum_bytes(const struct iovec *iov, uint32_t iov_count, uint64_t *bytes_out)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < iov_count; i++) {
		if (iov[i].iov_len > UINT32_MAX - bytes) {
			return false;
		}
		bytes += iov[i].iov_len;
	}
	*bytes_out = bytes;
	return true;
}

int ofi_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op)
{
	struct transfer transfer = {
		.iov = from, .iov_count = from_count, .offset = offset, .op = op, .put = true
	};
	struct ofi_conn *conn = ofi_conn(base);
	struct ofi_ticket *ticket;
	int result;

	if (!sum_bytes(from, from_count, &transfer.bytes)) {
		return -ERANGE;
	}
	if (notify && !ofi_room(conn, OFI_BULK, sizeof(value))) {
		return ofi_no_room(conn, OFI_BULK, sizeof(value));
	}
	if (transfer.bytes == 0) { /* only the right to do it is asked for */
		result = ofi_ticket_find(conn, cookie, CLAN_WRITE, offset, 0, &ticket);
		result = result == 0 ? 1 : result;
	} else {
		result = begin(conn, cookie, &transfer);
	}
	if (result < 0) {
		return result;
	}
	base->stats.puts++;
	base->stats.bytes_put += transfer.bytes;
	if (notify) {
		ofi_notify(conn, value);
	}
	return result;
}

int ofi_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	struct transfer transfer = { .iov = to, .iov_count = to_count, .offset = offset, .op = op };
	struct ofi_ticket *ticket;
	int result;

	if (!sum_bytes(to, to_count, &transfer.bytes)) {
		return -ERANGE;
	}
	if (transfer.bytes == 0) {
		result = ofi_ticket_find(ofi_conn(base), cookie, CLAN_READ, offset, 0, &ticket);
		result = result == 0 ? 1 : result;
	} else {
		result = begin(ofi_conn(base), cookie, &transfer);
	}
	if (result >= 0) {
		base->stats.gets++;
		base->stats.bytes_got += transfer.bytes;
	}
	return result;
}
