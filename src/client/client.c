// SPDX-License-Identifier: Apache-2.0
#include "client/client_private.h"
#include "client/guest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)

enum {
	CONNECT_TIMEOUT_MS = 10000,
	REQUEST_TIMEOUT_MS = 30000,
	SLOW_TIMEOUT_MS = 600000,
	REFUSAL_PATIENCE_MS = 5000,
	RECONNECT_TIMEOUT_MS = 120000,
	BACKOFF_MS_MIN = 20,
	BACKOFF_MS_MAX = 1000,
	/* pause after a refusal: this part of the outage, within the limit */
	REFUSED_SHARE = 8,
	REFUSED_MS_MAX = 10000,
	LEASE_ATTEMPTS = 4, /* at least, within the time of a lease */
	EXTRA_PAUSE_MS = 30000,
	CONNECTIONS_CHOSEN_MAX = 4,
	OTHERS_PATIENCE_MS = 2000,
};

uint32_t client_ready_count(const struct gmb_client *client)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		const struct connection *connection = client->connections[i];

		count += connection != NULL && connection->state == CONNECTION_READY;
	}
	return count;
}

/* Returns the capabilities that both the server and the options allow. */
static uint32_t find_capabilities(const struct gmb_client *client)
{
	uint32_t can = client->facts.capabilities;

	if ((can & GMB_CAN_WRITE) == 0 || (client->options.flags & GMB_OPEN_READ_ONLY) != 0) {
		can &= ~(uint32_t)(GMB_CAN_WRITE | GMB_CAN_TRIM | GMB_CAN_ZERO | GMB_CAN_FAST_ZERO);
	}
	return can;
}

/* Calls the program's event callback. Blocking calls are rejected inside it. */
void client_event(struct gmb_client *client, enum gmb_event event, const char *text)
{
	if (client->options.event != NULL) {
		bool inside = client->queue->inside;

		client->queue->inside = true;
		client->options.event(client->options.context, event, text);
		client->queue->inside = inside;
	}
}

/* --- assignment of commands to connections ---------------------------------------------------- */

/* Returns the connection with room that has the fewest commands, or NULL. */
static struct connection *connection_with_room(struct gmb_client *client)
{
	struct connection *best = NULL;

	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && connection_has_room(connection) &&
			(best == NULL || connection->carrier->command_count <
						 best->carrier->command_count)) {
			best = connection;
		}
	}
	return best;
}

/* Returns the list whose first request is next, or NULL if both are empty. Long ranges and other
 * requests alternate, so that no list has to wait until the other is empty. */
static struct list_node *next_list(struct gmb_client *client)
{
	bool range = !list_is_empty(&client->ranges) &&
		     client->ranges_in_flight < CLIENT_RANGES_IN_FLIGHT_MAX;

	client->range_was_last =
		range && (list_is_empty(&client->waiting) || !client->range_was_last);
	return client->range_was_last		 ? &client->ranges
	       : list_is_empty(&client->waiting) ? NULL
						 : &client->waiting;
}

/* Assigns the next command of the list's first request to a connection. A range moves to the end of
 * its list after each command, so that several ranges progress together. Any other request stays in
 * front until it is completely split. */
static void dispatch_next(
	struct gmb_client *client, struct connection *connection, struct list_node *list)
{
	struct gmb_request *request = request_of(list_pop_front(list));
	struct command *command;
	bool more;

	if (list == &client->waiting && request_is_range(client, request)) {
		list_push_back(&client->ranges, &request_state(request)->node);
		return;
	}
	command = list_entry(list_pop_front(&client->free_commands), struct command, node);
	more = request_split(client, request, command);
	command->begun_ns = list == &client->ranges ? ring_now_ns(client->queue->ring) : 0;
	client->ranges_in_flight += list == &client->ranges;
	if (more && list == &client->ranges) {
		list_push_back(list, &request_state(request)->node);
	} else if (more) {
		list_push_front(list, &request_state(request)->node);
	}
	connection_add(connection, command);
}

