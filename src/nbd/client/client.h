// SPDX-License-Identifier: Apache-2.0
/*
 * The transmission phase as a client speaks it, on one connection and without a socket: commands go
 * out, replies come in, in any order and interleaved. The owner moves bytes; the client says where
 * they come from and where they go, so that payloads are received straight into the memory they
 * are for.
 *
 *   add(call) ─▶ unsent ── output(), sent() ──▶ awaiting ─┐
 *   socket ─▶ input(), received() ─▶ extent(), hole() ────┴─▶ done(call)
 *
 * Receiving in place. The length of a payload is known only once its header was read, so a receive
 * that stops there costs a system call a reply. Instead the client predicts: it lays out the
 * headers and payloads of the replies that should come next if the server answers in order, and
 * receives many at once. Where it was wrong, what lies in the wrong place is taken out again and
 * put where it belongs (counted in moved_bytes), and less is predicted for a while; with nothing
 * predicted each receive is the rest of one payload and the header after it, which is never wrong.
 *
 * Memory of a READ is scratch until done: bytes that belong elsewhere may stand there meanwhile.
 *
 * Strict: every reply is checked against rules P69-P119; the first that is broken ends the client.
 *
 * Threading: the owner's object. Ownership: a call and its memory belong to the client from
 * nbd_client_add() until done() or nbd_client_take_back(). Errors: nbd_client_received() gives
 * -EPROTO with the rule.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "nbd/client/handshake.h"

enum {
	NBD_CLIENT_SLOTS_MAX = 1024, /* commands in flight */
	NBD_CLIENT_STAGE_BYTES = 8192,
	NBD_CLIENT_PREDICTED_MAX = 64, /* replies laid out in one receive */
	NBD_CLIENT_PREDICTED_BYTES_MAX = 256 << 10,
	NBD_CLIENT_IOV_MAX = 256,
	NBD_CLIENT_PREFIX_BYTES_MAX = 40, /* extended reply header and the offset of a data chunk */
	NBD_CLIENT_WHOLE_BYTES_MIN = 64 << 10, /* a rest of a payload worth one wake-up */
	/* One receive or send at most: on a slow network an end must come now and then, so that its
	 * progress is seen. */
	NBD_CLIENT_STEP_BYTES_MAX = 1 << 20,
	NBD_CLIENT_FAREWELL_BYTES_MAX = 32,
	NBD_CLIENT_TEXT_BYTES = 256,
	NBD_CLIENT_INTERVALS_MAX = 65536, /* separate pieces of one reply */
	NBD_CLIENT_ERRORS_MAX = 65536,	  /* error chunks of one reply: a block each of 32 MiB */
	NBD_CLIENT_SIZES_MAX = 1024,	  /* answers of x-gmblock:size that say nothing new */
};

struct nbd_client;

/* [start, end) relative to the call's offset; sorted, neither touching nor overlapping. */
struct nbd_interval {
	uint64_t start;
	uint64_t end;
};

/* One command. The owner fills the first part. */
struct nbd_call {
	uint16_t type;	/* NBD_CMD_ */
	uint16_t flags; /* NBD_CMD_FLAG_, without PAYLOAD_LEN */
	uint64_t offset;
	uint64_t length;	 /* effect length; READ and WRITE: payload bytes */
	const struct iovec *iov; /* READ, WRITE: the memory, length bytes from iov_skip on */
	uint32_t iov_count;
	uint64_t iov_skip;

	/* For the owner's done: 0 or a negative errno; what the server said about it is in
	 * client->text during done. */
	int result;

	/* Private. */
	struct list_node node;
	uint64_t cookie;
	uint64_t covered; /* READ: bytes received or holes; STATUS: bytes described */
	bool partial;	  /* READ: more than one content chunk came; intervals count */
	bool described;	  /* STATUS: the answer came */
	bool laid_out;	  /* its bytes were given to the owner */
	bool sent;	  /* all of them: it is in awaiting */
	bool answered;	  /* before the owner told that it was sent */
	struct nbd_interval *intervals;
	uint32_t interval_count;
	uint32_t interval_max;
	uint32_t error_count; /* chunks */
	uint32_t iov_at;      /* where the memory at place iov_place begins */
	uint64_t iov_into;
	uint64_t iov_place;
	uint32_t header_bytes;
	union {
		struct nbd_wire_request compact;
		struct nbd_wire_extended_request extended;
	} header;
};

struct nbd_client_handler {
	/* The call is the owner's again. May add calls. */
	void (*done)(struct nbd_client *client, struct nbd_call *call);
	/* READ: [offset, offset + length) of the export came as a hole; its memory is zeroed. */
	void (*hole)(
		struct nbd_client *client, struct nbd_call *call, uint64_t offset, uint64_t length);
	/* BLOCK_STATUS: the next extent, flags of base:allocation. */
	void (*extent)(
		struct nbd_client *client, struct nbd_call *call, uint64_t length, uint32_t flags);
	/* The server says that the export has client->size bytes now. */
	void (*resized)(struct nbd_client *client);
};

