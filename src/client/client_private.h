// SPDX-License-Identifier: Apache-2.0
/*
 * What the parts of the library share.
 *
 *   queue.c       the loop: flush ─▶ turn ─▶ callbacks
 *   request.c     gmb_submit: checks, splits in commands, puts the results together
 *   client.c      an open export: which connection takes which command; life and death
 *   connection.c  one connection over a carrier: start, lose, start again
 *   carrier.h     what a protocol does for a connection
 *
 * A request becomes commands, each at most as long as the server takes. A command is on the
 * client's replays list, or on one connection's carrier, or free. When a connection is lost its
 * commands go back to replays, in their order, and out again on the next connection.
 *
 * Threading: the thread of the queue. Ownership: queue ⊃ clients ⊃ connections, commands. Errors:
 * connection.c tells client.c, which decides; requests hear only of what is final.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdatomic.h>

#include "base/log.h"
#include "client/carrier.h"

#define CLIENT_RANGE_BYTES_MAX (UINT64_C(2) << 30)

enum {
	CLIENT_RANGE_BYTES_FIRST = 64 << 20,
	CLIENT_RANGE_BYTES_MIN = 1 << 20,
	CLIENT_RANGES_IN_FLIGHT_MAX = 4,
	CLIENT_CONNECTIONS_MAX = 16,
	CLIENT_DEPTH_DEFAULT = 128,
	CLIENT_PAYLOAD_MAX = 32 << 20, /* one command, also where the server has no limit */
	CONNECTION_EXTRA_ATTEMPTS = 3, /* beside one that works: after these they are rare */
	CLIENT_LOST_MAX = CARRIER_REPLACES_MAX,
};

struct gmb_queue {
	struct ring *ring;
	bool owns_ring; /* else: guest.h */
	struct list_node clients;
	struct queue_part *part; /* carrier.h */
	struct list_node ended;	 /* requests whose result is known and not told */
	uint64_t completed;	 /* done was called */
	uint64_t told_early;	 /* of them, by client_end(): for the next gmb_queue_wait() */
	bool inside;		 /* a callback is running */
	struct ring_message wake;
	atomic_bool wake_posted;
	bool woken;
};

/* In gmb_request.private_space. */
struct request_state {
	struct list_node node; /* client.waiting, or queue.ended */
	struct gmb_client *client;
	uint64_t split; /* bytes that are in commands, sent or not */
	uint32_t parts; /* commands that are not done */
	int32_t failure;
	uint64_t copied; /* COPY: below it nothing has failed */
	bool whole;	 /* nothing more to split */
	bool flushing;	 /* the flush that stands in for FUA */
	bool no_done;	 /* a blocking call */
};

enum connection_state {
	CONNECTION_IDLE, /* nothing there and nothing planned */
	CONNECTION_BACKOFF,
	CONNECTION_STARTING,
	CONNECTION_READY,
	CONNECTION_CLOSING, /* waits for what is in flight */
};

struct connection {
	struct gmb_client *client;
	enum connection_state state;
	uint32_t number;   /* which of the client's connections, ever */
	uint32_t attempts; /* since the server last answered a command */
	bool was_ready;
	uint32_t replaces[CLIENT_LOST_MAX]; /* what was in client.lost when it introduced itself */
	uint32_t replaces_count;
	bool draining;	     /* the server is shutting down: no new commands (rule P127) */
	bool leaving;	     /* closed on purpose: no reconnect */
	struct error reason; /* why it was lost */

	struct carrier *carrier;
	/* Commands that wait for the server, by is_slow(): how many, and since when there are any.
	 */
	uint32_t waiting[2];
	uint64_t waiting_since_ns[2];
	bool is_stopped;	 /* CLOSING: the carrier has nothing in flight */
	struct ring_op timer_op; /* back-off, or silence limit */
};

enum client_state {
	CLIENT_OPENING, /* the first connection is being made: failures are final */
	CLIENT_OPEN,
	CLIENT_DEAD,	/* gave up: requests fail */
	CLIENT_CLOSING, /* connections end */
};

struct gmb_client {
	struct list_node node; /* queue.clients */
	struct gmb_queue *queue;
	enum client_state state;
	char *uri_text;
	const struct carrier_ops *ops;
	struct carrier_target *target;	     /* what the URI names */
	char label[CARRIER_LABEL_BYTES_MAX]; /* the server's address */
	struct gmb_options options;	     /* defaults filled in */
	struct log_limit refusals;	     /* of requests, by the server */
	struct error trouble;		     /* why it is dead, or what was lost last */
	struct error told;		     /* what was said last about a lost connection */
	struct error open_error; /* code: 0 open, -EINPROGRESS, or why it cannot be opened */
	struct carrier_facts facts;
	uint32_t capabilities; /* GMB_CAN_, by the facts and the options */
	uint64_t lost_ns; /* since when there is trouble: no connection, or no answer; 0 = none */

