// SPDX-License-Identifier: Apache-2.0
/*
 * The number of connections of a client that may choose it (base/growth.h). A window also covers
 * twice as many answers as there are commands in flight, because commands can be answered in
 * bursts.
 */
#include "client/client_private.h"

enum { GROW_CONNECTIONS_MAX = 8 };

void grow_init(struct gmb_client *client)
{
	struct export_uri uri;

	if (client->options.connections == 0 &&
		(client->options.flags & GMB_OPEN_NO_RECONNECT) == 0 &&
		export_uri_parse(client->uri_text, &uri, NULL) == 0) {
		client->grow.enabled = !uri.is_unix;
		export_uri_fini(&uri);
	}
}

static uint32_t commands_in_flight(const struct gmb_client *client)
{
	uint32_t commands = 0;

	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		const struct connection *connection = client->connections[i];

		commands += connection != NULL ? connection->carrier->command_count : 0;
	}
	return commands;
}

/* Returns whether all connections work, and have commands for one more. */
static bool is_ready_to_grow(const struct gmb_client *client)
{
	for (uint32_t i = 0; i < client->connections_wanted; i++) {
		const struct connection *connection = client->connections[i];

		if (connection == NULL || connection->state != CONNECTION_READY) {
			return false;
		}
	}
	return client->lost_count == 0 && client->connections_wanted < GROW_CONNECTIONS_MAX &&
	       (client->facts.capabilities & GMB_CAN_MULTI_CONN) != 0 &&
	       commands_in_flight(client) > client->connections_wanted;
}

/* Starts one more connection. Returns false if there is none that can be started now. */
static bool grow_add(struct gmb_client *client)
{
	struct connection **slot = &client->connections[client->connections_wanted];

	if (*slot == NULL && connection_create(client, slot) != 0) {
		return false;
	}
	if ((*slot)->state != CONNECTION_IDLE) {
		return false; /* it is still being closed */
	}
	(*slot)->retiring = false;
	client->connections_wanted++;
	log_debug("client: %s: trying %u connections", gmb_server(client),
		client->connections_wanted);
	connection_start(*slot, 0);
	return true;
}

static void grow_remove(struct gmb_client *client)
{
	struct connection *connection = client->connections[--client->connections_wanted];

	log_debug("client: %s: staying with %u connections", gmb_server(client),
		client->connections_wanted);
	connection_retire(connection);
}

static void grow_step(struct gmb_client *client, enum growth_step step)
{
	if (step == GROWTH_REMOVE) {
		grow_remove(client);
	} else if (step == GROWTH_ADD && !grow_add(client)) {
		(void)growth_cancel(&client->grow.growth); /* no connection was added */
	}
}

static void grow_window_begin(struct grow *grow, uint64_t now_ns)
{
	grow->since_ns = now_ns;
	grow->bytes = 0;
	grow->commands = 0;
}

void grow_count(struct gmb_client *client, const struct command *command)
{
	struct grow *grow = &client->grow;
	uint64_t now_ns = ring_batch_ns(client->queue->ring);
	uint64_t elapsed_ns = now_ns - grow->since_ns;

	if (command->operation == GMB_READ || command->operation == GMB_WRITE) {
		grow->bytes += command->length;
	}
	grow->commands++;
	if (client->requests_in_flight <= 1) {
		/* The client was idle, so the window is invalid. A trial ends. */
		grow_step(client, growth_cancel(&grow->growth));
		grow_window_begin(grow, now_ns);
	} else if (elapsed_ns >= growth_window_ns &&
		   grow->commands >= 2 * (uint64_t)commands_in_flight(client)) {
		grow_step(
			client, growth_window_end(&grow->growth, now_ns,
					(uint64_t)((double)grow->bytes * 1e9 / (double)elapsed_ns),
					is_ready_to_grow(client)));
		grow_window_begin(grow, now_ns);
	}
}
