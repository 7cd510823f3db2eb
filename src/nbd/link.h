// SPDX-License-Identifier: Apache-2.0
/*
 * The transmission phase as a client speaks it, on one connection and without a socket: commands go
 * out, replies come in, in any order and interleaved. The owner moves bytes; the link says where
 * they come from and where they go, so that payloads are received straight into the memory they
 * are for.
 *
 *   link_add(call) ─▶ unsent ── link_output() / link_sent() ──▶ awaiting ─┐
 *   socket ─▶ link_input() / link_received() ─▶ extent(), hole() ─────────┴─▶ done(call)
 *
 * Receiving in place. The length of a payload is known only once its header was read, so a receive
 * that stops there costs a system call a reply. Instead the link predicts: it lays out the headers
 * and payloads of the replies that should come next if the server answers in order, and receives
 * many at once. Where it was wrong, what lies in the wrong place is taken out again and put where
 * it belongs (counted in moved_bytes), and less is predicted for a while; with nothing predicted
 * each receive is the rest of one payload and the header after it, which is never wrong.
 *
 * Memory of a READ is scratch until done: bytes that belong elsewhere may stand there meanwhile.
 *
 * Strict: every reply is checked against rules P69-P119; the first that is broken ends the link.
 *
 * Threading: the owner's object. Ownership: a call and its memory belong to the link from
 * link_add() until done() or link_take_back(). Errors: link_received() gives -EPROTO with the rule.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "nbd/negotiation.h"

enum {
	LINK_SLOTS_MAX = 1024, /* commands in flight */
	LINK_STAGE_BYTES = 8192,
	LINK_FORETOLD_MAX = 64, /* replies laid out in one receive */
	LINK_FORETOLD_BYTES_MAX = 256 << 10,
	LINK_IOV_MAX = 256,
	LINK_PREFIX_BYTES_MAX = 40,	 /* extended reply header and the offset of a data chunk */
	LINK_WHOLE_BYTES_MIN = 64 << 10, /* a rest of a payload worth one wake-up */
	/* One receive or send at most: on a slow network an end must come now and then, so that its
	 * progress is seen. */
	LINK_STEP_BYTES_MAX = 1 << 20,
	LINK_TEXT_BYTES = 256,
	LINK_INTERVALS_MAX = 65536, /* separate pieces of one reply */
	LINK_ERRORS_MAX = 65536,    /* error chunks of one reply: a block each of 32 MiB */
};

struct link;

/* [start, end) relative to the call's offset; sorted, neither touching nor overlapping. */
struct link_interval {
	uint64_t start;
	uint64_t end;
};

/* One command. The owner fills the first part. */
struct link_call {
	uint16_t type;	/* NBD_CMD_ */
	uint16_t flags; /* NBD_CMD_FLAG_, without PAYLOAD_LEN */
	uint64_t offset;
	uint64_t length;	 /* effect length; READ and WRITE: payload bytes */
	const struct iovec *iov; /* READ, WRITE: the memory, length bytes from iov_skip on */
	uint32_t iov_count;
	uint64_t iov_skip;

	/* For the owner's done: 0 or a negative errno; what the server said about it is in
	 * link->text during done. */
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
	struct link_interval *intervals;
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

struct link_handler {
	/* The call is the owner's again. May add calls. */
	void (*done)(struct link *link, struct link_call *call);
	/* READ: [offset, offset + length) of the export came as a hole; its memory is zeroed. */
	void (*hole)(struct link *link, struct link_call *call, uint64_t offset, uint64_t length);
	/* BLOCK_STATUS: the next extent, flags of base:allocation. */
	void (*extent)(struct link *link, struct link_call *call, uint64_t length, uint32_t flags);
};

enum link_state {
	LINK_HEADER,  /* a reply header is awaited or incomplete in the stage */
	LINK_DATA,    /* the rest of a payload, into a call's memory */
	LINK_EXTENTS, /* the rest of a block status chunk, entry by entry */
	LINK_SKIP,    /* bytes of no interest */
};

struct link {
	const struct link_handler *handler;
	const struct negotiation_facts *facts;
	enum link_state state;
	uint64_t serial;	   /* of the next cookie */
	struct list_node unsent;   /* link_call.node: none or some bytes sent, first in first out */
	struct list_node awaiting; /* sent, in that order */
	uint32_t call_count;
	uint32_t reads_awaiting;
	uint64_t sent_of_first; /* bytes of the first unsent call that are sent */