static void dispatch_waiting(struct gmb_client *client)
{
	while (!(list_is_empty(&client->waiting) && list_is_empty(&client->ranges)) &&
		!list_is_empty(&client->free_commands)) {
		struct connection *connection = connection_with_room(client);
		struct list_node *list = connection != NULL ? next_list(client) : NULL;

		if (list == NULL) {
			return;
		}
		dispatch_next(client, connection, list);
	}
}

void client_dispatch(struct gmb_client *client)
{
	if (client->state != CLIENT_OPEN && client->state != CLIENT_CLOSING) {
		return;
	}
	/* A lost connection's commands may still be executed, so they must not be resent yet. */
	while (client->lost_count == 0 && !list_is_empty(&client->replays)) {
		struct connection *connection = connection_with_room(client);
		struct command *command;

		if (connection == NULL) {
			return;
		}
		command = list_entry(list_pop_front(&client->replays), struct command, node);
		connection_add(connection, command);
	}
	dispatch_waiting(client);
}

/* --- start and loss of connections ------------------------------------------------------------ */

static void fail_replays(struct gmb_client *client, int err)
{
	while (!list_is_empty(&client->replays)) {
		struct command *command =
			list_entry(list_pop_front(&client->replays), struct command, node);

		command->result = err;
		request_command_done(client, command, "");
	}
}

static void fail_all(struct gmb_client *client, int err)
{
	fail_replays(client, err);
	while (!list_is_empty(&client->waiting)) {
		request_fail(client, request_of(list_first(&client->waiting)), err);
	}
	while (!list_is_empty(&client->ranges)) {
		request_fail(client, request_of(list_first(&client->ranges)), err);
	}
}

static const uint32_t client_edges[] = {
	[CLIENT_OPENING] = BIT(CLIENT_OPEN) | BIT(CLIENT_DEAD) | BIT(CLIENT_CLOSING),
	[CLIENT_OPEN] = BIT(CLIENT_DEAD) | BIT(CLIENT_CLOSING),
	[CLIENT_DEAD] = BIT(CLIENT_CLOSING),
	[CLIENT_CLOSING] = 0,
};

static void set_state(struct gmb_client *client, enum client_state state)
{
	GMB_ASSERT((client_edges[client->state] & BIT(state)) != 0);
	client->state = state;
}

/* Called when the first connection is ready: reports that the export is open, and checks the
 * requests that were submitted before. */
static void open_succeeded(struct gmb_client *client)
{
	struct list_node early;

	client->open_error = (struct error){ 0 };
	queue_tell_opened(client);
	list_init(&early);
	while (!list_is_empty(&client->waiting)) {
		list_push_back(&early, list_pop_front(&client->waiting));
	}
	while (!list_is_empty(&early)) {
		request_admit(client, request_of(list_pop_front(&early)));
	}
}

/* Reports that the export cannot be opened. client->trouble has the reason. */
static void open_failed(struct gmb_client *client)
{
	set_state(client, CLIENT_DEAD);
	client->open_error = client->trouble;
	queue_tell_opened(client);
	fail_all(client, -ENOTCONN);
}

static void client_give_up(struct gmb_client *client)
{
	set_state(client, CLIENT_DEAD);
	client_event(client, GMB_EVENT_GAVE_UP, client->trouble.text);
	fail_all(client, -ENOTCONN);
}

/* Gives up because acknowledged changes may be lost. Returns the error. */
static int give_up_forgotten(
	struct gmb_client *client, const struct connection *connection, struct error *error)
{
	const struct carrier_facts *facts = &connection->carrier->facts;

	if (facts->is_volatile || client->facts.is_volatile) {
		error_set(error, -ENOTCONN,
			"%s: the server has restarted, and this export was in memory only: written "
			"data is lost",
			client->uri_text);
	} else if (connection->host != client->home) {
		error_set(error, -ENOTCONN,
			"%s: %s has another epoch of the disk than %s: %llu changes that were "
			"acknowledged there but not flushed may be lost",
			client->uri_text, hosts_label(client, connection->host), gmb_server(client),
			(unsigned long long)(client->changes - client->flushed));
	} else {
		error_set(error, -ENOTCONN,
			"%s: the server has rebooted: %llu changes that it acknowledged but had "
			"not flushed may be lost",
			client->uri_text, (unsigned long long)(client->changes - client->flushed));
	}
	client->trouble = *error;
	client_give_up(client);
	return error->code;
}

