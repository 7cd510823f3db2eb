// SPDX-License-Identifier: Apache-2.0
/*
 * Interface between the parts of the library.
 *
 *   queue.c       the loop: flush ─▶ turn ─▶ callbacks
 *   request.c     gmb_submit: checks requests, splits them into commands, combines the results
 *   client.c      an open export: assigns commands to connections; opening and closing
 *   same.c        whether a new connection leads to the same export
 *   hosts.c       the servers, if the URI names several
 *   grow.c        the number of connections, if the program leaves it to the library
 *   connection.c  one connection over a carrier: start, lose, start again
 *   carrier.h     what a protocol does for a connection
 *
 * A request becomes commands, each at most as long as the server accepts. A command is on the
 * client's replays list, on one connection's carrier, or free. The commands of a lost connection
 * return to replays in their order, and are sent again on the next connection.
 *
 * Threading: the thread of the queue. Ownership: queue ⊃ clients ⊃ connections, commands. Errors:
 * connection.c reports to client.c, which decides; requests get only final errors.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <stdatomic.h>

#include "base/export_uri.h"
#include "base/growth.h"
#include "base/lease.h"
#include "base/lease_watch.h"
#include "base/log.h"
#include "client/carrier.h"
#include "ring/wait.h"

#define CLIENT_RANGE_BYTES_MAX (UINT64_C(2) << 30)

enum {
	CLIENT_RANGE_BYTES_FIRST = 64 << 20,
	CLIENT_RANGE_BYTES_MIN = 1 << 20,
	CLIENT_RANGES_IN_FLIGHT_MAX = 4,
	CLIENT_CONNECTIONS_MAX = 16,
	CLIENT_DEPTH_DEFAULT = 128,
	/* limit for one command, even if the server does not limit it */
	CLIENT_PAYLOAD_MAX = 32 << 20,
	/* attempts to replace a lost connection while others work; later attempts are rare */
	CONNECTION_EXTRA_ATTEMPTS = 3,
	CLIENT_LOST_MAX = CARRIER_REPLACES_MAX,
};

struct gmb_queue {
	struct ring *ring;
	bool owns_ring; /* false: the ring belongs to a server, see guest.h */
	/* Used if owns_ring is set. ring is NULL while the queue is released. */
	uint32_t entries;
	bool may_spin;
	struct ring_waiter waiter;
	struct list_node clients;
	struct queue_part *part;      /* carrier.h */
	const struct ring_lent *lent; /* lend.h; or NULL */
	struct list_node ended;	      /* requests whose result is set but not reported yet */
	uint64_t completed;	      /* number of done() calls */
	/* Number of done() calls made by client_end(), which the next gmb_queue_wait() adds to its
	 * count. */
	uint64_t told_early;
	bool inside; /* a callback is running */
	struct ring_message wake;
	atomic_bool wake_posted;
	atomic_bool woken;
	/* The ring for gmb_queue_wake(), which can be called at any time; NULL while the queue is
	 * released. */
	_Atomic(struct ring *) wake_ring;
	atomic_uint wakers; /* calls of gmb_queue_wake() in progress */
};

/* Stored in gmb_request.private_space. */
struct request_state {
	struct list_node node; /* in client.waiting, client.ranges or queue.ended */
	struct gmb_client *client;
	uint64_t split; /* bytes for which commands were created, sent or not */
	uint32_t parts; /* commands that are not done */
	int32_t failure;
	uint64_t copied; /* COPY: bytes copied before the first failure */
	bool whole;	 /* completely split into commands */
	bool flushing;	 /* the write is done, and the flush that replaces FUA is in progress */
	bool no_done;	 /* a blocking call: done() is not called */
};

enum connection_state {
	CONNECTION_IDLE, /* not connected, and no attempt planned */
	CONNECTION_BACKOFF,
	CONNECTION_STARTING,
	CONNECTION_READY,
	CONNECTION_CLOSING, /* waits for operations in flight */
};

struct connection {
	struct gmb_client *client;
	enum connection_state state;
	uint32_t host; /* the server: the value of client.host when this connection was started */
	struct lease_moment started; /* when this attempt began; only with client.watch */
	bool renews_lease;  /* asks for a lease that the server must know (lease_want.renew) */
	bool returns_lease; /* lost, but with a goodbye, which returns the lease */
	uint32_t number;    /* unique number among the client's connections, current and past */
	uint32_t attempts;  /* attempts since the server last answered a command */
	bool was_ready;
	uint32_t replaces[CLIENT_LOST_MAX]; /* contents of client.lost when this connection was
					       started */
	uint32_t replaces_count;
	/* the server is shutting down, so it gets no new commands (rule P127) */
	bool draining;
	bool leaving;	     /* closed on purpose: no reconnect */
	bool retiring;	     /* gets no new commands, and leaves after its last command */
	struct error reason; /* reason why the connection was lost */

