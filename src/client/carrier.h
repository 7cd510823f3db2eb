// SPDX-License-Identifier: Apache-2.0
/*
 * The interface between an open export and the protocol that accesses it. The client splits
 * requests into commands, distributes them over several connections, resends them after a loss and
 * takes over from lost connections. A carrier is one connection of one protocol, which transfers
 * commands and their data. The table in list.c has one line for each protocol.
 *
 *   client ── start, add, flush, leave, lose, take_back ──▶ carrier
 *          ◀── carrier_ready, carrier_failed, carrier_stopped, carrier_done, command_hole, ... ──
 *
 *   start ─▶ carrier_ready ─▶ add, flush ... ─▶ leave or lose ─▶ carrier_stopped
 *         ─▶ take_back, start
 *
 * Threading: the ring's thread. Ownership: the client owns carriers and commands; a command, its
 * scatter list and its buffers belong to the carrier from add until carrier_done or take_back.
 * Errors: carrier_failed with an error message that begins with the server's address, after which
 * the client calls lose. Lengths obey the facts, because the client splits longer requests.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdalign.h>

#include "base/export_uri.h"
#include "base/list.h"
#include "base/uri.h"
#include "ring/ring.h"

enum {
	CARRIER_DEPTH_MAX = 1024,  /* limit on commands of one carrier */
	CARRIER_REPLACES_MAX = 32, /* limit on lost connections that one carrier can replace */
	CARRIER_TOKEN_BYTES_MAX = 48,
	CARRIER_TEXT_BYTES_MAX = 256, /* longest text from the server about a failure, escaped */
	CARRIER_NAME_BYTES_MAX = 4097,
	CARRIER_LABEL_BYTES_MAX = 160,
	CARRIER_TLS_BYTES_MAX = 96,
	CARRIER_INSTANCE_BYTES = 16,
	CARRIER_DISK_BYTES = EXPORT_URI_DISK_BYTES,
};

struct carrier;
typedef void carrier_found(void *context, const struct gmb_export *exported);
struct tls_client;
struct connection;

/* The servers that a URI names. Common part of the targets of all carriers. */
struct carrier_target {
	uint32_t host_count;				     /* at least 1 */
	char labels[URI_HOSTS_MAX][CARRIER_LABEL_BYTES_MAX]; /* their addresses */
};

/* Properties of a connection that is ready. */
struct carrier_facts {
	uint64_t bytes;	       /* size of the export, < 2^63 */
	uint32_t capabilities; /* GMB_CAN_ and GMB_IS_ flags: operations that the server allows */
	/* the server's flags of the export, which must be equal on all connections */
	uint32_t identity;
	uint32_t request_block; /* offsets and lengths of requests are multiples of this */
	uint32_t block_minimum;
	uint32_t block_preferred;
	uint32_t payload_max;	  /* limit of one read or write */
	uint32_t atomic_bytes;	  /* size up to which a write with FUA is atomic; 0: unknown */
	uint64_t range_max;	  /* limit of one command without payload; UINT64_MAX: none */
	enum gmb_replies replies; /* kind of replies; a larger value is at least as good */
	/* For takeover, see docs/design/0006-reconnect.md. If the server has no takeover extension,
	 * the flags are false and the epoch is 0. */
	bool can_take_over;
	bool is_volatile;
	uint64_t epoch;
	/* identity of the disk, the same at each server that has this disk; zeroes: unknown */
	uint8_t disk[CARRIER_DISK_BYTES];
	/* identifies the server process; only if GMB_CAN_COPY is set */
	uint8_t instance[CARRIER_INSTANCE_BYTES];
	/* the server sends signs of life on this connection, see carrier_start.alive_ms */
	bool says_alive;
	char tls[CARRIER_TLS_BYTES_MAX]; /* description of the connection's encryption, or "" */
	char name[CARRIER_NAME_BYTES_MAX];
	char description[CARRIER_NAME_BYTES_MAX];
};

/* Result of a COPY. */
struct command_copied {
	uint64_t bytes; /* after a failure: number of bytes copied from the beginning */
	/* after success: bytes by copy method, in the order of struct gmb_stats */
	uint64_t by_way[5];
};

/* One command. The client fills in the members up to source_offset before it calls
 * carrier_ops.add(). */
struct command {
	uint8_t operation; /* enum gmb_operation */
	uint32_t flags;	   /* enum gmb_request_flags, only flags that the facts allow */
	uint64_t offset;
	uint64_t length;
	const struct iovec *iov; /* READ, WRITE: length bytes from iov_skip on */
	uint32_t iov_count;
	uint64_t iov_skip;
	/* COPY: facts of the connection to the source export, which has its own client. */
	const struct carrier_facts *source;
	uint64_t source_offset;
	int result;		      /* set by the carrier before carrier_done */
	struct command_copied copied; /* COPY: set by the carrier before carrier_done */

	/* The members from here on are used by the client. */
	struct gmb_request *request;
	/* for a command of a long range: time at which it was first sent; otherwise 0 */
	uint64_t begun_ns;
	struct list_node node; /* in client.replays or client.free_commands */
	uint64_t covers;       /* FLUSH: client.changes when the command was first sent */

	alignas(16) uint8_t space[]; /* private data of the carrier, ops->command_bytes bytes */
};

/* Parameters of a new connection. Texts are copied. */
struct carrier_start {
	uint32_t host;	     /* the server, an index in carrier_target.labels */
	uint64_t timeout_ns; /* time limit for resolving, connecting and the handshake together */
	uint64_t connect_ns; /* time limit for resolving and connecting; at most timeout_ns */
	uint32_t open_flags; /* enum gmb_open_flags */
	/* Name of this connection, and names of the lost connections that it replaces. */
	const char *token;
	const char *const *replaces;
	uint32_t replaces_count; /* at most CARRIER_REPLACES_MAX */
	/* Interval at which the server should send signs of life while commands wait; 0: not
	 * needed. Not every server supports this; see facts.says_alive. */
	uint32_t alive_ms;
	/* The lease to take, as text (base/lease.h), or NULL. A carrier whose server has no leases
	 * fails with -EOPNOTSUPP. */
	const char *lease;
};

