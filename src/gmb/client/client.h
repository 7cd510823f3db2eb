// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the client's side of src/gmb: what the connections on one queue share, which is a clan
 * queue and the memory that servers reach.
 *
 *   hub.c      clan queue, buffers (gmb_buffer_alloc), the pool for memory outside of them
 *   target.c   addresses of servers, and dialing one
 *   carrier.c  one connection: carrier.h, from connecting to its end
 *   share.c    which buffers its server reaches
 *   send.c     its commands, on the way to the server
 *   receive.c  replies and other messages of the server
 *
 * A buffer is a clan region. A connection shares it with its server when the first command needs
 * it. When a connection is lost over which servers map regions, what its commands used is tainted:
 * the server's disk may still be at work on it. It gets fresh pages (clan_region_replace()) when no
 * live connection shares it, and only then do the commands go back to the client (rule G16).
 *
 * Imported memory cannot get fresh pages: only its owner knows who else maps it. So servers write
 * into it only where a connection that replaces a lost one is answered after the end of all that
 * the lost one had asked for (EXPORT_ENDS): the client does not send a command again, and does not
 * end it, before that. Elsewhere what is read goes through the pool.
 *
 * Threading: the ring's thread. Ownership: the queue owns the hub, the hub its buffers. Errors:
 * negative errno; a pool or buffer that is busy is waited for.
 */
#pragma once

#include <gmblock/clan.h>

#include "client/carrier.h"
#include "gmb/wire.h"

enum {
	HUB_BUFFERS_MAX = NATIVE_REGIONS_MAX,
	HUB_POOL = 0, /* number of the buffer that is the pool */
	HUB_POOL_BYTES = 8 << 20,
	HUB_PAGE_BYTES = 4096,
	HUB_COMMAND_BYTES_MAX = 1 << 20, /* any fits into the pool */
};

struct hub_buffer {
	struct clan_region *region; /* NULL: there is none of that number */
	uint8_t *base;
	size_t bytes;
	bool imported;
	bool tainted;
	bool freeing; /* gmb_buffer_free() was called */
};

struct hub {
	struct queue_part part;
	struct ring *ring;
	struct clan_queue *clan;
	struct ring_source source;
	bool is_polled;	 /* the source is the ring's */
	bool is_removed; /* it was */
	bool unsettled;	 /* a buffer is tainted or being freed */
	bool settling;	 /* hub_settle() is under way */
	struct ring_op retry_op;
	struct list_node carriers; /* struct native_carrier */
	struct list_node hungry;   /* those that have not taken all that is there */
	struct hub_buffer buffers[HUB_BUFFERS_MAX];
	uint32_t last_found;
	uint64_t pool_used[HUB_POOL_BYTES / HUB_PAGE_BYTES / 64]; /* a bit per page */
};

/* A run of the pool. */
struct hub_run {
	uint32_t page;
	uint32_t pages; /* 0: none */
};

enum share_state {
	SHARE_NONE,
	SHARE_ASKED,   /* CLAN_EVENT_SHARED */
	SHARE_GRANTED, /* room for REGION */
	SHARE_LIVE,
	SHARE_REFUSED,
};

/* What a connection has shared of a buffer. */
struct share {
	enum share_state state;
	uint32_t number;
	uint32_t generation;
	struct clan_cookie cookie; /* SHARE_GRANTED */
};

/* In command.space. */
struct native_call {
	struct list_node node; /* in carrier->unsent or ->sent */
	uint32_t tag;
	uint32_t buffers; /* a bit for each that it uses */
	uint32_t extents_max;
	struct hub_run staged;
};

enum native_carrier_state {
	NATIVE_IDLE,
	NATIVE_DIALING, /* CONNECTED, or EXPORT */
	NATIVE_READY,
	NATIVE_CLOSING, /* CLOSED, timers, fresh pages */
};

