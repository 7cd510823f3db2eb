// SPDX-License-Identifier: Apache-2.0
/*
 * Puts and gets: docs/protocol/clan.md §12.5. The transport copies directly from and to the
 * program's memory.
 *
 *   net_rma_begin() ─▶ conn->rmas ─▶ net_rma_pump(): post_rma() ─▶ conn->running
 *       ─▶ CLAN_EVENT_DONE ─▶ net->rmas
 *
 * Ownership: a net_rma belongs to its connection, and returns to the queue's free list when it is
 * released (the transport no longer uses it), given (DONE was given or is not wanted), and its PUT
 * record is written.
 */
#include <errno.h>
#include <stdlib.h>

#include "clan/net.h"

static struct net_queue *net_rma_queue_of(const struct net_rma *rma)
{
	return net_queue(rma->op.conn->conn.queue);
}

/* Returns the rma to the free list, if it is not used any more. */
static void rma_put_back(struct net_rma *rma)
{
	if (rma->given && rma->released && !list_is_linked(&rma->owed.node)) {
		struct net_queue *net = net_rma_queue_of(rma);

		list_remove(&rma->node);
		list_push_back(&net->rmas, &rma->node);
	}
}

static bool net_rma_give_done(struct clan_source *source, struct clan_event *event)
{
	struct net_rma *rma = container_of(source, struct net_rma, source);
	struct clan_conn *conn = &rma->op.conn->conn;

	event->type = CLAN_EVENT_DONE;
	event->conn = conn;
	event->context = conn->context;
	event->op = rma->context;
	event->status = rma->status;
	rma->given = true;
	rma_put_back(rma);
	return false;
}

/* Called when the transport no longer uses the rma: releases the local memory, our record of the
 * peer's cookie (ticket) and the peer's region, and fires DONE. */
static void rma_release(struct net_rma *rma)
{
	struct net_conn *conn = rma->op.conn;

	conn->transport->rma_release(rma);
	rma->released = true;
	if (conn->conn.state == CLAN_OPEN || conn->conn.state == CLAN_LOST) {
		clan_fire(conn->conn.queue, &rma->source);
	} else {
		rma->given = true;
	}
	net_ticket_released(conn, rma->ticket, rma->region);
	rma_put_back(rma);
}

void net_rma_free_all(struct net_queue *net)
{
	struct list_node *node;

	while ((node = list_pop_front(&net->rmas)) != NULL) {
		struct net_rma *rma = list_entry(node, struct net_rma, node);

		free(rma->held);
		free(rma);
	}
}

/* Returns the struct for a put or get: a free one of the queue, or a new one. Members that
 * net_rma_begin() sets are not initialized; rma->held is kept for the transport. */
static struct net_rma *rma_get(struct net_conn *conn)
{
	struct list_node *node = list_pop_front(&net_queue(conn->conn.queue)->rmas);
	struct net_rma *rma =
		node != NULL ? list_entry(node, struct net_rma, node) : calloc(1, sizeof(*rma));

