// SPDX-License-Identifier: Apache-2.0
/* Leases of exports, and servers that exclude the client for good. */
#include "client/client_private.h"

#include <errno.h>
#include <string.h>

void client_want_lease(struct gmb_client *client, const uint64_t secret[2])
{
	static const uint8_t none[LEASE_ID_BYTES];
	const struct gmb_options *options = &client->options;
	struct lease_want *want = &client->lease;

	*want = (struct lease_want){
		.mode = (enum lease_mode)options->lease,
		.preempt = (options->flags & GMB_OPEN_PREEMPT) != 0,
		.ms = options->lease_ms,
	};
	memcpy(want->id, options->lease_id, sizeof(want->id));
	if (memcmp(want->id, none, sizeof(none)) == 0) {
		uint64_t id[2] = { ~secret[0], ~secret[1] };

		memcpy(want->id, id, sizeof(want->id));
	}
}

/* Returns whether a server has refused the client for this reason. */
static bool is_refusal(const struct error *error, const char *text)
{
	/* gmb has only EPERM */
	return (error->code == -EACCES || error->code == -EPERM) &&
	       strstr(error->text, text) != NULL;
}

bool client_is_fenced(const struct error *error)
{
	return is_refusal(error, EXPORT_URI_FENCED_TEXT);
}

const struct error *client_exclusion(const struct gmb_client *client)
{
	return is_refusal(&client->trouble, EXPORT_URI_LEASE_TEXT) ? &client->trouble
								   : hosts_fence(client);
}
