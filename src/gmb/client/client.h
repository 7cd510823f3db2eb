// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the client's side of src/gmb: a connection to a gmb server. client/hub.h has the clan
 * queue of all connections of a queue, and the memory that servers access.
 *
 *   target.c   addresses of servers, and dialing one
 *   carrier.c  one connection: carrier.h, from connecting to its end
 *   share.c    buffers shared with its server
 *   send.c     its commands, to the server
 *   receive.c  replies and other messages from the server
 *
 * A connection shares a buffer with its server when the first command needs it. If a connection
 * over which servers map regions is lost, the buffers of its commands are tainted, and the commands
 * are returned to the client when the buffers have fresh pages (rule G16).
 *
 * Imported memory cannot get fresh pages. A server therefore writes into it only if it guarantees
 * (EXPORT_ENDS) that it ends all requests of a lost connection before it answers OPEN of the
 * connection that replaces the lost one. The client neither resends nor completes commands of the
 * lost connection before this answer. Without EXPORT_ENDS, reads into imported memory go through
 * the pool.
 *
 * Threading: the ring's thread. Ownership: the client owns the carriers. Errors: negative
 * errno; if a pool or buffer is busy, the command waits.
 */
#pragma once

#include "base/lease.h"
#include "client/hub.h"
#include "gmb/wire.h"

_Static_assert((int)HUB_BUFFERS_MAX == (int)NATIVE_REGIONS_MAX, "a region for each buffer");

enum share_state {
	SHARE_NONE,
	SHARE_ASKED,   /* waits for CLAN_EVENT_SHARED */
	SHARE_GRANTED, /* waits for room to send REGION */
	SHARE_LIVE,
	SHARE_REFUSED,
};

/* A buffer as shared by one connection. */
struct share {
	enum share_state state;
	uint32_t number;
	uint32_t generation;
	struct clan_cookie cookie; /* valid in SHARE_GRANTED */
};

/* A command in flight, stored in command.space. */
struct native_call {
	struct list_node node; /* in carrier->unsent or ->sent */
	uint32_t tag;
	uint32_t buffers; /* bit mask of the buffers that it uses */
	uint32_t extents_max;
	struct hub_run staged;
};

enum native_carrier_state {
	NATIVE_IDLE,
	NATIVE_DIALING, /* waits for CONNECTED, then for EXPORT */
	NATIVE_READY,
	NATIVE_CLOSING, /* waits for CLOSED, timers and fresh pages */
};

struct native_carrier {
	struct carrier base;
	struct hub *hub; /* NULL before the first start */
	const struct native_target *target;
	uint32_t host;	   /* index of the server in the target */
	uint64_t end_ns;   /* time limit of the handshake */
	bool is_connected; /* the WELCOME was received */
	enum native_carrier_state state;
	struct hub_user user;	/* in hub->users from dialing until the carrier is idle */
	struct clan_conn *conn; /* NULL: not connected, or CLOSED was received */
	bool needs_cookies;	/* the server accesses memory by put and get */
	struct ring_op timer_op;
	struct ring_op fail_op;
	struct error failure; /* reported by fail_op */
	struct list_node unsent;
	struct list_node sent;
	bool asks_alive;
	bool waits_for_ends; /* lost commands are held back until the server has ended them */
	/* the server may write into imported memory, because it guarantees to end the commands of a
	 * lost connection before it answers a new one */
	bool fills_imported;
	struct native_call *calls[CARRIER_DEPTH_MAX]; /* indexed by tag % CARRIER_DEPTH_MAX */
	uint16_t free_slots[CARRIER_DEPTH_MAX];
	uint32_t free_count;
	uint32_t turn; /* upper part of the next tag, which makes tags of a slot differ */
	struct share shares[HUB_BUFFERS_MAX];
	char lease[LEASE_WANT_BYTES]; /* text of LEASE; "": none */
	uint32_t open_bytes;
	uint8_t open[NATIVE_OPEN_BYTES_MAX];
	uint8_t message[NATIVE_MESSAGE_BYTES_MAX];
};

struct native_target {
	struct carrier_target base;
	char *addresses[URI_HOSTS_MAX]; /* of the servers, for clan_connect() */
	char *socket_path; /* path of the Unix socket, as in struct uri, for messages */
	char *name;	   /* export name */
};

static inline struct native_carrier *native_carrier_of(struct carrier *base)
{
	return container_of(base, struct native_carrier, base);
}

static inline struct native_carrier *native_carrier_of_user(struct hub_user *user)
{
	return container_of(user, struct native_carrier, user);
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
/* Connects to a server of the target and sends our hello. error does not contain its label. */
GMB_MUST_CHECK int native_connect(struct clan_queue *queue, const struct native_target *target,
	uint32_t host, const struct clan_conn_options *options, struct clan_conn **conn_out,
	struct error *error);
/* Members of struct carrier_ops. */
GMB_MUST_CHECK int native_target_create(const char *text, const struct gmb_options *options,
	struct tls_client *tls, struct carrier_target **target_out, struct error *error);
void native_target_destroy(struct carrier_target *base);
/* probe.c */
GMB_MUST_CHECK int native_list(const char *uri, const struct gmb_options *options,
	carrier_found *found, void *context, struct error *error);

/* carrier.c */
void native_carrier_set_state(struct native_carrier *carrier, enum native_carrier_state state);
/* Reports to the client that the connection has failed. The client then ends the connection. */
void native_carrier_fail(struct native_carrier *carrier, int code, const char *text);

/* share.c */
/* Handles CLAN_EVENT_SHARED. */
void native_shared(struct native_carrier *carrier, const struct clan_event *event);
/* Handles CLAN_EVENT_UNSHARED. */
void native_unshared(struct native_carrier *carrier, const struct clan_event *event);
/* Members of struct hub_user_ops. */
enum hub_access native_share(struct hub_user *user, uint32_t number);
bool native_carrier_shares(struct hub_user *user, uint32_t buffer, bool end);
void native_carrier_unshare(struct hub_user *user, uint32_t buffer);

/* send.c */
/* Members of struct carrier_ops. */
void native_add(struct carrier *base, struct command *command);
void native_flush(struct carrier *base);
/* A clan_put_check: permits puts to the memory of reads in flight. context: the carrier's
 * hub_user. */
int native_put_check(void *context, const void *memory, size_t bytes);

/* receive.c */
/* Processes messages from the server, up to a limit that keeps other connections from waiting. */
void native_carrier_take(struct native_carrier *carrier);
/* Processes all messages of a connection that has ended. */
void native_carrier_drain(struct native_carrier *carrier);
