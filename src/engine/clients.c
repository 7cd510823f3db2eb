// SPDX-License-Identifier: Apache-2.0
#include "engine/clients.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine_peer *engine_peer_get(struct engine *engine, const struct peer_identity *identity)
{
	struct engine_peer *peer;

	list_for_each(node, &engine->peers)
	{
		peer = list_entry(node, struct engine_peer, node);
		if (memcmp(&peer->identity, identity, sizeof(*identity)) == 0) {
			peer->session_count++;
			return peer;
		}
	}
	peer = calloc(1, sizeof(*peer));
	if (peer != NULL) {
		peer->identity = *identity;
		peer->session_count = 1;
		for (int i = 0; i < NEWCOMER_COUNT; i++) {
			list_init(&peer->newcomers[i]);
		}
		path_peer_init(&peer->path);
		turn_group_init(&peer->blocked);
		list_push_front(&engine->peers, &peer->node);
	}
	return peer;
}

void engine_peer_put(struct engine_peer *peer)
{
	if (--peer->session_count == 0) {
		list_remove(&peer->node);
		free(peer);
	}
}

/* Returns the client with this principal. If there is none, returns the client that has had no
 * sessions for the longest time, or NULL. */
static struct engine_client *clients_find(
	struct engine *engine, const struct takeover_principal *principal, bool *is_known)
{
	struct engine_client *idle = NULL;

	list_for_each(node, &engine->clients)
	{
		struct engine_client *client = list_entry(node, struct engine_client, node);

		*is_known = memcmp(&client->principal, principal, sizeof(*principal)) == 0;
		if (*is_known) {
			return client;
		}
		if (idle == NULL && client->session_count == 0) {
			idle = client;
		}
	}
	return idle;
}

/* Adds a client. Returns NULL if the engine already has its share of the clients, or if there is no
 * memory. */
static struct engine_client *clients_add(struct engine *engine)
{
	uint32_t share = ENGINE_CLIENTS_MAX / engine->limits.engine_count;
	uint32_t least = MAX(share, (uint32_t)ENGINE_CLIENTS_EACH_MIN);
	uint32_t count_max = MIN(least, (uint32_t)ENGINE_CLIENTS_EACH_MAX);
	struct engine_client *client = NULL;

	if (engine->client_count < count_max) {
		client = calloc(1, sizeof(*client));
	}
	if (client != NULL) {
		engine->client_count++;
		list_push_back(&engine->clients, &client->node);
	}
	return client;
}

static void forget_requests(struct engine_client *client)
{
	for (int op = 0; op < STORE_OP_COUNT; op++) {
		free(client->operations[op]);
		client->operations[op] = NULL;
	}
}

static void name_client(struct engine_client *client, const struct peer *peer)
{
	char host[INET6_ADDRSTRLEN] = "unknown";
	uint8_t network[ACCESS_ADDRESS_BYTES] = { 0 };
	bool is_network = false;

	if (peer->proved != NULL && peer->proved->is_proved) {
		snprintf(client->name, sizeof(client->name), "%s", peer->proved->text);
		return;
	}
	if (peer->has_credentials) {
		snprintf(client->name, sizeof(client->name), "uid %u", peer->credentials.uid);
		return;
	}
	if (peer->has_address && peer->identity.bytes[0] == AF_INET) {
		(void)inet_ntop(AF_INET, peer->address + 12, host, sizeof(host));
	} else if (peer->has_address) { /* IPv6: a client is identified by its network */
		memcpy(network, peer->identity.bytes + 1, sizeof(network));
		is_network = memcmp(network, peer->address, sizeof(network)) != 0;
		(void)inet_ntop(AF_INET6, network, host, sizeof(host));
	}
	snprintf(client->name, sizeof(client->name), "%s%s", host, is_network ? "/64" : "");
}

void engine_client_join(struct session *session, const struct takeover_principal *principal)
{
	struct engine *engine = session->engine;
	bool is_known = false;
	struct engine_client *client = clients_find(engine, principal, &is_known);

	if (!is_known) {
		struct engine_client *added = clients_add(engine);

		client = added != NULL ? added : client;
		if (client != NULL) {
			forget_requests(client);
			client->principal = *principal;
			name_client(client, &session->peer);
		}
	}
	session->of_client = client != NULL ? client : &engine->other_clients;
	session->of_client->session_count++;
	session->of_client->part_count += session->is_part;
	session->client.stats = session->of_client->operations;
}

void engine_client_leave(struct session *session)
{
	struct engine_client *client = session->of_client;

	if (client == NULL) {
		return;
	}
	session->of_client = NULL;
	client->part_count -= session->is_part;
	if (--client->session_count == 0 && client != &session->engine->other_clients) {
		list_remove(&client->node);
		list_push_back(&session->engine->clients, &client->node);
	}
}

void engine_clients_init(struct engine *engine)
{
	list_init(&engine->clients);
	snprintf(engine->other_clients.name, sizeof(engine->other_clients.name), "other");
}

void engine_clients_fini(struct engine *engine)
{
	struct list_node *node;

	while ((node = list_pop_front(&engine->clients)) != NULL) {
		struct engine_client *client = list_entry(node, struct engine_client, node);

		GMB_ASSERT(client->session_count == 0);
		forget_requests(client);
		free(client);
	}
	forget_requests(&engine->other_clients);
}
