// SPDX-License-Identifier: Apache-2.0
/*
 * The seam between an open export and the protocol that reaches it. The client splits requests in
 * commands, spreads them over several connections, sends them again after a loss and takes over
 * from lost connections; a carrier is one connection of one protocol and moves commands and their
 * data. A protocol is one line in the table in client.c.
 *
 *   client ── start, add, flush, leave, lose, take_back ──▶ carrier
 *          ◀── carrier_ready, carrier_failed, carrier_stopped, carrier_done, command_hole, ... ──
 *
 *   start ─▶ carrier_ready ─▶ add, flush ... ─▶ leave or lose ─▶ carrier_stopped ─▶ take_back,
 * start
 *
 * Threading: the ring's thread. Ownership: the client owns carriers and commands; a command, its
 * scatter list and buffers are the carrier's from add until carrier_done or take_back. Errors:
 * carrier_failed with a sentence that begins with the server's address; the client answers with
 * lose. Lengths obey the facts: the client has split what is longer.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdalign.h>

#include "base/list.h"
#include "ring/ring.h"

enum {
	CARRIER_DEPTH_MAX = 1024,  /* commands on one carrier */
	CARRIER_REPLACES_MAX = 32, /* lost connections that one takes over from */
	CARRIER_TOKEN_BYTES_MAX = 48,
	CARRIER_TEXT_BYTES_MAX = 256, /* what a server says about a failure, escaped */
	CARRIER_NAME_BYTES_MAX = 4097,
	CARRIER_LABEL_BYTES_MAX = 160,
	CARRIER_TLS_BYTES_MAX = 96,
	CARRIER_INSTANCE_BYTES = 16,
};

struct carrier;
struct carrier_target;
struct tls_client;
struct connection;

/* What a connection offers, once it is ready. */
struct carrier_facts {
	uint64_t bytes;		/* of the export, < 2^63 */
	uint32_t capabilities;	/* GMB_CAN_, GMB_IS_: what the server allows */
	uint32_t identity;	/* the protocol's own flags: equal on all connections */
	uint32_t request_block; /* requests are multiples of it */
	uint32_t block_minimum;
	uint32_t block_preferred;
	uint32_t payload_max;	  /* of one read or write */
	uint32_t atomic_bytes;	  /* of a write with FUA that is kept as a whole; 0: unknown */
	uint64_t range_max;	  /* of one command without payload; UINT64_MAX: no limit */
	enum gmb_replies replies; /* a later one is at least as good */
	/* See docs/design/0006-reconnect.md; false and 0 where the server does not know it. */
	bool can_take_over;
	bool is_volatile;
	uint64_t epoch;
	uint8_t instance[CARRIER_INSTANCE_BYTES]; /* of the server's process, with CAN_COPY */
	bool says_alive;			  /* see struct carrier_start; of this connection */
	char tls[CARRIER_TLS_BYTES_MAX];	  /* how it is protected, or "" */
	char name[CARRIER_NAME_BYTES_MAX];
	char description[CARRIER_NAME_BYTES_MAX];
};

/* What a COPY has done. */
struct command_copied {
	uint64_t bytes;	    /* of one that failed: so many from the beginning */
	uint64_t by_way[5]; /* of one that succeeded: as in struct gmb_stats, in that order */
};

/* One command. The client fills the first part before add. */
struct command {
	uint8_t operation; /* enum gmb_operation */
	uint32_t flags;	   /* enum gmb_request_flags; only what the facts allow */
	uint64_t offset;
	uint64_t length;
	const struct iovec *iov; /* READ, WRITE: length bytes from iov_skip on */
	uint32_t iov_count;
	uint64_t iov_skip;
	/* COPY: from where; the facts are its client's latest. */
	const struct carrier_facts *source;
	uint64_t source_offset;
	int result;		      /* set by the carrier before carrier_done */
	struct command_copied copied; /* the same; COPY */

	/* The client's. */
	struct gmb_request *request;
	uint64_t begun_ns;     /* one of several of a long range: when it was first sent; else 0 */
	struct list_node node; /* client.replays or client.free_commands */
	uint64_t covers;       /* FLUSH: client.changes when it was first sent */

	alignas(16) uint8_t space[]; /* the carrier's, ops->command_bytes */
};

