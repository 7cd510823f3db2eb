// SPDX-License-Identifier: Apache-2.0
/*
 * The transmission phase of an NBD client, on one connection and without a socket: commands go out,
 * and replies come in, in any order and interleaved. The owner moves the bytes. The client provides
 * the addresses to send from and receive into, so payloads are received directly into their final
 * memory.
 *
 *   add(call) ─▶ unsent ── output(), sent() ──▶ awaiting ─┐
 *   socket ─▶ input(), received() ─▶ extent(), hole() ────┴─▶ done(call)
 *
 * Receiving in place. The length of a payload is known only after its header has been read, and a
 * receive that stops there costs one system call for each reply. Therefore the client predicts: it
 * lays out headers and payloads of the next replies, assuming that the server answers in order, and
 * receives many replies with one call. After a wrong prediction the misplaced bytes are copied to
 * where they belong (counted in moved_bytes), and fewer replies are predicted for a while. Without
 * predictions each receive is the rest of one payload and the header after it, which is never
 * wrong.
 *
 * The memory of a READ is scratch space until done(), because bytes of other replies may be in it
 * temporarily.
 *
 * Every reply is checked against rules P69-P119. The first violation ends the client.
 *
 * Threading: the owner's object. Ownership: a call and its memory belong to the client from
 * nbd_client_add() until done() or nbd_client_take_back(). Errors: nbd_client_received() returns
 * -EPROTO with the rule, or -ENOMEM.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "nbd/client/handshake.h"

enum {
	NBD_CLIENT_SLOTS_MAX = 1024, /* limit on commands in flight */
	NBD_CLIENT_STAGE_BYTES = 8192,
	NBD_CLIENT_PREDICTED_MAX = 64, /* limit on replies predicted for one receive */
	NBD_CLIENT_PREDICTED_BYTES_MAX = 256 << 10,
	NBD_CLIENT_IOV_MAX = 256,
	/* largest prefix of a reply: the extended reply header and the offset of a data chunk */
	NBD_CLIENT_PREFIX_BYTES_MAX = 40,
	/* A rest of a payload of at least this size is received alone. */
	NBD_CLIENT_WHOLE_BYTES_MIN = 64 << 10,
	/* Limit for one receive or send, so that on a slow network it ends often enough to show
	 * progress. */
	NBD_CLIENT_STEP_BYTES_MAX = 1 << 20,
	NBD_CLIENT_FAREWELL_BYTES_MAX = 32,
	NBD_CLIENT_TEXT_BYTES = 256,
	NBD_CLIENT_INTERVALS_MAX = 65536, /* limit on disjoint ranges of one reply */
	/* limit on error chunks of one reply: one for each block of 32 MiB */
	NBD_CLIENT_ERRORS_MAX = 65536,
	/* limit on x-gmblock:size replies without a change of the size */
	NBD_CLIENT_SIZES_MAX = 1024,
};

struct nbd_client;

/* Range [start, end) relative to the call's offset. A list is sorted, and its intervals neither
 * touch nor overlap. */
struct nbd_interval {
	uint64_t start;
	uint64_t end;
};

/* One command. The owner fills the members up to iov_skip. */
struct nbd_call {
	uint16_t type;	/* NBD_CMD_ */
	uint16_t flags; /* NBD_CMD_FLAG_, without PAYLOAD_LEN */
	uint64_t offset;
	uint64_t length;	 /* effect length; READ and WRITE: payload bytes */
	const struct iovec *iov; /* READ, WRITE: the memory, length bytes from iov_skip on */
	uint32_t iov_count;
	uint64_t iov_skip;

	/* For done(): 0 or a negative errno. client->text holds the server's message about it
	 * during done(). */
	int result;

	/* Private members follow. */
	struct list_node node;
	uint64_t cookie;
	uint64_t covered; /* READ: bytes received as data or holes; STATUS: bytes described */
	bool partial;	  /* READ: the data comes in several chunks, so intervals are used */
	bool described;	  /* STATUS: the reply has arrived */
	bool laid_out;	  /* the call's bytes were given to the owner for sending */
	bool sent;	  /* completely sent, and in the list awaiting */
	bool answered;	  /* answered before the owner reported it as sent */
	struct nbd_interval *intervals;
	uint32_t interval_count;
	uint32_t interval_max;
	uint32_t error_count; /* error chunks received */
	/* Cursor into iov: iov_place is the position that iov_at and iov_into refer to. */
	uint32_t iov_at;
	uint64_t iov_into;
	uint64_t iov_place;
	uint32_t header_bytes;
	union {
		struct nbd_wire_request compact;
		struct nbd_wire_extended_request extended;
	} header;
};

struct nbd_client_handler {
	/* Returns the call to the owner. The handler may add calls. */
	void (*done)(struct nbd_client *client, struct nbd_call *call);
	/* READ: [offset, offset + length) of the export was received as a hole; its memory is
	 * zeroed. */
	void (*hole)(
		struct nbd_client *client, struct nbd_call *call, uint64_t offset, uint64_t length);
	/* BLOCK_STATUS: the next extent, with flags of base:allocation. */
	void (*extent)(
		struct nbd_client *client, struct nbd_call *call, uint64_t length, uint32_t flags);
	/* The server reports that the export now has client->size bytes. */
	void (*resized)(struct nbd_client *client);
};

enum nbd_client_state {
	NBD_CLIENT_HEADER,  /* a reply header is expected, or incomplete in the stage */
	NBD_CLIENT_DATA,    /* the rest of a payload, received into a call's memory */
	NBD_CLIENT_ZERO,    /* is_lent: the rest of a hole, zeroed by the owner */
	NBD_CLIENT_EXTENTS, /* the rest of a block status chunk, processed entry by entry */
	NBD_CLIENT_SKIP,    /* bytes to skip */
};