struct native_carrier {
	struct carrier base;
	struct hub *hub; /* from the first start on */
	const struct native_target *target;
	enum native_carrier_state state;
	struct list_node node;	      /* in hub->carriers while there is a connection */
	struct list_node hungry_node; /* in hub->hungry */
	struct clan_conn *conn;	      /* NULL: CLOSED was given, or there was none */
	bool needs_cookies;	      /* the server said so */
	struct ring_op timer_op;
	struct ring_op fail_op;
	struct error failure; /* for fail_op */
	struct list_node unsent;
	struct list_node sent;
	bool asks_alive;
	bool waits_for_ends; /* lost commands are held back until they are over */
	bool fills_imported; /* and the server sees to it that they are: it may write there */
	struct native_call *calls[CARRIER_DEPTH_MAX]; /* by tag % CARRIER_DEPTH_MAX */
	uint16_t free_slots[CARRIER_DEPTH_MAX];
	uint32_t free_count;
	uint32_t turn; /* of the tags: the rest of the quotient */
	struct share shares[HUB_BUFFERS_MAX];
	uint32_t open_bytes;
	uint8_t open[NATIVE_OPEN_BYTES_MAX];
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
};

struct native_target {
	char *address;	   /* as clan_connect() takes it */
	char *socket_path; /* as in struct uri, for messages */
	char *name;	   /* of the export */
	char label[CARRIER_LABEL_BYTES_MAX];
};

/* hub.c */
/* The queue's hub, made on first need. */
GMB_MUST_CHECK int hub_get(struct gmb_queue *queue, struct hub **hub_out, struct error *error);
/* From now on its events are handled. */
void hub_start(struct hub *hub);
/* The buffer that holds all these bytes, or NULL. */
struct hub_buffer *hub_find(struct hub *hub, const void *address, size_t bytes);
/* The pool exists when this returns 0. */
GMB_MUST_CHECK int hub_pool_make(struct hub *hub);
/* False: there is no such run now. bytes: at most HUB_COMMAND_BYTES_MAX. */
GMB_MUST_CHECK bool hub_pool_get(struct hub *hub, size_t bytes, struct hub_run *run);
void hub_pool_put(struct hub *hub, struct hub_run *run);
/* Gives tainted buffers fresh pages, and frees buffers, as far as nobody shares them. */
void hub_settle(struct hub *hub);

static inline struct native_carrier *native_carrier_of(struct carrier *base)
{
	return container_of(base, struct native_carrier, base);
}

static inline struct native_call *native_call_of(struct command *command)
{
	return (struct native_call *)(void *)command->space;
}

static inline struct command *native_command_of(struct native_call *call)
{
	return container_of((void *)call, struct command, space);
}

/* target.c */
/* Says hello to the server. error: without the target's label. */
GMB_MUST_CHECK int native_connect(struct clan_queue *queue, const struct native_target *target,
	const struct clan_conn_options *options, struct clan_conn **conn_out, struct error *error);
/* Of struct carrier_ops. */
GMB_MUST_CHECK int native_target_create(const char *text, uint32_t open_flags,
	struct tls_client *tls, char label[CARRIER_LABEL_BYTES_MAX],
	struct carrier_target **target_out, struct error *error);
void native_target_destroy(struct carrier_target *base);

/* carrier.c */
void native_carrier_set_state(struct native_carrier *carrier, enum native_carrier_state state);
/* The connection has failed: code and text go to the client, which ends it. */
void native_carrier_fail(struct native_carrier *carrier, int code, const char *text);
void native_carrier_event(struct native_carrier *carrier, const struct clan_event *event);
/* Buffers have been settled. */
void native_carrier_step(struct native_carrier *carrier);

/* share.c */
/* True when the server has the buffer. False: it is asked for, or nobody may have it now; the state
 * is SHARE_REFUSED when the server does not want it. */
GMB_MUST_CHECK bool native_share(struct native_carrier *carrier, uint32_t number);
/* CLAN_EVENT_SHARED */
void native_shared(struct native_carrier *carrier, const struct clan_event *event);
/* CLAN_EVENT_UNSHARED */
void native_unshared(struct native_carrier *carrier, const struct clan_event *event);
/* Ends the connection when it shares that buffer; true: it still does. */
bool native_carrier_shares(struct native_carrier *carrier, uint32_t buffer, bool end);
/* Asks for a buffer back that is to be freed. */
void native_carrier_unshare(struct native_carrier *carrier, uint32_t buffer);

/* send.c */
/* Of struct carrier_ops. */
void native_add(struct carrier *base, struct command *command);
void native_flush(struct carrier *base);
/* Copies between a command's memory and one run of bytes. */
void native_call_copy(const struct command *command, uint8_t *run, bool to_run);

/* receive.c */
/* Takes what the server has sent, as far as others need not wait. */
void native_carrier_take(struct native_carrier *carrier);
