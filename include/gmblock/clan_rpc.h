/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote procedure calls on libclan, as the uSendfile and DSFR papers build them on RDMA. A message
 * is put into a fixed slot of the receiver's memory, and the notification of the put carries the
 * slot, the type and the length. A reply frees the slot of its request, so no acknowledgements are
 * needed.
 *
 *   struct clan_rpc *rpc;
 *   clan_rpc_create(NULL, NULL, &rpc, &error);
 *   clan_rpc_dial(rpc, 1, "shm:/run/service", &error);
 *   clan_rpc_next(rpc, &event, buffer, sizeof(buffer), -1);       CLAN_RPC_UP, event.node 1
 *   clan_rpc_call(rpc, 1, type, data, bytes, op);
 *   clan_rpc_next(rpc, &event, buffer, sizeof(buffer), -1);       CLAN_RPC_REPLY, event.op
 *   clan_rpc_destroy(rpc);
 *
 * A node is a process, or a thread, with one struct clan_rpc. Nodes have numbers, and both ends of
 * a connection can call. Two nodes have one or more connections (N_bw in the papers), which calls
 * use in turn. The implementation uses only <gmblock/clan.h> and <gmblock/clan_memory.h>, so it
 * works over every transport of libclan.
 *
 * Threads, errors and ownership: as in <gmblock/clan.h>. Arguments are borrowed until the call
 * returns. Bytes from a peer are copied once, to the given buffer, and are untrusted.
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

/* For a node that has no number of its own: each of its peers assigns it a number locally. */
#define CLAN_RPC_NO_NODE UINT32_MAX
/* Numbers that programs choose are below this limit; locally assigned numbers start at the
 * limit. */
#define CLAN_RPC_NODES_MAX UINT32_C(0x80000000)

/* Zero selects the default of a member, except for node, where 0 is a number. A NULL pointer
 * selects all defaults and CLAN_RPC_NO_NODE. A connection takes 4 * calls * (bytes_max + 64) bytes
 * of memory, in addition to the memory of the clan connection. */
struct clan_rpc_options {
	size_t size;
	uint32_t node; /* our number, below CLAN_RPC_NODES_MAX, or CLAN_RPC_NO_NODE */
	/* Limit on our calls in flight on one connection, and on the peer's. The smaller of the two
	 * sides' limits applies. 0 = 32; at most CLAN_RPC_CALLS_MAX. */
	uint32_t calls;
	/* Limit on the bytes of a request or reply: a multiple of 64. The smaller of the two sides'
	 * limits applies. 0 = 4096; at most CLAN_RPC_BYTES_MAX. */
	uint32_t bytes_max;
	uint32_t conns;	    /* connections to open to a node; 0 = 1; at most CLAN_RPC_CONNS_MAX */
	uint32_t access;    /* enum clan_access, of listeners; not CLAN_ACCESS_WARY */
	uint32_t conns_max; /* limit on connections from other nodes; 0 = 256 */
};

/* Creates a node with its own queue, which belongs to the calling thread. Both options may be NULL;
 * the node then has no number. Errors: -EINVAL, -ENOMEM, and those of clan_queue_create(). */
int clan_rpc_create(const struct clan_queue_options *queue_options,
	const struct clan_rpc_options *options, struct clan_rpc **rpc_out,
	struct clan_error *error);

/* Closes all connections and frees the node. Blocks until libclan has closed the connections; see
 * clan_close() for how long this can take. NULL is a no-op. */
void clan_rpc_destroy(struct clan_rpc *rpc);

/* Returns the queue, for clan_queue_wake(), clan_queue_fd() and clan_queue_arm() only.
 * clan_rpc_next() must have returned 0 before a sleep. */
struct clan_queue *clan_rpc_queue(struct clan_rpc *rpc);

/* Accepts connections of other nodes at an address, as clan_listen(). A node can listen once; the
 * second call fails with -EALREADY. */
int clan_rpc_listen(struct clan_rpc *rpc, const char *address, struct clan_error *error);

/* Returns the address of the listener, as clan_listener_address(); NULL if the node does not
 * listen. */
const char *clan_rpc_address(const struct clan_rpc *rpc);

/* Starts to connect to the node at an address. node: the number by which the caller refers to it
 * from now on. CLAN_RPC_UP or CLAN_RPC_DOWN follows. Errors: -EINVAL, -EALREADY the number is in
 * use, -EIO the system gives no random numbers, and those of clan_connect(). */
int clan_rpc_dial(
	struct clan_rpc *rpc, uint32_t node, const char *address, struct clan_error *error);

/*
 * Connects all nodes with each other: node i listens at addresses[i] and dials the nodes with lower
 * numbers. Our number is the one in the options. CLAN_RPC_UP reports each node. Returns the number
 * of lower nodes that do not listen yet, or whose backlog is full; call it again later to dial only
 * those. On a network, CLAN_RPC_DOWN reports such nodes instead. Errors: as clan_rpc_listen() and
 * clan_rpc_dial(), and -EINVAL our number is not below count.
 */
int clan_rpc_mesh(struct clan_rpc *rpc, const char *const *addresses, uint32_t count,
	struct clan_error *error);

/* Closes the connections to a node; CLAN_RPC_DOWN follows. Error: -ENOENT. */
int clan_rpc_hang_up(struct clan_rpc *rpc, uint32_t node);

/*
 * Calls a node: copies the request, which the next clan_rpc_next() publishes. type: at most
 * CLAN_RPC_TYPE_MAX. Exactly one CLAN_RPC_REPLY with op follows. Errors: -EAGAIN all calls of all
 * connections are in flight (a reply of the node makes room), -EMSGSIZE, -ENOTCONN not up, -EINVAL.
 */
int clan_rpc_call(struct clan_rpc *rpc, uint32_t node, uint32_t type, const void *data,
	uint32_t bytes, void *op);

/* Identifies a request until it is replied to. */
struct clan_rpc_request {
	uint32_t node;
	uint16_t conn;
	uint16_t slot;
	uint64_t number;
};

enum clan_rpc_event_type {
	CLAN_RPC_UP = 1, /* .node can be called, and can call us */
	/* A node calls: answer with clan_rpc_reply(); .request, .kind and .bytes are set. The node
	 * may have received its CLAN_RPC_UP earlier, so this event can come before CLAN_RPC_UP. */
	CLAN_RPC_REQUEST,
	CLAN_RPC_REPLY, /* the call .op has ended: .status 0 with .kind and .bytes, or an error such
			   as -ECONNRESET */
	/* All connections to .node have ended with .status: 0 after clan_rpc_hang_up(), -EPROTO if
	 * it broke a rule, or as in CLAN_EVENT_LOST. All calls to the node have ended before this
	 * event, and its requests can no longer be replied to. clan_rpc_dial() can use the number
	 * again. */
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
 * Returns the next event, with the message in buffer, which must have room for bytes_max of the
 * options. Returns the number of events: 1, or 0 after timeout_ms (0 = does not wait, -1 = no
 * limit) or clan_queue_wake(). Pending calls and replies are published before it waits. Errors:
 * -EINVAL.
 */
int clan_rpc_next(struct clan_rpc *rpc, struct clan_rpc_event *event, void *buffer, uint32_t bytes,
	int timeout_ms);

/* Replies to a request. Errors: -ENOENT it was replied to already, or its connection is gone;
 * -EMSGSIZE, -EINVAL. */
int clan_rpc_reply(struct clan_rpc *rpc, const struct clan_rpc_request *request, uint32_t type,
	const void *data, uint32_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
