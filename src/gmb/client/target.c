// SPDX-License-Identifier: Apache-2.0
/* Addresses of servers, and the connection to one. Used by carrier.c and probe.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "base/uri.h"
#include "gmb/client/client.h"

_Static_assert((int)CARRIER_LABEL_BYTES_MAX >= (int)EXPORT_URI_LABEL_BYTES, "labels");

int native_connect(struct clan_queue *queue, const struct native_target *target,
	const struct clan_conn_options *options, struct clan_conn **conn_out, struct error *error)
{
	int result = clan_connect(queue, target->address, options, &native_hello,
		sizeof(native_hello), conn_out, NULL);
	const char *advice =
		target->socket_path != NULL ? uri_unix_advice(target->socket_path, result) : NULL;

	if (result != 0) {
		*conn_out = NULL;
		error_set(error, result, "cannot connect: %s%s%s", uri_connect_reason(result),
			advice != NULL ? "; " : "", advice != NULL ? advice : "");
	}
	return result;
}

void native_target_destroy(struct carrier_target *base)
{
	struct native_target *target = (struct native_target *)(void *)base;

	if (target != NULL) {
		free(target->address);
		free(target->socket_path);
		free(target->name);
		free(target);
	}
}

static int check_uri(const struct export_uri *uri, const char *text, struct error *error)
{
	char shown[CARRIER_LABEL_BYTES_MAX];

	if (uri->user == NULL && uri->unknown_parameter == NULL) {
		return 0;
	}
	return error_set(error, -EINVAL, "the URI '%s' cannot be used: gmb has no %s%s",
		log_escape(shown, sizeof(shown), text, strlen(text)),
		uri->user != NULL ? "users" : "parameter ",
		uri->user != NULL ? "" : uri->unknown_parameter);
}

int native_target_create(const char *text, const struct gmb_options *options,
	struct tls_client *tls, char label[CARRIER_LABEL_BYTES_MAX],
	struct carrier_target **target_out, struct error *error)
{
	struct native_target *target = calloc(1, sizeof(*target));
	struct export_uri uri = { 0 };
	int result = export_uri_parse(text, &uri, error);

	GMB_ASSERT(tls == NULL);
	result = result ?: check_uri(&uri, text, error);
	if (result == 0 && options->tls != NULL) {
		result = error_set(error, -EINVAL, "credentials for TLS need an nbds URI");
	}
	if (result == 0 && target != NULL) {
		export_uri_label(label, &uri);
		memcpy(target->label, label, CARRIER_LABEL_BYTES_MAX);
		target->address = export_uri_clan_address(&uri);
		target->socket_path = uri.socket_path;
		target->name = uri.export_name;
		uri.socket_path = NULL;
		uri.export_name = NULL;
	}
	if (result == 0 && (target == NULL || target->address == NULL)) {
		result = error_oom(error);
	}
	export_uri_fini(&uri);
	if (result != 0) {
		native_target_destroy((struct carrier_target *)(void *)target);
		return result;
	}
	*target_out = (struct carrier_target *)(void *)target;
	return 0;
}