	struct carrier *carrier;
	/* Waiting commands, fast ones [0] and slow ones [1] (is_slow()): their number, and since
	 * when there have been any. */
	uint32_t waiting[2];
	uint64_t waiting_since_ns[2];
	bool is_stopped; /* CLOSING: the carrier has no operation in flight */
	/* timer of the pause before the next attempt, or of the limit for a silent server and the
	 * report about it */
	struct ring_op timer_op;
};

enum client_state {
	CLIENT_OPENING, /* the first connection is being established; failures are final */
	CLIENT_OPEN,
	CLIENT_DEAD,	/* gave up: requests fail */
	CLIENT_CLOSING, /* connections are ending */
};

/* State of grow.c. */
struct grow {
	bool enabled;
	struct growth growth;
	uint64_t since_ns; /* start of the window */
	uint64_t bytes;	   /* payload that was completed in the window */
	uint64_t commands; /* answered in the window */
};

struct gmb_client {
	struct list_node node; /* in queue.clients */
	struct gmb_queue *queue;
	enum client_state state;
	char *uri_text;
	const struct carrier_ops *ops;
	struct carrier_target *target; /* target of the URI */
	uint32_t host;		       /* server for new connections, an index in the target */
	uint32_t home; /* server of the last connection that was usable; facts are from it */
	/* last failure at each server since a connection was usable; NULL if there is only one */
	struct error *host_failures;
	uint32_t hosts_tried; /* BIT(host): an attempt there has failed in this time */
	/* BIT(host): GMB_EVENT_SILENT was reported since a connection was usable */
	uint32_t hosts_silent;
	/* The home does not accept connections, so the other servers are tried even if the client
	 * still has connections to it. */
	bool is_searching;
	struct gmb_options options; /* options with the defaults filled in */
	struct log_limit refusals;  /* rate limit of log lines about rejected requests */
	/* why the client is dead, or why a connection was last lost */
	struct error trouble;
	/* last loss of a connection that was reported to the program */
	struct error told;
	/* result of opening: code 0: open; -EINPROGRESS; otherwise the reason why it cannot be
	 * opened */
	struct error open_error;
	struct carrier_facts facts;
	uint32_t capabilities; /* GMB_CAN_ flags allowed by the facts and the options */
	/* start of the current outage (no connection, or no answer); 0: no outage */
	uint64_t lost_ns;
	/* time since which the client is refused for good, except after a start; 0: it is not */
	uint64_t refused_ns;
	bool ends_if_refused; /* see client_end_if_refused() */

	/* Members for takeover; see docs/design/0006-reconnect.md. */
	char token[40];	      /* 128 secret random bits */
	uint32_t number_next; /* number of the next connection */
	/* lost connections whose commands the server may still execute */
	uint32_t lost[CLIENT_LOST_MAX];
	uint32_t lost_count;
	struct lease_want lease;  /* the lease to hold */
	bool has_lease;		  /* a connection was ready, so the client has had the lease */
	struct lease_watch watch; /* in use with a lease and several servers */
	uint64_t changes;	  /* number of answered commands that changed data */
	/* number of changes that are durable, because a flush that started later was answered */
	uint64_t flushed;

	struct connection *connections[CLIENT_CONNECTIONS_MAX];
	uint32_t connections_wanted;
	uint32_t command_count; /* size of the array commands */
	struct grow grow;

	/* requests that are not completely split into commands, in order */
	struct list_node waiting;
	/* Requests for long ranges that are not completely split, in round-robin order. How much of
	 * a range one command covers depends on the duration of earlier commands, for each
	 * operation separately. */
	struct list_node ranges;
	uint32_t ranges_in_flight; /* commands of the requests in `ranges` */
	bool range_was_last;
	/* size of the commands of a long range, by operation; powers of two */
	uint64_t range_bytes[GMB_COPY + 1];
	struct list_node replays; /* commands without a connection, in order */
	struct list_node free_commands;
	uint8_t *commands; /* array of struct command, each with its space[] */
	uint32_t requests_in_flight;
	uint32_t copies_in_flight; /* requests of other clients that copy from this export */
	uint32_t copying;	   /* requests in flight that copy to this export */

