// SPDX-License-Identifier: Apache-2.0
#include "client/client_private.h"

int gmb_list_exports(const char *uri, const struct gmb_options *options,
	void (*found)(void *context, const struct gmb_export *exported), void *context,
	struct gmb_error *error)
{
	struct gmb_options own;
	struct error reason = { 0 };
	int err;

	log_init();
	err = client_options_take(&own, options, &reason);
	if (err == 0) {
		err = client_find_carrier(uri)->list(uri, &own, found, context, &reason);
	}
	if (err != 0) {
		error_export(error, &reason);
	}
	return err;
}