static bool may_be_several(const struct gmb_client *client)
{
	return (client->facts.capabilities & GMB_CAN_MULTI_CONN) != 0;
}

/* Closes all connections except `only`. Required if a server returns without the guarantee that
 * several connections see the same data. No-op while the server may still execute commands
 * of a lost connection, because one of the others must first take over from it. */
static void leave_others(struct gmb_client *client, const struct connection *only)
{
	if (client->lost_count > 0) {
		return;
	}
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && connection != only &&
			connection->state != CONNECTION_CLOSING) {
			connection_leave(connection);
		}
	}
}

/* Starts the remaining connections, or closes them if the server does not support several. */
static void start_others(struct gmb_client *client, struct connection *first)
{
	if (!may_be_several(client)) {
		first->retiring = false; /* it is the only one from now on */
		client->connections_wanted = 1;
		client->grow.enabled = false;
		leave_others(client, first);
		return;
	}
	for (uint32_t i = 0; i < client->connections_wanted; i++) {
		struct connection *connection = client->connections[i];

		if (connection == NULL && connection_create(client, &connection) == 0) {
			client->connections[i] = connection;
		}
		if (connection != NULL && connection->state == CONNECTION_IDLE) {
			connection_start(connection, 0);
		}
	}
}

/* Removes from client->lost the lost connections that this connection has replaced, or all of them
 * if the server does not support takeover. */
static void forget_lost(struct gmb_client *client, const struct connection *connection)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < client->lost_count; i++) {
		bool taken_over = !client->facts.can_take_over;

		for (uint32_t k = 0; k < connection->replaces_count && !taken_over; k++) {
			taken_over = connection->replaces[k] == client->lost[i];
		}
		if (!taken_over) {
			client->lost[kept++] = client->lost[i];
		}
	}
	client->lost_count = kept;
}

void client_take_over(struct gmb_client *client, uint32_t number)
{
	if (client->facts.can_take_over && (client->options.flags & GMB_OPEN_NO_RECONNECT) == 0) {
		/* There is room: a new connection can be lost only after it was ready, and it
		 * becomes ready only after it has replaced every connection that was lost when it
		 * started. */
		GMB_ASSERT(client->lost_count < CLIENT_LOST_MAX);
		client->lost[client->lost_count++] = number;
	}
}

void client_progress(struct gmb_client *client, struct connection *connection)
{
	connection->attempts = 0;
	if (client->lost_count == 0) {
		client->lost_ns = 0;
	} else {
		/* A lost connection cannot be replaced, but the server still has the lease. */
		lease_watch_doubt(&client->watch);
	}
}

/* Called when a connection is ready: ends the outage (client->lost_ns) if no request is in flight.
 * Otherwise the outage lasts until a request is answered, because a server that completes only
 * handshakes must not delay requests forever. */
static void end_trouble(struct gmb_client *client, const struct connection *connection)
{
	forget_lost(client, connection);
	if (client->requests_in_flight == 0 && client->lost_count == 0) {
		client->lost_ns = 0;
	}
}

/* Ends all connections to the previous instance of a server that has rebooted. They are dead, but
 * without traffic a connection does not detect this. */
static void leave_old_epoch(struct gmb_client *client, const struct connection *fresh)
{
	struct error error;

	error_set(&error, -ECONNRESET, "the server has rebooted");
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && connection != fresh &&
			connection->state == CONNECTION_READY) {
			connection_lose(connection, &error);
		}
	}
}

