// SPDX-License-Identifier: Apache-2.0
/*
 * The transport tcp: plain sockets, docs/protocol/clan.md §12.9.
 *
 *   tcp.c         the table of calls: addresses, listeners, when a socket is looked at
 *   tcp_stream.c  what goes over a socket
 *
 * Bytes that belong to memory of a put or get go from there and to there; heads and frames are
 * gathered, and received, many at a time:
 *
 *   out[]  frames, WRITE, READ, ANSWER ──▶ sendmsg() ─ ─ ─▶ recvmsg() ──▶ payload of the last head
 *                                                                 └─────▶ in[], then heads from
 * there
 *
 * Threading, ownership, errors: as clan/net.h.
 */
#pragma once

#include <netdb.h>

#include "clan/net.h"

#define TCP_MAGIC UINT64_C(0x7063742d6e616c63) /* "clan-tcp" */

enum {
	TCP_IN_BYTES = 16 << 10,
	TCP_OUT_COUNT = 128,
	TCP_READS = NET_RMA_PIECES, /* of one side, unanswered */
};

/* --- what goes over the wire ------------------------------------------------------------------ */

enum tcp_kind { TCP_FRAME = 1, TCP_WRITE, TCP_READ, TCP_ANSWER };

struct tcp_head {
	uint8_t kind;
	uint8_t reserved;
	uint16_t slot;	/* WRITE, READ: the cookie's */
	uint32_t bytes; /* that follow the head; READ: that are wanted */
};

struct tcp_access_head { /* WRITE and READ */
	struct tcp_head head;
	uint32_t generation;
	uint32_t reserved;
	uint64_t offset; /* in the cookie */
};

_Static_assert(sizeof(struct tcp_head) == 8 && sizeof(struct tcp_access_head) == 24,
	"docs/protocol/clan.md");
_Static_assert(sizeof(struct tcp_head) + NET_FRAME_BYTES <= TCP_IN_BYTES,
	"a frame is received in one piece");

/* --- connections ------------------------------------------------------------------------------ */

/* Something to be sent. */
struct tcp_out {
	enum tcp_kind kind;
	uint32_t head_left;
	uint32_t head_bytes;
	struct tcp_access_head head; /* its first head_bytes bytes */
	uint64_t left;		     /* of the payload */
	const uint8_t *from;	     /* FRAME, ANSWER: the rest of it */
	struct net_op *op;	     /* FRAME, WRITE, READ */
	struct net_grant *grant;     /* ANSWER */
};
_Static_assert(NET_SENDS + 1 + NET_RMA_PIECES + TCP_READS <= TCP_OUT_COUNT,
	"there is room for all that is under way");

struct tcp_conn {
	struct net_conn net;
	struct waiter_file file;
	struct list_node ready_node;
	bool readable;
	bool writable;
	bool hung_up; /* the end, or an error, can be received behind the rest */
	int error;    /* of the last address, or of sending */

	struct addrinfo *addresses; /* of the connector */
	struct addrinfo *next;

	/* Sending. Counts run freely. */
	struct tcp_out out[TCP_OUT_COUNT];
	uint32_t out_write;
	uint32_t out_read;

	/* Receiving. */
	uint8_t *in; /* TCP_IN_BYTES; NULL: not started */
	uint32_t in_at;
	uint32_t in_end;
	uint64_t payload_left;
	uint8_t *target;      /* of a WRITE's payload; NULL: it is an ANSWER's */
	struct net_put write; /* which */
	uint32_t answers;     /* in out[] */
	struct net_rma *gets[TCP_READS];
	uint32_t gets_write;
	uint32_t gets_read;
};

struct tcp_listener {
	struct net_listener net;
	struct waiter_file file;
	struct clan_deadline retry;
};

/* What it keeps of a queue. */
struct tcp_queue {
	struct list_node ready; /* connections with something to do */
};

static inline struct tcp_conn *tcp_conn(struct net_conn *conn)
{
	return (struct tcp_conn *)conn;
}

_Static_assert(offsetof(struct tcp_conn, net) == 0 && offsetof(struct tcp_listener, net) == 0,
	"tcp_conn()");

/* The connection is looked at in the next turn. */
void tcp_ready(struct tcp_conn *conn);

/* --- tcp_stream.c ----------------------------------------------------------------------------- */

int tcp_post_frame(struct net_conn *base, struct net_buffer *buffer);
int tcp_post_rma(struct net_conn *base, struct net_rma *rma);
/* Sends what the socket takes; the rest follows when it takes more. */
void tcp_flush(struct net_conn *base);
/* Takes what the socket has, up to the share of one turn. */
void tcp_receive(struct tcp_conn *conn);
