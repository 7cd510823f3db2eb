// SPDX-License-Identifier: Apache-2.0
/*
 * Calls, replies and events of <gmblock/clan_rpc.h>; docs/protocol/clan.md §13. rpc_node.c creates
 * the nodes and their links.
 *
 * Invariant: only the notification of a put determines slot, type and length of a message. The peer
 * can change the bytes in its slot at any time, so they are copied once, to the program's buffer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "clan/clan.h"
#include "clan/rpc.h"

enum {
	RPC_CALLS_DEFAULT = 32,
	RPC_BYTES_DEFAULT = 4096,
	RPC_CONNS_DEFAULT = 256,
	RPC_EVENTS = 32,  /* limit on events per wait */
	RPC_LOOK_MS = 10, /* interval of checks for connections that end without an event */
};

#define RPC_NS_PER_MS UINT64_C(1000000)

/* The value of a notification: u9 slot, u1 reply, u8 type, u13 bytes. */
enum {
	VALUE_REPLY_SHIFT = 9,
	VALUE_TYPE_SHIFT = 10,
	VALUE_BYTES_SHIFT = 18,
	VALUE_BYTES_BITS = 13,
};
_Static_assert(CLAN_RPC_CALLS_MAX == 1 << VALUE_REPLY_SHIFT, "a slot fits");
_Static_assert(CLAN_RPC_TYPE_MAX < 1 << (VALUE_BYTES_SHIFT - VALUE_TYPE_SHIFT), "a type fits");
_Static_assert(CLAN_RPC_BYTES_MAX < 1 << VALUE_BYTES_BITS, "a length fits");
_Static_assert(VALUE_BYTES_SHIFT + VALUE_BYTES_BITS == 31, "values have 31 bits");

/* --- puts ------------------------------------------------------------------------------------- */

static uint32_t rpc_value_of(bool is_reply, uint32_t slot, uint32_t type, uint32_t bytes)
{
	return slot | (uint32_t)is_reply << VALUE_REPLY_SHIFT | type << VALUE_TYPE_SHIFT |
	       bytes << VALUE_BYTES_SHIFT;
}

static uint32_t rpc_slot_of(uint32_t value)
{
	return value & (CLAN_RPC_CALLS_MAX - 1);
}

static bool is_reply_of(uint32_t value)
{
	return (value >> VALUE_REPLY_SHIFT & 1) != 0;
}

static uint32_t rpc_bytes_of(uint32_t value)
{
	return value >> VALUE_BYTES_SHIFT;
}

/* Returns the address of our copy of a request or reply, from which it is put. The copy of a
 * request can be reused when its reply has arrived, and the copy of a reply when the next request
 * in that slot has arrived. Either shows that the put has ended, on every transport. */
static uint8_t *outgoing(const struct rpc_link *link, bool is_reply, uint32_t slot)
{
	const struct clan_rpc_options *options = &link->node->rpc->options;

	return link->area + (size_t)(options->calls * (is_reply ? 3 : 2) + slot) *
				    rpc_stride(options->bytes_max);
}

/* Puts a message. Returns 0, -EAGAIN if there is no room, or another negative errno. */
static int rpc_put(struct rpc_link *link, uint32_t value)
{
	bool is_reply = is_reply_of(value);
	struct iovec from = { .iov_base = outgoing(link, is_reply, rpc_slot_of(value)),
		.iov_len = rpc_bytes_of(value) };
	uint64_t slot = rpc_slot_of(value) + (is_reply ? link->peer.calls : 0);

	return clan_put(link->conn, &from, 1, &link->peer.cookie,
		slot * rpc_stride(link->peer.bytes_max), CLAN_NOTIFY, value, NULL);
}

/* Puts a message, or queues it if there is no room. Messages stay in order, because the queue must
 * be empty for a direct put. Other errors mean that the peer has revoked its cookie or is lost. */
static void put_or_wait(struct rpc_link *link, uint32_t value)
{
	int result = link->waiting_count > 0 ? -EAGAIN : rpc_put(link, value);
	uint32_t room = 2 * link->node->rpc->options.calls;

	if (result == -EAGAIN && link->waiting_count == room) {
		/* The queue would have room if the peer obeyed rule R4, which permits it to reuse a
		 * slot only after it has received the reply. */
		rpc_node_end(link->node, -EPROTO);
	} else if (result == -EAGAIN) {
		link->waiting[(link->waiting_first + link->waiting_count++) % room] = value;
	} else if (result != 0 && result != -ENOTCONN) {
		rpc_node_end(link->node, -EPROTO);
	}
}

