// SPDX-License-Identifier: Apache-2.0
/*
 * Inside <gmblock/clan_rpc.h>: nodes and their links. docs/protocol/clan.md §13 has the layout.
 *
 *   node ──▶ links: one connection each ──▶ slots in our area: requests of the peer, its replies,
 *                                           and copies of what we put: our requests, our replies
 *
 * An area belongs to one connection and not to all, since on shm a region is the boundary of trust.
 * Threading: as <gmblock/clan_rpc.h>. Ownership: a node frees its links when all are closed.
 * Errors: a link whose peer breaks a rule ends its whole node.
 */
#pragma once

#include <gmblock/clan_rpc.h>

#include "base/list.h"

enum {
	RPC_BYTES_UNIT = 64,
	RPC_BUCKETS = 256,
	RPC_SETUP = 1, /* type of the message in the control class */
};

/* What each side says when its area is shared. */
struct rpc_setup {
	uint32_t version;
	uint32_t calls;
	uint32_t bytes_max;
	uint32_t reserved;
	struct clan_cookie cookie;
};

/* Named for what they wait for. */
enum link_state {
	LINK_NEW,     /* the peer to connect */
	LINK_GREETED, /* both areas to be known on the other side */
	LINK_UP,      /* nothing */
	LINK_CLOSING, /* CLAN_EVENT_CLOSED */
	LINK_CLOSED,
	LINK_STATE_COUNT
};

struct rpc_link {
	struct rpc_node *node;
	struct clan_conn *conn;	     /* NULL: new or closed */
	struct list_node ready_node; /* in clan_rpc.ready: there may be messages */
	struct clan_region *region;
	uint8_t *area;
	enum link_state state;
	uint16_t index; /* in node->links */
	bool offered;	/* our setup was sent */
	bool known;	/* the peer's has come */
	bool lost;
	int lost_status;
	struct rpc_setup peer;
	uint32_t calls;	    /* at once, of each side */
	uint32_t bytes_max; /* of a message */
	uint32_t free_count;
	uint32_t waiting_first, waiting_count;
	/* Of clan_rpc.calls entries each, waiting twice as many. */
	uint64_t *requests; /* numbers of those that were not replied to; 0 = none */
	void **ops;
	uint32_t *waiting; /* values of notifications of puts that found no room */
	uint16_t *free;
	bool *busy; /* by slot of our calls */
};

enum node_state {
	NODE_CONNECTING, /* all links to be up */
	NODE_UP,	 /* nothing */
	NODE_ENDING,	 /* all links to be closed, and its calls to be given back */
	NODE_STATE_COUNT
};

struct rpc_node {
	struct clan_rpc *rpc;
	struct list_node bucket_node;
	struct list_node changed_node; /* in clan_rpc.changed: it has an event */
	enum node_state state;
	uint32_t number;
	uint64_t key;
	uid_t uid;
	bool dialled;
	bool up_pending;
	bool given; /* the program knows of it */
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
	bool ending;			       /* in clan_rpc_destroy() */
	struct list_node buckets[RPC_BUCKETS]; /* struct rpc_node, by number */
};

/* From one slot to the next. A line more than a message, so that slots of a round size do not all
 * fall into the same few lines of a processor's cache. */
static inline uint32_t rpc_stride(uint32_t bytes_max)
{
	return bytes_max + RPC_BYTES_UNIT;
}

struct rpc_node *rpc_node_find(struct clan_rpc *rpc, uint32_t number);
/* It has an event to give, or may be freed. */
void rpc_node_changed(struct rpc_node *node);
/* Ends all its links, if that has not begun. */
void rpc_node_end(struct rpc_node *node, int status);
/* Without open links only. */
void rpc_node_free(struct rpc_node *node);
/* CLAN_EVENT_CONNECT: finds or makes the node that a connection belongs to, or rejects it. */
void rpc_node_offered(struct clan_rpc *rpc, struct clan_conn *conn);

/* The one place where a link's state is assigned. */
void rpc_link_set_state(struct rpc_link *link, enum link_state state);
/* The connection stands: shares our area. */
void rpc_link_greeted(struct rpc_link *link);
/* CLAN_EVENT_SHARED: tells the peer which part of the area is for it to write. */
void rpc_link_shared(struct rpc_link *link, int status);
/* What the peer says of its area; false: a rule is broken. */
bool rpc_link_take_setup(struct rpc_link *link, const struct rpc_setup *setup, uint32_t bytes);

struct clan_conn_options rpc_conn_options(const struct clan_rpc *rpc);
