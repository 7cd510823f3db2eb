// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the front end of vhost-user-blk: a connection to a server that maps our memory.
 *
 *   carrier.c  one connection: carrier.h, from connecting to its end; the event source
 *   control.c  messages on the socket: the handshake, memory, changes of the size
 *   ring.c     one split ring: chains to the server, used elements from it
 *   send.c     commands as chains; the buffers that the server can access
 *   target.c   URIs, the URI's only export
 *
 * The server gets the memory of the rings, and each buffer of the hub (client/hub.h) when the first
 * command needs it. Messages and descriptors contain addresses of an imaginary guest: memory number
 * n begins at (n + 1) << 40, so the server does not learn our addresses.
 *
 * A connection that is lost leaves its rings behind, and the next one begins with new ones: the
 * client replays the commands itself. So the record of requests in flight, from which a server
 * repeats the requests in old rings, is always a new one.
 *
 * The server is not trusted: members of a used ring are read once and checked. It can change the
 * data of reads at any time, but only until the request's result, and in the pages that were
 * shared.
 *
 * Threading: the ring's thread. Ownership: the client owns the carriers. Errors: negative errno; a
 * command that lacks memory or a free chain waits.
 */
#pragma once

#include "base/export_uri.h"
#include "client/hub.h"
#include "vhost/wire.h"

enum {
	FRONT_QUEUES_MAX = 16,
	FRONT_ENTRIES = 256, /* of each ring */
	FRONT_FEW = 2, /* commands completed in one poll of the rings, while the client polls */
	/* limit on the pieces of memory of a command; with more it goes through the pool */
	FRONT_SEGMENTS_MAX = 64,
	FRONT_DIRECT = 4,	       /* descriptors of a chain without indirect descriptors */
	FRONT_RINGS = HUB_BUFFERS_MAX, /* memory number of the rings */
	FRONT_MEMORIES,
};

/* --- a ring ---------------------------------------------------------------------------------- */

/* Memory of a command, in addition to its payload, that the server reads. Head and table of a
 * command with one piece of memory share a cache line, because each line that the server reads
 * after the client has written it costs as much as the rest of the work for a command. */
struct front_slot {
	alignas(64) struct blk_head head;
	struct vring_desc table[FRONT_SEGMENTS_MAX + 2];
	struct blk_range range;
};

/* Memory of one ring, shared with the server. */
struct front_area {
	struct vring_desc desc[FRONT_ENTRIES];
	alignas(64) uint8_t avail[64 * ((4 + 2 * (FRONT_ENTRIES + 1)) / 64 + 1)];
	alignas(64) uint8_t used[64 * ((4 + 8 * FRONT_ENTRIES + 2) / 64 + 1)];
	alignas(64) uint8_t status[FRONT_ENTRIES]; /* written by the server */
	struct front_slot slots[FRONT_ENTRIES];
};

struct front_ring {
	struct front_area *area;
	uint64_t address; /* of the area, for the server */
	bool indirect;	  /* features that were negotiated */
	bool event_idx;
	uint32_t slot_count;
	uint32_t free_count;
	uint16_t free_slots[FRONT_ENTRIES];
	void *owners[FRONT_ENTRIES]; /* of the chains in flight; NULL: free */
	uint16_t avail_index;	     /* next element that we add */
	uint16_t told_index;	     /* elements before it are visible to the server */
	uint16_t used_index;	     /* next element that the server adds */
	int kick_fd;
};

/* A chain under construction. */
struct front_chain {
	struct front_slot *slot;
	struct vring_desc *table;
	uint32_t slot_idx;
	uint32_t count;
	uint32_t count_max;
	uint16_t next_base; /* number of the table's first descriptor */
};

/* Initializes a ring over zeroed memory. features: VIRTIO_RING_ features that were negotiated. */
void front_ring_init(
	struct front_ring *ring, struct front_area *area, uint64_t address, uint64_t features);
/* Begins a chain, with the slot's head as first descriptor. Returns false if none is free. A chain
 * that is not committed is discarded. */
GMB_MUST_CHECK bool front_chain_begin(struct front_ring *ring, struct front_chain *chain);
/* Adds a descriptor. Returns false if the chain has no room for it and for the status. writable:
 * the server writes this memory. */
GMB_MUST_CHECK bool front_chain_add(
	struct front_chain *chain, uint64_t address, uint32_t bytes, bool writable);
/* Returns the server's address of the slot's range. */
uint64_t front_chain_range(const struct front_ring *ring, const struct front_chain *chain);
/* Ends the chain with the status, and adds it to the avail ring. owner: not NULL. */
void front_chain_commit(struct front_ring *ring, struct front_chain *chain, void *owner);
/* Makes the added chains visible to the server. Returns whether it has to be notified. */
GMB_MUST_CHECK bool front_ring_publish(struct front_ring *ring);
/* Removes the next used chain. Returns 1 with its owner and status, 0 if there is none, or -EPROTO
 * with the broken rule in *rule. */
GMB_MUST_CHECK int front_ring_take(
	struct front_ring *ring, void **owner_out, uint8_t *status_out, const char **rule);
/* Asks for a notification of the next used chain (arm), or for none. Returns false if there is a
 * used chain already. */
bool front_ring_arm(struct front_ring *ring, bool arm);

/* --- a connection ---------------------------------------------------------------------------- */

enum front_state {
	FRONT_IDLE,
	FRONT_DIALING, /* handshake */
	FRONT_READY,
	FRONT_CLOSING, /* waits for operations and fresh pages */
};