/* Puts queued messages while there is room. */
static void put_waiting(struct rpc_link *link)
{
	uint32_t room = 2 * link->node->rpc->options.calls;

	while (link->waiting_count > 0) {
		int result = rpc_put(link, link->waiting[link->waiting_first]);

		if (result == -EAGAIN) {
			return;
		}
		if (result != 0) {
			rpc_node_end(link->node, result == -ENOTCONN ? -ECONNRESET : -EPROTO);
			return;
		}
		link->waiting_first = (link->waiting_first + 1) % room;
		link->waiting_count--;
	}
}

/* Returns a link with a free slot for a call, NULL if there is none. The links are used in turn. */
static struct rpc_link *pick_link(struct rpc_node *node)
{
	for (uint32_t i = 0; i < node->conns; i++) {
		struct rpc_link *link = &node->links[node->next];

		node->next = (node->next + 1) % node->conns;
		if (link->free_count > 0) {
			return link;
		}
	}
	return NULL;
}

/* See clan_rpc.h. The slot remains busy until the reply arrives. A request without room in the ring
 * is queued by put_or_wait(), so it does not fail. */
int clan_rpc_call(struct clan_rpc *rpc, uint32_t number, uint32_t type, const void *data,
	uint32_t bytes, void *op)
{
	struct rpc_node *node = rpc_node_find(rpc, number);
	struct rpc_link *link;
	uint16_t slot;

	if (type > CLAN_RPC_TYPE_MAX) {
		return -EINVAL;
	}
	if (node == NULL || node->state != NODE_UP) {
		return -ENOTCONN;
	}
	link = pick_link(node);
	if (link == NULL) {
		return -EAGAIN;
	}
	if (bytes > link->bytes_max) {
		return -EMSGSIZE;
	}
	slot = link->free[--link->free_count];
	link->busy[slot] = true;
	link->ops[slot] = op;
	if (bytes > 0) {
		memcpy(outgoing(link, false, slot), data, bytes);
	}
	put_or_wait(link, rpc_value_of(false, slot, type, bytes));
	return 0;
}

/* See clan_rpc.h. The slot's request number is reset, so a request can be answered only once. A
 * reply to an earlier request in the same slot is detected by its number. */
int clan_rpc_reply(struct clan_rpc *rpc, const struct clan_rpc_request *request, uint32_t type,
	const void *data, uint32_t bytes)
{
	struct rpc_node *node = rpc_node_find(rpc, request->node);
	struct rpc_link *link;

	if (type > CLAN_RPC_TYPE_MAX) {
		return -EINVAL;
	}
	if (node == NULL || node->state == NODE_ENDING || request->conn >= node->conns ||
		request->slot >= rpc->options.calls || request->number == 0) {
		return -ENOENT;
	}
	link = &node->links[request->conn];
	if (link->state != LINK_UP || link->requests[request->slot] != request->number) {
		return -ENOENT;
	}
	if (bytes > link->bytes_max) {
		return -EMSGSIZE;
	}
	link->requests[request->slot] = 0;
	if (bytes > 0) {
		memcpy(outgoing(link, true, request->slot), data, bytes);
	}
	put_or_wait(link, rpc_value_of(true, request->slot, type, bytes));
	return 0;
}

/* --- events ----------------------------------------------------------------------------------- */

static void link_closed(struct rpc_link *link)
{
	link->conn = NULL;
	rpc_link_set_state(link, LINK_CLOSED);
	link->node->open_count--;
	rpc_node_changed(link->node);
}

/* Handles an event of clan. A rejected connection has no context; an ending node ignores all events
 * except CLOSED. */
