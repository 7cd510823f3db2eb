// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/manager.h"
#include "server/listen/address.h"
#include "server/listen/folder.h"
#include "server/listen/listen.h"
#include "server/upgrade/take.h"

static const char listen_default[] = "nbd://127.0.0.1:10809";

/* The listeners opened so far. */
struct opening {
	const struct server_config *config;
	const struct session_kind *const *kinds;
	uint32_t kind_count;
	struct listener *listeners;
	uint32_t count;
};

/* Finds the session kind by the scheme of the URI. */
static int listeners_find_kind(const struct opening *opening, const struct export_uri *uri,
	const struct session_kind **kind_out, struct error *error)
{
	char scheme[32];

	snprintf(scheme, sizeof(scheme), "%s%s", uri->protocol, uri->is_unix ? "+unix" : "");
	for (uint32_t i = 0; i < opening->kind_count; i++) {
		for (const char *const *at = opening->kinds[i]->schemes; *at != NULL; at++) {
			if (strcmp(*at, scheme) == 0) {
				*kind_out = opening->kinds[i];
				return 0;
			}
		}
	}
	return error_set(
		error, -EPROTONOSUPPORT, "no protocol of this server serves %s://", scheme);
}

/* Sets the listener's TLS settings. Its URI then indicates whether TLS is required. */
static void listeners_set_tls(struct listener *listener, const struct server_tls *settings)
{
	static const struct server_tls none;

	listener->settings = strcmp(listener->uri.protocol, "nbd") == 0 ? settings : &none;
	listener->uri.tls = listener->settings->mode == TLS_REQUIRE;
}

static int listeners_open_listener(struct opening *opening, const struct export_uri *uri,
	const struct server_tls *tls, struct error *error)
{
	struct listener *listener = &opening->listeners[opening->count];
	const struct session_kind *kind;
	uint32_t retries = LISTENER_RETRIES;
	int rc = listeners_find_kind(opening, uri, &kind, error);

	rc = rc ?: listener_open(uri, kind, &retries, listener, error);
	if (rc == 0) {
		listeners_set_tls(listener, tls);
		opening->count++;
	}
	return rc;
}

/* Adds a listener for a socket that was already open. */
static int adopted(struct opening *opening, struct error *error)
{
	struct listener *listener = &opening->listeners[opening->count++];

	listeners_set_tls(listener, &opening->config->tls);
	return listeners_find_kind(opening, &listener->uri, &listener->kind, error);
}

static int adopt_sockets(struct opening *opening, int count, struct error *error)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < count; i++) {
		struct listener *listener = &opening->listeners[opening->count];

		rc = listener_adopt(MANAGER_FD_FIRST + i, listener, error);
		if (rc == 0) {
			listener->of_manager = true;
			rc = adopted(opening, error);
		}
	}
	return rc;
}

/* Returns whether the protocol uses sockets of type SOCK_STREAM: NBD and vhost-user-blk. gmb and
 * push use SOCK_SEQPACKET. */
static bool listeners_is_stream(const struct export_uri *uri)
{
	return strcmp(uri->protocol, "nbd") == 0 || export_uri_has_one_export(uri);
}

/* Returns whether an adopted socket is used. A socket of the previous server is used only if its
 * address is in the configuration, which then determines the protocol. A socket of the service
 * manager is always used. */
static bool is_wanted(const struct opening *opening, struct listener *listener)
{
	bool is_wanted = listener->of_manager || opening->config->listen_count == 0;

	for (uint32_t i = 0; !is_wanted && i < opening->config->listen_count; i++) {
		struct export_uri uri =
			listen_address_with_port(&opening->config->listens[i].uri, listener);

		is_wanted = !uri.is_folder &&
			    listeners_is_stream(&uri) == listeners_is_stream(&listener->uri) &&
			    listen_address_overlaps(listener, &uri);
		if (is_wanted) {
			listener->uri.protocol = uri.protocol;
			listener_set_export(listener, &uri);
		}
	}
	return is_wanted || listen_folders_adopt(opening->config, listener);
}

static int listeners_adopt_inherited(
	struct opening *opening, struct upgrade_take *take, struct error *error)
{
	struct upgrade_socket socket;
	int rc = 0;