	struct link_call *current; /* of the chunk in progress */
	bool current_ends;	   /* the chunk has DONE */
	uint64_t data_place;	   /* LINK_DATA: next byte, relative to the call's offset */
	uint64_t left;		   /* DATA, EXTENTS, SKIP: bytes of the chunk still to come */

	uint32_t predict;     /* replies to lay out */
	uint32_t ordered_run; /* replies in a row that came in order */
	/* The receive that is under way: data, then predicted_count times prefix and payload, or
	 * else the stage. The first prefix is in the stage, too. */
	size_t plan_data;
	uint32_t predicted_count;
	struct link_call *predicted[LINK_FORETOLD_MAX];
	size_t prefix_bytes[LINK_FORETOLD_MAX];	 /* laid out */
	size_t payload_bytes[LINK_FORETOLD_MAX]; /* laid out */
	uint8_t prefixes[LINK_FORETOLD_MAX][LINK_PREFIX_BYTES_MAX];
	struct iovec plan[LINK_IOV_MAX];
	uint32_t plan_count;
	size_t plan_bytes;

	size_t stage_bytes; /* collected */
	uint8_t stage[LINK_STAGE_BYTES];
	uint8_t *spill;				 /* made on first need */
	struct link_call *slots[LINK_SLOTS_MAX]; /* by the low bits of the cookie */
	uint16_t free_slots[LINK_SLOTS_MAX];
	uint32_t free_count;

	char text[LINK_TEXT_BYTES]; /* what the server said about the call that is done, escaped */
	const struct link_call *text_of;
	uint64_t moved_bytes;
	uint64_t received_payload_bytes;
	uint64_t sent_payload_bytes;
	uint64_t out_of_order; /* replies that came before an older one */
};

/* facts must outlive the link. seed: any number, different for each link, so that a late reply of
 * an earlier connection cannot match (rule P70). */
void link_init(struct link *link, const struct link_handler *handler,
	const struct negotiation_facts *facts, uint64_t seed);
/* No call may be left. */
void link_fini(struct link *link);

/* Queues a command. There must be fewer than LINK_SLOTS_MAX. Lengths obey the facts: the owner has
 * split what is longer. */
void link_add(struct link *link, struct link_call *call);

/* Lays out what is to be sent: at most iov_max entries and LINK_STEP_BYTES_MAX bytes. Returns how
 * many entries; 0 = nothing. */
uint32_t link_output(struct link *link, struct iovec *iov, uint32_t iov_max);
/* That many bytes of the last layout were sent. */
void link_sent(struct link *link, size_t bytes);

/*
 * Lays out where the next bytes go. *whole: all of it will come, so that one may wait for all.
 * The layout holds until link_received() or link_input_drop(); calls may be added meanwhile.
 */
const struct iovec *link_input(struct link *link, uint32_t *iov_count, size_t *bytes, bool *whole);
/* That many bytes arrived in the last layout (> 0). */
GMB_MUST_CHECK int link_received(struct link *link, size_t bytes, struct error *error);
/* Nothing arrived and nothing will be received into it. */
void link_input_drop(struct link *link);

/* Gives back the oldest call of a link that has broken, as it was before link_add(); NULL: none
 * left. *was_sent: the server may have carried it out. */
struct link_call *link_take_back(struct link *link, bool *was_sent);

/* The 28 or 32 bytes of DISC (rule P80). Returns how many. */
size_t link_farewell(const struct link *link, uint8_t out[32]);