static void handle(struct clan_rpc *rpc, const struct clan_event *event)
{
	struct rpc_link *link = event->context;

	if (event->type == CLAN_EVENT_CONNECT && rpc->ending) {
		clan_reject(event->conn, "this node is closing");
		return;
	}
	if (event->type == CLAN_EVENT_CONNECT) {
		rpc_node_offered(rpc, event->conn);
		return;
	}
	if (link == NULL) {
		return; /* an event of a rejected connection */
	}
	if (event->type == CLAN_EVENT_CLOSED) {
		link_closed(link);
		return;
	}
	if (link->node->state == NODE_ENDING) {
		return;
	}
	if (event->type == CLAN_EVENT_CONNECTED) {
		rpc_link_greeted(link);
	} else if (event->type == CLAN_EVENT_SHARED) {
		rpc_link_shared(link, event->status);
	} else if (event->type == CLAN_EVENT_LOST) {
		link->lost = true;
		link->lost_status = event->status;
	}
	/* Messages that a lost connection had published are still received. */
	if ((event->type == CLAN_EVENT_READY || event->type == CLAN_EVENT_LOST) &&
		!list_is_linked(&link->ready_node)) {
		list_push_back(&rpc->ready, &link->ready_node);
	}
}

/* Checks a notification and fills in its event. Returns false if it breaks rule R3, R4 or R5. */
static bool take_notification(
	struct rpc_link *link, uint32_t value, struct clan_rpc_event *event, uint8_t *buffer)
{
	struct clan_rpc *rpc = link->node->rpc;
	bool is_reply = is_reply_of(value);
	uint32_t slot = rpc_slot_of(value);

	if (link->state != LINK_UP || slot >= link->calls ||
		rpc_bytes_of(value) > link->bytes_max ||
		(is_reply ? !link->busy[slot] : link->requests[slot] != 0)) {
		return false;
	}
	event->node = link->node->number;
	event->kind = value >> VALUE_TYPE_SHIFT & CLAN_RPC_TYPE_MAX;
	event->bytes = rpc_bytes_of(value);
	memcpy(buffer,
		link->area + (size_t)(slot + (is_reply ? rpc->options.calls : 0)) *
				     rpc_stride(rpc->options.bytes_max),
		event->bytes);
	if (is_reply) {
		event->type = CLAN_RPC_REPLY;
		event->op = link->ops[slot];
		link->busy[slot] = false;
		link->free[link->free_count++] = (uint16_t)slot;
		return true;
	}
	link->node->given = true;
	link->requests[slot] = ++rpc->request_number;
	event->type = CLAN_RPC_REQUEST;
	event->request = (struct clan_rpc_request){ .node = event->node,
		.conn = link->index,
		.slot = (uint16_t)slot,
		.number = rpc->request_number };
	return true;
}

/* Receives one message of a link. Returns true if it produced an event. */
static bool rpc_take_message(struct rpc_link *link, struct clan_rpc_event *event, uint8_t *buffer)
{
	struct clan_message message;
	struct rpc_setup setup;
	bool is_event = false;
	bool is_valid = false;
	int result = clan_recv(link->conn, CLAN_ANY, &message, &setup, sizeof(setup));

	if (result == -EAGAIN || result == -ENOTCONN) {
		list_remove(&link->ready_node);
		if (link->lost) {
			rpc_node_end(link->node, link->lost_status);
		} else {
			clan_flush(link->conn); /* sends the replies to these messages */
		}
		return false;
	}
	if (result == 0 && message.type == CLAN_TYPE_NOTIFY) {
		is_valid = is_event = take_notification(link, message.value, event, buffer);
	} else if (result == 0 && message.cls == CLAN_CONTROL && message.type == RPC_SETUP) {
		is_valid = rpc_link_take_setup(link, &setup, message.bytes);
	}
	if (!is_valid) {
		rpc_node_end(link->node, -EPROTO);
	}
	return is_event;
}

static bool give_message(struct clan_rpc *rpc, struct clan_rpc_event *event, uint8_t *buffer)
{
	while (!list_is_empty(&rpc->ready)) {
		struct rpc_link *link =
			list_entry(list_pop_front(&rpc->ready), struct rpc_link, ready_node);

		list_push_back(&rpc->ready, &link->ready_node);
		put_waiting(link);
		if (link->node->state != NODE_ENDING && rpc_take_message(link, event, buffer)) {
			return true;
		}
	}
	return false;
}

/* Returns the next outstanding call of an ended node as a reply with an error. Returns false if
 * there is none. */
static bool give_back_call(struct rpc_node *node, struct clan_rpc_event *event)
{
	for (uint32_t i = 0; i < node->conns; i++) {
		struct rpc_link *link = &node->links[i];

		for (uint32_t slot = 0; slot < link->calls; slot++) {
			if (link->busy[slot]) {
				link->busy[slot] = false;
				event->type = CLAN_RPC_REPLY;
				event->status = node->status != 0 ? node->status : -ECONNRESET;
				event->op = link->ops[slot];
				return true;
			}
		}
	}
	return false;
}