	struct gmb_stats stats;
	/* request whose failure client->explanation describes */
	const struct gmb_request *explained;
	char explanation[CARRIER_TEXT_BYTES_MAX];
};

/* --- queue.c ---------------------------------------------------------------------------------- */

/* One iteration: sends pending commands, waits (limit_ns; 0: does not wait, UINT64_MAX: no limit)
 * and runs callbacks. For blocking calls. */
void queue_round(struct gmb_queue *queue, uint64_t limit_ns);

/* Calls the program's opened() with the result in client->open_error. */
void queue_tell_opened(struct gmb_client *client);

/* Reports a request whose result is set: calls done(). */
void queue_tell(struct gmb_queue *queue, struct gmb_request *request);

/* --- request.c -------------------------------------------------------------------------------- */

struct request_state *request_state(struct gmb_request *request);
/* Returns the request that contains this request_state.node. */
struct gmb_request *request_of(struct list_node *node);
/* Returns whether the request is a TRIM, ZERO, CACHE or COPY that needs several commands, and is
 * therefore in client.ranges. */
bool request_is_range(const struct gmb_client *client, struct gmb_request *request);
/* Fills in the next command of a request. Returns false if the request is now completely split. */
bool request_split(struct gmb_client *client, struct gmb_request *request, struct command *command);
/* Called when a command has ended. text: the server's text, or "". */
void request_command_done(struct gmb_client *client, struct command *command, const char *text);
/* Discards the partial results of a command that will be resent. */
void request_command_again(struct command *command);
/* Checks a request and queues it for a connection. An invalid request ends with an error. */
void request_admit(struct gmb_client *client, struct gmb_request *request);
/* Makes the request end with err as soon as its commands have returned. */
void request_fail(struct gmb_client *client, struct gmb_request *request, int err);

/* --- client.c --------------------------------------------------------------------------------- */

/* Returns the protocol of a URI. For a URI of an unknown scheme, returns the first protocol, which
 * then reports the error. */
const struct carrier_ops *client_find_carrier(const char *uri);
/* Copies the options that the caller knows, fills in defaults, and checks them. */
int client_options_take(
	struct gmb_options *own, const struct gmb_options *options, struct error *error);
/* Assigns commands to connections that have room. */
void client_dispatch(struct gmb_client *client);
/* Called when a connection is ready. Returns 0, or the reason why it must not be used. */
int client_connection_ready(
	struct gmb_client *client, struct connection *connection, struct error *error);
/* Called when the export's size has changed on a usable connection. */
void client_resized(struct gmb_client *client, uint64_t bytes);
/* Called when a command was answered, which shows that the server works. */
void client_progress(struct gmb_client *client, struct connection *connection);
/* Called when commands of a lost connection were sent and not answered: records the connection's
 * number for takeover. */
void client_take_over(struct gmb_client *client, uint32_t number);
/* Called when a connection has ended. Its commands are in client->replays, and connection->reason
 * is set. */
void client_connection_lost(struct gmb_client *client, struct connection *connection);
uint32_t client_ready_count(const struct gmb_client *client);
void client_event(struct gmb_client *client, enum gmb_event event, const char *text);

/* --- same.c ----------------------------------------------------------------------------------- */

/* Returns 0 if a connection may be used beside others, otherwise -EPROTO. */
int client_check_same(
	const struct gmb_client *client, const struct carrier_facts *facts, struct error *error);
/* Returns 0 if the only connection accepts the commands of those before it, otherwise -EPROTO. */
int client_check_able(
	const struct gmb_client *client, const struct carrier_facts *facts, struct error *error);
/* Returns whether acknowledged changes may be lost without an error having been reported. */
bool client_has_forgotten(const struct gmb_client *client, const struct carrier_facts *facts);

/* --- hosts.c ---------------------------------------------------------------------------------- */

/* Returns false if out of memory. */
bool hosts_init(struct gmb_client *client);
/* Returns the address of a server. */
const char *hosts_label(const struct gmb_client *client, uint32_t host);
/* Chooses the server of a new connection, and the limits for the attempt and for connecting. */
void hosts_prepare(const struct gmb_client *client, struct carrier_start *start);
/* Returns whether a connection must renew the lease, so that a server that does not know it refuses
 * the connection. */
