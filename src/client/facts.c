// SPDX-License-Identifier: Apache-2.0
/* Functions that return properties of an open export. */
#include <string.h>

#include "client/client_private.h"

void gmb_get_info(const struct gmb_client *client, struct gmb_info *info)
{
	const struct carrier_facts *facts = &client->facts;
	uint32_t connections = client_ready_count(client);
	struct gmb_info full = {
		.size = info->size,
		.bytes = facts->bytes,
		.capabilities = client->capabilities,
		.block_minimum = facts->block_minimum,
		.block_preferred = facts->block_preferred,
		.payload_max = MIN(facts->payload_max, (uint32_t)CLIENT_PAYLOAD_MAX),
		.connections = connections,
		.depth = MIN(
			client->command_count, client->options.depth * client->connections_wanted),
		.replies = facts->replies,
		.atomic_bytes = facts->atomic_bytes,
	};

	memcpy(info, &full, MIN(info->size, sizeof(full)));
}

void gmb_get_stats(const struct gmb_client *client, struct gmb_stats *stats)
{
	const struct ring_counters *counters = ring_counters(client->queue->ring);
	struct gmb_stats full = client->stats;

	full.size = stats->size;
	full.system_calls = counters->enters + counters->direct;
	full.polls = counters->looks;
	for (uint32_t i = 0; i < CLIENT_CONNECTIONS_MAX; i++) {
		if (client->connections[i] != NULL) {
			full.bytes_moved += client->connections[i]->carrier->moved_bytes;
		}
	}
	memcpy(stats, &full, MIN(stats->size, sizeof(full)));
}

const char *gmb_export_name(const struct gmb_client *client)
{
	return client->facts.name;
}

const char *gmb_export_description(const struct gmb_client *client)
{
	return client->facts.description;
}

const char *gmb_tls(const struct gmb_client *client)
{
	return client->facts.tls;
}

const char *gmb_uri(const struct gmb_client *client)
{
	return client->uri_text;
}
