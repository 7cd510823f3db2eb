// SPDX-License-Identifier: Apache-2.0
/*
 * One connection of a client over a carrier, from its first attempt to its end:
 *
 *   IDLE ─▶ (BACKOFF) ─▶ STARTING ─▶ READY ─▶ CLOSING ─▶ IDLE, or BACKOFF again
 *
 * At the end of CLOSING the commands of the connection are returned to the client. client.c calls
 * the connection_ functions here, and a carrier reports its events to the carrier_ functions.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "client/client_private.h"

#define NS_PER_MS UINT64_C(1000000)
#define SILENT_NS (EXPORT_URI_SILENT_MS * NS_PER_MS)

enum {
	/* Signs of life are requested at intervals of request_timeout / ALIVE_SHARE. The server
	 * sends one when it was silent for one to two intervals, so a sign can be three
	 * intervals late before request_timeout ends the connection. */
	ALIVE_SHARE = 5,
	ALIVE_MS_MIN = 10, /* servers need not support shorter intervals */
};

static const uint32_t connection_edges[] = {
	[CONNECTION_IDLE] = BIT(CONNECTION_BACKOFF) | BIT(CONNECTION_STARTING),
	[CONNECTION_BACKOFF] = BIT(CONNECTION_STARTING) | BIT(CONNECTION_CLOSING),
	[CONNECTION_STARTING] = BIT(CONNECTION_READY) | BIT(CONNECTION_CLOSING),
	[CONNECTION_READY] = BIT(CONNECTION_CLOSING),
	[CONNECTION_CLOSING] = BIT(CONNECTION_IDLE),
};

static void connection_set_state(struct connection *connection, enum connection_state state)
{
	GMB_ASSERT((connection_edges[connection->state] & BIT(state)) != 0);
	connection->state = state;
}

int connection_create(struct gmb_client *client, struct connection **connection_out)
{
	struct connection *connection = calloc(1, sizeof(*connection));

	if (connection == NULL) {
		return -ENOMEM;
	}
	connection->client = client;
	connection->carrier = client->ops->create(client->target);
	if (connection->carrier == NULL) {
		free(connection);
		return -ENOMEM;
	}
	connection->carrier->ops = client->ops;
	connection->carrier->connection = connection;
	connection->carrier->queue = client->queue;
	connection->carrier->ring = client->queue->ring;
	*connection_out = connection;
	return 0;
}

void connection_destroy(struct connection *connection)
{
	if (connection != NULL) {
		GMB_ASSERT(connection->state == CONNECTION_IDLE);
		connection->carrier->ops->destroy(connection->carrier);
		free(connection);
	}
}

bool connection_has_room(const struct connection *connection)
{
	return connection->state == CONNECTION_READY && !connection->draining &&
	       !connection->retiring &&
	       connection->carrier->command_count < connection->client->options.depth;
}

/* Returns whether a server may execute the command as a whole without any reply, so that it may
 * take longer than other commands. */
static bool is_slow(const struct command *command)
{
	switch ((enum gmb_operation)command->operation) {
	case GMB_READ:
	case GMB_STATUS:
		return false;
	case GMB_WRITE:
		return (command->flags & GMB_FUA) != 0;
	case GMB_FLUSH:
	case GMB_TRIM:
	case GMB_ZERO:
	case GMB_CACHE:
	case GMB_COPY:
		break;
	}
	return true;
}

/* Adds a command. Fast and slow commands have separate time limits, each of which starts when the
 * first command of its kind waits. */
void connection_add(struct connection *connection, struct command *command)
{
	struct carrier *carrier = connection->carrier;
	bool slow = is_slow(command);

	if (connection->waiting[slow]++ == 0) {
		connection->waiting_since_ns[slow] = ring_now_ns(carrier->ring);
	}
	carrier->ops->add(carrier, command);
	connection->client->stats.commands++;
}

/* --- the end ------------------------------------------------------------------------------- */