static void tell_size(struct gmb_client *client, uint64_t before)
{
	char text[128];

	if (client->facts.bytes != before) {
		snprintf(text, sizeof(text), "the export now has %llu bytes, previously %llu",
			(unsigned long long)client->facts.bytes, (unsigned long long)before);
		client_event(client, GMB_EVENT_RESIZED, text);
	}
}

int client_connection_ready(
	struct gmb_client *client, struct connection *connection, struct error *error)
{
	const struct carrier_facts *facts = &connection->carrier->facts;
	bool first = client->state == CLIENT_OPENING;
	uint64_t size_before = client->facts.bytes;
	char name[ERROR_TEXT_BYTES];

	if (client->state == CLIENT_DEAD || client->state == CLIENT_CLOSING) {
		return error_set(error, -ECANCELED, "closed");
	}
	if (hosts_check(client, connection, facts, error) != 0) {
		return error->code;
	}
	/* Connections to the server's previous epoch end first, because the new connection must
	 * match those that remain. */
	if (client->lost_count > 0 && facts->can_take_over && facts->epoch != client->facts.epoch) {
		leave_old_epoch(client, connection);
	}
	if (client_ready_count(client) > 1) {
		int err = client_check_same(client, facts, error);

		if (err == 0) {
			hosts_settle(client, connection);
			end_trouble(client, connection);
			client_resized(client, facts->bytes);
		}
		if (err == 0 && !may_be_several(client)) {
			/* the connection served only to replace lost connections */
			connection_leave(connection);
		}
		return err;
	}
	if (!first) {
		int err = client_check_able(client, facts, error);

		if (err != 0) {
			return err;
		}
		if (client_has_forgotten(client, facts)) {
			return give_up_forgotten(client, connection, error);
		}
	}
	client->facts = *facts;
	client->capabilities = find_capabilities(client);
	client->has_lease = true;
	if (first) {
		set_state(client, CLIENT_OPEN);
	}
	hosts_settle(client, connection);
	end_trouble(client, connection);
	start_others(client, connection);
	if (first) {
		open_succeeded(client);
		return 0;
	}
	hosts_name(client, name, sizeof(name));
	client_event(client, GMB_EVENT_RECONNECTED, name);
	tell_size(client, size_before);
	return 0;
}

void client_resized(struct gmb_client *client, uint64_t bytes)
{
	uint64_t before = client->facts.bytes;

	/* Connections can report sizes in another order than they changed. The larger size is the
	 * newer one, because an export in use only grows. */
	if (client->state == CLIENT_OPEN && (bytes > before || client_ready_count(client) == 1)) {
		client->facts.bytes = bytes;
		tell_size(client, before);
	}
}

/* Returns the delay before another attempt, with a random part of up to a quarter, so that a
 * server's clients do not all reconnect at the same moment. missed: the client needs the
 * connection. Otherwise attempts become rare, because the server may limit the number of
 * connections. refused: a server has refused the client. Servers log this, so such attempts become
 * rare in a long outage, but a lease that was renewed does not expire before the next one. */
static uint64_t backoff_ns(struct gmb_client *client, uint32_t attempts, bool missed, bool refused)
{
	uint64_t outage_ns =
		client->lost_ns != 0 ? ring_now_ns(client->queue->ring) - client->lost_ns : 0;
	uint64_t refused_ms =
		MIN(client->options.lease_ms / LEASE_ATTEMPTS, (uint32_t)REFUSED_MS_MAX);
	uint64_t refused_ns = MIN(outage_ns / REFUSED_SHARE, refused_ms * NS_PER_MS);
	uint64_t ns;

	if (attempts == 0) {
		return 0;
	}
	ns = ((uint64_t)BACKOFF_MS_MIN << MIN(attempts - 1, 10U)) * NS_PER_MS;
	ns = MIN(ns, BACKOFF_MS_MAX * NS_PER_MS);
	ns = refused ? MAX(ns, refused_ns) : ns;
	if (attempts >= CONNECTION_EXTRA_ATTEMPTS && !missed) {
		ns = EXTRA_PAUSE_MS * NS_PER_MS;
	}
	return ns - ring_random(client->queue->ring) % (ns / 4);
}

