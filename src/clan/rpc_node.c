// SPDX-License-Identifier: Apache-2.0
/*
 * Nodes and links of the RPC: connecting, hellos, areas and their cookies; docs/protocol/clan.md
 * §13.
 *
 * Invariant: links of one node have the same key and user, so a peer cannot add a connection to
 * another peer's node.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/error.h"
#include "clan/clan.h"
#include "clan/rpc.h"

enum {
	RPC_VERSION = 1,
	RPC_PAGE_BYTES = 4096,
	/* Bulk ring slots per call. For each call, one request and one reply can be waiting in each
	 * direction's ring, and a ring reports room only after half of it was consumed. */
	RPC_RING_PER_CALL = 8,
};

_Static_assert(CLAN_RPC_CALLS_MAX *RPC_RING_PER_CALL <= CLAN_BULK_SLOTS_MAX,
	"a ring has room for all calls");

#define RPC_HELLO_MAGIC UINT64_C(0x316370726e616c63) /* "clanrpc1" */

/* Hello of a connection. Connections with the same key belong to one node. */
struct rpc_hello {
	uint64_t magic;
	uint64_t key;
	uint32_t version;
	uint32_t node;
	uint16_t index;
	uint16_t conns;
	uint32_t reserved;
};

/* --- states ----------------------------------------------------------------------------------- */

static const uint32_t link_edges[LINK_STATE_COUNT] = {
	[LINK_NEW] = BIT(LINK_GREETED) | BIT(LINK_CLOSING) | BIT(LINK_CLOSED),
	[LINK_GREETED] = BIT(LINK_UP) | BIT(LINK_CLOSING),
	[LINK_UP] = BIT(LINK_CLOSING),
	[LINK_CLOSING] = BIT(LINK_CLOSED),
};

void rpc_link_set_state(struct rpc_link *link, enum link_state state)
{
	GMB_ASSERT((link_edges[link->state] & BIT(state)) != 0);
	link->state = state;
}

static const uint32_t node_edges[NODE_STATE_COUNT] = {
	[NODE_CONNECTING] = BIT(NODE_UP) | BIT(NODE_ENDING),
	[NODE_UP] = BIT(NODE_ENDING),
};

static void set_node_state(struct rpc_node *node, enum node_state state)
{
	GMB_ASSERT((node_edges[node->state] & BIT(state)) != 0);
	node->state = state;
}

/* --- nodes ------------------------------------------------------------------------------------ */

struct rpc_node *rpc_node_find(struct clan_rpc *rpc, uint32_t number)
{
	list_for_each(item, &rpc->buckets[number % RPC_BUCKETS])
	{
		struct rpc_node *node = list_entry(item, struct rpc_node, bucket_node);

		if (node->number == number) {
			return node;
		}
	}
	return NULL;
}

void rpc_node_changed(struct rpc_node *node)
{
	if (!list_is_linked(&node->changed_node)) {
		list_push_back(&node->rpc->changed, &node->changed_node);
	}
}

static void link_fini(struct rpc_link *link)
{
	int result = clan_region_destroy(link->region);

	GMB_ASSERT(result == 0); /* cannot fail: the region's share ended with the connection */
	free(link->requests);
	free(link->ops);
	free(link->waiting);
	free(link->free);
	free(link->busy);
}

void rpc_node_free(struct rpc_node *node)
{
	list_remove(&node->bucket_node);
	list_remove(&node->changed_node);
	for (uint32_t i = 0; i < node->conns; i++) {
		link_fini(&node->links[i]);
	}
	free(node);
}

/* Closes all links of the node. Outstanding calls are given to the program by give_change(), and
 * the node is freed when the last link is closed. */
void rpc_node_end(struct rpc_node *node, int status)
{
	if (node->state == NODE_ENDING) {
		return;
	}
	set_node_state(node, NODE_ENDING);
	node->status = status;
	node->up_pending = false;
	for (uint32_t i = 0; i < node->conns; i++) {
		struct rpc_link *link = &node->links[i];

		list_remove(&link->ready_node);
		if (link->conn != NULL) {
			rpc_link_set_state(link, LINK_CLOSING);
			clan_close(link->conn);
		} else {
			rpc_link_set_state(link, LINK_CLOSED);
		}
	}
	rpc_node_changed(node);
}

/* Allocates the tables and the area of a link, which are needed only with a connection. */
static bool link_init(struct rpc_link *link)
{
	struct clan_rpc *rpc = link->node->rpc;
	const struct clan_rpc_options *options = &rpc->options;
	uint32_t calls = options->calls;
	void *base;

	link->requests = calloc(calls, sizeof(*link->requests));
	link->ops = calloc(calls, sizeof(*link->ops));
	link->waiting = calloc((size_t)2 * calls, sizeof(*link->waiting));
	link->free = calloc(calls, sizeof(*link->free));
	link->busy = calloc(calls, sizeof(*link->busy));
	if (link->requests == NULL || link->ops == NULL || link->waiting == NULL ||
		link->free == NULL || link->busy == NULL ||
		clan_region_create(rpc->queue,
			align_up((uint64_t)4 * calls * rpc_stride(options->bytes_max),
				RPC_PAGE_BYTES),
			0, &link->region, &base) != 0) {
		return false;
	}
	link->area = base;
	return true;
}