struct nbd_client {
	const struct nbd_client_handler *handler;
	const struct nbd_facts *facts;
	enum nbd_client_state state;
	uint64_t serial; /* serial number of the next cookie */
	struct list_node
		/* nbd_call.node: not or only partly sent, in order of nbd_client_add() */
		unsent;
	struct list_node awaiting; /* sent calls, oldest first */
	uint32_t call_count;
	uint32_t reads_awaiting;
	/* The memory of calls has no address that this code can access. Set by the owner before the
	 * first call. No reply is predicted, and no receive into the stage extends into a payload.
	 * In the state ZERO the owner zeroes the memory laid out instead of receiving into it, and
	 * reports it in the same way. */
	bool is_lent;
	uint64_t sent_of_first; /* sent bytes of the first unsent call */

	/* x-gmblock:size: a call of the client itself, which has no slot and is not counted in
	 * call_count. */
	struct nbd_call size_call;
	bool size_asked;       /* size_call is outstanding */
	bool size_refused;     /* the server rejected x-gmblock:size; do not ask again */
	uint32_t size_answers; /* number of x-gmblock:size replies without a change */
	uint64_t size;	       /* size of the export, as last reported by the server */

	struct nbd_call *current; /* call of the current chunk */
	bool current_ends;	  /* the current chunk has the flag DONE */
	/* NBD_CLIENT_DATA: position of the next byte, relative to the call's offset */
	uint64_t data_place;
	uint64_t left; /* DATA, EXTENTS, SKIP: remaining bytes of the chunk */

	uint32_t predict;     /* number of replies to predict */
	uint32_t ordered_run; /* consecutive replies that came in the order of their calls */
	/* Buffers of the receive in progress: first plan_data bytes of a payload, then a prefix and
	 * a payload for each of predicted_count replies. The first prefix is received into the
	 * stage. Without predicted replies, the stage follows the payload. */
	size_t plan_data;
	uint32_t predicted_count;
	struct nbd_call *predicted[NBD_CLIENT_PREDICTED_MAX];
	size_t prefix_bytes[NBD_CLIENT_PREDICTED_MAX];	/* bytes laid out */
	size_t payload_bytes[NBD_CLIENT_PREDICTED_MAX]; /* bytes laid out */
	uint8_t prefixes[NBD_CLIENT_PREDICTED_MAX][NBD_CLIENT_PREFIX_BYTES_MAX];
	struct iovec plan[NBD_CLIENT_IOV_MAX];
	uint32_t plan_count;
	size_t plan_bytes;

	/* start of an incomplete header, extent or error text */
	size_t stage_bytes;
	uint8_t stage[NBD_CLIENT_STAGE_BYTES];
	uint8_t *spill;				      /* allocated on first use */
	struct nbd_call *slots[NBD_CLIENT_SLOTS_MAX]; /* indexed by the low bits of the cookie */
	uint16_t free_slots[NBD_CLIENT_SLOTS_MAX];
	uint32_t free_count;

	/* The server's message about the call in done(), escaped. */
	char text[NBD_CLIENT_TEXT_BYTES];
	const struct nbd_call *text_of;
	uint64_t moved_bytes;
	uint64_t steps; /* increases when a reply makes progress, not with a sign of life */
};

/* Initializes a client. facts must outlive it. seed: a number that differs between clients, so that
 * a late reply of an earlier connection cannot match (rule P70). */
void nbd_client_init(struct nbd_client *client, const struct nbd_client_handler *handler,
	const struct nbd_facts *facts, uint64_t seed);
/* Ends a client. All calls must have been returned. */
void nbd_client_fini(struct nbd_client *client);

/* Queues a command. At most NBD_CLIENT_SLOTS_MAX can be queued. Lengths must obey the facts, so the
 * owner splits longer requests. */
void nbd_client_add(struct nbd_client *client, struct nbd_call *call);

/* Requests a notification when the export's size changes, if the server supports it. Called again
 * after each reply; no effect while a reply is outstanding. */
void nbd_client_watch_size(struct nbd_client *client);

/* Lays out the bytes to send: at most iov_max entries and NBD_CLIENT_STEP_BYTES_MAX bytes. Returns
 * the number of entries; 0: there are no bytes to send. */
uint32_t nbd_client_output(struct nbd_client *client, struct iovec *iov, uint32_t iov_max);
/* Reports that the first bytes that nbd_client_output() has laid out were sent: this number. */
void nbd_client_sent(struct nbd_client *client, size_t bytes);

/*
 * Lays out where the next bytes are received. *whole: all bytes of the layout will come, so the
 * receive may wait for them. The layout is valid until nbd_client_received() or
 * nbd_client_input_drop(); calls can be added until then.
 */
const struct iovec *nbd_client_input(
	struct nbd_client *client, uint32_t *iov_count, size_t *bytes, bool *whole);
/* Reports that this many bytes (> 0) were received into the addresses of nbd_client_input(). */
GMB_MUST_CHECK int nbd_client_received(
	struct nbd_client *client, size_t bytes, struct error *error);
/* Called instead of nbd_client_received() if the receive has ended without data: discards the
 * layout. */
void nbd_client_input_drop(struct nbd_client *client);

/* Returns the oldest call of a broken client, in its state before nbd_client_add(); NULL if none is
 * left. *was_sent: the server could have executed it. */
struct nbd_call *nbd_client_take_back(struct nbd_client *client, bool *was_sent);

/* Writes a DISC request (rule P80). Returns its size. */
size_t nbd_client_farewell(enum nbd_reply_style style, uint8_t out[NBD_CLIENT_FAREWELL_BYTES_MAX]);
