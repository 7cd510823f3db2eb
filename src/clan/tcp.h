// SPDX-License-Identifier: Apache-2.0
/*
 * The transport tcp: plain sockets, docs/protocol/clan.md §12.9.
 *
 *   tcp.c         the transport's table: addresses, listeners, when a socket is read
 *   tcp_stream.c  the stream of a socket
 *
 * The payload of puts and gets is sent directly from its source and received directly into its
 * destination. Heads and frames are gathered for sending and received in batches:
 *
 *   out[]  frames, WRITE, READ, ANSWER ──▶ sendmsg() ─ ─ ─▶ recvmsg() ──▶ payload of the last head
 *                                                                 └─────▶ in[]: the next heads
 *
 * Threading, ownership, errors: as in clan/net.h.
 */
#pragma once

#include <netdb.h>

#include "clan/net.h"

#define TCP_MAGIC UINT64_C(0x7063742d6e616c63) /* "clan-tcp" */

enum {
	TCP_IN_BYTES = 16 << 10,
	TCP_OUT_COUNT = 128,
	TCP_READS = NET_RMA_PIECES, /* limit on unanswered READs of one side */
};

/* --- the wire format -------------------------------------------------------------------------- */

enum tcp_kind { TCP_FRAME = 1, TCP_WRITE, TCP_READ, TCP_ANSWER };

struct tcp_head {
	uint8_t kind;
	uint8_t reserved;
	uint16_t slot;	/* WRITE, READ: slot of the cookie */
	uint32_t bytes; /* length of the payload; READ: requested bytes */
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

/* An entry of the send queue. */
struct tcp_out {
	enum tcp_kind kind;
	uint32_t head_left;
	uint32_t head_bytes;
	struct tcp_access_head head; /* head of the message; only head_bytes of it are sent */
	uint64_t left;		     /* unsent bytes of the payload */
	const uint8_t *from;	     /* FRAME, ANSWER: the unsent payload */
	struct net_op *op;	     /* the operation of a FRAME, WRITE or READ */
	struct net_grant *grant;     /* ANSWER: the cookie with which the peer reads */
};
_Static_assert(NET_SENDS + 1 + NET_RMA_PIECES + TCP_READS <= TCP_OUT_COUNT,
	"the queue has room for everything that can be in flight");

struct tcp_conn {
	struct net_conn net;
	struct waiter_file file;
	struct list_node ready_node;
	bool readable;
	bool writable;
	bool hung_up; /* recv() will report an end or an error after the remaining data */
	int error;    /* the error of the last address tried, or of sending; 0: none */

	struct addrinfo *addresses; /* connector: the resolved addresses */
	struct addrinfo *next;

	/* Sending. out_write and out_read are free-running counts. */
	struct tcp_out out[TCP_OUT_COUNT];
	uint32_t out_write;
	uint32_t out_read;

	/* Receiving. */
	uint8_t *in; /* TCP_IN_BYTES long; NULL before tcp_conn_start() */
	uint32_t in_at;
	uint32_t in_end;
	uint64_t payload_left;
	uint8_t *target; /* destination of a WRITE's payload; NULL: the payload is an ANSWER's */
	struct net_put write; /* the WRITE whose payload is being received */
	uint32_t checks;      /* calls of the program's check of puts in this turn */
	uint32_t answers;     /* ANSWERs in out[] */
	struct net_rma *gets[TCP_READS];
	uint32_t gets_write;
	uint32_t gets_read;
};

struct tcp_listener {
	struct net_listener net;
	struct waiter_file file;
	struct clan_deadline retry;
};

/* State of the transport for a queue. */
struct tcp_queue {
	struct list_node ready; /* connections to process in the next turn */
};

static inline struct tcp_conn *tcp_conn(struct net_conn *conn)
{
	return (struct tcp_conn *)conn;
}

_Static_assert(offsetof(struct tcp_conn, net) == 0 && offsetof(struct tcp_listener, net) == 0,
	"tcp_conn()");

/* Schedules the connection for the next turn. */
void tcp_ready(struct tcp_conn *conn);

/* --- tcp_stream.c ----------------------------------------------------------------------------- */

int tcp_post_frame(struct net_conn *base, struct net_buffer *buffer);
int tcp_post_rma(struct net_conn *base, struct net_rma *rma);
/* Sends as much as the socket accepts. The rest follows when it is writable again. */
void tcp_flush(struct net_conn *base);
/* Receives and processes data, up to the limit per turn. */
void tcp_receive(struct tcp_conn *conn);
