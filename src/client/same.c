// SPDX-License-Identifier: Apache-2.0
/* Whether a connection that is ready leads to the export that the client has opened. */
#include "client/client_private.h"

#include <errno.h>
#include <string.h>

/* Checks that another connection leads to the same export and may be used (rule P137). */
int client_check_same(
	const struct gmb_client *client, const struct carrier_facts *facts, struct error *error)
{
	const struct carrier_facts *known = &client->facts;
	/* The export may grow between two connections, if the epoch proves that it is the same
	 * server. */
	bool is_size_right =
		facts->bytes == known->bytes || (facts->bytes > known->bytes && facts->epoch != 0);

	if (!is_size_right || facts->identity != known->identity ||
		facts->replies != known->replies || facts->capabilities != known->capabilities ||
		facts->block_minimum != known->block_minimum ||
		facts->payload_max < known->payload_max ||
		facts->atomic_bytes < known->atomic_bytes || facts->epoch != known->epoch ||
		strcmp(facts->name, known->name) != 0) {
		return error_set(error, -EPROTO,
			"another connection to %s reaches an export with different properties; "
			"check whether several servers share this address",
			client->uri_text);
	}
	return 0;
}

/* Called after a reconnect: checks that the server, perhaps another one now, still accepts commands
 * that were created for the old server. */
int client_check_able(
	const struct gmb_client *client, const struct carrier_facts *facts, struct error *error)
{
	const struct carrier_facts *known = &client->facts;
	const uint32_t needed = GMB_CAN_WRITE | GMB_CAN_FLUSH | GMB_CAN_FUA | GMB_CAN_TRIM |
				GMB_CAN_ZERO | GMB_CAN_FAST_ZERO | GMB_CAN_CACHE | GMB_CAN_DF |
				GMB_CAN_STATUS | (client->copying > 0 ? (uint32_t)GMB_CAN_COPY : 0);

	if ((known->capabilities & needed & ~facts->capabilities) != 0 ||
		facts->replies < known->replies || facts->block_minimum > known->block_minimum ||
		facts->payload_max < known->payload_max ||
		facts->atomic_bytes < known->atomic_bytes) {
		return error_set(error, -EPROTO,
			"%s: after the reconnection, the server offers less than before, such as "
			"fewer operations or smaller requests; check whether this is another "
			"server, or whether its configuration has changed",
			client->uri_text);
	}
	return 0;
}

/* Returns whether acknowledged changes may be lost without an error having been reported. */
bool client_has_forgotten(const struct gmb_client *client, const struct carrier_facts *facts)
{
	const struct carrier_facts *known = &client->facts;

	return facts->epoch != known->epoch &&
	       (client->changes != client->flushed || known->is_volatile || facts->is_volatile);
}
