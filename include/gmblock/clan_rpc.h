/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote procedure calls on libclan, as the uSendfile and DSFR papers build them on RDMA: a message
 * is put into a fixed slot of the receiver's memory, and the notification of the put says which
 * slot it is, its type and its length. A reply frees the slot of its request, so nothing is
 * acknowledged.
 *
 *   struct clan_rpc *rpc;  clan_rpc_create(NULL, NULL, &rpc, &error);
 *   clan_rpc_dial(rpc, 1, "shm:/run/service", &error);
 *   clan_rpc_next(rpc, &event, buffer, sizeof(buffer), -1);       CLAN_RPC_UP, event.node 1
 *   clan_rpc_call(rpc, 1, type, data, bytes, op);
 *   clan_rpc_next(rpc, &event, buffer, sizeof(buffer), -1);       CLAN_RPC_REPLY, event.op
 *   clan_rpc_destroy(rpc);
 *
 * A node is a process, or a thread, with one struct clan_rpc. Nodes have numbers, and both ends of
 * a connection can call. Between two nodes there are one or more connections (N_bw in the papers),
 * which calls take in turn. It uses nothing but <gmblock/clan.h>, so it works over every carrier of
 * libclan.
 *
 * Threads, errors and ownership: as <gmblock/clan.h>. What is passed to a call is borrowed until it
 * returns. Bytes that come from a peer are copied once, to the buffer given, and may be anything.
 */
#ifndef GMBLOCK_CLAN_RPC_H
#define GMBLOCK_CLAN_RPC_H

#include <gmblock/clan.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct clan_rpc;

enum {
	CLAN_RPC_CALLS_MAX = 512,
	CLAN_RPC_BYTES_MAX = 8128,
	CLAN_RPC_CONNS_MAX = 16,
	CLAN_RPC_TYPE_MAX = 255,
};

/* The number of a node that has none; peers of such a node number it themselves. */
#define CLAN_RPC_NO_NODE UINT32_MAX
/* Numbers that programs may give are below this; those that are given to others begin here. */
#define CLAN_RPC_NODES_MAX UINT32_C(0x80000000)

/* NULL and 0 mean the default. A connection takes 4 * calls * (bytes_max + 64) bytes of
 * memory. */
struct clan_rpc_options {
	size_t size;
	uint32_t node;	/* our number, below CLAN_RPC_NODES_MAX, or CLAN_RPC_NO_NODE */
	uint32_t calls; /* on one connection at once: ours, and as many of the peer's; the smaller
			   number of both sides counts; 0 = 32; at most CLAN_RPC_CALLS_MAX */
	uint32_t bytes_max; /* of a request or reply: a multiple of 64; 0 = 4096; at most
			       CLAN_RPC_BYTES_MAX; the smaller number of both sides counts */
	uint32_t conns;	    /* that we make to a node; 0 = 1; at most CLAN_RPC_CONNS_MAX */
	uint32_t access;    /* enum clan_access, of listeners */
	uint32_t conns_max; /* connections from others; 0 = 256 */
};

/* Creates a node, with a queue of its own that belongs to the calling thread. Both options may be
 * NULL; the node has no number then. Errors: -EINVAL, -ENOMEM, and those of clan_queue_create(). */
int clan_rpc_create(const struct clan_queue_options *queue_options,
	const struct clan_rpc_options *options, struct clan_rpc **rpc_out,
	struct clan_error *error);

/* Ends everything and frees it. It waits until libclan has closed the connections: as long as
 * CLAN_EVENT_CLOSED takes. NULL is a no-op. */
void clan_rpc_destroy(struct clan_rpc *rpc);

/* The queue, for clan_queue_wake(), clan_queue_fd() and clan_queue_arm() only; before a sleep,
 * clan_rpc_next() must have returned 0. */
struct clan_queue *clan_rpc_queue(struct clan_rpc *rpc);

/* Takes connections of other nodes at an address, as clan_listen(). Once. -EALREADY. */
int clan_rpc_listen(struct clan_rpc *rpc, const char *address, struct clan_error *error);

/* Where it listens, as clan_listener_address(). NULL: nowhere. */
const char *clan_rpc_address(const struct clan_rpc *rpc);

/* Starts to connect to a node, which gets that number here. CLAN_RPC_UP or CLAN_RPC_DOWN follows.
 * Errors: -EINVAL, -EALREADY the number is in use, and those of clan_connect(). */
int clan_rpc_dial(
	struct clan_rpc *rpc, uint32_t node, const char *address, struct clan_error *error);

/*
 * Connects all nodes with all others: node i listens at addresses[i], and dials those with lower
 * numbers. Our number is that of the options. CLAN_RPC_UP tells of each node. Returns how many of
 * the lower nodes do not listen yet: call it again later, and only they are dialled. Errors: as
 * clan_rpc_listen() and clan_rpc_dial().
 */
int clan_rpc_mesh(struct clan_rpc *rpc, const char *const *addresses, uint32_t count,
	struct clan_error *error);

/* Ends the connections to a node; CLAN_RPC_DOWN follows. -ENOENT. */
int clan_rpc_hang_up(struct clan_rpc *rpc, uint32_t node);

/*
 * Calls a node: copies the request, which is published by the next clan_rpc_next(). type: at most
 * CLAN_RPC_TYPE_MAX. Exactly one CLAN_RPC_REPLY with op follows. Errors: -EAGAIN all calls of all
 * connections are under way (a reply of the node makes room), -EMSGSIZE, -ENOTCONN not up, -EINVAL.
 */
int clan_rpc_call(struct clan_rpc *rpc, uint32_t node, uint32_t type, const void *data,
	uint32_t bytes, void *op);

/* Names a request until it is replied to. */
struct clan_rpc_request {
	uint32_t node;
	uint16_t conn;
	uint16_t slot;
	uint64_t number;
};

enum clan_rpc_event_type {
	CLAN_RPC_UP = 1, /* .node can be called, and may call */
	/* Answer it with clan_rpc_reply(): .request, .kind and .bytes. A node can call as soon as
	 * it knows that it may, which can be before CLAN_RPC_UP is given here. */
	CLAN_RPC_REQUEST,
	CLAN_RPC_REPLY, /* .op has ended: .status 0, .kind and .bytes; or -ECONNRESET and so on */
	/* All connections to .node have ended, with .status: 0 after clan_rpc_hang_up(), -EPROTO it
	 * broke a rule, or as CLAN_EVENT_LOST. Its calls have ended before, and its requests cannot
	 * be replied to. The number can be dialled again. */
	CLAN_RPC_DOWN,
};

struct clan_rpc_event {
	uint32_t type;	/* enum clan_rpc_event_type */
	int32_t status; /* 0 or a negative errno */
	uint32_t node;
	uint32_t kind;	/* the type that the sender gave to its message */
	uint32_t bytes; /* in the buffer */
	uint32_t reserved;
	void *op;
	struct clan_rpc_request request;
};

/*
 * Gives the next event, with the message in buffer, which has room for bytes_max of the options.
 * Returns 1; or 0 after timeout_ms (0 = does not wait, -1 = no limit) or clan_queue_wake(). What
 * was called and replied is published before it waits. Errors: -EINVAL.
 */
int clan_rpc_next(struct clan_rpc *rpc, struct clan_rpc_event *event, void *buffer, uint32_t bytes,
	int timeout_ms);

/* Replies to a request. Errors: -ENOENT it was replied to, or its connection is gone; -EMSGSIZE,
 * -EINVAL. */
int clan_rpc_reply(struct clan_rpc *rpc, const struct clan_rpc_request *request, uint32_t type,
	const void *data, uint32_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