/* Returns unanswered commands to the client, which puts them before those that already wait. */
static void give_back_commands(struct connection *connection)
{
	struct gmb_client *client = connection->client;
	struct carrier *carrier = connection->carrier;
	struct list_node *before = client->replays.next;
	struct command *command;
	bool was_sent;
	bool unanswered = false;

	while ((command = carrier->ops->take_back(carrier, &was_sent)) != NULL) {
		request_command_again(command);
		client->stats.commands_replayed += was_sent;
		unanswered |= was_sent;
		list_insert_before(before, &command->node);
	}
	if (unanswered) {
		client_take_over(client, connection->number);
	}
	connection->waiting[false] = 0;
	connection->waiting[true] = 0;
	client->stats.bytes_moved += carrier->moved_bytes;
	carrier->moved_bytes = 0;
}

/* Ends the state CLOSING if no operation is in flight. */
static void connection_closing_step(struct connection *connection)
{
	if (!connection->is_stopped || connection->timer_op.in_flight) {
		return;
	}
	give_back_commands(connection);
	connection->draining = false;
	connection_set_state(connection, CONNECTION_IDLE);
	if (!connection->leaving) {
		client_connection_lost(connection->client, connection);
	}
	connection->leaving = false;
}

void carrier_stopped(struct carrier *carrier)
{
	struct connection *connection = carrier->connection;

	GMB_ASSERT(connection->state == CONNECTION_CLOSING);
	connection->is_stopped = true;
	connection_closing_step(connection);
}

/* Starts to end the connection. connection->reason is set. */
static void begin_closing(struct connection *connection)
{
	struct carrier *carrier = connection->carrier;

	if (connection->state == CONNECTION_CLOSING || connection->state == CONNECTION_IDLE) {
		return;
	}
	if (!connection->leaving) {
		log_debug("client: connection %u: lost: %s", connection->number,
			connection->reason.text);
	}
	connection_set_state(connection, CONNECTION_CLOSING);
	/* Set before leave() or lose(), because these may call carrier_stopped(). */
	connection->is_stopped = false;
	ring_cancel(carrier->ring, &connection->timer_op);
	if (connection->leaving || connection->returns_lease) {
		carrier->ops->leave(carrier);
	} else {
		carrier->ops->lose(carrier);
	}
}

void carrier_failed(struct carrier *carrier, const struct error *error)
{
	if (carrier->connection->state != CONNECTION_CLOSING) {
		carrier->connection->reason = *error;
		begin_closing(carrier->connection);
	}
}

void connection_lose(struct connection *connection, const struct error *error)
{
	struct error reason = *error;

	error_prefix(&reason, "%s", hosts_label(connection->client, connection->host));
	carrier_failed(connection->carrier, &reason);
}

static void client_connection_lose(struct connection *connection, int err, const char *why)
{
	struct error error;

	error_set(&error, err, "%s", why);
	connection_lose(connection, &error);
}

/* --- time limits --------------------------------------------------------------------------- */

static void connection_timer_done(struct ring_op *op, int result);

static void timer_set(struct connection *connection, uint64_t delay_ns)
{
	ring_timer(
		connection->carrier->ring, &connection->timer_op, delay_ns, connection_timer_done);
}

/*
 * Computes until when the server must send anything (*silent_ns), and until when it must answer a
 * command (*unanswered_ns). A server that sends signs of life must send something every
 * request_timeout. Other servers may be silent while they execute slow commands, so slow_timeout
 * applies to these commands. The time of an answer depends on the server's disk, so it is always
 * limited by slow_timeout.
 */