	if (rma != NULL) {
		rma->op = (struct net_op){ .kind = NET_OP_RMA, .conn = conn };
		list_init(&rma->node);
		list_init(&rma->owed.node);
		clan_source_init(&rma->source, net_rma_give_done);
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

void net_rma_advance(struct net_rma *rma, size_t bytes)
{
	while (bytes > 0) {
		size_t part = MIN(bytes, rma->iov[rma->index].iov_len - rma->skip);

		bytes -= part;
		rma->skip += part;
		if (rma->skip == rma->iov[rma->index].iov_len) {
			rma->index++;
			rma->skip = 0;
		}
	}
}

/* Posts in order, because messages and later operations must not overtake a put. */
void net_rma_pump(struct net_conn *conn)
{
	while (conn->phase == NET_TALKING && !list_is_empty(&conn->rmas) &&
		conn->pieces < NET_RMA_PIECES) {
		struct net_rma *rma = list_entry(list_first(&conn->rmas), struct net_rma, node);
		int result = conn->transport->post_rma(conn, rma);

		if (result == -EAGAIN) {
			net_changed(conn);
			return;
		}
		if (result != 0) {
			net_conn_cut(conn, result);
			return;
		}
		if (rma->left == 0) {
			list_remove(&rma->node);
			list_push_back(&conn->running, &rma->node);
			conn->rmas_posted++;
		}
	}
}

void net_rma_done(struct net_rma *rma, int error)
{
	struct net_conn *conn = rma->op.conn;

	rma->pieces--;
	conn->pieces--;
	if (error != 0 && rma->status == 0) {
		rma->status = -ENOTCONN;
	}
	if (conn->phase != NET_TALKING) {
		return; /* net_rma_end() will end the operation */
	}
	if (rma->pieces == 0 && rma->left == 0) {
		rma_release(rma);
	}
	if (!list_is_empty(&conn->rmas) || !list_is_empty(&conn->frames)) {
		net_changed(conn);
	}
	net_conn_drained(conn);
}

/* Ends all operations of a list that have not been ended by completions. */
static void end_all(struct list_node *list)
{
	list_for_each(node, list)
	{
		struct net_rma *rma = list_entry(node, struct net_rma, node);

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

void net_rma_end(struct net_conn *conn)
{
	end_all(&conn->rmas);
	end_all(&conn->running);
	conn->pieces = 0;
}

/* Discards the events of all operations in a list. */
static void quiet_all(struct list_node *list)
{
	list_for_each(node, list)
	{
		struct net_rma *rma = list_entry(node, struct net_rma, node);

		list_remove(&rma->source.node);
		rma->given = true;
		rma_put_back(rma);
	}
}

void net_rma_close(struct net_conn *conn)
{
	quiet_all(&conn->rmas);
	quiet_all(&conn->running);
}

/* --- the calls -------------------------------------------------------------------------------- */

static void write_put(struct net_conn *conn, struct net_owed *owed)
{
	struct net_rma *rma = container_of(owed, struct net_rma, owed);

	net_append_system(conn, NET_PUT, &rma->record, sizeof(rma->record));
	rma_put_back(rma);
}

int net_rma_ended(struct net_conn *conn, void *op)
{
	struct net_rma *rma = rma_get(conn);

	if (rma == NULL) {
		return -ENOMEM;
	}
	rma->context = op;
	rma->released = true;
	list_push_back(&conn->running, &rma->node);
	clan_fire(conn->conn.queue, &rma->source);
	return 0;
}

struct transfer {
	const struct iovec *iov;
	uint32_t iov_count;
	uint64_t bytes;
	uint64_t offset; /* in the cookie */
	void *op;
	bool put;
};

/* Starts a put or get by a cookie. The vector is copied, without its empty parts; the memory it
 * describes must stay valid until DONE. A cookie with CLAN_COOKIE_ONCE is used up here, before the
 * transfer, so a second call fails. An empty transfer only checks the right. */
static int net_rma_begin(
	struct net_conn *conn, const struct clan_cookie *cookie, const struct transfer *transfer)
{
	struct net_ticket *ticket;
	struct net_rma *rma;
	int result = net_ticket_find(conn, cookie, transfer->put ? CLAN_WRITE : CLAN_READ,
		transfer->offset, transfer->bytes, &ticket);

	if (result != 0) {
		conn->conn.stats.refused++;
		return result;
	}
	if (transfer->bytes == 0) {
		return net_rma_ended(conn, transfer->op);
	}
	rma = rma_get(conn);
	if (rma == NULL) {
		return -ENOMEM;
	}
	rma->put = transfer->put;
	rma->iov_count = 0;
	for (uint32_t i = 0; i < transfer->iov_count; i++) {
		if (transfer->iov[i].iov_len > 0) {
			rma->iov[rma->iov_count++] = transfer->iov[i];
		}
	}
	result = conn->transport->rma_hold(rma);
	if (result != 0) {
		list_push_back(&net_rma_queue_of(rma)->rmas, &rma->node);
		return result;
	}
	rma->context = transfer->op;
	rma->ticket = ticket;
	rma->region = ticket->region;
	rma->left = transfer->bytes;
	rma->record = (struct net_put){
		.region = rma->region->number,
		.offset = ticket->cookie.offset + transfer->offset,
		.bytes = transfer->bytes,
	};
	rma->remote = rma->region->base + rma->record.offset;
	rma->slot = cookie->slot;
	rma->generation = cookie->generation;
	rma->offset = transfer->offset;
	ticket->running++;
	rma->region->running++;
	if ((ticket->cookie.flags & CLAN_COOKIE_ONCE) != 0) {
		ticket->cookie.generation = 0;
	}
	list_push_back(&conn->rmas, &rma->node);
	conn->rmas_begun++;
	if (rma->put && !conn->transport->sees_puts) {
		net_owe(conn, &rma->owed, write_put);
	}
	net_changed(conn);
	net_rma_pump(conn);
	return 0;
}

static bool net_rma_sum_bytes(const struct iovec *iov, uint32_t iov_count, uint64_t *bytes_out)
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

int net_put(struct clan_conn *base, const struct iovec *from, uint32_t from_count,
	const struct clan_cookie *cookie, uint64_t offset, bool notify, uint32_t value, void *op)
{
	struct transfer transfer = {
		.iov = from, .iov_count = from_count, .offset = offset, .op = op, .put = true
	};
	struct net_conn *conn = net_conn(base);
	int result;

	if (!net_rma_sum_bytes(from, from_count, &transfer.bytes)) {
		return -ERANGE;
	}
	if (notify && !net_room(conn, NET_BULK, sizeof(value))) {
		return net_no_room(conn, NET_BULK, sizeof(value));
	}
	result = net_rma_begin(conn, cookie, &transfer);
	if (result != 0) {
		return result;
	}
	base->stats.puts++;
	base->stats.bytes_put += transfer.bytes;
	if (notify) {
		net_notify(conn, value);
	}
	return result;
}

int net_get(struct clan_conn *base, const struct iovec *to, uint32_t to_count,
	const struct clan_cookie *cookie, uint64_t offset, void *op)
{
	struct transfer transfer = { .iov = to, .iov_count = to_count, .offset = offset, .op = op };
	int result;

	if (!net_rma_sum_bytes(to, to_count, &transfer.bytes)) {
		return -ERANGE;
	}
	result = net_rma_begin(net_conn(base), cookie, &transfer);
	if (result == 0) {
		base->stats.gets++;
		base->stats.bytes_got += transfer.bytes;
	}
	return result;
}