	while (rc == 0 && upgrade_take_socket(take, false, &socket)) {
		struct listener *listener = &opening->listeners[opening->count];

		rc = listener_adopt_inherited(&socket, listener, error);
		if (rc == 0 && is_wanted(opening, listener)) {
			rc = adopted(opening, error);
		} else if (rc == 0) {
			/* The other process may continue to use the socket, so its file stays. */
			listener_forget_path(listener);
			listener_close(listener);
		}
	}
	return rc;
}

/* Returns whether an adopted listener serves the address. */
static bool is_served(
	const struct opening *opening, uint32_t adopted_count, const struct export_uri *uri)
{
	bool is_served = listen_address_is_served(opening->listeners, adopted_count, uri);

	for (uint32_t i = 0; !is_served && uri->port == 0 && i < adopted_count; i++) {
		struct export_uri found = listen_address_with_port(uri, &opening->listeners[i]);

		is_served = !uri->is_unix && opening->listeners[i].was_inherited &&
			    listen_address_is_served(opening->listeners, adopted_count, &found);
	}
	return is_served;
}

static int open_default_listener(struct opening *opening, struct error *error)
{
	struct export_uri uri;
	int rc = export_uri_parse(listen_default, &uri, error);

	if (rc < 0) {
		return rc;
	}
	rc = listeners_open_listener(opening, &uri, &opening->config->tls, error);
	export_uri_fini(&uri);
	return rc;
}

/* Applies the TLS settings of a configured address to the service manager's sockets at that
 * address. Two addresses may share a socket only if their settings agree. */
static int adopt_settings(struct opening *opening, uint32_t adopted_count,
	const struct server_listen *entry, struct error *error)
{
	for (uint32_t i = 0; i < adopted_count; i++) {
		struct listener *listener = &opening->listeners[i];
		bool is_set = listener->settings != &opening->config->tls;

		if (strcmp(listener->uri.protocol, entry->uri.protocol) != 0 ||
			!listen_address_overlaps(listener, &entry->uri)) {
			continue;
		}
		if (is_set && !server_tls_equal(listener->settings, &entry->tls)) {
			return error_set(error, -EINVAL,
				"%s and another address share a socket of the service manager, but "
				"have different TLS settings",
				entry->text);
		}
		listeners_set_tls(listener, &entry->tls);
	}
	return 0;
}

/* Opens the configured addresses, except those on which the service manager already listens. So one
 * configuration works with and without a socket unit. */
static int open_configured(struct opening *opening, struct error *error)
{
	const struct server_config *config = opening->config;
	uint32_t adopted_count = opening->count;

	for (uint32_t i = 0; i < config->listen_count; i++) {
		const struct server_listen *entry = &config->listens[i];
		int rc = entry->uri.is_folder /* see listen/folder.h */
				 ? 0
				 : adopt_settings(opening, adopted_count, entry, error);

		if (rc == 0 && !entry->uri.is_folder &&
			!is_served(opening, adopted_count, &entry->uri)) {
			rc = listeners_open_listener(opening, &entry->uri, &entry->tls, error);
		}
		if (rc < 0) {
			error_prefix(error, "%s", entry->origin);
			return rc;
		}
	}
	return 0;
}

int listeners_open(const struct server_config *config, struct upgrade_take *take,
	const struct session_kind *const *kinds, uint32_t kind_count,
	struct listener **listeners_out, uint32_t *count_out, struct error *error)
{
	struct opening opening = { .config = config, .kinds = kinds, .kind_count = kind_count };
	int adopted_count = manager_take_sockets();
	int rc;

	if (adopted_count < 0) {
		return error_set(error, adopted_count,
			"cannot read the sockets of the service manager: %s",
			strerror(-adopted_count));
	}
	opening.listeners = calloc((size_t)adopted_count + upgrade_take_socket_count(take) +
					   config->listen_count + listen_folders_room(config) + 1,
		sizeof(*opening.listeners));
	if (opening.listeners == NULL) {
		return error_oom_for(error, "listening addresses");
	}
	rc = adopt_sockets(&opening, adopted_count, error);
	rc = rc ?: listeners_adopt_inherited(&opening, take, error);
	rc = rc ?: open_configured(&opening, error);
	if (rc == 0 && opening.count == 0 && config->listen_count == 0) {
		rc = open_default_listener(&opening, error);
	}
	*listeners_out = opening.listeners;
	*count_out = opening.count;
	return rc;
}