static void find_deadlines(
	const struct connection *connection, uint64_t *silent_ns, uint64_t *unanswered_ns)
{
	const struct gmb_options *options = &connection->client->options;
	const struct carrier *carrier = connection->carrier;
	uint64_t request_ns = options->request_timeout_ms * NS_PER_MS;
	uint64_t slow_ns = options->slow_timeout_ms * NS_PER_MS;

	*silent_ns = UINT64_MAX;
	*unanswered_ns = UINT64_MAX;
	for (int slow = 0; slow < 2; slow++) {
		uint64_t since_ns = connection->waiting_since_ns[slow];
		uint64_t heard_ns = MAX(carrier->heard_ns, since_ns);
		uint64_t answered_ns = MAX(carrier->answered_ns, since_ns);
		bool patient = slow && !carrier->facts.says_alive;

		if (connection->waiting[slow] > 0) {
			*silent_ns = MIN(*silent_ns, heard_ns + (patient ? slow_ns : request_ns));
			*unanswered_ns = MIN(*unanswered_ns, answered_ns + slow_ns);
		}
	}
}

/* Returns whether a silent server is still to be reported to the program. */
static bool reports_silence(const struct connection *connection)
{
	const struct gmb_client *client = connection->client;

	return client->options.event != NULL && (client->hosts_silent & BIT(connection->host)) == 0;
}

static void report_silence(struct connection *connection, uint32_t limit_ms)
{
	struct gmb_client *client = connection->client;
	char text[EXPORT_URI_SILENT_BYTES];

	client->hosts_silent |= BIT(connection->host);
	client_event(client, GMB_EVENT_SILENT,
		export_uri_silent(text, hosts_label(client, connection->host), limit_ms));
}

/* Returns the longest time between two checks of a server that has commands to answer. */
static uint64_t check_interval_ns(const struct connection *connection)
{
	uint64_t request_ns = connection->client->options.request_timeout_ms * NS_PER_MS;

	return reports_silence(connection) ? MIN(request_ns, SILENT_NS) : request_ns;
}

/* Returns when the silence of the server is to be reported, or UINT64_MAX. The server may be silent
 * while it executes slow commands. */
static uint64_t find_report(const struct connection *connection)
{
	const struct carrier *carrier = connection->carrier;

	return connection->waiting[false] > 0 && reports_silence(connection)
		       ? MAX(carrier->heard_ns, connection->waiting_since_ns[false]) + SILENT_NS
		       : UINT64_MAX;
}

/* Looks at the connection when its timer has fired, and sets the timer again. */
static void ready_check(struct connection *connection)
{
	uint64_t now_ns = ring_now_ns(connection->carrier->ring);
	uint64_t next_ns = hosts_watch(connection->client, now_ns);
	uint64_t report_ns = UINT64_MAX;
	uint64_t silent_ns = UINT64_MAX;
	uint64_t unanswered_ns = UINT64_MAX;

	if (connection->state != CONNECTION_READY) {
		return; /* lost by hosts_watch() */
	}
	if (connection->carrier->command_count > 0) {
		find_deadlines(connection, &silent_ns, &unanswered_ns);
		report_ns = find_report(connection);
		/* A command that is sent before the timer fires can have an earlier deadline, or
		 * be reported earlier, but at least the interval from now. So the timer is not set
		 * to more than that. */
		next_ns = MIN(next_ns, now_ns + check_interval_ns(connection));
	}
	if (now_ns >= silent_ns) {
		client_connection_lose(
			connection, -ETIMEDOUT, "the server did not respond in time");
	} else if (now_ns >= unanswered_ns) {
		client_connection_lose(connection, -ETIMEDOUT,
			"the server is alive, but did not complete any request in time");
	} else {
		if (now_ns >= report_ns) {
			report_silence(connection, connection->client->options.request_timeout_ms);
			report_ns = UINT64_MAX;
		}
		next_ns = MIN(next_ns, report_ns);
		next_ns = MIN(next_ns, silent_ns);
		next_ns = MIN(next_ns, unanswered_ns);
		if (next_ns != UINT64_MAX) { /* otherwise set when commands are sent */
			timer_set(connection, next_ns - now_ns);
		}
	}
}