/* Returns whether the client is refused for a permanent reason: the snapshot is gone, or all
 * servers refuse it. This is final, except shortly after the start or a change of a server, which
 * may not have found its snapshots yet. */
static bool is_refused(const struct gmb_client *client)
{
	bool is_deleted = client->trouble.code == -ENOENT &&
			  strstr(client->trouble.text, EXPORT_URI_SNAPSHOT_DELETED_TEXT) != NULL;

	return is_deleted || (client->ends_if_refused && hosts_refuse(client));
}

/* Gives up if the client has been without a connection for too long. */
static void client_check_deadline(struct gmb_client *client)
{
	uint64_t now_ns = ring_now_ns(client->queue->ring);
	uint64_t lost_ns = now_ns - client->lost_ns;
	bool is_overdue;
	const struct error *exclusion = client_exclusion(client);
	bool refused = client->lost_ns != 0 && is_refused(client);

	client->refused_ns = !refused ? 0 : client->refused_ns != 0 ? client->refused_ns : now_ns;
	is_overdue = lost_ns >= client->options.reconnect_timeout_ms * NS_PER_MS ||
		     exclusion != NULL ||
		     (client->refused_ns != 0 &&
			     now_ns - client->refused_ns >= REFUSAL_PATIENCE_MS * NS_PER_MS);
	if (client->state == CLIENT_OPEN && client->lost_ns != 0 && is_overdue) {
		struct error reason;

		hosts_explain(client, &reason);
		if (exclusion != NULL) {
			client->trouble = reason;
		} else {
			error_set(&client->trouble, -ENOTCONN,
				"the client gave up after %u s without a connection: %s",
				(uint32_t)(lost_ns / NS_PER_MS / 1000), reason.text);
		}
		client->trouble.code = -ENOTCONN;
		client_give_up(client);
	}
}

/* Reports each reason once, because attempts may continue for hours. */
static void tell_attempt(struct gmb_client *client)
{
	struct error reason;

	hosts_explain(client, &reason);
	if (strcmp(client->told.text, reason.text) != 0) {
		client->told = reason;
		client_event(client, GMB_EVENT_RETRYING, reason.text);
	}
}

void client_connection_lost(struct gmb_client *client, struct connection *connection)
{
	uint32_t attempts = hosts_attempts(client, connection->attempts);
	bool was_ready = connection->was_ready;
	bool others;

	hosts_lost(client, connection);
	others = client_ready_count(client) > 0;
	connection->was_ready = false;
	if (client->state == CLIENT_DEAD) {
		/* includes the commands that this connection returned */
		fail_all(client, -ENOTCONN);
		return;
	}
	client->trouble = connection->reason;
	if (client->state == CLIENT_OPENING && hosts_open_next(client)) {
		connection_start(connection, 0);
		return;
	}
	if (client->state == CLIENT_OPENING) {
		hosts_explain(client, &client->trouble);
		open_failed(client);
	}
	if (client->state != CLIENT_OPEN) {
		return;
	}
	if (was_ready) {
		client->stats.connections_lost++;
		client->told = connection->reason;
		client_event(client, GMB_EVENT_LOST, connection->reason.text);
	} else if (!others) {
		tell_attempt(client);
	}
	/* If the connection timed out, the other connections may be dead as well, so this counts as
	 * an outage until a command is answered. */
	if ((!others || client->lost_count > 0 || connection->reason.code == -ETIMEDOUT) &&
		client->lost_ns == 0) {
		hosts_doubt(client);
	}
	if ((client->options.flags & GMB_OPEN_NO_RECONNECT) != 0) {
		if (others) {
			/* Without takeover the lost connection's commands must not be resent. */
			fail_replays(client, -ENOTCONN);
		} else {
			client_give_up(client);
		}
		return;
	}
	client_check_deadline(client);
	if (others && client->lost_count == 0 &&
		(connection->retiring || !may_be_several(client))) {
		return;
	}
	if (client->state == CLIENT_OPEN) {
		bool missed = !others || client->lost_count > 0 || client->is_searching;
		bool refused = !was_ready && !hosts_is_unreachable(connection->reason.code);

		connection->attempts++;
		connection_start(connection, backoff_ns(client, attempts, missed, refused));
	}
}

