// SPDX-License-Identifier: Apache-2.0
/* The table of protocols, and gmb_list_exports(), which needs no client. */
#include "client/client_private.h"

#include <string.h>
#include <strings.h>

/* The supported protocols. The first one also reports what is wrong with a URI of an unknown
 * scheme. */
static const struct carrier_ops *const carriers[] = {
	&nbd_carrier,
#ifdef GMBLOCK_CLAN
	&native_carrier,
	&vhost_carrier,
#endif
};

const struct carrier_ops *client_find_carrier(const char *uri)
{
	size_t bytes = strcspn(uri, ":");

	for (size_t i = 0; i < ARRAY_COUNT(carriers); i++) {
		for (const char *const *scheme = carriers[i]->schemes; *scheme != NULL; scheme++) {
			if (strlen(*scheme) == bytes && strncasecmp(uri, *scheme, bytes) == 0) {
				return carriers[i];
			}
		}
	}
	return carriers[0];
}

int gmb_list_exports(const char *uri, const struct gmb_options *options,
	void (*found)(void *context, const struct gmb_export *exported), void *context,
	struct gmb_error *error)
{
	struct gmb_options own;
	struct error reason = { 0 };
	int err;

	log_init();
	err = client_options_take(&own, options, &reason);
	err = err ?: client_find_carrier(uri)->list(uri, &own, found, context, &reason);
	if (err != 0) {
		error_export(error, &reason);
	}
	return err;
}