/* A buffer as shared by one connection. */
enum front_share {
	FRONT_SHARE_NONE,
	FRONT_SHARE_WANTED,
	FRONT_SHARE_ASKED, /* waits for the reply to ADD_MEM_REG */
	FRONT_SHARE_LIVE,
	FRONT_SHARE_UNWANTED,
	FRONT_SHARE_ENDING, /* waits for the reply to REM_MEM_REG */
	FRONT_SHARE_REFUSED,
};

/* A command in flight, stored in command.space. */
struct front_call {
	struct list_node node; /* in carrier->unsent or ->sent */
	uint32_t buffers;      /* bit mask of the buffers that it uses */
	struct hub_run staged;
};

struct front_target {
	struct carrier_target base;
	struct export_uri uri;
	uint32_t queues; /* wanted */
};

/* A socket for messages. */
struct front_channel {
	int fd; /* -1: none */
	struct ring_file file;
	struct ring_op op;
	struct msghdr message;
	struct iovec iov;
	alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
	struct vhost_head head;
	uint8_t payload[VHOST_PAYLOAD_BYTES_MAX];
	int received_fd; /* that came with the message, or -1 */
};

struct front_carrier {
	struct carrier base;
	const struct front_target *target;
	struct hub *hub; /* NULL before the first start */
	struct hub_user user;
	enum front_state state;
	struct ring_op timer_op;
	struct ring_op fail_op;
	struct error failure; /* reported by fail_op */
	struct list_node unsent;
	struct list_node sent;

	/* The conversation: one message at a time waits for a reply. */
	struct front_channel front; /* our messages */
	struct front_channel back;  /* messages of the server */
	int back_peer_fd;	    /* the server's end of `back`, until it was sent */
	uint32_t step;
	uint32_t asked;	 /* message that waits for its reply; 0: none */
	bool has_answer; /* the server has replied to a message */
	uint32_t asked_memory;
	bool config_wanted; /* the server says that the configuration has changed */
	uint64_t features;
	uint64_t protocol;
	uint64_t slots; /* regions that the server can map */
	struct blk_config config;
	struct vhost_inflight inflight;
	int inflight_fd;

	/* memory */
	uint8_t shares[HUB_BUFFERS_MAX]; /* enum front_share */
	int rings_fd;
	struct front_area *areas; /* `queue_count` elements */
	uint32_t segments_max;	  /* of a command */
	uint32_t segment_bytes_max;

	uint32_t queue_count;
	uint32_t queue_next;
	struct front_ring *rings; /* FRONT_QUEUES_MAX */
	int call_fd;
	bool call_pending; /* call_fd may be readable */
	bool is_armed;	   /* the server was asked to signal call_fd */
	struct ring_source source;
	bool has_source;
};

static inline struct front_carrier *front_carrier_of(struct carrier *base)
{
	return container_of(base, struct front_carrier, base);
}

static inline struct front_call *front_call_of(struct command *command)
{
	return (struct front_call *)(void *)command->space;
}

static inline struct command *front_command_of(struct front_call *call)
{
	return container_of((void *)call, struct command, space);
}

static inline uint64_t front_address(uint32_t memory, uint64_t offset)
{
	return ((uint64_t)memory + 1) << 40 | offset;
}

/* carrier.c */
/* Creates the memory and the eventfds of queue_count rings. */
GMB_MUST_CHECK int front_rings_create(struct front_carrier *carrier);
/* Reports to the client that the connection has failed. The client then ends the connection. */
void front_fail(struct front_carrier *carrier, int code, const char *text);
/* The same for a server that has broken a rule. */
void front_broken(struct front_carrier *carrier, const char *rule);
/* The handshake is complete. */
void front_ready(struct front_carrier *carrier);
/* Makes a closing carrier idle if no operation is in flight and no server can access the buffers of
 * its commands any more. Otherwise a no-op. */
void front_step(struct front_carrier *carrier);

/* control.c */
/* Starts the handshake on carrier->front. */
void front_control_start(struct front_carrier *carrier);
/* Sends the next message if a buffer or the configuration needs one, and none waits for a reply. */
void front_control_turn(struct front_carrier *carrier);

/* facts.c */
/* Fills in the facts from the features and the configuration. Returns the broken rule, or NULL. */
const char *front_facts(struct front_carrier *carrier);

/* send.c */
/* Members of struct carrier_ops and struct hub_user_ops. */
void front_add(struct carrier *base, struct command *command);
void front_flush(struct carrier *base);
enum hub_access front_share(struct hub_user *user, uint32_t number);
bool front_shares(struct hub_user *user, uint32_t number, bool end);
void front_unshare(struct hub_user *user, uint32_t number);
/* Completes a command. */
void front_call_done(struct front_carrier *carrier, struct front_call *call, uint8_t status);
/* Returns the bit mask of the buffers of the commands that were sent. */
uint32_t front_buffers_in_use(const struct front_carrier *carrier);

/* target.c */
GMB_MUST_CHECK int front_target_create(const char *text, const struct gmb_options *options,
	struct tls_client *tls, struct carrier_target **target_out, struct error *error);
void front_target_destroy(struct carrier_target *base);
GMB_MUST_CHECK int front_list(const char *uri, const struct gmb_options *options,
	carrier_found *found, void *context, struct error *error);
/* Connects a socket to the target. Returns 0 or a negative errno; the error has no label. */
GMB_MUST_CHECK int front_connect(
	const struct front_target *target, int *fd_out, struct error *error);