/* --- opening and closing --------------------------------------------------------------------- */

static void client_client_free(struct gmb_client *client)
{
	if (client == NULL) {
		return;
	}
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		connection_destroy(client->connections[i]);
	}
	if (list_is_linked(&client->node)) {
		list_remove(&client->node);
	}
	if (client->ops != NULL) {
		client->ops->target_destroy(client->target);
	}
	free(client->uri_text);
	free(client->host_failures);
	free(client->commands);
	free(client);
}

static uint32_t client_or_default(uint32_t value, uint32_t standard)
{
	return value != 0 ? value : standard;
}

/*
 * Returns the default number of connections. A server uses at most one thread for each connection,
 * so it is the number of processors, within limits. On 2 processors, with 8 to 64 requests of 4 KiB
 * to 1 MiB in flight, two connections were 1.0 to 1.6 times as fast as one, and four were no faster
 * than two.
 */
static uint32_t connections_chosen(void)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (processors < 1) {
		return 1;
	}
	return (uint32_t)MIN(processors, (long)CONNECTIONS_CHOSEN_MAX);
}

int client_options_take(
	struct gmb_options *own, const struct gmb_options *options, struct error *error)
{
	*own = (struct gmb_options){ 0 };
	if (options != NULL) {
		int err = options_copy(
			"gmb_options", own, options, sizeof(*own), &own->reserved, error);

		if (err != 0) {
			return err;
		}
	}
	if (own->connections > CLIENT_CONNECTIONS_MAX || own->depth > CARRIER_DEPTH_MAX) {
		return error_set(error, -EINVAL,
			"a client can have at most %d connections with at most %d commands each",
			CLIENT_CONNECTIONS_MAX, CARRIER_DEPTH_MAX);
	}
	if ((own->flags &
		    ~(uint32_t)(GMB_OPEN_READ_ONLY | GMB_OPEN_NO_RECONNECT | GMB_OPEN_NO_EXTENDED |
				GMB_OPEN_SIMPLE | GMB_OPEN_URI_FILES | GMB_OPEN_PREEMPT)) != 0) {
		return error_set(error, -EINVAL, "unknown open flags: 0x%x", own->flags);
	}
	if (own->lease > GMB_LEASE_EXCLUSIVE) {
		return error_set(error, -EINVAL, "unknown lease: %u", own->lease);
	}
	own->lease_ms = lease_limit_ms(client_or_default(own->lease_ms, LEASE_MS_DEFAULT));
	own->connect_timeout_ms = client_or_default(own->connect_timeout_ms, CONNECT_TIMEOUT_MS);
	own->request_timeout_ms = client_or_default(own->request_timeout_ms, REQUEST_TIMEOUT_MS);
	own->slow_timeout_ms = MAX(
		client_or_default(own->slow_timeout_ms, SLOW_TIMEOUT_MS), own->request_timeout_ms);
	own->reconnect_timeout_ms =
		client_or_default(own->reconnect_timeout_ms, RECONNECT_TIMEOUT_MS);
	own->depth = client_or_default(own->depth, CLIENT_DEPTH_DEFAULT);
	return 0;
}

