// SPDX-License-Identifier: Apache-2.0
/*
 * Private interface of <gmblock/clan_rpc.h>: nodes and their links. docs/protocol/clan.md §13 has
 * the layout.
 *
 *   node ──▶ links, each with a connection and an area ──▶ slots: requests and replies of the peer,
 *                                                          and copies of ours (sources of puts)
 *
 * Each connection has its own area, because on shm a peer can access all memory of a region that is
 * shared with it.
 *
 * Threading: as in <gmblock/clan_rpc.h>. Ownership: a node frees its links when all are closed.
 * Errors: a link whose peer breaks a rule ends its whole node.
 */
#pragma once

#include <gmblock/clan_memory.h>
#include <gmblock/clan_rpc.h>

#include "base/list.h"

enum {
	RPC_BYTES_UNIT = 64,
	RPC_BUCKETS = 256,
	RPC_SETUP = 1, /* type of SETUP in the control class */
};

/* SETUP: sent by each side when its area is shared. */
struct rpc_setup {
	uint32_t version;
	uint32_t calls;
	uint32_t bytes_max;
	uint32_t reserved;
	struct clan_cookie cookie;
};

/* The states of a link. */
enum link_state {
	/* waits until the link's connection is open; the peer or this side connects */
	LINK_NEW,
	LINK_GREETED, /* waits until SETUP was sent and received */
	LINK_UP,      /* usable for calls */
	LINK_CLOSING, /* waits for CLAN_EVENT_CLOSED */
	LINK_CLOSED,
	LINK_STATE_COUNT
};

struct rpc_link {
	struct rpc_node *node;
	struct clan_conn *conn;	     /* NULL: closed, or the peer has not connected yet */
	struct list_node ready_node; /* in clan_rpc.ready: there might be messages */
	struct clan_region *region;
	uint8_t *area;
	enum link_state state;
	uint16_t index; /* in node->links */
	bool offered;	/* our SETUP was sent */
	bool known;	/* the peer's SETUP was received */
	bool lost;
	int lost_status;
	struct rpc_setup peer;
	uint32_t calls;	    /* limit on calls in flight, for each side */
	uint32_t bytes_max; /* limit of a message */
	uint32_t free_count;
	uint32_t waiting_first, waiting_count;
	/* Arrays with clan_rpc.options.calls entries; the array waiting has twice as many. */
	uint64_t *requests; /* numbers of unanswered requests of the peer, by slot; 0 = none */
	void **ops;
	uint32_t *waiting; /* notification values of puts that found no room */
	uint16_t *free;
	bool *busy; /* by slot: one of our calls uses the slot */
};

/* The states of a node. */
enum node_state {
	NODE_CONNECTING, /* waits until all links are up */
	NODE_UP,	 /* usable for calls */
	NODE_ENDING, /* waits until all links are closed, and the results of its calls delivered */
	NODE_STATE_COUNT
};

struct rpc_node {
	struct clan_rpc *rpc;
	struct list_node bucket_node;
	struct list_node changed_node; /* in clan_rpc.changed: the node has an event to give, or no
					  open link */
	enum node_state state;
	uint32_t number;
	uint64_t key;
	uid_t uid;
	bool dialled;
	bool up_pending;
	bool given; /* the program knows the node: it got an event, or dialled the node itself */
	int status; /* ENDING */
	uint32_t conns;
	uint32_t up_count;
	uint32_t open_count; /* links with a connection */
	uint32_t next;
	struct rpc_link links[];
};

struct clan_rpc {
	struct clan_queue *queue;
	struct clan_listener *listener;
	struct clan_rpc_options options;
	struct list_node ready;	  /* struct rpc_link */
	struct list_node changed; /* struct rpc_node */
	uint64_t request_number;
	bool ending;			       /* clan_rpc_destroy() is in progress */
	struct list_node buckets[RPC_BUCKETS]; /* struct rpc_node, by number */
};

/* Returns the distance between two slots: one cache line more than a message. Otherwise slots of a
 * round size would all map to the same few cache sets. */
static inline uint32_t rpc_stride(uint32_t bytes_max)
{
	return bytes_max + RPC_BYTES_UNIT;
}

struct rpc_node *rpc_node_find(struct clan_rpc *rpc, uint32_t number);
/* Called when the node has an event to give, or might be freed. */
void rpc_node_changed(struct rpc_node *node);
/* Ends all links of the node, unless that has begun already. */
void rpc_node_end(struct rpc_node *node, int status);
/* Frees a node without open links. */
void rpc_node_free(struct rpc_node *node);
/* CLAN_EVENT_CONNECT: finds or creates the node of a connection, or rejects the connection. */
void rpc_node_offered(struct clan_rpc *rpc, struct clan_conn *conn);

/* The only function that assigns a link's state; it asserts that the transition is permitted. */
void rpc_link_set_state(struct rpc_link *link, enum link_state state);
/* Called when the connection is open: shares our area. */
void rpc_link_greeted(struct rpc_link *link);
/* CLAN_EVENT_SHARED: sends SETUP with the cookie for the part of the area that the peer writes. */
void rpc_link_shared(struct rpc_link *link, int status);
/* Processes the peer's SETUP. Returns false if it breaks a rule. */
bool rpc_link_take_setup(struct rpc_link *link, const struct rpc_setup *setup, uint32_t bytes);

struct clan_conn_options rpc_conn_options(const struct clan_rpc *rpc);
