// SPDX-License-Identifier: Apache-2.0
/* Addresses of the servers of a URI, and the connection to one. Used by carrier.c and probe.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/export_uri.h"
#include "base/log.h"
#include "base/uri.h"
#include "gmb/client/client.h"

_Static_assert((int)CARRIER_LABEL_BYTES_MAX >= (int)EXPORT_URI_LABEL_BYTES, "labels");

int native_connect(struct clan_queue *queue, const struct native_target *target, uint32_t host,
	const struct clan_conn_options *options, struct clan_conn **conn_out, struct error *error)
{
	int result = clan_connect(queue, target->addresses[host], options, &native_hello,
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
	struct native_target *target = container_of(base, struct native_target, base);

	if (target != NULL) {
		for (uint32_t i = 0; i < target->base.host_count; i++) {
			free(target->addresses[i]);
		}
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

/* Returns false if out of memory. */
static bool add_hosts(struct native_target *target, const struct export_uri *uri)
{
	for (uint32_t i = 0; i < export_uri_hosts(uri); i++) {
		struct export_uri one = export_uri_at(uri, i);

		export_uri_label(target->base.labels[i], &one);
		target->addresses[i] = export_uri_clan_address(&one);
		target->base.host_count++;
		if (target->addresses[i] == NULL) {
			return false;
		}
	}
	return true;
}

int native_target_create(const char *text, const struct gmb_options *options,
	struct tls_client *tls, struct carrier_target **target_out, struct error *error)
{
	struct native_target *target = calloc(1, sizeof(*target));
	struct export_uri uri = { 0 };
	int result = export_uri_parse(text, &uri, error);

	GMB_ASSERT(tls == NULL);
	result = result ?: check_uri(&uri, text, error);
	if (result == 0 && options->tls != NULL) {
		result = error_set(error, -EINVAL, "credentials for TLS need an nbds URI");
	}
	if (result == 0 && (target == NULL || !add_hosts(target, &uri))) {
		result = error_oom(error);
	}
	if (result == 0) {
		target->socket_path = uri.socket_path;
		target->name = uri.export_name;
		uri.socket_path = NULL;
		uri.export_name = NULL;
	}
	export_uri_fini(&uri);
	if (result != 0) {
		native_target_destroy(&target->base);
		return result;
	}
	*target_out = &target->base;
	return 0;
}