static int client_create(struct gmb_queue *queue, const char *uri, struct tls_client *tls,
	const struct gmb_options *options, struct gmb_client **client_out, struct error *error)
{
	struct gmb_client *client = calloc(1, sizeof(*client));
	uint64_t secret[2];
	size_t command_bytes;
	int err;

	if (client == NULL) {
		return error_oom(error);
	}
	client->queue = queue;
	list_init(&client->node);
	list_init(&client->waiting);
	list_init(&client->ranges);
	list_init(&client->replays);
	for (size_t i = 0; i < ARRAY_COUNT(client->range_bytes); i++) {
		client->range_bytes[i] = CLIENT_RANGE_BYTES_FIRST;
	}
	list_init(&client->free_commands);
	err = client_options_take(&client->options, options, error);
	if (err == 0) {
		client->ops = client_find_carrier(uri);
		client->connections_wanted = client_or_default(client->options.connections,
			client_or_default(client->ops->connections, connections_chosen()));
		err = client->ops->target_create(
			uri, &client->options, tls, &client->target, error);
		client->options.tls = NULL; /* the credentials belonged to the caller */
	}
	if (err == 0 && !hosts_init(client)) {
		err = error_oom(error);
	}
	if (err == 0 && !ring_secret(queue->ring, secret, sizeof(secret))) {
		err = error_set(error, -EIO, "cannot get random numbers from the system");
	}
	if (err != 0) {
		client_client_free(client);
		return err;
	}
	client_want_lease(client, secret);
	client->command_count = client->options.depth * client->connections_wanted;
	client->uri_text = strdup(uri);
	snprintf(client->token, sizeof(client->token), "%016llx%016llx",
		(unsigned long long)secret[0], (unsigned long long)secret[1]);
	command_bytes = (sizeof(struct command) + client->ops->command_bytes + 15) & ~(size_t)15;
	client->commands = calloc(client->command_count, command_bytes);
	if (client->uri_text == NULL || client->commands == NULL ||
		connection_create(client, &client->connections[0]) != 0) {
		client_client_free(client);
		return error_oom(error);
	}
	for (uint32_t i = 0; i < client->command_count; i++) {
		struct command *command =
			(struct command *)(void *)(client->commands + i * command_bytes);

		list_push_back(&client->free_commands, &command->node);
	}
	grow_init(client);
	error_set(&client->open_error, -EINPROGRESS, "%s: the export is not open yet", uri);
	list_push_back(&queue->clients, &client->node);
	*client_out = client;
	return 0;
}

static bool is_connected(const struct gmb_client *client)
{
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		const struct connection *connection = client->connections[i];

		if (connection != NULL && connection->state != CONNECTION_IDLE) {
			return true;
		}
	}
	return false;
}

/* Returns the time until which to wait for the other connections: OTHERS_PATIENCE_MS longer than
 * the first one took. A server may delay them forever, or until another client disconnects
 * (qemu-nbd --shared). */
static uint64_t connecting_end_ns(const struct gmb_client *client, uint64_t began_ns)
{
	uint64_t now_ns = ring_now_ns(client->queue->ring);

	return now_ns + (now_ns - began_ns) + OTHERS_PATIENCE_MS * NS_PER_MS;
}

/* Returns whether a connection is being established, ignoring those that have failed too often. */
static bool is_connecting(const struct gmb_client *client)
{
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		const struct connection *connection = client->connections[i];

		if (connection != NULL && connection->state != CONNECTION_IDLE &&
			connection->state != CONNECTION_READY &&
			connection->attempts <= CONNECTION_EXTRA_ATTEMPTS) {
			return true;
		}
	}
	return false;
}

static void wait_for_others(struct gmb_client *client, uint64_t end_ns)
{
	uint64_t now_ns = ring_now_ns(client->queue->ring);

	while (client->state == CLIENT_OPEN && is_connecting(client) && now_ns < end_ns) {
		queue_round(client->queue, end_ns - now_ns);
		now_ns = ring_now_ns(client->queue->ring);
	}
}

/* Ends all connections and waits until they are idle. */
static void close_connections(struct gmb_client *client)
{
	set_state(client, CLIENT_CLOSING);
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		if (client->connections[i] != NULL) {
			connection_leave(client->connections[i]);
		}
	}
	while (is_connected(client)) {
		queue_round(client->queue, UINT64_MAX);
	}
}

int client_open_start(struct gmb_queue *queue, const char *uri, struct tls_client *tls,
	const struct gmb_options *options, struct gmb_client **client_out, struct gmb_error *error)
{
	struct error reason = { 0 };
	int err = client_create(queue, uri, tls, options, client_out, &reason);

	if (err != 0) {
		error_export(error, &reason);
		return err;
	}
	connection_start((*client_out)->connections[0], 0);
	return 0;
}