	/* docs/design/0006-reconnect.md */
	char token[40];			/* 128 random bits that nobody else knows */
	uint32_t number_next;		/* of connections */
	uint32_t lost[CLIENT_LOST_MAX]; /* lost connections that may still carry out commands */
	uint32_t lost_count;
	uint64_t changes; /* commands answered that changed something and not durably */
	uint64_t flushed; /* how many of them a flush has made durable */

	struct connection *connections[CLIENT_CONNECTIONS_MAX];
	uint32_t connections_wanted;

	struct list_node waiting; /* requests that are not wholly split, in order */
	/* Likewise, but of long ranges, in turn. How much one command takes of a range follows from
	 * how long they took, for each operation. */
	struct list_node ranges;
	uint32_t ranges_in_flight; /* commands */
	bool range_was_last;
	uint64_t range_bytes[GMB_COPY + 1]; /* powers of two */
	struct list_node replays;	    /* commands without a connection, in order */
	struct list_node free_commands;
	uint8_t *commands; /* each with the carrier's space behind it */
	uint32_t requests_in_flight;
	uint32_t copies_in_flight; /* requests of others that copy from here */
	uint32_t copying;	   /* requests in flight that copy to here */

	struct gmb_stats stats;
	const struct gmb_request *explained; /* whose failure the text is about */
	char explanation[CARRIER_TEXT_BYTES_MAX];
};

/* --- queue.c ---------------------------------------------------------------------------------- */

/* One round: sends what there is, waits (limit_ns; 0 = no, UINT64_MAX = no limit), runs callbacks.
 * For blocking calls. */
void queue_round(struct gmb_queue *queue, uint64_t limit_ns);

/* Calls opened; the result is in open_error. */
void queue_tell_opened(struct gmb_client *client);

/* Calls done of a request whose result is set. */
void queue_tell(struct gmb_queue *queue, struct gmb_request *request);

/* --- request.c -------------------------------------------------------------------------------- */

struct request_state *request_state(struct gmb_request *request);
/* The request whose request_state.node this is. */
struct gmb_request *request_of(struct list_node *node);
/* TRIM, ZERO or CACHE of more than one command should take: for client.ranges. */
bool request_is_range(const struct gmb_client *client, struct gmb_request *request);
/* The next command of a request, filled in a free one; false when it is wholly split. */
bool request_split(struct gmb_client *client, struct gmb_request *request, struct command *command);
/* A command has ended. text: what the server said, or "". */
void request_command_done(struct gmb_client *client, struct command *command, const char *text);
/* What a command that will be sent again had collected does not count. */
void request_command_again(struct command *command);
/* Checks a request and lets it wait for a connection; a wrong one ends. */
void request_admit(struct gmb_client *client, struct gmb_request *request);
/* The request ends with err as soon as its commands are back. */
void request_fail(struct gmb_client *client, struct gmb_request *request, int err);

/* --- client.c --------------------------------------------------------------------------------- */

/* Hands commands to connections, as far as they have room. */
void client_dispatch(struct gmb_client *client);
/* A connection is usable; returns 0, or why it must not be used. */
int client_connection_ready(
	struct gmb_client *client, struct connection *connection, struct error *error);
/* The export has another size while a connection is usable. */
void client_resized(struct gmb_client *client, uint64_t bytes);
/* A command was answered: the server works. */
void client_progress(struct gmb_client *client, struct connection *connection);
/* Commands of the connection were sent and not answered. */
void client_take_over(struct gmb_client *client, uint32_t number);
/* A connection is gone, its commands are on replays; reason is in it. */
void client_connection_lost(struct gmb_client *client, struct connection *connection);
/* The time limit of a lost client may have come. */
void client_check_deadline(struct gmb_client *client);
uint32_t client_ready_count(const struct gmb_client *client);
void client_event(struct gmb_client *client, enum gmb_event event, const char *text);

/* --- connection.c ----------------------------------------------------------------------------- */

int connection_create(struct gmb_client *client, struct connection **connection_out);
/* Must be idle. */
void connection_destroy(struct connection *connection);
/* Connects now, or after a delay. */
void connection_start(struct connection *connection, uint64_t delay_ns);
/* The name by which it has introduced itself. */
void connection_name(const struct connection *connection, char out[CARRIER_TOKEN_BYTES_MAX]);
/* Sends what its carrier has, and watches over its silence. */
void connection_flush(struct connection *connection);
/* Ends it because of an error; it is dialed again as the client decides. */
void connection_lose(struct connection *connection, const struct error *error);
/* Ends it, politely if it is ready; it is idle some turns later and does not come back. */
void connection_leave(struct connection *connection);
bool connection_has_room(const struct connection *connection);
/* Gives it a command; there must be room. */
void connection_add(struct connection *connection, struct command *command);