/* Returns the next event of a changed node: UP, or a reply with an error for each outstanding call
 * of an ended node, then DOWN. The node is freed when all its links are closed. */
static bool give_change(struct clan_rpc *rpc, struct clan_rpc_event *event)
{
	while (!list_is_empty(&rpc->changed)) {
		struct rpc_node *node =
			list_entry(list_first(&rpc->changed), struct rpc_node, changed_node);
		bool is_known = node->given;

		event->node = node->number;
		if (node->up_pending) {
			node->up_pending = false;
			node->given = true;
			list_remove(&node->changed_node);
			event->type = CLAN_RPC_UP;
			return true;
		}
		if (give_back_call(node, event)) {
			return true;
		}
		list_remove(&node->changed_node);
		if (node->open_count > 0) {
			continue; /* the node returns to the list at CLAN_EVENT_CLOSED */
		}
		event->type = CLAN_RPC_DOWN;
		event->status = node->status;
		rpc_node_free(node);
		if (is_known) {
			return true;
		}
	}
	return false;
}

static void rpc_take_events(struct clan_rpc *rpc, int timeout_ms, int *count_out)
{
	struct clan_event events[RPC_EVENTS];

	*count_out = clan_queue_wait(rpc->queue, events, RPC_EVENTS, timeout_ms);
	for (int i = 0; i < *count_out; i++) {
		handle(rpc, &events[i]);
	}
}

/* Returns changes of nodes first, then messages. If there is neither, waits for events of the queue
 * and handles them. */
int clan_rpc_next(struct clan_rpc *rpc, struct clan_rpc_event *event, void *buffer, uint32_t bytes,
	int timeout_ms)
{
	uint64_t until_ns =
		timeout_ms > 0 ? clock_now_ns() + (uint64_t)timeout_ms * RPC_NS_PER_MS : 0;
	int count;

	if (bytes < rpc->options.bytes_max || timeout_ms < -1) {
		return -EINVAL;
	}
	for (;;) {
		*event = (struct clan_rpc_event){ 0 };
		if (give_change(rpc, event)) {
			return 1;
		}
		*event = (struct clan_rpc_event){ 0 };
		if (give_message(rpc, event, buffer)) {
			return 1;
		}
		if (!list_is_empty(&rpc->changed)) {
			continue;
		}
		rpc_take_events(rpc, timeout_ms, &count);
		if (count <= 0) {
			return count;
		}
		if (timeout_ms > 0) {
			uint64_t now_ns = clock_now_ns();

			timeout_ms =
				now_ns < until_ns ? (int)((until_ns - now_ns) / RPC_NS_PER_MS) : 0;
		}
	}
}

/* --- life ------------------------------------------------------------------------------------- */

static bool options_are_valid(const struct clan_rpc_options *options)
{
	return options->size == sizeof(*options) && options->calls <= CLAN_RPC_CALLS_MAX &&
	       options->bytes_max <= CLAN_RPC_BYTES_MAX &&
	       options->bytes_max % RPC_BYTES_UNIT == 0 && options->conns <= CLAN_RPC_CONNS_MAX &&
	       options->access <= CLAN_ACCESS_ANY &&
	       (options->node < CLAN_RPC_NODES_MAX || options->node == CLAN_RPC_NO_NODE);
}

int clan_rpc_create(const struct clan_queue_options *queue_options,
	const struct clan_rpc_options *options, struct clan_rpc **rpc_out, struct clan_error *error)
{
	struct clan_rpc *rpc = calloc(1, sizeof(*rpc));
	struct error text = { 0 };
	int result;

	if (rpc == NULL) {
		error_set(&text, -ENOMEM, "cannot create a node: not enough memory");
		return clan_error_give(error, &text);
	}
	rpc->options = options != NULL ? *options
				       : (struct clan_rpc_options){ .size = sizeof(*options),
						 .node = CLAN_RPC_NO_NODE };
	if (!options_are_valid(&rpc->options)) {
		free(rpc);
		error_set(&text, -EINVAL, "cannot create a node: invalid options");
		return clan_error_give(error, &text);
	}
	if (rpc->options.calls == 0) {
		rpc->options.calls = RPC_CALLS_DEFAULT;
	}
	if (rpc->options.bytes_max == 0) {
		rpc->options.bytes_max = RPC_BYTES_DEFAULT;
	}
	if (rpc->options.conns == 0) {
		rpc->options.conns = 1;
	}
	if (rpc->options.conns_max == 0) {
		rpc->options.conns_max = RPC_CONNS_DEFAULT;
	}
	list_init(&rpc->ready);
	list_init(&rpc->changed);
	for (uint32_t i = 0; i < RPC_BUCKETS; i++) {
		list_init(&rpc->buckets[i]);
	}
	result = clan_queue_create(queue_options, &rpc->queue, error);
	if (result != 0) {
		free(rpc);
		return result;
	}
	*rpc_out = rpc;
	return 0;
}