/* How a connection is to be made. Texts are copied. */
struct carrier_start {
	uint64_t timeout_ns; /* for resolving, connecting and shaking hands together */
	uint32_t open_flags; /* enum gmb_open_flags */
	/* The name of this connection and of those that it replaces. */
	const char *token;
	const char *const *replaces;
	uint32_t replaces_count; /* at most CARRIER_REPLACES_MAX */
	/* While commands wait, the server should say this often that it lives. Not every one can:
	 * facts.says_alive. 0: it need not. */
	uint32_t alive_ms;
};

/* Every member is required. */
struct carrier_ops {
	const char *name;
	const char *const *schemes; /* of URIs, ends with NULL */
	size_t command_bytes;	    /* in command.space */
	uint32_t connections;	    /* so many if nobody says; 0: by the number of processors */
	/* What a URI names, shared by the connections of a client; reads no file. open_flags:
	 * enum gmb_open_flags. tls: of an nbds URI, credentials in place of those that it names,
	 * held; NULL: its own. label: the server's address. */
	int (*target_create)(const char *uri, uint32_t open_flags, struct tls_client *tls,
		char label[CARRIER_LABEL_BYTES_MAX], struct carrier_target **target_out,
		struct error *error);
	void (*target_destroy)(struct carrier_target *target); /* NULL: no-op */
	/* A carrier at rest, or NULL: out of memory. */
	struct carrier *(*create)(const struct carrier_target *target);
	void (*destroy)(struct carrier *carrier); /* at rest */
	/* carrier_ready or carrier_failed comes later. */
	void (*start)(struct carrier *carrier, const struct carrier_start *start);
	/* Ready: takes a command; there are fewer than CARRIER_DEPTH_MAX. */
	void (*add)(struct carrier *carrier, struct command *command);
	/* Ready: sends what was added, and sees to it that replies are received. */
	void (*flush)(struct carrier *carrier);
	/* Ends it; lose: what was not sent never is, leave: says goodbye first when it has no
	 * commands. carrier_stopped comes when nothing is in flight, maybe from inside. */
	void (*lose)(struct carrier *carrier);
	void (*leave)(struct carrier *carrier);
	/* Stopped: the oldest command that was not done, as it was before add, or NULL. *was_sent:
	 * the server may have carried it out. */
	struct command *(*take_back)(struct carrier *carrier, bool *was_sent);
};

/* The head of every carrier, filled in by the client after create. */
struct carrier {
	const struct carrier_ops *ops;
	struct connection *connection;
	struct gmb_queue *queue;
	struct ring *ring;	/* the queue's */
	uint32_t command_count; /* kept by the carrier, as the rest */
	uint64_t heard_ns;	/* when bytes of the server came, or it took some, last */
	uint64_t answered_ns;	/* the same without those that only say that it lives */
	uint64_t moved_bytes;	/* payload that was copied because it came to the wrong place */
	struct carrier_facts facts;
};

/* --- what carriers report ------------------------------------------------------------------- */

/* The facts are filled in. */
void carrier_ready(struct carrier *carrier);
/* It cannot go on. */
void carrier_failed(struct carrier *carrier, const struct error *error);
/* After leave or lose: nothing is in flight. */
void carrier_stopped(struct carrier *carrier);
/* A command has ended, command->result is set. text: what the server said about it, or "". */
void carrier_done(struct carrier *carrier, struct command *command, const char *text);
/* facts.bytes has changed while it is ready. */
void carrier_resized(struct carrier *carrier);
/* READ: [offset, offset + length) of the export came as a hole; its memory is zeroed. */
void command_hole(struct command *command, uint64_t offset, uint64_t length);
/* STATUS: the next extent, described bytes after the command's offset. flags: GMB_EXTENT_. */
void command_extent(struct command *command, uint64_t described, uint64_t length, uint32_t flags);

/* --- what a protocol keeps once per queue ---------------------------------------------------- */

struct queue_part {
	void (*destroy)(struct queue_part *part); /* with the queue, after its last client */
};

/* Where the queue keeps it; NULL until the protocol puts it there. */
struct queue_part **queue_part(struct gmb_queue *queue);
struct ring *queue_ring(struct gmb_queue *queue);
/* Copies an error into the public form. */
void error_export(struct gmb_error *out, const struct error *error);

/* --- the protocols -------------------------------------------------------------------------- */

extern const struct carrier_ops nbd_carrier;	/* nbd/client/carrier.c */
extern const struct carrier_ops native_carrier; /* gmb/client/carrier.c */