/* All members are required. */
struct carrier_ops {
	const char *name;
	const char *const *schemes; /* URI schemes, NULL-terminated */
	size_t command_bytes;	    /* size of command.space */
	/* default number of connections; 0: depends on the number of processors */
	uint32_t connections;
	/* Creates the target of a URI, which the connections of a client share; reads no file. Only
	 * flags and tls of options are used. tls: for an nbds URI, borrowed credentials instead of
	 * those that the URI names; or NULL. */
	int (*target_create)(const char *uri, const struct gmb_options *options,
		struct tls_client *tls, struct carrier_target **target_out, struct error *error);
	/* Calls found() for each export that the first server of a URI lists that answers. Blocks.
	 * options: as filled in by client_options_take(). */
	int (*list)(const char *uri, const struct gmb_options *options, carrier_found *found,
		void *context, struct error *error);
	void (*target_destroy)(struct carrier_target *target); /* NULL is a no-op */
	/* Returns an idle carrier, or NULL if out of memory. */
	struct carrier *(*create)(const struct carrier_target *target);
	void (*destroy)(struct carrier *carrier); /* must be idle */
	/* Connects. Later calls carrier_ready or carrier_failed. */
	void (*start)(struct carrier *carrier, const struct carrier_start *start);
	/* Accepts a command. Called only when ready, with fewer than CARRIER_DEPTH_MAX commands. */
	void (*add)(struct carrier *carrier, struct command *command);
	/* Sends the added commands, and ensures that replies are received. Called only when
	 * ready. */
	void (*flush)(struct carrier *carrier);
	/* lose() and leave() end the connection. After lose(), unsent commands are never sent.
	 * leave() first says goodbye to the server if there are no commands. carrier_stopped() is
	 * called when no operation is in flight, possibly before these functions return. */
	void (*lose)(struct carrier *carrier);
	void (*leave)(struct carrier *carrier);
	/* Called after carrier_stopped. Returns the oldest command that is not done, in its state
	 * before add; NULL: there is none. *was_sent: the server could have executed it. */
	struct command *(*take_back)(struct carrier *carrier, bool *was_sent);
};

/* Common part of all carriers. The client sets the first four members after create(); the carrier
 * maintains the others. */
struct carrier {
	const struct carrier_ops *ops;
	struct connection *connection;
	struct gmb_queue *queue;
	struct ring *ring;	/* the queue's ring */
	uint32_t command_count; /* maintained by the carrier, like the members below */
	uint64_t heard_ns;	/* last time at which the server sent or accepted bytes */
	uint64_t answered_ns;	/* heard_ns, except that mere signs of life do not count */
	/* bytes of payload that were received into the wrong place and copied */
	uint64_t moved_bytes;
	struct carrier_facts facts;
};

/* --- what carriers report ------------------------------------------------------------------- */

/* Copies a struct that a program has filled in and that begins with its size. bytes: the struct's
 * size in version 0.1.0. reserved: a member of the copy that must be 0. Returns -EINVAL if the size
 * is less or reserved is not 0. */
GMB_MUST_CHECK int options_copy(const char *name, void *own, const void *given, size_t bytes,
	const uint32_t *reserved, struct error *error);

/* Called when the connection is ready and the facts are filled in. */
void carrier_ready(struct carrier *carrier);
/* Called when the connection has failed. */
void carrier_failed(struct carrier *carrier, const struct error *error);
/* Called after leave or lose, when no operation is in flight. */
void carrier_stopped(struct carrier *carrier);
/* Called when a command has ended with command->result. text: the server's text about it, or "". */
void carrier_done(struct carrier *carrier, struct command *command, const char *text);
/* Called when facts.bytes has changed while the connection is ready. */
void carrier_resized(struct carrier *carrier);
/* Called for a READ when [offset, offset + length) of the export was received as a hole. Its memory
 * is zeroed. */
void command_hole(struct command *command, uint64_t offset, uint64_t length);
/* Called for each extent that answers a STATUS, in order. It starts `described` bytes after the
 * command's offset. flags: GMB_EXTENT_. */
void command_extent(struct command *command, uint64_t described, uint64_t length, uint32_t flags);

/* --- state of a protocol, once per queue ------------------------------------------------------ */

struct ring_lent;

struct queue_part {
	/* called when the queue is destroyed or released, after its last client has ended */
	void (*destroy)(struct queue_part *part);
};

/* Returns the address of the pointer to the protocol's state in the queue. The pointer is NULL
 * until the protocol sets it. */
struct queue_part **queue_part(struct gmb_queue *queue);
struct ring *queue_ring(struct gmb_queue *queue);
/* Returns whether the queue's waits poll before the thread sleeps. */
bool queue_spins(const struct gmb_queue *queue);
/* Returns the lent memory in which payload of the queue's requests can be (lend.h), or NULL. */
const struct ring_lent *queue_lent(const struct gmb_queue *queue);
/* Copies an error into its public form. */
void error_export(struct gmb_error *out, const struct error *error);

/* --- the protocols -------------------------------------------------------------------------- */

extern const struct carrier_ops nbd_carrier;	/* nbd/client/carrier.c */
extern const struct carrier_ops native_carrier; /* gmb/client/carrier.c */
extern const struct carrier_ops vhost_carrier;	/* vhost/client/carrier.c */