enum nbd_client_state {
	NBD_CLIENT_HEADER,  /* a reply header is awaited or incomplete in the stage */
	NBD_CLIENT_DATA,    /* the rest of a payload, into a call's memory */
	NBD_CLIENT_EXTENTS, /* the rest of a block status chunk, entry by entry */
	NBD_CLIENT_SKIP,    /* bytes of no interest */
};

struct nbd_client {
	const struct nbd_client_handler *handler;
	const struct nbd_facts *facts;
	enum nbd_client_state state;
	uint64_t serial; /* of the next cookie */
	struct list_node
		unsent; /* nbd_client_call.node: none or some bytes sent, first in first out */
	struct list_node awaiting; /* sent, in that order */
	uint32_t call_count;
	uint32_t reads_awaiting;
	uint64_t sent_of_first; /* bytes of the first unsent call that are sent */

	/* x-gmblock:size: a call of the client itself, in no slot and not counted. */
	struct nbd_call size_call;
	bool size_asked;       /* size_call is on its way */
	bool size_refused;     /* do not ask any more */
	uint32_t size_answers; /* that said nothing new */
	uint64_t size;	       /* of the export, as the server said last */

	struct nbd_call *current; /* of the chunk in progress */
	bool current_ends;	  /* the chunk has DONE */
	uint64_t data_place;	  /* NBD_CLIENT_DATA: next byte, relative to the call's offset */
	uint64_t left;		  /* DATA, EXTENTS, SKIP: bytes of the chunk still to come */

	uint32_t predict;     /* replies to lay out */
	uint32_t ordered_run; /* replies in a row that came in order */
	/* The receive that is under way: data, then predicted_count times prefix and payload, or
	 * else the stage. The first prefix is in the stage, too. */
	size_t plan_data;
	uint32_t predicted_count;
	struct nbd_call *predicted[NBD_CLIENT_PREDICTED_MAX];
	size_t prefix_bytes[NBD_CLIENT_PREDICTED_MAX];	/* laid out */
	size_t payload_bytes[NBD_CLIENT_PREDICTED_MAX]; /* laid out */
	uint8_t prefixes[NBD_CLIENT_PREDICTED_MAX][NBD_CLIENT_PREFIX_BYTES_MAX];
	struct iovec plan[NBD_CLIENT_IOV_MAX];
	uint32_t plan_count;
	size_t plan_bytes;

	size_t stage_bytes; /* collected */
	uint8_t stage[NBD_CLIENT_STAGE_BYTES];
	uint8_t *spill;				      /* made on first need */
	struct nbd_call *slots[NBD_CLIENT_SLOTS_MAX]; /* by the low bits of the cookie */
	uint16_t free_slots[NBD_CLIENT_SLOTS_MAX];
	uint32_t free_count;

	char text[NBD_CLIENT_TEXT_BYTES]; /* what the server said about the call that is done,
					     escaped */
	const struct nbd_call *text_of;
	uint64_t moved_bytes;
	uint64_t received_payload_bytes;
	uint64_t sent_payload_bytes;
	uint64_t out_of_order; /* replies that came before an older one */
	uint64_t steps; /* of replies: what a server that only says that it lives does not make */
};

/* facts must outlive the client. seed: any number, different for each client, so that a late reply
 * of an earlier connection cannot match (rule P70). */
void nbd_client_init(struct nbd_client *client, const struct nbd_client_handler *handler,
	const struct nbd_facts *facts, uint64_t seed);
/* No call may be left. */
void nbd_client_fini(struct nbd_client *client);

/* Queues a command. There must be fewer than NBD_CLIENT_SLOTS_MAX. Lengths obey the facts: the
 * owner has split what is longer. */
void nbd_client_add(struct nbd_client *client, struct nbd_call *call);

/* Has the server say when the size of the export changes, if it knows how. To be called again after
 * each answer; a no-op while one is awaited. */
void nbd_client_watch_size(struct nbd_client *client);

/* Lays out what is to be sent: at most iov_max entries and NBD_CLIENT_STEP_BYTES_MAX bytes. Returns
 * how many entries; 0 = nothing. */
uint32_t nbd_client_output(struct nbd_client *client, struct iovec *iov, uint32_t iov_max);
/* That many bytes of the last layout were sent. */
void nbd_client_sent(struct nbd_client *client, size_t bytes);

/*
 * Lays out where the next bytes go. *whole: all of it will come, so that one may wait for all.
 * The layout holds until nbd_client_received() or nbd_client_input_drop(); calls may be added
 * meanwhile.
 */
const struct iovec *nbd_client_input(
	struct nbd_client *client, uint32_t *iov_count, size_t *bytes, bool *whole);
/* That many bytes arrived in the last layout (> 0). */
GMB_MUST_CHECK int nbd_client_received(
	struct nbd_client *client, size_t bytes, struct error *error);
/* Nothing arrived and nothing will be received into it. */
void nbd_client_input_drop(struct nbd_client *client);

/* Gives back the oldest call of a client that has broken, as it was before nbd_client_add(); NULL:
 * none left. *was_sent: the server may have carried it out. */
struct nbd_call *nbd_client_take_back(struct nbd_client *client, bool *was_sent);

/* The bytes of DISC (rule P80). Returns how many. */
size_t nbd_client_farewell(enum nbd_reply_style style, uint8_t out[NBD_CLIENT_FAREWELL_BYTES_MAX]);