static struct rpc_node *node_create(
	struct clan_rpc *rpc, uint32_t number, uint64_t key, uint32_t conns)
{
	struct rpc_node *node = calloc(1, sizeof(*node) + conns * sizeof(node->links[0]));

	if (node == NULL) {
		return NULL;
	}
	node->rpc = rpc;
	node->number = number;
	node->key = key;
	node->conns = conns;
	list_init(&node->changed_node);
	list_push_back(&rpc->buckets[number % RPC_BUCKETS], &node->bucket_node);
	for (uint32_t i = 0; i < conns; i++) {
		list_init(&node->links[i].ready_node);
		node->links[i].node = node;
		node->links[i].index = (uint16_t)i;
	}
	return node;
}

/* --- set-up ----------------------------------------------------------------------------------- */

/* Sets the link to UP when both sides have sent SETUP. The smaller limits of the two sides apply.
 */
static void link_check_up(struct rpc_link *link)
{
	struct rpc_node *node = link->node;
	const struct clan_rpc_options *options = &node->rpc->options;

	if (!link->offered || !link->known) {
		return;
	}
	rpc_link_set_state(link, LINK_UP);
	link->calls = MIN(options->calls, link->peer.calls);
	link->bytes_max = MIN(options->bytes_max, link->peer.bytes_max);
	while (link->free_count < link->calls) {
		link->free[link->free_count] = (uint16_t)link->free_count;
		link->free_count++;
	}
	if (++node->up_count == node->conns) {
		set_node_state(node, NODE_UP);
		node->up_pending = true;
		rpc_node_changed(node);
	}
}

void rpc_link_greeted(struct rpc_link *link)
{
	int result;

	rpc_link_set_state(link, LINK_GREETED);
	result = clan_region_share(link->conn, link->region, CLAN_READ | CLAN_WRITE);
	if (result != 0) {
		rpc_node_end(link->node, result);
	}
}

/* Called when the peer has received our region, or has refused it. Sends the cookie with which it
 * writes requests and replies there. */
void rpc_link_shared(struct rpc_link *link, int status)
{
	const struct clan_rpc_options *options = &link->node->rpc->options;
	struct rpc_setup setup = {
		.version = RPC_VERSION,
		.calls = options->calls,
		.bytes_max = options->bytes_max,
	};
	int result = status;

	if (result == 0) {
		result = clan_cookie_grant(link->conn, link->region, 0,
			2 * options->calls * rpc_stride(options->bytes_max), CLAN_WRITE, 0,
			&setup.cookie);
	}
	if (result == 0) {
		result = clan_send(link->conn, CLAN_CONTROL, RPC_SETUP, &setup, sizeof(setup));
	}
	if (result != 0) {
		rpc_node_end(link->node, result);
		return;
	}
	link->offered = true;
	link_check_up(link);
}

static bool setup_is_valid(const struct rpc_setup *setup)
{
	return setup->version == RPC_VERSION && setup->calls > 0 &&
	       setup->calls <= CLAN_RPC_CALLS_MAX && setup->bytes_max > 0 &&
	       setup->bytes_max <= CLAN_RPC_BYTES_MAX && setup->bytes_max % RPC_BYTES_UNIT == 0 &&
	       setup->reserved == 0 &&
	       setup->cookie.bytes == 2 * setup->calls * rpc_stride(setup->bytes_max);
}

bool rpc_link_take_setup(struct rpc_link *link, const struct rpc_setup *setup, uint32_t bytes)
{
	if (bytes != sizeof(*setup) || link->known || !setup_is_valid(setup)) {
		return false;
	}
	link->peer = *setup;
	link->known = true;
	link_check_up(link);
	return true;
}

struct clan_conn_options rpc_conn_options(const struct clan_rpc *rpc)
{
	uint32_t slots = CLAN_BULK_SLOTS_MIN;

	while (slots < RPC_RING_PER_CALL * rpc->options.calls) {
		slots *= 2;
	}
	return (struct clan_conn_options){
		.size = sizeof(struct clan_conn_options),
		.access = rpc->options.access,
		.bulk_slots = slots,
		.cookies = 1,
		.tripwires = 1,
		.peer_regions_max = 1,
		.conns_max = rpc->options.conns_max,
	};
}

static void rpc_node_attach(struct rpc_link *link, struct clan_conn *conn)
{
	link->conn = conn;
	link->node->open_count++;
	clan_conn_set_context(conn, link);
}

/* If the call fails after some of the connections were started, the node ends without an event,
 * because the call itself reports the error. */