struct clan_queue *clan_rpc_queue(struct clan_rpc *rpc)
{
	return rpc->queue;
}

/* Calls do_it for each node; the function can free the node. */
static void for_each_node(struct clan_rpc *rpc, void (*do_it)(struct rpc_node *node))
{
	for (uint32_t i = 0; i < RPC_BUCKETS; i++) {
		list_for_each(item, &rpc->buckets[i])
		{
			do_it(list_entry(item, struct rpc_node, bucket_node));
		}
	}
}

static void end_node(struct rpc_node *node)
{
	rpc_node_end(node, 0);
}

static bool has_open_nodes(const struct clan_rpc *rpc)
{
	for (uint32_t i = 0; i < RPC_BUCKETS; i++) {
		list_for_each(item, &rpc->buckets[i])
		{
			if (list_entry(item, struct rpc_node, bucket_node)->open_count > 0) {
				return true;
			}
		}
	}
	return false;
}

void clan_rpc_destroy(struct clan_rpc *rpc)
{
	int count;

	if (rpc == NULL) {
		return;
	}
	rpc->ending = true; /* HELLOs of earlier connections can still arrive */
	clan_listener_close(rpc->listener);
	for_each_node(rpc, end_node);
	while (has_open_nodes(rpc)) {
		rpc_take_events(rpc, -1, &count);
	}
	for_each_node(rpc, rpc_node_free);
	/* Wait for rejected connections, and for those that never sent HELLO. */
	while (clan_queue_destroy(rpc->queue) == -EBUSY) {
		rpc_take_events(rpc, RPC_LOOK_MS, &count);
	}
	free(rpc);
}

int clan_rpc_listen(struct clan_rpc *rpc, const char *address, struct clan_error *error)
{
	struct clan_conn_options options = rpc_conn_options(rpc);
	struct error text = { 0 };

	if (rpc->listener != NULL) {
		error_set(&text, -EALREADY, "\"%s\": this node is already listening", address);
		return clan_error_give(error, &text);
	}
	return clan_listen(rpc->queue, address, &options, &rpc->listener, error);
}

const char *clan_rpc_address(const struct clan_rpc *rpc)
{
	return rpc->listener != NULL ? clan_listener_address(rpc->listener) : NULL;
}

/* See clan_rpc.h. A node connects only to nodes with lower numbers, so each pair of nodes is
 * connected once. Nodes that do not run yet are counted as missing. */
int clan_rpc_mesh(struct clan_rpc *rpc, const char *const *addresses, uint32_t count,
	struct clan_error *error)
{
	struct error text = { 0 };
	int missing = 0;
	int result = 0;

	if (rpc->options.node >= count || count > INT32_MAX) {
		error_set(&text, -EINVAL,
			"cannot connect the nodes: the list of nodes does not contain this node");
		return clan_error_give(error, &text);
	}
	if (rpc->listener == NULL) {
		result = clan_rpc_listen(rpc, addresses[rpc->options.node], error);
	}
	for (uint32_t i = 0; i < rpc->options.node && result == 0; i++) {
		if (rpc_node_find(rpc, i) != NULL) {
			continue;
		}
		result = clan_rpc_dial(rpc, i, addresses[i], error);
		if (result == -ENOENT || result == -ECONNREFUSED || result == -ENOBUFS) {
			missing++;
			result = 0;
		}
	}
	return result < 0 ? result : missing;
}

int clan_rpc_hang_up(struct clan_rpc *rpc, uint32_t number)
{
	struct rpc_node *node = rpc_node_find(rpc, number);

	if (node == NULL || node->state == NODE_ENDING) {
		return -ENOENT;
	}
	rpc_node_end(node, 0);
	return 0;
}