bool hosts_renews_lease(const struct gmb_client *client, const struct connection *connection);
/* Called when a connection starts. */
void hosts_start(struct connection *connection);
/* Called at intervals of client->watch.interval_ns while a connection is usable and the client
 * runs. Returns the time of the next call, or UINT64_MAX. Loses all connections if the client was
 * stopped.
 */
uint64_t hosts_watch(struct gmb_client *client, uint64_t now_ns);
/* Called when an outage begins. */
void hosts_doubt(struct gmb_client *client);
/* Called when a connection was lost or has failed: chooses the next server if the client has no
 * other connection, or if its server does not accept new ones. Can lose other connections to the
 * same server. */
void hosts_lost(struct gmb_client *client, const struct connection *connection);
/* Called when the export could not be opened at client->host. Returns whether there is a further
 * server, which is client->host then. */
bool hosts_open_next(struct gmb_client *client);
/* Returns the refusal of a server that has fenced the client's node, if it is final: the server is
 * the only one or the home of an open client, or all others have failed as well. Otherwise NULL. */
const struct error *hosts_fence(const struct gmb_client *client);
/* Returns whether an attempt with this result has not reached a server. */
bool hosts_is_unreachable(int result);
/* Returns whether the URI names several servers, the client has no connection, and each server has
 * refused it for a permanent reason: no such export, another disk, or fewer features. */
bool hosts_refuse(const struct gmb_client *client);
/* Stores why the client has no connection: its exclusion, or the failures of all servers. */
void hosts_explain(const struct gmb_client *client, struct error *error);
/* Stores the URI for messages, with the server in use if there are several. */
void hosts_name(const struct gmb_client *client, char *out, size_t bytes);
/* Returns how often all servers were tried in `attempts` attempts. */
uint32_t hosts_attempts(const struct gmb_client *client, uint32_t attempts);
/* Called when a connection is ready. Returns 0, or the reason why it must not be used: it leads to
 * another disk, or to another server than the others, or its server has accepted the lease too
 * late. Loses the others instead if their server does not accept connections any more. */
int hosts_check(struct gmb_client *client, struct connection *connection,
	const struct carrier_facts *facts, struct error *error);
/* Called when a usable connection was accepted: all others will use its server. */
void hosts_settle(struct gmb_client *client, const struct connection *connection);

/* --- lease.c ---------------------------------------------------------------------------------- */

/* Fills in the lease that the options ask for. secret: random; the name of the client is derived
 * from it if the program does not give one. */
void client_want_lease(struct gmb_client *client, const uint64_t secret[2]);
/* Returns whether the error is the refusal of a server that has fenced the client's node. */
bool client_is_fenced(const struct error *error);
/* Returns why the client is excluded for good, or NULL: its node is fenced, or it has no right to
 * the lease. Another client may use the disk. */
const struct error *client_exclusion(const struct gmb_client *client);

/* --- grow.c ----------------------------------------------------------------------------------- */

/* Lets the library choose the number of connections, if the options do and the server is reached
 * over a network. */
void grow_init(struct gmb_client *client);
/* Counts the payload of a command that succeeded. Only if grow.enabled is set. Can start and close
 * connections. */
void grow_count(struct gmb_client *client, const struct command *command);

/* --- connection.c ----------------------------------------------------------------------------- */

int connection_create(struct gmb_client *client, struct connection **connection_out);
/* Frees the connection, which must be idle. */
void connection_destroy(struct connection *connection);
/* Connects now, or after a delay. */
void connection_start(struct connection *connection, uint64_t delay_ns);
/* Returns the name with which the connection was started. */
void connection_name(const struct connection *connection, char out[CARRIER_TOKEN_BYTES_MAX]);
/* Sends the commands given to its carrier, and starts the timer that detects a silent server. */
void connection_flush(struct connection *connection);
/* Ends the connection because of an error; the client decides when it reconnects. */
void connection_lose(struct connection *connection, const struct error *error);
/* Ends the connection, with a goodbye if it is ready. It becomes idle immediately or some
 * iterations of the loop later, and does not reconnect. */
void connection_leave(struct connection *connection);
/* Closes a connection when its commands have been answered. It does not reconnect, except to
 * replace a lost connection, which can be itself. */
void connection_retire(struct connection *connection);
bool connection_has_room(const struct connection *connection);
/* Adds a command; there must be room. */
void connection_add(struct connection *connection, struct command *command);