int clan_rpc_dial(
	struct clan_rpc *rpc, uint32_t number, const char *address, struct clan_error *error)
{
	struct clan_conn_options options = rpc_conn_options(rpc);
	struct rpc_hello hello = {
		.magic = RPC_HELLO_MAGIC,
		.version = RPC_VERSION,
		.node = rpc->options.node,
		.conns = (uint16_t)rpc->options.conns,
	};
	struct error text = { 0 };
	struct rpc_node *node;
	int result = 0;

	if (number >= CLAN_RPC_NODES_MAX || rpc_node_find(rpc, number) != NULL) {
		error_set(&text, number >= CLAN_RPC_NODES_MAX ? -EINVAL : -EALREADY,
			"cannot connect to node %u: %s", number,
			number >= CLAN_RPC_NODES_MAX ? "the node number is too large"
						     : "the node number is in use");
		return clan_error_give(error, &text);
	}
	if (getrandom(&hello.key, sizeof(hello.key), 0) != sizeof(hello.key)) {
		error_set(&text, -EIO, "cannot connect to node %u: cannot get a random number",
			number);
		return clan_error_give(error, &text);
	}
	node = node_create(rpc, number, hello.key, hello.conns);
	if (node == NULL) {
		error_set(&text, -ENOMEM, "cannot connect to node %u: not enough memory", number);
		return clan_error_give(error, &text);
	}
	node->dialled = true;
	for (uint32_t i = 0; i < node->conns && result == 0; i++) {
		struct clan_conn *conn;

		if (!link_init(&node->links[i])) {
			error_set(&text, -ENOMEM, "cannot connect to node %u: not enough memory",
				number);
			result = clan_error_give(error, &text);
			break;
		}
		hello.index = (uint16_t)i;
		result = clan_connect(
			rpc->queue, address, &options, &hello, sizeof(hello), &conn, error);
		if (result == 0) {
			rpc_node_attach(&node->links[i], conn);
		}
	}
	if (result == 0) {
		node->given = true;
	} else if (node->open_count == 0) {
		rpc_node_free(node);
	} else {
		rpc_node_end(node, result); /* the node ends without an event */
	}
	return result;
}

/* Returns the node of a hello, created if it is new. Returns NULL with the reason if rule R1 is
 * broken or there is no memory. */
static struct rpc_node *node_of_hello(struct clan_rpc *rpc, struct clan_conn *conn,
	const struct rpc_hello *hello, const char **reason_out)
{
	uint32_t number = hello->node != CLAN_RPC_NO_NODE
				  ? hello->node
				  : CLAN_RPC_NODES_MAX | (uint32_t)hello->key;
	struct rpc_node *node = rpc_node_find(rpc, number);
	struct clan_peer peer;

	clan_conn_peer(conn, &peer);
	if (node == NULL) {
		node = node_create(rpc, number, hello->key, hello->conns);
		*reason_out = "not enough memory";
		if (node != NULL) {
			node->uid = peer.uid;
		}
		return node;
	}
	*reason_out = "a node with this number is already connected";
	return !node->dialled && node->state == NODE_CONNECTING && node->key == hello->key &&
			       node->conns == hello->conns && node->uid == peer.uid &&
			       node->links[hello->index].conn == NULL
		       ? node
		       : NULL;
}

static bool hello_is_valid(const struct rpc_hello *hello, size_t bytes)
{
	return bytes == sizeof(*hello) && hello->magic == RPC_HELLO_MAGIC &&
	       hello->version == RPC_VERSION && hello->reserved == 0 && hello->conns > 0 &&
	       hello->conns <= CLAN_RPC_CONNS_MAX && hello->index < hello->conns &&
	       (hello->node < CLAN_RPC_NODES_MAX || hello->node == CLAN_RPC_NO_NODE);
}

/* Adds a new connection to the node that its hello names. A node needs all of its connections, so
 * it ends if one cannot be accepted. */
void rpc_node_offered(struct clan_rpc *rpc, struct clan_conn *conn)
{
	const char *reason = "the connection does not use the clan RPC protocol";
	struct rpc_node *node = NULL;
	struct rpc_hello hello;
	struct rpc_link *link;
	const void *bytes;
	size_t count;
	int result;

	bytes = clan_conn_hello(conn, &count);
	if (count == sizeof(hello)) {
		memcpy(&hello, bytes, sizeof(hello));
		if (hello_is_valid(&hello, count)) {
			node = node_of_hello(rpc, conn, &hello, &reason);
		}
	}
	if (node == NULL) {
		clan_reject(conn, reason);
		return;
	}
	link = &node->links[hello.index];
	if (!link_init(link)) {
		clan_reject(conn, "not enough memory");
		rpc_node_end(node, -ENOMEM);
		return;
	}
	rpc_node_attach(link, conn);
	result = clan_accept(conn, NULL, 0);
	if (result == 0) {
		rpc_link_greeted(link);
	} else {
		rpc_node_end(node, result);
	}
}