/* Reports a server that does not complete a handshake, unless the client has other connections: it
 * may delay further ones until another client disconnects. */
static void start_check(struct connection *connection)
{
	if (client_ready_count(connection->client) == 0 && reports_silence(connection)) {
		report_silence(connection, connection->client->options.connect_timeout_ms);
	}
}

static void client_connection_start(struct connection *connection);

static void connection_timer_done(struct ring_op *op, int result)
{
	struct connection *connection = container_of(op, struct connection, timer_op);

	switch (connection->state) {
	case CONNECTION_CLOSING:
		connection_closing_step(connection);
		break;
	case CONNECTION_BACKOFF:
		client_connection_start(connection);
		break;
	case CONNECTION_READY:
		ready_check(connection);
		break;
	case CONNECTION_STARTING:
		start_check(connection);
		break;
	case CONNECTION_IDLE:
		break;
	}
}

/* --- commands ------------------------------------------------------------------------------ */

void connection_flush(struct connection *connection)
{
	struct carrier *carrier = connection->carrier;
	uint64_t watch_ns = connection->client->watch.interval_ns;

	if (connection->state != CONNECTION_READY) {
		return;
	}
	if ((carrier->command_count > 0 || watch_ns != 0) && !connection->timer_op.in_flight) {
		uint64_t check_ns = check_interval_ns(connection);

		timer_set(connection, watch_ns != 0 ? MIN(watch_ns, check_ns) : check_ns);
	}
	carrier->ops->flush(carrier);
	/* The end of draining is checked here, because the last answer may arrive before its
	 * request was completely sent. */
	if (connection->draining && carrier->command_count == 0) {
		client_connection_lose(connection, -ESHUTDOWN, "the server is shutting down");
	} else if (connection->retiring && carrier->command_count == 0) {
		connection_leave(connection);
	}
}

void carrier_done(struct carrier *carrier, struct command *command, const char *text)
{
	struct connection *connection = carrier->connection;
	struct gmb_client *client = connection->client;

	connection->waiting[is_slow(command)]--;
	if (command->result == -ESHUTDOWN && client->state == CLIENT_OPEN &&
		(client->options.flags & GMB_OPEN_NO_RECONNECT) == 0) {
		/* The server is shutting down. The command is sent again after a reconnect, to this
		 * server or another one (rule P127). */
		connection->draining = true;
		request_command_again(command);
		list_push_back(&client->replays, &command->node);
		return;
	}
	client_progress(client, connection);
	if (client->grow.enabled && command->result == 0) {
		grow_count(client, command);
	}
	if (command->result != 0) {
		log_limited(&client->refusals, ring_batch_ns(carrier->ring), LOG_LEVEL_DEBUG,
			"client: connection %u: the server rejected a request: operation %u, "
			"offset %llu, length %llu: %s%s%s",
			connection->number, command->operation, (unsigned long long)command->offset,
			(unsigned long long)command->length, strerror(-command->result),
			text[0] != '\0' ? ": " : "", text);
	}
	request_command_done(client, command, text);
}

void carrier_resized(struct carrier *carrier)
{
	client_resized(carrier->connection->client, carrier->facts.bytes);
}

/* --- start ------------------------------------------------------------------------------------ */

static void connection_log_ready(
	const struct connection *connection, const struct carrier_facts *facts)
{
	static const char *const replies[] = { "simple", "structured", "extended", "placed" };

	if (log_enabled(LOG_LEVEL_DEBUG)) {
		log_debug("client: connection %u: %s, export \"%s\": %s replies, %s, %llu bytes, "
			  "minimum block %u bytes, preferred %u, largest payload %u%s%s%s",
			connection->number, hosts_label(connection->client, connection->host),
			quote(facts->name), replies[facts->replies],
			(facts->capabilities & GMB_CAN_WRITE) != 0 ? "read and write" : "read only",
			(unsigned long long)facts->bytes, facts->block_minimum,
			facts->block_preferred, facts->payload_max,
			(facts->capabilities & GMB_CAN_STATUS) != 0 ? ", allocation" : "",
			facts->can_take_over ? ", takeover" : "",
			facts->says_alive ? ", alive" : "");
	}
}