int gmb_open_start(struct gmb_queue *queue, const char *uri, const struct gmb_options *options,
	struct gmb_client **client_out, struct gmb_error *error)
{
	return client_open_start(queue, uri, NULL, options, client_out, error);
}

int gmb_open_result(const struct gmb_client *client, struct gmb_error *error)
{
	if (client->open_error.code != 0) {
		error_export(error, &client->open_error);
	}
	return client->open_error.code;
}

int gmb_open(struct gmb_queue *queue, const char *uri, const struct gmb_options *options,
	struct gmb_client **client_out, struct gmb_error *error)
{
	uint64_t began_ns = ring_now_ns(queue->ring);
	struct gmb_client *client;
	struct error reason;
	int err;

	if (queue->inside) {
		err = error_set(
			&reason, -EDEADLK, "cannot open an export synchronously inside a callback");
		error_export(error, &reason);
		return err;
	}
	err = gmb_open_start(queue, uri, options, &client, error);
	if (err != 0) {
		return err;
	}
	client->options.opened = NULL;
	while (client->state == CLIENT_OPENING) {
		queue_round(queue, UINT64_MAX);
	}
	wait_for_others(client, connecting_end_ns(client, began_ns));
	if (client->state != CLIENT_OPEN) {
		err = client->trouble.code;
		error_export(error, &client->trouble);
		close_connections(client);
		client_client_free(client);
		return err;
	}
	*client_out = client;
	return 0;
}

int gmb_close(struct gmb_client *client)
{
	if (client == NULL) {
		return 0;
	}
	if (client->queue->inside) {
		return -EDEADLK;
	}
	if (client->state == CLIENT_OPENING) {
		error_set(&client->trouble, -ECANCELED, "%s: closed while it was being opened",
			client->uri_text);
		open_failed(client);
	}
	/* Requests in queue->ended have a result that was not reported yet. Their callbacks can
	 * submit more. */
	while (client->requests_in_flight > 0 || client->copies_in_flight > 0 ||
		!list_is_empty(&client->queue->ended)) {
		queue_round(client->queue, UINT64_MAX);
	}
	close_connections(client);
	while (!list_is_empty(&client->queue->ended)) {
		queue_round(client->queue, 0); /* this round reports results of other clients */
	}
	client_client_free(client);
	return 0;
}

/* --- on a server's ring ----------------------------------------------------------------------- */

const char *client_trouble(const struct gmb_client *client)
{
	return client->state == CLIENT_OPEN ? "" : client->trouble.text;
}

_Static_assert((int)CLIENT_NAME_BYTES == (int)CARRIER_TOKEN_BYTES_MAX, "one name");

void client_name(const struct gmb_client *client, char out[CLIENT_NAME_BYTES])
{
	connection_name(client->connections[0], out);
}

void client_end_if_refused(struct gmb_client *client)
{
	client->ends_if_refused = true;
}

void client_end(struct gmb_client *client)
{
	uint64_t before = client->queue->completed;
	struct error error;

	error_set(&error, -ECANCELED, "closed");
	if (client->state == CLIENT_OPENING) {
		client->trouble = error;
		open_failed(client);
	} else if (client->state == CLIENT_OPEN) {
		client->trouble = error;
		client_give_up(client);
	}
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		struct connection *connection = client->connections[i];

		if (connection != NULL && client->requests_in_flight > 0) {
			connection_lose(connection, &error); /* fails the connection's commands */
		} else if (connection != NULL) {
			connection_leave(connection);
		}
	}
	client->queue->told_early += client->queue->completed - before;
}

bool client_join(struct gmb_client *client)
{
	/* queue->ended can contain requests of this client whose result was not reported yet. */
	if (client->requests_in_flight > 0 || is_connected(client) ||
		!list_is_empty(&client->queue->ended)) {
		return false;
	}
	client_client_free(client);
	return true;
}