void carrier_ready(struct carrier *carrier)
{
	struct connection *connection = carrier->connection;
	struct error error = { 0 };

	connection_set_state(connection, CONNECTION_READY);
	connection->was_ready = true;
	ring_cancel(carrier->ring, &connection->timer_op); /* see start_check() */
	connection_log_ready(connection, &carrier->facts);
	if (client_connection_ready(connection->client, connection, &error) != 0) {
		connection_lose(connection, &error);
	}
}

static void name_of(
	const struct gmb_client *client, uint32_t number, char out[CARRIER_TOKEN_BYTES_MAX])
{
	snprintf(out, CARRIER_TOKEN_BYTES_MAX, "%s.%u", client->token, number);
}

void connection_name(const struct connection *connection, char out[CARRIER_TOKEN_BYTES_MAX])
{
	name_of(connection->client, connection->number, out);
}

/* Starts the connection with its own name and the names of the connections that it replaces. */
static void client_connection_start(struct connection *connection)
{
	struct gmb_client *client = connection->client;
	char names[1 + CLIENT_LOST_MAX][CARRIER_TOKEN_BYTES_MAX];
	const char *replaces[CLIENT_LOST_MAX];
	struct carrier_start options = {
		.open_flags = client->options.flags,
		.token = names[0],
		.replaces = replaces,
		.replaces_count = client->lost_count,
		.alive_ms = client->options.request_timeout_ms / ALIVE_SHARE,
	};
	struct lease_want lease = client->lease;
	char lease_text[LEASE_WANT_BYTES];

	hosts_prepare(client, &options);
	connection->host = options.host;
	hosts_start(connection);
	if (lease.mode != LEASE_NONE) {
		/* Once the client has had the lease, the server must not give it a new one: another
		 * client may have changed the disk in the meantime. */
		lease.renew = hosts_renews_lease(client, connection);
		lease.moves = client->has_lease && !lease.renew;
		options.lease = lease_want_format(lease_text, &lease);
	}
	connection->renews_lease = lease.renew;
	connection->returns_lease = false;

	if (options.alive_ms < ALIVE_MS_MIN) {
		options.alive_ms = 0; /* the timeout is too short for signs of life */
	}
	connection->number = client->number_next++;
	connection_name(connection, names[0]);
	connection->replaces_count = client->lost_count;
	for (uint32_t i = 0; i < client->lost_count; i++) {
		connection->replaces[i] = client->lost[i];
		name_of(client, client->lost[i], names[1 + i]);
		replaces[i] = names[1 + i];
	}
	connection_set_state(connection, CONNECTION_STARTING);
	if (reports_silence(connection) && options.timeout_ns > SILENT_NS) {
		timer_set(connection, SILENT_NS);
	}
	connection->carrier->ops->start(connection->carrier, &options);
}

void connection_start(struct connection *connection, uint64_t delay_ns)
{
	GMB_ASSERT(connection->state == CONNECTION_IDLE);
	connection->leaving = false;
	if (delay_ns == 0) {
		client_connection_start(connection);
	} else {
		connection_set_state(connection, CONNECTION_BACKOFF);
		timer_set(connection, delay_ns);
	}
}

void connection_retire(struct connection *connection)
{
	bool is_starting =
		connection->state == CONNECTION_BACKOFF || connection->state == CONNECTION_STARTING;

	connection->retiring = true; /* connection_flush() closes it */
	if (is_starting && connection->client->lost_count == 0) {
		connection_leave(connection);
	}
}

void connection_leave(struct connection *connection)
{
	if (connection->state != CONNECTION_IDLE) {
		connection->leaving = true;
		connection->was_ready = false;
		begin_closing(connection);
	}
}
